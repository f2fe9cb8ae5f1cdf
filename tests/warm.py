"""A `weft` that has its libraries loaded already, so that hundreds of documented commands do not each wait for torch.

Run as `warm.py SOCKET` it waits for calls. Each call is answered by a child of its own, forked before anything has been
done, with the caller's folder, environment, standard input and outputs. `weft -c CODE` runs Python.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import traceback

# The `weft` that stands first on the path of a documented command: it hands over what it was given.
CALLER = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as call:
    call.connect({at!r})
    asked = {{"arguments": sys.argv[1:], "folder": os.getcwd(), "environment": dict(os.environ)}}
    socket.send_fds(call, [json.dumps(asked).encode() + b"\\n"], [0, 1, 2])
    status = call.recv(1)
sys.exit(status[0] if status else 1)
"""


def wait(at: str) -> None:
    """Load what commands need, say that all is ready, and answer calls until nobody is left to make one."""
    import weft.exporters.export
    import weft.pruning.prune
    import weft.quantization.quantize
    import weft.runs.driver
    import weft.runs.finetune
    import weft.runs.ladder
    import weft.runs.pretrain
    import weft.tasks.seq2seq
    import weft.tasks.word_vectors  # noqa: F401
    from weft.cli.main import run

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the children
    with socket.socket(socket.AF_UNIX) as waiting:
        waiting.bind(at)
        waiting.listen()
        print("ready", flush=True)
        while True:
            call, _ = waiting.accept()
            if os.fork() == 0:
                waiting.close()
                answer(call, run)
            call.close()


def answer(call: socket.socket, run: object) -> None:
    """One call, in a process of its own."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    message, files, _, _ = socket.recv_fds(call, 1 << 20, 3)
    while not message.endswith(b"\n"):
        message += call.recv(1 << 20)
    asked = json.loads(message)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    arguments = asked["arguments"]
    try:
        if arguments[:1] == ["-c"]:  # as Python has it
            exec(compile(arguments[1], "<documentation>", "exec"), {"__name__": "__main__"})
            status = 0
        else:
            status = run(arguments)  # type: ignore[operator]
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    call.send(bytes([status]))
    os._exit(0)


if __name__ == "__main__":
    wait(sys.argv[1])

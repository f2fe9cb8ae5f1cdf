"""Break a run off with SIGKILL, again and again, and go on with it: run as a script, since it forks.

    python broken.py SETTINGS.json OUT KILLS SEED

torch is imported once and each attempt is a fork, so an attempt begins within milliseconds.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from weft.runs.driver import resume
from weft.runs.pretrain import pretrain


def begin(work: Callable[[], object]) -> int:
    """Do the work in a process of its own; its number."""
    sys.stdout.flush()
    number = os.fork()
    if number:
        return number
    try:
        work()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def ended(number: int) -> bool:
    """Whether the process is done; anything but success or our own kill is a failure."""
    found, status = os.waitpid(number, os.WNOHANG)
    if not found:
        return False
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, -signal.SIGKILL), f"a process ended with {code}"
    return True


def main() -> None:
    settings = json.loads(Path(sys.argv[1]).read_text())
    out, kills, chance = Path(sys.argv[2]), int(sys.argv[3]), random.Random(int(sys.argv[4]))
    start = time.perf_counter()
    cache = os.environ["WEFT_CACHE"]
    os.environ["WEFT_CACHE"] = f"{cache}-whole"  # the broken run tokenizes for itself, and may be killed at it
    number = begin(lambda: pretrain(None, {**settings, "out": f"{out}-whole"}))
    while not ended(number):
        time.sleep(0.01)
    os.environ["WEFT_CACHE"] = cache
    whole = time.perf_counter() - start
    done = in_saves = 0
    while True:
        work = (lambda: resume(out)) if (out / "run" / "recipe.toml").exists() else (
            lambda: pretrain(None, {**settings, "out": str(out)})
        )  # fmt: skip
        number = begin(work)
        if done == kills:
            break
        # The more kills there are to come, the less an attempt may get done.
        moment = time.perf_counter() + chance.random() * whole * (0.7 if kills <= 3 else 2 / kills)
        in_save = done % 3 == 2  # every third kill waits for a save and strikes in the middle of it
        while not ended(number):
            writing = in_save and any((out / "run" / "checkpoints").glob(".step-*"))
            if writing or (not in_save and time.perf_counter() > moment):
                os.kill(number, signal.SIGKILL)
                os.waitpid(number, 0)
                done += 1
                in_saves += writing
                break
            time.sleep(0.0005)
        else:  # it was done before its moment came, since the machine was busier when the whole run was timed
            shutil.rmtree(out)
            whole, done, in_saves = whole / 2, 0, 0
    while not ended(number):
        time.sleep(0.01)
    print(json.dumps({"kills": done, "in_saves": in_saves}))


if __name__ == "__main__":
    main()

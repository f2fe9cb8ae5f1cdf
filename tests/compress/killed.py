"""Kill a distillation while its teacher reads, then while its student learns, and go on: run as a script, it forks.

python killed.py SETTINGS.json OUT

"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch._dynamo  # noqa: F401  (optimizers fetch it: once here rather than in every fork)

from weft.distillation import dataset as teaching
from weft.distillation import report as reporting
from weft.distillation.distill import distill
from weft.runs.driver import resume
from weft.training.log import RunLog


def end() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def in_a_fork(work: Callable[[], object]) -> int:
    """How a process of its own that did the work has ended."""
    number = os.fork()
    if not number:
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])


def main() -> None:
    settings, out = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    teaching.SHARD = 16
    reporting.write_report = lambda *given, **more: None  # it measures, which takes longer than all the rest
    cache, write, record = os.environ["WEFT_CACHE"], teaching._write, RunLog.record
    os.environ["WEFT_CACHE"] = f"{cache}-whole"  # the broken run has a teacher of its own to ask
    assert in_a_fork(lambda: distill(None, None, {**settings, "out": f"{out}-whole"})) == 0
    os.environ["WEFT_CACHE"] = cache
    written = []

    def second(*given: Any) -> None:
        written.append(1)
        write(*given) if len(written) < 2 else end()

    def later(self: RunLog, values: dict[str, Any]) -> None:
        record(self, values) if values["step"] < 9 else end()

    def killed_in_the_teacher() -> None:
        teaching._write = second
        distill(None, None, {**settings, "out": str(out)})

    def killed_in_a_step() -> None:
        RunLog.record = later  # type: ignore[method-assign]
        resume(out)

    killed = [
        name
        for name, work in (("teacher", killed_in_the_teacher), ("step", killed_in_a_step))
        if in_a_fork(work) == -signal.SIGKILL
    ]
    assert in_a_fork(lambda: resume(out)) == 0
    print(
        json.dumps(
            {"killed": killed, "forwards": json.loads((out / "run" / "run.json").read_text())["teacher_forwards"]}
        )
    )


if __name__ == "__main__":
    main()

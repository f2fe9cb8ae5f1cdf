"""`make fuzz`: attack every reader and engine for a given time, and print what came of it.

python -m tests.hostile --seconds 1800 --seed 1                  all of it
python -m tests.hostile --seconds 60 --only onnx --only ct2      targets whose name holds one of these
python -m tests.hostile --seed 1 --replay run/run/run.json:17    one case again, with its traceback
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from itertools import islice
from pathlib import Path

# Before anything is loaded: one thread each, nothing from the network, and our own faults as they are.
os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
os.environ |= {"ORT_DISABLE_TELEMETRY": "1", "WEFT_DEBUG": "1"}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.add_argument("--seconds", type=float, default=1800.0)
    parser.add_argument("--cases", type=int, help="at most so many")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", help="targets whose name or reader holds this; may be repeated")
    parser.add_argument("--replay", help="TARGET:NUMBER")
    parser.add_argument("--failures", type=Path, default=Path("fuzz-failures"))
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the folder of samples goes, too

    from tests.hostile.runner import load_libraries, make_bed, run_cases, schedule, targets
    from tests.hostile.samples import samples
    from tests.hostile.table import failures_of, print_report

    load_libraries()
    with tempfile.TemporaryDirectory(prefix="weft-fuzz-") as folder:
        bed = Path(folder) / "bed"
        bed.mkdir()
        make_bed(bed, samples())
        wanted = targets(bed, samples())
        if given.replay:
            name, _, number = given.replay.rpartition(":")
            (target,) = [each for each in wanted if each.name == name]
            order = iter([(target, 0)] * (target.only is None) + [(target, int(number))])
            report = run_cases([target], bed, Path(folder), seed=given.seed, failures=given.failures, order=order)
            for path in sorted(given.failures.glob("*/replay.txt")) if report.failures else []:
                if given.replay in path.read_text():
                    print(path.read_text())
        else:
            if given.only:
                wanted = [each for each in wanted if any(part in f"{each.name} {each.reader}" for part in given.only)]
            order = islice(schedule(wanted), given.cases)
            report = run_cases(
                wanted, bed, Path(folder), seed=given.seed, seconds=given.seconds, failures=given.failures,
                processes=given.processes, order=order,
            )  # fmt: skip
        print_report(report)
        return 1 if failures_of(report) else 0


if __name__ == "__main__":
    sys.exit(main())

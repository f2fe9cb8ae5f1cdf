"""Two programs on the same cores: what both do together, by how long waiting threads of OpenMP spin.

    python benchmarks/shared_cores.py [--rounds 5] [--spins 300000 weft 1000] [--threads 2]

A thread of OpenMP that waits for the others keeps its core busy for a while before it sleeps. libgomp, which torch for
Linux brings along, reads from GOMP_SPINCOUNT how often it looks: 300,000 times by default. A thread of another program
that could use the core has to wait for it, and those that wait for that thread spin in turn. New processes train an
encoder of 2 x 128 on 8 texts of 128 tokens, or label single texts of 12 tokens with one of 6 x 384, for some seconds:
one process alone, and two at once. The settings take turns; "weft" is what Weft sets by itself. Figures are medians:
steps a second alone, those of two at once together, their ratio (1: nothing is lost), and the speed alone against that
with the first setting in the same round.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from common import RESULTS, machine, parse, write

from weft.startup import LOOKS, SPINS

WORK = {"train": ((2, 128), 8, 128), "predict": ((6, 384), 1, 12)}  # size, batch, length
SETTINGS = ["300000", "weft", "1000", "0", "one thread"]


def child(work: str, seconds: float) -> None:
    """Do the work after a line of standard input, and print the steps a second."""
    from growth import Work

    size, batch, length = WORK[work]
    made = Work(size, batch, length, torch.device("cpu"))
    run = made.train if work == "train" else made.forward
    run()
    print("ready", flush=True)
    sys.stdin.readline()
    begin, steps = time.perf_counter(), 0
    while (passed := time.perf_counter() - begin) < seconds or not steps:
        run()
        steps += 1
    print(steps / passed, flush=True)


def environment(spins: str, threads: int) -> dict[str, str]:
    settings = {name: value for name, value in os.environ.items() if name not in (SPINS, "OMP_WAIT_POLICY")}
    settings["OMP_NUM_THREADS"] = "1" if spins == "one thread" else str(threads)
    if spins != "one thread":
        settings[SPINS] = LOOKS if spins == "weft" else spins
    return settings


def rate(work: str, seconds: float, spins: str, threads: int, count: int) -> float:
    """Steps a second of so many processes together."""
    command, pipe = [sys.executable, __file__, "--child", work, "--seconds", str(seconds)], subprocess.PIPE
    settings = environment(spins, threads)
    runs = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=settings) for _ in range(count)]
    for run in runs:
        assert run.stdout is not None and run.stdout.readline() == "ready\n"
    for run in runs:
        assert run.stdin is not None
        run.stdin.write("\n")
        run.stdin.flush()
    return sum(float(run.communicate()[0]) for run in runs)


def measured(work: str, asked: argparse.Namespace) -> dict[str, Any]:
    rates: dict[tuple[str, int], list[float]] = {(spins, count): [] for spins in asked.spins for count in (1, 2)}
    for number in range(asked.rounds):
        for spins, count in random.Random(number).sample(list(rates), len(rates)):
            rates[spins, count].append(rate(work, asked.seconds, spins, asked.threads, count))
    found: dict[str, Any] = {}
    for spins in asked.spins:
        alone, two = statistics.median(rates[spins, 1]), statistics.median(rates[spins, 2])
        against = [ours / first for ours, first in zip(rates[spins, 1], rates[asked.spins[0], 1], strict=True)]
        found[spins] = {
            "alone, steps a second": alone,
            "two at once, together": two,
            "kept": two / alone,
            f"alone against {asked.spins[0]}": statistics.median(against),
            "alone, from and to": [min(rates[spins, 1]), max(rates[spins, 1])],
            "two at once, from and to": [min(rates[spins, 2]), max(rates[spins, 2])],
        }
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--work", nargs="+", choices=list(WORK), default=list(WORK))
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--seconds", type=float, default=2.0, help="that each process works")
    options.add_argument("--spins", nargs="+", default=SETTINGS, help='numbers, "weft" or "one thread"')
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--child", choices=list(WORK), help=argparse.SUPPRESS)
    options.add_argument("--result", type=Path, default=RESULTS / "shared_cores.json")
    asked = parse(options, rounds=1, seconds=0.1, spins=["weft", "one thread"], work=["train"])
    if asked.child:
        return child(asked.child, asked.seconds)
    values: dict[str, Any] = json.loads(asked.result.read_text(encoding="utf-8")) if asked.result.exists() else {}
    values["machine"] = machine()
    for work in asked.work:
        values[work] = measured(work, asked)
        write(asked.result, values)
    print(json.dumps(values, indent=2))


if __name__ == "__main__":
    main()

"""The main job on a built-in text: train a small GPT and a small BERT, let them speak, teach one of them a task.

`make demo` runs it, in about three minutes on two cores; `--quick` takes a few steps only. Everything that it makes is
in the folder `demo`, which it empties first.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from pathlib import Path

from weft.cli.main import run

HERE = Path(__file__).parent
OUT = Path("demo")


def steps(quick: bool) -> list[tuple[str, list[str]]]:
    few = " --steps 20 --set training.evaluate_every=10" if quick else ""
    tuning = "--steps 4" if quick else "--lr 1e-3 --epochs 10"
    text = f"--text {OUT}/stories.txt"
    return [
        ("A small GPT learns to tell stories: it has never seen a word before", [
            f"weft pretrain recipes/demo-gpt.toml {text} --out {OUT}/gpt{few}",
        ]),
        ("What it says now, twice the likeliest and once by chance", [
            f'weft generate {OUT}/gpt "The weaver said" --max-tokens 60',
            f'weft generate {OUT}/gpt "In winter the shepherd" --max-tokens 60',
            f"weft generate {OUT}/gpt --max-tokens 80 --temperature 0.8 --seed 1",
        ]),
        ("What comes next, and what a half-typed word will be", [
            f'weft suggest {OUT}/gpt "The weaver worked at the" --top 3',
            f'weft suggest {OUT}/gpt "The weaver worked at the lo" --top 3',
        ]),
        ("A small BERT learns to fill gaps in the same stories", [
            f"weft pretrain recipes/demo-bert.toml {text} --out {OUT}/bert{few}",
        ]),
        ("What it puts there", [
            f'weft fill {OUT}/bert "The shepherd tended the [MASK]." --top 3',
            f'weft fill {OUT}/bert "The weaver worked at the [MASK]." --top 3',
            f'weft fill {OUT}/bert "the [MASK] of the loom" --top 3',
        ]),
        ("The same BERT learns to tell good reviews from bad ones, from a hundred of them", [
            f"weft finetune --task classify --data {OUT}/reviews.csv --base {OUT}/bert --out {OUT}/reviews {tuning}",
            f'weft predict {OUT}/reviews "A warm blanket. Excellent!" "The boat was late. Never again."',
            f"weft evaluate {OUT}/reviews --data {OUT}/more-reviews.csv --out {OUT}/reviews.html",
        ]),
        ("The curves of both on one page, and vectors of two sentences", [
            f"weft curves {OUT}/gpt {OUT}/bert --out {OUT}/curves.html",
            f'weft embed {OUT}/bert "The loom was old." "The river was cold." --out {OUT}/vectors.npy',
        ]),
    ]  # fmt: skip


def main() -> int:
    begin = time.perf_counter()
    quick = "--quick" in sys.argv[1:]
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir()
    for name in ("reviews.csv", "more-reviews.csv"):
        shutil.copy(HERE / name, OUT)
    os.environ.setdefault("WEFT_CACHE", str(OUT / "cache"))
    print(f"\n== Stories that a small grammar makes from a seed\n\n$ python {HERE}/grammar.py --out {OUT}/stories.txt")
    os.spawnv(os.P_WAIT, sys.executable, [sys.executable, str(HERE / "grammar.py"), "--out", f"{OUT}/stories.txt"])
    print(f"{(OUT / 'stories.txt').read_text()[:400]} ...")
    for title, commands in steps(quick):
        print(f"\n== {title}")
        for command in commands:
            print(f"\n$ {command}", flush=True)
            status = run(shlex.split(command)[1:])
            if status:
                return status
    print(
        f"\nDone in {time.perf_counter() - begin:.0f} s. The folders {OUT}/gpt and {OUT}/bert open in transformers too."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

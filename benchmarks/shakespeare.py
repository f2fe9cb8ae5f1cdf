"""Tiny Shakespeare by characters: the loss on the whole held-out tenth, beside nanoGPT's published figures.

    WEFT_DATA=DATA python benchmarks/shakespeare.py     # the recipe for a GPU where there is one, else the CPU's

The text is looked for as DATA/tinyshakespeare/input.txt.xz. The loss is over non-overlapping windows of the whole
split; the time is that of training, compilation included, evaluations left out.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import torch
from common import RESULTS, machine, parse, write

from weft.runs.pretrain import pretrain
from weft.training.run import Run

PEERS = {
    "shakespeare-gpt": "nanoGPT README: 1.4697 in about 3 minutes on an A100",
    "shakespeare-gpt-cpu": "nanoGPT README: 1.88 in about 3 minutes (2000 steps of 12 x 64)",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usual = "shakespeare-gpt" if torch.cuda.is_available() else "shakespeare-gpt-cpu"
    parser.add_argument("--recipe", choices=PEERS, default=usual)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--steps", type=int, help="instead of those of the recipe")
    given = parse(parser, recipe="shakespeare-gpt-cpu", steps=4)
    with tempfile.TemporaryDirectory() as folder:
        training = {"training": {"steps": given.steps, "evaluate_every": given.steps}} if given.steps else {}
        pretrain(given.recipe, {"out": f"{folder}/run", **training})
        lines = Run(Path(folder) / "run").lines()
    best = min((line for line in lines if "validation_loss" in line), key=lambda line: line["validation_loss"])
    last = [line for line in lines if "loss" in line][-1]
    found = {
        "recipe": given.recipe,
        "held-out loss": round(best["validation_loss"], 4),
        "at step": best["step"],
        "seconds of training": round(last["seconds"], 1),
        "tokens per second": last["tokens_per_second"],
        "peer": PEERS[given.recipe],
        "machine": machine(),
    }
    print(json.dumps(found, indent=2))
    write(given.out or RESULTS / f"{given.recipe}.json", found)


if __name__ == "__main__":
    main()

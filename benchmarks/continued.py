"""Continued pre-training: all-MiniLM-L6-v2's encoder on film reviews, judged by its MLM loss on reviews held out.

    WEFT_DATA=DATA python benchmarks/continued.py [--weights MODEL]        # the folder of all-MiniLM-L6-v2

One command, `weft pretrain --base MODEL --text reviews.txt --dev held-out.txt`; the encoder has no word head, so it
begins with a fresh one. Afterwards the folder is opened by transformers and the logits of both are compared.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import tempfile
from pathlib import Path

import torch
from common import RESULTS, machine, minilm, parse, peer, write

import weft
from weft.nn.rows import Ragged
from weft.training.run import Run


def largest_difference(folder: Path, text: str) -> float | None:
    """Between our logits and those of transformers, for one text; None where it is not installed."""
    transformers = peer("transformers")
    if transformers is None:
        return None
    model = weft.load(folder, task="fill", device="cpu")
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    assert model.tokenizer is not None
    ids = model.tokenizer.encode(text).ids
    with torch.no_grad():
        ragged = Ragged.of([ids])
        network = model.network.eval()
        ours = network.words(network(ragged.tokens, ragged.rows))  # type: ignore[operator]
        return float((ours - theirs(torch.tensor([ids])).logits[0]).abs().max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, default=minilm())
    parser.add_argument("--reviews", type=int, default=20_000)
    parser.add_argument("--held-out", type=int, default=500)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--out", type=Path, default=RESULTS / "continued.json")
    given = parse(parser, reviews=20, held_out=5, steps=4, batch=4)
    if given.weights is None:
        parser.error("give --weights, the folder of all-MiniLM-L6-v2")
    with lzma.open(Path(os.environ["WEFT_DATA"]) / "imdb" / "unsup.txt.xz", "rt", encoding="utf-8") as file:
        lines = file.read().split("\n")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "reviews.txt").write_text("\n".join(lines[: given.reviews]))
        (folder / "held-out.txt").write_text("\n".join(lines[-given.held_out :]))
        weft.pretrain(
            model={"base": str(given.weights)},
            text={"files": [str(folder / "reviews.txt")], "dev": [str(folder / "held-out.txt")]},
            objective={"length": 256},
            training={
                "steps": given.steps,
                "batch": given.batch,
                "learning_rate": 5e-4,
                "evaluate_every": max(1, given.steps // 4),
            },
            out=str(folder / "run"),
        )
        judged = [line for line in Run(folder / "run").lines() if "validation_loss" in line]
        found = {
            "work": f"all-MiniLM-L6-v2, MLM on {given.reviews:,} IMDb reviews",
            "training": f"{given.steps:,} steps of {given.batch} rows",
            "held-out loss": {str(line["step"]): round(line["validation_loss"], 4) for line in judged},
            "largest difference to transformers' logits": largest_difference(folder / "run", lines[-1][:400]),
            "machine": machine(),
            "transformers": getattr(peer("transformers"), "__version__", None),
        }
    print(json.dumps(found, indent=2))
    write(given.out, found)


if __name__ == "__main__":
    main()

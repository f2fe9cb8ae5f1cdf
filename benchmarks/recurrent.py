"""Recurrent networks: the speed of an LSTM language model beside a bare loop, and LSTM and CNN classifiers.

    python benchmarks/recurrent.py --speed [--device cuda]
    WEFT_DATA=DIR python benchmarks/recurrent.py --classify trec,subjectivity,imdb [--device cuda] [--seeds 3]

Speed: two layers, as wide as the medium model of Zaremba et al. (2014) on a GPU and as the small one on a CPU; our
trainer and a plain loop around torch.nn.LSTM take turns, with the same shapes, dropout, optimizer and clipping, and the
state carried on both sides. On a GPU ours is played back from CUDA graphs, as `weft pretrain` does it; without, too.
Classifiers: from random vectors and from GloVe's, trained by `weft.finetune` with its own defaults.
"""

from __future__ import annotations

import argparse
import csv
import lzma
import os
import random
import statistics
import tempfile
import time
import zipfile
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import RESULTS, device_name, medians, parse, write
from torch import nn

import weft
from weft.checkpoint.families import FAMILIES
from weft.data.masking import shift
from weft.data.rows import Ahead, Feed, Frame, Framed, Streams
from weft.data.shards import Corpus
from weft.objectives.losses import CarriedToken, StreamStates
from weft.training.loop import quick_arithmetic
from weft.training.plan import Training
from weft.training.step import Group, Setup, Stepper, autocast, group_of

VOCABULARY, DROPOUT, RATE, CLIP = 10_000, 0.5, 1e-3, 1.0
SHAPES = {  # width, rows, tokens of a row
    "cpu": [(200, 20, 35)],
    "cuda": [(650, 20, 35), (650, 64, 70)],
}


# ------------------------------------------------------------------------------------------------------------- speed


class Bare(nn.Module):
    """The model that everybody writes first."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.lstm = nn.LSTM(width, width, 2, dropout=DROPOUT, batch_first=True)
        self.dropout = nn.Dropout(DROPOUT)
        self.words = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: torch.Tensor, state: Any) -> tuple[torch.Tensor, Any]:
        x, state = self.lstm(self.dropout(self.tokens(tokens)), state)
        return self.words(self.dropout(x)), state


def bare(stream: np.ndarray, shape: tuple[int, int, int], device: torch.device, precision: str) -> Callable[[], None]:
    """A step of the plain loop: batches lie on the device already."""
    width, rows, length = shape
    torch.manual_seed(0)
    model = Bare(width).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), RATE, fused=True)
    parts = torch.from_numpy(stream.astype(np.int64)).view(rows, -1).to(device)
    state = tuple(torch.zeros(2, rows, width, device=device) for _ in range(2))
    number = count()

    def step() -> None:
        nonlocal state
        begin = next(number) * length % (parts.shape[1] - length - 1)
        tokens, labels = parts[:, begin : begin + length], parts[:, begin + 1 : begin + 1 + length]
        optimizer.zero_grad()
        with autocast(device, precision):
            scores, after = model(tokens, state)
            loss = nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        state = tuple(part.detach().float() for part in after)

    return step


def ours(
    stream: np.ndarray, shape: tuple[int, int, int], device: torch.device, precision: str, capture: bool
) -> tuple[Callable[[], None], Ahead[Group]]:
    """A step of our trainer, with its loader, its accumulation, its memory of streams and its clipping."""
    width, rows, length = shape
    torch.manual_seed(0)
    family = FAMILIES["lstm"]
    config = family.config(vocabulary=VOCABULARY, width=width, layers=2, dropout=DROPOUT, tied=False)
    network = family.network(config, {"words": VOCABULARY})
    network.initialize()
    objective = CarriedToken(StreamStates(rows).lay_out(network.to(device)))
    framed = Framed(Corpus([stream], np.array([0, len(stream)]), None, "random"), Frame())
    setup = Setup(
        network=network,
        objective=objective,
        feed=Feed(Streams(framed, length, True, rows), shift, 0, rows),
        plan=Training(learning_rate=RATE, clip=CLIP, precision=precision),
        device=device,
        capture=capture,
    )
    stepper = Stepper(setup)
    ahead = Ahead(lambda step: group_of(setup, step, 1 << 20), 0, 1 << 40)
    groups, number = iter(ahead), count()

    def step() -> None:
        group = next(groups)
        stepper.step(*group, next(number))
        objective.states.settle()

    return step, ahead


def speed(device: torch.device, shapes: list[tuple[int, int, int]], steps: int, repeats: int) -> list[dict[str, Any]]:
    """Tokens a second of each side, in turns of some steps; ours / bare."""
    found = []
    stream = np.random.default_rng(0).integers(0, VOCABULARY, 2_240_000).astype(np.uint32)
    settle = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    for shape in shapes:
        for precision in ("fp32", "bf16") if device.type == "cuda" else ("fp32",):
            runs, loaders = {"bare": bare(stream, shape, device, precision)}, []
            ways = [("ours", True), ("ours, not captured", False)] if device.type == "cuda" else [("ours", False)]
            for name, capture in ways:
                runs[name], ahead = ours(stream, shape, device, precision, capture)
                loaders.append(ahead)

            def several(step: Callable[[], None]) -> Callable[[], None]:
                def run() -> None:
                    for _ in range(steps):
                        step()

                return run

            with quick_arithmetic(device):
                times = medians({name: several(step) for name, step in runs.items()}, repeats, 2, settle)
            for ahead in loaders:
                ahead.close()
            tokens = steps * shape[1] * shape[2]
            line: dict[str, Any] = {"layers x width": f"2 x {shape[0]}", "rows": shape[1], "tokens of a row": shape[2]}
            line |= {"precision": precision, **{name: round(tokens / taken) for name, taken in times.items()}}
            line["ours / bare"] = round(times["bare"] / times["ours"], 3)
            print(
                "  ".join(
                    f"{name}: {value:,}" if isinstance(value, int) else f"{name}: {value}"
                    for name, value in line.items()
                )
            )
            found.append(line)
    return found


# ------------------------------------------------------------------------------------------------------- classifiers


def write_rows(path: Path, rows: list[tuple[str, str]]) -> str:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        writer.writerows(rows)
    return str(path)


def trec(data: Path, scratch: Path) -> tuple[str, str]:
    """Questions and the six kinds of what they ask for (Li and Roth, 2002)."""
    found = []
    with zipfile.ZipFile(data / "nltk/qc.zip") as archive:
        for part in ("train", "test"):
            lines = archive.read(f"qc/{part}.txt").decode("latin-1").splitlines()
            rows = [line.partition(" ")[::2] for line in lines if line.strip()]
            found.append(write_rows(scratch / f"{part}.csv", [(text, label.split(":")[0]) for label, text in rows]))
    return found[0], found[1]


def subjectivity(data: Path, scratch: Path) -> tuple[str, str]:
    """Sentences of reviews and of plots (Pang and Lee, 2004); a tenth, drawn once, is the test."""
    rows = []
    with zipfile.ZipFile(data / "nltk/subjectivity.zip") as archive:
        for name, label in (("plot.tok.gt9.5000", "objective"), ("quote.tok.gt9.5000", "subjective")):
            lines = archive.read(f"subjectivity/{name}").decode("latin-1").splitlines()
            rows += [(line.strip(), label) for line in lines if line.strip()]
    random.Random(0).shuffle(rows)
    return write_rows(scratch / "train.csv", rows[1000:]), write_rows(scratch / "test.csv", rows[:1000])


def imdb(data: Path, scratch: Path) -> tuple[str, str]:
    """Reviews of films (Maas et al., 2011), with their own test."""
    return str(data / "imdb/train.tsv.xz"), str(data / "imdb/test.tsv.xz")


SETS = {"trec": trec, "subjectivity": subjectivity, "imdb": imdb}


def glove(data: Path, scratch: Path) -> str:
    text = lzma.decompress((data / "words/glove.6B.50d.top30k.txt.xz").read_bytes()).decode()
    lines = [line for line in text.split("\n") if len(line.split(" ")) == 51]  # the file has a note at its top
    (scratch / "glove.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(scratch / "glove.txt")


def classify(
    names: list[str], data: Path, device: str, seeds: int, limit: int | None, keep: Callable[[list[Any]], None]
) -> None:
    """Accuracy on each test, of each network from each kind of vectors; kept after each, for it takes long."""
    found: list[dict[str, Any]] = []
    for name in names:
        for family in ("lstm", "cnn"):
            for vectors in ("random", "glove"):
                with tempfile.TemporaryDirectory() as folder:
                    scratch = Path(folder)
                    train, test = SETS[name](data, scratch)
                    line: dict[str, Any] = {"data": name, "network": family, "vectors": vectors, "accuracy": []}
                    begin = time.perf_counter()
                    for seed in range(seeds):
                        model: dict[str, Any] = {"family": family}
                        model |= {"vectors": glove(data, scratch)} if vectors == "glove" else {}
                        made = weft.finetune(
                            train,
                            task="classify",
                            model=model,
                            tokenizer={} if vectors == "glove" else {"kind": "word", "size": 30_000},
                            training={"steps": limit} if limit else {},
                            seed=seed,
                            device=device,
                            out=scratch / f"run-{seed}",
                            log=lambda line: None,
                        )
                        score = made.to(device).evaluate(test).scores["accuracy"]
                        line["accuracy"].append([score.value, score.low, score.high])
                    line["seconds"] = round(time.perf_counter() - begin, 1)
                values = [value for value, _, _ in line["accuracy"]]
                line["mean"] = statistics.mean(values)
                low, high = line["accuracy"][0][1:]
                spread = f", {min(values):.4f} to {max(values):.4f} over {seeds} seeds" if seeds > 1 else ""
                print(
                    f"{name:<13} {family:<5} {vectors:<7} accuracy {line['mean']:.4f} "
                    f"(95 % of the first: {low:.4f} to {high:.4f}{spread})  {line['seconds']:.0f} s",
                    flush=True,
                )
                found.append(line)
                keep(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--speed", action="store_true", help="steps a second beside a bare torch.nn.LSTM loop")
    parser.add_argument("--classify", nargs="?", const=",".join(SETS), help=f"classifiers on these: {', '.join(SETS)}")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each classifier")
    parser.add_argument("--steps", type=int, default=10, help="steps of a turn")
    parser.add_argument("--repeats", type=int, default=15, help="turns")
    parser.add_argument("--limit", type=int, help="steps of a classifier, to try the script out")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parse(parser, speed=True, classify="trec", steps=1, repeats=1, limit=1)
    if not given.speed and given.classify is None:
        parser.error("choose --speed, --classify or both")
    device = torch.device(given.device)
    about = {"device": device_name(), "torch": torch.__version__, "threads": torch.get_num_threads()}
    if given.speed:
        shapes = [(16, 4, 8)] if given.smoke else SHAPES[device.type]
        lines = speed(device, shapes, given.steps, given.repeats)
        write(given.out / f"recurrent_speed_{device.type}.json", {**about, "lines": lines})
    if given.classify is not None:
        names = given.classify.split(",")
        if unknown := [name for name in names if name not in SETS]:
            parser.error(f"{unknown[0]} is not one of {', '.join(SETS)}")
        if "WEFT_DATA" not in os.environ:
            parser.error("set WEFT_DATA to the folder that holds imdb, nltk and words")
        path = given.out / f"recurrent_classify_{device.type}.json"

        def keep(rows: list[Any]) -> None:
            write(path, {**about, "lines": rows})

        classify(names, Path(os.environ["WEFT_DATA"]), str(device), given.seeds, given.limit, keep)


if __name__ == "__main__":
    main()

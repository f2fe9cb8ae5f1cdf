"""Which layer knows what: a linear probe on each frozen layer of a model, for tags of words or labels of texts.

n: words or texts; L: layers, with the embeddings; W: width; K: labels.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from weft.checkpoint.folder import LoadedModel
from weft.errors import UserError, one_of, refuse
from weft.explain.view import LinePlot, TextTable, View
from weft.metrics.bootstrap import REPLICATES, Score, drawn, interval
from weft.picture import ChartLine
from weft.progress import ProgressChoice, progress_of, to_logger
from weft.runs.preparation import gather
from weft.runs.recipes import DataSection, TaskRecipe, TaskSection
from weft.tasks.base import Example
from weft.tasks.embed import Embedder, TokenEmbedder
from weft.tasks.model import Model
from weft.tasks.tag import word_texts
from weft.training.signals import Control

TASKS = ("tag", "classify")
ROWS = 1000  # examples to learn from; half as many to evaluate on
ROUNDS = 60  # of L-BFGS
DECAY = 1e-3  # L2 penalty, so that a probe of many features does not learn few examples by heart
Floats = NDArray[np.float32]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class LayerScore:
    """What a probe of one layer knows."""

    name: str
    accuracy: Score
    f1: float  # mean over the labels


@dataclass(frozen=True, eq=False)
class Features:
    """The vectors of all layers for some examples, what is right, and to which example each belongs."""

    layers: list[Floats]  # n W each
    labels: Integers  # n
    examples: Integers  # n


def table_columns(task: str, paths: Sequence[str]) -> str:
    """The task by the names of files, where it was not given."""
    return task or (
        "tag" if any(".conll" in Path(path).name or ".iob" in Path(path).name for path in paths) else "classify"
    )


def probe_scores(
    model: LoadedModel,
    data: Sequence[str],
    *,
    task: str | None = None,
    dev: Sequence[str] = (),
    rows: int = ROWS,
    seed: int = 0,
    progress: ProgressChoice = None,
    **reading: Any,
) -> tuple[list[LayerScore], LayerScore, dict[str, Any]]:
    """The score of a linear probe on every layer, of always naming the most frequent label, and facts of the data."""
    name = one_of(table_columns(task or "", data), TASKS, "task")
    refuse(
        (not 10 <= rows <= 1_000_000, f"rows must be between 10 and 1,000,000, not {rows}"),
        (model.exported, "an exported model shows no layers: give the model folder that it was exported from"),
    )
    section = DataSection(files=tuple(data), dev=tuple(dev), split=seed % 2**31, holdout=0.2, **reading)
    recipe = TaskRecipe(task=TaskSection(name=name), data=section)
    own, dataset = gather(recipe, Control(log=to_logger, progress=progress_of(progress)))
    labels = tuple(vars(own)["labels"])
    train, judged = dataset.train[:rows], dataset.dev[: max(10, rows // 2)]
    refuse(
        (len(labels) < 2, f"a probe needs at least two labels; the data has {len(labels)}"),
        (not train or not judged, "there are too few rows to learn from and to evaluate on"),
    )
    known = {label: number for number, label in enumerate(labels)}
    with progress_of(progress)(f"reading {len(train) + len(judged):,} examples", "examples") as count:
        read = _words if name == "tag" else _texts
        learn, held = (read(model, some, known, count) for some in (train, judged))
    frequent = np.bincount(learn.labels, minlength=len(labels)).argmax()
    baseline = scored("majority", np.full_like(held.labels, frequent), held, len(labels))
    scores = []
    with progress_of(progress)(f"{len(learn.layers)} probes", "probes") as count:
        for number, (x, y) in enumerate(zip(learn.layers, held.layers, strict=True)):
            predicted = linear_probe(x, learn.labels, y, len(labels), seed)
            layer = "embeddings" if number == 0 else f"layer {number}"
            scores.append(scored(layer, predicted, held, len(labels)))
            count(1)
    facts = {"task": name, "labels": len(labels), "train": len(train), "judged": len(judged), "unit": _unit(name)}
    return scores, baseline, {**facts, "items": len(held.labels), "data": ", ".join(Path(p).name for p in data)}


def _unit(task: str) -> str:
    return "words" if task == "tag" else "texts"


def _split(network: Any, matrix: Floats) -> list[Floats]:
    return np.split(matrix, np.cumsum(network.state_widths)[:-1], axis=1)


def _words(model: LoadedModel, examples: Sequence[Example], known: dict[str, int], count: Any) -> Features:
    embedder = TokenEmbedder(model, "word", layers="all-concat")
    vectors, labels, owners = list[Floats](), list[int](), list[int]()
    answers = embedder.texts(word_texts(example) for example in examples)
    for number, (example, answer) in enumerate(zip(examples, answers, strict=True)):
        tags = [known.get(tag, -1) for tag in example.target]
        keep = [place for place, tag in enumerate(tags) if tag >= 0]
        vectors.append(np.asarray(answer.vectors, dtype=np.float32)[keep])
        labels += [tags[place] for place in keep]
        owners += [number] * len(keep)
        count(1)
    return Features(_split(model.network, np.concatenate(vectors)), np.array(labels), np.array(owners))


def _texts(model: LoadedModel, examples: Sequence[Example], known: dict[str, int], count: Any) -> Features:
    embedder = Embedder(model, layers="all-concat", normalize=False)
    keep = [example for example in examples if example.target in known]
    vectors = []
    for some in embedder.chunks(" ".join(example.texts) for example in keep):
        vectors.append(some.vectors.numpy())
        count(len(vectors[-1]))
    labels = np.array([known[example.target] for example in keep])
    return Features(_split(model.network, np.concatenate(vectors)), labels, np.arange(len(keep)))


def linear_probe(x: Floats, labels: Integers, judged: Floats, count: int, seed: int = 0) -> Integers:
    """The labels that softmax regression, learned from x (n W), gives to other vectors."""
    mean, spread = x.mean(0), x.std(0) + 1e-6
    inputs, targets = torch.from_numpy((x - mean) / spread).float(), torch.from_numpy(labels)
    weight = torch.zeros(count, x.shape[1], requires_grad=True)
    bias = torch.zeros(count, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=ROUNDS, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = F.cross_entropy(F.linear(inputs, weight, bias), targets) + DECAY * weight.pow(2).sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    with torch.enable_grad():
        optimizer.step(loss)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        outputs = F.linear(torch.from_numpy((judged - mean) / spread).float(), weight, bias)
    return outputs.argmax(-1).numpy()


def scored(name: str, predicted: Integers, held: Features, count: int) -> LayerScore:
    """Accuracy with an interval from resampled examples, and the mean F1 of the labels that occur."""
    right = (predicted == held.labels).astype(np.float64)
    size = int(held.examples.max()) + 1
    hits = np.bincount(held.examples, right, size)
    sizes = np.bincount(held.examples, minlength=size).astype(np.float64)
    weights = np.stack([np.ones(size), *(drawn(0, number, size) for number in range(REPLICATES))])
    values = (weights @ hits) / np.maximum(weights @ sizes, 1.0)
    both = np.bincount(held.labels * count + predicted, minlength=count * count).reshape(count, count)
    present = both.sum(1) > 0
    f1 = 2 * np.diag(both) / np.maximum(both.sum(0) + both.sum(1), 1)
    return LayerScore(name, interval(values, size), float(f1[present].mean()))


def probe_view(model: Model, data: str | os.PathLike[str] | Sequence[str], **options: Any) -> View:
    """Accuracy of a linear probe by layer, with the most frequent label as a baseline; options: see `probe_scores`."""
    paths = [os.fspath(data)] if isinstance(data, str | os.PathLike) else [os.fspath(path) for path in data]
    if not paths:
        raise UserError("no data: give --data FILE")
    scores, baseline, facts = probe_scores(model.opened, paths, **options)
    low = [(float(n), score.accuracy.low) for n, score in enumerate(scores)]
    high = [(float(n), score.accuracy.high) for n, score in enumerate(scores)]
    lines = [
        ChartLine("accuracy", [(float(n), score.accuracy.value) for n, score in enumerate(scores)], group="a"),
        ChartLine("95 % interval", low, upper=high, group="a"),
        ChartLine("mean F1 of the labels", [(float(n), score.f1) for n, score in enumerate(scores)], dashed=True),
        ChartLine(
            "most frequent label", [(0.0, baseline.accuracy.value), (len(scores) - 1.0, baseline.accuracy.value)]
        ),
    ]
    best = max(scores, key=lambda score: score.accuracy.value)
    plot = LinePlot(
        heading="Linear probe by layer", lines=lines, x="layer (0: embeddings)", y="accuracy",
        note="Each layer is frozen, and one linear map reads it. Intervals are from resampled examples.",
    )  # fmt: skip
    rows = [
        [
            score.name,
            *(f"{value:.4f}" for value in (score.accuracy.value, score.accuracy.low, score.accuracy.high)),
            f"{score.f1:.4f}",
        ]
        for score in (baseline, *scores)
    ]
    table = TextTable(header=["features", "accuracy", "95 % from", "to", "mean F1"], rows=rows)
    intro = (
        f"{facts['data']}: {facts['labels']} labels, {facts['train']:,} examples to learn from, {facts['judged']:,} "
        f"({facts['items']:,} {facts['unit']}) to evaluate on. Best: {best.name}, {best.accuracy.value:.1%}."
    )
    return View("Which layer knows it?", (plot, table), intro)

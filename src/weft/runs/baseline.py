"""Linear baselines that are trained beside a fine-tuned model, in seconds, on the same rows."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from weft.checkpoint.folder import LoadedModel
from weft.errors import listed
from weft.files import write_json
from weft.metrics.bootstrap import Score
from weft.progress import Log, Progress
from weft.runs.driver import report
from weft.tasks.base import Example, Prediction
from weft.tasks.embed import Embedder
from weft.tasks.evaluate import EvaluationResult
from weft.text.tfidf import MAX_TERMS, SparseRows, Tfidf
from weft.training.run import Run

CHARACTERS = 4_000_000  # of training text that a baseline reads: a few seconds
MANY_LABELS = 100  # from which on it reads less: each term of a row has a weight for each label
LONGEST = 20_000  # characters of one text that it reads
WEIGHTS = 2_000_000  # of a linear model on TF-IDF: many labels leave room for the most frequent terms only
HISTORY = 20_000_000  # weights of former steps that L-BFGS remembers
EMBEDDED = 2000  # rows at most that the frozen base reads
STRENGTH = 10.0  # scikit-learn's C: how much the rows count beside the penalty on large weights
ITERATIONS = 100
FEW_JUDGES = 20  # rows, with fewer of which a score is mostly luck
BASELINES = "baseline.json"  # in the run folder: how the baselines did, once they have been compared


@dataclass(frozen=True)
class Baseline:
    """A linear model's predictions for the held-out rows, as the metrics of the task see them."""

    name: str
    rows: int  # it was trained on
    metrics: Any
    seconds: float
    less: str = ""  # what it did without, so that it took seconds


def baseline_models(
    task: Any, train: Sequence[Example], dev: Sequence[Example], base: LoadedModel | None, progress: Progress
) -> list[Baseline]:
    """The simple forecasts that a task has of its own, else linear models of texts."""
    begin, baselines = time.perf_counter(), list[Baseline]()
    for name, predictions in task.baseline_predictions(train, task.sample(dev)).items():
        tuned = task.tune(predictions, task.sample(dev))
        metrics = tuned.metrics()
        tuned.add(metrics, predictions, task.sample(dev))
        baselines.append(Baseline(name, len(train), metrics, time.perf_counter() - begin))
        begin = time.perf_counter()
    return baselines or linear_models(task, train, dev, base, progress)


def linear_models(
    task: Any, train: Sequence[Example], dev: Sequence[Example], base: LoadedModel | None, progress: Progress
) -> list[Baseline]:
    """TF-IDF and, where there is a base, its frozen embeddings, each under one linear layer."""
    model = {"label": "logistic regression", "labels": "logistic regression", "value": "ridge regression"}[task.kind]
    baselines = list[Baseline]()

    def add(features: str, rows: Sequence[Example], matrices: Sequence[Tensor], begin: float, terms: int = 0) -> None:
        targets = torch.from_numpy(task.targets(rows))
        weights, bias = fit(matrices[0], targets.double() if task.kind == "value" else targets, task.kind)
        scores = (matrices[1] @ weights + bias).numpy()
        if scores.shape[1] < task.outputs:  # the last labels are in no row of the sample
            scores = np.pad(scores, ((0, 0), (0, task.outputs - scores.shape[1])), constant_values=-1e9)
        predictions = [Prediction(row * task.spread + task.center, 0, 1, False) for row in scores]
        tuned = task.tune(predictions, dev)
        metrics = tuned.metrics()
        tuned.add(metrics, predictions, dev)
        used = ((len(rows), len(train), "rows"), (matrices[0].shape[1], terms, "terms"))
        less = "".join(f", {count:,} of {there:,} {what}" for count, there, what in used if count < there)
        baselines.append(Baseline(f"{features} + {model}", len(rows), metrics, time.perf_counter() - begin, less))

    begin = time.perf_counter()
    rows = _sample(train, CHARACTERS * MANY_LABELS // max(MANY_LABELS, task.outputs))
    texts = [_clipped(row) for row in rows]
    tfidf = Tfidf(texts, min(MAX_TERMS, max(1, WEIGHTS // task.outputs)))
    if tfidf.numbers:
        bags = (tfidf.bags(texts), tfidf.bags([_clipped(row) for row in dev]))
        add("TF-IDF", rows, [_sparse(some, len(tfidf.numbers)) for some in bags], begin, tfidf.all_terms)
    if base is not None and base.tokenizer is not None and not task.pair:
        begin, rows, features = time.perf_counter(), _sample(train, CHARACTERS // 4, EMBEDDED), list[Tensor]()
        with progress("baseline: embedding the rows", "rows") as done:
            for some in (rows, dev):
                chunks = list[Tensor]()
                for chunk in Embedder(base).chunks(_clipped(row)[0] for row in some):
                    chunks.append(chunk.vectors.double())
                    done(len(chunk.vectors))
                features.append(torch.cat(chunks))
        center = features[0].mean(0)
        spread = features[0].std(0, correction=0).clamp_min(1e-6) * features[0].shape[1] ** 0.5
        add("frozen embeddings", rows, [(vectors - center) / spread for vectors in features], begin)
    return baselines


def _clipped(row: Example) -> tuple[str, ...]:
    return tuple(text[:LONGEST] for text in row.texts)


def _sample(rows: Sequence[Example], characters: int, most: int | None = None) -> list[Example]:
    """All rows, or as many as have so many characters: drawn at random, since files are often sorted by label."""
    total = sum(len(text) for row in rows for text in _clipped(row))
    count = min(most or len(rows), max(1, len(rows) * characters // max(1, total)))
    if count >= len(rows):
        return list(rows)
    return [rows[number] for number in sorted(np.random.default_rng(0).permutation(len(rows))[:count])]


def _sparse(bags: SparseRows, features: int) -> Tensor:
    """rows x features"""
    starts = torch.from_numpy(bags.starts)
    rows = torch.repeat_interleave(torch.arange(len(starts) - 1), starts.diff())
    places, size = torch.stack([rows, torch.from_numpy(bags.columns)]), (len(starts) - 1, features)
    return torch.sparse_coo_tensor(places, torch.from_numpy(bags.values), size, check_invariants=True).coalesce()


def fit(matrix: Tensor, targets: Tensor, kind: str, strength: float = STRENGTH) -> tuple[Tensor, ...]:
    """Weights (features x outputs) and biases of the lowest mean loss with a penalty on the squares of the weights."""
    classes = int(targets.max()) + 1 if kind == "label" else 1 if kind == "value" else targets.shape[1]
    weights = torch.zeros(matrix.shape[1], classes, dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(classes, dtype=torch.float64, requires_grad=True)
    history = max(10, min(ITERATIONS, HISTORY // max(1, weights.numel())))
    options: dict[str, Any] = {"max_iter": ITERATIONS, "history_size": history, "line_search_fn": "strong_wolfe"}
    optimizer = torch.optim.LBFGS([weights, bias], **options)

    def closure() -> Tensor:
        optimizer.zero_grad()
        scores = matrix @ weights + bias
        if kind == "label":
            loss = F.cross_entropy(scores, targets)
        elif kind == "labels":
            loss = F.binary_cross_entropy_with_logits(scores, targets.double(), reduction="sum") / len(targets)
        else:
            loss = (scores[:, 0] - targets).square().mean() / 2
        loss = loss + weights.square().sum() / (2 * strength * len(targets))
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    return weights.detach(), bias.detach()


def compare_baselines(run: Run, evaluation: EvaluationResult, baselines: list[Baseline], metric: str, log: Log) -> None:
    """Log and record whether the model is better than the best baseline on the same rows, and by how much."""
    model = evaluation.metrics.sampled()[metric]
    read = evaluation.reading.examples
    rows = model.examples if evaluation.task.reads_tables else read  # windows that overlap count as one
    scores = {baseline.name: float(baseline.metrics.result()[metric].value) for baseline in baselines}
    by_score = sorted(baselines, key=lambda baseline: -np.nan_to_num(scores[baseline.name], nan=-9.0))
    gap = model.minus(by_score[0].metrics.sampled()[metric])
    if not math.isfinite(gap.value):  # a correlation of one row, or of equal values
        log(f"result: {metric} is not defined on these {rows:,} held-out rows; give more of them")
        return
    verdict = _verdict(gap, by_score[0].name, rows, overlap=rows < read)
    log(f"result: {metric} {model.score().value:.4f}{evaluation.task.composition()}; {verdict}")
    tables = evaluation.task.tables(evaluation.metrics)
    counts, labels = np.array(tables.get("confusion", [])), enumerate(tables.get("labels", ()))
    missed = [label for number, label in labels if counts[number].sum() and not counts[:, number].sum()]
    if missed and rows >= FEW_JUDGES:
        help = "more rows of these labels, more --epochs or --class-weights balanced may help"
        log(f"weft: note: never predicted on the held-out rows: {listed(missed, 5)}; {help}")
    kept = [each for each in by_score if math.isfinite(scores[each.name])]
    values = [{"name": e.name, "rows": e.rows, metric: scores[e.name], "seconds": e.seconds} for e in kept]
    difference = {"value": gap.value, "low": gap.low, "high": gap.high}
    write_json(run.inside / BASELINES, {"metric": metric, "baselines": values, "difference": difference})
    report(run, log)  # once more: the page shows the baselines too


def _verdict(gap: Score, name: str, rows: int, overlap: bool = False) -> str:
    held = f"{rows:,} held-out {'window' if overlap else 'row'}{'s' * (rows != 1)}{' without overlap' * overlap}"
    interval = f"95 % {gap.low:+.4f} to {gap.high:+.4f} on {held}"
    if rows < FEW_JUDGES:  # resampling a handful of rows makes no interval
        return f"{gap.value:+.4f} beside {name}; {held} {'is' if rows == 1 else 'are'} too few to tell"
    if gap.low > 0:
        return f"better than {name} by {gap.value:.4f} ({interval})"
    if gap.high < 0:
        return f"WORSE than {name} by {-gap.value:.4f} ({interval}): use that, or give more rows"
    if not gap.value:
        return f"no better and no worse than {name} ({interval})"
    side = "above" if gap.value > 0 else "below"
    return f"{abs(gap.value):.4f} {side} {name}, which is within the noise ({interval})"

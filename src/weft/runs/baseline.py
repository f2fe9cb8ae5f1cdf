"""Linear baselines that are trained beside a fine-tuned model, in seconds, on the same rows.

n: rows; d: features; C: outputs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from weft.checkpoint.card import Card
from weft.checkpoint.folder import LoadedModel
from weft.data.dataset import Dataset
from weft.files import write_json
from weft.metrics.bootstrap import Score
from weft.progress import Log, Progress
from weft.runs.driver import report
from weft.runs.recipes import TaskRecipe
from weft.tasks.base import Example, Prediction, Task
from weft.tasks.classify import TextTask
from weft.tasks.embed import Embedder
from weft.tasks.evaluate import EvaluationResult, evaluate_examples
from weft.tasks.model import Model
from weft.text.tfidf import MAX_TERMS, SparseRows, Tfidf
from weft.text.windows import Framing
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

Product = Callable[[Tensor], Tensor]  # d C -> n C: the rows times these weights


@dataclass(frozen=True)
class Baseline:
    """A linear model's predictions for the held-out rows, as the metrics of the task see them."""

    name: str
    rows: int  # it was trained on
    metrics: Any
    seconds: float
    less: str = ""  # what it did without, so that it took seconds


def train_baselines(
    recipe: TaskRecipe,
    task: Task,
    dataset: Dataset[Example],
    opened: LoadedModel,
    card: Card,
    device: torch.device,
    progress: Progress,
) -> list[Baseline]:
    """The baselines of a run, where its task has some; the base still is as it was, and so is its `card`."""
    if not (recipe.task.baseline and task.linear_baseline):
        return []
    opened.network.to(device)
    base = replace(opened, card=card) if "base" in recipe.model else None
    return linear_models(task, dataset.train, dataset.dev, base, progress)


def linear_models(
    task: Any, train: Sequence[Example], dev: Sequence[Example], base: LoadedModel | None, progress: Progress
) -> list[Baseline]:
    """TF-IDF and, where there is a base, its frozen embeddings, each under one linear layer."""
    model = {"label": "logistic regression", "labels": "logistic regression", "value": "ridge regression"}[task.kind]
    rows = _sample(train, CHARACTERS * MANY_LABELS // max(MANY_LABELS, task.outputs))
    texts, held_out = [_clipped(row) for row in rows], [_clipped(row) for row in dev]
    baselines = []
    begin = time.perf_counter()
    tfidf = Tfidf(texts, min(MAX_TERMS, max(1, WEIGHTS // task.outputs)))
    if tfidf.numbers:
        products: Sequence[Product] = [_sparse(tfidf.bags(texts)), _sparse(tfidf.bags(held_out))]
        metrics = _judged(task, rows, dev, products, len(tfidf.numbers))
        less = _less(len(rows), len(train), "rows") + _less(len(tfidf.numbers), tfidf.all_terms, "terms")
        baselines.append(Baseline(f"TF-IDF + {model}", len(rows), metrics, time.perf_counter() - begin, less))
    if base is not None and base.tokenizer is not None and not task.pair:
        begin = time.perf_counter()
        rows = _sample(train, CHARACTERS // 4, EMBEDDED)
        with progress("baseline: embedding the rows", "rows") as done:
            features = [_embedded(base, some, done) for some in (rows, dev)]
        center = features[0].mean(0)
        spread = features[0].std(0, correction=0).clamp_min(1e-6) * features[0].shape[1] ** 0.5
        products = [partial(torch.matmul, (some - center) / spread) for some in features]
        metrics = _judged(task, rows, dev, products, features[0].shape[1])
        seconds = time.perf_counter() - begin
        less = _less(len(rows), len(train), "rows")
        baselines.append(Baseline(f"frozen embeddings + {model}", len(rows), metrics, seconds, less))
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


def _less(used: int, there: int, what: str) -> str:
    return f", {used:,} of {there:,} {what}" if used < there else ""


def _sparse(bags: SparseRows) -> Product:
    starts = torch.from_numpy(bags.starts)
    columns, values = torch.from_numpy(bags.columns), torch.from_numpy(bags.values)
    rows = torch.repeat_interleave(torch.arange(len(starts) - 1), starts.diff())
    by_column = columns.argsort(stable=True)
    sides = (columns, values, starts[:-1]), (rows[by_column], values[by_column], columns[by_column])
    return lambda weights: _SparseProduct.apply(weights, *sides)  # type: ignore[no-untyped-call]


class _SparseProduct(torch.autograd.Function):
    """Sparse rows times weights; the gradient goes by columns, since that of an embedding bag is slow."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, by_row: tuple[Tensor, ...], by_column: tuple[Tensor, ...]) -> Tensor:
        columns, values, starts = by_row
        ctx.by_column, ctx.features = by_column, len(weights)
        return F.embedding_bag(columns, weights, starts, mode="sum", per_sample_weights=values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        rows, values, columns = ctx.by_column
        starts = torch.searchsorted(columns, torch.arange(ctx.features))
        gradient = F.embedding_bag(rows, gradients[0].contiguous(), starts, mode="sum", per_sample_weights=values)
        return gradient, None, None


def _embedded(base: LoadedModel, rows: Sequence[Example], done: Callable[[int], None]) -> Tensor:
    """n d: the sentence embeddings of the base as it is."""
    vectors = []
    for some in Embedder(base).chunks(_clipped(row)[0] for row in rows):
        vectors.append(some.vectors.double())
        done(len(some.vectors))
    return torch.cat(vectors)


def fit(product: Product, features: int, targets: Tensor, kind: str, strength: float = STRENGTH) -> tuple[Tensor, ...]:
    """d C and C: the weights and biases of the lowest mean loss with a penalty on the squares of the weights."""
    classes = int(targets.max()) + 1 if kind == "label" else 1 if kind == "value" else targets.shape[1]
    weights = torch.zeros(features, classes, dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(classes, dtype=torch.float64, requires_grad=True)
    history = max(10, min(ITERATIONS, HISTORY // max(1, weights.numel())))
    optimizer = torch.optim.LBFGS(
        [weights, bias], max_iter=ITERATIONS, history_size=history, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        scores = product(weights) + bias
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


def _judged(
    task: TextTask, rows: Sequence[Example], dev: Sequence[Example], products: Sequence[Product], features: int
) -> Any:
    """The task's metrics of a linear model on the held-out rows."""
    targets = torch.from_numpy(task.targets(rows))
    if task.kind == "value":
        targets = targets.double()
    weights, bias = fit(products[0], features, targets, task.kind)
    scores = (products[1](weights) + bias).numpy()
    if scores.shape[1] < task.outputs:  # the last labels are in no row of the sample
        scores = np.pad(scores, ((0, 0), (0, task.outputs - scores.shape[1])), constant_values=-1e9)
    predictions = [Prediction(row * task.spread + task.center, 0, 1, False) for row in scores]
    tuned = task.tune(predictions, dev)
    metrics = tuned.metrics()
    tuned.add(metrics, predictions, dev)
    return metrics


def announce_baselines(baselines: Sequence[Baseline], metric: str, log: Log) -> None:
    for baseline in baselines:
        score = baseline.metrics.result()[metric]
        log(f"baseline: {baseline.name}: {metric} {score.value:.4f} ({baseline.seconds:.1f} s{baseline.less})")


def judged_again(
    model: Model, name: str, dataset: Dataset[Example], framing: Framing, device: torch.device
) -> EvaluationResult:
    """A saved model on the held-out rows."""
    model.to(device)
    try:
        return evaluate_examples(TextTask.from_model(model.opened, name), model.opened, framing, dataset.dev, tune=True)
    finally:
        model.to("cpu")


def compare_baselines(
    run: Run, judgement: EvaluationResult, baselines: Sequence[Baseline], metric: str, log: Log
) -> None:
    """Whether the model is better than the best baseline on the same rows, and by how much; noted in the run."""
    model = judgement.metrics.sampled()[metric]
    by_score = sorted(baselines, key=lambda baseline: -np.nan_to_num(baseline.metrics.result()[metric].value, nan=-9.0))
    best = by_score[0]
    gap = model.minus(best.metrics.sampled()[metric])
    if not math.isfinite(gap.value):  # a correlation of one row, or of equal values
        rows = judgement.reading.examples
        log(f"result: {metric} is not defined on these {rows:,} held-out rows; give more of them")
        return
    log(f"result: {metric} {model.score().value:.4f}; {_verdict(gap, best.name, judgement.reading.examples)}")
    tables = judgement.task.tables(judgement.metrics)
    counts, labels = np.array(tables.get("confusion", [])), enumerate(tables.get("labels", ()))
    missed = [label for number, label in labels if counts[number].sum() and not counts[:, number].sum()]
    if missed and judgement.reading.examples >= FEW_JUDGES:
        log(
            f"weft: note: never predicted on the held-out rows: {', '.join(missed[:5])}"
            f"{f' and {len(missed) - 5} more' if len(missed) > 5 else ''}; more rows of these labels, more --epochs or "
            "--class-weights balanced may help"
        )
    values = [
        {"name": each.name, "rows": each.rows, metric: each.metrics.result()[metric].value, "seconds": each.seconds}
        for each in by_score
        if math.isfinite(each.metrics.result()[metric].value)
    ]
    difference = {"value": gap.value, "low": gap.low, "high": gap.high}
    write_json(run.inside / BASELINES, {"metric": metric, "baselines": values, "difference": difference})
    report(run, log)  # once more: the page shows the baselines too


def _verdict(gap: Score, name: str, rows: int) -> str:
    if rows < FEW_JUDGES:  # resampling a handful of rows makes no interval
        few = f"{rows} held-out row{' is' if rows == 1 else 's are'} too few to tell"
        return f"{gap.value:+.4f} beside {name}; {few}"
    interval = f"95 % {gap.low:+.4f} to {gap.high:+.4f} on {rows:,} held-out rows"
    if gap.low > 0:
        return f"better than {name} by {gap.value:.4f} ({interval})"
    if gap.high < 0:
        return f"WORSE than {name} by {-gap.value:.4f} ({interval}): use that, or give more rows"
    if not gap.value:
        return f"no better and no worse than {name} ({interval})"
    word = "above" if gap.value > 0 else "below"
    return f"{abs(gap.value):.4f} {word} {name}, which is within the noise ({interval})"

"""The plan of a fine-tuning run with every choice made, and what is logged before it begins."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from weft.checkpoint.folder import LoadedModel
from weft.data.examples import Examples, Sequences, VectorSide
from weft.data.tables import Dataset
from weft.progress import Log
from weft.runs.driver import settled
from weft.runs.recipes import FinetuneTraining, TaskRecipe
from weft.tasks.base import Example, Task
from weft.tasks.forward import tokenizer_of
from weft.text.windows import Framing, special_tokens
from weft.training.run import Run

EXAMPLES = 54_000  # that a small model from scratch sees: ten times the questions of TREC
BASE_LEARNING_RATE = 5e-5  # of a pre-trained encoder of width 768
HEAD_RATE = 5.0  # a new head begins from nothing, and catches up
BATCHES = ((500, 8), (3000, 16))  # below so many rows: so many of them in a step
STEPS, MOST_STEPS = 400, 1000  # at least so many; and no more for the sake of ten times through the rows
JUDGES = 50  # held-out rows from which on a metric can stop a run
PATIENCE = 5  # evaluations, of ten
FEW_JUDGES = 20  # rows, with fewer of which a score is mostly luck


def resolved(
    recipe: TaskRecipe,
    train: Examples | Sequences,
    opened: LoadedModel,
    task: Task,
    dev_rows: int,
    new_head: bool,
    device: torch.device,
) -> FinetuneTraining:
    """The plan with every open choice made, so that the recipe in the run folder says it all."""
    plan = recipe.training
    from_scratch = "base" not in recipe.model
    static = opened.family.name == "vectors"
    if not from_scratch and not static and isinstance(train, Examples):
        return _from_base(recipe, train, opened, task, dev_rows, new_head, device)
    usual_batch, usual_epochs = pairs_plan(train) if from_scratch and isinstance(train, Sequences) else (32, 3.0)
    if from_scratch and not isinstance(train, Sequences) and not opened.config.heads:
        usual_epochs = min(20.0, max(3.0, EXAMPLES / train.count))  # no Transformer: each time through is cheap
    usual = (
        2e-3 if static else opened.family.learning_rate * (768 / opened.config.width) ** 0.5 if from_scratch else 5e-5
    )
    if recipe.task.freeze == "encoder":
        usual = max(usual, 1e-3)  # a small head alone takes larger steps
    return decided(plan, train, device, usual_batch, usual_epochs, usual)


def _from_base(
    recipe: TaskRecipe,
    train: Examples,
    opened: LoadedModel,
    task: Task,
    dev_rows: int,
    new_head: bool,
    device: torch.device,
) -> FinetuneTraining:
    """The plan of a pre-trained encoder: few rows are read more often, in smaller steps, until nothing improves."""
    plan = recipe.training
    batch, steps = few_rows_plan(train.count, len(task.labels))
    few = steps * batch > 3.5 * train.count
    # Few rows want larger steps of a small network and of a new head; many lose by them (SST-2: 0.902, then 0.895).
    usual_learning_rate = BASE_LEARNING_RATE * (768 / opened.config.width) ** 0.5 if few else BASE_LEARNING_RATE
    head_rate = HEAD_RATE if few and new_head else 1.0
    if recipe.task.freeze == "encoder":
        usual_learning_rate, head_rate = max(usual_learning_rate, 1e-3), 1.0  # a small head alone takes larger steps
    batch = min(plan.batch or batch, train.count)
    decided_plan = decided(plan, train, device, batch, steps * batch / train.count, usual_learning_rate)
    decided_plan = replace(decided_plan, head_rate=plan.head_rate or head_rate)
    if not few or plan.steps or plan.epochs:
        return decided_plan
    if plan.evaluate_every is None:
        # A handful of held-out rows would pick a model by luck: they choose among few, all of them well trained.
        every = max(1, math.ceil((decided_plan.steps or 1) / (10 if dev_rows >= JUDGES else 4)))
        decided_plan = replace(decided_plan, evaluate_every=every, save_every=plan.save_every or every)
    patience = PATIENCE if plan.patience is None and dev_rows >= JUDGES else plan.patience
    return replace(decided_plan, patience=patience)


def few_rows_plan(rows: int, labels: int) -> tuple[int, int]:
    """Rows in a step, and steps: three times through the rows, ten times where they are few, and never below STEPS.

    More labels take longer to tell apart; twice as long for 16 of them.
    """
    batch = next((batch for most, batch in BATCHES if rows < most), 32)
    at_least = max(STEPS, min(math.ceil(10 * rows / batch), MOST_STEPS))
    longer = min(2.0, max(1.0, (labels / 4) ** 0.5))
    return batch, max(math.ceil(3 * rows / batch), math.ceil(at_least * longer))


def decided(
    plan: FinetuneTraining,
    train: Examples | Sequences,
    device: torch.device,
    usual_batch: int,
    usual_epochs: float,
    usual_learning_rate: float,
) -> FinetuneTraining:
    """The plan with what is usual where nothing else was asked for."""
    batch = min(plan.batch or usual_batch, train.count)
    in_epoch = math.ceil(train.count / batch)
    epochs = plan.epochs if plan.epochs is not None else usual_epochs
    steps = plan.steps or max(1, round(epochs * in_epoch))
    # Writing takes long: a run of many short epochs is judged ten times, not after each.
    often = max(in_epoch, math.ceil(steps / 10)) if isinstance(train, Sequences) else in_epoch
    every = plan.evaluate_every or max(1, min(often, steps))
    return settled(plan, device, batch, steps, every, usual_learning_rate)


def pairs_plan(train: Sequences) -> tuple[int, float]:
    """Pairs in a step and times through all of them, for an encoder-decoder that begins from nothing."""
    together = 4096 * train.count / max(1, train.writes)  # about so many tokens to write in a step
    batch = max(1, min(256, round(together), train.count // 8))  # few pairs still make several steps
    return batch, min(100.0, max(3.0, 1.2e6 / train.count))


def _reading(opened: LoadedModel, dataset: Dataset[Example], windows: int, framing: Framing) -> str:
    """What becomes of long rows."""
    if windows > len(dataset.train):
        return f"{windows:,} windows of at most {framing.length} tokens, none is cut"
    cut = 0
    for first in range(0, len(dataset.train) if framing.cutting else 0, 1024):
        rows = dataset.train[first : first + 1024]
        lengths = iter(tokenizer_of(opened).ids([text for row in rows for text in row.texts], specials=False))
        for row in rows:
            size = sum(len(next(lengths)) for _ in row.texts) + special_tokens(framing, len(row.texts))
            cut += size > framing.length
    return f"{cut:,} of them cut at {framing.length} tokens" if cut else "none is cut"


def announce(
    run: Run,
    recipe: TaskRecipe,
    opened: LoadedModel,
    task: Task,
    dataset: Dataset[Example],
    train: Examples | Sequences,
    framing: Framing,
    log: Log,
) -> None:
    """What is about to be learned, from what and how, in three lines."""
    parameters = sum(parameter.numel() for parameter in opened.network.parameters() if parameter.requires_grad)
    rows = len(dataset.train)
    if isinstance(train, Sequences):
        rows = train.count  # pairs that are too long were left out
        read = (
            f"vectors of {opened.config.features:,} numbers" if isinstance(train.read, VectorSide) else "tokens to read"
        )
        long = f"{len(train.read.tokens):,} {read} and {train.writes:,} tokens to write"
    else:
        long = _reading(opened, dataset, train.rows_count, framing)
    labels = f"{len(task.labels)} labels, " if task.labels else ""
    held = "" if dataset.held_out is None else " (drawn from the rows, noted in run/split.json)"
    if len(dataset.dev) < FEW_JUDGES:
        held += "; so few say little, and their intervals tell how little"
    if task.writes and recipe.task.metric != "loss":
        written = len(task.sample(dataset.dev))
        held += f", of which {written:,} are written out" if written < len(dataset.dev) else ""
    steps = recipe.training.steps or 1
    epochs = steps * (recipe.training.batch or 1) / max(1, rows)
    log(
        f"{run.folder}: {recipe.task.name}, {labels}{opened.family.name}, {parameters:,} parameters to train, "
        f"on {recipe.device} in {recipe.training.precision}\n"
        f"data: {rows:,} rows to learn from ({long}), {len(dataset.dev):,} to judge by{held}\n"
        f"plan: {steps:,} step{'s' * (steps != 1)} of {recipe.training.batch} rows"
        f" ({epochs:.3g} epochs), learning rate {recipe.training.learning_rate:.1e}, kept by {recipe.task.metric}"
    )

"""`weft vectors learn`: from text to word vectors, in a run folder that can be resumed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.checkpoint.card import Card, Metric
from weft.checkpoint.external import opened_table
from weft.config import changed
from weft.data.rows import Ahead
from weft.data.shards import Corpus
from weft.errors import UserError, listed
from weft.models.vectors import VectorsConfig
from weft.progress import Log, ProgressChoice, to_logger
from weft.runs.corpus import named_files, text_of, tokens_of
from weft.runs.driver import begin, begun, card_of, device_for, new_run, record, recording
from weft.runs.recipes import VectorsRecipe, overlaid, vectors_recipe
from weft.tasks.model import Model, load
from weft.text.row_problems import Skipped
from weft.text.tokenizers.published import load_tokenizer
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.tokenizers.training import learned_words
from weft.training.log import RunLog, time_left
from weft.training.run import Begun, Run, State
from weft.training.signals import Control, Stop
from weft.vectors.glove import Glove, count_together, parts_of
from weft.vectors.plan import Learning
from weft.vectors.word2vec import Cbow, SkipGram, Word2Vec

RECIPE = VectorsRecipe  # what `weft.resume` reads
COUNTED = 1 << 20  # words whose neighbors are counted together
SAVED = 60.0  # seconds between two checkpoints
SHOWN = 0.5  # seconds between two passing lines
LAST = 1e-3  # share of the first rate that is left at the end of word2vec, as its own program has it

Integers = NDArray[np.int64]


def learn_vectors(
    recipe: VectorsRecipe | str | None = None,
    settings: Mapping[str, Any] | None = None,
    *,
    log: Log = to_logger,
    progress: ProgressChoice = None,
    **more: Any,
) -> Model:
    """Learn word vectors from text: a recipe, settings in its place, or both.

    `learn_vectors(vectors={"kind": "glove"}, text={"files": ["corpus.txt"]}, out="runs/glove")`
    """
    if not isinstance(recipe, VectorsRecipe):
        recipe = vectors_recipe(recipe, overlaid(settings or {}, more))
    run = new_run(recipe)
    paths = text_of(recipe).paths()
    if not paths:
        raise UserError("no text: give --text FILE")
    recipe = changed(recipe, {"text": {"files": [str(path.absolute()) for path in paths]}})
    with begun(run, recipe, log, progress) as control:
        return go(run, recipe, control)


def go(run: Run, recipe: VectorsRecipe, control: Control) -> Model:
    """From the recipe in a run folder to its word vectors; from the last checkpoint on where there is one."""
    device = device_for(recipe.device, recipe.vectors.threads)
    tokenizer = _vocabulary(run, recipe, control)
    corpus = tokens_of(text_of(recipe), tokenizer, "the text", False, control)
    plan = recipe.vectors.resolved(device.type == "cuda", torch.get_num_threads(), corpus.size)
    recipe = replace(recipe, vectors=plan, device=str(device))
    counts = _counts(corpus, tokenizer)
    known = int(counts.sum())
    if known < 2:
        raise UserError(f"{listed(recipe.text.files, 2)}: too short: {known} words are left to learn from")
    same = {"text": {"hash": corpus.hash, "tokens": corpus.size}}
    record(run, recipe, device, {"words": len(counts) - 1}, same)
    start = begin(run, 1, 0, control.log)
    control.log(
        f"{run.folder}: {plan.way}, {len(counts) - 1:,} words x {plan.width}, on {device.type}\n"
        f"text: {corpus.size:,} words in {len(corpus.documents) - 1:,} documents, "
        f"{known / corpus.size:.1%} of them known (there at least {plan.min_count} times)"
    )
    if start.state.finished:
        control.log(f"{run.folder}: this run has finished already")
        return load(run.folder)
    with ExitStack() as stack:
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        learning = _learning(recipe, corpus, counts, device, start.state.step, stack, control)
        if start.stored is not None:
            for name, tensor in learning.learner.tensors().items():
                tensor.copy_(start.stored["vectors"][name])
        run_log = stack.enter_context(recording(run, start.state, False, control))
        loss = learning.run(start, run_log, control.stop)
        _save(run, recipe, corpus, tokenizer, learning.learner.matrix(), loss)
        start.state.finished = True
        learning.save(start, run_log)
    seconds = start.state.seconds
    speed = learning.steps * learning.words / max(seconds, 1e-9)
    control.log(f"{run.folder}: done after {seconds:.0f} s of learning, {speed:,.0f} words/s")
    return load(run.folder)


def _vocabulary(run: Run, recipe: VectorsRecipe, control: Control) -> Tokenizer:
    """The run's own words, or those counted in the text."""
    if (run.folder / "tokenizer_config.json").exists():  # the last of its files to be written
        return load_tokenizer(run.folder)
    plan = recipe.vectors
    with (
        control.count("counting words", "documents", "stopped while counting words") as step,
        named_files(recipe.text.files),
    ):

        def texts() -> Iterator[str]:
            for text in text_of(recipe).read(Skipped()):
                step(1)
                yield text

        tokenizer = learned_words(texts, plan.min_count, plan.vocabulary, plan.lowercase)
    tokenizer.save(run.folder)
    return tokenizer


def _counts(corpus: Corpus, tokenizer: Tokenizer) -> Integers:
    """How often each word is there; 0 for the unknown one, which counts as none."""
    counts = np.zeros(tokenizer.vocabulary, np.int64)
    for first in range(0, corpus.size, COUNTED):
        counts += np.bincount(_block(corpus, first, first + COUNTED)[0], minlength=len(counts))
    unknown = tokenizer.id_of("unknown")
    assert unknown is not None
    counts[unknown] = 0
    return counts


def _block(corpus: Corpus, begin: int, end: int) -> tuple[Integers, Integers]:
    """The words from one place up to another, and the number of the document of each."""
    places = np.arange(begin, min(end, corpus.size)) + corpus.begin
    return corpus.take(places), np.searchsorted(corpus.documents, places, side="right")


def _learning(
    recipe: VectorsRecipe,
    corpus: Corpus,
    counts: Integers,
    device: torch.device,
    begin: int,
    stack: ExitStack,
    control: Control,
) -> VectorsLoop:
    """What learns the vectors, and what each of its steps does."""
    plan = recipe.vectors
    if plan.kind == "word2vec":
        return _word2vec(plan, recipe.seed, corpus, counts, device, begin, stack)
    assert plan.epochs is not None and plan.window is not None

    def known() -> Iterator[tuple[Integers, Integers]]:
        for first in range(0, corpus.size, COUNTED):
            words, documents = _block(corpus, first, first + COUNTED)
            there = counts[words] > 0
            step(len(words))
            yield words[there], documents[there]

    with control.count("counting neighbors", "words", "stopped while counting neighbors") as step:
        pairs = count_together(known(), len(counts), plan.window)
    if not len(pairs.keys):
        raise UserError(f"{listed(recipe.text.files, 2)}: no two known words stand within {plan.window} of each other")
    parts = parts_of(pairs, len(counts), plan, recipe.seed, device)
    control.log(f"counts: {2 * len(pairs.keys):,} pairs of words, in {len(parts)} parts")
    glove = Glove(plan, len(counts), parts, recipe.seed, device)
    return VectorsLoop(plan.epochs, glove, glove.learn, plan.epochs * len(parts), math.ceil(corpus.size / len(parts)))


def _word2vec(
    plan: Learning, seed: int, corpus: Corpus, counts: Integers, device: torch.device, begin: int, stack: ExitStack
) -> VectorsLoop:
    assert plan.epochs is not None and plan.learning_rate is not None
    kind: type[Word2Vec[Any]] = SkipGram if plan.way == "skip-gram" else Cbow
    learner = kind(plan, counts, seed, device)
    stack.callback(learner.close)
    size = plan.block or 1
    blocks = math.ceil(corpus.size / size)
    steps, first = plan.epochs * blocks, plan.learning_rate
    cache = BlockCache(device)

    def prepared(number: int) -> Any:
        place = number % blocks
        words, documents = cache.get(place, lambda: _block(corpus, place * size, (place + 1) * size))
        return learner.prepare(words, documents, number)

    batches: Iterator[Any] = map(prepared, range(begin, steps))
    if device.type == "cpu" and learner.threads > 1:
        # What needs no table is made in a thread of its own while the block before is learned from; beside threads
        # that work on halves, those of torch itself would only wait for work, and waiting takes a core.
        torch.set_num_threads(1)
        ahead = Ahead(prepared, begin, steps, depth=1)
        stack.callback(ahead.close)
        batches = iter(ahead)

    def step(number: int) -> float:
        rates = (first * max(LAST, 1 - number / steps), first * max(LAST, 1 - (number + 1) / steps))
        return learner.learn(next(batches), rates)

    return VectorsLoop(plan.epochs, learner, step, steps, math.ceil(corpus.size / blocks))


class BlockCache:
    """The blocks of a text, on a GPU for as long as there is room: they are read again in every epoch."""

    ROOM = 1 << 27  # words

    def __init__(self, device: torch.device) -> None:
        self.device, self.size = device, 0
        self.blocks: dict[int, tuple[Tensor, Tensor]] = {}

    def get(self, place: int, read: Callable[[], tuple[Integers, Integers]]) -> tuple[Tensor, Tensor]:
        if place not in self.blocks:
            words, documents = (torch.from_numpy(array).to(self.device) for array in read())
            if self.device.type == "cpu" or self.size > self.ROOM:
                return words, documents
            self.size += len(words)
            self.blocks[place] = words, documents
        return self.blocks[place]


@dataclass
class VectorsLoop:
    """Word vectors in training: what each step does, the record, and checkpoints by the clock."""

    epochs: int
    learner: Glove | Word2Vec[Any]
    step: Callable[[int], float]  # learns from one block of words; the mean loss
    steps: int
    words: int  # in a step
    saved: float = field(default_factory=time.monotonic)
    shown: float = field(default_factory=time.monotonic)

    def run(self, start: Begun, run_log: RunLog, stop: Stop) -> float:
        """To the end, or until somebody stops it; the last mean loss."""
        state, losses, last = start.state, list[float](), 0.0
        every = max(1, self.steps // 200)
        while state.step < self.steps:
            begin = time.monotonic()
            losses.append(self.step(state.step))
            if not math.isfinite(losses[-1]):
                raise UserError(f"the vectors have exploded at step {state.step}; try a lower --learning-rate")
            state.step += 1
            state.seconds += time.monotonic() - begin
            if state.step % every == 0 or state.step == self.steps:
                last = sum(losses) / len(losses)
                losses = []
                self._record(state, last, run_log)
            if stop or time.monotonic() - self.saved > SAVED:
                self.save(start, run_log)
            stop.check(f"stopped after step {state.step:,} of {self.steps:,}, all saved")
        return last

    def _record(self, state: State, loss: float, run_log: RunLog) -> None:
        words = state.step * self.words
        speed = words / max(state.seconds, 1e-9)
        epoch = state.step / self.steps * self.epochs
        values = {"step": state.step, "epoch": round(epoch, 4), "loss": loss, "tokens": words}
        run_log.record({**values, "tokens_per_second": speed, "seconds": state.seconds})
        if time.monotonic() - self.shown > SHOWN:
            self.shown = time.monotonic()
            left = time_left(state.seconds / state.step * (self.steps - state.step))
            line = f"epoch {epoch:.2f}/{self.epochs}  loss {loss:.4f}  {speed:,.0f} words/s  {left} left"
            run_log.line(line, passing=True)

    def save(self, start: Begun, run_log: RunLog) -> None:
        """Write a checkpoint."""
        start.state.metrics = run_log.kept()
        start.checkpoints.save(start.state, {"vectors": self.learner.tensors()})
        self.saved = time.monotonic()


def _save(run: Run, recipe: VectorsRecipe, corpus: Corpus, tokenizer: Tokenizer, matrix: Tensor, loss: float) -> None:
    """The folder: a table of words, of which the unknown one is the mean of all others."""
    table = matrix.float().cpu().clone()
    unknown = tokenizer.id_of("unknown")
    assert unknown is not None
    others = torch.ones(len(table), dtype=torch.bool)
    others[unknown] = False
    table[unknown] = table[others].double().mean(0).float()
    card = card_of(run, Card(task="embed", pooling="mean"), recipe.seed)
    config = VectorsConfig(vocabulary=len(table), width=table.shape[1])
    opened = opened_table(config, table, {}, tokenizer, card)
    run.save_model(opened, (Metric(data=corpus.hash, name="loss", value=loss),))

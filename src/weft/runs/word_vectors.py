"""`weft vectors learn`: from text to word vectors, in a run folder that can be gone on with."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.checkpoint.card import Card, Made, Metric
from weft.checkpoint.vectors import opened_table
from weft.config import changed, read_toml, write_toml
from weft.data.batching import Ahead
from weft.data.shards import Corpus, TextFiles, tokenized
from weft.errors import UserError, listed
from weft.models.vectors import VectorsConfig
from weft.progress import Log, Progress, ProgressChoice, lines_of_a_run, log_notes, progress_of, to_logger
from weft.runs.driver import Altered, Begun, begin, begun, device_for, report
from weft.runs.recipes import overlaid
from weft.runs.word_vectors_recipe import VectorsRecipe, vectors_recipe
from weft.tasks.model import Model, load
from weft.text.row_problems import Skipped
from weft.text.tokenizers.published import load_tokenizer
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.tokenizers.words import learned_words
from weft.training.log import RunLog, time_left
from weft.training.run import Run
from weft.training.signals import Stop
from weft.vectors.cbow import Cbow
from weft.vectors.glove import Glove, count_together, parts_of
from weft.vectors.plan import Learning
from weft.vectors.word2vec import SkipGram, Word2Vec

COUNTED = 1 << 20  # words whose neighbors are counted together
SAVED = 60.0  # seconds between two checkpoints
SHOWN = 0.5  # seconds between two passing lines
LAST = 1e-3  # share of the first rate that is left at the end of word2vec, as its own program has it

Integers = NDArray[np.int64]


class Learner(Protocol):
    """What learns: two tables that each step moves."""

    def tensors(self) -> dict[str, Tensor]: ...
    def load(self, stored: Mapping[str, Tensor]) -> None: ...
    def matrix(self) -> Tensor: ...


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
    if recipe.out is None:
        raise UserError("no folder for the run: give --out FOLDER")
    run = Run(Path(recipe.out))
    run.check_new()
    paths = _text(recipe).paths()
    if not paths:
        raise UserError("no text: give --text FILE")
    recipe = changed(recipe, {"text": {"files": [str(path.absolute()) for path in paths]}})
    with begun(run, recipe) as stop:
        return _go(run, recipe, True, stop, log, progress_of(progress))


def go_on(run: Run, stop: Stop, log: Log, progress: Progress) -> Model:
    """Go on with a run that was broken off; where it had finished, its model."""
    return _go(run, read_toml(VectorsRecipe, run.recipe), False, stop, log, progress)


def _text(recipe: VectorsRecipe) -> TextFiles:
    t = recipe.text
    return TextFiles(t.files, t.column, t.delimiter, t.documents, t.on_bad_row, t.encoding)


def _go(run: Run, recipe: VectorsRecipe, fresh: bool, stop: Stop, log: Log, progress: Progress) -> Model:
    device = device_for(recipe.device, recipe.vectors.threads)
    tokenizer = _vocabulary(run, recipe, stop, log, progress)
    corpus = _tokens(recipe, tokenizer, stop, log, progress)
    plan = recipe.vectors.resolved(device.type == "cuda", torch.get_num_threads(), corpus.size)
    recipe = replace(recipe, vectors=plan, device=str(device))
    counts = _counts(corpus, tokenizer)
    known = int(counts.sum())
    if known < 2:
        raise UserError(f"{listed(recipe.text.files, 2)}: too short: {known} words are left to learn from")
    about = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seed": recipe.seed,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "words": len(counts) - 1,
        "text": {"hash": corpus.hash, "tokens": corpus.size},
    }
    if fresh or not run.about.exists():
        write_toml(recipe, run.recipe)
        run.describe(about)
    elif run.info().text != about["text"]:
        raise Altered(f"{run.folder}: the text is not the one that the run began with")
    begun = begin(run, 1, 0, log)
    log(
        f"{run.folder}: {plan.way}, {len(counts) - 1:,} words x {plan.width}, on {device.type}\n"
        f"text: {corpus.size:,} words in {len(corpus.documents) - 1:,} documents, "
        f"{known / corpus.size:.1%} of them known (there at least {plan.minimum_count} times)"
    )
    if begun.state.finished:
        log(f"{run.folder}: this run has finished already")
        return load(run.folder)
    with ExitStack() as held:
        held.callback(torch.set_num_threads, torch.get_num_threads())
        step, steps, learner, read = _learner(
            recipe, corpus, counts, device, begun.state.step, held, stop, log, progress
        )
        if begun.stored is not None:
            learner.load(begun.stored["vectors"])
        lines = held.enter_context(lines_of_a_run(log, progress))
        run_log = RunLog(run.metrics, begun.state.metrics, None, begun.state.step, *lines)
        driver = _Driver(run, begun, steps, plan, read, log, run_log)
        loss = driver.go(step, learner, stop)
        _save(run, recipe, corpus, tokenizer, learner.matrix(), loss)
    driver.finish(learner)
    return load(run.folder)


def _vocabulary(run: Run, recipe: VectorsRecipe, stop: Stop, log: Log, progress: Progress) -> Tokenizer:
    """The run's own words, or those counted in the text."""
    if (run.folder / "tokenizer_config.json").exists():  # the last of its files to be written
        return load_tokenizer(run.folder)
    skipped, plan = Skipped(), recipe.vectors
    with progress("counting words", "documents") as read:

        def heard() -> Iterator[str]:
            for text in _text(recipe).read(skipped):
                stop.check("stopped while counting words")
                read(1)
                yield text

        try:
            tokenizer = learned_words(heard, plan.minimum_count, plan.vocabulary, plan.lowercase)
        except UserError as error:
            if str(error).startswith(recipe.text.files):  # a bad file names itself
                raise
            raise UserError(f"{listed(recipe.text.files, 2)}: {error}") from None
    log_notes(skipped.lines(), log)
    tokenizer.save(run.folder)
    return tokenizer


def _tokens(recipe: VectorsRecipe, tokenizer: Tokenizer, stop: Stop, log: Log, progress: Progress) -> Corpus:
    with progress("cutting the text into words", "characters") as read:

        def heard(more: int) -> None:
            stop.check("stopped while cutting the text into words; what is done is kept")
            read(more)

        waiting = "another process is tokenizing this text; waiting for it"
        return tokenized(_text(recipe), tokenizer, False, heard, lambda: log(f"weft: note: {waiting}"))


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


Step = Callable[[int], float]


def _learner(
    recipe: VectorsRecipe,
    corpus: Corpus,
    counts: Integers,
    device: torch.device,
    begin: int,
    held: ExitStack,
    stop: Stop,
    log: Log,
    progress: Progress,
) -> tuple[Step, int, Learner, int]:
    """What a step does, how many there are, the tables that they move, and the words (or counts) that a step reads."""
    plan = recipe.vectors
    assert plan.epochs is not None and plan.learning_rate is not None and plan.window is not None
    if plan.kind == "word2vec":
        way: type[Word2Vec[Any]] = SkipGram if plan.way == "skip-gram" else Cbow
        learner = way(plan, counts, recipe.seed, device)
        held.callback(learner.close)
        size = plan.block or 1
        blocks = math.ceil(corpus.size / size)
        steps, first = plan.epochs * blocks, plan.learning_rate
        kept = _Kept(device)

        def prepared(number: int) -> Any:
            place = number % blocks
            words, documents = kept.get(place, lambda: _block(corpus, place * size, (place + 1) * size))
            return learner.prepare(words, documents, number)

        following: Iterator[Any] = map(prepared, range(begin, steps))
        if device.type == "cpu" and learner.threads > 1:
            # What needs no table is made in a thread of its own while the block before is learned from; beside threads
            # that work on halves, those of torch itself would only wait for work, and waiting takes a core.
            torch.set_num_threads(1)
            ahead = Ahead(prepared, begin, steps, depth=1)
            held.callback(ahead.close)
            following = iter(ahead)

        def step(number: int) -> float:
            rates = (first * max(LAST, 1 - number / steps), first * max(LAST, 1 - (number + 1) / steps))
            return learner.learn(next(following), rates)

        return step, steps, learner, math.ceil(corpus.size / blocks)

    def known() -> Iterator[tuple[Integers, Integers]]:
        for first in range(0, corpus.size, COUNTED):
            stop.check("stopped while counting neighbors")
            words, documents = _block(corpus, first, first + COUNTED)
            there = counts[words] > 0
            read(len(words))
            yield words[there], documents[there]

    with progress("counting neighbors", "words") as read:
        found = count_together(known(), len(counts), plan.window)
    if not len(found.keys):
        raise UserError(f"{listed(recipe.text.files, 2)}: no two known words stand within {plan.window} of each other")
    parts = parts_of(found, len(counts), plan, recipe.seed, device)
    log(f"counts: {2 * len(found.keys):,} pairs of words, in {len(parts)} parts")
    glove = Glove(plan, len(counts), parts, recipe.seed, device)
    return glove.learn, plan.epochs * len(parts), glove, math.ceil(corpus.size / len(parts))


class _Kept:
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


class _Driver:
    """From step to step: the record, checkpoints by the clock, and a line for whoever watches."""

    def __init__(
        self, run: Run, begun: Begun, steps: int, plan: Learning, read: int, log: Log, run_log: RunLog
    ) -> None:
        self.run, self.checkpoints, self.state, self.steps = run, begun.checkpoints, begun.state, steps
        self.plan, self.read, self.log, self.run_log = plan, read, log, run_log
        self.saved = self.shown = time.monotonic()

    def go(self, step: Step, learner: Learner, stop: Stop) -> float:
        """To the end, or until somebody stops it; the last mean loss."""
        losses: list[float] = []
        every = max(1, self.steps // 200)
        last = 0.0
        try:
            while self.state.step < self.steps:
                begin = time.monotonic()
                losses.append(step(self.state.step))
                if not math.isfinite(losses[-1]):
                    raise UserError(f"the vectors have exploded at step {self.state.step}; try a lower --learning-rate")
                self.state.step += 1
                self.state.seconds += time.monotonic() - begin
                if self.state.step % every == 0 or self.state.step == self.steps:
                    last = sum(losses) / len(losses)
                    losses = []
                    self._record(last)
                if stop or time.monotonic() - self.saved > SAVED:
                    # What has not been told yet is lost with the process, so the record is told now.
                    self.save(learner)
                stop.check(f"stopped after step {self.state.step:,} of {self.steps:,}, all saved")
        finally:
            self.run_log.close()
            report(self.run, self.log)
        return last

    def _record(self, loss: float) -> None:
        state = self.state
        words = state.step * self.read
        speed = words / max(state.seconds, 1e-9)
        epoch = state.step / self.steps * (self.plan.epochs or 1)
        self.run_log.record(
            {
                "step": state.step,
                "epoch": round(epoch, 4),
                "loss": loss,
                "tokens": words,
                "tokens_per_second": speed,
                "seconds": state.seconds,
            }
        )
        if time.monotonic() - self.shown > SHOWN:
            self.shown = time.monotonic()
            left = time_left(state.seconds / state.step * (self.steps - state.step))
            self.run_log.line(
                f"epoch {epoch:.2f}/{self.plan.epochs}  loss {loss:.4f}  {speed:,.0f} words/s  {left} left",
                passing=True,
            )

    def save(self, learner: Learner) -> None:
        self.state.metrics = self.run_log.kept() if not self.run_log.file.closed else self.state.metrics
        self.checkpoints.save(self.state, {"vectors": learner.tensors()})
        self.saved = time.monotonic()

    def finish(self, learner: Learner) -> None:
        """All is written: the run says that it is over."""
        state = self.state
        state.finished = True
        state.metrics = self.run.metrics.stat().st_size
        self.checkpoints.save(state, {"vectors": learner.tensors()})
        speed = self.steps * self.read / max(state.seconds, 1e-9)
        self.log(f"{self.run.folder}: done after {state.seconds:.0f} s of learning, {speed:,.0f} words/s")


def _save(run: Run, recipe: VectorsRecipe, corpus: Corpus, tokenizer: Tokenizer, matrix: Tensor, loss: float) -> None:
    """The folder: a table of words, of which the unknown one is the mean of all others."""
    table = matrix.float().cpu().clone()
    unknown = tokenizer.id_of("unknown")
    assert unknown is not None
    others = torch.ones(len(table), dtype=torch.bool)
    others[unknown] = False
    table[unknown] = table[others].double().mean(0).float()
    card = Card(
        task="embed",
        pooling="mean",
        recipe=hashlib.sha256(run.recipe.read_bytes()).hexdigest(),
        made=Made(seed=recipe.seed, date=datetime.now(UTC).date().isoformat()),
    )
    config = VectorsConfig(vocabulary=len(table), width=table.shape[1])
    opened = opened_table(config, table, {}, tokenizer, card)
    run.save_model(opened, (Metric(data=corpus.hash, name="loss", value=loss),))

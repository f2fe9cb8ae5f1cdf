"""`weft vectors learn`: from text to word vectors, in a run folder that can be resumed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
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
from weft.models.classifiers import VectorsConfig
from weft.progress import Log, ProgressChoice, to_logger
from weft.runs.driver import begin, begun, card_of, device_for, new_run, record, recording
from weft.runs.preparation import counted, named_files, text_of, tokens_of
from weft.runs.recipes import VectorsRecipe, overlaid, read_recipe
from weft.tasks.model import Model, load
from weft.text.rows import Skipped
from weft.text.tokenizers.published import load_tokenizer
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.tokenizers.training import learned_words
from weft.training.log import RunLog, time_left
from weft.training.run import Run, State
from weft.training.signals import Control, Stop
from weft.vectors.glove import Glove, count_together, parts_of
from weft.vectors.word2vec import Cbow, SkipGram, Word2Vec

RECIPE = VectorsRecipe  # what `weft.resume` reads
COUNTED = 1 << 20  # words whose neighbors are counted together
SAVED = 60.0  # seconds between two checkpoints
SHOWN = 0.5  # seconds between two passing lines
ROOM = 1 << 27  # words of the text that stay on a GPU
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
        recipe = read_recipe(recipe, overlaid(settings or {}, more), VectorsRecipe)
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
    counts = np.zeros(tokenizer.vocabulary, np.int64)
    for words, _ in _blocks(corpus):
        counts += np.bincount(words, minlength=len(counts))
    unknown = tokenizer.id_of("unknown")
    assert unknown is not None
    counts[unknown] = 0
    known = int(counts.sum())
    if known < 2:
        raise UserError(f"{listed(recipe.text.files, 2)}: too short: {known} words are left to learn from")
    same = {"text": {"hash": corpus.hash, "tokens": corpus.size}}
    record(run, recipe, device, {"words": len(counts) - 1}, same)
    start = begin(run, 1, 0, control.log)
    control.log(
        f"{run.folder}: {plan.way}, {len(counts) - 1:,} words x {plan.width}, on {device.type}\n"
        f"text: {corpus.size:,} words in {len(corpus.documents) - 1:,} documents, {known / corpus.size:.1%} of them in "
        f"the vocabulary (minimum count {plan.min_count})"
    )
    if start.state.finished:
        control.log(f"{run.folder}: this run has finished already")
        return load(run.folder)
    with ExitStack() as stack:
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        if plan.kind == "word2vec":
            learner, step, steps = _word2vec(recipe, corpus, counts, start.state.step, stack)
        else:
            learner, step, steps = _glove(recipe, corpus, counts, control)
        if start.stored is not None:
            for name, tensor in learner.tensors().items():
                tensor.copy_(start.stored["vectors"][name])
        run_log = stack.enter_context(recording(run, start.state, False, control))

        def save() -> None:
            start.state.metrics = run_log.kept()
            start.checkpoints.save(start.state, {"vectors": learner.tensors()})

        epochs = plan.epochs or 1
        words_in_step = math.ceil(corpus.size / (steps // epochs))
        loss = _train(step, steps, words_in_step, epochs, start.state, run_log, control.stop, save)
        table = learner.matrix().float().cpu().clone()
        others = torch.arange(len(table)) != unknown
        table[unknown] = table[others].double().mean(0).float()  # the unknown word is the mean of all others
        card = card_of(run, Card(task="embed", pooling="mean"), recipe.seed)
        config = VectorsConfig(vocabulary=len(table), width=table.shape[1])
        metrics = (Metric(data=corpus.hash, name="loss", value=loss),)
        run.save_model(opened_table(config, table, {}, tokenizer, card), metrics)
        start.state.finished = True
        save()
    seconds = start.state.seconds
    speed = steps * words_in_step / max(seconds, 1e-9)
    control.log(f"{run.folder}: done after {seconds:.0f} s of training, {speed:,.0f} words/s")
    return load(run.folder)


def _vocabulary(run: Run, recipe: VectorsRecipe, control: Control) -> Tokenizer:
    """The run's own words, or those counted in the text."""
    if (run.folder / "tokenizer_config.json").exists():  # the last of its files to be written
        return load_tokenizer(run.folder)
    plan, message = recipe.vectors, "stopped while counting words"
    with control.count("counting words", "documents", message) as step, named_files(recipe.text.files):
        limits = (plan.min_count, plan.vocabulary, plan.lowercase)
        tokenizer = learned_words(lambda: counted(text_of(recipe).read(Skipped()), step), *limits)
    tokenizer.save(run.folder)
    return tokenizer


def _block(corpus: Corpus, begin: int, end: int) -> tuple[Integers, Integers]:
    """The words from one place up to another, and the number of the document of each."""
    places = np.arange(begin, min(end, corpus.size)) + corpus.begin
    return corpus.take(places), np.searchsorted(corpus.documents, places, side="right")


def _blocks(corpus: Corpus) -> Iterator[tuple[Integers, Integers]]:
    return (_block(corpus, first, first + COUNTED) for first in range(0, corpus.size, COUNTED))


Step = Callable[[int], float]  # learns from one part of the text; the mean loss
Learner = tuple[Glove | Word2Vec[Any], Step, int]  # and the number of steps


def _glove(recipe: VectorsRecipe, corpus: Corpus, counts: Integers, control: Control) -> Learner:
    plan, device = recipe.vectors, torch.device(recipe.device or "cpu")
    assert plan.epochs is not None and plan.window is not None

    def known() -> Iterator[tuple[Integers, Integers]]:
        for words, documents in _blocks(corpus):
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
    return glove, glove.learn, plan.epochs * len(parts)


def _word2vec(recipe: VectorsRecipe, corpus: Corpus, counts: Integers, begin: int, stack: ExitStack) -> Learner:
    plan, device = recipe.vectors, torch.device(recipe.device or "cpu")
    assert plan.epochs is not None and plan.learning_rate is not None
    kind: type[Word2Vec[Any]] = SkipGram if plan.way == "skip-gram" else Cbow
    learner = kind(plan, counts, recipe.seed, device)
    stack.callback(learner.close)
    size = plan.block or 1
    blocks = math.ceil(corpus.size / size)
    steps, first = plan.epochs * blocks, plan.learning_rate
    on_device = dict[int, tuple[Tensor, Tensor]]()  # blocks of the text, which are read again in every epoch

    def prepared(number: int) -> Any:
        place = number % blocks
        if place in on_device:
            return learner.prepare(*on_device[place], number)
        arrays = _block(corpus, place * size, (place + 1) * size)
        words, documents = (torch.from_numpy(array).to(device) for array in arrays)
        if device.type != "cpu" and len(on_device) * size <= ROOM:
            on_device[place] = words, documents
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

    return learner, step, steps


def _train(
    step: Step, steps: int, words: int, epochs: int, state: State, run_log: RunLog, stop: Stop, save: Callable[[], None]
) -> float:
    """Train to the end, or until a signal stops it, with checkpoints by the clock; the last mean loss."""
    losses, last, shown, saved = list[float](), 0.0, time.monotonic(), time.monotonic()
    every = max(1, steps // 200)
    while state.step < steps:
        begin = time.monotonic()
        losses.append(step(state.step))
        if not math.isfinite(losses[-1]):
            raise UserError(f"the vectors have exploded at step {state.step}; try a lower --learning-rate")
        state.step += 1
        state.seconds += time.monotonic() - begin
        if state.step % every == 0 or state.step == steps:
            last = sum(losses) / len(losses)
            losses = []
            tokens, epoch = state.step * words, state.step / steps * epochs
            speed = tokens / max(state.seconds, 1e-9)
            values = {"step": state.step, "epoch": round(epoch, 4), "loss": last, "tokens": tokens}
            run_log.record({**values, "tokens_per_second": speed, "seconds": state.seconds})
            if time.monotonic() - shown > SHOWN:
                shown = time.monotonic()
                left = time_left(state.seconds / state.step * (steps - state.step))
                line = f"epoch {epoch:.2f}/{epochs}  loss {last:.4f}  {speed:,.0f} words/s  {left} left"
                run_log.line(line, passing=True)
        if stop or time.monotonic() - saved > SAVED:
            save()
            saved = time.monotonic()
        stop.check(f"stopped after step {state.step:,} of {steps:,}, all saved")
    return last

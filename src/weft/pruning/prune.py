"""`weft.prune`: a model with fewer layers, heads or tokens, beside the one it was made from."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any, Literal, Unpack

from weft.checkpoint.card import Made
from weft.checkpoint.folder import LoadedModel, save_folder
from weft.comparison.compare import ComparedRows, compared, participants_of, rows_of
from weft.comparison.comparison import Comparison, Table
from weft.comparison.cost import evenly as some_of
from weft.comparison.cost import parameters_of
from weft.data.shards import TextFiles
from weft.errors import UserError
from weft.files import check_new_folder, temporary_folder
from weft.progress import Log, Progress, ProgressChoice, progress_of, to_logger
from weft.pruning.layers import attentions_of, evenly, importance, layers_in, least, with_heads, with_layers
from weft.pruning.options import check_pruning
from weft.pruning.vocabulary import VocabularyCoverage, chosen_for, coverage, with_vocabulary
from weft.runs.finetune import MOST_WINDOWS
from weft.tasks.base import Example
from weft.tasks.evaluate import Paths, RowOptions, evaluate_examples, named
from weft.tasks.forward import framing_for
from weft.tasks.model import Model, load
from weft.version import VERSION

MAX_ROWS = 2000  # rows by which heads and layers are chosen; all of them evaluate
SECONDS = 5.0  # that each model may take for each measure of time


@dataclass(frozen=True)
class Pruned:
    """The smaller model, and what was done."""

    model: Model
    parameters: tuple[int, int]  # before and after
    layers: tuple[int, ...] | None  # those that stayed
    heads: tuple[tuple[int, ...], ...] | None  # those that stayed of each layer
    vocabulary: tuple[int, int] | None  # tokens before and after
    coverage: VocabularyCoverage | None  # what the texts that were counted lose by it
    comparison: Comparison | None  # on the rows to judge by

    def lines(self) -> list[str]:
        """What was done, for people."""
        before, after = self.parameters
        lines = [f"parameters: {before:,} -> {after:,} ({after / before - 1:+.1%})"]
        if self.layers is not None:
            lines.append(f"layers that stayed: {', '.join(map(str, self.layers))} (counted from 0)")
        if self.heads is not None:
            lines.append(f"heads that stayed in each layer: {', '.join(str(len(some)) for some in self.heads)}")
        if self.vocabulary is not None:
            lines.append(f"tokens: {self.vocabulary[0]:,} -> {self.vocabulary[1]:,}")
        if self.coverage is not None:
            lines.append(f"of the texts {self.coverage}")
        return lines

    def tables(self) -> list[Table]:
        """Title, header and rows of every table."""
        return [] if self.comparison is None else self.comparison.tables()

    def values(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "parameters": list(self.parameters),
            "layers": None if self.layers is None else list(self.layers),
            "heads": None if self.heads is None else [list(some) for some in self.heads],
            "vocabulary": None if self.vocabulary is None else list(self.vocabulary),
            "coverage": None if self.coverage is None else vars(self.coverage),
            "comparison": None if self.comparison is None else self.comparison.values(),
        }


def prune(
    model: str | os.PathLike[str] | Model,
    *,
    out: str | os.PathLike[str] | None = None,
    layers: int | None = None,
    by: Literal["even", "importance"] = "even",
    heads: float | None = None,
    heads_each: int | None = None,
    vocabulary: int | None = None,
    characters: bool = True,
    data: Paths | None = None,
    text: Paths = (),
    max_drop: float | None = None,
    costs: bool = True,
    seconds: float = SECONDS,
    device: str | None = None,
    online: bool = False,
    trust: bool = False,
    log: Log = to_logger,
    progress: ProgressChoice = None,
    **rows: Unpack[RowOptions],
) -> Pruned:
    """Remove layers, heads or tokens from a model, and evaluate what is left; with `out`, write it there.

    So many `layers` stay: evenly spaced or, by importance, those whose loss costs most on the rows of `data`. Of all
    `heads` this share is removed, or `heads_each` of each layer: those that matter least there. `vocabulary` is how
    many tokens stay: those that `text`, else the rows, use most. With `max_drop` (points of the metric), a model that
    loses more is refused, and nothing is written. `rows` are the options of reading `data`, as of `weft.compare`.
    """
    has_rows = data is not None or bool(named(rows.get("source")) or named(rows.get("target")))
    check_pruning(
        layers=layers, by=by, heads=heads, heads_each=heads_each, vocabulary=vocabulary, max_drop=max_drop,
        rows=has_rows, text=bool(named(text)),
    )  # fmt: skip
    if out is not None:
        check_new_folder(Path(out))
    before = model if isinstance(model, Model) else load(model, device=device, online=online, trust=trust)
    if before.opened.exported:
        raise UserError(f"a model for {before.card.backend} cannot be pruned: prune the one it was made from")
    chooser = PruningRows(before, data, rows, progress_of(progress))
    if has_rows:
        chooser.examples()  # a file that cannot be read is refused before anything is computed
    smaller, kept_layers, kept_heads, covered = before.opened, None, None, None
    if layers is not None:
        smaller, kept_layers = chooser.with_layers(smaller, layers, by)
    if heads is not None or heads_each is not None:
        smaller, kept_heads = chooser.with_heads(smaller, heads, heads_each)
    if vocabulary is not None:
        smaller, covered = _with_fewer_tokens(smaller, vocabulary, characters, named(text), chooser)
    name = "model" if isinstance(model, Model) else Path(model).name
    made = replace(before.card.made or Made(), date=datetime.now(UTC).date().isoformat())
    smaller = replace(smaller, card=replace(before.card, weft=VERSION, metrics=(), base=name, made=made))
    after, comparison = Model(smaller, before.task), None
    if has_rows:
        folder = None if isinstance(model, Model) else Path(model)
        comparison = chooser.compare(after, name, folder, max_drop=max_drop, costs=costs, seconds=seconds)
        if max_drop is not None and comparison.refused:
            raise UserError(f"{comparison.refused[0]}: nothing was written")
        for line in comparison.refused:
            log(f"weft: note: {line}; weft finetune may bring it back")
        after.opened = replace(smaller, card=replace(smaller.card, metrics=comparison.card_metrics(-1)))
    if out is not None:
        save_folder(Path(out), after.opened)
    sizes = None if vocabulary is None else (before.config.vocabulary, smaller.config.vocabulary)
    counts = parameters_of(before) or 0, parameters_of(after) or 0
    return Pruned(after, counts, kept_layers, kept_heads, sizes, covered, comparison)


def _with_fewer_tokens(
    opened: LoadedModel, count: int, characters: bool, text: tuple[str, ...], rows: PruningRows
) -> tuple[LoadedModel, VocabularyCoverage]:
    """The model with the tokens that texts use most, and what those texts lose by it."""
    if text and opened.config.source_vocabulary is not None:
        raise UserError("this model reads and writes with two vocabularies: their tokens are counted in the rows alone")

    def inputs() -> Iterator[str]:
        prefix = opened.card.prefix or ""
        if text:
            return (prefix + each for each in TextFiles(text).read())
        return (prefix + each for example in rows.examples() for each in example.texts)

    def targets() -> Iterator[str]:
        examples: Iterable[Example] = () if text or not opened.family.reads else rows.examples()
        return (example.target for example in examples if isinstance(example.target, str))

    kept, written = chosen_for(opened, inputs(), targets(), count, characters)
    smaller = with_vocabulary(opened, kept, written, characters)
    assert opened.tokenizer is not None and smaller.tokenizer is not None
    texts = inputs() if opened.target_tokenizer is not None else chain(inputs(), targets())
    return smaller, coverage(opened.tokenizer, smaller.tokenizer, kept, texts)


class PruningRows:
    """The rows by which parts are chosen and models are evaluated; read anew each time, so that none need be held."""

    def __init__(self, model: Model, data: Paths | None, options: RowOptions, progress: Progress) -> None:
        self.model, self.data, self.options, self.progress = model, data, options, progress
        self.task = model.task_object
        self.sample: list[Example] | None = None

    def rows(self) -> ComparedRows:
        return rows_of(self.task, self.model.card.columns, self.data, **self.options)

    def examples(self) -> Iterable[Example]:
        return self.rows().examples

    def labeled(self) -> list[Example]:
        """Rows with labels, evenly from all of them."""
        if not self.task.supervised:
            raise UserError(f"a model for {self.model.task} has no labels to rank its parts by")
        if self.sample is None:
            rows = [example for example in self.examples() if self.task.has_target(example)]
            self.sample = some_of(rows, MAX_ROWS)
            if not self.sample:
                raise UserError("the data has no labels, so nothing shows which parts matter")
        return self.sample

    def with_layers(self, opened: LoadedModel, count: int, by: str) -> tuple[LoadedModel, tuple[int, ...]]:
        """The model with so many layers, and which they are; a decoder keeps as many of its own, evenly."""
        kept = self.layers(count) if by == "importance" else evenly(count, layers_in(opened))
        total = len(opened.network.decoder) if opened.family.reads else None
        return with_layers(opened, kept, None if total is None else evenly(min(count, total), total)), kept

    def with_heads(
        self, opened: LoadedModel, share: float | None, each: int | None
    ) -> tuple[LoadedModel, tuple[tuple[int, ...], ...]]:
        """The model without the heads that matter least, and which heads of each layer are left."""
        attentions_of(opened)  # a model without heads is refused before anything is read
        kept = tuple(map(tuple, least(self.heads(opened), share, each)))
        return with_heads(opened, kept), kept

    def heads(self, opened: LoadedModel) -> list[Any]:
        """How much each head of each layer matters."""
        dataset: Any = self.task.dataset(self.labeled(), opened, framing_for(opened))
        with self.progress("weighing heads", "examples") as count:
            return importance(opened, self.task.objective(), dataset.for_training(MOST_WINDOWS, 0, False), count)

    def layers(self, count: int) -> tuple[int, ...]:
        """The layers that stay when, one after the other, the one is removed without which the metric is best."""
        opened, task = self.model.opened, self.task
        total = layers_in(opened)
        evenly(count, total)  # checks the number
        if opened.family.reads:
            raise UserError("layers of an encoder-decoder stay evenly spaced: leave out --by importance")
        if len(opened.network.layers) < total:
            raise UserError(
                f"{opened.family.name} reads one layer again and again: none of them matters more; leave out --by"
            )
        rows, kept = self.labeled(), tuple(range(total))
        with self.progress("weighing layers", "layers") as step:
            while len(kept) > count:
                scores = {}
                for layer in kept:
                    fewer = tuple(each for each in kept if each != layer)
                    smaller = with_layers(opened, fewer)
                    evaluation = evaluate_examples(task, smaller, framing_for(smaller), rows)
                    value = evaluation.scores[task.default_metric].value
                    scores[fewer] = (value if value == value else float("-inf"), layer)
                    step(1)
                kept = max(scores, key=lambda fewer: scores[fewer])  # of equals the upper one is removed
        return kept

    def compare(self, after: Model, name: str, folder: Path | None, **how: Any) -> Comparison:
        """The pruned model beside the one it was made from."""
        rows = self.rows()
        with temporary_folder() as scratch, self.progress("comparing", "examples") as count:
            smaller = scratch / "pruned"
            if folder is not None:  # so that both have a size on disk
                save_folder(smaller, after.opened)
            names, folders = [name, "pruned" if name != "pruned" else "pruned again"], [folder, smaller]
            models = participants_of([self.model, after], names, folders if folder is not None else None)
            comparison = compared(
                models, rows.examples, data=rows.where, hash=rows.hash, memory=False, progress=count, **how
            )
        return replace(comparison, models=[replace(each, folder=None) for each in comparison.models])

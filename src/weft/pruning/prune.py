"""`weft.prune`: a model with fewer layers, heads or tokens, beside the one it was made from."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

from weft.checkpoint.card import Made
from weft.checkpoint.folder import LoadedModel, save_folder
from weft.comparison.compare import ComparedRows, Comparison, Table, compared, participants_of, plain, rows_of
from weft.comparison.cost import evenly as some_of
from weft.comparison.cost import parameters_of
from weft.data.shards import TextFiles
from weft.errors import UserError, refuse
from weft.files import check_new_folder
from weft.progress import Log, Progress, ProgressChoice, progress_of, to_logger
from weft.pruning.options import PruneOptions
from weft.pruning.parts import (
    VocabularyCoverage,
    attentions_of,
    chosen,
    counted,
    coverage,
    evenly,
    importance,
    layers_in,
    least,
    with_heads,
    with_layers,
    with_vocabulary,
)
from weft.runs.finetune import MOST_WINDOWS
from weft.scratch import temporary_folder
from weft.tasks.base import Example
from weft.tasks.evaluate import evaluate_examples
from weft.tasks.forward import framing_for
from weft.tasks.model import Model, load
from weft.tasks.rows import Paths, named
from weft.version import VERSION

MAX_ROWS = 2000  # rows by which heads and layers are chosen; all of them evaluate


@dataclass(frozen=True)
class Pruned:
    """The smaller model, and what was done."""

    model: Model
    parameters: tuple[int, int]  # before and after
    layers: tuple[int, ...] | None  # those that stayed
    heads: tuple[tuple[int, ...], ...] | None  # those that stayed of each layer
    vocabulary: tuple[int, int] | None  # tokens before and after
    coverage: VocabularyCoverage | None  # what the texts that were counted lose by it
    comparison: Comparison | None  # on the rows to evaluate by

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
        values = {name: value for name, value in vars(self).items() if name != "model"}
        values["coverage"] = self.coverage and vars(self.coverage)
        values["comparison"] = self.comparison and self.comparison.values()
        return plain(values)


def prune(
    model: str | os.PathLike[str] | Model,
    *,
    out: str | os.PathLike[str] | None = None,
    data: Paths | None = None,
    device: str | None = None,
    online: bool = False,
    trust: bool = False,
    log: Log = to_logger,
    progress: ProgressChoice = None,
    **options: Any,
) -> Pruned:
    """Remove layers, heads or tokens from a model, and evaluate what is left; with `out`, write it there.

    `layers` (int) stay: evenly spaced or, with `by="importance"`, those whose removal costs most on the rows of `data`.
    Of all `heads` (float) this share is removed, or `heads_each` (int) of each layer: the least important ones.
    `vocabulary` (int) tokens stay: those that `text` (files), else the rows, use most; `characters=False` keeps only
    the single characters that they use. With `max_drop` (points of the metric), a model that loses more is refused,
    and nothing is written. `costs`, `seconds` and the options of reading `data` are those of `weft.compare`.
    """
    own = {field.name for field in fields(PruneOptions)}
    asked = PruneOptions(**{name: value for name, value in options.items() if name in own})
    rows = {name: value for name, value in options.items() if name not in own}
    has_rows = data is not None or bool(named(rows.get("source")) or named(rows.get("target")))
    asked.check(has_rows)
    if out is not None:
        check_new_folder(Path(out))
    before = model if isinstance(model, Model) else load(model, device=device, online=online, trust=trust)
    if before.opened.exported:
        raise UserError(f"a model for {before.card.backend} cannot be pruned: prune the one it was made from")
    pruner = Pruner(before, asked, {"data": data, **rows}, progress_of(progress))
    if has_rows:
        pruner.rows()  # a file that cannot be read is refused before anything is computed
    smaller, layers, heads, covered = before.opened, None, None, None
    if asked.layers is not None:
        layers = pruner.layers(asked.layers)
        total = len(smaller.network.decoder) if smaller.family.reads else None
        written = None if total is None else evenly(min(asked.layers, total), total)
        smaller = with_layers(smaller, layers, written)
    if asked.heads is not None or asked.heads_each is not None:
        heads = pruner.heads(smaller)
        smaller = with_heads(smaller, heads)
    if asked.vocabulary is not None:
        smaller, covered = pruner.with_vocabulary(smaller, asked.vocabulary)
    name = "model" if isinstance(model, Model) else Path(model).name
    made = replace(before.card.made or Made(), date=datetime.now(UTC).date().isoformat())
    smaller = replace(smaller, card=replace(before.card, weft=VERSION, metrics=(), base=name, made=made))
    after, comparison = Model(smaller, before.task), None
    if has_rows:
        comparison = pruner.compare(after, name, None if isinstance(model, Model) else Path(model))
        if asked.max_drop is not None and comparison.refused:
            raise UserError(f"{comparison.refused[0]}: nothing was written")
        for line in comparison.refused:
            log(f"weft: note: {line}; weft finetune may bring it back")
        after.opened = replace(smaller, card=replace(smaller.card, metrics=comparison.card_metrics(-1)))
    if out is not None:
        save_folder(Path(out), after.opened)
    sizes = None if asked.vocabulary is None else (before.config.vocabulary, smaller.config.vocabulary)
    counts = parameters_of(before) or 0, parameters_of(after) or 0
    return Pruned(after, counts, layers, heads, sizes, covered, comparison)


class Pruner:
    """Chooses the parts that stay, by rows that are read anew each time, so that none need be held."""

    def __init__(self, model: Model, options: PruneOptions, rows: dict[str, Any], progress: Progress) -> None:
        self.model, self.options, self.reading, self.progress = model, options, rows, progress
        self.task = model.task_object
        self.sample: list[Example] | None = None

    def rows(self) -> ComparedRows:
        return rows_of(self.task, self.model.card.columns, **self.reading)

    def labeled(self) -> list[Example]:
        """Rows with labels, evenly from all of them."""
        if self.sample is None:
            if not self.task.supervised:
                raise UserError(f"a model for {self.model.task} has no labels to rank its parts by")
            self.sample = some_of([each for each in self.rows().examples if self.task.has_target(each)], MAX_ROWS)
            if not self.sample:
                raise UserError("the data has no labels, so nothing shows which parts matter")
        return self.sample

    def layers(self, count: int) -> tuple[int, ...]:
        """The layers that stay; by importance, the layer is removed without which the metric is best, one by one."""
        opened, task = self.model.opened, self.task
        total = layers_in(opened)
        spaced = evenly(count, total)
        if self.options.by == "even":
            return spaced
        once = f"{opened.family.name} reads one layer again and again: none of them matters more; leave out --by"
        refuse(
            (opened.family.reads, "layers of an encoder-decoder stay evenly spaced: leave out --by importance"),
            (len(opened.network.layers) < total, once),
        )
        rows, kept = self.labeled(), tuple(range(total))
        with self.progress("ranking layers", "layers") as step:
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

    def heads(self, opened: LoadedModel) -> tuple[tuple[int, ...], ...]:
        """The heads of each layer that stay: without those that matter least."""
        attentions_of(opened)  # a model without heads is refused before anything is read
        dataset: Any = self.task.dataset(self.labeled(), opened, framing_for(opened))
        with self.progress("ranking heads", "examples") as count:
            table = dataset.for_training(MOST_WINDOWS, 0, False)
            ranked = importance(opened, self.task.objective(), table, count)
        return tuple(map(tuple, least(ranked, self.options.heads, self.options.heads_each)))

    def with_vocabulary(self, opened: LoadedModel, count: int) -> tuple[LoadedModel, VocabularyCoverage]:
        """The model with the tokens that texts use most, and what those texts lose by it."""
        text, characters, written = named(self.options.text), self.options.characters, None
        tokenizer, target, apart = (
            opened.tokenizer,
            opened.target_tokenizer,
            opened.config.source_vocabulary is not None,
        )
        if text and apart:
            raise UserError("a model with two vocabularies counts their tokens in rows: give --data, not --text")
        if tokenizer is None:
            raise UserError("this model folder has no tokenizer, so the tokens of texts cannot be counted")

        def inputs() -> Iterator[str]:
            rows = TextFiles(text).read() if text else (each for row in self.rows().examples for each in row.texts)
            return ((opened.card.prefix or "") + each for each in rows)

        def targets() -> Iterator[str]:
            examples: Iterable[Example] = () if text or not opened.family.reads else self.rows().examples
            return (example.target for example in examples if isinstance(example.target, str))

        counts, tokenizers = counted(tokenizer, inputs()), [tokenizer, *([] if target is None else [target])]
        if apart:
            assert target is not None
            written, tokenizers = chosen([target], counted(target, targets()), count, characters), [tokenizer]
        else:
            counts += counted(target or tokenizer, targets())
        kept = chosen(tokenizers, counts, count, characters)
        smaller = with_vocabulary(opened, kept, written, characters)
        assert smaller.tokenizer is not None
        texts = inputs() if target is not None else chain(inputs(), targets())
        return smaller, coverage(tokenizer, smaller.tokenizer, kept, texts)

    def compare(self, after: Model, name: str, folder: Path | None) -> Comparison:
        """The pruned model beside the one it was made from."""
        options, names = self.options, [name, "pruned" if name != "pruned" else "pruned again"]
        with temporary_folder() as scratch, self.progress("comparing", "examples") as count:
            folders: list[Path | None] | None = None
            if folder is not None:  # so that both have a size on disk
                folders = [folder, scratch / "pruned"]
                save_folder(scratch / "pruned", after.opened)
            comparison = compared(
                participants_of([self.model, after], names, folders), self.rows(), max_drop=options.max_drop,
                costs=options.costs, seconds=options.seconds, memory=False, progress=count,
            )  # fmt: skip
        return replace(comparison, models=[replace(each, folder=None) for each in comparison.models])

"""`weft.prune`: a model with fewer layers, heads or tokens, and what it has kept."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from weft.checkpoint.card import Made, Metric
from weft.checkpoint.folder import LoadedModel
from weft.checkpoint.save import save_folder
from weft.comparison.compare import compared, parties_of
from weft.comparison.comparison import Comparison, Table
from weft.comparison.cost import evenly as some_of
from weft.comparison.rows import Paths, asked_of, named
from weft.data.shards import TextFiles
from weft.errors import UserError
from weft.files import check_new_folder
from weft.progress import Log, Progress, ProgressChoice, progress_of, to_logger
from weft.pruning.heads import attentions_of, importance, least, with_heads
from weft.pruning.layers import evenly, layers_in, with_layers
from weft.pruning.options import check_pruning
from weft.pruning.vocabulary import Coverage, chosen_for, coverage, most_used, with_vocabulary
from weft.runs.finetune import MOST_WINDOWS
from weft.scratch import temporary_folder
from weft.tasks.base import Example
from weft.tasks.evaluate import evaluate_examples
from weft.tasks.forward import framing_for
from weft.tasks.model import Model, load
from weft.tasks.seq2seq import SequenceTask
from weft.text.tokenizers.pruning import pruned_tokenizer
from weft.version import VERSION

__all__ = ["Pruned", "evenly", "layers_in", "most_used", "prune", "pruned_tokenizer", "with_layers", "with_vocabulary"]

MOST = 2000  # rows by which heads and layers are chosen; all of them judge
SECONDS = 5.0  # that each model may take for each measure of time


@dataclass(frozen=True)
class Pruned:
    """The smaller model, and what was done."""

    model: Model
    parameters: tuple[int, int]  # before and after
    layers: tuple[int, ...] | None  # those that stayed
    heads: tuple[tuple[int, ...], ...] | None  # those that stayed of each layer
    vocabulary: tuple[int, int] | None  # tokens before and after
    coverage: Coverage | None  # what the texts that were counted lose by it
    comparison: Comparison | None  # on the rows to judge by

    def lines(self) -> list[str]:
        """What was done, for people."""
        before, after = self.parameters
        found = [f"parameters: {before:,} -> {after:,} ({after / before - 1:+.1%})"]
        if self.layers is not None:
            found.append(f"layers that stayed: {', '.join(map(str, self.layers))} (counted from 0)")
        if self.heads is not None:
            found.append(f"heads that stayed in each layer: {', '.join(str(len(some)) for some in self.heads)}")
        if self.vocabulary is not None:
            found.append(f"tokens: {self.vocabulary[0]:,} -> {self.vocabulary[1]:,}")
        if self.coverage is not None:
            found.append(f"of the texts {self.coverage}")
        return found

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
    source: Paths = (),
    target: Paths = (),
    max_drop: float | None = None,
    columns: Mapping[str, str] | None = None,
    format: str | None = None,
    delimiter: str | None = None,
    encoding: str | None = None,
    names: Sequence[str] = (),
    on_bad_row: str = "stop",
    costs: bool = True,
    seconds: float = SECONDS,
    device: str | None = None,
    online: bool = False,
    trust: bool = False,
    log: Log = to_logger,
    progress: ProgressChoice = None,
) -> Pruned:
    """Take layers, heads or tokens out of a model, and judge what is left; with `out`, write it there.

    `layers` stay, evenly spaced or, by importance, those whose loss costs most on the rows of `data`; of all `heads`
    this share goes, or `heads_each` of each layer, those that matter least there; of the vocabulary as many tokens stay
    as are said, those that `text`, else the rows, use most. With `max_drop` (points of the score), a model that loses
    more is refused, and nothing is written.
    """
    rowed = data is not None or bool(named(source)) or bool(named(target))
    check_pruning(
        layers=layers, by=by, heads=heads, heads_each=heads_each, vocabulary=vocabulary, max_drop=max_drop,
        rows=rowed, text=bool(named(text)),
    )  # fmt: skip
    if out is not None:
        check_new_folder(Path(out))
    before = model if isinstance(model, Model) else load(model, device=device, online=online, trust=trust)
    if before.card.backend not in (None, "torch"):
        raise UserError(f"a model for {before.card.backend} cannot be cut down: prune the one it was made from")
    reader: dict[str, Any] = {"source": source, "target": target, "columns": columns, "format": format}
    reader |= {"delimiter": delimiter, "encoding": encoding, "names": names, "on_bad_row": on_bad_row}
    judge = _Judge(before, data, reader, progress_of(progress))
    if rowed:
        judge.examples()  # a file that cannot be read is told before anything is weighed
    opened = before.opened
    stayed: tuple[int, ...] | None = None
    kept: tuple[tuple[int, ...], ...] | None = None
    if layers is not None:
        stayed = judge.layers(layers) if by == "importance" else evenly(layers, layers_in(opened))
        opened = _shallower(opened, stayed, layers)
    if heads is not None or heads_each is not None:
        attentions_of(opened)  # whoever has none hears of it before anything is read
        kept = tuple(map(tuple, least(judge.heads(opened), heads, heads_each)))
        opened = with_heads(opened, kept)
    covered: Coverage | None = None
    if vocabulary is not None:
        opened, covered = _fewer_tokens(opened, vocabulary, characters, named(text), judge)
    name = "model" if isinstance(model, Model) else Path(model).name
    made = replace(before.card.made or Made(), date=datetime.now(UTC).date().isoformat())
    opened = replace(opened, card=replace(before.card, weft=VERSION, metrics=(), base=name, made=made))
    after = Model(opened, before.task)
    comparison = None
    if rowed:
        folder = None if isinstance(model, Model) else Path(model)
        comparison = judge.beside(after, name, folder, max_drop=max_drop, costs=costs, seconds=seconds)
        if max_drop is not None and comparison.refused:
            raise UserError(f"{comparison.refused[0]}: nothing was written")
        for line in comparison.refused:
            log(f"weft: note: {line}; weft finetune may bring it back")
        metrics = [
            Metric(data=comparison.hash, name=score, value=each.value, low=each.low, high=each.high)
            for score, each in comparison.models[-1].scores.items()
        ]
        after.opened = replace(opened, card=replace(opened.card, metrics=tuple(metrics)))
    if out is not None:
        save_folder(Path(out), after.opened)
    size = None if vocabulary is None else (before.opened.config.vocabulary, opened.config.vocabulary)
    return Pruned(after, (_parameters(before), _parameters(after)), stayed, kept, size, covered, comparison)


def _parameters(model: Model) -> int:
    return sum(parameter.numel() for parameter in model.network.parameters())


def _shallower(opened: LoadedModel, stayed: tuple[int, ...], count: int) -> LoadedModel:
    """The model with these layers; what writes has as many of its own, evenly."""
    decoder = opened.network.decoder if opened.family.reads else None
    written = None if decoder is None else evenly(min(count, len(decoder)), len(decoder))
    return with_layers(opened, stayed, written)


def _fewer_tokens(
    opened: LoadedModel, count: int, characters: bool, text: tuple[str, ...], judge: _Judge
) -> tuple[LoadedModel, Coverage]:
    """The model with the tokens that texts use most, and what those texts lose by it."""
    if text and opened.config.source_vocabulary is not None:
        raise UserError("this model reads and writes with two vocabularies: their tokens are counted in the rows alone")

    def read() -> Iterator[str]:
        prefix = opened.card.prefix or ""
        if text:
            return (prefix + each for each in TextFiles(text).read())
        return (prefix + each for example in judge.examples() for each in example.texts)

    def written() -> Iterator[str]:
        rows: Iterable[Example] = () if text or not opened.family.reads else judge.examples()
        return (example.target for example in rows if isinstance(example.target, str))

    keep, writes = chosen_for(opened, read(), written(), count, characters)
    smaller = with_vocabulary(opened, keep, writes, characters)
    assert opened.tokenizer is not None and smaller.tokenizer is not None
    texts = read() if opened.target_tokenizer is not None else chain(read(), written())
    return smaller, coverage(opened.tokenizer, smaller.tokenizer, keep, texts)


class _Judge:
    """The rows by which parts are chosen and models are judged; read anew each time, so that none need be held."""

    def __init__(self, model: Model, data: Paths | None, reader: Mapping[str, Any], progress: Progress) -> None:
        self.model, self.data, self.reader, self.progress = model, data, reader, progress
        self.task = model.task_object if model.task_object.supervised else None
        self.held: list[Example] | None = None

    def examples(self) -> Iterable[Example]:
        return asked_of(self.task, self.model.card.columns, self.data, **self.reader).examples

    def some(self) -> list[Example]:
        """Rows with labels, evenly from all of them."""
        if self.task is None:
            raise UserError(f"a model for {self.model.task} has no labels by which parts of it could be chosen")
        if self.held is None:
            self.held = some_of([example for example in self.examples() if self.task.has_target(example)], MOST)
            if not self.held:
                raise UserError("no row says what is right, so nobody can tell what matters")
        return self.held

    def heads(self, opened: LoadedModel) -> list[Any]:
        """How much each head of each layer matters."""
        rows, task = self.some(), self.task
        assert task is not None and not isinstance(task, SequenceTask)
        table: Any = task.dataset(rows, opened, framing_for(opened))
        with self.progress("weighing heads", "examples") as told:
            return importance(opened, task.objective(), table.for_training(MOST_WINDOWS, 0, False), told)

    def layers(self, count: int) -> tuple[int, ...]:
        """Those layers that stay when, one after the other, the one goes without which the score is best."""
        opened, task = self.model.opened, self.task
        total = layers_in(opened)
        evenly(count, total)  # says what is wrong with the number
        if opened.family.reads:
            raise UserError("layers of an encoder-decoder stay evenly spaced: leave out --by importance")
        if opened.family.name == "albert":
            raise UserError("albert reads one layer again and again: none of them matters more; leave out --by")
        rows = self.some()
        assert task is not None
        stayed = tuple(range(total))
        with self.progress("weighing layers", "layers") as told:
            while len(stayed) > count:
                scores = {}
                for layer in stayed:
                    few = tuple(each for each in stayed if each != layer)
                    smaller = with_layers(opened, few)
                    found = (
                        evaluate_examples(task, smaller, framing_for(smaller), rows).scores[task.default_metric].value
                    )
                    scores[few] = (found if found == found else float("-inf"), layer)
                    told(1)
                stayed = max(scores, key=lambda few: scores[few])  # of equals the upper one goes
        return stayed

    def beside(self, after: Model, name: str, folder: Path | None, **how: Any) -> Comparison:
        """The model beside what it was made from."""
        rows = asked_of(self.task, self.model.card.columns, self.data, **self.reader)
        with temporary_folder() as scratch, self.progress("judging", "examples") as told:
            smaller = scratch / "pruned"
            if folder is not None:  # so that both have a size on disk
                save_folder(smaller, after.opened)
            names, folders = [name, "pruned" if name != "pruned" else "pruned again"], [folder, smaller]
            parties = parties_of([self.model, after], names, folders if folder is not None else None)
            found = compared(
                parties,
                rows.examples,
                data=rows.where,
                hash=rows.hash,
                memory=False,
                told=told,
                **how,
            )
        return replace(found, models=[replace(each, folder=None) for each in found.models])

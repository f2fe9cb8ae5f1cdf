"""`weft.compare(models, data)`: what several models reach, cost and say on the same rows, each beside the first."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from weft.comparison.comparison import LESS, Comparison, Standing, lost
from weft.comparison.cost import SECONDS, TEXTS, Costs, measure
from weft.comparison.ensemble import costs_together, joint, voice_of, writing_together
from weft.comparison.kinds import AGREEMENT, Kind, kind_of, together
from weft.comparison.masked import OfGaps
from weft.comparison.participant import APART, Party, fallen, fault
from weft.comparison.rows import Paths, asked_of
from weft.comparison.unlabeled import OfVectors, OfWords
from weft.errors import NotFinite, UserError, listed, shown
from weft.metrics.bootstrap import Score
from weft.progress import ProgressChoice, progress_of, to_logger
from weft.tasks.base import Example, Prediction, Task
from weft.tasks.evaluate import ReadCounts
from weft.tasks.forward import chunked
from weft.tasks.model import Model, load

WITHOUT_ROWS: dict[str, Callable[[], Kind]] = {"embed": OfVectors, "complete": OfWords, "fill": OfGaps}
AGREED = ("correlation", "bleu", "same", "cosine", "similarities")  # agreement, what tells most first
ROUNDING = 1e-6  # that nobody calls a difference
NOT_FINITE = "it answers with what is no number"


def compare(
    models: Sequence[str | os.PathLike[str] | Model],
    data: Paths | None = None,
    *,
    source: Paths = (),
    target: Paths = (),
    columns: Mapping[str, str] | None = None,
    format: str | None = None,
    delimiter: str | None = None,
    encoding: str | None = None,
    names: Sequence[str] = (),
    on_bad_row: str = "stop",
    task: str | None = None,
    max_drop: float | None = None,
    costs: bool = True,
    memory: bool = True,
    texts: int = TEXTS,
    seconds: float = SECONDS,
    device: str | None = None,
    online: bool = False,
    trust: bool = False,
    progress: ProgressChoice = None,
) -> Comparison:
    """Ask several models about the same rows, and stand each beside the first: quality, agreement, costs.

    Rows need not say what is right. `texts` and `seconds` limit what is timed; `max_drop` is in points of the task's
    score (hundredths, as BLEU is written): a model that loses more is named in `refused`, as is one that is damaged.
    """
    if max_drop is not None and not 0 <= max_drop <= 100:
        raise UserError(f"max_drop must be between 0 and 100 points, not {max_drop:g}")
    models = [models] if isinstance(models, str | os.PathLike | Model) else models
    opened = [opened_model(each, task, device, online, trust) for each in models]
    if not opened:
        raise UserError("no model to compare: give one folder or several")
    names_of = called([None if isinstance(each, Model) else os.fspath(each) for each in models])
    folders = [None if isinstance(each, Model) else Path(each) for each in models]
    parties = parties_of(opened, names_of, folders)
    first = opened[0]
    rows = asked_of(
        first.task_object if first.task_object.supervised else None,
        first.card.columns,
        data,
        source=source,
        target=target,
        columns=columns,
        format=format,
        delimiter=delimiter,
        encoding=encoding,
        names=names,
        on_bad_row=on_bad_row,
    )
    with progress_of(progress)(f"asking about {rows.where}", "examples") as told:
        found = compared(
            parties,
            rows.examples,
            data=rows.where,
            hash=rows.hash,
            max_drop=max_drop,
            costs=costs,
            memory=memory,
            texts=texts,
            seconds=seconds,
            told=told,
        )
    if note := rows.normalization.note():
        to_logger(f"weft: note: {rows.where}: {note}")
    return replace(found, reading=f"{found.reading}; {rows.skipped}") if rows.skipped.count else found


def opened_model(
    given: str | os.PathLike[str] | Model, task: str | None, device: str | None, online: bool, trust: bool = False
) -> Model:
    """A model to be compared, ready to answer."""
    if isinstance(given, Model):
        return given if device is None else given.to(device)
    return load(given, task=task, device=device, online=online, trust=trust)


def called(folders: Sequence[str | None]) -> list[str]:
    """What models are called: the last part of their path where that tells them apart."""
    short = [f"model {number}" if name is None else Path(name).name or name for number, name in enumerate(folders, 1)]
    if len(set(short)) == len(short):
        return short
    found = [name or short[number] for number, name in enumerate(folders)]
    return [name if found.count(name) == 1 else f"{name} ({number})" for number, name in enumerate(found, 1)]


def parties_of(
    models: Sequence[Model], names: Sequence[str], folders: Sequence[Path | None] | None = None
) -> list[Party]:
    """The models as they are compared; those that do not belong together are named."""
    first, folders = models[0], folders or [None] * len(models)
    for name, model in zip(names, models, strict=True):
        if model.task != first.task:
            raise UserError(f"{name} is made for {model.task}, {names[0]} for {first.task}: they cannot be compared")
    if first.task == "describe" or not (first.task_object.supervised or first.task in WITHOUT_ROWS):
        raise UserError(f"models for {first.task} are not compared by rows; to compare their vectors: --task embed")
    kinds: list[Kind]
    faults: list[str | None] = [None] * len(models)
    if first.task_object.supervised:
        tasks = [model.task_object for model in models]
        faults = [_labels_differ(task, tasks[0], name, names[0]) for task, name in zip(tasks, names, strict=True)]
        labels = together(tasks)
        kinds = [kind_of(task, labels) for task in tasks]
        for kind in kinds:
            kind.first = kinds[0]
    else:
        kinds = [WITHOUT_ROWS[first.task]() for _ in models]
    return [
        Party(name, model, folder, kind, None, kind.agreement(), damaged=fault)
        for name, model, folder, kind, fault in zip(names, models, folders, kinds, faults, strict=True)
    ]


def with_joint_voice(parties: Sequence[Party], name: str, count: int) -> list[Party]:
    """The parties with what the first `count` of them say together before them, where that means anything."""
    kinds, models = [party.kind for party in parties[:count]], [party.model for party in parties[:count]]
    kind = voice_of(kinds) or writing_together(kinds, [model.opened for model in models[1:]])
    if count < 2 or kind is None:
        return list(parties)
    return [Party(name, models[0], None, kind, None, kind.agreement(), of=tuple(parties[:count])), *parties]


def _labels_differ(task: Task, first: Task, name: str, first_name: str) -> str | None:
    """What is said of a model that does not know the same labels; one with none in common cannot be compared."""
    if getattr(task, "kind", None) != getattr(first, "kind", None):
        raise UserError(f"{name} and {first_name} do not answer with the same: one says labels, the other values")
    mine, theirs = set(task.labels), set(first.labels)
    if mine == theirs:
        return None
    if not mine & theirs:
        says = (shown(", ".join(each.labels)) for each in (task, first))
        raise UserError(f"{name} says {next(says)}, {first_name} says {next(says)}: no label in common")
    parts = [
        f"{word} {listed([shown(label) for label in sorted(some)], 3)}"
        for word, some in (("it lacks", theirs - mine), ("it alone has", mine - theirs))
        if some
    ]
    return f"its labels are not those of {first_name}: {', '.join(parts)}"


def compared(
    parties: Sequence[Party],
    examples: Iterable[Example],
    *,
    data: str = "",
    hash: str = "",
    max_drop: float | None = None,
    costs: bool = True,
    memory: bool = True,
    texts: int = TEXTS,
    seconds: float = SECONDS,
    told: Callable[[int], None] = lambda more: None,
) -> Comparison:
    """Compare models on examples, streaming: nothing is held but the rows at hand and the texts to be timed."""
    first, reading, timed = parties[0], ReadCounts(), _Sample(texts)
    golds: set[str] = set()
    known = 0
    for some in chunked(examples, lambda example: sum(map(len, example.texts))):
        said = _said_by_all(parties, some)
        for example in some:
            timed.add(example.texts)
        told(len(some))
        for found in said[0] or []:
            reading.add(found)
        right = [number for number, example in enumerate(some) if first.kind.known(example)]
        rows = [some[number] for number in right]
        known += len(rows)
        golds.update(first.kind.right(example) for example in rows if len(golds) < 2)
        for party, outcomes in zip(parties, said, strict=True):
            if outcomes is None:
                continue
            if rows:
                party.kind.seen(rows)
                party.metrics = party.metrics or party.kind.metrics()
                party.kind.add(party.metrics, [outcomes[number] for number in right], rows)
            party.keys.update(party.kind.key(found) for found in outcomes if len(party.keys) < 2)
            if party is not first and said[0] is not None:
                _beside(party, first, outcomes, said[0], some)
    if not timed.seen:
        raise UserError(f"{data}: there are no rows" if data else "there are no rows to compare by")
    if max_drop is not None and not known:
        raise UserError(f"{data}: no row says what is right, so nobody can tell what is lost: leave out --max-drop")
    for party in parties:
        party.found = party.metrics.sampled() if party.metrics is not None else {}
    for party in parties:
        party.damaged = party.damaged or fault(party, first, len(golds) > 1, timed.seen) or fallen(party, hash)
    sound = [party for party in parties if party.damaged != NOT_FINITE and not party.of]
    measured = None
    if costs and sound:
        folders = [party.folder for party in sound]
        measured = measure(
            [party.model for party in sound], timed.kept(), folders, seconds=seconds, texts=texts, memory=memory
        )
    chosen = first.kind.chosen if known else None
    standings = [_standing(party, first, chosen, max_drop) for party in parties]
    if measured is not None:
        by_name: dict[str, Costs | None] = dict(zip((party.name for party in sound), measured.costs, strict=True))
        for party in parties:
            if party.of:
                by_name[party.name] = costs_together([by_name.get(each.name) for each in party.of])
        standings = [replace(each, costs=by_name.get(each.name)) for each in standings]
    agreements = [name for each in standings for name in each.agreement]
    return Comparison(
        task=first.model.task,
        data=data,
        hash=hash,
        examples=timed.seen,
        labeled=known,
        chosen=chosen or None,
        agreed=next((name for name in AGREED if name in agreements), None),
        models=standings,
        measured=measured,
        reading=str(reading),
        max_drop=max_drop,
    )


def _said_by_all(parties: Sequence[Party], examples: Sequence[Example]) -> list[list[Prediction] | None]:
    """What all say; a joint voice follows from what those have said whose it is."""
    alone = {party.name: _said(party, examples) for party in parties if not party.of or voice_of([party.kind]) is None}
    found = list[list[Prediction] | None]()
    for party in parties:
        if party.name not in alone:
            parts = [some for each in party.of if (some := alone[each.name]) is not None]
            kinds = [each.kind for each in party.of]
            whole = len(parts) == len(kinds)
            if not whole:
                party.damaged, party.metrics, party.agreement = NOT_FINITE, None, None
            alone[party.name] = [joint(kinds, each) for each in zip(*parts, strict=True)] if whole else None
        found.append(alone[party.name])
    return found


def _said(party: Party, examples: Sequence[Example]) -> list[Prediction] | None:
    """What a model says; None of one that has said what is no number: nothing more is asked of it."""
    if party.damaged == NOT_FINITE:
        return None
    network = party.model.network
    training = network.training
    network.eval()
    try:
        found = party.kind.outcomes(party.model.opened, examples)
    except NotFinite:
        found = None
    finally:
        network.train(training)
    if found is not None and all(party.kind.finite(each) for each in found):
        return found
    party.damaged, party.metrics, party.agreement = NOT_FINITE, None, None
    return None


def _beside(
    party: Party,
    first: Party,
    outcomes: Sequence[Prediction],
    firsts: Sequence[Prediction],
    examples: Sequence[Example],
) -> None:
    """Count where a model agrees with the first, and keep where it does so least."""
    kind = party.kind
    for mine, theirs, example in zip(outcomes, firsts, examples, strict=True):
        kind.agree(party.agreement, mine, theirs, example)
        distance = kind.apart(mine, theirs, example)
        if not distance > ROUNDING:
            continue
        row = {
            "right": kind.right(example) if kind.known(example) else "",
            first.name: first.kind.told(theirs, mine, example),
            party.name: kind.told(mine, theirs, example),
            "where": example.where,
            "text": " | ".join(example.texts),
        }
        party.worst.add(distance, row)


def _standing(party: Party, first: Party, chosen: str | None, max_drop: float | None) -> Standing:
    """One model beside the first."""
    scores = {name: each.score() for name, each in party.found.items()}
    if party is first or party.damaged == NOT_FINITE:
        return Standing(party.name, _path(party), scores, damaged=party.damaged)
    difference = {name: each.minus(first.found[name]) for name, each in party.found.items() if name in first.found}
    kept = dropped = None
    if chosen in difference and chosen is not None:
        mine, theirs = party.found[chosen], first.found[chosen]
        kept = theirs.over(mine) if chosen in LESS else mine.over(theirs)
        drop = lost(difference[chosen], chosen)
        if max_drop is not None and not drop <= max_drop + ROUNDING:
            dropped = f"it loses {drop:.2f} points of {chosen}, and {max_drop:g} are allowed"
    agreed: dict[str, Score] = {}
    if party.agreement is not None and first.damaged != NOT_FINITE:
        for name, each in party.agreement.sampled().items():
            if name not in ("spearman", "r2", "length_ratio", "mse"):
                agreed[AGREEMENT.get(name, name)] = each.score()
    return Standing(
        party.name,
        _path(party),
        scores,
        difference,
        kept,
        agreed,
        _distinct(party.worst.rows()),
        None,
        party.damaged,
        dropped,
    )


def _distinct(rows: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """The first few of the rows, each text once; a column that says nothing is left out."""
    found = list({row["text"]: row for row in reversed(rows)}.values())[::-1][:APART]
    return [{name: cell for name, cell in row.items() if any(each[name] for each in found)} for row in found]


def _path(party: Party) -> str | None:
    return None if party.folder is None else str(party.folder)


class _Sample:
    """So many of the inputs of a stream, evenly from all of it, while no more than twice as many are held."""

    def __init__(self, most: int) -> None:
        self.most, self.step, self.seen = max(1, most), 1, 0
        self.held: list[tuple[str, ...]] = []

    def add(self, texts: tuple[str, ...]) -> None:
        if self.seen % self.step == 0 and any(text.strip() for text in texts):
            self.held.append(texts)
            if len(self.held) >= 2 * self.most:
                self.held, self.step = self.held[::2], 2 * self.step
        self.seen += 1

    def kept(self) -> list[tuple[str, ...]]:
        return self.held

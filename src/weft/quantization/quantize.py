"""`weft.quantize`: smaller numbers for a model, judged beside it on the user's data and this machine; the gate.

Every candidate is written, asked about the same rows, and timed in turns with the model that it came from. One that
surely loses too much, or is not faster (or smaller, where that is preferred), is never written to where the user wants
it.
"""

from __future__ import annotations

import copy
import math
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import torch

from weft.checkpoint.card import card_values, record_hashes
from weft.checkpoint.folder import write_files
from weft.comparison.compare import compare
from weft.comparison.comparison import Comparison, Standing, lost, megabytes, plain
from weft.comparison.cost import SECONDS, TEXTS
from weft.data.tables import is_names, rows_in_memory
from weft.errors import UserError, listed, one_of
from weft.exporters.ct2_export import write_ct2
from weft.exporters.export import check_agreement, check_batch_single, logits_of, refuse_exported, texts_of
from weft.exporters.onnx_builder import Precision
from weft.exporters.onnx_export import ranges_of, write_onnx
from weft.files import temporary_folder, whole_folder, write_json, write_text
from weft.metrics.bootstrap import Score
from weft.picture import heading, page, paragraph
from weft.picture import table as table_of
from weft.progress import Log, ProgressChoice
from weft.tasks.evaluate import RowOptions
from weft.tasks.model import Model, load

FASTER = 1.05  # times: what two runs on a busy machine differ by is no gain
SMALLER = 1.05  # times: a few more or fewer bytes of names are no gain either
PREFERENCES = ("fast", "small")
SLOWEST = 0.95  # times, for one text alone or many together: what is won for one is not to be lost for the other
BEFORE = "as it was"  # what the model itself is called in tables
CALIBRATION = 128  # texts by which static integers learn between which numbers everything lies


class Refused(UserError):
    """No candidate passed; what was measured is in it."""

    def __init__(self, message: str, result: Quantized) -> None:
        super().__init__(message)
        self.result = result


@dataclass(frozen=True)
class CandidateResult:
    """What the gate says of one candidate."""

    kind: str
    faster: float | None = None  # times, one text and many together
    refused: str | None = None  # why it is not written; None: it passes
    smaller: float | None = None  # times, on the disk
    drop: Score | None = None  # points lost, with the paired 95 % interval
    noise: bool = False  # it loses more than is allowed, but the interval does not exclude what is allowed


@dataclass(frozen=True)
class Quantized:
    """All candidates beside the model that they came from, and the one that was written."""

    comparison: Comparison
    candidates: tuple[CandidateResult, ...]
    chosen: str | None
    folder: Path | None
    prefer: str = "fast"
    max_drop: float = 0.5

    def rows(self) -> tuple[list[str], list[list[str]]]:
        """Header and rows: each candidate, how much smaller and faster it is, what it loses, and whether it passes."""
        rows = []
        for each in self.candidates:
            times = ["-" if number is None else f"{number:.2f} x" for number in (each.smaller, each.faster)]
            drop = each.drop
            points = "-" if drop is None else f"{drop.value:.2f} ({drop.low:.2f} to {drop.high:.2f})"
            gate = "chosen" if each.kind == self.chosen else "passes"
            gate += ", the loss is within noise" if each.noise else ""
            rows.append([each.kind, *times, points, each.refused or gate])
        return ["candidate", "smaller", "faster", "points lost (95 %)", "gate"], rows

    def summary(self) -> str:
        """Which kind was chosen, what it gains and what it loses, in one line."""
        if self.chosen is None:
            return "chosen: nothing; no candidate passes"
        first, best = (self._standing(name) for name in (self.comparison.models[0].name, self.chosen))
        candidate = self._result_of(self.chosen)
        parts = [f"chosen: {self.chosen}"]
        if candidate.smaller is not None:
            parts.append(f"{candidate.smaller:.1f}x smaller" if candidate.smaller >= SMALLER else "not smaller")
        if candidate.faster is not None:
            parts.append(f"{candidate.faster:.1f}x {'faster' if candidate.faster >= FASTER else 'as fast'}")
        name = self.comparison.chosen
        if name is not None:
            gap = best.difference[name]
            parts.append(
                f"{name} {first.scores[name].value:.3f} -> {best.scores[name].value:.3f} "
                f"({gap.value:+.3f}, 95 % {gap.low:+.3f} to {gap.high:+.3f})"
            )
        elif self.comparison.agreed is not None:
            score = best.agreement[self.comparison.agreed]
            parts.append(f"agreement {score.value:.3f} (95 % {score.low:.3f} to {score.high:.3f})")
        passed = sum(each.refused is None for each in self.candidates)
        word = "smallest" if self.prefer == "small" else "fastest"
        why = f"the {word} of {passed} that pass" if passed > 1 else "the only one that passes"
        return ", ".join(parts) + f"; {why}" + (", its loss is within noise" if candidate.noise else "")

    def warnings(self) -> list[str]:
        """What the user should know of the chosen one: not smaller, slower, or judged by too few rows."""
        if self.chosen is None:
            return []
        candidate, warnings = self._result_of(self.chosen), list[str]()
        if candidate.smaller is not None and candidate.smaller < SMALLER:
            sizes = [self._standing(name).costs for name in (self.chosen, self.comparison.models[0].name)]
            now, before = (megabytes(None if each is None else each.bytes) for each in sizes)
            small = chosen([each for each in self.candidates if (each.smaller or 0) >= SMALLER], "small")
            hint = f"; --prefer small would choose {small}" if small is not None else ""
            warnings.append(f"{self.chosen} is not smaller than the model: {now}, was {before}{hint}")
        if candidate.faster is not None and candidate.faster < SLOWEST:
            warnings.append(f"{self.chosen} is slower than the model: {candidate.faster:.2f} x")
        if candidate.noise and candidate.drop is not None:
            warnings.append(
                f"{self.chosen} loses {candidate.drop.value:.2f} points where {self.max_drop:g} are allowed; on these "
                f"rows that is within noise (95 % {candidate.drop.low:.2f} to {candidate.drop.high:.2f}); more rows "
                "would tell"
            )
        return warnings

    def _standing(self, name: str) -> Standing:
        return next(each for each in self.comparison.models if each.name == name)

    def _result_of(self, kind: str) -> CandidateResult:
        return next(each for each in self.candidates if each.kind == kind)

    def values(self) -> dict[str, Any]:
        """As JSON has it."""
        candidates = [asdict(each) for each in self.candidates]
        kept = {"chosen": self.chosen, "prefer": self.prefer, "max_drop": self.max_drop, "summary": self.summary()}
        values = {"warnings": self.warnings(), "candidates": candidates, "comparison": self.comparison.values()}
        return plain({**kept, **values})

    def write(self, folder: Path) -> None:
        """quantize.json and quantize.html in a folder."""
        write_json(folder / "quantize.json", self.values())
        parts = [paragraph(line) for line in (self.summary(), *self.warnings())]
        parts = [*parts, heading("The gate"), table_of(*self.rows()), *self.comparison.parts()]
        write_text(folder / "quantize.html", page(f"Quantized on {self.comparison.data}", parts))


# ------------------------------------------------------------------------------------------------ candidates


@dataclass(frozen=True)
class Source:
    """What candidates are made of: the model, and texts of the user's."""

    model: Model
    texts: Sequence[Any]


def _onnx(precision: Precision) -> Callable[[Path, Source], None]:
    def write(inside: Path, source: Source) -> None:
        model = source.model
        ranges = None
        if precision == "int8-static":
            some = source.texts[:CALIBRATION]
            ranges = ranges_of(model.opened, lambda: logits_of(model, some))
        write_onnx(inside, model.opened, model.task, precision, ranges)
        if precision == "fp32":
            check_agreement(model, load(inside), source.texts[:CALIBRATION])

    return write


def _ct2(precision: str) -> Callable[[Path, Source], None]:
    def write(inside: Path, source: Source) -> None:
        write_ct2(inside, source.model.opened, source.model.task, precision)

    return write


def _half(inside: Path, source: Source) -> None:
    """Our own folder in numbers of two bytes."""
    opened = source.model.opened
    card = replace(opened.card, precision="bf16", task=source.model.task)
    write_files(inside, replace(opened, network=copy.deepcopy(opened.network).to(torch.bfloat16), card=card))


KINDS: dict[str, Callable[[Path, Source], None]] = {
    "onnx-fp32": _onnx("fp32"),
    "onnx-fp16": _onnx("fp16"),
    "onnx-int8": _onnx("int8"),
    "onnx-int8-static": _onnx("int8-static"),
    "onnx-int4": _onnx("int4"),
    "ctranslate2-fp32": _ct2("fp32"),
    "ctranslate2-int8": _ct2("int8"),
    "bf16": _half,
}


def usual_kinds(model: Model) -> list[str]:
    """The candidates that a model of this task may become, on this machine."""
    kinds = [kind for kind in KINDS if not kind.startswith("onnx")] if model.task_object.writes else list(KINDS)
    # Where the processor has no arithmetic of two bytes, it is several times slower, and judging it takes the longest.
    native = bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return [kind for kind in kinds if kind != "bf16" or native]


def quantize(
    model: Model | str | os.PathLike[str],
    data: Any = None,
    *,
    out: str | os.PathLike[str],
    max_drop: float = 0.5,
    prefer: str = "fast",
    kinds: Sequence[str] | None = None,
    task: str | None = None,
    texts: int = TEXTS,
    seconds: float = SECONDS,
    online: bool = False,
    trust: bool = False,
    log: Log = lambda line: None,
    progress: ProgressChoice = None,
    **rows: Unpack[RowOptions],
) -> Quantized:
    """Make a model smaller and faster, and write the fastest (or smallest) candidate that passes the gate.

    A candidate passes if it loses at most `max_drop` points, or if the paired 95 % interval of its loss does not
    exclude `max_drop`, and if it is faster (`prefer="fast"`) or smaller (`prefer="small"`) than the model. Points are
    hundredths of the task's metric; where the data has no labels, of how often both agree. Raises `Refused`, and
    writes nothing, where no candidate passes. `rows` are the options of reading `data`, as of `weft.compare`.
    """
    for kind in kinds or ():
        one_of(kind, KINDS, "kind")
    one_of(prefer, PREFERENCES, "preference")
    if not 0 <= max_drop <= 100:
        raise UserError(f"max_drop must be between 0 and 100 points, not {max_drop:g}")
    reference = model if isinstance(model, Model) else load(model, task=task, online=online, trust=trust)
    refuse_exported(reference)
    reference.to("cpu")
    data = data if data is None or is_names(data) else rows_in_memory(data)  # a generator is gone through twice
    inputs = _inputs(reference, data, rows)
    with whole_folder(Path(out)) as inside, temporary_folder(libraries=True) as place:
        folders, failed = _written(reference, inputs, list(kinds or usual_kinds(reference)), place, log)
        comparison = compare(
            [place / BEFORE, *folders.values()],
            data,
            task=reference.task,
            memory=False,
            texts=texts,
            seconds=seconds,
            device="cpu",
            progress=progress,
            **rows,
        )
        candidates = (*judged(comparison, max_drop, prefer), *failed)
        best = chosen(candidates, prefer)
        result = Quantized(comparison, candidates, best, None if best is None else Path(out), prefer, max_drop)
        if best is None:
            lines = [f"{each.kind} {each.refused}" for each in candidates]
            raise Refused(f"no candidate passes, so nothing was written: {listed(lines, 3)}", result)
        _finish(inside, folders[best], result)
    return result


def _finish(inside: Path, candidate: Path, result: Quantized) -> None:
    """The folder of the chosen candidate, with its own metrics and the report of how it was chosen."""
    shutil.copytree(candidate, inside, dirs_exist_ok=True)
    number = [each.name for each in result.comparison.models].index(candidate.name)
    card = replace(load(inside).card, metrics=result.comparison.card_metrics(number))
    write_json(inside / "weft.json", card_values(card))
    record_hashes(inside)
    (inside / "run").mkdir()
    result.write(inside / "run")


def _inputs(model: Model, data: Any, options: RowOptions) -> list[Any]:
    """The user's texts, for what must see some before it can be written."""
    if model.task_object.writes:
        return []
    if data is None:
        raise UserError(f"a model for {model.task} is evaluated on rows: give --data")
    return texts_of(model, data, **options)


def _written(
    model: Model, inputs: Sequence[Any], kinds: Sequence[str], place: Path, log: Log
) -> tuple[dict[str, Path], list[CandidateResult]]:
    """The model and its candidates, each in a folder of its name; and the candidates that cannot be, with why."""
    (place / BEFORE).mkdir()
    write_files(place / BEFORE, model.opened)
    unmeasured = replace(model.opened, card=replace(model.card, metrics=()))  # theirs are measured
    source = Source(Model(unmeasured, model.task), inputs)
    folders, failed = {}, []
    for kind in kinds:
        log(f"making {kind}")
        folder = place / kind
        folder.mkdir()
        try:
            KINDS[kind](folder, source)
            check_batch_single(load(folder), source.texts)
        except UserError as error:
            failed.append(CandidateResult(kind, refused=str(error)))
            continue
        folders[kind] = folder
    if not folders:
        raise UserError(f"nothing to choose from: {'; '.join(f'{each.kind}: {each.refused}' for each in failed)}")
    return folders, failed


# ------------------------------------------------------------------------------------------------ the gate


def judged(comparison: Comparison, max_drop: float, prefer: str = "fast") -> list[CandidateResult]:
    """What the gate says of every model but the first, which is the one that they came from."""
    first, *others = comparison.models
    if first.damaged:
        raise UserError(f"the model itself is damaged: {first.damaged}")
    return [_result_of(each, first, comparison, max_drop, prefer) for each in others]


def _result_of(
    each: Standing, first: Standing, comparison: Comparison, max_drop: float, prefer: str
) -> CandidateResult:
    if each.damaged or each.costs is None or first.costs is None:
        return CandidateResult(each.name, refused=f"damaged: {each.damaged or 'nobody could time it'}")
    single = first.costs.p50 / each.costs.p50
    many = each.costs.per_second / first.costs.per_second
    smaller = first.costs.bytes / each.costs.bytes if first.costs.bytes and each.costs.bytes else None
    drop, of = _drop(each, comparison)
    passing = CandidateResult(each.name, math.sqrt(single * many), None, smaller, drop, max_drop < drop.value)
    refused = None
    # A loss beyond what is allowed counts only where it is surely beyond: 2 of 300 rows may well be chance.
    if not math.isfinite(drop.value) or min(drop.value, drop.low) > max_drop:
        ends = f"95 % {drop.low:.2f} to {drop.high:.2f}"
        refused = f"loses {drop.value:.2f} points of {of} ({ends}), and {max_drop:g} are allowed"
    elif prefer == "small" and (smaller is None or smaller < SMALLER):
        refused = f"not smaller: {megabytes(each.costs.bytes)}, was {megabytes(first.costs.bytes)}"
    elif prefer == "fast" and ((passing.faster or 0.0) < FASTER or min(single, many) < SLOWEST):
        refused = f"not faster: {single:.2f} x for one text, {many:.2f} x for many"
    return passing if refused is None else replace(passing, refused=refused, noise=False)


def _drop(each: Standing, comparison: Comparison) -> tuple[Score, str]:
    """Points that a candidate loses, and of which score; of agreement where no row says what is right."""
    if (name := comparison.chosen) is not None:
        gap = each.difference[name]
        value, *ends = (lost(Score(end, end, end), name) + 0.0 for end in (gap.value, gap.low, gap.high))
        return Score(value, min(ends), max(ends)), name
    assert comparison.agreed is not None
    same = each.agreement[comparison.agreed]
    points = Score(*(100 * (1 - end) for end in (same.value, same.high, same.low)))
    return points, f"agreement ({comparison.agreed})"


def chosen(candidates: Sequence[CandidateResult], prefer: str = "fast") -> str | None:
    """The fastest, or the smallest, of those that pass; of nearly equal ones the one that is better in the other."""
    passed = [each for each in candidates if each.refused is None and each.faster is not None]
    if not passed:
        return None

    def gains(each: CandidateResult) -> tuple[float, float]:
        both = each.faster or 0.0, each.smaller or 0.0
        return both if prefer == "fast" else both[::-1]

    best, near = max(gains(each)[0] for each in passed), FASTER if prefer == "fast" else SMALLER
    return max((each for each in passed if gains(each)[0] * near >= best), key=lambda each: gains(each)[::-1]).kind

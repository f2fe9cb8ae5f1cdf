"""`weft.quantize`: smaller numbers for a model, evaluated beside it on the user's data and this machine; the gate."""

from __future__ import annotations

import copy
import math
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Unpack, cast, get_args

import torch

from weft.checkpoint.card import card_values, record_hashes
from weft.checkpoint.folder import write_files
from weft.comparison.compare import Comparison, Standing, check_max_drop, compare, lost, megabytes, plain
from weft.comparison.cost import SECONDS, TEXTS
from weft.data.tables import is_names, rows_in_memory
from weft.errors import UserError, listed, one_of, refuse
from weft.exporters.export import check_agreement, check_batch_single, logits_of, refuse_exported, texts_of, write_ct2
from weft.exporters.onnx_builder import Precision
from weft.exporters.onnx_export import ranges_of, write_onnx
from weft.files import temporary_folder, whole_folder, write_json, write_text
from weft.metrics.bootstrap import Score
from weft.picture import heading, page, paragraph, table
from weft.progress import Log, ProgressChoice
from weft.tasks.evaluate import RowOptions
from weft.tasks.model import Model, load

GAIN = 1.05  # times: what two runs on a busy machine differ by, or a few bytes of names, is no gain
SLOWEST = 0.95  # times, for one text alone or many together: what is won for one is not to be lost for the other
ORIGINAL = "original"  # what the model itself is called in tables
CALIBRATION = 128  # texts by which static integers learn between which numbers everything lies


class Refused(UserError):
    """No candidate passed; what was measured is in it."""

    def __init__(self, message: str, result: Quantized) -> None:
        super().__init__(message)
        self.result = result


@dataclass(frozen=True)
class CandidateResult:
    """The measurements of one candidate, and whether it passes."""

    kind: str
    faster: float | None = None  # times, one text and many together
    refused: str | None = None  # why it is not written; None: it passes
    smaller: float | None = None  # times, on the disk
    drop: Score | None = None  # points lost, with the paired 95 % interval
    noise: bool = False  # it loses more than is allowed, but the interval does not exclude what is allowed


@dataclass(frozen=True)
class Quantized:
    """All candidates beside the original model, and the one that was written."""

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

    def _best(self) -> tuple[CandidateResult, Standing]:
        """The chosen candidate, and how it stands to the original."""
        candidate = next(each for each in self.candidates if each.kind == self.chosen)
        return candidate, next(each for each in self.comparison.models if each.name == self.chosen)

    def summary(self) -> str:
        """Which kind was chosen, what it gains and what it loses, in one line."""
        if self.chosen is None:
            return "chosen: nothing; no candidate passes"
        (candidate, standing), parts = self._best(), [f"chosen: {self.chosen}"]
        if candidate.smaller is not None:
            parts.append(f"{candidate.smaller:.1f}x smaller" if candidate.smaller >= GAIN else "not smaller")
        if candidate.faster is not None:
            parts.append(f"{candidate.faster:.1f}x {'faster' if candidate.faster >= GAIN else 'the speed'}")
        if (name := self.comparison.metric) is not None:
            gap, before = standing.difference[name], self.comparison.models[0].scores[name]
            scores = f"{before.value:.3f} -> {standing.scores[name].value:.3f}"
            parts.append(f"{name} {scores} ({gap.value:+.3f}, 95 % {gap.low:+.3f} to {gap.high:+.3f})")
        elif self.comparison.agreement_metric is not None:
            score = standing.agreement[self.comparison.agreement_metric]
            parts.append(f"agreement {score.value:.3f} (95 % {score.low:.3f} to {score.high:.3f})")
        passed = sum(each.refused is None for each in self.candidates)
        word = "smallest" if self.prefer == "small" else "fastest"
        why = f"the {word} of {passed} that pass" if passed > 1 else "the only one that passes"
        return ", ".join(parts) + f"; {why}" + (", its loss is within noise" if candidate.noise else "")

    def warnings(self) -> list[str]:
        """What the user should know of the chosen one: not smaller, slower, or evaluated on too few rows."""
        if self.chosen is None:
            return []
        (candidate, standing), warnings = self._best(), list[str]()
        if candidate.smaller is not None and candidate.smaller < GAIN:
            sizes = [each.costs for each in (standing, self.comparison.models[0])]
            now, before = (megabytes(None if each is None else each.bytes) for each in sizes)
            small = chosen([each for each in self.candidates if (each.smaller or 0) >= GAIN], "small")
            hint = f"; --prefer small would choose {small}" if small is not None else ""
            warnings.append(f"{self.chosen} is not smaller than the model: {now}, was {before}{hint}")
        if candidate.faster is not None and candidate.faster < SLOWEST:
            warnings.append(f"{self.chosen} is slower than the model: {candidate.faster:.2f} x")
        if candidate.noise and (drop := candidate.drop) is not None:
            warnings.append(
                f"{self.chosen} loses {drop.value:.2f} points where {self.max_drop:g} are allowed; on these rows that "
                f"is within noise (95 % {drop.low:.2f} to {drop.high:.2f}); evaluate it on more rows to be sure"
            )
        return warnings

    def values(self) -> dict[str, Any]:
        """As JSON has it."""
        values = {name: value for name, value in vars(self).items() if name in ("chosen", "prefer", "max_drop")}
        values |= {"summary": self.summary(), "warnings": self.warnings(), "comparison": self.comparison.values()}
        return plain({**values, "candidates": [asdict(each) for each in self.candidates]})

    def write(self, folder: Path) -> None:
        """quantize.json and quantize.html in a folder."""
        write_json(folder / "quantize.json", self.values())
        parts = [paragraph(line) for line in (self.summary(), *self.warnings())]
        parts = [*parts, heading("The gate"), table(*self.rows()), *self.comparison.parts()]
        write_text(folder / "quantize.html", page(f"Quantized on {self.comparison.data}", parts))


KINDS = (*(f"onnx-{precision}" for precision in get_args(Precision)), "ctranslate2-fp32", "ctranslate2-int8", "bf16")


def write_candidate(kind: str, inside: Path, model: Model, texts: Sequence[Any]) -> None:
    """The files of one candidate; it is calibrated and checked on the user's texts."""
    engine, _, precision = kind.partition("-")
    opened, some, ranges = model.opened, texts[:CALIBRATION], None
    if engine == "onnx":
        if precision == "int8-static":
            ranges = ranges_of(opened, lambda: logits_of(model, some))
        write_onnx(inside, opened, model.task, cast(Precision, precision), ranges)
        if precision == "fp32":
            check_agreement(model, load(inside), some)
    elif engine == "ctranslate2":
        write_ct2(inside, opened, model.task, precision)
    else:  # torch in numbers of two bytes
        card = replace(opened.card, precision="bf16", task=model.task)
        write_files(inside, replace(opened, network=copy.deepcopy(opened.network).to(torch.bfloat16), card=card))


def quantize(
    model: Model | str | os.PathLike[str],
    data: Any = None,
    *,
    out: str | os.PathLike[str],
    max_drop: float = 0.5,
    prefer: str = "fast",
    kinds: Sequence[str] | None = None,
    task: str | None = None,
    online: bool = False,
    trust: bool = False,
    log: Log = lambda line: None,
    progress: ProgressChoice = None,
    texts: int = TEXTS,
    seconds: float = SECONDS,
    **rows: Unpack[RowOptions],
) -> Quantized:
    """Make a model smaller and faster, and write the fastest (or smallest) candidate that passes the gate.

    A candidate passes if it loses at most `max_drop` points, or if the paired 95 % interval of its loss does not
    exclude `max_drop`, and if it is faster (`prefer="fast"`) or smaller (`prefer="small"`) than the model. Points are
    hundredths of the task's metric; where the data has no labels, of the agreement. Raises `Refused`, and writes
    nothing, where no candidate passes. `texts`, `seconds` and `rows` are those of `weft.compare`.
    """
    for kind in kinds or ():
        one_of(kind, KINDS, "kind")
    one_of(prefer, ("fast", "small"), "preference")
    check_max_drop(max_drop)
    reference = model.plain() if isinstance(model, Model) else load(model, task=task, online=online, trust=trust)
    refuse_exported(reference)
    reference.to("cpu")
    data = data if data is None or is_names(data) else rows_in_memory(data)  # a generator is gone through twice
    writes = reference.task_object.writes
    refuse((data is None and not writes, f"a model for {reference.task} is evaluated on rows: give --data"))
    inputs = [] if writes else texts_of(reference, data, **rows)
    if kinds is None:
        kinds = [kind for kind in KINDS if not writes or not kind.startswith("onnx")]
        if not torch.ops.mkldnn._is_mkldnn_bf16_supported():  # several times slower, and the longest to evaluate
            kinds.remove("bf16")
    with whole_folder(Path(out)) as inside, temporary_folder(libraries=True) as place:
        folders, failed = _written(reference, inputs, kinds, place, log)
        models = [place / ORIGINAL, *folders.values()]
        limits: Any = {"memory": False, "texts": texts, "seconds": seconds, "progress": progress}
        comparison = compare(models, data, task=reference.task, device="cpu", **limits, **rows)
        candidates = (*gate_results(comparison, max_drop, prefer), *failed)
        best = chosen(candidates, prefer)
        result = Quantized(comparison, candidates, best, None if best is None else Path(out), prefer, max_drop)
        if best is None:
            lines = [f"{each.kind} {each.refused}" for each in candidates]
            raise Refused(f"no candidate passes, so nothing was written: {listed(lines, 3)}", result)
        shutil.copytree(folders[best], inside, dirs_exist_ok=True)
        number = [each.name for each in comparison.models].index(best)
        card = replace(load(inside).card, metrics=comparison.card_metrics(number))
        write_json(inside / "weft.json", card_values(card))
        record_hashes(inside)
        (inside / "run").mkdir()
        result.write(inside / "run")
    return result


def _written(
    model: Model, inputs: Sequence[Any], kinds: Sequence[str], place: Path, log: Log
) -> tuple[dict[str, Path], list[CandidateResult]]:
    """The model and its candidates, each in a folder of its name; and the candidates that failed, with why."""
    (place / ORIGINAL).mkdir()
    write_files(place / ORIGINAL, model.opened)
    unmeasured = replace(model.opened, card=replace(model.card, metrics=()))  # theirs are measured
    source, folders, failed = Model(unmeasured, model.task), {}, []
    for kind in kinds:
        log(f"making {kind}")
        folder = place / kind
        folder.mkdir()
        try:
            write_candidate(kind, folder, source, inputs)
            check_batch_single(load(folder), inputs)
            folders[kind] = folder
        except UserError as error:
            failed.append(CandidateResult(kind, refused=str(error)))
    refuse((not folders, f"nothing to choose from: {'; '.join(f'{each.kind}: {each.refused}' for each in failed)}"))
    return folders, failed


def gate_results(comparison: Comparison, max_drop: float, prefer: str = "fast") -> list[CandidateResult]:
    """The result of every model but the first, which is the original."""
    (first, *others), results = comparison.models, list[CandidateResult]()
    refuse((bool(first.damaged), f"the model itself is damaged: {first.damaged}"))
    for each in others:
        if each.damaged or each.costs is None or first.costs is None:
            results.append(CandidateResult(each.name, refused=f"damaged: {each.damaged or 'it could not be timed'}"))
            continue
        single, many = first.costs.p50 / each.costs.p50, each.costs.per_second / first.costs.per_second
        smaller = first.costs.bytes / each.costs.bytes if first.costs.bytes and each.costs.bytes else None
        if (name := comparison.metric) is not None:
            gap = each.difference[name]
            value, *ends = (lost(Score(end, end, end), name) + 0.0 for end in (gap.value, gap.low, gap.high))
            drop, of = Score(value, min(ends), max(ends)), name
        else:  # the data has no labels
            assert comparison.agreement_metric is not None
            same = each.agreement[comparison.agreement_metric]
            drop = Score(*(100 * (1 - end) for end in (same.value, same.high, same.low)))
            of = f"agreement ({comparison.agreement_metric})"
        faster, refused = math.sqrt(single * many), None
        # A loss beyond what is allowed counts only where it is surely beyond: 2 of 300 rows may well be chance.
        if not math.isfinite(drop.value) or min(drop.value, drop.low) > max_drop:
            interval = f"95 % {drop.low:.2f} to {drop.high:.2f}"
            refused = f"loses {drop.value:.2f} points of {of} ({interval}), and {max_drop:g} are allowed"
        elif prefer == "small" and (smaller is None or smaller < GAIN):
            refused = f"not smaller: {megabytes(each.costs.bytes)}, was {megabytes(first.costs.bytes)}"
        elif prefer == "fast" and (faster < GAIN or min(single, many) < SLOWEST):
            refused = f"not faster: {single:.2f} x for one text, {many:.2f} x for many"
        noise = refused is None and max_drop < drop.value
        results.append(CandidateResult(each.name, faster, refused, smaller, drop, noise))
    return results


def chosen(candidates: Sequence[CandidateResult], prefer: str = "fast") -> str | None:
    """The fastest, or the smallest, of those that pass; of nearly equal ones the one that is better in the other."""
    passed = [each for each in candidates if each.refused is None and each.faster is not None]
    gains = {each.kind: (each.faster or 0.0, each.smaller or 0.0) for each in passed}
    if prefer == "small":
        gains = {kind: (smaller, faster) for kind, (faster, smaller) in gains.items()}
    best = max((first for first, _ in gains.values()), default=0.0)
    near = [kind for kind, (first, _) in gains.items() if first * GAIN >= best]
    return max(near, key=lambda kind: gains[kind][::-1], default=None)

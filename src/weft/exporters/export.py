"""`weft.export`: a model for another engine, written only if it gives the same answers there."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Unpack

from weft.checkpoint.card import record_hashes
from weft.checkpoint.folder import LoadedModel
from weft.comparison.compare import compare
from weft.errors import UserError, one_of
from weft.exporters.checks import (
    TOLERANCE,
    check_agreement,
    check_batch_single,
    check_generation,
    made_up_inputs,
)
from weft.exporters.ct2_export import read_from, write_ct2
from weft.exporters.onnx_export import write_onnx
from weft.exporters.transformers_export import check_same, write_transformers
from weft.files import whole_folder
from weft.tasks.inputs import rows_of as table_rows
from weft.tasks.model import Model, load
from weft.tasks.rows import Paths, RowOptions, table_of
from weft.text.row_problems import Skipped


@dataclass(frozen=True)
class Exported:
    """What was written, and how near it is to what it was made of."""

    folder: Path
    to: str
    bytes: int
    apart: float  # share of the largest score; of a model that writes, what the log-probability of a token is off by
    texts: int  # on which that was seen


CHECKED = 512  # texts of a file that an export is checked on
# Each writes the files of a folder, which is then loaded and checked.
WAYS: dict[str, Callable[[Path, LoadedModel, str], None]] = {
    "onnx": write_onnx,
    "ctranslate2": write_ct2,
    "transformers": write_transformers,
}


def export(
    model: Model | str | os.PathLike[str],
    to: str = "onnx",
    *,
    out: str | os.PathLike[str],
    data: str | os.PathLike[str] | Sequence[str] | None = None,
    columns: Mapping[str, str] | None = None,
    task: str | None = None,
    tolerance: float = TOLERANCE,
    online: bool = False,
    trust: bool = False,
) -> Exported:
    """Write a model for another engine; `weft.load` opens it like any other folder.

    Before the folder appears, both answer the texts of `data` (made-up ones where there is none): where scores differ
    by more than `tolerance` of the largest, or one answer differs, nothing is written. Nor is it where the answer to a
    text depends on the others of its batch.
    """
    one_of(to, WAYS, "to")
    model = model if isinstance(model, Model) else load(model, task=task, online=online, trust=trust)
    refuse_exported(model)
    inputs = texts_of(model, data, columns=columns)
    if data is not None:
        check_sound(model, data, columns)
    with whole_folder(Path(out)) as inside:
        WAYS[to](inside, model.opened, model.task)
        exported = load(inside)
        apart = agreed(to, model, exported, inputs, tolerance)
        if exported.opened.exported:
            check_batch_single(exported, inputs)
        record_hashes(inside)
        size = size_of(inside)
    return Exported(Path(out), to, size, apart, len(inputs))


def check_sound(model: Model, data: Paths, columns: Mapping[str, str] | None) -> None:
    """Refuse a model that is damaged, by the user's rows: its export would be, too."""
    if not model.task_object.supervised or model.task_object.writes:
        return
    try:
        standing = compare([model], data, columns=columns, costs=False, task=model.task).models[0]
    except UserError:  # rows with other labels show nothing
        return
    if standing.damaged:
        raise UserError(f"the model itself is damaged: {standing.damaged}; nothing was written")


def agreed(to: str, ours: Model, theirs: Model, inputs: Sequence[Any], tolerance: float) -> float:
    """How far what was written is from what it was made of; refused where that is too far."""
    if to == "transformers":
        return check_same(ours, theirs, inputs, tolerance)
    if ours.opened.family.speaks and to == "ctranslate2":
        return check_generation(ours, theirs, inputs)
    return check_agreement(ours, theirs, inputs, tolerance)


def refuse_exported(model: Model) -> None:
    """A model that another engine runs has no weights to make another one of."""
    if model.opened.exported:
        raise UserError(f"this is a model for {model.card.backend} already; give the model it was made from")


def texts_of(model: Model, data: Any, **options: Unpack[RowOptions]) -> list[Any]:
    """The inputs on which two models are compared: the first of a file, else made-up ones."""
    if data is None:
        return made_up_inputs(model)
    task = model.task_object
    if task.writes or (model.opened.family.speaks and not task.supervised):
        return read_from(data, options.get("columns") or {})
    table = table_of(data, options)
    rows = table_rows(model, table, Skipped())
    inputs = list(islice((row.input for row in rows if row.problem is None), CHECKED))
    if not inputs:
        raise UserError(f"{table.name}: there are no rows")
    return inputs


def size_of(folder: Path) -> int:
    """Bytes of the files that a model needs."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and "run" not in path.parts)

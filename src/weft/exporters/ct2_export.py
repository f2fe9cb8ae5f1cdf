"""Models as CTranslate2 folders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any, Literal

from safetensors import SafetensorError

from weft.backends.ct2_files import ENGINE
from weft.backends.ctranslate2 import HEADS, kept_names
from weft.checkpoint.folder import LoadedModel, write_files
from weft.checkpoint.tensors import save_tensors
from weft.data.columns import paired_columns
from weft.data.tables import Table
from weft.errors import UserError, shown
from weft.exporters.ct2_specs import spec_of
from weft.files import unwritable
from weft.text.rows import SUFFIXES
from weft.text.sources import format_suffix
from weft.version import VERSION

Precision = Literal["fp32", "fp16", "int8"]
KINDS: dict[str, str | None] = {"fp32": None, "fp16": "float16", "int8": "int8_float32"}  # in the engine's words
COMPARED = 64  # texts of a file that both models generate from


def write_ct2(inside: Path, opened: LoadedModel, task: str, precision: str = "fp32") -> None:
    """The files of a CTranslate2 folder, for this task, one by one."""
    if precision not in KINDS:
        raise UserError(f"CTranslate2 has the precisions {', '.join(KINDS)}, not {shown(precision)}")
    if task == "fill" and opened.family.sentinels:
        task = "complete"  # gaps are filled step by step, which is ours to do
    spec = spec_of(opened)
    spec.validate()
    spec.optimize(KINDS[precision])
    card = replace(opened.card, task=task, backend="ctranslate2", precision=precision, weft=VERSION)  # type: ignore[arg-type]
    write_files(inside, replace(opened, card=card), weights=False)
    try:
        (inside / ENGINE).mkdir()
        spec.save(str(inside / ENGINE))
        if not opened.family.speaks:
            state = opened.network.state_dict()
            kept = {
                name: state[name].detach().cpu().contiguous()
                for name in kept_names(list(state), opened.config, opened.heads)
            }
            if kept:
                save_tensors(inside / HEADS, kept, {"format": "pt"})
    except (OSError, SafetensorError) as error:
        raise unwritable(inside, error) from None


def read_from(data: Any, columns: Mapping[str, str]) -> list[str]:
    """The first texts of what a model that writes is given: lines of a plain file, or the sources of a table."""
    texts: list[str] = []
    whole = Table(data, columns)
    tables = [whole]
    if not whole.in_memory:  # .en and .de tell no format: lines
        tables = [
            replace(whole, data=name, format=SUFFIXES.get(format_suffix(PurePath(name)), "txt")) for name in whole.data
        ]
    for table in tables:
        for record in table.records():
            names = paired_columns(list(record.values)) or ("text",)
            name = columns.get("source") or columns.get("text") or names[0]
            if name not in record.values:
                raise UserError(f"{record.where}: has no column {shown(name)!r}; name it with --column source=NAME")
            texts.append(str(record.values[name]))
            if len(texts) == COMPARED:
                return texts
    if not any(text.strip() for text in texts):
        raise UserError(f"{whole.name}: there are no texts")
    return texts

"""Tables of predictions: rows are kept in a partial file as they come, and become a table once all are there.

The partial file survives a killed process, whatever the format of the table, and the same command continues it.
"""

from __future__ import annotations

import csv
import importlib
import io
import json
import math
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from weft.errors import UserError, listed
from weft.files import lock, no_link, reason, whole_file

TABLES = (".csv", ".tsv", ".jsonl", ".parquet")
FINISHED = "finished"  # the last line of a partial file whose table is being written
ID_COLUMNS = ("id", "guid", "qid", "uid", "uuid", "idx", "index", "key", "question_id", "example_id")
BLOCK = 4096  # rows of a parquet row group
AS_JSON = json.JSONEncoder(ensure_ascii=False).encode  # `json.dumps` makes an encoder for each value
ROW_AS_JSON = json.JSONEncoder(ensure_ascii=False, default=str).encode

Row = tuple[dict[str, Any], dict[str, Any]]  # columns of the input, and those that are added
Rows = Iterable[dict[str, Any]]


def id_of(values: Mapping[str, Any]) -> Any:
    """What identifies a row: its first column with a usual name for an id; None where it has none."""
    folded = {name.casefold().strip(): value for name, value in reversed(list(values.items()))}
    return next((folded[name] for name in ID_COLUMNS if folded.get(name) not in (None, "")), None)


def check_table(out: Path, task: str | None, overwrite: bool) -> None:
    """Refuse an output that cannot be written, before hours of work go into it; `task` None: not known yet."""
    if out.suffix == ".json" and task not in (None, "answer"):
        raise UserError(f"{out}: a SQuAD prediction file is for models that answer; give {listed(TABLES)}")
    if out.suffix not in (*TABLES, ".json"):
        raise UserError(f"{out}: predictions are written as {listed(TABLES)}; for answers also .json (SQuAD)")
    if out.is_dir():
        raise UserError(f"{out}: is a folder, not a file")
    if out.exists() and not overwrite:
        path, end = out.with_name(f"{out.name}.partial"), _sealed(json.dumps(FINISHED))
        # The partial file of a table that is there: its process was killed between the two.
        with suppress(OSError), open(path, "r+b", opener=no_link) as file:
            file.seek(-len(end), os.SEEK_END)
            if file.read() == end and lock(file.fileno()):
                path.unlink()
        raise UserError(f"{out}: already there; choose another name, remove it, or give --overwrite")
    if out.suffix == ".parquet":
        _pyarrow()


class PartialTable:
    """The rows predicted so far, in FILE.partial: a line on what they are made from, then a line for each row."""

    def __init__(self, out: Path, source: Mapping[str, str], overwrite: bool = False) -> None:
        """`source`: what the rows depend on; a file of another source is refused, or with `overwrite` removed."""
        self.out, self.path = out, out.with_name(f"{out.name}.partial")
        self.count, self.columns = 0, Columns()
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            self.file: BinaryIO = open(self.path, "a+b", opener=no_link)  # noqa: SIM115
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written: {reason(error)}") from None
        try:
            if not lock(self.file.fileno()):
                raise UserError(f"{self.path}: another process is writing it")
            self.file.seek(0)
            header = self.file.readline()
            before, changed = _unsealed(header), ["program"]
            if isinstance(before, dict):
                changed = [name for name in source if before.get(name) != source[name]]
            row = header.endswith(b"\n") and changed and self.file.readline()  # without one there is nothing to lose
            if row and not overwrite:
                what = f"is of another run ({listed(changed)} changed)"
                raise UserError(f"{self.path}: {what}; remove it, or start over with --overwrite")
            end = 0 if changed else self.file.tell()
            for line in () if changed else self.file:  # a killed process may have left half a row
                row = _unsealed(line)
                if row in (None, FINISHED):
                    break
                self.columns.add(*row)
                self.count, end = self.count + 1, end + len(line)
            self.file.truncate(end)
            if changed:
                self._append([json.dumps(source)])
        except BaseException:
            self.file.close()
            raise

    def add(self, rows: Iterable[Row]) -> None:
        """Append some rows; those of an earlier call are not lost whatever happens here."""
        rows = list(rows)
        if self.out.suffix == ".json" and any(values and id_of(values) is None for values, _ in rows):
            raise UserError(f"{self.out}: a SQuAD prediction file needs a column id or qid, and the data has none")
        plain = [(values, added) if _is_plain(values) and _is_plain(added) else (_plain(values), _plain(added))
                 for values, added in rows]  # fmt: skip
        self._append([ROW_AS_JSON(row) for row in plain])
        for values, added in plain:
            self.columns.add(values, added)
        self.count += len(plain)

    def _append(self, lines: Sequence[str]) -> None:
        try:
            self.file.write(b"".join(map(_sealed, lines)))
            self.file.flush()
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written: {reason(error)}") from None

    def rows(self) -> Iterator[Row]:
        """All rows, from the first."""
        with open(self.path, "rb") as file:
            file.readline()
            for line in file:
                row = _unsealed(line)
                if row is None:
                    raise UserError(f"{self.path}: damaged: its bytes are not those that were saved")
                if row == FINISHED:
                    return
                values, added = row
                yield values, added

    def finish(self) -> dict[str, str]:
        """Write the table and remove the partial file; the added columns under the names that they were given."""
        self._append([json.dumps(FINISHED)])
        with suppress(OSError):
            os.fsync(self.file.fileno())
        if self.out.suffix == ".json":
            named: dict[str, str] = {}
            # The official SQuAD file: answers by id. A row that could not be read has no columns at all, and no id.
            answers = {str(id_of(values)): added["prediction"] or "" for values, added in self.rows() if values}
            with whole_file(self.out) as file:
                file.write(json.dumps(answers, ensure_ascii=False).encode() + b"\n")
        else:
            named, columns = self.columns.named()
            merged = (values | {named[name]: value for name, value in added.items()} for values, added in self.rows())
            with whole_file(self.out) as file:
                _WRITERS[self.out.suffix](file, merged, columns)
        self.file.close()
        self.path.unlink(missing_ok=True)
        return named

    def close(self) -> None:
        """Leave what has been predicted; a file without a row would only be in the way of the next run."""
        if not self.count and not self.file.closed:
            self.path.unlink(missing_ok=True)
        self.file.close()


def write_table(out: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows that are all there, as a table."""
    kinds = Columns()
    for row in rows:
        kinds.add(row, {})
    with whole_file(out) as file:
        _WRITERS[out.suffix](file, iter([dict(row) for row in rows]), kinds.named()[1])


def _sealed(text: str) -> bytes:
    """A line of a partial file: its checksum and its text."""
    data = text.encode("utf-8", "backslashreplace")
    return b"%08x %s\n" % (zlib.crc32(data), data)


def _unsealed(line: bytes) -> Any:
    """The content of a line of a partial file; None where it is truncated or damaged."""
    checksum, _, data = line.partition(b" ")
    if not data.endswith(b"\n") or checksum != b"%08x" % zlib.crc32(data[:-1]):
        return None
    return json.loads(data.decode())


class Columns:
    """The columns of the input and those that are added, each with its parquet type."""

    def __init__(self) -> None:
        self.theirs: dict[str, str] = {}
        self.ours: dict[str, str] = {}

    def add(self, values: Mapping[str, Any], added: Mapping[str, Any]) -> None:
        """One more row."""
        for row, kinds in ((values, self.theirs), (added, self.ours)):
            for name, value in row.items():
                if isinstance(value, str) and kinds.get(name) == "text":  # most of all cells
                    continue
                kinds[name] = _joined(kinds.get(name, ""), _kind(value))

    def named(self) -> tuple[dict[str, str], dict[str, str]]:
        """Names for the added columns that no column of the input has; and every column with its parquet type."""
        named: dict[str, str] = {}
        for name in self.ours:
            number, free = 2, name
            while free in self.theirs or free in named.values():
                number, free = number + 1, f"{name}_{number}"
            named[name] = free
        return named, {**self.theirs, **{named[name]: kind for name, kind in self.ours.items()}}


def _plain(value: Any) -> Any:
    """JSON has no NaN and no infinity: such a number is missing."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _is_plain(row: dict[str, Any]) -> bool:
    """Whether a row has texts and finite numbers alone, as most have."""
    return all(type(value) is str or (type(value) is float and math.isfinite(value)) for value in row.values())


def cell(value: Any) -> str:
    """A value as the text of a cell; lists and objects as JSON."""
    if value is None or isinstance(value, str):
        return value or ""
    return repr(value) if type(value) is float and math.isfinite(value) else AS_JSON(value)  # JSON writes it so too


def _write_csv(file: BinaryIO, rows: Rows, columns: Mapping[str, str], delimiter: str = ",") -> None:
    text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
    writer = csv.writer(text, delimiter=delimiter, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([cell(row.get(name)) for name in columns])
    text.detach()


def _write_jsonl(file: BinaryIO, rows: Rows, columns: Mapping[str, str]) -> None:
    for row in rows:
        file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")


def _write_parquet(file: BinaryIO, rows: Rows, columns: Mapping[str, str]) -> None:
    pyarrow, parquet = _pyarrow()
    types = {
        "": pyarrow.string(), "bool": pyarrow.bool_(), "int": pyarrow.int64(), "float": pyarrow.float64(),
        "text": pyarrow.string(), "list": pyarrow.list_(pyarrow.string()),
        "numbers": pyarrow.list_(pyarrow.float64()), "texts": pyarrow.list_(pyarrow.string()),
    }  # fmt: skip
    schema = pyarrow.schema([(name, types[kind]) for name, kind in columns.items()])
    with parquet.ParquetWriter(file, schema) as writer:
        source = iter(rows)
        while block := list(islice(source, BLOCK)):
            arrays = []
            for name, kind in columns.items():
                values = [row.get(name) for row in block]
                values = [cell(value) if kind == "text" and value is not None else value for value in values]
                arrays.append(pyarrow.array(values, types[kind]))
            writer.write_table(pyarrow.Table.from_arrays(arrays, schema=schema))


_WRITERS: dict[str, Callable[[BinaryIO, Rows, Mapping[str, str]], None]] = {
    ".csv": _write_csv, ".tsv": partial(_write_csv, delimiter="\t"), ".jsonl": _write_jsonl, ".parquet": _write_parquet
}  # fmt: skip


def _pyarrow() -> tuple[Any, Any]:
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise UserError("writing parquet needs pyarrow: pip install 'weft[data]'") from None


def _kind(value: Any) -> str:
    """The type of a parquet column that holds a value; '': any, for a value that is missing."""
    if isinstance(value, str):
        return "text"
    if value is None:
        return ""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int" if -(1 << 63) <= value < 1 << 63 else "text"
    if isinstance(value, list) and all(isinstance(item, int | float) and not isinstance(item, bool) for item in value):
        return "numbers" if value else "list"
    if isinstance(value, list):
        return "texts" if all(isinstance(item, str) for item in value) else "text"
    return "float" if isinstance(value, float) else "text"


def _joined(first: str, second: str) -> str:
    """The type that holds the values of both; text holds everything, lists and objects as JSON."""
    if first == second:
        return first
    both = {first, second} - {""}
    if len(both) < 2:
        return "".join(both)
    if both == {"int", "float"}:
        return "float"
    if "list" in both and both & {"numbers", "texts"}:
        return (both - {"list"}).pop()
    return "text"

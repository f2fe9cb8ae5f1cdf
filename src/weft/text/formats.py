"""The formats that people keep text in, each as a function from an open source to its records.

A reader yields records, and a UserError where one row is bad; what spoils the whole file it raises.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from weft.errors import UserError, did_you_mean, listed, shown
from weft.files import JSON_VALUES, MEGABYTE, check_json_values
from weft.text.compressed import LIMIT, RUN_ROWS, Line, Source, read_lines
from weft.text.documents import look

SUFFIXES = {
    ".txt": "txt",
    ".text": "txt",
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".conll": "conll",
    ".bio": "conll",
    ".iob": "conll",
    ".json": "json",
    ".xlsx": "xlsx",
    ".xlsm": "xlsx",
}
UNREAD = {".xls": "save it as .xlsx or csv", ".ods": "save it as .xlsx or csv", ".doc": "save it as text"}
UNREAD |= {".docx": "save it as text", ".pdf": "save it as text", ".rtf": "save it as text"}


COLUMNS = 100_000  # of a table
NESTED = 100  # lists and objects inside of each other in a row


@dataclass(frozen=True)
class Record:
    """One row of somebody's data and the place it was read from."""

    values: dict[str, Any]
    where: str
    likely: Mapping[str, str] = field(default_factory=dict)  # of a file's first row: what its columns look like
    problem: str | None = None  # of a row that cannot be read, where such rows keep their place


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the caller knows about the files."""

    names: Sequence[str] | None = None  # of the columns of a file without a header line
    needed: Sequence[str] = ()  # columns that must be there
    header: bool = True
    delimiter: str | None = None
    documents: str = "line"  # of DOCUMENTS


Rows = Iterator[Record | UserError]


def need_columns(there: Sequence[str], options: Options, where: str) -> None:
    """Stop where a column that the caller needs is not there."""
    names = set(there) if options.needed else ()
    for name in options.needed:
        if name not in names:
            has = f"it has {listed(shown(each) for each in there)}" if there else "it has none"
            raise UserError(f"{where}: no column {shown(name)!r}; {has}{did_you_mean(name, there)}")


def too_long(where: str, what: str) -> UserError:
    return UserError(f"{where}: {what} is longer than {LIMIT // MEGABYTE} MiB")


def check_columns(count: int, where: str) -> None:
    """Stop at a table that has more columns than any."""
    if count > COLUMNS:
        raise UserError(f"{where}: {count:,} columns; at most {COLUMNS:,} are read")


def check_names(where: str, names: Sequence[str]) -> None:
    """Stop where a column has no name, or two have the same."""
    check_columns(len(names), where)
    seen = set[str]()
    for place, name in enumerate(names, start=1):
        if not name:
            raise UserError(f"{where}: column {place} has no name")
        if name in seen:
            raise UserError(f"{where}: two columns are named {shown(name)!r}")
        seen.add(name)


# ------------------------------------------------------------------------------------------------------ documents


def read_txt(source: Source, options: Options) -> Rows:
    """A document per line, per block of lines between blank ones, per file, or as the text looks."""
    need_columns(["text"], options, source.name)
    documents, lines = options.documents, read_lines(source)
    if documents == "auto":
        documents, lines = look(lines)
    if documents == "file":
        yield from _whole(source, lines)
        return
    if documents == "line":
        for number, text, fault in lines:
            if fault:
                yield fault
            elif text and not text.isspace():
                yield Record({"text": text}, f"{source.name} line {number}")
        return
    for began, block, fault in _blocks(source, lines, "this block"):
        text = "\n".join(text for _, text, _ in block)
        yield fault or Record({"text": text}, f"{source.name} line {began}")


def _whole(source: Source, lines: Iterable[Line]) -> Rows:
    """The whole file as one document, line ends and blank lines kept."""
    texts, size = list[str](), 0
    for _, text, fault in lines:
        if fault:
            yield fault
            return
        texts.append(text)
        size += len(text) + 64  # what Python needs for a line
        if size > LIMIT:
            raise UserError(
                f"{source.name}: as one document it takes more than {LIMIT // MEGABYTE} MiB; "
                "let a document be a line or a block"
            )
    text = "\n".join(texts) + "\n"
    if not text.isspace():
        yield Record({"text": text}, f"{source.name} line 1")


def _blocks(source: Source, lines: Iterable[Line], what: str) -> Iterator[tuple[int, list[Line], UserError | None]]:
    """Runs of lines between blank ones: where each begins, its lines, and the first bad byte in it."""
    block, size = list[Line](), 0
    end: Line = (0, "", None)
    for line in chain(lines, [end]):
        text = line[1]
        if text and not text.isspace():
            block.append(line)
            size += len(text) + 128  # what Python needs for a line of one letter
            if size > LIMIT:
                raise UserError(f"{source.name} line {block[0][0]}: {what} takes more than {LIMIT // MEGABYTE} MiB")
        elif block:
            yield block[0][0], block, next((fault for _, _, fault in block if fault), None)
            block, size = [], 0


# ------------------------------------------------------------------------------------------------------------ JSON


def json_words(error: Exception) -> str:
    """What is wrong with a JSON text; Python raises three kinds of errors for it."""
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON: {error.msg[0].lower()}{error.msg[1:]}"
    return "nested too deeply" if isinstance(error, RecursionError) else f"not JSON: {shown(str(error), 120)}"


def check_nesting(values: dict[str, Any], where: str) -> None:
    """Refuse a row of lists in lists without end: whoever walks through it later would run out of stack."""
    level: list[Any] = [values]
    for _ in range(NESTED):
        inside = [inner for each in level for inner in (each.values() if isinstance(each, dict) else each)]
        level = [each for each in inside if isinstance(each, dict | list)]
        if not level:
            return
    raise UserError(f"{where}: nested deeper than {NESTED} levels")


def half_character(values: Any) -> bool:
    r"""Whether a string holds half of a surrogate pair (JSON can spell one, '\ud83d'): no tokenizer takes that."""
    try:
        json.dumps(values, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


HALF = "holds half a surrogate pair, which is no character"


def unwrapped(values: dict[str, Any]) -> dict[str, Any]:
    """The columns of a row that stands inside another object: {"translation": {"en": ..., "de": ...}}."""
    if "row_idx" in values and isinstance(values.get("row"), dict):
        return values["row"]  # as the viewer of Hugging Face hands rows out
    if isinstance(values.get("data"), dict) and isinstance(values.get("annotations"), list):
        return _label_studio(values)
    inner = next(iter(values.values()), None)
    return inner if len(values) == 1 and isinstance(inner, dict) else values


def _label_studio(values: dict[str, Any]) -> dict[str, Any]:
    """A task that Label Studio exports: its data, and spans, labels or a rating out of its first annotation."""
    row = {**({"id": values["id"]} if "id" in values else {}), **values["data"]}
    done = [each for each in values["annotations"] if isinstance(each, dict) and not each.get("was_cancelled")]
    results = done[0].get("result") if done else None
    if not isinstance(results, list):
        return row
    spans, labels = [], list[Any]()
    for result in results:
        value = result.get("value") if isinstance(result, dict) else None
        if isinstance(value, dict) and "start" in value:
            spans.append({name: value.get(name) for name in ("start", "end", "labels")})
        elif isinstance(value, dict):
            row |= {"value": value["rating"]} if "rating" in value else {}
            labels += value.get("choices") or []
    return {**row, **({"label": labels} if labels else {"spans": spans})}


def read_jsonl(source: Source, options: Options) -> Rows:
    """A JSON object per line."""
    unit = "row" if source.name in RUN_ROWS.values() else "line"
    for number, text, fault in read_lines(source):
        where = f"{source.name} {unit} {number}"
        if fault:
            yield fault
            continue
        if not text or text.isspace():
            continue
        try:
            check_json_values(text, where, JSON_VALUES)
            values = json.loads(text)
            if not isinstance(values, dict):
                raise UserError(f"{where}: a JSON {type(values).__name__} where an object is expected")
            check_nesting(values, where)
            values = unwrapped(values)
            check_columns(len(values), where)
            need_columns(list(values), options, where)
            if "\\u" in text and half_character(values):
                raise UserError(f"{where}: {HALF}")
        except UserError as error:
            yield error
        except (ValueError, RecursionError) as error:
            column = f" (column {error.colno})" if isinstance(error, json.JSONDecodeError) else ""
            yield UserError(f"{where}: {json_words(error)}{column}")
        else:
            yield Record(values, where)


# ----------------------------------------------------------------------------------------------------------- CoNLL


CONLL_HEADER = {"token", "tokens", "word", "words", "form", "tag", "tags", "ner", "ner_tag", "pos", "pos_tag", "chunk"}
CONLL_HEADER |= {"label", "labels", "lemma", "entity", "text"}


def read_conll(source: Source, options: Options) -> Rows:
    """Sentences of a word per line with columns beside it; the last column is the tag."""
    need_columns(["words", "tags", "columns"], options, source.name)
    shape: tuple[bool, int] | None = None  # of the row before: cut at tabs or not, number of columns
    for _, lines, fault in _blocks(source, read_lines(source), "this sentence"):
        began, rows = 0, list[list[str]]()
        for number, text, _ in lines:
            if len(text) > COLUMNS and text.count(" ") + text.count("\t") > COLUMNS:
                raise UserError(f"{source.name} line {number}: more than {COLUMNS:,} columns")
            tabbed = "\t" in text
            row = text.split("\t") if tabbed else re.split(" +", text.strip(" "))
            if row[0] == "-DOCSTART-" or text.startswith(("#begin document", "#end document")):
                continue
            # A comment of CoNLL-U stands before its sentence. In a file cut at spaces '# # B-NP' is a token (a pound
            # sign, in CoNLL-2000): it looks like the rows before it.
            if not rows and text.startswith("# ") and shape != (tabbed, len(row)):
                continue
            if shape is None and not rows and {cell.casefold() for cell in row} <= CONLL_HEADER:
                source.note(f"{source.name}: line {number} is taken for the names of the columns")
                continue
            began = began or number
            if rows and len(row) != len(rows[0]):
                words = f"expected {len(rows[0])} columns, as in line {began}, found {len(row)}"
                fault = fault or UserError(f"{source.name} line {number}: {words}")
                break
            shape = (tabbed, len(row))
            rows.append(row)
        if fault:
            yield fault
        elif rows:
            columns = [list(column) for column in zip(*rows, strict=True)]
            tags = columns[-1] if len(columns) > 1 else []
            yield Record({"words": columns[0], "tags": tags, "columns": columns}, f"{source.name} line {began}")

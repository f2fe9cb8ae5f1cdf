"""Rows of JSON and JSON lines, and SQuAD's questions, read piece by piece."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, cast

from weft.errors import UserError, listed, shown
from weft.files import JSON_VALUES, check_json_values
from weft.text.rows import Options, Record, Rows, check_columns, need_columns
from weft.text.sources import CHUNK, LIMIT, RUN_ROWS, TextSource, read_lines, read_pieces, too_long


def _articles(source: TextSource) -> Iterator[tuple[int, Any]]:
    """The entries of the "data" list of a SQuAD file, numbered from 1."""
    text = JsonText(source)
    if not text.peek():
        return
    if text.peek() != "{":
        raise UserError(f"{source.name}: not a SQuAD file: it begins with {shown(text.peek())!r}, not with an object")
    has_data = False
    for key in text.members():
        if key == "data":
            has_data = True
            yield from text.entries("article", ' "data"')
        else:
            text.value()
    if not has_data:
        hint = "; for one object per line give format='jsonl'" if text.peek() else ""
        raise UserError(f'{source.name}: not a SQuAD file: it has no "data" list{hint}')
    if text.peek():
        raise UserError(f"{source.name}: text after the end of the JSON object")


def read_squad(source: TextSource, options: Options, contexts: bool = False) -> Rows:
    """The questions of a SQuAD 1.1 or 2.0 file, an article at a time; or its `contexts`, each once."""
    if not contexts:
        need_columns(["id", "title", "context", "question", "answers", "impossible"], options, source.name)
    seen = set[int]()  # hashes of contexts: the texts themselves would fill the memory
    for number, article in _articles(source):
        where = f"{source.name} article {number}"
        paragraphs = article.get("paragraphs") if isinstance(article, dict) else None
        if not isinstance(paragraphs, list):
            yield UserError(f"{where}: no list 'paragraphs'")
            continue
        for place, paragraph in enumerate(paragraphs, start=1):
            within = f"{where} paragraph {place}"
            known = paragraph if isinstance(paragraph, dict) else {}
            context, questions = known.get("context"), known.get("qas")
            if not isinstance(context, str):
                yield UserError(f"{within}: no text 'context'")
            elif contexts:
                if hash(context) not in seen:
                    seen.add(hash(context))
                    yield _sound({"text": context}, within)
            elif not isinstance(questions, list):
                yield UserError(f"{within}: no list 'qas'")
            else:
                for count, entry in enumerate(questions, start=1):
                    try:
                        values = _question(entry, str(article.get("title", "")), context)
                    except UserError as error:
                        yield UserError(f"{within} question {count}: {error}")
                    else:
                        yield _sound(values, f"{where} question {shown(values['id'])}")


def _question(entry: Any, title: str, context: str) -> dict[str, Any]:
    """One entry of 'qas' as the values of a record."""

    def field(holder: Any, name: str, kind: type, words: str) -> Any:
        value = holder.get(name) if isinstance(holder, dict) else None
        if not isinstance(value, kind) or isinstance(value, bool) and kind is not bool:
            raise UserError(f"no {words} {name!r}")
        return value

    if isinstance(entry, dict) and isinstance(entry.get("id"), int):
        entry = {**entry, "id": str(entry["id"])}
    values = {"id": field(entry, "id", str, "text"), "title": title, "context": context}
    values["question"] = field(entry, "question", str, "text")
    if "answers" in entry:  # else nobody knows them: a question to be asked, not to learn by
        answers = field(entry, "answers", list, "list")
        texts = [field(answer, "text", str, "text") for answer in answers]
        starts = [field(answer, "answer_start", int, "number") for answer in answers]
        values["answers"] = [{"text": text, "start": start} for text, start in zip(texts, starts, strict=True)]
        values["impossible"] = field({"is_impossible": False, **entry}, "is_impossible", bool, "true or false")
    return values


SPACES = re.compile(r"[ \t\n\r]*")


class JsonText:
    """A JSON text read piece by piece, holding no more of it than the value at hand."""

    def __init__(self, source: TextSource) -> None:
        self.source, self.pieces = source, read_pieces(source)
        self.text, self.at = "", 0
        self.decoder = json.JSONDecoder()

    def grow(self, wanted: int) -> bool:
        """Drop what is behind, read about so many characters more; False at the end of the text."""
        pieces, size = [self.text[self.at :]], 0
        while size < wanted and (piece := next(self.pieces, None)) is not None:
            pieces.append(piece)
            size += len(piece)
        self.text, self.at = "".join(pieces), 0
        return size > 0

    def peek(self) -> str:
        """The next character that is not a space; '' at the end."""
        while True:
            self.at = cast("re.Match[str]", SPACES.match(self.text, self.at)).end()
            if self.at < len(self.text):
                return self.text[self.at]
            if not self.grow(CHUNK):
                return ""

    def take(self, character: str, place: str = "") -> None:
        """Step over a character that must come next."""
        following = self.peek()
        if following != character:
            wrong = f"{shown(following)!r} where {character!r} is expected"
            raise UserError(f"{self.source.name}{place}: {wrong if following else 'ends too early: cut short'}")
        self.at += 1

    def members(self) -> Iterator[str]:
        """The keys of the object that comes next; the caller takes each value."""
        self.take("{")
        while self.peek() != "}":
            key = self.value()
            self.take(":")
            yield str(key)
            if self.peek() != "}":
                self.take(",")
        self.take("}")

    def entries(self, what: str, place: str = "") -> Iterator[tuple[int, Any]]:
        """The values of the list that comes next, numbered from 1; `what` names one in errors."""
        self.take("[", place)
        number = 0
        while self.peek() != "]":
            number += 1
            yield number, self.value(f" {what} {number}")
            if self.peek() != "]":
                self.take(",", f" after {what} {number}")
        self.take("]")

    def value(self, place: str = "") -> Any:
        """The value that comes next, whole."""
        self.peek()
        if len(self.text) - self.at < CHUNK:  # so that a number is never taken for whole where the piece ends
            self.grow(CHUNK)
        while True:
            try:
                value, self.at = self.decoder.raw_decode(self.text, self.at)
                return value
            except (ValueError, RecursionError) as error:
                late = isinstance(error, json.JSONDecodeError) and error.pos > len(self.text) - 16
                if not late and not str(error).startswith("Unterminated"):  # the value is not cut off here
                    raise UserError(f"{self.source.name}{place}: {json_words(error)}") from None
            size = len(self.text) - self.at
            if size > LIMIT:
                raise too_long(f"{self.source.name}{place}", "this value")
            if not self.grow(size + CHUNK):  # twice as much each time: the work stays linear
                raise UserError(f"{self.source.name}{place}: ends too early: not JSON or cut short")
            check_json_values(self.text, f"{self.source.name}{place}", JSON_VALUES)


def json_words(error: Exception) -> str:
    """What is wrong with a JSON text; Python raises three kinds of errors for it."""
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON: {error.msg[0].lower()}{error.msg[1:]}"
    return "nested too deeply" if isinstance(error, RecursionError) else f"not JSON: {shown(str(error), 120)}"


def _sound(values: dict[str, Any], where: str) -> Record | UserError:
    r"""A record, unless a text holds half of a surrogate pair (JSON can spell one, '\ud83d'): no tokenizer takes it."""
    try:
        json.dumps(values, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return UserError(f"{where}: holds half a surrogate pair, which is no character")
    return Record(values, where)


HOLDERS = ("data", "rows", "examples", "items", "records")  # keys of an object under which people put the rows


def read_json(source: TextSource, options: Options) -> Rows:
    """Rows of a JSON file, one at a time; its content shows how they are kept."""
    kind = json_kind(source)
    if kind in ("squad", "lines"):
        yield from (read_squad if kind == "squad" else read_jsonl)(source, options)
        return
    for number, values in _columns(source) if kind == "columns" else _entries(source, kind):
        yield from _records(values, f"{source.name} row {number}", options)


def json_kind(source: TextSource) -> str:
    """array, squad, lines, columns, or the key of the object that holds the rows; '' where the file is empty."""
    text, name = JsonText(source), source.name
    first = text.peek()
    if first in ("", "["):
        return "array" if first else ""
    if first != "{":
        raise UserError(f"{name}: {shown(first)!r} where a JSON array of objects, or an object, is expected")
    keys, lists = list[str](), True
    for key in text.members():
        keys.append(key)
        if key not in HOLDERS or text.peek() != "[":
            lists = isinstance(text.value(), list | dict) and lists
            continue
        entries = text.entries("row")
        _, first_entry = next(entries, (0, {}))
        if isinstance(first_entry, dict):
            return "squad" if key == "data" and (not first_entry or "paragraphs" in first_entry) else key
        for _ in entries:
            pass
    if text.peek() == "{":
        return "lines"
    if keys and lists and not text.peek():
        return "columns"
    forms = f"an array of objects, alone or under {listed(HOLDERS[:2])}, or lines of JSON (--format jsonl)"
    raise UserError(f"{name}: no rows: give {forms}; it has {listed(map(shown, keys)) or 'nothing'}")


def _entries(source: TextSource, holder: str) -> Iterator[tuple[int, Any]]:
    text = JsonText(source)
    if holder == "array":
        yield from text.entries("row")
        return
    for key in text.members() if text.peek() else ():
        if key == holder:
            yield from text.entries("row")
            return
        text.value()


def _columns(source: TextSource) -> Iterator[tuple[int, Any]]:
    """The rows of an object of columns: lists, or objects by the number of the row, as pandas writes them."""
    text = JsonText(source)
    columns: dict[str, list[Any]] = {}
    for key in text.members():
        value = text.value(f" column {shown(key)}")
        columns[key] = list(value.values()) if isinstance(value, dict) else value
    if len({len(cells) for cells in columns.values()}) > 1:
        sizes = listed(f"{shown(name)} has {len(cells)}" for name, cells in columns.items())
        raise UserError(f"{source.name}: its columns are of different lengths: {sizes}")
    for number, cells in enumerate(zip(*columns.values(), strict=True), start=1):
        yield number, dict(zip(columns, cells, strict=True))


def _records(values: Any, where: str, options: Options, escapes: bool = True) -> Rows:
    """A JSON value as a row, or as one for each question about its passage."""
    rows = unnested(values) if isinstance(values, dict) else [values]
    for number, row in enumerate(rows, start=1):
        yield _record(row, f"{where} question {number}" if len(rows) > 1 else where, options, escapes)


RACE = {"questions": "question", "options": "options", "answers": "answer"}  # lists, an entry for each question


def unnested(values: dict[str, Any]) -> list[Any]:
    """The rows that a published form keeps inside of one: a row for each question, its parts as columns."""
    question, target = values.get("question"), values.get("target")
    if isinstance(question, dict) and "stem" in question:  # ARC, OpenBookQA, CommonsenseQA
        return [{**values, **question, "question": question["stem"]}]
    if isinstance(target, dict) and "span1_text" in target:  # WSC
        return [{**{name: value for name, value in values.items() if name != "target"}, **target}]
    passage = values.get("passage", values.get("paragraph"))
    if isinstance(passage, dict):
        return _passage_questions(values, passage)
    lists = {RACE[name]: value for name, value in values.items() if name in RACE and isinstance(value, list)}
    if "article" in values and "question" in lists and len({len(each) for each in lists.values()}) == 1:
        row = {name: value for name, value in values.items() if name not in RACE}
        return [{**row, **dict(zip(lists, parts, strict=True))} for parts in zip(*lists.values(), strict=True)]
    return [values]


def _passage_questions(values: dict[str, Any], passage: dict[str, Any]) -> list[Any]:
    """The questions about a passage of MultiRC or ReCoRD, each with its passage."""
    text, entities = passage.get("text"), passage.get("entities")
    questions = passage.get("questions", values.get("qas"))
    if not isinstance(text, str) or not isinstance(questions, list):
        return [values]
    row: dict[str, Any] = {"passage": text}
    if isinstance(entities, list):  # by their first and last character
        spans = [(each.get("start"), each.get("end")) for each in entities if isinstance(each, dict)]
        names = dict.fromkeys(text[a : b + 1] for a, b in spans if isinstance(a, int) and isinstance(b, int))
        row["entities"] = [name for name in names if name.strip()]
    return [{**row, **each} if isinstance(each, dict) else each for each in questions]


MAX_NESTING = 100  # lists and objects inside of each other in a row


def _record(values: Any, where: str, options: Options, escapes: bool = True) -> Record | UserError:
    """A JSON value as a row, or what is wrong with it; `escapes`: it may spell half of a character."""
    if not isinstance(values, dict):
        return UserError(f"{where}: a JSON {type(values).__name__} where an object is expected")
    level, depth = list[Any]([values]), 0
    while level and depth < MAX_NESTING:  # whoever walks through lists in lists without end would run out of stack
        depth += 1
        inside = [inner for each in level for inner in (each.values() if isinstance(each, dict) else each)]
        level = [each for each in inside if isinstance(each, dict | list)]
    if level:
        return UserError(f"{where}: nested deeper than {MAX_NESTING} levels")
    inner = next(iter(values.values()), None)
    if "row_idx" in values and isinstance(values.get("row"), dict):
        values = values["row"]  # as the viewer of Hugging Face hands rows out
    elif isinstance(values.get("data"), dict) and isinstance(values.get("annotations"), list):
        values = _label_studio(values)
    elif len(values) == 1 and isinstance(inner, dict):  # {"translation": {"en": ..., "de": ...}}
        values = inner
    try:
        check_columns(len(values), where)
        need_columns(list(values), options, where)
    except UserError as error:
        return error
    return _sound(values, where) if escapes else Record(values, where)


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


def read_jsonl(source: TextSource, options: Options) -> Rows:
    """A JSON object per line."""
    unit = "row" if source.name in RUN_ROWS.values() else "line"
    for number, text, fault in read_lines(source):
        where = f"{source.name} {unit} {number}"
        if fault:
            yield fault
        elif text and not text.isspace():
            try:
                check_json_values(text, where, JSON_VALUES)
                yield from _records(json.loads(text), where, options, "\\u" in text)
            except UserError as error:
                yield error
            except (ValueError, RecursionError) as error:
                column = f" (column {error.colno})" if isinstance(error, json.JSONDecodeError) else ""
                yield UserError(f"{where}: {json_words(error)}{column}")

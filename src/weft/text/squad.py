"""SQuAD 1.1 and 2.0: questions about texts with answers inside them, read an article at a time."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, cast

from weft.errors import UserError, shown
from weft.text.compressed import CHUNK, LIMIT, Source, read_pieces
from weft.text.formats import HALF, Options, Record, Rows, half_character, json_words, need_columns, too_long

SPACES = re.compile(r"[ \t\n\r]*")


class _Json:
    """A JSON text read piece by piece, holding no more of it than the value at hand."""

    def __init__(self, source: Source) -> None:
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

    def take(self, character: str, place: str) -> None:
        """Step over a character that must come next."""
        found = self.peek()
        if found != character:
            words = f"{shown(found)!r} where {character!r} is expected" if found else "ends too early: cut short"
            raise UserError(f"{self.source.name}{place}: {words}")
        self.at += 1

    def value(self, place: str) -> Any:
        """The value that comes next, whole."""
        self.peek()
        if len(self.text) - self.at < CHUNK:  # so that a number is never taken for whole where the piece ends
            self.grow(CHUNK)
        while True:
            try:
                found, self.at = self.decoder.raw_decode(self.text, self.at)
                return found
            except (ValueError, RecursionError) as error:
                cut = isinstance(error, json.JSONDecodeError) and (
                    error.msg.startswith("Unterminated") or error.pos > len(self.text) - 16
                )
                if not cut:
                    raise UserError(f"{self.source.name}{place}: {json_words(error)}") from None
            size = len(self.text) - self.at
            if size > LIMIT:
                raise too_long(f"{self.source.name}{place}", "this value")
            if not self.grow(size + CHUNK):  # twice as much each time: the work stays linear
                raise UserError(f"{self.source.name}{place}: ends too early: not JSON or cut short")


def _articles(source: Source) -> Iterator[tuple[int, Any]]:
    """The entries of the "data" list of a SQuAD file, numbered from 1."""
    text, number = _Json(source), 0
    if not text.peek():
        return
    if text.peek() != "{":
        raise UserError(f"{source.name}: not a SQuAD file: it begins with {shown(text.peek())!r}, not with an object")
    text.take("{", "")
    found = False
    while text.peek() != "}":
        key = text.value("")
        text.take(":", "")
        if key != "data":
            text.value("")
        else:
            found = True
            text.take("[", ' "data"')
            while text.peek() != "]":
                number += 1
                place = f" article {number}"
                yield number, text.value(place)
                if text.peek() != "]":
                    text.take(",", f" after{place}")
            text.take("]", "")
        if text.peek() != "}":
            text.take(",", "")
    text.take("}", "")
    if not found:
        hint = "; for one object per line give format='jsonl'" if text.peek() else ""
        raise UserError(f'{source.name}: not a SQuAD file: it has no "data" list{hint}')
    if text.peek():
        raise UserError(f"{source.name}: text after the end of the JSON object")


def _paragraphs(source: Source) -> Iterator[tuple[str, str, dict[str, Any]] | UserError]:
    """The paragraphs of a SQuAD file that have a context, with their place and their article's title."""
    for number, article in _articles(source):
        where = f"{source.name} article {number}"
        paragraphs = article.get("paragraphs") if isinstance(article, dict) else None
        if not isinstance(paragraphs, list):
            yield UserError(f"{where}: no list 'paragraphs'")
            continue
        for place, paragraph in enumerate(paragraphs, start=1):
            if not isinstance(paragraph, dict) or not isinstance(paragraph.get("context"), str):
                yield UserError(f"{where} paragraph {place}: no text 'context'")
            else:
                yield f"{where} paragraph {place}", str(article.get("title", "")), paragraph


def read_contexts(source: Source, options: Options) -> Rows:
    """The texts of a SQuAD file, each once."""
    seen = set[int]()  # hashes: the texts themselves would fill the memory
    for found in _paragraphs(source):
        if isinstance(found, UserError):
            yield found
            continue
        where, _, paragraph = found
        context = paragraph["context"]
        if hash(context) not in seen:
            seen.add(hash(context))
            yield UserError(f"{where}: {HALF}") if half_character(context) else Record({"text": context}, where)


def read_squad(source: Source, options: Options) -> Rows:
    """The questions of a SQuAD 1.1 or 2.0 file, an article at a time."""
    need_columns(["id", "title", "context", "question", "answers", "impossible"], options, source.name)
    for found in _paragraphs(source):
        if isinstance(found, UserError):
            yield found
            continue
        place, title, paragraph = found
        questions = paragraph.get("qas")
        if not isinstance(questions, list):
            yield UserError(f"{place}: no list 'qas'")
            continue
        for count, entry in enumerate(questions, start=1):
            where = f"{place} question {count}"
            try:
                values = _question(entry, title, paragraph["context"])
            except UserError as error:
                yield UserError(f"{where}: {error}")
                continue
            where = f"{place.partition(' paragraph ')[0]} question {shown(values['id'])}"
            yield UserError(f"{where}: {HALF}") if half_character(values) else Record(values, where)


def _question(entry: Any, title: str, context: str) -> dict[str, Any]:
    """One entry of 'qas' as the values of a record."""

    def field(holder: Any, name: str, kind: type, words: str) -> Any:
        value = holder.get(name) if isinstance(holder, dict) else None
        if not isinstance(value, kind) or isinstance(value, bool) and kind is not bool:
            raise UserError(f"no {words} {name!r}")
        return value

    if isinstance(entry, dict) and isinstance(entry.get("id"), int):
        entry = {**entry, "id": str(entry["id"])}
    values = {
        "id": field(entry, "id", str, "text"),
        "title": title,
        "context": context,
        "question": field(entry, "question", str, "text"),
    }
    if "answers" not in entry:  # nobody knows them: a question to be asked, not to learn by
        return values
    return {
        **values,
        "answers": [
            {"text": field(answer, "text", str, "text"), "start": field(answer, "answer_start", int, "number")}
            for answer in field(entry, "answers", list, "list")
        ],
        "impossible": field({"is_impossible": False, **entry}, "is_impossible", bool, "true or false"),
    }

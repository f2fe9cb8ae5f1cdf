"""SQuAD 1.1 and 2.0: questions about texts with answers inside them, read an article at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from weft.errors import UserError, shown
from weft.text.json_text import HALF, JsonText, half_character
from weft.text.rows import Options, Record, Rows, need_columns
from weft.text.sources import TextSource


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


def _paragraphs(source: TextSource) -> Iterator[tuple[str, str, dict[str, Any]] | UserError]:
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


def read_contexts(source: TextSource, options: Options) -> Rows:
    """The texts of a SQuAD file, each once."""
    seen = set[int]()  # hashes: the texts themselves would fill the memory
    for item in _paragraphs(source):
        if isinstance(item, UserError):
            yield item
            continue
        where, _, paragraph = item
        context = paragraph["context"]
        if hash(context) not in seen:
            seen.add(hash(context))
            yield UserError(f"{where}: {HALF}") if half_character(context) else Record({"text": context}, where)


def read_squad(source: TextSource, options: Options) -> Rows:
    """The questions of a SQuAD 1.1 or 2.0 file, an article at a time."""
    need_columns(["id", "title", "context", "question", "answers", "impossible"], options, source.name)
    for item in _paragraphs(source):
        if isinstance(item, UserError):
            yield item
            continue
        place, title, paragraph = item
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

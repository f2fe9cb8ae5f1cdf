"""Labels of one or two marked spans in their context: word in context (WiC), coreference (WSC), relations of entities.

A span is marked in the text itself, as `[[ bank ]]`, and a second one as `{{ it }}` (entity markers: Soares et al.,
2019; with signs that every vocabulary has: Zhou and Chen, 2022). So any network that labels texts can learn it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from weft.data.columns import list_in, text_in, value_in, wrong_cell
from weft.errors import UserError, shown
from weft.tasks.base import Example
from weft.tasks.classify import TextTask
from weft.text.records import Record
from weft.text.tables import PAIRS, folded
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.windows import Framing, TextWindow, words_in

MARKS = (("[[", "]]"), ("{{", "}}"))  # around the first span, and around the second
MARKED = re.compile(r"\[\[(.*?)\]\]|\{\{(.*?)\}\}", re.DOTALL)
TWO = ("start1", "end1", "start2", "end2")  # of WiC: characters of a word in each of two texts
WSC = ("span1_index", "span1_text", "span2_index", "span2_text")  # words of one text
Span = tuple[int, int]


def marked(text: str, spans: Mapping[int, Span], where: str) -> str:
    """The text with marks around its spans, by characters: 0, the first one, and 1, the second one."""
    parts, before = list[str](), 0
    for number, (start, end) in sorted(spans.items(), key=lambda item: item[1]):
        if not 0 <= start < end <= len(text):
            raise UserError(
                f"{where}: span {number + 1}, {start} to {end}, is outside its text of {len(text)} characters"
            )
        if not text[start:end].strip():
            raise UserError(f"{where}: span {number + 1}, {start} to {end}, holds no text")
        if start < before:
            raise UserError(f"{where}: the two spans overlap")
        opening, closing = MARKS[number]
        parts += [_plain(text[before:start]), f"{opening} {_plain(text[start:end]).strip()} {closing}"]
        before = end
    return "".join([*parts, _plain(text[before:])])


def _plain(text: str) -> str:
    """A text without signs that would be taken for marks, or for a part of those beside it."""
    apart = re.sub(r"\[(?=\[|$)|\](?=\])|\{(?=\{|$)|\}(?=\})", lambda sign: f"{sign[0]} ", text)
    return f" {apart}" if apart[:1] in ("]", "}") else apart


def check_marks(text: str, where: str = "") -> str:
    """A text with marks in it, spelled as the network reads them."""
    matches = list(MARKED.finditer(text))
    rest = MARKED.sub("", text)
    if stray := next((mark for pair in MARKS for mark in pair if mark in rest), None):
        raise UserError(f"{where}a single {stray!r} in {shown(text)!r}: write [[...]] around a span")
    if not 1 <= len(matches) <= len(MARKS):
        number = f"{len(matches)} spans are marked, not one or two" if matches else "no span is marked"
        raise UserError(
            f"{where}{number}: {shown(text)!r}; write [[...]] around a span, {{{{...}}}} around a second one"
        )
    second = [match[2] is not None for match in matches]
    second = second if second != [False, False] else [False, True]  # two alike are taken in their order
    if second.count(False) != 1:
        raise UserError(f"{where}{{{{...}}}} is for a second span, beside one in [[...]]: {shown(text)!r}")
    for match in matches:
        if not (match[1] or match[2] or "").strip():
            raise UserError(f"{where}an empty span is marked: {shown(text)!r}")
    kinds = iter(second)

    def spelled(match: re.Match[str]) -> str:
        opening, closing = MARKS[next(kinds)]
        return f"{opening} {(match[1] or match[2] or '').strip()} {closing}"

    return MARKED.sub(spelled, text)


@dataclass(frozen=True)
class SpanTask(TextTask):
    """A label for the marked spans of a text."""

    name: str = "spans"

    expected = "a text with [[...]] around a span, a list of such texts, or a table with a column text"

    @classmethod
    def from_recipe(cls, work: Any, data: Any) -> SpanTask:
        cls.check_recipe(work)
        return cls(balanced=work.class_weights == "balanced", words=work.words)

    def input_columns(self, record: Record, given: Mapping[str, str]) -> tuple[str, ...]:
        there = {folded(name): name for name in reversed(tuple(record.values))}
        two = next((pair for pair in PAIRS if all(folded(name) in there for name in pair)), ())
        if "text" not in given and two and all(name in there for name in TWO):
            return (*(there[folded(name)] for name in two), *(there[name] for name in TWO))
        if all(folded(name) in there for name in WSC):
            return ("text", *(there[folded(name)] for name in WSC))
        return ("text", "spans") if "spans" in given or "spans" in there else ("text",)

    def read_input(self, record: Record, columns: Mapping[str, str]) -> Example:
        return Example((_marked_text(record, columns),), None, record.where)

    def row_input(self, record: Record, columns: Mapping[str, str]) -> Any:
        return self.read_input(record, columns).texts[0]

    def check_input(self, where: str, value: Any) -> tuple[str, ...]:
        return tuple(check_marks(text, where) for text in super().check_input(where, value))

    def windows_of(
        self, texts: Sequence[tuple[str, ...]], tokenizer: Tokenizer, windows: Framing
    ) -> Iterator[tuple[list[TextWindow], tuple[int, ...]]]:
        """Of a long text only the windows with a mark in them."""
        marks = _mark_tokens(tokenizer)
        for pieces, lengths in super().windows_of(texts, tokenizer, windows):
            holding = [piece for piece in pieces if any(_holds(piece.tokens, mark) for mark in marks)]
            yield holding or pieces, lengths

    def word_spans(self, example: Example) -> list[Sequence[Span]]:
        """The words beside the marks, which stay as they are."""
        marks = "".join(mark for pair in MARKS for mark in pair)
        return [[span for span in words_in(text) if text[slice(*span)] not in marks] for text in example.texts]

    def sample_input(self, texts: Sequence[str], tokenizer: Any) -> Any:
        first, *rest = re.sub(r"[\[\]{}]", " ", texts[0]).split() or ["a"]
        return check_marks(" ".join([f"[[{first}]]", *rest]))


@lru_cache(maxsize=8)
def _mark_tokens(tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """The tokens of what opens a span, between two words."""
    plain, *others = tokenizer.ids(["a b", *(f"a {opening} b" for opening, _ in MARKS)], specials=False)
    marks = list[tuple[int, ...]]()
    for tokens in others:
        same = 0
        while same < len(plain) and tokens[: same + 1] == plain[: same + 1]:
            same += 1
        marks.append(tuple(tokens[same : len(tokens) - (len(plain) - same)]))
    return tuple(tokens for tokens in marks if tokens)


def _holds(tokens: Sequence[int], part: tuple[int, ...]) -> bool:
    size = len(part)
    return any(tuple(tokens[place : place + size]) == part for place in range(len(tokens) - size + 1))


def _marked_text(record: Record, columns: Mapping[str, str]) -> str:
    """The text of a row with its spans marked, by the columns that it has."""
    texts = [name for name in columns if name not in (*TWO, *WSC, "spans", "label")]
    if "spans" not in columns and len(columns) - ("label" in columns) == len(texts):
        return check_marks(text_in(record, columns[texts[0]]), f"{record.where}: ")
    if all(name in columns for name in TWO):
        parts = [text_in(record, columns[name]) for name in texts]
        ends = [_whole(record, columns[name]) for name in TWO]
        spans = ((ends[0], ends[1]), (ends[2], ends[3]))
        sides = (marked(text, {n: span}, record.where) for n, (text, span) in enumerate(zip(parts, spans, strict=True)))
        return " ".join(sides)
    text = text_in(record, columns[texts[0]])
    if "spans" in columns:
        return marked(text, dict(enumerate(_spans(record, columns["spans"]))), record.where)
    values = {name: value_in(record, columns[name]) for name in WSC}
    return marked(text, {n: _words_at(text, values, n + 1, record.where) for n in (0, 1)}, record.where)


def _whole(record: Record, column: str) -> int:
    value = value_in(record, column)
    if isinstance(value, bool) or not re.fullmatch(r"\d{1,9}", str(value).strip()):
        raise wrong_cell(record, column, f"holds {shown(str(value))!r}, not the number of a character")
    return int(value)


def _spans(record: Record, column: str) -> list[Span]:
    """One or two spans: [start, end], {"start": ..., "end": ...}, or a list of them."""
    value = list_in(record, column)
    entries = value if isinstance(value, list) and value and not isinstance(value[0], int) else [value]
    spans = list[Span]()
    for entry in entries:
        ends = [entry.get("start"), entry.get("end")] if isinstance(entry, dict) else entry
        if not isinstance(ends, list) or len(ends) != 2 or not all(type(end) is int for end in ends):
            raise wrong_cell(record, column, f"holds no span, [start, end]: {shown(str(entry))}")
        spans.append((ends[0], ends[1]))
    if not 1 <= len(spans) <= len(MARKS):
        raise wrong_cell(record, column, f"holds {len(spans)} spans, not one or two")
    return spans


def _words_at(text: str, values: Mapping[str, Any], number: int, where: str) -> Span:
    """A span of WSC: the number of its first word, from 0, and its text."""
    index, words = values.get(f"span{number}_index"), values.get(f"span{number}_text")
    if isinstance(index, str) and index.strip().isdecimal():
        index = int(index)
    if type(index) is not int or not isinstance(words, str) or not words.strip():
        raise UserError(f"{where}: no span{number}_text with its span{number}_index")
    starts = [match.start() for match in re.finditer(r"\S+", text)]
    if not 0 <= index < len(starts):
        raise UserError(f"{where}: span {number}, word {index}, is outside its text of {len(starts)} words")
    wanted, whole = words.strip().casefold(), text.casefold() if len(text.casefold()) == len(text) else text
    # Some rows of the published files count a word too many or too few.
    places = [starts[near] for near in (index, index - 1, index + 1) if 0 <= near < len(starts)]
    start = next((place for place in places if whole.startswith(wanted, place)), whole.find(wanted, starts[index]))
    if start < 0:
        there = text[starts[index] :][: len(wanted)]
        raise UserError(f"{where}: span {number}, {shown(words)!r}, is not at word {index}: there is {shown(there)!r}")
    return start, start + len(wanted)

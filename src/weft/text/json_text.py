"""JSON texts of any size, read value by value."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, cast

from weft.errors import UserError, shown
from weft.files import JSON_VALUES, check_json_values
from weft.text.rows import too_long
from weft.text.sources import CHUNK, LIMIT, TextSource, read_pieces

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
            words = (
                f"{shown(following)!r} where {character!r} is expected" if following else "ends too early: cut short"
            )
            raise UserError(f"{self.source.name}{place}: {words}")
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
            check_json_values(self.text, f"{self.source.name}{place}", JSON_VALUES)


def json_words(error: Exception) -> str:
    """What is wrong with a JSON text; Python raises three kinds of errors for it."""
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON: {error.msg[0].lower()}{error.msg[1:]}"
    return "nested too deeply" if isinstance(error, RecursionError) else f"not JSON: {shown(str(error), 120)}"


def half_character(values: Any) -> bool:
    r"""Whether a string holds half of a surrogate pair (JSON can spell one, '\ud83d'): no tokenizer takes that."""
    try:
        json.dumps(values, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


HALF = "holds half a surrogate pair, which is no character"

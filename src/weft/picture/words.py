"""Words in pages and charts: escaped, measured, and wrapped or truncated to their room."""

from __future__ import annotations

import html
import re
import unicodedata
from itertools import accumulate

FONT, LETTER = 13, 7.2  # pixels: height of the letters and, near enough, width of one
UNFIT = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")  # no XML or HTML may hold these


def safe(text: str) -> str:
    """Words from outside, fit for the text and the attributes of HTML and SVG."""
    return html.escape(UNFIT.sub(lambda match: repr(match[0])[1:-1], text))


def wide(text: str) -> float:
    """About how many pixels the text takes; Chinese and Japanese characters are twice as wide, capitals a third."""
    return LETTER * sum(
        2 if unicodedata.east_asian_width(c) in "WF" else 1.35 if c.isupper() or c in "mw%@" else 1 for c in text
    )


def words(x: float, y: float, text: str, room: float, more: str = "") -> str:
    """Text in a chart, cut where it would run out of its room; the mouse then shows the whole."""
    cut, tip = text, ""
    if wide(text) > room:
        kept = sum(width <= room - LETTER for width in accumulate(map(wide, text)))
        cut, tip = text[:kept] + "…", f"<title>{safe(text)}</title>"
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{tip}{safe(cut)}</text>'


def wrapped(text: str, room: float, max_lines: int) -> list[str]:
    """The text in up to `max_lines` lines that fit the room, broken at spaces where possible."""
    lines, rest = list[str](), " ".join(text.split())
    while rest and len(lines) < max_lines - 1 and wide(rest) > room:
        kept = max(1, sum(width <= room for width in accumulate(map(wide, rest))))
        space = rest.rfind(" ", 1, kept + 1)
        end = space if space > kept // 3 else kept
        lines.append(rest[:end])
        rest = rest[end:].lstrip()
    return [*lines, rest]

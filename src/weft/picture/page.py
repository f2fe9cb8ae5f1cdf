"""Tables, texts and whole documents: HTML that stands alone, runs nothing and fetches nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from weft.picture.charts import DARK, LIGHT
from weft.picture.words import safe

LONG = 40  # characters, above which the text of a cell wraps
WIDE = 8  # columns, above which a table is set in smaller letters
NUMBER = re.compile(r"[-+−]?[\d.,:]*\d(e[-+]?\d+)?( ?[^\d\s]{1,12})?( ?± ?[\d.]+)?", re.IGNORECASE)  # 1.2, 12k, 3 ms
BLANK = {"", "-", "–", "—", "?", "nan", "inf", "-inf"}

STYLE = """
:root { color-scheme: light dark; --ground: #fff; --ink: #1c2126; --rule: #d5dade; LIGHT }
@media (prefers-color-scheme: dark) { :root { --ground: #15181c; --ink: #e4e8ec; --rule: #3a4149; DARK } }
body { margin: 0 auto; padding: 1rem; max-width: 60rem; background: var(--ground); color: var(--ink);
  font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.2; } h2 { font-size: 1.2rem; margin: 0.5rem 0 0; }
section { margin: 1rem 0; overflow-x: auto; }
figure { margin: 0; } figcaption { font-weight: bold; margin: 0.3rem 0; }
svg { display: block; height: auto; } circle:hover { fill-opacity: 1; }
svg.wide, svg.narrow { width: 100%; } svg.narrow { display: none; }
@media (max-width: 40rem) { svg.wide { display: none; } svg.narrow { display: block; } }
.legend { display: flex; flex-wrap: wrap; gap: 0.2rem 1rem; margin: 0.3rem 0; padding: 0; list-style: none;
  font-size: 0.85rem; } .legend svg { display: inline-block; }
.bars { margin: 0; padding: 0; list-style: none; font-size: 0.85rem; } .axis { margin: 0; font-size: 0.85rem; }
.bars li { display: grid; grid-template-columns: 14rem 1fr 8rem; gap: 0 0.6rem; align-items: center; margin: 0.4rem 0; }
@media (max-width: 40rem) { .bars li { grid-template-columns: 1fr 6rem; } .bars .name { grid-column: 1 / -1; } }
.track { position: relative; height: 1.1rem; } .fill { position: absolute; inset: 0 auto 0 0;
  background: var(--line-0); } .faint { opacity: 0.45; }
.interval { position: absolute; top: 0.5rem; height: 2px; background: var(--ink); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 0.3rem 0.8rem; border-bottom: 1px solid var(--rule); text-align: left; white-space: nowrap; }
.many { font-size: 0.8rem; } .many th, .many td { padding: 0.25rem 0.4rem; }
@media (max-width: 40rem) { table { font-size: 0.85rem; } th, td { padding: 0.25rem 0.4rem; }
  td:not(.number) { white-space: normal; overflow-wrap: break-word; } }
.number { text-align: right; } td.long { white-space: normal; overflow-wrap: anywhere; min-width: 14rem; }
@media (max-width: 40rem) { td.long { min-width: 5rem; } }
pre { white-space: pre-wrap; padding: 0.6rem 0.8rem; border: 1px solid var(--rule); margin: 0.3rem 0 1rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0 0.8rem; margin: 0.5rem 0;
  border-bottom: 1px solid var(--rule); padding-bottom: 0.5rem; }
dt { font-weight: bold; } dd { margin: 0; white-space: pre-wrap; min-width: 0; }
dt.long, dd.long { grid-column: 1 / -1; }
"""


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """An HTML table, columns of numbers to the right; one that is too wide scrolls by itself."""
    assert all(len(row) == len(header) for row in rows), "a row has not as many cells as the header"

    def side(column: int) -> str:
        cells = [row[column].strip() for row in rows if row[column].strip().lower() not in BLANK]
        return ' class="number"' if cells and all(NUMBER.fullmatch(cell) for cell in cells) else ""

    def cell(text: str, side: str) -> str:
        return f"<td{side or long}>{safe(text)}</td>" if len(text) > LONG else f"<td{side}>{safe(text)}</td>"

    sides, long = [side(column) for column in range(len(header))], ' class="long"'
    head = "".join(f'<th scope="col"{side}>{safe(name)}</th>' for side, name in zip(sides, header, strict=True))
    body = ["<tr>" + "".join(map(cell, row, sides)) + "</tr>" for row in rows] or [
        f'<tr><td colspan="{max(1, len(header))}">nothing yet</td></tr>'
    ]
    content = f"<thead><tr>{head}</tr></thead>\n<tbody>\n" + "\n".join(body) + "\n</tbody>"
    many = ' class="many"' if len(header) > WIDE else ""
    # The tab key reaches what scrolls.
    return f'<div class="scroll" tabindex="0"><table{many}>\n{content}\n</table></div>'


def paragraph(text: str) -> str:
    """A paragraph of plain words."""
    return f"<p>{safe(text)}</p>"


def verbatim(text: str) -> str:
    """Text as it stands, line by line."""
    return f"<pre>{safe(text)}</pre>"


def entries(values: Mapping[str, str]) -> str:
    """Names with their texts, whole and wrapped, as of one mistake of a model."""

    def entry(name: str, text: str) -> str:
        long = ' class="long"' if len(text) > LONG or "\n" in text else ""
        return f"<dt{long}>{safe(name)}</dt><dd{long}>{safe(text)}</dd>"

    return f"<dl>{''.join(entry(*pair) for pair in values.items())}</dl>"


def heading(text: str) -> str:
    """The heading of a part of a page."""
    return f"<h2>{safe(text)}</h2>"


def page(title: str, parts: Sequence[str], intro: str = "") -> str:
    """One whole HTML document; `parts` are what the other functions here return, and are not escaped again."""
    style = STYLE
    for name, colors in (("LIGHT", LIGHT), ("DARK", DARK)):
        style = style.replace(name, " ".join(f"--line-{place}: {color};" for place, color in enumerate(colors)))
    body = [f"<h1>{safe(title)}</h1>", *(f"<section>{part}</section>" for part in parts)]
    if intro:
        body.insert(1, paragraph(intro))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\"/>\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>\n'
        f"<title>{safe(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )

"""Where the sentences of a text begin and end, and tokenized corpora back into text as people write it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

# A run of stops is looked at once, from its first and without going back: a text of a million dots takes no longer
# than any other.
SENTENCE_END = re.compile(r"(?<![.!?])[.!?]++[\"'”’)\]]*+\s+|\n+")


def sentence_spans(text: str) -> Iterator[tuple[int, int]]:
    """Where each sentence lies, the space after it included: the spans follow each other without a gap."""
    begin = 0
    for match in SENTENCE_END.finditer(text):
        yield begin, match.end()
        begin = match.end()
    if begin < len(text):
        yield begin, len(text)


def sentences(text: str) -> list[str]:
    """A text cut after each sentence: at a full stop and the like before a space, and at line ends."""
    return [text[begin:end] for begin, end in sentence_spans(text)]


def lead(text: str, count: int = 3) -> str:
    """The first sentences of a text: a summary that costs nothing, and the one to beat in news."""
    for begin, end in sentence_spans(text if count > 0 else ""):
        count -= not text[begin:end].isspace()
        if not count:
            return text[:end].strip()
    return text.strip() if count > 0 else ""


Rule = tuple[re.Pattern[str], str]


def _rules(*rules: tuple[str, str]) -> tuple[Rule, ...]:
    return tuple((re.compile(pattern), by) for pattern, by in rules)


# Runs of spaces are looked at once, from their first and without going back: a line of nothing but spaces is no trap.
SPACING = _rules(
    (r"(?<! ) ++(?=[,.;:!?](?:[\s\"')\]]|$))", ""),  # not before '...' or '.45'
    (r"(?<=[(\[{]) ++", ""),
    (r"(?<! ) ++(?=[)\]}])", ""),
    (r"(?<=\w) ++(?='(?:s|t|re|ve|ll|d|m)\b)", ""),
    (r"(?<=[sS]) ++(?='(?: |$))", ""),  # the students ' books
    (r"(?<=[\dN]) ++(?=%)", ""),
    (r"(?<=[$£€#]) ++(?=[\dN])", ""),
)
WIKITEXT = _rules((r" @([-,.])@ ", r"\1"), (r"(?<=\d) – (?=\d)", "–"), (r"(?<=\d) ++(?=[°′″])", "")) + SPACING
TWO_IN_ONE = r"can(?= not\b)|gon(?= na\b)|wan(?= na\b)|got(?= ta\b)|gim(?= me\b)|lem(?= me\b)"
PTB = (
    _rules(
        (r"``|''", '"'),
        (r"-(?:lrb|LRB)-", "("),
        (r"-(?:rrb|RRB)-", ")"),
        (r"\\(?=[/*])", ""),
        (r"(?<=\w) ++(?=n't\b)", ""),
        (rf"(?i)\b({TWO_IN_ONE}) ", r"\1"),
    )
    + SPACING
)


def wikitext(text: str) -> str:
    """WikiText: `guest @-@ starring`, `2 @,@ 500`, `= = Career = =`, and space around every sign."""
    return "\n".join(_heading(_applied(line, WIKITEXT)) for line in text.split("\n"))


def ptb(text: str) -> str:
    """Penn Treebank: `do n't`, `the company 's`, `$ N`, `N %`, `` `` quoted '' ``, `-lrb-`."""
    return "\n".join(_applied(line, PTB) for line in text.split("\n"))


DETOKENIZERS: dict[str, Callable[[str], str]] = {"wikitext": wikitext, "ptb": ptb}


def _applied(line: str, rules: Sequence[Rule]) -> str:
    """The line when no rule finds anything more: each takes something out, so there is an end."""
    before = None
    while line != before:
        before = line
        for pattern, by in rules:
            line = pattern.sub(by, line)
        parts = line.strip(" ").split('"')
        for number in range(1, len(parts) - 1, 2):  # between an opening quote and its closing one
            parts[number] = parts[number].strip(" ")
        line = '"'.join(parts)
    return line


def _heading(line: str) -> str:
    """`= = Career = =` as Wikipedia writes it."""
    words = line.split(" ")
    first = next((number for number, word in enumerate(words) if word != "="), 0)
    last = next((number for number, word in enumerate(reversed(words)) if word != "="), 0)
    if first != last or first < 2:
        return line
    return " ".join(("=" * first, *words[first:-last], "=" * last))

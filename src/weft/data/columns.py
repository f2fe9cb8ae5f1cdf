"""Which column of a table is which: by the names that people give them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from weft.errors import UserError, did_you_mean, listed, shown
from weft.text.records import Record

# What people call the columns, likeliest first; a pair's two names belong together.
NAMES = {
    "text": (
        *("text", "sentence", "review", "content", "message", "comment", "document", "body", "question"),
        *("caption", "description"),
    ),
    "vector": ("vector", "features", "embedding", "numbers"),
    "label": ("label", "class", "category", "sentiment", "intent", "target", "topic"),
    "labels": ("labels", "label", "tags", "classes", "categories"),
    "value": ("value", "score", "rating", "label", "target", "stars"),
    "context": ("context", "paragraph", "passage", "document"),
    "question": ("question", "query"),
    "answer": ("answer", "answers", "answer_text"),
    "words": ("words", "tokens"),
    "tags": ("tags", "ner_tags", "pos_tags", "labels"),
    "spans": ("spans", "entities"),
}
PAIRS = (
    ("text", "pair"),
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("text1", "text2"),
    ("#1 String", "#2 String"),
    ("query", "passage"),
    ("query", "text"),
    ("question", "sentence"),
    ("question", "context"),
)
# What is read and what is written from it, in small letters; columns named by two languages are known too.
PAIRED = (
    ("source", "target"),
    ("src", "tgt"),
    ("src", "trg"),
    ("article", "summary"),
    ("article", "highlights"),
    ("document", "summary"),
    ("dialogue", "summary"),
    ("text", "summary"),
    ("input", "output"),
    ("text", "paraphrase"),
    ("sentence", "paraphrase"),
)
LANGUAGES = (
    *("english", "german", "french", "spanish", "italian", "portuguese", "dutch", "danish", "swedish", "norwegian"),
    *("finnish", "polish", "czech", "russian", "ukrainian", "greek", "turkish", "arabic", "hebrew", "hindi", "chinese"),
    *("japanese", "korean", "vietnamese", "indonesian", "romanian", "hungarian", "latin", "esperanto"),
)
OURS = (*NAMES, "pair", "source", "target")  # what tasks call columns


def file_of(where: str) -> str:
    """'reviews.csv line 12' -> 'reviews.csv'."""
    return re.sub(r" (line|row) \d+$| article \d+( (paragraph|question) .*)?$", "", where)


def find_columns(needed: Sequence[str], given: Mapping[str, str], record: Record) -> dict[str, str]:
    """What the file calls each column that a task needs; common names are known."""
    there = list(record.values)
    found: dict[str, str] = {}
    if "pair" in needed and "pair" not in given and "text" not in given:
        both = next((names for names in PAIRS if set(names) <= set(there)), None)
        found |= dict(zip(("text", "pair"), both, strict=True)) if both else {}
    if "target" in needed and "source" not in given and "target" not in given:
        both = paired_columns(there)
        found |= dict(zip(("source", "target"), both, strict=True)) if both else {}
    for name in needed:
        if name in given:
            if given[name] not in there:
                raise _no_column(given[name], there, record, did_you_mean(given[name], there))
            found[name] = given[name]
        elif name not in found:
            folded = {each.casefold(): each for each in reversed(there)}
            sought = [each if each in there else folded.get(each.casefold(), "") for each in NAMES.get(name, (name,))]
            known = [each for each in sought if each and each not in found.values()]
            if not known:
                bare = "; of a file without a header line: --names source,target" if "target" in needed else ""
                raise _no_column(name, there, record, f"; say which it is: --column {name}=NAME{bare}")
            found[name] = known[0]
    return found


def paired_columns(there: Sequence[str]) -> tuple[str, str] | None:
    """The columns of what is read and what is written, by the names that people give them; None: not to be told."""
    folded = {name.casefold().strip(): name for name in there}
    for names in PAIRED:
        if set(names) <= set(folded):
            return folded[names[0]], folded[names[1]]
    codes = [name for name in there if re.fullmatch(r"[a-z]{2}([_-][A-Za-z]{2,4})?", name)]
    languages = codes if len(codes) == 2 else [name for name in there if name.casefold() in LANGUAGES]
    return (languages[0], languages[1]) if len(languages) == 2 else None


def _no_column(name: str, there: Sequence[str], record: Record, hint: str) -> UserError:
    has = listed([shown(each) for each in there], 12)
    return UserError(f"{file_of(record.where)}: no column {shown(name)!r}; it has {has}{hint}")

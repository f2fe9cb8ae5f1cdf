"""What people call the columns of a table, and when two names are the same."""

from __future__ import annotations

import re
from functools import lru_cache

# What people call the columns, likeliest first; a pair's two names belong together.
NAMES = {
    "text": (
        *("text", "sentence", "review", "content", "message", "comment", "document", "body", "question"),
        *("caption", "description", "tweet", "utterance", "feedback", "abstract"),
    ),
    "vector": ("vector", "features", "embedding", "numbers"),
    "label": ("label", "class", "category", "sentiment", "intent", "target", "topic", "emotion"),
    "labels": ("labels", "label", "tags", "classes", "categories"),
    "value": ("value", "score", "rating", "label", "target", "stars"),
    "context": ("context", "paragraph", "passage", "document"),
    "question": ("question", "query"),
    "answer": ("answer", "answers", "answer_text"),
    "words": ("words", "tokens"),
    "tags": ("tags", "ner_tags", "pos_tags", "labels"),
    "spans": ("spans", "entities", "label", "labels"),
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
    *("deutsch", "français", "francais", "español", "espanol", "italiano", "português", "nederlands", "polski"),
)
OURS = (*NAMES, "pair", "source", "target")  # what tasks call columns
IDS = ("id", "ids", "index", "idx", "uid", "uuid", "guid", "key", "nr", "no", "number", "column1", "rowid")


@lru_cache(maxsize=1 << 17)
def folded(name: str) -> str:
    """A name without case, spaces, underscores and hyphens: 'Ticket Text' is 'ticket_text' is 'TicketText'."""
    return re.sub(r"[\s_.\-]+", "", name.casefold())


def words_of(name: str) -> list[str]:
    """The words of a name: 'Category ID', 'review_text', 'ticketText'."""
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)
    return [word for word in re.split(r"[\W_]+", apart.casefold()) if word]


USUAL = {folded(name) for names in NAMES.values() for name in names} | {
    folded(name) for pair in (*PAIRS, *PAIRED) for name in pair
}


def known_name(name: str) -> str:
    """What a name stands for where people use it for columns: 'id', 'usual', or nothing where it is any word."""
    if folded(name) in IDS or "id" in words_of(name)[-1:]:
        return "id"
    words = words_of(name)
    known = folded(name) in USUAL or (len(words) <= 3 and any(word in USUAL for word in words[-1:]))
    return "usual" if known else ""

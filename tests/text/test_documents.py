"""What a document of a text file is, found by looking at it."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.training.small import stories
from weft.data.shards import TextFiles
from weft.text.records import LOOKED_AT, document_kinds, documents_of, read_texts

PARAGRAPHS = stories(40).splitlines()  # several sentences each
WORDS = [word.strip(".,") for word in " ".join(PARAGRAPHS).split()]


def wrapped(width: int) -> list[str]:
    return [textwrap.fill(paragraph, width) for paragraph in PARAGRAPHS]


TEXTS = {
    "a book": ("\n\n".join(wrapped(72)), "block"),
    "a narrow book": ("\n\n\n".join(wrapped(40)), "block"),
    "a wrapped text without blank lines": ("\n".join(wrapped(72)), "file"),
    "a paragraph on each line": ("\n".join(PARAGRAPHS), "line"),
    "paragraphs with blank lines between": ("\n\n".join(PARAGRAPHS), "line"),
    "sentences": ("\n".join(s for p in PARAGRAPHS for s in p.split(". ")), "line"),
    "sentences, documents between blank lines": ("\n\n".join(p.replace(". ", ".\n") for p in PARAGRAPHS), "block"),
    "sentences without points": ("\n".join(s.strip(".") for p in PARAGRAPHS for s in p.split(". ")), "line"),
    "lines of seven words": ("\n".join(" ".join(WORDS[n : n + 7]) for n in range(0, 1400, 7)), "line"),
    "names": ("\n".join(["Ada", "Grace", "Jean", "Kathleen"] * 20), "line"),
    "one line again and again": ("the weaver sang of the old loom by the river\n" * 50, "line"),
    "one blank line too many": ("\n".join([*PARAGRAPHS * 2, "", *PARAGRAPHS * 2]), "line"),
    "verse": ("\n\n".join(["First Citizen:\nBefore we proceed any further, hear me speak."] * 9), "block"),
    "nothing": ("", "line"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_documents_are_found_by_looking(name: str, tmp_path: Path) -> None:
    text, wanted = TEXTS[name]
    assert documents_of([line.strip() for line in text.splitlines()]) == wanted
    path = tmp_path / "a.txt"
    path.write_text(text + "\n")
    assert document_kinds([path]) == {wanted}
    found = [document.text for document in read_texts(path, documents="auto")]
    assert found == [document.text for document in read_texts(path, documents=wanted)]


def test_a_long_file_is_read_whole(tmp_path: Path) -> None:
    book = "\n\n".join(wrapped(72) * (2 * LOOKED_AT // sum(map(len, PARAGRAPHS))))
    (tmp_path / "a.txt").write_text(book)
    found = [document.text for document in read_texts(tmp_path / "a.txt", documents="auto")]
    assert len(book) > 1.5 * LOOKED_AT and "\n\n".join(found) == book


def test_each_file_is_looked_at_for_itself(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(TEXTS["a book"][0])
    (tmp_path / "b.txt").write_text(TEXTS["a paragraph on each line"][0])
    a, b, both = (
        TextFiles(tuple(str(tmp_path / name) for name in names), documents="auto")
        for names in (["a.txt"], ["b.txt"], ["a.txt", "b.txt"])
    )
    kinds = [document_kinds(text.paths()) for text in (a, b, both)]
    assert kinds == [{"block"}, {"line"}, {"block", "line"}]
    assert len(list(both.read())) == 80
    # Found or given, the same documents are the same text to the cache.
    assert a.hash() == TextFiles(a.files, documents="block").hash() != TextFiles(a.files, documents="line").hash()

"""The data sets of `small_data.py`: rows to draw small training sets from, and fixed test rows."""

from __future__ import annotations

import json
import lzma
import random
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

Row = tuple[str, str]  # text, label
TEST = 2000  # test rows at most
POOL = 6000  # training rows at most to draw from
PARAGRAPH = 100  # characters; shorter paragraphs of Brown are headings and single exclamations


def _lines(path: Path) -> list[str]:
    with lzma.open(path, "rt", encoding="utf-8", newline="\n") as file:
        return file.read().split("\n")


def _member(data: Path, archive: str, name: str, encoding: str = "latin-1") -> str:
    with zipfile.ZipFile(data / "nltk" / f"{archive}.zip") as file:
        return file.read(f"{archive}/{name}").decode(encoding)


def _sst2(data: Path) -> tuple[list[Row], list[Row]]:
    def rows(name: str) -> list[Row]:
        cells = [line.split("\t") for line in _lines(data / "glue" / "sst2" / f"{name}.tsv.xz")[1:] if line]
        return [(text.strip(), label) for text, label in cells]

    return rows("train"), rows("dev")


def _imdb(data: Path) -> tuple[list[Row], list[Row]]:
    def rows(name: str) -> list[Row]:
        header, *lines = [line.split("\t") for line in _lines(data / "imdb" / f"{name}.tsv.xz") if line]
        text, label = header.index("text"), header.index("label")
        return [(cells[text], cells[label]) for cells in lines]

    return rows("train"), rows("test")


def _trec(data: Path) -> tuple[list[Row], list[Row]]:
    def rows(name: str) -> list[Row]:
        pairs = [line.split(" ", 1) for line in _member(data, "qc", name).split("\n") if line]
        return [(text.strip(), label.split(":")[0]) for label, text in pairs]

    return rows("train.txt"), rows("test.txt")


def _subjectivity(data: Path) -> tuple[list[Row], list[Row]]:
    rows = [
        (line.strip(), label)
        for name, label in (("plot.tok.gt9.5000", "objective"), ("quote.tok.gt9.5000", "subjective"))
        for line in _member(data, "subjectivity", name).split("\n")
        if line.strip()
    ]
    return _split(rows)


def _sms_spam(data: Path) -> tuple[list[Row], list[Row]]:
    cells = [line.split("\t", 1) for line in _lines(data / "sms_spam" / "sms.tsv.xz") if "\t" in line]
    return _split([(text, label) for label, text in cells])


def _brown(data: Path) -> tuple[list[Row], list[Row]]:
    """Paragraphs with the genre of their text; a text gives rows either to learn from or to test with."""
    genres = dict(line.split() for line in _member(data, "brown", "cats.txt").split("\n") if line)
    by_genre: dict[str, list[str]] = {}
    for name, genre in sorted(genres.items()):
        by_genre.setdefault(genre, []).append(name)
    train: list[Row] = []
    test: list[Row] = []
    for genre, names in by_genre.items():
        held_out = max(1, round(len(names) / 4))
        for place, name in enumerate(names):
            rows = [(text, genre) for text in _paragraphs(_member(data, "brown", name)) if len(text) >= PARAGRAPH]
            (test if place < held_out else train).extend(rows)
    return train, test


def _paragraphs(tagged: str) -> Iterator[str]:
    for block in tagged.split("\n\n\t"):
        words = [word.rsplit("/", 1)[0] for word in block.split()]
        if words:
            yield " ".join(words)


def _split(rows: list[Row]) -> tuple[list[Row], list[Row]]:
    rows = list(dict.fromkeys(rows))
    random.Random(0).shuffle(rows)
    size = min(TEST, len(rows) // 4)
    return rows[size:], rows[:size]


SETS: dict[str, Callable[[Path], tuple[list[Row], list[Row]]]] = {
    "sst2": _sst2,
    "trec": _trec,
    "sms_spam": _sms_spam,
    "subjectivity": _subjectivity,
    "imdb": _imdb,
    "brown": _brown,
}


def read(name: str, data: Path) -> tuple[list[Row], list[Row]]:
    """Rows to draw from and test rows, at most POOL and TEST of them."""
    train, test = SETS[name](data)
    known = set(train)
    test = [row for row in test if row not in known]
    for rows in (train, test):
        random.Random(1).shuffle(rows)
    return train[:POOL], test[:TEST]


def unpack(path: Path) -> dict[str, tuple[list[Row], list[Row]]]:
    with lzma.open(path, "rt", encoding="utf-8") as file:
        packed = json.load(file)
    return {name: ([(t, y) for t, y in train], [(t, y) for t, y in test]) for name, (train, test) in packed.items()}


def pack(path: Path, data: Path) -> None:
    """Write all sets into one file, for a machine that does not have the folder."""
    with lzma.open(path, "wt", encoding="utf-8", preset=4) as file:
        json.dump({name: read(name, data) for name in SETS}, file)

"""Pairs of made-up texts, and small models that have learned them by heart."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import weft
from tests.tasks.small import quiet
from weft.tasks.model import Model

SAYS = {
    **{"one": "eins", "two": "zwei", "three": "drei", "four": "vier", "five": "fünf", "six": "sechs"},
    **{"seven": "sieben", "eight": "acht", "nine": "neun", "red": "rot", "green": "grün", "blue": "blau"},
    **{"big": "groß", "small": "klein", "old": "alt", "new": "neu"},
    **{"cat": "Katze", "dog": "Hund", "cow": "Kuh", "fox": "Fuchs"},
}
SIZES = {"family": "transformer", "size": "1x64", "context": 48, "dropout": 0.0, "embedding_dropout": 0.0}
PLAN = {"steps": 70, "batch": 20, "learning_rate": 4e-3, "evaluate_every": 70, "warmup": 0.1}


def worded(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Words, and what they are called elsewhere, in the other order."""
    chance, found = random.Random(seed), dict[str, str]()
    while len(found) < count:
        words = [chance.choice(list(SAYS)) for _ in range(chance.randint(2, 6))]
        found[" ".join(words)] = " ".join(SAYS[word] for word in reversed(words))
    return list(found.items())


def write_table(path: Path, pairs: list[tuple[str, str]], header: str = "source\ttarget") -> Path:
    path.write_text(header + "\n" * bool(header) + "".join(f"{one}\t{two}\n" for one, two in pairs))
    return path


def write_sides(folder: Path, pairs: list[tuple[str, str]], name: str = "t") -> tuple[Path, Path]:
    """The same as two files that belong together line for line."""
    sides = folder / f"{name}.en", folder / f"{name}.de"
    for number, path in enumerate(sides):
        path.write_text("".join(pair[number] + "\n" for pair in pairs))
    return sides


def learned(folder: Path, out: Path | None = None, pairs: list[tuple[str, str]] | None = None, **more: Any) -> Model:
    """A small Transformer that has learned its pairs, and is judged by the same."""
    pairs = pairs or worded(20)
    data = write_table(folder / "rows.tsv", pairs)
    dev = write_table(folder / "again.tsv", pairs)
    settings: dict[str, Any] = {"tokenizer": {"kind": "word"}, "training": PLAN, "model": SIZES, "task": "translate"}
    return weft.finetune(data, dev=dev, out=out, **{"log": quiet, **settings, **more})

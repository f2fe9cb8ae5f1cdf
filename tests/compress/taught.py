"""Texts, teachers and students of the tests of distillation."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import weft
from tests.tasks.small import FILLERS, KINDS, NAMES, quiet
from weft.tasks.model import Model

TEACHER = {"family": "bert", "size": "2x64", "context": 32, "heads": 4, "weight_scale": 0.1}
TEACHER |= {"dropout": 0.0, "attention_dropout": 0.0}
TRAINING = {"steps": 60, "batch": 16, "learning_rate": 3e-3, "evaluate_every": 60, "warmup": 0.1}


def kinds_of(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Texts of some words, one of which names a thing of one of three kinds."""
    chance = random.Random(seed)
    found = []
    for number in range(count):
        kind = list(KINDS)[number % 3]
        words = [*chance.sample(FILLERS, 2), *chance.sample(NAMES, 2), chance.choice(KINDS[kind])]
        chance.shuffle(words)
        found.append({"text": " ".join(words), "label": kind})
    return found


def write_texts(path: Path, rows: list[dict[str, Any]]) -> Path:
    """The texts of rows, one on each line."""
    path.write_text("".join(f"{row['text']}\n" for row in rows))
    return path


def taught_by(teacher: Path | list[Path], student: Any = "1x64", steps: int = 30, **more: Any) -> Model:
    """A student after few steps; what a call says wins."""
    training = {"steps": steps, "batch": 16, "learning_rate": 2e-3, "threads": 1, **more.pop("training", {})}
    more.setdefault("log", quiet)
    names: Any = [str(each) for each in teacher] if isinstance(teacher, list) else teacher
    return weft.distill(names, student=student, training=training, **more)

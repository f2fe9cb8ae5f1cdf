"""Rows of made-up data for every task, and small models that the tests of tasks share."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import weft
from weft.checkpoint.card import Window
from weft.tasks.model import Model
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.tokenizers.training import learn

KINDS = {"stone": ["flint", "slate"], "animal": ["cat", "cow"], "plant": ["oak", "fern"]}
NAMES = ["Ada", "Bo", "Cleo", "Dan"]
CITIES = ["Rome", "Oslo", "Lima", "Bern"]
HOMES = ["Rome", "New York", "Lima", "Bad Ems"]  # answers of one word and of two
FILLERS = ["today", "there", "again", "now"]
TINY = {"family": "bert", "size": "1x64", "context": 64}


def quiet(_: str) -> None:
    """Says nothing."""


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Rows as a file of JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def kinds(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """A text names a thing of one of three kinds; one kind is rare."""
    chance = random.Random(seed)
    found = []
    for number in range(count):
        kind = "stone" if number % 6 == 0 else ("animal", "plant")[number % 2]
        found.append({"text": f"the {chance.choice(KINDS[kind])} is {chance.choice(FILLERS)}", "label": kind})
    return found


def several(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """A text names things of any number of kinds."""
    chance = random.Random(seed)
    found = []
    for _ in range(count):
        some = [kind for kind in KINDS if chance.random() < 0.5]
        words = " and ".join(chance.choice(KINDS[kind]) for kind in some) or "nothing"
        found.append({"text": f"{words} is {chance.choice(FILLERS)}", "labels": some})
    return found


PRICES = {"hut": 100_000.0, "house": 300_000.0, "castle": 900_000.0}


def prices(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """What a text names decides its value, which is large."""
    chance = random.Random(seed)
    names = list(PRICES)
    return [
        {"text": f"a {names[n % 3]} is {chance.choice(FILLERS)}", "value": PRICES[names[n % 3]]} for n in range(count)
    ]


def pairs(count: int, values: bool = False, seed: int = 0) -> list[dict[str, Any]]:
    """Whether, or by how much, the second of two texts is greater than the first."""
    chance = random.Random(seed)
    ones, others = {"mouse": 0, "horse": 1, "whale": 2}, {"ant": 0, "dog": 1, "squid": 2}
    found = []
    for number in range(count):
        one, two = list(ones)[number % 3], list(others)[number // 3 % 3]
        more = others[two] - ones[one]
        said = {"score": float(more)} if values else {"label": "greater" if more > 0 else "not"}
        found.append({"sentence1": f"the {one} is {chance.choice(FILLERS)}", "sentence2": f"a {two}", **said})
    return found


def sentences(count: int, seed: int = 0) -> list[list[tuple[str, str]]]:
    """Words with their tags: a name of one or two words goes to a city."""
    chance = random.Random(seed)
    found = []
    for number in range(count):
        name = [chance.choice(NAMES), "Smith"][: 1 + number % 2]
        words = [(word, f"{'BI'[place]}-PER") for place, word in enumerate(name)]
        words += [("goes", "O"), ("to", "O"), (chance.choice(CITIES), "B-LOC"), (chance.choice(FILLERS), "O")]
        found.append(words)
    return found


def write_conll(path: Path, found: list[list[tuple[str, str]]], first: bool = False) -> Path:
    """A word and its tag on each line; `first`: as IOB1 has it, where a span begins with I."""
    lines = [[f"{word} {tag.replace('B-', 'I-') if first else tag}" for word, tag in words] for words in found]
    path.write_text("\n\n".join("\n".join(some) for some in lines) + "\n")
    return path


def spanned(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """The same as raw text with stretches of characters."""
    found = []
    for words in sentences(count, seed):
        text, spans = "", []
        for word, tag in words:
            if tag.startswith("I-"):
                spans[-1]["end"] = len(text) + 1 + len(word)
            text += (" " if text else "") + word
            if tag.startswith("B-"):
                spans.append({"start": len(text) - len(word), "end": len(text), "label": tag[2:]})
        found.append({"text": text + ".", "spans": spans})
    return found


def questions(count: int, none: bool = False, seed: int = 0) -> list[dict[str, Any]]:
    """Where somebody lives, said in a context; with `none`, some contexts say nothing of it."""
    chance = random.Random(seed)
    found = []
    for number in range(count):
        one, two = chance.sample(NAMES, 2)
        here, there = chance.sample(HOMES, 2)
        context = f"{one} lives in {here} . {two} lives in {there} ."
        row = {"context": context, "question": f"where lives {one} ?", "answer": here}
        if none and number % 3 == 0:
            row |= {"context": f"{one} sings . {two} sings again .", "answer": ""}
        found.append(row)
    return found


# ------------------------------------------------------------------------------------------------------------ models

LINES = [row["text"] for row in kinds(12) + several(12) + prices(6) + spanned(24)] + [
    row["context"] + " " + row["question"] for row in questions(24)
]


def vocabulary(kind: str = "wordpiece") -> Tokenizer:
    return learn(LINES, kind, 300)


def model_for(
    task: str,
    outputs: int,
    tokenizer: Tokenizer,
    labels: tuple[str, ...] | None = None,
    family: str = "bert",
    length: int = 24,
    stride: int = 10,
    long: str = "windows",
) -> Model:
    """A model of a task whose weights are random and large, so that no two texts get the same scores."""
    head = {"tag": "tag", "answer": "answer"}.get(task, "classify")
    made = weft.new(family, tokenizer, size="1x64", settings={"context": 48}, heads={head: outputs}, seed=1)
    with torch.no_grad():
        for parameter in made.network.parameters():
            if parameter.dim() > 1:
                parameter.mul_(5)
    window = Window(length=length, stride=stride, long=long)  # type: ignore[arg-type]
    card = replace(made.card, task=task, labels=labels, window=window)
    return Model(replace(made.opened, card=card), task)


def tuned(data: Path, task: str, out: Path | None = None, **more: Any) -> Model:
    """A small BERT, fine-tuned until it knows the rows by heart, which is what it is judged by."""
    dev = data.with_stem(f"{data.stem}-again")
    dev.write_bytes(data.read_bytes())
    steps = more.pop("steps", 50)
    every = more.pop("every", steps)
    sizes = {**TINY, "heads": 4, "weight_scale": 0.1, "dropout": 0.0, "attention_dropout": 0.0}
    return weft.finetune(
        data,
        dev=dev,
        out=out,
        model=sizes,
        task=task,
        tokenizer={"size": 300},
        training={"steps": steps, "batch": 16, "learning_rate": 3e-3, "evaluate_every": every, "warmup": 0.1},
        log=quiet,
        **more,
    )

"""Small models with drawn weights, and their folders for CTranslate2."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Any

import torch

import weft
from weft.checkpoint.families import FAMILIES
from weft.exporters.export import write_ct2
from weft.tasks.model import Model
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.tokenizers.training import learn

WORDS = [
    "the",
    "cat",
    "sat",
    "on",
    "a",
    "mat",
    "again",
    "and",
    "while",
    "one",
    "old",
    "dog",
    "runs",
    "home",
    "now",
    "where",
    "is",
    "small",
    "fox",
    "today",
]


def texts(count: int, seed: int = 0) -> list[str]:
    chance = random.Random(seed)
    return [" ".join(chance.choice(WORDS) for _ in range(1 + number % 9)) for number in range(count)]


@cache
def tokenizer_for(family: str) -> Tokenizer:
    known = FAMILIES[family]
    size = 290 if known.tokenizer == "bpe" else 90
    return learn(texts(60), known.tokenizer, size, specials=known.specials, around=known.around)


def drawn(family: str, heads: dict[str, int | None] | None = None, *, seed: int = 3, **settings: Any) -> Model:
    """A model whose norms and biases are drawn too, so that a swapped one shows; tokens never written are unlikely."""
    scale = {} if family == "t5" else {"weight_scale": 0.15}
    usual = {"context": 48, **scale, **settings}
    model = weft.new(family, tokenizer_for(family), size="2x64", settings=usual, heads=heads, seed=seed)
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.network.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
        for layer in model.network.decoder or ():  # what is read decides what is written
            layer.cross.output.weight.mul_(8.0)
            layer.feedforward.down.weight.mul_(3.0)
        if model.opened.never:
            model.network.heads["words"].bias[list(model.opened.never)] = -30.0  # type: ignore[index, union-attr]
    return model


def carried(model: Model, folder: Path, precision: str = "fp32") -> Model:
    """The same model as CTranslate2 runs it."""
    folder.mkdir(parents=True)
    write_ct2(folder, model.opened, model.task, precision)
    return weft.load(folder)

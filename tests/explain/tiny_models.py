"""Small models that the tests of maps and plots share, made once."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

import weft
from weft.explain.bank_sentences import LABELED
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.tokenizers.training import learn

TEXTS = [text for text, _ in LABELED]


@lru_cache(maxsize=4)
def tokenizer(kind: str = "bpe") -> Tokenizer:
    return learn(TEXTS, kind, 300)


@lru_cache(maxsize=16)
def tiny(family: str, kind: str = "bpe", seed: int = 0, scale: float = 1.0, **settings: Any) -> weft.Model:
    """A model of one or two layers with random weights, made larger by `scale` so that its outputs differ."""
    usual = {"layers": 2, "width": 16, "heads": 2, "inner": 32, "context": 64}
    if family in ("rnn", "gru", "lstm"):
        usual = {"layers": 1, "width": 12, "context": 64}
    model = weft.new(family, tokenizer(kind), settings={**usual, **settings}, seed=seed)
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.mul_(scale)
    model.network.eval()
    return model


def saved(model: weft.Model, folder: Path) -> Path:
    model.save(folder)
    return folder

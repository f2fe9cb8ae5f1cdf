"""Small models with drawn weights for the tests of views: a family, a task and its head."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import weft
from tests.backends.engines import tokenizer_for
from weft.checkpoint.card import Window
from weft.tasks.model import Model
from weft.text.tokenizers.training import learn

LABELS = ("no", "so", "yes")
TAGS = ("O", "B-PER", "I-PER")
OUTPUTS = {"classify": len(LABELS), "tag": len(TAGS), "answer": 2}
SENTENCE = "the old cat sat on a small mat today"


@cache
def made(family: str, task: str, length: int | None = None, **settings: Any) -> Model:
    """A model of a task whose weights are random and large; `length`: tokens of its windows."""
    head = {"pair": "classify", "complete": "words", "fill": "words"}.get(task, task)
    heads = {head: OUTPUTS[head]} if head in OUTPUTS else None
    if family in ("vectors", "cnn", "mlp"):  # these have no layers
        tokenizer = learn([SENTENCE] * 3, "word", 40) if family == "vectors" else tokenizer_for(family)
        size, usual = None, {"width": 16, "weight_scale": 0.3}
    else:
        tokenizer, size, usual = tokenizer_for(family), "2x64", {"context": 48}
        usual |= {} if family == "t5" else {"weight_scale": 0.15}
        usual |= {} if family in ("rnn", "lstm", "gru") else {"heads": 4}
    model = weft.new(family, tokenizer, size=size, settings={**usual, **settings}, heads=heads, seed=3)
    labels = {"classify": LABELS, "tag": TAGS}.get(head)
    window = None if length is None else Window(length=length, stride=length // 2)
    card = replace(model.card, task=task, labels=labels, window=window or model.card.window)
    return Model(replace(model.opened, card=card), task)

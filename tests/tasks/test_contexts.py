"""The loss by the number of tokens before: what it is made of, place by place."""

from __future__ import annotations

import math
import random

import pytest
import torch

import weft
from weft.nn.rows import Ragged
from weft.tasks.perplexity import by_context, places_of
from weft.text.tokenizers.training import learn

TOKENS = 900  # of text, so that contexts of up to 256 are asked for


@pytest.mark.parametrize("family, settings, farthest", [("mlp", {"window": 5}, 5), ("gpt2", {"context": 20}, 20)])
def test_each_place_is_foreseen_from_the_tokens_before_it(family: str, settings: dict, farthest: int) -> None:
    """Up to what the model can see, which need not be one of the usual contexts."""
    tokenizer = learn(["abc abd bcd"], "character", 20)
    sizes = {"width": 64, "heads": 1, "layers": 1} if family == "gpt2" else {"width": 16, "inner": 32}
    opened = weft.new(family, tokenizer, settings={**sizes, **settings, "weight_scale": 0.3}, seed=1).opened
    chance = random.Random(0)
    tokens = [chance.choice(tokenizer.ids(["abcd "], specials=False)[0]) for _ in range(TOKENS)]
    found = by_context(opened, tokens)
    assert found.contexts[-1] == farthest and found.contexts[:4] == (1, 2, 3, 4)
    places = places_of(TOKENS, 256)
    assert found.places == len(places)
    for context, mean, error in zip(found.contexts, found.nats, found.errors, strict=True):
        losses = []
        for place in places:
            row = Ragged.of([tokens[place - context : place]])
            with torch.inference_mode():
                hidden = opened.network(row.tokens, row.rows)[-1:]
                scores = opened.network.words(hidden).double().log_softmax(-1)  # type: ignore[operator]
            losses.append(-float(scores[0, tokens[place]]))
        expected = sum(losses) / len(losses)
        spread = math.sqrt(sum((loss - expected) ** 2 for loss in losses) / (len(losses) - 1))
        assert mean == pytest.approx(expected, abs=1e-4)
        assert error == pytest.approx(spread / math.sqrt(len(losses)), rel=1e-3)

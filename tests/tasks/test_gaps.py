"""A T5 that has learned one sentence by heart fills its gaps, wherever they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import weft
from tests.training.small import stories
from weft.data.rows import Drawn
from weft.data.spans import Spans
from weft.errors import UserError
from weft.objectives.sequences import Writing
from weft.text.learning import learn

SENTENCE = "Every thread holds up the next one, and the loom is patient."


@pytest.fixture(scope="module")
def model() -> weft.Model:
    pytest.importorskip("sentencepiece")
    extra = [f"<extra_id_{number}>" for number in reversed(range(20))]
    lines = [*stories(30).splitlines(), *[SENTENCE] * 30]
    roles = {"padding": "<pad>", "end": "</s>", "unknown": "<unk>"}
    tokenizer = learn(lines, "unigram", 150, specials=roles, around="t5", extra=extra)
    made = weft.new("t5", tokenizer, size="1x64", settings={"dropout": 0.0, "context": 48}, seed=0)
    network: Any = made.network.train()
    tokens = np.array(tokenizer.encode(SENTENCE, specials=False).ids)
    # More gaps than published: a short row with one gap has it at its end, as published rows end with one.
    spans, objective = Spans.of(tokenizer, 0, 0.4, 1.5, 0), Writing()
    optimizer = torch.optim.Adam(network.parameters(), 5e-3)
    for step in range(250):
        identity = np.arange(8 * len(tokens), dtype=np.uint64) + np.uint64(step << 20)
        starts = np.arange(9) * len(tokens)
        batch = spans.apply(Drawn(np.tile(tokens, 8), starts, identity, np.zeros(8 * len(tokens), dtype=bool)))
        loss = objective.sums(network, batch)["words"] / objective.counts(batch)["words"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    network.eval()
    return made


def test_gaps_are_filled(model: weft.Model) -> None:
    texts = [
        "Every thread holds up the <extra_id_0> one, and the loom is patient.",
        "Every <extra_id_0> holds up the next one, and the <extra_id_1> is patient.",
    ]
    found: Any = model(texts)
    assert [answer.text for answer in found] == [SENTENCE, SENTENCE]
    assert [[gap[0].word for gap in answer.gaps] for answer in found] == [["next"], ["thread", "loom"]]
    assert all(0.1 < gap[0].probability <= 1 for answer in found for gap in answer.gaps)
    assert all(answer.n_windows == 1 for answer in found)
    for text, together in zip(texts, found, strict=True):
        alone: Any = model(text)
        assert alone.text == together.text
        for one, other in zip(alone.gaps, together.gaps, strict=True):
            assert one[0].probability == pytest.approx(other[0].probability, rel=1e-4)


def test_a_long_text_is_read_around_each_gap(model: weft.Model) -> None:
    """Every gap of every window is counted from 0 there, and goes back to its own place in the text."""
    plain = SENTENCE + " "
    text = (
        plain * 3
        + SENTENCE.replace("next", "<extra_id_0>")
        + " "
        + plain * 3
        + SENTENCE.replace("loom", "<extra_id_1>")
    )
    answer: Any = model(text)
    assert answer.n_windows == 2 and len(answer.gaps) == 2 and not answer.truncated
    assert answer.text.startswith(plain * 3) and "<extra_id" not in answer.text
    begin, end = text.split("<extra_id_0>")[0], text.split("<extra_id_1>")[1]
    assert answer.text.startswith(begin + answer.gaps[0][0].word) and answer.text.endswith(answer.gaps[1][0].word + end)


def test_many_gaps_have_room(model: weft.Model) -> None:
    """More gaps than a view can write about: each is still filled with something."""
    text = " and ".join(f"<extra_id_{number}>" for number in range(20))
    answer: Any = model(text + " the loom" * 30)
    assert len(answer.gaps) == 20 and all(gap[0].word or gap[0].probability > 0 for gap in answer.gaps)


@pytest.mark.parametrize("text", ["no gap at all", "the <extra_id_1> first", "<extra_id_0> and <extra_id_0>"])
def test_gaps_in_another_order_are_named(model: weft.Model, text: str) -> None:
    with pytest.raises(UserError, match="mark the gaps with <extra_id_0>, <extra_id_1> and so on, in this order"):
        model(text)

"""A T5 that has learned one sentence by heart fills its gaps, wherever they are."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

import weft
from tests.training.small import stories
from weft.data.masking import SpanCorruption
from weft.data.rows import Drawn
from weft.errors import UserError
from weft.objectives.losses import Writing
from weft.text.tokenizers.training import learn

SIZES = {"dropout": 0.0, "context": 48, "heads": 4, "head_width": 16}
SENTENCE = "Every thread holds up the next one, and the loom is patient."


@pytest.fixture(scope="module")
def model() -> weft.Model:
    pytest.importorskip("sentencepiece")
    extra = [f"<extra_id_{number}>" for number in reversed(range(20))]
    lines = [*stories(30).splitlines(), *[SENTENCE] * 30]
    roles = {"padding": "<pad>", "end": "</s>", "unknown": "<unk>"}
    tokenizer = learn(lines, "unigram", 150, specials=roles, around="t5", extra=extra)
    made = weft.new("t5", tokenizer, size="1x64", settings=SIZES, seed=0)
    network: Any = made.network.train()
    tokens = np.array(tokenizer.encode(SENTENCE, specials=False).ids)
    # More gaps than published: a short row with one gap has it at its end, as published rows end with one.
    spans, objective = SpanCorruption.of(tokenizer, 0, 0.4, 1.5, 0), Writing()
    optimizer = torch.optim.Adam(network.parameters(), 3e-3)
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
    """Of gaps that it has not seen so before most are filled right, where chance would fill none; batch = single."""
    tokenizer = model.tokenizer
    assert tokenizer is not None
    tokens = np.array(tokenizer.encode(SENTENCE, specials=False).ids)
    spans = SpanCorruption.of(tokenizer, 0, 0.4, 1.5, seed=1)
    identity = np.arange(12 * len(tokens), dtype=np.uint64)
    batch = spans.apply(Drawn(np.tile(tokens, 12), np.arange(13) * len(tokens), identity, identity < 0))
    assert batch.source is not None
    read = torch.tensor_split(batch.source.tokens, batch.source.rows.starts[1:-1].long())
    texts = [tokenizer.decode(row.tolist()[:-1], specials=True) for row in read]
    found: Any = model(texts)
    right = total = 0
    for text, answer in zip(texts, found, strict=True):
        before, *rest = re.split(r"<extra_id_\d+>", text)
        assert len(rest) == len(answer.gaps) and answer.n_windows == 1
        assert answer.text == before + "".join(
            gap[0].word + after for gap, after in zip(answer.gaps, rest, strict=True)
        )
        right += answer.text.replace(" ", "") == SENTENCE.replace(" ", "")
        total += 1
        alone: Any = model(text)
        assert alone.text == answer.text
        for one, other in zip(alone.gaps, answer.gaps, strict=True):
            assert one[0].probability == pytest.approx(other[0].probability, rel=1e-3) and 0 < one[0].probability <= 1
    assert right >= total / 6, "five gaps of each text, all filled right"


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
    with pytest.raises(UserError, match="mark the gaps with <extra_id_0>, <extra_id_1> and so on, in order"):
        model(text)

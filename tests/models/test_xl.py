"""Transformer-XL against its formula, written out one token at a time, with its memory and with a longer one."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import weft
from tests.table import CASES
from weft.checkpoint.families import FAMILIES
from weft.checkpoint.folder import LoadedModel
from weft.errors import UserError
from weft.models.xl import TransformerXL, TransformerXLConfig
from weft.nn.recurrent import Carried
from weft.nn.rows import Ragged
from weft.tasks.perplexity import perplexity
from weft.text.tokenizers.training import learn

TEXT = [5, 9, 2, 31, 7, 8, 3, 3, 4, 12, 30, 11, 6, 9, 1, 17, 40, 22, 5]
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "norm before": {"norm_place": "before"},
    "norm before, none at the end": {"norm_place": "before", "final_norm": False},
    "clamped, shared biases": {"clamp": 3, "shared_biases": True},
    "same length": {"same_length": True},
    "blank": {"blank": True},
    "wide heads": {"head_width": 20},
}


def network_of(**sizes: Any) -> TransformerXL:
    torch.manual_seed(1)
    usual = {"vocabulary": 50, "width": 12, "layers": 3, "heads": 2, "segment": 5, "memory": 4, "weight_scale": 0.3}
    network = TransformerXL(TransformerXLConfig(**{**usual, **sizes}), {"words": 50})
    network.initialize()
    return network.double().eval()


class WrittenOut:
    """The formula, by loops over tokens, heads and keys; what it remembers are lists of vectors."""

    def __init__(self, network: TransformerXL, memory: int) -> None:
        self.network, self.most, c = network, memory, network.config
        zeros = [torch.zeros(c.width, dtype=torch.float64)] * (memory if c.blank else 0)
        self.memory = [list(zeros) for _ in network.layers]

    def read(self, tokens: list[int]) -> Tensor:
        """One segment: what the network makes of each token."""
        network, c = self.network, self.network.config
        xs = [network.tokens.weight[token] * math.sqrt(c.width) for token in tokens]
        for number, layer in enumerate(network.layers):
            before = self.memory[number]
            outs = [self._layer(layer, [*before, *xs], len(before) + place) for place in range(len(xs))]
            self.memory[number] = [*before, *xs][max(0, len(before) + len(xs) - self.most) :]
            xs = outs
        return network.final_norm(torch.stack(xs))

    def _layer(self, layer: Any, states: list[Tensor], place: int) -> Tensor:
        x, early = states[place], layer.norm_before
        seen = [layer.attention_norm(state) for state in states] if early else states
        mixed = self._attention(layer.attention, seen, place)
        if early:
            x = x + mixed
            return x + layer.feedforward(layer.feedforward_norm(x))
        x = layer.attention_norm(x + mixed)
        return layer.feedforward_norm(x + layer.feedforward(x))

    def _attention(self, attention: Any, states: list[Tensor], place: int) -> Tensor:
        c, heads, size = self.network.config, attention.heads, attention.head_width
        first = max(0, place - self.most + 1) if c.same_length else 0
        qkv = [(attention.qkv.weight @ state).view(3, heads, size) for state in states]
        shared = self.network.positions if c.shared_biases else attention
        half = torch.arange(0, c.width, 2, dtype=torch.float32) / c.width
        out = []
        for head in range(heads):
            scores = []
            for j in range(first, place + 1):
                distance = min(place - j, c.clamp) if c.clamp else place - j
                angles = distance * (1 / 10000**half).double()  # of single precision, as published
                r = (attention.distance.weight @ torch.cat([angles.sin(), angles.cos()])).view(heads, size)[head]
                q, k = qkv[place][0, head], qkv[j][1, head]
                u, v = shared.content_bias[head], shared.distance_bias[head]
                scores.append(((q + u) @ k + (q + v) @ r) / math.sqrt(size))
            weights = torch.stack(scores).softmax(0)
            out.append(
                sum(weight * qkv[j][2, head] for weight, j in zip(weights, range(first, place + 1), strict=True))
            )
        return attention.output.weight @ torch.cat(out)


@torch.no_grad()
def expected_of(network: TransformerXL, tokens: list[int], memory: int) -> tuple[Tensor, WrittenOut]:
    written, segment = WrittenOut(network, memory), network.config.segment
    parts = [written.read(tokens[begin : begin + segment]) for begin in range(0, len(tokens), segment)]
    return torch.cat(parts), written


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("memory", [4, 11])  # as in training, and longer
@torch.no_grad()
def test_a_text_is_read_by_segments_as_its_formula_has_it(kind: str, memory: int) -> None:
    network = network_of(**KINDS[kind])
    network.remember(memory)
    texts = [TEXT, TEXT[3:4], TEXT[7:]]  # ragged: the last segments of some rows have no tokens
    batch, carried = Ragged.of(texts), Carried()
    hidden = network(batch.tokens, batch.rows, carried=carried)
    for row, text in enumerate(texts):
        begin, end = batch.rows.starts[row : row + 2].tolist()
        expected, written = expected_of(network, text, memory)
        torch.testing.assert_close(hidden[begin:end], expected, rtol=0, atol=1e-9)
        assert carried.state is not None
        for (layer,), states in zip(carried.state[:-1], written.memory, strict=True):
            torch.testing.assert_close(layer[row, layer.shape[1] - len(states) :], torch.stack(states))


@torch.no_grad()
def test_rows_go_on_from_the_memory_of_those_before() -> None:
    network = network_of()
    whole, _ = expected_of(network, TEXT[:15], 4)
    carried, parts = Carried(network.beginning(2)), []
    for begin in (0, 5, 10):  # as the trainer does: one row of each stream at a time
        batch = Ragged.of([TEXT[begin : begin + 5], TEXT[begin : begin + 5]])
        parts.append(network(batch.tokens, batch.rows, carried=carried)[5:])
    torch.testing.assert_close(torch.cat(parts), whole)
    with_memory = torch.cat(parts)[5:10]
    alone = network(batch.tokens[:5], Ragged.of([TEXT[5:10]]).rows)
    assert not torch.allclose(with_memory, alone)  # a memory that is never looked at would pass the rest


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_decoding_goes_on_with_a_window_of_the_newest_tokens(kind: str) -> None:
    network = network_of(memory=6, **KINDS[kind])
    prompts, order = [TEXT[:12], TEXT[2:5]], torch.tensor([1, 0, 1])
    scores, state = network.start(Ragged.of(prompts))
    state.pick(order)
    written = [expected_of(network, prompts[row], 6)[1] for row in order.tolist()]
    for token in TEXT[:7]:
        scores = network.step(torch.full((3,), token), state)
        for row, formula in enumerate(written):  # a step is a segment of one token
            expected = network.words(formula.read([token]))
            torch.testing.assert_close(scores[row : row + 1], expected, rtol=0, atol=1e-9)


@torch.no_grad()
def test_a_network_without_memory_still_writes_with_a_window() -> None:
    network = network_of(memory=0)
    scores, state = network.start(Ragged.of([TEXT[:3]]))
    for token in (7, 8):
        scores = network.step(torch.tensor([token]), state)
    batch = Ragged.of([[*TEXT[:3], 7, 8]])
    torch.testing.assert_close(scores, network.words(network(batch.tokens, batch.rows)[-1:]))


def test_no_gradient_goes_into_memory() -> None:
    network = network_of()
    batch = Ragged.of([TEXT[:10]])
    first, second = network(batch.tokens, batch.rows).split(5)
    (second @ torch.randn(12, dtype=torch.float64)).sum().backward()  # a plain sum of norms is constant
    used = network.tokens.weight.grad.abs().sum(1).nonzero().squeeze(1).tolist()
    assert set(used) == set(TEXT[5:10])
    assert first.requires_grad


def test_perplexity_with_a_longer_memory_than_in_training() -> None:
    """With a memory of all that was read it is the perplexity of one pass; and the model keeps its own memory."""
    tokenizer = learn(["the cat sat on the mat and looked at the rat"] * 3, "word", 30)
    sizes = {"segment": 5, "memory": 3, "heads": 2, "weight_scale": 0.3}
    opened = weft.new("transformer-xl", tokenizer, size="2x16", settings=sizes, seed=1).opened
    opened.network.double()
    whole = replace(opened.config, segment=64)
    at_once = replace(opened, config=whole, network=TransformerXL(whole, opened.heads).double().eval())
    at_once.network.load_state_dict(opened.network.state_dict())
    text = "the cat looked at the mat and the rat sat on the cat " * 2

    def per_token(model: LoadedModel, **options: Any) -> float:
        return perplexity(model, [text], stream=True, **options).per_token.value

    expected = per_token(at_once, length=64)
    assert per_token(opened, memory=64) == pytest.approx(expected, rel=1e-9)
    usual = per_token(opened)
    assert usual == per_token(opened, memory=3) and abs(usual / expected - 1) > 1e-6
    assert opened.network.memory == 3
    with pytest.raises(UserError, match="memory must be between 0 and"):
        per_token(opened, memory=-1)
    assert opened.network.memory == 3


@pytest.mark.parametrize(
    "sizes, message",
    [
        ({"memory": -1}, "memory must be between 0"),
        ({"segment": 0}, "segment must be between 1"),
        ({"memory": 1 << 40}, "memory must be between 0"),
        ({"clamp": 0}, "clamp must be between 1"),
        ({"same_length": True, "memory": 0}, "same_length needs a memory"),
        ({"width": 15, "heads": 3}, "width must be even"),
    ],
)
def test_sizes_that_cannot_be(sizes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        network_of(**sizes)


def test_a_memory_for_those_that_have_one() -> None:
    with pytest.raises(UserError, match="memory must be between 0 and"):
        network_of().remember(-1)
    config = CASES["gpt2"].config()
    with pytest.raises(UserError, match="only transformer-xl and xlnet have a memory"):
        FAMILIES["gpt2"].network(config, {}).remember(10)


def test_vectors_that_are_not_scaled() -> None:
    """A table that is as much larger reads the same, a token at a time too."""
    plain, scaled = network_of(scaled=False), network_of()
    with torch.no_grad():
        plain.tokens.weight.copy_(scaled.tokens.weight * scaled.config.width**0.5)
    batch = Ragged.of([[5, 9, 2, 31, 7, 8, 3], [4]])
    with torch.inference_mode():
        hidden = plain(batch.tokens, batch.rows)
        assert torch.allclose(hidden, scaled(batch.tokens, batch.rows), rtol=0, atol=1e-12)
        logits, state = plain.start(Ragged.of([[5, 9, 2]]), room=8)
        assert torch.allclose(logits, plain.words(hidden[2:3]), rtol=0, atol=1e-9)
        assert torch.allclose(plain.step(torch.tensor([31]), state), plain.words(hidden[3:4]), rtol=0, atol=1e-9)

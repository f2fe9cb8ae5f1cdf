"""Bengio's language model beside its formula written out, and what it makes of a small text."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch

from weft.models.mlp import Mlp, MlpConfig
from weft.nn.rows import Ragged, Rows

TEXTS = [[5, 9, 2, 31, 7, 1, 1, 3], [8], [3, 3, 4], [6, 2]]
VARIANTS = [{}, {"direct": True}, {"tied": True}, {"tied": True, "direct": True}]


def network_of(**sizes: Any) -> Mlp:
    torch.manual_seed(3)
    config = MlpConfig(**{"vocabulary": 40, "window": 3, "width": 6, "inner": 10, **sizes})
    network = Mlp(config, {"words": 40})
    network.initialize()
    network.get_parameter("heads.words.bias").data.normal_()
    network.hidden.bias.data.normal_()
    return network.double().eval()


def by_the_formula(network: Mlp, past: list[int]) -> list[float]:
    """y = b + W x + U tanh(d + H x) with plain numbers; x are the vectors of the last tokens, one after the other."""
    c, state = network.config, {name: tensor.tolist() for name, tensor in network.state_dict().items()}
    seen = [state["before"]] * c.window + [state["tokens.weight"][token] for token in past]
    x = [number for vector in seen[-c.window :] for number in vector]

    def times(matrix: list[list[float]], vector: list[float]) -> list[float]:
        return [sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix]

    def plus(*vectors: list[float]) -> list[float]:
        return [sum(numbers) for numbers in zip(*vectors, strict=True)]

    bent = [math.tanh(number) for number in plus(state["hidden.bias"], times(state["hidden.weight"], x))]
    bias = state["heads.words.bias"]
    if c.tied:
        near = times(state["project.weight"], bent)
        near = plus(near, times(state["direct.weight"], x)) if c.direct else near
        return plus(bias, times(state["tokens.weight"], near))
    table = state["heads.words.decoder.weight"]
    hidden = times([row[: c.inner] for row in table], bent)
    return plus(bias, hidden, times([row[c.inner :] for row in table], x)) if c.direct else plus(bias, hidden)


@pytest.mark.parametrize("sizes", VARIANTS)
def test_it_is_bengios_formula(sizes: dict[str, Any]) -> None:
    network, batch = network_of(**sizes), Ragged.of(TEXTS)
    scores = network.words(network(batch.tokens, batch.rows))
    expected = [by_the_formula(network, text[: end + 1]) for text in TEXTS for end in range(len(text))]
    assert torch.allclose(scores, torch.tensor(expected, dtype=torch.float64), atol=1e-12)


@pytest.mark.parametrize("sizes", VARIANTS)
def test_it_sees_the_window_and_nothing_before(sizes: dict[str, Any]) -> None:
    network = network_of(**sizes)
    assert network.config.reach == 3
    texts = ([1, 2, 3, 4, 5], [9, 9, 3, 4, 5], [1, 2, 9, 4, 5])
    one, two, three = (network(torch.tensor(text), Rows.of([5]))[-1] for text in texts)
    assert torch.equal(one, two) and not torch.allclose(one, three)


def test_what_it_costs_is_what_it_multiplies() -> None:
    for sizes in VARIANTS:
        network = network_of(**sizes)
        matrices = sum(p.numel() for name, p in network.named_parameters() if p.dim() == 2 and name != "tokens.weight")
        assert network.products == matrices + (network.tokens.weight.numel() if network.config.tied else 0)


@pytest.mark.parametrize("sizes", VARIANTS)
def test_it_learns_more_than_how_frequent_letters_are(sizes: dict[str, Any]) -> None:
    text = "the weft goes over and under the warp, and the warp holds the weft. " * 3
    letters = sorted(set(text))
    tokens = torch.tensor([letters.index(letter) for letter in text])
    counts = Counter(text)
    unigram = -sum(n / len(text) * math.log(n / len(text)) for n in counts.values())
    network = network_of(**sizes, vocabulary=40, width=16, inner=64).float().train()
    optimizer = torch.optim.AdamW(network.parameters(), 3e-3)
    rows = Rows.of([len(tokens) - 1])
    for _ in range(60):
        loss = torch.nn.functional.cross_entropy(network.words(network(tokens[:-1], rows)), tokens[1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.5 * unigram

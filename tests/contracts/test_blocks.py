"""Blocks are swappable by config: every pair of choices is met once, trains a step, and keeps the contracts."""

from __future__ import annotations

from itertools import combinations, product
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from tests.contracts.test_families import TEXTS, check_cache, close, hidden_of, network_of, steps_of
from tests.table import SPEAKERS
from weft.checkpoint.card import Card
from weft.checkpoint.families import FAMILIES
from weft.checkpoint.folder import LoadedModel, open_folder, save_folder
from weft.nn.layers import Activation
from weft.nn.positions import Kind
from weft.nn.rows import Ragged

CHOICES: dict[str, tuple[Any, ...]] = {
    "positions": get_args(Kind),
    "activation": get_args(Activation),
    "norm": ("layer", "rms"),
    "norm_place": ("before", "after"),
    "head_width": (None, 10),
    "tied": (True, False),
}


def pairwise() -> list[dict[str, Any]]:
    """Few combinations that together hold every pair of choices: always the one that covers most of what is left."""
    every = [dict(zip(CHOICES, values, strict=True)) for values in product(*CHOICES.values())]
    pairs = [frozenset(combinations(combination.items(), 2)) for combination in every]
    left = set().union(*pairs)
    chosen = []
    while left:
        best = max(range(len(every)), key=lambda number: len(left & pairs[number]))
        left -= pairs[best]
        chosen.append(every[best])
    return chosen


@pytest.mark.parametrize("blocks", pairwise(), ids=lambda b: "-".join(map(str, b.values())))
@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_every_pair_of_blocks(name: str, blocks: dict[str, Any], tmp_path: Path) -> None:
    check_blocks(name, blocks, tmp_path)


@pytest.mark.parametrize("blocks", pairwise()[::9], ids=lambda b: "-".join(map(str, b.values())))
@pytest.mark.parametrize("name", ["roberta", "albert", "distilbert"])
def test_blocks_of_the_other_encoders(name: str, blocks: dict[str, Any], tmp_path: Path) -> None:
    check_blocks(name, blocks, tmp_path)


def check_blocks(name: str, blocks: dict[str, Any], tmp_path: Path) -> None:
    network = network_of(name, **blocks)
    together, rows = hidden_of(network, TEXTS), Ragged.of(TEXTS).rows
    for text, start in zip(TEXTS, rows.firsts().tolist(), strict=True):
        assert close(together[start : start + len(text)], hidden_of(network, [text]), 1e-9)
    if name in SPEAKERS:
        check_cache(network, 1e-9)
    for layer in network.layers:
        layer.attention.watcher = lambda sighting: None
    assert close(hidden_of(network, TEXTS), together, 1e-9)
    for layer in network.layers:
        layer.attention.watcher = None
    save_folder(tmp_path / "m", LoadedModel(FAMILIES[name], network.config, network, heads_of(network), None, Card()))
    again = open_folder(tmp_path / "m")
    assert again.config == network.config and torch.equal(hidden_of(again.network, TEXTS), together)
    losses = steps_of(network, 4)
    assert losses[-1] < losses[0]
    idle = [key for key, p in network.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    assert all(key.split(".")[0] in ("heads", "pooler") for key in idle), "a part of the network learns nothing"


def heads_of(network: Any) -> dict[str, int]:
    heads = {"words": network.config.vocabulary, "next": 2, "classify": 3}
    return {name: heads[name] for name in network.heads}


def test_positions_can_be_told_apart() -> None:
    """Without positions an encoder is blind to order; with any kind it is not."""
    for kind in get_args(Kind):
        network = network_of("bert", positions=kind)
        forth, back = hidden_of(network, [[5, 6, 7]]), hidden_of(network, [[7, 6, 5]]).flip(0)
        assert torch.allclose(forth, back) == (kind in ("none", "alibi")), kind
    # ALiBi's distance is the same both ways, so an encoder sees order only where a text is not read backwards whole.
    network = network_of("bert", positions="alibi")
    forth, moved = hidden_of(network, [[5, 6, 7, 8]]), hidden_of(network, [[6, 5, 7, 8]])
    assert not torch.allclose(forth[3], moved[3])


def test_formulas_written_out() -> None:
    """Positions against their papers, number by number."""
    import math

    from weft.nn.attention import turn
    from weft.nn.positions import alibi_slopes, sinusoids

    places, width = torch.arange(50), 10
    table = sinusoids(places, width)
    halves = sinusoids(places, width, halves=True)
    for place, column in product(range(50), range(0, width, 2)):
        angle = place / 10000 ** (column / width)
        assert math.isclose(table[place, column], math.sin(angle), abs_tol=1e-12)
        assert math.isclose(table[place, column + 1], math.cos(angle), abs_tol=1e-12)
        assert math.isclose(halves[place, column // 2], math.sin(angle), abs_tol=1e-12)
        assert math.isclose(halves[place, width // 2 + column // 2], math.cos(angle), abs_tol=1e-12)
    assert alibi_slopes(8).tolist() == [2.0**-n for n in range(1, 9)]
    assert torch.allclose(alibi_slopes(3), torch.tensor([2.0**-4, 2.0**-8, 2.0**-2]))
    network = network_of("gpt2", positions="rotary")
    query, key = torch.randn(2, 1, 1, 16, dtype=torch.float64)

    def score(first: int, second: int) -> float:
        """How well a turned query at one place fits a turned key at another."""
        q, k = (
            turn(x, network.positions.turns(torch.tensor([place]), torch.float64))
            for x, place in ((query, first), (key, second))
        )
        return float((q * k).sum())

    assert math.isclose(score(5, 3), score(25, 23), abs_tol=1e-9), "only the distance may count"
    assert not math.isclose(score(5, 3), score(5, 4), abs_tol=1e-6)

"""Beam search with every kind of model that writes: full width finds the best of all there is, width one is greedy."""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some

from tests.contracts.test_sequences import NETWORKS, _said
from tests.table import CASES, SPEAKERS, read_of
from weft.checkpoint.families import FAMILIES, usual_heads
from weft.generation.generate import generate
from weft.generation.sampling import Sampling
from weft.generation.search import Beam
from weft.nn.rows import Ragged

END, MOST = 1, 3
KINDS: dict[str, tuple[str, dict[str, Any]]] = {name: (name, {}) for name in SPEAKERS}
KINDS |= {f"{name} {_said(settings)}": (name, settings) for name, settings in NETWORKS}
KINDS |= {f"gpt2 {kind}": ("gpt2", {"positions": kind}) for kind in ("rotary", "alibi", "sinusoidal", "none")}
every = pytest.mark.parametrize("kind", KINDS)
SEEDS = some.integers(0, 10_000)
PENALTIES = some.sampled_from([-0.7, 0.0, 1.0, 2.5])
few = settings(max_examples=3, deadline=None)


@cache
def network_of(kind: str, vocabulary: int) -> Any:
    name, settings = KINDS[kind]
    family = FAMILIES[name]
    config = CASES[name].config(**{**settings, "vocabulary": vocabulary})
    return family.network(config, usual_heads(family, config)).double().eval()


def drawn(kind: str, vocabulary: int, seed: int) -> Any:
    """A network that has something to say, other for each seed."""
    network = network_of(kind, vocabulary)
    torch.manual_seed(seed)
    if FAMILIES[KINDS[kind][0]].counts:  # tables, and no weights
        network.initialize()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(0.0, 0.4)
            if parameter.dim() == 1:
                parameter += 0.5
    return network


def sources_of(kind: str, texts: list[list[int]]) -> dict[str, Any]:
    """A model that reads is given sources; another has only its prompts."""
    name = KINDS[kind][0]
    return {"sources": [read_of(name, text) for text in texts]} if FAMILIES[name].reads else {}


@torch.inference_mode()
def exhaustive(network: Any, prompt: list[int], source: list[int] | None, penalty: float) -> list[tuple[float, Any]]:
    """Everything that might be written in so many of 4 words, best first: whole passes, nothing remembered."""
    words = [0, 2, 3]
    every = [(*before, END) for size in range(MOST) for before in product(words, repeat=size)]
    every += list(product(words, repeat=MOST))
    batch = Ragged.of([[*prompt, *said[:-1]] for said in every])
    reads = {} if source is None else {"source": Ragged.of([source] * len(every))}
    logs = network.words(network.next_states(batch.tokens, batch.rows, **reads)).log_softmax(-1)
    answers = []
    for said, first in zip(every, batch.rows.firsts().tolist(), strict=True):
        places = first + len(prompt) - 1 + torch.arange(len(said))
        score = float(logs[places, torch.tensor(said)].sum()) / len(said) ** penalty
        answers.append((score, list(said)))
    return sorted(answers, reverse=True)


@every
@few
@given(seed=SEEDS, penalty=PENALTIES, prompt=some.lists(some.sampled_from([0, 2, 3]), max_size=2))
def test_full_width_is_exhaustive_search(kind: str, seed: int, penalty: float, prompt: list[int]) -> None:
    """With a neighbor whose prompt and source are longer, so that rows are ragged."""
    network = drawn(kind, 4, seed)
    sources, prompts = [[2, 3], [3, 0, 2, 2, 1]], [[0, *prompt], [0, 3, 3, 2]]
    reads = sources_of(kind, sources)
    choice = Beam(width=4**MOST, length_penalty=penalty, n=5)
    found = generate(network, prompts, choice=choice, context=40, max_tokens=MOST, ends=[END], **reads)
    for row, spoken in enumerate(found):
        expected = exhaustive(network, prompts[row], reads["sources"][row] if reads else None, penalty)[:5]
        assert [each.score for each in spoken] == pytest.approx([score for score, _ in expected], abs=1e-6)
        assert [each.tokens for each in spoken] == [said for _, said in expected]


@every
@few
@given(seed=SEEDS, penalty=PENALTIES)
def test_width_one_is_greedy_and_a_batch_is_its_rows(kind: str, seed: int, penalty: float) -> None:
    network = drawn(kind, 11, seed)
    sources, prompts = [[5, 9, 2], [8], [3, 3, 4, 10, 6]], [[0], [0, 7], [0]]
    reads = sources_of(kind, sources)
    options: dict[str, Any] = {"context": 40, "max_tokens": 5, "ends": [END]}
    greedy = generate(network, prompts, choice=Sampling(), **options, **reads)
    one = generate(network, prompts, choice=Beam(width=1, length_penalty=penalty), **options, **reads)
    assert [each.tokens for (each,) in one] == [each.tokens for (each,) in greedy]
    wide = Beam(width=3, n=3, length_penalty=penalty)
    together = generate(network, prompts, choice=wide, **options, **reads)
    for row, spoken in enumerate(together):
        mine = sources_of(kind, sources[row : row + 1])
        alone = generate(network, prompts[row : row + 1], choice=wide, **options, **mine)
        assert [each.tokens for each in spoken] == [each.tokens for each in alone[0]]
        assert [each.score for each in spoken] == pytest.approx([each.score for each in alone[0]], abs=1e-6)

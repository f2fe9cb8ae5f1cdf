"""What a decoder remembers, against the whole pass worked out anew: any order of rows, any prompts, any positions."""

from __future__ import annotations

import random
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from weft.errors import UserError
from weft.models.transformer import Transformer, TransformerConfig
from weft.nn.positions import Kind
from weft.nn.rows import Ragged

SIZES: dict[str, Any] = {"vocabulary": 31, "context": 64, "width": 24, "layers": 2, "heads": 2, "inner": 40}
SOURCES = [[5, 9, 2, 30, 7, 1], [8, 1], [3, 3, 4, 12, 29, 11, 6, 9, 10, 1]]
PROMPTS = [[0], [0, 9, 8, 7, 6, 12], [0, 11, 3]]


def network_of(**settings: Any) -> Transformer:
    torch.manual_seed(0)
    network = Transformer(TransformerConfig(**{**SIZES, **settings}), {"words": 31}).double().eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(0.0, 0.3)
    return network


def whole(network: Transformer, sources: list[list[int]], written: list[list[int]]) -> Tensor:
    """B V: the scores of each row's next word, nothing remembered."""
    batch = Ragged.of(written)
    return network.words(network(batch.tokens, batch.rows, source=Ragged.of(sources))[batch.rows.lasts()])


def looked_at(network: Transformer, sources: list[list[int]], written: list[list[int]]) -> Tensor:
    """B S: the mean over heads and layers of the weights that attend() itself says, for each row's last token."""
    seen: list[Tensor] = []
    for layer in network.decoder:
        layer.cross.watcher = lambda sighting: seen.append(sighting.weights)
    whole(network, sources, written)
    for layer in network.decoder:
        layer.cross.watcher = None
    weights = torch.stack(seen).mean((0, 2))  # B T S
    return torch.stack([weights[row, len(text) - 1] for row, text in enumerate(written)])


@torch.inference_mode()
def journey(network: Transformer, prompts: list[list[int]], dice: random.Random, room: int, watched: bool) -> int:
    """Step and pick at random, each time held against the whole pass; the number of picks with sources in no order."""
    owners, written = [0, 1, 2], [list(prompt) for prompt in prompts]
    scores, state = network.start(Ragged.of(written), Ragged.of(SOURCES), room, watched)
    scattered = 0
    for _ in range(9):
        sources = [SOURCES[owner] for owner in owners]
        assert (scores - whole(network, sources, written)).abs().max() <= 1e-9
        assert (state.attention is not None) == watched
        if watched:
            expected = looked_at(network, sources, written)
            found = state.attention[:, : expected.shape[1]]
            assert (found.sum(1) - 1).abs().max() <= 1e-6
            assert (found - expected).abs().max() <= 1e-6 and state.attention[:, expected.shape[1] :].abs().sum() == 0
        if dice.random() < 0.7:
            rows = [dice.randrange(len(owners)) for _ in range(dice.randrange(1, 7))]
            if dice.random() < 0.4:  # as a beam: side by side
                rows = sorted(rows)
            state.pick(torch.tensor(rows))
            owners, written = [owners[row] for row in rows], [list(written[row]) for row in rows]
            scattered += state.memory is not None and state.memory.each is None
        following = [dice.randrange(31) for _ in owners]
        scores = network.step(torch.tensor(following), state)
        for text, token in zip(written, following, strict=True):
            text.append(token)
    return scattered


@pytest.mark.parametrize("watched", [False, True], ids=["unwatched", "watched"])
@pytest.mark.parametrize("prompts", [[[0]] * 3, [[0, 4]] * 3, PROMPTS], ids=["begin", "even", "ragged"])
def test_any_journey(prompts: list[list[int]], watched: bool) -> None:
    network, dice = network_of(), random.Random(len(prompts[2]))
    assert sum(journey(network, prompts, dice, room, watched) for room in (0, 5, 40)) > 0


@pytest.mark.parametrize("place", ["after", "before"])
@pytest.mark.parametrize("positions", get_args(Kind))
def test_every_kind_of_positions(positions: str, place: str) -> None:
    network = network_of(positions=positions, norm_place=place, norm="rms" if place == "before" else "layer")
    journey(network, PROMPTS, random.Random(3), 0, watched=False)


def test_sides_of_different_sizes() -> None:
    network = network_of(decoder_layers=1, decoder_heads=4, decoder_inner=16, source_vocabulary=40, tied="none")
    journey(network, PROMPTS, random.Random(4), 0, watched=True)
    assert len(network.encoder) == 2 and network.decoder[0].feedforward.up.weight.shape == (16, 24)
    for positions in ("rotary", "alibi"):
        with pytest.raises(UserError, match=f"with {positions} positions the decoder has as many heads"):
            TransformerConfig(**SIZES, positions=positions, decoder_heads=4)


def test_rows_that_all_leave_and_contexts_that_end() -> None:
    network = network_of(context=4)
    with torch.inference_mode():
        _, state = network.start(Ragged.of([[0], [0]]), Ragged.of([[5, 1], [1]]), attention=True)
        state.pick(torch.tensor([], dtype=torch.int64))
        assert len(state.lengths) == 0 and state.attention.shape[0] == 0
        _, state = network.start(Ragged.of([[0, 2, 3]]), Ragged.of([[5, 1]]))
        network.step(torch.tensor([2]), state)
        with pytest.raises(UserError, match="a text of 5 tokens is longer than the model's context of 4"):
            network.step(torch.tensor([2]), state)
        with pytest.raises(UserError, match="a text of 5 tokens is longer"):
            network.encode(Ragged.of([[5, 5, 5, 5, 1]]))


def test_operations_are_counted_by_hand() -> None:
    """Two products and sums per weight and token, and those of scores and mixed values."""
    network = Transformer(TransformerConfig(**SIZES), {"words": 31})
    read, written, w, inner = 7, 5, 24, 40
    encoder = 2 * read * (2 * (4 * w * w + 2 * w * inner)) + 2 * (4 * read * read * w)
    decoder = 2 * written * (2 * (6 * w * w + 2 * w * inner)) + 2 * read * (2 * 2 * w * w)
    decoder += 2 * (4 * w * (written * written / 2 + written * read))
    words = 2 * written * 31 * w
    batch = Ragged.of([[1] * read]).rows, Ragged.of([[1] * written]).rows
    assert network.operations(*batch) == pytest.approx(encoder + decoder + words)

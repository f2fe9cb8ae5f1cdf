"""Texts from vectors: the state that a vector sets, written out; what is learned by heart; where vectors lie."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.contracts.test_sequences import network_of
from weft.errors import UserError
from weft.models.vec2seq import Vec2Seq, Vec2SeqConfig
from weft.nn.rows import Ragged, Rows

END = 1


def vectors_of(vectors: torch.Tensor) -> Ragged:
    return Ragged(vectors, Rows.single(len(vectors)))


def as_decoder(peer: Any, network: Any) -> Any:
    """torch's own stack with the weights of a decoder."""
    with torch.no_grad():
        for layer, module in enumerate(network.decoder.layers):
            for name, weight in module.named_parameters():
                getattr(peer.double(), name.replace("_l0", f"_l{layer}")).copy_(weight)
    return peer


@pytest.mark.parametrize("entrance", ["state", "input"])
@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn"])
def test_every_cell_and_entrance_learns_by_heart(cell: Any, entrance: Any) -> None:
    """Eight vectors of large and far-off numbers, a text for each; written greedily, word for word."""
    torch.manual_seed(0)
    config = Vec2SeqConfig(vocabulary=12, features=6, width=32, dropout=0.0, cell=cell, entrance=entrance)
    network = Vec2Seq(config, {"words": 12})
    network.initialize()
    vectors = torch.randn(8, 6) * 100 + 5000
    network.settle(vectors)
    texts = [torch.randint(2, 12, (number % 4 + 2,)).tolist() for number in range(8)]
    batch = Ragged.of([[0, *text] for text in texts])
    targets = torch.tensor([token for text in texts for token in (*text, END)])
    optimizer = torch.optim.Adam(network.parameters(), 1e-2)
    for _ in range(120):
        hidden = network(batch.tokens, batch.rows, source=vectors_of(vectors))
        loss = F.cross_entropy(network.words(hidden), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss < 0.05:
            break
    with torch.inference_mode():
        scores, state = network.start(Ragged.of([[0]] * 8), vectors_of(vectors))
        said = [scores.argmax(-1)]
        for _ in range(6):
            said.append(network.step(said[-1], state).argmax(-1))
    for row, text in zip(torch.stack(said, 1).tolist(), texts, strict=True):
        assert row[: len(text) + 1] == [*text, END]


def test_a_vector_that_sets_the_state_written_out() -> None:
    """Each layer begins with tanh of one part of a map of the vector, and with another as its memory."""
    network: Any = network_of("vec2seq", {"layers": 2})
    vector, text = torch.randn(1, 12, dtype=torch.float64), torch.tensor([0, 4, 7])
    network.settle(torch.randn(50, 12) * 3 + 2)
    found = network(text, Rows.of([3]), source=vectors_of(vector))
    x = network.entrance((vector - network.center) / network.spread)
    peer = as_decoder(torch.nn.LSTM(48, 48, 2), network)
    hidden, memory = (torch.stack([x[:, (2 * layer + part) * 48 :][:, :48] for layer in (0, 1)]) for part in (0, 1))
    expected, _ = peer(network.tokens(text)[:, None], (hidden.tanh(), memory))
    assert torch.allclose(found, expected[:, 0], atol=1e-12)


def test_a_vector_that_is_read_first_written_out() -> None:
    """As one more word before the first, from a state of nothing (Vinyals et al., 2015)."""
    network: Any = network_of("vec2seq", {"entrance": "input", "cell": "gru", "layers": 1})
    vector, text = torch.randn(1, 12, dtype=torch.float64), torch.tensor([0, 4, 7])
    found = network(text, Rows.of([3]), source=vectors_of(vector))
    words = torch.cat([network.entrance(vector), network.tokens(text)])
    expected, _ = as_decoder(torch.nn.GRU(48, 48), network)(words[:, None])
    assert torch.allclose(found, expected[1:, 0], atol=1e-12)


def test_scale_and_place_of_the_vectors_do_not_matter() -> None:
    """Numbers in other units, settled by themselves, say the same; one that never changes does no harm."""
    network: Any = network_of("vec2seq", {})
    vectors = torch.randn(40, 12, dtype=torch.float64)
    vectors[:, 3] = 1e6
    units = torch.logspace(-3, 3, 12, dtype=torch.float64)
    text, rows, found = torch.tensor([0, 4]), Rows.of([2]), []
    for seen in (vectors, vectors * units + 7 * units):
        network.settle(seen)
        assert network.spread[3] == 1.0
        found.append(network(text, rows, source=vectors_of(seen[:1])))
        assert found[-1].isfinite().all()
    assert torch.allclose(*found, atol=1e-6)
    assert not torch.allclose(found[0], network(text, rows, source=vectors_of(vectors[1:2])), atol=1e-3)


def test_its_own_words_are_read_as_often_as_asked() -> None:
    network: Any = network_of("vec2seq", {})
    batch, vectors = Ragged.of([[0, 4, 7, 3], [0, 5]]), vectors_of(torch.randn(2, 12))
    given = network(batch.tokens, batch.rows, source=vectors)
    never, always = (network(batch.tokens, batch.rows, source=vectors, own=torch.tensor(share)) for share in (0.0, 1.0))
    assert torch.allclose(given, never, atol=1e-12)
    said = [0]
    with torch.inference_mode():
        one = vectors_of(vectors.tokens[:1])
        scores, state = network.start(Ragged.of([[0]]), one)
        for _ in range(3):
            said.append(int(scores.argmax()))
            scores = network.step(torch.tensor(said[-1:]), state)
    expected = network(torch.tensor(said), Rows.of([4]), source=one)
    assert torch.allclose(always[:4], expected, atol=1e-12) and not torch.allclose(always[:4], given[:4], atol=1e-3)


def test_what_is_no_vector_is_named() -> None:
    network: Any = network_of("vec2seq", {})
    for source in (vectors_of(torch.zeros(1, 5)), Ragged.of([[1]])):
        with pytest.raises(UserError, match=r"a vector of \d numbers, where the model takes 12"):
            network(torch.tensor([0]), Rows.of([1]), source=source)
    with pytest.raises(UserError, match="features must be between 1 and"):
        Vec2SeqConfig(features=0)

"""What every family must keep, whatever its blocks: one table, one test per contract."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.table import ATTENTIVE, CASES, LEARNED, PLAIN, SPEAKERS
from weft.checkpoint.card import Card
from weft.checkpoint.families import FAMILIES, usual_heads
from weft.checkpoint.folder import LoadedModel, open_folder, save_folder
from weft.nn.attention import Sighting
from weft.nn.rows import Ragged, Rows

TEXTS = [[5, 9, 2, 31, 7], [8], [3, 3, 4, 12, 30, 11, 6, 9, 1], [6, 2], [17] * 30]
# float64 says whether the mathematics is the same; float32 whether it is also kept in everyday use.
PRECISIONS = [(torch.float64, 1e-9), (torch.float32, 1e-5)]


def network_of(name: str, dtype: torch.dtype = torch.float64, **sizes: Any) -> Any:
    family, config = FAMILIES[CASES[name].family], CASES[name].config(**sizes)
    torch.manual_seed(1)
    classify = {"classify": 3} if "classify" in family.network.HEADS else {}
    network = family.network(config, {**usual_heads(family, config), **classify})
    network.initialize()
    return network.to(dtype).eval()


def hidden_of(network: Any, texts: list[list[int]]) -> Tensor:
    batch = Ragged.of(texts)
    return network(batch.tokens, batch.rows)


def next_states_of(network: Any, texts: list[list[int]]) -> Tensor:
    batch = Ragged.of(texts)
    return network.next_states(batch.tokens, batch.rows)


def close(found: Tensor, expected: Tensor, tolerance: float) -> bool:
    """Within the tolerance, of the largest number there is."""
    return bool((found - expected).abs().max() <= tolerance * max(1.0, expected.abs().max().item()))


@pytest.mark.parametrize("dtype, tolerance", PRECISIONS)
@pytest.mark.parametrize("name", PLAIN)
def test_batch_equals_single(name: str, dtype: torch.dtype, tolerance: float) -> None:
    network = network_of(name, dtype)
    rows = Ragged.of(TEXTS).rows
    together = hidden_of(network, TEXTS)
    for text, start in zip(TEXTS, rows.firsts().tolist(), strict=True):
        assert close(together[start : start + len(text)], hidden_of(network, [text]), tolerance)
    if "classify" not in network.heads:
        return
    scores = network.logits("classify", together, rows)
    for row, text in enumerate(TEXTS):
        alone = network.logits("classify", hidden_of(network, [text]), Rows.of([len(text)]))
        assert close(scores[row : row + 1], alone, tolerance)


@pytest.mark.parametrize("name", LEARNED)
def test_gradients_of_a_batch_are_the_sum_of_single_ones(name: str) -> None:
    network = network_of(name)
    hidden_of(network, TEXTS).square().sum().backward()
    together = {key: p.grad.clone() for key, p in network.named_parameters() if p.grad is not None}
    network.zero_grad()
    for text in TEXTS:
        hidden_of(network, [text]).square().sum().backward()
    for key, parameter in network.named_parameters():
        if parameter.grad is not None:
            assert close(together[key], parameter.grad, 1e-9), key


@pytest.mark.parametrize("name", SPEAKERS)
def test_a_changed_future_leaves_the_past(name: str) -> None:
    network = network_of(name)
    before = next_states_of(network, [[1, 2, 3, 4, 5, 6]])
    after = next_states_of(network, [[1, 2, 3, 9, 9, 9]])
    assert torch.equal(before[:3], after[:3])
    assert not torch.allclose(before[3:], after[3:])


@pytest.mark.parametrize("name", [name for name in ATTENTIVE if not FAMILIES[name].one_way])
def test_an_encoder_looks_both_ways(name: str) -> None:
    network = network_of(name)
    assert not torch.allclose(hidden_of(network, [[1, 2, 3]])[0], hidden_of(network, [[1, 2, 9]])[0])


@pytest.mark.parametrize("dtype, tolerance", PRECISIONS)
@pytest.mark.parametrize("name", SPEAKERS)
def test_cached_equals_uncached(name: str, dtype: torch.dtype, tolerance: float) -> None:
    check_cache(network_of(name, dtype), tolerance)


def check_cache(network: Any, tolerance: float) -> None:
    """Ragged prompts, a change of rows in the middle, and a cache that has to grow."""
    with torch.inference_mode():
        said = [list(text) for text in TEXTS]
        device = next(chain(network.parameters(), network.buffers())).device
        scores, state = network.start(Ragged.of(TEXTS, device))
        for step in range(4):
            if step == 2:
                order = torch.tensor([3, 0, 0, 4], device=device)
                state.pick(order)
                said = [list(said[row]) for row in order.tolist()]
            tokens = torch.arange(len(said), device=device) + 10 * step
            scores = network.step(tokens, state)
            for text, token in zip(said, tokens.tolist(), strict=True):
                text.append(token)
        batch = Ragged.of(said, device)
        expected = network.words(network.next_states(batch.tokens, batch.rows)[batch.rows.lasts()])
        assert close(scores, expected, tolerance)


@pytest.mark.parametrize("name", ATTENTIVE)
def test_watched_equals_unwatched_in_evaluation_and_training(name: str) -> None:
    # With one seed the fused and the written-out path must also drop out the same weights.
    network = network_of(name)
    for training in (False, True):
        network.train(training)
        seen: list[Sighting] = []
        outputs, gradients = [], []
        for watcher in (None, seen.append):
            for layer in network.layers:
                layer.attention.watcher = watcher
            torch.manual_seed(7)
            network.zero_grad()
            outputs.append(hidden_of(network, TEXTS))
            outputs[-1].square().sum().backward()
            gradients.append(network.layers[0].attention.qkv.weight.grad.clone())
        assert close(outputs[1], outputs[0], 1e-9)
        assert close(gradients[1], gradients[0], 1e-9)
        assert len(seen) == network.config.layers
        for sighting in seen:
            assert sighting.weights.shape == (len(TEXTS), network.config.heads, 30, 30)
            sums = sighting.weights.sum(-1)
            real = torch.arange(30) < sighting.rows.lengths()[:, None]
            assert torch.allclose(sums, real[:, None].to(sums).expand_as(sums))
        for layer in network.layers:
            layer.attention.watcher = None


@pytest.mark.parametrize("name", LEARNED)
def test_rows_seen_in_inference_can_train(name: str) -> None:
    network, batch = network_of(name), Ragged.of(TEXTS)
    with torch.inference_mode():
        expected = network(batch.tokens, batch.rows)
    hidden = network(batch.tokens, batch.rows)
    hidden.sum().backward()
    assert close(hidden, expected, 1e-12)  # where a bias is learned, torch takes another kernel


@pytest.mark.parametrize("name", [name for name in PLAIN if FAMILIES[name].network.COMPILES])
def test_the_compiler_sees_one_whole_graph(name: str) -> None:
    network, texts = network_of(name), [[1, 2, 3, 4], [5, 6, 7, 8]]
    compiled = torch.compile(network, fullgraph=True, backend="eager")
    batch = Ragged.of(texts)
    assert close(compiled(batch.tokens, batch.rows), hidden_of(network, texts), 1e-9)


@pytest.mark.parametrize("name", PLAIN)
def test_a_text_longer_than_the_context_is_named(name: str) -> None:
    from weft.errors import UserError

    with pytest.raises(UserError, match="41 tokens is longer than the model's context of 40"):
        hidden_of(network_of(name), [[1] * 41])


@pytest.mark.parametrize("name", PLAIN)
def test_save_then_load_is_equal_to_the_bit(name: str, tmp_path: Path) -> None:
    family, config = FAMILIES[name], CASES[name].config()
    heads = usual_heads(family, config)
    torch.manual_seed(1)
    network = family.network(config, heads)
    network.initialize()
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        save_folder(tmp_path / str(dtype), LoadedModel(family, config, network.to(dtype), heads, None, Card()))
        loaded = open_folder(tmp_path / str(dtype))
        assert loaded.config == config and dict(loaded.heads) == heads
        state = network.state_dict()
        assert state.keys() == loaded.network.state_dict().keys()
        assert all(torch.equal(state[key], tensor) for key, tensor in loaded.network.state_dict().items())


@pytest.mark.parametrize("name", ATTENTIVE)
def test_fresh_weights_repeat_and_learn(name: str) -> None:
    torch.manual_seed(0)
    off = {key: 0.0 for key in ("dropout", "attention_dropout") if FAMILIES[name].config.has(key)}
    network, again = (network_of(name, torch.float32, **off) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), again.parameters(), strict=True))
    losses = steps_of(network, 60)
    assert losses[-1] < 0.5 * losses[0], "it cannot even learn one batch by heart"


def steps_of(network: Any, count: int) -> list[float]:
    """The loss while a network learns to name the token that stands at each place (encoder) or comes next (decoder)."""
    batch = Ragged.of([text for text in TEXTS if len(text) > 1])
    places = batch.rows.places(len(batch.tokens))
    targets = batch.tokens.roll(-1)
    keep = places < batch.rows.lengths()[batch.rows.numbers(len(batch.tokens))] - 1
    optimizer = torch.optim.AdamW(network.parameters(), 3e-3)
    losses = []
    for _ in range(count):
        scores = network.words(network(batch.tokens, batch.rows)[keep])
        loss = torch.nn.functional.cross_entropy(scores, targets[keep])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_rows_know_their_places() -> None:
    rows = Rows.of([2, 0, 3])
    assert rows.starts.tolist() == [0, 2, 2, 5] and rows.longest == 3 and rows.count == 3
    assert rows.places(5).tolist() == [0, 1, 0, 1, 2] and rows.numbers(5).tolist() == [0, 0, 2, 2, 2]
    assert rows.lasts().tolist()[0] == 1 and rows.firsts().tolist()[2] == 2

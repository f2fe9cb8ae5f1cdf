"""What every encoder-decoder must keep, whatever its cells and ways to look: one list, one test per contract."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.contracts.test_families import PRECISIONS, close
from tests.table import CASES, READERS, read_of
from weft.checkpoint.card import Card
from weft.checkpoint.families import FAMILIES, find_size, measure, usual_heads
from weft.checkpoint.folder import LoadedModel, open_folder, save_folder
from weft.errors import UserError
from weft.nn.rows import Ragged, Rows

SOURCES = [[5, 9, 2, 31, 7], [8], [3, 3, 4, 12, 30, 11, 6, 9, 1], [6, 2], [17] * 12]
TEXTS = [[0, 9], [0, 4, 3, 3, 1, 12, 6], [0], [0, 5, 5, 5], [0, 2, 7]]

# A family joins with a line: its name and the settings that make its ways differ.
NETWORKS: list[tuple[str, dict[str, Any]]] = [
    ("transformer", {}),
    ("transformer", {"norm_place": "before", "tied": "decoder", "source_vocabulary": 41, "decoder_layers": 1}),
    ("marian", {}),
    ("marian", {"tied": "none", "decoder_heads": 6, "decoder_inner": 50}),
    ("t5", {}),
    ("t5", {"norm": "rms", "decoder_layers": 3}),
    ("t5", {"norm": "rms", "activation": "gated-gelu", "tied": False, "scaled": False, "layers": 1}),
    ("seq2seq", {"attention": "none", "bidirectional": False}),
    ("seq2seq", {"attention": "none", "cell": "gru", "tied": "decoder", "embedding_width": 20}),
    ("seq2seq", {"attention": "additive", "cell": "gru", "source_vocabulary": 41, "tied": "none", "layers": 1}),
    ("seq2seq", {"attention": "additive", "tied": "all"}),
    ("seq2seq", {"attention": "dot", "cell": "rnn"}),
    ("seq2seq", {"attention": "general", "embedding_width": 20}),
    ("seq2seq", {"attention": "general", "feeding": True, "bidirectional": False, "reverse": True}),
    ("seq2seq", {"attention": "dot", "feeding": True, "cell": "gru"}),
    ("conv-seq2seq", {"attention": "none", "tied": "decoder"}),
    ("conv-seq2seq", {}),
    ("conv-seq2seq", {"kernel": 5, "tied": "all", "layers": 3}),
    ("vec2seq", {}),
    ("vec2seq", {"cell": "gru", "entrance": "input", "embedding_width": 20, "layers": 1}),
    ("vec2seq", {"cell": "rnn", "tied": False, "embedding_width": 20}),
    ("vec2seq", {"entrance": "input"}),
]
every = pytest.mark.parametrize("name, settings", NETWORKS, ids=lambda x: x if isinstance(x, str) else _said(x))


def _said(settings: dict[str, Any]) -> str:
    return "-".join(str(value) for value in settings.values()) or "usual"


def network_of(name: str, settings: dict[str, Any], dtype: torch.dtype = torch.float64) -> Any:
    family, config = FAMILIES[CASES[name].family], CASES[name].config(**settings)
    torch.manual_seed(1)
    network = family.network(config, usual_heads(family, config))
    network.initialize()
    return network.to(dtype).eval()


def near(network: Any, found: Tensor, expected: Tensor, tolerance: float) -> bool:
    """As close as the numbers are: T5's own norm takes its variance in float32, and may round in another way."""
    return close(found, expected, max(tolerance, 1e-6 if getattr(network.config, "norm", "") == "rms-t5" else 0.0))


def hidden_of(network: Any, texts: list[list[int]], sources: list[list[int]]) -> Tensor:
    batch = Ragged.of(texts)
    return network(batch.tokens, batch.rows, source=sources_of(network, sources))


def sources_of(network: Any, sources: list[list[int]]) -> Ragged:
    """What the sources are to this network: tokens, or vectors that tell them apart."""
    name = "vec2seq" if hasattr(network.config, "features") else "seq2seq"
    return Ragged.of([read_of(name, source) for source in sources])


def looks(config: Any) -> bool:
    """Whether a network looks back at what was read."""
    return vars(config).get("attention", "") != "none" and "features" not in vars(config)


def test_every_encoder_decoder_is_in_the_list() -> None:
    assert {name for name, _ in NETWORKS} == set(READERS)


@pytest.mark.parametrize("dtype, tolerance", PRECISIONS)
@every
def test_batch_equals_single(name: str, settings: dict[str, Any], dtype: torch.dtype, tolerance: float) -> None:
    network = network_of(name, settings, dtype)
    together, rows = hidden_of(network, TEXTS, SOURCES), Ragged.of(TEXTS).rows
    assert together.shape == (sum(map(len, TEXTS)), network.config.width)
    for text, source, start in zip(TEXTS, SOURCES, rows.firsts().tolist(), strict=True):
        assert near(network, together[start : start + len(text)], hidden_of(network, [text], [source]), tolerance)


@every
def test_gradients_of_a_batch_are_the_sum_of_single_ones(name: str, settings: dict[str, Any]) -> None:
    network = network_of(name, settings)
    network.words(hidden_of(network, TEXTS, SOURCES)).square().sum().backward()
    together = {key: p.grad.clone() for key, p in network.named_parameters()}  # every part takes part
    network.zero_grad()
    for text, source in zip(TEXTS, SOURCES, strict=True):
        network.words(hidden_of(network, [text], [source])).square().sum().backward()
    for key, parameter in network.named_parameters():
        assert near(network, together[key], parameter.grad, 1e-9), key


@every
def test_a_changed_future_leaves_the_past_and_a_changed_source_nothing(name: str, settings: dict[str, Any]) -> None:
    network = network_of(name, settings)
    texts, sources = [[0, 2, 3, 4, 5, 6]], [[7, 8, 9, 10, 11, 12, 13]]
    before = hidden_of(network, texts, sources)
    after = hidden_of(network, [[0, 2, 3, 9, 9, 9]], sources)
    assert torch.equal(before[:3], after[:3])
    assert ((before[3:] - after[3:]).abs().amax(-1) > 1e-9).all()
    for place in range(7):  # each word of what is read tells at every place that is written
        changed = [*sources[0][:place], 30, *sources[0][place + 1 :]]
        assert ((hidden_of(network, texts, [changed]) - before).abs().amax(-1) > 1e-9).all(), place


@pytest.mark.parametrize("dtype, tolerance", PRECISIONS)
@every
def test_cached_equals_uncached(name: str, settings: dict[str, Any], dtype: torch.dtype, tolerance: float) -> None:
    """Ragged prompts, and twice a change of rows: some gone, some twice, and others that only change places."""
    network = network_of(name, settings, dtype)
    said, sources = [list(text) for text in TEXTS], list(SOURCES)
    with torch.inference_mode():
        scores, state = network.start(Ragged.of(TEXTS), sources_of(network, SOURCES), attention=True)
        for step in range(6):
            if step in (2, 4):
                order = torch.tensor([3, 0, 0, 4] if step == 2 else [0, 2, 1, 3])
                attention = state.attention
                state.pick(order)
                assert attention is None or torch.equal(state.attention, attention[order])
                said = [list(said[row]) for row in order.tolist()]
                sources = [sources[row] for row in order.tolist()]
            batch = Ragged.of(said)
            if step not in (2, 4):
                expected = network.words(hidden_of(network, said, sources)[batch.rows.lasts()])
                assert near(network, scores, expected, tolerance)
                check_attention(network, state.attention, sources)
            tokens = torch.arange(len(said)) + 7 * step
            scores = network.step(tokens, state)
            for text, token in zip(said, tokens.tolist(), strict=True):
                text.append(token)


def check_attention(network: Any, found: Tensor | None, sources: list[list[int]]) -> None:
    """It adds up to one over the row's own source, and there is none on filling."""
    if not looks(network.config):
        assert found is None
        return
    assert found is not None and found.dtype == torch.float32 and found.shape == (len(sources), 12)
    for row, source in zip(found, sources, strict=True):
        assert (row[: len(source)] > 0).all() and (row[len(source) :] == 0).all()
        assert abs(row.sum().item() - 1) < 1e-5


@every
def test_attention_on_request_is_that_of_each_row_alone(name: str, settings: dict[str, Any]) -> None:
    network = network_of(name, settings)
    with torch.inference_mode():
        _, state = network.start(Ragged.of(TEXTS), sources_of(network, SOURCES))
        assert state.attention is None
        _, state = network.start(Ragged.of(TEXTS), sources_of(network, SOURCES), attention=True)
        if state.attention is None:
            return
        for row, (text, source) in enumerate(zip(TEXTS, SOURCES, strict=True)):
            _, alone = network.start(Ragged.of([text]), sources_of(network, [source]), attention=True)
            assert close(state.attention[row, : len(source)], alone.attention[0], 1e-6)


@every
def test_filling_changes_nothing(name: str, settings: dict[str, Any]) -> None:
    """Rows of filling, empty ones among them, and a rectangle larger than needed: what a captured pass is given."""
    network = network_of(name, settings)
    expected = network.words(hidden_of(network, TEXTS, SOURCES))
    expected.square().sum().backward()
    gradients = [parameter.grad.clone() for parameter in network.parameters()]
    network.zero_grad()
    texts, sources = Ragged.of([*TEXTS, [1, 1], [], [1]]), sources_of(network, [*SOURCES, [], [1] * 3, [1]])
    found = network(
        texts.tokens, Rows(texts.rows.starts, 11), source=Ragged(sources.tokens, Rows(sources.rows.starts, 16))
    )
    assert found.isfinite().all()
    found = network.words(found[: len(expected)])
    assert near(network, found, expected, 1e-9)
    found.square().sum().backward()
    for parameter, gradient in zip(network.parameters(), gradients, strict=True):
        assert near(network, parameter.grad, gradient, 1e-9)


@every
def test_save_then_load_is_equal_to_the_bit(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    network = network_of(name, settings, torch.float32)
    family, heads = FAMILIES[name], {"words": network.config.vocabulary}
    save_folder(tmp_path / "m", LoadedModel(family, network.config, network, heads, None, Card()))
    again = open_folder(tmp_path / "m")
    assert again.config == network.config and dict(again.heads) == heads
    state = network.state_dict()
    assert state.keys() == again.network.state_dict().keys()
    assert all(torch.equal(state[key], tensor) for key, tensor in again.network.state_dict().items())
    assert torch.equal(hidden_of(again.network, TEXTS, SOURCES), hidden_of(network, TEXTS, SOURCES))


@every
def test_half_precision_while_training(name: str, settings: dict[str, Any]) -> None:
    network = network_of(name, settings, torch.float32)
    expected = network.words(hidden_of(network, TEXTS, SOURCES))
    with torch.autocast("cpu", torch.bfloat16):
        found = network.words(hidden_of(network.train(), TEXTS, SOURCES))
        found.sum().backward()
        found = network.words(hidden_of(network.eval(), TEXTS, SOURCES))
    assert (found.float() - expected).norm() / expected.norm() < 5e-2


@every
def test_operations_grow_as_the_text_does(name: str, settings: dict[str, Any]) -> None:
    """Known without numbers; rows add up; with attention, the longer the text, the more a token costs."""
    family, config = FAMILIES[name], CASES[name].config(**settings)
    found = measure(family, config, usual_heads(family, config))
    assert found.parameters > 0 and found.flops > 2 * config.vocabulary * config.width
    network = network_of(name, settings)
    one, two, three = (network.operations(Rows.of([n]), Rows.of([n])) for n in (5, 10, 15))
    assert network.operations(Rows.of([5, 10]), Rows.of([5, 10])) == pytest.approx(one + two)
    assert (three - two > two - one) if looks(config) else three - two == pytest.approx(two - one)


@pytest.mark.parametrize("name", ["transformer", "t5", "conv-seq2seq"])
def test_the_compiler_sees_one_whole_graph(name: str) -> None:
    network, texts, sources = network_of(name, {"layers": 1}), [[0, 7], [0, 8]], [[1, 2, 3], [4, 5, 6]]
    compiled = torch.compile(network, fullgraph=True, backend="eager")
    assert near(network, hidden_of(compiled, texts, sources), hidden_of(network, texts, sources), 1e-9)


@every
def test_texts_longer_than_the_context_are_named(name: str, settings: dict[str, Any]) -> None:
    network = network_of(name, settings)
    long = "a text of 41 tokens is longer than the model's context of 40"
    wide = "a vector of 41 numbers, where the model takes 12" if name == "vec2seq" else long
    for texts, sources, match in (([[0] * 41], [[1]], long), ([[0]], [[1] * 41], wide)):
        with pytest.raises(UserError, match=match):
            hidden_of(network, texts, sources)


@every
def test_states_begin_with_the_embeddings(name: str, settings: dict[str, Any]) -> None:
    network, batch, states = network_of(name, settings), Ragged.of(TEXTS), []
    hidden = network(batch.tokens, batch.rows, None, states, source=sources_of(network, SOURCES))
    assert len(states[0]) == len(batch.tokens) and torch.equal(states[-1], hidden)
    changed, other = Ragged.of([*TEXTS[:-1], [0, 9, 7]]), []  # the last token but one: nothing after it sees it yet
    network(changed.tokens, changed.rows, None, other, source=sources_of(network, SOURCES))
    same = (states[0] == other[0]).all(-1)
    assert same[:-2].all() and same[-1] and not same[-2] and not torch.equal(states[1][-1], other[1][-1])


@pytest.mark.parametrize("name", READERS)
def test_sizes_by_name(name: str) -> None:
    family, config = find_size(name, "3x128")
    assert (family.name, config.layers, config.width) == (name, 3, 128)
    for size in family.sizes:
        assert measure(family, family.sizes[size], {"words": family.sizes[size].vocabulary}).parameters > 1e7

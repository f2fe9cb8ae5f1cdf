"""Attention that `weft.watch` hands out against transformers' eager weights, on the same folders and ragged rows.

By the rule of logits: float64 within 1e-9 at weight scales 0.02 and 0.3, float32 within 1e-5 at 0.02.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import weft
from tests.parity import test_t5 as t5
from tests.parity.test_heads import RULE, TEXTS, peer_of, segments_of
from tests.table import CASES, PEERED
from weft.checkpoint.folder import open_folder
from weft.nn.rows import Ragged

precise = pytest.mark.parametrize("dtype, scale, tolerance", RULE, ids=lambda value: str(value).removeprefix("torch."))


def filled_up(texts: list[list[int]], padding: int) -> tuple[Tensor, Tensor]:
    longest = max(map(len, texts))
    ids = torch.tensor([text + [padding] * (longest - len(text)) for text in texts])
    return ids, torch.tensor([[1] * len(text) + [0] * (longest - len(text)) for text in texts])


def difference(found: Tensor, expected: Tensor) -> float:
    """The largest difference, where the peer's weights are not all alike."""
    assert found.shape == expected.shape
    return float((found - expected).abs().max())


@precise
@pytest.mark.parametrize("family", PEERED)
def test_equal_to_the_peer(family: str, dtype: torch.dtype, scale: float, tolerance: float, tmp_path: Path) -> None:
    case = CASES[family]
    architecture = next(name for name, heads in case.heads.items() if heads == ())
    peer = peer_of(case, architecture, "usual", scale, dtype)
    peer.save_pretrained(tmp_path)
    ids, real = filled_up(TEXTS, peer.config.pad_token_id or 0)
    inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": real}
    batch, segments = Ragged.of(TEXTS), None
    if case.segments:
        inputs[case.channel] = segments_of(ids.shape)
        segments = inputs[case.channel][0][batch.rows.places(len(batch.tokens))]
    network = open_folder(tmp_path).network
    with torch.inference_mode(), weft.watch(network) as seen:
        expected = peer(**inputs, output_attentions=True).attentions
        network(batch.tokens, batch.rows, segments)
    assert len(expected) == network.config.layers
    for row, text in enumerate(TEXTS):
        for layer, weights in enumerate(expected):
            own = seen[row].attention[layer]
            assert own.dtype == dtype
            assert difference(own, weights[row, :, : len(text), : len(text)]) <= tolerance


@precise
@pytest.mark.parametrize("kind", t5.KINDS)
def test_t5_equals_the_peer(kind: str, dtype: torch.dtype, scale: float, tolerance: float, tmp_path: Path) -> None:
    peer = t5.peer_of(kind, scale, dtype)
    peer.save_pretrained(tmp_path)
    network = open_folder(tmp_path).network
    (read, real), (written, kept) = (filled_up(texts, 0) for texts in (t5.SOURCES, t5.TARGETS))
    with torch.inference_mode(), weft.watch(network) as seen:
        out = peer(
            input_ids=read,
            attention_mask=real,
            decoder_input_ids=written,
            decoder_attention_mask=kept,
            output_attentions=True,
        )
        targets = Ragged.of(t5.TARGETS)
        network(targets.tokens, targets.rows, source=Ragged.of(t5.SOURCES))
    stacks = {"encoder": out.encoder_attentions, "decoder": out.decoder_attentions, "cross": out.cross_attentions}
    for name, expected in stacks.items():
        assert len(expected) == seen.depths[name]
        rows = t5.SOURCES if name == "encoder" else t5.TARGETS
        columns = t5.TARGETS if name == "decoder" else t5.SOURCES
        for row, (down, across) in enumerate(zip(rows, columns, strict=True)):
            for layer, weights in enumerate(expected):
                own = seen[row].stacks[name].attention[layer]
                assert difference(own, weights[row, :, : len(down), : len(across)]) <= tolerance, name


@pytest.mark.parametrize("family", ["gpt2", "openai-gpt"])
def test_hidden_states_equal_the_peer(family: str, tmp_path: Path) -> None:
    """Outputs of layers and embeddings; after the last layer of GPT-2 the peer has its final norm."""
    case = CASES[family]
    architecture = next(name for name, heads in case.heads.items() if heads == ())
    peer = peer_of(case, architecture, "usual", 0.3, torch.float64)
    peer.save_pretrained(tmp_path)
    network, text = open_folder(tmp_path).network, TEXTS[2]
    with torch.inference_mode(), weft.watch(network) as seen:
        expected = peer(torch.tensor([text]), output_hidden_states=True).hidden_states
        batch = Ragged.of([text])
        network(batch.tokens, batch.rows)
    assert difference(seen.embeddings, expected[0][0]) <= 1e-9
    assert difference(seen.hidden[0], expected[1][0]) <= 1e-9
    with torch.no_grad():
        last = network.final_norm(seen.hidden[1])
    assert difference(last, expected[2][0]) <= 1e-9

"""Every encoder-decoder against randomly initialized peers of transformers, through a saved folder.

By the same rule as the other families: float64 within 1e-9 at weight scales 0.02 and 0.3, float32 within 1e-5 at 0.02.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from tests.parity.test_heads import RULE
from tests.table import READERS
from weft.checkpoint.families import FAMILIES
from weft.checkpoint.folder import open_folder, save_folder
from weft.nn.rows import Ragged


@dataclass(frozen=True)
class Peer:
    """How a small peer of one family is made; a new family joins with one entry."""

    family: str
    config: Callable[..., Any]  # settings in the peer's own words -> its config
    variants: dict[str, dict[str, Any]] = field(default_factory=lambda: {"usual": {}})
    full: str = ""  # the class that scores words
    bare: str = ""  # the one without a head
    activation: str = ""  # the key of its config that names the activation


def marian(**settings: Any) -> Any:
    sizes = {f"{side}_{what}": size for side in ("encoder", "decoder") for what, size in
             (("layers", 2), ("attention_heads", 3), ("ffn_dim", 96))}  # fmt: skip
    special = {"pad_token_id": 0, "eos_token_id": 1, "forced_eos_token_id": 1, "decoder_start_token_id": 0}
    usual = {"vocab_size": 101, "max_position_embeddings": 40, "d_model": 48, "activation_function": "swish"}
    return transformers.MarianConfig(**{**sizes, **special, **usual, "scale_embedding": True, **settings})


APART = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 60}
PEERS = {
    "marian": Peer(
        "marian",
        marian,
        {
            "usual": {},
            "two vocabularies": APART,
            "nothing tied": {**APART, "tie_word_embeddings": False},
            "one vocabulary, words not tied": {"tie_word_embeddings": False},
            "sides of different sizes": {"decoder_layers": 3, "decoder_attention_heads": 6, "decoder_ffn_dim": 50},
            "one layer, not scaled": {"encoder_layers": 1, "decoder_layers": 1, "scale_embedding": False},
        },
        full="MarianMTModel",
        bare="MarianModel",
        activation="activation_function",
    ),
}
SOURCES = [[5, 9, 2, 31, 7, 1], [8, 1], [3, 3, 4, 12, 30, 11, 6, 9, 10, 1], [6, 2, 1]]
TARGETS = [[0, 4], [0, 9, 8, 7, 6, 12], [0], [0, 11, 3]]


def peer_of(peer: Peer, architecture: str, settings: dict[str, Any], scale: float, dtype: torch.dtype) -> Any:
    """A peer whose every weight is drawn anew: fresh norms and biases would hide a swapped one."""
    config = peer.config(**settings)
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    made = getattr(transformers, architecture)(config).to(dtype).eval()
    with torch.no_grad():
        for name, tensor in (*made.named_parameters(), *made.named_buffers()):
            if "embed_positions" in name:
                continue  # sinusoids
            tensor.normal_(0.0, scale)
            if tensor.dim() == 1 and name.endswith("weight"):  # a norm
                tensor += 1.0
    return made


def padded(texts: list[list[int]]) -> tuple[Tensor, Tensor]:
    longest = max(map(len, texts))
    ids = torch.tensor([text + [0] * (longest - len(text)) for text in texts])
    return ids, torch.tensor([[1] * len(text) + [0] * (longest - len(text)) for text in texts])


def said(made: Any) -> Tensor:
    """What the peer says at every token that is to be written, padding taken out."""
    (ids, real), (written, kept) = padded(SOURCES), padded(TARGETS)
    out = made(input_ids=ids, attention_mask=real, decoder_input_ids=written, decoder_attention_mask=kept)
    return (out.logits if "logits" in out else out.last_hidden_state)[kept.bool()]


def ours(opened: Any) -> Tensor:
    batch = Ragged.of(TARGETS)
    hidden = opened.network(batch.tokens, batch.rows, source=Ragged.of(SOURCES))
    return opened.network.words(hidden) if opened.heads else hidden


def test_every_published_encoder_decoder_has_a_peer() -> None:
    assert {name for name in READERS if FAMILIES[name].architectures} == {*PEERS, "t5"}  # test_t5.py


# By the whole rule where the arithmetic is told apart, by its sharpest line where only sizes and tables differ.
BY_RULE = [
    pytest.param(name, variant, *line, id=f"{name}-{variant}-{str(line[0]).removeprefix('torch.')}-{line[1]}")
    for name, peer in PEERS.items()
    for variant in peer.variants
    for line in (RULE if variant in ("usual", "one layer, not scaled") else RULE[1:2])
]


@pytest.mark.parametrize("family, variant, dtype, scale, tolerance", BY_RULE)
def test_equal_to_the_peer(
    family: str, variant: str, dtype: torch.dtype, scale: float, tolerance: float, tmp_path: Path
) -> None:
    peer = PEERS[family]
    for architecture in (peer.full, peer.bare):
        made = peer_of(peer, architecture, peer.variants[variant], scale, dtype)
        made.save_pretrained(tmp_path / architecture)
        opened = open_folder(tmp_path / architecture)
        assert set(opened.heads) == set(FAMILIES[family].architectures[architecture])
        assert opened.family.architecture(opened.config, opened.heads) == architecture
        with torch.inference_mode():
            expected, found = said(made), ours(opened)
        assert found.dtype == dtype and expected.abs().max() > 1e-3
        assert (found - expected).abs().max() <= tolerance


@pytest.mark.parametrize(
    "family, variant", [(name, variant) for name, peer in PEERS.items() for variant in peer.variants]
)
def test_cached_decoding_equals_the_peer(family: str, variant: str, tmp_path: Path) -> None:
    """From ragged prompts, step by step, rows repeated and in another order on the way."""
    peer = PEERS[family]
    following = torch.tensor([[4, 5, 6], [7, 8, 9], [1, 2, 3], [11, 12, 13]])
    for scale in (0.02, 0.3):
        made = peer_of(peer, peer.full, peer.variants[variant], scale, torch.float64)
        made.save_pretrained(tmp_path / str(scale))
        network: Any = open_folder(tmp_path / str(scale)).network
        with torch.inference_mode():
            scores, state = network.start(Ragged.of(TARGETS), Ragged.of(SOURCES))
            steps = [scores] + [network.step(following[:, place], state) for place in range(3)]
            rows = torch.tensor([2, 2, 0, 3])
            state.pick(rows)
            last = network.step(torch.tensor([5, 6, 7, 8]), state)
            for row, text in enumerate(TARGETS):
                written = torch.tensor([text + following[row].tolist()])
                expected = made(torch.tensor([SOURCES[row]]), decoder_input_ids=written).logits[0, len(text) - 1 :]
                assert (torch.stack([step[row] for step in steps]) - expected).abs().max() <= 1e-9
            for place, row in enumerate(rows.tolist()):
                written = torch.tensor([TARGETS[row] + following[row].tolist() + [5 + place]])
                expected = made(torch.tensor([SOURCES[row]]), decoder_input_ids=written).logits[0, -1]
                assert (last[place] - expected).abs().max() <= 1e-9


@pytest.mark.parametrize(
    "family, name",
    [(family, name) for family, peer in PEERS.items() for name in FAMILIES[family].table.values[peer.activation]],
)
def test_every_published_activation(family: str, name: str, tmp_path: Path) -> None:
    peer = PEERS[family]
    made = peer_of(peer, peer.bare, {peer.activation: name}, 0.3, torch.float64)
    made.save_pretrained(tmp_path)
    with torch.inference_mode():
        assert (ours(open_folder(tmp_path)) - said(made)).abs().max() <= 1e-9


@pytest.mark.parametrize(
    "family, variant", [(name, variant) for name, peer in PEERS.items() for variant in peer.variants]
)
def test_in_and_out_is_bit_equal(family: str, variant: str, tmp_path: Path) -> None:
    """Their folder, opened, saved and opened by them: the same tensors, config and scores; generation works."""
    peer = PEERS[family]
    for architecture in (peer.full, peer.bare):
        made = peer_of(peer, architecture, peer.variants[variant], 0.3, torch.float32)
        made.save_pretrained(tmp_path / architecture)
        copy = tmp_path / f"{architecture}-copy"
        save_folder(copy, open_folder(tmp_path / architecture))
        back, report = getattr(transformers, architecture).from_pretrained(
            copy, output_loading_info=True, attn_implementation="eager"
        )
        missing = {name for name in report["missing_keys"] if "embed_positions" not in name}
        assert not missing and not report["unexpected_keys"] and not report["mismatched_keys"]
        state = made.state_dict()
        for name, tensor in back.state_dict().items():
            assert torch.equal(tensor, state[name]), name
        for key, value in made.config.to_dict().items():
            # Without tied words the peer shares no table, and keeps a third that it never reads: it comes back without.
            if variant == "one vocabulary, words not tied" and key == "share_encoder_decoder_embeddings":
                continue
            if key not in ("_name_or_path", "dtype", "transformers_version", "architectures"):
                assert back.config.to_dict()[key] == value, key
        with torch.inference_mode():
            assert torch.allclose(said(back.eval()), said(made), rtol=0, atol=1e-6)
        again = open_folder(copy)
        assert again.config == open_folder(tmp_path / architecture).config
        if architecture == peer.full:
            ids, real = padded(SOURCES)
            written = back.generate(ids, attention_mask=real, max_length=9, num_beams=2)
            assert (written[:, 0] == again.config.begin).all()
            for row in written.tolist():
                body = row[1 : row.index(1)]  # to the end, which is forced; behind it is padding
                assert body and not set(again.never) & set(body)


@pytest.mark.parametrize("family", PEERS)
def test_a_fresh_one_opened_by_the_peer(family: str, tmp_path: Path) -> None:
    import weft

    peer = PEERS[family]
    settings = {"vocabulary": 101, "context": 40, "width": 48, "layers": 2, "heads": 3, "inner": 96}
    model = weft.new(family, settings=settings)
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter += torch.randn_like(parameter) * 0.1
    model.save(tmp_path / "m")
    assert json.loads((tmp_path / "m" / "config.json").read_text())["model_type"] == family
    back, report = getattr(transformers, peer.full).from_pretrained(
        tmp_path / "m", output_loading_info=True, attn_implementation="eager"
    )
    assert not report["missing_keys"] and not report["unexpected_keys"]
    with torch.inference_mode():
        assert (said(back.eval()) - ours(model.opened)).abs().max() <= 1e-4

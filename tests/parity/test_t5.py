"""T5, original and version 1.1, against randomly initialized peers of transformers, through saved folders both ways."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from weft.checkpoint.card import Card
from weft.checkpoint.families import FAMILIES, find_size, measure, usual_heads
from weft.checkpoint.folder import open_folder, save_folder
from weft.errors import UserError
from weft.nn.positions import Buckets
from weft.nn.rows import Ragged

RULE = [(torch.float64, 0.02, 1e-9), (torch.float64, 0.3, 1e-9), (torch.float32, 0.02, 1e-5)]
KINDS = ("original", "gated", "two depths")
# Longer than the farthest distance that has a bucket of its own.
SOURCES = [[5, 9, 2, 31, 7, 1], [8], list(range(3, 40)), [6, 2]]
TARGETS = [[0, 4, 4, 8], [0, 3, 17, 22, 9, 2, 30, 11, *range(2, 30)], [0], [0, 12]]


def peer_of(kind: str, scale: float = 0.3, dtype: torch.dtype = torch.float64, architecture: str = "") -> Any:
    """A peer of a kind, or else of an activation; its every parameter is drawn anew: fresh norms would hide a swap."""
    sizes = {"vocab_size": 41, "d_model": 24, "d_kv": 10, "d_ff": 36, "num_layers": 2, "num_heads": 3}
    sizes |= {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 20}
    if kind == "gated":
        sizes |= {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
    elif kind == "two depths":
        sizes |= {"num_layers": 1, "num_decoder_layers": 3, "feed_forward_proj": "gelu"}
    elif kind != "original":
        sizes["feed_forward_proj"] = kind
    config = transformers.T5Config(**sizes, decoder_start_token_id=0)
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    peer = getattr(transformers, architecture or "T5ForConditionalGeneration")(config)
    if kind == "gated" and hasattr(peer, "lm_head"):
        peer.lm_head.weight = nn.Parameter(torch.zeros(41, 24))  # version 1.1 has a table of its own
    peer = peer.to(dtype).eval()
    with torch.no_grad():
        for parameter in peer.parameters():
            parameter.normal_(0.0, scale)
            if parameter.dim() == 1:
                parameter += 1.0
    return peer


def of_peer(peer: Any) -> Tensor:
    """What the peer says at each place written, padding taken out."""

    def square(texts: list[list[int]]) -> tuple[Tensor, Tensor]:
        longest = max(map(len, texts))
        ids = torch.tensor([text + [0] * (longest - len(text)) for text in texts])
        return ids, torch.tensor([[1] * len(text) + [0] * (longest - len(text)) for text in texts])

    (read, real), (written, kept) = square(SOURCES), square(TARGETS)
    with torch.inference_mode():
        out = peer(input_ids=read, attention_mask=real, decoder_input_ids=written)
    return (out.logits if "logits" in out else out.last_hidden_state)[kept.bool()]


def of_ours(network: Any, words: bool = True) -> Tensor:
    read, written = Ragged.of(SOURCES), Ragged.of(TARGETS)
    with torch.inference_mode():
        hidden = network(written.tokens, written.rows, source=read)
        return network.words(hidden) if words else hidden


@pytest.mark.parametrize("dtype, scale, tolerance", RULE, ids=lambda value: str(value).removeprefix("torch."))
@pytest.mark.parametrize("kind", KINDS)
def test_equal_to_the_peer(kind: str, dtype: torch.dtype, scale: float, tolerance: float, tmp_path: Path) -> None:
    peer = peer_of(kind, scale, dtype)
    peer.save_pretrained(tmp_path)
    opened = open_folder(tmp_path)
    expected = of_peer(peer)
    assert expected.abs().max() > 1e-3
    assert of_ours(opened.network).dtype == dtype
    assert (of_ours(opened.network) - expected).abs().max() <= tolerance
    assert opened.config.tied == opened.config.scaled == (kind != "gated")


@pytest.mark.parametrize("name", FAMILIES["t5"].table.values["feed_forward_proj"])
def test_every_published_activation(name: str, tmp_path: Path) -> None:
    peer = peer_of(name)
    peer.save_pretrained(tmp_path)
    assert (of_ours(open_folder(tmp_path).network) - of_peer(peer)).abs().max() <= 1e-9


@pytest.mark.parametrize("kind", KINDS)
def test_cached_decoding_equals_the_peer(kind: str, tmp_path: Path) -> None:
    """Ragged prompts, rows that change places and come twice, and a cache that has to grow."""
    peer = peer_of(kind)
    peer.save_pretrained(tmp_path)
    network: Any = open_folder(tmp_path).network
    written = Ragged.of(TARGETS)
    rows = list(range(4))
    with torch.inference_mode():
        scores, state = network.start(written, Ragged.of(SOURCES), attention=True)
        assert (scores - of_peer(peer)[written.rows.lasts()]).abs().max() <= 1e-9
        said = [list(text) for text in TARGETS]
        for step in range(5):
            if step == 2:
                rows = [2, 0, 0, 1]
                state.pick(torch.tensor(rows))
                said = [list(said[row]) for row in rows]
            tokens = torch.arange(4) + 5 * step
            scores = network.step(tokens, state)
            for text, token in zip(said, tokens.tolist(), strict=True):
                text.append(token)
        for row, text in enumerate(said):
            source = torch.tensor([SOURCES[rows[row]]])
            expected = peer(input_ids=source, decoder_input_ids=torch.tensor([text])).logits[0, -1]
            assert (scores[row] - expected).abs().max() <= 1e-9
            looked = state.attention[row]
            assert looked[: source.shape[1]].sum().item() == pytest.approx(1.0, abs=1e-6)
            assert (looked[source.shape[1] :] == 0).all()


def test_even_rows_step_as_the_peer(tmp_path: Path) -> None:
    """Rows that are equally long share one bias in a decoding step."""
    peer = peer_of("original")
    peer.save_pretrained(tmp_path)
    network: Any = open_folder(tmp_path).network
    with torch.inference_mode():
        _, state = network.start(Ragged.of([[0], [0]]), Ragged.of([[5, 6, 7], [8, 9, 10]]), room=2)
        for token in range(3, 12):
            scores = network.step(torch.tensor([token, token + 1]), state)
        text = torch.tensor([[0, *range(3, 12)], [0, *range(4, 13)]])
        expected = peer(input_ids=torch.tensor([[5, 6, 7], [8, 9, 10]]), decoder_input_ids=text).logits[:, -1]
        assert (scores - expected).abs().max() <= 1e-9


@pytest.mark.parametrize("kind", KINDS)
def test_there_and_back(kind: str, tmp_path: Path) -> None:
    """What the peer saves comes out of ours with equal names and numbers, and the peer opens it."""
    peer = peer_of(kind, dtype=torch.float32)
    peer.save_pretrained(tmp_path / "theirs")
    save_folder(tmp_path / "ours", open_folder(tmp_path / "theirs"))
    theirs, ours = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "ours"))
    assert theirs.keys() == ours.keys() and all(torch.equal(theirs[name], ours[name]) for name in theirs)
    again = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / "ours", attn_implementation="eager")
    assert torch.equal(of_peer(again), of_peer(peer))
    assert again.config.scale_decoder_outputs == peer.config.scale_decoder_outputs


def test_a_fresh_model_opens_there(tmp_path: Path) -> None:
    """Ours first: every kind of fresh T5, with the config keys that we write, says the same there."""
    import weft

    for name in ("t5-small", "t5-v1.1-small"):
        small = {"vocabulary": 41, "context": 40, "width": 24, "layers": 2, "heads": 3, "head_width": 10, "inner": 36}
        model = weft.new(name, settings={**small, "begin": 0}, seed=1)
        model.save(tmp_path / name)
        published = json.loads((tmp_path / name / "config.json").read_text())
        assert published["model_type"] == "t5" and published["architectures"] == ["T5ForConditionalGeneration"]
        peer = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / name).eval()
        assert (of_ours(model.network) - of_peer(peer)).abs().max() <= 1e-4 * of_peer(peer).abs().max()
        assert open_folder(tmp_path / name).config == model.config


def test_without_a_head(tmp_path: Path) -> None:
    peer = peer_of("original", architecture="T5Model")
    peer.save_pretrained(tmp_path)
    opened = open_folder(tmp_path)
    assert not opened.heads
    assert (of_ours(opened.network, words=False) - of_peer(peer)).abs().max() <= 1e-9


def changed_folder(
    folder: Path, config: dict[str, Any], tensors: dict[str, Tensor], gone: tuple[str, ...] = ()
) -> None:
    values = json.loads((folder / "config.json").read_text()) | config
    (folder / "config.json").write_text(json.dumps({key: value for key, value in values.items() if key not in gone}))
    save_file(load_file(folder / "model.safetensors") | tensors, folder / "model.safetensors", {"format": "pt"})


def test_older_files(tmp_path: Path) -> None:
    """As published: copies of the table, a bias that nobody reads, no key for the scale, n_positions."""
    peer = peer_of("original")
    peer.save_pretrained(tmp_path / "first")
    copies = {f"{stack}.embed_tokens.weight": peer.shared.weight.detach().clone() for stack in ("encoder", "decoder")}
    copies["lm_head.weight"] = peer.shared.weight.detach().clone()
    unread = {"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": torch.ones(8, 3)}
    gone = ("scale_decoder_outputs", "tie_word_embeddings", "is_gated_act", "dense_act_fn")
    changed_folder(tmp_path / "first", {"n_positions": 512}, copies | unread, gone)
    opened = open_folder(tmp_path / "first")
    assert opened.config.context == 512 and (of_ours(opened.network) - of_peer(peer)).abs().max() <= 1e-9
    peer = peer_of("gated")
    peer.save_pretrained(tmp_path / "second")
    changed_folder(tmp_path / "second", {"tie_word_embeddings": False}, {}, ("scale_decoder_outputs",))
    opened = open_folder(tmp_path / "second")
    assert not opened.config.scaled and not opened.config.tied
    assert (of_ours(opened.network) - of_peer(peer)).abs().max() <= 1e-9


def test_what_does_not_fit_together_is_named(tmp_path: Path) -> None:
    peer = peer_of("original")
    for name, config, tensors, said in (
        ("table", {}, {"encoder.embed_tokens.weight": torch.zeros(41, 24).double()}, "not equal to tokens.weight"),
        ("bent", {"dense_act_fn": "silu"}, {}, "dense_act_fn is silu, which relu does not mean"),
        (
            "kind",
            {"feed_forward_proj": "mish", "dense_act_fn": "mish"},
            {},
            "feed_forward_proj is 'mish'; supported are relu",
        ),
        ("decoder", {"is_encoder_decoder": False}, {}, "is_encoder_decoder is False; only True is supported"),
        (
            "buckets",
            {"relative_attention_num_buckets": 7},
            {},
            r"num_buckets \(buckets\) must be even and at least 4, not 7",
        ),
        (
            "distance",
            {"relative_attention_max_distance": 4},
            {},
            r"max_distance \(farthest\) must be above half the buckets, 4",
        ),
    ):
        peer.save_pretrained(tmp_path / name)
        changed_folder(tmp_path / name, config, tensors)
        with pytest.raises(UserError, match=said):
            open_folder(tmp_path / name)


@pytest.mark.parametrize("both_ways", [True, False])
def test_every_distance_has_the_published_bucket(both_ways: bool) -> None:
    from transformers.models.t5.modeling_t5 import T5Attention

    distances = torch.arange(-3000, 3000)
    for count, farthest in ((32, 128), (8, 20), (4, 3), (64, 1000)):
        ours = Buckets(count, farthest, 2, 10, both_ways).numbers(distances)
        assert torch.equal(ours, T5Attention._relative_position_bucket(distances, both_ways, count, farthest))
        assert ours.min() == 0 and ours.max() == count - 1


def test_a_text_longer_than_the_context_is_named(tmp_path: Path) -> None:
    family = FAMILIES["t5"]
    config = family.config(vocabulary=20, context=6, width=16, heads=2, head_width=8, inner=20, layers=1)
    network: Any = family.network(config, {"words": 20}).eval()
    network.initialize()
    fits, long = Ragged.of([[3] * 6]), Ragged.of([[3] * 7])
    for read, written in ((long, fits), (fits, long)):
        with pytest.raises(UserError, match="7 tokens is longer than the model's context of 6"):
            network(written.tokens, written.rows, source=read)
    with torch.inference_mode():
        _, state = network.start(fits, fits)
        with pytest.raises(UserError, match="7 tokens is longer"):
            network.step(torch.tensor([3]), state)


def test_sizes_by_name() -> None:
    """As many parameters as the papers say, in millions."""
    found = {"t5-small": 60.5, "t5-base": 222.9, "t5-large": 737.7, "t5-3b": 2851.6, "t5-11b": 11307.3}
    found |= {"t5-v1.1-small": 76.96, "t5-v1.1-base": 247.6, "t5-v1.1-xxl": 11135.4}
    for name, millions in found.items():
        family, config = find_size(name)
        assert family.name == "t5"
        weighed = measure(family, config, usual_heads(family, config))
        assert weighed.parameters / 1e6 == pytest.approx(millions, rel=1e-3), name
    family, config = find_size("t5", "2x128")
    assert (config.layers, config.width, config.heads, config.head_width, config.inner) == (2, 128, 2, 64, 512)


def test_operations_are_counted() -> None:
    """Those of the matrices, as torch counts them."""
    family, config = find_size("t5", "2x64")
    config = dataclasses.replace(config, vocabulary=20, decoder_layers=3, head_width=24, heads=2, inner=40)
    network: Any = family.network(config, {"words": 20}).eval()
    read, written = Ragged.of([[3] * 7, [4] * 3]), Ragged.of([[0, 5], [0, 6, 7, 8]])
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network.words(network(written.tokens, written.rows, source=read))
    found = sum(n for name, n in counter.get_flop_counts()["Global"].items() if str(name) in ("aten.mm", "aten.addmm"))
    squares = 2 * (49 + 9) + 3 * ((4 + 16) / 2 + 14 + 12)
    assert network.operations(read.rows, written.rows) == found + 4 * 2 * 24 * squares


def test_published_initialization() -> None:
    family, config = find_size("t5-v1.1-small")
    torch.manual_seed(0)
    config = dataclasses.replace(config, layers=1, vocabulary=500, weight_scale=2.0)
    network: Any = family.network(config, {"words": 500})
    network.initialize()
    layer = network.decoder[0]
    query, key, value = layer.attention.qkv.weight.chunk(3)
    for matrix, scale in (
        (query, (512 * 64) ** -0.5),
        (layer.cross.query.weight, (512 * 64) ** -0.5),
        (key, 512**-0.5),
        (value, 512**-0.5),
        (layer.cross.key_value.weight, 512**-0.5),
        (layer.attention.output.weight, (6 * 64) ** -0.5),
        (layer.cross.output.weight, (6 * 64) ** -0.5),
        (layer.feedforward.up.weight, 512**-0.5),
        (layer.feedforward.down.weight, 1024**-0.5),
        (network.tokens.weight, 1.0),
        (network.encoder[0].attention.qkv.weight.chunk(3)[1], 512**-0.5),
    ):
        assert matrix.std().item() == pytest.approx(2.0 * scale, rel=0.02)
    assert (layer.cross_norm.weight == 2.0).all() and (network.encoder_norm.weight == 2.0).all()


def test_what_is_dropped_in_training() -> None:
    """Embeddings, what attention mixes, the inside of feed-forward networks, each part, and what a stack ends with."""
    family, config = find_size("t5", "1x64")
    network: Any = family.network(dataclasses.replace(config, vocabulary=20, dropout=0.4), {"words": 20})
    assert network.dropout.p == 0.4
    for layer in (*network.encoder, *network.decoder):
        assert layer.attention.dropout == layer.attention_drop.p == layer.feedforward.drop.p == 0.4
        assert layer.feedforward_drop.p == 0.4
    assert network.decoder[0].cross.dropout == network.decoder[0].cross_drop.p == 0.4
    ended = []
    for norm in (network.encoder_norm, network.decoder_norm):
        norm.register_forward_hook(lambda *args: torch.ones_like(args[-1]))
    network.initialize()
    network.train()
    read = Ragged.of([[3] * 50])
    ended = [network.encode(read).hidden, network(read.tokens, read.rows, source=read)]
    for hidden in ended:
        assert 0.3 < (hidden == 0).float().mean() < 0.5


def test_saved_as_our_own_where_it_cannot_be_published(tmp_path: Path) -> None:
    import weft

    small = {"vocabulary": 20, "width": 16, "layers": 1, "heads": 2, "head_width": 8, "inner": 20}
    model = weft.new("t5", settings={**small, "norm": "layer", "activation": "gated-gelu"})
    model.save(tmp_path / "m")
    assert json.loads((tmp_path / "m" / "config.json").read_text())["model_type"] == "weft-t5"
    again = open_folder(tmp_path / "m")
    assert again.config == model.config and again.card != Card()

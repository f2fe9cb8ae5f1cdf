"""DeBERTa in every form that its config can say, beside transformers; and its own formulas, written out naively."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

import weft
from tests.parity.test_heads import SIZES, differences
from tests.table import CASES, deberta
from weft.checkpoint.card import Card
from weft.checkpoint.families import FAMILIES
from weft.checkpoint.folder import LoadedModel, open_folder, save_folder
from weft.errors import UserError
from weft.models.deberta import Deberta
from weft.nn.disentangled import distance_buckets
from weft.nn.rows import Ragged, Rows

OWN = {"share_att_key": False}
VARIANTS: dict[str, dict[str, Any]] = {
    "v2 with its convolution": {"conv_kernel_size": 3, "conv_act": "gelu"},
    "a wide convolution and tanh": {"conv_kernel_size": 5},
    "maps of its own": OWN,
    "own maps, content to position": {**OWN, "pos_att_type": ["c2p"]},
    "own maps, position to content": {**OWN, "pos_att_type": "p2c"},
    "content to position": {"pos_att_type": "c2p"},
    "position to content": {"pos_att_type": ["p2c"]},
    "every distance": {"position_buckets": -1, "max_relative_positions": 5, "norm_rel_ebd": "none"},
    "the context as the farthest": {"position_buckets": 4},
    "another farthest": {"position_buckets": 8, "max_relative_positions": 20},
    "more buckets than distances": {"position_buckets": 256},
    "absolute positions and segments": {"position_biased_input": True, "type_vocab_size": 2},
    "no relative positions": {"relative_attention": False, "pos_att_type": None, "position_biased_input": True},
}


@pytest.mark.parametrize("more", VARIANTS.values(), ids=list(VARIANTS))
def test_every_form(more: dict[str, Any], tmp_path: Path) -> None:
    segments = "type_vocab_size" in more
    case = replace(CASES["deberta"], peer=lambda **sizes: deberta(**sizes, **more), segments=segments)
    for architecture in ("DebertaV2Model", "DebertaV2ForMaskedLM"):
        folder = tmp_path / architecture
        for difference in differences(case, architecture, "usual", torch.float64, 0.3, folder).values():
            assert difference <= 1e-9
        weft.load(folder / "peer").save(folder / "copy")
        back = getattr(transformers, architecture).from_pretrained(folder / "copy")
        before, after = load_file(folder / "peer" / "model.safetensors"), back.state_dict()
        unread = {name for name in before if "encoder.LayerNorm" in name and not more.get("relative_attention", True)}
        assert all(torch.equal(tensor, after[name]) for name, tensor in before.items() if name not in unread)


@pytest.mark.parametrize("buckets, farthest", [(256, 512), (6, 40), (8, 20), (32, 512)])
def test_buckets_are_those_of_the_peer(buckets: int, farthest: int) -> None:
    from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

    distances = torch.arange(-farthest, farthest + 1)
    expected = make_log_bucket_position(distances, buckets, farthest).long()
    assert torch.equal(distance_buckets(distances, buckets, farthest), expected)


def test_the_newer_word_head_and_the_published_discriminator(tmp_path: Path) -> None:
    """Both heads of a v3 folder: the word head under its newer names, and one that transformers leaves out."""
    config = deberta(**SIZES["usual"], legacy=False)
    torch.manual_seed(0)
    peer = transformers.DebertaV2ForMaskedLM(config).double().eval()
    with torch.no_grad():
        for parameter in peer.parameters():
            parameter.normal_(0.0, 0.3)
    peer.save_pretrained(tmp_path / "peer")
    file = tmp_path / "peer" / "model.safetensors"
    maps = {"dense.weight": (48, 48), "dense.bias": (48,), "LayerNorm.weight": (48,), "LayerNorm.bias": (48,)}
    maps |= {"classifier.weight": (1, 48), "classifier.bias": (1,)}
    head = {name: torch.randn(size, dtype=torch.float64) for name, size in maps.items()}
    stored = {**load_file(file), **{f"mask_predictions.{name}": tensor for name, tensor in head.items()}}
    stored["deberta.embeddings.position_embeddings.weight"] = torch.zeros(40, 48)  # of its mask decoder
    save_file(stored, file, {"format": "pt"})
    for name in ("first", "second"):
        folder = tmp_path / ("peer" if name == "first" else "copy")
        opened = open_folder(folder)
        assert opened.heads == {"words": 101, "replaced": 1}
        batch = Ragged.of([[5, 9, 2, 31, 7], [3, 3, 4]])
        with torch.inference_mode():
            hidden = opened.network(batch.tokens, batch.rows)
            alone = [peer(torch.tensor([text]), output_hidden_states=True) for text in ([5, 9, 2, 31, 7], [3, 3, 4])]
            words = torch.cat([out.logits[0] for out in alone])
            assert (opened.network.words(hidden) - words).abs().max() <= 1e-9
            naive = torch.cat([replaced(head, out.hidden_states[-1][0]) for out in alone])
            assert (opened.network.logits("replaced", hidden, batch.rows)[:, 0] - naive).abs().max() <= 1e-9
        save_folder(tmp_path / "copy", opened) if name == "first" else None
    assert json.loads((tmp_path / "copy" / "config.json").read_text())["legacy"] is True
    back = transformers.DebertaV2ForMaskedLM.from_pretrained(tmp_path / "copy").double().eval()
    with torch.inference_mode():
        assert (back(torch.tensor([[5, 9, 2, 31, 7]])).logits[0] - words[:5]).abs().max() <= 1e-9
    transformers.AutoModel.from_pretrained(tmp_path / "copy")  # the encoder, for whoever has no such head


def replaced(head: dict[str, Tensor], hidden: Tensor) -> Tensor:
    """The published head of replaced-token detection, for one text: T width -> T."""
    x = hidden + hidden[0]
    x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + 1e-7).sqrt()
    x = x * head["LayerNorm.weight"] + head["LayerNorm.bias"]
    x = torch.nn.functional.gelu(x @ head["dense.weight"].T + head["dense.bias"])
    return x @ head["classifier.weight"][0] + head["classifier.bias"][0]


def small(**sizes: Any) -> Deberta:
    torch.manual_seed(1)
    usual = {"vocabulary": 30, "context": 20, "width": 16, "layers": 3, "heads": 2, "inner": 32, "position_buckets": 6}
    network = Deberta(FAMILIES["deberta"].config(**{**usual, **sizes}), {"words": 30})
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(0.0, 0.3)
    return network.double().eval()


def layer_by_hand(network: Deberta, asking: Tensor, hidden: Tensor) -> Tensor:
    """The last layer over one text, all of its scores one by one; residuals come from what asks."""
    layer, c, length = network.layers[-1], network.config, len(hidden)
    table = network.positions.norm(network.positions.distances.weight)
    maps, bias = layer.attention.qkv.weight.chunk(3), layer.attention.qkv.bias.chunk(3)
    width, span = c.width // c.heads, c.position_buckets
    rows = []
    for i in range(length):
        parts = []
        for head in range(c.heads):
            part = slice(head * width, (head + 1) * width)
            (wq, wk, wv), (bq, bk, bv) = [m[part] for m in maps], [b[part] for b in bias]
            scores = []
            for j in range(length):
                place = int(distance_buckets(torch.tensor(i - j), span, c.context)) + span
                place = min(max(place, 0), 2 * span - 1)
                query, key = wq @ asking[i] + bq, wk @ hidden[j] + bk
                to_position, from_position = query @ (wk @ table[place] + bk), key @ (wq @ table[place] + bq)
                scores.append(query @ key + to_position + from_position)
            root = torch.tensor(3.0 * width).sqrt().double()
            weights = (torch.stack(scores) / root).softmax(0)
            parts.append(weights @ torch.stack([wv @ hidden[j] + bv for j in range(length)]))
        rows.append(torch.cat(parts))
    y = layer.attention_norm(asking + layer.attention.output(torch.stack(rows)))
    return layer.feedforward_norm(y + layer.feedforward(y))


def test_the_mask_decoder_by_hand() -> None:
    """Two more turns of the last layer; the first asks from the layer before it plus absolute positions."""
    network = small(mask_decoder=True)
    texts = [[5, 9, 2, 7, 1, 8, 8, 3], [4, 4]]
    batch, states = Ragged.of(texts), list[Tensor]()
    with torch.no_grad():
        found = network(batch.tokens, batch.rows, None, states)
        before = states[-2].split([len(text) for text in texts])
        for text, hidden, rows in zip(texts, before, found.split([len(text) for text in texts]), strict=True):
            asking = hidden + network.heads["words"].positions.weight[: len(text)]
            for _ in range(2):
                asking = layer_by_hand(network, asking, hidden)
            assert (rows - asking).abs().max() <= 1e-9
        assert (layer_by_hand(network, before[0], before[0]) - states[-1][:8]).abs().max() <= 1e-9, "the layer itself"
    assert not torch.allclose(found, states[-1])
    # Only with absolute positions do the words of a text depend on where it stands.
    plain, turned = (network.decoded(h, Rows.of([8])) for h in (before[0], before[0].flip(0)))
    assert not torch.allclose(plain, turned.flip(0))


def test_a_mask_decoder_is_kept_and_goes_with_its_head(tmp_path: Path) -> None:
    network, family = small(mask_decoder=True), FAMILIES["deberta"]
    save_folder(tmp_path / "a", LoadedModel(family, network.config, network, {"words": 30}, None, Card()))
    assert json.loads((tmp_path / "a" / "config.json").read_text())["model_type"] == "weft-deberta"
    opened = open_folder(tmp_path / "a")
    batch = Ragged.of([[5, 9, 2, 7]])
    assert torch.equal(opened.network(batch.tokens, batch.rows), network(batch.tokens, batch.rows))
    tuned = open_folder(tmp_path / "a", {"classify": 2})
    assert not tuned.config.mask_decoder and not any("positions" in name for name in tuned.network.heads.state_dict())
    save_folder(tmp_path / "b", tuned)
    assert json.loads((tmp_path / "b" / "config.json").read_text())["model_type"] == "deberta-v2"


WRONG = {
    "model_type": ("deberta", "model_type 'deberta' is not one of .*deberta-v2"),
    "pos_att_type": ("p2p", "must be one of c2p, p2c"),
    "relative_attention": (False, "relative_attention is False, and pos_att_type"),
    "position_buckets": (2, "position_buckets must be at least 4"),
    "max_relative_positions": (3, "half of them less than the farthest distance 3"),
    "conv_kernel_size": (4, "kernel must be odd"),
    "conv_groups": (2, "conv_groups is 2; only 1"),
    "embedding_size": (24, "embedding_size must be hidden_size, 48"),
    "attention_head_size": (64, "attention_head_size must be hidden_size / num_attention_heads"),
    "share_att_key": ("yes", "share_att_key is yes, not true or false"),
    "norm_rel_ebd": (3, "norm_rel_ebd must be layer_norm or none"),
}


@pytest.mark.parametrize("key", WRONG)
def test_configs_that_nobody_publishes(key: str, tmp_path: Path) -> None:
    transformers.DebertaV2Model(deberta(**SIZES["usual"])).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: WRONG[key][0]}))
    with pytest.raises(UserError, match=WRONG[key][1]) as caught:
        open_folder(tmp_path)
    assert "\n" not in str(caught.value)

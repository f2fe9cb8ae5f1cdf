"""Models with fewer layers: what stays is what was there, and the folder is still a published one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import weft
from tests.contracts.test_families import TEXTS, hidden_of, network_of
from tests.table import CASES, PLAIN, READERS
from weft.checkpoint.card import Card
from weft.checkpoint.families import FAMILIES
from weft.checkpoint.folder import LoadedModel, open_folder, save_folder
from weft.errors import UserError
from weft.nn.rows import Ragged
from weft.pruning.prune import can_take, spaced_layers, with_layers

STACKED = [name for name in PLAIN if CASES[name].config().layers]


def opened_of(name: str, **sizes: Any) -> LoadedModel:
    network = network_of(name, **sizes)
    heads = {head: 3 if head == "classify" else network.config.vocabulary for head in network.heads}
    heads |= {"next": 2} if "next" in heads else {}
    return LoadedModel(FAMILIES[CASES[name].family], network.config, network, heads, None, Card())


def test_which_layers_stay() -> None:
    assert spaced_layers(3, 6) == (0, 2, 4)
    assert spaced_layers(6, 12) == (0, 2, 4, 6, 8, 10)
    assert spaced_layers(4, 6) == (0, 1, 3, 4)
    assert spaced_layers(1, 6) == (0,) and spaced_layers(6, 6) == tuple(range(6))
    with pytest.raises(UserError, match="between 1 and 6 of 6 layers can be kept, not 7"):
        spaced_layers(7, 6)


@pytest.mark.parametrize("name", STACKED)
def test_a_layer_that_is_gone_is_a_layer_left_out(name: str) -> None:
    """The smaller network says what the large one says when its other layers hand on what they are handed."""
    sizes = {"embedding_width": None} if name in ("rnn", "lstm", "gru") else {"mix": False} if name == "elmo" else {}
    opened = opened_of(name, layers=4, **sizes)
    smaller = with_layers(opened, [0, 2])
    assert smaller.config.layers == 2 and opened.config.layers == 4
    network: Any = opened.network
    if name == "albert":
        object.__setattr__(network.config, "layers", 2)
    else:
        network.layers = torch.nn.ModuleList([network.layers[0], network.layers[2]])
        object.__setattr__(network.config, "layers", 2)
    assert torch.equal(hidden_of(smaller.network, TEXTS), hidden_of(network, TEXTS))
    assert not any(a is b for a in smaller.network.parameters() for b in network.parameters())


@pytest.mark.parametrize("name", [name for name in STACKED if CASES[name].config().has("mix")])
def test_a_mix_keeps_the_shares_of_what_stays(name: str) -> None:
    opened = opened_of(name, layers=4, mix=True)
    network: Any = opened.network
    with torch.no_grad():
        network.mix.shares.copy_(torch.arange(5.0))
    smaller: Any = with_layers(opened, [1, 3]).network
    assert smaller.mix.shares.tolist() == [0.0, 2.0, 4.0]


@pytest.mark.parametrize("name", READERS)
def test_both_sides_of_an_encoder_decoder(name: str) -> None:
    family = FAMILIES[name]
    if name not in ("transformer", "marian", "t5"):
        network = family.network(CASES[name].config(), {"words": 101})
        opened = LoadedModel(family, CASES[name].config(), network, {"words": 101}, None, Card())
        with pytest.raises(UserError, match=f"^{name} has no stack of layers"):
            with_layers(opened, [0])
        assert not can_take(opened)  # so that a student of its width begins from nothing
        return
    config = CASES[name].config(layers=3, decoder_layers=4)
    network = family.network(config, {"words": 101}).double().eval()
    network.initialize()
    opened = LoadedModel(family, config, network, {"words": 101}, None, Card())
    assert not can_take(opened) and can_take(with_layers(opened, [0], [1]))
    with pytest.raises(UserError, match="the decoder has 4 layers, the encoder 3: give the layers"):
        with_layers(opened, [0, 2])
    smaller: Any = with_layers(opened, [0, 2], [1, 3])
    source, written = Ragged.of([[5, 6, 7], [8]]), Ragged.of([[0, 9], [0, 4, 3]])
    found = smaller.network(written.tokens, written.rows, source=source)
    network.encoder = torch.nn.ModuleList([network.encoder[0], network.encoder[2]])
    network.decoder = torch.nn.ModuleList([network.decoder[1], network.decoder[3]])
    assert torch.equal(found, network(written.tokens, written.rows, source=source))
    assert (smaller.config.layers, smaller.config.decoder_layers) == (2, 2)


def test_what_cannot_be() -> None:
    opened = opened_of("bert", layers=4)
    for keep in ([], [0, 4], [2, 1], [1, 1], [-1, 0]):
        with pytest.raises(UserError, match="layers"):
            with_layers(opened, keep)
    with pytest.raises(UserError, match=r"^vectors has no stack of layers"):
        with_layers(opened_of("vectors"), [0])
    # The first layer of a recurrent network reads vectors that are narrower than what the second reads.
    with pytest.raises(UserError, match=r"^the parts that would stay of lstm do not fit together"):
        with_layers(opened_of("lstm", layers=3, embedding_width=24), [1, 2])


@pytest.mark.parametrize("name", ["bert", "distilbert", "roberta", "albert", "gpt2", "t5"])
def test_transformers_opens_what_was_cut_down(name: str, tmp_path: Path) -> None:
    made = weft.new(name, settings=small(name))
    save_folder(tmp_path / "few", with_layers(made.opened, [0, 2]))
    again = open_folder(tmp_path / "few")
    assert again.family.name == name and again.config.layers == 2  # in the published format
    tokens = torch.tensor([[2, 17, 30, 5]])
    row = Ragged.of(tokens.tolist())
    if name == "t5":
        peer = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / "few").eval()
        found = again.network(row.tokens, row.rows, source=row)
        expected = peer(input_ids=tokens, decoder_input_ids=tokens).logits[0]
        assert peer.config.num_layers == peer.config.num_decoder_layers == 2
    else:
        auto = transformers.AutoModelForCausalLM if name == "gpt2" else transformers.AutoModelForMaskedLM
        peer = auto.from_pretrained(tmp_path / "few").eval()
        found = again.network(row.tokens, row.rows)
        expected = peer(input_ids=tokens).logits[0]
        assert peer.config.num_hidden_layers == 2
    assert torch.allclose(again.network.words(found), expected, atol=1e-5)  # type: ignore[operator]


def small(name: str) -> dict[str, Any]:
    sizes: dict[str, Any] = {"vocabulary": 40, "context": 16, "width": 32, "layers": 4, "heads": 2, "inner": 64}
    return {**sizes, "head_width": 16} if name == "t5" else sizes

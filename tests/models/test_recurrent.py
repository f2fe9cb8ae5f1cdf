"""Recurrent networks: what a text is read as, dropout of whole texts, and what is refused."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from weft.checkpoint.families import FAMILIES, find_size
from weft.checkpoint.folder import open_folder
from weft.errors import UserError
from weft.models.recurrent import RecurrentConfig, RecurrentNetwork
from weft.nn.rows import Ragged, Rows
from weft.training.plan import Training
from weft.training.step import freeze, make_optimizer

TEXTS = [[5, 9, 2, 31, 7], [], [8], [3, 3, 4, 12, 30, 11, 6, 9, 1]]
SMALL: dict[str, Any] = {"vocabulary": 40, "width": 12, "layers": 2}


def network_of(heads: dict[str, int], **settings: Any) -> RecurrentNetwork:
    torch.manual_seed(0)
    network = RecurrentNetwork(RecurrentConfig(**{**SMALL, **settings}), heads)
    network.initialize()
    return network.eval()


@pytest.mark.parametrize("cell", ["rnn", "lstm", "gru"])
@pytest.mark.parametrize("pooling", ["last", "mean", "max", "attention"])
def test_a_text_is_one_vector_of_both_directions(cell: str, pooling: str) -> None:
    """Each row by itself: the last state of each direction, or all of them together; nothing of an empty text."""
    network = network_of({"classify": 3}, cell=cell, pooling=pooling, bidirectional=True).double()
    batch = Ragged.of(TEXTS)
    hidden = network(batch.tokens, batch.rows)
    found = network.pooled(hidden, batch.rows)
    for row, text in enumerate(TEXTS):
        here = hidden[int(batch.rows.starts[row]) : int(batch.rows.starts[row + 1])]
        if not text:
            expected = torch.zeros(24, dtype=torch.float64)
        elif pooling == "last":
            expected = torch.cat([here[-1, :12], here[0, 12:]])
        elif pooling == "attention":  # Yang et al., 2016: u = tanh(W h + b), shares = softmax(u . query)
            weight, bias, query = (network.pooler.get_parameter(n) for n in ("dense.weight", "dense.bias", "query"))
            shares = torch.stack([torch.dot((weight @ each + bias).tanh(), query) for each in here]).softmax(0)
            expected = sum(share * each for share, each in zip(shares, here, strict=True))
        else:
            expected = here.mean(0) if pooling == "mean" else here.amax(0)
        assert torch.allclose(found[row], expected, atol=1e-12), row
    nothing = Ragged.of([[], []])
    assert network.pooled(hidden[:0], nothing.rows).abs().sum() == 0
    last = network.layers[-1](network.layers[0](network.tokens(batch.tokens), batch.rows)[0], batch.rows)[1]
    if pooling == "last":  # the state that the layer itself ends with, forwards and backwards
        ends = torch.cat([last[0][0], last[1][0]], -1)[[0, 2, 3]]
        assert torch.allclose(found[[0, 2, 3]], ends, atol=1e-12)


def test_attention_pooling_is_a_choice_of_a_run_and_part_of_its_folder(tmp_path: Path) -> None:
    """It learns which of many words decides, which the mean of them hardly shows, and is saved with the rest."""
    chance, rows = random.Random(0), []
    for number in range(60):
        words = [chance.choice(["the", "is", "there", "now"]) for _ in range(12)]
        words[chance.randrange(12)] = ("oak", "cow")[number % 2]
        rows.append({"text": " ".join(words), "label": ("plant", "animal")[number % 2]})
    settings = {"family": "gru", "size": "1x16", "pooling": "attention", "dropout": 0.0}
    plan = {"steps": 40, "batch": 30, "learning_rate": 2e-2, "evaluate_every": 40}
    options: Any = {"model": settings, "training": plan, "tokenizer": {"kind": "word"}, "log": lambda line: None}
    model = weft.finetune(rows, dev=rows, task={"name": "classify", "baseline": False}, out=tmp_path / "run", **options)
    again: Any = weft.load(tmp_path / "run")
    assert again.config.pooling == "attention" and again.evaluate(rows).scores["accuracy"].value > 0.9
    assert again(rows[0]["text"]) == model(rows[0]["text"])
    ids = again.tokenizer.ids([rows[0]["text"]], specials=False)
    batch = Ragged.of(ids)
    with torch.no_grad():
        weights = again.network.pooler.weights(again.network(batch.tokens, batch.rows), batch.rows)
    assert weights.sum() == pytest.approx(1) and weights.max() > 2 / 12
    assert network_of({"tag": 3}, pooling="attention").pooler is None, "tags read every token"


def test_variational_dropout_has_one_mask_for_a_text() -> None:
    settings: dict[str, Any] = {"dropout": 0.5, "cell": "rnn", "layers": 1}
    for variational in (False, True):
        network = network_of({"words": 40}, variational=variational, **settings).train()
        states: list[torch.Tensor] = []
        torch.manual_seed(1)
        network(torch.full((30,), 7), Rows.of([10, 20]), states=states)
        struck = states[0] == 0  # the same word at every place, so the same numbers are struck or they are not
        assert bool((struck[:10] == struck[:1]).all()) == variational
        assert bool((struck[10:] == struck[10:11]).all()) == variational
        assert (states[-1] == 0).any(0).any(), "what the heads read is dropped out too"


def test_reading_both_ways_and_saying_words_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="seen the next word already"):
        weft.new("lstm", settings={**SMALL, "bidirectional": True})
    text = tmp_path / "text.txt"
    text.write_text("one two three four five six seven\n" * 20)
    with pytest.raises(UserError, match="seen the next word already"):
        weft.pretrain(
            model={"family": "gru", "bidirectional": True}, text={"files": [str(text)]}, out=str(tmp_path / "run")
        )
    assert not (tmp_path / "run").exists()


def test_a_family_keeps_its_cell(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cell of gru is gru, not lstm; choose the model lstm"):
        weft.new("gru", settings={**SMALL, "cell": "lstm"})
    with pytest.raises(UserError, match="activation relu is for rnn"):
        weft.new("lstm", settings={**SMALL, "activation": "relu"})
    weft.new("rnn", settings={**SMALL, "activation": "relu"}).save(tmp_path / "rnn")
    assert open_folder(tmp_path / "rnn").config.activation == "relu"
    config = json.loads((tmp_path / "rnn" / "config.json").read_text())
    assert config["model_type"] == "weft-rnn"
    config["sizes"] |= {"cell": "gru", "activation": "tanh"}
    (tmp_path / "rnn" / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="cell of rnn is rnn, not gru"):
        open_folder(tmp_path / "rnn")


def test_sizes_by_name() -> None:
    """Parameters as the papers count them: 66 M of the large one (Zaremba et al., 2014)."""
    family, config = find_size("lstm-zaremba-large")
    with torch.device("meta"):
        network = family.network(config, {"words": config.vocabulary})
    assert sum(parameter.numel() for parameter in network.parameters()) == pytest.approx(66e6, rel=0.01)
    assert find_size("gru", "2x650")[1].width == 650  # no heads, so no width of a head to be a multiple of
    assert {name: FAMILIES[name].standard["cell"] for name in ("rnn", "lstm", "gru")} == {
        name: name for name in ("rnn", "lstm", "gru")
    }


def test_layers_can_be_frozen_and_learn_at_rates_of_their_own() -> None:
    network = network_of({"classify": 2}, dropout=0.5, weight_dropout=0.5)
    shares = {group["share"] for group in make_optimizer(network, Training(layer_decay=0.5), 1e-3).param_groups}
    assert shares == {1.0, 0.5, 0.25, 0.125}  # head, two layers, table
    freeze(network, "all-but-1")
    assert network.dropout.p == network.layers[0].weight_drop == 0.0 and network.layers[1].weight_drop == 0.5
    trained = {name.split(".")[0] + name.split(".")[1] for name, p in network.named_parameters() if p.requires_grad}
    assert trained == {"headsclassify", "layers1"}
    with pytest.raises(UserError, match="only 2 layers"):
        freeze(network, "all-but-2")

"""Models with fewer heads: what is left says what the whole said without the others, and the least important go."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.compress.test_layers import opened_of
from tests.contracts.test_families import TEXTS, close, hidden_of
from tests.table import CASES, PLAIN, PRUNABLE, READERS
from tests.tasks.small import kinds, model_for, questions, vocabulary
from weft.checkpoint.card import Card
from weft.checkpoint.families import FAMILIES
from weft.checkpoint.folder import LoadedModel, open_folder, save_folder
from weft.errors import UserError
from weft.nn.rows import Ragged
from weft.pruning.prune import attentions_of, gated, importance, least, with_heads, with_layers
from weft.tasks.base import Example
from weft.tasks.forward import framing_for
from weft.tasks.model import Model
from weft.tasks.registry import task_for

KEEP = [[0, 2], [1]]  # of three heads in each of two layers


@pytest.mark.parametrize("name", PRUNABLE)
@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_what_is_left_is_the_whole_without_the_others(name: str, positions: str, tmp_path: Path) -> None:
    opened = opened_of(name, positions=positions)
    keep = KEEP if name != "albert" else KEEP[:1]
    smaller = with_heads(opened, keep)
    attentions = attentions_of(opened)
    gates = [torch.tensor([float(head in some) for head in range(3)]).double() for some in keep]
    with gated(attentions, gates):
        expected = hidden_of(opened.network, TEXTS)
    found = hidden_of(smaller.network, TEXTS)
    assert close(found, expected, 1e-9)
    assert not close(hidden_of(opened.network, TEXTS), expected, 1e-3)  # the gates are gone again, and mattered
    assert [attention.heads for attention in attentions_of(smaller)] == [len(some) for some in keep]
    save_folder(tmp_path / "few", smaller)
    again = open_folder(tmp_path / "few")
    assert again.config == smaller.config and torch.equal(hidden_of(again.network, TEXTS), found)
    assert json.loads((tmp_path / "few" / "config.json").read_text())["model_type"] == f"weft-{name}"


def test_as_many_of_each_layer_needs_no_list() -> None:
    smaller = with_heads(opened_of("bert"), [[0, 2], [0, 1]])
    assert (smaller.config.heads, smaller.config.head_width, smaller.config.layer_heads) == (2, 16, None)
    assert with_heads(smaller, [[0, 1], [0, 1]]) is smaller
    fewer = with_heads(smaller, [[1], [0, 1]])
    assert fewer.config.layer_heads == (1, 2) and with_layers(fewer, [0]).config.layer_heads == (1,)


def test_words_go_on_from_a_cache_whatever_the_heads_of_a_layer() -> None:
    network: Any = with_heads(opened_of("gpt2"), KEEP).network
    scores, state = network.start(Ragged.of([[5, 6, 7], [8]]))
    scores = network.step(torch.tensor([9, 10]), state)
    whole = Ragged.of([[5, 6, 7, 9], [8, 10]])
    assert close(scores, network.words(network(whole.tokens, whole.rows)[whole.rows.lasts()]), 1e-9)


@pytest.mark.parametrize("name", [*PLAIN, *READERS])
def test_what_has_no_heads_of_its_own_is_refused(name: str) -> None:
    if name in PRUNABLE:
        with pytest.raises(UserError, match="alibi"):
            attentions_of(opened_of(name, positions="alibi"))
        return
    family, config = FAMILIES[CASES[name].family], CASES[name].config()
    network = opened_of(name).network if name in PLAIN else family.network(config, {"words": 101})
    with pytest.raises(UserError, match=f"^heads can be removed from encoders and GPTs, not from {name}: "):
        attentions_of(LoadedModel(family, config, network, {}, None, Card()))


def test_configs_that_no_model_can_have() -> None:
    for each in ((1,), (1, 4), (0, 1)):
        with pytest.raises(UserError, match="layer_heads must be 2 numbers between 1 and 3"):
            CASES["bert"].config(layer_heads=each)
    with pytest.raises(UserError, match="leave out layer_heads"):
        CASES["gpt2"].config(layer_heads=(1, 2), positions="alibi")
    opened = opened_of("bert")
    for keep in ([[0], []], [[0], [3]], [[1, 0], [0]]):
        with pytest.raises(UserError, match="heads to keep must be some of 0 to 2"):
            with_heads(opened, keep)
    with pytest.raises(UserError, match="heads of 1 layers are given for a model of 2"):
        with_heads(opened, [[0]])


# ---------------------------------------------------------------- which of them


def examples_for(task: str) -> list[Example]:
    if task == "classify":
        return [Example((row["text"],), row["label"], "") for row in kinds(7)]
    return [Example((row["question"], row["context"]), row, "") for row in questions(5)]


def test_importance_is_what_a_gate_changes() -> None:
    """Against differences: of each example the loss with a gate a little open or shut, taken without a sign."""
    labels = ("animal", "plant", "stone")
    model = model_for("classify", 3, vocabulary(), labels, length=6, stride=3)  # so that texts take several windows
    model = Model(replace(model.opened, network=model.network.double()), "classify")
    rows = [Example((f"{row['text']} and again {row['text']}",), row["label"], "") for row in kinds(7)]
    task, opened = task_for(model.opened, "classify"), wider(model.opened)
    framing = framing_for(opened)
    assert opened.tokenizer is not None
    found = importance(opened, task.objective(), task.dataset(rows, opened, framing))  # type: ignore[call-arg, union-attr, arg-type]
    attentions = attentions_of(opened)
    expected = [torch.zeros(attention.heads, dtype=torch.float64) for attention in attentions]
    step = 1e-3
    for layer, attention in enumerate(attentions):
        for head in range(attention.heads):
            for row in rows:
                losses = []
                for sign in (1, -1):
                    gates = [torch.ones(each.heads, dtype=torch.float64) for each in attentions]
                    gates[layer][head] += sign * step
                    with gated(attentions, gates):
                        said = task.predict(opened, framing, [row.texts])[0].output  # type: ignore[union-attr]
                    chances = torch.tensor(said).log_softmax(-1)
                    losses.append(-float(chances[labels.index(row.target)]))
                expected[layer][head] += abs(losses[0] - losses[1]) / (2 * step)
    for ours, theirs in zip(found, expected, strict=True):
        assert close(ours, theirs / theirs.norm(), 1e-3)  # what is said comes back in single precision
        assert float(ours.norm()) == pytest.approx(1.0)


def wider(opened: LoadedModel) -> LoadedModel:
    """The same with more heads, and random ones."""
    family, config = opened.family, replace(opened.config, heads=4, layers=2)
    torch.manual_seed(2)
    network = family.network(config, opened.heads)
    network.initialize()
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.dim() > 1:
                parameter.mul_(8)
    return replace(opened, config=config, network=network.double().eval())


def test_a_head_that_says_nothing_goes_first() -> None:
    model = model_for("classify", 3, vocabulary(), ("animal", "plant", "stone"))
    opened = wider(model.opened)
    silent = attentions_of(opened)[1]
    with torch.no_grad():
        silent.output.weight[:, 2 * silent.head_width : 3 * silent.head_width] = 0
    task = task_for(opened, "classify")
    rows = examples_for("classify")
    assert opened.tokenizer is not None
    table = task.dataset(rows, opened, framing_for(opened))  # type: ignore[call-arg, union-attr, arg-type]
    found = importance(opened, task.objective(), table)  # type: ignore[arg-type]
    assert float(found[1][2]) == 0.0 and float(found[1].min()) < float(found[0].min())
    assert least(found, share=0.125) == [[0, 1, 2, 3], [0, 1, 3]]


def test_which_heads_go() -> None:
    found = [torch.tensor([0.1, 0.2, 0.9]), torch.tensor([0.3, 0.05, 0.04])]
    assert least(found, share=0.5) == [[1, 2], [0]]
    assert least(found, share=0.34) == [[0, 1, 2], [0]]
    assert least(found, share=0.99) == [[2], [0]]  # one stays in each layer
    assert least(found, each=1) == [[1, 2], [0, 1]]
    for wrong in ({"share": 0.0}, {"share": 1.0}, {"each": 3}, {"each": 0}, {}, {"share": 0.5, "each": 1}):
        with pytest.raises(UserError):
            least(found, **wrong)  # type: ignore[arg-type]


def test_maps_of_distances_lose_their_heads_too() -> None:
    opened = opened_of("deberta", shared_maps=False)
    gates = [torch.tensor([float(head in some) for head in range(3)]).double() for some in KEEP]
    with gated(attentions_of(opened), gates):
        expected = hidden_of(opened.network, TEXTS)
    assert close(hidden_of(with_heads(opened, KEEP).network, TEXTS), expected, 1e-9)

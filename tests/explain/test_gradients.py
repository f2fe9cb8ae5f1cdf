"""Gradient norms by time step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import weft
from tests.explain.tiny_models import TEXTS, saved, tiny
from weft.cli.main import run
from weft.explain.gradients import gradient_norms, gradients_view, input_gradients, state_gradients
from weft.explain.view import LinePlot
from weft.nn.rows import Rows


@pytest.mark.parametrize("family", ["rnn", "gru", "lstm"])
def test_the_state_of_the_last_step_has_the_gradient_of_the_output(family: str) -> None:
    network: Any = tiny(family).network
    tokens = torch.tensor([5, 9, 20, 7])
    norms = state_gradients(network, tokens, 11)
    hidden = network(tokens, Rows.of([4], "cpu")).detach()[-1:].requires_grad_()
    loss = F.cross_entropy(network.words(hidden).double(), torch.tensor([11]))
    (slope,) = torch.autograd.grad(loss, hidden)
    assert len(norms) == 4 and norms[-1] == pytest.approx(float(slope.norm()), rel=1e-4)


def test_an_rnn_by_hand() -> None:
    network: Any = tiny("rnn").network
    tokens = torch.tensor([5, 9, 20, 7, 13])
    norms = state_gradients(network, tokens, 11)
    hidden = network(tokens, Rows.of([5], "cpu")).detach().double()
    back = network.layers[0].weights_of(network.layers[0].layers[0])[1].detach().double()
    last = hidden[-1:].float().requires_grad_()
    (slope,) = torch.autograd.grad(F.cross_entropy(network.words(last).double(), torch.tensor([11])), last)
    flow, expected = slope[0].double(), []
    for state in hidden.flip(0):
        expected.append(float(flow.norm()))
        flow = back.T @ ((1 - state**2) * flow)  # dh(t)/dh(t-1) = diag(1 - h²) W
    assert np.abs(np.array(expected[::-1]) / norms - 1).max() < 1e-3


def test_small_recurrent_weights_make_gradients_vanish() -> None:
    network: Any = tiny("rnn", seed=3).network
    weight = network.layers[0].weights_of(network.layers[0].layers[0])[1]
    tokens = torch.arange(5, 35)
    with torch.no_grad():
        before = weight.clone()
        ratios = []
        for factor in (0.9, 0.5):
            weight.copy_(factor * before)
            norms = state_gradients(network, tokens, 11)
            ratios.append(norms[0] / norms[-1])
        weight.copy_(before)
    assert ratios[1] < 0.5**29 * 1.01 and ratios[1] < ratios[0]  # rotations: each step shrinks by the factor at least


def test_inputs_of_any_decoder() -> None:
    norms = input_gradients(tiny("gpt2").network, torch.tensor([5, 9, 20]), 11)
    assert len(norms) == 3 and all(norm > 0 for norm in norms)


def test_several_models_side_by_side(tmp_path: Path) -> None:
    folders = [str(saved(tiny(family), tmp_path / family)) for family in ("rnn", "lstm")]
    out = tmp_path / "g.json"
    assert run(["look", "gradients", *folders, "--text", TEXTS[0], "--out", str(out)]) == 0
    lines = json.loads(out.read_text())["panels"][0]["lines"]
    assert [line["name"] for line in lines] == ["rnn", "lstm"]
    norms = gradient_norms(weft.load(folders[0]).opened, TEXTS[0], "rnn").norms
    assert lines[0]["points"][0][1] == pytest.approx(norms[-1])  # 0 steps back: at the loss
    assert run(["look", "gradients", *folders, "--out", str(tmp_path / "g.svg")]) == 0
    mixed = gradients_view([tiny("rnn"), tiny("gpt2")], TEXTS[0]).panels[0]
    assert isinstance(mixed, LinePlot) and "embedding" in mixed.note


def test_what_has_no_gradient_is_refused() -> None:
    with pytest.raises(weft.UserError, match="carries no state"):
        gradients_view(tiny("gpt2"), TEXTS[0], of="state")
    with pytest.raises(weft.UserError, match="predicts no next token"):
        gradients_view(tiny("bert", "wordpiece"), TEXTS[0])
    with pytest.raises(weft.UserError, match="at least 3"):
        gradients_view(tiny("rnn"), "a")
    with pytest.raises(weft.UserError, match="layer must be between"):
        gradients_view(tiny("rnn"), TEXTS[0], layer=1)

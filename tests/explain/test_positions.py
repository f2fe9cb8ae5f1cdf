"""Positions: what is drawn is what the networks use, and dot products depend on distance as the papers say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import weft
from tests.explain.browser import NARROW, Browser, fits, settle
from tests.explain.tiny_models import tiny
from weft.cli.main import run
from weft.explain.plots import GridPlot
from weft.explain.positions import alibi_biases, dot_products, positions_view, rotation_scores
from weft.explain.view import LinePlot
from weft.nn.attention import turn
from weft.nn.positions import Positions, sinusoids


def grids(view: Any) -> list[GridPlot]:
    return [panel for panel in view.panels if isinstance(panel, GridPlot)]


def test_dot_products_of_sinusoids_depend_on_distance_alone() -> None:
    products, lines = dot_products(sinusoids(torch.arange(40), 32).numpy())
    for distance in range(40):
        assert np.ptp(np.diagonal(products, distance)) < 1e-9
    assert len(lines) == 1  # no range to shade
    assert lines[0].points[0][1] == pytest.approx(16, abs=1e-9)  # sin² + cos² of 16 waves
    _, lines = dot_products(np.random.default_rng(0).normal(size=(40, 32)))
    assert len(lines) == 2 and lines[1].upper


def test_rotation_scores_are_those_of_turned_vectors() -> None:
    positions = Positions("rotary", context=20, width=8, heads=1, head_width=8)
    turns = positions.turns(torch.arange(20), torch.float64)
    assert turns is not None
    turned = turn(torch.ones(20, 1, 8, dtype=torch.float64), turns)[:, 0]
    assert np.abs((turned @ turned[0]).numpy() / 8 - rotation_scores(8, 20)).max() < 1e-12


def test_alibi_is_what_attention_gets() -> None:
    from weft.nn.rows import Rows

    positions = Positions("alibi", context=9, width=8, heads=4, head_width=2)
    bias = positions.bias(Rows.of([9], "cpu"), None)
    assert bias is not None and np.abs(bias[:, -1].flip(-1).numpy() - alibi_biases(4, 9)).max() < 1e-6


def test_a_models_own_table_is_shown() -> None:
    model = tiny("bert", "wordpiece")
    view = positions_view(model, length=20)
    table: Any = model.network.get_parameter("positions.table.weight").detach()
    assert np.array_equal(grids(view)[0].values, table[:20].double().numpy())
    products = grids(view)[1].values
    line = next(panel for panel in view.panels if isinstance(panel, LinePlot)).lines[0]
    assert line.points[3] == (3, pytest.approx(np.diagonal(products, 3).mean()))


@pytest.mark.parametrize("settings", ["sinusoidal", "rotary", "alibi"])
def test_a_model_of_each_kind(settings: str) -> None:
    view = positions_view(tiny("gpt2", positions=settings))
    assert len(view.panels) >= 2 and view.html().startswith("<!DOCTYPE html>")


def test_biases_of_t5_by_distance() -> None:
    model = tiny("t5", "unigram")
    network: Any = model.network
    view = positions_view(model, length=9)
    bias = grids(view)[0].values  # heads distances, of the encoder
    expected = network.encoder_positions.table(network.encoder_positions.numbers(torch.arange(-8, 9)))
    assert np.abs(bias - expected.detach().double().numpy().T).max() < 1e-9
    assert grids(view)[1].values.shape == (2, 9)  # a decoder looks back alone


def test_what_has_no_positions_is_refused() -> None:
    with pytest.raises(weft.UserError, match="no positions"):
        positions_view(tiny("lstm"))
    with pytest.raises(weft.UserError, match="rotary positions turn pairs"):
        positions_view(kind="rotary", width=7)
    with pytest.raises(weft.UserError, match="length must be between 2"):
        positions_view(length=1)


@pytest.mark.parametrize("kind", ["sinusoidal", "rotary", "alibi", "buckets"])
def test_the_command_line(kind: str, tmp_path: Path) -> None:
    out = tmp_path / "positions.json"
    assert run(["look", "positions", "--kind", kind, "--width", "16", "--length", "12", "--out", str(out)]) == 0
    assert json.loads(out.read_text())["title"] == f"Positions: {kind}"


def test_the_page_in_a_browser(browser: Browser, tmp_path: Path) -> None:
    path = positions_view(width=32, length=24).save(tmp_path / "positions.html")
    with browser.open(path, width=NARROW, dark=True) as page:
        settle(page)
        assert fits(page)
        page.focus(".heat-grid-stage")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowRight")
        assert page.text_content(".heat-grid-caption").startswith("position 0, dimension 1: value 1.0000")

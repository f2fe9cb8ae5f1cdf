"""Forecasting networks: no step sees a later one, rows do not depend on each other, and the equations written out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from weft.checkpoint.families import FAMILIES
from weft.errors import UserError
from weft.models.forecaster import ForecasterConfig
from weft.nn.rows import Rows

ENCODERS = ("linear", "rnn", "lstm", "gru", "wavenet", "transformer")
SIZES: dict[str, Any] = {"features": 3, "targets": 2, "horizon": 4, "context": 12, "width": 16, "attention_heads": 2}


def network_of(encoder: str, **sizes: Any) -> Any:
    config: Any = ForecasterConfig(encoder=encoder, **{**SIZES, "layers": 4 if encoder == "wavenet" else 2, **sizes})  # type: ignore[arg-type]
    torch.manual_seed(0)
    network = FAMILIES["forecaster"].network(config, {"forecast": config.outputs})
    network.initialize()
    return network.double().eval()


def outputs(network: Any, rows: list[torch.Tensor]) -> torch.Tensor:
    where = Rows.of([len(row) for row in rows])
    return network.logits("forecast", network(torch.cat(rows), where), where)


@pytest.mark.parametrize("encoder", ENCODERS)
def test_a_later_step_changes_nothing_before_it(encoder: str) -> None:
    network, row = network_of(encoder), torch.randn(12, 3, dtype=torch.float64)
    other = row.clone()
    other[7:] += 1.0
    before, after = outputs(network, [row]), outputs(network, [other])
    assert before.shape == (12, 8)
    assert torch.equal(before[:7], after[:7]) and not torch.allclose(before[7:], after[7:])


@pytest.mark.parametrize("encoder", ENCODERS)
def test_rows_are_independent(encoder: str) -> None:
    network = network_of(encoder)
    rows = [torch.randn(length, 3, dtype=torch.float64) for length in (12, 1, 5)]
    alone = torch.cat([outputs(network, [row]) for row in rows])
    assert torch.allclose(outputs(network, rows), alone, atol=1e-12)


def test_dilated_convolutions_by_the_equations() -> None:
    network = network_of("wavenet")
    row = torch.randn(12, 3, dtype=torch.float64)
    x = row @ network.inputs.weight.T + network.inputs.bias
    total = torch.zeros_like(x)
    for number, layer in enumerate(network.layers):
        made = []
        for step in range(12):
            before = x[step - 2**number] if step >= 2**number else torch.zeros(16, dtype=torch.float64)
            both = torch.cat([before, x[step]]) @ layer.maps.weight.T + layer.maps.bias
            made.append(both[:16].tanh() * both[16:].sigmoid())
        total = total + torch.stack(made)
        x = x + torch.stack(made) @ layer.output.weight.T + layer.output.bias
    hidden = (total.relu() @ network.final.weight.T + network.final.bias).relu()
    expected = hidden @ network.heads["forecast"].output.weight.T + network.heads["forecast"].output.bias
    assert torch.allclose(outputs(network, [row]), expected, atol=1e-12)


def test_the_gru_is_torchs() -> None:
    network = network_of("gru")
    peer = torch.nn.GRU(3, 16, 2, batch_first=True).double()
    for number, module in enumerate(network.recurrent.layers):
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            getattr(peer, f"{name}_l{number}").data.copy_(getattr(module, f"{name}_l0"))
    row = torch.randn(12, 3, dtype=torch.float64)
    assert torch.allclose(network(row, Rows.of([12])), peer(row[None])[0][0], atol=1e-12)


@pytest.mark.parametrize("encoder", ENCODERS)
def test_saved_and_loaded_is_equal(encoder: str, tmp_path: Path) -> None:
    sizes = {**SIZES, "encoder": encoder}
    model = weft.new("forecaster", settings=sizes, heads={"forecast": 8})
    model.save(tmp_path / "model")
    again = weft.load(tmp_path / "model")
    assert again.task == "forecast" and (tmp_path / "model" / "model.safetensors").is_file()
    row = torch.randn(12, 3)
    assert torch.equal(outputs(model.network, [row]), outputs(again.network, [row]))


@pytest.mark.parametrize(
    "sizes, match",
    [
        ({"horizon": 0}, "horizon must be between 1"),
        ({"targets": 4}, "targets must be between 1 and 3"),
        ({"strategy": "step"}, "every feature must be forecast"),
        ({"encoder": "transformer", "width": 18, "attention_heads": 4}, "width 18 is not a multiple"),
        ({"context": 1 << 20, "features": 1 << 10}, "too large"),
        ({"width": 0}, "width must be between 1"),
    ],
)
def test_sizes_that_cannot_be_are_refused(sizes: dict[str, Any], match: str) -> None:
    with pytest.raises(UserError, match=match):
        ForecasterConfig(**{**SIZES, **sizes})


def test_a_card_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    weft.new("forecaster", settings=SIZES).save(tmp_path / "model")
    path = tmp_path / "model" / "weft.json"
    card = json.loads(path.read_text())
    good = {"values": ["a", "b"], "features": ["c"], "margins": [[1.0, 1.0]] * 4}
    for change in ({}, {"values": ["a"]}, {"margins": [[1.0]] * 4}, {"center": [0.0], "spread": [1.0]}):
        path.write_text(json.dumps({**card, "forecast": {**good, **change}}))
        if not change:
            assert weft.load(tmp_path / "model").task == "forecast"
            continue
        with pytest.raises(UserError, match="forecast does not fit"):
            weft.load(tmp_path / "model")
    for change, match in (({"season": 0}, "season"), ({"spread": [0.0] * 3, "center": [0.0] * 3}, "above 0")):
        path.write_text(json.dumps({**card, "forecast": {**good, **change}}))
        with pytest.raises(UserError, match=match):
            weft.load(tmp_path / "model")
    with pytest.raises(UserError, match="a head of 7 outputs"):
        weft.new("forecaster", settings=SIZES, heads={"forecast": 7})
    with pytest.raises(UserError, match="has no tokenizer"):
        weft.new("forecaster", weft.Tokenizer.__new__(weft.Tokenizer), settings=SIZES)


def test_a_window_that_is_too_long_is_refused() -> None:
    with pytest.raises(UserError, match="longer than the model's context of 12"):
        outputs(network_of("gru"), [torch.zeros(13, 3, dtype=torch.float64)])

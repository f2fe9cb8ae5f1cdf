"""Carried states on a GPU: steps played back from graphs are plain steps, and both are those of the CPU."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.graphs import CPU, CUDA, DEVICES, captured, graphs_anywhere  # noqa: F401
from tests.training.small import stories
from tests.training.test_carried import framed, network_of
from weft.data.masking import shift
from weft.data.rows import Feed, Streams
from weft.objectives.losses import CarriedToken, StreamStates
from weft.runs.driver import resume
from weft.runs.pretrain import pretrain
from weft.training.log import read_metrics, through_time
from weft.training.loop import set_learning_rate
from weft.training.plan import Training
from weft.training.step import Setup, Stepper, group_of

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "tanh": ("rnn", {}),
    "relu": ("rnn", {"activation": "relu"}),
    "lstm": ("lstm", {}),
    "gru": ("gru", {"tied": False}),
}


@pytest.fixture(autouse=True)
def exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Numbers of 32 bits are meant: no kernel may round its inputs to fewer."""
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


def steps_of(kind: str, device: torch.device, capture: bool, budget: int) -> tuple[list[Any], Stepper]:
    """Loss, length of the gradients, what is carried and weights after each of six steps of six streams."""
    cell, settings = KINDS[kind]
    network = network_of(cell, **settings).float().to(device)
    objective = CarriedToken(StreamStates(6).lay_out(network))
    feed = Feed(Streams(framed(200), 10, True, 6), shift, 0, 6)
    # A larger epsilon than usual: where a gradient is nothing but rounding, Adam would make a whole step of it.
    plan = Training(epsilon=1e-3, learning_rate=1e-2)
    setup = Setup(network=network, objective=objective, feed=feed, plan=plan, device=device)
    stepper = captured(Stepper(setup), capture)
    found = []
    for step in range(6):
        set_learning_rate(stepper.optimizer, 1e-2 / (1 + step))
        group = group_of(setup, step, budget)
        norm = stepper.step(*group, step)
        objective.states.settle()
        state = [part.cpu().clone() for part in objective.states.before]
        weights = [parameter.detach().cpu().clone() for parameter in network.parameters()]
        found.append((stepper.passes.losses.item(), norm.item(), state, weights))
    return found, stepper


def compare(one: list[Any], other: list[Any]) -> None:
    for (loss, norm, state, weights), (loss2, norm2, state2, weights2) in zip(one, other, strict=True):
        assert loss2 == pytest.approx(loss, rel=1e-4) and norm2 == pytest.approx(norm, rel=1e-3)
        assert max((a - b).abs().max() for a, b in zip(state, state2, strict=True)) < 1e-4
        assert max((a - b).abs().max() for a, b in zip(weights, weights2, strict=True)) < 1e-4
    assert one[0][2][0].abs().max() > 0.01 and (one[0][2][0] - one[1][2][0]).abs().max() > 0.01


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("budget", [60, 20])  # one pass with its update in one graph; three passes
def test_a_captured_step_is_a_plain_step_and_that_of_the_cpu(
    kind: str,
    budget: int,
    device: torch.device,
    graphs_anywhere: None,  # noqa: F811
) -> None:
    plain, _ = steps_of(kind, device, False, budget)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="passes cannot be captured")
        played, stepper = steps_of(kind, device, True, budget)
    assert stepper.passes.capture and len(stepper.passes.graphs) == 1, "nothing was played back"
    compare(plain, played)
    compare(plain, steps_of(kind, CPU, False, budget)[0])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_through_time_are_those_of_the_cpu(kind: str, device: torch.device) -> None:
    cell, settings = KINDS[kind]
    network = network_of(cell, **settings)
    batch = Feed(Streams(framed(200), 10, True, 6), shift, 0, 6).passes(0, 999)[0]
    here = through_time(network, batch)
    there = through_time(network.to(device), batch.to(device))
    assert [norm for layer in there for norm in layer] == pytest.approx([n for layer in here for n in layer], rel=1e-6)


def values(tmp_path: Path, out: str, device: torch.device, **training: Any) -> dict[str, Any]:
    (tmp_path / "text.txt").write_text(stories(200 if device == CUDA else 30))
    return {
        "out": str(tmp_path / out),
        "device": device.type,
        "model": {"family": "lstm", "size": "2x64", "dropout": 0.0},
        "text": {"files": [str(tmp_path / "text.txt")]},
        "tokenizer": {"size": 400 if device == CUDA else 300},
        "training": {"steps": 40, "batch": 16, "evaluate_every": 20, "log_every": 5, "precision": "fp32", **training},
    }


def losses(tmp_path: Path, out: str) -> list[float]:
    lines = read_metrics(tmp_path / out / "run/metrics.jsonl")
    return [line[name] for line in lines for name in ("loss", "validation_loss") if name in line]


@pytest.mark.parametrize("device", DEVICES)
def test_a_run_from_graphs_is_a_plain_run(
    device: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Evaluated and watched in between, in bf16 too, and gone on with."""
    steps = 40 if device == CUDA else 2
    plan: dict[str, Any] = {"steps": steps, "evaluate_every": steps // 2, "log_every": 5 if device == CUDA else 1}
    for most in (0, 64):
        monkeypatch.setattr("weft.training.step.MOST", most)
        given = values(tmp_path, str(most), device, watch_gradients=True, save_every=steps // 2, keep=5, **plan)
        pretrain(None, given, log=lambda line: None)
    assert losses(tmp_path, "0") == pytest.approx(losses(tmp_path, "64"), rel=1e-3)
    assert device == CPU or losses(tmp_path, "0")[-1] < losses(tmp_path, "0")[0] - 0.5
    shutil.copytree(tmp_path / "64", tmp_path / "parts")
    shutil.rmtree(tmp_path / f"parts/run/checkpoints/step-{steps}")
    resume(tmp_path / "parts", log=lambda line: None)
    assert losses(tmp_path, "parts") == pytest.approx(losses(tmp_path, "64"), rel=1e-3)
    pretrain(None, values(tmp_path, "half", device, **{**plan, "precision": "bf16"}), log=lambda line: None)
    assert losses(tmp_path, "half") == pytest.approx(losses(tmp_path, "64"), rel=0.05)

"""Carried states on a GPU: steps played back from graphs are plain steps, and both are those of the CPU."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.training.small import stories
from tests.training.test_carried import framed, network_of
from weft.data.batching import Feed
from weft.data.masking import shift
from weft.data.streams import Streams
from weft.objectives.carrying import CarriedToken, Memory
from weft.tasks.pretrain import pretrain
from weft.tasks.resume import resume
from weft.training.log import read_metrics
from weft.training.loop import update
from weft.training.optim import make_optimizer, set_rate
from weft.training.passes import Passes
from weft.training.plan import Training
from weft.training.watching import through_time

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
CUDA, CPU = torch.device("cuda"), torch.device("cpu")
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


def steps_of(kind: str, device: torch.device, capture: bool, budget: int) -> tuple[list[Any], Passes]:
    """Loss, length of the gradients, what is carried and weights after each of six steps of six streams."""
    cell, settings = KINDS[kind]
    network = network_of(cell, **settings).float().to(device).train()
    objective = CarriedToken(Memory(6).lay_out(network))
    # A larger epsilon than usual: where a gradient is nothing but rounding, Adam would make a whole step of it.
    plan = Training(epsilon=1e-3)
    optimizer = make_optimizer(network, plan, 1e-2)
    scaler = torch.amp.GradScaler(device.type, enabled=False)
    setup: Any = SimpleNamespace(network=network, plan=plan)

    def finish() -> torch.Tensor:
        return update(setup, optimizer, scaler)

    passes = Passes(network, objective.sums, 1, device, "fp32", scaler, capture, finish=finish)
    feed = Feed(Streams(framed(200), 10, True, 6), shift, 0, 6)
    found = []
    for step in range(6):
        set_rate(optimizer, 1e-2 / (1 + step))
        norm = passes.step(feed.passes(step, budget), torch.tensor([60.0]), lambda number: number)
        norm = finish() if norm is None else norm
        objective.memory.settle()
        state = [part.cpu().clone() for part in objective.memory.before]
        weights = [parameter.detach().cpu().clone() for parameter in network.parameters()]
        found.append((passes.losses.item(), norm.item(), state, weights))
    return found, passes


def compare(one: list[Any], other: list[Any]) -> None:
    for (loss, norm, state, weights), (loss2, norm2, state2, weights2) in zip(one, other, strict=True):
        assert loss2 == pytest.approx(loss, rel=1e-4) and norm2 == pytest.approx(norm, rel=1e-3)
        assert max((a - b).abs().max() for a, b in zip(state, state2, strict=True)) < 1e-4
        assert max((a - b).abs().max() for a, b in zip(weights, weights2, strict=True)) < 1e-4
    assert one[0][2][0].abs().max() > 0.01 and (one[0][2][0] - one[1][2][0]).abs().max() > 0.01


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("budget", [60, 20])  # one pass with its update in one graph; three passes
def test_a_captured_step_is_a_plain_step_and_that_of_the_cpu(kind: str, budget: int) -> None:
    plain, _ = steps_of(kind, CUDA, False, budget)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="passes cannot be captured")
        captured, passes = steps_of(kind, CUDA, True, budget)
    assert passes.capture and len(passes.graphs) == 1, "nothing was played back"
    compare(plain, captured)
    compare(plain, steps_of(kind, CPU, False, budget)[0])


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_through_time_are_those_of_the_cpu(kind: str) -> None:
    cell, settings = KINDS[kind]
    network = network_of(cell, **settings)
    batch = Feed(Streams(framed(200), 10, True, 6), shift, 0, 6).passes(0, 999)[0]
    here = through_time(network, batch)
    there = through_time(network.to(CUDA), batch.to(CUDA))
    assert [norm for layer in there for norm in layer] == pytest.approx([n for layer in here for n in layer], rel=1e-6)


def values(tmp_path: Path, out: str, **training: Any) -> dict[str, Any]:
    (tmp_path / "text.txt").write_text(stories(200))
    return {
        "out": str(tmp_path / out),
        "device": "cuda",
        "model": {"family": "lstm", "size": "2x64", "dropout": 0.0},
        "text": {"files": [str(tmp_path / "text.txt")]},
        "tokenizer": {"size": 400},
        "training": {"steps": 40, "batch": 16, "evaluate_every": 20, "log_every": 5, "precision": "fp32", **training},
    }


def losses(tmp_path: Path, out: str) -> list[float]:
    lines = read_metrics(tmp_path / out / "run/metrics.jsonl")
    return [line[name] for line in lines for name in ("loss", "validation_loss") if name in line]


def test_a_run_from_graphs_is_a_plain_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluated and watched in between, in bf16 too, and gone on with."""
    for most in (0, 64):
        monkeypatch.setattr("weft.training.passes.MOST", most)
        given = values(tmp_path, str(most), watch_gradients=True, save_every=20, keep=5)
        pretrain(None, given, say=lambda line: None)
    assert losses(tmp_path, "0") == pytest.approx(losses(tmp_path, "64"), rel=1e-3)
    assert losses(tmp_path, "0")[-1] < losses(tmp_path, "0")[0] - 0.5
    shutil.copytree(tmp_path / "64", tmp_path / "parts")
    shutil.rmtree(tmp_path / "parts/run/checkpoints/step-40")
    resume(tmp_path / "parts", say=lambda line: None)
    assert losses(tmp_path, "parts") == pytest.approx(losses(tmp_path, "64"), rel=1e-3)
    pretrain(None, values(tmp_path, "half", precision="bf16"), say=lambda line: None)
    assert losses(tmp_path, "half") == pytest.approx(losses(tmp_path, "64"), rel=0.05)

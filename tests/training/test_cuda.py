"""Training on a GPU: captured passes are plain passes, one compilation serves a whole run, and memory may run out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.small import OBJECTIVES, batch_of, network_for, stories
from weft.tasks.finetune import finetune
from weft.tasks.pretrain import pretrain
from weft.tasks.resume import resume
from weft.training.log import read_metrics
from weft.training.passes import Passes

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
CUDA = torch.device("cuda")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text(stories(200))


@pytest.mark.parametrize("objective", ["next", "mlm", "mlm+nsp"])
def test_captured_is_plain(objective: str) -> None:
    """Gradients and losses of several steps of two passes each, and of one with a pass of another shape."""
    steps = [[batch_of(objective, [17] * 8, seed=n), batch_of(objective, [17] * 8, seed=n + 50)] for n in range(3)]
    steps += [[batch_of(objective, [17] * 8, seed=9)], [batch_of(objective, [17] * 5, seed=8)], steps[0]]
    found: dict[bool, list[Any]] = {}
    for capture in (False, True):
        network = network_for(objective).to(CUDA).train()
        scaler = torch.amp.GradScaler("cuda", enabled=False)
        terms = len(OBJECTIVES[objective].counts(steps[0][0]))
        passes = Passes(network, OBJECTIVES[objective].sums, terms, CUDA, "fp32", scaler, capture)
        found[capture] = []
        for batches in steps:
            passes.step(batches, torch.full((terms,), 40.0), lambda number: number)
            gradients = [p.grad.clone() for p in network.parameters() if p.grad is not None]
            found[capture].append((passes.losses.clone(), gradients))
    for (losses, plain), (also, captured) in zip(found[False], found[True], strict=True):
        assert torch.allclose(losses, also, rtol=1e-5)
        largest = max(g.abs().max() for g in plain)
        assert all((a - b).abs().max() < 1e-5 * largest for a, b in zip(plain, captured, strict=True))


def test_dropout_differs_from_step_to_step_when_captured() -> None:
    network = network_for("next", dropout=0.3).to(CUDA).train()
    scaler = torch.amp.GradScaler("cuda", enabled=False)
    passes = Passes(network, OBJECTIVES["next"].sums, 1, CUDA, "bf16", scaler, True)
    batch = batch_of("next", [17] * 8)
    losses = []
    for seed in (1, 2, 1):
        passes.step([batch], torch.ones(1), lambda number, seed=seed: seed)  # type: ignore[misc]
        losses.append(passes.losses.item())
    assert losses[0] != losses[1] and losses[0] == losses[2]


def settings(tmp_path: Path, out: str, objective: str, rows: str | None, **training: Any) -> dict[str, Any]:
    family = "gpt2" if objective == "next" else "bert"
    return {
        "out": str(tmp_path / out),
        "device": "cuda",
        "model": {"family": family, "size": "2x128"},
        "text": {"files": [str(tmp_path / "text.txt")]},
        "tokenizer": {"size": 400},
        "objective": {"name": objective, "length": 64, **({"rows": rows} if rows else {})},
        "training": {"steps": 60, "batch": 16, "evaluate_every": 20, "log_every": 5, "rate": 2e-3, **training},
    }


@pytest.mark.parametrize("objective, rows", [("next", "stream"), ("next", "apart"), ("mlm", "documents")])
def test_compiled_once(objective: str, rows: str | None, tmp_path: Path) -> None:
    torch._dynamo.reset()
    pretrain(None, settings(tmp_path, "run", objective, rows, compile=True), say=lambda line: None)
    lines = [line for line in read_metrics(tmp_path / "run/run/metrics.jsonl") if "graphs" in line]
    assert lines[-1]["graphs"] == lines[1]["graphs"]  # after ten steps nothing is compiled again
    assert lines[-1]["loss"] < lines[0]["loss"] - 0.5


def test_memory_really_runs_out(tmp_path: Path) -> None:
    heard: list[str] = []
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 250e6) / free)
    try:
        values = settings(tmp_path, "run", "next", "stream", steps=6, batch=512, pass_tokens=1 << 20)
        pretrain(None, values, say=heard.append)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert any("memory ran out" in line for line in heard)


def test_going_on_is_near_on_a_gpu(tmp_path: Path) -> None:
    """The same steps in the same order; what a GPU adds up in another order differs in the last digits only."""
    values = settings(tmp_path, "whole", "mlm+nsp", None, precision="fp32", steps=20, save_every=10, keep=5)
    pretrain(None, values, say=lambda line: None)
    pretrain(None, {**values, "out": str(tmp_path / "parts")}, say=lambda line: None)
    import shutil

    shutil.rmtree(tmp_path / "parts/run/checkpoints/step-20")
    resume(tmp_path / "parts", say=lambda line: None)
    losses = [[line["loss"] for line in read_metrics(tmp_path / n / "run/metrics.jsonl") if "loss" in line]
              for n in ("whole", "parts")]  # fmt: skip
    assert losses[0] == pytest.approx(losses[1], rel=2e-3)


def test_whole_steps_from_graphs_are_plain_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fine-tuning on ragged rows: forward, backward, clipping and update in one graph for each of several shapes."""
    words = ["warp", "weft", "loom", "thread", "shuttle", "cloth"]
    rows = [f"{' '.join(words[: 1 + n % 6] * (1 + n % 5))},{'odd' if n % 2 else 'even'}" for n in range(96)]
    (tmp_path / "rows.csv").write_text("text,label\n" + "\n".join(rows) + "\n")
    lines: dict[int, list[float]] = {}
    for most in (0, 64):
        monkeypatch.setattr("weft.training.passes.MOST", most)
        still = {"dropout": 0.0, "attention_dropout": 0.0, "head_dropout": 0.0}
        finetune(
            str(tmp_path / "rows.csv"),
            task="classify",
            out=tmp_path / str(most),
            model={"family": "bert", "size": "2x128", "context": 64, **still},
            tokenizer={"size": 100},
            training={"steps": 40, "batch": 8, "log_every": 5, "rate": 1e-3, "precision": "fp32"},
            device="cuda",
        )
        found = read_metrics(tmp_path / str(most) / "run/metrics.jsonl")
        lines[most] = [line[name] for line in found for name in ("loss", "norm") if name in line]
    assert len(lines[0]) >= 16 and lines[0] == pytest.approx(lines[64], rel=2e-3)
    assert lines[0][-2] < 0.8 * lines[0][0]

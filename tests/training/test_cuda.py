"""Training on a GPU: captured passes are plain passes, one compilation serves a whole run, and memory may run out.

What a CPU can do of it, it does: graphs are played there by `tests/graphs.py`, runs are shorter.
"""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.graphs import CPU, CUDA, DEVICES, captured, graphs_anywhere, needs_gpu  # noqa: F401
from tests.training.small import OBJECTIVES, batch_of, drawn, network_for, stories
from weft.data.masking import shift
from weft.data.rows import Feed, Frame, Framed, PackedRows
from weft.data.shards import Corpus
from weft.nn.rows import Batch
from weft.runs.driver import device_for, resume, settled
from weft.runs.finetune import finetune
from weft.runs.pretrain import pretrain
from weft.training.log import memory_used, peak_of, read_metrics
from weft.training.loop import set_learning_rate
from weft.training.plan import Training
from weft.training.step import Passes, Setup, Stepper, group_of


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text(stories(200))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("objective", ["next", "mlm", "mlm+nsp"])
def test_captured_is_plain(objective: str, device: torch.device, graphs_anywhere: None) -> None:  # noqa: F811
    """Gradients and losses of several steps of two passes each, of one of another shape, and of one of both shapes."""
    steps = [[batch_of(objective, [17] * 8, seed=n), batch_of(objective, [17] * 8, seed=n + 50)] for n in range(3)]
    other = batch_of(objective, [17] * 5, seed=8)
    steps += [[batch_of(objective, [17] * 8, seed=9)], [other], steps[0], [other, *steps[0]]]
    found: dict[bool, list[Any]] = {}
    for capture in (False, True):
        network = network_for(objective).to(device).train()
        scaler = torch.amp.GradScaler(device.type, enabled=False)
        terms = len(OBJECTIVES[objective].counts(steps[0][0]))
        passes = Passes(network, OBJECTIVES[objective].sums, terms, device, "fp32", scaler, capture)
        found[capture] = []
        for batches in steps:
            passes.step(batches, torch.full((terms,), 40.0), lambda number: number)
            gradients = [p.grad.clone() for p in network.parameters() if p.grad is not None]
            found[capture].append((passes.losses.clone(), gradients))
        assert len(passes.graphs) == (2 if capture else 0)
    for (losses, plain), (also, played) in zip(found[False], found[True], strict=True):
        assert torch.allclose(losses, also, rtol=1e-5)
        largest = max(g.abs().max() for g in plain)
        assert all((a - b).abs().max() < 1e-5 * largest for a, b in zip(plain, played, strict=True))


def even_feed(rows: int, length: int) -> Feed:
    """Full rows of random tokens."""
    tokens = drawn([2000]).tokens.astype(np.uint32)
    framed = Framed(Corpus([tokens], np.array([0, len(tokens)]), None, "random"), Frame())
    return Feed(PackedRows(framed, length, 1, False, 0), shift, 0, rows)


@pytest.mark.parametrize("device", DEVICES)
def test_the_trainers_own_step_from_a_graph(device: torch.device, graphs_anywhere: None) -> None:  # noqa: F811
    """Forward, backward, clipping and update in one graph, on the batches of a run; with a pass more, in three."""
    for pass_tokens in (1 << 20, 64):
        found = {}
        for capture in (False, True):
            network, feed = network_for("next"), even_feed(8, 16)
            plan = Training(epsilon=1e-3, clip=0.5, learning_rate=1e-2)
            setup = Setup(network=network, objective=OBJECTIVES["next"], feed=feed, plan=plan, device=device)
            stepper = captured(Stepper(setup), capture)
            lines = []
            for number in range(4):
                set_learning_rate(stepper.optimizer, 1e-2 / (1 + number))
                group = group_of(setup, number, pass_tokens)
                assert len(group[0]) == (1 if pass_tokens > 64 else 2)
                batches = [batch.packed() for batch in group[0]] if device.type == "cpu" else group[0]  # as if pinned
                assert all(batch.memory is not None for batch in batches)
                norm = stepper.step(batches, group[1], number)
                lines.append((stepper.passes.losses.item(), norm.item()))
            assert len(stepper.passes.graphs) == int(capture)
            found[capture] = lines, [parameter.detach().cpu() for parameter in network.parameters()]
        assert found[True][0] == [pytest.approx(pair, rel=1e-3) for pair in found[False][0]]
        assert all(norm > 0 for _, norm in found[True][0])
        assert max((a - b).abs().max() for a, b in zip(found[True][1], found[False][1], strict=True)) < 1e-4


def test_what_a_run_asks_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name, its memory, its number, and pinned batches, with the answers of a GPU put in."""
    pinned: list[Any] = []
    empty = torch.empty

    def made(*size: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        pinned.extend([size] * pin_memory)
        return empty(*size, **options)

    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: pinned.append(tensor) or tensor.clone())
    monkeypatch.setattr(torch, "empty", made)
    setup = Setup(network=network_for("next"), objective=OBJECTIVES["next"], feed=even_feed(4, 16), device=CUDA)
    group = group_of(setup, 0, 1 << 20)
    assert len(pinned) == 2 and group[0][0].size == 64  # a batch in one piece, and the counts
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100-SXM4-80GB")
    memory = {"allocated_bytes": {"all": {"peak": 123}}}
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda device: memory)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    assert peak_of(CUDA) == 312e12 and memory_used(CUDA) == 123
    assert settled(Training(), CUDA, 1, 1, None, 1.0).precision == "bf16"
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("weft.runs.driver.device_of", torch.device)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    assert device_for(None, None) == torch.device("cuda", 0) and chosen == [torch.device("cuda", 0)]


@pytest.mark.parametrize("device", DEVICES)
def test_dropout_differs_from_step_to_step_when_captured(
    device: torch.device,
    graphs_anywhere: None,  # noqa: F811
) -> None:
    network = network_for("next", dropout=0.3).to(device).train()
    scaler = torch.amp.GradScaler(device.type, enabled=False)
    passes = Passes(network, OBJECTIVES["next"].sums, 1, device, "bf16", scaler, True)
    batch = batch_of("next", [17] * 8)
    losses = []
    for seed in (1, 2, 1):
        passes.step([batch], torch.ones(1), lambda number, seed=seed: seed)  # type: ignore[misc]
        losses.append(passes.losses.item())
    assert losses[0] != losses[1] and losses[0] == losses[2]


@pytest.mark.parametrize("device", DEVICES)
def test_what_cannot_be_captured_goes_without(device: torch.device, graphs_anywhere: None) -> None:  # noqa: F811
    """Also where shapes before it were captured: dropout still differs from step to step, and is that of its seed."""
    read = False

    def sums(network: Any, batch: Batch) -> dict[str, torch.Tensor]:
        losses = OBJECTIVES["next"].sums(network, batch)
        if read:
            losses["words"].item()
        return losses

    network = network_for("next", dropout=0.3).to(device).train()
    scaler = torch.amp.GradScaler(device.type, enabled=False)
    passes = Passes(network, sums, 1, device, "fp32", scaler, True)

    def loss(batch: Batch, seed: int) -> float:
        passes.step([batch], torch.ones(1), lambda number: seed)
        return passes.losses.item()

    even, other = batch_of("next", [17] * 8), batch_of("next", [17] * 5)
    captured_losses = [loss(even, seed) for seed in (1, 2)]
    assert len(passes.graphs) == 1
    read = True
    with pytest.warns(UserWarning, match="passes cannot be captured"):
        loss(other, 1)
    assert not passes.graphs
    assert [loss(even, seed) for seed in (1, 2)] == pytest.approx(captured_losses, rel=1e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_passes_are_captured_anew_for_another_generator(
    device: torch.device,
    graphs_anywhere: None,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a capture that failed elsewhere, as in an evaluation: what was captured draws from the generator before."""
    replaced: list[int] = []
    monkeypatch.setattr("weft.training.step.REPLACED", replaced)
    network = network_for("next", dropout=0.3).to(device).train()
    scaler = torch.amp.GradScaler(device.type, enabled=False)
    passes = Passes(network, OBJECTIVES["next"].sums, 1, device, "fp32", scaler, True)
    losses, kept = [], []
    for _ in range(3):
        passes.step([batch_of("next", [17] * 8)], torch.ones(1), lambda number: 1)
        losses.append(passes.losses.item())
        kept.extend(passes.graphs.values())
        if len(kept) == 2:
            replaced.append(0)
    assert kept[0] is kept[1] and kept[2] is not kept[1] and len(kept) == 3
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_a_pass_that_fails_by_itself_says_so(device: torch.device, graphs_anywhere: None) -> None:  # noqa: F811
    """Such as one that cannot be compiled: that is no fault of capturing, and need not be tried twice."""
    tries = []

    def sums(network: Any, batch: Batch) -> dict[str, torch.Tensor]:
        tries.append(batch)
        raise RuntimeError("no C compiler")

    network = network_for("next").to(device).train()
    passes = Passes(network, sums, 1, device, "fp32", torch.amp.GradScaler(device.type, enabled=False), True)
    with warnings.catch_warnings(), pytest.raises(RuntimeError, match="no C compiler"):
        warnings.simplefilter("error")
        passes.step([batch_of("next", [17] * 8)], torch.ones(1), lambda number: number)
    assert len(tries) == 1 and passes.capture


def settings(
    tmp_path: Path, out: str, objective: str, rows: str | None, device: torch.device = CUDA, **training: Any
) -> dict[str, Any]:
    family = "gpt2" if objective == "next" else "bert"
    return {
        "out": str(tmp_path / out),
        "device": device.type,
        "model": {"family": family, "size": "2x128"},
        "text": {"files": [str(tmp_path / "text.txt")]},
        "tokenizer": {"size": 400},
        "objective": {"name": objective, "length": 64, **({"rows": rows} if rows else {})},
        "training": {"steps": 60, "batch": 16, "evaluate_every": 20, "log_every": 5, "learning_rate": 2e-3, **training},
    }


@needs_gpu
@pytest.mark.parametrize("objective, rows", [("next", "stream"), ("next", "apart"), ("mlm", "documents")])
def test_compiled_once(objective: str, rows: str | None, tmp_path: Path) -> None:
    torch._dynamo.reset()
    pretrain(None, settings(tmp_path, "run", objective, rows, compile=True), log=lambda line: None)
    lines = [line for line in read_metrics(tmp_path / "run/run/metrics.jsonl") if "graphs" in line]
    assert lines[-1]["graphs"] == lines[1]["graphs"]  # after ten steps nothing is compiled again
    assert lines[-1]["loss"] < lines[0]["loss"] - 0.5


@needs_gpu
def test_memory_really_runs_out(tmp_path: Path) -> None:
    heard: list[str] = []
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 250e6) / free)
    try:
        values = settings(tmp_path, "run", "next", "stream", steps=6, batch=512, pass_tokens=1 << 20)
        pretrain(None, values, log=heard.append)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert any("memory ran out" in line for line in heard)


@pytest.mark.parametrize("device", DEVICES)
def test_going_on_is_near_on_a_gpu(device: torch.device, tmp_path: Path) -> None:
    """The same steps in the same order; what a GPU adds up in another order differs in the last digits only."""
    steps = 20 if device == CUDA else 2
    plan = {"precision": "fp32", "steps": steps, "save_every": steps // 2, "log_every": 1, "keep": 5}
    values = settings(tmp_path, "whole", "mlm+nsp", None, device, **plan)
    pretrain(None, values, log=lambda line: None)
    shutil.copytree(tmp_path / "whole", tmp_path / "parts")
    shutil.rmtree(tmp_path / f"parts/run/checkpoints/step-{steps}")
    resume(tmp_path / "parts", log=lambda line: None)
    losses = [[line["loss"] for line in read_metrics(tmp_path / n / "run/metrics.jsonl") if "loss" in line]
              for n in ("whole", "parts")]  # fmt: skip
    assert losses[0] == pytest.approx(losses[1], rel=2e-3)


@pytest.mark.parametrize("device", DEVICES)
def test_whole_steps_from_graphs_are_plain_steps(
    device: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fine-tuning on ragged rows: forward, backward, clipping and update in one graph for each of several shapes."""
    words = ["warp", "weft", "loom", "thread", "shuttle", "cloth"]
    rows = [f"{' '.join(words[: 1 + n % 6] * (1 + n % 5))},{'odd' if n % 2 else 'even'}" for n in range(96)]
    (tmp_path / "rows.csv").write_text("text,label\n" + "\n".join(rows) + "\n")
    lines: dict[int, list[float]] = {}
    steps = 40 if device == CUDA else 4
    for most in (0, 64):
        monkeypatch.setattr("weft.training.step.MOST", most)
        still = {"dropout": 0.0, "attention_dropout": 0.0, "head_dropout": 0.0}
        finetune(
            str(tmp_path / "rows.csv"),
            task="classify",
            out=tmp_path / str(most),
            model={"family": "bert", "size": "2x128", "context": 64, **still},
            tokenizer={"size": 100},
            training={
                "steps": steps,
                "batch": 8,
                "log_every": steps // 8 or 1,
                "learning_rate": 1e-3,
                "precision": "fp32",
            },
            device=device.type,
        )
        found = read_metrics(tmp_path / str(most) / "run/metrics.jsonl")
        lines[most] = [line[name] for line in found for name in ("loss", "norm") if name in line]
    assert len(lines[0]) >= min(16, 2 * steps) and lines[0] == pytest.approx(lines[64], rel=2e-3)
    assert device == CPU or lines[0][-2] < 0.8 * lines[0][0]

"""Muon: torch's own steps, which weights it trains, and that a run goes on with its state."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.graphs import Recording
from tests.table import CASES
from tests.training.small import OBJECTIVES, batch_of, network_for, stories
from weft.checkpoint.families import FAMILIES
from weft.errors import UserError
from weft.runs.driver import resume
from weft.runs.pretrain import pretrain
from weft.training.log import read_metrics
from weft.training.muon import Muon, muon_parts, orthogonal
from weft.training.plan import Training
from weft.training.step import make_optimizer, optimizer_tensors

PLAN = Training(optimizer="muon", weight_decay=0.1)


def test_steps_are_those_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Theirs iterates in bfloat16, so ours is made to."""
    exact = orthogonal
    monkeypatch.setattr("weft.training.muon.orthogonal", lambda x, dtype: exact(x, torch.bfloat16))
    torch.manual_seed(0)
    ours = [torch.nn.Parameter(torch.randn(shape)) for shape in ((8, 8), (16, 8), (8, 16), (8, 8))]
    theirs = [torch.nn.Parameter(weight.detach().clone()) for weight in ours]
    begin = [weight.detach().clone() for weight in ours]
    mine = Muon([{"params": ours, "parts": 1}], 1e-2, weight_decay=0.1, fused=True)
    for weight in ours:
        mine.state[weight] = {"momentum": torch.zeros_like(weight)}
    peer = torch.optim.Muon(theirs, 1e-2, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    for step in range(3):
        for weights, optimizer in ((ours, mine), (theirs, peer)):
            torch.manual_seed(step)
            for weight in weights:
                weight.grad = torch.randn_like(weight)
            optimizer.step()
    for one, two, first in zip(ours, theirs, begin, strict=True):
        assert (one - two).abs().max() < 0.05 * (two - first).abs().max()


def test_a_step_is_nearly_orthogonal() -> None:
    torch.manual_seed(0)
    for shape in ((3, 16, 48), (2, 48, 16)):
        matrices = torch.randn(shape, dtype=torch.float64)
        values = torch.linalg.svdvals(orthogonal(matrices, torch.float64))
        assert values.min() > 0.5 and values.max() < 1.5
        u, _, v = torch.linalg.svd(matrices, full_matrices=False)
        near = torch.nn.functional.cosine_similarity(orthogonal(matrices, torch.float64).flatten(1), (u @ v).flatten(1))
        assert near.min() > 0.95


def test_queries_keys_and_values_are_three_matrices() -> None:
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.zeros(24, 8))
    gradients = [scale * torch.randn(8, 8) for scale in (1.0, 100.0, 1e-3)]
    weight.grad = torch.cat(gradients)
    optimizer = Muon([{"params": [weight], "parts": 3}], 1.0, weight_decay=0.0, fused=True)
    optimizer.state[weight] = {"momentum": torch.zeros_like(weight)}
    optimizer.step()
    sizes = torch.stack([part.norm() for part in weight.detach().chunk(3)])
    assert sizes.max() < 1.3 * sizes.min(), "the largest gradient does not take all of the step"
    assert sizes.mean() == pytest.approx(0.2 * 8, rel=0.3), "the root mean square of a step of AdamW is about 0.2"


def test_only_matrices_of_layers_are_trained_by_it() -> None:
    network: Any = network_for("mlm+nsp")
    optimizer = make_optimizer(network, PLAN, 1e-3)
    parts = {id(weight): group["parts"] for group in optimizer.param_groups for weight in group["params"]}
    for name, weight in network.named_parameters():
        inside = name.startswith("layers.") and weight.dim() == 2
        assert parts[id(weight)] == ((3 if "qkv" in name else 1) if inside else 0), name
    names = set(optimizer_tensors(network, optimizer))
    assert "layers.0.attention.qkv.weight:momentum" in names and "tokens.weight:exp_avg_sq" in names
    assert not any(name.startswith("layers.0.attention.qkv.weight:exp") for name in names)
    config = CASES["lstm"].config()
    with pytest.raises(UserError, match="muon is for models with layers of matrices"):
        make_optimizer(FAMILIES["lstm"].network(config, {"words": config.vocabulary}), PLAN, 1e-3)  # type: ignore[arg-type]
    t5: Any = network_for("spans")
    found = muon_parts(t5)
    assert any("encoder" in name for name in found) and any("key_value" in name for name in found)
    for name, settings, part in (
        ("gpt2", {"activation": "gated-silu"}, "feedforward.up"),
        ("conv-seq2seq", {}, "decoder.layers.0.maps"),
    ):
        config = CASES[name].config(**settings)
        halves: Any = FAMILIES[name].network(config, {"words": config.vocabulary})
        counts = {count for weight, count in muon_parts(halves).items() if part in weight}
        assert counts == {2}, "what is gated and its gate are two matrices"


def test_it_learns_and_can_be_captured() -> None:
    network: Any = network_for("next").train()
    optimizer = make_optimizer(network, PLAN, 5e-3)
    batch, losses = batch_of("next", [9, 20, 14, 6]), []
    for _ in range(60):
        optimizer.zero_grad()
        loss = OBJECTIVES["next"].sums(network, batch)["words"] / 45
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    (group,) = [group for group in optimizer.param_groups if group["parts"] == 1]
    group["lr"] = torch.tensor(1e-3)
    with Recording() as recording:  # reading a number raises
        optimizer._step_matrices(group)  # type: ignore[attr-defined]
    assert recording.calls


def test_a_run_goes_on_with_its_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text(stories(60))
    settings = {
        "out": str(tmp_path / "whole"),
        "model": {"family": "gpt2", "size": "1x64"},
        "text": {"files": [str(tmp_path / "text.txt")]},
        "tokenizer": {"size": 300},
        "objective": {"length": 32},
        "training": {"optimizer": "muon", "steps": 12, "batch": 8, "evaluate_every": 6, "log_every": 1, "keep": 5},
    }
    pretrain(None, settings, log=lambda line: None)
    assert 'optimizer = "muon"' in (tmp_path / "whole/run/recipe.toml").read_text()
    shutil.copytree(tmp_path / "whole", tmp_path / "parts")
    shutil.rmtree(tmp_path / "parts/run/checkpoints/step-12")
    resume(tmp_path / "parts", log=lambda line: None)
    losses = [
        [line["loss"] for line in read_metrics(tmp_path / name / "run/metrics.jsonl") if "loss" in line]
        for name in ("whole", "parts")
    ]
    assert len(losses[0]) == 12 and losses[0] == losses[1] and losses[0][-1] < losses[0][0]

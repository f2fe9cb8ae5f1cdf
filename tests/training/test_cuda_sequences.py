"""Encoder-decoders on a GPU: a step from a graph is the plain step, and what is written is what the CPU writes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.graphs import CPU, CUDA, DEVICES, captured, graphs_anywhere, needs_gpu  # noqa: F401
from weft.checkpoint.families import FAMILIES, usual_heads
from weft.data.examples import Sequences, TextSide
from weft.data.examples import batch_of as with_targets
from weft.data.rows import Feed
from weft.generation.generate import generate
from weft.generation.sampling import Sampling
from weft.generation.search import Beam
from weft.nn.rows import Batch
from weft.objectives.losses import Writing
from weft.runs.finetune import finetune
from weft.training.log import read_metrics
from weft.training.loop import set_learning_rate
from weft.training.plan import Training
from weft.training.step import Setup, Stepper, _shapes

END, VOCABULARY = 1, 40
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "transformer": ("transformer", {}),
    "pre-norm": ("transformer", {"norm_place": "before", "tied": "decoder", "source_vocabulary": 44}),
    "marian": ("marian", {}),
    "t5": ("t5", {"head_width": 16}),
    "gated t5": ("t5", {"head_width": 16, "activation": "gated-gelu", "tied": False, "scaled": False}),
    "one vector, lstm": ("seq2seq", {"attention": "none", "bidirectional": False}),
    "one vector, gru": ("seq2seq", {"attention": "none", "cell": "gru"}),
    "additive, lstm": ("seq2seq", {"attention": "additive"}),
    "additive, gru": ("seq2seq", {"attention": "additive", "cell": "gru", "layers": 1}),
    "general, lstm": ("seq2seq", {"attention": "general"}),
    "general and feeding, lstm": ("seq2seq", {"attention": "general", "feeding": True}),
    "general and feeding, gru": ("seq2seq", {"attention": "general", "feeding": True, "cell": "gru"}),
    "dot, rnn": ("seq2seq", {"attention": "dot", "cell": "rnn", "bidirectional": False}),
    "convolution": ("conv-seq2seq", {}),
}


@pytest.fixture(autouse=True)
def exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Numbers of 32 bits are meant: no kernel may round its inputs to fewer."""
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


def network_of(kind: str) -> Any:
    name, settings = KINDS[kind]
    family = FAMILIES[name]
    sizes = {"vocabulary": VOCABULARY, "context": 32, "width": 32, "layers": 2, "heads": 2, "inner": 64}
    named = {field.name for field in fields(family.config)}
    still = {name: 0.0 for name in named if name.endswith("dropout")}
    sizes = {name: size for name, size in sizes.items() if name in named}
    config = family.config(**{**family.standard, **sizes, **still, **settings})
    torch.manual_seed(1)
    network = family.network(config, usual_heads(family, config))
    network.initialize()
    return network


def table_of(seed: int, longest: int) -> Sequences:
    """Ten pairs, filled up to one of few shapes: rows that say nothing are among them."""
    chance = np.random.default_rng(seed)

    def side() -> TextSide:
        return TextSide.of([[*chance.integers(2, VOCABULARY, chance.integers(1, longest)), END] for _ in range(10)])

    return Sequences(side(), side(), begin=0, context=32, fixed=True)


def batch_of(seed: int, longest: int) -> Batch:
    numbers = np.arange(10)
    table = table_of(seed, longest)
    return with_targets(table.draw(numbers * 0, numbers))


def steps_of(
    kind: str, batches: list[Batch], device: torch.device, capture: bool
) -> tuple[list[tuple[float, float, list[Tensor]]], Stepper]:
    """Loss, length of the gradients and weights after each step."""
    network, objective, table = network_of(kind), Writing(smoothing=0.1), table_of(0, 8)
    feed = Feed(table, with_targets, 0, 10)
    # A larger epsilon than usual: where a gradient is nothing but rounding, Adam would make a whole step of it.
    plan = Training(epsilon=1e-3, weight_decay=0.1, learning_rate=1e-2)
    setup = Setup(network=network, objective=objective, feed=feed, plan=plan, device=device)
    stepper = captured(Stepper(setup), capture)
    found = []
    for number, batch in enumerate(batches):
        set_learning_rate(stepper.optimizer, 1e-2 / (1 + number))  # a graph must read it anew
        norm = stepper.step([batch], torch.tensor([float(objective.counts(batch)["words"])]), 7)
        weights = [parameter.detach().cpu().clone() for parameter in network.parameters()]
        found.append((stepper.passes.losses.item(), norm.item(), weights))
    return found, stepper


def compare(kind: str, batches: list[Batch], device: torch.device = CUDA) -> None:
    plain, _ = steps_of(kind, batches, device, capture=False)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="passes cannot be captured")
        played, stepper = steps_of(kind, batches, device, capture=True)
    assert stepper.passes.capture and len(stepper.passes.graphs) == 2, "nothing was played back"
    for (loss, norm, weights), (other_loss, other_norm, others) in zip(plain, played, strict=True):
        assert other_loss == pytest.approx(loss, rel=1e-4) and other_norm == pytest.approx(norm, rel=1e-3)
        assert max((a - b).abs().max() for a, b in zip(weights, others, strict=True)) < 1e-4
    first, last = plain[0][2], plain[-1][2]
    assert max((a - b).abs().max() for a, b in zip(first, last, strict=True)) > 1e-3, "nothing was learned"


@needs_gpu
@pytest.mark.parametrize("kind", KINDS)
def test_a_captured_step_is_a_plain_step(kind: str) -> None:
    """Forward, backward, clipping and update: two shapes, one of them again with other texts and another rate."""
    short, long, again = (batch_of(seed, longest) for seed, longest in ((1, 8), (2, 15), (4, 8)))
    assert _shapes(short) == _shapes(again) != _shapes(long)
    compare(kind, [short, long, again, short])


@pytest.mark.parametrize("device", [pytest.param(CPU, id="cpu")])
@pytest.mark.parametrize("kind", ["one vector, gru", "additive, gru", "general, lstm"])
def test_a_captured_step_of_ragged_rows_is_a_plain_step(
    kind: str,
    device: torch.device,
    graphs_anywhere: None,  # noqa: F811
) -> None:
    """The same on a CPU, where no numbers are read on the way: each batch has rows of other lengths."""
    compare(kind, [batch_of(seed, longest) for seed, longest in ((1, 8), (2, 15), (4, 8), (1, 8))], device)


@needs_gpu
@pytest.mark.parametrize("kind", ["additive, gru", "general, lstm", "one vector, lstm"])
def test_a_captured_step_reads_its_own_words(kind: str) -> None:
    """Scheduled sampling: never at first, always at last, told by the batch and not by the graph."""
    batches = [batch_of(1, 8), batch_of(2, 15), batch_of(4, 8)]
    batches = [
        replace(batch, targets={**batch.targets, "own": torch.tensor(own)})
        for batch, own in zip(batches, (0.0, 1.0, 1.0), strict=True)
    ]
    compare(kind, batches)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_on_the_gpu_is_the_step_on_the_cpu(kind: str, device: torch.device) -> None:
    """Kernels of two kinds, one mathematics."""
    batches = [batch_of(1, 8), batch_of(2, 15)]
    here, _ = steps_of(kind, batches, CPU, capture=False)
    there, _ = steps_of(kind, batches, device, capture=False)
    for (loss, norm, weights), (other_loss, other_norm, others) in zip(here, there, strict=True):
        assert other_loss == pytest.approx(loss, rel=1e-4) and other_norm == pytest.approx(norm, rel=1e-3)
        assert max((a - b).abs().max() for a, b in zip(weights, others, strict=True)) < 1e-4


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_is_what_the_cpu_writes(kind: str, device: torch.device) -> None:
    """Greedy and with a beam, of ragged sources; the same tokens, scores within what 32 bits can say."""
    network = network_of(kind).eval()
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in network.parameters():  # far from each other, so that rounding decides nothing
            parameter.normal_(0.0, 0.3)
            if parameter.dim() == 1:
                parameter += 1.0
    sources = [[5, 9, 2, 31, 7, END], [8, END], [3, 3, 4, 12, 30, 11, 6, 9, 10, END], [6, 2, END]]
    options: dict[str, Any] = {"sources": sources, "context": 32, "max_tokens": 12, "ends": [END]}
    looks = KINDS[kind][1].get("attention") != "none"
    for choice in (Sampling(), Beam(width=4, n=4), Beam(width=6, n=2, groups=2, diversity=0.5)):
        here = generate(network.cpu(), [[0]] * 4, choice=choice, attention=looks, **options)
        there = generate(network.to(device), [[0]] * 4, choice=choice, attention=looks, device=device, **options)
        for one, other in zip(here, there, strict=True):
            assert [each.tokens for each in one] == [each.tokens for each in other]
            assert [each.finish_reason for each in one] == [each.finish_reason for each in other]
            assert [each.score for each in one] == pytest.approx([each.score for each in other], abs=1e-3)
            for each, again in zip(one, other, strict=True):
                if looks:
                    assert each.attention is not None and again.attention is not None
                    assert (each.attention - again.attention.cpu()).abs().max() < 1e-3


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["transformer", "general and feeding, gru"])
def test_a_run_from_graphs_is_a_plain_run(
    kind: str, device: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fine-tuning on pairs, from the table to the best model: played back, and with nothing recorded."""
    words = ["warp", "weft", "loom", "thread", "shuttle", "cloth"]
    texts = [words[n % 6 : n % 6 + 1 + n % 4] * (1 + n % 3) for n in range(64)]
    rows = [f"{' '.join(text)}\t{' '.join(word.upper() for word in reversed(text))}" for text in texts]
    for file in ("rows.tsv", "dev.tsv"):
        (tmp_path / file).write_text("source\ttarget\n" + "\n".join(rows) + "\n")
    name, settings = KINDS[kind]
    still = {field.name: 0.0 for field in fields(FAMILIES[name].config) if field.name.endswith("dropout")}
    lines: dict[int, list[float]] = {}
    steps = 40 if device == CUDA else 2
    for most in (0, 64):
        monkeypatch.setattr("weft.training.step.MOST", most)
        finetune(
            str(tmp_path / "rows.tsv"),
            dev=str(tmp_path / "dev.tsv"),
            task={"name": "translate", "metric": "loss"},
            out=tmp_path / str(most),
            model={"family": name, "size": "2x64", "context": 32, **still, **settings},
            tokenizer={"kind": "word"},
            training={
                "steps": steps,
                "batch": 8,
                "log_every": steps // 8 or 1,
                "learning_rate": 2e-3,
                "precision": "fp32",
            },
            device=device.type,
            log=lambda line: None,
        )
        found = read_metrics(tmp_path / str(most) / "run/metrics.jsonl")
        lines[most] = [line["loss"] for line in found if "loss" in line]
    assert len(lines[0]) == min(8, steps) and lines[0] == pytest.approx(lines[64], rel=1e-2)
    assert device == CPU or lines[0][-1] < 0.7 * lines[0][0]

"""The loop: it learns, evaluates in constant memory, keeps the best and the last, stops early, compiles once."""

from __future__ import annotations

import json
import math
import shutil
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import weft
from tests.training.small import OBJECTIVES, batch_of, network_for, stories
from weft.data.rows import Ahead
from weft.errors import UserError
from weft.nn.rows import Batch
from weft.objectives.losses import NextToken
from weft.runs.driver import resume
from weft.runs.pretrain import pretrain
from weft.training.log import read_metrics
from weft.training.loop import Operations, graphs_compiled, live_line, quick_arithmetic
from weft.training.step import Passes, Setup, seed_of


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text(stories(60))
    return tmp_path / "text.txt"


def go(text: Path, out: Path, objective: str = "next", **training: Any) -> weft.Model:
    family = "gpt2" if objective == "next" else "bert"
    plan = {"steps": 20, "batch": 8, "evaluate_every": 5, "log_every": 5, **training}
    return pretrain(
        None,
        {
            "out": str(out),
            "model": {"family": family, "size": "1x64"},
            "text": {"files": [str(text)]},
            "tokenizer": {"size": 300},
            "objective": {"name": objective, "length": 32},
            "training": plan,
        },
        log=lambda line: None,
    )


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_overfits_one_batch(objective: str) -> None:
    torch.manual_seed(0)
    network = network_for(objective).train()
    batch = batch_of(objective, [9, 20, 14, 6])
    counts = torch.tensor([float(n) for n in OBJECTIVES[objective].counts(batch).values()])
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    passes = Passes(network, OBJECTIVES[objective].sums, len(counts), torch.device("cpu"), "fp32", scaler, False)
    optimizer = torch.optim.AdamW(network.parameters(), 1e-2)
    for _ in range(300):  # some 80 are enough
        passes.step([batch], counts, lambda number: 0)
        optimizer.step()
        if passes.losses.sum() < 0.1:
            break
    assert passes.losses.sum() < 0.1


def test_language_models_beat_the_unigram(text: Path, tmp_path: Path) -> None:
    """A small run says more about held-out text than the frequencies of its tokens do."""
    text.write_text(stories(200))
    model = go(text, tmp_path / "run", steps=200, learning_rate=3e-3, batch=16, evaluate_every=200, log_every=100)
    assert model.tokenizer is not None
    lines = text.read_text().splitlines()
    ids = [token for row in model.tokenizer.ids(lines, specials=False) for token in row]
    counts = np.bincount(ids, minlength=model.tokenizer.vocabulary) + 0.01
    entropy = -(counts / counts.sum() * np.log(counts / counts.sum())).sum()
    found = read_metrics(tmp_path / "run" / "run" / "metrics.jsonl")[-1]["validation_loss"]
    assert found < 0.9 * entropy
    answer: Any = model("The weaver said", max_tokens=10)
    assert answer.text


def test_the_run_folder(text: Path, tmp_path: Path) -> None:
    go(text, tmp_path / "run", objective="mlm", keep=2)
    run = tmp_path / "run" / "run"
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step-15", "step-20"]
    about = json.loads((run / "run.json").read_text())
    assert about["seed"] == 0 and about["versions"]["torch"] == torch.__version__ and about["machine"]["threads"]
    assert len(about["text"]["hash"]) == 32 and about["held_out"]["tokens"] > 0 and "git" in about
    recipe = (run / "recipe.toml").read_text()
    assert "steps = 20" in recipe and "learning_rate = " in recipe and str(text) in recipe  # every open choice is made
    lines = read_metrics(run / "metrics.jsonl")
    assert [line["step"] for line in lines] == [5, 5, 10, 10, 15, 15, 20, 20]
    assert {"loss", "learning_rate", "norm", "tokens", "padding", "memory", "tokens_per_second"} <= set(lines[0])
    assert "mfu" not in lines[0], "nobody knows the peak of a CPU"
    assert lines[0]["loss"] == pytest.approx(math.log(300), rel=0.15)  # a fresh model knows nothing of 300 tokens
    assert (run / "report.html").read_text().count("<figure") == 4
    card = json.loads((tmp_path / "run" / "weft.json").read_text())
    assert card["task"] == "fill" and card["metrics"][0]["name"] == "loss" and len(card["recipe"]) == 64
    best = min(line["validation_loss"] for line in lines if "validation_loss" in line)
    assert card["metrics"][0]["value"] == best


def test_the_best_is_kept_and_patience_ends(text: Path, tmp_path: Path) -> None:
    """With a rate far too high the loss on held-out text rises again: what is kept is the best."""
    go(text, tmp_path / "run", steps=400, learning_rate=0.02, patience=2, evaluate_every=10, warmup=30, explode=100.0)
    lines = [line for line in read_metrics(tmp_path / "run/run/metrics.jsonl") if "validation_loss" in line]
    losses = [line["validation_loss"] for line in lines]
    assert losses[-1] > min(losses) and losses[-2] >= min(losses) == losses[-3]
    assert lines[-1]["step"] < 400
    again = weft.load(tmp_path / "run")
    assert again.card.metrics[0].value == min(losses)


def test_batches_are_told_what_changes_with_the_step(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every pass of a step hears what its step's number says; what a run is judged by is told nothing."""
    heard: list[tuple[bool, float | None]] = []

    class Listening(NextToken):
        def sums(self, network: Any, batch: Batch) -> dict[str, torch.Tensor]:
            own = batch.targets.get("own")
            heard.append((network.training, None if own is None else round(float(own), 3)))
            return super().sums(network, batch)

    def setup(**values: Any) -> Setup:
        paced = {"objective": Listening(), "pace": lambda step: {"own": torch.tensor(step / 10)}}
        return Setup(**{**values, **paced})

    monkeypatch.setattr("weft.runs.driver.Setup", setup)
    go(text, tmp_path / "run", steps=3, batch=4, pass_tokens=80, evaluate_every=3, log_every=1)
    training = [own for learning, own in heard if learning]
    assert sorted(set(training)) == [0.0, 0.1, 0.2] and training == sorted(training) and len(training) > 3
    assert {own for learning, own in heard if not learning} == {None}


def test_a_finished_run_is_not_trained_again(text: Path, tmp_path: Path) -> None:
    go(text, tmp_path / "run")
    before = (tmp_path / "run" / "model.safetensors").read_bytes()
    resume(tmp_path / "run", log=lambda line: None)
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == before


def test_equal_seeds_are_equal_and_others_are_not(text: Path, tmp_path: Path) -> None:
    runs = {name: tmp_path / name for name in ("a", "b", "c")}
    for name, out in runs.items():
        settings = {"out": str(out), "seed": 1 if name != "c" else 2, "model": {"family": "gpt2", "size": "1x64"}}
        settings |= {"text": {"files": [str(text)]}, "tokenizer": {"size": 300}, "objective": {"length": 16}}
        pretrain(None, {**settings, "training": {"steps": 4, "batch": 4}}, log=lambda line: None)
    weights = {name: (out / "model.safetensors").read_bytes() for name, out in runs.items()}
    assert weights["a"] == weights["b"] != weights["c"]


def test_the_mean_is_what_is_kept(text: Path, tmp_path: Path) -> None:
    go(text, tmp_path / "run", ema=0.5, steps=6, evaluate_every=6)
    from safetensors.torch import load_file

    last = tmp_path / "run/run/checkpoints/step-6"
    mean, weights = load_file(last / "ema.safetensors"), load_file(last / "model.safetensors")
    kept = weft.load(tmp_path / "run").network.state_dict()
    assert kept["tokens.weight"].equal(mean["tokens.weight"])
    assert not kept["tokens.weight"].equal(weights["tokens.weight"])


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision(precision: str, text: Path, tmp_path: Path) -> None:
    go(text, tmp_path / "run", precision=precision, steps=12, evaluate_every=6, save_every=6)
    state = json.loads((tmp_path / "run/run/checkpoints/step-12/state.json").read_text())
    assert state["finished"] and (state["steady"] > 0 or precision == "bf16")
    losses = [line["loss"] for line in read_metrics(tmp_path / "run/run/metrics.jsonl") if "loss" in line]
    assert losses[-1] < losses[0]
    assert next(weft.load(tmp_path / "run").network.parameters()).dtype == torch.float32


def test_evaluation_is_the_mean_over_every_place(text: Path, tmp_path: Path) -> None:
    """Cut into other batches it is the same, and it is the mean that one pass over all of it gives."""
    for name, tokens in (("a", 64), ("b", 4096)):
        go(text, tmp_path / name, steps=5, pass_tokens=tokens, ema=None, batch=2)
    found = [read_metrics(tmp_path / name / "run/metrics.jsonl")[-1]["validation_loss"] for name in ("a", "b")]
    assert found[0] == pytest.approx(found[1], abs=1e-4)


def test_without_held_out_text_the_last_is_kept(text: Path, tmp_path: Path) -> None:
    settings = {"out": str(tmp_path / "run"), "model": {"family": "gpt2", "size": "1x64"}}
    settings |= {
        "text": {"files": [str(text)], "holdout": 0.0},
        "tokenizer": {"size": 300},
        "objective": {"length": 16},
    }
    model = pretrain(None, {**settings, "training": {"steps": 4, "batch": 4}}, log=lambda line: None)
    assert model.card.metrics == ()
    from safetensors.torch import load_file

    last = load_file(tmp_path / "run/run/checkpoints/step-4/model.safetensors")
    assert model.network.state_dict()["tokens.weight"].equal(last["tokens.weight"])


# What is compiled again is decided before a backend sees it; machine code takes the most time by far.
NEEDS_GCC = pytest.mark.skipif(not shutil.which("g++"), reason="the compiler needs g++ on the CPU")
BACKENDS = ["aot_eager", pytest.param("inductor", marks=[pytest.mark.slow, NEEDS_GCC])]


@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_once(backend: str, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where epochs meet in a step, and with an evaluation between the steps."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    go(text, tmp_path / "run", compile=True, steps=24, batch=6, pass_tokens=96, evaluate_every=8, log_every=2)
    lines = read_metrics(tmp_path / "run/run/metrics.jsonl")
    graphs = [line["graphs"] for line in lines if "graphs" in line]
    assert len(graphs) == 12 and len(set(graphs)) == 1
    go(text, tmp_path / "plain", steps=24, batch=6, pass_tokens=96, evaluate_every=8, log_every=2)
    plain = read_metrics(tmp_path / "plain/run/metrics.jsonl")
    losses = [(a["loss"], b["loss"]) for a, b in zip(lines, plain, strict=True) if "loss" in a]
    assert losses[0][0] == pytest.approx(losses[0][1], abs=0.05)  # dropout is drawn in another way


def test_compiling_ragged_rows_on_the_cpu_is_refused(text: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="only full rows can be compiled, and these are not: leave out --compile"):
        go(text, tmp_path / "run", objective="mlm+sop", compile=True)


def test_tensorboard(text: Path, tmp_path: Path) -> None:
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    settings = {"out": str(tmp_path / "run"), "model": {"family": "gpt2", "size": "1x64"}, "tensorboard": True}
    settings |= {"text": {"files": [str(text)]}, "tokenizer": {"size": 300}, "objective": {"length": 16}}
    pretrain(None, {**settings, "training": {"steps": 4, "batch": 4, "log_every": 2}}, log=lambda line: None)
    found = events.EventAccumulator(str(tmp_path / "run/run/tensorboard"))
    found.Reload()
    assert [event.step for event in found.Scalars("loss")] == [2, 4]
    assert math.isfinite(found.Scalars("validation/loss")[0].value)


def test_the_loader_runs_ahead_and_ends() -> None:
    made: list[int] = []
    ahead = Ahead(lambda n: made.append(n) or n, 0, 100, depth=3)
    things = iter(ahead)
    assert next(things) == 0
    limit = time.monotonic() + 5
    while len(made) < 4 and time.monotonic() < limit:
        time.sleep(0.01)
    assert 4 <= len(made) <= 6  # some ahead, and no more
    ahead.close()
    assert threading.active_count() < 50

    def fails(number: int) -> int:
        if number == 2:
            raise UserError("line 3 is bad")
        return number

    with pytest.raises(UserError, match="line 3"):
        list(Ahead(fails, 0, 5))


@pytest.mark.parametrize("backend", BACKENDS)
def test_batches_of_any_shape_are_compiled_once(backend: str) -> None:
    """Rows of equal length here, since only those compile on the CPU; their number changes."""
    torch._dynamo.reset()
    before = graphs_compiled()
    sums = torch.compile(OBJECTIVES["mlm"].sums, fullgraph=True, backend=backend)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    passes = Passes(network_for("mlm"), sums, 1, torch.device("cpu"), "fp32", scaler, ragged=True)
    plain = Passes(network_for("mlm"), OBJECTIVES["mlm"].sums, 1, torch.device("cpu"), "fp32", scaler)
    for count in (8, 5, 11):
        batch = batch_of("mlm", [17] * count)
        for way in (passes, plain):
            way.step([batch], torch.ones(1), lambda number: number)
        assert torch.allclose(passes.losses, plain.losses, rtol=1e-5)
    assert graphs_compiled() == before + 1


def test_the_mean_is_what_is_judged(text: Path, tmp_path: Path) -> None:
    """It changes nothing in the training, and what is said of held-out text is said of the mean."""
    for name, ema in (("plain", None), ("mean", 0.9)):
        go(text, tmp_path / name, ema=ema, steps=10)
    plain, mean = (read_metrics(tmp_path / name / "run/metrics.jsonl") for name in ("plain", "mean"))
    assert [a["loss"] for a in plain if "loss" in a] == [b["loss"] for b in mean if "loss" in b]
    judged = [(a["validation_loss"], b["validation_loss"]) for a, b in zip(plain, mean, strict=True) if "loss" not in a]
    assert judged and all(one != other for one, other in judged)


def test_dropout_follows_from_seed_step_and_pass() -> None:
    assert len({seed_of(seed, step)(number) for seed in (1, 2) for step in (0, 1, 2) for number in (0, 1)}) == 12


def test_numbers_next_to_nothing_are_nothing_while_it_trains() -> None:
    tiny = torch.tensor([1e-40])
    with quick_arithmetic(torch.device("cpu")):
        assert (tiny * 1.0).item() == 0.0
    assert (tiny * 1.0).item() > 0.0


def test_the_live_line_fits_80_columns() -> None:
    values = {"step": 999_950, "loss": 123.4567, "learning_rate": 1.234e-05, "padding": 0.33, "memory": 139.4e9}
    values |= {"tokens_per_second": 12_345_678, "mfu": 0.43}
    line = live_line(values, 1_000_000, "123:59:59")
    assert len(line) < 80
    assert line.startswith("step 999,950/1,000,000  123:59:59 left  loss 123.4567  12,345,678 tokens/s")
    few = {**values, "step": 50, "loss": 2.5, "tokens_per_second": 8_000, "memory": 1e9}
    line = live_line(few, 500, "1:15")
    assert len(line) < 80 and "43 % of peak" in line
    plain = {key: value for key, value in few.items() if key != "mfu"}
    begin = "step 50/500  1:15 left  loss 2.5000  8,000 tokens/s  rate 1.2e-05"
    assert live_line(plain, 500, "1:15") == f"{begin}  1.0 GB", "what attention fills up on a CPU is no news"


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_operations_of_several_batches_add_up(objective: str) -> None:
    operations = Operations(network_for(objective))
    batches = [batch_of(objective, lengths) for lengths in ([9, 20, 14, 6], [5], [7, 7])]
    alone = []
    for batch in batches:
        operations.add(batch)
        alone.append(operations.total())
    for batch in batches:
        operations.add(batch)
    assert min(alone) > 0 and operations.total() == pytest.approx(sum(alone)) and operations.total() == 0

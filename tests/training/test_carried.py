"""A state that is carried from row to row: equal to one long row, however a step is cut, broken off or judged."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.training.small import stories
from tests.training.test_resume import BROKEN, contents, same
from weft.checkpoint.families import FAMILIES
from weft.data.masking import shift
from weft.data.rows import Feed, Frame, Framed, Streams
from weft.data.shards import Corpus
from weft.errors import UserError
from weft.objectives.losses import CarriedToken, NextToken, StreamStates
from weft.runs.driver import resume
from weft.runs.pretrain import pretrain
from weft.training.log import Watch, read_metrics, through_time
from weft.training.loop import evaluate
from weft.training.signals import Stop
from weft.training.step import Passes, Setup

CELLS = ("rnn", "lstm", "gru")
REMEMBERS: dict[str, Any] = {"heads": 2, "segment": 10, "memory": 7, "weight_scale": 0.3}
CPU = torch.device("cpu")


def network_of(cell: str, **settings: Any) -> Any:
    family = FAMILIES[cell]
    own = REMEMBERS if cell == "transformer-xl" else {"embedding_width": 8}
    sizes: dict[str, Any] = {"vocabulary": 30, "width": 16, "layers": 2, "dropout": 0.0, **own, **settings}
    config = family.config(**{**family.standard, **sizes})
    torch.manual_seed(0)
    network = family.network(config, {"words": 30})
    network.initialize()
    return network.double()


def framed(size: int) -> Framed:
    tokens = np.random.default_rng(0).integers(0, 30, size).astype(np.uint32)
    return Framed(Corpus([tokens], np.array([0, size]), None, "hash"), Frame())


def steps_of(
    cell: str, budget: int, count: int = 4
) -> list[tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor]]]:
    """The loss, the gradients and what is carried after each of some steps of six streams."""
    network = network_of(cell)
    objective = CarriedToken(StreamStates(6).lay_out(network))
    feed = Feed(Streams(framed(200), 10, True, 6), shift, 0, 6)
    passes = Passes(network, objective.sums, 1, CPU, "fp32", torch.amp.GradScaler("cpu", enabled=False))
    passes.losses = passes.losses.double()
    found = []
    for step in range(count):
        passes.step(feed.passes(step, budget), torch.tensor([60.0]), lambda number: number)
        objective.states.settle()
        gradients = [p.grad.clone() for p in network.parameters() if p.grad is not None]
        found.append((passes.losses.clone(), gradients, [part.clone() for part in objective.states.before]))
    return found


@pytest.mark.parametrize("cell", CELLS)
def test_two_carried_rows_are_one_long_row(cell: str) -> None:
    network, text = network_of(cell), framed(100)
    objective, whole = CarriedToken(StreamStates(3).lay_out(network)), NextToken()
    short, long = (Feed(Streams(text, length, True, 3), shift, 0, 3) for length in (8, 16))
    losses = []
    with torch.no_grad():
        for step in range(2):
            losses.append(objective.sums(network, short.passes(step, 999)[0])["words"])
            objective.states.settle()
        expected = whole.sums(network, long.passes(0, 999)[0])["words"]
        alone = sum(whole.sums(network, short.passes(step, 999)[0])["words"] for step in range(2))
    assert abs(sum(losses) - expected) < 1e-9
    assert abs(alone - expected) > 1e-3, "it makes no difference what was carried"


@pytest.mark.parametrize("cell", [*CELLS, "transformer-xl"])
def test_a_step_in_passes_is_the_whole_step(cell: str) -> None:
    whole = steps_of(cell, 999)
    assert whole[0][2][0].abs().max() > 0.01
    for budget in (30, 20, 10):
        for (loss, gradients, state), (other, others, carried) in zip(whole, steps_of(cell, budget), strict=True):
            largest = max(gradient.abs().max() for gradient in gradients)
            assert abs(loss - other).max() < 1e-9
            assert all((a - b).abs().max() < 1e-9 * largest for a, b in zip(gradients, others, strict=True))
            assert all((a - b).abs().max() < 1e-12 for a, b in zip(state, carried, strict=True))


def test_a_step_that_is_done_again_begins_where_it_began() -> None:
    """Memory ran out in the second pass: the first had moved its streams on already."""
    network = network_of("lstm")
    objective = CarriedToken(StreamStates(6).lay_out(network))
    feed = Feed(Streams(framed(200), 10, True, 6), shift, 0, 6)
    objective.sums(network, feed.passes(0, 999)[0])
    objective.states.settle()
    begun = [part.clone() for part in objective.states.before]
    objective.sums(network, feed.passes(1, 30)[0])  # and then the machine gives up
    assert all(torch.equal(a, b) for a, b in zip(begun, objective.states.before, strict=True))
    for batch in feed.passes(1, 10):
        objective.sums(network, batch)
    objective.states.settle()
    again = steps_of("lstm", 999, 2)[1][2]  # weights do not change there either
    assert all((a - b).abs().max() < 1e-12 for a, b in zip(again, objective.states.before, strict=True))


def test_held_out_text_is_judged_with_a_state_of_its_own() -> None:
    network, text = network_of("gru").float(), framed(300)
    objective = CarriedToken(StreamStates(4).lay_out(network))
    for part in objective.states.before:
        part.fill_(0.7)
    losses = []
    for row, streams, budget in ((300, 1, 1 << 20), (25, 1, 1 << 20), (7, 1, 7), (10, 3, 1 << 20)):
        held = Streams(text, row, False, streams)
        feed = Feed(Streams(text, 10, True, 4), shift, 0, 4)
        setup = Setup(network=network, objective=objective, feed=feed, held_out=held)
        losses.append(evaluate(setup, budget, None, Stop())[0]["words"])
    assert losses[0] == pytest.approx(losses[1], abs=1e-5) == pytest.approx(losses[2], abs=1e-5)
    assert losses[3] != pytest.approx(losses[0], abs=1e-5)  # two streams more that begin with nothing
    assert all((part == 0.7).all() for part in objective.states.before)


# ------------------------------------------------------------------------------------------------------- whole runs


def settings(folder: Path, family: str = "lstm", **training: Any) -> dict[str, Any]:
    text = folder / "text.txt"
    if not text.exists():
        text.write_text(stories(60))
    return {
        "seed": 3,
        "model": {"family": family, "size": "2x32", "embedding_width": 24, "variational": True, "weight_dropout": 0.2},
        "text": {"files": [str(text)]},
        "tokenizer": {"size": 300},
        "objective": {"length": 16},
        "training": {
            "steps": 14, "batch": 12, "pass_tokens": 70, "ema": 0.9, "log_every": 5, "evaluate_every": 7,
            "save_every": 4, "keep": 20, "threads": 1, **training,
        },
    }  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))


def quietly(line: str) -> None:
    pass


def carried_contents(out: Path) -> dict[str, Any]:
    last = max((out / "run" / "checkpoints").glob("step-*"), key=lambda path: int(path.name[5:]))
    carried = load_file(last / "carried.safetensors")
    shutil.copytree(out, out.parent / f"{out.name}-seen")
    for path in (out.parent / f"{out.name}-seen").rglob("carried.safetensors"):
        path.unlink()
    found = contents(out.parent / f"{out.name}-seen")
    shutil.rmtree(out.parent / f"{out.name}-seen")
    return {**found, "carried": carried}


def test_a_run_that_goes_on_is_the_unbroken_run(tmp_path: Path) -> None:
    """Watched, too: what was noted after the checkpoint is noted again, once."""
    said: list[str] = []
    values = settings(tmp_path, watch_gradients=True)
    pretrain(None, {**values, "out": str(tmp_path / "whole")}, log=said.append)
    assert 'rows = "carried"' in (tmp_path / "whole/run/recipe.toml").read_text()
    assert any("gradients.html" in line for line in said)
    whole = carried_contents(tmp_path / "whole")
    assert whole["carried"]["0"].abs().max() > 0
    gradients = (tmp_path / "whole/run/gradients.jsonl").read_bytes()
    assert [json.loads(line)["step"] for line in gradients.splitlines()] == [0, 5, 10, 14]
    shutil.copytree(tmp_path / "whole", tmp_path / "parts")
    for path in (tmp_path / "parts/run/checkpoints").glob("step-*"):
        if int(path.name[5:]) > 8:
            shutil.rmtree(path)
    resume(tmp_path / "parts", log=quietly)
    parts = carried_contents(tmp_path / "parts")
    for name in whole:
        assert same(whole[name], parts[name]), name
    assert (tmp_path / "parts/run/gradients.jsonl").read_bytes() == gradients
    # Unwatched it is the same run.
    pretrain(None, {**settings(tmp_path), "out": str(tmp_path / "unwatched")}, log=quietly)
    unwatched = carried_contents(tmp_path / "unwatched")
    for name in whole:
        assert same(whole[name], unwatched[name]), name
    assert not (tmp_path / "unwatched/run/gradients.jsonl").exists()


@pytest.mark.parametrize("family, sizes", [
    ("transformer-xl", {"size": "2x32", "heads": 2, "memory": 24}),
    ("elmo", {"size": "1x16", "filters": [4] * 7}),
])  # fmt: skip
def test_so_is_a_run_with_a_memory_or_in_both_directions(family: str, sizes: dict[str, Any], tmp_path: Path) -> None:
    values = {**settings(tmp_path, steps=8, evaluate_every=4), "model": {"family": family, **sizes}}
    pretrain(None, {**values, "out": str(tmp_path / "whole")}, log=quietly)
    shutil.copytree(tmp_path / "whole", tmp_path / "parts")
    shutil.rmtree(tmp_path / "parts/run/checkpoints/step-8")
    resume(tmp_path / "parts", log=quietly)
    read = carried_contents if family == "transformer-xl" else contents
    whole, parts = (read(tmp_path / name) for name in ("whole", "parts"))
    assert whole.keys() == parts.keys() and all(same(whole[name], parts[name]) for name in whole)


def test_memory_runs_out_in_the_middle_of_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second pass of the second step fails once: its streams, and those of the first pass, begin it again."""
    run, calls = Passes.run, []

    def failing(self: Passes, batch: Any, counts: Any) -> None:
        calls.append(len(batch.tokens))
        if len(calls) == 4:
            raise torch.OutOfMemoryError("CUDA out of memory")
        run(self, batch, counts)

    heard: list[str] = []
    for name in ("whole", "again"):
        values = settings(tmp_path, steps=5, pass_tokens=96, log_every=1, evaluate_every=5, ema=None)
        values["model"] |= {"dropout": 0.0, "weight_dropout": 0.0}
        pretrain(None, {**values, "out": str(tmp_path / name)}, log=heard.append)
        monkeypatch.setattr(Passes, "run", failing)
    assert calls[:8] == [96, 96, 96, 96, 48, 48, 48, 48] and sum("memory ran out" in line for line in heard) == 1
    losses = [[line["loss"] for line in read_metrics(tmp_path / name / "run/metrics.jsonl") if "loss" in line]
              for name in ("whole", "again")]  # fmt: skip
    assert len(losses[0]) == 5 and losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("family", CELLS)
def test_kills(family: str, tmp_path: Path) -> None:
    values = settings(tmp_path, family, steps=60)
    (tmp_path / "settings.json").write_text(json.dumps(values))
    environment = {**os.environ, "WEFT_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(BROKEN), str(tmp_path / "settings.json"), str(tmp_path / "run"), "6", "1"]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    assert found.returncode == 0, found.stderr[-3000:]
    whole, parts = carried_contents(tmp_path / "run-whole"), carried_contents(tmp_path / "run")
    for name in whole:
        assert same(whole[name], parts[name]), name


@pytest.mark.parametrize("family", CELLS)
def test_it_learns_more_than_how_common_words_are(family: str, tmp_path: Path) -> None:
    values = settings(tmp_path, family)
    values["model"] = {"family": family, "size": "1x48", "dropout": 0.0}
    values["training"] = {"steps": 80, "batch": 16, "learning_rate": 2e-2, "evaluate_every": 80, "threads": 1}
    model = pretrain(None, {**values, "out": str(tmp_path / "run")}, log=quietly)
    found = [
        line["validation_loss"]
        for line in read_metrics(tmp_path / "run/run/metrics.jsonl")
        if "validation_loss" in line
    ]
    assert model.tokenizer is not None
    ids = [
        i
        for text in model.tokenizer.ids((tmp_path / "text.txt").read_text().splitlines(), specials=False)
        for i in text
    ]
    shares = np.bincount(ids)[np.bincount(ids) > 0] / len(ids)
    unigram = -float((shares * np.log(shares)).sum())
    assert found[-1] < unigram - 0.3, (found, unigram)
    answer = model("once", max_tokens=5)
    assert answer.text


def test_what_is_refused(tmp_path: Path) -> None:
    values = settings(tmp_path)
    for change, words in (
        (
            {"model": {"family": "gpt2", "size": "1x64"}, "objective": {"rows": "carried"}},
            "gpt2 has no state: rows carried",
        ),
        ({"objective": {"short": 8}}, "rows carried have one length"),
        ({"model": {"family": "gpt2", "size": "1x64"}, "training": {"watch_gradients": True}}, "gpt2 has no state"),
    ):
        with pytest.raises(UserError, match=words):
            pretrain(None, {**values, **change, "out": str(tmp_path / "no")}, log=quietly)
        assert not (tmp_path / "no").exists()


def test_other_rows_remain_possible(tmp_path: Path) -> None:
    for rows in ("stream", "documents"):
        values = settings(tmp_path, "gru", steps=3)
        values["objective"] |= {"rows": rows}
        pretrain(None, {**values, "out": str(tmp_path / rows)}, log=quietly)
        assert not list((tmp_path / rows).rglob("carried.safetensors"))


# --------------------------------------------------------------------------------------------- gradients through time


@pytest.mark.parametrize("cell", CELLS)
def test_gradients_through_time_are_those_of_the_fused_network(cell: str) -> None:
    """A push at one place, by finite differences: what is noted is how the last loss answers to it."""
    network = network_of(cell, layers=1)
    batch = Feed(Streams(framed(60), 6, True, 2), shift, 0, 2).passes(0, 999)[0]
    norms = through_time(network, batch)
    assert len(norms) == 1 and len(norms[0]) == 6 and all(parameter.grad is None for parameter in network.parameters())
    layer, far = network.layers[0], 3  # three places before the last
    expected = []
    for row in range(2):
        tokens, label = batch.tokens.view(2, 6)[row], batch.targets["words"].view(2, 6)[row, -1]

        def loss(push: torch.Tensor, tokens: torch.Tensor = tokens, label: torch.Tensor = label) -> torch.Tensor:
            from weft.nn.rows import Rows

            x = network.tokens(tokens)
            _, state = layer(x[: 6 - far], Rows.of([6 - far]))
            state = ((state[0][0] + push, *state[0][1:]),)
            # An LSTM's output at this place is not pushed: the loss is of the last place alone.
            hidden, _ = layer(x[6 - far :], Rows.of([far]), state)
            return torch.nn.functional.cross_entropy(network.words(hidden[-1:]), label[None])

        expected.append(torch.autograd.functional.jacobian(loss, torch.zeros(1, 16, dtype=torch.float64)).norm())
    assert norms[0][far] == pytest.approx(float(sum(expected) / 2), rel=1e-9)


def test_a_plain_network_forgets_faster_than_an_lstm_that_keeps(tmp_path: Path) -> None:
    """Small recurrent weights: the plain gradient vanishes; an LSTM's forget gates, open from the start, hold it."""
    reach = {}
    for cell in ("rnn", "lstm"):
        network = network_of(cell, layers=1, width=32)
        with torch.no_grad():
            module = network.layers[0].layers[0]
            module.weight_hh_l0.mul_(0.3)
            if cell == "lstm":
                module.bias_ih_l0[32:64] = 3.0
        norms = through_time(network, Feed(Streams(framed(300), 32, True, 4), shift, 0, 4).passes(0, 999)[0])[0]
        reach[cell] = norms[31] / norms[1]
    assert reach["rnn"] < 1e-12 and reach["lstm"] > 0.05


def test_a_record_that_a_kill_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "gradients.jsonl"
    path.write_text('{"step": 0, "layers": [[1.0]]}\n{"step": 10, "layers": [[1.0]]}\n{"step": 20, "lay')
    assert Watch(path, 10).steps == {0, 10} and path.read_text().count("\n") == 2
    assert Watch(path, 5).steps == {0}

"""Fine-tuning runs: what is frozen, how fast each layer learns, what is held out, and going on after a break."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

import weft
from tests.tasks.small import kinds, pairs, prices, questions, quiet, sentences, several, write_conll, write_rows
from tests.training.test_resume import contents, same
from weft.cli.main import run
from weft.data.dataset import split, split_whole
from weft.errors import UserError
from weft.runs.finetune import finetune, with_seeds
from weft.runs.recipes import FinetuneTraining
from weft.training.run import Run
from weft.training.signals import Interrupted
from weft.training.step import Stepper, freeze, make_optimizer

SIZES = {"family": "bert", "size": "2x64", "context": 64}
FEW = {"steps": 2, "batch": 8, "learning_rate": 1e-2}


def trained(data: Path, task: str, **more: Any) -> weft.Model:
    more = {"tokenizer": {"size": 300}, "model": SIZES, "training": FEW, **more}
    if "base" in more:
        more = {key: value for key, value in more.items() if key not in ("tokenizer", "model")}
    return finetune(data, task=task, log=quiet, **more)


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small BERT that others begin with."""
    folder = tmp_path_factory.mktemp("base")
    trained(write_rows(folder / "rows.jsonl", kinds(20)), "classify", out=folder / "out")
    return folder / "out"


def changed_since(base: Path, model: weft.Model) -> set[str]:
    """The first parts of the names of all weights that are not as they were; heads are left out."""
    before = weft.load(base).network.state_dict()
    after = model.network.state_dict()
    names = [name for name in before if not name.startswith("heads.") and name in after]
    assert len(names) > 30
    found = {name for name in names if not before[name].equal(after[name])}
    return {".".join(name.split(".")[: 2 if name.startswith("layers") else 1]) for name in found}


@pytest.mark.parametrize(
    ("what", "changes"),
    [
        ("encoder", {"pooler"}),
        ("all-but-1", {"pooler", "layers.1"}),
        (None, {"pooler", "layers.0", "layers.1", "tokens"}),
    ],
)
def test_freezing(what: str | None, changes: set[str], base: Path, here: Path) -> None:
    data = write_rows(here / "r.jsonl", several(20))
    model = trained(data, "multilabel", base=base, settings={"task": {"freeze": what}} if what else {})
    found = changed_since(base, model)
    assert found == changes if what else changes <= found
    assert model.card.labels == ("animal", "plant", "stone") and model.card.base == "out"


def test_what_is_frozen_has_no_dropout() -> None:
    """A head upon a frozen encoder sees the same states in every epoch."""
    network: Any = weft.new("bert", size="2x64", settings={"vocabulary": 50, "context": 16}, heads={"tag": 3}).network
    freeze(network, "all-but-1")
    network.train()
    seen: list[torch.Tensor] = []
    network.layers[1].register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    from weft.nn.rows import Rows

    tokens, rows = torch.arange(5, 15), Rows.of([10])
    one, two = network(tokens, rows), network(tokens, rows)
    assert seen[0].equal(seen[1]) and not one.equal(two)
    with pytest.raises(UserError, match="the model has only 2 layers"):
        freeze(network, "all-but-2")


def test_the_share_of_each_layer() -> None:
    network: Any = weft.new("bert", size="2x64", settings={"vocabulary": 50}, heads={"classify": 3}).network
    optimizer = make_optimizer(network, FinetuneTraining(layer_decay=0.5), 1.0)
    shares = {id(weight): group["share"] for group in optimizer.param_groups for weight in group["params"]}
    decays = {id(weight): group["weight_decay"] for group in optimizer.param_groups for weight in group["params"]}
    for name, weight in network.named_parameters():
        expected = {
            "heads": 1.0,
            "pooler": 1.0,
            "layers": 0.5 ** (2 - int(name.split(".")[1]) if "layers" in name else 0),
        }
        assert shares[id(weight)] == expected.get(name.split(".")[0], 0.125), name
        assert decays[id(weight)] == (0.01 if weight.dim() > 1 else 0.0), name


def test_a_learned_mix(base: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The head reads a mix of all layers; the folder says so by its model_type, and comes back as it was."""
    data = write_rows(here / "r.jsonl", kinds(20))
    for number, given_ in enumerate(({}, {"base": base})):  # the second begins with a head for the same labels
        model = trained(data, "classify", out=here / f"out{number}", settings={"task": {"mix": True}}, **given_)
        assert model.config.mix and any(name.startswith("mix.") for name in model.network.state_dict())
        weights = model.network.mix.weights()
        shown = (here / f"out{number}" / "run" / "report.html").read_text()
        assert "Learned layer weights" in shown and f"multiplied by {weights['scale']:.3f}" in shown
        assert abs(sum(value for name, value in weights.items() if name != "scale") - 1) < 1e-9
        assert run(["info", str(here / f"out{number}")]) == 0
        assert f"layer weights   embeddings {weights['embeddings']:.4g}" in capsys.readouterr().out
        assert json.loads((here / f"out{number}/config.json").read_text())["model_type"] == "weft-bert"
        again = weft.load(here / f"out{number}")
        assert again("the cat is now") == model("the cat is now") and again.card.labels == ("animal", "plant", "stone")


def test_a_head_is_kept_where_the_labels_are(base: Path, here: Path) -> None:
    data = write_rows(here / "r.jsonl", kinds(20))
    before = weft.load(base).network.state_dict()
    still = {"training": {"steps": 1, "batch": 8, "learning_rate": 1e-9}}
    kept = trained(data, "classify", base=base, **still).network.state_dict()
    assert torch.allclose(kept["heads.classify.output.weight"], before["heads.classify.output.weight"], atol=1e-6)
    other = write_rows(here / "o.jsonl", [{**row, "label": row["label"].upper()} for row in kinds(20)])
    fresh = trained(other, "classify", base=base, **still).network.state_dict()
    assert not torch.allclose(fresh["heads.classify.output.weight"], before["heads.classify.output.weight"], atol=1e-3)


@pytest.mark.parametrize("task", ["classify", "pair", "regress"])
def test_next_words_beside_the_task(task: str, here: Path) -> None:
    rows = {"classify": kinds, "pair": pairs, "regress": prices}[task](20)
    model = trained(
        write_rows(here / "r.jsonl", rows),
        task,
        out=here / "out",
        model={"family": "gpt2", "size": "1x64", "context": 64},
        training={"steps": 12, "batch": 16, "learning_rate": 5e-3, "evaluate_every": 4},
        settings={"task": {"words": 0.5}},
    )
    lines = [json.loads(line) for line in (here / "out/run/metrics.jsonl").read_text().splitlines()]
    losses = [line["validation_words"] for line in lines if "validation_words" in line]
    assert len(losses) == 3 and losses[-1] < 0.95 * losses[0], "the next words are learned too"
    assert set(model.opened.heads) == {"words", "classify"}
    given_: Any = ("the mouse is now", "a dog") if task == "pair" else "the cat is now"
    assert weft.load(here / "out")(given_) == model(given_)
    if task == "regress":
        assert 1e4 < model(given_).value < 2e6  # type: ignore[attr-defined]


# ----------------------------------------------------------------------------------------------------------- holdout


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(0, 6), min_size=4, max_size=80), st.floats(0.05, 0.5), st.integers(0, 3))
def test_the_same_share_of_every_group(groups: list[int], share: float, seed: int) -> None:
    kept, held = split(groups, share, seed)
    assert sorted(kept + held) == list(range(len(groups))) and held and kept
    assert (kept, held) == split(groups, share, seed)
    counts, taken = Counter(groups), Counter(groups[number] for number in held)
    if max(counts.values()) > 1:
        for group, count in counts.items():
            assert abs(taken[group] - share * count) <= 1 + 1e-9 and taken[group] < count
    assert len(held) <= max(1, round(share * len(groups)))


def test_many_small_groups_give_their_share_together() -> None:
    groups = [number // 4 for number in range(400)]
    kept, held = split(groups, 0.1, 0)
    assert len(held) == 40 and len({groups[number] for number in held}) == 40
    assert split(groups, 0.1, 1)[1] != held
    assert kept == sorted(set(range(400)) - set(held))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from("abcdefgh"), min_size=4, max_size=60), st.floats(0.05, 0.5), st.integers(0, 3))
def test_a_context_is_never_on_both_sides(groups: list[str], share: float, seed: int) -> None:
    kept, held = split_whole(groups, share, seed)
    assert sorted(kept + held) == list(range(len(groups))) and held and kept
    assert (kept, held) == split_whole(groups, share, seed)
    if len(set(groups)) > 1:
        assert not {groups[number] for number in kept} & {groups[number] for number in held}


def test_the_split_is_noted(here: Path) -> None:
    rows = [{**row, "text": f"{row['text']} {number}"} for number, row in enumerate(kinds(60))]
    data = write_rows(here / "r.jsonl", rows)
    found = []
    for number, (seed, parted) in enumerate(((0, 0), (1, 0), (0, 1))):
        settings = {"seed": seed, "training": {"steps": 1, "batch": 8}}
        trained({"files": [str(data)], "split": parted}, "classify", out=here / str(number), **settings)
        found.append(json.loads((here / str(number) / "run/split.json").read_text()))
    assert found[0] == found[1] and found[0]["split"] == 0 and found[2]["split"] == 1
    assert found[0]["held_out"] != found[2]["held_out"] and len(found[0]["held_out"]) == 6
    lines = [int(where.rpartition(" line ")[2]) - 1 for where in found[0]["held_out"]]
    assert Counter(kinds(60)[line]["label"] for line in lines) == {"animal": 2, "plant": 3, "stone": 1}
    # Of several labels, whose sets are nearly all different, it is a whole share too.
    chance = [{"text": f"{n}", "labels": [f"l{n % 7}", f"m{n % 11}", f"n{n % 13}"]} for n in range(100)]
    trained(write_rows(here / "s.jsonl", chance), "multilabel", out=here / "s", training={"steps": 1, "batch": 8})
    assert len(json.loads((here / "s/run/split.json").read_text())["held_out"]) == 10


def test_a_row_that_is_there_twice_is_on_one_side(here: Path) -> None:
    rows = [{"text": f"{'stone' if n % 2 else 'plant'} {n // 4}", "label": "ab"[n % 2]} for n in range(120)]
    trained(write_rows(here / "r.jsonl", rows), "classify", out=here / "r", training={"steps": 1, "batch": 8})
    held = json.loads((here / "r/run/split.json").read_text())["held_out"]
    lines = {int(where.rpartition(" line ")[2]) - 1 for where in held}
    texts = {rows[line]["text"] for line in lines}
    assert lines and not any(row["text"] in texts for number, row in enumerate(rows) if number not in lines)


# ------------------------------------------------------------------------------------------------------- going on


def rows_of(task: str, here: Path) -> Path:
    if task == "tag":
        return write_conll(here / "r.conll", sentences(24))
    return write_rows(
        here / "r.jsonl", {"answer": questions, "multilabel": several, "regress": prices}.get(task, kinds)(24)
    )


@pytest.mark.parametrize(
    "task",
    ["classify", "tag", "answer", *(pytest.param(task, marks=pytest.mark.slow) for task in ("regress", "multilabel"))],
)
def test_going_on_ends_as_the_whole_run(task: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped in the middle of a step's work, and gone on with: bit for bit the same weights, state and record."""
    data = rows_of(task, here)
    plan = {
        "steps": 9,
        "batch": 6,
        "learning_rate": 1e-3,
        "evaluate_every": 4,
        "save_every": 2,
        "log_every": 3,
        "keep": 1,
    }
    plan |= {"ema": 0.9, "threads": 1, "pass_tokens": 60}
    given_: dict[str, Any] = {"model": {**SIZES, "size": "1x64"}, "training": plan}
    trained(data, task, out=here / "whole", **given_)
    real, calls = Stepper.update, []

    def killed(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(Stepper, "update", killed)
    with pytest.raises(KeyboardInterrupt):
        trained(data, task, out=here / "parts", **given_)
    monkeypatch.undo()
    assert [path.name for path in (here / "parts/run/checkpoints").glob("step-*")] == ["step-2"]
    monkeypatch.chdir("/")  # from anywhere
    weft.resume(here / "parts", log=quiet)
    whole, parts = contents(here / "whole"), contents(here / "parts")
    assert whole["state"]["finished"] and len(whole["metrics"]) >= 5
    for name in whole:
        assert same(whole[name], parts[name]), name
    assert load_file(here / "whole/model.safetensors").keys() == whole["best"].keys()
    cards = [json.loads((here / name / "weft.json").read_text()) for name in ("whole", "parts")]
    assert all(card.pop("recipe") for card in cards) and cards[0] == cards[1]


def test_a_stop_saves_and_other_data_is_refused(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = rows_of("classify", here)
    real = Stepper.update

    def stopped(*arguments: Any) -> Any:
        import os
        import signal

        os.kill(os.getpid(), signal.SIGTERM)
        return real(*arguments)

    monkeypatch.setattr(Stepper, "update", stopped)
    with pytest.raises(Interrupted, match="stopped after step 1 of 2, all saved; resume with: weft resume"):
        trained(data, "classify", out=here / "out")
    monkeypatch.undo()
    monkeypatch.chdir(here)
    assert weft.load(here / "out").card.labels == ("animal", "plant", "stone"), "what it has become can be looked at"
    kept = data.read_text()
    data.write_text(kept + json.dumps(kinds(1)[0]) + "\n")
    with pytest.raises(UserError, match="the data has changed since the run began"):
        weft.resume(here / "out", log=quiet)
    data.write_text(kept)
    assert weft.resume(here / "out", log=quiet)("the cat is now").n_windows == 1  # type: ignore[attr-defined]


def test_seeds(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Several runs, their mean and spread, the best model above them; broken off, it goes on where it was."""
    from weft.cli.main import run

    write_rows(here / "r.jsonl", kinds(30))
    arguments = ["finetune", "--task", "classify", "--data", "r.jsonl", "--model", "bert", "--size", "1x64"]
    arguments += ["--set", "model.context=32", "--set", "tokenizer.size=300", "--steps", "3", "--seed", "4"]
    arguments += ["--seeds", "2", "--out", "out"]
    real, calls = Stepper.update, []

    def killed(*given_: Any) -> Any:
        calls.append(1)
        if len(calls) == 5:  # in the second run
            raise KeyboardInterrupt
        return real(*given_)

    monkeypatch.setattr(Stepper, "update", killed)
    assert run(arguments) == 130
    monkeypatch.undo()
    monkeypatch.chdir(here)
    first = (here / "out/seed-4/model.safetensors").read_bytes()
    capsys.readouterr()
    assert run(arguments) == 0
    found = capsys.readouterr().out
    assert "mean" in found and "spread" in found and "accuracy" in found
    assert (here / "out/seed-4/model.safetensors").read_bytes() == first
    note = json.loads((here / "out/seeds.json").read_text())
    assert {key: note[key] for key in ("count", "first")} == {"count": 2, "first": 4}
    assert len(note["scores"]["accuracy"]) == 2
    for best in (5, 4):  # whichever scores more stands above the runs
        for seed in (4, 5):
            path = here / f"out/seed-{seed}/weft.json"
            card = json.loads(path.read_text())
            card["metrics"][0] |= {"name": "accuracy", "value": 0.9 if seed == best else 0.3}
            path.write_text(json.dumps(card))
        assert run(arguments) == 0
        assert json.loads((here / "out/seeds.json").read_text())["best"] == best
        assert "0.6000" in capsys.readouterr().out, "the mean"
        chosen = (here / f"out/seed-{best}/model.safetensors").read_bytes()
        assert (here / "out/model.safetensors").read_bytes() == chosen
        assert weft.load(here / "out").task == "classify"
    assert run([*arguments, "--lr", "1e-5"]) == 2 and "another recipe" in capsys.readouterr().err
    with pytest.raises(UserError, match="holds runs of another recipe or with other seeds"):
        with_seeds(None, {"task": {"name": "classify"}, "out": "out"}, 3, log=quiet)
    shutil.rmtree(here / "out")


@pytest.mark.slow
def test_a_killed_run_ends_as_an_unbroken_one(here: Path) -> None:
    """kill -9 at any moment after the first checkpoint, twice; then the same weights, to the bit."""
    write_rows(here / "r.jsonl", kinds(60))
    arguments = ["--task", "classify", "--data", "r.jsonl", "--model", "bert", "--size", "1x64", "--steps", "120"]
    for setting in ("model.context=32", "tokenizer.size=300", "training.save_every=10", "training.evaluate_every=30"):
        arguments += ["--set", setting]
    command = [sys.executable, "-m", "weft"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def killed(*verb: str, after: int) -> None:
        process = subprocess.Popen([*command, *verb], env=environment, stderr=subprocess.DEVNULL)
        while process.poll() is None and not Run(here / "broken").checkpoints().steps()[-1:] > [after - 1]:
            time.sleep(0.002)
        process.kill()
        process.wait()

    killed("finetune", *arguments, "--out", "broken", after=10)
    killed("resume", "broken", after=50)
    for verb in (["resume", "broken"], ["finetune", *arguments, "--out", "whole"]):
        subprocess.run([*command, *verb], env=environment, check=True, capture_output=True)
    assert Run(here / "broken").checkpoints().steps() == Run(here / "whole").checkpoints().steps() == [120]
    for path in ("model.safetensors", "run/checkpoints/step-120/optimizer.safetensors"):
        one, other = ((here / name / path).read_bytes() for name in ("broken", "whole"))
        assert one == other, path
    broken, whole = weft.load("broken"), weft.load("whole")
    assert broken.card.metrics == whole.card.metrics and broken.card.labels == whole.card.labels

"""`weft.prune` and `weft prune`: what goes, what stays, what it costs, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from tests.compress.models import CASES, Case, drawn, tokenizer_for
from tests.once import once
from tests.tasks.small import KINDS, kinds, quiet, write_rows
from weft.cli.main import run
from weft.distillation.recipe import DistillRecipe
from weft.distillation.student import find_student
from weft.errors import UserError
from weft.pruning.prune import Pruned, prune
from weft.runs.recipes import read_recipe

FAST: dict[str, Any] = {"costs": False, "log": quiet}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of three layers that knows which things are stones, animals and plants."""

    def make(folder: Path) -> None:
        weft.finetune(
            write_rows(folder / "rows.jsonl", kinds(48)),
            dev=write_rows(folder / "dev.jsonl", kinds(36, seed=1)),
            out=folder / "model",
            model={"family": "bert", "size": "3x64", "heads": 4, "context": 64, "weight_scale": 0.1, "dropout": 0.0},
            task="classify",
            tokenizer={"size": 300},
            training={"steps": 30, "batch": 16, "learning_rate": 3e-3, "evaluate_every": 30, "warmup": 0.1},
            log=quiet,
        )

    return once(tmp_path_factory, "three-layers", make)


def test_heads_layers_and_tokens_at_once(trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "small"
    asked: dict[str, Any] = {"layers": 2, "heads": 0.25, "vocabulary": 60, "data": trained / "dev.jsonl"}
    found = prune(trained / "model", out=out, **asked, seconds=0.05, log=quiet)
    before, after = weft.load(trained / "model"), weft.load(out)
    assert after.config.layers == 2 and found.layers == (0, 1)
    assert found.heads is not None and sum(map(len, found.heads)) == 6
    assert after.config.vocabulary == 60 and found.vocabulary == (before.config.vocabulary, 60)
    assert found.parameters[1] == sum(p.numel() for p in after.network.parameters()) < found.parameters[0]
    # The card keeps what the model is for; the scores are its own.
    for name in ("task", "labels", "window", "columns", "temperature", "thresholds"):
        assert getattr(after.card, name) == getattr(before.card, name)
    judged = after.evaluate(trained / "dev.jsonl")
    said = {metric.name: metric.value for metric in after.card.metrics}
    assert said == pytest.approx({name: score.value for name, score in judged.scores.items()})
    assert {metric.data for metric in after.card.metrics} == {judged.hash}
    text = json.dumps(found.values())
    assert json.loads(text)["layers"] == [0, 1] and found.comparison is not None
    assert [each.name for each in found.comparison.models] == ["model", "pruned"]
    assert found.comparison.models[1].costs is not None and found.comparison.models[1].costs.bytes
    assert [title for title, _, _ in found.tables()][0] == "Models"
    assert any("6" in line for line in found.lines())


def test_what_texts_need_is_kept_whole(trained: Path, tmp_path: Path) -> None:
    """A vocabulary cut down to what the rows use answers them as before, to the bit, from a published folder."""
    found = prune(trained / "model", out=tmp_path / "a", vocabulary=60, data=trained / "dev.jsonl", **FAST)
    assert found.coverage is not None and found.coverage.dropped == 0
    texts = [row["text"] for row in kinds(20, seed=1)]
    before, after = weft.load(trained / "model"), weft.load(tmp_path / "a")
    assert before(texts) == after(texts)
    assert json.loads((tmp_path / "a" / "config.json").read_text())["model_type"] == "bert"
    assert found.comparison is not None and found.comparison.models[1].agreement["same"].value == 1.0


def test_the_least_important_layer_goes(trained: Path) -> None:
    """A layer that hands on what it is handed costs nothing; taken evenly, it would stay."""
    model = weft.load(trained / "model")
    network: Any = model.network
    with torch.no_grad():
        for layer in (network.layers[0],):
            layer.attention.output.weight.zero_()
            layer.attention.output.bias.zero_()
            layer.feedforward.down.weight.zero_()
            layer.feedforward.down.bias.zero_()
    found = prune(model, layers=2, by="importance", data=trained / "dev.jsonl", **FAST)
    assert found.layers is not None and 0 not in found.layers
    assert prune(model, layers=2, **FAST).layers == (0, 1)


def test_a_pruned_model_learns_on(trained: Path, tmp_path: Path) -> None:
    prune(trained / "model", out=tmp_path / "few", heads=0.4, vocabulary=50, data=trained / "dev.jsonl", **FAST)
    again = weft.finetune(
        trained / "rows.jsonl",
        task="classify",
        base=tmp_path / "few",
        dev=trained / "dev.jsonl",
        training={"steps": 4, "batch": 8},
        log=quiet,
    )
    assert again.config.layer_heads == weft.load(tmp_path / "few").config.layer_heads is not None


def test_what_layers_of_different_heads_can_become(trained: Path, tmp_path: Path) -> None:
    """The formats that know one number of heads refuse in one line; a student takes its teacher's."""
    few = prune(trained / "model", out=tmp_path / "few", heads=0.4, data=trained / "dev.jsonl", **FAST).model
    assert few.config.layer_heads is not None
    for engine in ("ctranslate2", "transformers"):
        with pytest.raises(UserError, match="one number of heads for all layers"):
            weft.export(tmp_path / "few", to=engine, data=trained / "dev.jsonl", out=tmp_path / engine)
        assert not (tmp_path / engine).exists()
    recipe = read_recipe(None, {"teacher": {"folders": ["few"]}, "student": {"model": "2x64"}}, DistillRecipe)
    found = find_student(recipe, few.opened, quiet)
    assert not isinstance(found, Path) and found.config.layer_heads == few.config.layer_heads[:2]


def test_the_gate(trained: Path, tmp_path: Path) -> None:
    """A model that loses more than is allowed is refused in one line, and nothing is written."""
    model = weft.load(trained / "model")
    network: Any = model.network
    with torch.no_grad():  # the last layer turns all numbers round, and the pooler back: without it nothing fits
        for part in (*network.layers[2].feedforward_norm.parameters(), network.pooler.dense.weight):
            part.neg_()
    asked: dict[str, Any] = {"layers": 2, "data": trained / "dev.jsonl", **FAST}
    notes: list[str] = []
    found = prune(model, **{**asked, "log": notes.append})
    assert found.comparison is not None
    before, after = (each.scores["accuracy"].value for each in found.comparison.models)
    assert before > 0.9 and after < 0.7
    with pytest.raises(UserError, match="^pruned is .*: nothing was written$") as error:
        prune(model, out=tmp_path / "no", max_drop=1.0, **asked)
    assert "\n" not in str(error.value) and not (tmp_path / "no").exists()
    if found.comparison.refused:  # it is no better than chance: said, since nobody has set a limit
        assert notes == [f"weft: note: {found.comparison.refused[0]}; weft finetune may bring it back"]
    fine = prune(model, out=tmp_path / "fine", vocabulary=60, data=trained / "dev.jsonl", max_drop=0.0, **FAST)
    assert fine.model.task == "classify" and (tmp_path / "fine").is_dir()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.task)
def test_every_task(case: Case, tmp_path: Path) -> None:
    """Heads of whatever has labels, and tokens of every model, chosen and judged by its rows."""
    model = drawn(case, tokenizer_for(case), 0)
    rows = write_rows(tmp_path / "rows.jsonl", case.rows(12))
    least = model.config.vocabulary - 5
    found = prune(model, vocabulary=least, data=rows, out=tmp_path / "out", **FAST)
    assert weft.load(tmp_path / "out").config.vocabulary == least and found.comparison is not None
    if case.family == "transformer" or not case.right:
        with pytest.raises(UserError, match="labels|heads can be removed from"):
            prune(model, heads=0.5, data=rows, **FAST)
        return
    wide = drawn(case, tokenizer_for(case), 0, width=128)  # two heads
    pruned = prune(wide, heads_each=1, data=rows, **FAST)
    assert pruned.heads is not None and len(pruned.heads[0]) == 1 and pruned.model.config.heads == 1


def test_a_model_that_only_foresees_words(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.task == "complete")
    model = drawn(case, tokenizer_for(case), 0)
    text = tmp_path / "text.txt"
    text.write_text("\n".join(row["text"] for row in case.rows(20)))
    found = prune(model, vocabulary=model.config.vocabulary - 9, text=text, **FAST)
    assert found.comparison is None and found.model.config.vocabulary == model.config.vocabulary - 9
    assert found.coverage is not None and found.model.card.metrics == ()


WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "nothing to prune"),
    ({"heads": 0.3}, "heads and layers are ranked on rows with labels: give --data FILE"),
    ({"layers": 2, "by": "importance"}, "heads and layers are ranked on rows with labels: give --data FILE"),
    ({"layers": 2, "max_drop": 1.0}, "the loss is measured on rows with labels: give --data FILE"),
    ({"vocabulary": 200}, "give --text FILE or --data FILE"),
    ({"layers": 4}, "between 1 and 3 of 3 layers can be kept, not 4"),
    ({"layers": 2, "by": "odd"}, "by 'odd' is not one of even, importance"),
    ({"heads": 1.5, "data": "dev"}, "must be above 0 and below 1, not 1.5"),
    ({"heads_each": 4, "data": "dev"}, "1 to 3 of the 4 heads of a layer can be removed, not 4"),
    ({"heads": 0.5, "heads_each": 1, "data": "dev"}, "give either a share of all heads or a number for each layer"),
    ({"vocabulary": 10, "data": "dev"}, "a vocabulary of 10 is too small"),
    ({"vocabulary": 10_000, "data": "dev"}, "tokens of the vocabulary can be kept"),
]


@pytest.mark.parametrize("asked, line", WRONG, ids=[line[:30] for _, line in WRONG])
def test_what_cannot_be(asked: dict[str, Any], line: str, trained: Path, tmp_path: Path) -> None:
    if "data" in asked:
        asked = {**asked, "data": trained / "dev.jsonl"}
    with pytest.raises(UserError, match=line) as error:
        prune(trained / "model", out=tmp_path / "out", **asked, **FAST)
    assert "\n" not in str(error.value) and not (tmp_path / "out").exists()


def test_on_the_command_line(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, dev, out = str(trained / "model"), str(trained / "dev.jsonl"), tmp_path / "out"
    asked = ["prune", model, "--layers", "2", "--heads", "0.3", "--vocabulary", "60", "--data", dev]
    assert run([*asked, "--seconds", "0.05", "--out", str(out)]) == 0
    told = capsys.readouterr().out
    assert "parameters: " in told and "tokens: " in told and "accuracy" in told and "texts/s" in told
    assert run(["predict", str(out), "the cat is now"]) == 0
    assert capsys.readouterr().out.split()[0] in KINDS
    assert run([*asked, "--out", str(out)]) == 2
    assert "already there and not empty" in capsys.readouterr().err
    assert run(["prune", model, "--layers", "2"]) == 2
    assert capsys.readouterr().err == "weft prune: no folder for the model: give --out FOLDER\n"
    assert run(["prune", model, "--layers", "2", "--json", "--out", str(tmp_path / "b")]) == 0
    assert json.loads(capsys.readouterr().out)["layers"] == [0, 1]
    assert isinstance(weft.prune(model, layers=1), Pruned)

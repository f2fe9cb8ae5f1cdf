"""Linear baselines beside a run, and the plan of a run with few rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import weft
from tests.tasks.small import kinds, prices, several, write_rows
from weft.data.examples import Examples
from weft.runs.baseline import _sparse, fit, linear_models
from weft.runs.finetune import few_rows_plan, resolved
from weft.runs.recipes import FinetuneTraining, TaskRecipe, TaskSection
from weft.tasks.base import Example
from weft.tasks.classify import MultilabelTask, TextTask, ValueTask
from weft.tasks.forward import framing_for
from weft.text.tfidf import Tfidf
from weft.training.step import make_optimizer

TEXTS = [(f"{word} {number % 7} cloth and thread {number % 3}",) for number in range(40) for word in ("warm", "torn")]


def examples(rows: list[dict[str, Any]], column: str) -> list[Example]:
    return [Example((row["text"],), row[column], f"rows line {place}") for place, row in enumerate(rows, 1)]


def test_tfidf_is_scikit_learns() -> None:
    text = pytest.importorskip("sklearn.feature_extraction.text")
    plain = [parts[0] for parts in TEXTS]
    peer = text.TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True).fit(plain)
    ours = Tfidf(TEXTS)
    bags = ours.bags(TEXTS)
    theirs = peer.transform(plain).toarray()
    names = peer.vocabulary_
    assert set(names) == set(ours.numbers)
    dense = np.zeros_like(theirs)
    terms = list(ours.numbers)
    for row in range(len(TEXTS)):
        for place in range(bags.starts[row], bags.starts[row + 1]):
            dense[row, names[terms[bags.columns[place]]]] = bags.values[place]
    assert np.allclose(dense, theirs, atol=1e-12)


def test_logistic_regression_is_scikit_learns() -> None:
    linear = pytest.importorskip("sklearn.linear_model")
    tfidf = Tfidf(TEXTS)
    targets = torch.arange(len(TEXTS)) % 3
    matrix = _sparse(tfidf.bags(TEXTS), len(tfidf.numbers))
    weights, bias = fit(matrix, targets, "label", strength=2.0)
    features = matrix.to_dense()
    peer = linear.LogisticRegression(C=2.0, max_iter=5000, tol=1e-10).fit(features.numpy(), targets.numpy())
    ours = (features @ weights + bias).softmax(1).numpy()
    assert np.allclose(ours, peer.predict_proba(features.numpy()), atol=1e-3)


@pytest.mark.parametrize(
    ("kind", "rows", "column", "metric"),
    [
        ("label", kinds, "label", "accuracy"),
        ("labels", several, "labels", "micro_f1"),
        ("value", prices, "value", "r2"),
    ],
)
def test_each_kind_of_target_has_a_baseline(kind: Any, rows: Any, column: str, metric: str) -> None:
    train, dev = examples(rows(120), column), examples(rows(40, 1), column)
    task = {"label": TextTask, "labels": MultilabelTask, "value": ValueTask}[kind]().fit_labels(train)
    (baseline,) = linear_models(task, train, dev, None, None)  # type: ignore[arg-type]
    assert baseline.metrics.result()[metric].value > 0.9
    assert baseline.rows == 120 and baseline.name.startswith("TF-IDF")


def test_a_run_says_which_is_better(tmp_path: Path) -> None:
    data = write_rows(tmp_path / "rows.jsonl", kinds(200))
    base = weft.new("bert", _tokenizer(), size="1x64", settings={"context": 64})
    base.save(tmp_path / "base")
    lines: list[str] = []
    settings = {"training": {"steps": 2}, "seed": 1}
    weft.finetune(
        str(data), None, settings, task="classify", base=tmp_path / "base", out=tmp_path / "run", log=lines.append
    )
    names = [line for line in lines if line.startswith("baseline: ")]
    assert ["TF-IDF" in names[0], "frozen embeddings" in names[1]] == [True, True]
    (result,) = [line for line in lines if line.startswith("result: ")]
    assert "WORSE than" in result and "on 20 held-out rows" in result  # two steps teach nothing; words tell all
    assert any("never predicted" in line for line in lines)
    kept = json.loads((tmp_path / "run" / "run" / "baseline.json").read_text())
    assert kept["metric"] == "accuracy" and kept["difference"]["high"] < 0 and len(kept["baselines"]) == 2
    lines.clear()
    weft.resume(tmp_path / "run", log=lines.append)  # a finished run is not compared once more
    assert not [line for line in lines if line.startswith(("baseline", "result"))]
    off = {"task": {"name": "classify", "baseline": False}, "training": {"steps": 1}}
    weft.finetune(str(data), None, off, base=tmp_path / "base", out=tmp_path / "off", log=lines.append)
    assert not [line for line in lines if line.startswith(("baseline", "result"))]


def _tokenizer() -> Any:
    from weft.text.tokenizers.training import learn

    return learn([row["text"] for row in kinds(50)], "wordpiece", 200)


@pytest.mark.parametrize(("rows", "labels"), [(20, 2), (270, 2), (540, 12), (900, 2), (2700, 15), (60_000, 2)])
def test_few_rows_are_read_often(rows: int, labels: int) -> None:
    batch, steps = few_rows_plan(rows, labels)
    assert steps >= 400  # the loss of 27 steps has hardly begun to fall
    assert steps * batch >= 3 * rows
    assert rows > 3000 or steps * batch >= 5 * rows
    assert few_rows_plan(rows, 16)[1] >= steps
    if rows == 60_000:
        assert (batch, steps) == (32, 5625)  # many rows: three epochs, as ever


def test_what_is_asked_for_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    faster: list[Any] = []

    def noted(*arguments: Any) -> Any:
        faster.append(arguments[4])
        return make_optimizer(*arguments)

    monkeypatch.setattr("weft.training.step.make_optimizer", noted)
    data = write_rows(tmp_path / "rows.jsonl", kinds(60))
    weft.new("bert", _tokenizer(), size="1x64", settings={"context": 64}).save(tmp_path / "base")
    asked = {"training": {"epochs": 2, "batch": 10, "head_rate": 3.0}}
    weft.finetune(str(data), None, asked, task="classify", base=tmp_path / "base", out=tmp_path / "run", log=_silent)
    from weft.config import read_toml

    plan = read_toml(TaskRecipe, tmp_path / "run" / "run" / "recipe.toml").training
    assert (plan.steps, plan.batch, plan.head_rate, plan.patience) == (12, 10, 3.0, None)
    assert faster == [{"heads.classify.": 3.0, "mix.": 3.0}]


def _silent(_: str) -> None:
    pass


def test_many_labels_stay_within_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """500 labels and 50,000 terms would be 25 million weights, and L-BFGS keeps many times as many."""
    from weft.runs import baseline

    sizes: list[int] = []
    remembered: list[int] = []
    optimizer = torch.optim.LBFGS

    def spied(parameters: list[torch.Tensor], **settings: Any) -> torch.optim.LBFGS:
        sizes.append(parameters[0].numel())
        remembered.append(2 * settings.get("history_size", 100) * sizes[-1])
        return optimizer(parameters, **{**settings, "max_iter": 1})

    monkeypatch.setattr(torch.optim, "LBFGS", spied)
    texts = [" ".join(f"word{(number * 37 + place * 61) % 9001}" for place in range(30)) for number in range(900)]
    train = [Example((text,), f"label {number % 300}", "rows") for number, text in enumerate(texts)]
    task = TextTask("classify").fit_labels(train)
    (found,) = linear_models(task, train, train[:50], None, None)  # type: ignore[arg-type]
    assert sizes[0] <= baseline.WEIGHTS and remembered[0] <= 2 * baseline.HISTORY
    assert "terms" in found.less


def test_a_sample_of_sorted_rows_has_all_labels() -> None:
    from weft.runs.baseline import LONGEST, _clipped, _sample

    rows = [Example(("word " * 20,), "ab"[number >= 500], "rows") for number in range(1000)]
    assert {row.target for row in _sample(rows, 10**9, most=100)} == {"a", "b"}
    turns = [Example(("word " * 20,), "ab"[number % 2], "rows") for number in range(1000)]
    assert {row.target for row in _sample(turns, 50_000)} == {"a", "b"}
    giant = [*rows, Example(("word " * 1_000_000,), "a", "rows")]
    assert len(_sample(giant, 4_000_000)) == 1001  # one giant text does not cost the others their place
    assert len(_clipped(giant[-1])[0]) == LONGEST


def test_a_handful_of_rows_proves_nothing() -> None:
    from weft.metrics.bootstrap import Score
    from weft.runs.baseline import _verdict

    assert "too few to tell" in _verdict(Score(-1.0, -1.0, -1.0), "TF-IDF", 2)
    assert "WORSE" in _verdict(Score(-1.0, -1.0, -1.0), "TF-IDF", 20)


@pytest.mark.parametrize(("dev_rows", "times", "patience"), [(10, 4, None), (60, 10, 5)])
def test_few_rows_are_judged_by_how_many_are_held_out(dev_rows: int, times: int, patience: int | None) -> None:
    few = _plan(dev_rows)
    assert few.head_rate == 5.0 and few.learning_rate == pytest.approx(5e-5 * 12**0.5)  # of width 64
    assert few.patience == patience and few.steps is not None and few.evaluate_every is not None
    assert times - 1 <= few.steps / few.evaluate_every <= times


def test_many_rows_keep_the_usual_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.runs.finetune.few_rows_plan", lambda rows, labels: (32, 3 * rows // 32))
    many = _plan(60)
    assert (many.learning_rate, many.head_rate, many.patience) == (5e-5, 1.0, None)


def _plan(dev_rows: int) -> Any:
    """The plan that a run from a base gets where nothing is asked for."""
    opened = weft.new("bert", _tokenizer(), size="1x64", settings={"context": 64}, heads={"classify": 3}).opened
    rows = examples(kinds(600), "label")
    task = TextTask("classify").fit_labels(rows)
    train = task.dataset(rows, opened, framing_for(opened))
    assert isinstance(train, Examples)
    recipe = TaskRecipe(task=TaskSection(name="classify"), model={"base": "somewhere"})
    return resolved(recipe, train, opened, task, dev_rows, True, torch.device("cpu"))


def test_a_new_head_learns_faster() -> None:
    network = weft.new("bert", _tokenizer(), size="1x64", heads={"classify": 3}).network
    optimizer = make_optimizer(network, FinetuneTraining(), 1.0, None, {"heads.classify.": 5.0})
    shares = {id(weight): group["share"] for group in optimizer.param_groups for weight in group["params"]}
    named = {name: shares[id(weight)] for name, weight in network.named_parameters()}
    assert {share for name, share in named.items() if name.startswith("heads.classify.")} == {5.0}
    assert {share for name, share in named.items() if not name.startswith("heads.classify.")} == {1.0}

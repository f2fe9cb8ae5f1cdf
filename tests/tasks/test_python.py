"""Weft from Python: rows in memory, what a model may be asked, what it says of itself, logging and progress."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pandas
import polars
import pytest
import torch

import weft
from tests.tasks.small import TINY, kinds, model_for, pairs, questions, quiet, sentences, write_rows
from weft import progress as saying
from weft.cli.main import run
from weft.data.dataset import RunRows
from weft.distillation.recipe import DistillDataSection
from weft.errors import UserError
from weft.runs import pretrain as learning
from weft.runs import pretrain as pretraining
from weft.runs.preparation import settings_of
from weft.runs.recipes import DataSection, overlaid
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.training.signals import Interrupted

LABELS = ("animal", "plant", "stone")
ROWS = kinds(24)
TEXTS = [row["text"] for row in ROWS]


@pytest.fixture
def model(wordpiece: Tokenizer) -> weft.Model:
    return model_for("classify", 3, wordpiece, LABELS)


def trained(data: Any, **more: Any) -> weft.Model:
    """Two steps of a small model."""
    training = {"steps": 2, "batch": 8, **more.pop("training", {})}
    return weft.finetune(data, task="classify", model=dict(TINY), tokenizer={"size": 300}, training=training, **more)


def weights(model: weft.Model) -> list[torch.Tensor]:
    return list(model.network.state_dict().values())


# ----------------------------------------------------------------------------------------- sections, given in two parts


def test_sections_are_merged_key_by_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings and keywords that speak of one section are put together, at any depth."""
    recipes: list[Any] = []

    def stopped(recipe: Any) -> Any:
        recipes.append(recipe)
        raise UserError("far enough")

    monkeypatch.setattr(pretraining, "_family", stopped)
    with pytest.raises(UserError, match="far enough"):
        weft.pretrain(None, {"model": {"family": "gpt2"}, "training": {"epochs": 2}}, model={"size": "2x128"}, out="x")
    assert recipes[-1].model == {"family": "gpt2", "size": "2x128"} and recipes[-1].training.epochs == 2

    monkeypatch.setattr(learning, "text_of", stopped)
    with pytest.raises(UserError, match="far enough"):
        learning.learn_vectors(None, {"vectors": {"kind": "glove"}}, vectors={"width": 8}, out="x")
    assert (recipes[-1].vectors.kind, recipes[-1].vectors.width, recipes[-1].text.holdout) == ("glove", 8, 0.0)

    told = {"model": {"family": "bert"}, "data": {"columns": {"text": "a"}}, "training": {"epochs": 3}}
    more = {"model": {"size": "2x128"}, "training": {"steps": 5}}
    tables, values = {"files": {"columns": {"label": "b"}}, "dev": None}, {"task.name": {"name": "classify"}}
    said = settings_of(overlaid(told, more), RunRows(), DataSection, tables, values)
    assert said["model"] == {"family": "bert", "size": "2x128"}
    assert said["data"]["columns"] == {"text": "a", "label": "b"}
    assert said["training"] == {"steps": 5}, "steps take the place of epochs, as in a recipe"
    settings: dict[str, Any] = {"student": {"settings": {"heads": 2}}, "distill": {"hard": 0.1}}
    student = {"model": "2x64", "settings": {"context": 8}}
    given = overlaid(settings, {"distill": {"n": 2}})
    said = settings_of(given, RunRows(), DistillDataSection, {"text": None}, {"student.model": student})
    assert said["student"] == {"model": "2x64", "settings": {"heads": 2, "context": 8}}
    assert said["distill"] == {"hard": 0.1, "n": 2}


# ------------------------------------------------------------------------------------------------------------------ fit


def test_a_fit_that_was_stopped_is_resumed(here: Path) -> None:
    """Its base lies in the run folder: the model in memory is gone by then."""
    write_rows(here / "r.jsonl", ROWS)
    trained("r.jsonl", out=here / "base", log=quiet)
    plan = {"steps": 4, "batch": 8, "evaluate_every": 2, "learning_rate": 1e-3}
    whole = weft.load(here / "base").fit("r.jsonl", training=plan, out=here / "whole", log=quiet)

    def stop(line: str) -> None:
        if line.startswith("step 2"):
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted, match="stopped after step 2"):
        weft.load(here / "base").fit("r.jsonl", training=plan, out=here / "stopped", log=stop)
    again = weft.resume(here / "stopped", log=quiet)
    assert all(map(torch.equal, weights(whole), weights(again)))
    assert whole.card.base == again.card.base == "base" and whole.folder == here / "whole"


def test_fit_says_that_it_replaces_labels(model: weft.Model) -> None:
    rows = [{**row, "label": "spam" if row["label"] == "stone" else "ham"} for row in ROWS]
    lines: list[str] = []
    model.fit(rows, training={"steps": 1}, log=lines.append)
    assert lines[0] == "weft: note: labels animal, plant, stone are replaced by ham, spam"
    assert model.card.labels == ("ham", "spam")
    lines.clear()
    model.fit(rows, training={"steps": 1}, log=lines.append)
    assert not any("replaced" in line for line in lines)
    model.fit(
        [{"text": row["text"], "value": float(n)} for n, row in enumerate(ROWS)], task="regress", log=lines.append
    )
    assert "weft: note: the head for classify is replaced by one for regress" in lines


# ------------------------------------------------------------------------------------------------------- rows in memory


def generated() -> Iterator[dict[str, Any]]:
    yield from ROWS


KINDS: dict[str, Callable[[], Any]] = {
    "pandas": lambda: pandas.DataFrame(ROWS),
    "polars": lambda: polars.DataFrame(ROWS),
    "dicts": lambda: ROWS,
    "columns": lambda: {"text": TEXTS, "label": [row["label"] for row in ROWS]},
    "generator": generated,
    "datasets": lambda: pytest.importorskip("datasets").Dataset.from_list(ROWS),
}


@pytest.mark.parametrize("kind", KINDS)
def test_rows_in_memory_are_rows_of_a_file(kind: str, model: weft.Model, here: Path) -> None:
    file = write_rows(here / "r.jsonl", ROWS)
    assert model(KINDS[kind]()) == model(TEXTS)
    found, expected = model.evaluate(KINDS[kind]()), model.evaluate(file)
    assert found.scores == expected.scores and found.confusion == expected.confusion


def test_training_takes_rows_in_memory(here: Path, model: weft.Model) -> None:
    file = write_rows(here / "r.jsonl", ROWS)
    from_file = trained(file, dev=write_rows(here / "d.jsonl", ROWS[:8]), log=quiet)
    from_frame = trained(pandas.DataFrame(ROWS), dev=polars.DataFrame(ROWS[:8]), out=here / "run", log=quiet)
    assert all(map(torch.equal, weights(from_file), weights(from_frame)))
    assert weft.resume(here / "run", log=quiet)(TEXTS[:3]) == from_frame(TEXTS[:3])
    model.fit(pandas.DataFrame(ROWS), training={"steps": 1}, log=quiet)
    assert model.card.labels == LABELS
    model.save(here / "teacher")
    student = weft.distill(
        here / "teacher", data=pandas.DataFrame(ROWS), student="1x64", training={"steps": 1}, log=quiet
    )
    assert student.card.labels == LABELS


# ------------------------------------------------------------------------------------------------ what a model is asked


def test_rows_are_answered_row_by_row(model: weft.Model, wordpiece: Tokenizer) -> None:
    alone: Any = model(TEXTS[0])
    assert model({"text": TEXTS[0], "label": "stone"}) == alone
    assert model({"summary": TEXTS[0]}, columns={"text": "summary"}) == alone
    assert model(pandas.Series(TEXTS[:2])) == model(TEXTS[:2]) == model(TEXTS[n] for n in range(2))
    frame = pandas.DataFrame({"text": [TEXTS[0], None, TEXTS[1]], "n": [1, 2, 3]})
    assert model(frame) == model([TEXTS[0], "", TEXTS[1]]), "one answer for each row, of an empty cell too"
    assert model(frame[:0]) == model([]) == []

    pair = model_for("pair", 2, wordpiece, ("greater", "not"))
    found = pairs(4)
    two = [(row["sentence1"], row["sentence2"]) for row in found]
    assert pair(polars.DataFrame(found)) == pair(found) == pair(two) and pair(found[0]) == pair(two[0])
    answering = model_for("answer", 2, wordpiece)
    asked = questions(2)
    assert answering(asked) == answering([(row["question"], row["context"]) for row in asked])
    tagger = model_for("tag", 3, wordpiece, ("O", "B-PER", "I-PER"))
    words = [[word for word, _ in sentence] for sentence in sentences(2)]
    assert tagger({"words": words}) == tagger([{"tokens": some} for some in words]) == tagger(words)
    assert tagger({"words": words[0]}) == tagger(words[:1])[0] and tagger({"text": TEXTS[0]}) == tagger(TEXTS[0])
    embedded = weft.Model(model.opened, "embed")
    assert embedded(pandas.DataFrame(ROWS[:2])) == embedded(TEXTS[:2])


WRONG: list[tuple[Any, str]] = [
    (None, "a model for classify is asked about a text, a list of texts, or a table .*; not about None"),
    (3, "not about 3"),
    (b"text", "not about bytes"),
    (object(), "not about object"),
    (("a", "b"), "a model for classify reads one text at a time, not a tuple: give a list"),
    ([("a", "b")], "input 1: a model for classify reads one text at a time, not a tuple"),
    (["a", None], "input 2: a text is expected, not None"),
    ([b"a"], "input 1: a text is expected, not bytes"),
    ({"body_of_it": "a"}, 'it has body_of_it; name it with columns={"text": "body_of_it"}'),
    (pandas.DataFrame({"x": ["a"], "y": ["b"]}), "DataFrame: no column 'text'; it has x, y"),
]


@pytest.mark.parametrize(("given", "message"), WRONG)
def test_what_is_no_text_is_one_clear_error(given: Any, message: str, model: weft.Model) -> None:
    with pytest.raises(UserError, match=message):
        model(given)


def test_one_text_in_an_array(model: weft.Model) -> None:
    assert model(numpy.array(TEXTS[0])) == model(TEXTS[0]) and model(numpy.array(TEXTS[:2])) == model(TEXTS[:2])


MISTAKES: list[tuple[Callable[[], Any], str]] = [
    (lambda: trained(pandas.DataFrame({"text": []})), "^data: there are no rows"),
    (lambda: trained(pandas.DataFrame({"text": TEXTS})), 'data: no column .label.; it has text; .* columns={"label"'),
    (lambda: trained([*ROWS, {"text": {"a": 1}, "label": "stone"}]), "data row 25: column 'text' holds a dict"),
    (lambda: trained([{**ROWS[0], "extra": object()}]), "data row 1, column 'extra': a cell holds a object"),
    (lambda: trained(None), "in Python, a file or rows as the first argument"),
    (lambda: weft.load(None), "a model is loaded by the name of its folder, not from a NoneType"),
    (lambda: weft.pretrain(pandas.DataFrame(ROWS)), "a recipe is a file or .*, not a DataFrame; training text"),
    (lambda: weft.distill(object(), data=ROWS), "a teacher is the name of a folder, not a object"),
]


@pytest.mark.parametrize(("call", "message"), MISTAKES)
def test_mistakes_are_told_in_the_words_of_python(call: Callable[[], Any], message: str) -> None:
    """By the row of the data, not by a file of the run that nobody has named."""
    with pytest.raises(UserError, match=message):
        call()


def test_columns_of_rows_to_learn_from_are_named(model: weft.Model) -> None:
    rows = [{"a": row["text"], "b": row["label"], "c": row["text"][::-1]} for row in ROWS]
    columns = {"text": "a", "label": "b"}
    learned = trained(rows, columns=columns)
    assert all(map(torch.equal, weights(learned), weights(trained(ROWS))))
    assert model.fit(rows, columns=columns, training={"steps": 1}).card.labels == LABELS


def test_a_notebook_shows_no_line_of_ours() -> None:
    with pytest.raises(UserError) as caught:
        weft.load("nowhere/at/all")
    lines = caught.value._render_traceback_()
    assert len(lines) == 2 and 'weft.load("nowhere/at/all")' in lines[0] and lines[1] == f"UserError: {caught.value}"


def test_a_tuple_is_one_pair(wordpiece: Tokenizer) -> None:
    pair = model_for("pair", 2, wordpiece, ("greater", "not"))
    assert pair(("the cat", "a cow")) == pair([("the cat", "a cow")])[0]
    published = model_for("classify", 2, wordpiece)
    published.opened.card.__dict__["task"] = None  # as transformers wrote it: whether it reads pairs nobody knows
    assert published(("the cat", "a cow")) == published([("the cat", "a cow")])[0]
    for task in ("embed", "fill", "tag"):
        with pytest.raises(UserError, match=f"a model for {task} reads one text at a time"):
            weft.Model(pair.opened, task)(("a", "b"))


# ----------------------------------------------------------------------------------------------- what is said of itself


def test_a_model_says_what_it_is(model: weft.Model, here: Path) -> None:
    count = sum(parameter.numel() for parameter in model.network.parameters())
    what = f"classify: bert 1x64, {count:,} parameters, labels animal, plant, stone"
    assert repr(model) == f"<weft.Model {what}>"
    model.save(here / "m")
    assert repr(weft.load(here / "m")) == f"<weft.Model {what}, {here / 'm'}>"
    assert "\n" not in repr(model_for("classify", 2, model.opened.tokenizer, ("a\nb", "c")))  # type: ignore[arg-type]


def test_a_notebook_shows_scores_with_intervals(wordpiece: Tokenizer) -> None:
    model = model_for("classify", 2, wordpiece, ("<b>animal</b>", "plant"))
    rows = [{"text": "<script>cat", "label": ("<b>animal</b>", "plant")[n % 2]} for n in range(6)]
    found = model.evaluate(rows)
    html = found._repr_html_()
    assert "<table" in html and f"{found.scores['accuracy'].low:.4f}" in html and "95 % from" in html
    assert "&lt;b&gt;animal&lt;/b&gt;" in html and "<b>" not in html and "<script>" not in html


def test_what_the_package_has() -> None:
    code = "import sys, weft; print(set(weft.__all__) <= set(dir(weft)), 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "True False\n"


# ------------------------------------------------------------------------------------------------ messages and progress


def test_messages_are_those_of_a_logger(caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]) -> None:
    with caplog.at_level(logging.INFO, logger="weft"):
        model = trained(ROWS)
        model.fit([{**row, "label": row["label"][:1]} for row in ROWS], training={"steps": 1})
    messages = [(record.levelname, record.getMessage()) for record in caplog.records if record.name == "weft"]
    assert ("WARNING", "labels animal, plant, stone are replaced by a, p, s") in messages
    assert any(level == "INFO" and "done after 1 step" in message for level, message in messages)
    assert not capsys.readouterr().err, "whoever reads the log decides where it goes"


def test_the_command_line_prints_them(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_rows(here / "r.jsonl", ROWS)
    trained("r.jsonl", out=here / "base", log=quiet)
    write_rows(here / "o.jsonl", [{**row, "label": row["label"][:1]} for row in ROWS])
    flags = {"--task": "classify", "--data": "o.jsonl", "--base": "base", "--out": "new", "--steps": "1"}
    assert run(["finetune", *(word for flag in flags.items() for word in flag)]) == 0
    printed = capsys.readouterr().err.splitlines()
    assert "weft: note: labels animal, plant, stone are replaced by a, p, s" in printed
    assert any(line.startswith("step 1: held-out loss") for line in printed)
    assert any(line.startswith("new: done after 1 step") for line in printed)
    assert not any(isinstance(handler, saying.Terminal) for handler in saying.logger.handlers), "nor any longer"


def test_progress(model: weft.Model, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for, or in an interactive session; what is written over is written over by spaces alone."""
    texts = TEXTS * 11
    plain = model(texts)
    assert not capsys.readouterr().err
    assert [a.label for a in model(texts, progress=True)] == [a.label for a in plain]
    shown = capsys.readouterr().err
    assert shown.startswith("\rclassify: 264 inputs: 256 answered, ") and shown.count("\n") == 1
    assert "264 answered" in shown.splitlines()[-1]
    trained(ROWS, progress=True)
    shown = capsys.readouterr().err
    assert "reading data: 24 rows" in shown and "\rstep 2/2" in shown and "\x1b" not in shown
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    model(texts)
    assert "264 answered" in capsys.readouterr().err
    model(texts[:3])
    model(texts, progress=False)
    model.evaluate(ROWS, progress=saying.silent)
    assert not capsys.readouterr().err


def test_a_message_that_nobody_sees_does_not_end_the_live_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Otherwise a notebook has a line of training for every evaluation."""
    with saying.lines_of_a_run(saying.to_logger, saying.live_anywhere) as (stays, passing):
        assert stays is not None and passing is not None
        passing("step 1")
        stays("step 1: held-out loss 0.1")
        assert capsys.readouterr().err == "\rstep 1"
        stays(f"{saying.NOTE}a note is shown")
        assert capsys.readouterr().err.startswith("\n")

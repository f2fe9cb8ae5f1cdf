"""`weft evaluate`: the same scores however it is cut into batches, as tables, as JSON, and as a page of its own."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from tests.tasks.small import kinds, model_for, prices, questions, several, spanned, write_rows
from weft.cli.main import run
from weft.tasks import forward
from weft.tasks import forward as passing
from weft.text.tokenizers.tokenizer import Tokenizer

KINDS = ("animal", "plant", "stone")
TASKS: dict[str, tuple[int, tuple[str, ...] | None, Any]] = {
    "classify": (3, KINDS, kinds),
    "multilabel": (3, KINDS, several),
    "regress": (1, None, prices),
    "tag": (4, ("O", "B-LOC", "B-PER", "I-PER"), spanned),
    "answer": (2, None, questions),
}


@pytest.mark.parametrize("task", TASKS)
def test_scores_do_not_hang_on_the_batches(
    task: str, here: Path, wordpiece: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs, labels, make = TASKS[task]
    rows = make(20)
    for row in rows[::4]:  # some take windows
        if task == "answer":
            row["context"] += " so it is now ." * 12
        else:
            row["text"] += " so it is now ." * 12
    data = write_rows(here / "r.jsonl", rows)
    model = model_for(task, outputs, wordpiece, labels)
    model.network.double()  # a correlation near 0 of numbers that hardly differ hangs on every rounding
    whole = model.evaluate(data)
    monkeypatch.setattr(passing, "BUDGET", 40)
    monkeypatch.setattr(forward, "CHARACTERS", 300)
    parts = model.evaluate(data)
    assert whole.examples == parts.examples == 20 and whole.n_windows == parts.n_windows > 20
    assert whole.n_tokens == parts.n_tokens and whole.n_truncated == 0 and whole.confusion == parts.confusion
    for name, score in whole.scores.items():
        assert parts.scores[name].value == pytest.approx(score.value, rel=1e-9, abs=1e-9), name
        assert parts.scores[name].low <= parts.scores[name].value <= parts.scores[name].high
    assert [row["where"] for row in whole.worst] == [row["where"] for row in parts.worst]


def test_scores_are_those_of_the_answers(here: Path, wordpiece: Tokenizer) -> None:
    rows = kinds(30)
    data = write_rows(here / "r.jsonl", rows)
    model = model_for("classify", 3, wordpiece, KINDS)
    found = model.evaluate(data)
    answers: Any = model([row["text"] for row in rows])
    right = [answer.label == row["label"] for answer, row in zip(answers, rows, strict=True)]
    assert found.scores["accuracy"].value == pytest.approx(np.mean(right))
    assert sum(map(sum, found.confusion)) == 30 and sum(found.confusion[n][n] for n in range(3)) == sum(right)
    taken = sum(a.label == "plant" and r["label"] == "animal" for a, r in zip(answers, rows, strict=True))
    assert found.confusion[0][1] == taken
    assert len(found.worst) == min(10, 30 - sum(right))


def test_on_the_command_line(here: Path, wordpiece: Tokenizer, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"review": row["text"] + " <script>alert(1)</script>", "kind": row["label"]} for row in kinds(12)]
    write_rows(here / "r.jsonl", rows)
    model_for("classify", 3, wordpiece, KINDS).save("m")
    given = ["evaluate", "m", "--data", "r.jsonl", "--column", "text=review", "--column", "label=kind"]
    assert run(given) == 0
    said = capsys.readouterr().out
    for word in ("accuracy", "95 %", "macro_f1", "By label", "True label by row", "Worst mistakes", "12 examples"):
        assert word in said, word
    assert run([*given, "--json"]) == 0

    def never(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    found = json.loads(capsys.readouterr().out, parse_constant=never)
    assert found["task"] == "classify" and set(found["scores"]["accuracy"]) == {"value", "low", "high"}
    assert found["labels"] == list(KINDS) and found["examples"] == 12 and "reading" not in found
    assert run([*given, "--out", "page.html"]) == 0
    page = (here / "page.html").read_text()
    assert page.lstrip().lower().startswith("<!doctype html") and "accuracy" in page
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", page) and "@import" not in page
    assert "<script>alert" not in page


def test_one_value_is_no_spread(here: Path, wordpiece: Tokenizer, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows that all have one value, or one row: scores that are numbers, in JSON too; and a run ends with a model."""
    model_for("regress", 1, wordpiece).save("m")
    for count in (1, 2):
        write_rows(here / "r.jsonl", [{"text": f"the cat {n}", "value": 5.0} for n in range(count)])
        assert run(["evaluate", "m", "--data", "r.jsonl", "--json"]) == 0
        text = capsys.readouterr().out
        assert "NaN" not in text and json.loads(text)["examples"] == count
    data = write_rows(here / "few.jsonl", prices(6))
    small = {"family": "bert", "size": "1x64", "context": 32}
    model = weft.finetune(
        data, task="regress", model=small, tokenizer={"size": 300}, training={"steps": 1}, log=lambda _: None
    )
    assert model.card.metrics and model("a hut").n_windows == 1  # type: ignore[attr-defined]

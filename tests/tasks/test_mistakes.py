"""What people get wrong: one line that says what, where and what would be right, status 2, nothing left behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.tasks.small import kinds, model_for, pairs, prices, questions, sentences, spanned, write_conll, write_rows
from weft.cli.main import run
from weft.text.tokenizers.tokenizer import Tokenizer

BERT = ["--model", "bert", "--size", "1x64", "--set", "model.context=32", "--set", "tokenizer.size=300", "--steps", "1"]


def as_csv(path: Path, rows: list[dict[str, Any]], mark: str = ",") -> None:
    lines = [mark.join(rows[0]), *(mark.join(str(value) for value in row.values()) for row in rows)]
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture
def files(here: Path) -> Path:
    rows = kinds(12)
    as_csv(here / "good.csv", rows)
    as_csv(here / "semi.csv", rows, ";")
    as_csv(here / "two.csv", [{"text": row["text"], "label": "stone"} for row in rows])
    as_csv(here / "none.csv", rows[:1])
    (here / "none.csv").write_text("text,label\n")
    as_csv(here / "three.csv", rows[:3])
    as_csv(here / "odd.csv", [*rows[:2], {"text": "the cat", "label": "animals"}])
    as_csv(here / "far.csv", [{"text": "the cat", "label": "xyzzy"}])
    as_csv(
        here / "values.csv", [*({"text": r["text"], "value": r["value"]} for r in prices(6)), {"a": "x", "b": "dear"}]
    )
    as_csv(here / "equal.csv", [{"text": r["text"], "value": 5} for r in prices(6)])
    as_csv(here / "pairs.csv", [{"sentence1": r["sentence1"], "label": r["label"]} for r in pairs(6)])
    write_rows(here / "half.jsonl", [*pairs(6), {"sentence1": "x", "label": "not"}])
    write_conll(here / "tags.conll", sentences(8))
    words = [{"words": [w for w, _ in some], "tags": [t for _, t in some]} for some in sentences(6)]
    write_rows(here / "tags.jsonl", [*words, {"words": ["a", "b"], "tags": ["O"]}])
    spans = spanned(6)
    write_rows(here / "spans.jsonl", spans)
    write_rows(here / "outside.jsonl", [*spans, {"text": "Ada", "spans": [[0, 9, "PER"]]}])
    write_rows(here / "over.jsonl", [*spans, {"text": "Ada Smith", "spans": [[0, 9, "PER"], [4, 9, "PER"]]}])
    write_rows(here / "blank.jsonl", [*spans, {"text": "Ada  Smith", "spans": [[3, 5, "PER"]]}])
    asked = questions(6)
    write_rows(here / "asked.jsonl", asked)
    write_rows(here / "absent.jsonl", [*asked, {**asked[0], "answer": "Paris"}])
    wrong = {**asked[0], "answer": asked[0]["answer"], "start": 2}
    write_rows(here / "shifted.jsonl", [*asked, wrong])
    write_rows(here / "infinite.jsonl", [*asked, {**asked[0], "answer": [{"text": "x", "start": float("inf")}]}])
    write_rows(here / "unanswered.jsonl", [{**row, "answer": ""} for row in asked])
    write_rows(here / "lacking.jsonl", [*kinds(6), {"text": "the cat"}])
    write_rows(here / "huge.jsonl", [*prices(6), {"text": "a hut", "value": 10**400}])
    write_rows(here / "nothing.jsonl", [*kinds(6), {"text": "the cat", "label": None}])
    (here / "folder").mkdir()
    return here


MISTAKES: dict[str, tuple[str, list[str]]] = {
    "a missing column": (
        "classify --data values.csv",
        ["values.csv: no column 'label'; it has text, value", "--column label=value"],
    ),
    "a slip in a column": (
        "classify --data good.csv --column text=txt",
        ["no column 'txt'; it has text, label", "did you mean 'text'"],
    ),
    "a column without =": ("classify --data good.csv --column text", ["--column text: write it as text=NAME"]),
    "an unknown label in dev": (
        "classify --data good.csv --dev odd.csv",
        ["odd.csv line 4: label 'animals' is not one of animal, plant, stone; did you mean 'animal'?"],
    ),
    "no label near": ("classify --data good.csv --dev far.csv", ["far.csv line 2: label 'xyzzy' is not one of"]),
    "a label that no row has": (
        "classify --data good.csv --labels animal,plant,stone,water",
        ["good.csv: no row has the label 'water'"],
    ),
    "a label left out": (
        "classify --data good.csv --labels animal,plant",
        ["good.csv line 2: label 'stone' is not one of"],
    ),
    "one class": ("classify --data two.csv", ["two.csv: every row has the label 'stone'", "nothing to tell apart"]),
    "no rows": ("classify --data none.csv", ["none.csv: there are no rows"]),
    "no rows to judge by": ("classify --data good.csv --dev none.csv", ["none.csv: there are no rows"]),
    "three rows": ("classify --data three.csv", ["three.csv: 3 rows are too few", "4 are the least"]),
    "a wrong delimiter": ("classify --data semi.csv --delimiter |", ["semi.csv: no column 'label'; it has text;label"]),
    "no number": ("regress --data values.csv", ["values.csv line 8: column 'value' holds 'dear', not a number"]),
    "a number beyond all": ("regress --data huge.jsonl", ["huge.jsonl line 7: column 'value' holds", "not a number"]),
    "one value": ("regress --data equal.csv", ["equal.csv: every row has the value 5: there is nothing to learn"]),
    "half a pair": ("pair --data pairs.csv", ["pairs.csv: no column", "it has sentence1, label"]),
    "half a pair in one row": (
        "pair --data half.jsonl",
        ["half.jsonl line 7: no column 'sentence2'; it has sentence1, label"],
    ),
    "a row without its label": (
        "classify --data lacking.jsonl",
        ["lacking.jsonl line 7: no column 'label'; it has text"],
    ),
    "tags of another length": ("tag --data tags.jsonl", ["tags.jsonl line 7: 2 words but 1 tags"]),
    "a span outside": ("tag --data outside.jsonl", ["outside.jsonl line 7: span 0 to 9 lies outside of a text of 3"]),
    "spans over each other": (
        "tag --data over.jsonl",
        ["over.jsonl line 7: two spans lie over each other at 4: 'Smith'"],
    ),
    "a span of nothing": ("tag --data blank.jsonl", ["blank.jsonl line 7: span 3 to 5 holds no word"]),
    "an answer not there": (
        "answer --data absent.jsonl",
        ["absent.jsonl line 7: answer 'Paris' is not in its context 'Dan"],
    ),
    "an answer elsewhere": (
        "answer --data shifted.jsonl",
        ["shifted.jsonl line 7: answer '", "is not at 2: there is '"],
    ),
    "a start beyond all": (
        "answer --data infinite.jsonl",
        ["infinite.jsonl line 7: the answer's start 'inf' is no number"],
    ),
    "no answer at all": ("answer --data unanswered.jsonl", ["no row has an answer"]),
    "no such base": ("classify --data good.csv --base nowhere", ["'nowhere'", "neither a folder"]),
    "a base that is no model": (
        "classify --data good.csv --base folder",
        ["'folder' is not a model folder: it has no config.json"],
    ),
    "a base that is a table": (
        "classify --data good.csv --base semi.csv",
        ["semi.csv: is neither a model folder nor a text file of word vectors"],
    ),
    "model and base": (
        "classify --data good.csv --model bert --base folder",
        ["--model starts from scratch and --base from weights"],
    ),
    "a task without a head": ("tag --data tags.conll --model vectors", ["vectors has no head for tag"]),
    "answers by one that speaks": (
        "answer --data asked.jsonl --model gpt2",
        ["answer needs a model that looks both ways"],
    ),
    "next words of one that does not": (
        "classify --data good.csv --words 0.5",
        ["--words needs a decoder such as gpt2, not bert"],
    ),
    "freeze nonsense": (
        "classify --data good.csv --freeze half",
        ["freeze must be encoder, tokens or all-but-K", "'half'"],
    ),
    "freeze all": ("classify --data good.csv --freeze all-but-7", ["freeze all-but-7: the model has only 1 layers"]),
    "an unknown metric": (
        "classify --data good.csv --metric acuracy",
        ["metric 'acuracy' is not one of", "did you mean 'accuracy'"],
    ),
    "windows beyond the context": (
        "classify --data good.csv --length 512",
        ["windows of 512 tokens are longer than the model's context of 32"],
    ),
    "windows of nothing": ("classify --data good.csv --length 0", ["length must be at least 4, not 0"]),
    "a stride of nothing": ("classify --data good.csv --stride -1", ["stride must be at least 1, not -1"]),
    "long nonsense": ("classify --data good.csv --long fold", ["long", "windows, truncate"]),
    "weights of values": (
        "regress --data values.csv --class-weights balanced",
        ["class_weights does not apply to regress"],
    ),
    "judged by what it learns from": (
        "classify --data good.csv --dev good.csv",
        ["is both training and held-out data"],
    ),
    "an unknown task": (
        "clasify --data good.csv",
        ["clasify", "classify, multilabel, regress, pair, spans, tag, answer"],
    ),
    "no data": ("classify", ["no data: give --data FILE"]),
    "too few seeds": ("classify --data good.csv --seeds 1", ["seeds must be between 2 and 1000, not 1"]),
    "a mistake with seeds": ("classify --data two.csv --seeds 2", ["every row has the label 'stone'"]),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes(mistake: str, files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given, said = MISTAKES[mistake]
    arguments = given.split()
    own = [] if "--base" in arguments else BERT[2:] if "--model" in arguments else BERT
    own = own[2:] if "vectors" in arguments else own
    assert run(["finetune", "--task", *arguments, *own, "--out", "runs/r"]) == 2
    found = capsys.readouterr()
    lines = [line for line in found.err.splitlines() if not line.startswith("vocabulary: ")]
    assert lines[0].startswith("weft finetune: ") and not found.out
    assert len(lines) == 1 or "rows are wrong" in lines[0]  # several, told together
    for words in said:
        assert words in found.err
    assert not (files / "runs/r").exists() and "resume" not in found.err


def test_bad_rows_are_passed_over_and_counted(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for task, data, line in (
        ("answer", "absent.jsonl", "absent.jsonl line 7: answer 'Paris'"),
        ("tag", "over.jsonl", "over.jsonl line 7: two spans"),
        ("classify", "lacking.jsonl", "lacking.jsonl line 7: no column 'label'"),
    ):
        out = files / task
        given = ["--task", task, "--data", data, "--on-bad-row", "skip", "--out", str(out)]
        assert run(["finetune", *given, *BERT]) == 0
        assert f"skipped 1 bad row; the first: {files}/{line}" in capsys.readouterr().err
        rows = json.loads((out / "run/run.json").read_text())["rows"]
        assert rows["train"] + rows["dev"] == 6
    # A label that the model does not know is such a row, in those to judge by too.
    given = ["--task", "classify", "--data", "good.csv", "--dev", "odd.csv", "--on-bad-row", "skip", "--out", "r"]
    assert run(["finetune", *given, *BERT]) == 0
    assert f"skipped 1 bad row; the first: {files}/odd.csv line 4: label 'animals'" in capsys.readouterr().err
    assert run(["evaluate", "r", "--data", "odd.csv"]) == 2
    assert "odd.csv line 4: label 'animals' is not one of animal, plant" in capsys.readouterr().err
    assert run(["evaluate", "r", "--data", "odd.csv", "--on-bad-row", "skip", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["examples"] == 2 and found["skipped"] == 1


def test_mistakes_in_asking(files: Path, wordpiece: Tokenizer, capsys: pytest.CaptureFixture[str]) -> None:
    def fails(arguments: list[str], words: str) -> None:
        assert run(arguments) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and words in said, said

    model_for("pair", 2, wordpiece, ("no", "yes")).save("pair")
    model_for("answer", 2, wordpiece).save("answer")
    fails(["predict", "pair", "one", "two", "three"], "takes texts two by two; 3 were given")
    fails(["predict", "pair", "--data", "good.csv"], "no column")
    fails(["evaluate", "pair", "--data", "none.csv"], "none.csv: there are no rows")
    (files / "empty.txt").write_text(" \n")
    fails(["answer", "answer", "who ?", "--context", "empty.txt"], "empty.txt: holds no text")
    (files / "text.txt").write_text("Ada lives in Rome . " * 9)
    fails(
        ["answer", "answer", "where lives Ada " * 9, "--context", "text.txt"], "leaves too little room for its context"
    )
    fails(["answer", "pair", "who ?", "--context", "text.txt"], "has no head for answer")
    model = weft.load("pair")
    for wrong in ("one", ("one", "two", "three"), [("one", 2)], [None]):
        with pytest.raises(weft.UserError, match="a pair of texts is expected"):
            model(wrong)  # type: ignore[call-overload]


def test_a_text_that_was_cut_is_said_to_be(
    files: Path, wordpiece: Tokenizer, capsys: pytest.CaptureFixture[str]
) -> None:
    (files / "text.txt").write_text("Ada lives in Rome . " * 9)
    for long, words in (("truncate", "the text was truncated"), ("windows", "nothing was truncated")):
        model_for("answer", 2, wordpiece, long=long).save(long)
        assert run(["answer", long, "where lives Ada ?", "--context", "text.txt"]) == 0
        assert words in capsys.readouterr().err

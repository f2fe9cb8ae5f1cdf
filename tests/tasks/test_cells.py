"""What people write into cells: lists, numbers, spaces, names of columns in any case; and rows of odd labels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.tasks.small import model_for
from weft.cli.main import run
from weft.data.columns import file_of, find_columns
from weft.data.dataset import examples_of
from weft.data.tables import Table
from weft.errors import UserError
from weft.tasks.answer import AnswerTask
from weft.tasks.classify import MultilabelTask, TextTask
from weft.tasks.tag import TagTask
from weft.text.records import Record
from weft.text.rows import Skipped
from weft.text.tokenizers.tokenizer import Tokenizer

LABELS = ("one", "two", "three")
ANSWER = {"context": "context", "question": "question", "answer": "answer"}


def read(task: Any, columns: dict[str, str], **values: Any) -> Any:
    return task.read(Record(values, "a.csv line 2"), columns).target


@pytest.mark.parametrize(
    "cell", ['["good", "bad"]', "['good', 'bad']", ["good", "bad"], "good|bad", "good; bad", "good,bad"]
)
def test_several_labels_in_a_cell(cell: Any) -> None:
    task = MultilabelTask("multilabel")
    assert read(task, {"text": "text", "labels": "labels"}, text="x", labels=cell) == ("good", "bad")


@pytest.mark.parametrize("cell", ["[good, bad]", "['good'", "[__import__('os').getcwd()]"])
def test_what_only_looks_like_a_list(cell: str) -> None:
    task = MultilabelTask("multilabel")
    if cell.endswith("]"):
        with pytest.raises(UserError, match="^a.csv line 2: column 'labels' holds no list"):
            read(task, {"text": "text", "labels": "labels"}, text="x", labels=cell)
    else:
        assert read(task, {"text": "text", "labels": "labels"}, text="x", labels=cell) == ("['good'",)


@pytest.mark.parametrize("words", ['["Ada", "sings"]', "['Ada', 'sings']", "Ada sings", ["Ada", "sings"]])
def test_words_in_a_cell(words: Any) -> None:
    found = read(TagTask(), {"words": "tokens", "tags": "ner_tags"}, tokens=words, ner_tags="B-PER O")
    assert found == ("B-PER", "O")


@pytest.mark.parametrize(
    "answer, more, expected",
    [
        ("Paris", {}, ((11, "Paris"),)),
        ("  Paris ", {}, ((11, "Paris"),)),
        ("  Paris ", {"start": 9}, ((11, "Paris"),)),
        (" Paris", {"answer_start": 10}, ((11, "Paris"),)),
        ("", {}, ()),
        (None, {}, ()),
        ("   ", {"start": 3}, ()),
        (1995, {}, ((20, "1995"),)),
        ({"text": ["Paris", "1995"], "answer_start": [11, 20]}, {}, ((11, "Paris"), (20, "1995"))),
        ({"text": [], "answer_start": []}, {}, ()),
        ([{"text": "Paris", "answer_start": 11}], {}, ((11, "Paris"),)),
        (["Paris", "   "], {}, ((11, "Paris"),)),
        ([{"text": "Paris", "answer_start": 11}], {"impossible": True}, ()),
    ],
)
def test_answers_in_a_cell(answer: Any, more: dict[str, Any], expected: Any) -> None:
    context = "She lived: Paris in 1995"
    found = read(AnswerTask(), ANSWER, context=context, question="Where?", answer=answer, **more)
    assert found == expected and all(context[start:].startswith(text) for start, text in found)


def test_columns_in_any_case_and_files_of_any_name(tmp_path: Path) -> None:
    record = Record({"Text": "x", "LABEL": "y"}, "a.csv line 2")
    assert find_columns(("text", "label"), {}, record) == {"text": "Text", "label": "LABEL"}
    both = Record({"text": "x", "Text": "z", "label": "y"}, "a.csv line 2")
    assert find_columns(("text", "label"), {}, both)["text"] == "text"
    for name, header in (("data row 1.csv", "text,label"), ("data row 2.csv", "sentence,label")):
        (tmp_path / name).write_text(f"{header}\nsome words,a\n")
    files = Table((str(tmp_path / "data row 1.csv"), str(tmp_path / "data row 2.csv")), {})
    task = TextTask("classify")
    found = list(examples_of(files, ("text", "label"), task.read, Skipped()))
    assert [example.texts for example in found] == [("some words",)] * 2
    assert file_of("q.json article 3 question 77 a") == "q.json" and file_of("line 1.txt line 12") == "line 1.txt"


def test_a_label_for_each_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "r.csv").write_text("text,label\n" + "".join(f"word {n},{n / 7}\n" for n in range(12)))
    assert run(["finetune", "--task", "classify", "--data", "r.csv", "--model", "bert", "--out", "out"]) == 2
    assert "they look like ids" in capsys.readouterr().err and not Path("out").exists()


def test_a_tag_of_no_form(wordpiece: Tokenizer, capsys: pytest.CaptureFixture[str]) -> None:
    model_for("tag", 3, wordpiece, ("O", "B-PER", "I-PER")).save("model")
    Path("t.conll").write_text("Ada B-PER\nsings O\n\nBob B-LOC\n\nRome NOUN\n")
    assert run(["evaluate", "model", "--data", "t.conll"]) == 2
    assert "t.conll line 6: tag 'NOUN' is neither O" in capsys.readouterr().err
    assert run(["evaluate", "model", "--data", "t.conll", "--on-bad-row", "skip"]) == 0  # a tag never seen is a mistake
    assert "2 examples" in capsys.readouterr().out


def test_a_row_of_a_table_is_a_row_of_answers(wordpiece: Tokenizer, capsys: pytest.CaptureFixture[str]) -> None:
    model_for("classify", 3, wordpiece, LABELS).save("model")
    Path("r.csv").write_text("Text,more\na cat,1\n,2\na cow,3\n")
    assert run(["predict", "model", "--data", "r.csv", "--jsonl"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["input"] for line in found] == ["a cat", "", "a cow"]
    model_for("tag", 3, wordpiece, ("O", "B-PER", "I-PER")).save("tagger")
    Path("t.jsonl").write_text('{"tokens": ["a", "cat"]}\n{"tokens": ["cow"]}\n')
    assert run(["predict", "tagger", "--data", "t.jsonl", "--jsonl"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [[word["text"] for word in line["words"]] for line in found] == [["a", "cat"], ["cow"]]


def test_a_card_that_asks_for_what_is_not_there(wordpiece: Tokenizer, capsys: pytest.CaptureFixture[str]) -> None:
    model_for("classify", 3, wordpiece, LABELS).save("model")
    for values, words in (
        ({"task": "tag"}, "no head for tag"),
        ({"task": "regress"}, "a head of 3 outputs gives no value"),
        ({"temperature": -1.0}, "temperature must be above 0"),
        ({"thresholds": {"a": 1e300}}, "thresholds"),
        ({"window": {"length": 8, "stride": 9}}, "stride"),
    ):
        card = json.loads(Path("model/weft.json").read_text())
        Path("bad").mkdir(exist_ok=True)
        for path in Path("model").iterdir():
            (Path("bad") / path.name).write_bytes(path.read_bytes())
        Path("bad/weft.json").write_text(json.dumps(card | values))
        assert run(["predict", "bad", "a cat"]) == 2
        assert words in capsys.readouterr().err

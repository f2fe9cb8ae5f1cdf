"""Rows of multiple choice in the forms that people have them, and one line for what is wrong with one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from weft.data.choices import ChoiceRow, counts_from_one, joined, read_choices
from weft.data.tables import Table
from weft.errors import UserError
from weft.text.json_rows import unnested
from weft.text.records import Record, read_records

ENDINGS = {f"ending{number}": f"ends {number}." for number in range(4)}
FORMS: dict[str, tuple[dict[str, Any], ChoiceRow]] = {
    "COPA": (
        {
            "premise": "He fell.",
            "choice1": "It rained.",
            "choice2": "He sang.",
            "question": "cause",
            "label": 0,
            "idx": 7,
        },
        ChoiceRow("He fell.", "because", ("It rained.", "He sang."), (0,)),
    ),
    "SWAG": (
        {"video-id": "x", "startphrase": "A man. He", "sent1": "A man.", "sent2": "He", **ENDINGS, "label": "2"},
        ChoiceRow("A man.", "He", tuple(ENDINGS.values()), (2,)),
    ),
    "SWAG, short": ({"startphrase": "A", **ENDINGS, "label": 3}, ChoiceRow("A", "", tuple(ENDINGS.values()), (3,))),
    "HellaSwag": ({"ctx": "A", "endings": ["b", "c"], "label": "1"}, ChoiceRow("A", "", ("b", "c"), (1,))),
    "RACE": (
        {"article": "Long.", "question": "Who is _ ?", "options": ["x", "y", "z"], "answer": "C", "id": "1"},
        ChoiceRow("Long.", "Who is _ ?", ("x", "y", "z"), (2,)),
    ),
    "CommonsenseQA": (
        {"question": "Where?", "choices": {"label": ["A", "B"], "text": ["here", "there"]}, "answerKey": "B"},
        ChoiceRow("Where?", "", ("here", "there"), (1,)),
    ),
    "ReCoRD": (
        {"passage": "A B\n@highlight\nC", "query": "@placeholder won", "entities": ["A", "B"], "answers": ["B", "A"]},
        ChoiceRow("A B\n \nC", "@placeholder won", ("A", "B"), (0, 1)),
    ),
    "MultiRC": (
        {"passage": "P", "question": "Q?", "answers": [{"text": "x", "label": 1}, {"text": "y", "label": 0}]},
        ChoiceRow("P", "Q?", ("x", "y"), (0,), True),
    ),
    "WinoGrande": (
        {"sentence": "Ann fed Bob because _ ate.", "option1": "Ann", "option2": "Bob", "answer": "Bob"},
        ChoiceRow("Ann fed Bob because", "_ ate.", ("Ann", "Bob"), (1,)),
    ),
    "a gap at the beginning": (
        {"question": "___ is red.", "options": ["a", "b"], "answer": 0},
        ChoiceRow("___ is red.", "___ is red.", ("a", "b"), (0,)),
    ),
    "list in a cell": (
        {"prompt": "P", "options": '["a", "b"]', "answer": "b"},
        ChoiceRow("P", "", ("a", "b"), (1,)),
    ),
    "an object in a cell, as pandas writes CommonsenseQA": (
        {"question": "Where?", "choices": "{'label': ['A', 'B'], 'text': ['here', \"isn't\"]}", "answerKey": "B"},
        ChoiceRow("Where?", "", ("here", "isn't"), (1,)),
    ),
    "bars in a cell": ({"prompt": "P", "choices": "a|b|c", "label": "2"}, ChoiceRow("P", "", ("a", "b", "c"), (2,))),
    "ARC": (
        {
            "question": {"stem": "P?", "choices": [{"text": "a", "label": "1"}, {"text": "b", "label": "2"}]},
            "answerKey": "2",
        },
        ChoiceRow("P?", "", ("a", "b"), (1,)),
    ),
    "OpenBookQA": (
        {"question_stem": "P", "choices": {"text": ["a", "b"], "label": ["A", "B"]}, "answerKey": "A"},
        ChoiceRow("P", "", ("a", "b"), (0,)),
    ),
    "PIQA": ({"goal": "P", "sol1": "a", "sol2": "b", "label": 1}, ChoiceRow("P", "", ("a", "b"), (1,))),
    "MedMCQA": ({"question": "P", "opa": "a", "opb": "b", "cop": 1}, ChoiceRow("P", "", ("a", "b"), (1,))),
    "MultiRC, a row for each answer": (
        {"paragraph": "P", "question": "Q?", "answer": "x", "idx": {"paragraph": 0}, "label": 1},
        ChoiceRow("P", "Q?", ("x",), (0,), True),
    ),
    "small letters": (
        {"question": "P?", "option_a": "x", "option_b": "y", "answer": "b"},
        ChoiceRow("P?", "", ("x", "y"), (1,)),
    ),
    "letters in brackets": (
        {"question": "P?", "options": ["x", "y"], "answer": "(B)"},
        ChoiceRow("P?", "", ("x", "y"), (1,)),
    ),
    "names of columns": (
        {"question": "P?", "Option 1": "x", "Option 2": "y", "answer": "option2"},
        ChoiceRow("P?", "", ("x", "y"), (1,)),
    ),
    "the same option twice": (
        {"prompt": "P", "options": ["a", "b", "a"], "answer": 2},
        ChoiceRow("P", "", ("a", "b", "a"), (0, 2)),
    ),
    "letters": ({"question": "P?", "A": "a", "B": "b", "answer": "B"}, ChoiceRow("P?", "", ("a", "b"), (1,))),
    "fewer options in a row": (
        {"prompt": "P", "option_a": "a", "option_b": "b", "option_c": "", "answer": "A"},
        ChoiceRow("P", "", ("a", "b"), (0,)),
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_forms(name: str) -> None:
    values, expected = FORMS[name]
    assert read_choices(Record(unnested(values)[0], "f line 1"), {}) == expected


def test_columns_by_name() -> None:
    values = {"Frage": "P?", "Wahl": ["a", "b"], "richtig": 1}
    given = {"prompt": "Frage", "options": "Wahl", "answer": "richtig"}
    assert read_choices(Record(values, "f line 1"), given) == ChoiceRow("P?", "", ("a", "b"), (1,))
    assert read_choices(Record(values, "f line 1"), given, targets=False).right is None


@pytest.mark.parametrize(
    "values, fault",
    [
        ({"prompt": "P", "options": ["a"], "answer": 0}, "f line 1: one option only, 'a': there is nothing to choose"),
        ({"prompt": "P", "options": [], "answer": 0}, "f line 1: no options: there is nothing"),
        ({"prompt": "P", "options": ["a", ""], "answer": 0}, "column 'options' holds no text as option 2"),
        ({"prompt": "P", "options": ["a", None], "answer": 0}, "column 'options' holds no text as option 2"),
        ({"prompt": "P", "options": 3, "answer": 0}, "column 'options' holds no list of options"),
        ({"prompt": "P", "options": [{"text": "a"}, ["b"]], "answer": 0}, "column 'options' holds no text as option 2"),
        (
            {"prompt": "P", "options": ["a", "b"], "answer": 2},
            "answer '2' is neither one of the 2 options nor a number",
        ),
        ({"prompt": "P", "options": ["a", "b"], "answer": "C"}, "answer 'C' is neither"),
        ({"prompt": "P", "options": ["a", "b"], "answer": True}, "answer 'True' is neither"),
        ({"prompt": "P", "options": ["a", "b"], "answer": []}, "column 'answer' holds no answer"),
        ({"prompt": "P", "options": ["a", "b"], "label": -1}, "column 'label' holds no answer"),
        (
            {"prompt": "P", "option_a": "a", "option_b": "", "option_c": "c", "answer": "C"},
            "f line 1: column 'option_b' is empty: an option is missing",
        ),
        (
            {"paragraph": "P", "question": "Q?", "answer": "x", "label": 7},
            "column 'label' holds '7', not 0 (wrong) or 1 (right)",
        ),
        ({"prompt": "P", "options": ["a", "b"]}, "no column with the answer; name it with --column answer=NAME"),
        ({"prompt": "P", "options": ["a"] * 1001, "answer": 0}, "1,001 options; at most 1,000"),
        ({"prompt": "", "options": ["a", "b"], "answer": 0}, "column 'prompt' is empty"),
        ({"options": ["a", "b"], "answer": 0}, "f: no column with the prompt; it has options, answer; name it with"),
        ({"prompt": "P", "answer": 0}, "f: no column with the options; it has prompt, answer"),
    ],
)
def test_faults_are_named(values: dict[str, Any], fault: str) -> None:
    with pytest.raises(UserError) as error:
        read_choices(Record(values, "f line 1"), {})
    assert fault in str(error.value) and "\n" not in str(error.value)


def test_options_stand_where_their_question_has_a_gap() -> None:
    assert joined("@placeholder won, said @placeholder", "Ada") == "Ada won, said Ada"
    assert joined("She is _ .", r"a \1") == r"She is a \1 ." and joined("snake_case?", "no") == "snake_case? no"
    assert joined("Who?", "Ada") == "Who? Ada" and joined("", "Ada") == "Ada"


def test_nested_files_of_superglue(tmp_path: Path) -> None:
    """A passage with several questions becomes a row for each of them."""
    entities = [{"start": 0, "end": 2}, {"start": 8, "end": 9}, {"start": 0, "end": 2}]
    record = {
        "source": "CNN",
        "passage": {"text": "Ada met Bo.", "entities": entities},
        "qas": [{"query": "@placeholder met Bo", "answers": [{"start": 0, "end": 2, "text": "Ada"}], "idx": 0}] * 2,
    }
    answers = [{"text": "yes", "idx": 0, "label": 1}, {"text": "no", "idx": 1, "label": 0}]
    multi = {"idx": 0, "passage": {"text": "P", "questions": [{"question": "Q?", "answers": answers, "idx": 0}]}}
    (tmp_path / "record.jsonl").write_text(json.dumps(record) + "\n")
    (tmp_path / "record.json").write_text(json.dumps({"version": "1.0", "data": [record]}))
    (tmp_path / "multi.jsonl").write_text(json.dumps(multi) + "\n")
    old = {"paragraph": {"text": "P", "questions": [{"question": "Q?", "answers": [{"text": "x", "isAnswer": True}]}]}}
    (tmp_path / "multi.json").write_text(json.dumps({"data": [old]}))
    for name in ("record.jsonl", "record.json"):
        rows = list(read_records(str(tmp_path / name)))
        assert len(rows) == 2 and rows[1].where.endswith(" 1 question 2")
        read = read_choices(rows[1], {})
        assert read == ChoiceRow("Ada met Bo.", "@placeholder met Bo", ("Ada", "Bo"), (0,))
    (row,) = read_records(str(tmp_path / "multi.jsonl"))
    assert read_choices(row, {}) == ChoiceRow("P", "Q?", ("yes", "no"), (0,), True)
    (row,) = read_records(str(tmp_path / "multi.json"))
    assert read_choices(row, {}) == ChoiceRow("P", "Q?", ("x",), (0,), True)
    race = {
        "article": "P",
        "questions": ["Q?", "R _"],
        "options": [["a", "b"], ["c", "d"]],
        "answers": ["B", "A"],
        "id": "x",
    }
    (tmp_path / "race.jsonl").write_text(json.dumps(race) + "\n")
    read = [read_choices(row, {}) for row in read_records(str(tmp_path / "race.jsonl"))]
    assert read == [ChoiceRow("P", "Q?", ("a", "b"), (1,)), ChoiceRow("P", "R _", ("c", "d"), (0,))]
    assert [read_choices(row, {}) for row in Table([race]).records()] == read, "rows in memory are read the same"


@pytest.mark.parametrize(
    "answers, first", [("1 2 3 1", 1), ("1 2 0 1", 0), ("1 2 2 1", 0), ("0 3 1 2", 0), ("B C A B", 0)]
)
def test_answers_that_count_from_one(answers: str, first: int) -> None:
    """So they do where none is 0 and one is beyond the options counted from 0."""
    rows = [
        {"question": f"Q {n}", "A": "x", "B": "y", "C": "z", "answer": each} for n, each in enumerate(answers.split())
    ]
    record = next(Table(rows).records())
    assert counts_from_one(record, {}) is bool(first)
    if rows[0]["answer"] == "1":
        assert read_choices(record, {}, first=first).right == (1 - first,)

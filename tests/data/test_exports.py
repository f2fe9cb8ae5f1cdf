"""Tables as other programs export them: titles, decimal commas, columns of 0 and 1, Doccano, Label Studio."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from weft.data.columns import find_columns, paired_columns
from weft.data.dataset import examples_of
from weft.data.tables import Table
from weft.errors import UserError
from weft.tasks.classify import MultilabelTask, TextTask, ValueTask
from weft.tasks.tag import TagTask
from weft.text.records import Record, read_records
from weft.text.rows import Skipped

ROWS = [(f"some words of row {number}", ("ham", "spam")[number % 2]) for number in range(12)]
CLASSIFY = TextTask("classify")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def targets(task: Any, name: str, text: str | None = None) -> tuple[list[Any], list[str]]:
    """What a task reads from a file, and the notes."""
    if text is not None:
        Path(name).write_text(text, encoding="utf-8")
    table, skipped = Table(name), Skipped()
    task, needed = task.columns(next(table.records()), {})
    return [example.target for example in examples_of(table, needed, task.read, skipped)], skipped.lines()


def lines(delimiter: str = ",") -> str:
    return "".join(f"{text}{delimiter}{label}\n" for text, label in ROWS)


@pytest.mark.parametrize("title", ["My export\n", "My export,\n", "\n,\nMy export, \n\n"])
def test_a_title_above_the_header(title: str) -> None:
    labels, notes = targets(CLASSIFY, "a.csv", f"{title}text,label\n{lines()}")
    assert labels == [label for _, label in ROWS] and "taken for a title" in notes[0]
    labels, _ = targets(CLASSIFY, "b.csv", f"Export of 1, 2 and 3\ntext;label\n{lines(';')}")
    assert len(labels) == len(ROWS)


def test_one_column_of_text_has_no_title() -> None:
    Path("a.csv").write_text("remarks\nfirst\nsecond\nthird, and more\n")
    with pytest.raises(UserError, match="line 4: expected 1 fields, got 2"):
        list(read_records("a.csv"))


def test_workbooks_with_a_title_or_without_a_header() -> None:
    openpyxl = pytest.importorskip("openpyxl")
    for name, before in (("title", [["My export"], [], ["text", "label"]]), ("bare", [])):
        book = openpyxl.Workbook()
        for row in [*before, *ROWS]:
            book.active.append(list(row))
        book.save(f"{name}.xlsx")
        assert targets(CLASSIFY, f"{name}.xlsx")[0] == [label for _, label in ROWS]


def test_row_numbers_and_columns_of_one_name() -> None:
    numbered = "".join(f"{number},{text},{label}\n" for number, (text, label) in enumerate(ROWS, start=1))
    assert len(targets(CLASSIFY, "a.csv", "text,label\n" + numbered)[0]) == len(ROWS)
    Path("b.csv").write_text("text,x,x\na b,1,2\n")
    assert next(read_records("b.csv")).values == {"text": "a b", "x": "1", "x.1": "2"}


def test_decimal_commas() -> None:
    task = ValueTask("regress")

    def values(*cells: str) -> list[float]:
        return targets(task, "a.csv", "text;score\n" + "".join(f"some words {cell};{cell}\n" for cell in cells))[0]

    assert values("3,5", "-0,125", "1.234,5", "7") == [3.5, -0.125, 1234.5, 7.0]
    assert values("1,234.5", "1,234,567", "7.25") == [1234.5, 1234567.0, 7.25]
    with pytest.raises(UserError, match=r"holds '1,234': 1234 or 1\.234\?"):
        values("1,234", "7")
    with pytest.raises(UserError, match="use one decimal mark"):
        values("3,5", "2.000")
    with pytest.raises(UserError, match="'1_0', not a number"):
        values("1_0", "2")
    with pytest.raises(UserError, match=r"'-1e31'; values go up to 1e\+30"):
        values("-1e31", "2")


def test_several_labels_as_columns_of_0_and_1_or_in_a_cell() -> None:
    task = MultilabelTask("multilabel")
    rows = "".join(f"{number},some words {number},{number % 2},{number % 3 % 2}\n" for number in range(6))
    read, _ = targets(task, "a.csv", "id,comment_text,rude,long\n" + rows)
    assert read == [(), ("rude", "long"), (), ("rude",), ("long",), ("rude",)]
    model = MultilabelTask("multilabel", labels=("long", "rude"))  # it looks for its labels
    assert [set(labels) for labels in targets(model, "a.csv")[0]] == [set(labels) for labels in read]
    cells = ['"x\ny"', "\"{'x', 'y'}\"", "x;y"]
    text = "text,labels\n" + "".join(f"some words,{cell}\n" for cell in cells)
    assert targets(task, "b.csv", text)[0] == [("x", "y")] * 3


def test_labels_that_look_alike_are_told() -> None:
    assert TextTask(labels=("ham", "spam")).label_notes() == []
    assert "'Spam', 'spam'" in str(TextTask(labels=("Spam", "ham", "spam")).label_notes())


SPAN = {"start": 4, "end": 9, "label": "LOC"}
DOCCANO = {"id": 7, "start_offset": 4, "end_offset": 9, "label": "LOC"}
STUDIO = {"start": 4, "end": 9, "text": "Paris", "labels": ["LOC"]}


@pytest.mark.parametrize(
    "row",
    [
        {"text": "to  Paris", "label": [[4, 9, "LOC"]]},
        {"text": "to  Paris", "labels": [[4, 9, "LOC"]]},
        {"text": "to  Paris", "entities": [DOCCANO]},
        {"text": "to  Paris", "label": [STUDIO]},
        {"id": 1, "data": {"text": "to  Paris"}, "annotations": [{"result": [{"type": "labels", "value": STUDIO}]}]},
        {"text": "to  Paris", "entities": json.dumps([SPAN])},
    ],
)
def test_entities_of_other_programs(row: dict[str, Any]) -> None:
    (tagged,), _ = targets(TagTask(), "a.jsonl", json.dumps(row) + "\n")
    assert tagged == ("O", "B-LOC")


def test_labels_of_other_programs() -> None:
    choices = [{"value": {"choices": ["spam"]}}]
    rows = [{"data": {"text": "a b"}, "annotations": [{"result": choices}]}, {"text": "a b", "label": ["spam"]}]
    for row in rows:
        assert targets(CLASSIFY, "a.jsonl", json.dumps(row))[0] == ["spam"]
    with pytest.raises(UserError, match="--task multilabel"):
        targets(CLASSIFY, "a.jsonl", json.dumps({"text": "a b", "label": ["x", "y"]}))


def test_a_header_line_in_conll() -> None:
    Path("a.conll").write_text("token ner\nParis B-LOC\nis O\n\nnice O\n")
    assert [record.values["words"] for record in read_records("a.conll")] == [["Paris", "is"], ["nice"]]


def test_pairs_of_languages_inside_an_object() -> None:
    Path("a.jsonl").write_text('{"translation": {"en": "one", "de": "eins"}}\n')
    assert next(read_records("a.jsonl")).values == {"en": "one", "de": "eins"}
    assert paired_columns(["ID", "EN", "DE"]) == ("EN", "DE")
    assert paired_columns(["English", "Deutsch"]) == ("English", "Deutsch")


def test_hints_for_nested_texts_and_for_two_texts() -> None:
    with pytest.raises(UserError, match="'data' holds an object with it"):
        find_columns(("text",), {}, Record({"id": 1, "data": {"text": "a"}}, "a.jsonl line 1"))
    with pytest.raises(UserError, match="--task pair"):
        find_columns(("text",), {}, Record({"question1": "a", "question2": "b"}, "a.csv line 2"))


def test_a_picture_is_no_text() -> None:
    Path("a.csv").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 20)
    with pytest.raises(UserError, match="a binary file, not text"):
        list(read_records("a.csv"))


def test_cells_overrule_a_word_in_the_name_of_a_column(tmp_path: Path) -> None:
    rows = [
        f"{text} number {n},{kind}"
        for n in range(20)
        for text, kind in (("who sings song", "question"), ("sing song", "order"))
    ]
    (tmp_path / "phrases.csv").write_text("Phrase,Sort of sentence\n" + "\n".join(rows) + "\n")
    record = next(Table(str(tmp_path / "phrases.csv")).records())
    assert find_columns(("text", "label"), {}, record) == {"text": "Phrase", "label": "Sort of sentence"}

"""Rows in memory: every kind that people hold gives the same records, and the same hash as the file they make."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest

from weft.data.tables import MemoryRows, Table
from weft.errors import UserError

ROWS = [{"text": "a fine film", "label": "good"}, {"text": "höchst dull", "label": "bad"}]


class Pandas:
    """What is used of a DataFrame of pandas."""

    columns = ["text", "label"]

    class Series:
        def __init__(self, values: list[Any]) -> None:
            self.values = values

        def tolist(self) -> list[Any]:
            return self.values

    @property
    def iloc(self) -> Any:
        return self

    def __getitem__(self, place: Any) -> Any:
        name = self.columns[place[1]]
        return self.Series([row[name] for row in ROWS])


class Polars:
    """What is used of a DataFrame of polars."""

    columns = ["text", "label"]

    def iter_rows(self, named: bool) -> Any:
        return iter(ROWS)


class ClassLabel:
    names = ["bad", "good"]


class Dataset:
    """What is used of a Dataset of datasets."""

    column_names = ["text", "label"]
    features = {"text": object(), "label": ClassLabel()}

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Any:
        return iter([{"text": row["text"], "label": ClassLabel.names.index(row["label"])} for row in ROWS])


def arrow() -> Any:
    metadata = b'{"info": {"features": {"label": {"names": ["bad", "good"], "_type": "ClassLabel"}}}}'
    table = pyarrow.table({"text": [row["text"] for row in ROWS], "label": [1, 0]})
    return table.replace_schema_metadata({b"huggingface": metadata})


KINDS = {
    "dicts": lambda: ROWS,
    "generator": lambda: (row for row in ROWS),
    "lists": lambda: {name: [row[name] for row in ROWS] for name in ("text", "label")},
    "arrays": lambda: {name: np.array([row[name] for row in ROWS]) for name in ("text", "label")},
    "tuples": lambda: [(row["text"], row["label"]) for row in ROWS],
    "arrow": arrow,
    "pandas": Pandas,
    "polars": Polars,
    "dataset": Dataset,
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_gives_the_same_rows(kind: str, tmp_path: Path) -> None:
    table = Table(KINDS[kind]())
    for _ in range(2):  # also a generator may be gone through twice
        assert [record.values for record in table.records()] == ROWS
    assert next(table.records()).where == f"{table.name} row 1" and table.paths() == []
    table.data.write(tmp_path / "rows.jsonl")
    assert table.hash() == Table(tmp_path / "rows.jsonl").hash()
    assert [record.values for record in Table(tmp_path / "rows.jsonl").records()] == ROWS


def test_real_data_frames() -> None:
    for name in ("pandas", "polars"):
        module = pytest.importorskip(name)
        assert [record.values for record in Table(module.DataFrame(ROWS)).records()] == ROWS


def test_a_lazy_frame_of_polars() -> None:
    frame = pytest.importorskip("polars").DataFrame(ROWS).lazy()
    assert [record.values for record in Table(frame).records()] == ROWS


def test_what_is_missing_and_what_numpy_holds() -> None:
    cells = {"text": np.str_("x"), "label": np.int64(3), "score": float("nan"), "vector": np.array([1.0, 2.0])}
    assert next(Table([cells]).records()).values == {"text": "x", "label": 3, "score": None, "vector": [1.0, 2.0]}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (None, "data is a NoneType; give the name of a file"),
        (3, "data is a int; give the name of a file"),
        ({"text": "a"}, "column 'text' is no list"),
        ({"text": ["a"], "label": []}, "lists of different lengths: text has 1, label has 0"),
        ({"train": Dataset(), "test": Dataset()}, "the splits train, test: give one of them, such as data['train']"),
        ([{"text": "a"}, 7], "data row 2: a int where a dict or a (text, label) tuple is expected"),
        ([{"text": b"a"}], "data row 1, column 'text': a cell holds a bytes"),
    ],
)
def test_what_is_no_table(data: Any, words: str) -> None:
    with pytest.raises(UserError) as caught:
        list(Table(data).records())
    assert words in str(caught.value)


def test_bad_rows_in_memory_can_be_skipped() -> None:
    from weft.text.rows import Skipped

    skipped = Skipped()
    rows = [{"text": "a"}, {"text": object()}, {"text": "b"}]
    found = [record.values for record in Table(rows, on_bad_row="skip").records(skipped)]
    assert found == [{"text": "a"}, {"text": "b"}] and skipped.count == 1
    assert isinstance(Table(rows).data, MemoryRows)


def test_a_dict_is_a_section_of_a_recipe_or_columns_of_rows(tmp_path: Path) -> None:
    from weft.data.dataset import is_section
    from weft.runs.recipes import DataSection

    (tmp_path / "a.en").write_text("x\n")
    assert is_section({"files": ["a.csv"], "holdout": 0.2}, DataSection)
    assert is_section({"source": [str(tmp_path / "a.en")], "target": [str(tmp_path / "a.de")]}, DataSection)
    assert is_section({"source": "a.en", "target": "a.de"}, DataSection)
    assert not is_section({"text": ["a"], "label": ["b"]}, DataSection)
    assert not is_section({"source": ["a cat", "a dog"] * 2, "target": ["eine Katze", "ein Hund"] * 2}, DataSection)
    assert not is_section(ROWS, DataSection)

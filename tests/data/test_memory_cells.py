"""Cells and arrays of data frames that people have beside their texts."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from uuid import UUID

import numpy
import pandas

from weft.data.tables import Table


def values(data: object) -> list[dict[str, object]]:
    return [record.values for record in Table(data).records()]


def test_cells_that_can_be_written_as_text() -> None:
    frame = pandas.DataFrame({"text": ["a", "b"], "label": pandas.cut([1.0, 9.0], [0, 5, 10])})
    frame["month"] = pandas.period_range("2020-01", periods=2, freq="M")
    frame["lasts"] = [timedelta(hours=1), None]
    frame["id"] = [UUID(int=1), Path("b.txt")]
    first, second = values(frame)
    assert first["label"] == "(0, 5]" and second["label"] == "(5, 10]" and first["month"] == "2020-01"
    assert first["id"] == "00000000-0000-0000-0000-000000000001" and second["id"] == "b.txt"
    assert isinstance(first["lasts"], str) and second["lasts"] is None
    assert values([{"lasts": timedelta(hours=1)}]) == [{"lasts": "1:00:00"}]


def test_arrays_of_rows() -> None:
    pairs = [("a text", "yes"), ("another", "no")]
    wanted = [{"text": text, "label": label} for text, label in pairs]
    assert values(numpy.array(pairs)) == values(numpy.array(pairs, dtype=object)) == wanted
    assert values(pandas.DataFrame(wanted).to_records(index=False)) == wanted
    assert values(numpy.array(["a text"])) == [{"text": "a text"}]

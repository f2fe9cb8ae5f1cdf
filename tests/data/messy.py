"""Files as people have them: the same rows in every encoding, delimiter, format and folder that a table comes in."""

from __future__ import annotations

import csv
import io
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

GOOD = ("great", "lovely", "wonderful", "superb")
BAD = ("awful", "terrible", "broken", "poor")
REST = ("the", "screen", "arrived", "yesterday,", "and", "battery", "café", "shop", "naïve", "order;", "über", "it's")


def rows(count: int = 60) -> list[tuple[str, str]]:
    """Texts and their labels, which a small model learns in a moment."""
    chance = random.Random(3)
    found = []
    for number in range(count):
        label, words = (("positive", GOOD), ("negative", BAD))[number % 2]
        said = [*(chance.choice(REST) for _ in range(7)), *(chance.choice(words) for _ in range(2))]
        chance.shuffle(said)
        found.append((" ".join(said), label))
    return found


def delimited(data: Any, names: tuple[str, ...] | None, delimiter: str, end: str = "\n") -> str:
    """As csv.writer, and so pandas, writes it: quotes where they are needed."""
    out = io.StringIO()
    writer = csv.writer(out, delimiter=delimiter, lineterminator=end)
    if names is not None:
        writer.writerow(names)
    writer.writerows(data)
    return out.getvalue()


def excel(path: Path, data: list[tuple[str, str]]) -> None:
    import openpyxl

    book = openpyxl.Workbook()
    book.active.append(["Ticket Text", "Category ID"])
    for row in data:
        book.active.append(row)
    book.create_sheet("notes")
    book.save(path)


def folders(path: Path, data: list[tuple[str, str]]) -> None:
    for number, (text, label) in enumerate(data):
        (path / label).mkdir(parents=True, exist_ok=True)
        (path / label / f"{number}.txt").write_text(text, encoding="utf-8")


def dataset(path: Path, data: list[tuple[str, str]], metadata: bool = True) -> None:
    """As datasets.save_to_disk writes it."""
    import pyarrow

    names = ["negative", "positive"]
    features = {
        "text": {"dtype": "string", "_type": "Value"},
        "label": {"names": names, "_type": "ClassLabel"},
    }
    table = pyarrow.table({"text": [text for text, _ in data], "label": [names.index(label) for _, label in data]})
    if metadata:
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    path.mkdir(parents=True)
    half = len(data) // 2
    files = [(f"data-0000{n}-of-00002.arrow", part) for n, part in enumerate((table[:half], table[half:]))]
    for name, part in files:
        with pyarrow.OSFile(str(path / name), "wb") as file, pyarrow.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(part)
    (path / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name, _ in files]}))
    (path / "dataset_info.json").write_text(json.dumps({"features": features}))


def _bytes(make: Callable[[list[tuple[str, str]]], bytes]) -> Callable[[Path, list[tuple[str, str]]], None]:
    return lambda path, data: [path.write_bytes(make(data)), None][1]  # type: ignore[func-returns-value]


PLAIN = ("text", "label")
FILES: dict[str, Callable[[Path, list[tuple[str, str]]], None]] = {
    "bom.csv": _bytes(lambda data: b"\xef\xbb\xbf" + delimited(data, PLAIN, ",").encode()),
    "crlf.csv": _bytes(lambda data: delimited(data, ("Review", "Sentiment"), ",", "\r\n").encode()),
    "mac.csv": _bytes(lambda data: delimited(data, PLAIN, ",", "\r").encode()),
    "semicolons.csv": _bytes(lambda data: delimited(data, ("Ticket Text", "Category ID"), ";").encode()),
    "pipes.csv": _bytes(lambda data: delimited(data, ("review_text", "Class"), "|").encode()),
    "tabs.csv": _bytes(lambda data: delimited(data, PLAIN, "\t").encode()),
    "excel.csv": _bytes(lambda data: b"sep=;\r\n" + delimited(data, PLAIN, ";", "\r\n").encode()),
    "cp1252.csv": _bytes(lambda data: delimited(data, ("text", "label"), ";").encode("cp1252")),
    "utf16.csv": _bytes(lambda data: delimited(data, PLAIN, "\t").encode("utf-16")),
    "utf16-bare.csv": _bytes(lambda data: delimited(data, PLAIN, ",").encode("utf-16-le")),
    "odd-names.csv": _bytes(lambda data: delimited(data, ("Nachricht", "Abteilung"), ",").encode()),
    "no-header.csv": _bytes(lambda data: delimited([row[::-1] for row in data], None, ",").encode()),
    "no-header.tsv": _bytes(lambda data: delimited(data, None, "\t").encode()),
    "array.json": _bytes(lambda data: json.dumps([dict(zip(PLAIN, row, strict=True)) for row in data]).encode()),
    "rows.json": _bytes(
        lambda data: json.dumps({"v": 1, "rows": [dict(zip(PLAIN, row, strict=True)) for row in data]}).encode()
    ),
    "columns.json": _bytes(lambda data: json.dumps(dict(zip(PLAIN, zip(*data, strict=True), strict=True))).encode()),
    "lines.json": _bytes(
        lambda data: "".join(json.dumps(dict(zip(PLAIN, row, strict=True))) + "\n" for row in data).encode()
    ),
    "table.txt": _bytes(lambda data: delimited(data, PLAIN, "\t").encode()),
    "nameless": _bytes(lambda data: delimited(data, PLAIN, ",").encode()),
    "export.xlsx": excel,
    "classes": folders,
    "saved": dataset,
}

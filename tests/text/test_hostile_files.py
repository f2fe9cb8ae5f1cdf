"""Files made to fill the memory or never to end: one line that names the limit, before anything is unpacked."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import os
import socket
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import openpyxl
import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import pytest

from weft import files
from weft.cli import inputs
from weft.data.columns import text_in
from weft.data.shards import TextFiles
from weft.data.tables import Table
from weft.errors import UserError
from weft.text import arrow, json_rows, records, rows, sources, tables
from weft.text.records import find_files, read_records
from weft.text.rows import Skipped
from weft.text.tokenizers import tokenizer
from weft.text.tokenizers.training import learn


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def message(name: str, read: Callable[[str], object] = lambda name: list(Table(name).records())) -> str:
    """The one line that a file is refused with."""
    with pytest.raises(UserError) as caught:
        read(name)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# ------------------------------------------------------------------------------------------- what is no plain file


@pytest.mark.parametrize("suffix", ["zip", "gz", "xz", "txt", "csv", "jsonl", "json", "xlsx", "parquet", "arrow"])
@pytest.mark.parametrize("device", ["zero", "urandom"])
def test_a_device_is_refused(suffix: str, device: str) -> None:
    os.symlink(f"/dev/{device}", f"a.{suffix}")
    assert "is a device, not a file" in message(f"a.{suffix}")


def test_a_socket_is_refused() -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("a.csv")
        assert "is a socket, not a file" in message("a.csv")


@pytest.mark.parametrize("pattern", ["data", "data/*", "data/**/*.txt"])
def test_a_pipe_in_a_folder_is_left_out(pattern: str) -> None:
    Path("data").mkdir()
    Path("data/a.txt").write_text("a text\n")
    os.mkfifo("data/b.txt")
    os.symlink("/dev/zero", "data/c.txt")
    assert find_files(pattern) == [Path("data/a.txt")]


def test_training_text_is_no_pipe() -> None:
    os.mkfifo("a.txt")
    assert "is not a plain file" in message("a.txt", lambda name: TextFiles((name,), documents="line").hash())


def test_links_that_lead_in_circles() -> None:
    Path("data/deep").mkdir(parents=True)
    Path("data/deep/a.txt").write_text("a text\n")
    for name in "mnopq":
        os.symlink(".", f"data/{name}")
        os.symlink("..", f"data/deep/{name}")
    begun = time.monotonic()
    assert find_files("data/**/*.txt") == [Path("data/deep/a.txt")]
    assert find_files("**") == [Path("data/deep/a.txt")]
    assert time.monotonic() - begun < 5


def test_two_stars_stand_for_any_folders() -> None:
    for name in ("a/x.txt", "a/b/y.txt", "a/b/c/z.txt", "a/.hidden/q.txt", "a/b/.dot.txt", "t.txt"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("x\n")
    for pattern, names in {
        "**/*.txt": ["a/b/c/z.txt", "a/b/y.txt", "a/x.txt", "t.txt"],
        "a/**/b/*.txt": ["a/b/y.txt"],
        "a/**": ["a/b/c/z.txt", "a/b/y.txt", "a/x.txt"],
        "*/**/[xz].txt": ["a/b/c/z.txt", "a/x.txt"],
        "**/.dot.txt": ["a/b/.dot.txt"],
        f"{Path.cwd()}/**/y.txt": [f"{Path.cwd()}/a/b/y.txt"],
    }.items():
        assert find_files(pattern) == [Path(name) for name in names], pattern


# ------------------------------------------------------------------------------------------------------ compressed


@pytest.mark.parametrize("pack, name", [(gzip.compress, "a.txt.gz"), (lzma.compress, "a.txt.xz")])
def test_a_bomb(pack: Callable[[bytes], bytes], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MAX_UNPACKED", 1 << 20)
    Path(name).write_bytes(pack(b"a line\n" * 300_000))
    assert "over 200 times as much" in message(name)


def test_a_bomb_in_a_zip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MAX_UNPACKED", 1 << 20)
    with zipfile.ZipFile("a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(4):
            archive.writestr(f"{number}.txt", b"a line\n" * 100_000)
    assert "over 200 times as much" in message("a.zip")


def test_a_zip_of_too_many_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MAX_CONTENTS", 1000)
    with zipfile.ZipFile("a.zip", "w") as archive:
        for number in range(40):
            archive.writestr(f"{number}.txt", "a line\n")
    assert "its table of contents has more than" in message("a.zip")


# ---------------------------------------------------------------------------------------------------------- tables


def seconds(name: str) -> float:
    """CPU time of reading a table: the least of three, because a garbage collection may fall into any one of them."""
    times = []
    for _ in range(3):
        begun = time.process_time()
        assert len(list(Table(name).records())) == 3
        times.append(time.process_time() - begun)
    return min(times)


@pytest.mark.parametrize("name", ["c{}", "a"])
def test_a_wide_header_takes_linear_time(name: str) -> None:
    for count in (1_000, 8_000):
        names = ",".join(name.format(number) for number in range(count))
        Path(f"{count}.csv").write_text(names + ("\n" + ",".join(["x"] * count)) * 3)
    assert seconds("8000.csv") < 30 * max(seconds("1000.csv"), 0.02)  # 64 times where it is quadratic, and more


def test_names_that_come_again_are_numbered() -> None:
    assert tables._numbered(["a", "b", "a", "a.1", "a", "", "", "b"]) == [
        "a",
        "b",
        "a.2",
        "a.1",
        "a.3",
        "",
        "",
        "b.1",
    ]


def test_a_table_of_too_many_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MAX_COLUMNS", 5)
    Path("a.csv").write_text("a,b,c,d,e,f\n1,2,3,4,5,6\n")
    assert "6 columns; at most 5 are read" in message("a.csv")
    pyarrow.parquet.write_table(pyarrow.table({letter: ["x"] for letter in "abcdef"}), "a.parquet")
    assert "6 columns; at most 5 are read" in message("a.parquet")
    row = json.dumps(dict.fromkeys("abcdef", "x"))
    Path("a.jsonl").write_text(row)
    Path("a.json").write_text(f"[{row}]")
    assert all("6 columns; at most 5 are read" in message(name) for name in ("a.jsonl", "a.json"))
    Path("a.conll").write_text("a b c d e f g\n")
    assert "7 columns; at most 5 are read" in message("a.conll")


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_a_row_of_too_many_fields(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MAX_FIELDS", 100)
    mark = "," if name == "a.csv" else "\t"
    Path(name).write_text(f"text{mark}label\na b{mark}c\n" + mark * 200 + "\n")
    assert "a row of more than 100 fields" in message(name)


def test_few_long_rows_are_held_to_look_for_a_header(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "HEAD", 1000)
    options = rows.Options(header=False, columns=["a", "b"])
    source = sources.TextSource("a.csv", io.BytesIO(), ())
    for width, count, held in ((900, 200, 3), (1, 300, 200)):
        fields = ((number, ["x" * width, "a"], None) for number in range(count))
        next(tables._table(source, options, fields))
        assert sum(1 for _ in fields) == count - held


# ------------------------------------------------------------------------------------------------------------ JSON


@pytest.mark.parametrize(
    "name, text", [("a.json", '{"text": [%s]}'), ("a.jsonl", '{"text": [%s]}'), ("b.json", "[[%s]]")]
)
def test_json_of_too_many_values(name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_rows, "JSON_VALUES", 100_000)
    monkeypatch.setattr(json_rows, "JSON_VALUES", 100_000)
    Path(name).write_text(text % ",".join(["{}"] * 200_000))
    assert "values; at most 100000 are read" in message(name)


@pytest.mark.parametrize("name, text", [("a.json", '[{"text": %s}]'), ("a.jsonl", '{"text": %s}')])
def test_rows_of_lists_in_lists(name: str, text: str) -> None:
    Path(name).write_text(text % ("[" * 300 + "]" * 300))
    assert message(name).endswith("nested deeper than 100 levels")


def test_a_config_of_too_many_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_VALUES", 100)
    Path("config.json").write_text(json.dumps({"a": [{}] * 200}))
    assert "values; at most 100 are read" in message("config.json", lambda name: files.read_json(Path(name)))


def test_many_small_rows_of_json_are_read() -> None:
    Path("a.json").write_text(json.dumps([{"text": "x" * 100_000}, *[{}] * 3_000]))
    assert len(list(Table("a.json").records())) == 3_001


def test_a_file_of_bad_rows_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MAX_PROBLEMS", 50)
    Path("a.jsonl").write_text("{}\n" * 1000)
    with pytest.raises(UserError, match="at least 50 rows are wrong"):
        list(read_records("a.jsonl", columns=["text"]))


def test_rows_that_are_left_out_are_counted_not_held() -> None:
    skipped = Skipped()
    for number in range(1000):
        skipped.empty.add(f"a.jsonl line {number}")
    assert skipped.lines() == ["left out 1,000 empty rows; the first: a.jsonl line 0"]
    assert all(isinstance(value, int | str) for value in vars(skipped.empty).values())


# -------------------------------------------------------------------------------------------------- parquet and Arrow


def dictionary(text: str, count: int) -> pyarrow.Array:
    return pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * count, pyarrow.int32()), pyarrow.array([text]))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits that small files reach."""
    monkeypatch.setattr(sources, "MAX_UNPACKED", 1 << 20)
    monkeypatch.setattr(arrow, "LIMIT", 1 << 20)
    monkeypatch.setattr(arrow, "JSON_VALUES", 10_000)
    monkeypatch.setattr(arrow, "MAX_UNFOLDED", 8 << 20)
    monkeypatch.setattr(arrow, "BUDGET", 1 << 20)
    monkeypatch.setattr(arrow, "MAX_NESTED_VALUES", 50_000)
    monkeypatch.setattr(arrow, "LEAST_ROWS", 1000)


@pytest.mark.parametrize(
    "column, words",
    [
        (dictionary("x" * 100_000, 500), "over 200 times as much"),
        (pyarrow.array(["x" * 9_000_000]), "a page unpacks to 8 MiB; at most 8 are read"),
        (pyarrow.array(["x" * 2_000_000]), "over 200 times as much"),
        (pyarrow.array([[1] * 60_000]), "60,000 values in one row group; at most 50,000"),
        (pyarrow.array([[1] * 20_000]), "more than"),
        (pyarrow.nulls(1 << 20, pyarrow.string()), "rows; at most 16 a byte are read"),
    ],
    ids=["dictionary", "page", "value", "lists", "list", "rows"],
)
@pytest.mark.usefixtures("small")
def test_parquet_that_unfolds(column: pyarrow.Array, words: str) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"text": column}), "a.parquet", compression="zstd")
    assert Path("a.parquet").stat().st_size < 10_000
    assert words in message("a.parquet")


@pytest.mark.usefixtures("small")
def test_rows_of_parquet_are_unfolded_few_at_a_time() -> None:
    pyarrow.parquet.write_table(pyarrow.table({"text": dictionary("x" * 400_000, 10)}), "a.parquet")
    with open("a.parquet", "rb") as stream:
        metadata = pyarrow.parquet.ParquetFile("a.parquet").metadata
        assert arrow.parquet_rows(metadata, stream, "a", Path("a.parquet").stat().st_size, 256) == [2]


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("compression", ["none", "zstd", "snappy"])
def test_sound_parquet_is_read(version: str, compression: str) -> None:
    rows = [{"text": f"text {number}" * 50, "tags": ["a"] * (number % 7), "n": number} for number in range(3000)]
    table = pyarrow.Table.from_pylist(rows)
    how = {"data_page_version": version, "row_group_size": 700, "data_page_size": 2000, "write_page_index": True}
    pyarrow.parquet.write_table(table, "a.parquet", compression=compression, **how)
    assert [record.values for record in Table("a.parquet").records()] == rows


def write_stream(path: str, table: pyarrow.Table, options: pyarrow.ipc.IpcWriteOptions) -> None:
    with pyarrow.OSFile(path, "wb") as file, pyarrow.ipc.new_stream(file, table.schema, options=options) as writer:
        writer.write_table(table)


def write_file(path: str, table: pyarrow.Table, options: pyarrow.ipc.IpcWriteOptions) -> None:
    with pyarrow.OSFile(path, "wb") as file, pyarrow.ipc.new_file(file, table.schema, options=options) as writer:
        writer.write_table(table)


@pytest.mark.parametrize("write", [write_stream, write_file])
@pytest.mark.parametrize(
    "column, words",
    [
        (pyarrow.array(["x" * 100_000] * 100), "a batch unpacks to 9 MiB; at most 8 are read"),
        (dictionary("x" * 9_000_000, 5), "a dictionary unpacks to 8 MiB; at most 8 are read"),
        (dictionary("x" * 900_000, 500), "over 200 times as much"),
        (pyarrow.nulls(1 << 20), "rows; at most 16 a byte are read"),
        (pyarrow.array([[None] * 20_000], pyarrow.list_(pyarrow.null())), "more than"),
        (pyarrow.RunEndEncodedArray.from_arrays([400], ["x" * 500_000]), "more than"),
    ],
    ids=["batch", "dictionary", "repeated", "rows", "list", "runs"],
)
@pytest.mark.usefixtures("small")
def test_arrow_that_unfolds(
    write: Callable[[str, pyarrow.Table, pyarrow.ipc.IpcWriteOptions], None], column: pyarrow.Array, words: str
) -> None:
    write("a.arrow", pyarrow.table({"text": column}), pyarrow.ipc.IpcWriteOptions(compression="zstd"))
    assert words in message("a.arrow")


@pytest.mark.parametrize("write", [write_stream, write_file])
@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
def test_sound_arrow_is_read(
    write: Callable[[str, pyarrow.Table, pyarrow.ipc.IpcWriteOptions], None], compression: str | None
) -> None:
    rows = [{"text": f"text {number}" * 50, "tags": ["a"] * (number % 7), "n": number} for number in range(1000)]
    write("a.arrow", pyarrow.Table.from_pylist(rows), pyarrow.ipc.IpcWriteOptions(compression=compression))
    assert [record.values for record in Table("a.arrow").records()] == rows


TEXTS = [None if number % 7 == 3 else f"text {number}" * 5 for number in range(300)]


@pytest.mark.parametrize(
    "column",
    [
        pyarrow.array(TEXTS, pyarrow.string_view()),  # as Polars writes
        pyarrow.array(TEXTS, pyarrow.large_string()),
        pyarrow.DictionaryArray.from_arrays(  # one long entry that is rarely meant
            pyarrow.array([number % 9 for number in range(300)]), pyarrow.array([*map(str, range(9)), "x" * 100_000])
        ),
        pyarrow.array([number * 10**9 for number in range(300)]).dictionary_encode(),
        pyarrow.array([[(f"key {number}", "x" * 50)] for number in range(300)], pyarrow.map_("string", "string")),
    ],
    ids=["views", "large", "dictionary", "numbers", "maps"],
)
@pytest.mark.parametrize("suffix", ["arrow", "parquet"])
@pytest.mark.usefixtures("small")
def test_columns_are_as_large_as_their_rows(suffix: str, column: pyarrow.Array) -> None:
    table = pyarrow.table({"text": column})
    if suffix == "arrow":
        write_file("a.arrow", table, pyarrow.ipc.IpcWriteOptions(compression="zstd"))
    else:
        pyarrow.parquet.write_table(table, "a.parquet")
    assert [record.values["text"] for record in Table(f"a.{suffix}").records()] == column.to_pylist()


def test_a_view_that_is_no_text_spoils_its_row_only() -> None:
    column = pyarrow.array([b"a long enough text", b"\xff\xfe" * 10, b"b"], pyarrow.binary_view())
    table = pyarrow.table({"text": column.view(pyarrow.string_view())})
    write_file("a.arrow", table, pyarrow.ipc.IpcWriteOptions())
    rows = Table("a.arrow", on_bad_row="skip").records()
    assert [record.values["text"] for record in rows] == ["a long enough text", "b"]


# ----------------------------------------------------------------------------------------------------------- Excel


def changed_workbook(member: str, old: bytes, new: bytes) -> str:
    """A workbook in one file of which something else stands."""
    book = openpyxl.Workbook()
    for row in [["text", "label"], *[[f"some text {number}", "ab"[number % 2]] for number in range(20)]]:
        book.active.append(row)
    book.save("sound.xlsx")
    with zipfile.ZipFile("sound.xlsx") as sound, zipfile.ZipFile("a.xlsx", "w", zipfile.ZIP_DEFLATED) as changed:
        for name in dict.fromkeys([*sound.namelist(), member]):
            data = sound.read(name) if name in sound.namelist() else b"</sst>"
            assert name != member or old in data
            changed.writestr(name, data.replace(old, new) if name == member else data)
    return "a.xlsx"


SHEET = "xl/worksheets/sheet1.xml"


@pytest.mark.parametrize(
    "member, old, new, words",
    [
        (SHEET, b'<row r="21"', b'<row r="99999999999999"', "has a row after 1,048,576"),
        (SHEET, b"</sheetData>", b"<c/>" * 3000 + b"</sheetData>", "more than 1,000 tags in one piece"),
        ("xl/styles.xml", b"<fonts", b"<font/>" * 3000 + b"<fonts", "more than 1,000 tags in one piece"),
        ("xl/sharedStrings.xml", b"</sst>", b"<si><t/></si>" * 3000 + b"</sst>", "more than 2,000 tags in one piece"),
        (SHEET, b"</sheetData>", b"<row/>" * 3000 + b"</sheetData>", "has a row after"),
        (SHEET, b"</sheetData>", b" " * 3_000_000 + b"</sheetData>", "over 200 times as much"),
    ],
    ids=["row number", "cells", "styles", "strings", "rows", "ratio"],
)
def test_a_workbook_that_unfolds(
    member: str, old: bytes, new: bytes, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "MAX_UNPACKED", 1 << 20)
    monkeypatch.setattr(tables, "MAX_TAGS", 1000)
    monkeypatch.setattr(tables, "MAX_STRINGS", 2000)
    if new.startswith(b"<row/>"):
        monkeypatch.setattr(tables, "MAX_ROW", 2000)
    assert words in message(changed_workbook(member, old, new))


def test_a_sheet_that_claims_to_be_large() -> None:
    assert len(list(Table(changed_workbook(SHEET, b"A1:B21", b"A1:XFD1048576")).records())) == 20


@pytest.mark.parametrize(
    "rows", [b'<row r="22"><c r="XFD22"/></row>', b'<row r="9000"/>'], ids=["cells far to the right", "rows far below"]
)
def test_a_sheet_of_nothing_but_gaps(rows: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MAX_EMPTY", 5000)
    assert "more than 5,000 empty cells" in message(changed_workbook(SHEET, b"</sheetData>", rows + b"</sheetData>"))
    assert len(list(Table(changed_workbook(SHEET, b"</sheetData>", b'<row r="4000"/></sheetData>')).records())) == 20


# ------------------------------------------------------------------------------------------------------ long texts


def test_a_long_text_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MAX_LENGTH", 100)
    monkeypatch.setattr(tokenizer, "MAX_LENGTH", 100)
    vocabulary = learn(["a text of words"] * 9, "wordpiece", 60)
    words = "text 2 of 2: a text of 101 characters; at most 100 are read at a time: split it"
    assert message("", lambda _: vocabulary.ids(["a", "a" * 101])) == words
    assert "at most 50 are read" in message("", lambda _: vocabulary.encode("a" * 60))
    assert "at most 50 are read" in message("", lambda _: vocabulary.encode_batch([["a" * 30, "b" * 30]]))
    record = records.Record({"text": "a " * 60}, "a.csv line 2")
    assert message("", lambda _: text_in(record, "text")).startswith("a.csv line 2: column 'text': a text of 120")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"short\n" + b"a" * 101)))
    assert message("", lambda _: list(records.read_input())).startswith("standard input line 2: a text of 101")


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram", "word", "character"])
def test_a_long_text_in_parts_has_the_ids_of_the_whole(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "The loom was old, and it sang.  Two  spaces;\n\na line. " * 30
    vocabulary = learn(text.splitlines(), kind, 300)
    whole = vocabulary.ids([text, "short"], specials=False)
    monkeypatch.setattr(tokenizer, "TOGETHER", 200)
    monkeypatch.setattr(tokenizer, "PART", 97)
    assert vocabulary.ids([text, "short"], specials=False) == whole


def test_lines_are_read_ahead_by_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "CHARACTERS", 1000)
    taken = list[int]()

    def lines() -> Iterator[str]:
        for number in range(100):
            taken.append(number)
            yield "x" * 300

    rows = inputs.as_they_come(lines(), 256)
    first = next(rows)
    time.sleep(0.2)
    assert len(taken) <= len(first) + 5  # 1,000 characters ahead, and the one at hand
    assert sum(map(len, rows)) + len(first) == 100
    assert [len(some) for some in inputs.chunked(["x" * 600] * 3 + ["x"] * 8, 4)] == [1, 1, 2, 4, 3]

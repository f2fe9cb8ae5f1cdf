"""Readers: every format plain and sources, every fault one line with file and place, memory that stays small."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import os
import random
import subprocess
import sys
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from weft.errors import UserError
from weft.text import json_rows, sources, tables
from weft.text.records import find_files, read_records, read_texts
from weft.text.rows import BadRows, Skipped


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test works in an empty folder, so that names in messages are short."""
    monkeypatch.chdir(tmp_path)


def write(name: str, data: str | bytes) -> str:
    """A file with this content, compressed as its suffix says."""
    raw = data.encode() if isinstance(data, str) else data
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".gz":
        raw = gzip.compress(raw, 1)
    elif path.suffix == ".xz":
        raw = lzma.compress(raw, preset=0)
    elif path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(path.stem, raw)
        return name
    path.write_bytes(raw)
    return name


def values(*patterns: str | Path, **options: Any) -> list[dict[str, Any]]:
    return [record.values for record in read_records(patterns, **options)]


def places(*patterns: str | Path, **options: Any) -> list[str]:
    return [record.where for record in read_records(patterns, **options)]


def message(*patterns: str | Path, read: Callable[..., Iterator[Any]] = read_records, **options: Any) -> str:
    """What the one error says, or the first of several; it must be one line."""
    with pytest.raises(UserError) as caught:
        list(read(patterns, **options))
    text = caught.value.messages[0] if isinstance(caught.value, BadRows) else str(caught.value)
    assert text and "\n" not in text
    return text


def squad_file(articles: int = 2, padding: str = "") -> dict[str, Any]:
    """A small SQuAD 2.0 file: two questions an article, the second without an answer."""

    def article(number: int) -> dict[str, Any]:
        answer = {"text": f"town {number}", "answer_start": 8}
        questions = [
            {"id": f"q{number}a", "question": "Where?", "answers": [answer], "is_impossible": False},
            {"id": f"q{number}b", "question": "Why?", "answers": [], "is_impossible": True},
        ]
        return {
            "title": f"T{number}",
            "paragraphs": [{"context": f"This is town {number}.{padding}", "qas": questions}],
        }

    return {"version": "v2.0", "size": 1.5, "data": [article(number) for number in range(1, articles + 1)]}


TABLE = [{"label": "good", "text": "a fine film"}, {"label": "bad", "text": "höchst dull"}]
SENTENCES = [
    {"words": ["Ada", "wrote"], "tags": ["B-PER", "O"], "columns": [["Ada", "wrote"], ["B-PER", "O"]]},
    {"words": ["#", "x"], "tags": ["O", "O"], "columns": [["#", "x"], ["O", "O"]]},
]
SAMPLES: dict[str, tuple[str, list[dict[str, Any]], list[str]]] = {
    "a.txt": ("one\n\ntwo ü\n", [{"text": "one"}, {"text": "two ü"}], ["line 1", "line 3"]),
    "a.csv": ("label,text\ngood,a fine film\nbad,höchst dull\n", TABLE, ["line 2", "line 3"]),
    "a.tsv": ("label\ttext\ngood\ta fine film\nbad\thöchst dull\n", TABLE, ["line 2", "line 3"]),
    "a.jsonl": ("".join(json.dumps(row) + "\n" for row in TABLE), TABLE, ["line 1", "line 2"]),
    "a.conll": ("Ada\tB-PER\nwrote\tO\n\n#\tO\nx\tO\n", SENTENCES, ["line 1", "line 4"]),
}


# ------------------------------------------------------------------------------------------------------- the formats


@pytest.mark.parametrize("packed", ["", ".gz", ".xz", ".zip"])
@pytest.mark.parametrize("name", SAMPLES)
def test_every_format_plain_and_compressed(name: str, packed: str) -> None:
    text, expected, where = SAMPLES[name]
    write(name + packed, text)
    shown = f"{name}{packed}/{name}" if packed == ".zip" else name + packed
    assert values(name + packed) == expected
    assert places(name + packed) == [f"{shown} {place}" for place in where]


@pytest.mark.parametrize("name", SAMPLES)
def test_byte_order_mark_and_line_ends(name: str) -> None:
    text, expected, where = SAMPLES[name]
    write(name, b"\xef\xbb\xbf" + text.rstrip("\n").replace("\n", "\r\n").encode() + b"\r")  # a lone \r at the end
    assert values(name) == expected
    assert places(name) == [f"{name} {place}" for place in where]


def test_lines_across_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "CHUNK", 3)
    lines = ["grün", "a much longer line", "x", "", "é" * 9]
    write("a.txt", "\ufeff" + "\r\n".join(lines))
    assert [each["text"] for each in values("a.txt")] == [line for line in lines if line]


def test_blocks_are_documents() -> None:
    write("a.txt", "\n\none\nmore\n \t\n\ntwo\n")
    assert values("a.txt", documents="block") == [{"text": "one\nmore"}, {"text": "two"}]
    assert places("a.txt", documents="block") == ["a.txt line 3", "a.txt line 7"]


def test_csv_rows_over_several_lines_name_the_line_they_begin_on() -> None:
    write("a.csv", 'id,text\n1,"first\nsecond, ""quoted"""\n\n2,plain "words" here\n3,\n')
    assert [row["text"] for row in values("a.csv")] == ['first\nsecond, "quoted"', 'plain "words" here', ""]
    assert places("a.csv") == ["a.csv line 2", "a.csv line 5", "a.csv line 6"]


def test_csv_field_longer_than_the_module_allows() -> None:
    write("a.csv", "id,text\n1," + "x" * 200_000 + "\n")
    assert len(values("a.csv")[0]["text"]) == 200_000


def test_tsv_is_read_without_quotes() -> None:
    write("a.tsv", 'a\tb\n"open\t1\nnot " closed\t"2\n')
    assert values("a.tsv") == [{"a": '"open', "b": "1"}, {"a": 'not " closed', "b": '"2'}]


def test_table_without_a_header() -> None:
    write("a.tsv", "ham\tok\n")
    assert values("a.tsv", header=False, columns=["label", "text"]) == [{"label": "ham", "text": "ok"}]
    assert message("a.tsv", header=False) == "a.tsv: a file without a header line needs names for its 2 columns"
    assert message("a.tsv", header=False, columns=["a", "a"]) == "columns: 'a' is there twice"


def test_columns_that_must_be_there() -> None:
    write("a.csv", "label, text \n1,2\n")
    write("a.jsonl", '{"label": 1}\n')
    assert values("a.csv", columns=["text"]) == [{"label": "1", "text": "2"}]
    assert message("a.csv", columns=["txt"]) == "a.csv: no column 'txt'; it has label, text; did you mean 'text'?"
    assert message("a.jsonl", columns=["labels"]).startswith("a.jsonl line 1: no column 'labels'; it has label;")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "a.csv: empty: no header line"),
        ("\n\n", "a.csv: empty: no header line"),
        ("a,,c\n", "a.csv line 1: column 2 has no name"),
        ("text,b, text\n", "a.csv line 1: two columns are named 'text'"),
        ("a,b\n1,2\n1,2,3\n", "a.csv line 3: expected 2 fields, got 3"),
        ('a,b\n1,"x"y\n', 'a.csv line 2: a quote inside a quoted field must be doubled ("")'),
        ("a,b\n1,x\ry\n", "a.csv line 2: a carriage return in the middle of the row"),
    ],
)
def test_bad_tables(text: str, words: str) -> None:
    write("a.csv", text)
    assert message("a.csv") == words


def test_a_table_saved_by_pandas_with_its_index() -> None:
    write("a.csv", ",text\n0,one\n1,two\n")
    assert values("a.csv") == [{"column 1": "0", "text": "one"}, {"column 1": "1", "text": "two"}]


def test_delimiter() -> None:
    write("a.csv", 'a;b\n"1;1";2\n')
    assert values("a.csv", delimiter=";") == [{"a": "1;1", "b": "2"}]
    assert "is not one character" in message("a.csv", delimiter=";;")


@pytest.mark.parametrize("rest", ["", "3,plain\n", '3,"quoted"\n4,x\n', '3,he said "so"\n'])
@pytest.mark.parametrize("on_bad_row", ["stop", "skip"])
def test_unclosed_quote_always_stops_and_names_its_line(rest: str, on_bad_row: str) -> None:
    write("a.csv", 'a,b\n1,fine\n2,"open\n' + rest)
    assert message("a.csv", on_bad_row=on_bad_row) == "a.csv line 3: a quote opened here is not closed"


def test_unclosed_quote_does_not_take_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "LIMIT", 10_000)
    write("a.csv", 'a,b\n1,"open\n' + "2,x\n" * 10_000)
    assert message("a.csv").startswith("a.csv line 2: a quote opened here is not closed, or the row is longer than")


def test_json_lines_faults() -> None:
    deep = "[" * 100_000
    write("a.jsonl", '{"a": 1}\n{"a": }\n\n[1]\n{"a": "\\ud83d"}\n' + deep + '\n{"a": ' + "9" * 5000 + '}\n{"a": 2}\n')
    skipped = Skipped()
    assert values("a.jsonl", on_bad_row="skip", skipped=skipped) == [{"a": 1}, {"a": 2}]
    assert skipped.count == 5
    assert skipped.first == [
        "a.jsonl line 2: not JSON: expecting value (column 7)",
        "a.jsonl line 4: a JSON list where an object is expected",
        "a.jsonl line 5: holds half a surrogate pair, which is no character",
    ]
    assert str(skipped) == "skipped 5 bad rows; the first: a.jsonl line 2: not JSON: expecting value (column 7)"
    assert message("a.jsonl") == skipped.first[0]
    with pytest.raises(BadRows, match="5 rows are wrong"):
        values("a.jsonl")


def test_conll_comments_documents_and_hashes() -> None:
    write(
        "a.conll",
        "-DOCSTART- -X- O\n\n# text = a comment\n# 2 # I-NP\nit NN O\nis  VB O\n# # B-NP\n   \n# # I-NP\n#tag NN O\n",
    )
    found = list(read_records("a.conll"))
    assert [record.values["words"] for record in found] == [["it", "is", "#"], ["#", "#tag"]]
    assert [record.values["tags"] for record in found] == [["O", "O", "B-NP"], ["I-NP", "O"]]
    assert [record.where for record in found] == ["a.conll line 5", "a.conll line 9"]
    write("b.bio", "#\tO\n#NLP\tO\n\t\n# sent_id = 1\nx\tB\n")
    assert [each["words"] for each in values("b.bio")] == [["#", "#NLP"], ["x"]]
    write("c.iob", "one\ntwo\n")
    assert values("c.iob") == [{"words": ["one", "two"], "tags": [], "columns": [["one", "two"]]}]


def test_conll_row_of_another_width_spoils_its_sentence_only() -> None:
    write("a.conll", "a O\nb O\n\nc O\nd\ne O\n\nf O\n")
    assert message("a.conll") == "a.conll line 5: expected 2 columns, as in line 4, got 1"
    skipped = Skipped()
    assert [each["words"] for each in values("a.conll", on_bad_row="skip", skipped=skipped)] == [["a", "b"], ["f"]]
    assert skipped.count == 1


@pytest.mark.parametrize("chunk", [1, 7, 64 * 1024])
@pytest.mark.parametrize("indent", [None, 2])
def test_squad(chunk: int, indent: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "CHUNK", chunk)
    write("a.json", "\ufeff" + json.dumps(squad_file(3, ' é[{\\"'), indent=indent, ensure_ascii=False))
    found = list(read_records("a.json"))
    assert len(found) == 6
    context = 'This is town 3. é[{\\"'
    answers = [{"text": "town 3", "start": 8}]
    expected = {"id": "q3a", "title": "T3", "context": context, "question": "Where?", "answers": answers}
    assert found[4].values == {**expected, "impossible": False}
    assert (found[5].values["answers"], found[5].values["impossible"]) == ([], True)
    assert found[4].where == "a.json article 3 question q3a"


def test_squad_cut_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "CHUNK", 24)
    monkeypatch.setattr(json_rows, "CHUNK", 24)
    data = squad_file(3, " é😀 tail")
    data["data"][1].update(extra=[True, None, -1.5e10, {"deep": [False]}])
    for spaces in range(24):
        for ascii_only in (True, False):
            write("a.json", " " * spaces + json.dumps({"count": 1234.5, **data}, ensure_ascii=ascii_only))
            found = values("a.json")
            assert [each["id"] for each in found] == ["q1a", "q1b", "q2a", "q2b", "q3a", "q3b"]
            assert found[5]["context"] == "This is town 3. é😀 tail"


def test_squad_faults_in_a_question() -> None:
    data = squad_file(2)
    first = data["data"][0]["paragraphs"][0]["qas"]
    first[0]["answers"] = "a town"
    first[1]["id"] = 7
    data["data"].append({"title": "no paragraphs"})
    write("a.json", json.dumps(data))
    assert message("a.json") == "a.json article 1 paragraph 1 question 1: no list 'answers'"
    skipped = Skipped()
    assert [each["id"] for each in values("a.json", on_bad_row="skip", skipped=skipped)] == ["7", "q2a", "q2b"]
    assert skipped.first[1] == "a.json article 3: no list 'paragraphs'"


def test_squad_questions_that_nobody_has_answered() -> None:
    data = squad_file(1)
    first, _ = data["data"][0]["paragraphs"][0]["qas"]
    first.pop("answers")
    write("a.json", json.dumps(data))
    found = values("a.json")
    assert list(found[0]) == ["id", "title", "context", "question"] and "answers" in found[1]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("words", "a.json: 'w' where a JSON array of objects, or an object, is expected"),
        ('{"a": 1}', "a.json: no rows: give an array of objects, alone or under data, rows, or lines of JSON"),
        ('{"data": [{"a": tru}]}', "a.json row 1: ends too early: not JSON or cut short"),
        ('[{"a": 1}, tru]', "a.json row 2: ends too early: not JSON or cut short"),
        ('[{"a": 1}, {"a"', "a.json row 2: ends too early: not JSON or cut short"),
        ('{"data": [{"paragraphs": []}, {"title": "x', "a.json article 2: ends too early: not JSON or cut short"),
        ('{"data": [{"paragraphs": []} 1]}', "a.json after article 1: '1' where ',' is expected"),
        ('{"data": [{"paragraphs": []}', "a.json after article 1: ends too early: cut short"),
        ('{"data": [' + "[" * 100_000, "a.json row 1: nested too deeply"),
        (b'{"data": [{"x": "\xff"}]}', "a.json line 1: byte 0xff is not UTF-8 text"),
        (b'{"data":\n ["\xc3', "a.json line 2: ends in the middle of a character"),
    ],
)
def test_files_that_are_not_squad(text: str | bytes, words: str) -> None:
    write("a.json", text)
    assert message("a.json", on_bad_row="skip").startswith(words)


def test_squad_article_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_rows, "LIMIT", 1_000_000)
    write("a.json.gz", '{"data": [{"title": "' + "x" * 5_000_000)
    assert message("a.json.gz").startswith("a.json.gz row 1: this value is longer than")


def test_parquet(monkeypatch: pytest.MonkeyPatch) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [{"id": number, "text": f"text {number}"} for number in range(600)]
    parquet.write_table(pyarrow.Table.from_pylist(rows), "a.parquet")
    assert values("a.parquet") == rows
    assert places("a.parquet")[16] == "a.parquet row 17"
    assert message("a.parquet", columns=["txt"]).endswith("it has id, text; did you mean 'text'?")
    assert message("a.parquet", read=read_texts, column="id") == "a.parquet row 1: column 'id' holds int, not text"
    data = Path("a.parquet").read_bytes()
    write("cut.parquet", data[:-50])
    assert message("cut.parquet").startswith("cut.parquet: not a whole parquet file: ")
    write("bad.parquet", data[:4] + random.Random(1).randbytes(len(data) - 3000) + data[-2996:])
    assert message("bad.parquet").startswith("bad.parquet: not a whole parquet file")
    write("no.parquet", "words")
    assert message("no.parquet").startswith("no.parquet: not a whole parquet file: ")
    assert "plain file only" in message(write("b.parquet.gz", data))
    raw = pyarrow.array([b"ok", b"\xff", b"fine"]).cast(pyarrow.binary()).view(pyarrow.string())
    parquet.write_table(pyarrow.table({"text": raw}), "bytes.parquet")
    assert message("bytes.parquet") == "bytes.parquet row 2: bytes that are not UTF-8 text"
    assert values("bytes.parquet", on_bad_row="skip") == [{"text": "ok"}, {"text": "fine"}]
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert message("a.parquet") == "reading parquet needs pyarrow: pip install 'weft[data]'"


# ------------------------------------------------------------------------------------------------------------ texts


def test_texts_out_of_every_format() -> None:
    for name, (text, _, _) in SAMPLES.items():
        write(name, text)
    write("a.json", json.dumps(squad_file(2)))
    texts = {name: [each.text for each in read_texts(name)] for name in [*SAMPLES, "a.json"]}
    column = ["a fine film", "höchst dull"]
    assert texts == {
        "a.txt": ["one", "two ü"],
        "a.csv": column,
        "a.tsv": column,
        "a.jsonl": column,
        "a.conll": ["Ada wrote", "# x"],
        "a.json": ["This is town 1.", "This is town 2."],
    }
    assert next(read_texts("a.csv", column="label")) == ("good", "a.csv line 2")
    assert message("a.csv", read=read_texts, column="txt").endswith("did you mean 'text'?")


def test_texts_of_unknown_suffix_are_txt() -> None:
    for name in ("train.de.gz", "x.md", "README"):
        write(name, "ein Satz\n")
        assert [each.text for each in read_texts(name)] == ["ein Satz"]
        assert message(name) == f"{name}: neither its name nor its content shows its format; give --format: " + (
            "one of txt, csv, tsv, jsonl, parquet, arrow, conll, squad, json, xlsx"
        )
        assert values(name, format="txt") == [{"text": "ein Satz"}]


def test_texts_that_are_not_text() -> None:
    write("a.jsonl", '{"text": null}\n{"text": " "}\n{"text": "x"}\n{"other": "y"}\n')
    skipped = Skipped()
    assert list(read_texts("a.jsonl", on_bad_row="skip", skipped=skipped)) == [("x", "a.jsonl line 3")]
    assert skipped.first[0] == "a.jsonl line 1: column 'text' holds NoneType, not text"
    assert skipped.first[1] == "a.jsonl line 4: no column 'text'; it has other"


def test_a_context_is_a_text_once() -> None:
    data = squad_file(2)
    data["data"].append(data["data"][0])
    data["data"][1]["paragraphs"][0]["qas"] = []
    write("a.json", json.dumps(data))
    assert [each.text for each in read_texts("a.json")] == ["This is town 1.", "This is town 2."]


# --------------------------------------------------------------------------------------------------- broken files


def test_bad_byte_names_its_line_and_can_be_skipped() -> None:
    write("a.txt", b"fine\nalso\nb\xc3\xa4d \xff\nlast")
    assert message("a.txt") == "a.txt line 3: byte 0xff is not UTF-8 text"
    skipped = Skipped()
    assert len(values("a.txt", on_bad_row="skip", skipped=skipped)) == 3
    assert (skipped.count, skipped.first) == (1, ["a.txt line 3: byte 0xff is not UTF-8 text"])
    write("b.txt", b"one\n\xff\n\ntwo\n")
    assert values("b.txt", documents="block", on_bad_row="skip") == [{"text": "two"}]
    write("c.tsv", b"a\tb\n\xfe\t1\n2\t3\n")
    assert values("c.tsv", on_bad_row="skip") == [{"a": "2", "b": "3"}]


def test_bad_byte_inside_a_row_of_several_lines_skips_the_whole_row() -> None:
    write("a.csv", b'a,b\n1,"x\n\xff\ny"\n2,z\n')
    assert message("a.csv") == "a.csv line 3: byte 0xff is not UTF-8 text"
    assert values("a.csv", on_bad_row="skip") == [{"a": "2", "b": "z"}]


def test_bad_byte_in_the_header_always_stops() -> None:
    write("a.csv", b"a,\xff\n1,2\n")
    assert message("a.csv", on_bad_row="skip") == "a.csv line 1: byte 0xff is not UTF-8 text"


@pytest.mark.parametrize("name", [*SAMPLES, "a.json"])
def test_binary_always_stops(name: str) -> None:
    write(name, b"a,b\n\0\1\2")
    assert message(name, on_bad_row="skip") == f"{name} line 2: holds a NUL byte: a binary file, not text"


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.conll", "a.json", "a.txt.gz", "a.txt.xz"])
def test_empty_file_yields_nothing(name: str) -> None:
    assert values(write(name, "")) == []
    assert list(read_texts(name)) == []


def test_long_line_is_an_error() -> None:
    write("a.txt.gz", b"short\n" + b"x" * (sources.LIMIT + 100_000))
    assert message("a.txt.gz", on_bad_row="skip") == "a.txt.gz line 2: this line is longer than 64 MiB"


@pytest.mark.parametrize(("name", "what"), [("a.conll", "this sentence"), ("a.txt", "this block")])
def test_endless_block_is_an_error(name: str, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "LIMIT", 2**20)
    write(name, "\n" + "x O\n" * 10_000)
    assert message(name, documents="block") == f"{name} line 2: {what} is longer than 1 MiB"


@pytest.mark.parametrize("packed", [".gz", ".xz", ".zip"])
def test_truncated_and_corrupt_files(packed: str) -> None:
    noise = random.Random(0).randbytes(20_000).hex()
    name = write("a.txt" + packed, noise + "\n")
    whole = Path(name).read_bytes()
    for cut in (0, 1, 5, 20, len(whole) // 2, len(whole) - 1):
        Path(name).write_bytes(whole[:cut])
        assert message(name, on_bad_row="skip").startswith(name + ": ")
    for at in (len(whole) // 3, len(whole) // 2):
        Path(name).write_bytes(whole[:at] + bytes(each ^ 0x55 for each in whole[at : at + 64]) + whole[at + 64 :])
        assert message(name, on_bad_row="skip").startswith(name)
    Path(name).write_bytes(b"no archive at all, just words")
    assert message(name).startswith(f"{name}: damaged")


def test_random_damage_never_escapes_as_another_error() -> None:
    originals = {name + packed: text for name, (text, _, _) in SAMPLES.items() for packed in ("", ".gz", ".xz", ".zip")}
    originals["a.json"] = json.dumps(squad_file(2))
    chance = random.Random(3)
    for name, text in originals.items():
        data = bytearray(Path(write(name, text)).read_bytes())
        for _ in range(30):
            broken = bytearray(data)
            for _ in range(chance.randint(1, 4)):
                broken[chance.randrange(len(broken))] = chance.randrange(256)
            Path(name).write_bytes(broken)
            try:
                list(read_records(name, on_bad_row="skip"))
            except UserError as error:
                assert "\n" not in str(error)


def test_unreadable_files(tmp_path: Path) -> None:
    write("secret.txt", "x")
    Path("secret.txt").chmod(0)
    if os.geteuid():
        assert message("secret.txt") == "secret.txt: cannot be read: permission denied"
    else:  # root reads everything; ask as nobody
        source = Path(sources.__file__).parents[2]
        code = (
            "import os; from weft.errors import UserError; from weft.text.records import read_records\n"
            "os.setuid(65534)\n"
            "try: next(read_records('secret.txt'))\nexcept UserError as error: print(error)"
        )
        for folder in (tmp_path, *tmp_path.parents[:2]):
            folder.chmod(0o755)
        done = subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONPATH": str(source)}, capture_output=True, text=True
        )
        assert done.stdout.strip() == "secret.txt: cannot be read: permission denied", done.stderr
    Path("folder.txt").mkdir()
    with pytest.raises(UserError, match=r"^folder.txt: is a folder, not a file$"):
        list(sources.open_sources(Path("folder.txt")))


# ------------------------------------------------------------------------------------------------------ zip files


def test_zip_of_many_members() -> None:
    with zipfile.ZipFile("corpus.zip", "w") as archive:
        for name in ("b.txt", "sub/", "sub/c.csv", "a.txt", "__MACOSX/._a.txt", ".DS_Store"):
            archive.writestr(
                name, "text\nx\n" if name.endswith("csv") else f"{name} one\n{name} two\n" * (name[-1] != "/")
            )
    expected = ["a.txt line 1", "a.txt line 2", "b.txt line 1", "b.txt line 2", "sub/c.csv line 2"]
    assert places("corpus.zip") == [f"corpus.zip/{each}" for each in expected]
    assert places("corpus.zip/*.txt") == [f"corpus.zip/{each}" for each in expected[:4]]
    assert places("corpus.zip/b.txt") == [f"corpus.zip/{each}" for each in expected[2:4]]
    assert message("corpus.zip/d.txt").startswith("corpus.zip: no member 'd.txt'; did you mean '")


def test_zip_formats_of_members() -> None:
    with zipfile.ZipFile("rows.csv.zip", "w") as archive:
        archive.writestr("rows", "a,b\n1,2\n")
    assert values("rows.csv.zip") == [{"a": "1", "b": "2"}]
    Path("rows.csv.zip").rename("rows.zip")
    assert message("rows.zip").startswith("rows.zip/rows: neither its name nor its content shows its format")
    assert values("rows.zip", format="csv") == [{"a": "1", "b": "2"}]
    assert [each.text for each in read_texts("rows.zip")] == ["a,b", "1,2"]
    with zipfile.ZipFile("twice.zip", "w") as archive:
        archive.writestr("a.txt.gz", gzip.compress(b"x"))
    assert message("twice.zip") == "twice.zip/a.txt.gz: compressed inside the zip; unpack the zip first"
    zipfile.ZipFile("empty.zip", "w").close()
    assert message("empty.zip") == "empty.zip: holds no file"


def test_encrypted_zip() -> None:
    write("a.txt.zip", "hidden words")
    data = bytearray(Path("a.txt.zip").read_bytes())
    data[6] |= 1  # the flag, in the member's header and in the table of contents
    data[data.index(b"PK\1\2") + 8] |= 1
    Path("a.txt.zip").write_bytes(data)
    assert message("a.txt.zip") == "a.txt.zip/a.txt: encrypted; unpack it with its password first"


# -------------------------------------------------------------------------------------------------- finding files


def test_find_files() -> None:
    for name in ("b.txt", "a.txt", "sub/deep/c.txt.gz", "sub/d.csv", "sub/e.png", "sub/.hidden/f.txt", "odd[1].txt"):
        write(name, "x\n")
    write("sub/z.zip", "x\n")
    names = [str(path) for path in find_files(["*.txt", "a.txt"])]
    assert names == ["a.txt", "b.txt", "odd[1].txt"]
    assert find_files("odd[1].txt") == [Path("odd[1].txt")]
    assert [str(path) for path in find_files([Path("sub")])] == ["sub/d.csv", "sub/deep/c.txt.gz", "sub/z.zip"]
    assert [str(path) for path in find_files("**/*.txt*")][-1] == "sub/deep/c.txt.gz"
    assert find_files(["b.txt", "a.txt"]) == [Path("b.txt"), Path("a.txt")]
    assert find_files("-") == [Path("-")]


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("reviws.csv", "reviws.csv: no such file; did you mean 'reviews.csv'?"),
        ("dat/reviews.csv", "dat/reviews.csv: no such file; did you mean 'data'?"),
        ("data/zzz", "data/zzz: no such file"),
        ("*.nothing", "*.nothing: matches no file"),
        ("empty", "empty: holds no file of a known format (.txt, .csv, .tsv,"),
        ("", "'' is not the name of a file"),
        ("a\0b", "'a\\\\x00b' is not the name of a file"),
    ],
)
def test_patterns_that_match_nothing(pattern: str, words: str) -> None:
    write("reviews.csv", "a\n")
    write("data/reviews.csv", "a\n")
    Path("empty").mkdir()
    assert message(pattern).startswith(words)


def test_mistakes_are_told_before_anything_is_read() -> None:
    write("a.txt", "x")
    write("b.dat", "x")
    with pytest.raises(UserError, match="b.dat: neither its name nor its content shows its format"):
        read_records(["a.txt", "b.dat"])  # not even asked for the first record
    write("c.dat", '"text"x,label\n' * 4)  # no row of it can be read as a table
    assert message("c.dat").startswith("c.dat: neither its name nor its content shows its format")
    assert message("a.txt", format="conl").endswith("did you mean 'conll'?")
    assert message("a.txt", documents="page").startswith("documents 'page' is not one of auto, line, block")
    assert message("a.txt", on_bad_row="ignore").startswith("on_bad_row 'ignore' is not one of stop, skip")


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    def typed(text: str) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))

    typed("one\n\ntwo\n")
    assert places("-") == ["standard input line 1", "standard input line 3"]
    typed("one\ntwo\n")
    assert [each.text for each in read_texts("-")] == ["one", "two"]
    typed('{"a": 1}\n')
    assert values("-", format="jsonl") == [{"a": 1}]
    typed("a,b\n1\n")
    assert message("-", format="csv") == "standard input line 2: expected 2 fields, got 1"


def test_names_from_outside_are_shown_safely() -> None:
    write("a\nb.txt", b"\xff\n")
    assert message("a\nb.txt") == "a\\nb.txt line 1: byte 0xff is not UTF-8 text"


# --------------------------------------------------------------------------------------------------------- memory


def peak_megabytes(name: str, expected: int, **options: Any) -> float:
    """The most memory that Python held while it read a file of so many records."""
    tracemalloc.start()
    try:
        assert sum(1 for _ in read_records(name, **options)) == expected
        return tracemalloc.get_traced_memory()[1] / 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ["a.txt.gz", "a.csv.gz"])
def test_streaming_holds_little(name: str) -> None:
    write(name, b"text,more\n" + (b"word " * 600 + b",x\n") * 10_000)  # 30 MB
    assert peak_megabytes(name, 10_001 - name.count("csv")) < 3


def test_squad_holds_an_article_at_a_time() -> None:
    with gzip.open("a.json.gz", "wt", compresslevel=1) as file:  # 30 MB on one line
        file.write('{"version": "1.1", "data": [')
        article = json.dumps(squad_file(1, "x" * 100_000)["data"][0])
        file.write(", ".join([article] * 300))
        file.write("]}")
    assert peak_megabytes("a.json.gz", 600) < 3


def test_import_is_light() -> None:
    source = Path(sources.__file__).parents[2]
    code = (
        "import sys, weft.text.records; print([name for name in ('torch', 'numpy', 'pyarrow') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(source)}, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


# ------------------------------------------------------------------------------------------------------- real data

COLA = {"header": False, "columns": ["source", "label", "mark", "text"]}
REAL: list[tuple[str, int, dict[str, Any]]] = [
    ("sms_spam/sms.tsv.xz", 5574, {"header": False, "columns": ["label", "text"]}),
    ("glue/sst2/dev.tsv.xz", 872, {}),
    ("glue/cola/train.tsv.xz", 8551, COLA),
    ("glue/cola/dev.tsv.xz", 1043, COLA),
    ("glue/mrpc/train.tsv.xz", 3667, {"columns": ["Quality", "#1 String", "#2 String"]}),
    ("glue/mrpc/dev.tsv.xz", 408, {"columns": ["Quality", "#1 String", "#2 String"]}),
    ("glue/rte/train.tsv.xz", 2490, {}),
    ("glue/rte/dev.tsv.xz", 277, {}),
    ("glue/stsb/train.tsv.xz", 5749, {}),
    ("glue/stsb/dev.tsv.xz", 1500, {}),
    ("glue/wnli/train.tsv.xz", 635, {}),
    ("glue/wnli/dev.tsv.xz", 71, {}),
    ("wnut17/wnut17train.conll.xz", 3394, {}),
    ("wnut17/emerging.dev.conll.xz", 1009, {}),
    ("wnut17/emerging.test.annotated.xz", 1287, {"format": "conll"}),
    ("wikiann_en/test.xz", 10_000, {"format": "conll"}),
    ("nltk/conll2000.zip/conll2000/train.txt", 8936, {"format": "conll"}),
    ("xquad/xquad.en.json.xz", 1190, {}),
    ("squadshifts/new_wiki_v1.0.json.xz", 7938, {}),
    ("multi30k/test_2016_flickr.de.gz", 1000, {"format": "txt"}),
    ("multi30k/val.en.gz", 1014, {"format": "txt"}),
]


@pytest.mark.parametrize(("name", "count", "options"), REAL, ids=[each[0] for each in REAL])
def test_real_data(data: Path, name: str, count: int, options: dict[str, Any]) -> None:
    assert sum(1 for _ in read_records(data / name, **options)) == count


def test_real_tokens_that_look_like_comments(data: Path) -> None:
    sentences = list(read_records(data / "nltk/conll2000.zip/conll2000/*.txt", format="conll"))
    assert sum(each.values["words"].count("#") for each in sentences) == 47
    tweets = read_records(data / "wnut17/emerging.dev.conll.xz")
    assert sum(len(each.values["words"]) for each in tweets) == 15_733


def test_real_answers_stand_where_they_say(data: Path) -> None:
    for record in read_records(data / "xquad/xquad.en.json.xz"):
        for answer in record.values["answers"]:
            assert record.values["context"][answer["start"] :].startswith(answer["text"]), record.where


def test_what_many_files_share_is_noted_once() -> None:
    skipped = Skipped()
    for note in ("a.csv: delimiter ;", "plain", *(f"{number}.txt: read as jsonl" for number in range(25)), "other"):
        skipped.note(note)
    assert skipped.lines() == ["a.csv: delimiter ;", "plain", "0.txt and 24 other files: read as jsonl", "other"]

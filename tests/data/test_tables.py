"""The one reader of tables: messy files of every kind give the same rows, and what was found out is said."""

from __future__ import annotations

import contextlib
import csv
import json
import random
import time
from pathlib import Path
from typing import Any

import pytest

from tests.data import messy
from weft.data.columns import find_columns
from weft.data.dataset import examples_of
from weft.data.tables import Table
from weft.errors import UserError
from weft.tasks.classify import TextTask
from weft.text.records import Record, read_records
from weft.text.rows import Skipped

ROWS = messy.rows()


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(data: Any, **options: Any) -> tuple[list[tuple[str, str]], list[str]]:
    """Texts and labels as the task classify reads them, and the notes."""
    skipped = Skipped()
    task = TextTask("classify")
    examples = list(examples_of(Table(data, **options), ("text", "label"), task.read, skipped))
    return [(example.texts[0], example.target) for example in examples], skipped.lines()


def wrong(data: Any, **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        read(data, **options)
    return str(caught.value)


def write(name: str, text: str | bytes) -> str:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return name


# ------------------------------------------------------------------------------------------------------ messy files

NOTES = {
    "bom.csv": [],
    "crlf.csv": [],
    "mac.csv": [],
    "semicolons.csv": [
        "semicolons.csv: delimiter ';'",
        "semicolons.csv: column 'Ticket Text' is taken for the text, column 'Category ID' is taken for the label "
        "(--column text=NAME for another)",
    ],
    "pipes.csv": [
        "pipes.csv: delimiter '|'",
        "pipes.csv: column 'review_text' is taken for the text (--column text=NAME for another)",
    ],
    "tabs.csv": ["tabs.csv: delimiter '\\t'"],
    "excel.csv": ["excel.csv: delimiter ';'"],
    "cp1252.csv": [
        "cp1252.csv: not UTF-8; read as cp1252 (--encoding NAME for another)",
        "cp1252.csv: delimiter ';'",
    ],
    "utf16.csv": ["utf16.csv: read as UTF-16", "utf16.csv: delimiter '\\t'"],
    "utf16-bare.csv": ["utf16-bare.csv: read as UTF-16-LE, by its zero bytes"],
    "no-header.csv": ["no-header.csv: no header line; its columns are taken for label, text"],
    "no-header.tsv": ["no-header.tsv: no header line; its columns are taken for text, label"],
    "array.json": [],
    "table.txt": ["table.txt: read as tsv"],
    "nameless": ["nameless: read as csv"],
    "classes": [],
    "saved": [],
}


@pytest.mark.parametrize("name", messy.FILES)
def test_messy_files_give_the_same_rows(name: str, here: Path) -> None:
    if name == "export.xlsx":
        pytest.importorskip("openpyxl")
    messy.FILES[name](here / name, ROWS)
    found, notes = read(name)
    assert sorted(found) == sorted(ROWS)
    assert [note.replace("\\\\", "\\") for note in notes] == NOTES.get(name, notes)
    assert Table(name).hash() == Table(str(here / name)).hash()


def test_a_given_flag_stands_above_what_is_found() -> None:
    write("a.csv", "text,more;label\n" + "a b,c;x\nd e,f;y\n" * 3)
    assert read("a.csv", delimiter=";", columns={"text": "text,more"})[0][0] == ("a b,c", "x")
    write("b.csv", "text,label\ncaf\xe9,x\n".encode("latin-1"))
    assert read("b.csv", encoding="cp1250")[0] == [("caf\xe9", "x")]
    assert "encoding 'klingon' is not known" in wrong("b.csv", encoding="klingon")


# -------------------------------------------------------------------------------------------------------- encodings


def test_damaged_utf8_is_not_taken_for_another_encoding() -> None:
    lines = [f"naïve café número {n},x\n".encode() for n in range(100)]
    lines[50] = b"na\xefve,x\n"
    write("a.csv", b"text,label\n" + b"".join(lines))
    assert "a.csv line 52: byte 0xef is not UTF-8 text" in wrong("a.csv")
    found, notes = read("a.csv", on_bad_row="skip")
    assert len(found) == 99 and "skipped 1 bad row" in notes[-1]


def test_skip_refuses_to_drop_many_rows_for_their_bytes() -> None:
    lines = [b"na\xefve,x\n" if n % 10 == 0 else f"naïve café {n},x\n".encode() for n in range(200)]
    write("a.csv", b"text,label\n" + b"".join(lines))
    words = wrong("a.csv", on_bad_row="skip")
    assert words.startswith("a.csv: 20 of 200 rows are not UTF-8") and "--encoding NAME" in words


@pytest.mark.parametrize(("encoding", "text"), [("cp1251", "очень хороший фильм"), ("shift_jis", "とても良い映画")])
def test_letters_that_are_not_latin_need_a_name(encoding: str, text: str) -> None:
    write("a.csv", ("text,label\n" + f"{text},x\n" * 20).encode(encoding))
    assert "give --encoding NAME" in wrong("a.csv")
    assert read("a.csv", encoding=encoding)[0] == [(text, "x")] * 20


def test_texts_in_other_encodings_are_read_by_the_same_rule() -> None:
    from weft.data.shards import TextFiles

    write("book.txt", "Ein schöner Tag – für „alle“.\n".encode("cp1252"))
    assert list(TextFiles(("book.txt",)).read()) == ["Ein schöner Tag – für „alle“."]
    write("book16.txt", "Ein schöner Tag\r\nnoch einer\r\n".encode("utf-16"))
    assert list(TextFiles(("book16.txt",)).read()) == ["Ein schöner Tag", "noch einer"]


# ------------------------------------------------------------------------------------------------------- tsv, quotes


def test_tsv_as_pandas_writes_it() -> None:
    cells = [("two\nlines", "a"), ('he said "so"', "b"), ("a\ttab", "a"), ("plain", "b")]
    write("a.tsv", messy.delimited(cells, ("text", "label"), "\t"))
    assert read("a.tsv")[0] == cells
    quoted = "".join(f'"{text}"\t"{label}"\n' for text, label in [("text", "label"), ("one", "a"), ("two", "b")])
    write("b.tsv", quoted)
    assert read("b.tsv")[0] == [("one", "a"), ("two", "b")]


@pytest.mark.parametrize(
    "text",
    ['"Hello', '"Hello" he said', 'she said "yes', '"Hello"', '"Hello\n0\tthere"'],
    ids=["open", "inside", "end", "around", "over two lines"],
)
def test_quotes_that_are_letters_stay(text: str) -> None:
    write("a.tsv", f"label\ttext\n1\tplain\n0\t{text}\n1\tlast\n")
    expected = [("plain", "1"), *((line.split("\t")[-1], "0") for line in text.split("\n")), ("last", "1")]
    assert read("a.tsv")[0] == expected


# ------------------------------------------------------------------------------------------------- headers, columns


def test_a_header_is_kept_where_there_is_one() -> None:
    for names in ("Quality,String", "text,label", "q,a", ",text", "0,1", "id,comment"):
        write("a.csv", names + "\n" + "".join(f"{n % 2},words of row {n}\n" for n in range(8)))
        assert len(list(read_records("a.csv"))) == 8, names


def test_labels_that_are_called_like_columns_are_no_header() -> None:
    write("a.csv", "".join(f"{('question', 'comment')[n % 2]},some words of row {n}\n" for n in range(9)))
    assert read("a.csv")[0][:2] == [("some words of row 0", "question"), ("some words of row 1", "comment")]


def test_without_a_header_the_message_names_the_flag() -> None:
    write("a.csv", "".join(f"{n % 2},{n % 3},some words {n},other words {n}\n" for n in range(9)))
    assert wrong("a.csv").startswith("a.csv line 1: looks like data, not column names; ")
    assert "--names text,label" in wrong("a.csv")
    assert read("a.csv", names=("label", "x", "text", "y"))[0][0] == ("some words 0", "0")


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (("Ticket Text", "Category ID"), ("Ticket Text", "Category ID")),
        (("review_text", "class-name"), ("review_text", "class-name")),
        (("TEXT ", "Label"), ("TEXT ", "Label")),
        (("customerComment", "final_label"), ("customerComment", "final_label")),
    ],
)
def test_names_of_columns_are_forgiving(names: tuple[str, str], found: tuple[str, str]) -> None:
    record = Record(dict(zip(names, ("some words", "x"), strict=True)), "a.csv line 2")
    assert tuple(find_columns(("text", "label"), {}, record).values()) == found
    assert find_columns(("text",), {"text": names[0].lower().replace("_", " ")}, record)["text"] == names[0]


def test_columns_that_nothing_tells_are_asked_for() -> None:
    rows = "".join(f"{n},first words {n} here,second words {n} here\n" for n in range(20))
    write("a.csv", "Nr,Links,Rechts\n" + rows)
    assert wrong("a.csv") == "a.csv: no column 'text'; it has Nr, Links, Rechts; name it with --column text=Rechts"
    write("b.csv", "Nr,Betreff,Gruppe\n" + "".join(f"{n},some words {n} here,g{n}\n" for n in range(20)))
    words = wrong("b.csv")
    assert words.startswith("b.csv: no column 'label'; it has Nr, Betreff, Gruppe") and "--column label=" in words


def test_labels_like_ids_are_questioned() -> None:
    write("a.csv", "text,label\n" + "".join(f"words {n} here,{1000 + min(n, 37)}\n" for n in range(40)))
    examples = list(examples_of(Table("a.csv"), ("text", "label"), TextTask("classify").read, Skipped()))
    with pytest.raises(UserError, match="38 different labels for 40 rows, such as '1000': they look like ids"):
        TextTask("classify").fit_labels(examples)


# ----------------------------------------------------------------------------------------------------- rows left out


def test_empty_rows_and_rows_without_a_label_are_left_out_and_counted() -> None:
    write("a.csv", "text,label\none,a\n,b\n,\n ,a\ntwo,\nthree,nan\nfour,b\nfive,a\nsix,b\n")
    found, notes = read("a.csv")
    assert found == [("one", "a"), ("four", "b"), ("five", "a"), ("six", "b")]
    assert notes == [
        "left out 3 empty rows; the first: a.csv line 3",
        "left out 2 rows without a label; the first: a.csv line 6",
    ]
    write("b.csv", "text,label\n" + "word,\n" * 6 + "word,a\n")
    assert "6 of 7 rows have no label in column 'label': is it the label?" in wrong("b.csv")
    assert read([{"text": "a", "label": float("nan")}, {"text": "b", "label": 1}])[0] == [("b", "1")]


def test_all_problems_of_a_file_are_told_at_once() -> None:
    good = "".join(f"row {n},a\n" for n in range(5))
    write("a.csv", "text,label\n" + good + "one\n" + good + "a,b,c\n" + good)
    words = wrong("a.csv").splitlines()
    assert words[0].startswith("2 rows are wrong") and words[1:] == [
        "  a.csv line 7: expected 2 fields, got 1",
        "  a.csv line 13: expected 2 fields, got 3",
    ]
    write("b.csv", "text,label\n" + good + "a,b,c\n" * 15)
    words = wrong("b.csv").splitlines()
    assert len(words) == 12 and words[-1] == "  and 5 more"
    found, notes = read("b.csv", on_bad_row="skip")
    assert len(found) == 5 and notes[0].startswith("skipped 15 bad rows")
    write(
        "c.jsonl", "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in [("a", []), ("b", {})])
    )
    assert wrong("c.jsonl").count("not a label") == 2


# ------------------------------------------------------------------------------------------------ formats by content


@pytest.mark.parametrize("name", ["train.txt", "eng.testa", "train"])
def test_conll_under_any_name(name: str) -> None:
    write(name, "-DOCSTART- -X- O\n\nAda NNP I-PER\nsang VBD O\n\nin IN O\nRome NNP I-LOC\n")
    skipped = Skipped()
    found = [record.values["words"] for record in Table(name).records(skipped)]
    assert found == [["Ada", "sang"], ["in", "Rome"]] and skipped.lines() == [f"{name}: read as conll"]


def test_text_stays_text() -> None:
    write("a.txt", "One sentence, with a comma.\nAnother one, too.\n\n[brackets] here\nO my\n")
    assert [record.values["text"] for record in Table("a.txt").records()][1] == "Another one, too."


def test_unknown_files_are_named_with_the_flag() -> None:
    write("a.dat", "words\nmore words here\n")
    assert "give --format: one of txt, csv" in wrong("a.dat")
    write("old.xls", b"\xd0\xcf\x11\xe0 nothing")
    assert "old.xls" in wrong("old.xls")


def test_arrow_files_and_parquet_keep_names_of_classes(here: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet, feather = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow.feather")
    features = {"label": {"names": ["no", "yes"], "_type": "ClassLabel"}}
    table = pyarrow.table({"text": ["a b", "c d"], "label": [1, -1]})
    table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    parquet.write_table(table, "a.parquet")
    feather.write_feather(table, "a.feather")
    for name in ("a.parquet", "a.feather"):
        assert [record.values["label"] for record in Table(name).records()] == ["yes", None]
    messy.dataset(here / "bare", ROWS, metadata=False)  # names beside the files, as older versions leave them
    assert sorted(read("bare")[0]) == sorted(ROWS)


def test_damaged_arrow_files_are_told(here: Path) -> None:
    """Arrow itself checks nothing, and would read outside of its memory."""
    pytest.importorskip("pyarrow")
    chance = random.Random(4)
    messy.dataset(here / "saved", ROWS[:6])
    path = here / "saved/data-00000-of-00002.arrow"
    whole = path.read_bytes()
    for _ in range(60):
        broken = bytearray(whole)
        for _ in range(chance.randint(1, 6)):
            broken[chance.randrange(len(broken))] = chance.randrange(256)
        path.write_bytes(broken[: chance.choice((len(broken), chance.randrange(len(broken))))])
        with contextlib.suppress(UserError):
            list(Table("saved", on_bad_row="skip").records())


def test_splits_of_a_folder(here: Path) -> None:
    for split in ("train", "test"):
        messy.folders(here / "imdb" / split, ROWS if split == "train" else ROWS[:10])
        messy.dataset(here / "saved" / split, ROWS if split == "train" else ROWS[:10])
    (here / "saved/dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    (here / "imdb/README.txt").write_text("about")
    messy.folders(here / "imdb/train", [("no label", "unsup")])
    for name in ("imdb", "saved"):
        found, notes = read(name)
        assert len(found) == 60 and notes[0] == f"{name}: its split train is read; the others are {name}/test"
        assert len(read(name, split="test")[0]) == 10 and len(read(f"{name}/test")[0]) == 10
    assert "texts in unsup have no label and are left out" in read("imdb")[1][1]


def test_a_folder_by_its_content_alone(here: Path) -> None:
    messy.folders(here / "a", ROWS)
    messy.folders(here / "deep" / "b", ROWS)
    assert Table("a").hash() == Table("deep/b").hash()
    assert Table("a").paths(print) == [Path("a")]


def test_save_to_disk_itself(here: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["n", "y"])})
    data = datasets.Dataset.from_dict({"text": ["a b", "c d"], "label": [1, 0]}, features=features)
    data.save_to_disk("saved")
    assert read("saved")[0] == read(data)[0] == [("a b", "y"), ("c d", "n")]


def test_excel(monkeypatch: pytest.MonkeyPatch) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in (["text", "label", None], ["a b", 1.0], [None, None], ["c d", 2]):
        book.active.append(row)
    book.create_sheet("more").append(["x"])
    book.save("a.xlsx")
    found, notes = read("a.xlsx")
    assert found == [("a b", "1"), ("c d", "2")] and notes == ["a.xlsx: the sheet 'Sheet' is read, not more"]
    write("b.xlsx", "text,label\n")
    assert "b.xlsx: not an Excel workbook" in wrong("b.xlsx")
    monkeypatch.setattr("weft.text.tables.MAX_BYTES", 100)
    assert "a.xlsx: unpacks to more than" in wrong("a.xlsx")
    monkeypatch.setitem(__import__("sys").modules, "openpyxl", None)
    assert "pip install 'weft[excel]'" in wrong("a.xlsx")


def test_json_of_other_shapes() -> None:
    write("a.json", json.dumps({"rows": [{"row_idx": 0, "row": {"text": "a", "label": "x"}}]}))
    assert read("a.json")[0] == [("a", "x")]
    write("b.json", json.dumps({"text": {"0": "a", "1": "b"}, "label": {"0": "x", "1": "y"}}))
    assert read("b.json")[0] == [("a", "x"), ("b", "y")]
    write("c.json", json.dumps({"text": ["a"], "label": []}))
    assert "different lengths: text has 1, label has 0" in wrong("c.json")
    write("d.json", '[{"text": "a", "label": "x"}, 7]')
    assert wrong("d.json") == "d.json row 2: a JSON int where an object is expected"


def test_one_giant_cell_is_read_in_time() -> None:
    """A vocabulary used to be learned from a word of four million letters in the square of its length."""
    from weft.text.tokenizers.training import learn

    write("a.csv", "text,label\n" + "x1y2z" * 200_000 + ",a\nshort,b\n")
    began = time.process_time()
    texts = [text for text, _ in read("a.csv")[0]]
    learn(texts, "wordpiece", 200)
    assert len(texts[0]) == 1_000_000 and time.process_time() - began < 60


# -------------------------------------------------------------------------------------------------------- real data

REAL = {
    "glue/mrpc/train.tsv.xz": (3667, "Quality"),
    "glue/sst2/dev.tsv.xz": (872, "sentence"),
    "glue/rte/dev.tsv.xz": (277, "sentence1"),
    "glue/stsb/dev.tsv.xz": (1500, "score"),
    "glue/wnli/dev.tsv.xz": (71, "label"),
    "sms_spam/sms.tsv.xz": (5574, "text"),
}


@pytest.mark.parametrize("name", REAL)
def test_real_tables(name: str, data: Path) -> None:
    count, column = REAL[name]
    found = list(Table(data / name).records())
    assert len(found) == count and column in found[0].values
    lines = [record.values for record in read_records(data / name)]
    assert [record.values for record in found] == lines


def test_real_quotes_stay_letters(data: Path) -> None:
    import lzma

    for name in ("glue/mrpc/train.tsv.xz", "glue/rte/train.tsv.xz", "sms_spam/sms.tsv.xz"):
        raw = lzma.decompress((data / name).read_bytes()).decode("utf-8-sig")
        cells = [line.split("\t") for line in raw.split("\n") if line]
        skipped = Skipped()
        found = [list(record.values.values()) for record in Table(data / name).records(skipped)]
        assert [[cell.strip("\r") for cell in row] for row in cells][-len(found) :] == found


def test_real_file_without_a_header_is_told(data: Path) -> None:
    assert "--names text,label" in wrong(data / "glue/cola/dev.tsv.xz")
    found, notes = read(data / "sms_spam/sms.tsv.xz")
    assert {label for _, label in found} == {"ham", "spam"} and notes == [
        "sms.tsv.xz: no header line; its columns are taken for label, text"
    ]


def test_real_conll_under_other_names(data: Path) -> None:
    for name in ("wnut17/emerging.test.annotated.xz", "wikiann_en/dev.xz", "nltk/conll2000.zip/conll2000/test.txt"):
        assert set(next(Table(data / name).records()).values) == {"words", "tags", "columns"}


def test_csv_is_read_as_the_library_reads_it() -> None:
    chance = random.Random(5)
    letters = 'ab ,;"\n\té'
    cells = [["".join(chance.choices(letters, k=chance.randint(1, 12))) for _ in range(3)] for _ in range(200)]
    write("a.csv", messy.delimited(cells, ("x", "text", "label"), ","))
    with open("a.csv", newline="", encoding="utf-8") as file:
        expected = list(csv.reader(file))[1:]
    assert [list(record.values.values()) for record in Table("a.csv").records()] == expected == cells


def test_the_two_texts_of_boolq_are_recognized() -> None:
    record = Record({"question": "is it so", "passage": "It is so.", "idx": 0, "label": True}, "f line 1")
    assert find_columns(("text", "pair"), {}, record) == {"text": "question", "pair": "passage"}

"""Tables of predictions: every column stays, every row keeps its line, and an interrupted run continues."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.engines import need_engine
from tests.tasks.small import model_for
from weft.cli import inputs
from weft.cli.inputs import as_they_come
from weft.cli.main import run
from weft.data.table_writer import PartialTable
from weft.errors import UserError
from weft.files import check_new_folder, check_new_run
from weft.tasks import evaluate
from weft.tasks.model import Model
from weft.text.tokenizers.tokenizer import Tokenizer

LABELS = ("one", "two", "three")
TEXTS = ["a cat", "the cow is now", "oak, and flint", 'a "dog"', "an ant\nagain"]


@pytest.fixture
def model(wordpiece: Tokenizer) -> Model:
    made = model_for("classify", 3, wordpiece, LABELS)
    made.save("model")
    return made


def write_csv(path: str, header: list[str], rows: list[list[Any]]) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])


def read_table(path: str) -> list[dict[str, Any]]:
    match Path(path).suffix:
        case ".parquet":
            return pytest.importorskip("pyarrow.parquet").read_table(path).to_pylist()
        case ".jsonl":
            return [json.loads(line) for line in Path(path).read_text().splitlines()]
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter="\t" if path.endswith(".tsv") else ","))


@pytest.mark.parametrize("out", ["out.csv", "out.tsv", "out.jsonl", "out.parquet"])
def test_every_column_stays_and_predictions_are_added(out: str, model: Model) -> None:
    write_csv("in.csv", ["id", "text", "note"], [[f"00{n}", text, "x\ty"] for n, text in enumerate(TEXTS)])
    assert run(["predict", "model", "--data", "in.csv", "--out", out]) == 0
    rows = read_table(out)
    assert [list(row) for row in rows] == [["id", "text", "note", "prediction", "probability"]] * len(TEXTS)
    assert [(row["id"], row["text"], row["note"]) for row in rows] == [
        (f"00{n}", text, "x\ty") for n, text in enumerate(TEXTS)
    ]
    answers: list[Any] = model(TEXTS)
    assert [row["prediction"] for row in rows] == [answer.label for answer in answers]
    assert [float(row["probability"]) for row in rows] == pytest.approx([a.score for a in answers], abs=2e-6)
    assert not Path(f"{out}.partial").exists()


@pytest.mark.parametrize("out", ["out.csv", "out.jsonl", "out.parquet"])
def test_every_kind_of_answer(out: str, wordpiece: Tokenizer) -> None:
    cases: list[tuple[str, int, tuple[str, ...] | None, list[dict[str, Any]], list[str]]] = [
        ("multilabel", 3, LABELS, [{"text": "a cat"}], ["prediction", "probabilities"]),
        ("regress", 1, None, [{"text": "a cat"}], ["prediction"]),
        ("pair", 2, ("no", "yes"), [{"text": "a cat", "pair": "a dog"}], ["prediction", "probability"]),
        ("tag", 3, ("O", "B-PER", "I-PER"), [{"words": ["a", "cat"]}], ["prediction"]),
        ("answer", 2, None, [{"question": "what?", "context": "a cat"}], ["prediction", "probability", "start", "end"]),
        ("embed", 1, None, [{"text": "a cat"}], ["vector"]),
    ]
    for task, outputs, labels, rows, added in cases:
        made = model_for(task, outputs, wordpiece, labels)
        made.save(task)
        Path("in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        assert run(["predict", task, "--data", "in.jsonl", "--out", f"{task}-{out}"]) == 0
        found = read_table(f"{task}-{out}")
        assert list(found[0]) == [*rows[0], *added] and len(found) == 1
        given = list(rows[0].values())
        answer: Any = made([given[0] if len(given) == 1 else tuple(given)])[0]
        value = found[0][added[0]]
        if out.endswith(".jsonl"):
            assert value == answer.columns()[added[0]]
            if task == "tag":
                assert all(list(span) == ["start", "end", "label", "text", "probability"] for span in value)
        if task == "regress":
            assert float(value) == pytest.approx(answer.value, rel=1e-6)


def test_a_column_of_the_same_name_is_kept(model: Model, capsys: pytest.CaptureFixture[str]) -> None:
    write_csv("in.csv", ["text", "prediction", "prediction_2"], [["a cat", "mine", "too"]])
    assert run(["predict", "model", "--data", "in.csv", "--out", "out.csv"]) == 0
    (row,) = read_table("out.csv")
    assert list(row) == ["text", "prediction", "prediction_2", "prediction_3", "probability"]
    assert row["prediction"] == "mine" and row["prediction_2"] == "too" and row["prediction_3"] in LABELS
    assert "the data has a column 'prediction': the new one is 'prediction_3'" in capsys.readouterr().err


def test_rows_that_cannot_be_read_keep_their_line(model: Model, capsys: pytest.CaptureFixture[str]) -> None:
    Path("in.jsonl").write_text('{"n": 1, "text": "a cat"}\nno json\n{"n": 3, "text": " "}\n{"n": 4}\nno json\n')
    assert run(["predict", "model", "--data", "in.jsonl", "--out", "out.jsonl"]) == 0
    rows = read_table("out.jsonl")
    assert [row.get("n") for row in rows] == [1, None, 3, 4, None]
    assert rows[0]["prediction"] in LABELS and all(row["prediction"] is None for row in rows[1:])
    message = capsys.readouterr().err
    assert "4 of 5 rows have no prediction; the first: in.jsonl line 2: not JSON" in message
    assert run(["predict", "model", "--data", "in.jsonl"]) == 0
    lines = capsys.readouterr().out.split("\n")[:-1]
    assert len(lines) == 5 and {line.count("\t") for line in lines} == {2} and lines[1] == "\t\t"


class Stopped:
    """A model that is interrupted when it is asked once too often; counts the texts that it was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.texts, self.calls, self.after = 0, 0, 1 << 30
        ask = Model.__call__

        def asked(model: Model, texts: Any, /, **options: Any) -> Any:
            self.calls += 1
            if self.calls > self.after:
                raise KeyboardInterrupt
            self.texts += len(texts)
            return ask(model, texts, **options)

        monkeypatch.setattr(Model, "__call__", asked)
        monkeypatch.setattr(evaluate, "CHUNK", 2)
        monkeypatch.setattr(inputs, "MOMENT", 0.0)  # so that batches do not grow


@pytest.mark.parametrize("out", ["out.csv", "out.parquet"])
def test_an_interrupted_run_continues(
    out: str, model: Model, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_csv("in.csv", ["text"], [[text] for text in [*TEXTS, "", *TEXTS]])
    assert run(["predict", "model", "--data", "in.csv", "--out", f"whole-{out}"]) == 0
    stopped = Stopped(monkeypatch)
    stopped.after = 2
    command = ["predict", "model", "--data", "in.csv", "--out", out]
    capsys.readouterr()
    assert run(command) == 130
    assert f"4 rows are in {out}.partial; the same command continues" in capsys.readouterr().err
    partial = Path(f"{out}.partial")
    assert partial.exists() and not Path(out).exists()
    partial.write_bytes(partial.read_bytes() + b'[{"text": "a c')  # a killed process may leave half a row
    stopped.after, stopped.texts = 1 << 30, 0
    assert run(command) == 0
    message = capsys.readouterr().err
    assert f"{out}.partial has 4 rows already; continuing" in message and "1 of 11 rows has no prediction" in message
    assert stopped.texts == 6, "only what was left, without the empty row"
    assert Path(out).read_bytes() == Path(f"whole-{out}").read_bytes() and not partial.exists()


def test_a_partial_file_of_another_run_is_not_continued(
    model: Model, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wordpiece: Tokenizer
) -> None:
    write_csv("in.csv", ["text"], [[text] for text in TEXTS])
    model_for("classify", 2, wordpiece, LABELS[:2]).save("other")
    stopped = Stopped(monkeypatch)
    stopped.after = 1
    assert run(["predict", "model", "--data", "in.csv", "--out", "out.csv"]) == 130
    stopped.after = 1 << 30
    assert run(["predict", "other", "--data", "in.csv", "--out", "out.csv"]) == 2
    assert "out.csv.partial: is of another run (model changed)" in capsys.readouterr().err
    write_csv("in.csv", ["text"], [[text] for text in TEXTS[1:]])
    assert run(["predict", "model", "--data", "in.csv", "--out", "out.csv"]) == 2
    assert "out.csv.partial: is of another run (data changed)" in capsys.readouterr().err
    assert run(["predict", "model", "--data", "in.csv", "--out", "out.csv", "--overwrite"]) == 0
    assert [row["text"] for row in read_table("out.csv")] == TEXTS[1:]
    before = Path("out.csv").read_bytes()
    assert run(["predict", "other", "--data", "in.csv", "--out", "out.csv"]) == 2
    assert "out.csv: already there; choose another name, remove it, or give --overwrite" in capsys.readouterr().err
    assert Path("out.csv").read_bytes() == before
    assert run(["predict", "other", "--data", "in.csv", "--out", "out.csv", "--overwrite"]) == 0


def test_a_damaged_row_is_predicted_again(
    model: Model, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In every row of a partial file; what comes before it is kept."""
    write_csv("in.csv", ["text"], [[text] for text in TEXTS])
    assert run(["predict", "model", "--data", "in.csv", "--out", "whole.csv"]) == 0
    stopped = Stopped(monkeypatch)
    stopped.after = 2
    command = ["predict", "model", "--data", "in.csv", "--out", "out.csv"]
    assert run(command) == 130
    stopped.after = 1 << 30
    partial = Path("out.csv.partial")
    kept = partial.read_bytes()
    lines = kept.splitlines(keepends=True)
    assert len(lines) == 5
    for number in range(1, 5):
        broken = [bytearray(line) for line in lines]
        broken[number][-4] ^= 1  # a digit of a probability, or a letter
        partial.write_bytes(b"".join(broken))
        Path("out.csv").unlink(missing_ok=True)
        assert run(command) == 0
        assert Path("out.csv").read_bytes() == Path("whole.csv").read_bytes()
    capsys.readouterr()
    partial.write_bytes(bytes(broken[0][:-3]) + b"x\n" + kept)
    Path("out.csv").unlink()
    assert run(command) == 2
    assert "out.csv.partial: is of another run" in capsys.readouterr().err


def test_a_partial_file_without_a_row_is_not_in_the_way() -> None:
    PartialTable(Path("out.csv"), {"data": "a"}).close()
    assert not Path("out.csv.partial").exists()
    killed = PartialTable(Path("out.csv"), {"data": "a"})
    killed.file.close()
    assert Path("out.csv.partial").exists()
    PartialTable(Path("out.csv"), {"data": "b"}).close()


def test_killed_between_the_table_and_its_partial_file(
    model: Model, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_csv("in.csv", ["text"], [[text] for text in TEXTS])
    command = ["predict", "model", "--data", "in.csv", "--out", "out.csv"]
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", lambda self, missing_ok=False: None)
        assert run(command) == 0
    assert Path("out.csv.partial").exists()
    assert run(command) == 2 and "already there" in capsys.readouterr().err
    assert not Path("out.csv.partial").exists()


def test_two_processes_do_not_write_one_table() -> None:
    table = PartialTable(Path("out.csv"), {"model": "a"})
    with pytest.raises(UserError, match=r"out\.csv\.partial: another process is writing it"):
        PartialTable(Path("out.csv"), {"model": "a"})
    table.close()
    PartialTable(Path("out.csv"), {"model": "a"}).close()


def test_the_official_squad_file(wordpiece: Tokenizer, capsys: pytest.CaptureFixture[str]) -> None:
    made = model_for("answer", 2, wordpiece)
    made.save("qa")
    questions = [{"id": f"q{n}", "question": f"where is {n} ?", "answers": []} for n in range(4)]
    paragraph = {"context": "the cat is now in the oak", "qas": questions}
    Path("dev.json").write_text(json.dumps({"data": [{"title": "t", "paragraphs": [paragraph]}]}))
    assert run(["predict", "qa", "--data", "dev.json", "--out", "predictions.json"]) == 0
    answers: list[Any] = made([(question["question"], paragraph["context"]) for question in questions])
    predictions = json.loads(Path("predictions.json").read_text())
    assert predictions == {f"q{n}": answer.text for n, answer in enumerate(answers)}
    Path("bare.jsonl").write_text('{"question": "where ?", "context": "the cat"}\n')
    capsys.readouterr()
    assert run(["predict", "qa", "--data", "bare.jsonl", "--out", "bare.json"]) == 2
    assert "a SQuAD prediction file needs a column id or qid" in capsys.readouterr().err
    model_for("classify", 3, wordpiece, LABELS).save("model")
    write_csv("in.csv", ["text"], [["a cat"]])
    assert run(["predict", "model", "--data", "in.csv", "--out", "labels.json"]) == 2
    assert "a SQuAD prediction file is for models that answer" in capsys.readouterr().err


@pytest.mark.parametrize("engine", ["onnx", "ctranslate2"])
def test_exported_folders_predict_the_same(engine: str, model: Model) -> None:
    need_engine(engine)
    weft.export("model", engine, out="exported")
    write_csv("in.csv", ["text"], [[text] for text in TEXTS])
    for folder in ("model", "exported"):
        assert run(["predict", folder, "--data", "in.csv", "--out", f"{folder}.csv", "--device", "cpu"]) == 0
    ours, theirs = read_table("model.csv"), read_table("exported.csv")
    assert [row["prediction"] for row in ours] == [row["prediction"] for row in theirs]
    assert [float(r["probability"]) for r in ours] == pytest.approx([float(r["probability"]) for r in theirs], abs=1e-4)


# ------------------------------------------------------------------------------------------------------- printed


def test_tabs_for_programs_and_a_layout_for_people(
    model: Model, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["predict", "model", "a cat\tand\na cow"]) == 0
    label, probability, text = capsys.readouterr().out.removesuffix("\n").split("\t")
    assert label in LABELS and 0 < float(probability) < 1 and text == "a cat and a cow"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert run(["predict", "model", "a cat\tand\na cow"]) == 0
    assert capsys.readouterr().out == f"{label}  {float(probability):.4f}  a cat and a cow\n"


def test_json_keeps_the_id_of_a_row(model: Model, capsys: pytest.CaptureFixture[str]) -> None:
    write_csv("in.csv", ["text", "QID"], [["a cat", "q7"], ["", "q8"]])
    assert run(["predict", "model", "--data", "in.csv", "--jsonl"]) == 0
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert first["id"] == "q7" and first["input"] == "a cat" and first["label"] in LABELS
    assert second == {"id": "q8", "input": "", "error": "in.csv line 3: column 'text' is empty"}


def test_a_batch_is_what_is_there() -> None:
    go_on = threading.Event()

    def lines() -> Iterator[str]:
        yield "a"
        assert go_on.wait(20)
        yield from map(str, range(1000))
        raise UserError("line 1002 is bad")

    batches = as_they_come(lines(), 256)
    assert next(batches) == ["a"]
    go_on.set()
    rest: list[str] = []
    with pytest.raises(UserError, match="line 1002"):
        for batch in batches:
            assert len(batch) <= 256
            rest += batch
    assert rest == list(map(str, range(1000)))


def test_a_line_of_a_pipe_is_answered_at_once(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second line comes only after the first was answered."""
    answered, waited = threading.Event(), []
    reading, writing = os.pipe()

    class Watched(io.StringIO):
        def write(self, text: str) -> int:
            answered.set()
            return super().write(text)

    def write() -> None:
        os.write(writing, b"a\n")
        waited.append(answered.wait(30))
        os.write(writing, b"b\n")
        os.close(writing)

    screen = Watched()
    thread = threading.Thread(target=write)
    thread.start()
    with open(reading) as stream:
        monkeypatch.setattr("sys.stdin", stream)
        monkeypatch.setattr("sys.stdout", screen)
        assert run(["predict", "model"]) == 0
    thread.join()
    assert waited == [True]
    assert [line.split("\t")[2] for line in screen.getvalue().splitlines()] == ["a", "b"]


def test_a_full_folder_is_not_walked(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("full/deep/deeper").mkdir(parents=True)
    Path("locked/run").mkdir(parents=True)
    Path("locked/run/lock").write_text("1")
    asked: list[str] = []
    scandir = os.scandir

    def scanned(path: Any) -> Any:
        asked.append(str(path))
        return scandir(path)

    monkeypatch.setattr("os.scandir", scanned)
    for check in (check_new_folder, check_new_run):
        with pytest.raises(UserError, match="full: already there and not empty"):
            check(Path("full"))
    assert asked == ["full", "full"]
    check_new_run(Path("locked"))  # what a process leaves that was stopped at once
    Path("locked/run/more").write_text("")
    with pytest.raises(UserError, match="not empty"):
        check_new_run(Path("locked"))

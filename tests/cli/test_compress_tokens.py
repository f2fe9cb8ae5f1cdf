"""`weft distill` for tags, answers and vectors: rows that nobody has labeled, students with other tokens, mistakes."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.compress.lessons import model
from tests.tasks.small import questions, sentences, spanned, write_conll, write_rows
from weft.checkpoint.folder import LoadedModel
from weft.cli.main import run
from weft.tasks.model import Model

LABELS = ("O", "B-LOC", "B-PER", "I-PER")
SMALL = ["--student", "1x64", "--tokenizer", "learned", "--vocabulary", "200", "--steps", "4", "--out", "small"]


@pytest.fixture(scope="module")
def teachers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Teachers that have learned nothing, and say it with conviction."""
    folder = tmp_path_factory.mktemp("teachers")
    made: dict[str, LoadedModel] = {
        "tag": model("wordpiece", {"tag": 4}, labels=LABELS, task="tag"),
        "answer": model("wordpiece", {"answer": 2}, length=40, task="answer"),
        "embed": model("wordpiece", {}, task="embed", normalize=True),
    }
    for task, opened in made.items():
        Model(opened, task).save(folder / task)
    return folder


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, teachers: Path) -> Path:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("WEFT_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    for task in ("tag", "answer", "embed"):
        (tmp_path / task).symlink_to(teachers / task)
    plain = [" ".join(word for word, _ in words) for words in sentences(24)]
    (tmp_path / "lines.txt").write_text("".join(f"{line}\n" for line in plain))
    (tmp_path / "bare.conll").write_text("\n\n".join("\n".join(line.split()) for line in plain[:8]) + "\n")
    for name, seed in (("tagged.conll", 1), ("more.conll", 2)):
        write_conll(tmp_path / name, sentences(24, seed=seed))
    write_rows(tmp_path / "words.jsonl", [{"words": line.split()} for line in plain[8:16]])
    write_rows(tmp_path / "texts.jsonl", [{"text": row["text"]} for row in spanned(8)])
    write_rows(tmp_path / "asked.jsonl", [_asked(row) for row in questions(24)])
    for name, seed in (("answered.jsonl", 1), ("more.jsonl", 2)):
        write_rows(tmp_path / name, questions(24, none=True, seed=seed))
    csv = "question,context\n" + "".join(f"{row['question']},{row['context']}\n" for row in questions(8, seed=2))
    (tmp_path / "asked.csv").write_text(csv)
    asked = [{"id": str(n), "question": row["question"]} for n, row in enumerate(questions(6, seed=3))]
    paragraph = {"context": "Ada lives in Rome . Bo lives in Lima .", "qas": asked}
    (tmp_path / "asked.json").write_text(json.dumps({"data": [{"title": "homes", "paragraphs": [paragraph]}]}))
    return tmp_path


def _asked(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("question", "context")}


def _files(*names: str) -> list[str]:
    return [word for name in names for word in ("--data", name)]


def test_tags(capsys: pytest.CaptureFixture[str]) -> None:
    """From lines, words in files of several kinds, and tagged sentences; judged by such."""
    data = ["--text", "lines.txt", *_files("bare.conll", "words.jsonl", "texts.jsonl", "more.conll")]
    assert run(["distill", "tag", *data, "--dev", "tagged.conll", *SMALL]) == 0
    said = capsys.readouterr()
    assert "72 texts to learn from, 24 of them labeled" in said.err and "f1" in said.out
    small = weft.load("small")
    teacher = weft.load("tag")
    assert small.card.labels == LABELS and small.tokenizer and teacher.tokenizer
    assert small.tokenizer.tokens != teacher.tokenizer.tokens
    assert run(["predict", "small", "Ada goes to Rome"]) == 0 and "Rome" in capsys.readouterr().out


def test_tags_of_lines_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody has tagged anything: the student is judged by what its teacher says; with an LSTM's own vocabulary."""
    given = ["--student", "lstm:1x64", "--steps", "4", "--out", "small"]
    assert run(["distill", "tag", "--text", "lines.txt", *given]) == 0
    said = capsys.readouterr()
    assert "agreement" in said.out and "0 of them labeled" in said.err
    assert weft.load("small")("Ada goes").words[0].text == "Ada"  # type: ignore[attr-defined]


def test_answers(capsys: pytest.CaptureFixture[str]) -> None:
    data = _files("asked.jsonl", "asked.csv", "asked.json", "more.jsonl")
    assert run(["distill", "answer", *data, "--dev", "answered.jsonl", *SMALL]) == 0
    said = capsys.readouterr()
    assert "62 texts to learn from, 24 of them labeled" in said.err and "f1" in said.out
    context = "Ada lives in Rome . " * 12
    reply = weft.load("small")(("where lives Ada ?", context))
    assert reply.n_windows > 1 and not reply.truncated and context[reply.start : reply.end] == reply.text  # type: ignore[attr-defined]


@pytest.mark.slow
def test_answers_that_nobody_knows(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["distill", "answer", "--data", "asked.jsonl", *SMALL]) == 0
    assert "agreement" in capsys.readouterr().out


def test_vectors(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run(["distill", "embed", "--text", "lines.txt", "--data", "texts.jsonl", *SMALL, "--set", "data.holdout=0.3"])
        == 0
    )
    said = capsys.readouterr()
    assert all(name in said.out for name in ("agreement", "spearman", "pearson", "neighbors"))
    small = weft.load("small")
    assert (small.task, small.card.pooling, small.card.normalize) == ("embed", "mean", True)
    vector = small("Ada goes").values  # type: ignore[attr-defined]
    assert sum(value**2 for value in vector) == pytest.approx(1, abs=1e-5)
    assert run(["embed", "small", "Ada goes"]) == 0


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (
            "tag --data pairs.csv",
            "pairs.csv: no column 'text'; it has premise, hypothesis; premise, hypothesis are two texts",
        ),
        ("tag --data pairs.csv", "(the teacher's task is tag: its rows have text)"),
        ("tag --data wordless.jsonl", "wordless.jsonl line 2: there are no words"),
        ("tag --data other.conll", "other.conll line 1: label 'B-SHIP' is not one of O, B-LOC, B-PER, I-PER"),
        ("tag --data uneven.jsonl", "uneven.jsonl line 1: 2 words but 1 tags"),
        ("tag --text empty.txt", "empty.txt"),
        ("answer --text lines.txt", "a teacher for answer reads pairs: give --data FILE with the columns"),
        ("answer --data texts.jsonl", "texts.jsonl: no column 'question'; it has text"),
        ("answer --data elsewhere.jsonl", "elsewhere.jsonl line 1: answer 'Oslo' is not in its context"),
        ("embed --data asked.jsonl --column text=body", "asked.jsonl: no column 'body'; it has question, context"),
        ("embed --text few.txt", "too few"),
        ("embed --data texts.jsonl", "similarities of texts need at least 3 texts, not 1"),
        ("embed tag --text lines.txt", "is made for tag, the first teacher for embed"),
    ],
)
def test_mistakes_are_one_line(command: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    write_rows(Path("wordless.jsonl"), [{"words": ["Ada"]}, {"words": []}])
    Path("other.conll").write_text("Vasa B-SHIP\nsank O\n" * 4)
    write_rows(Path("uneven.jsonl"), [{"words": ["Ada", "goes"], "tags": ["O"]}] * 4)
    Path("empty.txt").write_text("\n\n")
    Path("pairs.csv").write_text("premise,hypothesis\n" + "Ada sings,Ada lives\n" * 8)
    Path("few.txt").write_text("one\ntwo\n")
    row = {"context": "Ada lives in Rome", "question": "where lives Ada ?", "answer": "Oslo"}
    write_rows(Path("elsewhere.jsonl"), [row] * 4)
    assert run(["distill", *shlex.split(command), *SMALL]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    rows_of_a_file = "rows are wrong" in said[0]  # all of them are listed, the first one first
    assert words in said[1 if rows_of_a_file else -1] and not Path("small").exists(), said

"""Vectors on the command line, as a new user meets them: numbers in, lines out, rows for others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.test_sequences import typed
from tests.tasks.small import write_rows
from tests.tasks.test_describe import rows, taught
from weft.cli.main import run

ROWS = rows(6, seed=4)
TEXTS = [row["text"] for row in ROWS]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    taught(folder, folder / "run")
    return folder / "run"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("WEFT_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_numbers_in_lines_out(made: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    write_rows(Path("v.jsonl"), [{"vector": row["vector"]} for row in ROWS])
    for verb in ("describe", "predict"):
        assert run([verb, str(made), "--data", "v.jsonl"]) == 0
        assert capsys.readouterr().out.splitlines() == TEXTS
    typed(monkeypatch, "".join(" ".join(map(str, row["vector"])) + "\n" for row in ROWS))
    assert run(["describe", str(made)]) == 0
    assert capsys.readouterr().out.splitlines() == TEXTS
    assert run(["describe", str(made), "-1.0 30 5", "[1.0, -30, 5]", "--beam-size", "1"]) == 0
    assert capsys.readouterr().out.splitlines() == ["a blue hut there", "a red barn"]
    assert run(["generate", str(made), "[1.0, -30, 5]"]) == 0
    assert capsys.readouterr().out == "a red barn\n"


def test_several_ways_models_and_rows_for_others(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_rows(Path("v.jsonl"), ROWS)
    given = ["describe", str(made), str(made), "--data", "v.jsonl", "--beam-size", "3", "--n", "2"]
    assert run(given) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [line[0] for line in lines] == [str(n) for n in range(1, 7) for _ in range(2)]
    assert [line[2] for line in lines[::2]] == TEXTS and all(
        float(a[1]) > float(b[1]) for a, b in zip(lines[::2], lines[1::2], strict=True)
    )
    assert run(["describe", str(made), "1 30 5", "--jsonl"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["input"] == [1.0, 30.0, 5.0] and found["text"] == "a red hut there" and found["finish_reason"] == "end"
    for name in ("out.jsonl", "out.tsv"):
        assert run([*given[:2], "--data", "v.jsonl", "--out", name]) == 0
        assert f"{name}: 6 vectors, 1 text each" in capsys.readouterr().err
        assert run(["evaluate", str(made), "--data", name]) == 0
        assert "exact           1.0000" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments, match",
    [
        (["1 2"], "vector 1: a vector of 2 numbers, where 3 are expected"),
        (["1 2 3", "1 x 3"], "vector 2: 'x', number 2 of 3, is no number"),
        (["1 2 3", "--bem", "3"], "vector 2: '--bem', number 1 of 1, is no number"),
        (["--data", "v.jsonl"], "v.jsonl line 2: a vector of 2 numbers, where 3 are expected"),
        (["--data", "w.jsonl"], "w.jsonl: no column 'vector'; it has text"),
        (["--data", "v.jsonl", "1 2 3"], "give vectors or --data, not both"),
        (["1 2 3", "--beam-size", "1000"], "a beam of 1000 is wider than the vocabulary"),
        (["1 2 3", "--n", "0"], "--n must be 1 or more, not 0"),
        (["1 2 3", "--max-tokens", "0"], "max_tokens must be at least 1, not 0"),
        (["1 2 3", "--beam-size", "3", "--temperature", "1"], "beam search does not sample"),
        (["1 2 3", "--out", "x.csv"], "x.csv: rows are written as .tsv or .jsonl"),
    ],
)
def test_slips_are_one_line(made: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], match: str) -> None:
    write_rows(Path("v.jsonl"), [{"vector": [1, 2, 3]}, {"vector": [1, 2]}, {"vector": [1, 30, 5]}])
    write_rows(Path("w.jsonl"), [{"text": "x"}])
    assert run(["describe", str(made), *arguments]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and said[0].startswith("weft describe: ") and match in said[0], said


def test_bad_rows_may_be_skipped_and_other_models_are_told_apart(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rows(Path("v.jsonl"), [{"vector": [1, 30, 5]}, {"vector": [1, 2]}, {"vector": [-1, 30, 5]}])
    assert run(["describe", str(made), "--data", "v.jsonl", "--on-bad-row", "skip"]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines() == ["a red hut there", "a blue hut there"] and "skipped 1 bad row" in said.err
    assert run(["translate", str(made), "some words"]) == 2
    assert "writes from vectors, not from texts: weft describe" in capsys.readouterr().err
    assert run(["info", str(made)]) == 0 and "describe" in capsys.readouterr().out

"""Texts written from others on the command line, as a new user meets them: lines in, lines out, rows for others."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest

from tests.tasks.written import learned, worded, write_sides
from weft.cli.main import run

PAIRS = worded(20)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    learned(folder, folder / "run")
    return folder / "run"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("WEFT_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def typed(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8"))


def test_lines_in_lines_out(made: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    sources = [pair[0] for pair in PAIRS]
    typed(monkeypatch, "\n".join([*sources[:3], "", *sources[3:]]) + "\n")
    assert run(["translate", str(made)]) == 0
    right = [pair[1] for pair in PAIRS]
    assert capsys.readouterr().out == "\n".join([*right[:3], "", *right[3:]]) + "\n"
    for verb in ("summarize", "rewrite", "predict"):
        assert run([verb, str(made), sources[0], sources[1]]) == 0
        assert capsys.readouterr().out.splitlines() == right[:2]


def test_several_models_and_several_ways(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = PAIRS[0]
    assert run(["translate", str(made), str(made), source, "--n", "2", "--alignments"]) == 0
    first, second, *links = capsys.readouterr().out.splitlines()
    assert re.fullmatch(rf"1\t-\d\.\d{{4}}\t{source}\t{target}", first) and second.startswith("1\t-")
    assert [link.split()[0] for link in links] == [*target.split(), "</s>"]
    assert all(re.fullmatch(r"  \S+ <- \S+  [01]\.\d\d", link) for link in links)
    assert run(["translate", str(made), source, "--jsonl"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["text"] == target and found["finish_reason"] == "end" and found["best"][0]["text"] == target
    assert (
        run(["translate", str(made), "one two three four five six. one two three four five", "--max-tokens", "2"]) == 0
    )
    said = capsys.readouterr().err
    assert "[text 1 was read in 2 pieces]" in said and "[1 of 1 texts did not end and were stopped" in said


def test_pictures(made: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["translate", str(made), PAIRS[0][0], "--picture", "a.svg"]) == 0
    svg = (here / "a.svg").read_text()
    words = len(PAIRS[0][0].split()) + 1
    assert svg.startswith("<svg") and svg.count("<rect") == words * words and svg.count(">Katze<") == 1
    assert run(["translate", str(made), PAIRS[0][0], PAIRS[1][0], "--picture", "b.html"]) == 0
    assert (here / "b.html").read_text().count("<svg") == 2
    capsys.readouterr()
    for name, words_said in (
        ("c.png", "a picture is written as .html or .svg"),
        ("c.svg", "2 texts do not go into one"),
    ):
        assert run(["translate", str(made), "one", "two", "--picture", name]) == 2
        assert words_said in capsys.readouterr().err and not (here / name).exists()


@pytest.mark.parametrize("name", ["back.tsv", "back.jsonl"])
def test_rows_that_others_learn_from(made: Path, name: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What one model wrote, turned round, is what the next learns to translate back."""
    texts = [pair[0] for pair in PAIRS[:8]]
    assert run(["translate", str(made), *texts, "", "--n", "2", "--out", name, "--reverse"]) == 0
    said = capsys.readouterr()
    assert said.out == "" and f"{name}: 9 texts, 2 ways each" in said.err
    small = ["--model", "transformer", "--size", "1x64", "--set", "tokenizer.kind=word", "--metric", "loss"]
    flags = ["--steps", "1", "--separate-vocabularies", "--out", "runs/back", "--set", "data.holdout=0.3"]
    assert run(["finetune", "--task", "translate", "--data", name, *small, *flags]) == 0
    out, said_now = capsys.readouterr()
    assert "held-out score" in out and "loss" in out and (here / "runs/back/target_tokenizer").is_dir()
    assert "training rows" in said_now


def test_judging(made: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = write_sides(here, PAIRS)
    flags = ["--source", str(source), "--target", str(target), "--beam-size", "2", "--out", "page.html"]
    assert run(["evaluate", str(made), *flags]) == 0
    said = capsys.readouterr().out
    assert re.search(r"^BLEU: nrefs:1\|case:mixed\|eff:no\|tok:13a\|smooth:exp\|version:", said, re.M)
    assert re.search(r"^bleu +100\.0000 +\d", said, re.M) and re.search(r"^length_ratio +1\.0000", said, re.M)
    assert "tok:13a" in (here / "page.html").read_text()
    assert run(["evaluate", str(made), "--source", str(target), "--target", str(source), "--beam-size", "1"]) == 0
    found = capsys.readouterr()
    assert "weft: note: t.de, t.en: source and target look as if they were swapped" in found.err
    assert "Worst mistakes" in found.out


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["evaluate", "RUN"], "no data: give --data FILE"),
        (["evaluate", "RUN", "--source", "a.en"], "--source has nothing beside it: give --target FILE too"),
        (["evaluate", "RUN", "--source", "a.en", "--target", "b.de"], "line 2 of a.en has no other in b.de"),
        (["translate", "RUN", "one", "--beam-size", "0"], "beam_size must be at least 1, not 0"),
        (["translate", "RUN", "one", "--n", "7"], "a beam of 5 gives 1 to 5 texts, not 7"),
        (["translate", "RUN", "one", "--reverse"], "--reverse is for the rows of a file: give --out FILE too"),
        (["translate", "RUN", "one", "--out", "x.csv"], "x.csv: rows are written as .tsv or .jsonl"),
        (["translate", "nowhere", "one"], "'nowhere' is neither a folder nor in the local"),
        (["translate", "RUN", "models/b", "one"], "'models/b' is not a model folder: it has no config.json"),
        (["finetune", "--task", "translate", "--out", "r", "--model", "transformer"], "or --source FILE and"),
        (
            ["finetune", "--task", "translate", "--source", "a.en", "--out", "r", "--model", "gpt2"],
            "translate needs a model that reads one text and writes another",
        ),
        (
            ["finetune", "--task", "translate", "--source", "a.en", "--target", "b.de", "--out", "r",
             "--model", "transformer", "--metric", "f1"],
            "line 2 of a.en has no other in b.de",
        ),
    ],
)  # fmt: skip
def test_mistakes_get_one_line(
    flags: list[str], line: str, made: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "models").mkdir()
    (here / "a.en").write_text("one\ntwo\n")
    (here / "b.de").write_text("eins\n")
    assert run([str(made) if flag == "RUN" else flag for flag in flags]) == 2
    said = capsys.readouterr()
    last = said.err.strip().splitlines()[-1]
    assert line in last and last.startswith(f"weft {flags[0]}: ") and "Traceback" not in said.err
    assert not (here / "r").exists() or not any((here / "r").iterdir())

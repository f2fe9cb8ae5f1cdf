"""`weft ladder` and `weft suggest` as a user meets them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_verbs import ok, refused
from tests.training.small import stories
from weft.cli.main import run


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A text and a ladder of two rungs, one of which cannot learn, made by the command line."""
    place = tmp_path_factory.mktemp("ladder")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WEFT_CACHE", str(place / "cache"))
        (place / "stories.txt").write_text(stories(40))
        begun = ["ladder", "--text", str(place / "stories.txt"), "--out", str(place / "l"), "--tokens", "1k"]
        begun += ["--models", "ngram-2,unigram", "--vocabulary", "300", "--parallel", "0", "--prompt", "The weaver"]
        assert run([*begun, "--set", "ngram-2.model.smoothing=maximum-likelihood"]) == 0
        yield place


def test_the_table_and_what_the_folder_holds(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = ok(capsys, "ladder", "--out", place / "l")  # all is there: it is only told again
    header, first, second, *_ = said.splitlines()
    assert header.split()[:2] == ["model", "bits/byte"] and first.startswith("ngram-2") and second.startswith("unigram")
    assert "infinite" in first, "a pair that was never seen has no chance under maximum likelihood"
    assert "The unigram predicted the held-out text best" in said
    found = json.loads((place / "l" / "ladder.json").read_text())
    assert found["budget"] == {"tokens": 1000, "size": "small"} and found["text"]["vocabulary"]["kind"] == "bpe"
    assert found["rungs"][0]["sample"]["prompt"] == "The weaver"
    assert "The weaver" in (place / "l" / "index.html").read_text()
    assert ok(capsys, "resume", place / "l") == said


def test_a_ladder_of_failures_is_a_failure(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    begun = ["ladder", "--text", str(place / "stories.txt"), "--out", str(tmp_path / "l"), "--tokens", "1k"]
    begun += ["--models", "transformer,lstm", "--vocabulary", "300", "--parallel", "0"]
    assert run([*begun, "--set", "transformer.model.heads=7", "--set", "lstm.model.layers=0"]) == 2
    assert "every rung failed: transformer, lstm" in capsys.readouterr().err


def test_mistakes(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = place / "stories.txt"
    assert "rung 'ngram-9' is not one of uniform" in refused(
        capsys, "ladder", "--text", text, "--out", tmp_path / "l", "--models", "ngram-9"
    )
    assert refused(capsys, "ladder", "--text", text) == ("weft ladder: no folder for the ladder: give --out FOLDER")
    assert "--tokens many: must be a number" in refused(
        capsys, "ladder", "--text", text, "--out", "l", "--tokens", "many"
    )
    assert "RUNG.SECTION.KEY=VALUE" in refused(capsys, "ladder", "--out", "l", "--set", "width=3")
    assert "already holds a ladder with ladder.tokens 1000, not 2000" in refused(
        capsys, "ladder", "--out", place / "l", "--tokens", 2000
    )
    assert "nowhere.txt" in refused(capsys, "ladder", "--text", tmp_path / "nowhere.txt", "--out", tmp_path / "l")
    assert "letters, digits and hyphens, and not run" in refused(
        capsys, "ladder", "--text", text, "--out", tmp_path / "l", "--models", "run", "--set", "run.model.family=gpt2"
    )
    assert not (tmp_path / "l").exists()
    assert "give at least one model folder" in refused(capsys, "suggest", place / "l" / "unigram")
    assert "none of these is a model that predicts the next word" in refused(
        capsys, "suggest", place / "l", place / "cache", "The"
    )


def test_suggestions_side_by_side(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = sorted((place / "l").iterdir())
    status = run(["suggest", *map(str, names), "The weaver", "--top", "3"])
    said = capsys.readouterr()
    assert status == 0
    assert "left out" in said.err and "index.html" in said.err and len(said.err.splitlines()) == 1
    first, header, *rows = said.out.splitlines()
    assert first == "next words after: The weaver" and header.split() == ["ngram-2", "unigram"]
    assert len(rows) == 3 and all(row.count("%") == 2 for row in rows)
    told = json.loads(ok(capsys, "suggest", place / "l" / "ngram-2", place / "l" / "unigram", "The weaver", "--json"))
    assert [model["family"] for model in told["models"]] == ["ngram", "ngram"]
    for model in told["models"]:
        assert 0 < sum(word["probability"] for word in model["words"]) <= 1 + 1e-9
    said_by = ok(capsys, "suggest", place / "l" / "ngram-2", "The weaver", "--tokens")
    assert said_by.startswith("next tokens after: The weaver") and "' " in said_by


def test_suggestions_from_anywhere_after_a_long_text(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    said = ok(capsys, "suggest", "l/unigram", place / "l" / "ngram-2", "The weaver " * 500)
    assert "l/unigram" in said and str(place / "l" / "ngram-2") in said
    assert "The weaver The" in ok(capsys, "suggest", "l/unigram", "The weaver " * 500)


def test_a_context_that_was_never_seen(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Under maximum likelihood that model has nothing to say; the other one has."""
    words = ("The zebra%", place / "l" / "unigram", place / "l" / "ngram-2")
    said = ok(capsys, "suggest", words[1], words[2], words[0])
    assert "the context '%' never occurs" in said and "such as kneser-ney" in said and said.count(" %") > 5
    told = json.loads(ok(capsys, "suggest", words[1], words[2], words[0], "--json"))
    assert "words" in told["models"][0] and "'%'" in told["models"][1]["error"]
    assert "never occurs in the text" in refused(capsys, "suggest", words[2], words[0])

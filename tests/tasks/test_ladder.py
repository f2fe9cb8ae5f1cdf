"""The ladder: equal budgets, one held-out text, a page that stands alone, and nothing lost when something breaks."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from tests.training.small import stories
from weft.config import read_toml
from weft.errors import UserError
from weft.files import read_json
from weft.runs import ladder as ladders
from weft.runs.ladder import LadderFolder, _recipe, beginning_of, ladder, split, subwords
from weft.runs.pages import ladder_page, verdict
from weft.runs.recipes import LadderRecipe, Recipe
from weft.runs.rungs import RUNGS, recipe_of
from weft.tasks.perplexity import places_of, useful
from weft.training.signals import Interrupted

MODELS = ("uniform", "unigram", "ngram-2", "lstm", "transformer")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ladder") / "stories.txt"
    path.write_text(stories(60))
    return path


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WEFT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def quiet(line: str) -> None:
    pass


def climb(text: Path, out: Path, *models: str, log: Any = quiet, **settings: Any) -> dict[str, Any]:
    """A ladder of tiny rungs that read few tokens, in this process."""
    budget = {"tokens": 2048, "size": "tiny", "parallel": 0, "models": list(models or MODELS)}
    return ladder(None, {"out": str(out), "text": {"files": [str(text)]}, "ladder": budget, **settings}, log=log)


@pytest.fixture(scope="module")
def whole(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "ladder"
    climb(text, out)
    return out


def rungs_of(out: Path) -> dict[str, dict[str, Any]]:
    return {rung["name"]: rung for rung in read_json(out / "ladder.json")["rungs"]}


def test_every_rung_is_judged_on_the_same_text(whole: Path, text: Path) -> None:
    found, rungs = read_json(whole / "ladder.json"), rungs_of(whole)
    about = found["text"]
    train, held_out = ((whole / "run" / "text" / f"{name}.txt").read_text() for name in ("train", "held-out"))
    assert train + held_out == text.read_text() and train.endswith("\n")
    assert 0.02 < len(held_out) / len(train + held_out) < 0.08
    assert {tuple(rung["held_out"].values())[:2] for rung in rungs.values()} == {
        (len(held_out), len(held_out.encode()))
    }
    # Bits of a byte by definition: the logarithm of the vocabulary, for as many tokens as there are.
    exact = math.log2(about["vocabulary"]["tokens"]) * about["held_out_tokens"] / about["held_out_bytes"]
    assert rungs["uniform"]["bits_per_byte"]["value"] == pytest.approx(exact, rel=1e-6)
    values = [rungs[name]["bits_per_byte"]["value"] for name in ("uniform", "unigram", "ngram-2")]
    assert values == sorted(values, reverse=True) and len(set(values)) == 3
    for rung in rungs.values():
        score = rung["bits_per_byte"]
        assert score["low"] <= score["value"] <= score["high"]
        assert (
            rung["bytes_on_disk"] > 0
            and (rung["parameters"] > 0) == (rung["name"] != "uniform")
            and rung["generation_tokens_per_second"] > 0
        )
        assert rung["sample"]["prompt"] == about["prompt"] and len(rung["sample"]["text"]) > 100
    for name in ("lstm", "transformer"):
        assert rungs[name]["tokens"] == 2048 and rungs[name]["steps"] == 16
        last = rungs[name]["curve"][-1]
        assert last["tokens"] == 2048 and len(rungs[name]["curve"]) > 5
        assert last["bits_per_byte"] == pytest.approx(rungs[name]["bits_per_byte"]["value"], rel=0.1)
        assert read_toml(Recipe, whole / name / "run/recipe.toml").training.warmup == 4, "a quarter of few steps"


def test_every_rung_is_a_model_folder(whole: Path) -> None:
    for name in MODELS:
        model = weft.load(whole / name)
        assert len(model("The", max_tokens=3).tokens) == 3  # type: ignore[union-attr]
        assert len(weft.suggest(model, "The", top=3).words) == 3
    assert (whole / "lstm" / "run" / "recipe.toml").is_file()


def test_the_page_stands_alone_and_names_each_model(whole: Path) -> None:
    page = (whole / "index.html").read_text()
    assert "://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"url\(|@import|\b(src|href)\s*=|<(link|img|iframe|object)\b", page)
    assert page.count("<script") == 1  # that of the page, by its hash
    words = "".join(ElementTree.fromstring(page).itertext())
    for name in MODELS:
        rung = RUNGS[name]
        assert rung.title in words and rung.about in words and rung.sees in words
    assert verdict(read_json(whole / "ladder.json")) in words


def test_what_is_finished_is_kept(whole: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in whole.glob("*/run/rung.json")}
    said = list[str]()
    ladder(out=str(whole), log=said.append)
    assert {path: path.stat().st_mtime_ns for path in whole.glob("*/run/rung.json")} == before
    assert "5 of 5 rungs are there already" in said[0]


def test_broken_off_and_gone_on_with_is_the_same_ladder(whole: Path, text: Path, tmp_path: Path) -> None:
    def interrupt(line: str) -> None:
        if line.startswith("step 8: held-out"):
            os.kill(os.getpid(), signal.SIGINT)

    models = ("unigram", "transformer", "lstm")
    with pytest.raises(Interrupted, match="resume with: weft ladder --out"):
        climb(text, tmp_path / "l", *models, log=interrupt)
    rungs = rungs_of(tmp_path / "l")
    assert "bits_per_byte" in rungs["unigram"] and rungs["transformer"]["waiting"] and rungs["lstm"]["waiting"]
    assert "not yet" in (tmp_path / "l" / "index.html").read_text()
    ladder(out=str(tmp_path / "l"), log=quiet)
    again, unbroken = rungs_of(tmp_path / "l"), rungs_of(whole)
    for name in models:
        assert again[name]["bits_per_byte"] == unbroken[name]["bits_per_byte"]
        assert again[name]["sample"] == unbroken[name]["sample"]


def test_a_rung_that_fails_loses_no_other(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "l"
    wrong = {"transformer": {"model": {"heads": 7}}}
    climb(text, out, "transformer", "unigram", rungs=wrong)
    rungs = rungs_of(out)
    assert "cannot be cut into 7 equal heads" in rungs["transformer"]["failed"]
    assert "bits_per_byte" in rungs["unigram"]
    assert "transformer failed: " in (out / "index.html").read_text()

    # A process that somebody kills: with no words of its own it still has a reason.
    kill = [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]
    monkeypatch.setattr(ladders, "_started", lambda place, name, several: subprocess.Popen(kill))
    ladder(out=str(out), ladder={"parallel": 1, "models": ["ngram-2"]}, log=quiet)
    rungs = rungs_of(out)
    assert "signal 9 (out of memory" in rungs["ngram-2"]["failed"] and "bits_per_byte" in rungs["unigram"]

    # Put right, it is tried again.
    ladder(out=str(out), ladder={"parallel": 0}, rungs={"transformer": {"model": {"heads": 2}}}, log=quiet)
    assert all("bits_per_byte" in rung for rung in rungs_of(out).values())


@pytest.mark.slow
def test_a_rung_in_a_process_of_its_own_is_killed_and_gone_on_with(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "l"
    command = [sys.executable, "-m", "weft", "ladder", "--out", str(out), "--text", str(text), "--tokens", "2048"]
    command += ["--size", "tiny", "--models", "lstm,unigram", "--set", "lstm.training.steps=4000", "--parallel", "2"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    checkpoints = out / "lstm" / "run" / "checkpoints"
    for _ in range(600):
        if checkpoints.is_dir() and any(checkpoints.glob("step-*")):
            break
        assert running.poll() is None
        signal.sigtimedwait([], 0.1)
    os.kill(int((out / "lstm" / "run" / "lock").read_text()), signal.SIGKILL)
    said, _ = running.communicate(timeout=120)
    assert running.returncode == 0 and "lstm failed: its process was ended by signal 9" in said
    assert "bits_per_byte" in rungs_of(out)["unigram"]
    subprocess.run([sys.executable, "-m", "weft", "resume", str(out)], check=True, capture_output=True, timeout=300)
    assert rungs_of(out)["lstm"]["steps"] == 4000


def test_equal_time(text: Path, tmp_path: Path) -> None:
    budget = {"minutes": 0.01, "size": "tiny", "parallel": 0, "models": ["lstm"]}
    ladder(None, {"out": str(tmp_path / "l"), "text": {"files": [str(text)]}, "ladder": budget}, log=quiet)
    found = rungs_of(tmp_path / "l")["lstm"]
    assert found["seconds"] < 20 and found["steps"] > 10
    state = next((tmp_path / "l" / "lstm" / "run" / "checkpoints").glob("*/state.json"))
    assert json.loads(state.read_text())["steps"] == found["steps"], "what the speed decided is kept"
    lines = [json.loads(line) for line in (tmp_path / "l" / "lstm" / "run" / "metrics.jsonl").read_text().splitlines()]
    rates = [line["learning_rate"] for line in lines if "learning_rate" in line]
    assert rates[-1] < 0.3 * max(rates), "the rate falls to its end where the time ends"


def test_mistakes(text: Path, tmp_path: Path, whole: Path) -> None:
    short = tmp_path / "short.txt"
    short.write_text("too short\n")
    with pytest.raises(UserError, match="short.txt: 10 characters are too few to compare models; give at least 2,000"):
        climb(short, tmp_path / "a")
    assert not (tmp_path / "a").exists()
    with pytest.raises(UserError, match="rung 'ltsm' is not one of .*did you mean 'lstm'"):
        climb(text, tmp_path / "a", "ltsm")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match="already there and not empty"):
        climb(text, tmp_path / "full")
    with pytest.raises(UserError, match="holds a run, not a ladder"):
        ladder(out=str(whole / "lstm"), log=quiet)
    with pytest.raises(UserError, match="holds a ladder with ladder.tokens 2048, not 4096"):
        ladder(out=str(whole), ladder={"tokens": 4096}, log=quiet)
    with pytest.raises(UserError, match="lstm has begun already"):
        ladder(out=str(whole), rungs={"lstm": {"model": {"width": 32}}}, log=quiet)
    with pytest.raises(UserError, match="no text: give --text"):
        ladder(out=str(tmp_path / "none"), log=quiet)
    with pytest.raises(UserError, match="minutes and tokens cannot both"):
        ladder(out=str(tmp_path / "none"), ladder={"minutes": 1.0, "tokens": 5}, log=quiet)
    with pytest.raises(UserError, match="vocabulary must be characters or a number"):
        ladder(out=str(tmp_path / "none"), ladder={"vocabulary": "words"}, log=quiet)


def test_the_longest_useful_context() -> None:
    noise = np.random.default_rng(0).normal(0, 1, 500)  # of the places, the same whatever the context
    falls = np.stack([noise + loss for loss in (3.0, 2.0, 1.5, 1.5, 1.5)])
    assert useful(falls) == 2
    assert useful(np.stack([noise, noise])) == 0
    apart = np.random.default_rng(1).normal(0, 1, (3, 500)) + np.array([[0.05], [0.0], [0.0]])
    assert useful(apart) == 0, "less than the noise"
    assert useful(np.stack([noise, noise - 0.5, noise - 1.0])) == 2, "it may fall to the end"
    places = places_of(10_000, 256)
    assert min(places) == 256 and max(places) < 10_000 and places == sorted(set(places))


def test_who_won_and_why() -> None:
    def rung(name: str, bits: float, counted: bool, **more: Any) -> dict[str, Any]:
        score = {"value": bits, "low": bits - 0.01, "high": bits + 0.01}
        curve = [{"seconds": s, "tokens": s, "bits_per_byte": bits + (9 - s) * 0.01} for s in range(10)]
        usual = {"seconds": 2.0, "tokens": 500, "epochs": 0.5, "useful_context": 30, "reach": 4 if counted else None}
        about = {"name": name, "title": RUNGS[name].title, "bits_per_byte": score, "counted": counted}
        return {**about, **usual, "curve": [] if counted else curve, **more}

    won = verdict({"rungs": [rung("ngram-5", 2.0, True), rung("lstm", 2.2, False)]})
    assert "The 5-gram predicted the held-out text best: 2.000" in won and "Counting won at this budget" in won
    assert "stopped after 0.5 passes over the text (500 tokens)" in won and "still falling, by 0.030" in won
    won = verdict({"rungs": [rung("ngram-5", 2.2, True), rung("transformer", 2.195, False)]})
    assert "Learning beat counting" in won and "intervals overlap" in won
    assert "30 preceding tokens" in won and "sees 4" in won


def test_text_is_cut_where_it_may_be() -> None:
    train, held_out = split([f"line {number}\nmore\n" for number in range(100)], 0.05)
    assert held_out.startswith("line 95") and (train + held_out).count("more") == 100
    train, held_out = split(["a b c\n" * 1000], 0.05)
    assert train.endswith("\n") and len(held_out) == pytest.approx(300, abs=10)
    train, held_out = split(["word " * 100_000], 0.5, most=1000)
    assert 500 <= len(held_out) <= 1000 and train.endswith(" ")
    for text in ("ein Wort für dich\n" * 4000, "織" * 40_000):  # bytes are bytes, not characters
        train, held_out = split([text], 0.5, most=1000)
        assert 500 <= len(held_out.encode()) <= 1000 and (train + held_out).rstrip() == text.rstrip()
    assert beginning_of("\n\n  Long ago there was a loom that nobody dared to touch, for it sang at night\n") == (
        "Long ago there was a loom that nobody dared to touch, for"
    )
    assert [subwords(size) for size in (1000, 3_300_000, 10**9)] == [1000, 3000, 16_000]


def test_recipes_of_rungs() -> None:
    for size in ("tiny", "small", "large"):
        for name in RUNGS:
            found = recipe_of(name, size, {})
            assert found["model"]["family"]
            assert ("training" in found) == (found["model"]["family"] != "ngram")
    found = recipe_of("lstm", "small", {"lstm": {"model": {"width": 64}}})
    assert found["model"]["width"] == 64 and found["training"]["batch"] == 16


def test_a_rung_with_a_budget_of_its_own(whole: Path) -> None:
    recipe = LadderRecipe(rungs={"lstm": {"training": {"steps": 7}}})
    own = _recipe(LadderFolder(whole), recipe, "lstm").training
    assert own.steps == 7 and own.minutes is None
    assert _recipe(LadderFolder(whole), recipe, "transformer").training.minutes == 3.0


def test_a_page_of_nothing_yet() -> None:
    about = {"files": ["a"], "vocabulary": {"kind": "bpe", "tokens": 9}, "train_bytes": 1, "held_out_bytes": 1}
    found = {"text": {**about, "train_tokens": 1}, "budget": {"minutes": 1.0}, "device": "cpu", "seed": 0, "rungs": []}
    ElementTree.fromstring(ladder_page(found))
    assert "Too few models" in ladder_page(found)

"""The demo's grammar: the same text everywhere for one seed, and text that keeps its own rules."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parent.parent / "examples" / "grammar.py"
WORK = {
    "weaver": ("worked at the loom", "wove cloth at the loom"),
    "dyer": ("dipped the cloth in the vat",),
    "shepherd": ("tended the sheep",),
    "miller": ("ground the grain at the mill",),
    "ferryman": ("rowed the boat",),
    "baker": ("baked bread at the oven",),
    "smith": ("hammered iron at the forge",),
    "spinner": ("spun wool at the wheel",),
}
TOOLS = {
    "weaver": "shuttle",
    "dyer": "paddle",
    "shepherd": "crook",
    "miller": "scoop",
    "ferryman": "oar",
    "baker": "peel",
    "smith": "hammer",
    "spinner": "spindle",
}
JOBS = "|".join(TOOLS)


@pytest.fixture(scope="module")
def grammar() -> ModuleType:
    spec = importlib.util.spec_from_file_location("grammar", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def text(grammar: ModuleType) -> str:
    return grammar.make_text()


@pytest.fixture(scope="module")
def stories(text: str) -> list[str]:
    return text.rstrip("\n").split("\n\n")


def test_one_seed_is_one_text(text: str, tmp_path: Path) -> None:
    for hash_seed in ("1", "2"):
        out = tmp_path / hash_seed
        subprocess.run(
            [sys.executable, SCRIPT, "--out", out], env={**os.environ, "PYTHONHASHSEED": hash_seed}, check=True
        )
        assert hashlib.sha256(out.read_bytes()).digest() == hashlib.sha256(text.encode()).digest()


def test_the_screen_gets_what_the_file_gets(grammar: ModuleType) -> None:
    command = [sys.executable, SCRIPT, "--seed", "7", "--characters", "2000"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert shown == grammar.make_text(7, 2000) != grammar.make_text(8, 2000)


def test_sizes(grammar: ModuleType, text: str) -> None:
    assert 300_000 <= len(text) < 302_000
    assert all(len(grammar.make_text(seed, 100_000)) >= 100_000 for seed in range(1, 5))
    assert all(len(grammar.make_text(0, size)) >= size for size in range(2000))
    assert text.isascii()
    assert 600 <= len(set(re.findall("[a-z]+", text.lower()))) <= 900


def test_one_story_a_line(text: str, stories: list[str]) -> None:
    assert text.endswith(stories[-1] + "\n")
    for story in stories:
        assert "\n" not in story
        assert 4 <= len(re.findall(r'[.?!]"?(?= |$)', story)) <= 8, story


def test_stories_differ(stories: list[str]) -> None:
    assert len(set(stories)) > 0.97 * len(stories)


@pytest.mark.parametrize(
    "mistake",
    [
        r"  |^ | $",  # spaces that separate nothing
        r"[\[\]{}|=]",  # grammar left over
        r"\b[Aa] [aeiouAEIOU]",
        r"\b[Aa]n (?!hour\b)[^aeiou]",
        r" [.,?!]|[.,?!]{2}|[.,?!][A-Za-z]",
        r'(?:^|[.?!]"? )[a-z]',  # a sentence that begins small
        r'[^.?!"]$',  # a story that just stops
        r"\b(\w+) \1\b",  # a word twice
    ],
)
def test_no_slips(stories: list[str], mistake: str) -> None:
    for story in stories:
        assert not re.search(mistake, story), story
        assert story.count('"') % 2 == 0, story


def test_everyone_does_their_own_work(text: str) -> None:
    """No job is ever seen at the work of another, and every job is seen at its own."""
    deeds = "|".join(deed for own in WORK.values() for deed in own)
    seen = re.findall(rf"\b({JOBS}) (?:named \w+, who )?({deeds})", text)
    assert {job for job, _ in seen} == set(WORK)
    for job, deed in seen:
        assert deed in WORK[job]


def test_everyone_uses_their_own_tool(text: str) -> None:
    seen = re.findall(rf"The ({JOBS}) said, \"(?:Without|Has anyone seen) my (\w+)", text)
    assert {job for job, _ in seen} == set(TOOLS)
    for job, tool in seen:
        assert tool == TOOLS[job]


def test_names_keep_their_job_and_dyes_their_plant(stories: list[str]) -> None:
    plants = {"red": "madder", "blue": "woad", "yellow": "weld"}
    for story in stories:
        jobs: dict[str, str] = {}
        for name, job in re.findall(rf"\b([A-Z]\w+) the ({JOBS})\b", story):
            assert jobs.setdefault(name, job) == job, story
        for shade, plant in re.findall(r"(\w+) dye from (\w+)", story):
            assert plants[shade] == plant, story


def test_pronouns_are_those_of_somebody_in_the_story(grammar: ModuleType, stories: list[str]) -> None:
    people = grammar.read_table(grammar.PEOPLE)
    women, men = (people[kind]["name"].strip("[]").split("|") for kind in ("she", "he"))
    for story in stories:
        if re.search(r"\b(she|her)\b", story):
            assert any(name in story for name in women), story
        if re.search(r"\b(he|him|his)\b", story):
            assert any(name in story for name in men), story
        assert not re.search(rf"\b({'|'.join(women)}) the ferryman", story), story


@pytest.mark.parametrize("phrase", ["The weaver said, ", "The old loom ", " of the loom", "tended the sheep"])
def test_the_demo_prompts_are_at_home(text: str, phrase: str) -> None:
    assert text.count(phrase) >= 50

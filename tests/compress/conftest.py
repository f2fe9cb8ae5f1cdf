"""What the tests of small models share: a cache of their own, and a teacher that is trained once."""

from __future__ import annotations

from pathlib import Path

import pytest

import weft
from tests.compress.taught import TEACHER, TRAINING, kinds_of
from tests.once import once
from tests.tasks.small import quiet, write_rows
from weft.exporters import export as checks


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("WEFT_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(checks, "MIXED", 24)  # texts of each export's check: 200 are tested elsewhere
    return tmp_path


@pytest.fixture(scope="session")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small BERT that tells stones from animals from plants."""

    def make(folder: Path) -> None:
        rows, dev = write_rows(folder / "rows.jsonl", kinds_of(120)), write_rows(folder / "dev.jsonl", kinds_of(30, 1))
        plan = {"model": TEACHER, "tokenizer": {"size": 200}, "training": TRAINING, "log": quiet}
        weft.finetune(rows, dev=dev, out=folder / "teacher", task="classify", **plan)

    return once(tmp_path_factory, "teacher", make) / "teacher"

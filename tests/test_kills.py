"""Killed at random moments, every verb ends as if nothing had happened, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kills import VERBS


def check(folder: Path, kills: int, verbs: list[str]) -> None:
    command = [sys.executable, "-m", "tests.kills", str(folder / "kills"), str(kills), "0", *verbs]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr[-3000:]
    print(done.stdout)
    rows = json.loads(done.stdout.splitlines()[-1])
    assert [row["verb"] for row in rows] == verbs and all(row["kills"] == kills and row["files"] for row in rows)
    for row in rows:
        assert not row["differ"] and not row["leftovers"] and not row["missing"], row


def test_some_verbs(tmp_path: Path) -> None:
    check(tmp_path, 1, ["pretrain ngram", "tokenizer", "predict"])


@pytest.mark.slow
def test_every_verb(tmp_path: Path) -> None:
    check(tmp_path, 3, list(VERBS))

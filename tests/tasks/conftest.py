"""What the tests of tasks share: a vocabulary, learned once, and data that does not come from elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tasks.small import vocabulary
from weft.text.tokenizers.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def wordpiece() -> Tokenizer:
    return vocabulary()


@pytest.fixture(scope="session")
def bpe() -> Tokenizer:
    return vocabulary("bpe")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("WEFT_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path

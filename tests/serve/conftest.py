"""Servers that the tests of several files share: none of these tests ends one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.once import once
from tests.serve.running import MODELS, Served, save_models


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of small models."""
    return once(tmp_path_factory, "served", save_models)


@pytest.fixture(scope="session")
def server(models: Path) -> Iterator[Served]:
    """One server with a model of each kind."""
    with Served(*(str(models / name) for name in MODELS), "--timeout", "3") as served:
        yield served


@pytest.fixture(scope="session")
def tight(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with low limits; its model for labels has no answer for a text with the word oak."""
    from tests.serve.wire import TIGHT, save_fragile

    folder = once(tmp_path_factory, "fragile", lambda folder: save_fragile(models / "reviews", folder / "reviews"))
    with Served(str(folder / "reviews"), str(models / "gpt"), *TIGHT) as served:
        yield served

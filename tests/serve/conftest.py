"""One server with a model of each kind, for all tests that do not end it."""

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
    with Served(*(str(models / name) for name in MODELS), "--timeout", "3") as served:
        yield served

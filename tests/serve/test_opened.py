"""What a worker says of the model that it has opened."""

from __future__ import annotations

from pathlib import Path

import pytest

import weft
from tests.serve.engine_models import folder_of
from weft.backends.choice import BackendChoice, key_of, store
from weft.serve import opened
from weft.serve.opened import OpenedModel, Opening
from weft.tasks.chosen import measured_as


def test_a_model_for_which_no_backend_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`weft serve` points to `weft bench` where it may help: not for small models, nor once somebody has decided."""
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path))
    folder = folder_of("classify")

    def unmeasured(**more: str) -> bool:
        return bool(OpenedModel(Opening(name="m", folder=str(folder), **more)).info()["unmeasured"])

    assert not unmeasured()
    monkeypatch.setattr(opened, "SMALL", 1)
    assert unmeasured() and not unmeasured(backend="torch")
    store(key_of(folder, measured_as(weft.load(folder))), BackendChoice("torch", 1.0))
    assert not unmeasured()

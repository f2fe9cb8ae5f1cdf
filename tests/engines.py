"""Tests of an engine are skipped where it is not installed."""

from __future__ import annotations

import pytest

from weft.backends.onnx import runtime
from weft.errors import UserError


def need_engine(name: str) -> None:
    """Skip the test, or the whole file, without the package of an engine."""
    if name != "onnx":
        pytest.importorskip(name)
        return
    try:
        runtime()
    except UserError:
        pytest.skip("onnxruntime is not installed", allow_module_level=True)

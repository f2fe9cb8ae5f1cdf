"""Tests of an engine are skipped where it is not installed."""

from __future__ import annotations

import pytest

from weft.backends import onnx as runtime


def need_engine(name: str) -> None:
    """Skip the test, or the whole file, without the package of an engine."""
    if name == "onnx" and not runtime.installed():
        pytest.skip("onnxruntime is not installed", allow_module_level=True)
    if name != "onnx":
        pytest.importorskip(name)

"""Decoding on a GPU goes without kernels of its own where they cannot be made."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from weft.nn import fixed


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    fixed.has_kernel.cache_clear()
    yield
    fixed.has_kernel.cache_clear()


def test_kernels_are_used_where_one_can_be_made(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Triton may be installed where there is no C compiler, or a GPU that it does not know."""
    asked: list[Any] = []

    def log_sums(scores: torch.Tensor) -> None:
        asked.append(scores)
        if len(asked) == 2:
            raise RuntimeError("Failed to find C compiler. Please specify via CC environment variable.")

    zeros = torch.zeros
    monkeypatch.setattr(fixed, "find_spec", lambda name: SimpleNamespace())
    monkeypatch.setitem(sys.modules, "weft.nn.choice_kernels", SimpleNamespace(log_sums=log_sums))  # type: ignore[misc]
    monkeypatch.setattr(torch, "zeros", lambda *sizes, device: zeros(*sizes))
    assert fixed.has_kernel() and fixed.has_kernel() and len(asked) == 1, "asked once in a process"
    fixed.has_kernel.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert not fixed.has_kernel() and not fixed.has_kernel()
    assert "Failed to find C compiler" in caplog.text and len(caplog.records) == 1


def test_without_triton_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixed, "find_spec", lambda name: None)
    monkeypatch.setattr(torch, "zeros", lambda *sizes, device: pytest.fail("asked"))
    assert not fixed.has_kernel()

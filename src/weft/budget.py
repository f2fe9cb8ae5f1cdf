"""Cutting much work into passes of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

BUDGET = 8192  # tokens in one pass through the network


def by_budget(items: Iterable[T], length: Callable[[T], int], budget: int = BUDGET) -> Iterator[list[T]]:
    """The items in order, as many together as have no more tokens than the budget; at least one."""
    batch: list[T] = []
    held = 0
    for item in items:
        size = length(item)
        if batch and held + size > budget:
            yield batch
            batch, held = [], 0
        batch.append(item)
        held += size
    if batch:
        yield batch

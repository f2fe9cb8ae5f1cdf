"""Work in batches: so many at a time, or whatever is there when the work is asked for one by one."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

T = TypeVar("T")


def chunked(source: Iterable[T], most: int) -> Iterator[list[T]]:
    """Batches of so many, the last one of what is left."""
    items = iter(source)
    while batch := list(islice(items, most)):
        yield batch


class _End:
    """The end of a source: with the error that ended it, if any."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


def as_they_come(source: Iterable[T], most: int) -> Iterator[list[T]]:
    """Batches of what is there, at most so many: waits for one item, never for a second one.

    A thread reads ahead, so that the lines of a large pipe are there in full batches.
    """
    read: queue.Queue[T | _End] = queue.Queue(4 * most)

    def pump() -> None:
        try:
            for item in source:
                read.put(item)
            read.put(_End())
        except BaseException as error:  # raised where the items are used
            read.put(_End(error))

    threading.Thread(target=pump, daemon=True).start()
    while True:
        batch: list[T] = []
        item = read.get()
        while not isinstance(item, _End):
            batch.append(item)
            if len(batch) == most or read.empty():
                break
            item = read.get()
        if batch:
            yield batch
        if isinstance(item, _End):
            if item.error is not None:
                raise item.error
            return

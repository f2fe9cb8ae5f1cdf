"""Work in batches: so many at a time, or whatever is there when the work is asked for one by one."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from weft.budget import by_budget

T = TypeVar("T")


CHARACTERS = 1 << 24  # that are held in a batch, and read ahead


def chunked(source: Iterable[T], most: int) -> Iterator[list[T]]:
    """Batches of so many, fewer where they are long, the last one of what is left."""
    return by_budget(source, lambda item: max(size_of(item), CHARACTERS // most), CHARACTERS)


def size_of(item: Any) -> int:
    """Characters of a text, of several, or of a row that a model reads."""
    given = getattr(item, "input", item)
    return len(given) if isinstance(given, str) else sum(map(size_of, given)) if isinstance(given, list | tuple) else 1


class _End:
    """The end of a source: with the error that ended it, if any."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


def as_they_come(source: Iterable[T], most: int) -> Iterator[list[T]]:
    """Batches of what is there, at most so many: waits for one item, never for a second one.

    A thread reads ahead, so that the lines of a large pipe are there in full batches.
    """
    read: queue.Queue[T | _End] = queue.Queue(4 * most)
    room, free = CHARACTERS, threading.Condition()

    def take(size: int) -> None:
        """Wait until so many characters may be read ahead, at least one item at any time."""
        nonlocal room
        with free:
            free.wait_for(lambda: room >= size or room == CHARACTERS)
            room -= size

    def give(item: T) -> T:
        nonlocal room
        with free:
            room += size_of(item)
            free.notify()
        return item

    def pump() -> None:
        try:
            for item in source:
                take(size_of(item))
                read.put(item)
            read.put(_End())
        except BaseException as error:  # raised where the items are used
            read.put(_End(error))

    threading.Thread(target=pump, daemon=True).start()
    while True:
        batch, held = list[T](), 0
        item = read.get()
        while not isinstance(item, _End):
            batch.append(give(item))
            held += size_of(item)
            if len(batch) == most or held >= CHARACTERS or read.empty():
                break
            item = read.get()
        if batch:
            yield batch
        if isinstance(item, _End):
            if item.error is not None:
                raise item.error
            return

"""Which examples make up a step, a pure function of seed and step for any number of ranks; a loader that runs ahead."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from weft.data.chance import key_of, shuffled
from weft.data.rows import Drawn, Source
from weft.data.shards import Places
from weft.nn.rows import Batch

T = TypeVar("T")


@dataclass(frozen=True)
class Feed:
    """Batches by step. The examples of a step are fixed by the seed; how they are cut into passes is not."""

    source: Source
    prepare: Callable[[Drawn, int], Batch]  # masks or shifts; the epoch is its second argument
    seed: int
    rows: int  # examples in a step

    @property
    def steps_in_epoch(self) -> float:
        return self.source.count / self.rows

    def numbers(self, step: int) -> list[tuple[int, Places]]:
        """The examples of a step as (epoch, numbers): epochs follow each other without a gap."""
        places = np.arange(step * self.rows, (step + 1) * self.rows)
        epochs, inside = np.divmod(places, self.source.count)
        return [
            (int(epoch), shuffled(key_of(self.seed, "order", int(epoch)), inside[epochs == epoch], self.source.count))
            for epoch in np.unique(epochs)
        ]

    def passes(self, step: int, budget: int, rank: int = 0, ranks: int = 1) -> list[Batch]:
        """The step's examples in batches of at most `budget` tokens (or one example), those that fall to this rank."""
        found = []
        number = 0
        for epoch, numbers in self.numbers(step):
            for some in cut_to_budget(self.source, numbers, budget):
                if number % ranks == rank:
                    found.append(self.prepare(self.source.draw(epoch, some), epoch))
                number += 1
        return found

    def drawn(self, step: int) -> list[Drawn]:
        """What a step read, for whoever wants to know what went wrong."""
        return [self.source.draw(epoch, numbers) for epoch, numbers in self.numbers(step)]


def cut_to_budget(source: Source, numbers: Places, budget: int) -> Iterator[Places]:
    """The numbers in order, as many together as have no more tokens than the budget; at least one."""
    begin, held = 0, 0
    for place, length in enumerate(source.lengths(numbers).tolist()):
        if place > begin and held + length > budget:
            yield numbers[begin:place]
            begin, held = place, 0
        held += length
    yield numbers[begin:]


def every_example(source: Source, prepare: Callable[[Drawn, int], Batch], budget: int) -> Iterator[Batch]:
    """All examples of a source once, in order, in batches that stay within the budget: an evaluation."""
    together = max(1, int(budget / source.mean))
    for begin in range(0, source.count, together):
        numbers = np.arange(begin, min(begin + together, source.count))
        for some in cut_to_budget(source, numbers, budget):
            yield prepare(source.draw(0, some), 0)


class Ahead(Generic[T]):
    """Makes the next few things in a thread of its own while the present one is used."""

    def __init__(self, make: Callable[[int], T], first: int, end: int, depth: int = 3) -> None:
        self._queue: queue.Queue[T | BaseException | None] = queue.Queue(depth)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, args=(make, first, end), daemon=True)
        self._thread.start()

    def _work(self, make: Callable[[int], T], first: int, end: int) -> None:
        try:
            for number in range(first, end):
                self._put(make(number))
                if self._stopped.is_set():
                    return
            self._put(None)
        except BaseException as error:  # whoever waits for the next thing gets to know
            self._put(error)

    def _put(self, thing: T | BaseException | None) -> None:
        while not self._stopped.is_set():
            try:
                self._queue.put(thing, timeout=0.1)
                return
            except queue.Full:
                continue

    def __iter__(self) -> Iterator[T]:
        while (thing := self._queue.get()) is not None:
            if isinstance(thing, BaseException):
                raise thing
            yield thing

    def close(self) -> None:
        self._stopped.set()
        self._thread.join()

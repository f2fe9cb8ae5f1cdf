"""Which examples make up a step, a pure function of seed and step for any number of ranks; a loader that runs ahead."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np

from weft.budget import by_budget
from weft.data.chance import key_of, shuffled
from weft.data.rows import Drawn, ExampleSource
from weft.data.shards import Places
from weft.nn.rows import Batch

T = TypeVar("T")


@dataclass(frozen=True)
class Feed:
    """Batches by step. The seed fixes the examples of a step, not how they are split into passes."""

    source: ExampleSource
    prepare: Callable[[Drawn], Batch]  # masks or shifts
    seed: int
    rows: int  # examples in a step
    first: Feed | None = None  # what the first steps read in its place
    border: int = 0  # so many of them
    epoch: int = 0  # the number of its first epoch

    def at(self, step: int) -> tuple[Feed, int]:
        """What feeds a step, and which of its own steps that is."""
        if self.first is not None and step < self.border:
            return self.first, step
        return replace(self, first=None, border=0), step - self.border

    def examples(self, step: int) -> tuple[Places, Places]:
        """The epochs and numbers of a step's examples: epochs follow each other without a gap."""
        feed, step = self.at(step)
        count = feed.source.count
        epochs, inside = np.divmod(np.arange(step * feed.rows, (step + 1) * feed.rows), count)
        epochs += feed.epoch
        numbers = np.empty_like(inside)
        for epoch in np.unique(epochs):
            key = key_of(feed.seed, "order", int(epoch))
            there = inside[epochs == epoch]
            numbers[epochs == epoch] = there if feed.source.ordered else shuffled(key, there, count)
        return epochs, numbers

    def passes(self, step: int, budget: int, rank: int = 0, ranks: int = 1) -> list[Batch]:
        """The step's examples in batches of at most `budget` tokens (or one example), those that fall to this rank."""
        source = self.at(step)[0].source
        epochs, numbers = self.examples(step)
        cuts = list(cut_to_budget(source, numbers, budget))[rank::ranks]
        return [self.prepare(source.draw(epochs[cut], numbers[cut])) for cut in cuts]

    def drawn(self, step: int) -> Drawn:
        """The examples of a step, for a report on what went wrong."""
        return self.at(step)[0].source.draw(*self.examples(step))


def in_two_phases(feed: Feed, short: ExampleSource, border: int) -> Feed:
    """Short rows in the steps before the border (Devlin et al., 2019), as many more as keep a step's tokens the same.

    The long rows begin with an epoch of their own, so that no chance is drawn twice.
    """
    first = replace(feed, source=short, rows=max(1, round(feed.rows * feed.source.mean / short.mean)))
    return replace(feed, first=first, border=border, epoch=-(-border * first.rows // short.count))


def cut_to_budget(source: ExampleSource, numbers: Places, budget: int) -> Iterator[slice]:
    """The numbers in order, as many together as have no more tokens than the budget; at least one."""
    lengths = source.lengths(numbers)
    if source.even:  # batches of one shape where that can be had, since each shape is compiled for itself
        most = max(1, min(len(numbers), budget // int(lengths[0])))
        together = max(size for size in range(1, most + 1) if len(numbers) % size == 0)
        together = together if 2 * together > most else most
        yield from (slice(begin, begin + together) for begin in range(0, len(numbers), together))
        return
    sizes = lengths.tolist()
    for group in by_budget(range(len(numbers)), sizes.__getitem__, budget):
        yield slice(group[0], group[-1] + 1)


def every_example(source: ExampleSource, prepare: Callable[[Drawn], Batch], budget: int) -> Iterator[Batch]:
    """All examples of a source once, in order, in batches that stay within the budget: an evaluation."""
    together = source.together(budget)
    for begin in range(0, source.count, together):
        numbers = np.arange(begin, min(begin + together, source.count))
        for cut in cut_to_budget(source, numbers, budget):
            drawn = source.draw(np.zeros_like(numbers[cut]), numbers[cut])
            if len(drawn.tokens):  # some streams may be at their end before others
                yield prepare(drawn)


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
        except BaseException as error:  # raised again where the next thing is waited for
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

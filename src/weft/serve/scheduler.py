"""Passes of bounded size, filled with units of many jobs, so that a long document never stalls a short request.

Jobs are served in the order in which they would end if all of them shared the model evenly, so that none ends later
than under even sharing (the fair sojourn protocol: Friedman and Henderson, 2003). Jobs that fit into one pass are
served first come, first served, which bounds the slowest answers of a busy model. A document of many passes takes turns
with other jobs once it is due, so that they do not wait until it has ended.

A pass has as many tokens as take `PASS_SECONDS` at the measured speed. An idle model starts a pass at once with the
jobs that are there; while it runs, other jobs gather. Only if the last pass answered several jobs does the next one
wait for a moment, since their clients are likely to send their next requests.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

from weft.serve.plans import Plan, Prepared, Unit

PASS_SECONDS = 0.04
LEAST, MOST = 512, 8192  # tokens of a pass
FIRST_SPEED = 20_000.0  # tokens a second, before anything is measured
CHOICE = 4  # budgets of waiting units among which those of similar length are chosen
FEW_PASSES = 4  # that a job may take in a row when it is due
GATHER, LONGEST_GATHER = 0.1, 0.004  # a pass waits for jobs: share of the time of the last pass, and seconds at most
NEW = 0.3  # weight of the newest pass in the measured speed


@dataclass
class Work:
    """A job on its way through a worker."""

    number: int
    plan: Plan | None = None
    prepared: Prepared | None = None
    arrived: float = field(default_factory=time.perf_counter)
    tokenizing: float = 0.0  # seconds
    model: float = 0.0
    batch_tokens: int = 0
    cancelled: bool = False
    turn: tuple[float, int] = (0.0, 0)  # order of service: the value of `Scheduler.shared` when due, then the arrival
    long: bool = False  # needs more than `FEW_PASSES` passes, so it takes turns
    waiting: deque[int] = field(default_factory=deque)  # numbers of the units that are in no pass yet
    left: int = 0  # units without an output
    outputs: list[Any] = field(default_factory=list)

    @property
    def units(self) -> list[Unit]:
        assert self.prepared is not None
        return self.prepared.units

    def begin(self, plan: Plan, prepared: Prepared) -> None:
        """Set what tokenizing gave."""
        self.plan, self.prepared, self.left = plan, prepared, len(prepared.units)
        self.outputs, self.waiting = [None] * self.left, deque(range(self.left))

    def waiting_tokens(self, most: int) -> int:
        """Tokens of the waiting units; counting stops at `most`."""
        held = 0
        for place in self.waiting:
            held += self.units[place].size
            if held >= most:
                break
        return held

    def take(self, places: set[int]) -> None:
        """Remove these units, which are among the first, from those that wait: they are in a pass now."""
        kept, count = list[int](), len(places)
        while count:
            place = self.waiting.popleft()
            if place in places:
                count -= 1
            else:
                kept.append(place)
        self.waiting.extendleft(reversed(kept))

    def timings(self, post: float) -> dict[str, float]:
        """Seconds by stage; `queue` is the time that no other stage took."""
        whole = time.perf_counter() - self.arrived
        queue = max(0.0, whole - self.tokenizing - self.model - post)
        return {"queue": queue, "tokenize": self.tokenizing, "model": self.model, "post": post}


@dataclass
class ModelPass:
    """Units that go through the model together, each as its job and its number there."""

    plan: Plan
    parts: list[tuple[Work, int]]

    @property
    def units(self) -> list[Unit]:
        return [work.units[place] for work, place in self.parts]

    @property
    def tokens(self) -> int:
        return sum(work.units[place].size for work, place in self.parts)

    def by_work(self) -> list[ModelPass]:
        """One pass for each job, to run again after a failure of the whole."""
        by_number: dict[int, list[tuple[Work, int]]] = {}
        for part in self.parts:
            by_number.setdefault(part[0].number, []).append(part)
        return [ModelPass(self.plan, parts) for parts in by_number.values()]


class Scheduler:
    """The queue of a model: any thread adds jobs, one thread takes passes."""

    def __init__(self) -> None:
        self.heap: list[tuple[tuple[float, int], Work]] = []
        self.changed = threading.Condition(threading.Lock())
        self.stopping = False
        self.arrivals = 0
        self.shared = 0.0  # virtual time: tokens that each job would have had by now if all shared the model evenly
        self.speeds: dict[type[Plan], float] = {}
        self.waiting_tokens = 0
        self.last_works, self.last_seconds = 1, 0.0  # of the last pass

    def add(self, work: Work) -> None:
        """Queue a tokenized job."""
        with self.changed:
            assert work.plan is not None
            self.arrivals += 1
            tokens = sum(unit.size for unit in work.units)
            budget = self.budget(work.plan)
            beyond, few = max(0, tokens - budget), FEW_PASSES * budget
            # A long job is due earlier, since it takes turns from then on: it ends as early as without turns.
            work.turn = self.shared + min(beyond, max(few, beyond / 2)), self.arrivals
            work.long = beyond > few
            self.waiting_tokens += tokens
            self._push(work)
            self.changed.notify()

    def _push(self, work: Work) -> None:
        heappush(self.heap, (work.turn, work))

    def stop(self) -> None:
        """Let `take` return None once no job is left."""
        with self.changed:
            self.stopping = True
            self.changed.notify()

    def take(self) -> ModelPass | None:
        """Wait for the next pass; None after `stop`, when no job is left."""
        with self.changed:
            while True:
                while not self.heap and not self.stopping:
                    self.changed.wait()
                self._gather()
                if self.heap and (model_pass := self._chosen()) is not None:
                    return model_pass
                if self.stopping and not self.heap:
                    return None

    def _gather(self) -> None:
        """Wait for a moment for the clients of the last pass, which are likely to send their next requests now."""
        end = time.perf_counter() + min(LONGEST_GATHER, GATHER * self.last_seconds)
        while len(self.heap) < self.last_works and not self.stopping:
            rest = end - time.perf_counter()
            if rest <= 0 or not self.changed.wait(rest):
                return

    def _chosen(self) -> ModelPass | None:
        """A pass with units of one plan up to its budget, by the turns of their jobs; None if all were canceled."""
        sharing, first = len(self.heap), self._pop()
        if first is None:
            return None
        assert first.plan is not None
        budget = self.budget(first.plan)
        works = self._companions(first, CHOICE * budget) if first.plan.together else [first]
        candidates = in_turn(works, CHOICE * budget if first.plan.together else budget)
        chosen = alike([(work, place, work.units[place].size) for work, place in candidates], budget)
        taken: dict[int, set[int]] = {}
        for work, place in chosen:
            taken.setdefault(work.number, set()).add(place)
            self.waiting_tokens -= work.units[place].size
            self.shared += work.units[place].size / sharing
        for work in works:
            work.take(taken.get(work.number, set()))
            if work.long and work.number in taken:  # behind the jobs that have come in the meantime
                self.arrivals += 1
                work.turn = max(work.turn[0], self.shared), self.arrivals
            if work.waiting:
                self._push(work)
        self.last_works = len(taken)
        return ModelPass(first.plan, chosen)

    def _companions(self, first: Work, most: int) -> list[Work]:
        """`first` and more jobs of the same plan, in the order of their turns, up to about `most` tokens."""
        works, others, held = [first], list[Work](), first.waiting_tokens(most)
        while held < most and (work := self._pop()) is not None:
            if work.plan is first.plan:
                works.append(work)
                held += work.waiting_tokens(most)
            else:
                others.append(work)
        for other in others:
            self._push(other)
        return works

    def _pop(self) -> Work | None:
        """The next job that is not canceled."""
        while self.heap:
            _, work = heappop(self.heap)
            if not work.cancelled:
                return work
            self.waiting_tokens -= sum(work.units[place].size for place in work.waiting)
        return None

    def budget(self, plan: Plan) -> int:
        """Tokens of the next pass with this plan."""
        return int(min(MOST, max(LEAST, PASS_SECONDS * self.speeds.get(type(plan), FIRST_SPEED))))

    def ran(self, model_pass: ModelPass, seconds: float) -> None:
        """Update the measured speed with the time that a pass took."""
        self.last_seconds = seconds
        kind, tokens = type(model_pass.plan), model_pass.tokens
        if tokens >= LEAST // 4 and seconds > 0:  # the speed of small passes is not that of large ones
            speed = self.speeds.get(kind, tokens / seconds)
            self.speeds[kind] = (1 - NEW) * speed + NEW * tokens / seconds


def in_turn(works: Sequence[Work], most: int) -> list[tuple[Work, int]]:
    """Waiting units of these jobs, one job after the other, up to about `most` tokens."""
    units, held = list[tuple[Work, int]](), 0
    for work in works:
        for place in work.waiting:
            if held >= most:
                return units
            units.append((work, place))
            held += work.units[place].size
    return units


def alike(parts: Sequence[tuple[Work, int, int]], budget: int) -> list[tuple[Work, int]]:
    """Units up to a budget: the first, and those whose sizes are nearest to its own. Parts are job, number and size."""
    if sum(size for _, _, size in parts) <= budget:
        return [(work, place) for work, place, _ in parts]
    length, held, kept = parts[0][2], parts[0][2], {0}
    for number in sorted(range(1, len(parts)), key=lambda number: abs(parts[number][2] - length)):
        if held + parts[number][2] <= budget:
            kept.add(number)
            held += parts[number][2]
    return [(parts[number][0], parts[number][1]) for number in sorted(kept)]

"""Slots for prompts that come one after another: the captured steps of a GPU, for a server.

Texts whose options are equal share one set of slots. A prompt enters as soon as a slot is free, while the others go on.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

from weft.generation.pending import PendingText, alike
from weft.generation.sampling import RandomDraws
from weft.generation.search import Completion, Hypothesis, Request, SearchSteps
from weft.generation.slots import ROOMS, SampleRunner, fits

ROWS = 32  # of one set of slots
LEAST = 256  # places of a row at least, so that few sizes have to be captured


def fits_slots(request: Request) -> bool:
    """Whether a request can share slots: beams search by themselves."""
    return fits(request) and request.sampling is not None


def bucket(size: int) -> int:
    """One of few sizes, which has room for so many tokens."""
    return max(LEAST, 1 << (size - 1).bit_length())


@dataclass(frozen=True)
class Sizes:
    """Tokens that a slot has room for: of a text with its prompt, of a source, and of a text alone."""

    room: int
    source: int
    length: int

    @staticmethod
    def of(request: Request) -> Sizes:
        """Those that a request for one prompt needs."""
        (prompt,), (limit,) = request.prompts, request.limits
        room = bucket(len(prompt) + limit)
        source = 0 if request.sources is None else bucket(len(request.sources[0]))
        return Sizes(room if request.context is None else min(room, request.context), source, bucket(limit))

    def hold(self, other: Sizes) -> bool:
        return self.room >= other.room and self.source >= other.source and self.length >= other.length


class LiveRunner(SampleRunner):
    """Runs texts with the options of the first one; more of them may come at any time."""

    def __init__(self, first: Request, sizes: Sizes) -> None:
        sources: list[Any] | None = None if first.sources is None else []
        shared = replace(first, prompts=[], sources=sources, max_tokens=1, typed=(), seeds=(), stopped=self._stopped)
        sampling = first.sampling
        assert sampling is not None, "a beam is a search of its own"
        super().__init__(shared, sampling, first.penalty)
        self.room = sizes
        self.requests: dict[int, Request] = {}  # those of texts that are not over, by their numbers
        self.dropped = set[int]()  # texts that were given up, and may still get a slot
        self.steps: SearchSteps | None = None

    def _stopped(self, number: int, generated: list[int]) -> bool:
        stopped = self.requests[number].stopped
        return stopped is not None and stopped(0, generated)

    def sizes(self) -> tuple[int, int, int, int, int]:
        count, room = max(1, ROWS // self.copies), self.room
        count = 1 << (count.bit_length() - 1)
        while count > 1 and count * self.copies > self.most_rows(room.room, room.source):
            count //= 2
        return count, self.copies, room.room, -(-room.source // ROOMS) * ROOMS, -(-room.length // ROOMS) * ROOMS

    def add(self, request: Request, seed: int) -> int:
        """Take in a text, which waits for a slot; returns its number here."""
        number, shared = len(self.completions), self.request
        self.requests[number] = request
        for ours, theirs in ((shared.prompts, request.prompts), (shared.sources, request.sources)):
            if ours is not None and theirs is not None:
                ours.append(theirs[0])  # type: ignore[attr-defined]
        shared.limits.append(request.limits[0])
        shared.limited.append(request.limited[0])
        if self.random is not None:
            self.random.generators += RandomDraws([seed], self.copies).generators
        self.answers.append([Hypothesis([], 0.0, number, []) for _ in range(self.copies)])
        self.results.append([None] * self.copies)
        self.completions.append(None)
        self.waiting.append(number)
        return number

    def has_read(self, number: int) -> bool:
        """Whether the prompt of a text has been read."""
        return number not in self.waiting

    def drop(self, number: int) -> None:
        """Give up a text."""
        self.completions[number] = []
        self._forget(number)
        if number in self.waiting:
            self.waiting.remove(number)
        else:
            self.dropped.add(number)
            self._leave()

    def _leave(self) -> None:
        """Free the slots of texts that were given up."""
        for slot, number in enumerate(self.at):
            if number in self.dropped:
                self.slots.done[slot * self.copies : (slot + 1) * self.copies] = True
                self.at[slot] = None

    def _admit(self) -> None:
        super()._admit()
        self._leave()  # a text can be given up between the reading of its prompt and its slot

    def block(self) -> list[tuple[int, list[Completion]]]:
        """Run until some texts have got tokens; returns those that are over, with their completions."""
        self.steps = self.run() if self.steps is None else self.steps
        try:
            next(self.steps)
        except StopIteration:
            self.steps = None
        pairs = [(number, self.completions[number]) for number in self.requests]
        over = [(number, completions) for number, completions in pairs if completions is not None]
        for number, _ in over:
            self._forget(number)
        return over

    def _forget(self, number: int) -> None:
        """Free what a text that is over has needed: a server may be busy for days."""
        del self.requests[number]
        self.request.prompts[number] = []  # type: ignore[index]


class LiveSlots:
    """All sets of slots of a decoder."""

    def __init__(self) -> None:
        self.runners: list[LiveRunner] = []
        self.at: dict[PendingText, tuple[LiveRunner, int]] = {}  # of each text its runner and its number there
        self.read = self.generated = 0  # in the last step: tokens of prompts, and tokens that were generated

    def admit(self, text: PendingText, seed: int) -> None:
        """Take in a text, into slots of texts with the same options where there are any."""
        request, sizes = text.request, Sizes.of(text.request)
        for runner in self.runners:
            if runner.room.hold(sizes) and alike(runner.request, request):
                break
        else:
            runner = LiveRunner(request, sizes)
            self.runners.append(runner)
        number = runner.add(request, seed)
        self.at[text] = runner, number
        answers = runner.answers[number]
        text.tokens, text.reasons = [answer.tokens for answer in answers], [None] * len(answers)
        text.details = [answer.details for answer in answers]

    def cancel(self, text: PendingText) -> None:
        runner, number = self.at.pop(text)
        runner.drop(number)

    def step(self) -> tuple[list[PendingText], list[tuple[PendingText, Exception]]]:
        """Run a block of steps of every set; returns the texts that have changed, and those that failed."""
        changed, failed = list[PendingText](), list[tuple[PendingText, Exception]]()
        self.read = self.generated = 0
        for runner in list(self.runners):
            texts = {number: text for text, (own, number) in self.at.items() if own is runner}
            sizes = {number: sum(map(len, text.tokens)) for number, text in texts.items()}
            try:
                over = dict(runner.block())
            except Exception as error:  # the state of its slots is unknown
                self.runners.remove(runner)
                failed += [(text, error) for text in texts.values()]
                for text in texts.values():
                    del self.at[text]
                continue
            for number, text in texts.items():
                if text.entered is None and runner.has_read(number):
                    text.entered = time.perf_counter()
                    self.read += len(text.request.prompts[0])
                grown = sum(map(len, text.tokens)) - sizes[number]
                self.generated += grown
                text.reasons = [None if each is None else each.finish_reason for each in runner.results[number]]
                if number in over:
                    text.completions = over[number]
                    del self.at[text]
                if number in over or grown:
                    changed.append(text)
            if not runner.requests and runner.steps is None:
                self.runners.remove(runner)
        return changed, failed

"""Beam search in slots: the device selects the hypotheses, and the host builds their texts at the end.

The search is that of `weft.generation.search`. S: slots; W: hypotheses of a slot; C: candidates; T: tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from weft.errors import NotFinite
from weft.generation.search import Advance, Beam, Completion, Hypothesis, Request, best_tokens
from weft.generation.slots import Report, SlotRunner, Slots, on

NONE = -1  # in place of a token: for a hypothesis that no token may follow


class BeamSlots(Slots):
    """Slots of beams."""

    def __init__(self, request: Request, beam: Beam, *sizes: int) -> None:
        super().__init__(request, *sizes)
        self.beam = beam
        slots, width, device = self.size, beam.width, self.device
        self.needed = width * max(2, 1 + len(self.ends))  # candidates, so that `width` of them do not end
        whole = {"dtype": torch.int64, "device": device}
        self.counts = torch.zeros(slots, **whole)  # type: ignore[call-overload]
        self.limits = torch.ones(slots, **whole)  # type: ignore[call-overload]
        self.done = torch.ones(slots, dtype=torch.bool, device=device)
        self.broken = torch.zeros(slots, dtype=torch.bool, device=device)  # a score was NaN
        self.held = torch.zeros(
            slots, width, dtype=torch.float64, device=device
        )  # log-probabilities of live hypotheses
        # For each step and hypothesis: its parent in the step before, and its token.
        self.parents = torch.zeros(slots, self.length, width, **whole)  # type: ignore[call-overload]
        self.written = torch.zeros(slots, self.length, width, **whole)  # type: ignore[call-overload]
        # The best finished hypotheses: their scores; and log-probability, step, parent and token.
        self.scored = torch.zeros(slots, width, dtype=torch.float64, device=device)
        self.finished = torch.zeros(slots, width, 4, dtype=torch.float64, device=device)
        self.ranks = torch.arange(self.needed, device=device)
        self.firsts = torch.arange(slots, device=device)[:, None] * width  # the first row of each slot

    def begin(self, request: Request, numbers: Sequence[int], slots: Sequence[int], where: Tensor) -> None:
        self.counts[where], self.done[where], self.broken[where] = 0, False, False
        self.limits[where] = on(self.device, [request.limits[number] for number in numbers])
        self.held[where] = -torch.inf
        self.held[where, 0] = 0.0  # at first there is one hypothesis
        self.scored[where] = -torch.inf

    def _candidates(self) -> tuple[Tensor, Tensor, Tensor]:
        """S C each, best first: log-probabilities, parents and tokens of the best extensions."""
        scores = self.penalized()
        allowed = self.allowed(scores, self.counts.repeat_interleave(self.copies))
        tokens = best_tokens(allowed, self.needed)  # S*W C
        values = scores.gather(1, tokens).double() - self._log_sums(scores).double()[:, None]
        if self.busy:
            values = values.masked_fill(allowed.gather(1, tokens) == -torch.inf, -torch.inf)
        width = tokens.shape[1]
        values = (values.view(self.size, -1, width) + self.held[..., None]).flatten(1)  # S W*C
        values, order = values.topk(min(self.needed, values.shape[1]))
        return values, order // width, tokens.view(self.size, -1).gather(1, order)

    def _log_sums(self, scores: Tensor) -> Tensor:
        if not self.kernels:
            return scores.logsumexp(-1)
        from weft.nn.kernels import log_sums

        return log_sums(scores)

    def step(self) -> None:
        going, beam = ~self.done, self.beam
        values, places, tokens = self._candidates()
        self.broken.logical_or_(going & values.isnan().any(1))
        length = self.counts + 1
        ends = (length >= self.limits)[:, None].expand_as(tokens)
        if self.ends:
            ends = ends | self.is_end[tokens]
        possible, ranks = values > -torch.inf, self.ranks[: tokens.shape[1]]
        self._finish(values, places, tokens, possible & ends & (ranks < beam.width), going)
        alive = possible & ~ends
        order = torch.where(alive, ranks, ranks + len(ranks)).argsort(1)[:, : beam.width]
        there = alive.gather(1, order)
        held = torch.where(there, values.gather(1, order), -torch.inf)
        places, tokens = (torch.where(there, x.gather(1, order), 0) for x in (places, tokens))
        self._stuck(there.any(1) | ~going)
        step = self.counts.clamp(max=self.length - 1)[:, None, None].expand(-1, 1, beam.width)
        going_on = going[:, None, None]
        for kept, new in ((self.parents, places), (self.written, tokens)):
            kept.scatter_(1, step, torch.where(going_on, new[:, None], kept.gather(1, step)))
        self.held.copy_(torch.where(going[:, None], held, self.held))
        self.counts.copy_(torch.where(going, length, self.counts))
        self.done.logical_or_(self._settled(there.any(1)))
        self.state.reorder((self.firsts + places).flatten())
        if self.seen is not None:
            self.seen.copy_(self.seen[(self.firsts + places).flatten()])
        self.tokens.copy_(tokens.flatten())
        self.read(self.tokens)

    def _by_length(self, logprobs: Tensor, lengths: Tensor) -> Tensor:
        return logprobs / lengths.clamp(min=1).double() ** self.beam.length_penalty

    def _finish(self, values: Tensor, places: Tensor, tokens: Tensor, over: Tensor, going: Tensor) -> None:
        """Keep the best of the finished hypotheses and of those that finish now; S C each."""
        length = (self.counts + 1)[:, None]
        scores = torch.where(over & going[:, None], self._by_length(values, length), -torch.inf)
        rows = [values, self.counts[:, None].expand_as(tokens).double(), places.double(), tokens.double()]
        every = torch.cat([self.scored, scores], 1)
        best = every.sort(dim=1, descending=True, stable=True).indices[:, : self.beam.width]
        self.scored.copy_(every.gather(1, best))
        finished = torch.cat([self.finished, torch.stack(rows, -1)], 1)
        self.finished.copy_(finished.gather(1, best[..., None].expand(-1, -1, 4)))

    def _stuck(self, fine: Tensor) -> None:
        """If the rules allow no token and nothing has finished, take the best hypothesis as the answer."""
        stuck = ~fine & (self.scored[:, 0] == -torch.inf)
        best, place = self.held.max(1)
        entry = [best, self.counts.double(), place.double(), torch.full_like(best, NONE)]
        self.finished[:, 0] = torch.where(stuck[:, None], torch.stack(entry, -1), self.finished[:, 0])
        self.scored[:, 0] = torch.where(stuck, self._by_length(best, self.counts), self.scored[:, 0])

    def _settled(self, alive: Tensor) -> Tensor:
        """Whether no live hypothesis can get among the n best any more."""
        worst = self.scored[:, self.beam.n - 1]
        length = self.limits if self.beam.length_penalty > 0 else self.counts + 1
        bound = self._by_length(self.held.max(1).values, length)
        return ~alive | ((worst > -torch.inf) & (worst >= bound))

    def outputs(self) -> list[Tensor]:
        return [self.done, self.counts, self.broken]


class BeamRunner(SlotRunner):
    """The best hypotheses of every prompt."""

    slots: BeamSlots

    def __init__(self, request: Request, beam: Beam) -> None:
        super().__init__(request, beam.width)
        self.beam = beam
        self.reported = [0] * len(request.prompts)  # steps of each search that were reported
        self.over: list[int] = []  # prompts whose results are being copied from the device
        self.report: Report | None = None

    def make(self, *sizes: int) -> Slots:
        return BeamSlots(self.request, self.beam, *sizes)

    def key(self) -> tuple[Any, ...]:
        return "beam", self.beam, self.request.rules, tuple(sorted(self.request.ends))

    def collect(self, outputs: list[Tensor], slots: Sequence[int]) -> Advance:
        """Start to copy the results of finished searches; they are put together at the next call."""
        self._put_together()
        done, counts, broken = (tensor.tolist() for tensor in outputs)
        if any(broken[slot] for slot in slots):
            raise NotFinite()
        advance: Advance = []
        for slot in slots:
            number = self.at[slot]
            assert number is not None
            advance += [(number, None)] * (counts[slot] - self.reported[number])
            self.reported[number] = counts[slot]
        over = [slot for slot in slots if done[slot]]
        if over:
            s, where = self.slots, on(self.slots.device, over)
            longest = max(counts[slot] for slot in over)
            history = [x[where, :longest] for x in (s.parents, s.written)]
            self.over = [number for slot in over if (number := self.at[slot]) is not None]
            self.report = Report([*history, s.scored[where], s.finished[where]])
            for number in self.over:
                self.completions[number] = []
        return advance

    def finish(self) -> None:
        self._put_together()

    def _put_together(self) -> None:
        if self.report is None:
            return
        entries = zip(self.over, *(tensor.tolist() for tensor in self.report.wait()), strict=True)
        for number, parents, written, scores, finished in entries:
            best = [entry for score, entry in zip(scores, finished, strict=True) if score > -math.inf][: self.beam.n]
            self.completions[number] = [self._completion(number, parents, written, entry) for entry in best]
        self.report = None

    def _completion(
        self, number: int, parents: list[list[int]], written: list[list[int]], entry: list[float]
    ) -> Completion:
        """The text of a finished hypothesis, from its last token back to its first."""
        logprob, step, place, last = entry[0], int(entry[1]), int(entry[2]), int(entry[3])
        tokens = [] if last == NONE else [last]
        for before in range(step - 1, -1, -1):
            tokens.append(written[before][place])
            place = parents[before][place]
        tokens.reverse()
        reason = None if last == NONE else self.request.reason(number, tokens)
        return self.request.completion(
            Hypothesis(tokens, logprob, 0, []), reason or "stop", 1, self.beam.length_penalty
        )

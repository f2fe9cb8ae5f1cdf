"""Beam search in slots: the device selects the hypotheses, and the host builds their texts at the end.

The search is that of `weft.generation.search`. S: slots; W: hypotheses of a slot; C: candidates; T: tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
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
        # For each step and hypothesis: its token x width + its parent in the step before.
        self.history = torch.zeros(slots, self.length, width, **whole)  # type: ignore[call-overload]
        # The best finished hypotheses: their scores; and log-probability, step, parent and token.
        self.scored = torch.zeros(slots, width, dtype=torch.float64, device=device)
        self.finished = torch.zeros(slots, width, 4, dtype=torch.float64, device=device)
        self.ranks = torch.arange(self.needed, device=device)
        # Of a text of each length, what its log-probability is divided by to get its score.
        self.divisors = torch.arange(self.length + 2, device=device).clamp(min=1).double() ** beam.length_penalty
        self.firsts = torch.arange(slots, device=device)[:, None] * width  # the first row of each slot

    def begin(self, request: Request, numbers: Sequence[int], slots: Sequence[int], where: Tensor) -> None:
        for tensor in (self.counts, self.done, self.broken):
            tensor.index_fill_(0, where, 0)
        self.limits.index_copy_(0, where, on(self.device, [request.limits[number] for number in numbers]))
        for tensor in (self.held, self.scored):
            tensor.index_fill_(0, where, -torch.inf)
        self.held[:, 0].index_fill_(0, where, 0.0)  # at first there is one hypothesis

    def _candidates(self, tokens: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """S C each, best first: log-probabilities, parents and tokens of the best extensions."""
        width = tokens.shape[1]
        values = (values.view(self.size, -1, width) + self.held[..., None]).flatten(1)  # S W*C
        values, order = values.topk(min(self.needed, values.shape[1]))
        return values, order // width, tokens.view(self.size, -1).gather(1, order)

    def _best(self) -> tuple[Tensor, Tensor]:
        """S*W C twice: the best tokens of each row, and their log-probabilities; minus infinity where forbidden."""
        scores = self.penalized()
        allowed = self.allowed(scores, self.counts.repeat_interleave(self.copies))
        tokens = best_tokens(allowed, self.needed)
        values = scores.gather(1, tokens).double() - self._log_sums(scores).double()[:, None]
        if self.busy:
            values = values.masked_fill(allowed.gather(1, tokens) == -torch.inf, -torch.inf)
        return tokens, values

    def _best_by_kernel(self) -> tuple[Tensor, Tensor] | None:
        """The same where no token is forbidden and there is a kernel that reads each row once; else None."""
        if self.busy or not self.kernels:
            return None
        from weft.nn.choice_kernels import LARGEST, MOST_FEW, best_few

        words = self.scores.shape[1]
        if self.needed > MOST_FEW or words > LARGEST:
            return None
        scores = self.scores if self.seen is None else self.penalized()
        return best_few(scores, min(self.needed, words))

    def _log_sums(self, scores: Tensor) -> Tensor:
        if not self.kernels:
            return scores.logsumexp(-1)
        from weft.nn.choice_kernels import log_sums

        return log_sums(scores)

    def step(self) -> None:
        parents = self._chosen_of(*(self._best_by_kernel() or self._best()))
        self.state.reorder(parents)
        if self.seen is not None:
            self.seen.copy_(self.seen[parents])
        self.read(self.tokens)

    def _chosen_of(self, tokens: Tensor, values: Tensor) -> Tensor:
        """Choose the hypotheses of the next step among the best extensions; S*W: the rows that they go on from."""
        beam = self.beam
        if self.kernels:
            from weft.nn.choice_kernels import MOST_BEAM, beam_step

            if (extensions := tokens.shape[1] * beam.width) <= MOST_BEAM:
                return beam_step(
                    values,
                    tokens,
                    self.held,
                    self.scored,
                    self.finished,
                    self.history,
                    self.counts,
                    self.limits,
                    self.done,
                    self.broken,
                    self.is_end,
                    self.divisors,
                    self.tokens,
                    needed=min(self.needed, extensions),
                    best=beam.n,
                    by_limit=beam.length_penalty > 0,
                )
        going = ~self.done
        values, places, tokens = self._candidates(tokens, values)
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
        chosen = torch.where(there, (tokens * beam.width + places).gather(1, order), 0)
        alive = there.any(1)
        self._stuck(alive | ~going)
        step = self.counts.clamp(max=self.length - 1)[:, None, None].expand(-1, 1, beam.width)
        kept = self.history.gather(1, step)
        self.history.scatter_(1, step, torch.where(going[:, None, None], chosen[:, None], kept))
        torch.where(going[:, None], held, self.held, out=self.held)
        torch.where(going, length, self.counts, out=self.counts)
        self.done.logical_or_(self._settled(alive))
        torch.div(chosen.flatten(), beam.width, rounding_mode="floor", out=self.tokens)
        return (self.firsts + chosen % beam.width).flatten()

    def _by_length(self, logprobs: Tensor, lengths: Tensor) -> Tensor:
        return logprobs / self.divisors[lengths]

    def _finish(self, values: Tensor, places: Tensor, tokens: Tensor, over: Tensor, going: Tensor) -> None:
        """Keep the best of the finished hypotheses and of those that finish now; S C each."""
        length = (self.counts + 1)[:, None]
        scores = torch.where(over & going[:, None], self._by_length(values, length), -torch.inf)
        rows = [values, self.counts[:, None].expand_as(tokens).double(), places.double(), tokens.double()]
        every = torch.cat([self.scored, scores], 1)
        best = every.sort(dim=1, descending=True, stable=True).indices[:, : self.beam.width]
        torch.gather(every, 1, best, out=self.scored)
        finished = torch.cat([self.finished, torch.stack(rows, -1)], 1)
        torch.gather(finished, 1, best[..., None].expand(-1, -1, 4), out=self.finished)

    def _stuck(self, fine: Tensor) -> None:
        """If the rules allow no token and nothing has finished, take the best hypothesis as the answer."""
        stuck = ~fine & (self.scored[:, 0] == -torch.inf)
        best, place = self.held.max(1)
        entry = [best, self.counts.double(), place.double(), torch.full_like(best, NONE)]
        finished, scored = self.finished[:, 0], self.scored[:, 0]
        torch.where(stuck[:, None], torch.stack(entry, -1), finished, out=finished)
        torch.where(stuck, self._by_length(best, self.counts), scored, out=scored)

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
            self.over = [number for slot in over if (number := self.at[slot]) is not None]
            self.report = Report([s.history[where, :longest], s.scored[where], s.finished[where]])
            for number in self.over:
                self.completions[number] = []
        return advance

    def finish(self) -> None:
        self._put_together()

    def _put_together(self) -> None:
        """The texts of the finished hypotheses, all at once, from their last tokens back to their first."""
        if self.report is None:
            return
        history, scored, finished = (tensor.numpy() for tensor in self.report.wait())
        rows, ranks = np.nonzero(scored[:, : self.beam.n] > -math.inf)  # the best first
        entries = finished[rows, ranks]  # E 4, one for each hypothesis
        steps, places = entries[:, 1].astype(np.int64), entries[:, 2].astype(np.int64)
        longest, width = history.shape[1:]
        texts = np.zeros((longest, len(rows)), np.int64)  # T E
        for step in range(int(steps.max(initial=0)) - 1, -1, -1):
            chosen = history[rows, step, places]
            texts[step] = chosen // width
            places = np.where(step < steps, chosen % width, places)
        for row, entry, count, text in zip(rows, entries.tolist(), steps.tolist(), texts.T.tolist(), strict=True):
            completion = self._completion(self.over[row], text[:count], entry[0], int(entry[3]))
            self.completions[self.over[row]].append(completion)  # type: ignore[union-attr]
        self.report = None

    def _completion(self, number: int, tokens: list[int], logprob: float, last: int) -> Completion:
        reason = None
        if last != NONE:
            tokens = [*tokens, last]
            reason = self.request.reason(number, tokens)
        return self.request.completion(
            Hypothesis(tokens, logprob, 0, []), reason or "stop", 1, self.beam.length_penalty
        )

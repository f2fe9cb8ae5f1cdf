"""CBOW (Mikolov et al., 2013): the mean of a word's neighbors foretells it.

The sum of some rows of a table is one bag. The neighbors of a center are a bag of the inner table; the other way
round, what pushes a word is a bag of the centers that it stands near to, so that each word is written to once in a
batch. Both lists are made ahead, for a whole block of text. Words of noise are drawn for a group of centers.

n: groups; c: centers of a group; k: words of noise; d: width; m: neighbors of all; u: different words among them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from weft.vectors.word2vec import LIMIT, Moved, Push, Word2Vec, against, move, rows_of

# Centers and words of noise of a group: one by itself would draw 5. More of both make larger products, of more work.
GROUP, DRAWN = 64, 16


class Bags(NamedTuple):
    """Sums of rows: bag i is of those whose numbers lie from starts[i] to starts[i+1]."""

    rows: Tensor
    starts: Tensor

    def sums(self, table: Tensor) -> Tensor:
        return torch.embedding_bag(table, self.rows, self.starts, mode=0, include_last_offset=True)[0]

    def part(self, begin: int, end: int) -> Bags:
        starts = self.starts[begin : end + 1]
        first, last = int(starts[0]), int(starts[-1])
        return Bags(self.rows[first:last], starts - first)


class CbowBatch(NamedTuple):
    """Some centers, in an order drawn, with what stands around each."""

    centers: Tensor  # n c
    counts: Tensor  # n c: neighbors of each
    noise: Tensor  # n k
    near: Bags  # n*c bags of words
    words: Tensor  # u: those that are someone's neighbor, each once
    pushed: Bags  # u bags of centers


class CbowGradients(NamedTuple):
    """Gradients; `hidden` for each neighbor of a center, which gets all of it, as in word2vec's own program."""

    centers: Push
    hidden: Tensor  # n c d
    noise: Push


def cbow(hidden: Tensor, centers: Tensor, noise: Tensor, there: Tensor, negatives: float) -> CbowGradients:
    """Gradients of the log chance that each mean has its center and not the noise.

    hidden: n c d; centers: n c d; noise: n k d; there: n c of 0 and 1: has neighbors, without them it says nothing.
    """
    share = negatives / noise.shape[1]
    there = there[..., None]
    pull = (hidden * centers).sum(2, keepdim=True).neg_().sigmoid_().mul_(there)  # n c 1
    push = torch.bmm(hidden, noise.mT).sigmoid_().mul_(there * share)  # n c k
    return CbowGradients(
        Push(pull * hidden, there[..., 0]),
        (pull * centers).baddbmm_(push, noise, alpha=-1),
        Push(against(push.mT, hidden), (there.sum(1) * share).expand(noise.shape[:2])),
    )


def loss_of(hidden: Tensor, centers: Tensor, noise: Tensor, there: Tensor, negatives: float) -> Tensor:
    """What the gradients are of: the log chance, negative, summed."""
    log = torch.nn.functional.logsigmoid
    right = (log((hidden * centers).sum(2)) * there).sum()
    wrong = (log(-(hidden @ noise.mT)) * there[..., None]).sum()
    return -(right + wrong * (negatives / noise.shape[1]))


class Cbow(Word2Vec[CbowBatch]):
    """The mean of its neighbors foretells each word."""

    def _batches(self, words: Tensor, documents: Tensor, chance: torch.Generator) -> list[CbowBatch]:
        total, window, vocabulary = len(words), self.plan.window or 1, len(self.inner)
        if not total:
            return []
        pad, device = torch.nn.functional.pad, self.device
        order = torch.randperm(total, generator=chance, device=device)
        reach = torch.randint(1, window + 1, (total,), generator=chance, device=device)
        noise = self._drawn(-(-total // GROUP), DRAWN, chance=chance)
        # A center sees a run of places, itself left out; documents lie one after the other.
        _, document, lengths = torch.unique_consecutive(documents, return_inverse=True, return_counts=True)
        ends, document = lengths.cumsum(0), document[order]
        first = torch.maximum(order - reach, (ends - lengths)[document])
        last = torch.minimum(order + reach, ends[document] - 1)
        # The last group is filled up with centers that have no neighbors, and so say nothing.
        spare = -total % GROUP
        counts = pad(last - first, (0, spare))
        starts = pad(counts.cumsum(0), (1, 0))
        number = torch.arange(len(counts), device=device).repeat_interleave(counts)  # m: whose neighbor
        places = torch.arange(len(number), device=device) + (first - starts[:total]).index_select(0, number)
        places += places >= order.index_select(0, number)
        around = words.index_select(0, places)
        # One number for batch, word and center: numbers alone are sorted many times as fast as with others beside them.
        size = max(1, (self.plan.batch or 1) // GROUP) * GROUP
        bits = (size - 1).bit_length()
        every = torch.arange(total, device=device)
        tags = (every // size * vocabulary << bits) + every % size
        keys = tags.index_select(0, number) + (around << bits)
        keys = torch.from_numpy(np.sort(keys.numpy())) if device.type == "cpu" else keys.sort().values
        once, often = torch.unique_consecutive(keys >> bits, return_counts=True)
        turns = -(-len(counts) // size)
        borders = torch.searchsorted(once, torch.arange(turns + 1, device=device) * vocabulary).tolist()
        centers = pad(words[order], (0, spare))
        whole, pushed = Bags(around, starts), Bags(keys & (1 << bits) - 1, pad(often.cumsum(0), (1, 0)))
        batches = []
        for turn in range(turns):
            begin, end = turn * size, min((turn + 1) * size, len(counts))
            groups = slice(begin // GROUP, end // GROUP)
            here, there = borders[turn], borders[turn + 1]
            batches.append(
                CbowBatch(
                    centers[begin:end].view(-1, GROUP),
                    counts[begin:end].view(-1, GROUP).float(),
                    noise[groups],
                    whole.part(begin, end),
                    once[here:there] % vocabulary,
                    pushed.part(here, there),
                )
            )
        return batches

    def _step(self, batch: CbowBatch, learning_rate: float) -> None:
        groups = torch.arange(len(batch.centers)).chunk(self.threads)
        moved = self._each(lambda some: self._pushes(batch, int(some[0]), int(some[-1]) + 1), groups)
        hidden = torch.cat([one[0] for one in moved]).flatten(0, 1)
        centers, noises = [one[1] for one in moved], [one[2] for one in moved]
        work = (
            lambda: self._move_inner(batch, hidden, learning_rate),
            lambda: move(self.outer, [*centers, *noises], learning_rate),
        )
        self._each(lambda one: one(), work)

    def _move_inner(self, batch: CbowBatch, hidden: Tensor, learning_rate: float) -> None:
        """As `move` would, where each word is there once."""
        pairs = batch.pushed.starts.diff() * float(1 + self.plan.negatives)
        rows = batch.pushed.sums(hidden).mul_((LIMIT / pairs.clamp_(min=LIMIT / learning_rate))[:, None])
        self.inner.index_add_(0, batch.words, rows)

    def _gathered(self, batch: CbowBatch, begin: int, end: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The means, the centers, the noise and who has neighbors, of the groups from one to another."""
        counts = batch.counts[begin:end]
        sums = batch.near.part(begin * GROUP, end * GROUP).sums(self.inner).view(*counts.shape, -1)
        hidden = sums.div_(counts.clamp(min=1)[..., None])
        centers, noise = rows_of(self.outer, batch.centers[begin:end]), rows_of(self.outer, batch.noise[begin:end])
        return hidden, centers, noise, (counts > 0).to(hidden.dtype)

    def _pushes(self, batch: CbowBatch, begin: int, end: int) -> tuple[Tensor, Moved, Moved]:
        pushes = cbow(*self._gathered(batch, begin, end), self.plan.negatives)
        return pushes.hidden, (batch.centers[begin:end], pushes.centers), (batch.noise[begin:end], pushes.noise)

    def _loss(self, batch: CbowBatch) -> float:
        some = self._gathered(batch, 0, min(len(batch.centers), 2048 // GROUP))
        return float(loss_of(*some, self.plan.negatives) / some[-1].sum().clamp(min=1))

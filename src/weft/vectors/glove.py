"""GloVe (Pennington et al., 2014): vectors whose products are the logarithms of how often words stand together.

A part of the counts is a symmetric sparse matrix, its scores one sampled product, its gradients two sparse products.

v: words; m: counts of a part; d: width. A row of a table is a vector, a bias and a place for the other table's bias.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.data.chance import key_of, scrambled
from weft.errors import UserError
from weft.files import memory_here
from weft.vectors.plan import Learning

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
NEAR = 128  # distances have room in the lowest bits of a key


@dataclass(frozen=True)
class CooccurrenceCounts:
    """How often words stand together, nearer ones counting more: for each pair a key in order, and its count."""

    keys: Integers  # first * words + second, the first never the larger
    values: Floats


def count_together(blocks: Iterable[tuple[Integers, Integers]], words: int, window: int) -> CooccurrenceCounts:
    """The sum of 1 / distance over all pairs at most `window` apart; a block is words and their documents' numbers."""
    shares = 1 / np.maximum(np.arange(NEAR), 1)
    waiting: list[CooccurrenceCounts] = []
    for numbers, documents in blocks:
        keys = []
        for distance in range(1, min(window, len(numbers) - 1) + 1):
            left, right = numbers[:-distance], numbers[distance:]
            together = documents[:-distance] == documents[distance:]
            key = np.minimum(left, right) * words + np.maximum(left, right)
            keys.append((key * NEAR + distance)[together])
        if not keys:
            continue
        pairs = np.concatenate(keys)
        pairs.sort()  # numbers alone are sorted many times as fast as numbers with something beside them
        waiting.append(_summed(pairs // NEAR, shares[pairs % NEAR]))
        while len(waiting) > 1 and len(waiting[-1].keys) * 2 > len(waiting[-2].keys):
            waiting[-2:] = [_merged(*waiting[-2:])]
        if sum(len(some.keys) for some in waiting) * 64 > memory_here():
            raise UserError("the counts do not fit into the memory; a smaller vocabulary or window has fewer")
    while len(waiting) > 1:
        waiting[-2:] = [_merged(*waiting[-2:])]
    return waiting[0] if waiting else CooccurrenceCounts(np.zeros(0, np.int64), np.zeros(0))


def _summed(keys: Integers, values: Floats) -> CooccurrenceCounts:
    """Keys in order, each once, with the sum of their values."""
    first = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]][: len(keys)])
    return CooccurrenceCounts(keys[first], np.add.reduceat(values, first) if len(keys) else values)


def _merged(left: CooccurrenceCounts, right: CooccurrenceCounts) -> CooccurrenceCounts:
    keys, values = np.concatenate([left.keys, right.keys]), np.concatenate([left.values, right.values])
    order = np.argsort(keys, kind="stable")  # two runs in order: a merge, not a sort
    return _summed(keys[order], values[order])


@dataclass(frozen=True)
class CooccurrencePart:
    """Some of the counts as a sparse matrix that is symmetric in its places; `other` is where (j, i) lies."""

    starts: Tensor  # v+1: row i lies from starts[i] to starts[i+1]
    columns: Tensor  # m
    other: Tensor  # m
    logs: Tensor  # m
    weights: Tensor  # m

    def matrix(self, values: Tensor) -> Tensor:
        size = len(self.starts) - 1
        with warnings.catch_warnings():  # torch says once that its sparse matrices are young
            warnings.simplefilter("ignore")
            return torch.sparse_csr_tensor(self.starts, self.columns, values, (size, size), check_invariants=False)


def parts_of(
    counts: CooccurrenceCounts, words: int, plan: Learning, seed: int, device: torch.device
) -> list[CooccurrencePart]:
    """The counts in parts of about `plan.batch`, which pair lies in which drawn by the seed."""
    number = max(1, round(2 * len(counts.keys) / (plan.batch or 1 << 20)))
    lots = (scrambled(key_of(seed, "parts"), counts.keys) % np.uint64(number)).astype(np.int64)
    order = np.argsort(lots, kind="stable")
    borders = np.searchsorted(lots[order], np.arange(number + 1))
    parts = []
    for begin, end in zip(borders[:-1], borders[1:], strict=True):
        some = order[begin:end]
        first, second = np.divmod(counts.keys[some], words)
        same = first == second
        values = counts.values[some] * (1 + same)  # both words see the other, and they are one
        rows, columns = np.r_[first, second[~same]], np.r_[second, first[~same]]
        values = np.r_[values, values[~same]]
        keys = rows * words + columns
        place = np.argsort(keys)
        rows, columns, values, keys = rows[place], columns[place], values[place], keys[place]
        other = np.searchsorted(keys, columns * words + rows)
        starts = np.searchsorted(rows, np.arange(words + 1))
        weights = np.minimum(1, (values / (plan.ceiling or 100.0)) ** plan.power)
        arrays = (starts, columns, other, np.log(values).astype(np.float32), weights.astype(np.float32))
        parts.append(CooccurrencePart(*(torch.from_numpy(array).to(device) for array in arrays)))
    return parts


def pushes(part: CooccurrencePart, inner: Tensor, outer: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Half the weighted squares of a part, and their gradients for both tables, v d+2 each."""
    scores = torch.sparse.sampled_addmm(part.matrix(torch.zeros_like(part.logs)), inner, outer.mT, beta=0.0).values()
    apart = scores - part.logs
    pull = part.weights * apart
    loss = 0.5 * torch.dot(pull, apart)
    # The bias of each table meets a one in the other, which is no parameter and never moves.
    first, second = part.matrix(pull) @ outer, part.matrix(pull[part.other]) @ inner
    first[:, -1] = 0
    second[:, -2] = 0
    return loss, first, second


class Glove:
    """The two tables, and how a part of the counts moves them."""

    def __init__(
        self, plan: Learning, words: int, parts: list[CooccurrencePart], seed: int, device: torch.device
    ) -> None:
        self.plan, self.seed, self.parts = plan, seed, parts
        first = torch.Generator().manual_seed(key_of(seed, "word vectors") >> 1)
        tables = (torch.rand(2, words, plan.width + 2, generator=first) - 0.5) / plan.width
        tables[0, :, -1] = tables[1, :, -2] = 1
        self.inner, self.outer = tables.to(device).unbind(0)
        # As GloVe's program begins: a first step of the rate itself times the gradient. Biases begin near nothing as
        # well: from what counts would be by chance it learned no better (a million words, 5 epochs: WordSim-353 .11
        # against .17).
        self.inner_squares, self.outer_squares = torch.ones_like(tables, device=device).unbind(0)

    def tensors(self) -> dict[str, Tensor]:
        return {name: vars(self)[name] for name in ("inner", "outer", "inner_squares", "outer_squares")}

    def matrix(self) -> Tensor:
        """v d: the sum of both tables, as the paper has it."""
        return (self.inner + self.outer)[:, :-2]

    def learn(self, number: int) -> float:
        """The step of this number: one part; in every epoch their order is another. The mean loss of its counts."""
        epoch, place = divmod(number, len(self.parts))
        order = np.argsort(scrambled(key_of(self.seed, "epoch", epoch), np.arange(len(self.parts))))
        part = self.parts[order[place]]
        loss, first, second = pushes(part, self.inner, self.outer)
        steps = ((self.inner, self.inner_squares, first), (self.outer, self.outer_squares, second))
        learning_rate = self.plan.learning_rate or 0.05
        for table, squares, gradient in steps:
            # The squares are of steps, not of gradients, as GloVe's program has it: in the end a step is 1 / rate times
            # as long as AdaGrad's. With gradients it takes hundreds of epochs.
            squares.addcmul_(gradient, gradient, value=learning_rate * learning_rate)
            table.addcdiv_(gradient, squares.sqrt(), value=-learning_rate)
        return float(loss) / max(1, len(part.logs))

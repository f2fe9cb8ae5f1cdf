"""Windows of time series as a source of batches: each a row of numbers with the steps that follow it as its target.

N: steps of the windows of a batch; E: windows; F: numbers of a step; T: those to be forecast; H: steps ahead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from weft.data.masking import rows_of
from weft.data.rows import Drawn, ExampleSource, flat
from weft.data.series import Floats
from weft.data.shards import Places
from weft.nn.rows import Batch


@dataclass(frozen=True)
class Windows(ExampleSource):
    """Windows that share the numbers of their series; scaled when they are drawn."""

    values: Floats  # steps of all series x F
    begins: Places  # E: where each window begins
    sizes: Places  # E: its steps
    ends: Places  # E: where its series ends: what lies beyond is not known
    center: Floats  # E F
    spread: Floats  # E F
    horizon: int
    targets: int
    every: bool  # a target after every step, rather than after the last one
    more: dict[str, NDArray[Any]] = field(default_factory=dict)  # further targets of each window
    about: str = ""
    notes: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        return len(self.begins)

    @property
    def rows_count(self) -> int:
        return self.count

    @property
    def mean(self) -> float:
        return float(self.sizes.mean())

    @cached_property
    def even(self) -> bool:
        return bool((self.sizes == self.sizes[0]).all())

    @property
    def longest(self) -> int:
        return int(self.sizes.max())

    def lengths(self, numbers: Places) -> Places:
        return self.sizes[numbers]

    def for_training(self, most_rows: int, seed: int, fixed: bool) -> Windows:
        return self

    def draw(self, epochs: Places, numbers: Places) -> Drawn:
        lengths = self.sizes[numbers]
        owners = np.repeat(numbers, lengths)
        read = (self.values[flat(self.begins[numbers], lengths)] - self.center[owners]) / self.spread[owners]
        return Drawn(read.astype(np.float32), np.r_[0, lengths.cumsum()], batch=partial(self._batch, numbers))

    def _batch(self, numbers: Places, drawn: Drawn) -> Batch:
        """The windows with the steps that follow: of every step, or of the last."""
        lengths, ends = self.sizes[numbers], self.begins[numbers] + self.sizes[numbers]
        steps = flat(self.begins[numbers], lengths) if self.every else ends - 1
        owners = np.repeat(numbers, lengths) if self.every else numbers
        ahead = steps[:, None] + 1 + np.arange(self.horizon)
        known = ahead < self.ends[owners][:, None]
        values = self.values[np.minimum(ahead, len(self.values) - 1)][..., : self.targets]  # n H T
        center, spread = (each[owners][:, None, : self.targets] for each in (self.center, self.spread))
        future = ((values - center) / spread * known[..., None]).reshape(len(steps), -1)
        mask = np.repeat(known, self.targets, 1)
        arrays = {"future": future, "known": mask, **{name: each[numbers] for name, each in self.more.items()}}
        targets = {name: torch.from_numpy(np.ascontiguousarray(each, np.float32)) for name, each in arrays.items()}
        return Batch(torch.from_numpy(drawn.tokens), rows_of(lengths, int(lengths.max())), None, targets)


def joined(arrays: Sequence[Floats]) -> tuple[Floats, Places]:
    """Series one after the other, and where each begins."""
    return np.concatenate(arrays), np.cumsum([0, *map(len, arrays)])[:-1]

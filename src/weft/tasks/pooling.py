"""Vectors of texts from those of their tokens. N: tokens of all rows; B: rows; W: windows."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.nn.rows import Rows, sent
from weft.text.windows import TextWindow


def pooled(hidden: Tensor, rows: Rows, own: Tensor | None, pooling: str) -> Tensor:
    """N width -> B width: of each row the first token, the largest, or the sum over those that count (None: all)."""
    if pooling == "first":
        return hidden[rows.firsts()]
    if pooling == "max":
        numbers = rows.numbers(len(hidden))
        lowest = hidden.new_full((rows.count, hidden.shape[1]), -torch.inf)
        hidden = hidden if own is None else hidden.masked_fill(~own[:, None], -torch.inf)
        return lowest.scatter_reduce_(0, numbers[:, None].expand_as(hidden), hidden, "amax")
    if hidden.device.type == "cpu":
        # Not by torch: its threads would go on waiting on the processors that an engine's threads need next. Row by
        # row: copies of all tokens in float64 would take new memory each time, which costs more than the sums.
        plain = (hidden if hidden.dtype.itemsize > 2 else hidden.float()).numpy()  # NumPy has no bfloat16
        starts, counted = rows.starts.tolist(), None if own is None else own.numpy()
        sums = np.empty((rows.count, plain.shape[1]))
        for number, (start, end) in enumerate(pairwise(starts)):
            sums[number] = pooled_rows(plain[start:end], None if counted is None else counted[start:end], "mean")
        return torch.from_numpy(sums)
    total = torch.zeros(rows.count, hidden.shape[1], dtype=torch.float64, device=hidden.device)
    hidden = hidden.double() if own is None else hidden.double() * own[:, None]
    return total.index_add_(0, rows.numbers(len(hidden)), hidden)


def pooled_rows(states: NDArray[Any], own: NDArray[np.bool_] | None, pooling: str) -> NDArray[np.float64]:
    """n width -> width: of the tokens of a window that count the sum or the largest, or of all the first."""
    if pooling == "first":
        return states[0].astype(np.float64)
    kept = states if own is None or own.all() else states[own]
    if pooling == "max":
        return kept.max(axis=0, initial=-np.inf).astype(np.float64)
    total: NDArray[np.float64] = np.add.reduce(kept, axis=0, dtype=np.float64)
    return total


def outside(tokens: NDArray[np.int64], own: NDArray[np.bool_] | None, continuing: range) -> NDArray[np.bool_]:
    """Of the tokens that count (None: all) those that are not inside a spelled word."""
    kept: NDArray[np.bool_] = (tokens < continuing.start) | (tokens >= continuing.stop)
    return kept if own is None else own & kept


def whole(window: TextWindow) -> bool:
    """Whether all tokens of a window are its own."""
    cut = window.cut
    return cut.start == cut.first and cut.end == cut.last


def own_tokens(window: TextWindow, continuing: range = range(0)) -> NDArray[np.bool_]:
    """Which tokens of a window count: its own and its frame, not those of other windows or inside a spelled word."""
    cut, lead = window.cut, window.lead
    own: NDArray[np.bool_] = np.ones(len(window.tokens), dtype=np.bool_)
    own[lead : lead + cut.first - cut.start] = False
    own[lead + cut.last - cut.start : lead + cut.end - cut.start] = False
    return outside(np.array(window.tokens), own, continuing) if continuing else own


class TextSums:
    """Of each text the sum or the largest over the tokens of its windows, in float64, where the network is."""

    def __init__(self, count: int, width: int, pooling: str, device: torch.device) -> None:
        self.largest, self.counts = pooling == "max", np.zeros(count)
        lowest = -torch.inf if self.largest else 0.0
        self.sums = torch.full((count, width), lowest, dtype=torch.float64, device=device)

    def add(self, texts: NDArray[np.int64], pooled: Tensor, counts: NDArray[np.int64]) -> None:
        """Add windows of these texts: W width, and the tokens of each."""
        self.counts += np.bincount(texts, counts, len(self.counts))
        if self.sums.is_cpu:
            sums, join = self.sums.numpy(), np.maximum if self.largest else np.add
            for number, vector in zip(texts.tolist(), pooled.double().numpy(), strict=True):
                join(sums[number], vector, out=sums[number])
            return
        numbers = sent(torch.from_numpy(texts), self.sums.device)
        if self.largest:
            self.sums.scatter_reduce_(0, numbers[:, None].expand_as(pooled), pooled.double(), "amax")
        else:
            self.sums.index_add_(0, numbers, pooled.double())

    def vectors(self, normalize: bool) -> Callable[[], NDArray[np.float32]]:
        """What gives the vectors; a GPU need not be done with them yet."""
        counts, device = None if self.largest else self.counts, self.sums.device
        if device.type != "cuda":
            vectors = finished(self.sums.cpu().numpy(), counts, normalize)
            return lambda: vectors
        scaled = self.sums if counts is None else self.sums / sent(torch.from_numpy(counts), device)[:, None]
        if normalize:
            scaled = scaled / scaled.norm(dim=1, keepdim=True).clamp_min(1e-12)
        copy = torch.empty(scaled.shape, dtype=torch.float32, device="cpu", pin_memory=True)
        copy.copy_(scaled.float(), non_blocking=True)
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record(torch.cuda.current_stream(device))

        def given() -> NDArray[np.float32]:
            done.synchronize()
            return copy.numpy().copy()

        return given


def finished(sums: NDArray[np.float64], counts: NDArray[Any] | None, normalize: bool) -> NDArray[np.float32]:
    """The vectors of texts from the sums over their tokens, or from the largest where there are no `counts`."""
    with np.errstate(all="ignore"):  # what is no number is refused later
        vectors = sums if counts is None else sums / counts[:, None]
        if normalize:
            squared = np.add.reduce(vectors * vectors, axis=1, keepdims=True)
            vectors = vectors / np.maximum(np.sqrt(squared), 1e-12)
        return vectors.astype(np.float32)


def pinned_for(device: torch.device) -> Callable[[Tensor], Tensor]:
    """Where a device can fetch a tensor from while Python goes on: a plain copy waits for all passes before it."""
    return Tensor.pin_memory if device.type == "cuda" else lambda tensor: tensor

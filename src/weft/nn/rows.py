"""Ragged batches: a flat run of tokens and the places where each text begins. There is no padding above `attend()`.

N: tokens of all rows together; B: rows; T: places, as many as `rows.longest`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from weft.errors import UserError

T = TypeVar("T")
NOTHING = -100  # the label of a place where nothing is predicted
SMALL = 1 << 16  # bytes
Source = Sequence[int] | Sequence[Sequence[float]]  # what one row reads: tokens, or vectors of numbers in their place


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """A CPU tensor on a device, without waiting for what a GPU is doing."""
    if device.type != "cuda":
        return tensor.to(device)
    # CUDA copies a small tensor before it returns; to allocate pinned memory for it can take longer than a step.
    return (tensor if tensor.nbytes <= SMALL else tensor.pin_memory()).to(device, non_blocking=True)


@dataclass(frozen=True)
class Rows:
    """Where each text begins in a flat run of tokens."""

    starts: Tensor  # B+1 int32: row b is tokens[starts[b]:starts[b+1]]
    longest: int
    memo: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)  # what was worked out from the starts
    # Of each row its text and where in it the row begins, where texts were cut into windows and put into another order.
    windows: Sequence[tuple[int, int]] = field(default=(), repr=False, compare=False)

    @staticmethod
    def of(
        lengths: Sequence[int], device: torch.device | str | None = None, windows: Sequence[tuple[int, int]] = ()
    ) -> Rows:
        """Rows of these lengths, one after the other."""
        starts = torch.zeros(len(lengths) + 1, dtype=torch.int32)
        starts[1:] = torch.tensor(lengths, dtype=torch.int64).cumsum(0)
        return Rows(starts.to(device), max(lengths, default=0), windows=windows)

    @staticmethod
    def single(count: int, device: torch.device | str | None = None) -> Rows:
        """Rows of one token each: a decoding step."""
        return Rows(torch.arange(count + 1, dtype=torch.int32, device=device), 1)

    @property
    def count(self) -> int:
        return self.starts.shape[0] - 1

    def lengths(self) -> Tensor:
        """B: tokens of each row."""
        return self.starts[1:] - self.starts[:-1]

    def firsts(self) -> Tensor:
        """B: index of each row's first token; what first-token pooling needs."""
        return self.starts[:-1].long()

    def lasts(self) -> Tensor:
        """B: index of each row's last token; what next-word scores need."""
        return self.starts[1:].long() - 1

    def numbers(self, total: int) -> Tensor:
        """N: the row that each of the `total` tokens belongs to."""

        def work_out() -> Tensor:  # with output_size the GPU need not be asked how many tokens there are
            rows = torch.arange(self.count, device=self.starts.device)
            return torch.repeat_interleave(rows, self.lengths(), output_size=total)

        return self.once("numbers", work_out)

    def places(self, total: int) -> Tensor:
        """N: the place of each of the `total` tokens in its own row, from 0."""
        firsts, device = self.firsts, self.starts.device
        return self.once("places", lambda: torch.arange(total, device=device) - firsts()[self.numbers(total)])

    def once(self, name: Any, work_out: Callable[[], T]) -> T:
        """What all layers need of these rows, worked out by the first that asks."""
        if torch.compiler.is_compiling():  # the compiler sees by itself what is the same
            return work_out()
        # A tensor made in inference mode cannot take part in training later, so each mode keeps its own.
        key = (name, torch.is_inference_mode_enabled())
        if key not in self.memo:
            self.memo[key] = work_out()
        return self.memo[key]

    def map(self, change: Callable[[Tensor], Tensor]) -> Rows:
        return Rows(change(self.starts), self.longest, windows=self.windows)


@dataclass(frozen=True)
class Ragged:
    """Tokens of several texts in one flat run; or vectors, all of one length, in place of tokens."""

    tokens: Tensor  # N int64, or N features float
    rows: Rows

    @staticmethod
    def of(
        texts: Sequence[Source], device: torch.device | str | None = None, windows: Sequence[tuple[int, int]] = ()
    ) -> Ragged:
        flat = list(chain.from_iterable(texts))
        kind = np.float32 if flat and isinstance(flat[0], Sequence) else np.int64
        # By NumPy, which reads lists in a fraction of the time that torch.tensor takes.
        tokens = torch.from_numpy(np.array(flat, kind))
        return Ragged(tokens.to(device), Rows.of(list(map(len, texts)), device, windows))

    def map(self, change: Callable[[Tensor], Tensor]) -> Ragged:
        return Ragged(change(self.tokens), self.rows.map(change))


@dataclass(frozen=True)
class Batch:
    """What a network reads and an objective scores in one step."""

    tokens: Tensor
    rows: Rows
    segments: Tensor | None = None  # N: 0 for the first text of a pair, 1 for the second; or the language (XLM)
    targets: Mapping[str, Tensor] = field(default_factory=dict)
    source: Ragged | None = None  # what an encoder-decoder reads
    positions: Tensor | None = None  # N: where each token stands, where that is not its place in its row
    asked: Ragged | None = None  # places in `tokens` that are predicted, by row: the query stream of XLNet
    # The bytes of all tensors, where these lie in one piece of memory; `replace` and `map` leave it out.
    memory: Tensor | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def size(self) -> int:
        """Tokens read and written."""
        return len(self.tokens) + (0 if self.source is None else len(self.source.tokens))

    def map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        return Batch(
            change(self.tokens),
            self.rows.map(change),
            None if self.segments is None else change(self.segments),
            {name: change(target) for name, target in self.targets.items()},
            None if self.source is None else self.source.map(change),
            None if self.positions is None else change(self.positions),
            None if self.asked is None else self.asked.map(change),
        )

    def to(self, device: torch.device | str) -> Batch:
        ahead = torch.device(device).type != "cpu"  # a copy goes on in the background; to the CPU nobody would wait
        if self.memory is not None:
            return self._laid_into(self.memory.to(device, non_blocking=ahead))
        return self.map(lambda tensor: tensor.to(device, non_blocking=ahead))

    def pinned(self) -> Batch:
        """In memory that a GPU can fetch from while it works, all in one piece: one copy brings the whole batch."""
        return self.packed(pin=True)

    def packed(self, pin: bool = False) -> Batch:
        """The same, with all tensors in one piece of memory."""
        size = 0

        def add(tensor: Tensor) -> Tensor:
            nonlocal size
            size += _room(tensor)
            return tensor

        self.map(add)
        memory = torch.empty(size, dtype=torch.uint8, pin_memory=pin)
        return self._laid_into(memory, fill=True)

    def _laid_into(self, memory: Tensor, fill: bool = False) -> Batch:
        """Tensors of the same shapes, one after the other in this memory; with `fill` they are written there."""
        views, begin = dict[torch.dtype, Tensor](), 0

        def laid(tensor: Tensor) -> Tensor:
            nonlocal begin
            kind, shape = tensor.dtype, tensor.shape
            if kind not in views:
                views[kind] = memory.view(kind)
            first = begin // tensor.itemsize
            begin += _room(tensor)
            ours = views[kind][first : first + tensor.numel()]
            ours = ours if len(shape) == 1 else ours.view(shape)
            return ours.copy_(tensor) if fill else ours

        batch = self.map(laid)
        object.__setattr__(batch, "memory", memory)
        return batch


def _room(tensor: Tensor) -> int:
    """Bytes for a tensor, up to where the next one begins: aligned as if each had memory of its own."""
    return -(-tensor.numel() * tensor.itemsize // 256) * 256


class DecoderState:
    """What a decoder keeps between two steps of generation."""

    @property
    def attention(self) -> Tensor | None:
        """B S float32: attention to each source token in the latest step, where it was asked for."""
        return None

    def pick(self, rows: Tensor) -> None:
        """Keep these rows, in this order; a row may be asked for more than once."""
        raise NotImplementedError


class RowState(DecoderState):
    """A state that consists of a few tensors with a row for each text, which every step makes anew."""

    def parts(self) -> list[Tensor]:
        """What a step makes anew, B ... each."""
        raise NotImplementedError

    def put(self, parts: Sequence[Tensor]) -> None:
        """Go on from these in place of `parts()`."""
        raise NotImplementedError

    def read(self) -> list[Tensor]:
        """What every step reads of a source, B S ... each."""
        return []

    def join(self, state: Any) -> None:
        """Take in the rows of another state of this kind, after its own."""
        self.put([torch.cat(pair) for pair in zip(self.parts(), state.parts(), strict=True)])

    def laid_out(self, rows: int, source_room: int) -> RowState:
        """A state of the same kind for so many rows, with zeros in it, and sources of so many places."""
        raise NotImplementedError


class WindowState(RowState):
    """The last K tokens of each row, the newest last: all that a model of a fixed window goes on from."""

    def __init__(self, tokens: Tensor) -> None:
        self.tokens = tokens  # B K int64

    def pick(self, rows: Tensor) -> None:
        self.tokens = self.tokens.index_select(0, rows)

    def parts(self) -> list[Tensor]:
        return [self.tokens]

    def put(self, parts: Sequence[Tensor]) -> None:
        (self.tokens,) = parts

    def laid_out(self, rows: int, source_room: int) -> WindowState:
        return WindowState(self.tokens.new_zeros(rows, self.tokens.shape[1]))


def check_context(longest: int, context: int) -> None:
    """Refuse a text that is longer than a model may read or write."""
    if longest > context:
        raise UserError(f"a text of {longest} tokens is longer than the model's context of {context}")


def slots_of(rows: Rows, total: int, backwards: bool = False) -> Tensor:
    """N: where each of the `total` tokens stands in the rectangle T B; `backwards`: each row's last token first."""

    def work_out() -> Tensor:
        numbers, places = rows.numbers(total), rows.places(total)
        if backwards:
            places = rows.lengths().long()[numbers] - 1 - places
        return places * rows.count + numbers

    return rows.once(("slots", backwards), work_out)


def spread(x: Tensor, rows: Rows, backwards: bool = False) -> Tensor:
    """N ... -> T B ...: a column for each row, zeros below its end."""
    empty = x.new_zeros(rows.longest * rows.count, *x.shape[1:])
    full = empty.index_copy(0, slots_of(rows, x.shape[0], backwards), x)
    return full.view(rows.longest, rows.count, *x.shape[1:])


def gathered(x: Tensor, rows: Rows, total: int, backwards: bool = False) -> Tensor:
    """T B ... -> N ...: the places that hold one of the `total` tokens, in the order of the rows."""
    return x.flatten(0, 1).index_select(0, slots_of(rows, total, backwards))


def filled(rows: Rows) -> Tensor:
    """B T bool: the places that hold a token."""
    return torch.arange(rows.longest, device=rows.starts.device) < rows.lengths()[:, None]

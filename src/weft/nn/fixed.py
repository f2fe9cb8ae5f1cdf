"""Decoder states whose tensors keep their addresses, so that a step can be captured once as a CUDA graph.

Rows belong to slots: each prompt has a slot of `copies` rows (hypotheses of a beam, samples), which share its part of
the cache. Nothing is copied when a beam is reordered: a table says which row has written each place of a row's text.
R: rows; S: places; H: heads; D: width of a head.
"""

from __future__ import annotations

import math
from functools import cache
from importlib.util import find_spec
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.errors import shown
from weft.nn.attention import Cache, LayerMemory, Memory
from weft.nn.linear import INSIDE
from weft.nn.rows import DecoderState, Rows, RowState
from weft.progress import to_logger

SHARED = 160 << 10  # bytes of shared memory that the kernel for several rows needs: an A100 and newer GPUs have them


class Fixed(Protocol):
    """A decoder state in slots."""

    state: Any  # the argument of the decoder's `step`

    def admit(self, slots: Tensor, state: Any, rows: slice) -> None:
        """Copy these rows of a new state into slots, one each.

        No number may be assigned to an indexed tensor here: it would be sent to the GPU, and the host wait for that.
        """

    def reorder(self, parents: Tensor) -> None:
        """Row r goes on from row `parents[r]` of the same slot."""

    def settle(self) -> None:
        """Called after a step: copies its results to where the next step reads them."""


@cache
def has_kernel() -> bool:
    """Whether Triton works here: it is installed, supports the GPU, and finds the C compiler that it needs."""
    if find_spec("triton") is None:
        return False
    try:
        from weft.nn.choice_kernels import log_sums

        log_sums(torch.zeros(1, 1, device="cuda"))
    except Exception as error:  # of any kind: plain operators are used instead
        lines = str(error).strip().splitlines() or [type(error).__name__]
        to_logger(f"weft: note: answers without kernels of their own, which are faster: {shown(lines[-1], 200)}")
        return False
    return True


def mix(
    query: Tensor,
    new: tuple[Tensor, Tensor] | None,
    keys: Tensor,
    values: Tensor,
    lengths: Tensor,
    origin: Tensor | None = None,
    owner: Tensor | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """Each row's query (R H D) mixes the first `lengths` values of a cache (R S H D), and a `new` one that goes there.

    `origin` (R S): the row that holds each place of a row; `owner` (R): the row of the cache that a row reads.
    """
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    if query.is_cuda and query.dtype != torch.float64 and has_kernel():
        from weft.nn.kernels import attend_step

        return attend_step(query, new, keys, values, lengths, origin, owner, bias, scale)
    places = torch.arange(keys.shape[1], device=query.device)
    if new is not None:
        own = torch.arange(len(query), device=query.device)
        keys[own, lengths], values[own, lengths] = new
        if origin is not None:
            origin = torch.where(places == lengths[:, None], own[:, None], origin)
        lengths = lengths + 1
    if origin is not None:
        keys, values = (x.flatten(0, 1)[origin * len(places) + places] for x in (keys, values))
    elif owner is not None:
        keys, values, lengths = keys[owner], values[owner], lengths[owner]
    may = (places < lengths[:, None].clamp(min=1))[:, None, None]  # R 1 1 S
    zero = torch.zeros((), dtype=query.dtype, device=query.device) if bias is None else bias.to(query.dtype)
    mixed = F.scaled_dot_product_attention(
        query.unsqueeze(2), keys.transpose(1, 2), values.transpose(1, 2), zero.where(may, -torch.inf), scale=scale
    )
    return mixed.squeeze(2)


class FixedCache(DecoderState):
    """A cache of keys and values with a fixed number of rows and places."""

    even = False  # rows have lengths of their own

    def __init__(self, like: Cache, slots: int, copies: int, room: int, source_room: int) -> None:
        device, rows = like.lengths.device, slots * copies
        self.state = self
        self.copies, self.room = copies, room
        self.longest = room - 1  # of which masks and biases are made: all places, the new token included
        self.lengths = torch.zeros(rows, dtype=torch.int64, device=device)
        self.own = torch.arange(rows, device=device)
        self.places = torch.arange(room, device=device)
        self.origin = self.own[:, None].repeat(1, room) if copies > 1 else None
        self.layers = [FixedLayer(self, layer.keys, rows) for layer in like.layers]
        self.memory = None if like.memory is None else FixedMemory(like.memory, slots, copies, source_room)

    def advance(self) -> None:
        """Count in the token that the last step added; rows that are done go no further than their room."""
        self.lengths.add_(1).clamp_(max=self.room - 1)

    def admit(self, slots: Tensor, state: Cache, rows: slice) -> None:
        firsts = slots * self.copies
        every = (firsts[:, None] + torch.arange(self.copies, device=slots.device)).flatten()
        for layer, own in zip(self.layers, state.layers, strict=True):
            for ours, theirs in ((layer.keys, own.keys), (layer.values, own.values)):
                ours[:, : state.longest].index_copy_(0, firsts, theirs[: state.longest, rows].transpose(0, 1))
        # One that fills the context has a token to choose, and none to read.
        lengths = state.lengths[rows].clamp(max=self.room - 1).repeat_interleave(self.copies)
        self.lengths.index_copy_(0, every, lengths)
        if self.origin is not None:
            first = firsts.repeat_interleave(self.copies)[:, None]
            origin = torch.where(self.places < lengths[:, None], first, every[:, None])
            self.origin.index_copy_(0, every, origin)
        if self.memory is not None:
            assert state.memory is not None
            self.memory.admit(slots, state.memory, rows)

    def reorder(self, parents: Tensor) -> None:
        if self.origin is not None:
            before = self.places < self.lengths[:, None]
            torch.where(before, self.origin[parents], self.own[:, None], out=self.origin)

    def settle(self) -> None:
        """A step has written where it reads."""


class FixedLayer:
    """Keys and values of one layer, R S H D each."""

    filled = True
    # Rows for which a layer goes through kernels of its own: few in any precision, more in half precision.
    FEW, SEVERAL = 4, 64

    def __init__(self, cache: FixedCache, like: Tensor, rows: int) -> None:
        self.cache = cache
        shape = (rows, cache.room, *like.shape[2:])
        self.keys, self.values = like.new_zeros(shape), like.new_zeros(shape)

    def fuses(self, x: Tensor, activation: str) -> bool:
        """Whether a layer takes this step through kernels that do several things at once."""
        if not x.is_cuda or x.dtype == torch.float64 or activation not in INSIDE or not has_kernel():
            return False
        from weft.nn.kernels import shared_memory

        several = len(x) <= self.SEVERAL and x.dtype.itemsize == 2 and shared_memory(x.device) >= SHARED
        return len(x) <= self.FEW or several

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None,
        scale: float | None = None,
        want_weights: bool = False,
    ) -> tuple[Tensor, None]:
        """Take in one new token per row and mix what it sees: R H D each; bias R H 1 S."""
        assert not want_weights, "a watched network decodes with a plain cache"
        cache = self.cache
        mixed = mix(query, (key, value), self.keys, self.values, cache.lengths, cache.origin, None, bias, scale)
        return mixed, None


class FixedMemory:
    """What an encoder has read, a source for each slot."""

    attention = None

    def __init__(self, like: Memory, slots: int, copies: int, room: int) -> None:
        device = like.owners.device
        self.lengths = torch.zeros(slots, dtype=torch.int64, device=device)
        self.owners = torch.arange(slots, device=device).repeat_interleave(copies)
        self.layers = [FixedLayerMemory(self, layer.keys, slots, room) for layer in like.layers]

    def admit(self, slots: Tensor, memory: Memory, rows: slice) -> None:
        self.lengths.index_copy_(0, slots, memory.rows.lengths()[rows].long())
        for layer, own in zip(self.layers, memory.layers, strict=True):
            for ours, theirs in ((layer.keys, own.keys), (layer.values, own.values)):
                ours[:, : theirs.shape[2]].index_copy_(0, slots, theirs[rows].transpose(1, 2))

    def settle(self) -> None:
        """Nobody watches."""


class FixedLayerMemory(LayerMemory):
    """Keys and values of one layer, sources S H D each."""

    def __init__(self, memory: FixedMemory, like: Tensor, slots: int, room: int) -> None:
        shape = (slots, room, like.shape[1], like.shape[3])
        self.keys, self.values = like.new_zeros(shape), like.new_zeros(shape)
        self.fixed = memory

    def attend(
        self, query: Tensor, rows: Rows, scale: float | None = None, want_weights: bool = False
    ) -> tuple[Tensor, None]:
        assert not want_weights, "a watched network decodes with a plain memory"
        memory = self.fixed
        return mix(query, None, self.keys, self.values, memory.lengths, owner=memory.owners, scale=scale), None


class FixedRows:
    """A state of a few vectors for each row, which every step makes anew, and perhaps a source that it looks at."""

    def __init__(self, like: RowState, slots: int, copies: int, room: int, source_room: int) -> None:
        self.state, self.copies = like.laid_out(slots * copies, source_room), copies
        self.parts = self.state.parts()

    def admit(self, slots: Tensor, state: RowState, rows: slice) -> None:
        every = (slots[:, None] * self.copies + torch.arange(self.copies, device=slots.device)).flatten()
        for ours, theirs in zip(self.parts, state.parts(), strict=True):
            ours[every] = theirs[rows].repeat_interleave(self.copies, 0)
        for ours, theirs in zip(self.state.read(), state.read(), strict=True):
            ours.index_fill_(0, every, 0)
            ours[every, : theirs.shape[1]] = theirs[rows].repeat_interleave(self.copies, 0)

    def reorder(self, parents: Tensor) -> None:
        if self.copies > 1:
            for part in self.parts:
                part.copy_(part.index_select(0, parents))

    def settle(self) -> None:
        for ours, new in zip(self.parts, self.state.parts(), strict=True):
            ours.copy_(new)
        self.state.put(self.parts)

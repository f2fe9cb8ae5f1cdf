"""Attention of a decoding step as one kernel for NVIDIA GPUs, in place of a dozen; loaded only where Triton is there.

Of each row the new key and value are written into the cache, and its query mixes all values so far, read from the rows
that its beginning was written by. R: rows; S: places; H: heads; D: width of a head.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit  # type: ignore[untyped-decorator]
def _attend_step(  # type: ignore[no-untyped-def]
    query,
    key,
    value,
    keys,
    values,
    lengths,
    origin,
    owner,
    bias,
    mixed,
    scale,
    q_row,
    q_head,
    k_row,
    k_head,
    v_row,
    v_head,
    c_row,
    c_place,
    c_head,
    b_row,
    b_head,
    places,
    heads: tl.constexpr,
    width: tl.constexpr,
    columns: tl.constexpr,
    block: tl.constexpr,
    has_new: tl.constexpr,
    has_origin: tl.constexpr,
    has_owner: tl.constexpr,
    has_bias: tl.constexpr,
):
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = tl.arange(0, columns)
    inside = column < width
    q = tl.load(query + row * q_row + head * q_head + column, mask=inside, other=0.0).to(tl.float32) * scale
    own = tl.load(owner + row).to(tl.int64) if has_owner else row
    length = tl.load(lengths + own).to(tl.int32) if has_owner else tl.load(lengths + row).to(tl.int32)
    highest = tl.full([], -1e30, tl.float32)  # lower than any score, and a number: two of it differ by nothing
    total = tl.full([], 0.0, tl.float32)
    sums = tl.zeros([columns], tl.float32)
    if has_new:
        new_key = tl.load(key + row * k_row + head * k_head + column, mask=inside, other=0.0)
        new_value = tl.load(value + row * v_row + head * v_head + column, mask=inside, other=0.0)
        where = row * c_row + length.to(tl.int64) * c_place + head * c_head + column
        tl.store(keys + where, new_key, mask=inside)
        tl.store(values + where, new_value, mask=inside)
        highest = tl.sum(q * new_key.to(tl.float32), 0)
        if has_bias:
            highest += tl.load(bias + row * b_row + head * b_head + length).to(tl.float32)
        total = tl.full([], 1.0, tl.float32)
        sums = new_value.to(tl.float32)
    for first in range(0, length, block):
        place = first + tl.arange(0, block)
        there = place < length
        source = tl.load(origin + row * places + place, mask=there, other=0).to(tl.int64) if has_origin else own
        start = source * c_row + place.to(tl.int64) * c_place + head * c_head
        cells = there[:, None] & inside[None, :]
        k = tl.load(keys + start[:, None] + column[None, :], mask=cells, other=0.0).to(tl.float32)
        scores = tl.sum(k * q[None, :], 1)
        if has_bias:
            scores += tl.load(bias + row * b_row + head * b_head + place, mask=there, other=0.0).to(tl.float32)
        scores = tl.where(there, scores, -float("inf"))
        peak = tl.maximum(highest, tl.max(scores, 0))
        powers = tl.exp(scores - peak)
        before = tl.exp(highest - peak)
        v = tl.load(values + start[:, None] + column[None, :], mask=cells, other=0.0).to(tl.float32)
        sums = sums * before + tl.sum(powers[:, None] * v, 0)
        total = total * before + tl.sum(powers, 0)
        highest = peak
    out = mixed + (row * heads + head) * width + column
    tl.store(out, (sums / total).to(mixed.dtype.element_ty), mask=inside)


def attend_step(
    query: Tensor,
    new: tuple[Tensor, Tensor] | None,
    keys: Tensor,
    values: Tensor,
    lengths: Tensor,
    origin: Tensor | None,
    owner: Tensor | None,
    bias: Tensor | None,
    scale: float,
) -> Tensor:
    """R H D; arguments as those of `weft.nn.fixed.mix`."""
    rows, heads, width = query.shape
    mixed = torch.empty_like(query, memory_format=torch.contiguous_format)
    key, value = (query, query) if new is None else new
    row_step = 0 if bias is None or bias.shape[0] == 1 else bias.stride(0)
    _attend_step[rows, heads](
        query,
        key,
        value,
        keys,
        values,
        lengths,
        lengths if origin is None else origin,
        lengths if owner is None else owner,
        query if bias is None else bias,
        mixed,
        scale,
        query.stride(0),
        query.stride(1),
        key.stride(0),
        key.stride(1),
        value.stride(0),
        value.stride(1),
        keys.stride(0),
        keys.stride(1),
        keys.stride(2),
        row_step,
        0 if bias is None else bias.stride(1),
        keys.shape[1],
        heads=heads,
        width=width,
        columns=triton.next_power_of_2(width),
        block=64,
        has_new=new is not None,
        has_origin=origin is not None,
        has_owner=owner is not None,
        has_bias=bias is not None,
        num_warps=4,
    )
    return mixed

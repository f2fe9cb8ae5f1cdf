"""Triton kernels for decoding and small passes on NVIDIA GPUs, each in place of many launches of torch's kernels.

R: rows; S: places; H: heads; D: width of a head; K: inputs of a linear map; N: its outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

ACTIVATIONS = {"": 0, "gelu": 1, "gelu-tanh": 2, "relu": 3, "silu": 4}
VERY_FEW = 4  # rows that are multiplied one by one
FEW, MANY = 64, 1024  # programs of attention: those of one text, and more than a GPU runs at once
MOST_FEW, LARGEST = 64, 1 << 18  # tokens that `best_few` finds, and of how many
MOST_BEAM = 128  # extensions of a slot in `beam_step`
P = ParamSpec("P")
T = TypeVar("T")


def on_its_device(launch: Callable[Concatenate[Tensor, P], T]) -> Callable[Concatenate[Tensor, P], T]:
    """Launch on the GPU of the first tensor, as torch's operators do; Triton would use the current GPU."""

    @wraps(launch)
    def launched(x: Tensor, /, *given: P.args, **named: P.kwargs) -> T:
        with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
            return launch(x, *given, **named)

    return launched


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
    b_place,
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
    highest = tl.full([], -1e30, tl.float32)  # lower than any score, but finite: -inf - -inf would be NaN
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
            highest += tl.load(bias + row * b_row + head * b_head + length * b_place).to(tl.float32)
        total = tl.full([], 1.0, tl.float32)
        sums = new_value.to(tl.float32)
    for first in range(0, length, block):
        place = first + tl.arange(0, block)
        there = place < length
        source = tl.load(origin + row * places + place, mask=there, other=0).to(tl.int64) if has_origin else own
        start = source * c_row + place.to(tl.int64) * c_place + head * c_head
        cells = there[:, None] & inside[None, :]
        k = tl.load(keys + start[:, None] + column[None, :], mask=cells, other=0.0).to(tl.float32)
        v = tl.load(values + start[:, None] + column[None, :], mask=cells, other=0.0).to(tl.float32)
        scores = tl.sum(k * q[None, :], 1)
        if has_bias:
            added = tl.load(bias + row * b_row + head * b_head + place * b_place, mask=there, other=0.0)
            scores += added.to(tl.float32)
        scores = tl.where(there, scores, -float("inf"))
        peak = tl.maximum(highest, tl.max(scores, 0))
        powers = tl.exp(scores - peak)
        before = tl.exp(highest - peak)
        sums = sums * before + tl.sum(powers[:, None] * v, 0)
        total = total * before + tl.sum(powers, 0)
        highest = peak
    out = mixed + (row * heads + head) * width + column
    # A row without any keys gives 0: the NaN of 0 / 0 would lead to an invalid token.
    sums = sums / tl.where(total > 0.0, total, 1.0)
    tl.store(out, sums.to(mixed.dtype.element_ty), mask=inside)


def tile_of(programs: int) -> tuple[int, int]:
    """Places that a program of `_attend_step` reads at once, and its warps: the best of ten settings on an H200.

    Few programs are bound by the latency of memory, so each reads much at once; many keep the GPU busy anyway.
    """
    return (256, 8) if programs <= FEW else (128, 4) if programs <= MANY else (16, 1)


@on_its_device
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
    """Attention of a decoding step: R H D; arguments as those of `weft.nn.fixed.mix`.

    The new key and value of each row are written into the cache. Its query then attends to all places so far, each read
    from the row that has written it (`origin`).
    """
    rows, heads, width = query.shape
    mixed = torch.empty_like(query, memory_format=torch.contiguous_format)
    key, value = (query, query) if new is None else new
    tile = tile_of(rows * heads)
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
        0 if bias is None else bias.stride(3),
        keys.shape[1],
        heads=heads,
        width=width,
        columns=triton.next_power_of_2(width),
        block=tile[0],
        has_new=new is not None,
        has_origin=origin is not None,
        has_owner=owner is not None,
        has_bias=bias is not None,
        num_warps=tile[1],
    )
    return mixed


@triton.jit  # type: ignore[untyped-decorator]
def _bent(x, activation: tl.constexpr):  # type: ignore[no-untyped-def]
    """The activation with this number in `ACTIVATIONS`."""
    if activation == 1:
        x = 0.5 * x * (1.0 + tl.math.erf(x * 0.7071067811865476))
    elif activation == 2:
        inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        x = x * tl.sigmoid(2.0 * inner)
    elif activation == 3:
        x = tl.maximum(x, 0.0)
    elif activation == 4:
        x = x * tl.sigmoid(x)
    return x


@triton.jit  # type: ignore[untyped-decorator]
def _linear_step(  # type: ignore[no-untyped-def]
    x,
    weight,
    bias,
    gain,
    shift,
    residual,
    out,
    epsilon,
    inputs: tl.constexpr,
    outputs: tl.constexpr,
    chunk: tl.constexpr,
    columns: tl.constexpr,
    activation: tl.constexpr,
    has_norm: tl.constexpr,
    has_shift: tl.constexpr,
    has_bias: tl.constexpr,
    has_residual: tl.constexpr,
):
    row = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * columns + tl.arange(0, columns)
    inside = column < outputs
    middle, spread = 0.0, 1.0
    if has_norm:
        total = tl.zeros([chunk], tl.float32)
        for first in tl.static_range(0, inputs, chunk):
            place = first + tl.arange(0, chunk)
            total += tl.load(x + row * inputs + place, mask=place < inputs, other=0.0).to(tl.float32)
        middle = tl.sum(total, 0) / inputs if has_shift else 0.0
        total = tl.zeros([chunk], tl.float32)
        for first in tl.static_range(0, inputs, chunk):
            place = first + tl.arange(0, chunk)
            apart = tl.load(x + row * inputs + place, mask=place < inputs, other=0.0).to(tl.float32) - middle
            total += tl.where(place < inputs, apart * apart, 0.0)
        spread = tl.rsqrt(tl.sum(total, 0) / inputs + epsilon)
    sums = tl.zeros([columns], tl.float32)
    for first in tl.static_range(0, inputs, chunk):
        place = first + tl.arange(0, chunk)
        there = place < inputs
        cells = inside[:, None] & there[None, :]
        part = tl.load(weight + column.to(tl.int64)[:, None] * inputs + place[None, :], mask=cells, other=0.0)
        read = tl.load(x + row * inputs + place, mask=there, other=0.0).to(tl.float32)
        if has_norm:
            read = (read - middle) * spread * tl.load(gain + place, mask=there, other=0.0).to(tl.float32)
            if has_shift:
                read += tl.load(shift + place, mask=there, other=0.0).to(tl.float32)
            read = read.to(x.dtype.element_ty).to(tl.float32)  # rounded as the output of a separate norm
        sums += tl.sum(part.to(tl.float32) * read[None, :], 1)
    if has_bias:
        sums += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    if activation > 0:
        sums = _bent(sums.to(out.dtype.element_ty).to(tl.float32), activation)
    if has_residual:
        before = tl.load(residual + row * outputs + column, mask=inside, other=0.0).to(tl.float32)
        sums = sums.to(out.dtype.element_ty).to(tl.float32) + before
    tl.store(out + row * outputs + column, sums.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows"])  # type: ignore[untyped-decorator]
def _linear_rows(  # type: ignore[no-untyped-def]
    x,
    weight,
    bias,
    gain,
    shift,
    residual,
    out,
    rows,
    epsilon,
    inputs: tl.constexpr,
    outputs: tl.constexpr,
    block: tl.constexpr,
    columns: tl.constexpr,
    chunk: tl.constexpr,
    activation: tl.constexpr,
    has_norm: tl.constexpr,
    has_shift: tl.constexpr,
    has_bias: tl.constexpr,
    has_residual: tl.constexpr,
):
    """`_linear_step` for a block of rows at a time, on tensor cores."""
    row = tl.program_id(1) * block + tl.arange(0, block)
    column = tl.program_id(0) * columns + tl.arange(0, columns)
    here, inside = row < rows, column < outputs
    start = tl.arange(0, chunk)
    x_at = x + row[:, None] * inputs + start[None, :]
    weight_at = weight + column.to(tl.int64)[None, :] * inputs + start[:, None]
    middle = tl.zeros([block], tl.float32)
    spread = tl.zeros([block], tl.float32)
    if has_norm:
        if has_shift:
            total = tl.zeros([block, chunk], tl.float32)
            for first in tl.static_range(0, inputs, chunk):
                cells = here[:, None] & (first + start < inputs)[None, :]
                total += tl.load(x_at + first, mask=cells, other=0.0).to(tl.float32)
            middle = tl.sum(total, 1) / inputs
        total = tl.zeros([block, chunk], tl.float32)
        for first in tl.static_range(0, inputs, chunk):
            cells = here[:, None] & (first + start < inputs)[None, :]
            apart = tl.load(x_at + first, mask=cells, other=0.0).to(tl.float32) - middle[:, None]
            total += tl.where(cells, apart * apart, 0.0)
        spread = tl.rsqrt(tl.sum(total, 1) / inputs + epsilon)
    sums = tl.zeros([block, columns], tl.float32)
    for begin in range(0, inputs, chunk):
        place = begin + start
        there = place < inputs
        part = tl.load(weight_at + begin, mask=there[:, None] & inside[None, :], other=0.0).to(x.dtype.element_ty)
        read = tl.load(x_at + begin, mask=here[:, None] & there[None, :], other=0.0)
        if has_norm:
            scaled = (read.to(tl.float32) - middle[:, None]) * spread[:, None]
            scaled *= tl.load(gain + place, mask=there, other=0.0).to(tl.float32)[None, :]
            if has_shift:
                scaled += tl.load(shift + place, mask=there, other=0.0).to(tl.float32)[None, :]
            read = scaled.to(x.dtype.element_ty)  # rounded as the output of a separate norm
        sums = tl.dot(read, part, sums, input_precision="ieee")
    if has_bias:
        sums += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)[None, :]
    if activation > 0:
        sums = _bent(sums.to(out.dtype.element_ty).to(tl.float32), activation)
    cells = here[:, None] & inside[None, :]
    where = row[:, None] * outputs + column[None, :]
    if has_residual:
        before = tl.load(residual + where, mask=cells, other=0.0).to(tl.float32)
        sums = sums.to(out.dtype.element_ty).to(tl.float32) + before
    tl.store(out + where, sums.to(out.dtype.element_ty), mask=cells)


def columns_of(outputs: int, inputs: int) -> tuple[int, int]:
    """Outputs of a program of `_linear_step`, and its warps: the best of eleven settings on an H200."""
    return (2, 1) if inputs <= 1024 else (1, 1)


class Tile(NamedTuple):
    """How `_linear_rows` divides its work."""

    block: int  # rows of a program; at least 16, as all sides of a product on tensor cores
    columns: int  # its outputs
    chunk: int  # inputs that it multiplies at a time
    warps: int
    stages: int  # chunks that are under way


def tile_of_rows(rows: int, outputs: int, inputs: int) -> Tile:
    """The tile of `_linear_rows`: as few outputs as possible, so that there is a program for most of the GPU's cores.

    The time is that of reading weights, and one program can have only so many reads under way.
    """
    block = 16 if rows <= 16 or (rows <= 32 and outputs <= 1024) else 32
    warps = 8 if block == 32 and inputs > 1024 else 4  # a norm keeps whole rows in registers
    # A chunk of 256: each thread loads two weights of a norm, the fewest that can be loaded ahead.
    return Tile(block, 16 if outputs <= 4096 else 32, 256, warps, 3 if inputs <= 1024 else 4)


@on_its_device
def linear_step(
    x: Tensor,
    map: nn.Linear,
    norm: Any = None,
    activation: str = "",
    residual: Tensor | None = None,
    tile: Tile | None = None,
) -> Tensor:
    """R K -> R N for few rows: norm, linear map, activation and residual in one kernel.

    `tile`: for more than `VERY_FEW` rows, in place of the usual one.
    """
    rows, inputs = x.shape
    outputs = map.weight.shape[0]
    x, out = x.contiguous(), x.new_empty(rows, outputs)
    shift = norm.bias if isinstance(norm, nn.LayerNorm) else None
    tensors = (
        x,
        map.weight.contiguous(),  # a copy only for weights that are views of transposed tables
        x if map.bias is None else map.bias,
        x if norm is None else norm.weight,
        x if shift is None else shift,
        x if residual is None else residual.contiguous(),
        out,
    )
    settings = {
        "inputs": inputs,
        "outputs": outputs,
        "activation": ACTIVATIONS[activation],
        "has_norm": norm is not None,
        "has_shift": shift is not None,
        "has_bias": map.bias is not None,
        "has_residual": residual is not None,
    }
    epsilon = 0.0 if norm is None else norm.eps
    if rows <= VERY_FEW:
        chunk = min(1024, triton.next_power_of_2(inputs))
        columns, warps = columns_of(outputs, inputs)
        grid = triton.cdiv(outputs, columns), rows
        _linear_step[grid](*tensors, epsilon, **settings, chunk=chunk, columns=columns, num_warps=warps)
        return out
    tile = tile or tile_of_rows(rows, outputs, inputs)
    _linear_rows[triton.cdiv(outputs, tile.columns), triton.cdiv(rows, tile.block)](
        *tensors,
        rows,
        epsilon,
        **settings,
        block=tile.block,
        columns=tile.columns,
        chunk=max(16, min(tile.chunk, triton.next_power_of_2(inputs))),
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return out


@triton.jit  # type: ignore[untyped-decorator]
def _add_norm(  # type: ignore[no-untyped-def]
    x,
    residual,
    gain,
    shift,
    total,
    normed,
    epsilon,
    width: tl.constexpr,
    block: tl.constexpr,
    keeps: tl.constexpr,
    centers: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, block)
    there = place < width
    whole = tl.load(x + row * width + place, mask=there, other=0.0).to(tl.float32)
    whole += tl.load(residual + row * width + place, mask=there, other=0.0).to(tl.float32)
    whole = whole.to(x.dtype.element_ty).to(tl.float32)  # rounded as the output of a separate addition
    if keeps:
        tl.store(total + row * width + place, whole.to(x.dtype.element_ty), mask=there)
    if centers:
        whole = tl.where(there, whole - tl.sum(whole, 0) / width, 0.0)
    spread = tl.rsqrt(tl.sum(whole * whole, 0) / width + epsilon)
    scaled = whole * spread * tl.load(gain + place, mask=there, other=0.0).to(tl.float32)
    if centers:
        scaled += tl.load(shift + place, mask=there, other=0.0).to(tl.float32)
    tl.store(normed + row * width + place, scaled.to(x.dtype.element_ty), mask=there)


@on_its_device
def add_norm(x: Tensor, residual: Tensor, norm: Any, keeps: bool) -> tuple[Tensor, Tensor]:
    """R K: x + residual and its layer or RMS norm in one kernel; the sum is only valid with `keeps`."""
    centers = isinstance(norm, nn.LayerNorm)
    x, residual = x.contiguous(), residual.contiguous()
    rows, width = x.shape
    total, normed = torch.empty_like(x) if keeps else x, torch.empty_like(x)
    block = triton.next_power_of_2(width)
    _add_norm[(rows,)](
        x,
        residual,
        norm.weight,
        norm.bias if centers else x,
        total,
        normed,
        norm.eps,
        width=width,
        block=block,
        keeps=keeps,
        centers=centers,
        num_warps=4 if block <= 2048 else 8,
    )
    return total, normed


@triton.jit  # type: ignore[untyped-decorator]
def _best_part(scores, peaks, places, sums, size, block: tl.constexpr, parts: tl.constexpr):  # type: ignore[no-untyped-def]
    """For one part of a row: its highest score, the place of it, and the sum of exp(score - highest)."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    place = part * block + tl.arange(0, block)
    score = tl.load(scores + row * size + place, mask=place < size, other=-float("inf")).to(tl.float32)
    peak = tl.max(score, 0)
    broken = tl.max((score != score).to(tl.int32), 0)  # a NaN must show in the log-probability
    first = tl.min(tl.where(score == peak, place, size), 0)
    total = tl.sum(tl.where(place < size, tl.exp(score - tl.where(peak > -1e38, peak, 0.0)), 0.0), 0)
    tl.store(peaks + row * parts + part, peak)
    tl.store(places + row * parts + part, first)
    tl.store(sums + row * parts + part, tl.where(broken > 0, float("nan"), total))


@triton.jit  # type: ignore[untyped-decorator]
def _take_best(  # type: ignore[no-untyped-def]
    peaks,
    places,
    sums,
    tokens,
    written,
    logprobs,
    counts,
    limits,
    done,
    ends,
    length,
    size,
    parts: tl.constexpr,
    block: tl.constexpr,
    end_count: tl.constexpr,
):
    """Take the best token of a row that is not done, store it, and note whether the row ends with it."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, block)
    there = part < parts
    peak = tl.load(peaks + row * parts + part, mask=there, other=-float("inf"))
    highest = tl.max(peak, 0)
    place = tl.load(places + row * parts + part, mask=there, other=2147483647)
    token = tl.min(tl.where(peak == highest, place, 2147483647), 0)
    token = tl.where(token < size, token, 0)  # if all scores are NaN; the log-probability below is then NaN
    powers = tl.load(sums + row * parts + part, mask=there, other=0.0)
    total = tl.sum(tl.where(peak > -1e38, powers * tl.exp(peak - highest), tl.where(powers != powers, powers, 0.0)), 0)
    over = tl.load(done + row)
    count = tl.load(counts + row)
    tl.store(tokens + row, token.to(tl.int64))
    if over == 0:
        where = row * length + tl.minimum(count, length - 1)
        tl.store(written + where, token.to(tl.int64))
        tl.store(logprobs + where, (-tl.log(total)).to(tl.float64))
        count += 1
        ended = (count >= tl.load(limits + row)).to(tl.int32)
        for number in tl.static_range(end_count):
            ended = tl.maximum(ended, (token == tl.load(ends + number)).to(tl.int32))
        tl.store(counts + row, count)
        tl.store(done + row, (ended > 0).to(tl.int8))


@on_its_device
def take_best(
    scores: Tensor,
    tokens: Tensor,
    written: Tensor,
    logprobs: Tensor,
    counts: Tensor,
    limits: Tensor,
    done: Tensor,
    ends: Tensor,
) -> None:
    """Choose the tokens of a step of greedy search in two kernels; arguments as in `SampleSlots`."""
    rows, size = scores.shape
    block = 4096
    parts = triton.cdiv(size, block)
    peaks, sums = scores.new_empty(2, rows, parts, dtype=torch.float32)
    places = scores.new_empty(rows, parts, dtype=torch.int32)
    _best_part[rows, parts](scores, peaks, places, sums, size, block=block, parts=parts, num_warps=8)
    _take_best[(rows,)](
        peaks,
        places,
        sums,
        tokens,
        written,
        logprobs,
        counts,
        limits,
        done.view(torch.int8),
        ends,
        written.shape[1],
        size,
        parts=parts,
        block=triton.next_power_of_2(parts),
        end_count=len(ends),
        num_warps=1,
    )


@triton.jit  # type: ignore[untyped-decorator]
def _best_groups(  # type: ignore[no-untyped-def]
    scores,
    peaks,
    highest,
    sums,
    size,
    groups,
    parts,
    count: tl.constexpr,
    wide: tl.constexpr,
):
    """For a part of a row: the highest score of each group and of all, and the sum of exp(score - highest)."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    group = part * count + tl.arange(0, count)
    place = group[:, None] * wide + tl.arange(0, wide)[None, :]
    score = tl.load(scores + row * size + place, mask=place < size, other=-float("inf")).to(tl.float32)
    peak = tl.max(score, 1)
    tl.store(peaks + row * groups + group, peak, mask=group < groups)
    best = tl.max(peak, 0)
    powers = tl.where(place < size, tl.exp(score - tl.where(best > -1e38, best, 0.0)), 0.0)  # a NaN makes its sum NaN
    tl.store(highest + row * parts + part, best)
    tl.store(sums + row * parts + part, tl.sum(tl.sum(powers, 1), 0))


@triton.jit  # type: ignore[untyped-decorator]
def _best_few(  # type: ignore[no-untyped-def]
    scores,
    peaks,
    highest,
    sums,
    tokens,
    logprobs,
    size,
    groups,
    parts,
    few: tl.constexpr,
    ranks: tl.constexpr,
    wide: tl.constexpr,
    group_block: tl.constexpr,
    part_block: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, part_block)
    best = tl.load(highest + row * parts + part, mask=part < parts, other=-float("inf"))
    powers = tl.load(sums + row * parts + part, mask=part < parts, other=0.0)
    peak = tl.max(best, 0)
    # A part of minus infinity counts nothing, unless it holds a NaN.
    powers = tl.where(best > -1e38, powers * tl.exp(best - peak), tl.where(powers != powers, powers, 0.0))
    whole = (peak + tl.log(tl.sum(powers, 0))).to(tl.float64)
    # The best scores are in the groups with the highest peaks; of equal ones the first count as better.
    rank = tl.arange(0, ranks)
    group = tl.arange(0, group_block)
    left = group < groups
    peak_of = tl.load(peaks + row * groups + group, mask=left, other=-float("inf"))
    chosen = tl.zeros([ranks], tl.int32)
    for number in range(few):
        top = tl.max(tl.where(left, peak_of, -float("inf")), 0)
        first = tl.min(tl.where(left & (peak_of == top), group, 2147483647), 0)
        first = tl.where(first < groups, first, 0)  # after a NaN, which shows in the sum
        chosen = tl.where(rank == number, first, chosen)
        left = left & (group != first)
    place = chosen[:, None] * wide + tl.arange(0, wide)[None, :]
    free = (rank < few)[:, None] & (place < size)
    score = tl.load(scores + row * size + place, mask=free, other=-float("inf")).to(tl.float32)
    for number in range(few):
        top = tl.max(tl.max(tl.where(free, score, -float("inf")), 1), 0)
        first = tl.min(tl.min(tl.where(free & (score == top), place, 2147483647), 1), 0)
        first = tl.where(first < size, first, 0)
        tl.store(tokens + row * few + number, first.to(tl.int64))
        tl.store(logprobs + row * few + number, top.to(tl.float64) - whole)
        free = free & (place != first)


@on_its_device
def best_few(scores: Tensor, few: int) -> tuple[Tensor, Tensor]:
    """R V -> R few twice: the best tokens of each row, best first, and their log-probabilities.

    In two kernels, of which the first reads each row once. `few` must be at most V and `MOST_FEW`, V at most `LARGEST`.
    """
    rows, size = scores.shape
    scores, wide, count = scores.contiguous(), 32, 128  # scores of a group, and groups of a program
    groups = triton.cdiv(size, wide)
    parts = triton.cdiv(groups, count)
    peaks = scores.new_empty(rows, groups, dtype=torch.float32)
    highest, sums = scores.new_empty(2, rows, parts, dtype=torch.float32)
    tokens = scores.new_empty(rows, few, dtype=torch.int64)
    logprobs = scores.new_empty(rows, few, dtype=torch.float64)
    _best_groups[rows, parts](scores, peaks, highest, sums, size, groups, parts, count=count, wide=wide, num_warps=4)
    _best_few[(rows,)](
        scores,
        peaks,
        highest,
        sums,
        tokens,
        logprobs,
        size,
        groups,
        parts,
        few=few,
        ranks=triton.next_power_of_2(few),
        wide=wide,
        group_block=triton.next_power_of_2(groups),
        part_block=triton.next_power_of_2(parts),
        num_warps=4,
    )
    return tokens, logprobs


@triton.jit  # type: ignore[untyped-decorator]
def _beam_step(  # type: ignore[no-untyped-def]
    values,
    tokens,
    held,
    scored,
    finished,
    history,
    counts,
    limits,
    done,
    broken,
    is_end,
    divisors,
    next_tokens,
    parents,
    length,
    width: tl.constexpr,
    candidates: tl.constexpr,
    needed: tl.constexpr,
    best: tl.constexpr,
    by_limit: tl.constexpr,
    block: tl.constexpr,
    beams: tl.constexpr,
):
    """One program for a slot. Instead of sorting, each candidate counts those that come before it."""
    slot = tl.program_id(0).to(tl.int64)
    number = tl.arange(0, block)
    beam = tl.arange(0, beams)
    real, inside = number < width * candidates, beam < width
    was_done, was_broken = tl.load(done + slot).to(tl.int32), tl.load(broken + slot).to(tl.int32)
    going = was_done == 0
    count, limit = tl.load(counts + slot), tl.load(limits + slot)
    before = tl.load(held + slot * width + beam, mask=inside, other=-float("inf"))
    parent = number // candidates
    value = tl.load(values + slot * width * candidates + number, mask=real, other=-float("inf"))
    value += tl.load(held + slot * width + parent, mask=real, other=0.0)
    token = tl.load(tokens + slot * width * candidates + number, mask=real, other=0)
    nans = tl.sum((value != value).to(tl.int32), 0)
    same = (value[None, :] == value[:, None]) & (number[None, :] < number[:, None])
    rank = tl.sum(((value[None, :] > value[:, None]) | same).to(tl.int32), 1)
    ended = tl.load(is_end + token).to(tl.int32)
    possible = real & (value > -float("inf")) & (rank < needed)
    # Finished hypotheses, those of before and those of this step: each counts the better ones.
    over = possible & ((ended > 0) | (count + 1 >= limit)) & (rank < width) & going
    score = tl.where(over, value / tl.load(divisors + count + 1), -float("inf"))
    old = tl.load(scored + slot * width + beam, mask=inside, other=-float("inf"))
    same_old = (old[None, :] == old[:, None]) & (beam[None, :] < beam[:, None])
    old_place = tl.sum(((old[None, :] > old[:, None]) | same_old).to(tl.int32), 1)
    old_place += tl.sum((over[None, :] & (score[None, :] > old[:, None])).to(tl.int32), 1)
    same_new = (score[None, :] == score[:, None]) & (rank[None, :] < rank[:, None])
    new_place = tl.sum((over[None, :] & ((score[None, :] > score[:, None]) | same_new)).to(tl.int32), 1)
    new_place += tl.sum((old[None, :] >= score[:, None]).to(tl.int32), 1)
    from_old = old_place[None, :] == beam[:, None]
    from_new = (new_place[None, :] == beam[:, None]) & over[None, :]
    best_scores = tl.maximum(
        tl.max(tl.where(from_old, old[None, :], -float("inf")), 1),
        tl.max(tl.where(from_new, score[None, :], -float("inf")), 1),
    )
    entry = finished + (slot * width + beam) * 4
    logprob = tl.load(entry, mask=inside, other=0.0)
    logprob = tl.sum(tl.where(from_old, logprob[None, :], 0.0), 1) + tl.sum(tl.where(from_new, value[None, :], 0.0), 1)
    step = tl.load(entry + 1, mask=inside, other=0.0)
    step = tl.sum(tl.where(from_old, step[None, :], 0.0), 1)
    step += tl.sum(from_new.to(tl.int32), 1).to(tl.float64) * count.to(tl.float64)
    place = tl.load(entry + 2, mask=inside, other=0.0)
    place = tl.sum(tl.where(from_old, place[None, :], 0.0), 1)
    place += tl.sum(tl.where(from_new, parent[None, :], 0), 1).to(tl.float64)
    last = tl.load(entry + 3, mask=inside, other=0.0)
    last = tl.sum(tl.where(from_old, last[None, :], 0.0), 1)
    last += tl.sum(tl.where(from_new, token[None, :], 0), 1).to(tl.float64)
    # The live hypotheses of the next step.
    alive = possible & (ended == 0) & (count + 1 < limit)
    alive_count = tl.sum(alive.to(tl.int32), 0)
    order = tl.sum((alive[None, :] & (rank[None, :] < rank[:, None])).to(tl.int32), 1)
    chosen = (order[None, :] == beam[:, None]) & alive[None, :]
    after = tl.max(tl.where(chosen, value[None, :], -float("inf")), 1)
    after = tl.where(going, after, before)
    next_token = tl.sum(tl.where(chosen, token[None, :], 0), 1)
    next_parent = tl.sum(tl.where(chosen, parent[None, :], 0), 1)
    # If no token is allowed and nothing has finished, the best hypothesis is the answer.
    highest = tl.max(before, 0)
    highest_place = tl.min(tl.where(before == highest, beam, beams - 1), 0)
    nothing = tl.max(tl.where(beam == 0, best_scores, -float("inf")), 0) == -float("inf")
    stuck = (beam == 0) & (going & (alive_count == 0) & nothing)
    best_scores = tl.where(stuck, highest / tl.load(divisors + count), best_scores)
    logprob = tl.where(stuck, highest, logprob)
    step = tl.where(stuck, count.to(tl.float64), step)
    place = tl.where(stuck, highest_place.to(tl.float64), place)
    last = tl.where(stuck, -1.0, last)
    # Whether no live hypothesis can get among the best any more.
    count_after = tl.where(going, count + 1, count)
    worst = tl.max(tl.where(beam == best - 1, best_scores, -float("inf")), 0)
    bound = tl.max(after, 0) / tl.load(divisors + (limit if by_limit else count_after + 1))
    settled = (alive_count == 0) | ((worst > -float("inf")) & (worst >= bound))
    tl.debug_barrier()  # everything has been read
    tl.store(scored + slot * width + beam, best_scores, mask=inside)
    tl.store(entry, logprob, mask=inside)
    tl.store(entry + 1, step, mask=inside)
    tl.store(entry + 2, place, mask=inside)
    tl.store(entry + 3, last, mask=inside)
    tl.store(held + slot * width + beam, after, mask=inside)
    written = history + (slot * length + tl.minimum(count, length - 1)) * width + beam
    tl.store(written, next_token * width + next_parent, mask=inside & going)
    tl.store(next_tokens + slot * width + beam, next_token, mask=inside)
    tl.store(parents + slot * width + beam, slot * width + next_parent, mask=inside)
    tl.store(counts + slot, count_after)
    tl.store(done + slot, tl.where(settled, 1, was_done).to(tl.int8))
    tl.store(broken + slot, tl.where(going & (nans > 0), 1, was_broken).to(tl.int8))


@on_its_device
def beam_step(
    values: Tensor,
    tokens: Tensor,
    held: Tensor,
    scored: Tensor,
    finished: Tensor,
    history: Tensor,
    counts: Tensor,
    limits: Tensor,
    done: Tensor,
    broken: Tensor,
    is_end: Tensor,
    divisors: Tensor,
    next_tokens: Tensor,
    needed: int,
    best: int,
    by_limit: bool,
) -> Tensor:
    """Choose the hypotheses of a step of beam search in one kernel; returns S*W: the rows that they go on from.

    `values`, `tokens` (S*W C): log-probabilities and tokens of the best extensions of each row; `divisors`: of the
    scores of texts of each length; the others as in `BeamSlots`, whose tensors are changed. W C is at most `MOST_BEAM`.
    """
    slots, width = held.shape
    candidates = tokens.shape[1]
    parents = torch.empty_like(next_tokens)
    block = triton.next_power_of_2(width * candidates)
    _beam_step[(slots,)](
        values.contiguous(),
        tokens.contiguous(),
        held,
        scored,
        finished,
        history,
        counts,
        limits,
        done.view(torch.int8),
        broken.view(torch.int8),
        is_end.view(torch.int8),
        divisors,
        next_tokens,
        parents,
        history.shape[1],
        width=width,
        candidates=candidates,
        needed=needed,
        best=best,
        by_limit=by_limit,
        block=block,
        beams=triton.next_power_of_2(width),
        num_warps=1 if block <= 32 else 4 if block <= 64 else 8,
    )
    return parents


@triton.jit  # type: ignore[untyped-decorator]
def _log_sums(scores, sums, size, block: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    highest = tl.full([], -1e38, tl.float32)
    total = tl.full([], 0.0, tl.float32)
    for first in range(0, size, block):
        place = first + tl.arange(0, block)
        score = tl.load(scores + row * size + place, mask=place < size, other=-float("inf")).to(tl.float32)
        peak = tl.maximum(highest, tl.max(score, 0))
        total = total * tl.exp(highest - peak) + tl.sum(tl.exp(score - peak), 0)
        highest = peak
    tl.store(sums + row, highest + tl.log(total))


@on_its_device
def log_sums(scores: Tensor) -> Tensor:
    """R V -> R: logsumexp of each row, which is read once."""
    sums = scores.new_empty(len(scores), dtype=torch.float32)
    _log_sums[(len(scores),)](scores, sums, scores.shape[1], block=4096, num_warps=8)
    return sums

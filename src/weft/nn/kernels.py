"""Triton kernels of layers for decoding and small passes on NVIDIA GPUs, each in place of many launches of torch's.

R: rows; S: places; H: heads; D: width of a head; K: inputs of a linear map; N: its outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

ACTIVATIONS = {"": 0, "gelu": 1, "gelu-tanh": 2, "relu": 3, "silu": 4}
VERY_FEW = 4  # rows that are multiplied one by one
FEW, MORE, MANY = 128, 512, 1024  # programs of attention: those of a few texts, and more than a GPU runs at once
LARGE = 200 << 10  # bytes of shared memory, as Hopper GPUs have
P = ParamSpec("P")
T = TypeVar("T")


def on_its_device(launch: Callable[Concatenate[Tensor, P], T]) -> Callable[Concatenate[Tensor, P], T]:
    """Launch on the GPU of the first tensor, as torch's operators do; Triton would use the current GPU."""

    @wraps(launch)
    def launched(x: Tensor, /, *given: P.args, **named: P.kwargs) -> T:
        with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
            return launch(x, *given, **named)

    return launched


@cache
def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory of a multiprocessor; 0 where torch does not tell."""
    if device.type != "cuda":
        return 0
    return getattr(torch.cuda.get_device_properties(device), "shared_memory_per_multiprocessor", 0)


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
    """Places that a program of `_attend_step` reads at once, and its warps: the best of twenty settings on an H200.

    Few programs are bound by the latency of memory, so each reads much at once; many keep the GPU busy anyway.
    """
    return (256, 8) if programs <= FEW else (128, 4) if programs <= MORE else (64, 2) if programs <= MANY else (16, 1)


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


def tile_of_rows(rows: int, outputs: int, inputs: int, shared: int) -> Tile:
    """The tile of `_linear_rows`: the best of some 60 settings on an H200, for the maps of GPT-2 124M.

    `shared`: bytes of shared memory. The time is that of reading weights, and a program reads `stages` chunks ahead.
    """
    if inputs > 1024:
        if rows > 32:
            return Tile(16, 32, 512, 4, 3)
        return Tile(16, 16, 1024, 4, 3) if shared >= LARGE else Tile(16, 16, 512, 2, 4)
    return Tile(16, 16, 128, 4, 6) if outputs <= 1024 and rows <= 32 else Tile(16, 32, 256, 4, 3)


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
    tile = tile or tile_of_rows(rows, outputs, inputs, shared_memory(x.device))
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

"""Triton kernels that choose the tokens of a decoding step on NVIDIA GPUs.

R: rows; V: vocabulary; S: slots; W: hypotheses of a slot; C: candidates.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from weft.nn.kernels import on_its_device

MOST_FEW, LARGEST = 64, 1 << 18  # tokens that `best_few` finds, and of how many
MOST_BEAM = 128  # extensions of a slot in `beam_step`


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


@triton.jit
def _before(value, number):  # type: ignore[no-untyped-def]
    """How many values come before each when the largest is first, and of equal ones the one with the lowest number."""
    same = (value[None, :] == value[:, None]) & (number[None, :] < number[:, None])
    return tl.sum(((value[None, :] > value[:, None]) | same).to(tl.int32), 1)


@triton.jit
def _merged(entry, inside, from_old, new, from_new):  # type: ignore[no-untyped-def]
    """One number of each finished hypothesis, those of before and those of this step."""
    old = tl.load(entry, mask=inside, other=0.0)
    return tl.sum(tl.where(from_old, old[None, :], 0.0), 1) + tl.sum(tl.where(from_new, new[None, :], 0.0), 1)


@triton.jit
def _put(entry, inside, logprob, step, place, last):  # type: ignore[no-untyped-def]
    tl.store(entry, logprob, mask=inside)
    tl.store(entry + 1, step, mask=inside)
    tl.store(entry + 2, place, mask=inside)
    tl.store(entry + 3, last, mask=inside)


@triton.jit
def _finish(entry, old, beam, inside, score, over, rank, value, count, parent, token):  # type: ignore[no-untyped-def]
    """The best of the hypotheses that have finished and of those that finish now: their scores and four numbers."""
    old_place = _before(old, beam) + tl.sum((over[None, :] & (score[None, :] > old[:, None])).to(tl.int32), 1)
    same = (score[None, :] == score[:, None]) & (rank[None, :] < rank[:, None])
    new_place = tl.sum((over[None, :] & ((score[None, :] > score[:, None]) | same)).to(tl.int32), 1)
    new_place += tl.sum((old[None, :] >= score[:, None]).to(tl.int32), 1)
    from_old = old_place[None, :] == beam[:, None]
    from_new = (new_place[None, :] == beam[:, None]) & over[None, :]
    old_score = tl.max(tl.where(from_old, old[None, :], -float("inf")), 1)
    best = tl.maximum(old_score, tl.max(tl.where(from_new, score[None, :], -float("inf")), 1))
    logprob = _merged(entry, inside, from_old, value, from_new)
    step = _merged(entry + 1, inside, from_old, tl.zeros_like(value) + count.to(tl.float64), from_new)
    place = _merged(entry + 2, inside, from_old, parent.to(tl.float64), from_new)
    last = _merged(entry + 3, inside, from_old, token.to(tl.float64), from_new)
    return best, logprob, step, place, last


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
    count, limit, parent = tl.load(counts + slot), tl.load(limits + slot), number // candidates
    before = tl.load(held + slot * width + beam, mask=inside, other=-float("inf"))
    value = tl.load(values + slot * width * candidates + number, mask=real, other=-float("inf"))
    value += tl.load(held + slot * width + parent, mask=real, other=0.0)
    token = tl.load(tokens + slot * width * candidates + number, mask=real, other=0)
    broke = going & (tl.sum((value != value).to(tl.int32), 0) > 0)
    rank = _before(value, number)
    ended = tl.load(is_end + token).to(tl.int32)
    possible = real & (value > -float("inf")) & (rank < needed)
    over = possible & ((ended > 0) | (count + 1 >= limit)) & (rank < width) & going
    score = tl.where(over, value / tl.load(divisors + count + 1), -float("inf"))
    entry, old = finished + (slot * width + beam) * 4, tl.load(scored + slot * width + beam, inside, -float("inf"))
    best_scores, logprob, step, place, last = _finish(
        entry, old, beam, inside, score, over, rank, value, count, parent, token
    )
    # The live hypotheses of the next step.
    alive = possible & (ended == 0) & (count + 1 < limit)
    alive_count = tl.sum(alive.to(tl.int32), 0)
    order = tl.sum((alive[None, :] & (rank[None, :] < rank[:, None])).to(tl.int32), 1)
    chosen = (order[None, :] == beam[:, None]) & alive[None, :]
    after = tl.where(going, tl.max(tl.where(chosen, value[None, :], -float("inf")), 1), before)
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
    _put(entry, inside, logprob, step, place, last)
    tl.store(held + slot * width + beam, after, mask=inside)
    written = history + (slot * length + tl.minimum(count, length - 1)) * width + beam
    tl.store(written, next_token * width + next_parent, mask=inside & going)
    tl.store(next_tokens + slot * width + beam, next_token, mask=inside)
    tl.store(parents + slot * width + beam, slot * width + next_parent, mask=inside)
    tl.store(counts + slot, count_after)
    tl.store(done + slot, tl.where(settled, 1, was_done).to(tl.int8))
    tl.store(broken + slot, tl.where(broke, 1, was_broken).to(tl.int8))


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

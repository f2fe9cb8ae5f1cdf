"""Relative attention against its formula, written out one query at a time."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from weft.nn.relative import (
    LayerWindow,
    Relative,
    RelativeAttention,
    RelativeCache,
    after,
    distances_of,
    memory_mask,
    waves,
)
from weft.nn.rows import Rows

WIDTH, HEADS, SIZE = 12, 3, 5  # a head need not be WIDTH / HEADS wide


@pytest.fixture(autouse=True)
def double() -> None:
    torch.manual_seed(0)


def attention_of(causal: bool) -> RelativeAttention:
    attention = RelativeAttention(WIDTH, HEADS, causal=causal, head_width=SIZE).double().eval()
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return attention


def written_out(attention: RelativeAttention, keys: Tensor, place: int, sees: list[int], query: Tensor) -> Tensor:
    """What one query makes of a row: the query stands at `place` of the keys (with memory) and sees some of them."""
    inner = HEADS * SIZE
    q = (query @ attention.qkv.weight[:inner].T).view(HEADS, SIZE)
    mixed = []
    for head in range(HEADS):
        scores = []
        for j in sees:
            k = (keys[j] @ attention.qkv.weight[inner : 2 * inner].T).view(HEADS, SIZE)[head]
            half = torch.arange(0, WIDTH, 2, dtype=torch.float32) / WIDTH
            angles = (place - j) * (1 / 10000**half).double()  # of single precision, as published
            r = (torch.cat([angles.sin(), angles.cos()]) @ attention.distance.weight.T).view(HEADS, SIZE)[head]
            u, v = attention.content_bias[head], attention.distance_bias[head]
            scores.append(((q[head] + u) @ k + (q[head] + v) @ r) / math.sqrt(SIZE))
        weights = torch.stack(scores).softmax(0)
        values = (keys @ attention.qkv.weight[2 * inner :].T).view(-1, HEADS, SIZE)
        mixed.append(sum(weight * values[j, head] for weight, j in zip(weights, sees, strict=True)))
    return torch.cat(mixed) @ attention.output.weight.T


def relative_of(rows: Rows, memory: int, causal: bool, mask: Tensor | None) -> Relative:
    distances = distances_of(rows.longest, memory, causal, torch.device("cpu"))
    return Relative(waves(distances, WIDTH, torch.float64), rows.longest, memory, mask)


@pytest.mark.parametrize("lengths", [[4, 4], [5, 1, 3], [1], [200, 2, 0, 190, 3]])
@pytest.mark.parametrize("causal", [True, False])
def test_equals_its_formula_without_memory(lengths: list[int], causal: bool) -> None:
    attention, rows = attention_of(causal), Rows.of(lengths)
    x = torch.randn(sum(lengths), WIDTH, dtype=torch.float64)
    out = attention(x, rows, relative_of(rows, 0, causal, None))
    for row in torch.arange(sum(lengths)).split(lengths):
        for place in {0, len(row) // 2, len(row) - 1} if len(row) else ():
            sees = list(range(place + 1 if causal else len(row)))
            torch.testing.assert_close(out[row[place]], written_out(attention, x[row], place, sees, x[row[place]]))


@pytest.mark.parametrize("lengths", [[4, 4], [5, 1, 3], [90, 2, 0, 70, 3]])
@pytest.mark.parametrize("reach", [None, 3])
def test_equals_its_formula_with_memory(lengths: list[int], reach: int | None) -> None:
    attention, rows, size = attention_of(True), Rows.of(lengths), 6
    x = torch.randn(sum(lengths), WIDTH, dtype=torch.float64)
    memory = torch.randn(len(lengths), size, WIDTH, dtype=torch.float64)
    filled = torch.tensor([0, 6, 4, 2, 1][: len(lengths)])
    mask = memory_mask(rows.longest, size, filled, reach, device=x.device)
    out = attention(x, rows, relative_of(rows, size, True, mask), memory=memory)
    for number, row in enumerate(torch.arange(sum(lengths)).split(lengths)):
        keys = torch.cat([memory[number], x[row]])
        for i in {0, len(row) // 2, len(row) - 1} if len(row) else ():
            place = size + i
            first = max(size - int(filled[number]), 0 if reach is None else place - reach)
            expected = written_out(attention, keys, place, list(range(first, place + 1)), x[row[i]])
            torch.testing.assert_close(out[row[i]], expected)


def test_a_query_stream_asks_another_text_under_a_mask() -> None:
    attention, rows = attention_of(False), Rows.of([4, 3])
    asks, x = torch.randn(2, 7, WIDTH, dtype=torch.float64)
    mask = torch.rand(2, 1, 4, 4) < 0.6
    mask[..., 0] = True  # a query that sees nothing has no formula
    out = attention(asks, rows, relative_of(rows, 0, False, mask), hidden=x)
    for number, row in enumerate(torch.arange(7).split([4, 3])):
        for place in range(len(row)):
            sees = [j for j in range(len(row)) if mask[number, 0, place, j]]
            torch.testing.assert_close(out[row[place]], written_out(attention, x[row], place, sees, asks[row[place]]))


def test_steps_with_a_window_equal_the_formula() -> None:
    attention, window = attention_of(True), 4
    texts = [torch.randn(length, WIDTH, dtype=torch.float64) for length in (9, 6)]
    read = [3, 0]  # tokens of each row that the cache begins with
    keys = torch.zeros(2, 3, WIDTH, dtype=torch.float64)
    keys[0] = texts[0][:3]
    far = waves(torch.arange(window, -1, -1), WIDTH, torch.float64)
    layer = LayerWindow(*attention.keys_and_values(keys), attention.distance(far).unflatten(-1, (HEADS, -1)))
    cache = RelativeCache(torch.tensor(read), [layer])
    for number in range(6):
        places = [start + number for start in read]
        x = torch.stack([text[place] for text, place in zip(texts, places, strict=True)])
        out = attention.step(x, Rows.single(len(x)), cache, layer)
        cache.advance()
        for row, (text, place) in enumerate(zip(texts, places, strict=True)):
            sees = list(range(max(0, place - window), place + 1))
            torch.testing.assert_close(out[row], written_out(attention, text, place, sees, text[place]))
        if number == 3:  # rows change places, as in a beam
            cache.pick(torch.tensor([1, 0]))
            texts, read = texts[::-1], read[::-1]


def test_memory_after_rows_holds_the_newest() -> None:
    memory, lengths = torch.arange(-12, 0).view(3, 4, 1), [2, 0, 6]
    x = torch.arange(8)[:, None]
    kept = after(memory, x, Rows.of(lengths), 4).squeeze(-1).tolist()
    assert kept == [[-10, -9, 0, 1], [-8, -7, -6, -5], [4, 5, 6, 7]]
    grown = after(memory, x, Rows.of(lengths), 7).squeeze(-1).tolist()  # places of a shorter row may hold anything
    assert [row[-size:] for row, size in zip(grown, (6, 4, 7), strict=True)] == [
        [-12, -11, -10, -9, 0, 1],
        [-8, -7, -6, -5],
        [-1, 2, 3, 4, 5, 6, 7],
    ]


def test_watching_and_training_give_the_same() -> None:
    attention, rows = attention_of(True).train(), Rows.of([3, 5])
    x, memory = torch.randn(8, WIDTH, dtype=torch.float64), torch.randn(2, 4, WIDTH, dtype=torch.float64)
    relative = relative_of(rows, 4, True, memory_mask(5, 4, torch.tensor([4, 1]), device=x.device))
    plain = attention(x, rows, relative, memory=memory)
    seen = []
    attention.watcher = seen.append
    torch.testing.assert_close(attention(x, rows, relative, memory=memory), plain)
    assert seen[0].weights.shape == (2, HEADS, 5, 9)
    torch.testing.assert_close(seen[0].weights.sum(-1)[0, 0, :3], torch.ones(3, dtype=torch.float64))
    attention.watcher = None
    plain.sum().backward()
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in attention.parameters())

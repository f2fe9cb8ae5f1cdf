"""`attend()` against attention written as a loop over rows, on every path that a CPU has."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from weft.nn import pieces
from weft.nn.attention import CrossAttention, Sighting, Sources, attend, similar
from weft.nn.rows import Rows

LENGTHS = {"ragged": [3, 1, 7, 2, 7, 30, 4], "equal": [5, 5, 5], "one": [6], "with empty": [4, 0, 2]}


def by_hand(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rows: Rows,
    keys: Rows,
    mask: Tensor | None,
    bias: Tensor | None,
    causal: bool,
    scale: float,
) -> Tensor:
    out = torch.empty_like(query)
    for row in range(rows.count):
        begin, end = rows.starts[row : row + 2].tolist()
        key_begin, key_end = keys.starts[row : row + 2].tolist()
        for head in range(query.shape[1]):
            for place in range(end - begin):
                scores = (
                    torch.stack([query[begin + place, head] @ key[k, head] for k in range(key_begin, key_end)]) * scale
                )
                if bias is not None:
                    scores = scores + bias[head, place, : len(scores)]
                if mask is not None:
                    scores = scores.masked_fill(~mask[row, 0, place, : len(scores)], -math.inf)
                if causal:
                    scores[place + 1 :] = -math.inf
                out[begin + place, head] = scores.softmax(0) @ value[key_begin:key_end, head]
    return out


@pytest.mark.parametrize("want_weights", [False, True])
@pytest.mark.parametrize("extra", ["nothing", "causal", "bias", "mask", "causal and bias", "mask and bias"])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_self_attention(lengths: str, extra: str, want_weights: bool) -> None:
    torch.manual_seed(0)
    rows = Rows.of(LENGTHS[lengths])
    total, longest = sum(LENGTHS[lengths]), rows.longest
    query, key, value = torch.randn(3, total, 2, 4, dtype=torch.float64)
    bias = torch.randn(2, longest, longest, dtype=torch.float64) if "bias" in extra else None
    mask = None
    if "mask" in extra:  # every token sees itself, so that no row of weights is empty
        mask = (torch.rand(rows.count, 1, longest, longest) < 0.5) | torch.eye(longest, dtype=torch.bool)
    causal = "causal" in extra
    expected = by_hand(query, key, value, rows, rows, mask, bias, causal, 0.7)
    found, weights = attend(
        query, key, value, rows, mask=mask, bias=bias, causal=causal, scale=0.7, want_weights=want_weights
    )
    assert (found - expected).abs().max() < 1e-12
    assert (weights is not None) == want_weights
    if weights is not None:
        assert weights.padded().shape == (rows.count, 2, longest, longest)


@pytest.mark.parametrize("want_weights", [False, True])
@pytest.mark.parametrize("lengths", [([3, 1, 7], [2, 9, 4]), ([5, 5], [3, 3]), ([1, 1, 1], [4, 12, 2])])
def test_cross_attention(lengths: tuple[list[int], list[int]], want_weights: bool) -> None:
    torch.manual_seed(0)
    rows, keys = Rows.of(lengths[0]), Rows.of(lengths[1])
    query = torch.randn(sum(lengths[0]), 2, 4, dtype=torch.float64)
    key, value = torch.randn(2, sum(lengths[1]), 2, 4, dtype=torch.float64)
    expected = by_hand(query, key, value, rows, keys, None, None, False, 0.5)
    found, _ = attend(query, key, value, rows, key_rows=keys, want_weights=want_weights)
    assert (found - expected).abs().max() < 1e-12


def test_cross_attention_equals_torchs_own() -> None:
    """The module, with its weights copied into torch's MultiheadAttention; watched too."""
    torch.manual_seed(0)
    ours = CrossAttention(24, 3).double()
    peer = torch.nn.MultiheadAttention(24, 3, batch_first=True).double()
    with torch.no_grad():
        peer.in_proj_weight.copy_(torch.cat([ours.query.weight, ours.key_value.weight]))
        peer.in_proj_bias.copy_(torch.cat([ours.query.bias, ours.key_value.bias]))
        peer.out_proj.weight.copy_(ours.output.weight)
        peer.out_proj.bias.copy_(ours.output.bias)
    lengths, memory_lengths = [3, 1, 6], [2, 9, 4]
    x, memory = torch.randn(10, 24, dtype=torch.float64), torch.randn(15, 24, dtype=torch.float64)
    found = ours(x, Rows.of(lengths), Sources(memory, Rows.of(memory_lengths)))
    pairs = zip(x.split(lengths), memory.split(memory_lengths), strict=True)
    expected = torch.cat([peer(q[None], m[None], m[None])[0][0] for q, m in pairs])
    assert (found - expected).abs().max() < 1e-12
    seen: list[Sighting] = []
    ours.watcher = seen.append
    watched = ours(x, Rows.of(lengths), Sources(memory, Rows.of(memory_lengths)))
    assert (watched - found).abs().max() < 1e-12 and seen[0].weights.shape == (3, 3, 6, 9)


def test_dropout_falls_on_the_weights_in_both_paths() -> None:
    rows = Rows.of([3, 6, 2, 6])
    query, key, value = torch.randn(3, 17, 2, 4, dtype=torch.float64)
    found = []
    for want_weights in (False, True):
        torch.manual_seed(3)
        found.append(attend(query, key, value, rows, dropout=0.4, want_weights=want_weights)[0])
    assert (found[0] - found[1]).abs().max() < 1e-12
    assert (found[0] - attend(query, key, value, rows)[0]).abs().max() > 1e-3, "nothing was dropped"


@pytest.mark.parametrize("cells", [1, 40, 150, 400])  # a query; some of one row; some rows of one square
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("biased", [(), (4, 2, 9, 9), (2, 9, 9)], ids=str)
@pytest.mark.parametrize("lengths", [(6, 9, 5, 9), (9, 9, 9)], ids=["ragged", "even"])
def test_pieces_of_a_large_square_give_what_the_whole_gives(
    lengths: tuple[int, ...], biased: tuple[int, ...], causal: bool, cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropout that strikes all weights or none says nothing of chance: so it is replaced by one that strikes none."""
    monkeypatch.setattr(pieces.F, "dropout", lambda x, share: x)
    rows = Rows.of(lengths)
    given = torch.randn(3, sum(lengths), 2, 4, dtype=torch.float64)
    bias = torch.randn(biased, dtype=torch.float64)[: len(lengths)] if biased else None
    found = []
    for dropout in (0.0, 0.4):
        monkeypatch.setattr(pieces, "CELLS", cells)
        x = given.clone().requires_grad_()
        out = attend(*x, rows, causal=causal, bias=bias, dropout=dropout)[0]
        out.square().sum().backward()
        found.append((out.detach(), x.grad))
    for whole, cut in zip(*found, strict=True):
        assert whole is not None and cut is not None and (whole - cut).abs().max() < 1e-12


def test_dropout_in_pieces_is_that_of_the_way_back_and_the_mean_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "CELLS", 64)
    rows = Rows.of([40])
    query, key = torch.randn(2, 40, 1, 4, dtype=torch.float64)
    value = torch.randn(40, 1, 4, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(3)
    out = attend(query, key, value, rows, dropout=0.4)[0]
    out.sum().backward()
    # The output is linear in the values: with the same weights dropped on the way back, value x gradient is the output.
    assert value.grad is not None and abs(((value * value.grad).sum() - out.sum()).item()) < 1e-9
    plain = attend(query, key, value, rows)[0]
    assert (out - plain).abs().max() > 1e-3, "nothing was dropped"
    with torch.no_grad():
        mean = sum(attend(query, key, value, rows, dropout=0.4)[0] for _ in range(400)) / 400
    assert (mean - plain).abs().max() < 0.3


def test_memory_with_dropout_grows_with_the_length_and_not_its_square(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "CELLS", 1 << 12)
    kept = []
    for length in (256, 512):
        query, key, value = (torch.randn(length, 1, 8, requires_grad=True) for _ in range(3))
        bytes_kept = 0

        def pack(tensor: Tensor) -> Tensor:
            nonlocal bytes_kept
            bytes_kept += tensor.nbytes if tensor.shape[-1] > 8 else 0  # of weights, not of heads
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            attend(query, key, value, Rows.of([length]), dropout=0.1)
        kept.append(bytes_kept)
    assert kept[1] <= 2 * kept[0] + 4096


def test_groups_hold_every_row_once_and_waste_little() -> None:
    lengths = [12, 500, 80, 80, 81, 3, 490, 79, 0, 200]
    groups = similar(lengths)
    assert sorted(number for group in groups for number in group) == [0, 1, 2, 3, 4, 5, 6, 7, 9]
    assert {1, 6} in [set(group) for group in groups], "two long rows belong together"
    assert len(similar([7] * 50)) == 1
    assert similar([]) == []


@pytest.mark.parametrize("causal", [False, True])
def test_a_query_that_may_look_nowhere_harms_nobody(causal: bool) -> None:
    """Masked out wholly, with padding beside it: numbers and gradients, equal on both paths."""
    rows = Rows.of([3, 4])
    mask = torch.eye(4, dtype=torch.bool).expand(2, 1, 4, 4).clone()
    mask[1, 0, 2] = torch.tensor([False, False, False, True])  # under a causal flag this query sees nothing
    found = []
    for want_weights in (False, True):
        drawn = torch.randn(3, 7, 2, 4, generator=torch.Generator().manual_seed(1))
        tensors = [x.clone().requires_grad_() for x in drawn]
        out, _ = attend(*tensors, rows, mask=mask, causal=causal, want_weights=want_weights)
        out.square().sum().backward()
        assert all(bool(x.grad.isfinite().all()) for x in tensors) and bool(out.isfinite().all())
        found.append([out, *(x.grad for x in tensors)])
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("want_weights", [False, True])
def test_an_empty_source(want_weights: bool) -> None:
    query, key, value = torch.randn(5, 2, 4), torch.randn(4, 2, 4), torch.randn(4, 2, 4)
    rows, keys = Rows.of([2, 3]), Rows.of([0, 4])
    out, _ = attend(query, key, value, rows, key_rows=keys, want_weights=want_weights)
    assert torch.equal(out[:2], torch.zeros(2, 2, 4))
    alone, _ = attend(query[2:], key, value, Rows.of([3]), key_rows=Rows.of([4]))
    assert torch.allclose(out[2:], alone, atol=1e-6)

"""What compiled steps compute in fewer operations is what torch computes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from weft.nn.compiled import CheapGelu, cheap_dropout, cheap_gelu_tanh, hashed

WORDS = [(0, 0), (0, 1), (1, 0), (7, 12345), (-(1 << 31), (1 << 31) - 1)]


def kept(seed: int, chance: float = 0.1) -> torch.Tensor:
    torch.manual_seed(seed)
    return cheap_dropout(torch.ones(2048, 768), chance) != 0


@pytest.mark.parametrize("chance", [0.01, 0.1, 0.5, 0.9])
def test_dropout_keeps_its_share_everywhere(chance: float) -> None:
    """Of all places, of every row and column, and of pairs of places: within five standard deviations."""
    mask = kept(0, chance).double()
    odd = (mask - (1 - chance)) / (chance * (1 - chance)) ** 0.5  # mean 0, variance 1
    assert abs(odd.mean()) * odd.numel() ** 0.5 < 5
    for axis in (0, 1):
        sums = odd.sum(axis) / odd.shape[axis] ** 0.5
        assert sums.abs().max() < 6 and abs(sums.var() - 1) < 0.25
    flat = odd.flatten()
    for apart in (1, 2, 3, 4, 16, 64, 256, 767, 768, 769, 4096, 1 << 16):
        pairs = flat[apart:] * flat[:-apart]
        assert abs(pairs.mean()) * len(pairs) ** 0.5 < 5, apart
    again = (kept(1, chance).double() - (1 - chance)) / (chance * (1 - chance)) ** 0.5
    assert abs((odd * again).mean()) * odd.numel() ** 0.5 < 5


def test_numbers_of_near_words_are_independent() -> None:
    places = torch.arange(1 << 20, dtype=torch.int32)
    drawn = [hashed(places, torch.tensor(words, dtype=torch.int32)).double() / 2**31 for words in WORDS]
    for number, one in enumerate(drawn):
        assert one.min() >= 0 and one.max() < 1
        assert one.histc(256, 0, 1).sub(4096).square().sum() / 4096 < 255 + 6 * 510**0.5  # chi-squared
        for other in drawn[:number]:
            assert abs(((one - 0.5) * (other - 0.5)).mean() * 12) * 2**10 < 5


def test_dropout_scales_and_has_its_gradient() -> None:
    x = torch.randn(50, 40, dtype=torch.double, requires_grad=True)
    out = cheap_dropout(x, 0.3)
    mask = out != 0
    assert torch.equal(out, torch.where(mask, x / 0.7, 0.0)) or torch.allclose(out, torch.where(mask, x / 0.7, 0.0))
    (slope,) = torch.autograd.grad(out.sum(), x)
    assert torch.allclose(slope, mask.double() / 0.7)
    torch.manual_seed(3)
    first = cheap_dropout(x, 0.3)
    torch.manual_seed(3)
    assert torch.equal(first, cheap_dropout(x, 0.3)) and not torch.equal(first, cheap_dropout(x, 0.3))
    assert cheap_dropout(x, 0.0) is x and not cheap_dropout(x, 1.0).any()


@pytest.mark.parametrize("kind", ["none", "tanh"])
def test_gelu(kind: str) -> None:
    x = torch.linspace(-12, 12, 100_001, requires_grad=True)
    ours = (cheap_gelu_tanh if kind == "tanh" else CheapGelu.apply)(x)
    exact = x.double()
    theirs = F.gelu(exact, approximate=kind)
    assert (ours - theirs).abs().max() < 2e-6
    slopes = [torch.autograd.grad(out.sum(), x, retain_graph=True)[0] for out in (ours, theirs)]
    assert (slopes[0] - slopes[1]).abs().max() < 5e-6
    for dtype in (torch.bfloat16, torch.float16):
        half = x.detach().to(dtype)
        made = (cheap_gelu_tanh if kind == "tanh" else CheapGelu.apply)(half)
        assert made.dtype == dtype
        assert torch.allclose(made.float(), F.gelu(half.float(), approximate=kind), rtol=2 * torch.finfo(dtype).eps,
                              atol=1e-6)  # fmt: skip

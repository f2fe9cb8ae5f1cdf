"""A step cut into passes is the whole step: 1 x 32 = 2 x 16 = 8 x 4, on rows of very different length."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.training.small import OBJECTIVES, batch_of, network_for
from weft.nn.rows import Batch, Ragged, Rows
from weft.training.step import Passes, total

LENGTHS = [2, 50, 3, 7, 31, 2, 44, 5, 9, 60, 2, 2, 13, 21, 8, 3] * 2


def parts(objective: str, count: int) -> list[Batch]:
    size = len(LENGTHS) // count
    return [batch_of(objective, LENGTHS[n * size : (n + 1) * size], seed=n) for n in range(count)]


def joined(batches: list[Batch]) -> Batch:
    """The same rows as one batch."""
    lengths = torch.cat([batch.rows.lengths() for batch in batches])
    starts = torch.cat([torch.zeros(1, dtype=torch.int32), lengths.cumsum(0).int()])
    offsets = np.cumsum([0, *(len(batch.tokens) for batch in batches)])
    targets = {name: torch.cat([batch.targets[name] for batch in batches]) for name in batches[0].targets}
    if "places" in targets:
        moved = [batch.targets["places"] + int(o) for batch, o in zip(batches, offsets, strict=False)]
        targets["places"] = torch.cat(moved)
    rows = Rows(starts, int(lengths.max()))
    sources = [batch.source for batch in batches if batch.source is not None]
    source = None
    if sources:
        sizes = torch.cat([one.rows.lengths() for one in sources]).tolist()
        source = Ragged(torch.cat([one.tokens for one in sources]), Rows.of(sizes))
    asked = None
    if batches[0].asked is not None:
        some = [(batch.asked, int(o)) for batch, o in zip(batches, offsets, strict=False) if batch.asked is not None]
        sizes = torch.cat([one.rows.lengths() for one, _ in some]).tolist()
        asked = Ragged(torch.cat([one.tokens + o for one, o in some]), Rows.of(sizes))
    return Batch(torch.cat([batch.tokens for batch in batches]), rows, None, targets, source, asked=asked)


def gradients(objective: str, batches: list[Batch], kind: torch.dtype) -> tuple[list[torch.Tensor], torch.Tensor]:
    network = network_for(objective, weight_scale=0.2).to(kind)
    counts = total(map(OBJECTIVES[objective].counts, batches))
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    passes = Passes(network, OBJECTIVES[objective].sums, len(counts), torch.device("cpu"), "fp32", scaler, False)
    passes.losses = passes.losses.to(kind)
    passes.step(batches, torch.tensor(list(counts.values()), dtype=kind), lambda number: number)
    return [p.grad for p in network.parameters() if p.grad is not None], passes.losses


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("kind, tolerance", [(torch.float64, 1e-9), (torch.float32, 1e-5)])
def test_accumulated_is_whole(objective: str, kind: torch.dtype, tolerance: float) -> None:
    small = parts(objective, 8)
    cuts = {1: [joined(small)], 2: [joined(small[:4]), joined(small[4:])], 8: small}
    whole, losses = gradients(objective, cuts[1], kind)
    largest = max(g.abs().max() for g in whole)
    assert largest > 1e-4
    for count in (2, 8):
        found, also = gradients(objective, cuts[count], kind)
        for one, other in zip(whole, found, strict=True):
            assert (one - other).abs().max() < tolerance * largest
        assert (losses - also).abs().max() < tolerance * losses.abs().max()


def test_a_mean_of_means_is_something_else() -> None:
    """What the counts are for: passes of different size must not weigh the same."""
    small = parts("mlm", 8)
    whole, _ = gradients("mlm", [joined(small)], torch.float64)
    means = [gradients("mlm", [batch], torch.float64)[0] for batch in small]
    wrong = [sum(grads) / 8 for grads in zip(*means, strict=True)]
    difference = max((one - other).abs().max() for one, other in zip(whole, wrong, strict=True))
    assert difference > 1e-3 * max(g.abs().max() for g in whole)

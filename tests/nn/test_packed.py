"""A batch in one piece of memory is the same batch, and comes to a device in one copy."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from weft.nn.rows import Batch, Ragged, Rows


def example() -> Batch:
    source = Ragged(torch.randn(5, 3), Rows.of([2, 3]))  # vectors, of which odd numbers of bytes are among the tokens
    targets = {"flags": torch.rand(7) > 0.5, "share": torch.tensor(0.5), "pairs": torch.arange(14).view(7, 2)}
    targets |= {"half": torch.randn(3).half(), "empty": torch.zeros(0, dtype=torch.int64)}
    return Batch(torch.arange(7), Rows.of([3, 0, 4]), torch.ones(7, dtype=torch.int64), targets, source)


def tensors_of(batch: Batch) -> list[Tensor]:
    tensors = list[Tensor]()
    batch.map(lambda tensor: tensors.append(tensor) or tensor)
    return tensors


def test_a_packed_batch_is_the_same() -> None:
    batch = example()
    packed = batch.packed()
    for made in (packed, packed.to("cpu"), packed.packed()):
        assert made.targets.keys() == batch.targets.keys() and made.rows.longest == batch.rows.longest
        for ours, theirs in zip(tensors_of(made), tensors_of(batch), strict=True):
            assert ours.dtype == theirs.dtype and ours.equal(theirs) and ours.data_ptr() % 16 == 0


def test_one_copy_brings_all_of_a_batch() -> None:
    batch = example()
    ours, theirs = batch.packed(), batch.map(lambda tensor: tensor.logical_not().to(tensor.dtype)).packed()
    assert ours.memory is not None and theirs.memory is not None
    ours.memory.copy_(theirs.memory)
    assert all(mine.equal(other) for mine, other in zip(tensors_of(ours), tensors_of(theirs), strict=True))


@pytest.mark.parametrize("change", ["replace", "map"])
def test_changed_tensors_are_in_no_memory(change: str) -> None:
    """Its bytes would be those of the tensors before."""
    packed = example().packed()
    fresh = replace(packed, tokens=packed.tokens + 1) if change == "replace" else packed.map(lambda tensor: tensor + 1)
    assert fresh.memory is None and fresh.to("cpu").tokens.equal(packed.tokens + 1)

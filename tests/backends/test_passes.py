"""Passes that are filled up, captured and in half precision answer as the plain pass does."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import weft
from tests.graphs import needs_gpu
from weft.backends.passes import KEPT, bucket, filled_up, finite_outputs, outputs, running
from weft.nn.halved import halved, is_watched, weights_changed
from weft.nn.rows import Batch, Ragged

TEXTS = [[[5, 6, 7]], [[4] * 16], [[9, 8], [7] * 30, [5]], [[1, 2, 3]] * 7, [[6] * 16] * 4]


def work(network: Any, batch: Batch) -> torch.Tensor:
    return network.logits("classify", network(batch.tokens, batch.rows, batch.segments), batch.rows)


@pytest.fixture(scope="module")
def model() -> Any:
    sizes = {"vocabulary": 60, "context": 64, "weight_scale": 0.2}
    return weft.new("bert", size="2x128", settings=sizes, heads={"classify": 3})


def batch_of(texts: list[list[int]], segments: bool = True) -> Batch:
    ragged = Ragged.of(texts)
    return Batch(ragged.tokens, ragged.rows, torch.ones_like(ragged.tokens) if segments else None)


@pytest.mark.parametrize("texts", TEXTS)
def test_rows_that_fill_up_change_nothing(model: Any, texts: list[list[int]]) -> None:
    batch = batch_of(texts)
    filled = filled_up(batch)
    assert len(filled.tokens) == bucket(len(filled.tokens)) and filled.rows.longest == bucket(filled.rows.longest)
    lengths = filled.rows.lengths()
    assert int(lengths.min()) >= 1 and int(lengths.max()) <= filled.rows.longest
    assert int(filled.rows.starts[-1]) == len(filled.tokens)
    network = model.network.double()
    with torch.inference_mode():
        plain, with_more = work(network, batch), work(network, filled)
    network.float()
    assert torch.allclose(plain, with_more[: len(texts)], atol=1e-12)


def test_sizes_are_few_and_close() -> None:
    sizes = {bucket(count) for count in range(1, 8193)}
    assert len(sizes) < 64 and all(bucket(count) - count < max(16, count / 7) for count in range(1, 8193))


def test_a_copy_follows_the_weights(model: Any) -> None:
    network = model.network
    half = halved(network, torch.bfloat16)
    assert half is halved(network, torch.bfloat16) and half is not network
    weight = network.layers[0].feedforward.up.weight
    with torch.no_grad():
        weight.add_(1.0)
    assert torch.equal(halved(network, torch.bfloat16).layers[0].feedforward.up.weight, weight.bfloat16())
    before = weight._version
    weight.detach().numpy()[:] = 2.0  # as a captured step does: unseen
    assert weight._version == before
    weights_changed(network)
    assert torch.equal(halved(network, torch.bfloat16).layers[0].feedforward.up.weight, weight.bfloat16())
    network.layers[0].attention.watcher = lambda sighting: None
    assert is_watched(network) and halved(network, torch.bfloat16) is network
    network.layers[0].attention.watcher = None


def test_on_the_cpu_nothing_is_halved(model: Any) -> None:
    assert running(model.opened) is model.network
    batch = batch_of(TEXTS[2])
    with torch.inference_mode():
        assert torch.equal(outputs(model.opened, batch, work, "classify"), work(model.network, batch))


@needs_gpu
def test_played_back_as_the_plain_pass() -> None:
    sizes = {"vocabulary": 60, "context": 64, "weight_scale": 0.05}
    model = weft.new("bert", size="2x128", settings=sizes, heads={"classify": 3}).to("cuda")
    with torch.inference_mode():
        for _ in range(4):
            for texts in TEXTS:
                batch = batch_of(texts)
                exact = work(model.network, batch.to("cuda"))
                ours = outputs(model.opened, batch, work, "classify")
                assert ours.shape == exact.shape and torch.allclose(ours, exact, atol=0.02)
    assert len(KEPT[running(model.opened)].graphs) >= 4
    with torch.no_grad():
        model.network.layers[0].feedforward.up.weight.mul_(1e6)  # out of the range of half precision
    with torch.inference_mode():
        exact = work(model.network, batch_of(TEXTS[2]).to("cuda")).cpu()
        ours = finite_outputs(model.opened, batch_of(TEXTS[2]), work, "classify")
    assert torch.equal(ours, exact), "made again in full"

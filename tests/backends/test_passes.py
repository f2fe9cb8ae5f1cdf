"""Passes that are filled up, captured and in half precision answer as the plain pass does."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch

import weft
from tests.graphs import CpuGraph, graphs_anywhere, needs_gpu  # noqa: F401
from weft.backends.passes import KEPT, PassGraphs, bucket, filled_up, finite_outputs, outputs, running
from weft.nn.halved import halved, is_watched, weights_changed
from weft.nn.heads import aligned_scores
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
    filled = filled_up(batch, 64)
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


@pytest.mark.parametrize("context", [16, 20, 100])
def test_rows_that_fill_up_are_no_longer_than_the_model_reads(context: int) -> None:
    model: Any = weft.new("bert", size="2x128", settings={"vocabulary": 60, "context": context}, heads={"classify": 3})
    batch = batch_of([[5] * (context - 1), [4] * 3, [7]])
    filled = filled_up(batch, context)
    assert int(filled.rows.lengths().max()) <= filled.rows.longest <= context
    with torch.inference_mode():
        assert torch.allclose(work(model.network, filled)[:3], work(model.network, batch), atol=1e-5)


@pytest.mark.parametrize("device", [pytest.param(torch.device("cpu"), id="cpu")])
def test_threads_play_one_graph_in_turns(
    model: Any,
    device: torch.device,
    graphs_anywhere: None,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A graph reads and writes at one place: what one thread put there is not to be answered to another."""
    passes, texts = PassGraphs(()), [[[number] * 9, [number] * 4] for number in range(3, 7)]
    plain = CpuGraph.replay

    def slowly(graph: CpuGraph) -> None:
        time.sleep(0.002)  # another thread's turn
        plain(graph)

    monkeypatch.setattr(CpuGraph, "replay", slowly)
    with torch.inference_mode():
        exact = [work(model.network, batch_of(each)) for each in texts]
        for _ in range(2):
            passes.run(model.network, batch_of(texts[0]), work, "classify")
    assert len(passes.graphs) == 1
    wrong: list[int] = []

    def answer(number: int) -> None:
        with torch.inference_mode():
            for _ in range(5):
                ours = passes.run(model.network, batch_of(texts[number]), work, "classify")
                if not torch.allclose(ours, exact[number], atol=1e-5):
                    wrong.append(number)

    threads = [threading.Thread(target=answer, args=(number,)) for number in range(len(texts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and len(passes.graphs) == 1


@pytest.mark.parametrize("device", [pytest.param(torch.device("cpu"), id="cpu")])
def test_what_cannot_be_captured_goes_without(
    model: Any,
    device: torch.device,
    graphs_anywhere: None,  # noqa: F811
) -> None:
    tries = []

    def reading(network: Any, batch: Batch) -> torch.Tensor:
        tries.append(batch)
        if len(tries) == 4:  # the first is plain, and two are tried out
            raise RuntimeError("operation not permitted when stream is capturing")
        return work(network, batch)

    passes, batch = PassGraphs(()), batch_of(TEXTS[2])
    with torch.inference_mode():
        exact = work(model.network, batch)
        for _ in range(4):
            assert torch.allclose(passes.run(model.network, batch, reading, "classify"), exact, atol=1e-5)
    assert not passes.graphs and len(tries) == 7, "never tried again"


@pytest.mark.parametrize("device", [pytest.param(torch.device("cpu"), id="cpu")])
def test_a_longer_copy_of_a_table_follows_it(device: torch.device, graphs_anywhere: None) -> None:  # noqa: F811
    """A pass that is played back does not ask for it: words would be scored by weights from before."""
    model: Any = weft.new("bert", size="2x128", settings={"vocabulary": 61, "context": 64}, heads={"classify": 3})

    def words(network: Any, batch: Batch) -> torch.Tensor:
        return aligned_scores(network(batch.tokens, batch.rows, batch.segments), network.tokens.weight, None)

    passes, batch = PassGraphs(()), batch_of(TEXTS[2])
    for _ in range(2):
        with torch.inference_mode():
            for _ in range(3):
                ours = passes.run(model.network, batch, words, "words")
            hidden = model.network(batch.tokens, batch.rows, batch.segments)
            assert torch.allclose(ours, hidden @ model.network.tokens.weight.t(), atol=1e-5)
        with torch.no_grad():
            model.network.tokens.weight.mul_(3.0)
    assert len(passes.graphs) == 1


@pytest.mark.parametrize("device", [pytest.param(torch.device("cpu"), id="cpu")])
def test_what_is_captured_under_autocast_is_not_played_without(
    model: Any,
    device: torch.device,
    graphs_anywhere: None,  # noqa: F811
) -> None:
    """As in the evaluations of a run, whose network may answer before and after it too."""
    passes, batch = PassGraphs(()), batch_of(TEXTS[2])
    with torch.inference_mode():
        exact = work(model.network, batch)
        for enabled in (True, False, True, False):
            with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
                for _ in range(2):
                    ours = passes.run(model.network, batch, work, "classify")
            assert torch.allclose(ours, exact, atol=1e-5) is not enabled
    assert len(passes.graphs) == 2


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

"""A step on a GPU waits for nothing: the processor launches the next one while the GPU is at work."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.graphs import CUDA, captured, needs_gpu
from tests.training.small import OBJECTIVES, batch_of, network_for
from tests.training.test_cuda import even_feed
from weft.nn import word_loss
from weft.training.loop import set_learning_rate
from weft.training.plan import Training
from weft.training.step import Setup, Stepper


@needs_gpu
@pytest.mark.parametrize("capture", [False, True], ids=["launched", "captured"])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_step_waits_for_nothing(
    objective: str, optimizer: str, capture: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(word_loss, "WHOLE", 0)
    network: Any = network_for(objective, dropout=0.1)
    aim = OBJECTIVES[objective]
    plan = Training(learning_rate=1e-3, precision="bf16", optimizer=optimizer)  # type: ignore[arg-type]
    setup = Setup(network=network, objective=aim, feed=even_feed(4, 16), plan=plan, device=CUDA)
    stepper = captured(Stepper(setup), capture)
    batch = batch_of(objective, [17] * 4)
    counts = torch.tensor([float(count) for count in aim.counts(batch).values()]).pin_memory()
    batch = batch.pinned()
    for number in range(3):
        stepper.step([batch], counts, number)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        set_learning_rate(stepper.optimizer, 1e-4)
        stepper.step([batch], counts, 3)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(stepper.passes.graphs) == int(capture)

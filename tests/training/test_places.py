"""Losses over a part of the outputs: places outside of t_min to t_max count nothing and get no gradient at all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.training.small import stories
from tests.training.test_carried import network_of
from weft.data.masking import NOTHING
from weft.errors import UserError
from weft.nn.rows import Batch, Rows
from weft.objectives.losses import CarriedToken, NextToken, StreamStates
from weft.runs.pretrain import pretrain

LENGTHS = [9, 2, 5, 12]


def batch_of_rows(lengths: list[int] = LENGTHS) -> Batch:
    draw = np.random.default_rng(1)
    tokens, words = (torch.from_numpy(draw.integers(0, 30, sum(lengths))) for _ in range(2))
    words[3] = NOTHING  # a place without a label stays without one
    return Batch(tokens, Rows.of(lengths, torch.device("cpu")), None, {"words": words})


def kept(lengths: list[int], first: int, last: int | None) -> torch.Tensor:
    places = [place for length in lengths for place in range(length)]
    return torch.tensor([first <= place and (last is None or place <= last) for place in places])


@pytest.mark.parametrize("cell", ["rnn", "lstm", "gru"])
@pytest.mark.parametrize("first, last", [(3, 7), (0, 4), (4, None), (6, 6), (20, None)])
def test_only_the_places_between_count(cell: str, first: int, last: int | None) -> None:
    network, batch = network_of(cell), batch_of_rows()
    seen: dict[str, torch.Tensor] = {}

    def watch(name: str, output: torch.Tensor) -> None:
        output.retain_grad()
        seen[name] = output

    network.register_forward_hook(lambda module, given, output: watch("hidden", output))
    network.heads["words"].register_forward_hook(lambda module, given, output: watch("logits", output))
    objective = NextToken(t_min=first, t_max=last)
    inside = kept(LENGTHS, first, last)
    labeled = inside & (batch.targets["words"] != NOTHING)
    loss = objective.sums(network, batch)["words"]
    loss.backward()
    assert objective.counts(batch) == {"words": int(labeled.sum())}
    by_hand = F.cross_entropy(seen["logits"][labeled], batch.targets["words"][labeled], reduction="sum")
    assert float(loss.detach()) == pytest.approx(float(by_hand.detach()), rel=1e-12)
    for outputs in seen.values():  # of ignored outputs: zero, not nearly zero
        assert outputs.grad is not None and bool((outputs.grad[~labeled] == 0).all())
        assert bool((outputs.grad[labeled].abs().amax(-1) > 0).all())
    # What was read before t_min still matters: the state that it left is part of what comes after.
    read = network.tokens.weight.grad[batch.tokens[:1]]
    assert bool((read != 0).any()) is (first <= 8)


def test_rows_that_are_carried_and_held_out_rows() -> None:
    network, lengths = network_of("lstm"), [6, 6]
    batch = batch_of_rows(lengths)
    batch = replace(batch, targets={**batch.targets, "streams": torch.tensor([0, 1])})
    states = StreamStates(2).lay_out(network)
    objective = CarriedToken(states, t_min=2, t_max=3)
    plain = objective.for_evaluation(network, type("Source", (), {"streams": 2}))
    assert (plain.t_min, plain.t_max) == (0, None)
    expected = NextToken(t_min=2, t_max=3)
    assert (
        objective.counts(batch) == expected.counts(batch) == {"words": 3 if batch.targets["words"][3] == NOTHING else 4}
    )
    assert torch.allclose(objective.sums(network, batch)["words"], expected.sums(network, batch)["words"])
    evaluated = expected.for_evaluation(network, None)
    assert evaluated.counts(batch) == {"words": 11} and evaluated == NextToken()


def test_a_run_with_places(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n".join(stories(40)))
    model: Any = {"family": "lstm", "size": "1x16"}

    def trained(name: str, **places: Any) -> list[float]:
        run = pretrain(
            model=model,
            text={"files": [str(tmp_path / "a.txt")]},
            objective={"length": 16, **places},
            training={"steps": 3, "batch": 4},
            tokenizer={"kind": "word"},
            out=str(tmp_path / name),
            log=lambda line: None,
        )
        return [float(parameter.detach().sum()) for parameter in run.network.parameters()]

    whole, same, part = trained("a"), trained("b", t_min=0, t_max=40), trained("c", t_min=4, t_max=11)
    assert whole == same != part
    for places, fault in (
        ({"t_min": -1}, "t_min must be at least 0, not -1"),
        ({"t_min": 5, "t_max": 4}, "t_max must be at least t_min, not 4"),
        ({"t_min": 16}, "objective.t_min 16 is beyond the places of rows of 16 tokens, 0 to 15"),
    ):
        with pytest.raises(UserError, match=fault):
            trained("x", **places)
    model = {"family": "bert", "size": "1x64"}
    with pytest.raises(UserError, match="t_min and t_max are for next tokens, not for mlm"):
        trained("y", t_min=2)

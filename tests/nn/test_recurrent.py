"""Recurrence over ragged rows: the fused kernels against the equations, row by row, gradients too."""

from __future__ import annotations

from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from weft.nn.recurrent import Bend, Cell, Reading, Recurrent, State, cell_step, locked_dropout, shares, stacked
from weft.nn.rows import Rows, filled, gathered, spread

LENGTHS = [4, 1, 7, 0, 3]


def by_hand(network: Recurrent, x: Tensor, rows: Rows, state: State) -> tuple[Tensor, list[list[list[Tensor]]]]:
    """The same network, one row and one place at a time."""
    outputs = []
    after: list[list[list[Tensor]]] = [[[] for _ in parts] for parts in state]
    for row in range(rows.count):
        text = x[int(rows.starts[row]) : int(rows.starts[row + 1])]
        number = 0
        for _ in range(len(network.layers) // len(network.directions)):
            sides = []
            for backwards in network.directions:
                module: Any = network.layers[number]
                parts = tuple(part[row : row + 1] for part in state[number])
                said = []
                for place in text.flip(0) if backwards else text:
                    given = place[None] @ module.weight_ih_l0.t() + module.bias_ih_l0
                    weights = module.weight_hh_l0, module.bias_hh_l0
                    parts = cell_step(network.cell, given, parts, *weights, network.activation)
                    said.append(parts[0])
                for part, seen in zip(parts, after[number], strict=True):
                    seen.append(part)
                side = torch.cat(said) if said else x.new_zeros(0, network.width)
                sides.append(side.flip(0) if backwards else side)
                number += 1
            text = torch.cat(sides, -1)
        outputs.append(text)
    return torch.cat(outputs), after


@pytest.mark.parametrize("reading", get_args(Reading))
@pytest.mark.parametrize("cell, activation", [*((cell, "tanh") for cell in get_args(Cell)), ("rnn", "relu")])
def test_the_fused_kernel_agrees_with_the_equations(cell: Cell, activation: Bend, reading: Reading) -> None:
    torch.manual_seed(0)
    network = Recurrent(cell, 5, 6, 2, reading, activation=activation).double()
    rows = Rows.of(LENGTHS)
    x = torch.randn(sum(LENGTHS), 5, dtype=torch.float64, requires_grad=True)
    begin = tuple(
        tuple(torch.randn_like(part).requires_grad_() for part in parts)
        for parts in network.beginning(len(LENGTHS), x.detach())
    )
    leaves = [x, *network.parameters(), *(part for parts in begin for part in parts)]
    found, after = network(x, rows, begin)
    assert after is not None
    expected, ends = by_hand(network, x, rows, begin)
    flat = [part for parts in after for part in parts]
    wanted = [torch.cat(part) for parts in ends for part in parts]
    assert all((a - b).abs().max() < 1e-9 for a, b in zip([found, *flat], [expected, *wanted], strict=True))
    # Other weights for every output, so that no two gradients can make up for each other.
    noise = [torch.randn_like(tensor) for tensor in (found, *flat)]
    both = [
        torch.autograd.grad(sum((a * b).sum() for a, b in zip(some, noise, strict=True)), leaves)  # type: ignore[arg-type]
        for some in ([found, *flat], [expected, *wanted])
    ]
    assert all((a - b).abs().max() < 1e-9 for a, b in zip(*both, strict=True))


@pytest.mark.parametrize("cell", get_args(Cell))
def test_steps_carry_on_where_a_text_stopped(cell: Cell) -> None:
    """Ragged texts read whole, then three more places step by step, fed and not: as if read at once."""
    torch.manual_seed(1)
    network = Recurrent(cell, 5, 6, 2).double()
    more = torch.randn(3, 4, 5, dtype=torch.float64)
    lengths = [4, 1, 7, 2]
    texts = [torch.randn(length, 5, dtype=torch.float64) for length in lengths]
    _, state = network(torch.cat(texts), Rows.of(lengths))
    for x in more:
        assert state is not None
        feeding, steps = network.steps(2), network.steps()
        fed, _ = feeding.step(feeding.given(x[:, :3]), state, x[:, 3:])
        top, state = steps.step(steps.given(x), state)
        assert (fed - top).abs().max() < 1e-12
    whole = [torch.cat([text, more[:, row]]) for row, text in enumerate(texts)]
    rows = Rows.of([len(text) for text in whole])
    hidden, _ = network(torch.cat(whole), rows, last=False)
    assert (hidden[rows.lasts()] - top).abs().max() < 1e-9


def test_a_longer_rectangle_changes_nothing() -> None:
    for cell in get_args(Cell):
        torch.manual_seed(2)
        network = Recurrent(cell, 5, 6, 2, "both").double()
        x, tight = torch.randn(sum(LENGTHS), 5, dtype=torch.float64), Rows.of(LENGTHS)
        one, first = network(x, tight)
        other, second = network(x, Rows(tight.starts, 12))
        assert torch.allclose(one, other, atol=1e-12) and first is not None and second is not None
        for a, b in zip(first, second, strict=True):
            assert all(torch.allclose(p, q, atol=1e-12) for p, q in zip(a, b, strict=True))


def test_dropout_stands_between_layers_only() -> None:
    one, two = (Recurrent("gru", 5, 6, layers, dropout=0.5).train() for layers in (1, 2))
    x, rows = torch.randn(9, 5), Rows.of([5, 4])
    assert torch.equal(one(x, rows)[0], one(x, rows)[0]) and not torch.equal(two(x, rows)[0], two(x, rows)[0])


@pytest.mark.parametrize("cell, activation", [*((cell, "tanh") for cell in get_args(Cell)), ("rnn", "relu")])
def test_a_dropped_out_layer_agrees_with_the_equations(cell: Cell, activation: Bend) -> None:
    """Recurrent weights are struck once for all rows and places: what is left is a layer like any other."""
    torch.manual_seed(3)
    network = Recurrent(cell, 5, 6, activation=activation, weight_drop=0.5).double()
    rows = Rows.of([4, 4, 4])
    x = torch.randn(12, 5, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(4)
    found, _ = network(x, rows)
    torch.manual_seed(4)
    module: Any = network.layers[0]
    mask = torch.nn.functional.dropout(torch.ones_like(module.weight_hh_l0), 0.5)
    assert 0 < (mask == 0).sum() < mask.numel()
    still = Recurrent(cell, 5, 6, activation=activation).double()
    still.load_state_dict(network.state_dict())
    with torch.no_grad():
        still.layers[0].weight_hh_l0 *= mask  # type: ignore[operator]
    expected, places = still.by_equations(x, rows)
    assert (found - expected).abs().max() < 1e-9 and len(places) == 5
    noise = torch.randn_like(found)
    here = torch.autograd.grad((found * noise).sum(), [x, module.weight_hh_l0, module.weight_ih_l0])
    other: Any = still.layers[0]
    there = torch.autograd.grad((expected * noise).sum(), [x, other.weight_hh_l0, other.weight_ih_l0])
    wanted = [there[0], there[1] * mask, there[2]]
    assert all((a - b).abs().max() < 1e-9 for a, b in zip(here, wanted, strict=True))
    network.eval()
    assert torch.equal(network(x, rows)[0], network(x, rows)[0])


def test_locked_dropout_strikes_the_same_numbers_at_every_place_of_a_row() -> None:
    torch.manual_seed(5)
    x, rows = torch.ones(9, 50), Rows.of([5, 0, 4])
    found = locked_dropout(x, rows, 0.5, True)
    assert set(found.unique().tolist()) == {0.0, 2.0}
    assert torch.equal(found[:5], found[:1].expand(5, 50)) and torch.equal(found[5:], found[5:6].expand(4, 50))
    assert not torch.equal(found[0], found[5])
    assert locked_dropout(x, rows, 0.5, False) is x


def test_a_rectangle_and_back() -> None:
    x, rows = torch.arange(1.0, 7.0)[:, None], Rows.of([2, 0, 4])
    assert spread(x, rows)[..., 0].t().tolist() == [[1, 2, 0, 0], [0, 0, 0, 0], [3, 4, 5, 6]]
    assert spread(x, rows, backwards=True)[..., 0].t().tolist() == [[2, 1, 0, 0], [0, 0, 0, 0], [6, 5, 4, 3]]
    for backwards in (False, True):
        assert torch.equal(gathered(spread(x, rows, backwards), rows, 6, backwards), x)
    scores = torch.tensor([[5.0, 1.0, 9.0, 9.0]] * 3, requires_grad=True)
    found = shares(scores, filled(rows))
    assert found[1].tolist() == [0.0] * 4 and found[0, 2:].tolist() == [0.0, 0.0]
    assert torch.allclose(found.sum(-1), torch.tensor([1.0, 0.0, 1.0]))
    found.square().sum().backward()
    assert scores.grad is not None and scores.grad.isfinite().all()


@pytest.mark.parametrize("cell, activation", [("rnn", "tanh"), ("rnn", "relu"), ("lstm", "tanh"), ("gru", "tanh")])
@pytest.mark.parametrize("begun", [False, True])
def test_several_layers_in_one_call_are_those_layers(cell: Any, activation: Any, begun: bool) -> None:
    """Outputs, what is carried on, and gradients."""
    torch.manual_seed(0)
    layers = [Recurrent(cell, 7 if number else 5, 7, activation=activation).double() for number in range(3)]
    rows = Rows.of([4, 4])
    x = torch.randn(8, 5, dtype=torch.float64)
    state = tuple(layer.beginning(2, x)[0] for layer in layers)
    if begun:
        state = tuple(tuple(torch.randn_like(part) for part in parts) for parts in state)
    expected, after = x, []
    for layer, parts in zip(layers, state, strict=True):
        expected, end = layer(expected, rows, (parts,))
        after += list(end)
    found, ends = stacked(layers, x, rows, state if begun else None, 0.0)
    assert torch.allclose(found, expected, atol=1e-12)
    for ours, theirs in zip(ends, after, strict=True):
        assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(ours, theirs, strict=True))
    weights = [weight for layer in layers for weight in layer.parameters()]
    both = [torch.autograd.grad(made.square().sum(), weights) for made in (found, expected)]
    assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(*both, strict=True))

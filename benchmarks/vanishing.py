"""Vanishing gradients, measured: the norm of dJ/ds(t) over 100 time steps of an RNN, a GRU and an LSTM.

    python benchmarks/vanishing.py [--steps 1500] [--plot vanishing.svg]

All three have one task, one width and one learning rate: the first of a row of random symbols has to be named at its
end (rows of 2 to 100 symbols in training). J is the loss of that answer after 100 symbols, s(t) all that the layer
carries on from step t: the hidden state and, of the LSTM, its memory. Norms are means over rows, before and after
training. `weft look gradients` draws the same for models of one's own. The recurrent matrices of Weft begin as
rotations (Saxe et al., 2014); "rnn, small weights" begins with normal numbers of deviation 0.5 / sqrt(width) instead,
as a textbook does.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from common import RESULTS, machine, parse, write

import weft
from weft.explain.gradients import GradientNorms, norms_view, state_gradients
from weft.nn.rows import Rows
from weft.text.tokenizers.training import learn

SYMBOLS = "abcdefgh"
CELLS = {"rnn": "rnn", "gru": "gru", "lstm": "lstm", "rnn, small weights": "rnn"}


def network_of(name: str, width: int, seed: int) -> Any:
    """A recurrent network of one layer over the symbols."""
    tokenizer = learn([SYMBOLS], "character", 64)
    settings = {"layers": 1, "width": width, "context": 1000, "dropout": 0.0}
    network: Any = weft.new(CELLS[name], tokenizer, settings=settings, seed=seed).network
    if "small" in name:
        generator = torch.Generator().manual_seed(seed)
        weights = network.layers[0].weights_of(network.layers[0].layers[0])
        with torch.no_grad():
            weights[1].copy_(torch.randn(weights[1].shape, generator=generator) * 0.5 / width**0.5)
    return network


def rows_of(count: int, length: int, generator: torch.Generator, first: int = 4) -> torch.Tensor:
    """count length: random symbols, by their ids."""
    return torch.randint(first, first + len(SYMBOLS), (count, length), generator=generator)


def answers(network: Any, rows: torch.Tensor) -> torch.Tensor:
    """count V: the logits after the last symbol of each row."""
    count, length = rows.shape
    hidden = network(rows.flatten(), Rows.of([length] * count, "cpu"))
    return network.words(hidden.view(count, length, -1)[:, -1])


def train(network: Any, given: argparse.Namespace) -> None:
    optimizer = torch.optim.AdamW(network.parameters(), lr=given.rate, weight_decay=0.0)
    generator = torch.Generator().manual_seed(given.seed)
    network.train()
    for _ in range(given.steps):
        length = int(torch.randint(2, given.length + 1, (), generator=generator))
        rows = rows_of(given.batch, length, generator)
        loss = F.cross_entropy(answers(network, rows), rows[:, 0])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
    network.eval()


def measured(network: Any, given: argparse.Namespace) -> tuple[list[float], float]:
    """Norms by time step, the mean of several rows, and how often the answer is right."""
    rows = rows_of(given.judged, given.length, torch.Generator().manual_seed(given.seed + 1))
    network.eval()
    norms = [state_gradients(network, row, int(row[0])) for row in rows[: given.measured]]
    with torch.no_grad():
        right = (answers(network, rows).argmax(-1) == rows[:, 0]).double().mean()
    return np.mean(norms, axis=0).tolist(), float(right)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=100, help="time steps")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--steps", type=int, default=1500, help="of training")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--judged", type=int, default=200, help="rows for the accuracy")
    parser.add_argument("--measured", type=int, default=20, help="rows for the norms")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", type=Path, help="also draw it: .html, .png or .svg")
    parser.add_argument("--result", type=Path, default=RESULTS / "vanishing.json")
    given = parse(parser, length=12, width=8, steps=3, batch=4, judged=8, measured=2)
    torch.set_num_threads(1)
    results: dict[str, Any] = {"machine": machine(), "length": given.length, "width": given.width, "cells": {}}
    curves = []
    places = sorted({1, 10, 25, 50, 75, given.length} & set(range(1, given.length + 1)))
    print("gradient norm at time step", *(f"{place:>9}" for place in places), "   right")
    for name in CELLS:
        begin, network, row = time.perf_counter(), network_of(name, given.width, given.seed), {}
        for when in ("before", "after"):
            if when == "after":
                train(network, given)
            norms, right = measured(network, given)
            row[when] = {"norms": norms, "accuracy": right}
            curves.append(GradientNorms(f"{name}, {when} training", norms, [""] * len(norms)))
            print(
                f"{name + ', ' + when:<26}",
                *(f"{norms[place - 1]:>9.1e}" for place in places),
                f"{right:>8.1%}",
                flush=True,
            )
        results["cells"][name] = {**row, "seconds": round(time.perf_counter() - begin, 1)}
        write(given.result, results)
    if given.plot is not None:
        print(f"wrote {norms_view(curves, 'state', 'Vanishing gradients').save(given.plot)}")


if __name__ == "__main__":
    main()

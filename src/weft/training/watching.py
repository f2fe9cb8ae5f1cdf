"""Gradients through time: how much of what a row's last word teaches reaches the places before it.

Where the norm falls with the distance the gradient vanishes, and nothing far back can be learned; where it grows it
explodes (Bengio et al., 1994). B: rows; W: width.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from weft.errors import UserError
from weft.files import no_link, write_text
from weft.nn.rows import Batch, Rows
from weft.objectives.language import cross_entropy
from weft.picture import ChartLine, line_chart, page, table
from weft.training.log import read_metrics, writing

MOST = 8  # rows that are looked at
CURVES = 6  # moments in one chart


def through_time(network: Any, batch: Batch) -> list[list[float]]:
    """By layer and by distance from a row's last place: the norm of d loss / d h there, the mean over rows.

    The loss is that of the last place alone. Read by the equations, from an empty state and without dropout: a fused
    kernel does not tell what went through it. Nothing of the training is touched.
    """
    whole = (batch.rows.lengths() == batch.rows.longest).nonzero()[:MOST, 0]
    length, count = batch.rows.longest, len(whole)
    places = batch.rows.firsts()[whole][:, None] + torch.arange(length, device=batch.tokens.device)  # B T
    tokens, labels = batch.tokens[places.flatten()], batch.targets["words"][places[:, -1]]
    rows = Rows.of([length] * count, batch.tokens.device)
    training = network.training
    network.eval()
    try:
        with torch.enable_grad():
            hidden, seen = network.unrolled(tokens, rows)
            loss = cross_entropy(network.words(hidden[rows.lasts()]), labels)  # a sum: rows do not touch each other
            carried = [parts[0] for layer in seen for parts in layer[1:]]  # B W each
            gradients: list[Tensor] = list(torch.autograd.grad(loss, carried))
    finally:
        network.train(training)
    norms = torch.stack([gradient.norm(dim=-1).mean() for gradient in gradients]).view(len(seen), length)
    return norms.flip(1).tolist()


class Watch:
    """`run/gradients.jsonl`: a line for each moment that was looked at."""

    def __init__(self, path: Path, step: int) -> None:
        """What a killed process wrote after `step` is cut off."""
        self.path = path
        kept = [line for line in read_metrics(path) if line["step"] <= step] if path.exists() else []
        self.steps = {line["step"] for line in kept}
        with writing(path):
            write_text(path, "".join(json.dumps(line) + "\n" for line in kept))

    def look(self, step: int, network: Any, batch: Batch) -> None:
        """Write down how far the gradients reach now."""
        if step in self.steps:
            return
        layers = [
            [float(f"{norm:.6g}") if math.isfinite(norm) else None for norm in norms]  # JSON has no word for the rest
            for norms in through_time(network, batch)
        ]
        with writing(self.path), open(self.path, "ab", opener=no_link) as file:
            file.write(json.dumps({"step": step, "layers": layers}).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.steps.add(step)


def draw_gradients(path: Path, out: Path, name: str) -> str | None:
    """The picture of a record, and one line of what it shows; None where there is nothing to show."""
    lines = [line for line in read_metrics(path) if line.get("layers")]
    if not lines:
        return None
    if len({len(line["layers"]) for line in lines}) > 1:
        raise UserError(f"{path}: its lines are of networks with different numbers of layers")
    chosen = sorted({round(place * (len(lines) - 1) / (CURVES - 1)) for place in range(CURVES)})
    charts = []
    for layer in range(len(lines[-1]["layers"])):
        curves = [
            ChartLine(
                f"step {lines[place]['step']:,}",
                [(far, math.nan if norm is None else norm) for far, norm in enumerate(lines[place]["layers"][layer])],
            )
            for place in chosen
        ]
        title = f"Layer {layer + 1}: gradient of the last word's loss, by distance from that word"
        charts.append(line_chart(title, curves, "tokens back", "norm of d loss / d h", log_y=True))
    rows = [
        [f"{lines[place]['step']:,}", str(layer + 1), *(_short(norms, far) for far in (0, 1, 4, 16)), _short(norms, -1)]
        for place in chosen
        for layer, norms in enumerate(lines[place]["layers"])
    ]
    farthest = len(lines[-1]["layers"][0]) - 1
    header = ["step", "layer", "at the word", "1 back", "4 back", "16 back", f"{farthest} back"]
    intro = (
        "A line that falls fast is a vanishing gradient: what stands far back has no say in what is learned. One that "
        "rises is an exploding gradient, which clipping keeps in bounds."
    )
    write_text(out, page(f"Gradients through time: {name}", [*charts, table(header, rows)], intro))
    top, when = lines[-1]["layers"][-1], f"at step {lines[-1]['step']:,}"
    if top[0] and top[-1]:
        return f"{when} the gradient {farthest} tokens back is {top[-1] / top[0]:.1e} of that at the last"
    return f"{when} no gradient reaches {farthest} tokens back"


def _short(norms: list[float | None], far: int) -> str:
    norm = norms[far] if far < len(norms) else None
    return "" if norm is None else f"{norm:.2e}"

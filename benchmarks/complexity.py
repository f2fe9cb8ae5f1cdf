"""The table of "Attention Is All You Need" (Vaswani et al., 2017, table 1), measured on the layers of this project.

    python benchmarks/complexity.py [--plot docs/complexity.svg] [--series width]
    python benchmarks/complexity.py --plot docs/complexity.svg --measured      # draws what was measured before

Self-attention, a simple recurrent layer, an LSTM, a GRU and a gated convolution of 3 places; one layer, the forward
pass of several texts at once: a recurrent layer reads its weights again at each place, and with one text alone it
would be measured how fast they come from which cache. Time against the length at one width, and against the width at
one length. The exponent is the slope of a straight line through the logarithms, by least squares over the points from
`--from-length` and `--from-width` on: below, a call costs more than the layer's own work. The two other columns are
measured on the layer too, by gradients in float64:

    steps  places that must be worked out one after the other. In a recurrent layer those whose input changes the last
           output, since all of it comes by way of the state. 1 in the others, where the last output needs no other
           one: attention gives the same after the places before it changed their order, a convolution without them.
    path   stacked layers until the gradient of the last output by the first input is no longer 0; in a recurrent
           layer, where one is enough, the steps between the two places.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import RESULTS, machine, parse, write
from torch import Tensor, nn

from weft.explain.view import LinePlot, View
from weft.nn.attention import Attention
from weft.nn.layers import GatedConvolution
from weft.nn.recurrent import Cell, Recurrent
from weft.nn.rows import Rows
from weft.picture.charts import ChartLine
from weft.timing import turns

KERNEL = 3
SERIES = ["length", "width"]
CELLS: dict[str, Cell] = {"recurrent": "rnn", "LSTM": "lstm", "GRU": "gru"}
# By the paper, n: length, d: width, k: kernel; the exponents of time are its own.
TABLE = {
    "self-attention": ("n^2 d + n d^2", "1", "1"),
    "recurrent": ("n d^2", "n", "n"),
    "LSTM": ("n d^2", "n", "n"),
    "GRU": ("n d^2", "n", "n"),
    "convolution": ("k n d^2", "1", "n / (k - 1)"),  # the paper's n / k counts places without overlap
}


class Stack(nn.Module):
    """Layers of one kind, each reading what the one below it gives."""

    def __init__(self, kind: str, width: int, layers: int = 1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(layer_of(kind, width) for _ in range(layers))

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        for layer in self.layers:
            out = layer(x, rows)
            x = out[0] if isinstance(out, tuple) else out  # recurrent layers give their state too
        return x


def layer_of(kind: str, width: int) -> nn.Module:
    if kind == "self-attention":
        return Attention(width, max(1, width // 64))
    if kind == "convolution":
        return GatedConvolution(width, KERNEL, causal=True)
    return Recurrent(CELLS[kind], width, width)


def seconds_of(sizes: list[tuple[int, int]], batch: int, repeats: int) -> dict[str, list[float]]:
    """Of each kind of layer at each length and width: the fastest of the repeats, since other work only adds to it.

    All layers and all sizes take turns, so that a busy minute falls on no size alone.
    """
    runs: dict[str, Callable[[int], Any]] = {}
    for length, width in sizes:
        for kind in TABLE:
            stack, x = Stack(kind, width).eval(), torch.randn(batch * length, width)

            def forward(turn: int, stack: Stack = stack, x: Tensor = x, length: int = length) -> Tensor:
                with torch.inference_mode():
                    return stack(x, Rows.of([length] * batch))

            runs[f"{kind} {length} {width}"] = forward
    times = turns(runs, repeats)
    return {kind: [min(times[f"{kind} {length} {width}"]) for length, width in sizes] for kind in TABLE}


def slope(xs: list[int], ys: list[float], least: int) -> float:
    """From this size on."""
    first = min(len(xs) - 2, sum(x < least for x in xs))
    return float(np.polyfit(np.log(xs[first:]), np.log(ys[first:]), 1)[0])


def reached(stack: Stack, length: int, width: int) -> list[bool]:
    """For each place of the text, whether the last output changes with what stands there."""
    stack = stack.double()
    x = torch.randn(length, width, dtype=torch.float64, requires_grad=True)
    stack(x, Rows.of([length]))[-1].sum().backward()
    assert x.grad is not None
    return [bool(place) for place in (x.grad != 0).any(1)]


def sequential_steps(kind: str, length: int, width: int) -> int:
    """Places that the last one has to wait for, itself among them."""
    if kind not in CELLS:
        stack = Stack(kind, width).double().eval()
        x = torch.randn(length, width, dtype=torch.float64)
        before = torch.randperm(length - 1) if kind == "self-attention" else torch.arange(length - KERNEL, length - 1)
        other = torch.cat([x[before], x[-1:]])
        whole, alone = (stack(some, Rows.of([len(some)]))[-1] for some in (x, other))
        assert (whole - alone).abs().max() < 1e-12, f"{kind}: the last place depends on other outputs"
        return 1
    return sum(reached(Stack(kind, width), length, width))


def longest_path(kind: str, length: int, width: int) -> int:
    """Layers until the first token influences the last; in a recurrent layer the steps between them."""
    if kind in CELLS:
        assert reached(Stack(kind, width), length, width)[0]
        return length - 1
    layers = 1
    while not reached(Stack(kind, width, layers), length, width)[0]:
        layers += 1
    return layers


def plot_of(found: dict[str, Any]) -> View:
    panels = []
    for by, fixed in (("length", "width"), ("width", "length")):
        series = found[f"by {by}"]
        lines = [
            ChartLine(f"{kind} ({series['exponents'][kind]:.2f})", list(zip(series[by], ms, strict=True)))
            for kind, ms in series["milliseconds"].items()
        ]
        title = f"{found['batch']} texts of width {series[fixed]}" if by == "length" else ""
        title = title or f"{found['batch']} texts of {series[fixed]} tokens"
        title += f"; in brackets the exponent from {by} {series['from']:,} on"
        panels.append(LinePlot(lines=lines, x=by, y="milliseconds", log_x=True, log_y=True, title=title))
    return View("Time per layer", tuple(panels))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[64, 128, 256, 512, 1024, 2048, 4096])
    parser.add_argument("--width", type=int, default=128, help="while the length grows")
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 128, 256, 512, 1024])
    parser.add_argument("--length", type=int, default=256, help="while the width grows")
    parser.add_argument("--batch", type=int, default=8, help="texts")
    parser.add_argument("--from-length", type=int, default=256, help="the first that an exponent is fitted to")
    parser.add_argument("--from-width", type=int, default=256)
    parser.add_argument("--series", nargs="+", choices=SERIES, default=SERIES, help="the other stays as it was")
    parser.add_argument("--paths", type=int, nargs="+", default=[8, 16, 32, 64], help="lengths for steps and paths")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--plot", type=Path, help="also draw it: .html, .png or .svg")
    parser.add_argument("--measured", action="store_true", help="draw the stored figures, and measure nothing")
    parser.add_argument("--result", type=Path, default=RESULTS / "complexity.json")
    args = parse(parser, lengths=[8, 16, 32], widths=[8, 16], width=8, length=8, paths=[4, 8], repeats=1)
    if args.measured:
        print(f"wrote {plot_of(json.loads(args.result.read_text())).save(args.plot)}")
        return
    torch.set_num_threads(args.threads)
    found: dict[str, Any] = {"machine": machine(), "kernel": KERNEL, "batch": args.batch, "layers": {}}
    if set(args.series) != set(SERIES):
        found = {**json.loads(args.result.read_text(encoding="utf-8")), **found}
    for by in args.series:
        long = by == "length"
        sizes, least = (args.lengths, args.from_length) if long else (args.widths, args.from_width)
        fixed = {"width": args.width} if long else {"length": args.length}
        times = seconds_of([(n, args.width) if long else (args.length, n) for n in sizes], args.batch, args.repeats)
        milliseconds = {kind: [round(each * 1e3, 4) for each in seconds] for kind, seconds in times.items()}
        exponents = {kind: round(slope(sizes, seconds, least), 3) for kind, seconds in times.items()}
        found[f"by {by}"] = {by: sizes, **fixed, "from": least, "milliseconds": milliseconds, "exponents": exponents}
    print(machine())
    print(f"{'layer':<15} {'time by the paper':<18} {'by length':>9} {'by width':>9}  steps, path at {args.paths}")
    for kind, (time, steps, path) in TABLE.items():
        counted = [sequential_steps(kind, length, 8) for length in args.paths]
        paths = [longest_path(kind, length, 8) for length in args.paths]
        if kind == "convolution":
            assert paths == [math.ceil((length - 1) / (KERNEL - 1)) for length in args.paths]
        exponents = [found[f"by {by}"]["exponents"][kind] for by in ("length", "width")]
        found["layers"][kind] = {
            "paper": {"time": time, "steps": steps, "path": path},
            "exponents": dict(zip(("length", "width"), exponents, strict=True)),
            "lengths": args.paths,
            "steps": counted,
            "path": paths,
        }
        print(f"{kind:<15} {time:<18} {exponents[0]:>9.2f} {exponents[1]:>9.2f}  {counted}, {paths}")
    write(args.result, found)
    if args.plot is not None:
        print(f"wrote {plot_of(found).save(args.plot)}")


if __name__ == "__main__":
    main()

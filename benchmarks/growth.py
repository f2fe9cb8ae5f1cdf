"""How time and memory grow: an encoder's forward pass and a training step by length, batch and size of the model.

    python benchmarks/growth.py                    # on two CPU threads
    python benchmarks/growth.py --device cuda      # bf16 on a GPU, larger models
    python benchmarks/growth.py --series batch     # one series; the others stay as they are in the result

One dimension grows at a time. A training step is the forward pass with the usual dropout, the loss of a masked
language model at 15 % of the tokens, the backward pass and an update by AdamW. Times are medians; memory is the most
that tensors held at once beyond weights, gradients and the optimizer's state; those count too where the model grows.
The exponent is the slope of a straight line through the logarithms: 1 is growth in proportion, 2 is that of the square.
Small sizes cost what launching costs, whatever the size, and so have a slope near 0: beside the slope through all
points stands the one from the middle of the range on, and the bar is for both: time at most 2.1 by length and 1.1 by
batch and parameters, memory at most 1.1.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from common import RESULTS, machine, parse, write
from torch.profiler import ProfilerActivity, profile

from weft.checkpoint.families import FAMILIES
from weft.nn.rows import Rows
from weft.timing import turns

VOCABULARY = 8192
CONTEXT = 8192
BARS = {("time", "length"): 2.1, ("time", "batch"): 1.1, ("time", "parameters"): 1.1, "memory": 1.1}
SERIES = ["length", "batch", "parameters"]
SHARE = 0.15  # of the tokens that the loss is of

Size = tuple[int, int]  # layers, width


@dataclass(frozen=True)
class Ranges:
    """What grows, and what stands still while something else does."""

    lengths: tuple[int, ...]
    batches: tuple[int, ...]
    sizes: tuple[Size, ...]
    long: tuple[Size, int]  # the model and the batch while the length grows
    wide: tuple[Size, int]  # the model and the length while the batch grows
    deep: tuple[int, int]  # batch and length while the model grows


LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192)
CPU = Ranges(
    lengths=LENGTHS,
    batches=(1, 2, 4, 8, 16, 32),
    sizes=((2, 128), (4, 256), (6, 384), (8, 512), (12, 768)),
    long=((2, 128), 1),
    wide=((4, 256), 128),
    deep=(4, 128),
)
CUDA = Ranges(
    lengths=LENGTHS,
    batches=(1, 2, 4, 8, 16, 32, 64, 128),
    sizes=((4, 256), (6, 512), (12, 768), (24, 1024), (24, 1536)),
    long=((12, 768), 4),
    wide=((12, 768), 512),
    deep=(32, 512),
)
SMOKE = Ranges((8, 16, 32), (1, 2), ((1, 16), (1, 32)), ((1, 16), 1), ((1, 16), 8), (1, 8))


def encoder(size: Size, device: torch.device) -> Any:
    layers, width = size
    family = FAMILIES["bert"]
    settings = {"layers": layers, "width": width, "heads": max(1, width // 64), "inner": 4 * width, "pooler": False}
    config = family.config(vocabulary=VOCABULARY, context=CONTEXT, **settings)
    network = family.network(config, {"words": VOCABULARY})
    network.initialize()
    return network.to(device, torch.bfloat16 if device.type == "cuda" else torch.float32)


class Work:
    """A model with an optimizer, and a batch of full rows for it."""

    def __init__(self, size: Size, batch: int, length: int, device: torch.device) -> None:
        torch.manual_seed(0)
        self.device, self.shape = device, (batch, length)
        self.network = encoder(size, device)
        self.optimizer = torch.optim.AdamW(self.network.parameters(), 1e-5, fused=True)  # as in training
        self.tokens = torch.randint(5, VOCABULARY, (batch * length,), device=device)
        self.chosen = torch.randperm(batch * length, device=device)[: max(1, int(SHARE * batch * length))]
        self.train()  # gradients and the optimizer's state are there from now on

    def rows(self) -> Rows:
        return Rows.of([self.shape[1]] * self.shape[0], self.device)

    @torch.inference_mode()
    def forward(self) -> None:
        self.network.eval()
        self.network(self.tokens, self.rows())

    def train(self) -> None:
        self.network.train()
        hidden = self.network(self.tokens, self.rows())
        loss = F.cross_entropy(self.network.words(hidden[self.chosen]).float(), self.tokens[self.chosen])
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)

    def parameters(self) -> int:
        """Weights of the layers: those that every token is multiplied with."""
        return sum(weight.numel() for weight in self.network.layers.parameters())

    def held(self) -> int:
        """Bytes of weights, gradients and the optimizer's state."""
        weights = list(self.network.parameters())
        state = [value for each in self.optimizer.state.values() for value in each.values() if value.dim()]
        return sum(tensor.nbytes for tensor in [*weights, *weights, *state])


def settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def peak_of(run: Callable[[], None], device: torch.device) -> int:
    """The most bytes that tensors held at once during a run, beyond those that they held before."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        run()
    held = most = 0
    events = [event for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


def measured(asked: list[tuple[Size, int, int]], device: torch.device, args: argparse.Namespace) -> list[Any]:
    """Both kinds of work at each point of a series; all points take turns, so that all have the busy minutes."""
    works = [Work(*each, device) for each in asked]
    runs: dict[str, Callable[[int], Any]] = {}
    for number, work in enumerate(works):
        runs[f"forward {number}"] = lambda _, work=work: work.forward()
        runs[f"train {number}"] = lambda _, work=work: work.train()
    times = turns(runs, args.repeats, seconds=args.most, settle=lambda: settle(device))
    points = []
    for number, (work, (size, batch, length)) in enumerate(zip(works, asked, strict=True)):
        point: dict[str, Any] = {"layers": size[0], "width": size[1], "batch": batch, "length": length}
        point |= {"parameters": work.parameters(), "held": work.held()}
        for name, run in (("forward", work.forward), ("train", work.train)):
            seconds = statistics.median(times[f"{name} {number}"])
            point[name] = {"seconds": seconds, "bytes": peak_of(run, device)}
        points.append(point)
    return points


def slope(xs: list[float], ys: list[float]) -> float:
    return float(np.polyfit(np.log(xs), np.log(ys), 1)[0])


def fitted(points: list[dict[str, Any]], by: str) -> dict[str, Any]:
    """The exponents of a series: through all points, and from the middle on."""
    found: dict[str, Any] = {}
    xs = [float(point[by]) for point in points]
    half = max(0, min(len(xs) - 2, len(xs) // 2))
    for work in ("forward", "train"):
        # Where the model grows, what it holds itself is what memory is about.
        more = [point["held"] // (1 if work == "train" else 4) if by == "parameters" else 0 for point in points]
        memory = [float(point[work]["bytes"] + own) for point, own in zip(points, more, strict=True)]
        for what, ys in (("time", [point[work]["seconds"] for point in points]), ("memory", memory)):
            bar = BARS[what, by] if (what, by) in BARS else BARS["memory"]
            slopes = {"all": slope(xs, ys), "upper half": slope(xs[half:], ys[half:])}
            found[f"{work} {what}"] = {**slopes, "bar": bar, "within": max(slopes.values()) <= bar}
    return found


def show(by: str, points: list[dict[str, Any]], exponents: dict[str, Any]) -> None:
    print(f"\n{by:>12}  {'forward':>12}  {'memory':>10}  {'train step':>12}  {'memory':>10}")
    for point in points:
        cells = [
            f"{point[w]['seconds'] * 1e3:9.2f} ms  {point[w]['bytes'] / 1e6:7.1f} MB" for w in ("forward", "train")
        ]
        print(f"{point[by]:>12,}  {'  '.join(cells)}")
    for name, one in exponents.items():
        mark = "" if one["within"] else "   ABOVE THE BAR"
        print(f"  {name:<15} exponent {one['all']:.2f}, upper half {one['upper half']:.2f} (bar {one['bar']}){mark}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--most", type=float, default=8.0, help="seconds of repeats at the slowest point")
    parser.add_argument("--series", nargs="+", choices=SERIES, default=SERIES, help="which to measure")
    parser.add_argument("--result", type=Path, help="default: benchmarks/results/growth_DEVICE.json")
    args = parse(parser, repeats=1)
    torch.set_num_threads(args.threads)
    device = torch.device(args.device)
    ranges = SMOKE if args.smoke else CUDA if device.type == "cuda" else CPU
    series = {
        "length": [(*ranges.long, length) for length in ranges.lengths],
        "batch": [(ranges.wide[0], batch, ranges.wide[1]) for batch in ranges.batches],
        "parameters": [(size, *ranges.deep) for size in ranges.sizes],
    }
    precision = "bfloat16" if device.type == "cuda" else "float32"
    path = args.result or RESULTS / f"growth_{device.type}.json"
    found: dict[str, Any] = {"machine": machine(), "precision": precision, "vocabulary": VOCABULARY}
    if path.exists() and set(args.series) != set(SERIES):
        before = json.loads(path.read_text(encoding="utf-8"))
        found = {**before, **found}
    print(machine())
    for by in args.series:
        points = measured(series[by], device, args)
        found[by] = {"points": points, "exponents": fitted(points, by)}
        show(by, points, found[by]["exponents"])
        write(path, found)


if __name__ == "__main__":
    main()

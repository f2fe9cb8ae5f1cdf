"""The record of a run: a live line, `metrics.jsonl`, TensorBoard where asked for, and gradients through time."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from weft.errors import UserError, escaped, shown
from weft.files import no_link, peak_memory, read_text, reason, write_text
from weft.nn.rows import Batch, Rows
from weft.nn.word_loss import cross_entropy
from weft.picture import ChartLine, line_chart, page, table
from weft.progress import unescaped

# Dense bf16 products per second as the makers state them.
PEAKS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "L4": 121e12, "A10G": 70e12, "T4": 65e12}
COLUMNS = 80  # of a terminal that a live line fits into
MAX_METRICS = 1 << 30  # bytes of a record
LARGEST = 1e300  # of a number in a record
LISTS = {"entries": "a list of whole numbers", "layers": "a list of equally long lists of numbers"}
# What differs between two equal runs.
TIMES = ("seconds", "tokens_per_second", "memory", "mfu", "waiting", "evaluating")


def peak_of(device: torch.device) -> float | None:
    """Products and sums that a GPU does in a second at best; None where its maker's figure is not known here."""
    if device.type != "cuda":
        return None
    words = torch.cuda.get_device_name(device).replace("-", " ").split()
    return next((peak for word, peak in PEAKS.items() if word in words), None)


def memory_used(device: torch.device) -> int:
    """The most bytes that were in use at once: of the GPU, else of this process."""
    if device.type == "cuda":
        # As `max_memory_allocated`, which sorts all statistics first: a line is written while the GPU waits.
        return torch.cuda.memory_stats_as_nested_dict(device).get("allocated_bytes", {}).get("all", {}).get("peak", 0)
    if (peak := peak_memory()) is not None or sys.platform == "win32":
        return peak or 0
    import resource  # Windows has none

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Errors of the system in the block are errors of this file."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {reason(error)}") from None


@dataclass
class RunLog:
    """The run's own record, a line of JSON for each `log_every` steps and each evaluation, and a line for people."""

    path: Path
    size: int  # bytes that belong to the steps done; what a killed process wrote after them is cut off
    tensorboard: Path | None = None
    first: int = 0
    log: Callable[[str], None] | None = None  # gets the lines for people in place of the terminal ...
    passing: Callable[[str], None] | None = None  # ... and this one those that another soon replaces

    def __post_init__(self) -> None:
        self.live = sys.stderr is not None and sys.stderr.isatty()
        self.shown = False
        self.next = 0.0  # when a passing line is due again where nobody watches
        with writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.file = open(self.path, "ab", opener=no_link)  # noqa: SIM115
            self.file.truncate(min(self.size, self.file.seek(0, os.SEEK_END)))
            self.file.seek(0, os.SEEK_END)
        self.board: Any = None
        if self.tensorboard is not None:
            from torch.utils.tensorboard import SummaryWriter

            self.board = SummaryWriter(str(self.tensorboard), purge_step=self.first)

    def kept(self) -> int:
        """How many bytes the record has, all of them on the disk."""
        with writing(self.path):
            os.fsync(self.file.fileno())
        return self.file.tell()

    def record(self, values: Mapping[str, Any]) -> None:
        """One line of JSON, on the disk when this returns (to the system at least)."""
        with writing(self.path):
            self.file.write(json.dumps(values).encode() + b"\n")
            self.file.flush()
        if self.board is not None:
            for name, value in values.items():
                if name != "step" and isinstance(value, int | float):
                    self.board.add_scalar(name.replace("validation_", "validation/"), value, values["step"])

    def line(self, text: str, passing: bool = False) -> None:
        """A line for people; on a terminal a passing one is written over, elsewhere there is one in two seconds."""
        if self.log is not None:
            write = self.passing if passing else self.log
            if write is not None:
                write(text)
            return
        if sys.stderr is None or (passing and not self.live and time.monotonic() < self.next):
            return
        with suppress(OSError):  # whoever read along has gone: the run goes on
            if self.live:
                text = text[: shutil.get_terminal_size().columns - 1] if passing else text
                unescaped(sys.stderr).write(f"\r\x1b[K{escaped(text)}" + ("" if passing else "\n"))
                self.shown = passing
            else:
                sys.stderr.write(f"{text}\n")
                self.next = time.monotonic() + 2 if passing else self.next
            sys.stderr.flush()

    def close(self) -> None:
        with suppress(OSError):  # a full disk has been spoken of already
            if self.shown and sys.stderr is not None:
                sys.stderr.write("\n")
            self.file.close()
        if self.board is not None:
            self.board.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a run's record; a last line that a kill cut short is left out."""
    lines = read_text(path, MAX_METRICS).splitlines()
    records = []
    for number, line in enumerate(lines, 1):
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            if number == len(lines):
                break
            raise UserError(f"{path} line {number}: not JSON") from None
        if not isinstance(values, dict) or not _is_step(values.get("step")):
            raise UserError(f"{path} line {number}: holds no step")
        for key, value in values.items():
            if not _fits(key, value):
                wanted = LISTS.get(key, "a number")
                raise UserError(f"{path} line {number}: {shown(key)} must be {wanted}, not {shown(json.dumps(value))}")
        records.append(values)
    return records


def _is_step(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not abs(value) > LARGEST


def _fits(key: str, value: Any) -> bool:
    """Whether a value of the record is of the type that its key says."""
    if key == "entries":
        return isinstance(value, list) and all(map(_is_step, value))
    if key == "layers":
        if not isinstance(value, list) or not all(isinstance(row, list) and row for row in value):
            return False
        even = len({len(row) for row in value}) <= 1
        return even and all(norm is None or _is_number(norm) for row in value for norm in row)
    if key == "norm" and value is None:  # a gradient that is no number, in fp16
        return True
    if key.startswith("validation_") or key in ("loss", "norm"):  # a score may be nan, and a loss infinite
        return isinstance(value, float) or _is_number(value)
    return _is_number(value) and value == value


def time_left(seconds: float) -> str:
    """75 -> '1:15'; hours only where there are some."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


ROWS = 8  # that gradients are taken of
CURVES = 6  # moments in one chart


def through_time(network: Any, batch: Batch) -> list[list[float]]:
    """By layer and distance from a row's last place: the norm of d loss / d h (Bengio et al., 1994), mean of rows.

    The loss is that of the last place. By the equations, since a fused kernel keeps no states. B: rows; W: width.
    """
    whole = (batch.rows.lengths() == batch.rows.longest).nonzero()[:ROWS, 0]
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
        self.path = path  # what a killed process wrote after `step` is cut off
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
        curves = []
        for place in chosen:
            norms = [math.nan if norm is None else norm for norm in lines[place]["layers"][layer]]
            curves.append(ChartLine(f"step {lines[place]['step']:,}", list(enumerate(norms))))
        title = f"Layer {layer + 1}: gradient of the last word's loss, by distance from that word"
        charts.append(line_chart(title, curves, "tokens back", "norm of d loss / d h", log_y=True))
    rows = [
        [f"{lines[place]['step']:,}", str(layer + 1), *(_short(norms, far) for far in (0, 1, 4, 16)), _short(norms, -1)]
        for place in chosen
        for layer, norms in enumerate(lines[place]["layers"])
    ]
    farthest = len(lines[-1]["layers"][0]) - 1
    header = ["step", "layer", "at the word", "1 back", "4 back", "16 back", f"{farthest} back"]
    intro = "A line that falls fast is a vanishing gradient; one that rises an exploding one, which clipping limits."
    write_text(out, page(f"Gradients through time: {name}", [*charts, table(header, rows)], intro))
    top, when = lines[-1]["layers"][-1], f"at step {lines[-1]['step']:,}"
    if top[0] and top[-1]:
        return f"{when} the gradient {farthest} tokens back is {top[-1] / top[0]:.1e} of that at the last"
    return f"{when} no gradient reaches {farthest} tokens back"


def _short(norms: list[float | None], far: int) -> str:
    norm = norms[far] if far < len(norms) else None
    return "" if norm is None else f"{norm:.2e}"

"""What verbs take and print: checks that need no torch, models, texts, lines of standard input, tables, JSON."""

from __future__ import annotations

import json
import os
import queue
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import weft
from weft.budget import by_budget
from weft.cli import late
from weft.errors import UserError, escaped, one_of
from weft.files import check_new_folder, check_new_run
from weft.loading import collector_paused
from weft.memory import keep_freed_memory
from weft.progress import decimals

if TYPE_CHECKING:
    from weft.tasks.light import LightModel
    from weft.tasks.model import Model

T = TypeVar("T")
Ticker = Callable[[int], None]
CHARACTERS = 1 << 24  # that are held in a batch, and read ahead
LARGEST = 4096  # items of a batch
MOMENT = 0.25  # seconds
DEVICES = Path("/dev")

# ------------------------------------------------------------------------------------- checks before torch is imported


def check_data(*names: Sequence[str] | None) -> None:
    """Refuse files that are not there, before a model is loaded."""
    for files in names:
        late.shards.TextFiles(tuple(files or ())).paths()


def check_device(device: str | None) -> None:
    """Refuse what is no name of a device; whether it is there, torch knows."""
    if device is not None and not re.fullmatch(r"cpu|(cuda|mps)(:[0-9]+)?", device):
        raise UserError(f"device {device!r} is not cpu, cuda, cuda:NUMBER or mps")


def check_models(*names: str, online: bool = False, **runtime: Any) -> None:
    """Refuse names that are not model folders, here or in the cache."""
    for name in names:
        if not late.locate.has_model(late.locate.find_folder(name, online)):
            raise UserError(f"{name!r} is not a model folder: it has no config.json")


def check_rows(given: Mapping[str, Any], *names: Sequence[str] | None) -> None:
    """Refuse a format that cannot be read, columns that no task has, and files that are not there."""
    if given.get("format") is not None:
        one_of(given["format"], late.records.FORMATS, "--format")
    for files in names:
        late.tables.Table(tuple(files or ()), given.get("columns", {}), given.get("format")).paths()


def table_of(data: Sequence[str], given: Mapping[str, Any], **more: Any) -> late.tables.Table:
    """A table with the options that were given."""
    return late.tables.Table(tuple(data), **{**given, "names": tuple(given.get("names", ()))}, **more)


def check_run(out: str | None, model: Mapping[str, Any], online: bool = False, several: bool = False) -> None:
    """Refuse a run without a place for it, and a model that is not there; `several` runs go into a folder together."""
    if out is None:
        raise UserError("no folder for the run: give --out FOLDER")
    if not several:
        check_new_run(Path(out))
    family, base = model.get("family"), model.get("base")
    if isinstance(family, str):
        if "/" in family and is_model(family):
            raise UserError(f"{family!r} is a model folder, and --model names a family; give it as --base")
        late.locate.check_name(family, model.get("size"))
    if isinstance(base, str) and not Path(base).is_file():  # word vectors may come in a file
        check_models(base, online=online)


def check_written(folder: str, out: Path | None, runtime: Mapping[str, Any]) -> None:
    """A model folder that is there, and a place for the one that is made of it."""
    if out is None:
        raise UserError("no folder for the model: give --out FOLDER")
    check_models(folder, **runtime)
    check_new_folder(out)


# ------------------------------------------------------------------------------------------------- models and texts


def load_model(
    folder: str,
    task: str | None = None,
    device: str | None = None,
    online: bool = False,
    trust: bool = False,
    language: str | None = None,
    precision: Any = "auto",
    backend: str | None = None,
    chosen: bool = False,
) -> Model:
    """The model for a verb, on the device asked for or on the best there is.

    `chosen`: on a CPU it may answer by the backend that `weft bench` has chosen; `backend` asks for one.
    """
    check_models(folder, online=online)
    check_device(device)
    options = {"online": online, "trust": trust, "language": language, "precision": precision}
    if backend is None and not (chosen and (device or best_device()) == "cpu"):
        backend = late.opening.backend_of(late.locate.find_folder(folder, online)) or "torch"
    model = weft.load(folder, task=task, backend=backend, **options)
    fixed = model.opened.exported or model.opened.predictor is not None
    model.to(device or ("cpu" if fixed else best_device()))
    if model.opened.device.type == "cpu":
        keep_freed_memory()
    return model


def open_light(
    folder: str,
    device: str | None = None,
    backend: str | None = None,
    online: bool = False,
    trust: bool = False,
    **options: Any,
) -> LightModel | None:
    """A model that ONNX Runtime can answer for without torch, which takes longer to import than all the rest."""
    asked = any(options.get(name, default) != default for name, default in (("language", None), ("precision", "auto")))
    if asked or device not in (None, "cpu"):
        return None
    path = late.locate.find_folder(folder, online)
    exported = late.light.open_light(path, trust) if backend in (None, "onnx") else None
    if exported is not None or (backend is None and device is None and not without_gpu()):
        return exported
    return late.light.open_chosen(path, backend, trust)


def without_gpu() -> bool:
    """Whether torch would find no CUDA device, as far as that can be told without its import."""
    if sys.platform == "darwin" or (late.choice.version_of("torch") or "").endswith("+cpu"):
        return True
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return True
    drivers = chain(DEVICES.glob("nvidia*"), DEVICES.glob("dxg"), DEVICES.glob("kfd"))  # the second is Windows' own
    return sys.platform == "linux" and not any(drivers)


def best_device() -> str:
    with collector_paused():  # this may be the first import of torch
        import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def are_given(texts: Sequence[str] | None) -> bool:
    """Whether texts stand on the command line; otherwise standard input has them."""
    return bool(texts) and texts != ["-"]


def from_input(texts: Sequence[str] | None) -> Iterator[str]:
    """The texts given, or one per line of standard input, blank ones too: answers come line for line."""
    if texts and are_given(texts):
        yield from texts
        return
    if sys.stdin is None or sys.stdin.isatty():
        raise UserError("no text: give texts after the model, or one per line on standard input")
    for document in late.records.read_input():
        yield document.text


def pairs_of(texts: Sequence[str] | None, what: str) -> Iterator[tuple[str, str]]:
    """Texts two by two, or lines of standard input with a tab between the two; `what` they are."""
    if texts and are_given(texts):
        if len(texts) % 2:
            were = "1 was" if len(texts) == 1 else f"{len(texts)} were"
            raise UserError(f"this model takes texts two by two; {were} given, where it wants {what}")
        yield from zip(texts[::2], texts[1::2], strict=True)
        return
    for number, line in enumerate(from_input(texts), 1):
        first, tab, second = line.partition("\t")
        if not tab:
            raise UserError(f"standard input line {number}: no tab between two texts: {what}")
        yield first, second


def models_and_texts(texts: list[str] | None) -> tuple[list[str], list[str]]:
    """Further model folders of an ensemble, and the texts after them."""
    given = list(texts or [])
    count = next((place for place, name in enumerate(given) if not is_model(name)), len(given))
    if _is_path(name := "".join(given[count : count + 1])):
        raise UserError(
            f"{name!r} is not a model folder: it has no config.json (a text like this one can come on standard input)"
        )
    return given[:count], given[count:]


def is_model(name: str) -> bool:
    try:
        return late.locate.has_model(Path(name))
    except (OSError, ValueError):  # a long text is no name
        return False


def _is_path(name: str) -> bool:
    """Whether a text is rather a slip in the name of a folder: one that is there, or would lie in one that is."""
    if not name.strip("/") or len(name.split()) != 1 or "/" not in name.rstrip("/"):
        return False
    try:
        return Path(name).is_dir() or (len(Path(name).parts) > 2 - (name[0] != "/") and Path(name).parent.is_dir())
    except (OSError, ValueError):
        return False


# ------------------------------------------------------------------------------------------------- batches


def batches(source: Iterable[T], most: int, given: bool) -> Iterator[list[T]]:
    """Batches of so many, fewer where items are long; of standard input (not `given`) as they come."""
    return chunked(source, most) if given else as_they_come(source, most, LARGEST)


def chunked(source: Iterable[T], most: int) -> Iterator[list[T]]:
    """Batches of so many, fewer where they are long, the last one of what is left."""
    return by_budget(source, lambda item: max(size_of(item), CHARACTERS // most), CHARACTERS)


def size_of(item: Any) -> int:
    """Characters of a text, of several, or of a row that a model reads."""
    given = getattr(item, "input", item)
    return len(given) if isinstance(given, str) else sum(map(size_of, given)) if isinstance(given, list | tuple) else 1


def as_they_come(source: Iterable[T], most: int, largest: int | None = None) -> Iterator[list[T]]:
    """Batches of what is there, at most so many: waits for one item, never for a second one.

    A thread reads ahead, so that the lines of a large pipe are there in full batches. While those take a moment each,
    the next has twice as many, up to `largest`: a fast model is not kept waiting, and a slow one still answers soon.
    """
    largest = largest or most
    read: queue.SimpleQueue[T | BaseException] = queue.SimpleQueue()  # last: why the source ended
    room, ahead, free = CHARACTERS, 4 * largest, threading.Condition()

    def take(size: int) -> None:
        """Wait until so many characters may be read ahead, at least one item at any time."""
        nonlocal room, ahead
        with free:
            free.wait_for(lambda: ahead and (room >= size or room == CHARACTERS))
            room, ahead = room - size, ahead - 1

    def pump() -> None:
        end: BaseException = StopIteration()
        try:
            for item in source:
                take(size_of(item))
                read.put(item)
        except BaseException as error:  # raised where the items are used
            end = error
        read.put(end)

    threading.Thread(target=pump, daemon=True).start()
    while True:
        batch, held = list[T](), 0
        item = read.get()
        while not isinstance(item, BaseException):
            batch.append(item)
            held += size_of(item)
            if len(batch) == most or held >= CHARACTERS or read.empty():
                break
            item = read.get()
        with free:
            room, ahead = room + held, ahead + len(batch)
            free.notify()
        if batch:
            begin = time.monotonic()
            yield batch
            if len(batch) == most and time.monotonic() - begin < MOMENT:
                most = min(2 * most, largest)
        if isinstance(item, StopIteration):
            return
        if isinstance(item, BaseException):
            raise item


# ------------------------------------------------------------------------------------------------- printing


def print_json(answer: Any, **more: Any) -> None:
    """One answer, or a mapping, as a line of JSON, after what it is the answer to."""
    values = asdict(answer) if is_dataclass(answer) and not isinstance(answer, type) else answer
    print(json.dumps({**more, **values}, ensure_ascii=False))


def to_print(inputs: Iterable[Any], answers: Iterable[Any], name: str, jsonl: bool) -> Iterator[tuple[Any, Any]]:
    """Inputs with their answers, to be printed for people; with `jsonl` none: lines of JSON are printed here."""
    for given, answer in zip(inputs, answers, strict=True):
        if jsonl:
            print_json(answer, **{name: given})
        else:
            yield given, answer


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns under their names, numbers to the right; never cut, whatever the width of the terminal."""
    cells = [[escaped(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    filled = [[row[column] for row in cells[1:] if row[column]] for column in range(len(header))]
    numeric = [all(cell.lstrip("-")[:1].isdigit() for cell in column) for column in filled]
    lines = []
    for row in cells:
        parts = zip(row, widths, numeric, strict=True)
        lines.append("  ".join(cell.rjust(width) if right else cell.ljust(width) for cell, width, right in parts))
    return "\n".join(line.rstrip() for line in lines)


def print_rows(rows: Sequence[Mapping[str, Any]], jsonl: bool) -> None:
    """Rows of figures as a table, or as lines of JSON."""
    if jsonl:
        for row in rows:
            print_json(row)
    elif rows:
        cells = [[f"{value:.4f}" if isinstance(value, float) else str(value) for value in row.values()] for row in rows]
        print(table(list(rows[0]), cells))


def print_scores(scores: Mapping[str, Any]) -> None:
    """Scores with their intervals; text without spaces is one word, whose perplexity has a hundred digits."""
    rows = [[name, *map(decimals, (score.value, score.low, score.high))] for name, score in scores.items()]
    print(table(["", "value", "95 % from", "to"], rows))


def amount(number: float, unit: str = "") -> str:
    """1234567 -> '1.23 M': three digits and a thousand's letter."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {letter}{unit}"
    return f"{number:.3g} {unit}".rstrip()


def one_line(text: str) -> str:
    """A text with its line breaks and runs of spaces as single spaces."""
    return " ".join(text.split())

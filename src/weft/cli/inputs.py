"""What verbs take from the command line: checks that need no torch, models, texts, lines of standard input, batches."""

from __future__ import annotations

import json
import queue
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from weft.budget import by_budget
from weft.cli.show import leaving_at_once
from weft.errors import UserError, one_of

if TYPE_CHECKING:
    from weft.data.tables import Table
    from weft.tasks.model import Model


def check_no_data_file(folder: str, texts: Sequence[str] | None) -> None:
    """A file of data where texts are expected was meant as --data."""
    from weft.text.sources import SUFFIXES, format_suffix

    for text in texts or ():
        try:
            data = len(text) < 4096 and format_suffix(Path(text)) in SUFFIXES and Path(text).is_file()
        except (OSError, ValueError):
            continue
        if data:
            raise UserError(f"{text}: is a file of data, not a text; for its rows: weft predict {folder} --data {text}")


def check_data(*names: Sequence[str] | None) -> None:
    """Refuse files that are not there, before a model is loaded."""
    from weft.data.shards import TextFiles

    for files in names:
        TextFiles(tuple(files or ())).paths()


def check_device(device: str | None) -> None:
    """Refuse what is no name of a device; whether it is there, torch knows."""
    if device is not None and not re.fullmatch(r"cpu|(cuda|mps)(:[0-9]+)?", device):
        raise UserError(f"device {device!r} is not cpu, cuda, cuda:NUMBER or mps")


def find_model(name: str, online: bool = False) -> Path:
    """The folder of a model, before torch is loaded."""
    from weft.checkpoint.locate import find_folder

    folder = find_folder(name, online)
    if not (folder / "config.json").is_file():
        raise UserError(f"{name!r} is not a model folder: it has no config.json")
    return folder


def check_models(names: Iterable[str], online: bool = False) -> None:
    for name in names:
        find_model(name, online)


def check_choices(*given: tuple[str, str | None, Iterable[str]]) -> None:
    """Each flag that was given has one of its values."""
    for flag, value, choices in given:
        if value is not None:
            one_of(value, choices, flag)


def check_reading(format: str | None, column: Mapping[str, str], *names: Sequence[str] | None) -> None:
    """Refuse a format that nobody reads, columns that no task has, and files that are not there."""
    from weft.data.tables import Table
    from weft.text.records import FORMATS

    check_choices(("--format", format, FORMATS))
    for files in names:
        Table(tuple(files or ()), column, format).paths()


def check_rows(given: Mapping[str, Any], *names: Sequence[str] | None) -> None:
    """As `check_reading`, for the options of a table."""
    check_reading(given.get("format"), given.get("columns", {}), *names)


def table_of(data: Sequence[str], given: Mapping[str, Any], **more: Any) -> Table:
    """A table with the options that were given."""
    from weft.data.tables import Table

    return Table(tuple(data), **{**given, "names": tuple(given.get("names", ()))}, **more)


def check_run(out: str | None, model: Mapping[str, Any], online: bool = False, several: bool = False) -> None:
    """Refuse a run without a place for it, and a model that is not there; `several` runs go into a folder together."""
    from weft.checkpoint.locate import check_name
    from weft.files import check_new_run

    if out is None:
        raise UserError("no folder for the run: give --out FOLDER")
    if not several:
        check_new_run(Path(out))
    family, base = model.get("family"), model.get("base")
    if isinstance(family, str):
        check_name(family, model.get("size"))
    if isinstance(base, str) and not Path(base).is_file():  # word vectors may come in a file
        find_model(base, online)


def check_written(folder: str, out: Path | None, online: bool = False) -> None:
    """A model folder that is there, and a place for the one that is made of it."""
    from weft.files import check_new_folder

    if out is None:
        raise UserError("no folder for the model: give --out FOLDER")
    find_model(folder, online)
    check_new_folder(out)


def load_model(
    folder: str, task: str | None = None, device: str | None = None, online: bool = False, trust: bool = False
) -> Model:
    """The model for a verb, on the device asked for or on the best there is."""
    find_model(folder, online)
    check_device(device)
    with leaving_at_once():
        from weft.tasks.model import load

    model = load(folder, task=task, online=online, trust=trust)
    return model.to(device or ("cpu" if model.opened.exported else best_device()))


def best_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def from_input(texts: list[str] | None) -> Iterator[str]:
    """The texts given, or one per line of standard input, blank ones too: answers come line for line."""
    if texts and texts != ["-"]:
        yield from texts
        return
    from weft.text.records import read_input

    if sys.stdin is None or sys.stdin.isatty():
        raise UserError("no text: give texts after the model, or one per line on standard input")
    for document in read_input():
        yield document.text


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
        return (Path(name) / "config.json").is_file()
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


def print_json(answer: Any, **more: Any) -> None:
    """One answer as a line of JSON, after what it is the answer to."""
    print(json.dumps({**more, **asdict(answer)}, ensure_ascii=False))


T = TypeVar("T")


CHARACTERS = 1 << 24  # that are held in a batch, and read ahead


def chunked(source: Iterable[T], most: int) -> Iterator[list[T]]:
    """Batches of so many, fewer where they are long, the last one of what is left."""
    return by_budget(source, lambda item: max(size_of(item), CHARACTERS // most), CHARACTERS)


def size_of(item: Any) -> int:
    """Characters of a text, of several, or of a row that a model reads."""
    given = getattr(item, "input", item)
    return len(given) if isinstance(given, str) else sum(map(size_of, given)) if isinstance(given, list | tuple) else 1


class _End:
    """The end of a source: with the error that ended it, if any."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


def as_they_come(source: Iterable[T], most: int) -> Iterator[list[T]]:
    """Batches of what is there, at most so many: waits for one item, never for a second one.

    A thread reads ahead, so that the lines of a large pipe are there in full batches.
    """
    read: queue.Queue[T | _End] = queue.Queue(4 * most)
    room, free = CHARACTERS, threading.Condition()

    def take(size: int) -> None:
        """Wait until so many characters may be read ahead, at least one item at any time."""
        nonlocal room
        with free:
            free.wait_for(lambda: room >= size or room == CHARACTERS)
            room -= size

    def give(item: T) -> T:
        nonlocal room
        with free:
            room += size_of(item)
            free.notify()
        return item

    def pump() -> None:
        try:
            for item in source:
                take(size_of(item))
                read.put(item)
            read.put(_End())
        except BaseException as error:  # raised where the items are used
            read.put(_End(error))

    threading.Thread(target=pump, daemon=True).start()
    while True:
        batch, held = list[T](), 0
        item = read.get()
        while not isinstance(item, _End):
            batch.append(give(item))
            held += size_of(item)
            if len(batch) == most or held >= CHARACTERS or read.empty():
                break
            item = read.get()
        if batch:
            yield batch
        if isinstance(item, _End):
            if item.error is not None:
                raise item.error
            return

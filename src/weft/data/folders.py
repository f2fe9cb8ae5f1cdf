"""Folders that are a table: one text per file in folders named after classes, and what datasets.save_to_disk writes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from weft.data.parts import ReadOptions
from weft.errors import UserError, listed, shown
from weft.files import MEGABYTE, reason
from weft.text.paths import digest_of
from weft.text.row_problems import Skipped
from weft.text.rows import SUFFIXES, Record
from weft.text.sources import LIMIT, format_suffix, open_sources, read_lines

TEXTS = ("", ".txt", ".text")
UNLABELED = ("unsup", "unlabeled", "unlabelled", "unsupervised")  # names of folders of unlabeled texts
SPLITS = {
    "train": ("train", "training"),
    "test": ("test", "testing", "validation", "valid", "val", "dev", "eval"),
}
Note = Callable[[str], None]


@dataclass(frozen=True)
class ClassFolder:
    """A folder whose folders are named after classes, each with files of one text."""

    path: Path

    def paths(self) -> list[Path]:
        return [self.path]

    def files(self) -> Iterator[tuple[str, Path]]:
        """Label and file, in the order of their names."""
        for folder in sorted(_folders(self.path)):
            if folder.name.casefold() not in UNLABELED:
                for path in sorted(_texts(folder)):
                    yield folder.name, path

    def records(self, options: ReadOptions, skipped: Skipped) -> Iterator[Record]:
        return options.good(self.rows(options.encoding, skipped.note), self.path.name, skipped)

    def rows(self, encoding: str | None, note: Note) -> Iterator[Record | UserError]:
        """Each file as a row."""
        lost = [folder.name for folder in _folders(self.path) if folder.name.casefold() in UNLABELED]
        if lost:
            note(f"{self.path.name}: texts in {listed(lost)} have no label and are left out")
        for label, path in self.files():
            yield self._row(label, path, encoding, note)

    def _row(self, label: str, path: Path, encoding: str | None, note: Note) -> Record | UserError:
        def once(text: str) -> None:  # not for each of a thousand files
            note(f"{self.path.name}: some files are {text.partition(': ')[2]}")

        lines, size = list[str](), 0
        for source in open_sources(path):
            for _, text, fault in read_lines(replace(source, encoding=encoding, note=once)):
                if fault:
                    return fault
                lines.append(text)
                size += len(text)
                if size > LIMIT:
                    return UserError(f"{source.name}: longer than {LIMIT // MEGABYTE} MiB")
        values = {"text": "\n".join(lines).strip(), "label": label, "file": path.name}
        return Record(values, f"{self.path} text {label}/{path.name}")

    def digests(self) -> Iterator[bytes]:
        for label, path in self.files():
            yield label.encode() + b"\0" + digest_of(path)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        return [entry for entry in os.scandir(folder) if not entry.name.startswith((".", "__MACOSX"))]
    except OSError as error:
        raise UserError(f"{shown(str(folder), 300)}: cannot be read: {reason(error)}") from None


def _folders(folder: Path) -> list[Path]:
    return [Path(entry.path) for entry in _entries(folder) if entry.is_dir()]


def _texts(folder: Path) -> list[Path]:
    """The files of one text in a folder of a class."""
    return [Path(entry.path) for entry in _entries(folder) if entry.is_file() and _is_text(entry.name)]


def _is_text(name: str) -> bool:
    suffix = format_suffix(Path(name))
    return suffix in TEXTS or suffix[1:].isdigit()


def is_class_folder(folder: Path) -> bool:
    """Whether a folder has at least two folders with texts and nothing else in them, and no tables beside them."""
    for entry in _entries(folder):
        if entry.is_file() and SUFFIXES.get(format_suffix(Path(entry.name)), "txt") != "txt":
            return False
    folders = _folders(folder)
    if any(_split(path.name) for path in folders):
        return False
    full = [path for path in folders if _holds_texts(path)]
    return len(full) >= 2 and len(full) == len(folders)


def _holds_texts(folder: Path) -> bool:
    entries = _entries(folder)
    return any(e.is_file() for e in entries) and all(e.is_file() and _is_text(e.name) for e in entries)


def _split(name: str) -> str | None:
    """The split that the name of a folder stands for."""
    return next((split for split, names in SPLITS.items() if name.casefold() in names), None)


def chosen_split(folder: Path, split: str, note: Note) -> Path:
    """The folder itself, or where it holds splits the one that is asked for."""
    inside = {path.name: path for path in _folders(folder) if (path / "state.json").is_file()}
    if not ((folder / "dataset_dict.json").is_file() and inside):
        inside = {path.name: path for path in _folders(folder) if _split(path.name) and is_class_folder(path)}
    if not inside:
        return folder
    wanted = [name for name in SPLITS[split] if name in inside]
    if len(inside) == 1:
        wanted = list(inside)
    if not wanted:
        paths = listed(str(inside[name]) for name in sorted(inside))
        raise UserError(f"{folder}: holds the splits {listed(sorted(inside))}; name one of them: {paths}")
    if len(inside) > 1:
        others = listed(str(inside[name]) for name in sorted(inside) if name != wanted[0])
        note(f"{folder}: its split {wanted[0]} is read; the others are {others}")
    return inside[wanted[0]]


def saved_dataset(folder: Path) -> list[Path] | None:
    """The Arrow files of a dataset as datasets.save_to_disk writes it; None for any other folder."""
    state = folder / "state.json"
    if not state.is_file():
        return None
    try:
        if state.stat().st_size > 16 * MEGABYTE:
            return None
        about: Any = json.loads(state.read_bytes())
        names = [entry["filename"] for entry in about["_data_files"]]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    for name in names:
        if not isinstance(name, str) or name != Path(name).name:
            raise UserError(f"{state}: {shown(str(name))!r} is not the name of a file beside it")
    return [folder / name for name in names]

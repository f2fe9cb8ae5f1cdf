"""The files of CTranslate2's engine, checked before the engine opens them.

The engine trusts its files: a table that is too small for a vocabulary, or a head of no width, would end the whole
program, and a norm without its bias, or another epsilon, would change every answer without a word. So a folder must
hold exactly what we would have written for its config.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.backends.arrays import all_finite
from weft.backends.ct2_table import REVISIONS, Expected, Variable, expected_of, settings_of
from weft.errors import UserError, listed, shown
from weft.files import MEGABYTE, read_json, reason
from weft.text.tokenizers.tokenizer import Tokenizer

ENGINE = "ctranslate2"  # the folder inside
VERSION = 6  # of the engine's file format
KINDS = ("float32", "int8", "int16", "int32", "float16")  # in the order of the engine's numbers
MAX_NAME = 256  # characters of a variable's name
MAX_VOCABULARY = 512 * MEGABYTE  # bytes of a list of tokens


@dataclass(frozen=True)
class EngineFiles:
    """What the engine's folder must hold: one of its kinds of model, and each list of tokens under its name."""

    spec: str
    config: Any
    precision: str | None
    vocabularies: Mapping[str, Sequence[str]]
    tokenizer: Tokenizer | None  # of what is written


def check_files(folder: Path, files: EngineFiles) -> None:
    """Refuse an engine folder that does not hold, to the last variable and setting, what its model folder says."""
    if not folder.is_dir():
        raise UserError(f"{folder}: the engine's files are missing; export the model again")
    names = {"config.json", "model.bin", *(f"{name}.json" for name in files.vocabularies)}
    strange = sorted(path.name for path in folder.iterdir() if path.name not in names and path.name[0] != ".")
    if strange:  # the engine reads some files by their names alone, such as lists of words that it may say
        raise UserError(f"{folder}: files that no exported model has: {listed([shown(name) for name in strange])}")
    for name, words in files.vocabularies.items():
        path = folder / f"{name}.json"
        stored = read_json(path, MAX_VOCABULARY, kind=list)
        if len(stored) != len(words):
            raise UserError(f"{path}: {len(stored)} tokens where {len(words)} different ones are expected")
        if stored != list(words):
            place = next(number for number, pair in enumerate(zip(stored, words, strict=True)) if pair[0] != pair[1])
            raise UserError(
                f"{path}: token {place} is {shown(str(stored[place]))!r}, in the tokenizer {shown(words[place])!r}"
            )
    written = list(files.vocabularies.values())[-1]
    check_settings(folder / "config.json", settings_of(files.config, files.spec, files.tokenizer, written))
    path = folder / "model.bin"
    try:
        if not path.is_file():
            raise UserError(f"{path}: the engine's weights are missing; export the model again")
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            variables, aliases = _ByteReader(data, files.spec).read()
            check_variables(path, variables, aliases, expected_of(files.config, files.spec, files.precision))
            _check_numbers(path, variables, data)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {reason(error)}") from None
    except (struct.error, ValueError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not a sound model of CTranslate2: {shown(str(error), 120)}") from None


def check_settings(path: Path, expected: Mapping[str, Any]) -> None:
    """Refuse an engine's config.json that says anything else than the model folder does."""
    settings = read_json(path, MEGABYTE)
    strange = [shown(key) for key in settings if key not in expected]
    if strange:
        raise UserError(f"{path}: unknown keys: {listed(strange)}")
    for name, value in expected.items():
        if name not in settings:
            raise UserError(f"{path}: {name} is missing; it must be {shown(repr(value))}")
        if settings[name] != value or isinstance(settings[name], bool) != isinstance(value, bool):
            raise UserError(
                f"{path}: {name} is {shown(repr(settings[name]))}, and of this model it must be {shown(repr(value))}"
            )


def check_variables(path: Path, stored: Mapping[str, Stored], aliases: Mapping[str, str], expected: Expected) -> None:
    """Refuse a file that lacks a variable, has one too many, or one of another shape, type or value."""
    for name, target in aliases.items():
        if target not in stored:
            raise UserError(f"{path}: {shown(name)} stands for {shown(target)}, which is not there")
    scales = {f"{name}_scale": f"{target}_scale" for name, target in aliases.items() if f"{target}_scale" in stored}
    twice = [shown(name) for name in scales if name in stored or name in aliases]
    if twice:
        raise UserError(f"{path}: stored, and yet those of another: {listed(twice)}")
    aliases = {**aliases, **scales}  # the scale of a matrix goes where the matrix goes
    every = {**stored, **{name: stored[target] for name, target in aliases.items()}}
    faults = [
        f"{shown(name, 80)} {_described(variable)}"
        for name, variable in every.items()
        if variable.described != expected.variables.get(name)
    ]
    if faults:
        raise UserError(f"{path}: not what a model of this config.json has: {listed(faults)}")
    missing = [name for name in expected.variables if name not in every]
    if missing:
        raise UserError(f"{path}: missing: {listed(missing)}")
    for names in expected.shared:
        if len({aliases.get(name, name) for name in names}) > 1:
            raise UserError(f"{path}: {listed(names)} are one table by this config.json, and several in the file")


def _described(variable: Stored) -> str:
    what = variable.described
    return f"({what.kind} {what.shape})" if what.value is None else f"({what.kind} {what.value:g})"


def _check_numbers(path: Path, stored: Mapping[str, Stored], data: mmap.mmap) -> None:
    """Refuse weights that are not finite, and scales by which nothing can be divided."""
    broken = []
    for name, variable in stored.items():
        array = variable.array(data)
        if not all_finite(array) or (name.endswith("_scale") and array.min(initial=1.0) <= 0):
            broken.append(name)
        del array  # a view would keep the file open
    if broken:
        raise UserError(f"{path}: weights that are not numbers (NaN or infinite), or scales of 0: {listed(broken)}")


# ------------------------------------------------------------------------------------------------------- the binary


@dataclass(frozen=True)
class Stored:
    """A variable, and where its numbers are in the file."""

    described: Variable
    offset: int

    def array(self, data: mmap.mmap) -> NDArray[Any]:
        """Its numbers, as they are in the file."""
        count = int(np.prod(self.described.shape, dtype=np.int64))
        return np.frombuffer(data, np.dtype(self.described.kind), count, self.offset)


class _ByteReader:
    """Goes through a model file; nothing is loaded but names, shapes and single numbers."""

    def __init__(self, data: mmap.mmap, spec: str) -> None:
        self.data, self.spec, self.place = data, spec, 0

    def read(self) -> tuple[dict[str, Stored], dict[str, str]]:
        """The variables, and the names that stand for others."""
        if self._number("I") != VERSION:
            raise ValueError("of another version")
        spec = self._name()
        if spec != self.spec:
            raise ValueError(f"it holds a {spec}, not a {self.spec}")
        if self._number("I") != REVISIONS[spec]:  # the engine reads the same variables otherwise
            raise ValueError("of another revision")
        variables: dict[str, Stored] = {}
        for _ in range(self._number("I")):
            name = self._name()
            if name in variables:
                raise ValueError(f"{name}: stands there twice")
            variables[name] = self._variable(name)
        aliases: dict[str, str] = {}
        for _ in range(self._number("I")):
            name = self._name()
            if name in variables or name in aliases:
                raise ValueError(f"{name}: stands there twice")
            aliases[name] = self._name()
        if self.place != len(self.data):
            raise ValueError("more in it than it says")
        return variables, aliases

    def _variable(self, name: str) -> Stored:
        rank = self._number("B")
        if rank > 2:
            raise ValueError(f"{name}: has more than two dimensions")
        shape = tuple(self._number("I") for _ in range(rank))
        kind, size = self._number("B"), self._number("I")
        if kind >= len(KINDS):
            raise ValueError(f"{name}: numbers of an unknown type")
        count = 1
        for length in shape:
            count *= length
        offset = self.place
        if size != count * np.dtype(KINDS[kind]).itemsize or offset + size > len(self.data):
            raise ValueError(f"{name}: its size is not what its shape says")
        self.place += size
        value = None if shape else float(np.frombuffer(self.data, KINDS[kind], 1, offset)[0])
        return Stored(Variable(shape, KINDS[kind], value), offset)

    def _number(self, code: str) -> int:
        value = struct.unpack_from(f"<{code}", self.data, self.place)[0]
        self.place += struct.calcsize(f"<{code}")
        return int(value)

    def _name(self) -> str:
        length = self._number("H")
        data = self.data[self.place : self.place + length]
        if not 1 < length <= MAX_NAME or len(data) < length or data[-1]:
            raise ValueError("a name that is none")
        self.place += length
        return data[:-1].decode("ascii")

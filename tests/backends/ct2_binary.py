"""CTranslate2's `model.bin` read and written by itself, so that a test can change one thing in it."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

KINDS = ("float32", "int8", "int16", "int32", "float16")


@dataclass
class Binary:
    """The variables of a file and the names that stand for others."""

    spec: str
    revision: int
    variables: dict[str, NDArray[Any]] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def read(path: Path) -> Binary:
        data, place = path.read_bytes(), 0

        def number(code: str) -> int:
            nonlocal place
            place += struct.calcsize(f"<{code}")
            return int(struct.unpack_from(f"<{code}", data, place - struct.calcsize(f"<{code}"))[0])

        def name() -> str:
            nonlocal place
            length = number("H")
            place += length
            return data[place - length : place - 1].decode()

        number("I")
        binary = Binary(name(), number("I"))
        for _ in range(number("I")):
            key, rank = name(), number("B")
            shape = tuple(number("I") for _ in range(rank))
            kind, size = KINDS[number("B")], number("I")
            binary.variables[key] = np.frombuffer(data, kind, offset=place, count=size // np.dtype(kind).itemsize)
            binary.variables[key] = binary.variables[key].reshape(shape).copy()
            place += size
        binary.aliases = {name(): name() for _ in range(number("I"))}
        return binary

    def write(self, path: Path) -> None:
        def name(word: str) -> bytes:
            return struct.pack("<H", len(word) + 1) + word.encode() + b"\0"

        parts = [struct.pack("<I", 6), name(self.spec), struct.pack("<II", self.revision, len(self.variables))]
        for key, array in self.variables.items():
            parts += [name(key), struct.pack("<B", array.ndim), struct.pack(f"<{array.ndim}I", *array.shape)]
            parts += [struct.pack("<BI", KINDS.index(array.dtype.name), array.nbytes), array.tobytes()]
        parts.append(struct.pack("<I", len(self.aliases)))
        parts += [name(word) for pair in self.aliases.items() for word in pair]
        path.write_bytes(b"".join(parts))

    def copy(self) -> Binary:
        return Binary(self.spec, self.revision, dict(self.variables), dict(self.aliases))

"""What happens to files on a disk."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path


def flip(path: Path, seed: int) -> None:
    """Flip one bit of a file."""
    data = bytearray(path.read_bytes())
    place = random.Random(f"{seed} {path.name}").randrange(8 * len(data))
    data[place // 8] ^= 1 << place % 8
    path.write_bytes(data)


def flipped(data: bytes) -> Iterator[bytes]:
    """The data with every fifth of its bits flipped, one at a time."""
    for place in range(0, 8 * len(data), 5):
        changed = bytearray(data)
        changed[place // 8] ^= 1 << place % 8
        yield bytes(changed)

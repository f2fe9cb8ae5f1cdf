"""The package ctranslate2: opened, and its errors in one line each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from weft.errors import UserError, shown
from weft.models.base import Network


def library() -> Any:
    """The package, where it is installed."""
    try:
        return import_module("ctranslate2")
    except ImportError:
        raise UserError("a model for CTranslate2 needs the package ctranslate2: pip install 'weft[fast-cpu]'") from None


def engine_of(kind: str, folder: Path, precision: str | None) -> Any:
    """CTranslate2's Encoder, Generator or Translator of a folder, on as many threads as torch has."""
    package = library()
    # Said rather than guessed: a CPU works on half precision in full, and the engine would warn of it.
    works = "int8_float32" if precision == "int8" else "float32"
    with engine_errors(folder, "cannot open it"):
        return vars(package)[kind](str(folder), compute_type=works, intra_threads=torch.get_num_threads())


@contextmanager
def engine_errors(folder: Path, what: str = "failed") -> Iterator[None]:
    """Turn what the engine raises into one line that names its folder."""
    try:
        yield
    except (RuntimeError, ValueError, IndexError, OverflowError, MemoryError) as error:  # its C++ exceptions, by name
        raise UserError(f"{folder}: CTranslate2 {what}: {shown(str(error), 160)}") from None


def cannot(what: str) -> UserError:
    return UserError(f"CTranslate2 cannot {what}; load the folder that this one was exported from")


class Engine(Network):
    """What every stand-in has: a config, and a place on the CPU."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.register_buffer("place", torch.empty(0), persistent=False)  # whoever asks where a network is finds it

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Moves nothing: the engine runs on the CPU in the precision that it was written in."""
        return self

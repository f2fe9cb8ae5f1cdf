"""Every finding that was once a fault, as a case: a function of the samples and a folder to work in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.hostile.samples import call


def length_penalty(bed: Path, path: Path) -> Any:
    return call("generate", bed / "task-complete", "cat", "--tokens", "3", "--beam", "2", "--length-penalty", "1e23")


def minimum_count(bed: Path, path: Path) -> Any:
    return call("tokenizer", "learn", "--text", bed / "run.txt", "--out", "out", "--minimum-count", "1" + "0" * 23)


FINDINGS: dict[str, Callable[[Path, Path], Any]] = {
    "--length-penalty 1e23": length_penalty,
    "--minimum-count 1e23": minimum_count,
}

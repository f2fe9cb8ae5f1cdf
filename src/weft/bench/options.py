"""The options of `weft bench`; each field is one of the command line. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from weft.config import comma_list, option
from weft.errors import UserError, refuse

LARGEST = 1 << 16  # tokens, or texts at a time
LISTS = ("lengths", "batch", "backends", "against")
USUAL = {"encode": "1,32", "generate": "1,8", "train": "8"}  # texts at a time


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """What is measured, with what it is compared, and where the figures are written."""

    panel: ClassVar = None
    mode: Literal["encode", "generate", "train"] | None = option(
        None, "--mode", help="What is measured. Default: generate for a model that generates text, else encode."
    )
    lengths: list[str] | None = option(
        None, "--lengths", parse=comma_list, metavar="A,B,...",
        help="Tokens per text, or mixed (256 texts). Default: 16,128,mixed; train: 128.",
    )  # fmt: skip
    batch: list[str] | None = option(
        None, "--batch", parse=comma_list, metavar="A,B,...",
        help="Texts per call. Default: 1,32; generate: 1,8; train: 8.",
    )  # fmt: skip
    backends: list[str] | None = option(
        None, "--backends", parse=comma_list, metavar="A,B,...",
        help="Backends to try. Default: all that can run the model.",
    )  # fmt: skip
    against: list[str] | None = option(
        None, "--against", parse=comma_list, metavar="A,B,...",
        help="Other libraries to compare: transformers, sentence-transformers, onnxruntime, ctranslate2.",
    )  # fmt: skip
    max_tokens: int | None = option(
        None,
        "--max-tokens",
        help="--mode generate: tokens generated per prompt. Default: 64, or fewer if the context is short.",
    )
    seconds: float = option(10.0, "--seconds", help="Time limit per backend and length.", metavar="SECONDS")
    memory: bool = option(True, "--memory/--no-memory", help="Measure peak memory, each backend in a separate process.")
    keep: bool = option(
        True, "--keep/--no-keep", help="Store the choice in the cache; weft predict, generate and others then use it."
    )
    plot: Path | None = option(
        None, "--plot", parse=Path, metavar="FILE", help="Plot the figures to this .svg or .png file."
    )
    out: Path | None = option(
        None, "--json", parse=Path, metavar="FILE", help="Also write all figures to this .json file."
    )

    def check(self, data: bool) -> None:
        """Refuse options that do not go together; `data`: whether --data is given."""
        train, seconds, tokens = self.mode == "train", self.seconds, self.max_tokens
        both = "give --data or --lengths, not both: your texts have lengths of their own"
        refuse(
            (not 0 < seconds <= 3600, f"--seconds must be above 0 and at most 3600, not {seconds:g}"),
            (
                tokens is not None and not 1 <= tokens <= LARGEST,
                f"--max-tokens must be between 1 and {LARGEST}, not {tokens}",
            ),
            (data and self.lengths is not None, both),
            *((vars(self)[name] == [], f"--{name}: nothing is listed") for name in LISTS),
            (train and (data or bool(self.backends)), "--mode train takes no data and no backends"),
            (self.mode == "generate" and data, "--mode generate takes no data"),
            (self.out is not None and self.out.suffix != ".json", f"{self.out}: figures are written as .json"),
        )
        self.batches(self.mode or "encode")

    def batches(self, mode: str) -> list[int]:
        """Texts per call, one number for each measurement."""
        sizes = comma_list(USUAL[mode]) if self.batch is None else self.batch
        return [number(size, "--batch") for size in sizes]


def number(text: str, flag_name: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= LARGEST:
        raise UserError(f"{flag_name}: {text!r} is not a number between 1 and {LARGEST}")
    return int(text)

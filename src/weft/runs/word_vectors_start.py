"""A fresh model that begins from word vectors: its words are those of the data, its table is filled with vectors.

n: words; d: numbers of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from weft.checkpoint.families import FAMILIES, Family
from weft.checkpoint.folder import open_folder
from weft.checkpoint.vectors import is_vectors, open_vectors
from weft.errors import UserError, listed, shown
from weft.progress import Log
from weft.text.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True)
class Start:
    """Word vectors to begin from, and how text is cut into their words."""

    path: Path
    matrix: Tensor  # n d
    tokenizer: Tokenizer

    @property
    def width(self) -> int:
        return self.matrix.shape[1]


def fits_vectors(family: Family) -> bool:
    """Whether the table of a family may be as wide as any vectors, and its tokens may be words."""
    free = not family.config.has("heads") and family.config.has("width")
    return free and family.specials is None and not family.reads and not family.counts


def check_vectors(family: Family, name: str, kind: str) -> None:
    """All that can be wrong with the choice of vectors before they are read."""
    if not fits_vectors(family):
        able = listed([each.name for each in FAMILIES.values() if fits_vectors(each)])
        raise UserError(f"--vectors: the table of {family.name} is not filled with word vectors; that of {able} is")
    if kind != "word":
        raise UserError(f"--vectors: word vectors need a word vocabulary, not tokenizer.kind {kind}")


def width_of_table(family: Family) -> str:
    """What a family's config calls the width of its table of tokens."""
    return "embedding_width" if "embedding_width" in family.config.__dataclass_fields__ else "width"


def find_vectors(name: str) -> Path:
    """A folder or a file of word vectors, as its first lines or its config tell."""
    path = Path(name).expanduser()
    if not path.is_dir() and not is_vectors(path):
        what = "is not a file of word vectors" if path.exists() else "there is no such folder or file of word vectors"
        raise UserError(f"{path}: {what}")
    return path


def begun_from(model: Mapping[str, Any], family: Family, on_bad_row: str = "stop") -> tuple[dict[str, Any], Start]:
    """The choices of a model with the width that its vectors have, and these."""
    path = find_vectors(model["vectors"])
    opened = open_folder(path) if path.is_dir() else open_vectors(path, {}, on_bad_row=on_bad_row)
    if opened.family.name != "vectors":
        raise UserError(f"{path}: is a model folder of {opened.family.name}, not of word vectors")
    if opened.tokenizer is None or opened.tokenizer.kind not in ("word", "whitespace"):
        raise UserError(f"{path}: has no vocabulary of words")
    start = Start(path, opened.network.get_parameter("tokens.weight").detach().float(), opened.tokenizer)
    field = width_of_table(family)
    if model.get(field) not in (None, start.width):
        raise UserError(
            f"{path}: its vectors have {start.width} numbers, but model.{field} is set to {model[field]}; leave it out"
        )
    return {**model, field: start.width}, start


@torch.no_grad()
def fill_table(network: nn.Module, tokenizer: Tokenizer, start: Start, seed: int, log: Log) -> None:
    """Put the vectors of the words that have one into the table of tokens; the others are drawn to vary as much.

    What stands for unknown words gets the vector that stands for them there, else the mean of all.
    """
    specials = {name: role for role, name in vars(tokenizer.roles).items() if name is not None}
    places = start.tokenizer.tokens
    words = sorted(tokenizer.tokens.items(), key=lambda item: item[1])
    pairs = [(number, places[word]) for word, number in words if word in places and word not in specials]
    missing = [shown(word, 30) for word, _ in words if word not in places and word not in specials]
    if not pairs:
        raise UserError(f"{start.path}: has none of the {len(missing):,} words of the data: {listed(missing, 5)}")
    ours, theirs = (torch.tensor(numbers) for numbers in zip(*pairs, strict=True))
    vectors = start.matrix[theirs]
    table = network.get_parameter("tokens.weight")
    chance = torch.Generator().manual_seed(seed)
    spread = float(vectors.double().std(correction=0))
    filled = torch.randn(table.shape, generator=chance) * spread
    filled[ours] = vectors
    unknown, there = tokenizer.id_of("unknown"), start.tokenizer.id_of("unknown")
    if unknown is not None and there is not None:  # a file without one has been given the mean
        filled[unknown] = start.matrix[there]
    table.copy_(filled)
    for name, buffer in network.named_buffers():
        if name == "fixed":  # a second table, which stays as it begins
            buffer.copy_(filled)
    absent = f"; missing {len(missing):,}: {listed(missing, 5)}" if missing else ""
    log(f"vectors: {len(pairs):,} of {len(pairs) + len(missing):,} words found{absent}")

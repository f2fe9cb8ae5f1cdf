"""Word vectors in a file, as GloVe and word2vec publish them, opened as if they were a model folder."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from weft.checkpoint.card import Card
from weft.checkpoint.families import FAMILIES, check_heads, outline
from weft.checkpoint.folder import LoadedModel, fill
from weft.config import changed
from weft.errors import UserError
from weft.models.vectors import VectorsConfig
from weft.text.rows import Skipped
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.tokenizers.training import UNKNOWN, word_tokenizer
from weft.text.vector_files import is_file_of_vectors, read_file


def is_vectors(path: Path) -> bool:
    """Whether a path is a file of word vectors, as its beginning tells; a model folder is none."""
    return is_file_of_vectors(path)


def open_vectors(
    path: Path,
    heads: Mapping[str, int],
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
    on_bad_row: str = "stop",
) -> LoadedModel:
    """A model whose table of words is read from a file, with fresh heads; `settings` are those of `VectorsConfig`.

    A word that the file does not have gets the file's own `<unk>`, else the mean of all vectors.
    """
    family = FAMILIES["vectors"]
    check_heads(family, heads)
    skipped = Skipped()
    vectors = read_file(path, on_bad_row, skipped)
    if skipped.count:
        warnings.warn(f"{path}: {skipped}", stacklevel=2)
    if vectors.repeated:
        warnings.warn(
            f"{path}: {vectors.repeated:,} lines repeat an earlier word; the first of each stays", stacklevel=2
        )
    words, table = vectors.words, torch.from_numpy(vectors.matrix)
    if UNKNOWN not in words:
        words, table = [*words, UNKNOWN], torch.cat([table, table.double().mean(0, keepdim=True).float()])
    config = changed(VectorsConfig(vocabulary=len(words), width=table.shape[1]), settings or {}, "--set model")
    if (config.vocabulary, config.width) != table.shape:
        raise UserError(f"{path}: has {len(words)} words {table.shape[1]} wide; neither can be set to another number")
    return opened_table(config, table, heads, word_tokenizer(words), Card(base=path.name), seed)


def opened_table(
    config: VectorsConfig, table: Tensor, heads: Mapping[str, int], tokenizer: Tokenizer, card: Card, seed: int = 0
) -> LoadedModel:
    """A model of this table of words, with fresh heads."""
    family = FAMILIES["vectors"]
    network = outline(family, config, heads)
    fresh = {name for name in network.state_dict() if name.startswith("heads.")}
    fill(network, {"tokens.weight": table}, fresh, config.weight_scale, seed)
    return LoadedModel(family, config, network.eval(), dict(heads), tokenizer, card)

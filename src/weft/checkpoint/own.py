"""Models that the published format cannot say, in our own words: their `config.json`, and tensors by our names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from weft.checkpoint.families import Family, check_config, check_heads
from weft.checkpoint.names import unfit
from weft.config import build
from weft.errors import UserError, listed, shown

OWN = "weft-"  # before the model_type of such a model


@dataclass(frozen=True, kw_only=True)
class Own:
    """`config.json` of a model that the published format cannot say: our own words, and nothing else."""

    model_type: str
    architectures: tuple[str, ...]
    heads: dict[str, int]
    sizes: dict[str, Any]
    id2label: dict[str, str] | None = None
    label2id: dict[str, int] | None = None


def own_config(family: Family, published: Mapping[str, Any], where: str) -> tuple[Any, dict[str, int]]:
    file = build(Own, published, where)
    check_heads(family, file.heads)
    for head, outputs in file.heads.items():
        if not 1 <= outputs <= 1 << 26:
            raise UserError(f"{where} [heads]: {head} must be between 1 and {1 << 26}, not {outputs}")
    config = build(family.config, {**family.standard, **file.sizes}, where, "sizes")
    check_config(family, config)
    if file.heads.get("words", config.vocabulary) != config.vocabulary:
        raise UserError(f"{where} [heads]: words must be the vocabulary, {config.vocabulary}")
    return config, dict(file.heads)


def own_tensors(stored: Mapping[str, Tensor], expected: Mapping[str, torch.Size], fresh: set[str]) -> dict[str, Tensor]:
    missing = [name for name in expected if name not in stored and name not in fresh]
    extra = [shown(name, 100) for name in stored if name not in expected]
    faults = [f"missing: {listed(missing)}"] if missing else []
    faults += [f"extra: {listed(extra)}"] if extra else []
    faults += [
        f"{name}: checkpoint {tuple(stored[name].shape)}, model {tuple(shape)}"
        for name, shape in expected.items()
        if name in stored and stored[name].shape != shape
    ]
    if faults:
        raise unfit(faults)
    return {name: tensor.clone() for name, tensor in stored.items()}

"""The weights of a live page: matrices as int8 with a scale for each row or as float16, all else as float32."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.errors import UserError, one_of
from weft.picture.page import packed
from weft.tasks.model import Model

Precision = Literal["int8", "fp16"]
PRECISIONS: tuple[Precision, ...] = ("int8", "fp16")
MAX_BYTES = 30_000_000  # of weights in one page
SMALL = 4_000_000  # bytes of weights up to which a page has float16 unless int8 is asked for
MAX_FLOAT16 = 65504.0
HELP = "weft distill makes a smaller model, weft prune --vocabulary drops rare tokens"


def precision_of(model: Model, weights: str | None) -> Precision:
    """The precision asked for; else float16 where the page stays small, and int8 otherwise."""
    if weights is not None:
        one_of(weights, PRECISIONS, "precision of weights")
        return "int8" if weights == "int8" else "fp16"
    return "fp16" if size_of(model, "fp16") <= SMALL else "int8"


def size_of(model: Model, weights: Precision) -> int:
    """Bytes of the weights in a page, before they are written as text."""
    return sum(
        parameter.numel() * ({"int8": 1, "fp16": 2}[weights] if parameter.dim() == 2 else 4)
        for parameter in model.network.parameters()
    )


def check_size(model: Model, weights: Precision) -> None:
    """Refuse a model that would make a page too large to send or open."""
    size, smallest = size_of(model, weights), size_of(model, "int8")
    most = f"a live page holds at most {MAX_BYTES / 1e6:.0f} MB"
    if smallest > MAX_BYTES:
        raise UserError(f"the model has {smallest / 1e6:.0f} MB of weights even in int8; {most}: {HELP}")
    if size > MAX_BYTES:
        raise UserError(f"the model has {size / 1e6:.0f} MB of weights in {weights}; {most}: give --weights int8")


def int8_rows(matrix: Tensor) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Whole numbers from -127 to 127, and what each row of them is multiplied by."""
    values = matrix.detach().float().cpu().numpy()
    scales = (np.abs(values).max(1) / 127).astype(np.float32)
    whole = np.round(values / np.where(scales == 0, np.float32(1), scales)[:, None])
    return np.clip(whole, -127, 127).astype(np.int8), scales


def as_float16(matrix: Tensor) -> NDArray[np.float16]:
    values = matrix.detach().float().cpu().numpy()
    return np.clip(values, -MAX_FLOAT16, MAX_FLOAT16).astype(np.float16)


def named_weights(model: Model) -> Iterator[tuple[str, Tensor]]:
    """The weights by name, each tensor once; refused where one is not a number."""
    for name, parameter in model.network.named_parameters():
        if not bool(parameter.isfinite().all()):
            raise UserError(f"the weight {name} is not finite: this model is damaged")
        yield name, parameter


def packed_weights(model: Model, weights: Precision) -> dict[str, Any]:
    """The weights as JSON, which `live-model.js` reads."""
    tensors: dict[str, Any] = {}
    for name, parameter in named_weights(model):
        if parameter.dim() != 2:
            tensors[name] = {"values": packed(parameter.detach().float().cpu().numpy())}
        elif weights == "fp16":
            tensors[name] = {"values": packed(as_float16(parameter))}
        else:
            values, scales = int8_rows(parameter)
            tensors[name] = {"values": packed(values), "scales": packed(scales)}
    return tensors


def rounded(model: Model, weights: str = "int8") -> Model:
    """The model with the weights that its live page has, to compare the two."""
    precision = precision_of(model, weights)
    network = copy.deepcopy(model.network).cpu().float()
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.dim() != 2:
                continue
            if precision == "fp16":
                parameter.copy_(torch.from_numpy(as_float16(parameter).astype(np.float32)))
            else:
                values, scales = int8_rows(parameter)
                parameter.copy_(torch.from_numpy(values.astype(np.float32) * scales[:, None]))
    opened: Any = replace(model.opened, network=network)  # type: ignore[arg-type]
    return Model(opened, model.task, model.folder)

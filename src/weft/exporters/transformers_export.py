"""Folders that transformers opens: for every family that it knows, as far as its format can say the model."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch

from weft.checkpoint.configs import is_published
from weft.checkpoint.families import FAMILIES
from weft.checkpoint.folder import LoadedModel, write_files
from weft.errors import UserError, listed
from weft.exporters.checks import check_agreement
from weft.tasks.model import Model
from weft.version import VERSION


def write_transformers(inside: Path, opened: LoadedModel, task: str) -> None:
    """The files of a folder that transformers opens, one by one."""
    if opened.family.architecture(opened.config, opened.heads) is None:
        raise UserError(_why(opened))
    card = replace(opened.card, task=task, weft=VERSION)
    write_files(inside, replace(opened, card=card))


def _why(opened: LoadedModel) -> str:
    """What of a model the published format has no words for."""
    family, config = opened.family, opened.config
    if not family.architectures:
        known = [each.name for each in FAMILIES.values() if each.architectures]
        return f"transformers has no {family.name} models; it has {listed(known, 20)}"
    if is_published(family.table, config, family.standard):
        return f"transformers has no {family.name} model with these heads together: {listed(opened.heads)}"
    if config.layer_heads is not None:
        return "transformers has one number of heads for all layers, and this model has several"
    for spec in fields(config):
        usual, value = family.standard.get(spec.name, spec.default), vars(config)[spec.name]
        with suppress(UserError):  # what is usual may not go with the other sizes
            if value != usual and is_published(family.table, replace(config, **{spec.name: usual}), family.standard):
                return f"transformers has no {family.name} model with {spec.name}={value}"
    return f"transformers has no {family.name} model with these blocks"


def check_same(ours: Model, theirs: Model, inputs: Sequence[Any], tolerance: float) -> float:
    """That a folder, read back, holds the same config and the same numbers, reads the same tokens and says the same."""
    one, two = ours.opened, theirs.opened
    first, second = one.network.state_dict(), two.network.state_dict()
    other = [name for name in {**first, **second} if name not in first or name not in second]
    other = other or [name for name, tensor in first.items() if not torch.equal(tensor.cpu(), second[name])]
    if other:
        raise UserError(f"the folder, read back, holds other weights: {listed(other)}; nothing was written")
    unequal = [spec.name for spec in fields(one.config) if not _alike(one.config, two.config, spec.name)]
    if unequal:
        raise UserError(f"the folder, read back, has another config: {listed(unequal)}; nothing was written")
    for mine, other_one in ((one.tokenizer, two.tokenizer), (one.target_tokenizer, two.target_tokenizer)):
        texts = [each if isinstance(each, str) else " ".join(map(str, each)) for each in inputs]
        if mine is not None and (other_one is None or mine.ids(texts) != other_one.ids(texts)):
            raise UserError("the folder, read back, tokenizes texts differently; nothing was written")
    return 0.0 if one.family.speaks else check_agreement(ours, theirs, inputs, tolerance)


def _alike(one: Any, two: Any, name: str) -> bool:
    """Whether two configs mean the same by a field; None stands for what is usual, and dropouts for training alone."""
    values = [vars(each)[name] for each in (one, two)]
    usual = {"head_width": one.width // one.heads, "inner": 4 * one.width}.get(name)
    return values[0] == values[1] or {*values} == {None, usual} or name.endswith(("dropout", "weight_scale", "mix"))

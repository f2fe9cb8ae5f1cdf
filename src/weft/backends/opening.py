"""Exported folders: read their description, and open the engine that takes the place of a network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from weft.backends import ctranslate2, onnx_forecaster
from weft.checkpoint.card import check_hashes, labels_of, read_card
from weft.checkpoint.families import check_heads
from weft.checkpoint.folder import (
    LoadedModel,
    card_of,
    carried_keys,
    family_of,
    own_config,
    read_published,
    read_tokenizers,
)
from weft.checkpoint.formats import read_config
from weft.errors import UserError, shown
from weft.models.base import Network

# The engines: from the path and the description of a folder to an object with the interface of a network.
ENGINES: dict[str, Callable[[Path, LoadedModel], Network]] = {
    "onnx": onnx_forecaster.network_of,
    "ctranslate2": ctranslate2.network_of,
}
ONE = {"answer": 2, "next": 2, "choose": 1}  # heads with a fixed number of outputs


def backend_of(folder: Path) -> str | None:
    """The engine of a folder; None: torch."""
    card = read_card(folder) if folder.is_dir() else None
    return None if card is None or card.backend == "torch" else card.backend


def opened(folder: Path, trust: bool = False) -> LoadedModel:
    """Open an exported folder with its engine; `trust`: see `check_hashes`."""
    check_hashes(folder, read_card(folder), trust)
    model = described(folder)
    name = model.card.backend
    if name not in ENGINES:
        raise UserError(f"{folder / 'weft.json'}: nothing here runs a model for {shown(str(name))}")
    return replace(model, network=ENGINES[name](folder, model))


def described(folder: Path) -> LoadedModel:
    """The description of an exported folder, without a network."""
    published, where = read_published(folder)
    family, own = family_of(published, where)
    if own:
        config, heads = own_config(family, published, where)
    else:  # the heads of its architecture: there are no tensors to ask
        config = read_config(family.table, family.config, family.standard, published, where)
        named = published.get("architectures")
        if not isinstance(named, list) or len(named) != 1 or named[0] not in list(family.architectures):  # of any type
            raise UserError(f"{where}: architectures must name one of {', '.join(family.architectures)}")
        names = family.architectures[named[0]]
        check_heads(family, dict.fromkeys(names, 1))
        labels = labels_of(published, where)
        count = len(labels) if labels is not None else published.get("num_labels", 2)
        if type(count) is not int or not 1 <= count <= 1 << 20:
            raise UserError(f"{where}: num_labels must be a number from 1 on, not {shown(str(count))}")
        heads = {head: config.vocabulary if head == "words" else ONE.get(head, count) for head in names}
    card = card_of(folder, labels_of(published, where) if {"classify", "tag"} & set(heads) else None, heads)
    tokenizer, target = read_tokenizers(folder, config)
    carried = {} if own else carried_keys(folder, family, published)
    return LoadedModel(family, config, Network(config), heads, tokenizer, card, carried, target)

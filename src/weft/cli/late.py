"""Modules that a verb imports when it first uses them: `late.records.read_texts(...)`. Most of them import torch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from weft.loading import collector_paused

if TYPE_CHECKING:
    from weft import picture
    from weft.backends import choice, opening
    from weft.checkpoint import card, external, families, folder, locate
    from weft.data import columns, dataset, shards, table_writer, tables
    from weft.distillation import recipe, report
    from weft.explain import (
        attention,
        attribution,
        attribution_view,
        beam_tree,
        contexts,
        gradients,
        lens,
        live,
        next_words,
        positions,
        probe,
        tokenizer_view,
        walk,
        walks_list,
        word_map,
    )  # fmt: skip
    from weft.pruning import options
    from weft.quantization import quantize
    from weft.runs import finetune, ladder, pages, preparation, recipes
    from weft.tasks import base, choose, complete, embed, evaluate, light, model, perplexity, templates, word_vectors
    from weft.text import records, rows, sources
    from weft.text.tokenizers import training
    from weft.training import signals

__all__ = [
    "attention", "attribution", "attribution_view", "base", "beam_tree", "card", "choice", "choose", "columns",
    "complete", "contexts", "dataset", "embed", "evaluate", "external", "families", "finetune", "folder",
    "gradients", "ladder", "lens", "light", "live", "locate", "model", "next_words", "opening", "options", "pages",
    "perplexity", "picture", "positions", "preparation", "probe", "quantize", "recipe", "recipes",
    "records", "report", "rows", "shards", "signals", "sources", "table_writer", "tables", "templates",
    "tokenizer_view", "training", "walk", "walks_list", "word_map", "word_vectors",
]  # fmt: skip
ROOMS = {
    "weft": "picture",
    "weft.backends": "choice opening",
    "weft.checkpoint": "card external families folder locate",
    "weft.data": "columns dataset shards table_writer tables",
    "weft.distillation": "recipe report",
    "weft.explain": "attention attribution attribution_view beam_tree contexts gradients lens live "
    "next_words positions probe tokenizer_view walk walks_list word_map",
    "weft.pruning": "options",
    "weft.quantization": "quantize",
    "weft.runs": "finetune ladder pages preparation recipes",
    "weft.tasks": "base choose complete embed evaluate light model perplexity templates word_vectors",
    "weft.text": "records rows sources",
    "weft.text.tokenizers": "training",
    "weft.training": "signals",
}


def __getattr__(name: str) -> Any:
    for room, modules in ROOMS.items():
        if name in modules.split():
            with collector_paused():
                module = globals()[name] = import_module(f"{room}.{name}")  # so that this is not asked for each row
            return module
    raise AttributeError(name)

"""Small texts and runs that the tests of training share."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import torch

from weft.checkpoint.families import FAMILIES
from weft.data.masking import Masking, Permutation, SpanCorruption, shift
from weft.data.rows import Drawn
from weft.nn.rows import Batch
from weft.objectives.losses import MaskedWords, NextToken, Objective, PermutedWords, Writing

GRAMMAR = Path(__file__).parents[2] / "examples" / "grammar.py"
OBJECTIVES: dict[str, Objective] = {"next": NextToken(), "mlm": MaskedWords(), "mlm+nsp": MaskedWords(pairs=True)}
OBJECTIVES["mlm+sop"] = OBJECTIVES["mlm+nsp"]  # the two differ in how pairs are drawn
OBJECTIVES |= {"spans": Writing(), "permutation": PermutedWords()}


def stories(count: int) -> str:
    """The first stories of the built-in text, one a line."""
    spec = importlib.util.spec_from_file_location("grammar", GRAMMAR)
    assert spec is not None and spec.loader is not None
    grammar = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(grammar)
    lines = [line for line in grammar.make_text(0, 600 * count).splitlines() if line]
    return "\n".join(lines[:count]) + "\n"


def drawn(lengths: list[int], vocabulary: int = 50, pairs: bool = False, seed: int = 0) -> Drawn:
    """Rows of tokens drawn at random, no token special."""
    generator = np.random.default_rng(seed)
    count = sum(lengths)
    return Drawn(
        generator.integers(5, vocabulary, count),
        np.r_[0, np.cumsum(lengths)],
        np.arange(count, dtype=np.uint64) + np.uint64(seed << 32),
        np.zeros(count, dtype=bool),
        follows=generator.integers(0, 2, len(lengths)) if pairs else None,
    )


def batch_of(objective: str, lengths: list[int], seed: int = 0) -> Batch:
    """What an objective makes of such rows."""
    if objective == "next":
        return shift(drawn(lengths, seed=seed))
    if objective == "spans":
        return SpanCorruption(np.arange(49, 39, -1), 0, 1, 0.15, 3.0, 0).apply(drawn(lengths, vocabulary=40, seed=seed))
    if objective == "permutation":
        return Permutation(np.array([2, 3]), None, 0.15, 0).apply(drawn(lengths, seed=seed))
    masking = Masking(4, np.arange(5, 50), None, 0.15, 0)
    return masking.apply(drawn(lengths, pairs=objective != "mlm", seed=seed))


def family_for(objective: str) -> str:
    """A family that learns by this objective."""
    return {"next": "gpt2", "spans": "t5", "rtd": "deberta", "permutation": "xlnet"}.get(objective, "bert")


def network_for(objective: str, dropout: float = 0.0, seed: int = 0, **sizes: Any) -> torch.nn.Module:
    """A small network with the heads that the objective trains."""
    family = FAMILIES[family_for(objective)]
    usual = {"vocabulary": 50, "context": 64, "width": 32, "layers": 2, "heads": 2, "inner": 64}
    names = ["dropout", "attention_dropout", *(["embedding_dropout"] if objective == "next" else [])]
    if objective == "spans":  # its own scale is a factor
        usual["head_width"] = 16
        sizes = {name: size for name, size in sizes.items() if name != "weight_scale"}
    drops = {name: dropout for name in names if family.config.has(name)}
    config = family.config(**{**usual, **drops, **sizes})
    heads = {head: outputs or config.vocabulary for head, outputs in OBJECTIVES[objective].heads.items()}
    torch.manual_seed(seed)
    network = family.network(config, heads)
    network.initialize()
    return network

"""`weft.prune`: a model with fewer layers, heads or tokens."""

from __future__ import annotations

from weft.compress.layers import evenly, layers_in, with_layers
from weft.compress.vocabulary import most_used, with_vocabulary
from weft.text.pruning import pruned_tokenizer

__all__ = ["evenly", "layers_in", "most_used", "pruned_tokenizer", "with_layers", "with_vocabulary"]

"""How many products and sums a batch costs, for the share of a machine's peak that a run reaches."""

from __future__ import annotations

from typing import Any

from torch import nn

from weft.nn.multihead import Attention
from weft.nn.rows import Batch


class Work:
    """How many products and sums a batch costs, forward and backward."""

    def __init__(self, network: nn.Module) -> None:
        self.network: Any = network
        inside = [module for name, module in network.named_modules() if name.startswith("layers.")]
        layers, config = getattr(network, "layers", ()), getattr(network, "config", None)
        turns = getattr(config, "layers", len(layers)) / max(1, len(layers))  # a layer may be read again and again
        self.matrices = turns * sum(module.weight.numel() for module in inside if isinstance(module, nn.Linear))
        attentions = [module for module in inside if isinstance(module, Attention)]
        self.scores = turns * sum(a.heads * a.head_width * (0.5 if a.causal else 1.0) for a in attentions)
        tokens = getattr(network, "tokens", None)
        self.words = tokens.weight.numel() if isinstance(tokens, nn.Embedding) else 0

    def of(self, batch: Batch) -> float:
        if batch.source is not None:
            return 3.0 * self.network.operations(batch.source.rows, batch.rows)
        if hasattr(self.network, "products"):
            return 6.0 * self.network.products * len(batch.tokens)
        lengths = batch.rows.lengths().double()
        said = len(batch.targets.get("words", ()))
        matrices = 6.0 * (self.matrices * len(batch.tokens) + self.words * said)
        return matrices + 12.0 * self.scores * float(lengths.square().sum())

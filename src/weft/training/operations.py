"""How many products and sums a batch costs, for the share of a machine's peak that a run reaches."""

from __future__ import annotations

from torch import nn

from weft.models.base import Network
from weft.nn.attention import Attention
from weft.nn.rows import Batch


class Operations:
    """How many products and sums a batch costs, forward and backward."""

    def __init__(self, network: Network) -> None:
        self.network = network
        inside = [module for name, module in network.named_modules() if name.startswith("layers.")]
        turns = network.config.layers / max(1, len(network.layers))  # a layer may be read again and again
        self.matrices = turns * sum(module.weight.numel() for module in inside if isinstance(module, nn.Linear))
        attentions = [module for module in inside if isinstance(module, Attention)]
        self.scores = turns * sum(a.heads * a.head_width * (0.5 if a.causal else 1.0) for a in attentions)
        self.words = network.tokens.weight.numel()

    def of(self, batch: Batch) -> float:
        if batch.source is not None:
            return 3.0 * self.network.operations(batch.source.rows, batch.rows)
        if self.network.products is not None:
            return 6.0 * self.network.products * len(batch.tokens)
        lengths = batch.rows.lengths().double()
        predicted = len(batch.targets.get("words", ()))
        matrices = 6.0 * (self.matrices * len(batch.tokens) + self.words * predicted)
        return matrices + 12.0 * self.scores * float(lengths.square().sum())

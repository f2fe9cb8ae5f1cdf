"""Replaced-token detection (Clark et al., 2020; He et al., 2023): tell the words of a text from those of a generator.

N: tokens; n: masked places; V: vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from weft.data.masking import NOTHING
from weft.nn.heads import in_full
from weft.nn.rows import Batch
from weft.nn.word_loss import cross_entropy
from weft.objectives.losses import Objective

Sharing = Literal["gdes", "es", "none"]
TABLE = "tokens.weight"  # of the network


class Generator(nn.Module):
    """What is trained beside a discriminator: the generator, and by how much the discriminator's table differs."""

    def __init__(self, network: Any, sharing: Sharing) -> None:
        super().__init__()
        self.network = network
        self.difference = nn.Parameter(torch.zeros_like(network.tokens.weight)) if sharing == "gdes" else None

    def table(self) -> Tensor:
        """V width: the discriminator's token vectors; of gdes its loss moves the difference alone."""
        table: Tensor = self.network.tokens.weight
        return table if self.difference is None else table.detach() + self.difference


@dataclass(frozen=True)
class ReplacedTokens(Objective):
    """A generator fills the masks, and the network, its discriminator, tells of every token whether it was replaced.

    The saved model is the discriminator. Held-out losses are not weighted.
    """

    kinds = ("generator", "discriminator")
    heads: ClassVar[Mapping[str, int | None]] = {"replaced": 1}
    network: Any  # the discriminator
    beside: Generator
    sharing: Sharing = "gdes"
    weight: float = 50.0
    draws: torch.Generator | None = None  # None: as torch is seeded

    @staticmethod
    def of(network: Any, sharing: Sharing, weight: float, seed: int) -> ReplacedTokens:
        """With a fresh generator, which begins with the token vectors of the network."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            generator = network.make_generator().to(network.tokens.weight.dtype)
            generator.initialize()
        with torch.no_grad():
            generator.tokens.weight.copy_(network.tokens.weight)
        # A shared table is what the generator and the difference make of it: it has no steps of its own.
        network.tokens.requires_grad_(sharing == "none")
        return ReplacedTokens(network, Generator(generator, sharing), sharing, weight)

    def counts(self, batch: Batch) -> dict[str, int]:
        return {"generator": int((batch.targets["words"] != NOTHING).sum()), "discriminator": len(batch.tokens)}

    def sums(self, network: Any, batch: Batch) -> dict[str, Tensor]:
        generator, words = self.beside.network, batch.targets["words"]
        if generator.training != network.training:  # only the network is told of an evaluation
            generator.train(network.training)
        hidden = generator(batch.tokens, batch.rows, batch.segments)
        logits = generator.words(hidden[batch.targets["places"]])  # n V
        tokens, replaced = self.replace(batch, self.drawn(logits.detach()))
        inputs = (tokens, batch.rows, batch.segments)
        # In training the table is made anew, so that gradients reach what it is made of; `settle` keeps it.
        own = self.sharing == "none" or not network.training
        hidden = network(*inputs) if own else functional_call(network, {TABLE: self.beside.table()}, inputs)
        guesses = in_full(network.logits("replaced", hidden, batch.rows)[:, 0])
        loss = F.binary_cross_entropy_with_logits(guesses, replaced.to(guesses.dtype), reduction="sum")
        weight = self.weight if network.training else 1.0
        if not network.training:  # as it was: a compiled step would be compiled anew
            generator.train()
        return {"generator": cross_entropy(logits, words), "discriminator": weight * loss}

    def drawn(self, logits: Tensor) -> Tensor:
        """n: a word of each place, by the generator's probabilities."""
        chances = in_full(logits).softmax(-1)
        return (chances / torch.empty_like(chances).exponential_(generator=self.draws)).argmax(-1)

    def replace(self, batch: Batch, words: Tensor) -> tuple[Tensor, Tensor]:
        """The tokens with these words at the masked places, and where they are not the words of the text (N bool)."""
        asked, count = batch.targets["words"], len(batch.tokens)
        # Places that only fill up a batch write beyond its end.
        places = torch.where(asked == NOTHING, count, batch.targets["places"])
        tokens = F.pad(batch.tokens, (0, 1)).index_copy(0, places, words)
        other = torch.zeros_like(tokens, dtype=torch.bool).index_copy(0, places, words != asked)
        return tokens[:count], other[:count]

    @torch.no_grad()
    def settle(self) -> None:
        """The discriminator's own table, which is evaluated and saved, is what the step made of the shared one."""
        if self.sharing != "none":
            self.network.tokens.weight.copy_(self.beside.table())

    def for_evaluation(self, network: Any, source: Any) -> ReplacedTokens:
        """The same words are drawn in every evaluation."""
        device = network.tokens.weight.device
        return replace(self, draws=torch.Generator(device).manual_seed(0))

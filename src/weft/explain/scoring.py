"""One logit of a model as a function of its token embeddings: what attribution differentiates and compares.

N: tokens of all windows of one input; W: windows; K: copies of them that differ in embeddings; D: width of the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.budget import BUDGET
from weft.checkpoint.folder import LoadedModel
from weft.errors import UserError
from weft.nn.rows import Rows
from weft.tasks.targets import LogitTarget
from weft.text.windows import segments_of


@contextmanager
def replaced_embeddings(network: Any, vectors: Tensor) -> Iterator[None]:
    """The table of tokens gives these vectors (N D) the first time that it is read."""
    waiting = [vectors]

    def replace(module: Any, inputs: Any, output: Tensor) -> Tensor | None:
        if not waiting:
            return None
        assert output.shape == waiting[0].shape, "the table of tokens is not read token by token"
        return waiting.pop()

    handle = network.tokens.register_forward_hook(replace)
    try:
        yield
    finally:
        handle.remove()
    assert not waiting, "the table of tokens was not read"


def check_embeddings(model: LoadedModel) -> None:
    """Refuse a model that has no vector of each token to begin from."""
    name, family = model.family.name, model.family
    if model.exported:
        raise UserError(
            f"a model exported for {model.card.backend} hands out no gradients: give the folder it came from"
        )
    if family.reads or family.series:
        raise UserError(f"{name}: words are attributed for encoders and decoders, not for encoder-decoders or series")
    if family.counts:
        raise UserError(f"{name}: a model of counts has no token embeddings, so no word can be attributed")
    if model.network.CONTINUES:
        raise UserError(f"{name}: a model that reads characters has no token embeddings, so no word can be attributed")


class Scorer:
    """The logit of a target for copies of its windows with other embeddings."""

    def __init__(self, model: LoadedModel, target: LogitTarget) -> None:
        check_embeddings(model)
        self.network: Any = model.network
        self.target, self.device = target, model.device
        self.lengths = [len(window.tokens) for window in target.windows]
        self.starts = np.cumsum([0, *self.lengths]).tolist()
        self.tokens = torch.tensor([token for window in target.windows for token in window.tokens], device=self.device)
        self.segments = None
        if target.segments:
            borders = np.array([window.border for window in target.windows])
            marks = segments_of(borders, np.array(self.lengths), target.segments)
            self.segments = torch.from_numpy(marks).to(self.device)

    @property
    def copies(self) -> int:
        """Copies that go through the network at once."""
        return max(1, BUDGET // max(1, len(self.tokens)))

    def embeddings(self) -> Tensor:
        """N D: the vectors of the tokens."""
        with torch.no_grad():
            return self.network.tokens(self.tokens).detach()

    def hidden(self, vectors: Tensor) -> tuple[Tensor, Rows]:
        """K N D -> K*N width: what the head reads."""
        count = len(vectors)
        rows = Rows.of(self.lengths * count, self.device)
        tokens = self.tokens.repeat(count)
        with replaced_embeddings(self.network, vectors.flatten(0, 1)):
            if self.target.follows:
                return self.network.next_states(tokens, rows), rows
            segments = None if self.segments is None else self.segments.repeat(count)
            return self.network(tokens, rows, segments), rows

    def logits(self, hidden: Tensor, rows: Rows, count: int) -> Tensor:
        """K*N width -> K: the sum of the terms, in float64."""
        network, head = self.network, self.target.head
        copies = torch.arange(count, device=self.device)
        whole: Tensor | None = None
        total = torch.zeros(count, dtype=torch.float64, device=self.device)
        for term in self.target.terms:
            if term.place is None:
                chosen = copies * len(self.lengths) + term.window
            else:
                chosen = copies * len(self.tokens) + self.starts[term.window] + term.place
            if head == "words":  # the table of all words is wide: only where it is asked for
                output = network.words(hidden[chosen])
            else:
                whole = network.logits(head, hidden, rows) if whole is None else whole
                output = whole[chosen]
            total = total + term.weight * output[:, term.output].double()
        return total

    def scores(self, vectors: Tensor) -> Tensor:
        """K N D -> K: the logit of each copy."""
        hidden, rows = self.hidden(vectors)
        return self.logits(hidden, rows, len(vectors))

    def values(self, copies: Sequence[Tensor]) -> list[float]:
        """The logits of any number of copies (N D each), without gradients."""
        values: list[float] = []
        with torch.no_grad():
            for first in range(0, len(copies), self.copies):
                values += self.scores(torch.stack(list(copies[first : first + self.copies]))).tolist()
        return values

    def slopes(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """K N D -> K logits, and their gradients with respect to the vectors (K N D)."""
        scores, slopes = list[Tensor](), list[Tensor]()
        for some in torch.split(vectors, self.copies):
            leaf = some.detach().requires_grad_()
            # The recurrent kernels of cuDNN have no gradient in evaluation mode.
            with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
                score = self.scores(leaf)
                (slope,) = torch.autograd.grad(score.sum(), leaf)
            scores.append(score.detach())
            slopes.append(slope.detach())
        return torch.cat(scores), torch.cat(slopes)

    def read_shares(self, vectors: Tensor) -> Tensor:
        """N: the share of each token in what the head reads: 1 at [CLS], or even under mean pooling."""
        with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
            with torch.no_grad():
                hidden, rows = self.hidden(vectors[None])
            leaf = hidden.detach().requires_grad_()
            (slope,) = torch.autograd.grad(self.logits(leaf, rows, 1).sum(), leaf)
        size = slope.double().norm(dim=-1)
        return size / size.sum().clamp(min=1e-300)

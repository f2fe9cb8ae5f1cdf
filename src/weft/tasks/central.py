"""The sentences that say most of what a text says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from weft.checkpoint.folder import LoadedModel
from weft.errors import UserError
from weft.tasks.answers import Central, Sentence
from weft.tasks.embed import Embedder, VectorTask
from weft.text.sentences import sentence_spans


def central(
    opened: LoadedModel, texts: Sequence[str], *, top: int = 3, pooling: str | None = None, layers: str | int = "last"
) -> list[Central]:
    """The `top` most central sentences of each text, in text order: those most like all the others."""
    if top < 1:
        raise UserError(f"top must be 1 or more, not {top}")
    embedder = Embedder(opened, pooling=pooling, normalize=True, layers=layers)
    return [_central(embedder, text, top) for text in texts]


def _central(embedder: Embedder, text: str, top: int) -> Central:
    spans = [span for begin, end in sentence_spans(text) if (span := _bare(text, begin, end)) is not None]
    embedded = list(embedder.chunks(text[begin:end] for begin, end in spans))
    scores = centrality(torch.cat([torch.zeros(0, embedder.width), *(some.vectors for some in embedded)])).tolist()
    best = sorted(range(len(spans)), key=lambda number: -scores[number])[:top]  # the earlier one where two are equal
    return Central(
        sentences=tuple(
            Sentence(text=text[begin:end], start=begin, end=end, score=scores[number])
            for number, (begin, end) in enumerate(spans)
            if number in set(best)
        ),
        n_tokens=sum(count for some in embedded for count in some.n_tokens),
        n_windows=sum(count for some in embedded for count in some.n_windows),
    )


def centrality(vectors: Tensor) -> Tensor:
    """n width, of length 1 each -> n: the mean cosine of each with all the others.

    LexRank (Erkan and Radev, 2004) counts the same likenesses by a walk over them. The mean has no threshold and no
    damping to choose, stays defined where cosines are negative, as those of embeddings are, and needs no table of all
    pairs: the mean of products is the product with the mean, so a book costs what its sentences cost.
    """
    if len(vectors) < 2:
        return torch.ones(len(vectors))
    exact = vectors.double()
    itself = (exact * exact).sum(1)
    return (((exact @ exact.sum(0)) - itself) / (len(vectors) - 1)).float()


def _bare(text: str, begin: int, end: int) -> tuple[int, int] | None:
    """A span without the space around it; None where there is nothing else."""
    inside = text[begin:end]
    bare = inside.strip()
    start = begin + len(inside) - len(inside.lstrip())
    return (start, start + len(bare)) if bare else None


class CentralTask(VectorTask):
    """The most central sentences of a text."""

    name = "central"

    def answers(self, model: LoadedModel, inputs: Sequence[Any], **options: Any) -> list[Any]:
        return central(model, inputs, **options)

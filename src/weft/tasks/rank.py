"""Search: the texts nearest to a query by their vectors, then, where asked for, put in order by a model for pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import tee
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weft.budget import by_budget
from weft.checkpoint.folder import LoadedModel
from weft.errors import UserError, one_of
from weft.tasks.answers import Central, Hit, Ranked, Sentence, Value
from weft.tasks.embed import Embedder, VectorTask
from weft.tasks.forward import stripped
from weft.text.sentences import sentence_spans

SCORES = 1 << 24  # scores that are held at a time
TOGETHER = 256  # queries at most
BLOCK = 1 << 10  # texts whose vectors are held in float64 at a time

Rerank = Callable[[list[tuple[str, str]]], list[float]]


class Index:
    """Texts embedded once, to be asked many queries; a score is the cosine unless vectors stay as they are."""

    def __init__(
        self,
        opened: LoadedModel,
        texts: Sequence[str],
        *,
        normalize: bool = True,
        pooling: str | None = None,
        layers: str | int = "last",
        on_progress: Callable[[int], None] = lambda more: None,
    ) -> None:
        self.texts = list(texts)
        if not self.texts:
            raise UserError("there are no texts to search in")
        self.embedder = Embedder(opened, pooling=pooling, normalize=normalize, layers=layers)
        self.vectors = torch.empty(len(self.texts), self.embedder.width)
        done = 0
        for some in self.embedder.chunks(self.texts):
            self.vectors[done : done + len(some.vectors)] = some.vectors
            done += len(some.vectors)
            on_progress(len(some.vectors))

    def ask(
        self, queries: Sequence[str], *, top: int = 10, rerank: Rerank | None = None, candidates: int = 50
    ) -> list[Ranked]:
        """The `top` texts for each query; `rerank` puts the first `candidates` in order, and the others follow."""
        for name, number in (("top", top), ("candidates", candidates)):
            if number < 1:
                raise UserError(f"{name} must be 1 or more, not {number}")
        wanted = max(top, candidates if rerank else 0)
        answers = []
        for scored in self.scored(queries):
            hits = self.hits(scored, wanted)
            if rerank is not None:
                hits = [*reranked(scored.query, hits[:candidates], rerank), *hits[candidates:]]
            answers.append(Ranked(hits=tuple(hits[:top]), n_tokens=scored.n_tokens, n_windows=scored.n_windows))
        return answers

    def hits(self, scored: Scored, count: int) -> list[Hit]:
        """The best texts by their vectors alone."""
        numbers = best(scored.scores, count)
        pairs = zip(numbers, scored.scores[numbers].tolist(), strict=True)
        return [Hit(text=self.texts[number], number=number, score=score, stage="embedding") for number, score in pairs]

    def scored(self, queries: Iterable[str]) -> Iterator[Scored]:
        """Each query with the scores of all texts, worked out for as many at a time as memory stays bounded for."""
        for some in by_budget(queries, lambda query: max(len(self.texts), SCORES // TOGETHER), SCORES):
            asked = iter(some)
            for embedded in self.embedder.chunks(some):
                scores = products(embedded.vectors, self.vectors)
                for row, tokens, windows in zip(scores, embedded.n_tokens, embedded.n_windows, strict=True):
                    yield Scored(next(asked), row, tokens, windows)


class Scored(NamedTuple):
    """A query, what each text scores for it, and how much of it was read."""

    query: str
    scores: Tensor  # of all texts
    n_tokens: int
    n_windows: int


def products(queries: Tensor, texts: Tensor) -> Tensor:
    """q width, n width -> q n, worked out in float64: so equal texts score the same, and in company as alone."""
    exact = queries.double()
    parts = (texts[begin : begin + BLOCK].double() for begin in range(0, len(texts), BLOCK))
    return torch.cat([(exact @ part.T).float() for part in parts], 1)


def best(scores: Tensor, count: int) -> list[int]:
    """The numbers of the highest scores, highest first; of equal ones the earlier, at the border too."""
    count = min(count, len(scores))
    least = scores.topk(count).values[-1]
    candidates = (scores >= least).nonzero()[:, 0]
    return candidates[scores[candidates].argsort(descending=True, stable=True)][:count].tolist()


def rank(
    opened: LoadedModel,
    queries: str | Sequence[str],
    texts: Sequence[str],
    *,
    top: int = 10,
    rerank: Rerank | None = None,
    candidates: int = 50,
    pooling: str | None = None,
    layers: str | int = "last",
) -> list[Ranked]:
    """The `top` texts for each query, best first; who asks more than once keeps an `Index`."""
    index = Index(opened, texts, pooling=pooling, layers=layers)
    return index.ask([queries] if isinstance(queries, str) else queries, top=top, rerank=rerank, candidates=candidates)


def reranked(query: str, hits: Sequence[Hit], rerank: Rerank) -> list[Hit]:
    """The hits in the order of a second opinion; where that sees no difference, in the order they came."""
    scores = rerank([(query, hit.text) for hit in hits]) if hits else []
    assert len(scores) == len(hits), f"{len(scores)} scores for {len(hits)} pairs"
    again = [replace(hit, score=float(score), stage="pair") for hit, score in zip(hits, scores, strict=True)]
    return sorted(again, key=lambda hit: -hit.score)  # a stable order


def pair_scores(model: Any, positive: str | None = None) -> Rerank:
    """A model for pairs as a re-ranker: its value, or the probability of `positive` (the last label unless said)."""

    def score(answer: Any) -> float:
        if isinstance(answer, Value):
            if positive is not None:
                raise UserError(f"the model for pairs gives values, not labels, so there is no label {positive!r}")
            return float(answer.value)
        probabilities: dict[str, float] = answer.scores
        return probabilities[list(probabilities)[-1] if positive is None else one_of(positive, probabilities, "label")]

    return lambda pairs: [score(answer) for answer in model(pairs)]


class Places(NamedTuple):
    """At which place, from 1, the right text came: by vectors alone, and after re-ranking."""

    embedding: int
    pair: int


def places(
    index: Index, pairs: Iterable[tuple[str, int]], *, rerank: Rerank | None = None, candidates: int = 50
) -> Iterator[Places]:
    """Where the right text (its number) of a query comes; one that is no candidate for re-ranking keeps its place."""
    queries, rights = tee(pairs)
    for scored, (_, right) in zip(index.scored(query for query, _ in queries), rights, strict=True):
        scores, score = scored.scores, scored.scores[right]
        place = after = 1 + int((scores > score).sum()) + int((scores[:right] == score).sum())
        if rerank is not None and place <= candidates:
            hits = index.hits(scored, candidates)
            after = 1 + [hit.number for hit in reranked(scored.query, hits, rerank)].index(right)
        yield Places(place, after)


class RankTask(VectorTask):
    """The texts nearest to a query."""

    name = "rank"

    def answers(self, model: LoadedModel, inputs: Sequence[Any], **options: Any) -> list[Any]:
        return rank(model, inputs, **options)


def central(
    opened: LoadedModel, texts: Sequence[str], *, top: int = 3, pooling: str | None = None, layers: str | int = "last"
) -> list[Central]:
    """The `top` most central sentences of each text, in text order: those most like all the others."""
    if top < 1:
        raise UserError(f"top must be 1 or more, not {top}")
    embedder = Embedder(opened, pooling=pooling, normalize=True, layers=layers)
    return [_central(embedder, text, top) for text in texts]


def _central(embedder: Embedder, text: str, top: int) -> Central:
    spans = [span for place in sentence_spans(text) if (span := stripped(text, *place))[0] < span[1]]
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

    Unlike LexRank (Erkan and Radev, 2004) it has no threshold and no damping, and it needs no table of all pairs.
    """
    if len(vectors) < 2:
        return torch.ones(len(vectors))
    exact = vectors.double()
    itself = (exact * exact).sum(1)
    return (((exact @ exact.sum(0)) - itself) / (len(vectors) - 1)).float()


class CentralTask(VectorTask):
    """The most central sentences of a text."""

    name = "central"

    def answers(self, model: LoadedModel, inputs: Sequence[Any], **options: Any) -> list[Any]:
        return central(model, inputs, **options)

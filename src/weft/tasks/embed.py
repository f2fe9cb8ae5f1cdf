"""Texts as vectors; the texts nearest to a query, and the most central sentences of a text, by their vectors."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.backends.passes import LARGEST, halved_network, in_full, outputs
from weft.budget import by_budget
from weft.checkpoint.card import POOLINGS, Card
from weft.checkpoint.folder import LoadedModel
from weft.data.examples import Examples, ExamplesBuilder
from weft.errors import NotFinite, UserError, one_of, refuse
from weft.metrics.numeric import SimilarityMetrics, VectorAgreement, cosine
from weft.nn.layer_choice import LayerChoice
from weft.nn.rows import Batch, Ragged, Rows, sent
from weft.objectives.losses import TextVectors
from weft.tasks.answers import Central, Choice, Hit, Ranked, TokenVectors, Value, Vector
from weft.tasks.base import Difference, Example, Prediction, Task, TeacherArrays, TeacherRows, UnsupervisedTask
from weft.tasks.directions import Directions
from weft.tasks.forward import (
    budget_on,
    check_finite,
    evaluating,
    graph_of,
    stacked,
    stripped,
    tokenizer_of,
    window_for,
)
from weft.tasks.pooling import TextSums, finished, outside, own_tokens, pinned_for, pooled, pooled_rows, whole
from weft.tasks.tag import joined, raw
from weft.text.sentences import sentence_spans
from weft.text.windows import FlatWindows, Framing, TextWindow, frame, pieces, segment_ids

Pooling = Literal["mean", "first", "max"]
WindowVector = tuple[NDArray[np.float64], int]  # of a window: the sum (or maximum) over its tokens, and their number
PER = ("text", "token", "word")  # what has a vector of its own
TEXTS = 256  # texts that go through together, fewer where they are long
CHARACTERS = 1 << 20  # of them together
TOKENIZED = 1024  # texts that are tokenized at a time
SCORES = 1 << 24  # scores that are held at a time
TOGETHER = 256  # queries at most
BLOCK = 1 << 10  # texts whose vectors are held in float64 at a time


@dataclass(frozen=True)
class Embedded:
    """The vectors of a few texts, and how much of each was read."""

    vectors: Tensor  # B width float32, on the CPU
    n_tokens: list[int]
    n_windows: list[int]

    def __iter__(self) -> Iterator[tuple[Tensor, int, int]]:
        return zip(self.vectors, self.n_tokens, self.n_windows, strict=True)

    def answers(self) -> list[Vector]:
        rows = zip(self.vectors.numpy(), self.n_tokens, self.n_windows, strict=True)
        return [Vector.of(row.copy(), tokens, windows) for row, tokens, windows in rows]


class Embedder:
    """A model made ready to turn texts into vectors: mean or maximum of a text's tokens, or its first; none is cut.

    `layers`: "last" (what the heads of the model read, where that is another choice), "second-to-last", numbers (0: the
    embeddings; negative: from the end; several are concatenated), "last4-sum", "last4-mean", "last4-concat" for any
    number, "all-mean", "weighted" (the mix that the model has learned) or "weighted:0.1,0.9,..." with weights of one's
    own.
    """

    def __init__(
        self,
        model: LoadedModel,
        *,
        pooling: str | None = None,
        normalize: bool | None = None,
        layers: str | int | Sequence[int] = "last",
    ) -> None:
        self.model, card, context, family = model, model.card, model.config.context, model.family
        self.tokenizer = tokenizer_of(model)
        if family.reads:
            raise UserError(f"{family.name} reads one text to write another, and makes no vectors of texts")
        network = model.network
        if not (features := network.features):
            raise UserError(f"{family.name} models count words and have no vectors")
        self.pooling = one_of(pooling or card.pooling or "mean", POOLINGS, "pooling")
        if self.pooling == "first" and family.generates:
            raise UserError(f"the first token of a {family.name} has seen nothing of the text; use mean pooling")
        self.normalize = bool(card.normalize) if normalize is None else normalize
        name = str(layers) if isinstance(layers, str | int) else ",".join(map(str, layers))
        self.choice = LayerChoice.of(name, model.config.layers)
        if name == "weighted":  # as fixed weights: what the network gives out may have passed through more than its mix
            if network.mix is None or not network.mix.choice.weights:
                none = f"this {family.name} has learned no mix of layers (weft finetune --mix)"
                raise UserError(f"{none}; give weighted:... with {model.config.layers + 1} weights")
            self.choice = network.mix.choice
        self.width: int = self.choice.width(network.state_widths) if self.choice.numbers else features
        before, after = frame(self.tokenizer)
        window = card.window or window_for(model, None, None, "windows", 0.25)
        marks = 3 if 2 in segment_ids(self.tokenizer, False) else 0  # XLNet's <cls> has a segment of its own
        self.framing = Framing(tuple(before), tuple(after), None, marks, min(window.length, context), window.stride)

    def chunks(self, texts: Iterable[str]) -> Iterator[Embedded]:
        """The vectors of any number of texts, in order, in memory that does not grow with their number."""
        if isinstance(texts, list) and len(texts) == 1:
            yield self.vectors(texts)
            return
        done, begun = 0, deque[Callable[[], Embedded]]()
        # On a GPU more at a time: its passes are large, and those of similar length stand together.
        on_gpu = self.model.device.type == "cuda"
        groups = by_budget(texts, self._size, CHARACTERS * (4 if on_gpu else 1))
        # Texts that are all there are read ahead, so that the GPU, the tokenizer and Python work at once.
        ahead = on_gpu and isinstance(texts, Sequence)
        for ids in self._tokenized(groups, ahead):
            begun.append(self._begun(ids, done))
            done += len(ids)
            if len(begun) > ahead:
                yield begun.popleft()()
        while begun:
            yield begun.popleft()()

    @staticmethod
    def _size(text: str) -> int:
        return max(len(text), CHARACTERS // TEXTS)

    def _tokenized(self, groups: Iterable[Sequence[str]], ahead: bool) -> Iterator[list[list[int]]]:
        """The tokens of groups of texts; `ahead`: those of the next group are made in the meantime."""
        read = partial(self.tokenizer.ids, specials=False)
        if not ahead:
            yield from map(read, groups)
            return
        waiting = deque[Future[list[list[int]]]]()
        with ThreadPoolExecutor(1) as pool:
            for texts in groups:
                waiting.append(pool.submit(read, texts))
                if len(waiting) > 1:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

    def vectors(self, texts: Sequence[str], done: int = 0) -> Embedded:
        """The vectors of a few texts, of which `done` have gone before."""
        return self._begun(self.tokenizer.ids(list(texts), specials=False), done)()

    def _begun(self, ids: Sequence[Sequence[int]], done: int = 0) -> Callable[[], Embedded]:
        """What gives the vectors of tokenized texts; a GPU works on them in the meantime."""
        graph = self._graph()
        if graph is None:
            return self._begun_on_tensors(ids, done)
        windows = self.windows(ids, done)
        if len(windows) == 1 == len(windows[0]):  # mostly: then there is nothing to sort
            embedded = self.joined(windows, [self._by_graph(graph, windows[0])])
            return lambda: embedded
        flat = [(number, window) for number, some in enumerate(windows) for window in some]
        flat.sort(key=lambda item: len(item[1].tokens))  # of one length: attention then has nothing to fill up
        parts: list[list[WindowVector]] = [[] for _ in windows]
        for batch in by_budget(flat, lambda item: len(item[1].tokens), budget_on(self.model.device)):
            for (number, _), part in zip(batch, self._by_graph(graph, [one for _, one in batch]), strict=True):
                parts[number].append(part)
        embedded = self.joined(windows, parts)
        return lambda: embedded

    def _graph(self) -> Any:
        """What gives the last layer on arrays; None: the network does, on tensors."""
        return None if self.choice.numbers else graph_of(self.model, None)

    @torch.inference_mode()
    def _begun_on_tensors(self, ids: Sequence[Sequence[int]], done: int) -> Callable[[], Embedded]:
        self._check_empty(ids, done)
        windows, device = FlatWindows.of(self.framing, ids), self.model.device
        sums, continuing = TextSums(len(ids), self.width, self.pooling, device), self.model.network.CONTINUES
        lengths = windows.lengths()
        # Of one length together: attention then has nothing to fill up.
        order = np.lexsort((windows.cuts[:, 0], windows.texts, lengths)).tolist()
        for numbers in by_budget(order, lengths.tolist().__getitem__, budget_on(device)):
            tokens, borders, own = windows.framed(numbers)
            texts, starts = windows.texts[numbers], windows.cuts[numbers, 0]
            places = list(zip(texts.tolist(), starts.tolist(), strict=True))
            rows = Rows(torch.from_numpy(borders.astype(np.int32)), int(lengths[numbers[-1]]), windows=places)
            own = outside(tokens, own, continuing) if continuing else own
            sums.add(texts, *self._pooled(Ragged(torch.from_numpy(tokens), rows), own))
        extra = len(self.framing.before) + len(self.framing.after)
        n_tokens = (np.fromiter(map(len, ids), np.int64, len(ids)) + extra).tolist()
        n_windows = np.bincount(windows.texts, minlength=len(ids)).tolist()
        vectors = sums.vectors(self.normalize)
        return lambda: Embedded(self._checked(vectors()), n_tokens, n_windows)

    def windows(self, ids: Sequence[Sequence[int]], done: int = 0) -> list[list[TextWindow]]:
        """The windows of texts that are tokens already."""
        self._check_empty(ids, done)
        return [pieces(self.framing, tokens) for tokens in ids]

    def _check_empty(self, ids: Sequence[Sequence[int]], done: int) -> None:
        if self.framing.before or self.framing.after or all(ids):
            return
        number = next(number for number, tokens in enumerate(ids, done + 1) if not tokens)
        raise UserError(f"text {number} is empty, and this model puts no tokens around a text")

    def pooled(self, windows: Sequence[TextWindow]) -> list[WindowVector]:
        """Of each window, in one pass of any texts: its part of a text's vector, and how many tokens that is of."""
        if (graph := self._graph()) is not None:
            return self._by_graph(graph, windows)
        own = [own_tokens(window, self.model.network.CONTINUES) for window in windows]
        sums, counts = self._pooled(Ragged.of([window.tokens for window in windows]), np.concatenate(own))
        return list(zip(sums.double().cpu().numpy(), counts.tolist(), strict=True))

    def _by_graph(self, graph: Any, windows: Sequence[TextWindow]) -> list[WindowVector]:
        """The same without tensors: to make a few takes torch as long as a graph takes for a short text."""
        continuing = self.model.network.CONTINUES
        own = [None if whole(window) and not continuing else own_tokens(window, continuing) for window in windows]
        places = [0, *accumulate(len(window.tokens) for window in windows)]
        tokens = np.array([token for window in windows for token in window.tokens], np.int64)
        segments = None
        if self.framing.segments:
            segments = np.zeros_like(tokens)
            segments[[end - 1 for end in places[1:]]] = 2
        hidden = graph.computed(tokens, places, segments)
        parts = list[WindowVector]()
        for (start, end), kept in zip(pairwise(places), own, strict=True):
            count = 1 if self.pooling == "first" else end - start if kept is None else int(kept.sum())
            parts.append((pooled_rows(hidden[start:end], kept, self.pooling), count))
        return parts

    @torch.inference_mode()
    def _pooled(self, ragged: Ragged, own: NDArray[np.bool_] | None) -> tuple[Tensor, NDArray[np.int64]]:
        """W width on the model's device: of each row the sum or the largest; and of how many tokens that is.

        `own`: the tokens that count; None: all.
        """
        starts, device = ragged.rows.starts.numpy(), self.model.device
        if self.pooling == "first":
            counts = np.ones(len(starts) - 1, np.int64)
        else:
            counts = np.diff(starts) if own is None else np.add.reduceat(own, starts[:-1], dtype=np.int64)
        if len(ragged.tokens) > LARGEST:  # a smaller pass is padded first
            ragged = ragged.map(pinned_for(device))
        hidden = self.hidden(ragged)
        rows = ragged.rows.map(lambda tensor: sent(tensor, hidden.device))
        mask = None if own is None else sent(torch.from_numpy(own), hidden.device)
        return pooled(hidden, rows, mask, self.pooling), counts

    def joined(self, windows: Sequence[Sequence[TextWindow]], parts: Sequence[Sequence[WindowVector]]) -> Embedded:
        """One vector for each text from those of its windows."""
        # In float64: the order of the windows leaves no trace. By NumPy, since torch's threads would go on waiting on
        # the processors that those of an engine need next.
        vectors = np.array([some[0][0] for some in parts], np.float64).reshape(-1, self.width)
        counts = np.array([sum(count for _, count in some) for some in parts])
        for number, some in enumerate(parts):
            for vector, _ in some[1:]:
                (np.maximum if self.pooling == "max" else np.add)(vectors[number], vector, out=vectors[number])
        numbers = finished(vectors, None if self.pooling == "max" else counts, self.normalize)
        extra = len(self.framing.before) + len(self.framing.after)
        lengths = [some[-1].cut.end + extra for some in windows]
        return Embedded(self._checked(numbers), lengths, [len(some) for some in windows])

    def _checked(self, vectors: NDArray[np.float32]) -> Tensor:
        if not np.isfinite(vectors).all():
            raise NotFinite(self.model.folder)
        return torch.from_numpy(vectors)

    def hidden(self, ragged: Ragged) -> Tensor:
        """N width: the vector of every token, from the layers that were chosen."""
        states: list[Tensor] | None = [] if self.choice.numbers else None
        segments = None
        if self.framing.segments:
            segments = torch.zeros_like(ragged.tokens).index_fill(0, ragged.rows.lasts(), 2)
        batch = Batch(ragged.tokens, ragged.rows, segments)
        with evaluating(self.model.network):
            if states is None:
                return outputs(self.model, batch, hidden_states, None)
            batch = batch.to(self.model.device)  # a faster backend has the last layer alone
            halved_network(self.model)(batch.tokens, batch.rows, batch.segments, states)
        return in_full(self.choice.combined(states))


def hidden_states(network: Any, batch: Batch) -> Tensor:
    """N width: what the heads of a network read."""
    return network(batch.tokens, batch.rows, batch.segments)


class TokenEmbedder(Embedder):
    """A model made ready to give the vector of every token, or of every word, of texts of any length.

    A word is what stands between spaces or marks, or as the text is cut already where it is a list of words. Its vector
    is the mean of its tokens' (`pooling`: or the first, or the maximum); 0 where the vocabulary reads nothing of it.
    """

    def __init__(self, model: LoadedModel, per: str, *, pooling: str | None = None, **options: Any) -> None:
        self.per = one_of(per, PER[1:], "per")
        if per == "token" and pooling is not None:
            raise UserError("a token has one vector: pooling is for words and texts")
        super().__init__(model, pooling="mean", **{"normalize": False, **options})
        self.pooling = one_of(pooling or "mean", POOLINGS, "pooling")

    def texts(self, texts: Iterable[str | Sequence[str]]) -> Iterator[TokenVectors]:
        """The vectors of any number of texts, in order, a few texts at a time."""
        for some in by_budget(texts, lambda text: max(sum(map(len, text)), 256), CHARACTERS // 16):
            yield from self.tokens(some)

    @torch.inference_mode()
    def tokens(self, texts: Sequence[str | Sequence[str]]) -> list[TokenVectors]:
        """The vectors of a few texts."""
        read = [raw(text) if isinstance(text, str) else joined(text) for text in texts]
        encoded = self.tokenizer.encode_batch([example.texts[0] for example in read], specials=False)
        every = [tokens.ids for tokens in encoded]
        windows = [pieces(self.framing, ids) if ids else [] for ids in every]
        vectors = [torch.zeros(len(ids), self.width) for ids in every]
        flat = [(number, window) for number, some in enumerate(windows) for window in some]
        flat.sort(key=lambda item: len(item[1].tokens))
        for batch in by_budget(flat, lambda item: len(item[1].tokens), budget_on(self.model.device)):
            starts = [(number, window.cut.start) for number, window in batch]
            ragged = Ragged.of([window.tokens for _, window in batch], windows=starts)
            hidden = check_finite(self.model, self.hidden(ragged).float().cpu())
            parts = torch.split(hidden, ragged.rows.lengths().tolist())
            for (number, window), own in zip(batch, parts, strict=True):
                cut, lead = window.cut, window.lead - window.cut.start
                vectors[number][cut.first : cut.last] = own[lead + cut.first : lead + cut.last]
        extra, answers = len(self.framing.before) + len(self.framing.after), list[TokenVectors]()
        for example, tokens, some, matrix in zip(read, encoded, windows, vectors, strict=True):
            text, names = example.texts[0], tokens.tokens
            spans = [stripped(text, *span) if text[slice(*span)].strip() else span for span in tokens.offsets]
            if self.per == "word":
                matrix, spans = self._words(matrix, tokens.offsets, example.words), list(example.words)
                names = [text[start:end] for start, end in spans]
            matrix = torch.nn.functional.normalize(matrix) if self.normalize else matrix
            reading: Any = {"n_tokens": len(tokens) + extra, "n_windows": len(some)}
            answers.append(TokenVectors(tokens=tuple(names), spans=tuple(spans), vectors=matrix.numpy(), **reading))
        return answers

    def _words(self, vectors: Tensor, offsets: Sequence[tuple[int, int]], words: Sequence[tuple[int, int]]) -> Tensor:
        """words width: of each word that of all tokens which share a character with it."""
        result, first = torch.zeros(len(words), vectors.shape[1]), 0
        for number, (start, end) in enumerate(words):
            while first < len(offsets) and offsets[first][1] <= start:
                first += 1
            last = first
            while last < len(offsets) and offsets[last][0] < end:
                last += 1
            if own := [place for place in range(first, last) if offsets[place][1] > start]:
                whole = vectors[own]
                one = whole[0] if self.pooling == "first" else None
                result[number] = whole.amax(0) if self.pooling == "max" else whole.mean(0) if one is None else one
        return result


def embed(
    model: LoadedModel, texts: Sequence[str], *, per: str = "text", **options: Any
) -> list[Vector] | list[TokenVectors]:
    """One vector per text, or the vectors of its tokens or words; `options` are those of `Embedder`."""
    if one_of(per, PER, "per") != "text":
        return list(TokenEmbedder(model, per, **options).texts(texts))
    return [vector for some in Embedder(model, **options).chunks(texts) for vector in some.answers()]


class VectorTask(UnsupervisedTask):
    """A task that asks a network for nothing but vectors of texts."""

    embeds = gives_vectors = unbounded = True

    def logits_of(self, model: LoadedModel, inputs: Sequence[Any]) -> list[NDArray[Any]]:
        return [vector for some in Embedder(model).chunks(inputs) for vector in some.vectors.numpy()]

    numbers_of = logits_of


@dataclass(frozen=True)
class EmbedTask(VectorTask):
    """Vectors of texts, evaluated by how similar texts are: as similar as by the vectors of a teacher."""

    pooling: Pooling = "mean"
    normalize: bool = False
    directions: Directions | None = field(default=None, compare=False)  # of the teacher's vectors

    name = "embed"
    run = staticmethod(embed)
    independent = comparable = averages = True
    chance_metric = None
    overlap = 0.25
    prediction_columns = ("vector",)
    metric_names = ("spearman", "pearson", "neighbors")
    metrics = staticmethod(SimilarityMetrics)
    agreement = staticmethod(VectorAgreement)

    @classmethod
    def from_model(cls, model: LoadedModel, name: str) -> EmbedTask:
        return cls(model.card.pooling or "mean", bool(model.card.normalize))

    def objective(self) -> TextVectors:
        return TextVectors(self.pooling)

    def predict(self, model: LoadedModel, windows: Framing, inputs: Sequence[Any]) -> list[Prediction]:
        """The vector of each text, as `weft embed` makes it."""
        embedded = Embedder(model, pooling=self.pooling, normalize=self.normalize).vectors(inputs)
        return [Prediction(vector.numpy(), tokens, count, False) for vector, tokens, count in embedded]

    def to_card(self, card: Card) -> Card:
        return replace(card, pooling=self.pooling, normalize=self.normalize)

    def key(self, prediction: Prediction) -> Hashable:
        return tuple(np.round(prediction.output.astype(np.float64), 6).tolist())

    def compare(self, prediction: Prediction, reference: Prediction, example: Example, task: Any) -> Difference:
        one, two = prediction.output, reference.output
        return (one, two), 1 - cosine(one, two) if len(one) == len(two) else 0.0

    def describe(self, prediction: Prediction, other: Prediction, example: Example) -> str:
        one, two = prediction.output, other.output
        return f"cosine {cosine(one, two):.4f}" if len(one) == len(two) else "cosine -"

    def mean_prediction(self, predictions: Sequence[Prediction], tasks: Sequence[Task] = ()) -> Prediction:
        """Vectors side by side, each of length 1: their cosine is the mean of the cosines."""
        parts = [each.output.astype(np.float64) for each in predictions]
        units = [part / max(float(np.linalg.norm(part)), 1e-12) for part in parts]
        return replace(predictions[0], output=np.concatenate(units) / math.sqrt(len(units)))

    def add(self, metrics: Any, predictions: Sequence[Prediction], examples: Sequence[Example]) -> None:
        for prediction, example in zip(predictions, examples, strict=True):
            metrics.add(prediction.output, example.target)

    def learning_from(self, settings: Any, teachers: Sequence[LoadedModel]) -> EmbedTask:
        return self

    def with_teacher_answer(self, example: Example, outputs: TeacherArrays) -> Example:
        return replace(example, target=outputs["output"])

    def fit_teacher(self, examples: Sequence[Example], outputs: Sequence[TeacherArrays]) -> EmbedTask:
        return replace(self, directions=Directions.of(outputs))

    def dataset(
        self, examples: Sequence[Example], model: LoadedModel, windows: Framing, teacher_outputs: TeacherRows = None
    ) -> Examples:
        assert teacher_outputs is not None, "vectors are learned from a teacher alone"
        directions = self.directions or Directions.of(teacher_outputs)
        width = Embedder(model, pooling=self.pooling).width  # first, so that a wrong pooling is named at once
        tokenizer, builder, own = tokenizer_of(model), ExamplesBuilder(), list[NDArray[np.bool_]]()
        for first in range(0, len(examples), TOKENIZED):
            texts = [example.texts[0] for example in examples[first : first + TOKENIZED]]
            for ids in tokenizer.ids(texts, specials=False):
                parts = pieces(windows, ids)
                builder.add(parts)
                own += map(own_tokens, parts)
        vectors = directions.fitted(stacked(teacher_outputs, "output"), width)
        taught = (np.abs(vectors).max(1) > 0).astype(np.float32)
        whole = {
            "teacher_vectors": vectors,
            "direction_weight": taught / np.float32(directions.unit_variance),
            # Where vectors are normalized afterwards, only their direction matters.
            "distance_weight": taught * np.float32(0 if self.normalize else 1 / directions.variance),
        }
        theirs, kept = len(directions.shares), f"{directions.shares[:width].sum():.1%}"
        note = f"of the teacher's vectors of {theirs} numbers, {kept} fits into the student's {width}"
        by_token = {"own": np.concatenate(own).astype(np.float32)}
        notes = (note,) if width < theirs else ()
        return builder.examples(whole, by_token=by_token, segments=windows.marks(False), notes=notes)


# ------------------------------------------------------------------------------------------------------------- search

Rerank = Callable[[list[tuple[str, str]]], list[float]]


class Index:
    """Texts embedded once, to be asked many queries; a score is the cosine unless vectors stay as they are."""

    def __init__(
        self,
        model: LoadedModel,
        texts: Sequence[str],
        *,
        normalize: bool = True,
        on_progress: Callable[[int], None] = lambda more: None,
        **options: Any,
    ) -> None:
        """`options` are those of `Embedder`."""
        self.texts = list(texts)
        if not self.texts:
            raise UserError("there are no texts to search in")
        self.embedder = Embedder(model, normalize=normalize, **options)
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
        asked = {"top": top, "candidates": candidates}
        refuse(*((number < 1, f"{name} must be 1 or more, not {number}") for name, number in asked.items()))
        wanted = max(top, candidates if rerank else 0)
        answers = []
        for query, scores, tokens, windows in self.scored(queries):
            hits = self.hits(scores, wanted)
            if rerank is not None:
                hits = [*reranked(query, hits[:candidates], rerank), *hits[candidates:]]
            answers.append(Ranked(hits=tuple(hits[:top]), n_tokens=tokens, n_windows=windows))
        return answers

    def hits(self, scores: Tensor, count: int) -> list[Hit]:
        """The best texts by their vectors alone."""
        return best_hits(self.texts, scores, count)

    def scored(self, queries: Iterable[str]) -> Iterator[tuple[str, Tensor, int, int]]:
        """Each query with the scores of all texts, and its tokens and windows; in memory that stays bounded."""
        for some in by_budget(queries, lambda query: max(len(self.texts), SCORES // TOGETHER), SCORES):
            asked = iter(some)
            for embedded in self.embedder.chunks(some):
                scores = scores_of(embedded.vectors, self.vectors)
                for row, tokens, windows in zip(scores, embedded.n_tokens, embedded.n_windows, strict=True):
                    yield next(asked), row, tokens, windows


def scores_of(queries: Tensor, vectors: Tensor) -> Tensor:
    """queries texts: in float64, so that equal texts score the same, in a batch as alone."""
    blocks = (vectors[begin : begin + BLOCK].double() for begin in range(0, len(vectors), BLOCK))
    return torch.cat([(queries.double() @ block.T).float() for block in blocks], 1)


def best_hits(texts: Sequence[str], scores: Tensor, count: int) -> list[Hit]:
    """The texts with the highest scores, of equal ones the earlier."""
    count = min(count, len(scores))
    among = (scores >= scores.topk(count).values[-1]).nonzero()[:, 0]
    numbers = among[scores[among].argsort(descending=True, stable=True)][:count].tolist()
    pairs = zip(numbers, scores[numbers].tolist(), strict=True)
    return [Hit(text=texts[number], number=number, score=score, stage="embedding") for number, score in pairs]


def rank(model: LoadedModel, queries: str | Sequence[str], texts: Sequence[str], **options: Any) -> list[Ranked]:
    """The `top` texts for each query, best first, by the options of `Index.ask`; to ask again, keep an `Index`."""
    asking = {name: options.pop(name) for name in ("top", "rerank", "candidates") if name in options}
    return Index(model, texts, **options).ask([queries] if isinstance(queries, str) else queries, **asking)


def reranked(query: str, hits: Sequence[Hit], rerank: Rerank) -> list[Hit]:
    """The hits in the order of a second opinion; where that sees no difference, in the order they came."""
    scores = rerank([(query, hit.text) for hit in hits]) if hits else []
    assert len(scores) == len(hits), f"{len(scores)} scores for {len(hits)} pairs"
    again = [replace(hit, score=float(score), stage="pair") for hit, score in zip(hits, scores, strict=True)]
    return sorted(again, key=lambda hit: -hit.score)  # a stable order


def pair_scores(model: Any, positive: str | None = None) -> Rerank:
    """A model for pairs as a re-ranker: its value, or the probability of `positive` (default: the last label)."""

    def score(answer: Any) -> float:
        if isinstance(answer, Value):
            if positive is not None:
                raise UserError(f"the model for pairs gives values, not labels, so there is no label {positive!r}")
            return float(answer.value)
        probabilities: dict[str, float] = answer.scores
        return probabilities[list(probabilities)[-1] if positive is None else one_of(positive, probabilities, "label")]

    return lambda pairs: [score(answer) for answer in model(pairs)]


def places(
    index: Index, pairs: Sequence[tuple[str, int]], *, rerank: Rerank | None = None, candidates: int = 50
) -> Iterator[tuple[int, int]]:
    """At which place, from 1, the right text (its number) of a query comes: by vectors alone, and after re-ranking."""
    for (query, scores, _, _), (_, right) in zip(index.scored(query for query, _ in pairs), pairs, strict=True):
        place = after = 1 + int((scores > scores[right]).sum()) + int((scores[:right] == scores[right]).sum())
        if rerank is not None and place <= candidates:
            hits = reranked(query, index.hits(scores, candidates), rerank)
            after = 1 + [hit.number for hit in hits].index(right)
        yield place, after  # one that is no candidate keeps its place


class RankTask(VectorTask):
    """The texts nearest to a query."""

    name = "rank"
    run = staticmethod(rank)


def central(model: LoadedModel, texts: Sequence[str], *, top: int = 3, **options: Any) -> list[Central]:
    """The `top` most central sentences of each text, in text order: those most like all the others."""
    # Unlike LexRank (Erkan and Radev, 2004) it has no threshold and no damping, and it needs no table of all pairs.
    if top < 1:
        raise UserError(f"top must be 1 or more, not {top}")
    embedder, answers = Embedder(model, normalize=True, **options), list[Central]()
    for text in texts:
        spans = [span for place in sentence_spans(text) if (span := stripped(text, *place))[0] < span[1]]
        embedded = list(embedder.chunks(text[begin:end] for begin, end in spans))
        vectors = torch.cat([torch.zeros(0, embedder.width), *(some.vectors for some in embedded)]).double()
        others = vectors @ vectors.sum(0) - (vectors * vectors).sum(1)  # of each, the cosines with all the others
        scores = [1.0] if len(spans) == 1 else (others / (len(spans) - 1)).float().tolist()
        best = sorted(range(len(spans)), key=lambda number: -scores[number])[:top]  # of equal ones the earlier
        chosen = [(*spans[number], scores[number]) for number in sorted(best)]
        sentences = tuple(Choice(text=text[begin:end], start=begin, end=end, score=s) for begin, end, s in chosen)
        tokens, windows = (sum(sum(vars(some)[name]) for some in embedded) for name in ("n_tokens", "n_windows"))
        answers.append(Central(sentences=sentences, n_tokens=tokens, n_windows=windows))
    return answers


class CentralTask(VectorTask):
    """The most central sentences of a text."""

    name = "central"
    run = staticmethod(central)

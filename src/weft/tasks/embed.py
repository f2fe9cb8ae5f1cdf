"""Texts as vectors."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.budget import by_budget
from weft.checkpoint.card import POOLINGS, Card, Window
from weft.checkpoint.folder import LoadedModel
from weft.data.examples import Examples, ExamplesBuilder
from weft.errors import UserError, did_you_mean, one_of, shown
from weft.metrics.vectors import SimilarityMetrics, VectorAgreement, cosine
from weft.nn.rows import Ragged, Rows
from weft.objectives.losses import TextVectors
from weft.tasks.answers import Vector
from weft.tasks.base import Example, Prediction, Task, TeacherArrays, TeacherRows, UnsupervisedTask, stacked
from weft.tasks.forward import check_finite, evaluating, tokenizer_of
from weft.text.windows import Framing, TextWindow, frame, pieces

Pooling = Literal["mean", "first", "max"]
TEXTS = 256  # texts that go through together, fewer where they are long
CHARACTERS = 1 << 20  # of them together
TOKENIZED = 1024  # texts that are tokenized at a time


def embed(
    opened: LoadedModel,
    texts: Sequence[str],
    *,
    pooling: str | None = None,
    normalize: bool | None = None,
    layers: str | int = "last",
) -> list[Vector]:
    """One vector per text: mean or maximum of its tokens, or its first; long texts go in windows, none is cut.

    `layers` says of which layers the tokens are taken: "last" (the learned mix, where the model has one), a number
    (0: the embeddings; negative: from the end), "last4-sum", "last4-mean", "last4-concat" for any number, "all-mean".
    """
    embedder = Embedder(opened, pooling=pooling, normalize=normalize, layers=layers)
    return [vector for some in embedder.chunks(texts) for vector in some.answers()]


@dataclass(frozen=True)
class Embedded:
    """The vectors of a few texts, and how much of each was read."""

    vectors: Tensor  # B width float32, on the CPU
    n_tokens: list[int]
    n_windows: list[int]

    def answers(self) -> list[Vector]:
        return [
            Vector(values=tuple(values), n_tokens=tokens, n_windows=windows)
            for values, tokens, windows in zip(self.vectors.tolist(), self.n_tokens, self.n_windows, strict=True)
        ]


@dataclass(frozen=True)
class Layers:
    """Which hidden states make the vector of a token, and how they are put together."""

    numbers: tuple[int, ...] | None  # 0: the embeddings; None: what the network itself gives out
    together: str = "sum"  # or mean, or concat

    @staticmethod
    def of(word: str, layers: int) -> Layers:
        """What a word such as "last4-sum" means in a network of so many layers."""
        if word == "last":
            return Layers(None)
        if re.fullmatch(r"-?[0-9]{1,4}", word) and -layers - 1 <= int(word) <= layers:
            return Layers((int(word) % (layers + 1),))
        match = re.fullmatch(r"(?:all|last([0-9]{1,4}))-(sum|mean|concat)", word)
        count = layers + 1 if match is None or match[1] is None else int(match[1])
        if match is None or not 1 <= count <= layers + 1:
            raise UserError(
                f"layers {shown(word)!r} is neither last, nor a number from {-layers - 1} to {layers}, nor lastK-sum, "
                f"lastK-mean, lastK-concat with K from 1 to {layers + 1}, nor all-sum, all-mean, all-concat"
                f"{did_you_mean(word, ['last', 'all-sum', 'all-mean', 'all-concat'])}"
            )
        return Layers(tuple(range(layers + 1 - count, layers + 1)), match[2])

    def parts(self, hidden: Tensor, states: list[Tensor]) -> list[Tensor]:
        """What is pooled: one state for each token, or, to stand side by side, several; N width each."""
        if self.numbers is None:
            return [hidden]
        chosen = [states[number] for number in self.numbers]
        if self.together == "concat":
            return chosen
        total = chosen[0]
        for state in chosen[1:]:
            total = total + state
        return [total / len(chosen) if self.together == "mean" else total]


class Embedder:
    """A model made ready to turn texts into vectors, a few at a time."""

    def __init__(
        self,
        opened: LoadedModel,
        *,
        pooling: str | None = None,
        normalize: bool | None = None,
        layers: str | int = "last",
    ) -> None:
        if opened.tokenizer is None:
            raise UserError("this model folder has no tokenizer, so it reads no text")
        if opened.family.reads:
            raise UserError(f"{opened.family.name} reads one text to write another, and makes no vectors of texts")
        self.opened, card, context = opened, opened.card, opened.config.context
        self.network, self.tokenizer, self.device = opened.network, opened.tokenizer, opened.device
        self.pooling = one_of(pooling or card.pooling or "mean", POOLINGS, "pooling")
        if self.pooling == "first" and opened.family.speaks:
            raise UserError(f"the first token of a {opened.family.name} has seen nothing of the text; use mean pooling")
        self.normalize = bool(card.normalize) if normalize is None else normalize
        self.layers = Layers.of(str(layers), opened.config.layers)
        side_by_side = len(self.layers.numbers or ()) if self.layers.together == "concat" else 1
        width: int = opened.network.features  # of what the last layer says
        self.width = width * side_by_side
        self.before, self.after = frame(opened.tokenizer)
        window = card.window or Window(length=context, stride=max(1, 3 * context // 4))
        before, after, length = tuple(self.before), tuple(self.after), min(window.length, context)
        self.framing = Framing(before, after, None, False, length, window.stride)

    def chunks(self, texts: Iterable[str]) -> Iterator[Embedded]:
        """The vectors of any number of texts, in order, in memory that does not grow with their number."""
        done = 0
        for some in by_budget(texts, lambda text: max(len(text), CHARACTERS // TEXTS), CHARACTERS):
            yield self.vectors(some, done)
            done += len(some)

    @torch.inference_mode()
    def vectors(self, texts: Sequence[str], done: int = 0) -> Embedded:
        """The vectors of a few texts, of which `done` have gone before."""
        ids = self.tokenizer.ids(list(texts), specials=False)
        extra = len(self.before) + len(self.after)
        for number, tokens in enumerate(ids, done + 1):
            if not tokens and not extra:
                raise UserError(f"text {number} is empty, and this model puts no tokens around a text")
        windows = [pieces(self.framing, tokens) for tokens in ids]
        with evaluating(self.network):
            vectors = self._pooled(windows)
        if self.normalize:
            vectors = torch.nn.functional.normalize(vectors)
        vectors = check_finite(self.opened, vectors.float())
        return Embedded(vectors, [len(tokens) + extra for tokens in ids], [len(some) for some in windows])

    def _pooled(self, windows: list[list[TextWindow]]) -> Tensor:
        """One vector for each text from those of its windows, in float64: the order of the windows leaves no trace."""
        start = -torch.inf if self.pooling == "max" else 0.0
        vectors = torch.full((len(windows), self.width), start, dtype=torch.float64)
        counts = torch.zeros(len(windows), dtype=torch.float64)
        flat = [(number, window) for number, some in enumerate(windows) for window in some]
        flat.sort(key=lambda item: len(item[1].tokens))  # of one length: attention then has nothing to fill up
        for batch in by_budget(flat, lambda item: len(item[1].tokens)):
            ragged = Ragged.of([window.tokens for _, window in batch], self.device)
            own = [self._own(window) for _, window in batch]
            states: list[Tensor] | None = None if self.layers.numbers is None else []
            hidden = self.network(ragged.tokens, ragged.rows, states=states)
            mask = torch.cat(own).to(self.device)
            parts = [self._pool(part, ragged.rows, mask) for part in self.layers.parts(hidden, states or [])]
            pooled = torch.cat([part.double().cpu() for part in parts], 1)
            numbers = torch.tensor([number for number, _ in batch])
            if self.pooling == "max":
                vectors.scatter_reduce_(0, numbers[:, None].expand_as(pooled), pooled, "amax")
                continue
            vectors.index_add_(0, numbers, pooled)
            sizes = [1 if self.pooling == "first" else int(tokens.sum()) for tokens in own]
            counts.index_add_(0, numbers, torch.tensor(sizes, dtype=torch.float64))
        return vectors if self.pooling == "max" else vectors / counts[:, None]

    def _own(self, window: TextWindow) -> Tensor:
        """Which tokens of a window count: its own and its frame, not those that another window answers for."""
        own = torch.zeros(len(window.tokens), dtype=torch.bool)
        own[: len(self.before)] = True
        own[len(window.tokens) - len(self.after) :] = True
        own[window.lead + window.cut.first - window.cut.start : window.lead + window.cut.last - window.cut.start] = True
        return own

    def _pool(self, hidden: Tensor, rows: Rows, own: Tensor) -> Tensor:
        """N width -> B width: of each window the first token, the largest, or the sum."""
        if self.pooling == "first":
            return hidden[rows.firsts()]
        numbers = rows.numbers(len(hidden))
        if self.pooling == "max":
            lowest = hidden.new_full((rows.count, hidden.shape[1]), -torch.inf)
            hidden = hidden.masked_fill(~own[:, None], -torch.inf)
            return lowest.scatter_reduce_(0, numbers[:, None].expand_as(hidden), hidden, "amax")
        total = torch.zeros(rows.count, hidden.shape[1], dtype=torch.float64, device=hidden.device)
        return total.index_add_(0, numbers, hidden.double() * own[:, None])


class VectorTask(UnsupervisedTask):
    """A task that asks a network for nothing but vectors of texts."""

    embeds = True
    unbounded = True

    def logits_of(self, model: LoadedModel, inputs: Sequence[Any]) -> list[NDArray[Any]]:
        return [vector for some in Embedder(model).chunks(inputs) for vector in some.vectors.numpy()]

    def numbers_of(self, model: LoadedModel, inputs: Sequence[Any]) -> list[NDArray[Any]]:
        return self.logits_of(model, inputs)


@dataclass(frozen=True)
class EmbedTask(VectorTask):
    """Vectors of texts, judged by how similar texts are: as similar as by the vectors of a teacher."""

    pooling: Pooling = "mean"
    normalize: bool = False
    directions: Directions | None = field(default=None, compare=False)  # of the teacher's vectors

    name = "embed"
    independent = True
    overlap = 0.25
    prediction_columns = ("vector",)
    default_metric = "spearman"
    metric_names = ("spearman", "pearson", "neighbors")

    @classmethod
    def from_model(cls, model: LoadedModel, name: str) -> EmbedTask:
        return cls(model.card.pooling or "mean", bool(model.card.normalize))

    def objective(self) -> TextVectors:
        return TextVectors(self.pooling)

    def predict(self, model: LoadedModel, windows: Framing, inputs: Sequence[Any]) -> list[Prediction]:
        """The vector of each text, as `weft embed` makes it."""
        embedded = Embedder(model, pooling=self.pooling, normalize=self.normalize).vectors(inputs)
        read = zip(embedded.vectors.numpy(), embedded.n_tokens, embedded.n_windows, strict=True)
        return [Prediction(vector, tokens, count, False) for vector, tokens, count in read]

    def answers(self, model: LoadedModel, inputs: Sequence[Any], **options: Any) -> list[Any]:
        return embed(model, inputs, **options)

    def to_card(self, card: Card) -> Card:
        return replace(card, pooling=self.pooling, normalize=self.normalize)

    comparable = True
    averages = True
    chance_metric = None

    def key(self, prediction: Prediction) -> Hashable:
        return tuple(np.round(prediction.output.astype(np.float64), 6).tolist())

    def agreement(self) -> VectorAgreement:
        return VectorAgreement()

    def agree(self, counts: Any, prediction: Prediction, reference: Prediction, example: Example, task: Task) -> None:
        counts.add(prediction.output, reference.output)

    def distance(self, prediction: Prediction, reference: Prediction, example: Example, task: Task) -> float:
        one, two = prediction.output, reference.output
        return 1 - cosine(one, two) if len(one) == len(two) else 0.0

    def describe(self, prediction: Prediction, other: Prediction, example: Example) -> str:
        one, two = prediction.output, other.output
        return f"cosine {cosine(one, two):.4f}" if len(one) == len(two) else "cosine -"

    def mean_prediction(self, predictions: Sequence[Prediction], tasks: Sequence[Task] = ()) -> Prediction:
        """Vectors side by side, each of length 1: their cosine is the mean of the cosines."""
        parts = [each.output.astype(np.float64) for each in predictions]
        units = [part / max(float(np.linalg.norm(part)), 1e-12) for part in parts]
        return replace(predictions[0], output=np.concatenate(units) / math.sqrt(len(units)))

    def metrics(self) -> SimilarityMetrics:
        return SimilarityMetrics()

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
        tokenizer, builder = tokenizer_of(model), ExamplesBuilder()
        around, own = len(windows.before), list[NDArray[np.float32]]()
        for first in range(0, len(examples), TOKENIZED):
            texts = [example.texts[0] for example in examples[first : first + TOKENIZED]]
            for ids in tokenizer.ids(texts, specials=False):
                parts = pieces(windows, ids)
                builder.add(parts)
                for piece in parts:
                    counts = np.ones(len(piece.tokens), dtype=np.float32)  # 0 for tokens that another window counts
                    c = piece.cut
                    counts[around : around + c.first - c.start] = 0
                    counts[around + c.last - c.start : around + c.end - c.start] = 0
                    own.append(counts)
        vectors = directions.fitted(stacked(teacher_outputs, "output"), width)
        taught = (np.abs(vectors).max(1) > 0).astype(np.float32)
        whole = {
            "teacher_vectors": vectors,
            "direction_weight": taught / np.float32(directions.unit_variance),
            # Where vectors are normalized afterwards, only their direction matters.
            "distance_weight": taught * np.float32(0 if self.normalize else 1 / directions.variance),
        }
        notes: tuple[str, ...] = ()
        if width < (theirs := len(directions.shares)):
            kept = f"{directions.shares[:width].sum():.1%}"
            notes = (f"of the teacher's vectors of {theirs} numbers, {kept} fits into the student's {width}",)
        return builder.examples(whole, by_token={"own": np.concatenate(own)}, notes=notes)


@dataclass(frozen=True)
class Directions:
    """The principal directions of the teacher's vectors of all texts, and how much lies in each.

    A student with shorter vectors learns the teacher's rotated and truncated so that as much as possible of all
    products between texts is left (Eckart and Young, 1936).
    """

    basis: NDArray[np.float64]  # width width: a direction in each column, those first in which most lies
    shares: NDArray[np.float64]  # width: of the squared length
    variance: float  # the mean squared distance from their mean ...
    unit_variance: float  # ... and that of the same vectors, normalized

    @staticmethod
    def of(outputs: Sequence[TeacherArrays]) -> Directions:
        products = total = units = np.zeros(())
        count = 0  # of those that are not zero
        for first in range(0, len(outputs), TOKENIZED):
            vectors = stacked(outputs[first : first + TOKENIZED], "output").astype(np.float64)
            lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
            products, total = products + vectors.T @ vectors, total + vectors.sum(0)
            units = units + (vectors / np.maximum(lengths, 1e-12)).sum(0)
            count += int((lengths > 0).sum())
        if not count:
            raise UserError("the teacher's vectors of all texts are zero: there is nothing to learn")
        values, basis = np.linalg.eigh(products)
        values, basis = values[::-1].clip(0), basis[:, ::-1]
        # Either sign is right; the same one is taken every time.
        signs = np.sign(basis[np.abs(basis).argmax(0), np.arange(basis.shape[1])])
        length, mean, unit = float(values.sum()) / count, total / count, units / count
        # Vectors that are all the same teach little, but must not divide by zero.
        variance, unit_variance = max(length - float(mean @ mean), 1e-6 * length), max(1 - float(unit @ unit), 1e-6)
        return Directions(basis * signs, values / values.sum(), variance, unit_variance)

    def fitted(self, vectors: NDArray[Any], width: int) -> NDArray[np.float32]:
        """n teacher's width -> n width: rotated and truncated, or as they are with zeros after them."""
        if vectors.shape[1] > width:
            return (vectors @ self.basis[:, :width]).astype(np.float32)
        return np.pad(vectors, ((0, 0), (0, width - vectors.shape[1]))).astype(np.float32)

"""How likely a text is by a model of words: the next word at every place, or the words that were hidden from it."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.budget import BUDGET, by_budget
from weft.checkpoint.folder import LoadedModel
from weft.data.chance import key_of, uniform
from weft.data.columns import text_in
from weft.metrics.agreement import Ratios
from weft.nn.heads import in_full
from weft.nn.rows import Ragged
from weft.tasks.base import Example, Prediction, Task, UnsupervisedTask
from weft.tasks.forward import framing_for, pieces_in, tokenizer_of
from weft.tasks.perplexity import LONG, slid
from weft.tasks.scoring import SCORES, Reading, beginning, surprises
from weft.text.records import Record
from weft.text.windows import Framing, TextWindow

HIDDEN = 0.15  # of the tokens of a text
NONE = np.zeros(0, dtype=np.int64)


class Likelihood(NamedTuple):
    """What a model expects of one text, or of one window over it."""

    nats: float  # of the tokens that it was asked about
    tokens: NDArray[np.int64]  # those tokens
    best: NDArray[np.int64]  # the likeliest at each place; empty where a model scores single tokens only
    bytes: int = 0

    @property
    def hits(self) -> float:
        """At how many places the likeliest token is the one that stands there."""
        return float((self.best == self.tokens).sum())


class LikelihoodTask(UnsupervisedTask):
    """A task of a word head, whose models are compared by how likely texts are: a text is its own target."""

    head = "words"
    comparable = True

    @abstractmethod
    def window_likelihoods(self, model: LoadedModel, texts: Sequence[str]) -> Iterable[tuple[int, Likelihood]]:
        """What each window over the texts expects, with the number of its text; those of one text in order."""

    def inputs(self, example: Example) -> str:
        return example.texts[0]

    def columns(self, record: Record, given: Mapping[str, str]) -> tuple[Task, tuple[str, ...]]:
        return self, ("text",)

    def read(self, record: Record, columns: Mapping[str, str]) -> Example:
        return self.read_input(record, columns)

    def read_input(self, record: Record, columns: Mapping[str, str]) -> Example:
        return Example((text_in(record, columns["text"]),), None, record.where)

    def has_target(self, example: Example) -> bool:
        return True

    def predict(self, model: LoadedModel, windows: Framing, inputs: Sequence[str]) -> list[Prediction]:
        parts: list[list[Likelihood]] = [[] for _ in inputs]
        for number, likelihood in self.window_likelihoods(model, inputs):
            parts[number].append(likelihood)
        predictions = []
        for text, some in zip(inputs, parts, strict=True):
            tokens = np.concatenate([NONE, *(window.tokens for window in some)])
            best = np.concatenate([NONE, *(window.best for window in some)])
            size = len(text.encode("utf-8", "surrogatepass"))
            whole = Likelihood(sum(window.nats for window in some), tokens, best, size)
            predictions.append(Prediction(whole, len(tokens), max(1, len(some)), False))
        return predictions

    # ------------------------------------------------------------------------------------------------------ comparing

    def is_finite(self, prediction: Prediction) -> bool:
        return not math.isnan(prediction.output.nats)  # a model that rules out a token expects it infinitely little

    def key(self, prediction: Prediction) -> Hashable:
        return prediction.output.nats

    def distance(self, prediction: Prediction, reference: Prediction, example: Example, task: Task) -> float:
        return abs(prediction.output.nats - reference.output.nats) / max(1, prediction.output.bytes)

    def describe_target(self, example: Example) -> str:
        return ""

    def agree(self, counts: Any, prediction: Prediction, reference: Prediction, example: Example, task: Task) -> None:
        one, two = prediction.output, reference.output
        alike = len(one.best) == len(two.best) == len(one.tokens) and np.array_equal(one.tokens, two.tokens)
        if not alike or not len(one.best):  # models of another vocabulary
            counts.add({})
        else:
            counts.add({"same": (float((one.best == two.best).sum()), float(len(one.best)))})

    @property
    def chance_metric(self) -> str | None:
        return None

    def metrics(self) -> Ratios:
        return Ratios(self.metric_names, shares=False)

    def logits_of(self, model: LoadedModel, inputs: Sequence[Any]) -> list[NDArray[Any]]:
        return [np.zeros(0) for _ in inputs]  # what it generates is compared instead


class NextWordTask(LikelihoodTask):
    """A language model, by a window that slides over each text."""

    metric_names = ("bits_per_byte", "foreseen")
    default_metric = "bits_per_byte"
    chance_metric = "bits_per_byte"

    def window_likelihoods(self, model: LoadedModel, texts: Sequence[str]) -> Iterator[tuple[int, Likelihood]]:
        tokenizer = tokenizer_of(model)
        begin, length, reach = beginning(tokenizer), min(model.config.context, LONG), model.config.reach
        stride = max(1, length // 2 if reach is None else length - reach)
        readings: list[Reading] = []
        for number, ids in enumerate(tokenizer.ids(list(texts), specials=False)):
            readings += slid([ids], begin, length, stride, number)
        for batch in by_budget(readings, lambda reading: len(reading.tokens), BUDGET):
            parts = zip(batch, surprises(model, batch), _likeliest(model, batch), strict=True)
            for reading, nats, best in parts:
                yield reading.document, Likelihood(float(nats.sum()), np.array(reading.targets, dtype=np.int64), best)

    def describe(self, prediction: Prediction, other: Prediction, example: Example) -> str:
        return f"{prediction.output.nats / math.log(2) / max(1, prediction.output.bytes):.3f} bits per byte"

    def chance_level(self, counts: Any, rows: int) -> float:
        return 8.0  # bits of a byte, for a model that knows nothing

    def add(self, metrics: Any, predictions: Sequence[Prediction], examples: Sequence[Example]) -> None:
        for text in (prediction.output for prediction in predictions):
            parts = {"bits_per_byte": (text.nats / math.log(2), float(text.bytes))}
            if len(text.best) == len(text.tokens):
                parts["foreseen"] = (text.hits, float(len(text.tokens)))
            metrics.add(parts)


class HiddenWordTask(LikelihoodTask):
    """A model that fills gaps: the same tokens of every text are hidden from all models."""

    metric_names = ("filled", "bits_per_gap")
    default_metric = "filled"

    @abstractmethod
    def mask(self, model: LoadedModel) -> int:
        """The token that stands for a gap."""

    def window_likelihoods(self, model: LoadedModel, texts: Sequence[str]) -> Iterator[tuple[int, Likelihood]]:
        mask, rows = self.mask(model), list[HiddenRow]()
        encoded = pieces_in(framing_for(model), tokenizer_of(model), [(text,) for text in texts])
        for number, (windows, lengths) in enumerate(encoded):
            hidden = set(hidden_of(texts[number], lengths[0]).tolist())
            rows += [_with_gaps(number, piece, hidden, mask) for piece in windows]
        yield from ((row.text, Likelihood(0.0, NONE, NONE)) for row in rows if not row.places)
        for batch in by_budget((row for row in rows if row.places), lambda row: len(row.tokens), BUDGET):
            yield from zip((row.text for row in batch), _hidden_likelihoods(model, batch), strict=True)

    def describe(self, prediction: Prediction, other: Prediction, example: Example) -> str:
        return f"{prediction.output.hits:.0f} of {len(prediction.output.tokens)} right"

    def add(self, metrics: Any, predictions: Sequence[Prediction], examples: Sequence[Example]) -> None:
        for text in (prediction.output for prediction in predictions):
            gaps = float(len(text.tokens))
            metrics.add({"filled": (text.hits, gaps), "bits_per_gap": (text.nats / math.log(2), gaps)})


class HiddenRow(NamedTuple):
    """A window with its gaps: its text and tokens, the places of its gaps, and the tokens that stood there."""

    text: int
    tokens: list[int]
    places: list[int]
    targets: list[int]


def hidden_of(text: str, count: int) -> NDArray[np.int64]:
    """Which of the tokens of a text are hidden: the text alone decides, and at least one."""
    chance = uniform(key_of("gaps", text), np.arange(count))
    return np.flatnonzero(chance <= max(HIDDEN, float(chance.min(initial=1.0))))


def _with_gaps(text: int, piece: TextWindow, hidden: set[int], mask: int) -> HiddenRow:
    row = HiddenRow(text, list(piece.tokens), [], [])
    for token in range(piece.cut.start, piece.cut.end):
        if token in hidden:  # also those that another window is asked about: no window may see them
            place = piece.lead + token - piece.cut.start
            if piece.cut.first <= token < piece.cut.last:
                row.places.append(place)
                row.targets.append(row.tokens[place])
            row.tokens[place] = mask
    return row


def _likeliest(model: LoadedModel, readings: Sequence[Reading]) -> list[NDArray[np.int64]]:
    """The likeliest token at each place; nothing of a model that scores single tokens only."""
    if model.network.SCORES_TARGETS or model.network.SCORES_TEXTS:
        return [NONE] * len(readings)
    ragged = Ragged.of([reading.tokens for reading in readings], model.device)
    lasts = (ragged.rows.lasts() + 1).tolist()
    places = [place for end, r in zip(lasts, readings, strict=True) for place in range(end - len(r.targets), end)]
    best = [logits.argmax(-1).cpu() for _, logits in _word_logits(model, ragged, places)]
    whole = torch.cat([torch.zeros(0, dtype=torch.int64), *best])
    return [part.numpy() for part in torch.split(whole, [len(reading.targets) for reading in readings])]


def _hidden_likelihoods(model: LoadedModel, batch: Sequence[HiddenRow]) -> list[Likelihood]:
    """What each window expects in its gaps."""
    ragged = Ragged.of([row.tokens for row in batch], model.device)
    starts = ragged.rows.firsts().tolist()
    places = [start + place for start, row in zip(starts, batch, strict=True) for place in row.places]
    targets = torch.tensor([target for row in batch for target in row.targets], dtype=torch.int64)
    nats, best = [torch.zeros(0, dtype=torch.float64)], [torch.zeros(0, dtype=torch.int64)]
    for some, logits in _word_logits(model, ragged, places):
        wanted = logits.gather(1, targets[some].to(logits.device)[:, None]).squeeze(1)
        nats.append((logits.logsumexp(-1) - wanted).double().cpu())
        best.append(logits.argmax(-1).cpu())
    sizes = [len(row.places) for row in batch]
    parts = zip(torch.split(torch.cat(nats), sizes), torch.split(torch.cat(best), sizes), batch, strict=True)
    return [Likelihood(float(n.sum()), np.array(row.targets, dtype=np.int64), b.numpy()) for n, b, row in parts]


@torch.inference_mode()
def _word_logits(model: LoadedModel, ragged: Ragged, places: Sequence[int]) -> Iterator[tuple[slice, Tensor]]:
    """The logits of all words at some places, a bounded number of them at a time."""
    hidden = model.network(ragged.tokens, ragged.rows)
    size = max(1, SCORES // model.heads["words"])
    for part in (slice(first, first + size) for first in range(0, len(places), size)):
        yield part, in_full(model.network.words(hidden[torch.tensor(places[part], device=model.device)]))

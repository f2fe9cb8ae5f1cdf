"""Answers without rows to be right about: vectors of texts, and what language models foresee in them."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from weft.budget import BUDGET, by_budget
from weft.checkpoint.folder import LoadedModel
from weft.comparison.kinds import Kind, Ratios
from weft.metrics.bootstrap import Metrics, Replicates
from weft.metrics.regression import RegressionMetrics
from weft.nn.heads import in_full
from weft.nn.rows import Ragged
from weft.tasks.base import Example, Prediction
from weft.tasks.embed import Embedder
from weft.tasks.perplexity import LONG, slid
from weft.tasks.scoring import SCORES, Reading, beginning, surprises, tokenizer_of

BITS = 8.0  # of a byte, for who knows nothing


class Likeness(Metrics):
    """How alike the vectors of two models are: their cosine where they are equally wide, and their similarities."""

    def __init__(self) -> None:
        self.cosines = Ratios(["cosine"], shares=False)
        self.similarities = RegressionMetrics()
        self.before: tuple[NDArray[Any], NDArray[Any]] | None = None

    def add(self, mine: NDArray[Any], first: NDArray[Any]) -> None:
        """Take in the vectors of the next text; how near it is to the one before is told by both models."""
        self.cosines.add({"cosine": (cosine(mine, first), 1.0)} if len(mine) == len(first) else {})
        if self.before is not None:
            self.similarities.add([cosine(mine, self.before[0])], [cosine(first, self.before[1])])
        self.before = (mine, first)

    def sampled(self) -> dict[str, Replicates]:
        found = self.cosines.sampled()
        if len(self.similarities.gold) > 1:
            found["similarities"] = self.similarities.sampled()["pearson"]
        return found


def cosine(a: NDArray[Any], b: NDArray[Any]) -> float:
    """The cosine of two vectors; 0 where one is nothing."""
    size = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / size if size else 0.0


class OfVectors(Kind):
    """A vector for each text."""

    def __init__(self) -> None:
        super().__init__(None)

    def outcomes(self, opened: LoadedModel, examples: Sequence[Example]) -> list[Prediction]:
        embedder = Embedder(opened)
        found: list[Prediction] = []
        for some in embedder.chunks([example.texts[0] for example in examples]):
            for vector, tokens, windows in zip(some.vectors, some.n_tokens, some.n_windows, strict=True):
                found.append(Prediction(vector.double().numpy(), tokens, windows, False))
        return found

    def finite(self, found: Prediction) -> bool:
        return bool(np.isfinite(found.output).all())

    def key(self, found: Prediction) -> Hashable:
        return tuple(np.round(found.output, 6).tolist())

    def agreement(self) -> Any:
        return Likeness()

    def agree(self, counts: Any, mine: Prediction, first: Prediction, example: Example) -> None:
        counts.add(mine.output, first.output)

    def apart(self, mine: Prediction, first: Prediction, example: Example) -> float:
        return 1 - cosine(mine.output, first.output) if len(mine.output) == len(first.output) else 0.0

    def told(self, found: Prediction, other: Prediction, example: Example) -> str:
        near = f"{cosine(found.output, other.output):.4f}" if len(found.output) == len(other.output) else "-"
        return f"cosine {near}"

    def right(self, example: Example) -> str:
        return ""

    def known(self, example: Example) -> bool:
        return False

    @property
    def chosen(self) -> str:
        return ""

    @property
    def beyond_chance(self) -> str | None:
        return None


class Foreseen(NamedTuple):
    """What a language model made of one text."""

    nats: float
    bytes: int
    best: NDArray[np.int64]  # the token that it thought likeliest, at each place; empty where it does not say
    tokens: NDArray[np.int64]  # those that came


class OfWords(Kind):
    """What a language model foresees of each text, by a window that slides over it."""

    def __init__(self) -> None:
        super().__init__(None)

    def outcomes(self, opened: LoadedModel, examples: Sequence[Example]) -> list[Prediction]:
        tokenizer = tokenizer_of(opened)
        begin, length = beginning(tokenizer), min(opened.config.context, LONG)
        reach = opened.config.reach
        stride = max(1, length - reach) if reach is not None else max(1, length // 2)
        texts = [example.texts[0] for example in examples]
        readings: list[Reading] = []
        for number, ids in enumerate(tokenizer.ids(texts, specials=False)):
            readings += slid([ids], begin, length, stride, number)
        nats, windows = [0.0] * len(texts), [0] * len(texts)
        best: list[list[NDArray[Any]]] = [[] for _ in texts]
        came: list[list[int]] = [[] for _ in texts]
        for batch in by_budget(readings, lambda reading: len(reading.tokens), BUDGET):
            said = surprises(opened, batch)
            likeliest = _likeliest(opened, batch)
            for reading, some, top in zip(batch, said, likeliest, strict=True):
                nats[reading.document] += float(some.sum())
                windows[reading.document] += 1
                best[reading.document].append(top)
                came[reading.document] += reading.targets
        found = []
        for number, text in enumerate(texts):
            tops = np.concatenate(best[number]) if best[number] else np.zeros(0, dtype=np.int64)
            size = len(text.encode("utf-8", "surrogatepass"))
            said_of = Foreseen(nats[number], size, tops, np.array(came[number], dtype=np.int64))
            found.append(Prediction(said_of, len(came[number]), max(1, windows[number]), False))
        return found

    def finite(self, found: Prediction) -> bool:
        return not math.isnan(found.output.nats)  # endless is what a model says that rules out what came

    def key(self, found: Prediction) -> Hashable:
        return found.output.nats

    def metrics(self) -> Any:
        return Ratios(["bits_per_byte", "foreseen"], shares=False)

    def add(self, metrics: Any, found: Sequence[Prediction], examples: Sequence[Example]) -> None:
        for each in found:
            said: Foreseen = each.output
            parts = {"bits_per_byte": (said.nats / math.log(2), float(said.bytes))}
            if len(said.best) == len(said.tokens):
                parts["foreseen"] = (float((said.best == said.tokens).sum()), float(len(said.tokens)))
            metrics.add(parts)

    def agree(self, counts: Any, mine: Prediction, first: Prediction, example: Example) -> None:
        a, b = mine.output, first.output
        alike = len(a.best) == len(b.best) == len(a.tokens) and np.array_equal(a.tokens, b.tokens)  # one vocabulary
        counts.add({"same": (float((a.best == b.best).sum()), float(len(a.best)))} if alike and len(a.best) else {})

    def apart(self, mine: Prediction, first: Prediction, example: Example) -> float:
        return abs(mine.output.nats - first.output.nats) / max(1, mine.output.bytes)

    def told(self, found: Prediction, other: Prediction, example: Example) -> str:
        return f"{found.output.nats / math.log(2) / max(1, found.output.bytes):.3f} bits per byte"

    def right(self, example: Example) -> str:
        return ""

    def known(self, example: Example) -> bool:
        return True  # a text says itself what comes next

    @property
    def chosen(self) -> str:
        return "bits_per_byte"

    @property
    def beyond_chance(self) -> str | None:
        return None


@torch.inference_mode()
def _likeliest(opened: LoadedModel, readings: Sequence[Reading]) -> list[NDArray[np.int64]]:
    """The token that the model thinks likeliest at each place; nothing of one that knows single chances only."""
    if opened.network.SCORES_TARGETS or opened.network.SCORES_TEXTS:
        return [np.zeros(0, dtype=np.int64)] * len(readings)
    device = opened.device
    ragged = Ragged.of([reading.tokens for reading in readings], device)
    hidden = opened.network(ragged.tokens, ragged.rows)
    lasts = (ragged.rows.lasts() + 1).tolist()
    places = [place for end, r in zip(lasts, readings, strict=True) for place in range(end - len(r.targets), end)]
    most, found = max(1, SCORES // opened.heads["words"]), []
    for first in range(0, len(places), most):
        some = torch.tensor(places[first : first + most], device=device)
        found.append(in_full(opened.network.words(hidden[some])).argmax(-1).cpu())
    whole = torch.cat(found) if found else torch.zeros(0, dtype=torch.int64)
    return [part.numpy() for part in torch.split(whole, [len(reading.targets) for reading in readings])]

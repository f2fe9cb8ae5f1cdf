"""What models that fill gaps say of tokens that were hidden from them, the same of every text for all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from weft.budget import BUDGET, by_budget
from weft.checkpoint.folder import LoadedModel
from weft.comparison.kinds import Ratios
from weft.comparison.unlabeled import Foreseen, OfWords
from weft.data.chance import key_of, uniform
from weft.nn.heads import in_full
from weft.nn.rows import Ragged
from weft.tasks.base import Example, Prediction
from weft.tasks.classify import pieces_in
from weft.tasks.fill import filler
from weft.tasks.forward import framing_for
from weft.tasks.scoring import SCORES
from weft.text.windows import TextWindow

HIDDEN = 0.15  # of the tokens


def hidden_of(text: str, count: int) -> NDArray[np.int64]:
    """Which of the tokens of a text are hidden: the text alone decides, and one at least."""
    chance = uniform(key_of("gaps", text), np.arange(count))
    return np.flatnonzero(chance <= max(HIDDEN, float(chance.min(initial=1.0))))


class OfGaps(OfWords):
    """The likeliest word for each token that was hidden."""

    def outcomes(self, opened: LoadedModel, examples: Sequence[Example]) -> list[Prediction]:
        tokenizer, mask = filler(opened)
        framing = framing_for(opened)
        rows: list[tuple[int, list[int], list[int], list[int]]] = []  # text, tokens, places of gaps, what was there
        windows = [0] * len(examples)
        for number, (found, lengths) in enumerate(pieces_in(framing, tokenizer, [e.texts[:1] for e in examples])):
            gaps = set(hidden_of(examples[number].texts[0], lengths[0]).tolist())
            windows[number] = len(found)
            rows += [(number, *_with_gaps(piece, gaps, mask)) for piece in found]
        nats, best, came = ([list[Any]() for _ in examples] for _ in range(3))
        for batch in by_budget((row for row in rows if row[2]), lambda row: len(row[1]), BUDGET):
            for (number, _, _, targets), surprise, top in zip(batch, *_asked(opened, batch), strict=True):
                nats[number].append(float(surprise.sum()))
                best[number].append(top)
                came[number] += targets
        found_all = []
        for number, example in enumerate(examples):
            tops = np.concatenate(best[number]) if best[number] else np.zeros(0, dtype=np.int64)
            size = len(example.texts[0].encode("utf-8", "surrogatepass"))
            said = Foreseen(sum(nats[number]), size, tops, np.array(came[number], dtype=np.int64))
            found_all.append(Prediction(said, len(came[number]), max(1, windows[number]), False))
        return found_all

    def metrics(self) -> Any:
        return Ratios(["filled", "bits_per_gap"], shares=False)

    def add(self, metrics: Any, found: Sequence[Prediction], examples: Sequence[Example]) -> None:
        for each in found:
            said: Foreseen = each.output
            gaps = float(len(said.tokens))
            right = float((said.best == said.tokens).sum())
            metrics.add({"filled": (right, gaps), "bits_per_gap": (said.nats / math.log(2), gaps)})

    def told(self, found: Prediction, other: Prediction, example: Example) -> str:
        said: Foreseen = found.output
        return f"{int((said.best == said.tokens).sum())} of {len(said.tokens)} found"

    @property
    def chosen(self) -> str:
        return "filled"


def _with_gaps(piece: TextWindow, gaps: set[int], mask: int) -> tuple[list[int], list[int], list[int]]:
    """A window with its gaps: its tokens, where the gaps are, and what stood there."""
    tokens, places, there = list(piece.tokens), list[int](), list[int]()
    for token in range(piece.cut.start, piece.cut.end):
        if token in gaps:  # also those that another window is asked about: none may see what is hidden
            place = piece.lead + token - piece.cut.start
            if piece.cut.first <= token < piece.cut.last:
                places.append(place)
                there.append(tokens[place])
            tokens[place] = mask
    return tokens, places, there


@torch.inference_mode()
def _asked(
    opened: LoadedModel, batch: Sequence[tuple[int, list[int], list[int], list[int]]]
) -> tuple[list[NDArray[Any]], list[NDArray[Any]]]:
    """How little each window expected what was hidden, and what it thought likeliest there."""
    device = opened.device
    ragged = Ragged.of([tokens for _, tokens, _, _ in batch], device)
    hidden = opened.network(ragged.tokens, ragged.rows)
    starts = ragged.rows.firsts().tolist()
    places = [start + place for start, row in zip(starts, batch, strict=True) for place in row[2]]
    targets = [target for row in batch for target in row[3]]
    most, nats, best = max(1, SCORES // opened.heads["words"]), list[torch.Tensor](), list[torch.Tensor]()
    for first in range(0, len(places), most):
        some = slice(first, first + most)
        scores = in_full(opened.network.words(hidden[torch.tensor(places[some], device=device)]))
        wanted = scores.gather(1, torch.tensor(targets[some], device=device)[:, None]).squeeze(1)
        nats.append((scores.logsumexp(-1) - wanted).double().cpu())
        best.append(scores.argmax(-1).cpu())
    sizes = [len(row[2]) for row in batch]
    parts = (torch.split(torch.cat(each), sizes) for each in (nats, best))
    first_part, second_part = ([part.numpy() for part in each] for each in parts)
    return first_part, second_part

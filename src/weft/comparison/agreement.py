"""Whether two models say the same: scores within a tolerance, and the same answers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.errors import UserError, shown
from weft.tasks.answer import AnswerTask
from weft.tasks.embed import Embedder
from weft.tasks.forward import framing_for
from weft.tasks.model import Model

TOLERANCE = 1e-4  # of the largest score: far above what another order of sums makes, far below what a fault makes
SAMPLES = 24  # texts that are made up where none are given
CHECKED = 512  # texts of a file that are read at most


def check_agreement(ours: Model, theirs: Model, inputs: Sequence[Any], tolerance: float = TOLERANCE) -> float:
    """How far the two are apart, as a share of the largest score; refused where that is too far or answers differ."""
    first, second = scores_of(ours, inputs), scores_of(theirs, inputs)
    largest = max((float(np.abs(each).max()) for each in first if each.size), default=0.0) or 1.0
    worst, place = 0.0, 0
    for number, (one, other) in enumerate(zip(first, second, strict=True)):
        apart = float(np.abs(one - other).max()) if one.size else 0.0
        if not apart <= worst:  # also where it is no number
            worst, place = apart, number
    share = worst / largest
    if not share <= tolerance:
        raise UserError(
            f"the exported model does not say the same: its scores differ by {worst:.3g}, {share:.2g} of the largest "
            f"(at most {tolerance:g} is let pass), on {_shown(inputs[place])}; nothing was written"
        )
    for given, answer, again in zip(inputs, ours(list(inputs)), theirs(list(inputs)), strict=True):
        if said(answer) != said(again):
            raise UserError(
                f"the exported model does not say the same: {shown(str(said(again)), 40)} in place of "
                f"{shown(str(said(answer)), 40)} on {_shown(given)}; nothing was written"
            )
    return share


def _shown(given: Any) -> str:
    return repr(shown(given if isinstance(given, str) else " | ".join(given), 50))


def scores_of(model: Model, inputs: Sequence[Any]) -> list[NDArray[Any]]:
    """What a model says of each input before it becomes an answer; nothing where it writes."""
    opened = model.opened
    does = model.task_object
    if does.embeds:
        return [vector for some in Embedder(opened).chunks(inputs) for vector in some.vectors.numpy()]
    if model.task == "fill":
        answers: list[Any] = model(list(inputs))
        return [np.log([[word.probability for word in gap] for gap in answer.gaps]) for answer in answers]
    if not does.supervised or does.writes:
        return [np.zeros(0) for _ in inputs]
    asked = [does.check_input(number, each) for number, each in enumerate(inputs, 1)]
    network = opened.network
    training = network.training
    network.eval()
    try:
        found = does.predict(opened, framing_for(opened), asked)
    finally:
        network.train(training)
    if isinstance(does, AnswerTask):
        return [np.array([each.output.nothing, *(score for score, _, _ in each.output.spans[:1])]) for each in found]
    return [np.asarray(each.output) for each in found]


def said(answer: Any) -> Any:
    """What an answer says, without how sure it is."""
    match type(answer).__name__:
        case "Label":
            return answer.label
        case "Labels":
            return answer.labels
        case "Spans":
            return tuple(word.label for word in answer.words)
        case "Reply" | "Words" | "Text" | "Translation":
            return answer.text
    return None


def samples(model: Model, count: int = SAMPLES, seed: int = 0) -> list[Any]:
    """Inputs of all lengths made of the tokenizer's own words, where there are no texts of the user's."""
    tokenizer, chance = model.tokenizer, random.Random(seed)
    if tokenizer is None:
        raise UserError("this model folder has no tokenizer, so it reads no text")
    special = {tokenizer.id_of(role) for role in ("padding", "unknown", "start", "end", "mask", "separator")}
    numbers = [number for number in sorted(tokenizer.tokens.values()) if number not in special]
    longest = min(model.config.context + 8, 600)
    window = model.card.window
    longest = min(longest, window.length + 8) if window is not None else longest

    def text(length: int) -> str:
        return tokenizer.decode([chance.choice(numbers) for _ in range(length)]).strip() or "a"

    lengths = [1, 2, longest, *(1 + int(longest ** chance.random()) for _ in range(count - 3))]
    if model.task == "fill":
        return [f"{text(max(1, n // 2))} {tokenizer.roles.mask} {text(n)}" for n in lengths]
    if model.task_object.pair:
        return [(text(min(n, 2)), text(n)) for n in lengths]  # a question leaves room for its context
    return [text(n) for n in lengths]

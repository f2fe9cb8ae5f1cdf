"""Whether a model answers a text in a batch as it answers it alone: what an export or a quantized model must do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.comparison.agreement import samples, scores_of
from weft.errors import UserError, shown
from weft.exporters.ct2_export import short_prompts
from weft.tasks.complete import begun, complete, read
from weft.tasks.model import Model

# How far the probabilities of a text may differ, in a batch and alone, by the precision of the weights.
BOUNDS = {"fp32": 1e-5, "fp16": 2e-2, "bf16": 2e-2, "int8": 5e-3, "int4": 5e-3}
MIXED = 200  # inputs on which that is tested
PROMPTS = 64  # of a model that writes
MAX_CHARACTERS = 4000  # of one such text: enough for several windows
MAX_TOKENS = 24  # that a model writes for each of them
TIED = 1e-3  # how far two log-probabilities may differ where another token is written


def check_batch_single(model: Model, inputs: Sequence[Any]) -> float:
    """The largest difference between a text in a batch and alone; refused where it is beyond the bound."""
    if model.task_object.writes:
        # A rounding of smaller numbers may well turn a token; and of torch itself there is nothing to find out.
        if model.opened.exported and model.card.precision == "fp32":
            _check_written(model, short_prompts(model.opened, mixed(model, inputs, PROMPTS)))
        return 0.0
    inputs = mixed(model, inputs, MIXED)
    apart, place = largest_difference(model, inputs)
    bound = BOUNDS[model.card.precision or "fp32"]
    if not apart <= bound:
        what = "values" if _gives_numbers(model) else "probabilities"
        raise UserError(
            f"its answers depend on the batch: {what} of a text alone and among {len(inputs)} differ by {apart:.3g} "
            f"(limit {bound:g}), on {_shown(inputs[place])}; nothing was written"
        )
    return apart


def largest_difference(model: Model, inputs: Sequence[Any]) -> tuple[float, int]:
    """How far the probabilities of an input in a batch are from those of the input alone, and of which."""
    together = probabilities_of(model, inputs)
    alone = [probabilities_of(model, [each])[0] for each in inputs]
    return difference(together, alone, relative=_gives_numbers(model))


def _gives_numbers(model: Model) -> bool:
    """Whether it gives vectors or values, rather than probabilities."""
    return model.task_object.embeds or model.task == "regress"


def difference(one: Sequence[NDArray[Any]], other: Sequence[NDArray[Any]], relative: bool) -> tuple[float, int]:
    """The largest difference of two lists of arrays, and where; `relative`: as a share of the largest number."""
    largest = max((float(np.abs(each).max()) for each in one if each.size), default=0.0) if relative else 1.0
    worst, place = 0.0, 0
    for number, (first, second) in enumerate(zip(one, other, strict=True)):
        apart = float(np.abs(first - second).max()) / (largest or 1.0) if first.size else 0.0
        if not apart <= worst:  # also where it is no number
            worst, place = apart, number
            if math.isnan(worst):
                break
    return worst, place


def probabilities_of(model: Model, inputs: Sequence[Any]) -> list[NDArray[Any]]:
    """Of each input what its answer is made of: probabilities, or the numbers of a model that gives numbers."""
    if model.task == "tag":  # of every tag of every word: those of an answer are only of the tags that it chose
        return [_softmax(each) for each in scores_of(model, inputs)]
    if model.task_object.embeds or not (model.task_object.supervised or model.task == "fill"):
        return scores_of(model, inputs)
    found = []
    answers: list[Any] = model(list(inputs))
    for answer in answers:
        match type(answer).__name__:
            case "Label" | "Labels":
                numbers: Any = list(answer.scores.values())
            case "Value":
                numbers = [answer.value]
            case "Reply":
                numbers = [answer.no_answer, max((each.score for each in answer.best), default=0.0)]
            case _:  # of gaps: the best words may change places, their probabilities then hardly differ
                numbers = [word.probability for gap in answer.gaps for word in gap]
        found.append(np.array(numbers))
    return found


def mixed(model: Model, inputs: Sequence[Any], total: int) -> list[Any]:
    """Short and long inputs: of those given three quarters at most, evenly by length; the rest is made up."""
    order = sorted(inputs, key=_length)
    count = min(total * 3 // 4, len(order))
    given = [_shortened(order[number * (len(order) - 1) // max(1, count - 1)]) for number in range(count)]
    return [*given, *samples(model, total - count)]


def _check_written(model: Model, prompts: Sequence[str]) -> None:
    """Refuse a model that writes something else for a prompt in a batch, unless two tokens were equally likely."""
    together: list[Any] = complete(model.opened, prompts, max_tokens=MAX_TOKENS)
    for prompt, first in zip(prompts, together, strict=True):
        second: Any = complete(model.opened, [prompt], max_tokens=MAX_TOKENS)[0]
        if first.tokens != second.tokens and not _tied(model, prompt, list(first.tokens), list(second.tokens)):
            raise UserError(
                f"its answers depend on the batch: {shown(first.text, 40)!r} among {len(prompts)} prompts, "
                f"{shown(second.text, 40)!r} alone, on {_shown(prompt)}; nothing was written"
            )


def _tied(model: Model, prompt: str, one: list[int], other: list[int]) -> bool:
    """Whether two answers part where the model finds both tokens equally likely."""
    same = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
    if same is None:
        return False
    opened = model.opened
    sources = read(opened, [prompt]) * 2 if opened.family.reads else None
    begins = [[opened.config.begin]] if opened.family.reads else begun(opened, [prompt])
    parts = [one[: same + 1], other[: same + 1]]
    first, second = opened.network.scored(begins * 2, sources, parts)  # type: ignore[operator]
    return abs(first - second) <= TIED


def _length(given: Any) -> int:
    return len(given) if isinstance(given, str) else sum(map(len, given))


def _shortened(given: Any) -> Any:
    """An input whose texts are not longer than the test needs; a list of words keeps its first."""
    if isinstance(given, str):
        return given[:MAX_CHARACTERS]
    if isinstance(given, tuple):
        return tuple(text[:MAX_CHARACTERS] for text in given)
    return given[: MAX_CHARACTERS // 5]


def _shown(given: Any) -> str:
    return repr(shown(given if isinstance(given, str) else " | ".join(given), 50))


def _softmax(logits: NDArray[Any]) -> NDArray[Any]:
    powers = np.exp(logits - logits.max(-1, keepdims=True)) if logits.size else logits
    return powers / powers.sum(-1, keepdims=True) if logits.size else logits

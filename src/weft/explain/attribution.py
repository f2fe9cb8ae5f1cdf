"""Which words mattered: integrated gradients, leave-one-out, and attention for comparison.

N: tokens of all windows of one input; D: width of the table of tokens.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.checkpoint.folder import LoadedModel
from weft.config import comma_list
from weft.errors import UserError, one_of
from weft.explain.attention_weights import by_token, window_attention
from weft.explain.attribution_view import REMOVE, AttributedWord, Attribution
from weft.explain.rollout import gradient_rollout, rollout
from weft.explain.scoring import Scorer, check_embeddings
from weft.progress import Progress, ProgressChoice, progress_of, silent
from weft.tasks.forward import evaluating, framing_for
from weft.tasks.model import Model
from weft.tasks.targets import LogitTarget, ReadText, Term
from weft.text.windows import TextWindow

Values = NDArray[np.float64]
NODES = 6  # Gauss-Legendre nodes of an interval
PARTS = 4  # intervals to begin with
LIMIT = 8192  # gradients that are computed at most
SMALLEST = 1e-4  # a difference of logits below which rounding decides the relative error
BASELINES = ("mask", "unknown", "padding", "zero")
DEFAULT = ("integrated-gradients", "leave-one-out")  # what is shown unless others are asked for


class MethodValues:
    """What a method measures: a value of each token or of each word, and the logits it began and ended with."""

    def __init__(self, values: Values, logit: float, baseline: float | None, steps: int, by_word: bool = False) -> None:
        self.values, self.logit, self.baseline, self.steps, self.by_word = values, logit, baseline, steps, by_word
        self.complete = False


@dataclass(frozen=True)
class Inputs:
    """What a method is given."""

    model: LoadedModel
    scorer: Scorer
    vectors: Tensor  # N D: the embeddings of the tokens
    base: Tensor  # N D: those of the baseline; special tokens are the same
    baseline: str
    tolerance: float
    spans: Sequence[Sequence[int]] = field(default=())  # of each word the places of its tokens
    progress: Progress = silent


def attribute(
    model: Model,
    text: Any,
    method: str = "integrated-gradients",
    target: Any = None,
    baseline: str | None = None,
    tolerance: float = 0.01,
    progress: ProgressChoice = None,
) -> Attribution:
    """Attribute one logit of a model to the words of a text, or of a tuple of two texts.

    `method`: integrated-gradients, leave-one-out, gradient, attention, rollout or attention-gradients. `target`: a
    label; a word, or a tuple of a word and its tag; an answer; the next word; by default what the model answers.
    `baseline`: mask, unknown, padding (tokens), zero (a zero embedding) or, for leave-one-out, remove; by default mask
    where the tokenizer has one, else zero. `tolerance`: how far integrated gradients may miss the difference of logits.
    """
    one_of(method, METHODS, "method")
    task, opened = model.task_object, model.opened
    if not 1e-6 <= tolerance < 1:
        raise UserError(f"tolerance must be between 0.000001 and 1, not {tolerance}")
    check_embeddings(opened)
    (checked,) = task.check_inputs([text])
    with evaluating(opened.network):
        chosen = task.logit_target(opened, framing_for(opened), checked, target)
        scorer = Scorer(opened, chosen)
        vectors = scorer.embeddings()
        name = baseline or default_baseline(opened)
        if name == REMOVE and method != "leave-one-out":
            raise UserError(f"baseline remove is for leave-one-out; {method} takes {', '.join(BASELINES)}")
        base = vectors if name == REMOVE else baseline_vectors(opened, chosen, vectors, name)
        inputs = Inputs(opened, scorer, vectors, base, name, tolerance, word_places(chosen), progress_of(progress))
        return assembled(method, chosen, name, METHODS[method](inputs))


def attributions_of(
    model: Model,
    text: Any,
    methods: str | Sequence[str] | None = None,
    target: Any = None,
    baseline: str | None = None,
    progress: ProgressChoice = None,
) -> list[Attribution]:
    """The same logit by several methods; `methods`: names, or text as "attention, rollout" or "all".

    The baseline remove is that of leave-one-out alone; other methods then have their default.
    """
    if isinstance(methods, str):
        methods = tuple(METHODS) if methods.strip() == "all" else comma_list(methods)
    results = list[Attribution]()
    for method in dict.fromkeys(DEFAULT if methods is None else methods):
        own = None if baseline == REMOVE and method != "leave-one-out" and method in METHODS else baseline
        results.append(attribute(model, text, method, target, own, progress=progress))
    return results


def default_baseline(model: LoadedModel) -> str:
    """The mask of a model that reads one, else a zero embedding."""
    tokenizer = model.tokenizer
    masked = tokenizer is not None and tokenizer.id_of("mask") is not None and not model.family.one_way
    return "mask" if masked else "zero"


def baseline_vectors(model: LoadedModel, target: LogitTarget, vectors: Tensor, name: str) -> Tensor:
    """N D: the embeddings with the baseline in place of every token of the texts; special tokens stay."""
    one_of(name, (*BASELINES, REMOVE), "baseline")
    own = torch.tensor([place is not None for window in target.places for place in window], device=vectors.device)
    if name == "zero":
        return vectors.masked_fill(own[:, None], 0.0)
    number = None if model.tokenizer is None else model.tokenizer.id_of(name)
    if number is None:
        raise UserError(f"baseline {name}: the tokenizer has no such token; try zero")
    with torch.no_grad():
        vector = model.network.tokens(torch.full((len(vectors),), number, device=vectors.device))
    return torch.where(own[:, None], vector, vectors)


def word_shares(text: ReadText) -> list[list[tuple[int, float]]]:
    """Of each word its tokens, with the share of a token that is the word's, by characters.

    A token of spaces belongs to the next word.
    """
    shares: list[list[tuple[int, float]]] = [[] for _ in text.words]
    if not text.words:
        return shares
    starts, ends = (list(side) for side in zip(*text.words, strict=True))
    for number, (start, end) in enumerate(text.offsets):
        words = range(bisect_right(ends, start), bisect_left(starts, end))
        common = [(word, min(end, ends[word]) - max(start, starts[word])) for word in words]
        common = [pair for pair in common if pair[1] > 0] or [(min(bisect_left(starts, end), len(starts) - 1), 1)]
        total = sum(size for _, size in common)
        for word, size in common:
            shares[word].append((number, size / total))
    return shares


def word_places(target: LogitTarget) -> list[list[int]]:
    """Of each word of all texts the places (in N) of its tokens."""
    tokens: dict[tuple[int, int], list[int]] = {}
    flat = [place for window in target.places for place in window]
    for number, place in enumerate(flat):
        if place is not None:
            tokens.setdefault(place, []).append(number)
    spans = []
    for number, text in enumerate(target.texts):
        for own in word_shares(text):
            spans.append([place for token, _ in own for place in tokens.get((number, token), ())])
    return spans


def assembled(method: str, target: LogitTarget, baseline: str, measured: MethodValues) -> Attribution:
    """The values of tokens added up by word; a token of two words is shared by its characters."""
    flat = [place for window in target.places for place in window]
    by_text = [np.zeros(len(text.ids)) for text in target.texts]
    if not measured.by_word:
        for place, value in zip(flat, measured.values.tolist(), strict=True):
            if place is not None:
                by_text[place[0]][place[1]] += value
    words: list[AttributedWord] = []
    for number, text in enumerate(target.texts):
        for (start, end), own in zip(text.words, word_shares(text), strict=True):
            value = float(sum(by_text[number][token] * share for token, share in own))
            words.append(AttributedWord(text.text[start:end], number, start, end, value))
    if measured.by_word:
        words = [replace(word, value=value) for word, value in zip(words, measured.values.tolist(), strict=True)]
    difference = None if measured.baseline is None else measured.logit - measured.baseline
    error = None
    if measured.complete and difference is not None:
        missing = abs(float(measured.values.sum()) - difference)
        error = missing / abs(difference) if difference else missing
    return Attribution(
        method=method,
        target=target.name,
        texts=tuple(text.text for text in target.texts),
        words=tuple(words),
        tokens=tuple(token for text in target.texts for token in text.tokens),
        token_values=() if measured.by_word else tuple(np.concatenate(by_text).tolist()),
        logit=measured.logit,
        baseline=baseline,
        baseline_logit=measured.baseline,
        error=error,
        steps=measured.steps,
    )


def integrated_gradients(inputs: Inputs) -> MethodValues:
    """The gradient along the straight line from the baseline to the text, times its direction (Sundararajan, 2017).

    What the gradients of an interval must add up to is known: the difference of the logits at its ends. Intervals that
    miss it are halved, so that the sum over all is as exact as `tolerance` asks for.
    """
    scorer, direction = inputs.scorer, inputs.vectors - inputs.base
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    logits: dict[float, float] = {}
    parts: dict[tuple[float, float], Values] = {}
    waiting = [(number / PARTS, (number + 1) / PARTS) for number in range(PARTS)]
    steps = 0
    while waiting:
        ends = sorted({end for pair in waiting for end in pair} - set(logits))
        logits |= dict(zip(ends, scorer.values([inputs.base + end * direction for end in ends]), strict=True))
        for first, last in waiting:
            at = torch.tensor((first + last) / 2 + (last - first) / 2 * nodes).to(direction)
            _, slopes = scorer.slopes(inputs.base + at[:, None, None] * direction)
            factor = torch.tensor((last - first) / 2 * weights, device=direction.device)
            along = (slopes.double() * direction.double()).sum(-1)  # NODES N
            parts[first, last] = (factor @ along).cpu().numpy()
            steps += NODES
        goal = 0.8 * inputs.tolerance * max(abs(logits[1.0] - logits[0.0]), SMALLEST)
        errors = {pair: abs(part.sum() - (logits[pair[1]] - logits[pair[0]])) for pair, part in parts.items()}
        waiting = []
        for pair in worst(errors, goal) if steps < LIMIT else ():
            middle = sum(pair) / 2
            waiting += [(pair[0], middle), (middle, pair[1])]
            del parts[pair]
    measured = MethodValues(np.sum(list(parts.values()), axis=0), logits[1.0], logits[0.0], steps + len(logits))
    measured.complete = True
    return measured


def worst(errors: Mapping[tuple[float, float], float], goal: float) -> list[tuple[float, float]]:
    """The intervals with the largest errors, without which the others add up to less than half of what is allowed."""
    if sum(errors.values()) <= goal:
        return []
    order = sorted(errors, key=lambda pair: errors[pair])
    sums = np.cumsum([errors[pair] for pair in order])
    return order[int(np.searchsorted(sums, goal / 2, side="right")) :]


def gradient(inputs: Inputs) -> MethodValues:
    """The gradient at the text alone, times the direction from the baseline."""
    direction = inputs.vectors - inputs.base
    scores, slopes = inputs.scorer.slopes(inputs.vectors[None])
    values = (slopes[0].double() * direction.double()).sum(-1).cpu().numpy()
    measured = MethodValues(values, float(scores[0]), inputs.scorer.values([inputs.base])[0], 1)
    measured.complete = True
    return measured


def leave_one_out(inputs: Inputs) -> MethodValues:
    """How much the logit falls when one word is replaced by the baseline, or removed.

    The logit is a sum over windows, so only those that a word stands in are computed again.
    """
    remove = inputs.baseline == REMOVE
    whole, starts = inputs.scorer, inputs.scorer.starts
    logit, baseline = whole.values([inputs.vectors, inputs.base])
    by_windows: dict[tuple[int, ...], list[int]] = {}
    for number, places in enumerate(inputs.spans):
        own = {bisect_right(starts, place) - 1 for place in places}
        by_windows.setdefault(tuple(sorted(own)), []).append(number)
    values = np.zeros(len(inputs.spans))
    without = _with_removed if remove else _with_replaced
    with inputs.progress(f"leave-one-out: {len(values):,} words", "words") as count:
        for windows, numbers in by_windows.items():
            if windows:
                kept = np.concatenate([np.arange(starts[window], starts[window + 1]) for window in windows])
                part = Scorer(inputs.model, within(whole.target, windows))
                (before,) = part.values([inputs.vectors[kept]])
                for number, after in zip(numbers, without(inputs, part, kept, numbers), strict=True):
                    values[number] = before - after
                    count(1)
    return MethodValues(values, logit, None if remove else baseline, len(values) + 2, by_word=True)


def _with_replaced(inputs: Inputs, part: Scorer, kept: NDArray[Any], numbers: Sequence[int]) -> Iterator[float]:
    """The logit of some windows (their tokens are `kept`) with each of these words replaced by the baseline."""

    def copy(number: int) -> Tensor:
        places = np.searchsorted(kept, inputs.spans[number])
        changed = inputs.vectors[kept]
        changed[places] = inputs.base[kept][places]
        return changed

    for first in range(0, len(numbers), part.copies):
        yield from part.values([copy(number) for number in numbers[first : first + part.copies]])


def _with_removed(inputs: Inputs, part: Scorer, kept: NDArray[Any], numbers: Sequence[int]) -> Iterator[float]:
    """The same without the tokens of each word."""
    for number in numbers:
        places = np.searchsorted(kept, inputs.spans[number])
        ends = zip(part.starts, part.starts[1:], strict=False)
        gone = [[int(place) - first for place in places if first <= place < last] for first, last in ends]
        shorter = Scorer(inputs.model, without_tokens(part.target, gone))
        yield from shorter.values([shorter.embeddings()])


def within(target: LogitTarget, windows: Sequence[int]) -> LogitTarget:
    """The part of a target that some of its windows make."""
    terms = [term._replace(window=windows.index(term.window)) for term in target.terms if term.window in windows]
    chosen, places = tuple(target.windows[n] for n in windows), tuple(target.places[n] for n in windows)
    return replace(target, terms=tuple(terms), windows=chosen, places=places)


def without_tokens(target: LogitTarget, removed: Sequence[Sequence[int]]) -> LogitTarget:
    """The target for windows without these tokens."""
    windows, terms, places = list[TextWindow](), list[Term](), []
    for window, own, gone in zip(target.windows, target.places, removed, strict=True):
        kept = [place for place in range(len(window.tokens)) if place not in set(gone)]
        if not kept:
            raise UserError("a text of one word cannot do without it: use baseline mask or zero")
        border = sum(place < window.border for place in kept)
        windows.append(replace(window, tokens=[window.tokens[place] for place in kept], border=border))
        places.append(tuple(own[place] for place in kept))
    for term in target.terms:
        gone, place = removed[term.window], term.place
        if place in gone and not target.follows:
            raise UserError("a word cannot be removed where its own logit is explained: use baseline mask or zero")
        if target.follows:
            place = len(windows[term.window].tokens) - 1
        elif place is not None:
            place -= sum(each < place for each in gone)
        terms.append(term._replace(place=place))
    return replace(target, windows=tuple(windows), terms=tuple(terms), places=tuple(places))


def _attention(combine: Callable[[Any], NDArray[Any]]) -> Callable[[Inputs], MethodValues]:
    """A method that reads each word's value off a matrix (T T) of attention, in the rows that the head reads."""

    def method(inputs: Inputs) -> MethodValues:
        windows = [combine(window) for window in window_attention(inputs.scorer, inputs.vectors)]
        shares = inputs.scorer.read_shares(inputs.vectors).cpu().numpy()
        (logit,) = inputs.scorer.values([inputs.vectors])
        return MethodValues(by_token(windows, shares), logit, None, 1)

    return method


METHODS: Mapping[str, Callable[[Inputs], MethodValues]] = {
    "integrated-gradients": integrated_gradients,
    "leave-one-out": leave_one_out,
    "gradient": gradient,
    "attention": _attention(lambda window: window.weights[-1].mean(0)),
    "rollout": _attention(lambda window: rollout(window.weights)),
    "attention-gradients": _attention(lambda window: gradient_rollout(window.weights, window.gradients)),
}

"""Which words mattered, as a page: the text shaded by value, bars, and several methods side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

import numpy as np

from weft.errors import UserError, shown
from weft.explain.view import Interactive, View

REMOVE = "remove"  # leave-one-out without the tokens of a word, rather than with others in their place
COLORS = ("#b35806", "#f1a340", "#ffffff", "#67a9cf", "#055d96")  # from what lowers the logit to what raises it
DRAWN = 24  # words of a picture at most
ABOUT = {
    "integrated-gradients": (
        "Integrated gradients",
        "Gradients added up along the way from the baseline to the text. Their sum is the difference of the logits.",
    ),
    "leave-one-out": ("Leave one out", "How much the logit falls when this word alone is {replaced}."),
    "gradient": ("Gradient", "The gradient at the text, times the distance from the baseline."),
    "attention": (
        "Attention, last layer",
        "What the token behind the logit attends to, mean of all heads. It has no sign, and does not add up to logits.",
    ),
    "rollout": (
        "Attention rollout",
        "Attention followed through all layers, mean of the heads. It has no sign, and does not add up to logits.",
    ),
    "attention-gradients": (
        "Gradient-weighted attention",
        "Attention times the gradient of the logit, followed through all layers. It does not add up to logits.",
    ),
}
BASELINES = {
    "mask": "the mask token",
    "unknown": "the unknown token",
    "padding": "the padding token",
    "zero": "a zero embedding",
}


@dataclass(frozen=True)
class AttributedWord:
    """A word of a text and how much it contributes to the logit."""

    word: str
    text: int  # 0, or 1 in the second text of a pair
    start: int
    end: int
    value: float


@dataclass(frozen=True)
class Attribution:
    """How much each word of an input contributes to one logit of a model."""

    method: str
    target: str  # the label, tag, answer or word whose logit it is
    texts: tuple[str, ...]
    words: tuple[AttributedWord, ...]
    tokens: tuple[str, ...]  # of all texts, without special tokens
    token_values: tuple[float, ...]  # empty for leave-one-out, which changes whole words
    logit: float
    baseline: str  # what stands in place of a word
    baseline_logit: float | None  # with all words replaced
    error: float | None = None  # of integrated gradients: how far the sum is from the difference, as a share of it
    steps: int = 0  # passes through the network

    @property
    def values(self) -> tuple[float, ...]:
        """The value of each word."""
        return tuple(word.value for word in self.words)

    @property
    def total(self) -> float:
        """The sum over all tokens; for leave-one-out over all words."""
        return float(sum(self.token_values or self.values))

    @property
    def difference(self) -> float | None:
        """The logit less that of the baseline, which integrated gradients add up to."""
        return None if self.baseline_logit is None else self.logit - self.baseline_logit

    def top(self, count: int = 5) -> list[AttributedWord]:
        """The words with the largest values, positive or negative."""
        return sorted(self.words, key=lambda word: -abs(word.value))[:count]

    def view(self) -> View:
        """A page with the words shaded by their values."""
        return attribution_view([self])

    def _repr_html_(self) -> str:
        return self.view()._repr_html_()


@dataclass(frozen=True, kw_only=True)
class AttributionPanel(Interactive):
    """The interactive page; as a picture: bars of one method, or a heat map of several."""

    attributions: tuple[Attribution, ...]

    is_plot: ClassVar[bool] = True

    def draw(self, axes: Any) -> None:
        first = self.attributions[0]
        largest = sorted(range(len(first.words)), key=lambda n: -abs(first.words[n].value))[:DRAWN]
        places = sorted(largest)  # as in the text
        names = [first.words[place].word for place in places]
        title = f"Logit of {first.target}: {first.logit:.3f}"
        if len(self.attributions) == 1:
            values = [first.words[place].value for place in places]
            colors = [COLORS[-1] if value >= 0 else COLORS[0] for value in values]
            axes.barh(range(len(names)), values, color=colors)
            axes.set_yticks(range(len(names)), names)
            axes.invert_yaxis()
            axes.axvline(0, color="0.6", linewidth=0.8)
            axes.set(title=title, xlabel=ABOUT[first.method][0])
            return
        rows = np.array([[each.values[place] for place in places] for each in self.attributions])
        largest_value = np.abs(np.array([each.values for each in self.attributions])).max(1, keepdims=True)
        shares = rows / np.maximum(largest_value, 1e-300)
        scale = import_module("matplotlib.colors").LinearSegmentedColormap.from_list("weft", COLORS)
        image = axes.imshow(shares, cmap=scale, vmin=-1, vmax=1, aspect="auto")
        axes.set_xticks(range(len(names)), names, rotation=90)
        axes.set_yticks(range(len(rows)), [ABOUT[each.method][0] for each in self.attributions])
        axes.set_title(title)
        axes.figure.colorbar(image, label="share of the largest value")


def attribution_view(attributions: Sequence[Attribution], name: str = "") -> View:
    """A page of attributions of one logit by one or several methods."""
    if not attributions:
        raise UserError("there are no attributions to show")
    first = attributions[0]
    if any((each.target, each.texts) != (first.target, first.texts) for each in attributions):
        raise UserError("attributions side by side must be of the same texts and the same target")
    with_baseline = next((each for each in attributions if each.baseline_logit is not None), first)
    facts: list[Any] = [[f"Logit of {shown(first.target, 40)}", first.logit, "of the text as it is"]]
    if with_baseline.baseline_logit is not None:
        nothing = BASELINES[with_baseline.baseline]
        facts.append(["Logit of the baseline", with_baseline.baseline_logit, f"{nothing} in place of every word"])
        facts.append(["Difference", with_baseline.difference, "the logit less that of the baseline"])
        facts.append(["Baseline", nothing, "what stands in place of every word"])
    content = {
        "target": first.target,
        "logit": first.logit,
        "texts": list(first.texts),
        "words": [{"word": each.word, "text": each.text, "start": each.start, "end": each.end} for each in first.words],
        "tokens": [readable(token) for token in first.tokens],
        "facts": facts,
        "methods": [method_content(each) for each in attributions],
    }
    panel = AttributionPanel(component="attribution", content=content, attributions=tuple(attributions))
    return View(f"Which words mattered{f' to {name}' if name else ''}", (panel,))


def method_content(result: Attribution) -> dict[str, Any]:
    """One method as JSON."""
    label, about = ABOUT[result.method]
    replaced = "removed" if result.baseline == REMOVE else f"replaced by {BASELINES[result.baseline]}"
    checks: list[Any] = []
    if result.error is not None:
        checks.append(["Sum of all values", result.total])
        good = result.error <= 0.01 if result.method == "integrated-gradients" else None
        checks.append(["Completeness error", f"{result.error:.2%}", good])
    if result.steps > 1:
        checks.append(["Passes", str(result.steps)])
    return {
        "method": result.method,
        "label": label,
        "about": about.format(replaced=replaced),
        "values": list(result.values),
        "token_values": list(result.token_values),
        "logit": result.logit,
        "baseline": result.baseline,
        "baseline_logit": result.baseline_logit,
        "sum": result.total,
        "error": result.error,
        "passes": result.steps,
        "checks": checks,
    }


def readable(token: str) -> str:
    """A token as people read it; a dot stands for the space that it begins with."""
    return ("·" + token[1:] if token[:1] in ("Ġ", "▁") else token).replace("Ċ", "⏎")


def summary(attributions: Sequence[Attribution], count: int = 8) -> str:
    """The words with the largest values by each method, as lines of a terminal."""
    first = attributions[0]
    lines = [f"logit of {first.target}: {first.logit:.3f}"]
    for result in attributions:
        notes = []
        if result.baseline_logit is not None:
            nothing = BASELINES[result.baseline]
            notes.append(f"baseline ({nothing}) {result.baseline_logit:.3f}")
        if result.error is not None:
            notes.append(f"completeness error {result.error:.2%}")
        lines.append(f"{result.method}{': ' if notes else ''}{', '.join(notes)}")
        lines += [f"  {word.value:+8.3f}  {shown(word.word, 40)}" for word in result.top(count)]
    return "\n".join(lines)

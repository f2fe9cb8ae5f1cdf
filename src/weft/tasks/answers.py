"""What models answer: frozen dataclasses that also say how much was read."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from weft.generation.wording import Wording, Written


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What every answer says about its input."""

    n_tokens: int
    n_windows: int = 1
    truncated: bool = False

    decides: ClassVar[str] = "text"  # the field of its decision

    @property
    def decision(self) -> Hashable:
        """What two models must agree on: a label, tags, a text; None where there are numbers only."""
        return vars(self).get(self.decides)

    @property
    def numbers(self) -> list[float]:
        """The probabilities or values that it is made of."""

        def floats(value: Any) -> list[float]:
            if isinstance(value, dict | list | tuple):
                parts = value.values() if isinstance(value, dict) else value
                return [number for part in parts for number in floats(part)]
            return [value] if isinstance(value, float) else []

        return floats(asdict(self))

    def columns(self) -> dict[str, Any]:
        """What it adds to a row of a table, as plain values."""
        return {"prediction": self.decision}

    def line(self, text: str) -> str:
        """One line for people: the prediction, and the (shortened) text that it is for, unless a text is predicted."""
        return " ".join(str(self.decision).split())


@dataclass(frozen=True, kw_only=True)
class Text(Answer, Written):
    """Written text; `best` holds all answers where several were asked for, this one first."""

    best: tuple[Written, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Translation(Answer, Wording):
    """A text written from another."""

    best: tuple[Wording, ...]  # this one first
    source_tokens: tuple[str, ...]
    target_tokens: tuple[str, ...]
    alignments: tuple[tuple[float, ...], ...] | None = None  # on request: of each token written, by token read


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One word for one gap."""

    word: str
    probability: float


@dataclass(frozen=True, kw_only=True)
class Words(Answer):
    """The likeliest words for each gap of a text, best first, and the text with the best ones filled in."""

    text: str
    gaps: tuple[tuple[Candidate, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Label(Answer):
    """The label of a text or pair, and the probability of every label."""

    label: str
    score: float
    scores: dict[str, float]

    decides = "label"

    def columns(self) -> dict[str, Any]:
        return {"prediction": self.label, "probability": round(self.score, 6)}

    def line(self, text: str) -> str:
        return f"{self.label}  {self.score:.4f}  {text}"


@dataclass(frozen=True, kw_only=True)
class Labels(Answer):
    """All labels that fit a text, and the probability of every label."""

    labels: tuple[str, ...]
    scores: dict[str, float]

    decides = "labels"

    def columns(self) -> dict[str, Any]:
        return {"prediction": list(self.labels), "probabilities": {n: round(p, 6) for n, p in self.scores.items()}}

    def line(self, text: str) -> str:
        return f"{', '.join(f'{label} {self.scores[label]:.4f}' for label in self.labels) or '(none)'}  {text}"


@dataclass(frozen=True, kw_only=True)
class Value(Answer):
    """A number for a text or pair."""

    value: float

    def columns(self) -> dict[str, Any]:
        return {"prediction": float(f"{self.value:.7g}")}  # all that single precision holds

    def line(self, text: str) -> str:
        return f"{self.value:.4f}  {text}"


@dataclass(frozen=True, kw_only=True)
class Span:
    """A stretch of a text, by characters, with its label."""

    start: int
    end: int
    text: str
    label: str
    score: float


@dataclass(frozen=True, kw_only=True)
class Spans(Answer):
    """Entities or chunks of a text, and every word with its tag."""

    spans: tuple[Span, ...]
    words: tuple[Span, ...]

    @property
    def tagged(self) -> tuple[Span, ...]:
        """Entities; of a model whose tags mark no spans (parts of speech), every word."""
        return self.spans if self.spans or all(word.label == "O" for word in self.words) else self.words

    @property
    def decision(self) -> tuple[str, ...]:
        return tuple(word.label for word in self.words)

    def columns(self) -> dict[str, Any]:
        names = ("start", "end", "label", "text")
        cells = [{name: vars(s)[name] for name in names} | {"probability": round(s.score, 6)} for s in self.tagged]
        return {"prediction": cells}

    def line(self, text: str) -> str:
        """Words with their tags, or the text and a line for each entity."""
        if self.tagged is self.words:
            return " ".join(f"{word.text}/{word.label}" for word in self.words)
        lines = [f"  {s.label}  {s.score:.4f}  {s.start}-{s.end}  {s.text}" for s in self.tagged]
        return "\n".join([text, *(lines or ["  (none)"])])


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One possible answer, or sentence, by characters of its context."""

    text: str
    start: int
    end: int
    score: float


@dataclass(frozen=True, kw_only=True)
class Reply(Choice, Answer):
    """The answer to a question, '' where the context has none; `score` is its probability, `no_answer` that of none."""

    no_answer: float
    best: tuple[Choice, ...]

    def columns(self) -> dict[str, Any]:
        start, end = (self.start, self.end) if self.text else (None, None)
        return {"prediction": self.text, "probability": round(self.score, 6), "start": start, "end": end}

    def line(self, text: str) -> str:
        return f"{' '.join(self.text.split()) or '(no answer)'}  {self.score:.4f}  {text}"


ATTRIBUTES = vars(Answer)["__dict__"]  # of an answer those that it has, as they are


@dataclass(frozen=True, kw_only=True)
class Vector(Answer):
    """A text as numbers."""

    values: tuple[float, ...]

    @classmethod
    def of(cls, array: Any, n_tokens: int, n_windows: int) -> Vector:
        """One whose numbers become a tuple when they are first asked for: that takes longer than to compute them."""
        vector = object.__new__(cls)
        ATTRIBUTES.__get__(vector).update(n_tokens=n_tokens, n_windows=n_windows, truncated=False, array=array)
        return vector

    if not TYPE_CHECKING:

        @property
        def __dict__(self) -> dict[str, Any]:  # for `vars`, copies and pickles too
            own = ATTRIBUTES.__get__(self)
            array = own.get("array")
            if array is not None:
                own["values"] = tuple(array.tolist())
                own.pop("array", None)  # another thread may have done the same
            return own

        def __getattr__(self, name: str) -> Any:  # asked for what is not there yet
            if name == "values" and name in vars(self):
                return vars(self)[name]
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def columns(self) -> dict[str, Any]:
        return {"vector": [float(f"{value:.9g}") for value in self.values]}

    def line(self, text: str) -> str:
        return f"{[round(value, 4) for value in self.values]}  {text}"


@dataclass(frozen=True, kw_only=True)
class TokenVectors(Answer):
    """The tokens or words of a text, where they stand in it (start and end characters), and their vectors."""

    tokens: tuple[str, ...]  # as they stand in the vocabulary; words as they stand in the text
    spans: tuple[tuple[int, int], ...]
    vectors: Any = field(compare=False)  # n width: a numpy array of float32

    decides: ClassVar[str] = "tokens"

    @property
    def numbers(self) -> list[float]:
        return [float(value) for value in self.vectors.ravel()]

    def rows(self) -> list[dict[str, Any]]:
        """Each token as plain values."""
        parts = zip(self.tokens, self.spans, self.vectors.tolist(), strict=True)
        return [{"token": token, "start": start, "end": end, "vector": vector} for token, (start, end), vector in parts]


@dataclass(frozen=True, kw_only=True)
class Hit:
    """One text of a search, its number among the texts (from 0), and which stage gave it its score."""

    text: str
    number: int
    score: float
    stage: Literal["embedding", "pair"]


@dataclass(frozen=True, kw_only=True)
class Ranked(Answer):
    """The texts nearest to a query, best first."""

    hits: tuple[Hit, ...]


@dataclass(frozen=True, kw_only=True)
class ScoredOption:
    """One of several options: its logit or log-probability, and how likely it is to be right."""

    text: str
    number: int  # its place among the options as given, from 0
    score: float
    probability: float

    def cells(self) -> dict[str, str]:
        """A line of a table of options."""
        return {"choice": self.text, "probability": f"{self.probability:.4f}", "score": f"{self.score:.4f}"}


@dataclass(frozen=True, kw_only=True)
class Continuation(ScoredOption):
    """An option as the continuation of a prompt: its log-probability, of which the score is the normalized form."""

    logprob: float
    n_tokens: int
    crossing: bool  # its first token begins inside the prompt, and was scored whole

    def cells(self) -> dict[str, str]:
        return {**super().cells(), "logprob": f"{self.logprob:.4f}", "tokens": str(self.n_tokens)}


@dataclass(frozen=True, kw_only=True)
class Chosen(Answer):
    """The option that fits best, and all of them, the best first."""

    text: str
    number: int
    options: tuple[ScoredOption, ...]

    @property
    def chosen(self) -> tuple[int, ...]:
        """The number of the option, as a tuple."""
        return (self.number,)

    def columns(self) -> dict[str, Any]:
        return {"prediction": self.text, "number": self.number, "probability": round(self.options[0].probability, 6)}

    def line(self, text: str) -> str:
        return f"{' '.join(self.text.split())}  {self.options[0].probability:.4f}  {text}"


@dataclass(frozen=True, kw_only=True)
class Selected(Answer):
    """All options that are right, or none, where each is judged by itself; and every option, the best first."""

    texts: tuple[str, ...]
    chosen: tuple[int, ...]  # their numbers among the options as given, from 0
    options: tuple[ScoredOption, ...]

    decides = "texts"

    def columns(self) -> dict[str, Any]:
        options = sorted(self.options, key=lambda option: option.number)
        probabilities = [round(option.probability, 6) for option in options]  # of all, in the order given
        return {"prediction": list(self.texts), "number": list(self.chosen), "probability": probabilities}

    def line(self, text: str) -> str:
        return f"{', '.join(self.texts) or '(none)'}  {text}"


@dataclass(frozen=True, kw_only=True)
class Central(Answer):
    """The most central sentences of a text, in the order of the text; a score is how near one is to the others."""

    sentences: tuple[Choice, ...]


@dataclass(frozen=True, kw_only=True)
class Follows(Answer):
    """Whether the second text of a pair follows the first, and how likely that is."""

    follows: bool
    probability: float


@dataclass(frozen=True, kw_only=True)
class Forecast(Answer):
    """The next steps of a series, by column, and the interval around each value where one was calibrated."""

    series: str
    times: tuple[str, ...]
    names: tuple[str, ...]  # of the columns that are forecast
    values: tuple[tuple[float, ...], ...]  # by column and step
    low: tuple[tuple[float, ...], ...] | None
    high: tuple[tuple[float, ...], ...] | None
    interval: float  # share of the true values that intervals should hold

    def rows(self) -> list[dict[str, Any]]:
        """A row for each step and column."""
        rows = []
        for column, name in enumerate(self.names):
            for step, time in enumerate(self.times):
                value, low, high = (
                    None if each is None else each[column][step] for each in (self.values, self.low, self.high)
                )
                digits = 6  # more where they are needed to tell the interval from its middle
                if value and low is not None and high is not None and high > low:
                    digits = min(15, max(6, 3 + math.ceil(math.log10(abs(value) / (high - low)))))
                ends = {"forecast": value, "low": low, "high": high}
                numbers = {key: None if each is None else float(f"{each:.{digits}g}") for key, each in ends.items()}
                rows.append({"series": self.series, "time": time, "column": name, **numbers})
        return rows

    def line(self, text: str) -> str:
        return "  ".join(" ".join(f"{value:.5g}" for value in column) for column in self.values)


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """What may come next, and how likely that is."""

    text: str  # '' is the end of the text
    probability: float
    tokens: tuple[int, ...]  # of its likeliest spelling


@dataclass(frozen=True, kw_only=True)
class Suggestions:
    """The likeliest words of one model, the likeliest first."""

    words: tuple[Suggestion, ...]
    n_tokens: int  # of the text that was read
    truncated: bool  # whether the text was longer than the model's context
    exact: bool  # no beginning was left aside that could have become a likelier word
    aside: float  # the probability of all that was left aside: so much likelier a word may be at most
    completes: str = ""  # the letters that all words begin with: the last word of the text, where it is completed

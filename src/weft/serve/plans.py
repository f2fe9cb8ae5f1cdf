"""How each kind of question goes through a model: tokenized into units, units in passes with those of other jobs.

A plan is made once for a model and one set of options. The scheduler asks it for the units of a job (windows of its
texts, where an answer follows from them; whole inputs elsewhere), puts units of several jobs into one pass, and lets
the plan make answers of what comes out. The tasks themselves do all of it; nothing here asks which task it is.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.errors import NotFinite, UserError, shown
from weft.tasks.answers import Forecast
from weft.tasks.base import Prediction, Task
from weft.tasks.forward import InputWindows, framing_for, tokenizer_of
from weft.text.windows import Framing, TextWindow, pieces


class Fault(UserError):
    """Why a job cannot be answered: the status of its reply, and which field of the request is wrong."""

    def __init__(self, status: int, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.status, self.field = status, field


class Unit(NamedTuple):
    """What goes through the model at once, and how many tokens that is."""

    size: int
    content: Any


@dataclass
class Prepared:
    """A job after tokenizing."""

    units: list[Unit]
    tokens: int  # of its texts, as they are counted for the client
    state: Any = None  # what the answers are made of beside the outputs


class Plan:
    """How jobs of one kind go through a model."""

    options: tuple[str, ...] = ()  # that a client may give
    together = True  # units of several jobs may share a pass

    def prepare(self, inputs: Sequence[Any], most: int | None = None) -> Prepared:
        """Check and tokenize: the part of the work that needs no network; `most`: tokens that are read for them."""
        raise NotImplementedError

    def run(self, units: Sequence[Unit]) -> list[Any]:
        """One pass: an output for each unit."""
        raise NotImplementedError

    def finish(self, prepared: Prepared, outputs: Sequence[Any]) -> list[Any]:
        """The answers, as plain values."""
        raise NotImplementedError


# ------------------------------------------------------------------------------------------------------ plain values


def plain(value: Any) -> Any:
    """An answer, or a part of one, as JSON has it; arrays of numbers as base64 of little-endian float32."""
    if isinstance(value, str | int | bool | float | type(None)):
        return value
    if isinstance(value, tuple | list):
        return [plain(part) for part in value]
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, np.ndarray):
        return {"base64": packed_floats(value), "shape": list(value.shape)}
    if isinstance(value, np.generic):
        return value.item()
    return {name: plain(part) for name, part in vars(value).items()}


def packed_floats(values: NDArray[Any]) -> str:
    return base64.b64encode(np.ascontiguousarray(values, dtype="<f4").tobytes()).decode("ascii")


def object_name(answer: Any) -> str:
    """The class of an answer in snake case: `TokenVectors` is token_vectors."""
    name = type(answer).__name__
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")


def plain_answer(answer: Any) -> dict[str, Any]:
    return {"object": object_name(answer), **plain(answer)}


# ------------------------------------------------------------------------------------------------------ the plans


def in_place(check: Callable[[str, Any], Any], inputs: Sequence[Any], name: str = "input") -> list[Any]:
    """The inputs as a task takes them; of one that is wrong its place is named."""
    checked = []
    for number, value in enumerate(inputs):
        try:
            checked.append(check("", value))
        except UserError as error:
            raise Fault(422, str(error), f"{name}[{number}]") from None
    return checked


def check_tokens(tokens: int, most: int | None) -> None:
    """Refuse a job of more tokens than its request may have."""
    if most is not None and tokens > most:
        raise Fault(413, f"{tokens:,} tokens in one request, more than {most:,}", "input")


NUMBERED = re.compile(r"(?:question|prompt) (\d+): ")  # how messages about one of several inputs begin
Cost = Callable[..., int]  # of a model, an input and options: tokens that are read, some of them several times


class HeadPlan(Plan):
    """Answers that follow from what a head gives for windows: labels, values, tags, spans of a context, options."""

    def __init__(self, model: Any, task: Task, given: Mapping[str, Any], cost: Cost | None = None) -> None:
        self.model, self.task, self.given, self.cost = model, task, dict(given), cost
        self.options = task.answer_options

    @cached_property
    def framing(self) -> Framing:
        return framing_for(self.model)

    def prepare(self, inputs: Sequence[Any], most: int | None = None) -> Prepared:
        checked = in_place(self.task.check_input, inputs)
        if self.cost is not None:
            check_tokens(sum(self.cost(self.model, value) for value in checked), most)
        return self.encoded(checked)

    def encoded(self, checked: list[Any], state: Any = None) -> Prepared:
        """The windows of inputs that are checked already."""
        try:
            windows = self.task.encode(checked, tokenizer_of(self.model), self.framing)
        except UserError as error:
            if (about := NUMBERED.match(str(error))) is None:
                raise
            raise Fault(422, str(error)[about.end() :], f"input[{int(about[1]) - 1}]") from None
        units = [Unit(len(piece.tokens), piece) for some in windows.pieces for piece in some]
        tokens = sum(windows.read(number)[0] for number in range(len(checked)))
        return Prepared(units, tokens, (checked, windows, state))

    def run(self, units: Sequence[Unit]) -> list[Any]:
        return [part for (part,) in self.task.window_logits(self.model, self.windows_of(units))]

    def windows_of(self, units: Sequence[Unit]) -> InputWindows:
        """Any windows as if each were a text of its own: that is how a network reads them."""
        return InputWindows(self.framing, [[unit.content] for unit in units], [], [])

    def predictions(self, prepared: Prepared, outputs: Sequence[Any]) -> list[Prediction]:
        windows, rest = prepared.state[1], iter(outputs)
        return self.task.decode([[next(rest) for _ in some] for some in windows.pieces], windows)

    def answers(self, prepared: Prepared, outputs: Sequence[Any]) -> list[Any]:
        """The answers as the task gives them."""
        pairs = zip(self.predictions(prepared, outputs), prepared.state[0], strict=True)
        return [self.task.answer(prediction, input, **self.given) for prediction, input in pairs]

    def finish(self, prepared: Prepared, outputs: Sequence[Any]) -> list[Any]:
        return [plain_answer(answer) for answer in self.answers(prepared, outputs)]


def query_and_texts(where: str, value: Any) -> tuple[str, list[str]]:
    """What a ranking is about: {"query", "texts"}, or these two in a list."""
    parts = (value.get("query"), value.get("texts")) if isinstance(value, dict) else value
    if isinstance(parts, list | tuple) and len(parts) == 2:
        query, texts = parts
        if isinstance(query, str) and isinstance(texts, list | tuple) and all(isinstance(each, str) for each in texts):
            if not texts:
                raise UserError(f"{where}there are no texts to rank")
            return query, list(texts)
    raise UserError(f"{where}a query and a list of texts are expected")


def checked_top(given: Mapping[str, Any], default: int) -> int:
    top = given.get("top", default)
    if type(top) is not int or top < 1:
        raise Fault(422, f"top must be 1 or more, not {shown(repr(top))}", "top")
    return top


class PairRankPlan(HeadPlan):
    """Texts in the order of a model for pairs: by its value, or by the probability of its last label."""

    def __init__(self, model: Any, task: Task, given: Mapping[str, Any]) -> None:
        super().__init__(model, task, {})
        self.options, self.top = ("top",), checked_top(given, 10)

    def prepare(self, inputs: Sequence[Any], most: int | None = None) -> Prepared:
        questions = in_place(query_and_texts, inputs)
        queries = tokenizer_of(self.model).ids([query for query, _ in questions], specials=False)
        beside = (len(query) * len(texts) for query, (_, texts) in zip(queries, questions, strict=True))
        check_tokens(sum(beside), most)  # before all these pairs are made
        pairs = [self.task.check_input("", (query, text)) for query, texts in questions for text in texts]
        return self.encoded(pairs, questions)

    def finish(self, prepared: Prepared, outputs: Sequence[Any]) -> list[Any]:
        from weft.tasks.answers import Hit, Ranked
        from weft.tasks.embed import pair_scores, reranked

        rest, ranked = iter(self.answers(prepared, outputs)), list[Any]()
        for query, texts in prepared.state[2]:
            some = [next(rest) for _ in texts]
            hits = [Hit(text=text, number=number, score=0.0, stage="pair") for number, text in enumerate(texts)]
            best = reranked(query, hits, pair_scores(partial(given_answers, some)))
            tokens, windows = (sum(vars(each)[name] for each in some) for name in ("n_tokens", "n_windows"))
            cut = any(each.truncated for each in some)
            answer = Ranked(hits=tuple(best[: self.top]), n_tokens=tokens, n_windows=windows, truncated=cut)
            ranked.append(plain_answer(answer))
        return ranked


def given_answers(answers: list[Any], pairs: list[Any]) -> list[Any]:
    """The answers to pairs that are known already."""
    assert len(answers) == len(pairs)
    return answers


EMBEDDING = ("pooling", "normalize", "layers")  # options of an `Embedder`


class EmbedPlan(Plan):
    """Vectors of texts, or of lists of tokens."""

    options: tuple[str, ...] = EMBEDDING

    def __init__(self, model: Any, given: Mapping[str, Any]) -> None:
        from weft.tasks.embed import Embedder

        self.model = model
        self.embedder = Embedder(model, **{name: value for name, value in given.items() if name in EMBEDDING})

    def prepare(self, inputs: Sequence[Any], most: int | None = None) -> Prepared:
        return self.encoded(self.tokens_of(inputs, lambda number: f"input[{number}]"))

    def tokens_of(self, inputs: Sequence[Any], place: Callable[[int], str]) -> list[Sequence[int]]:
        """The tokens of texts; `place` names an input that is wrong."""
        texts = [value for value in inputs if isinstance(value, str)]
        encoded = iter(self.embedder.tokenizer.ids(texts, specials=False))
        most, every = self.model.config.vocabulary, list[Sequence[int]]()
        for number, value in enumerate(inputs):
            if isinstance(value, str):
                every.append(next(encoded))
            elif isinstance(value, list) and all(type(token) is int and 0 <= token < most for token in value):
                every.append(value)
            else:
                raise Fault(422, f"a text or a list of tokens below {most:,} is expected", place(number))
            if not every[-1] and not self.around:
                raise Fault(422, "is empty, and this model puts no tokens around a text", place(number))
        return every

    @property
    def around(self) -> int:
        """Tokens that the model puts around a text."""
        return len(self.embedder.framing.before) + len(self.embedder.framing.after)

    def encoded(self, ids: Sequence[Sequence[int]], state: Any = None) -> Prepared:
        windows = self.embedder.windows(ids)
        units = [Unit(len(window.tokens), window) for some in windows for window in some]
        return Prepared(units, sum(map(len, ids)) + self.around * len(ids), (windows, state))

    def run(self, units: Sequence[Unit]) -> list[Any]:
        windows: list[TextWindow] = [unit.content for unit in units]
        return self.embedder.pooled(windows)

    def joined(self, prepared: Prepared, outputs: Sequence[Any]) -> Any:
        rest = iter(outputs)
        windows = prepared.state[0]
        return self.embedder.joined(windows, [[next(rest) for _ in some] for some in windows])

    def finish(self, prepared: Prepared, outputs: Sequence[Any]) -> list[Any]:
        return [
            {"object": "vector", "base64": packed_floats(vector.numpy()), "n_tokens": tokens, "n_windows": windows,
             "truncated": False}
            for vector, tokens, windows in self.joined(prepared, outputs)
        ]  # fmt: skip


class RankPlan(EmbedPlan):
    """Texts by how near their vectors are to that of a query."""

    options = ("top", *EMBEDDING)

    def __init__(self, model: Any, given: Mapping[str, Any]) -> None:
        super().__init__(model, {"normalize": True, **given})
        self.top = checked_top(given, 10)

    def prepare(self, inputs: Sequence[Any], most: int | None = None) -> Prepared:
        questions = in_place(query_and_texts, inputs)
        flat, places = list[str](), list[str]()
        for number, (query, texts) in enumerate(questions):
            flat += [query, *texts]
            places += [f"input[{number}].query", *(f"input[{number}].texts[{place}]" for place in range(len(texts)))]
        return self.encoded(self.tokens_of(flat, places.__getitem__), questions)

    def finish(self, prepared: Prepared, outputs: Sequence[Any]) -> list[Any]:
        from weft.tasks.answers import Ranked
        from weft.tasks.embed import best_hits, scores_of

        whole, place, ranked = self.joined(prepared, outputs), 0, list[Any]()
        for _, texts in prepared.state[1]:
            vectors = whole.vectors[place + 1 : place + 1 + len(texts)]
            (scores,) = scores_of(whole.vectors[place : place + 1], vectors)
            hits = best_hits(texts, scores, self.top)
            answer = Ranked(hits=tuple(hits), n_tokens=whole.n_tokens[place], n_windows=whole.n_windows[place])
            ranked.append(plain_answer(answer))
            place += 1 + len(texts)
        return ranked


def as_fault(error: UserError, options: Mapping[str, Any], field: str = "input") -> UserError:
    """A mistake that was found while a model ran, with its field: the option that it begins with, else the input."""
    if isinstance(error, Fault | NotFinite):
        return error
    message = NUMBERED.sub("", str(error)).replace("; --slide (slide=True) keeps the prompt's end", "")
    name = message.removeprefix("--").partition(" ")[0].rstrip(":").replace("-", "_")
    return Fault(422, message, name if name in options else field)


class CallPlan(Plan):
    """Answers of tasks that run in their own way: an input is a unit, and those of several jobs share a call."""

    def __init__(
        self,
        model: Any,
        task: Task,
        given: Mapping[str, Any],
        options: Sequence[str],
        answers: Callable[[list[Any], Mapping[str, Any]], list[Any]] | None = None,
        cost: Cost | None = None,
    ) -> None:
        self.model, self.task, self.given, self.options = model, task, dict(given), tuple(options)
        self.cost = cost
        self.call = answers or (lambda inputs, given: task.answers(model, inputs, **given))

    def prepare(self, inputs: Sequence[Any], most: int | None = None) -> Prepared:
        checked = in_place(self.task.check_input, inputs)
        sizes = [1] * len(checked)
        if self.model.tokenizer is not None:
            for number, value in enumerate(checked):
                texts = [text for text in self.task.texts_of(value) if isinstance(text, str)]
                sizes[number] = sum(map(len, self.model.tokenizer.ids(texts, specials=False))) if texts else 1
        tokens = sum(sizes)
        if self.cost is not None:
            sizes = [self.cost(self.model, value, **self.given) for value in checked]
            check_tokens(sum(sizes), most)
        return Prepared(list(map(Unit, sizes, enumerate(checked))), tokens)

    def run(self, units: Sequence[Unit]) -> list[Any]:
        try:
            return self.call([value for _, (_, value) in units], self.given)
        except UserError as error:
            failure = error
        for _, (place, value) in units:  # which of them is it?
            try:
                self.call([value], self.given)
            except UserError as error:
                raise as_fault(error, self.given, f"input[{place}]") from None
        raise as_fault(failure, self.given)

    def finish(self, prepared: Prepared, outputs: Sequence[Any]) -> list[Any]:
        return [{**plain_answer(answer), **self.usual_reading(answer)} for answer in outputs]

    @staticmethod
    def usual_reading(answer: Any) -> dict[str, int]:
        """Answers that do not say it have read their text as a whole."""
        return {} if "n_windows" in vars(answer) else {"n_windows": 1}


class SeriesPlan(Plan):
    """Forecasts: of every series of rows, or of series given as lists of values."""

    def __init__(self, model: Any, task: Any) -> None:
        self.model, self.task = model, task

    @cached_property
    def framing(self) -> Framing:
        return framing_for(self.model)

    def prepare(self, inputs: Sequence[Any], most: int | None = None) -> Prepared:
        units, answers = list[Unit](), list[Callable[[Prediction], Forecast]]()
        for number, value in enumerate(inputs):
            try:
                for history, answer in self.series_of(value):
                    units.append(Unit(len(history), history))
                    answers.append(answer)
            except UserError as error:
                raise Fault(422, str(error), f"input[{number}]") from None
        return Prepared(units, sum(unit.size for unit in units), answers)

    def series_of(self, value: Any) -> list[tuple[Any, Callable[[Prediction], Forecast]]]:
        """The last window of each series of one input, and what makes a forecast of its prediction."""
        task = self.task
        if isinstance(value, dict) and set(value) == {"rows"}:
            from weft.data.tables import Table
            from weft.text.rows import Skipped

            rows = value["rows"]
            if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
                raise UserError("rows: a list of objects is expected, one for each row")
            if not all(isinstance(cell, str | int | float | None) for row in rows for cell in row.values()):
                raise UserError("rows: a cell is a text, a number or null")
            windows = task.last_windows(Table(rows), Skipped())
            return [(each.history, self.named(each)) for each in windows]
        named = value.get("series") if isinstance(value, dict) and set(value) == {"series"} else {"": value}
        if not isinstance(named, dict) or not named:
            raise UserError("a series is expected as a list of values, {name: values} or rows")
        pairs = [(str(name), task.check_input("", values)) for name, values in named.items()]
        return [(history, self.unnamed(name, history)) for name, history in pairs]

    def named(self, window: Any) -> Callable[[Prediction], Forecast]:
        times = tuple(window.series.shown_time(window.origin + step) for step in range(self.task.steps))
        return lambda prediction: self.task.forecast(prediction, window.history, window.series.name, times)

    def unnamed(self, name: str, history: Any) -> Callable[[Prediction], Forecast]:
        return lambda prediction: replace(self.task.answer(prediction, history), series=name)

    def run(self, units: Sequence[Unit]) -> list[Any]:
        return self.task.predict(self.model, self.framing, [unit.content for unit in units])

    def finish(self, prepared: Prepared, outputs: Sequence[Any]) -> list[Any]:
        pairs = zip(prepared.state, outputs, strict=True)
        return [plain_answer(answer(prediction)) for answer, prediction in pairs]


class ViewPlan(Plan):
    """A view into the model: one job at a time."""

    together = False

    def __init__(
        self, model: Any, view: Callable[[list[Any], Mapping[str, Any]], dict[str, Any]], given: Mapping[str, Any]
    ) -> None:
        self.model, self.view, self.given = model, view, dict(given)

    def prepare(self, inputs: Sequence[Any], most: int | None = None) -> Prepared:
        texts = [text for text in inputs if isinstance(text, str)]
        tokens = self.model.tokenizer.ids(texts, specials=False)
        framing = framing_for(self.model)
        reading = {"n_tokens": sum(map(len, tokens)), "n_windows": 1, "truncated": False}
        if len(tokens) == 1:
            reading["n_windows"] = len(pieces(framing, tokens[0]))
        return Prepared([Unit(1 + sum(map(len, texts)), list(inputs))], reading["n_tokens"], reading)

    def run(self, units: Sequence[Unit]) -> list[Any]:
        try:
            return [self.view(unit.content, self.given) for unit in units]
        except UserError as error:
            raise as_fault(error, self.given) from None

    def finish(self, prepared: Prepared, outputs: Sequence[Any]) -> list[Any]:
        return [{**view, **prepared.state} for view in outputs]

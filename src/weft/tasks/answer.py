"""Extractive question answering: spans of a text of any length, or no answer."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from weft.checkpoint.card import Card, Window
from weft.checkpoint.families import Family
from weft.checkpoint.folder import LoadedModel
from weft.data.columns import text_in, value_in
from weft.data.examples import Examples, ExamplesBuilder
from weft.data.masking import NOTHING
from weft.errors import UserError, shown
from weft.metrics.bootstrap import Ratios
from weft.metrics.classification import best_no_answer
from weft.metrics.generation import AnswerMetrics, answer_scores
from weft.objectives.losses import TAUGHT, Ends, SoftTargets
from weft.tasks.answers import Answer, Choice, Reply
from weft.tasks.base import Difference, Example, Prediction, Task, TeacherArrays, TeacherRows
from weft.tasks.forward import InputWindows, head_outputs, softmax, stripped, tokenizer_of
from weft.tasks.targets import LogitTarget, Term, read_texts, target_of
from weft.text.records import Record
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.windows import Framing, TextWindow, pieces, special_tokens

NO_ANSWER = "no answer"  # the name of its threshold in the card
LONGEST = 30  # tokens of an answer
EACH = 20  # ends that are paired in a window
CHUNK = 1024  # questions that are tokenized at a time
Offsets = Sequence[tuple[int, int]]  # of tokens, in characters of the context
SIDES = ("starts", "ends")  # of an answer, in the outputs of a teacher


@dataclass(frozen=True)
class Candidates:
    """The best spans over the windows of one question, and how strongly no answer was predicted."""

    spans: tuple[tuple[float, int, int], ...]  # score, start, end in characters, best first
    nothing: float  # the lowest score of no answer over all windows: one that sees an answer outweighs the others

    @property
    def margin(self) -> float:
        return self.nothing - (self.spans[0][0] if self.spans else -1e9)


@dataclass(frozen=True)
class AnswerTask(Task):
    """Extractive answers; there is none where the margin of no answer is above `threshold`."""

    threshold: float | None = None  # None: an answer is always given
    temperature: float = 1.0
    soft: SoftTargets | None = None  # how a student learns from its teacher

    name = "answer"
    head = "answer"
    needs = "looks both ways and has an answer head"
    by_token = windowed = True
    answer_options = ("top",)
    loss_by_token = True
    overlap = 2 / 3  # of windows of 384: as in the paper, 128 tokens from one to the next
    pair = True
    input_names = ("question", "context")
    row_names = ("context", "question", "answer")
    whole_groups = True
    empty_targets = True
    averages = True
    outputs = 2
    metric_names = ("f1", "exact")
    prediction_columns = ("prediction", "probability", "start", "end")
    pair_order = "a question, then its context"
    expected = "a tuple of a question and its context, a list of them, or a table with columns question and context"

    @classmethod
    def fits(cls, family: Family) -> bool:
        return super().fits(family) and not family.one_way

    @classmethod
    def from_model(cls, model: LoadedModel, name: str) -> AnswerTask:
        made = SpanAnswerTask if SpanAnswerTask.head in model.heads else AnswerTask
        return made(model.card.thresholds.get(NO_ANSWER), model.card.temperature or 1.0)

    @classmethod
    def check_model(cls, model: LoadedModel, name: str) -> None:
        if SpanAnswerTask.head not in model.heads:
            super().check_model(model, name)

    def to_card(self, card: Card) -> Card:
        thresholds = {} if self.threshold is None else {NO_ANSWER: self.threshold}
        return replace(card, thresholds=thresholds, temperature=self.temperature)

    def to_record(self, example: Example) -> dict[str, Any]:
        answers = [{"text": text, "start": start} for start, text in example.target]
        return {"question": example.texts[0], "context": example.texts[1], "answer": answers}

    def read(self, record: Record, columns: Mapping[str, str]) -> Example:
        context, question = text_in(record, columns["context"]), text_in(record, columns["question"])
        given = value_in(record, columns["answer"])
        answers: list[tuple[int, str]] = []
        if isinstance(given, dict) and isinstance(given.get("text"), list):  # lists side by side, as in tables of SQuAD
            starts = given.get("answer_start")
            if not isinstance(starts, list) or len(starts) != len(given["text"]):
                raise UserError(f"{record.where}: {len(given['text'])} answers have not as many starts")
            given = [{"text": text, "start": start} for text, start in zip(given["text"], starts, strict=True)]
        if isinstance(given, str | int | float) and not isinstance(given, bool):
            given = [{"text": str(given), "start": record.values.get("start", record.values.get("answer_start"))}]
        if not isinstance(given, list | None):
            raise UserError(f"{record.where}: column {shown(columns['answer'])!r} holds no answer")
        for answer in given or [] if not record.values.get("impossible") else []:
            text = answer.get("text") if isinstance(answer, dict) else answer
            if not isinstance(text, str):
                raise UserError(f"{record.where}: an answer is not a text with its start: {shown(str(answer))}")
            start = answer.get("start", answer.get("answer_start")) if isinstance(answer, dict) else None
            if text.strip():
                lead = len(text) - len(text.lstrip())
                answers.append((self._start(record, context, text.strip(), start, lead), text.strip()))
        return Example((question, context), tuple(answers), record.where)

    @staticmethod
    def _start(record: Record, context: str, answer: str, start: Any, lead: int) -> int:
        """Where an answer stands in its context: `lead` after where the file says, else where it first occurs."""
        if start is None or start == "":
            if (place := context.find(answer)) < 0:
                raise UserError(f"{record.where}: answer {shown(answer)!r} is not in its context {shown(context)!r}")
            return place
        try:
            stated = int(start) + lead
        except (TypeError, ValueError, OverflowError):
            raise UserError(f"{record.where}: the answer's start {shown(str(start))!r} is no number") from None
        for place in (stated, stated - 1, stated + 1):  # a space more or less at either side is no fault
            if place >= 0 and context.startswith(answer, place):
                return place
        there = context[stated : stated + len(answer)] if stated >= 0 else ""
        raise UserError(f"{record.where}: answer {shown(answer)!r} is not at {stated}: there is {shown(there)!r}")

    def fit_labels(self, examples: Sequence[Example], labels: Sequence[str] = ()) -> AnswerTask:
        if not any(example.target for example in examples):
            raise UserError(f"{examples[0].where}: no row has an answer: there is nothing to learn")
        return self

    def groups(self, examples: Sequence[Example]) -> list[Any]:
        """The contexts, so that none stands on both sides of a split."""
        return [example.texts[1] for example in examples]

    def dataset(
        self, examples: Sequence[Example], model: LoadedModel, windows: Framing, teacher_outputs: TeacherRows = None
    ) -> Examples:
        """Each window is an example of its own, whose answer is its [CLS] where it holds no whole answer."""
        builder, probabilities = ExamplesBuilder(), list[NDArray[np.float32]]()
        for begin in range(0, len(examples), CHUNK):
            chunk = examples[begin : begin + CHUNK]
            where = [example.where for example in chunk]
            encoded = self.encode([example.texts for example in chunk], tokenizer_of(model), windows, where)
            for number, (example, pieces_of) in enumerate(zip(chunk, encoded.pieces, strict=True)):
                offsets = encoded.places[number][1]
                answer = tokens_of(offsets, *example.target[0]) if example.target else None
                for piece in pieces_of:
                    ends = (NOTHING, NOTHING) if example.target is None else (piece.summary, piece.summary)
                    if answer is not None and piece.cut.start <= answer[0] and answer[1] < piece.cut.end:
                        ends = (piece.lead + answer[0] - piece.cut.start, piece.lead + answer[1] - piece.cut.start)
                    builder.add([piece], ends=[ends])
                if teacher_outputs is not None:
                    probabilities += self.window_probabilities(teacher_outputs[begin + number], offsets, pieces_of)
        targets: dict[str, Any] = {}
        if teacher_outputs is not None:
            targets["by_token"] = {"teacher_probabilities": np.concatenate(probabilities)}
            targets["by_row"] = {TAUGHT: np.ones(len(probabilities), dtype=np.float32)}
        return builder.examples({}, segments=windows.segments, **targets)

    def objective(self) -> Ends:
        return Ends(self.soft)

    def window(self, model: LoadedModel, length: int | None, stride: int | None, long: str) -> Window:
        length = length or min(384, model.config.context)
        return super().window(model, length, stride or max(1, length // 3), long)

    def encode(
        self, inputs: Sequence[tuple[str, ...]], tokenizer: Tokenizer, windows: Framing, where: Sequence[str] = ()
    ) -> InputWindows:
        """`where`: what messages call each input; a context that several questions are about is read once."""
        questions = tokenizer.ids([question for question, _ in inputs], specials=False)
        distinct = list(dict.fromkeys(context for _, context in inputs))
        known = dict(zip(distinct, tokenizer.encode_batch(distinct, specials=False), strict=True))
        encoded = InputWindows(windows, [], [], [])
        room = windows.length - special_tokens(windows, 2)
        for number, (question, (_, text)) in enumerate(zip(questions, inputs, strict=True)):
            context = known[text]
            if len(question) > room // 2 and len(question) + len(context) > room:
                name = f"{where[number] if where else f'question {number + 1}'}: a question of {len(question)} tokens"
                limit = f"in windows of {windows.length}; shorten it, or raise the length"
                raise UserError(f"{name} leaves too little room for its context {limit}")
            encoded.pieces.append(pieces(windows, question, context.ids))
            encoded.lengths.append((len(question), len(context)))
            encoded.places.append((text, context.offsets))
        return encoded

    def decode(self, logits: Sequence[Sequence[NDArray[Any]]], windows: InputWindows) -> list[Prediction]:
        """The best spans of each question over all windows of its context."""
        return [
            Prediction(self.candidates(parts, windows.pieces[number], *windows.places[number]), *windows.read(number))
            for number, parts in enumerate(logits)
        ]

    def candidates(
        self, logits: Sequence[NDArray[Any]], pieces_of: Sequence[TextWindow], context: str, offsets: Offsets
    ) -> Candidates:
        """The best spans of one question."""
        return candidates(logits, pieces_of, context, offsets)

    def span(self, candidates: Candidates) -> tuple[int, int] | None:
        """The characters of the answer; None: there is none."""
        if not candidates.spans or (self.threshold is not None and candidates.margin > self.threshold):
            return None
        return candidates.spans[0][1:]

    def text(self, prediction: Prediction, context: str) -> str:
        """The answer as a text; "" for none."""
        start, end = self.span(prediction.output) or (0, 0)
        return context[start:end]

    def probabilities(self, candidates: Candidates) -> tuple[NDArray[np.float64], float]:
        """Of the best spans, and of no answer, which the threshold puts in the middle."""
        scores = [score for score, _, _ in candidates.spans]
        if self.threshold is not None:
            scores.append(candidates.nothing - self.threshold)
        if not scores:
            return np.zeros(0), 1.0
        shares = softmax((np.array(scores) - max(scores)) / self.temperature)
        return (shares[:-1], float(shares[-1])) if self.threshold is not None else (shares, 0.0)

    def confidence(self, candidates: Candidates) -> float:
        """The probability of the answer that is given."""
        spans, nothing = self.probabilities(candidates)
        return nothing if self.span(candidates) is None else float(spans[0])

    def answer(self, prediction: Prediction, input: tuple[str, ...], top: int = 3, **options: Any) -> Answer:
        candidates, context = prediction.output, input[1]
        probabilities, nothing = self.probabilities(candidates)
        choices = tuple(
            Choice(text=context[start:end], start=start, end=end, score=float(probability))
            for (_, start, end), probability in zip(candidates.spans[:top], probabilities[:top], strict=True)
        )
        start, end = self.span(candidates) or (0, 0)
        best = Choice(text=context[start:end], start=start, end=end, score=self.confidence(candidates))
        return Reply(**vars(best), no_answer=nothing, best=choices, **prediction.reading)

    explained_sides: ClassVar[tuple[int, ...]] = (
        0,
        1,
    )  # outputs of the head that an explanation adds up: start and end

    def logit_target(self, model: LoadedModel, windows: Framing, input: Any, target: Any) -> LogitTarget:
        """The sum of the start and end logits of an answer: the best one, or the words of the context in `target`."""
        encoded = self.encode([input], tokenizer_of(model), windows)
        logits, pieces_of, (context, offsets) = (
            self.window_logits(model, encoded)[0],
            encoded.pieces[0],
            encoded.places[0],
        )
        span = self.span(self.candidates(logits, pieces_of, context, offsets))
        if target is not None:
            if (start := context.find(target)) < 0:
                raise UserError(f"target {shown(target)!r} is not in the context {shown(context)!r}")
            span = start, start + len(target)
        text = "(no answer)" if span is None else context[slice(*span)]
        ends = None if span is None else tokens_of(offsets, span[0], text)
        places = [
            tuple(piece.summary if ends is None else piece.lead + end - piece.cut.start for end in ends or (0, 0))
            for piece in pieces_of
        ]
        scores = [
            sum(float(part[place, side]) for side, place in enumerate(both) if side in self.explained_sides)
            if ends is None or (piece.cut.start <= ends[0] and ends[1] < piece.cut.end)
            else (-math.inf)
            for both, piece, part in zip(places, pieces_of, logits, strict=True)
        ]
        best = scores.index(min(scores) if ends is None else max(scores))
        terms = [Term(best, places[best][side], side) for side in self.explained_sides]
        return target_of(text, self.head, terms, windows, pieces_of, read_texts(tokenizer_of(model), input))

    def numbers(self, prediction: Prediction) -> NDArray[np.float64]:
        return np.array([prediction.output.nothing, *(score for score, _, _ in prediction.output.spans[:1])])

    def key(self, prediction: Prediction) -> Hashable:
        return self.span(prediction.output)

    def agreement(self) -> Any:
        return Ratios(("same", "f1"))

    def compare(self, prediction: Prediction, reference: Prediction, example: Example, task: Any) -> Difference:
        """By the text, and the F1 of its words."""
        context = example.texts[1]
        same, f1 = answer_scores(self.text(prediction, context), [task.text(reference, context)])
        return ({"same": (same, 1.0), "f1": (f1, 1.0)},), 1 - f1

    def describe_target(self, example: Example) -> str:
        return str(example.target[0][1]) if example.target else "(no answer)"

    def target_parts(self, example: Example) -> Iterable[Hashable]:
        return (bool(example.target),)

    def chance_level(self, counts: Counter[Hashable], rows: int) -> float:
        """What no answer to anything reaches."""
        return counts[False] / max(1, rows)

    def mean_prediction(self, predictions: Sequence[Prediction], tasks: Sequence[Any] = ()) -> Prediction:
        """The answers that any of them gives, by the mean of their probabilities, in logits of this task."""
        places: dict[tuple[int, int], float] = {}
        nothing = 0.0
        for task, prediction in zip(tasks, predictions, strict=True):
            probabilities, none = task.probabilities(prediction.output)
            nothing += none / len(predictions)
            for (_, start, end), probability in zip(prediction.output.spans, probabilities, strict=True):
                places[start, end] = places.get((start, end), 0.0) + float(probability) / len(predictions)

        def logit(probability: float) -> float:
            return self.temperature * math.log(max(probability, 1e-300))

        spans = sorted(((logit(share), *place) for place, share in places.items()), key=lambda c: (-c[0], c[1], c[2]))
        # A task that always answers has no threshold, and gives no answer no probability.
        output = Candidates(tuple(spans), logit(nothing) + (self.threshold or 0.0))
        return replace(predictions[0], output=output)

    def metrics(self) -> Any:
        return AnswerMetrics()

    def add(self, metrics: Any, predictions: Sequence[Prediction], examples: Sequence[Example]) -> None:
        for prediction, example in zip(predictions, examples, strict=True):
            metrics.add(self.text(prediction, example.texts[1]), [text for _, text in example.target])

    def tune(self, predictions: Sequence[Prediction], examples: Sequence[Example]) -> AnswerTask:
        """Held-out rows decide the threshold of no answer, where some have none, and the temperature."""
        always = replace(self, threshold=None)
        best = [
            answer_scores(always.text(each, example.texts[1]), [text for _, text in example.target])
            for each, example in zip(predictions, examples, strict=True)
        ]
        has_none = [not example.target for example in examples]
        threshold = None
        if any(has_none):
            earned = [0.0 if none else f1 for (_, f1), none in zip(best, has_none, strict=True)]
            margins = [each.output.margin for each in predictions]
            threshold = float(best_no_answer(margins, earned, list(map(float, has_none))))
        task = replace(self, threshold=threshold, temperature=1.0)
        right = np.array(
            [
                float(none) if task.span(each.output) is None else 0.0 if none else exact
                for each, (exact, _), none in zip(predictions, best, has_none, strict=True)
            ]
        )

        def brier(temperature: float) -> float:
            tried = replace(task, temperature=temperature)
            return float(((np.array([tried.confidence(each.output) for each in predictions]) - right) ** 2).mean())

        return replace(task, temperature=min((2.0 ** (power / 4) for power in range(-8, 21)), key=brier))

    def loss(self, prediction: Prediction, example: Example) -> float | None:
        """The probability of an answer that has less than half of the words in common with the right one."""
        _, f1 = answer_scores(self.text(prediction, example.texts[1]), [text for _, text in example.target])
        return None if f1 > 0.5 else self.confidence(prediction.output)

    # ------------------------------------------------------------------------------------------------------- teaching
    #
    # The ends of an answer are handed on by characters. The probability that an answer begins with a token of the
    # teacher goes to the student's token that holds its first character; that it ends with one, to the token that holds
    # the last. What lies outside of a student's window goes to its first token, which stands for no answer.

    def teacher_outputs(self, model: LoadedModel, windows: Framing, examples: Sequence[Example]) -> list[TeacherArrays]:
        """The logits of every character as the first or last of the answer, those of no answer, and the answer."""
        task, where = AnswerTask.from_model(model, self.name), [example.where for example in examples]
        encoded = self.encode([example.texts for example in examples], tokenizer_of(model), windows, where)
        outputs = list[TeacherArrays]()
        for number, logits in enumerate(task.window_logits(model, encoded)):
            (context, offsets), windows_of = encoded.places[number], encoded.pieces[number]
            span = task.span(task.candidates(logits, windows_of, context, offsets))
            answer = np.array(span or (), dtype=np.int32)  # empty: there is none
            ends = [task.ends(part, window) for part, window in zip(logits, windows_of, strict=True)]
            outputs.append({**by_character(ends, windows_of, context, offsets), "answer": answer})
        return outputs

    def ends(self, logits: NDArray[Any], window: TextWindow) -> NDArray[Any]:
        """n 2: of each token as the first and as the last of an answer, whatever the other end is."""
        return logits

    def average(self, outputs: Sequence[TeacherArrays]) -> TeacherArrays:
        """The mean of the probabilities; of the answers of all teachers, the one that is likeliest by it."""
        mean: dict[str, NDArray[Any]] = {}
        nothing, by_place = np.zeros(2), list[dict[int, float]]()
        for side, name in enumerate(SIDES):
            each = [side_probabilities(arrays, side, 1.0) for arrays in outputs]
            nothing[side] = sum(none for _, none in each) / len(outputs)
            at, numbers = np.unique(np.concatenate([arrays[f"{name}_at"] for arrays in outputs]), return_inverse=True)
            shares = np.concatenate([spans for spans, _ in each]) / len(outputs)
            total = np.bincount(numbers, shares, len(at)).astype(np.float64)
            mean |= {f"{name}_at": at.astype(np.int32), name: _logarithm(total)}
            by_place.append(dict(zip(at.tolist(), total.tolist(), strict=True)))

        def likelihood(answer: NDArray[Any]) -> float:
            if not len(answer):
                return float(nothing.prod())
            return by_place[0].get(int(answer[0]), 0.0) * by_place[1].get(int(answer[1]) - 1, 0.0)

        answer = max((arrays["answer"] for arrays in outputs), key=likelihood)
        return {**mean, "nothing": _logarithm(nothing), "answer": answer}

    def with_teacher_answer(self, example: Example, outputs: TeacherArrays) -> Example:
        if not len(outputs["answer"]):
            return replace(example, target=())
        start, end = map(int, outputs["answer"])
        return replace(example, target=((start, example.texts[1][start:end]),))

    def window_probabilities(
        self, outputs: TeacherArrays, offsets: Offsets, pieces_of: Sequence[TextWindow]
    ) -> Iterator[NDArray[np.float32]]:
        """For each window n 2: the teacher's probability, at its temperature, of each token to be the first or last."""
        by_token = np.zeros((len(offsets), 2))
        places = np.array(offsets, dtype=np.int64).reshape(-1, 2)
        read = np.flatnonzero(places[:, 1] > places[:, 0])  # some tokens stand for no character
        for side, name in enumerate(SIDES):
            spans, _ = side_probabilities(outputs, side, self.soft.temperature if self.soft else 1.0)
            # The first token that reaches beyond the character, also where none holds it; the last that begins there.
            edges = np.maximum.accumulate(places[read, 1 - side])
            tokens = np.searchsorted(edges, outputs[f"{name}_at"], "right") - side
            inside = (tokens >= 0) & (tokens < len(read))
            np.add.at(by_token[:, side], read[tokens[inside]], spans[inside])
        total = by_token.sum(0)
        for piece in pieces_of:  # what a window lacks, also of an answer shown in part, stands for no answer
            probabilities = np.zeros((len(piece.tokens), 2))
            part = by_token[piece.cut.start : piece.cut.end]
            shares = np.divide(part.sum(0), total, out=np.zeros(2), where=total > 0)
            less = np.divide(shares.min(), shares, out=np.zeros(2), where=shares > 0)
            probabilities[piece.lead : piece.lead + len(part)] = part * less
            probabilities[piece.summary] += 1 - probabilities.sum(0)
            yield probabilities.astype(np.float32)


@dataclass(frozen=True)
class SpanAnswerTask(AnswerTask):
    """The same by the published head of XLNet and XLM: the last token given the first, and a score of no answer.

    The score of an answer is the logarithm of its probability. `weft finetune` trains the head `answer` instead.
    """

    head = "spans"
    explained_sides = (0,)  # the score of an end depends on which starts are the likeliest

    def window_logits(self, model: LoadedModel, windows: InputWindows) -> list[list[NDArray[Any]]]:
        return head_outputs(model, windows, self.head, self.by_token, answerable)

    def candidates(
        self, logits: Sequence[NDArray[Any]], pieces_of: Sequence[TextWindow], context: str, offsets: Offsets
    ) -> Candidates:
        """The margin of no answer is the score that the head gives it, as published."""
        best = candidates(logits, pieces_of, context, offsets, _conditional)
        return replace(best, nothing=best.nothing + (best.spans[0][0] if best.spans else 0.0))

    def ends(self, logits: NDArray[Any], window: TextWindow) -> NDArray[Any]:
        first, last, likely = log_probabilities(logits)
        both = np.stack([first, np.logaddexp.reduce(first[likely][:, None] + last, axis=0)], 1)
        none = float(logits[0, 1])  # a logit: the probability that there is an answer is that of its negative
        both += -np.logaddexp(0.0, none)
        both[window.summary] = -np.logaddexp(0.0, -none)
        return both


def answerable(window: TextWindow) -> NDArray[np.bool_]:
    """The tokens of a window that an answer may consist of, and the one for the whole window."""
    allowed = np.zeros(len(window.tokens), dtype=bool)
    allowed[window.lead : window.lead + window.cut.end - window.cut.start] = True
    allowed[window.summary] = True
    return allowed


def log_probabilities(logits: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Of a window by `SpanHead`: of each token as the first, n; as the last after each likely first, K n; and those."""
    logits = logits.astype(np.float64)
    first, last = (x - np.logaddexp.reduce(x, axis=-1, keepdims=True) for x in (logits[:, 0], logits[:, 2:].T))
    likely = np.argsort(-logits[:, 0], kind="stable")[: len(last)]
    return first, last[: len(likely)], likely


def by_character(
    logits: Sequence[NDArray[Any]], pieces_of: Sequence[TextWindow], context: str, offsets: Offsets
) -> TeacherArrays:
    """The logits of all windows together: a token by the window that scores it highest, no answer by the lowest."""
    scores, nothing = np.full((len(offsets), 2), -np.inf), np.full(2, np.inf)
    for piece, part in zip(pieces_of, logits, strict=True):
        ends, c = part.astype(np.float64), piece.cut
        inside = ends[piece.lead : piece.lead + c.end - c.start]
        scores[c.start : c.end] = np.maximum(scores[c.start : c.end], inside)
        none = ends[piece.summary]
        nothing = none if none.sum() < nothing.sum() else nothing
    known = np.isfinite(scores[:, 0])  # where texts are truncated, the rest was not read
    places = np.array(offsets, dtype=np.int64).reshape(-1, 2)[known]
    first = last = places[:, 0]
    letters = np.array([number for number, letter in enumerate(context) if not letter.isspace()], dtype=np.int64)
    if len(letters):  # of each token the first and last that is no space: some vocabularies count spaces to a word
        after = np.searchsorted(letters, np.maximum(places[:, 1], first + 1))
        first = letters[np.searchsorted(letters, first).clip(0, len(letters) - 1)]
        last = letters[(after - 1).clip(0, len(letters) - 1)]
    arrays: dict[str, NDArray[Any]] = {}
    for side, (name, at) in enumerate(zip(SIDES, (first, last), strict=True)):
        arrays |= {f"{name}_at": at.astype(np.int32), name: scores[known, side].astype(np.float32)}
    return {**arrays, "nothing": nothing.astype(np.float32)}


def side_probabilities(outputs: TeacherArrays, side: int, temperature: float) -> tuple[NDArray[np.float64], float]:
    """The probability of each place to be the first (or last) of an answer, and that of no answer."""
    scores = np.r_[outputs["nothing"][side], outputs[SIDES[side]]].astype(np.float64) / temperature
    shares = softmax(scores)
    return shares[1:], float(shares[0])


def _logarithm(probabilities: NDArray[np.float64]) -> NDArray[np.float32]:
    return np.log(np.maximum(probabilities, 1e-30)).astype(np.float32)


# Of a window: the score of no answer, some first and some last tokens of its part of the text, and all their scores.
Pairs = tuple[float, NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]


def _independent(ends: NDArray[Any], piece: TextWindow) -> Pairs:
    """By n 2: of each token as the first and as the last."""
    ends, size = ends.astype(np.float64), piece.cut.end - piece.cut.start
    inside, each = ends[piece.lead : piece.lead + size], min(EACH, size)
    firsts, lasts = (np.argsort(-inside[:, side], kind="stable")[:each] for side in (0, 1))
    return float(ends[piece.summary].sum()), firsts, lasts, inside[firsts, 0][:, None] + inside[lasts, 1]


def _conditional(logits: NDArray[Any], piece: TextWindow) -> Pairs:
    """By n 2+K: what `SpanHead` gives."""
    first, last, likely = log_probabilities(logits)
    size = piece.cut.end - piece.cut.start
    inside = (likely >= piece.lead) & (likely < piece.lead + size)
    scores = first[likely[inside]][:, None] + last[inside, piece.lead : piece.lead + size]
    return float(logits[0, 1]), likely[inside] - piece.lead, np.arange(size), scores


def candidates(
    logits: Sequence[NDArray[Any]],
    pieces_of: Sequence[TextWindow],
    context: str,
    offsets: Offsets,
    pairs: Callable[[NDArray[Any], TextWindow], Pairs] = _independent,
) -> Candidates:
    """The best spans of one question; `logits` by window."""
    spans: dict[tuple[int, int], float] = {}
    nothing = np.inf
    for piece, part in zip(pieces_of, logits, strict=True):
        none, firsts, lasts, scores = pairs(part, piece)
        nothing, begin = min(nothing, none), piece.cut.start
        scores[(lasts < firsts[:, None]) | (lasts >= firsts[:, None] + LONGEST)] = -np.inf
        for number in np.argsort(-scores, axis=None, kind="stable")[: min(EACH, len(lasts))].tolist():
            score = float(scores.flat[number])
            first, last = firsts[number // len(lasts)], lasts[number % len(lasts)]
            start, end = stripped(context, offsets[begin + first][0], offsets[begin + last][1])
            if end > start and score > spans.get((start, end), -np.inf):
                spans[start, end] = score
    best = sorted(((score, *place) for place, score in spans.items()), key=lambda span: (-span[0], span[1], span[2]))
    return Candidates(tuple(best[:EACH]), float(nothing))


def tokens_of(offsets: Offsets, start: int, text: str) -> tuple[int, int] | None:
    """The first and last token of an answer; None where the vocabulary reads nothing there."""
    last = start + len(text)
    inside = [n for n, (begin, end) in enumerate(offsets) if begin < last and end > start and end > begin]
    return (inside[0], inside[-1]) if inside else None

"""Extractive question answering: spans of a text of any length, or no answer."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

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
from weft.tasks.base import Example, Prediction, Task, TeacherArrays, TeacherRows
from weft.tasks.forward import InputWindows, framing_for, head_outputs, stripped, tokenizer_of
from weft.text.records import Record
from weft.text.tokenizers.tokenizer import Encoded, Tokenizer
from weft.text.windows import Framing, TextWindow, pieces, special_tokens

NO_ANSWER = "no answer"  # the name of its threshold in the card
LONGEST = 30  # tokens of an answer
EACH = 20  # ends that are paired in a window
CHUNK = 1024  # questions that are tokenized at a time
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
    needs = "looks both ways"
    by_token = True
    overlap = 2 / 3  # of windows of 384: as in the paper, 128 tokens from one to the next
    pair = True
    whole_groups = True
    empty_targets = True
    outputs = 2
    default_metric = "f1"
    metric_names = ("f1", "exact")
    prediction_columns = ("prediction", "probability", "start", "end")
    pair_order = "a question, then its context"
    expected = "a tuple of a question and its context, a list of them, or a table with columns question and context"

    @classmethod
    def from_recipe(cls, work: Any, data: Any) -> AnswerTask:
        cls.check_recipe(work)
        return cls()

    @classmethod
    def fits(cls, family: Family) -> bool:
        return super().fits(family) and not family.speaks

    @classmethod
    def from_model(cls, model: LoadedModel, name: str) -> AnswerTask:
        return cls(model.card.thresholds.get(NO_ANSWER), model.card.temperature or 1.0)

    def to_card(self, card: Card) -> Card:
        thresholds = {} if self.threshold is None else {NO_ANSWER: self.threshold}
        return replace(card, thresholds=thresholds, temperature=self.temperature)

    def input_columns(self, record: Record, given: Mapping[str, str]) -> tuple[str, ...]:
        return ("question", "context")

    def columns(self, record: Record, given: Mapping[str, str]) -> tuple[AnswerTask, tuple[str, ...]]:
        return self, ("context", "question", "answer")

    def read_input(self, record: Record, columns: Mapping[str, str]) -> Example:
        texts = tuple(text_in(record, columns[name]) for name in ("question", "context"))
        return Example(texts, None, record.where)

    def check_input(self, number: int, value: Any) -> tuple[str, ...]:
        if isinstance(value, tuple | list) and len(value) == 2 and all(isinstance(each, str) for each in value):
            return tuple(value)
        raise UserError(f"input {number}: a question and its context is expected")

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
        """Where an answer stands in its context: `lead` after where the file says, or where it is first found."""
        if start is None or start == "":
            place = context.find(answer)
            if place < 0:
                raise UserError(
                    f"{record.where}: the answer {shown(answer)!r} is not in its context {shown(context)!r}"
                )
            return place
        try:
            place = int(start) + lead
        except (TypeError, ValueError, OverflowError):
            raise UserError(f"{record.where}: the answer's start {shown(str(start))!r} is no number") from None
        there = context[place : place + len(answer)] if place >= 0 else ""
        if there != answer:
            # A space more or less at either side is no fault worth stopping for.
            for near in (place - 1, place + 1):
                if near >= 0 and context[near : near + len(answer)] == answer:
                    return near
            raise UserError(
                f"{record.where}: the answer {shown(answer)!r} does not stand at {place}: there stands {shown(there)!r}"
            )
        return place

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
        """Each window is an example of its own, whose answer is its first token where it holds no whole answer."""
        builder, probabilities = ExamplesBuilder(), list[NDArray[np.float32]]()
        for begin in range(0, len(examples), CHUNK):
            chunk = examples[begin : begin + CHUNK]
            pairs = encoded_pairs(tokenizer_of(model), [example.texts for example in chunk])
            for number, (example, question, context) in enumerate(zip(chunk, *pairs, strict=True), begin):
                answer = tokens_of(context, *example.target[0]) if example.target else None
                soft = (
                    None
                    if teacher_outputs is None
                    else self.token_probabilities(teacher_outputs[number], context.offsets)
                )
                for piece in windows_of(windows, question, context, example.where):
                    ends = (NOTHING, NOTHING) if example.target is None else (0, 0)
                    if answer is not None and piece.cut.start <= answer[0] and answer[1] < piece.cut.end:
                        ends = (piece.lead + answer[0] - piece.cut.start, piece.lead + answer[1] - piece.cut.start)
                    builder.add([piece], ends=[ends])
                    if soft is not None:
                        probabilities.append(in_window(soft, piece))
        if teacher_outputs is None:
            return builder.examples({}, segments=windows.segments)
        return builder.examples(
            {},
            segments=windows.segments,
            by_token={"teacher_probabilities": np.concatenate(probabilities)},
            by_row={TAUGHT: np.ones(len(probabilities), dtype=np.float32)},
        )

    def objective(self) -> Ends:
        return Ends(self.soft)

    def window(self, model: LoadedModel, length: int | None, stride: int | None, long: str) -> Window:
        length = length or min(384, model.config.context)
        return super().window(model, length, stride or max(1, length // 3), long)

    def encode(
        self, inputs: Sequence[tuple[str, ...]], tokenizer: Tokenizer, windows: Framing, where: Sequence[str] = ()
    ) -> InputWindows:
        """`where`: what messages call each input."""
        questions, contexts = encoded_pairs(tokenizer, inputs)
        pairs = list(zip(questions, contexts, strict=True))
        names = where or [f"question {number}" for number in range(1, len(pairs) + 1)]
        return InputWindows(
            windows,
            [windows_of(windows, *pair, name) for pair, name in zip(pairs, names, strict=True)],
            [(len(question), len(context)) for question, context in pairs],
            [(text[1], context.offsets) for text, context in zip(inputs, contexts, strict=True)],
        )

    def decode(self, logits: Sequence[Sequence[NDArray[Any]]], windows: InputWindows) -> list[Prediction]:
        """The best spans of each question over all windows of its context."""
        return [
            Prediction(candidates(parts, windows.pieces[number], *windows.places[number]), *windows.read(number))
            for number, parts in enumerate(logits)
        ]

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
        powers = np.exp((np.array(scores) - max(scores)) / self.temperature)
        shares = powers / powers.sum()
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
        return Reply(
            text=context[start:end],
            start=start,
            end=end,
            score=self.confidence(candidates),
            no_answer=nothing,
            best=choices,
            **prediction.reading,
        )

    averages = True

    def is_finite(self, prediction: Prediction) -> bool:
        return all(map(math.isfinite, [prediction.output.nothing, *(score for score, _, _ in prediction.output.spans)]))

    def key(self, prediction: Prediction) -> Hashable:
        return self.span(prediction.output)

    def agreement(self) -> Any:
        return Ratios(("same", "f1"))

    def _overlap(
        self, prediction: Prediction, reference: Prediction, example: Example, task: Any
    ) -> tuple[float, float]:
        """Whether two models give the same text, and the F1 of their words."""
        context = example.texts[1]
        return answer_scores(self.text(prediction, context), [task.text(reference, context)])

    def agree(self, counts: Any, prediction: Prediction, reference: Prediction, example: Example, task: Task) -> None:
        same, f1 = self._overlap(prediction, reference, example, task)
        counts.add({"same": (same, 1.0), "f1": (f1, 1.0)})

    def distance(self, prediction: Prediction, reference: Prediction, example: Example, task: Task) -> float:
        return 1 - self._overlap(prediction, reference, example, task)[1]

    def describe(self, prediction: Prediction, other: Prediction, example: Example) -> str:
        answer: Any = self.answer(prediction, example.texts)
        return f"{answer.text or '(no answer)'} {answer.score:.3f}"

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

    def logits_of(self, model: LoadedModel, inputs: Sequence[Any]) -> list[NDArray[Any]]:
        checked = [self.check_input(number, value) for number, value in enumerate(inputs, 1)]
        outputs = [each.output for each in self.predict(model, framing_for(model), checked)]
        return [np.array([each.nothing, *(score for score, _, _ in each.spans[:1])]) for each in outputs]

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

    def mistake(self, prediction: Prediction, example: Example) -> tuple[float, dict[str, str]] | None:
        text, golds = self.text(prediction, example.texts[1]), [text for _, text in example.target]
        if answer_scores(text, golds)[1] > 0.5:
            return None
        confidence = self.confidence(prediction.output)
        return confidence, {
            "target": golds[0] if golds else "(no answer)",
            "prediction": f"{text or '(no answer)'} {confidence:.3f}",
            "where": example.where,
            "text": example.texts[0],
        }

    # ------------------------------------------------------------------------------------------------------- teaching
    #
    # The ends of an answer are handed on by characters. The probability that an answer begins with a token of the
    # teacher goes to the student's token that holds its first character; that it ends with one, to the token that holds
    # the last. What lies outside of a student's window goes to its first token, which stands for no answer.

    def learning_from(self, settings: Any, teachers: Sequence[LoadedModel]) -> AnswerTask:
        return replace(self, soft=SoftTargets(settings.temperature, settings.hard))

    def teacher_outputs(self, model: LoadedModel, windows: Framing, examples: Sequence[Example]) -> list[TeacherArrays]:
        """The logits of every character as the first or last of the answer, those of no answer, and the answer."""
        task, where = AnswerTask.from_model(model, self.name), [example.where for example in examples]
        encoded = self.encode([example.texts for example in examples], tokenizer_of(model), windows, where)
        outputs = list[TeacherArrays]()
        for number, logits in enumerate(head_outputs(model, encoded, self.head, self.by_token)):
            context, offsets = encoded.places[number]
            span = task.span(candidates(logits, encoded.pieces[number], context, offsets))
            answer = np.array(span or (), dtype=np.int32)  # empty: there is none
            outputs.append({**by_character(logits, encoded.pieces[number], context, offsets), "answer": answer})
        return outputs

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

    def token_probabilities(self, outputs: TeacherArrays, offsets: Sequence[tuple[int, int]]) -> NDArray[np.float64]:
        """n 2: the teacher's probability, at its temperature, of each student's token to be the first or the last."""
        probabilities = np.zeros((len(offsets), 2))
        places = np.array(offsets, dtype=np.int64).reshape(-1, 2)
        read = np.flatnonzero(places[:, 1] > places[:, 0])  # some tokens stand for no character
        for side, name in enumerate(SIDES):
            spans, _ = side_probabilities(outputs, side, self.soft.temperature if self.soft else 1.0)
            at = outputs[f"{name}_at"]
            if side == 0:  # the first token that reaches beyond the character, also where none holds it
                tokens = np.searchsorted(np.maximum.accumulate(places[read, 1]), at, "right")
            else:  # the last one that begins no later
                tokens = np.searchsorted(np.maximum.accumulate(places[read, 0]), at, "right") - 1
            inside = (tokens >= 0) & (tokens < len(read))
            np.add.at(probabilities[:, side], read[tokens[inside]], spans[inside])
        return probabilities


def by_character(
    logits: Sequence[NDArray[Any]], pieces_of: Sequence[TextWindow], context: str, offsets: Sequence[tuple[int, int]]
) -> TeacherArrays:
    """The logits of all windows together: a token by the window that scores it highest, no answer by the lowest."""
    scores, nothing = np.full((len(offsets), 2), -np.inf), np.full(2, np.inf)
    for piece, part in zip(pieces_of, logits, strict=True):
        ends, c = part.astype(np.float64), piece.cut
        inside = ends[piece.lead : piece.lead + c.end - c.start]
        scores[c.start : c.end] = np.maximum(scores[c.start : c.end], inside)
        nothing = ends[0] if ends[0].sum() < nothing.sum() else nothing
    known = np.isfinite(scores[:, 0])  # where texts are truncated, the rest was not read
    starts_at, ends_at = _letters(context, np.array(offsets, dtype=np.int64).reshape(-1, 2)[known])
    return {
        "starts_at": starts_at.astype(np.int32),
        "starts": scores[known, 0].astype(np.float32),
        "ends_at": ends_at.astype(np.int32),
        "ends": scores[known, 1].astype(np.float32),
        "nothing": nothing.astype(np.float32),
    }


def _letters(context: str, places: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The first and last character of each token that is no space: some vocabularies count spaces to a word."""
    letters = np.array([number for number, letter in enumerate(context) if not letter.isspace()], dtype=np.int64)
    if not len(letters):
        return places[:, 0], places[:, 0]
    first = np.searchsorted(letters, places[:, 0]).clip(0, len(letters) - 1)
    last = (np.searchsorted(letters, np.maximum(places[:, 1], places[:, 0] + 1)) - 1).clip(0, len(letters) - 1)
    return letters[first], letters[last]


def side_probabilities(outputs: TeacherArrays, side: int, temperature: float) -> tuple[NDArray[np.float64], float]:
    """The probability of each place to be the first (or last) of an answer, and that of no answer."""
    scores = np.r_[outputs["nothing"][side], outputs[SIDES[side]]].astype(np.float64) / temperature
    powers = np.exp(scores - scores.max())
    shares = powers / powers.sum()
    return shares[1:], float(shares[0])


def in_window(by_token: NDArray[np.float64], piece: TextWindow) -> NDArray[np.float32]:
    """What a window has of the probabilities; the rest, also of an answer shown in part, stands for no answer."""
    probabilities = np.zeros((len(piece.tokens), 2))
    inside = by_token[piece.cut.start : piece.cut.end]
    total = by_token.sum(0)
    shares = np.divide(inside.sum(0), total, out=np.zeros(2), where=total > 0)
    less = np.divide(shares.min(), shares, out=np.zeros(2), where=shares > 0)
    probabilities[piece.lead : piece.lead + len(inside)] = inside * less
    probabilities[0] += 1 - probabilities.sum(0)
    return probabilities.astype(np.float32)


def _logarithm(probabilities: NDArray[np.float64]) -> NDArray[np.float32]:
    return np.log(np.maximum(probabilities, 1e-30)).astype(np.float32)


def candidates(
    logits: Sequence[NDArray[Any]], pieces_of: Sequence[TextWindow], context: str, offsets: Sequence[tuple[int, int]]
) -> Candidates:
    """The best spans of one question; `logits` by window, n 2: of each token as the first and as the last."""
    spans: dict[tuple[int, int], float] = {}
    nothing = np.inf
    for piece, ends in zip(pieces_of, logits, strict=True):
        ends = ends.astype(np.float64)
        nothing = min(nothing, float(ends[0].sum()))
        for score, first, last in _spans(ends, piece):
            start, end = stripped(context, offsets[first][0], offsets[last][1])
            if end > start and score > spans.get((start, end), -np.inf):
                spans[start, end] = score
    best = sorted(((score, *place) for place, score in spans.items()), key=lambda span: (-span[0], span[1], span[2]))
    return Candidates(tuple(best[:EACH]), float(nothing))


def encoded_pairs(tokenizer: Tokenizer, pairs: Sequence[tuple[str, ...]]) -> tuple[list[list[int]], list[Encoded]]:
    """The tokens of questions and contexts; a context that several questions are about is read once."""
    questions = tokenizer.ids([question for question, _ in pairs], specials=False)
    distinct = list(dict.fromkeys(context for _, context in pairs))
    known = dict(zip(distinct, tokenizer.encode_batch(distinct, specials=False), strict=True))
    return questions, [known[context] for _, context in pairs]


def windows_of(framing: Framing, question: list[int], context: Encoded, where: str) -> list[TextWindow]:
    """The windows of a context, the question in each."""
    room = framing.length - special_tokens(framing, 2)
    if len(question) > room // 2 and len(question) + len(context) > room:
        raise UserError(
            f"{where}: a question of {len(question)} tokens leaves too little room for its context in windows of "
            f"{framing.length}; ask in fewer words, or give a greater length"
        )
    return pieces(framing, question, context.ids)


def tokens_of(context: Encoded, start: int, text: str) -> tuple[int, int] | None:
    """The first and last token of an answer; None where the vocabulary reads nothing there."""
    inside = [
        n for n, (begin, end) in enumerate(context.offsets) if begin < start + len(text) and end > start and end > begin
    ]
    return (inside[0], inside[-1]) if inside else None


def _spans(ends: NDArray[np.float64], piece: TextWindow) -> list[tuple[float, int, int]]:
    """The best pairs of a first and a last token in a window, as tokens of the context."""
    size = piece.cut.end - piece.cut.start
    inside = ends[piece.lead : piece.lead + size]
    each = min(EACH, size)
    firsts, lasts = (np.argsort(-inside[:, side], kind="stable")[:each] for side in (0, 1))
    scores = inside[firsts, 0][:, None] + inside[lasts, 1]
    fits = (lasts >= firsts[:, None]) & (lasts < firsts[:, None] + LONGEST)
    scores = np.where(fits, scores, -np.inf)
    best = np.argsort(-scores, axis=None, kind="stable")[:each]
    return [
        (
            float(scores.flat[number]),
            piece.cut.start + int(firsts[number // each]),
            piece.cut.start + int(lasts[number % each]),
        )
        for number in best.tolist()
        if np.isfinite(scores.flat[number])
    ]

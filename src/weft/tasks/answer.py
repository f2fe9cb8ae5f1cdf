"""Answers to questions, found in a text of any length; or that the text has none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.checkpoint.card import Card
from weft.checkpoint.folder import LoadedModel
from weft.data.examples import Examples, Gathering
from weft.errors import UserError, shown
from weft.objectives.tasks import Ends
from weft.tasks.answers import Answer, Choice, Reply
from weft.tasks.forward import Prediction, outcome, through, tokenizer_of
from weft.tasks.reading import Example, text_in, value_in
from weft.text.metrics_text import Answers, answer_scores
from weft.text.records import Record
from weft.text.thresholds import best_no_answer
from weft.text.tokenizer import Encoded, Tokenizer
from weft.text.windows import Framing, Piece, pieces, special_tokens

NO_ANSWER = "no answer"  # the name of its threshold in the card
LONGEST = 30  # tokens of an answer
EACH = 20  # ends that are paired in a window


@dataclass(frozen=True)
class Found:
    """What the windows of one question hold: the best answers, and how strongly nothing was seen anywhere."""

    choices: tuple[tuple[float, int, int], ...]  # score, start, end, best first
    nothing: float  # the lowest score of no answer over all windows: one that sees an answer outweighs the others

    @property
    def margin(self) -> float:
        return self.nothing - (self.choices[0][0] if self.choices else -1e9)


@dataclass(frozen=True)
class Heard:
    """What a network says of one question and its context."""

    pieces: list[Piece]
    ends: list[NDArray[np.float64]]  # by window, n 2: the scores of each token as the first and as the last
    offsets: list[tuple[int, int]]  # of the tokens of the context, in characters
    asked: int  # tokens of the question

    def found(self, context: str) -> Found:
        """The best answers over all windows."""
        choices: dict[tuple[int, int], float] = {}
        nothing = np.inf
        for piece, ends in zip(self.pieces, self.ends, strict=True):
            nothing = min(nothing, float(ends[0].sum()))
            for score, first, last in _spans(ends, piece):
                start, end = stripped(context, self.offsets[first][0], self.offsets[last][1])
                if end > start and score > choices.get((start, end), -np.inf):
                    choices[start, end] = score
        best = sorted(((score, *place) for place, score in choices.items()), key=lambda c: (-c[0], c[1], c[2]))
        return Found(tuple(best[:EACH]), float(nothing))


@dataclass(frozen=True)
class AnswerTask:
    """Extractive answers; above `threshold` the margin of no answer decides that there is none."""

    threshold: float | None = None  # None: an answer is always given
    temperature: float = 1.0
    labels: tuple[str, ...] = ()  # it has none

    name = "answer"
    head = "answer"
    overlap = 2 / 3  # of windows of 384: as in the paper, 128 tokens from one to the next
    outputs = 2
    chosen = "f1"
    names = ("f1", "exact")

    @property
    def objective(self) -> Ends:
        return Ends()

    @staticmethod
    def asked(example: Example) -> tuple[str, ...]:
        return example.texts

    # ------------------------------------------------------------------------------------------ from people's data

    def needed(self, record: Record, given: Mapping[str, str]) -> tuple[AnswerTask, tuple[str, ...]]:
        return self, ("context", "question", "answer")

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

    def learned(self, examples: Sequence[Example], labels: Sequence[str] = ()) -> AnswerTask:
        if not any(example.target for example in examples):
            raise UserError(f"{examples[0].where}: no row has an answer: there is nothing to learn")
        return self

    def groups(self, examples: Sequence[Example]) -> list[Any] | None:
        """None: rows are held out by whole contexts, so that no context is on both sides."""
        return None

    def check(self, examples: Sequence[Example]) -> None:
        pass

    def table(self, examples: Sequence[Example], tokenizer: Tokenizer, framing: Framing) -> Examples:
        """The examples as a source of batches; each window is one of its own, and points at its first token where it
        holds no whole answer."""
        gathering = Gathering()
        questions, contexts = encoded_pairs(tokenizer, examples)
        for example, question, context in zip(examples, questions, contexts, strict=True):
            wanted = tokens_of(context, *example.target[0]) if example.target else None
            for piece in windows_of(framing, question, context, example.where):
                ends = (0, 0)
                if wanted is not None and piece.cut.start <= wanted[0] and wanted[1] < piece.cut.end:
                    ends = (piece.lead + wanted[0] - piece.cut.start, piece.lead + wanted[1] - piece.cut.start)
                gathering.add([piece], ends=[ends])
        return gathering.examples({}, segments=framing.segments)

    # -------------------------------------------------------------------------------------- from network to answer

    def outcomes(self, opened: LoadedModel, framing: Framing, texts: Sequence[tuple[str, ...]]) -> list[Prediction]:
        """The best answers of each question over all windows of its context."""
        asked = [Example(pair, None, f"question {number + 1}") for number, pair in enumerate(texts)]
        return [
            outcome(heard.found(pair[1]), framing, heard.pieces, heard.asked, len(heard.offsets))
            for heard, pair in zip(self.heard(opened, framing, asked), texts, strict=True)
        ]

    def heard(self, opened: LoadedModel, framing: Framing, asked: Sequence[Example]) -> Iterator[Heard]:
        """What a network says of the tokens of each question and context, window by window."""
        questions, contexts = encoded_pairs(tokenizer_of(opened), asked)
        found = [
            windows_of(framing, question, context, example.where)
            for example, question, context in zip(asked, questions, contexts, strict=True)
        ]
        flat = [piece for some in found for piece in some]
        logits = opened.network.logits
        said = iter(through(opened, framing, flat, lambda h, b: logits("answer", h, b.rows), True))
        for some, question, context in zip(found, questions, contexts, strict=True):
            ends = [next(said).double().numpy() for _ in some]
            yield Heard(some, ends, context.offsets, len(question))

    def answers(self, found: Found) -> tuple[int, int] | None:
        """The characters of the answer; None: there is none."""
        if not found.choices or (self.threshold is not None and found.margin > self.threshold):
            return None
        return found.choices[0][1:]

    def chances(self, found: Found) -> tuple[NDArray[np.float64], float]:
        """The chances of the best answers, and of none, which the threshold puts in the middle."""
        scores = [score for score, _, _ in found.choices]
        if self.threshold is not None:
            scores.append(found.nothing - self.threshold)
        if not scores:
            return np.zeros(0), 1.0
        powers = np.exp((np.array(scores) - max(scores)) / self.temperature)
        chances = powers / powers.sum()
        return (chances[:-1], float(chances[-1])) if self.threshold is not None else (chances, 0.0)

    def answer(self, found: Prediction, context: str, best: int = 3) -> Answer:
        held: Found = found.said
        chances, nothing = self.chances(held)
        choices = tuple(
            Choice(text=context[start:end], start=start, end=end, score=float(chance))
            for (_, start, end), chance in zip(held.choices[:best], chances[:best], strict=True)
        )
        place = self.answers(held)
        start, end = place or (0, 0)
        return Reply(
            text=context[start:end],
            start=start,
            end=end,
            score=float(chances[0]) if place else nothing,
            no_answer=nothing,
            best=choices,
            n_tokens=found.n_tokens,
            n_windows=found.n_windows,
            truncated=found.truncated,
        )

    def tuned(self, outcomes: Sequence[Prediction], examples: Sequence[Example]) -> AnswerTask:
        """The task with what held-out rows decide: the threshold of no answer, where some have none, and the
        temperature that makes a chance of 0.8 right in eight of ten."""
        best = [
            answer_scores(self._best_text(found.said, example), [text for _, text in example.target])
            for found, example in zip(outcomes, examples, strict=True)
        ]
        has_none = [not example.target for example in examples]
        threshold = None
        if any(has_none):
            earned = [0.0 if none else f1 for (_, f1), none in zip(best, has_none, strict=True)]
            margins = [found.said.margin for found in outcomes]
            threshold = float(best_no_answer(margins, earned, list(map(float, has_none))))
        task = replace(self, threshold=threshold, temperature=1.0)
        right = np.array(
            [
                float(none) if task.answers(found.said) is None else 0.0 if none else exact
                for found, (exact, _), none in zip(outcomes, best, has_none, strict=True)
            ]
        )
        choices = [2.0 ** (power / 4) for power in range(-8, 21)]
        return replace(
            task, temperature=min(choices, key=lambda t: _brier(replace(task, temperature=t), outcomes, right))
        )

    @staticmethod
    def _best_text(found: Found, example: Example) -> str:
        return example.texts[1][found.choices[0][1] : found.choices[0][2]] if found.choices else ""

    def carded(self, card: Card) -> Card:
        thresholds = {} if self.threshold is None else {NO_ANSWER: self.threshold}
        return replace(card, thresholds=thresholds, temperature=self.temperature)

    def metrics(self) -> Any:
        return Answers()

    def add(self, metrics: Any, outcomes: Sequence[Prediction], examples: Sequence[Example]) -> None:
        for found, example in zip(outcomes, examples, strict=True):
            place = self.answers(found.said)
            said = "" if place is None else example.texts[1][place[0] : place[1]]
            metrics.add(said, [text for _, text in example.target])

    def mistake(self, found: Prediction, example: Example) -> tuple[float, dict[str, str]] | None:
        place = self.answers(found.said)
        said = "" if place is None else example.texts[1][place[0] : place[1]]
        golds = [text for _, text in example.target]
        if answer_scores(said, golds)[1] > 0.5:
            return None
        chances, nothing = self.chances(found.said)
        sure = float(chances[0]) if place else nothing
        right = golds[0] if golds else "(no answer)"
        return sure, {
            "right": right,
            "said": f"{said or '(no answer)'} {sure:.3f}",
            "where": example.where,
            "text": example.texts[0],
        }


def _brier(task: AnswerTask, outcomes: Sequence[Prediction], right: NDArray[np.float64]) -> float:
    sure = []
    for found in outcomes:
        chances, nothing = task.chances(found.said)
        sure.append(float(chances[0]) if task.answers(found.said) is not None else nothing)
    return float(((np.array(sure) - right) ** 2).mean())


def encoded_pairs(tokenizer: Tokenizer, examples: Sequence[Example]) -> tuple[list[list[int]], list[Encoded]]:
    """The tokens of questions and contexts; a context that several questions are about is read once."""
    questions = tokenizer.ids([example.texts[0] for example in examples], specials=False)
    distinct = list(dict.fromkeys(example.texts[1] for example in examples))
    known = dict(zip(distinct, tokenizer.encode_batch(distinct, specials=False), strict=True))
    return questions, [known[example.texts[1]] for example in examples]


def windows_of(framing: Framing, question: list[int], context: Encoded, where: str) -> list[Piece]:
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


def _spans(ends: NDArray[np.float64], piece: Piece) -> list[tuple[float, int, int]]:
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


def stripped(text: str, start: int, end: int) -> tuple[int, int]:
    """Without the space that some vocabularies count to a word."""
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    return start, end


def task_of(opened: LoadedModel) -> AnswerTask:
    card = opened.card
    return AnswerTask(card.thresholds.get(NO_ANSWER), card.temperature or 1.0)

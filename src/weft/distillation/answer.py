"""Answers in a text, taught: where they begin and end is said by characters, and each side reads by its own tokens.

A teacher's chance that an answer begins with a token goes to the student's token that holds the first character of it;
that one ends with a token, to the one that holds the last. What lies outside of a student's window goes to the window's
first token, which says that there is no answer here.

n: tokens of a context; R: rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.checkpoint.folder import LoadedModel
from weft.data.examples import Examples, ExamplesBuilder
from weft.data.masking import NOTHING
from weft.distillation.base import Lesson, Said
from weft.objectives.soft import SoftTargets
from weft.objectives.tasks import TAUGHT, Ends
from weft.tasks.answer import AnswerTask, candidates, encoded_pairs, tokens_of, windows_of
from weft.tasks.base import Example
from weft.tasks.forward import head_outputs, tokenizer_of
from weft.text.windows import Framing, TextWindow

TOGETHER = 1024  # questions that are tokenized at a time
SIDES = ("starts", "ends")
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class AnswerLesson(Lesson):
    """Of each question: the teacher's scores of every character of the context to be the first or last of the answer,
    and those of no answer."""

    task: AnswerTask
    temperature: float = 1.0
    hard: float = 0.0  # how much a right answer counts beside the teacher

    @property
    def objective(self) -> Ends:
        return Ends(SoftTargets(self.temperature, self.hard))

    def same(self, other: LoadedModel, name: str) -> bool:
        return True

    def settled(self, examples: Sequence[Example], said: Sequence[Said]) -> AnswerLesson:
        """No hard loss where nobody knows an answer."""
        return self if any(example.target is not None for example in examples) else replace(self, hard=0.0)

    def said(self, teacher: LoadedModel, framing: Framing, examples: Sequence[Example]) -> list[Said]:
        task, found = AnswerTask.from_model(teacher, "answer"), list[Said]()
        pairs, where = [example.texts for example in examples], [example.where for example in examples]
        windows = task.encode(pairs, tokenizer_of(teacher), framing, where)
        for number, logits in enumerate(head_outputs(teacher, windows, "answer", True)):
            held = logits, windows.pieces[number], *windows.places[number]
            place = task.span(candidates(*held))
            answer = np.array(place or (), dtype=np.int32)  # empty: there is none
            found.append({**by_character(*held), "answer": answer})
        return found

    def mean(self, found: Sequence[Said]) -> Said:
        """The mean of the chances; of the answers of all teachers, the one that is likeliest by it."""
        mean: dict[str, NDArray[Any]] = {}
        nothing, there = np.zeros(2), list[dict[int, float]]()
        for side, name in enumerate(SIDES):
            all_at, all_chances = list[NDArray[Any]](), list[Floats]()
            for each in found:
                chances, none = chances_of(each, side, 1.0)
                all_at.append(each[f"{name}_at"])
                all_chances.append(chances / len(found))
                nothing[side] += none / len(found)
            at, numbers = np.unique(np.concatenate(all_at), return_inverse=True)
            total = np.bincount(numbers, np.concatenate(all_chances), len(at)).astype(np.float64)
            mean |= {f"{name}_at": at.astype(np.int32), name: _logarithm(total)}
            there.append(dict(zip(at.tolist(), total.tolist(), strict=True)))

        def likely(answer: NDArray[Any]) -> float:
            if not len(answer):
                return float(nothing.prod())
            return there[0].get(int(answer[0]), 0.0) * there[1].get(int(answer[1]) - 1, 0.0)

        return {**mean, "nothing": _logarithm(nothing), "answer": max((each["answer"] for each in found), key=likely)}

    def answered(self, example: Example, said: Said) -> Example:
        if not len(said["answer"]):
            return replace(example, target=())
        start, end = map(int, said["answer"])
        return replace(example, target=((start, example.texts[1][start:end]),))

    def table(
        self, examples: Sequence[Example], said: Sequence[Said], student: LoadedModel, framing: Framing
    ) -> Examples:
        """Each window is an example of its own, as when answers alone are learned."""
        gathering, tokenizer = ExamplesBuilder(), tokenizer_of(student)
        chances = list[NDArray[np.float32]]()
        for first in range(0, len(examples), TOGETHER):
            some = examples[first : first + TOGETHER]
            questions, contexts = encoded_pairs(tokenizer, [example.texts for example in some])
            for number, (example, question, context) in enumerate(zip(some, questions, contexts, strict=True), first):
                wanted = tokens_of(context, *example.target[0]) if example.target else None
                by_token = self.by_token(said[number], context.offsets)
                for piece in windows_of(framing, question, context, example.where):
                    ends = (NOTHING, NOTHING) if example.target is None else (0, 0)
                    if wanted is not None and piece.cut.start <= wanted[0] and wanted[1] < piece.cut.end:
                        ends = (piece.lead + wanted[0] - piece.cut.start, piece.lead + wanted[1] - piece.cut.start)
                    gathering.add([piece], ends=[ends])
                    chances.append(in_window(by_token, piece))
        return gathering.examples(
            {},
            segments=framing.segments,
            by_token={"teacher_probabilities": np.concatenate(chances)},
            by_row={TAUGHT: np.ones(len(chances), dtype=np.float32)},
        )

    def by_token(self, said: Said, offsets: Sequence[tuple[int, int]]) -> Floats:
        """n 2: the teacher's chances, at this temperature, of each token of the student to be the first or the last."""
        found = np.zeros((len(offsets), 2))
        places = np.array(offsets, dtype=np.int64).reshape(-1, 2)
        read = np.flatnonzero(places[:, 1] > places[:, 0])  # some tokens stand for no character
        for side, name in enumerate(SIDES):
            chances, _ = chances_of(said, side, self.temperature)
            at = said[f"{name}_at"]
            if side == 0:  # the first token that reaches beyond the character, also where none holds it
                there = np.searchsorted(np.maximum.accumulate(places[read, 1]), at, "right")
            else:  # the last one that begins no later
                there = np.searchsorted(np.maximum.accumulate(places[read, 0]), at, "right") - 1
            inside = (there >= 0) & (there < len(read))
            np.add.at(found[:, side], read[there[inside]], chances[inside])
        return found


def by_character(
    logits: Sequence[NDArray[Any]], pieces_of: Sequence[TextWindow], context: str, offsets: Sequence[tuple[int, int]]
) -> Said:
    """The scores of all windows together, as they are compared when an answer is chosen: a token by the window that
    scores it highest, no answer by the one that is least sure of it."""
    scores = np.full((len(offsets), 2), -np.inf)
    nothing = np.full(2, np.inf)
    for piece, part in zip(pieces_of, logits, strict=True):
        c, ends = piece.cut, part.astype(np.float64)
        inside = ends[piece.lead : piece.lead + c.end - c.start]
        scores[c.start : c.end] = np.maximum(scores[c.start : c.end], inside)
        nothing = ends[0] if ends[0].sum() < nothing.sum() else nothing
    places = np.array(offsets, dtype=np.int64).reshape(-1, 2)
    known = np.isfinite(scores[:, 0])  # where texts are cut, what lies beyond was not read
    starts_at, ends_at = _letters(context, places[known])
    return {
        "starts_at": starts_at.astype(np.int32),
        "starts": scores[known, 0].astype(np.float32),
        "ends_at": ends_at.astype(np.int32),
        "ends": scores[known, 1].astype(np.float32),
        "nothing": nothing.astype(np.float32),
    }


def _letters(context: str, places: Integers) -> tuple[Integers, Integers]:
    """The first and last character of each token that is no space: some vocabularies count spaces to a word."""
    letters = np.array([number for number, letter in enumerate(context) if not letter.isspace()], dtype=np.int64)
    if not len(letters):
        return places[:, 0], places[:, 0]
    first = np.searchsorted(letters, places[:, 0]).clip(0, len(letters) - 1)
    last = (np.searchsorted(letters, np.maximum(places[:, 1], places[:, 0] + 1)) - 1).clip(0, len(letters) - 1)
    return letters[first], letters[last]


def chances_of(said: Said, side: int, temperature: float) -> tuple[Floats, float]:
    """The chance of each place to be the first (or last) of an answer, and that of there being none."""
    scores = np.r_[said["nothing"][side], said[SIDES[side]]].astype(np.float64) / temperature
    powers = np.exp(scores - scores.max())
    chances = powers / powers.sum()
    return chances[1:], float(chances[0])


def in_window(by_token: Floats, piece: TextWindow) -> NDArray[np.float32]:
    """What a window has of the chances; the rest says that it holds no answer. Each side adds up to 1.

    A window that shows only one end of a likely answer holds none of it, as with right answers.
    """
    found = np.zeros((len(piece.tokens), 2))
    inside = by_token[piece.cut.start : piece.cut.end]
    total = by_token.sum(0)
    shares = np.divide(inside.sum(0), total, out=np.zeros(2), where=total > 0)
    less = np.divide(shares.min(), shares, out=np.zeros(2), where=shares > 0)
    found[piece.lead : piece.lead + len(inside)] = inside * less
    found[0] += 1 - found.sum(0)
    return found.astype(np.float32)


def _logarithm(chances: Floats) -> NDArray[np.float32]:
    return np.log(np.maximum(chances, 1e-30)).astype(np.float32)

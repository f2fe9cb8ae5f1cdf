"""Answers, taught: the chances of both ends arrive at the characters where the teacher sees them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.compress.lessons import ODD, Saying, learned, loss, model, whole
from tests.tasks.small import questions
from weft.data.examples import Examples
from weft.data.masking import NOTHING
from weft.errors import UserError
from weft.objectives.losses import Ends, SoftTargets
from weft.tasks.answer import (
    AnswerTask,
    by_character,
    candidates,
    side_probabilities,
    tokens_of,
)
from weft.tasks.base import Example, TeacherArrays
from weft.tasks.forward import framing_for, head_outputs, tokenizer_of

LESSON = AnswerTask(soft=SoftTargets(2.0, 0.5))
FAR = "so it is now . " * 12


def rows(count: int = 6, before: str = "") -> list[Example]:
    """Questions with an answer, with none, and of which nobody knows it, in turn."""
    found = []
    for number, row in enumerate(questions(count)):
        context = before + row["context"]
        target = (((context.find(row["answer"]), row["answer"]),), (), None)[number % 3]
        found.append(Example((row["question"], context), target, f"row {number}"))
    return found


def pointed(context: str, answer: str, sure: float = 12.0) -> TeacherArrays:
    """What a teacher that reads characters says who knows the answer: its ends, and a little everywhere."""
    start = context.find(answer)
    every = np.arange(len(context), dtype=np.int32)
    first, last = np.zeros((2, len(context)), dtype=np.float32)
    first[start], last[start + len(answer) - 1] = sure, sure
    place = np.array([start, start + len(answer)], dtype=np.int32)
    nothing = np.zeros(2, dtype=np.float32)
    return {"starts_at": every, "starts": first, "ends_at": every, "ends": last, "nothing": nothing, "answer": place}


def by_rows(table: Examples) -> list[NDArray[Any]]:
    """The chances of each row's tokens."""
    return [
        table.by_token["teacher_probabilities"][first:last]
        for first, last in zip(table.starts[:-1], table.starts[1:], strict=True)
    ]


def test_with_the_same_tokens_the_targets_are_what_the_teacher_says_there() -> None:
    teacher = model("wordpiece", {"answer": 2}, length=48)
    framing, examples = framing_for(teacher), rows(5)
    table = LESSON.dataset(examples, teacher, framing, LESSON.teacher_outputs(teacher, framing, examples))
    assert table.count == len(examples)
    batch = whole(table)
    network: Any = teacher.network
    with torch.inference_mode():
        scores = network.logits("answer", network(batch.tokens, batch.rows, batch.segments), batch.rows)
    for number, (example, found) in enumerate(zip(examples, by_rows(table), strict=True)):
        size = len(tokenizer_of(teacher).encode(example.texts[1], specials=False))
        first, last = int(table.starts[number]), int(table.starts[number + 1])
        own = scores[first:last]
        there = torch.tensor([0, *range(len(own) - 1 - size, len(own) - 1)])  # where an answer can be, or none
        wanted = torch.zeros_like(own)
        wanted[there] = (own[there] / 2).softmax(0)
        assert np.allclose(found, wanted, atol=1e-6) and wanted.std() > 0.01


@pytest.mark.parametrize("student", ["wordpiece", "bpe", "character", "unigram", "word"])
@pytest.mark.parametrize("teacher", ["wordpiece", "bpe", "character"])
def test_an_answer_arrives_at_the_tokens_that_hold_it(teacher: str, student: str) -> None:
    """What hard targets would be for the same answer, from whatever tokens the teacher pointed."""
    source, pupil = model(teacher, {"answer": 2}), model(student, {"answer": 2}, length=40, stride=12)
    framing = replace(framing_for(pupil), length=48)
    spoken = tokenizer_of(source).encode(ODD, specials=False)
    for answer in ("lives", "New   York", "Li\u0301ma", "Bo goes", "\U0001f642", "again,", "nai\u0308ve caf\u00e9"):
        start = ODD.find(answer)
        ends = tokens_of(spoken.offsets, start, answer)
        assert ends is not None
        said = dict(_heard(source, ends))
        example = Example(("where ?", ODD), ((start, answer),), "")
        table = LESSON.dataset([example], pupil, framing, [said])
        held = 0
        for row, (found, right) in enumerate(zip(by_rows(table), table.by_row["ends"], strict=True)):
            assert np.allclose(found.sum(0), 1, atol=1e-6) and (found >= 0).all()
            assert found[right[0], 0] > 0.9 and found[right[1], 1] > 0.9, (answer, row)
            held += right[0] > 0
        assert held


def _heard(opened: Any, ends: tuple[int, int]) -> TeacherArrays:
    """What a teacher says that is very sure of these two tokens."""
    framing = replace(framing_for(opened), length=48, stride=16)
    encoded = AnswerTask().encode([("where ?", ODD)], tokenizer_of(opened), framing)
    scores = []
    for piece in encoded.pieces[0]:
        some = np.zeros((len(piece.tokens), 2))
        for side, token in enumerate(ends):
            if piece.cut.start <= token < piece.cut.end:
                some[piece.lead + token - piece.cut.start, side] = 24.0
        some[0] = 0.0 if some.max() else 9.0
        scores.append(some)
    return {**by_character(scores, encoded.pieces[0], *encoded.places[0]), "answer": np.zeros(0)}


def test_windows_of_a_long_context() -> None:
    """Each window adds up to 1: on the answer where it shows all of it, else on its first token."""
    student = model("bpe", {"answer": 2}, length=30, stride=9)
    context = FAR + "Ada lives in New York . " + FAR
    example = Example(("where lives Ada ?", context), None, "")
    table = LESSON.dataset([example], student, framing_for(student), [pointed(context, "New York", 24.0)])
    right = AnswerTask().dataset(
        [replace(example, target=((context.find("New York"), "New York"),))], student, framing_for(student)
    )
    assert (table.by_row["ends"] == NOTHING).all() and table.count > 6
    assert 0 < (right.by_row["ends"][:, 0] > 0).sum() < table.count
    for found, ends in zip(by_rows(table), right.by_row["ends"], strict=True):
        assert np.allclose(found.sum(0), 1, atol=1e-6)
        assert found[ends[0], 0] > 0.95 and found[ends[1], 1] > 0.95


def test_a_long_context_is_said_by_all_windows_together() -> None:
    teacher = model("wordpiece", {"answer": 2}, length=24, stride=8)
    framing, example = framing_for(teacher), rows(1, before=FAR)[0]
    said = LESSON.teacher_outputs(teacher, framing, [example])[0]
    windows = AnswerTask().encode([example.texts], tokenizer_of(teacher), framing)
    logits, pieces = head_outputs(teacher, windows, "answer", True)[0], windows.pieces[0]
    found = candidates(logits, pieces, *windows.places[0])
    assert len(pieces) > 3 and len(said["starts"]) == len(windows.places[0][1])
    assert tuple(said["answer"]) == found.spans[0][1:]
    assert said["nothing"].sum() == pytest.approx(found.nothing)
    best = max(float(ends[piece.lead : -1, 0].max()) for piece, ends in zip(pieces, logits, strict=True))
    assert said["starts"].max() == pytest.approx(best)
    start, end = map(int, said["answer"])
    assert LESSON.with_teacher_answer(example, said).target == ((start, example.texts[1][start:end]),)
    assert LESSON.with_teacher_answer(example, {**said, "answer": np.zeros(0)}).target == ()


def test_a_question_that_is_too_long_is_named_by_its_row() -> None:
    teacher = model("character", {"answer": 2}, length=24)
    example = Example(("where lives Ada ? " * 2, FAR), None, "rows.jsonl line 7")
    with pytest.raises(UserError, match="rows.jsonl line 7: a question of 36 tokens leaves too little room"):
        LESSON.teacher_outputs(teacher, framing_for(teacher), [example])


@pytest.mark.parametrize("hard", [0.0, 0.25])
def test_the_gradient_is_the_formula(hard: float) -> None:
    student = model("wordpiece", {"answer": 2}, length=24, stride=8)
    framing, examples = framing_for(student), rows(3, before="so it is now . " * 2)
    batch = whole(LESSON.dataset(examples, student, framing, LESSON.teacher_outputs(student, framing, examples)))
    network = Saying(torch.randn(len(batch.tokens), 2, generator=torch.Generator().manual_seed(0)))
    loss(Ends(SoftTargets(2.0, hard)), network, batch).backward()
    wanted = torch.zeros_like(network.said)
    starts, ends = batch.rows.starts.tolist(), batch.targets["ends"]
    for row, (first, last) in enumerate(zip(starts[:-1], starts[1:], strict=True)):
        scores = network.said.detach()[first:last]
        soft = 2 * ((scores / 2).softmax(0) - batch.targets["teacher_probabilities"][first:last])
        right = scores.softmax(0)
        for side in (0, 1):
            right[ends[row, side].clamp_min(0), side] -= 1
        part = hard if ends[row, 0] != NOTHING else 0.0
        wanted[first:last] = (1 - part) * soft + part * right
    assert (ends == NOTHING).any() and (ends > 0).any()
    assert network.said.grad is not None
    assert torch.allclose(network.said.grad, wanted / (2 * len(ends)), atol=1e-6)


def test_a_batch_that_is_filled_up_means_the_same() -> None:
    teacher = model("wordpiece", {"answer": 2}, length=24, stride=8)
    framing, examples = framing_for(teacher), rows(6, before="so it is now . " * 3)
    table = LESSON.dataset(examples, teacher, framing, LESSON.teacher_outputs(teacher, framing, examples))
    student = model("wordpiece", {"answer": 2}, scale=3.0).network.eval()
    plain, filled = (loss(LESSON.objective(), student, whole(table, fixed)) for fixed in (False, True))
    assert float(plain.detach()) > 0.1 and torch.allclose(plain, filled, rtol=1e-5)


def test_the_mean_of_teachers_with_different_tokens() -> None:
    example = rows(1)[0]
    context = example.texts[1]
    sure, other = pointed(context, "lives in", 9.0), pointed(context, "lives", 6.0)
    words = LESSON.teacher_outputs(*(lambda t: (t, framing_for(t)))(model("wordpiece", {"answer": 2})), [example])[0]
    mean = LESSON.average([sure, other, words])
    for side, name in enumerate(("starts", "ends")):
        wanted = np.zeros(len(context))
        for each in (sure, other, words):
            np.add.at(wanted, each[f"{name}_at"], side_probabilities(each, side, 1.0)[0] / 3)
        found, nothing = side_probabilities(mean, side, 1.0)
        there = np.zeros(len(context))
        there[mean[f"{name}_at"]] = found
        assert np.allclose(there, wanted, atol=1e-6) and nothing + there.sum() == pytest.approx(1, abs=1e-6)
    assert mean["answer"].tolist() == sure["answer"].tolist()  # the start is shared; of the ends, this one is surer


@pytest.mark.parametrize("kind", [pytest.param("wordpiece", marks=pytest.mark.slow), "bpe"])
def test_a_student_learns_what_its_teacher_says(kind: str) -> None:
    examples = [replace(row, target=None) for row in rows(6)]
    said = [pointed(row.texts[1], row.texts[1].split()[number % 4]) for number, row in enumerate(examples)]
    lesson = replace(LESSON, soft=SoftTargets(2.0))
    student = model(kind, {"answer": 2}, length=48, scale=4.0)
    framing = framing_for(student)
    losses = learned(student, lesson.objective(), lesson.dataset(examples, student, framing, said), steps=80)
    assert losses[-1] < 0.05 * losses[0]
    found = lesson.predict(student, framing, [row.texts for row in examples])
    answers = [row.texts[1][slice(*each.output.spans[0][1:])] for row, each in zip(examples, found, strict=True)]
    assert answers == [lesson.with_teacher_answer(*each).target[0][1] for each in zip(examples, said, strict=True)]

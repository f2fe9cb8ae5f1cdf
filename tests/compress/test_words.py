"""Tags, taught: every word's scores arrive at that word, whichever tokens teacher and student read."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.compress.lessons import ODD, Saying, learned, loss, model, whole
from tests.tasks.small import sentences
from weft.data.masking import NOTHING
from weft.objectives.losses import LOGITS, TAUGHT, SoftTargets, Tags
from weft.tasks.base import Example
from weft.tasks.forward import framing_for, tokenizer_of
from weft.tasks.tag import TagTask, first_tokens, joined, raw
from weft.text.windows import Framing

LABELS = ("O", "B-LOC", "B-PER", "I-PER")
LESSON = TagTask(LABELS, SoftTargets(2.0, 0.5))


def rows(count: int = 6, often: int = 1) -> list[Example]:
    """Sentences with tags, with given words, and as raw text, in turn."""
    found = []
    for number, some in enumerate(sentences(count)):
        words, tags = [word for word, _ in some] * often, [tag for _, tag in some] * often
        tagged = joined(words, tags, f"row {number}")
        found.append((tagged, replace(tagged, target=None), replace(tagged, target=None, words=()))[number % 3])
    return found


def small(framing: Framing, length: int, stride: int) -> Framing:
    return replace(framing, length=length, stride=stride)


def test_with_the_same_tokens_the_targets_are_what_the_teacher_says_there() -> None:
    teacher = model("wordpiece", {"tag": 4}, labels=LABELS)
    framing, examples = framing_for(teacher), rows(6, often=5)
    table = LESSON.dataset(examples, teacher, framing, LESSON.teacher_outputs(teacher, framing, examples))
    assert table.count > len(examples)  # long ones took several windows
    batch = whole(table)
    network = teacher.network
    with torch.inference_mode():
        hidden = network(batch.tokens, batch.rows, batch.segments)
        own = network.logits("tag", hidden, batch.rows)[batch.targets["places"]]  # type: ignore[operator]
    assert torch.allclose(batch.targets[LOGITS], own, atol=1e-5) and own.std() > 0.1
    assert batch.targets[TAUGHT].all() and len(own) == sum(len(row.texts[0].split()) for row in examples)


@pytest.mark.parametrize("student", ["bpe", "character", "unigram", "word"])
@pytest.mark.parametrize("teacher", ["wordpiece", "bpe"])
def test_scores_of_a_word_arrive_at_that_word(teacher: str, student: str) -> None:
    words = ODD.split()
    examples = [Example((ODD,), None, "raw"), joined(words, None, "words")]
    said = LESSON.teacher_outputs(*(lambda t: (t, framing_for(t)))(model(teacher, {"tag": 4}, labels=LABELS)), examples)
    # Numbers in place of scores, to see which word each came from; a word of which nothing was read has none.
    marked = [
        {"logits": np.arange(len(each["known"]), dtype=np.float32)[:, None] * np.ones((1, 4)), "known": each["known"]}
        for each in said
    ]
    pupil = model(student, {"tag": 4})
    framing = small(framing_for(pupil), 12, 5)
    table = LESSON.dataset(examples, pupil, framing, marked)
    assert table.places is not None and table.spots is not None
    # Each window says which tokens of the text it has for its own: so the words come in order, each once.
    found, tokenizer = 0, tokenizer_of(pupil)
    for example, each in zip(examples, said, strict=True):
        tagged = example if example.words else raw(example.texts[0])
        encoded = tokenizer.encode(example.texts[0], specials=False)
        firsts = first_tokens(encoded, tagged.words)
        ids = encoded.ids
        for number, token in enumerate(firsts):
            if token is None:
                continue
            row = int(np.searchsorted(table.spots, found, "right")) - 1
            at = table.starts[row] + table.places[found]
            assert table.tokens[at] == ids[token]
            start, end = encoded.offsets[token]
            word = tagged.words[number]
            assert max(start, word[0]) < min(end, word[1]), (ODD[slice(*word)], ODD[start:end])
            assert (table.by_place[LOGITS][found] == number).all()
            assert table.by_place[TAUGHT][found] == each["known"][number]
            found += 1
    assert found == len(table.places) > 20


def test_words_that_no_teacher_has_read_are_not_taught() -> None:
    teacher = model("character", {"tag": 4}, labels=LABELS)
    framing = replace(framing_for(teacher), cutting=True, length=12)
    example = joined(["Ada", "goes", "to", "Rome", "now"])
    said = LESSON.teacher_outputs(teacher, framing, [example])
    assert said[0]["known"].tolist() == [True, True, True, False, False]
    table = LESSON.dataset([example], model("wordpiece", {"tag": 4}), framing_for(model("wordpiece", {"tag": 4})), said)
    assert table.by_place[TAUGHT].tolist() == [1, 1, 1, 0, 0]
    batch = whole(table)
    assert Tags(4, SoftTargets()).counts(batch) == {"teacher": 3}
    answered = LESSON.with_teacher_answer(example, said[0])
    assert answered.target[3:] == ("O", "O") and len(answered.target) == 5


@pytest.mark.parametrize("hard", [0.0, 0.3])
def test_the_gradient_is_the_formula(hard: float) -> None:
    """Hinton's: T (softmax(s/T) - softmax(t/T)), beside that of right tags, each by its part."""
    teacher = model("wordpiece", {"tag": 4}, labels=LABELS)
    framing, examples = framing_for(teacher), rows()
    said = LESSON.teacher_outputs(teacher, framing, examples)
    said[0] = {**said[0], "known": np.zeros_like(said[0]["known"])}  # one with tags alone
    batch = whole(LESSON.dataset(examples, teacher, framing, said))
    network = Saying(torch.randn(len(batch.tokens), 4, generator=torch.Generator().manual_seed(0)))
    objective = Tags(4, SoftTargets(3.0, hard))
    loss(objective, network, batch).backward()
    places, tags, taught = (batch.targets[name] for name in ("places", "tags", TAUGHT))
    scores, labeled = network.said.detach()[places], tags != NOTHING
    soft = 3 * ((scores / 3).softmax(1) - (batch.targets[LOGITS] / 3).softmax(1))
    right = scores.softmax(1) - torch.nn.functional.one_hot(tags.clamp_min(0), 4)
    wanted = torch.zeros_like(network.said)
    for n, place in enumerate(places):
        part = hard if labeled[n] and taught[n] else float(labeled[n] and hard > 0)
        wanted[place] = (1 - part) * soft[n] * taught[n] + part * right[n]
    count = int(((taught > 0) | (labeled & (hard > 0))).sum())
    assert (taught == 0).any() and labeled.any() and not labeled.all()
    assert network.said.grad is not None and torch.allclose(network.said.grad, wanted / count, atol=1e-6)


def test_a_batch_that_is_filled_up_means_the_same() -> None:
    teacher = model("wordpiece", {"tag": 4}, labels=LABELS)
    framing, examples = framing_for(teacher), rows(6, often=4)
    table = LESSON.dataset(examples, teacher, framing, LESSON.teacher_outputs(teacher, framing, examples))
    student = model("wordpiece", {"tag": 4}, scale=3.0).network.eval()
    plain, filled = (loss(LESSON.objective(), student, whole(table, fixed)) for fixed in (False, True))
    assert float(plain.detach()) > 0.1 and torch.allclose(plain, filled, rtol=1e-5)


def test_several_teachers_are_heard_by_the_names_of_their_tags() -> None:
    other = ("B-PER", "I-PER", "O", "B-LOC")
    one = model("wordpiece", {"tag": 4}, labels=LABELS)
    examples, framing = rows(3), framing_for(one)
    two = replace(one, card=replace(one.card, labels=other))
    assert LESSON.same_outputs(TagTask(other)) and not LESSON.same_outputs(TagTask(("O", "X")))
    first, second = (LESSON.teacher_outputs(each, framing, examples)[1] for each in (one, two))
    order = [other.index(label) for label in LABELS]
    assert np.array_equal(second["logits"], first["logits"][:, order])
    mean = LESSON.average([first, second])
    chances = [torch.tensor(each["logits"]).softmax(1) for each in (first, second)]
    assert torch.allclose(torch.tensor(mean["logits"]).exp(), (chances[0] + chances[1]) / 2, atol=1e-6)
    silent = {**second, "known": np.zeros_like(second["known"])}
    alone = LESSON.average([first, silent])
    assert torch.allclose(torch.tensor(alone["logits"]).exp(), chances[0], atol=1e-6) and alone["known"].all()


@pytest.mark.parametrize("kind", [pytest.param("wordpiece", marks=pytest.mark.slow), "bpe"])
def test_a_student_learns_what_its_teacher_says(kind: str) -> None:
    teacher = model("wordpiece", {"tag": 4}, labels=LABELS)
    examples = [replace(row, target=None, words=()) for row in rows(6)]
    said = LESSON.teacher_outputs(teacher, framing_for(teacher), examples)
    lesson = replace(LESSON, soft=SoftTargets(2.0))
    student = model(kind, {"tag": 4}, scale=1.0)
    framing = framing_for(student)
    losses = learned(student, lesson.objective(), lesson.dataset(examples, student, framing, said))
    assert losses[-1] < 0.02 * losses[0]
    answers = [lesson.with_teacher_answer(*each) for each in zip(examples, said, strict=True)]
    own = lesson.predict(student, framing, answers)
    ours = [tag for each in own for tag in lesson.tags(each)]
    theirs = [tag for each in answers for tag in each.target]
    same = [one == other for one, other in zip(ours, theirs, strict=True)]
    assert sum(same) >= 0.9 * len(same) and len(set(theirs)) > 2

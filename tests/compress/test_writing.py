"""Students of teachers that write: they learn the teacher's own texts, each as often as its chance says."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import weft
from tests.once import once
from tests.tasks.written import learned, worded, write_sides
from weft.cli.main import run
from weft.data.examples import Sequences, TargetSampler, TextSide, batch_of
from weft.data.rows import Feed
from weft.distillation.recipe import DistillSection
from weft.errors import UserError
from weft.objectives.losses import Writing
from weft.tasks.base import Example
from weft.tasks.complete import translate
from weft.tasks.forward import framing_for, window_for
from weft.tasks.model import Model
from weft.tasks.seq2seq import SequenceTask, TeacherTexts, chrf_near, pack_texts, unpack_texts
from weft.text.tokenizers.training import learn
from weft.text.windows import Framing

PAIRS = worded(20)
SOURCES = [Example((source,), None, f"t line {number}") for number, (source, _) in enumerate(PAIRS, 1)]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("WEFT_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that has learned its pairs, with a vocabulary for each side."""

    def make(folder: Path) -> None:
        learned(folder, folder / "run", tokenizer={"kind": "word", "separate": True})

    return once(tmp_path_factory, "writer", make) / "run"


def lesson_of(teacher: Path, **wanted: Any) -> tuple[SequenceTask, Model]:
    model = weft.load(teacher)
    return SequenceTask.from_model(model.opened, "translate").learning_from(
        DistillSection(**{"hard": 0.0, **wanted}), [model.opened]
    ), model


def framed(model: Model) -> Framing:
    """All that the model can read, not only as much as it has read so far."""
    return framing_for(model.opened, window_for(model.opened, None, None, "windows", 0.0))


def targets_of(table: Sequences, model: Model) -> list[str]:
    writer: Any = model.target_tokenizer or model.tokenizer
    return [writer.decode(row.tolist()) for row in np.split(table.written.tokens, table.written.starts[1:-1])]


# ----------------------------------------------------------------------------------------------------- what is learned


def test_what_is_learned_is_what_translate_prints(teacher: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lesson, model = lesson_of(teacher)
    said = lesson.teacher_outputs(model.opened, framed(model), SOURCES)
    table = lesson.dataset(SOURCES, model.opened, framed(model), said)
    assert run(["translate", str(teacher), *(source for source, _ in PAIRS), "--beam-size", "5"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert targets_of(table, model) == printed and table.ways is None
    assert table.count == len(PAIRS)


def test_arrays_hold_any_text() -> None:
    ways = [("grün, fünf 🙂", -0.25), ("", -2.0), ("Katze", -3.5)]
    assert unpack_texts(pack_texts(ways)) == ways
    assert {name: values.dtype.kind for name, values in pack_texts(ways).items()} == {
        "texts": "u",
        "ends": "i",
        "logprobs": "f",
    }


def test_of_several_texts_each_counts_by_its_chance(teacher: Path) -> None:
    lesson, model = lesson_of(teacher, n=3)
    framing = framed(model)
    found = translate(model.opened, [source for source, _ in PAIRS], beam_size=5, n=3)
    table = lesson.dataset(SOURCES, model.opened, framing, lesson.teacher_outputs(model.opened, framing, SOURCES))
    assert table.ways is not None and table.count == len(PAIRS)
    for number, each in enumerate(found):
        by_text = dict[str, float]()
        for way in each.best:
            if way.finish_reason == "end":
                by_text[way.text] = by_text.get(way.text, 0.0) + math.exp(way.logprob)
        chances = np.array(list(by_text.values()))
        mine = table.ways.shares[table.ways.starts[number] : table.ways.starts[number + 1]]
        assert mine.sum() == pytest.approx(1, abs=1e-12)
        np.testing.assert_allclose(mine, chances / chances.sum(), rtol=1e-5)


def some_ways() -> tuple[Sequences, list[list[float]]]:
    shares = [[0.5, 0.25, 0.25], [1.0], [0.75, 0.25]]
    texts = [[5, 6, 1], [7, 1], [8, 9, 10, 1], [5, 1], [6, 6, 1], [9, 8, 7, 6, 1]]
    read = TextSide.of([[3, 4, 1], [4, 1], [5, 5, 1]])
    return Sequences(read, TextSide.of(texts), begin=2, ways=TargetSampler.of(shares)), shares


def test_shares_weigh_the_loss_exactly() -> None:
    """Over four epochs the losses of a fixed network are those of the shares written out, in float64."""
    table, shares = some_ways()
    network: Any = weft.new(
        "transformer", size="1x64", settings={"vocabulary": 11, "context": 16}, seed=1
    ).network.double()
    objective, every = Writing(), np.arange(table.count)

    def loss(table: Sequences, epoch: int, numbers: Any) -> float:
        batch = batch_of(table.draw(np.full(len(numbers), epoch), numbers))
        with torch.no_grad():
            return float(objective.sums(network, batch)["words"])

    one_by_one = replace(table, ways=None, read=TextSide.of([[3, 4, 1]] * 3 + [[4, 1]] + [[5, 5, 1]] * 2))
    alone = [loss(one_by_one, 0, np.array([number])) for number in range(6)]
    wanted = sum(share * value for share, value in zip([s for some in shares for s in some], alone, strict=True))
    for first in (0, 4, 8):
        found = sum(loss(table, first + epoch, every) for epoch in range(4)) / 4
        assert found == pytest.approx(wanted, abs=1e-9)
    assert table.writes == round(3 / 2 + 2 / 4 + 4 / 4 + 2 + 3 * 3 / 4 + 5 / 4)
    assert table.lengths(every).tolist() == [3 + 4, 2 + 2, 3 + 5]  # the most that an epoch may ask for


def test_ways_follow_from_seed_epoch_and_number() -> None:
    table, _ = some_ways()
    again = table.for_training(16, 3, False)
    numbers, epochs = np.arange(3), np.full(3, 5)
    assert again.ways is not None and table.ways is not None
    assert (again.ways.drawn(epochs, numbers) == again.ways.drawn(epochs, numbers)).all()
    alone = [int(again.ways.drawn(epochs[:1], numbers[[n]])[0]) for n in range(3)]
    assert alone == again.ways.drawn(epochs, numbers).tolist()
    several = {tuple(table.for_training(16, seed, False).ways.drawn(epochs, numbers)) for seed in range(12)}  # type: ignore[union-attr]
    assert len(several) > 1
    counts = Counter(table.ways.drawn(np.arange(1000), np.zeros(1000, dtype=np.int64)).tolist())
    assert abs(counts[0] - 500) <= 2 and abs(counts[1] - 250) <= 2


def test_steps_of_a_feed_are_the_same_in_any_passes() -> None:
    table, _ = some_ways()
    feed = Feed(table.for_training(16, 0, False), batch_of, 0, 6)
    whole, parts = (feed.passes(2, budget) for budget in (10_000, 1))
    assert (
        len(parts) == 6
        and sum(Writing().counts(part)["words"] for part in parts) == Writing().counts(whole[0])["words"]
    )


def test_the_closest_to_the_right_text_is_taken(teacher: Path) -> None:
    lesson, model = lesson_of(teacher, closest=True, beam_size=4)
    framing = framed(model)
    right = [Example((source,), f"{target} Kuh", "") for source, target in PAIRS]
    found = translate(model.opened, [source for source, _ in PAIRS], beam_size=4, n=4)
    table = lesson.dataset(right, model.opened, framing, lesson.teacher_outputs(model.opened, framing, right))
    best = [max((way.text for way in each.best), key=lambda text: chrf_near(text, example.target))
            for each, example in zip(found, right, strict=True)]  # fmt: skip
    taken = targets_of(table, model)
    assert [chrf_near(one, example.target) for one, example in zip(taken, right, strict=True)] == pytest.approx(
        [chrf_near(one, example.target) for one, example in zip(best, right, strict=True)]
    )
    assert taken != [each.text for each in found]  # somewhere it is not the likeliest
    # Where nothing is known of what is right, the likeliest.
    unknown = lesson.dataset(SOURCES, model.opened, framing, lesson.teacher_outputs(model.opened, framing, SOURCES))
    assert targets_of(unknown, model) == [each.text for each in found]


def test_right_texts_have_their_share() -> None:
    lesson = SequenceTask("translate", soft=TeacherTexts(n=2, hard=0.25))
    written = [("a b", math.log(0.3)), ("a c", math.log(0.1)), ("a b", math.log(0.2))]
    known = lesson.teacher_targets(Example(("x",), "right", ""), written)
    assert known == pytest.approx({"a b": 0.75 * 5 / 6, "a c": 0.75 / 6, "right": 0.25})
    assert lesson.teacher_targets(Example(("x",), "a c", ""), written) == pytest.approx({"a b": 0.625, "a c": 0.375})
    assert lesson.teacher_targets(Example(("x",), None, ""), written) == pytest.approx({"a b": 5 / 6, "a c": 1 / 6})
    assert lesson.teacher_targets(Example(("x",), None, ""), [("", 0.0)]) == {}  # nothing to learn
    assert lesson.teacher_targets(Example(("x",), "right", ""), [("", 0.0)]) == {"right": 1.0}
    hard = replace(lesson, soft=TeacherTexts(n=2, hard=1.0))
    assert hard.teacher_targets(Example(("x",), "right", ""), written) == {"right": 1.0}


def test_a_student_with_other_tokens_learns_the_same_texts(teacher: Path) -> None:
    lesson, model = lesson_of(teacher, n=2)
    framing = framed(model)
    said = lesson.teacher_outputs(model.opened, framing, SOURCES)
    tokens = learn([text for each in said for text, _ in unpack_texts(each)] + [s for s, _ in PAIRS], "bpe", 320)
    student = weft.new("seq2seq", tokens, size="1x64", settings={"context": 64})
    table = lesson.dataset(SOURCES, student.opened, framed(student), said)
    assert targets_of(table, student) == [text for each in said for text, _ in unpack_texts(each)]


def test_texts_too_long_for_the_student_are_told(teacher: Path) -> None:
    lesson, model = lesson_of(teacher)
    framing = framed(model)
    said = lesson.teacher_outputs(model.opened, framing, SOURCES)
    table = lesson.dataset(SOURCES, model.opened, replace(framing, length=5), said)
    assert table.count < len(PAIRS) and "left out" in table.notes[0]
    with pytest.raises(UserError, match="written no text"):
        lesson.dataset(SOURCES, model.opened, framing, [pack_texts([])] * len(SOURCES))
    some = lesson.dataset(SOURCES, model.opened, framing, [pack_texts([]), *said[1:]])
    assert some.count == len(PAIRS) - 1 and some.notes[0].startswith("1 text from which the teacher wrote nothing")


def test_several_teachers_write_together(teacher: Path) -> None:
    model, other = weft.load(teacher), weft.load(teacher)
    with torch.no_grad():
        for parameter in other.network.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    lesson = SequenceTask.from_model(model.opened, "translate").learning_from(
        DistillSection(), [model.opened, other.opened]
    )
    found = lesson.teacher_outputs(model.opened, framed(model), SOURCES[:6])
    wanted = translate(model.opened, [source for source, _ in PAIRS[:6]], others=[other.opened], beam_size=5)
    assert [unpack_texts(each)[0][0] for each in found] == [each.text for each in wanted]
    assert [unpack_texts(each)[0][1] for each in found] == pytest.approx([each.logprob for each in wanted])


# ------------------------------------------------------------------------------------------------- the whole command


def distilled(teacher: Path, out: str, *more: str, steps: int = 12) -> int:
    plan = [f"training.steps={steps}", f"training.evaluate_every={steps}", "training.batch=8"]
    sets = [part for each in plan for part in ("--set", each)]
    return run(["distill", str(teacher), "--out", out, *sets, *more])


def write_lines(name: str, texts: list[str]) -> str:
    Path(name).write_text("".join(text + "\n" for text in texts))
    return name


def test_a_student_of_another_family_and_vocabulary(teacher: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From sources alone; it is judged by what the teacher writes, and a second run asks it nothing."""
    sources = write_lines("t.en", [source for source, _ in PAIRS])
    student = ("--student", "seq2seq:1x64", "--tokenizer", "learned", "--n", "2", "--text", sources)
    assert distilled(teacher, "one", *student) == 0
    said = capsys.readouterr().err
    assert "20 read anew" in said and "by the teacher's answers" in said and "best model by agreement" in said
    found = weft.load("one")
    assert found.task == "translate" and found.opened.family.name == "seq2seq" and found.card.teacher == "run"
    assert [metric.name for metric in found.card.metrics] == ["agreement"]
    assert distilled(teacher, "two", *student) == 0
    assert "0 read anew, all from the cache" in capsys.readouterr().err
    assert Path("one/model.safetensors").read_bytes() == Path("two/model.safetensors").read_bytes()


def test_right_texts_beside_the_teacher(teacher: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A table, where some rows have no target; and two files to judge by, as finetune does."""
    rows = [*PAIRS[:10], *((source, "") for source, _ in PAIRS[10:])]
    Path("rows.tsv").write_text("en\tde\n" + "".join(f"{one}\t{two}\n" for one, two in rows))
    write_sides(Path("."), PAIRS[:6], "dev")
    judges = ("--dev-source", "dev.en", "--dev-target", "dev.de")
    assert distilled(teacher, "out", "--data", "rows.tsv", "--student", "1x64", "--closest", *judges) == 0
    said = capsys.readouterr().err
    assert "20 texts to learn from, 10 of them labeled" in said and "best model by bleu" in said
    card = weft.load("out").card
    assert [metric.name for metric in card.metrics] == ["bleu", "chrf", "exact", "length_ratio"]
    assert card.window is not None and card.window.length == 7  # no more than it has ever read


@pytest.mark.slow
def test_a_student_learns_to_write_what_its_teacher_writes(teacher: Path) -> None:
    sources = write_lines("t.en", [source for source, _ in PAIRS])
    learning_rate = ("--set", "training.learning_rate=4e-3", "--set", "training.ema=0.9")
    student = ("--student", "transformer:1x64", "--start", "scratch", "--set", "student.settings.dropout=0.0")
    assert distilled(teacher, "out", "--text", sources, *student, *learning_rate, steps=150) == 0
    texts = [source for source, _ in PAIRS]
    ours, theirs = (weft.load(name)(texts, beam_size=1) for name in ("out", teacher))
    assert sum(one.text == two.text for one, two in zip(ours, theirs, strict=True)) >= 18  # type: ignore[attr-defined]


def test_mistakes_are_one_line(teacher: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sources = write_lines("t.en", [source for source, _ in PAIRS])
    short = write_lines("t.de", [target for _, target in PAIRS[:5]])
    Path("rows.csv").write_text("a,b\n1,2\n")
    write_lines("empty.txt", [])
    for given, words in (
        (
            ("--text", sources, "--student", "bert:1x64"),
            "writes another, and bert is of another kind",
        ),
        (("--source", sources, "--target", short, "--student", "1x64"), "t.en has 20 lines and .*t.de 5"),
        (("--data", "rows.csv", "--student", "1x64"), "no column 'source'.*the teacher's task is translate"),
        (("--text", "empty.txt", "--student", "1x64"), "there is no text in it"),
        (("--source", "empty.txt", "--student", "1x64"), "there is no text in it"),
        (("--source", sources, "--dev-source", sources, "--student", "1x64"), "both training and held-out data"),
        (("--text", sources, "--n", "9", "--student", "1x64"), "n and beam_size must hold"),
    ):
        assert run(["distill", str(teacher), "--out", "out", *given]) == 2, given
        found = capsys.readouterr().err.strip()
        assert re.search(words, found) and "\n" not in found, found
    assert not Path("out").exists()

"""Students learn what their teachers say: by which loss, from which weights, judged by what."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import weft
from tests.compress.taught import kinds_of, taught_by, write_texts
from tests.tasks.small import KINDS, LINES, model_for, pairs, quiet, several, write_rows
from weft.checkpoint.folder import open_folder
from weft.data.examples import batch_of
from weft.distillation import distill as running
from weft.distillation import report as reporting
from weft.distillation.dataset import Distillation, Teacher
from weft.distillation.distill import student_task
from weft.distillation.recipe import DistillRecipe, DistillSection, StudentSection, TeacherSection
from weft.distillation.student import begun_student
from weft.nn.rows import Rows
from weft.objectives.losses import SoftTargets
from weft.pruning.prune import with_heads
from weft.tasks.base import Example
from weft.tasks.classify import MultilabelTask, TextTask, ValueTask
from weft.tasks.forward import framing_for
from weft.tasks.model import Model
from weft.tasks.value_head import rescale
from weft.text.tokenizers.training import learn
from weft.training.run import Run
from weft.training.signals import Control


def agreement(teacher: Any, student: Any, texts: list[str]) -> float:
    """The share of texts of which both say the same."""
    said = zip(teacher(texts), student(texts), strict=True)
    return float(np.mean([one.label == other.label for one, other in said]))


@pytest.fixture(autouse=True)
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports measure how fast models are, which takes longer than these students learn."""
    monkeypatch.setattr(reporting, "write_report", lambda *given, **more: None)


@pytest.fixture
def texts(here: Path) -> Path:
    return write_texts(here / "texts.txt", kinds_of(120, 5))


# ------------------------------------------------------------------------------------------------------- students


def test_a_student_of_a_layer_says_what_its_teacher_says(teacher: Path, texts: Path, here: Path) -> None:
    said: list[str] = []
    student = taught_by(teacher, text=texts, out=here / "small", log=said.append)
    assert "from layer 0 of the teacher" in "".join(said) and student.config.layers == 1
    others = [row["text"] for row in kinds_of(60, 9)]
    assert agreement(weft.load(teacher), student, others) > 0.9
    card = student.card
    assert (card.task, card.labels, card.teacher, card.base) == (
        "classify",
        ("animal", "plant", "stone"),
        "teacher",
        "1x64",
    )
    assert [metric.name for metric in card.metrics] == ["agreement"] and card.metrics[0].value > 0.9
    assert {"recipe.toml", "run.json", "metrics.jsonl", "split.json", "report.html"} <= {
        path.name for path in (here / "small" / "run").iterdir()
    }


@pytest.mark.parametrize(
    ("student", "family", "kind"),
    [
        ({"model": "lstm:1x32", "settings": {"dropout": 0.0}}, "lstm", "bpe"),
        ({"model": "1x64", "tokenizer": "learned", "vocabulary": 70}, "bert", "wordpiece"),
        pytest.param({"model": "gpt2:1x64"}, "gpt2", "wordpiece", marks=pytest.mark.slow),
        pytest.param({"model": "vectors"}, "vectors", "word", marks=pytest.mark.slow),
        pytest.param({"model": "cnn"}, "cnn", "word", marks=pytest.mark.slow),
        pytest.param(
            {"model": "1x64", "start": "scratch", "vocabulary": 70}, "bert", "wordpiece", marks=pytest.mark.slow
        ),
    ],
)
def test_students_of_other_families_and_vocabularies(
    student: Any, family: str, kind: str, teacher: Path, texts: Path
) -> None:
    """Each reads by its own tokens what the teacher said of the text."""
    found = taught_by(
        teacher, student, 40, text=texts, training={"learning_rate": 3e-3 if kind == "wordpiece" else 1e-2}
    )
    assert found.opened.family.name == family and found.tokenizer is not None and found.tokenizer.kind == kind
    if "vocabulary" in student:
        assert found.tokenizer.vocabulary == student["vocabulary"] == found.config.vocabulary
    assert agreement(weft.load(teacher), found, [row["text"] for row in kinds_of(60, 9)]) > 0.6  # chance: a third


def begun(teacher: Path, here: Path, **student: Any) -> Any:
    recipe = DistillRecipe(teacher=TeacherSection(folders=(str(teacher),)), student=StudentSection(**student))
    opened = open_folder(teacher)
    lines = [row["text"] for row in kinds_of(60)]
    teachers, cpu = [Teacher(opened, teacher, "")], torch.device("cpu")
    context = Distillation(Run(here / "run"), recipe, teachers, cpu, Control(quiet))
    return begun_student(context, {"classify": 3}, "classify", lambda: iter(lines))


def test_all_layers_and_less_vocabulary_say_the_same_as_before(teacher: Path, here: Path) -> None:
    """A student that begins with all that the texts need of the teacher is the teacher."""
    found = begun(teacher, here, model="2x64", vocabulary=70)
    assert not found.fresh and found.opened.tokenizer.vocabulary == 70
    lines = [(row["text"],) for row in kinds_of(30)]
    task = TextTask("classify", labels=tuple(sorted(KINDS)))
    one, other = (
        np.stack([each.output for each in task.predict(opened, framing_for(opened), lines)])
        for opened in (open_folder(teacher), found.opened)
    )
    assert np.allclose(one, other, atol=1e-5)


def test_a_teacher_whose_table_is_longer_than_its_vocabulary(teacher: Path, here: Path) -> None:
    """As published by DeBERTa and T5: rows of the table that no token has are left out."""
    opened = open_folder(teacher)
    config = replace(opened.config, vocabulary=opened.config.vocabulary + 9)
    longer = opened.family.network(config, opened.heads)
    weights = opened.network.state_dict()
    weights["tokens.weight"] = F.pad(weights["tokens.weight"], (0, 0, 0, 9))
    longer.load_state_dict(weights)
    Model(replace(opened, config=config, network=longer), "classify").save(here / "longer")
    found = begun(here / "longer", here, model="2x64").opened
    assert found.config.vocabulary == opened.config.vocabulary
    assert torch.equal(found.network.tokens.weight, opened.network.tokens.weight)


def test_distilbert_begins_from_layers_of_bert(teacher: Path, here: Path) -> None:
    """Its states are the teacher's: the first segment, which it does not know, lies in its positions."""
    found = begun(teacher, here, model="distilbert:2x64")
    theirs = open_folder(teacher)
    assert found.fresh and found.opened.family.name == "distilbert"
    tokens = torch.tensor([2, 9, 17, 30, 3])
    rows = Rows.of([5], torch.device("cpu"))
    with torch.no_grad():
        one, other = (opened.network(tokens, rows, None) for opened in (theirs, found.opened))
    assert torch.allclose(one, other, atol=1e-5)


def test_layers_of_a_teacher_that_has_lost_heads(teacher: Path, here: Path) -> None:
    """Each keeps as many as it had."""
    cut = with_heads(open_folder(teacher), [[0, 1, 2], [3]])
    Model(cut, "classify").save(here / "cut")
    found = begun(here / "cut", here, model="1x64")
    assert not found.fresh and found.opened.config.layer_heads == (3,)
    again = begun(here / "cut", here, model="distilbert:1x64")
    assert again.fresh and again.opened.config.layer_heads is None  # of another family: from nothing


def test_layers_that_do_not_fit_are_refused(teacher: Path, here: Path) -> None:
    for student in ({"model": "1x128"}, {"model": "3x64"}, {"model": "lstm:1x64"}):
        with pytest.raises(weft.UserError, match="do not fit into the student"):
            begun(teacher, here, start="layers", **student)


def test_a_larger_student_is_warned_of(teacher: Path, texts: Path) -> None:
    said: list[str] = []
    taught_by(teacher, "3x64", 1, text=texts, log=said.append)
    assert any("note: the student is not smaller than its teacher" in line for line in said)


def test_a_folder_as_student_keeps_its_tokenizer(teacher: Path, texts: Path, here: Path) -> None:
    first = taught_by(
        teacher, {"model": "1x64", "tokenizer": "learned", "vocabulary": 70}, 2, text=texts, out=here / "s"
    )
    second = taught_by(teacher, str(here / "s"), 2, text=texts)
    assert second.tokenizer is not None and first.tokenizer is not None
    assert second.tokenizer.pipeline == first.tokenizer.pipeline and second.card.base == "s"


def test_whoever_begins_from_weights_learns_at_a_lower_rate(
    teacher: Path, texts: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One rule: all new, a new head on weights, all there; a stage after pre-training is the second of these."""
    found: list[tuple[float, float]] = []
    real = running.decided

    def noted(plan: Any, train: Any, device: Any, batch: int, epochs: float, learning_rate: float) -> Any:
        found.append((round(epochs, 2), learning_rate))
        return real(plan, train, device, batch, epochs, learning_rate)

    monkeypatch.setattr(running, "decided", noted)
    monkeypatch.setattr(running, "SEEN", 600)
    model_for("classify", 2, learn(LINES, "wordpiece", 200), ("yes", "no")).save(here / "base")
    once = {"training": {"learning_rate": None}, "text": texts}
    taught_by(teacher, {"model": "1x64", "start": "scratch"}, 1, **once)
    taught_by(teacher, str(here / "base"), 1, **once)
    taught_by(teacher, "1x64", 1, **once)
    family = open_folder(teacher).family
    shape = (768 / 64) ** 0.5
    assert [learning_rate for _, learning_rate in found] == pytest.approx(
        [family.learning_rate * shape, 1e-4 * shape, 5e-5 * shape]
    )
    assert found[0][0] > found[1][0] == found[2][0]


# --------------------------------------------------------------------------------------------- reading once, and two


def test_the_teacher_reads_once(teacher: Path, texts: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No second epoch and no second run asks it again."""
    read: list[int] = []
    before = TextTask.teacher_outputs

    def counted(self: TextTask, opened: Any, framing: Any, examples: Any) -> Any:
        read.append(len(examples))
        return before(self, opened, framing, examples)

    monkeypatch.setattr(TextTask, "teacher_outputs", counted)
    taught_by(teacher, text=texts, out=here / "one", training={"steps": None, "epochs": 3})
    assert sum(read) == 120 == json.loads((here / "one" / "run" / "run.json").read_text())["teacher_forwards"]
    said: list[str] = []
    taught_by(teacher, "lstm:1x32", 3, text=texts, out=here / "two", log=said.append)
    assert sum(read) == 120 and "teacher: 120 texts, 0 read anew, all from the cache" in said
    assert json.loads((here / "two" / "run" / "run.json").read_text())["teacher_forwards"] == 0


def test_two_teachers_are_heard_together(teacher: Path, texts: Path, here: Path) -> None:
    """The mean of their chances is learned, each by its own tokens."""
    other = taught_by(
        teacher, {"model": "1x64", "tokenizer": "learned", "vocabulary": 70}, 5, text=texts, out=here / "b"
    )
    one, two = weft.load(teacher), other
    lesson = student_task(recipe_of(temperature=1.0), "classify", [Teacher(one.opened, here / "t", "")])
    examples = [Example((row["text"],), None, "") for row in kinds_of(8, 3)]
    both = [lesson.teacher_outputs(each.opened, framing_for(each.opened), examples) for each in (one, two)]
    for place, example in enumerate(examples):
        mean = lesson.average([said[place] for said in both])["output"]
        answers: Any = [model(example.texts[0]) for model in (one, two)]
        wanted = np.mean([list(answer.scores.values()) for answer in answers], axis=0)
        assert np.allclose(np.exp(mean) / np.exp(mean).sum(), wanted, atol=1e-6)
    student = taught_by([teacher, here / "b"], steps=2, text=texts)
    assert student.card.teacher == "teacher, b"


def recipe_of(**lessons: Any) -> DistillRecipe:
    return DistillRecipe(
        teacher=TeacherSection(folders=("t",)), student=StudentSection(model="1x64"), distill=DistillSection(**lessons)
    )


# ------------------------------------------------------------------------------------------------------------ losses


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_soft_targets_are_as_written_out(temperature: float) -> None:
    scores, said = torch.randn(4, 3, dtype=torch.float64), 3 * torch.randn(4, 3, dtype=torch.float64)
    found = SoftTargets(temperature).one_of(scores, said)
    ours, theirs = np.exp(scores.numpy() / temperature), np.exp(said.numpy() / temperature)
    ours, theirs = (each / each.sum(1, keepdims=True) for each in (ours, theirs))
    assert np.allclose(found.numpy(), temperature**2 * (theirs * np.log(theirs / ours)).sum(1))
    each = SoftTargets(temperature).each_of(scores, said)
    ours, theirs = (1 / (1 + np.exp(-x.numpy() / temperature)) for x in (scores, said))
    apart = theirs * np.log(theirs / ours) + (1 - theirs) * np.log((1 - theirs) / (1 - ours))
    assert np.allclose(each.numpy(), temperature**2 * apart.mean(1))
    assert torch.allclose(SoftTargets(temperature).one_of(said, said), torch.zeros(4, dtype=torch.float64))


class Scores(torch.nn.Module):
    """A network whose scores of the rows are its weights."""

    def __init__(self, scores: torch.Tensor) -> None:
        super().__init__()
        self.said = torch.nn.Parameter(scores)

    def forward(self, tokens: Any, rows: Any, segments: Any = None) -> Any:
        return tokens

    def logits(self, head: str, hidden: Any, rows: Any) -> torch.Tensor:
        return self.said


@pytest.mark.parametrize("kind", ["label", "labels", "value"])
@pytest.mark.parametrize("hard", [0.0, 0.3, 1.0])
def test_right_labels_are_mixed_in_by_their_share(kind: Any, hard: float, teacher: Path) -> None:
    """Gradients are those of the formula, example by example; those without a label learn from the teacher alone."""
    outputs = 1 if kind == "value" else 3
    labels = () if kind == "value" else ("a", "b", "c")
    targets: list[Any] = {"label": ["b", None, "c"], "labels": [("a", "c"), None, ()], "value": [0.5, None, -2.0]}[kind]
    examples = [Example((text,), target, "") for text, target in zip(("cat now", "oak", "fern"), targets, strict=True)]
    generator = torch.Generator().manual_seed(0)
    said, scores = torch.randn(3, outputs, generator=generator), torch.randn(3, outputs, generator=generator)
    kinds = {"label": TextTask, "labels": MultilabelTask, "value": ValueTask}
    lesson = kinds[kind]("x", labels=labels, soft=SoftTargets(2.0, hard))
    opened = open_folder(teacher)
    table = lesson.dataset(examples, opened, framing_for(opened), [{"output": each.numpy()} for each in said])
    batch = batch_of(table.draw(np.zeros(3, dtype=np.int64), np.arange(3)))
    network = Scores(scores.clone())
    objective = lesson.objective()
    assert objective.counts(batch) == dict.fromkeys(objective.terms, 3)
    torch.stack(list(objective.sums(network, batch).values())).sum().backward()  # type: ignore[no-untyped-call]
    wanted = scores.clone().requires_grad_()
    total = torch.zeros(())
    for place, target in enumerate(targets):
        ours, theirs = wanted[place], said[place]
        if kind == "label":
            soft = 4 * F.kl_div((ours / 2).log_softmax(0), (theirs / 2).softmax(0), reduction="sum")
            right = -ours.log_softmax(0)[labels.index(target)] if target is not None else None
        elif kind == "labels":
            chances = (theirs / 2).sigmoid()
            soft = 4 * F.binary_cross_entropy_with_logits(ours / 2, chances)  # but for what no weight decides
            gold = torch.tensor([float(label in (target or ())) for label in labels])
            right = F.binary_cross_entropy_with_logits(ours, gold) if target is not None else None
        else:
            soft = (ours - theirs).square().sum()
            right = (ours[0] - target) ** 2 if target is not None else None
        total = total + (soft if right is None else (1 - hard) * soft + hard * right)
    total.backward()  # type: ignore[no-untyped-call]
    assert network.said.grad is not None and wanted.grad is not None
    assert torch.allclose(network.said.grad, wanted.grad, atol=1e-5)


def test_batches_of_few_shapes_cost_the_same(teacher: Path) -> None:
    """As CUDA graphs take them: filled up with rows of which nothing is said; and texts in several windows."""
    opened = open_folder(teacher)
    framing = replace(framing_for(opened), length=8, stride=5)
    lesson = TextTask("classify", labels=("a", "b", "c"), soft=SoftTargets(2.0, 0.5))
    rows = [" ".join(row["text"] for row in kinds_of(number + 1)) for number in range(5)]
    examples = [Example((text,), "b" if number % 2 else None, "") for number, text in enumerate(rows)]
    said = [{"output": np.array([1.0, number, 0.0], dtype=np.float32)} for number in range(5)]
    table = lesson.dataset(examples, opened, framing, said)
    assert table.rows_count > 10
    found = []
    for fixed in (False, True):
        drawn = table.for_training(16, 0, fixed).draw(np.zeros(5, dtype=np.int64), np.arange(5))
        batch = batch_of(drawn)
        assert lesson.objective().counts(batch) == {"teacher": 5, "labels": 5}
        found.append([float(value.detach()) for value in lesson.objective().sums(opened.network, batch).values()])
    assert np.allclose(found[0], found[1], rtol=1e-5) and min(found[0]) > 0


# ------------------------------------------------------------------------------------------------------- other tasks


def teacher_of(task: str, outputs: int, labels: tuple[str, ...] | None, here: Path) -> Path:
    """A teacher that has learned nothing, but says of no two texts the same."""
    made = model_for(task, outputs, learn(LINES, "wordpiece", 200), labels)
    made.save(here / "teacher")
    return here / "teacher"


def test_values_are_learned_in_units_of_their_spread(here: Path) -> None:
    """Nothing that the network sees is large; yet its folder says values as people write them."""
    teacher = teacher_of("regress", 1, None, here)
    opened = open_folder(teacher)
    rescale(opened.network, 1e5, 3e5)
    Model(opened, "regress").save(here / "rich")
    rows = write_rows(here / "texts.jsonl", [{"text": row["text"]} for row in kinds_of(60, 1)])
    student = taught_by(here / "rich", "1x64", 1, data=rows, out=here / "s", training={"learning_rate": 1e-12})
    texts = [row["text"] for row in kinds_of(30, 2)]
    one, other = (np.array([each.value for each in model(texts)]) for model in (weft.load(here / "rich"), student))
    assert one.std() > 1e3 and np.allclose(one, other, rtol=1e-4)  # all layers of the teacher are the teacher
    lines = [json.loads(line) for line in (here / "s" / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["validation_loss"] < 1e-6 for line in lines if "validation_loss" in line] == [True]
    fresh = taught_by(here / "rich", "lstm:1x32", 1, data=rows, out=here / "f", training={"learning_rate": 1e-12})
    assert np.allclose([each.value for each in fresh(texts)], one.mean(), atol=1.5 * one.std())  # about their middle


def test_several_labels_of_a_text(here: Path) -> None:
    teacher = teacher_of("multilabel", 3, tuple(KINDS), here)
    rows = write_rows(here / "more.jsonl", [{"text": row["text"]} for row in several(80, 1)])
    student = taught_by(teacher, "1x64", 3, data=rows, dev=write_rows(here / "dev.jsonl", several(40, 2)))
    assert set(student.card.thresholds) == set(KINDS) and student.card.metrics[0].name == "micro_f1"


def test_pairs_come_in_rows_with_labels_or_without(here: Path) -> None:
    teacher = teacher_of("pair", 2, ("greater", "not"), here)
    blank = [{key: value for key, value in row.items() if key != "label"} for row in pairs(40, seed=1)]
    files = [write_rows(here / "blank.jsonl", blank), write_rows(here / "labeled.jsonl", pairs(60, seed=2))]
    said: list[str] = []
    student = taught_by(teacher, "1x64", 2, data=[str(path) for path in files], out=here / "run", log=said.append)
    assert " of them labeled; 3 held out (drawn" in "".join(said)
    assert student.card.metrics[0].name == "accuracy"
    with pytest.raises(weft.UserError, match="reads pairs: give --data FILE"):
        taught_by(teacher, text=write_texts(here / "a.txt", kinds_of(8)))

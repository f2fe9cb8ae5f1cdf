"""Several teachers: a student is held to what they say together, whatever the task."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import softmax

from tests.compress.models import BY_TASK, Case, drawn, tokenizer_for, written
from weft.comparison.compare import NOT_FINITE
from weft.comparison.compare import rows_of as read_rows
from weft.distillation.report import StudentReport, report_of
from weft.distillation.teacher_outputs import Teacher
from weft.tasks.answer import AnswerTask, Candidates
from weft.tasks.base import Example, Prediction
from weft.tasks.complete import translate
from weft.tasks.forward import framing_for
from weft.tasks.model import Model
from weft.tasks.registry import task_for


def three(case: Case) -> list[Model]:
    tokenizer = tokenizer_for(case)
    return [drawn(case, tokenizer, seed) for seed in (1, 2, 3)]


def rows_of(case: Case, model: Model, folder: Path) -> list[Example]:
    return list(read_rows(task_for(model.opened, case.task), {}, written(case, folder, 12)).examples)


def told(models: list[Model], examples: list[Example], monkeypatch: pytest.MonkeyPatch) -> StudentReport:
    *teachers, student = models
    monkeypatch.setattr("weft.distillation.report.compared", uncosted)
    named = [Teacher(each.opened, Path(f"t{number}"), "") for number, each in enumerate(teachers)]
    more: dict[str, Any] = {"forwards": 0, "texts": 12, "metric": None}
    return report_of(named, student, Path("s"), examples, 1.0, **more)


def uncosted(*given: Any, **more: Any) -> Any:
    from weft.comparison.compare import compared

    return compared(*given, **{**more, "costs": False})


def test_labels_by_the_mean_of_the_chances(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = BY_TASK["classify"]
    models = three(case)
    examples = rows_of(case, models[0], tmp_path)
    found = told(models, examples, monkeypatch)
    texts = [example.texts[0] for example in examples]
    labels = list(models[0].card.labels or ())
    scores = np.mean([[list(each.scores.values()) for each in model(texts)] for model in models[:2]], axis=0)
    mean, ours = [labels[place] for place in scores.argmax(1)], [each.label for each in models[2](texts)]
    assert found.together and found.comparison.models[0].name == "2 teachers together"
    gold = [example.target for example in examples]
    share = np.mean(np.array(mean) == gold)
    assert found.comparison.models[0].scores["accuracy"].value == pytest.approx(share)
    assert found.comparison.models[-1].retained is not None
    assert found.comparison.models[-1].retained.value == pytest.approx(np.mean(np.array(ours) == gold) / share)
    alone = [each.label for each in models[0](texts)]
    assert mean != alone  # else the first of them alone would have passed
    assert found.comparison.models[-1].agreement["same"].value == pytest.approx(np.mean(np.array(ours) == mean))
    assert found.values()["held_to"] == "2 teachers together" and "of 2 teachers together" in found.summary()
    assert "compared with all of them together" in found.page()


def test_tags_vectors_and_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = BY_TASK["tag"]
    models = three(case)
    examples = rows_of(case, models[0], tmp_path)
    found = told(models, examples, monkeypatch)
    task: Any = task_for(models[0].opened, "tag")
    said = [task.predict(each.opened, framing_for(each.opened), examples) for each in models]
    same = list[bool]()
    for one, two, ours in zip(*said, strict=True):
        mean = np.log(np.mean([softmax(each.output, axis=1) for each in (one, two)], axis=0))
        tags = [task.tags(each) for each in (replace(one, output=mean), ours)]
        same += [a == b for a, b in zip(*tags, strict=True)]
    assert found.comparison.models[-1].agreement["same"].value == pytest.approx(np.mean(same))

    case = BY_TASK["embed"]
    models = three(case)
    examples = rows_of(case, models[0], tmp_path)
    found = told(models, examples, monkeypatch)
    vectors = [np.stack([model(example.texts[0]).values for example in examples]) for model in models]
    units = [each / np.linalg.norm(each, axis=1, keepdims=True) for each in vectors]
    near = [(some[1:] * some[:-1]).sum(1) for some in units]
    wanted = np.corrcoef(near[2], (near[0] + near[1]) / 2)[0, 1]
    assert found.comparison.models[-1].agreement["similarities"].value == pytest.approx(wanted, abs=1e-5)

    case = BY_TASK["translate"]
    models = three(case)
    examples = rows_of(case, models[0], tmp_path)[:4]
    found = told(models, examples, monkeypatch)
    sources = [example.texts[0] for example in examples]
    both = translate(models[0].opened, sources, others=[models[1].opened])
    said = [each.text.strip() for each in both]
    assert said != [each.text.strip() for each in translate(models[0].opened, sources)]
    copied = told([models[0], models[1], models[0]], examples, monkeypatch)
    wanted = [each.text.strip() == one for each, one in zip(models[0](sources), said, strict=True)]
    assert copied.comparison.models[-1].agreement["same"].value == pytest.approx(np.mean(wanted))


def test_answers_by_the_mean_of_the_chances() -> None:
    """Two that are half sure of the same answer outweigh what each likes best; and nothing is an answer too."""
    tasks = [AnswerTask(threshold=1.0), AnswerTask(threshold=0.0)]

    def said(threshold: float, nothing: float, *chances: tuple[float, int, int]) -> Prediction:
        choices = tuple((float(np.log(chance)), start, end) for chance, start, end in chances)
        return Prediction(Candidates(choices, float(np.log(nothing)) + threshold), 1, 1, False)

    one, two = said(1.0, 0.1, (0.5, 0, 3), (0.4, 7, 9)), said(0.0, 0.1, (0.5, 4, 6), (0.4, 7, 9))
    both = tasks[0].mean_prediction([one, two], tasks)
    assert tasks[0].key(both) == (7, 9)
    chances, nothing = tasks[0].probabilities(both.output)
    assert chances[:3] == pytest.approx([0.4, 0.25, 0.25]) and nothing == pytest.approx(0.1)
    unsure = [said(1.0, 0.6, (0.4, 0, 3)), said(0.0, 0.45, (0.55, 0, 3))]
    assert tasks[0].key(tasks[0].mean_prediction(unsure, tasks)) is None


def test_a_broken_teacher_breaks_the_joint_voice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = BY_TASK["classify"]
    models = three(case)
    next(models[1].network.parameters()).data.fill_(float("nan"))
    found = told(models, rows_of(case, models[0], tmp_path), monkeypatch)
    assert [each.damaged for each in found.comparison.models[:3]] == [NOT_FINITE, None, NOT_FINITE]
    assert found.comparison.models[-1].retained is None and "keeps" not in found.summary()


def test_language_models_are_held_to_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = BY_TASK["complete"]
    models = three(case)
    found = told(models, rows_of(case, models[0], tmp_path)[:4], monkeypatch)
    assert not found.together and found.values()["held_to"] == "t0 (teacher)" and "the first of them" in found.page()

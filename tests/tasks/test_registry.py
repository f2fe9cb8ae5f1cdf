"""The registry of tasks: built in and from plug-ins; and what a model gives beside its answers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from tests.tasks.small import model_for
from weft.errors import UserError
from weft.tasks.base import Task
from weft.tasks.registry import CLASSES, FROM_TEXT, SUPERVISED, WRITES, task_class, task_names
from weft.text.tokenizers.tokenizer import Tokenizer

PLUGIN = '''
from dataclasses import replace

from weft.tasks.classify import TextTask


class Shout(TextTask):
    """A label in capitals."""

    @classmethod
    def from_recipe(cls, work, data):
        return cls(work.name)

    @classmethod
    def from_model(cls, model, name):
        return cls(name, False, model.card.labels)

    def answer(self, prediction, input=None, **options):
        answer = super().answer(prediction)
        return replace(answer, label=answer.label.upper())
'''


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A distribution whose entry points name a task, a broken one, one that is none, and a built-in name."""
    info = tmp_path / "loud-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: loud\nVersion: 1.0\n")
    points = (
        "shout = loud_task:Shout",
        "broken = loud_broken:Task",
        "none = loud_task:TextTask.head",
        "tag = loud_task:Shout",
    )
    (info / "entry_points.txt").write_text("[weft.tasks]\n" + "\n".join(points) + "\n")
    (tmp_path / "loud_task.py").write_text(PLUGIN)
    (tmp_path / "loud_broken.py").write_text("raise ImportError('no such engine\\nat all')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "loud_task", raising=False)
    return tmp_path


def test_every_task_says_what_the_table_says() -> None:
    assert tuple(name for name in CLASSES if task_class(name).supervised) == SUPERVISED
    assert tuple(name for name in SUPERVISED if task_class(name).writes) == WRITES
    assert tuple(name for name in WRITES if not task_class(name).__name__.startswith("Describe")) == FROM_TEXT
    assert all(issubclass(task_class(name), Task) for name in CLASSES)
    with pytest.raises(UserError, match="task 'clasify' is not one of .*; did you mean 'classify'?"):
        task_class("clasify")


def test_the_registry_imports_no_torch() -> None:
    code = "import sys, weft.tasks.registry as r; r.task_names(); print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


def test_a_plug_in_is_imported_when_it_is_asked_for(plugins: Path, wordpiece: Tokenizer) -> None:
    assert {"shout", "broken"} <= set(task_names()) and "loud_task" not in sys.modules
    assert task_class("tag").__module__ == "weft.tasks.tag", "a built-in name stays what it is"
    model = model_for("classify", 2, wordpiece, ("no", "yes"))
    model.task = "shout"
    assert model("a cat").label in ("NO", "YES") and "loud_task" in sys.modules
    for name, fault in (("broken", "cannot be imported: ImportError: no such engine$"), ("none", "is not a subclass")):
        with pytest.raises(UserError, match=rf"^weft.tasks: plug-in '{name}' of loud .*{fault}") as error:
            task_class(name)
        assert "\n" not in str(error.value)


def test_a_plug_in_is_learned_evaluated_and_loaded(plugins: Path, tmp_path: Path) -> None:
    rows = [{"text": f"the {kind} is there", "label": label} for kind, label in (("cat", "no"), ("oak", "yes"))] * 8
    recipe: dict[str, Any] = {"model": {"family": "cnn"}, "training": {"steps": 2}}
    model = weft.finetune(rows, task="shout", out=tmp_path / "run", **recipe)
    assert model.task == "shout" and weft.load(tmp_path / "run")("a cat").label in ("NO", "YES")
    assert model.evaluate(rows).task == "shout"


def test_predictions_logits_and_hidden_states(wordpiece: Tokenizer) -> None:
    model = model_for("classify", 3, wordpiece, ("a", "b", "c"))
    texts = ["the cat is there", "an oak"]
    predictions, logits = model.predict(texts), model.logits(texts)
    answers: list[Any] = model(texts)
    for prediction, values, answer in zip(predictions, logits, answers, strict=True):
        assert torch.allclose(values.double(), torch.tensor(prediction.output), atol=1e-5)
        assert values.softmax(0).tolist() == pytest.approx(list(answer.scores.values()), abs=1e-5)
        assert prediction.n_tokens == answer.n_tokens
    states = model.hidden_states(texts)
    assert [len(of_text) for of_text in states] == [model.config.layers + 1] * 2
    sizes = [(answer.n_tokens, model.config.width) for answer in answers]
    assert [tuple(of_text[0].shape) for of_text in states] == sizes
    last = model.hidden_states(texts, layers=[-1])
    assert all(torch.equal(one[0], every[-1]) for one, every in zip(last, states, strict=True))
    assert model.hidden_states("an oak")[0][0].shape == sizes[1]
    with pytest.raises(UserError, match=f"layer 9: this model has layers .* to {model.config.layers}"):
        model.hidden_states(texts, layers=[9])
    with pytest.raises(UserError, match="text 2 is longer than a window"):
        model.logits(["a", "a cat " * 200])


def test_logits_of_tokens(wordpiece: Tokenizer) -> None:
    model = model_for("tag", 3, wordpiece, ("O", "B-PER", "I-PER"))
    logits = model.logits("the cat is there")[0]
    assert logits.shape == (model.hidden_states("the cat is there")[0][0].shape[0], 3)
    assert model.predict("the cat is there")[0].output.shape == (4, 3)

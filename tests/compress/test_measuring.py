"""What models cost: measured in turns, and memory in a process of its own."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.compress.models import BY_TASK, drawn, tokenizer_for
from weft.comparison.cost import evenly, measure, memory_of, timing_inputs, weight_bytes
from weft.errors import UserError
from weft.files import peak_memory
from weft.tasks.classify import TextTask
from weft.tasks.complete import CompleteTask
from weft.tasks.model import Model
from weft.timing import nearest_rank, turns


def test_rounds_have_orders_of_their_own_and_all_have_as_many_turns() -> None:
    order: list[str] = []
    times = turns({name: lambda _, name=name: order.append(name) for name in "abc"}, 300, warm=0)  # type: ignore[misc]
    rounds = ["".join(order[place : place + 3]) for place in range(0, 900, 3)]
    assert {len(each) for each in times.values()} == {300} and all(sorted(each) == list("abc") for each in rounds)
    counts = [rounds.count("".join(each)) for each in itertools.permutations("abc")]
    assert min(counts) > 25  # each of the six orders has about its sixth


def test_time_is_limited_for_all_alike() -> None:
    begin = time.perf_counter()
    times = turns({"slow": lambda _: time.sleep(0.02), "quick": lambda _: None}, 10_000, seconds=0.1, least=2)
    assert time.perf_counter() - begin < 5 and 2 <= len(times["slow"]) == len(times["quick"]) < 10
    assert len(turns({"slow": lambda _: time.sleep(0.02)}, 10, seconds=1e-9, least=3)["slow"]) == 3


def test_ranks() -> None:
    values = [float(number) for number in range(20, 0, -1)]
    assert (nearest_rank(values, 0.5), nearest_rank(values, 0.95), nearest_rank([3.0], 0.95)) == (10, 19, 3)
    assert evenly(range(10), 5) == [0, 2, 4, 6, 8] and evenly("ab", 5) == ["a", "b"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Path]:
    case = BY_TASK["classify"]
    model = drawn(case, tokenizer_for(case), 1)
    folder = tmp_path_factory.mktemp("saved") / "model"
    model.save(folder)
    return model, folder


def test_the_answers_that_are_timed_are_whole(saved: tuple[Model, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that is made slower is found slower, one by one and in bulk, and is called with letters."""
    model, folder = saved
    slow, given, clock = Model(model.opened, model.task), list[object](), [0.0]

    def call(self: Model, texts: object, **options: object) -> object:
        given.append(texts)
        clock[0] += 0.012 if self is slow else 0.003
        return real(self, texts, **options)

    real = Model.__call__
    monkeypatch.setattr(Model, "__call__", call)
    monkeypatch.setattr("weft.timing.time.perf_counter", lambda: clock[0])
    texts = [("the cat is there",), ("an oak",)]
    found, (quick, slower) = measure([model, slow], texts, [folder, None], seconds=0.5, memory=False)
    assert (quick.p50, quick.p95, slower.p50) == (pytest.approx(3), pytest.approx(3), pytest.approx(12))
    assert quick.per_second == pytest.approx(2 / 0.003) and slower.per_second == pytest.approx(2 / 0.012)
    assert quick.bytes == weight_bytes(folder) and slower.bytes is None and quick.parameters == slower.parameters
    assert "the cat is there" in given and ["the cat is there", "an oak"] in given
    assert (found.texts, found.bulk, found.device) == (2, 2, "cpu") and "2 texts one by one" in str(found)


def test_what_is_asked() -> None:
    two, one = TextTask("pair", True), CompleteTask()
    models: Any = [SimpleNamespace(task_object=task, tokenizer=None) for task in (two, one)]
    assert timing_inputs(models[0], [["a", "b"]]) == [("a", "b")]
    assert timing_inputs(models[1], [("a",), "a" * 10_000]) == ["a", "a" * 400]
    with pytest.raises(UserError, match="nothing to measure"):
        measure([], [])


def test_weights_are_told_from_words(tmp_path: Path) -> None:
    for name, size in {
        **{"config.json": 7, "tokenizer.json": 9, "vocab.txt": 5, ".hidden": 3, "run/state.safetensors": 100},
        **{"model.onnx": 20, "ctranslate2/model.bin": 30, "ctranslate2/config.json": 4, "model.safetensors": 1},
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x" * size)
    assert weight_bytes(tmp_path) == 20 + 30 + 4 + 1


@pytest.mark.slow  # a process that imports torch
@pytest.mark.skipif(peak_memory() is None, reason="this system does not tell")
def test_memory_is_that_of_the_model_and_not_of_who_asks(saved: tuple[Model, Path]) -> None:
    model, folder = saved
    ballast = np.ones(700_000_000 // 8)  # here, and not in the process that is measured
    here = peak_memory()
    found = memory_of(folder, model, ["the cat is there"])
    assert here is not None and here > ballast.nbytes
    assert found is not None and 100e6 < found < 650e6 < here

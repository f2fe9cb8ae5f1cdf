"""The gate: what is worse, or not faster, is never written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import weft
from tests.engines import need_engine
from tests.tasks.small import kinds, model_for, vocabulary, write_rows
from weft.cli.main import run
from weft.comparison.compare import Comparison, compare
from weft.errors import UserError
from weft.exporters.export import logits_of
from weft.metrics.bootstrap import Score
from weft.quantization import quantize as room
from weft.quantization.quantize import CandidateResult, Refused, chosen, gate_results
from weft.tasks.model import Model

need_engine("onnx")
SHORT = {"texts": 6, "seconds": 0.5}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with random weights, and rows of which it is right in all: what is right is what it says."""
    folder = tmp_path_factory.mktemp("quantize")
    model = model_for("classify", 3, vocabulary(), ("animal", "plant", "stone"))
    texts = sorted({row["text"] for row in kinds(200)})
    usual = np.stack(logits_of(model, texts)).mean(0)  # without it, nearly all texts get one label
    model.network.heads["classify"].output.bias.data.sub_(torch.tensor(usual))  # type: ignore[index, union-attr, operator]
    answers = model(texts)
    # Those of which it is sure: a little less precision turns none of them.
    sure = sorted(zip(answers, texts, strict=True), key=lambda pair: -pair[0].score)[:24]  # type: ignore[attr-defined]
    rows = [{"text": text, "label": answer.label} for answer, text in sure]  # type: ignore[attr-defined]
    assert len({row["label"] for row in rows}) > 1
    write_rows(folder / "rows.jsonl", rows)
    model.save(folder / "model")
    return folder


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, float]]:
    """How many times as fast each candidate is said to be; all else is measured as ever."""
    told: dict[str, float] = {}

    def with_times(*given: Any, **more: Any) -> Comparison:
        found = compare(*given, **more)
        first = found.models[0].costs
        assert first is not None
        models = [
            replace(each, costs=replace(each.costs, p50=first.p50 / times, per_second=first.per_second * times))
            if each.costs is not None and (times := told.get(each.name, 1.0))
            else each
            for each in found.models
        ]
        return replace(found, models=models)

    monkeypatch.setattr(room, "compare", with_times)
    yield told


def damaged(kind: str) -> Callable[..., None]:
    """A candidate of a network that has forgotten everything."""

    def write(asked: str, inside: Path, model: Model, texts: Sequence[Any]) -> None:
        if asked != kind:
            return before(asked, inside, model, texts)
        head = model.network.heads["classify"].output  # type: ignore[index, union-attr]
        kept = head.weight.data.clone()
        head.weight.data.mul_(-1)  # type: ignore[operator]
        try:
            before(kind, inside, model, texts)
        finally:
            head.weight.data.copy_(kept)  # type: ignore[operator]

    before = room.write_candidate
    return write


def test_the_fastest_that_passes_is_written(place: Path, tmp_path: Path, timed: dict[str, float]) -> None:
    timed |= {"onnx-int8": 3.0, "onnx-fp16": 2.0}
    out = tmp_path / "out"
    names = ["onnx-int8", "onnx-fp16", "bf16"]
    generated = (json.loads(line) for line in (place / "rows.jsonl").read_text().splitlines())  # rows in memory
    found = weft.quantize(place / "model", generated, out=out, kinds=names, max_drop=50, **SHORT)
    assert found.chosen == "onnx-int8" and found.folder == out
    assert {each.kind: each.refused is None for each in found.candidates} == {
        "onnx-int8": True,
        "onnx-fp16": True,
        "bf16": False,
    }
    model = weft.load(out)
    assert (model.card.backend, model.card.precision) == ("onnx", "int8")
    scores = {metric.name: metric.value for metric in model.card.metrics}
    told = json.loads((out / "run" / "quantize.json").read_text())
    assert told["chosen"] == "onnx-int8" and len(told["candidates"]) == 3
    assert scores["accuracy"] == told["comparison"]["models"][1]["scores"]["accuracy"]["value"]
    page = (out / "run" / "quantize.html").read_text()
    assert "chosen: onnx-int8" in page and "not faster" in page
    rows = [json.loads(line) for line in (place / "rows.jsonl").read_text().splitlines()]
    assert model(rows[0]["text"]).label == rows[0]["label"]  # type: ignore[attr-defined]


def test_a_damaged_candidate_is_refused_though_it_is_fast(
    place: Path, tmp_path: Path, timed: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    timed |= {"onnx-int8": 9.0, "onnx-fp16": 2.0}
    monkeypatch.setattr(room, "write_candidate", damaged("onnx-int8"))
    names = ["onnx-int8", "onnx-fp16"]
    found = weft.quantize(place / "model", place / "rows.jsonl", out=tmp_path / "out", kinds=names, **SHORT)
    assert found.chosen == "onnx-fp16"
    refused = found.candidates[0].refused
    assert refused is not None and refused.startswith(("loses", "damaged"))
    with pytest.raises(
        Refused, match=r"no candidate passes, so nothing was written: onnx-int8 (loses|damaged)"
    ) as error:
        weft.quantize(place / "model", place / "rows.jsonl", out=tmp_path / "two", kinds=names[:1], **SHORT)
    assert error.value.result.chosen is None
    assert [path.name for path in tmp_path.iterdir()] == ["out"]  # nothing is left behind


def test_a_slower_one_is_refused_and_the_table_is_printed(
    place: Path, tmp_path: Path, timed: dict[str, float], capsys: pytest.CaptureFixture[str]
) -> None:
    timed |= {"onnx-fp32": 0.5}
    command = ["quantize", str(place / "model"), "--data", str(place / "rows.jsonl"), "--out", str(tmp_path / "out")]
    command += ["--kinds", "onnx-fp32", "--texts", "6", "--seconds", "0.5"]
    assert run(command) == 2
    told = capsys.readouterr()
    assert "not faster: 0.50 x for one text, 0.50 x for many" in told.out
    assert told.err.count("\n") == 1 and told.err.startswith("weft quantize: no candidate passes")
    assert list(tmp_path.iterdir()) == []
    timed |= {"onnx-fp32": 2.0}
    assert run(command) == 0
    assert "chosen" in capsys.readouterr().out and weft.load(tmp_path / "out").card.backend == "onnx"


def test_what_is_lost_is_counted_in_points(place: Path) -> None:
    found = compare([place / "model", place / "model"], place / "rows.jsonl", costs=True, memory=False, **SHORT)
    first, second = found.models
    assert second.costs is not None and first.costs is not None
    fast = replace(second.costs, p50=first.costs.p50 / 2, per_second=first.costs.per_second * 2)

    def candidate(drop: float, costs: Any = fast, allowed: float = 0.5, noise: float = 0.0) -> CandidateResult:
        shift = Score(-drop, -drop - noise, -drop + noise)
        other = replace(second, costs=costs, difference={**second.difference, "accuracy": shift})
        return gate_results(replace(found, models=[first, other]), allowed)[0]

    assert candidate(0.004).refused is None and candidate(0.004).faster == pytest.approx(2.0)
    assert candidate(0.006).refused == "loses 0.60 points of accuracy (95 % 0.60 to 0.60), and 0.5 are allowed"
    # What is lost within noise is no loss: 2 of 300 rows, whose interval holds what is allowed.
    unsure_loss = candidate(0.0067, noise=0.008)
    assert unsure_loss.refused is None and unsure_loss.noise
    assert not candidate(0.004, noise=0.008).noise
    assert (
        candidate(0.05, noise=0.04).refused == "loses 5.00 points of accuracy (95 % 1.00 to 9.00), and 0.5 are allowed"
    )
    assert candidate(float("nan")).refused is not None
    one_sided = replace(fast, per_second=first.costs.per_second * 0.9)
    assert candidate(0.0, one_sided).refused == "not faster: 2.00 x for one text, 0.90 x for many"
    assert "not faster" in str(candidate(0.0, first.costs).refused)
    # Where no row says what is right, agreement decides.
    alike = replace(second, costs=fast, agreement={"same": Score(0.99, 0.985, 0.992)})
    unsure = replace(found, metric=None, agreement_metric="same", models=[first, alike])
    assert gate_results(unsure, 0.5)[0].refused == (
        "loses 1.00 points of agreement (same) (95 % 0.80 to 1.50), and 0.5 are allowed"
    )
    assert gate_results(unsure, 1.5)[0].refused is None
    broken = replace(found, models=[replace(first, damaged="its outputs are not numbers (NaN or infinite)"), second])
    with pytest.raises(UserError, match="the model itself is damaged"):
        gate_results(broken, 0.5)


def test_the_result_is_never_silent_about_its_size(
    place: Path, tmp_path: Path, timed: dict[str, float], capsys: pytest.CaptureFixture[str]
) -> None:
    """An fp32 file of the same size says so; --prefer small refuses it, and chooses what is smaller."""
    timed |= {"onnx-fp32": 3.0, "onnx-fp16": 2.0}
    command = ["quantize", str(place / "model"), "--data", str(place / "rows.jsonl"), "--max-drop", "50"]
    command += ["--kinds", "onnx-fp32,onnx-fp16", "--texts", "6", "--seconds", "0.5"]
    assert run([*command, "--out", str(tmp_path / "fast")]) == 0
    told = capsys.readouterr()
    assert told.out.startswith("chosen: onnx-fp32, not smaller, 3.0x faster, accuracy 1.000 -> ")
    assert "weft: warning: onnx-fp32 is not smaller than the model" in told.err
    assert "--prefer small would choose onnx-fp16" in told.err
    assert run([*command, "--prefer", "small", "--out", str(tmp_path / "small")]) == 0
    told = capsys.readouterr()
    assert told.out.startswith("chosen: onnx-fp16, ") and "x smaller, 2.0x faster" in told.out.splitlines()[0]
    assert "not smaller: " in told.out and "warning" not in told.err
    assert (
        run([*command[:-6], "--kinds", "onnx-fp32", *command[-4:], "--prefer", "small", "--out", str(tmp_path / "no")])
        == 2
    )
    assert "nothing was written: onnx-fp32 not smaller" in capsys.readouterr().err


def test_the_best_is_the_fastest_that_passes() -> None:
    some = [
        CandidateResult("a", 3.0, "loses"),
        CandidateResult("b", 1.5),
        CandidateResult("c", 2.0),
        CandidateResult("d", None, "cannot"),
    ]
    assert chosen(some) == "c" and chosen(some[:1]) is None
    # Of two that are about as fast, the smaller; and the other way round.
    near = [
        CandidateResult("a", 2.02, smaller=1.0),
        CandidateResult("b", 2.0, smaller=4.0),
        CandidateResult("c", 1.2, smaller=4.1),
    ]
    assert chosen(near) == "b" and chosen(near, "small") == "b"
    assert chosen([near[0], near[2]]) == "a" and chosen([near[0], near[2]], "small") == "c"


def test_mistakes(place: Path, tmp_path: Path) -> None:
    model, rows, out = place / "model", place / "rows.jsonl", tmp_path / "out"
    with pytest.raises(UserError, match="kind 'onnx-int9' is not one of .*did you mean 'onnx-int8'"):
        weft.quantize(model, rows, out=out, kinds=["onnx-int9"])
    with pytest.raises(UserError, match="max_drop must be between 0 and 100 points, not -1"):
        weft.quantize(model, rows, out=out, max_drop=-1)
    with pytest.raises(UserError, match="is evaluated on rows: give --data"):
        weft.quantize(model, out=out)
    weft.export(model, "onnx", out=tmp_path / "onnx")
    with pytest.raises(UserError, match="a model for onnx already"):
        weft.quantize(tmp_path / "onnx", rows, out=out)
    (out / "full").mkdir(parents=True)
    with pytest.raises(UserError, match="already there and not empty"):
        weft.quantize(model, rows, out=out)


def test_what_a_model_cannot_become_is_said(tmp_path: Path) -> None:
    model = weft.new("mlp", vocabulary(), heads={"words": None})
    model.save(tmp_path / "mlp")
    (tmp_path / "text.txt").write_text("the cat is now\n" * 30)
    with pytest.raises(
        UserError, match="nothing to choose from: onnx-int8: a model for complete cannot be written as ONNX"
    ):
        weft.quantize(tmp_path / "mlp", tmp_path / "text.txt", out=tmp_path / "out", kinds=["onnx-int8"])
    assert not (tmp_path / "out").exists()


def test_a_language_model_is_judged_where_another_engine_runs_it(tmp_path: Path, timed: dict[str, float]) -> None:
    pytest.importorskip("ctranslate2")
    weft.new("gpt2", vocabulary("bpe"), size="1x64", settings={"context": 32}).save(tmp_path / "gpt")
    (tmp_path / "text.txt").write_text("the cat is now there again\nthe oak is old\n" * 12)
    timed |= {"ctranslate2-fp32": 2.0}
    found = weft.quantize(
        tmp_path / "gpt", tmp_path / "text.txt", out=tmp_path / "out", kinds=["ctranslate2-fp32"], texts=2, seconds=0.5
    )
    first, second = (each.scores["bits_per_byte"].value for each in found.comparison.models)
    assert found.chosen == "ctranslate2-fp32" and second == pytest.approx(first, abs=1e-4) and first > 1

"""Exports to CTranslate2: the same answers of every task, through every verb; and what must not be written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from tests.backends.engines import carried
from tests.backends.engines import drawn as engine_model
from tests.compress.models import BY_TASK, CASES, Case, drawn, written
from tests.compress.models import tokenizer_for as usual_tokenizer
from tests.once import once
from tests.tasks.written import PLAN, learned, worded, write_sides
from weft.checkpoint.families import FAMILIES
from weft.cli.main import run
from weft.exporters import export as checks
from weft.exporters import export as ct2_export
from weft.exporters.export import check_generation, export, made_up_inputs
from weft.tasks.complete import complete
from weft.tasks.model import Model
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.tokenizers.training import learn

pytest.importorskip("ctranslate2")
PAIRS = worded(20)


def tokenizer_for(case: Case) -> Tokenizer:
    if case.family != "transformer":
        return usual_tokenizer(case)
    known = FAMILIES["transformer"]
    return learn([text for pair in PAIRS for text in pair], "word", 100, specials=known.specials, around=known.around)


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Transformer that has learned its pairs."""

    def make(folder: Path) -> None:
        learned(folder, folder / "run", training={**PLAN, "steps": 50, "evaluate_every": 50})
        write_sides(folder, PAIRS)

    return once(tmp_path_factory, "translator", make)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.task)
def test_every_task_says_the_same(case: Case, tmp_path: Path) -> None:
    ours = drawn(case, tokenizer_for(case), seed=1)
    data = None if case.task == "fill" else written(case, tmp_path, count=12)  # made-up texts have gaps
    found = export(ours, "ctranslate2", out=tmp_path / "x", data=data)
    assert found.max_difference < 1e-4 and found.texts == (24 if data is None else 12) and found.bytes > 10_000
    theirs = weft.load(tmp_path / "x")
    assert (theirs.task, theirs.card.labels, theirs.card.backend) == (case.task, case.labels, "ctranslate2")
    inputs = made_up_inputs(ours, 6)
    options: dict[str, Any] = {"max_tokens": 6} if case.task in ("translate", "complete") else {}
    some = ["the cat is there", "one", "two small dog"] if options else inputs
    one, two = ours(some, **options), theirs(some, **options)
    assert [answer.decision for answer in one] == [answer.decision for answer in two]
    if case.task == "embed":
        np.testing.assert_allclose([answer.values for answer in two], [answer.values for answer in one], atol=1e-5)
    if case.task == "regress":
        np.testing.assert_allclose([answer.value for answer in two], [answer.value for answer in one], rtol=1e-3)


def test_made_up_texts_where_none_are_given(tmp_path: Path) -> None:
    for case in (BY_TASK["classify"], BY_TASK["complete"]):
        found = export(drawn(case, tokenizer_for(case), seed=2), "ctranslate2", out=tmp_path / case.task)
        assert found.texts > 10


def test_the_verbs(taught: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exported on the command line, then asked by every verb that writes, and judged: as the model itself."""
    base, out = str(taught / "run"), str(tmp_path / "x")
    assert run(["export", base, "--to", "ctranslate2", "--data", str(taught / "t.en"), "--out", out]) == 0
    assert "20 inputs: the same answers" in capsys.readouterr().out
    sources = [source for source, _ in PAIRS[:4]]
    for verb in (
        ["translate"],
        ["predict"],
        ["generate"],
    ):
        told = []
        for folder in (base, out):
            assert run([verb[0], folder, *sources[: 1 if verb[0] == "generate" else 4], *verb[1:]]) == 0, verb
            told.append(capsys.readouterr().out)
        assert told[0] == told[1] and told[0].strip()
    assert run(["translate", out, sources[0], "--alignments"]) == 2
    assert "CTranslate2 cannot return alignments" in capsys.readouterr().err
    assert run(["translate", out, out, sources[0]]) == 2
    assert run(["finetune", "--task", "translate", "--source", str(taught / "t.en"), "--target", str(taught / "t.de"),
                "--base", out, "--out", str(tmp_path / "y")]) == 2  # fmt: skip
    assert "has no PyTorch weights; use the folder it was exported from" in capsys.readouterr().err


@pytest.mark.slow
def test_the_same_bleu(taught: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, out = str(taught / "run"), str(tmp_path / "x")
    export(base, "ctranslate2", out=out, data=taught / "t.en")
    scores = []
    for folder in (base, out):
        assert run(["evaluate", folder, "--source", str(taught / "t.en"), "--target", str(taught / "t.de")]) == 0
        scores.append([line for line in capsys.readouterr().out.splitlines() if "bleu" in line])
    assert scores[0] == scores[1] != []


def test_generate_and_predict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for task, verb in (
        ("complete", ["generate", "--max-tokens", "6"]),
        ("classify", ["predict"]),
        ("embed", ["embed"]),
    ):
        case = BY_TASK[task]
        drawn(case, tokenizer_for(case), seed=3).save(tmp_path / task)
        out = str(tmp_path / f"{task}-x")
        assert run(["export", str(tmp_path / task), "--to", "ctranslate2", "--out", out]) == 0
        capsys.readouterr()
        told = []
        for folder in (str(tmp_path / task), out):
            assert run([verb[0], folder, "the cat is there", *verb[1:]]) == 0
            told.append(capsys.readouterr().out)
        assert told[0] and [line[:6] for line in told[0].splitlines()] == [line[:6] for line in told[1].splitlines()]


# ------------------------------------------------------------------------------------------------ what is not written


def harm(spec: Any) -> Any:
    """One matrix of the first layer, turned upside down."""
    stack = spec.encoder if hasattr(spec, "encoder") else spec.decoder
    stack.layer[0].ffn.linear_1.weight = stack.layer[0].ffn.linear_1.weight[::-1].copy()
    return spec


@pytest.mark.parametrize("task", ["classify", "tag", "answer", "embed", "translate", "complete"])
def test_a_damaged_export_is_not_written(task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = BY_TASK[task]
    model, whole = drawn(case, tokenizer_for(case), seed=1), ct2_export.spec_of
    monkeypatch.setattr(ct2_export, "spec_of", lambda opened: harm(whole(opened)))
    with pytest.raises(weft.UserError, match="differs from its source.*nothing was written") as found:
        export(model, "ctranslate2", out=tmp_path / "x", data=written(case, tmp_path, count=8))
    assert "\n" not in str(found.value) and not (tmp_path / "x").exists()
    assert [path.name for path in tmp_path.iterdir()] == [f"{task}-True.jsonl"]


def test_integers_are_near_unless_damaged(taught: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How near hangs on the processor: without VNNI, sums of products saturate at 16 bits."""
    ours, texts = weft.load(taught / "run"), [source for source, _ in PAIRS]
    sound, whole = carried(ours, tmp_path / "sound", "int8"), ct2_export.spec_of
    monkeypatch.setattr(ct2_export, "spec_of", lambda opened: harm(whole(opened)))
    harmed = carried(ours, tmp_path / "harmed", "int8")
    with monkeypatch.context() as open_gate:
        open_gate.setitem(checks.NEAR, "int8", float("inf"))
        near, far = (check_generation(ours, each, texts, "int8") for each in (sound, harmed))
    assert 1e-5 < near < far / 3
    assert sum(one.text == two.text for one, two in zip(ours(texts), sound(texts), strict=True)) > 10
    with pytest.raises(weft.UserError, match="log-probability of a token by"):
        check_generation(ours, harmed, texts, "int8")


def test_models_that_the_engine_has_no_words_for(tmp_path: Path) -> None:
    wrong: list[tuple[str, dict[str, Any], dict[str, int | None] | None, str]] = [
        ("lstm", {}, None, "cannot run a lstm model"),
        ("albert", {}, {"classify": 2}, "cannot run a albert model"),
        ("bert", {"mix": True}, {"classify": 2}, "a mix of all"),
        ("bert", {"positions": "alibi"}, {"classify": 2}, "alibi positions for decoders only"),
        ("gpt2", {}, {"classify": 2}, "another head; try --to onnx"),
    ]
    for family, settings, heads, told in wrong:
        tokenizer = tokenizer_for(BY_TASK["complete" if family in ("lstm", "gpt2") else "classify"])
        sizes = {**settings, **({} if family == "lstm" else {"context": 48})}
        model = weft.new(family, tokenizer, size="1x64", settings=sizes, heads=heads)
        with pytest.raises(weft.UserError, match=told):
            export(Model(model.opened, "complete" if heads is None else "classify"), "ctranslate2", out=tmp_path / "x")
        assert not (tmp_path / "x").exists()


def test_a_t5_that_fills_gaps_goes_on_writing(tmp_path: Path) -> None:
    ours = engine_model("t5")
    assert ours.task == "fill"
    export(ours, "ctranslate2", out=tmp_path / "x")
    theirs = weft.load(tmp_path / "x")
    assert (
        theirs.task == "complete"
        and theirs("the cat", max_tokens=4).text == complete(ours.opened, ["the cat"], max_tokens=4)[0].text
    )
    for task in ("fill", "embed"):
        with pytest.raises(weft.UserError):
            weft.load(tmp_path / "x", task=task)("the <extra_id_0> cat")


def test_an_export_is_not_exported_or_saved_again(tmp_path: Path) -> None:
    model = carried(engine_model("bert", {"tag": 2}), tmp_path / "x")
    for to in ("ctranslate2", "transformers", "onnx"):
        with pytest.raises(weft.UserError, match="for ctranslate2 already"):
            export(model, to, out=tmp_path / "y")
    with pytest.raises(weft.UserError, match="no PyTorch weights"):
        model.save(tmp_path / "y")


def test_texts_of_a_writer(taught: Path, tmp_path: Path) -> None:
    """Plain lines, tables with sources, and columns by name; none is one line."""
    rows = [{"source": a, "target": b} for a, b in PAIRS[:3]]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "b.jsonl").write_text("".join(json.dumps({"en": row["source"]}) + "\n" for row in rows))
    wanted = [row["source"] for row in rows]
    assert checks.read_from([taught / "t.en"], {}) == [source for source, _ in PAIRS]
    assert checks.read_from([tmp_path / "a.jsonl"], {}) == wanted
    assert checks.read_from([tmp_path / "b.jsonl"], {"source": "en"}) == wanted
    (tmp_path / "c.txt").write_text("\n\n")
    for name, told in (("b.jsonl", "has no column 'text'"), ("c.txt", "c.txt")):
        with pytest.raises(weft.UserError, match=told):
            checks.read_from([tmp_path / name], {})

"""`weft look MODEL --live`: what a page holds, what is refused, and how weights are rounded."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Library

import weft
from tests.explain.live_models import CASES, model_of, tokenizers
from weft.cli.main import run
from weft.explain import live_weights
from weft.explain.live import live_data, write_live
from weft.explain.live_tokenizer import ranges_of, tokenizer_data
from weft.explain.live_weights import int8_rows, rounded, size_of
from weft.tasks.model import Model
from weft.text.tokenizers.tokenizer import Roles, Tokenizer
from weft.text.tokenizers.training import learn

GPT = CASES[0]


@pytest.fixture(scope="module")
def gpt() -> Model:
    return model_of(GPT, tokenizers())


def test_a_page_stands_alone(gpt: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    gpt.save("model")
    assert run(["look", "model", "The weaver", "--live", "model.html"]) == 0
    page = Path("model.html").read_text(encoding="utf-8")
    assert "default-src 'none'" in page and "http-equiv" in page
    assert not any(word in page for word in ("src=", "href=", "@import", "https://"))
    assert '"sample":"The weaver"' in page and "never leave" in page
    written = write_live(gpt, tmp_path / "other.html", weights="int8")
    assert written.weights == "int8" and written.bytes == (tmp_path / "other.html").stat().st_size
    assert written.bytes < len(page) and f"{written.parameters:,} parameters in int8" in str(written)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--live", "page.txt"], r"page.txt: a live page is an .html file"),
        (["one", "two", "--live", "page.html"], "this model reads one text, not 2"),
        (["--live", "page.html", "--weights", "int4"], "int4.*int8.*fp16"),
        (["--live", "page.html", "--out", "other.html"], "leave out --out"),
        (["--live", "page.html", "--walk"], "leave out --walk"),
        (["text", "--weights", "int8"], "--weights is for --live"),
    ],
)
def test_mistakes_are_one_line(
    gpt: Model,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    gpt.save("model")
    assert run(["look", "model", *arguments]) == 2
    error = capsys.readouterr().err
    assert len(error.strip().splitlines()) == 1 and "Traceback" not in error
    assert re.search(message, error), error
    assert not list(tmp_path.glob("*.html"))


def test_other_families_are_refused_with_those_that_work() -> None:
    tokenizer = learn(["the weaver works at the loom"] * 9, "unigram", 40)
    model = weft.new("t5", tokenizer, size="1x64", settings={"begin": 0})
    with pytest.raises(weft.UserError, match=r"gpt2.*bert.*lstm.*, not t5"):
        live_data(model)


def test_a_task_without_a_page_is_refused() -> None:
    tokenizer = tokenizers()["wordpiece"]
    model = weft.new("bert", tokenizer, size="1x64", heads={})
    with pytest.raises(weft.UserError, match="classify, pair, multilabel, regress, tag, fill, answer and language"):
        live_data(Model(model.opened, "embed"))


def test_a_model_that_is_too_large_is_refused(gpt: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    half, whole = size_of(gpt, "int8"), size_of(gpt, "fp16")
    monkeypatch.setattr(live_weights, "MAX_BYTES", (half + whole) // 2)
    with pytest.raises(weft.UserError, match=r"MB of weights in fp16; .*at most .*: give --weights int8"):
        live_data(gpt, "fp16")
    assert live_data(gpt, "int8")["precision"] == "int8"
    monkeypatch.setattr(live_weights, "MAX_BYTES", half - 1)
    with pytest.raises(weft.UserError, match=r"MB of weights even in int8; .*: weft distill .*weft prune"):
        live_data(gpt)


def test_damaged_weights_are_refused() -> None:
    model = model_of(GPT, tokenizers())
    with torch.no_grad():
        dict(model.network.named_parameters())["tokens.weight"][3, 2] = float("nan")
    with pytest.raises(weft.UserError, match=r"tokens\.weight is not finite"):
        live_data(model)


def test_weights_are_rounded_as_the_page_has_them(gpt: Model) -> None:
    matrix = torch.tensor([[0.5, -1.0, 0.3], [0.0, 0.0, 0.0], [1e-30, 0.0, 0.0], [3e38, 1.0, -3e38]])
    values, scales = int8_rows(matrix)
    restored = values.astype(np.float64) * scales[:, None]
    assert np.abs(restored - matrix.numpy()).max(1)[0] <= scales[0] / 2 * 1.0001
    assert np.isfinite(restored).all() and values[1].tolist() == [0, 0, 0] and values[3].tolist() == [127, 0, -127]
    for weights in ("int8", "fp16"):
        once = rounded(gpt, weights)
        twice = rounded(once, weights)
        for a, b in zip(once.network.parameters(), twice.network.parameters(), strict=True):
            assert torch.allclose(a, b, rtol=1e-6, atol=0), "rounding what is rounded changes nothing"


def test_a_small_model_has_float16_and_a_large_one_int8(gpt: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    assert live_data(gpt)["precision"] == "fp16"
    monkeypatch.setattr(live_weights, "SMALL", 1000)
    assert live_data(gpt)["precision"] == "int8"


def made(pre: object = None, normalizer: object = None, model: object = None) -> Tokenizer:
    library = Library(model or models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))  # type: ignore[arg-type]
    if pre is not None:
        library.pre_tokenizer = pre  # type: ignore[assignment]
    if normalizer is not None:
        library.normalizer = normalizer  # type: ignore[assignment]
    return Tokenizer(library, Roles(unknown="[UNK]"), {})


@pytest.mark.parametrize(
    "tokenizer, message",
    [
        (made(pre_tokenizers.UnicodeScripts()), "the pre-tokenizer UnicodeScripts"),
        (made(pre_tokenizers.Split(Regex(r"a++b"), "isolated")), "possessive"),
        (made(pre_tokenizers.Split(Regex(r"(?>ab)"), "isolated")), r"the group \(\?>"),
        (made(normalizer=normalizers.Nmt()), "the normalizer Nmt"),
        (made(model=models.BPE({"a": 0, "[UNK]": 1}, [], dropout=0.1, unk_token="[UNK]")), "BPE with dropout"),
    ],
)
def test_a_tokenizer_that_cannot_be_carried_is_refused(tokenizer: Tokenizer, message: str) -> None:
    with pytest.raises(weft.UserError, match=f"a live page cannot run this tokenizer: .*{message}"):
        tokenizer_data(tokenizer)


def test_ranges() -> None:
    assert ranges_of([3, 4, 5, 9, 11, 12]) == [3, 5, 9, 9, 11, 12] and ranges_of([]) == []


def test_the_page_is_valid_json(gpt: Model) -> None:
    assert json.loads(json.dumps(live_data(gpt, "int8")))["tokenizer"]["model"]["type"] == "BPE"

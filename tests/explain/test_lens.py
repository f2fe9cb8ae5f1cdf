"""The logit lens: the page says what the layers would predict, and the last of them what the model does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from tests.explain.browser import NARROW, Browser, fits, overlaps, settle
from weft.errors import UserError
from weft.explain.lens import lens_view
from weft.text.tokenizers.training import learn

WORDS = "the weaver throws a shuttle of red wool through the warp and it comes back because she is never too tired"
TEXT = "red wool through the"


def model_of(family: str, **settings: Any) -> Any:
    kind = "wordpiece" if family == "bert" else "bpe"
    return weft.new(
        family, learn([WORDS] * 9, kind, 300 if kind == "bpe" else 120), size="2x64", settings=settings, seed=3
    )


@pytest.mark.parametrize("family", ["gpt2", "bert", "lstm"])
def test_the_highest_row_is_the_prediction(family: str) -> None:
    model = model_of(family)
    content = lens_view(model, TEXT, top=3).panels[0].data()
    probabilities = model.logits(TEXT)[0].softmax(-1)
    best = probabilities.topk(3, -1)
    assert [row["label"] for row in content["rows"]] == ["Layer 1", "Layer 0", "Embeddings"]
    assert len(content["tokens"]) == len(probabilities) == len(content["rows"][0]["cells"])
    for cell, shares in zip(content["rows"][0]["cells"], best.values.tolist(), strict=True):
        assert [share for _, share in cell] == pytest.approx(shares, abs=1e-5)
    assert content["follows"] == (family != "bert")
    if family == "gpt2":
        with weft.watch(model) as seen:
            model.logits(TEXT)
        low = seen.lens(0).softmax(-1).amax(-1)
        assert [cell[0][1] for cell in content["rows"][1]["cells"]] == pytest.approx(low.tolist(), abs=1e-5)


def test_an_encoder_decoder_reads_its_own_output() -> None:
    model = model_of("transformer")
    tokens = lens_view(model, TEXT, target="the warp").data()["panels"][0]["tokens"]
    assert "".join(tokens[1:]).replace("·", " ") == "the warp"
    assert "own output" in lens_view(model, TEXT).html()


def test_models_without_a_lens() -> None:
    tokenizer = learn([WORDS] * 9, "bpe", 300)
    for family, message in (("ngram", "no layers"), ("cnn", "no word head"), ("seq2seq", "more than a layer's output")):
        with pytest.raises(UserError, match=message):
            lens_view(weft.new(family, tokenizer, seed=3, **({"size": "1x64"} if family == "seq2seq" else {})), TEXT)
    for options, message in (
        ({"top": 0}, "--top must be between 1 and 50"),
        ({"window": 2}, "this text has 1 window"),
        ({"target": "x"}, "--target is for encoder-decoders"),
    ):
        with pytest.raises(UserError, match=message):
            lens_view(model_of("gpt2"), TEXT, **options)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="mix of layers"):
        lens_view(model_of("bert", mix=True), TEXT)


def test_the_page(browser: Browser, tmp_path: Path) -> None:
    view = lens_view(model_of("gpt2"), WORDS, top=4)
    path = view.save(tmp_path / "lens.html")
    assert json.loads(view.save(tmp_path / "lens.json").read_text())["panels"][0]["rows"]
    for width in (1280, NARROW):
        with browser.open(path, width=width) as page:
            settle(page)
            assert fits(page) and not overlaps(page, ".lens-detail .word")
            assert "Layer 1, after" in page.inner_text(".lens-detail h3")
            page.focus('.lens td[aria-current="true"]')
            page.keyboard.press("ArrowDown")
            assert "Layer 0, after" in page.inner_text(".lens-detail h3")
            assert len(page.query_selector_all(".lens-detail li")) == 4


def test_long_texts_are_cut() -> None:
    model = model_of("gpt2", context=400)
    content = lens_view(model, " ".join([WORDS] * 12), top=1)
    assert len(content.panels[0].data()["tokens"]) == 200 and "these are the first 200" in content.html()
    assert torch.is_tensor(model.logits(TEXT)[0])

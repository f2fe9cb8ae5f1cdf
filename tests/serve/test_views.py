"""The views that a model is served with: each can be shown, and what a model cannot show is not offered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from tests.serve.running import save_models
from weft.serve.looking import view_of, views_of

TEXTS = {"qa": ["who sang ?", "the weaver sang"], "pairs": ["the loom", "a mill"], "bert": ["the [MASK] sang"]}
PAIRED = ("attention", "attribution")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_models(tmp_path_factory.mktemp("views"), (*TEXTS, "gpt", "names", "dates"))


@pytest.mark.parametrize("name", [*TEXTS, "gpt", "names"])
def test_every_view_that_is_offered_can_be_shown(folder: Path, name: str) -> None:
    model = weft.load(folder / name)
    views = views_of(model)
    assert {"attention", "attribution", "walk", "tokens"} <= set(views)
    for view in views:
        texts = TEXTS.get(name, ["The weaver sang."])
        assert view_of(model, view, texts if view in PAIRED else texts[:1], {})["panels"], view


def test_an_encoder_decoder_weighs_no_words(folder: Path) -> None:
    views = views_of(weft.load(folder / "dates"))
    assert "attribution" not in views and "attention" in views


@pytest.mark.parametrize("family", ["gru", "lstm"])
def test_recurrent_models_say_which_words_mattered(family: str) -> None:
    """They have no attention, and need none for this."""
    model: Any = weft.finetune(
        [{"text": text, "label": label} for text, label in [("a good loom", "good"), ("a bad mill", "bad")] * 8],
        task="classify",
        model={"family": family, "size": "1x8"},
        training={"steps": 1, "batch": 4, "evaluate_every": 1},
        log=lambda text: None,
        progress=False,
    )
    views = views_of(model)
    assert "attribution" in views and "attention" not in views
    (panel,) = view_of(model, "attribution", ["a good loom"], {"method": "integrated-gradients"})["panels"]
    assert [word["word"] for word in panel["data"]["words"]] == ["a", "good", "loom"]


def test_the_end_of_the_text_has_a_name(folder: Path) -> None:
    """Where the likeliest next token is the end, its text is empty."""
    model = weft.load(folder / "gpt")
    tokenizer, network = model.opened.tokenizer, model.opened.network
    end = tokenizer.id_of("end")
    assert end is not None and tokenizer.decode([end]) == ""
    with torch.no_grad():
        network.tokens.weight[:] = -network.tokens.weight.abs()
        network.tokens.weight[end] = 100.0
        network.final_norm.bias.fill_(1.0)
    (panel,) = view_of(model, "attribution", ["The weaver sang."], {"method": "gradient"})["panels"]
    assert panel["data"]["facts"][0][0] == f"Logit of {tokenizer.token(end)!r}"

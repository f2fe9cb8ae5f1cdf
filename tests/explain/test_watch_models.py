"""`weft.watch` on models: texts and windows, tokens as text, generated text, and what a notebook shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from tests.explain.browser import Browser, settle
from weft.errors import UserError
from weft.nn.rows import Rows
from weft.text.tokenizers.training import learn

WORDS = "the weaver throws a shuttle of red wool through the warp and it comes back because she is never too tired"
TEXTS = [WORDS, "red wool", "the warp and the wool of the weaver"]
SIZES = {"context": 16, "inner": 64, "head_width": 16, "heads": 2}


def bert(**settings: Any) -> Any:
    model = weft.new("bert", learn([WORDS] * 9, "wordpiece", 120), size="2x64", settings={**SIZES, **settings}, seed=3)
    assert model.task == "fill"
    return model


@pytest.fixture(scope="module")
def gpt() -> Any:
    settings = {**SIZES, "context": 64}
    return weft.new("gpt2", learn([WORDS] * 9, "bpe", 300), size="2x64", settings=settings, seed=3)


@pytest.fixture(scope="module")
def translator() -> Any:
    return weft.new("transformer", learn([WORDS] * 9, "bpe", 300), size="2x64", settings={"heads": 2}, seed=3)


def test_texts_and_windows_in_the_order_of_the_call() -> None:
    """Windows are read by their length, and several texts at once; they are handed out as they were asked for."""
    model = bert()
    with weft.watch(model, layers=-1) as seen:
        vectors = model.embed(TEXTS)
        model.embed(TEXTS[1])
    tokenizer = model.tokenizer
    assert tokenizer is not None and len(vectors) == 3 and len(seen) == 4
    windows = seen.windows
    assert [len(some) for some in windows] == [len(windows[0]), 1, 1, 1] and len(windows[0]) > 1
    for number, text in enumerate([*TEXTS, TEXTS[1]]):
        ids = tokenizer.ids([text], specials=False)[0]
        assert windows[number][0].ids[1:][: len(ids)] == ids[: len(windows[number][0].ids) - 2] + (
            [windows[number][0].ids[-1]] if len(windows[number]) > 1 else []
        )
        assert windows[number][0].tokens[0] == "[CLS]" and windows[number][0].tokens[-1] == "[SEP]"
    assert seen[1].tokens[1:-1] == ["red", "wool"]
    second = seen.text(0, window=1)
    assert second.attention[1].shape == (2, len(second.tokens), len(second.tokens))
    with pytest.raises(UserError, match="text 0 was read in"):
        seen[0]


def test_labels_and_pairs() -> None:
    model = bert()
    with weft.watch(model, layers=0) as seen:
        logits = model.logits([TEXTS[1], TEXTS[1]])
    assert torch.equal(seen[0].attention[0], seen[1].attention[0]) and len(logits) == 2


def test_generated_text_is_one_matrix(gpt: Any) -> None:
    with weft.watch(gpt, layers=[0]) as seen:
        answer = gpt(TEXTS[1], max_tokens=6)
    own = list(answer.tokens)
    prompt = gpt.tokenizer.ids([TEXTS[1]], specials=False)[0]
    assert seen.ids == [*prompt, *own[:-1]]  # the last token is not read any more
    count = len(seen.ids)
    assert seen.attention[0].shape == (2, count, count) and len(seen.tokens) == count
    with weft.watch(gpt, layers=[0]) as whole:
        gpt.logits(gpt.tokenizer.decode(seen.ids))
    if whole.ids == seen.ids:  # some ids have no text of their own
        assert torch.allclose(whole.attention[0], seen.attention[0], atol=1e-5)


def test_several_prompts_side_by_side(gpt: Any) -> None:
    prompts = [TEXTS[1], TEXTS[2], WORDS]
    with weft.watch(gpt, layers=1) as seen:
        answers = gpt(prompts, max_tokens=4)
    for prompt, answer, own in zip(prompts, answers, seen, strict=True):
        ids = gpt.tokenizer.ids([prompt], specials=False)[0]
        assert own.ids == [*ids, *answer.tokens][: len(own.ids)] and len(own.ids) >= len(ids)
        with weft.watch(gpt, layers=1) as alone:
            gpt(prompt, max_tokens=4)
        assert alone.ids == own.ids and torch.allclose(alone.attention[1], own.attention[1], atol=1e-5)


def test_a_translation_has_three_stacks(translator: Any) -> None:
    with weft.watch(translator, layers={"cross": 1, "encoder": 0}) as seen:
        answers = translator(TEXTS, beam_size=1, max_tokens=5)
    assert len(seen) == len(answers) == 3
    for text, own in zip(TEXTS, seen, strict=True):
        assert "".join(own.source_tokens).replace("·", " ").startswith(text)
        weights = own.cross.attention[1]
        assert weights.shape == (2, len(own.tokens), len(own.source_tokens))
        assert torch.allclose(weights.sum(-1), torch.ones(2, len(own.tokens)), atol=1e-5)
        with pytest.raises(UserError, match="several stacks"):
            own.attention  # noqa: B018
        with pytest.raises(UserError, match="stack 'decoder'"):
            own.decoder  # noqa: B018


def test_a_beam_gives_the_longest_hypothesis(translator: Any) -> None:
    with weft.watch(translator, layers=0) as seen:
        translator(TEXTS[1], beam_size=3, max_tokens=5)
    own = seen.only()
    count = len(own.ids)
    assert own.decoder.attention[0].shape == (2, count, count) and (own.decoder.attention[0].triu(1) == 0).all()


def test_gradients_of_a_loss(gpt: Any) -> None:
    ids = torch.tensor(gpt.tokenizer.ids([WORDS], specials=False)[0])
    rows = Rows.of([len(ids)])
    with weft.watch(gpt, layers=[1], gradients=True) as seen:
        logits = gpt.network.words(gpt.network(ids, rows))
        torch.nn.functional.cross_entropy(logits[:-1], ids[1:]).backward()
    gpt.network.zero_grad()
    slopes = seen.gradients.attention[1]
    assert slopes.shape == seen.attention[1].shape and slopes.abs().max() > 0
    assert (slopes[:, :, 0].abs().max() > 0) and seen.gradients.hidden[1].shape == (len(ids), 64)


def test_a_patch_from_another_text_moves_its_answer(gpt: Any) -> None:
    """Causal tracing: the last layer's output of one text, put into another, gives the other's next word."""
    first, second = "the weaver throws a", "it comes back because"
    with weft.watch(gpt, layers=-1) as seen:
        expected = gpt.logits(first)[0][-1]

    def last(x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        x[-1] = seen.hidden[-1][-1]
        return x

    with weft.watch(gpt, layers=[], patch={-1: last}):
        patched = gpt.logits(second)[0]
    plain = gpt.logits(second)[0]
    assert torch.allclose(patched[-1], expected, atol=1e-5) and torch.allclose(patched[:-1], plain[:-1], atol=1e-5)
    assert not torch.allclose(plain[-1], expected, atol=1e-2)


def test_a_notebook_shows_the_attention(gpt: Any, translator: Any, browser: Browser, tmp_path: Path) -> None:
    with weft.watch(gpt, layers=[1], heads=[1]) as seen:
        assert seen._repr_html_() is None
        gpt.logits(TEXTS)
    with weft.watch(translator) as three:
        translator(TEXTS[0], beam_size=1, max_tokens=5)
    lstm = weft.new("lstm", gpt.tokenizer, size="1x64", seed=3)
    with weft.watch(lstm) as cells:
        lstm(TEXTS[1], max_tokens=2)
    assert "input, forget, cell, output" in cells.view().html() and "srcdoc" in (seen._repr_html_() or "")
    assert [stack["name"] for stack in three.view().data()["panels"][0]["stacks"]] == ["encoder", "decoder", "cross"]
    layers = seen.view(2).data()["panels"][0]["stacks"][0]["layers"]
    assert [layer["label"] for layer in layers] == ["Layer 1"] and layers[0]["heads"] == 1
    for name, view in (("one", seen.view(2)), ("three", three.view())):
        path = view.save(tmp_path / f"{name}.html")
        with browser.open(path) as page:
            settle(page)
            assert page.query_selector(".attention canvas")


def test_models_that_cannot_be_watched(gpt: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="takes a model or a network of Weft, not a str"), weft.watch("gpt2"):  # type: ignore[arg-type]
        pass
    counts = weft.new("ngram", gpt.tokenizer)
    with pytest.raises(UserError, match="no layers that could be watched"), weft.watch(counts):
        pass

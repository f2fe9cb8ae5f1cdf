"""The attention page: its numbers, what is refused, and every view in a browser."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from tests.explain.browser import NARROW, WIDE, Browser, fits, overlaps, settle
from tests.explain.models import SENTENCE, made
from weft.explain.attention import attention_view, kept_weights, packed_layer, small
from weft.explain.attribution import attributions_of
from weft.explain.attribution_view import attribution_view
from weft.text.tokenizers.training import learn

VIEWS = {"lines": "1", "matrix": "2", "text": "3", "grid": "4"}
SHOWN = {"lines": ".attention-token", "matrix": "canvas", "text": ".attention-piece", "grid": ".attention-grid button"}
PRESS = """key => new Promise(done => {
    const start = performance.now();
    document.querySelector(".attention").dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
    requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - start)));
})"""
DARK_PIXELS = """() => { const canvas = document.querySelector(".attention-view canvas");
    const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
    const colors = new Set();
    for (let i = 0; i < data.length; i += 4) if (data[i + 3]) colors.add(data.slice(i, i + 3).join(" "));
    return colors.size; }"""


def unpacked(layer: dict[str, Any]) -> np.ndarray:
    values = layer["values"]
    return np.frombuffer(base64.b64decode(values["data"]), "<f2").reshape(values["shape"])


def stacks_of(view: Any) -> dict[str, Any]:
    return {stack["name"]: stack for stack in view.panels[0].content["stacks"]}


@pytest.mark.parametrize("family", ["bert", "gpt2", "deberta", "xlnet", "transformer-xl"])
def test_the_page_holds_the_weights_of_every_layer(family: str) -> None:
    model = made(family, "classify")
    with weft.watch(model) as seen:
        model(SENTENCE)
    stack = stacks_of(attention_view(model, SENTENCE))["self"]
    assert [layer["name"] for layer in stack["layers"]] == ["0", "1", "rollout"]
    for number in range(2):
        expected = seen.attention[number].numpy()
        assert np.abs(unpacked(stack["layers"][number]).astype(np.float32) - expected).max() < 1e-3
    assert np.abs(unpacked(stack["layers"][2]).astype(np.float64).sum(-1) - 1).max() < 1e-2
    assert len(stack["rows"]) == expected.shape[-1] and stack["rows"] == stack["columns"]


def test_gradient_weighted_attention_is_that_of_the_prediction() -> None:
    view = attention_view(made("bert", "classify"), SENTENCE)
    stack = stacks_of(view)["gradient"]
    values = unpacked(stack["layers"][0])
    assert (values >= 0).all() and "Gradient-weighted attention is that for the logit of" in view.panels[0].note
    assert max(unpacked(layer).max() for layer in stack["layers"][:2]) == 1


def test_sentences_of_a_pair_are_told_apart() -> None:
    stack = stacks_of(attention_view(made("bert", "pair"), "the cat", "a dog runs"))["self"]
    assert stack["pair"] and stack["rows"][stack["row_sides"].index(1)] == "a"
    assert stack["row_sides"] == sorted(stack["row_sides"]) and stack["rows"][-1] == "[SEP]"


@pytest.mark.parametrize(
    "family, names",
    [
        ("transformer", ["encoder", "decoder", "cross"]),
        ("t5", ["encoder", "decoder", "cross"]),
        ("seq2seq", ["cross"]),
        ("conv-seq2seq", ["cross"]),
    ],
)
def test_encoder_decoders_show_what_each_side_reads(family: str, names: list[str]) -> None:
    model = made(family, "translate") if family in ("transformer", "t5") else plain_sequence_model(family)
    stacks = stacks_of(attention_view(model, "the cat sat", target="a dog runs home"))
    assert list(stacks) == names
    cross = stacks["cross"]
    assert len(cross["rows"]) >= 5 and len(cross["columns"]) >= 3 and cross["layers"][-1]["name"] != "rollout"
    assert np.abs(unpacked(cross["layers"][0]).astype(np.float64).sum(-1) - 1).max() < 1e-2


def plain_sequence_model(family: str) -> Any:
    tokenizer = learn([SENTENCE, "a dog runs home"] * 3, "word", 40)
    return weft.new(family, tokenizer, size="1x16", settings={"context": 32}, seed=1)


def test_the_models_own_output_is_the_target() -> None:
    view = attention_view(made("transformer", "translate"), "the cat sat")
    assert view.panels[0].note.startswith("The decoder reads the model's own output: ")


def test_the_largest_weights_of_a_long_text_are_kept() -> None:
    weights = np.random.default_rng(0).dirichlet(np.full(50, 0.1), size=(2, 50)).astype(np.float32)
    layer = packed_layer(weights, 5)
    index = np.frombuffer(base64.b64decode(layer["index"]["data"]), "<u2").reshape(2, 50, 5)
    expected = np.sort(weights, -1)[..., -5:]
    assert np.abs(np.sort(np.take_along_axis(weights, index.astype(int), -1), -1) - expected).max() == 0
    assert abs(layer["share"] - expected.sum() / weights.sum()) < 1e-6 and "5 largest weights" in layer["note"]
    assert small(weights).shape == (2, 48, 48) and "kept" not in packed_layer(weights, 50)


@pytest.mark.parametrize(
    "family, options, message",
    [
        ("bert", {"layer": 2}, "--layer 2: this model has layers 0 to 1"),
        ("bert", {"head": 9}, "--head 9: this layer has heads 0 to"),
        ("bert", {"window": 2}, "window 2: this text has 1 window"),
        ("bert", {"target": "x"}, "--target is for encoder-decoders, and bert is none"),
        ("transformer", {"text_b": "x"}, "an encoder-decoder reads one text"),
        ("lstm", {}, "lstm: this model has no attention; 'weft look attribution MODEL TEXT'"),
    ],
)
def test_mistakes_are_named(family: str, options: dict[str, Any], message: str) -> None:
    model = made(family, "translate" if family == "transformer" else "classify")
    with pytest.raises(weft.UserError) as error:
        attention_view(model, SENTENCE, **options)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_long_text_is_shown_window_by_window() -> None:
    view = attention_view(made("bert", "classify", length=12), SENTENCE + " " + SENTENCE, window=2)
    assert "this is window 2 (--window N shows another)" in view.panels[0].note
    assert len(stacks_of(view)["self"]["rows"]) <= 12


@pytest.mark.parametrize("suffix", ["json", "png", "svg"])
def test_other_files(suffix: str, tmp_path: Path) -> None:
    if suffix != "json" and find_spec("matplotlib") is None:
        pytest.skip("matplotlib is not installed")
    path = attention_view(made("bert", "classify"), "the cat", layer=1, head=1).save(tmp_path / f"look.{suffix}")
    if suffix == "json":
        stack = json.loads(path.read_text())["panels"][0]["stacks"][0]
        assert stack["rows"][1:3] == ["the", "cat"]
        weights = np.array(stack["layers"][0]["values"])
        assert weights.shape == (4, 4, 4) and np.abs(weights.sum(-1) - 1).max() < 1e-2
    else:
        assert path.read_bytes().startswith({"png": b"\x89PNG", "svg": b"<?xml"}[suffix])


# ------------------------------------------------------------------------------------------------- in a browser


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """Pages of each kind."""
    folder = tmp_path_factory.mktemp("pages")
    views = {
        "pair": attention_view(made("bert", "pair"), SENTENCE, "a dog runs home and the fox is where it was"),
        "decoder": attention_view(made("gpt2", "complete"), SENTENCE),
        "sides": attention_view(made("transformer", "translate"), SENTENCE, target="the cat is home"),
        "cross": attention_view(plain_sequence_model("seq2seq"), SENTENCE, target="a dog runs home"),
    }
    methods = attributions_of(made("bert", "pair"), (SENTENCE, "a dog runs home"), "all", "yes")
    views["attribution"] = attribution_view(methods, "bert")
    yield {name: view.save(folder / f"{name}.html") for name, view in views.items()}


@pytest.mark.parametrize("width, dark", [(WIDE, False), (NARROW, True)])
@pytest.mark.parametrize("kind", ["pair", "decoder", "sides", "cross"])
def test_every_view_is_drawn(browser: Browser, pages: dict[str, Path], kind: str, width: int, dark: bool) -> None:
    with browser.open(pages[kind], width=width, dark=dark) as page:
        for view, key in VIEWS.items():
            page.evaluate(PRESS, key)
            assert page.evaluate("document.querySelector('.attention-body').dataset.view") == view
            assert page.query_selector(f".attention-view {SHOWN[view]}"), f"{view} shows nothing"
            assert fits(page), f"{view} is wider than {width} pixels"
            for selector in (".control", ".attention-view .attention-token", ".attention-count", ".attention-lists li"):
                assert overlaps(page, selector) == [], view
            if view in ("lines", "matrix"):
                assert page.evaluate(DARK_PIXELS) > 5, f"{view} draws nothing"


def test_keys_and_clicks_change_what_is_shown(browser: Browser, pages: dict[str, Path]) -> None:
    with browser.open(pages["pair"]) as page:
        title = lambda: page.text_content(".attention-caption strong")  # noqa: E731
        page.focus(".attention")
        outline = page.evaluate("getComputedStyle(document.querySelector('.attention')).outlineStyle")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowRight")
        assert title() == "Layer 1, head 1"
        assert page.evaluate("document.activeElement.matches(':focus-visible')") and outline != "none"
        page.keyboard.press("]")
        assert page.text_content(".attention-lists h2").startswith("[CLS]")
        page.keyboard.press("Escape")
        assert page.query_selector(".attention-lists h2") is None
        page.click("text=A → B")
        assert "× " in page.text_content(".attention-caption") and len(page.query_selector_all(".from")) == 11
        page.click("text=All heads")
        page.click("[data-layer='0'][data-head='1']")
        assert title() == "Layer 0, head 1"


def test_the_theme_goes_round(browser: Browser, pages: dict[str, Path]) -> None:
    with browser.open(pages["decoder"], dark=True) as page:
        ground = lambda: page.evaluate("getComputedStyle(document.body).backgroundColor")  # noqa: E731
        colors = [ground()]
        for _ in range(3):
            page.click("#theme")
            colors.append(ground())
        assert colors[0] == colors[2] == colors[3] != colors[1] == "rgb(255, 255, 255)"


@pytest.mark.parametrize("width, dark", [(WIDE, True), (NARROW, False)])
def test_the_attribution_page(browser: Browser, pages: dict[str, Path], width: int, dark: bool) -> None:
    with browser.open(pages["attribution"], width=width, dark=dark) as page:
        assert len(page.query_selector_all(".attribution-card")) == 6 and fits(page)
        for selector in (".attribution-card", ".control", ".attribution-card:first-child .attribution-word"):
            assert overlaps(page, selector) == []
        words = page.query_selector_all(".attribution-card:first-child .attribution-word")
        assert [word.text_content() for word in words] == [*SENTENCE.split(), "a", "dog", "runs", "home"]
        assert len({word.evaluate("node => node.style.background") for word in words}) > 3
        words[2].hover()
        assert page.text_content("#tooltip").startswith("cat\nIntegrated gradients: ")
        assert len(page.query_selector_all(".attribution-word.marked")) == 6
        page.click("text=Tokens")
        page.click("text=As in the text")
        settle(page)
        assert page.text_content(".attribution-card:nth-child(2)").endswith("This method has values of words only.")
        page.focus(".attribution-text")
        page.keyboard.press("ArrowRight")
        assert page.is_visible("#tooltip") and fits(page)


def test_a_long_page_changes_heads_at_once(browser: Browser, tmp_path: Path) -> None:
    tokenizer = learn([SENTENCE] * 3, "wordpiece", 60)
    model = weft.new("bert", tokenizer, size="1x32", settings={"context": 1600, "heads": 4})
    path = attention_view(model, " ".join([SENTENCE] * 167)).save(tmp_path / "long.html")
    with browser.open(path) as page:
        settle(page)
        assert "1505 × 1505 tokens" in page.text_content(".attention-caption")
        for key in ("1", "2", "3"):
            page.evaluate(PRESS, key)
            times = [page.evaluate(PRESS, "ArrowRight") for _ in range(5)]
            assert min(times) < 400, f"a change of heads takes {min(times):.0f} ms"  # under 200 in benchmarks/look.py


def test_kept_weights_fit_into_a_page() -> None:
    view = attention_view(made("bert", "classify"), SENTENCE)
    assert kept_weights([view.panels[0].stack]) is None  # type: ignore[attr-defined]

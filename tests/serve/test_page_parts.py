"""Parts of the page by themselves, in a browser and without a server: its files, and a list of models that is given."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

import weft
from tests.explain.browser import Browser, fits, started
from weft.serve.pages import CONTENT_SECURITY_POLICY, page_files

PLACE = "http://weft.test/"
MODEL = {"id": "gpt", "task": "complete", "tasks": ["complete", "fill"], "views": [], "mask": "<extra_id_0>"}
LONG = {**MODEL, "id": "a-model-that-was-named-after-all-that-was-ever-done-to-it-2026-int8"}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started() as running:
        yield running


@pytest.fixture
def page(browser: Browser) -> Iterator[Any]:
    """The page with two models, none of whose answers comes."""
    context = browser.process.new_context(viewport={"width": 400, "height": 800}, reduced_motion="reduce")

    def reply(route: Any) -> None:
        path = route.request.url.removeprefix(PLACE.rstrip("/")).partition("#")[0]
        if path == "/v1/models":
            return route.fulfill(body=json.dumps({"data": [MODEL, LONG]}), content_type="application/json")
        if path.startswith("/v1/"):
            return None
        content, kind = page_files()[path]
        headers = {"Content-Type": kind, "Content-Security-Policy": CONTENT_SECURITY_POLICY}
        return route.fulfill(body=content, headers=headers)

    context.route("**/*", reply)
    try:
        opened = context.new_page()
        opened.goto(f"{PLACE}#write")
        opened.wait_for_selector("#panel[data-state=idle]")
        yield opened
    finally:
        context.close()


def test_tokens_of_alignments_are_letters(page: Any) -> None:
    """Byte-level, word-piece and letter vocabularies; each token with the space before it."""
    cases = [
        (["Ġgr", "Ã¼n", "Ġlo", "om", "</s>"], "grün loom", ["gr", "ün", " lo", "om", ""]),
        (["ðŁ", "ĺĢ", "Ġx"], "\U0001f600 x", ["", "\U0001f600", " x"]),
        (["▁Du", "▁hast", "."], "Du hast.", ["Du", " hast", "."]),
        (["the", "lo", "##om", "."], "the loom.", ["the", " lo", "om", " ."]),
        (["7", "-", "0"], "7-0", ["7", "-", "0"]),
    ]
    script = """async ([tokens, text]) => (await import("/static/page/translate.js")).tokenTexts(tokens, text)
        .map(each => (each.space ? " " : "") + each.text)"""
    for tokens, text, expected in cases:
        assert page.evaluate(script, [tokens, text]) == expected


def test_gaps_that_are_numbered(page: Any) -> None:
    """Those of a T5 stay in order whatever is put between them."""
    page.click("#tab-fill")
    page.click(".examples >> text=Two gaps")
    text = page.input_value("#text")
    assert re.findall(r"<extra_id_\d>", text) == ["<extra_id_0>", "<extra_id_1>"]
    page.fill("#text", "no gap")
    page.wait_for_selector("text=Mark each gap with <extra_id_0>")
    for place in (0, "<extra_id_0>no", "<extra_id_0>no<extra_id_1> gap"):
        page.evaluate(
            "place => document.getElementById('text').setSelectionRange(place, place)", len(place) if place else 0
        )
        page.click("text=Insert a gap")
    assert page.input_value("#text") == "<extra_id_0>no<extra_id_1> gap<extra_id_2>"
    page.evaluate("() => document.getElementById('text').setSelectionRange(0, 0)")
    page.click("text=Insert a gap")
    assert page.input_value("#text") == "<extra_id_0><extra_id_1>no<extra_id_2> gap<extra_id_3>"


def test_python_calls_what_the_client_has(page: Any) -> None:
    """A model answers on the route that was asked, whatever its own task is."""
    script = """async route => (await import("/static/page/code.js"))
        .weftOf({ route, body: { model: "gpt", input: "a text", beam_size: 2 } })"""
    for name in ("translate", "summarize", "rewrite", "tag", "fill", "suggest"):
        code = page.evaluate(script, f"/v1/{name}")
        assert f'client.{name}("gpt", "a text", beam_size=2)' in code and callable(getattr(weft.Client, name))


def test_long_names_of_models_fit(page: Any) -> None:
    page.select_option(".picker select", LONG["id"])
    assert fits(page) and page.locator(".picker select").bounding_box()["width"] > 200


def test_more_bars_on_demand(page: Any) -> None:
    script = """async () => {
        const { bars } = await import("/static/page/parts.js");
        const rows = Array.from({ length: 30 }, (_, n) => ({ name: `label ${n}`, value: n / 30 }));
        document.querySelector(".output").replaceChildren(bars("Labels", rows, { most: 12 }));
    }"""
    page.evaluate(script)
    assert page.locator(".chances li").count() == 12
    page.click("text=Show all 30")
    assert page.locator(".chances li").count() == 30 and page.locator(".more").count() == 0
    assert page.evaluate("() => document.activeElement.className").startswith("bars"), "the focus is not lost"


def test_a_continuation_below_a_long_text_is_seen(page: Any) -> None:
    script = """async ([text, ghost]) => {
        const { Composer } = await import("/static/page/composer.js");
        const composer = new Composer({});
        document.querySelector(".output").replaceChildren(composer.node);
        composer.text = text;
        composer.field.focus();
        composer.field.setSelectionRange(text.length, text.length);
        composer.field.scrollTop = composer.field.scrollHeight;
        composer.setGhost(ghost);
        await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
        const bottom = node => node.getBoundingClientRect().bottom;
        const [end, box] = [composer.copy.querySelector(".ghost"), composer.frame].map(bottom);
        return [end, box, composer.field.scrollTop - composer.copy.scrollTop];
    }"""
    for text in ("short", "the weaver sang at the loom\n" * 60):
        end, box, apart = page.evaluate(script, [text, "\nand so on" * 4])
        assert end <= box and apart == 0, "text and continuation are scrolled alike"


def test_text_from_right_to_left(page: Any) -> None:
    """What is marked lies behind the letters that are marked, in either direction."""
    script = """async text => {
        const { Composer } = await import("/static/page/composer.js");
        const composer = new Composer({});
        document.querySelector(".output").replaceChildren(composer.node);
        composer.text = text;
        composer.mark([[0, 3, "chosen"]]);
        const place = node => node.getBoundingClientRect();
        const [mark, box] = [composer.copy.querySelector("mark"), composer.frame].map(place);
        return [mark.left - box.left, box.right - mark.right, getComputedStyle(composer.field).unicodeBidi];
    }"""
    left, right, _ = page.evaluate(script, "The loom")
    assert left < right
    left, right, bidi = page.evaluate(script, "ولدت في لندن")
    assert right < left and bidi == "plaintext"

"""The page in a real browser: each tab shows what the model answers, by mouse and by keyboard, and harms nobody."""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import weft
from tests.explain.browser import NARROW, Browser, fits, overlaps, started
from tests.once import once
from tests.serve.page_browser import KEY, SIZES, OpenPage, Site, alike, faults_of, flood, is_percent, printed
from tests.serve.page_models import SERVED, TABS, save_page_models
from tests.serve.running import Served
from weft.client import answer_of

LONG = "the weaver sang because it was late and the loom was old " * 4
TABLE = "date,sales\n" + "\n".join(f"2024-03-{day:02},{100 + 10 * (day % 7)}" for day in range(1, 32))
ANSWERED = ("Who sang?", "The weaver sang at the loom. \U0001f600 Ada lives in Rome.")
# Whether the first letter of what is marked can be seen in the text box.
IN_VIEW = """() => {
    const [mark, box] = ["mark.chosen", ".composer"].map(name => document.querySelector(name).getBoundingClientRect());
    return mark.top >= box.top && mark.top + 20 <= box.bottom;
}"""
UNANSWERED = ("where lives Ada ?", "Ada lives in Rome . Bo lives in New York .")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started() as running:
        yield running


@pytest.fixture(scope="module")
def site(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """One server for the tests of this file; it needs a key, so that all of them show that the page sends it."""
    models = once(tmp_path_factory, "page", save_page_models)
    folders = [str(models / name) for name in SERVED]
    with Served(*folders, environment={"WEFT_API_KEY": KEY}) as served:
        yield Site(browser, served, models, tmp_path_factory.mktemp("pictures"))


@pytest.fixture(scope="module")
def load(site: Site) -> Any:
    """Models of the server, opened here."""
    opened: dict[tuple[str, str | None], Any] = {}

    def model(name: str, task: str | None = None) -> Any:
        if (name, task) not in opened:
            opened[name, task] = weft.load(site.models / name, task=task)
        return opened[name, task]

    return model


# ---------------------------------------------------------------------------------------------------------------- tabs


def test_write_continues_what_is_typed(site: Site, load: Any) -> None:
    text = "The weaver "
    body = {"model": "gpt", "prompt": text, "max_tokens": 24, "temperature": 0.8, "n": 3, "logprobs": 4, "seed": 0}
    body["complete_word"] = True  # the space belongs to the next word, as it does in the vocabulary
    best = site.post("/v1/completions", body)["choices"]
    assert [each["text"] for each in best] == [
        each.text for each in load("gpt")(text, seed=0, max_tokens=24, temperature=0.8, n=3, complete_word=True).best
    ]
    with site.open("write/gpt") as opened:
        page = opened.page
        opened.ask(text)
        assert page.text_content(".ghost") == best[0]["text"]
        shown = page.locator("button.continuation .words").all_text_contents()
        assert [each.removesuffix(" end of the text") for each in shown] == [each["text"].lstrip() for each in best]
        page.hover("button.continuation >> nth=1 >> .token >> nth=2")
        tip = opened.text("#tooltip").splitlines()
        assert is_percent(tip[0], math.exp(best[1]["logprobs"]["token_logprobs"][2])) and 4 <= len(tip) <= 5
        site.picture(opened, "write")
        page.locator(".continuation").nth(2).click()
        assert page.input_value("#text") == text + best[2]["text"]
        opened.answered()
        page.locator("input[type=range]").first.fill("0")
        opened.answered()
        greedy = load("gpt")(page.input_value("#text"), max_tokens=24, slide=True).text
        assert page.locator(".continuation").count() == 1 and page.text_content(".ghost") == greedy


def test_write_suggests_words_of_several_models(site: Site, load: Any) -> None:
    with site.open("write/gpt") as opened:
        for text, completes in (("The weaver ", ""), ("The weaver worked at the lo", "lo")):
            opened.ask(text)
            title = opened.texts(".next-words h2")[0]
            assert title == (f"Words that begin with “{completes}”" if completes else "Next words")
            assert opened.texts(".next-words thead button") == ["gpt", "tales"]
            expected = [
                {word.text or "(end)": word.probability for word in weft.suggest(load(name), text, top=50).words}
                for name in ("gpt", "tales")
            ]
            rows = opened.page.locator(".next-words tbody tr")
            assert rows.count() == 8
            for row in rows.all():
                word = str(row.locator("th").text_content())
                for shown, known in zip(row.locator("td").all_text_contents(), expected, strict=True):
                    assert is_percent(shown, known[word]) if word in known else "–" in shown
        first = rows.first.locator("th button")
        word = str(first.text_content())
        first.click()
        assert opened.page.input_value("#text") == "The weaver worked at the " + word


def test_fill_shows_words_for_gaps(site: Site, load: Any) -> None:
    text = "the [MASK] of the [MASK]"
    expected = load("bert", "fill")(text, top=6).gaps
    with site.open("fill") as opened:
        opened.ask(text)
        assert opened.text(".filled") == f"the {expected[0][0].word} of the {expected[1][0].word}"
        for number, gap in enumerate(expected):
            shown = opened.bars(f".gaps section:nth-child({number + 1}) .chances")
            assert [name for name, _ in shown] == [choice.word or "(nothing)" for choice in gap]
            assert all(is_percent(value, one.probability) for (_, value), one in zip(shown, gap, strict=True))
        opened.page.locator(".gaps section").nth(1).locator("button.name").nth(2).click()
        opened.answered()
        assert opened.page.input_value("#text") == f"the [MASK] of the {expected[1][2].word}"
        opened.page.fill("#text", "the of")
        opened.page.evaluate("() => document.getElementById('text').setSelectionRange(4, 4)")
        opened.page.click("text=Insert a gap")
        assert opened.page.input_value("#text") == "the [MASK]of", "at the caret"
        opened.write("nothing to fill").answered("idle")
        assert "Mark each gap with [MASK]" in opened.text(".output")


def test_classify_shows_bars_windows_and_words(site: Site, load: Any) -> None:
    expected = load("reviews")(LONG)
    with site.open("classify") as opened:
        opened.ask(LONG)
        assert opened.text(".verdict").split()[0] == expected.label
        shown = opened.bars()
        assert all(is_percent(value, expected.scores[name]) for name, value in shown) and len(shown) == 2
        windows = opened.page.locator(".text-windows li")
        assert windows.count() == expected.n_windows > 2
        assert f"{expected.n_windows} windows" in opened.text("footer")
        windows.nth(1).locator("button").click()
        part = str(opened.page.text_content(".copy-of-text mark.chosen"))
        second = opened.reply("/v1/look")["panels"][0]["data"]["windows"][1]
        assert part == LONG[second["start"] : second["end"]] and second["start"] > 0
        opened.page.click("text=Which words mattered")
        opened.answered()
        panel = opened.reply("/v1/look")["panels"][0]["data"]
        assert panel and opened.page.locator(".words .attribution-card").count() >= 1
        assert "weaver" in opened.text(".words")


def test_tag_marks_spans_where_they_stand(site: Site, load: Any) -> None:
    text = "\U0001f600 Ada Lovelace was born in London and worked with Charles Babbage."
    expected = load("names")(text).spans
    assert expected
    with site.open("tag") as opened:
        opened.ask(text)
        shown = opened.page.locator(".spans-text mark.span").all_text_contents()
        assert shown == [f"{text[span.start : span.end]}{span.label}" for span in expected]
        values = opened.bars(".output .chances")
        assert [name for name, _ in values] == [span.text for span in expected]
        assert all(is_percent(value, span.score) for (_, value), span in zip(values, expected, strict=True))
        opened.page.locator(".spans-legend button").first.click()
        assert opened.page.locator(".spans-text mark.span").count() < len(expected)


def test_ask_marks_the_answer_or_says_that_there_is_none(site: Site, load: Any) -> None:
    with site.open("ask") as opened:
        for question, document in (ANSWERED, UNANSWERED):
            expected = load("qa")((question, document), top=5)
            opened.write(question, "field-question").ask(document)
            marks = opened.page.locator(".copy-of-text mark").all_text_contents()
            values = dict(opened.bars())
            if expected.text:
                assert opened.text(".verdict").startswith(expected.text)
                assert marks == [document[expected.start : expected.end]] == [expected.text]
                assert is_percent(opened.text(".verdict span"), expected.score)
            else:
                assert opened.text(".verdict").startswith("The document does not answer this.") and not marks
            assert is_percent(values["no answer"], expected.no_answer)
            assert {choice.text for choice in expected.best} <= set(values)
        opened.page.locator(".chances button.name").first.click()
        assert opened.page.locator(".copy-of-text mark.chosen").count() == 1, "a candidate is shown on demand"
        opened.write(ANSWERED[0], "field-question").ask("\n".join([*["The mill was old ."] * 40, ANSWERED[1]] * 2))
        for button in opened.page.locator(".chances button.name").all():
            button.click()
            assert opened.page.evaluate(IN_VIEW), "a part of a long document is scrolled to"


def test_choose_translate_and_search(site: Site, load: Any) -> None:
    with site.open("choose/gpt") as opened:
        options = ["sang.", "loom the.", "went to the mill."]
        expected = load("gpt", "choose")(("The weaver", options), normalize="token")
        opened.write("\n".join(options), "field-options").ask("The weaver")
        assert opened.text(".verdict").startswith(expected.text)
        assert [name for name, _ in opened.bars()] == [option.text for option in expected.options]
        opened.tab("translate")
        translated = load("dates")("an old loom, weaver", beam_size=5, n=3, alignments=True)
        opened.ask("an old loom, weaver")
        assert opened.page.text_content(".result-text p") == translated.text
        source, target = opened.page.locator(".strip").all()
        assert source.locator(".aligned").count() == len(translated.source_tokens)
        first = target.locator(".aligned:not(.none)").first
        first.hover()
        weights = list(translated.alignments[int(first.get_attribute("data-token") or 0)])
        shares = "nodes => nodes.map(node => parseInt(node.style.getPropertyValue('--share')))"
        drawn = source.locator(".aligned").evaluate_all(shares)
        assert drawn == pytest.approx([55 * weight / max(weights) for weight in weights], abs=0.51)
        assert is_percent(opened.text(".alignment .note"), max(weights))
        opened.tab("search")
        assert opened.texts(".picker option")[0] == "bert", "an encoder comes before models that write"
        lines = ["a new mill", "The loom was old.", "an old loom", "it was late"]
        search = {"model": "bert", "input": {"query": "an old loom", "texts": lines}}
        ranked = site.post("/v1/rank", search)["answers"][0]["hits"]
        opened.write("an old loom", "field-query").ask("\n".join(lines))
        shown = opened.bars(".results")
        assert [name for name, _ in shown] == [hit["text"] for hit in ranked] and shown[0][0] == "an old loom"
        assert [float(value.replace("−", "-")) for _, value in shown] == pytest.approx(
            [hit["score"] for hit in ranked], abs=6e-4
        )


def test_forecast_draws_intervals(site: Site, load: Any) -> None:
    rows = [dict(zip(("date", "sales"), line.split(","), strict=True)) for line in TABLE.splitlines()[1:]]
    rows = [{**row, "sales": float(row["sales"])} for row in rows]
    (expected,) = load("sales").forecast(rows)
    with site.open("forecast") as opened:
        opened.ask(TABLE)
        page = opened.page
        page.click("summary")
        cells = page.locator("details tbody tr").first.locator("td").all_text_contents()
        assert cells[0] == expected.times[0] == "2024-04-01"
        numbers = [expected.values[0][0], expected.low[0][0], expected.high[0][0]]
        assert [float(cell) for cell in cells[1:]] == pytest.approx(numbers, abs=0.006)
        assert page.locator("details tbody tr").count() == 7
        assert page.locator(".series-chart svg.wide path[fill-opacity]").count() == 1, "the band of the interval"
        assert "90 % of the true values" in opened.text(".output")
        opened.write("a,b\n1,2,3").answered("idle")
        assert "Line 2 has 3 cells, the header 2" in opened.text(".output")
        page.click(".examples button:text-is('One shop')")
        opened.answered()
        assert page.evaluate("() => document.getElementById('text').scrollTop") == 0, "a long example from its start"
        page.click(".examples button:text-is('Numbers')")
        opened.answered()
        assert page.locator(".series-chart").count() == 1


def test_look_shows_every_view(site: Site) -> None:
    marks = {
        "Attention": ".attention canvas, .attention svg", "Step by step": ".walk-grid", "Logit lens": ".lens td",
        "Words": ".attribution-card", "Tokens": ".token-strips",
    }  # fmt: skip
    with site.open("look/gpt") as opened:
        opened.write("The weaver sang at the loom.")
        for name, mark in marks.items():
            opened.page.click(f".controls button:text-is('{name}')")
            opened.answered()
            assert opened.page.locator(mark).count() >= 1, name
            if name == "Step by step":
                opened.page.click("text=Next →")
                title = opened.text(".walk-stage h3")
                opened.ask("The weaver sang at the old loom.")
                assert opened.text(".walk-stage h3") == title, "the step that is open stays open"
        opened.page.select_option(".picker select", "reviews")
        opened.page.click(".controls button:text-is('Attention')")
        opened.ask(LONG)
        assert "--" not in opened.text(".output"), "flags of the command line are no help here"
        opened.page.fill("input[type=number]", "2")
        opened.answered()
        assert "this is window 2" in opened.text(".output")
        opened.ask("the loom")
        assert opened.page.locator("#panel > .controls input[type=number]").count() == 0
        opened.page.select_option(".picker select", "qa")
        opened.page.click(".controls button:text-is('Words')")
        opened.answered("idle")
        assert "second text" in opened.text(".output")
        opened.write("the weaver sang", "field-pair").ask("who sang ?")
        assert opened.page.locator(".attribution-side").count() == 2, "a question and its document"
        opened.page.select_option(".picker select", "dates")
        assert "Words" not in opened.texts("#panel > .controls button"), "what a model cannot show is not offered"


# ---------------------------------------------------------------------------------------------------------------- code


def asked(opened: OpenPage, tab: str) -> str:
    """Ask something in a tab; the route whose request is shown as code."""
    opened.tab(tab)
    if tab == "ask":
        opened.write(ANSWERED[0], "field-question").ask(ANSWERED[1])
    elif tab == "choose":
        opened.write('it\'s "old".\nwent to the $HOME.', "field-options").ask("The weaver")
    elif tab == "search":
        opened.write("an old loom", "field-query").ask("it's a `mill`\nthe loom")
    elif tab in ("forecast", "fill"):
        opened.ask(TABLE if tab == "forecast" else "the [MASK] of 'the' loom \\n")
    else:
        opened.ask('The weaver\'s "loom" \U0001f600 cost $5 \\ `x`')
    return {"write": "/v1/completions", "search": "/v1/rank", "ask": "/v1/answer"}.get(tab, f"/v1/{tab}")


def test_code_asks_the_same(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is copied runs as it is, and gives the answer that the page shows."""
    monkeypatch.setenv("WEFT_API_KEY", KEY)
    with site.open() as opened:
        for tab in TABS:
            route = asked(opened, tab)
            command, python = opened.code("as curl"), opened.code("as Python")
            assert route in command and KEY not in command and KEY not in python, "the key itself is never shown"
            done = subprocess.run(
                ["sh", "-c", command], capture_output=True, text=True, timeout=60, env=dict(os.environ)
            )
            assert done.returncode == 0, done.stderr
            out, variables = printed(python)
            if tab == "write":
                texts = opened.page.locator("button.continuation .words").all_text_contents()
                check_streams(done.stdout, [text.text for text in variables["answer"].best], texts)
                continue
            again, shown, answer = json.loads(done.stdout), opened.reply(route), variables["answer"]
            name = "panels" if tab == "look" else "answers"
            assert alike(again[name], shown[name]), tab
            if tab == "look":
                assert alike(answer["panels"], shown["panels"])
            else:
                known = [answer_of(each) for each in shown["answers"]]
                assert str(answer)[:60] == str(known if isinstance(answer, list) else known[0])[:60], tab
                assert out.startswith(str(answer)[:60])


def check_streams(events: str, ours: list[str], shown: list[str]) -> None:
    """Three texts: from the events that curl prints, as Python has them, and on the page."""
    parts = [json.loads(line[6:]) for line in events.splitlines() if line.startswith("data: {")]
    joined = ["", "", ""]
    for choice in (choice for part in parts for choice in part["choices"]):
        joined[choice["index"]] += choice["text"]
    assert joined == ours
    assert [text.lstrip() for text in joined] == [text.removesuffix(" end of the text") for text in shown]


@pytest.mark.slow
def test_code_for_the_client_of_openai(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_API_KEY", KEY)
    with site.open("write/gpt") as opened:
        opened.ask("The weaver worked at the lo")
        code = opened.code("as Python (openai)")
        texts = opened.page.locator("button.continuation .words").all_text_contents()
    out, _ = printed(code.replace("flush=True", "flush=True, end='\\0'"))
    joined = ["", "", ""]
    for part in out.split("\0")[:-1]:
        joined[int(part[0])] += part[2:]
    assert [text.lstrip() for text in joined] == [text.removesuffix(" end of the text") for text in texts]


# ------------------------------------------------------------------------------------------------------------ keyboard


def test_keyboard_only(site: Site) -> None:
    with site.open("write/gpt") as opened:
        page, press = opened.page, opened.page.keyboard.press
        focused = "() => document.activeElement.id || document.activeElement.textContent"
        press("Tab")
        assert page.evaluate(focused) == "Skip to the text box"
        press("Enter")
        page.keyboard.type("The weaver")
        opened.answered()
        ghost = str(page.text_content(".ghost"))
        press("Alt+ArrowDown")
        second = str(page.text_content(".ghost"))
        assert second != ghost
        press("Alt+ArrowUp")
        press("ArrowRight")
        word = page.input_value("#text").removeprefix("The weaver")
        assert ghost.startswith(word) and word.strip()
        assert page.text_content(".ghost") == ghost.removeprefix(word), "one word is taken, the rest stays"
        opened.answered()
        before, ghost = page.input_value("#text"), str(page.text_content(".ghost"))
        press("Tab")
        assert page.input_value("#text") == before + ghost, "Tab takes the continuation"
        press("Control+z")
        assert page.input_value("#text") == before, "as if it had been typed"
        opened.answered()
        press("Escape")
        assert page.locator(".ghost").count() == 0 and page.evaluate(focused) == "text"
        press("Control+Enter")
        opened.answered()
        assert page.locator(".ghost").count() == 1, "asked again"
        press("Escape")
        press("Escape")
        assert page.evaluate(focused) == "tab-write"
        press("ArrowRight")
        assert page.evaluate(focused) == "tab-fill" and page.url.endswith("#fill")
        press("End")
        assert page.evaluate(focused) == "tab-look"
        press("3")
        assert page.evaluate(focused) == "tab-classify"
        press("/")
        assert page.evaluate(focused) == "text"
        opened.answered()
        press("Escape")
        press("c")
        assert "curl" in opened.text(".code-box")
        press("p")
        assert "weft.Client" in opened.text(".code-box")
        press("?")
        page.wait_for_selector("dialog[open]")
        press("Escape")
        assert page.locator("dialog[open]").count() == 0 and page.evaluate(focused) == "tab-classify"
        press("t")
        assert page.evaluate("() => document.documentElement.dataset.theme") == "dark"


def test_single_keys_can_be_turned_off(site: Site) -> None:
    with site.open("write") as opened:
        page = opened.page
        page.click("#help")
        page.click("dialog input[type=checkbox]")
        page.click("dialog >> text=Close")
        page.locator("#tab-write").focus()
        page.keyboard.press("3")
        assert page.evaluate("() => location.hash").startswith("#write")


# ------------------------------------------------------------------------------------------------- key, errors, privacy


def test_the_page_asks_for_the_key(site: Site) -> None:
    with site.open(key=None, expected=["401"]) as opened:
        page = opened.page
        page.wait_for_selector("dialog.key[open]")
        assert page.evaluate("() => document.activeElement.id") == "key"
        site.picture(opened, "key")
        page.keyboard.press("Enter")
        assert page.locator("dialog.key[open]").count() == 1, "an empty key is none"
        page.keyboard.type("not the key at all")
        page.keyboard.press("Enter")
        page.wait_for_selector("dialog.wrong[open]")
        assert "not accepted" in opened.text("dialog.wrong")
        page.keyboard.type(KEY)
        page.keyboard.press("Enter")
        page.wait_for_selector("[role=tab]")
        opened.tab("classify").ask("the loom")
        assert page.evaluate("() => localStorage.length") == 0, "the key is forgotten with the tab"


def test_errors_and_a_server_that_is_away(site: Site) -> None:
    with site.open("ask", expected=["422", "ERR_INTERNET_DISCONNECTED"]) as opened:
        page = opened.page
        opened.write("who " * 40, "field-question").write("a document").answered("failed")
        assert "The model cannot answer this." in opened.text(".message.error")
        assert "A question of" in opened.text(".message.error") and "input" not in opened.text(".message.error")
        opened.tab("classify")
        page.context.set_offline(True)
        opened.write("the loom")
        page.wait_for_selector(".message.waiting")
        assert "The server does not answer. Trying again" in opened.text(".message.waiting")
        assert "example" not in opened.text(".output")
        site.picture(opened, "away")
        page.context.set_offline(False)  # the browser says so, and nobody has to wait
        opened.answered()
        assert page.locator(".verdict").count() == 1 and page.locator(".message").count() == 0


def test_texts_stay_here(site: Site) -> None:
    """Nothing of a text in an address, in storage that outlives the tab, or in a cookie; and the page says so."""
    secret = "a weaver of secrets"
    addresses = list[str]()
    with site.open("classify") as opened:
        opened.page.on("request", lambda request: addresses.append(request.url))
        opened.ask(secret)
        assert "never leave this machine" in opened.text("footer")
        assert addresses == [f"{site.served.url}/v1/classify"]
        assert opened.page.evaluate("() => localStorage.length + document.cookie.length") == 0
        opened.tab("tag").answered()
        assert "weaver" not in opened.page.url
        opened.tab("classify").page.reload()
        opened.answered()
        assert "weaver" not in opened.page.url and opened.page.input_value("#text") == secret, (
            "kept for as long as the tab is open"
        )


# ------------------------------------------------------------------------------------------------------- accessibility


def visit(site: Site, tabs: tuple[str, ...], size: str) -> None:
    """Every tab with an answer: accessible, within the screen, nothing on top of something else."""
    pytest.importorskip("axe_playwright_python")
    width, dark = SIZES[size]
    with site.open(width=width, dark=dark) as opened:
        for tab in tabs:
            asked(opened, tab)
            site.picture(opened, f"{tab}-{size}")
            assert faults_of(opened) == [], f"{tab} {size}"
            assert fits(opened.page), f"{tab} {size}"
            assert overlaps(opened.page, "[role=tab], .verdict, .chances .name, .chances .value, .code button") == []


@pytest.mark.parametrize("size, tabs", [("phone-dark", TABS[::2]), ("wide-light", TABS[1::2])])
def test_every_tab_is_accessible(site: Site, size: str, tabs: tuple[str, ...]) -> None:
    visit(site, tabs, size)


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_every_tab_is_accessible_everywhere(site: Site, size: str) -> None:
    visit(site, TABS, size)


def test_the_description_of_the_routes(site: Site) -> None:
    """/docs: every route can be read and tried."""
    pytest.importorskip("axe_playwright_python")
    with site.open(key=None, width=NARROW, expected=["401"]) as opened:
        page = opened.page
        page.goto(f"{site.served.url}/docs")
        page.fill("dialog #key", KEY)
        page.keyboard.press("Enter")
        page.wait_for_selector("details")
        names = opened.texts("summary code")
        assert len(names) >= 15 and {"POST /v1/classify", "GET /v1/models", "POST /v1/completions"} <= set(names)
        box = page.locator("details", has=page.locator("code:text-is('POST /v1/classify')"))
        box.locator("summary").click()
        site.picture(opened, "docs")
        box.locator("button").click()
        page.wait_for_function(
            "() => [...document.querySelectorAll('pre')].some(node => node.textContent.includes('n_tokens'))"
        )
        assert faults_of(opened) == [] and fits(page)


def test_axe_sees_a_fault(site: Site) -> None:
    """The check itself."""
    pytest.importorskip("axe_playwright_python")
    with site.open("tag", width=NARROW) as opened:
        opened.page.evaluate(
            "() => document.querySelector('#text').parentElement.parentElement.querySelector('label').remove()"
        )
        opened.page.evaluate("() => document.querySelector('#text').removeAttribute('placeholder')")
        assert any("label" in fault for fault in faults_of(opened))


# ------------------------------------------------------------------------------------------------------- bad moments


@pytest.mark.slow
def test_busy_gone_and_back(site: Site) -> None:
    """A full queue, a server that was killed, and one that comes back at the same address."""
    folder = str(site.models / "gpt")
    ended = threading.Event()
    with Served(folder, "--max-queue", "1") as first:
        alone = Site(site.browser, first, site.models, site.pictures)
        threads = [threading.Thread(target=flood, args=(first, ended)) for _ in range(12)]
        with alone.open("write", key="", expected=["429", "ERR_", "503"]) as opened:
            page = opened.page
            for thread in threads:
                thread.start()
            try:
                for number in range(200):
                    opened.write(f"The weaver {number}")
                    with contextlib.suppress(Exception):
                        page.wait_for_selector(".message.waiting", timeout=500)
                        break
                assert "The server is busy. Trying again" in opened.text(".message.waiting")
                alone.picture(opened, "busy")
            finally:
                ended.set()
                for thread in threads:
                    thread.join()
            opened.answered()
            assert page.locator(".message").count() == 0 and page.locator("button.continuation").count() == 3
            first.process.kill()
            first.process.wait()
            opened.write("The weaver sang")
            page.wait_for_selector(".message.waiting")
            assert "The server does not answer" in opened.text(".message.waiting")
            with Served(folder, "--port", str(first.port)):
                opened.answered()  # it tries again by itself
                assert page.locator("button.continuation").count() == 3


@pytest.mark.slow
def test_without_a_key(site: Site) -> None:
    """A server without a key: nobody is asked for one, and the code has none."""
    with Served(str(site.models / "reviews")) as served:
        alone = Site(site.browser, served, site.models, site.pictures)
        with alone.open("classify", key="") as opened:
            opened.ask("the loom")
            command, python = opened.code("as curl"), opened.code("as Python")
            assert "Authorization" not in command and "api_key" not in python
            assert opened.texts("[role=tab]") == ["Classify", "Search", "Look"]

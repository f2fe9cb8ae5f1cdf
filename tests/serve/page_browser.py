"""The page of a server in a real browser, and what must be true of it whatever is done there."""

from __future__ import annotations

import contextlib
import io
import os
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.explain.browser import NARROW, WIDE, Browser, settle
from tests.serve.running import Served

KEY = "a-key-that-only-the-tests-know"
SECONDS = 30  # for an answer, however busy the machine is
STATES = "() => ['done', 'idle', 'failed'].includes(document.getElementById('panel')?.dataset.state)"
# Whether the clipboard has the code that is shown.
COPIED = "async () => await navigator.clipboard.readText() === document.querySelector('.code-box code').textContent"
# Violations of the policy are errors of the console too; the event names what was blocked.
WATCH = "addEventListener('securitypolicyviolation', event => console.error('policy', event.violatedDirective))"
SIZES = {
    "wide-light": (WIDE, False),
    "wide-dark": (WIDE, True),
    "phone-light": (NARROW, False),
    "phone-dark": (NARROW, True),
}


class OpenPage:
    """The page at work: what a person does, and what the page then shows."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.replies: list[tuple[str, Any]] = []  # routes and JSON replies, in order
        page.on("requestfinished", self._finished)

    def _finished(self, request: Any) -> None:
        path = "/" + request.url.split("/", 3)[3]
        if path.startswith("/v1/") and path != "/v1/models":
            self.replies.append((path, request))

    def reply(self, route: str) -> Any:
        """The last reply of a route."""
        request = next(request for path, request in reversed(self.replies) if path == route)
        return request.response().json()

    def tab(self, name: str) -> OpenPage:
        self.page.click(f"#tab-{name}")
        return self

    def write(self, text: str, field: str = "text") -> OpenPage:
        """Put a text into a field, without waiting."""
        self.page.fill(f"#{field}", text)
        return self

    def answered(self, state: str = "done") -> OpenPage:
        """Wait for the answer."""
        self.page.wait_for_function(STATES, timeout=1000 * SECONDS)
        settle(self.page)
        notice = self.page.inner_text(".notice")
        assert self.page.get_attribute("#panel", "data-state") == state, notice
        return self

    def ask(self, text: str) -> OpenPage:
        return self.write(text).answered()

    def text(self, selector: str) -> str:
        return str(self.page.inner_text(selector))

    def texts(self, selector: str) -> list[str]:
        return [str(text) for text in self.page.locator(selector).all_inner_texts()]

    def bars(self, selector: str = ".output .chances") -> list[tuple[str, str]]:
        """Names and values of the first bars."""
        rows = self.page.locator(selector).first.locator("li")
        names, values = (rows.locator(part).all_text_contents() for part in (".name", ".value"))
        return list(zip(names, values, strict=True))

    def code(self, form: str) -> str:
        """The request as code, by its button and the clipboard."""
        button = self.page.locator(".code .segments button", has_text=re.compile(f"^{re.escape(form)}$"))
        if button.get_attribute("aria-pressed") != "true":
            button.click()
        self.page.click(".code-box .copy")
        self.page.wait_for_function(COPIED)
        return str(self.page.text_content(".code-box code"))


class Site:
    """A server and a browser that visits it."""

    def __init__(self, browser: Browser, served: Served, models: Path, folder: Path) -> None:
        self.browser, self.served, self.models = browser, served, models
        self.pictures = Path(os.environ.get("WEFT_SCREENSHOTS") or folder)
        self.pictures.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def open(
        self,
        place: str = "",
        *,
        width: int = WIDE,
        dark: bool = False,
        key: str | None = KEY,
        expected: Sequence[str] = (),
    ) -> Iterator[OpenPage]:
        """The page at a place such as "write"; at the end the console must have had no error that is not `expected`.

        `key`: None waits for nothing, since the page will ask for it; "" is for a server without one.
        """
        context = self.browser.process.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",
            permissions=["clipboard-read", "clipboard-write"],
        )
        context.add_init_script(WATCH)
        if key:
            context.add_init_script(f"sessionStorage.setItem('weft-api-key', '{key}')")
        faults, elsewhere = list[str](), list[str]()
        try:
            page = context.new_page()
            page.set_default_timeout(1000 * SECONDS)
            page.on("console", lambda line: faults.append(line.text) if line.type in ("error", "warning") else None)
            page.on("pageerror", lambda error: faults.append(str(error)))
            page.on(
                "request",
                lambda request: (
                    None if request.url.startswith(f"{self.served.url}/") else elsewhere.append(request.url)
                ),
            )
            page.goto(f"{self.served.url}/#{place}")
            opened = OpenPage(page)
            if key is not None:
                page.wait_for_selector("[role=tab]")
                opened.answered("idle")
            yield opened
            unexpected = [fault for fault in faults if not any(re.search(each, fault) for each in expected)]
            assert not unexpected, f"errors in the console: {unexpected}"
            assert not elsewhere, f"requests to other origins: {elsewhere}"
        finally:
            context.close()

    def post(self, route: str, body: Any) -> Any:
        """What the server answers without a browser."""
        reply = self.served.post(route, body, {"Authorization": f"Bearer {KEY}"})
        assert reply.status == 200, reply.body
        return reply.json()

    def picture(self, opened: OpenPage, name: str) -> None:
        """Keep what the page looks like."""
        settle(opened.page)
        opened.page.screenshot(path=str(self.pictures / f"{name}.png"), full_page=True)


def is_percent(shown: str, value: float) -> bool:
    """Whether a probability is shown as people read it, rounded by no more than its last digit."""
    number = re.search(r"([<>]?)(\d+(?:\.\d+)?) %", shown)
    assert number, f"{shown!r} is no percentage"
    if number[1]:
        return value < 0.00051 if number[1] == "<" else value > 0.9994
    digits = len(number[2].partition(".")[2])
    return abs(float(number[2]) - 100 * value) <= 0.51 * 10**-digits


def alike(one: Any, two: Any) -> bool:
    """Equal JSON, but for the last bits of numbers."""
    if isinstance(one, dict) and isinstance(two, dict):
        return set(one) == set(two) and all(alike(one[name], two[name]) for name in one)
    if isinstance(one, list) and isinstance(two, list):
        return len(one) == len(two) and all(map(alike, one, two))
    if isinstance(one, float) or isinstance(two, float):
        return bool(one == pytest.approx(two, abs=1e-5))
    return bool(one == two)


def printed(code: str) -> tuple[str, dict[str, Any]]:
    """What Python code prints, and its variables."""
    out, variables = io.StringIO(), dict[str, Any]()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "page", "exec"), variables)
    return out.getvalue(), variables


def faults_of(opened: OpenPage) -> list[str]:
    """What axe finds serious or critical."""
    from axe_playwright_python.base import AXE_SCRIPT

    if not opened.page.evaluate("() => 'axe' in globalThis"):
        opened.page.evaluate(AXE_SCRIPT)
    found = opened.page.evaluate("() => axe.run({ resultTypes: ['violations'] })")["violations"]
    return [
        f"{fault['id']}: {', '.join(str(node['target']) for node in fault['nodes'][:4])}"
        for fault in found
        if fault["impact"] in ("serious", "critical")
    ]


def flood(served: Served, ended: threading.Event) -> None:
    """Ask for long texts until the test has seen enough."""
    body = {"model": "gpt", "prompt": "The weaver", "max_tokens": 200, "n": 4}
    while not ended.is_set():
        with contextlib.suppress(OSError):
            served.post("/v1/completions", body)

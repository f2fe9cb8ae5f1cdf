"""Pages in a real browser: headless Chromium, driven by Playwright; its tests skip where either is missing.

The tests of this folder have the fixture `browser`:

    def test_a_page(browser: Browser, tmp_path: Path) -> None:
        with browser.open(path, width=400, dark=True) as page:
            page.click("text=Matrix")

When the `with` ends, the page must have logged no error and asked for nothing that is not on this machine.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--metrics-recording-only",
    "--no-first-run",
    "--force-color-profile=srgb",
)
LOCAL = ("file:", "data:", "blob:", "about:")
WIDE, NARROW = 1280, 400  # viewports in pixels: a desk and a telephone

# True where nothing of the page reaches over its right edge; elements that scroll by themselves are let be.
OVERFLOW = "() => document.documentElement.scrollWidth <= document.documentElement.clientWidth"


def executable() -> str | None:
    """The path of a browser on this machine."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """A running browser that opens pages from disk."""

    def __init__(self, process: Any) -> None:
        self.process = process

    @contextmanager
    def open(
        self, path: Path, *, width: int = WIDE, height: int = 900, dark: bool = False, strict: bool = True
    ) -> Iterator[Any]:
        """A Playwright page that shows the file; `strict`: at the end, any error or request elsewhere is a failure."""
        context = self.process.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",
            offline=True,
        )
        errors, requests = list[str](), list[str]()
        try:
            page = context.new_page()
            page.set_default_timeout(15_000)
            page.on("console", lambda line: errors.append(line.text) if line.type in ("error", "warning") else None)
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.on("request", lambda request: None if local(request.url) else requests.append(request.url))
            page.goto(Path(path).resolve().as_uri())
            yield page
            if strict:
                assert not errors, f"{path}: errors in the console: {errors}"
                assert not requests, f"{path}: requests that leave this machine: {requests}"
        finally:
            context.close()

    def shoot(self, path: Path, folder: Path, name: str, script: str = "") -> list[Path]:
        """Screenshots of the whole page, light and dark, wide and narrow; `script` runs in each page before."""
        folder.mkdir(parents=True, exist_ok=True)
        pictures = []
        for width in (WIDE, NARROW):
            for dark in (False, True):
                target = folder / f"{name}-{width}-{'dark' if dark else 'light'}.png"
                with self.open(path, width=width, dark=dark) as page:
                    if script:
                        page.evaluate(script)
                    settle(page)
                    page.screenshot(path=str(target), full_page=True)
                pictures.append(target)
        return pictures


def local(url: str) -> bool:
    return url.startswith(LOCAL)


def settle(page: Any) -> None:
    """Wait until two frames were drawn."""
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def fits(page: Any) -> bool:
    """Whether the page needs no scrolling to the right."""
    return bool(page.evaluate(OVERFLOW))


def overlaps(page: Any, selector: str) -> list[str]:
    """Pairs of elements of the selector whose boxes cover each other by more than 2 px, by their texts."""
    script = """selector => {
        const boxes = [...document.querySelectorAll(selector)]
            .map(node => [node.textContent.trim(), node.getBoundingClientRect()])
            .filter(([, box]) => box.width > 0 && box.height > 0);
        const pairs = [];
        for (let i = 0; i < boxes.length; i++) for (let j = i + 1; j < boxes.length; j++) {
            const [a, b] = [boxes[i][1], boxes[j][1]];
            const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
            const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
            if (across > 2 && down > 2) pairs.push(`${boxes[i][0]} / ${boxes[j][0]}`);
        }
        return pairs;
    }"""
    return list(page.evaluate(script, selector))


@contextmanager
def started() -> Iterator[Browser]:
    """A browser; skips the test where there is none."""
    path = executable()
    if path is None:
        pytest.skip(f"no browser here: none of {', '.join(NAMES)} is on PATH (Debian: apt install chromium)")
    if find_spec("playwright") is None:
        pytest.skip("no playwright here: pip install playwright")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        process = playwright.chromium.launch(executable_path=path, args=list(FLAGS), headless=True)
        try:
            yield Browser(process)
        finally:
            process.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for the tests of a file."""
    with started() as running:
        yield running

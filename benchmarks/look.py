"""The page of `weft look MODEL TEXT` for a long text in headless Chromium: how fast it opens and changes heads.

Prints the time to open, the median and largest time from a key press to the drawn frame for every view, the size of
the page, console errors and requests that leave the machine. `--screenshots FOLDER PAGE ...` takes pictures of any
pages instead: light and dark, 1280 and 400 pixels wide.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import common

import weft
from tests.explain.browser import FLAGS, NARROW, WIDE, executable, local, settle
from weft.explain.attention import attention_view
from weft.text.tokenizers.training import learn

WORDS = "the weaver throws a shuttle of red wool through the warp and it comes back because she is never too tired"
VIEWS = {"lines": "1", "matrix": "2", "text": "3"}
# Presses a key and waits until the frame after it was drawn, as long as a person would wait.
PRESS = """key => new Promise(done => {
    const start = performance.now();
    document.querySelector(".attention").dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
    requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - start)));
})"""


def long_page(folder: Path, tokens: int, size: str) -> tuple[Path, int]:
    """The page of a small decoder for a text of so many tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = learn([WORDS] * 50, "bpe", 300)
    model = weft.new("gpt2", tokenizer, size=size, settings={"context": 2048})
    per_line = len(tokenizer.ids([WORDS + " "], specials=False)[0])
    text = " ".join([WORDS] * (tokens // per_line + 1))
    while len(tokenizer.ids([text], specials=False)[0]) > tokens:
        text = text.rpartition(" ")[0]
    return attention_view(model, text).save(folder / "look.html"), len(tokenizer.ids([text], specials=False)[0])


def measure(browser: Any, path: Path, repeats: int, width: int) -> dict[str, Any]:
    """How one page behaves."""
    errors, requests = list[str](), list[str]()
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.on("console", lambda line: errors.append(line.text) if line.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda request: None if local(request.url) else requests.append(request.url))
    opened = []
    for _ in range(5):  # each time from the beginning of the navigation to the second frame
        page.goto("about:blank")
        page.goto(path.resolve().as_uri())
        settle(page)
        opened.append(page.evaluate("performance.now()"))
    result: dict[str, Any] = {"open_ms": round(statistics.median(opened), 1), "open_max_ms": round(max(opened), 1)}
    for name, key in VIEWS.items():
        first = page.evaluate(PRESS, key)
        heads = [page.evaluate(PRESS, "ArrowRight") for _ in range(repeats)]
        layers = [page.evaluate(PRESS, ("ArrowDown", "ArrowUp")[n % 2]) for n in range(repeats)]
        result[name] = {
            "first_ms": round(first, 1),
            "head_median_ms": round(statistics.median(heads), 1),
            "head_max_ms": round(max(heads), 1),
            "layer_median_ms": round(statistics.median(layers), 1),
            "layer_max_ms": round(max(layers), 1),
        }
    page.close()
    return {**result, "console_errors": errors, "requests_off_machine": requests}


def screenshots(browser: Any, pages: list[Path], folder: Path) -> None:
    """Every page, light and dark, wide and narrow; an attention page in each of its views."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in pages:
        for width in (WIDE, NARROW):
            for theme in ("light", "dark"):
                page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=theme)
                errors = list[str]()
                page.on("pageerror", lambda error, errors=errors: errors.append(str(error)))
                page.goto(path.resolve().as_uri())
                views = {**VIEWS, "grid": "4"} if page.query_selector(".attention") else {"": ""}
                for view, key in views.items():
                    if key:
                        page.evaluate(PRESS, key)
                    settle(page)
                    name = "-".join(filter(None, (path.stem, view, str(width), theme)))
                    page.screenshot(path=str(folder / f"{name}.png"), full_page=True)
                    print(folder / f"{name}.png", *errors)
                page.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=1500)
    parser.add_argument("--size", default="4x128")
    parser.add_argument("--repeats", type=int, default=24)
    parser.add_argument("--out", type=Path, default=Path("runs/look"))
    parser.add_argument("--result", type=Path, default=common.RESULTS / "look.json")
    parser.add_argument("--screenshots", type=Path, metavar="FOLDER", help="only take pictures of the pages given")
    parser.add_argument("pages", type=Path, nargs="*")
    arguments = common.parse(parser, tokens=1500, size="2x64", repeats=4)
    program = executable()
    if program is None or common.peer("playwright") is None:
        print("no browser: install chromium and playwright to measure pages")
        return
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(FLAGS), headless=True)
        if arguments.screenshots:
            screenshots(browser, arguments.pages, arguments.screenshots)
            return
        path, tokens = long_page(arguments.out, arguments.tokens, arguments.size)
        results = {
            "machine": common.machine(),
            "browser": f"Chromium {browser.version}, headless, no GPU",
            "model": f"gpt2 {arguments.size}",
            "tokens": tokens,
            "page_mb": round(path.stat().st_size / 1e6, 2),
            "peer": "bertviz needs all weights as JSON numbers, and a notebook or a CDN; not run here",
            **{f"width_{width}": measure(browser, path, arguments.repeats, width) for width in (WIDE, NARROW)},
        }
        browser.close()
    for name, value in results.items():
        print(f"{name}: {value}")
    cases = [results[f"width_{width}"][view] for width in (WIDE, NARROW) for view in VIEWS]
    median, slowest = (max(case[name] for case in cases) for name in ("head_median_ms", "head_max_ms"))
    print(f"a change of head: largest median {median:.0f} ms, slowest of all {slowest:.0f} ms; the bar is 200 ms")
    opening = [results[f"width_{width}"]["open_ms"] for width in (WIDE, NARROW)]
    print(f"opening: medians {opening[0]:.0f} and {opening[1]:.0f} ms; the bar is 200 ms")
    common.write(arguments.result, results)


if __name__ == "__main__":
    main()

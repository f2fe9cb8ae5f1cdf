"""The browser of the tests: it sees errors, requests and what does not fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.explain.browser import NARROW, Browser, fits, overlaps, settle

HEAD = "<!DOCTYPE html><meta charset='utf-8'><link rel='icon' href='data:,'>"


def written(path: Path, body: str) -> Path:
    path.write_text(HEAD + body)
    return path


def test_a_good_page_passes(browser: Browser, tmp_path: Path) -> None:
    path = written(tmp_path / "good.html", "<p>one</p><p>two</p>")
    with browser.open(path, width=NARROW, dark=True) as page:
        settle(page)
        assert fits(page) and overlaps(page, "p") == []
        assert page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")


@pytest.mark.parametrize(
    "body, message",
    [
        ("<script>throw new Error('broken')</script>", "broken"),
        ("<script>console.error('bad')</script>", "bad"),
        ("<img src='https://example.com/picture.png'>", "example.com|ERR_INTERNET"),
    ],
)
def test_a_bad_page_fails(browser: Browser, tmp_path: Path, body: str, message: str) -> None:
    with pytest.raises(AssertionError, match=message), browser.open(written(tmp_path / "bad.html", body)) as page:
        settle(page)


def test_what_does_not_fit_is_seen(browser: Browser, tmp_path: Path) -> None:
    body = "<div style='width: 900px'>wide</div><b>over</b><b style='margin-left: -20px'>under</b>"
    with browser.open(written(tmp_path / "wide.html", body), width=NARROW) as page:
        assert not fits(page) and overlaps(page, "b") == ["over / under"]

"""Windows of a long text: their scores combine into the answer, and the page shows where they stand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.explain.browser import NARROW, Browser, fits
from tests.explain.models import SENTENCE, made
from weft.errors import UserError
from weft.explain.text_windows import windows_view

LONG = f"{SENTENCE}. " * 6


def test_the_windows_make_the_answer() -> None:
    model = made("bert", "classify", length=24)
    answer, content = model(LONG), windows_view(model, LONG).panels[0].data()
    windows = content["windows"]
    assert len(windows) == answer.n_windows > 2 and content["label"] == answer.label
    assert windows[0]["start"] == 0 and windows[-1]["end"] == len(LONG.rstrip())
    assert all(a["start"] < b["start"] <= a["end"] < b["end"] for a, b in zip(windows, windows[1:], strict=False))
    for window in windows:
        scores = window["scores"]
        assert window["label"] == max(scores, key=scores.__getitem__) and sum(scores.values()) == pytest.approx(1)
    # A window alone is a text of its own, so the model says the same of it.
    first = model(LONG[: windows[0]["end"]])
    assert first.n_windows == 1 and first.scores == pytest.approx(windows[0]["scores"], abs=1e-5)
    low, high = (function([list(each["scores"].values()) for each in windows], axis=0) for function in (np.min, np.max))
    assert all(low[n] - 0.05 <= score <= high[n] + 0.05 for n, score in enumerate(answer.scores.values()))


def test_models_without_such_scores_are_refused() -> None:
    for family, task in (("bert", "tag"), ("bert", "pair"), ("gpt2", "complete")):
        with pytest.raises(UserError, match="no scores of single windows"):
            windows_view(made(family, task), SENTENCE)


def test_the_page(browser: Browser, tmp_path: Path) -> None:
    path = windows_view(made("bert", "classify", length=24), LONG).save(tmp_path / "windows.html")
    with browser.open(path, width=NARROW) as page:
        assert page.locator(".text-windows li").count() > 2 and fits(page)

"""The walk component in a real browser: keys, cells, the row and column that made a number, phone width."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.explain.browser import NARROW, WIDE, Browser, fits, overlaps, settle
from tests.explain.walk_models import TEXT, small
from weft.explain.walk import attention_walk
from weft.explain.walk_steps import Walk
from weft.explain.walks_list import make_walk

COUNT = "() => document.querySelector('.walk-count').textContent"
MARKED = """(id) => [...document.querySelectorAll(`table[data-id="${id}"] td.walk-used`)]
    .map((cell) => [Number(cell.dataset.row), Number(cell.dataset.column)])"""
SHOWN = """(id) => [...document.querySelectorAll(`table[data-id="${id}"] td[data-row]`)]
    .map((cell) => [Number(cell.dataset.row), Number(cell.dataset.column)])"""
GO = """(n) => {
    const list = document.querySelector('.walk select');
    list.selectedIndex = n;
    list.dispatchEvent(new Event('change'));
    for (const details of document.querySelectorAll('details')) details.open = true;
}"""
# Titles of the steps that reach over the right edge of the page.
WIDER = f"""() => [...document.querySelectorAll('.walk option')].map((option) => option.text).filter((_, n) => {{
    ({GO})(n);
    return document.documentElement.scrollWidth > document.documentElement.clientWidth;
}})"""
# The value that the page works out for a cell.
VALUE = """([id, row, column]) => {
    const cell = document.querySelector(`table[data-id="${id}"] td[data-row="${row}"][data-column="${column}"]`);
    cell.focus();
    return Number(document.querySelector('.walk-why output')?.dataset.value ?? NaN);
}"""
FOCUS = "() => [document.activeElement.dataset.row, document.activeElement.dataset.column]"


@pytest.fixture(scope="module")
def walk() -> Walk:
    return attention_walk(small("gpt2", double=False), TEXT, layer=1, head=3)


@pytest.fixture(scope="module")
def path(walk: Walk, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return walk.view().save(tmp_path_factory.mktemp("walk") / "walk.html")


def titled(walk: Walk, title: str) -> int:
    return [step.title for step in walk.steps].index(title)


def cell(page: Any, id: str, row: int, column: int) -> Any:
    return page.locator(f'table[data-id="{id}"] td[data-row="{row}"][data-column="{column}"]').first


def test_arrow_keys_go_from_step_to_step(browser: Browser, walk: Walk, path: Path) -> None:
    count = len(walk.steps)
    with browser.open(path) as page:
        page.focus(".walk")
        assert page.evaluate(COUNT) == f"Step 1 of {count}" and page.is_disabled(".walk-previous")
        page.keyboard.press("ArrowLeft")
        assert page.evaluate(COUNT) == f"Step 1 of {count}"
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowLeft")
        assert page.evaluate(COUNT) == f"Step 2 of {count}"
        page.keyboard.press("End")
        assert page.evaluate(COUNT) == f"Step {count} of {count}" and page.is_disabled(".walk-next")
        page.click(".walk-previous")
        assert page.evaluate(COUNT) == f"Step {count - 1} of {count}"
        page.click(".walk-sections button >> text=Feed-forward")
        assert page.inner_text(".walk-stage h3").startswith("Norm before the feed-forward")


def test_a_cell_shows_the_row_and_column_that_made_it(browser: Browser, walk: Walk, path: Path) -> None:
    with browser.open(path) as page:
        page.evaluate(GO, titled(walk, "Queries: W^Q"))
        cell(page, "Q", 2, 1).hover()
        left, right = (walk.matrices["Q"].made_from or {})["left"], "Q_weights"
        rows, columns = page.evaluate(MARKED, left), page.evaluate(MARKED, right)
        assert rows == [place for place in page.evaluate(SHOWN, left) if place[0] == 2] and len(rows) > 3
        assert columns == [place for place in page.evaluate(SHOWN, right) if place[1] == 1] and len(columns) > 3
        assert page.evaluate(MARKED, "Q_bias") == [[0, 1]]
        value = float(page.get_attribute(".walk-why output", "data-value"))
        assert abs(value - walk.values("Q")[2, 1]) < 1e-4
        assert page.locator(".walk-formula sup").all_inner_texts() == ["Q", "Q"]
        page.focus(".walk")
        page.keyboard.press("Escape")
        assert "Point at a number" in page.inner_text(".walk-why")


def test_cells_can_be_reached_by_keyboard_and_tapped(browser: Browser, walk: Walk, path: Path) -> None:
    with browser.open(path) as page:
        page.evaluate(GO, titled(walk, "Softmax"))
        cell(page, "weights", 1, 0).click()
        assert page.evaluate("() => document.activeElement.dataset.row") == "1"
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowRight")
        assert page.evaluate(FOCUS) == ["2", "1"]
        value = float(page.get_attribute(".walk-why output", "data-value"))
        assert abs(value - walk.values("weights")[2, 1]) < 1e-5
        assert "exp(" in page.inner_text(".walk-why")
        page.keyboard.press("Escape")
        page.keyboard.press("ArrowRight")
        assert page.inner_text(".walk-stage h3") == "Weighted sum"


def test_every_number_of_the_page_is_explained_rightly(browser: Browser, walk: Walk, path: Path) -> None:
    """The browser makes a cell of each step again, and gets what the network computed."""
    with browser.open(path) as page:
        checked = set[str]()
        for number, step in enumerate(walk.steps):
            page.evaluate(GO, number)
            for id in step.matrices:
                matrix = walk.matrices.get(id)
                if matrix is None or matrix.made_from is None or id in checked:
                    continue
                column = 0
                if matrix.made_from["kind"] == "concat":  # only the columns of the head itself are explained
                    column = int(matrix.made_from["offset"])
                    column = matrix.values.shape[1] - 1 if column else 0
                value, scale = page.evaluate(VALUE, [id, 0, column]), np.abs(matrix.values[np.isfinite(matrix.values)])
                assert abs(value - float(matrix.values[0, column])) <= 2e-4 * max(1.0, scale.max()), id
                checked.add(id)
        assert len(checked) > 20


@pytest.mark.parametrize("width, dark", [(WIDE, False), (NARROW, True)])
def test_every_step_fits(browser: Browser, walk: Walk, path: Path, width: int, dark: bool) -> None:
    with browser.open(path, width=width, dark=dark) as page:
        assert page.evaluate(WIDER) == []
        for title in ("Queries: W^Q", "Softmax", "Norm before attention", "Top 10 at temperature 1"):
            page.evaluate(GO, titled(walk, title))
            settle(page)
            assert fits(page) and overlaps(page, ".walk-row > *, .walk-why") == []


def test_named_walks_fit_a_telephone(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("one two three\ntwo three four\n" * 3)
    for name in ("seq2seq", "rnn", "bptt", "mlm", "it", "ngram"):  # those that are laid out differently
        texts = [str(tmp_path / "text.txt")] if name == "ngram" else []
        models = [small("bert", double=False)] if name == "it" else []
        walk = make_walk(name, models, texts)
        path = walk.view().save(tmp_path / f"{name}.html")
        with browser.open(path, width=NARROW) as page:
            assert page.evaluate(WIDER) == [], name


def test_new_numbers_are_shown_at_the_same_step(browser: Browser, walk: Walk, tmp_path: Path) -> None:
    """A page with live numbers calls the component again on the same element."""
    from weft.picture import component
    from weft.picture.page import script_of

    content = walk.content()
    script = script_of(["walk"]).replace("\nstartPage(", "\nglobalThis.weftWalk = walk; startPage(")
    page_text = (
        f"<!DOCTYPE html><meta charset='utf-8'>{component('walk', content)}<script type='module'>{script}</script>"
    )
    (tmp_path / "live.html").write_text(page_text)
    with browser.open(tmp_path / "live.html") as page:
        page.evaluate(GO, 3)
        page.evaluate("""() => {
            const values = { shape: [1, 2], data: Float32Array.from([0.25, 0.75]) };
            const matrices = { p: { name: "p", rows: ["x"], columns: ["a", "b"], values, scale: "sequential" } };
            const steps = Array.from({ length: 5 }, (_, n) => ({ title: `New ${n}`, text: "", matrices: ["p"] }));
            globalThis.weftWalk(document.querySelector("[data-component]"), { title: "", matrices, steps });
        }""")
        assert page.inner_text(".walk-stage h3") == "New 3"
        assert page.locator("td[data-row]").all_inner_texts() == ["0.25", "0.75"]
        assert page.locator(".walk").count() == 1

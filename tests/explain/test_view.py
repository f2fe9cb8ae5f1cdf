"""Views: pages that stand alone, the JSON behind them, pictures; and the rules that let components share one script."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import weft
from weft.cli.main import with_view
from weft.explain.view import HeatPlot, Interactive, LinePlot, Notes, TextTable, View
from weft.picture import ChartLine, component, framed, packed, page
from weft.picture.page import EXPORT, IMPORT, modules_of

FOLDER = Path(weft.__file__).parent / "picture" / "components"
MODULES = sorted(FOLDER.glob("*.js"))
TOP = re.compile(r"^(?:export )?(?:async )?(?:function\*?|const|let|class) (?:\{([^}]*)\}|([\w$]+))", re.MULTILINE)


def view() -> View:
    lines = LinePlot(heading="Loss", lines=[ChartLine("a", [(0, 1.0), (1, 2.0)])], x="step", y="nats")
    heat = HeatPlot(heading="Heat", down=["a"], across=["b"], values=[[0.5]])
    return View("One", (lines, heat, Notes(text="text"), TextTable(header=["a"], rows=[["1"]])), "What it shows.")


@pytest.mark.parametrize("suffix", ["html", "json", "png", "svg"])
def test_a_view_is_written_by_its_ending(suffix: str, tmp_path: Path) -> None:
    if suffix in ("png", "svg") and find_spec("matplotlib") is None:
        pytest.skip("matplotlib is not installed")
    path = view().save(tmp_path / f"view.{suffix}")
    start = {"html": b"<!DOCTYPE html>", "json": b"{", "png": b"\x89PNG", "svg": b"<?xml"}[suffix]
    assert path.read_bytes().startswith(start)
    if suffix == "json":
        values = json.loads(path.read_text())
        assert values["title"] == "One" and values["panels"][0]["lines"][0]["points"] == [[0, 1.0], [1, 2.0]]


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(weft.UserError, match=r"\.html, \.json, \.png or \.svg"):
        view().save(tmp_path / "view.pdf")
    with pytest.raises(weft.UserError, match="not a plot"):
        View("Words", (Notes(text="text"),)).save(tmp_path / "view.png")
    assert not list(tmp_path.iterdir())


def test_numbers_that_are_not_finite_are_null_in_json() -> None:
    lines = LinePlot(lines=[ChartLine("a", [(0, float("nan")), (1, float("inf"))])], x="x", y="y")
    written = View("One", (lines, Interactive(component="shell", content={"x": [float("-inf"), 1.0]})))
    assert json.loads(written.json())["panels"] == [
        {"heading": "", "x": "x", "y": "y", "lines": [{"name": "a", "points": [[0, None], [1, None]]}]},
        {"x": [None, 1.0]},
    ]
    assert '"x":[null,1.0]' in written.html()


def test_data_cannot_leave_its_element() -> None:
    hostile = "</script><script>alert(1)</script><!-- &amp; ]]>"
    text = component("shell", {"text": hostile})
    inside = text.partition('<script type="application/json">')[2].rpartition("</script>")[0]
    assert json.loads(inside)["text"] == hostile and text.count("<script") == 1
    assert page("t", [text]).count("<script") == 2 and hostile not in page(hostile, [], hostile)
    assert "<script" not in framed(page("t", [text])) and "allow-same-origin" not in framed("")


@pytest.mark.parametrize("kind", ["float16", "float32", "int8", "uint8", "uint16", "int32"])
def test_arrays_are_packed_as_bytes(kind: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(kind)
    values = packed(array[:, ::-1])
    assert values["shape"] == [2, 3] and values["type"] == kind
    assert len(values["data"]) == 4 * -(-array.nbytes // 3)


def test_names_at_the_top_of_components_are_unique() -> None:
    """A page joins its modules into one script, so a second declaration of a name would break every page."""
    owners: dict[str, str] = {}
    for path in MODULES:
        for inside, name in TOP.findall(path.read_text(encoding="utf-8")):
            for each in [part.split(":")[-1].strip() for part in inside.split(",")] if inside else [name]:
                assert each not in owners, f"{each} is declared in {owners[each]} and {path.name}"
                owners[each] = path.name
    assert "startPage" in owners


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_a_component_is_a_plain_module(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    body = IMPORT.sub("", text)
    assert not re.search(r"^\s*import\b", body, re.MULTILINE), "an import of another form than the page can join"
    assert not re.search(r"\bexport\b", re.sub(r"//.*", "", EXPORT.sub("", body))), "an export of another form"
    banned = r"\beval\(|new Function|innerHTML|outerHTML|insertAdjacentHTML|document\.write|\bfetch\(|XMLHttpRequest"
    assert not re.search(banned, body), "text from outside may only become text, and nothing is fetched"
    urls = set(re.findall(r"https?://[^\"'\s]+", body))
    assert urls <= {"http://www.w3.org/2000/svg"} and "]]>" not in text and "</script" not in text
    assert modules_of([path.stem])[-1] == path.stem


def test_a_first_word_that_is_no_view_is_a_model() -> None:
    assert with_view(["look", "runs/bert", "text"]) == ["look", "attention", "runs/bert", "text"]
    assert with_view(["look", "./map", "text"]) == ["look", "attention", "./map", "text"]
    assert with_view(["look", "--layer", "1", "runs/bert"]) == ["look", "attention", "--layer", "1", "runs/bert"]
    for arguments in (["look"], ["look", "--help"], ["look", "attention", "runs/bert"], ["info", "runs/bert"]):
        assert with_view(arguments) == arguments
    with pytest.raises(weft.UserError, match="neither a view nor a model folder; did you mean 'positions'"):
        with_view(["look", "positons"])

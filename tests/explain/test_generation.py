"""Beam trees: what the production search compared, kept and pruned, and an answer that is the model's own."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.explain.browser import NARROW, Browser, fits, settle
from tests.explain.tiny_models import saved, tiny
from weft.cli.main import run
from weft.explain.beam_tree import TreeNode, TreePlot, generation_view
from weft.tasks.complete import complete


def nodes_of(view: Any) -> list[TreeNode]:
    assert isinstance(view.panels[0], TreePlot)
    return list(view.panels[0].nodes)


@pytest.mark.parametrize("family, kind", [("gpt2", "bpe"), ("t5", "unigram")])
@pytest.mark.parametrize("options", [{"beam_size": 3}, {"beam_size": 4, "length_penalty": 0.0}, {}, {"top_k": 5}])
def test_the_answer_is_that_of_a_call(family: str, kind: str, options: dict[str, Any]) -> None:
    model = tiny(family, kind, scale=4.0)
    view = generation_view(model, "The bank", max_tokens=6, **options)
    (answer,) = complete(model.opened, ["The bank"], max_tokens=6, **options)
    path = [node for node in nodes_of(view) if node.chosen]
    assert tuple(node.token for node in path) == answer.tokens
    assert [node.step for node in path] == list(range(1, len(path) + 1))
    assert path[-1].logprob == pytest.approx(answer.logprob, abs=1e-4)


def test_every_step_keeps_the_best_and_prunes_the_rest() -> None:
    nodes = nodes_of(generation_view(tiny("gpt2", scale=4.0), "The bank", beam_size=3, max_tokens=5))
    for step in range(1, 6):
        column = [node for node in nodes if node.step == step]
        assert [node.rank for node in column] == list(range(len(column)))
        assert [node.logprob for node in column] == sorted((node.logprob for node in column), reverse=True)
        assert sum(node.fate == "kept" for node in column) <= 3 and any(node.fate == "pruned" for node in column)
    for node in nodes:
        above = nodes[node.parent].logprob if node.parent >= 0 else 0.0
        assert node.probability == pytest.approx(math.exp(node.logprob - above)) and node.probability <= 1 + 1e-9
        assert node.parent < 0 or nodes[node.parent].fate == "kept"


def test_without_a_beam_the_alternatives_are_shown() -> None:
    nodes = nodes_of(generation_view(tiny("gpt2", scale=4.0), "The bank", max_tokens=3))
    assert [node.chosen for node in nodes if node.rank == 0] == [True] * 3  # greedy takes the best
    assert {node.step for node in nodes if node.fate == "pruned"} == {1, 2, 3}


def test_what_a_page_cannot_show_is_refused() -> None:
    with pytest.raises(weft.UserError, match="a beam of 32 at most"):
        generation_view(tiny("gpt2"), "a", beam_size=33)
    with pytest.raises(weft.UserError, match="256 new tokens"):
        generation_view(tiny("gpt2"), "a", max_tokens=1000)
    with pytest.raises(weft.UserError):
        generation_view(tiny("bert", "wordpiece"), "a")


def test_the_command_line_and_the_page(browser: Browser, tmp_path: Path) -> None:
    folder, out = saved(tiny("gpt2", scale=4.0), tmp_path / "gpt"), tmp_path / "tree.html"
    call = ["look", "generation", str(folder), "The bank", "--beam-size", "3", "--max-tokens", "4", "--out"]
    assert run([*call, str(out)]) == 0 and run([*call, str(tmp_path / "t.json")]) == 0
    data = json.loads((tmp_path / "t.json").read_text())["panels"][0]
    assert data["beam_size"] == 3 and {node["fate"] for node in data["nodes"]} >= {"kept", "pruned"}
    assert run([*call, str(tmp_path / "t.png")]) == 0
    with browser.open(out, width=NARROW, dark=True) as page:
        settle(page)
        assert fits(page)
        every = page.locator(".beam-tree .node").count()
        page.uncheck("input[type=checkbox]")
        assert 0 < page.locator(".beam-tree .node").count() < every
        page.focus(".beam-tree-scroll")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        assert "step 2" in page.text_content(".beam-tree-caption")

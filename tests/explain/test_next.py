"""Next words of several models, side by side."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import weft
from tests.explain.browser import NARROW, Browser, fits, settle
from tests.explain.tiny_models import saved, tiny
from weft.cli.main import run
from weft.explain.next_words import WordBars, ladder_folders, next_words_view


def test_the_same_words_by_every_model() -> None:
    models = [tiny("rnn", scale=3.0), tiny("gpt2", scale=4.0)]
    panel = next_words_view(models, "The bank", top=5).panels[0]
    assert isinstance(panel, WordBars) and panel.models == ["rnn", "gpt2"]
    for number, model in enumerate(models):
        answer = weft.suggest(model, "The bank", top=200, complete_word=False)
        expected = {word.text: word.probability for word in answer.words}
        for word, row in zip(panel.words, panel.values, strict=True):
            assert row[number] == expected.get(word)
        assert set(list(expected)[:3]) <= {*panel.words, ""}
    means = [sum(value or 0 for value in row) for row in panel.values]
    assert means == sorted(means, reverse=True)


def test_a_folder_of_models_is_a_ladder(tmp_path: Path, browser: Browser) -> None:
    for name, family in (("transformer", "gpt2"), ("rnn", "rnn"), ("lstm-2", "lstm")):
        saved(tiny(family), tmp_path / "ladder" / name)
    assert [path.name for path in ladder_folders([str(tmp_path / "ladder")])] == ["rnn", "lstm-2", "transformer"]
    out = tmp_path / "next.html"
    call = ["look", "next", str(tmp_path / "ladder"), "--text", "The bank", "--out"]
    assert run([*call, str(out)]) == 0 and run([*call, str(tmp_path / "n.json")]) == 0
    assert json.loads((tmp_path / "n.json").read_text())["panels"][0]["models"] == ["rnn", "lstm-2", "transformer"]
    assert run([*call, str(tmp_path / "n.png")]) == 0
    with browser.open(out, width=NARROW, dark=True) as page:
        settle(page)
        assert fits(page)
        first = page.text_content(".word-bars tbody th")
        page.click("text=lstm-2")
        values = page.eval_on_selector_all(".word-bars tbody tr", "rows => rows.map(r => r.cells[2].textContent)")
        assert values and first and page.get_attribute("button:has-text('lstm-2')", "aria-pressed") == "true"


def test_what_predicts_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(weft.UserError):
        next_words_view([tiny("bert", "wordpiece")], "The bank")
    view = next_words_view([tiny("bert", "wordpiece"), tiny("rnn")], "The bank")
    assert "is left out" in view.panels[0].note
    with pytest.raises(weft.UserError, match="holds none"):
        next_words_view([tmp_path], "The bank")

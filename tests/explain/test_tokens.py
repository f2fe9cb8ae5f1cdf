"""One text by several tokenizers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.explain.browser import NARROW, Browser, fits, settle
from tests.explain.tiny_models import TEXTS, tokenizer
from weft.cli.main import run
from weft.explain.tokenizer_view import learned_tokenizers, tokenized, tokens_view

TEXT = "The banker's Grüße 🙂 unbelievably 中文"


@pytest.mark.parametrize("kind", ["WordPiece", "BPE", "Unigram", "Characters"])
def test_pieces_cover_the_text(kind: str) -> None:
    own = learned_tokenizers(TEXTS)[kind]
    result = tokenized(own, TEXT, kind)
    plain = [piece for piece in result.pieces if not piece["special"]]
    assert [piece["id"] for piece in result.pieces] == own.encode(TEXT).ids
    covered = {place for piece in plain for place in range(piece["start"], piece["end"])}
    assert {place for place, letter in enumerate(TEXT) if not letter.isspace()} <= covered
    assert result.count == len(plain) and result.unknown == sum(piece["id"] == own.id_of("unknown") for piece in plain)
    if kind == "BPE":
        assert result.unknown == 0  # it has every byte


def test_figures_of_the_table() -> None:
    view: Any = tokens_view("abc 🙂", [tokenizer("bpe")])
    assert view.panels[1].rows[0][:2] == ["BPE", "300"]
    count = int(view.panels[1].rows[0][2])
    assert view.panels[1].rows[0][4] == f"{8 / count:.2f}"


def test_the_command_line_and_the_page(browser: Browser, tmp_path: Path) -> None:
    text, out, folder = tmp_path / "t.txt", tmp_path / "tokens.html", tmp_path / "tok"
    text.write_text("\n".join(TEXTS))
    tokenizer("bpe").save(folder)
    assert run(["look", "tokens", TEXT, "--text", str(text), "--size", "300", "--out", str(out)]) == 0
    assert run(["look", "tokens", TEXT, "--tokenizer", str(folder), "--out", str(tmp_path / "t.json")]) == 0
    data = json.loads((tmp_path / "t.json").read_text())["panels"][0]
    assert data["text"] == TEXT and data["tokenizers"][0]["name"] == "tok (bpe)"
    assert run(["look", "tokens", TEXT, "--out", str(tmp_path / "t.png")]) == 2  # no plot
    assert run(["look", "tokens", TEXT, "--tokenizer", str(tmp_path / "no")]) == 2
    with browser.open(out, width=NARROW, dark=True) as page:
        settle(page)
        assert fits(page) and page.locator(".strip").count() == 4
        page.focus(".strip >> nth=1")
        page.keyboard.press("ArrowRight")
        assert "characters 0 to" in page.text_content(".token-strips-caption")
        assert page.locator(".piece.marked").count() >= 4  # in every strip


def test_what_cannot_be_shown_is_refused() -> None:
    with pytest.raises(weft.UserError, match="give a text"):
        tokens_view("")
    with pytest.raises(weft.UserError, match="characters at most"):
        tokens_view("a" * 20_001)
    with pytest.raises(weft.UserError, match="size must be"):
        tokens_view("a", size=1)

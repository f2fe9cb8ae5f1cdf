"""Projections of vectors, and the map of words."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import weft
from tests.explain.browser import NARROW, Browser, fits, settle
from tests.explain.tiny_models import saved, tiny
from weft.cli.main import run
from weft.explain.plots import PointPlot
from weft.explain.projection import (
    centroid_accuracy,
    cosine_distances,
    kmeans,
    pca,
    projected,
    silhouette,
    turned_onto,
)
from weft.explain.word_map import open_space, read_word_list, solve, word_map_view
from weft.vectors.space import WordSpace

RANDOM = np.random.default_rng(0)


def test_pca_keeps_what_lies_in_a_plane() -> None:
    flat = RANDOM.normal(size=(30, 2)) @ np.linalg.qr(RANDOM.normal(size=(10, 10)))[0][:2] + 5
    places, share = pca(flat)
    assert share == pytest.approx(1)
    between = np.linalg.norm(flat[:, None] - flat, axis=-1)
    assert np.abs(np.linalg.norm(places[:, None] - places, axis=-1) - between).max() < 1e-9
    assert np.array_equal(pca(np.ones((5, 3)))[0], np.zeros((5, 2)))


def test_pca_has_the_variances_of_the_covariance() -> None:
    points = RANDOM.normal(size=(50, 6)) * np.arange(1, 7)
    sizes = np.sort(np.linalg.eigvalsh(np.cov(points.T, bias=True)))[::-1]
    places, share = pca(points)
    assert np.abs(places.var(0) - sizes[:2]).max() < 1e-9 * sizes[0]
    assert share == pytest.approx(sizes[:2].sum() / sizes.sum())


def test_layouts_are_turned_onto_each_other() -> None:
    places = RANDOM.normal(size=(20, 2))
    mirrored = places @ np.array([[0.0, 1.0], [1.0, 0.0]])
    assert np.abs(turned_onto(mirrored, places) - (places - places.mean(0))).max() < 1e-9


def test_silhouette_and_accuracy() -> None:
    groups = np.repeat([0, 1], 10)
    apart = np.eye(2)[groups] + 0.01 * RANDOM.normal(size=(20, 2))
    assert silhouette(cosine_distances(apart), groups) > 0.9 and centroid_accuracy(apart, groups) == 1
    same = np.ones((20, 3))
    assert silhouette(cosine_distances(same), groups) == 0 and centroid_accuracy(same, groups) == 0.5
    mixed = np.tile(apart[[0, 10]], (10, 1))
    assert silhouette(cosine_distances(mixed), groups) < 0


@pytest.mark.skipif(find_spec("sklearn") is None, reason="scikit-learn is not installed")
def test_silhouette_is_that_of_scikit_learn() -> None:
    from sklearn.metrics import silhouette_score

    points, groups = RANDOM.normal(size=(40, 5)), RANDOM.integers(0, 4, 40)
    groups[0], groups[groups == 3] = 3, 2  # a group of one, and of none
    distances = cosine_distances(points)
    expected = silhouette_score(distances, groups, metric="precomputed")
    assert silhouette(distances, groups) == pytest.approx(expected, abs=1e-9)


def test_kmeans_finds_clusters_that_are_apart() -> None:
    truth = np.repeat(np.arange(4), 12)
    points = np.eye(6)[truth] + 0.05 * RANDOM.normal(size=(48, 6))
    assert np.array_equal(kmeans(points, 4), truth)


@pytest.mark.skipif(find_spec("sklearn") is None, reason="scikit-learn is not installed")
def test_tsne_keeps_clusters_together() -> None:
    truth = np.repeat([0, 1], 12)
    points = np.eye(2)[truth] + 0.05 * RANDOM.normal(size=(24, 2))
    places, _ = projected(points, "tsne")
    far = np.linalg.norm(places[:, None] - places, axis=-1) + 1e9 * np.eye(24)
    assert (truth[far.argmin(1)] == truth).all()


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "umap", None)
    with pytest.raises(weft.UserError, match="UMAP needs umap-learn: pip install umap-learn"):
        projected(RANDOM.normal(size=(20, 4)), "umap")


def space() -> WordSpace:
    """man, woman, king, queen at the corners of a rectangle, and two other words."""
    rows = {
        "man": [1, 0, 0, 0.2], "woman": [0, 1, 0, 0.2], "king": [1, 0, 1, 0.2], "queen": [0, 1, 1, 0.2],
        "apple": [0, 0, -1, 1], "pear": [0.1, 0, -1, 1],
    }  # fmt: skip
    return WordSpace(list(rows), np.array(list(rows.values()), dtype=np.float32), "corners")


def test_analogies_are_lines() -> None:
    assert solve(space(), "king man woman").answer == "queen"
    view = word_map_view(space(), [("apple", "fruit"), ("pear", "fruit")], analogies=["king man woman"])
    plot = view.panels[0]
    assert isinstance(plot, PointPlot)
    names = [point["label"] for point in plot.points]
    assert [(names[a], names[b]) for a, b, _ in plot.lines] == [("man", "king"), ("woman", "queen")]
    assert plot.groups == ["fruit", "other words"] and "pear" in plot.points[names.index("apple")]["note"]
    with pytest.raises(weft.UserError, match="three words"):
        solve(space(), "king man")
    with pytest.raises(weft.UserError, match="'kin' is not among the 6 words"):
        solve(space(), "kin man woman")


def test_words_without_a_vector_are_named() -> None:
    view = word_map_view(space(), ["king", "queen", "emperor"])
    assert "emperor" in view.panels[0].note and len(vars(view.panels[0])["points"]) == 2
    with pytest.raises(weft.UserError, match="at least two words"):
        word_map_view(space(), ["king", "emperor"])


def test_token_embeddings_of_a_model(tmp_path: Path) -> None:
    folder = saved(tiny("bert", "wordpiece"), tmp_path / "bert")
    words = open_space(folder)
    model = tiny("bert", "wordpiece")
    assert model.tokenizer is not None
    row = model.network.get_parameter("tokens.weight")[model.tokenizer.tokens["bank"]]
    assert np.array_equal(words.vector("bank"), row.detach().numpy())


def test_the_command_line(tmp_path: Path) -> None:
    vectors, words, out = (tmp_path / name for name in ("v.txt", "words.txt", "map.json"))
    own = space()
    lines = [f"{word} {' '.join(map(str, row))}" for word, row in zip(own.words, own.matrix.tolist(), strict=True)]
    vectors.write_text("6 4\n" + "\n".join(lines) + "\n")
    words.write_text("king\troyal\nqueen\troyal\napple\tfruit\nman\n")
    assert read_word_list(words)[2:] == [("apple", "fruit"), ("man", "")]
    call = ["look", "map", str(vectors), "--words", str(words), "--analogy", "king man woman", "--out", str(out)]
    assert run(call) == 0
    data = json.loads(out.read_text())["panels"][0]
    assert data["groups"] == ["royal", "fruit", "other words"] and len(data["lines"]) == 2
    assert run([*call[:-1], str(tmp_path / "map.svg")]) == 0 and (tmp_path / "map.svg").stat().st_size > 1000
    assert run([*call, "--method", "nothing"]) == 2


def test_the_page_in_a_browser(browser: Browser, tmp_path: Path) -> None:
    path = word_map_view(space(), space().words, methods=["pca"], analogies=["king man woman"]).save(
        tmp_path / "m.html"
    )
    with browser.open(path, width=NARROW) as page:
        settle(page)
        assert fits(page) and page.get_attribute(".point-map-stage", "data-labels") == "6"
        page.fill("input[type=search]", "que")
        assert "1 of 6 points" in page.text_content(".point-map-caption")
        page.fill("input[type=search]", "")
        page.focus(".point-map-stage")
        page.keyboard.press("ArrowRight")
        assert "nearest: " in page.text_content(".point-map-caption")
        assert "null" not in page.text_content("main")

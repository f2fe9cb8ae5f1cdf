"""Linear probes of layers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import weft
from tests.explain.tiny_models import TEXTS, saved, tiny
from weft.cli.main import run
from weft.explain.bank_sentences import LABELED
from weft.explain.probe import Features, linear_probe, probe_scores, probe_view, scored


def tagged(path: Path) -> Path:
    """Words whose tag is known from the word itself, and of which half are V."""
    rows = []
    for number, text in enumerate(TEXTS):
        words = text.rstrip(".").split()
        rows += [f"{word}\t{'DET' if word.lower() in ('the', 'a') else 'X'}" for word in words[: 4 + number % 5]] + [""]
    path.write_text("\n".join(rows) + "\n")
    return path


def test_a_probe_learns_what_is_linear_and_only_that() -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(240, 4)).astype(np.float32)
    linear, other = (x[:, 0] > 0).astype(np.int64), (x[:, 0] * x[:, 1] > 0).astype(np.int64)
    assert (linear_probe(x[:200], linear[:200], x[200:], 2) == linear[200:]).mean() > 0.9
    assert (linear_probe(x[:200], other[:200], x[200:], 2) == other[200:]).mean() < 0.7


def test_scores_and_intervals() -> None:
    labels, examples = np.array([0, 0, 1, 1, 1, 0]), np.array([0, 0, 0, 1, 1, 2])
    score = scored("x", np.array([0, 0, 1, 1, 0, 0]), Features([], labels, examples), 2)
    assert score.accuracy.value == pytest.approx(5 / 6) and score.accuracy.low < 5 / 6 <= score.accuracy.high
    assert score.f1 == pytest.approx((6 / 7 + 4 / 5) / 2)


def test_tags_of_words_are_in_the_embeddings(tmp_path: Path) -> None:
    scores, baseline, facts = probe_scores(tiny("bert", "wordpiece").opened, [str(tagged(tmp_path / "t.conll"))])
    assert facts["task"] == "tag" and [score.name for score in scores] == ["embeddings", "layer 1", "layer 2"]
    assert scores[0].accuracy.value > 0.9 > baseline.accuracy.value  # the word alone tells its tag


def test_labels_of_texts_and_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, out = tmp_path / "t.csv", tmp_path / "probe.json"
    data.write_text("text,label\n" + "\n".join(f'"{text}",{sense}' for text, sense in LABELED) + "\n")
    folder = saved(tiny("bert", "wordpiece"), tmp_path / "bert")
    assert run(["look", "probe", str(folder), "--data", str(data), "--out", str(out)]) == 0
    assert "embeddings" in capsys.readouterr().out
    lines = json.loads(out.read_text())["panels"][0]["lines"]
    assert [line["name"] for line in lines][-1] == "most frequent label" and len(lines[0]["points"]) == 3
    assert run(["look", "probe", str(folder)]) == 2
    assert run(["look", "probe", str(folder), "--data", str(data), "--task", "answer"]) == 2


def test_what_cannot_be_probed_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "t.csv"
    data.write_text("text,label\n" + "\n".join(f'"{text}",same' for text in TEXTS) + "\n")
    with pytest.raises(weft.UserError):
        probe_view(tiny("bert", "wordpiece"), data)
    with pytest.raises(weft.UserError, match="rows must be between"):
        probe_view(tiny("bert", "wordpiece"), data, rows=1)

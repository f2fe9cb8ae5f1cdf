"""A file of word vectors as a base: opened, learned from, saved as our own kind of folder, and loaded again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import weft
from weft.checkpoint.external import open_vectors
from weft.checkpoint.families import FAMILIES, find_size, measure
from weft.checkpoint.folder import LoadedModel, open_folder, save_folder
from weft.cli.main import run
from weft.errors import UserError
from weft.models.classifiers import Vectors, VectorsConfig
from weft.nn.rows import Ragged, Rows
from weft.text.vector_files import is_file_of_vectors

WORDS = ["good", "bad", "fine", "dull", "film", "the", "a", ",", ".", "n't"]
TEXTS = ["A good film.", "The bad, dull film", "fine unheard-of words", "n't"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    lines = [f"{word} {' '.join(str(value) for value in torch.randn(6).tolist())}" for word in WORDS]
    path = tmp_path / "tiny.6d.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


def scores_of(opened: LoadedModel, texts: list[str]) -> Tensor:
    assert opened.tokenizer is not None
    batch = Ragged.of(opened.tokenizer.ids(texts))
    network: Any = opened.network
    with torch.inference_mode():
        return network.logits("classify", network(batch.tokens, batch.rows), batch.rows)


@pytest.mark.parametrize("settings", [{}, {"inner": 5, "dropout": 0.2, "word_dropout": 0.3}])
def test_a_file_saved_as_a_folder_says_the_same(file: Path, settings: dict[str, Any], tmp_path: Path) -> None:
    assert is_file_of_vectors(file) and not is_file_of_vectors(tmp_path)
    opened = open_vectors(file, {"classify": 3}, seed=4, settings=settings)
    opened = replace(opened, card=replace(opened.card, task="classify", labels=("no", "so", "yes")))
    save_folder(tmp_path / "m", opened)
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    assert config["model_type"] == "weft-vectors" and config["architectures"] == ["Weft-vectors"]
    loaded = open_folder(tmp_path / "m")
    assert loaded.config == opened.config and loaded.card == opened.card and loaded.card.base == file.name
    scores = scores_of(opened, TEXTS)
    assert torch.equal(scores_of(loaded, TEXTS), scores) and scores.abs().max() > 1e-3
    assert weft.load(tmp_path / "m").task == "classify"
    # Another head on the same words, drawn from its seed.
    first, second, other = (open_folder(tmp_path / "m", {"classify": 2}, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(scores_of(first, TEXTS), scores_of(second, TEXTS))
    assert not torch.equal(scores_of(first, TEXTS), scores_of(other, TEXTS))
    assert first.card.labels is None and first.network.tokens.weight.equal(opened.network.tokens.weight)


def test_the_score_is_the_head_on_the_mean(file: Path) -> None:
    opened = open_vectors(file, {"classify": 2})
    table, head = opened.network.tokens.weight, opened.network.heads["classify"].output
    mean = (table[WORDS.index("a")] + table[WORDS.index("good")] + table[WORDS.index("film")]) / 3
    expected = mean @ head.weight.T + head.bias
    assert torch.allclose(scores_of(opened, ["Good film a", "bad"])[0], expected, atol=1e-6)


def test_the_unknown_word(file: Path) -> None:
    opened = open_vectors(file, {})
    table = opened.network.tokens.weight.detach()
    assert opened.config.vocabulary == len(WORDS) + 1 and opened.tokenizer.id_of("unknown") == len(WORDS)
    assert torch.allclose(table[-1], table[:-1].mean(0), atol=1e-6)
    assert opened.tokenizer.encode("good blorp").ids == [0, len(WORDS)]
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines[:3], "<unk> 1 2 3 4 5 6", *lines[3:]]))  # the file has a vector for it
    opened = open_vectors(file, {})
    assert opened.config.vocabulary == len(WORDS) + 1 and opened.tokenizer.id_of("unknown") == 3
    assert opened.network.tokens.weight[3].tolist() == [1, 2, 3, 4, 5, 6]


def test_what_was_left_out_is_said(file: Path) -> None:
    file.write_text(file.read_text() + "good 1 2 3 4 5 6\nshort 1 2\n")
    with pytest.raises(UserError, match="line 12: 'short': expected 6 numbers, got 2"):
        open_vectors(file, {})
    with pytest.warns(UserWarning) as caught:
        open_vectors(file, {}, on_bad_row="skip")
    said = " ".join(str(warning.message) for warning in caught)
    assert "skipped 1 bad row" in said and "1 lines repeat a word" in said


def test_what_cannot_be(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match="head of vectors 'tag' is not one of classify"):
        open_vectors(file, {"tag": 3})
    with pytest.raises(UserError, match="11 words 6 wide; neither can be set"):
        open_vectors(file, {}, settings={"width": 7})
    with pytest.raises(UserError, match="word_dropout must be at least 0 and below 1, not 1.5"):
        VectorsConfig(word_dropout=1.5)
    with pytest.raises(UserError, match="vectors has no layers; set its width alone, as model.width=128"):
        find_size("vectors", "2x128")
    save_folder(tmp_path / "m", open_vectors(file, {}))
    with pytest.raises(UserError, match="vectors has no layers to mix"):
        open_folder(tmp_path / "m", {"classify": 2}, mix=True)
    path = tmp_path / "m" / "config.json"
    path.write_text(path.read_text().replace("weft-vectors", "vectors"))  # which another library may give a meaning
    with pytest.raises(UserError, match="model_type 'vectors' is not one of .*; did you mean 'weft-vectors'"):
        open_folder(tmp_path / "m")
    (tmp_path / "corpus.txt").write_text("some text\n" * 20)
    command = ["pretrain", "--model", "vectors", "--text", str(tmp_path / "corpus.txt"), "--out", str(tmp_path / "r")]
    assert run(command) == 2 and "vectors has no head for words" in capsys.readouterr().err


def test_a_folder_of_vectors_is_a_model_like_others(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_folder(tmp_path / "m", open_vectors(file, {}))
    model = weft.load(tmp_path / "m")
    assert model.task == "embed"
    vector = torch.tensor(model("good film").values)
    table = model.network.tokens.weight.detach()
    assert torch.allclose(vector, table[[WORDS.index("good"), WORDS.index("film")]].mean(0), atol=1e-6)
    assert run(["info", str(tmp_path / "m")]) == 0 and "weft-vectors" in capsys.readouterr().out
    assert measure(FAMILIES["vectors"], model.config, {}).parameters == 11 * 6


# -------------------------------------------------------------------------------------------------------- network


def network_of(heads: dict[str, int], **settings: Any) -> Any:
    torch.manual_seed(3)
    network = Vectors(VectorsConfig(vocabulary=30, width=8, **settings), heads)
    network.initialize()
    return network


def test_whole_words_are_dropped_in_training_alone() -> None:
    network = network_of({}, word_dropout=0.25)
    rows = Rows.of([3000])
    tokens = torch.arange(3000) % 30
    plain = network.eval()(tokens, rows)
    assert torch.equal(plain, network.tokens(tokens))
    dropped = network.train()(tokens, rows)
    gone = (dropped == 0).all(1)
    assert 0.2 < gone.float().mean() < 0.3
    assert torch.allclose(dropped[~gone], plain[~gone] / 0.75)  # the mean stays what it was


def test_an_empty_row_and_half_precision() -> None:
    network = network_of({"classify": 2}).eval()
    rows = Rows.of([2, 0, 1])
    hidden = network(torch.tensor([1, 2, 3]), rows)
    scores = network.logits("classify", hidden, rows)
    assert torch.equal(scores[1], network.heads["classify"].output.bias) and bool(scores.isfinite().all())
    many = Rows.of([5000])
    same = torch.full((5000, 8), 30.0, dtype=torch.float16)
    assert torch.equal(network.pooled(same, many), same[:1])  # their sum, 150,000, is more than float16 can say


@pytest.mark.parametrize("inner", [None, 16])
def test_it_learns_one_batch_by_heart(inner: int | None) -> None:
    network = network_of({"classify": 3}, inner=inner, dropout=0.1, word_dropout=0.1)
    batch = Ragged.of([[1, 2, 3], [4, 5], [6, 7, 8, 9], [1, 9]])
    targets = torch.tensor([0, 1, 2, 1])
    optimizer = torch.optim.AdamW(network.parameters(), 3e-2)
    losses = []
    for _ in range(80):
        scores = network.logits("classify", network(batch.tokens, batch.rows), batch.rows)
        loss = torch.nn.functional.cross_entropy(scores, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]

"""Learning word vectors as a run: folders that all verbs take, bit-exact resume, and mistakes in one line."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import weft
from weft.cli.main import run
from weft.errors import UserError
from weft.runs import pretrain as vectors
from weft.runs.pretrain import learn_vectors
from weft.tasks.word_vectors import learn_map, open_map, open_words, read_pairs
from weft.training.log import read_metrics
from weft.training.signals import Interrupted

SMALL: dict[str, Any] = {"width": 12, "min_count": 1, "epochs": 2, "block": 500, "batch": 64, "threads": 1}


def quiet(text: str) -> None:
    pass


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Sentences about the sea and about the kitchen, and never about both."""
    draw = np.random.default_rng(0)
    topics = (["ship", "sea", "wave", "sail", "storm"], ["pan", "soup", "salt", "oven", "cook"])
    lines = [" ".join([*draw.choice(topics[n % 2], 6), "the"]) for n in range(300)]
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


def learned(text: Path, out: Path, **plan: Any) -> weft.Model:
    return learn_vectors(vectors={**SMALL, **plan}, text={"files": [str(text)]}, out=str(out), device="cpu", log=quiet)


def table_of(folder: Path) -> torch.Tensor:
    return weft.load(folder).network.get_parameter("tokens.weight").detach()


@pytest.mark.parametrize(
    "plan", [{"mode": "skip-gram"}, {"mode": "cbow"}, {"kind": "glove", "batch": 40, "epochs": 8}], ids=str
)
def test_a_run_that_is_stopped_goes_on_bit_for_bit(
    plan: dict[str, Any], text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = learned(text, tmp_path / "whole", **plan)
    assert whole.task == "embed"
    steps = read_metrics(tmp_path / "whole" / "run" / "metrics.jsonl")[-1]["step"]
    assert steps > 6
    name = "Glove" if plan.get("kind") == "glove" else "Word2Vec"
    method: Any = getattr(vectors, name).learn
    done = 0

    def stopping(*arguments: Any) -> float:
        nonlocal done
        done += 1
        if done == 4:
            os.kill(os.getpid(), signal.SIGTERM)  # heard at once, acted upon after the step
        return method(*arguments)

    monkeypatch.setattr(f"weft.runs.pretrain.{name}.learn", stopping)
    with pytest.raises(Interrupted, match="stopped after step 4 of .*, all saved; resume with: weft resume"):
        learned(text, tmp_path / "parts", **plan)
    assert not (tmp_path / "parts" / "model.safetensors").exists()
    weft.resume(tmp_path / "parts", log=quiet)
    assert done == steps
    assert torch.equal(table_of(tmp_path / "parts"), table_of(tmp_path / "whole"))
    records = [read_metrics(tmp_path / name / "run" / "metrics.jsonl") for name in ("parts", "whole")]
    assert [[line["step"], line["loss"]] for line in records[0]] == [
        [line["step"], line["loss"]] for line in records[1]
    ]
    said: list[str] = []
    weft.resume(tmp_path / "parts", log=said.append)
    assert done == steps and "finished already" in said[-1]


def test_a_killed_run_goes_on_from_its_last_checkpoint(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learned(text, tmp_path / "whole")
    monkeypatch.setattr(vectors, "SECONDS_SAVED", 0.0)  # a checkpoint after every step
    method: Any = vectors.Word2Vec.learn
    done = 0

    def dying(*arguments: Any) -> float:
        nonlocal done
        done += 1
        if done == 6:
            raise KeyboardInterrupt  # nothing is saved on the way out
        return method(*arguments)

    monkeypatch.setattr(vectors.Word2Vec, "learn", dying)
    with pytest.raises(KeyboardInterrupt):
        learned(text, tmp_path / "killed")
    monkeypatch.setattr(vectors.Word2Vec, "learn", method)
    weft.resume(tmp_path / "killed", log=quiet)
    assert torch.equal(table_of(tmp_path / "killed"), table_of(tmp_path / "whole"))


def test_words_of_a_kind_are_near_and_every_verb_takes_the_folder(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(tmp_path / "w2v")
    words = ["--width", "12", "--min-count", "1", "--epochs", "15", "--device", "cpu", "--set", "vectors.batch=64"]
    assert run(["vectors", "learn", "--kind", "word2vec", "--text", str(text), "--out", folder, *words]) == 0
    assert "11 words x 12" in capsys.readouterr().err
    sea = {"sea", "wave", "sail", "storm"}
    assert {near.word for near in open_words(folder).near("ship", 4)} == sea
    assert run(["vectors", "near", folder, "ship", "--top", "4"]) == 0
    assert {line.split()[1] for line in capsys.readouterr().out.splitlines()} == sea
    assert run(["vectors", "odd", folder, "ship", "sea", "soup", "storm"]) == 0
    assert capsys.readouterr().out.splitlines()[0].split()[1] == "soup"
    assert run(["vectors", "analogy", folder, "ship", "sea", "soup", "--top", "1", "--multiply"]) == 0
    assert run(["vectors", "cosine", folder, "ship", "soup"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert float(lines[-1]) == pytest.approx(open_words(folder).cosine("ship", "soup"), abs=1e-4)
    for format in ("binary", "text", "glove"):
        file = str(tmp_path / f"v.{format}")
        assert run(["vectors", "convert", folder, file, "--format", format]) == 0
        assert capsys.readouterr().out == f"{file}: 12 words of 12 numbers\n"
        assert open_words(file).near("ship") == open_words(folder).near("ship")
    (tmp_path / "pairs.txt").write_text("ship sea 9\nship soup 1\nsalt pan 8\nsalt dog 3\n")
    assert run(["vectors", "evaluate", folder, "--data", str(tmp_path / "pairs.txt")]) == 0
    found = capsys.readouterr().out
    assert "spearman" in found and "pairs: 1 of 4 left out, since 1 word is missing: dog" in found
    assert run(["vectors", "evaluate", folder, "--data", str(tmp_path / "pairs.txt"), "--jsonl"]) == 0
    assert json.loads(capsys.readouterr().out)["missing"] == ["dog"]
    assert run(["vectors", "near", folder, "shipp"]) == 2
    said = capsys.readouterr().err
    assert said == f"weft vectors near: 'shipp' is not among the 11 words of {folder}; spelled like it: ship\n"
    assert run(["embed", folder, "the ship"]) == 0
    values = json.loads(capsys.readouterr().out)["values"]
    both = np.mean([open_words(folder).vector(word) for word in ("the", "ship")], axis=0)
    assert values == pytest.approx(both.tolist(), abs=1e-6)


def test_averaged_vectors_with_a_linear_map_tell_topics_apart(text: Path, tmp_path: Path) -> None:
    learned(text, tmp_path / "w2v", epochs=5)
    rows = [f"{line},{'sea' if n % 2 == 0 else 'kitchen'}" for n, line in enumerate(text.read_text().splitlines())]
    (tmp_path / "rows.csv").write_text("text,label\n" + "\n".join(rows) + "\n")
    model = weft.finetune(
        str(tmp_path / "rows.csv"),
        task="classify",
        base=str(tmp_path / "w2v"),
        out=str(tmp_path / "run"),
        training={"epochs": 3, "learning_rate": 0.05},
        device="cpu",
        log=quiet,
    )
    found: Any = model(["a storm at sea", "salt in the soup"])
    assert [answer.label for answer in found] == ["sea", "kitchen"]


def test_a_map_leads_from_one_set_of_vectors_to_another(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same vectors, turned: every word is found in them again."""
    learned(text, tmp_path / "a")
    space = open_words(tmp_path / "a")
    turned = np.linalg.qr(np.random.default_rng(1).normal(size=(12, 12)))[0]
    lines = [f"{word}x {' '.join(map(str, row))}" for word, row in zip(space.words, space.matrix @ turned, strict=True)]
    (tmp_path / "b.txt").write_text("\n".join(lines) + "\n")
    (tmp_path / "pairs.tsv").write_text("".join(f"{word}\t{word}x\n" for word in [*space.words, "nowhere"]))
    pairs = read_pairs([tmp_path / "pairs.tsv"])
    assert len(pairs) == 12
    command = ["vectors", "map", str(tmp_path / "a"), str(tmp_path / "b.txt"), "--pairs", str(tmp_path / "pairs.tsv")]
    assert run([*command, "--out", str(tmp_path / "map"), "--holdout", "0.3"]) == 0
    said = capsys.readouterr().out
    assert "1 pairs left out, since words are missing: nowhere, nowherex" in said and "csls" in said
    found, report = learn_map(tmp_path / "a", tmp_path / "b.txt", pairs, holdout=0.3)
    assert report.left_out == 1 and report.learned + report.held_out == 11
    kept = open_map(tmp_path / "map")
    assert kept.near("ship") == found.near("ship")
    assert run(["vectors", "near", str(tmp_path / "a"), "ship", "--through", str(tmp_path / "map"), "--top", "1"]) == 0
    assert capsys.readouterr().out.split()[1] == "shipx"
    assert run(["vectors", "near", str(tmp_path / "a"), "ship", "--through", str(tmp_path)]) == 2
    assert "is not a map: it has no map.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"min_count": 10_000}, "corpus.txt: there is no text to learn from: no word is there 10000 times"),
        ({"width": 0}, "width must be between 1 and 65536, not 0"),
        ({"kind": "glove", "mode": "cbow"}, "mode cbow is one of word2vec's"),
        ({"kind": "word2vex"}, "kind must be one of word2vec, glove, not \"word2vex\"; did you mean 'word2vec'"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing_behind(
    plan: dict[str, Any], message: str, text: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        learned(text, tmp_path / "out", **plan)
    assert "\n" not in str(caught.value) and not (tmp_path / "out").exists()


def test_a_text_of_one_word_is_too_short(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("alone\n")
    with pytest.raises(UserError, match="t.txt: too short: 1 words are left to learn from"):
        learned(tmp_path / "t.txt", tmp_path / "out")
    with pytest.raises(UserError, match="no two known words stand within 10 of each other"):
        (tmp_path / "t.txt").write_text("one\ntwo\nthree\n")
        learned(tmp_path / "t.txt", tmp_path / "out", kind="glove")


def test_a_changed_text_is_noticed(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learned(text, tmp_path / "out")
    text.write_text(text.read_text() + "more sea\n")
    with pytest.raises(UserError, match="the text has changed since the run began"):
        weft.resume(tmp_path / "out", log=quiet)


def test_a_model_without_words_is_no_word_vectors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["vectors", "near", str(tmp_path), "king"]) == 2
    assert run(["vectors", "near", str(tmp_path / "none.bin"), "king"]) == 2
    said = capsys.readouterr().err
    assert "config.json" in said and "none.bin: cannot be read: no such file" in said

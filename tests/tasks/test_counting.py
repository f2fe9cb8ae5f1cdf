"""From a text to a counted model in a run folder, and what the verbs make of it."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import weft
from weft.checkpoint.folder import open_folder
from weft.cli.main import run as cli
from weft.errors import UserError
from weft.nn.rows import Ragged
from weft.runs import pretrain as counting
from weft.tasks.perplexity import perplexity

TEXT = [
    "the students opened their books .",
    "the students opened their exams and the teacher opened the door .",
    "the teacher opened their books , and the students sang .",
    "a student sang to the teacher .",
]


def write(folder: Path, lines: list[str] = TEXT, times: int = 5) -> str:
    path = folder / "corpus.txt"
    path.write_text("\n".join(lines * times) + "\n")
    return str(path)


def counted(folder: Path, out: str = "run", log: Any = lambda text: None, **more: Any) -> Any:
    values: dict[str, Any] = {"model": {"family": "ngram", "order": 3}, "out": str(folder / out)}
    values["text"] = {"files": [str(folder / "corpus.txt")], "dev": more.pop("dev", [])}
    return weft.pretrain(log=log, **{**values, **more})


def test_a_run_folder_with_all_that_belongs_there(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "dev.txt").write_text("the students opened the door .\n")
    said: list[str] = []
    model = counted(tmp_path, log=said.append, dev=[str(tmp_path / "dev.txt")])
    run = tmp_path / "run" / "run"
    line = json.loads((run / "metrics.jsonl").read_text())
    about = json.loads((run / "run.json").read_text())
    assert about["text"]["tokens"] == line["tokens"] and about["parameters"] == 0
    assert line["validation_loss"] == pytest.approx(dict((m.name, m.value) for m in model.card.metrics)["loss"])
    assert model.config.entries == tuple(line["entries"]) and len(model.config.entries) == 3
    assert "What is stored, by order" in (run / "report.html").read_text()
    # Every word of the text has a place, also those that occur once.
    assert model.tokenizer is not None and model.tokenizer.id("exams") is not None
    report = "\n".join(said)
    size = sum(buffer.nbytes for buffer in model.network.buffers())
    assert f"{sum(model.config.entries):,}" in report and f"{size:,}" in report
    assert "held out: perplexity" in report
    assert f"perplexity {math.exp(line['validation_loss']):.2f} of 7 tokens" in report


@pytest.mark.parametrize("together", [1 << 16, 3])
def test_held_out_loss_is_that_of_the_chances(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: int) -> None:
    monkeypatch.setattr(counting, "JUDGED", together)
    write(tmp_path)
    (tmp_path / "dev.txt").write_text("the students opened the door .\n\na zebra sang .\n")
    model = counted(tmp_path, dev=[str(tmp_path / "dev.txt")])
    assert model.tokenizer is not None
    nats, tokens = 0.0, 0
    for text in ("the students opened the door .", "a zebra sang ."):
        ids = [2, *model.tokenizer.ids([text], specials=False)[0], 3]
        assert [model.tokenizer.id_of("start"), model.tokenizer.id_of("end")] == [2, 3]
        for place in range(1, len(ids)):
            scores, _ = model.network.start(Ragged.of([ids[:place]]))
            nats -= scores[0, ids[place]].item()
            tokens += 1
    line = json.loads((tmp_path / "run" / "run" / "metrics.jsonl").read_text())
    assert line["validation_loss"] == pytest.approx(nats / tokens, rel=1e-5)


def test_the_same_text_gives_the_same_file(tmp_path: Path) -> None:
    write(tmp_path)
    counted(tmp_path, "one")
    counted(tmp_path, "two")
    one, two = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two"))
    assert one == two


def test_a_kill_while_saving_leaves_nothing_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path)
    counted(tmp_path, "whole")
    replaced: list[str] = []
    real = os.replace

    def dying(source: Any, target: Any) -> None:
        if Path(target).name == "model.safetensors" and Path(target).parent.name == "run":
            raise KeyboardInterrupt  # as a kill: nothing after this happens
        replaced.append(str(target))
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", dying)
        with pytest.raises(KeyboardInterrupt):
            counted(tmp_path)
    assert not (tmp_path / "run" / "model.safetensors").exists()
    with pytest.raises(UserError, match="model.safetensors"):
        open_folder(tmp_path / "run")
    weft.resume(tmp_path / "run", log=lambda text: None)
    paths = [tmp_path / name / "model.safetensors" for name in ("run", "whole")]
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert not list((tmp_path / "run" / "run").glob(".model.*"))
    said: list[str] = []
    weft.resume(tmp_path / "run", log=said.append)
    assert any("finished already" in text for text in said)


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"model": {"family": "ngram", "order": 9}}, "order must be between 1 and 7, not 9"),
        ({"model": {"family": "ngram", "smoothing": "good-turing"}}, "smoothing must be one of kneser-ney"),
        ({"model": {"family": "ngram", "smoothing": "back-off"}}, "weft arpa read"),
        ({"model": {"family": "ngram", "silent": [1]}}, "silent cannot be set"),
        ({"training": {"steps": 10}}, "training.steps does not apply to an n-gram model"),
        ({"objective": {"length": 10}}, "length and rows do not apply"),
    ],
)
def test_what_means_nothing_is_refused_before_anything_is_made(
    tmp_path: Path, settings: dict[str, Any], words: str
) -> None:
    write(tmp_path)
    with pytest.raises(UserError, match=words):
        counted(tmp_path, **settings)
    assert not (tmp_path / "run").exists()


def test_a_text_shorter_than_the_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, ["loom"], 1)
    flags = ["--model", "ngram", "--set", "model.order=5", "--text", path, "--out", str(tmp_path / "run")]
    assert cli(["pretrain", *flags]) == 2
    told = capsys.readouterr().err.strip().splitlines()[-1]
    assert "shorter than the order" in told and "try model.order=3" in told
    assert not (tmp_path / "run").exists()


def test_orders_fall_on_text_that_goes_on_alike(tmp_path: Path) -> None:
    write(tmp_path, times=4)
    (tmp_path / "dev.txt").write_text("\n".join(TEXT) + "\n")
    losses = []
    for order in (1, 2, 3):
        dev = [str(tmp_path / "dev.txt")]
        model = counted(tmp_path, f"run{order}", model={"family": "ngram", "order": order}, dev=dev)
        losses.append(model.card.metrics[0].value)
    assert losses[0] > losses[1] > losses[2]


def test_maximum_likelihood_says_plainly_what_it_cannot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path)
    (tmp_path / "dev.txt").write_text("the door opened .\n")
    said: list[str] = []
    mle = {"family": "ngram", "order": 3, "smoothing": "maximum-likelihood"}
    model = counted(tmp_path, log=said.append, model=mle, dev=[str(tmp_path / "dev.txt")])
    assert any("perplexity infinite: " in text and "probability 0" in text for text in said)
    assert model("the students opened", max_tokens=1).text.strip() == "their"
    out = str(tmp_path / "run")
    assert cli(["generate", out, "the door opened"]) == 2
    assert "the context 'door opened' never occurs in the text" in capsys.readouterr().err
    assert cli(["generate", out, "the zebra opened"]) == 2
    assert "the context 'zebra opened' never occurs" in capsys.readouterr().err, "also a word that is not known"
    assert cli(["perplexity", out, "--text", str(tmp_path / "dev.txt"), "--documents", "line"]) == 0
    assert "of the tokens had probability 0" in capsys.readouterr().out
    found = perplexity(model.opened, ["the door opened ."])
    assert found.per_token.value == math.inf and found.impossible > 0
    assert perplexity(model.opened, [TEXT[0]]).impossible == 0
    assert cli(["choose", out, "the students", "--choice", "opened", "--choice", "door"]) == 0
    assert "1.0000" in capsys.readouterr().out
    assert cli(["choose", out, "zebra", "--choice", "door", "--choice", "cat"]) == 2
    assert "a probability of 0" in capsys.readouterr().err
    assert Path(path).exists()


@pytest.mark.parametrize("smoothing", ["kneser-ney", "maximum-likelihood"])
def test_every_way_to_write(tmp_path: Path, smoothing: str) -> None:
    write(tmp_path)
    model = counted(tmp_path, model={"family": "ngram", "order": 3, "smoothing": smoothing})
    for options in ({}, {"beam_size": 4}, {"temperature": 1.0, "seed": 3}, {"top_k": 5, "n": 2}, {"slide": True}):
        answer = model("the students", max_tokens=12, **options)
        assert answer.finish_reason in ("end", "length") and len(answer.tokens) <= 12
    assert "opened their" in model("the students", max_tokens=2).text


def test_info_tells_what_is_stored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path)
    model = counted(tmp_path)
    assert cli(["info", str(tmp_path / "run"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["bytes of tables"] == sum(buffer.nbytes for buffer in model.network.buffers())
    assert told["stored as"] == "float64" and told["parameters"] == 0


def test_tables_keep_their_kinds(tmp_path: Path) -> None:
    write(tmp_path)
    counted(tmp_path)
    state = open_folder(tmp_path / "run").network.state_dict()
    assert state["keys_2"].dtype == torch.int64 and state["chances_2"].dtype == torch.float64


def test_tables_that_no_counting_makes_are_refused(tmp_path: Path) -> None:
    write(tmp_path)
    counted(tmp_path)
    path = tmp_path / "run" / "model.safetensors"
    whole = load_file(path)
    keys = whole["keys_2"]
    for wrong in (keys.flip(0).contiguous(), keys + 10**12, keys - keys[0] - 1):
        save_file({**whole, "keys_2": wrong}, path)
        with pytest.raises(UserError, match="out of order or lead nowhere: keys_2"):
            open_folder(tmp_path / "run")


def test_arpa_by_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path)
    counted(tmp_path)
    arpa = str(tmp_path / "m.arpa.gz")
    assert cli(["arpa", "write", str(tmp_path / "run"), arpa]) == 0
    assert cli(["arpa", "read", arpa, "--out", str(tmp_path / "again")]) == 0
    assert cli(["generate", str(tmp_path / "again"), "the students", "--max-tokens", "2"]) == 0
    assert "opened their" in capsys.readouterr().out
    (tmp_path / "bad.arpa").write_text("\\data\\\nngram 1=x\n")
    assert cli(["arpa", "read", str(tmp_path / "bad.arpa"), "--out", str(tmp_path / "never")]) == 2
    told = capsys.readouterr().err
    assert told.startswith("weft arpa read: ") and "bad.arpa line 2" in told
    assert not (tmp_path / "never").exists()

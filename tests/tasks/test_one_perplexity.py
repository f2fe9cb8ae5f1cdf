"""What pretrain says of held-out text and what `weft perplexity` says of the same file are one number."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.training.small import stories
from weft.cli.main import run
from weft.tasks.perplexity import perplexity, read_documents

SENTENCES = [sentence for line in stories(30).splitlines() for sentence in line.split(". ")]
TRAINING = {"steps": 2, "batch": 4, "evaluate_every": 2}
MODELS: dict[str, dict[str, Any]] = {
    "ngram": {"model": {"family": "ngram", "order": 3}},
    "ngram of lines that are given": {"model": {"family": "ngram", "order": 2}, "text": {"documents": "file"}},
    "gpt2": {"model": {"family": "gpt2", "size": "1x64"}, "objective": {"length": 32}, "training": TRAINING},
    "gpt2 of words": {
        "model": {"family": "gpt2", "size": "1x64"},
        "objective": {"length": 32},
        "tokenizer": {"kind": "word", "size": 300},
        "training": TRAINING,
    },
    "gpt2 of documents": {
        "model": {"family": "gpt2", "size": "1x64"},
        "objective": {"length": 512, "rows": "documents"},
        "training": TRAINING,
    },
    "lstm": {"model": {"family": "lstm", "size": "1x64"}, "training": TRAINING},
    "lstm of words": {
        "model": {"family": "lstm", "size": "1x64"},
        "tokenizer": {"kind": "whitespace", "size": 300},
        "training": TRAINING,
    },
}


@pytest.mark.parametrize("name", MODELS)
def test_one_perplexity(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "train.txt").write_text("\n".join(SENTENCES[:-40]) + "\n")
    (tmp_path / "dev.txt").write_text("\n".join(SENTENCES[-40:]) + "\n")
    given = MODELS[name]
    given = {"tokenizer": {"size": 300}, **given} if "ngram" not in name else given
    text = {"files": [str(tmp_path / "train.txt")], "dev": [str(tmp_path / "dev.txt")], **given.get("text", {})}
    model = weft.pretrain(**{**given, "text": text}, out=str(tmp_path / "run"), device="cpu", log=lambda text: None)
    loss = next(metric.value for metric in model.card.metrics if metric.name == "loss")
    command = ["perplexity", str(tmp_path / "run"), "--text", str(tmp_path / "dev.txt"), "--device", "cpu"]
    # Windows side by side, as rows are; with the usual stride each token would have more before it.
    command += ["--stride", "32"] if "gpt2" in name and "documents" not in name else []
    assert run([*command, "--jsonl"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["per_token"]["value"] == pytest.approx(math.exp(loss), rel=1e-5)
    documents = 1 if "given" in name else 40
    assert found["n_ends"] == found["n_documents"] == documents and found["left_out"] == 0
    assert found["documents"] == ("file" if "given" in name else "line")
    assert run([*command, "--no-count-ends", "--jsonl"]) == 0
    less = json.loads(capsys.readouterr().out)
    assert less["n_tokens"] == found["n_tokens"] - documents and less["n_ends"] == 0
    assert run(command) == 0
    said = capsys.readouterr().out
    assert f"the {documents} ends of documents among them" in said and "(as in training)" in said


def test_whole_files_are_read_as_in_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Line ends of another system, another encoding and a last line without an end change no perplexity."""
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "train.txt").write_text("\n".join(SENTENCES[:-40]) + "\n")
    text = "\n".join(SENTENCES[-40:]) + " caf\u00e9"
    (tmp_path / "dev.txt").write_bytes(text.replace("\n", "\r\n").encode("cp1252"))
    files = {"files": [str(tmp_path / "train.txt")], "dev": [str(tmp_path / "dev.txt")], "documents": "file"}
    settings = {"model": {"family": "ngram", "order": 3}, "tokenizer": {"kind": "character"}, "text": files}
    model = weft.pretrain(None, settings, out=str(tmp_path / "run"), log=lambda text: None)
    loss = next(metric.value for metric in model.card.metrics if metric.name == "loss")
    found = perplexity(model.opened, read_documents([str(tmp_path / "dev.txt")]), count_ends=True)
    assert found.per_token.value == pytest.approx(math.exp(loss), rel=1e-6)
    assert found.n_bytes == len(f"{text}\n".encode())

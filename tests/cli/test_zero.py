"""`weft perplexity` and `weft choose` as a user meets them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from tests.cli.test_verbs import LINES, ok, refused
from weft.cli.main import run


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus, a small GPT-2, and a BERT, which does not write."""
    place = tmp_path_factory.mktemp("zero")
    (place / "a.txt").write_text("\n".join(LINES) + "\n")
    (place / "b.txt").write_text(" = Loom = \n The loom 's age @-@ old thread , was old . \n")
    (place / "empty.txt").write_text("")
    for model, kind in (("gpt2", "bpe"), ("bert", "wordpiece")):
        learn = ["tokenizer", "learn", "--kind", kind, "--size", "290", "--text", str(place / "a.txt")]
        assert run([*learn, "--out", str(place / kind)]) == 0
        made = [
            "new",
            "--model",
            model,
            "--size",
            "1x64",
            "--tokenizer",
            str(place / kind),
            "--set",
            "model.context=32",
        ]
        assert run([*made, "--out", str(place / model)]) == 0
    rows = [
        {"prompt": "The weaver", "choices": ["said", "warp"], "label": "said"},
        {"prompt": "Every", "choices": ["thread", "old", "a"], "label": 2},
    ]
    (place / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (place / "questions.csv").write_text(
        'prompt,choices,label\nThe weaver,said|warp,said\nEvery,"[""a"", ""b|c""]",1\n'
    )
    return place


def test_perplexity(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (place / "a.txt").read_text()
    said = ok(capsys, "perplexity", place / "gpt2", "--text", place / "a.txt", place / "b.txt", "--stride", 8)
    assert "perplexity per token" in said and "bits per byte" in said and "2 documents" in said
    assert "windows of 32 tokens, 8 apart" in said and "after <|endoftext|>" in said and "read as" not in said
    found = json.loads(ok(capsys, "perplexity", place / "gpt2", "--text", place / "a.txt", "--jsonl"))
    assert found["n_words"] == len(text.split()) and found["n_bytes"] == len(text.encode())
    assert (found["length"], found["stride"]) == (32, 16)
    value = math.exp(found["nats"] / found["n_tokens"])
    assert found["per_token"]["value"] == pytest.approx(value) and 200 < value < 400, "fresh weights know nothing"
    lines = json.loads(
        ok(capsys, "perplexity", place / "gpt2", "--text", place / "a.txt", "--documents", "line", "--jsonl")
    )
    assert lines["n_documents"] == len(LINES) and lines["n_words"] == found["n_words"]
    said = ok(capsys, "perplexity", place / "gpt2", "--text", place / "b.txt", "--detokenize", "wikitext")
    raw, clean = (place / "b.txt").read_text(), "= Loom =\nThe loom's age-old thread, was old.\n"
    assert "bits per byte read" in said and f"{len(raw)} bytes, 1 document;" in said
    assert f"read as {len(clean)} bytes after --detokenize wikitext" in said


def test_choose(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    choices = ["--choice", "said that", "--choice", "warp"]
    said = ok(capsys, "choose", place / "gpt2", "The weaver", *choices, "--normalize", "byte")
    assert "probability" in said and "said that" in said and len(said.splitlines()) == 3
    told = [
        json.loads(line) for line in ok(capsys, "choose", place / "gpt2", "a", "b", *choices, "--jsonl").splitlines()
    ]
    assert [row["prompt"] for row in told] == ["a", "b"]
    for row in told:
        assert row["text"] == row["options"][0]["text"] and row["truncated"] is False
        assert sum(option["probability"] for option in row["options"]) == pytest.approx(1)
    long = " ".join(LINES)
    assert run(["choose", str(place / "gpt2"), long, "--choice", "a", "--choice", "b", "--slide"]) == 0
    assert "the prompt was read in part" in capsys.readouterr().err
    assert "context of 32" in refused(capsys, "choose", place / "gpt2", long, "--choice", "a", "--choice", "b")


def test_questions_in_files(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("questions.jsonl", "questions.csv"):
        said = ok(capsys, "choose", place / "gpt2", "--data", place / name, "--normalize", "prior")
        assert "accuracy" in said and "2 questions, normalize: prior" in said
    lines = ok(capsys, "choose", place / "gpt2", "--data", place / "questions.csv", "--jsonl").splitlines()
    assert [json.loads(line)["right"] for line in lines] == [[0], [1]]
    assert json.loads(lines[1])["choices"] == ["a", "b|c"]


@pytest.mark.parametrize(
    "arguments, fault",
    [
        ("perplexity gpt2 --text nowhere.txt", "nowhere.txt: no such file"),
        ("perplexity gpt2 --text empty.txt", "no token to predict: the text is empty"),
        (
            "perplexity gpt2 --text a.txt --length 8 --stride 9",
            "a stride of 9 tokens: it must be between 1 and 8, the window",
        ),
        ("perplexity gpt2 --text a.txt --stride 0", "a stride of 0 tokens"),
        ("perplexity gpt2 --text a.txt --length 33", "a window of 33 tokens: this model reads between 1 and 32"),
        ("perplexity gpt2 --text a.txt --detokenize wiki", "--detokenize 'wiki' is not one of wikitext, ptb"),
        ("perplexity gpt2 --text a.txt --documents page", "--documents 'page' is not one of auto, line, block, file"),
        ("perplexity bert --text a.txt", "this bert model does not generate text"),
        ("choose bert The --choice a --choice b", "bert: has no head for choose: it has words, next; weft finetune"),
        ("choose gpt2 The --choice a", "one option only, 'a': there is nothing to choose from"),
        ("choose gpt2 The", "no choices: give --choice at least twice"),
        ("choose gpt2 --choice a", "no prompt: give"),
        ("choose gpt2 The --choice a --choice ", "prompt 1: choice 2 is empty"),
        ("choose gpt2 The --choice a --choice a", "choice 'a' is there twice"),
        (
            "choose gpt2 The --choice a --choice b --normalize words",
            "--normalize 'words' is not one of none, token, byte, prior",
        ),
        ("choose gpt2 The --data questions.csv", "--data brings its own prompts and choices"),
        ("choose gpt2 --data nowhere.csv", "nowhere.csv: no such file"),
        (
            "choose gpt2 --data label.csv",
            "label.csv line 2: answer '2' is neither one of the 2 options nor a number from 0",
        ),
        ("choose gpt2 --data list.jsonl", "list.jsonl line 1: column 'choices' holds no list of options"),
        ("choose gpt2 --data hole.jsonl", "hole.jsonl line 1: column 'choices' holds no text as option 2"),
        (
            "choose gpt2 --data columns.csv",
            "columns.csv: no column with the options; it has prompt, picks, label; name it with",
        ),
    ],
)
def test_mistakes_get_one_line(
    place: Path,
    arguments: str,
    fault: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(place)
    (place / "label.csv").write_text("prompt,choices,label\nThe,a|b,2\n")
    (place / "columns.csv").write_text("prompt,picks,label\nThe,a|b,2\n")
    (place / "list.jsonl").write_text('{"prompt": "The", "choices": {"a": 1}, "label": 0}\n')
    (place / "hole.jsonl").write_text('{"prompt": "The", "choices": ["a", ""], "label": 0}\n')
    assert fault in refused(capsys, *arguments.split(" "))


def test_a_model_that_reads_and_writes_is_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = ["new", "--model", "seq2seq", "--size", "1x64", "--tokenizer", str(place / "bpe")]
    assert run([*made, "--out", str(place / "seq2seq")]) == 0
    capsys.readouterr()
    assert "is an encoder-decoder" in refused(
        capsys, "choose", place / "seq2seq", "The", "--choice", "a", "--choice", "b"
    )
    assert "is an encoder-decoder" in refused(capsys, "perplexity", place / "seq2seq", "--text", place / "a.txt")

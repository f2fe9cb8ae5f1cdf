"""The command line as a user meets it: what it prints, its exit status, and what it says when something is wrong."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import typer

from tests.children import start_child
from weft.checkpoint.families import FAMILIES
from weft.cli.main import app, run

WEFT = str(Path(sys.executable).parent / "weft")
LINES = ["The weaver said that the loom was old.", "Every thread of the weft crosses the warp.", "She sang."] * 4


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus, tokenizers and two small models, all made by the command line."""
    place = tmp_path_factory.mktemp("cli")
    (place / "corpus").mkdir()
    (place / "corpus" / "a.txt").write_text("\n".join(LINES))
    (place / "corpus" / "b.txt").write_text("A shuttle flew.\n")
    corpus, small = str(place / "corpus" / "*.txt"), ["--set", "model.context=32"]
    for kind, size in (("wordpiece", "100"), ("bpe", "290")):
        learn = ["tokenizer", "learn", "--kind", kind, "--size", size, "--text", corpus]
        assert run([*learn, "--out", str(place / kind)]) == 0
    for model, kind in (("bert", "wordpiece"), ("gpt2", "bpe")):
        made = ["new", "--model", model, "--size", "1x64", "--tokenizer", str(place / kind), *small]
        assert run([*made, "--out", str(place / model)]) == 0
    return place


def ok(capsys: pytest.CaptureFixture[str], *arguments: Any) -> str:
    status = run([str(argument) for argument in arguments])
    said = capsys.readouterr()
    assert status == 0, said.err
    return said.out


def refused(capsys: pytest.CaptureFixture[str], *arguments: Any) -> str:
    """The one line that a mistake gets."""
    assert run([str(argument) for argument in arguments]) == 2
    said = capsys.readouterr()
    assert said.out == "" and len(said.err.splitlines()) == 1, said
    return said.err.strip()


def test_files_after_the_flag_are_read_too(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The shell turns --text corpus/*.txt into several words."""
    a, b = place / "corpus" / "a.txt", place / "corpus" / "b.txt"
    said = ok(capsys, "tokenizer", "learn", "--size", 100, "--text", a, b, "--out", tmp_path / "t")
    assert "from 13 documents" in said
    glob = (place / "wordpiece" / "tokenizer.json").read_bytes()
    assert (tmp_path / "t" / "tokenizer.json").read_bytes() == glob


def test_a_vocabulary_for_a_family(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = place / "corpus" / "a.txt"
    ok(
        capsys,
        "tokenizer",
        "learn",
        "--model",
        "roberta-base",
        "--size",
        270,
        "--text",
        corpus,
        "--out",
        tmp_path / "t",
    )
    ok(capsys, "new", "--model", "roberta", "--size", "1x64", "--tokenizer", tmp_path / "t", "--out", tmp_path / "m")
    said = ok(capsys, "fill", tmp_path / "m", "The <mask> sang", "--jsonl")
    assert json.loads(said)["text"].startswith("The ") and said.count("probability") == 5
    told = json.loads(ok(capsys, "info", tmp_path / "m", "--json"))
    assert told["tokenizer"]["kind"] == "bpe" and told["tokenizer"]["roles"]["separator"] == "</s>"
    assert told["sizes"]["padding"] == 1 and told["format"] == "published"


def test_show(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = ok(capsys, "tokenizer", "show", place / "wordpiece", "The weaver sang.")
    assert "[CLS]" in said and "'weaver'" in said and "4-10" in said
    told = json.loads(ok(capsys, "tokenizer", "show", place / "bpe", "The loom", "--json"))
    assert told["decoded"] == "The loom"


def test_models_and_info(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = {row["size"]: row for row in json.loads(ok(capsys, "models", "--json"))}
    # As published, to the parameter: BERT with both pre-training heads, GPT-2 with its tied one.
    assert rows["bert-base"]["parameters"] == 110_106_428 and rows["bert-large"]["parameters"] == 336_226_108
    assert rows["gpt2"]["parameters"] == 124_439_808 and rows["gpt2-xl"]["parameters"] == 1_557_611_200
    assert rows["openai-gpt"]["parameters"] == 116_534_784
    assert abs(rows["gpt3-175b"]["parameters"] / 175e9 - 1) < 0.01
    assert rows["gpt3-xl"]["heads"] == 24 and rows["gpt3-13b"]["width"] == 5120
    assert rows["gpt2"]["bf16"] == 2 * rows["gpt2"]["parameters"]
    # By hand: 12 layers of 4 + 8 squares of the width, the table of words, scores and values over the context.
    layers = 12 * 12 * 768**2
    assert rows["bert-base"]["flops_per_token"] == 2 * (layers + 30522 * 768) + 4 * 12 * 768 * 512
    assert rows["gpt2"]["flops_per_token"] == 2 * (layers + 50257 * 768) + 4 * 12 * 768 * 512  # half of 1024 is seen
    assert rows["bert-tiny"]["can"] == ["fill", "embed"] and rows["gpt2"]["can"] == ["generate", "embed"]
    assert rows["t5-small"]["can"] == ["fill", "translate", "generate"]
    assert rows["opus-mt"]["can"] == ["translate", "generate"]
    said = ok(capsys, "models")
    assert "bert-tiny" in said and all(f"\n{family}: " in said for family in FAMILIES)
    told = json.loads(ok(capsys, "info", place / "gpt2", "--json"))
    assert told["family"] == "gpt2" and told["task"] == "complete" and told["sizes"]["context"] == 32
    assert told["tokenizer"]["vocabulary"] == told["sizes"]["vocabulary"] == told["heads"]["words"]
    assert "parameters      110,106,428" in ok(capsys, "info", "bert-base")


def test_a_size_whose_heads_are_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "m"
    ok(capsys, "new", "--model", "gpt2", "--size", "1x96", "--set", "model.heads=6", "--out", out)
    assert json.loads((out / "config.json").read_text())["n_head"] == 6


def test_generate(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = ok(capsys, "generate", place / "gpt2", "The weaver said", "--max-tokens", 5)
    assert said.startswith("The weaver said")
    again = ok(capsys, "generate", place / "gpt2", "The weaver said", "--max-tokens", 5)
    assert said == again
    lines = ok(capsys, "generate", place / "gpt2", "a", "b", "--max-tokens", 4, "--top-p", 0.9, "--seed", 4, "--jsonl")
    told = [json.loads(line) for line in lines.splitlines()]
    assert [answer["prompt"] for answer in told] == ["a", "b"]
    assert all(answer["finish_reason"] in ("length", "end") for answer in told)
    whole = json.loads(ok(capsys, "generate", place / "gpt2", "--temperature", 1, "--jsonl"))
    assert whole["finish_reason"] in ("context", "end")


# Each flag of `weft generate`, and what holds for every answer that it gives.
FLAGS: dict[str, tuple[list[Any], Any]] = {
    "least": (["--temperature", 1, "--min-tokens", 6], lambda told: len(told["tokens"]) == 6),
    "min-p": (["--min-p", 0.5], lambda told: len(told["tokens"]) <= 6),
    "typical": (["--typical", 0.3], lambda told: len(told["tokens"]) <= 6),
    "beam": (["--beam-size", 4], lambda told: told["best"] == [] and told["score"] > -9),
    "n": (["--beam-size", 4, "--n", 3], lambda told: [len(told["best"]), told["best"][0]["text"]] == [3, told["text"]]),
    "samples": (["--top-k", 9, "--n", 3], lambda told: len(told["best"]) == 3),
    "length-penalty": (
        ["--beam-size", 3, "--length-penalty", 0],
        lambda told: told["score"] == told["logprob"],
    ),
    "groups": (["--beam-size", 4, "--groups", 2, "--diversity", 9.5, "--n", 4],
               lambda told: len({each["tokens"][0] for each in told["best"]}) > 1),
    "repetition-penalty": (["--repetition-penalty", 1e9], lambda told: len(set(told["tokens"])) == len(told["tokens"])),
    "no-repeat": (["--no-repeat", 1], lambda told: len(set(told["tokens"])) == len(told["tokens"])),
    "ban": (["--temperature", 3, "--ban", "e", "--ban", "a"], lambda told: len(told["tokens"]) <= 6),
    "allow": (["--temperature", 1, "--allow", "the"], lambda told: set(told["text"]) <= set(" the")),
    "choice": (["--beam-size", 3, "--choice", " yes", "--choice", " no"], lambda told: told["text"] in (" yes", " no")),
    "force": (["--force", " was"], lambda told: told["text"].startswith(" was")),
    "slide": (["--slide", "--max-tokens", 40], lambda told: len(told["tokens"]) == 40 and told["n_windows"] > 1),
    "logprobs": (["--logprobs", 2], lambda told: [len(each["alternatives"]) for each in told["pieces"]] == [2] * 6),
}  # fmt: skip


@pytest.mark.parametrize("flag", FLAGS)
def test_flags_of_generate(flag: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, holds = FLAGS[flag]
    for line in ok(
        capsys, "generate", place / "gpt2", "The loom", "--max-tokens", 6, *arguments, "--jsonl"
    ).splitlines():
        assert holds(json.loads(line)), line


def test_generate_as_it_is_written(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["generate", place / "gpt2", "The loom", "--max-tokens", 9, "--temperature", 1, "--seed", 3]
    assert ok(capsys, *arguments, "--stream") == ok(capsys, *arguments)
    assert ok(capsys, "generate", place / "gpt2", "The loom", "--max-tokens", 0, "--stream") == "The loom\n"
    assert (
        run([str(each) for each in ["generate", place / "gpt2", "a", "--beam-size", 3, "--n", 2, "--max-tokens", 2]])
        == 0
    )
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 2 and said.err.count("score: ") == 2


def test_fill_and_embed(place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert "gap 1:" in ok(capsys, "fill", place / "bert", "the [MASK] of the loom", "--top", 3)
    told = json.loads(ok(capsys, "fill", place / "bert", "the [MASK] of the loom", "--jsonl"))
    assert len(told["gaps"][0]) == 5
    texts = "The loom.\n\nA much longer text " + "with many words " * 30 + "\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(texts.encode())))
    lines = [json.loads(line) for line in ok(capsys, "embed", place / "bert").splitlines()]
    assert len(lines) == 3, "one vector per line, blank ones too"
    assert len(lines[0]["values"]) == 64 and lines[1]["n_tokens"] == 2
    assert lines[0]["n_windows"] == 1 and lines[2]["n_windows"] > 3 and not lines[2]["truncated"]
    ok(capsys, "embed", place / "bert", "The loom.", "--out", place / "v.npy", "--normalize")
    vector = numpy.load(place / "v.npy")
    assert vector.shape == (1, 64) and numpy.isclose(numpy.linalg.norm(vector), 1.0)


def test_swapped_blocks(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = ok(
        capsys, "new", "--model", "gpt2", "--size", "1x64", "--tokenizer", place / "bpe", "--out", tmp_path / "m",
        "--set", "model.positions=rotary", "--set", "model.norm=rms", "--set", "model.activation=gated-silu",
    )  # fmt: skip
    assert "weft-gpt2" in said
    assert ok(capsys, "generate", tmp_path / "m", "The", "--max-tokens", 3).startswith("The")


MISTAKES = [
    (["generate", "{gpt2}", "x", "--device", "meta"], "device 'meta' is not cpu, cuda"),
    (["generate", "{gpt2}", "x", "--seed", "9" * 20], "a seed must be between 0 and"),
    (["info", "x" * 300], "file name too long"),
    (["info", "~nosuchuser/x"], "not a model folder"),
    (["info", "bert"], "'bert' is a family, not a model folder"),
    (["info", ""], "not a model folder"),
    (["new", "--model", "bert-tiny", "--out", "x" * 300], "file name too long"),
    (["new", "--model", "bert", "--set", "model=3", "--out", "{out}"], "only keys of the section model can be set"),
    (["new", "--model", "bert", "--set", "model.norm_epsilon=inf", "--out", "{out}"], "norm_epsilon must be"),
    (["tokenizer", "learn", "--text", "{corpus}", "--size", "9" * 12, "--out", "{out}"], "is too large: at most"),
    (["tokenizer", "learn", "--text", "x" * 300, "--out", "{out}"], "x"),
    (["fly"], "weft fly: No such command 'fly'."),
    (["generate"], "Missing argument 'MODEL'."),
    (["generate", "{gpt2}", "x", "--max-tokens", "many"], "weft generate: Invalid value for '--max-tokens'"),
    (["generate", "{gpt2}", "--toknes", "3"], "No such option: --toknes"),
    (["generate", "{gpt2}", "x", "--temperature", "-1"], "temperature must be 0 or more, not -1.0"),
    (["generate", "{gpt2}", "x", "--max-tokens", "-3"], "max_tokens must be 0 or more, not -3"),
    (["generate", "{gpt2}", "word " * 50], "more than the model's context of 32"),
    (["generate", "{bert}", "x"], "does not generate text"),
    (["generate", "{gpt2}", "x", "--beam-size", "0"], "beam_size must be at least 1, not 0"),
    (["generate", "{gpt2}", "x", "--beam-size", "2", "--n", "3"], "a beam of 2 gives 1 to 2 texts, not 3"),
    (["generate", "{gpt2}", "x", "--beam-size", "2", "--top-k", "3"], "does not sample: leave out top_k"),
    (["generate", "{gpt2}", "x", "--beam-size", "4", "--groups", "3"], "cannot be divided into 3 equal groups"),
    (["generate", "{gpt2}", "x", "--beam-size", "4", "--groups", "2", "--diversity", "-1"], "diversity must be 0"),
    (["generate", "{gpt2}", "x", "--n", "3"], "greedy search gives one text, not 3"),
    (["generate", "{gpt2}", "x", "--length-penalty", "2"], "length_penalty needs a beam"),
    (["generate", "{gpt2}", "x", "--repetition-penalty", "-1"], "repetition_penalty must be above 0"),
    (["generate", "{gpt2}", "x", "--no-repeat", "-1"], "must be 0 or more, not -1"),
    (["generate", "{gpt2}", "x", "--min-tokens", "-1"], "must be 0 or more, not -1"),
    (["generate", "{gpt2}", "x", "--min-p", "2"], "min_p must be above 0 and at most 1"),
    (["generate", "{gpt2}", "x", "--typical", "0"], "typical must be above 0 and at most 1"),
    (["generate", "{gpt2}", "x", "--stop", ""], "a stop string cannot be empty"),
    (["generate", "{gpt2}", "x", "--ban", ""], "a banned word cannot be empty"),
    (["generate", "{gpt2}", "x", "--choice", "y", "--force", "z"], "leaves no room for a forced beginning"),
    (["generate", "{gpt2}", "x", "--slide"], "no length limit"),
    (["generate", "{gpt2}", "x", "--logprobs", "2"], "--logprobs are printed as JSON: give --jsonl too"),
    (["generate", "{gpt2}", "x", "--logprobs", "-2", "--jsonl"], "logprobs must be 0 or more, not -2"),
    (["generate", "{gpt2}", "x", "y", "--stream"], "--stream takes one prompt, not 2"),
    (["generate", "{gpt2}", "x", "--stream", "--jsonl"], "give one of them"),
    (["generate", "{gpt2}", "x", "--stream", "--beam-size", "2"], "only one text can be streamed"),
    (["generate", "nowhere/at/all"], "'nowhere/at/all' is not a model folder"),
    (["generate", "{gpt2}", "x", "--device", "warp"], "device 'warp' is not cpu, cuda, cuda:NUMBER or mps"),
    (["fill", "{bert}", "no gap"], "no [MASK] in 'no gap'"),
    (["fill", "{gpt2}", "x"], "fills no gaps"),
    (["embed", "{bert}", "x", "--pooling", "maen"], "not one of mean, first, max; did you mean 'mean'?"),
    (["embed", "{bert}", "x", "--out", "v.csv"], "v.csv: vectors of a text are written as .npy, .npz, .jsonl"),
    (["info", "{empty}"], "it has no config.json"),
    (["finetune", "--task", "classify", "--data", "{nothing}", "--model", "{bert}", "--out", "{out}"], "as --base"),
    (["new", "--model", "brt", "--out", "{out}"], "no model is called 'brt'; did you mean 'bert'?"),
    (["new", "--model", "bert", "--size", "2x100", "--out", "{out}"], "not a multiple of 64"),
    (["new", "--model", "bert", "--size", "2x288", "--out", "{out}"], "such as model.heads=4"),
    (["new", "--model", "gpt2", "--size", "6x288", "--set", "model.heads=7", "--out", "{out}"], "7 equal heads"),
    (["new", "--model", "bert", "--size", "big", "--out", "{out}"], "is not LAYERSxWIDTH such as 3x256, nor one of"),
    (["new", "--model", "bert", "--set", "model.layer=3", "--out", "{out}"], "did you mean 'layers'?"),
    (["new", "--model", "bert", "--set", "model.positions=learnt", "--out", "{out}"], "did you mean 'learned'?"),
    (["new", "--model", "bert", "--set", "layers=3", "--out", "{out}"], "--set layers: only keys of the section model"),
    (["new", "--model", "bert", "--set", "model.heads=7", "--out", "{out}"], "7 equal heads; try heads=6"),
    (["new", "--model", "bert-tiny", "--out", "{full}"], "already there and not empty"),
    (["new", "--model", "bert-tiny", "--tokenizer", "nowhere", "--out", "{out}"], "nowhere"),
    (["tokenizer", "show", "nowhere", "x"], "weft tokenizer show: 'nowhere' is neither a tokenizer folder nor a file"),
    (["tokenizer", "show", "{empty}", "x"], "{empty}"),
    (["tokenizer", "learn", "--text", "gone.txt", "--out", "{out}"], "gone.txt"),
    (["tokenizer", "learn", "--text", "{binary}", "--out", "{out}"], "a.txt line 1: holds a NUL byte"),
    (["tokenizer", "learn", "--text", "{nothing}", "--out", "{out}"], "there is no text to learn"),
    (["tokenizer", "learn", "--text", "{dangling}", "--out", "{out}"], "dangling.txt"),
    (["tokenizer", "learn", "--text", "{damaged}", "--out", "{out}"], "l.txt line 2: byte 0xe9 is not UTF-8 text"),
    (["tokenizer", "learn", "--text", "{corpus}", "--kind", "wordpeice", "--out", "{out}"],
     "did you mean 'wordpiece'?"),
    (["tokenizer", "learn", "--text", "{corpus}", "--size", "3", "--out", "{out}"], "3"),
    (["tokenizer", "learn", "--text", "{corpus}", "--out", "{full}"], "already there and not empty"),
    (["tokenizer", "learn", "--text", "{csv}", "--column", "txt", "--out", "{out}"], "did you mean 'text'?"),
]  # fmt: skip


@pytest.mark.parametrize("arguments, message", MISTAKES, ids=lambda value: str(value)[:60])
def test_mistakes_get_one_line(
    arguments: list[str], message: str, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.txt").write_bytes(b"\x00\x01\x02binary\xff")
    (tmp_path / "l.txt").write_bytes("caf\xe9\n".encode() + b"caf\xe9\n")
    (tmp_path / "n.txt").write_text("")
    (tmp_path / "d.csv").write_text("label,text\n1,hello\n")
    (tmp_path / "dangling.txt").symlink_to(tmp_path / "gone")
    names = {
        "gpt2": place / "gpt2", "bert": place / "bert", "full": place / "bert", "corpus": place / "corpus" / "a.txt",
        "empty": tmp_path / "empty", "binary": tmp_path / "a.txt", "damaged": tmp_path / "l.txt",
        "nothing": tmp_path / "n.txt", "csv": tmp_path / "d.csv", "dangling": tmp_path / "dangling.txt",
        "out": tmp_path / "out",
    }  # fmt: skip
    before = sorted(tmp_path.iterdir())
    said = refused(capsys, *(argument.format(**names) for argument in arguments))
    assert message.format(**names) in said
    assert sorted(tmp_path.iterdir()) == before, "something was left behind"


def test_bad_rows_can_be_skipped_and_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "d.csv").write_text("label,text\n1,hello there\n1\n0,good bye\n")
    learn = ["tokenizer", "learn", "--kind", "character", "--text", tmp_path / "d.csv"]
    assert "d.csv line 3" in refused(capsys, *learn, "--out", tmp_path / "a")
    assert run([*map(str, learn), "--out", str(tmp_path / "b"), "--on-bad-row", "skip"]) == 0
    assert "skipped 1 bad row" in capsys.readouterr().err


def test_help_has_an_example_for_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in all_verbs():
        assert f"Examples: weft {verb}" in " ".join(ok(capsys, *verb.split(), "--help").split()), verb
    assert ok(capsys, "--version").startswith("weft ")


def test_ctrl_c_leaves_nothing_behind(place: Path, tmp_path: Path) -> None:
    (tmp_path / "pipe").mkdir()
    fifo = tmp_path / "pipe" / "endless.txt"
    os.mkfifo(fifo)
    command = [WEFT, "tokenizer", "learn", "--text", str(fifo), "--out", str(tmp_path / "out" / "t")]
    process = start_child(command, stderr=subprocess.PIPE, text=True)
    with open(fifo, "w") as feed:
        feed.write("some text\n")
        feed.flush()
        while not (tmp_path / "out").exists():
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in said, said
    assert list((tmp_path / "out").iterdir()) == []


def test_a_reader_that_leaves_early_is_no_error(place: Path) -> None:
    found = subprocess.run(["bash", "-c", f"set -o pipefail; {WEFT} models | true"], capture_output=True, text=True)
    assert found.returncode == 0 and found.stderr == ""


def test_streams_that_are_closed_full_or_not_utf_8(place: Path) -> None:
    def shell(command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["bash", "-c", command], capture_output=True, text=True)

    assert shell(f"{WEFT} --version >&-").returncode == 0
    opened = "from weft.progress import open_streams as o; import sys; o(); sys.stdout.flush(); sys.stderr.flush()"
    assert shell(f"{sys.executable} -c '{opened}; sys.exit(open(sys.executable).fileno())' >&- 2>&-").returncode > 2
    full = shell(f"{WEFT} --version >/dev/full")
    assert full.returncode == 2 and "no space left" in full.stderr and len(full.stderr.splitlines()) == 1
    foreign = shell(f"PYTHONIOENCODING=latin-1 {WEFT} tokenizer show {place}/bpe ' the'")
    assert foreign.returncode == 0 and "\\u0120" in foreign.stdout
    bare = shell(WEFT)
    assert bare.returncode == 0 and "Train:" in bare.stdout and len(bare.stdout.splitlines()) > 8


def test_a_terminal_is_not_steered_by_a_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from weft.progress import escaped_streams, unescaped

    with escaped_streams():
        print("a\x1b[2Jb\tc")
        print("x\x9by\u202ez\r", file=sys.stderr)
        unescaped(sys.stderr).write("\rmoved on purpose")
    assert capsys.readouterr() == ("a\x1b[2Jb\tc\n", "x\\x9by\\u202ez\\r\n\rmoved on purpose"), "a file gets it all"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    with escaped_streams():
        print("a\x1b[2Jb\tc")
    assert capsys.readouterr().out == "a\\x1b[2Jb\tc\n"


def test_links_umask_and_pipes(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    old = os.umask(0o077)
    try:
        ok(
            capsys,
            "new",
            "--model",
            "bert",
            "--size",
            "1x64",
            "--set",
            "model.vocabulary=9",
            "--out",
            tmp_path / "link",
        )
    finally:
        os.umask(old)
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real" / "weft.json").exists()
    assert {oct(path.stat().st_mode & 0o777) for path in (tmp_path / "real").iterdir()} == {"0o600"}
    (tmp_path / "real" / "weft.json").unlink()
    os.mkfifo(tmp_path / "real" / "weft.json")
    assert "is not a plain file" in refused(capsys, "info", tmp_path / "real")


@pytest.mark.parametrize("words", [["--help"], ["tokenizer", "--help"], ["tokenizer", "learn", "--help"]])
def test_verbs_that_are_only_listed_change_nothing(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The options of other verbs are not read, which nobody can see."""
    assert run(words) == 0
    found = capsys.readouterr().out
    app(args=words, prog_name="weft", standalone_mode=False)
    assert found == capsys.readouterr().out != ""


def all_verbs() -> dict[str, Any]:
    """Every verb with its name as it is typed."""

    def walk(command: Any, name: str) -> Iterator[tuple[str, Any]]:
        if hasattr(command, "commands"):
            for word, inner in command.commands.items():
                yield from walk(inner, f"{name} {word}".strip())
        else:
            yield name, command

    return dict(walk(typer.main.get_command(app), ""))


def test_no_two_fields_claim_one_flag() -> None:
    for name, command in all_verbs().items():
        flags = [flag for option in command.params for flag in (*option.opts, *option.secondary_opts)]
        assert len(set(flags)) == len(flags), name


def test_every_recipe_field_with_a_flag_is_an_option_of_its_verb() -> None:
    import weft.distillation.recipe
    import weft.runs.recipes
    from weft.cli.options import flags_of
    from weft.runs.recipes import Recipe, TaskRecipe

    kinds = (Recipe, TaskRecipe, weft.distillation.recipe.DistillRecipe, weft.runs.recipes.LadderRecipe,
             weft.runs.recipes.VectorsRecipe)  # fmt: skip
    verbs = all_verbs()
    for kind in kinds:
        known = {flag for option in verbs[kind.verb].params for flag in option.opts}
        declared = [flag.option.flags[0].split("/")[0] for flag in flags_of(kind)]
        assert len(set(declared)) == len(declared) > 10 and set(declared) <= known, kind.verb


def test_values_have_names_that_people_know() -> None:
    for name, command in all_verbs().items():
        for option in command.params:
            shown = option.metavar or ""
            assert "<" not in shown.replace("=>", "") and (shown or option.opts[0] == "--help" or option.is_flag), (
                name,
                option.opts,
            )

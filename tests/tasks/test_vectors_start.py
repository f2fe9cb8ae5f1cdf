"""Fresh models that begin from word vectors: what is found, what is missing, what moves, and going on without them."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from tests.tasks.small import kinds, quiet, write_rows
from weft.checkpoint.external import open_vectors
from weft.cli.main import run
from weft.tasks.model import Model
from weft.training.step import Stepper

VECTORS = {"the": 0, "is": 1, "flint": 2, "cat": 3, "oak": 4, "fern": 5, "now": 6, "elsewhere": 7}
WIDTH = 6
SMALL: dict[str, dict[str, Any]] = {"cnn": {"maps": 8}, "lstm": {"layers": 1, "width": 16}}


def write_vectors(path: Path, words: Any = VECTORS) -> Path:
    """A vector for each word: its number, then the same few digits."""
    lines = [f"{word} {VECTORS.get(word, 9)} " + " ".join(["0.5", "-0.25"] * 3)[: 4 * WIDTH] for word in words]
    path.write_text("".join(" ".join(line.split()[: WIDTH + 1]) + "\n" for line in lines))
    return path


@pytest.fixture
def data(here: Path) -> Path:
    """Rows with the words the, is, six things and four fillers, one of them in capitals."""
    return write_rows(here / "r.jsonl", [{**row, "text": row["text"].replace("the", "The")} for row in kinds(60)])


def tuned(data: Path, vectors: Path, out: Path, family: str = "cnn", **more: Any) -> Model:
    more.setdefault("log", quiet)
    sizes = {"family": family, **SMALL[family], **more.pop("model", {})}
    training = {"steps": 4, "batch": 8, "evaluate_every": 2, **more.pop("training", {})}
    work = {"name": "classify", **more.pop("work", {})}
    return weft.finetune(data, vectors=vectors, task=work, model=sizes, training=training, out=out, **more)


def table_of(model: Model) -> torch.Tensor:
    return model.network.get_parameter("tokens.weight").detach()


@pytest.mark.parametrize("family", SMALL)
def test_words_are_found_and_the_others_drawn(family: str, data: Path, here: Path) -> None:
    said: list[str] = []
    model = tuned(data, write_vectors(here / "v.txt"), here / "out", family, work={"freeze": "tokens"}, log=said.append)
    told = [line for line in said if line.startswith("vectors: ")]
    # 12 words: the, is, six things, four fillers; of these the vectors have the, is, four things and one filler.
    assert len(told) == 1 and told[0].startswith("vectors: 7 of 12 words have one; missing 5: ")
    assert sorted(told[0].split(": ")[2].split(", ")) == ["again", "cow", "slate", "there", "today"]
    tokenizer, table = model.tokenizer, table_of(model)
    assert tokenizer is not None and table.shape == (16, WIDTH)  # with four special tokens
    expected = open_vectors(here / "v.txt", {})
    there = expected.network.get_parameter("tokens.weight")
    for word, number in VECTORS.items():
        if word != "elsewhere":
            assert torch.equal(table[tokenizer.id(word)], there[number])
    unknown = tokenizer.id_of("unknown")
    assert unknown is not None and torch.allclose(table[unknown], there[: len(VECTORS)].mean(0))
    drawn = table[[tokenizer.id(word) for word in ("again", "cow", "slate", "there", "today")]]
    found = there[[number for word, number in VECTORS.items() if word != "elsewhere"]]
    assert 0.4 < drawn.std() / found.std() < 1.8
    assert tokenizer.encode("The CAT").ids == tokenizer.encode("the cat").ids  # as small as the vectors' letters
    assert weft.load(here / "out")("the oak is now") == model("the oak is now")


def test_a_free_table_moves_and_a_second_one_stays(data: Path, here: Path) -> None:
    vectors = write_vectors(here / "v.txt")
    fixed = table_of(tuned(data, vectors, here / "a", work={"freeze": "tokens"}))
    free = tuned(data, vectors, here / "b", model={"both": True})
    assert not torch.equal(table_of(free), fixed)
    assert torch.equal(free.network.get_buffer("fixed"), fixed)


def test_folders_and_packed_files_are_the_same_start(data: Path, here: Path) -> None:
    vectors = write_vectors(here / "v.txt")
    (here / "v.txt.gz").write_bytes(gzip.compress(vectors.read_bytes()))
    Model(open_vectors(vectors, {}), "embed").save(here / "folder")
    one, two, three = (
        table_of(tuned(data, here / name, here / f"out-{name}")) for name in ("v.txt", "v.txt.gz", "folder")
    )
    assert torch.equal(one, two) and torch.equal(one, three)


def test_a_run_goes_on_without_its_vectors(data: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bit, and with nothing but the run folder and the data."""
    vectors = write_vectors(here / "v.txt")
    whole = tuned(data, vectors, here / "whole")

    real, done = Stepper.update, list[int]()

    def killed(*arguments: Any) -> Any:
        done.append(1)
        if len(done) == 4:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(Stepper, "update", killed)
    with pytest.raises(KeyboardInterrupt):
        tuned(data, vectors, here / "broken")
    monkeypatch.undo()
    vectors.unlink()
    again = weft.resume(here / "broken", log=quiet)
    states = whole.network.state_dict(), again.network.state_dict()
    assert all(torch.equal(states[0][name], tensor) for name, tensor in states[1].items())


def test_a_language_model_begins_from_vectors_too(here: Path) -> None:
    (here / "t.txt").write_text("".join(row["text"] + " .\n" for row in kinds(60)))
    said: list[str] = []
    model = weft.pretrain(
        model={"family": "mlp", "vectors": str(write_vectors(here / "v.txt")), "inner": 16, "window": 3},
        text={"files": ["t.txt"]},
        training={"steps": 2, "batch": 4},
        out="out",
        log=said.append,
    )
    assert model.config.width == WIDTH and any("7 of 13 words have one; missing 6: " in line for line in said)
    assert model.config.context == 1 << 24 and model("the cat", max_tokens=3).text is not None


def refused(capsys: pytest.CaptureFixture[str], *words: Any) -> str:
    """The line that a mistake gets, after what was said before."""
    assert run([str(word) for word in words]) == 2
    said = capsys.readouterr()
    assert said.out == "" and "Traceback" not in said.err
    return said.err.splitlines()[-1]


def test_mistakes(data: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vectors = write_vectors(here / "v.txt")
    start = ("finetune", "--task", "classify", "--data", data, "--out", here / "out", "--vectors")
    cnn = ("--model", "cnn")
    said = refused(capsys, *start, vectors, *cnn, "--set", "model.width=300")
    assert "v.txt: its vectors have width 6, not 300; leave out model.width" in said
    said = refused(capsys, *start, vectors, "--model", "lstm", "--set", "model.embedding_width=300")
    assert "its vectors have width 6, not 300; leave out model.embedding_width" in said
    assert "nowhere.txt: there is no such folder or file" in refused(capsys, *start, "nowhere.txt", *cnn)
    assert "r.jsonl: is not a file of word vectors" in refused(capsys, *start, data, *cnn)
    assert "bert does not take word vectors; " in refused(capsys, *start, vectors, "--model", "bert")
    assert "need a word vocabulary, not tokenizer.kind bpe" in refused(
        capsys, *start, vectors, *cnn, "--set", "tokenizer.kind=bpe"
    )
    assert "mlp has no head for classify and learns from text alone" in refused(
        capsys, *start, vectors, "--model", "mlp"
    )
    weft.new("gpt2", size="1x64", settings={"vocabulary": 50}).save(here / "gpt")
    assert "is a model folder of gpt2, not of word vectors" in refused(capsys, *start, here / "gpt", *cnn)
    strange = write_vectors(here / "w.txt", ["zebra", "yak", "xylem"])
    assert "w.txt: has none of the 12 words of the data: " in refused(capsys, *start, strange, *cnn)
    vectors.write_text(vectors.read_text() + "short 1 2 3\n")
    assert "v.txt line 9: 'short': expected 6 numbers, got 3" in refused(capsys, *start, vectors, *cnn)
    assert not (here / "out").exists()


def test_a_window_longer_than_the_reach(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "t.txt").write_text("".join(row["text"] + " .\n" for row in kinds(60)))
    weft.pretrain(
        model={"family": "mlp", "inner": 16, "width": 8, "window": 3},
        text={"files": ["t.txt"]},
        training={"steps": 2, "batch": 4},
        out="out",
        log=quiet,
    )
    said = refused(capsys, "perplexity", "out", "--text", "t.txt", "--length", 4)
    assert "a window of 4 tokens: this model looks at the last 3 only" in said
    shutil.rmtree("out")


def test_a_pair_of_texts_is_kept_apart(here: Path) -> None:
    rows = [
        {"text": f"a cat {n % 3}", "pair": f"a cow {n % 2}", "label": "same" if n % 3 == n % 2 else "other"}
        for n in range(30)
    ]
    model = weft.finetune(
        write_rows(here / "p.jsonl", rows),
        task="pair",
        model={"family": "cnn", "maps": 8, "width": 8},
        training={"steps": 2, "batch": 8},
        log=quiet,
    )
    assert model.tokenizer is not None and model.tokenizer.id_of("end") is not None
    one, two = model([("a cat 1", "a cow 1"), ("a cat", "1 a cow 1")])
    assert one.n_tokens == two.n_tokens == 7 and one.scores != two.scores

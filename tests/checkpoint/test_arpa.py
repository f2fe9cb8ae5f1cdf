"""ARPA files: out and in with equal scores, KenLM as the witness, and files that somebody has broken."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import torch

from weft.checkpoint.external import read_arpa, write_arpa
from weft.checkpoint.folder import LoadedModel, open_folder, save_folder
from weft.errors import UserError
from weft.nn.rows import Ragged
from weft.runs.pretrain import pretrain
from weft.tasks.model import load

TEXT = (
    "the loom sang . the weaver sang to the loom .\nthe thread broke , and the weaver wept .\nthe loom stood still .\n"
)
SMALL = """\\data\\
ngram 1=4
ngram 2=2

\\1-grams:
-1.0\t<unk>
-99\t<s>\t-0.5
-0.4\t</s>
-0.3\ta\t-0.2

\\2-grams:
-0.1\t<s> a
-0.6\ta </s>

\\end\\
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("arpa")
    (where / "text.txt").write_text(TEXT * 3 + TEXT[:60] + "\n")
    pretrain(
        model={"family": "ngram", "order": 4},
        text={"files": [str(where / "text.txt")], "holdout": 0.0},
        out=str(where / "run"),
        log=lambda text: None,
    )
    return where / "run"


def scored(opened: LoadedModel, text: str) -> torch.Tensor:
    tokenizer = opened.tokenizer
    assert tokenizer is not None
    start, end = tokenizer.id_of("start"), tokenizer.id_of("end")
    assert start is not None and end is not None
    ids = [start, *tokenizer.ids([text], specials=False)[0], end]
    batch = Ragged.of([ids])
    return opened.network.target_logprobs(opened.network(batch.tokens, batch.rows)[:-1], batch.tokens[1:])  # type: ignore[operator]


SENTENCES = ["the loom sang .", "the weaver broke the loom", "a zebra wept .", "and"]


@pytest.mark.parametrize("name", ["model.arpa", "model.arpa.gz"])
def test_out_and_in_is_equal(folder: Path, tmp_path: Path, name: str) -> None:
    ours = load(folder).opened
    write_arpa(ours, tmp_path / name)
    save_folder(tmp_path / "again", read_arpa(tmp_path / name))
    theirs = open_folder(tmp_path / "again")
    assert theirs.config.order == 4 and theirs.config.smoothing == "back-off"
    # One token less: what fills rows up is no word.
    assert sum(theirs.config.entries) == sum(ours.config.entries) - 1
    for text in SENTENCES:
        assert torch.allclose(scored(ours, text), scored(theirs, text), atol=1e-6)
    assert (gzip.decompress if name.endswith("gz") else bytes)((tmp_path / name).read_bytes()).startswith(b"\\data\\\n")


def test_kenlm_reads_it_with_equal_scores(folder: Path, tmp_path: Path) -> None:
    kenlm = pytest.importorskip("kenlm")
    ours = load(folder).opened
    write_arpa(ours, tmp_path / "model.arpa")
    witness = kenlm.Model(str(tmp_path / "model.arpa"))
    for text in SENTENCES:
        told = [score for score, _, _ in witness.full_scores(text, bos=True, eos=True)]
        assert torch.allclose(scored(ours, text) / 2.302585092994046, torch.tensor(told).double(), atol=2e-6)


def test_one_token_for_begin_and_end(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT * 3)
    made = pretrain(
        model={"family": "ngram", "order": 3},
        tokenizer={"kind": "bpe", "size": 300},
        text={"files": [str(tmp_path / "text.txt")], "holdout": 0.0},
        out=str(tmp_path / "run"),
        log=lambda text: None,
    )
    write_arpa(made.opened, tmp_path / "model.arpa")
    theirs = read_arpa(tmp_path / "model.arpa")
    assert made.tokenizer is not None and theirs.tokenizer is not None
    ids = made.tokenizer.ids(["the loom sang"], specials=False)[0]
    end = made.tokenizer.id_of("end")
    assert end is not None
    ours = made.network.target_logprobs(made.network(*_batch([end, *ids]))[:, :], torch.tensor([*ids, end]))  # type: ignore[operator]
    words = ["<s>", *(str(made.tokenizer.token(number)) for number in ids), "</s>"]
    known = [theirs.tokenizer.id(word) for word in words]
    assert None not in known
    found = theirs.network.target_logprobs(theirs.network(*_batch(known[:-1])), torch.tensor(known[1:]))  # type: ignore[operator, arg-type]
    assert torch.allclose(ours, found, atol=1e-6)


def _batch(ids: list[int]) -> tuple[torch.Tensor, object]:
    batch = Ragged.of([ids])
    return batch.tokens, batch.rows


def test_a_file_by_hand(tmp_path: Path) -> None:
    (tmp_path / "small.arpa").write_text(SMALL)
    found = read_arpa(tmp_path / "small.arpa")
    assert scored(found, "a").tolist() == pytest.approx([-0.1 * 2.302585, -0.6 * 2.302585], rel=1e-6)
    # After <s> nothing is listed but a: its weight, and then the chance of the word alone.
    assert scored(found, "b").tolist() == pytest.approx([-1.5 * 2.302585, -0.4 * 2.302585], rel=1e-6)


@pytest.mark.parametrize(
    "old, new, words",
    [
        ("\\data\\", "data", r"not an ARPA file: there is no \\data\\"),
        ("\\end\\\n", "", r"line 14: cut short: there is no \\end\\"),
        ("ngram 1=4", "ngram 1=four", r"line 2: 'ngram 1=four' is not a count"),
        ("ngram 1=4", "ngram 1=99999999999", r"line 2: more 1-grams than any model has"),
        ("ngram 1=4", "ngram 1=" + "9" * 5000, r"line 2: more 1-grams than any model has"),
        ("ngram 1=4", "ngram 1=²", r"line 2: .* is not a count"),
        ("ngram 2=2", "ngram 3=2", r"line 3: the count of 2-grams should stand here"),
        ("ngram 1=4", "ngram 1=5", r"line 11: 5 1-grams were promised, 4 are there"),
        ("ngram 1=4", "ngram 1=3", r"line 9: more than the 3 1-grams that were promised"),
        ("ngram 1=4\nngram 2=2\n", "", r"line 3: no counts stand after"),
        ("-0.4\t</s>", "-0.4\t<s>", r"line 8: the word '<s>' stands there twice"),
        ("-0.4\t</s>", "0.4\t</s>", r"line 8: a log probability is at most 0"),
        ("-0.4\t</s>", "nan\t</s>", r"line 8: a log probability is at most 0"),
        ("-0.4\t</s>", "-0.4\t</s>\tinf", r"line 8: a log probability is at most 0"),
        ("-0.4\t</s>", "x\t</s>", r"line 8: 'x' or '</s>' is not a number"),
        ("-0.1\t<s> a", "-0.1\t<s> b", r"line 12: the word 'b' is not among the 1-grams"),
        ("-0.1\t<s> a", "-0.1\t<s> a\t-0.3", r"line 12: 4 fields"),
        ("-0.6\ta </s>", "-0.1\t<s> a", r"line 13: '<s> a' stands there twice"),
        ("\\2-grams:", "\\3-grams:", r"line 11: '\\\\3-grams:' stands where"),
    ],
)
def test_broken_files_are_told_by_line(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert old in SMALL
    (tmp_path / "broken.arpa").write_text(SMALL.replace(old, new, 1))
    with pytest.raises(UserError, match=words) as raised:
        read_arpa(tmp_path / "broken.arpa")
    assert "broken.arpa" in str(raised.value) and "\n" not in str(raised.value)


def test_an_order_that_is_too_high_and_a_context_that_is_missing(tmp_path: Path) -> None:
    counts = "".join(f"ngram {order}=1\n" for order in range(1, 9))
    (tmp_path / "high.arpa").write_text(f"\\data\\\n{counts}\n")
    with pytest.raises(UserError, match="line 9: n-grams of order 8: 7 is the highest"):
        read_arpa(tmp_path / "high.arpa")
    longer = SMALL.replace("ngram 2=2\n", "ngram 2=2\nngram 3=1\n").replace(
        "\\end\\", "\\3-grams:\n-0.1 a a a\n\n\\end\\"
    )
    (tmp_path / "lost.arpa").write_text(longer)
    with pytest.raises(UserError, match="line 17: 'a a a' goes on from words that are not among the 2-grams"):
        read_arpa(tmp_path / "lost.arpa")


def test_what_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT * 3)
    for number, (more, words) in enumerate(
        [({"smoothing": "add-k"}, "add-k has no back-off weights"), ({"kind": "character"}, "has a space in it")]
    ):
        kind = {"kind": more.pop("kind")} if "kind" in more else {}
        made = pretrain(
            model={"family": "ngram", "order": 2, **more},
            tokenizer=kind,
            text={"files": [str(tmp_path / "text.txt")], "holdout": 0.0},
            out=str(tmp_path / f"run{number}"),
            log=lambda text: None,
        )
        with pytest.raises(UserError, match=words):
            write_arpa(made.opened, tmp_path / "out.arpa")
        assert not (tmp_path / "out.arpa").exists()

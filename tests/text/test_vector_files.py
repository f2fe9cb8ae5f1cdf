"""Files of word vectors: what is written is read back, by others too, and hostile files get one clear line."""

from __future__ import annotations

import gzip
import random
import struct
from pathlib import Path

import numpy as np
import pytest

from weft.cli.main import run
from weft.errors import UserError
from weft.text.tokenizers.training import UNKNOWN, learned_words, word_tokenizer
from weft.text.vector_files import FORMATS, is_file_of_vectors, read_binary, read_file, write_file

WORDS = ["the", "naïve", "日本", "don't", "x", "...", UNKNOWN]
MATRIX = np.random.default_rng(0).normal(size=(len(WORDS), 9)).astype(np.float32)
MATRIX[0, :3] = [0.0, 1e-38, -3e38]  # numbers that are hard to write


@pytest.mark.parametrize("format", FORMATS)
def test_what_is_written_is_read_back_bit_for_bit(format: str, tmp_path: Path) -> None:
    path = tmp_path / "v.any"
    write_file(path, WORDS, MATRIX, format)
    found = read_file(path)
    assert found.words == WORDS and found.matrix.tobytes() == MATRIX.tobytes() and found.repeated == 0
    assert is_file_of_vectors(path)
    (tmp_path / "v.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert read_file(tmp_path / "v.gz").matrix.tobytes() == MATRIX.tobytes()


@pytest.mark.parametrize("format", FORMATS)
def test_gensim_reads_and_writes_the_same(format: str, tmp_path: Path) -> None:
    models = pytest.importorskip("gensim.models")
    write_file(tmp_path / "v", WORDS, MATRIX, format)
    binary = format == "binary"
    peer = models.KeyedVectors.load_word2vec_format(tmp_path / "v", binary=binary, no_header=format == "glove")
    assert peer.index_to_key == WORDS and peer.vectors.tobytes() == MATRIX.tobytes()
    peer.save_word2vec_format(str(tmp_path / "w"), binary=binary, write_header=format != "glove")
    found = read_file(tmp_path / "w")
    assert found.words == WORDS
    np.testing.assert_allclose(found.matrix, MATRIX, rtol=1e-5)


def test_words_that_no_file_can_hold_are_refused(tmp_path: Path) -> None:
    for word in ("two words", "", "line\nend"):
        with pytest.raises(UserError, match="is no word that such a file can hold"):
            write_file(tmp_path / "v", [word], MATRIX[:1], "text")
    assert not list(tmp_path.iterdir())


def binary(*rows: tuple[bytes, int], header: bytes | None = None, width: int = 3) -> bytes:
    head = header if header is not None else b"%d %d\n" % (len(rows), width)
    return head + b"".join(word + b" " + struct.pack(f"<{count}f", *[0.1] * count) + b"\n" for word, count in rows)


def test_a_binary_file_with_something_wrong_says_at_which_word(tmp_path: Path) -> None:
    path = tmp_path / "v.bin"
    nan = b"1 2\na " + struct.pack("<2f", 1.0, float("nan"))
    cases = {
        binary((b"a", 3), (b"b", 3), header=b"900000 3\n"): "900000 words of 3 numbers need .* the file has",
        binary((b"a", 3), header=b"99999999999999999999 3\n"): "at most",
        binary((b"a", 3), header=b"1 99999999\n"): "at most",
        binary((b"a", 3), (b"b", 3), (b"cccccccccccccccc", 2)): "word 3: expected 3 numbers, got 2",
        binary((b"a", 3), (b"\xff\xfe", 3)): "word 2: is not UTF-8",
        binary((b"a", 3), (b"", 3)): "word 2: has no word before its numbers",
        binary((b"a", 3), header=b""): "does not begin with a line of two numbers",
        nan: "word 1: 'a': holds what is not a number",
    }
    for data, message in cases.items():
        path.write_bytes(data)
        with pytest.raises(UserError, match=message) as caught:
            read_binary(path)
        assert "\n" not in str(caught.value)


def test_short_numbers_are_text_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "v.txt"
    for rows in (["a 1 2 3", "king 4 5 6", "b 0 1 0"], ["a 1", "king 2", "b 3"]):
        width = rows[0].count(" ")
        path.write_text("\n".join([f"3 {width}", *rows, ""]))
        found = read_file(path)
        assert found.words == ["a", "king", "b"] and found.matrix.shape == (3, width)


def test_no_hostile_binary_file_breaks_out(tmp_path: Path) -> None:
    """Cut short anywhere, and with bytes changed: a line for the user or vectors, nothing else."""
    good = binary((b"one", 3), (b"two", 3), (b"three", 3))
    draw = random.Random(3)
    path = tmp_path / "v.bin"
    for _ in range(300):
        data = bytearray(good[: draw.randrange(1, len(good) + 1)])
        for _ in range(draw.randrange(4)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        path.write_bytes(data)
        try:
            assert len(read_file(path).words) <= 9
        except UserError as error:
            assert "\n" not in str(error)


def test_repeated_words_are_counted_and_the_first_stays(tmp_path: Path) -> None:
    data = b"3 1\n" + b"".join(word + b" " + struct.pack("<f", n) for n, word in enumerate([b"a", b"b", b"a"]))
    (tmp_path / "v.bin").write_bytes(data)
    found = read_binary(tmp_path / "v.bin")
    assert found.words == ["a", "b"] and found.matrix.tolist() == [[0.0], [1.0]] and found.repeated == 1


def test_a_wrong_width_on_a_line_is_one_line_and_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "v.txt"
    path.write_text("the 1 2 3\nof 4 5 6\nand 7 8\nto 1 2 3\nin 3 2 1\n")
    for verb in (["near", str(path), "the"], ["convert", str(path), str(tmp_path / "x.bin")]):
        assert run(["vectors", *verb]) == 2
        assert capsys.readouterr().err == f"weft vectors {verb[0]}: {path} line 3: 'and': expected 3 numbers, got 2\n"


def test_words_that_a_file_cannot_hold_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "v.txt").write_text("at name 1.5 2.5\nking 3.5 4.5\nqueen 4.5 4.5\n")
    assert run(["vectors", "convert", str(tmp_path / "v.txt"), str(tmp_path / "v.bin")]) == 0
    assert "1 words with a space in them are left out: at name" in capsys.readouterr().err
    assert read_file(tmp_path / "v.bin").words == ["king", "queen"]


TEXTS = ["Don’t stop, don't! It costs 1,000.50 dollars...", "The dog's dog didn't bark; the DOG stops.", "don't"]


@pytest.mark.parametrize("lowercase", [True, False])
def test_learned_words_cut_as_the_tokenizer_that_is_made_of_them(lowercase: bool) -> None:
    """Every word that was counted is known again in the text it was counted in."""
    tokenizer = learned_words(lambda: TEXTS, 1, lowercase=lowercase)
    assert all(tokenizer.id_of("unknown") not in ids for ids in tokenizer.ids(TEXTS))
    assert {"don't", "1,000.50", "dog's"} <= set(tokenizer.tokens) and ("DOG" in tokenizer.tokens) != lowercase
    # A file of these words alone is cut the same way.
    words = sorted(tokenizer.tokens, key=lambda word: tokenizer.tokens[word])
    if lowercase:
        assert word_tokenizer(words).pipeline == tokenizer.pipeline


def test_a_text_that_was_cut_before_is_learned_by_its_own_rules() -> None:
    tokenizer = learned_words(lambda: ["do n't go", "it 's here", "I don't"], 1)
    assert tokenizer.encode("I don't").tokens == ["i", "do", "n't"]
    assert "don't" not in tokenizer.tokens


def test_rare_words_are_unknown_and_frequent_ones_come_first() -> None:
    tokenizer = learned_words(lambda: ["b b b a a c"], 2)
    assert tokenizer.tokens == {"b": 0, "a": 1, UNKNOWN: 2}
    assert learned_words(lambda: ["b b b a a c"], 1, max_words=1).tokens == {"b": 0, UNKNOWN: 1}
    with pytest.raises(UserError, match="no word is there 9 times"):
        learned_words(lambda: ["a b c"], 9)

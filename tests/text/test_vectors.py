"""Word vectors out of text files, and the tokenizer that their vocabulary asks for."""

from __future__ import annotations

import gzip
import lzma
import zipfile
from itertools import islice
from pathlib import Path

import numpy
import pytest

from weft.errors import UserError
from weft.text import vector_files
from weft.text.records import read_records
from weft.text.rows import Skipped
from weft.text.tokenizers.published import load_tokenizer
from weft.text.tokenizers.training import UNKNOWN, word_tokenizer
from weft.text.vector_files import is_file_of_vectors, read_vectors

WORDS = ["the", "naïve", ". . .", "at name@domain.com", "1.5", "\xa0", "3"]
MATRIX = numpy.random.default_rng(0).normal(0, 0.5, (len(WORDS), 4)).astype(numpy.float32)
LINES = [f"{word} {' '.join(map(str, row))}" for word, row in zip(WORDS, MATRIX, strict=True)]
TEXT = "\n".join(LINES) + "\n"


def write(path: Path, text: str) -> Path:
    path.write_bytes(text.encode())
    return path


def test_every_form_of_the_same_vectors(tmp_path: Path) -> None:
    forms = [
        write(tmp_path / "glove.txt", TEXT),
        write(tmp_path / "word2vec.txt", f"{len(WORDS)} 4\n" + TEXT.replace("\n", " \n")),  # as its C program writes
        write(tmp_path / "windows.vec", "\ufeff" + TEXT.replace("\n", "\r\n")),
        write(tmp_path / "open.txt", TEXT.rstrip("\n")),
    ]
    for path, pack in ((tmp_path / "g.txt.gz", gzip.compress), (tmp_path / "x.txt.xz", lzma.compress)):
        path.write_bytes(pack(TEXT.encode()))
        forms.append(path)
    with zipfile.ZipFile(tmp_path / "z.zip", "w") as archive:
        archive.writestr("glove.txt", TEXT)
    for path in (*forms, tmp_path / "z.zip", tmp_path / "z.zip" / "glove.txt"):
        assert is_file_of_vectors(path)
        found = read_vectors(path)
        assert found.words == WORDS and found.repeated == 0, path
        assert found.matrix.dtype == numpy.float32 and numpy.array_equal(found.matrix, MATRIX), path


def test_blocks_do_not_change_what_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "v.txt", TEXT)
    monkeypatch.setattr(vector_files, "BLOCK", 60)
    assert read_vectors(path).words == WORDS and numpy.array_equal(read_vectors(path).matrix, MATRIX)


@pytest.mark.parametrize(
    "line, words",
    [
        ("short 1 2 3", "'short': expected 4 numbers, got 3"),
        ("long 1 2 3 4 5", "'long 1': expected 4 numbers, got 5"),
        ("word 1 2 three 4", "'word': 'three' is not a number"),
        ("gap 1  2 3", "'gap': '' is not a number"),
        ("glued  1 2 3-4", "'glued': '' is not a number"),  # as many signs and spaces as four numbers have
        ("tab 1\t2 3 4", "'tab': expected 4 numbers, got 2"),
        ("endless 1 2 inf 4", "'endless': 'inf' is not a number"),
        ("large 1 2 1e40 4", "'large': '1e40' is not a number"),
        ("none 1 2 nan 4", "'none': 'nan' is not a number"),
        (" 1 2 3 4", "has no word before its numbers"),
    ],
)
def test_a_mistake_is_told_with_its_line(line: str, words: str, tmp_path: Path) -> None:
    path = write(tmp_path / "v.txt", TEXT + line + "\nlast 1 2 3 4\n")
    with pytest.raises(UserError) as caught:
        read_vectors(path)
    assert str(caught.value) == f"{path} line 8: {words}"
    skipped = Skipped()
    found = read_vectors(path, "skip", skipped)
    assert found.words == [*WORDS, "last"] and skipped.count == 1 and found.repeated == 0
    assert numpy.array_equal(found.matrix, numpy.concatenate([MATRIX, [[1, 2, 3, 4]]]))


def test_other_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "v.txt"
    path.write_bytes(TEXT.encode() + b"caf\xe9 1 2 3 4\n")
    with pytest.raises(UserError, match="line 8: byte 0xe9 is not UTF-8 text"):
        read_vectors(path)
    write(path, f"{len(WORDS) + 5} 4\n{TEXT}")
    with pytest.raises(UserError, match="line 1 says that 12 words follow, but there are 7"):
        read_vectors(path)
    write(path, f"999999999 4\n{TEXT}")
    with pytest.raises(UserError, match="line 1: 999999999 words of 4 numbers; at most"):
        read_vectors(path)
    write(path, "a 1\n" + "b " + "1 " * 70_000 + "\n" + "c " + "1 " * 70_000 + "\n")
    with pytest.raises(UserError, match="70000 numbers a word; at most 65536"):
        read_vectors(path)
    for text in ("", "A line of prose.\nAnd one more of them.\n"):
        with pytest.raises(UserError, match="not a file of word vectors"):
            read_vectors(write(path, text))
    with pytest.raises(UserError, match="holds no vector"):
        read_vectors(write(path, "1 2\n 3 4\n"), "skip")
    with zipfile.ZipFile(tmp_path / "z.zip", "w") as archive:
        for name in ("50d.txt", "100d.txt"):
            archive.writestr(name, TEXT)
    with pytest.raises(UserError, match=r"z.zip: holds 100d.txt, 50d.txt; name one of them, as z.zip/100d.txt"):
        read_vectors(tmp_path / "z.zip")
    monkeypatch.setattr(vector_files, "memory_here", lambda: 100)
    with pytest.raises(UserError, match="do not fit into the"):
        read_vectors(write(path, TEXT))


def test_the_first_of_a_repeated_word_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "v.txt", TEXT + "the 9 9 9 9\nlast 1 2 3 4\nlast 5 6 7 8\n")
    for size in (1 << 22, 40):  # in one block, and across blocks
        monkeypatch.setattr(vector_files, "BLOCK", size)
        found = read_vectors(path)
        assert found.words == [*WORDS, "last"] and found.repeated == 2
        assert numpy.array_equal(found.matrix, numpy.concatenate([MATRIX, [[1, 2, 3, 4]]]))


def test_what_does_not_look_like_vectors(tmp_path: Path) -> None:
    write(tmp_path / "prose.txt", "It is 5 o'clock.\nThe year is 1999\n" * 9)
    write(tmp_path / "table.csv", "a,1,2\nb,3,4\n")
    write(tmp_path / "config.json", '{\n  "width": 3\n}\n')
    (tmp_path / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{}")
    names = ("prose.txt", "table.csv", "config.json", "model.safetensors", "absent.txt", ".")
    assert not any(is_file_of_vectors(tmp_path / name) for name in names)


# ------------------------------------------------------------------------------------------------------- tokenizer

PENN = ["the", "do", "ca", "n't", "'s", "'ll", "it", "mr.", "u.s.", "...", "--", "o'clock", "well", "known", "-"]
PENN += [",", ".", "1,000", "3.5", "i", "'", '"', "is", UNKNOWN]


def test_text_is_cut_as_the_vocabulary_was() -> None:
    text = "Mr. Do can't, IT’S 3.5 -- i don't... U.S. o'clock: \"well-known\" 1,000 it'll."
    tokenizer = word_tokenizer(PENN)
    found = tokenizer.encode(text)
    unknown = tokenizer.id_of("unknown")
    assert [text[start:end] for (start, end), i in zip(found.offsets, found.ids, strict=True) if i == unknown] == [":"]
    known = [(text[a:b], t) for (a, b), t in zip(found.offsets, found.tokens, strict=True) if t != UNKNOWN]
    assert all(piece.lower().replace("’", "'") == token for piece, token in known)
    assert [token for _, token in known][:8] == ["mr.", "do", "ca", "n't", ",", "it", "'s", "3.5"]
    assert [token for _, token in known][-3:] == ["it", "'ll", "."]
    assert tokenizer.kind == "word" and None not in found.sequences  # nothing is put around a text
    assert tokenizer.decode(tokenizer.encode("Mr. Do can't, it's").ids) == "mr. do can't, it's"


def test_a_vocabulary_of_whole_words_and_capitals() -> None:
    tokenizer = word_tokenizer(["don't", "Don't", "The", "the", "etc", UNKNOWN])
    assert tokenizer.encode("Don’t don't The the THE").tokens == ["Don't", "don't", "The", "the", UNKNOWN]


def test_the_tokenizer_survives_a_folder(tmp_path: Path) -> None:
    tokenizer = word_tokenizer(PENN)
    tokenizer.save(tmp_path)
    loaded = load_tokenizer(tmp_path)
    text = "Isn't it Mr. Known's 1,000 <unk> words?"
    assert loaded.encode(text).ids == tokenizer.encode(text).ids
    assert loaded.encode(text).offsets == tokenizer.encode(text).offsets
    assert loaded.roles == tokenizer.roles and loaded.vocabulary == len(PENN)


def test_long_runs_take_no_longer_than_their_length() -> None:
    """A pattern that tries again and again from every place would not come back from these."""
    tokenizer = word_tokenizer(PENN)
    for text in ("1," * 100_000 + "x", "a." * 100_000, "n" * 200_000, "n't" * 100_000, "." * 100_000, "'" * 100_000):
        assert len(tokenizer.encode(text)) > 0


def test_glove(data: Path) -> None:
    """Real vectors: what means the same is near, and few words of real reviews are unknown."""
    skipped = Skipped()  # this copy begins with four stray lines, one of them empty
    found = read_vectors(data / "words" / "glove.6B.50d.top30k.txt.xz", "skip", skipped)
    assert found.matrix.shape == (30_000, 50) and found.repeated == 0 and skipped.count <= 3
    directions = found.matrix / numpy.linalg.norm(found.matrix, axis=1, keepdims=True)
    near = numpy.argsort(-directions @ directions[found.words.index("king")])[:6]
    assert "queen" in [found.words[number] for number in near]
    tokenizer = word_tokenizer([*found.words, UNKNOWN])
    records = islice(read_records(data / "imdb" / "train.tsv.xz"), 300)
    ids = [
        number for row in tokenizer.ids([r.values["text"].replace("<br />", " ") for r in records]) for number in row
    ]
    assert len(ids) > 30_000 and ids.count(tokenizer.id_of("unknown") or 0) / len(ids) < 0.05

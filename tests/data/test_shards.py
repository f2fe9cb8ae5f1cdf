"""Shards: the tokens of the text, made once, by one process, and gone on with where one was stopped."""

from __future__ import annotations

import json
import os
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.corpus_memory import measure
from tests.children import FORKS
from tests.damage import flip
from tests.training.small import stories
from weft.data import shards
from weft.data.shards import TextFiles, cached, clear_cache, tokenized
from weft.errors import UserError
from weft.text.rows import Skipped
from weft.text.tokenizers.published import load_tokenizer
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.tokenizers.training import learn


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return learn(stories(30).splitlines(), "wordpiece", 250)


@pytest.fixture
def text(tmp_path: Path) -> TextFiles:
    (tmp_path / "text.txt").write_text(stories(50))
    return TextFiles((str(tmp_path / "text.txt"),))


class Stopped(Exception):
    pass


def documents(corpus: shards.Corpus) -> list[list[int]]:
    tokens = corpus.take(np.arange(corpus.begin, corpus.begin + corpus.size))
    return [row.tolist() for row in np.split(tokens, corpus.documents[1:-1])]


def test_the_tokens_of_the_text(text: TextFiles, tokenizer: Tokenizer) -> None:
    corpus = tokenized(text, tokenizer)
    assert documents(corpus) == tokenizer.ids(list(text.read()), specials=False)


def test_made_once(text: TextFiles, tokenizer: Tokenizer, tmp_path: Path) -> None:
    heard: list[int] = []
    first = tokenized(text, tokenizer, progress=heard.append)
    assert sum(heard) > 1000
    heard.clear()
    (tmp_path / "moved.txt").write_bytes((tmp_path / "text.txt").read_bytes())  # what it is called does not matter
    again = tokenized(TextFiles((str(tmp_path / "moved.txt"),)), tokenizer, progress=heard.append)
    assert not heard and again.hash == first.hash
    with open(tmp_path / "text.txt", "a") as file:
        file.write("One more line.\n")
    assert len(tokenized(text, tokenizer, progress=heard.append).documents) == len(first.documents) + 1 and heard
    other = learn(stories(30).splitlines(), "wordpiece", 200)
    assert tokenized(text, other).hash != first.hash
    assert len(cached()) == 3
    assert clear_cache() > 1000 and not cached()


def test_skipped_rows_are_counted_again_from_the_cache(tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_bytes(b"One good line.\n\xff\xfe broken\nAnother good line.\n\xff\n")
    text = TextFiles((str(tmp_path / "text.txt"),), on_bad_row="skip")
    counts = []
    for _ in range(2):
        skipped = Skipped()
        assert len(tokenized(text, tokenizer, skipped=skipped).documents) == 3
        counts.append((skipped.count, skipped.first, str(skipped)))
    assert counts[0] == counts[1] and counts[0][0] == 2 and "line 2" in counts[0][2]


@pytest.mark.parametrize("sentences", [False, True])
def test_stopped_at_any_place(
    text: TextFiles, tokenizer: Tokenizer, sentences: bool, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole shards are kept, and the result is as if nothing had happened."""
    whole = tokenized(text, tokenizer, sentences)
    monkeypatch.setattr(shards, "SHARD", 500)
    monkeypatch.setattr(shards, "TOGETHER", 900)
    for stop_at in (700, 4000, 9000, 15000, 10**9):
        heard = 0

        def progress(more: int, stop_at: int = stop_at) -> None:
            nonlocal heard
            heard += more
            if heard > stop_at:
                raise Stopped

        try:
            corpus = tokenized(text, tokenizer, sentences, progress)
            break
        except Stopped:
            kept = len(list((cache / "shards").glob("*.partial/tokens-*.npy")))
            assert kept == 0 if stop_at == 700 else kept > 0
    assert len(corpus.shards) > 5 and documents(corpus) == documents(whole)
    if sentences:
        assert corpus.sentences is not None and whole.sentences is not None
        assert (corpus.sentences == whole.sentences).all()


@pytest.mark.parametrize("name", ["tokens-00001.npy", "documents.npy", "sentences.npy", "corpus.json"])
def test_stopped_at_the_very_end(
    name: str, text: TextFiles, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the last shard and the moment when all is in place."""
    monkeypatch.setattr(shards, "SHARD", 3000)
    plain, replaced = os.replace, []

    def stopping(source: str, target: Path) -> None:
        plain(source, target)
        if Path(target).name == name and not replaced:
            replaced.append(target)
            raise Stopped

    monkeypatch.setattr(os, "replace", stopping)
    with pytest.raises(Stopped):
        tokenized(text, tokenizer, True)
    corpus = tokenized(text, tokenizer, True)
    assert documents(corpus) == tokenizer.ids(list(text.read()), specials=False)
    assert corpus.sentences is not None and corpus.sentences[-1] == corpus.size


def test_a_cache_that_was_removed_by_halves(text: TextFiles, tokenizer: Tokenizer, cache: Path) -> None:
    whole = tokenized(text, tokenizer)
    before = documents(whole)
    (cache / "shards" / whole.hash / "corpus.json").unlink()
    assert documents(tokenized(text, tokenizer)) == before


def test_sentences(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (tmp_path / "a.txt").write_text('The loom was old. It sang. "Did it?" Yes.\nA second line\n')
    corpus = tokenized(TextFiles((str(tmp_path / "a.txt"),)), tokenizer, sentences=True)
    assert corpus.sentences is not None
    pieces = [tokenizer.decode(corpus.take(np.arange(a, b)).tolist()) for a, b in
              zip(corpus.sentences[:-1], corpus.sentences[1:], strict=True)]  # fmt: skip
    assert pieces == ["the loom was old.", "it sang.", '" did it? "', "yes.", "a second line"]
    assert set(corpus.documents) <= set(corpus.sentences)


@pytest.mark.parametrize("kind", ["bpe", "character", "wordpiece", "word"])
def test_a_long_document_is_cut_as_the_whole(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = stories(20).replace("\n", " \n\n ") + "  two  spaces   three. "
    (tmp_path / "long.txt").write_text(whole)
    vocabulary = learn(stories(20).splitlines(), kind, 300)
    monkeypatch.setattr(shards, "PART", 97)
    corpus = tokenized(TextFiles((str(tmp_path / "long.txt"),), documents="file"), vocabulary)
    text = next(TextFiles((str(tmp_path / "long.txt"),), documents="file").read())
    assert documents(corpus) == [vocabulary.encode(text, specials=False).ids]


def _make(files: tuple[str, ...], tokenizer: str, cache: str, queue: Any) -> None:
    os.environ["WEFT_CACHE"] = cache
    heard: list[int] = []

    def slowly(more: int) -> None:
        heard.append(more)
        time.sleep(0.002)

    corpus = tokenized(TextFiles(files), load_tokenizer(tokenizer), progress=slowly)
    queue.put((sum(heard), corpus.hash, corpus.size))


def test_two_processes_do_not_clash(text: TextFiles, tokenizer: Tokenizer, tmp_path: Path, cache: Path) -> None:
    tokenizer.save(tmp_path / "tok")
    queue = FORKS.Queue()
    both = [FORKS.Process(target=_make, args=(text.files, str(tmp_path / "tok"), str(cache), queue)) for _ in range(2)]
    for process in both:
        process.start()
    found = sorted(queue.get(timeout=120) for _ in both)
    for process in both:
        process.join()
    assert found[0][1:] == found[1][1:]
    assert found[1][0] > 1000  # one of them did the work
    assert not list((cache / "shards").glob("*.partial"))


def test_damage_in_the_cache_is_named_and_made_good(
    text: TextFiles, tokenizer: Tokenizer, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "SHARD", 2000)
    whole = tokenized(text, tokenizer, True)
    right, folder = documents(whole), cache / "shards" / whole.hash
    names = sorted(path.name for path in folder.iterdir())
    assert {"corpus.json", "documents.npy", "sentences.npy", "tokens-00000.npy"} < set(names)
    for name in names:
        flip(folder / name, seed=1)
        with pytest.warns(UserWarning, match=f"{name}: .*made again"):
            again = tokenized(text, tokenizer, True)
        assert documents(again) == right and sorted(path.name for path in folder.iterdir()) == names


@pytest.mark.parametrize("name", ["tokens-00001.npy", "documents-00001.npy", "sentences-00001.npy", "shard-00001.json"])
def test_damage_in_an_unfinished_cache(
    name: str, text: TextFiles, tokenizer: Tokenizer, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = documents(tokenized(text, tokenizer, True))
    monkeypatch.setattr(shards, "SHARD", 1000)
    monkeypatch.setattr(shards, "TOGETHER", 900)
    heard: list[int] = []

    def progress(more: int) -> None:
        heard.append(more)
        if sum(heard) > 12_000:
            raise Stopped

    with pytest.raises(Stopped):
        tokenized(text, tokenizer, True, progress)
    flip(next((cache / "shards").glob(f"*.partial/{name}")), seed=2)
    with pytest.warns(UserWarning, match=f"{name}: .*made again"):
        assert documents(tokenized(text, tokenizer, True)) == right


ODD: list[Any] = [None, True, -1, 1e300, "", "x", [], [1], [None], {}, {"x": 1}]


@pytest.mark.parametrize("value", ODD, ids=repr)
def test_wrong_types_in_a_record_of_the_cache(value: Any, text: TextFiles, tokenizer: Tokenizer, cache: Path) -> None:
    """The cache is made again, and can be listed and cleared, whatever its record says."""
    whole = tokenized(text, tokenizer)
    path, right = cache / "shards" / whole.hash / "corpus.json", documents(whole)
    record = json.loads(path.read_text())
    for wrong in (*({**record, key: value} for key in record), value):
        path.write_text(json.dumps(wrong))
        assert len(cached()) == 1
        if wrong != record:
            with pytest.warns(UserWarning, match="made again"):
                assert documents(tokenized(text, tokenizer)) == right
    path.write_text(json.dumps({**record, "files": value}))
    assert clear_cache() > 1000 and not cached()


def test_text_is_looked_for_where_data_lies(text: TextFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "b.txt").write_text("b\n")
    monkeypatch.setenv("WEFT_DATA", str(tmp_path / "elsewhere"))
    assert TextFiles(("b.txt",)).paths() == [tmp_path / "elsewhere" / "b.txt"]
    with pytest.raises(UserError, match="neither here nor in"):
        TextFiles(("c.txt",)).paths()
    with pytest.raises(UserError, match="standard input"):
        TextFiles(("-",)).paths()


@pytest.mark.slow
def test_a_gigabyte(data: Path, tmp_path: Path) -> None:
    """1 GB of reviews is tokenized and trained on with less than 2 GB in the process that does it."""
    assert measure(data, tmp_path, 1_000_000_000)["peak memory GB"] < 2


def test_memory_does_not_grow_with_the_text(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fast version: small shards, and three times the text."""
    monkeypatch.setattr(shards, "SHARD", 4000)
    monkeypatch.setattr(shards, "TOGETHER", 2000)
    most: list[int] = []
    for times in (8, 24):  # the first is more than is read at a time
        (tmp_path / "text.txt").write_text(stories(50) * times)
        held: list[int] = []
        tracemalloc.start()
        corpus = tokenized(
            TextFiles((str(tmp_path / "text.txt"),)),
            tokenizer,
            progress=lambda _, held=held: held.append(tracemalloc.get_traced_memory()[0]),  # type: ignore[misc]
        )
        tracemalloc.stop()
        most.append(max(held))
    assert most[1] - most[0] < corpus.size / 3, "not even half a byte for each token more"

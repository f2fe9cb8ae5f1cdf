"""What is loaded fast is what was loaded before: weights, tokenizers, batches of a pipe; and nothing goes unchecked."""

from __future__ import annotations

import gc
import json
import math
import sys
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer as Library
from tokenizers import models

import weft
from tests.tasks.small import model_for
from weft.checkpoint.finite import PART, tensor_is_finite
from weft.cli import inputs
from weft.files import digest, parse_json
from weft.loading import collector_paused
from weft.text.tokenizers import checked, published
from weft.text.tokenizers.published import load_tokenizer
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.tokenizers.training import learn

LABELS = ("one", "two", "three")
LINES = ["the cat sat on the mat", "a dog, a cow and an ant", "oak and flint", "now is the hour"] * 8
TEXTS = ["a cat", "the cow is now", "oak, and flint"]


# ------------------------------------------------------------------------------------------------------------ weights


@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("place", [0, PART - 1, PART, 2 * PART + 9])
def test_no_number_that_is_none_is_missed(kind: torch.dtype, place: int) -> None:
    weights = torch.randn(2 * PART + 10).to(kind)
    limits = torch.finfo(kind)
    weights[:4] = torch.tensor([limits.max, limits.min, limits.smallest_normal / 2, -0.0], dtype=kind)
    assert tensor_is_finite(weights) and tensor_is_finite(weights.view(2, -1).t())
    for bad in (float("nan"), float("inf"), -float("inf")):
        broken = weights.clone()
        broken[place] = bad
        for view in (broken, broken.view(2, -1), broken.view(2, -1).t(), torch.stack([broken, weights], 1)[:, 0]):
            assert not tensor_is_finite(view)


def test_whole_numbers_and_empty_tensors_are_finite() -> None:
    assert (
        tensor_is_finite(torch.arange(5)) and tensor_is_finite(torch.empty(0, 3)) and tensor_is_finite(torch.ones(()))
    )


def mapped_file(address: int) -> str:
    """The file that lies at an address of this process."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        first, last = (int(end, 16) for end in fields[0].split("-"))
        if first <= address < last:
            return fields[5] if len(fields) > 5 else ""
    return ""


@pytest.fixture
def wordpiece() -> Tokenizer:
    return learn(LINES, "wordpiece", 60)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/maps")
def test_weights_are_mapped_and_the_file_stays_as_it_is(wordpiece: Tokenizer, tmp_path: Path) -> None:
    model_for("classify", 3, wordpiece, LABELS).save(tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    before = digest(file)
    model = weft.load(tmp_path / "model")
    weights = dict(model.network.named_parameters())
    # BERT publishes the maps to queries, keys and values apart: put together they are a copy.
    apart = [name for name, each in weights.items() if mapped_file(each.data_ptr()) != str(file)]
    # What follows a bias of three numbers is not aligned, so that is copied too.
    assert apart and all(".qkv." in name or name == "heads.classify.output.weight" for name in apart)
    assert all(each.data_ptr() % 64 == 0 for each in weights.values()), "products may round otherwise elsewhere"
    with torch.no_grad():
        for each in weights.values():
            each.add_(1)
    assert digest(file) == before
    other = weft.load(tmp_path / "model")
    assert not torch.equal(dict(other.network.named_parameters())["tokens.weight"], weights["tokens.weight"])


@pytest.mark.skipif(sys.platform == "win32", reason="Windows replaces no file that is open")
def test_a_model_outlives_its_file(wordpiece: Tokenizer, tmp_path: Path) -> None:
    model_for("classify", 3, wordpiece, LABELS).save(tmp_path / "model")
    model = weft.load(tmp_path / "model")
    expected = [each.scores for each in weft.load(tmp_path / "model")(TEXTS)]
    scratch = tmp_path / "new.safetensors"
    scratch.write_bytes(b"nothing")
    scratch.replace(tmp_path / "model" / "model.safetensors")
    assert [each.scores for each in model(TEXTS)] == expected


# --------------------------------------------------------------------------------------------------------- tokenizers

FULL = {
    "truncation": {"max_length": 4, "stride": 1, "strategy": "LongestFirst", "direction": "Right"},
    "padding": {
        "strategy": {"Fixed": 9},
        "direction": "Left",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "[PAD]",
    },
}
CHANGES: dict[str, dict[str, Any]] = {
    "as it is": {},
    "cuts and pads": FULL,
    "says half of how to cut": {"truncation": {"max_length": 4}},
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram", "word"])
def test_a_tokenizer_is_what_its_whole_file_says(kind: Any, change: str, tmp_path: Path) -> None:
    """The library reads the file's own text where nothing in it is changed: the same as a text written for it."""
    learn(LINES, kind, 60 if kind != "bpe" else 300).save(tmp_path)
    file = tmp_path / "tokenizer.json"
    data = json.loads(file.read_text(encoding="utf-8")) | CHANGES[change]
    for dropout in (None, 0.5) if kind == "bpe" else (None,):
        if kind == "bpe":
            data["model"]["dropout"] = dropout
        file.write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")
        clean = {**data, "truncation": None, "padding": None}
        clean["model"] = {**data["model"], **({"dropout": None} if kind == "bpe" else {})}
        expected = Library.from_str(json.dumps(clean))
        loaded = load_tokenizer(file)
        assert loaded.library.to_str() == expected.to_str()
        assert loaded.tokens == expected.get_vocab(with_added_tokens=True)
        assert len(loaded.encode("the cat sat on the mat and an ant and a cow").ids) > 4


def test_merges_of_both_kinds_are_read(tmp_path: Path) -> None:
    learn(LINES, "bpe", 300).save(tmp_path)
    file = tmp_path / "tokenizer.json"
    data = json.loads(file.read_text(encoding="utf-8"))
    pairs = [merge if isinstance(merge, list) else merge.split(" ") for merge in data["model"]["merges"]]
    expected = load_tokenizer(file).encode(LINES[0]).ids
    for merges in (pairs, [" ".join(pair) for pair in pairs], [pairs[0], *(" ".join(pair) for pair in pairs[1:])]):
        data["model"]["merges"] = merges
        file.write_text(json.dumps(data), encoding="utf-8")
        if all(type(merge) is type(merges[0]) for merge in merges):
            assert load_tokenizer(file).encode(LINES[0]).ids == expected
    for bad in ("a", "a b c", ["a"], ["a", 1], ["a", "b", "c"], 3, None):
        for place in (0, -1):
            for form in (pairs, [" ".join(pair) for pair in pairs]):
                data["model"]["merges"] = [*form]
                data["model"]["merges"][place] = bad
                file.write_text(json.dumps(data), encoding="utf-8")
                with pytest.raises(weft.UserError, match=r"model\.merges\.\d+ is not two tokens"):
                    load_tokenizer(file)


@pytest.mark.parametrize(("token", "kind"), [("ab", str), ("a b", list), ("#versions", list)])
def test_merges_are_stored_as_the_library_reads_them_best(token: str, kind: type, tmp_path: Path) -> None:
    left, right = token[:-1], token[-1]
    vocabulary = {name: number for number, name in enumerate(("a", left, right, token, token + "a"))}
    vocabulary = {name: number for number, name in enumerate(vocabulary)}
    library = Library(models.BPE(vocabulary, [(left, right), (token, "a")]))
    tokenizer = Tokenizer(library, published.tokenizer.find_roles({}, library, tmp_path), {})
    tokenizer.save(tmp_path)
    file = tmp_path / "tokenizer.json"
    merges = json.loads(file.read_text(encoding="utf-8"))["model"]["merges"]
    assert len(merges) == 2 and {type(merge) for merge in merges} == {kind}
    assert Library.from_file(str(file)).to_str() == library.to_str() == load_tokenizer(tmp_path).pipeline


@pytest.mark.parametrize("bad", [["x"], ["x", 1, 2], [1, 1.0], ["x", True], ["x", 1e10], ["x", "1"], "xy", None])
def test_every_piece_is_checked(bad: Any, tmp_path: Path) -> None:
    learn(LINES, "unigram", 60).save(tmp_path)
    file = tmp_path / "tokenizer.json"
    data = json.loads(file.read_text(encoding="utf-8"))
    data["model"]["vocab"][-1] = bad
    file.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(weft.UserError, match=rf"model\.vocab\.{len(data['model']['vocab']) - 1}"):
        load_tokenizer(file)


@pytest.mark.parametrize("bad", [-1, True, 1.0, "1", None, 7, 1 << 40])
def test_every_id_is_checked(bad: Any, tmp_path: Path) -> None:
    learn(LINES, "wordpiece", 60).save(tmp_path)
    file = tmp_path / "tokenizer.json"
    data = json.loads(file.read_text(encoding="utf-8"))
    data["model"]["vocab"][list(data["model"]["vocab"])[-1]] = bad  # 7 is the id of another token
    file.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(weft.UserError, match="id"):
        load_tokenizer(file)


@pytest.mark.parametrize("change", CHANGES)
def test_a_large_file_is_checked_once(change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was checked is known by its content; what the checks have changed is checked, and changed, each time."""
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(checked, "LARGE", 1)
    learn(LINES, "wordpiece", 60).save(tmp_path / "model")
    file = tmp_path / "model" / "tokenizer.json"
    data = json.loads(file.read_text(encoding="utf-8")) | CHANGES[change]
    file.write_text(json.dumps(data), encoding="utf-8")
    first = load_tokenizer(file)
    marks = list((tmp_path / "cache" / checked.CHECKED).glob("*"))
    assert len(marks) == (change != "says half of how to cut")
    parsed: list[Path] = []
    monkeypatch.setattr(published, "parse_json", lambda text, path: parsed.append(path) or parse_json(text, path))
    again = load_tokenizer(file)
    assert len(parsed) == 1 - len(marks)
    assert again.library.to_str() == first.library.to_str() and again.roles == first.roles
    assert again.encode("the cat and an ant and a cow").ids == first.encode("the cat and an ant and a cow").ids
    monkeypatch.setattr(checked, "VERSION", "another")
    load_tokenizer(file)
    assert len(parsed) == 2 - len(marks)
    data["model"]["vocab"][list(data["model"]["vocab"])[-1]] = 7  # the id of another token
    file.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(weft.UserError, match="id"):
        load_tokenizer(file)


# ------------------------------------------------------------------------------------------------------------ a pipe


def sizes(moment: float, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How large batches of at most 8, later 64, become where one is quick that takes no more than a moment."""
    monkeypatch.setattr(inputs, "MOMENT", moment)
    numbers, counts = list(range(8 * 64)), list[int]()
    seen: list[int] = []
    for batch in inputs.as_they_come(numbers, 8, 64):
        seen += batch
        counts.append(len(batch))
        time.sleep(0.05)  # the thread reads ahead
    assert seen == numbers
    return counts


def test_batches_grow_while_they_take_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    counts, most = sizes(math.inf, monkeypatch), 8
    for count in counts:
        assert count <= most
        most = min(64, 2 * most) if count == most else most
    assert max(counts) == 64


def test_batches_of_a_slow_model_stay_small(monkeypatch: pytest.MonkeyPatch) -> None:
    assert max(sizes(-1, monkeypatch)) == 8


# ------------------------------------------------------------------------------------------------------ the collector


def test_the_collector_pauses_while_something_is_loaded() -> None:
    assert gc.isenabled()
    with collector_paused():
        assert not gc.isenabled()
        with collector_paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled() and gc.get_freeze_count() == 0
    with pytest.raises(KeyError), collector_paused():
        raise KeyError
    assert gc.isenabled()
    gc.disable()
    try:
        with collector_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_what_a_program_has_frozen_stays_frozen() -> None:
    gc.freeze()
    try:
        count = gc.get_freeze_count()
        with collector_paused():
            made = [[number] for number in range(10_000)]
        # Frozen objects that nobody needs any more go all the same, so that the count may fall a little.
        assert 0 < gc.get_freeze_count() < count + len(made) // 2
    finally:
        gc.unfreeze()


def test_what_was_made_in_the_pause_is_collected_later() -> None:
    class Node:
        pass

    with collector_paused():
        node = Node()
        vars(node)["own"] = node
    gone = weakref.ref(node)
    del node
    gc.collect()
    assert gone() is None

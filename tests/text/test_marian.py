"""Marian's vocabularies: the ids and texts of transformers' own tokenizer; damaged files refused."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.text.bilingual import CODES, bilingual, german, numbers_of
from tests.text.samples import ODD, lines, reviews
from weft.errors import UserError
from weft.text.tokenizers.published import load_tokenizer
from weft.text.tokenizers.sentencepiece import read_sides

CODED = [
    ">>fra<< The looms",
    ">>fra<<The looms",
    "The >>fra<< looms",
    ">>xyz<< The looms",
    ">>not one<< x",
    ">> no",
    ">>deu<<",
    "a</s> b <pad>c <unk> d <s> e",
    "\ttabs\t and  double   spaces ",
]


def theirs_of(folder: Path) -> Any:
    transformers = pytest.importorskip("transformers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # recommends a package for something that it does not do
        return transformers.MarianTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("apart", [False, True], ids=["joint", "apart"])
def test_the_ids_and_texts_of_transformers(apart: bool, tmp_path: Path) -> None:
    folder = bilingual(tmp_path / "a", apart)
    theirs = theirs_of(folder)
    source, target = read_sides(folder)
    texts = [*ODD, *CODED, *lines(100, 7), *german(100, 9), *(reviews(60) if os.environ.get("WEFT_DATA") else [])]
    unknown = source.id_of("unknown")
    assert source.ids([">>xyz<< The"])[0][0] == unknown and source.ids([">>fra<< The"])[0][0] == source.id(">>fra<<")
    seen = set()
    for text, mine, written in zip(texts, source.ids(texts), target.ids(texts), strict=True):
        assert mine == theirs(text)["input_ids"], text
        if apart and "<pad>" in text:
            continue  # transformers would write the source's number of it
        assert written == theirs(text_target=text)["input_ids"], text
        seen |= {*mine}
        for side, ids in ((source, mine), (target, written)):
            if side is target or not apart:  # transformers reads all ids by the target's names where there are two
                assert side.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
                both = side.decode(ids, specials=True), theirs.decode(ids)
                assert both[0].split() == both[1].split()
        encoded = source.encode(text)
        assert encoded.ids == mine == source.encode_batch([text])[0].ids
        parts = (encoded, encoded.offsets, encoded.tokens, encoded.words, encoded.sequences)
        assert {len(part) for part in parts} == {len(mine)} == {len(encoded.segments)}
    assert unknown in seen and len(seen) > 100
    assert source.ids(["The looms"], specials=False)[0] == source.ids(["The looms"])[0][:-1]


def test_a_foreign_character_has_its_number(tmp_path: Path) -> None:
    """What one model does not know, the other may: the number of the whole unknown run counts, as in transformers."""
    folder = bilingual(tmp_path)
    source, _ = read_sides(folder)
    assert source.id("ß") is not None and source.library.token_to_id("ß") is None
    assert source.ids(["ß"])[0][-2] == source.id("ß") == theirs_of(folder)("ß")["input_ids"][-2]
    assert source.ids(["ßß"])[0][-2] == source.id_of("unknown") == theirs_of(folder)("ßß")["input_ids"][-2]


def test_places_in_a_text_behind_a_code(tmp_path: Path) -> None:
    text = ">>fra<< The looms"
    encoded = read_sides(bilingual(tmp_path))[0].encode(text)
    assert text[slice(*encoded.offsets[0])] == encoded.tokens[0] == ">>fra<<"
    whole = "".join(text[a:b] for a, b in encoded.offsets[1:-1])
    assert whole.strip() == "The looms" and encoded.sequences[-1] is None and encoded.offsets[-1] == (0, 0)


def test_in_and_out_byte_by_byte(tmp_path: Path) -> None:
    for apart in (False, True):
        folder, out = bilingual(tmp_path / f"{apart}", apart), tmp_path / f"{apart}-out"
        source = load_tokenizer(folder)
        source.save(out)
        for name in ("source.spm", "target.spm", "vocab.json", *(["target_vocab.json"] if apart else [])):
            assert (out / name).read_bytes() == (folder / name).read_bytes()
        settings = json.loads((out / "tokenizer_config.json").read_text())
        assert settings["tokenizer_class"] == "MarianTokenizer" and settings["source_lang"] == "eng"
        assert theirs_of(out)("The looms")["input_ids"] == source.ids(["The looms"])[0]
        again = load_tokenizer(out)
        assert again.tokens == source.tokens and again.pipeline == source.pipeline
        assert load_tokenizer(out / "target.spm").ids(["Die Weber"]) == read_sides(out)[1].ids(["Die Weber"])
        assert [source.token(source.id(code)) for code in CODES] == CODES


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda numbers: {**numbers, "<pad>": len(numbers) + 3}, "have gaps; the first missing"),
        (lambda numbers: {**numbers, "<pad>": 5}, "id 5 is both"),
        (lambda numbers: {**numbers, "<pad>": -1}, "the id of '<pad>' is -1, not a number from 0"),
        (lambda numbers: {**numbers, "<pad>": "7"}, "the id of '<pad>' is 7, not a number from 0"),
        (lambda numbers: {name: n for name, n in numbers.items() if name != "<pad>"}, "has no number for <pad>"),
        (lambda numbers: {}, "have gaps"),
        (lambda numbers: list(numbers), "where an object is expected"),
    ],
    ids=["gap", "twice", "negative", "text", "no padding", "empty", "list"],
)
def test_numbers_that_no_table_could_have(change: Any, message: str, tmp_path: Path) -> None:
    folder = bilingual(tmp_path)
    (folder / "vocab.json").write_text(json.dumps(change(numbers_of(folder))))
    with pytest.raises(UserError, match=message) as caught:
        load_tokenizer(folder)
    assert "\n" not in str(caught.value) and "vocab.json" in str(caught.value)


def test_damaged_models(tmp_path: Path) -> None:
    folder = bilingual(tmp_path / "a")
    whole = (folder / "target.spm").read_bytes()
    for data in (b"", whole[:1000], b"\xff" * 50):
        (folder / "target.spm").write_bytes(data)
        with pytest.raises(UserError, match=r"target\.spm: "):
            load_tokenizer(folder)
    with pytest.raises(UserError, match="separate_vocabs is maybe, neither true nor false"):
        load_tokenizer(bilingual(tmp_path / "b", tokenizer_config__json={"separate_vocabs": "maybe"}))
    with pytest.raises(UserError, match=r"target_vocab\.json: cannot be read"):
        load_tokenizer(bilingual(tmp_path / "c", tokenizer_config__json={"separate_vocabs": True}))

"""Damaged and hostile vocabulary files: one line that names the file, never a traceback or a panic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.text.samples import folder_of
from weft.errors import UserError
from weft.text.tokenizers.published import load_tokenizer
from weft.text.tokenizers.tokenizer import Roles

WHOLE: dict[str, Any] = {
    "version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": None, "post_processor": None,
    "decoder": None, "model": {"type": "WordLevel", "vocab": {"a": 0, "u": 1}, "unk_token": "u"},
}  # fmt: skip
ADDED = {
    "id": 2,
    "content": "<x>",
    "single_word": False,
    "lstrip": False,
    "rstrip": False,
    "normalized": False,
    "special": True,
}
A, B = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, A],
    "pair": [A, B],
}
DEFINED = {"[CLS]": {"id": "[CLS]", "ids": [99], "tokens": ["[CLS]"]}}
WORDLEVEL, UNIGRAM = {"type": "WordLevel", "unk_token": "u"}, {"type": "Unigram"}
NAMES = "[UNK]\n[CLS]\n[SEP]"


def whole(**parts: Any) -> dict[str, Any]:
    """A small tokenizer.json with these parts in place of its own."""
    return {"tokenizer__json": WHOLE | parts}


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({}, "has no tokenizer: none of tokenizer.json, vocab.txt"),
        ({"tokenizer__json": "{"}, r"tokenizer.json line 1: not JSON"),
        ({"tokenizer__json": "[]"}, r"tokenizer.json: holds a JSON list"),
        ({"tokenizer__json": "{}"}, r"tokenizer.json: model is None, not an object"),
        (whole(added_tokens={"a": 1}), r"added_tokens is an object, not a list"),
        (whole(added_tokens=[{"content": 3}]), r"tokenizer.json: added_tokens.0 has no id, single_word"),
        (whole(added_tokens=[ADDED | {"id": 7}]), "added token '<x>' cannot have the id 7"),
        (whole(added_tokens=[ADDED | {"id": 0}]), "added token '<x>' cannot have the id 0"),
        (whole(model=WORDLEVEL | {"vocab": {"a": 0}}), "its unknown token 'u' is not in its"),
        (whole(model=WORDLEVEL | {"vocab": {"a": 0, "u": 0}}), "id 0 is both"),
        (whole(model=WORDLEVEL | {"vocab": {"a": 0, "u": 4000000}}), "first missing: 1"),
        (whole(model=WORDLEVEL | {"vocab": {"a": 0, "u": 4000000000}}), "the id of 'u' is 4000000000, not a whole"),
        (whole(model=WORDLEVEL | {"vocab": {"a": -1, "u": 0}}), "the id of 'a' is -1, not a whole number"),
        (whole(model=WORDLEVEL | {"vocab": 5}), "model.vocab is 5, not an object"),
        (whole(model={"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}), "`b` out of"),
        (whole(model=UNIGRAM | {"vocab": [["a", 0.0]], "unk_id": 3}), "model.unk_id is 3, but there are only 1 pieces"),
        (whole(model=UNIGRAM | {"vocab": [["a", 0.0]]}), "has no unknown token"),
        (whole(model=UNIGRAM | {"vocab": [["a", 0.0]] * 2, "unk_id": 0}), "have gaps"),
        (whole(post_processor=TEMPLATE | {"special_tokens": {}}), "uses \\[CLS\\], which it does"),
        (whole(post_processor=TEMPLATE | {"special_tokens": DEFINED}), "adds id 99 to every text"),
        (whole(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}), "damaged"),
        (whole(normalizer={"type": "Precompiled", "precompiled_charsmap": "é"}), "not base64"),
        (whole(normalizer={"type": "Nonsense"}), "normalizer: type 'Nonsense' is not one of BertNormalizer"),
        ({"vocab__txt": "[UNK]\n[CLS]\n[SEP]\na\na\n"}, r"vocab.txt line 5: 'a' is already in line 4"),
        ({"vocab__txt": "[CLS]\n[SEP]\na\n"}, r"vocab.txt: its unknown token '\[UNK\]' is not in its vocabulary"),
        ({"vocab__txt": "[UNK]\na\n"}, r"vocab.txt: has no \[CLS\] or no \[SEP\]"),
        ({"vocab__txt": b"[UNK]\n\xff\n"}, r"vocab.txt line 2: byte 0xff is not UTF-8"),
        ({"vocab__txt": NAMES, "tokenizer_config__json": {"do_lower_case": "yes"}}, "do_lower_case"),
        ({"vocab__txt": NAMES, "tokenizer_config__json": {"unk_token": 3}}, "unk_token in its settings"),
        ({"vocab__txt": "[UNK]", "tokenizer_config__json": {"word_tokenizer_type": "sudachi"}}, "split by sudachi"),
        ({"vocab__txt": NAMES, "tokenizer_config__json": {"tokenizer_class": "BertJapaneseTokenizer"}}, "by basic"),
        ({"vocab__json": {"a": 0}, "merges__txt": "a b\n"}, r"merges.txt line 1: 'b' is not in vocab.json"),
        ({"vocab__json": {"a": 0}, "merges__txt": "#version\na\n"}, r"merges.txt line 2: 'a' is not two tokens"),
        ({"vocab__json": {"a": 1.5}, "merges__txt": ""}, r"vocab.json: the id of 'a' is 1.5"),
        ({"vocab__json": {"a": 0, "b": 2}, "merges__txt": ""}, r"vocab.json: the ids of its 2 tokens have gaps"),
        ({"vocab__json": {"a": 0, "b": 0}, "merges__txt": ""}, r"vocab.json: id 0 is both"),
        ({"vocab__json": {"a": 0}, "merges__txt": "", "config__json": {"model_type": "ctrl"}}, "ctrl cuts words"),
        ({"spiece__model": b"\x0a\xff\xff"}, r"spiece.model: not a SentencePiece model, or damaged"),
        ({"spiece__model": b"\x0a\x05\x0a\x7fabc"}, r"spiece.model: .*a field reaches past its end"),
        ({"spiece__model": b""}, r"spiece.model: not a SentencePiece model: it has no pieces"),
    ],
)  # fmt: skip
def test_damaged_files(tmp_path: Path, files: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says) as caught:
        load_tokenizer(folder_of(tmp_path / "model", **files))
    assert "\n" not in str(caught.value) and str(tmp_path / "model") in str(caught.value)


def test_missing_and_huge(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere: not there"):
        load_tokenizer(tmp_path / "nowhere")
    with open(tmp_path / "tokenizer.json", "wb") as file:
        file.truncate((128 << 20) + 1)  # a hole, not an eighth of a gigabyte
    with pytest.raises(UserError, match=r"tokenizer.json: larger than 128 MiB"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("tokens", "roles"),
    [
        ("[PAD] [UNK] [CLS] [SEP] [MASK]",
         Roles(padding="[PAD]", unknown="[UNK]", start="[CLS]", separator="[SEP]", mask="[MASK]")),
        ("<s> <pad> </s> <unk> <mask>",
         Roles(padding="<pad>", unknown="<unk>", start="<s>", separator="</s>", mask="<mask>", end="</s>")),
        ("<|endoftext|> <unk>", Roles(unknown="<unk>", start="<|endoftext|>", end="<|endoftext|>")),
        ("<pad> </s> <unk>", Roles(padding="<pad>", unknown="<unk>", end="</s>")),
    ],
)  # fmt: skip
def test_roles_by_well_known_names(tmp_path: Path, tokens: str, roles: Roles) -> None:
    model = {"type": "WordLevel", "vocab": {t: n for n, t in enumerate(tokens.split())}, "unk_token": tokens.split()[1]}
    assert load_tokenizer(folder_of(tmp_path, tokenizer__json=WHOLE | {"model": model})).roles == roles

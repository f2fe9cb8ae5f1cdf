"""Tokenizers read from published files: the ids of transformers, nothing cut, and a folder that it opens again."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from tests.text.samples import ODD, folder_of, lines, reviews
from weft.errors import UserError
from weft.text.tokenizers.published import load_tokenizer
from weft.text.tokenizers.tokenizer import Roles, Tokenizer
from weft.text.tokenizers.training import learn


def published(name: str) -> Path:
    root = os.environ.get("WEFT_DATA")
    if not root:
        pytest.skip("WEFT_DATA is not set: no published vocabularies")
    return Path(root) / "vocabularies" / name


def agree(ours: Tokenizer, theirs: Any, texts: list[str]) -> None:
    """Ids, offsets and pairs equal to a transformers tokenizer, by every way to ask."""
    expected = theirs(texts, return_offsets_mapping=True)
    encoded = ours.encode_batch(texts)
    assert [one.ids for one in encoded] == expected["input_ids"]
    assert [one.offsets for one in encoded] == [[tuple(o) for o in row] for row in expected["offset_mapping"]]
    assert ours.ids(texts) == expected["input_ids"]
    assert ours.ids(texts, specials=False) == theirs(texts, add_special_tokens=False)["input_ids"]
    assert ours.encode(texts[-1]).ids == expected["input_ids"][-1]
    pairs = theirs(texts, texts[::-1], return_token_type_ids=True)
    both = ours.encode_batch(texts, texts[::-1])
    assert [one.ids for one in both] == pairs["input_ids"]
    assert [one.segments for one in both] == pairs["token_type_ids"]
    words = [text.split() for text in texts if text.split()]
    assert ours.ids(words) == theirs(words, is_split_into_words=True)["input_ids"]


@pytest.fixture(scope="module")
def wordpiece() -> Tokenizer:
    return learn(lines(300), "wordpiece", 300)


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    return learn(lines(300), "bpe", 400)


def vocabulary_text(tokenizer: Tokenizer) -> str:
    return "".join(f"{tokenizer.token(number)}\n" for number in range(tokenizer.vocabulary))


def bpe_files(tokenizer: Tokenizer) -> dict[str, Any]:
    model = json.loads(tokenizer.library.to_str())["model"]
    merges = "#version: 0.2\n" + "".join(f"{left} {right}\n" for left, right in model["merges"])
    return {"vocab__json": model["vocab"], "merges__txt": merges}


def test_bert_published(tmp_path: Path) -> None:
    from transformers import BertTokenizer

    shutil.copy(published("bert-base-uncased-vocab.txt"), tmp_path / "vocab.txt")
    ours = load_tokenizer(tmp_path)
    assert (ours.vocabulary, ours.kind, ours.length_limit) == (30522, "wordpiece", None)
    assert [ours.id_of(role) for role in ("padding", "unknown", "start", "separator", "mask")] == [
        0,
        100,
        101,
        102,
        103,
    ]
    agree(ours, BertTokenizer.from_pretrained(tmp_path), [*ODD, "a [MASK] b", *reviews(200)])
    assert load_tokenizer(published("bert-base-uncased-vocab.txt")).ids(ODD) == ours.ids(ODD)


def test_gpt2_published(tmp_path: Path) -> None:
    from transformers import GPT2Tokenizer

    for mine, theirs in (("vocab.json", "encoder.json"), ("merges.txt", "vocab.bpe")):
        shutil.copy(published(theirs), tmp_path / mine)
    ours = load_tokenizer(tmp_path)
    assert (ours.vocabulary, ours.kind, ours.id_of("end"), ours.id_of("start")) == (50257, "bpe", 50256, 50256)
    texts = [*ODD, "a <|endoftext|> b", *reviews(200)]
    agree_bytes = GPT2Tokenizer.from_pretrained(tmp_path, add_prefix_space=False)
    assert ours.ids(texts) == agree_bytes(texts)["input_ids"]
    assert load_tokenizer(published("encoder.json").parent).ids(texts) == ours.ids(texts)
    assert [ours.decode(ids) for ids in ours.ids(ODD)] == ODD
    folder_of(tmp_path, tokenizer_config__json={"add_prefix_space": True, "model_max_length": 1024})
    prefixed = load_tokenizer(tmp_path)
    agree(prefixed, GPT2Tokenizer.from_pretrained(tmp_path, add_prefix_space=True), texts)
    assert prefixed.length_limit == 1024


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"do_lower_case": False},
        {"do_lower_case": False, "strip_accents": True, "tokenize_chinese_chars": False},
        {"do_lower_case": True, "strip_accents": False, "model_max_length": 512},
    ],
)
def test_wordpiece_settings_and_save(tmp_path: Path, wordpiece: Tokenizer, settings: dict[str, Any]) -> None:
    from transformers import AutoTokenizer, BertTokenizer

    settings = {"tokenizer_class": "BertTokenizer", "own_key": [1], "auto_map": {"AutoTokenizer": "x.py"}, **settings}
    folder_of(tmp_path / "in", vocab__txt=vocabulary_text(wordpiece), tokenizer_config__json=settings)
    ours = load_tokenizer(tmp_path / "in")
    texts = [*ODD, *lines(30, 7)]
    kept = {key: value for key, value in settings.items() if key not in ("auto_map", "own_key", "tokenizer_class")}
    agree(ours, BertTokenizer(vocab=str(tmp_path / "in" / "vocab.txt"), **kept), texts)
    ours.save(tmp_path / "out")
    agree(ours, AutoTokenizer.from_pretrained(tmp_path / "out"), texts)
    again = load_tokenizer(tmp_path / "out")
    assert again.ids(texts) == ours.ids(texts) and again.roles == ours.roles
    assert again.length_limit == ours.length_limit == settings.get("model_max_length")
    written = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert written["own_key"] == [1] and "auto_map" not in written and written["tokenizer_class"] == "BertTokenizer"


def test_save_says_what_the_class_needs(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    cased = learn(lines(300), "wordpiece", 300, lowercase=False)
    cased.save(tmp_path / "in")
    plain = json.loads((tmp_path / "in" / "tokenizer_config.json").read_text())
    assert plain["tokenizer_class"] == "PreTrainedTokenizerFast" and plain["do_lower_case"] is False
    assert "token_type_ids" in plain["model_input_names"]
    folder_of(tmp_path / "in", tokenizer_config__json={"tokenizer_class": "BertTokenizerFast"})
    ours = load_tokenizer(tmp_path / "in")
    ours.save(tmp_path / "out")  # BertTokenizer builds its own pipeline, so it must be told about the capitals
    texts = [*ODD, *lines(30, 7)]
    assert AutoTokenizer.from_pretrained(tmp_path / "out")(texts)["input_ids"] == ours.ids(texts) == cased.ids(texts)


def test_special_names_from_settings(tmp_path: Path, wordpiece: Tokenizer) -> None:
    text = vocabulary_text(wordpiece).replace("[CLS]", "<begin>").replace("[SEP]", "<cut>").replace("[UNK]", "<what>")
    special = {"cls_token": "<begin>", "sep_token": {"content": "<cut>", "lstrip": False}, "unk_token": "<what>"}
    ours = load_tokenizer(folder_of(tmp_path, vocab__txt=text, special_tokens_map__json=special))
    assert ours.roles == Roles(padding="[PAD]", unknown="<what>", start="<begin>", separator="<cut>", mask="[MASK]")
    assert ours.encode("threads 京").tokens == ["<begin>", "threads", "<what>", "<cut>"]


@pytest.mark.parametrize("name", ["GPT2Tokenizer", "RobertaTokenizer", None])
def test_bpe_save(tmp_path: Path, bpe: Tokenizer, name: str | None) -> None:
    import transformers

    files = bpe_files(bpe)
    settings: dict[str, Any] = {"tokenizer_class": name, "add_prefix_space": True} if name else {}
    if name == "RobertaTokenizer":
        for token in ("<s>", "<pad>", "</s>", "<unk>", "<mask>"):
            files["vocab__json"][token] = len(files["vocab__json"])
    ours = load_tokenizer(folder_of(tmp_path / "in", **files, tokenizer_config__json=settings))
    texts = [*ODD[2:], *lines(30, 7)]
    if name:
        agree(ours, getattr(transformers, name).from_pretrained(tmp_path / "in"), texts)
    ours.save(tmp_path / "out")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    if not name:
        written = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
        assert written["model_input_names"] == ["input_ids", "attention_mask"]
    assert theirs(texts)["input_ids"] == ours.ids(texts)
    assert "token_type_ids" not in theirs(texts), "GPT-2 and RoBERTa in transformers would embed segments"
    assert load_tokenizer(tmp_path / "out").ids(texts) == ours.ids(texts)


@pytest.mark.parametrize("by", ["class", "model_type"])
def test_first_gpt(tmp_path: Path, by: str) -> None:
    from transformers import AutoTokenizer, OpenAIGPTTokenizer

    learner = tokenizers.Tokenizer(tokenizers.models.BPE(end_of_word_suffix="</w>", unk_token="<unk>"))
    learner.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    learner.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=250, end_of_word_suffix="</w>", special_tokens=["<unk>"], show_progress=False
    )
    learner.train_from_iterator(lines(200), trainer)
    model = json.loads(learner.to_str())["model"]
    folder = folder_of(
        tmp_path / "in",
        vocab__json=model["vocab"],
        merges__txt="#version: 0.2\n" + "".join(f"{left} {right}\n" for left, right in model["merges"]),
        tokenizer_config__json={"tokenizer_class": "OpenAIGPTTokenizer"} if by == "class" else {},
        config__json={"model_type": "openai-gpt"},
    )
    ours = load_tokenizer(folder)
    texts = [*ODD, *lines(30, 7)]
    agree(ours, OpenAIGPTTokenizer.from_pretrained(folder), texts)
    assert ours.roles.unknown == "<unk>"
    assert ours.decode(ours.ids(["The weavers wonder."])[0]) == "the weavers wonder ."
    ours.save(tmp_path / "out")
    assert AutoTokenizer.from_pretrained(tmp_path / "out")(texts)["input_ids"] == ours.ids(texts)


def test_nothing_is_cut_or_padded_or_left_to_chance(tmp_path: Path, bpe: Tokenizer) -> None:
    data = json.loads(bpe.library.to_str())
    data["truncation"] = {"max_length": 4, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    data["padding"] = {
        "strategy": {"Fixed": 8}, "direction": "Right", "pad_id": 0, "pad_type_id": 0, "pad_token": "!",
        "pad_to_multiple_of": None,
    }  # fmt: skip
    data["model"]["dropout"] = 0.5
    ours = load_tokenizer(folder_of(tmp_path, tokenizer__json=data))
    assert ours.ids(lines(5)) == bpe.ids(lines(5)) == ours.ids(lines(5))
    assert ours.ids([""]) == [[]]


def test_many_added_tokens(tmp_path: Path, wordpiece: Tokenizer) -> None:
    data = json.loads(wordpiece.library.to_str())
    base = wordpiece.vocabulary
    for n in range(20_000):
        flags = {"single_word": n % 5 == 0, "lstrip": n % 7 == 0, "rstrip": False}
        token = {"id": base + n, "content": f"<E{n}>", "normalized": n % 2 == 0, "special": n % 3 == 0, **flags}
        data["added_tokens"].append(token)
    folder_of(tmp_path, tokenizer__json=data)
    taken = []
    for _ in range(3):  # the best of three, of the time of this process: the machine may have other work
        start = time.process_time()
        ours = load_tokenizer(tmp_path)
        taken.append(time.process_time() - start)
    assert min(taken) < 1.0
    assert ours.vocabulary == base + 20_000 and ours.id("<E19999>") == base + 19_999
    assert json.loads(ours.library.to_str())["added_tokens"] == data["added_tokens"]
    assert ours.encode("threads <E7> threads", specials=False).ids.count(base + 7) == 1


def test_added_tokens_beside_a_vocabulary(tmp_path: Path, wordpiece: Tokenizer) -> None:
    from transformers import AutoTokenizer

    size = wordpiece.vocabulary
    folder = folder_of(
        tmp_path / "in", vocab__txt=vocabulary_text(wordpiece), added_tokens__json={"<b>": size + 1, "<a>": size}
    )
    ours = load_tokenizer(folder)
    assert ours.encode("threads<b>looms <a>", specials=False).tokens == ["threads", "<b>", "looms", "<a>"]
    ours.save(tmp_path / "out")
    text = ["threads<b>looms <a>"]
    assert AutoTokenizer.from_pretrained(tmp_path / "out")(text)["input_ids"] == ours.ids(text)
    folder_of(folder, added_tokens__json={"<a>": size + 1})
    with pytest.raises(UserError, match=f"vocab.txt: added token '<a>' cannot have the id {size + 1}"):
        load_tokenizer(folder)
    (folder / "added_tokens.json").unlink()
    told = {str(size): {"content": "<a>", "special": True, "normalized": False, "lstrip": True}}
    told["4"] = {"content": "[MASK]", "special": True, "lstrip": True}
    folder_of(folder, tokenizer_config__json={"tokenizer_class": "BertTokenizer", "added_tokens_decoder": told})
    ours = load_tokenizer(folder)
    ours.save(tmp_path / "out2")
    text = ["threads <a> looms [MASK]", "[CLS] x"]
    assert ours.encode(text[0]).offsets[2] == (7, 11), "the space before goes with the token"
    assert AutoTokenizer.from_pretrained(tmp_path / "out2")(text)["input_ids"] == ours.ids(text)


def test_encoded_view(wordpiece: Tokenizer, bpe: Tokenizer) -> None:
    text, other = "Threads wonderfully unravel", "The looms"
    one = wordpiece.encode(text, other)
    assert len(one) == len(one.ids) == len(one.tokens)
    second = one.tokens.index("[SEP]") + 1
    assert one.segments == [0] * second + [1] * (len(one) - second)
    assert [side is None for side in one.sequences] == [token in ("[CLS]", "[SEP]") for token in one.tokens]
    for token, (start, end), side in zip(one.tokens, one.offsets, one.sequences, strict=True):
        if side is not None:
            assert (text, other)[side][start:end].lower() == token.removeprefix("##")
    assert one.words[0] is None and one.words[1] == 0 and max(w for w in one.words[:second] if w is not None) == 2
    words = wordpiece.encode(["Threads", "wonderfully", "unravel"], ["The", "looms"])
    assert words.ids == one.ids and words.words == one.words
    assert bpe.encode(text).sequences == [0] * len(bpe.encode(text))
    assert wordpiece.encode_batch([]) == [] and wordpiece.ids([]) == []
    assert wordpiece.token(wordpiece.id("[MASK]") or -1) == "[MASK]" and wordpiece.id("nowhere") is None
    assert wordpiece.id_of("end") is None
    assert wordpiece.decode(one.ids) == "threads wonderfully unravel the looms"
    assert wordpiece.decode(one.ids, specials=True).startswith("[CLS] threads")
    assert pickle.loads(pickle.dumps(wordpiece)).ids([text]) == wordpiece.ids([text])


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (["good", "half \ud83d"], r"text 2 of 2: holds '\\ud83d', half of a surrogate pair"),
        (["good", 3], "text 2 of 2: a int where a text is expected"),
        ([["a", 3]], "text 1 of 1: a int where words are expected"),
    ],
)
def test_what_is_no_text(wordpiece: Tokenizer, texts: Any, says: str) -> None:
    for call in (wordpiece.encode_batch, wordpiece.ids):
        with pytest.raises(UserError, match=says):
            call(texts)
    with pytest.raises(UserError, match="text 1 of 1: " + says.partition(": ")[2]):
        wordpiece.encode(texts[-1])


def test_a_text_by_itself_has_the_ids_that_it_has_among_others() -> None:
    tokenizer = learn(["the weaver sang at the loom", "a loom"] * 4, "wordpiece", 60)
    texts = ["", "the loom", "Sang!", "the weaver " * 40, "a" * 300]
    for specials in (True, False):
        assert [tokenizer.ids([text], specials)[0] for text in texts] == tokenizer.ids(texts, specials)
    wrong: Any
    for wrong, fault in ((["a \ud800"], "text 1 of 1: holds '.ud800'"), ([3], "text 1 of 1: a int where a text")):
        with pytest.raises(UserError, match=fault):
            tokenizer.ids(wrong)

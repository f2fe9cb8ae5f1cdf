"""Published XLM vocabularies: words by Moses, beside transformers' XLMTokenizer, with the places of tokens."""

from __future__ import annotations

import json
import sys
import unicodedata
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers import Tokenizer as Library
from tokenizers import models, trainers

import weft
from weft.errors import UserError
from weft.text.tokenizers.published import load_tokenizer

sacremoses = pytest.importorskip("sacremoses", reason="the extra xlm is not installed")

SENTENCES = {
    "en": [
        "Mr. Smith's dog doesn't bark; it wasn't there at 5,300 ft., e.g. in the U.S., was it?",
        "“Don’t go,” she said… (or so I heard) — “it’s 20 % off!”",
        "Visit http://example.com/a_b?c=1 or write to me@example.org now!",
    ],
    "de": [
        "Die Größe der Straße beträgt z.B. 3,5 m; „schön“, sagte Dr. Müller.",
        "Ich hab's gesehen – am 3. Mai, um 12:30 Uhr.",
    ],
    "fr": [
        "L'été, c'est « génial » ! Aujourd'hui, j'ai mangé 3 crêpes à l'hôtel.",
        "Qu'est-ce que c'est ? Où vas-tu, M. Dupont ?",
    ],
    "ro": ["Această țară și orașul său sunt frumoase, într-adevăr."],
    "ru": ["Ёлка стоит в лесу, а дом — у реки. Это г. Москва!"],
    "es": ["¿Dónde está el niño? ¡Aquí, señor!"],
    "vi": ["Tôi không biết tiếng Việt, nhưng tôi thích phở."],
}
ODD = ["", " ", "...", "a", "日本語。テスト，１２３", "tab\there", "x" * 300, "emoji 😀 and \u200b nothing"]
ODD += ["20\u00a0000 \u00a0% «\u00a0oui\u00a0»", '"go," he said. "it\'s ``late\'\'", 3,000.5 km!!!']


def folder_of(folder: Path, **settings: Any) -> Path:
    """A vocabulary as published: counts beside merges, and a merge whose result is no token of its own."""
    folder.mkdir(exist_ok=True)
    lowercase = settings.get("do_lowercase_and_remove_accent", True)
    words = list[str]()
    for language, texts in SENTENCES.items():
        moses = sacremoses.MosesTokenizer(lang=language)
        words += [word for text in texts for word in moses.tokenize(text.lower() if lowercase else text, escape=False)]
    library = Library(models.BPE(end_of_word_suffix="</w>"))
    library.train_from_iterator(words * 3, trainers.BpeTrainer(vocab_size=420, end_of_word_suffix="</w>"))
    model = json.loads(library.to_str())["model"]
    made = Counter(left + right for left, right in model["merges"])
    between = [token for token in made if sum(token in pair for pair in model["merges"]) and len(token) == 2][:1]
    specials = ["<s>", "</s>", "<pad>", "<unk>", *(f"<special{number}>" for number in range(10))]
    tokens = [*specials, *(token for token in model["vocab"] if token not in between)]
    (folder / "vocab.json").write_text(json.dumps({token: number for number, token in enumerate(tokens)}))
    (folder / "merges.txt").write_text("".join(f"{left} {right} 7\n" for left, right in model["merges"]))
    (folder / "config.json").write_text(json.dumps({"model_type": "xlm"}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "XLMTokenizer", **settings}))
    return folder


@pytest.mark.parametrize("lowercase", [True, False])
def test_the_ids_of_transformers_in_every_language_that_moses_splits(lowercase: bool, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "xlm", do_lowercase_and_remove_accent=lowercase)
    theirs, ours = transformers.XLMTokenizer.from_pretrained(str(folder)), load_tokenizer(folder)
    for language, texts in SENTENCES.items():
        own = ours.in_language(language)
        for text in (*texts, *(odd for odd in ODD if "\t" not in odd)):
            expected = theirs.convert_tokens_to_ids(theirs._tokenize(text, lang=language))
            assert own.encode(text, specials=False).ids == expected == own.ids([text], specials=False)[0], text
    assert ours.encode("the dog", "a mill").ids == theirs("the dog", "a mill")["input_ids"]
    assert ours.encode("the <special1> barks").ids == theirs("the <special1> barks")["input_ids"]
    assert {len(theirs), ours.vocabulary} == {len(json.loads((folder / "vocab.json").read_text()))}
    ours.save(tmp_path / "again")
    again = transformers.XLMTokenizer.from_pretrained(str(tmp_path / "again"))
    assert all(again(text)["input_ids"] == theirs(text)["input_ids"] for text in SENTENCES["en"])
    assert load_tokenizer(tmp_path / "again").ids(SENTENCES["en"]) == ours.ids(SENTENCES["en"])


def test_a_merge_whose_result_is_no_token_gives_an_unknown_one(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "xlm")
    tokens = ["<s>", "</s>", "<pad>", "<unk>", "<special1>", "a", "b", "c</w>", "x</w>", "abc</w>"]
    (folder / "vocab.json").write_text(json.dumps({token: number for number, token in enumerate(tokens)}))
    (folder / "merges.txt").write_text("a b 9\nab c</w> 5\n")
    theirs, ours = transformers.XLMTokenizer.from_pretrained(str(folder)), load_tokenizer(folder)
    assert ours.vocabulary == len(tokens) == len(ours.tokens)
    assert ours.ids(["abc abx ac"]) == [[0, 9, 3, 8, 5, 7, 1]] == [theirs("abc abx ac")["input_ids"]]


def test_tokens_know_where_they_stand(tmp_path: Path) -> None:
    ours = load_tokenizer(folder_of(tmp_path / "xlm"))
    for language, texts in SENTENCES.items():
        own: Any = ours.in_language(language)
        for text in (*texts, *ODD):
            encoded = own.encode(text, specials=False)
            for token, (start, end) in zip(encoded.tokens, encoded.offsets, strict=True):
                assert 0 <= start <= end <= len(text)
                here, piece = (
                    own.splitter.folded(unicodedata.normalize("NFKC", text[start:end])),
                    token.removesuffix("</w>"),
                )
                if token != "<unk>" and any(map(str.isalnum, piece)):  # marks are rewritten
                    assert list(filter(str.isalnum, here)) == list(filter(str.isalnum, piece)), (text, token)
    encoded = ours.encode("A “Café” in the U.S.\nis open")
    spans = ["A “Café” in the U.S.\nis open"[start:end] for start, end in encoded.offsets]
    words = ["".join(part for part, word in zip(spans, encoded.words, strict=True) if word == n) for n in range(8)]
    assert words == ["A", "“", "Café", "”", "in", "the", "U.S.", "is"]


def test_a_folder_of_several_languages_is_split_in_the_one_it_is_read_in(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "xlm")
    size = len(json.loads((folder / "vocab.json").read_text()))
    languages = {"n_langs": 3, "lang2id": {"de": 0, "en": 1, "zh": 2}, "id2lang": {"0": "de", "1": "en", "2": "zh"}}
    config = transformers.XLMConfig(vocab_size=size, emb_dim=32, n_layers=1, n_heads=2, **languages)
    transformers.XLMWithLMHeadModel(config).save_pretrained(folder)
    theirs = transformers.XLMTokenizer.from_pretrained(str(folder))
    for model, language in ((weft.load(folder), "de"), (weft.load(folder, language="en"), "en")):
        expected = theirs.convert_tokens_to_ids(theirs._tokenize("it wasn't", lang=language))
        assert model.opened.tokenizer.encode("it wasn't", specials=False).ids == expected  # type: ignore[union-attr]
    assert len(weft.load(folder)("the <special1> barks").gaps) == 1
    with pytest.raises(UserError, match="splits 'zh' with rjieba, which Weft does not run"):
        weft.load(folder, language="zh")


def test_mistakes_get_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_of(tmp_path / "xlm")
    (folder / "merges.txt").write_text("t h 9\nthree parts of it\n")
    with pytest.raises(UserError, match="merges.txt line 2: 'three parts of it' is not two tokens"):
        load_tokenizer(folder)
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    with pytest.raises(UserError, match=r"XLM's words are split by the package sacremoses: pip install 'weft\[xlm\]'"):
        load_tokenizer(folder)

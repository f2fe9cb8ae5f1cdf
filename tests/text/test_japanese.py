"""Japanese BERT's tokenizer beside transformers' own: the same tokens, and where they stand."""

from __future__ import annotations

import json
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest

import weft
from weft.errors import UserError
from weft.text.tokenizers.japanese import normalized
from weft.text.tokenizers.published import load_tokenizer

TEXTS = [
    "機織り職人は古い織機で働いていた。",
    "アンナはﾛﾝﾄﾞﾝとパリへ行きました!",
    "Weft は Python の ＰＡＣＫＡＧＥ です。",
    "か\u3099くせい と ﾊﾟﾝ、㈱１２３㌔",
    "  空白　と\tタブ\n改行  ",
    "今日は[MASK]が歌う。",
    "未知の字: 𠮷 🧵 ☃",
    "",
]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def folder_of(here: Path, **settings: Any) -> Path:
    """A vocabulary of the characters of the texts, some words and pieces, with its settings."""
    here.mkdir(parents=True, exist_ok=True)
    letters = sorted(
        {c for text in TEXTS for c in unicodedata.normalize("NFKC", text) if not c.isspace()} - set("𠮷🧵☃")
    )
    words = [
        "織機",
        "職人",
        "##人",
        "古い",
        "アンナ",
        "パリ",
        "Python",
        "##ython",
        "Weft",
        "働い",
        "て",
        "##。",
        "です",
    ]
    vocabulary = list(dict.fromkeys([*PIECES, *letters, *words, *(f"##{letter}" for letter in letters[::2])]))
    (here / "vocab.txt").write_text("".join(f"{token}\n" for token in vocabulary))
    given = {
        "tokenizer_class": "BertJapaneseTokenizer",
        "do_lower_case": False,
        "word_tokenizer_type": "mecab",
        **settings,
    }
    (here / "tokenizer_config.json").write_text(json.dumps(given))
    return here


@pytest.fixture(scope="module", autouse=True)
def mecab() -> None:
    for name in ("fugashi", "ipadic", "unidic_lite"):
        pytest.importorskip(name, reason=f"the package {name} is not installed (weft[japanese])")


@pytest.mark.parametrize("pieces", ["wordpiece", "character"])
@pytest.mark.parametrize(
    "more",
    [
        {"mecab_kwargs": {"mecab_dic": "ipadic"}},
        {},
        {"do_lower_case": True},
        {"mecab_kwargs": {"normalize_text": False}},
    ],
    ids=["ipadic", "unidic", "lowercase", "as-it-is"],
)
def test_tokens_are_those_of_transformers(tmp_path: Path, pieces: str, more: dict[str, Any]) -> None:
    transformers = pytest.importorskip("transformers")
    folder = folder_of(tmp_path / "v", subword_tokenizer_type=pieces, **more)
    theirs = transformers.BertJapaneseTokenizer.from_pretrained(str(folder))
    load_tokenizer(folder).save(tmp_path / "again")
    saved = transformers.BertJapaneseTokenizer.from_pretrained(str(tmp_path / "again"))
    for ours in (load_tokenizer(folder), load_tokenizer(tmp_path / "again")):
        batch = ours.encode_batch(TEXTS)
        for text, encoded in zip(TEXTS, batch, strict=True):
            assert encoded.ids == theirs(text)["input_ids"] == saved(text)["input_ids"], text
            assert encoded.tokens == theirs.convert_ids_to_tokens(encoded.ids)
            assert ours.ids([text], specials=False)[0] == theirs(text, add_special_tokens=False)["input_ids"]
            assert ours.decode(encoded.ids) == theirs.convert_tokens_to_string(
                [token for token in encoded.tokens if token not in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")]
            )
        pair, wanted = ours.encode(TEXTS[0], TEXTS[1]), theirs(TEXTS[0], TEXTS[1], return_token_type_ids=True)
        assert pair.ids == wanted["input_ids"] and pair.segments == wanted["token_type_ids"]


@pytest.mark.parametrize("pieces", ["wordpiece", "character"])
def test_every_token_stands_where_its_letters_stand(tmp_path: Path, pieces: str) -> None:
    ours = load_tokenizer(folder_of(tmp_path, subword_tokenizer_type=pieces))
    for text in TEXTS:
        encoded = ours.encode(text)
        places = [span for span, side in zip(encoded.offsets, encoded.sequences, strict=True) if side is not None]
        assert places == sorted(places) and all(start < end for start, end in places)
        for token, (start, end), side in zip(encoded.tokens, encoded.offsets, encoded.sequences, strict=True):
            if side is None:
                assert (start, end) == (0, 0)
            elif token != "[UNK]":
                # Several letters may come from one sign (㈱), which then stands for each of them.
                assert token.removeprefix("##") in unicodedata.normalize("NFKC", text[start:end])
    words = ours.encode(["古い織機", "で"])
    assert set(words.words) == {0, 1, None} and max(end for _, end in words.offsets) == 4


def test_composed_letters() -> None:
    for text in ("か\u3099", "ﾊﾟﾝ", "e\u0323\u0301x", "㌔メートル", "\u1100\u1161\u11a8", "a" * 5):
        whole, spans = normalized(text)
        assert whole == unicodedata.normalize("NFKC", text) and len(spans) == len(whole)
        assert all(0 <= start < end <= len(text) for start, end in spans)
    marks = "a" + "\u0301" * 50_000  # in time that grows with the length alone
    whole, spans = normalized(marks)
    assert whole == unicodedata.normalize("NFKC", marks) and len(spans) == len(whole)
    assert normalized("ﾊﾟﾝ") == ("パン", [(0, 2), (2, 3)])


def test_a_model_reads_with_it(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(folder_of(tmp_path / "v"))
    made = weft.new("bert", tokenizer, size="1x64")
    made.save(tmp_path / "bert")
    again = weft.load(tmp_path / "bert", "embed")
    words = again.embed("アンナは織機で働いていた", per="token")
    assert words.tokens[0] == "アンナ" and words.spans[0] == (0, 3)
    assert again("古い織機").values == weft.load(tmp_path / "bert", "embed")("古い織機").values


def test_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, (settings, why) in enumerate(
        (
            ({"word_tokenizer_type": "jumanpp"}, "split by jumanpp"),
            ({"do_subword_tokenize": False}, "do_subword_tokenize is False; only true"),
            ({"never_split": ["Weft"], "do_lower_case": True}, "never_split"),
            ({"subword_tokenizer_type": "sentencepiece"}, "cut by sentencepiece"),
            ({"mecab_kwargs": {"mecab_dic": "nowhere"}}, "mecab_dic 'nowhere' is not one of"),
            ({"mecab_kwargs": {"mecab_option": "-d /etc"}}, "no options of MeCab"),
        )
    ):
        with pytest.raises(UserError, match=why) as told:
            load_tokenizer(folder_of(tmp_path / str(number), **settings))
        assert "\n" not in str(told.value)
    monkeypatch.setitem(sys.modules, "fugashi", None)
    with pytest.raises(UserError, match=r"the package fugashi: pip install 'weft\[japanese\]'"):
        load_tokenizer(folder_of(tmp_path / "absent"))

"""Learned vocabularies: the same text gives the same bytes, exactly the size asked for, and text that comes back."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from weft.errors import UserError
from weft.text.tokenizers import training
from weft.text.tokenizers.published import load_tokenizer
from weft.text.tokenizers.tokenizer import Roles, Tokenizer
from weft.text.tokenizers.training import KINDS, learn

WORDS = [
    "weft",
    "warp",
    "thread",
    "threads",
    "weaving",
    "woven",
    "loom",
    "looms",
    "pattern",
    "patterns",
    "river",
    "rivers",
    "letter",
    "letters",
    "model",
    "models",
    "token",
    "tokens",
    "wonder",
    "wonderful",
    "wonderfully",
    "unravel",
    "unravelled",
    "remember",
    "remembered",
    "naïve",
    "café",
    "Zürich",
    "don't",
    "can't",
    "3.14",
    "42",
    "re-read",
    "(said)",
    "state-of-the-art",
]
SIZES = {"wordpiece": 150, "bpe": 330, "unigram": 120, "word": 30, "whitespace": 30, "character": 40}
PLAIN = [*SIZES]  # ids of bytes and special tokens are fixed in the vocabulary of ELMo: models/test_elmo.py


def texts(number: int = 400) -> list[str]:
    dice = random.Random(1)
    return [" ".join(dice.choices(WORDS, k=dice.randrange(3, 12))).capitalize() + ".\n" for _ in range(number)]


def varied(number: int) -> list[str]:
    """Thousands of different words, most of them seen as often as another: what ties and hash order could shuffle."""
    dice = random.Random(2)
    parts = ["".join(dice.choices("etaoinshrdlucmfw", k=dice.randrange(1, 4))) for _ in range(120)]
    words = ["".join(dice.choices(parts, k=dice.randrange(1, 4))) for _ in range(3000)]
    return [" ".join(dice.choices(words, k=12)) for _ in range(number)]


@pytest.fixture(scope="module")
def learned() -> dict[str, Tokenizer]:
    pytest.importorskip("sentencepiece")
    return {kind: learn(texts(), kind, SIZES[kind]) for kind in PLAIN}


def test_same_bytes_in_another_process(tmp_path: Path) -> None:
    pytest.importorskip("sentencepiece")
    source = tmp_path / "text.json"
    source.write_text(json.dumps(texts(100) + varied(1500)))
    program = (
        "import json, sys\n"
        "from weft.text.tokenizers.training import KINDS, learn\n"
        "for kind in KINDS:\n"
        "    learn(json.load(open(sys.argv[1])), kind, 700).save(sys.argv[2] + '/' + kind)\n"
    )
    for seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": seed, "RAYON_NUM_THREADS": seed}
        subprocess.run([sys.executable, "-c", program, source, tmp_path / seed], check=True, env=environment)
    for kind in KINDS:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            first, second = ((tmp_path / seed / kind / name).read_bytes() for seed in ("1", "2"))
            assert first == second, f"{kind}: {name} differs"


@pytest.mark.parametrize("kind", PLAIN)
def test_size_roles_and_round_trip(learned: dict[str, Tokenizer], tmp_path: Path, kind: str) -> None:
    from transformers import AutoTokenizer

    ours = learned[kind]
    assert (ours.vocabulary, ours.kind) == (SIZES[kind], kind) and ours.roles == training.SPECIALS[kind]
    specials = list(dict.fromkeys(filter(None, vars(ours.roles).values())))
    expected = ["<pad>", "</s>", "<unk>"] if kind == "unigram" else specials
    assert [ours.token(number) for number in range(len(specials))] == expected
    ours.save(tmp_path)
    again, theirs = load_tokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    mixed = [*texts(50), "", " ", "unseen 漢字 😀 Qx", "WEFT"]
    assert again.ids(mixed) == ours.ids(mixed) == theirs(mixed)["input_ids"]
    assert (again.kind, again.roles, again.vocabulary) == (ours.kind, ours.roles, ours.vocabulary)
    ours.save(tmp_path / "two")
    assert (tmp_path / "two" / "tokenizer.json").read_bytes() == (tmp_path / "tokenizer.json").read_bytes()


def test_wordpiece_is_whole(learned: dict[str, Tokenizer]) -> None:
    ours = learned["wordpiece"]
    tokens = [ours.token(number) or "" for number in range(ours.vocabulary)]
    seen = sorted(set("".join(texts()).lower()) - set(" \n"))
    seen = [c for c in seen if c not in "ïéü"]  # accents are taken off
    assert tokens[5 : 5 + len(seen)] == seen
    assert tokens[5 + len(seen) : 5 + 2 * len(seen)] == ["##" + c for c in seen]
    assert len(set(tokens)) == len(tokens) and not any(training.MARK in token for token in tokens)
    assert ours.encode("Wonderful threads").tokens == ["[CLS]", "wonderful", "threads", "[SEP]"]
    assert ours.encode("unwoven").ids.count(ours.id_of("unknown")) == 0, "every character is known inside words too"
    assert "[UNK]" in ours.encode("漢").tokens
    cased = learn(texts(), "wordpiece", 250, lowercase=False)
    assert cased.encode("Zürich", specials=False).ids != cased.encode("zurich", specials=False).ids


def test_pieces_are_the_frequent_ones(learned: dict[str, Tokenizer]) -> None:
    for kind in ("wordpiece", "bpe", "unigram"):
        known = learned[kind].ids(["threads wonderful"], specials=False)[0]
        other = learned[kind].ids(["sdaerht lufrednow"], specials=False)[0]
        assert len(known) * 2 <= len(other), kind


def test_decode(learned: dict[str, Tokenizer]) -> None:
    text = "Weft don't  wonder.\n(said) re-read\tnaïve"
    assert learned["bpe"].decode(learned["bpe"].ids([text + " 漢字😀"])[0]) == text + " 漢字😀"
    characters = learn(texts(), "character", 100)
    known = "".join(texts(3))
    assert characters.decode(characters.ids([known])[0]) == known
    assert characters.encode("a b\n").tokens == ["a", " ", "b", "\n"]
    words = learn(["He said: don't (ever) go, 42%!", "He said: don't (ever) go, 42%!"], "word", 50)
    assert words.decode(words.ids(["He said: don't (ever) go, 42%!"])[0]) == "He said: don't (ever) go, 42%!"
    assert words.encode("he don't").tokens == ["<unk>", "don't"]
    lower = learn(["He He"], "word", 50, lowercase=True)
    assert lower.encode("HE").tokens == ["he"]
    unigram = learned["unigram"]
    assert unigram.decode(unigram.ids(["the woven threads"])[0]) == "the woven threads"
    assert unigram.encode("woven").tokens[-1] == "</s>"


def test_fewer_than_asked() -> None:
    for kind in KINDS:
        if kind == "unigram":
            pytest.importorskip("sentencepiece")
        few = learn(["one two one two three"], kind, 2000)
        assert 5 < few.vocabulary < 2000
        assert "漢" not in [few.token(number) for number in range(few.vocabulary)]


def test_own_specials_and_extra() -> None:
    pytest.importorskip("sentencepiece")
    roles = Roles(padding="<0>", unknown="<?>", start="<go>", end="<stop>", mask="<hole>")
    extra = ["<extra_id_1>", "<extra_id_0>"]
    for kind in PLAIN:
        ours = learn(texts(), kind, SIZES[kind] + 4, specials=roles, extra=extra)
        assert ours.vocabulary == SIZES[kind] + 4 and ours.roles == roles
        assert [ours.id(token) for token in extra] == [ours.vocabulary - 2, ours.vocabulary - 1]
        assert {ours.id_of(role) for role in ("padding", "unknown", "start", "end", "mask")} == set(range(5))
        assert "<hole>" in ours.encode("weft<hole>loom").tokens


@pytest.mark.parametrize(
    ("kind", "size", "says"),
    [
        ("wordpieces", 100, "vocabulary kind 'wordpieces' is not one of .*did you mean 'wordpiece'"),
        (
            "wordpiece",
            20,
            r"of 20 is too small: \d+ characters, each alone and inside a word, and 5 special",
        ),
        ("bpe", 256, "256 bytes and 1 special tokens need at least 257"),
        ("unigram", 10, r"a vocabulary of 10 is too small: .* need at least \d+"),
        ("word", 4, "need at least 5"),
        ("character", -3, "need at least 5"),
    ],
)
def test_too_small_or_unknown(kind: str, size: int, says: str) -> None:
    with pytest.raises(UserError, match=says):
        learn(texts(), kind, size)


@pytest.mark.parametrize("kind", KINDS)
def test_no_text(kind: str) -> None:
    spaces = [] if kind == "character" else [["  \n", "\t"]]  # white space is text to a character vocabulary
    for nothing in ([], [""], *spaces):
        with pytest.raises(UserError, match="there is no text to learn a vocabulary from"):
            learn(nothing, kind, 1000)


def test_other_mistakes(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="needs an unknown token"):
        learn(texts(), "word", 100, specials=Roles(padding="<pad>"))
    with pytest.raises(UserError, match="must differ"):
        learn(texts(), "bpe", 300, extra=["<|endoftext|>"])
    with pytest.raises(UserError, match="min_count must be between 1 and .*, not 0"):
        learn(texts(), "bpe", 300, min_count=0)
    with pytest.raises(UserError, match="text 2: holds half of a surrogate pair"):
        learn(["fine", "half \ud800"], "bpe", 300)
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(UserError, match=r"a unigram vocabulary needs sentencepiece: pip install 'weft\[data\]'"):
        learn(texts(), "unigram", 100)


def test_min_count_and_progress() -> None:
    seen: list[int] = []
    ours = learn(iter(["aa bb aa cc"] * 2 + ["dd"] * 2499), "word", 100, min_count=3, progress=seen.append)
    assert [ours.token(number) for number in range(4, ours.vocabulary)] == ["dd", "aa"]
    assert seen == [1000, 2000, 2501]
    assert learn(["abca"], "character", 10).vocabulary == 7, "one sight of a character is enough"
    assert learn(["abca"], "character", 10, min_count=2).vocabulary == 5
    assert learn(["abca"], "character", 6).encode("abc").tokens == ["a", "b", "<unk>"], "the frequent come first"


def test_a_unigram_vocabulary_comes_back_to_the_last_digit(tmp_path: Path) -> None:
    """What was tokenized with it is found again by what it is: a score that comes back changed would lose that."""
    pytest.importorskip("sentencepiece")
    made = learn(texts(), "unigram", SIZES["unigram"], extra=["<extra_id_1>", "<extra_id_0>"])
    made.save(tmp_path)
    assert load_tokenizer(tmp_path).library.to_str() == made.library.to_str()


def test_words_between_spaces_stay_as_they_are(tmp_path: Path) -> None:
    """Text that was cut into words before, such as the Penn Treebank's, with its own unknown words."""
    line = "mr. <unk> 's u.s. plan rose N % to $ N"
    ours = learn([line] * 3, "whitespace", 50)
    ids = ours.ids([line, "mr. weaver"], specials=False)
    assert len(ids[0]) == len(line.split()) and len(set(ids[0])) == 10
    assert ids[0][1] == ids[1][1] == ours.id_of("unknown") == 1
    assert ours.vocabulary == 4 + 9 and ours.decode(ids[0]) == line.replace(" <unk>", "")
    ours.save(tmp_path)
    again = load_tokenizer(tmp_path)
    assert again.kind == ours.kind == "whitespace" and again.ids([line], specials=False)[0] == ids[0]
    from transformers import AutoTokenizer

    assert AutoTokenizer.from_pretrained(tmp_path)(line, add_special_tokens=False).input_ids == ids[0]
    assert len(learn([line] * 3, "word", 50).ids([line], specials=False)[0]) > len(ids[0])

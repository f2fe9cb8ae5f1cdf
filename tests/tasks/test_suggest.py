"""Next words: their chances are those of all their spellings, whatever the tokens of a model are."""

from __future__ import annotations

import re
from collections import Counter

import pytest
import torch

import weft
from weft.checkpoint.folder import LoadedModel
from weft.errors import UserError
from weft.nn.rows import Ragged
from weft.tasks.suggest import first_word, suggest
from weft.text.tokenizers.spelling import after_typed, half_word
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.tokenizers.training import learn

TEXT = ["ab ab a b. the ab. don't ab"] * 4


def model_of(kind: str, size: int, allowed: list[str] | None = None) -> weft.Model:
    """A small model of strong opinions; where told so, with no chance for any but these tokens and the end."""
    tokenizer = learn(TEXT if size > 10 else ["ab b. a"], kind, size)
    made = weft.new("gpt2", tokenizer, size="1x64", settings={"context": 64, "weight_scale": 0.2}, seed=3)
    return made if allowed is None else restricted(made, allowed)


def restricted(made: weft.Model, allowed: list[str]) -> weft.Model:
    """The same with no chance for any but these tokens and the end."""
    tokenizer = made.opened.tokenizer
    assert isinstance(tokenizer, Tokenizer)
    numbers = [tokenizer.tokens[name] for name in allowed] + [tokenizer.id_of("end")]
    mask = torch.full((tokenizer.vocabulary,), -torch.inf)
    mask[torch.tensor(numbers)] = 0.0
    words = made.network.words
    made.network.words = lambda hidden: words(hidden) + mask  # type: ignore[operator, method-assign]
    return made


@torch.inference_mode()
def enumerated(opened: LoadedModel, text: str, depth: int, letters: str | None = None) -> tuple[Counter[str], float]:
    """Every way to go on by so many tokens, one by one: the chance of each first word, and of what is still open.

    With `letters`, which come after the text, only those that begin with them.
    """
    tokenizer = opened.tokenizer
    assert isinstance(tokenizer, Tokenizer)
    prompt = tokenizer.ids([text], specials=False)[0]
    before = tokenizer.decode(prompt)
    special = {tokenizer.id_of(role) for role in ("end", "start", "padding", "unknown")}
    open_ones, found = [([], 1.0)], Counter[str]()
    for _ in range(depth):
        ragged = Ragged.of([[*prompt, *said] for said, _ in open_ones])
        hidden = opened.network(ragged.tokens, ragged.rows)[ragged.rows.lasts()]
        table = opened.network.words(hidden).double().softmax(-1).tolist()  # type: ignore[operator]
        longer = []
        for (said, chance), row in zip(open_ones, table, strict=True):
            for token, share in enumerate(row):
                if chance * share < 1e-9:
                    continue
                whole = tokenizer.decode([*prompt, *said, token]).removeprefix(before)  # without the special ones
                typed = "" if letters is None else " " * (not text.endswith(" ")) + letters
                if not (whole.startswith(typed) or typed.startswith(whole)):
                    continue
                match = re.match(r"\s*([\w'\ufffd]+|[^\w\s])", whole)
                letters_there = match is not None and re.match(r"[\w'\ufffd]", match[1]) is not None
                glued = letters is None and whole[:1].strip() and text[-1].isalnum()
                if token in special and not whole.startswith(typed):
                    continue
                if token in special and match is None:
                    found["END"] += chance * share * (letters is None)
                elif glued and letters_there:
                    continue  # it goes on with the last word, which is complete
                elif match and (token in special or match.end() < len(whole) or not letters_there):
                    found[match[1]] += chance * share
                else:
                    longer.append(([*said, token], chance * share))
        open_ones = longer
    return found, sum(chance for _, chance in open_ones)


@pytest.mark.parametrize(
    ("kind", "size", "allowed"),
    [("character", 8, None), ("bpe", 262, ["a", "b", "ab", "Ġ", "Ġab", "."])],
)
def test_chances_are_those_of_an_exact_enumeration(kind: str, size: int, allowed: list[str] | None) -> None:
    made = model_of(kind, size, allowed)
    text = "b. a" if kind == "character" else "."
    wanted, left = enumerated(made.opened, text, 7)
    found = suggest(made, text, top=8, complete_word=False, width=4096)
    mass = wanted.total() + left
    assert found.exact and left < 0.01 and len(found.words) == 8 and not found.completes
    for word in found.words:
        exact = wanted[word.text or "END"] / mass
        assert exact - min(1e-4, found.aside) <= word.probability <= exact + left / mass + 1e-5, word.text
    chances = [word.probability for word in found.words]
    assert chances == sorted(chances, reverse=True) and sum(chances) <= 1 + 1e-9


LOOMS = ["the loom. the lo looms at a lock, and a lord looked. don't lose it"] * 4
TYPED = [("character", 30), ("bpe", 290), ("wordpiece", 60), ("unigram", 45), ("word", 40), ("whitespace", 40)]


def loom_model(kind: str, size: int, family: str = "gpt2") -> weft.Model:
    """A small model of strong opinions on words that begin alike."""
    tokenizer = learn(LOOMS, kind, size)
    settings = {"context": 64, "weight_scale": 0.2} if family == "gpt2" else {"weight_scale": 1.0}
    made = weft.new(family, tokenizer, size="1x64", settings=settings, seed=3)
    letters = ["l", "o", "oo", "Ġ", "Ġl", "Ġlo", "Ġloo", "Ġlock", "Ġlord", "m", "s", "e", ".", "Ġthe", "Ġa"]
    return restricted(made, [each for each in letters if each in tokenizer.tokens]) if kind == "bpe" else made


@pytest.mark.parametrize("letters", ["lo", "l"])  # the tokens of " lo" are one, those of " l" a space and a letter
@pytest.mark.parametrize(("kind", "size"), TYPED)
def test_a_half_typed_word_is_completed_as_an_exact_enumeration_says(kind: str, size: int, letters: str) -> None:
    made = loom_model(kind, size)
    wanted, left = enumerated(
        made.opened, "the " if kind == "character" else "the", 5 if kind == "character" else 4, letters
    )
    found = suggest(made, f"the {letters}", top=6, complete_word=True, width=2048)
    mass = wanted.total() + left
    assert found.completes == letters and found.exact and len(found.words) >= 4
    for word in found.words:
        exact = wanted[word.text] / mass
        assert word.text.startswith(letters)
        assert exact - found.aside - 1e-5 <= word.probability <= exact + left / mass + 1e-4, (word, exact)
    assert sum(word.probability for word in found.words) <= 1 + 1e-9
    best = max(wanted, key=lambda word: wanted[word])
    assert wanted[best] < 2 * left or found.words[0].text == best


@pytest.mark.parametrize(
    "text", ["東京", "Tokyo 東京で", "東京lo", "a lo", "คุณ", "한국", "don't", "a 🧵é", "lo ", "a  l", ""]
)
@pytest.mark.parametrize(("kind", "size"), [("bpe", 290), ("bpe", 258), ("character", 90), ("unigram", 90)])
def test_what_is_taken_back_is_what_was_typed(kind: str, size: int, text: str) -> None:
    """No byte of a character stays behind, and none comes twice."""
    lines = {258: ["東京東京"] * 4, 290: LOOMS}  # in bytes: a token has parts of two characters, or none has a token
    tokenizer = learn(lines.get(size, [*LOOMS, "東京で Tokyo คุณ 한국 🧵é"]), kind, size)
    half, ids = half_word(tokenizer, text), tokenizer.ids([text], specials=False)[0]
    assert half.before == ids[: len(ids) - half.taken] and text.endswith(half.letters)
    whole = tokenizer.decode(half.before) + half.typed.decode()  # fails on half a character
    spaces = kind == "unigram"  # one space for several, and none around a text
    assert (" ".join(whole.split()) if spaces else whole) == (" ".join(text.split()) if spaces else text)
    assert half.typed.decode().strip().endswith(half.letters.strip())
    assert half.taken < 6 + len(half.letters.encode()), "no more than a word"


def test_no_word_ends_inside_a_character() -> None:
    """Any byte may follow in a vocabulary of bytes, but half a character is no suggestion."""
    made = weft.new("gpt2", learn(LOOMS, "bpe", 290), size="1x64", settings={"context": 64}, seed=0)
    found = suggest(made, "the lo", top=200, complete_word=True)
    assert len(found.words) > 20 and not any("\ufffd" in word.text for word in found.words)


def test_what_is_new_after_what_was_typed() -> None:
    assert after_typed(" loom at", b" lo") == after_typed("loom at", b" lo") == "om at"
    assert after_typed("loom", b" ") == after_typed(" loom", b" ") == "loom" and after_typed("\n\na", b"\n") == "\na"
    assert after_typed(" l", b" lo") == ""


@pytest.mark.parametrize(("kind", "size"), [("word", 60), ("wordpiece", 60), ("unigram", 60), ("word-bytes", 300)])
def test_a_space_that_is_typed_is_not_generated_again(kind: str, size: int) -> None:
    """These vocabularies have no token for it, so the next word brings it: no piece of the last word may follow."""
    made = loom_model(kind, size)
    for seed in range(8):
        text = made("the lo ", max_tokens=3, complete_word=True, temperature=1.0, seed=seed).text
        assert text and not text[0].isspace(), text
    assert half_word(made.opened.tokenizer, "the lo ").typed == b" "


@pytest.mark.parametrize("kind", ["word", "word-bytes"])
def test_half_a_word_with_an_apostrophe_may_become_one_word(kind: str) -> None:
    """In "can'" the apostrophe is a word of its own, in "can't" it is not."""
    tokenizer = learn(["I can't say that I can .", "she can't , he can , it can ' t"] * 3, kind, 300)
    assert len(tokenizer.ids(["can '"], specials=False)[0]) == 2
    assert half_word(tokenizer, "I can'").typed == b" can'"


def test_tokens_are_not_completed() -> None:
    with pytest.raises(UserError, match="only words are completed"):
        suggest(loom_model("bpe", 290), "the lo", tokens=True, complete_word=True)


def test_a_text_of_one_half_typed_word() -> None:
    """Before it stands what ends another text, where a vocabulary has no token that begins one."""
    made = loom_model("unigram", 45)
    assert all(word.text.startswith("lo") for word in suggest(made, "lo", top=3, complete_word=True).words)
    whole, spaced = (made(text, max_tokens=4, complete_word=True).text for text in ("", " "))
    assert whole.strip() == spaced.strip() != "", "no letter is taken for the space"


def test_a_word_is_completed_unless_it_is_whole() -> None:
    """An n-gram model of whole words knows for sure which words there are."""
    tokenizer = learn(["the loom", "the loom", "a then"] * 4, "word", 20)
    made = weft.new("lstm", tokenizer, size="1x64", settings={"weight_scale": 0.1}, seed=0)
    the, then = (tokenizer.tokens[word] for word in ("the", "then"))
    for likely, completes in ((the, ""), (then, "the")):
        made.network.heads["words"].words.bias.data.zero_()  # type: ignore[union-attr, operator, index]
        made.network.heads["words"].words.bias.data[likely] = 20.0  # type: ignore[union-attr, operator, index]
        found = suggest(made, "a the", top=3)
        assert found.completes == completes
        if completes:
            assert [word.text for word in found.words] == ["then", "the"] and found.words[0].probability > 0.99
    assert suggest(made, "a the", complete_word=False).completes == ""
    assert suggest(made, "a the ", complete_word=True).completes == "", "a space after a word ends it"
    with pytest.raises(UserError, match="no word that begins with 'xq'"):
        suggest(made, "a xq", complete_word=True)
    assert suggest(made, "a xq").completes == "", "what cannot be completed is taken for a word"


def test_letters_are_those_of_the_vocabulary() -> None:
    made = loom_model("wordpiece", 60)
    small, large = (suggest(made, text, top=3, complete_word=True) for text in ("the lo", "the LO"))
    assert [word.probability for word in small.words] == [word.probability for word in large.words]
    assert [word.text.lower() for word in large.words] == [word.text for word in small.words]
    assert all(word.text.startswith("LO") for word in large.words), "the letters stay as they were typed"


@pytest.mark.parametrize("family", ["gpt2", "lstm"])
@pytest.mark.parametrize(("kind", "size"), TYPED)
def test_generation_begins_with_the_letters(kind: str, size: int, family: str) -> None:
    made = loom_model(kind, size, family)
    tokenizer = made.opened.tokenizer
    for search in ({}, {"temperature": 1.0, "n": 4}, {"beam_size": 3, "n": 3}):
        texts = ["the lo", "lo", "a looms at the"]
        answers = made(texts, max_tokens=4, complete_word=True, **search)
        for text, answer in zip(texts, answers, strict=True):
            letters = text.split()[-1]
            (before,) = tokenizer.ids([text[: -len(letters)].rstrip()], specials=False)
            for one in answer.best or [answer]:
                decoded = tokenizer.decode([*before, *one.tokens])
                assert decoded.startswith(text) and decoded[len(text) :] == one.text, (kind, search)


def test_a_typed_beginning_of_what_is_written() -> None:
    """What an encoder-decoder is made to begin with may end in a half-typed word, and so may that of a decoder."""
    tokenizer = learn(LOOMS, "unigram", 45)
    pair = weft.new("t5", tokenizer, size="1x64", settings={"begin": 0}, seed=0)
    pair.task = "complete"
    for made in (pair, loom_model("unigram", 45)):
        answer = made("the", max_tokens=5, force="a lo", complete_word=True)
        assert answer.text.strip().startswith("a lo")
    with pytest.raises(UserError, match="--force"):
        pair("the lo", complete_word=True)


def test_samples_are_drawn_from_the_words_given_the_letters() -> None:
    """Though the letters are spelled token by token, words come as often as they are likely after all the letters."""
    made = loom_model("bpe", 290)
    likely = {
        word.text: word.probability for word in suggest(made, "the lo", top=5, complete_word=True, width=2048).words
    }
    answer = made("the lo", max_tokens=6, complete_word=True, temperature=1.0, n=1500)
    counts = Counter(first_word("lo" + one.text)[0] for one in answer.best)
    for word, chance in likely.items():
        assert abs(counts[word] / 1500 - chance) < 5 * (chance * (1 - chance) / 1500) ** 0.5 + 0.005, (word, chance)


def test_stop_strings_and_streams_see_what_is_new() -> None:
    made = loom_model("character", 30)
    whole = made("the lo", max_tokens=6, complete_word=True)
    assert "".join(made.stream("the lo", max_tokens=6, complete_word=True)) == whole.text
    assert made("the lo", max_tokens=6, complete_word=True, stop=["lo"]).text == whole.text, "it was typed before"
    assert whole.n_tokens == 6
    with pytest.raises(UserError, match="choices"):
        made("the lo", complete_word=True, choices=["a"])


def test_a_space_at_the_end_closes_the_last_word() -> None:
    made = model_of("character", 12)
    free, closed = suggest(made, "the", top=40, complete_word=False), suggest(made, "the ", top=40)
    open_words = {word.text: word.probability for word in free.words if word.text.isalpha()}
    after = {word.text: word.probability for word in closed.words}
    shares = [after[text] / chance for text, chance in list(open_words.items())[:5] if text in after]
    assert max(shares) == pytest.approx(min(shares), rel=0.01) and len(shares) > 2 and shares[0] > 1, (
        "the same words, of all that is left"
    )
    assert any(word.text == "" for word in closed.words), "the text may end there"


def test_what_a_narrow_search_leaves_aside_is_said() -> None:
    made = model_of("character", 8)
    for completing in (True, False):
        whole, narrow = (suggest(made, "b. a", top=8, complete_word=completing, width=width) for width in (4096, 2))
        assert whole.exact and not narrow.exact and narrow.aside > whole.aside
        exact = {word.text: word.probability for word in whole.words}
        for word in narrow.words:
            if word.text in exact:
                assert word.probability <= exact[word.text] + 1e-5 <= word.probability + narrow.aside + 2e-5


def test_tokens_as_they_are() -> None:
    made = model_of("bpe", 262)
    found = suggest(made, "the", top=3, tokens=True)
    prompt = Ragged.of(made.opened.tokenizer.ids(["the"], specials=False))  # type: ignore[union-attr]
    scores, _ = made.network.start(prompt)  # type: ignore[operator]
    best = scores[0].softmax(-1).topk(3)
    assert [word.tokens[0] for word in found.words] == best.indices.tolist()
    assert [word.probability for word in found.words] == pytest.approx(best.values.tolist(), rel=1e-4)


def test_a_long_text_is_read_from_as_far_back_as_there_is_room() -> None:
    made = model_of("character", 12)
    found = suggest(made, "ab " * 100, top=2)
    assert found.truncated and found.n_tokens == 299
    assert not suggest(made, "ab", top=2).truncated


def test_words_and_marks() -> None:
    assert first_word("don't stop") == ("don't", True)
    assert first_word("loom") == ("loom", False)
    assert first_word("...and") == (".", True)


def test_mistakes() -> None:
    made = model_of("character", 12)
    with pytest.raises(UserError, match="between 1 and 1000"):
        suggest(made, "a", top=0)
    bert = weft.new("bert", learn(TEXT, "wordpiece", 60), size="1x64")
    with pytest.raises(UserError, match="does not generate text"):
        suggest(bert, "a")

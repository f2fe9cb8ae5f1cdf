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
from weft.tasks.choose import first_word, suggest
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.tokenizers.training import learn

TEXT = ["ab ab a b. the ab. don't ab"] * 4


def model_of(kind: str, size: int, allowed: list[str] | None = None) -> weft.Model:
    """A small model of strong opinions; where told so, with no chance for any but these tokens and the end."""
    tokenizer = learn(TEXT if size > 10 else ["ab b. a"], kind, size)
    made = weft.new("gpt2", tokenizer, size="1x64", settings={"context": 64, "weight_scale": 0.2}, seed=3)
    if allowed is None:
        return made
    numbers = [tokenizer.tokens[name] for name in allowed] + [tokenizer.id_of("end")]
    mask = torch.full((tokenizer.vocabulary,), -torch.inf)
    mask[torch.tensor(numbers)] = 0.0
    words = made.network.words
    made.network.words = lambda hidden: words(hidden) + mask  # type: ignore[operator, method-assign]
    return made


@torch.inference_mode()
def enumerated(opened: LoadedModel, text: str, depth: int) -> tuple[Counter[str], float]:
    """Every way to go on by so many tokens, one by one: the chance of each first word, and of what is still open."""
    tokenizer = opened.tokenizer
    assert isinstance(tokenizer, Tokenizer)
    prompt = tokenizer.ids([text], specials=False)[0]
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
                whole = tokenizer.decode([*said, token])  # without the special ones
                match = re.match(r"\s*([\w']+|[^\w\s])", whole)
                letters = match is not None and re.match(r"[\w']", match[1]) is not None
                if token in special and match is None:
                    found["END"] += chance * share
                elif match and (token in special or match.end() < len(whole) or not letters):
                    joined = "+" if letters and not whole[0].isspace() and text[-1].isalnum() else ""
                    found[joined + match[1]] += chance * share
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
    found = suggest(made, text, top=8, endings=True, width=4096)
    assert found.exact and left < 0.01 and len(found.words) == 8
    for word in found.words:
        name = ("+" if word.joined else "") + (word.text or "END")
        exact = wanted[name]
        assert exact - min(1e-4, found.aside) <= word.probability <= exact + left + 1e-5, name
    chances = [word.probability for word in found.words]
    assert chances == sorted(chances, reverse=True) and sum(chances) <= 1 + 1e-9


def test_a_space_at_the_end_closes_the_last_word() -> None:
    made = model_of("character", 12)
    free, closed = (suggest(made, text, top=40, endings=True) for text in ("the", "the "))
    assert any(word.joined for word in free.words) and not any(word.joined for word in closed.words)
    open_words = {word.text: word.probability for word in free.words if not word.joined and word.text.isalpha()}
    after = {word.text: word.probability for word in closed.words}
    shares = [after[text] / chance for text, chance in list(open_words.items())[:5] if text in after]
    assert max(shares) == pytest.approx(min(shares), rel=0.01) and len(shares) > 2 and shares[0] > 1, (
        "the same words, of all that is left"
    )
    assert any(word.text == "" for word in closed.words), "the text may end there"


def test_the_last_word_is_complete_unless_said() -> None:
    made = model_of("character", 12)
    free, complete = suggest(made, "the", top=40, endings=True), suggest(made, "the", top=40)
    assert any(word.joined for word in free.words) and not any(word.joined for word in complete.words)
    before = {word.text: word.probability for word in free.words if not word.joined}
    after = {word.text: word.probability for word in complete.words}
    shares = [after[text] / before[text] for text in ("", ".") if text in before]
    # What could not come is shared out among all that can.
    tokenizer = made.opened.tokenizer
    assert isinstance(tokenizer, Tokenizer)
    scores, _ = made.network.start(Ragged.of(tokenizer.ids(["the"], specials=False)))  # type: ignore[operator]
    letters = [number for number in range(tokenizer.vocabulary) if re.match(r"[\w']", tokenizer.decode([number]))]
    left = 1 - float(scores[0].softmax(-1)[letters].sum().detach())
    assert len(shares) == 2 and shares == pytest.approx([1 / left] * 2, rel=0.01) and left < 0.9


def test_what_a_narrow_search_leaves_aside_is_said() -> None:
    made = model_of("character", 8)
    whole, narrow = (suggest(made, "b. a", top=8, endings=True, width=width) for width in (4096, 2))
    assert whole.exact and not narrow.exact and narrow.aside > whole.aside
    exact = {(word.text, word.joined): word.probability for word in whole.words}
    for word in narrow.words:
        if (word.text, word.joined) in exact:
            assert word.probability <= exact[word.text, word.joined] + 1e-5 <= word.probability + narrow.aside + 2e-5


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

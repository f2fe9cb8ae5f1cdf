"""Texts that come again with other words: as many as asked for, always the same ones, and never a special token."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

import weft
from tests.tasks.small import LINES
from weft.distillation.dataset import Guesses, augmented
from weft.errors import UserError
from weft.tasks.base import Example
from weft.tasks.classify import TextTask
from weft.tasks.model import Model
from weft.tasks.tag import TagTask, joined
from weft.text.tokenizers.training import learn
from weft.text.windows import words_in

TEXTS = ["The oak is there again, and the cat is now here!", "a cow", "Ada lives in Rome . Bo lives in Oslo ."]
TASK = TextTask("classify")
EXAMPLES = [Example((text,), "label", f"t line {number}") for number, text in enumerate(TEXTS, 1)]


@pytest.fixture(scope="module")
def filler() -> Model:
    """An encoder that says masked words, with scores far apart and a context that a long text does not fit into."""
    made = weft.new("bert", learn(LINES, "wordpiece", 300), size="1x64", settings={"context": 16}, seed=1)
    with torch.no_grad():
        for parameter in made.network.parameters():
            if parameter.dim() > 1:
                parameter.mul_(8)
    return made


@pytest.mark.parametrize("by_model", [False, True])
def test_copies_are_many_different_and_always_the_same(by_model: bool, filler: Model) -> None:
    by = filler.opened if by_model else None
    found = augmented(TASK, EXAMPLES, 4, by, 7)
    assert len(found) == 4 * len(EXAMPLES)
    assert found == augmented(TASK, EXAMPLES, 4, by, 7)
    assert found != augmented(TASK, EXAMPLES, 4, by, 8)
    for number, example in enumerate(found):
        old = EXAMPLES[number // 4]
        assert example.target is None and example.where == old.where
        assert example.texts[0] != old.texts[0]
        before, after = (re.findall(r"\w+|[^\w\s]", text) for text in (*old.texts, *example.texts))
        changed = [place for place, (one, two) in enumerate(zip(before, after, strict=True)) if one != two]
        assert 1 <= len(changed) <= max(1, round(0.3 * len(before)))  # words for words, and few of them
        assert all(before[place].isalnum() and after[place].isalnum() for place in changed)
        assert not re.search(r"\[|##|UNK", example.texts[0])
    assert len({example.texts for example in found[:4]}) > 1  # each copy has words of its own


def test_a_copy_hangs_on_its_own_number_alone(filler: Model) -> None:
    """What other texts there are, and how many copies are made, changes nothing."""
    whole = augmented(TASK, EXAMPLES, 3, filler.opened, 1)
    alone = augmented(TASK, EXAMPLES[:1], 2, filler.opened, 1)
    assert alone == whole[:2]


def test_long_texts_go_through_in_windows(filler: Model) -> None:
    long = Example((" ".join(TEXTS * 8),), None, "t line 1")
    [found] = augmented(TASK, [long], 1, filler.opened, 3)
    before, after = long.texts[0].split(), found.texts[0].split()
    changed = [place for place, (one, two) in enumerate(zip(before, after, strict=True)) if one != two]
    assert len(changed) > 0.1 * len(before) and max(changed) > 0.8 * len(before) > 0.2 * len(before) > min(changed)


def test_words_that_have_tags_keep_their_number() -> None:
    """And say where they stand now."""
    tagged = joined(["U.S.", "troops", "in", "New", "York", "."], ["B-LOC", "O", "O", "B-LOC", "I-LOC", "O"])
    for example in augmented(TagTask(), [tagged], 8, None, 0):
        assert example.target is None and example.texts != tagged.texts
        words = [example.texts[0][a:b] for a, b in example.words]
        assert len(words) == 6 and " ".join(words) == example.texts[0] and words[-1] == "."


def test_of_a_pair_one_side_changes_or_both() -> None:
    pair = Example(("the cat sings today", "a dog is here now"), 1, "t line 1")
    found = augmented(TASK, [pair], 30, None, 0)
    kinds = {tuple(new == old for new, old in zip(each.texts, pair.texts, strict=True)) for each in found}
    assert kinds == {(True, False), (False, True), (False, False)}


def test_words_come_as_often_as_they_are_there() -> None:
    examples = [Example(("often often often often often often rare x",), None, "t line 1")]
    found = augmented(TASK, [*examples * 40], 5, None, 0)
    words = [text[a:b] for example in found for text in example.texts for a, b in words_in(text)]
    assert words.count("rare") < words.count("often")


def test_guesses_are_the_model_s_own(filler: Model) -> None:
    """A model that knows one word only says this word, or the few next to it where that was there before."""
    knows = filler.opened.tokenizer.id("oak")  # type: ignore[union-attr]
    network = weft.new("bert", filler.tokenizer, size="1x64", settings={"context": 16}, seed=1).network
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name.endswith("bias") and parameter.shape == (filler.config.vocabulary,):
                parameter[knows] = 50.0
    found = augmented(TASK, [Example(("cow sings today",), None, "")], 5, replace(filler.opened, network=network), 0)
    assert all("oak" in each.texts[0].casefold() for each in found)


@pytest.mark.parametrize(("family", "kind", "mark"), [("roberta", "bpe", "Ġ"), ("bert", "wordpiece", "")])
def test_only_whole_words_stand_in(family: str, kind: str, mark: str) -> None:
    """Neither a part of a word, nor a sign, nor a special token."""
    specials = {"start": "<s>", "padding": "<pad>", "end": "</s>", "unknown": "<unk>", "mask": "<mask>"}
    tokens = learn(LINES, kind, 340, specials=specials if kind == "bpe" else None)
    made = weft.new(family, tokens, size="1x64", settings={"context": 16})
    barred, tokenizer = Guesses.of(made.opened).barred, made.tokenizer
    assert tokenizer is not None
    words = [str(tokenizer.token(number)) for number in range(tokenizer.vocabulary) if not barred[number]]
    assert len(words) > 10 and all(re.fullmatch(rf"{mark}\w+", word) for word in words)
    assert not {tokenizer.id_of(role) for role in vars(tokenizer.roles)} & set((~barred).nonzero()[:, 0].tolist())


def test_texts_without_words_stay_as_they_are() -> None:
    assert [each.texts for each in augmented(TASK, [Example(("... !",), None, "")], 2, None, 0)] == [("... !",)] * 2


def test_a_model_that_fills_no_gaps_is_refused() -> None:
    speaks = weft.new("gpt2", learn(LINES, "bpe", 300), size="1x64", settings={"context": 16})
    with pytest.raises(UserError, match="fills no gaps"):
        augmented(TASK, EXAMPLES, 1, speaks.opened, 0)
    with pytest.raises(UserError, match="128|between 0 and 127"):
        augmented(TASK, EXAMPLES, 128, None, 0)

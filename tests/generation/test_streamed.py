"""Text that grows token by token is at every moment what decoding all of it would give."""

from __future__ import annotations

import random

import pytest

from tests.tasks.small import vocabulary
from weft.generation.text import Prompt, StreamedText, new_text, settled

KINDS = ["wordpiece", "bpe", "unigram", "word", "character"]


@pytest.mark.parametrize("stop", [(), ("e", "th ", "xyzzy")])
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_as_decoding_all_of_it(kind: str, stop: tuple[str, ...]) -> None:
    """Random tokens, special ones and parts of characters among them, after prompts with and without text."""
    tokenizer, chance = vocabulary(kind), random.Random(kind)
    for number in range(12):
        texts = ["", "a film", "a film (", "ein schöner Film 🎬"]
        prompt = Prompt(tokenizer.ids([texts[number % 4]], specials=False)[0] or [tokenizer.id_of("unknown") or 0])
        usual = tokenizer.ids(["the film is a good one, and long (too long). " * 4], specials=False)[0]
        tokens = [
            chance.choice(usual) if chance.random() < 0.6 else chance.randrange(tokenizer.vocabulary) for _ in range(90)
        ]
        streamed, shown = StreamedText(tokenizer, prompt, stop), ""
        for count in range(1, len(tokens) + 1):
            streamed.add(tokens[count - 1 : count])
            expected = settled(tokenizer, prompt, tokens[:count], stop)
            if not any(string in new_text(tokenizer, prompt, tokens[:count]) for string in stop):
                assert streamed.text[: streamed.ready] == expected
            assert streamed.text[: streamed.ready].startswith(shown)
            shown = streamed.text[: streamed.ready]
            assert streamed.ends[-1] == len(streamed.text) and len(streamed.ends) == count
        whole = new_text(tokenizer, prompt, tokens)
        ends = [whole.find(string) for string in stop if string in whole]
        assert shown == (whole[: min(ends)] if ends else whole[: len(shown)])
        assert len(whole) - len(shown) < 8 or ends


def test_a_window_is_decoded_and_not_the_whole_text() -> None:
    tokenizer = vocabulary("bpe")
    streamed = StreamedText(tokenizer, Prompt(tokenizer.ids(["a film"], specials=False)[0]))
    longest = 0
    decode = streamed._decoded

    def counted() -> str:
        nonlocal longest
        longest = max(longest, len(streamed.tokens) - streamed.first)
        return decode()

    streamed._decoded = counted  # type: ignore[method-assign]
    for _ in range(40):
        streamed.add(tokenizer.ids([" the film is good"], specials=False)[0])
    assert len(streamed.tokens) > 150 and longest < 40

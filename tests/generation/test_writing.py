"""From tokens to text on real vocabularies: whole characters as they come, stop strings, words as rules."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some

import weft
from tests.generation.toy import Toy
from weft.errors import UserError
from weft.generation.options import GenerationOptions
from weft.generation.text import Prompt, Stream, TextGenerator, continuation, forms, settled, tokens_of
from weft.tasks.complete import text_of, write
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.tokenizers.training import learn

LINES = [
    "The weaver said that the loom was old.",
    "Every thread of the weft crosses the warp.",
    "Zwölf Boxkämpfer jagen Viktor über den Deich, naïve café 🙂🧵.",
    "二匹の犬が雪の中で遊ぶ。",
] * 5
KINDS = [("bpe", 300), ("unigram", 90), ("word", 60), ("wordpiece", 140), ("character", 90)]
few = settings(max_examples=25, deadline=None)


@pytest.fixture(scope="module")
def vocabularies() -> dict[str, Tokenizer]:
    return {kind: learn(LINES, kind, size) for kind, size in KINDS}


@pytest.fixture(scope="module")
def gpt() -> Any:
    return weft.new("gpt2", learn(LINES[:2] * 9, "bpe", 300), size="2x64", settings={"context": 48}, seed=3)


class Reciter(Toy):
    """Says given tokens one after the other."""

    def __init__(self, vocabulary: int, tokens: list[int]) -> None:
        self.vocabulary, self.tokens, self.place = vocabulary, tokens, 0

    def start(self, prompt: Any, source: Any = None, room: int = 0, attention: bool = False) -> Any:
        self.place = 0
        return self._next(), None

    def step(self, tokens: torch.Tensor, state: Any) -> torch.Tensor:
        return self._next()

    def _next(self) -> torch.Tensor:
        scores = torch.full((1, self.vocabulary), -9.0)
        scores[0, self.tokens[self.place]] = 9.0
        self.place += 1
        return scores


@few
@given(data=some.data())
@pytest.mark.parametrize("kind", [kind for kind, _ in KINDS])
def test_pieces_joined_are_the_text(vocabularies: dict[str, Tokenizer], kind: str, data: Any) -> None:
    """Any tokens at all, broken characters among them: nothing that was shown is taken back, and no half is shown."""
    tokenizer = vocabularies[kind]
    number = some.integers(0, tokenizer.vocabulary - 1)
    known = some.sampled_from(LINES[:4]).map(lambda line: tokenizer.ids([line], specials=False)[0])
    said = data.draw(some.one_of(some.lists(number, min_size=1, max_size=12), known))
    prompt = data.draw(some.sampled_from([[0], tokenizer.ids([LINES[0]], specials=False)[0]]))
    text = continuation(tokenizer, prompt, said)
    cut = data.draw(some.integers(0, max(0, len(text) - 1)))
    inside = text[cut : cut + 3].strip("\ufffd")  # what part of a character looks like is no string to stop at
    inside = "x" if not inside or "\ufffd" in inside else inside
    stop = data.draw(some.sampled_from([(), ("never there",), tuple({inside, "the old"})]))
    writer = TextGenerator(decoder=Reciter(tokenizer.vocabulary, said), tokenizer=tokenizer, context=None)
    options = GenerationOptions(stop=stop)
    asked = Prompt(prompt, len(said))

    def pieces_of() -> Any:
        return text_of(writer, asked, (yield from writer.pieces(asked, options)), options)

    stream = Stream(pieces_of())
    with pytest.raises(UserError, match="not all there yet"):
        _ = stream.answer
    pieces = list(stream)
    whole = write(writer, [asked], options)[0]
    assert "".join(pieces) == stream.answer.text and stream.answer == whole
    assert all(pieces) and all("\ufffd" not in piece for piece in pieces[:-1] if "\ufffd" not in whole.text)
    if whole.finish_reason == "stop":
        assert not any(string in whole.text for string in stop)
        assert any(text[len(whole.text) :].startswith(string) for string in stop)
    elif whole.finish_reason == "length":
        assert whole.text == text and not any(string in text for string in stop)


def test_bytes_of_a_character_wait_for_each_other(vocabularies: dict[str, Tokenizer]) -> None:
    tokenizer = vocabularies["bpe"]
    said = tokenizer.ids(["🙉"], specials=False)[0]
    assert len(said) > 1, "a character that the vocabulary does not have whole"
    shown = [settled(tokenizer, Prompt([0]), said[:count], ()) for count in range(len(said) + 1)]
    assert shown == [""] * len(said) + ["🙉"]


def test_text_that_a_stop_may_swallow_is_held_back(vocabularies: dict[str, Tokenizer]) -> None:
    tokenizer = vocabularies["character"]
    said = tokenizer.ids(["the thread"], specials=False)[0]
    shown = [settled(tokenizer, Prompt([0]), said[:count], ("the loom", "thr")) for count in range(len(said) + 1)]
    assert max(shown, key=len) == "the " and all("the ".startswith(text) for text in shown)


@pytest.mark.parametrize("kind", [kind for kind, _ in KINDS])
def test_words_become_tokens(vocabularies: dict[str, Tokenizer], kind: str) -> None:
    tokenizer = vocabularies[kind]
    prompt = tokenizer.ids(["The weaver"], specials=False)[0]
    for text in (" said", "said"):
        after = continuation(tokenizer, prompt, tokens_of(tokenizer, text))
        assert after == (text if kind in ("bpe", "character") else " said"), "the others part all words"
    found = {continuation(tokenizer, prompt, form) for form in forms(tokenizer, ["loom"])}
    assert found == ({"loom", " loom"} if kind in ("bpe", "character") else {" loom"})
    if kind in ("word", "wordpiece"):
        with pytest.raises(UserError, match="this vocabulary has no tokens for"):
            forms(tokenizer, "☃")


def test_rules_in_words(gpt: Any) -> None:
    drawn: dict[str, Any] = {"max_tokens": 12, "temperature": 1.0, "n": 6}
    free = gpt("The loom", **drawn)
    common = next(word for word in ("e", "t", "the") if any(word in each.text for each in free.best))
    for form in forms(gpt.tokenizer, common):
        if len(form) == 1:
            assert all(form[0] not in each.tokens for each in gpt("The loom", ban=common, **drawn).best)
    for each in gpt("The loom", force=" was old", **drawn).best:
        assert each.text.startswith(" was old")
    choices = [" was", " was old", " sang", "."]
    for options in (drawn, {"beam_size": 4, "n": 4, "max_tokens": 12}):
        found = gpt("The loom", choices=choices, **options)
        assert {each.text for each in found.best} <= set(choices) and found.finish_reason == "end"
    assert {each.text for each in found.best} == set(choices)
    for each in gpt("The loom", allow=["old", "loom"], **drawn).best:
        assert each.text.replace("old", "").replace("loom", "").strip(" olm") == "", each.text
    long = gpt("The loom", max_tokens=30, no_repeat=2, repetition_penalty=1.3)
    runs = list(zip(long.tokens, long.tokens[1:], strict=False))
    assert len(set(runs)) == len(runs)


def test_answers_say_all_that_was_asked_for(gpt: Any) -> None:
    answer = gpt("The loom", beam_size=4, n=3, max_tokens=6, logprobs=2)
    assert [each.score for each in answer.best] == sorted((each.score for each in answer.best), reverse=True)
    assert answer.text == answer.best[0].text and answer.score == answer.best[0].score and len(answer.best) == 3
    assert [piece.token for piece in answer.pieces] == list(answer.tokens)
    assert all(len(piece.alternatives) == 2 for piece in answer.pieces)
    assert sum(piece.logprob for piece in answer.pieces) == pytest.approx(answer.logprob, abs=1e-5)
    assert answer.score == pytest.approx(answer.logprob / len(answer.tokens))
    plain = gpt("The loom", beam_size=4, max_tokens=6)
    assert plain.best == () and plain.pieces is None and plain.tokens == answer.tokens
    long = gpt("The loom " * 40, max_tokens=60, slide=True)
    assert long.truncated and long.n_windows > 1 and long.n_tokens > 48 and len(long.tokens) == 60
    together = gpt(["The loom", "Every"] * 40, beam_size=3, max_tokens=4)
    assert (
        len(together) == 80
        and together[0].tokens == together[78].tokens == gpt("The loom", beam_size=3, max_tokens=4).tokens
    )


def test_a_stream_of_a_model(gpt: Any) -> None:
    gpt.network.train()
    try:
        stream = gpt.stream("The loom", max_tokens=20, temperature=1.0, seed=4)
        text = "".join(stream)
        assert gpt.network.training, "and training goes on as it was"
    finally:
        gpt.network.eval()
    assert text == stream.answer.text and stream.answer == gpt("The loom", max_tokens=20, temperature=1.0, seed=4)
    with pytest.raises(UserError, match="a model for embed writes nothing"):
        weft.Model(gpt.opened, "embed").stream("x")
    with pytest.raises(UserError, match="only one text can be streamed"):
        gpt.stream("x", beam_size=3)
    with pytest.raises(UserError, match="only one text can be streamed"):
        gpt.stream("x", temperature=1.0, n=3)


@pytest.mark.parametrize(
    "options, fault",
    [
        ({"temprature": 1.0}, "no generation option 'temprature'; did you mean 'temperature'?"),
        ({"beam_size": 0}, "beam_size must be at least 1, not 0"),
        ({"beam_size": 3, "temperature": 1.0}, "does not sample: leave out temperature"),
        ({"beam_size": 3, "min_p": 0.1}, "does not sample: leave out min_p"),
        ({"beam_size": 3, "n": 4}, "a beam of 3 gives 1 to 3 texts"),
        ({"length_penalty": 2.0}, "length_penalty needs a beam"),
        ({"groups": 2}, "groups needs a beam"),
        ({"stop": ""}, "a stop string cannot be empty"),
        ({"stop": ["a", ""]}, "a stop string cannot be empty"),
        ({"ban": [""]}, "a banned word cannot be empty"),
        ({"choices": [""]}, "a choice cannot be empty"),
        ({"seed": [1, 2]}, "2 seeds for 1 prompts"),
        ({"beam_size": 2, "coverage": 0.2}, "looks at no source"),
        ({"alignments": True}, "looks at no source"),
        ({"slide": True, "max_tokens": None}, "no length limit"),
    ],
)
def test_mistakes_get_one_line(gpt: Any, options: dict[str, Any], fault: str) -> None:
    with pytest.raises(UserError) as error:
        gpt("The loom", **{"max_tokens": 3, **options})
    assert fault in str(error.value) and "\n" not in str(error.value)

"""A language model used as it is: perplexity by windows equals its definition, and so does choosing."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library
from tokenizers.pre_tokenizers import ByteLevel

import weft
from weft.checkpoint.folder import LoadedModel
from weft.errors import UserError
from weft.nn.rows import Ragged
from weft.tasks import perplexity as module
from weft.tasks.base import Example
from weft.tasks.choose import ChoiceTask, choose, evaluate_choices
from weft.tasks.perplexity import perplexity, read_documents
from weft.tasks.templates import TEMPLATES, example_of, filled, first_line, prompt_of
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.tokenizers.training import learn

CONTEXT = 12
LINES = ["The weaver said that the loom was old.", "Every thread of the weft crosses the warp.", "Über 3 hätte sie?"]
TEXT = "\n".join(LINES * 3)
near = pytest.approx


@pytest.fixture(scope="module")
def vocabulary() -> Tokenizer:
    return learn(LINES * 4, "bpe", 300)


@pytest.fixture(scope="module")
def opened(vocabulary: Tokenizer) -> LoadedModel:
    return small(vocabulary)


def small(tokenizer: Tokenizer, **settings: Any) -> LoadedModel:
    """A GPT-2 in float64 with weights large enough to have opinions."""
    given = {"context": CONTEXT, "weight_scale": 0.3, **settings}
    model = weft.new("gpt2", tokenizer, size="1x64", settings=given, seed=5)
    model.network.double()
    return model.opened


@torch.inference_mode()
def told(opened: LoadedModel, tokens: list[int], target: int) -> float:
    """The log of the chance of a token after others, as defined: the network run on these alone."""
    ragged = Ragged.of([tokens])
    network: Any = opened.network
    return float(network.words(network(ragged.tokens, ragged.rows)[-1:]).log_softmax(-1)[0, target])


def stream(opened: LoadedModel, text: str) -> list[int]:
    assert opened.tokenizer is not None
    begin = opened.tokenizer.id_of("end")
    assert begin is not None
    return [begin, *opened.tokenizer.ids([text], specials=False)[0]]


def test_stride_one_is_the_exact_conditional_of_each_token(opened: LoadedModel) -> None:
    tokens = stream(opened, TEXT)
    exact = -sum(told(opened, tokens[max(0, n - CONTEXT) : n], tokens[n]) for n in range(1, len(tokens)))
    found = perplexity(opened, [TEXT], stride=1)
    assert found.nats == near(exact, rel=1e-9) and found.n_tokens == len(tokens) - 1
    assert found.per_token.value == near(math.exp(exact / found.n_tokens))
    assert found.per_word is not None and found.per_word.value == near(math.exp(exact / len(TEXT.split())))
    assert found.bits_per_byte.value == near(exact / math.log(2) / len(TEXT.encode()))
    assert found.per_token.low < found.per_token.value < found.per_token.high
    assert found.begin == "<|endoftext|>" and found.left_out == 0


@pytest.mark.parametrize("length", [CONTEXT, 5, 1])
def test_windows_side_by_side_are_the_plain_perplexity(opened: LoadedModel, length: int) -> None:
    tokens = stream(opened, TEXT)
    exact = 0.0
    for begin in range(0, len(tokens) - 1, length):
        for end in range(begin + 1, min(begin + length, len(tokens) - 1) + 1):
            exact -= told(opened, tokens[begin:end], tokens[end])
    found = perplexity(opened, [TEXT], length=length, stride=length)
    assert found.nats == near(exact, rel=1e-9) and found.n_tokens == len(tokens) - 1
    assert found.n_windows == math.ceil((len(tokens) - 1) / length)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, CONTEXT), st.data(), st.integers(1, 200))
def test_each_token_is_foreseen_once_with_enough_before_it(
    opened: LoadedModel, length: int, data: Any, count: int
) -> None:
    stride = data.draw(st.integers(1, length))
    pieces = list(range(1000, 1000 + count))
    borders = sorted(data.draw(st.lists(st.integers(0, count), max_size=3)))
    cut = [pieces[a:b] for a, b in zip([0, *borders], [*borders, count], strict=True)]
    for begin in ([7], []):
        whole = [*begin, *pieces]
        seen = list[int]()
        for reading in module.slid(cut, begin, length, stride, 0):
            assert len(reading.tokens) <= length and reading.targets
            last = whole.index(reading.tokens[-1])
            assert reading.tokens == whole[last + 1 - len(reading.tokens) : last + 1]
            assert reading.targets == whole[last + 2 - len(reading.targets) : last + 2]
            for place in range(len(reading.targets)):
                before = len(reading.tokens) - len(reading.targets) + 1 + place
                assert before > min(whole.index(reading.targets[place]) - 1, length - stride)
            seen += reading.targets
        assert seen == whole[1:]


def test_batches_do_not_matter(opened: LoadedModel) -> None:
    documents = [TEXT, "sang", LINES[2]]
    whole = perplexity(opened, documents, stride=3)
    for budget in (1, 40):
        other = perplexity(opened, documents, stride=3, budget=budget)
        assert other.nats == near(whole.nats, rel=1e-12) and other.per_token.low == near(whole.per_token.low)
    alone = [perplexity(opened, [document], stride=3) for document in documents]
    assert sum(one.nats for one in alone) == near(whole.nats) and whole.n_documents == 3
    assert sum(one.n_words for one in alone) == whole.n_words and sum(one.n_bytes for one in alone) == whole.n_bytes


def test_a_text_in_pieces_is_the_same_text(opened: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where blank lines and runs of spaces lie near the place where tokens are cut."""
    chance = random.Random(0)
    text = "".join(chance.choice([" ", "\n", "\n\n", "  ", "a", "weft", " the", ".", "é"]) for _ in range(4000))
    whole = perplexity(opened, [text])
    monkeypatch.setattr(module, "PIECE", 900)
    sizes = list[int]()
    ids = Tokenizer.ids

    def watched(self: Tokenizer, texts: Any, specials: bool = True) -> list[list[int]]:
        sizes.append(max(map(len, texts)))
        return ids(self, texts, specials)

    monkeypatch.setattr(Tokenizer, "ids", watched)
    for size in (1, 7, 5000):
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        assert perplexity(opened, [pieces]) == whole
    assert max(sizes) <= 900, "a text comes through in pieces"
    assert whole.n_words == len(text.split()) and whole.n_bytes == len(text.encode())


def test_a_text_is_not_cut_where_that_changes_its_tokens(
    vocabulary: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A vocabulary that puts a space before a text sees one more wherever a new one begins."""
    library = Library.from_str(vocabulary.library.to_str())
    library.pre_tokenizer = ByteLevel(add_prefix_space=True)  # type: ignore[assignment]
    tokenizer = Tokenizer(library, vocabulary.roles, vocabulary.settings)
    text = "loom\nwas\nold\n" * 200
    whole = tokenizer.ids([text], specials=False)
    monkeypatch.setattr(module, "PIECE", 300)
    assert list(module._ids(tokenizer, [text])) == whole
    spaced = text.replace("\nw", " w")  # here it may be cut
    parts = list(module._ids(tokenizer, [spaced]))
    assert len(parts) > 3 and [sum(parts, [])] == tokenizer.ids([spaced], specials=False)


def test_a_vocabulary_without_a_start_token(vocabulary: Tokenizer) -> None:
    bare = Tokenizer(vocabulary.library, replace(vocabulary.roles, start=None, end=None), vocabulary.settings)
    opened = small(bare)
    tokens = bare.ids([LINES[0]], specials=False)[0]
    found = perplexity(opened, LINES[:1], stride=1)
    exact = -sum(told(opened, tokens[max(0, n - CONTEXT) : n], tokens[n]) for n in range(1, len(tokens)))
    assert found.nats == near(exact, rel=1e-9) and found.left_out == 1 and found.begin is None
    assert found.n_tokens == len(tokens) - 1
    with pytest.raises(UserError, match="the text is too short"):
        perplexity(opened, ["a"])
    with pytest.raises(
        UserError, match="prompt 1: the prompt is empty, and this vocabulary has no token that begins a text"
    ):
        choose(opened, [("", ["a"])])


def test_words_are_counted_before_the_detokenizer(opened: LoadedModel) -> None:
    raw = " = Loom = \n \n The loom 's age @-@ old thread , was old . \n"
    clean = "= Loom =\n\nThe loom's age-old thread, was old.\n"
    found = perplexity(opened, [[raw[:17], raw[17:30], raw[30:]]], detokenize="wikitext")
    plain = perplexity(opened, [clean])
    assert found.nats == near(plain.nats) and found.per_token == plain.per_token
    assert found.n_words == len(raw.split()) > plain.n_words == len(clean.split())
    assert (found.n_bytes, found.n_read_bytes) == (len(raw), len(clean)) and plain.n_bytes == len(clean)
    assert found.bits_per_read_byte == plain.bits_per_byte and found.bits_per_byte.value < plain.bits_per_byte.value


def test_documents_of_files(opened: LoadedModel, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfThe loom\r\n\nwas old.\n")
    (tmp_path / "b.csv").write_text("n,said\n1,The weft\n2,sang\n")
    (tmp_path / "none.txt").write_text("")

    def texts(name: str, **options: Any) -> list[str]:
        return ["".join(pieces) for pieces in read_documents(tmp_path / name, **options)]

    assert texts("a.txt") == ["The loom\n\nwas old.\n"]
    assert texts("a.txt", documents="line") == texts("a.txt", documents="block") == ["The loom", "was old."]
    assert texts("b.csv", column="said") == ["The weft", "sang"]
    found = perplexity(opened, read_documents([tmp_path / "a.txt", tmp_path / "none.txt"]))
    assert found.n_bytes == len("The loom\n\nwas old.\n") and found.n_words == 4 and found.n_documents == 1
    with pytest.raises(UserError, match="the text is empty"):
        perplexity(opened, read_documents(tmp_path / "none.txt"))


# ---------------------------------------------------------------------------------------------------------- choosing


def test_a_choice_has_the_chance_of_its_tokens(opened: LoadedModel) -> None:
    tokenizer = opened.tokenizer
    assert tokenizer is not None
    choices = ["loom", "thread of", "é"]
    answer = choose(opened, [("The weaver", choices)])[0]
    prompt = tokenizer.ids(["The weaver"], specials=False)[0]
    by_number = sorted(answer.options, key=lambda option: option.number)
    for choice, option in zip(choices, by_number, strict=True):
        tokens = tokenizer.ids([f"The weaver {choice}"], specials=False)[0]
        assert tokens[: len(prompt)] == prompt
        exact = sum(told(opened, tokens[:n], tokens[n]) for n in range(len(prompt), len(tokens)))
        assert option.logprob == option.score == near(exact, rel=1e-9) and option.text == choice
        assert option.n_tokens == len(tokens) - len(prompt) and not option.crossing
    assert sum(option.probability for option in answer.options) == near(1)
    first, second = answer.options[:2]
    assert first.probability / second.probability == near(math.exp(first.logprob - second.logprob))
    assert answer.text == first.text and answer.number == first.number and answer.n_tokens == len(prompt)
    for normalize, by in (
        ("token", lambda option: option.n_tokens),
        ("byte", lambda option: len(option.text.encode())),
    ):
        for option in choose(opened, [("The weaver", choices)], normalize=normalize)[0].options:
            assert option.score == near(by_number[option.number].logprob / by(option))
    prior = {o.text: o.logprob for o in choose(opened, [("Say:", choices)])[0].options}
    for option in choose(opened, [("The weaver", choices)], normalize="prior", prior="Say:")[0].options:
        assert option.score == near(option.logprob - prior[option.text])
    # Without a prompt a text begins after the token that parts texts.
    alone = choose(opened, [("", ["loom"])])[0]
    whole = stream(opened, "loom")
    assert alone.options[0].logprob == near(sum(told(opened, whole[:n], whole[n]) for n in range(1, len(whole))))


def test_a_token_across_the_border_belongs_to_the_choice(opened: LoadedModel) -> None:
    tokenizer = opened.tokenizer
    assert tokenizer is not None
    answer = choose(opened, [("The ", ["loom"])])[0].options[0]
    tokens = tokenizer.ids(["The loom"], specials=False)[0]
    first = len(tokenizer.ids(["The"], specials=False)[0])
    assert tokenizer.token(tokens[first]) in ("Ġloom", "Ġlo", "Ġl"), "the space goes with the word"
    assert answer.crossing and answer.n_tokens == len(tokens) - first
    assert answer.logprob == near(sum(told(opened, tokens[:n], tokens[n]) for n in range(first, len(tokens))))


def test_together_and_alone(opened: LoadedModel) -> None:
    asked: list[Any] = [("The weaver", ["said that", "old"]), ("Every", ["thread", "loom", "?"]), ("She ", ["sang"])]
    together = choose(opened, asked, normalize="prior")
    for question, answer in zip(asked, together, strict=True):
        alone = choose(opened, [question], normalize="prior", budget=1)[0]
        assert alone.text == answer.text
        for a, b in zip(alone.options, answer.options, strict=True):
            assert a.logprob == near(b.logprob, rel=1e-9) and a.score == near(b.score, rel=1e-9)


def test_long_prompts_are_an_error_or_slide(opened: LoadedModel) -> None:
    tokenizer = opened.tokenizer
    assert tokenizer is not None
    with pytest.raises(
        UserError, match=r"prompt 1: prompt and choice 'old' have \d+ \+ \d tokens, more than the model's context"
    ):
        choose(opened, [(TEXT, ["old"])])
    answer = choose(opened, [(TEXT, ["old"])], slide=True)[0]
    tokens = tokenizer.ids([f"{TEXT} old"], specials=False)[0]
    count = answer.options[0].n_tokens
    window = tokens[-(CONTEXT + 1) :]
    exact = sum(told(opened, window[:-n], window[-n]) for n in range(1, count + 1))
    assert answer.truncated and answer.n_tokens == len(tokens) - count
    assert answer.options[0].logprob == near(exact, rel=1e-9)
    with pytest.raises(UserError, match=f"context of {CONTEXT} can predict$"):
        choose(opened, [("The", [TEXT])], slide=True)


def test_accuracy(opened: LoadedModel) -> None:
    prompts = ["The", "Every", "She sang", "A loom"] * 20
    best = [choose(opened, [(prompt, ["old", "thread"])])[0].number for prompt in prompts]
    right = [n if row % 4 else 1 - n for row, n in enumerate(best)]
    heard = list[str]()
    questions = [Example((prompt, "", "old", "thread"), (n,), "") for prompt, n in zip(prompts, right, strict=True)]
    scores = evaluate_choices(
        ChoiceTask(False), opened, questions, on_answer=lambda question, answer: heard.append(answer.text)
    )
    score = scores["accuracy"]
    assert (
        scores["chance"].value == 0.5
        and score.value == 0.75
        and 0.6 < score.low < 0.75 < score.high < 0.9
        and len(heard) == 80
    )


# --------------------------------------------------------------------------------------------------------- templates


def test_templates_as_published() -> None:
    assert prompt_of("summarize", "A {long} text.") == "A {long} text.\nTL;DR:"
    shown = prompt_of("translate", "good day", examples=[("one", "un"), ("two", "deux")])
    assert shown == "one = un\ntwo = deux\ngood day ="
    asked = prompt_of("answer", "Who?", context="Some {text}.", examples=[("When?", "Then.")])
    assert asked == "Some {text}.\nQ: When?\nA: Then.\nQ: Who?\nA:"
    assert prompt_of("answer", "Who?") == "Q: Who?\nA:"
    own = prompt_of("{context}: {{{text}}} {question}?", "{a}}{b", context="{{c")
    assert own == "{{c: {{a}}{b} {a}}{b?"


@settings(max_examples=50)
@given(st.text(st.sampled_from("{}atext ")), st.text(st.sampled_from("{}question")))
def test_texts_with_braces_survive(text: str, question: str) -> None:
    assert filled("<{text}|{question}|{{}}>", {"text": text, "question": question}) == f"<{text}|{question}|{{}}>"


@pytest.mark.parametrize(
    "call, fault",
    [
        (
            lambda: prompt_of("{texts}", "a"),
            r"unknown placeholder \{texts\}; known are \{text\}, \{question\}, \{context",
        ),
        (lambda: prompt_of("{text} {", "a"), r"a single '\{'; write \{\{ for a brace"),
        (lambda: prompt_of("{context} {text}", "a"), "needs a context"),
        (lambda: prompt_of("{0.__class__}", "a"), "unknown placeholder"),
        (
            lambda: prompt_of("translat", "a"),
            "not one of translate, summarize, answer, nor .* did you mean 'translate'",
        ),
        (lambda: example_of("one"), "write it as 'text=>answer'"),
        (lambda: example_of("=>un"), "write it as 'text=>answer'"),
    ],
)
def test_faults_of_templates_are_named(call: Any, fault: str) -> None:
    with pytest.raises(UserError, match=fault):
        call()


def test_what_is_kept_of_an_output() -> None:
    said = " One thing. Two (2)! Three? Four.\nMore"
    assert TEMPLATES["summarize"].finish(said) == "One thing. Two (2)! Three?"
    assert TEMPLATES["summarize"].decoding == {"top_k": 2, "max_tokens": 100}
    assert TEMPLATES["translate"].finish(said) == "One thing."
    assert first_line("\n  a b \nc") == TEMPLATES["answer"].finish("a b\nQ: next") == "a b" and first_line("") == ""
    assert example_of(" one => un => dos") == ("one", "un => dos")

"""What a model says of a text does not hang on what else it is asked, in what order, in how large batches."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.tasks.small import model_for
from weft.cli.main import run
from weft.tasks import forward as passing
from weft.tasks.model import Model
from weft.text.tokenizers.tokenizer import Tokenizer

WORDS = [
    "the",
    "cat",
    "is",
    "there",
    "cow",
    "oak",
    "Ada",
    "Smith",
    "goes",
    "to",
    "Rome",
    "lives",
    "in",
    "where",
    "a",
    ".",
    ",",
    "Zürich",
    "x9",
]
texts = st.lists(st.sampled_from(WORDS), min_size=0, max_size=60).map(" ".join)
short = st.lists(st.sampled_from(WORDS), min_size=1, max_size=6).map(" ".join)
LABELS = ("one", "two", "three")
TAGS = ("O", "B-LOC", "B-PER", "I-PER")
KINDS = ("classify", "multilabel", "regress", "pair", "tag", "answer", "gpt2")
MODELS: dict[str, Model] = {}


@pytest.fixture(params=KINDS)
def model(request: Any, wordpiece: Tokenizer, bpe: Tokenizer) -> Model:
    kind = request.param
    if kind not in MODELS:
        if kind == "gpt2":
            MODELS[kind] = model_for("classify", 3, bpe, LABELS, "gpt2")
        elif kind in ("tag", "answer", "regress"):
            outputs, labels = {"tag": (4, TAGS), "answer": (2, None), "regress": (1, None)}[kind]
            MODELS[kind] = model_for(kind, outputs, wordpiece, labels)
        else:
            MODELS[kind] = model_for(kind, 3, wordpiece, LABELS)
    return MODELS[kind]


def same(one: Any, two: Any) -> bool:
    """Equal but for the last digits of its numbers."""
    if isinstance(one, float):
        return one == pytest.approx(two, abs=1e-5, rel=1e-5)
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, tuple | list):
        return len(one) == len(two) and all(map(same, one, two))
    return one == two


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_company_and_order(model: Model, data: st.DataObject) -> None:
    one = texts if model.task not in ("pair", "answer") else st.tuples(short, texts)
    if model.task == "pair":
        one = st.one_of(one, st.tuples(texts, texts))
    inputs = data.draw(st.lists(one, min_size=1, max_size=5))
    together: Any = model(inputs)
    order = data.draw(st.permutations(range(len(inputs))))
    for place, answer in zip(order, model([inputs[place] for place in order]), strict=True):
        assert same(asdict(answer), asdict(together[place]))
    before = passing.BUDGET, passing.CHARACTERS
    try:
        passing.BUDGET, passing.CHARACTERS = 1, 1
        for given_, answer in zip(inputs, together, strict=True):
            assert same(asdict(model(given_)), asdict(answer))
    finally:
        passing.BUDGET, passing.CHARACTERS = before
    for given_, answer in zip(inputs, together, strict=True):
        context = given_ if isinstance(given_, str) else given_[1]
        for span in (*getattr(answer, "spans", ()), *getattr(answer, "words", ()), *getattr(answer, "best", ())):
            assert span.text == context[span.start : span.end] and span.text.strip() == span.text


def test_long_texts_take_windows(wordpiece: Tokenizer) -> None:
    """So that the test above is about windows too; and where texts are cut it is said."""
    text = "the cat goes to Rome . " * 20
    model = model_for("classify", 3, wordpiece, LABELS)
    found: Any = model(text)
    assert found.n_windows > 5 and not found.truncated and found.n_tokens == len(wordpiece.encode(text))
    one, other = model(text + "cow " * 20), model(text + "oak " * 20)
    assert not same(asdict(one), asdict(other)), "the end of a long text counts"
    cut: Any = model_for("classify", 3, wordpiece, LABELS, long="truncate")
    assert cut(text).truncated and cut(text).n_windows == 1 and not cut("the cat").truncated
    assert cut(text + "cow").scores == cut(text + "oak").scores
    for task, outputs, labels in (("tag", 4, TAGS), ("answer", 2, None)):
        model = model_for(task, outputs, wordpiece, labels)
        given_: Any = text if task == "tag" else ("where is Ada", text)
        assert model(given_).n_windows > 5  # type: ignore[attr-defined]
        assert model_for(task, outputs, wordpiece, labels, long="truncate")(given_).truncated  # type: ignore[attr-defined]


def test_a_word_that_was_not_read_is_outside(wordpiece: Tokenizer) -> None:
    """Whatever the order of the tags: what was cut off, or has no token, is no name of anything."""
    labels = ("B-PER", "I-PER", "O")
    model = model_for("tag", 3, wordpiece, labels, long="truncate")
    found: Any = model("Ada goes to Rome . " * 20)
    assert found.truncated and {word.label for word in found.words[30:]} == {"O"}
    unseen: Any = model([["\u200b", "\u200b"]])[0]
    assert unseen.n_tokens == 2 and [word.label for word in unseen.words] == ["O", "O"]


def test_a_pair_model_puts_what_was_found_in_order(wordpiece: Tokenizer, capsys: pytest.CaptureFixture[str]) -> None:
    """The folder of a pair model re-ranks on the command line: its own opinion of each pair is the score."""
    embedder = model_for("classify", 3, wordpiece, LABELS)
    embedder.save("embedder")
    judge = model_for("pair", 2, wordpiece, ("no", "yes"))
    judge.save("judge")
    texts = ["the cat is there", "a cow", "Ada lives in Rome", "the dog sees a cat"]
    Path("texts.txt").write_text("\n".join(texts) + "\n")
    arguments = ["rank", "embedder", "--query", "a cat", "--texts", "texts.txt", "--rerank", "judge", "--jsonl"]
    assert run(arguments) == 0
    hits = json.loads(capsys.readouterr().out)["hits"]
    said: Any = judge([("a cat", hit["text"]) for hit in hits])
    scores = [answer.scores["yes"] for answer in said]
    assert scores == sorted(scores, reverse=True) and [hit["score"] for hit in hits] == pytest.approx(scores, abs=1e-6)
    assert {hit["stage"] for hit in hits} == {"pair"}

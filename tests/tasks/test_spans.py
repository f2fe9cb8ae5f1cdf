"""Marked spans in context: read from every form, refused outside their text, learned by every network for labels."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft
from tests.tasks.small import quiet, tuned, write_rows
from weft.cli.main import run
from weft.errors import UserError
from weft.tasks.forward import framing_for
from weft.tasks.spans import SpanTask, check_marks, marked
from weft.text.json_rows import unnested
from weft.text.records import Record
from weft.text.tokenizers.tokenizer import Tokenizer

WIC = {
    "word": "bank",
    "sentence1": "He sat on the bank.",
    "sentence2": "Banks lend money.",
    **{"start1": 14, "end1": 18, "start2": 0, "end2": 5, "idx": 0, "label": False},
}
WSC_TEXT = "Mark told Pete many lies. He should have known."
WSC = {"span1_index": 2, "span1_text": "Pete", "span2_index": 5, "span2_text": "he"}
FORMS: list[tuple[dict[str, Any], str]] = [
    (WIC, "He sat on the [[ bank ]]. {{ Banks }} lend money."),
    ({"text": WSC_TEXT, "target": WSC, "label": True}, "Mark told [[ Pete ]] many lies. {{ He }} should have known."),
    ({"text": WSC_TEXT, **WSC, "label": 1}, "Mark told [[ Pete ]] many lies. {{ He }} should have known."),
    ({"text": "a bc d", "spans": [[2, 4]], "label": "x"}, "a [[ bc ]] d"),
    ({"text": "a bc d", "spans": "[[5, 6], [0, 1]]", "label": "x"}, "{{ a }} bc [[ d ]]"),
    ({"text": "a bc d", "spans": [{"start": 2, "end": 4}], "label": "x"}, "a [[ bc ]] d"),
    ({"text": "a [[bc]] d [[ e ]]", "label": "x"}, "a [[ bc ]] d {{ e }}"),
    ({"text": "a {{bc}} d [[e]]", "label": "x"}, "a {{ bc }} d [[ e ]]"),
]


def read(values: dict[str, Any]) -> Any:
    record = Record(unnested(values)[0], "f line 3")
    task, names = SpanTask().columns(record, {})
    return task.read(record, {name: name for name in names})


@pytest.mark.parametrize("values, text", FORMS)
def test_forms(values: dict[str, Any], text: str) -> None:
    example = read(values)
    assert example.texts == (text,) and example.target == str(values["label"])
    again = SpanTask().to_record(example)
    assert read(again) == example, "what was read is read again"


@pytest.mark.parametrize(
    "values, fault",
    [
        (WIC | {"end2": 99}, "f line 3: span 2, 0 to 99, is outside its text of 17 characters"),
        (WIC | {"start1": "x"}, "f line 3: column 'start1' holds 'x', not the number of a character"),
        (WIC | {"start1": 18}, "span 1, 18 to 18, is outside"),
        (
            {"text": WSC_TEXT, "target": WSC | {"span2_index": 40}, "label": 1},
            "span 2, word 40, is outside its text of 9",
        ),
        ({"text": WSC_TEXT, "target": WSC | {"span2_text": "she"}, "label": 1}, "span 2, 'she', is not at word 5"),
        ({"text": WSC_TEXT, "target": WSC | {"span1_index": "x"}, "label": 1}, "no span1_text with its span1_index"),
        ({"text": WSC_TEXT, "target": {"span1_text": "Pete"}, "label": 1}, "no span is marked"),
        (
            {"text": "ab", "spans": [[1, 5]], "label": 1},
            "f line 3: span 1, 1 to 5, is outside its text of 2 characters",
        ),
        ({"text": "ab c", "spans": [[-1, 1]], "label": 1}, "span 1, -1 to 1, is outside"),
        ({"text": "a  b", "spans": [[1, 3]], "label": 1}, "span 1, 1 to 3, holds no text"),
        ({"text": "abcd", "spans": [[0, 3], [2, 4]], "label": 1}, "the two spans overlap"),
        ({"text": "abcd", "spans": [[0, 1]] * 3, "label": 1}, "column 'spans' holds 3 spans, not one or two"),
        ({"text": "abcd", "spans": ["a"], "label": 1}, "column 'spans' holds no span, [start, end]: a"),
        ({"text": "abcd", "label": 1}, "no span is marked: 'abcd'; write [[...]] around a span"),
        ({"text": "a [[b", "label": 1}, "a single '[[' in 'a [[b'"),
        ({"text": "a [[ ]]", "label": 1}, "an empty span is marked"),
        ({"text": "a {{b}}", "label": 1}, "{{...}} is for a second span"),
        ({"text": "[[a]] [[b]] [[c]]", "label": 1}, "3 spans are marked, not one or two"),
    ],
)
def test_faults_are_one_line(values: dict[str, Any], fault: str) -> None:
    with pytest.raises(UserError) as error:
        read(values)
    assert fault in str(error.value) and "\n" not in str(error.value)


@given(st.text(st.sampled_from("[]{} ab"), min_size=2, max_size=12), st.data())
def test_marks_are_those_of_the_spans_alone(text: str, data: Any) -> None:
    """Whatever signs a text holds, its marks are read again as they were written."""
    start = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(start + 1, len(text)))
    if text[start:end].strip():
        made = marked(text, {0: (start, end)}, "w")
        assert check_marks(made) == made and made.count("[[") == made.count("]]") == 1


def senses(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Whether a word stands beside the same thing in two texts: that of the word alone says nothing."""
    chance, rows = random.Random(seed), []
    beside = {"bank": ("river", "money"), "bat": ("cave", "ball")}
    for number in range(count):
        word = ("bank", "bat")[number % 2]
        one, two = chance.choice(beside[word]), chance.choice(beside[word])
        first, second = f"the {word} of the {one}", f"a {two} and a {word}"
        places = {"start1": 4, "end1": 4 + len(word), "start2": len(second) - len(word), "end2": len(second)}
        rows.append({"sentence1": first, "sentence2": second, "word": word, **places, "label": one == two})
    return rows


def test_learned_and_published(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import transformers

    rows = senses(48)
    model = tuned(
        write_rows(here / "wic.jsonl", rows), "spans", here / "out", steps=60, settings={"task": {"baseline": False}}
    )
    assert model.evaluate(here / "wic.jsonl").scores["accuracy"].value > 0.75
    peer = transformers.AutoModelForSequenceClassification.from_pretrained(here / "out")
    assert peer.config.id2label == {0: "False", 1: "True"}
    text = "the [[bank]] of the river a river and a {{bank}}"
    answer: Any = weft.load(here / "out")(text)
    assert answer == model("the [[ bank ]] of the river a river and a [[bank]]") and answer.label == "True"
    assert run(["predict", "out", text]) == 0 and "True" in capsys.readouterr().out
    assert run(["predict", "out", "the bank"]) == 2
    assert "no span is marked" in capsys.readouterr().err
    write_rows(here / "test.jsonl", [row | {"label": -1} for row in rows])
    assert run(["evaluate", "out", "--data", "test.jsonl"]) == 2
    assert "48 of 48 rows have no label" in capsys.readouterr().err
    bad = senses(4)
    bad[2]["end1"] = 400
    write_rows(here / "bad.jsonl", bad)
    for words in (["evaluate", "out"], ["finetune", "--task", "spans", "--model", "bert", "--out", "x"]):
        assert run([*words, "--data", "bad.jsonl"]) == 2
        error = capsys.readouterr().err
        assert "bad.jsonl line 3: span 1, 4 to 400, is outside its text of" in error and "Traceback" not in error


@pytest.mark.parametrize("family", ["lstm", "cnn", "distilbert"])
def test_any_network_for_labels_can_learn_it(here: Path, family: str) -> None:
    """Which of two words is marked decides the label, so the marks themselves must be read."""
    chance, rows = random.Random(1), []
    for number in range(40):
        words = chance.sample(["oak", "cow", "fern", "cat"], 2)
        place, kinds = number % 2, {"oak": "plant", "fern": "plant", "cow": "animal", "cat": "animal"}
        text = " and ".join(f"[[{word}]]" if n == place else word for n, word in enumerate(words))
        rows.append({"text": text, "label": kinds[words[place]]})
    plan = {"steps": 60, "batch": 20, "learning_rate": 1e-2 if family != "distilbert" else 3e-3, "evaluate_every": 60}
    sizes = {"family": family, "dropout": 0.0, **({"size": "1x64"} if family != "cnn" else {})}
    options: Any = {"model": sizes, "training": plan, "tokenizer": {"size": 300}, "log": quiet}
    model = weft.finetune(rows, dev=rows, task={"name": "spans", "baseline": False}, out=here / "out", **options)
    assert model.evaluate(rows).scores["accuracy"].value > 0.9
    assert weft.load(here / "out").evaluate(rows).scores == model.evaluate(rows).scores


def test_of_a_long_text_the_windows_with_marks_count(wordpiece: Tokenizer) -> None:
    model = weft.new("bert", wordpiece, size="1x64", settings={"context": 24}, heads={"classify": 2}, seed=1)
    task, framing = SpanTask(labels=("a", "b")), framing_for(model.opened)
    far = " ".join(["the cat is there"] * 12)
    (text,) = task.check_input("", f"{far} [[cow]] {far}")
    whole = super(SpanTask, task).windows_of([(text,)], wordpiece, framing)
    some = task.windows_of([(text,)], wordpiece, framing)
    (every, _), (kept, _) = next(iter(whole)), next(iter(some))
    assert 1 <= len(kept) < len(every)
    cow = wordpiece.ids(["cow"], specials=False)[0][0]
    assert all(cow in piece.tokens for piece in kept)
    (prediction,) = task.predict(model.opened, framing, [(text,)])
    assert prediction.n_windows == len(kept)


def test_words_beside_the_marks_alone_may_be_changed() -> None:
    example = read({"text": "a [[bc]] d", "label": "x"})
    (words,) = SpanTask().word_spans(example)
    assert [example.texts[0][slice(*span)] for span in words] == ["a", "bc", "d"]
    assert SpanTask().sample_input(["]]] {hello there"], None) == "[[ hello ]] there"

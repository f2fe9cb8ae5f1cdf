"""Which words mattered: sums that must come out, cases that can be worked out by hand, and users' mistakes."""

from __future__ import annotations

import json
import random
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import weft
from tests.backends.engines import texts
from tests.explain.models import LABELS, SENTENCE, made
from weft.explain.attention_weights import window_attention
from weft.explain.attribution import METHODS, attribute, attributions_of, worst
from weft.explain.attribution_view import Attribution, attribution_view, summary
from weft.explain.scoring import Scorer
from weft.tasks.forward import framing_for
from weft.tasks.model import Model
from weft.text.tokenizers.training import learn

QUESTION = ("where is the cat", SENTENCE)
CASES: list[tuple[str, str, Any]] = [
    ("bert", "classify", SENTENCE),
    ("bert", "pair", QUESTION),
    ("bert", "tag", SENTENCE),
    ("bert", "answer", QUESTION),
    ("bert", "fill", "the old [MASK] sat on a mat"),
    ("deberta", "tag", SENTENCE),
    ("xlnet", "classify", SENTENCE),
    ("gpt2", "classify", SENTENCE),
    ("gpt2", "complete", SENTENCE),
    ("lstm", "tag", SENTENCE),
    ("gru", "complete", SENTENCE),
    ("cnn", "classify", SENTENCE),
    ("mlp", "complete", SENTENCE),
    ("vectors", "classify", SENTENCE),
]


def logits_of(model: Model, text: Any) -> np.ndarray:
    task = model.task_object
    return task.predict(model.opened, framing_for(model.opened), task.check_inputs([text]))[0].output


@pytest.mark.parametrize("family, task, text", CASES, ids=lambda value: value if isinstance(value, str) else "")
def test_integrated_gradients_add_up(family: str, task: str, text: Any) -> None:
    result = attribute(made(family, task), text)
    assert result.error is not None and result.error < 0.01 and result.difference is not None
    assert abs(sum(result.token_values) - result.difference) <= 0.01 * abs(result.difference)
    assert abs(sum(result.values) - result.total) < 1e-6, "every token belongs to a word"
    assert [word.word for word in result.words if word.text == 0] == result.texts[0].split()


def test_the_logit_is_that_of_the_model() -> None:
    model = made("bert", "classify")
    expected = logits_of(model, SENTENCE)
    for method in METHODS:
        result = attribute(model, SENTENCE, method, "yes")
        assert abs(result.logit - expected[LABELS.index("yes")]) < 1e-5 and result.target == "yes"
    assert attribute(model, SENTENCE).target == LABELS[int(expected.argmax())]


def test_a_linear_model_is_attributed_exactly() -> None:
    """The logit of averaged vectors is w · mean(v) + b, so a word's value is w · (v - v0) / words."""
    model = made("vectors", "classify")
    model.network.double()
    try:
        result = attribute(model, SENTENCE, target="so")
        left_out = attribute(model, SENTENCE, "leave-one-out", "so")
        gradient = attribute(model, SENTENCE, "gradient", "so")
        weight = model.network.heads["classify"].output.weight[1].detach().numpy()
        ids = model.tokenizer.ids([SENTENCE], specials=False)[0]  # type: ignore[union-attr]
        vectors = model.network.tokens.weight.detach().numpy()[ids]
        expected = vectors @ weight / len(ids)
        for values in (result.values, left_out.values, gradient.values):
            assert np.abs(np.array(values) - expected).max() < 1e-12
        assert result.baseline == "zero" and result.steps == 24 + 5
    finally:
        model.network.float()


def test_leave_one_out_is_the_difference_of_two_predictions() -> None:
    model = made("bert", "classify")
    words, whole = SENTENCE.split(), logits_of(model, SENTENCE)[0]
    masked = attribute(model, SENTENCE, "leave-one-out", "no")
    removed = attribute(model, SENTENCE, "leave-one-out", "no", baseline="remove")
    for place in range(len(words)):
        without = " ".join([*words[:place], "[MASK]", *words[place + 1 :]])
        assert abs(masked.values[place] - (whole - logits_of(model, without)[0])) < 1e-4
        shorter = " ".join([*words[:place], *words[place + 1 :]])
        assert abs(removed.values[place] - (whole - logits_of(model, shorter)[0])) < 1e-4
    assert removed.baseline_logit is None and masked.error is None


def test_a_long_text_is_read_in_windows() -> None:
    model, text = made("bert", "classify", length=12), " ".join(texts(1 + 40, seed=2)[9:14])
    expected = logits_of(model, text)
    result = attribute(model, text)
    assert abs(result.logit - expected.max()) < 1e-5 and result.error is not None and result.error < 0.01
    masked = attribute(model, text, "leave-one-out")
    words = text.split()
    place = next(n for n, word in enumerate(words) if len(model.tokenizer.ids([word], specials=False)[0]) == 1)  # type: ignore[union-attr]
    without = " ".join([*words[:place], "[MASK]", *words[place + 1 :]])
    assert abs(masked.values[place] - (expected - logits_of(model, without))[expected.argmax()]) < 1e-4
    assert [word.word for word in masked.words] == words


def test_the_tokens_of_a_word_add_up_to_it() -> None:
    model, text = made("bert", "classify"), "the catmat sat, onmat"
    result = attribute(model, text)
    tokens = model.tokenizer.encode_batch([text], specials=False)[0]  # type: ignore[union-attr]
    assert len(tokens.ids) > len(result.words) == 5
    for word in result.words:
        own = [n for n, (start, end) in enumerate(tokens.offsets) if start < word.end and end > word.start]
        assert abs(word.value - sum(result.token_values[n] for n in own)) < 1e-9
        assert text[word.start : word.end] == word.word


def test_both_texts_of_a_pair_are_attributed() -> None:
    result = attribute(made("bert", "pair"), QUESTION, "leave-one-out")
    assert [word.text for word in result.words] == [0] * 4 + [1] * 9 and len(result.texts) == 2
    answer = attribute(made("bert", "answer"), QUESTION, target="on a small")
    assert answer.target == "on a small"


def test_targets_of_taggers_and_language_models() -> None:
    tagger = made("bert", "tag")
    assert attribute(tagger, SENTENCE, "gradient", "cat/B-PER").target == "B-PER of 'cat'"
    assert attribute(tagger, SENTENCE, "gradient", (2, "I-PER")).target == "I-PER of 'cat'"
    assert attribute(tagger, SENTENCE, "gradient", "mat").target.endswith("of 'mat'")
    decoder = made("gpt2", "complete")
    assert attribute(decoder, "the old", "gradient", " cat").target.startswith("' ")


def test_attention_is_read_where_the_head_reads() -> None:
    """BERT's head reads [CLS], so a word's value is what [CLS] attends to in the last layer."""
    model = made("bert", "classify")
    with weft.watch(model) as seen:
        model(SENTENCE)
    expected = seen.attention[1].mean(0)[0].numpy()[1:-1]  # without [CLS] and [SEP]
    result = attribute(model, SENTENCE, "attention")
    assert np.abs(np.array(result.token_values) - expected).max() < 1e-5
    rolled = attribute(model, SENTENCE, "rollout")
    assert min(rolled.values) > 0 and sum(rolled.values) < 1


def test_gradients_of_attention_are_those_of_autograd() -> None:
    """Weights mix the values, so their gradient is that of what they mix, times the values."""
    model = made("bert", "classify")
    task, framing = model.task_object, framing_for(model.opened)
    scorer = Scorer(model.opened, task.logit_target(model.opened, framing, task.check_inputs([SENTENCE])[0], "so"))
    vectors = scorer.embeddings()
    (window,) = window_attention(scorer, vectors)
    with torch.enable_grad(), weft.watch(model, gradients=True) as seen:
        scorer.scores(vectors[None].requires_grad_()).sum().backward()
    model.network.zero_grad()
    for layer, weights in enumerate(window.weights):
        slopes, values = seen.gradients.head_outputs[layer], seen.values[layer]
        expected = np.einsum("htd,hsd->hts", *(heads_first(x, weights.shape) for x in (slopes, values)))
        assert np.abs(window.gradients[layer] - expected).max() < 1e-4 * max(1.0, float(np.abs(expected).max()))
        assert np.abs(weights.sum(-1) - 1).max() < 1e-5


def heads_first(x: torch.Tensor, shape: tuple[int, ...]) -> np.ndarray:
    """H T D, whether heads or tokens come first."""
    return (x if tuple(x.shape[:2]) == shape[:2] else x.transpose(0, 1)).numpy()


def test_the_intervals_with_the_largest_errors_are_halved() -> None:
    errors = {(0.0, 0.5): 0.4, (0.5, 0.75): 0.004, (0.75, 1.0): 0.001}
    assert worst(errors, 0.01) == [(0.0, 0.5)] and worst(errors, 1.0) == []
    assert worst(errors, 0.004) == [(0.5, 0.75), (0.0, 0.5)]


def planted(count: int, seed: int) -> list[dict[str, str]]:
    """Texts of common words; those with the word zorbik have the label yes."""
    chance, rows = random.Random(seed), []
    for number in range(count):
        words = chance.choices(SENTENCE.split() + ["red", "blue", "dog", "fox", "home", "now", "where", "again"], k=8)
        words[chance.randrange(8)] = "zorbik" if number % 2 else "the"
        rows.append({"text": " ".join(words), "label": "yes" if number % 2 else "no"})
    return rows


def test_a_planted_keyword_ranks_first() -> None:
    tokenizer = learn([row["text"] for row in planted(200, 1)], "wordpiece", 150)
    base = weft.new("bert", tokenizer, size="1x32", settings={"context": 16, "heads": 2})
    model = weft.finetune(
        planted(400, 0), task="classify", base=base, training={"steps": 120, "batch": 16, "learning_rate": 3e-3}
    )
    rows = [row for row in planted(80, 2) if row["label"] == "yes"]
    assert np.mean([model(row["text"]).label == "yes" for row in rows]) > 0.95
    for method in ("integrated-gradients", "leave-one-out"):
        results = [attribute(model, row["text"], method, "yes") for row in rows]
        assert np.mean([max(each.words, key=lambda word: word.value).word == "zorbik" for each in results]) > 0.95


@pytest.mark.parametrize(
    "options, message",
    [
        ({"target": "yess"}, "target: label 'yess' is not one of no, so, yes; did you mean 'yes'?"),
        ({"method": "leave-one-ou"}, "did you mean 'leave-one-out'?"),
        ({"baseline": "maks"}, "did you mean 'mask'?"),
        ({"baseline": "remove"}, "baseline remove is for leave-one-out"),
        ({"tolerance": 0.0}, "tolerance must be between 0.000001 and 1, not 0.0"),
    ],
)
def test_mistakes_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(weft.UserError) as error:
        attribute(made("bert", "classify"), SENTENCE, **options)
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "family, task, target, message",
    [
        ("bert", "embed", None, "a model for embed has no single logit"),
        ("bert", "tag", "dog", "target 'dog' is not a word of the text"),
        ("bert", "tag", "cat/PER", "label 'PER' is not one of O, B-PER, I-PER"),
        ("bert", "answer", "a dog", "target 'a dog' is not in the context"),
        ("transformer", "translate", None, "not for encoder-decoders"),
        ("lstm", "classify", None, "this model has no attention; use integrated-gradients or leave-one-out"),
    ],
)
def test_models_that_cannot_are_named(family: str, task: str, target: Any, message: str) -> None:
    text, method = (QUESTION if task == "answer" else SENTENCE), ("attention" if family == "lstm" else "gradient")
    with pytest.raises(weft.UserError) as error:
        attribute(made(family, task), text, method, target)
    assert message in str(error.value) and "\n" not in str(error.value)


def results() -> list[Attribution]:
    return attributions_of(made("bert", "pair"), QUESTION, "integrated-gradients, leave-one-out, rollout", "yes")


def test_a_view_holds_the_numbers(tmp_path: Path) -> None:
    shown = results()
    view = attribution_view(shown, "bert")
    content = json.loads(view.save(tmp_path / "view.json").read_text())["panels"][0]
    assert content["target"] == "yes" and content["methods"][0]["values"] == list(shown[0].values)
    assert [method["method"] for method in content["methods"]] == [each.method for each in shown]
    assert abs(content["methods"][0]["sum"] - (content["logit"] - content["methods"][0]["baseline_logit"])) < 0.01
    assert view.save(tmp_path / "view.html").read_text().startswith("<!DOCTYPE html>")
    assert shown[0]._repr_html_().startswith("<iframe")
    lines = summary(shown, 2).splitlines()
    assert lines[0].startswith("logit of yes: ") and len(lines) == 1 + 3 * 3 and shown[0].top(1)[0].word in lines[2]
    with pytest.raises(weft.UserError, match="the same texts and the same target"):
        attribution_view([shown[0], attribute(made("bert", "pair"), QUESTION, target="no")])


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="matplotlib is not installed")
def test_a_view_is_a_picture(tmp_path: Path) -> None:
    shown = results()
    assert attribution_view(shown).save(tmp_path / "many.png").read_bytes().startswith(b"\x89PNG")
    assert attribution_view(shown[:1]).save(tmp_path / "one.svg").read_bytes().startswith(b"<?xml")


def test_all_methods_by_name() -> None:
    shown = attributions_of(made("bert", "classify"), SENTENCE, "all", baseline="remove")
    assert [each.method for each in shown] == list(METHODS)
    assert {each.method: each.baseline for each in shown}["leave-one-out"] == "remove"

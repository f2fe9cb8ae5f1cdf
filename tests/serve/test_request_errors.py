"""Natural mistakes in requests: one clear line that names the field and what is wrong with it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.serve.running import Served

Body = dict[str, Any]
MISTAKES: list[tuple[str, Body, str | None, str]] = [
    ("classify", {"model": "reviews", "text": "a"}, "text", "unknown field 'text'; did you mean 'input'?"),
    ("classify", {"model": "reviews", "inputs": "a"}, "inputs", "did you mean 'input'?"),
    ("classify", {"model": "reviews"}, "input", "input: is missing"),
    ("classify", {"model": "reviews", "input": []}, "input", "input: is empty"),
    ("classify", {"model": "reviews", "input": {"text": "a"}}, "input", "must be a text, or an object with text and"),
    ("classify", {"model": "names", "input": "a"}, "model", "'names' does not classify: it can tag"),
    ("classify", {"input": "a"}, "model", "model: is missing"),
    ("classify", {"model": ["reviews"], "input": "a"}, "model", "model: must be a text"),
    ("tag", {"model": "names", "input": ["a", 3]}, "input[1]", "input[1]: must be a text"),
    ("answer", {"model": "qa", "question": "Who?"}, "question", 'it is a part of input: {"question": "Who sang?"'),
    ("answer", {"model": "qa", "input": "Who?"}, "input", "must be an object with question and context"),
    ("rank", {"model": "bert", "query": "a", "texts": ["b"]}, "query", "it is a part of input"),
    (
        "fill",
        {"model": "bert", "input": ["a [MASK]", "the ___"]},
        "input[1]",
        "input[1]: no [MASK] in 'the ___': mark the gaps with it",
    ),
    ("fill", {"model": "bert", "input": "a [MASK]", "top": 999}, "top", "top must be between 1 and 258"),
    ("complete", {"model": "gpt", "prompt": "a"}, "prompt", "did you mean 'input'?"),
    ("complete", {"model": "gpt", "input": "a", "max_tokens": "5"}, "max_tokens", "max_tokens: must be a whole number"),
    ("complete", {"model": "gpt", "input": "a", "max_tokens": 2.5}, "max_tokens", "must be a whole number"),
    (
        "complete",
        {"model": "gpt", "input": "a", "slide": True},
        "max_tokens",
        "max_tokens is missing: nothing else limi",
    ),
    ("complete", {"model": "gpt", "input": "weaver " * 999}, "input[0]", "more than the model's context of 256"),
    ("completions", {"model": "gpt", "input": "a"}, "input", "did you mean 'prompt'?"),
    ("completions", {"model": "gpt", "temperature": 3}, "temperature", "temperature: must be 2 or less"),
    ("embeddings", {"model": "bert", "input": [1.5]}, "input[0]", "must be a token id, a whole number"),
    ("embeddings", {"model": "bert", "input": [None]}, "input[0]", "must be a text or a list of token ids"),
    ("embeddings", {"model": "gpt", "input": ["a", ""]}, "input[1]", "is empty, and this model puts no tokens around"),
    ("translate", {"model": "dates", "input": "a", "n": 3, "beam_size": 2}, "n", "a beam of 2 gives at most 2 texts"),
    ("choose", {"model": "gpt", "input": {"context": "a", "options": ["b", " "]}}, "input.options[1]", "is empty"),
    (
        "suggest",
        {"model": "gpt", "input": "a", "tokens": True, "complete_word": True},
        "input[0]",
        "leave out tokens or",
    ),
    ("complete", {"model": "gpt", "input": "a", "max_tokens": 4, "n": 2}, "n", "one text, not 2: give a temperature"),
    (
        "answer",
        {"model": "qa", "input": [["a", "b"], ["who " * 99, "b"]]},
        "input[1]",
        "input[1]: a question of 297 to",
    ),
    (
        "choose",
        {"model": "gpt", "input": [{"context": text, "options": ["b", "c"]} for text in ("a", "weaver " * 300)]},
        "input[1]",
        "more than the model's context of 256 can predict",
    ),
    (
        "look",
        {"model": "reviews", "view": "attribution", "input": "a", "target": "z"},
        "target",
        "target: label 'z' is",
    ),
    (
        "look",
        {"model": "bert", "view": "attention", "input": "a", "layer": 9},
        "layer",
        "layer 9: this model has layers",
    ),
    ("look", {"model": "bert", "view": "tokens", "input": "a", "head": 1}, "head", "no option of the view tokens"),
]


@pytest.mark.parametrize(("route", "body", "param", "message"), MISTAKES)
def test_mistakes(server: Served, route: str, body: Body, param: str | None, message: str) -> None:
    error = server.post(f"/v1/{route}", body)
    assert error.status == 422, error.body
    assert error.error["param"] == param and message in error.error["message"], error.error
    assert "\n" not in error.error["message"] and "--" not in error.error["message"]
    assert "/" not in error.error["message"], "nothing is said of the folder"


def test_numbers_may_have_a_point(server: Served) -> None:
    """JSON knows no whole numbers: 4.0 is 4."""
    whole = server.post("/v1/completions", {"model": "gpt", "prompt": [5, 6], "max_tokens": 4, "temperature": 0}).json()
    point = server.post("/v1/completions", {"model": "gpt", "prompt": [5.0, 6], "max_tokens": 4.0, "temperature": 0})
    assert point.json()["choices"] == whole["choices"]


@pytest.mark.parametrize("text", ["", "北京 😀 é", "word " * 10_000])
def test_any_text_is_read(server: Served, text: str) -> None:
    for route, body in (
        ("classify", {"model": "reviews", "input": text}),
        ("tag", {"model": "names", "input": text}),
        ("answer", {"model": "qa", "input": {"question": "Who?", "context": text}}),
        ("suggest", {"model": "gpt", "input": text}),
    ):
        reply = server.post(f"/v1/{route}", body)
        assert reply.status == 200 and len(reply.json()["answers"]) == 1, (route, reply.body)

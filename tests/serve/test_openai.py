"""The real `openai` package against the server: completions, streams, embeddings, errors."""

from __future__ import annotations

import base64
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from openai.types.chat import ChatCompletionStreamOptionsParam
from openai.types.completion_create_params import CompletionCreateParamsBase
from openai.types.embedding_create_params import EmbeddingCreateParams

import weft
from tests.serve.running import MODELS, Served, until
from weft.serve.schemas import CompletionRequest, EmbeddingRequest, StreamOptions

PROMPTS = ["The weaver", "An old loom"]


@pytest.fixture(scope="module")
def client(server: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def gpt(models: Path) -> Any:
    return weft.load(models / "gpt")


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == list(MODELS)
    assert client.models.retrieve("gpt").owned_by == "weft"
    with pytest.raises(openai.NotFoundError, match="no model 'gtp'"):
        client.models.retrieve("gtp")


def test_greedy_completions_are_those_of_load(client: openai.OpenAI, gpt: Any) -> None:
    reply = client.completions.create(model="gpt", prompt=PROMPTS, temperature=0, max_tokens=8)
    expected = gpt(PROMPTS, temperature=0.0, max_tokens=8)
    assert [choice.text for choice in reply.choices] == [answer.text for answer in expected]
    assert [choice.index for choice in reply.choices] == [0, 1]
    assert {choice.finish_reason for choice in reply.choices} <= {"stop", "length"}
    assert reply.object == "text_completion" and reply.model == "gpt" and reply.id.startswith("cmpl-")
    assert reply.usage is not None
    assert reply.usage.prompt_tokens == sum(answer.n_tokens for answer in expected)
    assert reply.usage.completion_tokens == sum(len(answer.tokens) for answer in expected)
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    more = reply.model_dump()
    assert more["version"] == reply.system_fingerprint and len(more["version"]) == 12
    assert [choice["n_tokens"] for choice in more["choices"]] == [answer.n_tokens for answer in expected]


def test_samples_are_those_of_load(client: openai.OpenAI, gpt: Any) -> None:
    reply = client.completions.create(model="gpt", prompt=PROMPTS, seed=7, n=2, top_p=0.9, max_tokens=6)
    expected = gpt(PROMPTS, seed=7, n=2, temperature=1.0, top_p=0.9, max_tokens=6)
    texts = [text.text for answer in expected for text in answer.best]
    assert sorted(choice.text for choice in reply.choices) == sorted(texts)
    assert [choice.index for choice in reply.choices] == [0, 1, 2, 3]


def test_defaults_are_those_of_openai(client: openai.OpenAI) -> None:
    """Sixteen tokens, sampled, another text each time."""
    replies = [client.completions.create(model="gpt", prompt="The weaver") for _ in range(4)]
    assert len({reply.choices[0].text for reply in replies}) > 1
    assert {reply.usage.completion_tokens for reply in replies if reply.usage} <= set(range(1, 17))
    same = [client.completions.create(model="gpt", prompt="The weaver", seed=3).choices[0].text for _ in range(2)]
    assert same[0] == same[1]
    low, lowest, highest = (
        {client.completions.create(model="gpt", prompt=PROMPTS, seed=seed).choices[0].text for _ in range(2)}
        for seed in (-1, -(1 << 63), (1 << 63) - 1)
    )
    assert len(low) == len(lowest) == len(highest) == 1 and low != lowest


def test_greedy_choices_are_equal(client: openai.OpenAI) -> None:
    reply = client.completions.create(model="gpt", prompt="The", temperature=0, n=3, max_tokens=4)
    assert len({choice.text for choice in reply.choices}) == 1
    assert [choice.index for choice in reply.choices] == [0, 1, 2]


def test_best_of_are_the_likeliest(client: openai.OpenAI, gpt: Any) -> None:
    reply = client.completions.create(model="gpt", prompt="The", seed=1, best_of=4, max_tokens=4)
    texts = gpt("The", seed=1, n=4, temperature=1.0, max_tokens=4).best
    likeliest = max(texts, key=lambda text: text.logprob / max(1, len(text.tokens)))
    assert [choice.text for choice in reply.choices] == [likeliest.text]
    for wrong in ({"n": 2, "best_of": 1}, {"best_of": 2, "stream": True}):
        with pytest.raises(openai.UnprocessableEntityError, match="best_of"):
            client.completions.create(model="gpt", prompt="The", **wrong)


def test_stop(client: openai.OpenAI) -> None:
    whole = client.completions.create(model="gpt", prompt="The weaver", temperature=0, max_tokens=12).choices[0].text
    stop = whole[3:5]
    for given in (stop, [stop, "not there"]):
        (choice,) = client.completions.create(
            model="gpt", prompt="The weaver", temperature=0, max_tokens=12, stop=given
        ).choices
        assert choice.text == whole[: whole.index(stop)] and choice.finish_reason == "stop"


def test_tokens_of_logprobs_are_parts_of_the_text(client: openai.OpenAI) -> None:
    """Joined they are the text, each begins where its offset says, and the token is one of its own alternatives."""
    prompt = "The weaver"
    for stream in (False, True):
        made: Any = client.completions.create(
            model="gpt", prompt=prompt, max_tokens=8, seed=2, logprobs=3, stream=stream
        )
        choices = [choice for event in (made if stream else [made]) for choice in event.choices]
        text = "".join(choice.text for choice in choices)
        known = [choice.logprobs for choice in choices if choice.logprobs]
        tokens, offsets, values, tops = (
            [item for part in known for item in getattr(part, name)]
            for name in ("tokens", "text_offset", "token_logprobs", "top_logprobs")
        )
        assert "".join(tokens) == text and len(tokens) == 8
        for token, offset, value, top in zip(tokens, offsets, values, tops, strict=True):
            assert (prompt + text)[offset : offset + len(token)] == token
            assert top[token] == value and 3 <= len(top) <= 4


def test_leaving_a_stream_frees_its_slot(client: openai.OpenAI, server: Served) -> None:
    stream = client.completions.create(model="gpt", prompt="The", max_tokens=200, stream=True)
    next(iter(stream))
    stream.close()
    until(lambda: server.metric("weft_running", model="gpt") == 0)


def test_embeddings(client: openai.OpenAI, models: Path) -> None:
    texts = ["The loom sang.", "A dull day."]
    expected = [answer.values for answer in weft.load(models / "bert").embed(texts)]
    packed = client.embeddings.create(model="bert", input=texts)  # asks for base64
    plain = client.embeddings.create(model="bert", input=texts, encoding_format="float")
    unsaid = client.embeddings.create(model="bert", input=texts, extra_body={"encoding_format": None})
    for reply in (packed, plain, unsaid):
        assert np.allclose([each.embedding for each in reply.data], expected, atol=1e-5)
        assert [each.index for each in reply.data] == [0, 1] and reply.model == "bert"
        assert reply.usage.prompt_tokens == reply.usage.total_tokens > 0
    raw = client.embeddings.with_raw_response.create(model="bert", input="The loom sang.", encoding_format="base64")
    values = np.frombuffer(base64.b64decode(raw.http_response.json()["data"][0]["embedding"]), "<f4")
    assert np.allclose(values, expected[0], atol=1e-5)
    assert client.embeddings.create(model="bert", input="x", dimensions=64).data
    with pytest.raises(openai.UnprocessableEntityError, match="dimensions: the vectors of this model have 64"):
        client.embeddings.create(model="bert", input="x", dimensions=16)


def test_embeddings_of_token_ids(client: openai.OpenAI, models: Path) -> None:
    tokenizer: Any = weft.load(models / "bert").tokenizer
    ids = tokenizer.ids(["the loom"], specials=False)[0]
    by_ids = client.embeddings.create(model="bert", input=[ids, ids]).data
    (by_text,) = client.embeddings.create(model="bert", input="the loom").data
    for each in by_ids:
        assert np.allclose(each.embedding, by_text.embedding, atol=1e-5)


def test_errors_are_those_of_openai(client: openai.OpenAI) -> None:
    create: Any = client.completions.create
    with pytest.raises(openai.NotFoundError) as missing:
        create(model="nothing", prompt="x")
    assert missing.value.code == "model_not_found" and missing.value.param == "model"
    cases: dict[str, dict[str, Any]] = {
        "frequency_penalty": {"frequency_penalty": 0.5},
        "presence_penalty": {"presence_penalty": -1},
        "logit_bias": {"logit_bias": {"1": 5}},
        "suffix": {"suffix": "!"},
        "n": {"n": 5},
        "stop": {"stop": list("abcde")},
        "logprobs": {"logprobs": 6},
        "temperature": {"temperature": 2.5},
        "top_p": {"top_p": 1.5},
        "max_tokens": {"max_tokens": -1},
        "stream_options": {"stream_options": {"include_usage": True}},
        "messages": {"extra_body": {"messages": []}},
        "seed": {"seed": 1 << 63},
    }
    for name, more in cases.items():
        with pytest.raises(openai.UnprocessableEntityError) as wrong:
            create(model="gpt", prompt="x", **more)
        assert wrong.value.param == name and name in str(wrong.value), name
    with pytest.raises(openai.APIStatusError) as large:
        create(model="gpt", prompt="x", n=4, max_tokens=100_000)
    assert large.value.status_code == 413 and large.value.param == "max_tokens"
    defaults = {"frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}, "suffix": None, "user": "somebody"}
    assert create(model="gpt", prompt="x", max_tokens=1, best_of=1, logprobs=None, **defaults).choices
    with pytest.raises(openai.UnprocessableEntityError, match="does not complete: it can"):
        create(model="reviews", prompt="x")


def test_all_documented_fields_are_known() -> None:
    """Those of the package's own types: honored, or refused by name."""
    documented = {
        CompletionRequest: {"stream", *CompletionCreateParamsBase.__annotations__},
        EmbeddingRequest: set(EmbeddingCreateParams.__annotations__),
        StreamOptions: set(ChatCompletionStreamOptionsParam.__annotations__),
    }
    for schema, names in documented.items():
        assert len(names) > 1 and names <= set(schema.model_fields)


STREAMS: list[dict[str, Any]] = [
    {"temperature": 0, "n": 3},
    {"seed": 3, "n": 3},
    {"seed": 3, "echo": True, "logprobs": 2},
    {"seed": 8, "n": 2, "logprobs": 0},
]


@pytest.mark.parametrize("options", STREAMS, ids=str)
@pytest.mark.parametrize("prompt", ["The weaver", ["Grüße 北京 😀", "a loom"]], ids=["one", "two"])
def test_streams_joined_are_the_whole_reply(client: openai.OpenAI, prompt: Any, options: dict[str, Any]) -> None:
    """The model writes bytes at random, so that many of its characters take several tokens."""
    asked: dict[str, Any] = {"model": "gpt", "prompt": prompt, "max_tokens": 24, **options}
    whole = client.completions.create(**asked)
    texts, ends = defaultdict[int, str](str), dict[int, str]()
    tokens, offsets = defaultdict[int, list[str]](list), defaultdict[int, list[int]](list)
    *events, last = client.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    for event in events:
        assert event.usage is None and event.object == "text_completion" and event.id == events[0].id
        for choice in event.choices:
            assert choice.index not in ends, "nothing comes after its end"
            texts[choice.index] += choice.text
            if choice.finish_reason:
                ends[choice.index] = choice.finish_reason
            if choice.logprobs is not None:
                tokens[choice.index] += choice.logprobs.tokens or []
                offsets[choice.index] += choice.logprobs.text_offset or []
    assert last.choices == [] and last.usage == whole.usage
    for choice in whole.choices:
        assert texts[choice.index] == choice.text and ends[choice.index] == choice.finish_reason
        if choice.logprobs is not None:
            assert tokens[choice.index] == choice.logprobs.tokens
            assert offsets[choice.index] == choice.logprobs.text_offset
            assert "".join(choice.logprobs.tokens or []) == choice.text


def test_a_stop_string_of_several_tokens_is_never_shown(client: openai.OpenAI) -> None:
    """Not even the part of it that has come already while the rest has not."""
    asked: dict[str, Any] = {"model": "gpt", "prompt": "The weaver", "seed": 5, "max_tokens": 40}
    reply = client.completions.create(**asked, logprobs=0).choices[0]
    assert reply.logprobs is not None
    tokens = reply.logprobs.tokens or []
    place = next(n for n in range(4, len(tokens) - 1) if len(tokens[n]) > 1 and len(tokens[n + 1]) > 1)
    stop = tokens[place][-1] + tokens[place + 1][0]  # its letters are of two tokens
    shown = reply.text[: reply.text.index(stop)]
    pieces = [event.choices[0].text for event in client.completions.create(**asked, stop=[stop], stream=True)]
    assert "".join(pieces) == shown
    assert client.completions.create(**asked, stop=stop).choices[0].text == shown


def test_lengths(client: openai.OpenAI) -> None:
    create: Any = client.completions.create
    nothing = create(model="gpt", prompt="The weaver", max_tokens=0)
    assert nothing.choices[0].text == "" and nothing.choices[0].finish_reason == "length"
    assert nothing.usage.completion_tokens == 0 and nothing.usage.prompt_tokens > 0
    scored = create(model="gpt", prompt="The weaver", max_tokens=0, echo=True, logprobs=1).choices[0]
    assert scored.text == "The weaver" and scored.logprobs.token_logprobs[0] is None
    assert all(value < 0 for value in scored.logprobs.token_logprobs[1:])
    assert create(model="gpt", prompt="The weaver", max_tokens=1).usage.completion_tokens == 1
    full = create(model="gpt", prompt="The weaver", max_tokens=5000, temperature=0)
    assert full.usage.total_tokens == 256 and full.choices[0].finish_reason == "length"  # the context of the model
    with pytest.raises(openai.UnprocessableEntityError, match="more than the model's context of 256") as long:
        create(model="gpt", prompt="The weaver " * 200)
    assert long.value.param == "prompt[0]"


def test_a_full_queue_is_asked_again(models: Path) -> None:
    """Many clients at once, and one request may wait: the package tries again when the server says so."""
    with Served(str(models / "gpt"), "--max-queue", "1") as served:
        client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)

        def ask(number: int, tries: int) -> Any:
            once = client.with_options(max_retries=tries)
            return once.completions.create(model="gpt", prompt="The", max_tokens=16, seed=number, n=4).usage

        def refused(number: int) -> bool:
            try:
                ask(number, 0)
            except openai.RateLimitError as error:
                assert float(error.response.headers["retry-after"]) > 0 and error.code == "rate_limit_exceeded"
                return True
            return False

        with ThreadPoolExecutor(32) as pool:
            assert any(pool.map(refused, range(32)))
            assert all(usage.completion_tokens > 0 for usage in pool.map(lambda n: ask(n, 200), range(8)))

"""Jobs that generate text: whoever else is served, a client gets what `weft.load` gives, whole and as a stream."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from tests.serve.engine_models import root
from tests.tasks.small import vocabulary
from weft.serve import messages
from weft.serve import writing as writing_module
from weft.serve.frames import Message, packed
from weft.serve.opened import OpenedModel, Opening
from weft.serve.writing import ContinuousWriter
from weft.serve.writing_jobs import CompletionJob
from weft.tasks.model import Model

KINDS = ["gpt2", "lstm", "xlnet", "t5"]


@cache
def folder(family: str) -> Path:
    """A model with random weights that are large, so that its tokens are not all alike."""
    kind = {"gpt2": "bpe", "t5": "unigram"}.get(family, "wordpiece" if family == "xlnet" else "word")
    heads = {"words": None} if family == "xlnet" else None
    settings = {"gpt2": {"context": 96}, "t5": {"context": 48}}.get(family, {})
    made = weft.new(family, vocabulary(kind), size="1x64", settings=settings, heads=heads, seed=1)
    with torch.no_grad():
        for parameter in made.network.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.3)
    if family != "t5":
        made = Model(replace(made.opened, card=replace(made.card, task="complete")), "complete")
    made.save(root() / f"writes-{family}")
    return root() / f"writes-{family}"


class Client:
    """A writer in this process, and what it sends."""

    def __init__(self, family: str, **sizes: int) -> None:
        self.opened = OpenedModel(Opening(name="m", folder=str(folder(family))))
        self.sent: dict[int, list[Message]] = defaultdict(list)
        self.over: dict[int, threading.Event] = defaultdict(threading.Event)
        self.number = self.steps = 0
        self.reading = threading.Event()
        self.reading.set()
        self.writer = ContinuousWriter(self.opened, self.take, self.count, **sizes)

    def count(self, tokens: int, steps: int) -> None:
        self.steps += steps

    def take(self, some: Any) -> None:
        self.reading.wait(30)
        for message in some:
            packed(message)  # as JSON
            messages.checked(message, messages.TO_SERVER)
            self.sent[message["id"]].append(message)
            if message["type"] in ("done", "error"):
                self.over[message["id"]].set()

    def send(self, job: Message) -> int:
        self.number += 1
        self.writer.add({**job, "id": self.number}, time.perf_counter())
        return self.number

    def reply(self, number: int) -> Message:
        assert self.over[number].wait(60)
        return self.sent[number][-1]

    def ask(self, prompts: list[Any], options: dict[str, Any], **more: Any) -> Message:
        return self.reply(self.send(messages.generate_job(prompts, options, **more)))

    def pieces(self, number: int) -> dict[tuple[int, int], str]:
        """The pieces of a job, joined by prompt and choice."""
        texts: dict[tuple[int, int], str] = defaultdict(str)
        for piece in self.sent[number][:-1]:
            texts[piece["prompt"], piece["choice"]] += piece["text"]
        return texts


@contextmanager
def client_of(family: str, **sizes: int) -> Iterator[Client]:
    client = Client(family, **sizes)
    yield client
    finished = threading.Thread(target=client.writer.finish, daemon=True)
    finished.start()
    finished.join(30)
    assert not finished.is_alive() and not client.writer.continuous.busy


def plain(answer: Any) -> list[tuple[str, tuple[int, ...], str]]:
    return [(each.text, each.tokens, each.finish_reason) for each in (answer.best or (answer,))]


def sent(answer: Message) -> list[tuple[str, tuple[int, ...], str]]:
    every = answer["best"] or [answer]
    return [(each["text"], tuple(each["tokens"]), each["finish_reason"]) for each in every]


OPTIONS: list[dict[str, Any]] = [
    {"max_tokens": 12},
    {"max_tokens": 9, "temperature": 0.8, "seed": 5, "n": 3},
    {"max_tokens": 20, "temperature": 1.0, "top_p": 0.9, "seed": 9, "stop": ["a", "th"]},
    {"max_tokens": 7, "temperature": 0.7, "top_k": 9, "logprobs": 3, "repetition_penalty": 1.2},
    {"max_tokens": 5, "beam_size": 3, "n": 2},
    {"max_tokens": 14, "ban": ["cat"], "min_tokens": 4, "stop": ["xy"], "logprobs": 0},
]


@pytest.mark.parametrize("family", KINDS)
def test_answers_are_those_of_the_model_alone(family: str) -> None:
    """Jobs that come at any time, streamed or not, with one prompt or several."""
    chance, model = random.Random(3), weft.load(folder(family), task="complete")
    words = ["the cat", "an oak is", "", "the film was good, and long", "4", "a"]
    with client_of(family, rows=8) as client:
        jobs = list[tuple[int, list[str], dict[str, Any]]]()
        for number in range(18):
            options = dict(OPTIONS[number % len(OPTIONS)])
            prompts = [" ".join(chance.choices(words, k=chance.randint(1, 3))) for _ in range(1 + number % 2)]
            job = messages.generate_job(prompts, options, stream=number % 3 > 0)
            jobs.append((client.send(job), prompts, options))
            time.sleep(chance.random() * 0.02)
        for number, prompts, options in jobs:
            done = client.reply(number)
            assert done["type"] == "done", done
            expected: list[Any] = model(prompts, **options)
            assert [sent(answer) for answer in done["answers"]] == [plain(answer) for answer in expected]
            written = sum(len(tokens) for answer in done["answers"] for _, tokens, _ in sent(answer))
            assert done["usage"]["completion_tokens"] == written
            assert done["usage"]["prompt_tokens"] == sum(answer.n_tokens for answer in expected)
            for place, (ours, theirs) in enumerate(zip(done["answers"], expected, strict=True)):
                assert ours["n_tokens"] == theirs.n_tokens and ours["object"] == "text"
                if number % 3 != 1 and len(client.sent[number]) > 1:
                    for choice, (text, _, _) in enumerate(sent(ours)):
                        assert client.pieces(number)[place, choice] == text
                if theirs.pieces is not None:
                    assert [piece["token"] for piece in ours["pieces"]] == [piece.token for piece in theirs.pieces]
                    values = [piece["logprob"] for piece in ours["pieces"]]
                    assert values == pytest.approx([piece.logprob for piece in theirs.pieces], abs=1e-4)
                    assert "".join(piece["written"] for piece in ours["pieces"]) == ours["text"]
                    for one, other in zip(ours["pieces"], theirs.pieces, strict=True):
                        others = [alternative["token"] for alternative in one["alternatives"]]
                        assert others == [alternative.token for alternative in other.alternatives]


@pytest.mark.parametrize("family", ["gpt2", "xlnet"])
def test_a_stream_shows_whole_characters_with_their_tokens(family: str) -> None:
    options = {"max_tokens": 24, "temperature": 1.0, "seed": 3, "n": 2, "logprobs": 1, "stop": ["zzz", "e"]}
    with client_of(family) as client:
        number = client.send(messages.generate_job(["the cat", "oak"], options, stream=True))
        done = client.reply(number)
        for place, answer in enumerate(done["answers"]):
            for choice, text in enumerate(answer["best"]):
                own = [p for p in client.sent[number][:-1] if (p["prompt"], p["choice"]) == (place, choice)]
                assert "".join(piece["text"] for piece in own) == text["text"]
                assert [token for piece in own for token in piece["tokens"]] == text["tokens"]
                streamed = [token for piece in own for token in piece["logprobs"]]
                assert streamed == text["pieces"]


def test_a_token_of_a_stream_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work for each new token does not grow with the text before it."""
    made, piece = list[int](), CompletionJob.piece

    def counted(self: CompletionJob, token: int, *more: Any) -> Any:
        made.append(token)
        return piece(self, token, *more)

    monkeypatch.setattr(CompletionJob, "piece", counted)
    with client_of("gpt2") as client:
        number = client.send(messages.generate_job(["the"], {"max_tokens": 60, "logprobs": 1}, stream=True))
        assert client.reply(number)["type"] == "done"
    assert len(made) <= 60 * 2 * 4  # each with an alternative, in the stream and at its end


def test_an_echo_has_the_log_probabilities_of_the_prompt() -> None:
    """As OpenAI's API has it: the prompt before the completion, and alone where nothing is to be generated."""
    prompt, model = "the cat is a good one", weft.load(folder("gpt2"))
    tokens = model.opened.tokenizer.ids([prompt], specials=False)[0]
    with torch.inference_mode():
        ragged = weft.nn.rows.Ragged.of([tokens])
        network: Any = model.network
        logs = network.words(network.next_states(ragged.tokens, ragged.rows)).log_softmax(-1)
    expected = [float(logs[place, token]) for place, token in enumerate(tokens[1:])]
    with client_of("gpt2") as client:
        for count in (0, 5):
            for given in (prompt, tokens):
                options = {"max_tokens": count, "logprobs": 2}
                done = client.ask([given], options, echo=True)
                (answer,) = done["answers"]
                pieces = answer["pieces"]
                assert answer["text"].startswith(prompt) and (count or answer["text"] == prompt)
                assert [piece["token"] for piece in pieces][: len(tokens)] == tokens
                assert len(pieces) == len(tokens) + count == len(tokens) + len(answer["tokens"])
                assert pieces[0]["logprob"] is None and pieces[0]["alternatives"] == []
                assert [each["logprob"] for each in pieces[1 : len(tokens)]] == pytest.approx(expected, abs=1e-4)
                assert [len(each["alternatives"]) for each in pieces[1:]] == [2] * (len(pieces) - 1)
                assert "".join(piece["written"] for piece in pieces) == answer["text"]
        number = client.send(messages.generate_job([prompt], {"max_tokens": 4}, stream=True, echo=True))
        (answer,) = client.reply(number)["answers"]
        assert client.pieces(number)[0, 0] == answer["text"] and answer["text"].startswith(prompt)
        done = client.ask([prompt], {"max_tokens": 0}, echo=True)
        assert done["answers"][0]["text"] == prompt and done["answers"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("family", ["lstm", "xlnet"])
def test_an_echo_where_prompts_are_read_whole(family: str) -> None:
    with client_of(family) as client:
        (answer,) = client.ask(["the cat is"], {"max_tokens": 3, "logprobs": 0}, echo=True)["answers"]
    # XLNet's prompts begin with a token of their own here, after which the first word has a probability too.
    assert (answer["pieces"][0]["logprob"] is None) == (family == "lstm")
    assert all(piece["logprob"] < 0 for piece in answer["pieces"][1:])
    assert answer["text"].startswith("the cat is")
    assert "".join(piece["written"] for piece in answer["pieces"]) == answer["text"]


def test_who_cancels_hears_nothing_more_and_frees_the_rows() -> None:
    with client_of("gpt2", rows=2) as client:
        client.reading.clear()
        long = [client.send(messages.generate_job(["the"], {"max_tokens": 60}, stream=True)) for _ in range(6)]
        while not client.writer.continuous.going:
            time.sleep(0.001)
        for number in long:
            client.writer.cancel(number)
        client.reading.set()
        short = client.ask(["an oak"], {"max_tokens": 2})
        assert short["type"] == "done"
        assert not any(message["type"] == "done" for number in long for message in client.sent[number])
        assert not client.writer.owners and not client.writer.jobs and client.writer.continuous.places_held == 0


def test_a_reader_that_is_slow_stalls_no_step() -> None:
    """What it does not take waits in one piece for each text, and other steps go on."""
    with client_of("gpt2") as client:
        client.reading.clear()
        number = client.send(messages.generate_job(["the cat"], {"max_tokens": 40}, stream=True))
        deadline = time.monotonic() + 30
        while number in client.writer.open and time.monotonic() < deadline:
            time.sleep(0.005)
        assert number not in client.writer.open  # all is generated, though nobody reads
        client.reading.set()
        done = client.reply(number)
        assert len(client.sent[number]) <= 4  # what was sent at first, the rest in one, and the end
        assert client.pieces(number)[0, 0] == done["answers"][0]["text"]


def test_a_short_prompt_does_not_wait_for_the_tokens_of_a_long_one(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenized, make = threading.Event(), writing_module.job_of

    def slow(message: Message, *more: Any) -> Any:
        if not messages.is_short(message):
            tokenized.wait(30)
        return make(message, *more)

    monkeypatch.setattr(writing_module, "job_of", slow)
    with client_of("gpt2") as client:
        long = client.send(messages.generate_job(["the cat " * 5000], {"max_tokens": 1}))
        assert client.ask(["the cat"], {"max_tokens": 2})["type"] == "done" and not client.over[long].is_set()
        tokenized.set()
        assert client.reply(long)["field"] == "prompt[0]"  # it is longer than the context


def test_mistakes_are_named_and_harm_nobody() -> None:
    with client_of("gpt2", places=300) as client:
        good = client.send(messages.generate_job(["the cat"], {"max_tokens": 30}))
        vocabulary_size = client.opened.loaded.config.vocabulary
        context = client.opened.loaded.config.context
        cases: list[tuple[list[Any], dict[str, Any], dict[str, Any], int, str | None]] = [
            (["a"], {"top_k": 0}, {}, 422, "top_k"),
            (["a"], {"tempo": 3}, {}, 422, None),
            (["a", [vocabulary_size]], {}, {}, 422, "prompt[1]"),
            (["a", []], {}, {}, 422, "prompt[1]"),
            (["a", [True]], {}, {}, 422, "prompt[1]"),
            (["a", [5] * (context + 1)], {"max_tokens": 1}, {}, 422, "prompt[1]"),
            (["the cat"] * 9, {"max_tokens": 1}, {"tokens": 5}, 413, "prompt"),
            (["a"], {"n": 4, "temperature": 1.0, "max_tokens": context - 5}, {}, 422, "prompt[0]"),
            (["a"], {"stop": [""]}, {}, 422, None),
        ]
        for prompts, options, more, status, field in cases:
            error = client.ask(prompts, options, **more)
            assert (error["type"], error["status"], error["field"]) == ("error", status, field), (error, options)
            assert str(client.opened.folder) not in error["message"] and "--" not in error["message"]
        assert client.reply(good)["type"] == "done"


def test_a_failure_of_ours_is_an_error_and_the_next_job_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    with client_of("gpt2") as client:
        step = writing_module.Continuous.step
        monkeypatch.setattr(writing_module.Continuous, "step", lambda self: 1 / 0)
        error = client.ask(["the cat"], {"max_tokens": 3})
        assert (error["status"], error["message"]) == (500, "internal error")
        monkeypatch.setattr(writing_module.Continuous, "step", step)
        assert client.ask(["the cat"], {"max_tokens": 3})["type"] == "done"


def test_translations_are_streamed_part_by_part() -> None:
    """As `translate` writes them, sentence by sentence where a text is longer than the model can read."""
    texts = ["the cat is today", "an oak is good. " * 9, ""]
    model: Any = weft.load(folder("t5"), task="translate")
    with client_of("t5") as client:
        for options in ({"max_tokens": 6}, {"max_tokens": 6, "beam_size": 1}, {"max_tokens": 5, "n": 2}):
            number = client.send(messages.task_job("translate", texts, options, stream=True))
            done = client.reply(number)
            expected = model(texts, **options)
            assert [answer["text"] for answer in done["answers"]] == [answer.text for answer in expected]
            assert [answer["n_windows"] for answer in done["answers"]] == [answer.n_windows for answer in expected]
            assert expected[1].n_windows > 1
            for place, answer in enumerate(expected):
                assert client.pieces(number)[place, 0] == answer.text
        error = client.reply(client.send(messages.task_job("translate", [3], {}, stream=True)))
        assert (error["status"], error["field"]) == (422, "input[0]")


def test_many_clients_take_hardly_more_steps_than_one() -> None:
    """The throughput, without a clock: jobs that are there together share their steps."""
    with client_of("gpt2") as client:
        jobs = [messages.generate_job(["the cat"], {"max_tokens": 40}) for _ in range(16)]
        client.ask(["a"], {"max_tokens": 1})
        client.steps = 0
        for number in [client.send(job) for job in jobs]:
            client.reply(number)
        assert client.steps < 3 * 40


@pytest.mark.parametrize(("family", "options"), [("gpt2", {"n": 4, "temperature": 1.0}), ("t5", {"beam_size": 32})])
def test_one_job_leaves_room_for_others(family: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A short text is written before most texts of a job with many samples or wide beams have begun."""
    with client_of(family) as client:
        order, take = list[Message](), client.take
        monkeypatch.setattr(client.writer.outbox, "write", lambda some: (order.extend(some), take(some)))
        with client.opened.alone:  # no step is taken until both are there
            job = messages.generate_job(["the cat"] * 32, {**options, "max_tokens": 30, "min_tokens": 30}, stream=True)
            long = client.send(job)
            own = {"beam_size": 2} if "beam_size" in options else {}
            short = client.send(messages.generate_job(["the cat"], {"max_tokens": 1, **own}))
        client.reply(short)
        client.reply(long)
        before = order[: next(place for place, each in enumerate(order) if each["id"] == short)]
        assert len({each["prompt"] for each in before}) <= 8

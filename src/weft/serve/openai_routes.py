"""The routes of OpenAI's API, `/v1/completions` and `/v1/embeddings`, and `/v1/rerank` of Cohere and Jina."""

from __future__ import annotations

import base64
import json
import random
import sys
import time
from array import array
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

from starlette.responses import Response

from weft.serve.frames import Message
from weft.serve.front import Asked, EventReply, Json, JsonReply, usage_of
from weft.serve.messages import embed_job, generate_job, task_job
from weft.serve.refusals import Refusal
from weft.serve.schemas import MOST_SEED, CompletionRequest, EmbeddingRequest, RerankRequest

DEFAULT_TOKENS = 16  # of a completion, as OpenAI has it
ENDS = {"end": "stop", "stop": "stop", "length": "length", "context": "length"}
OWN = ("top_k", "min_p", "repetition_penalty", "no_repeat", "min_tokens", "complete_word", "slide")
FILTERS = ("top_k", "min_p", "top_p")  # of sampling: they change nothing where the likeliest token is taken
READING = ("n_tokens", "n_windows", "truncated")


# ---------------------------------------------------------------------------------------------------------- completions


class Completions:
    """A request for completions, as the worker takes it and as its client wants the reply."""

    def __init__(self, asked: Asked, wanted: CompletionRequest) -> None:
        self.asked, self.wanted = asked, wanted
        self.n = wanted.n or 1
        self.id = f"cmpl-{asked.call.id}"
        self.created = int(time.time())
        self.prompts = wanted.prompt
        self.check()

    def check(self) -> None:
        wanted, limits = self.wanted, self.asked.options
        self.asked.check_count(self.prompts, "prompt", limits.max_texts, "prompts")
        best_of = wanted.best_of or self.n
        if best_of < self.n:
            raise Refusal(422, f"best_of: must be at least n, which is {self.n}", "best_of")
        if best_of > self.n and wanted.stream:
            raise Refusal(422, "best_of: a text is known to be the best at its end alone: leave out stream", "best_of")
        if wanted.stream_options is not None and not wanted.stream:
            raise Refusal(422, "stream_options: only goes with stream", "stream_options")
        if best_of > limits.max_n:
            name = "n" if self.n > limits.max_n else "best_of"
            raise Refusal(422, f"{name}: at most {limits.max_n} completions for each prompt, not {best_of}", name)

    def job(self) -> Message:
        wanted, options = self.wanted, self.options()
        tokens = self.asked.check_written(options, len(self.prompts))
        stream, echo = bool(wanted.stream), bool(wanted.echo)
        return generate_job(self.prompts, options, tokens=tokens, stream=stream, echo=echo)

    @property
    def greedy(self) -> bool:
        return self.wanted.temperature == 0 or self.wanted.top_p == 0

    def options(self) -> Json:
        """Those of `GenerationOptions`."""
        wanted = self.wanted
        limit = DEFAULT_TOKENS if wanted.max_tokens is None else wanted.max_tokens
        # All greedy completions of a prompt are the same: one is written.
        options: Json = {"max_tokens": limit, "n": 1 if self.greedy else wanted.best_of or self.n}
        seed = random.getrandbits(61) if wanted.seed is None else wanted.seed & MOST_SEED
        options["seed"] = [seed + number for number in range(len(self.prompts))]
        if wanted.stop:
            options["stop"] = list(wanted.stop)
        if wanted.logprobs is not None:
            options["logprobs"] = wanted.logprobs
        if wanted.temperature is not None or not self.greedy:
            options["temperature"] = 0.0 if self.greedy else 1.0 if wanted.temperature is None else wanted.temperature
        own = {name: vars(wanted)[name] for name in OWN if vars(wanted)[name] not in (None, False)}
        if wanted.top_p is not None and 0 < wanted.top_p < 1:
            own["top_p"] = wanted.top_p
        return {**options, **{name: value for name, value in own.items() if not (self.greedy and name in FILTERS)}}

    def head(self) -> Json:
        head = self.asked.head()
        fingerprint = head["version"]
        return {
            "id": self.id, "object": "text_completion", "created": self.created, **head,
            "system_fingerprint": fingerprint,
        }  # fmt: skip

    def reply(self, done: Message) -> Json:
        choices = [
            self.choice(number, rank, answer, text)
            for number, answer in enumerate(done["answers"])
            for rank, text in enumerate(self.texts(answer))
        ]
        return {**self.head(), "choices": choices, "usage": usage_of(done)}

    def texts(self, answer: Json) -> list[Json]:
        """The n texts for a prompt: the likeliest ones by token, where more were written."""
        texts: list[Json] = list(answer.get("best") or [answer])
        if self.greedy:
            return texts[:1] * self.n
        if len(texts) > self.n:
            texts.sort(key=lambda text: -text["logprob"] / max(1, len(text["tokens"])))
        return texts[: self.n]

    def choice(self, number: int, rank: int, answer: Json, text: Json) -> Json:
        """One choice of the reply, with what was read of its prompt."""
        reading = {name: answer[name] for name in READING if name in answer}
        return {
            "text": text["text"],
            "index": number * self.n + rank,
            "logprobs": self.logprobs(text.get("pieces"), self.offset(number)),
            "finish_reason": ENDS[text["finish_reason"]],
            **reading,
        }

    def offset(self, number: int) -> int:
        """Where a completion begins in the text of prompt and completion."""
        prompt = self.prompts[number]
        return len(prompt) if isinstance(prompt, str) and not self.wanted.echo else 0

    def logprobs(self, pieces: Sequence[Json] | None, offset: int) -> Json | None:
        """The log-probabilities of tokens in OpenAI's form: four lists side by side."""
        if pieces is None or self.wanted.logprobs is None:
            return None
        tokens, offsets, tops = list[str](), list[int](), list[dict[str, float] | None]()
        for piece in pieces:
            tokens.append(piece["written"])  # " the", not the vocabulary's spelling: joined, they are the text
            offsets.append(offset)
            offset += len(piece["written"])
            # The token itself is always among them, as with OpenAI.
            others = (other for other in piece["alternatives"] if other["token"] != piece["token"])
            top = {other["written"]: other["logprob"] for other in others}
            tops.append(None if piece["logprob"] is None else {**top, piece["written"]: piece["logprob"]})
        values = [piece["logprob"] for piece in pieces]
        return {"tokens": tokens, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets}

    async def events(self) -> AsyncIterator[Json]:
        """The chunks of a stream: pieces of text, the end of every choice and, where it is wanted, the usage."""
        options = self.wanted.stream_options
        counted = {"usage": None} if options is not None and options.include_usage else {}
        offsets: dict[int, int] = {}
        async for message in self.asked.stream(self.job()):
            if message["type"] == "piece":
                for index, prompt in self.indices(message):
                    offset = offsets.setdefault(index, self.offset(prompt))
                    logprobs = self.logprobs(message["logprobs"], offset)
                    offsets[index] = offset + len(message["text"])
                    choice = {"text": message["text"], "index": index, "logprobs": logprobs, "finish_reason": None}
                    yield {**self.head(), "choices": [choice], **counted}
                continue
            for number, answer in enumerate(message["answers"]):
                for rank, text in enumerate(self.texts(answer)):
                    end = {**self.choice(number, rank, answer, text), "text": "", "logprobs": None}
                    yield {**self.head(), "choices": [end], **counted}
            if counted:
                yield {**self.head(), "choices": [], "usage": usage_of(message)}

    def indices(self, piece: Message) -> Iterator[tuple[int, int]]:
        """The choices that a piece belongs to, each with the number of its prompt."""
        first = piece["prompt"] * self.n
        for rank in range(self.n) if self.greedy else (piece["choice"],):
            yield first + rank, piece["prompt"]


async def completions(asked: Asked, wanted: CompletionRequest) -> Response:
    """Completions, whole or as a stream."""
    request = Completions(asked, wanted)
    if wanted.stream:
        request.options()
        return EventReply(asked.call, request.events())
    return JsonReply(asked.call, request.reply(await asked.run(request.job())))


# ----------------------------------------------------------------------------------------------------------- embeddings


async def embeddings(asked: Asked, wanted: EmbeddingRequest) -> Response:
    """Vectors of texts."""
    width = asked.info.get("width")
    if wanted.dimensions is not None and wanted.dimensions != width:
        message = f"dimensions: the vectors of this model have {width} numbers, and no other length"
        raise Refusal(422, message, "dimensions", code="unsupported_parameter")
    asked.check_count(wanted.input, "input", asked.options.max_embeddings, "texts")
    done = await asked.run(embed_job(wanted.input, tokens=asked.options.max_tokens))
    usage = usage_of(done)
    del usage["completion_tokens"]
    head = {"object": "list", **asked.head(), "usage": usage}
    packed = wanted.encoding_format == "base64"
    return JsonReply(asked.call, head, ("data", (embedding(n, a, packed) for n, a in enumerate(done["answers"]))))


def embedding(number: int, answer: Mapping[str, Any], packed: bool) -> str:
    """One vector as JSON."""
    vector: Any = answer["base64"]
    reading = {name: answer[name] for name in READING if name in answer}
    values = {"object": "embedding", "index": number, **reading}
    return json.dumps({**values, "embedding": vector if packed else floats(vector)}, separators=(",", ":"))


def floats(packed: str) -> list[float]:
    """The numbers of a vector, which comes as little-endian float32 in base64."""
    numbers = array("f", base64.b64decode(packed))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()


# --------------------------------------------------------------------------------------------------------------- rerank


async def rerank(asked: Asked, wanted: RerankRequest) -> Response:
    """Documents by their relevance to a query."""
    asked.check_count(wanted.documents, "documents", asked.options.max_embeddings, "documents")
    top = min(wanted.top_n or len(wanted.documents), len(wanted.documents))
    search = {"query": wanted.query, "texts": wanted.documents}
    # Jina's clients count on the texts, and those of Cohere do not mind them.
    with_texts = asked.call.route == "/v1/rerank" if wanted.return_documents is None else wanted.return_documents
    try:
        done = await asked.run(task_job("rank", [search], {"top": top}, tokens=asked.options.max_tokens))
    except Refusal as refusal:
        raise renamed(refusal, {"input[0].texts": "documents", "input[0].query": "query"}) from None
    (answer,) = done["answers"]
    results = [
        {
            "index": hit["number"],
            "relevance_score": hit["score"],
            **({"document": {"text": hit["text"]}} if with_texts else {}),
        }
        for hit in answer["hits"]
    ]
    reading = {name: answer[name] for name in READING if name in answer}
    usage = usage_of(done)
    return JsonReply(
        asked.call,
        {
            "id": f"rerank-{asked.call.id}", "object": "list", **asked.head(), "results": results, **reading,
            "usage": usage, "meta": {"billed_units": {"search_units": 1}},
        },
    )  # fmt: skip


def renamed(refusal: Refusal, fields: Mapping[str, str]) -> Refusal:
    """A refusal with the field as it is called in the request."""
    for inside, outside in fields.items():
        if refusal.param and refusal.param.startswith(inside):
            refusal.param = outside + refusal.param.removeprefix(inside)
            refusal.message = refusal.message.replace(inside, outside, 1)
    return refusal


# --------------------------------------------------------------------------------------------------------------- models


def model_card(name: str, info: Mapping[str, Any] | None, created: int) -> Json:
    """A model in the list, with what can be known of it."""
    about = {"ready": False} if info is None else {"ready": True, **info}
    about.pop("unmeasured", None)  # for the hint that `weft serve` prints when it starts
    return {"id": name, "object": "model", "created": created, "owned_by": "weft", **about}

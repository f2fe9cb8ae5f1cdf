"""What requests hold: strict schemas, in which an unknown field, or one of another type, is an error that names it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, WithJsonSchema, model_validator

from weft.errors import did_you_mean, shown
from weft.serve.refusals import Refusal

Json = dict[str, Any]
TEXT: Json = {"type": "string"}
TOKENS: Json = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0, "maximum": (1 << 31) - 1}}
BEAM = 5  # hypotheses of a translation, as in weft.tasks.complete
MOST_SEED = (1 << 62) - 1
MOST_NUMBER = 1e30  # of a series, as in tables of data


def wrong(param: str, message: str) -> Refusal:
    """A field that does not fit its schema."""
    return Refusal(422, f"{param}: {message}", param)


def several(one: Json) -> Json:
    """The JSON schema of a list of these."""
    return {"type": "array", "minItems": 1, "items": one}


def checked_by(function: Callable[[Any], Any], schema: Json) -> Any:
    """Marks a field whose value this function checks; it raises refusals that name the very item."""
    return PlainValidator(function), WithJsonSchema(schema)


# ------------------------------------------------------------------------------------------------------------- inputs


def texts_or_tokens(name: str) -> Callable[[Any], list[Any]]:
    """Checks a text, a list of texts, a list of token ids or a list of such lists; the value is always a list."""

    def check(value: Any) -> list[Any]:
        if isinstance(value, str):
            return [value]
        if not isinstance(value, list) or not value:
            raise wrong(name, "must be a text, a list of texts, a list of token ids, or a list of such lists")
        kinds = set(map(type, value))
        if kinds == {str}:
            return value
        if kinds <= {int, float}:
            return [token_ids(name, value)]
        if kinds == {list}:
            return [token_ids(f"{name}[{number}]", tokens) for number, tokens in enumerate(value)]
        odd = next((number for number, item in enumerate(value) if type(item) is not type(value[0])), 0)
        what = "must be of the same kind as those before it" if odd else "must be a text or a list of token ids"
        raise wrong(f"{name}[{odd}]", what)

    return check


def whole(value: Any) -> Any:
    """A whole number as one, also where it was written with a point: JSON makes no difference."""
    return int(value) if type(value) is float and value.is_integer() else value


def token_ids(name: str, tokens: list[Any]) -> list[int]:
    """A list of token ids; anything else is refused."""
    if not tokens:
        raise wrong(name, "has no tokens")
    if set(map(type, tokens)) != {int}:
        tokens = list(map(whole, tokens))
        odd = next((number for number, token in enumerate(tokens) if type(token) is not int), None)
        if odd is not None:
            raise wrong(f"{name}[{odd}]", "must be a token id, a whole number")
    if min(tokens) < 0 or max(tokens) >= 1 << 31:
        odd = next(number for number, token in enumerate(tokens) if not 0 <= token < 1 << 31)
        raise wrong(f"{name}[{odd}]", "is not a token id")
    return tokens


def text_at(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise wrong(name, "must be a text")
    return value


def object_at(name: str, value: Any, fields: tuple[str, ...], free: tuple[str, ...] = ()) -> Json:
    """An object with these fields, of which `free` ones may be missing."""
    if not isinstance(value, dict):
        needed = " and ".join(key for key in fields if key not in free) or " or ".join(fields)
        raise wrong(name, f"must be an object with {needed}")
    for key in value:
        if key not in fields:
            raise Refusal(422, f"{name}: unknown field {shown(key)!r}{did_you_mean(key, fields)}", name)
    for key in fields:
        if key not in value and key not in free:
            raise wrong(f"{name}.{key}", "is missing")
    return value


def pair_at(name: str, value: Any, fields: tuple[str, str]) -> list[str]:
    """Two texts, as an object with these fields or as a list."""
    if isinstance(value, list):
        if len(value) != 2:
            raise wrong(name, f"must have two texts, {fields[0]} and {fields[1]}")
        return [text_at(f"{name}[{number}]", text) for number, text in enumerate(value)]
    return [text_at(f"{name}.{key}", object_at(name, value, fields)[key]) for key in fields]


def items(value: Any, one: Callable[[str, Any], Any], name: str = "input") -> list[Any]:
    """Every item of a list, each checked; what is no list is a single item."""
    if not isinstance(value, list):
        return [one(name, value)]
    if not value:
        raise wrong(name, "is empty")
    return [one(f"{name}[{number}]", item) for number, item in enumerate(value)]


def check_texts(value: Any) -> list[Any]:
    """Texts, or pairs of texts; of two bare texts the model decides whether they are a pair."""

    def one(name: str, item: Any) -> Any:
        if isinstance(item, str):
            return item
        if not isinstance(item, list | dict) or (isinstance(item, dict) and "pair" not in item):
            raise wrong(name, "must be a text, or an object with text and pair for a model that reads pairs")
        return pair_at(name, item, ("text", "pair"))

    return items(value, one)


def check_plain_texts(value: Any) -> list[str]:
    return items(value, text_at)


def check_questions(value: Any) -> list[list[str]]:
    """Questions with their contexts; a list of two texts is a single one."""
    if isinstance(value, list) and len(value) == 2 and all(isinstance(item, str) for item in value):
        return [value]
    return items(value, lambda name, item: pair_at(name, item, ("question", "context")))


def check_following(value: Any) -> list[list[str]]:
    """Pairs of texts; a list of two texts is a single one."""
    if isinstance(value, list) and len(value) == 2 and all(isinstance(item, str) for item in value):
        return [value]
    return items(value, lambda name, item: pair_at(name, item, ("text", "pair")))


def check_viewed(value: Any) -> list[str]:
    """A text, or the two texts of a pair."""
    if isinstance(value, dict):
        return pair_at("input", value, ("text", "pair"))
    texts = items(value, text_at)
    if len(texts) > 2:
        raise wrong("input", "must be one text, or the two of a pair")
    return texts


def check_choices(value: Any) -> list[Json]:
    def one(name: str, item: Any) -> Json:
        fields = object_at(name, item, ("context", "question", "options"), free=("question",))
        text_at(f"{name}.context", fields["context"])
        text_at(f"{name}.question", fields.get("question", ""))
        if not isinstance(fields["options"], list) or len(fields["options"]) < 2:
            raise wrong(f"{name}.options", "must be a list of two or more texts")
        for number, text in enumerate(fields["options"]):
            if not text_at(f"{name}.options[{number}]", text).strip():
                raise wrong(f"{name}.options[{number}]", "is empty")
        return fields

    return items(value, one)


def check_searches(value: Any) -> list[Json]:
    def one(name: str, item: Any) -> Json:
        fields = object_at(name, item, ("query", "texts"))
        text_at(f"{name}.query", fields["query"])
        if not isinstance(fields["texts"], list) or not fields["texts"]:
            raise wrong(f"{name}.texts", "must be a list of texts")
        for number, text in enumerate(fields["texts"]):
            text_at(f"{name}.texts[{number}]", text)
        return fields

    return items(value, one)


def check_tables(value: Any) -> list[Json]:
    """Tables to forecast: rows of cells, or series of values."""

    def cell(name: str, value: Any) -> None:
        if not isinstance(value, str | int | float | None) or (type(value) is int and abs(value) >= 1 << 63):
            raise wrong(name, "must be a text, a number, true, false or null")

    def one(name: str, item: Any) -> Json:
        fields = object_at(name, item, ("rows", "series"), free=("rows", "series"))
        if len(fields) != 1:
            raise wrong(name, "must have either rows or series")
        rows, series = fields.get("rows"), fields.get("series")
        if "rows" in fields and not (isinstance(rows, list) and rows and all(isinstance(row, dict) for row in rows)):
            raise wrong(f"{name}.rows", "must be a list of objects, one for each time")
        if "series" in fields and not (isinstance(series, dict) and series):
            raise wrong(f"{name}.series", "must be an object with a list of numbers for each name")
        for number, row in enumerate(rows or ()):
            for key, content in row.items():
                cell(f"{name}.rows[{number}].{shown(key)}", content)
        for key, values in (series or {}).items():
            place = f"{name}.series.{shown(key)}"
            if not isinstance(values, list) or not values:
                raise wrong(place, "must be a list of numbers")
            for number, content in enumerate(values):
                if type(content) not in (int, float) or abs(content) > MOST_NUMBER:
                    raise wrong(f"{place}[{number}]", "must be a number")
        return fields

    return items(value, one)


def check_documents(value: Any) -> list[str]:
    if not isinstance(value, list) or not value:
        raise wrong("documents", "must be a list of texts, or of objects with a text")

    def one(name: str, item: Any) -> str:
        return item if isinstance(item, str) else text_at(f"{name}.text", object_at(name, item, ("text",))["text"])

    return items(value, one, "documents")


def check_stop(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list):
        raise wrong("stop", "must be a text or a list of texts")
    for number, stop in enumerate(stops):
        name = "stop" if isinstance(value, str) else f"stop[{number}]"
        if not text_at(name, stop) or len(stop) > 1000:
            raise wrong(name, "must have between 1 and 1,000 characters")
    return tuple(stops)


def only(name: str, *allowed: Any) -> Callable[[Any], Any]:
    """Checks a field of another server's API that has no meaning here: its default may be given, nothing else."""

    def check(value: Any) -> Any:
        if not any(value == default and isinstance(value, bool) == isinstance(default, bool) for default in allowed):
            raise Refusal(422, f"{name} is not supported: leave it out", name, code="unsupported_parameter")
        return None

    return check


def unsupported(name: str, *allowed: Any, kind: str = "") -> Any:
    """The type of such a field."""
    kinds = {"enum": list(allowed), "description": f"Not supported; {kind or 'the default'} is accepted."}
    return Annotated[Any, *checked_by(only(name, *allowed), kinds)]


PAIR: Json = {"type": "object", "required": ["text", "pair"], "properties": {"text": TEXT, "pair": TEXT}}
QUESTION: Json = {
    "type": "object", "required": ["question", "context"], "properties": {"question": TEXT, "context": TEXT},
}  # fmt: skip
TWO: Json = {"type": "array", "minItems": 2, "maxItems": 2, "items": TEXT}
OPTIONS: Json = {"type": "array", "minItems": 2, "items": {**TEXT, "pattern": r"\S"}}
CHOICE: Json = {
    "type": "object",
    "required": ["context", "options"],
    "properties": {"context": TEXT, "question": TEXT, "options": OPTIONS},
}
SEARCH: Json = {
    "type": "object", "required": ["query", "texts"], "properties": {"query": TEXT, "texts": several(TEXT)},
}  # fmt: skip
CELL: Json = {"type": ["string", "number", "boolean", "null"]}
A_NUMBER: Json = {"type": "number", "minimum": -MOST_NUMBER, "maximum": MOST_NUMBER}
NUMBERS: Json = several(A_NUMBER)
ROWS: Json = several({"type": "object", "additionalProperties": CELL})
SERIES: Json = {"type": "object", "minProperties": 1, "additionalProperties": NUMBERS}
TABLE: Json = {
    "oneOf": [
        {"type": "object", "required": ["rows"], "properties": {"rows": ROWS}},
        {"type": "object", "required": ["series"], "properties": {"series": SERIES}},
    ]
}
DOCUMENT: Json = {"anyOf": [TEXT, {"type": "object", "required": ["text"], "properties": {"text": TEXT}}]}
for _schema in (PAIR, QUESTION, CHOICE, SEARCH, *TABLE["oneOf"], DOCUMENT["anyOf"][1]):
    _schema["additionalProperties"] = False


def one_or_more(*kinds: Json) -> Json:
    one = kinds[0] if len(kinds) == 1 else {"anyOf": list(kinds)}
    return {"anyOf": [*kinds, several(one)]}


STOP_TEXT: Json = {**TEXT, "minLength": 1, "maxLength": 1000}
STOP: Json = {"anyOf": [STOP_TEXT, several(STOP_TEXT), {"type": "null"}]}
VIEWED: Json = {"anyOf": [TEXT, PAIR, {**several(TEXT), "maxItems": 2}]}
TextOrTokens: Json = {"anyOf": [TEXT, several(TEXT), TOKENS, several(TOKENS)]}


# ----------------------------------------------------------------------------------------------------------- requests


class RequestSchema(BaseModel):
    """A request to a model."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False, protected_namespaces=())
    examples: ClassVar[tuple[Json, ...]] = ()

    model: str = Field(min_length=1, max_length=256, description="Name of a model; GET /v1/models lists them.")


class StreamOptions(BaseModel):
    """Options of a stream of events."""

    model_config = RequestSchema.model_config

    include_usage: bool | None = Field(None, description="End with an event that has the usage and no choices.")
    include_obfuscation: bool | None = Field(None, description="Accepted; nothing is obfuscated.")


class CompletionRequest(RequestSchema):
    """Continue prompts, as OpenAI's API for completions does; the fields from top_k on are Weft's own."""

    examples = ({"model": "gpt", "prompt": "The weaver said", "max_tokens": 16, "temperature": 0},)

    prompt: Annotated[
        list[Any],
        *checked_by(
            lambda value: [""] if value is None else texts_or_tokens("prompt")(value),
            {"anyOf": [*TextOrTokens["anyOf"], {"type": "null"}]},
        ),
    ] = Field([""], description="Texts or token ids to continue. Default: the beginning of a text.")
    best_of: int | None = Field(None, ge=1, le=128, description="Generate so many and return the n likeliest ones.")
    echo: bool | None = Field(False, description="Return the prompt before the completion.")
    frequency_penalty: unsupported("frequency_penalty", 0, None) = 0  # type: ignore[valid-type]
    logit_bias: unsupported("logit_bias", None, {}) = None  # type: ignore[valid-type]
    logprobs: int | None = Field(None, ge=0, le=5, description="Log-probabilities, of so many alternatives too.")
    max_tokens: int | None = Field(16, ge=0, le=1 << 20, description="New tokens at most.")
    n: int | None = Field(1, ge=1, le=128, description="Completions of each prompt.")
    presence_penalty: unsupported("presence_penalty", 0, None) = 0  # type: ignore[valid-type]
    seed: int | None = Field(
        None, ge=-(1 << 63), le=(1 << 63) - 1,
        description="Prompt i samples with seed + i; of a seed, 62 bits count. Default: another one for each request.",
    )  # fmt: skip
    stop: Annotated[tuple[str, ...], *checked_by(check_stop, STOP)] = Field(
        (), description="Texts before which a completion ends."
    )
    stream: bool | None = Field(False, description="Send server-sent events while the text is generated.")
    stream_options: StreamOptions | None = Field(None, description="Only with stream.")
    suffix: unsupported("suffix", None, "") = None  # type: ignore[valid-type]
    temperature: float | None = Field(1.0, ge=0, le=2, description="Sampling temperature; 0 is greedy.")
    top_p: float | None = Field(
        1.0, ge=0, le=1, description="Sample from the likeliest tokens whose probabilities sum to this."
    )
    user: str | None = Field(None, max_length=1024, description="Accepted and not used.")
    top_k: int | None = Field(None, ge=1, le=1 << 20, description="Sample from the k likeliest tokens.")
    min_p: float | None = Field(None, ge=0, le=1, description="Sample from tokens at least so likely as the best one.")
    repetition_penalty: float | None = Field(
        None, gt=0, le=10, description="Above 1: tokens that are in the text already become less likely."
    )
    no_repeat: int | None = Field(None, ge=0, le=1024, description="No sequence of so many tokens occurs twice.")
    min_tokens: int | None = Field(None, ge=0, le=1 << 20, description="New tokens before a text may end.")
    complete_word: bool | None = Field(False, description="Complete the last word of the prompt, which is half-typed.")
    slide: bool | None = Field(False, description="Read the last part of a text that is longer than the context.")


class EmbeddingRequest(RequestSchema):
    """Vectors of texts, as OpenAI's API for embeddings gives them."""

    examples = ({"model": "bert", "input": ["The loom sang.", "A dull day."]},)

    input: Annotated[list[Any], *checked_by(texts_or_tokens("input"), TextOrTokens)] = Field(
        description="Texts, or token ids."
    )
    dimensions: int | None = Field(None, ge=1, le=1 << 20, description="Numbers of a vector; only the model's own.")
    encoding_format: Literal["float", "base64"] | None = Field(
        "float", description="base64: of float32, little-endian."
    )
    user: str | None = Field(None, max_length=1024, description="Accepted and not used.")


class RerankRequest(RequestSchema):
    """Documents in the order of their relevance to a query, as the clients of Cohere and Jina ask for it."""

    examples = ({"model": "bert", "query": "an old loom", "documents": ["The loom is old.", "A new mill."]},)

    query: str = Field(description="What is searched for.")
    documents: Annotated[list[str], *checked_by(check_documents, several(DOCUMENT))] = Field(
        description="Texts, or objects with a text."
    )
    top_n: int | None = Field(None, ge=1, le=1 << 31, description="So many of the best. Default: all.")
    return_documents: bool | None = Field(
        None,
        description="Return the texts too. Default: as Jina does on /v1/rerank, and as Cohere does not on /v2/rerank.",
    )
    rank_fields: unsupported("rank_fields", None, ["text"]) = None  # type: ignore[valid-type]
    max_chunks_per_doc: unsupported("max_chunks_per_doc", None, 10) = None  # type: ignore[valid-type]
    max_tokens_per_doc: unsupported("max_tokens_per_doc", None, 4096) = None  # type: ignore[valid-type]
    priority: unsupported("priority", None, 0) = None  # type: ignore[valid-type]


class TaskRequest(RequestSchema):
    """Inputs of a task; the other fields are its options."""

    input: Annotated[list[Any], *checked_by(check_plain_texts, one_or_more(TEXT))] = Field(
        description="A text, or a list of texts."
    )


class ClassifyRequest(TaskRequest):
    """Labels, values or spans for texts, or for pairs of texts, as the model was fine-tuned."""

    examples = ({"model": "reviews", "input": ["a gripping film"]},)
    input: Annotated[list[Any], *checked_by(check_texts, one_or_more(TEXT, PAIR, TWO))] = Field(
        description="A text, a pair as an object or as a list of two, or a list of them."
    )


class TagRequest(TaskRequest):
    """Entities, chunks or parts of speech, with their characters in the text."""

    examples = ({"model": "names", "input": "Ada goes to Rome"},)


class AnswerRequest(TaskRequest):
    """The answer to a question, as a stretch of its context."""

    examples = ({"model": "qa", "input": {"question": "Who sang?", "context": "The weaver sang."}},)
    input: Annotated[list[Any], *checked_by(check_questions, one_or_more(QUESTION, TWO))] = Field(
        description="A question with its context, as an object or as a list of two; or a list of them."
    )
    top: int = Field(3, ge=1, le=20, description="Candidates in `best`.")


class WriteRequest(TaskRequest):
    """What the model writes for each text, translated, summarized or rewritten."""

    examples = ({"model": "en-de", "input": "Two dogs play in the snow.", "beam_size": 5},)
    beam_size: int | None = Field(None, ge=1, le=64, description="Hypotheses of the beam search. Default: 5.")
    n: int | None = Field(None, ge=1, le=64, description="Texts for each input, the best of the beam.")
    max_tokens: int | None = Field(None, ge=1, le=1 << 20, description="Default: 3 x source length + 32.")
    length_penalty: float | None = Field(None, ge=-30, le=30, description="Higher favors long texts. Default: 1.")
    alignments: bool | None = Field(None, description="Which source token each token came from.")

    @model_validator(mode="after")
    def check_n(self) -> WriteRequest:
        beam = self.beam_size or BEAM
        if (self.n or 1) > beam:
            raise wrong("n", f"a beam of {beam} gives at most {beam} texts, not {self.n}; give a larger beam_size")
        return self


class CompleteRequest(TaskRequest):
    """What a language model writes after each text; the likeliest tokens, unless an option of sampling is given."""

    examples = ({"model": "gpt", "input": "The weaver said", "max_tokens": 16},)
    max_tokens: int | None = Field(None, ge=0, le=1 << 20, description="New tokens at most. Default: what fits.")
    min_tokens: int | None = Field(None, ge=0, le=1 << 20, description="New tokens before a text may end.")
    temperature: float | None = Field(None, ge=0, le=100, description="Sampling temperature; 0 is greedy.")
    top_k: int | None = Field(None, ge=1, le=1 << 20, description="Sample from the k likeliest tokens.")
    top_p: float | None = Field(None, gt=0, le=1, description="Sample from the likeliest tokens of this sum.")
    min_p: float | None = Field(None, ge=0, le=1, description="Sample from tokens at least so likely as the best one.")
    typical: float | None = Field(None, gt=0, le=1, description="Sample from the most typical tokens of this sum.")
    n: int | None = Field(None, ge=1, le=128, description="Texts for each input.")
    seed: int | None = Field(None, ge=0, le=MOST_SEED, description="Input i samples with seed + i.")
    stop: Annotated[tuple[str, ...], *checked_by(check_stop, STOP)] = Field(
        (), description="Texts before which a text ends."
    )
    logprobs: int | None = Field(None, ge=0, le=20, description="Log-probabilities, of so many alternatives too.")
    repetition_penalty: float | None = Field(None, gt=0, le=10, description="Above 1: fewer repetitions.")
    no_repeat: int | None = Field(None, ge=0, le=1024, description="No sequence of so many tokens occurs twice.")
    complete_word: bool | None = Field(None, description="Complete the last word, which is half-typed.")
    slide: bool | None = Field(None, description="Read the last part of a text that is longer than the context.")
    stream: bool | None = Field(None, description="Send server-sent events while the text is generated.")


class NextRequest(TaskRequest):
    """Whether the second text of a pair follows the first."""

    examples = ({"model": "bert", "input": {"text": "The loom was old.", "pair": "It sang all night."}},)
    input: Annotated[list[Any], *checked_by(check_following, one_or_more(PAIR, TWO))] = Field(
        description="Two texts, as an object or as a list; or a list of them."
    )


class FillRequest(TaskRequest):
    """The likeliest words for each gap of a text."""

    examples = ({"model": "bert", "input": "the [MASK] of the loom"},)
    top: int = Field(5, ge=1, le=1000, description="Words for each gap.")


class SuggestRequest(TaskRequest):
    """The likeliest next words of a text, or completions of its last word."""

    examples = ({"model": "gpt", "input": "The weaver worked at the lo"},)
    top: int = Field(10, ge=1, le=1000, description="Words of each text.")
    tokens: bool | None = Field(None, description="Suggest tokens in place of words.")
    complete_word: bool | None = Field(None, description="Whether the last word is half-typed. Default: where it is.")


class RankRequest(TaskRequest):
    """The texts nearest to a query, by meaning."""

    examples = ({"model": "bert", "input": {"query": "an old loom", "texts": ["The loom is old.", "A new mill."]}},)
    input: Annotated[list[Any], *checked_by(check_searches, one_or_more(SEARCH))] = Field(
        description="A query with the texts to search, or a list of them."
    )
    top: int = Field(10, ge=1, le=1 << 20, description="Texts for each query.")


class ForecastRequest(TaskRequest):
    """The next steps of time series."""

    examples = ({"model": "sales", "input": {"series": {"sales": [3, 4, 5, 4, 3, 4, 5, 4]}}},)
    input: Annotated[list[Any], *checked_by(check_tables, one_or_more(TABLE))] = Field(
        description="A table: rows with a cell for each column, or series with a list of values for each name."
    )


class ChooseRequest(TaskRequest):
    """The right one of several options."""

    examples = ({"model": "gpt", "input": {"context": "The weaver", "options": ["sang.", "loom the."]}},)
    input: Annotated[list[Any], *checked_by(check_choices, one_or_more(CHOICE))] = Field(
        description="A context with its options, and perhaps a question; or a list of them."
    )
    normalize: Literal["none", "token", "byte", "prior"] | None = Field(
        None, description="Of a language model: how the log-probability of an option is normalized."
    )


class LookRequest(RequestSchema):
    """A view of a model at work, by name: attention, attribution, walk, lens, tokens, next words, windows."""

    examples = ({"model": "bert", "view": "attention", "input": "The loom sang."},)

    view: Literal["attention", "attribution", "walk", "lens", "tokens", "next", "windows"] = Field(
        description="What to show."
    )
    input: Annotated[list[str], *checked_by(check_viewed, VIEWED)] = Field(description="A text, or a pair of texts.")
    layer: int | None = Field(None, ge=-1024, le=1024, description="A layer, from 0.")
    head: int | None = Field(None, ge=0, le=1024, description="An attention head, from 0.")
    window: int | None = Field(None, ge=0, le=1 << 20, description="Which window of a long text, from 1.")
    target: str | None = Field(None, max_length=1024, description="What is explained: a label or a word.")
    method: str | None = Field(None, max_length=64, description="How an attribution is computed.")
    baseline: str | None = Field(None, max_length=64, description="What an attribution compares with.")
    top: int | None = Field(None, ge=1, le=1000, description="Words or tokens to show.")
    top_k: int | None = Field(None, ge=1, le=1000, description="Of a walk: sample from so many tokens.")
    seed: int | None = Field(None, ge=0, le=MOST_SEED, description="Of a walk.")

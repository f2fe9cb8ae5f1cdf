"""The OpenAPI document of all routes: requests, replies, errors, and examples with the loaded models."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, models_json_schema

from weft.serve.limits import ServeOptions
from weft.serve.messages import OF_PAIRS, VIEW_OPTIONS, VIEWS
from weft.serve.refusals import KINDS
from weft.serve.schemas import A_NUMBER, CELL, PAIR, TEXT, TWO, Json, RequestSchema, one_or_more, several
from weft.tasks import answers
from weft.version import VERSION

REFERENCE = "#/components/schemas/{model}"
NUMBER: Json = {"type": "number"}
COUNT: Json = {"type": "integer", "minimum": 0}
FLAG: Json = {"type": "boolean"}
READING = {"n_tokens": COUNT, "n_windows": COUNT, "truncated": FLAG}
HEAD = {"model": TEXT, "version": {"type": ["string", "null"], "description": "Hash of the model's files."}}
USAGE: Json = {
    "type": "object",
    "required": ["prompt_tokens", "total_tokens"],
    "properties": {"prompt_tokens": COUNT, "completion_tokens": COUNT, "total_tokens": COUNT},
}
# The description of each status.
ERRORS = {
    400: "The body is not a JSON object.",
    401: "The API key is missing or wrong.",
    403: "The Host header is not a name of this server, or the Origin is not allowed.",
    404: "No model has this name.",
    408: "The request did not arrive in time.",
    413: "The body, or the request in tokens, is too large.",
    415: "The body is not JSON.",
    422: "A field is unknown, missing or wrong; `param` names it.",
    429: "Too many requests wait for this model; Retry-After says when to try again.",
    500: "An internal error.",
    503: "The model is not ready, its worker ended, or the server is stopping.",
    504: "The request took longer than its deadline.",
}
# What the tasks answer; `suggest` has no dataclass that can be imported without torch.
ANSWERS: dict[str, tuple[type, ...]] = {
    "classify": (answers.Label, answers.Labels, answers.Value, answers.Spans),
    "tag": (answers.Spans,),
    "answer": (answers.Reply,),
    "translate": (answers.Translation,),
    "summarize": (answers.Translation,),
    "rewrite": (answers.Translation,),
    "complete": (answers.Text,),
    "fill": (answers.Words,),
    "rank": (answers.Ranked,),
    "forecast": (answers.Forecast,),
    "choose": (answers.Chosen, answers.Selected),
    "next": (answers.Follows,),
}


@dataclass(frozen=True)
class Described:
    """A route to a model."""

    path: str
    schema: type[RequestSchema]
    task: str
    streams: bool


def named(properties: Mapping[str, Json], *optional: str, more: bool = True) -> Json:
    """The schema of an object; all properties are there, but for the optional ones."""
    required = [name for name in properties if name not in optional]
    return {"type": "object", "required": required, "properties": dict(properties), "additionalProperties": more}


def listed_of(items: Json) -> Json:
    return {"type": "array", "items": items}


ERROR = named(
    {
        "error": named(
            {
                "message": TEXT,
                "type": TEXT,
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            }
        )
    }
)
LOGPROBS: Json = {
    "anyOf": [
        named(
            {
                "tokens": listed_of(TEXT),
                "token_logprobs": listed_of({"type": ["number", "null"]}),
                "top_logprobs": listed_of({"type": ["object", "null"], "additionalProperties": NUMBER}),
                "text_offset": listed_of(COUNT),
            }
        ),
        {"type": "null"},
    ]
}
CHOICE = named(
    {
        "text": TEXT,
        "index": COUNT,
        "logprobs": LOGPROBS,
        "finish_reason": {"enum": ["stop", "length", None]},
        **READING,
    },
    *READING,
)
COMPLETIONS = named(
    {
        "id": TEXT,
        "object": {"const": "text_completion"},
        "created": COUNT,
        **HEAD,
        "system_fingerprint": {"type": ["string", "null"]},
        "choices": listed_of(CHOICE),
        "usage": USAGE,
    }
)
VECTOR: Json = {"anyOf": [listed_of(NUMBER), {"type": "string", "description": "base64 of little-endian float32"}]}
EMBEDDINGS = named(
    {
        "object": {"const": "list"},
        **HEAD,
        "usage": USAGE,
        "data": listed_of(
            named({"object": {"const": "embedding"}, "index": COUNT, "embedding": VECTOR, **READING}, *READING)
        ),
    }
)
RERANK = named(
    {
        "id": TEXT,
        **HEAD,
        "results": listed_of(
            named({"index": COUNT, "relevance_score": NUMBER, "document": named({"text": TEXT})}, "document")
        ),
        **READING,
        "usage": USAGE,
    },
    *READING,
)
PANEL = named({"kind": TEXT, "title": TEXT, "data": {}})
VIEW = named(
    {"object": {"const": "view"}, **HEAD, "title": TEXT, "panels": listed_of(PANEL), **READING, "usage": USAGE}
)
SUGGESTIONS = named(
    {
        "object": {"const": "suggestions"},
        "words": listed_of(named({"text": TEXT, "probability": NUMBER, "tokens": listed_of(COUNT)})),
        **READING,
    }
)
REPLIES = {"/v1/completions": COMPLETIONS, "/v1/embeddings": EMBEDDINGS, "/v1/rerank": RERANK, "/v1/look": VIEW}
REPLIES["/v2/rerank"] = RERANK
OTHERS = ("/v1/completions", "/v1/embeddings", "/v1/rerank", "/v2/rerank")  # whose form is that of other servers
MODEL = named({"id": TEXT, "object": {"const": "model"}, "created": COUNT, "owned_by": TEXT, "ready": FLAG})
READ_ONLY: dict[str, tuple[str, str, Json]] = {
    "/v1/models": (
        "List the models",
        "Every model with its task, the routes it answers (`tasks`), labels, sizes and version.",
        named({"object": {"const": "list"}, "data": listed_of(MODEL)}),
    ),
    "/v1/models/{name}": ("One model", "What can be known of one model.", MODEL),
    "/health": ("Whether the server lives", "Needs no key.", named({"status": TEXT})),
    "/ready": (
        "Whether it takes requests",
        "503 until every model is loaded, and from SIGTERM on. Needs no key.",
        named({"status": TEXT}),
    ),
}


def can(info: Json, route: Described) -> bool:
    """Whether a model answers a route."""
    return bool(info["views"]) if route.task == "look" else route.task in info["tasks"]


def snake_case(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")


def answer_schemas(components: Json) -> dict[str, str]:
    """Add the answers of the tasks to the schemas; their references by class."""
    kinds = sorted({kind for kinds in ANSWERS.values() for kind in kinds}, key=lambda kind: kind.__name__)
    adapters: Sequence[Any] = [(kind, "serialization", TypeAdapter(kind)) for kind in kinds]
    references, schemas = TypeAdapter.json_schemas(adapters, ref_template=REFERENCE)
    components.update(schemas.get("$defs", {}))
    for (kind, _), reference in references.items():
        name = kind.__name__
        whole = components[name] = dict(components.get(name) or reference)
        whole["properties"] = {"object": {"const": snake_case(name)}, **whole["properties"]}
        whole["required"] = ["object", *whole.get("required", ())]
    return {kind.__name__: REFERENCE.format(model=kind.__name__) for kind in kinds}


def document(routes: Sequence[Described], infos: Mapping[str, Json | None], options: ServeOptions) -> Json:
    """The whole description; `infos`: the models by name, which the examples and schemas name."""
    components: Json = {"Error": ERROR, "Suggestions": SUGGESTIONS}
    references = answer_schemas(components)
    schemas = [(route.schema, "validation") for route in routes]
    _, definitions = models_json_schema(
        [(schema, "validation") for schema, _ in schemas], ref_template=REFERENCE, schema_generator=GenerateJsonSchema
    )
    components.update(definitions["$defs"])
    paths: Json = {}
    for route in routes:
        able = {name: info for name, info in infos.items() if info and can(info, route)}
        paths[route.path] = {"post": operation(route, able, references, components)}
    for path, (summary, text, reply) in READ_ONLY.items():
        paths[path] = {"get": read_only(path, summary, text, reply, list(infos))}
    limit_schemas(components, options)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Weft",
            "version": VERSION,
            "description": "Small language models on this machine. Texts are not kept, and nothing leaves the server.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}, {}],
    }


def narrowed(route: Described, able: Mapping[str, Json]) -> list[Json]:
    """What is true of requests to certain models only: models that take the same are described together."""
    if route.task == "look":
        known = [(view, [name for name, info in able.items() if view in info["views"]]) for view in VIEWS]
        return [{"properties": {"model": {"enum": names}, **view_fields(view)}} for view, names in known if names]
    described = list[tuple[Json, list[str]]]()
    for name, info in able.items():
        own = own_fields(route.path, info)
        names = next((names for fields, names in described if fields == own), None)
        if names is None:
            described.append((own, [name]))
        else:
            names.append(name)
    return [{"properties": {"model": {"enum": names}, **fields}} for fields, names in described]


def view_fields(view: str) -> Json:
    """The fields of a request for a view: options that it does not have may only be null."""
    options = {name for names in VIEW_OPTIONS.values() for name in names} - set(VIEW_OPTIONS[view])
    one_text = {} if view in OF_PAIRS else {"input": {"anyOf": [TEXT, {**several(TEXT), "maxItems": 1}]}}
    return {"view": {"const": view}, **one_text, **{name: {"type": "null"} for name in sorted(options)}}


def own_fields(path: str, info: Json) -> Json:
    """The fields of a request whose schema depends on the model."""
    last = info["vocabulary"] - 1
    if path == "/v1/classify":
        return {"input": one_or_more(PAIR, TWO) if info["pair"] else one_or_more(TEXT)}
    if path == "/v1/fill":
        text: Json = {**TEXT, "pattern": re.escape(info["mask"])} if info["mask"] else TEXT
        return {"input": one_or_more(text), "top": {"maximum": min(info["vocabulary"], 1000)}}
    if path == "/v1/embeddings":
        return {"input": texts_or_tokens_up_to(last), "dimensions": {"enum": [info["width"], None]}}
    if path == "/v1/forecast" and info["values"]:
        return {"input": one_or_more(table_of(info))}
    if path == "/v1/completions":
        return {"prompt": {"anyOf": [*texts_or_tokens_up_to(last)["anyOf"], {"type": "null"}]}}
    return {}


def table_of(info: Json) -> Json:
    """A table that a model for forecasts can read: its columns, and as many rows as its window is long."""
    names = [*info["values"], *info["features"]]
    row = {"type": "object", "required": names, "properties": dict.fromkeys(names, A_NUMBER)}
    rows = {"type": "array", "minItems": info["context"], "items": {**row, "additionalProperties": CELL}}
    kinds: list[Json] = [named({"rows": rows}, more=False)]
    if len(names) == 1:
        values = {"type": "array", "minItems": info["context"], "items": A_NUMBER}
        series = {"type": "object", "minProperties": 1, "additionalProperties": values}
        kinds.append(named({"series": series}, more=False))
    return {"anyOf": kinds}


def texts_or_tokens_up_to(last: int) -> Json:
    """Texts, or token ids of a vocabulary."""
    tokens: Json = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0, "maximum": last}}
    return {"anyOf": [TEXT, several(TEXT), tokens, several(tokens)]}


def operation(route: Described, able: Mapping[str, Json], references: Mapping[str, str], components: Json) -> Json:
    """One route to a model."""
    schema: Json = {"$ref": REFERENCE.format(model=route.schema.__name__)}
    if able:  # what the models of this server are called, and what each of them takes
        kinds = narrowed(route, able)
        schema = {"allOf": [schema, kinds[0] if len(kinds) == 1 else {"anyOf": kinds}]}
    first = next(iter(able), "MODEL")
    examples = {str(n): {"value": {**each, "model": first}} for n, each in enumerate(route.schema.examples, 1)}
    content: Json = {"application/json": {"schema": reply_of(route, references)}}
    if route.streams:
        content["text/event-stream"] = {
            "schema": {"description": "With `stream`: an event for each piece of text, and [DONE] as the last one."}
        }
    deadline = {
        "name": "Weft-Deadline", "in": "header", "required": False,
        "schema": {"type": "number", "exclusiveMinimum": 0},
        "description": "Seconds that the request may take, up to the limit of the server.",
    }  # fmt: skip
    title = (route.schema.__doc__ or "").strip()
    return {
        "operationId": route.path.removeprefix("/v1/").strip("/").replace("/", "_"),
        "summary": title.partition(",")[0].partition(";")[0].rstrip("."),
        "description": title,
        "tags": ["OpenAI, Cohere, Jina" if route.path in OTHERS else "Tasks"],
        "parameters": [deadline],
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema, "examples": examples}}},
        "responses": {
            "200": {
                "description": "The answers.",
                "content": content,
                "headers": {
                    "Server-Timing": {
                        "schema": TEXT, "description": "Milliseconds in the queue, the tokenizer, the model ..."
                    },
                    "X-Request-Id": {"schema": TEXT, "description": "What the log calls this request."},
                },
            },
            **errors(*ERRORS),
        },
    }  # fmt: skip


def reply_of(route: Described, references: Mapping[str, str]) -> Json:
    if route.path in REPLIES:
        return REPLIES[route.path]
    kinds = [{"$ref": references[kind.__name__]} for kind in ANSWERS.get(route.task, ())]
    kinds = kinds or [{"$ref": REFERENCE.format(model="Suggestions")}]
    one = kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
    return named({"object": {"const": "list"}, **HEAD, "answers": listed_of(one), "usage": USAGE})


def read_only(path: str, summary: str, text: str, reply: Json, names: Sequence[str]) -> Json:
    """One route that asks no model."""
    parameters = list[Json]()
    named_one: Json = {**TEXT, "enum": list(names)} if names else TEXT
    if "{name}" in path:
        parameters.append({"name": "name", "in": "path", "required": True, "schema": named_one})
    return {
        "operationId": path.strip("/").replace("/", "_").replace("{", "").replace("}", ""),
        "summary": summary,
        "description": text,
        "tags": ["Server"],
        "parameters": parameters,
        "responses": {
            "200": {"description": "As asked.", "content": {"application/json": {"schema": reply}}},
            **errors(401, 403, 404, 500, 503),
        },
    }


def errors(*statuses: int) -> Json:
    body = {"application/json": {"schema": {"$ref": REFERENCE.format(model="Error")}}}
    return {str(status): {"description": ERRORS[status], "content": body} for status in statuses if status in KINDS}


def limit_schemas(components: Json, options: ServeOptions) -> None:
    """Write the limits of this server into the schemas."""
    counts = {"CompletionRequest": ("prompt", options.max_texts), "EmbeddingRequest": ("input", options.max_embeddings)}
    for schema in (name for name in components if name.endswith("Request")):
        fields = components[schema]["properties"]
        field, most = counts.get(schema, ("input", options.max_texts))
        for kind in fields.get(field, {}).get("anyOf", ()):
            if kind.get("type") == "array" and kind["items"].get("type") != "integer":
                kind.setdefault("maxItems", most)
        for name, limit in (("n", options.max_n), ("best_of", options.max_n), ("max_tokens", options.max_tokens)):
            for kind in fields.get(name, {}).get("anyOf", ()):
                if kind.get("type") == "integer":
                    kind["maximum"] = limit
        for kind in fields.get("stop", {}).get("anyOf", ()):
            if kind.get("type") == "array":
                kind["maxItems"] = options.max_stop
        if "documents" in fields:
            fields["documents"]["maxItems"] = options.max_embeddings

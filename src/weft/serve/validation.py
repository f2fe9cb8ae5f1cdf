"""Validation of the JSON of a body by its schema: the first mistake is a refusal that names its field."""

from __future__ import annotations

import json
from functools import cache
from typing import TypeVar, get_args

from pydantic import ValidationError

from weft.errors import did_you_mean, listed, shown
from weft.serve.refusals import Refusal
from weft.serve.schemas import (
    AnswerRequest,
    ChooseRequest,
    ClassifyRequest,
    ForecastRequest,
    Json,
    NextRequest,
    RankRequest,
    RequestSchema,
    whole,
    wrong,
)

S = TypeVar("S", bound=RequestSchema)
# Names of the field with the texts, which differ between routes; and fields that belong into the objects of an input.
TEXT_NAMES = ("input", "prompt", "text", "texts", "inputs", "prompts")
INSIDE: dict[str, tuple[type[RequestSchema], ...]] = {
    "question": (AnswerRequest, ChooseRequest),
    "context": (AnswerRequest, ChooseRequest),
    "options": (ChooseRequest,),
    "query": (RankRequest,),
    "texts": (RankRequest,),
    "rows": (ForecastRequest,),
    "series": (ForecastRequest,),
    "pair": (NextRequest, ClassifyRequest),
}
# Beginnings of pydantic's messages, and the words that replace them; {} is the rest of the message.
WORDING = {
    "Field required": "is missing",
    "Extra inputs are not permitted": "unknown field",
    "Input should be a valid integer": "must be a whole number",
    "Input should be a valid number": "must be a number",
    "Input should be a valid string": "must be a text",
    "Input should be a valid boolean": "must be true or false",
    "Input should be a valid dictionary": "must be an object",
    "Input should be greater than or equal to ": "must be {} or more",
    "Input should be less than or equal to ": "must be {} or less",
    "Input should be greater than ": "must be above {}",
    "Input should be ": "must be {}",
    "String should ": "must {}",
}


@cache
def whole_fields(schema: type[RequestSchema]) -> tuple[str, ...]:
    """The fields of a request that are whole numbers."""
    kinds = {name: field.annotation for name, field in schema.model_fields.items()}
    return tuple(name for name, kind in kinds.items() if kind is int or int in get_args(kind))


def validated(schema: type[S], values: Json) -> S:
    """A request from the JSON values of a body; the first mistake is a refusal that names its field."""
    names = schema.model_fields
    for name in values:
        if name not in names:
            word, what = shown(name), f"unknown field {shown(name)!r}{meant(name, schema, values)}"
            raise Refusal(422, what, word, code="unknown_parameter")
    values = values | {name: whole(values[name]) for name in whole_fields(schema) if name in values}
    try:
        return schema.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        name = param_of(first["loc"])
        raise wrong(name, worded(first["msg"])) from None


def meant(name: str, schema: type[RequestSchema], given: Json) -> str:
    """A hint after the error about an unknown field: what was probably meant."""
    absent = [key for key, field in schema.model_fields.items() if key not in given and field.is_required()]
    parts = INSIDE.get(name, ())
    if schema in parts:
        return f"; it is a part of input: {json.dumps(schema.examples[0]['input'])}"
    if name in TEXT_NAMES and (text := next((key for key in TEXT_NAMES if key in schema.model_fields), None)):
        return f"; did you mean {text!r}?" if text not in given else ""
    return did_you_mean(name, schema.model_fields) or (f"; {listed(absent)} is missing" if absent else "")


def worded(message: str) -> str:
    """A message of pydantic in plain words."""
    for start, words in WORDING.items():
        if message.startswith(start):
            rest = message.removeprefix(start)
            return words.format(rest)
    return message[:1].lower() + message[1:]


def param_of(place: tuple[int | str, ...]) -> str:
    """The path of a field: ("input", 3, "text") is input[3].text."""
    name = ""
    for part in place:
        name += f"[{part}]" if isinstance(part, int) else f"{'.' if name else ''}{shown(part)}"
    return name

"""Prompts that put a task to a language model, with examples where there are some."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from weft.errors import UserError, did_you_mean, listed, shown
from weft.text.sentences import lead

PLACEHOLDERS = ("text", "question", "context")  # of a template
PART = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


def first_line(text: str) -> str:
    """The first line of what a model wrote that is not blank."""
    return next((line.strip() for line in text.split("\n") if line.strip()), "")


@dataclass(frozen=True, kw_only=True)
class Template:
    """How a task is put to a language model."""

    turn: str  # for each example, followed by its answer, and last for the text itself
    head: str = ""  # once; left out where its placeholders have no value
    decoding: Mapping[str, Any] = field(default_factory=dict)  # options of `complete`, as in the paper
    finish: Callable[[str], str] = str.strip  # what the paper kept of the output


# Prompts that make a language model translate, summarize and answer without training (Radford et al., 2019).
TEMPLATES = {
    "translate": Template(
        turn="{text} =", decoding={"stop": ("\n",), "max_tokens": 100}, finish=lambda text: lead(text, 1)
    ),
    "summarize": Template(turn="{text}\nTL;DR:", decoding={"top_k": 2, "max_tokens": 100}, finish=lead),
    "answer": Template(
        head="{context}\n", turn="Q: {question}\nA:", decoding={"stop": ("\n",), "max_tokens": 50}, finish=first_line
    ),
}


def filled(template: str, values: Mapping[str, str]) -> str:
    """A template with its placeholders filled, once each: braces in the values stay; {{ and }} stand for braces."""

    def part(match: re.Match[str]) -> str:
        name = match[1]
        if match[0] in ("{{", "}}"):
            return match[0][0]
        if name is None:
            raise UserError(f"template {shown(template)!r}: a single {match[0]!r}; write {match[0] * 2} for a brace")
        if name not in PLACEHOLDERS:
            known = listed(f"{{{known}}}" for known in PLACEHOLDERS) + did_you_mean(name, PLACEHOLDERS)
            raise UserError(f"template {shown(template)!r}: unknown placeholder {{{shown(name)}}}; known are {known}")
        if name not in values:
            raise UserError(f"template {shown(template)!r} needs a {name}")
        return values[name]

    return PART.sub(part, template)


def template_of(name: str) -> Template:
    """A template by its name, or a user's own: any text with a placeholder in it."""
    if name in TEMPLATES:
        return TEMPLATES[name]
    if "{" not in name:
        choices = f"{listed(TEMPLATES)}, nor does it hold {{text}}"
        raise UserError(f"template {shown(name)!r} is not one of {choices}{did_you_mean(name, TEMPLATES)}")
    return Template(turn=name)


def example_of(given: str) -> tuple[str, str]:
    """An example written as `text=>answer`."""
    text, arrow, answer = given.partition("=>")
    if not arrow or not text.strip() or not answer.strip():
        raise UserError(f"example {shown(given)!r}: write it as 'text=>answer'")
    return text.strip(), answer.strip()


def prompt_of(
    template: str | Template, text: str, *, context: str | None = None, examples: Sequence[tuple[str, str]] = ()
) -> str:
    """The prompt for a text: the head, each example with its answer on a line, then the text, open for its answer."""
    chosen = template_of(template) if isinstance(template, str) else template
    fixed = {} if context is None else {"context": context}

    def turn(text: str) -> str:
        return filled(chosen.turn, {**fixed, "text": text, "question": text})

    filled(chosen.turn, dict.fromkeys(PLACEHOLDERS, ""))  # a fault in the template is named before a missing value
    head = filled(chosen.head, fixed) if chosen.head and context is not None else ""
    return head + "".join(f"{turn(asked)} {answer}\n" for asked, answer in examples) + turn(text)

"""Calls of the command line with hostile values of its options, found in the tree of commands itself."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import typer.main

from tests.hostile.mutators import NUMBERS, STRINGS
from weft.cli.main import app

# A sound call of every verb; {bed} is the folder of samples.
CALLS: dict[str, str] = {
    "models": "",
    "info": "{bed}/task-classify",
    "new": "--model bert --size 1x64 --tokenizer {bed}/tokenizer-wordpiece --out out",
    "pretrain": "--model gpt2 --size 1x64 --set model.context=16 --batch 2 --steps 1 --text {bed}/run.txt --out out",
    "finetune": "--task classify --model bert --size 1x64 --set model.context=16 --length 16 --batch 2 --steps 1 "
    "--no-baseline --data {bed}/table-csv/data.csv --out out",
    "ladder": "--text {bed}/run.txt --tokens 100 --models ngram-2 --parallel 0 --out out",
    "resume": "{bed}/family-ngram",
    "curves": "{bed}/run --out curves.html",
    "recipes": "",
    "predict": "{bed}/task-classify cat",
    "answer": "{bed}/task-answer --context {bed}/run.txt where",
    "evaluate": "{bed}/task-translate --data {bed}/pairs/data.tsv --beam-size 1",
    "distill": "{bed}/task-classify --student 1x64 --text {bed}/run.txt --steps 1 --batch 2 --out out",
    "quantize": "{bed}/task-classify --data {bed}/table-csv/data.csv --seconds 0.2 --out out",
    "prune": "{bed}/task-classify --vocabulary 60 --text {bed}/run.txt --out out",
    "export": "{bed}/task-classify --out out",
    "compare": "{bed}/task-classify {bed}/onnx-fp32 --data {bed}/table-csv/data.csv --no-costs",
    "generate": "{bed}/task-complete cat --max-tokens 3",
    "suggest": "{bed}/task-complete cat",
    "translate": "{bed}/task-translate one --max-tokens 4",
    "summarize": "{bed}/task-translate one --max-tokens 4",
    "rewrite": "{bed}/task-translate one --max-tokens 4",
    "describe": "{bed}/family-vec2seq 1,2,3,4,5,6 --max-tokens 3",
    "forecast": "{bed}/task-forecast --data {bed}/series/long.csv",
    "bench": "{bed}/task-classify --lengths 4 --batch 1 --backends onednn --seconds 0.05 --no-memory",
    "fill": "{bed}/task-fill the_[MASK]_is",
    "embed": "{bed}/task-embed cat --per word --layers all-mean",
    "rank": "{bed}/task-embed --query cat --texts {bed}/run.txt",
    "central": "{bed}/task-embed --context {bed}/run.txt",
    "next": "{bed}/family-bert one two",
    "choose": "{bed}/task-complete the --choice cat --choice dog",
    "perplexity": "{bed}/task-complete --text {bed}/run.txt",
    "look attention": "{bed}/family-bert one --out look.html",
    "look attribution": "{bed}/task-classify one --out attribution.html",
    "look walk": "one-hot cat --out walk.html",
    "look lens": "{bed}/task-complete cat --top 3 --out lens.html",
    "look positions": "--length 16 --out look.html",
    "look map": "{bed}/family-vectors --top 5 --out look.html",
    "look words": "{bed}/task-embed the --texts {bed}/run.txt --out look.html",
    "look probe": "{bed}/task-classify --data {bed}/table-csv/data.csv --rows 10 --out look.html",
    "look gradients": "{bed}/family-lstm --text one_two_three_four --out look.html",
    "look generation": "{bed}/task-complete cat --beam-size 2 --max-tokens 3 --out look.html",
    "look next": "{bed}/task-complete --text cat --out look.html",
    "look tokens": "cat --tokenizer {bed}/tokenizer-bpe --out look.html",
    "tokenizer learn": "--kind wordpiece --size 100 --text {bed}/run.txt --out out",
    "tokenizer show": "{bed}/tokenizer-bpe cat",
    "vectors learn": "--text {bed}/run.txt --width 4 --min-count 1 --epochs 1 --out out",
    "vectors near": "{bed}/family-vectors looms",
    "vectors analogy": "{bed}/family-vectors looms rivers models",
    "vectors odd": "{bed}/family-vectors looms rivers models",
    "vectors cosine": "{bed}/family-vectors looms rivers",
    "vectors evaluate": "{bed}/family-vectors --data {bed}/words/similar.tsv",
    "vectors convert": "{bed}/family-vectors out.txt",
    "vectors map": "{bed}/family-vectors {bed}/family-vectors --pairs {bed}/words/pairs.tsv --out out",
    "arpa write": "{bed}/family-ngram out.arpa",
    "arpa read": "{bed}/arpa/model.arpa --out out",
    "cache list": "",
    "cache clear": "",
}
# What is asked for here takes as long as it says, so a huge value is no fault of ours.
LONG = {"steps", "epochs", "minutes", "seeds", "patience", "repeats", "runs"}


ENDLESS = ("serve", "top")  # that end when somebody ends them, or need a server: tests/serve attacks these


def commands() -> Iterator[tuple[str, Any]]:
    """Every verb that ends by itself, with its parameters."""

    def walk(command: Any, name: str) -> Iterator[tuple[str, Any]]:
        if hasattr(command, "commands"):
            for word, inner in command.commands.items():
                yield from walk(inner, f"{name} {word}".strip())
        elif name not in ENDLESS:
            yield name, command

    yield from walk(typer.main.get_command(app), "")


def recipe_keys() -> list[str]:
    """Keys for --set: every field of the sections of a recipe."""
    from weft.models.encoders import BertConfig
    from weft.runs.recipes import Recipe
    from weft.training.plan import Training

    keys = [f"training.{field.name}" for field in fields(Training)] + [f"model.{f.name}" for f in fields(BertConfig)]
    for section in fields(Recipe):
        if section.name not in ("training", "model"):
            inner = getattr(section.default_factory, "__dataclass_fields__", None)
            keys += [f"{section.name}.{name}" for name in inner] if inner else [section.name]
    return keys


def sound_call(verb: str, bed: Path) -> list[str]:
    """The arguments of a call that must succeed."""
    words = CALLS[verb].format(bed=bed).split()
    return [*verb.split(), *(word if "/" in word else word.replace("_", " ") for word in words)]


def hostile_call(verb: str, command: Any, bed: Path, rng: random.Random) -> list[str]:
    """A sound call with one to three options of hostile values, the last of which counts."""
    call = sound_call(verb, bed)[len(verb.split()) :]
    options = [each for each in command.params if each.opts[0].startswith("-") and each.name not in ("online", "help")]
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if not options:
            call.append(rng.choice((*NUMBERS, *STRINGS)).replace("\0", ""))
            continue
        option = rng.choice(options)
        name = option.opts[0]
        if option.name == "set_" or name == "--set":
            key = rng.choice(recipe_keys())
            call += [name, f"{key}={_value(key.partition('.')[2] or key, True, rng)}"]
        elif option.is_flag:
            call.append(rng.choice((name, *option.secondary_opts)))
        else:
            call += [name, _value(option.name, _numeric(option), rng)]
    if rng.random() < 0.1:
        call.insert(rng.randrange(len(call) + 1), rng.choice(STRINGS).replace("\0", ""))
    # The system takes no argument with a zero in it, and half of a surrogate pair comes as bytes that are not UTF-8.
    return [*verb.split(), *(argument.replace("\0", "").replace("\ud800", "\udcff") for argument in call)]


# Values that every option of a number gets in turn.
SWEEP = ("nan", "-inf", "-1", "0", "1e23", "2147483648", "9223372036854775808", "1" + "0" * 400, "-1e23", "１２")


def sweep(verb: str, command: Any) -> list[tuple[str, str]]:
    """Every option of a verb that is a number, with every value of the sweep."""
    given = [(option.opts[0], option.name) for option in command.params if _numeric(option)]
    return [
        (name, value)
        for name, called in given
        for value in SWEEP
        if called not in LONG or not value.isascii() or len(value) < 5
    ]


def _numeric(option: Any) -> bool:
    kind = getattr(option, "type", None) or getattr(option, "type_descriptor", "")  # by typer's version
    return option.opts[0].startswith("-") and re.search(r"\b(int|integer|float)\b", str(kind).lower()) is not None


def _value(name: str, numeric: bool, rng: random.Random) -> str:
    if name in LONG:
        return rng.choice(("0", "-1", "1", "nan", "inf", "-inf", "1e-9", "", "x", "１", "1e400", "2"))
    if numeric or rng.random() < 0.3:
        return rng.choice(NUMBERS)
    return rng.choice(STRINGS)

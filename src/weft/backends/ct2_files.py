"""The files of CTranslate2's engine, looked through before the engine opens them.

The engine trusts its files: a table that is too small for a vocabulary, or a head of no width, would end the whole
program. So every variable must be one that we would have written for this config, of the right shape.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from weft.errors import UserError, listed, shown
from weft.files import MEGABYTE, read_json, reason

ENGINE = "ctranslate2"  # the folder inside
VERSION = 6  # of the engine's file format
KINDS = ("float32", "int8", "int16", "int32", "float16")  # in the order of the engine's numbers
LONGEST = 256  # characters of a variable's name
LANGUAGE = {"unk_token", "bos_token", "eos_token", "layer_norm_epsilon", "multi_query_attention"}
SEQUENCE = LANGUAGE | {"decoder_start_token", "add_source_bos", "add_source_eos"}

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Stack:
    """Sizes of one stack of layers: an encoder, or a decoder."""

    layers: int
    heads: int
    inner: int
    cross: bool  # looks at what was read, too


@dataclass(frozen=True)
class Variable:
    """One entry of `model.bin`; only single numbers keep their value."""

    shape: Shape
    value: float | None


def check_files(folder: Path, config: Any, spec: str, vocabularies: Mapping[str, int]) -> None:
    """Refuse an engine folder that is not, to the last variable, one of this config.

    `spec` is what the engine calls this kind of model; `vocabularies` are the lists of tokens that it must have.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: the engine's files are missing; export the model again")
    told = read_json(folder / "config.json", MEGABYTE)
    known = SEQUENCE if spec == "TransformerSpec" else LANGUAGE
    strange = [shown(key) for key in told if key not in known]
    if strange:
        raise UserError(f"{folder / 'config.json'}: unknown keys: {listed(strange)}")
    if told.get("add_source_bos") or told.get("add_source_eos"):
        raise UserError(f"{folder / 'config.json'}: the tokens around a text are ours to put there")
    for name, size in vocabularies.items():
        words = read_json(folder / f"{name}.json", 512 * MEGABYTE, kind=list)
        if len(words) != size or not all(isinstance(word, str) for word in words) or len(set(words)) < size:
            raise UserError(f"{folder / name}.json: {len(words)} tokens where {size} different ones are expected")
        for key in ("unk_token", "bos_token", "eos_token"):
            if name != "source_vocabulary" and told.get(key) not in words:
                raise UserError(f"{folder / 'config.json'}: {key} is not a token of the vocabulary")
    if spec == "TransformerSpec":
        written = read_json(folder / f"{list(vocabularies)[-1]}.json", 512 * MEGABYTE, kind=list)
        if told.get("decoder_start_token") != written[config.begin]:
            raise UserError(f"{folder / 'config.json'}: decoder_start_token is not the model's own")
    path = folder / "model.bin"
    variables, aliases = _read(path, spec)
    stacks = stacks_of(config, spec)
    faults = []
    for name, target in aliases.items():
        if target not in variables:
            raise UserError(f"{path}: {shown(name)} stands for {shown(target)}, which is not there")
    every = {**variables, **{name: variables[target] for name, target in aliases.items()}}
    for name, variable in every.items():
        if not _fits(name, variable, config, stacks):
            faults.append(f"{shown(name, 80)} {variable.shape}")
    missing = [name for name in _needed(config, stacks) if name not in every]
    if faults:
        raise UserError(f"{path}: not what a model of this config.json has: {listed(faults)}")
    if missing:
        raise UserError(f"{path}: missing: {listed(missing)}")


def stacks_of(config: Any, spec: str) -> dict[str, Stack]:
    """The stacks that a model of this kind has."""
    inner = config.inner or 4 * config.width
    if spec == "TransformerEncoderSpec":
        return {"encoder": Stack(config.layers, config.heads, inner, cross=False)}
    layers = getattr(config, "decoder_layers", None) or config.layers
    heads = getattr(config, "decoder_heads", None) or config.heads
    decoder = Stack(layers, heads, getattr(config, "decoder_inner", None) or inner, spec == "TransformerSpec")
    if spec == "TransformerDecoderSpec":
        return {"decoder": decoder}
    return {"encoder": Stack(config.layers, config.heads, inner, cross=False), "decoder": decoder}


# --------------------------------------------------------------------------------------------- what may be in there


def _needed(config: Any, stacks: Mapping[str, Stack]) -> list[str]:
    """Variables without which the engine would read past what is there."""
    found = []
    for side, stack in stacks.items():
        found += [f"{side}/num_heads", f"{side}/embeddings{'_0' * (side == 'encoder')}/weight"]
        for layer in range(stack.layers):
            parts = [("self_attention", 2), *([("attention", 3)] if stack.cross else [])]
            for part, maps in parts:
                found.append(f"{side}/layer_{layer}/{part}/head_dim")
                found += [f"{side}/layer_{layer}/{part}/linear_{number}/weight" for number in range(maps)]
            found += [f"{side}/layer_{layer}/ffn/linear_{number}/weight" for number in range(2)]
            found += [f"{side}/layer_{layer}/{part}/layer_norm/gamma" for part in (*(p for p, _ in parts), "ffn")]
        if side == "decoder":
            found.append("decoder/projection/weight")
        if getattr(config, "positions", None) in ("learned", "sinusoidal", "sinusoidal-halves", "none"):
            found.append(f"{side}/position_encodings/encodings")
    return found


def _fits(name: str, variable: Variable, config: Any, stacks: Mapping[str, Stack]) -> bool:
    """Whether a variable is one of ours, of the right shape."""
    side, _, rest = name.partition("/")
    if side not in stacks:
        return False
    stack = stacks[side]
    if not variable.shape:
        return _sound(rest, variable, config, stack)
    found = re.fullmatch(r"layer_(0|[1-9][0-9]{0,4})/(.+)", rest)
    if found is None:
        return variable.shape in _outer(side, config).get(rest, ())
    return int(found[1]) < stack.layers and variable.shape in _inner(config, stack).get(found[2], ())


def _sound(rest: str, variable: Variable, config: Any, stack: Stack) -> bool:
    """Whether a single number is one that the engine can work with."""
    value = variable.value
    if value is None or not np.isfinite(value):
        return False
    head = config.head_width or config.width // stack.heads
    exact = {"num_heads": stack.heads, "head_dim": head, "alignment_layer": -1, "alignment_heads": 1, "rotary_dim": 0}
    exact |= {"relative_attention_max_distance": getattr(config, "farthest", 0), "rotary_base": 10000.0}
    last = rest.rpartition("/")[2]
    if last in exact:
        return value == exact[last]
    if last in ("scale_embeddings", "scale_outputs", "queries_scale"):
        return 0.0 <= value <= 1e4
    if last == "activation":
        return 0 <= value <= 6
    flags = {"pre_norm", "embeddings_merge", "multi_query_attention", "alibi", "alibi_use_positive_positions"}
    return last in flags | {"scale_alibi", "start_from_zero_embedding", "rotary_interleave"} and value in (0, 1)


def _outer(side: str, config: Any) -> dict[str, tuple[Shape, ...]]:
    """The tables and norms outside of the layers."""
    width, size = config.width, config.vocabulary
    found: dict[str, tuple[Shape, ...]] = {}
    if side == "encoder":
        read = getattr(config, "source_vocabulary", None) or size
        found |= _map("embeddings_0", read, width) | _map("embeddings_1", getattr(config, "segments", 0), width)
    else:
        found |= _map("embeddings", size, width) | _map("projection", size, width)
    found["position_encodings/encodings"] = ((config.context, width),)
    for name in ("layer_norm", "layernorm_embedding"):
        found |= {f"{name}/{part}": ((width,),) for part in ("gamma", "beta")}
    return found


def _inner(config: Any, stack: Stack) -> dict[str, tuple[Shape, ...]]:
    """What is inside a layer."""
    width, inner = config.width, stack.inner
    wide = stack.heads * (config.head_width or width // stack.heads)
    found = _map("self_attention/linear_0", 3 * wide, width) | _map("self_attention/linear_1", width, wide)
    parts = ["self_attention", "ffn"]
    if stack.cross:
        parts.append("attention")
        found |= _map("attention/linear_0", wide, width) | _map("attention/linear_1", 2 * wide, width)
        found |= _map("attention/linear_2", width, wide)
    for part in parts:
        found |= {f"{part}/layer_norm/{name}": ((width,),) for name in ("gamma", "beta")}
    found |= _map("ffn/linear_0", inner, width) | _map("ffn/linear_0_noact", inner, width)
    found |= _map("ffn/linear_1", width, inner)
    if hasattr(config, "buckets"):
        found["self_attention/relative_attention_bias"] = ((config.buckets, stack.heads),)
    return found


def _map(name: str, outputs: int, inputs: int) -> dict[str, tuple[Shape, ...]]:
    return {
        f"{name}/weight": ((outputs, inputs),),
        f"{name}/bias": ((outputs,),),
        f"{name}/weight_scale": ((outputs,),),
    }


# ------------------------------------------------------------------------------------------------------- the binary


def _read(path: Path, spec: str) -> tuple[dict[str, Variable], dict[str, str]]:
    """The variables of a model file and the names that stand for others; nothing is loaded but single numbers."""
    try:
        if not path.is_file():
            raise UserError(f"{path}: the engine's weights are missing; export the model again")
        with open(path, "rb") as file:
            return _walk(file, path.stat().st_size, spec)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {reason(error)}") from None
    except (struct.error, ValueError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not a sound model of CTranslate2: {shown(str(error), 120)}") from None


def _walk(file: BinaryIO, size: int, spec: str) -> tuple[dict[str, Variable], dict[str, str]]:
    def number(code: str) -> int:
        return int(struct.unpack(f"<{code}", file.read(struct.calcsize(code)))[0])

    def word() -> str:
        length = number("H")
        data = file.read(length)
        if not 1 < length <= LONGEST or len(data) < length or data[-1]:
            raise ValueError("a name that is none")
        return data[:-1].decode("ascii")

    if number("I") != VERSION:
        raise ValueError("of another version")
    name = word()
    if name != spec:
        raise ValueError(f"it holds a {name}, not a {spec}")
    number("I")  # the revision, which the engine itself checks
    variables: dict[str, Variable] = {}
    for _ in range(number("I")):
        name, rank = word(), number("B")
        if name in variables or rank > 2:
            raise ValueError(f"{name}: stands there twice, or has more than two dimensions")
        shape = tuple(number("I") for _ in range(rank))
        kind, held = np.dtype(KINDS[_within(number("B"))]), number("I")
        if held != int(np.prod(shape, dtype=object)) * kind.itemsize or file.tell() + held > size:
            raise ValueError(f"{name}: its size is not what its shape says")
        value = None
        if not shape:
            value = float(np.frombuffer(file.read(held), kind)[0])
        else:
            file.seek(held, 1)
        variables[name] = Variable(shape, value)
    aliases = {word(): word() for _ in range(number("I"))}
    if file.tell() != size or set(aliases) & set(variables):
        raise ValueError("more in it than it says")
    return variables, aliases


def _within(kind: int) -> int:
    if kind >= len(KINDS):
        raise ValueError("numbers of an unknown kind")
    return kind


def read_words(folder: Path, name: str) -> list[str]:
    """A list of tokens, which was looked through before."""
    words: list[str] = json.loads((folder / f"{name}.json").read_text("utf-8"))
    return words

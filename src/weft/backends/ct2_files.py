"""The files of CTranslate2's engine, checked before the engine opens them.

The engine trusts its files: a table that is too small, or a head of no width, would end the whole program; a norm
without its bias, or another epsilon, would change every answer. So a folder must hold exactly what its config says.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from weft.checkpoint.finite import all_finite
from weft.errors import UserError, listed, shown
from weft.files import MEGABYTE, read_json, reason
from weft.text.tokenizers.tokenizer import Tokenizer

ENGINE = "ctranslate2"  # the folder inside
VERSION = 6  # of the engine's file format
KINDS = ("float32", "int8", "int16", "int32", "float16")  # in the order of the engine's numbers
MAX_NAME = 256  # characters of a variable's name
MAX_VOCABULARY = 512 * MEGABYTE  # bytes of a list of tokens
SIDES = {
    "TransformerEncoderSpec": ("encoder",),
    "TransformerDecoderSpec": ("decoder",),
    "TransformerSpec": ("encoder", "decoder"),
}
REVISIONS = {"TransformerEncoderSpec": 1, "TransformerDecoderSpec": 8, "TransformerSpec": 7}  # of each spec's layout
ACTIVATIONS = {"relu": 0, "gelu-tanh": 1, "silu": 2, "gelu": 3, "tanh": 5}  # the engine's numbers
ADD, CONCATENATE = 1, 0  # how the engine puts several embeddings together
FLOATS = {"fp32": "float32", "fp16": "float16", "int8": "float32"}  # by precision: the type of what is not quantized


@dataclass(frozen=True)
class EngineFiles:
    """What the engine's folder must hold: one of its kinds of model, and each list of tokens under its name."""

    spec: str
    config: Any
    precision: str | None
    vocabularies: Mapping[str, Sequence[str]]
    tokenizer: Tokenizer | None  # of what is written


def check_files(folder: Path, files: EngineFiles) -> None:
    """Refuse an engine folder that does not hold, to the last variable and setting, what its model folder says."""
    if not folder.is_dir():
        raise UserError(f"{folder}: the engine's files are missing; export the model again")
    names = {"config.json", "model.bin", *(f"{name}.json" for name in files.vocabularies)}
    strange = sorted(path.name for path in folder.iterdir() if path.name not in names and path.name[0] != ".")
    if strange:  # the engine reads some files by their names alone, such as lists of words that it may say
        raise UserError(f"{folder}: files that no exported model has: {listed([shown(name) for name in strange])}")
    for name, words in files.vocabularies.items():
        path = folder / f"{name}.json"
        stored = read_json(path, MAX_VOCABULARY, kind=list)
        if len(stored) != len(words):
            raise UserError(f"{path}: {len(stored)} tokens where {len(words)} different ones are expected")
        if stored != list(words):
            place = next(number for number, pair in enumerate(zip(stored, words, strict=True)) if pair[0] != pair[1])
            name, expected = shown(str(stored[place])), shown(words[place])
            raise UserError(f"{path}: token {place} is {name!r}, in the tokenizer {expected!r}")
    written = list(files.vocabularies.values())[-1]
    _check_settings(folder / "config.json", settings_of(files.config, files.spec, files.tokenizer, written))
    path = folder / "model.bin"
    try:
        if not path.is_file():
            raise UserError(f"{path}: the engine's weights are missing; export the model again")
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            variables, aliases = _ByteReader(data, files.spec).read()
            check_variables(path, variables, aliases, expected_of(files.config, files.spec, files.precision))
            broken = [name for name, stored in variables.items() if not stored.is_sound(name, data)]
        if broken:
            raise UserError(f"{path}: weights that are not numbers (NaN or infinite), or scales of 0: {listed(broken)}")
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {reason(error)}") from None
    except (struct.error, ValueError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not a valid CTranslate2 model: {shown(str(error), 120)}") from None


def _check_settings(path: Path, expected: Mapping[str, Any]) -> None:
    """Refuse an engine's config.json that says anything else than the model folder does."""
    settings = read_json(path, MEGABYTE)
    if strange := [shown(key) for key in settings if key not in expected]:
        raise UserError(f"{path}: unknown keys: {listed(strange)}")
    for name, value in expected.items():
        if name not in settings:
            raise UserError(f"{path}: {name} is missing; it must be {shown(repr(value))}")
        if settings[name] != value or isinstance(settings[name], bool) != isinstance(value, bool):
            raise UserError(f"{path}: {name} is {shown(repr(settings[name]))}; this model needs {shown(repr(value))}")


def check_variables(path: Path, stored: Mapping[str, Variable], aliases: Mapping[str, str], expected: Expected) -> None:
    """Refuse a file that lacks a variable, has one too many, or one of another shape, type or value."""
    for name, target in aliases.items():
        if target not in stored:
            raise UserError(f"{path}: {shown(name)} stands for {shown(target)}, which is not there")
    scales = {f"{name}_scale": f"{target}_scale" for name, target in aliases.items() if f"{target}_scale" in stored}
    if twice := [shown(name) for name in scales if name in stored or name in aliases]:
        raise UserError(f"{path}: stored, and also aliases of others: {listed(twice)}")
    aliases = {**aliases, **scales}  # the scale of a matrix goes where the matrix goes
    every = {**stored, **{name: stored[target] for name, target in aliases.items()}}
    strange = {name: each for name, each in every.items() if each != expected.variables.get(name)}
    if strange:
        faults = [
            f"{shown(name, 80)} ({each.kind} {each.shape if each.value is None else f'{each.value:g}'})"
            for name, each in strange.items()
        ]
        raise UserError(f"{path}: not what a model of this config.json has: {listed(faults)}")
    if missing := [name for name in expected.variables if name not in every]:
        raise UserError(f"{path}: missing: {listed(missing)}")
    for names in expected.shared:
        if len({aliases.get(name, name) for name in names}) > 1:
            raise UserError(f"{path}: {listed(names)} are one table by this config.json, and several in the file")


@dataclass(frozen=True)
class Variable:
    """One entry of `model.bin`; only single numbers have a value."""

    shape: tuple[int, ...]
    kind: str
    value: float | None = None
    offset: int = field(default=0, compare=False)  # of its numbers in the file

    def is_sound(self, name: str, data: mmap.mmap) -> bool:
        """Whether its numbers are finite, and scales are above 0; no view of the file is left open."""
        array = np.frombuffer(data, np.dtype(self.kind), math.prod(self.shape), self.offset)
        return all_finite(array) and not (name.endswith("_scale") and array.min(initial=1.0) <= 0)


class _ByteReader:
    """Goes through a model file; nothing is loaded but names, shapes and single numbers."""

    def __init__(self, data: mmap.mmap, spec: str) -> None:
        self.data, self.spec, self.place = data, spec, 0

    def read(self) -> tuple[dict[str, Variable], dict[str, str]]:
        """The variables, and the names that stand for others."""
        if self._number("I") != VERSION:
            raise ValueError("of another version")
        spec = self._name()
        if spec != self.spec:
            raise ValueError(f"it holds a {spec}, not a {self.spec}")
        if self._number("I") != REVISIONS[spec]:  # the engine reads the same variables otherwise
            raise ValueError("of another revision")
        variables: dict[str, Variable] = {}
        for _ in range(self._number("I")):
            name = self._name()
            if name in variables:
                raise ValueError(f"{name}: stands there twice")
            variables[name] = self._variable(name)
        aliases: dict[str, str] = {}
        for _ in range(self._number("I")):
            name = self._name()
            if name in variables or name in aliases:
                raise ValueError(f"{name}: stands there twice")
            aliases[name] = self._name()
        if self.place != len(self.data):
            raise ValueError("more in it than it says")
        return variables, aliases

    def _variable(self, name: str) -> Variable:
        rank = self._number("B")
        if rank > 2:
            raise ValueError(f"{name}: has more than two dimensions")
        shape = tuple(self._number("I") for _ in range(rank))
        kind, size = self._number("B"), self._number("I")
        if kind >= len(KINDS):
            raise ValueError(f"{name}: numbers of an unknown type")
        offset = self.place
        if size != math.prod(shape) * np.dtype(KINDS[kind]).itemsize or offset + size > len(self.data):
            raise ValueError(f"{name}: its size is not what its shape says")
        self.place += size
        value = None if shape else float(np.frombuffer(self.data, KINDS[kind], 1, offset)[0])
        return Variable(shape, KINDS[kind], value, offset)

    def _number(self, code: str) -> int:
        value = struct.unpack_from(f"<{code}", self.data, self.place)[0]
        self.place += struct.calcsize(f"<{code}")
        return int(value)

    def _name(self) -> str:
        length = self._number("H")
        data = self.data[self.place : self.place + length]
        if not 1 < length <= MAX_NAME or len(data) < length or data[-1]:
            raise ValueError("a name that is none")
        self.place += length
        return data[:-1].decode("ascii")


# The exporter fills the engine's own specs from a network; this says the same from a config alone, so that a folder can
# be checked without the model that it came from. A test compares the two for every family and precision.


@dataclass(frozen=True)
class Expected:
    """The variables of a model, and the groups of names that must share one tensor."""

    variables: dict[str, Variable]
    shared: tuple[tuple[str, ...], ...]


def expected_of(config: Any, spec: str, precision: str | None) -> Expected:
    """All that `model.bin` must hold for this config; `spec` is the engine's name for this kind of model."""
    if precision not in FLOATS:
        raise UserError(f"a model for CTranslate2 is stored as {listed(list(FLOATS))}, not as {precision}")
    variables: dict[str, Variable] = {}
    for side in SIDES[spec]:
        table = _Table(config, side, spec, precision)
        table.outer()
        variables |= {f"{side}/{name}": variable for name, variable in table.variables.items()}
        table.variables = {}
        table.layer()
        for layer in range(table.layers):
            variables |= {f"{side}/layer_{layer}/{name}": variable for name, variable in table.variables.items()}
    shared = []
    if spec != "TransformerEncoderSpec":
        own = ["decoder/projection/weight"] if config.tied not in (False, "none") else []
        if spec == "TransformerSpec" and (config.buckets or config.tied == "all"):
            own.append("encoder/embeddings_0/weight")
        shared.append(("decoder/embeddings/weight", *own))
    if spec == "TransformerSpec" and "encoder/position_encodings/encodings" in variables:
        shared.append(tuple(f"{side}/position_encodings/encodings" for side in ("encoder", "decoder")))
    return Expected(variables, tuple(shared))


class _Table:
    """The variables of one part of a model, added one by one."""

    def __init__(self, config: Any, side: str, spec: str, precision: str) -> None:
        self.config, self.side = config, side
        self.sequence = spec == "TransformerSpec"
        self.layers, self.heads, self.inner = config.layers, config.heads, config.inner or 4 * config.width
        if side == "decoder":
            self.layers, self.heads = config.decoder_layers or self.layers, config.decoder_heads or self.heads
            self.inner = config.decoder_inner or self.inner
        self.float, self.quantized = FLOATS[precision], precision == "int8"
        self.relative = config.buckets > 0  # T5: no biases, and distances in place of positions
        self.variables: dict[str, Variable] = {}

    def outer(self) -> None:
        """What is around the layers: flags, tables and norms."""
        config, alibi = self.config, self.config.positions == "alibi"
        self._number("num_heads", "int16", self.heads)
        self._number("pre_norm", "int8", config.norm_place == "before")
        self._number("activation", "int8", ACTIVATIONS[config.activation.removeprefix("gated-")])
        scale = config.width**0.5 if self.sequence and config.scaled and not self.relative else 1.0
        self._number("scale_embeddings", *(("float32", scale) if self.sequence else ("int8", 0)))
        if config.norm_place == "before":
            self._norm("layer_norm")
        if self.side == "encoder":
            self._number("multi_query_attention", "int8", 0)
            self._number("embeddings_merge", "int8", CONCATENATE if self.sequence else ADD)
            self._weight("embeddings_0", config.source_vocabulary or config.vocabulary, config.width)
            if not self.sequence:
                self._norm("layernorm_embedding")
                if config.has("segments"):
                    self._weight("embeddings_1", config.segments, config.width)
        else:
            flags = {"alibi": alibi, "alibi_use_positive_positions": alibi}
            for name, value in {**flags, "scale_alibi": False, "start_from_zero_embedding": False}.items():
                self._number(name, "int8", value)
            self._number("alignment_layer", "int16", -1)
            self._number("alignment_heads", "int16", 1)
            if self.relative and config.scaled:
                self._number("scale_outputs", "float32", config.width**-0.5)
            self._weight("embeddings", config.vocabulary, config.width)
            self._weight("projection", config.vocabulary, config.width)
            if config.word_bias:
                self._tensor("projection/bias", (config.vocabulary,))
        if not self.relative and config.positions not in ("rotary", "alibi"):
            self._tensor("position_encodings/encodings", (config.context, config.width))

    def layer(self) -> None:
        """What is inside a layer."""
        config, cross = self.config, self.sequence and self.side == "decoder"
        head = config.head_width or config.width // self.heads
        width, wide = config.width, self.heads * head
        self._linear("self_attention/linear_0", 3 * wide, width)
        self._linear("self_attention/linear_1", width, wide)
        if cross:
            self._linear("attention/linear_0", wide, width)
            self._linear("attention/linear_1", 2 * wide, width)
            self._linear("attention/linear_2", width, wide)
        for name in ("linear_0", "linear_0_noact") if config.activation.startswith("gated-") else ("linear_0",):
            self._linear(f"ffn/{name}", self.inner, width)
        self._linear("ffn/linear_1", width, self.inner)
        self._norm("ffn/layer_norm")
        for part in ("self_attention", "attention") if cross else ("self_attention",):
            self._norm(f"{part}/layer_norm")
            self._number(f"{part}/head_dim", "int32", head)
            if self.relative:
                self._number(f"{part}/queries_scale", "float32", 1.0)
        if config.positions == "rotary":
            self._number("self_attention/rotary_dim", "int32", 0)
            self._number("self_attention/rotary_interleave", "int8", 0)
            self._number("self_attention/rotary_base", "float32", 10000.0)
        if self.relative:
            self._tensor("self_attention/relative_attention_bias", (config.buckets, self.heads))
            self._number("self_attention/relative_attention_max_distance", "int32", config.farthest)

    def _number(self, name: str, kind: str, value: float) -> None:
        self.variables[name] = Variable((), kind, float(np.dtype(kind).type(value)))  # as the file rounds it

    def _tensor(self, name: str, shape: tuple[int, ...]) -> None:
        self.variables[name] = Variable(shape, self.float)

    def _weight(self, name: str, outputs: int, inputs: int) -> None:
        """A matrix, which is what is quantized, with a scale for each of its rows."""
        self.variables[f"{name}/weight"] = Variable((outputs, inputs), "int8" if self.quantized else self.float)
        if self.quantized:
            self.variables[f"{name}/weight_scale"] = Variable((outputs,), "float32")

    def _linear(self, name: str, outputs: int, inputs: int) -> None:
        self._weight(name, outputs, inputs)
        if not self.relative:
            self._tensor(f"{name}/bias", (outputs,))

    def _norm(self, name: str) -> None:
        self._tensor(f"{name}/gamma", (self.config.width,))
        if self.config.norm == "layer":
            self._tensor(f"{name}/beta", (self.config.width,))


def settings_of(config: Any, spec: str, tokenizer: Tokenizer | None, words: Sequence[str]) -> dict[str, Any]:
    """The engine's config.json: `tokenizer` and `words` are those of what is written."""
    settings: dict[str, Any] = {"layer_norm_epsilon": config.norm_epsilon}
    # The engine calls every decoder so that was not given a number of key heads.
    settings["multi_query_attention"] = spec == "TransformerDecoderSpec"
    for name, role in (("unk_token", "unknown"), ("bos_token", "start"), ("eos_token", "end")):
        number = None if tokenizer is None else tokenizer.id_of(role)
        # The engine would add a token that is not there, for which the model has no vector.
        settings[name] = words[0 if number is None else number]
    if spec == "TransformerSpec":
        settings |= {"add_source_bos": False, "add_source_eos": False, "decoder_start_token": words[config.begin]}
    return settings


def named_tokens(tokenizer: Tokenizer | None, size: int) -> list[str]:
    """A name of its own for every row of a table, as the tokenizer has it where it has one."""
    names = [None if tokenizer is None else tokenizer.token(number) for number in range(size)]
    taken = {name for name in names if name is not None}
    if len(taken) < sum(name is not None for name in names):
        raise UserError("the vocabulary has two tokens of one name, which CTranslate2 cannot tell apart")
    words = []
    for number, name in enumerate(names):
        while name is None or (names[number] is None and name in taken):
            name = f"<unused-{number}>" if name is None else f"{name}>"
        words.append(name)
    return words

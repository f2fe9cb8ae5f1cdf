"""What the files of CTranslate2's engine must hold for a model of ours: every variable, to its type and value.

The exporter fills the engine's own specs from a network; this says the same from a config alone, so that a folder can
be checked without the model that it came from. A test compares the two for every family and precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.errors import UserError, listed
from weft.text.tokenizers.tokenizer import Tokenizer

REVISIONS = {"TransformerEncoderSpec": 1, "TransformerDecoderSpec": 8, "TransformerSpec": 7}  # of each spec's layout
ACTIVATIONS = {"relu": 0, "gelu-tanh": 1, "silu": 2, "gelu": 3, "tanh": 5}  # the engine's numbers
ADD, CONCATENATE = 1, 0  # how the engine puts several embeddings together
FLOATS = {"fp32": "float32", "fp16": "float16", "int8": "float32"}  # by precision: the type of what is not quantized

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Variable:
    """One entry of `model.bin`; only single numbers have a value."""

    shape: Shape
    kind: str
    value: float | None = None


@dataclass(frozen=True)
class Stack:
    """Sizes of one stack of layers: an encoder, or a decoder."""

    layers: int
    heads: int
    inner: int
    cross: bool  # attends to the source, too


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
    for side, stack in stacks_of(config, spec).items():
        table = _Table(config, stack, precision)
        table.outer(side, spec)
        variables |= {f"{side}/{name}": variable for name, variable in table.variables.items()}
        for layer in range(stack.layers):
            table = _Table(config, stack, precision)
            table.layer()
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


def stacks_of(config: Any, spec: str) -> dict[str, Stack]:
    """The stacks that a model of this kind has."""
    inner = config.inner or 4 * config.width
    if spec == "TransformerEncoderSpec":
        return {"encoder": Stack(config.layers, config.heads, inner, cross=False)}
    layers = config.decoder_layers or config.layers
    heads = config.decoder_heads or config.heads
    decoder = Stack(layers, heads, config.decoder_inner or inner, spec == "TransformerSpec")
    if spec == "TransformerDecoderSpec":
        return {"decoder": decoder}
    return {"encoder": Stack(config.layers, config.heads, inner, cross=False), "decoder": decoder}


class _Table:
    """The variables of one part of a model, added one by one."""

    def __init__(self, config: Any, stack: Stack, precision: str) -> None:
        self.config, self.stack = config, stack
        self.float, self.quantized = FLOATS[precision], precision == "int8"
        self.relative = config.buckets > 0  # T5: no biases, and distances in place of positions
        self.positions = config.positions
        self.variables: dict[str, Variable] = {}

    def outer(self, side: str, spec: str) -> None:
        """What is around the layers: flags, tables and norms."""
        config, sequence = self.config, spec == "TransformerSpec"
        self._number("num_heads", "int16", self.stack.heads)
        self._number("pre_norm", "int8", config.norm_place == "before")
        self._number("activation", "int8", ACTIVATIONS[config.activation.removeprefix("gated-")])
        if sequence:
            scale = config.width**0.5 if config.scaled and not self.relative else 1.0
            self._number("scale_embeddings", "float32", scale)
        else:
            self._number("scale_embeddings", "int8", 0)
        if config.norm_place == "before":
            self._norm("layer_norm")
        if side == "encoder":
            self._encoder(sequence)
        else:
            self._decoder()
        turned = self.positions in ("rotary", "alibi")
        if not self.relative and not turned:
            self._tensor("position_encodings/encodings", (config.context, config.width))

    def _encoder(self, sequence: bool) -> None:
        config = self.config
        self._number("multi_query_attention", "int8", 0)
        self._number("embeddings_merge", "int8", CONCATENATE if sequence else ADD)
        self._weight("embeddings_0", config.source_vocabulary or config.vocabulary, config.width)
        if not sequence:
            self._norm("layernorm_embedding")
            if config.has("segments"):
                self._weight("embeddings_1", config.segments, config.width)

    def _decoder(self) -> None:
        config, alibi = self.config, self.positions == "alibi"
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

    def layer(self) -> None:
        """What is inside a layer."""
        config, stack = self.config, self.stack
        head = config.head_width or config.width // stack.heads
        width, wide = config.width, stack.heads * head
        self._linear("self_attention/linear_0", 3 * wide, width)
        self._linear("self_attention/linear_1", width, wide)
        if stack.cross:
            self._linear("attention/linear_0", wide, width)
            self._linear("attention/linear_1", 2 * wide, width)
            self._linear("attention/linear_2", width, wide)
        for name in ("linear_0", "linear_0_noact") if config.activation.startswith("gated-") else ("linear_0",):
            self._linear(f"ffn/{name}", stack.inner, width)
        self._linear("ffn/linear_1", width, stack.inner)
        self._norm("ffn/layer_norm")
        for part in ("self_attention", "attention") if stack.cross else ("self_attention",):
            self._norm(f"{part}/layer_norm")
            self._number(f"{part}/head_dim", "int32", head)
            if self.relative:
                self._number(f"{part}/queries_scale", "float32", 1.0)
        if self.positions == "rotary":
            self._number("self_attention/rotary_dim", "int32", 0)
            self._number("self_attention/rotary_interleave", "int8", 0)
            self._number("self_attention/rotary_base", "float32", 10000.0)
        if self.relative:
            self._tensor("self_attention/relative_attention_bias", (config.buckets, stack.heads))
            self._number("self_attention/relative_attention_max_distance", "int32", config.farthest)

    def _number(self, name: str, kind: str, value: float) -> None:
        self.variables[name] = Variable((), kind, float(np.dtype(kind).type(value)))  # as the file rounds it

    def _tensor(self, name: str, shape: Shape) -> None:
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


# ----------------------------------------------------------------------------------------- the engine's own settings


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

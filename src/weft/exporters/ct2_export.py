"""Models as CTranslate2 folders."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path, PurePath
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import Tensor, nn

from weft.backends.ct2_files import ENGINE, named_tokens, settings_of
from weft.backends.ctranslate2 import HEADS, kept_names
from weft.checkpoint.folder import LoadedModel, write_files
from weft.checkpoint.tensors import save_tensors
from weft.data.columns import paired_columns
from weft.data.tables import Table
from weft.errors import UserError, shown
from weft.files import unwritable
from weft.models.encoders import Bert, DistilBert, Roberta
from weft.models.gpt import Gpt
from weft.models.transformer import T5, Transformer, of_decoder
from weft.nn.layers import Layer
from weft.nn.positions import WAVES, Positions
from weft.text.sources import SUFFIXES, format_suffix
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.version import VERSION

Precision = Literal["fp32", "fp16", "int8"]
KINDS: dict[str, str | None] = {"fp32": None, "fp16": "float16", "int8": "int8_float32"}  # in the engine's words
COMPARED = 64  # texts of a file that both models generate from


def write_ct2(inside: Path, opened: LoadedModel, task: str, precision: str = "fp32") -> None:
    """The files of a CTranslate2 folder, for this task, one by one."""
    if precision not in KINDS:
        raise UserError(f"CTranslate2 has the precisions {', '.join(KINDS)}, not {shown(precision)}")
    if task == "fill" and opened.family.sentinels:
        task = "complete"  # gaps are filled step by step, which is ours to do
    spec = spec_of(opened)
    spec.validate()
    spec.optimize(KINDS[precision])
    card = replace(opened.card, task=task, backend="ctranslate2", precision=precision, weft=VERSION)  # type: ignore[arg-type]
    write_files(inside, replace(opened, card=card), weights=False)
    try:
        (inside / ENGINE).mkdir()
        spec.save(str(inside / ENGINE))
        if not opened.family.generates:
            state = opened.network.state_dict()
            kept = {
                name: state[name].detach().cpu().contiguous()
                for name in kept_names(list(state), opened.config, opened.heads)
            }
            if kept:
                save_tensors(inside / HEADS, kept, {"format": "pt"})
    except (OSError, SafetensorError) as error:
        raise unwritable(inside, error) from None


def read_from(data: Any, columns: Mapping[str, str]) -> list[str]:
    """The first texts of what a model that writes is given: lines of a plain file, or the sources of a table."""
    texts: list[str] = []
    whole = Table(data, columns)
    tables = [whole]
    if not whole.in_memory:  # .en and .de tell no format: lines
        tables = [
            replace(whole, data=name, format=SUFFIXES.get(format_suffix(PurePath(name)), "txt")) for name in whole.data
        ]
    for table in tables:
        for record in table.records():
            names = paired_columns(list(record.values)) or ("text",)
            name = columns.get("source") or columns.get("text") or names[0]
            if name not in record.values:
                raise UserError(f"{record.where}: has no column {shown(name)!r}; name it with --column source=NAME")
            texts.append(str(record.values[name]))
            if len(texts) == COMPARED:
                return texts
    if not any(text.strip() for text in texts):
        raise UserError(f"{whole.name}: there are no texts")
    return texts


ENCODERS = (Bert, DistilBert, Roberta)
READERS = (Transformer, T5)
ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "gelu-tanh": "GELUTanh", "silu": "SWISH", "tanh": "Tanh"}


def spec_of(opened: LoadedModel) -> Any:
    """The whole model as a spec, with its vocabularies and the tokens that the engine must know by name."""
    network, family = opened.network, opened.family
    if opened.config.layer_heads is not None:
        raise UserError("CTranslate2 has one number of heads for all layers, and this model has several; try --to onnx")
    if isinstance(network, ENCODERS):
        return _encoder_model(opened)
    if isinstance(network, Gpt):
        if set(opened.heads) != {"words"}:
            raise UserError(
                "CTranslate2 runs decoders only to generate text, and this one has another head; try --to onnx"
            )
        return _decoder_model(opened)
    if isinstance(network, READERS) and "words" in opened.heads:
        return _sequence_model(opened)
    raise UserError(f"CTranslate2 cannot run a {family.name} model")


def words_of(name: str) -> Any:
    """A module of CTranslate2's specs."""
    try:
        return import_module(f"ctranslate2.specs.{name}")
    except ImportError:
        raise UserError("CTranslate2 needs the package ctranslate2: pip install 'weft[fast-cpu]'") from None


def _encoder_model(opened: LoadedModel) -> Any:
    specs, config = words_of("transformer_spec"), opened.config
    network: Any = opened.network
    _check_mix(config)
    segments = network.segments
    encoder = specs.TransformerEncoderSpec(
        config.layers,
        config.heads,
        num_source_embeddings=1 if segments is None else 2,
        embeddings_merge=words_of("common_spec").EmbeddingsMerge.ADD,
        layernorm_embedding=True,
        **_usual(config),
        **_turning(config, causal=False),
    )
    encoder.scale_embeddings = False
    encoder.embeddings[0].weight = _array(network.tokens.weight)
    if segments is not None:
        encoder.embeddings[1].weight = _array(segments.weight)
    _fill_norm(encoder.layernorm_embedding, network.embedding_norm)
    _fill_places(encoder, network.positions)
    _fill_layers(encoder.layer, network.layers)
    if config.norm_place == "before":
        _fill_norm(encoder.layer_norm, network.final_norm)
    spec = specs.TransformerEncoderModelSpec(encoder)
    return _with_vocabulary(spec, "TransformerEncoderSpec", opened)


def _decoder_model(opened: LoadedModel) -> Any:
    specs, config = words_of("transformer_spec"), opened.config
    network: Any = opened.network
    _check_mix(config)
    settings = {"with_encoder_attention": False, **_usual(config), **_turning(config, causal=True)}
    decoder = specs.TransformerDecoderSpec(config.layers, config.heads, **settings)
    decoder.scale_embeddings = False
    _fill_decoder(decoder, network, network.layers, network.final_norm, config)
    spec = specs.TransformerDecoderModelSpec(decoder)
    return _with_vocabulary(spec, "TransformerDecoderSpec", opened)


def _with_vocabulary(spec: Any, name: str, opened: LoadedModel) -> Any:
    words = named_tokens(opened.tokenizer, opened.config.vocabulary)
    spec.register_vocabulary(words)
    _fill_config(spec.config, name, opened.config, opened.tokenizer, words)
    return spec


def _sequence_model(opened: LoadedModel) -> Any:
    specs, config = words_of("transformer_spec"), opened.config
    network: Any = opened.network
    near = isinstance(network, T5)
    inside = config if near else of_decoder(config)
    sides = [
        {"relative_attention_bias": near, **_usual(side), **({} if near else _turning(side, causal))}
        for side, causal in ((config, False), (inside, True))
    ]
    encoder = specs.TransformerEncoderSpec(config.layers, config.heads, **sides[0])
    decoder = specs.TransformerDecoderSpec(len(network.decoder), inside.heads, **sides[1])
    scale = config.width**0.5 if not near and config.scaled else 1.0
    encoder.scale_embeddings, decoder.scale_embeddings = scale, scale
    if near and config.scaled:
        decoder.scale_outputs = config.width**-0.5
    table = network.tokens if near or network.source_tokens is None else network.source_tokens
    encoder.embeddings[0].weight = _array(table.weight)
    _fill_layers(encoder.layer, network.encoder)
    if config.norm_place == "before":
        _fill_norm(encoder.layer_norm, network.encoder_norm)
    if near:
        _fill_distances(encoder.layer, network.encoder_positions)
        _fill_distances(decoder.layer, network.decoder_positions)
    else:
        _fill_places(encoder, network.positions)
    _fill_decoder(decoder, network, network.decoder, network.decoder_norm, config)
    spec = specs.TransformerSpec(encoder, decoder)
    read = named_tokens(opened.tokenizer, table.weight.shape[0])
    written = named_tokens(opened.writer, config.vocabulary)
    spec.register_source_vocabulary(read)
    spec.register_target_vocabulary(written)
    _fill_config(spec.config, "TransformerSpec", config, opened.writer, written)
    return spec


def _usual(config: Any) -> dict[str, Any]:
    """Settings that every stack of layers has."""
    plain = config.activation.removeprefix("gated-")
    return {
        "pre_norm": config.norm_place == "before",
        "activation": words_of("common_spec").Activation[ACTIVATIONS[plain]],
        "ffn_glu": plain != config.activation,
        "rms_norm": config.norm != "layer",
        "head_dim": config.head_width or config.width // config.heads,
    }


def _turning(config: Any, causal: bool) -> dict[str, Any]:
    """Positions that are no table: queries and keys that are turned, or scores that fall with the distance."""
    if config.positions == "rotary":
        return {"rotary_dim": 0, "rotary_interleave": False}
    if config.positions == "alibi":
        if not causal:
            raise UserError("CTranslate2 has alibi positions for decoders only")
        return {"alibi": True, "alibi_use_positive_positions": True}
    return {}


def _check_mix(config: Any) -> None:
    if config.mix:
        raise UserError("CTranslate2 returns the last layer only, and the heads of this model read a mix of all layers")


def _fill_config(settings: Any, spec: str, config: Any, tokenizer: Tokenizer | None, words: Sequence[str]) -> None:
    """The engine's own settings, such as the tokens that it must know by name."""
    for name, value in settings_of(config, spec, tokenizer, words).items():
        if name != "multi_query_attention":  # the engine's spec says it by itself
            setattr(settings, name, value)


def _fill_decoder(spec: Any, network: Any, layers: Iterable[Any], final: nn.Module, config: Any) -> None:
    """The tables, the layers and the scores of words of what writes."""
    spec.embeddings.weight = _array(network.tokens.weight)
    if "position_encodings" in vars(spec):
        _fill_places(spec, network.positions)
    _fill_layers(spec.layer, layers)
    if config.norm_place == "before":
        _fill_norm(spec.layer_norm, final)
    head = network.heads["words"]
    spec.projection.weight = spec.embeddings.weight if head.decoder is None else _array(head.decoder.weight)
    if head.bias is not None:
        spec.projection.bias = _array(head.bias)


def _fill_layers(specs: Sequence[Any], layers: Iterable[Any]) -> None:
    for spec, layer in zip(specs, layers, strict=True):
        assert isinstance(layer, Layer)
        _fill_linear(spec.self_attention.linear[0], layer.attention.qkv.weight, layer.attention.qkv.bias)
        _fill_linear(spec.self_attention.linear[1], layer.attention.output.weight, layer.attention.output.bias)
        _fill_norm(spec.self_attention.layer_norm, layer.attention_norm)
        if layer.attention.scale is not None:
            spec.self_attention.queries_scale = layer.attention.scale
        if layer.reads:
            for inner, module in zip(
                spec.attention.linear, (layer.cross.query, layer.cross.key_value, layer.cross.output), strict=True
            ):
                _fill_linear(inner, module.weight, module.bias)
            _fill_norm(spec.attention.layer_norm, layer.cross_norm)
            if layer.cross.scale is not None:
                spec.attention.queries_scale = layer.cross.scale
        up = layer.feedforward.up
        if layer.feedforward.gated:  # the first half is bent, and multiplied by the second
            biases = (None, None) if up.bias is None else up.bias.chunk(2)
            _fill_linear(spec.ffn.linear_0, up.weight.chunk(2)[0], biases[0])
            _fill_linear(spec.ffn.linear_0_noact, up.weight.chunk(2)[1], biases[1])
        else:
            _fill_linear(spec.ffn.linear_0, up.weight, up.bias)
        _fill_linear(spec.ffn.linear_1, layer.feedforward.down.weight, layer.feedforward.down.bias)
        _fill_norm(spec.ffn.layer_norm, layer.feedforward_norm)


def _fill_linear(spec: Any, weight: Tensor, bias: Tensor | None) -> None:
    spec.weight = _array(weight)
    if bias is not None:
        spec.bias = _array(bias)


def _fill_norm(spec: Any, module: Any) -> None:
    spec.gamma = _array(module.weight)
    if isinstance(module, nn.LayerNorm) and module.bias is not None:
        spec.beta = _array(module.bias)


def _fill_distances(specs: Sequence[Any], near: Any) -> None:
    """T5's biases by distance: one table, which every layer of a stack reads."""
    table = _array(near.table.weight)
    for spec in specs:
        spec.self_attention.relative_attention_bias = table
        spec.self_attention.relative_attention_max_distance = np.dtype("int32").type(near.farthest)


def _fill_places(spec: Any, positions: Positions) -> None:
    """The table of positions, worked out where it is not learned; without one the engine would use its own."""
    if positions.kind in ("rotary", "alibi"):
        return
    if positions.table is not None:
        spec.position_encodings.encodings = _array(positions.table.weight[positions.unused :])
        return
    if positions.context > WAVES:
        raise UserError(f"a context of {positions.context} tokens is too long for CTranslate2's table of positions")
    zeros = torch.zeros(positions.context, positions.width)
    with torch.no_grad():
        spec.position_encodings.encodings = _array(positions.add(zeros, torch.arange(positions.context)))


def _array(tensor: Tensor) -> NDArray[np.float32]:
    # A copy: the engine's quantization multiplies in place, and these are the weights of a model that others hold.
    return np.array(tensor.detach().float().cpu().numpy(), order="C", copy=True)

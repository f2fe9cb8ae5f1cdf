"""Models as CTranslate2 folders."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
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
from weft.errors import UserError, refuse, shown
from weft.files import unwritable
from weft.models.encoders import Bert, DistilBert, Roberta
from weft.models.gpt import Gpt
from weft.models.t5 import T5
from weft.models.transformer import Transformer, of_decoder
from weft.nn.layers import Layer
from weft.nn.positions import WAVES, Positions
from weft.version import VERSION

Precision = Literal["fp32", "fp16", "int8"]
KINDS: dict[str, str | None] = {"fp32": None, "fp16": "float16", "int8": "int8_float32"}  # in the engine's words


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
        if not opened.family.speaks:
            state = opened.network.state_dict()
            kept = {
                name: state[name].detach().cpu().contiguous()
                for name in kept_names(list(state), opened.config, opened.heads)
            }
            if kept:
                save_tensors(inside / HEADS, kept, {"format": "pt"})
    except (OSError, SafetensorError) as error:
        raise unwritable(inside, error) from None


ENCODERS = (Bert, DistilBert, Roberta)
READERS = (Transformer, T5)
ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "gelu-tanh": "GELUTanh", "silu": "SWISH", "tanh": "Tanh"}


def spec_of(opened: LoadedModel) -> Any:
    """The whole model as a spec, with its vocabularies and the tokens that the engine must know by name."""
    network, config = opened.network, opened.config
    decodes = isinstance(network, Gpt)
    refuse(
        (config.layer_heads is not None,
         "CTranslate2 has one number of heads for all layers, and this model has several; try --to onnx"),
        (decodes and set(opened.heads) != {"words"},
         "CTranslate2 runs decoders only to generate text, and this one has another head; try --to onnx"),
        (config.mix, "CTranslate2 returns the last layer only, and the heads of this model read a mix of all layers"),
    )  # fmt: skip
    if decodes or isinstance(network, ENCODERS):
        spec = _decoder_model(opened) if decodes else _encoder_model(opened)
        words = named_tokens(opened.tokenizer, config.vocabulary)
        spec.register_vocabulary(words)
    elif isinstance(network, READERS) and "words" in opened.heads:
        spec, words = _sequence_model(opened), named_tokens(opened.writer, config.vocabulary)
        spec.register_source_vocabulary(named_tokens(opened.tokenizer, config.source_vocabulary or config.vocabulary))
        spec.register_target_vocabulary(words)
    else:
        raise UserError(f"CTranslate2 cannot run a {opened.family.name} model")
    for name, value in settings_of(config, spec.name, opened.writer, words).items():
        if name != "multi_query_attention":  # the engine's spec says it by itself
            setattr(spec.config, name, value)
    return spec


def words_of(name: str) -> Any:
    """A module of CTranslate2's specs."""
    try:
        return import_module(f"ctranslate2.specs.{name}")
    except ImportError:
        raise UserError("CTranslate2 needs the package ctranslate2: pip install 'weft[fast-cpu]'") from None


def _encoder_model(opened: LoadedModel) -> Any:
    specs, config = words_of("transformer_spec"), opened.config
    network: Any = opened.network
    segments = network.segments
    encoder = specs.TransformerEncoderSpec(
        config.layers,
        config.heads,
        num_source_embeddings=1 if segments is None else 2,
        embeddings_merge=words_of("common_spec").EmbeddingsMerge.ADD,
        layernorm_embedding=True,
        **_settings(config, causal=False),
    )
    encoder.scale_embeddings = False
    encoder.embeddings[0].weight = _array(network.tokens.weight)
    if segments is not None:
        encoder.embeddings[1].weight = _array(segments.weight)
    _fill_norm(encoder.layernorm_embedding, network.embedding_norm)
    _fill_places(encoder, network.positions)
    _fill_layers(encoder, network.layers, network.final_norm)
    return specs.TransformerEncoderModelSpec(encoder)


def _decoder_model(opened: LoadedModel) -> Any:
    specs, config = words_of("transformer_spec"), opened.config
    network: Any = opened.network
    settings = {"with_encoder_attention": False, **_settings(config, causal=True)}
    decoder = specs.TransformerDecoderSpec(config.layers, config.heads, **settings)
    decoder.scale_embeddings = False
    _fill_decoder(decoder, network, network.layers, network.final_norm)
    return specs.TransformerDecoderModelSpec(decoder)


def _sequence_model(opened: LoadedModel) -> Any:
    specs, config = words_of("transformer_spec"), opened.config
    network: Any = opened.network
    near = config.buckets > 0  # T5: distances in place of positions
    inside = config if near else of_decoder(config)
    encoder = specs.TransformerEncoderSpec(config.layers, config.heads, **_settings(config, causal=False))
    decoder = specs.TransformerDecoderSpec(len(network.decoder), inside.heads, **_settings(inside, causal=True))
    scale = config.width**0.5 if not near and config.scaled else 1.0
    encoder.scale_embeddings, decoder.scale_embeddings = scale, scale
    if near and config.scaled:
        decoder.scale_outputs = config.width**-0.5
    table = network.tokens if network.source_tokens is None else network.source_tokens
    encoder.embeddings[0].weight = _array(table.weight)
    _fill_layers(encoder, network.encoder, network.encoder_norm)
    if near:
        _fill_distances(encoder.layer, network.encoder_positions)
        _fill_distances(decoder.layer, network.decoder_positions)
    else:
        _fill_places(encoder, network.positions)
    _fill_decoder(decoder, network, network.decoder, network.decoder_norm)
    return specs.TransformerSpec(encoder, decoder)


def _settings(config: Any, causal: bool) -> dict[str, Any]:
    """The settings of a stack of layers; positions that are no table turn queries and keys, or lower far scores."""
    plain = config.activation.removeprefix("gated-")
    settings = {
        "pre_norm": config.norm_place == "before",
        "activation": words_of("common_spec").Activation[ACTIVATIONS[plain]],
        "ffn_glu": plain != config.activation,
        "rms_norm": config.norm != "layer",
        "head_dim": config.head_width or config.width // config.heads,
    }
    if config.buckets:
        return {**settings, "relative_attention_bias": True}
    if config.positions == "rotary":
        return {**settings, "rotary_dim": 0, "rotary_interleave": False}
    if config.positions == "alibi":
        if not causal:
            raise UserError("CTranslate2 has alibi positions for decoders only")
        return {**settings, "alibi": True, "alibi_use_positive_positions": True}
    return settings


def _fill_decoder(spec: Any, network: Any, layers: Iterable[Any], final: nn.Module) -> None:
    """The tables, the layers and the word head of a decoder."""
    spec.embeddings.weight = _array(network.tokens.weight)
    if "position_encodings" in vars(spec):
        _fill_places(spec, network.positions)
    _fill_layers(spec, layers, final)
    head = network.heads["words"]
    spec.projection.weight = spec.embeddings.weight if head.decoder is None else _array(head.decoder.weight)
    if head.bias is not None:
        spec.projection.bias = _array(head.bias)


def _fill_layers(stack: Any, layers: Iterable[Any], final: nn.Module) -> None:
    """The layers of a stack, and the norm after the last where norms come first."""
    for spec, layer in zip(stack.layer, layers, strict=True):
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
    if stack.pre_norm:
        _fill_norm(stack.layer_norm, final)


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

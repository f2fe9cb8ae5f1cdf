"""How T5 and its version 1.1 are published: names, config keys, heads and sizes."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from weft.checkpoint.configs import ConfigTable
from weft.checkpoint.names import Names, Rule, dropped, joined, same
from weft.errors import UserError, shown
from weft.models.transformer import T5Config


def _part(theirs: str, ours: str, number: int, gated: bool) -> tuple[Rule, ...]:
    """The feed-forward network, which is the last part of a layer; the first of two maps is the one that is bent."""
    theirs = f"{theirs}.{number}"
    wide = tuple(f"{theirs}.DenseReluDense.{name}.weight" for name in (("wi_0", "wi_1") if gated else ("wi",)))
    return (
        joined(wide, f"{ours}.feedforward.up.weight"),
        same(f"{theirs}.DenseReluDense.wo.weight", f"{ours}.feedforward.down.weight"),
        same(f"{theirs}.layer_norm.weight", f"{ours}.feedforward_norm.weight"),
    )


def _self(theirs: str, ours: str) -> tuple[Rule, ...]:
    return (
        joined(tuple(f"{theirs}.0.SelfAttention.{name}.weight" for name in "qkv"), f"{ours}.attention.qkv.weight"),
        same(f"{theirs}.0.SelfAttention.o.weight", f"{ours}.attention.output.weight"),
        same(f"{theirs}.0.layer_norm.weight", f"{ours}.attention_norm.weight"),
    )


def _cross(theirs: str, ours: str) -> tuple[Rule, ...]:
    return (
        same(f"{theirs}.1.EncDecAttention.q.weight", f"{ours}.cross.query.weight"),
        joined(tuple(f"{theirs}.1.EncDecAttention.{name}.weight" for name in "kv"), f"{ours}.cross.key_value.weight"),
        same(f"{theirs}.1.EncDecAttention.o.weight", f"{ours}.cross.output.weight"),
        same(f"{theirs}.1.layer_norm.weight", f"{ours}.cross_norm.weight"),
    )


def _names(gated: bool) -> Names:
    encoder, decoder = "encoder.block.{}.layer", "decoder.block.{}.layer"
    near = "{}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    return Names(
        prefix="",
        spellings=(),
        body=(
            same("shared.weight", "tokens.weight"),
            *(same(near.format(stack), f"{stack}_positions.table.weight") for stack in ("encoder", "decoder")),
            *(same(f"{stack}.final_layer_norm.weight", f"{stack}_norm.weight") for stack in ("encoder", "decoder")),
            *_self(encoder, "encoder.{}"),
            *_part(encoder, "encoder.{}", 1, gated),
            *_self(decoder, "decoder.{}"),
            *_cross(decoder, "decoder.{}"),
            *_part(decoder, "decoder.{}", 2, gated),
            # In the first files, and read by nobody: attention to another text has no distances.
            dropped("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"),
        ),
        heads={"words": (same("lm_head.weight", "heads.words.decoder.weight"),)},
        tied=tuple(
            (name, "tokens.weight")
            for name in ("lm_head.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
        ),
    )


# What is published as gated-gelu has always meant the tanh approximation, and gelu alone the exact one.
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu_new": "gelu-tanh", "silu": "silu", "tanh": "tanh"}
ACTIVATIONS |= {"gated-gelu": "gated-gelu-tanh", "gated-silu": "gated-silu"}
TABLE = ConfigTable(
    read={
        "vocab_size": "vocabulary",
        "n_positions": "context",
        "d_model": "width",
        "num_layers": "layers",
        "num_decoder_layers": "decoder_layers",
        "num_heads": "heads",
        "d_kv": "head_width",
        "d_ff": "inner",
        "feed_forward_proj": "activation",
        "relative_attention_num_buckets": "buckets",
        "relative_attention_max_distance": "farthest",
        "layer_norm_epsilon": "norm_epsilon",
        "dropout_rate": "dropout",
        "tie_word_embeddings": "tied",
        "scale_decoder_outputs": "scaled",
        "decoder_start_token_id": "begin",
        "initializer_factor": "weight_scale",
    },
    values={"feed_forward_proj": ACTIVATIONS},
    fixed={"is_encoder_decoder": True},
    ignored={
        "is_gated_act": "feed_forward_proj says it",
        "dense_act_fn": "feed_forward_proj says it, and is compared with it",
        "classifier_dropout": "for another library's head",
    },
)


def as_stored(published: Mapping[str, Any], stored: Mapping[str, Tensor], where: str) -> dict[str, Any]:
    """A published config with the values that its writers leave out."""
    config = dict(published)
    tied, scaled = config.get("tie_word_embeddings"), config.get("scale_decoder_outputs")
    # Before there was a key for it, a model whose tables are apart was one whose scores are not scaled.
    config["scale_decoder_outputs"] = tied is not False if scaled is None else scaled
    own, shared = stored.get("lm_head.weight"), stored.get("shared.weight")
    if scaled is not None and own is not None and shared is not None and own.shape == shared.shape:
        # Whoever writes that key says of every model that its tables are tied; the tensors say whether they are.
        config["tie_word_embeddings"] = tied is not False and torch.equal(own, shared)
    if config.get("decoder_start_token_id") is None:
        config["decoder_start_token_id"] = config.get("pad_token_id")
    bent, activation = str(config.get("feed_forward_proj") or "relu"), config.get("dense_act_fn")
    means = {"gated-gelu": "gelu_new"}.get(bent, bent.removeprefix("gated-"))
    if activation not in (None, means):
        raise UserError(f"{where}: dense_act_fn is {shown(str(activation))}, which {shown(bent)} does not mean")
    return config


def _size(layers: int, width: int, heads: int, inner: int, head_width: int = 64) -> T5Config:
    return T5Config(layers=layers, width=width, heads=heads, inner=inner, head_width=head_width)


def _gated(layers: int, width: int, heads: int, inner: int) -> T5Config:
    return replace(_size(layers, width, heads, inner), activation="gated-gelu-tanh", tied=False, scaled=False)


T5: dict[str, Any] = {
    "names": _names(gated=False),
    "gated_names": _names(gated=True),
    "table": TABLE,
    "as_stored": as_stored,
    "architectures": {"T5ForConditionalGeneration": ("words",), "T5Model": ()},
    "sizes": {
        "t5-small": _size(6, 512, 8, 2048),
        "t5-base": _size(12, 768, 12, 3072),
        "t5-large": _size(24, 1024, 16, 4096),
        "t5-3b": _size(24, 1024, 32, 16384, head_width=128),
        "t5-11b": _size(24, 1024, 128, 65536, head_width=128),
        "t5-v1.1-small": _gated(8, 512, 6, 1024),
        "t5-v1.1-base": _gated(12, 768, 12, 2048),
        "t5-v1.1-large": _gated(24, 1024, 16, 2816),
        "t5-v1.1-xl": _gated(24, 2048, 32, 5120),
        "t5-v1.1-xxl": _gated(24, 4096, 64, 10240),
    },
    "specials": {"padding": "<pad>", "end": "</s>", "unknown": "<unk>"},
    "sentinels": 100,  # tokens that stand for gaps: <extra_id_0> is the last of a vocabulary
}

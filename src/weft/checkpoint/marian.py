"""How Marian's translation models are published: names, config keys, heads and sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.checkpoint.configs import ACTIVATIONS, ConfigTable, Together
from weft.checkpoint.names import Names, Rule, both, both_joined, dropped, row, same
from weft.errors import UserError, shown
from weft.models.transformer import TransformerConfig

# Where what is read has a table of its own, both tables stand with their side; else there is one, with copies.
APART = "source_tokens.weight"


def _layers(side: str) -> tuple[Rule, ...]:
    theirs, ours = f"{side}.layers.{{}}", f"{side}.{{}}"
    return (
        *both_joined([f"{theirs}.self_attn.{part}_proj" for part in "qkv"], f"{ours}.attention.qkv"),
        *both(f"{theirs}.self_attn.out_proj", f"{ours}.attention.output"),
        *both(f"{theirs}.self_attn_layer_norm", f"{ours}.attention_norm"),
        *both(f"{theirs}.fc1", f"{ours}.feedforward.up"),
        *both(f"{theirs}.fc2", f"{ours}.feedforward.down"),
        *both(f"{theirs}.final_layer_norm", f"{ours}.feedforward_norm"),
        dropped(f"{side}.embed_positions.weight"),  # sinusoids
    )


CROSS = "decoder.layers.{}.encoder_attn"
NAMES = Names(
    prefix="model.",
    spellings=((r"^model\.", ""),),
    body=(
        same("shared.weight", "tokens.weight", without=APART),
        same("decoder.embed_tokens.weight", "tokens.weight", beside=APART),
        same("encoder.embed_tokens.weight", APART, beside=APART),
        Rule(("shared.weight",), "", "dropped", beside=APART),  # a third table that nothing reads
        *_layers("encoder"),
        *_layers("decoder"),
        *both(f"{CROSS}.q_proj", "decoder.{}.cross.query"),
        *both_joined([f"{CROSS}.{part}_proj" for part in "kv"], "decoder.{}.cross.key_value"),
        *both(f"{CROSS}.out_proj", "decoder.{}.cross.output"),
        *both("decoder.layers.{}.encoder_attn_layer_norm", "decoder.{}.cross_norm"),
    ),
    heads={
        "words": (
            row("final_logits_bias", "heads.words.bias"),
            same("lm_head.weight", "heads.words.decoder.weight", beside="heads.words.decoder.weight"),
        )
    },
    tied=(
        ("encoder.embed_tokens.weight", "tokens.weight"),
        ("decoder.embed_tokens.weight", "tokens.weight"),
        ("lm_head.weight", "tokens.weight"),
    ),
)

ABSENT: dict[str, Any] = {  # what transformers takes a key to mean that is not there
    "vocab_size": 58101,
    "max_position_embeddings": 1024,
    "encoder_layers": 12,
    "decoder_layers": 12,
    "encoder_attention_heads": 16,
    "decoder_attention_heads": 16,
    "encoder_ffn_dim": 4096,
    "decoder_ffn_dim": 4096,
    "d_model": 1024,
    "activation_function": "gelu",
    "scale_embedding": False,
    "dropout": 0.1,
    "init_std": 0.02,
    "decoder_start_token_id": 58100,
    "share_encoder_decoder_embeddings": True,
    "tie_word_embeddings": True,
}
PAIRS = {"layers": "{}_layers", "heads": "{}_attention_heads", "inner": "{}_ffn_dim"}  # of the encoder, the decoder


def _read(published: Mapping[str, Any]) -> dict[str, Any]:
    """Our fields for those keys that are not one field each."""
    sizes: dict[str, Any] = {"dropout": published["dropout"], "embedding_dropout": published["dropout"]}
    for ours, theirs in PAIRS.items():
        mine, other = published[theirs.format("encoder")], published[theirs.format("decoder")]
        sizes |= {ours: mine, f"decoder_{ours}": None if other == mine else other}
    shared, words = published["share_encoder_decoder_embeddings"], published["tie_word_embeddings"]
    for name, value in (("share_encoder_decoder_embeddings", shared), ("tie_word_embeddings", words)):
        if not isinstance(value, bool):
            raise UserError(f"{name} must be true or false, not {shown(str(value))!r}")
    size = published["vocab_size"]
    written = published.get("decoder_vocab_size") or size
    if shared and written != size:
        raise UserError(
            f"share_encoder_decoder_embeddings needs one vocabulary, not {shown(str(size))} and {shown(str(written))}"
        )
    # Without tied words transformers shares no table at all: each side has its own, of one vocabulary.
    sizes["tied"] = "none" if not words else "all" if shared else "decoder"
    sizes |= {"vocabulary": written, "source_vocabulary": None if written == size else size}
    return sizes | {"weight_scale": published["init_std"]}


def _write(config: TransformerConfig) -> dict[str, Any]:
    inner = config.inner or 4 * config.width
    sizes = {
        "layers": (config.layers, config.decoder_layers or config.layers),
        "heads": (config.heads, config.decoder_heads or config.heads),
        "inner": (inner, config.decoder_inner or inner),
    }
    written: dict[str, Any] = {
        "vocab_size": config.source_vocabulary or config.vocabulary,
        "decoder_vocab_size": config.vocabulary,
        "share_encoder_decoder_embeddings": config.tied == "all",
        "tie_word_embeddings": config.tied != "none",
        "dropout": config.dropout,
        "init_std": ABSENT["init_std"] if config.weight_scale is None else config.weight_scale,
    }
    for ours, theirs in PAIRS.items():
        written |= {theirs.format(side): size for side, size in zip(("encoder", "decoder"), sizes[ours], strict=True)}
    return written


# What the published code once could do otherwise, and no published model does.
OLD = {"static_position_embeddings": True, "normalize_before": False, "normalize_embedding": False}
OLD |= {"add_final_layer_norm": False}

TABLE = ConfigTable(
    read={
        "max_position_embeddings": "context",
        "d_model": "width",
        "activation_function": "activation",
        "attention_dropout": "attention_dropout",
        "activation_dropout": "inner_dropout",
        "scale_embedding": "scaled",
        "decoder_start_token_id": "begin",
    },
    values={"activation_function": {"swish": "silu", **ACTIVATIONS}},
    fixed={"is_encoder_decoder": True, **OLD},
    ignored={
        **dict.fromkeys(("encoder_layerdrop", "decoder_layerdrop"), "leaves layers out in training alone"),
        **dict.fromkeys(("add_bias_logits", "extra_pos_embeddings", "num_hidden_layers"), "the other keys say it"),
        **dict.fromkeys(("classif_dropout", "classifier_dropout", "_num_labels"), "for a head that nobody publishes"),
        "force_bos_token_to_be_generated": "how to decode is asked for at run time",
    },
    absent=ABSENT,
    together=Together(
        keys=(
            *("vocab_size", "decoder_vocab_size", "share_encoder_decoder_embeddings", "tie_word_embeddings"),
            *("dropout", "init_std"),
            *(name.format(side) for name in PAIRS.values() for side in ("encoder", "decoder")),
        ),
        fields=(
            *("vocabulary", "source_vocabulary", "tied", "dropout", "embedding_dropout", "weight_scale"),
            *(f"{side}{name}" for name in PAIRS for side in ("", "decoder_")),
        ),
        read=_read,
        write=_write,
        says=lambda config: config.dropout == config.embedding_dropout,
    ),
)

# In what Marian's models differ from the defaults of the config, which are the paper's.
STANDARD: dict[str, Any] = {"vocabulary": 58101, "context": 512, "activation": "silu", "word_bias": True}
STANDARD |= {"positions": "sinusoidal-halves"}
MARIAN: dict[str, Any] = {
    "names": NAMES,
    "table": TABLE,
    "architectures": {"MarianMTModel": ("words",), "MarianModel": ()},
    "sizes": {"opus-mt": TransformerConfig(**STANDARD, begin=58100)},  # as opus-mt-en-de is published
    "standard": STANDARD,
}

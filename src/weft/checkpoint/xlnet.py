"""How XLNet is published: names, config keys, heads and sizes."""

from collections.abc import Mapping
from typing import Any

from weft.checkpoint.formats import ACTIVATIONS, ConfigTable, Names, Rule, Together, both, by_heads, same
from weft.models.xlnet import XlnetConfig

LAYER, OURS = "layer.{}.rel_attn", "layers.{}.attention"
HEAD_SHAPE = f"{OURS}.content_bias"  # H D
SUMMARY = {"summary_type": ("last",), "summary_use_proj": (True,), "summary_activation": ("tanh",)}


def _summary(head: str) -> tuple[Rule, ...]:
    """A head that reads the last token through one more layer."""
    return (*both("sequence_summary.summary", f"heads.{head}.dense"), *both("logits_proj", f"heads.{head}.output"))


def span_head(prefix: str = "") -> tuple[Rule, ...]:
    """The head of XLNet and XLM that scores the last token of an answer given its first."""
    return (
        *both(f"{prefix}start_logits.dense", "heads.spans.start"),
        *both(f"{prefix}end_logits.dense_0", "heads.spans.end_dense"),
        *both(f"{prefix}end_logits.LayerNorm", "heads.spans.end_norm"),
        *both(f"{prefix}end_logits.dense_1", "heads.spans.end"),
        *both(f"{prefix}answer_class.dense_0", "heads.spans.none_dense"),
        same(f"{prefix}answer_class.dense_1.weight", "heads.spans.none.weight"),
    )


def _clamped(published: Mapping[str, Any]) -> dict[str, Any]:
    """The longest distance; theirs is 0 or less where there is none."""
    limit = published.get("clamp_len")
    return {} if limit is None or (type(limit) is int and limit <= 0) else {"farthest": limit}


XLNET: dict[str, Any] = {
    "generates": True,
    "both_ways": True,
    "names": Names(
        prefix="transformer.",
        body=(
            same("word_embedding.weight", "tokens.weight"),
            same("mask_emb", "unseen"),
            by_heads([f"{LAYER}.{name}" for name in "qkv"], f"{OURS}.qkv.weight", HEAD_SHAPE),
            by_heads([f"{LAYER}.r"], f"{OURS}.distance.weight", HEAD_SHAPE),
            Rule((f"{LAYER}.o",), f"{OURS}.output.weight", "flat", like=HEAD_SHAPE),
            same(f"{LAYER}.r_w_bias", HEAD_SHAPE),
            same(f"{LAYER}.r_r_bias", f"{OURS}.distance_bias"),
            same(f"{LAYER}.r_s_bias", f"{OURS}.segment_bias"),
            same(f"{LAYER}.seg_embed", f"{OURS}.segments"),
            *both(f"{LAYER}.layer_norm", "layers.{}.attention_norm"),
            *both("layer.{}.ff.layer_1", "layers.{}.feedforward.up"),
            *both("layer.{}.ff.layer_2", "layers.{}.feedforward.down"),
            *both("layer.{}.ff.layer_norm", "layers.{}.feedforward_norm"),
        ),
        heads={
            "words": (same("lm_loss.weight", "heads.words.decoder.weight"), same("lm_loss.bias", "heads.words.bias")),
            **{head: _summary(head) for head in ("classify", "choose")},
            "tag": both("classifier", "heads.tag.output"),
            "answer": both("qa_outputs", "heads.answer.output"),
            "spans": span_head(),
        },
        tied=(("lm_loss.weight", "tokens.weight"),),
    ),
    "table": ConfigTable(
        read={
            "vocab_size": "vocabulary",
            "d_model": "width",
            "n_layer": "layers",
            "n_head": "heads",
            "d_inner": "inner",
            "ff_activation": "activation",
            "mem_len": "memory",
            "layer_norm_eps": "norm_epsilon",
            "dropout": "dropout",
            "summary_last_dropout": "head_dropout",
            "tie_word_embeddings": "tied",
            "initializer_range": "weight_scale",
        },
        values={"ff_activation": ACTIVATIONS},
        fixed={"attn_type": "bi", "bi_data": False},
        of_heads={"classify": SUMMARY, "choose": SUMMARY},
        absent={"d_model": 1024, "n_layer": 24, "n_head": 16, "d_inner": 4096, "mem_len": 512},
        ignored={
            **dict.fromkeys(SUMMARY, "matters to the classify and choose heads alone"),
            **dict.fromkeys(("start_n_top", "end_n_top"), "more first and last tokens are paired"),
            **dict.fromkeys(("use_mems_eval", "use_mems_train", "reuse_len"), "of pre-training"),
            "d_head": "always d_model / n_head",
            "same_length": "matters to attn_type uni alone",
            **dict.fromkeys(("untie_r", "n_token"), "unused by the published code"),
        },
        together=Together(
            keys=("clamp_len",),
            fields=("farthest",),
            read=_clamped,
            write=lambda config: {"clamp_len": config.farthest or -1},
            says=lambda config: True,
        ),
    ),
    "architectures": {
        "XLNetLMHeadModel": ("words",),
        "XLNetForSequenceClassification": ("classify",),
        "XLNetForMultipleChoice": ("choose",),
        "XLNetForTokenClassification": ("tag",),
        "XLNetForQuestionAnsweringSimple": ("answer",),
        "XLNetForQuestionAnswering": ("spans",),
        "XLNetModel": (),
    },
    "sizes": {
        "xlnet-base-cased": XlnetConfig(),
        "xlnet-large-cased": XlnetConfig(layers=24, width=1024, heads=16, inner=4096),
    },
    "tokenizer": "unigram",
    "specials": {
        **{"unknown": "<unk>", "end": "</s>", "start": "<cls>", "separator": "<sep>", "padding": "<pad>"},
        "mask": "<mask>",
    },
    "around": "xlnet",
    "rows": "carried",
    "row": 512,
}

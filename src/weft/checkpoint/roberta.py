"""How RoBERTa and XLM-RoBERTa are published: names, config keys, heads and sizes."""

from dataclasses import replace
from typing import Any

from weft.checkpoint.configs import ConfigTable
from weft.checkpoint.names import Names, both, dropped, joined, same
from weft.models.roberta import RobertaConfig

LAYER = "encoder.layer.{}"
SELF = f"{LAYER}.attention.self"

NAMES = Names(
    prefix="roberta.",
    spellings=(
        (r"^roberta\.", ""),
        (r"LayerNorm\.gamma$", "LayerNorm.weight"),
        (r"LayerNorm\.beta$", "LayerNorm.bias"),
    ),
    body=(
        same("embeddings.word_embeddings.weight", "tokens.weight"),
        same("embeddings.token_type_embeddings.weight", "segments.weight"),
        same("embeddings.position_embeddings.weight", "positions.table.weight"),
        dropped("embeddings.position_ids"),  # 0, 1, 2, ...
        dropped("embeddings.token_type_ids"),  # zeros
        *both("embeddings.LayerNorm", "embedding_norm"),
        joined(
            (f"{SELF}.query.weight", f"{SELF}.key.weight", f"{SELF}.value.weight"), "layers.{}.attention.qkv.weight"
        ),
        joined((f"{SELF}.query.bias", f"{SELF}.key.bias", f"{SELF}.value.bias"), "layers.{}.attention.qkv.bias"),
        *both(f"{LAYER}.attention.output.dense", "layers.{}.attention.output"),
        *both(f"{LAYER}.attention.output.LayerNorm", "layers.{}.attention_norm"),
        *both(f"{LAYER}.intermediate.dense", "layers.{}.feedforward.up"),
        *both(f"{LAYER}.output.dense", "layers.{}.feedforward.down"),
        *both(f"{LAYER}.output.LayerNorm", "layers.{}.feedforward_norm"),
        *both("pooler.dense", "pooler.dense"),
    ),
    heads={
        "words": (
            *both("lm_head.dense", "heads.words.dense"),
            *both("lm_head.layer_norm", "heads.words.norm"),
            same("lm_head.bias", "heads.words.bias"),
            *both("lm_head.decoder", "heads.words.decoder"),  # of its own only where the config says untied
        ),
        "classify": (
            *both("classifier.dense", "heads.classify.dense"),
            *both("classifier.out_proj", "heads.classify.output"),
        ),
        "choose": both("classifier", "heads.choose.output"),
        "tag": both("classifier", "heads.tag.output"),
        "answer": both("qa_outputs", "heads.answer.output"),
    },
    tied=(("lm_head.decoder.weight", "tokens.weight"), ("lm_head.decoder.bias", "heads.words.bias")),
)

CONFIG = ConfigTable(
    read={
        "vocab_size": "vocabulary",
        "max_position_embeddings": "context",
        "pad_token_id": "padding",
        "type_vocab_size": "segments",
        "hidden_size": "width",
        "num_hidden_layers": "layers",
        "num_attention_heads": "heads",
        "intermediate_size": "inner",
        "hidden_act": "activation",
        "layer_norm_eps": "norm_epsilon",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
        "classifier_dropout": "head_dropout",
        "tie_word_embeddings": "tied",
        "initializer_range": "weight_scale",
    },
    values={
        "hidden_act": {
            "gelu": "gelu",
            "gelu_new": "gelu-tanh",
            "gelu_pytorch_tanh": "gelu-tanh",
            "relu": "relu",
            "silu": "silu",
            "swish": "silu",
            "tanh": "tanh",
        }
    },
    fixed={"position_embedding_type": "absolute"},
    # 514 rows are a context of 512: the first is that of the place after the padding token's id, 1.
    counted_in={"max_position_embeddings": "padding"},
    absent={"max_position_embeddings": 512, "type_vocab_size": 2, "layer_norm_eps": 1e-12},
)
XLM_CONFIG = replace(CONFIG, absent={**CONFIG.absent, "vocab_size": 30522})


def _architectures(name: str) -> dict[str, tuple[str, ...]]:
    return {
        f"{name}ForMaskedLM": ("words",),
        f"{name}ForSequenceClassification": ("classify",),
        f"{name}ForMultipleChoice": ("choose",),
        f"{name}ForTokenClassification": ("tag",),
        f"{name}ForQuestionAnswering": ("answer",),
        f"{name}Model": (),
    }


ARCHITECTURES = _architectures("Roberta")
XLM_ARCHITECTURES = _architectures("XLMRoberta")

# In what XLM-RoBERTa differs from the defaults of the config, which are RoBERTa's.
XLM_STANDARD: dict[str, Any] = {"vocabulary": 250002}
LARGE: dict[str, Any] = {"layers": 24, "width": 1024, "heads": 16, "inner": 4096}

SIZES = {
    "distilroberta-base": RobertaConfig(layers=6),
    "roberta-base": RobertaConfig(),
    "roberta-large": RobertaConfig(**LARGE),
}
XLM_SIZES = {
    "xlm-roberta-base": RobertaConfig(**XLM_STANDARD),
    "xlm-roberta-large": RobertaConfig(**XLM_STANDARD, **LARGE),
}

# Padding is token 1, after which positions are counted; the end of a text is also what stands between two.
SPECIALS = {
    "start": "<s>",
    "padding": "<pad>",
    "end": "</s>",
    "unknown": "<unk>",
    "mask": "<mask>",
    "separator": "</s>",
}

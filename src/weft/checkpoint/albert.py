"""How ALBERT is published: names, config keys, heads and sizes."""

from weft.checkpoint.configs import ConfigTable
from weft.checkpoint.names import Names, both, dropped, joined, same
from weft.models.albert import AlbertConfig

LAYER = "encoder.albert_layer_groups.0.albert_layers.0"
SELF = f"{LAYER}.attention"

NAMES = Names(
    prefix="albert.",
    spellings=((r"^albert\.", ""), (r"LayerNorm\.gamma$", "LayerNorm.weight"), (r"LayerNorm\.beta$", "LayerNorm.bias")),
    body=(
        same("embeddings.word_embeddings.weight", "tokens.weight"),
        same("embeddings.token_type_embeddings.weight", "segments.weight"),
        same("embeddings.position_embeddings.weight", "positions.table.weight"),
        dropped("embeddings.position_ids"),  # 0, 1, 2, ...
        dropped("embeddings.token_type_ids"),  # zeros
        *both("embeddings.LayerNorm", "embedding_norm"),
        *both("encoder.embedding_hidden_mapping_in", "widened"),
        joined((f"{SELF}.query.weight", f"{SELF}.key.weight", f"{SELF}.value.weight"), "layers.0.attention.qkv.weight"),
        joined((f"{SELF}.query.bias", f"{SELF}.key.bias", f"{SELF}.value.bias"), "layers.0.attention.qkv.bias"),
        *both(f"{SELF}.dense", "layers.0.attention.output"),
        *both(f"{SELF}.LayerNorm", "layers.0.attention_norm"),
        *both(f"{LAYER}.ffn", "layers.0.feedforward.up"),
        *both(f"{LAYER}.ffn_output", "layers.0.feedforward.down"),
        *both(f"{LAYER}.full_layer_layer_norm", "layers.0.feedforward_norm"),
        *both("pooler", "pooler.dense"),
    ),
    heads={
        "words": (
            *both("predictions.dense", "heads.words.dense"),
            *both("predictions.LayerNorm", "heads.words.norm"),
            same("predictions.bias", "heads.words.bias"),
            *both("predictions.decoder", "heads.words.decoder"),  # of its own only where the config says untied
        ),
        "next": both("sop_classifier.classifier", "heads.next.output"),
        "classify": both("classifier", "heads.classify.output"),
        "choose": both("classifier", "heads.choose.output"),
        "tag": both("classifier", "heads.tag.output"),
        "answer": both("qa_outputs", "heads.answer.output"),
    },
    tied=(("predictions.decoder.weight", "tokens.weight"), ("predictions.decoder.bias", "heads.words.bias")),
)

CONFIG = ConfigTable(
    read={
        "vocab_size": "vocabulary",
        "max_position_embeddings": "context",
        "type_vocab_size": "segments",
        "embedding_size": "embedding_width",
        "hidden_size": "width",
        "num_hidden_layers": "layers",
        "num_attention_heads": "heads",
        "intermediate_size": "inner",
        "hidden_act": "activation",
        "layer_norm_eps": "norm_epsilon",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
        "classifier_dropout_prob": "head_dropout",
        "tie_word_embeddings": "tied",
        "initializer_range": "weight_scale",
    },
    values={
        "hidden_act": {
            "gelu_new": "gelu-tanh",
            "gelu_pytorch_tanh": "gelu-tanh",
            "gelu": "gelu",
            "relu": "relu",
            "silu": "silu",
            "swish": "silu",
            "tanh": "tanh",
        }
    },
    # Every published size has one group of one layer.
    fixed={"num_hidden_groups": 1, "inner_group_num": 1, "position_embedding_type": "absolute"},
    absent={"hidden_size": 4096, "num_attention_heads": 64, "intermediate_size": 16384},
    ignored=dict.fromkeys(
        ("down_scale_factor", "gap_size", "layers_to_keep", "net_structure_type", "num_memory_blocks"),
        "unused by the published code",
    ),
)

ARCHITECTURES = {
    "AlbertForPreTraining": ("words", "next"),
    "AlbertForMaskedLM": ("words",),
    "AlbertForSequenceClassification": ("classify",),
    "AlbertForMultipleChoice": ("choose",),
    "AlbertForTokenClassification": ("tag",),
    "AlbertForQuestionAnswering": ("answer",),
    "AlbertModel": (),
}


def _size(layers: int, width: int, heads: int) -> AlbertConfig:
    return AlbertConfig(layers=layers, width=width, heads=heads, inner=4 * width)


SIZES = {
    "albert-base-v2": _size(12, 768, 12),
    "albert-large-v2": _size(24, 1024, 16),
    "albert-xlarge-v2": _size(24, 2048, 16),
    "albert-xxlarge-v2": _size(12, 4096, 64),
}

SPECIALS = {"padding": "<pad>", "unknown": "<unk>", "start": "[CLS]", "separator": "[SEP]", "mask": "[MASK]"}

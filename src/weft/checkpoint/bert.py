"""How BERT is published: names, config keys, heads and sizes."""

from weft.checkpoint.configs import ConfigTable
from weft.checkpoint.names import Names, both, dropped, joined, same
from weft.models.bert import BertConfig

LAYER = "encoder.layer.{}"
SELF = f"{LAYER}.attention.self"

NAMES = Names(
    prefix="bert.",
    spellings=((r"^bert\.", ""), (r"LayerNorm\.gamma$", "LayerNorm.weight"), (r"LayerNorm\.beta$", "LayerNorm.bias")),
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
            *both("cls.predictions.transform.dense", "heads.words.dense"),
            *both("cls.predictions.transform.LayerNorm", "heads.words.norm"),
            same("cls.predictions.bias", "heads.words.bias"),
            *both("cls.predictions.decoder", "heads.words.decoder"),  # of its own only where the config says untied
        ),
        "next": both("cls.seq_relationship", "heads.next.output"),
        "classify": both("classifier", "heads.classify.output"),
        "choose": both("classifier", "heads.choose.output"),
        "tag": both("classifier", "heads.tag.output"),
        "answer": both("qa_outputs", "heads.answer.output"),
    },
    tied=(("cls.predictions.decoder.weight", "tokens.weight"), ("cls.predictions.decoder.bias", "heads.words.bias")),
)

CONFIG = ConfigTable(
    read={
        "vocab_size": "vocabulary",
        "max_position_embeddings": "context",
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
    ignored=dict.fromkeys(
        ("pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head", "pooler_type"),
        "unused by the published code",
    ),
)

ARCHITECTURES = {
    "BertForPreTraining": ("words", "next"),
    "BertForMaskedLM": ("words",),
    "BertForNextSentencePrediction": ("next",),
    "BertForSequenceClassification": ("classify",),
    "BertForMultipleChoice": ("choose",),
    "BertForTokenClassification": ("tag",),
    "BertForQuestionAnswering": ("answer",),
    "BertModel": (),
}


def _size(layers: int, width: int) -> BertConfig:
    return BertConfig(layers=layers, width=width, heads=width // 64, inner=4 * width)


SIZES = {
    "bert-tiny": _size(2, 128),
    "bert-mini": _size(4, 256),
    "bert-small": _size(4, 512),
    "bert-medium": _size(8, 512),
    "bert-base": _size(12, 768),
    "bert-large": _size(24, 1024),
}

SPECIALS = {"padding": "[PAD]", "unknown": "[UNK]", "start": "[CLS]", "separator": "[SEP]", "mask": "[MASK]"}

"""How DistilBERT is published: names, config keys, heads and sizes."""

from weft.checkpoint.configs import ConfigTable
from weft.checkpoint.names import Names, both, dropped, joined, same
from weft.models.distilbert import DistilBertConfig

LAYER = "transformer.layer.{}"
SELF = f"{LAYER}.attention"

NAMES = Names(
    prefix="distilbert.",
    spellings=((r"^distilbert\.", ""),),
    body=(
        same("embeddings.word_embeddings.weight", "tokens.weight"),
        same("embeddings.position_embeddings.weight", "positions.table.weight"),
        dropped("embeddings.position_ids"),  # 0, 1, 2, ...
        *both("embeddings.LayerNorm", "embedding_norm"),
        joined(
            (f"{SELF}.q_lin.weight", f"{SELF}.k_lin.weight", f"{SELF}.v_lin.weight"), "layers.{}.attention.qkv.weight"
        ),
        joined((f"{SELF}.q_lin.bias", f"{SELF}.k_lin.bias", f"{SELF}.v_lin.bias"), "layers.{}.attention.qkv.bias"),
        *both(f"{SELF}.out_lin", "layers.{}.attention.output"),
        *both(f"{LAYER}.sa_layer_norm", "layers.{}.attention_norm"),
        *both(f"{LAYER}.ffn.lin1", "layers.{}.feedforward.up"),
        *both(f"{LAYER}.ffn.lin2", "layers.{}.feedforward.down"),
        *both(f"{LAYER}.output_layer_norm", "layers.{}.feedforward_norm"),
    ),
    heads={
        "words": (
            *both("vocab_transform", "heads.words.dense"),
            *both("vocab_layer_norm", "heads.words.norm"),
            same("vocab_projector.bias", "heads.words.bias"),
            same("vocab_projector.weight", "heads.words.decoder.weight"),  # only where the config says untied
        ),
        "classify": (*both("pre_classifier", "heads.classify.dense"), *both("classifier", "heads.classify.output")),
        "choose": (*both("pre_classifier", "heads.choose.dense"), *both("classifier", "heads.choose.output")),
        "tag": both("classifier", "heads.tag.output"),
        "answer": both("qa_outputs", "heads.answer.output"),
    },
    tied=(("vocab_projector.weight", "tokens.weight"),),
)

CONFIG = ConfigTable(
    read={
        "vocab_size": "vocabulary",
        "max_position_embeddings": "context",
        "dim": "width",
        "n_layers": "layers",
        "n_heads": "heads",
        "hidden_dim": "inner",
        "activation": "activation",
        "dropout": "dropout",
        "attention_dropout": "attention_dropout",
        "seq_classif_dropout": "head_dropout",
        "qa_dropout": "answer_dropout",
        "tie_word_embeddings": "tied",
        "initializer_range": "weight_scale",
    },
    values={
        "activation": {
            "gelu": "gelu",
            "gelu_new": "gelu-tanh",
            "gelu_pytorch_tanh": "gelu-tanh",
            "relu": "relu",
            "silu": "silu",
            "swish": "silu",
            "tanh": "tanh",
        }
    },
    ignored={
        "sinusoidal_pos_embds": "how the table of positions began; it is stored as any other",
        "tie_weights_": "tie_word_embeddings says it",
    },
)

ARCHITECTURES = {
    "DistilBertForMaskedLM": ("words",),
    "DistilBertForSequenceClassification": ("classify",),
    "DistilBertForMultipleChoice": ("choose",),
    "DistilBertForTokenClassification": ("tag",),
    "DistilBertForQuestionAnswering": ("answer",),
    "DistilBertModel": (),
}

SIZES = {
    "distilbert-base": DistilBertConfig(),
    "distilbert-base-cased": DistilBertConfig(vocabulary=28996),
    "distilbert-base-multilingual-cased": DistilBertConfig(vocabulary=119547),
}

"""How BERT, RoBERTa, XLM-RoBERTa, ALBERT and DistilBERT are published: names, config keys, heads and sizes."""

from dataclasses import replace
from typing import Any

from weft.checkpoint.configs import ACTIVATIONS, ConfigTable
from weft.checkpoint.names import Names, both, both_joined, dropped, same
from weft.models.albert import AlbertConfig
from weft.models.bert import BertConfig
from weft.models.distilbert import DistilBertConfig
from weft.models.roberta import RobertaConfig

UNUSED = "unused by the published code"
OLD_NORMS = ((r"LayerNorm\.gamma$", "LayerNorm.weight"), (r"LayerNorm\.beta$", "LayerNorm.bias"))
EMBEDDINGS = (
    same("embeddings.word_embeddings.weight", "tokens.weight"),
    same("embeddings.position_embeddings.weight", "positions.table.weight"),
    dropped("embeddings.position_ids"),  # 0, 1, 2, ...
    *both("embeddings.LayerNorm", "embedding_norm"),
)
SEGMENTS = (
    same("embeddings.token_type_embeddings.weight", "segments.weight"),
    dropped("embeddings.token_type_ids"),  # zeros
)
LAYER = "encoder.layer.{}"
BODY = (  # of BERT and RoBERTa
    *EMBEDDINGS,
    *SEGMENTS,
    *both_joined([f"{LAYER}.attention.self.{part}" for part in ("query", "key", "value")], "layers.{}.attention.qkv"),
    *both(f"{LAYER}.attention.output.dense", "layers.{}.attention.output"),
    *both(f"{LAYER}.attention.output.LayerNorm", "layers.{}.attention_norm"),
    *both(f"{LAYER}.intermediate.dense", "layers.{}.feedforward.up"),
    *both(f"{LAYER}.output.dense", "layers.{}.feedforward.down"),
    *both(f"{LAYER}.output.LayerNorm", "layers.{}.feedforward_norm"),
    *both("pooler.dense", "pooler.dense"),
)
HEADS = {
    "classify": both("classifier", "heads.classify.output"),
    "choose": both("classifier", "heads.choose.output"),
    "tag": both("classifier", "heads.tag.output"),
    "answer": both("qa_outputs", "heads.answer.output"),
}
READ = {
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
    "tie_word_embeddings": "tied",
    "initializer_range": "weight_scale",
}
POOLER = ("fc_size", "num_attention_heads", "num_fc_layers", "size_per_head", "type")  # keys after pooler_
BRACKETS = {"start": "[CLS]", "separator": "[SEP]", "mask": "[MASK]"}


def _architectures(name: str) -> dict[str, tuple[str, ...]]:
    return {
        f"{name}ForMaskedLM": ("words",),
        f"{name}ForSequenceClassification": ("classify",),
        f"{name}ForMultipleChoice": ("choose",),
        f"{name}ForTokenClassification": ("tag",),
        f"{name}ForQuestionAnswering": ("answer",),
        f"{name}Model": (),
    }


def _bert(layers: int, width: int) -> BertConfig:
    return BertConfig(layers=layers, width=width, heads=width // 64, inner=4 * width)


BERT: dict[str, Any] = {
    "names": Names(
        prefix="bert.",
        spellings=((r"^bert\.", ""), *OLD_NORMS),
        body=BODY,
        heads={
            "words": (
                *both("cls.predictions.transform.dense", "heads.words.dense"),
                *both("cls.predictions.transform.LayerNorm", "heads.words.norm"),
                same("cls.predictions.bias", "heads.words.bias"),
                *both("cls.predictions.decoder", "heads.words.decoder"),  # only where the config says untied
            ),
            "next": both("cls.seq_relationship", "heads.next.output"),
            **HEADS,
        },
        tied=(
            ("cls.predictions.decoder.weight", "tokens.weight"),
            ("cls.predictions.decoder.bias", "heads.words.bias"),
        ),
    ),
    "table": ConfigTable(
        read={**READ, "classifier_dropout": "head_dropout"},
        values={"hidden_act": ACTIVATIONS},
        fixed={"position_embedding_type": "absolute"},
        ignored=dict.fromkeys((f"pooler_{name}" for name in POOLER), UNUSED),
    ),
    "architectures": {
        "BertForPreTraining": ("words", "next"),
        "BertForNextSentencePrediction": ("next",),
        **_architectures("Bert"),
    },
    "sizes": {
        "bert-tiny": _bert(2, 128),
        "bert-mini": _bert(4, 256),
        "bert-small": _bert(4, 512),
        "bert-medium": _bert(8, 512),
        "bert-base": _bert(12, 768),
        "bert-large": _bert(24, 1024),
    },
    "tokenizer": "wordpiece",
    "specials": {"padding": "[PAD]", "unknown": "[UNK]", **BRACKETS},
    "around": "bert",
}

LARGE: dict[str, Any] = {"layers": 24, "width": 1024, "heads": 16, "inner": 4096}
ROBERTA: dict[str, Any] = {
    "names": Names(
        prefix="roberta.",
        spellings=((r"^roberta\.", ""), *OLD_NORMS),
        body=BODY,
        heads={
            "words": (
                *both("lm_head.dense", "heads.words.dense"),
                *both("lm_head.layer_norm", "heads.words.norm"),
                same("lm_head.bias", "heads.words.bias"),
                *both("lm_head.decoder", "heads.words.decoder"),  # only where the config says untied
            ),
            **HEADS,
            "classify": (
                *both("classifier.dense", "heads.classify.dense"),
                *both("classifier.out_proj", "heads.classify.output"),
            ),
        },
        tied=(("lm_head.decoder.weight", "tokens.weight"), ("lm_head.decoder.bias", "heads.words.bias")),
    ),
    "table": ConfigTable(
        read={**READ, "pad_token_id": "padding", "classifier_dropout": "head_dropout"},
        values={"hidden_act": ACTIVATIONS},
        fixed={"position_embedding_type": "absolute"},
        # 514 rows are a context of 512: the first is that of the place after the padding token's id, 1.
        counted_in={"max_position_embeddings": "padding"},
        absent={"max_position_embeddings": 512, "type_vocab_size": 2, "layer_norm_eps": 1e-12},
    ),
    "architectures": _architectures("Roberta"),
    "sizes": {
        "distilroberta-base": RobertaConfig(layers=6),
        "roberta-base": RobertaConfig(),
        "roberta-large": RobertaConfig(**LARGE),
    },
    # Padding is token 1, after which positions are counted; the end of a text is also what stands between two.
    "specials": dict(start="<s>", padding="<pad>", end="</s>", unknown="<unk>", mask="<mask>", separator="</s>"),
    "around": "xlmroberta",
}

# In what XLM-RoBERTa differs from the defaults of the config, which are RoBERTa's.
XLM_STANDARD: dict[str, Any] = {"vocabulary": 250002}
XLM_ROBERTA: dict[str, Any] = {
    **ROBERTA,
    "table": replace(ROBERTA["table"], absent={**ROBERTA["table"].absent, "vocab_size": 30522}),
    "architectures": _architectures("XLMRoberta"),
    "sizes": {
        "xlm-roberta-base": RobertaConfig(**XLM_STANDARD),
        "xlm-roberta-large": RobertaConfig(**XLM_STANDARD, **LARGE),
    },
    "tokenizer": "unigram",
    "standard": XLM_STANDARD,
}


def _albert(layers: int, width: int, heads: int) -> AlbertConfig:
    return AlbertConfig(layers=layers, width=width, heads=heads, inner=4 * width)


SHARED = "encoder.albert_layer_groups.0.albert_layers.0"
ALBERT: dict[str, Any] = {
    "names": Names(
        prefix="albert.",
        spellings=((r"^albert\.", ""), *OLD_NORMS),
        body=(
            *EMBEDDINGS,
            *SEGMENTS,
            *both("encoder.embedding_hidden_mapping_in", "widened"),
            *both_joined(
                [f"{SHARED}.attention.{part}" for part in ("query", "key", "value")], "layers.0.attention.qkv"
            ),
            *both(f"{SHARED}.attention.dense", "layers.0.attention.output"),
            *both(f"{SHARED}.attention.LayerNorm", "layers.0.attention_norm"),
            *both(f"{SHARED}.ffn", "layers.0.feedforward.up"),
            *both(f"{SHARED}.ffn_output", "layers.0.feedforward.down"),
            *both(f"{SHARED}.full_layer_layer_norm", "layers.0.feedforward_norm"),
            *both("pooler", "pooler.dense"),
        ),
        heads={
            "words": (
                *both("predictions.dense", "heads.words.dense"),
                *both("predictions.LayerNorm", "heads.words.norm"),
                same("predictions.bias", "heads.words.bias"),
                *both("predictions.decoder", "heads.words.decoder"),  # only where the config says untied
            ),
            "next": both("sop_classifier.classifier", "heads.next.output"),
            **HEADS,
        },
        tied=(("predictions.decoder.weight", "tokens.weight"), ("predictions.decoder.bias", "heads.words.bias")),
    ),
    "table": ConfigTable(
        read={**READ, "embedding_size": "embedding_width", "classifier_dropout_prob": "head_dropout"},
        values={"hidden_act": ACTIVATIONS},
        # Every published size has one group of one layer.
        fixed={"num_hidden_groups": 1, "inner_group_num": 1, "position_embedding_type": "absolute"},
        absent={"hidden_size": 4096, "num_attention_heads": 64, "intermediate_size": 16384},
        ignored=dict.fromkeys(
            ("down_scale_factor", "gap_size", "layers_to_keep", "net_structure_type", "num_memory_blocks"), UNUSED
        ),
    ),
    "architectures": {"AlbertForPreTraining": ("words", "next"), **_architectures("Albert")},
    "sizes": {
        "albert-base-v2": _albert(12, 768, 12),
        "albert-large-v2": _albert(24, 1024, 16),
        "albert-xlarge-v2": _albert(24, 2048, 16),
        "albert-xxlarge-v2": _albert(12, 4096, 64),
    },
    "tokenizer": "unigram",
    "specials": {"padding": "<pad>", "unknown": "<unk>", **BRACKETS},
    "around": "albert",
}

DISTILLED = "transformer.layer.{}"
DISTILBERT: dict[str, Any] = {
    "names": Names(
        prefix="distilbert.",
        spellings=((r"^distilbert\.", ""),),
        body=(
            *EMBEDDINGS,
            *both_joined([f"{DISTILLED}.attention.{part}_lin" for part in "qkv"], "layers.{}.attention.qkv"),
            *both(f"{DISTILLED}.attention.out_lin", "layers.{}.attention.output"),
            *both(f"{DISTILLED}.sa_layer_norm", "layers.{}.attention_norm"),
            *both(f"{DISTILLED}.ffn.lin1", "layers.{}.feedforward.up"),
            *both(f"{DISTILLED}.ffn.lin2", "layers.{}.feedforward.down"),
            *both(f"{DISTILLED}.output_layer_norm", "layers.{}.feedforward_norm"),
        ),
        heads={
            "words": (
                *both("vocab_transform", "heads.words.dense"),
                *both("vocab_layer_norm", "heads.words.norm"),
                same("vocab_projector.bias", "heads.words.bias"),
                same("vocab_projector.weight", "heads.words.decoder.weight"),  # only where the config says untied
            ),
            **HEADS,
            "classify": (*both("pre_classifier", "heads.classify.dense"), *HEADS["classify"]),
            "choose": (*both("pre_classifier", "heads.choose.dense"), *HEADS["choose"]),
        },
        tied=(("vocab_projector.weight", "tokens.weight"),),
    ),
    "table": ConfigTable(
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
        values={"activation": ACTIVATIONS},
        ignored={
            "sinusoidal_pos_embds": "how the table of positions began; it is stored as any other",
            "tie_weights_": "tie_word_embeddings says it",
        },
    ),
    "architectures": _architectures("DistilBert"),
    "sizes": {
        "distilbert-base": DistilBertConfig(),
        "distilbert-base-cased": DistilBertConfig(vocabulary=28996),
        "distilbert-base-multilingual-cased": DistilBertConfig(vocabulary=119547),
    },
    **{name: BERT[name] for name in ("tokenizer", "specials", "around")},
}

"""How BERT, RoBERTa, XLM-RoBERTa, ALBERT and DistilBERT are published: names, config keys, heads and sizes."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from weft.checkpoint.formats import ACTIVATIONS, ConfigTable, Names, Rule, both, dropped, layer, same
from weft.models.encoders import AlbertConfig, BertConfig, DistilBertConfig, RobertaConfig

UNUSED = "unused by the published code"
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
MAPS = ("query", "key", "value")
BODY = (  # of BERT and RoBERTa
    *EMBEDDINGS,
    *SEGMENTS,
    *layer(
        "encoder.layer.{}",
        "layers.{}",
        [f"attention.self.{name}" for name in MAPS],
        (
            "attention.output.dense",
            "attention.output.LayerNorm",
            "intermediate.dense",
            "output.dense",
            "output.LayerNorm",
        ),
    ),
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
VALUES = {"hidden_act": ACTIVATIONS}
ABSOLUTE = {"position_embedding_type": "absolute"}
POOLER = ("fc_size", "num_attention_heads", "num_fc_layers", "size_per_head", "type")  # keys after pooler_
BRACKETS = {"start": "[CLS]", "separator": "[SEP]", "mask": "[MASK]"}


def _names(
    prefix: str, body: tuple[Rule, ...], head: str, dense: str, norm: str, heads: Mapping[str, tuple[Rule, ...]]
) -> Names:
    """The names of an encoder whose language-model head has a dense map, a norm, a bias and a decoder."""
    words = (
        *both(f"{head}.{dense}", "heads.words.dense"),
        *both(f"{head}.{norm}", "heads.words.norm"),
        same(f"{head}.bias", "heads.words.bias"),
        *both(f"{head}.decoder", "heads.words.decoder"),  # only where the config says untied
    )
    return Names(
        prefix=prefix,
        body=body,
        heads={"words": words, **heads},
        tied=((f"{head}.decoder.weight", "tokens.weight"), (f"{head}.decoder.bias", "heads.words.bias")),
        spellings=((r"LayerNorm\.gamma$", "LayerNorm.weight"), (r"LayerNorm\.beta$", "LayerNorm.bias")),
    )


def _architectures(name: str, *pretrained: tuple[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Published classes and their heads; `pretrained` are those that not every family has."""
    heads = {"SequenceClassification": "classify", "MultipleChoice": "choose", "TokenClassification": "tag"}
    heads = {"MaskedLM": "words", **heads, "QuestionAnswering": "answer"}
    usual = {f"{name}For{kind}": (head,) for kind, head in heads.items()}
    return {**{f"{name}For{kind}": some for kind, some in pretrained}, **usual, f"{name}Model": ()}


BERT_HEADS = {"next": both("cls.seq_relationship", "heads.next.output"), **HEADS}
BERT_SIZES = {"tiny": (2, 128), "mini": (4, 256), "small": (4, 512), "medium": (8, 512), "base": (12, 768)}
BERT_SIZES["large"] = (24, 1024)
BERT: dict[str, Any] = {
    "trained": ("words", "next"),
    "names": _names("bert.", BODY, "cls.predictions", "transform.dense", "transform.LayerNorm", BERT_HEADS),
    "table": ConfigTable(
        read={**READ, "classifier_dropout": "head_dropout"},
        values=VALUES,
        fixed=ABSOLUTE,
        ignored=dict.fromkeys((f"pooler_{name}" for name in POOLER), UNUSED),
    ),
    "architectures": _architectures("Bert", ("PreTraining", ("words", "next")), ("NextSentencePrediction", ("next",))),
    "sizes": {
        f"bert-{name}": BertConfig(layers=layers, width=width, heads=width // 64, inner=4 * width)
        for name, (layers, width) in BERT_SIZES.items()
    },
    "tokenizer": "wordpiece",
    "specials": {"padding": "[PAD]", "unknown": "[UNK]", **BRACKETS},
    "around": "bert",
}

ROBERTA_SIZES: dict[str, Any] = {"base": {}, "large": {"layers": 24, "width": 1024, "heads": 16, "inner": 4096}}
DENSE = (*both("classifier.dense", "heads.classify.dense"), *both("classifier.out_proj", "heads.classify.output"))
ROBERTA: dict[str, Any] = {
    "names": _names("roberta.", BODY, "lm_head", "dense", "layer_norm", {**HEADS, "classify": DENSE}),
    "table": ConfigTable(
        read={**READ, "pad_token_id": "padding", "classifier_dropout": "head_dropout"},
        values=VALUES,
        fixed=ABSOLUTE,
        # 514 rows are a context of 512: the first is that of the place after the padding token's id, 1.
        counted_in={"max_position_embeddings": "padding"},
        absent={"max_position_embeddings": 512, "type_vocab_size": 2, "layer_norm_eps": 1e-12},
    ),
    "architectures": _architectures("Roberta"),
    "sizes": {
        "distilroberta-base": RobertaConfig(layers=6),
        **{f"roberta-{name}": RobertaConfig(**sizes) for name, sizes in ROBERTA_SIZES.items()},
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
    "sizes": {f"xlm-roberta-{name}": RobertaConfig(**XLM_STANDARD, **sizes) for name, sizes in ROBERTA_SIZES.items()},
    "tokenizer": "unigram",
    "standard": XLM_STANDARD,
}

ALBERT_HEADS = {"next": both("sop_classifier.classifier", "heads.next.output"), **HEADS}
ALBERT_SIZES = {"base": (12, 768, 12), "large": (24, 1024, 16), "xlarge": (24, 2048, 16), "xxlarge": (12, 4096, 64)}
ALBERT_BODY = (
    *EMBEDDINGS,
    *SEGMENTS,
    *both("encoder.embedding_hidden_mapping_in", "widened"),
    *layer(
        "encoder.albert_layer_groups.0.albert_layers.0",
        "layers.0",
        [f"attention.{name}" for name in MAPS],
        ("attention.dense", "attention.LayerNorm", "ffn", "ffn_output", "full_layer_layer_norm"),
    ),
    *both("pooler", "pooler.dense"),
)
ALBERT: dict[str, Any] = {
    "trained": ("words", "next"),
    "names": _names("albert.", ALBERT_BODY, "predictions", "dense", "LayerNorm", ALBERT_HEADS),
    "table": ConfigTable(
        read={**READ, "embedding_size": "embedding_width", "classifier_dropout_prob": "head_dropout"},
        values=VALUES,
        fixed={"num_hidden_groups": 1, "inner_group_num": 1, **ABSOLUTE},  # all published sizes: one group, one layer
        absent={"hidden_size": 4096, "num_attention_heads": 64, "intermediate_size": 16384},
        ignored=dict.fromkeys(
            ("down_scale_factor", "gap_size", "layers_to_keep", "net_structure_type", "num_memory_blocks"), UNUSED
        ),
    ),
    "architectures": _architectures("Albert", ("PreTraining", ("words", "next"))),
    "sizes": {
        f"albert-{name}-v2": AlbertConfig(layers=layers, width=width, heads=heads, inner=4 * width)
        for name, (layers, width, heads) in ALBERT_SIZES.items()
    },
    "tokenizer": "unigram",
    "specials": {"padding": "<pad>", "unknown": "<unk>", **BRACKETS},
    "around": "albert",
}

DISTILBERT: dict[str, Any] = {
    "names": Names(
        prefix="distilbert.",
        body=(
            *EMBEDDINGS,
            *layer(
                "transformer.layer.{}",
                "layers.{}",
                [f"attention.{name}_lin" for name in "qkv"],
                ("attention.out_lin", "sa_layer_norm", "ffn.lin1", "ffn.lin2", "output_layer_norm"),
            ),
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

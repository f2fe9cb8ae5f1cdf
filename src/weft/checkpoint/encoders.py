"""How BERT, RoBERTa, XLM-RoBERTa, ALBERT, DistilBERT and DeBERTa are published: names, config keys, heads, sizes."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from weft.checkpoint.formats import ACTIVATIONS, ConfigTable, Names, Rule, Together, both, dropped, layer, same
from weft.errors import UserError, refuse, shown
from weft.models.deberta import DebertaConfig
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

DEBERTA_LAYER = "encoder.layer.{}.attention.self"
DEEP = {
    head: (*both("pooler.dense", f"heads.{head}.dense"), *both("classifier", f"heads.{head}.output"))
    for head in ("classify", "choose")
}
DEBERTA_HEADS = {
    "replaced": (
        *both("mask_predictions.dense", "heads.replaced.dense"),
        *both("mask_predictions.LayerNorm", "heads.replaced.norm"),
        *both("mask_predictions.classifier", "heads.replaced.output"),
    ),
    **HEADS,
    **DEEP,
}
DEBERTA_BODY = (
    *EMBEDDINGS,
    dropped("embeddings.position_embeddings.weight"),  # of the mask decoder alone, where inputs have no positions
    *SEGMENTS,
    *layer(
        "encoder.layer.{}",
        "layers.{}",
        [f"attention.self.{name}_proj" for name in MAPS],
        (
            "attention.output.dense",
            "attention.output.LayerNorm",
            "intermediate.dense",
            "output.dense",
            "output.LayerNorm",
        ),
    ),
    *both(f"{DEBERTA_LAYER}.pos_key_proj", "layers.{}.attention.distance_key"),
    *both(f"{DEBERTA_LAYER}.pos_query_proj", "layers.{}.attention.distance_query"),
    same("encoder.rel_embeddings.weight", "positions.distances.weight"),
    *both("encoder.LayerNorm", "positions.norm"),
    *(dropped(f"encoder.LayerNorm.{kind}") for kind in ("weight", "bias")),  # where there is nothing to norm
    *both("encoder.conv.conv", "layers.0.convolution.maps"),
    *both("encoder.conv.LayerNorm", "layers.0.convolution.norm"),
)
# What a key that is not there means.
DEBERTA_ABSENT: dict[str, Any] = {"vocab_size": 128100, "hidden_size": 1536, "num_hidden_layers": 24}
DEBERTA_ABSENT |= {"num_attention_heads": 24, "intermediate_size": 6144, "norm_rel_ebd": "none"}
DEBERTA_ABSENT |= {"relative_attention": False, "share_att_key": False, "position_biased_input": True}
SWITCHES = {"relative_attention", "share_att_key", "position_biased_input"}
COUNTED = {  # 0 or less: there is none
    "position_buckets": "position_buckets",
    "max_relative_positions": "farthest",
    "conv_kernel_size": "kernel",
}


def _as_stored(published: Mapping[str, Any], stored: Mapping[str, Tensor], where: str) -> dict[str, Any]:
    """A published config, checked for what only several keys together say."""
    width, heads = published.get("hidden_size", 1536), published.get("num_attention_heads", 24)
    for key in SWITCHES & set(published):
        refuse((type(published[key]) is not bool, f"{where}: {key} is {shown(str(published[key]))}, not true or false"))
    relative, terms = published.get("relative_attention", False), published.get("pos_att_type")
    other = [key for key in ("embedding_size", "pooler_hidden_size") if published.get(key, width) not in (None, width)]
    head = published.get("attention_head_size")
    uneven = head is not None and (type(head) is not int or type(heads) is not int or head * heads != width)
    stated = f"relative_attention is {relative}, and pos_att_type {shown(str(terms))}"
    refuse(
        (relative != bool(terms), f"{where}: {stated}; true is for c2p, p2c or both, false for neither"),
        (bool(other), f"{where}: {''.join(other[:1])} must be hidden_size, {shown(str(width))}"),
        (uneven, f"{where}: attention_head_size must be hidden_size / num_attention_heads, not {shown(str(head))}"),
    )
    # Both spellings of the word head are read, and the older one is written; the newer has always been tied.
    tied = {} if published.get("legacy") is not False else {"tie_word_embeddings": True}
    return {**published, "legacy": True, **tied}


def _deberta_fields(published: Mapping[str, Any]) -> dict[str, Any]:
    terms, normed = published.get("pos_att_type") or [], published["norm_rel_ebd"]
    if isinstance(terms, str):
        terms = [term.strip() for term in terms.lower().split("|")]
    if not isinstance(normed, str):
        raise UserError(f"norm_rel_ebd must be layer_norm or none, not {shown(str(normed))}")
    counts = {ours: published.get(theirs) for theirs, ours in COUNTED.items()}
    return {
        **{ours: None if type(count) is int and count < 1 else count for ours, count in counts.items()},
        "terms": terms,
        "shared_maps": published["share_att_key"],
        "relative_norm": "layer_norm" in [part.strip() for part in normed.lower().split("|")],
        "positions": "learned" if published["position_biased_input"] else "none",
    }


def _deberta_keys(config: DebertaConfig) -> dict[str, Any]:
    return {
        **{theirs: vars(config)[ours] or (0 if ours == "kernel" else -1) for theirs, ours in COUNTED.items()},
        "relative_attention": bool(config.terms),
        "pos_att_type": list(config.terms),
        "share_att_key": config.shared_maps,
        "norm_rel_ebd": "layer_norm" if config.relative_norm and config.terms else "none",
        "position_biased_input": config.positions == "learned",
    }


DEBERTA_SIZES: dict[str, dict[str, Any]] = {
    "deberta-v3-xsmall": {"width": 384, "heads": 6, "inner": 1536},
    "deberta-v3-small": {"layers": 6},
    "deberta-v3-base": {},
    "deberta-v3-large": {"layers": 24, "width": 1024, "heads": 16, "inner": 4096},
    "mdeberta-v3-base": {"vocabulary": 251000},
    "deberta-v2-xlarge": {"layers": 24},
    "deberta-v2-xxlarge": {"layers": 48},
}
for _name in ("deberta-v2-xlarge", "deberta-v2-xxlarge"):
    DEBERTA_SIZES[_name] |= {"width": 1536, "heads": 24, "inner": 6144, "kernel": 3, "kernel_activation": "gelu"}
_NAMES = _names("deberta.", DEBERTA_BODY, "cls.predictions", "transform.dense", "transform.LayerNorm", DEBERTA_HEADS)
DEBERTA: dict[str, Any] = {
    "model_type": "deberta-v2",
    "names": replace(
        _NAMES,
        spellings=(
            *_NAMES.spellings,
            (r"^lm_predictions\.lm_head\.bias$", "cls.predictions.bias"),
            (r"^lm_predictions\.lm_head\.", "cls.predictions.transform."),
            (r"^mask_predictions\.classifer\.", "mask_predictions.classifier."),
        ),
    ),
    "table": ConfigTable(
        read={
            **READ,
            "conv_act": "kernel_activation",
            "pooler_dropout": "pooler_dropout",
            "pooler_hidden_act": "pooler_activation",
            "cls_dropout": "head_dropout",
        },
        values={**VALUES, "conv_act": ACTIVATIONS, "pooler_hidden_act": ACTIVATIONS},
        fixed={"conv_groups": 1},
        absent=DEBERTA_ABSENT,
        ignored={
            "legacy": "only the names of the word head's tensors",
            **dict.fromkeys(("embedding_size", "pooler_hidden_size", "attention_head_size"), "checked with the width"),
            "summary_type": UNUSED,
        },
        together=Together(
            keys=(*COUNTED, *SWITCHES, "pos_att_type", "norm_rel_ebd"),
            fields=(*COUNTED.values(), "terms", "shared_maps", "relative_norm", "positions"),
            read=_deberta_fields,
            write=_deberta_keys,
            says=lambda config: config.positions in ("learned", "none"),
        ),
    ),
    "as_stored": _as_stored,
    # No library has classes for the last two; others read the encoder of such a folder.
    "architectures": {
        **_architectures("DebertaV2"),
        "DebertaV2ForReplacedTokenDetection": ("replaced",),
        "DebertaV2ForPreTraining": ("words", "replaced"),
    },
    "sizes": {name: DebertaConfig(**sizes) for name, sizes in DEBERTA_SIZES.items()},
    "tokenizer": "unigram",
    "specials": {"padding": "[PAD]", "start": "[CLS]", "separator": "[SEP]", "unknown": "[UNK]", "mask": "[MASK]"},
    "around": "debertav2",
}

"""How XLM is published: names, config keys, heads and sizes."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from weft.checkpoint.formats import ConfigTable, Names, Together, both, dropped, joined, same
from weft.checkpoint.xlnet import span_head
from weft.errors import UserError, shown
from weft.models.xlm import MAX_LANGUAGES, XlmConfig

UNUSED = "unused by the published code"
NAMES = Names(
    prefix="transformer.",
    body=(
        same("embeddings.weight", "tokens.weight"),
        same("position_embeddings.weight", "positions.table.weight"),
        same("lang_embeddings.weight", "languages.weight"),
        dropped("position_ids"),  # 0, 1, 2, ...
        *both("layer_norm_emb", "embedding_norm"),
        *joined([f"attentions.{{}}.{name}_lin" for name in "qkv"], "layers.{}.attention.qkv"),
        *both("attentions.{}.out_lin", "layers.{}.attention.output"),
        *both("layer_norm1.{}", "layers.{}.attention_norm"),
        *both("ffns.{}.lin1", "layers.{}.feedforward.up"),
        *both("ffns.{}.lin2", "layers.{}.feedforward.down"),
        *both("layer_norm2.{}", "layers.{}.feedforward_norm"),
    ),
    heads={
        "words": (
            same("pred_layer.proj.bias", "heads.words.bias"),
            same("pred_layer.proj.weight", "heads.words.decoder.weight"),  # only where the config says untied
        ),
        "classify": both("sequence_summary.summary", "heads.classify.output"),
        "choose": (
            *both("sequence_summary.summary", "heads.choose.dense"),
            *both("logits_proj", "heads.choose.output"),
        ),
        "tag": both("classifier", "heads.tag.output"),
        "answer": both("qa_outputs", "heads.answer.output"),
        "spans": span_head("qa_outputs."),
    },
    tied=(("pred_layer.proj.weight", "tokens.weight"),),
)
SUMMARY: dict[str, tuple[Any, ...]] = {
    "summary_type": ("first",),
    "summary_use_proj": (True,),
    "summary_activation": (None,),
    "summary_proj_to_labels": (True,),
}
KEYS = ("gelu_activation", "n_langs", "use_lang_emb", "lang2id", "id2lang", "num_labels")
FIELDS = ("activation", "languages", "language_embeddings", "choose_inner")


def _read(published: Mapping[str, Any]) -> dict[str, Any]:
    """Our fields for those keys of XLM that are not one field each."""
    gelu, several = published.get("gelu_activation", True), published.get("use_lang_emb", True)
    for name, value in (("gelu_activation", gelu), ("use_lang_emb", several)):
        if not isinstance(value, bool):
            raise UserError(f"{name} must be true or false, not {shown(str(value))!r}")
    return {
        "activation": "gelu" if gelu else "relu",
        "languages": _languages(published),
        "language_embeddings": several,
        "choose_inner": published.get("num_labels", 2),
    }


def _languages(published: Mapping[str, Any]) -> tuple[str, ...]:
    """The languages by id; their numbers where a config does not name them."""
    count, ids, back = published.get("n_langs", 1), published.get("lang2id"), published.get("id2lang")
    if type(count) is not int or not 1 <= count <= MAX_LANGUAGES:
        raise UserError(f"n_langs must be a number between 1 and {MAX_LANGUAGES}, not {shown(str(count))}")
    if ids is None:
        return () if count == 1 else tuple(map(str, range(count)))
    whole = isinstance(ids, dict) and all(isinstance(k, str) and type(v) is int for k, v in ids.items())
    if not whole or sorted(ids.values()) != list(range(count)):
        raise UserError(f"lang2id must give each of the {count} languages of n_langs a number from 0")
    names = tuple(sorted(ids, key=ids.__getitem__))
    if back is not None and back != {str(number): name for number, name in enumerate(names)}:
        raise UserError("lang2id and id2lang do not agree")
    return names


def _write(config: Any) -> dict[str, Any]:
    written: dict[str, Any] = {
        "gelu_activation": config.activation == "gelu",
        "n_langs": max(1, len(config.languages)),
        "use_lang_emb": config.language_embeddings,
    }
    if config.languages:
        written["lang2id"] = {name: number for number, name in enumerate(config.languages)}
        written["id2lang"] = {str(number): name for number, name in enumerate(config.languages)}
    return written if config.choose_inner == 2 else {**written, "num_labels": config.choose_inner}


def as_stored(published: Mapping[str, Any], stored: Mapping[str, Tensor], where: str) -> dict[str, Any]:
    """The config in today's spelling, with what only the tensors say: how wide the choose head is inside."""
    values = {key: value for key, value in published.items() if key != "num_labels"}
    if "n_words" in values:  # how older files spell it
        values.setdefault("vocab_size", values["n_words"])
    inner = stored.get("sequence_summary.summary.weight") if "logits_proj.weight" in stored else None
    return values if inner is None or inner.dim() != 2 else {**values, "num_labels": inner.shape[0]}


TABLE = ConfigTable(
    read={
        "vocab_size": "vocabulary",
        "max_position_embeddings": "context",
        "emb_dim": "width",
        "n_layers": "layers",
        "n_heads": "heads",
        "layer_norm_eps": "norm_epsilon",
        "dropout": "dropout",
        "attention_dropout": "attention_dropout",
        "summary_first_dropout": "head_dropout",
        "causal": "causal",
        "lang_id": "language",
        "tie_word_embeddings": "tied",
        "init_std": "weight_scale",
    },
    fixed={"asm": False, "is_encoder": True},
    of_heads={"classify": SUMMARY, "choose": SUMMARY},
    absent={"vocab_size": 30145, "emb_dim": 2048, "n_layers": 12, "n_heads": 16},
    together=Together(KEYS, FIELDS, _read, _write, lambda config: config.activation in ("gelu", "relu")),
    ignored={
        **dict.fromkeys(SUMMARY, "matters to the heads classify and choose alone"),
        **dict.fromkeys(("start_n_top", "end_n_top"), "more first and last tokens are paired"),
        **dict.fromkeys(("embed_init_std", "max_vocab", "min_count"), UNUSED),
        **dict.fromkeys(("bos_index", "eos_index", "pad_index", "unk_index", "mask_index"), "the tokenizer has them"),
        **{"mask_token_id": "the tokenizer has it", "n_words": "the same as vocab_size"},
        "sinusoidal_embeddings": "how the table of positions began; it is stored as any other",
    },
)
XNLI = tuple(["ar", "bg", "de", "el", "en", "es", "fr", "hi", "ru", "sw", "th", "tr", "ur", "vi", "zh"])
XLM: dict[str, Any] = {
    "paper": "Conneau and Lample, 2019",
    "config": XlmConfig,
    "names": NAMES,
    "table": TABLE,
    "as_stored": as_stored,
}
MASKED: dict[str, Any] = {
    "architectures": {
        "XLMWithLMHeadModel": ("words",),
        "XLMForSequenceClassification": ("classify",),
        "XLMForMultipleChoice": ("choose",),
        "XLMForTokenClassification": ("tag",),
        "XLMForQuestionAnsweringSimple": ("answer",),
        "XLMForQuestionAnswering": ("spans",),
        "XLMModel": (),
    },
    "sizes": {
        "xlm-mlm-ende-1024": XlmConfig(languages=("de", "en")),
        "xlm-mlm-tlm-xnli15-1024": XlmConfig(vocabulary=95000, layers=12, languages=XNLI),
        "xlm-mlm-en-2048": XlmConfig(vocabulary=30145, width=2048, layers=12, heads=16),
        "xlm-mlm-100-1280": XlmConfig(vocabulary=200000, width=1280, layers=16, heads=16, language_embeddings=False),
    },
    "specials": dict(start="<s>", end="</s>", padding="<pad>", unknown="<unk>", mask="<mask>", separator="</s>"),
    "around": "xlm",
    "causal": "xlm-clm",
    "standard": {"causal": False},
    "fixed": ("causal",),
}
# A causal model is published under the same model_type; its config says so. Its texts are summed up by their last
# token, for which there is no published class that knows texts of several lengths.
CAUSAL: dict[str, Any] = {
    "architectures": {
        "XLMWithLMHeadModel": ("words",),
        "XLMForTokenClassification": ("tag",),
        "XLMModel": (),
    },
    "sizes": {
        "xlm-clm-ende-1024": XlmConfig(languages=("de", "en"), causal=True),
    },
    "model_type": "xlm",
    "standard": {"causal": True},
    "fixed": ("causal",),
    "generates": True,
}

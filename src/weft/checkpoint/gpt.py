"""How GPT and GPT-2 are published: names, config keys, heads and sizes, those of GPT-3 too."""

from dataclasses import replace
from typing import Any

from weft.checkpoint.configs import ACTIVATIONS, ConfigTable
from weft.checkpoint.names import Names, Rule, both, dropped, same, transposed
from weft.models.gpt import GptConfig


def _conv(theirs: str, ours: str) -> tuple[Rule, Rule]:
    return transposed(f"{theirs}.weight", f"{ours}.weight"), same(f"{theirs}.bias", f"{ours}.bias")


LAYERS = (
    *_conv("h.{}.attn.c_attn", "layers.{}.attention.qkv"),
    *_conv("h.{}.attn.c_proj", "layers.{}.attention.output"),
    *both("h.{}.ln_1", "layers.{}.attention_norm"),
    *_conv("h.{}.mlp.c_fc", "layers.{}.feedforward.up"),
    *_conv("h.{}.mlp.c_proj", "layers.{}.feedforward.down"),
    *both("h.{}.ln_2", "layers.{}.feedforward_norm"),
    dropped("h.{}.attn.bias"),  # a causal mask, not a weight
    dropped("h.{}.attn.masked_bias"),  # minus infinity
)
HEADS = {
    "words": (same("lm_head.weight", "heads.words.decoder.weight"),),
    "classify": (same("score.weight", "heads.classify.output.weight"),),
    "choose": both("multiple_choice_head.summary", "heads.choose.output"),
    "tag": both("classifier", "heads.tag.output"),
    "answer": both("qa_outputs", "heads.answer.output"),
}

GPT2_NAMES = Names(
    prefix="transformer.",
    spellings=((r"^transformer\.", ""),),
    body=(
        same("wte.weight", "tokens.weight"),
        same("wpe.weight", "positions.table.weight"),
        *LAYERS,
        *both("ln_f", "final_norm"),
    ),
    heads=HEADS,
    tied=(("lm_head.weight", "tokens.weight"),),
)
GPT_NAMES = replace(
    GPT2_NAMES,
    body=(
        same("tokens_embed.weight", "tokens.weight"),
        same("positions_embed.weight", "positions.table.weight"),
        dropped("position_ids"),  # 0, 1, 2, ...
        *LAYERS,
    ),
    heads={name: HEADS[name] for name in ("words", "classify", "choose")},
)

SHARED = {
    "vocab_size": "vocabulary",
    "n_positions": "context",
    "n_embd": "width",
    "n_layer": "layers",
    "n_head": "heads",
    "layer_norm_epsilon": "norm_epsilon",
    "embd_pdrop": "embedding_dropout",
    "resid_pdrop": "dropout",
    "attn_pdrop": "attention_dropout",
    "tie_word_embeddings": "tied",
    "initializer_range": "weight_scale",
}
IGNORED = {
    **dict.fromkeys(
        ("summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels"),
        "matters to the choose head alone",
    ),
    "n_ctx": "the same as n_positions",
}
CHOOSE: dict[str, tuple[Any, ...]] = {
    "summary_type": ("cls_index", "last"),
    "summary_use_proj": (True,),
    "summary_activation": (None,),
    "summary_proj_to_labels": (True,),
}
GPT2_TABLE = ConfigTable(
    read={
        **SHARED,
        "n_inner": "inner",
        "activation_function": "activation",
        "summary_first_dropout": "head_dropout",
        "classifier_dropout": "tag_dropout",
    },
    values={"activation_function": ACTIVATIONS},
    fixed={"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False},
    of_heads={"choose": CHOOSE},
    ignored={**IGNORED, "reorder_and_upcast_attn": "a precision for training"},
)
GPT_TABLE = ConfigTable(
    read={**SHARED, "afn": "activation", "summary_first_dropout": "head_dropout"},
    # The published code means the tanh approximation where it says gelu.
    of_heads={"choose": CHOOSE},
    values={"afn": {"gelu": "gelu-tanh", "relu": "relu", "silu": "silu", "swish": "silu"}},
    ignored={**IGNORED, **dict.fromkeys(("predict_special_tokens", "n_special"), "unused by the published code")},
)


def _size(layers: int, width: int, heads: int, head_width: int | None = None, context: int = 1024) -> GptConfig:
    return GptConfig(layers=layers, width=width, heads=heads, head_width=head_width, context=context)


# In what GPT differs from the defaults of the config, which are GPT-2's.
GPT_STANDARD: dict[str, Any] = {"norm_place": "after", "vocabulary": 40478, "context": 512}
GPT: dict[str, Any] = {
    "names": GPT_NAMES,
    "table": GPT_TABLE,
    "architectures": {
        "OpenAIGPTDoubleHeadsModel": ("words", "choose"),
        "OpenAIGPTLMHeadModel": ("words",),
        "OpenAIGPTForSequenceClassification": ("classify",),
        "OpenAIGPTModel": (),
    },
    "sizes": {"openai-gpt": GptConfig(**GPT_STANDARD)},
    "standard": GPT_STANDARD,
}
GPT2: dict[str, Any] = {
    "names": GPT2_NAMES,
    "table": GPT2_TABLE,
    "architectures": {
        "GPT2DoubleHeadsModel": ("words", "choose"),
        "GPT2LMHeadModel": ("words",),
        "GPT2ForSequenceClassification": ("classify",),
        "GPT2ForTokenClassification": ("tag",),
        "GPT2ForQuestionAnswering": ("answer",),
        "GPT2Model": (),
    },
    "sizes": {
        "gpt2": _size(12, 768, 12),
        "gpt2-medium": _size(24, 1024, 16),
        "gpt2-large": _size(36, 1280, 20),
        "gpt2-xl": _size(48, 1600, 25),
        # Table 2.1 of Brown et al. (2020). XL's 24 heads of 128 are wider than the model; 13B is 5120 wide here, which
        # is 40 heads of 128, where the table prints 5140.
        "gpt3-small": _size(12, 768, 12, context=2048),
        "gpt3-medium": _size(24, 1024, 16, context=2048),
        "gpt3-large": _size(24, 1536, 16, context=2048),
        "gpt3-xl": _size(24, 2048, 24, head_width=128, context=2048),
        "gpt3-2.7b": _size(32, 2560, 32, context=2048),
        "gpt3-6.7b": _size(32, 4096, 32, context=2048),
        "gpt3-13b": _size(40, 5120, 40, context=2048),
        "gpt3-175b": _size(96, 12288, 96, context=2048),
    },
}

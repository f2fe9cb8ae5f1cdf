"""How GPT and GPT-2 (GPT-3's sizes too), T5 and its version 1.1, and Marian's translation models are published."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from weft.checkpoint.formats import ACTIVATIONS, ConfigTable, Names, Rule, Together, both, dropped, joined, layer, same
from weft.errors import UserError, shown
from weft.models.gpt import GptConfig
from weft.models.transformer import T5Config, TransformerConfig
from weft.models.xl import CLUSTERS, TransformerXLConfig

# ------------------------------------------------------------------------------------------------- GPT and GPT-2


def _conv(theirs: str, ours: str) -> tuple[Rule, Rule]:
    """A Conv1D, which stores its matrix the other way round."""
    return Rule((f"{theirs}.weight",), f"{ours}.weight", "transposed"), same(f"{theirs}.bias", f"{ours}.bias")


GPT_LAYERS = (
    *_conv("h.{}.attn.c_attn", "layers.{}.attention.qkv"),
    *_conv("h.{}.attn.c_proj", "layers.{}.attention.output"),
    *both("h.{}.ln_1", "layers.{}.attention_norm"),
    *_conv("h.{}.mlp.c_fc", "layers.{}.feedforward.up"),
    *_conv("h.{}.mlp.c_proj", "layers.{}.feedforward.down"),
    *both("h.{}.ln_2", "layers.{}.feedforward_norm"),
    dropped("h.{}.attn.bias"),  # a causal mask, not a weight
    dropped("h.{}.attn.masked_bias"),  # minus infinity
)
GPT_HEADS = {
    "words": (same("lm_head.weight", "heads.words.decoder.weight"),),
    "classify": (same("score.weight", "heads.classify.output.weight"),),
    "choose": both("multiple_choice_head.summary", "heads.choose.output"),
    "tag": both("classifier", "heads.tag.output"),
    "answer": both("qa_outputs", "heads.answer.output"),
}
GPT2_NAMES = Names(
    prefix="transformer.",
    body=(
        same("wte.weight", "tokens.weight"),
        same("wpe.weight", "positions.table.weight"),
        *GPT_LAYERS,
        *both("ln_f", "final_norm"),
    ),
    heads=GPT_HEADS,
    tied=(("lm_head.weight", "tokens.weight"),),
)
GPT_READ = {
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
CHOOSE: dict[str, tuple[Any, ...]] = {
    "summary_type": ("cls_index", "last"),
    "summary_use_proj": (True,),
    "summary_activation": (None,),
    "summary_proj_to_labels": (True,),
}
GPT_IGNORED = {**dict.fromkeys(CHOOSE, "matters to the choose head alone"), "n_ctx": "the same as n_positions"}

# In what GPT differs from the defaults of the config, which are GPT-2's.
GPT_STANDARD: dict[str, Any] = {"norm_place": "after", "vocabulary": 40478, "context": 512}
GPT: dict[str, Any] = {
    "names": replace(
        GPT2_NAMES,
        body=(
            same("tokens_embed.weight", "tokens.weight"),
            same("positions_embed.weight", "positions.table.weight"),
            dropped("position_ids"),  # 0, 1, 2, ...
            *GPT_LAYERS,
        ),
        heads={name: GPT_HEADS[name] for name in ("words", "classify", "choose")},
    ),
    "table": ConfigTable(
        read={**GPT_READ, "afn": "activation", "summary_first_dropout": "head_dropout"},
        # The published code means the tanh approximation where it says gelu.
        values={"afn": {"gelu": "gelu-tanh", "relu": "relu", "silu": "silu", "swish": "silu"}},
        of_heads={"choose": CHOOSE},
        ignored=GPT_IGNORED | dict.fromkeys(("predict_special_tokens", "n_special"), "unused by the published code"),
    ),
    "architectures": {
        "OpenAIGPTDoubleHeadsModel": ("words", "choose"),
        "OpenAIGPTLMHeadModel": ("words",),
        "OpenAIGPTForSequenceClassification": ("classify",),
        "OpenAIGPTModel": (),
    },
    "sizes": {"openai-gpt": GptConfig(**GPT_STANDARD)},
    "standard": GPT_STANDARD,
    "generates": True,
}

GPT2_SIZES = {"gpt2": (12, 768, 12), "gpt2-medium": (24, 1024, 16), "gpt2-large": (36, 1280, 20)}
GPT2_SIZES |= {"gpt2-xl": (48, 1600, 25)}
# Table 2.1 of Brown et al. (2020). XL's 24 heads of 128 are wider than the model; 13B is 5120 wide here, which is 40
# heads of 128, where the table prints 5140.
GPT3_SIZES = {"small": (12, 768, 12), "medium": (24, 1024, 16), "large": (24, 1536, 16), "xl": (24, 2048, 24)}
GPT3_SIZES |= {"2.7b": (32, 2560, 32), "6.7b": (32, 4096, 32), "13b": (40, 5120, 40), "175b": (96, 12288, 96)}
GPT2: dict[str, Any] = {
    "generates": True,
    "names": GPT2_NAMES,
    "table": ConfigTable(
        read={
            **GPT_READ,
            "n_inner": "inner",
            "activation_function": "activation",
            "summary_first_dropout": "head_dropout",
            "classifier_dropout": "tag_dropout",
        },
        values={"activation_function": ACTIVATIONS},
        fixed={"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False},
        of_heads={"choose": CHOOSE},
        ignored={**GPT_IGNORED, "reorder_and_upcast_attn": "a precision for training"},
    ),
    "architectures": {
        "GPT2DoubleHeadsModel": ("words", "choose"),
        "GPT2LMHeadModel": ("words",),
        "GPT2ForSequenceClassification": ("classify",),
        "GPT2ForTokenClassification": ("tag",),
        "GPT2ForQuestionAnswering": ("answer",),
        "GPT2Model": (),
    },
    "sizes": {
        **{
            name: GptConfig(layers=layers, width=width, heads=heads)
            for name, (layers, width, heads) in GPT2_SIZES.items()
        },
        **{
            f"gpt3-{name}": GptConfig(
                layers=layers, width=width, heads=heads, head_width=128 if name == "xl" else None, context=2048
            )
            for name, (layers, width, heads) in GPT3_SIZES.items()
        },
    },
}

# ------------------------------------------------------------------------------------------------------------ T5


def _stack(stack: str, gated: bool) -> tuple[Rule, ...]:
    """The encoder's or the decoder's layers; the first of two maps of a gated network is the one with the gate."""
    theirs, ours, parts = f"{stack}.block.{{}}.layer", f"{stack}.{{}}", 2 if stack == "decoder" else 1
    attention, feedforward, cross = f"{theirs}.0.SelfAttention", f"{theirs}.{parts}", f"{theirs}.1.EncDecAttention"
    wide, only = ("wi_0", "wi_1") if gated else ("wi",), ("weight",)
    same_names = {
        f"{attention}.o": f"{ours}.attention.output",
        f"{theirs}.0.layer_norm": f"{ours}.attention_norm",
        f"{feedforward}.DenseReluDense.wo": f"{ours}.feedforward.down",
        f"{feedforward}.layer_norm": f"{ours}.feedforward_norm",
        f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias": f"{stack}_positions.table",
        f"{stack}.final_layer_norm": f"{stack}_norm",
    }
    rules = [
        *joined([f"{attention}.{name}" for name in "qkv"], f"{ours}.attention.qkv", only),
        *joined([f"{feedforward}.DenseReluDense.{name}" for name in wide], f"{ours}.feedforward.up", only),
    ]
    if stack == "decoder":
        names = {f"{cross}.q": "cross.query", f"{cross}.o": "cross.output", f"{theirs}.1.layer_norm": "cross_norm"}
        same_names |= {name: f"{ours}.{own}" for name, own in names.items()}
        rules += joined([f"{cross}.{name}" for name in "kv"], f"{ours}.cross.key_value", only)
    return (*rules, *(same(f"{name}.weight", f"{own}.weight") for name, own in same_names.items()))


def _t5_names(gated: bool) -> Names:
    copies = ("lm_head.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
    return Names(
        body=(
            same("shared.weight", "tokens.weight"),
            *_stack("encoder", gated),
            *_stack("decoder", gated),
            # In the first files, and read by nobody: attention to another text has no distances.
            dropped("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"),
        ),
        heads={"words": (same("lm_head.weight", "heads.words.decoder.weight"),)},
        tied=tuple((name, "tokens.weight") for name in copies),
    )


def as_stored(published: Mapping[str, Any], stored: Mapping[str, Tensor], where: str) -> dict[str, Any]:
    """A published config of T5 with the values that its writers leave out."""
    config = dict(published)
    tied, scaled = config.get("tie_word_embeddings"), config.get("scale_decoder_outputs")
    # Before there was a key for it, a model whose tables are apart was one whose scores are not scaled.
    config["scale_decoder_outputs"] = tied is not False if scaled is None else scaled
    own, shared = stored.get("lm_head.weight"), stored.get("shared.weight")
    if scaled is not None and own is not None and shared is not None and own.shape == shared.shape:
        # Whoever writes that key says of every model that its tables are tied; the tensors say whether they are.
        config["tie_word_embeddings"] = tied is not False and torch.equal(own, shared)
    if config.get("decoder_start_token_id") is None:
        config["decoder_start_token_id"] = config.get("pad_token_id")
    bent, activation = str(config.get("feed_forward_proj") or "relu"), config.get("dense_act_fn")
    means = {"gated-gelu": "gelu_new"}.get(bent, bent.removeprefix("gated-"))
    if activation not in (None, means):
        raise UserError(f"{where}: dense_act_fn is {shown(str(activation))}, which {shown(bent)} does not mean")
    return config


# What is published as gated-gelu has always meant the tanh approximation, and gelu alone the exact one.
T5_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu_new": "gelu-tanh", "silu": "silu", "tanh": "tanh"}
T5_ACTIVATIONS |= {"gated-gelu": "gated-gelu-tanh", "gated-silu": "gated-silu"}
# Layers, width, heads, inner width, and the width of a head.
T5_SIZES = {"small": (6, 512, 8, 2048, 64), "base": (12, 768, 12, 3072, 64), "large": (24, 1024, 16, 4096, 64)}
T5_SIZES |= {"3b": (24, 1024, 32, 16384, 128), "11b": (24, 1024, 128, 65536, 128)}
GATED: dict[str, Any] = {"activation": "gated-gelu-tanh", "tied": False, "scaled": False}
GATED_SIZES = {"small": (8, 512, 6, 1024, 64), "base": (12, 768, 12, 2048, 64), "large": (24, 1024, 16, 2816, 64)}
GATED_SIZES |= {"xl": (24, 2048, 32, 5120, 64), "xxl": (24, 4096, 64, 10240, 64)}
T5: dict[str, Any] = {
    "names": _t5_names(gated=False),
    "gated_names": _t5_names(gated=True),
    "table": ConfigTable(
        read={
            "vocab_size": "vocabulary",
            "n_positions": "context",
            "d_model": "width",
            "num_layers": "layers",
            "num_decoder_layers": "decoder_layers",
            "num_heads": "heads",
            "d_kv": "head_width",
            "d_ff": "inner",
            "feed_forward_proj": "activation",
            "relative_attention_num_buckets": "buckets",
            "relative_attention_max_distance": "farthest",
            "layer_norm_epsilon": "norm_epsilon",
            "dropout_rate": "dropout",
            "tie_word_embeddings": "tied",
            "scale_decoder_outputs": "scaled",
            "decoder_start_token_id": "begin",
            "initializer_factor": "weight_scale",
        },
        values={"feed_forward_proj": T5_ACTIVATIONS},
        fixed={"is_encoder_decoder": True},
        ignored={
            "is_gated_act": "feed_forward_proj says it",
            "dense_act_fn": "feed_forward_proj says it, and is compared with it",
            "classifier_dropout": "for another library's head",
        },
    ),
    "as_stored": as_stored,
    "architectures": {"T5ForConditionalGeneration": ("words",), "T5Model": ()},
    "sizes": {
        f"{name}-{size}": T5Config(layers=layers, width=width, heads=heads, inner=inner, head_width=head_width, **more)
        for name, sizes, more in (("t5", T5_SIZES, {}), ("t5-v1.1", GATED_SIZES, GATED))
        for size, (layers, width, heads, inner, head_width) in sizes.items()
    },
    "specials": {"padding": "<pad>", "end": "</s>", "unknown": "<unk>"},
    "task": "fill",
    "begins": "padding",
    "sentinels": 100,  # tokens that stand for gaps: <extra_id_0> is the last of a vocabulary
}

# -------------------------------------------------------------------------------------------------------- Marian

# Where what is read has a table of its own, both tables stand with their side; else there is one, with copies.
APART = "source_tokens.weight"
CROSS = "decoder.layers.{}.encoder_attn"
SIDES = ("encoder", "decoder")
MARIAN_NAMES = Names(
    prefix="model.",
    body=(
        same("shared.weight", "tokens.weight", without=APART),
        same("decoder.embed_tokens.weight", "tokens.weight", beside=APART),
        same("encoder.embed_tokens.weight", APART, beside=APART),
        dropped("shared.weight", beside=APART),  # a third table that nothing reads
        *(dropped(f"{side}.embed_positions.weight") for side in SIDES),  # sinusoids
        *(
            rule
            for side in SIDES
            for rule in layer(
                f"{side}.layers.{{}}",
                f"{side}.{{}}",
                [f"self_attn.{name}_proj" for name in "qkv"],
                ("self_attn.out_proj", "self_attn_layer_norm", "fc1", "fc2", "final_layer_norm"),
            )
        ),
        *both(f"{CROSS}.q_proj", "decoder.{}.cross.query"),
        *joined([f"{CROSS}.{name}_proj" for name in "kv"], "decoder.{}.cross.key_value"),
        *both(f"{CROSS}.out_proj", "decoder.{}.cross.output"),
        *both("decoder.layers.{}.encoder_attn_layer_norm", "decoder.{}.cross_norm"),
    ),
    heads={
        "words": (
            Rule(("final_logits_bias",), "heads.words.bias", "row"),
            same("lm_head.weight", "heads.words.decoder.weight", beside="heads.words.decoder.weight"),
        )
    },
    tied=(
        ("encoder.embed_tokens.weight", "tokens.weight"),
        ("decoder.embed_tokens.weight", "tokens.weight"),
        ("lm_head.weight", "tokens.weight"),
    ),
)
PAIRS = {"layers": "{}_layers", "heads": "{}_attention_heads", "inner": "{}_ffn_dim"}  # of the encoder, the decoder
ABSENT: dict[str, Any] = {  # what transformers takes a key to mean that is not there
    **{
        PAIRS[name].format(side): size
        for side in SIDES
        for name, size in (("layers", 12), ("heads", 16), ("inner", 4096))
    },
    "vocab_size": 58101,
    "max_position_embeddings": 1024,
    "d_model": 1024,
    "activation_function": "gelu",
    "scale_embedding": False,
    "dropout": 0.1,
    "init_std": 0.02,
    "decoder_start_token_id": 58100,
    "share_encoder_decoder_embeddings": True,
    "tie_word_embeddings": True,
}


def _read(published: Mapping[str, Any]) -> dict[str, Any]:
    """Our fields for those keys of Marian that are not one field each."""
    sizes: dict[str, Any] = {"dropout": published["dropout"], "embedding_dropout": published["dropout"]}
    for ours, theirs in PAIRS.items():
        mine, other = published[theirs.format("encoder")], published[theirs.format("decoder")]
        sizes |= {ours: mine, f"decoder_{ours}": None if other == mine else other}
    for name in ("share_encoder_decoder_embeddings", "tie_word_embeddings"):
        if not isinstance(published[name], bool):
            raise UserError(f"{name} must be true or false, not {shown(str(published[name]))!r}")
    shared, words = published["share_encoder_decoder_embeddings"], published["tie_word_embeddings"]
    size = published["vocab_size"]
    written = published.get("decoder_vocab_size") or size
    if shared and written != size:
        raise UserError(
            f"share_encoder_decoder_embeddings needs one vocabulary, not {shown(str(size))} and {shown(str(written))}"
        )
    # Without tied words transformers shares no table at all: each side has its own, of one vocabulary.
    sizes["tied"] = "none" if not words else "all" if shared else "decoder"
    sizes |= {"vocabulary": written, "source_vocabulary": None if written == size else size}
    return sizes | {"weight_scale": published["init_std"]}


def _write(config: TransformerConfig) -> dict[str, Any]:
    """The keys of Marian that are not one field of ours each."""
    inner = config.inner or 4 * config.width
    sizes = {
        "layers": (config.layers, config.decoder_layers or config.layers),
        "heads": (config.heads, config.decoder_heads or config.heads),
        "inner": (inner, config.decoder_inner or inner),
    }
    return {
        "vocab_size": config.source_vocabulary or config.vocabulary,
        "decoder_vocab_size": config.vocabulary,
        "share_encoder_decoder_embeddings": config.tied == "all",
        "tie_word_embeddings": config.tied != "none",
        "dropout": config.dropout,
        "init_std": ABSENT["init_std"] if config.weight_scale is None else config.weight_scale,
        **{
            PAIRS[name].format(side): size
            for name, both in sizes.items()
            for side, size in zip(SIDES, both, strict=True)
        },
    }


# What the published code once could do otherwise, and no published model does.
OLD = {"static_position_embeddings": True, "normalize_before": False, "normalize_embedding": False}
OLD |= {"add_final_layer_norm": False}
# In what Marian's models differ from the defaults of the config, which are the paper's.
STANDARD: dict[str, Any] = {"vocabulary": 58101, "context": 512, "activation": "silu", "word_bias": True}
STANDARD |= {"positions": "sinusoidal-halves"}
MARIAN: dict[str, Any] = {
    "begins": "padding",
    "never": ("padding",),
    "names": MARIAN_NAMES,
    "table": ConfigTable(
        read={
            "max_position_embeddings": "context",
            "d_model": "width",
            "activation_function": "activation",
            "attention_dropout": "attention_dropout",
            "activation_dropout": "inner_dropout",
            "scale_embedding": "scaled",
            "decoder_start_token_id": "begin",
        },
        values={"activation_function": {"swish": "silu", **ACTIVATIONS}},
        fixed={"is_encoder_decoder": True, **OLD},
        ignored={
            **dict.fromkeys(("encoder_layerdrop", "decoder_layerdrop"), "leaves layers out in training alone"),
            **dict.fromkeys(("add_bias_logits", "extra_pos_embeddings", "num_hidden_layers"), "the other keys say it"),
            **dict.fromkeys(("classif_dropout", "classifier_dropout", "_num_labels"), "for an unpublished head"),
            "force_bos_token_to_be_generated": "how to decode is asked for at run time",
        },
        absent=ABSENT,
        together=Together(
            keys=(
                *("vocab_size", "decoder_vocab_size", "share_encoder_decoder_embeddings", "tie_word_embeddings"),
                *("dropout", "init_std"),
                *(name.format(side) for name in PAIRS.values() for side in SIDES),
            ),
            fields=(
                *("vocabulary", "source_vocabulary", "tied", "dropout", "embedding_dropout", "weight_scale"),
                *(f"{side}{name}" for name in PAIRS for side in ("", "decoder_")),
            ),
            read=_read,
            write=_write,
            says=lambda config: config.dropout == config.embedding_dropout,
        ),
    ),
    "architectures": {"MarianMTModel": ("words",), "MarianModel": ()},
    "sizes": {"opus-mt": TransformerConfig(**STANDARD, begin=58100)},  # as opus-mt-en-de is published
    "standard": STANDARD,
}

# ------------------------------------------------------------------------------------------------ Transformer-XL

XL_LAYERS = (
    same("layers.{}.dec_attn.qkv_net.weight", "layers.{}.attention.qkv.weight"),
    same("layers.{}.dec_attn.r_net.weight", "layers.{}.attention.distance.weight"),
    same("layers.{}.dec_attn.o_net.weight", "layers.{}.attention.output.weight"),
    same("layers.{}.dec_attn.r_w_bias", "layers.{}.attention.content_bias"),
    same("layers.{}.dec_attn.r_r_bias", "layers.{}.attention.distance_bias"),
    *both("layers.{}.dec_attn.layer_norm", "layers.{}.attention_norm"),
    *both("layers.{}.pos_ff.CoreNet.0", "layers.{}.feedforward.up"),
    *both("layers.{}.pos_ff.CoreNet.3", "layers.{}.feedforward.down"),
    *both("layers.{}.pos_ff.layer_norm", "layers.{}.feedforward_norm"),
)
XL_NAMES = Names(
    prefix="transformer.",
    body=(
        same("word_emb.emb_layers.0.weight", "tokens.weight"),
        same("word_emb.emb_layers.{}.weight", "tokens.tails.{}.weight"),
        same("word_emb.emb_projs.{}", "tokens.maps.{}"),
        same("r_w_bias", "positions.content_bias"),
        same("r_r_bias", "positions.distance_bias"),
        dropped("pos_emb.inv_freq"),  # frequencies that anyone can work out
        *XL_LAYERS,
        # Where all layers share their biases, each is stored with them once more.
        dropped("layers.{}.dec_attn.r_w_bias", "positions.content_bias"),
        dropped("layers.{}.dec_attn.r_r_bias", "positions.content_bias"),
    ),
    heads={
        "words": (
            same("crit.out_layers.0.weight", "heads.words.decoder.weight"),
            same("crit.out_layers.0.bias", "heads.words.bias"),
            same("crit.out_layers.{}.bias", "heads.words.biases.{}"),
            same("crit.out_projs.{}", "heads.words.maps.{}"),
            same("crit.cluster_weight", "heads.words.cluster_weight"),
            same("crit.cluster_bias", "heads.words.cluster_bias"),
        ),
        "classify": (same("score.weight", "heads.classify.output.weight"),),
        "tag": both("classifier", "heads.tag.output"),
    },
    tied=(
        ("crit.out_layers.0.weight", "tokens.weight"),
        *((f"crit.out_layers.{number}.weight", f"tokens.tails.{number}.weight") for number in range(1, CLUSTERS + 1)),
        *((f"crit.out_projs.{number}", f"tokens.maps.{number}") for number in range(1, CLUSTERS + 1)),
    ),
)
XL_WT103 = TransformerXLConfig(
    vocabulary=267735,
    width=1024,
    layers=18,
    heads=16,
    inner=4096,
    segment=128,
    memory=1600,
    clamp=1000,
    same_length=True,
    blank=True,
    cutoffs=(20000, 40000, 200000),
    shrink=4,
)


def _read_xl(published: Mapping[str, Any]) -> dict[str, Any]:
    """Fields that several keys say together, or in other words."""
    clamp, before = published.get("clamp_len", 1000), published.get("pre_lnorm", False)
    cutoffs, shared = published.get("cutoffs", list(XL_WT103.cutoffs)), published.get("proj_share_all_but_first", True)
    ties = published.get("tie_projs")  # says it of each cluster; the other key is only read by the class
    if isinstance(ties, list) and cutoffs:
        shared = ties[-1]
    if type(clamp) is not int or type(before) is not bool or type(shared) is not bool or not isinstance(cutoffs, list):
        raise UserError("clamp_len, pre_lnorm, proj_share_all_but_first or cutoffs has a wrong type")
    if ties is not None and ties != [False, *[shared] * len(cutoffs)]:
        raise UserError(f"tie_projs is {shown(str(ties))}; only [false, {str(shared).lower()}, ...] is supported")
    return {
        "clamp": clamp if clamp > 0 else None,
        "norm_place": "before" if before else "after",
        "final_norm": not before,
        "cutoffs": cutoffs,
        "shared_maps": shared,
        "shared_biases": not published.get("untie_r", True),
        "embedding_width": published.get("d_embed", 1024),
        "head_width": published.get("d_head", 64),
        "inner": published.get("d_inner", 4096),
        "memory": published.get("mem_len", 1600),
        "blank": True,
    }


def _write_xl(config: Any) -> dict[str, Any]:
    return {
        "d_embed": config.embedding_width or config.width,
        "d_head": config.head_width or config.width // config.heads,
        "d_inner": config.inner or 4 * config.width,
        "mem_len": config.memory_size,
        "clamp_len": -1 if config.clamp is None else config.clamp,
        "pre_lnorm": config.norm_place == "before",
        "cutoffs": list(config.cutoffs),
        "proj_share_all_but_first": config.shared_maps,
        "tie_projs": [False, *[config.shared_maps] * len(config.cutoffs)],
        "untie_r": not config.shared_biases,
    }


TRANSFORMER_XL: dict[str, Any] = {
    "model_type": "transfo-xl",
    "generates": True,
    "names": XL_NAMES,
    "table": ConfigTable(
        read={
            "vocab_size": "vocabulary",
            "d_model": "width",
            "n_layer": "layers",
            "n_head": "heads",
            "tgt_len": "segment",
            "div_val": "shrink",
            "same_length": "same_length",
            "layer_norm_epsilon": "norm_epsilon",
            "dropout": "dropout",
            "dropatt": "attention_dropout",
            "tie_word_embeddings": "tied",
            "init_std": "weight_scale",
        },
        # What the published class means by a key that is not there.
        absent={
            **{"vocab_size": 267735, "d_model": 1024, "n_layer": 18, "n_head": 16, "div_val": 4, "same_length": True},
        },
        fixed={"attn_type": 0, "sample_softmax": -1, "adaptive": True},
        ignored={
            **dict.fromkeys(("init", "init_range", "proj_init_std"), "for fresh weights alone"),
            **{"ext_len": "unused by the published code", "tie_weight": "older; tie_word_embeddings says it"},
        },
        together=Together(
            keys=(
                *("d_embed", "d_head", "d_inner", "mem_len", "clamp_len", "pre_lnorm", "cutoffs", "tie_projs"),
                *("proj_share_all_but_first", "untie_r"),
            ),
            fields=(
                *("embedding_width", "head_width", "inner", "memory", "clamp", "norm_place", "final_norm", "cutoffs"),
                *("shared_maps", "shared_biases", "blank"),
            ),
            read=_read_xl,
            write=_write_xl,
            # Shared biases are stored with every layer, and read from there alone.
            says=lambda config: (
                config.blank and config.final_norm == (config.norm_place == "after") and not config.shared_biases
            ),
        ),
    ),
    "architectures": {
        "TransfoXLLMHeadModel": ("words",),
        "TransfoXLForSequenceClassification": ("classify",),
        "TransfoXLModel": (),
    },
    "sizes": {"transfo-xl-wt103": XL_WT103},
}

"""Every family in one table: parity and contracts run over all of it, and a new family joins with one entry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

from weft.checkpoint.families import FAMILIES


@dataclass(frozen=True)
class Case:
    """How a small model of one family is made, here and by the peer."""

    family: str
    # (vocabulary, context, width, layers, heads, inner) -> the peer's config; None: nobody else has this family, or it
    # reads and writes, and stands beside its peer in parity/test_sequences.py or parity/test_t5.py
    peer: Callable[..., Any] | None
    heads: dict[str, tuple[str, ...]]  # the peer's class -> our heads
    segments: bool = False
    channel: str = "token_type_ids"  # in which the peer is given segments
    single: str = ""  # the peer's class that takes its softmax in float32 even in float64; there it is given double
    pads_left: bool = False  # the peer's heads of whole texts read the last place of a batch
    small: dict[str, Any] = field(default_factory=dict)
    size: str | None = "1x64"  # None: it has no layers

    def config(self, **sizes: Any) -> Any:
        usual = {"vocabulary": 101, "context": 40, "width": 48, "layers": 2, "heads": 3, "inner": 192}
        family = FAMILIES[self.family]
        usual = {name: size for name, size in usual.items() if name in {f.name for f in fields(family.config)}}
        values = {**family.standard, **usual, **self.small, **sizes}
        if family.counts:  # a table holds every word, and no more n-grams than half of those that there can be
            entries = [values["vocabulary"]]
            for size in values["entries"][1:]:
                entries.append(min(size, entries[-1] * values["vocabulary"] // 2))
            values["entries"] = tuple(entries)
        return family.config(**values)


def bert(vocabulary: int, context: int, width: int, layers: int, heads: int, inner: int) -> Any:
    from transformers import BertConfig

    return BertConfig(
        vocab_size=vocabulary,
        max_position_embeddings=context,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=inner,
    )


def gpt2(vocabulary: int, context: int, width: int, layers: int, heads: int, inner: int) -> Any:
    from transformers import GPT2Config

    sizes = {"n_positions": context, "n_embd": width, "n_layer": layers, "n_head": heads, "n_inner": inner}
    return GPT2Config(vocab_size=vocabulary, pad_token_id=0, bos_token_id=None, eos_token_id=None, **sizes)


def openai_gpt(vocabulary: int, context: int, width: int, layers: int, heads: int, inner: int) -> Any:
    from transformers import OpenAIGPTConfig

    assert inner == 4 * width
    sizes = {"n_positions": context, "n_embd": width, "n_layer": layers, "n_head": heads}
    return OpenAIGPTConfig(vocab_size=vocabulary, pad_token_id=0, **sizes)


def roberta(
    vocabulary: int, context: int, width: int, layers: int, heads: int, inner: int, kind: str = "RobertaConfig"
) -> Any:
    """As published: the table of positions is longer than the context by the padding token's id and one more."""
    import transformers

    return getattr(transformers, kind)(
        vocab_size=vocabulary,
        max_position_embeddings=context + 2,
        type_vocab_size=1,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=inner,
        layer_norm_eps=1e-5,
    )


def albert(vocabulary: int, context: int, width: int, layers: int, heads: int, inner: int) -> Any:
    from transformers import AlbertConfig

    return AlbertConfig(
        vocab_size=vocabulary,
        max_position_embeddings=context,
        embedding_size=24,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=inner,
    )


def distilbert(vocabulary: int, context: int, width: int, layers: int, heads: int, inner: int) -> Any:
    from transformers import DistilBertConfig

    sizes = {"max_position_embeddings": context, "dim": width, "n_layers": layers, "n_heads": heads}
    return DistilBertConfig(vocab_size=vocabulary, hidden_dim=inner, **sizes)


def deberta(vocabulary: int, context: int, width: int, layers: int, heads: int, inner: int, **more: Any) -> Any:
    """As v3 is published; `more`: of v2, or of nobody."""
    from transformers import DebertaV2Config

    settings: dict[str, Any] = {
        "relative_attention": True, "position_buckets": 6, "norm_rel_ebd": "layer_norm", "share_att_key": True,
        "pos_att_type": ["p2c", "c2p"], "position_biased_input": False, "pooler_hidden_size": width,
    }  # fmt: skip
    return DebertaV2Config(
        vocab_size=vocabulary,
        max_position_embeddings=context,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=inner,
        **{**settings, **more},
    )


def xlm(vocabulary: int, context: int, width: int, layers: int, heads: int, inner: int, causal: bool = False) -> Any:
    """A causal one has a single language: without a second, none is added, as where its peer is given none."""
    from transformers import XLMConfig

    assert inner == 4 * width
    languages = {} if causal else {"n_langs": 2, "lang2id": {"en": 0, "de": 1}, "id2lang": {"0": "en", "1": "de"}}
    sizes = {"max_position_embeddings": context, "emb_dim": width, "n_layers": layers, "n_heads": heads}
    return XLMConfig(vocab_size=vocabulary, causal=causal, pad_token_id=0, **sizes, **languages)


def xlnet(vocabulary: int, context: int, width: int, layers: int, heads: int, inner: int) -> Any:
    from transformers import XLNetConfig

    sizes = {"d_model": width, "n_layer": layers, "n_head": heads, "d_inner": inner}
    return XLNetConfig(vocab_size=vocabulary, mem_len=7, **sizes)


def without_spans(family: str) -> dict[str, tuple[str, ...]]:
    """The published classes and their heads, but for the one whose peer gives its best answers only."""
    architectures = FAMILIES[family].architectures  # that one stands beside its peer in parity/test_span_head.py
    return {name: heads for name, heads in architectures.items() if heads != ("spans",)}


CASES = {
    "bert": Case("bert", bert, dict(FAMILIES["bert"].architectures), segments=True),
    "roberta": Case("roberta", roberta, dict(FAMILIES["roberta"].architectures)),
    "xlm-roberta": Case(
        "xlm-roberta", partial(roberta, kind="XLMRobertaConfig"), dict(FAMILIES["xlm-roberta"].architectures)
    ),
    "albert": Case(
        "albert", albert, dict(FAMILIES["albert"].architectures), segments=True, small={"embedding_width": 24}
    ),
    "distilbert": Case("distilbert", distilbert, dict(FAMILIES["distilbert"].architectures)),
    "deberta": Case(
        "deberta",
        deberta,
        # No library has a class for the head of replaced-token detection.
        {name: heads for name, heads in FAMILIES["deberta"].architectures.items() if "replaced" not in heads},
        small={"position_buckets": 6},
    ),
    "xlm": Case(
        "xlm",
        xlm,
        without_spans("xlm"),
        segments=True,
        channel="langs",
        single="MultiHeadAttention",
        small={"inner": None, "languages": ("en", "de")},
    ),
    "xlm-clm": Case(
        "xlm-clm",
        partial(xlm, causal=True),
        dict(FAMILIES["xlm-clm"].architectures),
        single="MultiHeadAttention",
        small={"inner": None},
    ),
    "xlnet": Case("xlnet", xlnet, without_spans("xlnet"), segments=True, pads_left=True),
    "openai-gpt": Case(
        "openai-gpt", openai_gpt, dict(FAMILIES["openai-gpt"].architectures), small={"inner": None}
    ),  # always 4 x width, so its config does not say it
    "gpt2": Case("gpt2", gpt2, dict(FAMILIES["gpt2"].architectures)),
    "rnn": Case("rnn", None, {}),
    "lstm": Case("lstm", None, {}, small={"embedding_width": 24}),
    "gru": Case("gru", None, {}, small={"tied": False}),
    "transformer-xl": Case("transformer-xl", None, {}),  # its peer lives in parity/test_xl.py
    "elmo": Case("elmo", None, {}, small={"inner": 64, "filters": (4, 4, 4, 4, 4, 4, 4)}),
    "vectors": Case("vectors", None, {}, size=None),
    "ngram": Case("ngram", None, {}, size=None, small={"order": 4, "entries": (101, 900, 2000, 3000)}),
    "mlp": Case("mlp", None, {}, size=None),
    "cnn": Case("cnn", None, {}, size=None),
    "transformer": Case("transformer", None, {}),
    "marian": Case("marian", None, {}, small={"weight_scale": 0.1}),  # published folders have no word for Xavier's
    "t5": Case("t5", None, {}, small={"head_width": 20}),
    "seq2seq": Case("seq2seq", None, {}),
    "conv-seq2seq": Case("conv-seq2seq", None, {}),
    "vec2seq": Case("vec2seq", None, {}, small={"features": 12}),
    "forecaster": Case("forecaster", None, {}),
}
READERS = [name for name in CASES if FAMILIES[name].reads]  # encoder-decoders: contracts/test_sequences.py
WIDE = CASES["vec2seq"].config().features


def read_of(name: str, tokens: list[int]) -> Any:
    """A source of some family: the tokens themselves, or a vector that tells them apart."""
    return [[*(token / 16 for token in tokens), *[0.0] * (WIDE - len(tokens))]] if FAMILIES[name].numbers else tokens


# Families that read numbers step by step have contracts of their own: models/test_forecaster.py.
PLAIN = [name for name in CASES if name not in READERS and not FAMILIES[name].series]
PEERED = [name for name, case in CASES.items() if case.peer is not None]
ATTENTIVE = [name for name in PLAIN if CASES[name].config().heads]
PRUNABLE = [name for name in ATTENTIVE if FAMILIES[name].config.has("positions")]  # by their heads
LEARNED = [name for name in PLAIN if not FAMILIES[name].counts]  # by steps, so that they have gradients
SPEAKERS = [name for name in PLAIN if FAMILIES[name].generates]

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
    "openai-gpt": Case(
        "openai-gpt", openai_gpt, dict(FAMILIES["openai-gpt"].architectures), small={"inner": None}
    ),  # always 4 x width, so its config does not say it
    "gpt2": Case("gpt2", gpt2, dict(FAMILIES["gpt2"].architectures)),
    "rnn": Case("rnn", None, {}),
    "lstm": Case("lstm", None, {}, small={"embedding_width": 24}),
    "gru": Case("gru", None, {}, small={"tied": False}),
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
}
READERS = [name for name in CASES if FAMILIES[name].reads]  # encoder-decoders: contracts/test_sequences.py
WIDE = CASES["vec2seq"].config().features


def read_of(name: str, tokens: list[int]) -> Any:
    """A source of some family: the tokens themselves, or a vector that tells them apart."""
    return [[*(token / 16 for token in tokens), *[0.0] * (WIDE - len(tokens))]] if FAMILIES[name].numbers else tokens


PLAIN = [name for name in CASES if name not in READERS]
PEERED = [name for name, case in CASES.items() if case.peer is not None]
ATTENTIVE = [name for name in PLAIN if CASES[name].config().heads]
LEARNED = [name for name in PLAIN if not FAMILIES[name].counts]  # by steps, so that they have gradients
SPEAKERS = [name for name in PLAIN if FAMILIES[name].generates]

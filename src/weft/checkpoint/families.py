"""Every family in one table: its config, network, published names and sizes, and what it can do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from weft import plugins
from weft.checkpoint import decoders, encoders, xlm, xlnet
from weft.checkpoint.formats import ConfigTable, Names, is_published
from weft.checkpoint.locate import check_name
from weft.errors import UserError, listed, one_of
from weft.models.base import ModelConfig, Network
from weft.models.classifiers import Cnn, CnnConfig, Vectors, VectorsConfig
from weft.models.convolution import ConvSeq2Seq, ConvSeq2SeqConfig
from weft.models.deberta import Deberta, DebertaConfig
from weft.models.elmo import FILTERS, Elmo, ElmoConfig
from weft.models.encoders import (
    Albert,
    AlbertConfig,
    Bert,
    BertConfig,
    DistilBert,
    DistilBertConfig,
    Roberta,
    RobertaConfig,
)
from weft.models.forecaster import Forecaster, ForecasterConfig
from weft.models.gpt import Gpt, GptConfig
from weft.models.mlp import Mlp, MlpConfig
from weft.models.ngram import Ngram, NgramConfig
from weft.models.recurrent import RecurrentConfig, RecurrentNetwork
from weft.models.seq2seq import Seq2Seq, Seq2SeqConfig
from weft.models.transformer import T5, T5Config, Transformer, TransformerConfig
from weft.models.vec2seq import Vec2Seq, Vec2SeqConfig
from weft.models.xl import TransformerXL, TransformerXLConfig
from weft.models.xlm import Xlm
from weft.models.xlnet import Xlnet, XlnetConfig
from weft.nn.rows import Rows
from weft.plugins import broken, load_plugin


@dataclass(frozen=True, kw_only=True)
class Family:
    """One kind of model, and what it can do; a config that the published format cannot say has `weft-NAME`."""

    name: str
    model_type: str = ""  # as published; "": the name
    config: type[ModelConfig]
    network: type[Any]  # a Network
    paper: str = ""
    # its published format
    causal: str = ""  # the family of those of its models whose config says `causal`
    architectures: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # published class -> heads
    names: Names = Names()  # of tensors; without heads: our own names
    gated_names: Names | None = None  # where gated networks are published under other names
    table: ConfigTable = ConfigTable(read={})
    as_stored: Callable[[Mapping[str, Any], Mapping[str, Tensor], str], dict[str, Any]] | None = None  # its config
    # its sizes
    sizes: Mapping[str, Any] = field(default_factory=dict)  # configs by name
    standard: Mapping[str, Any] = field(default_factory=dict)  # fields that differ from the defaults of its config
    fixed: tuple[str, ...] = ()  # fields that make it this family and no other
    # its vocabulary
    tokenizer: str = "bpe"
    vocabulary: Mapping[str, Any] = field(default_factory=dict)  # settings of a vocabulary learned from text
    specials: Mapping[str, str] | None = None  # its special tokens by role, in the order of their ids
    around: str | None = None  # whose template puts them around a text and a pair
    begins: str = "start"  # the role of the token that generation begins from
    never: tuple[str, ...] = ()  # roles of the tokens that it never generates
    sentinels: int = 0  # tokens that stand for gaps, the last of a vocabulary
    # what it does
    task: str = ""  # of a model that is not fine-tuned; "": from what follows
    generates: bool = False  # text, token by token: a decoder or an encoder-decoder
    reads: bool = False  # an encoder-decoder: generates from a source
    both_ways: bool = False  # it generates, and its hidden states look both ways nevertheless (XLNet)
    numbers: bool = False  # the source is a vector, not a text
    series: bool = False  # it reads numbers step by step, and has no vocabulary
    counts: bool = False  # learned by counting, in one pass and without steps
    # how it learns
    trained: tuple[str, ...] = ("words",)  # the heads with which it is pre-trained
    aims: tuple[str, ...] = ()  # objectives of its own, the default first
    rows: str = "stream"  # how documents become rows in pre-training
    row: int | None = None  # tokens of a row there, where the context has no practical limit
    learning_rate: float = 5e-4  # the highest learning rate from random weights, of a network 768 wide
    base_rate: float | None = None  # that from pre-trained weights, in fine-tuning; None: that of a Transformer

    def __post_init__(self) -> None:
        if not self.names.heads:
            own = Names(heads=dict.fromkeys(self.network.HEADS, ()))
            object.__setattr__(self, "names", own)
        if not self.model_type:
            object.__setattr__(self, "model_type", self.name)
        if not self.task:
            usual = "translate" if self.reads else "complete" if self.generates else "fill" if self.trained else "embed"
            object.__setattr__(self, "task", usual)

    @property
    def one_way(self) -> bool:
        """Whether its hidden states know only what stands before them."""
        return self.generates and not self.both_ways

    @property
    def objectives(self) -> tuple[str, ...]:
        """The objectives of its pre-training, the default first."""
        if self.aims:
            return self.aims
        if self.reads:
            return ("spans",) if self.sentinels else ()
        if self.generates:
            return ("permutation",) if self.both_ways else ("next",)
        first = ("rtd",) if "replaced" in self.names.heads else ()
        pairs = ("mlm+nsp", "mlm+sop") if "next" in self.names.heads else ()
        return (*first, "mlm", *pairs, "tlm", "mlm+tlm")

    def names_of(self, config: Any) -> Names:
        """The names of the tensors of a model of these sizes."""
        return self.gated_names if self.gated_names and config.activation.startswith("gated-") else self.names

    def architecture(self, config: Any, heads: Iterable[str]) -> str | None:
        """The published class of this model and its heads; None where the published format has none."""
        if not self.architectures or not is_published(self.table, config, self.standard):
            return None
        return next((name for name, has in self.architectures.items() if set(has) == set(heads)), None)


# Of encoder-decoders, but for what their published formats have otherwise.
READER: dict[str, Any] = {
    "tokenizer": "unigram",
    "specials": {"padding": "<pad>", "end": "</s>", "unknown": "<unk>", "start": "<s>"},
    "around": "t5",
    "generates": True,
    "reads": True,
}
# Sutskever et al. (2014): what is read becomes one vector, and is read from its end. Bahdanau et al. (2015), RNNsearch:
# 1000 units in each direction. Luong et al. (2015): global attention, general, with input feeding, the source reversed.
SEQ2SEQ: dict[str, dict[str, Any]] = {
    "plain": dict(vocabulary=80000, source_vocabulary=160000, layers=4, bidirectional=False, attention="none"),
    "bahdanau": dict(vocabulary=30000, source_vocabulary=30000, layers=1, cell="gru", attention="additive"),
    "luong": dict(vocabulary=50000, source_vocabulary=50000, layers=4, bidirectional=False, dropout=0.2),
}
SEQ2SEQ["bahdanau"] |= {"embedding_width": 620}
SEQ2SEQ["luong"] |= {"feeding": True, "reverse": True}
RECURRENT = {
    "rnn": "Elman, 1990; Mikolov et al., 2010",
    "lstm": "Hochreiter and Schmidhuber, 1997; Zaremba et al., 2014",
    "gru": "Cho et al., 2014",
}
ZAREMBA = {"small": (200, 0.0, 0.1), "medium": (650, 0.5, 0.05), "large": (1500, 0.65, 0.04)}  # on the Penn Treebank
# Measured on Multi30k and on small texts: recurrent networks take larger steps than Transformers.
RECURRENT_RATE, SEQ2SEQ_RATE = 3e-3, 1e-3
UNTRAINED: dict[str, Any] = {"trained": (), "tokenizer": "word"}

FAMILIES = {
    family.name: family
    for family in (
        Family(name="bert", paper="Devlin et al., 2019", config=BertConfig, network=Bert, **encoders.BERT),
        Family(name="roberta", paper="Liu et al., 2019", config=RobertaConfig, network=Roberta, **encoders.ROBERTA),
        Family(
            name="xlm-roberta",
            paper="Conneau et al., 2020",
            config=RobertaConfig,
            network=Roberta,
            **encoders.XLM_ROBERTA,
        ),
        Family(name="albert", paper="Lan et al., 2020", config=AlbertConfig, network=Albert, **encoders.ALBERT),
        Family(
            name="distilbert",
            paper="Sanh et al., 2019",
            config=DistilBertConfig,
            network=DistilBert,
            **encoders.DISTILBERT,
        ),
        Family(
            name="deberta",
            paper="He et al., 2021; He et al., 2023",
            config=DebertaConfig,
            network=Deberta,
            **encoders.DEBERTA,
        ),
        Family(name="xlm", network=Xlm, **xlm.XLM, **xlm.MASKED),
        Family(name="xlm-clm", network=Xlm, **xlm.XLM, **xlm.CAUSAL),
        Family(name="xlnet", paper="Yang et al., 2019", config=XlnetConfig, network=Xlnet, **xlnet.XLNET),
        Family(name="openai-gpt", paper="Radford et al., 2018", config=GptConfig, network=Gpt, **decoders.GPT),
        Family(
            name="gpt2",
            paper="Radford et al., 2019; Brown et al., 2020",
            config=GptConfig,
            network=Gpt,
            **decoders.GPT2,
        ),
        Family(
            name="transformer",
            paper="Vaswani et al., 2017",
            config=TransformerConfig,
            network=Transformer,
            sizes={  # table 3
                "transformer-base": TransformerConfig(),
                "transformer-big": TransformerConfig(width=1024, heads=16, dropout=0.3, embedding_dropout=0.3),
            },
            **READER,
        ),
        Family(
            name="marian",
            paper="Junczys-Dowmunt et al., 2018; Tiedemann and Thottingal, 2020",
            config=TransformerConfig,
            network=Transformer,
            **{**READER, **decoders.MARIAN},
        ),
        Family(
            name="seq2seq",
            paper="Sutskever et al., 2014; Bahdanau et al., 2015; Luong et al., 2015",
            config=Seq2SeqConfig,
            network=Seq2Seq,
            sizes={
                f"seq2seq-{name}": Seq2SeqConfig(**{"width": 1000, "dropout": 0.0, "tied": "none", **sizes})
                for name, sizes in SEQ2SEQ.items()
            },
            learning_rate=SEQ2SEQ_RATE,
            **READER,
        ),
        Family(
            name="conv-seq2seq",
            paper="Gehring et al., 2017",
            config=ConvSeq2SeqConfig,
            network=ConvSeq2Seq,
            sizes={
                "conv-seq2seq-summaries": ConvSeq2SeqConfig(),
                "conv-seq2seq-romanian": ConvSeq2SeqConfig(vocabulary=40000, width=512, layers=20),
            },
            **READER,
        ),
        Family(
            name="vec2seq",
            paper="Vinyals et al., 2015",
            config=Vec2SeqConfig,
            network=Vec2Seq,
            task="describe",
            sizes={  # Vinyals et al. (2017): from the 2,048 numbers that Inception v3 makes of an image
                "show-and-tell": Vec2SeqConfig(vocabulary=12000, features=2048, entrance="input", tied=False)
            },
            numbers=True,
            learning_rate=SEQ2SEQ_RATE,
            **READER,
        ),
        Family(name="t5", paper="Raffel et al., 2020", config=T5Config, network=T5, **{**READER, **decoders.T5}),
        *(
            Family(
                name=cell,
                paper=paper,
                config=RecurrentConfig,
                network=RecurrentNetwork,
                sizes={
                    f"lstm-zaremba-{name}": RecurrentConfig(
                        width=width, dropout=dropout, tied=False, weight_scale=scale
                    )
                    for name, (width, dropout, scale) in (ZAREMBA.items() if cell == "lstm" else ())
                },
                generates=True,
                standard={"cell": cell},
                fixed=("cell",),
                rows="carried",
                row=64,
                learning_rate=RECURRENT_RATE,
            )
            for cell, paper in RECURRENT.items()
        ),
        Family(
            name="transformer-xl",
            paper="Dai et al., 2019",
            config=TransformerXLConfig,
            network=TransformerXL,
            rows="carried",
            **decoders.TRANSFORMER_XL,
        ),
        Family(
            name="elmo",
            paper="Peters et al., 2018",
            config=ElmoConfig,
            network=Elmo,
            sizes={
                f"elmo-{name}": ElmoConfig(width=width, inner=8 * width, highways=highways, filters=FILTERS)
                for name, (width, highways) in {"small": (128, 1), "medium": (256, 1), "original": (512, 2)}.items()
            },
            tokenizer="word-bytes",
            vocabulary={"size": 30_000},
            specials={"padding": "<pad>", "start": "<S>", "end": "</S>"},
            task="embed",
            aims=("two-way",),
            row=128,
            learning_rate=RECURRENT_RATE,
            base_rate=2e-4,  # the tagger above it is new and recurrent: it takes five times as large steps
        ),
        Family(
            name="ngram",
            paper="Kneser and Ney, 1995; Chen and Goodman, 1998",
            config=NgramConfig,
            network=Ngram,
            tokenizer="word",
            generates=True,
            counts=True,
        ),
        Family(name="vectors", paper="Iyyer et al., 2015", config=VectorsConfig, network=Vectors, **UNTRAINED),
        Family(name="mlp", paper="Bengio et al., 2003", config=MlpConfig, network=Mlp, generates=True, row=64),
        Family(
            name="cnn",
            paper="Kim, 2014",
            config=CnnConfig,
            network=Cnn,
            vocabulary={"size": 20_000, "lowercase": True, "min_count": 1},  # rare words say much of few texts
            **UNTRAINED,
        ),
        Family(
            name="forecaster",
            paper="van den Oord et al., 2016; Cho et al., 2014; Vaswani et al., 2017",
            config=ForecasterConfig,
            network=Forecaster,
            task="forecast",
            series=True,
            trained=(),
        ),
    )
}
SIZES = {size: (family, config) for family in FAMILIES.values() for size, config in family.sizes.items()}


def family_named(name: str) -> Family | None:
    """A family of ours, else one of another package; None where there is none of this name."""
    if name in FAMILIES:
        return FAMILIES[name]
    family = load_plugin(plugins.FAMILIES, name)
    if family is not None and (not isinstance(family, Family) or family.name != name):
        raise broken(plugins.FAMILIES, name, f"is not a weft Family named {name!r}")
    return family


def family_of_type(model_type: str) -> Family | None:
    """The family of a folder by its `model_type`, published or our own."""
    if model_type.startswith("weft-"):
        return family_named(model_type.removeprefix("weft-"))
    published = next((family for family in FAMILIES.values() if family.model_type == model_type), None)
    # The name of a family of ours may be the model_type of another kind: deberta is the first version.
    return published or (None if model_type in FAMILIES else family_named(model_type))


def find_size(name: str, size: str | None = None, heads: Any = None) -> tuple[Family, Any]:
    """A family and a config by name ('bert', 'bert-tiny') and size ('3x256'); `heads`: given, else each is 64 wide."""
    if name in SIZES and size is None:
        return SIZES[name]
    family = family_named(name)
    if family is None:
        check_name(name, size)
    assert family is not None
    if size is None:
        return family, family.config(**family.standard)
    if size in family.sizes:
        return family, family.sizes[size]
    match = re.fullmatch(r"([1-9][0-9]{0,3})x([1-9][0-9]{0,5})", size)
    if not match:
        named = f", nor one of {listed(family.sizes, 20)}" if family.sizes else f"; {name} has no named sizes"
        raise UserError(f"size {size!r} is not LAYERSxWIDTH such as 3x256{named}")
    if not family.config.has("layers"):
        raise UserError(f"size {size}: {name} has no layers; set its width alone, as model.width={match[2]}")
    layers, width = int(match[1]), int(match[2])
    heads = heads if isinstance(heads, int) and heads > 0 else None
    if heads is None and width % 64 and family.config.has("heads"):
        fits = next(count for count in range(max(1, width // 64), 0, -1) if width % count == 0)
        why = f"a width of {width} is not a multiple of 64, the width of a head"
        raise UserError(f"size {size}: {why}; choose their number, such as model.heads={fits}")
    sizes = {"layers": layers, "width": width, "heads": heads or width // 64, "inner": 4 * width}
    sizes = {field: size for field, size in sizes.items() if family.config.has(field)}
    return family, family.config(**{**family.standard, **sizes})


def check_config(family: Family, config: Any) -> None:
    """Refuse a config that is another family's."""
    for name in family.fixed:
        value, own = vars(config)[name], family.standard[name]
        if value != own:
            other = next((each.name for each in FAMILIES.values() if each.standard.get(name) == value), family.name)
            raise UserError(f"{name} of {family.name} is {own}, not {value}; choose the model {other}")


def usual_heads(family: Family, config: Any) -> dict[str, int]:
    """The heads with which a family is pre-trained, or that a new network has; none where it does not score words."""
    if family.series:
        return {"forecast": config.outputs}
    return {
        head: config.vocabulary if head == "words" else 2
        for head in family.trained
        if config.pooler or head not in family.network.POOLED
    }


def check_heads(family: Family, heads: Mapping[str, int]) -> None:
    for head in heads:
        one_of(head, family.names.heads, f"head of {family.name}")


# --------------------------------------------------------------- networks with shapes and no numbers yet


class _Unfilled(TorchFunctionMode):
    """Modules are made without drawing weights: on no device that would do nothing, and load the compiler to do it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def outline(family: Family, config: Any, heads: Mapping[str, int]) -> Network:
    """A network with shapes and no numbers, ready to be measured or filled."""
    with torch.device("meta"), _Unfilled():
        return family.network(config, heads)


@dataclass(frozen=True)
class Measure:
    """What a model of some size weighs and costs."""

    parameters: int
    flops: float  # per token, forward, over a text that fills the context

    def bytes(self, kind: str) -> int:
        """Of the weights alone; int8 keeps one scale per output in float32, which is left out here."""
        return self.parameters * {"fp32": 4, "bf16": 2, "int8": 1}[kind]


def measure(family: Family, config: Any, heads: Mapping[str, int]) -> Measure:
    """Count a model's parameters and operations without making it."""
    network = outline(family, config, heads)
    parameters = sum(p.numel() for p in network.parameters())
    if family.reads:  # what is read and what is written both fill the context
        rows = Rows.of([config.context])
        return Measure(parameters, network.operations(rows, rows) / config.context)
    if network.products is not None:
        return Measure(parameters, 2.0 * network.products)
    turns = config.layers // len(network.layers) if network.layers else 1  # a layer may be read many times
    matrices = 0
    for name, module in network.named_modules():
        if isinstance(module, nn.Linear) and not name.startswith(("heads.", "pooler.")):
            matrices += module.weight.numel() * (turns if name.startswith("layers.") else 1)
    if "words" in heads:
        matrices += network.tokens.weight.numel()
    if not config.heads:  # no attention
        return Measure(parameters, 2.0 * matrices)
    keys = config.context / 2 if family.one_way else config.context  # a decoder sees half the text on average
    heads_of_all = sum(config.layer_heads or [config.layers * config.heads])
    # A multiplication and an addition per weight; scores and mixed values per key and head.
    mixing = 4.0 * heads_of_all * (config.head_width or config.width // config.heads) * keys
    return Measure(parameters, 2.0 * matrices + mixing)

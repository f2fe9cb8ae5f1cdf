"""XLM (Conneau and Lample, 2019): token, position and language embeddings, then post-norm Transformer layers.

The layers look both ways (masked and translation language models) or, with `causal`, back (CLM). N: tokens; B: rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from weft.errors import refuse, shown
from weft.models.base import ModelConfig, Network, Started, States
from weft.models.shared import check_read, final_norm_of, layers_of, mix_of, positions_of, through_layers
from weft.nn.attention import Cache
from weft.nn.fixed import FixedCache
from weft.nn.heads import LabelHead, SpanHead, WordHead, step_scores
from weft.nn.layers import Activation, NormKind, NormPlace, norm
from weft.nn.open_rows import CachedRows
from weft.nn.positions import Kind
from weft.nn.rows import Ragged, Rows

MAX_LANGUAGES = 1 << 12


@dataclass(frozen=True, kw_only=True)
class XlmConfig(ModelConfig):
    """Sizes of an XLM; the defaults are xlm-mlm-ende-1024, the smallest published one, without its languages."""

    vocabulary: int = 64699
    context: int = 512
    width: int = 1024
    layers: int = 6
    heads: int = 8
    head_width: int | None = None  # None: width / heads
    layer_heads: tuple[int, ...] | None = None  # of each layer, where some have lost heads
    inner: int | None = None  # None: 4 x width
    activation: Activation = "gelu"
    positions: Kind = "learned"
    norm: NormKind = "layer"
    norm_place: NormPlace = "after"
    norm_epsilon: float = 1e-12
    dropout: float = 0.1
    attention_dropout: float = 0.1
    head_dropout: float = 0.1  # before the heads classify and choose
    choose_inner: int = 2  # outputs of the first of the two maps of the choose head
    causal: bool = False
    languages: tuple[str, ...] = ()  # by id; with two or more, each has an embedding
    language: int = 0  # the language of a text of which nothing else is known
    language_embeddings: bool = True
    mix: bool = False  # the heads read a learned mix of all layers rather than the last
    head_layers: str = "last"  # what the heads read otherwise: last4-concat, second-to-last ...
    tied: bool = True  # the word head reads the table of tokens backwards
    weight_scale: float = 0.02

    def __post_init__(self) -> None:
        super().__post_init__()
        names, count = self.languages, len(self.languages)
        twice = [name for place, name in enumerate(names) if name in names[:place]]
        refuse(
            (count > MAX_LANGUAGES, f"languages: {count} of them; at most {MAX_LANGUAGES} are supported"),
            ("" in names or bool(twice), f"languages: {shown(twice[0]) if twice else ''!r} is empty or there twice"),
            (not 0 <= self.language < max(1, count), f"language must be one of the {count}, not {self.language}"),
            (not 1 <= self.choose_inner <= 1 << 16, f"choose_inner must be at least 1, not {self.choose_inner}"),
        )


class ChooseHead(nn.Module):
    """Two linear maps in a row, as published: to some numbers for each option, and from these to its score."""

    def __init__(self, width: int, inner: int, outputs: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.dense = nn.Linear(width, inner)
        self.output = nn.Linear(inner, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.dense(self.dropout(x)))


class Xlm(Network):
    """The network, and the heads asked for; `segments` are the languages of the tokens."""

    in_slots = FixedCache
    open_rows = CachedRows
    HEADS = ("words", "classify", "choose", "tag", "answer", "spans")
    STACK = True
    RESETS = True

    def __init__(self, config: XlmConfig, heads: Mapping[str, int]) -> None:
        super().__init__(config)
        c = config
        check_read(heads, c)
        self.tokens = nn.Embedding(c.vocabulary, c.width)
        self.positions = positions_of(c)
        several = len(c.languages) > 1 and c.language_embeddings
        self.languages = nn.Embedding(len(c.languages), c.width) if several else None
        self.embedding_norm = norm(c.norm, c.width, c.norm_epsilon)
        self.dropout = nn.Dropout(c.dropout)
        self.layers = layers_of(c, causal=c.causal)
        self.final_norm = final_norm_of(c)
        self.mix = mix_of(c)
        self.heads = self.make_heads(heads)

    def make_head(self, name: str, outputs: int) -> nn.Module:
        c = self.config
        if name == "words":
            return WordHead(c.width, outputs, c.tied, bias=True)
        if name == "choose":
            return ChooseHead(self.features, c.choose_inner, outputs, c.head_dropout)
        if name == "spans":
            return SpanHead(self.features, c.norm_epsilon)
        dropout = {"classify": c.head_dropout, "tag": c.dropout}.get(name, 0.0)
        return LabelHead(self.features, outputs, dropout)

    def forward(
        self,
        tokens: Tensor,
        rows: Rows,
        segments: Tensor | None = None,
        states: States = None,
        cache: Cache | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """N tokens -> N width; `segments`: the language of each token, by default that of the config.

        `positions`: where each token stands, if that is not its place in its row. With a cache that holds something,
        one new token per row.
        """
        places = self.positions.places(rows, tokens.shape[0], cache)
        places = places if positions is None else positions
        x = self.positions.add(self.tokens(tokens), places)
        if self.languages is not None:
            x = x + (self.languages.weight[self.config.language] if segments is None else self.languages(segments))
        x = self.dropout(self.embedding_norm(x))
        return through_layers(self, self.layers, x, rows, places, states, cache)

    def pooled(self, hidden: Tensor, rows: Rows) -> Tensor:
        """B width: the first token of each row; of a causal model the last, which has read all of it."""
        return hidden[rows.lasts() if self.config.causal else rows.firsts()]

    def start(self, prompt: Ragged, source: Ragged | None = None, room: int = 0, attention: bool = False) -> Started:
        cache = Cache(self.config.layers, prompt.rows, room)
        hidden = self(prompt.tokens, prompt.rows, cache=cache)
        return step_scores(self.words(hidden[prompt.rows.lasts()])), cache

    def step(self, tokens: Tensor, state: Cache) -> Tensor:
        hidden = self.further(tokens, state)
        state.advance()
        return step_scores(self.words(hidden))

    def further(self, tokens: Tensor, cache: Any) -> Tensor:
        """N tokens that come after what is in the cache -> N width"""
        return self(tokens, Rows.single(len(tokens), tokens.device), cache=cache)

"""Transformer-XL (Dai et al., 2019): relative positions, and a memory that is carried from segment to segment.

N: tokens; B: rows; M: places of memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from weft.errors import UserError, refuse
from weft.models.base import ModelConfig, Network, Started, States
from weft.models.shared import check_read, final_norm_of, matrices, mix_of, through_layers
from weft.nn.adaptive import ClusteredTable, ClusteredWords, Clusters
from weft.nn.heads import LabelHead, WordHead, in_full
from weft.nn.layers import Activation, Layer, NormKind, NormPlace
from weft.nn.recurrent import Carried, State
from weft.nn.relative import (
    Distances,
    LayerWindow,
    RelativeAttention,
    RelativeCache,
    SegmentMemory,
    joined,
    segments_of,
)
from weft.nn.rows import Ragged, Rows, check_context

MOST, CLUSTERS = 1 << 16, 16  # tokens of memory, or of a segment; clusters of words


@dataclass(frozen=True, kw_only=True)
class TransformerXLConfig(ModelConfig):
    """Sizes of a Transformer-XL."""

    vocabulary: int = 10000
    context: int = 1 << 24  # a text may be as long as anything: it is read a segment at a time
    segment: int = 128  # tokens that are read at once
    memory: int | None = None  # tokens before a segment that it sees; None: as many as a segment has
    width: int = 512
    layers: int = 6
    heads: int = 8
    head_width: int | None = None  # None: width / heads
    inner: int | None = None  # None: 4 x width
    activation: Activation = "relu"
    norm: NormKind = "layer"
    norm_place: NormPlace = "after"
    final_norm: bool = True  # where norms stand before each part, one more ends the stack
    norm_epsilon: float = 1e-5
    scaled: bool = True  # token vectors are multiplied by the square root of the width
    clamp: int | None = None  # a key that is farther away counts as this far
    shared_biases: bool = False  # one u and one v for all layers, rather than their own
    same_length: bool = False  # every token sees as many before it, one fewer than the memory has
    blank: bool = False  # memory that nothing is in yet is zeros, which are seen, as in the published models
    dropout: float = 0.1  # of the embeddings, the distances, inside and after each part, and of the output
    attention_dropout: float = 0.0
    mix: bool = False  # the heads read a learned mix of all layers rather than the last
    head_layers: str = "last"  # what the heads read otherwise: last4-concat, second-to-last ...
    tied: bool = True  # the word head reads the table of tokens backwards
    word_bias: bool = True
    cutoffs: tuple[int, ...] = ()  # where clusters of rarer words begin, which have an adaptive softmax
    shrink: int = 1  # by this their vectors are narrower than those of the cluster before; 1: one table, no clusters
    embedding_width: int | None = None  # of the most common words; None: width
    shared_maps: bool = True  # clusters but the first are read and scored by one map each
    weight_scale: float = 0.02

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("segment", 1), ("memory", 0), ("clamp", 1)):
            size = vars(self)[name]
            if size is not None and not least <= size <= MOST:
                raise UserError(f"{name} must be between {least} and {MOST}, not {size}")
        ends = (0, *self.cutoffs, self.vocabulary)
        narrow = (self.embedding_width or self.width) // max(1, self.shrink) ** len(self.cutoffs)
        clustered = self.shrink > 1
        refuse(
            (not 1 <= self.shrink <= 64, f"shrink must be between 1 and 64, not {self.shrink}"),
            (len(self.cutoffs) > CLUSTERS, f"there are at most {CLUSTERS} cutoffs, not {len(self.cutoffs)}"),
            (
                any(one >= two for one, two in pairwise(ends)),
                f"cutoffs must rise from above 0 to below the vocabulary of {self.vocabulary}: {list(self.cutoffs)}",
            ),
            (not clustered and bool(self.cutoffs), "cutoffs need shrink above 1"),
            (not clustered and self.embedding_width not in (None, self.width), "embedding_width needs shrink above 1"),
            (clustered and not narrow, "the last cluster would have vectors of no numbers: shrink less"),
            (clustered and not (self.tied and self.word_bias), "an adaptive softmax is tied and has biases"),
            (self.same_length and not self.memory_size, "same_length needs a memory"),
            (self.width % 2 == 1, f"distances are pairs of waves, so the width must be even, not {self.width}"),
        )

    @property
    def memory_size(self) -> int:
        """M in training."""
        return self.segment if self.memory is None else self.memory


class XLLayer(Layer):
    """A Transformer layer whose attention sees a memory of its earlier inputs."""

    def forward(self, x: Tensor, rows: Rows, bias: Any = None, turns: None = None, cache: Any = None) -> Tensor:  # type: ignore[override]
        if self.norm_before and isinstance(cache, Tensor):
            cache = self.attention_norm(cache)
        return super().forward(x, rows, bias, turns, cache)


class TransformerXL(Network):
    """The decoder, and the heads asked for: words, classify, tag."""

    HEADS = ("words", "classify", "tag")
    STACK = True
    CARRIES = True

    def __init__(self, config: TransformerXLConfig, heads: Mapping[str, int]) -> None:
        super().__init__(config)
        c = config
        check_read(heads, c, self.POOLED)
        self.clusters = Clusters(c.vocabulary, c.width, c.embedding_width or c.width, c.cutoffs, c.shrink)
        self.tokens = ClusteredTable(self.clusters) if c.shrink > 1 else nn.Embedding(c.vocabulary, c.width)
        size = c.head_width or c.width // c.heads
        self.positions = Distances(c.width, c.heads, size, clamp=c.clamp, shared=c.shared_biases, dropout=c.dropout)
        self.remember(c.memory_size)
        self.dropout = nn.Dropout(c.dropout)
        self.layers = nn.ModuleList(self._layer(size) for _ in range(c.layers))
        self.final_norm = final_norm_of(c) if c.final_norm else nn.Identity()
        self.mix = mix_of(c)
        self.heads = self.make_heads(heads)

    def _layer(self, size: int) -> XLLayer:
        c = self.config
        sizes = {"width": c.width, "heads": c.heads, "inner": c.inner or 4 * c.width, "activation": c.activation}
        norms = {"norm_kind": c.norm, "norm_place": c.norm_place, "norm_epsilon": c.norm_epsilon}
        options: dict[str, Any] = {"head_width": size, "dropout": c.attention_dropout, "shared": c.shared_biases}
        attention = RelativeAttention(c.width, c.heads, causal=True, **options)
        return XLLayer(attention=attention, dropout=c.dropout, inner_dropout=c.dropout, **sizes, **norms)

    def make_head(self, name: str, outputs: int) -> nn.Module:
        c = self.config
        if name == "words" and c.shrink > 1:
            return ClusteredWords(self.clusters, c.shared_maps)
        if name == "words":
            return WordHead(c.width, outputs, c.tied, c.word_bias)
        return LabelHead(self.features, outputs, c.dropout, bias=name != "classify")

    def word_inputs(self, hidden: Tensor) -> tuple[Tensor, Any]:
        return hidden, self.tokens if self.config.shrink > 1 else self.tokens.weight

    def forward(
        self, tokens: Tensor, rows: Rows, segments: None = None, states: States = None, carried: Carried | None = None
    ) -> Tensor:
        """N tokens -> N width, a segment at a time; `carried`: what rows begin with, and then what they end with."""
        state = None if carried is None else carried.state
        x, memory = self._read(tokens, rows, state, self.memory, states, last=carried is not None)
        if carried is not None:
            carried.state = (*((layer,) for layer in memory.layers), (memory.filled,))
        return x

    def _read(
        self, tokens: Tensor, rows: Rows, state: State | None, most: int, states: States, last: bool
    ) -> tuple[Tensor, SegmentMemory]:
        """N width, and the memory, of `most` places, when all is read; `last`: also of the last segment."""
        c = self.config
        check_context(rows.longest, c.context)
        *layers, (filled,) = self.beginning(rows.count, None if c.blank else 0) if state is None else state
        memory = SegmentMemory([layer for (layer,) in layers], filled)
        pieces = segments_of(rows, len(tokens), c.segment)
        outputs: list[list[Tensor]] = []
        for number, (index, piece) in enumerate(pieces):
            x = self._embedded(tokens if index is None else tokens[index])
            seen: list[Tensor] = []
            x = through_layers(self, self.layers, x, piece, piece.starts, seen, memory.last(self.memory))
            if last or number < len(pieces) - 1:
                memory = memory.after(seen[: c.layers], piece, most)
            outputs.append([x, *seen])
        x, *whole = [joined(parts, [index for index, _ in pieces]) for parts in zip(*outputs, strict=True)]
        if states is not None:
            states += whole
        return self.dropout(x), memory

    def _embedded(self, tokens: Tensor) -> Tensor:
        return self.dropout(self.tokens(tokens) * (self.config.width**0.5 if self.config.scaled else 1.0))

    def remember(self, tokens: int) -> int:
        if not 0 <= tokens <= MOST:
            raise UserError(f"memory must be between 0 and {MOST} tokens, not {tokens}")
        before, self.memory = self.memory, tokens
        self.positions.reach = max(0, tokens - 1) if self.config.same_length else None
        return tokens if before is None else before

    def beginning(self, count: int, size: int | None = None) -> State:
        """The memory of rows that have read nothing; `size`: of so many places, by default all that there are."""
        weight, size = self.tokens.weight, self.memory if size is None else size
        layers = [(weight.new_zeros(count, size, self.config.width),) for _ in self.layers]
        return (*layers, (torch.full((count,), size if self.config.blank else 0, device=weight.device),))

    def pooled(self, hidden: Tensor, rows: Rows) -> Tensor:
        """B width: the last token of each row has read all of it."""
        return hidden[rows.lasts()]

    def start(self, prompt: Ragged, source: Ragged | None = None, room: int = 0, attention: bool = False) -> Started:
        c = self.config
        # A step sees as far back as the first token of a segment does, and never less than a segment.
        window = self.memory - 1 if c.same_length else max(self.memory, c.segment)
        hidden, memory = self._read(prompt.tokens, prompt.rows, None, window, None, last=True)
        vectors = self.positions.window(window, hidden.device).to(hidden.dtype)  # P width
        windows = []
        for layer, states in zip(self.layers, memory.layers, strict=True):
            states = layer.attention_norm(states) if layer.norm_before else states
            distances = layer.attention.distance(vectors).unflatten(-1, (c.heads, -1))  # P H D
            keys, values = layer.attention.keys_and_values(states)
            windows.append(LayerWindow(keys, values, distances))
        cache = RelativeCache(memory.filled, windows, self.positions.biases)
        return in_full(self.words(hidden[prompt.rows.lasts()])), cache

    def step(self, tokens: Tensor, state: RelativeCache) -> Tensor:
        x = self._embedded(tokens)
        rows = Rows.single(len(tokens), tokens.device)
        hidden = through_layers(self, self.layers, x, rows, rows.starts, None, state)
        state.advance()
        return in_full(self.words(self.dropout(hidden)))

    @property
    def products(self) -> float:
        """Uses of a weight for each token, and of the tokens that it sees: by content, by distance, and mixed."""
        c = self.config
        tables = (self.tokens,) if "words" in self.heads and c.tied else ()
        seen = self.memory + c.segment / 2
        return matrices(self.layers, *self.heads.values(), *tables) + 3 * c.layers * seen * c.heads * (
            c.head_width or c.width // c.heads
        )

    @torch.no_grad()
    def initialize(self) -> None:
        """Draw fresh weights, u and v like matrices; with norms before them, the ends of parts as GPT-2 has them."""
        super().initialize()
        c = self.config
        for name, parameter in self.named_parameters():
            # Waves have a mean square of 1/2. Mapped to variance 1, distances count from the first step on.
            if name.endswith("attention.distance.weight"):
                parameter.normal_(0.0, (2 / c.width) ** 0.5)
            if name.endswith(("content_bias", "distance_bias", "cluster_weight")) or ".maps." in name:
                parameter.normal_(0.0, c.weight_scale)
            if c.norm_place == "before" and name.endswith(("attention.output.weight", "feedforward.down.weight")):
                parameter.normal_(0.0, c.weight_scale / (2 * c.layers) ** 0.5)

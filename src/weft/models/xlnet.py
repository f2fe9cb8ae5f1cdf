"""XLNet (Yang et al., 2019): relative attention that looks both ways, pre-trained on permutations with two streams.

The content stream is a plain encoder over a memory of earlier rows. The query stream knows the place of a token and the
tokens before it in some order, but not the token itself: it predicts tokens. N: tokens; n: places asked for; B: rows;
T: longest row; M: places of memory; W: width; t: places asked for in a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from weft.errors import UserError
from weft.models.base import ModelConfig, Network, Started, States
from weft.models.shared import check_read, matrices, mix_of
from weft.nn.heads import DeepLabelHead, LabelHead, SpanHead, WordHead, in_full
from weft.nn.layers import Activation
from weft.nn.recurrent import Carried, State
from weft.nn.relative import LayerWindow, RelativeCache, SegmentMemory, distances_of, waves
from weft.nn.rows import Ragged, Rows, check_context, spread
from weft.nn.two_streams import SegmentedLayer, SegmentedRelative, TokenStream, mask_after, segments_after

MOST, PAPER = 1 << 16, 384  # places of memory at most, and those of the paper
USUAL = 512  # tokens of a row, for which its cost is given


@dataclass(frozen=True, kw_only=True)
class XlnetConfig(ModelConfig):
    """Sizes of an XLNet; the defaults are xlnet-base-cased."""

    vocabulary: int = 32000
    context: int = 1 << 24  # places are relative, so texts may be as long as anything that is read
    width: int = 768
    layers: int = 12
    heads: int = 12
    inner: int = 3072
    activation: Activation = "gelu"
    memory: int | None = None  # tokens before a row that it sees where rows go on; None, as published: PAPER
    farthest: int | None = None  # longer distances count as this one; None: no limit
    norm_epsilon: float = 1e-12
    dropout: float = 0.1
    head_dropout: float = 0.1  # inside the heads classify and choose
    mix: bool = False  # the heads read a learned mix of all layers rather than the last
    head_layers: str = "last"  # what the heads read otherwise: last4-concat, second-to-last ...
    tied: bool = True  # the word head reads the table of tokens backwards
    weight_scale: float = 0.02

    @property
    def segments(self) -> int:  # type: ignore[override]
        """The texts of a pair, and the token that closes a row."""
        return 3

    def __post_init__(self) -> None:
        super().__post_init__()
        check_memory(self.memory or 0)


def check_memory(tokens: int) -> None:
    if not 0 <= tokens <= MOST:
        raise UserError(f"memory must be between 0 and {MOST}, not {tokens}")


class Xlnet(Network):
    """The encoder, and the heads asked for: words, classify, choose, tag, answer, spans."""

    HEADS = ("words", "classify", "choose", "tag", "answer", "spans")
    CARRIES = True

    def __init__(self, config: XlnetConfig, heads: Mapping[str, int]) -> None:
        super().__init__(config)
        c = config
        check_read(heads, c, ("classify", "choose"))
        self.remember(PAPER if c.memory is None else c.memory)
        self.tokens = nn.Embedding(c.vocabulary, c.width)
        self.unseen = nn.Parameter(torch.zeros(1, 1, c.width))  # what a query stream begins with
        self.dropout = nn.Dropout(c.dropout)
        sizes = (c.width, c.heads, c.inner, c.activation, c.norm_epsilon, c.dropout)
        self.layers = nn.ModuleList(SegmentedLayer(*sizes) for _ in range(c.layers))
        self.mix = mix_of(c)
        self.heads = self.make_heads(heads)

    def make_head(self, name: str, outputs: int) -> nn.Module:
        c = self.config
        if name == "words":
            return WordHead(c.width, outputs, c.tied, bias=True)
        if name in ("classify", "choose"):
            return DeepLabelHead(c.width, outputs, "tanh", c.head_dropout)
        if name == "spans":
            return SpanHead(self.features, c.norm_epsilon)
        return LabelHead(self.features, outputs, 0.0)

    def forward(
        self,
        tokens: Tensor,
        rows: Rows,
        segments: Tensor | None = None,
        states: States = None,
        *,
        asked: Ragged | None = None,
        ranks: Tensor | None = None,
        carried: Carried | None = None,
    ) -> Tensor:
        """N tokens -> N width, looking both ways; `carried`: the memory before the rows, and then after them.

        With places that are `asked` for: n width, what the query stream makes of all tokens of a lower rank (N).
        """
        if asked is None or ranks is None:
            return self.streams(tokens, TokenStream(rows, None, segments), None, carried, states)
        own = spread(ranks, rows).t()[:, None]  # B 1 T
        asking = spread(ranks[asked.tokens], asked.rows).t()[:, None]  # B 1 t
        content = TokenStream(rows, own[:, :, None] <= own[..., None], segments)
        marks, places = None if segments is None else segments[asked.tokens], rows.places(len(tokens))[asked.tokens]
        query = TokenStream(asked.rows, own[:, :, None] < asking[..., None], marks, places)
        return self.streams(tokens, content, query, carried, states)

    def next_states(self, tokens: Tensor, rows: Rows, carried: Carried | None = None, **more: Any) -> Tensor:
        """N width: what the query stream, from left to right, predicts the token after each from."""
        causal = torch.ones(rows.longest, rows.longest, dtype=torch.bool, device=tokens.device).tril()
        query = TokenStream(rows, causal, places=rows.places(len(tokens)) + 1)
        return self.streams(tokens, TokenStream(rows, causal), query, carried)

    def streams(
        self,
        tokens: Tensor,
        content: TokenStream,
        query: TokenStream | None = None,
        carried: Carried | None = None,
        states: States = None,
    ) -> Tensor:
        """The output of the query stream, or of the content stream where it is alone."""
        rows = content.rows
        check_context(rows.longest, self.config.context)
        memory = None
        if carried is not None:
            *parts, (filled,) = self.beginning(rows.count) if carried.state is None else carried.state
            memory = SegmentMemory([part for (part,) in parts], filled)
        x = self.dropout(self.tokens(tokens))
        reading, asking, g = self._relative(content, content, memory, x.dtype), None, x
        if query is not None and query.places is not None:
            asking = self._relative(query, content, memory, x.dtype)
            g = self.dropout(self.unseen[0].expand(len(query.places), -1))
        seen = [x]
        for number, layer in enumerate(self.layers):
            past = None if memory is None else memory.layers[number]
            if asking is not None:
                g = layer(g, rows, asking, past, x)
            if asking is None or number < len(self.layers) - 1 or states is not None:
                x = layer(x, rows, reading, past)
                seen.append(x)
        if carried is not None and memory is not None:
            memory = memory.after(seen[: len(self.layers)], rows, self.memory)
            carried.state = (*((part,) for part in memory.layers), (memory.filled,))
        if states is not None:
            states += seen
        return self.dropout(g if asking is not None else x if self.mix is None else self.mix(seen))

    def _relative(
        self, stream: TokenStream, content: TokenStream, past: SegmentMemory | None, dtype: torch.dtype
    ) -> SegmentedRelative:
        """What the layers of a stream share."""
        rows, memory = content.rows, 0 if past is None else past.size
        longest = rows.longest + (stream.places is not None)  # the place after the last may be asked for
        distances = distances_of(longest, memory, False, rows.starts.device)
        marks = None
        if stream.segments is not None and content.segments is not None:
            marks = stream.segments, segments_after(memory, content.segments, rows)
        return SegmentedRelative(
            vectors=self.dropout(self._vectors(distances).to(dtype)),
            longest=longest,
            memory=memory,
            mask=mask_after(past, stream.mask, rows.longest),
            asked=None if stream.places is None else stream.rows,
            places=stream.places,
            segments=marks,
        )

    def _vectors(self, distances: Tensor) -> Tensor:
        """P width: in float32 even where all else is float64, as the published code does."""
        far = self.config.farthest
        return waves(distances if far is None else distances.clamp(-far, far), self.config.width, torch.float32)

    def pooled(self, hidden: Tensor, rows: Rows) -> Tensor:
        """B width: the token for the whole text stands at the end."""
        return hidden[rows.lasts()]

    def beginning(self, count: int) -> State:
        table = self.tokens.weight
        parts = [(table.new_zeros(count, self.memory, self.config.width),) for _ in self.layers]
        return (*parts, (torch.zeros(count, dtype=torch.int64, device=table.device),))

    def remember(self, tokens: int) -> int:
        check_memory(tokens)
        before, self.memory = self.memory, tokens
        return tokens if before is None else before

    def start(self, prompt: Ragged, source: Ragged | None = None, room: int = 0, attention: bool = False) -> Started:
        tokens, rows, states = prompt.tokens, prompt.rows, list[Tensor]()
        causal = torch.ones(rows.longest, rows.longest, dtype=torch.bool, device=tokens.device).tril()
        lengths = rows.lengths().long()
        # Of each row the place after its last token, which sees all of it.
        query = TokenStream(Rows.single(rows.count, tokens.device), places=lengths)
        hidden = self.streams(tokens, TokenStream(rows, causal), query, states=states)
        windows = []
        for layer, x in zip(self.layers, states, strict=False):
            # B T H D: rows end together, as those of a window do.
            parts = layer.attention.keys_and_values(x)
            keys, values = (spread(part, rows, backwards=True).flip(0).transpose(0, 1) for part in parts)
            windows.append(LayerWindow(keys, values, self._distances(layer, max(room, rows.longest) + 2)))
        return in_full(self.words(hidden)), RelativeCache(lengths, windows)

    def step(self, tokens: Tensor, state: RelativeCache) -> Tensor:
        size = state.layers[0].keys.shape[1] + 2
        check_context(size - 1, self.config.context)
        x = torch.stack([self.tokens(tokens), self.unseen[0].expand(len(tokens), -1)], 1)  # B 2 W
        rows = Rows.single(len(tokens), tokens.device)
        for layer, window in zip(self.layers, state.layers, strict=True):
            if len(window.distances) < size:
                window.distances = self._distances(layer, 2 * size)
            x = layer(x, rows, state, window)
        state.advance()
        return in_full(self.words(x[:, 1]))

    def _distances(self, layer: Any, size: int) -> Tensor:
        """P H D: what the distances from size - 1 to 0 add to keys."""
        table = self.tokens.weight
        vectors = self._vectors(torch.arange(size - 1, -1, -1, device=table.device)).to(table.dtype)
        return layer.attention.distance(vectors).unflatten(-1, (self.config.heads, -1))

    @property
    def products(self) -> float:
        """Products that one token costs, forward, in a row of the usual length."""
        c = self.config
        words = c.vocabulary * c.width if "words" in self.heads else 0
        return matrices(self.layers) + words + 3.0 * c.layers * c.width * USUAL  # by content, by distance, and mixed

    @torch.no_grad()
    def initialize(self) -> None:
        """Draw fresh weights; by the map of distances alone a query stream can tell its places apart from the start."""
        super().initialize()
        for name, parameter in self.named_parameters():
            if name.endswith(("_bias", "unseen", "segments")):
                parameter.normal_(0.0, self.config.weight_scale)
            if name.endswith("attention.distance.weight"):
                parameter.normal_(0.0, (2 / self.config.width) ** 0.5)

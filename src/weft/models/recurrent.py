"""Recurrent networks (Elman, 1990; Hochreiter and Schmidhuber, 1997; Cho et al., 2014): language models, or encoders.

N: tokens; B: rows; W: width of one direction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.errors import UserError
from weft.models.base import ModelConfig, Network, Started, States
from weft.models.shared import matrices, mean_of
from weft.nn.fixed import FixedRows
from weft.nn.heads import AttentionPooler, LabelHead, TableHead, WordHead, step_scores
from weft.nn.open_rows import JoinedRows
from weft.nn.recurrent import Bend, Carried, Cell, Parts, Recurrent, State, locked_dropout, stacked
from weft.nn.rows import Ragged, Rows, check_context, filled, spread


@dataclass(frozen=True, kw_only=True)
class RecurrentConfig(ModelConfig):
    """Sizes of a recurrent network."""

    vocabulary: int = 10000
    context: int = 1 << 24  # a text may be as long as anything: what was read is one state
    width: int = 512  # of each direction
    embedding_width: int | None = None  # None: width
    layers: int = 2
    cell: Cell = "lstm"  # the family decides it
    activation: Bend = "tanh"  # of a plain cell (rnn)
    bidirectional: bool = False  # reads both ways, so that it cannot foresee words
    pooling: Literal["last", "mean", "max", "attention"] = "last"  # what a label of the whole text is read from
    dropout: float = 0.2  # of the embeddings, between layers, and of what the heads read
    variational: bool = False  # one mask for all places of a text, rather than one for each
    weight_dropout: float = 0.0  # of the recurrent weights: one mask for all texts of a pass and all their places
    tied: bool = True  # the word head reads the table of tokens backwards
    weight_scale: float = 0.3  # tables begin evenly between this and its opposite

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.activation != "tanh" and self.cell != "rnn":
            raise UserError(f"activation {self.activation} is for rnn; the gates of {self.cell} have their own")


class RecurrentWordHead(TableHead):
    """The table of tokens read backwards, by way of its own width, or a table of its own; common words have a bias."""

    def __init__(self, width: int, vocabulary: int, table_width: int, tied: bool) -> None:
        super().__init__()
        self.narrow = nn.Linear(width, table_width, bias=False) if tied and table_width != width else None
        self.words = WordHead(width, vocabulary, tied, bias=True)

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        return self.words(x if self.narrow is None else self.narrow(x), tokens)

    def operands(self, x: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        return self.words.operands(x if self.narrow is None else self.narrow(x), tokens)


class RecurrentNetwork(Network):
    """The table of tokens, the layers, and the heads asked for: words, classify, tag."""

    in_slots = FixedRows
    open_rows = JoinedRows
    HEADS = ("words", "classify", "tag")
    CARRIES = UNROLLS = True

    def __init__(self, config: RecurrentConfig, heads: Mapping[str, int]) -> None:
        super().__init__(config)
        c = config
        if c.bidirectional and "words" in heads:
            raise UserError(
                "a network that reads both ways has seen the next word already: bidirectional is for labels "
                "(weft finetune), not for a head that says words"
            )
        size = c.embedding_width or c.width
        self.tokens = nn.Embedding(c.vocabulary, size)
        options: dict[str, Any] = {"activation": c.activation, "weight_drop": c.weight_dropout}
        options["reading"] = "both" if c.bidirectional else "forwards"
        inputs = (size, *[self.features] * (c.layers - 1))
        self.layers = nn.ModuleList(Recurrent(c.cell, wide, c.width, **options) for wide in inputs)
        self.dropout = nn.Dropout(c.dropout)
        # Words are asked for place by place, so what their head reads is dropped out before, where rows are known.
        self.above = "words" in heads
        if c.pooling == "attention" and "classify" in heads:
            self.pooler = AttentionPooler(self.features)
        self.heads = self.make_heads(heads)

    def make_head(self, name: str, outputs: int) -> nn.Module:
        c = self.config
        if name == "words":
            return RecurrentWordHead(self.features, outputs, c.embedding_width or c.width, c.tied)
        return LabelHead(self.features, outputs, 0.0 if self.above else c.dropout)

    @property
    def features(self) -> int:
        """Width of all directions."""
        return 2 * self.config.width if self.config.bidirectional else self.config.width

    @property
    def state_widths(self) -> list[int]:
        return [self.config.embedding_width or self.config.width, *[self.features] * self.config.layers]

    @property
    def rate_factors(self) -> Mapping[str, float]:
        """Nothing bounds what a ReLU carries, so its layers take smaller steps."""
        return {"layers.": 0.25} if self.config.activation == "relu" else {}

    def forward(
        self, tokens: Tensor, rows: Rows, segments: None = None, states: States = None, carried: Carried | None = None
    ) -> Tensor:
        """N tokens -> N width of all directions; `carried`: what the rows begin with, and then what they end with."""
        check_context(rows.longest, self.config.context)
        x = self._dropped(self.tokens(tokens), rows)
        seen, after = [x], []
        before = None if carried is None else carried.state
        # One kernel does for all layers on a GPU, where that is quicker, and with no mask of our own.
        even, masked = x.shape[0] == rows.longest * rows.count, self.config.bidirectional or self.config.variational
        seen_inside = any(layer.watcher is not None or layer.editor is not None for layer in self.layers)
        if states is None and x.is_cuda and even and not masked and not seen_inside and len(self.layers) > 1:
            x, end = stacked(list(self.layers), x, rows, before, self.dropout.p)
            if carried is not None:
                carried.state = end
            return self._dropped(x, rows) if self.above else x
        for number, layer in enumerate(self.layers):
            begin = None if before is None else (before[number],)
            x, end = layer(x, rows, begin, last=carried is not None)
            x = self._dropped(x, rows) if self.above or layer is not self.layers[-1] else x
            seen.append(x)
            after += list(end or ())
        if carried is not None:
            carried.state = tuple(after)
        if states is not None:
            states += seen
        return x

    def _dropped(self, x: Tensor, rows: Rows) -> Tensor:
        if self.config.variational:
            return locked_dropout(x, rows, self.dropout.p, self.training)
        return self.dropout(x)

    def beginning(self, count: int) -> State:
        """The state of rows that have read nothing."""
        return tuple(parts for layer in self.layers for parts in layer.beginning(count, self.tokens.weight))

    def unrolled(self, tokens: Tensor, rows: Rows, begin: State | None = None) -> tuple[Tensor, list[list[Parts]]]:
        """The same by the equations and without dropout, for rows of one length: hidden, and by layer and place (from
        the state before the first on) what was carried, each a part of the graph of gradients."""
        x, seen = self.tokens(tokens), []
        for number, layer in enumerate(self.layers):
            x, parts = layer.by_equations(x, rows, None if begin is None else (begin[number],))
            seen.append(parts)
        return x, seen

    def pooled(self, hidden: Tensor, rows: Rows) -> Tensor:
        """B width: a text as one vector; 0 for a text without tokens."""
        some = (rows.lengths() > 0)[:, None]
        if self.pooler is not None:
            return self.pooler(hidden, rows)
        if self.config.pooling == "mean":
            return mean_of(hidden, rows)
        if self.config.pooling == "max":
            square = spread(hidden, rows).masked_fill(~filled(rows).t()[..., None], -torch.inf)  # T B W
            square = F.pad(square, (0, 0, 0, 0, 0, 1), value=-torch.inf)  # a place, also where no row has any
            return torch.where(some, square.amax(0), 0.0)
        hidden = F.pad(hidden, (0, 0, 0, 1))  # so that there is a place to name where no row has any
        lasts, firsts = rows.lasts().clamp(min=0), rows.firsts()
        width = self.config.width
        last = torch.cat([hidden[lasts, :width], hidden[firsts, width:]], -1)  # each direction ends at another end
        return torch.where(some, last, 0.0)

    def start(self, prompt: Ragged, source: Ragged | None = None, room: int = 0, attention: bool = False) -> Started:
        carried = Carried()
        hidden = self(prompt.tokens, prompt.rows, carried=carried)
        return step_scores(self.words(hidden[prompt.rows.lasts()])), carried

    def step(self, tokens: Tensor, state: Carried) -> Tensor:
        assert state.state is not None
        x, after = self.tokens(tokens), []
        for layer, parts in zip(self.layers, state.state, strict=True):
            steps = layer.steps()
            x, end = steps.step(steps.given(x), (parts,))
            after += list(end)
        state.state = tuple(after)
        return step_scores(self.words(x))

    @property
    def products(self) -> float:
        """Uses of a weight for each token."""
        uses = matrices(self.layers, self.pooler, *self.heads.values())
        tied = "words" in self.heads and self.config.tied
        return uses + (self.tokens.weight.numel() if tied else 0)

    @torch.no_grad()
    def initialize(self) -> None:
        """Fresh weights: tables as Zaremba et al. drew them, recurrent matrices as rotations, maps by their width."""
        for module in self.modules():
            if isinstance(module, Recurrent):
                module.initialize()
            elif isinstance(module, AttentionPooler):
                module.query.uniform_(-(self.features**-0.5), self.features**-0.5)
            elif isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    module.bias.zero_()
        tables: list[nn.Module] = [self.tokens]
        for module in self.modules():
            if isinstance(module, WordHead) and module.bias is not None:
                module.bias.zero_()
                tables += [] if module.decoder is None else [module.decoder]
        for table in tables:
            table.weight.uniform_(-self.config.weight_scale, self.config.weight_scale)  # type: ignore[operator]

"""The neural language model of a fixed window (Bengio et al., 2003): the vectors of the last tokens side by side, one
hidden layer, and scores of all words.

y = b + W x + U tanh(d + H x), where x are the vectors of the window one after the other; W, the direct connections, is
left out unless asked for. N: tokens; n: the places asked for; B: rows; K: tokens of the window; W: width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from weft.models.base import ModelConfig, Network, Started, States
from weft.nn.fixed import FixedRows
from weft.nn.heads import WordHead, step_scores
from weft.nn.layers import neighbors
from weft.nn.open_rows import JoinedRows
from weft.nn.rows import Ragged, Rows, WindowState, check_context

NOTHING = -1  # in the place of a token, before a text begins


@dataclass(frozen=True, kw_only=True)
class MlpConfig(ModelConfig):
    """Sizes of a language model that looks at a fixed number of tokens."""

    vocabulary: int = 8000
    context: int = 1 << 24  # there is no position, so texts may be as long as anything that is read
    window: int = 8  # tokens that the next one is predicted from
    width: int = 128  # of the table of tokens
    inner: int = 512  # of the hidden layer
    direct: bool = False  # connections from the vectors past the hidden layer (Bengio's W)
    tied: bool = False  # the word head reads the table of tokens backwards
    dropout: float = 0.1  # of the hidden layer
    weight_scale: float | None = None  # None: so that what goes in and what comes out vary alike

    @property
    def reach(self) -> int:
        """How many tokens back it looks."""
        return self.window


class Mlp(Network):
    """The table of tokens, the hidden layer and the word head."""

    TOP = (*Network.TOP, "project")
    in_slots = FixedRows
    open_rows = JoinedRows

    def __init__(self, config: MlpConfig, heads: Mapping[str, int]) -> None:
        super().__init__(config)
        c = config
        read = c.window * c.width
        self.tokens = nn.Embedding(c.vocabulary, c.width)
        # What stands before a text: a vector of its own can say what texts begin with.
        self.before = nn.Parameter(torch.empty(c.width))
        self.hidden = nn.Linear(read, c.inner)
        self.dropout = nn.Dropout(c.dropout)
        # A tied table is as wide as a token's vector, so what it is to be compared with is brought to that width.
        self.project = nn.Linear(c.inner, c.width, bias=False) if c.tied else None
        self.direct = nn.Linear(read, c.width, bias=False) if c.tied and c.direct else None
        self.heads = self.make_heads(heads)

    def make_head(self, name: str, outputs: int) -> nn.Module:
        return WordHead(self.features, outputs, self.config.tied, bias=True)

    @property
    def features(self) -> int:
        """Width of what the word head reads."""
        c = self.config
        return c.width if c.tied else c.inner + c.window * c.width * c.direct

    def layer_names(self) -> list[tuple[str, ...]]:
        return [("hidden",)]

    def forward(self, tokens: Tensor, rows: Rows, segments: Tensor | None = None, states: States = None) -> Tensor:
        """N tokens -> N features; segments mean nothing here, and `states`, where given, gets the vectors and these."""
        check_context(rows.longest, self.config.context)
        x = self.tokens(tokens)
        hidden = self._features(neighbors(x, rows, range(1 - self.config.window, 1), self.before))
        if states is not None:
            states += [x, hidden]
        return hidden

    def _features(self, seen: Tensor) -> Tensor:
        """... KW -> what the word head reads: the hidden layer, beside or with what is connected directly."""
        hidden = self.dropout(self.hidden(seen).tanh())
        if self.project is None:
            return torch.cat([hidden, seen], -1) if self.config.direct else hidden
        return self.project(hidden) if self.direct is None else self.project(hidden) + self.direct(seen)

    def start(self, prompt: Ragged, source: Ragged | None = None, room: int = 0, attention: bool = False) -> Started:
        places = prompt.rows.lasts()[:, None] + torch.arange(1 - self.config.window, 1, device=prompt.tokens.device)
        before = places < prompt.rows.firsts()[:, None]
        state = WindowState(prompt.tokens[places.clamp(min=0)].masked_fill(before, NOTHING))  # B K
        return self._next(state), state

    def step(self, tokens: Tensor, state: WindowState) -> Tensor:
        state.tokens = torch.cat([state.tokens[:, 1:], tokens[:, None]], 1)
        return self._next(state)

    def _next(self, state: WindowState) -> Tensor:
        vectors = self.tokens(state.tokens.clamp(min=0))  # B K W
        seen = torch.where((state.tokens == NOTHING)[..., None], self.before, vectors)
        return step_scores(self.words(self._features(seen.flatten(1))))

    @property
    def products(self) -> int:
        """Products that one token costs, forward, with the scores of all words."""
        parts = (self.hidden, self.project, self.direct)
        return sum(part.weight.numel() for part in parts if part) + self.features * self.config.vocabulary

    @torch.no_grad()
    def initialize(self) -> None:
        """Fresh weights: the hidden layer begins where tanh bends; a tied table begins small, since it also scores."""
        c = self.config
        table = c.weight_scale or (c.width**-0.5 if c.tied else 1.0)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                module.weight.normal_(0.0, c.weight_scale or module.in_features**-0.5)
        if c.weight_scale is None:
            self.hidden.weight.div_(table)
        self.tokens.weight.normal_(0.0, table)
        self.before.normal_(0.0, table)
        self.hidden.bias.zero_()
        for head in self.heads.values():
            head.bias.zero_()

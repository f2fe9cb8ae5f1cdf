"""ELMo (Peters et al., 2018): words from their characters, then forward and backward LSTM language models.

A token is a known word, or a byte of an unknown one, which begins with a mark: so texts have about as many tokens as
words, and every word still has its own characters. Each token has the vector of its word. N: tokens; W: words; P: width
of one direction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from weft.errors import UserError, shown
from weft.models.base import ModelConfig, Network, States
from weft.models.limits import LIMITS
from weft.models.shared import start_weights
from weft.nn.characters import CharacterCnn, characters_of, cut_words, spelled
from weft.nn.heads import Mix, WordHead
from weft.nn.projected import TwoWayLstm
from weft.nn.recurrent import Recurrent
from weft.nn.rows import Rows, check_context
from weft.spelling import BYTES, FILLING, FIRST_WORD

FILTERS = (32, 32, 64, 128, 256, 512, 1024)  # of kernels of 1 to 7 characters, as published with a width of 512


@dataclass(frozen=True, kw_only=True)
class ElmoConfig(ModelConfig):
    """Sizes of an ELMo model; the defaults are the published ones."""

    vocabulary: int = FIRST_WORD  # the characters, and the words that are predicted
    context: int = 1 << 24  # a text may be as long as anything: what was read is one state
    width: int = 512  # of each direction
    inner: int = 4096  # of an LSTM's cell
    layers: int = 2
    embedding_width: int = 16  # of a character
    kernels: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7)  # characters that a filter sees at a time
    filters: tuple[int, ...] | None = None  # of each kernel; None: the published ones, in proportion to the width
    word_length: int = 50  # characters of a word, its two marks included; longer words are cut
    activation: Literal["relu", "tanh"] = "relu"  # of the convolutions
    highways: int = 2
    clip: float | None = 3.0  # of cells
    projection_clip: float | None = 3.0  # of their projections
    skip: bool = True  # from the second layer on, the output of a layer is added to its input
    mix: bool = True  # heads read a learned mix of all layers; else the last
    reader_layers: int = 1  # recurrent layers, reading both ways, below the labels of a task; 0: a linear map alone
    dropout: float = 0.1  # of the input of each layer
    head_dropout: float = 0.5  # of what the layers and the labels of a head read
    weight_scale: float | None = None  # None: so that what goes in and what comes out vary alike

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.filters is None and len(self.kernels) != len(FILTERS):
            raise UserError(f"kernels {list(self.kernels)}: give filters too, as many for each")
        pairs = (self.kernels, self.maps)
        limits = {"kernels": LIMITS["kernel"], "filters": LIMITS["maps"]}
        for (name, most), sizes in zip(limits.items(), pairs, strict=True):
            if not 1 <= len(sizes) <= 64 or not all(1 <= size <= most for size in sizes):
                raise UserError(f"{name} must be 1 to 64 numbers between 1 and {most}, not {shown(str(list(sizes)))}")
        if len(self.kernels) != len(self.maps):
            raise UserError(f"{len(self.kernels)} kernels, but filters for {len(self.maps)}")
        if not max(3, *self.kernels) <= self.word_length <= 1000:
            raise UserError(f"word_length must be between {max(3, *self.kernels)} and 1000, not {self.word_length}")
        for name, most in (("highways", 64), ("reader_layers", 64)):
            if not 0 <= vars(self)[name] <= most:
                raise UserError(f"{name} must be between 0 and {most}, not {vars(self)[name]}")
        for name in ("clip", "projection_clip"):
            if (clip := vars(self)[name]) is not None and not 0.0 < clip <= 1e9:
                raise UserError(f"{name} must be above 0, not {clip}")

    @property
    def maps(self) -> tuple[int, ...]:
        """Filters of each kernel."""
        return self.filters or tuple(max(4, count * self.width // 512) for count in FILTERS)


class ReaderHead(nn.Module):
    """Labels of words, or of a text, above an LSTM that reads the words both ways."""

    def __init__(self, width: int, outputs: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.reader = Recurrent("lstm", width, width // 2, layers, "both", dropout) if layers else None
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.dropout(x))


class Elmo(Network):
    """The table of characters, the convolutions, the layers, their mix, and the heads asked for."""

    HEADS = ("words", "classify", "tag")
    COMPILES = False  # the tokens decide how many words there are
    CONTINUES = BYTES
    spelling: Tensor  # words L: the characters of known words

    def __init__(self, config: ElmoConfig, heads: Mapping[str, int]) -> None:
        super().__init__(config)
        c = config
        self.tokens = nn.Embedding(FIRST_WORD, c.embedding_width)
        known = torch.full((max(0, c.vocabulary - FIRST_WORD), c.word_length), FILLING, dtype=torch.int16)
        self.register_buffer("spelling", known)
        self.words_from = CharacterCnn(c.embedding_width, c.kernels, c.maps, c.activation, c.highways, c.width)
        self.layers = nn.ModuleList(
            TwoWayLstm(c.width, c.inner, c.width, c.clip, c.projection_clip) for _ in range(c.layers)
        )
        self.dropout = nn.Dropout(c.dropout)
        self.mix = Mix(c.layers + 1) if c.mix else None
        self.heads = self.make_heads(heads)

    def make_head(self, name: str, outputs: int) -> nn.Module:
        c = self.config
        if name == "words":  # one table for both directions
            return WordHead(c.width, outputs, tied=False, bias=True)
        return ReaderHead(self.features, outputs, c.reader_layers, c.head_dropout)

    @property
    def features(self) -> int:
        """Width of both directions."""
        return 2 * self.config.width

    @property
    def state_widths(self) -> list[int]:
        return [self.features] * (self.config.layers + 1)

    def read_vocabulary(self, tokens: Mapping[str, int]) -> None:
        self.spelling.copy_(spelled(tokens, self.config.word_length))

    def unsound(self, tensors: Mapping[str, Tensor]) -> list[str]:
        spelling = tensors["spelling"]
        return (
            ["spelling"]
            if spelling.numel() and not 0 <= int(spelling.min()) <= int(spelling.max()) < FIRST_WORD
            else []
        )

    def forward(self, tokens: Tensor, rows: Rows, segments: None = None, states: States = None) -> Tensor:
        """N tokens -> N 2P: each token has the vector of its word; `states` gets the characters' and all layers'."""
        check_context(rows.longest, self.config.context)
        words = cut_words(tokens, rows)
        characters = characters_of(tokens, words, self.spelling, self.config.word_length)
        # Words of one token are worked out once each.
        key = torch.where(words.alone(), tokens[words.firsts], self.config.vocabulary + words.firsts)
        different, which = torch.unique(key, return_inverse=True)
        several = torch.zeros_like(different).scatter(0, which, torch.arange(len(which), device=which.device))
        characters = characters.index_select(0, several)  # U L
        lengths = (characters != FILLING).sum(1)
        used, longest = (
            torch.stack([part.max() for part in (lengths, words.starts.diff())]).tolist() if len(key) else (0, 0)
        )
        # Beyond the longest word all is filling: what one more window sees of it, the others see too.
        characters = characters[:, : used + self.words_from.reach]
        x = self.words_from(self.tokens(characters))[which]  # W P
        inside = Rows(words.starts, longest)
        x = torch.cat([x, x], -1)  # as published: the characters' layer for both directions
        seen = [x]
        for number, layer in enumerate(self.layers):
            made = layer(self.dropout(x), inside)
            x = made + x if number and self.config.skip else made
            seen.append(x)
        x = x if self.mix is None else self.mix(seen)
        for name, head in self.heads.items():
            if name != "words" and head.reader is not None:
                x, _ = head.reader(head.dropout(x), inside, last=False)
        if states is not None:
            states += [state[words.numbers] for state in seen]
        return x[words.numbers]

    def pooled(self, hidden: Tensor, rows: Rows) -> Tensor:
        """B 2P: the largest of each number in each row, however many bytes spell a word; 0 for a row of no words."""
        numbers = rows.numbers(hidden.shape[0])[:, None].expand_as(hidden)
        return hidden.new_zeros(rows.count, hidden.shape[1]).scatter_reduce(
            0, numbers, hidden, "amax", include_self=False
        )

    def word_inputs(self, hidden: Tensor) -> tuple[Tensor, Any]:
        """The forward half predicts the next word, or the backward half the one before: n P."""
        return hidden[:, : self.config.width], self.tokens.weight

    @property
    def products(self) -> float:
        """Products that one word costs, forward; the convolutions at every place of a word of eight characters."""
        c = self.config
        convolutions = sum(k * n for k, n in zip(c.kernels, c.maps, strict=True)) * c.embedding_width * 8
        dense = sum(c.maps) * (2 * c.highways * sum(c.maps) + c.width)
        layers = c.layers * 2 * (8 * c.inner * c.width + c.width * c.inner)
        return convolutions + dense + layers + 2 * c.width * (c.vocabulary if "words" in self.heads else 0)

    @torch.no_grad()
    def initialize(self) -> None:
        """Fresh weights: characters evenly between -1 and 1, as published."""
        self.tokens.weight.uniform_(-1.0, 1.0)
        self.words_from.initialize()
        for layer in self.layers:
            layer.initialize()
        start_weights(self.heads, self.config.weight_scale or self.config.width**-0.5)

"""Forecasts of time series: a network reads numbers step by step, and its head gives the next ones at every step.

The encoder is recurrent, a stack of dilated causal convolutions (van den Oord et al., 2016: WaveNet), a causal
Transformer (Vaswani et al., 2017), or nothing: a linear map of the window.

N: steps of all rows; B: rows; F: numbers of a step; W: width; O: outputs of the head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from weft.errors import UserError, refuse
from weft.models.base import ModelConfig, Network, States
from weft.models.shared import matrices
from weft.nn.layers import Layer, neighbors
from weft.nn.positions import Positions
from weft.nn.recurrent import Recurrent
from weft.nn.rows import Rows, check_context

Encoder = Literal["linear", "rnn", "lstm", "gru", "wavenet", "transformer"]
Strategy = Literal["seq2seq", "vector", "step"]
COEFFICIENTS = 1 << 26  # of the least-squares forecast at most


@dataclass(frozen=True, kw_only=True)
class ForecasterConfig(ModelConfig):
    """Sizes of a forecasting network, and what it forecasts."""

    encoder: Encoder = "gru"
    features: int = 1  # numbers of a step that are read, those to be forecast first
    targets: int = 1  # numbers of a step that are forecast
    horizon: int = 1  # steps ahead
    # seq2seq: every step of the window learns the next `horizon` ones; vector: the last step alone does;
    # step: the last step learns the next one, and a forecast is fed back for those after it.
    strategy: Strategy = "seq2seq"
    context: int = 50  # steps of a window
    width: int = 64
    layers: int = 2
    attention_heads: int = 4  # of a Transformer
    kernel: int = 2  # of a convolution
    dropout: float = 0.0
    vocabulary = 1  # it reads no tokens

    def __post_init__(self) -> None:
        super().__post_init__()
        size = self.context * self.features * self.horizon * self.targets
        uneven = self.encoder == "transformer" and self.width % (2 * self.attention_heads)
        refuse(
            (not 1 <= self.horizon <= 1 << 16, f"horizon must be between 1 and {1 << 16}, not {self.horizon}"),
            (not 1 <= self.targets <= self.features, f"targets must be between 1 and {self.features} features"),
            (not 1 <= self.attention_heads <= 1 << 10, f"attention_heads must be at least 1: {self.attention_heads}"),
            (bool(uneven), f"width {self.width} is not a multiple of 2 x {self.attention_heads} attention_heads"),
            (
                size > COEFFICIENTS,
                f"a window of {self.context} x {self.features} numbers is too large for this horizon",
            ),
        )
        if self.strategy == "step" and self.features != self.targets:
            raise UserError("strategy step feeds forecasts back, so every feature must be forecast: use seq2seq")

    @property
    def outputs(self) -> int:
        """How many outputs the head has."""
        return self.targets * (1 if self.strategy == "step" else self.horizon)


class DilatedConvolution(nn.Module):
    """A gated causal convolution that skips steps, with a residual."""

    def __init__(self, width: int, kernel: int, dilation: int, dropout: float) -> None:
        super().__init__()
        self.offsets = range(-dilation * (kernel - 1), 1, dilation)
        self.maps, self.output = nn.Linear(kernel * width, 2 * width), nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        """N W -> N W, and what the layer adds to the output of the stack."""
        bent, gate = self.maps(neighbors(x, rows, self.offsets)).chunk(2, -1)
        made = self.dropout(bent.tanh() * gate.sigmoid())
        return x + self.output(made), made


class Forecaster(Network):
    """The encoder and the head; the coefficients of least squares lie beside them, as the baseline of evaluations."""

    HEADS = ("forecast",)
    BY_TOKEN = ("forecast",)
    least_squares: Tensor

    def __init__(self, config: ForecasterConfig, heads: Mapping[str, int]) -> None:
        super().__init__(config)
        c = config
        if heads.get("forecast", c.outputs) != c.outputs:
            raise UserError(f"a head of {heads['forecast']} outputs, where horizon and targets make {c.outputs}")
        sizes = c.horizon * c.targets, c.context * c.features + 1  # the last column is a constant
        self.register_buffer("least_squares", torch.zeros(sizes))
        if c.encoder in ("rnn", "lstm", "gru"):
            self.recurrent = Recurrent(c.encoder, c.features, c.width, c.layers, dropout=c.dropout)
        elif c.encoder == "wavenet":
            self.inputs = nn.Linear(c.features, c.width)
            cycle = max(1, (c.context - 1).bit_length())  # dilations double until they span the window
            dilations = [2 ** (number % cycle) for number in range(c.layers)]
            self.layers = nn.ModuleList(DilatedConvolution(c.width, c.kernel, d, c.dropout) for d in dilations)
            self.final = nn.Linear(c.width, c.width)
        elif c.encoder == "transformer":
            self.inputs = nn.Linear(c.features, c.width)
            sizes_of_heads = {"heads": c.attention_heads, "head_width": c.width // c.attention_heads}
            self.positions = Positions("rotary", context=c.context, width=c.width, **sizes_of_heads)
            options = {"width": c.width, "inner": 4 * c.width, "dropout": c.dropout, "attention_dropout": c.dropout}
            self.layers = nn.ModuleList(
                Layer(causal=True, norm_place="before", **options, **sizes_of_heads)  # type: ignore[arg-type]
                for _ in range(c.layers)
            )
            self.final_norm = nn.LayerNorm(c.width)
        self.heads = self.make_heads(heads)

    @property
    def features(self) -> int:
        c = self.config
        return c.context * c.features if c.encoder == "linear" else c.width

    @property
    def products(self) -> float:
        return matrices(*self.children())

    def layer_names(self) -> list[tuple[str, ...]]:
        recurrent = self.config.encoder in ("rnn", "lstm", "gru")
        return [(f"recurrent.layers.{n}",) for n in range(self.config.layers)] if recurrent else super().layer_names()

    def stacks(self) -> dict[str, list[Any]]:
        recurrent = self.config.encoder in ("rnn", "lstm", "gru")
        return {"": [self.recurrent] * self.config.layers} if recurrent else super().stacks()

    def forward(self, tokens: Tensor, rows: Rows, segments: None = None, states: States = None) -> Tensor:
        """N F numbers -> N W, each step from itself and those before it."""
        c = self.config
        check_context(rows.longest, c.context)
        x = tokens.to(self.least_squares.dtype)
        seen = [x]
        if c.encoder == "linear":
            x = neighbors(x, rows, range(1 - c.context, 1))
        elif c.encoder == "wavenet":
            x = self.inputs(x)
            total = torch.zeros_like(x)
            for layer in self.layers:
                x, made = layer(x, rows)
                total = total + made
                seen.append(x)
            x = self.final(total.relu()).relu()
        elif c.encoder == "transformer":
            x = self.inputs(x)
            turns = self.positions.turns(rows.places(x.shape[0]), x.dtype)
            for layer in self.layers:
                x = layer(x, rows, None, turns)
                seen.append(x)
            x = self.final_norm(x)
        else:
            x, _ = self.recurrent(x, rows, last=False)
        if states is not None:
            states += [*seen, x]
        return x

    def forecasts(self, tokens: Tensor, rows: Rows) -> Tensor:
        """B O: the outputs of the head after the last step of each row."""
        return self.logits("forecast", self(tokens, rows)[rows.lasts()], rows)

    @torch.no_grad()
    def initialize(self) -> None:
        """Fresh weights: maps by their width, recurrent matrices as rotations, biases 0, norms 1."""
        self.least_squares.zero_()
        for module in self.modules():
            if isinstance(module, Recurrent):
                module.initialize()
            elif isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
            elif isinstance(module, nn.LayerNorm):
                nn.init.ones_(module.weight)
                nn.init.zeros_(module.bias)

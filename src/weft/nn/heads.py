"""What stands on top of an encoder or decoder: words, labels for a text, labels for its tokens, spans.

N: tokens; n: the places asked for; B: rows; T: longest row; K: likely first tokens of an answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from weft.nn.layer_choice import LayerChoice
from weft.nn.layers import activate
from weft.nn.linear import ONEDNN, PackedWeight, Packs, linear
from weft.nn.rows import Rows, filled, spread

FIRSTS = 20  # likely first tokens of an answer for which its last token is scored


def in_full(scores: Tensor) -> Tensor:
    """Scores in float32 at least: half precision is too coarse to choose words by."""
    return scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores


NARROW: ContextVar[bool] = ContextVar("narrow", default=False)


@contextmanager
def narrow_scores() -> Iterator[None]:
    """Within the context `start` and `step` give scores as the network computes them.

    To write a vocabulary's scores of many rows in float32, and to copy them, takes longer than to compute them.
    """
    before = NARROW.set(True)
    try:
        yield
    finally:
        NARROW.reset(before)


def step_scores(scores: Tensor) -> Tensor:
    """The scores that `start` and `step` give: in float32 at least, except within `narrow_scores`."""
    return scores if NARROW.get() else in_full(scores)


def scores_of(x: Tensor, table: Tensor, bias: Tensor | None, packed: PackedWeight) -> Tensor:
    """n width, vocabulary width -> n vocabulary"""
    if x.is_cuda and not torch.is_grad_enabled() and table.shape[0] % 8 and table.dtype.itemsize == 2:
        return aligned_scores(x, table, bias)
    few = 2 <= x.shape[0] <= 32 and x.device.type == "cpu" and not torch.is_grad_enabled()
    if not few or (ONEDNN and x.dtype is torch.float32) or torch.compiler.is_compiling():
        return linear(x, table, bias, packed)
    # A large table by a few rows, as in a beam: with the table first it takes other kernels half of the time.
    scores = torch.mm(table, x.t()).t().contiguous()
    return scores if bias is None else scores.add_(bias)


ALIGNED = WeakTensorKeyDictionary()  # of tables: how often they had changed, and their copies


def aligned_scores(x: Tensor, table: Tensor, bias: Tensor | None) -> Tensor:
    """The same by a table with rows of zeros up to a multiple of 64: others are four times as slow to multiply with."""
    scores = F.linear(x, aligned(table))[:, : len(table)]
    return scores if bias is None else scores + bias


def aligned(table: Tensor) -> Tensor:
    """The longer copy of a table, as the table is now."""
    version = 0 if table.is_inference() else table._version
    kept = ALIGNED.get(table)  # type: ignore[no-untyped-call]
    with torch.inference_mode(False), torch.no_grad():  # it may be used in any mode
        if kept is None or (kept[1].device, kept[1].dtype) != (table.device, table.dtype):
            kept = version, F.pad(table.detach(), (0, 0, 0, -len(table) % 64))
        elif kept[0] != version:
            kept[1][: len(table)] = table  # in place: a captured pass reads it there
    ALIGNED[table] = version, kept[1]
    return kept[1]


def follow_tables() -> None:
    """Let the copies follow their tables: a captured pass that is played back does not ask for them."""
    for each in ALIGNED.keyrefs():  # type: ignore[no-untyped-call]
        table = each()
        if table is not None and not table.is_inference() and table._version != ALIGNED[table][0]:
            aligned(table)


class Pooler(nn.Module):
    """BERT's summary of a text: its first token through one more layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)

    def forward(self, firsts: Tensor) -> Tensor:
        return self.dense(firsts).tanh()


class AttentionPooler(nn.Module):
    """A text as the mean of its tokens, each weighed by a learned query (Yang et al., 2016; Zhou et al., 2016)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)
        self.query = nn.Parameter(torch.zeros(width))

    def weights(self, hidden: Tensor, rows: Rows) -> Tensor:
        """N width -> N: the share of each token in its row, in float32 at least."""
        scores = in_full(self.dense(hidden).tanh() @ self.query)
        numbers = rows.numbers(len(scores))
        highest = scores.new_full((rows.count,), -1e30).scatter_reduce(0, numbers, scores.detach(), "amax")
        powers = (scores - highest[numbers]).exp()
        return powers / scores.new_zeros(rows.count).index_add(0, numbers, powers)[numbers]

    def forward(self, hidden: Tensor, rows: Rows) -> Tensor:
        """N width -> B width; 0 for a row of no tokens."""
        weighed = hidden * self.weights(hidden, rows).to(hidden.dtype)[:, None]
        return hidden.new_zeros(rows.count, hidden.shape[1]).index_add(0, rows.numbers(len(hidden)), weighed)


class Mix(nn.Module):
    """A learned mix of all layers (Peters et al., 2018): shares that add up to 1, and one scale."""

    def __init__(self, states: int) -> None:
        super().__init__()
        self.shares = nn.Parameter(torch.zeros(states))
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, states: list[Tensor]) -> Tensor:
        shares = self.shares.softmax(0) * self.scale
        return torch.stack([share * state for share, state in zip(shares.unbind(), states, strict=True)]).sum(0)

    @property
    def choice(self) -> LayerChoice:
        """What it has learned, as fixed weights."""
        shares = tuple((self.shares.softmax(0) * self.scale).tolist())
        return LayerChoice(tuple(range(len(shares))), "sum", shares)

    def weights(self) -> dict[str, float]:
        """The share of each layer, the embeddings first, and what their sum is multiplied by."""
        shares = self.shares.detach().double().softmax(0).tolist()
        names = ["embeddings", *(f"layer {number}" for number in range(1, len(shares)))]
        return {**dict(zip(names, shares, strict=True)), "scale": self.scale.item()}


class LabelHead(nn.Module):
    """Dropout and one linear map: labels of a text, of tokens, or the two ends of a span."""

    def __init__(self, width: int, outputs: int, dropout: float, bias: bool = True) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(width, outputs, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.dropout(x))


class DeepLabelHead(nn.Module):
    """Labels of a text through one more layer: tanh and dropout before it in RoBERTa, ReLU in DistilBERT."""

    def __init__(
        self, width: int, outputs: int, activation: str, dropout: float, dropout_before: float = 0.0, inner: int = 0
    ) -> None:
        super().__init__()
        self.activation = activation
        self.dropout_before = nn.Dropout(dropout_before)
        self.dense = nn.Linear(width, inner or width)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(inner or width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = activate(self.dense(self.dropout_before(x)), self.activation)
        return self.output(self.dropout(x))


class SpanHead(nn.Module):
    """The first token of an answer, its last token given the first, and whether there is one (Yang et al., 2019)."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.start = nn.Linear(width, 1)
        self.end_dense = nn.Linear(2 * width, width)
        self.end_norm = nn.LayerNorm(width, epsilon)
        self.end = nn.Linear(width, 1)
        self.none_dense = nn.Linear(2 * width, width)
        self.none = nn.Linear(width, 1, bias=False)

    def forward(self, hidden: Tensor, rows: Rows, summaries: Tensor, allowed: Tensor | None = None) -> Tensor:
        """N width -> N 2+K: scores as the first, of no answer (alike in a row), and as the last after K likely firsts.

        Those K are the tokens of the row with the highest scores as the first, best first. `summaries` (B width): the
        token for the whole row. `allowed` (N): the tokens that an answer may begin or end with, and the summary.
        """
        numbers = rows.numbers(len(hidden))
        banned = torch.zeros_like(numbers, dtype=torch.bool) if allowed is None else ~allowed
        lowest = torch.finfo(hidden.dtype).min
        starts = self.start(hidden).masked_fill(banned[:, None], lowest)
        whole = torch.where(filled(rows), spread(starts, rows)[..., 0].t(), -torch.inf)  # B T
        mean = whole.softmax(1)[numbers, rows.places(len(hidden))][:, None] * hidden
        mean = hidden.new_zeros(summaries.shape).index_add(0, numbers, mean)  # B width
        none = self.none(self.none_dense(torch.cat([mean, summaries], -1)).tanh())  # B 1
        likely = whole.sort(dim=1, descending=True, stable=True).indices[:, :FIRSTS]  # B K
        likely = torch.minimum(likely, rows.lengths().long()[:, None] - 1)  # a short row has fewer
        own, first = self.end_dense.weight.chunk(2, 1)
        own_part = F.linear(hidden, own, self.end_dense.bias)
        first_part = F.linear(hidden[rows.firsts()[:, None] + likely], first)  # B K width
        ends = [self.end(self.end_norm((own_part + part[numbers]).tanh())) for part in first_part.unbind(1)]
        ends = [end.masked_fill(banned[:, None], lowest) for end in ends]
        return torch.cat([starts, none[numbers], *ends], -1)


class ReplacedHead(nn.Module):
    """Whether a token was put there by a generator (He et al., 2023), from its own vector and its row's first."""

    def __init__(self, width: int, activation: str, epsilon: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, epsilon)
        self.dense = nn.Linear(width, width)
        self.activation = activation
        self.output = nn.Linear(width, 1)

    def forward(self, x: Tensor, firsts: Tensor) -> Tensor:
        """N width, and of each token the first of its row -> N 1"""
        return self.output(activate(self.dense(self.norm(firsts + x)), self.activation))


class TableHead(nn.Module):
    """A word head whose logits are one product with a table: what a loss can take a chunk at a time."""

    def operands(self, x: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """n width, vocabulary table_width -> what is multiplied with which table, and the bias of the words."""
        raise NotImplementedError


class MaskedWordHead(TableHead):
    """BERT's word head: one more layer, then the transposed table of tokens, or a table of its own."""

    def __init__(
        self,
        width: int,
        vocabulary: int,
        activation: str,
        epsilon: float,
        tied: bool,
        table_width: int | None = None,
        second_bias: bool = True,
    ) -> None:
        super().__init__()
        table_width = table_width or width
        self.dense = nn.Linear(width, table_width)
        self.norm = nn.LayerNorm(table_width, epsilon)
        self.activation = activation
        # The published format keeps the bias of the tied table also beside that of an own one, except in DistilBERT.
        self.decoder = None if tied else nn.Linear(table_width, vocabulary, bias=second_bias)
        self.bias = nn.Parameter(self.dense.bias.new_zeros(vocabulary))

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        """n width, vocabulary table_width -> n vocabulary"""
        return F.linear(*self.operands(x, tokens))

    def operands(self, x: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        x = self.norm(activate(self.dense(x), self.activation))
        if self.decoder is None:
            return x, tokens, self.bias
        return x, self.decoder.weight, self.bias if self.decoder.bias is None else self.decoder.bias


class WordHead(Packs, TableHead):
    """A decoder's word head: the transposed table of tokens, or a table of its own, and a bias where published."""

    def __init__(self, width: int, vocabulary: int, tied: bool, bias: bool = False) -> None:
        super().__init__()
        self.decoder = None if tied else nn.Linear(width, vocabulary, bias=False)
        self.bias = nn.Parameter(torch.zeros(vocabulary)) if bias else None

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        return scores_of(*self.operands(x, tokens), self.packed)

    def operands(self, x: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        return x, tokens if self.decoder is None else self.decoder.weight, self.bias

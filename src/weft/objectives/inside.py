"""What a student learns from the inside of a teacher that runs along: states, attention, relations, and its words.

N: tokens; B: rows; H, D: heads and their width; n: places where a word is asked for; V: vocabulary;
b, t, s: rows, queries and keys of one square.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.data.masking import NOTHING
from weft.nn.attention import Square, squares_of
from weft.nn.heads import in_full
from weft.nn.rows import Batch, Rows
from weft.objectives.base import Objective

CELLS = 1 << 23  # of two texts compared token by token, so many numbers are in memory at once


# ---------------------------------------------------------------------------------------------- who looks at whom


@dataclass(frozen=True)
class Looks:
    """How much each token of a row looks at each other, not yet worked out: that would fill a square for each row."""

    query: Tensor  # N H D
    key: Tensor  # N H D
    scale: float
    bias: Tensor | None = None  # H T S

    def chances(self, query: Tensor, key: Tensor, first: int, may: Tensor | None) -> Tensor:
        """Some queries of a square, from place `first` on, and all its keys -> b H t s: logarithms of chances."""
        scores = query @ key.transpose(-2, -1) * self.scale
        if self.bias is not None:
            scores = scores + self.bias[:, first : first + query.shape[-2], : key.shape[-2]].to(scores.dtype)
        # Not minus infinity: what nobody looks at must cost nothing, and 0 times infinity is no number.
        return (scores if may is None else scores.masked_fill(~may, -1e30)).log_softmax(-1)


def divergence(theirs: Looks, ours: Looks, rows: Rows, real: Tensor | None, causal: bool) -> Tensor:
    """How far the student's looks are from the teacher's: KL, the mean over heads, summed over all tokens that count.

    Where the two have different numbers of heads, of how all heads look on the whole (the mean of their chances).
    `real` (B): rows that count.
    """
    total = ours.query.shape[0]
    found = ours.query.new_zeros((), dtype=in_full(ours.query).dtype)
    for square in squares_of(rows, None, total, total):
        sides = [in_full(square.query.lay(x)) for x in (theirs.query, theirs.key, ours.query, ours.key)]
        counted = _counted(square, rows, real, sides[2])
        apart: Tensor = _Divergence.apply(*sides[2:], *sides[:2], counted, theirs, ours, square, causal)  # type: ignore[no-untyped-call]
        found = found + apart
    return found


def _counted(square: Square, rows: Rows, real: Tensor | None, like: Tensor) -> Tensor:
    """b 1 t: 1 where a query is a token that counts."""
    b, _, t, _ = like.shape
    counted = like.new_ones(b, 1, t) if square.real is None else square.real[:, 0].to(like.dtype)
    if real is None:
        return counted
    return counted * (real if square.rows is None else real[square.rows])[:, None, None].to(like.dtype)


class _Divergence(torch.autograd.Function):
    """Of one square, in pieces: each piece leaves its gradient and nothing else, so that memory does not grow."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        their_query: Tensor,
        their_key: Tensor,
        counted: Tensor,
        theirs: Looks,
        ours: Looks,
        square: Square,
        causal: bool,
    ) -> Tensor:
        wanted = any(ctx.needs_input_grad[:2])
        gradients = [torch.zeros_like(query), torch.zeros_like(key)] if wanted else []
        same = query.shape[1] == their_query.shape[1]
        found = query.new_zeros(())
        for some, first, last in _pieces(query, their_query):
            t_query, t_key, weight = their_query[some, :, first:last], their_key[some], counted[some, :, first:last]
            may = _may(square, some, first, last, causal, query)
            target = _of_heads(theirs.chances(t_query, t_key, first, may), same)
            with torch.enable_grad():
                q, k = query[some, :, first:last].detach(), key[some].detach()
                q, k = (q.requires_grad_(), k.requires_grad_()) if wanted else (q, k)
                said = _of_heads(ours.chances(q, k, first, may), same)
                apart = (target.exp() * (target - said)).sum(-1) * weight  # b H t
                piece = apart.sum() / said.shape[1]
            found += piece.detach()
            if wanted:
                of_query, of_key = torch.autograd.grad(piece, (q, k))
                gradients[0][some, :, first:last] += of_query
                gradients[1][some] += of_key
        ctx.save_for_backward(*gradients)
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        return (*(gradient * part for part in ctx.saved_tensors), *[None] * 7)


def _pieces(query: Tensor, theirs: Tensor) -> Iterator[tuple[slice, int, int]]:
    """Rows, and first and last query, that are worked on together."""
    b, _, t, _ = query.shape
    heads = max(query.shape[1], theirs.shape[1])
    rows = max(1, CELLS // (heads * t * t))
    queries = t if heads * t * t <= CELLS else max(1, CELLS // (heads * t))
    for row in range(0, b, rows):
        for first in range(0, t, queries):
            yield slice(row, row + rows), first, min(t, first + queries)


def _may(square: Square, some: slice, first: int, last: int, causal: bool, like: Tensor) -> Tensor | None:
    """b 1 t s: which keys a query may look at; None: all."""
    may = None if square.real is None else square.real[some]
    if not causal:
        return may
    keys = torch.arange(square.key.longest, device=like.device)
    past = keys <= torch.arange(first, last, device=like.device)[:, None]
    return past if may is None else may & past


def _of_heads(chances: Tensor, same: bool) -> Tensor:
    """Of each head, or where they cannot be told apart from the other's, of all together."""
    return chances if same else chances.logsumexp(1, keepdim=True) - math.log(chances.shape[1])


def related(x: Tensor, heads: int) -> Looks:
    """How alike the tokens of a row are, by their queries, keys or values (N H D), cut anew into so many heads."""
    x = x.reshape(x.shape[0], heads, -1)  # N heads D
    return Looks(x, x, x.shape[-1] ** -0.5)


# -------------------------------------------------------------------------------------------------- looking inside


class Seen:
    """A network that an objective uses as any other, and that remembers what went on inside."""

    def __init__(self, network: Any, states: bool, layers: Collection[int]) -> None:
        self.network = network
        self.states: list[Tensor] | None = [] if states else None  # embeddings, and what each layer made of them
        self.layers = layers  # whose looks are wanted, from 1
        self.heard: dict[int, tuple[Tensor, Tensor, Tensor]] = {}  # query, key and value of these: N H D each
        self.turn = 0
        self.hidden: Tensor
        self.said: Tensor  # n V: scores of words

    def __call__(self, tokens: Tensor, rows: Rows, segments: Tensor | None = None, **more: Any) -> Tensor:
        if self.states is not None:
            more["states"] = self.states
        with listening(self.network, self._hear if self.layers else None):
            self.hidden = self.network(tokens, rows, segments, **more)
        return self.hidden

    def _hear(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        self.turn += 1  # in the order of the layers, were they one layer that is read again and again
        if self.turn in self.layers:
            self.heard[self.turn] = (query, key, value)

    def words(self, hidden: Tensor) -> Tensor:
        self.said = self.network.words(hidden)
        return self.said

    def __getattr__(self, name: str) -> Any:
        return getattr(self.network, name)

    def looks(self, layer: int, rows: Rows) -> Looks:
        """The attention of a layer."""
        query, key, _ = self.heard[layer]
        scale = self.network.layers[-1].attention.scale or query.shape[-1] ** -0.5
        return Looks(query, key, scale, self.network.positions.bias(rows, None))


@contextmanager
def listening(network: Any, listener: Callable[[Tensor, Tensor, Tensor], None] | None) -> Iterator[None]:
    """While the network reads, every layer says what it compares; its attention stays as fast as it is."""
    layers = () if listener is None else network.layers
    for layer in layers:
        layer.attention.listener = listener
    try:
        yield
    finally:
        for layer in layers:
            layer.attention.listener = None


class Teacher(nn.Module):
    """A teacher that reads what the student reads, by the student's tokens; it learns nothing."""

    def __init__(self, network: nn.Module, tokens: Tensor | None = None) -> None:
        """`tokens`: which of the teacher's each token of the student's is; None: the same."""
        super().__init__()
        self.network = network.eval()
        self.tokens: Tensor | None
        self.register_buffer("tokens", tokens, persistent=False)

    @torch.no_grad()
    def read(self, batch: Batch, states: bool, layers: Collection[int]) -> Seen:
        """What it makes of a batch."""
        if next(self.network.parameters()).device != batch.tokens.device:
            self.to(batch.tokens.device)  # once: it goes where the student is trained
        seen = Seen(self.network, states, layers)
        seen(self.own(batch.tokens), batch.rows, batch.segments)
        return seen

    def own(self, tokens: Tensor) -> Tensor:
        """The student's tokens by the teacher's numbers."""
        return tokens if self.tokens is None else self.tokens[tokens]

    @torch.no_grad()
    def forward(self, tokens: Tensor, rows: Rows, segments: Tensor | None = None) -> Tensor:
        """N tokens -> N width, as any network, so that a teacher can be judged by what its student is judged by."""
        hidden: Tensor = self.network(self.own(tokens), rows, segments)
        return hidden

    @torch.no_grad()
    def words(self, hidden: Tensor) -> Tensor:
        """n width -> n V: its scores of the words that the student knows."""
        network: Any = self.network
        scores = network.words(hidden)
        return scores if self.tokens is None else scores[:, self.tokens]


# ------------------------------------------------------------------------------------------------------- objective


@dataclass(frozen=True)
class SoftWords:
    """The teacher's chances of all words where one is asked for (Hinton et al., 2015), beside the right one."""

    temperature: float = 2.0
    hard: float = 0.5  # how much the right word counts: the rest is the teacher's

    def sum(self, said: Tensor, theirs: Tensor, labels: Tensor) -> Tensor:
        """n V each -> the divergence, times the temperature's square, which keeps its gradient in proportion."""
        target = (in_full(theirs) / self.temperature).log_softmax(-1)
        ours = (in_full(said) / self.temperature).log_softmax(-1)
        apart = F.kl_div(ours, target, reduction="none", log_target=True).sum(-1)
        return self.temperature**2 * (1 - self.hard) * (apart * (labels != NOTHING)).sum()


@dataclass(frozen=True)
class Matched(Objective):
    """An objective, and beside it what is to be like the teacher's inside.

    states: the mean square between the states of layers that answer to each other (Jiao et al., 2020: TinyBERT);
    attention: the divergence between what their heads look at (Sun et al., 2020: MobileBERT);
    relations: that between how alike the queries, the keys and the values of two tokens are in the last layer (Wang et
    al., 2021: MiniLMv2); cosine: the angle between the last states (Sanh et al., 2019: DistilBERT).
    Held-out losses are those of the objective alone, so that runs with and without a teacher can be compared.
    """

    objective: Objective
    teacher: Teacher
    match: tuple[str, ...]
    weight: float = 1.0
    pairs: tuple[tuple[int, int], ...] = ()  # layers of the student and the teacher, 0: embeddings
    last: tuple[int, int] = (0, 0)  # the last layers of both
    relation_heads: int = 1
    causal: bool = False
    # What leads from the student's states to the teacher's where their widths differ: trained with the student,
    # kept in checkpoints, and no part of its model.
    beside: nn.ModuleDict = field(default_factory=nn.ModuleDict)
    soft: SoftWords | None = None

    @property
    def terms(self) -> tuple[str, ...]:
        return (*self.objective.terms, *(("soft",) if self.soft else ()), *self.match)

    @property
    def heads(self) -> Mapping[str, int | None]:
        return self.objective.heads

    def counts(self, batch: Batch) -> dict[str, int]:
        found = self.objective.counts(batch)
        soft = {"soft": found["words"]} if self.soft else {}
        real = _real(batch)
        tokens = len(batch.tokens) if real is None else int(batch.rows.lengths()[real].sum())
        return {**found, **soft, **dict.fromkeys(self.match, tokens)}

    def sums(self, network: Any, batch: Batch) -> dict[str, Tensor]:
        if not network.training:
            return self.objective.sums(network, batch)
        states = "states" in self.match
        ours, theirs = ({layer[side] for layer in self._watched()} for side in (0, 1))
        seen = Seen(network, states, ours)
        found = self.objective.sums(seen, batch)
        teacher = self.teacher.read(batch, states, theirs)
        soft = {}
        if self.soft is not None:
            places = batch.targets.get("places")
            words = self.teacher.words(teacher.hidden if places is None else teacher.hidden[places])
            soft["soft"] = self.soft.sum(seen.said, words, batch.targets["words"])
            found = {**found, "words": self.soft.hard * found["words"]}
        with torch.autocast(batch.tokens.device.type, enabled=False):  # differences of like numbers want all digits
            return {
                **found,
                **soft,
                **{name: self.weight * self._term(name, seen, teacher, batch) for name in self.match},
            }

    def _watched(self) -> list[tuple[int, int]]:
        """Layers whose looks are compared."""
        found = [pair for pair in self.pairs if min(pair) > 0] if "attention" in self.match else []
        return [*found, self.last] if "relations" in self.match else found

    def _term(self, name: str, seen: Seen, teacher: Seen, batch: Batch) -> Tensor:
        real = _real(batch)
        if name == "attention":
            pairs = [pair for pair in self.pairs if min(pair) > 0]
            each = [(teacher.looks(there, batch.rows), seen.looks(here, batch.rows)) for here, there in pairs]
            return _total([divergence(*looks, batch.rows, real, self.causal) for looks in each])
        if name == "relations":
            here, there = self.last
            both = zip(teacher.heard[there], seen.heard[here], strict=True)  # query, key, value
            each = [(related(one, self.relation_heads), related(other, self.relation_heads)) for one, other in both]
            return _total([divergence(*looks, batch.rows, real, self.causal) for looks in each])
        weight = None if real is None else real[batch.rows.numbers(len(batch.tokens))].to(in_full(seen.hidden).dtype)
        if name == "cosine":
            apart = 1 - F.cosine_similarity(self._led("cosine", seen.hidden), in_full(teacher.hidden), dim=-1)  # N
            return apart.sum() if weight is None else (apart * weight).sum()
        assert seen.states is not None and teacher.states is not None
        each_apart = []
        for here, there in self.pairs:
            led = self._led("states" if here else "embeddings", seen.states[here])
            apart = (led - in_full(teacher.states[there])).square().mean(-1)  # N
            each_apart.append(apart.sum() if weight is None else (apart * weight).sum())
        return _total(each_apart)

    def _led(self, name: str, x: Tensor) -> Tensor:
        """The student's states, as wide as the teacher's."""
        return self.beside[name](in_full(x)) if name in self.beside else in_full(x)


def _total(each: list[Tensor]) -> Tensor:
    return torch.stack(each).sum()


def _real(batch: Batch) -> Tensor | None:
    """B: which rows are an example's; batches that are filled up to few shapes have others. None: all are."""
    shares = batch.targets.get("shares")
    return None if shares is None else shares > 0

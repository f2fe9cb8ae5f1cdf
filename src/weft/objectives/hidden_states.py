"""Losses between the hidden states of a student and of a teacher that reads every batch too.

N: tokens; B: rows; H, D: heads and their width; n: places where a word is predicted; V: vocabulary;
b, t, s: rows, queries and keys of one square.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.data.masking import NOTHING
from weft.nn.attention import Square, squares_of
from weft.nn.heads import in_full
from weft.nn.rows import Batch, Rows
from weft.nn.word_loss import cross_entropy
from weft.objectives.losses import Objective, SoftTargets

CELLS = 1 << 23  # numbers of attention maps in memory at once


@dataclass(frozen=True)
class AttentionMap:
    """The attention between the tokens of each row, not yet computed: that would fill a square for each row."""

    query: Tensor  # N H D
    key: Tensor  # N H D
    scale: float
    bias: Tensor | None = None  # H T S

    def logprobs(self, query: Tensor, key: Tensor, first: int, allowed: Tensor | None) -> Tensor:
        """Some queries of a square, from place `first` on, and all its keys -> b H t s."""
        scores = query @ key.transpose(-2, -1) * self.scale
        if self.bias is not None:
            scores = scores + self.bias[:, first : first + query.shape[-2], : key.shape[-2]].to(scores.dtype)
        # Not minus infinity: a masked key must cost nothing, and 0 times infinity is not a number.
        return (scores if allowed is None else scores.masked_fill(~allowed, -1e30)).log_softmax(-1)


def divergence(theirs: AttentionMap, ours: AttentionMap, rows: Rows, real: Tensor | None, causal: bool) -> Tensor:
    """The KL divergence of the student's attention from the teacher's: the mean over heads, summed over tokens.

    Where the two have different numbers of heads, that of the mean over heads. `real` (B): rows that count.
    """
    size = ours.query.shape[0]
    total = ours.query.new_zeros((), dtype=in_full(ours.query).dtype)
    for square in squares_of(rows, None, size, size):
        sides = [in_full(square.query.lay(x)) for x in (theirs.query, theirs.key, ours.query, ours.key)]
        like, (b, _, t, _) = sides[2], sides[2].shape
        counted = like.new_ones(b, 1, t) if square.real is None else square.real[:, 0].to(like.dtype)  # b 1 t
        if real is not None:
            counted = counted * (real if square.rows is None else real[square.rows])[:, None, None].to(like.dtype)
        maps = (theirs, *sides[:2], ours)
        apart: Tensor = _Divergence.apply(*sides[2:], maps, counted, square, causal)  # type: ignore[no-untyped-call]
        total = total + apart
    return total


class _Divergence(torch.autograd.Function):
    """Of one square, in pieces: each piece leaves its gradient and nothing else, so that memory does not grow."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, maps: tuple[Any, ...], counted: Tensor, square: Square, causal: bool
    ) -> Tensor:
        theirs, their_query, their_key, ours = maps
        trained = any(ctx.needs_input_grad[:2])
        gradients = [torch.zeros_like(query), torch.zeros_like(key)] if trained else []
        same = query.shape[1] == their_query.shape[1]
        total = query.new_zeros(())
        for rows, first, last in _pieces(query, their_query):
            t_query, t_key, weight = their_query[rows, :, first:last], their_key[rows], counted[rows, :, first:last]
            allowed = None if square.real is None else square.real[rows]  # b 1 t s: which keys a query attends to
            if causal:
                keys = torch.arange(square.key.longest, device=query.device)
                past = keys <= torch.arange(first, last, device=query.device)[:, None]
                allowed = past if allowed is None else allowed & past
            target = _of_heads(theirs.logprobs(t_query, t_key, first, allowed), same)
            with torch.enable_grad():
                q, k = query[rows, :, first:last].detach(), key[rows].detach()
                q, k = (q.requires_grad_(), k.requires_grad_()) if trained else (q, k)
                logprobs = _of_heads(ours.logprobs(q, k, first, allowed), same)
                apart = (target.exp() * (target - logprobs)).sum(-1) * weight  # b H t
                piece = apart.sum() / logprobs.shape[1]
            total += piece.detach()
            if trained:
                of_query, of_key = torch.autograd.grad(piece, (q, k))
                gradients[0][rows, :, first:last] += of_query
                gradients[1][rows] += of_key
        ctx.save_for_backward(*gradients)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        return (*(gradient * part for part in ctx.saved_tensors), *[None] * 4)


def _pieces(query: Tensor, theirs: Tensor) -> Iterator[tuple[slice, int, int]]:
    """Rows, and first and last query, that are computed together."""
    b, _, t, _ = query.shape
    heads = max(query.shape[1], theirs.shape[1])
    rows = max(1, CELLS // (heads * t * t))
    queries = t if heads * t * t <= CELLS else max(1, CELLS // (heads * t))
    for row in range(0, b, rows):
        for first in range(0, t, queries):
            yield slice(row, row + rows), first, min(t, first + queries)


def _of_heads(logprobs: Tensor, same: bool) -> Tensor:
    """Of each head, or where teacher and student have different numbers of them, of all together."""
    return logprobs if same else logprobs.logsumexp(1, keepdim=True) - math.log(logprobs.shape[1])


class Recorder:
    """A network that an objective uses as any other, and that keeps its hidden states, queries, keys and values."""

    def __init__(self, network: Any, states: bool, layers: Collection[int]) -> None:
        self.network, self.training, self.logits = network, network.training, network.logits
        self.states: list[Tensor] | None = [] if states else None  # embeddings, and the output of each layer
        self.layers = layers  # whose attention is recorded, from 1
        self.attention: dict[int, tuple[Tensor, Tensor, Tensor]] = {}  # query, key and value of these: N H D each
        self.layer = 0
        self.hidden: Tensor
        self.word_logits: Tensor  # n V

    def __call__(self, tokens: Tensor, rows: Rows, segments: Tensor | None = None, **more: Any) -> Tensor:
        if self.states is not None:
            more["states"] = self.states
        layers = self.network.layers if self.layers else ()
        try:
            for layer in layers:
                layer.attention.listener = self._record  # attention stays as fast as it is
            self.hidden = self.network(tokens, rows, segments, **more)
        finally:
            for layer in layers:
                layer.attention.listener = None
        return self.hidden

    def _record(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        self.layer += 1  # in the order of the layers, also where one layer is read again and again
        if self.layer in self.layers:
            self.attention[self.layer] = (query, key, value)

    def words(self, hidden: Tensor) -> Tensor:
        self.word_logits = self.network.words(hidden)
        return self.word_logits

    def word_loss(self, hidden: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        """From all logits at once, which the teacher's are compared with."""
        return cross_entropy(self.words(hidden), labels, smoothing)

    def attention_map(self, layer: int, rows: Rows) -> AttentionMap:
        query, key, _ = self.attention[layer]
        scale = self.network.layers[-1].attention.scale or query.shape[-1] ** -0.5
        return AttentionMap(query, key, scale, self.network.positions.bias(rows, None))


class TeacherNetwork(nn.Module):
    """A teacher that reads what the student reads, by the student's tokens; it learns nothing."""

    def __init__(self, network: nn.Module, tokens: Tensor | None = None) -> None:
        """`tokens`: which of the teacher's each token of the student's is; None: the same."""
        super().__init__()
        self.network = network.eval()
        self.tokens: Tensor | None
        self.register_buffer("tokens", tokens, persistent=False)

    @torch.no_grad()
    def read(self, batch: Batch, states: bool, layers: Collection[int]) -> Recorder:
        """One pass over a batch, recorded."""
        if next(self.network.parameters()).device != batch.tokens.device:
            self.to(batch.tokens.device)  # once: to where the student is trained
        recorder = Recorder(self.network, states, layers)
        self(batch.tokens, batch.rows, batch.segments, recorder)
        return recorder

    @torch.no_grad()
    def forward(self, tokens: Tensor, rows: Rows, segments: Tensor | None = None, through: Any = None) -> Tensor:
        """N tokens -> N width, as any network, so that a teacher can be evaluated as its student is."""
        hidden: Tensor = (through or self.network)(
            tokens if self.tokens is None else self.tokens[tokens], rows, segments
        )
        return hidden

    @torch.no_grad()
    def words(self, hidden: Tensor) -> Tensor:
        """n width -> n V: its logits of the words that the student knows."""
        network: Any = self.network
        logits = network.words(hidden)
        return logits if self.tokens is None else logits[:, self.tokens]

    def word_loss(self, hidden: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        """The summed cross-entropy of the student's words."""
        return cross_entropy(self.words(hidden), labels, smoothing)


@dataclass(frozen=True)
class MatchedStates(Objective):
    """An objective, and beside it a student whose hidden states match those of its teacher.

    states: the mean square between the states of matched layers (Jiao et al., 2020: TinyBERT);
    attention: the divergence between their attention maps (Sun et al., 2020: MobileBERT);
    relations: that between the similarities of queries, keys and values of two tokens in the last layer (Wang et al.,
    2021: MiniLMv2); cosine: the angle between the last states (Sanh et al., 2019: DistilBERT);
    with `soft`, also the teacher's probabilities of all words where one is predicted.
    Held-out losses are those of the objective alone, so that runs with and without a teacher can be compared.
    """

    objective: Objective
    teacher: TeacherNetwork
    match: tuple[str, ...]
    weight: float = 1.0
    pairs: tuple[tuple[int, int], ...] = ()  # layers of the student and the teacher, 0: embeddings
    last: tuple[int, int] = (0, 0)  # the last layers of both
    relation_heads: int = 1
    causal: bool = False
    # Projections from the student's states to the teacher's where their widths differ: trained with the student, kept
    # in checkpoints, and no part of its model.
    beside: nn.ModuleDict = field(default_factory=nn.ModuleDict)
    soft: SoftTargets | None = None

    @property
    def terms(self) -> tuple[str, ...]:
        return (*self.objective.terms, *(("soft",) if self.soft else ()), *self.match)

    @property
    def heads(self) -> Mapping[str, int | None]:
        return self.objective.heads

    def counts(self, batch: Batch) -> dict[str, int]:
        counts = self.objective.counts(batch)
        soft = {"soft": counts["words"]} if self.soft else {}
        real = _real(batch)
        tokens = len(batch.tokens) if real is None else int(batch.rows.lengths()[real].sum())
        return {**counts, **soft, **dict.fromkeys(self.match, tokens)}

    def sums(self, network: Any, batch: Batch) -> dict[str, Tensor]:
        if not network.training:
            return self.objective.sums(network, batch)
        states = "states" in self.match
        # Whose attention is compared.
        layers = [pair for pair in self.pairs if min(pair) > 0] if "attention" in self.match else []
        layers += [self.last] if "relations" in self.match else []
        student = Recorder(network, states, {ours for ours, _ in layers})
        sums = self.objective.sums(student, batch)
        teacher = self.teacher.read(batch, states, {theirs for _, theirs in layers})
        if self.soft is not None:
            places = batch.targets.get("places")
            logits = self.teacher.words(teacher.hidden if places is None else teacher.hidden[places])
            apart = self.soft.one_of(in_full(student.word_logits), in_full(logits))
            soft = (1 - self.soft.hard) * (apart * (batch.targets["words"] != NOTHING)).sum()
            sums = {**sums, "words": self.soft.hard * sums["words"], "soft": soft}
        with torch.autocast(batch.tokens.device.type, enabled=False):  # small differences need full precision
            return sums | {name: self.weight * self._term(name, student, teacher, batch) for name in self.match}

    def _term(self, name: str, student: Recorder, teacher: Recorder, batch: Batch) -> Tensor:
        rows, real = batch.rows, _real(batch)
        if name == "attention":
            pairs = [pair for pair in self.pairs if min(pair) > 0]
            maps = [(teacher.attention_map(theirs, rows), student.attention_map(ours, rows)) for ours, theirs in pairs]
            return torch.stack([divergence(*both, rows, real, self.causal) for both in maps]).sum()
        if name == "relations":
            ours, theirs = self.last
            both = zip(teacher.attention[theirs], student.attention[ours], strict=True)  # query, key, value
            # How similar the tokens of a row are, by each of these, split anew into heads: N heads D.
            split = [[x.reshape(x.shape[0], self.relation_heads, -1) for x in pair] for pair in both]
            related = [[AttentionMap(x, x, x.shape[-1] ** -0.5) for x in pair] for pair in split]
            return torch.stack([divergence(x, y, rows, real, self.causal) for x, y in related]).sum()
        weight = None if real is None else real[rows.numbers(len(batch.tokens))].to(in_full(student.hidden).dtype)
        if name == "cosine":
            apart = 1 - F.cosine_similarity(self._projected("cosine", student.hidden), in_full(teacher.hidden), dim=-1)
            return apart.sum() if weight is None else (apart * weight).sum()
        assert student.states is not None and teacher.states is not None
        sums = []
        for ours, theirs in self.pairs:
            projected = self._projected("states" if ours else "embeddings", student.states[ours])
            apart = (projected - in_full(teacher.states[theirs])).square().mean(-1)  # N
            sums.append(apart.sum() if weight is None else (apart * weight).sum())
        return torch.stack(sums).sum()

    def _projected(self, name: str, x: Tensor) -> Tensor:
        """The student's states, as wide as the teacher's."""
        return self.beside[name](in_full(x)) if name in self.beside else in_full(x)


def _real(batch: Batch) -> Tensor | None:
    """B: rows of examples, in a batch that is filled up to few shapes. None: all are."""
    shares = batch.targets.get("shares")
    return None if shares is None else shares > 0

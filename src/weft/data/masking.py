"""What the network is to predict: masked tokens (Devlin et al., 2019), the next token, spans (Raffel et al., 2020), or
tokens in an order drawn by chance (Yang et al., 2019).

Spans are taken out of a text and written after the sentinels that stand there:

    read       Thank you <extra_id_0> me to your party <extra_id_1> </s>
    written    <extra_id_0> for inviting <extra_id_1> last week </s>

As in the published code, a row begins with text and ends with a gap. N: tokens; n: masked places; B: rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from weft.data.chance import below, key_of, order_by, scrambled, uniform
from weft.data.rows import Drawn, flat
from weft.data.shards import Places
from weft.errors import UserError
from weft.nn.characters import cut_words
from weft.nn.rows import NOTHING as NOTHING
from weft.nn.rows import Batch, Ragged, Rows
from weft.spelling import BEGIN, BYTES, END
from weft.text.tokenizers.tokenizer import Tokenizer

Targets = Mapping[str, NDArray[Any]]


def shift(drawn: Drawn, longest: int | None = None, start: int | None = None) -> Batch:
    """Each token predicts the next one of its row; `start`, the token before each document, is never predicted."""
    keep = np.ones(len(drawn.tokens), dtype=bool)
    keep[drawn.starts[1:] - 1] = False  # the last token of a row is only a label
    labels = np.r_[drawn.tokens[1:], 0]
    if start is not None:
        labels[:-1][drawn.given[1:] & (labels[:-1] == start)] = NOTHING
    lengths = np.diff(drawn.starts) - 1
    targets = {"words": labels[keep]}
    if drawn.places is not None:  # rows that go on: the stream of each
        targets["streams"] = drawn.places
    segments = None if drawn.segments is None else drawn.segments[keep]
    return make_batch(drawn.tokens[keep], lengths[lengths > 0], targets, segments, longest)


def two_way(drawn: Drawn, longest: int | None = None) -> Batch:
    """Each word predicts the next one of its row and the one before, in the same document; unknown ones by their mark.

    `places`: the first token of each word.
    """
    batch = make_batch(drawn.tokens, np.diff(drawn.starts), {}, longest=longest)
    words = cut_words(batch.tokens, batch.rows)
    first = batch.tokens[words.firsts]
    first = torch.where((first >= BYTES.start) & (first < BYTES.stop), BEGIN, first)  # cut off where its row begins
    targets = {
        "places": words.firsts,
        "words": torch.full_like(first, NOTHING),
        "before": torch.full_like(first, NOTHING),
    }
    rows = words.rows_of_words()
    same = (rows[1:] == rows[:-1]) & (first[:-1] != END)
    targets["words"][:-1][same] = first[1:][same]
    targets["before"][1:][same] = first[:-1][same]
    return replace(batch, targets=targets)


def make_batch(
    tokens: Places,
    lengths: Places,
    targets: Targets,
    segments: Places | None = None,
    longest: int | None = None,
    positions: Places | None = None,
) -> Batch:
    return Batch(
        torch.from_numpy(tokens),
        rows_of(lengths, longest),
        None if segments is None else torch.from_numpy(segments),
        {name: torch.from_numpy(target) for name, target in targets.items()},
        positions=None if positions is None else torch.from_numpy(positions),
    )


@dataclass(frozen=True)
class Masking:
    """Which places are masked and what the network sees there: 80 % the mask, 10 % any token, 10 % the token itself."""

    # Drawn anew in each epoch, from the seed. The share of each row is exact to rounding, and at least one place. With
    # `shown` 0 it sees the mask everywhere.

    mask: int
    choices: Places  # tokens that may stand in for another: all but the special ones
    inside: NDArray[np.bool_] | None  # by token: whether it continues a word; None: mask token by token
    rate: float
    seed: int
    shown: float = 0.2  # share of the masked places that show a token, half of them another one

    @staticmethod
    def of(tokenizer: Tokenizer, rate: float, whole_words: bool, seed: int, shown: float = 0.2) -> Masking:
        mask = tokenizer.id_of("mask")
        if mask is None:
            raise UserError("this vocabulary has no mask token; learn one of kind wordpiece, or choose objective next")
        special = {tokenizer.library.token_to_id(name) for name in vars(tokenizer.roles).values() if name is not None}
        special |= {number for number, token in tokenizer.library.get_added_tokens_decoder().items() if token.special}
        choices = np.array([number for number in range(tokenizer.vocabulary) if number not in special], dtype=np.int64)
        return Masking(mask, choices, inside_words(tokenizer) if whole_words else None, rate, seed, shown)

    def apply(self, drawn: Drawn, longest: int | None = None, filled: bool = False) -> Batch:
        """The rows with their masks; `filled` up with places that say nothing, to a number that the rows' sizes fix."""
        candidates = np.flatnonzero(~drawn.given)
        rows = np.searchsorted(drawn.starts, candidates, side="right") - 1
        chance = uniform(key_of(self.seed, "mask"), drawn.identity[candidates])
        wanted = np.maximum(1, np.round(self.rate * np.bincount(rows, minlength=len(drawn.starts) - 1)))
        sizes, words = np.ones(len(candidates), dtype=np.int64), np.arange(len(candidates))
        if self.inside is not None:
            begins = ~self.inside[drawn.tokens[candidates]]
            begins |= np.r_[True, (rows[1:] != rows[:-1]) | (candidates[1:] != candidates[:-1] + 1)]
            words = begins.cumsum() - 1
            sizes, chance, rows = np.bincount(words), chance[begins], rows[begins]
        order = order_by(rows, chance)
        # Words in the order drawn, as long as they fit into their row's share; the first always.
        before = sizes[order].cumsum() - sizes[order]
        first = np.searchsorted(rows[order], rows[order], side="left")
        before = before - before[first]
        fits = (before + sizes[order] <= wanted[rows[order]]) | (before == 0)
        chosen = np.zeros(len(sizes), dtype=bool)
        chosen[order[fits]] = True
        places = candidates[chosen[words]]
        labels = drawn.tokens[places]
        act = uniform(key_of(self.seed, "act"), drawn.identity[places])
        other = self.choices[below(key_of(self.seed, "word"), drawn.identity[places], len(self.choices))]
        tokens = drawn.tokens.copy()
        hidden, changed = act < 1 - self.shown, act < 1 - self.shown / 2
        tokens[places] = np.where(hidden, self.mask, np.where(changed, other, labels))
        if filled:  # for a network that is compiled for one shape
            room = max(0, int(self.rate * len(tokens)) + len(drawn.starts) - len(places))  # 0: of very long words
            places, labels = np.r_[places, np.zeros(room, dtype=np.int64)], np.r_[labels, np.full(room, NOTHING)]
        targets = {"places": places, "words": labels}
        if drawn.follows is not None:
            targets["follows"] = drawn.follows
        return make_batch(tokens, np.diff(drawn.starts), targets, drawn.segments, longest, drawn.positions)


def inside_words(tokenizer: Tokenizer) -> NDArray[np.bool_]:
    """By token: whether it continues a word, by the marks of each kind of vocabulary."""
    marks = {"bpe": "Ġ", "unigram": "▁"}
    inside = np.zeros(tokenizer.vocabulary, dtype=bool)
    for number in range(tokenizer.vocabulary):
        token = tokenizer.token(number) or ""
        if tokenizer.kind == "wordpiece":
            inside[number] = token.startswith("##")
        elif tokenizer.kind in marks:
            inside[number] = token[:1].isalnum() and not token.startswith(marks[tokenizer.kind])
    return inside


SPAN = 5  # tokens that are predicted together at most, as published


@dataclass(frozen=True)
class Permutation:
    """Which tokens are predicted, in spans, and in which order: each is seen by those after it only.

    All other tokens of the text are seen by every token, and see none of these. Drawn anew in each epoch; the share of
    each row is exact to rounding, and at least one place.
    """

    frame: Places  # the tokens around a text: never predicted, but in the order too
    closing: int | None  # that of them with a segment of its own
    rate: float
    seed: int

    @staticmethod
    def of(tokenizer: Tokenizer, rate: float, seed: int) -> Permutation:
        frame = [number for role in ("start", "separator") if (number := tokenizer.id_of(role)) is not None]
        closing = tokenizer.id_of("start") if 2 in tokenizer.encode("a").segments else None
        return Permutation(np.array(frame, dtype=np.int64), closing, rate, seed)

    def apply(self, drawn: Drawn, longest: int | None = None) -> Batch:
        """The rows with the places that are asked for, and the rank of each token in its order (-1: seen by all)."""
        framing = np.isin(drawn.tokens, self.frame)
        candidates = np.flatnonzero(~framing)
        count = len(drawn.starts) - 1
        rows = np.searchsorted(drawn.starts, candidates, side="right") - 1
        sizes = np.bincount(rows, minlength=count)
        wanted = np.minimum(np.maximum(1, np.round(self.rate * sizes)), sizes).astype(np.int64)
        spans = self._spans(drawn.identity[candidates], sizes)
        begins = candidates[np.flatnonzero(np.diff(spans, prepend=-1))]
        chance = uniform(key_of(self.seed, "asked"), drawn.identity[begins])
        order = order_by(rows, chance[spans])  # spans in the order drawn; the last may be cut short
        inside = flat(np.zeros_like(sizes), sizes)
        places = np.sort(candidates[order[inside < wanted[rows]]])
        ranked = framing.copy()
        ranked[places] = True
        ranks = (scrambled(key_of(self.seed, "rank"), drawn.identity) >> np.uint64(1)).astype(np.int64)
        targets = {"words": drawn.tokens[places], "ranks": np.where(ranked, ranks, -1)}
        if drawn.places is not None:  # rows that go on: the stream of each
            targets["streams"] = drawn.places
        segments = None if self.closing is None else 2 * (drawn.tokens == self.closing).astype(np.int64)
        batch = make_batch(drawn.tokens, np.diff(drawn.starts), targets, segments, longest)
        return replace(batch, asked=Ragged(torch.from_numpy(places), rows_of(wanted, None)))

    def _spans(self, identity: NDArray[np.uint64], sizes: Places) -> Places:
        """The number of each candidate's span: runs of 1 to `SPAN` tokens, n tokens 1 / n as often as one."""
        shares = np.cumsum(1 / np.arange(1, SPAN + 1))
        lengths = 1 + np.searchsorted(shares / shares[-1], uniform(key_of(self.seed, "span"), identity), side="right")
        firsts = np.repeat(sizes.cumsum() - sizes, sizes)  # of each candidate the first one of its row
        before = lengths.cumsum() - lengths
        begins = before - before[firsts] + firsts  # where the spans of its row begin, if it has so many
        marks = np.zeros(len(identity), dtype=np.int64)
        marks[begins[begins < firsts + np.repeat(sizes, sizes)]] = 1
        return marks.cumsum() - 1


def sentinel(number: int) -> str:
    """The token that stands for a gap, by its number in the text."""
    return f"<extra_id_{number}>"


def sentinels_of(tokenizer: Tokenizer) -> list[int]:
    """The ids of a vocabulary's sentinels, from <extra_id_0> on."""
    ids: list[int] = []
    while (token := tokenizer.id(sentinel(len(ids)))) is not None:
        ids.append(token)
    return ids


@dataclass(frozen=True)
class SpanCorruption:
    """Which runs of each row are taken out, drawn anew in each epoch; equally long rows have as many."""

    sentinels: Places  # in the order of the gaps
    begin: int  # the token that writing begins from
    end: int
    rate: float  # share of the tokens that is taken out
    mean: float  # length of a span
    seed: int

    @staticmethod
    def of(tokenizer: Tokenizer, begin: int, rate: float, mean: float, seed: int) -> SpanCorruption:
        sentinels, end = sentinels_of(tokenizer), tokenizer.id_of("end")
        if not sentinels or end is None:
            missing = sentinel(0) if not sentinels else "token that ends a text"
            raise UserError(f"this vocabulary has no {missing}, so it has no gaps; learn one, or take that of a T5")
        return SpanCorruption(np.array(sentinels, dtype=np.int64), begin, end, rate, mean, seed)

    def wanted(self, lengths: Places) -> tuple[Places, Places]:
        """Of rows of these lengths: how many tokens are taken out, and in how many spans if there are sentinels."""
        rows = np.maximum(lengths, 2)
        taken = np.clip(np.round(rows * self.rate), 1, rows - 1)
        spans = np.clip(np.round(taken / self.mean), 1, np.minimum(taken, rows - taken))
        enough = lengths >= 2  # a row of one token stays whole
        return (taken * enough).astype(np.int64), (spans * enough).astype(np.int64)

    def counts(self, lengths: Places) -> tuple[Places, Places]:
        """As wanted, in no more spans than there are sentinels: they are longer then."""
        taken, spans = self.wanted(lengths)
        return taken, np.minimum(spans, len(self.sentinels))

    def sizes(self, lengths: Places) -> tuple[Places, Places]:
        """Of rows of these lengths: tokens read, and tokens written, </s> included."""
        taken, spans = self.counts(lengths)
        return lengths - taken + spans + 1, taken + np.maximum(spans, 1) + 1

    def raw(self, length: int) -> int:
        """The longest row of text of which no more tokens are read or written: 568 for 512, and 114 are written."""
        lengths = np.arange(2, 2 * length + 4)  # one side has at least half of the tokens
        too_long = np.flatnonzero(np.maximum(*self.sizes(lengths)) > length)
        if not too_long[0]:
            raise UserError(f"rows of {length} tokens have no room for a text with a gap")
        return int(lengths[too_long[0] - 1])

    def apply(self, drawn: Drawn, longest: int | None = None) -> Batch:
        """The source and the target of each row; `longest` where rows of any length share one graph."""
        row_lengths = np.diff(drawn.starts)
        taken, spans = self.counts(row_lengths)
        whole = spans == 0
        begins, rest, taken, spans = (x[~whole] for x in (drawn.starts[:-1], row_lengths - taken, taken, spans))
        runs = np.empty(2 * int(spans.sum()), dtype=np.int64)  # by turns kept and taken
        runs[0::2] = _cut(key_of(self.seed, "kept"), drawn.identity, begins, rest, spans)
        runs[1::2] = _cut(key_of(self.seed, "taken"), drawn.identity, begins, taken, spans)
        hidden = np.zeros(len(drawn.tokens), dtype=bool)
        hidden[np.repeat(~whole, row_lengths)] = np.repeat(np.arange(len(runs)) % 2 == 1, runs)
        read, read_lengths = self._side(drawn, ~hidden)
        target, lengths = self._side(drawn, hidden)
        return Batch(
            torch.from_numpy(_with(target, lengths, self.begin, 1)),
            rows_of(lengths + 1, longest),
            targets={"words": torch.from_numpy(_with(target, lengths, self.end, 0))},
            source=Ragged(torch.from_numpy(_with(read, read_lengths, self.end, 0)), rows_of(read_lengths + 1, longest)),
        )

    def _side(self, drawn: Drawn, kept: NDArray[np.bool_]) -> tuple[Places, Places]:
        """Each row with one sentinel for every run that is not kept, and the lengths of the rows."""
        begins = drawn.starts[:-1]
        turns = np.r_[True, kept[1:] != kept[:-1]]
        turns[begins] = True
        gaps = turns & ~kept
        numbers = gaps.cumsum() - 1
        numbers -= np.repeat((numbers - gaps)[begins] + 1, np.diff(drawn.starts))  # from 0 in each row
        tokens = np.where(gaps, self.sentinels[np.where(gaps, numbers, 0)], drawn.tokens)
        stays = kept | gaps
        return tokens[stays], np.add.reduceat(stays.astype(np.int64), begins)


def _with(tokens: Places, lengths: Places, token: int, before: int) -> Places:
    """Rows of these lengths with one token more: after each, or before it."""
    longer = np.full(len(tokens) + len(lengths), token)
    longer[flat(lengths.cumsum() - lengths + np.arange(len(lengths)) + before, lengths)] = tokens
    return longer


def rows_of(lengths: Places, longest: int | None) -> Rows:
    """Rows of these lengths; `longest` where batches of any length share one graph."""
    starts = torch.zeros(len(lengths) + 1, dtype=torch.int32)
    starts[1:] = torch.from_numpy(lengths.cumsum())
    return Rows(starts, longest or int(lengths.max(initial=0)))


def _cut(key: int, identity: NDArray[np.uint64], begins: Places, sizes: Places, parts: Places) -> Places:
    """The lengths of the parts into which each row of items is cut, every way to cut it being as likely."""
    # The first item begins a part; which of the others do is decided by the smallest of the numbers drawn for each.
    rows = np.repeat(np.arange(len(sizes)), sizes)
    inside = flat(np.zeros_like(sizes), sizes)
    chance = np.where(inside == 0, 0.0, uniform(key, identity[begins[rows] + inside]))
    order = order_by(rows, chance)
    firsts = np.sort(order[inside < parts[rows]])  # order is by rows too, so that inside is the rank in the row
    return np.diff(np.r_[firsts, len(rows)])

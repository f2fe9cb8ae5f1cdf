"""What the network is to predict: masked tokens (Devlin et al., 2019), or the next token.

N: tokens; n: masked places; B: rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from weft.data.chance import below, key_of, order_by, uniform
from weft.data.rows import Drawn
from weft.data.shards import Places
from weft.errors import UserError
from weft.nn.rows import Batch, Rows
from weft.text.tokenizers.tokenizer import Tokenizer

NOTHING = -100  # the label of a place where nothing is predicted


def shift(drawn: Drawn, longest: int | None = None, start: int | None = None) -> Batch:
    """Each token predicts the next one of its row; the last of a row is only a label.

    `start`: the token before each document, which is never a label.
    """
    # The last token of a row is only the label of the one before it.
    lasts = drawn.starts[1:] - 1
    keep = np.ones(len(drawn.tokens), dtype=bool)
    keep[lasts] = False
    labels = np.r_[drawn.tokens[1:], 0]
    if start is not None:
        labels[:-1][drawn.given[1:] & (labels[:-1] == start)] = NOTHING
    lengths = np.diff(drawn.starts) - 1
    targets = {"words": labels[keep]}
    if drawn.places is not None:  # rows that go on: the stream of each
        targets["streams"] = drawn.places[lengths > 0]
    return _batch(drawn.tokens[keep], lengths[lengths > 0], targets, longest=longest)


def _batch(
    tokens: Places,
    lengths: Places,
    targets: dict[str, Places],
    segments: Places | None = None,
    longest: int | None = None,
) -> Batch:
    starts = torch.zeros(len(lengths) + 1, dtype=torch.int32)
    starts[1:] = torch.from_numpy(lengths.cumsum())
    return Batch(
        torch.from_numpy(tokens),
        Rows(starts, longest or int(lengths.max(initial=0))),
        None if segments is None else torch.from_numpy(segments),
        {name: torch.from_numpy(target) for name, target in targets.items()},
    )


@dataclass(frozen=True)
class Masking:
    """Which places are masked and what the network sees there: 80 % the mask, 10 % any token, 10 % the token itself.

    Drawn anew in each epoch, from the seed. The share of each row is exact to rounding, and at least one place.
    """

    mask: int
    choices: Places  # tokens that may stand in for another: all but the special ones
    inside: NDArray[np.bool_] | None  # by token: whether it continues a word; None: mask token by token
    rate: float
    seed: int

    @staticmethod
    def of(tokenizer: Tokenizer, rate: float, whole_words: bool, seed: int) -> Masking:
        mask = tokenizer.id_of("mask")
        if mask is None:
            raise UserError("this vocabulary has no mask token; learn one of kind wordpiece, or choose objective next")
        special = {tokenizer.library.token_to_id(name) for name in vars(tokenizer.roles).values() if name is not None}
        special |= {number for number, token in tokenizer.library.get_added_tokens_decoder().items() if token.special}
        choices = np.array([number for number in range(tokenizer.vocabulary) if number not in special], dtype=np.int64)
        return Masking(mask, choices, inside_words(tokenizer) if whole_words else None, rate, seed)

    def apply(self, drawn: Drawn, longest: int | None = None, filled: bool = False) -> Batch:
        """The rows with their masks; `filled` up with places that say nothing, to a number that the rows' sizes fix."""
        candidates = np.flatnonzero(~drawn.given)
        rows = np.searchsorted(drawn.starts, candidates, side="right") - 1
        chance = uniform(key_of(self.seed, "mask"), drawn.identity[candidates])
        wanted = np.maximum(1, np.round(self.rate * np.bincount(rows, minlength=len(drawn.starts) - 1)))
        if self.inside is None:
            order = order_by(rows, chance)
            sizes = np.ones(len(candidates), dtype=np.int64)
            words = np.arange(len(candidates))
        else:
            begins = ~self.inside[drawn.tokens[candidates]]
            begins |= np.r_[True, (rows[1:] != rows[:-1]) | (candidates[1:] != candidates[:-1] + 1)]
            words = begins.cumsum() - 1
            sizes = np.bincount(words)
            chance, rows = chance[begins], rows[begins]
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
        tokens[places] = np.where(act < 0.8, self.mask, np.where(act < 0.9, other, labels))
        if filled:  # for a network that is compiled for one shape
            room = int(self.rate * len(tokens)) + len(drawn.starts) - len(places)
            places, labels = np.r_[places, np.zeros(room, dtype=np.int64)], np.r_[labels, np.full(room, NOTHING)]
        targets = {"places": places, "words": labels}
        if drawn.follows is not None:
            targets["follows"] = drawn.follows
        return _batch(tokens, np.diff(drawn.starts), targets, drawn.segments, longest)


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

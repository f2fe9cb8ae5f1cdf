"""n-grams (Shannon, 1948; Kneser and Ney, 1995; Chen and Goodman, 1998): the chance of a word after the last few.

Nothing is learned by steps: tables of log probabilities are counted, and looked up by binary search (see weft.ngrams).
N: tokens; B: rows; C: order - 1, the tokens of a context; V: vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from weft.errors import UserError, refuse
from weft.models.base import ModelConfig, Network, Started, States
from weft.ngrams import FLOOR, Flat, find, put_listed, score_one, unsound, walk
from weft.nn.open_rows import JoinedRows
from weft.nn.rows import Ragged, Rows, WindowState, check_context

HIGHEST = 7
FEW = 4  # words that are looked up one by one
MOST = 1 << 36  # n-grams of one order
Smoothing = Literal["kneser-ney", "witten-bell", "add-k", "maximum-likelihood", "back-off"]
UNSEEN = "never occurs in the text, so maximum likelihood gives no probabilities; use a smoothing such as kneser-ney"


class UnseenContext(UserError):
    """A context that was never counted; a caller that knows the words names them."""

    def __init__(self, tokens: list[int]) -> None:
        super().__init__(f"a context ({' '.join(map(str, tokens))}) that {UNSEEN}")
        self.tokens = tokens


@dataclass(frozen=True, kw_only=True)
class NgramConfig(ModelConfig):
    """Sizes of an n-gram model."""

    vocabulary: int = 8000
    context: int = 1 << 24  # texts may be as long as anything; no more than the last order - 1 tokens are looked at
    order: int = 5
    smoothing: Smoothing = "kneser-ney"  # back-off: tables that somebody else has smoothed
    k: float = 1.0  # what add-k adds to every count
    prune: tuple[int, ...] = ()  # by order: n-grams that occur so often or less are left out; the last for all longer
    entries: tuple[int, ...] = ()  # n-grams that are stored, by order; none but single words before counting
    silent: tuple[int, ...] = ()  # tokens that are never generated
    end: int | None = None  # the token that ends a text

    def __post_init__(self) -> None:
        super().__post_init__()
        prune, entries, tokens = self.prune, self.entries, (*self.silent, self.end or 0)
        decreasing = any(a > b for a, b in zip(prune, prune[1:], strict=False))
        unpruned = bool(prune) and (prune[0] != 0 or prune[-1] > 1 << 40)
        uneven = bool(entries) and (len(entries) != self.order or entries[0] != self.vocabulary)
        refuse(
            (not 1 <= self.order <= HIGHEST, f"order must be between 1 and {HIGHEST}, not {self.order}"),
            (not 0.0 < self.k <= 1e6, f"k must be above 0 and at most 1000000, not {self.k}"),
            (bool(prune) and self.direct, f"prune fits smoothings that back off, not {self.smoothing}"),
            (
                len(prune) > self.order or decreasing,
                "prune has a number for each order at most, and none is below the one before",
            ),
            (unpruned, "prune begins with 0: single words are never left out"),
            (uneven, "entries has a number for each order, the first that of the vocabulary"),
            (any(not 0 <= number <= MOST for number in entries), f"entries must be between 0 and {MOST}"),
            (
                any(not 0 <= token < self.vocabulary for token in tokens),
                "silent and end must be tokens of the vocabulary",
            ),
        )

    @property
    def reach(self) -> int:
        """How many tokens back it looks."""
        return self.order - 1

    @property
    def direct(self) -> bool:
        """Whether the whole context decides alone, whatever a shorter one would say."""
        return self.smoothing in ("maximum-likelihood", "add-k")

    @property
    def choices(self) -> int:
        """How many words there are to choose from."""
        return self.vocabulary - len(self.silent)

    weight_scale = 0.0  # no weights


class Ngram(Network):
    """The tables: of order 1 one entry for each word of the vocabulary, of the others those that were seen."""

    open_rows = JoinedRows
    SCORES_TARGETS = True
    products = 0.0  # it looks up, and multiplies nothing

    def __init__(self, config: NgramConfig, heads: Mapping[str, int]) -> None:
        super().__init__(config)
        self.heads = nn.ModuleDict({name: nn.Identity() for name in heads})  # log probabilities are looked up
        entries = config.entries or (config.vocabulary, *[0] * (config.order - 1))
        for order, size in enumerate(entries, 1):
            if order > 1:
                self.register_buffer(f"keys_{order}", torch.zeros(size, dtype=torch.int64))
            self.register_buffer(f"chances_{order}", torch.zeros(size, dtype=torch.float64))
            if order < config.order:
                self.register_buffer(f"backs_{order}", torch.zeros(size, dtype=torch.float64))
        self._flat: tuple[Tensor | None, Flat, float | None] | None = (
            None  # for one word at a time; made when asked for
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_flat": None}  # views of memory cannot be copied, and are made again

    def unsound(self, tensors: Mapping[str, Tensor]) -> list[str]:
        return unsound(tensors, self.config.vocabulary)

    def forward(self, tokens: Tensor, rows: Rows, segments: Tensor | None = None, states: States = None) -> Tensor:
        """N tokens -> N C: what the next word follows on, -1 where the text has not begun yet."""
        check_context(rows.longest, self.config.context)
        reach, places = self.config.reach, rows.places(tokens.shape[0])
        back = torch.arange(reach - 1, -1, -1, device=tokens.device)
        at = torch.arange(tokens.shape[0], device=tokens.device)[:, None] - back  # N C
        hidden = torch.where(places[:, None] >= back, tokens[at.clamp(min=0)], -1)
        if states is not None:
            states.append(hidden)
        return hidden

    # ------------------------------------------------------------------------------------------ looking up

    def _keys(self) -> list[Tensor]:
        """Of the orders from 2."""
        return [self.get_buffer(f"keys_{order}") for order in range(2, self.config.order + 1)]

    def _contexts(self, hidden: Tensor) -> Iterator[tuple[int, Tensor]]:
        """For 1 token back, 2 and so on: the place of these tokens among the n-grams, -1 where they are none."""
        lengths, keys = (hidden >= 0).sum(1), self._keys()
        for length in range(1, self.config.order):
            tokens = hidden[:, -length:]
            if self.config.direct:  # whatever is shorter than the whole is not asked for
                tokens = torch.where((lengths == length)[:, None], tokens, -1)
            yield length, walk(keys, self.config.vocabulary, tokens)

    def _left(self, hidden: Tensor, length: int, places: Tensor, scores: Tensor, words: Tensor | None) -> Tensor:
        """The scores with this context's say about words that are not listed after it: n, or n V (`words` None)."""
        backs = self.get_buffer(f"backs_{length}")
        seen, weights = places >= 0, torch.zeros_like(places, dtype=torch.float64)
        if len(backs):
            weights = backs[places.clamp(min=0)].double()
        if not self.config.direct:  # the shorter context has the word, the longer one says how much that counts
            more = torch.where(seen, weights, 0.0)
            return scores + (more if words is not None else more[:, None])
        # No shorter context is asked: what the whole one says of any other word, but for the silent ones.
        left, here = torch.where(seen, weights, self._unseen()), (hidden >= 0).sum(1) == length
        left, here = (left, here) if words is not None else (left[:, None], here[:, None])
        silent = scores.new_zeros(self.config.vocabulary, dtype=torch.bool)
        silent[list(self.config.silent)] = True
        return torch.where(here, torch.where(silent if words is None else silent[words], FLOOR, left), scores)

    def logprob(self, context: Sequence[int], word: int) -> float:
        """The log chance of one word after these, without tensors, which would cost far more than the looking up."""
        chances, order = self._buffers["chances_1"], self.config.order
        if self._flat is None or self._flat[0] is not chances:  # not yet, or the tables were moved or replaced
            tables = Flat.of({name: buffer.cpu() for name, buffer in self.named_buffers()}, order)
            self._flat = chances, tables, self._unseen() if self.config.direct else None
        _, tables, unseen = self._flat
        context = context[-(order - 1) :] if order > 1 else ()
        score = score_one(tables, self.config.vocabulary, context, word, unseen, self.config.silent)
        return -math.inf if score < FLOOR / 2 and self.config.smoothing == "maximum-likelihood" else score

    def target_logprobs(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """The log chance of one word at each place, without a table of all: n C, n -> n float64"""
        if len(targets) <= FEW and not hidden.is_cuda:
            known = [[token for token in row if token >= 0] for row in hidden.tolist()]
            alone = [self.logprob(*pair) for pair in zip(known, targets.tolist(), strict=True)]
            return torch.tensor(alone, dtype=torch.float64)
        scores, keys = self.get_buffer("chances_1")[targets].double(), self._keys()
        for length, places in self._contexts(hidden):
            scores = self._left(hidden, length, places, scores, targets)
            rows = (places >= 0).nonzero()[:, 0]
            listed = find(keys[length - 1], places[rows] * self.config.vocabulary + targets[rows])
            rows, listed = rows[listed >= 0], listed[listed >= 0]
            scores[rows] = self.get_buffer(f"chances_{length + 1}")[listed].double()
        return self._without_floor(scores)

    def words(self, hidden: Tensor) -> Tensor:
        """The log chances of all next words at the places asked for: n C -> n V"""
        scores = self._words(hidden)
        lost = scores.isinf().all(1)
        if bool(lost.any()):
            row = hidden[int(lost.nonzero()[0])]
            raise UnseenContext(row[row >= 0].tolist())
        return scores.float()

    def _words(self, hidden: Tensor) -> Tensor:
        scores = self.get_buffer("chances_1").double().repeat(hidden.shape[0], 1)
        for length, places in self._contexts(hidden):
            scores = self._left(hidden, length, places, scores, None)
            keys, chances = self.get_buffer(f"keys_{length + 1}"), self.get_buffer(f"chances_{length + 1}")
            put_listed(scores, keys, chances, self.config.vocabulary, places)
        return self._without_floor(scores)

    def _unseen(self) -> float:
        """Of any word, after a context that was never seen, where no shorter one is asked."""
        return FLOOR if self.config.smoothing == "maximum-likelihood" else -math.log(self.config.choices)

    def _without_floor(self, scores: Tensor) -> Tensor:
        """What maximum likelihood has never seen has no chance at all."""
        exact = self.config.smoothing == "maximum-likelihood"
        return torch.where(scores < FLOOR / 2, -math.inf, scores) if exact else scores

    # ------------------------------------------------------------------------------------------ writing

    def start(self, prompt: Ragged, source: Ragged | None = None, room: int = 0, attention: bool = False) -> Started:
        context = self(prompt.tokens, prompt.rows)[prompt.rows.lasts()]
        return self.words(context), WindowState(context)

    def step(self, tokens: Tensor, state: WindowState) -> Tensor:
        """Where nothing ever followed this context, the text ends."""
        state.tokens = torch.cat((state.tokens, tokens[:, None]), 1)[:, 1:]
        scores = self._words(state.tokens)
        if self.config.end is not None:  # a beam, or a rule, may have gone on with a word of no chance
            scores[scores.isinf().all(1), self.config.end] = 0.0
        return scores.float()

    @torch.no_grad()
    def initialize(self) -> None:
        """Nothing is counted yet: all words alike; tables of a size that was asked for are filled by chance."""
        size = self.config.vocabulary
        self.get_buffer("chances_1").fill_(-math.log(size))
        if self.config.entries:
            self.get_buffer("chances_1").uniform_(-8.0, -1.0)
        for order in range(2, self.config.order + 1):
            keys, below = self.get_buffer(f"keys_{order}"), len(self.get_buffer(f"chances_{order - 1}"))
            drawn = torch.randint(max(1, below * size // max(1, len(keys))), keys.shape)
            keys.copy_(drawn + torch.arange(len(keys)) * (below * size // max(1, len(keys))))
            self.get_buffer(f"chances_{order}").uniform_(-8.0, -1.0)
            self.get_buffer(f"backs_{order - 1}").uniform_(-2.0, 0.0)

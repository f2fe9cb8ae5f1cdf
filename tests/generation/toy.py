"""A decoder small enough to try out all that it might say: its chances come from a table of random numbers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from weft.nn.rows import Ragged


class Memory:
    """The last two tokens of each row, and what it reads."""

    def __init__(self, tokens: Tensor, sources: Tensor, widths: Tensor, attention: bool) -> None:
        self.tokens, self.sources, self.widths, self.wanted = tokens, sources, widths, attention
        self.attention: Tensor | None = None
        self.picks = 0

    def pick(self, rows: Tensor) -> None:
        self.picks += 1
        self.tokens, self.sources, self.widths = (each[rows] for each in (self.tokens, self.sources, self.widths))
        self.attention = None if self.attention is None else self.attention[rows]


class Toy:
    """A Markov chain of order two; with a source, its chances and what it looks at hang on that too."""

    SEARCHES = False

    def __init__(self, vocabulary: int, seed: int, sharp: float = 1.5, dtype: torch.dtype = torch.float64) -> None:
        chance = torch.Generator().manual_seed(seed)
        self.vocabulary = vocabulary
        shape = (vocabulary, vocabulary, vocabulary)
        self.table = (torch.randn(shape, generator=chance, dtype=torch.float64) * sharp).to(dtype)
        self.read = (torch.randn(11, vocabulary, generator=chance, dtype=torch.float64) * sharp).to(dtype)
        self.looks = torch.randn(vocabulary, 11, generator=chance, dtype=torch.float64) * 2
        self.steps = 0

    def start(
        self, prompt: Ragged, source: Ragged | None = None, room: int = 0, attention: bool = False
    ) -> tuple[Tensor, Memory]:
        rows = prompt.rows.starts.tolist()
        texts = [prompt.tokens[first:last].tolist() for first, last in itertools.pairwise(rows)]
        tokens = torch.tensor([[0, *text][-2:] for text in texts])
        places = [0] * (len(texts) + 1) if source is None else source.rows.starts.tolist()
        longest = 1 if source is None else source.rows.longest
        sources, widths = torch.zeros(len(texts), longest, dtype=torch.int64), torch.zeros(len(texts))
        for row, (first, last) in enumerate(itertools.pairwise(places)):
            if source is not None:
                sources[row, : last - first] = source.tokens[first:last]
            widths[row] = last - first
        state = Memory(tokens, sources, widths, attention and source is not None)
        return self._scores(state), state

    def step(self, tokens: Tensor, state: Memory) -> Tensor:
        self.steps += 1
        state.tokens = torch.stack((state.tokens[:, 1], tokens), 1)
        return self._scores(state)

    def _scores(self, state: Memory) -> Tensor:
        first, last = state.tokens.unbind(1)
        if state.wanted:
            looks = self.looks[last].gather(1, state.sources % 11)
            filling = torch.arange(state.sources.shape[1]) >= state.widths[:, None]
            state.attention = looks.masked_fill(filling, -torch.inf).softmax(-1).float()
        scores = self.table[first, last]
        return scores + self.read[state.sources.sum(1) % 11] if bool(state.widths.any()) else scores

    def follow(
        self, prompt: Sequence[int], said: Sequence[int], source: Sequence[int] | None = None
    ) -> tuple[list[float], Tensor | None]:
        """The log-probability of each token of an answer, read one by one, and the sum of what was looked at."""
        sources = None if source is None else Ragged.of([source])
        scores, state = self.start(Ragged.of([prompt]), sources, attention=True)
        found, seen = [], torch.zeros(1 if source is None else len(source))
        for token in said:
            found.append(float(scores.log_softmax(-1)[0, token]))
            seen = seen if state.attention is None else seen + state.attention[0]
            scores = self.step(torch.tensor([token]), state)
        return found, None if source is None else seen


Answer = tuple[float, tuple[int, ...]]


def exhaustive(
    toy: Toy,
    prompt: Sequence[int],
    end: int,
    most: int,
    length_penalty: float,
    source: Sequence[int] | None = None,
    coverage: float = 0.0,
) -> list[Answer]:
    """Everything that might be said, best first."""
    words = [word for word in range(toy.vocabulary) if word != end]
    every = [(*before, end) for size in range(most) for before in itertools.product(words, repeat=size)]
    every += list(itertools.product(words, repeat=most))
    answers = []
    for said in every:
        logs, seen = toy.follow(prompt, said, source)
        score = sum(logs) / len(said) ** length_penalty
        if coverage and seen is not None:
            score += coverage * sum(math.log(min(value, 1.0)) for value in seen.tolist())
        answers.append((score, said))
    return sorted(answers, reverse=True)

"""Words from their characters (Kim et al., 2016): bytes, convolutions over them, highway layers.

N: tokens; W: words; L: characters of a word, with its marks and filling; U: different words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.errors import UserError
from weft.nn.layers import activate
from weft.nn.rows import Rows
from weft.spelling import BEGIN, END, FILLING, FIRST_WORD, SPACE, START, STOP, byte_names, characters_in


def spelled(tokens: Mapping[str, int], length: int) -> Tensor:
    """words L: the characters of each word of a vocabulary, int16; refuses a vocabulary that has other ids."""
    bytes_by_name = {name: byte for byte, name in enumerate(byte_names())}
    wrong = tokens.get(SPACE) != BEGIN or any(tokens.get(n) != b + 1 for n, b in bytes_by_name.items() if n != SPACE)
    if wrong or len(tokens) < FIRST_WORD:
        raise UserError("ELMo reads the characters of words: it needs a vocabulary of kind word-bytes")
    table = torch.full((len(tokens) - FIRST_WORD, length), FILLING, dtype=torch.int16)
    for name, number in tokens.items():
        if number >= FIRST_WORD:
            letters = name.removeprefix(SPACE)
            # What was added later is not named by its bytes.
            whole = all(letter in bytes_by_name for letter in letters)
            word = bytes(bytes_by_name[letter] for letter in letters) if whole else name.encode()
            ids = characters_in(word, length)
            table[number - FIRST_WORD, : len(ids)] = torch.tensor(ids, dtype=torch.int16)
    return table


@dataclass(frozen=True)
class WordPlaces:
    """Which tokens each word of a ragged batch consists of."""

    numbers: Tensor  # N: the word of each token
    firsts: Tensor  # W: the first token of each word
    starts: Tensor  # B+1 int32: row b has the words from starts[b] to starts[b+1]

    def rows_of_words(self) -> Tensor:
        """W: the row of each word."""
        return (
            torch.searchsorted(
                self.starts.long(), torch.arange(len(self.firsts), device=self.starts.device), right=True
            )
            - 1
        )

    def alone(self) -> Tensor:
        """W bool: words of one token."""
        return F.pad(self.firsts[1:], (0, 1), value=len(self.numbers)) - self.firsts == 1


def cut_words(tokens: Tensor, rows: Rows) -> WordPlaces:
    """The words of rows of tokens; one that was cut off by the beginning of its row goes on from there."""
    whole = (tokens >= FIRST_WORD) | (tokens == START) | (tokens == END)
    begins = whole | (tokens == BEGIN) | (rows.places(len(tokens)) == 0)
    begins[1:] |= whole[:-1]
    counts = begins.cumsum(0)
    starts = F.pad(counts, (1, 0)).index_select(0, rows.starts.long())
    return WordPlaces(counts - 1, begins.nonzero().squeeze(1), starts.int())


def characters_of(tokens: Tensor, words: WordPlaces, spelling: Tensor, length: int) -> Tensor:
    """W L: the characters of each word, those of known words from their spelling (words L)."""
    first = tokens.index_select(0, words.firsts)  # W
    marked = (first == BEGIN).long()
    # Where a character stands in its word: 1 is the first. What does not fit goes to the last place, for `STOP`.
    places = torch.arange(len(tokens), device=tokens.device) - words.firsts[words.numbers] + 1 - marked[words.numbers]
    places = places.clamp(max=length - 1)
    table = tokens.new_full((len(first), length), FILLING)
    table = table.index_put((words.numbers, places), tokens)
    ends = torch.zeros_like(first).scatter_reduce(0, words.numbers, places, "amax")
    table = table.scatter(1, (ends + 1).clamp(max=length - 1)[:, None], STOP)
    table[:, 0] = BEGIN
    if not len(spelling):
        return table
    known = spelling.index_select(0, (first - FIRST_WORD).clamp(min=0)).long()
    return torch.where((first >= FIRST_WORD)[:, None], known, table)


class Highway(nn.Module):
    """A layer that a gate lets its input past (Srivastava et al., 2015)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.carry = nn.Linear(width, width)  # 1: the transformed input, 0: the input, as in the published weights
        self.transform = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.carry(x).sigmoid()
        return gate * self.transform(x).relu() + (1 - gate) * x


class CharacterCnn(nn.Module):
    """Convolutions over the characters of a word, the largest value of each, highway layers and a projection."""

    def __init__(
        self,
        inputs: int,
        kernels: Sequence[int],
        filters: Sequence[int],
        activation: str,
        highways: int,
        outputs: int,
    ) -> None:
        super().__init__()
        self.activation, self.reach = activation, max(kernels)
        self.convolutions = nn.ModuleList(nn.Conv1d(inputs, n, k) for k, n in zip(kernels, filters, strict=True))
        self.highways = nn.ModuleList(Highway(sum(filters)) for _ in range(highways))
        self.projection = nn.Linear(sum(filters), outputs)

    def forward(self, x: Tensor) -> Tensor:
        """U L inputs -> U outputs"""
        x = x.transpose(1, 2)
        # The largest before the activation, which never falls: fewer numbers go through it.
        maps = [activate(convolution(x).amax(-1), self.activation) for convolution in self.convolutions]
        x = torch.cat(maps, -1)
        for highway in self.highways:
            x = highway(x)
        return self.projection(x)

    @torch.no_grad()
    def initialize(self) -> None:
        """Fresh weights: what goes in and what comes out vary alike; highways begin nearly open."""
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Conv1d):
                module.weight.normal_(0.0, module.weight[0].numel() ** -0.5)
                assert module.bias is not None
                module.bias.zero_()
        for module in self.modules():
            if isinstance(module, Highway):
                module.carry.bias.fill_(-2.0)

"""Words in clusters by how common they are (Grave et al., 2017; Baevski and Auli, 2019): rarer ones have fewer numbers.

The lower the id of a word, the more common it is. N: tokens; n: the places asked for; W: width of the network; E: of
the vectors of common words.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Clusters:
    """How a vocabulary is cut: `cutoffs` are the first tokens of all clusters but the common words."""

    vocabulary: int
    width: int  # W
    embedding_width: int  # E
    cutoffs: tuple[int, ...]
    shrink: int  # the vectors of a cluster are narrower by this than those of the one before

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """The first token of each cluster, and the first after it."""
        return list(zip((0, *self.cutoffs), (*self.cutoffs, self.vocabulary), strict=True))

    def map(self, number: int) -> nn.Parameter:
        """A map between the vectors of a cluster and those of the network."""
        return nn.Parameter(torch.zeros(self.width, self.embedding_width // self.shrink**number))


class ClusteredTable(nn.Embedding):
    """The vectors of tokens; its own weight is that of the common words."""

    def __init__(self, clusters: Clusters) -> None:
        ranges = clusters.ranges
        super().__init__(ranges[0][1], clusters.embedding_width)
        self.ranges = ranges
        self.maps = nn.ParameterDict({str(number): clusters.map(number) for number in range(len(ranges))})
        tails = list(enumerate(ranges))[1:]
        self.tails = nn.ModuleDict(
            {str(number): nn.Embedding(end - begin, self.maps[str(number)].shape[1]) for number, (begin, end) in tails}
        )

    def tables(self) -> list[Tensor]:
        """Those of all clusters."""
        return [self.weight, *(table.weight for table in self.tails.values())]  # type: ignore[list-item]

    def forward(self, tokens: Tensor) -> Tensor:
        """N -> N W"""
        x = None
        for table, map, (begin, end) in zip(self.tables(), self.maps.values(), self.ranges, strict=True):
            # Every token asks every cluster, so that nothing depends on how many are in which.
            mapped = F.linear(F.embedding((tokens - begin).clamp(0, end - begin - 1), table), map)
            x = mapped if x is None else torch.where((tokens >= begin)[..., None], mapped, x)
        assert x is not None
        return x


class ClusteredWords(nn.Module):
    """Log probabilities of all words: of a common word or a cluster, and of a word inside its cluster."""

    def __init__(self, clusters: Clusters, shared_maps: bool) -> None:
        """`shared_maps`: those of all clusters but the first are those of the table."""
        super().__init__()
        sizes = [end - begin for begin, end in clusters.ranges]
        self.bias = nn.Parameter(torch.zeros(sizes[0]))
        self.biases = nn.ParameterDict({str(n): nn.Parameter(torch.zeros(size)) for n, size in enumerate(sizes) if n})
        self.maps = nn.ParameterDict({str(n): clusters.map(n) for n in range(1 if shared_maps else len(sizes))})
        if clusters.cutoffs:
            self.cluster_weight = nn.Parameter(torch.zeros(len(clusters.cutoffs), clusters.embedding_width))
            self.cluster_bias = nn.Parameter(torch.zeros(len(clusters.cutoffs)))

    def forward(self, x: Tensor, table: ClusteredTable) -> Tensor:
        """n W -> n vocabulary"""
        tables = table.tables()
        maps = [self.maps[name] if name in self.maps else table.maps[name] for name in table.maps]
        first, bias = tables[0], self.bias.view(-1)
        if len(tables) > 1:
            first, bias = torch.cat([first, self.cluster_weight]), torch.cat([bias, self.cluster_bias])
        head = F.linear(x @ maps[0], first, bias).log_softmax(-1)
        common = tables[0].shape[0]
        parts = [head[..., :common]]
        for number, (weight, map) in enumerate(zip(tables[1:], maps[1:], strict=True)):
            inside = F.linear(x @ map, weight, self.biases[str(number + 1)]).log_softmax(-1)
            parts.append(head[..., common + number, None] + inside)
        return torch.cat(parts, -1)

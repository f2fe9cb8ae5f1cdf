"""Ways to tell a network where a token stands: sinusoids, a learned table, rotation, a bias on scores, or nothing.

N: tokens; H: heads; D: width of a head; T, S: queries and keys of a row.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from weft.nn.attention import Cache
from weft.nn.rows import Rows, check_context

WAVES = 1 << 16  # of so many places at most is a table of sinusoids kept
Kind = Literal["learned", "sinusoidal", "sinusoidal-halves", "rotary", "alibi", "none"]


def longest_text(rows: Rows, cache: Cache | None, context: int) -> int:
    """Tokens of the longest text, in a decoding step with what is in the cache; refused beyond the context."""
    stepping = cache is not None and cache.layers[0].filled
    longest = cache.longest + 1 if cache is not None and stepping else rows.longest
    check_context(longest, context)
    return longest


class Positions(nn.Module):
    """One of the kinds behind one face: what is added to tokens, what turns the queries, what biases the scores."""

    def __init__(self, kind: Kind, *, context: int, width: int, heads: int, head_width: int, unused: int = 0) -> None:
        """`unused` rows of a learned table come before that of the first place."""
        super().__init__()
        self.kind, self.context, self.unused = kind, context, unused
        self.width, self.heads, self.head_width = width, heads, head_width
        self.table = nn.Embedding(unused + context, width) if kind == "learned" else None
        self.waves: Tensor | None = None  # no weight: neither trained nor saved

    def places(self, rows: Rows, total: int, cache: Cache | None) -> Tensor:
        """N: the place of each token in its text; in a decoding step it follows what is in the cache."""
        longest_text(rows, cache, self.context)
        return cache.lengths if cache is not None and cache.layers[0].filled else rows.places(total)

    def add(self, x: Tensor, places: Tensor) -> Tensor:
        """The token vectors with their positions, for the kinds that are added."""
        if self.table is not None:
            return x + self.table(places + self.unused if self.unused else places)
        if self.kind in ("sinusoidal", "sinusoidal-halves"):
            return x + self._waves(places, x.dtype)
        return x

    def _waves(self, places: Tensor, dtype: torch.dtype) -> Tensor:
        """N width: the sinusoids of these places, from a table that is worked out once."""
        halves = self.kind == "sinusoidal-halves"
        precision = torch.float32 if halves else torch.float64  # the published tables of Marian are of single precision
        if torch.compiler.is_compiling() or self.context > WAVES:
            return sinusoids(places, self.width, halves).to(precision).to(dtype)
        if self.waves is None or self.waves.device != places.device or self.waves.dtype != dtype:
            with torch.inference_mode(False):  # whoever trains later uses it too
                every = torch.arange(self.context, device=places.device)
                self.waves = sinusoids(every, self.width, halves).to(precision).to(dtype)
        return self.waves.index_select(0, places)

    def turns(self, places: Tensor, dtype: torch.dtype) -> Tensor | None:
        """2 N 1 D: cosine and sine by which queries and keys are turned (Su et al., 2021), for rotary positions."""
        if self.kind != "rotary":
            return None
        angles = places[:, None].double() * _frequencies(self.head_width, places.device)  # N D/2
        angles = torch.cat([angles, angles], -1)[:, None]  # N 1 D
        return torch.stack([angles.cos(), angles.sin()]).to(dtype)

    def bias(self, rows: Rows, cache: Cache | None) -> Tensor | None:
        """What is added to the scores (Press et al., 2022): the further away a key, the less it counts, by head."""
        if self.kind != "alibi":
            return None
        device = rows.starts.device
        slopes = alibi_slopes(self.heads, device)[:, None, None]  # H 1 1
        if cache is not None and cache.layers[0].filled:
            places = torch.arange(cache.longest + 1, device=device)
            distance = (cache.lengths[:, None] - places).abs()[:, None, None]  # B 1 1 S
        else:
            places = torch.arange(rows.longest, device=device)
            distance = (places[:, None] - places).abs()  # T S
        return -slopes * distance


class Buckets(nn.Module):
    """T5's relative positions (Raffel et al., 2020): a learned bias on scores, by head and by how far away a key is."""

    def __init__(self, buckets: int, farthest: int, heads: int, context: int, both_ways: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(buckets, heads)
        self.buckets, self.farthest, self.context, self.both_ways = buckets, farthest, context, both_ways

    def bias(self, rows: Rows, cache: Cache | None = None) -> Tensor:
        """H T S; in a decoding step B H 1 S, or 1 H 1 S where all rows are equally long."""
        keys = torch.arange(longest_text(rows, cache, self.context), device=rows.starts.device)
        if cache is not None and cache.layers[0].filled:
            queries = keys[-1:] if cache.even else cache.lengths
            return self.table(self.numbers(keys - queries[:, None])).transpose(1, 2)[:, :, None]
        return self.table(self.numbers(keys - keys[:, None])).permute(2, 0, 1)

    def numbers(self, distances: Tensor) -> Tensor:
        """The bucket of each distance: near ones have one each, far ones share them on a logarithmic scale."""
        count, later = self.buckets, torch.zeros_like(distances)
        if self.both_ways:  # half of the buckets are for keys that come later
            count //= 2
            later = (distances > 0).long() * count
            distances = distances.abs()
        else:
            distances = (-distances).clamp(min=0)
        exact = count // 2
        # In float32, as published: more digits would put some distances into the next bucket.
        far = torch.log(distances.clamp(min=1).float() / exact) / math.log(self.farthest / exact) * (count - exact)
        return later + torch.where(distances < exact, distances, (exact + far.long()).clamp(max=count - 1))


def sinusoids(places: Tensor, width: int, halves: bool = False) -> Tensor:
    """N width: the fixed positions of Vaswani et al. (2017), sine and cosine interleaved or in two halves."""
    angles = places[:, None].double() * _frequencies(width, places.device)  # N ceil(width/2)
    sine, cosine = angles.sin(), angles.cos()[:, : width // 2]
    if halves:
        return torch.cat([sine, cosine], -1)
    table = sine.new_empty(len(places), width)
    table[:, 0::2], table[:, 1::2] = sine, cosine
    return table


def _frequencies(width: int, device: torch.device) -> Tensor:
    # In double precision: at place 10,000 the angle of a float32 frequency is already off in the third decimal.
    return torch.exp(torch.arange(0, width, 2, device=device, dtype=torch.float64) * (-math.log(10000.0) / width))


def alibi_slopes(heads: int, device: torch.device | None = None) -> Tensor:
    """H: the paper's geometric slopes; where H is no power of two, those of the next larger power fill up."""
    # Made where they are used: while a step is captured nothing can be copied to a GPU.
    power = 2 ** math.floor(math.log2(heads))
    exact = torch.float32 if device is not None and device.type == "mps" else torch.float64  # which MPS does not have
    numbers = torch.arange(1, heads + 1, dtype=exact, device=device)
    exponents = torch.where(numbers <= power, numbers, numbers - power - 0.5) * (-8 / power)
    return exponents.exp2().float()

"""Convolution over ragged rows: a token and its neighbors in its own row, and in no other.

N: tokens; B: rows; K: places that a convolution sees; W: width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.nn.rows import Rows


def neighbors(x: Tensor, rows: Rows, offsets: Sequence[int], beyond: Tensor | None = None) -> Tensor:
    """N W -> N KW: what stands at each of some distances from each token; beyond the ends of its row `beyond` (W), or
    zeros."""
    total = x.shape[0]
    before, after = max(0, -min(offsets)), max(0, max(offsets))
    padded = F.pad(x, (0, 0, before, after))

    def inside(offset: int) -> Tensor:
        places = rows.places(total) + offset
        return ((places >= 0) & (places < rows.lengths()[rows.numbers(total)]))[:, None]

    columns = []
    for offset in offsets:
        moved = padded[before + offset : before + offset + total]
        outside = rows.once(("outside", offset), lambda offset=offset: ~inside(offset))  # type: ignore[misc]
        if offset:
            moved = moved.masked_fill(outside, 0.0) if beyond is None else torch.where(outside, beyond, moved)
        columns.append(moved)
    return torch.cat(columns, -1)


class GatedConvolution(nn.Module):
    """A convolution of which one half of the outputs gates the other (Dauphin et al., 2017).

    It sees as many places to both sides; a causal one sees a token and those before it.
    """

    def __init__(self, width: int, kernel: int, causal: bool) -> None:
        super().__init__()
        self.offsets = range(1 - kernel, 1) if causal else range(-(kernel // 2), kernel // 2 + 1)
        self.maps = nn.Linear(kernel * width, 2 * width)

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        return F.glu(self.maps(neighbors(x, rows, self.offsets)), -1)

    def step(self, x: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        """One new token per row (B W) after the K-1 before it (B K-1 W); what it makes of them, and the new K-1."""
        seen = torch.cat([before, x[:, None]], 1)  # B K W
        return F.glu(self.maps(seen.flatten(1)), -1), seen[:, 1:]

    def left(self, x: Tensor, rows: Rows) -> Tensor:
        """B K-1 W: the last inputs of each row, with which the next step goes on; zeros before its first."""
        places = rows.lasts()[:, None] + torch.tensor(self.offsets[1:], device=x.device)
        beyond = places < rows.firsts()[:, None]
        return x[places.clamp(min=0)].masked_fill(beyond[..., None], 0.0)

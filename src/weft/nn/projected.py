"""A forward and a backward LSTM with projected, clipped states (Sak et al., 2014), side by side.

N: tokens; T B: places and rows; C: cell; P: width of the projection.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from weft.nn.heads import in_full
from weft.nn.recurrent import GATES, CellSighting
from weft.nn.rows import Rows, gathered, spread


class TwoWayLstm(nn.Module):
    """One layer of each direction; neither sees the other, so each can learn to predict what it has not read."""

    def __init__(self, inputs: int, cell: int, width: int, clip: float | None, projection_clip: float | None) -> None:
        super().__init__()
        self.clip, self.projection_clip = clip, projection_clip
        # Of both directions, the forward one first; the gates are input, forget, new content, output.
        self.weight = nn.Parameter(torch.empty(2, 4 * cell, inputs))
        self.recurrent = nn.Parameter(torch.empty(2, 4 * cell, width))
        self.bias = nn.Parameter(torch.empty(2, 4 * cell))  # with the 1 that TensorFlow adds to the forget gate
        self.projection = nn.Parameter(torch.empty(2, width, cell))
        self.watcher: Callable[[CellSighting], None] | None = None  # set for as long as somebody watches
        self.editor: Callable[[int, Tensor], Tensor] | None = None  # replaces what the layer gives: N 2P -> N 2P

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        """N 2*inputs -> N 2P: the forward direction's half, then the backward one's."""
        forth, back = x.chunk(2, -1)
        # Backwards each row's last token comes first, so that filling comes last in both directions.
        square = torch.stack([spread(forth, rows), spread(back, rows, backwards=True)])  # 2 T B inputs
        given = torch.baddbmm(self.bias[:, None], square.flatten(1, 2), self.weight.mT)  # 2 TB 4C
        given = given.view(2, rows.longest, rows.count, self.bias.shape[1])
        cell_width, width = self.projection.shape[2], self.projection.shape[1]
        hidden, cell = given.new_zeros(2, rows.count, width), in_full(given.new_zeros(2, rows.count, cell_width))
        # Under autocast they would be cast anew in each step.
        recurrent, projection = self.recurrent.mT.to(given.dtype), self.projection.mT.to(given.dtype)
        outputs, cells = [], []
        for place in given.unbind(1):
            gates = in_full(torch.baddbmm(place, hidden, recurrent))  # 2 B 4C
            taken, kept, new, shown = gates.chunk(4, -1)
            cell = kept.sigmoid() * cell + taken.sigmoid() * new.tanh()
            cell = cell if self.clip is None else cell.clamp(-self.clip, self.clip)
            hidden = torch.bmm((shown.sigmoid() * cell.tanh()).to(given.dtype), projection)
            if self.projection_clip is not None:
                hidden = hidden.clamp(-self.projection_clip, self.projection_clip)
            outputs.append(hidden)
            if self.watcher is not None:
                cells.append((taken.sigmoid(), kept.sigmoid(), new.tanh(), shown.sigmoid(), cell))
        whole = torch.stack(outputs, 1) if outputs else given[..., :width]  # 2 T B P
        total = x.shape[0]

        def of_tokens(both: Tensor) -> Tensor:
            return torch.cat([gathered(side, rows, total, bool(way)) for way, side in enumerate(both)], -1)

        output = of_tokens(whole).to(x.dtype)
        output = output if self.editor is None else self.editor(0, output)
        if self.watcher is not None:
            parts = [of_tokens(torch.stack(part, 1)) for part in zip(*cells, strict=True)]
            memory = parts.pop() if parts else whole  # a text without words has none
            self.watcher(CellSighting(0, rows, output, dict(zip(GATES["lstm"], parts, strict=False)), memory, x))
        return output

    @torch.no_grad()
    def initialize(self) -> None:
        """Fresh weights: input and projection vary alike, recurrent ones are rotations, forget gates begin open."""
        cell = self.projection.shape[2]
        for side in range(2):
            nn.init.xavier_uniform_(self.weight[side])
            nn.init.xavier_uniform_(self.projection[side])
            for gate in self.recurrent[side].chunk(4):
                nn.init.orthogonal_(gate)
        self.bias.zero_()
        self.bias[:, cell : 2 * cell] = 1.0

"""Ragged rows as a rectangle and back, for what goes through a text place by place.

N: tokens of all rows together; B: rows; T: places, as many as `rows.longest`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from weft.errors import UserError
from weft.nn.rows import Rows


def check_context(rows: Rows, context: int) -> None:
    """Refuse a text that is longer than a model may read or write."""
    if rows.longest > context:
        raise UserError(f"a text of {rows.longest} tokens is longer than the model's context of {context}")


def slots_of(rows: Rows, total: int, backwards: bool = False) -> Tensor:
    """N: where each of the `total` tokens stands in the rectangle T B; `backwards`: each row's last token first."""

    def work_out() -> Tensor:
        numbers, places = rows.numbers(total), rows.places(total)
        if backwards:
            places = rows.lengths().long()[numbers] - 1 - places
        return places * rows.count + numbers

    return rows.once(("slots", backwards), work_out)


def spread(x: Tensor, rows: Rows, backwards: bool = False) -> Tensor:
    """N ... -> T B ...: a column for each row, zeros below its end."""
    empty = x.new_zeros(rows.longest * rows.count, *x.shape[1:])
    full = empty.index_copy(0, slots_of(rows, x.shape[0], backwards), x)
    return full.view(rows.longest, rows.count, *x.shape[1:])


def gathered(x: Tensor, rows: Rows, total: int, backwards: bool = False) -> Tensor:
    """T B ... -> N ...: the places that hold one of the `total` tokens, in the order of the rows."""
    return x.flatten(0, 1).index_select(0, slots_of(rows, total, backwards))


def filled(rows: Rows) -> Tensor:
    """B T bool: the places that hold a token."""
    return torch.arange(rows.longest, device=rows.starts.device) < rows.lengths()[:, None]

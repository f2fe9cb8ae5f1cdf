"""The form of every walk: steps with matrices, and how each number of a matrix was made of others.

The JSON of a walk, which `components/walk.js` shows, and which a page may also build by itself from live arrays:

    {title, intro,
     matrices: {ID: {name, rows: [labels], columns: [labels], shape: [true rows, true columns],
                     values: packed or {shape, data}, digits, scale: "diverging" | "sequential",
                     made_from: null | {kind, left, ...}}},
     steps: [{title, text, formula, matrices: [IDs and signs such as "×", "="],
              tables: [{name, header, rows, marked: [[row, column]]}],
              details: [{title, text, formula, matrices, tables}]}]}

`values` may hold fewer rows or columns than `shape` says, of weights that are too large for a page. `left`, `right`,
`gain`, `bias` and `more` are IDs. The kinds, for the cell in row i and column j:

    product   sum over k of left[i, k] right[k, j], with `transpose` right[j, k]; plus bias[0, j] where there is one
    add       left[i, j] + right[i, j]; a right of one row is added to every row
    multiply  left[i, j] right[i, j]
    scale     left[i, j] factor; `divisor` is the number to show instead where one divides
    softmax   exp(left[i, j]) / sum over k of exp(left[i, k])
    norm      (left[i, j] - mean of row i) / sqrt(variance of row i + epsilon) gain[0, j] + bias[0, j]; `rms`: no mean
    row       left[indices[i], j]: rows that were picked from a table
    columns   left[i, j + offset]: some columns of a wider matrix
    concat    right[i, j - offset] where that column is in right, the others from matrices that are not shown
    map       function(left[i, j]): gelu, gelu-tanh, relu, silu, tanh, sigmoid, exp, log
    gate      left[i, j] right[i, j] + (1 - left[i, j]) more[i, j]: what a GRU keeps and what it takes
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.explain.view import Interactive, View
from weft.picture.page import packed

Array = NDArray[Any]
LARGE = 1 << 15  # cells of a table of weights, above which only its first columns are stored
KEPT = 24  # columns of such a table


@dataclass(frozen=True)
class WalkMatrix:
    """Numbers with names on both sides, and how they were made."""

    name: str
    values: Array  # rows and columns that are stored
    rows: Sequence[str]
    columns: Sequence[str]
    shape: tuple[int, int]
    made_from: Mapping[str, Any] | None = None
    scale: str = "diverging"
    digits: int = 2

    def content(self) -> dict[str, Any]:
        values = packed(np.ascontiguousarray(self.values, dtype=np.float32))
        plain = {"name": self.name, "rows": list(self.rows), "columns": list(self.columns), "shape": list(self.shape)}
        made = None if self.made_from is None else dict(self.made_from)
        return {**plain, "values": values, "digits": self.digits, "scale": self.scale, "made_from": made}


@dataclass(frozen=True)
class WalkTable:
    """Words in rows and columns; `marked` cells stand out."""

    name: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    marked: Sequence[tuple[int, int]] = ()

    def content(self) -> dict[str, Any]:
        marked = [list(cell) for cell in self.marked]
        return {
            "name": self.name,
            "header": list(self.header),
            "rows": [list(row) for row in self.rows],
            "marked": marked,
        }


@dataclass(frozen=True)
class WalkStep:
    """One step: what happens, as a sentence, a formula, matrices (by id, with signs between them) and tables."""

    title: str
    text: str
    formula: str = ""
    matrices: Sequence[str] = ()
    tables: Sequence[WalkTable] = ()
    details: Sequence[WalkStep] = ()

    def content(self) -> dict[str, Any]:
        plain = {"title": self.title, "text": self.text, "formula": self.formula, "matrices": list(self.matrices)}
        tables = [table.content() for table in self.tables]
        return {**plain, "tables": tables, "details": [detail.content() for detail in self.details]}


@dataclass
class Walk:
    """Steps with real numbers; `add` matrices, then the steps that show them."""

    title: str
    intro: str = ""
    matrices: dict[str, WalkMatrix] = field(default_factory=dict)
    steps: list[WalkStep] = field(default_factory=list)

    def add(
        self,
        id: str,
        name: str,
        values: Any,
        rows: Sequence[str] | str = "",
        columns: Sequence[str] | str = "",
        *,
        shape: tuple[int, int] | None = None,
        scale: str = "diverging",
        digits: int = 2,
        **made: Any,
    ) -> str:
        """Add a matrix; a string in place of labels is what stands before the numbers of rows or columns."""
        array = np.atleast_2d(np.asarray(values))
        down, across = (
            [f"{labels}{n}" for n in range(size)] if isinstance(labels, str) else list(labels)
            for labels, size in zip((rows, columns), array.shape, strict=True)
        )
        assert (len(down), len(across)) == array.shape, f"{id}: {len(down)} x {len(across)} labels for {array.shape}"
        assert id not in self.matrices, f"two matrices {id}"
        unknown = [made[side] for side in ("left", "right", "gain", "bias", "more") if made.get(side, None) is not None]
        assert all(side in self.matrices for side in unknown), f"{id} is made from {unknown}"
        made = {key: value for key, value in made.items() if value is not None}
        size = shape or (array.shape[0], array.shape[1])
        self.matrices[id] = WalkMatrix(name, array, down, across, size, made or None, scale, digits)
        return id

    def weights(self, id: str, name: str, values: Any, columns: Sequence[str] | str = "") -> str:
        """Add a matrix of weights (inputs by outputs); of a large one the first columns are stored."""
        array = np.atleast_2d(np.asarray(values))
        kept = array if array.size <= LARGE else array[:, :KEPT]
        labels = columns if isinstance(columns, str) else columns[: kept.shape[1]]
        return self.add(id, name, kept, "", labels, shape=(array.shape[0], array.shape[1]))

    def step(self, title: str, text: str, formula: str = "", matrices: Sequence[str] = (), **more: Any) -> None:
        """Add a step; `more`: tables and details."""
        self.steps.append(WalkStep(title, text, formula, matrices, **more))

    def content(self) -> dict[str, Any]:
        """The walk as JSON values."""
        matrices = {id: matrix.content() for id, matrix in self.matrices.items()}
        steps = [step.content() for step in self.steps]
        return {"title": self.title, "intro": self.intro, "matrices": matrices, "steps": steps}

    def view(self) -> View:
        """The walk as a page."""
        return View(self.title, (Interactive(component="walk", content=self.content()),), self.intro)


def recomputed(walk: Walk, id: str) -> Array:
    """A matrix made again from the ones it was made from, in float64; NaN where these are not stored."""
    matrix = walk.matrices[id]
    made = dict(matrix.made_from or {})
    kind, shape = made["kind"], matrix.values.shape

    def side(name: str) -> Array:
        return np.asarray(walk.matrices[made[name]].values, dtype=np.float64)

    left = side("left")
    if kind == "product":
        right = side("right").T if made.get("transpose") else side("right")
        result = left @ right + (side("bias")[:, : right.shape[1]] if "bias" in made else 0.0)
    elif kind in ("add", "multiply"):
        result = left + side("right") if kind == "add" else left * side("right")
    elif kind == "scale":
        result = left * made["factor"]
    elif kind == "softmax":
        powers = np.exp(left - left.max(-1, keepdims=True))
        result = powers / powers.sum(-1, keepdims=True)
    elif kind == "norm":
        mean = 0.0 if made.get("rms") else left.mean(-1, keepdims=True)
        variance = ((left - mean) ** 2).mean(-1, keepdims=True)
        result = (left - mean) / np.sqrt(variance + made["epsilon"]) * side("gain")
        result = result + side("bias") if "bias" in made else result
    elif kind == "row":
        result = left[list(made["indices"])]
    elif kind == "columns":
        result = left[:, made["offset"] : made["offset"] + shape[1]]
    elif kind == "concat":
        result = np.full(shape, np.nan)
        result[:, made["offset"] : made["offset"] + side("right").shape[1]] = side("right")
    elif kind == "gate":
        result = left * side("right") + (1 - left) * side("more")
    else:
        result = MAPS[made["function"]](left)
    whole = np.full(shape, np.nan)
    result = result[: shape[0], : shape[1]]
    whole[: result.shape[0], : result.shape[1]] = result
    return whole


def _gelu(x: Array) -> Array:
    from math import erf

    return x * 0.5 * (1 + np.vectorize(erf)(x / np.sqrt(2)))


MAPS: dict[str, Any] = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": _gelu,
    "gelu-tanh": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "exp": np.exp,
    "log": np.log,
}

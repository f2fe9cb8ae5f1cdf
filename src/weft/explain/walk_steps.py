"""The form of every walk: steps with matrices, and how each number of a matrix was made of others.

The top of `picture/components/walk.js` describes the JSON of a walk and the kinds of `made_from`; a page with live
numbers builds the same JSON by itself.
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
Labels = Sequence[str] | None
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
    """Texts in rows and columns; `marked` cells stand out."""

    name: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    marked: Sequence[tuple[int, int]] = ()

    def content(self) -> dict[str, Any]:
        rows, marked = [list(row) for row in self.rows], [list(cell) for cell in self.marked]
        return {"name": self.name, "header": list(self.header), "rows": rows, "marked": marked}


@dataclass(frozen=True)
class WalkStep:
    """One step: what happens, as a sentence, a formula, matrices (by id, with signs between them) and tables."""

    title: str
    text: str
    formula: str = ""
    matrices: Sequence[str] = ()
    tables: Sequence[WalkTable] = ()
    details: Sequence[WalkStep] = ()
    chain: Mapping[str, Any] | None = None
    part: str = ""

    def content(self) -> dict[str, Any]:
        plain = {"title": self.title, "text": self.text, "formula": self.formula, "matrices": list(self.matrices)}
        more = {"part": self.part, "chain": self.chain, "tables": [table.content() for table in self.tables]}
        details = [detail.content() for detail in self.details]
        return {**plain, **{name: value for name, value in more.items() if value}, "details": details}


@dataclass
class Walk:
    """Steps with real numbers; `add` matrices, then the steps that show them.

    `scope` stands before the ids of the matrices that are added, and `part` is the section of the steps.
    """

    title: str
    intro: str = ""
    matrices: dict[str, WalkMatrix] = field(default_factory=dict)
    steps: list[WalkStep] = field(default_factory=list)
    scope: str = ""
    part: str = ""

    def add(
        self,
        id: str,
        name: str,
        values: Any,
        rows: Labels = None,
        columns: Labels = None,
        *,
        shape: tuple[int, int] | None = None,
        scale: str = "diverging",
        digits: int = 2,
        **made: Any,
    ) -> str:
        """Add a matrix, and return its id; `made` says how it was made of others.

        Labels that are not given are those of the matrices that it was made of, or numbers.
        """
        id, array = self.scope + id, np.atleast_2d(np.asarray(values))
        made = {key: value for key, value in made.items() if value is not None}
        sides = [made[side] for side in ("left", "right", "gain", "bias", "more") if side in made]
        assert id not in self.matrices, f"two matrices {id}"
        assert all(side in self.matrices for side in sides), f"{id} is made from {sides}"
        known = self._labels(made)
        labels = [
            list(own) if own is not None else list(usual) if len(usual) == size else [str(n) for n in range(size)]
            for own, usual, size in zip((rows, columns), known, array.shape, strict=True)
        ]
        assert (len(labels[0]), len(labels[1])) == array.shape, f"{id}: labels of other shape than {array.shape}"
        size = shape or (array.shape[0], array.shape[1])
        self.matrices[id] = WalkMatrix(name, array, labels[0], labels[1], size, made or None, scale, digits)
        return id

    def _labels(self, made: Mapping[str, Any]) -> tuple[Sequence[str], Sequence[str]]:
        """The rows and columns that a matrix has after those it was made of."""
        if "left" not in made:
            return (), ()
        left = self.matrices[made["left"]]
        if made["kind"] == "product":
            right = self.matrices[made["right"]]
            return left.rows, right.rows if made.get("transpose") else right.columns
        return left.rows, left.columns if made["kind"] not in ("columns", "concat") else ()

    def weights(self, id: str, name: str, values: Any, columns: Labels = None, rows: Labels = None) -> str:
        """Add a matrix of weights (inputs by outputs); of a large one the first columns are stored."""
        array = np.atleast_2d(np.asarray(values))
        kept = array if array.size <= LARGE else array[:, :KEPT]
        labels = None if columns is None else columns[: kept.shape[1]]
        return self.add(id, name, kept, rows, labels, shape=(array.shape[0], array.shape[1]))

    def values(self, id: str) -> Array:
        """The stored numbers of a matrix."""
        return self.matrices[id].values

    def shown(self, id: str) -> list[str]:
        """A matrix beside those that it was made of, with signs between them."""
        made = self.matrices[id].made_from or {}
        kind, left, right = made.get("kind"), made.get("left"), made.get("right")
        if kind in ("product", "add", "multiply"):
            sign = "+" if kind == "add" else "×"
            bias = ["+", made["bias"]] if "bias" in made else []
            return [left, f"{sign} transposed" if made.get("transpose") else sign, right, *bias, "=", id]
        if kind == "gate":
            return [left, right, made["more"], "→", id]
        return [left, "→", id] if left is not None else [id]

    def step(self, title: str, text: str, formula: str = "", show: str | Sequence[str] = (), **more: Any) -> None:
        """Add a step that shows a matrix beside those that it was made of, or a list of ids and signs.

        `more`: tables, details and a chain.
        """
        matrices = self.shown(show) if isinstance(show, str) else show
        self.steps.append(WalkStep(title, text, formula, matrices, part=self.part, **more))

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

"""Vectors as users give them: lists, arrays, texts of numbers, columns of a table."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from weft.checkpoint.folder import LoadedModel
from weft.data.columns import list_in
from weft.errors import UserError, shown
from weft.tasks.base import Task
from weft.text.records import Record

MIN_LIMIT = 32  # tokens that a text may always have


def vector_in(record: Record, column: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The vector of a row."""
    where = f"{record.where}: column {shown(column)!r}"
    return np.array(numbers_of(list_in(record, column), where), dtype=np.float32)


def numbers_of(value: Any, where: str) -> list[float]:
    """A vector as numbers: a list, an array, or a text of numbers, as JSON has them or parted by spaces or commas."""
    if isinstance(value, str):
        text = value.strip()
        if text.startswith("{"):
            raise UserError(f"{where}: a row, not a vector; rows of a file are read by --data")
        try:
            value = json.loads(text) if text.startswith("[") else re.split(r"[\s,;]+", text) if text else []
        except (ValueError, RecursionError):
            raise UserError(f"{where}: {shown(value)!r} is no list of numbers") from None
    elif hasattr(value, "tolist"):
        value = value.tolist()
    if not isinstance(value, list | tuple):
        raise UserError(f"{where}: {shown(str(value))!r} is no list of numbers")
    if not value:
        raise UserError(f"{where}: there are no numbers")
    numbers = [_number(each) for each in value]
    for place, each in enumerate(numbers, 1):
        if not math.isfinite(each):
            wrong = shown(str(value[place - 1]))
            raise UserError(f"{where}: {wrong!r}, number {place} of {len(numbers)}, is no number")
    return numbers


def _number(value: Any) -> float:
    """A number that single precision holds, else NaN."""
    try:
        number = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        return math.nan
    return number if abs(number) <= 3e38 else math.nan


def is_vector(given: Any) -> bool:
    """Whether one vector is given, rather than several."""
    if isinstance(given, str):
        return True
    if getattr(given, "ndim", None) is not None:
        return bool(given.ndim == 1)
    return isinstance(given, list | tuple) and bool(given) and isinstance(given[0], int | float)


def vectors_of(opened: LoadedModel, given: Sequence[Any]) -> list[list[float]]:
    """Vectors as the model takes them; an error names its number."""
    vectors = []
    for number, each in enumerate(given, 1):
        where = f"vector {number} of {len(given)}" if len(given) > 1 else "the vector"
        vectors.append(numbers_of(each, where))
        check_length(len(vectors[-1]), opened.config.features, where)
    return vectors


def check_length(numbers: int, features: int, where: str) -> None:
    if numbers != features:
        raise UserError(f"{where}: a vector of {numbers} number{'s' * (numbers != 1)}, where {features} are expected")


def limit_for(opened: LoadedModel) -> int:
    """Tokens that a text may have where nobody says it: twice as many as any to learn from had."""
    return max(MIN_LIMIT, 2 * opened.card.window.length if opened.card.window else 0)


class VectorInputs(Task):
    """A task that reads vectors in place of texts."""

    def input_columns(self, record: Record, given: Mapping[str, str]) -> tuple[str, ...]:
        return ("vector",)

    @property
    def expected(self) -> str:
        return "a list of numbers, a list of such lists, or a table with a column vector"

    def is_input(self, value: Any) -> bool:
        return is_vector(value)

    def is_row(self, values: Mapping[str, Any]) -> bool:
        return any(is_vector(value) for value in values.values() if not isinstance(value, str))

    def check_item(self, number: int, value: Any) -> None:
        """`vectors_of` says what is wrong."""

    def row_input(self, record: Record, columns: Mapping[str, str]) -> Any:
        return vector_in(record, columns["vector"]).tolist()

    def texts_of(self, value: Any) -> tuple[str, ...]:
        return ()  # numbers are never empty

    def find_inputs(
        self, record: Record, given: Mapping[str, str], note: Callable[[str], None] = lambda text: None
    ) -> dict[str, str]:
        return Task.find_inputs(self, record, given, note)

    def partial_columns(
        self, record: Record, given: Mapping[str, str], note: Callable[[str], None]
    ) -> tuple[Task, dict[str, str], dict[str, str]]:
        return Task.partial_columns(self, record, given, note)

"""What a model is called with from Python: one text or several, pairs, rows of a table; and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from weft.data.columns import NAMES
from weft.data.tables import Table
from weft.errors import UserError, shown
from weft.tasks.describe import is_vector
from weft.tasks.inputs import input_of_each
from weft.tasks.registry import FROM_TEXT
from weft.tasks.understand import wants_two

if TYPE_CHECKING:
    from weft.tasks.model import Model

CHUNK = 256  # inputs between two states of a progress bar
# Tasks whose answers depend on nothing but their own input, so that the inputs may be asked about in parts.
APART = ("classify", "multilabel", "regress", "pair", "tag", "answer", "embed", *FROM_TEXT)
ONE_TEXT = ("classify", "multilabel", "regress")
# What a table has, whichever package it comes from: columns of pandas and polars, of a Dataset, of Arrow.
TABLES = ("columns", "column_names", "schema")


def inputs_in_call(model: Model, given: Any, columns: Mapping[str, str] | None = None) -> tuple[list[Any], bool]:
    """The inputs of one call, and whether it is one input rather than several."""
    numbers = model.opened.family.numbers
    if getattr(given, "ndim", 1) == 0:  # one text in an array of NumPy
        given = given.item()
    if isinstance(given, Mapping):
        one = _is_row(model, given)
        return list(input_of_each(model, Table([given] if one else given, columns or {}))), one
    if any(hasattr(given, name) for name in TABLES):
        return list(input_of_each(model, Table(given, columns or {}))), False
    if isinstance(given, str) or (numbers and is_vector(given)):
        return [given], True
    if isinstance(given, tuple) and not numbers:
        _check_pair(model)
        return [given], True
    if given is None or isinstance(given, bytes | bytearray | memoryview) or not isinstance(given, Iterable):
        raise UserError(f"a model for {model.task} is asked about {_expected(model)}; not about {_named(given)}")
    several = list(given)
    if several and all(isinstance(item, Mapping) for item in several):
        return list(input_of_each(model, Table(several, columns or {}))), False
    for number, item in enumerate(several, 1):
        if isinstance(item, tuple) and model.task in ONE_TEXT:
            _check_pair(model, f"input {number}: ")
        if not isinstance(item, str | tuple | list) and not (numbers or wants_two(model.task) or model.task == "tag"):
            raise UserError(f"input {number}: a text is expected, not {_named(item)}")
    return several, False


def _is_row(model: Model, given: Mapping[str, Any]) -> bool:
    """Whether a dict is one row rather than columns; a cell may be a list too: words of a text, or a vector."""
    if all(value is None or isinstance(value, str | bool | int | float) for value in given.values()):
        return True
    if model.opened.family.numbers:
        return any(is_vector(value) for value in given.values() if not isinstance(value, str))
    words = [given[name] for name in NAMES["words"] if name in given] if model.task == "tag" else []
    return bool(words) and isinstance(words[0], list) and all(isinstance(word, str) for word in words[0])


def _check_pair(model: Model, where: str = "") -> None:
    """A tuple is one pair, for a model that reads two texts; a published folder does not say whether it does."""
    if wants_two(model.task) or model.task == "choose" or (model.task == "classify" and model.card.task is None):
        return
    raise UserError(
        f"{where}a tuple is a pair of texts, and a model for {model.task} reads one text at a time: "
        "give several as a list"
    )


def _expected(model: Model) -> str:
    """What a model may be asked about."""
    if model.opened.family.numbers:
        return "a list of numbers, a list of such lists, or a table with a column vector"
    if model.task == "answer":
        return "a tuple of a question and its context, a list of them, or a table with columns question and context"
    if wants_two(model.task):
        return "a tuple of two texts, a list of them, or a table with columns text and pair"
    return "a text, a list of texts, or a table (a data frame, dicts) with a column text"


def _named(given: Any) -> str:
    if given is None or isinstance(given, bool | int | float):
        return repr(given)
    return f"{type(given).__name__} {shown(repr(given), 40)}" if isinstance(given, bytes) else type(given).__name__

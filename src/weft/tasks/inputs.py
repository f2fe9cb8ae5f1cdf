"""What a model is asked, without what is right: the text columns of a table, row by row."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from weft.data.columns import NAMES, file_of, find_columns
from weft.data.tables import Table
from weft.tasks.passing import framing_for
from weft.tasks.reading import LONG, long_note, value_in
from weft.tasks.saying import warn
from weft.tasks.tag import words_of
from weft.tasks.understand import wants_two
from weft.text.records import Skipped


def inputs_of(model: Any, columns: Mapping[str, str], data: Any, *how: Any) -> Iterator[Any]:
    """The texts of a table; its columns are called as in the training data, as `columns` says, or as usual.

    `how`: format, delimiter, names of columns, what to do about a bad row and encoding, as of `Table`.
    """
    two = wants_two(model.task)
    usual = {"answer": ("question", "context"), "describe": ("vector",)}.get(model.task, ("text", "pair")[: 1 + two])
    found: dict[str, str] = {}
    before = ""
    skipped, noted = Skipped(), set[str]()
    for record in Table(data, columns, *how).records(skipped):
        if (file := file_of(record.where, before)) != before:
            known = {ours: theirs for ours, theirs in model.card.columns.items() if theirs in record.values}
            known |= columns
            in_words = model.task == "tag" and ("words" in known or any(n in record.values for n in NAMES["words"]))
            names = ("words",) if in_words else usual
            found, before = find_columns(names, known, record, skipped.note), file
            warn(Skipped(notes={note: None for note in skipped.notes if note not in noted}))
            noted.update(skipped.notes)
        if in_words:
            yield words_of(record, found["words"])
            continue
        # An empty cell is answered like an empty line of standard input: one answer for each row.
        values = [value_in(record, found[name]) for name in names]
        texts = tuple("" if value is None else str(value) for value in values)
        if max(map(len, texts)) > LONG:
            framing = framing_for(model.opened)
            warnings.warn(long_note(texts, record.where, framing.stride, framing.cutting) or "", stacklevel=2)
        yield texts if two else texts[0]

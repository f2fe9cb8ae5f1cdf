"""Labels of a dataset: in a fixed order, checked, with a note on those that look alike."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from weft.data.tables import FEW
from weft.errors import UserError, did_you_mean, listed, shown


def in_order(labels: Sequence[str]) -> tuple[str, ...]:
    """Labels in an order that does not hang on the file: numbers by size, words by letters."""
    if all(re.fullmatch(r"-?\d{1,9}", label) for label in labels):
        return tuple(sorted(labels, key=lambda label: (int(label), label)))
    return tuple(sorted(labels))


def alike_note(labels: Sequence[str]) -> str | None:
    """A line about labels that are most likely one label, written in several ways; None where there are none."""
    ways: dict[str, list[str]] = {}
    for label in labels:
        ways.setdefault(" ".join(label.casefold().split()), []).append(label)
    several = [repr(shown(label)) for same in ways.values() if len(same) > 1 for label in same]
    if not several:
        return None
    return f"labels that differ only in case or spaces are learned as different ones: {listed(several, 6)}"


def number_of(label: str, labels: Mapping[str, int], where: str) -> int:
    """The number of a label; one that is not there is named with the nearest that is."""
    if label not in labels:
        raise UserError(
            f"{where}: label {shown(label)!r} is not one of {listed(labels, 12)}{did_you_mean(label, labels)}"
        )
    return labels[label]


def check_labels(counts: Counter[str], labels: Sequence[str], where: str) -> None:
    """Refuse what nothing can be learned from: one label only, or a label that no row has."""
    empty = [label for label in labels if not counts[label]]
    if empty:
        raise UserError(f"{where}: no row has the label {shown(empty[0])!r}, so nothing can be learned about it")
    if len(counts) == counts.total() >= FEW:
        raise UserError(f"{where}: each of the {len(counts)} rows has a label of its own; for numbers: --task regress")
    if counts.total() >= 20 and len(counts) > 0.8 * counts.total():
        raise UserError(
            f"{where}: {len(counts):,} different labels for {counts.total():,} rows, such as "
            f"{shown(next(iter(counts)))!r}: they look like ids; name the column of labels: "
            "--column label=NAME; for numbers: --task regress"
        )
    if len(labels) < 2 and len(counts) < 2:
        only = f"every row has the label {shown(labels[0])!r}" if labels else "no row has a label"
        raise UserError(f"{where}: {only}: there is nothing to tell apart")

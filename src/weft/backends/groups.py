"""Which rows go through an engine together; whatever the groups, a row gets the answer that it gets alone."""

from __future__ import annotations

from collections.abc import Sequence

TOKENS = 1024  # of a rectangle at most: what more of them make would not stay in a processor's cache
WASTE = 64  # places without a token that cost less than one more call


def similar_lengths(lengths: Sequence[int]) -> list[list[int]]:
    """Rows of similar length together, as many as make a rectangle of bounded size with little padding."""
    groups: list[list[int]] = []
    held = 0  # tokens of the last group
    for number in sorted(range(len(lengths)), key=lambda number: lengths[number]):
        size = max(1, lengths[number])
        places = (len(groups[-1]) + 1) * size if groups else 0
        if not groups or places > TOKENS or places - held - size > WASTE + held // 16:
            groups.append([])
            held = 0
        groups[-1].append(number)
        held += size
    return groups


def equal_lengths(lengths: Sequence[int]) -> list[list[int]]:
    """Rows of one length together, for an engine whose sums take another order beside padding; empty rows in none.

    In fp32 another order is rounding. In int8 a rounding can turn an integer, and those of all later layers.
    """
    groups: list[list[int]] = []
    for row in sorted((row for row, length in enumerate(lengths) if length), key=lambda row: lengths[row]):
        last = groups[-1] if groups else None
        if last is None or lengths[last[0]] != lengths[row] or (len(last) + 1) * lengths[row] > TOKENS:
            groups.append([])
        groups[-1].append(row)
    return groups

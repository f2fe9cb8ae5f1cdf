"""Groups of rows that go through an engine together."""

from __future__ import annotations

from collections.abc import Sequence

TOKENS = 1024  # of a rectangle at most: what more of them make would not stay in a processor's cache
WASTE = 64  # places without a token that cost less than one more call


def grouped(lengths: Sequence[int], padding: bool) -> list[list[int]]:
    """Rows that go through together: of similar length with little padding, or of one length and without empty rows."""
    # Beside padding the sums of an engine may take another order; in int8 a rounding can turn an integer.
    groups: list[list[int]] = []
    held = 0  # tokens of the last group
    for row in sorted(range(len(lengths)), key=lambda row: lengths[row]):
        if not lengths[row] and not padding:
            continue
        size = max(1, lengths[row])
        places = (len(groups[-1]) + 1) * size if groups else 0
        if not groups or places > TOKENS or places - held - size > (WASTE + held // 16 if padding else 0):
            groups.append([])
            held = 0
        groups[-1].append(row)
        held += size
    return groups

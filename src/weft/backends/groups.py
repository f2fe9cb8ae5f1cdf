"""Groups of rows that go through an engine together."""

from __future__ import annotations

from collections.abc import Sequence

TOKENS = 512  # of a rectangle at most: what more of them make would not stay in a processor's cache
WASTE = 16  # places without a token that cost less than one more call


def grouped(lengths: Sequence[int], padding: bool, parts: int = 1) -> list[list[int]]:
    """Rows that go through together: of similar length with little padding, or of one length and without empty rows.

    `parts`: groups that there should be at least, since so many are worked on at once.
    """
    # Beside padding the sums of an engine may take another order; in int8 a rounding can turn an integer.
    most = min(TOKENS, -(-sum(lengths) // parts))
    groups: list[list[int]] = []
    held = 0  # tokens of the last group
    for row in sorted(range(len(lengths)), key=lambda row: lengths[row]):
        if not lengths[row] and not padding:
            continue
        size = max(1, lengths[row])
        places = (len(groups[-1]) + 1) * size if groups else 0
        if not groups or places > most or places - held - size > (WASTE if padding else 0):
            groups.append([])
            held = 0
        groups[-1].append(row)
        held += size
    return groups

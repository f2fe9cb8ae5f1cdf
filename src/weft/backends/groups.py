"""Groups of rows that an engine runs together."""

from __future__ import annotations

from collections.abc import Sequence

TOKENS = 512  # of a rectangle at most: the activations of more would not fit into a processor's cache
WASTE = 16  # padding that takes less time than one more call


def grouped(lengths: Sequence[int], padding: bool, parts: int = 1) -> list[list[int]]:
    """Groups of rows: of similar length with little padding, or of equal length and without empty rows.

    `parts`: the least number of groups, since so many threads run one each.
    """
    # Without `padding`: padding may change the order of an engine's sums, and in int8 such a rounding changes integers.
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

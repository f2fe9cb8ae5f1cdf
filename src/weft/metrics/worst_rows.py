"""The rows on which a model does worst."""

from __future__ import annotations

import heapq
import math
from typing import Any


class WorstRows:
    """The rows on which a model did worst, as many as asked for and no more in memory."""

    def __init__(self, max_rows: int = 10) -> None:
        self.max_rows = max_rows
        self.heap = list[tuple[float, int, dict[str, Any]]]()
        self.seen = 0

    def add(self, badness: float, row: dict[str, Any]) -> None:
        """Offer a row; of equally bad ones the earlier stays."""
        self.seen += 1
        entry = (math.inf if math.isnan(badness) else badness, -self.seen, row)
        if len(self.heap) < self.max_rows:
            heapq.heappush(self.heap, entry)
        elif self.heap:
            heapq.heappushpop(self.heap, entry)

    def rows(self) -> list[dict[str, Any]]:
        """The rows kept, the worst first."""
        return [row for _, _, row in sorted(self.heap, key=lambda entry: entry[:2], reverse=True)]

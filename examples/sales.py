"""Make a small table of daily sales: three stores, a week that repeats, a trend, noise; for `weft finetune`.

python examples/sales.py sales.csv
"""

from __future__ import annotations

import csv
import random
import sys
from datetime import date, timedelta

STORES = {"north": (120.0, 0.05), "south": (480.0, -0.08), "west": (60.0, 0.02)}  # level and daily trend
WEEK = (0.8, 0.85, 0.9, 1.0, 1.25, 1.5, 0.7)


def main(path: str, days: int = 365) -> None:
    chance = random.Random(0)
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["date", "store", "sales", "promo"])
        for store, (level, trend) in STORES.items():
            for day in range(days):
                today, promo = date(2023, 1, 1) + timedelta(days=day), int(chance.random() < 0.1)
                expected = (level + trend * day) * WEEK[today.weekday()] * (1.0 + 0.2 * promo)
                writer.writerow([today.isoformat(), store, round(expected * chance.gauss(1.0, 0.06), 1), promo])


if __name__ == "__main__":
    main(sys.argv[1])

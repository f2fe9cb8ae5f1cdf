"""Dates as people write them, and as computers do: made data on which attention can be seen to work.

python examples/dates.py 20000 > dates.tsv
"""

from __future__ import annotations

import random
import sys
from datetime import date, timedelta

MONTHS = {
    "english": "January February March April May June July August September October November December",
    "german": "Januar Februar März April Mai Juni Juli August September Oktober November Dezember",
    "french": "janvier février mars avril mai juin juillet août septembre octobre novembre décembre",
    "spanish": "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre",
    "italian": "gennaio febbraio marzo aprile maggio giugno luglio agosto settembre ottobre novembre dicembre",
    "dutch": "januari februari maart april mei juni juli augustus september oktober november december",
}
DAYS = {
    "english": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
    "german": "Montag Dienstag Mittwoch Donnerstag Freitag Samstag Sonntag",
    "french": "lundi mardi mercredi jeudi vendredi samedi dimanche",
    "spanish": "lunes martes miércoles jueves viernes sábado domingo",
    "italian": "lunedì martedì mercoledì giovedì venerdì sabato domenica",
    "dutch": "maandag dinsdag woensdag donderdag vrijdag zaterdag zondag",
}
STYLES = {
    "english": (
        "{d} {month} {y}",
        "{month} {d}, {y}",
        "{d}{th} of {month} {y}",
        "{weekday}, {d} {month} {y}",
        "{d} {mon} {y}",
    ),
    "german": ("{d}. {month} {y}", "{weekday}, den {d}. {month} {y}", "{d:02}.{m:02}.{y}", "{d}. {mon}. {y}"),
    "french": ("{d} {month} {y}", "le {weekday} {d} {month} {y}", "le {d} {month} {y}"),
    "spanish": ("{d} de {month} de {y}", "{weekday}, {d} de {month} de {y}"),
    "italian": ("{d} {month} {y}", "{weekday} {d} {month} {y}"),
    "dutch": ("{d} {month} {y}", "{weekday} {d} {month} {y}", "{d:02}-{m:02}-{y}"),
}
FIRST, LAST = date(1900, 1, 1), date(2099, 12, 31)


def written(day: date, language: str, style: str) -> str:
    """One day as somebody writes it."""
    month = MONTHS[language].split()[day.month - 1]
    ordinal = "th" if 10 < day.day < 14 else {1: "st", 2: "nd", 3: "rd"}.get(day.day % 10, "th")
    weekday = DAYS[language].split()[day.weekday()]
    return style.format(d=day.day, m=day.month, y=day.year, month=month, mon=month[:3], th=ordinal, weekday=weekday)


def pairs(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """So many dates, each as written and as 2019-05-03; no two are written alike."""
    chance = random.Random(seed)
    styles = [(language, style) for language, some in STYLES.items() for style in some]
    found: dict[str, str] = {}
    while len(found) < count:
        day = FIRST + timedelta(days=chance.randrange((LAST - FIRST).days + 1))
        text = written(day, *chance.choice(styles))
        found[text.upper() if chance.random() < 0.05 else text] = day.isoformat()
    return list(found.items())


if __name__ == "__main__":
    print("source\ttarget")
    for source, target in pairs(int(sys.argv[1]) if len(sys.argv) > 1 else 20000):
        print(f"{source}\t{target}")

"""Texts and folders that several tests of the text floor use."""

from __future__ import annotations

import itertools
import json
import lzma
import os
import random
from pathlib import Path
from typing import Any

ODD = [
    "",
    "  ",
    " two  spaces   and more ",
    "\u00a0no-break\u3000wide",
    "naïve café, cafe\u0301",
    "ﬁne ① ＡＢＣ",
    "你好世界 日本語テキスト。한국어",
    "😀👍🏽 👨‍👩‍👧",
    "tab\tnew\nline\r\nend",
    "x\x00y\x07\u200bz\ufffd",
    "İstanbul ß ẞ Σίσυφος",
    "don't WON'T I'll 3.14%... (a-b)!!!",
    "x" * 300,
    "\U00013000\U00013001 run",
]
FIELDS = ("weavers", "threads", "looms", "patterns", "letters", "models", "children", "rivers", "naïve", "Café")
DEEDS = ("carry", "weave", "follow", "don't know", "remember", "unravel", "draw", "wonder about", "re-read")


def lines(number: int, seed: int = 0) -> list[str]:
    """Sentences that repeat themselves enough to learn from, the same for a seed."""
    pick = random.Random(seed).choice
    made = [f"The {pick(FIELDS)} {pick(DEEDS)} {pick(FIELDS)} in {pick(DEEDS)}ing" for _ in range(number)]
    return [f"{line}, {pick(FIELDS)}{pick('.!?')} ({seed + n})" for n, line in enumerate(made)]


def reviews(number: int) -> list[str]:
    with lzma.open(Path(os.environ["WEFT_DATA"]) / "imdb" / "unsup.txt.xz", "rt", encoding="utf-8") as file:
        return [line.rstrip("\n") for line in itertools.islice(file, number)]


def folder_of(path: Path, **files: Any) -> Path:
    """A folder with these files; double underscores stand for dots, dicts are written as JSON."""
    path.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        file = path / name.replace("__", ".")
        if isinstance(content, bytes):
            file.write_bytes(content)
        else:
            file.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8", newline="")
    return path

"""Lines that try a tokenizer: real text where WEFT_DATA is set, and a generator that mixes everything that is hard."""

from __future__ import annotations

import gzip
import itertools
import lzma
import os
import random
import sys
import unicodedata
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PROSE = (
    "The weaver's loom wasn't old, was it? She'd sold 3.14 yards for $2,000 (or so).",
    "Él comió piñas; naïve façade, Ångström, smørrebrød, Straße, İstanbul, ǅ, ﬁne ﬂow.",
    "Привет, мир! Ёлка и ёж. Γειά σου Κόσμε. שלום עולם. مرحبا بالعالم. नमस्ते दुनिया। สวัสดีชาวโลก",
    "你好，世界！東京タワー 한국어 텍스트 ㋿ ㌀ Ａｂｃ１２３ ｶﾀｶﾅ 々〆",
    "👩‍👩‍👧‍👦 family 👍🏽 flags 🇩🇪🇫🇷 ❤️‍🔥 ☺︎ ☺️ 🏴󠁧󠁢󠁥󠁮󠁧󠁿 1️⃣",
    'def f(x: int) -> str:\n\treturn f"{x!r:>10}"  # comment\n\n\nif a<=b && c!=d || ~e:',
    "[CLS] a [SEP] b [MASK] </s> <s> <unk> <pad> <|endoftext|> [UNK] <mask>",
    "https://example.com/a?b=c&d=%20#e name@example.org C:\\dir\\file.txt",
    "I'll they've we'RE DON'T can't 'tis o'clock rock'n'roll ''quoted''",
)
RANGES = (
    (0x00, 0x20), (0x20, 0x7F), (0x7F, 0x100), (0x100, 0x250), (0x300, 0x370), (0x370, 0x530), (0x590, 0x700),
    (0x900, 0xE00), (0xE00, 0x1000), (0x1100, 0x1200), (0x1E00, 0x2000), (0x2000, 0x2070), (0x2070, 0x2C00),
    (0x3000, 0x3400), (0x4E00, 0x4F00), (0xA640, 0xAC00), (0xAC00, 0xAD00), (0xE000, 0xE010), (0xF900, 0xFB50),
    (0xFB50, 0xFE00), (0xFE00, 0xFE50), (0xFF00, 0x10000), (0x10300, 0x10400), (0x1D400, 0x1D800),
    (0x1F000, 0x1FB00), (0x20000, 0x20100), (0xE0001, 0xE0080), (0x11000, 0x11200), (0x1E900, 0x1E960),
)  # fmt: skip
SPACES = "  \t\n\r\x0b\x0c\x1c\x1d\x85\xa0\u1680\u2002\u2009\u200b\u200d\u2028\u2029\u202f\u205f\u2060\u3000\ufeff"
FILES = (
    "imdb/test.tsv.xz", "wikitext2/*", "multi30k/val.de.gz", "multi30k/val.en.gz", "books/*.xz", "wnut17/*.xz",
    "tinyshakespeare/*", "sms_spam/*",
)  # fmt: skip
OPENERS = {".xz": lzma.open, ".gz": gzip.open, ".txt": open, ".tsv": open}
READ = 40_000  # lines of a file that are read


def generated(count: int, seed: int = 0) -> Iterator[str]:
    """Lines of prose in many scripts, of characters at random, of odd spaces, and of all of these in one another."""
    draw = random.Random(seed)
    words = [word for line in PROSE for word in line.split(" ")]
    kinds = ("prose", "characters", "spaces", "marks", "mixed", "repeated")
    for number in range(count):
        kind = kinds[number % len(kinds)]
        if kind == "prose":
            line = " ".join(draw.choice(words) for _ in range(draw.randint(1, 25)))
        elif kind == "characters":
            line = "".join(_character(draw) for _ in range(draw.randint(1, 40)))
        elif kind == "spaces":
            line = "".join(draw.choice(words) + draw.choice(SPACES) * draw.randint(1, 3) for _ in range(8))
        elif kind == "marks":
            marks = "".join(chr(draw.randrange(0x300, 0x370)) for _ in range(draw.randint(1, 4)))
            line = "".join(draw.choice("aeiouñçAEIOUÅ각한") + marks + draw.choice(("", " ", "-")) for _ in range(9))
        elif kind == "mixed":
            line = "".join(draw.choice((draw.choice(words), _character(draw), draw.choice(SPACES))) for _ in range(30))
        else:
            line = draw.choice(words)[:3] * draw.randint(2, 60)
        yield unicodedata.normalize(draw.choice(("NFC", "NFD")), line) if draw.random() < 0.3 else line


def _character(draw: random.Random) -> str:
    if draw.random() < 0.05:
        point = draw.randrange(0x20, sys.maxunicode)
        return "?" if 0xD800 <= point < 0xE000 else chr(point)
    return chr(draw.randrange(*draw.choice(RANGES)))


def real(count: int) -> list[str]:
    """Lines of the real data, taken evenly from several files; none where WEFT_DATA is unset."""
    folder = os.environ.get("WEFT_DATA")
    if not folder:
        return []
    paths = sorted({path for pattern in FILES for path in Path(folder).glob(pattern) if path.suffix in OPENERS})
    texts = []
    for path in paths:
        with OPENERS[path.suffix](path, "rt", encoding="utf-8", newline="\n") as file:
            texts.append([line.rstrip("\n") for line in itertools.islice(file, READ) if line.strip()])
    each = -(-count // max(1, len(texts)))
    chosen = [line for some in texts for line in some[:: max(1, len(some) // each)][:each]]
    return chosen[:count]


@cache
def lines(count: int, seed: int = 0, longest: int = 1000) -> tuple[str, ...]:
    """So many lines, half of them real where there is real data."""
    some = [line[:longest] for line in real(count // 2)]
    return (*some, *generated(count - len(some), seed))

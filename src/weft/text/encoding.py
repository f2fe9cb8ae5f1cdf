"""Which encoding the bytes of a file are in: UTF-8 with or without damage, UTF-16, or one byte per character."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from weft.errors import UserError, shown

MARKS = (  # the longer first: UTF-32's begins with UTF-16's
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
WIDE = re.compile(rb"[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}")
HIGH = re.compile(rb"[\x80-\xff]+")
UNDEFINED = re.compile(rb"[\x81\x8d\x8f\x90\x9d]")  # in cp1252
# Signs of cp1252 that people write: the euro, quotes, dashes, dots, a non-breaking space, money, degrees, fractions and
# Latin letters. Left out is what damage looks like: the last letters of the table, and the bytes with which most
# characters of UTF-8 begin (0xc2, 0xc3).
USUAL = re.compile(rb"[\x80\x82\x84\x85\x8a\x8c\x8e\x91-\x97\x99\x9a\x9c\x9e\xa0-\xc1\xc4-\xfd]")


@dataclass
class ByteStatistics:
    """What the bytes of a file show, chunk by chunk."""

    head: bytes = b""
    wide: int = 0  # whole characters of several bytes, as UTF-8 has them
    stray: int = 0  # bytes above 127 that are no part of one
    runs: int = 0  # runs of such bytes
    usual: int = 0  # of them, those that cp1252 has and people write
    undefined: bool = False
    newlines: int = 0
    returns: int = 0

    def add(self, chunk: bytes) -> None:
        if len(self.head) < 4096:
            self.head += chunk[: 4096 - len(self.head)]
        self.newlines += chunk.count(b"\n")
        self.returns += chunk.count(b"\r")
        if chunk.isascii():
            return
        try:
            chunk.decode("utf-8")
            self.wide += 1  # at least one
        except UnicodeDecodeError:
            rest, wide = WIDE.subn(b"", chunk)
            self.wide += wide
            strays = HIGH.findall(rest)
            self.stray += sum(map(len, strays))
            self.runs += len(strays)
            self.usual += len(USUAL.findall(rest))
            self.undefined = self.undefined or UNDEFINED.search(rest) is not None


@dataclass(frozen=True)
class Encoding:
    """How a file is decoded."""

    name: str
    mac: bool = False  # lines end with a carriage return alone
    note: str = ""  # a line for the user where the encoding is not UTF-8


def whole_characters(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes, cut elsewhere, so that no character of UTF-8 is cut in two."""
    rest = b""
    for chunk in chunks:
        chunk = rest + chunk
        end = len(chunk)
        while len(chunk) - end < 4 and end and chunk[end - 1] >= 0x80:
            end -= 1
            if chunk[end] >= 0xC0:  # the first byte of a character
                break
        chunk, rest = chunk[:end], chunk[end:]
        yield chunk
    if rest:
        yield rest


def encoding_of(chunks: Iterable[bytes], name: str) -> Encoding:
    """The encoding that these bytes of a file show; UTF-8 unless there is good evidence of another."""
    tally = ByteStatistics()
    for chunk in whole_characters(chunks):
        tally.add(chunk)
    for mark, encoding in MARKS:
        if tally.head.startswith(mark):
            mac = encoding == "utf-8" and tally.returns > 0 and not tally.newlines
            return Encoding(encoding, mac, "" if encoding == "utf-8" else f"read as {encoding.upper()}")
    if wide := _zeros(tally.head):
        return Encoding(wide, note=f"read as {wide.upper()}, by its zero bytes")
    mac = tally.returns > 0 and not tally.newlines
    # Where there is about as much UTF-8 as not, it is a damaged file of UTF-8: whole characters of several bytes hardly
    # ever come about by chance in other encodings.
    # A zero byte: no text at all, which its lines will show.
    if not tally.stray or 10 * tally.wide >= tally.stray or b"\0" in tally.head:
        return Encoding("utf-8", mac)
    if tally.stray > 2.5 * tally.runs and tally.stray >= 20:
        raise UserError(
            f"{name}: not UTF-8: it looks like an encoding for another script than Latin; "
            "give --encoding NAME, such as cp1251, gb18030, shift_jis or euc_kr"
        )
    if tally.usual < 0.7 * tally.stray:
        return Encoding("utf-8", mac)
    encoding = "latin-1" if tally.undefined else "cp1252"
    return Encoding(encoding, mac, f"not UTF-8; read as {encoding} (--encoding NAME for another)")


def _zeros(head: bytes) -> str | None:
    """UTF-16 without a mark: in Latin text every other byte is zero."""
    pairs = len(head) // 2
    if pairs < 4 or b"\0" not in head:
        return None
    even, odd = head[: 2 * pairs : 2].count(0), head[1 : 2 * pairs : 2].count(0)
    if odd > 0.6 * pairs and even < 0.02 * pairs:
        return "utf-16-le"
    return "utf-16-be" if even > 0.6 * pairs and odd < 0.02 * pairs else None


def known_encoding(name: str) -> str:
    """The usual name of an encoding that a user gives."""
    try:
        "".encode(name)
        codec = codecs.lookup(name).name
    except (LookupError, ValueError, TypeError):
        raise UserError(
            f"encoding {shown(name)!r} is not known; give a name such as utf-8, cp1252, latin-1, utf-16 or gb18030"
        ) from None
    if codec in ("idna", "punycode", "unicode-escape", "raw-unicode-escape", "undefined", "mbcs", "oem"):
        raise UserError(f"encoding {shown(name)!r} is no encoding of files")
    return "utf-8" if codec in ("utf-8-sig", "ascii") else codec

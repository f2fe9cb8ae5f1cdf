"""Mutators: functions of some bytes and a random generator to other bytes, the same ones for the same generator."""

from __future__ import annotations

import gzip
import io
import json
import random
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

Mutator = Callable[[bytes, random.Random], bytes]

# Numbers as a flag, a cell or a text file may spell them.
NUMBERS = (
    *("0", "-1", "1", "2", "-0", "-0.0", "0.5", "1.5", "1e-9", "nan", "inf", "-inf", "1e23", "1e308", "1e400", "-1e23"),
    *("255", "256", "65535", "65536", "2147483647", "2147483648", "4294967296", "9223372036854775807"),
    *("9223372036854775808", "18446744073709551616", "1" + "0" * 400, "", " ", "+", "-", "0x10", "1_000", "1,5"),
    *("１２", "٣", "½", "1e", "--1", "1.2.3", "true", "None", "NaN", "Infinity"),
)
INTEGERS = (0, 1, -1, 2, 3, 7, 255, 256, 65536, 10**6, 10**9, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 10**30)
FLOATS = (0.0, -0.0, -1.0, 0.5, 1.5, 1e-320, 1e-30, 1e23, 1e30, 1e38, 1e300, 1.7e308)
STRINGS = (
    *("", " ", "\0", "\n", "\t", "a\nb", "\x1b[31mred\x1b[0m", "\x9b31m", "\u202eabc", "\ufeff", "\ud800", "é", "🙂"),
    *("../../etc/passwd", "/etc/passwd", "file:///etc/passwd", "http://localhost/x", "~", "$HOME", "%s%n", "{0}", "'"),
    *("[UNK]", "</s>", "<pad>", "None", "null", "nan", "a" * 300, "a b " * 500, "ab" * 20_000, "[bold]x[/bold]", "\\"),
)
LONG = 16 << 20  # bytes that a mutation makes at most of a line
BYTES = (b"\0", b"\xff", b"\n", b"\r", b'"', b"'", b",", b"\t", b"{", b"}", b"[", b"]", b"\xef\xbb\xbf", b"\xff\xfe")
BYTES += (b"\xed\xa0\x80", b"\x1b[2J", b"\xc2\x9b", b"\xe2\x80\xae", b"\x80", b"\xf4\x90\x80\x80", b"\x1a", b"NaN")


def generator(seed: int, name: str, number: int) -> random.Random:
    """The random generator of one case: a function of the seed, the target's name and the case's number."""
    return random.Random(f"{seed}/{name}/{number}")


# --------------------------------------------------------------------------------------------------------------- bytes


def mutate_bytes(data: bytes, rng: random.Random) -> bytes:
    """Some bits, bytes or stretches changed, dropped, repeated or moved."""
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        data = rng.choice(BYTE_STEPS)(data, rng)
    return data


def flip_bit(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data or b"\0")
    changed[_place(changed, rng)] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _place(data: bytes | bytearray, rng: random.Random) -> int:
    """An index; headers stand at the beginning or the end, so these are likelier."""
    near = min(len(data), 512)
    choice = rng.random()
    return (
        rng.randrange(near)
        if choice < 0.3
        else rng.randrange(len(data) - near, len(data))
        if choice < 0.45
        else rng.randrange(len(data))
    )  # noqa: E501


def set_byte(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data or b"\0")
    changed[_place(changed, rng)] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    return bytes(changed)


def set_word(data: bytes, rng: random.Random) -> bytes:
    """A whole number of 2, 4 or 8 bytes that counts, lengths and offsets may be made of."""
    size, letter = rng.choice(((2, "<H"), (4, "<I"), (8, "<Q"), (4, ">I"), (4, "<f"), (8, "<d")))
    value: Any = rng.choice((float("nan"), float("inf"), 1e30)) if letter[1] in "fd" else rng.choice(INTEGERS)
    if isinstance(value, int):
        value %= 256**size
    place = _place(data or b"\0", rng)
    return data[:place] + struct.pack(letter, value) + data[place + size :]


def cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.choice((0, 1, len(data) // 2, max(0, len(data) - 1), rng.randrange(len(data) + 1)))]


def drop(data: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(data) + 1)
    return data[:start] + data[start + rng.choice((1, 2, 8, 100)) :]


def insert(data: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(data) + 1)
    return data[:start] + rng.choice(BYTES) * rng.choice((1, 1, 1, 3, 5000)) + data[start:]


def repeat(data: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(data) + 1)
    part = data[start : start + rng.choice((1, 16, 1000))]
    return data[:start] + part * rng.choice((2, 3, 100, 3000)) + data[start + len(part) :]


def exchange(data: bytes, rng: random.Random) -> bytes:
    one, two = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    size = rng.choice((1, 4, 64))
    return data[:one] + data[two : two + size] + data[one + size : two] + data[one : one + size] + data[two + size :]


BYTE_STEPS = (flip_bit, flip_bit, flip_bit, set_byte, set_word, set_word, cut, drop, insert, repeat, exchange)


# ---------------------------------------------------------------------------------------------------------------- text


def mutate_numbers(data: bytes, rng: random.Random) -> bytes:
    """One number of a text in another spelling or size."""
    numbers = list(re.finditer(rb"-?\d+(?:\.\d+)?(?:e-?\d+)?", data))
    if not numbers:
        return mutate_bytes(data, rng)
    match = rng.choice(numbers[:8] if rng.random() < 0.4 else numbers)
    return data[: match.start()] + rng.choice(NUMBERS).encode() + data[match.end() :]


def repeated(data: bytes, times: int) -> bytes:
    """So many times, but for what is long already."""
    return data * min(times, max(1, LONG // max(1, len(data))))


def mutate_lines(data: bytes, rng: random.Random) -> bytes:
    """Lines and cells dropped, repeated, exchanged, made long, quoted or in another encoding."""
    lines = data.split(b"\n")
    for _ in range(rng.choice((1, 1, 2, 5))):
        place = rng.randrange(len(lines)) if rng.random() < 0.7 else 0
        cell = rng.choice(STRINGS).encode("utf-8", "surrogatepass")
        delimiter = rng.choice((b"\t", b",", b" ", b";"))
        cells = lines[place].split(delimiter)
        cells[rng.randrange(len(cells))] = cell if rng.random() < 0.7 else rng.choice(NUMBERS).encode()
        lines[place] = rng.choice(
            (
                b"", delimiter.join(cells), delimiter.join(cells), delimiter.join(cells), lines[place] + delimiter,
                lines[place] + rng.choice(BYTES), rng.choice(BYTES) + lines[place], lines[rng.randrange(len(lines))],
                repeated(lines[place], rng.choice((2, 2000))),
                repeated(delimiter.join(cells) + delimiter, rng.choice((2, 3, 5000))),
                lines[place] + b"\n" + lines[place],
            )
        )  # fmt: skip
        if rng.random() < 0.2:
            del lines[place]
        lines = lines or [b""]
    text = b"\n".join(lines)
    if rng.random() < 0.1:
        encoding = rng.choice(("utf-16", "utf-16-be", "utf-32", "cp1252", "utf-8-sig", "cp037"))
        text = text.decode("utf-8", "replace").encode(encoding, "replace")
    return text.replace(b"\n", b"\r\n") if rng.random() < 0.05 else text


# ---------------------------------------------------------------------------------------------------------------- JSON


def mutate_json(data: bytes, rng: random.Random) -> bytes:
    """A value replaced by one of another kind or size, a key dropped, added, renamed or there twice; or its bytes."""
    if rng.random() < 0.1:
        return mutate_bytes(data, rng)
    if rng.random() < 0.1:
        return mutate_numbers(data, rng)
    try:
        value = json.loads(data)
    except ValueError:
        return mutate_bytes(data, rng)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        value = change_value(value, rng)
    text = json.dumps(value)
    if rng.random() < 0.03:
        text = text.replace("{", '{"a": 1, "a": 2, ', 1)
    return text.encode("utf-8", "surrogatepass")


def change_value(value: Any, rng: random.Random) -> Any:
    """The same value with one place in it changed; places near the top are likelier."""
    if isinstance(value, dict) and value and rng.random() < 0.92:
        key = rng.choice(list(value)[:40] if rng.random() < 0.7 else list(value))
        changed = dict(value)
        choice = rng.random()
        if choice < 0.1:
            del changed[key]
        elif choice < 0.15:
            changed[key + rng.choice(("x", " ", "\0", "_"))] = changed.pop(key)
        elif choice < 0.2:
            changed[rng.choice(STRINGS)[:300]] = hostile_value(rng)
        else:
            changed[key] = change_value(value[key], rng)
        return changed
    if isinstance(value, list) and value and rng.random() < 0.85:
        place = rng.randrange(len(value))
        changed_list = list(value)
        choice = rng.random()
        if choice < 0.15:
            del changed_list[place]
        elif choice < 0.3:
            changed_list.insert(place, hostile_value(rng))
        elif choice < 0.36:
            times = min(rng.choice((1, 10, 3000)), max(1, LONG // len(json.dumps(value[place]))))
            changed_list[place:place] = value[place : place + 1] * times
        elif choice < 0.4:
            rng.shuffle(changed_list)
        else:
            changed_list[place] = change_value(value[place], rng)
        return changed_list
    if rng.random() < 0.5:  # of the same kind, which gets further
        if isinstance(value, bool):
            return not value
        if isinstance(value, int):
            return rng.choice((*INTEGERS, value + 1, value - 1, -value, value * 2, value * 1000, float(value)))
        if isinstance(value, float):
            return rng.choice((*FLOATS, value * 2, -value, value * 1e6))
        if isinstance(value, str):
            times = min(1000, max(1, LONG // max(1, len(value))))
            return rng.choice((*STRINGS, value + "x", value[:-1], value.upper(), value * times, [value]))
    return hostile_value(rng)


def hostile_value(rng: random.Random) -> Any:
    """A value that a reader does not expect."""
    kind = rng.randrange(8)
    if kind == 0:
        return rng.choice(INTEGERS)
    if kind == 1:
        return rng.choice(FLOATS)
    if kind == 2:
        return rng.choice(STRINGS)
    if kind == 3:
        return rng.choice((float("nan"), float("inf"), -float("inf")))  # written as Python does, which is no JSON
    if kind == 4:
        return rng.choice((None, True, False))
    if kind == 5:
        return rng.choice(([], {}, [[]], [{}], {"": None}, [None], [1, "a", None], {"a": {"b": {"c": []}}}))
    if kind == 6:
        nested: Any = rng.choice((0, "x", {}))
        for _ in range(rng.choice((3, 60, 900))):
            nested = [nested] if rng.random() < 0.5 else {"a": nested}
        return nested
    return [rng.choice((*INTEGERS, *STRINGS, None, [], {}))] * rng.choice((1, 2, 2000))


# --------------------------------------------------------------------------------------------------------- safetensors


def mutate_safetensors(data: bytes, rng: random.Random) -> bytes:
    """The header as JSON, the numbers as NaN, infinite or huge, or plain bytes."""
    choice = rng.random()
    if choice < 0.25:
        return mutate_bytes(data, rng)
    (size,) = struct.unpack("<Q", data[:8])
    header, body = data[8 : 8 + size], bytearray(data[8 + size :])
    if choice < 0.65:
        header = mutate_json(header, rng)
    elif choice < 0.75:
        names = json.loads(header)
        one, two = (rng.choice(list(names)) for _ in range(2))
        names[one], names[two] = names[two], names[one]  # two tensors change places
        header = json.dumps(names).encode()
    else:
        for _ in range(rng.choice((1, 1, 50))):
            value = rng.choice((float("nan"), float("inf"), -float("inf"), 1e30, 3e38, -1e20, 1e-45))
            place = rng.randrange(max(1, len(body) // 4)) * 4
            body[place : place + 4] = struct.pack("<f", value)
    length = len(header) if rng.random() < 0.95 else rng.choice(INTEGERS) % 2**64
    return struct.pack("<Q", length) + header + bytes(body)


# ------------------------------------------------------------------------------------------------------------ protobuf


def protobuf_fields(data: bytes) -> list[tuple[int, int, Any]] | None:
    """(number, wire type, value) of each field of a message; None where it is none."""
    fields, at = [], 0
    try:
        while at < len(data):
            tag, at = _varint(data, at)
            number, wire = tag >> 3, tag & 7
            if not number:
                return None
            if wire == 0:
                value: Any
                value, at = _varint(data, at)
            elif wire in (1, 5):
                size = 8 if wire == 1 else 4
                value, at = data[at : at + size], at + size
            elif wire == 2:
                size, at = _varint(data, at)
                value, at = data[at : at + size], at + size
            else:
                return None
            if at > len(data):
                return None
            fields.append((number, wire, value))
    except IndexError:
        return None
    return fields


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value, at, shift = value | (byte & 0x7F) << shift, at + 1, shift + 7
        if byte < 0x80:
            return value, at
        if shift > 63:
            raise IndexError


def _written(value: int) -> bytes:
    value %= 2**64
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out) + bytes([value])


def protobuf_bytes(fields: list[tuple[int, int, Any]]) -> bytes:
    out = b""
    parts = []
    for number, wire, value in fields:
        head = _written(number << 3 | wire)
        parts.append(head + (_written(value) if wire == 0 else value if wire != 2 else _written(len(value)) + value))
    return out.join(parts)


def mutate_protobuf(data: bytes, rng: random.Random) -> bytes:
    """A field of a message, or of one inside it, changed, dropped, repeated or given another number."""
    if rng.random() < 0.15:
        return mutate_bytes(data, rng)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        data = _change_message(data, rng, 0)
    return data


def _change_message(data: bytes, rng: random.Random, depth: int) -> bytes:
    fields = protobuf_fields(data) if data else None
    if not fields or depth > 6:
        return rng.choice((flip_bit, set_byte, set_word, cut, repeat))(data, rng)
    place = rng.randrange(len(fields))
    number, wire, value = fields[place]
    choice = rng.random()
    if choice < 0.08:
        del fields[place]
    elif choice < 0.14:
        fields[place:place] = [fields[place]] * rng.choice((1, 2, 2000))
    elif choice < 0.18:
        fields[place] = (rng.choice((1, 2, 3, 5, 7, 8, 15, 20, 536870911)), wire, value)
    elif wire == 0:
        fields[place] = (number, wire, rng.choice((*INTEGERS, value + 1, value - 1)))
    elif wire in (1, 5):
        kind = "<d" if wire == 1 else "<f"
        wild = rng.choice((float("nan"), float("inf"), -float("inf"), 1e38, -1e38, 0.0))
        fields[place] = (number, wire, struct.pack(kind, wild))
    elif protobuf_fields(value) and rng.random() < 0.9:
        fields[place] = (number, wire, _change_message(value, rng, depth + 1))
    elif rng.random() < 0.5:
        fields[place] = (number, wire, rng.choice(STRINGS).encode("utf-8", "surrogatepass"))
    else:
        fields[place] = (number, wire, rng.choice((flip_bit, set_byte, set_word, cut, repeat))(value, rng))
    return protobuf_bytes(fields)


# --------------------------------------------------------------------------------------------------------- CTranslate2


def mutate_ct2(data: bytes, rng: random.Random) -> bytes:
    """A variable of a CTranslate2 model dropped, renamed, of another type or size, or with other numbers in it."""
    if rng.random() < 0.2:
        return mutate_bytes(data, rng)
    head, variables, tail = ct2_variables(data)
    place = rng.randrange(len(variables))
    name, dims, kind, body = variables[place]
    choice = rng.randrange(8)
    if choice == 0:
        del variables[place]
    elif choice == 1:
        variables[place] = (rng.choice((name + b"x", b"", variables[0][0], b"encoder/num_heads")), dims, kind, body)
    elif choice == 2:
        variables[place] = (name, dims, rng.choice((0, 1, 2, 3, 4, 5, 6, 99)), body)
    elif choice == 3:
        changed = list(dims) or [1]
        changed[rng.randrange(len(changed))] = rng.choice((0, 1, 2, 64, 65, 2**31, 2**32 - 1))
        variables[place] = (name, tuple(changed), kind, body)
    elif choice in (4, 5) and len(body) >= 4:
        at = rng.randrange(len(body) // 4) * 4
        wild = struct.pack("<f", rng.choice((float("nan"), float("inf"), 1e30, -1e30, 0.0, 7.5)))
        variables[place] = (name, dims, kind, body[:at] + wild + body[at + 4 :])
    elif choice == 6:
        variables.append((rng.choice((b"extra/weight", b"decoder/pre_norm", b"decoder/activation")), (), 1, b"\1"))
    else:
        variables[place] = (name, dims, kind, flip_bit(body, rng))
    return ct2_bytes(head, variables, tail)


Variable = tuple[bytes, tuple[int, ...], int, bytes]


def ct2_variables(data: bytes) -> tuple[bytes, list[Variable], bytes]:
    """What stands before the variables of a model.bin, the variables, and what stands after them."""
    stream = io.BytesIO(data)

    def number(kind: str) -> int:
        return int(struct.unpack(kind, stream.read(struct.calcsize(kind)))[0])

    def name() -> bytes:
        return stream.read(number("<H"))

    number("<I"), name(), number("<I")
    head = data[: stream.tell()]
    variables = []
    for _ in range(number("<I")):
        called = name()
        dims = tuple(number("<I") for _ in range(number("<B")))
        kind = number("<B")
        variables.append((called, dims, kind, stream.read(number("<I"))))
    return head, variables, data[stream.tell() :]


def ct2_bytes(head: bytes, variables: list[Variable], tail: bytes) -> bytes:
    parts = [head, struct.pack("<I", len(variables))]
    for name, dims, kind, body in variables:
        parts += [struct.pack("<H", len(name)), name, struct.pack(f"<B{len(dims)}I", len(dims), *dims)]
        parts += [struct.pack("<BI", kind, len(body)), body]
    return b"".join(parts) + tail


# ------------------------------------------------------------------------------------------------------------ archives


def mutate_gzip(data: bytes, rng: random.Random) -> bytes:
    """What is inside changed, the file's own bytes changed, or a bomb."""
    choice = rng.random()
    if choice < 0.05:
        return gzip.compress(bytes(1 << 20), mtime=0) * rng.choice((3, 300, 4000))  # members stand one after another
    if choice < 0.4:
        return mutate_bytes(data, rng)
    if choice < 0.45:
        return gzip.compress(gzip.compress(data, mtime=0), mtime=0)
    return gzip.compress(mutate_lines(gzip.decompress(data), rng), mtime=0)


def members_of(data: bytes) -> Iterator[tuple[zipfile.ZipInfo, bytes]]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for info in archive.infolist():
            yield info, archive.read(info)


def mutate_zip(data: bytes, rng: random.Random, inside: Mutator = mutate_lines) -> bytes:
    """A member changed, renamed, there twice, a bomb; or the archive's own bytes."""
    if rng.random() < 0.25:
        return mutate_bytes(data, rng)
    members = [(info.filename, content) for info, content in members_of(data)]
    place = rng.randrange(len(members))
    name, content = members[place]
    choice = rng.random()
    if choice < 0.5:
        members[place] = (name, inside(content, rng))
    elif choice < 0.7:
        hostile = ("../../out.csv", "/tmp/out.csv", "a\\..\\b.csv", "", "\x1b[31m.csv", "a/", "nul\0.csv", "\u202e.csv")
        members[place] = (rng.choice((*hostile, name.upper(), name + ".zip", "a/" * 300 + name)), content)
    elif choice < 0.78:
        del members[place]
    elif choice < 0.86:
        members.append(members[place])
    elif choice < 0.92:
        members += [(f"{number}{name}", content) for number in range(rng.choice((5, 3000)))]
    elif choice < 0.96:
        members[place] = (name, b"text,label\n" + b"a" * (rng.choice((5, 60)) << 20))
    else:
        members[place] = (name.rsplit(".", 1)[0] + ".zip", data)
    return zip_bytes(members)


def zip_bytes(members: list[tuple[str, bytes]]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, content in members:
            with suppress(ValueError):
                archive.writestr(zipfile.ZipInfo(name or "x"), content)
    return out.getvalue()


def mutate_workbook(data: bytes, rng: random.Random) -> bytes:
    """An xlsx file: its sheets are XML in a zip."""
    return mutate_zip(data, rng, mutate_xml)


def mutate_xml(data: bytes, rng: random.Random) -> bytes:
    choice = rng.random()
    if choice < 0.1:
        entities = b'<!DOCTYPE x [<!ENTITY a "' + b"x" * 1000 + b'">'
        for one, two in zip(b"abcdefg", b"bcdefgh", strict=True):
            entities += b'<!ENTITY %c "%s">' % (two, b"&%c;" % one * 10)
        return re.sub(rb"(<\?xml[^>]*>)?", lambda m: m[0] + entities + b"]>", data, count=1).replace(b"<t>", b"<t>&h;")
    if choice < 0.4:
        return mutate_numbers(data, rng)
    if choice < 0.6:
        tags = list(re.finditer(rb"<[^>]+>", data)) or [re.match(rb"", data)]
        tag = rng.choice(tags)
        assert tag is not None
        return data[: tag.start()] + tag[0] * rng.choice((0, 2, 5000)) + data[tag.end() :]
    return mutate_bytes(data, rng)


def deflate_bomb(megabytes: int) -> bytes:
    """A zlib stream of many megabytes of zeros in a few kilobytes."""
    packer = zlib.compressobj(9)
    chunk = bytes(1 << 20)
    return b"".join(packer.compress(chunk) for _ in range(megabytes)) + packer.flush()


MUTATORS: dict[str, Mutator] = {
    "bytes": mutate_bytes,
    "numbers": mutate_numbers,
    "lines": mutate_lines,
    "json": mutate_json,
    "safetensors": mutate_safetensors,
    "protobuf": mutate_protobuf,
    "ct2": mutate_ct2,
    "gzip": mutate_gzip,
    "zip": mutate_zip,
    "workbook": mutate_workbook,
}

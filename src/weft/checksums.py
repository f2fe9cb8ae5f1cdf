"""Hashes of what is read again later: a file whose bytes have changed is named, and never used.

A manifest is a JSON object with the hash of itself and of files that lie beside it. It is written last, whole or not at
all, so what it names is complete.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from weft.errors import UserError
from weft.files import MEGABYTE, json_text, read_json, read_text, reason, write_json

MAX_MANIFEST = 16 * MEGABYTE
OWN, BESIDE = "sha256", "hashes"  # keys of a manifest: its own hash, and those of files by name
CHANGED = "damaged: its bytes are not those that were saved"


class Damaged(UserError):
    """A file is not what was saved."""


def digest(path: Path) -> str:
    """The SHA-256 of a file."""
    try:
        if path.exists() and not path.is_file():  # a pipe would wait for ever
            raise Damaged(f"{path}: damaged: it is not a plain file")
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise Damaged(f"{path}: missing: it was saved with the files beside it") from None
    except OSError as error:
        raise Damaged(f"{path}: cannot be read: {reason(error)}") from None


def digests(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """The hashes of files in a folder, by name."""
    return {name: digest(folder / name) for name in sorted(names)}


def write_manifest(path: Path, values: Mapping[str, Any], hashes: Mapping[str, str] | None = None) -> None:
    """A JSON object with the hash of itself and of files beside it."""
    found = {**values, BESIDE: dict(hashes or {})}
    write_json(path, {**found, OWN: digest_of_values(found)})


def read_manifest(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """The values and the hashes that were written; the files beside it are not looked at."""
    try:
        values = read_json(path, MAX_MANIFEST)
        text = read_text(path, MAX_MANIFEST)
    except UserError as error:
        raise Damaged(str(error) if "cannot be read" in str(error) else f"{path}: {CHANGED}") from None
    if OWN not in values and BESIDE not in values:
        raise Damaged(f"{path}: has no checksums")
    own, hashes = values.pop(OWN, None), values.get(BESIDE)
    # Last, as it takes long where lists are nested: of equal values too the bytes may differ, 1e-05 and 1E-05.
    same = isinstance(hashes, dict) and own == digest_of_values(values)
    if not same or text != json_text({**values, OWN: own}):
        raise Damaged(f"{path}: {CHANGED}")
    del values[BESIDE]
    return values, hashes


def read_checked(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """As `read_manifest`, and every file that it names is as it was saved."""
    values, hashes = read_manifest(path)
    for name, expected in hashes.items():
        if digest(path.parent / name) != expected:
            raise Damaged(f"{path.parent / name}: {CHANGED}")
    return values, hashes


def is_sound(path: Path, quiet: bool = False) -> bool:
    """Whether a manifest is there and all that it names is as it was saved; what is damaged is to be made again."""
    if not path.exists():
        return False
    try:
        read_checked(path)
    except Damaged as error:
        if not quiet:
            warnings.warn(f"{error}; it is made again", stacklevel=2)
        return False
    return True


def digest_of_values(values: Mapping[str, Any]) -> str:
    """The SHA-256 of what a JSON object says, however it is laid out."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()

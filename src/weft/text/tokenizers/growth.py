"""How much longer a text may become before it is cut into tokens: some steps replace one character by many.

The library takes some hundred bytes for each character, so that a text that grows without bound fills the memory.
"""

from __future__ import annotations

import base64
import json
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any

from tokenizers import normalizers

from weft.errors import UserError

MAX_GROWTH = 256  # characters that one character of a text may become by the steps of a pipeline together
LONG = 1 << 18  # characters; the growth of shorter texts is not looked at
MAX_NORMALIZED = 1 << 23  # characters that a text may become where that is more than four times its own
SLICE = 1 << 16  # characters that are tried at once


def growth_of(stage: str, step: Mapping[str, Any]) -> int:
    """Into how many characters a step may turn one, at most."""
    match step["type"]:
        case "Replace":
            content = max(len(step["content"]), len(unicodedata.normalize("NFKD", step["content"])))
            kind, pattern = next(iter(step["pattern"].items()))
            if kind == "Regex":  # it may match between any two characters
                return 1 + content
            return max(1, -(-content // len(pattern)))
        case "Prepend":
            return 1 + len(unicodedata.normalize("NFKD", step["prepend"]))
        case "Precompiled":
            data = base64.b64decode(step["precompiled_charsmap"])  # sound: a size, a trie, and texts that end in NUL
            texts = data[4 + int.from_bytes(data[:4], "little") :].decode("utf-8")
            return max([1, *map(len, texts.split("\0"))])
        case "ByteLevel":
            return 1 if stage in ("decoder", "post_processor") else 4
        case "Metaspace" | "BPEDecoder" | "CTC" | "WordPiece":
            return 2
    return 1


def check_growth(normalizer: normalizers.Normalizer | None, text: str) -> None:
    """Refuse a long text that the normalizer would make far longer; it is tried on one slice after the other."""
    if normalizer is None or len(text) < LONG:
        return
    max_length = max(4 * len(text), MAX_NORMALIZED)
    growth = 1
    for step in _steps(json.loads(normalizer.__getstate__())):
        growth *= growth_of("normalizer", step)
    slices = [text[start : start + SLICE] for start in range(0, len(text), SLICE)]
    if growth * sum(len(unicodedata.normalize("NFKD", part)) for part in slices) <= max_length:
        return
    length = 0
    for part in slices:
        length += len(normalizer.normalize_str(part))
        if length > max_length:
            raise UserError(f"a text of {len(text)} characters becomes more than {max_length} when it is normalized")


def _steps(step: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if step["type"] == "Sequence":
        for inner in step["normalizers"]:
            yield from _steps(inner)
    else:
        yield step

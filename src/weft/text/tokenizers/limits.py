"""How large a vocabulary may be: far above any that is published, and low enough for the libraries that read it."""

from __future__ import annotations

import base64
import json
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from tokenizers import normalizers

from weft.errors import UserError, shown

MAX_TOKENS = 4_000_000  # word2vec's news vectors have 3,000,000 words, the largest published vocabulary 900,000 pieces
MAX_TOKEN_LENGTH = 4096  # characters; a tree of pieces is freed by recursion, so that a long one overflows the stack
MAX_ADDED_TOKENS = 200_000
MAX_MERGES = 4_000_000
MAX_SCORE = 1e9  # of a piece, either side of zero
MAX_TREE_NODES = 6_000_000  # of the tree of a unigram model, some 300 bytes each
MAX_UNIGRAM_BYTES = 4_000_000  # of all pieces; the nodes of no tree are counted below


def check_tokens(tokens: Collection[str], where: str, max_count: int = MAX_TOKENS, what: str = "tokens") -> None:
    """Refuse more tokens than a vocabulary may have, or longer ones."""
    if len(tokens) > max_count:
        raise UserError(f"{where}: {len(tokens)} {what}; at most {max_count} are read")
    if max(map(len, tokens), default=0) > MAX_TOKEN_LENGTH:
        token = next(token for token in tokens if len(token) > MAX_TOKEN_LENGTH)
        raise UserError(
            f"{where}: token {shown(token, 20)!r} has {len(token)} characters; at most {MAX_TOKEN_LENGTH} are read"
        )


def check_pieces(pieces: Collection[str], where: str) -> None:
    """Refuse pieces whose tree would not fit into memory; their number and length are checked before."""
    data = [piece.encode() for piece in pieces]
    if sum(map(len, data)) > MAX_UNIGRAM_BYTES and (nodes := _tree_nodes(sorted(data))) > MAX_TREE_NODES:
        raise UserError(f"{where}: the tree of its pieces has {nodes} nodes; at most {MAX_TREE_NODES} are built")


def _tree_nodes(data: Iterable[bytes]) -> int:
    """How many distinct beginnings these have; they come sorted."""
    nodes, before = 0, b""
    for piece in data:
        shared = 0
        for one, other in zip(before, piece, strict=False):
            if one != other:
                break
            shared += 1
        nodes += len(piece) - shared
        before = piece
    return nodes


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

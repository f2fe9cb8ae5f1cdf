"""How large a vocabulary may be: far above any that is published, and low enough for the libraries that read it."""

from __future__ import annotations

from collections.abc import Collection, Iterable

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

"""Whether a tokenizer that was read from files can be used."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tokenizers import Tokenizer as Library
from tokenizers import models

from weft.errors import UserError, listed, shown


@contextmanager
def guarded(where: Path | str) -> Iterator[None]:
    """Turn what the library raises on files it cannot use (bare Exception, Rust panics) into one line."""
    try:
        yield
    except (UserError, KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError, AssertionError):
        raise
    except BaseException as error:  # a panic in Rust is no Exception
        raise UserError(f"{where}: not a usable tokenizer: {shown(str(error), 200)}") from None


def check(library: Library, where: Path | str) -> None:
    """Refuse a tokenizer that would fail on some text, or whose ids could not index an embedding table."""
    vocabulary = library.get_vocab(with_added_tokens=True)
    named: dict[int, str] = {}
    for token, number in vocabulary.items():
        if named.setdefault(number, token) is not token:
            raise UserError(f"{where}: id {number} is both {shown(named[number])!r} and {shown(token)!r}")
    if not named or max(named) >= len(named):
        missing = itertools.islice((str(i) for i in range(len(named) + 1) if i not in named), 3)
        raise UserError(f"{where}: the ids of its {len(named)} tokens have gaps; the first missing: {listed(missing)}")
    model = library.model
    if isinstance(model, models.WordPiece | models.WordLevel | models.BPE):  # BPE may do without, byte by byte
        unknown = model.unk_token
        if (unknown is not None or not isinstance(model, models.BPE)) and model.token_to_id(unknown or "") is None:
            raise UserError(f"{where}: its unknown token {shown(str(unknown))!r} is not in its vocabulary")
    probe = [*library.encode("a").ids, *library.encode("a", "b").ids]
    if max(probe, default=0) >= len(named):
        raise UserError(f"{where}: adds id {max(probe)} to every text, but has only {len(named)} tokens")

"""Tokens as they are shown in pictures."""

from __future__ import annotations

from collections.abc import Sequence

from weft.text.tokenizers.tokenizer import Tokenizer


def token_names(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Tokens as people read them; a dot stands for the space that a token begins with."""
    names = []
    for number in ids:
        raw = tokenizer.token(number) or "?"
        text = tokenizer.decode([number], specials=True)
        space = raw[:1] in ("Ġ", "▁")
        plain = raw[1:] if space else raw
        readable = plain if plain.isascii() or "\ufffd" in text or not text.strip() else text.strip()
        names.append(("·" if space else "") + readable.replace("Ċ", "⏎"))
    return names

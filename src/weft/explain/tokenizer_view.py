"""One text by several tokenizers beside each other: pieces with their offsets, counts, unknown and bytes per token."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.errors import UserError, refuse
from weft.explain.bank_sentences import LABELED
from weft.explain.view import Interactive, Panel, TextTable, View
from weft.text.tokenizers.published import load_tokenizer
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.tokenizers.training import learn

LONGEST = 20_000  # characters
KINDS = {"wordpiece": "WordPiece", "bpe": "BPE", "unigram": "Unigram", "character": "Characters", "word": "Words"}
SIZE = 400  # tokens of a vocabulary that is learned here
LEARNED = 1 << 22  # characters at most that it is learned from


@dataclass(frozen=True)
class TokenizedText:
    """A text by one tokenizer."""

    name: str
    vocabulary: int
    pieces: list[dict[str, Any]]  # token, id, start, end (characters), special, unknown

    @property
    def count(self) -> int:
        return sum(not piece["special"] for piece in self.pieces)

    @property
    def unknown(self) -> int:
        return sum(piece["unknown"] for piece in self.pieces)


def tokenized(tokenizer: Tokenizer, text: str, name: str) -> TokenizedText:
    """The pieces of a text, special tokens too."""
    encoded = tokenizer.encode(text)
    unknown, pieces = tokenizer.id_of("unknown"), list[dict[str, Any]]()
    rows = zip(encoded.ids, encoded.tokens, encoded.offsets, encoded.sequences, strict=True)
    for number, token, (start, end), side in rows:
        special = side is None
        pieces.append(
            {
                "token": token,
                "id": number,
                "start": None if special else start,
                "end": None if special else end,
                "special": special,
                "unknown": not special and number == unknown,
            }
        )
    return TokenizedText(name, tokenizer.vocabulary, pieces)


def learned_tokenizers(texts: Iterable[str], size: int = SIZE) -> dict[str, Tokenizer]:
    """A tokenizer of each kind, learned from the same texts."""
    some, total = list[str](), 0
    for text in texts:
        some.append(text)
        total += len(text)
        if total > LEARNED:
            break
    refuse((not some, "there is no text to learn vocabularies from"))
    tokenizers, problems = dict[str, Tokenizer](), list[str]()
    for kind in ("wordpiece", "bpe", "unigram", "character"):
        try:
            tokenizers[KINDS[kind]] = learn(some, kind, size)
        except UserError as error:
            problems.append(f"{KINDS[kind]}: {error}")
    if not tokenizers:
        raise UserError(problems[0])
    return tokenizers


def tokens_view(
    text: str,
    tokenizers: Sequence[str | os.PathLike[str] | Tokenizer] = (),
    *,
    texts: Iterable[str] | None = None,
    size: int = SIZE,
) -> View:
    """The tokens of a text by several tokenizers: folders or tokenizers.

    Without any: WordPiece, BPE, Unigram and characters, learned with `size` tokens from `texts`, by default from forty
    built-in sentences.
    """
    refuse(
        (not text, "give a text"),
        (len(text) > LONGEST, f"a page shows {LONGEST:,} characters at most, not {len(text):,}"),
        (not 8 <= size <= 100_000, f"size must be between 8 and 100,000, not {size}"),
    )
    named: dict[str, Tokenizer] = {}
    for each in tokenizers:
        own = each if isinstance(each, Tokenizer) else load_tokenizer(Path(each))
        name = KINDS.get(own.kind, own.kind) if isinstance(each, Tokenizer) else f"{Path(each).name} ({own.kind})"
        named[name if name not in named else f"{name} {len(named) + 1}"] = own
    note = ""
    if not named:
        source = "forty built-in sentences" if texts is None else "the texts given"
        note = f"Vocabularies of up to {size} tokens, learned from {source}."
        named = learned_tokenizers((sentence for sentence, _ in LABELED) if texts is None else texts, size)
    results = [tokenized(tokenizer, text, name) for name, tokenizer in named.items()]
    size_in_bytes = len(text.encode("utf-8", "replace"))
    rows = [
        [
            result.name,
            f"{result.vocabulary:,}",
            str(result.count),
            str(result.unknown),
            f"{size_in_bytes / result.count:.2f}" if result.count else "–",
        ]
        for result in results
    ]
    content = {
        "text": text,
        "tokenizers": [
            {"name": result.name, "vocabulary": result.vocabulary, "pieces": result.pieces} for result in results
        ],
    }
    panels: tuple[Panel, ...] = (
        Interactive(component="token-strips", content=content),
        TextTable(header=["tokenizer", "vocabulary", "tokens", "unknown", "bytes per token"], rows=rows, note=note),
    )
    return View("Tokens", panels, f"{len(text):,} characters, {size_in_bytes:,} bytes in UTF-8.")

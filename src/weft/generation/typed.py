"""How likely the typed letters are to follow a beginning of them: so that no search runs into a dead end.

A token that spells only a part of the letters is worth its own probability times that of the others coming after it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from weft.errors import UserError, shown
from weft.text.tokenizers.spelling import Spelling

Tokens = tuple[int, ...]
PATHS = 16  # beginnings of the letters that are followed at a time, for each prompt


@dataclass(frozen=True)
class TypedLetters:
    """What one completion begins with, and by the tokens that spell a part of it how likely (log) the rest is then."""

    letters: bytes
    rests: dict[Tokens, float] = field(default_factory=dict)


class _Path(NamedTuple):
    """Tokens that spell a part of the letters of one prompt."""

    logprob: float
    row: int
    tokens: Tokens
    rest: bytes
    place: int  # of the scores that it came from


def typed_letters(
    decoding: Any,  # a search.Decoding that has read the prompts
    prompts: Sequence[list[int]],
    typed: Sequence[bytes],
    spelling: Spelling,
    forced: Tokens = (),
) -> list[TypedLetters]:
    """What each completion begins with, after its `forced` tokens, with the value of every part of it."""
    for size in range(1, len(forced) + 1):
        decoding.advance(range(len(prompts)), prompts, [list(forced[:size])] * len(prompts))
    results = [TypedLetters(letters) for letters in typed]
    paths = [_Path(0.0, row, (), letters, row) for row, letters in enumerate(typed) if letters]
    decoding.pick([path.place for path in paths])
    levels = list[tuple[_Path, float, dict[int, float]]]()
    while paths:
        logs = decoding.scores.double().log_softmax(-1)
        longer = list[_Path]()
        for place, path in enumerate(paths):
            tokens = spelling.following(path.rest)
            short = [token for token in tokens if len(spelling.bytes[token]) < len(path.rest)]
            whole = float(logs[place, tokens[: len(tokens) - len(short)]].logsumexp(0))  # nothing: minus infinity
            parts = dict(zip(short, logs[place, short].tolist(), strict=True))
            levels.append((path, whole, parts))
            for token, logprob in parts.items():
                rest = path.rest[len(spelling.bytes[token]) :]
                longer.append(_Path(path.logprob + logprob, path.row, (*path.tokens, token), rest, place))
        paths = _likeliest(longer)
        if paths:
            before, spelled = [prompts[path.row] for path in paths], [[*forced, *path.tokens] for path in paths]
            decoding.advance([path.place for path in paths], before, spelled)
    for path, whole, parts in reversed(levels):
        rests = results[path.row].rests
        ways = [whole, *(logprob + rests.get((*path.tokens, token), -math.inf) for token, logprob in parts.items())]
        rests[path.tokens] = float(torch.tensor(ways, dtype=torch.float64).logsumexp(0))
    for result in results:
        if result.letters and result.rests[()] == -math.inf:
            letters = shown(result.letters.decode("utf-8", "replace").strip())
            raise UserError(f"no word that begins with {letters!r} can come here in this vocabulary")
    return results


def _likeliest(paths: Sequence[_Path]) -> list[_Path]:
    """Of each prompt the likeliest few."""
    kept, counts = list[_Path](), dict[int, int]()
    for path in sorted(paths, key=lambda path: -path.logprob):
        counts[path.row] = counts.get(path.row, 0) + 1
        if path.logprob > -math.inf and counts[path.row] <= PATHS:
            kept.append(path)
    return kept

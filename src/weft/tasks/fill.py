"""Words for the gaps of a text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from weft.checkpoint.folder import Opened
from weft.errors import UserError, shown
from weft.nn.rows import Ragged
from weft.tasks.answers import Candidate, Words
from weft.tasks.batches import by_budget
from weft.text.tokenizer import Tokenizer


@torch.inference_mode()
def fill(opened: Opened, texts: Sequence[str], *, top: int = 5) -> list[Words]:
    """The likeliest words for each mask of each text."""
    tokenizer = opened.tokenizer
    if opened.family.speaks or "words" not in opened.heads:
        raise UserError(f"this {opened.family.name} model fills no gaps: it has no head for masked words")
    if tokenizer is None:
        raise UserError("this model folder has no tokenizer, so it reads and writes no text")
    mask = tokenizer.id_of("mask")
    if mask is None:
        raise UserError("this model's tokenizer has no mask token")
    if not 1 <= top <= opened.config.vocabulary:
        raise UserError(f"top must be between 1 and {opened.config.vocabulary}, not {top}")
    ids = tokenizer.ids(list(texts))
    for text, found in zip(texts, ids, strict=True):
        if mask not in found:
            raise UserError(f"no {tokenizer.roles.mask} in {shown(text)!r}: mark the gaps with it")
        if len(found) > opened.config.context:
            raise UserError(
                f"a text of {len(found)} tokens is longer than the model's context of {opened.config.context}"
            )
    answers = []
    for batch in by_budget(ids, len):
        ragged = Ragged.of(batch, next(opened.network.parameters()).device)
        places = (ragged.tokens == mask).nonzero().squeeze(1)
        hidden = opened.network(ragged.tokens, ragged.rows)
        best = opened.network.words(hidden[places]).float().softmax(-1).topk(top)  # type: ignore[operator]
        gaps = iter(zip(best.indices.tolist(), best.values.tolist(), strict=True))
        answers += [_filled(tokenizer, found, mask, gaps) for found in batch]
    return answers


def _filled(tokenizer: Tokenizer, ids: list[int], mask: int, best: Iterator[tuple[list[int], list[float]]]) -> Words:
    """The answer for one text; its gaps are the next ones of `best`."""
    filled, gaps = list(ids), []
    for place in (place for place, token in enumerate(ids) if token == mask):
        tokens, chances = next(best)
        pairs = zip(tokens, chances, strict=True)
        gaps.append(tuple(Candidate(word=tokenizer.decode([t]).strip(), probability=p) for t, p in pairs))
        filled[place] = tokens[0]
    return Words(text=tokenizer.decode(filled), gaps=tuple(gaps), n_tokens=len(ids))

"""Words for the gaps of a text."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from weft.checkpoint.folder import Opened
from weft.errors import UserError, shown
from weft.nn.rows import Ragged
from weft.tasks.answers import Candidate, Words


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
    network = opened.network
    device = next(network.parameters()).device
    ragged = Ragged.of(ids, device)
    places = (ragged.tokens == mask).nonzero().squeeze(1)
    scores = network.words(network(ragged.tokens, ragged.rows)[places])  # type: ignore[operator]
    best = scores.float().softmax(-1).topk(top)
    chances, tokens = best.values.tolist(), best.indices.tolist()
    answers = []
    gap = 0
    for found in ids:
        filled, gaps = list(found), []
        for place in (place for place, token in enumerate(found) if token == mask):
            words = zip(tokens[gap], chances[gap], strict=True)
            gaps.append(tuple(Candidate(word=tokenizer.decode([t]).strip(), probability=p) for t, p in words))
            filled[place] = tokens[gap][0]
            gap += 1
        answers.append(Words(text=tokenizer.decode(filled), gaps=tuple(gaps), n_tokens=len(found)))
    return answers

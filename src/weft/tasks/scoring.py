"""What a language model makes of text that is there already: how little it expected each token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from weft.checkpoint.folder import Opened
from weft.errors import UserError
from weft.nn.heads import in_full
from weft.nn.rows import Ragged
from weft.text.tokenizer import Tokenizer
from weft.text.windows import frame

SCORES = 1 << 24  # scores of words that are held at once: the table of all words is wide


class Reading(NamedTuple):
    """Tokens to read, and what comes after each of the last of them."""

    tokens: list[int]
    targets: list[int]
    document: int = 0


def tokenizer_of(opened: Opened) -> Tokenizer:
    """The tokenizer of a model that writes on from what it has read; an error for any other model."""
    if opened.family.reads:
        raise UserError(
            f"this {opened.family.name} model reads one text and writes another; "
            "a model that writes on, such as gpt2, is needed"
        )
    if not opened.family.speaks or "words" not in opened.heads:
        raise UserError(f"this {opened.family.name} model does not write text: it has no head for next words")
    if opened.tokenizer is None:
        raise UserError("this model folder has no tokenizer, so it reads and writes no text")
    return opened.tokenizer


def beginning(tokenizer: Tokenizer) -> list[int]:
    """What stands before the first token of a text: what the tokenizer puts there, else the token that parts texts."""
    before, _ = frame(tokenizer)
    begin = tokenizer.id_of("start")
    begin = tokenizer.id_of("end") if begin is None else begin
    return before or ([] if begin is None else [begin])


@torch.inference_mode()
def surprises(opened: Opened, readings: Sequence[Reading]) -> list[Tensor]:
    """-log of the chance of each target, in nats (float64, on the CPU), in one pass through the network."""
    if hasattr(opened.network, "foreseen"):  # an engine that hands out no states, but scores whole texts by itself
        whole_texts = [[*reading.tokens, *reading.targets[-1:]] for reading in readings]
        said = opened.network.foreseen(whole_texts)  # type: ignore[operator]
        return [
            -torch.tensor(chances[len(chances) - len(reading.targets) :], dtype=torch.float64)
            for chances, reading in zip(said, readings, strict=True)
        ]
    device = opened.device
    ragged = Ragged.of([reading.tokens for reading in readings], device)
    hidden = opened.network(ragged.tokens, ragged.rows)
    # Words are scored only where something is asked for.
    lasts = (ragged.rows.lasts() + 1).tolist()
    places = [place for end, r in zip(lasts, readings, strict=True) for place in range(end - len(r.targets), end)]
    targets = [target for reading in readings for target in reading.targets]
    if hasattr(opened.network, "said"):  # it knows the chance of one word without those of all others
        asked, wanted = hidden[torch.tensor(places, device=device)], torch.tensor(targets, device=device)
        whole = -opened.network.said(asked, wanted).double().cpu()  # type: ignore[operator]
        return list(torch.split(whole, [len(reading.targets) for reading in readings]))
    most, found = max(1, SCORES // opened.heads["words"]), list[Tensor]()
    for first in range(0, len(places), most):
        some = slice(first, first + most)
        scores = in_full(opened.network.words(hidden[torch.tensor(places[some], device=device)]))  # type: ignore[operator]
        wanted = scores.gather(1, torch.tensor(targets[some], device=device)[:, None]).squeeze(1)
        found.append((scores.logsumexp(-1) - wanted).double().cpu())
    whole = torch.cat(found) if found else torch.zeros(0, dtype=torch.float64)
    return list(torch.split(whole, [len(reading.targets) for reading in readings]))

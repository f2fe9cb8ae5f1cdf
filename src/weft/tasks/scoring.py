"""What a language model makes of text that is there already: how little it expected each token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from weft.checkpoint.folder import LoadedModel
from weft.data.batching import every_example
from weft.data.masking import shift
from weft.data.rows import Frame, Framed, held_out
from weft.data.shards import Corpus, Places
from weft.errors import UserError
from weft.nn.heads import in_full
from weft.nn.rows import Ragged
from weft.objectives.language import StreamStates
from weft.tasks.output_checks import check_finite, check_numbers
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.windows import frame

SCORES = 1 << 24  # scores of words that are held at once: the table of all words is wide


class Reading(NamedTuple):
    """Tokens to read, and what comes after each of the last of them."""

    tokens: list[int]
    targets: list[int]
    document: int = 0


def tokenizer_of(opened: LoadedModel) -> Tokenizer:
    """The tokenizer of a model that writes on from what it has read; an error for any other model."""
    if opened.family.reads:
        raise UserError(
            f"this {opened.family.name} model reads one text and writes another; "
            "a model that writes on, such as gpt2, is needed"
        )
    if not opened.family.speaks or "words" not in opened.heads:
        raise UserError(f"this {opened.family.name} model does not generate text: it has no language model head")
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
def surprises(opened: LoadedModel, readings: Sequence[Reading]) -> list[Tensor]:
    """-log of the chance of each target, in nats (float64, on the CPU), in one pass through the network."""
    if opened.network.SCORES_TEXTS:  # an engine that hands out no states, but scores whole texts by itself
        whole_texts = [[*reading.tokens, *reading.targets[-1:]] for reading in readings]
        logprobs = opened.network.text_logprobs(whole_texts)
        return [
            check_finite(opened, -torch.tensor(chances[len(chances) - len(reading.targets) :], dtype=torch.float64))
            for chances, reading in zip(logprobs, readings, strict=True)
        ]
    device = opened.device
    ragged = Ragged.of([reading.tokens for reading in readings], device)
    hidden = opened.network(ragged.tokens, ragged.rows)
    # Words are scored only where something is asked for.
    lasts = (ragged.rows.lasts() + 1).tolist()
    places = [place for end, r in zip(lasts, readings, strict=True) for place in range(end - len(r.targets), end)]
    targets = [target for reading in readings for target in reading.targets]
    asked = torch.tensor(places, device=device), torch.tensor(targets, device=device)
    return list(torch.split(_nats(opened, hidden, *asked), [len(reading.targets) for reading in readings]))


def _nats(opened: LoadedModel, hidden: Tensor, places: Tensor, targets: Tensor) -> Tensor:
    """-log of the chance of a target at each of these places, in nats (float64, on the CPU)."""
    network: Any = opened.network
    if network.SCORES_TARGETS:  # it knows the chance of one word without those of all others
        return check_numbers(opened, -network.target_logprobs(hidden[places], targets).double().cpu())
    most, losses = max(1, SCORES // opened.heads["words"]), [torch.zeros(0, dtype=torch.float64)]
    for some, wanted in zip(torch.split(places, most), torch.split(targets, most), strict=True):
        scores = in_full(network.words(hidden[some]))
        targeted = scores.gather(1, wanted[:, None]).squeeze(1)
        losses.append((scores.logsumexp(-1) - targeted).double().cpu())
    return check_finite(opened, torch.cat(losses))


@torch.inference_mode()
def carried_surprises(opened: LoadedModel, ids: Places, budget: int) -> tuple[int, Tensor]:
    """-log of the chance of each token but the first, read by a recurrent network from beginning to end.

    As held-out text is read in training: in several streams where there is much of it, each with its own state. How
    many streams, and the nats.
    """
    network: Any = opened.network
    places = Corpus([np.arange(len(ids), dtype=np.uint32)], np.array([0, len(ids)]), None, "")
    source = held_out(Framed(places, Frame()))  # whose tokens are the places of the true ones
    memory = StreamStates(source.streams).lay_out(network)
    memory.after = memory.before  # each pass goes on from the one before
    tokens, nats = torch.from_numpy(ids).to(opened.device), torch.zeros(len(ids) - 1, dtype=torch.float64)
    for batch in every_example(source, shift, budget):
        on_device = batch.to(opened.device)
        streams, wanted = on_device.targets["streams"], on_device.targets["words"]
        carried = memory.take(streams)
        hidden = network(tokens[on_device.tokens], on_device.rows, carried=carried)
        memory.put(streams, carried)
        here = torch.arange(len(wanted), device=opened.device)
        nats[batch.targets["words"] - 1] = _nats(opened, hidden, here, tokens[wanted])
    return source.streams, nats

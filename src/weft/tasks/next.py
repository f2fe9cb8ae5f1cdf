"""Does one sentence follow another? What BERT's head for sentence pairs says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from weft.budget import by_budget
from weft.checkpoint.folder import LoadedModel
from weft.errors import UserError
from weft.nn.rows import Ragged
from weft.tasks.answers import Follows
from weft.tasks.base import UnsupervisedTask
from weft.tasks.forward import check_finite
from weft.text.windows import pair_frame


@torch.inference_mode()
def follows(opened: LoadedModel, pairs: Sequence[tuple[str, str]]) -> list[Follows]:
    """Whether the second text of each pair follows the first.

    The head sees both texts at once, so they must fit the context together, and windows would ask it about texts that
    do not touch. What lies nearest to the border between the two decides: of a pair that is too long the first text
    keeps its end and the second its beginning, and the answer says `truncated`.
    """
    tokenizer, config = opened.tokenizer, opened.config
    if opened.heads.get("next") != 2:
        raise UserError(f"this {opened.family.name} model has no head that says whether one sentence follows another")
    if tokenizer is None:
        raise UserError("this model folder has no tokenizer, so it reads no text")
    around = pair_frame(tokenizer)
    if around is None:
        raise UserError("this model's tokenizer puts nothing between two texts, so a model cannot tell them apart")
    before, between, after = around
    extra = len(before) + len(between) + len(after)
    room = config.context - extra
    if room < 2:
        raise UserError(f"a context of {config.context} tokens has no room beside the special tokens")
    for number, pair in enumerate(pairs, 1):
        _check(pair, number)
    firsts = tokenizer.ids([first for first, _ in pairs], specials=False)
    seconds = tokenizer.ids([second for _, second in pairs], specials=False)
    device = opened.device
    answers: list[Follows] = []
    for batch in by_budget(zip(firsts, seconds, strict=True), lambda pair: min(sum(map(len, pair)), room) + extra):
        rows: list[list[int]] = []
        segments: list[int] = []
        for first, second in batch:
            kept, begun = _fitted(first, second, room)
            rows.append([*before, *kept, *between, *begun, *after])
            border = len(before) + len(kept) + len(between)
            segments += [0] * border + [1] * (len(rows[-1]) - border)
        ragged = Ragged.of(rows, device)
        has_segments = config.segments > 1
        segment_ids = torch.tensor(segments, device=device) if has_segments else None
        hidden = opened.network(ragged.tokens, ragged.rows, segment_ids)
        scores = check_finite(opened, opened.network.logits("next", hidden, ragged.rows).float())
        for (first, second), chance in zip(batch, scores.softmax(-1)[:, 0].tolist(), strict=True):
            count = len(first) + len(second)
            answers.append(
                Follows(follows=chance >= 0.5, probability=chance, n_tokens=count + extra, truncated=count > room)
            )
    return answers


def _check(pair: Any, number: int) -> None:
    if isinstance(pair, str) or len(pair) != 2 or not all(isinstance(text, str) for text in pair):
        raise UserError(f"pair {number}: two texts are expected, as in [(first, second), ...]")


def _fitted(first: list[int], second: list[int], room: int) -> tuple[list[int], list[int]]:
    """The end of the first and the beginning of the second: half of the room each, or what the other leaves."""
    half = room // 2
    kept = max(room - len(second), half) if len(first) > half else len(first)
    kept = min(kept, len(first))
    return first[len(first) - kept :], second[: room - kept]


class NextTask(UnsupervisedTask):
    """Whether one text follows another."""

    name = "next"
    head = "next"
    pair = True

    def answers(self, model: LoadedModel, inputs: Sequence[Any], **options: Any) -> list[Any]:
        return follows(model, inputs, **options)

"""The texts that are timed: plain sentences of given lengths, or the user's own texts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from weft.data.tables import Table
from weft.errors import UserError, shown
from weft.explain.bank_sentences import MONEY, RIVER
from weft.tasks.evaluate import rows_of
from weft.tasks.forward import framing_for, tokenizer_of
from weft.tasks.model import Model
from weft.text.rows import Skipped
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.windows import special_tokens

MIXED = 256  # texts of the profile `mixed`
LONGEST = 256  # tokens of its longest text
CHECKED = 64  # texts of each profile on which answers are compared
OWN = 512  # of the user's texts that are timed at most


@dataclass(frozen=True)
class Profile:
    """Texts of one measurement, answered in calls of `batch` texts."""

    name: str
    batch: int  # texts per call
    inputs: tuple[Any, ...]
    tokens: int  # of all of them, special tokens included

    def calls(self) -> list[list[Any]]:
        """The inputs of each call."""
        return [list(self.inputs[first : first + self.batch]) for first in range(0, len(self.inputs), self.batch)]


def profiles_of(model: Model, lengths: Sequence[str], batches: Sequence[int], mixed: int = MIXED) -> list[Profile]:
    """A profile for each length and batch; the length `mixed` is one call with `mixed` texts of many lengths."""
    profiles = []
    for length in lengths:
        if length == "mixed":
            profiles.append(_profile(model, "mixed", mixed_lengths(model, mixed), mixed))
            continue
        if not length.isdecimal() or not 1 <= int(length) <= 1 << 16:
            raise UserError(f"--lengths: {shown(length)!r} is not a number of tokens, or mixed")
        for batch in batches:
            profiles.append(_profile(model, f"{batch} x {length}", [int(length)] * max(batch, 1), batch))
    return profiles


def usual_lengths(model: Model) -> list[str]:
    """The default lengths: short texts, long ones and a mix, limited by the model's window."""
    longest = framing_for(model.opened).length
    return [*dict.fromkeys(str(min(length, longest)) for length in (16, 128)), "mixed"]


def mixed_lengths(model: Model, count: int = MIXED, seed: int = 0) -> list[int]:
    """Lengths like those of sentences, reviews and paragraphs: log-normal around 40 tokens."""
    chance, most = random.Random(seed), min(LONGEST, framing_for(model.opened).length)
    return [min(most, max(4, round(chance.lognormvariate(3.7, 0.8)))) for _ in range(count)]


def _profile(model: Model, name: str, lengths: Sequence[int], batch: int) -> Profile:
    """A profile of texts with these lengths, as inputs of the model's task."""
    tokenizer, task = tokenizer_of(model.opened), model.task_object
    framing = framing_for(model.opened)
    extra = special_tokens(framing, 1 + task.pair)
    if max(lengths) > framing.length:
        raise UserError(f"--lengths: {max(lengths)} tokens are more than the model's window of {framing.length}")
    inputs = []
    for number, length in enumerate(lengths):
        room = max(1, length - extra)
        halves = [room // 2, room - room // 2] if task.pair and room > 1 else [room]
        texts = [sentence_of(tokenizer, size, seed=31 * number + place) for place, size in enumerate(halves)]
        inputs.append(task.sample_input(texts if len(texts) > 1 or not task.pair else texts * 2, tokenizer))
    return Profile(name, batch, tuple(inputs), count_tokens(model, inputs))


def sentence_of(tokenizer: Tokenizer, length: int, seed: int) -> str:
    """Plain English of `length` tokens, or one more or less if the tokenizer merges them."""
    chance, text = random.Random(seed), ""
    sentences = [*RIVER, *MONEY]
    while True:
        text += chance.choice(sentences) + " "
        ids = tokenizer.ids([text], specials=False)[0]
        if len(ids) >= length:
            return tokenizer.decode(ids[:length]).strip() or text.strip()


def count_tokens(model: Model, inputs: Sequence[Any]) -> int:
    """Tokens of all inputs, special ones included."""
    task, framing = model.task_object, framing_for(model.opened)
    parts = [task.texts_of(value) for value in inputs]
    ids = tokenizer_of(model.opened).ids([text for texts in parts for text in texts], specials=False)
    return sum(map(len, ids)) + sum(special_tokens(framing, len(texts)) for texts in parts)


def own_profiles(model: Model, table: Table, batch: int) -> list[Profile]:
    """The user's own rows: one by one, and together."""
    rows = (row.input for row in rows_of(model, table, Skipped()) if row.problem is None)
    inputs = tuple(islice(rows, OWN))
    if not inputs:
        raise UserError(f"{table.name}: there are no rows")
    few = inputs[:: max(1, len(inputs) // 32)]
    return [
        Profile("one by one", 1, few, count_tokens(model, few)),
        Profile(f"{batch} at a time", batch, inputs, count_tokens(model, inputs)),
    ]

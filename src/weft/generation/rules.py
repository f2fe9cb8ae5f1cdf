"""What may be generated next, given what was generated: penalties, bans, and forced or closed answers, all by tokens.

B: rows; V: vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from weft.errors import UserError
from weft.generation.constraints import Tree

Tokens = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What an answer may be; token sequences, not text."""

    repetition_penalty: float = 1.0  # above 1: what the text holds already is less likely (Keskar et al., 2019)
    no_repeat: int = 0  # no run of so many tokens comes twice, prompt included
    banned: tuple[Tokens, ...] = ()  # each is blocked at its last token
    allowed: tuple[Tokens, ...] = ()  # an answer is made of these alone
    choices: tuple[Tokens, ...] = ()  # an answer is one of these
    forced: Tokens = ()  # what every answer begins with
    min_tokens: int = 0  # tokens before an answer may end

    def __post_init__(self) -> None:
        if not 0.0 < self.repetition_penalty < math.inf:
            raise UserError(f"repetition_penalty must be above 0 (1: none), not {self.repetition_penalty}")
        if self.no_repeat < 0:
            raise UserError(f"no_repeat must be 0 or more, not {self.no_repeat}")
        if self.min_tokens < 0:
            raise UserError(f"min_tokens must be 0 or more, not {self.min_tokens}")
        for name, sequences in (("banned", self.banned), ("allowed", self.allowed), ("choices", self.choices)):
            if any(not sequence for sequence in sequences):
                raise UserError(f"{name}: an empty sequence of tokens cannot be {name}")
        others = {"allowed words": self.allowed, "a forced beginning": self.forced, "a minimum length": self.min_tokens}
        for name, given in others.items():
            if self.choices and given:
                raise UserError(f"a closed list of answers leaves no room for {name}")


class LogitsProcessor:
    """Applies the rules to scores; `prompts` and `ends` as `generate` has them."""

    def __init__(self, rules: Rules, ends: Collection[int], device: torch.device | str) -> None:
        if (rules.choices or rules.allowed) and not ends:
            raise UserError("this model has no token to end with, so its answers cannot be kept to a list")
        self.rules, self.ends, self.device = rules, sorted(ends), device
        self.penalty = rules.repetition_penalty != 1.0
        singles = {sequence[0] for sequence in rules.banned if len(sequence) == 1}
        self.singles = torch.tensor(sorted(singles), dtype=torch.int64, device=device)
        self.longer = [sequence for sequence in rules.banned if len(sequence) > 1]
        self.ending = torch.tensor(self.ends, dtype=torch.int64, device=device)
        self.tree: Tree | None = None
        if rules.choices or rules.allowed:
            self.tree = Tree(rules.choices or rules.allowed, again=bool(rules.allowed))
        self.busy = rules != Rules()

    def penalize(self, scores: Tensor, prompts: Sequence[list[int]], generated: Sequence[list[int]]) -> Tensor:
        """The logits with the repetition penalty: lower for tokens that a text, prompt included, holds already."""
        if not self.penalty:
            return scores
        every = [[*prompt, *own] for prompt, own in zip(prompts, generated, strict=True)]
        longest = max(map(len, every))
        # Filled up with a token of their own: a token counts once however often it is there.
        held = torch.tensor([text + text[-1:] * (longest - len(text)) for text in every], device=scores.device)
        own, penalty = scores.gather(1, held), self.rules.repetition_penalty
        return scores.scatter(1, held, torch.where(own < 0, own * penalty, own / penalty))

    def forbid(self, scores: Tensor, prompts: Sequence[list[int]], generated: Sequence[list[int]]) -> Tensor:
        """Minus infinity where a token may not come; every row has generated the same number of tokens."""
        if not self.busy:
            return scores
        rules, count = self.rules, len(generated[0])
        if count < len(rules.forced):
            kept = torch.full_like(scores, -torch.inf)
            token = rules.forced[count]
            kept[:, token] = scores[:, token]
            return kept
        scores = scores.clone()
        if len(self.singles):
            scores.index_fill_(1, self.singles, -torch.inf)
        if count < rules.min_tokens and self.ends:
            scores.index_fill_(1, self.ending, -torch.inf)
        if rules.no_repeat or self.longer:
            rows, tokens = [], []
            for row, (prompt, own) in enumerate(zip(prompts, generated, strict=True)):
                blocked = self._blocked(prompt, own)
                rows += [row] * len(blocked)
                tokens += blocked
            scores[rows, tokens] = -torch.inf
        return scores if self.tree is None else self._within(self.tree, scores, generated)

    def _blocked(self, prompt: Sequence[int], generated: list[int]) -> list[int]:
        """The tokens that would complete a banned sequence, or a run that was there before."""
        text = [*prompt, *generated]
        blocked = [seq[-1] for seq in self.longer if tuple(text[len(text) - len(seq) + 1 :]) == seq[:-1]]
        size = self.rules.no_repeat
        if size:
            tail = text[len(text) - size + 1 :]
            last = len(text) - size  # where the latest whole run begins
            blocked += [text[n + size - 1] for n in range(last + 1) if text[n : n + size - 1] == tail]
        return blocked

    def _within(self, tree: Tree, scores: Tensor, generated: Sequence[list[int]]) -> Tensor:
        """Only what the tree goes on with; the end token only where a sequence is whole."""
        rows: list[int] = []
        tokens: list[int] = []
        for row, own in enumerate(generated):
            may, done = tree.after(own[len(self.rules.forced) :])
            allowed = sorted(may | set(self.ends)) if done else sorted(may)
            rows += [row] * len(allowed)
            tokens += allowed
        kept = torch.full_like(scores, -torch.inf)
        kept[rows, tokens] = scores[rows, tokens]
        return kept

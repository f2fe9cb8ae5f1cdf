"""From logits to the next token: penalties, bans, forced or closed answers, then the best token or a sample.

B: rows; V: vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from weft.errors import UserError, refuse
from weft.generation.typed import TypedLetters
from weft.text.tokenizers.spelling import Spelling

Node = dict[int, "Node"]  # a place in a tree: what may follow by token; END where a sequence ends
END = -1


class Tree:
    """Token sequences that share their beginnings; with `again` one may follow upon the other."""

    def __init__(self, sequences: Iterable[Sequence[int]], again: bool = False) -> None:
        self.again = again
        self.root: Node = {}
        for sequence in sequences:
            node = self.root
            for token in sequence:
                node = node.setdefault(token, {})
            node[END] = {}

    def after(self, generated: Sequence[int]) -> tuple[set[int], bool]:
        """Which tokens may follow what was generated, and whether it may end there."""
        places = [self.root]  # tokens may be read as several sequences: `a b` or `ab`, begun or done
        for token in generated:
            places = [place[token] for place in places if token in place]
            if self.again and any(END in place for place in places):
                places.append(self.root)
        done = any(END in place or (self.again and place is self.root) for place in places)
        return {token for place in places for token in place if token != END}, done


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
        penalty, lists = self.repetition_penalty, {name: vars(self)[name] for name in ("banned", "allowed", "choices")}
        others = {"allowed words": self.allowed, "a forced beginning": self.forced, "a minimum length": self.min_tokens}
        refuse(
            (not 0.0 < penalty < math.inf, f"repetition_penalty must be above 0 (1: none), not {penalty}"),
            (self.no_repeat < 0, f"no_repeat must be 0 or more, not {self.no_repeat}"),
            (self.min_tokens < 0, f"min_tokens must be 0 or more, not {self.min_tokens}"),
            *((not all(some), f"{name}: an empty sequence of tokens cannot be {name}") for name, some in lists.items()),
            *(
                (bool(self.choices and given), f"a closed list of answers leaves no room for {name}")
                for name, given in others.items()
            ),
        )


class LogitsProcessor:
    """Applies the rules to scores; `prompts`, `ends` and `spelling` as `generate` has them."""

    def __init__(
        self, rules: Rules, ends: Collection[int], device: torch.device | str, spelling: Spelling | None = None
    ) -> None:
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
        self.spelling = spelling
        self.busy = rules != Rules() or spelling is not None

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

    def forbid(
        self,
        scores: Tensor,
        prompts: Sequence[list[int]],
        generated: Sequence[list[int]],
        typed: Sequence[TypedLetters] = (),
    ) -> Tensor:
        """Minus infinity where a token may not come; every row has generated the same number of tokens.

        `typed`: what each row has to begin with, after a forced beginning, whatever the tokens that spell it.
        """
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
            pairs = zip(prompts, generated, strict=True)
            scores[_cells([self._blocked([*prompt, *own]) for prompt, own in pairs])] = -torch.inf
        if self.spelling is not None and typed:
            scores = self._typed(scores, [own[len(rules.forced) :] for own in generated], typed)
        if self.tree is None:
            return scores
        follow = [self.tree.after(own[len(rules.forced) :]) for own in generated]
        cells = _cells([sorted(allowed | set(self.ends) if done else allowed) for allowed, done in follow])
        kept = torch.full_like(scores, -torch.inf)
        kept[cells] = scores[cells]
        return kept

    def _typed(self, scores: Tensor, generated: Sequence[list[int]], typed: Sequence[TypedLetters]) -> Tensor:
        """Minus infinity where a token would contradict the letters that a row still has to spell; one that spells only
        a part of them is as good as what may follow it."""
        assert self.spelling is not None
        for row, (given, own) in enumerate(zip(typed, generated, strict=True)):
            rest = self.spelling.rest(given.letters, own)
            if not rest:
                continue
            tokens = self.spelling.following(rest)
            parts = [len(self.spelling.bytes[token]) < len(rest) for token in tokens]
            values = [
                given.rests.get((*own, token), -math.inf) if part else 0.0
                for token, part in zip(tokens, parts, strict=True)
            ]
            there = torch.tensor(tokens, dtype=torch.int64, device=scores.device)
            kept = torch.full_like(scores[row], -torch.inf)
            scores[row] = kept.index_copy(0, there, scores[row, there] + scores.new_tensor(values))
        return scores

    def _blocked(self, text: list[int]) -> list[int]:
        """The tokens that would complete a banned sequence, or a run that was there before."""
        blocked = [seq[-1] for seq in self.longer if tuple(text[len(text) - len(seq) + 1 :]) == seq[:-1]]
        size = self.rules.no_repeat
        if size:
            tail, last = text[len(text) - size + 1 :], len(text) - size  # where the latest whole run begins
            blocked += [text[n + size - 1] for n in range(last + 1) if text[n : n + size - 1] == tail]
        return blocked


def _cells(tokens: list[list[int]]) -> tuple[list[int], list[int]]:
    """Rows and columns of these tokens of each row."""
    return [row for row, own in enumerate(tokens) for _ in own], [token for own in tokens for token in own]


DRAWS = 64  # numbers that a row draws at a time
SPREAD = 0x9E3779B97F4A7C15  # sets the seeds of a prompt's samples far apart


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How to choose; without any of the filters the best token is taken. `n` answers per prompt."""

    temperature: float | None = None  # 1: the model's own probabilities; 0: greedy
    top_k: int | None = None  # among the k likeliest
    top_p: float | None = None  # among the fewest whose probabilities sum to this
    min_p: float | None = None  # among those with at least this share of the best one's probability
    typical: float | None = None  # among the most typical whose probabilities sum to this
    n: int = 1

    def __post_init__(self) -> None:
        heat, top_k, n = self.temperature, self.top_k, self.n
        shares = {"top_p": self.top_p, "min_p": self.min_p, "typical": self.typical}
        refuse(
            (heat is not None and not 0.0 <= heat < math.inf, f"temperature must be 0 or more, not {heat}"),
            (top_k is not None and top_k < 1, f"top_k must be at least 1, not {top_k}"),
            *(
                (value is not None and not 0.0 < value <= 1.0, f"{name} must be above 0 and at most 1, not {value}")
                for name, value in shares.items()
            ),
            (n < 1, f"n must be at least 1, not {n}"),
            (n > 1 and self.greedy, f"greedy search gives one text, not {n}: give beam_size or a temperature"),
        )

    @property
    def greedy(self) -> bool:
        filters = (self.temperature, self.top_k, self.top_p, self.min_p, self.typical)
        return self.temperature == 0.0 or all(value is None for value in filters)


class RandomDraws:
    """Random numbers of each row, drawn from its own seed, so that its neighbors do not matter."""

    def __init__(self, seeds: Sequence[int], n: int = 1) -> None:
        """`n` rows for each seed; the first of them draws as if it were alone."""
        for seed in seeds:
            if not 0 <= seed < 1 << 63:
                raise UserError(f"a seed must be between 0 and {(1 << 63) - 1}, not {seed}")
        every = [(int(seed) + sample * SPREAD) % (1 << 63) for seed in seeds for sample in range(n)]
        self.generators = [torch.Generator("cpu").manual_seed(seed) for seed in every]
        self.drawn = torch.empty(len(every), DRAWS, dtype=torch.float64, device="cpu")
        self.step = 0

    def draw(self, rows: Sequence[int]) -> Tensor:
        """One number between 0 and 1 for each of these rows; all of them draw at every step."""
        place = self.step % DRAWS
        if place == 0:
            for row in rows:
                drawn = self.drawn[row]
                torch.rand(DRAWS, generator=self.generators[row], dtype=torch.float64, device="cpu", out=drawn)
        self.step += 1
        return self.drawn[list(rows), place]


class RowDraws:
    """The random numbers of one row, the same as `RandomDraws` has for it."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator
        self.left: list[float] = []  # that were drawn, the next one last

    def take(self) -> float:
        """The next number."""
        if not self.left:
            drawn = torch.rand(DRAWS, generator=self.generator, dtype=torch.float64, device="cpu")
            self.left = drawn.flip(0).tolist()
        return self.left.pop()


def best_token(scores: Tensor) -> Tensor:
    """B: the best token of each row, the first of equal ones."""
    if scores.device.type != "cpu" or scores.dtype not in (torch.float32, torch.float64):
        return scores.argmax(-1)
    return torch.from_numpy(scores.numpy().argmax(-1))  # torch's own takes ten times as long


def choose(scores: Tensor, sampling: Sampling, draws: Tensor) -> Tensor:
    """B: the next token of each row; `draws` (B, between 0 and 1) are its random numbers."""
    if sampling.greedy:
        return best_token(scores)
    kept = likely(scores, sampling)
    heaps = kept.double().softmax(-1).cumsum(-1)  # B V: float32 sums would lose the rare words
    marks = draws.to(scores.device)[:, None] * heaps[:, -1:]
    tokens = torch.searchsorted(heaps, marks, right=True).squeeze(1)
    # A draw of the very last sliver may land behind the last possible token.
    last = kept.shape[-1] - 1 - (kept > -torch.inf).flip(-1).int().argmax(-1)
    return torch.minimum(tokens, last)


def likely(scores: Tensor, sampling: Sampling) -> Tensor:
    """B V: the scores at this temperature, minus infinity where a token is out of the question."""
    if sampling.temperature is not None:
        # The best token stays at 0 whatever the temperature, so that nothing overflows into NaN.
        scores = (scores - scores.amax(-1, keepdim=True)).double() / sampling.temperature
    if sampling.top_k is not None and sampling.top_k < scores.shape[-1]:
        lowest = scores.topk(sampling.top_k).values[:, -1:]
        scores = scores.masked_fill(scores < lowest, -torch.inf)
    if sampling.top_p is not None and sampling.top_p < 1.0:
        ordered, order = scores.sort(descending=True)
        probabilities = ordered.softmax(-1)
        before = probabilities.cumsum(-1) - probabilities  # of the likelier tokens; the first always stays
        ordered = ordered.masked_fill(before >= sampling.top_p, -torch.inf)
        scores = torch.empty_like(scores).scatter(1, order, ordered)
    if sampling.min_p is not None:
        probabilities = scores.softmax(-1)
        lowest = sampling.min_p * probabilities.amax(-1, keepdim=True)
        scores = scores.masked_fill(probabilities < lowest, -torch.inf)
    if sampling.typical is not None and sampling.typical < 1.0:
        # Meister et al., 2023: what carries about as much news as this place is expected to.
        logs = scores.log_softmax(-1)
        probabilities = logs.exp()
        expected = -(logs * probabilities).nansum(-1, keepdim=True)
        distance, order = (-logs - expected).abs().sort()
        together = probabilities.gather(1, order).cumsum(-1)
        last = (together < sampling.typical).sum(-1, keepdim=True).clamp(max=scores.shape[-1] - 1)
        ordered = scores.gather(1, order).masked_fill(distance > distance.gather(1, last), -torch.inf)
        scores = torch.empty_like(scores).scatter(1, order, ordered)
    return scores

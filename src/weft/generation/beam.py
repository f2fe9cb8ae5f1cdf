"""Beam search: several hypotheses side by side, the best of which go on.

A candidate that ends counts when it is among the best `width` of its step; the best `width` that do not end go on.
A search is over when nothing that is alive could still come among the answers asked for, whatever it would say: so
that stopping early changes nothing.

B: rows; W: hypotheses per row in this step; C: candidates of each; V: vocabulary; S: tokens of the longest source.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.errors import UserError
from weft.generation.completion import (
    Advance,
    Completion,
    Detail,
    Ranked,
    Reason,
    Request,
    best_tokens,
    by_length,
    check_scores,
)
from weft.generation.decoding import Decoding

PENALTY = 30  # a length of a million to this power is still a number
ROOM = 32  # new tokens to make room for at first: every reordering copies the room


@dataclass(frozen=True, kw_only=True)
class Beam:
    """How to search. `groups` with a `diversity` keep apart (Vijayakumar et al., 2018): each pays for every earlier
    group that says the same token at the same step. `coverage` favors answers that look at all of the source (Wu et
    al., 2016)."""

    width: int = 4
    length_penalty: float = 1.0  # score = log-probability / length ** length_penalty; 0: the bare log-probability
    coverage: float = 0.0
    n: int = 1  # answers per prompt, best first
    groups: int = 1
    diversity: float = 0.0

    def __post_init__(self) -> None:
        if self.width < 1:
            raise UserError(f"beam_size must be at least 1, not {self.width}")
        if not -PENALTY <= self.length_penalty <= PENALTY:  # NaN is neither
            raise UserError(f"length_penalty must be between -{PENALTY} and {PENALTY}, not {self.length_penalty}")
        for name, value in (("coverage", self.coverage), ("diversity", self.diversity)):
            if not 0.0 <= value < math.inf:
                raise UserError(f"{name} must be 0 or more, not {value}")
        if not 1 <= self.n <= self.width:
            raise UserError(f"a beam of {self.width} gives 1 to {self.width} texts, not {self.n}")
        if self.groups < 1 or self.width % self.groups:
            raise UserError(f"a beam of {self.width} cannot be divided into {self.groups} equal groups")
        if self.diversity and self.groups == 1:
            raise UserError("diversity needs more than one group: give groups")


@dataclass(slots=True)
class Hypothesis:
    """The beginning of an answer; at minus infinity it only fills a place."""

    tokens: list[int]
    logprob: float
    place: int  # which row of the scores it came from
    details: list[Detail]


@dataclass(slots=True)
class Search:
    """One prompt's search: in each group what is alive, and what is finished, best first."""

    row: int
    alive: list[list[Hypothesis]]
    done: list[list[Completion]]


Way = tuple[float, int, int]  # a way on: its log-probability in all, the place of the hypothesis, the token


class Searcher:
    """All searches of one call, in step: the scores have `width` places for each group of each search."""

    def __init__(self, request: Request, beam: Beam) -> None:
        self.request, self.beam = request, beam
        self.size = beam.width // beam.groups  # hypotheses that a group may have
        self.decoding = request.decoding(ROOM, beam.coverage > 0)
        self.coverage = Coverage(request, self.decoding) if beam.coverage else None
        starts = [Hypothesis([], 0.0, row, []) for row in range(len(request.prompts))]
        self.places = starts  # whose scores each row of the scores is
        self.groups, self.width = 1, 1  # at first all groups share one place
        self.searches = [
            Search(row, [[start]] * beam.groups, [[] for _ in range(beam.groups)]) for row, start in enumerate(starts)
        ]

    def run(self) -> Generator[Advance, None, list[list[Completion]]]:
        """One step after the other, until every search is settled; the n best of each."""
        going = self.searches
        while going:
            self._step(going)
            yield [(search.row, None) for search in going]
            going = [search for search in going if not self._settled(search)]
            if going:
                self._lay_out(going)
        return [self._best(search) for search in self.searches]

    def _step(self, going: list[Search]) -> None:
        """Let every search take one more token."""
        request, decoding = self.request, self.decoding
        generated = [hypothesis.tokens for hypothesis in self.places]
        prompts = [request.prompts[search.row] for search in going for _ in range(self.groups * self.width)]
        scores = request.processor.penalize(decoding.scores, prompts, generated)
        logs = scores.log_softmax(-1)
        candidates = self._candidates(logs, request.processor.forbid(scores, prompts, generated), len(going))
        if any(math.isnan(way[0]) for ways in candidates for way in ways):
            check_scores(decoding.scores)
        penalties = None if self.coverage is None else self.coverage.penalties(decoding, self.beam.coverage)
        ranked = request.ranked(logs) if request.detailed else None
        for number, search in enumerate(going):
            taken: Counter[int] = Counter()
            for group in range(self.beam.groups):
                ways = candidates[number] if self.beam.groups == 1 else self._apart(candidates, number, group, taken)
                self._advance(search, group, ways, penalties, ranked)
                taken.update(hypothesis.tokens[-1] for hypothesis in search.alive[group])
            if not any(search.alive) and not any(search.done):  # the rules leave nothing to say
                first = number * self.groups * self.width
                best = max(self.places[first : first + self.groups * self.width], key=lambda way: way.logprob)
                search.done[0].append(self._completion(search.row, best, "stop", penalties))

    @property
    def needed(self) -> int:
        """Candidates of a group: enough that its best which do not end are among them."""
        return self.size * max(2, 1 + len(self.request.ends))

    def _candidates(self, logs: Tensor, allowed: Tensor, count: int) -> list[list[Way]]:
        """The best ways on, best first: of every search, or of every place where groups are kept apart."""
        spare = self.beam.width if self.beam.groups > 1 else 0  # tokens that earlier groups may have made dear
        tokens = best_tokens(allowed, self.needed + spare)  # places C
        values = logs.gather(1, tokens).double()
        if self.request.processor.busy:
            values = values.masked_fill(allowed.gather(1, tokens) == -torch.inf, -torch.inf)
        held = torch.tensor([hypothesis.logprob for hypothesis in self.places], dtype=torch.float64)
        values = values + held.to(values.device)[:, None]
        places = torch.arange(len(self.places), device=values.device)[:, None].expand_as(tokens)
        if self.beam.groups == 1:
            values, order = values.view(count, -1).topk(min(self.needed, values.numel() // count))  # B W*C -> B needed
            tokens, places = (each.reshape(count, -1).gather(1, order) for each in (tokens, places))
        # One journey from the device for all three; a double holds any token.
        every = torch.stack((values, places.double(), tokens.double()), -1).tolist()
        return [[(value, int(place), int(token)) for value, place, token in some] for some in every]

    def _apart(self, candidates: list[list[Way]], number: int, group: int, taken: Counter[int]) -> list[Way]:
        """The best ways on of one group, which pays for what earlier groups have just generated."""
        first = (number * self.groups + group % self.groups) * self.width
        ways = [way for place in range(first, first + self.width) for way in candidates[place]]
        return sorted(ways, key=lambda way: self.beam.diversity * taken[way[2]] - way[0])[: self.needed]

    def _advance(
        self,
        search: Search,
        group: int,
        ways: list[Way],
        penalties: list[float] | None,
        ranked: list[Ranked] | None,
    ) -> None:
        """Put the best ways on of a group among the finished or the living."""
        request, row = self.request, search.row
        alive: list[Hypothesis] = []
        for rank, (logprob, place, token) in enumerate(ways):
            if logprob == -math.inf or (rank >= self.size and len(alive) == self.size):
                break  # those of the last ranks could only go on
            parent = self.places[place]
            details = parent.details
            if ranked is not None:
                details = [*details, request.detail(row, logprob - parent.logprob, ranked[place], self.decoding, place)]
            way = Hypothesis([*parent.tokens, token], logprob, place, details)
            reason = request.reason(row, way.tokens)
            if reason is None and len(alive) < self.size:
                alive.append(way)
            elif reason is not None and rank < self.size:
                search.done[group].append(self._completion(row, way, reason, penalties))
                # A beam of one is greedy: it ends with its first end, whatever a longer answer might score.
                if self.size == 1:
                    break
        search.alive[group] = alive
        search.done[group].sort(key=lambda completion: -completion.score)
        del search.done[group][self.size :]

    def _completion(self, row: int, way: Hypothesis, reason: Reason, penalties: list[float] | None) -> Completion:
        score = by_length(way.logprob, len(way.tokens), self.beam.length_penalty)
        if penalties is not None:
            score += penalties[way.place]
        windows = self.decoding.windows[way.place]
        return self.request.completion(way.tokens, reason, score, way.logprob, windows, way.details)

    def _best(self, search: Search) -> list[Completion]:
        """The n best of all groups; what two groups generated counts once."""
        if self.beam.groups == 1:
            return search.done[0][: self.beam.n]
        once: dict[tuple[int, ...], Completion] = {}
        for completion in sorted(
            (completion for done in search.done for completion in done), key=lambda completion: -completion.score
        ):
            once.setdefault(tuple(completion.tokens), completion)
        return list(once.values())[: self.beam.n]

    def _settled(self, search: Search) -> bool:
        """Whether nothing that is alive can still come among the n best."""
        alive = [hypothesis for group in search.alive for hypothesis in group]
        if not alive:
            return True
        best = self._best(search)
        if len(best) < self.beam.n:
            return False
        # A log-probability only falls, and coverage only takes away: so no living one can score more than this.
        penalty, limit = self.beam.length_penalty, self.request.limits[search.row]
        length = limit if penalty > 0 else len(alive[0].tokens) + 1
        return best[-1].score >= by_length(max(hypothesis.logprob for hypothesis in alive), length, penalty)

    def _lay_out(self, going: list[Search]) -> None:
        """Give everything that is alive a row of the scores, the one it had where that is possible, and say it."""
        before, self.groups = self.width, self.beam.groups
        self.width = max(len(group) for search in going for group in search.alive)
        self.places = []
        for search in going:
            some = next(group[0] for group in search.alive if group)
            for group in search.alive:
                row: list[Hypothesis | None] = [None] * self.width
                rest = []
                for hypothesis in group:
                    place = hypothesis.place % before
                    if before == self.width and row[place] is None:
                        row[place] = hypothesis
                    else:
                        rest.append(hypothesis)
                filling = Hypothesis(some.tokens, -math.inf, some.place, [])
                self.places += [(rest.pop() if rest else filling) if kept is None else kept for kept in row]
        origins = [hypothesis.place for hypothesis in self.places]
        if self.coverage is not None:
            self.coverage.pick(torch.tensor(origins, device=self.request.device))
        per = self.groups * self.width
        prompts = [self.request.prompts[search.row] for search in going for _ in range(per)]
        self.decoding.advance(origins, prompts, [hypothesis.tokens for hypothesis in self.places])


class Coverage:
    """How much of each source token every hypothesis has looked at."""

    def __init__(self, request: Request, decoding: Decoding) -> None:
        seen = decoding.attention
        if seen is None or request.sources is None:
            raise UserError("this model looks at no source, so there is no coverage to reward")
        lengths = torch.tensor([len(source) for source in request.sources], device=seen.device)
        # What only fills a row up counts as seen, so that it costs nothing.
        self.seen = (torch.arange(seen.shape[1], device=seen.device) >= lengths[:, None]).float()  # places S

    def penalties(self, decoding: Decoding, weight: float) -> list[float]:
        """What each hypothesis would pay if it ended now: weight x the sum of log min(attention, 1)."""
        attention = decoding.attention
        assert attention is not None
        self.seen = self.seen + F.pad(attention, (0, self.seen.shape[1] - attention.shape[1]))
        tiny = torch.finfo(torch.float32).tiny  # a token that nothing looked at costs much, not everything
        return (weight * self.seen.clamp(tiny, 1.0).double().log().sum(-1)).tolist()

    def pick(self, rows: Tensor) -> None:
        self.seen = self.seen.index_select(0, rows)

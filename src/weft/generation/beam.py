"""Beam search: several beginnings of an answer side by side, the best of which go on.

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
from weft.generation.speaker import Voice
from weft.generation.spoken import Detail, Heard, Ranked, Reason, Spoken, Talk, best_tokens, by_length, check_scores

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
            raise UserError(f"a beam is at least 1 wide, not {self.width}")
        if not -PENALTY <= self.length_penalty <= PENALTY:  # NaN is neither
            raise UserError(f"length_penalty must be between -{PENALTY} and {PENALTY}, not {self.length_penalty}")
        for name in ("coverage", "diversity"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise UserError(f"{name} must be 0 or more, not {getattr(self, name)}")
        if not 1 <= self.n <= self.width:
            raise UserError(f"a beam of {self.width} gives 1 to {self.width} answers, not {self.n}")
        if self.groups < 1 or self.width % self.groups:
            raise UserError(f"a beam of {self.width} cannot be cut into {self.groups} equal groups")
        if self.diversity and self.groups == 1:
            raise UserError("a diversity is between the groups of a beam, and there is only one group")


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
    done: list[list[Spoken]]


Way = tuple[float, int, int]  # a way on: its log-probability in all, the place of the hypothesis, the token


class Searcher:
    """All searches of one call, in step: the scores have `width` places for each group of each search."""

    def __init__(self, talk: Talk, beam: Beam) -> None:
        self.talk, self.beam = talk, beam
        self.size = beam.width // beam.groups  # hypotheses that a group may have
        self.voice = talk.voice(ROOM, beam.coverage > 0)
        self.coverage = Coverage(talk, self.voice) if beam.coverage else None
        starts = [Hypothesis([], 0.0, row, []) for row in range(len(talk.prompts))]
        self.places = starts  # whose scores each row of the scores is
        self.groups, self.width = 1, 1  # at first all groups share one place
        self.searches = [
            Search(row, [[start]] * beam.groups, [[] for _ in range(beam.groups)]) for row, start in enumerate(starts)
        ]

    def run(self) -> Generator[Heard, None, list[list[Spoken]]]:
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
        """Let every search say one more token."""
        talk, voice = self.talk, self.voice
        said = [hypothesis.tokens for hypothesis in self.places]
        prompts = [talk.prompts[search.row] for search in going for _ in range(self.groups * self.width)]
        scores = talk.judge.weigh(voice.scores, prompts, said)
        logs = scores.log_softmax(-1)
        found = self._found(logs, talk.judge.forbid(scores, prompts, said), len(going))
        if any(math.isnan(way[0]) for ways in found for way in ways):
            check_scores(voice.scores)
        penalties = None if self.coverage is None else self.coverage.penalties(voice, self.beam.coverage)
        ranked = talk.ranked(logs) if talk.detailed else None
        for number, search in enumerate(going):
            taken: Counter[int] = Counter()
            for group in range(self.beam.groups):
                ways = found[number] if self.beam.groups == 1 else self._apart(found, number, group, taken)
                self._advance(search, group, ways, penalties, ranked)
                taken.update(hypothesis.tokens[-1] for hypothesis in search.alive[group])
            if not any(search.alive) and not any(search.done):  # the rules leave nothing to say
                first = number * self.groups * self.width
                best = max(self.places[first : first + self.groups * self.width], key=lambda way: way.logprob)
                search.done[0].append(self._spoken(search.row, best, "stop", penalties))

    @property
    def needed(self) -> int:
        """Candidates of a group: enough that its best which do not end are among them."""
        return self.size * max(2, 1 + len(self.talk.ends))

    def _found(self, logs: Tensor, allowed: Tensor, count: int) -> list[list[Way]]:
        """The best ways on, best first: of every search, or of every place where groups have to be told apart."""
        spare = self.beam.width if self.beam.groups > 1 else 0  # tokens that earlier groups may have made dear
        tokens = best_tokens(allowed, self.needed + spare)  # places C
        values = logs.gather(1, tokens).double()
        if self.talk.judge.busy:
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

    def _apart(self, found: list[list[Way]], number: int, group: int, taken: Counter[int]) -> list[Way]:
        """The best ways on of one group, which pays for what earlier groups have just said."""
        first = (number * self.groups + group % self.groups) * self.width
        ways = [way for place in range(first, first + self.width) for way in found[place]]
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
        talk, row = self.talk, search.row
        alive: list[Hypothesis] = []
        for rank, (logprob, place, token) in enumerate(ways):
            if logprob == -math.inf or (rank >= self.size and len(alive) == self.size):
                break  # those of the last ranks could only go on
            parent = self.places[place]
            details = parent.details
            if ranked is not None:
                details = [*details, talk.detail(row, logprob - parent.logprob, ranked[place], self.voice, place)]
            way = Hypothesis([*parent.tokens, token], logprob, place, details)
            reason = talk.reason(row, way.tokens)
            if reason is None and len(alive) < self.size:
                alive.append(way)
            elif reason is not None and rank < self.size:
                search.done[group].append(self._spoken(row, way, reason, penalties))
                # A beam of one is greedy: it ends with its first end, whatever a longer answer might score.
                if self.size == 1:
                    break
        search.alive[group] = alive
        search.done[group].sort(key=lambda spoken: -spoken.score)
        del search.done[group][self.size :]

    def _spoken(self, row: int, way: Hypothesis, reason: Reason, penalties: list[float] | None) -> Spoken:
        score = by_length(way.logprob, len(way.tokens), self.beam.length_penalty)
        if penalties is not None:
            score += penalties[way.place]
        windows = self.voice.windows[way.place]
        return self.talk.spoken(way.tokens, reason, score, way.logprob, windows, way.details)

    def _best(self, search: Search) -> list[Spoken]:
        """The n best of all groups; what two groups said counts once."""
        if self.beam.groups == 1:
            return search.done[0][: self.beam.n]
        once: dict[tuple[int, ...], Spoken] = {}
        for spoken in sorted((spoken for done in search.done for spoken in done), key=lambda spoken: -spoken.score):
            once.setdefault(tuple(spoken.tokens), spoken)
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
        penalty, limit = self.beam.length_penalty, self.talk.limits[search.row]
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
            self.coverage.pick(torch.tensor(origins, device=self.talk.device))
        per = self.groups * self.width
        prompts = [self.talk.prompts[search.row] for search in going for _ in range(per)]
        self.voice.log(origins, prompts, [hypothesis.tokens for hypothesis in self.places])


class Coverage:
    """How much of each source token every hypothesis has looked at."""

    def __init__(self, talk: Talk, voice: Voice) -> None:
        seen = voice.attention
        if seen is None or talk.sources is None:
            raise UserError("this model looks at no source, so there is no coverage to reward")
        lengths = torch.tensor([len(source) for source in talk.sources], device=seen.device)
        # What only fills a row up counts as seen, so that it costs nothing.
        self.seen = (torch.arange(seen.shape[1], device=seen.device) >= lengths[:, None]).float()  # places S

    def penalties(self, voice: Voice, weight: float) -> list[float]:
        """What each hypothesis would pay if it ended now: weight x the sum of log min(attention, 1)."""
        attention = voice.attention
        assert attention is not None
        self.seen = self.seen + F.pad(attention, (0, self.seen.shape[1] - attention.shape[1]))
        least = torch.finfo(torch.float32).tiny  # a token that nothing looked at costs much, not everything
        return (weight * self.seen.clamp(least, 1.0).double().log().sum(-1)).tolist()

    def pick(self, rows: Tensor) -> None:
        self.seen = self.seen.index_select(0, rows)

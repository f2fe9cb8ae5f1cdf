"""Tokens out of any model that generates: greedy, sampled, or by beam search.

In a beam a candidate that ends counts when it is among the best `width` of its step; the best `width` that do not end
go on. A search is over when nothing that is alive could still come among the answers asked for, whatever it would say:
so that stopping early changes nothing.

B: rows; W: hypotheses per row in this step; C: candidates of each; V: vocabulary; S: tokens of the longest source.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.errors import UserError, refuse
from weft.generation.decoding import (
    Advance,
    Completion,
    Decoding,
    Detail,
    Ranked,
    Reason,
    Request,
    TokenDecoder,
    best_tokens,
    by_length,
    check_scores,
)
from weft.generation.sampling import LogitsProcessor, RandomDraws, Rules, Sampling, choose
from weft.nn.rows import Source

__all__ = ["Beam", "Reason", "Rules", "Sampling", "Completion", "generate", "generate_steps"]


PENALTY = 30  # a length of a million to this power is still a number
BEAM_ROOM = 32  # new tokens to make room for at first: every reordering copies the room


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
        width, n, groups, penalty = self.width, self.n, self.groups, self.length_penalty
        allowed = -PENALTY <= penalty <= PENALTY  # NaN is neither
        refuse(
            (width < 1, f"beam_size must be at least 1, not {width}"),
            (not allowed, f"length_penalty must be between -{PENALTY} and {PENALTY}, not {penalty}"),
            (not 0.0 <= self.coverage < math.inf, f"coverage must be 0 or more, not {self.coverage}"),
            (not 0.0 <= self.diversity < math.inf, f"diversity must be 0 or more, not {self.diversity}"),
            (not 1 <= n <= width, f"a beam of {width} gives 1 to {width} texts, not {n}"),
            (groups < 1 or width % groups > 0, f"a beam of {width} cannot be divided into {groups} equal groups"),
            (self.diversity > 0 and groups == 1, "diversity needs more than one group: give groups"),
        )


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
        self.decoding = request.decoding(BEAM_ROOM, beam.coverage > 0)
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


ROOM = 256  # new tokens to make room for at first


def generate(
    decoder: TokenDecoder,
    prompts: Sequence[Sequence[int]],
    *,
    on_progress: Callable[[int], None] | None = None,
    **options: Any,
) -> list[list[Completion]]:
    """The completions of each prompt: of a beam up to n, best first; of a sampling n, in the order of their draws.

    `options` are those of `generate_steps`; `on_progress` gets the number of rows that took a token.
    """
    steps = generate_steps(decoder, prompts, **options, live=False)
    while True:
        try:
            advance = next(steps)
        except StopIteration as end:
            completions: list[list[Completion]] = end.value
            return completions
        if on_progress is not None:
            on_progress(len(advance))


@torch.inference_mode()
def generate_steps(
    decoder: TokenDecoder,
    prompts: Sequence[Sequence[int]],
    *,
    choice: Sampling | Beam,
    context: int | None,
    sources: Sequence[Source] | None = None,
    max_tokens: int | Sequence[int] | None = None,
    ends: Collection[int] = (),
    rules: Rules | None = None,
    seeds: Sequence[int] | None = None,
    stopped: Callable[[int, list[int]], bool] | None = None,
    slide: bool = False,
    alternatives: int | None = None,
    attention: bool = False,
    device: torch.device | str = "cpu",
    live: bool = True,
) -> Generator[Advance, None, list[list[Completion]]]:
    """One step after the other: yields which rows went on and, where no beam has to choose yet, by which token.

    A completion goes on until it ends by itself, has `max_tokens` tokens (one number, or one per prompt), or fills the
    context; with `slide` the model then reads the last part of the text anew. `sources` are what an encoder-decoder
    reads. `stopped` is asked after each token whether a completion holds a stop string. `alternatives`: None, or how
    many of the likeliest tokens to keep at each step, with the log-probability of every token; `attention`: keep which
    source tokens each token came from. An engine that searches by itself hands out single tokens only when `live`.
    """
    _check(prompts, sources, max_tokens, context, slide, alternatives)
    seeds = [0] * len(prompts) if seeds is None else list(seeds)
    limits, limited = _limits(prompts, max_tokens, None if slide else context)
    rows = [row for row, limit in enumerate(limits) if limit > 0]
    answers = [[Completion([], "length", 0.0, 0.0)] for _ in prompts]
    if not rows:
        return answers
    request = Request(
        decoder=decoder,
        prompts=[list(prompts[row]) for row in rows],
        sources=None if sources is None else [sources[row] for row in rows],
        limits=[limits[row] for row in rows],
        limited=[limited[row] for row in rows],
        ends=frozenset(ends),
        processor=LogitsProcessor(rules or Rules(), ends, device),
        stopped=None if stopped is None else lambda place, generated: stopped(rows[place], generated),
        context=context,
        slide=slide,
        alternatives=alternatives,
        attention=attention,
        device=device,
    )
    if decoder.SEARCHES:
        engine: Any = decoder
        steps = engine.search(request, choice, [seeds[row] for row in rows], live)
    elif isinstance(choice, Beam) and choice.width > 1:
        steps = Searcher(request, choice).run()
    else:
        steps = _one_by_one(request, choice, [seeds[row] for row in rows])
    completions = yield from _named(steps, rows)
    for row, best in zip(rows, completions, strict=True):
        answers[row] = best
    return answers


def _limits(
    prompts: Sequence[Sequence[int]], max_tokens: int | Sequence[int] | None, context: int | None
) -> tuple[list[int], list[Reason]]:
    """How many tokens each row may take, and what that limit is called."""
    wishes = [max_tokens] * len(prompts) if max_tokens is None or isinstance(max_tokens, int) else list(max_tokens)
    rooms = [None if context is None else max(1, context - len(prompt)) for prompt in prompts]
    limits = [min(limit for limit in both if limit is not None) for both in zip(wishes, rooms, strict=True)]
    return limits, ["length" if limit == wish else "context" for limit, wish in zip(limits, wishes, strict=True)]


def _named(
    steps: Generator[Advance, None, list[list[Completion]]], rows: list[int]
) -> Generator[Advance, None, list[list[Completion]]]:
    """The steps, with the rows as the caller counts them."""
    while True:
        try:
            went = next(steps)
        except StopIteration as end:
            completions: list[list[Completion]] = end.value
            return completions
        yield [(rows[place], token) for place, token in went]


def _check(
    prompts: Sequence[Sequence[int]],
    sources: Sequence[Source] | None,
    max_tokens: int | Sequence[int] | None,
    context: int | None,
    slide: bool,
    alternatives: int | None,
) -> None:
    """What a caller may not ask for."""
    for number, prompt in enumerate(prompts, 1):
        if not prompt:
            raise UserError(f"prompt {number} is empty, and this model has no token to start from")
        if context is not None and len(prompt) > context and not slide:
            raise UserError(
                f"prompt {number} has {len(prompt)} tokens, more than the model's context of {context}; "
                "--slide (slide=True) reads the last part of it"
            )
    two, unlimited = sources is not None, max_tokens is None and (slide or context is None)
    wishes = [] if max_tokens is None else [max_tokens] if isinstance(max_tokens, int) else max_tokens
    refuse(
        (slide and two, "a window slides over one text; a model that reads a source has two"),
        (unlimited, "no length limit: give --max-tokens N (max_tokens=N)"),
        *((wish < 0, f"max_tokens must be 0 or more, not {wish}") for wish in wishes),
        ((alternatives or 0) < 0, f"logprobs must be 0 or more, not {alternatives}"),
        (two and len(sources or ()) != len(prompts), f"{len(sources or ())} sources for {len(prompts)} prompts"),
    )


def _one_by_one(
    request: Request, choice: Sampling | Beam, seeds: list[int]
) -> Generator[Advance, None, list[list[Completion]]]:
    """One token after the other: the best or a drawn one. A beam of one is greedy, whatever its length penalty."""
    sampling = choice if isinstance(choice, Sampling) else Sampling()
    penalty = choice.length_penalty if isinstance(choice, Beam) else 1.0
    decoding, n = request.decoding(ROOM), sampling.n
    chances = RandomDraws(seeds, n)
    owners = [row for row in range(len(request.prompts)) for _ in range(n)]  # the prompt of each answer
    decoding.pick(owners)
    generated: list[list[int]] = [[] for _ in owners]
    details: list[list[Detail]] = [[] for _ in owners]
    logprobs = [0.0] * len(owners)
    done: dict[int, Completion] = {}
    alive = list(range(len(owners)))
    prompts, so_far = [request.prompts[row] for row in owners], generated
    while True:
        scores = request.processor.penalize(decoding.scores, prompts, so_far)
        allowed = request.processor.forbid(scores, prompts, so_far)
        tokens = choose(allowed, sampling, chances.draw(alive) if not sampling.greedy else torch.empty(0))
        logs = scores.log_softmax(-1)
        own = logs.gather(1, tokens[:, None]).squeeze(1)
        if request.processor.busy:  # where nothing is allowed the choice means nothing
            own = own.masked_fill(allowed.gather(1, tokens[:, None]).squeeze(1) == -torch.inf, -torch.inf)
        chosen = torch.stack((own.double(), tokens.double()), -1).tolist()  # one journey from the device for both
        ranked = request.ranked(logs) if request.detailed else None
        went: Advance = []
        for place, (answer, (logprob, number)) in enumerate(zip(alive, chosen, strict=True)):
            row, token = owners[answer], int(number)
            if math.isnan(logprob):  # also where every token is ruled out, which ends the answer
                check_scores(decoding.scores[place])
            reason: Reason | None = "stop"
            if logprob > -torch.inf:
                generated[answer].append(token)
                logprobs[answer] += logprob
                went.append((row, token))
                if ranked is not None:
                    details[answer].append(request.detail(row, logprob, ranked[place], decoding, place))
                reason = request.reason(row, generated[answer])
            if reason is not None:
                whole = logprobs[answer]
                score = by_length(whole, len(generated[answer]), penalty)
                windows = decoding.windows[place]
                done[answer] = request.completion(generated[answer], reason, score, whole, windows, details[answer])
        yield went
        places = [place for place, answer in enumerate(alive) if answer not in done]
        if not places:
            return [[done[row * n + sample] for sample in range(n)] for row in range(len(request.prompts))]
        alive = [alive[place] for place in places]
        prompts = [request.prompts[owners[answer]] for answer in alive]
        so_far = [generated[answer] for answer in alive]
        decoding.advance(places, prompts, so_far)

"""Tokens out of any model that generates: greedy, sampled, or by beam search.

In a beam a candidate that ends counts when it is among the best `width` of its step; the best `width` that do not end
go on. A search is over when no living hypothesis can still come among the answers asked for: stopping early changes
nothing.

B: rows; W: hypotheses per row in this step; C: candidates of each; V: vocabulary; S: tokens of the longest source.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.errors import NotFinite, UserError, listed, refuse
from weft.generation.sampling import LogitsProcessor, RandomDraws, Rules, Sampling, choose
from weft.generation.typed import TypedLetters
from weft.generation.wording import Reason
from weft.models.base import Network
from weft.nn.halved import is_watched
from weft.nn.linear import decoding
from weft.nn.rows import DecoderState, Ragged, Source
from weft.text.tokenizers.spelling import Spelling

Ranked = list[tuple[int, float]]  # tokens and their log-probabilities, best first
Advance = list[tuple[int, int | None]]  # rows that went on by a token, and which, where that is settled
SearchSteps = Generator[Advance, None, list[list["Completion"]]]  # of a search: what it yields, and what it returns
Extension = tuple[float, int, int]  # of a hypothesis: the log-probability in all, its place, the new token
Fate = Literal["kept", "ended", "pruned"]

PENALTY = 30  # a length of a million to this power is still a number
ROOM, BEAM_ROOM = 256, 32  # new tokens to make room for at first: every reordering of a beam copies the room
COLUMNS = 16  # see `best_tokens`


class TokenDecoder(Protocol):
    """A model that generates: n-gram, recurrent, GPT-2, T5, all of them. Its scores are logits, B V."""

    SEARCHES: bool  # whether it has `search`, and generates by itself

    def start(
        self, prompt: Ragged, source: Ragged | None = None, room: int = 0, attention: bool = False
    ) -> tuple[Tensor, Any]: ...

    def step(self, tokens: Tensor, state: Any) -> Tensor: ...


class Ensemble:
    """Several decoders with one vocabulary that generate as one: the mean of their probabilities at every step."""

    SEARCHES = False

    def __init__(self, decoders: Sequence[TokenDecoder]) -> None:
        if not decoders:
            raise UserError("an ensemble needs at least one model")
        self.decoders = list(decoders)

    def start(self, *inputs: Any, **options: Any) -> tuple[Tensor, EnsembleState]:
        """Let every decoder read the prompts."""
        read = [decoder.start(*inputs, **options) for decoder in self.decoders]
        sizes = {scores.shape[-1] for scores, _ in read}
        if len(sizes) > 1:
            raise UserError(f"models of an ensemble need one vocabulary, not {listed(map(str, sorted(sizes)))} tokens")
        return mean_probabilities([scores for scores, _ in read]), EnsembleState([state for _, state in read])

    def step(self, tokens: Tensor, state: EnsembleState) -> Tensor:
        """Let every decoder take in one token per row."""
        pairs = zip(self.decoders, state.states, strict=True)
        return mean_probabilities([decoder.step(tokens, own) for decoder, own in pairs])


class EnsembleState(DecoderState):
    """What the decoders of an ensemble remember."""

    def __init__(self, states: list[Any]) -> None:
        self.states = states

    def pick(self, rows: Tensor) -> None:
        """Keep these rows in every state."""
        for state in self.states:
            state.pick(rows)

    @property
    def attention(self) -> Tensor | None:
        """B S: the mean over the decoders that look at the source."""
        seen = [state.attention for state in self.states if state.attention is not None]
        return torch.stack(seen).mean(0) if seen else None


def mean_probabilities(scores: list[Tensor]) -> Tensor:
    """B V: the logarithm of the mean of several probabilities; the logits themselves where there is one decoder."""
    if len(scores) == 1:
        return scores[0]
    return torch.stack([each.log_softmax(-1) for each in scores]).logsumexp(0) - math.log(len(scores))


@dataclass(frozen=True)
class Completion:
    """What was generated after one prompt, and why it ended: `end` (its end token), `stop` (a stop string, or no token
    that the rules allow), `length` (as many tokens as were asked for) or `context` (no room left)."""

    tokens: list[int]
    finish_reason: Reason
    score: float  # what answers are compared by: the log-probability by length, and what a beam adds
    logprob: float  # of all tokens together
    windows: int = 1  # how often the model read: more than once where its window slid
    logprobs: list[float] | None = None  # of each token
    alternatives: list[Ranked] | None = None  # at each token, the likeliest
    attention: Tensor | None = field(default=None, compare=False)  # tokens S: what of the source each came from


@dataclass(frozen=True, slots=True)
class BeamCandidate:
    """An extension that a step of a beam search compared with others, and what became of it."""

    tokens: list[int]
    logprob: float  # of all tokens together
    fate: Fate


@dataclass(frozen=True)
class Detail:
    """What is kept of one token where that was asked for."""

    logprob: float
    alternatives: Ranked
    attention: Tensor | None  # S


@dataclass(kw_only=True)
class Request:
    """One call of `generate`; a completion goes on until its end token, `max_tokens` or a full context."""

    decoder: TokenDecoder
    prompts: Sequence[list[int]]
    choice: Sampling | Beam
    context: int | None
    sources: Sequence[Source] | None = None  # what an encoder-decoder reads
    max_tokens: int | Sequence[int] | None = None  # of every prompt, or of each; 0 only for all
    ends: Collection[int] = ()
    rules: Rules = Rules()
    typed: Sequence[bytes] = ()  # what each completion begins with, however it is spelled; default: anything
    spelling: Spelling | None = None  # of the vocabulary, where something is typed
    seeds: Sequence[int] = ()  # of each prompt; default: 0
    stopped: Callable[[int, list[int]], bool] | None = None  # whether the new tokens of a row hold a stop string
    slide: bool = False  # where the context is full, read the last part of the text anew
    alternatives: int | None = (
        None  # likeliest tokens to keep at each step; None: no log-probabilities of tokens either
    )
    attention: bool = False  # keep which source tokens each token came from
    observer: Callable[[int, list[BeamCandidate]], None] | None = (
        None  # of a beam: (row, candidates), best first, each step
    )
    device: torch.device | str = "cpu"
    live: bool = True  # single tokens are of use also where an engine searches by itself
    limits: list[int] = field(init=False)  # tokens that each row may have
    limited: list[Reason] = field(init=False)  # the reason to end there
    processor: LogitsProcessor = field(init=False)
    letters: list[TypedLetters] = field(init=False)  # of each prompt, where something is typed

    def __post_init__(self) -> None:
        context, count, most = self.context, len(self.prompts), self.max_tokens
        for number, prompt in enumerate(self.prompts, 1):
            if not prompt:
                raise UserError(f"prompt {number} is empty, and this model has no token to start from")
            if context is not None and len(prompt) > context and not self.slide:
                raise UserError(
                    f"prompt {number} has {len(prompt)} tokens, more than the model's context of {context}; "
                    "--slide (slide=True) reads the last part of it"
                )
        sources = count if self.sources is None else len(self.sources)
        wishes = [most] * count if most is None or isinstance(most, int) else list(most)
        refuse(
            (self.slide and self.sources is not None, "a window slides over one text; an encoder-decoder has two"),
            (most is None and (self.slide or context is None), "no length limit: give --max-tokens N (max_tokens=N)"),
            *((wish is not None and wish < 0, f"max_tokens must be 0 or more, not {wish}") for wish in wishes),
            (0 in wishes and any(wishes), "max_tokens is 0 for some prompts and not for others"),
            ((self.alternatives or 0) < 0, f"logprobs must be 0 or more, not {self.alternatives}"),
            (sources != count, f"{sources} sources for {count} prompts"),
        )
        rooms = [None if self.slide or context is None else max(1, context - len(prompt)) for prompt in self.prompts]
        self.limits = [min(limit for limit in both if limit is not None) for both in zip(wishes, rooms, strict=True)]
        pairs = zip(self.limits, wishes, strict=True)
        self.limited = ["length" if limit == wish else "context" for limit, wish in pairs]
        self.ends, self.seeds = frozenset(self.ends), self.seeds or [0] * count
        self.typed = self.typed or [b""] * count
        self.processor = LogitsProcessor(self.rules, self.ends, self.device, self.spelling)
        self.letters = [TypedLetters(b"")] * count

    @property
    def sampling(self) -> Sampling | None:
        """How tokens are chosen if each text is one hypothesis: a beam of one is greedy; None: by beam search."""
        if isinstance(self.choice, Sampling):
            return self.choice
        return Sampling() if self.choice.width == 1 else None

    @property
    def penalty(self) -> float:
        """The power of its length by which the log-probability of a text is divided."""
        return 1.0 if isinstance(self.choice, Sampling) else self.choice.length_penalty

    def reason(self, row: int, generated: list[int]) -> Reason | None:
        """Why a row is over, None while it goes on."""
        if generated[-1] in self.ends:
            return "end"
        if self.stopped is not None and self.stopped(row, generated):
            return "stop"
        return self.limited[row] if len(generated) >= self.limits[row] else None

    def ranked(self, logs: Tensor) -> list[Ranked] | None:
        """The likeliest tokens of each row, as many as were asked for (B V -> B lists); None: no details are kept."""
        if self.alternatives is None and not self.attention:
            return None
        values, tokens = logs.topk(min(self.alternatives or 0, logs.shape[-1]))
        pairs = zip(tokens.tolist(), values.tolist(), strict=True)
        return [list(zip(some, chances, strict=True)) for some, chances in pairs]

    def detail(self, row: int, logprob: float, alternatives: Ranked, decoding: Decoding, place: int) -> Detail:
        """What is kept of a token that came from this place of the scores."""
        seen = decoding.state.attention if self.attention else None
        if seen is not None and self.sources is not None:
            seen = seen[place, : len(self.sources[row])]
        return Detail(logprob, alternatives, seen)

    def completion(
        self, best: Hypothesis, reason: Reason, windows: int, penalty: float, bonus: float = 0.0
    ) -> Completion:
        """What was generated, with the details asked for."""
        seen = [detail.attention for detail in best.details if detail.attention is not None]
        return Completion(
            best.tokens,
            reason,
            by_length(best.logprob, len(best.tokens), penalty) + bonus,
            best.logprob,
            windows,
            None if self.alternatives is None else [detail.logprob for detail in best.details],
            [detail.alternatives for detail in best.details] if self.alternatives else None,
            torch.stack(seen).cpu() if self.attention and seen else None,
        )


class Decoding:
    """The decoder of a request between two steps: the scores of each row's next token."""

    def __init__(self, request: Request, room: int, attention: bool = False) -> None:
        self.decoder, self.device, prompts = request.decoder, request.device, request.prompts
        self.context = request.context if request.slide else None
        room = max(map(len, prompts)) + min(room, max(request.limits))
        room = room if request.context is None else min(room, request.context)
        self.options: dict[str, Any] = {"room": room, "attention": attention or request.attention}
        self.begins = [0 if self.context is None else max(0, len(prompt) - self.context) for prompt in prompts]
        self.windows = [1] * len(prompts)  # that were read of each row: more than one where the context slid
        self.fuse = isinstance(self.decoder, Network) and not is_watched(self.decoder)
        self._read(prompts, None if request.sources is None else Ragged.of(request.sources, self.device))
        if request.attention and self.state.attention is None:
            raise UserError("this model looks at no source, so it has no alignments")

    def _read(self, texts: Sequence[Sequence[int]], source: Ragged | None = None) -> None:
        windows = [text[begin:] for text, begin in zip(texts, self.begins, strict=True)]
        self.lengths = [len(window) for window in windows]
        with decoding():
            self.scores, self.state = self.decoder.start(Ragged.of(windows, self.device), source, **self.options)

    def pick(self, rows: Sequence[int]) -> None:
        """Keep these rows; a row may be asked for more than once."""
        if list(rows) == list(range(len(self.begins))):
            return
        self.begins, self.lengths, self.windows = (
            [values[row] for row in rows] for values in (self.begins, self.lengths, self.windows)
        )
        chosen = torch.tensor(rows, device=self.device)
        self.state.pick(chosen)
        self.scores = self.scores.index_select(0, chosen)

    def advance(
        self, rows: Sequence[int], prompts: Sequence[Sequence[int]], generated: Sequence[Sequence[int]]
    ) -> None:
        """Continue these rows, each with the latest token that it has generated after its prompt."""
        self.scores = self.scores[:, :0]  # of the step before: they need not be moved
        self.pick(rows)
        if self.context is None or max(self.lengths) < self.context:
            self.lengths = [length + 1 for length in self.lengths]
            latest = torch.tensor([own[-1] for own in generated], device=self.device)
            with decoding(self.fuse):
                self.scores = self.decoder.step(latest, self.state)
            return
        texts = [[*prompt, *own] for prompt, own in zip(prompts, generated, strict=True)]
        for row, text in enumerate(texts):  # rows whose context is full keep its later half
            if len(text) - self.begins[row] > self.context:
                self.begins[row] = len(text) - max(1, self.context // 2)
                self.windows[row] += 1
        self._read(texts)


@dataclass(frozen=True, kw_only=True)
class Beam:
    """How to search by beam."""

    width: int = 4
    length_penalty: float = 1.0  # score = log-probability / length ** length_penalty; 0: the bare log-probability
    coverage: float = 0.0  # weight of attending to all of the source (Wu et al., 2016)
    n: int = 1  # answers per prompt, best first
    groups: int = 1  # kept apart (Vijayakumar et al., 2018):
    diversity: float = 0.0  # what a group pays for each earlier one that takes the same token

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


def check_scores(scores: Tensor) -> None:
    """Refuse the scores of next tokens where one is no number; minus infinity is a token that cannot come."""
    if bool((scores.isnan() | (scores == torch.inf)).any()):
        raise NotFinite()


def by_length(logprob: float, length: int, penalty: float) -> float:
    """A log-probability as it is compared with those of other lengths."""
    return logprob / max(length, 1) ** penalty


def best_tokens(scores: Tensor, count: int) -> Tensor:
    """B count: the best tokens of each row, best first."""
    # A maximum is far cheaper than an order: only the columns with the best maxima are put in order.
    size, columns = scores.shape[-1], COLUMNS if scores.device.type == "cpu" else 4 * COLUMNS
    wide = size // columns
    if wide < 4 * count:
        return scores.topk(min(count, size)).indices
    even = wide * columns
    best = scores[:, :even].view(-1, columns, wide).amax(1).topk(count).indices  # B count
    among = (best[:, :, None] + wide * torch.arange(columns, device=scores.device)).flatten(1)  # B count*columns
    if even < size:
        among = torch.cat((among, torch.arange(even, size, device=scores.device).expand(len(among), -1)), 1)
    return among.gather(1, scores.gather(1, among).topk(count).indices)


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


class Searcher:
    """All searches of one call, in step: the scores have `width` places for each group of each search."""

    def __init__(self, request: Request, beam: Beam) -> None:
        self.request, self.beam = request, beam
        self.size = beam.width // beam.groups  # hypotheses that a group may have
        self.decoding = Decoding(request, BEAM_ROOM, beam.coverage > 0)
        self.seen: Tensor | None = None  # places S: how much of each source token every hypothesis has looked at
        if beam.coverage:
            attention = self.decoding.state.attention
            if attention is None or request.sources is None:
                raise UserError("this model looks at no source, so there is no coverage to reward")
            lengths = torch.tensor([len(source) for source in request.sources], device=attention.device)
            # What only fills a row up counts as seen, so that it costs nothing.
            self.seen = (torch.arange(attention.shape[1], device=attention.device) >= lengths[:, None]).float()
        starts = [Hypothesis([], 0.0, row, []) for row in range(len(request.prompts))]
        self.places, self.prompts, self.letters = starts, request.prompts, request.letters  # of each row of the scores
        self.groups, self.width = 1, 1  # at first all groups share one place
        # Candidates of a group: enough that its best which do not end are among them.
        self.needed = self.size * max(2, 1 + len(request.ends))
        self.penalties: list[float] | None = None  # of each place, where coverage counts
        self.searches = [
            Search(row, [[start]] * beam.groups, [[] for _ in range(beam.groups)]) for row, start in enumerate(starts)
        ]

    def run(self) -> SearchSteps:
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
        scores = request.processor.penalize(decoding.scores, self.prompts, generated)
        logs = scores.log_softmax(-1)
        allowed = request.processor.forbid(scores, self.prompts, generated, self.letters)
        candidates = self._candidates(logs, allowed, len(going))
        if any(math.isnan(logprob) for extensions in candidates for logprob, _, _ in extensions):
            check_scores(decoding.scores)
        if self.seen is not None:  # if it ended now, a hypothesis would pay weight x the sum of log min(attention, 1)
            attention = decoding.state.attention
            self.seen = self.seen + F.pad(attention, (0, self.seen.shape[1] - attention.shape[1]))
            tiny = torch.finfo(torch.float32).tiny  # a token that nothing looked at costs much, not everything
            self.penalties = (self.beam.coverage * self.seen.clamp(tiny, 1.0).double().log().sum(-1)).tolist()
        ranked = request.ranked(logs)
        for number, search in enumerate(going):
            taken: Counter[int] = Counter()
            for group in range(self.beam.groups):
                first = (number * self.groups + group % self.groups) * self.width
                own = candidates[number : number + 1] if self.beam.groups == 1 else candidates[first:][: self.width]
                self._advance(search, group, own, taken, ranked)
            if not any(search.alive) and not any(search.done):  # the rules leave nothing to say
                first = number * self.groups * self.width
                best = max(self.places[first : first + self.groups * self.width], key=lambda each: each.logprob)
                search.done[0].append(self._completion(best, "stop"))

    def _candidates(self, logs: Tensor, allowed: Tensor, count: int) -> list[list[Extension]]:
        """The best extensions, best first: of every search, or of every place where groups are kept apart."""
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

    def _advance(
        self, search: Search, group: int, own: list[list[Extension]], taken: Counter[int], ranked: list[Ranked] | None
    ) -> None:
        """Put the best extensions of a group among the finished or the living; it pays for tokens that others took."""
        extensions = sorted(chain(*own), key=lambda each: self.beam.diversity * taken[each[2]] - each[0])
        request, row = self.request, search.row
        alive: list[Hypothesis] = []
        fates: dict[int, Fate] = {}
        for rank, (logprob, place, token) in enumerate(extensions[: self.needed]):
            if logprob == -math.inf or (rank >= self.size and len(alive) == self.size):
                break  # those of the last ranks could only go on
            parent = self.places[place]
            details = parent.details
            if ranked is not None:
                details = [*details, request.detail(row, logprob - parent.logprob, ranked[place], self.decoding, place)]
            hypothesis = Hypothesis([*parent.tokens, token], logprob, place, details)
            reason = request.reason(row, hypothesis.tokens)
            if reason is None and len(alive) < self.size:
                alive.append(hypothesis)
                fates[rank] = "kept"
            elif reason is not None and rank < self.size:
                fates[rank] = "ended"
                search.done[group].append(self._completion(hypothesis, reason))
                # A beam of one is greedy: it ends with its first end, whatever a longer answer might score.
                if self.size == 1:
                    break
        if request.observer is not None:
            compared = [(rank, each) for rank, each in enumerate(extensions[: self.needed]) if each[0] > -math.inf]
            request.observer(
                row,
                [
                    BeamCandidate([*self.places[place].tokens, token], logprob, fates.get(rank, "pruned"))
                    for rank, (logprob, place, token) in compared
                ],
            )
        search.alive[group] = alive
        taken.update(hypothesis.tokens[-1] for hypothesis in alive)
        search.done[group].sort(key=lambda completion: -completion.score)
        del search.done[group][self.size :]

    def _completion(self, best: Hypothesis, reason: Reason) -> Completion:
        bonus = 0.0 if self.penalties is None else self.penalties[best.place]
        windows = self.decoding.windows[best.place]
        return self.request.completion(best, reason, windows, self.beam.length_penalty, bonus)

    def _best(self, search: Search) -> list[Completion]:
        """The n best of all groups; what two groups generated counts once."""
        once: dict[tuple[int, ...], Completion] = {}
        for completion in sorted(chain(*search.done), key=lambda completion: -completion.score):
            once.setdefault(tuple(completion.tokens), completion)
        return list(once.values())[: self.beam.n]

    def _settled(self, search: Search) -> bool:
        """Whether nothing that is alive can still come among the n best."""
        alive, best = list(chain(*search.alive)), self._best(search)
        if not alive or len(best) < self.beam.n:
            return not alive
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
        if self.seen is not None:
            self.seen = self.seen[torch.tensor(origins, device=self.request.device)]
        rows = [search.row for search in going for _ in range(self.groups * self.width)]
        self.prompts = [self.request.prompts[row] for row in rows]
        self.letters = [self.request.letters[row] for row in rows]
        self.decoding.advance(origins, self.prompts, [hypothesis.tokens for hypothesis in self.places])


def one_by_one(request: Request) -> SearchSteps:
    """One token after the other: the best or a drawn one. A beam of one is greedy, whatever its length penalty."""
    choice = request.choice
    sampling, penalty = (choice, 1.0) if isinstance(choice, Sampling) else (Sampling(), choice.length_penalty)
    decoding, draws = Decoding(request, ROOM), RandomDraws(request.seeds, sampling.n)
    # Their places are those of their prompts.
    answers = [Hypothesis([], 0.0, row, []) for row in range(len(request.prompts)) for _ in range(sampling.n)]
    decoding.pick([answer.place for answer in answers])
    done: dict[int, Completion] = {}
    alive = places = list(range(len(answers)))
    while True:
        prompts = [request.prompts[answers[number].place] for number in alive]
        generated = [answers[number].tokens for number in alive]
        if generated[0]:
            decoding.advance(places, prompts, generated)
        scores = request.processor.penalize(decoding.scores, prompts, generated)
        letters = [request.letters[answers[number].place] for number in alive]
        allowed = request.processor.forbid(scores, prompts, generated, letters)
        tokens = choose(allowed, sampling, draws.draw(alive) if not sampling.greedy else torch.empty(0))
        logs = scores.log_softmax(-1)
        own = logs.gather(1, tokens[:, None]).squeeze(1)
        if request.processor.busy:  # where nothing is allowed the choice means nothing
            own = own.masked_fill(allowed.gather(1, tokens[:, None]).squeeze(1) == -torch.inf, -torch.inf)
        chosen = torch.stack((own.double(), tokens.double()), -1).tolist()  # one journey from the device for both
        ranked = request.ranked(logs)
        advance: Advance = []
        for place, (number, (logprob, token)) in enumerate(zip(alive, chosen, strict=True)):
            answer = answers[number]
            if math.isnan(logprob):  # also where every token is ruled out, which ends the answer
                check_scores(decoding.scores[place])
            reason: Reason | None = "stop"
            if logprob > -torch.inf:
                answer.tokens.append(int(token))
                answer.logprob += logprob
                advance.append((answer.place, int(token)))
                if ranked is not None:
                    answer.details.append(request.detail(answer.place, logprob, ranked[place], decoding, place))
                reason = request.reason(answer.place, answer.tokens)
            if reason is not None:
                done[number] = request.completion(answer, reason, decoding.windows[place], penalty)
        yield advance
        places = [place for place, number in enumerate(alive) if number not in done]
        if not places:
            every = [done[number] for number in range(len(answers))]
            return [every[first : first + sampling.n] for first in range(0, len(every), sampling.n)]
        alive = [alive[place] for place in places]

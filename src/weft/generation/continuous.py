"""Continuous batching: one decoding step for all active prompts, which enter and leave between two steps.

Each prompt has its own options, and its completions are those of `generate` for it alone. On a GPU prompts stand in
slots, whose steps are captured; elsewhere in rows, where a long prompt is read in parts, together with the steps of the
others. What neither supports (beams, a sliding window, half-typed words, families whose states cannot be joined) runs
in the plain search, a few prompts in turn. R: rows; V: vocabulary.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from weft.errors import NotFinite, UserError, shown
from weft.generation.generate import generate_steps
from weft.generation.live_slots import LiveSlots, fits_slots
from weft.generation.pending import PendingText, alike
from weft.generation.sampling import RandomDraws, RowDraws, Rules, Sampling, choose
from weft.generation.search import Completion, Detail, Hypothesis, Request, check_scores
from weft.generation.slots import NotCaptured
from weft.models.base import Network
from weft.nn.halved import is_watched
from weft.nn.heads import in_full
from weft.nn.linear import decoding
from weft.nn.open_rows import OpenRows, RowReading
from weft.nn.rows import Ragged
from weft.progress import to_logger

ROWS, PLACES = 64, 1 << 16  # defaults of their largest numbers; a place is one token of the cache
CHUNK = 64  # tokens of prompts per step, while other rows wait for them
READ = 512  # tokens of prompts per step, if no other row waits
PLAIN = 4  # plain searches that take turns
BEAM_ROWS = 64  # hypotheses of the prompts in one beam search
NOTHING = Completion([], "length", 0.0, 0.0)  # of a prompt with max_tokens 0


def fits_rows(request: Request) -> bool:
    """Whether a request can be generated in rows that come and go."""
    network = request.decoder
    if not isinstance(network, Network) or network.open_rows is None or is_watched(network):
        return False
    read = request.sources is None or all(request.sources)
    watched = request.attention or request.observer is not None
    return request.sampling is not None and read and not watched and not request.slide and request.spelling is None


@dataclass(frozen=True)
class TokenChoice:
    """The options for choosing the next token; rows with equal ones choose together."""

    sampling: Sampling
    rules: Rules
    ends: frozenset[int]
    alternatives: int | None

    @property
    def counted(self) -> int:
        """The number of tokens from which on the rules do not depend on it."""
        return max(len(self.rules.forced), self.rules.min_tokens)


@dataclass(eq=False, slots=True)
class SampleRow:
    """A row of the decoder: one sample of a prompt, or the prompt while it is read."""

    text: PendingText
    number: int
    sample: int
    choice: TokenChoice
    answer: Hypothesis
    draws: RowDraws | None
    unread: list[int]  # of the prompt

    def group(self) -> tuple[int, int]:
        """The key of the rows that can choose their tokens together."""
        return id(self.choice), min(len(self.answer.tokens), self.choice.counted)


class Continuous:
    """Generates for many prompts at once with one decoder."""

    def __init__(
        self,
        decoder: Any,
        *,
        device: torch.device | str = "cpu",
        rows: int = ROWS,
        places: int = PLACES,
        slots: bool | None = None,
    ) -> None:
        """`rows` and `places`: the most active samples, and the most tokens that they may have together.

        `slots`: whether prompts stand in slots where that is possible; by default on a GPU.
        """
        self.slots = torch.device(device).type == "cuda" if slots is None else slots
        self.live = LiveSlots()
        self.decoder, self.device, self.most_rows, self.most_places = decoder, device, rows, places
        stand_in = getattr(decoder, "stand_in", None) if decoder.SEARCHES else None
        self.network: Any = stand_in() if stand_in is not None else decoder
        self.open: OpenRows | None = None
        self.numbers = itertools.count()
        self.waiting: deque[PendingText] = deque()
        self.reading: list[SampleRow] = []  # rows whose prompts are still being read, the next one first
        self.going: list[SampleRow] = []  # rows that generate
        self.held: dict[PendingText, list[SampleRow]] = {}  # the rows of every text that has entered
        self.needed: dict[PendingText, int] = {}  # the most places that it may need
        self.plain_waiting: deque[PendingText] = deque()
        self.plain: deque[PlainSearch] = deque()
        self.steps = self.generated = self.read = 0  # passes, generated tokens, and tokens that were read

    def admit(
        self, prompt: Sequence[int], *, source: Any = None, seed: int = 0, scores_prompt: bool = False, **options: Any
    ) -> PendingText:
        """Add a prompt, which enters as soon as there is room; `options`: those of a `Request` for one prompt.

        `scores_prompt`: also compute the log-probabilities of the tokens of the prompt, for a decoder.
        """
        options |= {"sources": None if source is None else [source], "seeds": [seed], "device": self.device}
        options["prompts"] = [list(prompt)]
        request = Request(decoder=self.network, **options)
        text = PendingText(request, options, in_rows=fits_rows(request), scores_prompt=scores_prompt)
        if not any(request.limits) and not scores_prompt:
            text.completions = [NOTHING] * request.choice.n
        elif self.slots and not scores_prompt and fits_slots(request):
            self._check_rows(text)
            text.in_rows = True
            self.live.admit(text, seed)
        elif text.in_rows:
            self._check_rows(text)
            self._check_room(text)
            self.waiting.append(text)
        else:
            self.plain_waiting.append(text)
        return text

    @torch.inference_mode()
    def cancel(self, text: PendingText) -> None:
        """Cancel a prompt: its rows are free for the next step."""
        if text.over:
            return
        text.cancelled = True
        if text in self.live.at:
            self.live.cancel(text)
        self._leave([text])
        for queue in (self.waiting, self.plain_waiting):
            if text in queue:
                queue.remove(text)
        for search in [search for search in self.plain if search.over]:
            search.close()
            self.plain.remove(search)

    @property
    def busy(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.live.runners or self.waiting or self.held or self.plain_waiting or self.plain)

    @property
    def generating(self) -> int:
        """Texts that get a token in each step."""
        return len(self.going) + sum(text.entered is not None for text in self.live.at)

    @property
    def rows_held(self) -> int:
        """Rows in use."""
        return sum(self._rows_of(text) for text in self.held)

    @property
    def places_held(self) -> int:
        """Places for which memory is allocated."""
        return 0 if self.open is None else self.open.places

    @torch.inference_mode()
    def step(self) -> list[PendingText]:
        """Take one step for all active prompts; returns those that have got tokens or are over."""
        changed: dict[PendingText, None] = {}
        self._enter(changed)
        entries = self._entries()
        if entries:
            self.steps += 1
            with decoding(fuse=True):
                self._pass(entries, changed)
        if self.live.runners:
            self._step_slots(changed)
        self._search(changed)
        return list(changed)

    def _step_slots(self, changed: dict[PendingText, None]) -> None:
        """Take some steps for the texts in slots; where that fails, they begin anew in rows."""
        self.steps += 1
        grown, failed = self.live.step()
        self.read += self.live.read
        self.generated += self.live.generated
        changed.update(dict.fromkeys(grown))
        if failed:
            reason = shown(str(failed[0][1]) or type(failed[0][1]).__name__, 200)
            to_logger(f"weft: note: {len(failed)} texts begin anew without captured steps: {reason}")
        for text, error in failed:
            self.slots = self.slots and not isinstance(error, NotCaptured)
            if not fits_rows(text.request):
                self._fail([text], error, changed)
                continue
            text.tokens, text.details, text.reasons, text.entered = [], [], [], None
            try:
                self._check_room(text)
            except UserError as problem:
                self._fail([text], problem, changed)
                continue
            self.waiting.append(text)

    # ------------------------------------------------------------------------------------------ active prompts

    @staticmethod
    def _rows_of(text: PendingText) -> int:
        return text.request.choice.n if isinstance(text.request.choice, Sampling) else 1

    def _places_of(self, text: PendingText) -> int:
        """The most places that all samples of a prompt may need."""
        request = text.request
        source = 0 if request.sources is None else len(request.sources[0])
        return self._rows_of(text) * self._opened().needs(len(request.prompts[0]) + request.limits[0], source)

    def _opened(self) -> OpenRows:
        if self.open is None:
            self.open = self.network.open_rows(self.network, self.device)
        return self.open

    def _check_rows(self, text: PendingText) -> None:
        """Refuse a prompt with more samples than there is room for."""
        rows = self._rows_of(text)
        if rows > self.most_rows:
            raise UserError(f"n is {rows}, and there is room for {self.most_rows} texts at a time")

    def _check_room(self, text: PendingText) -> None:
        """Refuse a prompt that would never fit into the cache."""
        rows, places = self._rows_of(text), self._places_of(text)
        if places > self.most_places:
            raise UserError(
                f"a prompt of {len(text.request.prompts[0])} tokens with max_tokens {text.request.limits[0]} and "
                f"n {rows} takes {places} places of the cache, which has {self.most_places}"
            )

    def _enter(self, changed: dict[PendingText, None]) -> None:
        """Let waiting prompts enter, first come, first served, as long as there is room."""
        new = list[PendingText]()
        rows, places = self.rows_held, sum(self.needed.values())
        while self.waiting:
            text = self.waiting[0]
            own, needed = self._rows_of(text), self._places_of(text)
            if rows + own > self.most_rows or places + needed > self.most_places:
                break
            rows, places = rows + own, places + needed
            self.needed[self.waiting.popleft()] = needed
            new.append(text)
        if new:
            try:
                self._take(new)
            except Exception:  # one by one, so that only the faulty one fails
                for text in new:
                    try:
                        self._take([text])
                    except Exception as error:
                        self._fail([text], error, changed)

    def _take(self, pending: Sequence[PendingText]) -> None:
        """Open a row for the prompt of each."""
        requests, numbers = [each.request for each in pending], [next(self.numbers) for _ in pending]
        sources = None if requests[0].sources is None else [each.sources[0] for each in requests if each.sources]
        with decoding(fuse=True):
            self._opened().enter(numbers, sources, [len(each.prompts[0]) for each in requests])
        for text, request, number in zip(pending, requests, numbers, strict=True):
            sampling = request.sampling
            assert sampling is not None, "a beam takes no rows"
            choice = TokenChoice(sampling, request.rules, frozenset(request.ends), request.alternatives)
            known = (row.choice for row in (*self.going, *self.reading))
            choice = next((equal for equal in known if equal == choice), choice)  # groups are made by identity
            generators = [None] * sampling.n if sampling.greedy else RandomDraws(request.seeds, sampling.n).generators
            answers = [Hypothesis([], 0.0, 0, []) for _ in range(sampling.n)]
            text.entered = time.perf_counter()
            text.tokens, text.reasons = [answer.tokens for answer in answers], [None] * sampling.n
            text.details = [answer.details for answer in answers]
            self.held[text] = [
                SampleRow(text, number, sample, choice, answer, None if generator is None else RowDraws(generator), [])
                for sample, (answer, generator) in enumerate(zip(answers, generators, strict=True))
            ]
            first = self.held[text][0]
            first.unread = list(request.prompts[0])
            if text.scores_prompt and not self._opened().PARTS:
                text.prompt_details = scored(self.network, request)
            self.reading.append(first)

    def _leave(self, pending: Iterable[PendingText]) -> None:
        """Free the rows of prompts that are over."""
        gone = {row for text in pending for row in self.held.pop(text, [])}
        if not gone:
            return
        present = [row for row in (*self.reading, *self.going) if row in gone]
        self.reading = [row for row in self.reading if row not in gone]
        self.going = [row for row in self.going if row not in gone]
        self._opened().leave([row.number for row in present])
        for row in gone:
            self.needed.pop(row.text, None)

    def _fail(self, pending: Iterable[PendingText], error: Exception, changed: dict[PendingText, None]) -> None:
        for text in pending:
            text.error = error
            changed[text] = None
            self.needed.pop(text, None)
        self._leave(pending)

    # ------------------------------------------------------------------------------------------ one step

    def _entries(self) -> list[tuple[SampleRow, RowReading]]:
        """What a step reads: the latest token of every row, and parts of the prompts."""
        entries = [(row, RowReading(row.number, row.answer.tokens[-1:])) for row in self.going]
        budget = whole = CHUNK if entries else READ
        for row in self.reading:
            scores, size = row.text.scores_prompt and self._opened().PARTS, len(row.unread)
            if self._opened().PARTS:
                size = min(size, budget, CHUNK if scores else budget)  # the logits of all its tokens need much memory
            elif budget < size and budget < whole:
                break
            if size <= 0:
                break
            budget -= size
            asks = size if scores else int(size == len(row.unread))
            entries.append((row, RowReading(row.number, row.unread[:size], asks)))
        return entries

    def _pass(self, entries: list[tuple[SampleRow, RowReading]], changed: dict[PendingText, None]) -> None:
        """Run the network, and choose tokens from its scores; a prompt that it refuses does not stop the others."""
        opened = self._opened()
        try:
            scores = opened.read([reading for _, reading in entries])
        except Exception as error:
            fresh = [(row, reading) for row, reading in entries if row.unread]
            if not fresh or len(entries) == 1:
                self._fail({row.text: None for row, _ in entries}, error, changed)
                return
            stepping = [entry for entry in entries if not entry[0].unread]
            for entry in fresh:
                self._pass([entry], changed)
            if stepping:
                self._pass(stepping, changed)
            return
        rows, places = list[SampleRow](), list[int]()  # rows that choose a token, and the places of their scores
        asked = 0
        for row, reading in entries:
            first, asked = asked, asked + reading.asks
            self.read += len(reading.tokens)
            if not row.unread:
                rows.append(row)
                places.append(first)
                continue
            if row.text.scores_prompt and opened.PARTS:
                targets = row.unread[1 : len(reading.tokens) + 1]
                row.text.prompt_details += details_of(row.text.request, scores[first : first + len(targets)], targets)
            del row.unread[: len(reading.tokens)]
            self.reading.remove(row)
            if row.unread:
                self.reading.append(row)  # long prompts take turns, so that a short one is read soon
                continue
            if not any(row.text.request.limits):
                self._finish_scored(row.text, changed)
                continue
            twins = self.held[row.text][1:]
            for twin in twins:
                twin.number = next(self.numbers)
            opened.copy(row.number, [twin.number for twin in twins])
            self.going += [row, *twins]
            rows += [row, *twins]
            places += [asked - 1] * (1 + len(twins))
        if rows:
            self._choose(rows, scores if places == list(range(len(scores))) else scores[places], changed)

    def _finish_scored(self, text: PendingText, changed: dict[PendingText, None]) -> None:
        """Finish a prompt that was only to be scored."""
        row = self.held.pop(text)[0]
        self.needed.pop(text, None)
        self._opened().leave([row.number])
        text.completions, changed[text] = [NOTHING] * text.request.choice.n, None

    def _choose(self, rows: list[SampleRow], scores: Tensor, changed: dict[PendingText, None]) -> None:
        """Choose the next token of every row, those with equal options together; rows that are over leave."""
        groups: dict[tuple[int, int], list[int]] = {}
        for place, row in enumerate(rows):
            groups.setdefault(row.group(), []).append(place)
        failed: dict[PendingText, Exception] = {}
        ended = list[SampleRow]()
        for places in groups.values():
            own = [rows[place] for place in places]
            self._choose_alike(own, scores if len(own) == len(rows) else scores[places], failed, ended)
        for row in rows:
            changed[row.text] = None
        done = set[PendingText]()
        for row in ended:
            row.text.reasons[row.sample] = row.text.reasons[row.sample] or "stop"
            if all(reason is not None for reason in row.text.reasons) and row.text not in failed:
                done.add(row.text)
        for text in done:
            text.completions = self._completions(text)
        for text, error in failed.items():
            self._fail([text], error, changed)
        self._leave(done)
        alone = [row for row in ended if row.text in self.held]  # other samples of their prompts go on
        if alone:
            gone = set(alone)
            self.going = [row for row in self.going if row not in gone]
            self._opened().leave([row.number for row in alone])

    def _choose_alike(
        self, rows: list[SampleRow], scores: Tensor, failed: dict[PendingText, Exception], ended: list[SampleRow]
    ) -> None:
        """Choose the next token of rows with equal options: R V."""
        first, sampling = rows[0].text.request, rows[0].choice.sampling
        processor, raw = first.processor, scores
        prompts = [row.text.request.prompts[0] for row in rows]
        generated = [row.answer.tokens for row in rows]
        scores = processor.penalize(scores, prompts, generated)
        allowed = processor.forbid(scores, prompts, generated)
        draws = torch.empty(0)
        if not sampling.greedy:
            draws = torch.tensor([row.draws.take() for row in rows if row.draws is not None], dtype=torch.float64)
        tokens = choose(allowed, sampling, draws)
        if first.alternatives is None:
            own = scores.gather(1, tokens[:, None]).squeeze(1) - scores.logsumexp(-1)
            ranked = None
        else:
            logs = scores.log_softmax(-1)
            own, ranked = logs.gather(1, tokens[:, None]).squeeze(1), first.ranked(logs)
        if processor.busy:  # if no token is allowed, the chosen one is marked as impossible
            own = own.masked_fill(allowed.gather(1, tokens[:, None]).squeeze(1) == -torch.inf, -torch.inf)
        chosen = torch.stack((own.double(), tokens.double()), -1).tolist()
        for place, (row, (logprob, token)) in enumerate(zip(rows, chosen, strict=True)):
            if math.isnan(logprob):  # either a score was NaN, or every token is forbidden, which ends the answer
                try:
                    check_scores(raw[place])
                except NotFinite as error:
                    failed[row.text] = error
                    continue
            if not logprob > -torch.inf:
                ended.append(row)
                continue
            self.generated += 1
            if ranked is not None:
                row.answer.details.append(Detail(logprob, ranked[place], None))
            row.answer.logprob += logprob
            row.answer.tokens.append(int(token))
            try:
                reason = row.text.request.reason(0, row.answer.tokens)
            except Exception as error:
                failed[row.text] = error
                continue
            if reason is not None:
                row.text.reasons[row.sample] = reason
                ended.append(row)

    def _completions(self, text: PendingText) -> list[Completion]:
        request = text.request
        pairs = zip(self.held[text], text.reasons, strict=True)
        return [request.completion(row.answer, reason or "stop", 1, request.penalty) for row, reason in pairs]

    # ------------------------------------------------------------------------------------------ plain searches

    def _search(self, changed: dict[PendingText, None]) -> None:
        """Take one step of the plain search whose turn it is."""
        while self.plain_waiting and len(self.plain) < PLAIN:
            self.plain.append(PlainSearch(self.decoder, self._together()))
        if not self.plain:
            return
        search = self.plain.popleft()
        if search.step():
            self.plain.append(search)
        elif len(search.pending) > 1 and any(text.error is not None for text in search.pending):
            for text in reversed(search.pending):  # one by one, so that only the faulty one fails
                text.error = None
                if not text.cancelled:
                    text.tokens = []
                    self.plain.append(PlainSearch(self.decoder, [text]))
            return
        changed.update(dict.fromkeys(search.pending))

    def _together(self) -> list[PendingText]:
        """The prompt that has waited longest, and others that can share its beam search."""
        first = self.plain_waiting.popleft()
        width = 1 if isinstance(first.request.choice, Sampling) else first.request.choice.width
        if width == 1:
            return [first]
        same = [text for text in self.plain_waiting if alike(text.request, first.request)]
        same = same[: max(0, BEAM_ROWS // width - 1)]
        for text in same:
            self.plain_waiting.remove(text)
        return [first, *same]


class PlainSearch:
    """A plain search for prompts with the same options."""

    def __init__(self, decoder: Any, pending: list[PendingText]) -> None:
        self.pending = pending
        options = {name: value for name, value in pending[0].options.items() if name != "seeds"}
        for name in ("prompts", "sources", "typed"):
            parts = [text.options.get(name) for text in pending]
            if parts[0]:
                options[name] = [part for own in parts for part in own or ()]
        if len(pending) > 1:
            limits = (text.options.get("max_tokens") for text in pending)
            options["max_tokens"] = [limit[0] if isinstance(limit, list) else limit for limit in limits]
            options["stopped"] = self._stopped if any(text.options.get("stopped") for text in pending) else None
        seeds = [seed for text in pending for seed in text.options["seeds"]]
        self.steps = generate_steps(decoder, options.pop("prompts"), seeds=seeds, **options)
        # The steps of a search with several samples do not tell which sample a token belongs to.
        self.streams = [1 if text.request.choice.n == 1 else 0 for text in pending]
        for text, stream in zip(pending, self.streams, strict=True):
            text.tokens = [[] for _ in range(stream)]

    def _stopped(self, row: int, generated: list[int]) -> bool:
        stopped = self.pending[row].request.stopped
        return stopped is not None and stopped(0, generated)

    @property
    def over(self) -> bool:
        return all(text.over for text in self.pending)

    def step(self) -> bool:
        """Take one step; returns whether there are more."""
        try:
            for text in self.pending:
                if text.entered is None:
                    text.entered = time.perf_counter()
                    if text.scores_prompt:
                        text.prompt_details = scored(text.request.decoder, text.request)
            advance = next(self.steps)
        except StopIteration as end:
            for text, completions in zip(self.pending, end.value, strict=True):
                if not text.cancelled:
                    text.completions = completions
            return False
        except Exception as error:
            for text in self.pending:
                text.error = error
            return False
        for row, token in advance:
            if token is not None and self.streams[row]:
                self.pending[row].tokens[0].append(token)
        return True

    def close(self) -> None:
        self.steps.close()


def details_of(request: Request, scores: Tensor, targets: Sequence[int]) -> list[Detail]:
    """The log-probabilities of these tokens, with the likeliest alternatives: n V."""
    logs = scores[: len(targets)].log_softmax(-1)
    own = logs.gather(1, torch.tensor(targets, dtype=torch.int64, device=logs.device)[:, None]).squeeze(1).tolist()
    ranked = request.ranked(logs) or [[] for _ in targets]
    return [Detail(logprob, alternatives, None) for logprob, alternatives in zip(own, ranked, strict=True)]


def scored(network: Any, request: Request) -> list[Detail]:
    """The log-probabilities of all tokens of a prompt but the first, for networks that do not read it in parts."""
    prompt = request.prompts[0]
    if network.SCORES_TEXTS:  # an engine that gives no logits
        return [Detail(logprob, [], None) for logprob in network.text_logprobs([prompt])[0]]
    ragged = Ragged.of([prompt[:-1]] if len(prompt) > 1 else [prompt], request.device)
    hidden = network.next_states(ragged.tokens, ragged.rows)
    details = list[Detail]()
    for first in range(0, len(prompt) - 1, CHUNK):
        targets = prompt[first + 1 : first + 1 + CHUNK]
        details += details_of(request, in_full(network.words(hidden[first : first + len(targets)])), targets)
    return details

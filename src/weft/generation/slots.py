"""Decoding in slots: one step for all rows, captured as a CUDA graph, which also chooses the next tokens.

Each prompt has a slot; one that is done leaves its slot to the next waiting prompt, while the others go on. The host
does not wait for the device after each step: steps are launched in blocks, and the results of a block are read while
the next one runs. The answers are those of the plain search, which handles whatever cannot be captured.
R: rows; V: vocabulary; T: tokens.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from weft.errors import NotFinite
from weft.generation.sampling import DRAWS, RandomDraws, Rules, Sampling, choose
from weft.generation.search import Advance, Completion, Detail, Hypothesis, Request, SearchSteps
from weft.generation.wording import Reason
from weft.models.base import Network
from weft.nn.fixed import has_kernel
from weft.nn.graphs import captured, casts_to, tried_out
from weft.nn.halved import is_watched, places_of
from weft.nn.heads import in_full, narrow_scores
from weft.nn.rows import Ragged, sent

BLOCK = 8  # steps that are launched before their results are read
MOST_ROWS = 1024
ROOMS = 64  # the room of a cache is a multiple of this many places
READ = 1 << 14  # tokens of prompts and sources that are read at a time
FREE = 4  # waiting prompts enter when one slot in so many is free
SHARE = 0.3  # of the free memory that a cache may take
KEPT = 0.05  # of all memory that a cache may keep between two calls
LONGEST = 1 << 14  # tokens that a text may get: memory for all of them is allocated at the start
SLOTS: WeakKeyDictionary[nn.Module, dict[Any, Slots]] = WeakKeyDictionary()  # the last used ones of each network
UNCAPTURED: WeakKeyDictionary[nn.Module, set[Any]] = WeakKeyDictionary()  # kinds of steps whose capture has failed
MOST_FAILED = 8  # kinds, after which a network is not tried any more


def is_plain(rules: Rules) -> bool:
    """Whether rules depend on nothing but the number of tokens of a text and the set of tokens in it."""
    return not (rules.no_repeat or rules.allowed or rules.choices or any(len(each) > 1 for each in rules.banned))


def fits(request: Request) -> bool:
    """Whether a request can be decoded in slots: its network supports them, and its rules are about single tokens."""
    network = request.decoder
    if not isinstance(network, Network) or network.in_slots is None or not is_plain(request.rules):
        return False
    watched = request.attention or request.observer is not None or is_watched(network)
    endless = request.slide or max(request.limits) > LONGEST
    return not watched and not endless and request.spelling is None


class NotCaptured(Exception):
    """A step that cannot be captured here; nothing has been generated yet."""


def on(device: torch.device, numbers: Sequence[int]) -> Tensor:
    """A tensor of integers on a device."""
    return sent(torch.tensor(numbers, dtype=torch.int64, device="cpu"), device)


class Started:
    """Prompts that were read together and wait for slots, in order."""

    def __init__(self, request: Request, numbers: Sequence[int]) -> None:
        network: Any = request.decoder
        device = torch.device(request.device)
        source = None
        if request.sources is not None:
            source = Ragged.of([request.sources[number] for number in numbers], device)
        prompts = Ragged.of([request.prompts[number] for number in numbers], device)
        self.numbers, self.taken = numbers, 0
        with narrow_scores():
            self.scores, self.state = network.start(prompts, source)

    @property
    def left(self) -> int:
        return len(self.numbers) - self.taken

    def take(self, count: int) -> tuple[Sequence[int], slice]:
        """The numbers of the next prompts, and their rows in the state."""
        first, self.taken = self.taken, self.taken + count
        return self.numbers[first : self.taken], slice(first, self.taken)


class Slots(ABC):
    """The tensors of a number of slots, and the step that works on them."""

    copies: int  # rows per slot

    def __init__(self, request: Request, slots: int, copies: int, room: int, source_room: int, length: int) -> None:
        network: Any = request.decoder
        self.network, self.device = network, torch.device(request.device)
        self.rules, self.ends = request.rules, sorted(request.ends)
        self.copies, self.size, self.room, self.source_room, self.length = copies, slots, room, source_room, length
        rows = slots * copies
        self.ending = torch.tensor(self.ends, dtype=torch.int64, device=self.device)
        # V bool, instead of `torch.isin`: with many end tokens that sorts, which cannot be captured.
        words = max([network.config.vocabulary, *(end + 1 for end in self.ends)])
        self.is_end = torch.zeros(words, dtype=torch.bool, device=self.device).index_fill_(0, self.ending, True)
        self.banned = torch.tensor(
            sorted({each[0] for each in self.rules.banned}), dtype=torch.int64, device=self.device
        )
        self.forced = torch.tensor(self.rules.forced, dtype=torch.int64, device=self.device)
        self.tokens = torch.zeros(rows, dtype=torch.int64, device=self.device)  # the latest token of each row
        self.state: Any = None  # allocated when the first prompts have been read
        self.scores = torch.empty(0)  # R V: logits of the next token, in the precision of the network
        self.seen: Tensor | None = None  # R V bool: tokens of a text, if the repetition penalty needs them
        self.graph: torch.cuda.CUDAGraph | None = None

    def admit(self, request: Request, started: Started, count: int, slots: Sequence[int]) -> None:
        """Put the next prompts that were read into these slots."""
        numbers, chosen = started.take(count)
        if self.state is None:
            self.state = self.network.in_slots(started.state, self.size, self.copies, self.room, self.source_room)
            self.scores = started.scores.new_zeros(self.size * self.copies, started.scores.shape[-1])
            if self.rules.repetition_penalty != 1.0:
                self.seen = torch.zeros_like(self.scores, dtype=torch.bool)
        where = on(self.device, slots)
        rows = (where[:, None] * self.copies + torch.arange(self.copies, device=self.device)).flatten()
        self.state.admit(where, started.state, chosen)
        self.scores.index_copy_(0, rows, started.scores[chosen].repeat_interleave(self.copies, 0))
        if self.seen is not None:
            self.seen.index_fill_(0, rows, False)
            for slot, number in zip(slots, numbers, strict=True):
                held = on(self.device, request.prompts[number])
                self.seen[slot * self.copies : (slot + 1) * self.copies].index_fill_(1, held, True)
        self.begin(request, numbers, slots, where)

    def allowed(self, scores: Tensor, counts: Tensor) -> Tensor:
        """The scores with minus infinity for forbidden tokens; `counts` (R): tokens that each row has."""
        rules = self.rules
        if len(self.banned):
            scores = scores.index_fill(1, self.banned, -torch.inf)
        if rules.min_tokens and self.ends:
            early = (counts < rules.min_tokens)[:, None]
            masked = scores.index_fill(1, self.ending, -torch.inf)
            scores = torch.where(early, masked, scores)
        if rules.forced:
            due = self.forced[counts.clamp(max=len(self.forced) - 1)][:, None]
            kept = torch.full_like(scores, -torch.inf).scatter(1, due, self.penalized().gather(1, due))
            scores = torch.where((counts < len(self.forced))[:, None], kept, scores)
        return scores

    @property
    def kernels(self) -> bool:
        """Whether there are kernels that choose tokens, for the dtype of the scores."""
        return self.device.type == "cuda" and self.scores.dtype != torch.float64 and has_kernel()

    @property
    def busy(self) -> bool:
        """Whether the rules forbid tokens."""
        return bool(len(self.banned) or self.rules.min_tokens or self.rules.forced)

    def penalized(self) -> Tensor:
        """The scores in float32 at least, after the repetition penalty."""
        scores, penalty = in_full(self.scores), self.rules.repetition_penalty
        if self.seen is None:
            return scores
        return torch.where(self.seen, torch.where(scores < 0, scores * penalty, scores / penalty), scores)

    def read(self, tokens: Tensor) -> None:
        """Let the network read the next token of every row."""
        if self.seen is not None:
            self.seen.scatter_(1, tokens[:, None], True)
        with narrow_scores():
            self.scores.copy_(self.network.step(tokens, self.state.state))
        self.state.settle()

    @abstractmethod
    def begin(self, request: Request, numbers: Sequence[int], slots: Sequence[int], where: Tensor) -> None:
        """Reset the slots of new prompts."""

    @abstractmethod
    def step(self) -> None:
        """Choose the next token of every row, and read it."""

    @abstractmethod
    def outputs(self) -> list[Tensor]:
        """The tensors that the host reads after some steps."""

    def launch(self, steps: int) -> None:
        """Take so many steps; on a GPU without waiting for them."""
        if self.device.type != "cuda":
            for _ in range(steps):
                self.step()
            return
        if self.graph is None:
            self.graph = self._captured()
        for _ in range(steps):
            self.graph.replay()

    def _captured(self) -> torch.cuda.CUDAGraph:
        """Capture the step as a graph; the tensors that the warm-up changes are restored."""
        held = self.tensors()
        before = [tensor.clone() for tensor in held]
        with tried_out(self.device):
            for _ in range(2):
                self.step()
        graph = torch.cuda.CUDAGraph()
        try:
            with captured(graph, self.device):
                self.step()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise NotCaptured(str(error).splitlines()[0]) from None
        for tensor, old in zip(held, before, strict=True):
            tensor.copy_(old)
        return graph

    def tensors(self) -> list[Tensor]:
        """All tensors that a step changes, except for places of the cache beyond the end of a text."""
        state = self.state
        parts = [*getattr(state, "parts", ()), getattr(state, "lengths", None), getattr(state, "origin", None)]
        own = [tensor for tensor in vars(self).values() if isinstance(tensor, Tensor)]
        return [*own, *(part for part in parts if part is not None)]

    @property
    def memory(self) -> int:
        """Bytes of all tensors."""
        state = self.state
        layers = [*getattr(state, "layers", ()), *getattr(getattr(state, "memory", None), "layers", ())]
        return sum(x.nbytes for x in self.tensors()) + sum(x.keys.nbytes + x.values.nbytes for x in layers)


class Report:
    """Outputs of slots that are being copied to the host."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.event: Any = None
        if not tensors[0].is_cuda:
            self.copies = [tensor.clone() for tensor in tensors]
            return
        with torch.cuda.device_of(tensors[0]):  # type: ignore[no-untyped-call]
            self.copies = [tensor.to("cpu", non_blocking=True) for tensor in tensors]
            self.event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self.event.record()

    def wait(self) -> list[Tensor]:
        """Wait for the copies."""
        if self.event is not None:
            self.event.synchronize()
        return self.copies


class SampleSlots(Slots):
    """Slots for greedy and sampled texts; the samples of a prompt are the rows of its slot."""

    def __init__(self, request: Request, sampling: Sampling, *sizes: int) -> None:
        super().__init__(request, *sizes)
        self.sampling = sampling
        self.alternatives = min(request.alternatives or 0, self.network.config.vocabulary)
        rows, length, device = self.size * self.copies, self.length, self.device
        self.counts = torch.zeros(rows, dtype=torch.int64, device=device)
        self.limits = torch.zeros(rows, dtype=torch.int64, device=device)
        self.done = torch.ones(rows, dtype=torch.bool, device=device)
        self.written = torch.zeros(rows, length, dtype=torch.int64, device=device)
        self.logprobs = torch.zeros(rows, length, dtype=torch.float64, device=device)
        ranks = rows, length, self.alternatives
        self.ranked = torch.zeros(ranks, dtype=torch.int64, device=device)
        self.ranked_logprobs = torch.zeros(ranks, dtype=torch.float64, device=device)
        self.draws = torch.zeros(rows, 0 if sampling.greedy else -(-length // DRAWS) * DRAWS, dtype=torch.float64)
        self.draws = self.draws.to(device)

    def begin(self, request: Request, numbers: Sequence[int], slots: Sequence[int], where: Tensor) -> None:
        rows = (where[:, None] * self.copies + torch.arange(self.copies, device=self.device)).flatten()
        limits = on(self.device, [request.limits[number] for number in numbers])
        for tensor in (self.counts, self.done):
            tensor.index_fill_(0, rows, 0)
        self.limits.index_copy_(0, rows, limits.repeat_interleave(self.copies))

    def step(self) -> None:
        if self.sampling.greedy and not self.busy and not self.alternatives and self.kernels:
            self._best()
            return
        scores, going, counts = self.penalized(), ~self.done, self.counts
        allowed = self.allowed(scores, counts)
        place = counts.clamp(max=self.length - 1)[:, None]  # rows that are done keep what is there
        draws = torch.empty(0) if self.sampling.greedy else self.draws.gather(1, place).squeeze(1)
        tokens = choose(allowed, self.sampling, draws)
        logs = scores.log_softmax(-1)
        own = logs.gather(1, tokens[:, None]).squeeze(1).double()
        if self.busy:  # if no token is allowed, the chosen one is marked as impossible
            own = own.masked_fill(allowed.gather(1, tokens[:, None]).squeeze(1) == -torch.inf, -torch.inf)
        going_on = going[:, None]
        self.written.scatter_(1, place, torch.where(going_on, tokens[:, None], self.written.gather(1, place)))
        self.logprobs.scatter_(1, place, torch.where(going_on, own[:, None], self.logprobs.gather(1, place)))
        if self.alternatives:
            values, ranked = logs.topk(self.alternatives)
            index = place[..., None].expand(-1, 1, self.alternatives)
            for kept, new in ((self.ranked, ranked), (self.ranked_logprobs, values.double())):
                kept.scatter_(1, index, torch.where(going_on[..., None], new[:, None], kept.gather(1, index)))
        impossible = own == -torch.inf
        counts.add_(going & ~impossible)
        ended = impossible | (counts >= self.limits)
        if self.ends:
            ended = ended | self.is_end[tokens]
        self.done.logical_or_(ended)
        self.tokens.copy_(tokens)
        self.read(self.tokens)

    def _best(self) -> None:
        """The same for plain greedy search."""
        from weft.nn.choice_kernels import take_best

        state = (self.written, self.logprobs, self.counts, self.limits, self.done, self.ending)
        take_best(self.scores if self.seen is None else self.penalized(), self.tokens, *state)
        self.read(self.tokens)

    def outputs(self) -> list[Tensor]:
        ranked = [self.ranked, self.ranked_logprobs] if self.alternatives else []
        return [self.done, self.counts, self.written, self.logprobs, *ranked]


class SlotRunner(ABC):
    """Runs one request in slots."""

    slots: Slots

    def __init__(self, request: Request, copies: int) -> None:
        self.request, self.copies = request, copies
        self.waiting = deque(range(len(request.prompts)))
        self.started: Started | None = None
        self.at: list[int | None] = []  # the prompt in each slot
        self.launched: list[int] = []  # steps that each slot was launched for
        self.completions: list[list[Completion] | None] = [None] * len(request.prompts)

    def sizes(self) -> tuple[int, int, int, int, int]:
        """Number of slots, rows per slot, places of a row and of a source, and generated tokens at most."""
        request = self.request
        longest = max(len(prompt) + limit for prompt, limit in zip(request.prompts, request.limits, strict=True))
        room = -(-longest // ROOMS) * ROOMS
        room = room if request.context is None else min(room, request.context)
        source = max((len(source) for source in request.sources), default=0) if request.sources is not None else 0
        length = -(-max(request.limits) // ROOMS) * ROOMS
        count = 1 << (len(request.prompts) - 1).bit_length()  # one of few sizes, so that graphs can be used again
        while count > 1 and count * self.copies > self.most_rows(room, source):
            count //= 2
        return count, self.copies, room, -(-source // ROOMS) * ROOMS, length

    def most_rows(self, room: int, source: int) -> int:
        """Rows that fit into memory."""
        device = torch.device(self.request.device)
        if device.type != "cuda":
            return MOST_ROWS
        c: Any = self.request.decoder
        layers, width = c.config.decoder_layers or c.config.layers, c.config.width
        each = 2 * layers * width * (room + source) * c.tokens.weight.element_size() + 16 * c.config.vocabulary
        return int(min(MOST_ROWS, max(1, SHARE * torch.cuda.mem_get_info(device)[0] // each)))

    @abstractmethod
    def make(self, *sizes: int) -> Slots:
        """The slots that this request needs."""

    @abstractmethod
    def key(self) -> tuple[Any, ...]:
        """What a captured step depends on besides the sizes."""

    @property
    def failed(self) -> set[Any]:
        """The kinds of steps of this network that cannot be captured."""
        return UNCAPTURED.setdefault(self.request.decoder, set())  # type: ignore[arg-type]

    @property
    def kind(self) -> tuple[Any, ...]:
        """What it depends on whether a step can be captured."""
        device = torch.device(self.request.device)
        return (*self.key(), str(device), casts_to(device))

    @property
    def may_capture(self) -> bool:
        """Whether steps of this kind have not failed to be captured: a server would try it at every request."""
        return self.kind not in self.failed and len(self.failed) < MOST_FAILED

    @abstractmethod
    def collect(self, outputs: list[Tensor], slots: Sequence[int]) -> Advance:
        """The progress of these slots; sets the `completions` of prompts that are done."""

    def finish(self) -> None:  # noqa: B027
        """Called after the last block."""

    def prepare(self, slots: Sequence[int], steps: int) -> None:  # noqa: B027
        """Called before steps are launched for these slots."""

    def run(self) -> SearchSteps:
        """Run blocks of steps until every prompt has its completions."""
        sizes = self.sizes()
        self.slots = self._slots(sizes)
        self.at, self.launched = [None] * sizes[0], [0] * sizes[0]
        under_way: tuple[Report, dict[int, int]] | None = None
        while True:
            self._admit()
            occupied = {slot: number for slot, number in enumerate(self.at) if number is not None}
            limits = self.request.limits
            left = max((limits[number] - self.launched[slot] for slot, number in occupied.items()), default=0)
            after: tuple[Report, dict[int, int]] | None = None
            if left > 0:
                steps = min(BLOCK, left)
                self.prepare(list(occupied), steps)
                self.slots.launch(steps)
                for slot in occupied:
                    self.launched[slot] += steps
                after = Report(self.slots.outputs()), occupied
            if under_way is None and after is None:
                break
            if under_way is not None:
                report, then = under_way
                still = [slot for slot, number in then.items() if self.at[slot] == number]
                advance = self.collect(report.wait(), still)
                for slot in still:
                    if self.completions[then[slot]] is not None:
                        self.at[slot] = None
                if advance:
                    yield advance
            under_way = after
        self.finish()
        self._keep()
        return [each if each is not None else [] for each in self.completions]

    def _admit(self) -> None:
        """Put waiting prompts into free slots, several at a time, since each time needs dozens of kernel launches."""
        free = [slot for slot, number in enumerate(self.at) if number is None]
        if len(free) < min(len(self.at) // FREE, self._left):
            return
        while free and self._left:
            if self.started is None or not self.started.left:
                self.started = Started(self.request, self._next())
            count = min(len(free), self.started.left)
            slots, free = free[:count], free[count:]
            numbers = self.started.numbers[self.started.taken :][:count]
            self.slots.admit(self.request, self.started, count, slots)
            for slot, number in zip(slots, numbers, strict=True):
                self.at[slot], self.launched[slot] = number, 0

    @property
    def _left(self) -> int:
        """Prompts that have no slot yet."""
        return len(self.waiting) + (0 if self.started is None else self.started.left)

    def _next(self) -> list[int]:
        """The next prompts to read together: as many as a rectangle of `READ` tokens holds."""
        numbers, longest, sources = list[int](), 0, self.request.sources
        while self.waiting:
            number = self.waiting[0]
            size = len(self.request.prompts[number]) + (0 if sources is None else len(sources[number]))
            longest = max(longest, size)
            if numbers and longest * (len(numbers) + 1) > READ:
                break
            numbers.append(self.waiting.popleft())
        return numbers

    def _slots(self, sizes: tuple[int, int, int, int, int]) -> Slots:
        """The slots of an earlier request of this kind, with their graph, or new ones."""
        network: Any = self.request.decoder
        self.name = (*sizes, *self.key(), places_of(network), casts_to(torch.device(self.request.device)))
        kept = SLOTS.setdefault(self.request.decoder, {})  # type: ignore[arg-type]
        slots = kept.pop(self.name, None)
        if slots is None:
            return self.make(*sizes)
        slots.network = network
        return slots

    def _keep(self) -> None:
        """Keep the slots and their graph for the next request of this kind, unless they take too much memory."""
        kept: dict[Any, Slots] = SLOTS.setdefault(self.request.decoder, {})  # type: ignore[arg-type]
        if self.slots.device.type != "cuda":
            return
        if self.slots.memory < KEPT * torch.cuda.mem_get_info(self.slots.device)[1]:
            self.slots.network = None  # a reference from the value of a WeakKeyDictionary would keep the network alive
            kept[self.name] = self.slots
            for name in list(kept)[:-2]:  # pop with a default, since other threads may remove the same
                kept.pop(name, None)


class SampleRunner(SlotRunner):
    """Greedy and sampled completions."""

    slots: SampleSlots

    def __init__(self, request: Request, sampling: Sampling, penalty: float) -> None:
        super().__init__(request, sampling.n)
        self.sampling, self.penalty = sampling, penalty
        self.random = None if sampling.greedy else RandomDraws(request.seeds, sampling.n)
        self.drawn: dict[int, int] = {}  # numbers that the rows of a slot have
        self.answers = [
            [Hypothesis([], 0.0, row, []) for _ in range(sampling.n)] for row in range(len(request.prompts))
        ]
        self.results: list[list[Completion | None]] = [[None] * sampling.n for _ in request.prompts]

    def make(self, *sizes: int) -> Slots:
        return SampleSlots(self.request, self.sampling, *sizes)

    def key(self) -> tuple[Any, ...]:
        request = self.request
        return "sample", self.sampling, request.rules, tuple(sorted(request.ends)), request.alternatives

    def prepare(self, slots: Sequence[int], steps: int) -> None:
        """Draw more random numbers for rows that run out of them, each from its own seed."""
        if self.random is None:
            return
        places, drawn = list[tuple[int, int]](), list[Tensor]()
        for slot in slots:
            number = self.at[slot]
            assert number is not None
            own = self.random.generators[number * self.copies : (number + 1) * self.copies]
            if not self.launched[slot]:
                self.drawn[slot] = 0
            while self.drawn[slot] < min(self.launched[slot] + steps, self.slots.draws.shape[1]):
                places.append((slot * self.copies, self.drawn[slot]))
                drawn.append(
                    torch.stack([torch.rand(DRAWS, generator=each, dtype=torch.float64, device="cpu") for each in own])
                )
                self.drawn[slot] += DRAWS
        if not drawn:
            return
        arrived = sent(torch.stack(drawn), self.slots.device)
        for (first, begin), numbers in zip(places, arrived, strict=True):
            self.slots.draws[first : first + self.copies, begin : begin + DRAWS] = numbers

    def collect(self, outputs: list[Tensor], slots: Sequence[int]) -> Advance:
        done, counts, written, logprobs, *ranked = outputs
        advance: Advance = []
        for slot in slots:
            number = self.at[slot]
            assert number is not None
            for copy, answer in enumerate(self.answers[number]):
                row = slot * self.copies + copy
                if self.results[number][copy] is not None:
                    continue
                first, last = len(answer.tokens), int(counts[row])
                new = written[row, first:last].tolist()
                chances = logprobs[row, first : last + 1].tolist()
                reason: Reason | None = None
                for place, (token, chance) in enumerate(zip(new, chances, strict=False), first):
                    if math.isnan(chance):
                        raise NotFinite()
                    answer.tokens.append(token)
                    answer.logprob += chance
                    if self.request.alternatives is not None:
                        answer.details.append(self._detail(chance, ranked, row, place))
                    advance.append((number, token))
                    reason = self.request.reason(number, answer.tokens)
                    if reason is not None:
                        break
                if reason is None and bool(done[row]):  # no token was allowed
                    if chances and math.isnan(chances[-1]):
                        raise NotFinite()
                    reason = "stop"
                if reason is not None:
                    self.results[number][copy] = self.request.completion(answer, reason, 1, self.penalty)
            if all(each is not None for each in self.results[number]):
                self.completions[number] = [each for each in self.results[number] if each is not None]
                self.slots.done[slot * self.copies : (slot + 1) * self.copies] = True  # a stop string ends a row here
        return advance

    def _detail(self, chance: float, ranked: list[Tensor], row: int, place: int) -> Detail:
        if not ranked:
            return Detail(chance, [], None)
        tokens, values = (each[row, place].tolist() for each in ranked)
        return Detail(chance, list(zip(tokens, values, strict=True)), None)

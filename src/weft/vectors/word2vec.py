"""word2vec (Mikolov et al., 2013): skip-gram as dense products over chunks of text, and CBOW; gradients written out.

Noise is drawn for a whole chunk and weighed, so that each neighbor has as much as it would have alone.

n: chunks; c: centers of a chunk; j: places of a chunk and around it; k: words of noise; d: width; v: words.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.data.chance import key_of
from weft.vectors.plan import Learning

# Centers and words of noise of a chunk. More centers waste products on places that none is near to, fewer make small
# products. A center by itself would draw about 30 words for its 6 neighbors.
CHUNK, DRAWN = 32, 32
NOISE_POWER = 0.75  # noise words are drawn by their counts to this power
LIMIT = 2.5  # how many times the mean of its pushes a row moves at most in one step


class Push(NamedTuple):
    """Where some rows of a table are pushed: by how much the text becomes likelier, and by how many pairs."""

    rows: Tensor  # .. d
    pairs: Tensor  # ..: neighbors and words of noise that push, each weighed as it counts


def skip_gram(centers: Tensor, places: Tensor, noise: Tensor, near: Tensor, negatives: float) -> tuple[Push, ...]:
    """Gradients of the log probability that each center has these neighbors and not the noise, for all three."""
    # centers: n c d; places: n j d; noise: n k d; near: n c j of 0 and 1; negatives: words of noise for each neighbor
    count = near.sum(2, keepdim=True)  # n c 1
    share = negatives / noise.shape[1]
    pull = against(centers, places.mT).sigmoid_().mul_(near)  # n c j
    push = torch.bmm(centers, noise.mT).sigmoid_().mul_(count * share)  # n c k
    return (
        Push(torch.bmm(pull, places).baddbmm_(push, noise, alpha=-1), count[..., 0] * (1 + negatives)),
        Push(torch.bmm(pull.mT, centers), near.sum(1)),
        Push(against(push.mT, centers), (count.sum(1) * share).expand(noise.shape[:2])),
    )


def against(left: Tensor, right: Tensor) -> Tensor:
    """Minus the product, without a pass to turn the sign."""
    return torch.baddbmm(left.new_empty(()), left, right, beta=0, alpha=-1)


def loss_of(hidden: Tensor, scores: Tensor, noise: Tensor, right: Tensor, negatives: float) -> Tensor:
    """What the gradients are of: the log probability, negative, summed; `scores` and those that are `right`: n c j."""
    log = torch.nn.functional.logsigmoid
    wrong = (log(-(hidden @ noise.mT)) * right.sum(2, keepdim=True)).sum()
    return -((log(scores) * right).sum() + wrong * (negatives / noise.shape[1]))


def kept_shares(counts: NDArray[np.int64], sample: float) -> NDArray[np.float64]:
    """How often each word stays when frequent ones are thinned out, as word2vec's program does it."""
    shares = counts / max(1, counts.sum())
    with np.errstate(divide="ignore"):
        kept = np.sqrt(sample / shares) + sample / shares if sample else np.ones(len(counts))
    return np.where(counts > 0, np.minimum(kept, 1), 0)  # what is never counted, the unknown word, never stays


Moved = tuple[Tensor, Push]  # numbers of words, and where they are pushed
Batch = TypeVar("Batch")


class Word2Vec(ABC, Generic[Batch]):
    """The two tables of vectors, and how a block of text moves them."""

    SPARE = 0  # threads that learning leaves to the making of batches, which goes on beside it

    def __init__(self, plan: Learning, counts: NDArray[np.int64], seed: int, device: torch.device) -> None:
        """`counts` of each word of the vocabulary; 0 for the unknown one, which is skipped wherever it stands."""
        self.plan, self.seed, self.device = plan, seed, device
        words, width = len(counts), plan.width
        first = torch.Generator().manual_seed(key_of(seed, "word vectors") >> 1)
        self.inner = ((torch.rand(words, width, generator=first) - 0.5) / width).to(device)
        self.outer = torch.zeros(words, width, device=device)
        self.stays = torch.from_numpy(kept_shares(counts, plan.sample)).to(device)
        shares = counts.astype(np.float64) ** NOISE_POWER * (counts > 0)
        self.noise = torch.from_numpy(np.cumsum(shares) / shares.sum()).to(device)
        # Torch's own threads wait for each other after every small product; two that take half of a batch each do not.
        self.threads = 1 if device.type != "cpu" else max(1, (plan.threads or 1) - self.SPARE)
        self.pool: ThreadPoolExecutor | None = None
        if self.threads > 1:
            self.pool = ThreadPoolExecutor(self.threads - 1, initializer=torch.set_num_threads, initargs=(1,))

    def close(self) -> None:
        if self.pool is not None:
            self.pool.shutdown()

    def tensors(self) -> dict[str, Tensor]:
        return {"inner": self.inner, "outer": self.outer}

    def matrix(self) -> Tensor:
        """v d: the vectors that are kept."""
        return self.inner

    def prepare(self, words: Tensor, documents: Tensor, number: int) -> list[Batch]:
        """The block of this number, thinned out and shuffled; all random numbers are drawn here."""
        generator = torch.Generator(self.device).manual_seed(key_of(self.seed, "block", number) >> 1)
        thrown = torch.rand(len(words), generator=generator, dtype=torch.float64, device=self.device)
        stays = thrown < self.stays[words]
        return self._batches(words[stays], documents[stays], generator)

    def learn(self, batches: list[Batch], rates: tuple[float, float]) -> float:
        """Go through a block; the rate falls from the first to the second. The loss per pair of some of it."""
        if not batches:
            return 0.0
        for turn, batch in enumerate(batches):
            self._step(batch, rates[0] + (rates[1] - rates[0]) * turn / len(batches))
        return self._loss(batches[0])

    @abstractmethod
    def _batches(self, words: Tensor, documents: Tensor, generator: torch.Generator) -> list[Batch]: ...

    @abstractmethod
    def _step(self, batch: Batch, learning_rate: float) -> None:
        """One update. Threads share out the batch, then the tables, so that their number leaves no trace."""

    @abstractmethod
    def _loss(self, batch: Batch) -> float: ...

    def _drawn(self, *size: int, generator: torch.Generator) -> Tensor:
        """Words of noise."""
        drawn = torch.rand(*size, dtype=torch.float64, generator=generator, device=self.device)
        return torch.searchsorted(self.noise, drawn).clamp_(max=len(self.noise) - 1)

    def _each(self, work: Any, parts: Sequence[Any]) -> list[Any]:
        if self.pool is None:
            return [work(part) for part in parts]
        others = [self.pool.submit(work, part) for part in parts[1:]]
        return [work(parts[0]), *(other.result() for other in others)]


class Some(NamedTuple):
    """Some chunks of a block, each with how far its centers look and its noise."""

    chunks: Chunks
    part: Tensor  # n: numbers of chunks
    reach: Tensor  # of all chunks, c 1
    noise: Tensor  # of all chunks, k


class SkipGram(Word2Vec[Some]):
    """Each word foretells its neighbors."""

    def __init__(self, plan: Learning, counts: NDArray[np.int64], seed: int, device: torch.device) -> None:
        super().__init__(plan, counts, seed, device)
        assert plan.window is not None
        places = torch.arange(-plan.window, CHUNK + plan.window, device=device)
        self.distance = (places - torch.arange(CHUNK, device=device)[:, None]).abs().int()  # c j
        self.distance[self.distance == 0] = 1 << 20  # no word is its own neighbor

    def _batches(self, words: Tensor, documents: Tensor, generator: torch.Generator) -> list[Some]:
        window = self.plan.window or 1
        chunks = Chunks.of(words, documents.int(), CHUNK, window)
        count = len(chunks.words)
        order = torch.randperm(count, generator=generator, device=self.device)
        size = (count, CHUNK, 1)
        reach = torch.randint(1, window + 1, size, dtype=torch.int32, generator=generator, device=self.device)
        noise = self._drawn(count, DRAWN, generator=generator)
        parts = torch.split(order, max(1, (self.plan.batch or 1) // CHUNK)) if count else ()
        return [Some(chunks, part, reach, noise) for part in parts]

    def _step(self, batch: Some, learning_rate: float) -> None:
        parts = [batch._replace(part=part) for part in batch.part.chunk(self.threads)]
        # In the order that one thread would have, since sums of floats depend on it.
        inner, outer, noises = (list(some) for some in zip(*self._each(self._pushes, parts), strict=True))
        work = ((self.inner, inner), (self.outer, [*outer, *noises]))
        self._each(lambda one: move(one[0], one[1], learning_rate), work)

    def _loss(self, batch: Some) -> float:
        centers, places, noise, near, _ = self._gathered(batch._replace(part=batch.part[: 2048 // CHUNK]))
        loss = loss_of(centers, centers @ places.mT, noise, near, self.plan.negatives)
        return float(loss / near.sum().clamp(min=1))

    def _gathered(self, some: Some) -> tuple[Tensor, Tensor, Tensor, Tensor, tuple[Tensor, Tensor, Tensor]]:
        """The vectors of some chunks, which of them are neighbors, and the numbers of their words."""
        chunks, part, reach, noise = some
        window = self.plan.window or 1
        words, documents = chunks.words.index_select(0, part), chunks.documents.index_select(0, part)  # n j
        drawn = noise.index_select(0, part)  # n k
        middle = slice(window, window + CHUNK)
        center, own = words[:, middle], documents[:, middle, None]
        near = (self.distance <= reach.index_select(0, part)).logical_and_(documents[:, None, :] == own)
        near.logical_and_(own >= 0)
        centers, places, wrong = rows_of(self.inner, center), rows_of(self.outer, words), rows_of(self.outer, drawn)
        return centers, places, wrong, near.to(centers.dtype), (center, words, drawn)

    def _pushes(self, some: Some) -> tuple[Moved, Moved, Moved]:
        """What moves in the inner table, what in the outer, and the noise there."""
        centers, places, wrong, near, (center, words, drawn) = self._gathered(some)
        pushes = skip_gram(centers, places, wrong, near, self.plan.negatives)
        return (center, pushes[0]), (words, pushes[1]), (drawn, pushes[2])


class Chunks(NamedTuple):
    """A run of words cut into chunks with what stands around each; where nothing stands, document -1."""

    words: Tensor  # n j
    documents: Tensor  # n j

    @staticmethod
    def of(words: Tensor, documents: Tensor, chunk: int, window: int) -> Chunks:
        after = window + -len(words) % chunk
        words = torch.nn.functional.pad(words, (window, after))
        documents = torch.nn.functional.pad(documents, (window, after), value=-1)
        size = chunk + 2 * window
        if len(words) < size:
            return Chunks(words.new_zeros(0, size), documents.new_zeros(0, size))
        return Chunks(words.unfold(0, size, chunk), documents.unfold(0, size, chunk))


def rows_of(table: Tensor, numbers: Tensor) -> Tensor:
    return table.index_select(0, numbers.reshape(-1)).view(*numbers.shape, -1)


def move(table: Tensor, moved: list[Moved], learning_rate: float) -> None:
    """One step uphill: each row by the rate times the sum of its pushes, but by no more than LIMIT times their mean."""
    # A batch holds a frequent word hundreds of times: all its pushes at once would throw it far beyond the goal.
    pairs = table.new_zeros(len(table))
    for numbers, push in moved:
        pairs.index_add_(0, numbers.reshape(-1), push.pairs.reshape(-1))
    for numbers, push in moved:
        scale = limited(pairs.index_select(0, numbers.reshape(-1)), learning_rate)
        table.index_add_(0, numbers.reshape(-1), push.rows.flatten(0, -2).mul_(scale[:, None]))


def limited(pairs: Tensor, learning_rate: float) -> Tensor:
    """What the pushes of a row with so many pairs are multiplied with: the rate, or less so that LIMIT holds."""
    return LIMIT / pairs.clamp(min=LIMIT / learning_rate)


# ------------------------------------------------------------------------------------------------------------ CBOW
# The mean of a word's neighbors foretells it. The sum of some rows of a table is one bag: the neighbors of a center are
# a bag of the inner table; the other way round, what pushes a word is a bag of the centers that it stands near to, so
# that each word is written to once in a batch. Both lists are made ahead, for a whole block of text, and so is all that
# needs no vector. Words of noise are drawn for a group of centers.
# n: groups; c: centers of a group; m: neighbors of all; u: different words among them.

# Centers and words of noise of a group: one by itself would draw 5. More of both make larger products, of more work;
# with 8 words it was a tenth faster and knew fewer analogies (0.174 for 0.184). Centers are shuffled one by one: in
# runs of 4 to 32, which share their neighbors' vectors, it was a tenth faster too, and learned far less.
GROUP, GROUP_NOISE = 64, 16


class Bags(NamedTuple):
    """Sums of rows: bag i is of those whose numbers lie from starts[i] to starts[i+1]."""

    rows: Tensor
    starts: Tensor

    def sums(self, table: Tensor) -> Tensor:
        return torch.embedding_bag(table, self.rows, self.starts, mode=0, include_last_offset=True)[0]

    def part(self, begin: int, end: int) -> Bags:
        starts = self.starts[begin : end + 1]
        if len(starts) == len(self.starts):
            return self
        first, last = int(starts[0]), int(starts[-1])
        return Bags(self.rows[first:last], starts - first)


class CbowBatch(NamedTuple):
    """Some centers, in an order drawn, with what stands around each, and how many pairs push a row, as in `Push`."""

    centers: Tensor  # n c
    counts: Tensor  # n c: neighbors of each
    noise: Tensor  # n k
    near: Bags  # n*c bags of words
    words: Tensor  # u: those that are someone's neighbor, each once
    pushed: Bags  # u bags of centers
    there: Tensor  # n c 1: 1 where a center has neighbors, 0 where it has none
    share: Tensor  # n c 1: one through the number of its neighbors
    pairs: Tensor  # n*c + n*k + u: of the rows of centers and noise in the outer table, and of words in the inner one


def cbow(
    hidden: Tensor,
    centers: Tensor,
    noise: Tensor,
    there: Tensor,
    negatives: float,
    scales: tuple[Tensor | float, Tensor | float] = (1.0, 1.0),
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the log probability that each mean has its center and not the noise, for all three.

    Those of the centers and of the noise are multiplied with `scales`, which here costs no pass over them.
    """
    # hidden: n c d; centers: n c d; noise: n k d; there: n c 1 of 0 and 1: has neighbors, without them it says nothing
    pull = (hidden * centers).sum(2, keepdim=True).neg_().sigmoid_().mul_(there)  # n c 1
    push = torch.bmm(hidden, noise.mT).sigmoid_().mul_(there * (negatives / noise.shape[1]))  # n c k
    return (
        (pull * centers).baddbmm_(push, noise, alpha=-1),  # each neighbor gets all of it, as in word2vec's own program
        (pull * scales[0]) * hidden,
        against(push.mT, hidden).mul_(scales[1]),
    )


class Cbow(Word2Vec[CbowBatch]):
    """The mean of its neighbors foretells each word."""

    SPARE = 1  # its batches take a third as long to make as to learn from

    def _batches(self, words: Tensor, documents: Tensor, generator: torch.Generator) -> list[CbowBatch]:
        total, window, vocabulary = len(words), self.plan.window or 1, len(self.inner)
        if not total:
            return []
        pad, device = torch.nn.functional.pad, self.device
        order = torch.randperm(total, generator=generator, device=device)
        reach = torch.randint(1, window + 1, (total,), generator=generator, device=device)
        noise = self._drawn(-(-total // GROUP), GROUP_NOISE, generator=generator)
        # A center sees a run of places, itself left out; documents lie one after the other.
        _, document, lengths = torch.unique_consecutive(documents, return_inverse=True, return_counts=True)
        ends, document = lengths.cumsum(0), document[order]
        first = torch.maximum(order - reach, (ends - lengths)[document])
        last = torch.minimum(order + reach, ends[document] - 1)
        # The last group is filled up with centers that have no neighbors, and so say nothing.
        spare = -total % GROUP
        counts = pad(last - first, (0, spare))
        starts = pad(counts.cumsum(0), (1, 0))
        number = torch.arange(len(counts), device=device).repeat_interleave(counts)  # m: whose neighbor
        places = torch.arange(len(number), device=device) + (first - starts[:total]).index_select(0, number)
        places += places >= order.index_select(0, number)
        around = words.index_select(0, places)
        # One number for batch, word and center: numbers alone are sorted many times as fast as with others beside them.
        size = max(1, (self.plan.batch or 1) // GROUP) * GROUP
        bits = (size - 1).bit_length()
        every = torch.arange(total, device=device)
        tags = (every // size * vocabulary << bits) + every % size
        keys = tags.index_select(0, number) + (around << bits)
        keys = torch.from_numpy(np.sort(keys.numpy())) if device.type == "cpu" else keys.sort().values
        once, often = torch.unique_consecutive(keys >> bits, return_counts=True)
        turns = -(-len(counts) // size)
        borders = torch.searchsorted(once, torch.arange(turns + 1, device=device) * vocabulary).tolist()
        centers = pad(words[order], (0, spare))
        whole, pushed = Bags(around, starts), Bags(keys & (1 << bits) - 1, pad(often.cumsum(0), (1, 0)))
        batches = []
        for turn in range(turns):
            begin, end = turn * size, min((turn + 1) * size, len(counts))
            groups = slice(begin // GROUP, end // GROUP)
            bags = slice(*borders[turn : turn + 2])
            own = centers[begin:end].view(-1, GROUP), counts[begin:end].view(-1, GROUP).float(), noise[groups]
            near, back = whole.part(begin, end), pushed.part(bags.start, bags.stop)
            there = (own[1] > 0).float()[..., None]
            pairs = torch.cat([*self._pairs(*own), often[bags] * float(1 + self.plan.negatives)])
            share = own[1].clamp(min=1).reciprocal_()[..., None]
            batches.append(CbowBatch(*own, near, once[bags] % vocabulary, back, there, share, pairs))
        return batches

    def _pairs(self, centers: Tensor, counts: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """How many pairs push the row of each center and of each word of noise."""
        there = (counts > 0).float()
        share = (there.sum(1, keepdim=True) * (self.plan.negatives / GROUP_NOISE)).expand(noise.shape)
        pairs = there.new_zeros(len(self.outer))
        for numbers, some in ((centers, there), (noise, share)):
            pairs.index_add_(0, numbers.flatten(), some.flatten())
        return pairs.index_select(0, centers.flatten()), pairs.index_select(0, noise.flatten())

    def _step(self, batch: CbowBatch, learning_rate: float) -> None:
        count, sizes = len(batch.centers), [batch.centers.numel(), batch.noise.numel(), len(batch.words)]
        scales = torch.split(limited(batch.pairs, learning_rate), sizes)
        outer = scales[0].view(count, -1, 1), scales[1].view(count, -1, 1)
        size = -(-count // self.threads)
        parts = [(begin, min(begin + size, count)) for begin in range(0, count, size)]
        moved = self._each(lambda part: self._pushes(batch, part, outer), parts)
        hidden, centers, noises = (some[0] if len(some) == 1 else torch.cat(some) for some in zip(*moved, strict=True))

        def move_inner() -> None:
            rows = batch.pushed.sums(hidden.flatten(0, 1)).mul_(scales[2][:, None])
            self.inner.index_add_(0, batch.words, rows)

        def move_outer() -> None:
            self.outer.index_add_(0, batch.centers.flatten(), centers.flatten(0, 1))
            self.outer.index_add_(0, batch.noise.flatten(), noises.flatten(0, 1))

        self._each(lambda one: one(), (move_inner, move_outer))

    def _gathered(self, batch: CbowBatch, begin: int, end: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The means, the centers, the noise and who has neighbors, of the groups from one to another."""
        sums = batch.near.part(begin * GROUP, end * GROUP).sums(self.inner)
        hidden = sums.view(end - begin, GROUP, -1).mul_(batch.share[begin:end])
        centers, noise = rows_of(self.outer, batch.centers[begin:end]), rows_of(self.outer, batch.noise[begin:end])
        return hidden, centers, noise, batch.there[begin:end]

    def _pushes(
        self, batch: CbowBatch, part: tuple[int, int], scales: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """How far the means, centers and noise of some groups move; the means before the limit of their words."""
        centers, noise = (scale[slice(*part)] for scale in scales)
        return cbow(*self._gathered(batch, *part), self.plan.negatives, (centers, noise))

    def _loss(self, batch: CbowBatch) -> float:
        hidden, centers, noise, there = self._gathered(batch, 0, min(len(batch.centers), 2048 // GROUP))
        scores = (hidden * centers).sum(2, keepdim=True)
        return float(loss_of(hidden, scores, noise, there, self.plan.negatives) / there.sum().clamp(min=1))

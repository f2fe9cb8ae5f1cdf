"""How well a language model predicts a text: perplexity by a sliding window, per token, per word, in bits per byte."""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.budget import BUDGET, by_budget
from weft.checkpoint.folder import LoadedModel
from weft.data.masking import shift
from weft.data.rows import Frame, Framed, every_example, held_out
from weft.data.shards import Corpus, Places
from weft.errors import UserError, one_of, refuse
from weft.metrics.bootstrap import Bootstrap, Floats, Ratios, Score, interval
from weft.nn.heads import in_full
from weft.nn.rows import Ragged
from weft.objectives.losses import StreamStates
from weft.tasks.base import Difference, Example, Prediction, UnsupervisedTask
from weft.tasks.forward import check_finite
from weft.text.records import DOCUMENTS, read_texts
from weft.text.sentences import DETOKENIZERS
from weft.text.sources import SUFFIXES, Patterns, TextSource, find_files, open_sources, read_lines
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.windows import Framing, frame

SCORES = 1 << 24  # scores of words that are held at once: the table of all words is wide
NO_TOKENS = torch.zeros(0, dtype=torch.int64)


class Reading(NamedTuple):
    """Tokens to read, and those to predict: after each of the last of them, or at places where they were hidden."""

    tokens: list[int]
    targets: list[int]
    document: int = 0
    places: list[int] | None = None


class Surprise(NamedTuple):
    """How little a model expected the targets of a reading."""

    reading: Reading
    nats: Tensor  # -log of the chance of each target (float64, on the CPU)
    best: Tensor  # the likeliest token at each place; empty where a model scores single tokens only


def writing_tokenizer(opened: LoadedModel, decoder: bool = False) -> Tokenizer:
    """The tokenizer of a model that generates text; `decoder`: an encoder-decoder is refused."""
    if decoder and opened.family.reads:
        raise UserError(f"this {opened.family.name} model is an encoder-decoder; a decoder such as gpt2 is needed")
    name = opened.family.name
    refuse(
        (not opened.family.generates, f"this {name} model does not generate text: it does not predict left to right"),
        ("words" not in opened.heads, f"this {name} model does not generate text: it has no language model head"),
    )
    if opened.tokenizer is None:
        raise UserError("this model folder has no tokenizer, so it reads and writes no text")
    return opened.tokenizer


@contextmanager
def remembering(opened: LoadedModel, memory: int | None) -> Iterator[None]:
    """Read with a memory of so many tokens; None: as it is."""
    before = None if memory is None else opened.network.remember(memory)
    try:
        yield
    finally:
        if before is not None:
            opened.network.remember(before)


def beginning(tokenizer: Tokenizer) -> list[int]:
    """What stands before the first token of a text: what the tokenizer puts there, else the token that parts texts."""
    before, after = frame(tokenizer)
    known = [token for name in ("start", "end") if (token := tokenizer.id_of(name)) is not None]
    return before or [token for token in known if token not in after][:1]  # XLNet's <cls> stands at the end of a text


def as_prompts(tokenizer: Tokenizer, texts: Sequence[list[int]]) -> list[list[int]]:
    """The tokens of texts as a decoder reads them; before an empty one stands at least the end of another."""
    end = tokenizer.id_of("end")
    before, nothing = frame(tokenizer)[0], beginning(tokenizer) or ([] if end is None else [end])
    return [[*before, *ids] or nothing for ids in texts]


@torch.inference_mode()
def surprises(opened: LoadedModel, readings: Iterable[Reading], budget: int = BUDGET) -> Iterator[Surprise]:
    """How little a model expected the targets of each reading, in passes of bounded size."""
    network, device = opened.network, opened.device
    for batch in by_budget(readings, lambda reading: len(reading.tokens), budget):
        sizes = [len(reading.targets) for reading in batch]
        if network.SCORES_TEXTS:  # an engine that hands out no states, but scores whole texts by itself
            logprobs = network.text_logprobs([[*reading.tokens, *reading.targets[-1:]] for reading in batch])
            for reading, values, size in zip(batch, logprobs, sizes, strict=True):
                nats = -torch.tensor(values[len(values) - size :], dtype=torch.float64)
                yield Surprise(reading, check_finite(opened, nats), NO_TOKENS)
            continue
        ragged = Ragged.of([reading.tokens for reading in batch], device)
        read = network if batch[0].places is not None else network.next_states
        hidden = read(ragged.tokens, ragged.rows)
        places = list[int]()  # words are scored only where something is asked for
        for start, (tokens, targets, _, own) in zip(ragged.rows.firsts().tolist(), batch, strict=True):
            own = list(range(len(tokens) - len(targets), len(tokens))) if own is None else own
            places += [start + place for place in own]
        every = [target for reading in batch for target in reading.targets]
        asked = (torch.tensor(numbers, dtype=torch.int64, device=device) for numbers in (places, every))
        losses, best = _nats(opened, hidden, *asked)
        bests = torch.split(best, sizes) if len(best) else [NO_TOKENS] * len(sizes)
        yield from map(Surprise, batch, torch.split(losses, sizes), bests)


def _nats(opened: LoadedModel, hidden: Tensor, places: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """-log of the chance of a target at each of these places, in nats, and the likeliest token there."""
    network: Any = opened.network
    if network.SCORES_TARGETS:  # it knows the chance of one word without those of all others
        nats = -network.target_logprobs(hidden[places], targets).double().cpu()
        return check_finite(opened, nats, infinite=True), NO_TOKENS
    most, losses, best = max(1, SCORES // opened.heads["words"]), list[Tensor](), list[Tensor]()
    for some, wanted in zip(torch.split(places, most), torch.split(targets, most), strict=True):
        scores = in_full(network.words(hidden[some]))
        losses.append((scores.logsumexp(-1) - scores.gather(1, wanted[:, None]).squeeze(1)).double().cpu())
        best.append(scores.argmax(-1).cpu())
    return check_finite(opened, torch.cat(losses)), torch.cat(best)


@torch.inference_mode()
def carried_surprises(opened: LoadedModel, ids: Places, budget: int) -> tuple[int, Tensor]:
    """The streams that a network with a state reads, as in training, and the nats of each token but the first."""
    network: Any = opened.network
    places = Corpus([np.arange(len(ids), dtype=np.uint32)], np.array([0, len(ids)]), None, "")
    source = held_out(Framed(places, Frame()))  # whose tokens are the places of the true ones
    memory = StreamStates.running(network, source.streams)
    tokens, nats = torch.from_numpy(ids).to(opened.device), torch.zeros(len(ids) - 1, dtype=torch.float64)
    for batch in every_example(source, shift, budget):
        on_device = batch.to(opened.device)
        streams, wanted = on_device.targets["streams"], on_device.targets["words"]
        carried = memory.take(streams)
        hidden = network.next_states(tokens[on_device.tokens], on_device.rows, carried=carried)
        memory.put(streams, carried)
        here = torch.arange(len(wanted), device=opened.device)
        nats[batch.targets["words"] - 1], _ = _nats(opened, hidden, here, tokens[wanted])
    return source.streams, nats


LONG = 2048  # default length of a window of a model that reads texts of any length
BLOCK = 64  # neighboring tokens that count as one example of the interval: what is near hangs together
PIECE = 1 << 18  # characters that are cut into tokens at once
NEAR = 256  # characters on each side of a place that tell whether a text may be cut there
CUT = re.compile(r"\S(?=\s\S)")


@dataclass(frozen=True, kw_only=True)
class Perplexity:
    """How well a text was predicted; words between spaces and bytes of UTF-8 are counted before any detokenizer."""

    per_token: Score
    per_word: Score | None  # None where the text has no word
    bits_per_byte: Score
    bits_per_read_byte: Score  # of the text as it was read, after the de-tokenizer
    nats: float  # of all tokens together
    impossible: int  # tokens that had no chance at all: with one of them all scores are infinite
    n_tokens: int  # that were predicted
    n_ends: int  # of them: ends of documents
    n_words: int
    n_bytes: int
    n_read_bytes: int
    n_windows: int
    n_documents: int
    left_out: int  # first tokens of documents that follow on nothing
    begin: str | None  # the token after which the first token of a document was predicted
    length: int
    stride: int
    stream: bool  # each document went on from the one before it
    carried: bool  # in one go, with the state of a recurrent network; else in windows
    memory: int | None = None  # tokens that a Transformer-XL or XLNet carried from segment to segment


class _TextCounts:
    """Words and bytes of a text that comes in pieces."""

    words = bytes = 0

    def passed(self, pieces: Iterable[str]) -> Iterator[str]:
        """The pieces of one document, which are counted."""
        inside = False  # a word, which may go on
        for text in filter(None, pieces):
            self.words += len(text.split()) - (inside and not text[0].isspace())
            self.bytes += len(text.encode("utf-8", "surrogatepass"))
            inside = not text[-1].isspace()
            yield text


class _Count:
    """The tokens of documents as a model reads them, which of them are counted, and the nats of those."""

    def __init__(self, tokenizer: Tokenizer, detokenize: str | None, stream: bool, count_ends: bool, seed: int) -> None:
        self.tokenizer, self.detokenize, self.stream, self.count_ends = tokenizer, detokenize, stream, count_ends
        self.begin, self.end = beginning(tokenizer), tokenizer.id_of("end")
        self.given, self.read = _TextCounts(), _TextCounts()
        # As `Perplexity` calls them.
        self.counts: dict[str, Any] = dict.fromkeys(("n_documents", "n_ends", "n_windows", "left_out", "impossible"), 0)
        self.counted = deque[bool]()  # of each target, in their order
        self.sums = Bootstrap(2, seed)
        self.block, self.nats, self.size = 0, 0.0, 0  # neighboring tokens: their document, nats and number

    def of(self, document: str | Iterable[str]) -> Iterator[list[int]]:
        """One document, and its end where that is counted or another document follows."""
        pieces = self.given.passed([document] if isinstance(document, str) else document)
        if self.detokenize is not None:
            pieces = map(DETOKENIZERS[self.detokenize], _whole_lines(pieces))
        any_token = False
        for ids in _ids(self.tokenizer, self.read.passed(pieces)):
            # The first token is no target where nothing comes before it.
            first = bool(ids) and not any_token and not self.begin and not (self.stream and self.counts["n_documents"])
            self.counts["left_out"] += first
            any_token = any_token or bool(ids)
            self.counted.extend(repeat(True, len(ids) - first))
            yield ids
        self.counts["n_documents"] += any_token
        if any_token and self.end is not None and (self.stream or self.count_ends):
            self.counts["n_ends"] += self.count_ends
            self.counted.append(self.count_ends)
            yield [self.end]

    def one_after_the_other(self, documents: Iterable[str | Iterable[str]]) -> Iterator[list[int]]:
        """All documents in one run: the token that begins a text stands before each, unless the end is the same one."""
        first = True
        for document in documents:
            if not first and self.begin and self.begin != [self.end]:
                self.counted.extend(repeat(False, len(self.begin)))
                yield self.begin
            for ids in self.of(document):
                yield ids
                first = False

    def add(self, document: int, nats: Tensor) -> None:
        """Take in the next targets of a document."""
        if document != self.block:
            self.close()
            self.block = document
        for value in nats.tolist():  # one by one: the same sum wherever windows and batches begin
            if not self.counted.popleft():
                continue
            self.counts["impossible"] += math.isinf(value)
            self.nats += 0.0 if math.isinf(value) else value
            self.size += 1
            if self.size == BLOCK:
                self.close()

    def close(self) -> None:
        """Make one example of the bootstrap of the tokens at hand."""
        if self.size:
            self.sums.add(1, [0, 0], [0, 1], [self.nats, self.size])
        self.nats, self.size = 0.0, 0

    def result(self, **settings: Any) -> Perplexity:
        """The sums as scores with their intervals."""
        totals, given, read = self.sums.totals(), self.given, self.read
        tokens, possible = round(float(totals.sums[1, 0])), not self.counts["impossible"]
        with np.errstate(all="ignore"):  # resamplings that drew nothing, words of a thousand letters
            loss = np.where(totals.sizes > 0, totals.sums[0] / totals.sums[1], np.nan)

            def score(each: int, of: Callable[[Floats], Floats] = lambda nats: nats / math.log(2)) -> Score:
                infinite = Score(math.inf, math.inf, math.inf)
                return interval(of(loss * tokens / each), totals.examples) if possible else infinite

            return Perplexity(
                per_token=score(tokens, np.exp),
                per_word=score(given.words, np.exp) if given.words else None,
                bits_per_byte=score(given.bytes),
                bits_per_read_byte=score(read.bytes),
                nats=float(totals.sums[0, 0]) if possible else math.inf,
                n_tokens=tokens,
                n_words=given.words,
                n_bytes=given.bytes,
                n_read_bytes=read.bytes,
                begin=self.tokenizer.token(self.begin[-1]) if self.begin else None,
                **self.counts,
                **settings,
            )


def perplexity(
    opened: LoadedModel,
    documents: Iterable[str | Iterable[str]],
    *,
    length: int | None = None,
    stride: int | None = None,
    detokenize: str | None = None,
    stream: bool = False,
    count_ends: bool = False,
    memory: int | None = None,
    budget: int = BUDGET,
    seed: int = 0,
    on_progress: Callable[[int], None] = lambda tokens: None,
) -> Perplexity:
    """The perplexity of documents, each a text or the pieces of one, of any length.

    A window reads `length` tokens (default: the context, at most 2048) and the next is `stride` further on (default:
    half the length): each token is predicted once. The first one follows on the token that parts documents; without
    such a token it is left out. `stream`: each document continues the one before it; a recurrent network then carries
    its state, unless a length is given. `count_ends`: the end of a document is predicted too, as in training. `memory`:
    tokens before a segment that a Transformer-XL or XLNet sees (default: as in training).
    """
    tokenizer = writing_tokenizer(opened, decoder=True)
    if detokenize is not None:
        one_of(detokenize, DETOKENIZERS, "detokenize")
    carried = stream and length is None and stride is None and opened.network.CARRIES
    length, stride = sliding_window(opened, length, stride)
    count = _Count(tokenizer, detokenize, stream, count_ends, seed)
    with remembering(opened, memory):
        if carried:
            ids = [*count.begin, *(token for ids in count.one_after_the_other(documents) for token in ids)]
            if len(ids) > 1:
                count.counts["n_windows"], nats = carried_surprises(opened, np.array(ids, dtype=np.int64), budget)
                count.add(0, nats)
                on_progress(len(nats))
        else:
            runs = enumerate([count.one_after_the_other(documents)] if stream else map(count.of, documents))
            readings = (reading for number, run in runs for reading in slid(run, count.begin, length, stride, number))
            for reading, nats, _ in surprises(opened, readings, budget):
                count.counts["n_windows"] += 1
                count.add(reading.document, nats)
                on_progress(len(nats))
    count.close()
    if not count.sums.examples:
        raise UserError(f"no token to predict: the text is {'too short' if count.read.bytes else 'empty'}")
    memory = opened.network.memory if memory is None else memory
    return count.result(length=length, stride=stride, stream=stream, carried=carried, memory=memory)


def sliding_window(opened: LoadedModel, length: int | None = None, stride: int | None = None) -> tuple[int, int]:
    """How long a window is and how far the next one, with what was asked for checked."""
    context, reach = opened.config.context, opened.config.reach  # reach: how far back some models look
    if length is None:
        length = min(context, LONG)
        stride = max(1, length - reach) if stride is None and reach is not None else stride
    elif reach is not None and length > max(1, reach):
        raise UserError(f"a window of {length} tokens: this model looks at the last {reach} only; leave out --length")
    stride = max(1, length // 2) if stride is None else stride
    refuse(
        (not 1 <= length <= context, f"a window of {length} tokens: this model reads between 1 and {context}"),
        (not 1 <= stride <= length, f"a stride of {stride} tokens: it must be between 1 and {length}, the window"),
    )
    return length, stride


def _whole_lines(pieces: Iterable[str]) -> Iterator[str]:
    """The same text in pieces that end where lines do."""
    rest = ""
    for piece in pieces:
        whole, end, rest = (rest + piece).rpartition("\n")
        yield whole + end
    yield rest


def _ids(tokenizer: Tokenizer, pieces: Iterable[str]) -> Iterator[list[int]]:
    """The tokens of a text that comes in pieces: those that the whole text has, while little of it is held."""
    held, size = "", PIECE
    for piece in pieces:
        held += piece
        while len(held) >= size + NEAR:
            places = [match.end() for match in CUT.finditer(held, max(0, size - 16 * NEAR), size)]
            for place in reversed(places[-8:]):  # a cut is harmless where the tokens around it stay the same
                left, right = held[max(0, place - NEAR) : place], held[place : place + NEAR]
                whole, first, second = tokenizer.ids([left + right, left, right], specials=False)
                if whole == first + second:
                    yield tokenizer.ids([held[:place]], specials=False)[0]
                    held, size = held[place:], PIECE
                    break
            else:
                size *= 2
    if held:
        yield tokenizer.ids([held], specials=False)[0]


def slid(pieces: Iterable[list[int]], begin: list[int], length: int, stride: int, document: int) -> Iterator[Reading]:
    """Windows over a stream of tokens; each token is a target once."""
    held, done = list(begin), max(1, len(begin))  # held[done] is the next target
    full = max(1, length + 1 - done)  # targets of a window: of the first as many as it reads, then a stride

    def window(count: int) -> Reading:
        return Reading(held[max(0, done + full - 1 - length) : done + count - 1], held[done : done + count], document)

    for piece in pieces:
        held += piece
        while len(held) - done >= full:
            yield window(full)
            done, full = done + full, stride
        kept = max(0, done - length)  # a window may reach so far back
        held, done = held[kept:], done - kept
    if len(held) > done:
        yield window(len(held) - done)


def read_documents(files: Patterns, *, documents: str = "file", column: str = "text") -> Iterator[Iterable[str]]:
    """The documents of files: each whole file in pieces, or its lines or blocks; rows of a table one by one."""
    one_of(documents, DOCUMENTS, "documents")
    for path in find_files(files):
        for source in open_sources(path):
            kind = next((SUFFIXES[suffix] for suffix in source.suffixes if suffix in SUFFIXES), "txt")
            if documents == "file" and kind == "txt":
                yield _lines_of(source)
                continue
            yield from ([document.text] for document in read_texts([path], column=column, documents=documents))
            break  # this reader goes through all that a path stands for


def _lines_of(source: TextSource) -> Iterator[str]:
    """A whole file as training reads it, a line at a time: any encoding, and each line ends in one line feed."""
    for _, text, fault in read_lines(source):
        if fault:
            raise fault
        yield f"{text}\n"


CONTEXTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
WORK = 1 << 19  # tokens that are read for all of them together; on a GPU four times as many
MOST, LEAST = 1024, 32  # places that are predicted
APART = 8  # tokens at least from one place to the next: neighbors tell little more than one of them


@dataclass(frozen=True)
class ByContext:
    """Mean loss by the number of tokens before, in nats, and the longest context that was of use."""

    contexts: tuple[int, ...]
    nats: tuple[float, ...]
    errors: tuple[float, ...]  # standard error of each mean
    useful: int  # beyond this, no longer context is better by more than the noise
    places: int  # tokens that were predicted with each context


def places_of(size: int, longest: int, work: int = WORK) -> list[int]:
    """Places of a text, evenly apart, each with at least `longest` tokens before it."""
    cost = sum(context for context in CONTEXTS if context <= longest)
    count = max(1, min(MOST, work // max(1, cost), (size - longest) // APART))
    return [longest + place * (size - longest) // count for place in range(count)]


@torch.inference_mode()
def by_context(opened: LoadedModel, tokens: Sequence[int]) -> ByContext:
    """The loss at the same places of a text, after each of `CONTEXTS` tokens, each read as if the text began there."""
    longest = max((context for context in CONTEXTS if context <= len(tokens) // 2), default=0)
    places = places_of(len(tokens), longest, WORK * (1 if opened.device.type == "cpu" else 4)) if longest else []
    if len(places) < LEAST:
        raise UserError(f"{len(tokens)} tokens of held-out text are too few to see what context is worth")
    reach = min(longest if opened.config.reach is None else opened.config.reach, opened.config.context)
    farthest = min(longest, max(1, reach))
    contexts = sorted({farthest, *(context for context in CONTEXTS if context <= farthest)})
    losses = np.empty((len(contexts), len(places)))
    for row, context in enumerate(contexts):
        readings = [Reading(list(tokens[place - context : place]), [tokens[place]]) for place in places]
        losses[row] = [float(each.nats[0]) for each in surprises(opened, readings)]
    nats, errors = losses.mean(axis=1).tolist(), (losses.std(axis=1, ddof=1) / math.sqrt(len(places))).tolist()
    best = contexts[useful(losses)] if reach else 0
    return ByContext(tuple(contexts), tuple(nats), tuple(errors), best, len(places))


def useful(losses: Floats) -> int:
    """The first row that no later one beats by more than twice the noise of their difference and 0.01 nats."""
    for row in range(len(losses) - 1):
        gains = losses[row] - losses[row + 1 :]
        noise = gains.std(axis=1, ddof=1) / math.sqrt(gains.shape[1])
        if not (gains.mean(axis=1) > np.maximum(2 * noise, 0.01)).any():
            return row
    return len(losses) - 1


class Likelihood(NamedTuple):
    """What a model expects of one text."""

    nats: float  # of the tokens that it was asked about
    tokens: NDArray[np.int64]  # those tokens
    best: NDArray[np.int64]  # the likeliest at each place; empty where a model scores single tokens only
    bytes: int = 0

    @property
    def hits(self) -> float:
        """At how many places the likeliest token is the one that stands there."""
        return float((self.best == self.tokens).sum())


class LikelihoodTask(UnsupervisedTask):
    """A task of a word head, whose models are compared by how likely texts are: a text is its own target."""

    head = "words"
    comparable = True
    chance_metric: str | None = None

    @abstractmethod
    def readings(self, model: LoadedModel, texts: Sequence[str]) -> Iterable[Reading]:
        """Windows over the texts, each with the number of its text; those of one text in order."""

    def has_target(self, example: Example) -> bool:
        return True

    def predict(self, model: LoadedModel, windows: Framing, inputs: Sequence[str]) -> list[Prediction]:
        parts: list[list[Surprise]] = [[] for _ in inputs]
        for surprise in surprises(model, self.readings(model, inputs)):
            parts[surprise.reading.document].append(surprise)
        predictions = []
        for text, some in zip(inputs, parts, strict=True):
            tokens = np.array([token for window in some for token in window.reading.targets], dtype=np.int64)
            best = torch.cat([NO_TOKENS, *(window.best for window in some)]).numpy()
            size = len(text.encode("utf-8", "surrogatepass"))
            whole = Likelihood(sum(float(window.nats.sum()) for window in some), tokens, best, size)
            predictions.append(Prediction(whole, len(tokens), max(1, len(some)), False))
        return predictions

    def is_finite(self, prediction: Prediction) -> bool:
        return not math.isnan(prediction.output.nats)  # a model that rules out a token expects it infinitely little

    def key(self, prediction: Prediction) -> Hashable:
        return prediction.output.nats

    def describe_target(self, example: Example) -> str:
        return ""

    def compare(self, prediction: Prediction, reference: Prediction, example: Example, task: Any) -> Difference:
        one, two = prediction.output, reference.output
        alike = len(one.best) == len(two.best) == len(one.tokens) and np.array_equal(one.tokens, two.tokens)
        known = alike and len(one.best)  # models of one vocabulary
        counted = {"same": (float((one.best == two.best).sum()), float(len(one.best)))} if known else {}
        return (counted,), abs(one.nats - two.nats) / max(1, one.bytes)

    def metrics(self) -> Ratios:
        return Ratios(self.metric_names, shares=False)

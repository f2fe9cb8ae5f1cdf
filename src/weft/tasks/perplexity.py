"""How well a language model foresees a text: perplexity by a sliding window, per token, per word, in bits per byte."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import repeat

import numpy as np
import torch
from torch import Tensor

from weft.budget import BUDGET, by_budget
from weft.checkpoint.folder import LoadedModel
from weft.errors import UserError, one_of
from weft.metrics.bootstrap import Bootstrap, Floats, Score, interval
from weft.tasks.scoring import Reading, beginning, carried_surprises, surprises, tokenizer_of
from weft.text.detokenizers import DETOKENIZERS
from weft.text.paths import Patterns, find_files
from weft.text.plain_text import DOCUMENTS
from weft.text.records import read_texts
from weft.text.rows import SUFFIXES
from weft.text.sources import TextSource, open_sources, read_lines
from weft.text.tokenizers.tokenizer import Tokenizer

LONG = 2048  # tokens of a window, unless said, of a model that reads texts of any length
BLOCK = 64  # neighboring tokens that count as one example of the interval: what is near hangs together
PIECE = 1 << 18  # characters that are cut into tokens at once
NEAR = 256  # characters on each side of a place that tell whether a text may be cut there
CUT = re.compile(r"\S(?=\s\S)")


@dataclass(frozen=True, kw_only=True)
class Perplexity:
    """How well a text was foreseen, and of what that was counted.

    Words are those between spaces and bytes those of UTF-8 with one byte to a line end, before any de-tokenizer. The
    intervals take the number of words and bytes for each token as known.
    """

    per_token: Score
    per_word: Score | None  # None where the text has no word
    bits_per_byte: Score
    bits_per_read_byte: Score  # of the text as it was read, after the de-tokenizer
    nats: float  # of all tokens together
    impossible: int  # tokens that had no chance at all: with one of them all scores are infinite
    n_tokens: int  # that were foreseen
    n_ends: int  # of them: ends of documents
    n_words: int
    n_bytes: int
    n_read_bytes: int
    n_windows: int
    n_documents: int
    left_out: int  # first tokens of documents that follow on nothing
    begin: str | None  # the token after which the first token of a document was foreseen
    length: int
    stride: int
    stream: bool  # each document went on from the one before it
    carried: bool  # in one go, with the state of a recurrent network; else in windows
    detokenized: str | None


class _TextCounts:
    """Words and bytes of a text that comes in pieces."""

    def __init__(self) -> None:
        self.words = self.bytes = 0
        self.open = False  # whether a word may go on

    def add(self, text: str) -> None:
        if not text:
            return
        self.words += len(text.split()) - (self.open and not text[0].isspace())
        self.bytes += len(text.encode("utf-8", "surrogatepass"))
        self.open = not text[-1].isspace()


class _Tokens:
    """The tokens of documents as a model reads them, and which of them are counted."""

    def __init__(self, tokenizer: Tokenizer, detokenize: str | None, stream: bool, count_ends: bool) -> None:
        self.tokenizer, self.detokenize, self.stream, self.count_ends = tokenizer, detokenize, stream, count_ends
        self.begin, self.end = beginning(tokenizer), tokenizer.id_of("end")
        self.given, self.read = _TextCounts(), _TextCounts()
        self.documents = self.ends = self.left_out = 0
        self.counted = deque[bool]()  # of each target, in their order

    def of(self, document: str | Iterable[str]) -> Iterator[list[int]]:
        """One document, and its end where that is counted or another document follows."""
        pieces = _counted([document] if isinstance(document, str) else document, self.given)
        if self.detokenize is not None:
            pieces = map(DETOKENIZERS[self.detokenize], _whole_lines(pieces))
        any_token = False
        for ids in _ids(self.tokenizer, _counted(pieces, self.read)):
            # The first token is no target where nothing comes before it.
            first = bool(ids) and not any_token and not self.begin and not (self.stream and self.documents)
            self.left_out += first
            any_token = any_token or bool(ids)
            self.counted.extend(repeat(True, len(ids) - first))
            yield ids
        self.given.open = self.read.open = False
        self.documents += any_token
        if any_token and self.end is not None and (self.stream or self.count_ends):
            self.ends += self.count_ends
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

    def readings(self, documents: Iterable[str | Iterable[str]], length: int, stride: int) -> Iterator[Reading]:
        """Windows over the documents, one after the other or each from nothing."""
        runs = [self.one_after_the_other(documents)] if self.stream else map(self.of, documents)
        for number, run in enumerate(runs):
            yield from slid(run, self.begin, length, stride, number)


def perplexity(
    opened: LoadedModel,
    documents: Iterable[str | Iterable[str]],
    *,
    length: int | None = None,
    stride: int | None = None,
    detokenize: str | None = None,
    stream: bool = False,
    count_ends: bool = False,
    budget: int = BUDGET,
    seed: int = 0,
    on_progress: Callable[[int], None] | None = None,
) -> Perplexity:
    """The perplexity of documents, each a text or the pieces of one, of any length.

    A window reads `length` tokens (the context; 2048 of one without end) and the next is `stride` further on (half the
    length): each token is foreseen once, with at least `length - stride` tokens before it where there are so many. The
    first token follows on the token that parts documents; where the vocabulary has none it is left out. `stream`: each
    document goes on from the one before it; a recurrent network then carries its state through all of them unless a
    length is given. `count_ends`: that a document ends is foreseen too, as in training.
    """
    tokenizer = tokenizer_of(opened)
    if detokenize is not None:
        one_of(detokenize, DETOKENIZERS, "detokenize")
    carried = stream and length is None and stride is None and opened.network.CARRIES
    length, stride = _window(opened, length, stride)
    tokens = _Tokens(tokenizer, detokenize, stream, count_ends)
    sums, block = Bootstrap(2, seed), _Block()
    windows = impossible = 0

    def add(document: int, nats: Tensor) -> None:
        nonlocal impossible
        counted = torch.tensor([tokens.counted.popleft() for _ in range(len(nats))], dtype=torch.bool)
        nats = nats[counted]
        lost = nats.isinf()
        impossible += int(lost.sum())
        block.add(document, nats.masked_fill(lost, 0.0).numpy(), sums)
        if on_progress is not None:
            on_progress(len(counted))

    if carried:
        ids = [*tokens.begin, *(token for ids in tokens.one_after_the_other(documents) for token in ids)]
        if len(ids) > 1:
            windows, nats = carried_surprises(opened, np.array(ids, dtype=np.int64), budget)
            add(0, nats)
    else:
        readings = tokens.readings(documents, length, stride)
        for batch in by_budget(readings, lambda reading: len(reading.tokens), budget):
            windows += len(batch)
            for reading, nats in zip(batch, surprises(opened, batch), strict=True):
                add(reading.document, nats)
    block.close(sums)
    if not sums.examples:
        raise UserError(f"no token to foresee: the text is {'too short' if tokens.read.bytes else 'empty'}")
    return _scored(tokens, sums, windows, impossible, length, stride, carried)


def _window(opened: LoadedModel, length: int | None, stride: int | None) -> tuple[int, int]:
    """How long a window is and how far the next one, with what was asked for checked."""
    context = opened.config.context
    reach = opened.config.reach  # of a model that looks back so far and no further
    if reach is not None and length is not None and length > max(1, reach):
        raise UserError(f"a window of {length} tokens: this model looks at the last {reach} only; leave out --length")
    if length is None:
        length = min(context, LONG)
        stride = max(1, length - reach) if stride is None and reach is not None else stride
    stride = max(1, length // 2) if stride is None else stride
    if not 1 <= length <= context:
        raise UserError(f"a window of {length} tokens: this model reads between 1 and {context}")
    if not 1 <= stride <= length:
        raise UserError(f"a stride of {stride} tokens: windows of {length} are between 1 and {length} apart")
    return length, stride


def _scored(
    read: _Tokens, sums: Bootstrap, windows: int, impossible: int, length: int, stride: int, carried: bool
) -> Perplexity:
    """The sums as scores with their intervals."""
    totals = sums.totals()
    tokens = round(float(totals.sums[1, 0]))
    with np.errstate(all="ignore"):  # resamplings that drew nothing, words of a thousand letters
        loss = np.where(totals.sizes > 0, totals.sums[0] / totals.sums[1], np.nan)

        def score(each: int, of: Callable[[Floats], Floats]) -> Score:
            if impossible:
                return Score(math.inf, math.inf, math.inf)
            return interval(of(loss * tokens / each), totals.examples)

        return Perplexity(
            per_token=score(tokens, np.exp),
            per_word=score(read.given.words, np.exp) if read.given.words else None,
            bits_per_byte=score(read.given.bytes, lambda nats: nats / math.log(2)),
            bits_per_read_byte=score(read.read.bytes, lambda nats: nats / math.log(2)),
            nats=math.inf if impossible else float(totals.sums[0, 0]),
            impossible=impossible,
            n_tokens=tokens,
            n_ends=read.ends,
            n_words=read.given.words,
            n_bytes=read.given.bytes,
            n_read_bytes=read.read.bytes,
            n_windows=windows,
            n_documents=read.documents,
            left_out=read.left_out,
            begin=read.tokenizer.token(read.begin[-1]) if read.begin else None,
            length=length,
            stride=stride,
            stream=read.stream,
            carried=carried,
            detokenized=read.detokenize,
        )


class _Block:
    """Neighboring tokens of one document, gathered until there are enough for one example of the bootstrap."""

    def __init__(self) -> None:
        self.document, self.nats, self.count = 0, 0.0, 0

    def add(self, document: int, nats: Floats, sums: Bootstrap) -> None:
        if document != self.document:
            self.close(sums)
            self.document = document
        first = 0
        while first < len(nats):
            some = nats[first : first + BLOCK - self.count]
            for value in some.tolist():  # one by one: the same sum wherever windows and batches begin
                self.nats += value
            self.count += len(some)
            first += len(some)
            if self.count == BLOCK:
                self.close(sums)

    def close(self, sums: Bootstrap) -> None:
        if self.count:
            sums.add(1, [0, 0], [0, 1], [self.nats, self.count])
        self.nats, self.count = 0.0, 0


def _counted(pieces: Iterable[str], counts: _TextCounts) -> Iterator[str]:
    for piece in pieces:
        counts.add(piece)
        yield piece


def _whole_lines(pieces: Iterable[str]) -> Iterator[str]:
    """The same text in pieces that end where lines do."""
    held = list[str]()
    for piece in pieces:
        whole, end, rest = piece.rpartition("\n")
        if end:
            yield "".join((*held, whole, end))
            held = []
        held.append(rest)
    if any(held):
        yield "".join(held)


def _ids(tokenizer: Tokenizer, pieces: Iterable[str]) -> Iterator[list[int]]:
    """The tokens of a text that comes in pieces: those that the whole text has, while little of it is held."""
    held, size = "", PIECE
    for piece in pieces:
        held += piece
        while len(held) >= size + NEAR:
            cut = _harmless_cut(tokenizer, held, size)
            if cut is None:
                size *= 2
                continue
            yield tokenizer.ids([held[:cut]], specials=False)[0]
            held, size = held[cut:], PIECE
    if held:
        yield tokenizer.ids([held], specials=False)[0]


def _harmless_cut(tokenizer: Tokenizer, text: str, before: int) -> int | None:
    """The last place, of the few tried, where a text may be cut without changing its tokens."""
    places = [match.end() for match in CUT.finditer(text, max(0, before - 16 * NEAR), before)]
    for place in reversed(places[-8:]):
        left, right = text[max(0, place - NEAR) : place], text[place : place + NEAR]
        whole, first, second = tokenizer.ids([left + right, left, right], specials=False)
        if whole == first + second:
            return place
    return None


def slid(pieces: Iterable[list[int]], begin: list[int], length: int, stride: int, document: int) -> Iterator[Reading]:
    """Windows over a stream of tokens; each token is a target once."""
    held, done = list(begin), max(1, len(begin))  # held[done] is the next target
    full = max(1, length + 1 - done)  # targets of a window: of the first as many as it reads, then a stride

    def window(count: int) -> Reading:
        """The next window, also where the text ends before it is full."""
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
        if documents != "file":
            for document in read_texts([path], column=column, documents=documents):
                yield [document.text]
            continue
        for source in open_sources(path):
            kind = next((SUFFIXES[suffix] for suffix in source.suffixes if suffix in SUFFIXES), "txt")
            if kind == "txt":
                yield _lines_of(source)
                continue
            for document in read_texts([path], column=column):
                yield [document.text]
            break  # the reader of tables goes through all that a path stands for


def _lines_of(source: TextSource) -> Iterator[str]:
    """A whole file as training reads it, a line at a time: any encoding, and each line ends in one line feed."""
    for _, text, fault in read_lines(source):
        if fault:
            raise fault
        yield f"{text}\n"

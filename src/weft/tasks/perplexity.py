"""How well a language model foresees a text: perplexity by a sliding window, per token, per word, in bits per byte."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from weft.budget import BUDGET, by_budget
from weft.checkpoint.folder import Opened
from weft.errors import UserError, one_of
from weft.tasks.scoring import Reading, beginning, surprises, tokenizer_of
from weft.text.compressed import open_sources, read_pieces
from weft.text.detokenise import DETOKENISERS
from weft.text.formats import SUFFIXES
from weft.text.records import Patterns, find_files, read_texts
from weft.text.resampling import Floats, Resampled, Score, interval
from weft.text.tokenizer import Tokenizer

LONG = 2048  # tokens of a window, unless said, of a model that reads texts of any length
BLOCK = 64  # neighbouring tokens that count as one example of the interval: what is near hangs together
PIECE = 1 << 18  # characters that are cut into tokens at once
NEAR = 256  # characters on each side of a place that tell whether a text may be cut there
CUT = re.compile(r"\S(?=\s\S)")


@dataclass(frozen=True, kw_only=True)
class Perplexity:
    """How well a text was foreseen, and of what that was counted.

    Words are those between spaces and bytes those of UTF-8, both of the text as given, before any de-tokeniser. The
    intervals take the number of words and bytes for each token as known.
    """

    per_token: Score
    per_word: Score | None  # None where the text has no word
    bits_per_byte: Score
    bits_per_read_byte: Score  # of the text as it was read, after the de-tokeniser
    nats: float  # of all tokens together
    impossible: int  # tokens that had no chance at all: with one of them all scores are infinite
    n_tokens: int  # that were foreseen
    n_words: int
    n_bytes: int
    n_read_bytes: int
    n_windows: int
    n_documents: int
    left_out: int  # first tokens of documents that follow on nothing
    begin: str | None  # the token after which the first token of a document was foreseen
    length: int
    stride: int
    detokenised: str | None


class _Counts:
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


def perplexity(
    opened: Opened,
    documents: Iterable[str | Iterable[str]],
    *,
    length: int | None = None,
    stride: int | None = None,
    detokenise: str | None = None,
    budget: int = BUDGET,
    seed: int = 0,
    heard: Callable[[int], None] | None = None,
) -> Perplexity:
    """The perplexity of documents, each a text or the pieces of one, of any length.

    A window reads `length` tokens (the context; 2048 of one without end) and the next is `stride` further on (half the
    length): each token is foreseen once, with at least `length - stride` tokens before it where there are so many. The
    first token follows on the token that parts documents; where the vocabulary has none it is left out.
    """
    tokenizer, context = tokenizer_of(opened), opened.config.context
    reach = getattr(opened.config, "reach", None)  # of a model that looks back so far and no further
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
    if detokenise is not None:
        one_of(detokenise, DETOKENISERS, "detokenise")
    begin = beginning(tokenizer)
    given, read = _Counts(), _Counts()
    windows = seen = left_out = impossible = 0

    def readings() -> Iterator[Reading]:
        nonlocal seen, left_out
        for document in documents:
            pieces = _counted([document] if isinstance(document, str) else document, given)
            if detokenise is not None:
                pieces = map(DETOKENISERS[detokenise], _whole_lines(pieces))
            found = False
            for reading in slid(_ids(tokenizer, _counted(pieces, read)), begin, length, stride, seen):
                found = True
                yield reading
            given.open = read.open = False
            left_out += found and not begin
            seen += found

    sums, block = Resampled(2, seed), _Block()
    for batch in by_budget(readings(), lambda reading: len(reading.tokens), budget):
        windows += len(batch)
        for reading, nats in zip(batch, surprises(opened, batch), strict=True):
            lost = nats.isinf()
            impossible += int(lost.sum())
            block.add(reading.document, nats.masked_fill(lost, 0.0).numpy(), sums)
        if heard is not None:
            heard(sum(len(reading.targets) for reading in batch))
    block.close(sums)
    if not sums.examples:
        raise UserError(f"no token to foresee: the text is {'too short' if read.bytes else 'empty'}")
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
            per_word=score(given.words, np.exp) if given.words else None,
            bits_per_byte=score(given.bytes, lambda nats: nats / math.log(2)),
            bits_per_read_byte=score(read.bytes, lambda nats: nats / math.log(2)),
            nats=math.inf if impossible else float(totals.sums[0, 0]),
            impossible=impossible,
            n_tokens=tokens,
            n_words=given.words,
            n_bytes=given.bytes,
            n_read_bytes=read.bytes,
            n_windows=windows,
            n_documents=seen,
            left_out=left_out,
            begin=tokenizer.token(begin[-1]) if begin else None,
            length=length,
            stride=stride,
            detokenised=detokenise,
        )


class _Block:
    """Neighbouring tokens of one document, gathered until there are enough for one example of the bootstrap."""

    def __init__(self) -> None:
        self.document, self.nats, self.count = 0, 0.0, 0

    def add(self, document: int, nats: Floats, sums: Resampled) -> None:
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

    def close(self, sums: Resampled) -> None:
        if self.count:
            sums.add(1, [0, 0], [0, 1], [self.nats, self.count])
        self.nats, self.count = 0.0, 0


def _counted(pieces: Iterable[str], counts: _Counts) -> Iterator[str]:
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
    places = [found.end() for found in CUT.finditer(text, max(0, before - 16 * NEAR), before)]
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
    one_of(documents, ("line", "block", "file"), "documents")
    for path in find_files(files):
        if documents != "file":
            for document in read_texts([path], column=column, documents=documents):
                yield [document.text]
            continue
        for source in open_sources(path):
            kind = next((SUFFIXES[suffix] for suffix in source.suffixes if suffix in SUFFIXES), "txt")
            if kind == "txt":
                yield read_pieces(source)
                continue
            for document in read_texts([path], column=column):
                yield [document.text]
            break  # the reader of tables goes through all that a path stands for

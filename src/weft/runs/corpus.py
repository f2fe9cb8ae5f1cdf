"""From text to what a run reads: tokens, held-out tokens, rows and labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from weft.data.masking import Masking, shift
from weft.data.rows import DocumentRows, Drawn, ExampleSource, Frame, Framed, PackedRows
from weft.data.shards import Corpus, TextFiles, tokenized
from weft.data.spans import SpanCorruption
from weft.data.streams import Streams
from weft.data.streams import held_out as held_out_streams
from weft.data.text_pairs import PairFrame, SentencePairs
from weft.errors import UserError, listed
from weft.nn.rows import Batch
from weft.progress import Log, Progress, log_notes
from weft.runs.recipes import Recipe
from weft.text.documents import DOCUMENTS, NAMES
from weft.text.records import look_for_documents
from weft.text.row_problems import Skipped
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.windows import frame as frame_of
from weft.text.windows import pair_frame
from weft.training.signals import Stop

FEW = 12  # tokens; documents that are shorter on average are probably lines of something longer


def text_of(recipe: Any) -> TextFiles:
    t = recipe.text
    return TextFiles(t.files, t.column, t.delimiter, t.documents, t.on_bad_row, t.encoding)


def documents_found(recipe: Recipe, log: Log) -> str:
    """What the documents of a recipe's text files are, for the recipe in the run folder; logged where it was open."""
    if recipe.text.documents != "auto":
        return recipe.text.documents
    kinds = look_for_documents(replace(text_of(recipe), files=(*recipe.text.files, *recipe.text.dev)).paths())
    if kinds:
        names = " or ".join(NAMES[kind] for kind in DOCUMENTS if kind in kinds)
        each = ", file by file" if len(kinds) > 1 else ""
        log(f"documents: {names}{each} (found in the text; --documents decides)")
    return kinds.pop() if len(kinds) == 1 else "auto"


@dataclass(frozen=True)
class Material:
    """What a run trains with: tokens, rows and labels."""

    source: ExampleSource
    short: ExampleSource | None  # the rows of the first steps, where they are shorter
    held_out: ExampleSource | None
    prepare: Callable[[Drawn], Batch]
    corpus: Corpus
    dev: Corpus | None


def tokens_of(
    text: TextFiles,
    tokenizer: Tokenizer,
    what: str,
    stop: Stop,
    log: Log,
    progress: Progress,
    sentences: bool = False,
) -> Corpus:
    """The tokens of a text, from the cache where they are known; `sentences`: with where each of them begins."""
    skipped = Skipped()
    with progress(f"tokenizing {what}", "characters") as advance:
        step = stop.watched(advance, "stopped while tokenizing; what is done is kept")
        waiting = "weft: note: another process is tokenizing this text; waiting for it"
        corpus = tokenized(text, tokenizer, sentences, step, lambda: log(waiting), skipped)
    log_notes(skipped.lines(), log)
    if not corpus.size:
        raise UserError(f"{listed(text.files, 2)}: there is no text to learn from")
    return corpus


@contextmanager
def named_files(files: tuple[str, ...]) -> Iterator[None]:
    """Errors in the block name the files that were read, unless they do so themselves."""
    try:
        yield
    except UserError as error:
        if str(error).startswith(files):
            raise
        raise UserError(f"{listed(files, 2)}: {error}") from None


def gather(
    recipe: Recipe,
    name: str,
    tokenizer: Tokenizer,
    length: int,
    begin: int | None,
    stop: Stop,
    log: Log,
    progress: Progress,
    filled: bool = False,
) -> Material:
    """What a run of this objective reads; `begin`: the token that an encoder-decoder's writing begins from.

    `filled`: full rows have a number of labels that their size alone decides, for passes of one shape.
    """
    aim = recipe.objective
    spans = SpanCorruption.of(tokenizer, begin or 0, aim.mask, aim.span, recipe.seed) if name == "spans" else None
    pairs = name in ("mlm+nsp", "mlm+sop")

    def tokens(text: TextFiles, what: str) -> Corpus:
        return tokens_of(text, tokenizer, what, stop, log, progress, pairs)

    corpus = tokens(text_of(recipe), "the text")
    dev: Corpus | None = None
    if recipe.text.dev:
        dev = tokens(replace(text_of(recipe), files=recipe.text.dev), "the held-out text")
    elif recipe.text.holdout:
        rest, dev = corpus.split(recipe.text.holdout)
        corpus, dev = (rest, dev) if rest.size >= 2 and dev.size >= 2 else (corpus, None)
    count = len(corpus.documents) - 1
    if name == "mlm+nsp" and count < 2:
        raise UserError("a single document has no text of another to put in: give --documents block, or mlm+sop")
    if recipe.text.documents == "line" and count > 100 and corpus.size / count < FEW:
        log(
            f"weft: note: documents are lines of {corpus.size / count:.0f} tokens on average; if they are parts of a "
            "longer text, say --documents block or --documents file"
        )
    seed = recipe.seed
    few = aim.short
    # Less is read than the text has, so the text of a row is longer than the row.
    raw = (lambda size: size) if spans is None else spans.raw
    source = _rows(recipe, name, corpus, tokenizer, raw(length), seed)
    short = None if few is None else _rows(recipe, name, corpus, tokenizer, raw(few), seed)
    held_out = _rows(recipe, name, dev, tokenizer, raw(length), None) if dev else None
    # One graph for all batches: rows of any length say how long they may be, full ones have a fixed number of labels.
    longest = length if recipe.training.compile and not source.even else None
    if name == "next":
        start, end = tokenizer.id_of("start"), tokenizer.id_of("end")
        silent = None if start == end else start
        return Material(source, short, held_out, lambda drawn: shift(drawn, longest, silent), corpus, dev)
    if spans is not None:
        row = np.array([raw(length)])
        if spans.wanted(row)[1] > len(spans.sentinels):
            log(
                f"weft: note: rows of {length} tokens would have {spans.wanted(row)[1][0]} gaps; the vocabulary has "
                f"{len(spans.sentinels)} sentinels, so there are as many gaps, and longer ones"
            )
        return Material(source, short, held_out, lambda drawn: spans.apply(drawn, longest), corpus, dev)
    masking = Masking.of(tokenizer, aim.mask, aim.whole_words, seed)
    filled = filled and source.even
    return Material(source, short, held_out, lambda drawn: masking.apply(drawn, longest, filled), corpus, dev)


def next_frame(tokenizer: Tokenizer, stream: bool, lead: bool = False) -> Frame:
    """What stands around a text where each token is to say the next; `stream`: texts follow each other in rows.

    `lead`: the first of them has something before it too, so that all its tokens are judged.
    """
    start, end = tokenizer.id_of("start"), tokenizer.id_of("end")
    start = end if start is None else start
    # One token that ends a text and begins the next need not stand there twice where texts follow each other.
    before = () if start is None or (start == end and stream) else (start,)
    return Frame(
        before, () if end is None else (end,), lead=(start,) if lead and start is not None and not before else ()
    )


def _rows(
    recipe: Recipe, name: str, corpus: Corpus, tokenizer: Tokenizer, length: int, seed: int | None
) -> ExampleSource:
    """How documents become rows; `seed` None: for evaluation."""
    rows = recipe.objective.rows
    if name == "next":
        frame = next_frame(tokenizer, rows in ("stream", "carried"), lead=seed is None)
    elif name == "mlm":
        left, right = frame_of(tokenizer)
        separator = tokenizer.id_of("separator")
        between = () if separator is None else (separator,)
        if rows == "apart":
            frame = Frame(tuple(left), tuple(right))
        else:
            frame = Frame((), between if rows == "stream" else (), tuple(left), tuple(right))
        if length <= frame.row:
            raise UserError(f"rows of {length} tokens have no room for a text")
    elif name == "spans":
        frame = Frame()  # as published: documents follow each other with nothing between them
    else:
        frames = pair_frame(tokenizer)
        if frames is None:
            raise UserError("this vocabulary has no token that keeps two texts apart; learn one of kind wordpiece")
        kind = "next" if name == "mlm+nsp" else "order"
        return SentencePairs(corpus, PairFrame(*map(tuple, frames)), length, kind, recipe.seed, rows != "documents")
    extra = 1 if name == "next" else 0
    framed = Framed(corpus, frame)
    if rows == "carried":
        return Streams(framed, length, True) if seed is not None else held_out_streams(framed)
    if rows == "documents":
        return DocumentRows(framed, length, extra)
    return PackedRows(framed, length, extra, rows == "apart", seed)


def texts_of(material: Material) -> dict[str, Any]:
    """The texts of a run, as `run.json` names them."""
    corpora = {"text": material.corpus, "held_out": material.dev}
    return {key: corpus and {"hash": corpus.hash, "tokens": corpus.size} for key, corpus in corpora.items()}

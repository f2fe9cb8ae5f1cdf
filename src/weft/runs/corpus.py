"""From text to what a run reads: tokens, held-out tokens, rows and labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from weft.data.masking import Masking, SpanCorruption, shift
from weft.data.rows import DocumentRows, Drawn, ExampleSource, Frame, Framed, PackedRows, SentencePairs, Streams
from weft.data.rows import held_out as held_out_streams
from weft.data.shards import Corpus, TextFiles, tokenized
from weft.errors import UserError, listed
from weft.nn.rows import Batch
from weft.progress import Log, log_notes
from weft.runs.recipes import Recipe
from weft.text.plain_text import DOCUMENTS, NAMES
from weft.text.records import document_kinds
from weft.text.row_problems import Skipped
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.windows import frame as frame_of
from weft.text.windows import pair_frame
from weft.training.signals import Control

FEW = 12  # tokens; documents that are shorter on average are probably lines of something longer


def text_of(recipe: Any) -> TextFiles:
    t = recipe.text
    return TextFiles(t.files, t.column, t.delimiter, t.documents, t.on_bad_row, t.encoding)


def resolved_documents(recipe: Recipe, log: Log) -> str:
    """What the documents of a recipe's text files are, for the recipe in the run folder; logged where it was open."""
    if recipe.text.documents != "auto":
        return recipe.text.documents
    kinds = document_kinds(replace(text_of(recipe), files=(*recipe.text.files, *recipe.text.dev)).paths())
    if kinds:
        names = " or ".join(NAMES[kind] for kind in DOCUMENTS if kind in kinds)
        each = ", file by file" if len(kinds) > 1 else ""
        log(f"documents: {names}{each} (found in the text; --documents decides)")
    return kinds.pop() if len(kinds) == 1 else "auto"


@dataclass(frozen=True)
class TextDataset:
    """What a run over text trains with: tokens, rows and labels."""

    source: ExampleSource
    short: ExampleSource | None  # the rows of the first steps, where they are shorter
    held_out: ExampleSource | None
    prepare: Callable[[Drawn], Batch]
    corpus: Corpus
    dev: Corpus | None


def tokens_of(text: TextFiles, tokenizer: Tokenizer, what: str, sentences: bool, control: Control) -> Corpus:
    """The tokens of a text, from the cache or made now; `what`: for the progress bar."""
    skipped = Skipped()
    with control.count(f"tokenizing {what}", "characters", "stopped while tokenizing; what is done is kept") as watched:
        waiting = "another process is tokenizing this text; waiting for it"
        corpus = tokenized(text, tokenizer, sentences, watched, lambda: control.note(waiting), skipped)
    log_notes(skipped.lines(), control.log)
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


def _corpora(recipe: Recipe, tokenizer: Tokenizer, sentences: bool, control: Control) -> tuple[Corpus, Corpus | None]:
    """The tokens to learn from, and those that are held out."""
    text = text_of(recipe)
    corpus = tokens_of(text, tokenizer, "the text", sentences, control)
    if recipe.text.dev:
        dev = replace(text, files=recipe.text.dev)
        return corpus, tokens_of(dev, tokenizer, "the held-out text", sentences, control)
    if recipe.text.holdout:
        train, held_out = corpus.split(recipe.text.holdout)
        if train.size >= 2 and held_out.size >= 2:
            return train, held_out
    return corpus, None


def gather(
    recipe: Recipe,
    name: str,
    tokenizer: Tokenizer,
    length: int,
    begin: int | None,
    control: Control,
    filled: bool = False,
) -> TextDataset:
    """The dataset of a run with this objective; `begin`: the first token of an encoder-decoder's output.

    `filled`: the number of labels of full rows depends on their size alone, for passes of one shape.
    """
    aim = recipe.objective
    spans = SpanCorruption.of(tokenizer, begin or 0, aim.mask, aim.span, recipe.seed) if name == "spans" else None
    corpus, dev = _corpora(recipe, tokenizer, name in ("mlm+nsp", "mlm+sop"), control)
    count = len(corpus.documents) - 1
    if name == "mlm+nsp" and count < 2:
        raise UserError("a single document has no text of another to put in: give --documents block, or mlm+sop")
    if recipe.text.documents == "line" and count > 100 and corpus.size / count < FEW:
        control.note(
            f"documents are lines of {corpus.size / count:.0f} tokens on average; if they are parts of a "
            "longer text, say --documents block or --documents file"
        )
    # Less is read than the text has, so the text of a row is longer than the row.
    raw = (lambda size: size) if spans is None else spans.raw
    source = _rows(recipe, name, corpus, tokenizer, raw(length), recipe.seed)
    short = None if aim.short is None else _rows(recipe, name, corpus, tokenizer, raw(aim.short), recipe.seed)
    held_out = _rows(recipe, name, dev, tokenizer, raw(length), None) if dev else None
    # One graph for all batches: rows of any length say how long they may be, full ones have a fixed number of labels.
    longest = length if recipe.training.compile and not source.even else None
    prepare: Callable[[Drawn], Batch]
    if name == "next":
        start, end = tokenizer.id_of("start"), tokenizer.id_of("end")
        prepare = partial(shift, longest=longest, start=None if start == end else start)
    elif spans is not None:
        wanted = int(spans.wanted(np.array([spans.raw(length)]))[1][0])
        if wanted > len(spans.sentinels):
            control.note(
                f"rows of {length} tokens would have {wanted} gaps; the vocabulary has "
                f"{len(spans.sentinels)} sentinels, so there are as many gaps, and longer ones"
            )
        prepare = partial(spans.apply, longest=longest)
    else:
        masking = Masking.of(tokenizer, aim.mask, aim.whole_words, recipe.seed)
        prepare = partial(masking.apply, longest=longest, filled=filled and source.even)
    return TextDataset(source, short, held_out, prepare, corpus, dev)


def next_frame(tokenizer: Tokenizer, stream: bool, lead: bool = False) -> Frame:
    """The special tokens around a text of which each predicts the next; `lead`: one before the first text too."""
    start, end = tokenizer.id_of("start"), tokenizer.id_of("end")
    start = end if start is None else start
    # Where texts follow each other, one token that both ends and begins a text stands there once.
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
        around = pair_frame(tokenizer)
        if around is None:
            raise UserError("the tokenizer has no separator token for pairs of texts; learn one of kind wordpiece")
        kind = "next" if name == "mlm+nsp" else "order"
        return SentencePairs(corpus, around, length, kind, recipe.seed, rows != "documents")
    extra = 1 if name == "next" else 0
    framed = Framed(corpus, frame)
    if rows == "carried":
        return Streams(framed, length, True) if seed is not None else held_out_streams(framed)
    if rows == "documents":
        return DocumentRows(framed, length, extra)
    return PackedRows(framed, length, extra, rows == "apart", seed)


def texts_of(dataset: TextDataset) -> dict[str, Any]:
    """The texts of a run, as `run.json` names them."""
    corpora = {"text": dataset.corpus, "held_out": dataset.dev}
    return {key: corpus and {"hash": corpus.hash, "tokens": corpus.size} for key, corpus in corpora.items()}

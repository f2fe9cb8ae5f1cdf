"""Models that are counted, not trained: one pass over the text, and what the tables weigh."""

from __future__ import annotations

import math
import time
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from weft.checkpoint.card import Card, Metric, TextLayout
from weft.checkpoint.external import from_tables
from weft.checkpoint.families import Family, find_size, measure, usual_heads
from weft.checkpoint.folder import LoadedModel
from weft.config import changed
from weft.data.counts import count, tables
from weft.data.rows import Frame, Framed
from weft.data.shards import Corpus
from weft.errors import UserError, listed, refuse
from weft.files import write_text
from weft.models.ngram import Ngram, NgramConfig
from weft.nn.rows import Ragged
from weft.picture import ChartLine, line_chart, page, paragraph, table
from weft.progress import Log
from weft.runs.architecture import sizes_of
from weft.runs.dataset import gather_text, next_frame, texts_of
from weft.runs.driver import card_of, record
from weft.runs.recipes import ObjectiveSection, Recipe
from weft.tasks.model import Model, load
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.training.log import RunLog
from weft.training.plan import Training
from weft.training.run import Run
from weft.training.signals import Control
from weft.version import VERSION

JUDGED = 1 << 16  # tokens that are looked up at a time
OURS = ("entries", "silent", "end")  # keys of the config that the text decides


def check_counting(recipe: Recipe) -> None:
    """Refuse settings that do not apply where nothing is trained."""
    fixed = [key for key in OURS if key in recipe.model]
    trained = [f"training.{key}" for key, value in vars(Training()).items() if vars(recipe.training)[key] != value]
    whole = recipe.objective in (ObjectiveSection(), ObjectiveSection(name="next"))
    backs_off = recipe.model.get("smoothing") == "back-off"
    refuse(
        ("base" in recipe.model, "an n-gram model is counted from its text: it cannot start from --base"),
        (backs_off, "smoothing back-off is of tables that were read from a file (weft arpa read); try kneser-ney"),
        (bool(fixed), f"[model]: {listed(fixed)} cannot be set: the text decides"),
        (bool(trained), f"{listed(trained)} does not apply to an n-gram model, which is counted in one pass"),
        (not whole, "objective.length and rows do not apply to an n-gram model, which reads every document whole"),
    )


def count_text(run: Run, recipe: Recipe, family: Family, tokenizer: Tokenizer, control: Control) -> Model:
    """Count a text, judge the model by what is held out, and leave it in the run folder."""
    sizes = {"vocabulary": tokenizer.vocabulary, **sizes_of(recipe.model)}
    config: NgramConfig = changed(find_size(family.name)[1], sizes, "[model]")
    if tokenizer.vocabulary > config.vocabulary:
        raise UserError(f"the tokenizer has {tokenizer.vocabulary} tokens, the model only {config.vocabulary}")
    frame = next_frame(tokenizer, stream=False)  # one token before and after each document, as lmplz has it
    if not frame.before:
        raise UserError("an n-gram model needs a token that begins or ends a text; this vocabulary has none")
    aim = replace(recipe.objective, name="next", rows="documents", length=64)
    dataset = gather_text(replace(recipe, objective=aim), tokenizer, control)
    corpus, dev = dataset.corpus, dataset.dev
    new = record(run, recipe, torch.device("cpu"), {"parameters": 0}, texts_of(dataset))
    if not new and run.metrics.exists() and run.lines():  # the last to be written
        control.log(f"{run.folder}: this run has finished already")
        return load(run.folder)
    judged = f", held out {dev.size:,}" if dev is not None else ""
    control.log(
        f"{run.folder}: ngram of order {config.order}, {config.smoothing}\n"
        f"text: {corpus.size:,} tokens in {len(corpus.documents) - 1:,} documents{judged}"
    )
    began = time.monotonic()
    config, network = counted(corpus, tokenizer, config, frame, control)
    seconds = time.monotonic() - began
    layout = TextLayout(documents=recipe.text.documents, rows="documents")
    card = card_of(run, Card(weft=VERSION, task=family.task, text=layout), recipe.seed)
    opened = LoadedModel(family, config, network.eval(), {"words": config.vocabulary}, tokenizer, card)
    _report(run, config, control.log)
    line: dict[str, Any] = {"step": 1, "tokens": corpus.size, "seconds": round(seconds, 3), "entries": config.entries}
    metrics: tuple[Metric, ...] = ()
    if dev is not None:
        loss, never, of = held_out(network, dev, frame, control)
        line["never"] = never
        if never:
            zero = f"{never:,} of {of:,} tokens have probability 0 under {config.smoothing}"
            control.log(f"held out: perplexity infinite: {zero}")
        else:
            control.log(f"held out: perplexity {math.exp(loss):.2f} of {of:,} tokens, including ends of documents")
            line |= {"validation_loss": loss, "validation_words": loss}
            metrics = (Metric(data=dev.hash, name="loss", value=loss),)
    run.save_model(opened, metrics)
    with closing(RunLog(run.metrics, 0)) as run_log:
        run_log.record(line)
    control.log(f"{run.folder}: counted in {seconds:.1f} s")
    return load(run.folder)


def counted(
    corpus: Corpus, tokenizer: Tokenizer, config: NgramConfig, frame: Frame, control: Control
) -> tuple[NgramConfig, Ngram]:
    """The model of a text."""
    framed = Framed(corpus, frame)
    longest = int(np.diff(framed.starts).max())
    if longest < config.order:
        short = f"its longest document has {longest} tokens, special tokens included"
        raise UserError(f"the text is shorter than the order {config.order}: {short}; try model.order={longest}")
    start = frame.before[0]
    with control.count(f"counting up to order {config.order}", "tokens", "stopped while counting") as step:
        ngrams = count(framed, config.order, config.vocabulary, start, step)
    # What begins a text is never predicted, but for vocabularies where it also ends one; what fills rows up is no word.
    silent = {start, tokenizer.id_of("padding")} - {None, *frame.after}
    silent_tokens = tuple(sorted(token for token in silent if token is not None))
    control.stop.check("stopped while counting")
    stored = tables(ngrams, config.smoothing, config.k, config.prune, silent_tokens, control.log)
    return from_tables(stored, replace(config, silent=silent_tokens, end=frame.after[0] if frame.after else None))


@torch.inference_mode()
def held_out(network: Ngram, corpus: Corpus, frame: Frame, control: Control) -> tuple[float, int, int]:
    """Nats per token of a text, ends of documents counted; how many tokens have probability 0; and of how many."""
    framed, nats, never, tokens = Framed(corpus, frame), list[float](), 0, 0
    reach = network.config.reach
    with control.progress("judging by the held-out text", "tokens") as read:
        for first in range(0, framed.size, JUDGED):
            control.stop.check("stopped while judging")
            # A chunk begins with what its first tokens follow on.
            places = np.arange(max(0, first - reach), min(framed.size, first + JUDGED))
            ids, documents, _ = framed.read(places)
            texts = Ragged.of([part.tolist() for part in np.split(ids, np.flatnonzero(np.diff(documents)) + 1)])
            hidden = network(texts.tokens, texts.rows)[:-1]
            asked = torch.from_numpy((np.diff(documents) == 0) & (places[1:] >= first))
            logprobs = network.target_logprobs(hidden[asked], texts.tokens[1:][asked])
            lost = int(logprobs.isinf().sum())
            never, tokens = never + lost, tokens + len(logprobs)
            nats.append(-float(logprobs[~logprobs.isinf()].sum()))
            read(len(places))
    return (math.inf if never else math.fsum(nats) / max(1, tokens)), never, tokens


def _report(run: Run, config: NgramConfig, log: Log) -> None:
    """Log and draw how the tables grow with the order, beside an MLP that looks back as far."""
    rows, (family, usual), total, sizes = list[tuple[int, int, int, int]](), find_size("mlp"), list[int](), 0
    lines = [f"{'order':>5} {'n-grams stored':>15} {'of possible':>12} {'bytes':>15} {'an MLP, parameters':>19}"]
    for order, entries in enumerate(config.entries, 1):
        # A probability, a key but for single words, and a back-off weight but for the longest: 8 bytes each.
        size = entries * 8 * (1 + (order > 1) + (order < config.order))
        mlp = replace(usual, vocabulary=config.vocabulary, window=max(1, order - 1))
        weights = measure(family, mlp, usual_heads(family, mlp)).parameters
        rows.append((order, entries, size, weights))
        total, sizes = [*total, sum(total[-1:]) + entries], sizes + size
        share = entries / config.vocabulary**order
        lines.append(f"{order:>5} {entries:>15,} {share:>12.2g} {size:>15,} {weights:>19,}")
    log("\n".join([*lines, f"{'all':>5} {total[-1]:>15,} {'':>12} {sizes:>15,} {rows[-1][3]:>19,}"]))
    growth = [
        ChartLine("n-grams up to this order", list(enumerate(total, 1))),
        ChartLine("an MLP's parameters", [(row[0], row[3]) for row in rows], dashed=True),
        ChartLine("possible n-grams", [(row[0], float(config.vocabulary) ** row[0]) for row in rows], dashed=True),
    ]
    header = ["order", "n-grams stored", "of possible", "bytes", "an MLP of the same window, parameters"]
    cells = [[str(o), f"{n:,}", f"{n / config.vocabulary**o:.2g}", f"{b:,}", f"{m:,}"] for o, n, b, m in rows]
    words = (
        "The number of possible n-grams grows by the size of the vocabulary with each order. The number that a text "
        "contains grows until nearly every n-gram occurs once. An MLP grows by one matrix per word of context."
    )
    chart = line_chart("What is stored, by order", growth, "order", "numbers", log_y=True)
    write_text(run.report, page(f"Run {run.folder.name}", [table(header, cells), chart, paragraph(words)]))

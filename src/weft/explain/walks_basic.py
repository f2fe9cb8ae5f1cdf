"""Walks that need no model: the textbook softmax, a one-hot vector, and the counts of an n-gram model."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from weft.data.counts import NgramCounts, count
from weft.data.rows import Frame, Framed
from weft.data.shards import Corpus
from weft.errors import UserError
from weft.explain.walk import labels_of, plain, tokens_of
from weft.explain.walk_steps import Array, Walk, WalkTable
from weft.files import read_text
from weft.nn.attention import attend
from weft.nn.rows import Rows
from weft.tasks.model import Model

SCORES = [[0.11, 0.00, 0.81, 0.79], [0.19, 0.50, 0.30, 0.48], [0.53, 0.98, 0.95, 0.14], [0.81, 0.86, 0.38, 0.90]]
WORDS = ("robot", "must", "obey", "orders")
SHOWN = 12  # words of a table of counts


def attention_of(scores: Array, divisor: float, causal: bool) -> Array:
    """The weights that the attention of every model gives to these logits: the keys are the columns of an identity."""
    count, width = scores.shape
    query = torch.from_numpy(scores)[:, None]  # T 1 D: with one-hot keys, the product is the query itself
    rows = Rows.of([count])
    if causal:
        assert count == width
        key = torch.eye(width, dtype=query.dtype)[:, None]
        _, weights = attend(query, key, key, rows, causal=True, scale=1 / divisor, want_weights=True)
    else:
        key = torch.eye(width, dtype=query.dtype)[:, None]
        _, weights = attend(query, key, key, rows, Rows.of([width]), scale=1 / divisor, want_weights=True)
    assert weights is not None
    return weights[0, 0].numpy()


def softmax_walk() -> Walk:
    """Two examples that every lecture has, by the attention function of all models."""
    walk = Walk(
        "Softmax, as in the textbook",
        "Two worked examples, computed by the attention function that every model here uses.",
    )
    first = np.array([[112.0, 96.0]])
    names = ["Thinking", "Machines"]
    walk.add("scores", "q · k", first, ["Thinking"], names, digits=0)
    walk.step(
        "Two scores",
        "The query of 'Thinking' fits its own key by 112 and that of 'Machines' by 96.",
        "q_1 · k_1 = 112,  q_1 · k_2 = 96",
        ["scores"],
    )
    walk.add(
        "divided",
        "q · k / 8",
        first / 8,
        ["Thinking"],
        names,
        digits=0,
        kind="scale",
        left="scores",
        factor=1 / 8,
        divisor=8,
    )
    walk.step(
        "Divide by √64", "Keys have 64 numbers, so scores are divided by 8.", "q · k / √d_k", ["scores", "→", "divided"]
    )
    walk.add(
        "shares",
        "softmax",
        attention_of(first, math.sqrt(64), False),
        ["Thinking"],
        names,
        scale="sequential",
        kind="softmax",
        left="divided",
    )
    walk.step("Softmax", "The shares add up to 1.", "softmax(14, 12) = 0.88, 0.12", ["divided", "→", "shares"])
    second = np.array(SCORES)
    walk.add("matrix", "Q K^⊤", second, WORDS, WORDS)
    walk.step("Four words", "A matrix of logits for four words: a row for each query.", "Q K^⊤", ["matrix"])
    walk.add("quarter", "Q K^⊤ / 4", second / 4, WORDS, WORDS, kind="scale", left="matrix", factor=1 / 4, divisor=4)
    walk.step(
        "Divide by 4", "The root of the width of a head that has 16 numbers.", "Q K^⊤ / √16", ["matrix", "→", "quarter"]
    )
    mask = np.where(np.tril(np.ones((4, 4), bool)), 0.0, -np.inf)
    walk.add("mask", "Mask", mask, WORDS, WORDS, digits=0)
    walk.add("masked", "masked", second / 4 + mask, WORDS, WORDS, kind="add", left="quarter", right="mask")
    walk.step("Mask", "A word may not look at those after it.", "", ["quarter", "+", "mask", "=", "masked"])
    walk.add(
        "weights",
        "Attention",
        attention_of(second, 4, True),
        WORDS,
        WORDS,
        scale="sequential",
        kind="softmax",
        left="masked",
    )
    walk.step(
        "Softmax", "Row by row. The first word can only look at itself.", "softmax(masked)", ["masked", "→", "weights"]
    )
    return walk


def one_hot_walk(model: Model | None, text: str) -> Walk:
    """An embedding as the row that a one-hot vector picks."""
    walk = Walk("An embedding is a row that a one-hot vector picks")
    if model is None:
        words = list(dict.fromkeys(re.findall(r"\w+|[^\w\s]", text)))
        used, names, place = list(range(len(words))), words, list(range(len(words)))
        table = torch.nn.Embedding(
            len(words), 6, _weight=torch.randn(len(words), 6, generator=torch.Generator().manual_seed(0))
        )
        walk.intro = "Fresh random vectors; give a model folder to see its own."
    else:
        network = model.network
        ids, _, _, _ = tokens_of(model, text)
        used = list(dict.fromkeys(ids.tolist()))
        source = model.opened.family.reads and network.source_tokens is not None
        table = network.source_tokens if source else network.tokens  # type: ignore[assignment]
        names, place = labels_of(model, used), [used.index(token) for token in ids.tolist()]
        if not isinstance(table, torch.nn.Embedding):
            raise UserError(f"{model.opened.family.name} has no embedding table")
    whole = table.weight.shape[0]
    one_hot = np.zeros((len(place), len(used)))
    one_hot[np.arange(len(place)), place] = 1.0
    with torch.inference_mode():
        picked = plain(table(torch.tensor([used[n] for n in place], device=table.weight.device)))
        rows = plain(table.weight[torch.tensor(used, device=table.weight.device)])
    labels = [names[n] for n in place]
    walk.add("one_hot", "one-hot", one_hot, labels, names, shape=(len(place), whole), scale="sequential", digits=0)
    walk.step(
        "One-hot vectors",
        f"A token is a vector of {whole:,} numbers, all 0 but one 1. The columns of tokens that this text lacks are left out.",
        "",
        ["one_hot"],
    )
    walk.add("table", "E", rows, names, shape=(whole, rows.shape[1]))
    walk.add("product", "one-hot × E", one_hot @ rows, labels, kind="product", left="one_hot", right="table")
    walk.step(
        "Product",
        "The 1 picks its row; all other rows are multiplied by 0.",
        "e = one-hot E",
        ["one_hot", "×", "table", "=", "product"],
    )
    indices = list(place)
    walk.add("lookup", "E[token]", picked, labels, kind="row", left="table", indices=indices)
    walk.step(
        "Lookup",
        "So nobody multiplies: the layer reads the row. The numbers are equal.",
        "e = E[token]",
        ["table", "→", "lookup"],
    )
    return walk


def words_of(path: str) -> list[list[str]]:
    """The lines of a text file as words in lower case."""
    if not Path(path).is_file():
        raise UserError(f"{path}: no such text file")
    lines = [re.findall(r"\w+|[^\w\s]", line.lower()) for line in read_text(Path(path)).splitlines()]
    lines = [line for line in lines if line]
    if not lines:
        raise UserError(f"{path}: has no words")
    return lines


def counted(lines: Sequence[Sequence[str]], order: int) -> tuple[NgramCounts, list[str]]:
    """The n-grams of lines, each between <s> and </s>, and the vocabulary."""
    words = ["<s>", "</s>", *sorted({word for line in lines for word in line})]
    numbers = {word: number for number, word in enumerate(words)}
    tokens = np.array([numbers[word] for line in lines for word in line], dtype=np.uint32)
    corpus = Corpus([tokens], np.cumsum([0, *map(len, lines)]), None, "lines")
    return count(Framed(corpus, Frame((0,), (1,))), order, len(words), 0), words


def ngram_walk(path: str) -> Walk:
    """Counting, maximum likelihood, and how empty the tables are."""
    lines = words_of(path)
    counts, words = counted(lines, 4)
    size = len(words)
    walk = Walk(
        f"n-grams of {Path(path).name}", f"{len(lines):,} lines, {counts.tokens:,} tokens, {size:,} different ones."
    )
    single = counts.orders[0].counts
    common = np.argsort(-single, kind="stable")[:SHOWN]
    rows = [(words[n], f"{single[n]:,}", f"{single[n] / counts.tokens:.4f}") for n in common]
    walk.step(
        "Count words",
        "How often each word occurs; its share is the unigram probability.",
        "p(w) = count(w) / N",
        tables=[WalkTable("The most frequent", ("word", "count", "share"), rows)],
    )
    pairs = counts.orders[1]
    table = np.zeros((len(common), len(common)))
    places = {int(word): place for place, word in enumerate(common)}
    after = np.bincount(pairs.keys // size, pairs.counts, minlength=size)
    for key, number in zip(pairs.keys.tolist(), pairs.counts.tolist(), strict=True):
        if key // size in places and key % size in places:
            table[places[key // size], places[key % size]] = number
    names = [words[n] for n in common]
    walk.add("counts", "count(row, column)", table, names, names, shape=(size, size), scale="sequential", digits=0)
    walk.step(
        "Count pairs",
        "A row for the first word, a column for the second. Most cells are 0, even among the most frequent words.",
        "count(v, w)",
        ["counts"],
    )
    totals = np.maximum(after[common], 1)[:, None]
    walk.add("inverse", "1 / count(v)", np.broadcast_to(1 / totals, table.shape), names, names, digits=4)
    walk.add(
        "chances",
        "p(w | v)",
        table / totals,
        names,
        names,
        shape=(size, size),
        scale="sequential",
        kind="multiply",
        left="counts",
        right="inverse",
    )
    walk.step(
        "Maximum likelihood",
        "Each row divided by how often its word occurs as the first of a pair.",
        "p(w | v) = count(v, w) / count(v)",
        ["counts", "×", "inverse", "=", "chances"],
    )
    sparse = []
    for order, grams in enumerate(counts.orders, 1):
        seen, possible = int((grams.counts > 0).sum()), float(size) ** order
        once = int((grams.counts == 1).sum())
        sparse.append((str(order), f"{possible:.3g}", f"{seen:,}", f"{100 * (1 - seen / possible):.4f} %", f"{once:,}"))
    walk.step(
        "Sparsity",
        "The longer the n-gram, the emptier the table: maximum likelihood gives probability 0 to all that was not seen, so smoothing takes from the seen and gives to the others.",
        "zero cells = 1 − seen / V^n",
        tables=[WalkTable("", ("order", "possible", "seen", "zero cells", "seen once"), sparse)],
    )
    return walk

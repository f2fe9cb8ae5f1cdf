"""Walks that need no model: the textbook softmax, a one-hot vector, and the counts of an n-gram model."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from weft.data.counts import NgramCounts, count
from weft.data.rows import Frame, Framed
from weft.data.shards import Corpus
from weft.errors import UserError
from weft.explain.walk_record import MOST_TOKENS, names_of, plain, read_text
from weft.explain.walk_steps import Array, Walk, WalkTable
from weft.nn.attention import attend
from weft.nn.rows import Rows
from weft.tasks.model import Model
from weft.text.sources import open_sources, read_lines

SCORES = [[0.11, 0.00, 0.81, 0.79], [0.19, 0.50, 0.30, 0.48], [0.53, 0.98, 0.95, 0.14], [0.81, 0.86, 0.38, 0.90]]
WORDS = ("robot", "must", "obey", "orders")
SHOWN = 12  # words of a table of counts
ORDER = 4  # of the longest n-grams that are counted
WIDTH = 6  # of random embeddings


def words_in(text: str) -> list[str]:
    """Words and punctuation marks."""
    words = re.findall(r"\w+|[^\w\s]", text)
    if not words:
        raise UserError("the text has no words")
    if len(words) > MOST_TOKENS:
        raise UserError(f"a walk shows texts of up to {MOST_TOKENS} words; this one has {len(words)}")
    return words


def attention_of(scores: Array, divisor: float, causal: bool) -> Array:
    """The weights that the attention function of all models gives to these logits, divided by a number."""
    queries, width = scores.shape
    query = torch.from_numpy(scores)[:, None]  # T 1 D: with one-hot keys, the products are the queries themselves
    key = torch.eye(width, dtype=query.dtype)[:, None]
    keys = None if causal else Rows.of([width])
    rows = Rows.of([queries])
    _, weights = attend(query, key, key, rows, keys, causal=causal, scale=1 / divisor, want_weights=True)
    assert weights is not None
    return weights.padded()[0, 0].numpy()


def softmax_walk() -> Walk:
    """Two worked examples of lectures, by the attention function of all models."""
    walk = Walk("Softmax, as in the textbook")
    walk.intro = "Two worked examples, computed by the attention function that all models of Weft use."
    walk.part = "Two words"
    first, names = np.array([[112.0, 96.0]]), ["Thinking", "Machines"]
    scores = walk.add("scores", "q · k", first, names[:1], names, digits=0)
    text = "The query of 'Thinking' times its own key is 112, and times the key of 'Machines' 96."
    walk.step("Two logits", text, "q_1 · k_1 = 112,  q_1 · k_2 = 96", [scores])
    made: dict[str, Any] = {"kind": "scale", "left": scores, "factor": 1 / 8, "divisor": 8}
    divided = walk.add("divided", "q · k / 8", first / 8, digits=0, **made)
    walk.step("Divide by √64", "Keys have 64 numbers, so logits are divided by 8.", "q · k / √d_k", divided)
    made = {"kind": "softmax", "left": divided, "scale": "sequential"}
    shares = walk.add("shares", "softmax", attention_of(first, math.sqrt(64), False), **made)
    walk.step("Softmax", "The weights sum to 1.", "softmax(14, 12) = 0.88, 0.12", shares)
    walk.part = "Four words, masked"
    second = np.array(SCORES)
    matrix = walk.add("matrix", "Q K^⊤", second, WORDS, WORDS)
    walk.step("Four words", "A matrix of logits: a row for each query, a column for each key.", "Q K^⊤", [matrix])
    made = {"kind": "scale", "left": matrix, "factor": 1 / 4, "divisor": 4}
    quarter = walk.add("quarter", "Q K^⊤ / 4", second / 4, **made)
    walk.step("Divide by 4", "The square root of a head's width of 16.", "Q K^⊤ / √16", quarter)
    table = np.where(np.tril(np.ones((4, 4), bool)), 0.0, -np.inf)
    mask = walk.add("mask", "mask", table, WORDS, WORDS, digits=0)
    masked = walk.add("masked", "masked", second / 4 + table, kind="add", left=quarter, right=mask)
    walk.step("Mask", "A word must not attend to the words after it.", "Q K^⊤ / √16 + mask", masked)
    made = {"kind": "softmax", "left": masked, "scale": "sequential"}
    weights = walk.add("weights", "A", attention_of(second, 4, True), **made)
    walk.step("Softmax", "Row by row. The first word attends only to itself.", "A = softmax(masked)", weights)
    return walk


def one_hot_walk(model: Model | None, text: str) -> Walk:
    """An embedding as the row that a one-hot vector picks."""
    walk = Walk("An embedding is the row that a one-hot vector picks")
    if model is None:
        words = words_in(text)
        names = list(dict.fromkeys(words))
        ids, used = [names.index(word) for word in words], list(range(len(names)))
        chance = torch.Generator().manual_seed(0)
        table = torch.nn.Embedding(len(names), WIDTH, _weight=torch.randn(len(names), WIDTH, generator=chance))
        walk.intro = "The vectors are random; give a model folder to see those of a model."
    else:
        network: Any = model.network
        table = network.source_tokens if network.source_tokens is not None else network.tokens
        if not isinstance(table, torch.nn.Embedding):
            raise UserError(f"{model.opened.family.name} has no embedding table")
        ids = read_text(model, text).ids
        used = list(dict.fromkeys(ids))
        names = names_of(model, used)
        walk.intro = f"The embedding table of {model.folder or model.opened.family.name}."
    whole = table.weight.shape[0]
    places = [used.index(number) for number in ids]
    one_hot = np.eye(len(used))[places]
    with torch.inference_mode():
        picked = plain(table(torch.tensor(ids, device=table.weight.device)))
        rows = plain(table.weight[torch.tensor(used, device=table.weight.device)])
    labels = [names[place] for place in places]
    shape = (len(ids), whole)
    left = walk.add("one_hot", "one-hot", one_hot, labels, names, shape=shape, scale="sequential", digits=0)
    text = f"A token is a vector of {whole:,} numbers: one 1, all others 0."
    if whole > len(used):
        text += " The page leaves out the columns of tokens that the text does not have."
    walk.step("One-hot vectors", text, "", [left])
    right = walk.add("table", "E", rows, names, shape=(whole, rows.shape[1]))
    product = walk.add("product", "one-hot E", one_hot @ rows, kind="product", left=left, right=right)
    walk.step("Product", "The 1 picks its row; every other row is multiplied by 0.", "e = one-hot E", product)
    made: dict[str, Any] = {"kind": "row", "left": right, "indices": places}
    lookup = walk.add("lookup", "E[token]", picked, labels, **made)
    text = "An embedding layer reads the row instead of multiplying. The numbers are the same."
    walk.step("Lookup", text, "e = E[token]", lookup)
    return walk


# ------------------------------------------------------------------------------------------------------------ n-grams


def lines_of(path: str) -> list[list[str]]:
    """The lines of a text file as words in lower case."""
    if not Path(path).is_file():
        raise UserError(f"{path}: no such text file; this walk counts the words of a file")
    lines = []
    for source in open_sources(Path(path)):
        for _, line, error in read_lines(source):
            if error is not None:
                raise error
            lines.append(re.findall(r"\w+|[^\w\s]", line.lower()))
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
    lines = lines_of(path)
    counts, words = counted(lines, ORDER)
    size = len(words)
    walk = Walk(f"n-grams of {Path(path).name}")
    walk.intro = f"{len(lines):,} lines, {counts.tokens:,} tokens, a vocabulary of {size:,}."
    single = counts.orders[0].counts
    common = np.argsort(-single, kind="stable")[:SHOWN]
    rows = [(words[n], f"{single[n]:,}", f"{single[n] / counts.tokens:.4f}") for n in common]
    table = WalkTable("The most frequent words", ("word", "count", "p(w)"), rows)
    text = "How often each word occurs. Divided by the number of tokens it is the unigram probability."
    walk.step("Count words", text, "p(w) = count(w) / N", tables=[table])
    pair_steps(walk, counts, words)
    walk.step("Sparsity", SPARSITY, "seen / V^n", tables=[sparsity(counts, size)])
    return walk


def pair_steps(walk: Walk, counts: NgramCounts, words: list[str]) -> None:
    """The counts of pairs of frequent words, and the bigram probabilities."""
    size, pairs = len(words), counts.orders[1]
    frequent = [n for n in np.argsort(-counts.orders[0].counts, kind="stable") if words[n][0].isalnum()][:SHOWN]
    if not frequent:
        return
    names = [words[n] for n in frequent]
    after = np.bincount(pairs.keys // size, pairs.counts, minlength=size)[frequent]
    grid, places = np.zeros((len(names), len(names))), {int(word): place for place, word in enumerate(frequent)}
    for key, number in zip(pairs.keys.tolist(), pairs.counts.tolist(), strict=True):
        if key // size in places and key % size in places:
            grid[places[key // size], places[key % size]] = number
    right = walk.add("counts", "count(v, w)", grid, names, names, shape=(size, size), scale="sequential", digits=0)
    zeros = int((grid == 0).sum())
    text = "A row for the first word, a column for the second. Even among the most frequent words "
    text += f"{zeros} of {grid.size} pairs never occur."
    walk.step("Count pairs", text, "count(v, w)", [right])
    inverse = np.diag(1 / np.maximum(after, 1))
    left = walk.add("inverse", "diag(1 / count(v))", inverse, names, names, digits=5)
    made: dict[str, Any] = {"kind": "product", "left": left, "right": right, "scale": "sequential", "digits": 3}
    chances = walk.add("chances", "p(w | v)", inverse @ grid, shape=(size, size), **made)
    text = "Each row divided by how often its word is the first of a pair: the maximum-likelihood bigram model."
    walk.step("Maximum likelihood", text, "p(w | v) = count(v, w) / count(v)", chances)


SPARSITY = (
    "The longer the n-gram, the emptier the table. Maximum likelihood gives probability 0 to every n-gram that was not "
    "seen, so an n-gram model needs smoothing: it takes probability from the seen ones and gives it to the others."
)


def sparsity(counts: NgramCounts, size: int) -> WalkTable:
    """Of each order, how many n-grams there could be and how many occur."""
    rows = []
    for order, grams in enumerate(counts.orders, 1):
        seen, possible = int((grams.counts > 0).sum()), float(size) ** order
        once = int((grams.counts == 1).sum())
        rows.append((str(order), f"{possible:.3g}", f"{seen:,}", f"{100 * seen / possible:.3g} %", f"{once:,}"))
    return WalkTable("", ("order", "possible", "seen", "cells that are not 0", "seen once"), rows)

"""Metrics of written and extracted texts: exact match, F1, BLEU, chrF and ROUGE, with intervals."""

from __future__ import annotations

import math
import re
import string
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from weft.errors import UserError, one_of
from weft.metrics.bootstrap import (
    Bootstrap,
    Floats,
    MeanMetrics,
    Metrics,
    Replicates,
    Score,
    SummedMetrics,
    Totals,
    same_length,
    share,
)

TOKENIZE = ("13a", "intl", "char", "zh", "none")  # those of sacreBLEU that need no further package and no download
ORDERS = 4  # of BLEU's n-grams of words
LETTERS = 6  # of chrF's n-grams of letters
BETA = 2  # chrF2: recall counts twice as much as precision
LENGTHS, MATCHES, GRAMS, CHRF, EXACT, COUNT, KEYS = 0, 2, 2 + ORDERS, 2 + 2 * ORDERS, 28, 29, 30  # places of the sums


class SentenceScores(NamedTuple):
    """How well one text was written: BLEU by the n-grams that it is long enough for, chrF, and whether it is right."""

    bleu: float
    chrf: float
    exact: float


@dataclass(frozen=True)
class LengthRow:
    """The scores of the texts whose source has from `low` up to, not including, `high` words."""

    low: int
    high: int | None
    sentences: int
    scores: dict[str, Score]


def references(gold: str | Sequence[str], name: str) -> list[str]:
    """The right texts of one that was written."""
    if not gold and not isinstance(gold, str):
        raise UserError(f"{name} has no reference")
    return [gold] if isinstance(gold, str) else list(gold)


def letter_grams(text: str) -> list[Counter[str]]:
    """How often each run of 1 to 6 letters occurs, spaces left out."""
    letters = "".join(text.split())
    return [Counter(letters[i : i + n] for i in range(len(letters) - n + 1)) for n in range(1, LETTERS + 1)]


def chrf_of(sums: Floats) -> Floats:
    """chrF2 in 0..1 of columns of sums: for each order the n-grams written, those that are right, and both."""
    written, right, both = sums.reshape(LETTERS, 3, -1).transpose(1, 0, 2)  # orders columns
    counted = (written > 0) & (right > 0)  # orders for which there is anything to find
    orders = counted.sum(axis=0).astype(np.float64)
    precision = share((share(both, written) * counted).sum(axis=0), orders)
    recall = share((share(both, right) * counted).sum(axis=0), orders)
    return share((1 + BETA**2) * precision * recall, BETA**2 * precision + recall)


class GenerationMetrics(Metrics):
    """Generated texts against one or several references each.

    BLEU and chrF2 are in 0..100 and equal to sacreBLEU's of the whole corpus; `exact` (equal but for space around it)
    is in 0..1; `length_ratio` is the words written for each of the reference; `by_length` has `edges` as borders.
    """

    def __init__(
        self, tokenize: str = "13a", lowercase: bool = False, edges: Sequence[int] = (10, 20, 30, 40, 50), seed: int = 0
    ) -> None:
        one_of(tokenize, TOKENIZE, "tokenize")
        if any(a >= b for a, b in pairwise([0, *edges])):
            raise UserError(f"borders of lengths {list(edges)}: each must be above the one before, and above 0")
        self.lowercase, self.edges = lowercase, tuple(edges)
        try:
            from sacrebleu.metrics.bleu import BLEU
        except ImportError:
            raise UserError("BLEU needs sacrebleu: pip install 'weft[evaluate]'") from None
        self.bleu = BLEU(tokenize=tokenize, lowercase=lowercase, effective_order=True)  # of one sentence
        self.corpus = BLEU(tokenize=tokenize, lowercase=lowercase)  # takes all orders
        self.references = set[int]()
        self.measured: bool | None = None  # whether lengths come with the texts
        self.sums = Bootstrap(KEYS * (1 + len(self.edges)), seed)

    def add(
        self, predicted: Sequence[str], gold: Sequence[str | Sequence[str]], lengths: Sequence[int] | None = None
    ) -> list[SentenceScores]:
        """Take in the next texts, each with one right text or a list of them; the scores of each come back."""
        same_length(predicted, gold, "texts")
        if self.measured not in (None, lengths is not None) or (lengths is not None and len(lengths) != len(gold)):
            raise UserError("lengths of sources are given for all texts or for none")
        self.measured = lengths is not None
        scores, entries = list[SentenceScores](), list[tuple[int, int, float]]()
        for row, (text, right) in enumerate(zip(predicted, gold, strict=True)):
            golds = references(right, f"text {self.sums.examples + row + 1}")
            self.references.add(len(golds))
            bleu = self.bleu.sentence_score(text, golds)
            exact = float(text.strip() in [gold.strip() for gold in golds])
            text, golds = (text.lower(), [gold.lower() for gold in golds]) if self.lowercase else (text, golds)
            written, chrf, best = letter_grams(text), -1.0, list[float]()
            for gold in golds:  # the right text that it is nearest to, as sacreBLEU has it
                letters = list[float]()
                for a, b in zip(written, letter_grams(gold), strict=True):
                    both = sum(min(count, b[gram]) for gram, count in a.items() if gram in b)
                    letters += [a.total() if b else 0, b.total(), both]
                value = float(chrf_of(np.array(letters, dtype=np.float64))[0])
                chrf, best = (value, letters) if value > chrf else (chrf, best)
            scores.append(SentenceScores(min(bleu.score, 100.0), 100 * chrf, exact))
            statistics = [bleu.sys_len, bleu.ref_len, *bleu.counts, *bleu.totals, *best, exact, 1.0]
            first = KEYS * (0 if lengths is None else bisect_right(self.edges, lengths[row]))
            entries += [(row, first + place, amount) for place, amount in enumerate(statistics) if amount]
        rows, keys, amounts = zip(*entries, strict=True) if entries else ((), (), ())
        self.sums.add(len(scores), rows, keys, amounts)
        return scores

    def sampled(self) -> dict[str, Replicates]:
        """bleu and chrf in 0..100, exact in 0..1, and length_ratio."""
        totals = self.sums.totals()
        whole = totals.sums.reshape(1 + len(self.edges), KEYS, -1).sum(axis=0)  # statistics columns
        return self._scores(Totals(whole, totals.sizes, totals.examples))

    def by_length(self) -> list[LengthRow]:
        """The scores by the length of the source, the short ones first; none where no length is known."""
        if not self.measured:
            return []
        buckets = self.sums.totals().sums.reshape(1 + len(self.edges), KEYS, -1)
        rows = []
        for low, high, sums in zip([0, *self.edges], [*self.edges, None], buckets, strict=True):
            if count := round(float(sums[COUNT, 0])):
                scores = self._scores(Totals(sums, sums[COUNT], count))
                rows.append(LengthRow(low, high, count, {name: each.score() for name, each in scores.items()}))
        return rows

    def _scores(self, totals: Totals) -> dict[str, Replicates]:
        sums = totals.sums
        written, right = sums[LENGTHS], sums[LENGTHS + 1]
        columns = np.rint(sums[:CHRF]).astype(np.int64).T.tolist()  # whole numbers all of them
        compute = self.corpus.compute_bleu  # sacreBLEU's own
        bleu = [compute(c[MATCHES:GRAMS], c[GRAMS:CHRF], c[0], c[1], smooth_method="exp").score for c in columns]
        ratio = np.where(totals.sizes > 0, share(written, right, np.nan), np.nan)
        return {
            "bleu": totals.sampled(np.minimum(np.array(bleu) / 100, 1.0), 100),  # a rounding may be above 1
            "chrf": totals.sampled(np.minimum(chrf_of(sums[CHRF:EXACT]), 1.0), 100),
            "exact": totals.sampled(share(sums[EXACT], totals.sizes)),
            "length_ratio": Replicates(ratio, totals.examples),
        }

    @property
    def signature(self) -> str:
        """sacreBLEU's line that says how BLEU was counted, for whoever wants to count it again."""
        if not self.references:
            raise UserError("no examples to score")
        self.corpus.num_refs = next(iter(self.references)) if len(self.references) == 1 else -1  # -1: it varies
        return self.corpus.get_signature().format()


def longest_common(a: Sequence[str], b: Sequence[str]) -> int:
    """How many words the longest sequence has that runs through both, with gaps (Hyyrö, 2004: a bit for each word)."""
    places: dict[str, int] = {}
    for number, word in enumerate(a):
        places[word] = places.get(word, 0) | 1 << number
    every = open_ = (1 << len(a)) - 1  # a bit that is gone: the sequence became longer by this word
    for word in b:
        met = open_ & places.get(word, 0)
        open_ = (open_ + met | open_ - met) & every
    return len(a) - open_.bit_count()


def rouge_of(predicted: str, gold: str) -> tuple[float, float, float]:
    """The F1 of single words, of pairs of words and of the longest common sequence, in 0..1."""
    p, g = (re.findall("[a-z0-9]+", text.lower()) for text in (predicted, gold))  # ROUGE's own rule, without stemming
    singles = sum((Counter(p) & Counter(g)).values())
    first, second = (Counter(zip(words, words[1:], strict=False)) for words in (p, g))
    pairs, both, size = sum((first & second).values()), longest_common(p, g), max(1, len(p) + len(g))
    return 2 * singles / size, 2 * pairs / max(1, size - 2), 2 * both / size


class RougeMetrics(MeanMetrics):
    """The mean over summaries, in 0..1, as rouge-score has it; of several references the best counts for each score."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(("rouge1", "rouge2", "rougeL"), seed)

    def add(self, predicted: Sequence[str], gold: Sequence[str | Sequence[str]]) -> list[tuple[float, float, float]]:
        """Take in the next summaries; the three scores of each come back."""
        same_length(predicted, gold, "summaries")
        scores = list[tuple[float, float, float]]()
        for row, (text, right) in enumerate(zip(predicted, gold, strict=True)):
            golds = references(right, f"summary {self.sums.examples + row + 1}")
            first, second, longest = zip(*(rouge_of(text, gold) for gold in golds), strict=True)
            scores.append((max(first), max(second), max(longest)))
        self.add_values(np.array(scores, dtype=np.float64).reshape(-1, 3).T)
        return scores


NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalized(answer: str) -> str:
    """What counts in an answer: lower case, no punctuation, no articles, single spaces (Rajpurkar et al., 2016)."""
    return " ".join(re.sub(r"\b(?:a|an|the)\b", " ", answer.lower().translate(NO_PUNCTUATION)).split())


def _overlap(predicted: str, gold: str) -> float:
    """F1 of two normalized answers as bags of words; an empty one is matched by an empty one alone."""
    p, g = predicted.split(), gold.split()
    common = 0 if set(p).isdisjoint(g) else sum((Counter(p) & Counter(g)).values())
    return 1.0 if predicted == gold else 2 * common / (len(p) + len(g))


def answer_scores(predicted: str, golds: Sequence[str]) -> tuple[float, float]:
    """Exact match and F1 of an answer, the best over the right ones; '' and no right one stand for no answer."""
    answer = normalized(predicted)
    rights = [right for gold in golds if (right := normalized(gold))] or [""]
    return float(answer in rights), max(_overlap(answer, right) for right in rights)


class AnswerMetrics(SummedMetrics):
    """Answers to questions as SQuAD scores them, the best over the answers that are right."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(5, seed)  # exact, f1; answerable, and exact and f1 of these

    def add(self, predicted: str, golds: Sequence[str]) -> tuple[float, float]:
        """Take in the next question ('' is no answer; no golds: there is none); its exact and F1 come back."""
        exact, f1 = answer_scores(predicted, golds)
        amounts = [exact, f1, 1.0, exact, f1] if len(golds) else [exact, f1]
        self.sums.add(1, np.zeros(len(amounts)), np.arange(len(amounts)), amounts)
        return exact, f1

    def values(self, totals: Totals) -> dict[str, Floats]:
        """exact and f1 in 0..1; where some questions have no answer and some do, also each kind by itself."""
        exact, f1, answerable, answerable_exact, answerable_f1 = totals.sums
        values = {"exact": share(exact, totals.sizes), "f1": share(f1, totals.sizes)}
        if 0 < answerable[0] < totals.examples:
            values["answerable_exact"] = share(answerable_exact, answerable, math.nan)
            values["answerable_f1"] = share(answerable_f1, answerable, math.nan)
            values["no_answer_accuracy"] = share(exact - answerable_exact, totals.sizes - answerable, math.nan)
        return values

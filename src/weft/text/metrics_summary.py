"""Scores of summaries: ROUGE-1, ROUGE-2 and ROUGE-L (Lin, 2004), streamed, with intervals."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from weft.errors import UserError
from weft.text.metrics import same_length
from weft.text.resampling import Resampled, Sampled, Sampling, share

WORD = re.compile(r"[a-z0-9]+")  # ROUGE's own rule: other letters are spaces to it
NAMES = ("rouge1", "rouge2", "rougeL")


def words_of(text: str) -> list[str]:
    """The words that ROUGE sees: lower case, plain letters and digits; without stemming."""
    return WORD.findall(text.lower())


def longest_common(a: Sequence[str], b: Sequence[str]) -> int:
    """How many words the longest sequence has that runs through both, with gaps.

    Each bit of one long number is a word of `a`, so that a word of `b` costs a few operations (Hyyrö, 2004).
    """
    places: dict[str, int] = {}
    for number, word in enumerate(a):
        places[word] = places.get(word, 0) | 1 << number
    every = (1 << len(a)) - 1
    open_ = every  # a bit that is gone: the sequence became longer by this word
    for word in b:
        met = open_ & places.get(word, 0)
        open_ = (open_ + met | open_ - met) & every
    return len(a) - open_.bit_count()


def rouge_of(predicted: str, gold: str) -> tuple[float, float, float]:
    """The F1 of single words, of pairs of words and of the longest common sequence, in 0..1."""
    p, g = words_of(predicted), words_of(gold)
    singles = sum((Counter(p) & Counter(g)).values())
    pairs = (Counter(zip(words, words[1:], strict=False)) for words in (p, g))
    first, second = pairs
    return (
        _f1(singles, len(p), len(g)),
        _f1(sum((first & second).values()), max(len(p) - 1, 0), max(len(g) - 1, 0)),
        _f1(longest_common(p, g), len(p), len(g)),
    )


def _f1(both: int, predicted: int, gold: int) -> float:
    return 2 * both / (predicted + gold) if both else 0.0


class Rouge(Sampling):
    """Summaries beside one or several right ones each; the mean over the summaries, in 0..1, as rouge-score has it.

    Of several right summaries the one with the best F1 counts, for each score by itself.
    """

    def __init__(self, seed: int = 0) -> None:
        self.sums = Resampled(len(NAMES), seed)

    def add(self, predicted: Sequence[str], gold: Sequence[str | Sequence[str]]) -> list[tuple[float, float, float]]:
        """Take in the next summaries; the three scores of each come back."""
        same_length(predicted, gold, "summaries")
        found = list[tuple[float, float, float]]()
        for row, (text, right) in enumerate(zip(predicted, gold, strict=True)):
            golds = [right] if isinstance(right, str) else list(right)
            if not golds:
                raise UserError(f"summary {self.sums.examples + row + 1} has no right one to be compared with")
            first, second, longest = zip(*(rouge_of(text, gold) for gold in golds), strict=True)
            found.append((max(first), max(second), max(longest)))
        keys, rows = np.indices((len(NAMES), len(found)))
        self.sums.add(len(found), rows.ravel(), keys.ravel(), np.array(found, dtype=np.float64).T.ravel())
        return found

    def sampled(self) -> dict[str, Sampled]:
        """rouge1, rouge2 and rougeL."""
        totals = self.sums.totals()
        return {name: totals.sampled(share(sums, totals.sizes)) for name, sums in zip(NAMES, totals.sums, strict=True)}

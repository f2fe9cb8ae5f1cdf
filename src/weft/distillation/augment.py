"""More texts from those that are there: each comes again with some of its words replaced (Jiao et al., 2020).

What stands in for a word is a model's guess at it, drawn from its likeliest, or a word of the texts themselves. Which
words go and what comes follows from the seed, the number of the text and the number of the copy, and from nothing else.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from weft.checkpoint.folder import LoadedModel
from weft.data.chance import key_of, scrambled, uniform
from weft.data.masking import inside_words
from weft.errors import UserError
from weft.nn.heads import in_full
from weft.tasks.base import Example, Task
from weft.tasks.fill import filler
from weft.tasks.forward import batches, framing_for, window_for
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.windows import Framing, TextWindow, pieces

LEAST, MOST = 0.15, 0.3  # share of the words of a text that are replaced
TOP = 10  # guesses of a model that one is drawn from
CHUNK = 256  # texts that are held at a time
SCORES = 1 << 24  # scores of words that are held at once
COPIES = 128  # numbers that each text has for its copies
WHOLE = re.compile(r"\w*[^\W_]\w*")  # a word has a letter or a digit

Spans = Sequence[tuple[int, int]]  # words, by characters


def augmented(
    task: Task,
    examples: Sequence[Example],
    times: int,
    by: LoadedModel | None,
    seed: int,
    progress: Callable[[int], None] = lambda more: None,
) -> list[Example]:
    """The new examples alone, `times` for each of those given; they have no target.

    `by`: a model that says words behind masks; without it the words come from the texts, each as often as it is there.
    """
    if not 0 <= times < COPIES:
        raise UserError(f"a text may come between 0 and {COPIES - 1} times again, not {times}")
    if not times:
        return []
    source = Guesses.of(by) if by is not None else Frequent.of(examples)
    numbers = ((example, number * COPIES + copy) for number, example in enumerate(examples) for copy in range(times))
    key = key_of(seed, "augment")
    jobs = (Copy(task, example, int(scrambled(key, np.array([number]))[0])) for example, number in numbers)
    copied: list[Example] = []
    while some := list(islice(jobs, CHUNK)):
        copied += _rewritten(some, source)
        progress(len(some))
    return copied


def _chance(identity: int, what: str, count: int) -> list[float]:
    """`count` numbers from 0 up to 1 of one copy."""
    with np.errstate(over="ignore"):
        return uniform(key_of("augment", what), np.uint64(identity) + np.arange(count, dtype=np.uint64)).tolist()


@dataclass(frozen=True)
class Copy:
    """One copy that is to be made."""

    task: Task
    example: Example
    identity: int  # what chance is drawn from

    def words(self, side: int) -> Spans:
        """The words of a text, as they were given with it or as they stand in it."""
        return self.task.word_spans(self.example)[side]

    def sides(self) -> Iterator[tuple[int, list[int]]]:
        """Which words of which text are replaced: of a pair, of the first, of the second, or of both."""
        texts = self.example.texts
        open_to = [
            [number for number, (a, b) in enumerate(self.words(side)) if any(map(str.isalnum, text[a:b]))]
            for side, text in enumerate(texts)
        ]
        sides = [side for side, some in enumerate(open_to) if some]
        if len(sides) == 2:
            sides = ([0], [1], [0, 1])[int(3 * _chance(self.identity, "side", 1)[0])]
        for side in sides:
            some = open_to[side]
            share = LEAST + (MOST - LEAST) * _chance(self.identity, f"share {side}", 1)[0]
            order = np.argsort(_chance(self.identity, f"words {side}", len(some)), kind="stable")
            yield side, sorted(some[place] for place in order[: max(1, round(share * len(some)))])

    def with_texts(self, new: dict[int, tuple[str, Spans]]) -> Example:
        """The example with these texts, without a target."""
        unchanged = zip(self.example.texts, self.task.word_spans(self.example), strict=True)
        pairs = [new.get(side, pair) for side, pair in enumerate(unchanged)]
        return self.task.with_texts(self.example, [text for text, _ in pairs], [words for _, words in pairs])


@dataclass(frozen=True)
class Gaps:
    """Words of one text that others are sought for."""

    text: str
    spans: Spans
    chances: list[float]  # one for each


def _rewritten(jobs: list[Copy], source: Guesses | Frequent) -> list[Example]:
    asked: list[tuple[int, int, list[int]]] = []
    gaps: list[Gaps] = []
    for number, job in enumerate(jobs):
        for side, some in job.sides():
            spans = job.words(side)
            asked.append((number, side, some))
            chances = _chance(job.identity, f"new {side}", len(some))
            gaps.append(Gaps(job.example.texts[side], [spans[place] for place in some], chances))
    new: list[dict[int, tuple[str, Spans]]] = [{} for _ in jobs]
    for (number, side, some), gap, words in zip(asked, gaps, source.words(gaps), strict=True):
        there = dict(zip(some, words, strict=True))
        new[number][side] = _replaced(gap.text, jobs[number].words(side), there)
    return [job.with_texts(texts) for job, texts in zip(jobs, new, strict=True)]


def _replaced(text: str, spans: Spans, there: dict[int, str]) -> tuple[str, Spans]:
    """The text with other words at some places, and where its words stand now."""
    whole, places, last = "", list[tuple[int, int]](), 0
    for number, (begin, end) in enumerate(spans):
        whole += text[last:begin]
        word = text[begin:end]
        new = _as(word, there[number]) if number in there else word
        places.append((len(whole), len(whole) + len(new)))
        whole, last = whole + new, end
    return whole + text[last:], places


def _as(word: str, new: str) -> str:
    """Written large where the other was."""
    if len(word) > 1 and word.isupper():
        return new.upper()
    return new[:1].upper() + new[1:] if word[:1].isupper() else new


@dataclass(frozen=True)
class Frequent:
    """The words of some texts, each drawn as often as it is there."""

    choices: list[str]
    sums: np.ndarray[tuple[int], np.dtype[np.int64]]  # how often this word or one before it is there

    @staticmethod
    def of(examples: Sequence[Example]) -> Frequent:
        counts = Counter(word for example in examples for text in example.texts for word in WHOLE.findall(text))
        choices = sorted(counts)
        return Frequent(choices, np.cumsum([counts[word] for word in choices], dtype=np.int64))

    def words(self, gaps: Sequence[Gaps]) -> list[list[str]]:
        return [
            [self._word(gap.text[a:b], chance) for (a, b), chance in zip(gap.spans, gap.chances, strict=True)]
            for gap in gaps
        ]

    def _word(self, word: str, chance: float) -> str:
        """Another word: where it is the same, the next that is not; the word itself where there is no other."""
        first = int(np.searchsorted(self.sums, chance * self.sums[-1], side="right"))
        for step in range(len(self.choices)):
            other = self.choices[(first + step) % len(self.choices)]
            if other.casefold() != word.casefold():
                return other
        return word


@dataclass(frozen=True)
class Guesses:
    """What a model says behind masks; whole words only, and never a special token."""

    opened: LoadedModel
    tokenizer: Tokenizer
    mask: int
    framing: Framing
    barred: Tensor  # by token: it is no word

    @staticmethod
    def of(opened: LoadedModel) -> Guesses:
        tokenizer, mask = filler(opened)
        inside = inside_words(tokenizer)
        special = {number for number, token in tokenizer.library.get_added_tokens_decoder().items() if token.special}
        special |= {tokenizer.id_of(role) for role in vars(tokenizer.roles)} - {None}  # type: ignore[arg-type]
        barred = torch.ones(opened.heads["words"], dtype=torch.bool)
        for number in range(min(tokenizer.vocabulary, len(barred))):
            whole = number not in special and not inside[number]
            barred[number] = not (whole and WHOLE.fullmatch(tokenizer.decode([number]).strip()))
        if int((~barred).sum()) <= TOP:
            raise UserError("the vocabulary of the model that fills gaps has no whole words to put in")
        framing = framing_for(opened, window_for(opened, None, None, "windows", 0.25))
        return Guesses(opened, tokenizer, mask, framing, barred)

    def words(self, gaps: Sequence[Gaps]) -> list[list[str]]:
        """For each gap another word; the word itself where the tokenizer does not see it."""
        encoded = self.tokenizer.encode_batch([gap.text for gap in gaps], specials=False)
        windows = list[TextWindow]()
        asked: list[list[tuple[int, int, int]]] = []  # of each window: a place there, whose gap that is, and which
        for number, (gap, tokens) in enumerate(zip(gaps, encoded, strict=True)):
            ids, places = self._masked(tokens.ids, tokens.offsets, gap.spans)
            for piece in pieces(self.framing, ids):
                own = [(word, place) for word, place in places if piece.cut.first <= place < piece.cut.last]
                asked.append([(piece.lead + place - piece.cut.start, number, word) for word, place in own])
                windows.append(piece)
        words = [[gap.text[a:b] for a, b in gap.spans] for gap in gaps]
        barred = self.barred.to(self.opened.device)
        with torch.inference_mode():
            for numbers, batch in batches(windows, self.opened.device, False):
                hidden = self.opened.network(batch.tokens, batch.rows)
                starts = batch.rows.starts.tolist()
                here = [
                    (starts[row] + place, number, word)
                    for row, window in enumerate(numbers)
                    for place, number, word in asked[window]
                ]
                size = max(1, SCORES // len(barred))
                for some in (here[first : first + size] for first in range(0, len(here), size)):
                    at = torch.tensor([place for place, _, _ in some], device=hidden.device)
                    scores = in_full(self.opened.network.words(hidden[at]))
                    best = scores.masked_fill(barred, -torch.inf).topk(TOP + 1)
                    likely = zip(some, best.indices.tolist(), best.values.tolist(), strict=True)
                    for (_, number, word), tokens, values in likely:
                        guesses = [self.tokenizer.decode([token]).strip() for token in tokens]
                        before, chance = words[number][word], gaps[number].chances[word]
                        words[number][word] = _drawn(before, guesses, np.array(values), chance)
        return words

    def _masked(self, ids: list[int], offsets: Spans, spans: Spans) -> tuple[list[int], list[tuple[int, int]]]:
        """The tokens with one mask in place of each of the words; by word, where its mask stands."""
        whole: list[int] = []
        places: list[tuple[int, int]] = []
        word = 0
        for token, (begin, end) in zip(ids, offsets, strict=True):
            while word < len(spans) and spans[word][1] <= begin:
                word += 1
            if word < len(spans) and end > spans[word][0] and end > begin:
                if not places or places[-1][0] != word:
                    places.append((word, len(whole)))
                    whole.append(self.mask)
                continue
            whole.append(token)
        return whole, places


def _drawn(word: str, guesses: list[str], scores: np.ndarray[tuple[int], np.dtype[np.float64]], chance: float) -> str:
    """One of the likeliest guesses that are another word, each by its chance among them."""
    others = [place for place, guess in enumerate(guesses) if guess.casefold() != word.casefold()][:TOP]
    weights = np.exp(scores[others] - scores[others].max())
    place = int(np.searchsorted(weights.cumsum(), chance * weights.sum(), side="right"))
    return guesses[others[min(place, len(others) - 1)]]

"""`weft suggest`: the likeliest next words of a text, with their chances, whatever the tokens of a model are.

A word is a run of letters, digits and apostrophes; any other mark is a word of its own. The chance of a word is that of
all ways to spell it in tokens, with any spaces before it, and of something that is no letter coming next.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from weft.checkpoint.folder import LoadedModel
from weft.errors import UserError
from weft.nn.rows import Ragged
from weft.tasks.forward import check_numbers, evaluating, unseen_in_words
from weft.tasks.model import Model
from weft.tasks.perplexity import beginning, tokenizer_of
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.windows import frame

WIDTH = 256  # beginnings of words that are followed at once
LONGEST = 40  # tokens of a word, the spaces before it included
Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """What may come next, and how likely that is."""

    text: str  # '' is the end of the text
    probability: float
    tokens: tuple[int, ...]  # of its likeliest spelling
    joined: bool = False  # it goes on with the last word of the text


@dataclass(frozen=True, kw_only=True)
class Suggestions:
    """The likeliest next words of one model, the likeliest first."""

    words: tuple[Suggestion, ...]
    n_tokens: int  # of the text that was read
    truncated: bool  # whether the text was longer than the model's context
    exact: bool  # no beginning was left aside that could have become a likelier word
    aside: float  # the chance of all that was left aside: so much likelier a word may be at most


@torch.inference_mode()
def suggest(
    opened: LoadedModel | Model,
    text: str,
    *,
    top: int = 10,
    tokens: bool = False,
    endings: bool = False,
    width: int = WIDTH,
) -> Suggestions:
    """The likeliest next words of a text, or with `tokens` the likeliest next tokens.

    The last word of the text is taken to be complete: chances are those of what comes after its end. With `endings` it
    may also go on ("weave" with an r), unless a space at the end of the text says that it does not.
    """
    opened = opened.opened if isinstance(opened, Model) else opened
    if not 1 <= top <= 1000:
        raise UserError(f"between 1 and 1000 suggestions can be made, not {top}")
    tokenizer = tokenizer_of(opened)
    plain = text.rstrip(" ")
    closed = plain != text
    before, _ = frame(tokenizer)
    prompt = [*before, *tokenizer.ids([plain], specials=False)[0]] or beginning(tokenizer)
    if not prompt:
        raise UserError("the text is empty, and this vocabulary has no token that begins one")
    room = opened.config.context - (1 if tokens else min(LONGEST, opened.config.context // 2))
    kept = prompt[-room:]
    with evaluating(opened.network), unseen_in_words(opened):
        if tokens:
            return _tokens(opened, tokenizer, kept, top, len(prompt))
        search = _Search(opened, kept, plain, closed and bool(plain), endings, top, width)
    cut = len(prompt) > room
    return Suggestions(
        words=search.words(), n_tokens=len(prompt), truncated=cut, exact=search.exact, aside=search.aside
    )


def _tokens(opened: LoadedModel, tokenizer: Tokenizer, prompt: list[int], top: int, size: int) -> Suggestions:
    scores, _ = opened.network.start(Ragged.of([prompt], opened.device))
    chances = _chances(check_numbers(opened, scores))[0]
    best = np.argsort(-chances, kind="stable")[:top].tolist()
    texts = _Spelling.of(tokenizer).texts
    words = tuple(
        Suggestion(
            text=texts[token] or tokenizer.token(token) or "", probability=float(chances[token]), tokens=(token,)
        )
        for token, chance in zip(best, chances[best].tolist(), strict=True)
    )
    return Suggestions(words=words, n_tokens=size, truncated=size > len(prompt), exact=True, aside=0.0)


def _chances(scores: torch.Tensor) -> Floats:
    """B V: probabilities of the next token."""
    return scores.double().softmax(-1).cpu().numpy()


def inside(character: str) -> bool:
    """Whether a character is part of a word: a letter or digit, what stands on one, an apostrophe, half a character."""
    return character in "_'’\ufffd" or unicodedata.category(character)[0] in "LNM"


def first_word(text: str) -> tuple[str, bool]:
    """The first word or mark of a text that begins with one, and whether nothing that follows can make it longer."""
    end = next((place for place, character in enumerate(text) if not inside(character)), len(text))
    return (text[:end], end < len(text)) if end else (text[:1], True)


@dataclass(frozen=True)
class _Spelling:
    """What each token adds to a text that stands before it."""

    texts: tuple[str, ...]  # '' of special tokens
    goes_on: NDArray[np.bool_]  # tokens that begin inside a word
    spaced: NDArray[np.bool_]  # tokens that begin with a space or the like
    ends: NDArray[np.bool_]  # special tokens: nothing comes after them
    whole: NDArray[np.bool_]  # tokens with the end of a word in them: marks, or letters with something after them

    @staticmethod
    @lru_cache(maxsize=8)
    def of(tokenizer: Tokenizer) -> _Spelling:
        numbers = range(tokenizer.vocabulary)
        # Some vocabularies write spaces only between words, so a token is decoded after a word.
        anchor = next(([number] for number in numbers if tokenizer.decode([number]).strip().isalnum()), [])
        before = tokenizer.decode(anchor)
        whole = tokenizer.library.decode_batch([[*anchor, number] for number in numbers], skip_special_tokens=True)
        texts = [text.removeprefix(before) for text in whole]
        special = {number for number, token in tokenizer.library.get_added_tokens_decoder().items() if token.special}
        return _Spelling(
            texts=tuple(texts),
            goes_on=np.array([bool(text) and inside(text[0]) for text in texts]),
            spaced=np.array([bool(text) and text[0].isspace() for text in texts]),
            ends=np.array([number in special or not texts[number] for number in numbers]),
            whole=np.array([bool(text.strip()) and first_word(text.lstrip())[1] for text in texts]),
        )


@dataclass
class _Begun:
    """A beginning of a next word: its tokens so far, and how likely they are."""

    tokens: tuple[int, ...]
    chance: float
    text: str = ""  # all that it adds to the text
    joined: bool = False


@dataclass
class _Word:
    """A word, as far as its spellings have been found."""

    chance: float = 0.0
    best: float = 0.0  # of its likeliest spelling
    tokens: tuple[int, ...] = field(default=())


class _Search:
    """Follows the likeliest beginnings of words token by token until each word ends."""

    def __init__(
        self, opened: LoadedModel, prompt: list[int], text: str, closed: bool, endings: bool, top: int, width: int
    ) -> None:
        self.network, self.device = opened.network, opened.device
        tokenizer = tokenizer_of(opened)
        self.tokenizer, self.spelling = tokenizer, _Spelling.of(tokenizer)
        self.prompt, self.top, self.width = prompt, top, width
        self.known = dict[tuple[str, bool], _Word]()
        self.exact, self.aside = True, 0.0
        self.after_word = bool(text) and inside(text[-1]) and not closed
        self.longest = min(LONGEST, opened.config.context - len(prompt))
        begun = Ragged.of([prompt], self.device)
        scores, state = self.network.start(begun, room=len(prompt) + self.longest)
        chances = _chances(check_numbers(opened, scores))
        spelling = self.spelling
        if closed or (self.after_word and not endings):  # a word that is complete does not go on
            chances[0] *= (spelling.spaced | spelling.ends) if closed else ~spelling.goes_on
            if not chances[0].sum():
                raise UserError("this model foresees no other word here: the last one would go on")
            chances[0] /= chances[0].sum()
        self._follow([_Begun((), 1.0)], chances, state)

    def words(self) -> tuple[Suggestion, ...]:
        best = sorted(self.known.items(), key=lambda item: (-item[1].chance, item[0]))[: self.top]
        return tuple(
            Suggestion(text=text, probability=word.chance, tokens=word.tokens, joined=joined)
            for (text, joined), word in best
        )

    def _note(self, word: str, joined: bool, chance: float, tokens: tuple[int, ...]) -> None:
        entry = self.known.setdefault((word, joined), _Word())
        entry.chance += chance
        if chance > entry.best:
            entry.best, entry.tokens = chance, tokens

    def _leave(self, chances: Floats) -> None:
        """Beginnings that are not followed any further."""
        self.aside += float(chances.sum())
        self.exact &= bool(chances.max(initial=0.0) <= self._worst())

    def _worst(self) -> float:
        """What a word needs to be among those asked for."""
        chances = sorted((entry.chance for entry in self.known.values()), reverse=True)
        return chances[self.top - 1] if len(chances) >= self.top else 0.0

    def _follow(self, open_ones: list[_Begun], chances: Floats, state: object) -> None:
        spelling = self.spelling
        for depth in range(1, self.longest + 1):
            grown = chances * np.array([begun.chance for begun in open_ones])[:, None]
            for row, begun in enumerate(open_ones):
                word = begun.text.lstrip()
                if word:  # whatever begins with no letter ends it
                    over = float(grown[row, ~spelling.goes_on].sum())
                    self._note(self._spelled(begun, word), begun.joined, over, begun.tokens)
                    grown[row, ~spelling.goes_on] = 0.0
                else:
                    token = int((grown[row] * spelling.ends).argmax())
                    over = float(grown[row, spelling.ends].sum())
                    if over:
                        self._note("", False, over, (*begun.tokens, token))
                    grown[row, spelling.ends] = 0.0
            for row, token in zip(*np.nonzero(grown * spelling.whole > 1e-3 * self._worst()), strict=True):
                begun = open_ones[row]
                word, _ = first_word((begun.text + spelling.texts[token]).lstrip())  # it ends inside the token
                tokens = (*begun.tokens, int(token))
                self._note(word, self._joins(begun, int(token)), float(grown[row, token]), tokens)
            few = grown * spelling.whole
            self._leave(few[few <= 1e-3 * self._worst()])
            grown[:, spelling.whole] = 0.0
            kept = self._kept(open_ones, grown) if depth < self.longest else []
            if not kept:
                self._leave(grown)
                return
            state.pick(torch.tensor([row for row, _ in kept], device=self.device))  # type: ignore[attr-defined]
            last = torch.tensor([begun.tokens[-1] for _, begun in kept], device=self.device)
            chances = _chances(self.network.step(last, state))
            open_ones = [begun for _, begun in kept]

    def _kept(self, open_ones: list[_Begun], grown: Floats) -> list[tuple[int, _Begun]]:
        """The likeliest beginnings of one more token, with the rows that they come from; the others are left aside."""
        flat = grown.ravel()
        # A beginning may still add to a word that is known, so those that nearly count are followed too.
        top = min(self.width, int((flat > 0.01 * self._worst()).sum()))
        best = np.argpartition(-flat, top - 1)[:top] if top else np.zeros(0, dtype=np.int64)
        best = best[np.argsort(-flat[best], kind="stable")]
        chances = flat[best].tolist()
        flat[best] = 0.0
        if len(best):
            self._leave(grown)
        kept = list[tuple[int, _Begun]]()
        for place, chance in zip(best.tolist(), chances, strict=True):
            row, token = divmod(place, grown.shape[1])
            begun = open_ones[row]
            text = begun.text + self.spelling.texts[token]
            kept.append((row, _Begun((*begun.tokens, token), chance, text, self._joins(begun, token))))
        return kept

    def _joins(self, begun: _Begun, token: int) -> bool:
        return begun.joined or (not begun.tokens and self.after_word and bool(self.spelling.goes_on[token]))

    def _spelled(self, begun: _Begun, word: str) -> str:
        """A word in letters: those of several tokens together, where one of them is only a part of a letter."""
        if "\ufffd" not in word:
            return word
        tail = self.prompt[-4:]
        whole = self.tokenizer.decode([*tail, *begun.tokens])
        return whole.removeprefix(self.tokenizer.decode(tail)).lstrip() or word

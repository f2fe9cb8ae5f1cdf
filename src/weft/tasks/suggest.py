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

from weft.checkpoint.folder import Opened
from weft.errors import UserError
from weft.nn.rows import Ragged
from weft.tasks.model import Model
from weft.tasks.scoring import beginning, tokenizer_of
from weft.tasks.unseen import unseen_in_words
from weft.text.tokenizer import Tokenizer
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
    opened: Opened | Model, text: str, *, most: int = 10, tokens: bool = False, width: int = WIDTH
) -> Suggestions:
    """The likeliest next words of a text, or with `tokens` the likeliest next tokens.

    Spaces at the end of the text say that its last word is complete: chances are then those after a word's end.
    """
    opened = opened.opened if isinstance(opened, Model) else opened
    if not 1 <= most <= 1000:
        raise UserError(f"between 1 and 1000 suggestions can be made, not {most}")
    tokenizer = tokenizer_of(opened)
    plain = text.rstrip(" ")
    closed = plain != text
    before, _ = frame(tokenizer)
    prompt = [*before, *tokenizer.ids([plain], specials=False)[0]] or beginning(tokenizer)
    if not prompt:
        raise UserError("the text is empty, and this vocabulary has no token that begins one")
    room = opened.config.context - (1 if tokens else min(LONGEST, opened.config.context // 2))
    kept = prompt[-room:]
    training = opened.network.training
    opened.network.eval()
    try:
        with unseen_in_words(opened):
            if tokens:
                return _tokens(opened, tokenizer, kept, most, len(prompt))
            found = _Search(opened, kept, plain, closed and bool(plain), most, width)
        return Suggestions(
            words=found.words(),
            n_tokens=len(prompt),
            truncated=len(prompt) > room,
            exact=found.exact,
            aside=found.aside,
        )
    finally:
        opened.network.train(training)


def _tokens(opened: Opened, tokenizer: Tokenizer, prompt: list[int], most: int, size: int) -> Suggestions:
    scores, _ = opened.network.start(Ragged.of([prompt], opened.device))  # type: ignore[operator]
    chances = _chances(scores)[0]
    best = np.argsort(-chances, kind="stable")[:most].tolist()
    texts = _Spelling.of(tokenizer).texts
    names = [texts[token] or (tokenizer.token(token) or "") for token in best]
    words = tuple(
        Suggestion(text=name, probability=float(chances[token]), tokens=(token,))
        for name, token in zip(names, best, strict=True)
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
        )


@dataclass
class _Begun:
    """A beginning of a next word: its tokens so far, and how likely they are."""

    tokens: tuple[int, ...]
    chance: float
    text: str = ""  # all that it adds to the text
    joined: bool = False
    row: int = 0  # of the latest step


@dataclass
class _Found:
    """A word, as far as its spellings have been found."""

    chance: float = 0.0
    best: float = 0.0  # of its likeliest spelling
    tokens: tuple[int, ...] = field(default=())


class _Search:
    """Follows the likeliest beginnings of words token by token until each word ends."""

    def __init__(self, opened: Opened, prompt: list[int], text: str, closed: bool, most: int, width: int) -> None:
        self.network, self.device = opened.network, opened.device
        tokenizer = tokenizer_of(opened)
        self.tokenizer, self.spelling = tokenizer, _Spelling.of(tokenizer)
        self.prompt, self.most, self.width = prompt, most, width
        self.known = dict[tuple[str, bool], _Found]()
        self.exact, self.aside = True, 0.0
        self.after_word = bool(text) and inside(text[-1]) and not closed
        self.longest = min(LONGEST, opened.config.context - len(prompt))
        begun = Ragged.of([prompt], self.device)
        scores, state = self.network.start(begun, room=len(prompt) + self.longest)  # type: ignore[operator]
        chances = _chances(scores)
        if closed:  # only what begins with a space, or the end: a word that is complete does not go on
            chances[0] *= self.spelling.spaced | self.spelling.ends
            if not chances[0].sum():
                raise UserError("this model foresees no word after a space here; leave the space at the end out")
            chances[0] /= chances[0].sum()
        self._follow([_Begun((), 1.0)], chances, state)

    def words(self) -> tuple[Suggestion, ...]:
        best = sorted(self.known.items(), key=lambda item: (-item[1].chance, item[0]))[: self.most]
        return tuple(
            Suggestion(text=text, probability=found.chance, tokens=found.tokens, joined=joined)
            for (text, joined), found in best
        )

    def _note(self, word: str, joined: bool, chance: float, tokens: tuple[int, ...]) -> None:
        found = self.known.setdefault((word, joined), _Found())
        found.chance += chance
        if chance > found.best:
            found.best, found.tokens = chance, tokens

    def _leave(self, chances: list[float]) -> None:
        """Beginnings that are not followed any further."""
        self.aside += sum(chances)
        self.exact &= max(chances, default=0.0) <= self._worst()

    def _worst(self) -> float:
        """What a word needs to be among those asked for."""
        chances = sorted((found.chance for found in self.known.values()), reverse=True)
        return chances[self.most - 1] if len(chances) >= self.most else 0.0

    def _follow(self, open_ones: list[_Begun], chances: Floats, state: object) -> None:
        for depth in range(1, self.longest + 1):
            following = list[_Begun]()
            for begun in open_ones:
                following += self._steps(begun, chances[begun.row])
            worst = self._worst()
            following = sorted((f for f in following if f.chance > 0), key=lambda f: (-f.chance, f.tokens))
            # A beginning may still add to a word that is known, so those that nearly count are followed too.
            kept = [f for f in following if f.chance > 0.01 * worst][: self.width]
            kept = kept if depth < self.longest else []
            self._leave([f.chance for f in following[len(kept) :]])
            if not kept:
                return
            state.pick(torch.tensor([f.row for f in kept], device=self.device))  # type: ignore[attr-defined]
            tokens = torch.tensor([f.tokens[-1] for f in kept], device=self.device)
            chances = _chances(self.network.step(tokens, state))  # type: ignore[operator]
            for row, f in enumerate(kept):
                f.row = row
            open_ones = kept

    def _steps(self, begun: _Begun, chances: Floats) -> list[_Begun]:
        """What one more token makes of a beginning: words that end there are noted, the others come back."""
        spelling = self.spelling
        word = begun.text.lstrip()
        if word:
            over = float(chances[~spelling.goes_on].sum())
            self._note(self._spelled(begun, word), begun.joined, begun.chance * over, begun.tokens)
            chances = chances * spelling.goes_on
        else:
            over = float(chances[spelling.ends].sum())
            if over:
                token = int((chances * spelling.ends).argmax())
                self._note("", False, begun.chance * over, (*begun.tokens, token))
            chances = chances * ~spelling.ends
        # No more than these can be kept, whatever the other beginnings are.
        few = min(self.width + self.most + 1, len(chances))
        best = np.argpartition(-chances, few - 1)[:few] if few < len(chances) else np.arange(len(chances))
        if few < len(chances):
            self._leave((begun.chance * np.delete(chances, best)).tolist())
        found = list[_Begun]()
        for token in best[chances[best] > 0].tolist():
            piece, chance = spelling.texts[token], begun.chance * float(chances[token])
            joined = begun.joined or (not begun.tokens and self.after_word and inside(piece[0]))
            text = begun.text + piece
            if not text.lstrip():
                found.append(_Begun((*begun.tokens, token), chance, text, joined, begun.row))
                continue
            word, over_now = first_word(text.lstrip())
            if over_now:
                self._note(word, joined, chance, (*begun.tokens, token))
            else:
                found.append(_Begun((*begun.tokens, token), chance, text, joined, begun.row))
        return found

    def _spelled(self, begun: _Begun, word: str) -> str:
        """A word in letters: those of several tokens together, where one of them is only a part of a letter."""
        if "\ufffd" not in word:
            return word
        tail = self.prompt[-4:]
        whole = self.tokenizer.decode([*tail, *begun.tokens])
        return whole.removeprefix(self.tokenizer.decode(tail)).lstrip() or word

"""The likeliest next words of a text, or the likeliest completions of the word that is being typed.

A word is a run of letters, digits and apostrophes; any other mark is a word of its own. The probability of a word is
that of all ways to spell it in tokens, with any spaces before it, and of something that is no letter coming next.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from weft.checkpoint.folder import LoadedModel
from weft.errors import UserError, shown
from weft.nn.rows import Ragged
from weft.tasks.answers import Suggestion, Suggestions
from weft.tasks.forward import check_finite, evaluating, unseen_in_words
from weft.tasks.model import Model
from weft.tasks.perplexity import as_prompts, writing_tokenizer
from weft.text.tokenizers.spelling import Spelling, half_word, inside
from weft.text.tokenizers.tokenizer import Tokenizer

LONGEST = 40  # tokens of a word, the spaces before it included
WHOLE = 0.5  # the probability of the typed letters being all of the word from which on they are taken for it
Floats = NDArray[np.float64]


@torch.inference_mode()
def suggest(
    model: LoadedModel | Model,
    text: str,
    *,
    top: int = 10,
    tokens: bool = False,
    complete_word: bool | None = None,
    width: int = 256,
) -> Suggestions:
    """The likeliest next words of a text, or with `tokens` the likeliest next tokens.

    `complete_word`: the last word of the text is half-typed, and words that begin with its letters are suggested (the
    letters themselves may be one), with their probabilities given those letters. False: the last word is complete.
    None: it is completed unless the model takes it for a whole word. A space after the last word makes it complete.
    """
    opened = model.opened if isinstance(model, Model) else model
    if not 1 <= top <= 1000:
        raise UserError(f"between 1 and 1000 suggestions can be made, not {top}")
    if tokens and complete_word:
        raise UserError("only words are completed: leave out tokens (--tokens) or complete_word (--complete-word)")
    tokenizer = writing_tokenizer(opened, decoder=True)
    typing = not tokens and complete_word is not False and bool(text) and inside(text[-1])
    with evaluating(opened.network), unseen_in_words(opened, [text]):
        if typing:
            half = half_word(tokenizer, text)
            search = _Search(opened, half.before, top, width, half.typed, half.letters, half.taken)
            if complete_word and not search.mass:
                raise UserError(f"no word that begins with {shown(half.letters)!r} can come here in this vocabulary")
            if complete_word or (search.mass and search.share(half.letters) < WHOLE):
                return search.suggestions(half.taken)
        if tokens:
            return _next_tokens(opened, tokenizer, text, top)
        return _next_words(opened, tokenizer, text, top, width)


def _next_words(opened: LoadedModel, tokenizer: Tokenizer, text: str, top: int, width: int) -> Suggestions:
    """The words that come after the last word of a text."""
    plain, borders = text.rstrip(" "), _Borders.of(tokenizer)
    first = None
    if plain and plain != text:  # a word that is complete does not go on
        first = borders.spaced | borders.ends
    elif plain and inside(plain[-1]):
        first = ~borders.goes_on
    search = _Search(opened, tokenizer.ids([plain], specials=False)[0], top, width, first=first)
    if not search.mass:
        raise UserError("this model predicts no other word here: the last one would go on")
    return search.suggestions()


def _next_tokens(opened: LoadedModel, tokenizer: Tokenizer, text: str, top: int) -> Suggestions:
    prompt = _framed(tokenizer, tokenizer.ids([text.rstrip(" ")], specials=False)[0])
    room = opened.config.context - 1
    logits, _ = opened.network.start(Ragged.of([prompt[-room:]], opened.device), room=room + 1)
    chances, texts = (
        _probabilities(check_finite(opened, logits, infinite=True), tokenizer)[0],
        Spelling.of(tokenizer).texts,
    )
    words = tuple(
        Suggestion(
            text=texts[token] or tokenizer.token(token) or "", probability=float(chances[token]), tokens=(token,)
        )
        for token in np.argsort(-chances, kind="stable")[:top].tolist()
    )
    return Suggestions(words=words, n_tokens=len(prompt), truncated=len(prompt) > room, exact=True, aside=0.0)


def _framed(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
    """The tokens of a text as a model reads them."""
    (prompt,) = as_prompts(tokenizer, [ids])
    if not prompt:
        raise UserError("nothing comes before the first word, and this vocabulary has no token that begins a text")
    return prompt


def _probabilities(logits: torch.Tensor, tokenizer: Tokenizer) -> Floats:
    """B V: of the next token; a model may have room for more tokens than its vocabulary has."""
    return logits.double().softmax(-1)[:, : tokenizer.vocabulary].cpu().numpy()


def first_word(text: str) -> tuple[str, bool]:
    """The first word or mark of a text that begins with one, and whether nothing that follows can make it longer."""
    end = next((place for place, character in enumerate(text) if not inside(character)), len(text))
    return (text[:end], end < len(text)) if end else (text[:1], True)


@dataclass(frozen=True)
class _Borders:
    """Where words begin and end in the tokens of a vocabulary."""

    goes_on: NDArray[np.bool_]  # tokens that begin inside a word
    spaced: NDArray[np.bool_]  # tokens that begin with a space or the like
    ends: NDArray[np.bool_]  # special tokens: nothing comes after them
    whole: NDArray[np.bool_]  # tokens with the end of a word in them: marks, or letters with something after them

    @staticmethod
    @lru_cache(maxsize=8)
    def of(tokenizer: Tokenizer) -> _Borders:
        texts = Spelling.of(tokenizer).texts
        return _Borders(
            goes_on=np.array([bool(text) and inside(text[0]) for text in texts]),
            spaced=np.array([bool(text) and text[0].isspace() for text in texts]),
            ends=np.array([not text for text in texts]),
            whole=np.array([bool(text.strip()) and first_word(text.lstrip())[1] for text in texts]),
        )


class _Beginning(NamedTuple):
    """A beginning of a word: its tokens so far, and how likely they are."""

    tokens: tuple[int, ...]
    probability: float
    text: str = ""  # all that it adds to the text
    rest: bytes = b""  # of what was typed, what it has not spelled yet


class _Search:
    """Follows the likeliest beginnings of words token by token until each word ends."""

    def __init__(
        self,
        model: LoadedModel,
        ids: list[int],
        top: int,
        width: int,
        typed: bytes = b"",
        letters: str = "",
        taken: int = 0,
        first: NDArray[np.bool_] | None = None,
    ) -> None:
        """After these tokens; every word begins with what was `typed`, and its first token is one of `first`."""
        assert model.tokenizer is not None
        self.network, self.device, self.tokenizer = model.network, model.device, model.tokenizer
        self.spelling, self.borders = Spelling.of(self.tokenizer), _Borders.of(self.tokenizer)
        self.texts, self.typed, self.letters = self.spelling.texts, typed, letters
        self.top, self.width, self.exact, self.aside = top, width, True, 0.0
        # By word: its probability, and that of its best spelling with the tokens.
        self.known = dict[str, tuple[float, float, tuple[int, ...]]]()
        context, self.prompt = model.config.context, _framed(self.tokenizer, ids)
        self.room = context - min(LONGEST, context // 2)
        kept = self.prompt[-self.room :]
        longest = min(LONGEST + taken, context - len(kept))
        logits, state = self.network.start(Ragged.of([kept], self.device), room=len(kept) + longest)
        probabilities = _probabilities(check_finite(model, logits, infinite=True), self.tokenizer)
        if first is not None:
            probabilities = probabilities * first
        self.mass = 0.0 if typed else float(probabilities.sum())  # of all that may come: the other words are left out
        if typed or self.mass:
            self.follow(probabilities, state, longest)

    def suggestions(self, taken: int = 0) -> Suggestions:
        """The likeliest words, each as likely as it is among all that may come."""
        likeliest = sorted(self.known.items(), key=lambda item: (-item[1][0], item[0]))[: self.top]
        words = tuple(
            Suggestion(text=text, probability=total / self.mass, tokens=spelling)
            for text, (total, _, spelling) in likeliest
        )
        return Suggestions(
            words=words,
            n_tokens=len(self.prompt) + taken,
            truncated=len(self.prompt) > self.room,
            exact=self.exact,
            aside=self.aside / self.mass,
            completes=self.letters,
        )

    def share(self, word: str) -> float:
        """How likely a word is among all that may come."""
        return self.known.get(word, (0.0,))[0] / self.mass

    def _note(self, word: str, probability: float, tokens: tuple[int, ...]) -> None:
        if "\ufffd" in word and "\ufffd" not in self.letters:  # it ends inside a character: bytes, and no word
            self.aside += probability
            return
        total, best, spelling = self.known.get(word, (0.0, 0.0, ()))
        best, spelling = (probability, tokens) if probability > best else (best, spelling)
        self.known[word] = total + probability, best, spelling

    def _leave(self, probabilities: Floats) -> None:
        """Beginnings that are not followed any further."""
        self.aside += float(probabilities.sum())
        self.exact &= bool(probabilities.max(initial=0.0) <= self._worst())

    def _worst(self) -> float:
        """What a word needs to be among those asked for."""
        totals = sorted((total for total, _, _ in self.known.values()), reverse=True)
        return totals[self.top - 1] if len(totals) >= self.top else 0.0

    def follow(self, probabilities: Floats, state: Any, longest: int) -> None:
        """From the probabilities of the first token (1 V) on, for at most so many tokens."""
        beginnings = [_Beginning((), 1.0, rest=self.typed)]
        for depth in range(1, longest + 1):
            grown = probabilities * np.array([each.probability for each in beginnings])[:, None]
            for row, each in enumerate(beginnings):
                if each.rest:
                    self._spell(grown[row], each)
                else:
                    self._end(grown[row], each)
            typing = np.array([bool(each.rest) for each in beginnings])[:, None]
            inner = grown * (self.borders.whole & ~typing)
            for row, token in zip(*np.nonzero(inner > 1e-3 * self._worst()), strict=True):
                each = beginnings[row]
                word, _ = first_word((each.text + self.texts[token]).lstrip())  # it ends inside the token
                self._note(word, float(grown[row, token]), (*each.tokens, int(token)))
            self._leave(inner[inner <= 1e-3 * self._worst()])
            grown[inner > 0] = 0.0
            # A beginning may still add to a word that is known, so those that nearly count are followed too.
            flat = grown.ravel()
            count = min(self.width, int((flat > 0.01 * self._worst()).sum())) if depth < longest else 0
            if not count:
                self._leave_all(grown, beginnings)
                return
            best = np.argpartition(-flat, count - 1)[:count]
            best = best[np.argsort(-flat[best], kind="stable")]
            rows, tokens = (numbers.tolist() for numbers in np.divmod(best, grown.shape[1]))
            pairs = zip(rows, tokens, flat[best].tolist(), strict=True)
            chosen = [self._longer(beginnings[row], token, chance) for row, token, chance in pairs]
            flat[best] = 0.0
            self._leave_all(grown, beginnings)
            beginnings = chosen
            state.pick(torch.tensor(rows, device=self.device))
            logits = self.network.step(torch.tensor(tokens, device=self.device), state)
            probabilities = _probabilities(logits, self.tokenizer)

    def _leave_all(self, grown: Floats, beginnings: list[_Beginning]) -> None:
        """Leave what is left of all rows; what has not spelled the letters might still have done so."""
        self._leave(grown)
        for row, each in enumerate(beginnings):
            if each.rest:
                shorter = [
                    n for n in self.spelling.following(each.rest) if len(self.spelling.bytes[n]) < len(each.rest)
                ]
                self.mass += float(grown[row, shorter].sum())

    def _spell(self, grown: Floats, each: _Beginning) -> None:
        """Keep the tokens that go on with the typed letters; a word may end in the one that spells the last of them."""
        tokens = self.spelling.following(each.rest)
        chances = grown[tokens]
        grown[:] = 0.0
        grown[tokens] = chances
        least = 1e-3 * self._worst()
        for token, chance in zip(tokens, chances.tolist(), strict=True):
            own = self.spelling.bytes[token]
            if len(own) < len(each.rest):
                continue
            self.mass += chance
            word, ended = first_word(self.letters + own[len(each.rest) :].decode("utf-8", "replace"))
            if not ended:
                continue
            grown[token] = 0.0
            if chance > least:
                self._note(word, chance, (*each.tokens, token))
            else:
                self._leave(np.array([chance]))

    def _end(self, grown: Floats, each: _Beginning) -> None:
        """Count the tokens that end a word: whatever begins with no letter does."""
        word = each.text.lstrip()
        ended = ~self.borders.goes_on if word else self.borders.ends
        over = float(grown[ended].sum())
        if word:
            self._note(self._spelled(each, word), over, each.tokens)
        elif over:
            self._note("", over, (*each.tokens, int((grown * ended).argmax())))
        grown[ended] = 0.0

    def _longer(self, each: _Beginning, token: int, chance: float) -> _Beginning:
        """A beginning with one more token."""
        own, text = self.spelling.bytes[token], each.text + self.texts[token]
        rest = each.rest[len(own) :]
        if each.rest:
            text = "" if rest else self.letters + own[len(each.rest) :].decode("utf-8", "replace")
        return _Beginning((*each.tokens, token), chance, text, rest)

    def _spelled(self, each: _Beginning, word: str) -> str:
        """A word in letters: those of several tokens together, where one of them is only a part of a letter."""
        if "\ufffd" not in word:
            return word
        tail = self.prompt[-4:]
        whole = self.tokenizer.decode([*tail, *each.tokens])
        return whole.removeprefix(self.tokenizer.decode(tail)).lstrip() or word

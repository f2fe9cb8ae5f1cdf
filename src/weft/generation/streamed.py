"""Text as it grows by tokens: whole characters, nothing of a stop string, and where the text of each token ends."""

from __future__ import annotations

from collections.abc import Sequence

from weft.generation.text import HALF, Prompt, continuation, new_text
from weft.text.tokenizers.spelling import BYTE
from weft.text.tokenizers.tokenizer import Tokenizer

WINDOW = 24  # tokens that are decoded again for each new one, at most as long as texts are usual
KEPT = 8  # tokens of them that are decoded again after the others are settled
CONTEXT = 4  # tokens before a window: some vocabularies put spaces only between words


class StreamedText:
    """The new text of one completion; what it says is that of `settled`, without decoding all of it at each token."""

    def __init__(self, tokenizer: Tokenizer, prompt: Prompt, stop: Sequence[str] = ()) -> None:
        self.tokenizer, self.prompt, self.stop = tokenizer, prompt, stop
        self.tokens: list[int] = []
        self.ends: list[int] = []  # of each token: characters of the text when it was there
        self.text = ""  # so far, stop strings included
        self.first = 0  # token of the window
        self.before = ""  # the text before it
        self.longest = max(map(len, stop), default=0)
        self.over = False  # a stop string has come
        self.ready = 0  # characters that stay as they are, whatever comes

    def add(self, tokens: Sequence[int]) -> None:
        """More tokens have come."""
        for token in tokens:
            self.tokens.append(token)
            known = len(self.text)
            text = self._decoded()
            if text.startswith(self.text):
                self.text = text
            self.ends.append(len(self.text))
            if not self.over:
                self._find_stop(known)
            if len(self.tokens) - self.first > WINDOW:
                self._settle()

    def _decoded(self) -> str:
        whole = list(self.tokens[self.first :])
        while whole and BYTE.fullmatch(self.tokenizer.token(whole[-1]) or ""):  # a run of bytes is decoded at its end
            whole.pop()
        if self.prompt.typed:
            return new_text(self.tokenizer, self.prompt, [*self.tokens[: self.first], *whole]).rstrip(HALF)
        return self.before + self._after(self.first, whole).rstrip(HALF)

    def _after(self, first: int, tokens: Sequence[int]) -> str:
        """The text of tokens from a place on."""
        before = [*self.prompt.tokens[-CONTEXT:], *self.tokens[max(0, first - CONTEXT) : first]][-CONTEXT:]
        if first == 0:
            before = list(self.prompt.tokens)
        return continuation(self.tokenizer, before, tokens)

    def _settle(self) -> None:
        """Move the window, where its text does not hang on what was before it."""
        if self.prompt.typed:
            return
        first = len(self.tokens) - KEPT
        end = self.ends[first - 1]
        rest = self.tokens[first:]
        if self._after(first, rest).rstrip(HALF) == self.text[end:] and self.text[end:]:
            self.first, self.before = first, self.text[:end]

    def _find_stop(self, known: int) -> None:
        """How much may be shown: up to a stop string, and not what may become one."""
        begin = max(0, known - self.longest)
        places = [place for string in self.stop if (place := self.text.find(string, begin)) >= 0]
        if places:
            self.over, self.ready = True, min(places)
            return
        tail = self.text[-self.longest :] if self.longest else ""
        begun = [size for string in self.stop for size in range(1, len(string)) if tail.endswith(string[:size])]
        self.ready = len(self.text) - max(begun, default=0)

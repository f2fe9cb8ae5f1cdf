"""Text from tokens: a decoder with its vocabulary, stop strings and words that may or may not occur."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from weft.errors import NotFinite, UserError, shown
from weft.generation.generate import generate, generate_steps
from weft.generation.options import BEAM, SAMPLING, GenerationOptions
from weft.generation.sampling import Rules, Sampling
from weft.generation.search import Beam, BeamCandidate, Completion, TokenDecoder
from weft.generation.wording import Piece, Written
from weft.nn.rows import Source
from weft.text.tokenizers.spelling import BYTE, Spelling, after_typed, half_word
from weft.text.tokenizers.tokenizer import Tokenizer

HALF = "\ufffd"  # what part of a character is decoded to
WINDOW = 24  # tokens that are decoded again for each new one, at most as long as texts are usual
KEPT = 8  # tokens of them that are decoded again after the others are settled
CONTEXT = 4  # tokens before a window: some vocabularies put spaces only between words
T = TypeVar("T")
Progress = Callable[[int], None] | None


@contextmanager
def naming(folder: Path | None) -> Iterator[None]:
    """Name the folder of the model whose search has met what is not a number."""
    try:
        yield
    except NotFinite:
        raise NotFinite(folder) from None


@dataclass(frozen=True)
class Prompt:
    """What one text is generated from."""

    tokens: Sequence[int]  # that it continues
    max_tokens: int | None = None  # where the options have none
    source: Source | None = None  # what an encoder-decoder reads
    typed: bytes = b""  # a half-typed word that its continuation begins with
    taken: int = 0  # tokens of that word, which were taken back


def search_of(options: GenerationOptions) -> Sampling | Beam:
    """The search that these options ask for."""
    sampling, beam = options.given(SAMPLING), options.given(BEAM)
    if options.beam_size is None:
        if beam:
            raise UserError(f"{next(iter(beam))} needs a beam: give beam_size")
        return Sampling(**sampling, n=options.n)
    if sampling:
        raise UserError(f"beam search does not sample: leave out {next(iter(sampling))}")
    return Beam(width=options.beam_size, n=options.n, **beam)


@dataclass(frozen=True, kw_only=True)
class TextGenerator:
    """A decoder and the vocabulary that it writes in."""

    decoder: TokenDecoder
    tokenizer: Tokenizer
    context: int | None
    device: torch.device | str = "cpu"
    never: tuple[int, ...] = ()  # tokens that it may not write
    folder: Path | None = None  # of the model, for messages
    observer: Callable[[int, list[BeamCandidate]], None] | None = None  # of a beam search: see `Request`

    def completions(
        self, prompts: Sequence[Prompt], options: GenerationOptions, batches: Iterable[Sequence[int]], ticks: Progress
    ) -> list[list[Completion]]:
        """The completions of each prompt, those of a batch side by side."""
        seeds, completions = options.seeds(len(prompts)), [list[Completion]() for _ in prompts]
        for batch in batches:
            own = [seeds[number] for number in batch]
            with naming(self.folder):
                request = self.request_options([prompts[number] for number in batch], options)
                some = generate(self.decoder, **request, seeds=own, on_progress=ticks)
            for number, best in zip(batch, some, strict=True):
                completions[number] = best
        return completions

    def pieces(self, prompt: Prompt, options: GenerationOptions) -> Generator[str, None, list[Completion]]:
        """The text of one prompt piece by piece, in whole characters; at the end what `completions` gives for it."""
        steps = generate_steps(self.decoder, **self.request_options([prompt], options), seeds=options.seeds(1))
        tokens: list[int] = []
        shown_text = ""
        while True:
            try:
                with naming(self.folder):
                    advance = next(steps)
            except StopIteration as end:
                completions: list[Completion] = end.value[0]
                break
            tokens += [token for _, token in advance if token is not None]
            text = settled(self.tokenizer, prompt, tokens, options.stop)
            if len(text) > len(shown_text) and text.startswith(shown_text):
                yield text[len(shown_text) :]
                shown_text = text
        if rest := self.written(prompt, completions[0], options.stop).text[len(shown_text) :]:
            yield rest
        return completions

    def request_options(self, prompts: Sequence[Prompt], options: GenerationOptions) -> dict[str, Any]:
        """The options of `generate`, in tokens, and its prompts."""
        limits = [prompt.max_tokens if options.max_tokens is None else options.max_tokens for prompt in prompts]
        limits = [limit and limit + prompt.taken for limit, prompt in zip(limits, prompts, strict=True)]
        end, tokenizer = self.tokenizer.id_of("end"), self.tokenizer
        tokens, typed = [prompt.tokens for prompt in prompts], [prompt.typed for prompt in prompts]
        forced = tokens_of(tokenizer, options.force) if options.force and not options.complete_word else ()
        if options.force and options.complete_word:
            half = half_word(tokenizer, options.force)
            forced, typed = tuple(half.before), [half.typed] * len(prompts)
            if tokenizer.id_of("unknown") in forced:
                raise UserError(f"this vocabulary has no tokens for {shown(options.force)!r}")
        return {
            "prompts": tokens,
            "sources": None if prompts[0].source is None else [prompt.source for prompt in prompts],
            "choice": search_of(options),
            "context": self.context,
            "max_tokens": None if None in limits else limits,
            "ends": () if end is None else (end,),
            "rules": Rules(
                repetition_penalty=options.repetition_penalty,
                no_repeat=options.no_repeat,
                banned=(*((token,) for token in self.never), *forms(tokenizer, options.ban)),
                allowed=forms(tokenizer, options.allow),
                choices=tuple(tokens_of(tokenizer, text) for text in options.choices),
                forced=forced,
                min_tokens=options.min_tokens,
            ),
            "typed": typed,
            "spelling": Spelling.of(tokenizer) if any(typed) else None,
            "stopped": stopper(tokenizer, prompts, options.stop) if options.stop else None,
            "slide": options.slide,
            "alternatives": options.logprobs,
            "attention": options.alignments,
            "observer": self.observer,
            "device": self.device,
        }

    def written(self, prompt: Prompt, completion: Completion, stop: Sequence[str]) -> Written:
        """A completion as text, up to the first stop string, less what was typed of its first word."""
        text = new_text(self.tokenizer, prompt, completion.tokens)
        ends = [text.find(string) for string in stop if string in text]
        alternatives = completion.alternatives or [[] for _ in completion.tokens]
        pieces = map(self._piece, completion.tokens, completion.logprobs or [], alternatives)
        attention = completion.attention
        return Written(
            text=text[: min(ends)] if ends and completion.finish_reason == "stop" else text,
            tokens=tuple(completion.tokens),
            finish_reason=completion.finish_reason,
            score=completion.score,
            logprob=completion.logprob,
            pieces=None if completion.logprobs is None else tuple(pieces),
            alignment=None if attention is None else tuple(map(tuple, attention.tolist())),
        )

    def _piece(self, token: int, logprob: float, others: Sequence[tuple[int, float]] = ()) -> Piece:
        text, alternatives = self.tokenizer.token(token) or "", tuple(self._piece(*other) for other in others)
        return Piece(token=token, text=text, logprob=logprob, alternatives=alternatives)


class Stream(Generic[T]):
    """Text as it is written: iterate over its pieces; `answer` is the whole once they are all there."""

    def __init__(self, pieces: Generator[str, None, T]) -> None:
        self._pieces = pieces
        self._answer: T | None = None

    def __iter__(self) -> Iterator[str]:
        self._answer = yield from self._pieces

    @property
    def answer(self) -> T:
        if self._answer is None:
            raise UserError("the text is not all there yet: iterate over the stream first")
        return self._answer


def continuation(tokenizer: Tokenizer, prompt: Sequence[int], generated: Sequence[int]) -> str:
    """The new text alone; decoded with the prompt, since some vocabularies put spaces only between words."""
    before, whole = tokenizer.decode(list(prompt)), tokenizer.decode([*prompt, *generated])
    return whole[len(before) :] if whole.startswith(before) else tokenizer.decode(list(generated))


def new_text(tokenizer: Tokenizer, prompt: Prompt, generated: Sequence[int]) -> str:
    """The new text after all that was typed."""
    text = continuation(tokenizer, prompt.tokens, generated)
    return after_typed(text, prompt.typed) if prompt.typed else text


def stopper(tokenizer: Tokenizer, prompts: Sequence[Prompt], stop: Sequence[str]) -> Callable[[int, list[int]], bool]:
    """Tells whether a row's text holds a stop string, wherever the borders of its tokens are."""
    # A character is at most four byte tokens, so this tail holds any stop string that the last token could complete.
    tail = 4 * max(map(len, stop)) + 8

    def stopped(row: int, generated: list[int]) -> bool:
        if prompts[row].typed:
            return any(string in new_text(tokenizer, prompts[row], generated) for string in stop)
        # The tokens before are for the space that some vocabularies put before a word.
        before = [*prompts[row].tokens[-4:], *generated[:-tail]][-4:]
        text = continuation(tokenizer, before, generated[-tail:])
        return any(string in text for string in stop)

    return stopped


def settled(tokenizer: Tokenizer, prompt: Prompt, generated: Sequence[int], stop: Sequence[str]) -> str:
    """The part of the new text that stays as it is, whatever comes: whole characters, and no beginning of a stop."""
    whole = list(generated)
    while whole and BYTE.fullmatch(tokenizer.token(whole[-1]) or ""):  # a run of bytes is decoded at its end
        whole.pop()
    text = new_text(tokenizer, prompt, whole).rstrip(HALF)
    ends = [text.find(string) for string in stop if string in text]
    if ends:
        return text[: min(ends)]
    begun = [size for string in stop for size in range(1, len(string)) if text.endswith(string[:size])]
    return text[: len(text) - max(begun, default=0)]


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


def forms(tokenizer: Tokenizer, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """The tokens of words, each at the beginning of a text and after a space."""
    return tuple(dict.fromkeys(tokens_of(tokenizer, text) for word in words for text in (word, f" {word}")))


def tokens_of(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """The tokens of a text that goes on after a prompt; some vocabularies put a space before it, whatever it says."""
    tokens = tuple(tokenizer.ids([text], specials=False)[0])
    if not tokens or tokenizer.id_of("unknown") in tokens:
        raise UserError(f"this vocabulary has no tokens for {shown(text)!r}")
    return tokens

"""Text out of a model that generates: what every task that writes shares, from options to completions."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from weft.errors import UserError, shown
from weft.generation.options import BEAM, SAMPLING, GenerationOptions
from weft.generation.sampling import Rules, Sampling
from weft.generation.search import Beam, Completion, TokenDecoder, generate, generate_steps
from weft.nn.rows import Source
from weft.tasks.answers import Piece, Text, Written
from weft.tasks.forward import naming
from weft.text.tokenizers.tokenizer import Tokenizer

ROWS = 128  # completions that are generated side by side
BYTE = re.compile(r"<0x[0-9A-F]{2}>")  # a token for a byte of a character that the vocabulary does not have
HALF = "\ufffd"  # what part of a character is decoded to


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


def rules_of(options: GenerationOptions, tokenizer: Tokenizer, never: tuple[int, ...] = ()) -> Rules:
    """What a completion may hold, in tokens; those of `never` in no case."""
    return Rules(
        repetition_penalty=options.repetition_penalty,
        no_repeat=options.no_repeat,
        banned=(*((token,) for token in never), *(form for word in options.ban for form in forms(tokenizer, word))),
        allowed=tuple(form for word in options.allow for form in forms(tokenizer, word)),
        choices=tuple(tokens_of(tokenizer, text) for text in options.choices),
        forced=tokens_of(tokenizer, options.force) if options.force else (),
        min_tokens=options.min_tokens,
    )


def check_beam_size(beam_size: int, vocabulary: int) -> None:
    """A beam that is wider than the vocabulary is a mistake: its first step has fewer candidates."""
    if beam_size > vocabulary:
        raise UserError(f"a beam of {beam_size} is wider than the vocabulary of {vocabulary} tokens")


@dataclass(frozen=True, kw_only=True)
class TextGenerator:
    """A decoder and the vocabulary that it writes in."""

    decoder: TokenDecoder
    tokenizer: Tokenizer
    context: int | None
    device: torch.device | str = "cpu"
    never: tuple[int, ...] = ()  # tokens that it may not write
    folder: Path | None = None  # of the model, for messages

    def write(
        self,
        prompts: Sequence[Sequence[int]],
        options: GenerationOptions,
        *,
        max_tokens: int | Sequence[int | None] | None = None,
        sources: Sequence[Source] | None = None,
        on_progress: Callable[[int], None] | None = None,
        rows: int | None = None,
    ) -> list[Text]:
        """A text for each prompt; `sources`: what an encoder-decoder reads; `max_tokens`: if the options have none."""
        search, seeds, answers = search_of(options), options.seeds(len(prompts)), list[Text]()
        rows = rows or max(1, ROWS // (options.beam_size or options.n))
        limit = max_tokens if options.max_tokens is None else options.max_tokens
        limits = list(limit) if isinstance(limit, Sequence) else [limit] * len(prompts)
        for first in range(0, len(prompts), rows):
            chunk = slice(first, first + rows)
            with naming(self.folder):
                completions = generate(
                    self.decoder,
                    prompts[chunk],
                    choice=search,
                    seeds=seeds[chunk],
                    sources=None if sources is None else sources[chunk],
                    on_progress=on_progress,
                    **self._keywords(prompts[chunk], options, limits[chunk]),
                )
            answers += [self._answer(*pair, options) for pair in zip(prompts[chunk], completions, strict=True)]
        return answers

    def stream(
        self, prompt: Sequence[int], options: GenerationOptions, max_tokens: int | None, source: Source | None = None
    ) -> Stream:
        """A text piece by piece, in whole characters."""
        search = search_of(options)
        if isinstance(search, Beam) or search.n > 1:
            raise UserError("only one text can be streamed, and a beam knows its text at the end alone")
        limit = max_tokens if options.max_tokens is None else options.max_tokens
        return Stream(self._pieces(prompt, options, search, limit, source))

    def _pieces(
        self, prompt: Sequence[int], options: GenerationOptions, search: Sampling, limit: int | None, source: Any
    ) -> Generator[str, None, Text]:
        keywords = self._keywords([prompt], options, [limit])
        keywords["sources"] = None if source is None else [source]
        steps = generate_steps(self.decoder, [prompt], choice=search, seeds=options.seeds(1), **keywords)
        tokens: list[int] = []
        given = ""
        while True:
            try:
                with naming(self.folder):
                    advance = next(steps)
            except StopIteration as end:
                answer = self._answer(prompt, end.value[0], options)
                break
            tokens += [token for _, token in advance if token is not None]
            text = settled(self.tokenizer, prompt, tokens, options.stop)
            if len(text) > len(given) and text.startswith(given):
                yield text[len(given) :]
                given = text
        if answer.text[len(given) :]:
            yield answer.text[len(given) :]
        return answer

    def _keywords(
        self, prompts: Sequence[Sequence[int]], options: GenerationOptions, limits: Sequence[int | None]
    ) -> dict[str, Any]:
        end = self.tokenizer.id_of("end")
        return {
            "context": self.context,
            "max_tokens": None if None in limits else list(limits),
            "ends": () if end is None else (end,),
            "rules": rules_of(options, self.tokenizer, self.never),
            "stopped": stopper(self.tokenizer, prompts, options.stop) if options.stop else None,
            "slide": options.slide,
            "alternatives": options.logprobs,
            "attention": options.alignments,
            "device": self.device,
        }

    def _answer(self, prompt: Sequence[int], completions: list[Completion], options: GenerationOptions) -> Text:
        """The best completion as text, with all of them where more than one was asked for."""
        texts = tuple(self._written(prompt, completion, options.stop) for completion in completions)
        return Text(
            **vars(texts[0]),
            best=texts if options.n > 1 else (),
            n_tokens=len(prompt),
            n_windows=max(completion.windows for completion in completions),
            truncated=self.context is not None and len(prompt) > self.context,
        )

    def _written(self, prompt: Sequence[int], completion: Completion, stop: Sequence[str]) -> Written:
        text = continuation(self.tokenizer, prompt, completion.tokens)
        ends = [text.find(string) for string in stop if string in text]
        attention = completion.attention
        return Written(
            text=text[: min(ends)] if ends and completion.finish_reason == "stop" else text,
            tokens=tuple(completion.tokens),
            finish_reason=completion.finish_reason,
            score=completion.score,
            logprob=completion.logprob,
            pieces=None if completion.logprobs is None else self._logprobs(completion),
            alignment=None if attention is None else tuple(map(tuple, attention.tolist())),
        )

    def _logprobs(self, completion: Completion) -> tuple[Piece, ...]:
        def piece(token: int, logprob: float) -> dict[str, Any]:
            return {"token": token, "text": self.tokenizer.token(token) or "", "logprob": logprob}

        alternatives = completion.alternatives or [[] for _ in completion.tokens]
        return tuple(
            Piece(**piece(token, logprob), alternatives=tuple(Piece(**piece(*other)) for other in others))
            for token, logprob, others in zip(completion.tokens, completion.logprobs or [], alternatives, strict=True)
        )


class Stream:
    """Text as it is written: iterate over its pieces; `answer` is the whole once they are all there."""

    def __init__(self, pieces: Generator[str, None, Text]) -> None:
        self._pieces = pieces
        self._answer: Text | None = None

    def __iter__(self) -> Iterator[str]:
        self._answer = yield from self._pieces

    @property
    def answer(self) -> Text:
        if self._answer is None:
            raise UserError("the text is not all there yet: iterate over the stream first")
        return self._answer


def continuation(tokenizer: Tokenizer, prompt: Sequence[int], generated: Sequence[int]) -> str:
    """The new text alone; decoded with the prompt, since some vocabularies put spaces only between words."""
    before, whole = tokenizer.decode(list(prompt)), tokenizer.decode([*prompt, *generated])
    return whole[len(before) :] if whole.startswith(before) else tokenizer.decode(list(generated))


def stopper(
    tokenizer: Tokenizer, prompts: Sequence[Sequence[int]], stop: Sequence[str]
) -> Callable[[int, list[int]], bool]:
    """Tells whether a row's text holds a stop string, wherever the borders of its tokens are."""
    # A character is at most four byte tokens, so this tail holds any stop string that the last token could complete.
    tail = 4 * max(map(len, stop)) + 8

    def stopped(row: int, generated: list[int]) -> bool:
        before = [*prompts[row][-4:], *generated[:-tail]][-4:]  # for the space that some vocabularies put before a word
        text = continuation(tokenizer, before, generated[-tail:])
        return any(string in text for string in stop)

    return stopped


def settled(tokenizer: Tokenizer, prompt: Sequence[int], generated: Sequence[int], stop: Sequence[str]) -> str:
    """The part of the new text that stays as it is, whatever comes: whole characters, and no beginning of a stop."""
    whole = list(generated)
    while whole and BYTE.fullmatch(tokenizer.token(whole[-1]) or ""):  # a run of bytes is decoded at its end
        whole.pop()
    text = continuation(tokenizer, prompt, whole).rstrip(HALF)
    ends = [text.find(string) for string in stop if string in text]
    if ends:
        return text[: min(ends)]
    begun = [size for string in stop for size in range(1, len(string)) if text.endswith(string[:size])]
    return text[: len(text) - max(begun, default=0)]


def forms(tokenizer: Tokenizer, word: str) -> list[tuple[int, ...]]:
    """The tokens of a word, at the beginning of a text and after a space."""
    return list(dict.fromkeys(tokens_of(tokenizer, text) for text in (word, f" {word}")))


def tokens_of(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """The tokens of a text that goes on after a prompt; some vocabularies put a space before it, whatever it says."""
    tokens = tuple(tokenizer.ids([text], specials=False)[0])
    if not tokens or tokenizer.id_of("unknown") in tokens:
        raise UserError(f"this vocabulary has no tokens for {shown(text)!r}")
    return tokens

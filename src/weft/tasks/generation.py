"""Text out of a model that speaks: what every task that writes shares, from words as options to words as answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from weft.errors import UserError, did_you_mean, shown
from weft.generation.beam import Beam
from weft.generation.rules import Rules
from weft.generation.sampling import Sampling
from weft.generation.search import speak, speech
from weft.generation.speaker import Speaker
from weft.generation.spoken import Spoken
from weft.nn.rows import Source
from weft.tasks.answers import Piece, Text, Written
from weft.tasks.finite import naming
from weft.text.tokenizers.tokenizer import Tokenizer

ROWS = 128  # answers that are written side by side
BYTE = re.compile(r"<0x[0-9A-F]{2}>")  # a token for a byte of a character that the vocabulary does not have
HALF = "\ufffd"  # what part of a character is decoded to
Words = str | Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Manner:
    """How to write, in a user's words."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical: float | None = None
    beam: int | None = None
    n: int = 1  # answers per prompt
    length_penalty: float | None = None
    coverage: float | None = None
    groups: int | None = None
    diversity: float | None = None
    repetition_penalty: float = 1.0
    no_repeat: int = 0
    ban: Words = ()  # words that may not come
    allow: Words = ()  # words that alone may come
    choices: Words = ()  # the answers that there are
    force: str = ""  # what every answer begins with
    least: int = 0  # new tokens before an answer may end
    stop: Words = ()  # strings that end an answer, and are no part of it
    seed: int | Sequence[int] = 0  # row n draws from seed + n, or from its own entry
    slide: bool = False  # read the last part of what is longer than the context
    logprobs: int | None = None  # log-probabilities, and how many alternatives to each token
    alignments: bool = False

    def __post_init__(self) -> None:
        for name in ("ban", "allow", "choices", "stop"):
            words = getattr(self, name)
            words = (words,) if isinstance(words, str) else tuple(words)
            if any(not isinstance(word, str) or not word for word in words):
                what = {"ban": "banned word", "allow": "allowed word", "choices": "choice", "stop": "stop string"}[name]
                raise UserError(f"a {what} cannot be empty")
            object.__setattr__(self, name, words)

    def choice(self) -> Sampling | Beam:
        """The search that this manner asks for."""
        drawn = {name: getattr(self, name) for name in ("temperature", "top_k", "top_p", "min_p", "typical")}
        beamed = {name: getattr(self, name) for name in ("length_penalty", "coverage", "groups", "diversity")}
        beamed = {name: value for name, value in beamed.items() if value is not None}
        if self.beam is None:
            if beamed:
                raise UserError(f"{next(iter(beamed))} is for a beam, and none is asked for")
            return Sampling(**drawn, n=self.n)
        for name, value in drawn.items():
            if value is not None:
                raise UserError(f"a beam looks for the best answer and draws nothing: it has no {name}")
        return Beam(width=self.beam, n=self.n, **beamed)

    def rules(self, tokenizer: Tokenizer, never: tuple[int, ...] = ()) -> Rules:
        """What may be said, in tokens; those of `never` in no case."""
        return Rules(
            repetition_penalty=self.repetition_penalty,
            no_repeat=self.no_repeat,
            banned=(*((token,) for token in never), *(form for word in self.ban for form in forms(tokenizer, word))),
            allowed=tuple(form for word in self.allow for form in forms(tokenizer, word)),
            choices=tuple(tokens_of(tokenizer, text) for text in self.choices),
            forced=tokens_of(tokenizer, self.force) if self.force else (),
            least=self.least,
        )

    def seeds(self, count: int) -> list[int]:
        """The seed of each of so many prompts."""
        found = list(self.seed) if isinstance(self.seed, Sequence) else [self.seed + row for row in range(count)]
        if len(found) != count:
            raise UserError(f"{len(found)} seeds for {count} prompts")
        return found


def check_width(beam: int, vocabulary: int) -> None:
    """A beam that is wider than the vocabulary is a slip: its first step has fewer ways to go."""
    if beam > vocabulary:
        raise UserError(f"a beam of {beam} is wider than the vocabulary of {vocabulary} tokens")


def manner_of(options: Mapping[str, Any]) -> Manner:
    """A manner from what a caller said."""
    known = [field.name for field in fields(Manner)]
    for name in options:
        if name not in known:
            raise UserError(f"there is no option {name!r} for writing{did_you_mean(name, known)}")
    return Manner(**options)


@dataclass(frozen=True, kw_only=True)
class Writer:
    """A speaker and the vocabulary that it writes in."""

    speaker: Speaker
    tokenizer: Tokenizer
    context: int | None
    device: torch.device | str = "cpu"
    never: tuple[int, ...] = ()  # tokens that it may not write
    folder: Path | None = None  # of the model, for messages

    def write(
        self,
        prompts: Sequence[Sequence[int]],
        manner: Manner,
        *,
        most: int | Sequence[int] | None = None,
        sources: Sequence[Source] | None = None,
        heard: Callable[[int], None] | None = None,
        rows: int | None = None,
    ) -> list[Text]:
        """An answer to each prompt; `sources` are what an encoder-decoder reads, `rows` how many go side by side."""
        choice, seeds, answers = manner.choice(), manner.seeds(len(prompts)), []
        rows = rows or max(1, ROWS // (manner.beam or manner.n))
        limits = [None if most is None else int(most)] * len(prompts) if not isinstance(most, Sequence) else list(most)
        for first in range(0, len(prompts), rows):
            some = slice(first, first + rows)
            options = self._options(prompts[some], manner, limits[some])
            with naming(self.folder):
                spoken = speak(
                    self.speaker,
                    prompts[some],
                    choice=choice,
                    seeds=seeds[some],
                    sources=None if sources is None else sources[some],
                    heard=heard,
                    **options,
                )
            pairs = zip(prompts[some], spoken, strict=True)
            answers += [self._answer(prompt, found, manner) for prompt, found in pairs]
        return answers

    def stream(
        self, prompt: Sequence[int], manner: Manner, *, most: int | None = None, source: Source | None = None
    ) -> Stream:
        """An answer piece by piece, in whole characters."""
        choice = manner.choice()
        if isinstance(choice, Beam) or choice.n > 1:
            raise UserError("only one answer can be streamed, and a beam knows its answer at the end alone")
        return Stream(self._pieces(prompt, manner, choice, most, source))

    def _pieces(
        self, prompt: Sequence[int], manner: Manner, choice: Sampling, most: int | None, source: Source | None
    ) -> Generator[str, None, Text]:
        options = self._options([prompt], manner, [most])
        options["sources"] = None if source is None else [source]
        steps = speech(self.speaker, [prompt], choice=choice, seeds=manner.seeds(1), **options)
        said: list[int] = []
        given = ""
        while True:
            try:
                with naming(self.folder):
                    went = next(steps)
            except StopIteration as told:
                answer = self._answer(prompt, told.value[0], manner)
                break
            said += [token for _, token in went if token is not None]
            text = settled(self.tokenizer, prompt, said, manner.stop)
            if len(text) > len(given) and text.startswith(given):
                yield text[len(given) :]
                given = text
        if answer.text[len(given) :]:
            yield answer.text[len(given) :]
        return answer

    def _options(self, prompts: Sequence[Sequence[int]], manner: Manner, most: Sequence[int | None]) -> dict[str, Any]:
        end = self.tokenizer.id_of("end")
        return {
            "context": self.context,
            "most": None if None in most else list(most),
            "ends": () if end is None else (end,),
            "rules": manner.rules(self.tokenizer, self.never),
            "stopped": stopper(self.tokenizer, prompts, manner.stop) if manner.stop else None,
            "slide": manner.slide,
            "alternatives": manner.logprobs,
            "attention": manner.alignments,
            "device": self.device,
        }

    def _answer(self, prompt: Sequence[int], spoken: list[Spoken], manner: Manner) -> Text:
        """The best of what was said as text, with all of it where more than one answer was asked for."""
        every = tuple(self._written(prompt, found, manner) for found in spoken)
        return Text(
            **{field.name: getattr(every[0], field.name) for field in fields(Written)},
            best=every if manner.n > 1 else (),
            n_tokens=len(prompt),
            n_windows=max(found.windows for found in spoken),
            truncated=self.context is not None and len(prompt) > self.context,
        )

    def _written(self, prompt: Sequence[int], spoken: Spoken, manner: Manner) -> Written:
        text = continuation(self.tokenizer, prompt, spoken.tokens)
        cuts = [text.find(string) for string in manner.stop if string in text]
        seen = spoken.attention
        return Written(
            text=text[: min(cuts)] if cuts and spoken.finish_reason == "stop" else text,
            tokens=tuple(spoken.tokens),
            finish_reason=spoken.finish_reason,
            score=spoken.score,
            logprob=spoken.logprob,
            pieces=None if spoken.logprobs is None else self._told(spoken),
            alignment=None if seen is None else tuple(map(tuple, seen.tolist())),
        )

    def _told(self, spoken: Spoken) -> tuple[Piece, ...]:
        def piece(token: int, logprob: float) -> dict[str, Any]:
            return {"token": token, "text": self.tokenizer.token(token) or "", "logprob": logprob}

        others = spoken.alternatives or [[] for _ in spoken.tokens]
        return tuple(
            Piece(**piece(token, logprob), alternatives=tuple(Piece(**piece(*other)) for other in beside))
            for token, logprob, beside in zip(spoken.tokens, spoken.logprobs or [], others, strict=True)
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


def continuation(tokenizer: Tokenizer, prompt: Sequence[int], said: Sequence[int]) -> str:
    """The new text alone; decoded with the prompt, since some vocabularies put spaces only between words."""
    before, whole = tokenizer.decode(list(prompt)), tokenizer.decode([*prompt, *said])
    return whole[len(before) :] if whole.startswith(before) else tokenizer.decode(list(said))


def stopper(
    tokenizer: Tokenizer, prompts: Sequence[Sequence[int]], stop: Sequence[str]
) -> Callable[[int, list[int]], bool]:
    """Tells whether a row's text holds a stop string, wherever the borders of its tokens are."""
    # A character is at most four byte tokens, so this tail holds any stop string that the last token could complete.
    tail = 4 * max(map(len, stop)) + 8

    def stopped(row: int, said: list[int]) -> bool:
        before = [*prompts[row][-4:], *said[:-tail]][-4:]  # for the space that some vocabularies put before a word
        text = continuation(tokenizer, before, said[-tail:])
        return any(string in text for string in stop)

    return stopped


def settled(tokenizer: Tokenizer, prompt: Sequence[int], said: Sequence[int], stop: Sequence[str]) -> str:
    """The part of the new text that stays as it is, whatever comes: whole characters, and no beginning of a stop."""
    whole = list(said)
    while whole and BYTE.fullmatch(tokenizer.token(whole[-1]) or ""):  # a run of bytes is decoded at its end
        whole.pop()
    text = continuation(tokenizer, prompt, whole).rstrip(HALF)
    found = [text.find(string) for string in stop if string in text]
    if found:
        return text[: min(found)]
    begun = [size for string in stop for size in range(1, len(string)) if text.endswith(string[:size])]
    return text[: len(text) - max(begun, default=0)]


def forms(tokenizer: Tokenizer, word: str) -> list[tuple[int, ...]]:
    """The tokens of a word, at the beginning of a text and after a space."""
    return list(dict.fromkeys(tokens_of(tokenizer, text) for text in (word, f" {word}")))


def tokens_of(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """The tokens of a text that goes on after a prompt; some vocabularies put a space before it, whatever it says."""
    found = tuple(tokenizer.ids([text], specials=False)[0])
    if not found or tokenizer.id_of("unknown") in found:
        raise UserError(f"this vocabulary has no tokens for {shown(text)!r}")
    return found

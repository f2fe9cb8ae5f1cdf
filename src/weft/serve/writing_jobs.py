"""Jobs that generate text, as one client sends them: prompts into tokens, generated tokens into pieces and answers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from weft.errors import NotFinite, UserError, shown
from weft.generation.options import GenerationOptions
from weft.generation.pending import PendingText
from weft.generation.search import Completion, Detail
from weft.generation.text import HALF, Prompt, StreamedText, TextGenerator, naming
from weft.serve import messages
from weft.serve.frames import Message
from weft.serve.plans import Fault, plain_answer
from weft.tasks import complete
from weft.tasks.forward import tokenizer_of, unseen_in_words
from weft.tasks.registry import FROM_TEXT
from weft.text.tokenizers.tokenizer import Tokenizer

Json = dict[str, Any]
LEAST = -9999.0  # in place of the log-probability of what cannot come: JSON has no infinity


class WritingJob:
    """One job and the texts that are generated for it."""

    field = "prompt"  # of the request that holds the inputs

    def __init__(self, message: Message, opened: Any, generator: TextGenerator, arrived: float) -> None:
        self.number: int = message["id"]
        self.message, self.opened, self.generator, self.arrived = message, opened, generator, arrived
        self.streams = bool(message.get("stream"))
        self.options: GenerationOptions
        self.prompts: list[Prompt] = []  # of each text
        self.seeds: list[int] = []
        self.asked: list[Json] = []
        self.texts: list[PendingText] = []  # as they were let in
        self.tokens = 0  # of all inputs
        self.left = 0  # texts that are not over ...
        self.over = 0  # ... and that are
        self.cancelled = False
        self.tokenizing = 0.0
        self.ended = 0.0

    def prepare(self) -> None:
        """Check and tokenize: the part of the work that needs no network."""
        begin = time.perf_counter()
        with self._naming_option():
            self.options = self.checked(self.message["options"])
        self.tokenize(messages.inputs_of(self.message))
        most = self.message["limits"].get("tokens")
        if most is not None and self.tokens > most:
            raise Fault(413, f"{self.tokens:,} tokens in one request, more than {most:,}", self.field)
        with self._naming_option():
            self.asked = [self.asks(place, seed) for place, seed in enumerate(self.seeds)]
        self.left, self.tokenizing = len(self.prompts), time.perf_counter() - begin

    @contextmanager
    def _naming_option(self) -> Iterator[None]:
        """Name the option that a message begins with."""
        try:
            yield
        except Fault:
            raise
        except UserError as error:
            name, message = str(error).partition(" ")[0], str(error)
            if message.startswith("greedy search gives one text") and self.message["kind"] == "generate":
                name, message = "n", message.replace("give beam_size or a", "give a")  # no route for prompts has beams
            raise Fault(422, message, name if name in self.message["options"] else None) from None

    def checked(self, given: Mapping[str, Any]) -> GenerationOptions:
        """The options of the job."""
        return complete.options_for(self.opened, given)

    def tokenize(self, inputs: Sequence[Any]) -> None:
        """Make the prompts of the inputs."""
        raise NotImplementedError

    def asks(self, place: int, seed: int) -> Json:
        """What `Continuous.admit` takes for a text."""
        options = self.generator.request_options([self.prompts[place]], self.options)
        sources = options.pop("sources")
        (prompt,) = options.pop("prompts")
        del options["device"]
        return {**options, "prompt": prompt, "source": None if sources is None else sources[0], "seed": seed}

    def fault_in(self, place: int, error: Exception) -> Exception:
        """The failure of one text, as the client is told."""
        text = self.message["prompts"][place] if "prompts" in self.message else ""
        try:
            with naming(self.opened.folder), unseen_in_words(self.opened, [text] if isinstance(text, str) else []):
                raise error
        except Exception as failure:
            return failure if isinstance(failure, NotFinite) else self.named(place, failure)

    def named(self, place: int, error: Exception) -> Exception:
        """A mistake in one input, with its place in the request in front."""
        if isinstance(error, Fault) or not isinstance(error, UserError):
            return error
        field, own = f"{self.field}[{place}]", str(error).removeprefix("prompt 1 ")
        if own.startswith("no length limit"):
            return Fault(422, "max_tokens is missing: nothing else limits the length of this text", "max_tokens")
        for hint in ("; --slide (slide=True) reads the last part of it", "; weft translate reads long texts in pieces"):
            own = own.replace(hint, "")
        return Fault(422, f"{field} {own}" if own != str(error) else f"{field}: {own}", field)

    def pieces(self, place: int) -> list[Message]:
        """What can be shown of a text since the last time."""
        return []

    def answers(self) -> list[Json]:
        """The answers, once all texts are over."""
        raise NotImplementedError

    def done(self, batch: int) -> Message:
        """The reply."""
        begin = time.perf_counter()
        answers = self.answers()
        entered = [text.entered for text in self.texts if text.entered is not None]
        first = min(entered, default=self.ended)
        timings = {
            "queue": max(0.0, first - self.arrived - self.tokenizing),
            "tokenize": self.tokenizing,
            "model": self.ended - first,
            "post": time.perf_counter() - begin,
        }
        return messages.done(
            self.number, answers, prompt_tokens=self.tokens, completion_tokens=self.written, timings=timings,
            batch_tokens=batch,
        )  # fmt: skip

    @property
    def written(self) -> int:
        """Tokens that were generated."""
        return sum(len(each.tokens) for text in self.texts for each in text.completions or ())


class CompletionJob(WritingJob):
    """Prompts to continue, or what an encoder-decoder writes for them."""

    def __init__(self, *inputs: Any) -> None:
        super().__init__(*inputs)
        self.field = self.message.get("field", "prompt")
        self.echo = bool(self.message.get("echo"))
        self.views: list[list[StreamedText]] = []  # of each prompt and each of its samples
        self.shown: dict[tuple[int, int], tuple[int, int]] = {}  # characters and tokens that were sent
        self.ahead: list[int] = []  # tokens before those of each prompt, which the client has not sent

    def checked(self, given: Mapping[str, Any]) -> GenerationOptions:
        if self.echo and self.opened.family.reads:
            raise Fault(422, "echo: an encoder-decoder does not continue its prompt", "echo")
        return super().checked(given)

    def tokenize(self, inputs: Sequence[Any]) -> None:
        options = self.options
        for place, given in enumerate(inputs):
            try:
                self.prompts.append(self._prompt(given))
            except UserError as error:
                raise self.named(place, error) from None
        count = (len(p.tokens) + p.taken if p.source is None else len(p.source) for p in self.prompts)
        self.tokens = sum(count)
        self.seeds = options.seeds(len(self.prompts))
        stop = options.stop
        self.views = [[StreamedText(self.tokenizer, p, stop) for _ in range(options.n)] for p in self.prompts]

    @property
    def tokenizer(self) -> Tokenizer:
        return self.generator.tokenizer

    def _prompt(self, given: Any) -> Prompt:
        """A prompt of text, or of tokens."""
        if isinstance(given, str):
            return complete.prompts_of(self.opened, [given], self.options)[0]
        known = tokenizer_of(self.opened).vocabulary
        if not isinstance(given, list) or not given:
            raise UserError("a prompt is a text, or a list of tokens that is not empty")
        for token in given:
            if type(token) is not int or not 0 <= token < known:
                raise UserError(f"{shown(repr(token))} is no token of this model, whose last one is {known - 1}")
        if self.opened.family.numbers or self.options.complete_word:
            raise UserError("a text is expected, and not tokens")
        if self.opened.family.reads:
            return complete.source_prompts(self.opened, [given])[0]
        return Prompt(given, complete.MAX_TOKENS if self.opened.config.context >= complete.ENDLESS else None)

    def asks(self, place: int, seed: int) -> Json:
        scores = self.echo and self.options.logprobs is not None
        return {**super().asks(place, seed), "scores_prompt": scores}

    def pieces(self, place: int) -> list[Message]:
        text, pieces = self.texts[place], list[Message]()
        asked = self.options.logprobs is not None
        if text.error is not None or text.cancelled or (asked and not text.in_rows and text.completions is None):
            return []  # a plain search hands out no log-probabilities before its end
        for choice, view in enumerate(self.views[place]):
            tokens = text.tokens[choice] if choice < len(text.tokens) else []
            final: str | None = None
            if text.completions is not None:
                completion = text.completions[choice]
                tokens = completion.tokens
                final = self.generator.written(self.prompts[place], completion, self.options.stop).text
            view.add(tokens[len(view.tokens) :])
            pieces += self._new(place, choice, view, final)
        return pieces

    def _new(self, place: int, choice: int, view: StreamedText, final: str | None) -> list[Message]:
        """The text of a choice that was not shown yet; `final`: all that there will ever be."""
        known = self.shown.get((place, choice))
        characters, count = known or (0, 0)
        text = view.text[: view.ready] if final is None else final
        ends = [end for end in view.ends[count:] if end <= len(text)] if final is None else view.ends[count:]
        asked = self.options.logprobs is not None
        if len(text) <= characters and not (final is not None and ends and asked):
            if known is None and self.echo and (view.tokens or final is not None):
                self.shown[place, choice] = 0, 0
                return [self._echoed(place, choice)]
            return []
        self.shown[place, choice] = max(characters, len(text)), count + len(ends)
        echoed = [self._echoed(place, choice)] if self.echo and known is None else []
        pieces = self._written(place, choice, text, count)[: len(ends)] if asked else None
        tokens = view.tokens[count : count + len(ends)]
        piece = messages.piece(
            self.number, text[characters:], prompt=place, choice=choice, tokens=tokens, logprobs=pieces
        )
        return [*echoed, piece]

    def _echoed(self, place: int, choice: int) -> Message:
        tokens = list(self.prompts[place].tokens)
        pieces = self.prompt_pieces(place) if self.options.logprobs is not None else None
        return messages.piece(
            self.number, self.prompt_text(place), prompt=place, choice=choice, tokens=tokens, logprobs=pieces
        )

    # ------------------------------------------------------------------------------------------ log-probabilities

    def _written(self, place: int, choice: int, text: str, first: int = 0) -> list[Json]:
        """The tokens of a choice from one on, as JSON; `written`: what each adds to the text, so far as it is shown."""
        pending, view = self.texts[place], self.views[place][choice]
        details = pending.details[choice] if choice < len(pending.details) else []
        if pending.completions is not None:
            details = details_in(pending.completions[choice])
        parts = self.parts(view.ends, text, pending.completions is not None, first)
        pairs = zip(view.tokens[first:], details[first:], parts, strict=False)
        return [self.piece(token, detail.logprob, detail.alternatives, part) for token, detail, part in pairs]

    @staticmethod
    def parts(ends: Sequence[int], text: str, whole: bool, first: int = 0) -> list[str]:
        """What each token from one on adds to a text that may have been cut before a stop string."""
        parts, begin = list[str](), ends[first - 1] if first else 0
        for number, end in enumerate(ends[first:], first + 1):
            end = len(text) if whole and number == len(ends) and end <= len(text) else end
            parts.append(text[begin:end])
            begin = max(begin, end)
        return parts

    def piece(
        self, token: int, logprob: float | None, alternatives: Sequence[tuple[int, float]] = (), part: str | None = None
    ) -> Json:
        """One token as answers have it, with `written`, what it adds to the text."""
        name = self.tokenizer.token(token) or ""
        if part is None:
            part = self.tokenizer.decode([token])
            part = part if part and HALF not in part else name
            part = " " + part if name.startswith("▁") and not part.startswith((" ", "▁")) else part
        others = [self.piece(*other) for other in alternatives]
        value = None if logprob is None else max(logprob, LEAST)
        return {"token": token, "text": name, "logprob": value, "alternatives": others, "written": part}

    def prompt_text(self, place: int) -> str:
        """A prompt as text."""
        given = self.message["prompts"][place]
        return given if isinstance(given, str) else self.tokenizer.decode(given)

    def prompt_pieces(self, place: int) -> list[Json]:
        """The tokens of a prompt that is repeated; the first one follows nothing, so it has no log-probability."""
        given, tokens = self.message["prompts"][place], list(self.prompts[place].tokens)
        values: list[Detail | None] = [None, *self.texts[place].prompt_details]
        whole = self.prompt_text(place)
        own, ends = tokens, list[int]()
        if isinstance(given, str):
            encoded = self.tokenizer.encode(given)
            inside = zip(encoded.ids, encoded.offsets, encoded.sequences, strict=True)
            known = [(token, end) for token, (_, end), side in inside if side is not None]
            if known and [token for token, _ in known] == tokens[len(tokens) - len(known) :]:
                own, ends = [token for token, _ in known], [end for _, end in known]
        if not ends:
            view = StreamedText(self.tokenizer, Prompt([]))
            view.add(own)
            ends = view.ends
        parts = self.parts(ends, whole, whole=True)
        details = values[len(tokens) - len(own) :] or [None] * len(own)
        return [
            self.piece(token, None, (), part)
            if detail is None
            else self.piece(token, detail.logprob, detail.alternatives, part)
            for token, part, detail in zip(own, parts, details, strict=False)
        ]

    def answers(self) -> list[Json]:
        return [self._answer(place, text) for place, text in enumerate(self.texts)]

    def _answer(self, place: int, pending: PendingText) -> Json:
        assert pending.completions is not None
        prompt, asked = self.prompts[place], self.options.logprobs is not None
        answer = plain_answer(complete.text_of(self.generator, prompt, pending.completions, self.options))
        ahead = self.prompt_text(place) if self.echo else ""
        echoed = self.prompt_pieces(place) if self.echo and asked else []
        for choice, text in enumerate(answer["best"] or [answer]):
            view = self.views[place][choice]
            view.add(pending.completions[choice].tokens[len(view.tokens) :])
            if asked:
                text["pieces"] = [*echoed, *self._written(place, choice, text["text"])]
            text["text"] = ahead + text["text"]
        if answer["best"]:
            answer |= {name: value for name, value in answer["best"][0].items() if name in ("text", "pieces")}
        return answer


def details_in(completion: Completion) -> list[Detail]:
    """What is known of the tokens of a completion."""
    logprobs = completion.logprobs or []
    others: Sequence[Any] = completion.alternatives or [[] for _ in logprobs]
    return [Detail(logprob, ranked, None) for logprob, ranked in zip(logprobs, others, strict=True)]


class TranslationJob(WritingJob):
    """Texts to write in other words; each goes through in parts, and is shown part by part."""

    field = "input"

    def __init__(self, *inputs: Any) -> None:
        super().__init__(*inputs)
        self.parts: list[complete.Part] = []
        self.shown: list[str] = []

    def checked(self, given: Mapping[str, Any]) -> GenerationOptions:
        complete.check_writer(self.opened)
        usual = {"beam_size": complete.BEAM_SIZE, **given}
        return complete.options_for(self.opened, usual, complete.TRANSLATING, positive=True)

    def tokenize(self, inputs: Sequence[Any]) -> None:
        for place, text in enumerate(inputs):
            if not isinstance(text, str):
                raise Fault(422, "a text is expected", f"input[{place}]")
        prefix, context = self.opened.card.prefix or "", self.generator.context
        self.parts = complete.parts_of(self.opened, inputs, prefix, context)
        self.prompts = complete.source_prompts(self.opened, [part.tokens for part in self.parts])
        self.tokens = sum(len(part.tokens) for part in self.parts)
        self.seeds = [0] * len(self.parts)
        self.shown = [""] * len(inputs)

    def pieces(self, place: int) -> list[Message]:
        """The parts of a text that are over, up to the first that is not."""
        number = self.parts[place].text
        joined, gap = "", ""
        for part, text in zip(self.parts, self.texts, strict=False):  # the last ones may not have come in yet
            if part.text != number:
                continue
            if text.completions is None:
                break
            written = complete.writer_of(self.opened).decode(text.completions[0].tokens).strip()
            joined, gap = joined + gap + written, part.after
        joined, before = joined.strip(), self.shown[number]
        if len(joined) <= len(before) or not joined.startswith(before):
            return []
        self.shown[number] = joined
        return [messages.piece(self.number, joined[len(before) :], prompt=number)]

    def answers(self) -> list[Json]:
        by_text: list[list[tuple[complete.Part, list[Completion]]]] = [[] for _ in self.shown]
        for part, text in zip(self.parts, self.texts, strict=True):
            assert text.completions is not None
            by_text[part.text].append((part, text.completions))
        return [plain_answer(complete.translation(self.opened, own, self.options.n)) for own in by_text]


def job_of(message: Message, model: Any, generator: TextGenerator, arrived: float) -> WritingJob | None:
    """A job as it is generated for; None: its task has a way of its own."""
    if message["kind"] == "generate":
        return CompletionJob(message, model.loaded, generator, arrived)
    if message["task"] in FROM_TEXT and model.loaded.family.reads:
        return TranslationJob(message, model.loaded, generator, arrived)
    return None

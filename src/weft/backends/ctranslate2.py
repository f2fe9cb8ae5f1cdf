"""Models that CTranslate2 runs, in place of a network.

The engine computes an encoder's last layer, and the heads of its family read it. For a decoder the engine generates:
`search` takes the place of `generation.search`, and refuses in one line what the engine cannot do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from weft.backends.ct2_files import ENGINE, EngineFiles, check_files, named_tokens
from weft.backends.engine import Engine
from weft.backends.groups import grouped
from weft.checkpoint.families import outline
from weft.checkpoint.folder import LoadedModel, fill
from weft.checkpoint.tensors import read_file
from weft.errors import NotFinite, UserError, listed, shown
from weft.files import MEGABYTE, read_json
from weft.generation.sampling import Rules, Sampling
from weft.generation.search import Beam, Completion, Request, SearchSteps, by_length
from weft.models.base import Network
from weft.nn.rows import Rows, check_context

HEADS = "heads.safetensors"  # the weights of heads, which the engine cannot run
# CTranslate2 ends a beam search after PATIENCE x width finished answers; `generation.search` goes on until no better
# answer is possible. On translations the answers are equal in 59 of 60 texts with 3, in 47 with 1.
PATIENCE = 3.0


def library(module: str = "") -> Any:
    """The package, or a module of it; UserError if it is not installed."""
    try:
        return import_module(f"ctranslate2.{module}".rstrip("."))
    except ImportError:
        raise UserError("a model for CTranslate2 needs the package ctranslate2: pip install 'weft[fast-cpu]'") from None


def engine_of(kind: str, folder: Path, precision: str | None) -> Any:
    """CTranslate2's Encoder, Generator or Translator of a folder, on as many threads as torch has."""
    package = library()
    # Given explicitly: by default the engine would take the type of the file, and warn if a CPU cannot run it.
    works = "int8_float32" if precision == "int8" else "float32"
    with engine_errors(folder, "cannot open it"):
        return vars(package)[kind](str(folder), compute_type=works, intra_threads=torch.get_num_threads())


@contextmanager
def engine_errors(folder: Path, what: str = "failed") -> Iterator[None]:
    """Turn exceptions of the engine into a UserError that names its folder."""
    try:
        yield
    except (RuntimeError, ValueError, IndexError, OverflowError, MemoryError) as error:  # its C++ exceptions, by name
        raise UserError(f"{folder}: CTranslate2 {what}: {shown(str(error), 160)}") from None


def cannot(what: str) -> UserError:
    return UserError(f"CTranslate2 cannot {what}; use the model that this one was exported from")


def network_of(folder: Path, model: LoadedModel) -> Network:
    """An object that takes the place of a network whose layers CTranslate2 runs."""
    config, family, inside = model.config, model.family, folder / ENGINE
    try:
        words = named_tokens(model.writer, config.vocabulary)
        vocabularies = {"vocabulary": words}
        if family.reads:
            read = named_tokens(model.tokenizer, config.source_vocabulary or config.vocabulary)
            both = {"source_vocabulary": read, "target_vocabulary": words}
            vocabularies = {"shared_vocabulary": words} if read == words else both
        spec = "TransformerSpec" if family.reads else "TransformerDecoderSpec"
        spec = spec if family.generates else "TransformerEncoderSpec"
        check_files(inside, EngineFiles(spec, config, model.card.precision, vocabularies, model.writer))
    except IndexError:  # of a special token
        raise UserError(f"{folder}: a token of the tokenizer is none of the model's {config.vocabulary}") from None
    if not family.generates:
        return CT2Encoder(inside, model, heads_of(folder, model)).eval()
    return CT2Decoder(inside, model, list(vocabularies.values())).eval()


def kept_names(names: Sequence[str], config: Any, heads: Mapping[str, int]) -> list[str]:
    """The tensors that torch keeps: of the heads, the pooler, and the table of tokens where words are scored by it."""
    table = "words" in heads and config.tied
    return [name for name in names if name.startswith(("heads.", "pooler.")) or (table and name == "tokens.weight")]


def heads_of(folder: Path, model: LoadedModel) -> Network:
    """The family's own network with its heads alone: it knows how they read a hidden state."""
    config, path = model.config, folder / HEADS
    stored = read_file(path) if path.exists() else {}
    if config.has("pooler"):  # the published format does not say it: the tensors do
        config = replace(config, pooler=any(name.startswith("pooler.") for name in stored))
    network = outline(model.family, config, model.heads)
    names = kept_names(list(network.state_dict()), config, model.heads)
    kept = {name.partition(".")[0] for name in names} | {"heads"}
    for name, _ in list(network.named_children()):
        if name not in kept:
            setattr(network, name, nn.Identity())
    if not network.state_dict() and not stored:
        return network
    try:
        fill(network, stored)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    return network


class CT2Encoder(Engine):
    """An encoder: its last layer from the engine, its heads in torch."""

    def __init__(self, folder: Path, model: LoadedModel, body: Any) -> None:
        super().__init__(model.config)
        self.folder, self.body = folder, body
        self.engine = engine_of("Encoder", folder, model.card.precision)
        self.marked = model.config.has("segments")

    @property
    def heads(self) -> Any:
        return self.body.heads

    def forward(
        self, tokens: Tensor, rows: Rows, segments: Tensor | None = None, states: list[Tensor] | None = None
    ) -> Tensor:
        """N tokens -> N width"""
        if states is not None:
            raise cannot("return any layer but the last")
        check_context(rows.longest, self.config.context)
        sizes = rows.lengths().tolist()
        marks = torch.zeros_like(tokens) if segments is None or self.config.segments == 1 else segments
        texts, kinds = ([part.tolist() for part in torch.split(flat, sizes)] for flat in (tokens, marks))
        hidden = torch.empty(len(tokens), self.config.width)
        parts = torch.split(hidden, sizes)
        for group in grouped(sizes, padding=False):
            fed = [kinds[row] for row in group] if self.marked else None
            with engine_errors(self.folder):
                output = self.engine.forward_batch([texts[row] for row in group], token_type_ids=fed)
                square = torch.from_numpy(np.asarray(output.last_hidden_state, dtype=np.float32))  # b t width
            if square.shape != (len(group), sizes[group[0]], self.config.width):
                shape = tuple(square.shape)
                raise UserError(f"{self.folder}: CTranslate2 gave states of shape {shape} for {len(group)} rows")
            for row, vectors in zip(group, square, strict=True):
                parts[row].copy_(vectors)
        return hidden

    def logits(self, head: str, hidden: Tensor, rows: Rows) -> Tensor:
        return self.body.logits(head, hidden, rows)

    def words(self, hidden: Tensor) -> Tensor:
        return self.body.words(hidden)

    def pooled(self, hidden: Tensor, rows: Rows) -> Tensor:
        return self.body.pooled(hidden, rows)


class CT2Decoder(Engine):
    """A decoder, or an encoder-decoder, that the engine itself searches."""

    SCORES_TEXTS = SEARCHES = True

    def __init__(self, folder: Path, model: LoadedModel, vocabularies: list[list[str]]) -> None:
        super().__init__(model.config)
        self.folder, self.reads, self.never = folder, model.family.reads, model.never
        self.precision, self.patience = model.card.precision, PATIENCE
        self.engine = engine_of("Translator" if self.reads else "Generator", folder, self.precision)
        self.source_words, self.target_words = vocabularies[0], vocabularies[-1]
        self.engine_end = read_json(folder / "config.json", MEGABYTE)["eos_token"]
        self.numbers = {word: number for number, word in enumerate(self.target_words)}

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        raise cannot("return the hidden states of a decoder")

    def start(self, *inputs: Any, **named: Any) -> Any:
        raise cannot("decode step by step, which ensembles and rankings of words need")

    def does(self, request: Request) -> bool:
        """Whether the engine generates for a request as torch would; always True if there is no network for torch."""
        if self.stand_in is None:
            return True
        # Not for sampling, whose random numbers differ, nor where a search is observed or log-probabilities are wanted.
        sampled = isinstance(request.choice, Sampling) and not request.choice.greedy
        if sampled or request.choice.n > 1 or request.observer is not None:
            return False
        return not self._refused(request)

    def search(self, request: Request) -> SearchSteps:
        """The answers to each prompt, as `generation.search` gives them; token by token if they are streamed."""
        options = self._options(request)
        if request.live and options["beam_size"] == options["num_hypotheses"] == len(request.prompts) == 1:
            return (yield from self._one(request, options))
        # Rows that go through the engine at once: of a decoder those with equally long prompts, since among others the
        # engine would not let a short one end early. What is sampled goes row by row, each with a seed of its own.
        groups: dict[Any, list[int]] = {}
        for row, prompt in enumerate(request.prompts):
            sampled = isinstance(request.choice, Sampling) and not request.choice.greedy
            key: Any = row if sampled else None if self.reads else (len(prompt), request.limits[row])
            groups.setdefault(key, []).append(row)
        by_row: list[list[Completion]] = [[] for _ in request.prompts]
        longest = max(request.limits, default=0)
        for group in groups.values():
            results = self._batch(request, group, options)
            for row, completions in zip(group, results, strict=True):
                by_row[row] = completions
            yield [(row, None) for row in group for _ in by_row[row][0].tokens]
        for row, completions in enumerate(by_row):
            limit = request.limits[row]
            if self.reads and limit < longest and any(len(each.tokens) >= limit for each in completions):
                # Its neighbors had more room, so it may have been cut elsewhere: it is asked again, alone.
                by_row[row] = self._batch(request, [row], options)[0]
                yield [(row, None) for _ in by_row[row][0].tokens]
        return by_row

    def _batch(self, request: Request, group: list[int], options: dict[str, Any]) -> list[list[Completion]]:
        """The answers of a group of rows; all may have as many tokens as the row with the highest limit."""
        engine, generated = self._seeded(request, group[0]), [list[int]() for _ in group]

        def on_progress(step: Any) -> bool:
            generated[step.batch_id].append(step.token_id)
            return request.stopped is not None and request.stopped(group[step.batch_id], generated[step.batch_id])

        limit, penalty = max(request.limits[row] for row in group), options["length_penalty"]
        more = {**options, "return_scores": True, "return_end_token": True, **self._lengths(request, limit)}
        if request.stopped is not None:
            more["callback"] = on_progress
        prompts = [self._prompt(request, row) for row in group]
        with engine_errors(self.folder):
            if self.reads:
                results = engine.translate_batch(prompts, max_input_length=0, **more)
            else:
                results = engine.generate_batch(prompts, include_prompt_in_result=False, **more)
        answers = []
        for row, result in zip(group, results, strict=True):
            if not all(score < math.inf for score in result.scores):  # also where one is no number
                raise NotFinite(self.folder)
            if self.reads:
                tokens = [[self.numbers[word] for word in words] for words in result.hypotheses]
            else:
                tokens = [list(numbers) for numbers in result.sequences_ids]
            logprobs = [score * max(len(own), 1) ** penalty for own, score in zip(tokens, result.scores, strict=True)]
            pairs = zip(tokens, logprobs, strict=True)
            answers.append([self._completion(request, row, own, logprob, options) for own, logprob in pairs])
        return answers

    def _prompt(self, request: Request, row: int) -> list[str]:
        """The input of a row for the engine: the source, or the prompt of a decoder."""
        if not self.reads:
            return [self.target_words[token] for token in request.prompts[row]]
        assert request.sources is not None
        return [self.source_words[int(token)] for token in request.sources[row]]  # type: ignore[arg-type]

    def _lengths(self, request: Request, limit: int) -> dict[str, int]:
        """How much may be generated; no more is asked for than there is room, which the engine would refuse."""
        name = "decoding_length" if self.reads else "length"
        return {f"min_{name}": min(request.rules.min_tokens, limit), f"max_{name}": limit}

    def _completion(
        self, request: Request, row: int, tokens: list[int], logprob: float, options: dict[str, Any]
    ) -> Completion:
        """An answer with its score; one that rules have kept from something is scored anew, without them."""
        ruled = request.rules.banned or request.rules.min_tokens
        if tokens and ruled and options["beam_size"] == 1:
            sources = None if request.sources is None else [request.sources[row]]
            logprob = self.scored([request.prompts[row]], sources, [tokens])[0]
        reason = request.reason(row, tokens) if tokens else None
        return Completion(tokens, reason or "stop", by_length(logprob, len(tokens), options["length_penalty"]), logprob)

    def scored(
        self, prompts: Sequence[Sequence[int]], sources: Sequence[Any] | None, generated: Sequence[list[int]]
    ) -> Any:
        """The log-probability of each answer, as the engine has it: whether it means the same, whatever it chose."""
        words = [[self.target_words[token] for token in own] for own in generated]
        if sources is not None:
            read = [[self.source_words[int(token)] for token in source] for source in sources]
            # It adds the end token by itself, and scores it.
            ends = [own[-1:] == [self.engine_end] for own in words]
            targets = [own[:-1] if ended else own for own, ended in zip(words, ends, strict=True)]
            with engine_errors(self.folder):
                results = self.engine.score_batch(read, targets, max_input_length=0)
            return [
                sum(each.log_probs[: len(own) + ended]) for each, own, ended in zip(results, targets, ends, strict=True)
            ]
        whole = [
            [*(self.target_words[token] for token in prompt), *own] for prompt, own in zip(prompts, words, strict=True)
        ]
        with engine_errors(self.folder):
            results = self.engine.score_batch(whole, max_input_length=0)
        return [sum(each.log_probs[-len(own) :]) for each, own in zip(results, words, strict=True)]

    def text_logprobs(self, texts: Sequence[Sequence[int]]) -> list[list[float]]:
        """Of a decoder: the log-probability of every token of each text but the first, after those before it."""
        words = [[self.target_words[token] for token in text] for text in texts]
        with engine_errors(self.folder):
            return [list(each.log_probs) for each in self.engine.score_batch(words, max_input_length=0)]

    def _one(self, request: Request, options: dict[str, Any]) -> SearchSteps:
        """One answer, token by token."""
        engine = self._seeded(request, 0)
        named = {"beam_size", "num_hypotheses", "patience", "length_penalty"}
        more = {name: value for name, value in options.items() if name not in named}
        more |= {"max_input_length": 0} if self.reads else {}
        more |= self._lengths(request, request.limits[0])
        generated: list[int] = []
        logprob = 0.0
        with engine_errors(self.folder):
            steps = engine.generate_tokens(self._prompt(request, 0), return_log_prob=True, **more)
        while True:
            with engine_errors(self.folder):
                step = next(steps, None)
            if step is None:
                break
            if not step.log_prob < math.inf:
                raise NotFinite(self.folder)
            generated.append(step.token_id)
            logprob += step.log_prob
            yield [(0, step.token_id)]
            if request.reason(0, generated) is not None:
                break
        return [[self._completion(request, 0, generated, logprob, options)]]

    def _seeded(self, request: Request, row: int) -> Any:
        """The engine; for what is drawn by chance a fresh one, since only new threads take the seed."""
        if not isinstance(request.choice, Sampling) or request.choice.greedy:
            return self.engine
        library().set_random_seed(request.seeds[row] % (1 << 32))
        return engine_of("Translator" if self.reads else "Generator", self.folder, self.precision)

    def _refused(self, request: Request) -> list[str]:
        """What the engine has no words for, or means otherwise."""
        choice, rules, usual = request.choice, request.rules, Rules()
        beam, sampling = (choice, None) if isinstance(choice, Beam) else (None, choice)
        wide = beam is not None and beam.width > 1
        own = [banned for banned in rules.banned if len(banned) > 1 or banned[0] not in self.never]
        refused = {
            "restrict answers to a list of choices or words": rules.choices or rules.allowed,
            "force the first tokens of an answer": rules.forced,
            "complete a half-typed word": any(request.typed),
            "slide the context window": request.slide,
            "return alternatives to each token": request.alternatives is not None,
            "return alignments": request.attention,
            "stop at a string with beams or several answers": request.stopped is not None and (wide or choice.n > 1),
            # It means something else by these: the prompt does not count, and probabilities are taken after the rules.
            "apply repetition_penalty or no_repeat as weft does": rules.no_repeat
            or rules.repetition_penalty != usual.repetition_penalty,
            "ban words or set a minimum length in a beam search": wide and (own or rules.min_tokens),
            "ban a word of several tokens": not self.reads and any(len(banned) > 1 for banned in rules.banned),
            "search in groups or by coverage": beam and (beam.coverage or beam.groups > 1),
            "sample by min_p or typical": sampling and (sampling.min_p is not None or sampling.typical is not None),
        }
        return [what for what, given in refused.items() if given]

    def _options(self, request: Request) -> dict[str, Any]:
        """A search and its rules in the engine's words."""
        choice, rules = request.choice, request.rules
        beam, sampling = (choice, None) if isinstance(choice, Beam) else (None, choice)
        wide = beam is not None and beam.width > 1
        if refused := self._refused(request):
            raise cannot(listed(refused))
        options: dict[str, Any] = {"beam_size": 1, "num_hypotheses": choice.n, "patience": 1.0, "length_penalty": 1.0}
        # A number that no token has: without it the engine would end at one that is no end here.
        options["end_token"] = sorted(request.ends) or [len(self.target_words)]
        if rules.banned:
            options["suppress_sequences"] = [[self.target_words[token] for token in each] for each in rules.banned]
        if beam is not None:
            options |= {"beam_size": beam.width, "length_penalty": beam.length_penalty}
            # Without a length to weigh, what ends first is best, and the engine knows it.
            if wide and (beam.length_penalty != 0.0 or beam.n > 1):
                options["patience"] = self.patience
        elif sampling is not None and not sampling.greedy:
            options |= {"sampling_topk": sampling.top_k or 0}
            options |= {} if sampling.top_p is None else {"sampling_topp": sampling.top_p}
            options |= {} if sampling.temperature is None else {"sampling_temperature": sampling.temperature}
        return options

"""Tokens out of any model that generates: greedy, sampled, or by beam search.

B: rows; V: vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Generator, Sequence
from typing import Any

import torch

from weft.errors import UserError
from weft.generation.beam import Beam, Searcher
from weft.generation.completion import Advance, Completion, Detail, Reason, Request, by_length, check_scores
from weft.generation.decoding import TokenDecoder
from weft.generation.rules import LogitsProcessor, Rules
from weft.generation.sampling import RandomDraws, Sampling, choose
from weft.nn.rows import Source

__all__ = ["Beam", "Reason", "Rules", "Sampling", "Completion", "generate", "generate_steps"]

ROOM = 256  # new tokens to make room for at first


def generate(
    decoder: TokenDecoder,
    prompts: Sequence[Sequence[int]],
    *,
    on_progress: Callable[[int], None] | None = None,
    **options: Any,
) -> list[list[Completion]]:
    """The completions of each prompt: of a beam up to n, best first; of a sampling n, in the order of their draws.

    `options` are those of `generate_steps`; `on_progress` gets the number of rows that took a token.
    """
    steps = generate_steps(decoder, prompts, **options, live=False)
    while True:
        try:
            advance = next(steps)
        except StopIteration as end:
            completions: list[list[Completion]] = end.value
            return completions
        if on_progress is not None:
            on_progress(len(advance))


@torch.inference_mode()
def generate_steps(
    decoder: TokenDecoder,
    prompts: Sequence[Sequence[int]],
    *,
    choice: Sampling | Beam,
    context: int | None,
    sources: Sequence[Source] | None = None,
    max_tokens: int | Sequence[int] | None = None,
    ends: Collection[int] = (),
    rules: Rules | None = None,
    seeds: Sequence[int] | None = None,
    stopped: Callable[[int, list[int]], bool] | None = None,
    slide: bool = False,
    alternatives: int | None = None,
    attention: bool = False,
    device: torch.device | str = "cpu",
    live: bool = True,
) -> Generator[Advance, None, list[list[Completion]]]:
    """One step after the other: yields which rows went on and, where no beam has to choose yet, by which token.

    A completion goes on until it ends by itself, has `max_tokens` tokens (one number, or one per prompt), or fills the
    context; with `slide` the model then reads the last part of the text anew. `sources` are what an encoder-decoder
    reads. `stopped` is asked after each token whether a completion holds a stop string. `alternatives`: None, or how
    many of the likeliest tokens to keep at each step, with the log-probability of every token; `attention`: keep which
    source tokens each token came from. An engine that searches by itself hands out single tokens only when `live`.
    """
    _check(prompts, sources, max_tokens, context, slide, alternatives)
    seeds = [0] * len(prompts) if seeds is None else list(seeds)
    limits, limited = _limits(prompts, max_tokens, None if slide else context)
    rows = [row for row, limit in enumerate(limits) if limit > 0]
    answers = [[Completion([], "length", 0.0, 0.0)] for _ in prompts]
    if not rows:
        return answers
    request = Request(
        decoder=decoder,
        prompts=[list(prompts[row]) for row in rows],
        sources=None if sources is None else [sources[row] for row in rows],
        limits=[limits[row] for row in rows],
        limited=[limited[row] for row in rows],
        ends=frozenset(ends),
        processor=LogitsProcessor(rules or Rules(), ends, device),
        stopped=None if stopped is None else lambda place, generated: stopped(rows[place], generated),
        context=context,
        slide=slide,
        alternatives=alternatives,
        attention=attention,
        device=device,
    )
    if decoder.SEARCHES:
        engine: Any = decoder
        steps = engine.search(request, choice, [seeds[row] for row in rows], live)
    elif isinstance(choice, Beam) and choice.width > 1:
        steps = Searcher(request, choice).run()
    else:
        steps = _one_by_one(request, choice, [seeds[row] for row in rows])
    completions = yield from _named(steps, rows)
    for row, best in zip(rows, completions, strict=True):
        answers[row] = best
    return answers


def _limits(
    prompts: Sequence[Sequence[int]], max_tokens: int | Sequence[int] | None, context: int | None
) -> tuple[list[int], list[Reason]]:
    """How many tokens each row may take, and what that limit is called."""
    wishes = [max_tokens] * len(prompts) if max_tokens is None or isinstance(max_tokens, int) else list(max_tokens)
    rooms = [None if context is None else max(1, context - len(prompt)) for prompt in prompts]
    limits = [min(limit for limit in both if limit is not None) for both in zip(wishes, rooms, strict=True)]
    return limits, ["length" if limit == wish else "context" for limit, wish in zip(limits, wishes, strict=True)]


def _named(
    steps: Generator[Advance, None, list[list[Completion]]], rows: list[int]
) -> Generator[Advance, None, list[list[Completion]]]:
    """The steps, with the rows as the caller counts them."""
    while True:
        try:
            went = next(steps)
        except StopIteration as end:
            completions: list[list[Completion]] = end.value
            return completions
        yield [(rows[place], token) for place, token in went]


def _check(
    prompts: Sequence[Sequence[int]],
    sources: Sequence[Source] | None,
    max_tokens: int | Sequence[int] | None,
    context: int | None,
    slide: bool,
    alternatives: int | None,
) -> None:
    """What a caller may not ask for."""
    for number, prompt in enumerate(prompts, 1):
        if not prompt:
            raise UserError(f"prompt {number} is empty, and this model has no token to start from")
        if context is not None and len(prompt) > context and not slide:
            raise UserError(
                f"prompt {number} has {len(prompt)} tokens, more than the model's context of {context}; "
                "--slide (slide=True) reads the last part of it"
            )
    if slide and sources is not None:
        raise UserError("a window slides over one text; a model that reads a source has two")
    if max_tokens is None and (slide or context is None):
        raise UserError("no length limit: give --max-tokens N (max_tokens=N)")
    for wish in [] if max_tokens is None else [max_tokens] if isinstance(max_tokens, int) else max_tokens:
        if wish < 0:
            raise UserError(f"max_tokens must be 0 or more, not {wish}")
    if alternatives is not None and alternatives < 0:
        raise UserError(f"logprobs must be 0 or more, not {alternatives}")
    if sources is not None and len(sources) != len(prompts):
        raise UserError(f"{len(sources)} sources for {len(prompts)} prompts")


def _one_by_one(
    request: Request, choice: Sampling | Beam, seeds: list[int]
) -> Generator[Advance, None, list[list[Completion]]]:
    """One token after the other: the best or a drawn one. A beam of one is greedy, whatever its length penalty."""
    sampling = choice if isinstance(choice, Sampling) else Sampling()
    penalty = choice.length_penalty if isinstance(choice, Beam) else 1.0
    decoding, n = request.decoding(ROOM), sampling.n
    chances = RandomDraws(seeds, n)
    owners = [row for row in range(len(request.prompts)) for _ in range(n)]  # the prompt of each answer
    decoding.pick(owners)
    generated: list[list[int]] = [[] for _ in owners]
    details: list[list[Detail]] = [[] for _ in owners]
    logprobs = [0.0] * len(owners)
    done: dict[int, Completion] = {}
    alive = list(range(len(owners)))
    prompts, so_far = [request.prompts[row] for row in owners], generated
    while True:
        scores = request.processor.penalize(decoding.scores, prompts, so_far)
        allowed = request.processor.forbid(scores, prompts, so_far)
        tokens = choose(allowed, sampling, chances.draw(alive) if not sampling.greedy else torch.empty(0))
        logs = scores.log_softmax(-1)
        own = logs.gather(1, tokens[:, None]).squeeze(1)
        if request.processor.busy:  # where nothing is allowed the choice means nothing
            own = own.masked_fill(allowed.gather(1, tokens[:, None]).squeeze(1) == -torch.inf, -torch.inf)
        chosen = torch.stack((own.double(), tokens.double()), -1).tolist()  # one journey from the device for both
        ranked = request.ranked(logs) if request.detailed else None
        went: Advance = []
        for place, (answer, (logprob, number)) in enumerate(zip(alive, chosen, strict=True)):
            row, token = owners[answer], int(number)
            if math.isnan(logprob):  # also where every token is ruled out, which ends the answer
                check_scores(decoding.scores[place])
            reason: Reason | None = "stop"
            if logprob > -torch.inf:
                generated[answer].append(token)
                logprobs[answer] += logprob
                went.append((row, token))
                if ranked is not None:
                    details[answer].append(request.detail(row, logprob, ranked[place], decoding, place))
                reason = request.reason(row, generated[answer])
            if reason is not None:
                whole = logprobs[answer]
                score = by_length(whole, len(generated[answer]), penalty)
                windows = decoding.windows[place]
                done[answer] = request.completion(generated[answer], reason, score, whole, windows, details[answer])
        yield went
        places = [place for place, answer in enumerate(alive) if answer not in done]
        if not places:
            return [[done[row * n + sample] for sample in range(n)] for row in range(len(request.prompts))]
        alive = [alive[place] for place in places]
        prompts = [request.prompts[owners[answer]] for answer in alive]
        so_far = [generated[answer] for answer in alive]
        decoding.advance(places, prompts, so_far)

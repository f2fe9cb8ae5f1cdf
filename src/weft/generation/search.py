"""Words out of any model that speaks: the best ones, drawn ones, or the best whole answers.

B: rows; V: vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Generator, Sequence
from typing import Any

import torch

from weft.errors import UserError
from weft.generation.beam import Beam, Searcher
from weft.generation.rules import Judge, Rules
from weft.generation.sampling import Chances, Sampling, choose
from weft.generation.speaker import Speaker
from weft.generation.spoken import Detail, Heard, Reason, Spoken, Talk, by_length, check_scores
from weft.nn.rows import Source

__all__ = ["Beam", "Reason", "Rules", "Sampling", "Spoken", "speak", "speech"]

ROOM = 256  # new tokens to make room for at first


def speak(
    speaker: Speaker,
    prompts: Sequence[Sequence[int]],
    *,
    choice: Sampling | Beam,
    context: int | None,
    sources: Sequence[Source] | None = None,
    most: int | Sequence[int] | None = None,
    ends: Collection[int] = (),
    rules: Rules | None = None,
    seeds: Sequence[int] | None = None,
    stopped: Callable[[int, list[int]], bool] | None = None,
    heard: Callable[[int], None] | None = None,
    slide: bool = False,
    alternatives: int | None = None,
    attention: bool = False,
    device: torch.device | str = "cpu",
) -> list[list[Spoken]]:
    """The answers to each prompt: of a beam up to n, best first; of a sampling n, in the order of their draws.

    An answer goes on until it ends by itself, or has `most` tokens (one number, or one per prompt), or the context is
    full; with `slide` the model then reads the last part of the text anew. `sources` are what an encoder-decoder reads.
    `stopped` is asked after each token whether the text of a prompt's answer holds a stop string; `heard` is told how
    many rows went on. `alternatives`: None, or how many of the likeliest tokens to keep at each step, with the
    log-probability of every token; `attention`: keep what of the source each token came from.
    """
    talk = speech(
        speaker, prompts, choice=choice, context=context, sources=sources, most=most, ends=ends, rules=rules,
        seeds=seeds, stopped=stopped, slide=slide, alternatives=alternatives, attention=attention, device=device,
        live=False,
    )  # fmt: skip
    while True:
        try:
            went = next(talk)
        except StopIteration as told:
            answers: list[list[Spoken]] = told.value
            return answers
        if heard is not None:
            heard(len(went))


@torch.inference_mode()
def speech(
    speaker: Speaker,
    prompts: Sequence[Sequence[int]],
    *,
    choice: Sampling | Beam,
    context: int | None,
    sources: Sequence[Source] | None = None,
    most: int | Sequence[int] | None = None,
    ends: Collection[int] = (),
    rules: Rules | None = None,
    seeds: Sequence[int] | None = None,
    stopped: Callable[[int, list[int]], bool] | None = None,
    slide: bool = False,
    alternatives: int | None = None,
    attention: bool = False,
    device: torch.device | str = "cpu",
    live: bool = True,
) -> Generator[Heard, None, list[list[Spoken]]]:
    """`speak`, one step at a time: yields which rows went on and, where no beam has to choose yet, by which token.

    An engine that searches by itself hands out single tokens only where somebody listens (`live`).
    """
    _check(prompts, sources, most, context, slide)
    if alternatives is not None and alternatives < 0:
        raise UserError(f"a number of alternatives cannot be {alternatives}")
    wishes = [most] * len(prompts) if most is None or isinstance(most, int) else list(most)
    seeds = [0] * len(prompts) if seeds is None else list(seeds)
    rooms = [None if context is None or slide else max(1, context - len(prompt)) for prompt in prompts]
    limits = [min(limit for limit in both if limit is not None) for both in zip(wishes, rooms, strict=True)]
    rows = [row for row, limit in enumerate(limits) if limit > 0]
    answers = [[Spoken([], "length", 0.0, 0.0)] for _ in prompts]
    if not rows:
        return answers
    talk = Talk(
        speaker=speaker,
        prompts=[list(prompts[row]) for row in rows],
        sources=None if sources is None else [sources[row] for row in rows],
        limits=[limits[row] for row in rows],
        limited=["length" if limits[row] == wishes[row] else "context" for row in rows],
        ends=frozenset(ends),
        judge=Judge(rules or Rules(), ends, device),
        stopped=None if stopped is None else lambda place, said: stopped(rows[place], said),
        context=context,
        slide=slide,
        alternatives=alternatives,
        attention=attention,
        device=device,
    )
    if speaker.SEARCHES:
        engine: Any = speaker
        steps = engine.search(talk, choice, [seeds[row] for row in rows], live)
    elif isinstance(choice, Beam) and choice.width > 1:
        steps = Searcher(talk, choice).run()
    else:
        steps = _one_by_one(talk, choice, [seeds[row] for row in rows])
    found = yield from _named(steps, rows)
    for row, spoken in zip(rows, found, strict=True):
        answers[row] = spoken
    return answers


def _named(
    steps: Generator[Heard, None, list[list[Spoken]]], rows: list[int]
) -> Generator[Heard, None, list[list[Spoken]]]:
    """The steps, with the rows as the caller counts them."""
    while True:
        try:
            went = next(steps)
        except StopIteration as told:
            found: list[list[Spoken]] = told.value
            return found
        yield [(rows[place], token) for place, token in went]


def _check(
    prompts: Sequence[Sequence[int]],
    sources: Sequence[Source] | None,
    most: int | Sequence[int] | None,
    context: int | None,
    slide: bool,
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
    if most is None and (slide or context is None):
        raise UserError("nothing ends this answer for sure: say how many tokens it may have (most, --tokens)")
    for wish in [] if most is None else [most] if isinstance(most, int) else most:
        if wish < 0:
            raise UserError(f"a number of new tokens cannot be {wish}")
    if sources is not None and len(sources) != len(prompts):
        raise UserError(f"{len(sources)} sources for {len(prompts)} prompts")


def _one_by_one(talk: Talk, choice: Sampling | Beam, seeds: list[int]) -> Generator[Heard, None, list[list[Spoken]]]:
    """One token after the other: the best or a drawn one. A beam of one is greedy, whatever its length penalty."""
    sampling = choice if isinstance(choice, Sampling) else Sampling()
    penalty = choice.length_penalty if isinstance(choice, Beam) else 1.0
    voice, n = talk.voice(ROOM), sampling.n
    chances = Chances(seeds, n)
    owners = [row for row in range(len(talk.prompts)) for _ in range(n)]  # the prompt of each answer
    voice.pick(owners)
    said: list[list[int]] = [[] for _ in owners]
    details: list[list[Detail]] = [[] for _ in owners]
    logprobs = [0.0] * len(owners)
    done: dict[int, Spoken] = {}
    alive = list(range(len(owners)))
    prompts, so_far = [talk.prompts[row] for row in owners], said
    while True:
        scores = talk.judge.weigh(voice.scores, prompts, so_far)
        allowed = talk.judge.forbid(scores, prompts, so_far)
        tokens = choose(allowed, sampling, chances.draw(alive) if not sampling.greedy else torch.empty(0))
        logs = scores.log_softmax(-1)
        own = logs.gather(1, tokens[:, None]).squeeze(1)
        if talk.judge.busy:  # where nothing is allowed the choice means nothing
            own = own.masked_fill(allowed.gather(1, tokens[:, None]).squeeze(1) == -torch.inf, -torch.inf)
        found = torch.stack((own.double(), tokens.double()), -1).tolist()  # one journey from the device for both
        ranked = talk.ranked(logs) if talk.detailed else None
        went: Heard = []
        for place, (answer, (logprob, number)) in enumerate(zip(alive, found, strict=True)):
            row, token = owners[answer], int(number)
            if math.isnan(logprob):  # also where every token is ruled out, which ends the answer
                check_scores(voice.scores[place])
            reason: Reason | None = "stop"
            if logprob > -torch.inf:
                said[answer].append(token)
                logprobs[answer] += logprob
                went.append((row, token))
                if ranked is not None:
                    details[answer].append(talk.detail(row, logprob, ranked[place], voice, place))
                reason = talk.reason(row, said[answer])
            if reason is not None:
                whole = logprobs[answer]
                score = by_length(whole, len(said[answer]), penalty)
                windows = voice.windows[place]
                done[answer] = talk.spoken(said[answer], reason, score, whole, windows, details[answer])
        yield went
        places = [place for place, answer in enumerate(alive) if answer not in done]
        if not places:
            return [[done[row * n + sample] for sample in range(n)] for row in range(len(talk.prompts))]
        alive = [alive[place] for place in places]
        prompts = [talk.prompts[owners[answer]] for answer in alive]
        so_far = [said[answer] for answer in alive]
        voice.log(places, prompts, so_far)

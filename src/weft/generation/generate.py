"""Tokens out of any model that generates: here is decided whether an engine, slots or the plain search does it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from weft.errors import shown
from weft.generation.beam_slots import BeamRunner
from weft.generation.search import (
    Beam,
    Completion,
    Decoding,
    Request,
    Searcher,
    SearchSteps,
    TokenDecoder,
    one_by_one,
)
from weft.generation.slots import NotCaptured, SampleRunner, SlotRunner, fits
from weft.generation.typed import typed_letters
from weft.progress import to_logger


def generate(
    decoder: TokenDecoder,
    prompts: Sequence[Sequence[int]],
    *,
    on_progress: Callable[[int], None] | None = None,
    **options: Any,
) -> list[list[Completion]]:
    """The completions of each prompt: a beam's best first, samples as drawn; `options`: those of `Request`."""
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
    decoder: TokenDecoder, prompts: Sequence[Sequence[int]], slots: bool | None = None, **options: Any
) -> SearchSteps:
    """One step after the other: yields which rows went on and, where no beam has to choose yet, by which token.

    `slots`: whether rows stand in slots where that is possible; by default on a GPU.
    """
    request = Request(decoder=decoder, prompts=[list(prompt) for prompt in prompts], **options)
    if not any(request.limits):
        return [[Completion([], "length", 0.0, 0.0)] for _ in prompts]
    if decoder.SEARCHES:
        engine: Any = decoder
        if engine.does(request):
            return (yield from engine.search(request))
        request.decoder = engine.stand_in()
    if slots is None:
        slots = torch.device(request.device).type == "cuda"
    runner = runner_of(request) if slots else None
    if runner is not None and runner.may_capture:
        try:
            return (yield from runner.run())
        except NotCaptured as error:
            runner.failed.add(runner.kind)
            to_logger(f"weft: note: steps of generation cannot be captured, and take longer: {shown(str(error), 200)}")
    if request.spelling is not None:
        longest = max(map(len, request.typed))
        reading = Decoding(request, longest)
        request.letters = typed_letters(reading, request.prompts, request.typed, request.spelling, request.rules.forced)
    if isinstance(request.choice, Beam) and request.choice.width > 1:
        return (yield from Searcher(request, request.choice).run())
    return (yield from one_by_one(request))


def runner_of(request: Request) -> SlotRunner | None:
    """What takes a request through slots; None: it asks for something that only the plain search does."""
    choice = request.choice
    if not fits(request):
        return None
    if (sampling := request.sampling) is not None:
        return SampleRunner(request, sampling, request.penalty)
    assert isinstance(choice, Beam)
    if choice.groups > 1 or choice.coverage or request.alternatives is not None or request.stopped is not None:
        return None
    return BeamRunner(request, choice)

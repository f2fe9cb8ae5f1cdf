"""`weft bench --mode generate`: torch, other engines and other libraries that generate text, timed in turns.

The time is that from tokens to tokens: greedy search for a decoder, and the beam search of `weft translate` for an
encoder-decoder. End tokens are ignored, so that all contestants take the same number of steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from weft.backends.choice import BACKENDS, TORCH, WRITING
from weft.backends.passes import running
from weft.bench.encode import Contestant, EncodeReport, chosen_of, keep_choice, machine_of, prepare_export, time_all
from weft.bench.memory import memory_of
from weft.bench.texts import Profile, sentence_of
from weft.bench.writing_agreement import WritingSettings, beam_fault, logprobs_of, writing_fault
from weft.bench.writing_peers import WRITERS, writers_of
from weft.checkpoint.folder import LoadedModel
from weft.errors import UserError, refuse, shown
from weft.generation.sampling import Sampling
from weft.generation.search import Beam
from weft.generation.text import Prompt
from weft.progress import Log
from weft.tasks.chosen import answering_by
from weft.tasks.complete import BEAM_SIZE, prompts_of
from weft.tasks.forward import tokenizer_of
from weft.tasks.model import Model
from weft.training.log import memory_used

PROMPT = 16  # tokens of a prompt, or of what an encoder-decoder reads
CHECKED, CHECKED_TOKENS = 16, 32  # prompts on which answers are compared, and tokens of each


def check_writer(model: Model) -> None:
    """Refuse a model that generates no text, and a folder that was exported for another engine."""
    opened, family = model.opened, model.opened.family
    refuse(
        (opened.exported, f"this is a model for {model.card.backend} already; give the model it was made from"),
        (
            not (family.generates or family.reads) or family.numbers or opened.tokenizer is None,
            f"{family.name} generates no text from a text: use --mode encode",
        ),
    )


def writing_of(opened: LoadedModel, max_tokens: int) -> WritingSettings:
    """The default settings of `weft generate` and `weft translate`."""
    choice = Beam(width=min(BEAM_SIZE, opened.config.vocabulary)) if opened.family.reads else Sampling()
    return WritingSettings(choice, opened.config.context, max_tokens, opened.never, opened.device)


def writing_profiles(model: Model, batches: Sequence[int], max_tokens: int) -> list[Profile]:
    """A profile for each batch; all prompts of a decoder have the same length."""
    prompts = made_up_prompts(model, max(batches))
    beam = f", beam {writing_of(model.opened, 1).choice.width}" if model.opened.family.reads else ""  # type: ignore[union-attr]
    return [
        Profile(f"generate {batch} x {max_tokens}{beam}", batch, tuple(prompts[:batch]), batch * max_tokens)
        for batch in batches
    ]


def room_of(model: Model) -> int:
    """Tokens that the context has room for after a made-up prompt."""
    return int(model.config.context) - len(made_up_prompts(model, 1)[0].tokens)


def made_up_prompts(model: Model, count: int) -> list[Prompt]:
    opened, tokenizer = model.opened, tokenizer_of(model.opened)
    texts = [sentence_of(tokenizer, PROMPT, seed) for seed in range(count)]
    prompts = prompts_of(opened, texts)
    shortest = min(len(prompt.tokens) for prompt in prompts)
    return [replace(prompt, tokens=list(prompt.tokens)[:shortest]) for prompt in prompts]


def writing_report(
    model: Model,
    profiles: Sequence[Profile],
    max_tokens: int,
    *,
    backends: Sequence[str] | None = None,
    against: Sequence[str] = (),
    seconds: float = 10.0,
    memory: bool = True,
    keep: bool = True,
    log: Log = lambda line: None,
) -> EncodeReport:
    """Measure what can generate with a model; on a CPU the fastest backend that passes the gate is stored.

    The inputs of the profiles are prompts, each call those of one profile. Options as those of `encode_report`.
    """
    able = [name for name, each in BACKENDS.items() if each.nats or name == TORCH]
    for name in backends or ():
        refuse((name not in able, f"backend {shown(name)!r} is not one of {', '.join(able)}"))
    for name in against:
        refuse((name not in WRITERS, f"--against {shown(name)!r} is not one of {', '.join(WRITERS)}"))
    opened = model.plain().opened
    longest = max(len(prompt.tokens) for profile in profiles for prompt in profile.inputs)
    room = opened.config.context - longest
    refuse((max_tokens > room, f"--max-tokens {max_tokens}: after a prompt there is room for {room}"))
    model, writing, on_cpu = model.plain(), writing_of(opened, max_tokens), opened.device.type == "cpu"
    network = running(opened, WRITING)
    contestants = [Contestant(TORCH, writing.write(network))]
    known = opened.tokenizer is not None
    checked = made_up_prompts(model, CHECKED) if known else max((each.inputs for each in profiles), key=len)[:CHECKED]
    end = opened.writer.id_of("end") if opened.writer is not None else None
    short = replace(writing, max_tokens=min(CHECKED_TOKENS, max_tokens), ends=() if end is None else (end,))
    for name in able[1:] if on_cpu else ():
        if backends is None or name in backends:
            log(f"preparing {name}")
            contestants.append(_candidate(model, name, writing, short, checked))
    for peer in writers_of(model, writing, against, log):
        exact = on_cpu and not peer.int8  # in half precision on a GPU two libraries round otherwise
        limits = BACKENDS["ctranslate2" if exact else "ctranslate2-int8"]
        unending = replace(short, ends=())  # as peers are called
        write = peer.greedy(short.max_tokens)
        fault = peer.refused or writing_fault(unending, network, write, peer.score, checked, limits)
        contestants.append(Contestant(peer.name, peer.call, fault, ours=False))
    racing = [each for each in contestants if each.refused is None]
    time_all(racing, profiles, seconds, log)
    _measure_memory(model, racing, max_tokens, memory)
    choice = chosen_of([each for each in racing if each.ours], [each.name for each in profiles]) if on_cpu else None
    place = keep_choice(model, choice, log) if keep and choice is not None else None
    machine = {**machine_of(), "device": str(opened.device)}
    return EncodeReport(str(model.folder), machine, tuple(profiles), tuple(contestants), choice, place, mode="generate")


def _candidate(
    model: Model, name: str, writing: WritingSettings, short: WritingSettings, checked: Sequence[Prompt]
) -> Contestant:
    """A backend, exported if it needs that, and compared with plain torch."""
    limits, network = BACKENDS[name], model.network
    try:
        if limits.precision:
            prepare_export(model, name)
        decoder = running(answering_by(model, name).opened, WRITING)
        write = replace(short, choice=Sampling()).write(decoder)
        fault = writing_fault(short, network, write, partial(logprobs_of, decoder), checked, limits)
        if fault is None and isinstance(short.choice, Beam):
            fault = beam_fault(short, network, decoder, checked, limits.nats)
        return Contestant(name, writing.write(decoder), fault)
    except UserError as error:
        return Contestant(name, writing.write(network), str(error))


def _measure_memory(model: Model, racing: Sequence[Contestant], max_tokens: int, memory: bool) -> None:
    """On a GPU the memory of all together; on a CPU that of each backend in a separate process."""
    if model.opened.device.type == "cuda":
        torch.cuda.synchronize()
        racing[0].memory = memory_used(model.opened.device)
    elif memory and model.folder is not None:
        text = sentence_of(tokenizer_of(model.opened), PROMPT, 0)
        for each in racing:
            each.memory = memory_of(model, each.name, [text], max_tokens=max_tokens) if each.ours else None

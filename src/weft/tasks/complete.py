"""Text that goes on where a prompt ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.checkpoint.folder import Opened
from weft.errors import UserError
from weft.generation.sampling import Sampling
from weft.generation.search import speak
from weft.tasks.answers import Text
from weft.text.tokenizer import Tokenizer
from weft.text.windows import frame

ROWS = 128  # prompts that are continued side by side


def complete(
    opened: Opened,
    prompts: Sequence[str],
    *,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | Sequence[int] = 0,
    most: int | None = None,
    stop: str | Sequence[str] = (),
    heard: Callable[[int], None] | None = None,
) -> list[Text]:
    """Continue each prompt; row n draws from seed + n, or from its own entry of a list of seeds."""
    tokenizer = opened.tokenizer
    if not opened.family.speaks or "words" not in opened.heads:
        raise UserError(f"this {opened.family.name} model does not write text: it has no head for next words")
    if tokenizer is None:
        raise UserError("this model folder has no tokenizer, so it reads and writes no text")
    if most is not None and most < 0:
        raise UserError(f"a number of new tokens cannot be {most}")
    stop = [stop] if isinstance(stop, str) else list(stop)
    if any(not text for text in stop):
        raise UserError("a stop string cannot be empty")
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
    seeds = list(seed) if isinstance(seed, Sequence) else [seed + row for row in range(len(prompts))]
    if len(seeds) != len(prompts):
        raise UserError(f"{len(seeds)} seeds for {len(prompts)} prompts")
    end, begin = tokenizer.id_of("end"), tokenizer.id_of("start")
    begin = end if begin is None else begin
    before, _ = frame(tokenizer)  # what closes a text is left out: the text goes on
    ids = [[*before, *found] for found in tokenizer.ids(list(prompts), specials=False)]
    # Without a prompt a text starts as it did in training, after the token that parts documents.
    ids = [found or ([] if begin is None else [begin]) for found in ids]
    answers = []
    for first in range(0, len(ids), ROWS):
        some = ids[first : first + ROWS]
        spoken = speak(
            opened.network,  # type: ignore[arg-type]
            some,
            sampling=sampling,
            seeds=seeds[first : first + ROWS],
            context=opened.config.context,
            most=most,
            ends=() if end is None else (end,),
            stopped=_stopper(tokenizer, some, stop) if stop else None,
            heard=heard,
            device=next(opened.network.parameters()).device,
        )
        for prompt, said in zip(some, spoken, strict=True):
            text = _continuation(tokenizer, prompt, said.tokens)
            cuts = [text.find(string) for string in stop if string in text]
            text = text[: min(cuts)] if cuts and said.finish_reason == "stop" else text
            answers.append(
                Text(text=text, tokens=tuple(said.tokens), finish_reason=said.finish_reason, n_tokens=len(prompt))
            )
    return answers


def _stopper(
    tokenizer: Tokenizer, prompts: Sequence[Sequence[int]], stop: Sequence[str]
) -> Callable[[int, list[int]], bool]:
    # A character is at most four byte tokens, so this tail holds any stop string that the last token could complete.
    tail = 4 * max(map(len, stop)) + 8

    def stopped(row: int, said: list[int]) -> bool:
        before = [*prompts[row][-4:], *said[:-tail]][-4:]  # for the space that some vocabularies put before a word
        text = _continuation(tokenizer, before, said[-tail:])
        return any(string in text for string in stop)

    return stopped


def _continuation(tokenizer: Tokenizer, prompt: Sequence[int], said: Sequence[int]) -> str:
    """The new text alone; decoded with the prompt, since some vocabularies put spaces only between words."""
    before, whole = tokenizer.decode(list(prompt)), tokenizer.decode([*prompt, *said])
    return whole[len(before) :] if whole.startswith(before) else tokenizer.decode(list(said))

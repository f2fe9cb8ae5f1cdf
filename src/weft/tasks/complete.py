"""Text that goes on where a prompt ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.checkpoint.folder import Opened
from weft.errors import UserError
from weft.generation.sampling import Sampling
from weft.generation.search import speak
from weft.tasks.answers import Text
from weft.text.tokenizer import Tokenizer


def complete(
    opened: Opened,
    prompts: Sequence[str],
    *,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | Sequence[int] = 0,
    most: int | None = None,
    stop: Sequence[str] = (),
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
    if any(not text for text in stop):
        raise UserError("a stop string cannot be empty")
    seeds = [seed + row for row in range(len(prompts))] if isinstance(seed, int) else list(seed)
    if len(seeds) != len(prompts):
        raise UserError(f"{len(seeds)} seeds for {len(prompts)} prompts")
    end = tokenizer.id_of("end")
    begin = tokenizer.id_of("start")
    begin = end if begin is None else begin
    # Without a prompt a text starts as it did in training, after the token that parts documents.
    ids = [found or ([] if begin is None else [begin]) for found in tokenizer.ids(list(prompts))]
    spoken = speak(
        opened.network,  # type: ignore[arg-type]
        ids,
        sampling=Sampling(temperature=temperature, top_k=top_k, top_p=top_p),
        seeds=seeds,
        context=opened.config.context,
        most=most,
        ends=() if end is None else (end,),
        stopped=_stopper(tokenizer, stop) if stop else None,
        heard=heard,
        device=next(opened.network.parameters()).device,
    )
    answers = []
    for prompt, said in zip(ids, spoken, strict=True):
        text = _continuation(tokenizer, prompt, said.tokens)
        cuts = [text.find(string) for string in stop if string in text]
        text = text[: min(cuts)] if cuts and said.finish_reason == "stop" else text
        answers.append(
            Text(text=text, tokens=tuple(said.tokens), finish_reason=said.finish_reason, n_tokens=len(prompt))
        )
    return answers


def _stopper(tokenizer: Tokenizer, stop: Sequence[str]) -> Callable[[list[int]], bool]:
    # A character is at most four byte tokens, so this tail holds any stop string that the last token could complete.
    tail = 4 * max(map(len, stop)) + 8

    def stopped(said: list[int]) -> bool:
        text = tokenizer.decode(said[-tail:])
        return any(string in text for string in stop)

    return stopped


def _continuation(tokenizer: Tokenizer, prompt: Sequence[int], said: Sequence[int]) -> str:
    """The new text alone; decoded with the prompt, since some vocabularies put spaces only between words."""
    before, whole = tokenizer.decode(list(prompt)), tokenizer.decode([*prompt, *said])
    return whole[len(before) :] if whole.startswith(before) else tokenizer.decode(list(said))

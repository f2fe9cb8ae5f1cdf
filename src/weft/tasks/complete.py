"""Text that goes on where a prompt ends."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

from weft.checkpoint.folder import Opened
from weft.errors import UserError
from weft.tasks.answers import Text
from weft.tasks.writing import Stream, Writer, manner_of
from weft.text.windows import frame


def complete(
    opened: Opened,
    prompts: Sequence[str],
    *,
    most: int | None = None,
    heard: Callable[[int], None] | None = None,
    **options: Any,
) -> list[Text]:
    """Continue each prompt, by `most` new tokens at most where that is said; `options` are those of `Manner`."""
    return writer_of(opened).write(begun(opened, prompts), manner_of(options), most=most, heard=heard)


def stream(opened: Opened, prompt: str, *, most: int | None = None, **options: Any) -> Stream:
    """Continue one prompt piece by piece; options as for `complete`."""
    writer, manner = writer_of(opened), manner_of(options)
    found = writer.stream(begun(opened, [prompt])[0], manner, most=most)

    def pieces() -> Generator[str, None, Text]:
        training = opened.network.training
        opened.network.eval()
        try:
            yield from found
        finally:
            opened.network.train(training)
        return found.answer

    return Stream(pieces())


def writer_of(opened: Opened) -> Writer:
    """What writes with this model, where it can."""
    if not opened.family.speaks or "words" not in opened.heads:
        raise UserError(f"this {opened.family.name} model does not write text: it has no head for next words")
    if opened.tokenizer is None:
        raise UserError("this model folder has no tokenizer, so it reads and writes no text")
    return Writer(
        speaker=opened.network,  # type: ignore[arg-type]
        tokenizer=opened.tokenizer,
        context=opened.config.context,
        device=next(opened.network.parameters()).device,
    )


def begun(opened: Opened, prompts: Sequence[str]) -> list[list[int]]:
    """The tokens of prompts; without a prompt a text starts as it did in training, after what parts documents."""
    tokenizer = opened.tokenizer
    assert tokenizer is not None
    end, begin = tokenizer.id_of("end"), tokenizer.id_of("start")
    begin = end if begin is None else begin
    before, _ = frame(tokenizer)  # what closes a text is left out: the text goes on
    ids = [[*before, *found] for found in tokenizer.ids(list(prompts), specials=False)]
    return [found or ([] if begin is None else [begin]) for found in ids]

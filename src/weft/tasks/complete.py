"""Text that goes on where a prompt ends; of an encoder-decoder, what it writes when it has read the prompt."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from weft.checkpoint.folder import LoadedModel
from weft.data.cells import list_in
from weft.errors import UserError, shown
from weft.generation.options import options_of
from weft.nn.rows import Source
from weft.progress import Log
from weft.tasks.answers import Text
from weft.tasks.base import Columns, Task
from weft.tasks.forward import tokenizer_of, unseen_in_words
from weft.tasks.generation import Stream, TextGenerator, check_beam_size
from weft.tasks.likelihood import NextWordTask
from weft.tasks.translate import around, limit_of
from weft.text.records import Record
from weft.text.windows import frame

MIN_LIMIT = 32  # tokens that a text may always have


def vector_in(record: Record, column: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The vector of a row."""
    where = f"{record.where}: column {shown(column)!r}"
    return np.array(numbers_of(list_in(record, column), where), dtype=np.float32)


def numbers_of(value: Any, where: str) -> list[float]:
    """A vector as numbers: a list, an array, or a text of numbers, as JSON has them or parted by spaces or commas."""
    if isinstance(value, str):
        text = value.strip()
        if text.startswith("{"):
            raise UserError(f"{where}: a row, not a vector; rows of a file are read by --data")
        try:
            value = json.loads(text) if text.startswith("[") else re.split(r"[\s,;]+", text) if text else []
        except (ValueError, RecursionError):
            raise UserError(f"{where}: {shown(value)!r} is no list of numbers") from None
    elif hasattr(value, "tolist"):
        value = value.tolist()
    if not isinstance(value, list | tuple):
        raise UserError(f"{where}: {shown(str(value))!r} is no list of numbers")
    if not value:
        raise UserError(f"{where}: there are no numbers")
    numbers = [_number(each) for each in value]
    for place, each in enumerate(numbers, 1):
        if not math.isfinite(each):
            wrong = shown(str(value[place - 1]))
            raise UserError(f"{where}: {wrong!r}, number {place} of {len(numbers)}, is no number")
    return numbers


def _number(value: Any) -> float:
    """A number that single precision holds, else NaN."""
    try:
        number = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        return math.nan
    return number if abs(number) <= 3e38 else math.nan


def is_vector(given: Any) -> bool:
    """Whether one vector is given, rather than several."""
    if isinstance(given, str):
        return True
    if getattr(given, "ndim", None) is not None:
        return bool(given.ndim == 1)
    return isinstance(given, list | tuple) and bool(given) and isinstance(given[0], int | float)


def vectors_of(opened: LoadedModel, given: Sequence[Any]) -> list[list[float]]:
    """Vectors as the model takes them; an error names its number."""
    vectors = []
    for number, each in enumerate(given, 1):
        where = f"vector {number} of {len(given)}" if len(given) > 1 else "the vector"
        vectors.append(numbers_of(each, where))
        check_length(len(vectors[-1]), opened.config.features, where)
    return vectors


def check_length(numbers: int, features: int, where: str) -> None:
    if numbers != features:
        raise UserError(f"{where}: a vector of {numbers} number{'s' * (numbers != 1)}, where {features} are expected")


def limit_for(opened: LoadedModel) -> int:
    """Tokens that a text may have where nobody says it: twice as many as any to learn from had."""
    return max(MIN_LIMIT, 2 * opened.card.window.length if opened.card.window else 0)


class VectorInputs(Task):
    """A task that reads vectors in place of texts."""

    def input_columns(self, record: Record, given: Mapping[str, str]) -> tuple[str, ...]:
        return ("vector",)

    @property
    def expected(self) -> str:
        return "a list of numbers, a list of such lists, or a table with a column vector"

    def is_input(self, value: Any) -> bool:
        return is_vector(value)

    def is_row(self, values: Mapping[str, Any]) -> bool:
        return any(is_vector(value) for value in values.values() if not isinstance(value, str))

    def check_item(self, number: int, value: Any) -> None:
        """`vectors_of` says what is wrong."""

    def row_input(self, record: Record, columns: Mapping[str, str]) -> Any:
        return vector_in(record, columns["vector"]).tolist()

    def texts_of(self, value: Any) -> tuple[str, ...]:
        return ()  # numbers are never empty

    def find_inputs(self, record: Record, given: Mapping[str, str], note: Log = lambda text: None) -> Columns:
        return Task.find_inputs(self, record, given, note)

    def partial_columns(self, record: Record, given: Mapping[str, str], note: Log) -> tuple[Task, Columns, Columns]:
        return Task.partial_columns(self, record, given, note)


ENDLESS = 1 << 20  # tokens: a context that no text fills
TIMED_TOKENS, TIMED_CHARACTERS = 32, 400  # that are generated where its speed is measured, and of its prompt
MAX_TOKENS = 256  # new tokens there by default: such a model would otherwise go on for hours


def complete(
    opened: LoadedModel,
    prompts: Sequence[str],
    *,
    on_progress: Callable[[int], None] | None = None,
    **options: Any,
) -> list[Text]:
    """Continue each prompt; an encoder-decoder writes its output for it. `options` are those of `GenerationOptions`."""
    generator, chosen = generator_of(opened), options_of(options)
    check_beam_size(chosen.beam_size or 1, opened.config.vocabulary)
    if not opened.family.reads:
        with unseen_in_words(opened):
            limit = _default_limit(opened)
            return generator.write(begun(opened, prompts), chosen, max_tokens=limit, on_progress=on_progress)
    sources = read(opened, prompts)
    answers = generator.write(
        [[opened.config.begin]] * len(sources),
        chosen,
        max_tokens=[limit_from(opened, source) for source in sources],
        sources=sources,
        on_progress=on_progress,
    )
    return [replace(answer, n_tokens=len(source)) for answer, source in zip(answers, sources, strict=True)]


def stream(opened: LoadedModel, prompt: Any, **options: Any) -> Stream:
    """Continue one prompt piece by piece; options as for `complete`."""
    generator, chosen = generator_of(opened), options_of(options)
    if opened.family.reads:
        source = read(opened, [prompt])[0]
        limit: int | None = limit_from(opened, source)
        inner = generator.stream([opened.config.begin], chosen, max_tokens=limit, source=source)
    else:
        inner = generator.stream(begun(opened, [prompt])[0], chosen, max_tokens=_default_limit(opened))

    def pieces() -> Generator[str, None, Text]:
        training = opened.network.training
        opened.network.eval()
        try:
            with unseen_in_words(opened):
                yield from inner
        finally:
            opened.network.train(training)
        return inner.answer

    return Stream(pieces())


def _default_limit(opened: LoadedModel) -> int | None:
    return MAX_TOKENS if opened.config.context >= ENDLESS else None


def generator_of(opened: LoadedModel) -> TextGenerator:
    """What writes with this model, where it can."""
    if not opened.family.speaks or "words" not in opened.heads:
        raise UserError(f"this {opened.family.name} model does not generate text: it has no language model head")
    if opened.tokenizer is None:
        raise UserError("this model folder has no tokenizer, so it reads and writes no text")
    return TextGenerator(
        decoder=opened.network,  # type: ignore[arg-type]
        tokenizer=opened.target_tokenizer or opened.tokenizer,
        context=opened.config.context,
        device=opened.device,
        never=opened.never,
        folder=opened.folder,
    )


def limit_from(opened: LoadedModel, source: Source) -> int:
    """Tokens that an answer may have where nobody says it."""
    return limit_for(opened) if opened.family.numbers else limit_of(source)


def read(opened: LoadedModel, texts: Sequence[Any]) -> list[Source]:
    """What an encoder-decoder reads; one that is too long is a mistake here, where nothing goes through in pieces."""
    if opened.family.numbers:
        return [[vector] for vector in vectors_of(opened, texts)]
    before, after = around(opened)
    sources = [[*before, *ids, *after] for ids in tokenizer_of(opened).ids(_prefixed(opened, texts), specials=False)]
    for number, ids in enumerate(sources, 1):
        if len(ids) > opened.config.context:
            raise UserError(
                f"prompt {number} has {len(ids)} tokens, more than the model's context of {opened.config.context}; "
                "weft translate reads long texts in pieces"
            )
    return list(sources)


def _prefixed(opened: LoadedModel, texts: Sequence[str]) -> list[str]:
    return [(opened.card.prefix or "") + text for text in texts]


def begun(opened: LoadedModel, prompts: Sequence[str]) -> list[list[int]]:
    """The tokens of prompts; without a prompt a text starts as it did in training, after what parts documents."""
    tokenizer = tokenizer_of(opened)
    end, begin = tokenizer.id_of("end"), tokenizer.id_of("start")
    begin = end if begin is None else begin
    before, _ = frame(tokenizer)  # what closes a text is left out: the text goes on
    ids = [[*before, *tokens] for tokens in tokenizer.ids(list(prompts), specials=False)]
    return [tokens or ([] if begin is None else [begin]) for tokens in ids]


class CompleteTask(NextWordTask):
    """Text that continues a prompt."""

    name = "complete"
    writes = True
    language_model = True
    timing_options = {"max_tokens": TIMED_TOKENS, "min_tokens": TIMED_TOKENS}  # a model that ends early is no faster

    @classmethod
    def from_model(cls, model: LoadedModel, name: str) -> CompleteTask:
        return CompleteVectorTask() if model.family.numbers else cls()

    def answers(self, model: LoadedModel, inputs: Sequence[Any], **options: Any) -> list[Any]:
        return complete(model, inputs, **options)

    def timing_input(self, texts: Sequence[str], tokenizer: Any) -> str:
        return texts[0][:TIMED_CHARACTERS]

    def stream(self, model: LoadedModel, input: Any, **options: Any) -> Stream:
        return stream(model, input, **options)


class CompleteVectorTask(VectorInputs, CompleteTask):
    """The same from a vector."""

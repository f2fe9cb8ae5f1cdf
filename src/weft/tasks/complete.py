"""Text that goes on where a prompt ends; of an encoder-decoder, what it writes when it has read the prompt."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from weft.checkpoint.folder import LoadedModel
from weft.data.columns import list_in
from weft.errors import UserError, shown
from weft.generation.options import options_of
from weft.nn.rows import Source
from weft.tasks.answers import Text
from weft.tasks.base import Example, Prediction, Task
from weft.tasks.forward import evaluating, tokenizer_of, unseen_in_words
from weft.tasks.generation import Stream, TextGenerator, check_beam_size
from weft.tasks.perplexity import LONG, LikelihoodTask, Reading, beginning, slid
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

    find_inputs = Task.find_inputs  # also before those of a task that reads texts
    partial_columns = Task.partial_columns


ENDLESS = 1 << 20  # tokens: a context that no text fills
TIMED_TOKENS, TIMED_CHARACTERS = 32, 400  # that are generated where its speed is measured, and of its prompt
MAX_TOKENS = 256  # new tokens there by default: such a model would otherwise go on for hours


def complete(
    opened: LoadedModel, prompts: Sequence[str], *, on_progress: Callable[[int], None] | None = None, **options: Any
) -> list[Text]:
    """Continue each prompt; an encoder-decoder writes its output for it. `options` are those of `GenerationOptions`."""
    generator, chosen = generator_of(opened), options_of(options)
    check_beam_size(chosen.beam_size or 1, opened.config.vocabulary)
    begins, limits, sources = asked_of(opened, prompts)
    with unseen_in_words(opened):
        answers = generator.write(begins, chosen, max_tokens=limits, sources=sources, on_progress=on_progress)
    if sources is None:
        return answers
    return [replace(answer, n_tokens=len(source)) for answer, source in zip(answers, sources, strict=True)]


def stream(opened: LoadedModel, prompt: Any, **options: Any) -> Stream:
    """Continue one prompt piece by piece; options as for `complete`."""
    generator, chosen = generator_of(opened), options_of(options)
    (begin,), (limit,), sources = asked_of(opened, [prompt])
    inner = generator.stream(begin, chosen, max_tokens=limit, source=sources[0] if sources else None)

    def pieces() -> Generator[str, None, Text]:
        with evaluating(opened.network), unseen_in_words(opened):
            yield from inner
        return inner.answer

    return Stream(pieces())


def asked_of(
    opened: LoadedModel, prompts: Sequence[Any]
) -> tuple[list[list[int]], list[int | None], list[Source] | None]:
    """Where each text begins, how many tokens it may have, and what an encoder-decoder reads."""
    if not opened.family.reads:
        limit = MAX_TOKENS if opened.config.context >= ENDLESS else None
        return begun(opened, prompts), [limit] * len(prompts), None
    sources = read(opened, prompts)
    limits = [limit_for(opened) if opened.family.numbers else limit_of(source) for source in sources]
    return [[opened.config.begin]] * len(sources), [*limits], sources


def generator_of(opened: LoadedModel) -> TextGenerator:
    """What writes with this model, where it can."""
    if not opened.family.generates or "words" not in opened.heads:
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


def read(opened: LoadedModel, texts: Sequence[Any]) -> list[Source]:
    """What an encoder-decoder reads; one that is too long is a mistake here, where nothing goes through in pieces."""
    if opened.family.numbers:
        return [[vector] for vector in vectors_of(opened, texts)]
    before, after = around(opened)
    prefixed = [(opened.card.prefix or "") + text for text in texts]
    sources = [[*before, *ids, *after] for ids in tokenizer_of(opened).ids(prefixed, specials=False)]
    for number, ids in enumerate(sources, 1):
        if len(ids) > opened.config.context:
            raise UserError(
                f"prompt {number} has {len(ids)} tokens, more than the model's context of {opened.config.context}; "
                "weft translate reads long texts in pieces"
            )
    return list(sources)


def begun(opened: LoadedModel, prompts: Sequence[str]) -> list[list[int]]:
    """The tokens of prompts; without a prompt a text starts as it did in training, after what parts documents."""
    tokenizer = tokenizer_of(opened)
    before, _ = frame(tokenizer)  # what closes a text is left out: the text goes on
    return [[*before, *tokens] or beginning(tokenizer) for tokens in tokenizer.ids(list(prompts), specials=False)]


class CompleteTask(LikelihoodTask):
    """Text that continues a prompt; models are compared by a window that slides over each text."""

    name = "complete"
    writes = True
    language_model = True
    metric_names = ("bits_per_byte", "foreseen")
    default_metric = "bits_per_byte"
    chance_metric = "bits_per_byte"
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

    def readings(self, model: LoadedModel, texts: Sequence[str]) -> Iterator[Reading]:
        tokenizer = tokenizer_of(model)
        begin, length, reach = beginning(tokenizer), min(model.config.context, LONG), model.config.reach
        stride = max(1, length // 2 if reach is None else length - reach)
        for number, ids in enumerate(tokenizer.ids(list(texts), specials=False)):
            yield from slid([ids], begin, length, stride, number)

    def describe(self, prediction: Prediction, other: Prediction, example: Example) -> str:
        return f"{prediction.output.nats / math.log(2) / max(1, prediction.output.bytes):.3f} bits per byte"

    def chance_level(self, counts: Any, rows: int) -> float:
        return 8.0  # bits of a byte, for a model that knows nothing

    def add(self, metrics: Any, predictions: Sequence[Prediction], examples: Sequence[Example]) -> None:
        for text in (prediction.output for prediction in predictions):
            parts = {"bits_per_byte": (text.nats / math.log(2), float(text.bytes))}
            if len(text.best) == len(text.tokens):
                parts["foreseen"] = (text.hits, float(len(text.tokens)))
            metrics.add(parts)


class CompleteVectorTask(VectorInputs, CompleteTask):
    """The same from a vector."""

"""Text that a model generates: prompts continued, texts translated, vectors described."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from weft.backends.choice import WRITING
from weft.backends.passes import running
from weft.budget import by_budget
from weft.checkpoint.folder import LoadedModel
from weft.data.columns import check_features, list_in, numbers_of
from weft.errors import UserError, refuse, shown
from weft.generation.options import SAMPLING, GenerationOptions, options_of
from weft.generation.search import Beam, Completion, Ensemble
from weft.generation.text import Progress, Prompt, Stream, TextGenerator, search_of
from weft.generation.wording import Wording
from weft.nn.rows import Ragged, Source
from weft.tasks.answers import Text, Translation
from weft.tasks.base import Example, Prediction, Task
from weft.tasks.forward import budget_on, evaluating, tokenizer_of, unseen_in_words
from weft.tasks.perplexity import (
    LikelihoodTask,
    Reading,
    as_prompts,
    beginning,
    slid,
    sliding_window,
    writing_tokenizer,
)
from weft.tasks.targets import LogitTarget, Term, read_texts, target_of, whole_window
from weft.text.records import Record
from weft.text.sentences import sentences
from weft.text.tokenizers.spelling import half_word
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.windows import Framing, frame

ROWS = 128  # completions that are generated side by side
MIN_LIMIT = 32  # tokens that a text may always have
BEAM_SIZE, VECTOR_BEAM = 5, 3  # defaults of translations and of descriptions (Vinyals et al., 2017)
TRANSLATING = ("beam_size", "n", "length_penalty", "coverage", "max_tokens", "alignments")  # options of a translation
ENDLESS = 1 << 20  # tokens: a context that no text fills
MAX_TOKENS = 256  # new tokens there by default: such a model would otherwise go on for hours
TIMED_TOKENS, TIMED_CHARACTERS = 32, 400  # that are generated where its speed is measured, and of its prompt


def vector_in(record: Record, column: str, features: int | None = None) -> NDArray[np.float32]:
    """The vector of a row."""
    where = f"{record.where}: column {shown(column)!r}"
    vector = np.array(numbers_of(list_in(record, column), where), dtype=np.float32)
    check_features(len(vector), features, record.where)
    return vector


class VectorInputs(Task):
    """A task that reads vectors in place of texts."""

    input_names = ("vector",)
    expected = "a list of numbers, a list of such lists, or a table with a column vector"

    def is_input(self, value: Any) -> bool:
        if getattr(value, "ndim", None) is not None:
            return bool(value.ndim == 1)
        several = isinstance(value, list | tuple) and bool(value)
        return isinstance(value, str) or (several and isinstance(value[0], int | float))

    def is_row(self, values: Mapping[str, Any]) -> bool:
        return any(self.is_input(value) for value in values.values() if not isinstance(value, str))

    def check_input(self, where: str, value: Any) -> Any:
        return value  # `numbers_of` says what is wrong

    def row_input(self, record: Record, columns: Mapping[str, str]) -> Any:
        return vector_in(record, columns["vector"]).tolist()

    def texts_of(self, value: Any) -> tuple[str, ...]:
        return ()  # numbers are never empty

    find_inputs = Task.find_inputs  # also before those of a task that reads texts
    partial_columns = Task.partial_columns


def sources_of(opened: LoadedModel, texts: Sequence[str]) -> list[list[int]]:
    """The tokens of texts as an encoder-decoder reads them."""
    before, after = around(opened)
    return [[*before, *ids, *after] for ids in tokenizer_of(opened).ids(list(texts), specials=False)]


def around(opened: LoadedModel) -> tuple[list[int], list[int]]:
    """The tokens before and after what is read; it always ends with the end token, as Marian and T5 have it."""
    before, after = frame(tokenizer_of(opened))
    end = tokenizer_of(opened).id_of("end")
    return before, after or ([] if end is None else [end])


def source_prompts(opened: LoadedModel, sources: Sequence[Source]) -> list[Prompt]:
    """What an encoder-decoder writes from; the default of max_tokens is far more than any good text needs."""
    return [Prompt([opened.config.begin], 3 * len(source) + 32, source) for source in sources]


def prompts_of(opened: LoadedModel, inputs: Sequence[Any], options: GenerationOptions | None = None) -> list[Prompt]:
    """Texts or vectors as this model takes them; a source that is longer than the context is refused."""
    context = opened.config.context
    completing = options is not None and options.complete_word and not options.force
    if completing and opened.family.reads:
        raise UserError("an encoder-decoder has no prompt with a half-typed word: give --force (force=) beside it")
    if opened.family.numbers:
        limit = max(MIN_LIMIT, 2 * opened.card.window.length if opened.card.window else 0)
        features, pairs = opened.config.features, enumerate(inputs, 1)
        vectors = [numbers_of(vector, f"vector {number} of {len(inputs)}", features) for number, vector in pairs]
        return [Prompt([opened.config.begin], limit, [vector]) for vector in vectors]
    tokenizer = tokenizer_of(opened)
    if not opened.family.reads:
        most = MAX_TOKENS if context >= ENDLESS else None
        if completing:
            halves = [half_word(tokenizer, text) for text in inputs]
            heads = as_prompts(tokenizer, [half.before for half in halves])
            return [Prompt(a, most, None, half.typed, half.taken) for a, half in zip(heads, halves, strict=True)]
        return [Prompt(ids, most) for ids in as_prompts(tokenizer, tokenizer.ids(list(inputs), specials=False))]
    sources = sources_of(opened, [(opened.card.prefix or "") + text for text in inputs])
    for number, ids in enumerate(sources, 1):
        if len(ids) > context:
            much = f"{len(ids)} tokens, more than the model's context of {context}"
            raise UserError(f"prompt {number} has {much}; weft translate reads long texts in pieces")
    return source_prompts(opened, sources)


def options_for(
    opened: LoadedModel, options: Mapping[str, Any], only: Sequence[str] = (), positive: bool = False
) -> GenerationOptions:
    """The options of a call. A beam that is wider than the vocabulary has fewer candidates than it needs."""
    chosen, vocabulary = options_of(options, only), opened.config.vocabulary
    limit, width = chosen.max_tokens, chosen.beam_size or 1
    refuse(
        (width > vocabulary, f"a beam of {width} is wider than the vocabulary of {vocabulary} tokens"),
        (positive and limit is not None and limit < 1, f"max_tokens must be at least 1, not {limit}"),
    )
    return chosen


def generator_of(opened: LoadedModel, others: Sequence[LoadedModel] = ()) -> TextGenerator:
    """What writes with this model, or with several together, where it can."""
    tokenizer = writing_tokenizer(opened)
    together(opened, others)
    head = None if others else WRITING  # together they go step by step, which an engine does not
    networks: list[Any] = [running(each, head) for each in (opened, *others)]
    return TextGenerator(
        decoder=Ensemble(networks) if others else networks[0],
        tokenizer=opened.target_tokenizer or tokenizer,
        context=min(each.config.context for each in (opened, *others)),
        device=opened.device,
        never=opened.never,
        folder=opened.folder,
    )


def write(
    generator: TextGenerator, prompts: Sequence[Prompt], options: GenerationOptions, progress: Progress = None
) -> list[Text]:
    """A text for each prompt."""
    rows, count = max(1, ROWS // (options.beam_size or options.n)), len(prompts)
    batches = [range(first, min(first + rows, count)) for first in range(0, count, rows)]
    completions = generator.completions(prompts, options, batches, progress)
    return [text_of(generator, *pair, options) for pair in zip(prompts, completions, strict=True)]


def text_of(
    generator: TextGenerator, prompt: Prompt, completions: list[Completion], options: GenerationOptions
) -> Text:
    """The best completion as text, with all of them where more than one was asked for."""
    texts = tuple(generator.written(prompt, completion, options.stop) for completion in completions)
    return Text(
        **vars(texts[0]),
        best=texts if options.n > 1 else (),
        n_tokens=len(prompt.tokens) + prompt.taken if prompt.source is None else len(prompt.source),
        n_windows=max(completion.windows for completion in completions),
        truncated=generator.context is not None and len(prompt.tokens) > generator.context,
    )


def complete(
    opened: LoadedModel, prompts: Sequence[str], *, on_progress: Progress = None, **options: Any
) -> list[Text]:
    """Continue each prompt; an encoder-decoder writes its output for it. `options` are those of `GenerationOptions`."""
    generator = generator_of(opened)
    chosen = options_for(opened, options)
    with unseen_in_words(opened, prompts):
        return write(generator, prompts_of(opened, prompts, chosen), chosen, on_progress)


def stream(opened: LoadedModel, prompt: Any, **options: Any) -> Stream[Text]:
    """Continue one prompt piece by piece; options as for `complete`."""
    generator, chosen = generator_of(opened), options_of(options)
    (asked,), search = prompts_of(opened, [prompt], chosen), search_of(chosen)
    if isinstance(search, Beam) or search.n > 1:
        raise UserError("only one text can be streamed, and a beam knows its text at the end alone")

    def pieces() -> Generator[str, None, Text]:
        with evaluating(opened.network), unseen_in_words(opened, [prompt]):
            return text_of(generator, asked, (yield from generator.pieces(asked, chosen)), chosen)

    return Stream(pieces())


@dataclass(frozen=True)
class Part:
    """A piece of a text that is read at once, and what parts it from the next."""

    text: int  # the number of its text
    tokens: list[int]
    after: str


def writer_of(opened: LoadedModel) -> Tokenizer:
    """The tokenizer of what is written."""
    return opened.target_tokenizer or tokenizer_of(opened)


def translate(
    opened: LoadedModel,
    texts: Sequence[str],
    *,
    others: Sequence[LoadedModel] = (),
    prefix: str | None = None,
    on_progress: Progress = None,
    **options: Any,
) -> list[Translation]:
    """Write each text in other words; `others`: models of the same vocabulary that write together with it.

    A text that is longer than the model can read goes through in pieces, split between sentences. `options` are those
    of a beam search in `GenerationOptions`. `max_tokens` is that of a piece; default: 3 x source length + 32.
    """
    check_writer(opened)
    if opened.family.numbers:
        raise UserError(f"this {opened.family.name} model writes from vectors, not from texts: weft describe")
    for number, text in enumerate(texts, 1):
        if not isinstance(text, str):
            raise UserError(f"text {number} of {len(texts)}: a {type(text).__name__} where a text is expected")
    chosen = options_for(opened, {"beam_size": BEAM_SIZE, **options}, TRANSLATING, positive=True)
    generator = generator_of(opened, others)
    parts = parts_of(opened, texts, opened.card.prefix or "" if prefix is None else prefix, generator.context)
    prompts = source_prompts(opened, [part.tokens for part in parts])
    order = sorted(range(len(parts)), key=lambda number: len(parts[number].tokens))  # similar lengths together
    budget = budget_on(opened.device)
    batches = map(sorted, by_budget(order, lambda number: len(parts[number].tokens) * (chosen.beam_size or 1), budget))
    by_text: list[list[tuple[Part, list[Completion]]]] = [[] for _ in texts]
    for part, completions in zip(parts, generator.completions(prompts, chosen, batches, on_progress), strict=True):
        by_text[part.text].append((part, completions))
    return [translation(opened, pieces, chosen.n) for pieces in by_text]


def check_writer(opened: LoadedModel) -> None:
    if not opened.family.reads or "words" not in opened.heads:
        raise UserError(f"this {opened.family.name} model does not read one text and write another")
    tokenizer_of(opened)


def together(opened: LoadedModel, others: Sequence[LoadedModel]) -> None:
    """Models that write together must mean the same by every token."""
    for number, other in enumerate(others, 2):
        check_writer(other)
        for what, tokenizer in (("vocabulary", tokenizer_of), ("vocabulary of what is written", writer_of)):
            one, two = tokenizer(opened), tokenizer(other)
            if one.library.to_str() != two.library.to_str():
                other_than = f"{what} than the first ({one.vocabulary:,} tokens against {two.vocabulary:,})"
                raise UserError(f"model {number} has another {other_than}: they cannot write together")
        if opened.config.begin != other.config.begin or (opened.card.prefix or "") != (other.card.prefix or ""):
            raise UserError(f"model {number} begins otherwise than the first: they cannot write together")


def parts_of(opened: LoadedModel, texts: Sequence[str], prefix: str, context: int | None = None) -> list[Part]:
    """The pieces of all texts, none longer than the context; an empty text has none."""
    tokenizer, (before, after) = tokenizer_of(opened), around(opened)
    ahead = tokenizer.ids([prefix], specials=False)[0] if prefix else []
    context = context or opened.config.context
    room = context - len(before) - len(after)
    if len(ahead) >= room:
        what = f"the prefix has {len(ahead)} tokens" if ahead else "there are special tokens"
        raise UserError(f"{what}, which leaves no room in a context of {context} for a text")
    length = opened.card.window.length - len(before) - len(after) if opened.card.window else room
    usual, step = max(1, min(length, room)), room - len(ahead)
    parts = []
    whole = tokenizer.ids([prefix + text for text in texts], specials=False)
    for number, (text, ids) in enumerate(zip(texts, whole, strict=True)):
        if not text.strip() or not (before or ids or after):
            continue
        pieces = [text]
        if len(ids) > usual:  # whole sentences, as many as are usual
            every = sentences(text)
            sized = zip(every, map(len, tokenizer.ids(every, specials=False)), strict=True)
            groups = by_budget(sized, lambda pair: pair[1], usual - len(ahead))
            pieces = [piece for group in groups if (piece := "".join(text for text, _ in group)).strip()]
        if len(pieces) == 1 and len(ids) <= room:
            parts.append(Part(number, [*before, *ids, *after], ""))
            continue
        for piece, inner in zip(pieces, tokenizer.ids([prefix + each for each in pieces], specials=False), strict=True):
            # A sentence that is longer than all the room there is, is cut between two tokens.
            first, rest = inner[: len(ahead)], inner[len(ahead) :]
            runs = [[*first, *rest[place : place + step]] for place in range(0, max(1, len(rest)), step)]
            between = [" "] * (len(runs) - 1) + [piece[len(piece.rstrip()) :]]
            parts += [Part(number, [*before, *run, *after], gap) for run, gap in zip(runs, between, strict=True)]
    return parts


def translation(opened: LoadedModel, pieces: list[tuple[Part, list[Completion]]], n: int) -> Translation:
    """The completions of the pieces of a text, put together; an empty text has none."""
    writer, reader = writer_of(opened), tokenizer_of(opened)
    sizes, first = [len(part.tokens) for part, _ in pieces], [completions[0] for _, completions in pieces]
    best = list[Wording]()
    for rank in range(min(n, max((len(completions) for _, completions in pieces), default=1))):
        every = [(part, completions[min(rank, len(completions) - 1)]) for part, completions in pieces]
        wording = Wording(
            text="".join(writer.decode(each.tokens).strip() + part.after for part, each in every).strip(),
            # Their mean, by what each read: so that the better hypothesis of a piece is the better whole.
            score=sum(each.score * len(part.tokens) for part, each in every) / max(1, sum(sizes)),
            logprob=sum((each.logprob for _, each in every), 0.0),
            finish_reason=next((each.finish_reason for _, each in every if each.finish_reason != "end"), "end"),
        )
        best.append(wording)
    alignments = None
    if first and all(each.attention is not None for each in first):  # nothing of a piece came from another
        maps = [each.attention[:, :size] for each, size in zip(first, sizes, strict=True)]  # type: ignore[index]
        whole: torch.Tensor = torch.block_diag(*maps)  # type: ignore[no-untyped-call]
        alignments = tuple(tuple(round(value, 6) for value in row) for row in whole.tolist())
    return Translation(
        **vars(best[0]),
        best=tuple(best),
        n_tokens=sum(sizes),
        n_windows=len(pieces),
        source_tokens=tuple(str(reader.token(token)) for part, _ in pieces for token in part.tokens),
        target_tokens=tuple(str(writer.token(token)) for each in first for token in each.tokens),
        alignments=alignments,
    )


def describe(
    opened: LoadedModel,
    vectors: Sequence[Any],
    *,
    others: Sequence[LoadedModel] = (),
    on_progress: Progress = None,
    **options: Any,
) -> list[Text]:
    """Write a text from each vector, by default with a beam of 3; `options`: `GenerationOptions`; `others` join it."""
    if not opened.family.numbers or "words" not in opened.heads:
        raise UserError(f"this {opened.family.name} model does not write from vectors")
    for number, other in enumerate(others, 2):
        if not other.family.numbers or other.config.features != opened.config.features:
            raise UserError(f"model {number} does not read the vectors of the first: they cannot write together")
    chosen = options_for(opened, options, positive=True)
    if chosen.beam_size is None and not chosen.given(SAMPLING):
        chosen = replace(chosen, beam_size=min(max(VECTOR_BEAM, chosen.n), opened.config.vocabulary))
    return write(generator_of(opened, others), prompts_of(opened, vectors, chosen), chosen, on_progress)


def next_token(tokenizer: Tokenizer, ids: Sequence[int], text: str, word: str) -> int:
    """The first token of a word that follows a text."""
    spaced = text + ("" if not text or text[-1].isspace() or word[:1].isspace() else " ") + word
    longer = tokenizer.ids([spaced], specials=False)[0]
    same = len(longer) > len(ids) and tuple(longer[: len(ids)]) == tuple(ids)
    own = [longer[len(ids)]] if same else tokenizer.ids([word], specials=False)[0]
    if not own:
        raise UserError(f"target {shown(word)!r}: the vocabulary has no token for it")
    return own[0]


class CompleteTask(LikelihoodTask):
    """Text that continues a prompt; models are compared by a window that slides over each text."""

    name = "complete"
    writes = True
    language_model = True
    run = staticmethod(complete)
    metric_names = ("bits_per_byte", "token_accuracy")
    chance_metric = "bits_per_byte"
    timing_options = {"max_tokens": TIMED_TOKENS, "min_tokens": TIMED_TOKENS}  # a model that ends early is no faster

    @classmethod
    def from_model(cls, model: LoadedModel, name: str) -> CompleteTask:
        return CompleteVectorTask() if model.family.numbers else cls()

    def sample_input(self, texts: Sequence[str], tokenizer: Any) -> str:
        return texts[0][:TIMED_CHARACTERS]

    @torch.inference_mode()
    def logit_target(self, model: LoadedModel, windows: Framing, input: str, target: Any) -> LogitTarget:
        """The logit of the next token: the likeliest one, or the first token of the word `target`."""
        tokenizer, network = writing_tokenizer(model, decoder=True), model.network
        text = read_texts(tokenizer, [input])[0]
        before = as_prompts(tokenizer, [list(text.ids)])[0]
        before = before[: len(before) - len(text.ids)]
        window = whole_window(text, before, (), model.config.context)
        if target is None:
            ragged = Ragged.of([window.tokens], model.device)
            token = int(network.words(network.next_states(ragged.tokens, ragged.rows)[-1:]).argmax())
        else:
            token = next_token(tokenizer, text.ids, input, str(target))
        term = Term(0, len(window.tokens) - 1, token)
        plain, name = replace(windows, segments=0), repr(tokenizer.decode([token]) or tokenizer.token(token))
        return replace(target_of(name, "words", [term], plain, [window], [text]), follows=True)

    def readings(self, model: LoadedModel, texts: Sequence[str]) -> Iterator[Reading]:
        tokenizer, window = tokenizer_of(model), sliding_window(model)
        for number, ids in enumerate(tokenizer.ids(list(texts), specials=False)):
            yield from slid([ids], beginning(tokenizer), *window, number)

    def describe(self, prediction: Prediction, other: Prediction, example: Example) -> str:
        return f"{prediction.output.nats / math.log(2) / max(1, prediction.output.bytes):.3f} bits per byte"

    def chance_level(self, counts: Any, rows: int) -> float:
        return 8.0  # bits of a byte, for a model that knows nothing

    def add(self, metrics: Any, predictions: Sequence[Prediction], examples: Sequence[Example]) -> None:
        for text in (prediction.output for prediction in predictions):
            parts = {"bits_per_byte": (text.nats / math.log(2), float(text.bytes))}
            if len(text.best) == len(text.tokens):
                parts["token_accuracy"] = (text.hits, float(len(text.tokens)))
            metrics.add(parts)


class CompleteVectorTask(VectorInputs, CompleteTask):
    """The same from a vector."""

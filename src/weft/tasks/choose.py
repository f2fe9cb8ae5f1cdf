"""Multiple choice: the option that fits a context best, by the head of a fine-tuned model or by a language model."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.budget import BUDGET
from weft.checkpoint.card import Card
from weft.checkpoint.folder import LoadedModel
from weft.data.choices import BLANK, GAP, ROLES, choice_columns, counts_from_one, from_gap, joined, read_choices
from weft.data.dataset import Begin, begin_with
from weft.data.examples import Examples, ExamplesBuilder
from weft.data.masking import NOTHING
from weft.data.tables import Table
from weft.errors import UserError, one_of, shown
from weft.metrics.bootstrap import Score
from weft.metrics.choices import ChoiceMetrics, SelectionMetrics
from weft.metrics.classification import best_thresholds
from weft.objectives.losses import LOGITS, TAUGHT, Choices, SoftTargets
from weft.tasks.answers import Answer, Chosen, Continuation, ScoredOption, Selected
from weft.tasks.base import Difference, Example, Prediction, Task, TeacherArrays, TeacherRows
from weft.tasks.forward import InputWindows, softmax, tokenizer_of
from weft.tasks.perplexity import Reading, beginning, surprises, writing_tokenizer
from weft.text.records import Record
from weft.text.rows import Skipped
from weft.text.sources import Patterns
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.windows import Framing, TextWindow, frame, pieces, special_tokens

NORMALIZE = ("none", "token", "byte", "prior")
PRIOR = "Answer:"  # a prompt that asks nothing
QUESTIONS = 64  # that are answered together
OPTION = "option"  # the name of its threshold in the card: where there is one, each option is judged by itself
CHUNK = 256  # questions that are tokenized at a time


@dataclass(frozen=True)
class ChoiceTask(Task):
    """The right option of several. A model without the head `choose` scores options by their probability as text."""

    several: bool | None = None  # each option is judged by itself; None: the rows decide
    threshold: float = 0.5  # of `several`
    soft: SoftTargets | None = None  # how a student learns from its teacher
    first: int = 0  # the number of the first option in the answers of a file

    name = "choose"
    head = "choose"
    windowed = True
    overlap = 0.125
    whole_groups = True
    outputs = 1
    averages = combines = True
    prediction_columns: ClassVar[tuple[str, ...]] = ("prediction", "number", "probability")
    expected = "a tuple of a context and a list of options, a list of such tuples, or a table with such columns"

    @classmethod
    def from_model(cls, model: LoadedModel, name: str) -> ChoiceTask:
        threshold = model.card.thresholds.get(OPTION)
        return cls(False) if threshold is None else cls(True, threshold)

    @classmethod
    def check_model(cls, model: LoadedModel, name: str) -> None:
        if cls.head not in model.heads and not model.family.generates:
            super().check_model(model, name)

    def to_card(self, card: Card) -> Card:
        return replace(card, thresholds={OPTION: self.threshold} if self.several else {})

    # ---------------------------------------------------------------------------------------------------------- rows

    def input_columns(self, record: Record, given: Mapping[str, str]) -> tuple[str, ...]:
        if not record.values:
            return ("prompt", "options")
        columns = choice_columns(record, given)
        names = [name for name in (columns.context, columns.question, *columns.options) if name is not None]
        roles = {given[role]: role for role in ROLES[:3] if role in given}
        return tuple(roles.get(name, name) for name in names)

    def columns(self, record: Record, given: Mapping[str, str]) -> tuple[ChoiceTask, tuple[str, ...]]:
        target, labeled = choice_columns(record, given).target, read_choices(record, given, targets=False).labeled
        several = labeled if self.several is None else self.several
        task = replace(self, several=several, first=int(counts_from_one(record, given)))
        roles = {given[role]: role for role in ("label", "answer") if role in given}
        targets = ["answer"] if target is None else [roles.get(target, target)]
        return task, (*self.input_columns(record, given), *([] if target is None and labeled else targets))

    def read(self, record: Record, columns: Mapping[str, str]) -> Example:
        return self._read(record, columns, targets=True)

    def read_input(self, record: Record, columns: Mapping[str, str]) -> Example:
        return self._read(record, columns, targets=False)

    def _read(self, record: Record, columns: Mapping[str, str], targets: bool) -> Example:
        row = read_choices(record, columns, targets, self.first)  # labels inside of the options are read with them
        return Example((row.context, row.question, *row.options), row.right, record.where)

    def row_input(self, record: Record, columns: Mapping[str, str]) -> Any:
        return self.read_input(record, columns).texts

    def to_record(self, example: Example) -> dict[str, Any]:
        context, question, *options = example.texts
        row: dict[str, Any] = {"prompt": context, "question": question, "options": options}
        if example.target is None:
            return row
        if self.several:
            labeled = [{"text": text, "label": int(n in example.target)} for n, text in enumerate(options)]
            return row | {"options": labeled}
        return row | {"answer": list(example.target)}

    def is_row(self, values: Mapping[str, Any]) -> bool:
        """A row with a list of options."""
        return any(isinstance(value, str) for value in values.values())

    def check_input(self, where: str, value: Any) -> Any:
        """(context, options), (context, question, options), or these texts in a row; a prompt alone as it is."""
        if isinstance(value, str):
            return value
        parts = tuple(value) if isinstance(value, tuple | list) else ()
        if len(parts) in (2, 3) and isinstance(parts[-1], list | tuple):
            parts = (parts[0], parts[1] if len(parts) == 3 else "", *parts[-1])
        if len(parts) < 3 or not all(isinstance(part, str) for part in parts):
            raise UserError(f"{where}a context and a list of options are expected: (context, [option, option])")
        if empty := [number for number, option in enumerate(parts[2:], 1) if not option.strip()]:
            raise UserError(f"{where}choice {empty[0]} is empty")
        if len(parts) == 3 and not self.several:
            raise UserError(f"{where}one option only, {shown(parts[2])!r}: there is nothing to choose from")
        return *from_gap(*parts[:2]), *parts[2:]

    def texts_of(self, value: Any) -> tuple[str, ...]:
        parts = (value,) if isinstance(value, str) else self.check_input("", value)
        return tuple(part for part in parts if part)

    def sample_input(self, texts: Sequence[str], tokenizer: Tokenizer | None) -> Any:
        words = texts[0].split()
        half = max(1, len(words) // 2)
        first, second = " ".join(words[:half]) or "a", " ".join(words[half:]) or "b"
        return first, "", second, first

    def word_spans(self, example: Example) -> list[Sequence[tuple[int, int]]]:
        """The words beside a gap, which stays as it is."""
        gaps = [[gap.span() for gap in GAP.finditer(text)] for text in example.texts]
        return [
            [span for span in words if not any(begin < span[1] and span[0] < end for begin, end in own)]
            for words, own in zip(super().word_spans(example), gaps, strict=True)
        ]

    def groups(self, examples: Sequence[Example]) -> list[Any]:
        """The contexts, so that none stands on both sides of a split."""
        return [example.texts[0] for example in examples]

    def fit_labels(self, examples: Sequence[Example], labels: Sequence[str] = ()) -> ChoiceTask:
        if self.several and not any(example.target for example in examples):
            raise UserError(f"{examples[0].where}: no option of any row is right: there is nothing to learn")
        return self

    def label_notes(self) -> list[str]:
        return ["the numbers of its answers are taken to begin with 1"] if self.first else []

    def read_table(
        self, table: Table, begin: Begin[Example], skipped: Skipped, progress: Callable[[int], None] | None = None
    ) -> Iterator[Example]:
        """Rows of one option each (MultiRC) that follow each other become one example of their question."""
        examples = super().read_table(table, begin, skipped, progress)
        for (texts, single), same in groupby(examples, lambda each: (each.texts[:2], len(each.texts) == 3)):
            if not single:
                yield from same
                continue
            rows = list(same)
            right = tuple(number for number, row in enumerate(rows) if row.target)
            target = None if any(row.target is None for row in rows) else right
            yield replace(rows[0], texts=(*texts, *(row.texts[2] for row in rows)), target=target)

    # -------------------------------------------------------------------------------------------------------- learning

    def dataset(
        self, examples: Sequence[Example], model: LoadedModel, windows: Framing, teacher_outputs: TeacherRows = None
    ) -> Examples:
        """All windows of all options of a row are one example."""
        builder, options, shares, truncated = ExamplesBuilder(), list[int](), list[float](), 0
        for begin in range(0, len(examples), CHUNK):
            chunk = [example.texts for example in examples[begin : begin + CHUNK]]
            encoded = self.encode(chunk, tokenizer_of(model), windows)
            truncated += sum(_is_truncated(encoded, number) for number in range(len(chunk)))
            for windows_of, counts in zip(encoded.pieces, encoded.places, strict=True):
                builder.add(windows_of)
                for number, some in enumerate(_by_option(windows_of, counts)):
                    own = _own_tokens(some)
                    options += [number] * len(some)
                    shares += (own / own.sum()).tolist()
        most = max((len(example.texts) - 2 for example in examples), default=1)
        right = np.full((len(examples), most), NOTHING, dtype=np.int64)
        for row, example in enumerate(examples):
            right[row, : len(example.texts) - 2] = 0
            right[row, list(example.target or ())] = 1
        labeled = np.array([self.has_target(example) for example in examples], dtype=np.float32)
        arrays: dict[str, NDArray[Any]] = {"right": right, "labeled": labeled}
        if teacher_outputs is not None:
            arrays[LOGITS], arrays[TAUGHT] = np.zeros(right.shape, dtype=np.float32), np.ones_like(labeled)
            for row in range(len(examples)):
                logits = teacher_outputs[row]["output"]
                arrays[LOGITS][row, : len(logits)] = logits
        by_row: dict[str, NDArray[Any]] = {
            "options": np.array(options, dtype=np.int64),
            "option_shares": np.array(shares, dtype=np.float32),
        }
        about = f"{len(options):,} windows of at most {windows.length} tokens, "
        about += f"{truncated:,} of the rows truncated" if truncated else "none is truncated"
        return builder.examples(arrays, by_row=by_row, segments=windows.segments, undivided=True, about=about)

    def objective(self) -> Choices:
        return Choices(bool(self.several), self.soft)

    # ------------------------------------------------------------------------------------------------------- answering

    def encode(self, inputs: Sequence[tuple[str, ...]], tokenizer: Tokenizer, windows: Framing) -> InputWindows:
        """A pair of texts for each option: the context, which is cut where it is long, and the option in full."""
        contexts = tokenizer.ids([texts[0] for texts in inputs], specials=False)
        seconds = [joined(question, option) for _, question, *options in inputs for option in options]
        rest = iter(tokenizer.ids(seconds, specials=False))
        encoded, room = InputWindows(windows, [], [], []), windows.length - special_tokens(windows, 2)
        for context, (_, _, *options) in zip(contexts, inputs, strict=True):
            by_option, tokens = list[list[TextWindow]](), 0
            for option in islice(rest, len(options)):
                first = context[: max(0, room - len(option))] if windows.cutting else context
                by_option.append(pieces(windows, first, option))
                tokens += len(context) + len(option)
            encoded.pieces.append([piece for some in by_option for piece in some])
            encoded.lengths.append((tokens,))
            encoded.places.append([len(some) for some in by_option])
        return encoded

    def decode(self, logits: Sequence[Sequence[NDArray[Any]]], windows: InputWindows) -> list[Prediction]:
        """A logit for each option: the mean over its windows, by the tokens that are their own."""
        predictions = []
        for number, (values, every) in enumerate(zip(logits, windows.pieces, strict=True)):
            counts, output, rest = windows.places[number], list[float](), iter(values)
            for some in _by_option(every, counts):
                own = _own_tokens(some)
                output.append(float(np.array([next(rest)[0] for _ in some], dtype=np.float64) @ (own / own.sum())))
            tokens = _token_count(windows, number)
            predictions.append(Prediction(np.array(output), tokens, max(counts), _is_truncated(windows, number)))
        return predictions

    def predict(self, model: LoadedModel, windows: Framing, inputs: Sequence[Any]) -> list[Prediction]:
        if self.head in model.heads:
            return super().predict(model, windows, inputs)
        answers = choose(model, [_prompt(each) for each in inputs], slide=True)
        predictions = []
        for answer in answers:
            output = np.array([option.score for option in sorted(answer.options, key=lambda option: option.number)])
            predictions.append(Prediction(output, answer.n_tokens, 1, answer.truncated))
        return predictions

    def answers(
        self,
        model: LoadedModel,
        inputs: Sequence[Any],
        choices: Sequence[str] | None = None,
        places: Sequence[str] = (),
        **options: Any,
    ) -> list[Any]:
        """`choices`: those of prompts that bring none; `places`: where the prompts come from, for errors; other
        `options` are those of a language model."""
        places = places or [f"prompt {number}" for number in range(1, len(inputs) + 1)]
        checked = [self._with_choices(each, choices, place) for each, place in zip(inputs, places, strict=True)]
        if self.head not in model.heads and not options.get("others"):
            answers = choose(model, [_prompt(each) for each in checked], places=places, **options)
            return [_as_given(answer, texts[2:]) for answer, texts in zip(answers, checked, strict=True)]
        others = {"others": options.pop("others")} if "others" in options else {}
        given = [name for name, value in options.items() if name != "prior" and value not in (None, False, "none")]
        if given:
            raise UserError(f"{given[0]} is for a language model; this model has a head for choosing")
        return super().answers(model, checked, **others)

    def _with_choices(self, value: Any, choices: Sequence[str] | None, where: str) -> tuple[str, ...]:
        if not isinstance(value, str):
            return self.check_input(f"{where}: ", value)
        if choices is None or isinstance(choices, str) or not choices:
            raise UserError(f"{where}: no options: give --choice to weft choose, or choices=[...]")
        if twice := [choice for place, choice in enumerate(choices) if choice in choices[:place]]:
            raise UserError(f"{where}: choice {shown(twice[0])!r} is there twice")
        return self.check_input(f"{where}: ", (value, list(choices)))

    def probabilities(self, prediction: Prediction) -> NDArray[np.float64]:
        """Of every option."""
        if self.several:
            return 1 / (1 + np.exp(-np.clip(prediction.output, -700, 700)))
        return softmax(prediction.output)

    def chosen(self, prediction: Prediction) -> tuple[int, ...]:
        """The numbers of the options that are taken to be right."""
        if not self.several:
            return (int(prediction.output.argmax()),)
        return tuple(np.flatnonzero(self.probabilities(prediction) >= self.threshold).tolist())

    def answer(self, prediction: Prediction, input: Any, **options: Any) -> Answer:
        texts, probabilities = input[2:], self.probabilities(prediction)
        every = [
            ScoredOption(text=text, number=number, score=float(prediction.output[number]), probability=float(p))
            for number, (text, p) in enumerate(zip(texts, probabilities, strict=True))
        ]
        every.sort(key=lambda option: -option.score)
        numbers = self.chosen(prediction)
        if self.several:
            chosen = tuple(texts[number] for number in numbers)
            return Selected(texts=chosen, chosen=numbers, options=tuple(every), **prediction.reading)
        return Chosen(text=texts[numbers[0]], number=numbers[0], options=tuple(every), **prediction.reading)

    def key(self, prediction: Prediction) -> Hashable:
        return self.chosen(prediction)

    def mean_prediction(self, predictions: Sequence[Prediction], tasks: Sequence[Task] = ()) -> Prediction:
        """The mean of the probabilities, as logits again."""
        mean = np.clip(np.mean([self.probabilities(each) for each in predictions], axis=0), 1e-300, 1 - 1e-16)
        logits = np.log(mean) - (np.log1p(-mean) if self.several else 0.0)
        return replace(predictions[0], output=logits)

    def compare(self, prediction: Prediction, reference: Prediction, example: Example, task: Any) -> Difference:
        counted, distance = super().compare(prediction, reference, example, task)
        shift = np.abs(self.probabilities(prediction) - task.probabilities(reference))
        return counted, distance + float(shift.sum()) / (2 * len(shift))

    # ------------------------------------------------------------------------------------------------------ evaluating

    @property
    def metric_names(self) -> tuple[str, ...]:
        return ("f1a", "exact", "accuracy") if self.several else ("accuracy",)

    def metrics(self) -> Any:
        return SelectionMetrics() if self.several else ChoiceMetrics()

    def add(self, metrics: Any, predictions: Sequence[Prediction], examples: Sequence[Example]) -> None:
        for prediction, example in zip(predictions, examples, strict=True):
            self.add_choice(metrics, self.chosen(prediction), example)

    def add_choice(self, metrics: Any, chosen: tuple[int, ...], example: Example) -> None:
        """Count one question, of which these options were chosen."""
        _, question, *options = example.texts
        if self.several:
            metrics.add(chosen, example.target, len(options))
        else:
            metrics.add(chosen[0], example.target, options, BLANK in question)

    def tune(self, predictions: Sequence[Prediction], examples: Sequence[Example]) -> ChoiceTask:
        """Held-out rows decide from which probability on an option is right, where each is judged by itself."""
        if not self.several:
            return self
        probabilities = np.concatenate([self.probabilities(each) for each in predictions])
        gold = [n in example.target for example in examples for n in range(len(example.texts) - 2)]
        return replace(self, threshold=float(best_thresholds(probabilities[:, None], np.array(gold)[:, None])[0]))

    def loss(self, prediction: Prediction, example: Example) -> float | None:
        chosen, probabilities = self.chosen(prediction), self.probabilities(prediction)
        if self.several:
            gold = np.array([n in example.target for n in range(len(probabilities))])
            return None if set(chosen) == set(example.target) else float(np.abs(probabilities - gold).sum())
        if chosen[0] in example.target:
            return None
        return -math.log(max(float(probabilities[list(example.target)].sum()), 1e-300))

    def describe_target(self, example: Example) -> str:
        return ", ".join(example.texts[2 + number] for number in example.target) or "(none)"

    def target_parts(self, example: Example) -> Iterable[Hashable]:
        return (len(example.target) / (len(example.texts) - 2),)

    def chance_level(self, counts: Counter[Hashable], rows: int) -> float:
        """What guessing reaches; of `several`, the F1 of taking every option."""
        shares: Any = counts
        mean = sum(part * count for part, count in shares.items()) / max(1, rows)
        return 2 * mean / (1 + mean) if self.several else mean

    # -------------------------------------------------------------------------------------------------------- teaching

    def same_outputs(self, other: Task) -> bool:
        return super().same_outputs(other) and self.teacher_settings == other.teacher_settings

    @property
    def teacher_settings(self) -> dict[str, Any]:
        return {"several": bool(self.several)}

    def with_teacher_answer(self, example: Example, outputs: TeacherArrays) -> Example:
        return replace(example, target=self.chosen(Prediction.of_teacher(outputs)))


def _by_option(windows: Sequence[TextWindow], counts: Sequence[int]) -> Iterator[list[TextWindow]]:
    rest = iter(windows)
    return ([next(rest) for _ in range(count)] for count in counts)


def _token_count(windows: InputWindows, number: int) -> int:
    """Tokens of all options of a row with their contexts, before anything is truncated."""
    return sum(windows.lengths[number]) + len(windows.places[number]) * special_tokens(windows.framing, 2)


def _is_truncated(windows: InputWindows, number: int) -> bool:
    kept = sum(len(piece.tokens) for piece in windows.pieces[number])
    return windows.framing.cutting and kept < _token_count(windows, number)


def _own_tokens(windows: Sequence[TextWindow]) -> NDArray[np.float64]:
    return np.array([max(1, piece.cut.last - piece.cut.first) for piece in windows], dtype=np.float64)


def _prompt(texts: Sequence[str]) -> tuple[str, list[str]]:
    """A context, a question and options as a language model reads them: a prompt and its continuations."""
    context, question, *options = texts
    if gap := GAP.search(question):
        before, after = question[: gap.start()], question[gap.end() :]
        return f"{context}\n{before}".rstrip(), [option + after.replace(BLANK, option) for option in options]
    if question in ("because", "so"):
        context = context.rstrip(". ")
    return (f"{context} {question}" if question else context), options


def _as_given(answer: Chosen, options: Sequence[str]) -> Chosen:
    """An answer with the options as they were given, without what comes after a gap."""
    scored = tuple(replace(option, text=options[option.number]) for option in answer.options)
    return replace(answer, text=options[answer.number], options=scored)


def read_questions(files: Patterns) -> list[Example]:
    """The rows of files with options and answers."""
    table = Table(files)
    (task, columns), skipped = ChoiceTask(False).of_table(table), Skipped()
    return list(task.read_table(table, begin_with(table, columns, task.read, skipped), skipped))


def evaluate_choices(
    task: ChoiceTask,
    model: LoadedModel,
    questions: Iterable[Example],
    *,
    on_answer: Callable[[Example, Any], None] = lambda question, answer: None,
    **options: Any,
) -> dict[str, Score]:
    """The metrics of the answers to questions; `on_answer` gets each, `options` are those of a call."""
    metrics, waiting = task.metrics(), iter(questions)
    while some := list(islice(waiting, QUESTIONS)):
        places = [each.where for each in some]
        answers = task.answers(model, [each.texts for each in some], places=places, **options)
        for question, answer in zip(some, answers, strict=True):
            task.add_choice(metrics, answer.chosen, question)
            on_answer(question, answer)
    return metrics.result()


# ------------------------------------------------------------------------------------- by the probability of a text


class _Line(NamedTuple):
    """A prompt and one continuation, as tokens."""

    reading: Reading
    n_tokens: int  # of the prompt, also those that did not fit
    truncated: bool
    crossing: bool


def choose(
    model: LoadedModel,
    prompts: Sequence[tuple[str, Sequence[str]]],
    *,
    places: Sequence[str] = (),
    normalize: str = "none",
    prior: str = PRIOR,
    between: str | None = None,
    slide: bool = False,
    budget: int = BUDGET,
) -> list[Chosen]:
    """The best continuation of each prompt, (prompt, choices); `places`: where they come from, for errors.

    `normalize`: by its log-probability (none), that divided by its tokens (token) or bytes (byte), or less its
    log-probability after the text `prior` (prior). `between` stands between prompt and choice: a space unless given,
    none where one of them brings its own. A token that crosses the border belongs to the choice. A prompt too long for
    the context is an error, or with `slide` read from as far back as there is room.
    """
    one_of(normalize, NORMALIZE, "normalize")
    places = places or [f"prompt {number}" for number in range(1, len(prompts) + 1)]

    def logprobs(lines: Iterable[_Line]) -> Iterator[float]:
        return (-float(each.nats.sum()) for each in surprises(model, (line.reading for line in lines), budget))

    lines = list[_Line]()
    for place, (prompt, some) in zip(places, prompts, strict=True):
        lines += _lines(model, prompt, some, between, slide, place)
    scored = iter(list(zip(lines, logprobs(lines), strict=True)))
    every = list(dict.fromkeys(choice for _, some in prompts for choice in some)) if normalize == "prior" else []
    priors = logprobs(_lines(model, prior, every, between, False, "the prior"))
    after_prior = dict(zip(every, priors, strict=True))
    return [
        _chosen(some, list(islice(scored, len(some))), normalize, after_prior, place)
        for place, (_, some) in zip(places, prompts, strict=True)
    ]


def _chosen(
    choices: Sequence[str],
    scored: list[tuple[_Line, float]],
    normalize: str,
    after_prior: Mapping[str, float],
    where: str,
) -> Chosen:
    """The choices of one prompt, the best first, by their log-probabilities."""
    scores = list[float]()
    for choice, (line, logprob) in zip(choices, scored, strict=True):
        by = {"token": len(line.reading.targets), "byte": len(choice.encode())}.get(normalize, 1)
        scores.append(-math.inf if logprob == -math.inf else logprob / by - after_prior.get(choice, 0.0))
    best = max(scores)
    if not math.isfinite(best):  # of maximum likelihood, which has seen none of them
        raise UserError(f"{where}: this model gives every choice a probability of 0")
    whole = math.fsum(math.exp(score - best) for score in scores)
    options = [
        Continuation(
            text=choice,
            number=number,
            logprob=logprob,
            score=score,
            probability=math.exp(score - best) / whole,
            n_tokens=len(line.reading.targets),
            crossing=line.crossing,
        )
        for number, (choice, score, (line, logprob)) in enumerate(zip(choices, scores, scored, strict=True))
    ]
    options.sort(key=lambda option: -option.score)  # of equal ones the earlier stays first
    return Chosen(
        text=options[0].text,
        number=options[0].number,
        options=tuple(options),
        n_tokens=max(line.n_tokens for line, _ in scored),
        truncated=any(line.truncated for line, _ in scored),
    )


def tokens_read(model: LoadedModel, value: Sequence[str], **options: Any) -> int:
    """Tokens of a question beside each of its options, counted without putting them together."""
    context, question, *choices = value
    own, *every = map(len, tokenizer_of(model).ids([f"{context} {question}", *choices], specials=False))
    return own * len(choices) + sum(every)


def _lines(
    model: LoadedModel, prompt: str, choices: Sequence[str], between: str | None, slide: bool, where: str
) -> Iterator[_Line]:
    """A prompt with each of its choices; the tokens of the choice are those that end after the border."""
    tokenizer, context = writing_tokenizer(model, decoder=True), model.config.context
    before, _ = frame(tokenizer)
    spaced = between is None and prompt and not prompt[-1].isspace()
    spaces = [between or " " * bool(spaced and not choice[0].isspace()) for choice in choices]
    texts = [f"{prompt}{space}{choice}" for space, choice in zip(spaces, choices, strict=True)]
    for choice, encoded in zip(choices, tokenizer.encode_batch(texts, specials=False), strict=True):
        ids, offsets = encoded.ids, encoded.offsets
        border = next((place for place, (_, end) in enumerate(offsets) if end > len(prompt)), len(ids))
        if border == len(ids):
            raise UserError(f"{where}: choice {shown(choice)!r} has no token in this vocabulary")
        crossing = offsets[border][0] < len(prompt)
        # Without a prompt a text starts as it did in training, after the token that parts documents.
        head = [*before, *ids[:border]] or beginning(tokenizer)
        if not head:
            raise UserError(f"{where}: the prompt is empty, and this vocabulary has no token that begins a text")
        targets = ids[border:]
        room = context - (len(targets) - 1)
        if room < 1 or (len(head) > room and not slide):
            much = f"{len(head)} + {len(targets)} tokens, more than the model's context of {context} can predict"
            keeping = "; --slide (slide=True) keeps the prompt's end" * (room > 0)
            raise UserError(f"{where}: prompt and choice {shown(choice)!r} have {much}{keeping}")
        yield _Line(Reading([*head[-room:], *targets[:-1]], targets), len(head), len(head) > room, crossing)

"""Text to text: translate, summarize, rewrite."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from weft.checkpoint.card import Card, Window
from weft.checkpoint.families import Family
from weft.checkpoint.folder import LoadedModel
from weft.data.columns import PAIRED, find_columns, paired_columns, text_in
from weft.data.examples import Sequences, TargetSampler, TextSide
from weft.errors import UserError
from weft.metrics.bootstrap import Metrics, Replicates
from weft.metrics.generation import GenerationMetrics, RougeMetrics, chrf_of, letter_grams, rouge_of
from weft.objectives.losses import Writing
from weft.progress import Log
from weft.tasks.base import Columns, Example, Prediction, Task, TeacherArrays, TeacherRows
from weft.tasks.complete import stream
from weft.tasks.forward import tokenizer_of
from weft.tasks.generation import Stream
from weft.tasks.translate import (
    WIDTH,
    around,
    check_writer,
    profile_of,
    swapped,
    swapped_line,
    together,
    translate,
    writer_of,
)
from weft.text.records import Record
from weft.text.sentences import lead
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.windows import Framing

RATIO = 9.0  # how many times as long as the other a side of a translation may be
ROOM = 30  # characters by which a side may always be longer than the other
CHUNK = 1024  # pairs that are tokenized at a time


@dataclass(frozen=True)
class TeacherTexts:
    """How a student learns from the texts that a teacher's beam search writes (Kim and Rush, 2016)."""

    beam_size: int = 5
    n: int = 1  # texts that are learned for each source ...
    closest: bool = False  # ... or, where there is a target, the one that is closest to it
    hard: float = 0.0  # share of the epochs in which the target is learned, where there is one
    others: tuple[LoadedModel, ...] = ()  # teachers that write together with the one that is run

    @property
    def count(self) -> int:
        """Texts that the teacher writes; the closest is sought among all of its beam."""
        return self.beam_size if self.closest else self.n


@dataclass(frozen=True)
class SequenceTask(Task):
    """A text written from another."""

    name: str
    prefix: str | None = None
    smoothing: float = 0.1
    ratio: float = 0.0
    copies: bool = True
    judged: int = 500  # examples that are written out to evaluate a run by
    profiles: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    beam_size: int = 1
    baseline: bool = False  # metrics of the first sentences, beside those of a summary
    others: tuple[LoadedModel, ...] = ()  # models that write together with the one that is evaluated
    soft: TeacherTexts = TeacherTexts()  # how a student learns from its teacher

    head = "words"
    needs = "reads one text and writes another"
    writes = True
    joint_teachers = True
    parallel = True

    @classmethod
    def from_recipe(cls, work: Any, data: Any) -> SequenceTask:
        cls.check_recipe(work, "prefix")
        translating = work.name == "translate"
        ratio = data.ratio if data.ratio is not None else RATIO if translating else 0.0
        copies = data.copies == "keep" if data.copies is not None else not translating
        return cls(work.name, work.prefix, work.smoothing, ratio, copies, work.judged)

    @classmethod
    def from_model(cls, model: LoadedModel, name: str) -> SequenceTask:
        return cls(name, model.card.prefix, profiles=model.card.profiles, beam_size=WIDTH, baseline=True)

    @classmethod
    def fits(cls, family: Family) -> bool:
        return family.reads and not family.numbers

    def to_card(self, card: Card) -> Card:
        profiles = dict(self.profiles) or card.profiles
        return replace(card, labels=None, thresholds={}, temperature=None, prefix=self.prefix, profiles=profiles)

    def input_columns(self, record: Record, given: Mapping[str, str]) -> tuple[str, ...]:
        return ("source",)

    def columns(self, record: Record, given: Mapping[str, str]) -> tuple[SequenceTask, tuple[str, ...]]:
        return self, ("source", "target")

    def find_inputs(self, record: Record, given: Mapping[str, str], note: Log = lambda text: None) -> Columns:
        """Sources beside targets, else texts."""
        if "text" not in given:
            both = paired_columns(list(record.values))
            given = ({"source": both[0]} if both else {}) | dict(given)
        source = "text" not in given and ("source" in given or "source" in record.values)
        return find_columns(("source" if source else "text",), given, record, note)

    def partial_columns(self, record: Record, given: Mapping[str, str], note: Log) -> tuple[Task, Columns, Columns]:
        """By a usual pair of names, of which the second may be missing."""
        try:
            both = find_columns(("source", "target"), given, record)
            return self, {"source": both["source"]}, both
        except UserError:
            if "target" in given:
                raise
        there = {name.casefold(): name for name in reversed(list(record.values))}
        source = next((there[first] for first, _ in PAIRED if first in there), None)
        known = given if "source" in given or source is None else {"source": source}
        return self, find_columns(("source",), known, record), {}

    def read(self, record: Record, columns: Mapping[str, str]) -> Example:
        return replace(self.read_input(record, columns), target=text_in(record, columns["target"]))

    def read_input(self, record: Record, columns: Mapping[str, str]) -> Example:
        return Example((text_in(record, columns["source"]),), None, record.where)

    def inputs(self, example: Example) -> str:
        return example.texts[0]

    def to_record(self, example: Example) -> dict[str, Any]:
        return {"source": example.texts[0], "target": example.target}

    def select(self, examples: Sequence[Example], log: Log) -> list[Example]:
        return sifted(examples, self.ratio, self.copies, log)

    def fit_labels(self, examples: Sequence[Example], labels: Sequence[str] = ()) -> SequenceTask:
        """The rows decide which letters are frequent on either side."""
        sides = {
            "source": profile_of(example.texts[0] for example in examples),
            "target": profile_of(example.target for example in examples),
        }
        return replace(self, profiles=sides)

    def swap_note(self, examples: Sequence[Example], where: str, profiles: Mapping[str, Any] | None = None) -> str:
        profiles = self.profiles if profiles is None else profiles
        if not profiles:
            return ""
        sides = [example.texts[0] for example in examples], [example.target for example in examples]
        return swapped_line(where) if swapped(*sides, profiles) else ""

    def dataset(
        self, examples: Sequence[Example], model: LoadedModel, windows: Framing, teacher_outputs: TeacherRows = None
    ) -> Sequences:
        """Pairs that are too long for the model, or from which a teacher wrote nothing, are left out with a note."""
        if teacher_outputs is None:
            return self.laid_out(examples, [{example.target: 1.0} for example in examples], model, windows)
        pairs = zip(examples, teacher_outputs, strict=True)
        targets = [self.teacher_targets(example, unpack_texts(outputs)) for example, outputs in pairs]
        kept = [number for number, texts in enumerate(targets) if texts]
        if not kept:
            raise UserError("the teacher has written no text that came to an end, so there is nothing to learn")
        sequences = self.laid_out([examples[n] for n in kept], [targets[n] for n in kept], model, windows)
        lost = len(examples) - len(kept)
        note = f"{lost:,} text{'s' * (lost > 1)} from which the teacher wrote nothing that came to an end: left out"
        return replace(sequences, notes=(note, *sequences.notes)) if lost else sequences

    def laid_out(
        self, examples: Sequence[Example], ways: Sequence[Mapping[str, float]], opened: LoadedModel, framing: Framing
    ) -> Sequences:
        """The same with several texts in place of each target, each with its share of the epochs."""
        writer = writer_of(opened)
        end = end_of(writer)
        read, written, shares = list[Any](), list[list[int]](), list[list[float]]()
        long: list[tuple[int, Example]] = []
        for first in range(0, len(examples), CHUNK):
            some = examples[first : first + CHUNK]
            wanted = ways[first : first + CHUNK]
            targets = iter(writer.ids([text for each in wanted for text in each], specials=False))
            for example, one, each in zip(some, self.sources(some, opened), wanted, strict=True):
                texts = [([*next(targets), end], share) for share in each.values()]
                fitting = [(text, share) for text, share in texts if max(len(one), len(text)) <= framing.length]
                if not fitting:
                    long.append((min(max(len(one), len(text)) for text, _ in texts), example))
                    continue
                read.append(one)
                written += [text for text, _ in fitting]
                shares.append([share for _, share in fitting])
        if not read:
            raise UserError(
                f"all {len(examples):,} pairs are longer than the model's context of {framing.length} tokens"
            )
        notes = (too_long(long, framing.length),) if long else ()
        several = TargetSampler.of(shares) if len(written) > len(read) else None
        sides = self.read_side(read), TextSide.of(written)
        return Sequences(*sides, opened.config.begin, framing.length, notes=notes, ways=several)

    def sources(self, examples: Sequence[Example], model: LoadedModel) -> list[Any]:
        """What the network reads of each example."""
        before, after = around(model)
        texts = [(self.prefix or "") + example.texts[0] for example in examples]
        return [[*before, *ids, *after] for ids in tokenizer_of(model).ids(texts, specials=False)]

    def read_side(self, sources: list[Any]) -> Any:
        return TextSide.of(sources)

    def objective(self) -> Writing:
        return Writing(self.smoothing)

    def prepare(self, model: LoadedModel, examples: Sequence[Example], fresh: bool) -> SequenceTask:
        """The prefix that a base was trained with stays, unless one is given; "" takes it off."""
        return replace(self, prefix=model.card.prefix) if self.prefix is None and model.card.prefix else self

    def card_window(self, window: Window, dataset: Sequences) -> Window:
        """An encoder-decoder reads at once no more than it has read in training."""
        length = min(window.length, dataset.read.longest)
        return Window(length=length, stride=length)

    def sample(self, examples: Sequence[Example]) -> Sequence[Example]:
        """Evenly from all of them."""
        if len(examples) <= self.judged:
            return examples
        return [examples[number * len(examples) // self.judged] for number in range(self.judged)]

    def metric_package(self, metric: str) -> str | None:
        return "sacrebleu" if metric in ("bleu", "chrf", "exact") else None

    def answers(self, model: LoadedModel, inputs: Sequence[Any], **options: Any) -> list[Any]:
        return translate(model, inputs, **options)

    def stream(self, model: LoadedModel, input: Any, **options: Any) -> Stream:
        return stream(model, input, **options)

    def predict(self, model: LoadedModel, windows: Framing, inputs: Sequence[Any]) -> list[Prediction]:
        texts = translate(model, inputs, beam_size=self.beam_size, prefix=self.prefix, others=self.others, watch=False)
        return [Prediction(text, text.n_tokens, text.n_windows, text.truncated) for text in texts]

    chance_metric = None

    def is_finite(self, prediction: Prediction) -> bool:
        return math.isfinite(prediction.output.logprob) and math.isfinite(prediction.output.score)

    def key(self, prediction: Prediction) -> Hashable:
        return prediction.output.text.strip()

    def agreement(self) -> Any:
        return GenerationMetrics(edges=())

    def agree(self, counts: Any, prediction: Prediction, reference: Prediction, example: Example, task: Task) -> None:
        counts.add([prediction.output.text], [reference.output.text])

    def distance(self, prediction: Prediction, reference: Prediction, example: Example, task: Task) -> float:
        same = self.key(prediction) == task.key(reference)
        return 0.0 if same else 1 - chrf_near(prediction.output.text, reference.output.text)

    def with_others(self, models: Sequence[LoadedModel]) -> SequenceTask:
        return replace(self, others=tuple(models))

    @property
    def metric_names(self) -> tuple[str, ...]:
        """By its loss alone, nothing need be written."""
        if self.name == "summarize":
            return ("rougeL", "rouge1", "rouge2", "loss")
        return ("bleu", "chrf", "exact", "loss")

    @property
    def default_metric(self) -> str:
        # BLEU asks for four words in a row: it says nothing about answers of a word or two, such as dates.
        return {"translate": "bleu", "summarize": "rougeL", "rewrite": "chrf"}[self.name]

    def metrics(self) -> WritingMetrics:
        return WritingMetrics(self.name == "summarize", self.baseline)

    def add(self, metrics: WritingMetrics, predictions: Sequence[Prediction], examples: Sequence[Example]) -> None:
        metrics.add(
            [each.output.text for each in predictions],
            [example.target for example in examples],
            [example.texts[0] for example in examples],
        )

    def similarity(self, text: str, target: str) -> float:
        """How close one text is to another; of a single text letters say more than BLEU does."""
        return rouge_of(text, target)[2] if self.name == "summarize" else chrf_near(text, target)

    def tables(self, metrics: Any) -> dict[str, Any]:
        return {"signature": metrics.signature, "by_length": metrics.by_length()}

    def mistake(self, prediction: Prediction, example: Example) -> tuple[float, dict[str, str]] | None:
        text = prediction.output.text
        if text.strip() == example.target.strip():
            return None
        near = self.similarity(text, example.target)
        row = {"near": f"{near:.3f}", "target": example.target, "prediction": text}
        return 1 - near, {**row, "where": example.where, "text": example.texts[0]}

    def learning_from(self, settings: Any, teachers: Sequence[LoadedModel]) -> SequenceTask:
        first, *others = teachers
        check_writer(first)
        together(first, others)
        soft = TeacherTexts(settings.beam_size, settings.n, settings.closest, settings.hard, tuple(others))
        return replace(self, beam_size=1, baseline=False, soft=soft)  # evaluated as in fine-tuning

    def same_outputs(self, other: Task) -> bool:
        return True  # whether they can write together is checked above

    @property
    def teacher_settings(self) -> dict[str, Any]:
        return {"beam": self.soft.beam_size, "number": self.soft.count, "prefix": self.prefix}

    def teacher_outputs(self, model: LoadedModel, windows: Framing, examples: Sequence[Example]) -> list[TeacherArrays]:
        """The best texts for each source that came to an end, best first, with their log-probabilities."""
        translations = translate(
            model,
            [example.texts[0] for example in examples],
            beam_size=self.soft.beam_size,
            n=self.soft.count,
            prefix=self.prefix,
            others=self.soft.others,
            watch=False,
        )
        return [  # a text that came to no end was truncated somewhere, mostly in a circle
            pack_texts([(text.text, text.logprob) for text in each.best if text.finish_reason == "end"])
            for each in translations
        ]

    def average(self, outputs: Sequence[TeacherArrays]) -> TeacherArrays:
        """All texts of teachers that did not write together, the likeliest first."""
        texts = [text for arrays in outputs for text in unpack_texts(arrays)]
        return pack_texts(sorted(texts, key=lambda text: -text[1]))

    def with_teacher_answer(self, example: Example, outputs: TeacherArrays) -> Example:
        return replace(example, target=next((text for text, _ in unpack_texts(outputs)), ""))

    def vocabulary_texts(
        self, examples: Sequence[Example], outputs: Callable[[], Sequence[TeacherArrays]]
    ) -> Iterator[str]:
        for example, arrays in zip(examples, outputs(), strict=True):
            yield (self.prefix or "") + example.texts[0]
            yield from self.teacher_targets(example, unpack_texts(arrays))

    def teacher_targets(self, example: Example, texts: Sequence[tuple[str, float]]) -> Mapping[str, float]:
        """The texts to be learned from one source, and their shares, which add up to 1."""
        logprobs: dict[str, float] = {}
        for text, logprob in texts:  # two ways to split a text into tokens are one text
            if text.strip():
                logprobs[text] = np.logaddexp(logprobs.get(text, -math.inf), logprob)
        target = example.target if isinstance(example.target, str) and example.target.strip() else None
        if target is not None and self.soft.closest and logprobs:  # the likeliest of those that are equally close
            logprobs = {max(logprobs, key=lambda text: (self.similarity(text, target), logprobs[text])): 0.0}
        best = list(logprobs)[: self.soft.n]  # in the order of the teacher's scores, not of probabilities alone
        highest = max((logprobs[text] for text in best), default=0.0)
        weights = {text: math.exp(logprobs[text] - highest) for text in best}
        total, hard = sum(weights.values()), self.soft.hard if target is not None else 0.0
        shares = {text: (1 - hard) * weight / total for text, weight in weights.items() if hard < 1}
        if target is not None and (hard or not shares):
            shares[target] = shares.get(target, 0.0) + (hard if shares else 1.0)
        return shares


def sifted(examples: Iterable[Example], ratio: float, copies: bool, log: Callable[[str], None]) -> list[Example]:
    """The pairs whose sides fit each other's length (`ratio` 0: any), without copies unless they are wanted."""
    kept, uneven, copied = [], list[str](), list[str]()
    for example in examples:
        source, target = example.texts[0], str(example.target)
        short, long = sorted((len(source), len(target)))
        if ratio and long > ratio * short + ROOM:
            uneven.append(example.where)
        elif not copies and source.strip() == target.strip():
            copied.append(example.where)
        else:
            kept.append(example)
    for places, what in (
        (uneven, f"one side more than {ratio:g} times as long as the other (data.ratio)"),
        (copied, "the same text on both sides (data.copies)"),
    ):
        if places:
            log(f"left out {len(places):,} pair{'s' * (len(places) != 1)} with {what}; the first: {places[0]}")
    return kept


def chrf_near(text: str, right: str) -> float:
    """How much of one text is in the other, by their letters: chrF of a single text, in 0..1."""
    sums: list[float] = []
    for ours, theirs in zip(letter_grams(text), letter_grams(right), strict=True):
        sums += [ours.total() if theirs else 0, theirs.total(), (ours & theirs).total()]
    return float(chrf_of(np.array(sums, dtype=np.float64))[0])


def pack_texts(texts: Sequence[tuple[str, float]]) -> TeacherArrays:
    """Texts and their log-probabilities as arrays."""
    data = [text.encode("utf-8", "replace") for text, _ in texts]
    return {
        "texts": np.frombuffer(b"".join(data), dtype=np.uint8).copy(),
        "ends": np.cumsum([len(text) for text in data], dtype=np.int64),
        "logprobs": np.array([logprob for _, logprob in texts], dtype=np.float64),
    }


def unpack_texts(outputs: TeacherArrays) -> list[tuple[str, float]]:
    """The texts again, the best first."""
    data, ends = outputs["texts"].tobytes(), outputs["ends"].tolist()
    texts = [data[begin:end].decode() for begin, end in zip([0, *ends], ends, strict=False)]
    return list(zip(texts, outputs["logprobs"].tolist(), strict=True))


def end_of(writer: Tokenizer) -> int:
    """The token that ends what is written."""
    end = writer.id_of("end")
    if end is None:
        raise UserError("the tokenizer has no token to end a text with, so nothing can be written")
    return end


def too_long(long: list[tuple[int, Example]], length: int) -> str:
    """A note on pairs that are longer than a model can read."""
    tokens, example = max(long, key=lambda each: each[0])
    words = max(len(text.split()) for text in (*example.texts, str(example.target)))
    limit = f"longer than the model's context of {length:,} tokens: left out"
    if len(long) == 1:
        return f"1 pair of {words:,} words is {limit} ({example.where})"
    return f"{len(long):,} pairs, the longest of {words:,} words, are {limit} (the longest: {example.where})"


class WritingMetrics(Metrics):
    """The scores of what was written: BLEU, chrF and exact matches, or ROUGE beside that of the first sentences."""

    def __init__(self, summaries: bool, baseline: bool) -> None:
        self.written = None if summaries else GenerationMetrics()
        self.rouge = RougeMetrics() if summaries else None
        self.lead = RougeMetrics() if summaries and baseline else None

    def add(self, texts: Sequence[str], right: Sequence[str], sources: Sequence[str]) -> None:
        if self.written is not None:
            self.written.add(texts, right, [len(source.split()) for source in sources])
        if self.rouge is not None:
            self.rouge.add(texts, right)
        if self.lead is not None:
            self.lead.add([lead(source) for source in sources], right)

    def sampled(self) -> dict[str, Replicates]:
        if self.written is not None:
            return self.written.sampled()
        assert self.rouge is not None
        leading = {} if self.lead is None else self.lead.sampled()
        return self.rouge.sampled() | {f"lead3_{name}": score for name, score in leading.items()}

    @property
    def signature(self) -> str | None:
        return None if self.written is None else self.written.signature

    def by_length(self) -> list[dict[str, Any]]:
        """The scores by the words of the source, where there are several lengths."""
        rows = []
        for row in [] if self.written is None else self.written.by_length():
            words = f"{row.low} to {row.high - 1}" if row.high is not None else f"{row.low} or more"
            scores = {name: score.value for name, score in row.scores.items()}
            rows.append({"words": words, "sentences": row.sentences, **scores})
        return rows if len(rows) > 1 else []

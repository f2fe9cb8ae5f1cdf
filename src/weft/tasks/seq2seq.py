"""Text from a text or from a vector: an encoder-decoder translates, summarizes, rewrites or describes."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, ClassVar

import numpy as np
import torch

from weft.checkpoint.card import Card, Window
from weft.checkpoint.families import Family
from weft.checkpoint.folder import LoadedModel
from weft.data.columns import PAIRED, check_features, find_columns, paired_columns, text_in
from weft.data.examples import Sequences, TargetSampler, TextSide, VectorSide
from weft.errors import UserError
from weft.metrics.bootstrap import Replicates
from weft.metrics.generation import GenerationMetrics, RougeMetrics, chrf_of, letter_grams, rouge_of
from weft.objectives.losses import Writing
from weft.progress import Log
from weft.tasks import complete
from weft.tasks.base import Columns, Difference, Example, Prediction, Task, TeacherArrays, TeacherRows
from weft.text.records import Record
from weft.text.sentences import lead
from weft.text.windows import Framing

GRAMS = 60  # of a profile
SAMPLE = 2000  # texts that a profile is counted from
ENOUGH = 40  # pairs of letters, with fewer of which a text does not tell its language
CLEARLY = 1.3  # how much nearer a text must be to the other side
RIGHT = "by their letters; is it the right way round?"
RATIO = 9.0  # how many times as long as the other a side of a translation may be
ROOM = 30  # characters by which a side may always be longer than the other
CHUNK = 1024  # pairs that are tokenized at a time
METRICS = {  # by the loss alone, nothing need be written
    "translate": ("bleu", "chrf", "exact", "loss"),
    "summarize": ("rougeL", "rouge1", "rouge2", "loss"),
    "rewrite": ("chrf", "bleu", "exact", "loss"),  # BLEU asks for four words in a row: dates have one or two
    "describe": ("bleu", "chrf", "exact", "loss"),
}


def _letter_pairs(texts: Iterable[str]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for text in islice(texts, SAMPLE):
        folded = " ".join(text[:2000].casefold().split())
        counts.update(a + b for a, b in zip(folded, folded[1:], strict=False))
    return counts


def profile_of(texts: Iterable[str]) -> tuple[str, ...]:
    """The most frequent pairs of letters in some texts, which tell languages apart."""
    pairs = sorted(_letter_pairs(texts).items(), key=lambda item: (-item[1], item[0]))
    return tuple(sorted(pair for pair, _ in pairs[:GRAMS]))


def swapped(source: Sequence[str], target: Sequence[str], profiles: Mapping[str, Sequence[str]]) -> bool:
    """Whether source and target look exchanged; without targets, whether the source looks like a target."""
    if not {"source", "target"} <= set(profiles):
        return False
    for texts, own, other in ((source, "source", "target"), (target, "target", "source"))[: 1 + bool(target)]:
        ours, theirs = set(profiles[own]) - set(profiles[other]), set(profiles[other]) - set(profiles[own])
        counts = _letter_pairs(texts)
        for_own, for_other = (sum(counts[pair] for pair in pairs) for pairs in (ours, theirs))
        if counts.total() < ENOUGH or len(ours) < GRAMS // 6 or for_other < ENOUGH // 8:
            return False  # too little to tell, or two sides in one language
        if for_other <= CLEARLY * for_own + 2:
            return False
    return True


@dataclass(frozen=True)
class TeacherTexts:
    """How a student learns from the texts that a teacher's beam search writes (Kim and Rush, 2016)."""

    beam_size: int = 5
    n: int = 1  # texts that are learned for each source ...
    closest: bool = False  # ... or, where there is a target, the one that is closest to it
    hard: float = 0.0  # share of the epochs in which the target is learned, where there is one
    others: tuple[LoadedModel, ...] = ()  # teachers that write together with the one that is run


@dataclass(frozen=True)
class SequenceTask(Task):
    """A text written from another."""

    name: str
    prefix: str | None = None
    smoothing: float = 0.1
    ratio: float = 0.0
    copies: bool = True
    max_evaluated: int = 500  # held-out examples generated for each evaluation of a run
    profiles: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    beam_size: int = 1
    baseline: bool = False  # metrics of the first sentences, beside those of a summary
    others: tuple[LoadedModel, ...] = ()  # models that write together with the one that is evaluated
    soft: TeacherTexts = TeacherTexts()  # how a student learns from its teacher

    head = "words"
    needs = "reads one text and writes another"
    loss_by_token = True
    writes = True
    joint = True
    packages: ClassVar[Mapping[str, str]] = dict.fromkeys(("bleu", "chrf", "exact"), "sacrebleu")
    parallel = True
    input_names: ClassVar[tuple[str, ...]] = ("source",)
    row_names: ClassVar[tuple[str, ...]] = ("source", "target")

    @classmethod
    def from_recipe(cls, work: Any, data: Any) -> SequenceTask:
        cls.check_recipe(work, "prefix")
        translating = work.name == "translate"
        ratio = data.ratio if data.ratio is not None else RATIO if translating else 0.0
        copies = data.copies == "keep" if data.copies is not None else not translating
        return cls(work.name, work.prefix, work.smoothing, ratio, copies, work.max_evaluated)

    @classmethod
    def from_model(cls, model: LoadedModel, name: str) -> SequenceTask:
        return cls(name, model.card.prefix, profiles=model.card.profiles, beam_size=complete.BEAM_SIZE, baseline=True)

    @classmethod
    def fits(cls, family: Family) -> bool:
        return family.reads and not family.numbers

    def to_card(self, card: Card) -> Card:
        profiles = dict(self.profiles) or card.profiles
        return replace(card, labels=None, thresholds={}, temperature=None, prefix=self.prefix, profiles=profiles)

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
        return replace(self.read_input(record, columns), target=text_in(record, columns[self.row_names[1]]))

    def inputs(self, example: Example) -> str:
        return example.texts[0]

    def to_record(self, example: Example) -> dict[str, Any]:
        return {"source": example.texts[0], "target": example.target}

    def select(self, examples: Sequence[Example], log: Log) -> list[Example]:
        """The pairs whose sides fit each other's length (`ratio` 0: any), without copies unless they are wanted."""
        kept, uneven, copied = [], list[str](), list[str]()
        for example in examples:
            source, target = example.texts[0], str(example.target)
            short, long = sorted((len(source), len(target)))
            if self.ratio and long > self.ratio * short + ROOM:
                uneven.append(example.where)
            elif not self.copies and source.strip() == target.strip():
                copied.append(example.where)
            else:
                kept.append(example)
        uneven_note = f"one side more than {self.ratio:g} times as long as the other (data.ratio)"
        for places, what in ((uneven, uneven_note), (copied, "the same text on both sides (data.copies)")):
            if places:
                log(f"left out {len(places):,} pair{'s' * (len(places) != 1)} with {what}; the first: {places[0]}")
        return kept

    def fit_labels(self, examples: Sequence[Example], labels: Sequence[str] = ()) -> SequenceTask:
        """The rows decide which letters are frequent on either side."""
        source = profile_of(example.texts[0] for example in examples)
        return replace(self, profiles={"source": source, "target": profile_of(each.target for each in examples)})

    def swap_note(self, examples: Sequence[Example], where: str, profiles: Mapping[str, Any] | None = None) -> str:
        sides = [text for example in examples for text in example.texts], [example.target for example in examples]
        is_swapped = swapped(*sides, self.profiles if profiles is None else profiles)
        return f"{where}: source and target look as if they were swapped, {RIGHT}" if is_swapped else ""

    def dataset(
        self, examples: Sequence[Example], model: LoadedModel, windows: Framing, teacher_outputs: TeacherRows = None
    ) -> Sequences:
        """Pairs that are too long for the model, or from which a teacher wrote nothing, are left out with a note."""
        targets: Sequence[Mapping[str, float]] = [{example.target: 1.0} for example in examples]
        notes = []
        if teacher_outputs is not None:
            pairs = zip(examples, teacher_outputs, strict=True)
            taught = [(example, self.teacher_targets(example, unpack_texts(outputs))) for example, outputs in pairs]
            kept = [pair for pair in taught if pair[1]]
            if not kept:
                raise UserError("the teacher has written no text that came to an end, so there is nothing to learn")
            if lost := len(taught) - len(kept):
                sources = f"{lost:,} text{'s' * (lost > 1)}"
                notes.append(f"{sources} from which the teacher wrote nothing that came to an end: left out")
            examples, targets = zip(*kept, strict=True)
        writer, length = complete.writer_of(model), windows.length
        end = writer.id_of("end")
        if end is None:
            raise UserError("the tokenizer has no token to end a text with, so nothing can be written")
        read, written, shares = list[Any](), list[list[int]](), list[list[float]]()
        long: list[tuple[int, Example]] = []
        for first in range(0, len(examples), CHUNK):
            some, wanted = examples[first : first + CHUNK], targets[first : first + CHUNK]
            tokens = iter(writer.ids([text for each in wanted for text in each], specials=False))
            for example, source, each in zip(some, self.sources(some, model), wanted, strict=True):
                texts = [([*next(tokens), end], share) for share in each.values()]
                fitting = [(text, share) for text, share in texts if max(len(source), len(text)) <= length]
                if not fitting:
                    long.append((min(max(len(source), len(text)) for text, _ in texts), example))
                    continue
                read.append(source)
                written += [text for text, _ in fitting]
                shares.append([share for _, share in fitting])
        if not read:
            raise UserError(f"all {len(examples):,} pairs are longer than the model's context of {length} tokens")
        if long:
            _, example = max(long, key=lambda each: each[0])
            words = max(len(text.split()) for text in (*example.texts, str(example.target)))
            count = f"{len(long):,} pair{'s' * (len(long) > 1)} longer than the model's context of {length:,} tokens"
            notes.append(f"{count}: left out (the longest: {words:,} words, {example.where})")
        several = TargetSampler.of(shares) if len(written) > len(read) else None
        sides = self.read_side(read), TextSide.of(written)
        return Sequences(*sides, model.config.begin, length, notes=tuple(notes), ways=several)

    def sources(self, examples: Sequence[Example], model: LoadedModel) -> list[Any]:
        """What the network reads of each example."""
        return complete.sources_of(model, [(self.prefix or "") + example.texts[0] for example in examples])

    def read_side(self, sources: list[Any]) -> Any:
        return TextSide.of(sources)

    def objective(self) -> Writing:
        return Writing(self.smoothing)

    def prepare(self, model: LoadedModel, examples: Sequence[Example], fresh: bool) -> SequenceTask:
        """The prefix that a base was trained with stays, unless one is given; "" takes it off."""
        return replace(self, prefix=model.card.prefix) if self.prefix is None and model.card.prefix else self

    def card_window(self, window: Window, dataset: Sequences) -> Window:
        """An encoder-decoder reads at once no more than it has read in training; from a vector it writes no more."""
        length = min(window.length, (dataset.read if self.parallel else dataset.written).longest)
        return Window(length=length, stride=length)

    def sample(self, examples: Sequence[Example]) -> Sequence[Example]:
        """Evenly from all of them."""
        count = min(len(examples), self.max_evaluated)
        return [examples[number * len(examples) // count] for number in range(count)]

    def answers(self, model: LoadedModel, inputs: Sequence[Any], **options: Any) -> list[Any]:
        if all(isinstance(text, str) for text in inputs) and swapped(inputs, (), model.card.profiles):
            warnings.warn(f"input: it looks like what the model has learned to write, {RIGHT}", stacklevel=2)
        return self.generate(model, inputs, **options)

    def generate(self, model: LoadedModel, inputs: Sequence[Any], **options: Any) -> list[Any]:
        """The text for each input; `options` as those of `translate` or `describe`."""
        return complete.translate(model, inputs, **{"prefix": self.prefix, **options})

    def predict(self, model: LoadedModel, windows: Framing, inputs: Sequence[Any]) -> list[Prediction]:
        texts = self.generate(model, inputs, beam_size=self.beam_size, others=self.others)
        return [Prediction(text, text.n_tokens, text.n_windows, text.truncated) for text in texts]

    chance_metric = None

    def is_finite(self, prediction: Prediction) -> bool:
        return math.isfinite(prediction.output.logprob) and math.isfinite(prediction.output.score)

    def key(self, prediction: Prediction) -> Hashable:
        return prediction.output.text.strip()

    def agreement(self) -> Any:
        return GenerationMetrics(edges=())

    def compare(self, prediction: Prediction, reference: Prediction, example: Example, task: Any) -> Difference:
        one, two = prediction.output.text, reference.output.text
        same = self.key(prediction) == task.key(reference)
        return ([one], [two]), 0.0 if same else 1 - chrf_near(one, two)

    @property
    def metric_names(self) -> tuple[str, ...]:
        return METRICS[self.name]

    def metrics(self) -> Any:
        return SummaryMetrics(self.baseline) if self.name == "summarize" else GenerationMetrics()

    def add(self, metrics: Any, predictions: Sequence[Prediction], examples: Sequence[Example]) -> None:
        texts, targets = [each.output.text for each in predictions], [example.target for example in examples]
        if self.name != "summarize":
            metrics.add(texts, targets, [len(each.texts[0].split()) for each in examples] if self.parallel else None)
            return
        metrics.add(texts, targets)
        if metrics.lead is not None:
            metrics.lead.add([lead(example.texts[0]) for example in examples], targets)

    def similarity(self, text: str, target: str) -> float:
        """How close one text is to another; of a single text letters say more than BLEU does."""
        return rouge_of(text, target)[2] if self.name == "summarize" else chrf_near(text, target)

    def tables(self, metrics: Any) -> dict[str, Any]:
        if self.name == "summarize":
            return {}
        rows = []  # by the words of the source
        for row in metrics.by_length():
            words = f"{row.low} to {row.high - 1}" if row.high is not None else f"{row.low} or more"
            scores = {name: score.value for name, score in row.scores.items()}
            rows.append({"words": words, "sentences": row.sentences, **scores})
        return {"signature": metrics.signature, "by_length": rows if len(rows) > 1 else []}

    def mistake(self, prediction: Prediction, example: Example) -> tuple[float, dict[str, str]] | None:
        text = prediction.output.text.strip()
        references = (example.target,) if isinstance(example.target, str) else example.target
        if text in [reference.strip() for reference in references]:
            return None
        near, reference = max((self.similarity(text, reference), reference) for reference in references)
        row = {"near": f"{near:.3f}", "target": reference, "prediction": text, "where": example.where}
        return 1 - near, {**row, **dict(zip(("text",), example.texts, strict=False))}

    def learning_from(self, settings: Any, teachers: Sequence[LoadedModel]) -> SequenceTask:
        first, *others = teachers
        complete.check_writer(first)
        complete.together(first, others)
        soft = TeacherTexts(settings.beam_size, settings.n, settings.closest, settings.hard, tuple(others))
        return replace(self, beam_size=1, baseline=False, soft=soft)  # evaluated as in fine-tuning

    def same_outputs(self, other: Task) -> bool:
        return True  # whether they can write together is checked above

    @property
    def teacher_settings(self) -> dict[str, Any]:
        count = self.soft.beam_size if self.soft.closest else self.soft.n  # the closest is sought among all of a beam
        return {"beam": self.soft.beam_size, "number": count, "prefix": self.prefix}

    def teacher_outputs(self, model: LoadedModel, windows: Framing, examples: Sequence[Example]) -> list[TeacherArrays]:
        """The best texts for each source that came to an end, best first, with their log-probabilities."""
        options = {"beam_size": self.soft.beam_size, "n": self.teacher_settings["number"], "others": self.soft.others}
        sources = [example.texts[0] for example in examples]
        return [  # a text that came to no end was truncated somewhere, mostly in a circle
            pack_texts([(text.text, text.logprob) for text in each.best if text.finish_reason == "end"])
            for each in self.generate(model, sources, **options)
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


class SummaryMetrics(RougeMetrics):
    """ROUGE of summaries, with that of the first sentences of their sources where a baseline is asked for."""

    def __init__(self, baseline: bool) -> None:
        super().__init__()
        self.lead = RougeMetrics() if baseline else None

    def sampled(self) -> dict[str, Replicates]:
        leading = {} if self.lead is None else self.lead.sampled()
        return super().sampled() | {f"lead3_{name}": score for name, score in leading.items()}


@dataclass(frozen=True)
class DescribeTask(complete.VectorInputs, SequenceTask):
    """A text written from a vector; all texts of one vector stand on one side of a split, and are references."""

    features: int = 0  # numbers of a vector, once that is known

    needs = "writes from vectors"
    parallel = False
    input_names = ("vector",)
    row_names = ("vector", "text")
    whole_groups = True
    comparable = False
    independent = False  # row n draws from seed + n
    select = Task.select

    @classmethod
    def from_recipe(cls, work: Any, data: Any) -> DescribeTask:
        cls.check_recipe(work)
        return cls("describe", smoothing=work.smoothing, max_evaluated=work.max_evaluated)

    @classmethod
    def from_model(cls, model: LoadedModel, name: str) -> DescribeTask:
        return cls("describe", beam_size=complete.VECTOR_BEAM, features=model.config.features)

    @classmethod
    def fits(cls, family: Family) -> bool:
        return family.reads and family.numbers

    def read_input(self, record: Record, columns: Mapping[str, str]) -> Example:
        return Example((), None, record.where, complete.vector_in(record, columns["vector"]).tobytes())

    def inputs(self, example: Example) -> Any:
        return np.frombuffer(example.numbers, dtype=np.float32)

    def to_record(self, example: Example) -> dict[str, Any]:
        return {"vector": self.inputs(example).tolist(), "text": example.target}

    def fit_labels(self, examples: Sequence[Example], labels: Sequence[str] = ()) -> DescribeTask:
        """The rows decide how many numbers a vector has."""
        counts = Counter(len(example.numbers) // 4 for example in examples)
        return replace(self, features=self.features or counts.most_common(1)[0][0])

    def check_targets(self, examples: Sequence[Example]) -> None:
        for example in examples:
            check_features(len(example.numbers) // 4, self.features, example.where)

    def groups(self, examples: Sequence[Example]) -> list[Any]:
        return [example.numbers for example in examples]

    def merge_references(self, examples: Iterable[Example]) -> Iterable[Example]:
        """One example for each vector, with all its texts, in the order in which the vectors came."""
        by_vector: dict[bytes, list[Example]] = {}
        for example in examples:
            by_vector.setdefault(example.numbers, []).append(example)
        for same in by_vector.values():
            yield replace(same[0], target=tuple(example.target for example in same))

    def learning_from(self, settings: Any, teachers: Sequence[LoadedModel]) -> SequenceTask:
        raise UserError("a model that writes from vectors does not teach")

    def sources(self, examples: Sequence[Example], model: LoadedModel) -> list[Any]:
        return [[self.inputs(example)] for example in examples]

    def read_side(self, sources: list[Any]) -> VectorSide:
        return VectorSide(np.stack([vector for (vector,) in sources]))

    def network_settings(self, given: Mapping[str, Any]) -> dict[str, Any]:
        return {"features": self.features}

    def prepare(self, model: LoadedModel, examples: Sequence[Example], fresh: bool) -> DescribeTask:
        """A new network learns the mean and spread of the vectors."""
        rows, features = self.features, model.config.features
        if rows != features:
            raise UserError(f"the rows have vectors of {rows} numbers, the model takes {features}")
        if fresh:
            network: Any = model.network
            network.settle(torch.from_numpy(np.stack([self.inputs(example) for example in examples])))
        return self

    def sample(self, examples: Sequence[Example]) -> Sequence[Example]:
        return super().sample(list(self.merge_references(examples)))

    def generate(self, model: LoadedModel, inputs: Sequence[Any], **options: Any) -> list[Any]:
        return complete.describe(model, inputs, **options)

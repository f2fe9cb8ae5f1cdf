"""Text to text as a task: translate, summarize, rewrite; from rows to batches, and from answers to scores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from weft.checkpoint.card import Card
from weft.checkpoint.folder import LoadedModel
from weft.data.pairs import Sequences, Side, Ways
from weft.errors import UserError
from weft.objectives.sequences import Writing
from weft.tasks.answers import Translation
from weft.tasks.forward import Prediction, tokenizer_of
from weft.tasks.parallel import profile_of, sifted
from weft.tasks.reading import Example, text_in
from weft.tasks.translate import WIDTH, around, translate, writer_of
from weft.text.metrics_summary import Rouge, rouge_of
from weft.text.metrics_written import Written, chrf_of, letter_grams
from weft.text.records import Record
from weft.text.resampling import Sampled, Sampling
from weft.text.sentences import lead
from weft.text.tokenizer import Tokenizer
from weft.text.windows import Framing

RATIO = 9.0  # how many times as long as the other a side of a translation may be
CHUNK = 1024  # pairs that are tokenized at a time


@dataclass(frozen=True)
class SequenceTask:
    """One of the tasks that write a text from another."""

    name: str
    prefix: str | None = None
    smoothing: float = 0.1
    ratio: float = 0.0
    copies: bool = True
    judged: int = 500
    profiles: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    beam_size: int = 1
    baseline: bool = False  # the scores of the first sentences, beside those of a summary
    others: tuple[LoadedModel, ...] = ()  # models that write together with the one that is judged

    head = "words"
    overlap = 0.0
    labels: tuple[str, ...] = ()

    @property
    def objective(self) -> Writing:
        return Writing(self.smoothing)

    @property
    def names(self) -> tuple[str, ...]:
        """The scores by which the best model may be chosen; by its loss alone, nothing need be written."""
        if self.name == "summarize":
            return ("rougeL", "rouge1", "rouge2", "loss")
        return ("bleu", "chrf", "exact", "loss")

    @property
    def chosen(self) -> str:
        # Of answers of a word or two, such as dates, BLEU sees nothing: it asks for four words in a row.
        return {"translate": "bleu", "summarize": "rougeL", "rewrite": "chrf"}[self.name]

    @staticmethod
    def asked(example: Example) -> str:
        return example.texts[0]

    # ------------------------------------------------------------------------------------------ from people's data

    def needed(self, record: Record, given: Mapping[str, str]) -> tuple[SequenceTask, tuple[str, ...]]:
        return self, ("source", "target")

    def read(self, record: Record, columns: Mapping[str, str]) -> Example:
        source, target = (text_in(record, columns[side]) for side in ("source", "target"))
        return Example((source,), target, record.where)

    def sifted(self, examples: Sequence[Example], told: Callable[[str], None]) -> list[Example]:
        """The pairs that something can be learned from."""
        return sifted(examples, self.ratio, self.copies, told)

    def learned(self, examples: Sequence[Example], labels: Sequence[str] = ()) -> SequenceTask:
        """The task with what the rows say: which letters are frequent on either side."""
        sides = {
            "source": profile_of(example.texts[0] for example in examples),
            "target": profile_of(example.target for example in examples),
        }
        return replace(self, profiles=sides)

    def groups(self, examples: Sequence[Example]) -> list[Any]:
        return ["" for _ in examples]

    def gathered(self, examples: Iterable[Example]) -> Iterable[Example]:
        """The rows as they are judged."""
        return examples

    def check(self, examples: Sequence[Example]) -> None:
        """Any text will do."""

    def sample(self, examples: Sequence[Example]) -> Sequence[Example]:
        """The pairs that are written out to judge by, evenly from all of them."""
        if len(examples) <= self.judged:
            return examples
        return [examples[number * len(examples) // self.judged] for number in range(self.judged)]

    def table(self, examples: Sequence[Example], opened: LoadedModel, framing: Framing) -> Sequences:
        """The pairs as a source of batches; those that are longer than the model can read are left out, and told."""
        return self.laid_out(examples, [{example.target: 1.0} for example in examples], opened, framing)

    def laid_out(
        self, examples: Sequence[Example], ways: Sequence[Mapping[str, float]], opened: LoadedModel, framing: Framing
    ) -> Sequences:
        """The same with several texts in place of each target, each with its share of the epochs."""
        reader, writer = tokenizer_of(opened), writer_of(opened)
        before, after = around(opened)
        end = end_of(writer)
        read, written, shares = list[list[int]](), list[list[int]](), list[list[float]]()
        long: list[tuple[int, Example]] = []
        for first in range(0, len(examples), CHUNK):
            some = examples[first : first + CHUNK]
            wanted = ways[first : first + CHUNK]
            sources = reader.ids([(self.prefix or "") + example.texts[0] for example in some], specials=False)
            targets = iter(writer.ids([text for each in wanted for text in each], specials=False))
            for example, source, each in zip(some, sources, wanted, strict=True):
                one = [*before, *source, *after]
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
        several = Ways.of(shares) if len(written) > len(read) else None
        return Sequences(
            Side.of(read), Side.of(written), opened.config.begin, framing.length, notes=notes, ways=several
        )

    # -------------------------------------------------------------------------------------- from network to answer

    def outcomes(self, opened: LoadedModel, framing: Framing, texts: Sequence[str]) -> list[Prediction]:
        """What the network writes from each text."""
        found = translate(opened, texts, beam_size=self.beam_size, prefix=self.prefix, others=self.others, watch=False)
        return [Prediction(each, each.n_tokens, each.n_windows, each.truncated) for each in found]

    def answer(self, found: Prediction) -> Translation:
        answer: Translation = found.said
        return answer

    def tuned(self, outcomes: Sequence[Prediction], examples: Sequence[Example]) -> SequenceTask:
        return self

    def carded(self, card: Card) -> Card:
        profiles = dict(self.profiles) or card.profiles
        return replace(card, labels=None, thresholds={}, temperature=None, prefix=self.prefix, profiles=profiles)

    def metrics(self) -> Scores:
        return Scores(self.name == "summarize", self.baseline)

    def add(self, metrics: Scores, outcomes: Sequence[Prediction], examples: Sequence[Example]) -> None:
        metrics.add(
            [found.said.text for found in outcomes],
            [example.target for example in examples],
            [example.texts[0] for example in examples],
        )

    def mistake(self, found: Prediction, example: Example) -> tuple[float, dict[str, str]] | None:
        """How far from right an answer is, and what a table of the worst shows of it."""
        text = found.said.text
        if text.strip() == example.target.strip():
            return None
        near = rouge_of(text, example.target)[2] if self.name == "summarize" else chrf_near(text, example.target)
        shown = {"near": f"{near:.3f}", "right": example.target, "said": text}
        return 1 - near, {**shown, "where": example.where, "text": example.texts[0]}


def chrf_near(text: str, right: str) -> float:
    """How much of one text is in the other, by their letters: chrF of a single text, in 0..1."""
    sums: list[float] = []
    for ours, theirs in zip(letter_grams(text), letter_grams(right), strict=True):
        sums += [ours.total() if theirs else 0, theirs.total(), (ours & theirs).total()]
    return float(chrf_of(np.array(sums, dtype=np.float64))[0])


def end_of(writer: Tokenizer) -> int:
    """The token that ends what is written."""
    end = writer.id_of("end")
    if end is None:
        raise UserError("the tokenizer has no token to end a text with, so nothing can be written")
    return end


def too_long(long: list[tuple[int, Example]], length: int) -> str:
    """What is said of pairs that no model can learn from."""
    tokens, example = max(long, key=lambda each: each[0])
    words = max(len(text.split()) for text in (*example.texts, str(example.target)))
    limit = f"longer than the model's context of {length:,} tokens: left out"
    if len(long) == 1:
        return f"1 pair of {words:,} words is {limit} ({example.where})"
    return f"{len(long):,} pairs, the longest of {words:,} words, are {limit} (the longest: {example.where})"


class Scores(Sampling):
    """The scores of what was written: BLEU, chrF and exact matches, or ROUGE beside that of the first sentences."""

    def __init__(self, summaries: bool, baseline: bool) -> None:
        self.written = None if summaries else Written()
        self.rouge = Rouge() if summaries else None
        self.lead = Rouge() if summaries and baseline else None

    def add(self, texts: Sequence[str], right: Sequence[str], sources: Sequence[str]) -> None:
        if self.written is not None:
            self.written.add(texts, right, [len(source.split()) for source in sources])
        if self.rouge is not None:
            self.rouge.add(texts, right)
        if self.lead is not None:
            self.lead.add([lead(source) for source in sources], right)

    def sampled(self) -> dict[str, Sampled]:
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
        found = []
        for row in [] if self.written is None else self.written.by_length():
            words = f"{row.low} to {row.high - 1}" if row.high is not None else f"{row.low} or more"
            scores = {name: score.value for name, score in row.scores.items()}
            found.append({"words": words, "sentences": row.sentences, **scores})
        return found if len(found) > 1 else []


def fresh(work: Any, data: Any) -> SequenceTask:
    """The task of the sections [task] and [data] of a recipe, before anything is known of its rows."""
    translating = work.name == "translate"
    ratio = data.ratio if data.ratio is not None else RATIO if translating else 0.0
    copies = data.copies == "keep" if data.copies is not None else not translating
    return SequenceTask(work.name, work.prefix, work.smoothing, ratio, copies, work.judged)


def task_of(opened: LoadedModel, name: str) -> SequenceTask:
    """The task of a model folder, as its card says."""
    return SequenceTask(name, opened.card.prefix, profiles=opened.card.profiles, beam_size=WIDTH, baseline=True)

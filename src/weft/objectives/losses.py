"""Objectives: the losses of tasks and language models, by labels and by soft targets from a teacher.

n: predictions; C: outputs of the head; k: tokens kept of each teacher output; V: vocabulary; N: tokens; R: rows;
E: examples; P: places where a word begins.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.data.masking import NOTHING
from weft.nn.heads import in_full
from weft.nn.recurrent import Carried
from weft.nn.rows import Batch, Rows
from weft.nn.word_loss import cross_entropy


class Objective(ABC):
    """A loss in one or several terms, summed over predictions; the trainer divides by the counts of a whole step."""

    beside: nn.Module | None = None  # weights of its own: trained and checkpointed, but not part of the model
    soft: SoftTargets | None = None  # from a teacher
    kinds: ClassVar[tuple[str, ...]] = ()  # of predictions, without a teacher

    @property
    def terms(self) -> tuple[str, ...]:
        """The kinds of predictions, in the order of its counts and sums."""
        return self.soft.terms if self.soft else self.kinds

    @property
    @abstractmethod
    def heads(self) -> Mapping[str, int | None]:
        """The heads that it trains and their outputs; None: as many as the vocabulary has tokens."""

    @abstractmethod
    def counts(self, batch: Batch) -> dict[str, int]:
        """How many predictions of each kind a batch asks for."""

    @abstractmethod
    def sums(self, network: Any, batch: Batch) -> dict[str, Tensor]:
        """The summed loss of each kind, in float32."""

    def carried(self, network: Any) -> dict[str, Tensor]:
        """Tensors that it takes from step to step, laid out on the network's device; checkpoints keep them."""
        return {}

    def settle(self) -> None:  # noqa: B027
        """A step is done: what it left is what the next begins with."""

    def for_evaluation(self, network: Any, source: Any) -> Objective:
        """The same with a state of its own, for held-out text."""
        return self


# Targets of a batch with the likeliest next tokens of a teacher: n k, n k and n (the probability of all other tokens).
TOKENS, LOGPROBS, REST = "teacher_tokens", "teacher_logprobs", "teacher_rest"


@dataclass(frozen=True)
class SoftTargets:
    """How a student learns from teacher outputs (Hinton et al., 2015).

    A prediction without a label has the teacher's loss alone; one with a label, `hard` of the label's and the rest of
    the teacher's; one without a teacher output, the label's alone, unless `hard` is 0. All weigh alike in a step.
    """

    temperature: float = 1.0
    hard: float = 0.0

    @property
    def terms(self) -> tuple[str, ...]:
        return ("teacher", "labels") if self.hard else ("teacher",)

    def counts(self, taught: Tensor, labeled: Tensor) -> dict[str, int]:
        """Predictions with something to learn from: a teacher's output, or a label where labels count."""
        known = (taught > 0) | (labeled.bool() & (self.hard > 0))
        return dict.fromkeys(self.terms, int(known.sum()))

    def sums(self, soft: Tensor, right: Tensor | None, taught: Tensor, labeled: Tensor) -> dict[str, Tensor]:
        """The summed losses, by the teacher (`soft`) and by labels (`right`; None where `hard` is 0)."""
        if right is None or not self.hard:
            return {"teacher": (soft * taught).sum()}
        by_label = labeled * (1 - taught + self.hard * taught)
        by_teacher = taught * (1 - self.hard * labeled)
        return {"teacher": (soft * by_teacher).sum(), "labels": (right * by_label).sum()}

    def one_of(self, logits: Tensor, teacher: Tensor) -> Tensor:
        """n C -> n: the divergence from the teacher's probabilities, one of C being right."""
        ours, theirs = (F.log_softmax(each / self.temperature, -1) for each in (logits, teacher))
        # The square of the temperature keeps gradients as large as those of labels.
        return (theirs.exp() * (theirs - ours)).sum(-1) * self.temperature**2

    def each_of(self, logits: Tensor, teacher: Tensor) -> Tensor:
        """n C -> n: the same where each of C labels is a question of its own: the mean over labels."""
        ours, theirs = logits / self.temperature, teacher / self.temperature
        probability = theirs.sigmoid()
        loss = probability * (F.logsigmoid(theirs) - F.logsigmoid(ours))
        loss = loss + (1 - probability) * (F.logsigmoid(-theirs) - F.logsigmoid(-ours))
        return loss.mean(-1) * self.temperature**2


def kept_divergence(logits: Tensor, tokens: Tensor, logprobs: Tensor, rest: Tensor) -> Tensor:
    """n V -> n: the divergence (Kullback and Leibler, 1951) from k tokens and all others together, in nats.

    Never more than the divergence of all tokens, and the same where all are kept.
    """
    kept = logprobs.to(logits.dtype).exp()
    rest = rest.to(logits.dtype)
    kept = kept * ((1 - rest) / kept.sum(-1))[:, None]  # stored in half precision: normalized again
    ours = logits.gather(1, tokens) - logits.logsumexp(-1, keepdim=True)  # n k
    # What the student leaves for all others; never zero, since its logarithm would be infinite.
    left = (-torch.expm1(ours.logsumexp(-1))).clamp_min(torch.finfo(logits.dtype).eps)
    return (torch.xlogy(kept, kept) - kept * ours).sum(-1) + torch.xlogy(rest, rest) - rest * left.log()


@dataclass(frozen=True)
class NextToken(Objective):
    """Each token predicts the next (GPT); with `soft`, as a teacher does, where a batch has its outputs.

    Only the outputs of places `t_min` to `t_max` of each row count, from 0 and both included; None: to its end.
    """

    heads: ClassVar[Mapping[str, int | None]] = {"words": None}
    soft: SoftTargets | None = field(default=None, kw_only=True)
    t_min: int = field(default=0, kw_only=True)
    t_max: int | None = field(default=None, kw_only=True)

    @property
    def terms(self) -> tuple[str, ...]:
        return ("words", "teacher") if self.soft else ("words",)

    def labels(self, batch: Batch) -> Tensor:
        """N: the next tokens; nothing at the places whose outputs do not count."""
        words = batch.targets["words"]
        if not self.t_min and self.t_max is None:
            return words
        places = batch.rows.places(len(words))
        last = batch.rows.longest if self.t_max is None else self.t_max
        return words.masked_fill((places < self.t_min) | (places > last), NOTHING)

    def counts(self, batch: Batch) -> dict[str, int]:
        words = {"words": int((self.labels(batch) != NOTHING).sum())}
        return {**words, "teacher": len(batch.targets[TOKENS])} if self.soft and TOKENS in batch.targets else words

    def for_evaluation(self, network: Any, source: Any) -> NextToken:
        """Over all places: held-out losses are compared with those of other models."""
        return replace(self, t_min=0, t_max=None)

    def sums(self, network: Any, batch: Batch) -> dict[str, Tensor]:
        hidden = network(batch.tokens, batch.rows, batch.segments)
        if self.soft is None or TOKENS not in batch.targets:  # held-out text has no teacher outputs
            return {"words": network.word_loss(hidden, self.labels(batch))}
        logits = network.words(hidden)
        loss = cross_entropy(logits, self.labels(batch))
        kept = (batch.targets[name] for name in (TOKENS, LOGPROBS, REST))  # stored at the same temperature
        soft = kept_divergence(in_full(logits) / self.soft.temperature, *kept)
        soft_sum = (self.soft.temperature**2 * soft).sum()
        return {"words": self.soft.hard * loss, "teacher": (1 - self.soft.hard) * soft_sum}


@dataclass(frozen=True)
class MaskedWords(Objective):
    """The words behind the masks (BERT); with `pairs`, also whether the second text of a pair follows the first."""

    pairs: bool = False

    @property
    def terms(self) -> tuple[str, ...]:
        return ("words", "pairs") if self.pairs else ("words",)

    @property
    def heads(self) -> Mapping[str, int | None]:
        return {"words": None, "next": 2} if self.pairs else {"words": None}

    def counts(self, batch: Batch) -> dict[str, int]:
        words = {"words": int((batch.targets["words"] != NOTHING).sum())}
        return {**words, "pairs": len(batch.targets["follows"])} if self.pairs else words

    def sums(self, network: Any, batch: Batch) -> dict[str, Tensor]:
        positions = {} if batch.positions is None else {"positions": batch.positions}  # of pairs of translations
        hidden = network(batch.tokens, batch.rows, batch.segments, **positions)
        # The table of all words is by far the largest matrix: it is read only at masks.
        sums = {"words": network.word_loss(hidden[batch.targets["places"]], batch.targets["words"])}
        if self.pairs:
            sums["pairs"] = cross_entropy(network.logits("next", hidden, batch.rows), batch.targets["follows"])
        return sums


@dataclass(frozen=True)
class BothWays(Objective):
    """The next word by the forward half of the last layer, the one before by the backward half (ELMo)."""

    kinds = ("words",)
    heads: ClassVar[Mapping[str, int | None]] = {"words": None}

    def counts(self, batch: Batch) -> dict[str, int]:
        return {"words": int(sum((batch.targets[name] != NOTHING).sum() for name in ("words", "before")))}

    def sums(self, network: Any, batch: Batch) -> dict[str, Tensor]:
        states: list[Tensor] = []
        network(batch.tokens, batch.rows, states=states)
        halves = states[-1][batch.targets["places"]].chunk(2, -1)
        losses = [
            network.word_loss(half, batch.targets[name]) for half, name in zip(halves, ("words", "before"), strict=True)
        ]
        return {"words": losses[0] + losses[1]}


class StreamStates:
    """The state of every stream, in tensors whose addresses CUDA graphs keep.

    The passes of a step read `before` and write `after`, which `settle` copies back: a step that is done again, in
    smaller passes, begins where it began before.
    """

    def __init__(self, streams: int) -> None:
        self.streams = streams
        self.shape: list[int] = []  # parts of each layer
        self.before: list[Tensor] = []
        self.after: list[Tensor] = []

    def lay_out(self, network: Any) -> StreamStates:
        """Room on the network's device; nothing has been read yet."""
        state = network.beginning(self.streams)
        self.shape = [len(parts) for parts in state]
        self.before, self.after = ([part.clone() for parts in state for part in parts] for _ in range(2))
        return self

    @staticmethod
    def running(network: Any, streams: int) -> StreamStates:
        """States of which each pass goes on from the one before, for held-out text."""
        states = StreamStates(streams).lay_out(network)
        states.after = states.before
        return states

    def named(self, network: Any) -> dict[str, Tensor]:
        """What the next step begins with, laid out anew."""
        return {f"{number}": part for number, part in enumerate(self.lay_out(network).before)}

    def take(self, streams: Tensor) -> Carried:
        """The states that the rows of these streams begin with."""
        parts = iter([part.index_select(0, streams) for part in self.before])
        return Carried(tuple(tuple(next(parts) for _ in range(count)) for count in self.shape))

    def put(self, streams: Tensor, carried: Carried) -> None:
        """The states that they end with, for the next step."""
        assert carried.state is not None
        for part, new in zip(self.after, (part for parts in carried.state for part in parts), strict=True):
            part.index_copy_(0, streams, new.detach().to(part.dtype))

    def settle(self) -> None:
        """The step is done: the next begins where it ended."""
        torch._foreach_copy_(self.before, self.after)


@dataclass(frozen=True)
class CarriedToken(NextToken):
    """Predict the next token; each row goes on where the one before it in its stream has ended."""

    states: StreamStates

    def sums(self, network: Any, batch: Batch) -> dict[str, Tensor]:
        streams = batch.targets["streams"]
        carried = self.states.take(streams)
        hidden = network(batch.tokens, batch.rows, batch.segments, carried=carried)
        self.states.put(streams, carried)
        return {"words": network.word_loss(hidden, self.labels(batch))}

    def carried(self, network: Any) -> dict[str, Tensor]:
        """What the next step begins with; it writes `after` of every stream anew."""
        return self.states.named(network)

    def settle(self) -> None:
        self.states.settle()

    def for_evaluation(self, network: Any, source: Any) -> CarriedToken:
        """Each pass goes on from the one before."""
        return CarriedToken(StreamStates.running(network, source.streams))


@dataclass(frozen=True)
class PermutedWords(Objective):
    """Some tokens of each row, each from those before it in an order drawn by chance (XLNet).

    With `states`, each row also sees the rows before it in its stream.
    """

    kinds = ("words",)
    heads: ClassVar[Mapping[str, int | None]] = {"words": None}
    states: StreamStates | None = None

    def counts(self, batch: Batch) -> dict[str, int]:
        return {"words": len(batch.targets["words"])}

    def sums(self, network: Any, batch: Batch) -> dict[str, Tensor]:
        read = {"asked": batch.asked, "ranks": batch.targets["ranks"]}
        if self.states is None:
            hidden = network(batch.tokens, batch.rows, batch.segments, **read)
        else:
            streams = batch.targets["streams"]
            carried = self.states.take(streams)
            hidden = network(batch.tokens, batch.rows, batch.segments, **read, carried=carried)
            self.states.put(streams, carried)
        return {"words": network.word_loss(hidden, batch.targets["words"])}

    def carried(self, network: Any) -> dict[str, Tensor]:
        return {} if self.states is None else self.states.named(network)

    def settle(self) -> None:
        if self.states is not None:
            self.states.settle()

    def for_evaluation(self, network: Any, source: Any) -> PermutedWords:
        """Each pass goes on from the one before."""
        return self if self.states is None else PermutedWords(StreamStates.running(network, source.streams))


@dataclass(frozen=True)
class Writing(Objective):
    """The next token of what is written; a share of `smoothing` is asked of all tokens alike (Szegedy et al., 2016)."""

    kinds = ("words",)
    heads: ClassVar[Mapping[str, int | None]] = {"words": None}
    smoothing: float = 0.0

    def counts(self, batch: Batch) -> dict[str, int]:
        return {"words": int((batch.targets["words"] != NOTHING).sum())}

    def sums(self, network: Any, batch: Batch) -> dict[str, Tensor]:
        # How often a network is fed its own words grows with the steps, so it comes with the batch.
        own = {"own": batch.targets["own"]} if "own" in batch.targets else {}
        hidden = network(batch.tokens, batch.rows, source=batch.source, **own)
        smoothing = self.smoothing if network.training else 0.0  # held-out losses are plain, to be compared by
        return {"words": network.word_loss(hidden, batch.targets["words"], smoothing)}


LOGITS, TAUGHT = "teacher_logits", "taught"  # targets: outputs of a teacher, and 1 where it has one


def by_row(logits: Tensor, rows: Rows) -> Tensor:
    """N 2 -> N 2: the logarithm of each token's probability among those of its row."""
    numbers = rows.numbers(logits.shape[0])[:, None].expand_as(logits)
    highest = logits.new_full((rows.count, 2), -1e30).scatter_reduce(0, numbers, logits.detach(), "amax")
    shifted = logits - highest.gather(0, numbers)
    total = logits.new_zeros(rows.count, 2).scatter_add(0, numbers, shifted.exp())
    return shifted - total.clamp_min(1e-30).log().gather(0, numbers)


@dataclass(frozen=True)
class Texts(Objective):
    """One label, several labels, or a number for each text or pair; with `words`, each token also predicts the next."""

    kind: Literal["label", "labels", "value"]
    outputs: int
    words: float = 0.0  # weight of the next tokens (Radford et al., 2018: 0.5)
    soft: SoftTargets | None = None

    @property
    def terms(self) -> tuple[str, ...]:
        return self.soft.terms if self.soft else ("task", "words") if self.words else ("task",)

    @property
    def heads(self) -> Mapping[str, int | None]:
        return {"words": None, "classify": self.outputs} if self.words else {"classify": self.outputs}

    def counts(self, batch: Batch) -> dict[str, int]:
        important = batch.targets["importance"] > 0
        if self.soft:
            return self.soft.counts(important, important)
        target = batch.targets["target"]
        labeled = (target[:, 0] if target.dim() == 2 else target) != NOTHING
        counts = {"task": int((important if self.kind == "value" else labeled).sum())}
        return {**counts, "words": int((batch.targets["words"] != NOTHING).sum())} if self.words else counts

    def sums(self, network: Any, batch: Batch) -> dict[str, Tensor]:
        hidden = network(batch.tokens, batch.rows, batch.segments)
        importance = batch.targets["importance"]
        # E C, of each example: the mean over its windows, each by the tokens that are its own.
        logits = in_full(network.logits("classify", hidden, batch.rows)) * batch.targets["shares"][:, None]  # R C
        logits = logits.new_zeros(len(importance), logits.shape[1]).index_add(0, batch.targets["owners"], logits)
        if self.soft:
            teacher = batch.targets[LOGITS]
            if self.kind == "value":
                soft = (logits - teacher).square().mean(-1)
            else:
                soft = (self.soft.one_of if self.kind == "label" else self.soft.each_of)(logits, teacher)
            right = self._loss(logits, batch.targets["target"]) if self.soft.hard else None
            return self.soft.sums(soft, right, importance, batch.targets.get("labeled", importance))
        sums = {"task": (self._loss(logits, batch.targets["target"]) * importance).sum()}
        if self.words:
            sums["words"] = self.words * network.word_loss(hidden, batch.targets["words"])
        return sums

    def _loss(self, logits: Tensor, target: Tensor) -> Tensor:
        if self.kind == "label":
            return F.cross_entropy(logits, target, reduction="none", ignore_index=NOTHING)
        if self.kind == "labels":
            target = target.clamp_min(0).to(logits.dtype)
            return F.binary_cross_entropy_with_logits(logits, target, reduction="none").mean(1)
        return (logits[:, 0] - target.to(logits.dtype)).square()


IMPOSSIBLE = -1e30  # the logit of an option that is not there


@dataclass(frozen=True)
class Choices(Objective):
    """The right one of the options of an example, by a softmax over them, or with `several` each by itself.

    Where more than one is right, any of them may be chosen: their probabilities are added. K: the most options.
    """

    kinds = ("choice",)
    heads: ClassVar[Mapping[str, int | None]] = {"choose": 1}
    several: bool = False
    soft: SoftTargets | None = None

    def _parts(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Which options are there, E K; what has a label and what a teacher output: E, of `several` E K."""
        there = batch.targets["right"] != NOTHING
        labeled = batch.targets["labeled"]
        taught = batch.targets.get(TAUGHT, torch.zeros_like(labeled))
        if self.several:
            labeled, taught = (each[:, None] * there.to(each.dtype) for each in (labeled, taught))
        return there, labeled, taught

    def counts(self, batch: Batch) -> dict[str, int]:
        _, labeled, taught = self._parts(batch)
        return self.soft.counts(taught, labeled) if self.soft else {"choice": int((labeled > 0).sum())}

    def sums(self, network: Any, batch: Batch) -> dict[str, Tensor]:
        targets, right = batch.targets, batch.targets["right"]
        hidden = network(batch.tokens, batch.rows, batch.segments)
        windows = in_full(network.logits("choose", hidden, batch.rows))[:, 0] * targets["option_shares"]  # R
        # E K, of each option: the mean over its windows, each by the tokens that are its own.
        places = targets["owners"] * right.shape[1] + targets["options"]
        logits = windows.new_zeros(right.numel()).index_add(0, places, windows).view_as(right)
        there, labeled, taught = self._parts(batch)
        if self.several:
            gold = (right == 1).to(logits.dtype)
            loss = F.binary_cross_entropy_with_logits(logits, gold, reduction="none")
        else:
            logits = logits.masked_fill(~there, IMPOSSIBLE)
            loss = -logits.log_softmax(-1).masked_fill(right != 1, IMPOSSIBLE).logsumexp(-1)
        if not self.soft:
            return {"choice": (loss * labeled).sum()}
        teacher = targets[LOGITS].to(logits.dtype)
        if self.several:
            soft = self.soft.each_of(logits[..., None], teacher[..., None])
        else:
            soft = self.soft.one_of(logits, teacher.masked_fill(~there, IMPOSSIBLE))
        return self.soft.sums(soft, loss, taught, labeled)


@dataclass(frozen=True)
class Tags(Objective):
    """A label for each word, predicted at its first token."""

    kinds = ("tags",)
    outputs: int
    soft: SoftTargets | None = None

    @property
    def heads(self) -> Mapping[str, int | None]:
        return {"tag": self.outputs}

    def counts(self, batch: Batch) -> dict[str, int]:
        labeled = batch.targets["tags"] != NOTHING
        return self.soft.counts(batch.targets[TAUGHT], labeled) if self.soft else {"tags": int(labeled.sum())}

    def sums(self, network: Any, batch: Batch) -> dict[str, Tensor]:
        hidden = network(batch.tokens, batch.rows, batch.segments)[batch.targets["places"]]
        logits, tags = network.logits("tag", hidden, batch.rows), batch.targets["tags"]  # P C
        if not self.soft:
            return {"tags": cross_entropy(logits, tags)}
        logits = in_full(logits)
        soft = self.soft.one_of(logits, batch.targets[LOGITS].to(logits.dtype))
        right = F.cross_entropy(logits, tags, reduction="none", ignore_index=NOTHING)
        return self.soft.sums(soft, right, batch.targets[TAUGHT], (tags != NOTHING).to(soft.dtype))


@dataclass(frozen=True)
class Ends(Objective):
    """The first and the last token of an answer in its row; a row without one points at its [CLS]."""

    kinds = ("ends",)
    heads: ClassVar[Mapping[str, int | None]] = {"answer": 2}
    soft: SoftTargets | None = None

    def counts(self, batch: Batch) -> dict[str, int]:
        labeled = batch.targets["ends"][:, 0] != NOTHING
        counts = self.soft.counts(batch.targets[TAUGHT], labeled) if self.soft else {"ends": int(labeled.sum())}
        return {name: 2 * count for name, count in counts.items()}

    def sums(self, network: Any, batch: Batch) -> dict[str, Tensor]:
        rows, ends = batch.rows, batch.targets["ends"]  # R 2
        logits = in_full(network.logits("answer", network(batch.tokens, rows, batch.segments), rows))  # N 2
        right = -by_row(logits, rows).gather(0, rows.firsts()[:, None] + ends.clamp_min(0))
        labeled = ends[:, :1] != NOTHING
        if not self.soft:
            return {"ends": (right * labeled).sum()}
        teacher = batch.targets["teacher_probabilities"].to(logits.dtype)  # N 2, at the same temperature
        apart = torch.special.xlogy(teacher, teacher) - teacher * by_row(logits / self.soft.temperature, rows)
        soft = logits.new_zeros(rows.count, 2).index_add(0, rows.numbers(len(logits)), apart)
        soft = soft * self.soft.temperature**2
        return self.soft.sums(soft, right, batch.targets[TAUGHT][:, None], labeled.to(soft.dtype))


@dataclass(frozen=True)
class TextVectors(Objective):
    """A text as the teacher's vector: its direction, and unless that is all that matters its length too.

    Both errors are normalized: predicting the mean of the teacher's vectors scores 1, a perfect copy 0.
    """

    kinds = ("teacher",)
    heads: ClassVar[Mapping[str, int | None]] = {}
    pooling: Literal["mean", "first", "max"] = "mean"

    def counts(self, batch: Batch) -> dict[str, int]:
        return {"teacher": int((batch.targets["direction_weight"] > 0).sum())}

    def sums(self, network: Any, batch: Batch) -> dict[str, Tensor]:
        hidden = in_full(network(batch.tokens, batch.rows, batch.segments))
        target = batch.targets["teacher_vectors"].to(hidden.dtype)
        vectors = pooled(hidden, batch, len(target), self.pooling)  # E width
        direction = 2 * (1 - F.cosine_similarity(vectors, target))  # the squared distance of unit vectors
        distance = (vectors - target).square().sum(1)
        weighted = direction * batch.targets["direction_weight"] + distance * batch.targets["distance_weight"]
        return {"teacher": weighted.sum()}


def pooled(hidden: Tensor, batch: Batch, examples: int, pooling: str) -> Tensor:
    """N width -> E width: the vector of each text from the tokens of all its windows, as `weft embed` makes it."""
    rows, owners, own = batch.rows, batch.targets["owners"], batch.targets["own"]  # own: N, 1 where a token counts
    if pooling == "first":
        hidden, own = hidden[rows.firsts()], torch.ones_like(owners, dtype=hidden.dtype)
    else:
        owners, own = owners[rows.numbers(len(hidden))], own.to(hidden.dtype)
    if pooling == "max":
        lowest = hidden.new_full((examples, hidden.shape[1]), -torch.inf)
        counted = hidden.masked_fill(own[:, None] == 0, -torch.inf)
        highest = lowest.scatter_reduce(0, owners[:, None].expand_as(counted), counted, "amax")
        return highest.masked_fill(highest == -torch.inf, 0.0)
    total = hidden.new_zeros(examples, hidden.shape[1]).index_add(0, owners, hidden * own[:, None])
    return total / own.new_zeros(examples).index_add(0, owners, own).clamp_min(1)[:, None]

"""What is learned from a teacher's inside: every term as its paper writes it, row by row; and what is saved of it."""

from __future__ import annotations

import copy
import shutil
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import weft
from tests.training.small import stories
from tests.training.test_accumulation import joined
from weft.checkpoint.folder import LoadedModel
from weft.data.masking import Masking, shift
from weft.data.rows import Drawn, Feed, Frame, Framed, PackedRows
from weft.data.shards import TextFiles, tokenized
from weft.distillation.recipe import DistillSection
from weft.distillation.student import common_tokens, layer_pairs, matched, relation_heads
from weft.errors import UserError
from weft.nn.attention import Sighting
from weft.nn.rows import Batch, Rows
from weft.objectives import hidden_states
from weft.objectives.hidden_states import MatchedStates
from weft.objectives.losses import MaskedWords, NextToken, Texts
from weft.runs.recipes import FinetuneTraining
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.tokenizers.training import learn
from weft.training.log import RunLog
from weft.training.loop import Trainer
from weft.training.run import Begun, Checkpoints, State
from weft.training.signals import listening
from weft.training.step import Passes, Setup, total

LENGTHS = [5, 12, 1, 12]
MATCHES: tuple[Any, ...] = ("states", "attention", "relations", "cosine")


@cache
def tokenizer(kind: str = "wordpiece", size: int = 120) -> Tokenizer:
    return learn(stories(40).splitlines(), kind, size)


def opened(
    family: str, layers: int, width: int, heads: int, scale: float = 0.3, seed: int = 0, **more: Any
) -> LoadedModel:
    """A small model in float64 that drops nothing out."""
    settings = {"layers": layers, "width": width, "heads": heads, "inner": 2 * width, "context": 32, **more}
    drops = ["dropout", "attention_dropout", "head_dropout", *(["embedding_dropout"] if family == "gpt2" else [])]
    settings |= dict.fromkeys(drops, 0.0) | {"weight_scale": scale}
    kind = "bpe" if family == "gpt2" else "wordpiece"
    words = tokenizer(kind, 300 if kind == "bpe" else 120)
    found = weft.new(family, words, settings=settings, heads={"words": None, "classify": 3}, seed=seed).opened
    found.network.double().train()
    with torch.no_grad():  # biases and norms too, so that none can be forgotten
        for parameter in found.network.parameters():
            parameter += scale * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed + 9))
    return found


def batch_of(vocabulary: int, next_words: bool = False, lengths: list[int] = LENGTHS, seed: int = 0) -> Batch:
    generator = np.random.default_rng(seed)
    count = sum(lengths)
    identity = np.arange(count, dtype=np.uint64) + np.uint64(seed << 32)
    starts, given = np.r_[0, np.cumsum(lengths)], np.zeros(count, dtype=bool)
    drawn = Drawn(generator.integers(5, vocabulary, count), starts, identity, given)
    return shift(drawn) if next_words else Masking(4, np.arange(5, vocabulary), None, 0.15, 0).apply(drawn)


# ------------------------------------------------------------------------------------- the formulas, written out


@dataclass
class Shown:
    """What a network shows of one row."""

    states: list[Tensor]
    sightings: list[Sighting]
    hidden: Tensor


def shown(network: Any, tokens: Tensor, teacher: bool) -> Shown:
    found = Shown([], [], torch.empty(0))
    for layer in network.layers:
        layer.attention.watcher = found.sightings.append
    with torch.set_grad_enabled(not teacher):
        found.hidden = network(tokens, Rows.of([len(tokens)]), states=found.states)
    for layer in network.layers:
        layer.attention.watcher = None
    return found


def apart(theirs: Tensor, ours: Tensor) -> Tensor:
    """Chances ... s of both, some 0 -> the divergence, summed over all but the heads, in their mean."""
    there = theirs > 0
    ratio = torch.where(there, theirs, 1).log() - torch.where(there, ours, 1).log()
    return (theirs * ratio).sum((-1, -2)).mean()


def alike(x: Tensor, heads: int, causal: bool) -> Tensor:
    """n H D -> heads n n: how alike tokens are."""
    x = torch.stack(x.reshape(len(x), -1).chunk(heads, -1))  # heads n d
    scores = torch.einsum("hid,hjd->hij", x, x) / x.shape[-1] ** 0.5
    if causal:
        scores = torch.where(torch.ones(len(x[0]), len(x[0])).tril() > 0, scores, -torch.inf)
    return scores.softmax(-1)


def naive(objective: MatchedStates, network: Any, batch: Batch, name: str) -> Tensor:
    """A term by its formula, row by row."""
    sums = []
    for row in batch.tokens.split(batch.rows.lengths().tolist()):
        ours, theirs = shown(network, row, False), shown(objective.teacher.network, row, True)
        if name == "cosine":
            led = ours.hidden
            if "cosine" in objective.beside:
                linear: Any = objective.beside["cosine"]
                led = led @ linear.weight.T + linear.bias
            one, other = led, theirs.hidden
            sums.append((1 - (one * other).sum(-1) / (one.norm(dim=-1) * other.norm(dim=-1))).sum())
        elif name == "states":
            for here, there in objective.pairs:
                led = ours.states[here]
                if objective.beside:
                    linear = objective.beside["states" if here else "embeddings"]
                    led = led @ linear.weight.T + linear.bias
                sums.append((led - theirs.states[there]).square().sum() / theirs.states[there].shape[-1])
        elif name == "attention":
            for here, there in objective.pairs:
                if here:
                    one, other = theirs.sightings[there - 1].weights[0], ours.sightings[here - 1].weights[0]
                    same = len(one) == len(other)
                    one, other = (one, other) if same else (one.mean(0, True), other.mean(0, True))
                    sums.append(apart(one, other))
        else:
            for part in ("query", "key", "value"):
                one, other = getattr(theirs.sightings[-1], part), getattr(ours.sightings[-1], part)
                heads = objective.relation_heads
                sums.append(apart(*(alike(x, heads, objective.causal) for x in (one, other))))
    return torch.stack(sums).sum()


CASES: dict[str, tuple[Any, ...]] = {
    "bert, equal": (("bert", 4, 32, 2), ("bert", 2, 32, 2)),
    "bert, narrower, other heads": (("bert", 4, 48, 3), ("distilbert", 2, 32, 2)),
    "roberta with alibi": (("roberta", 3, 32, 2, {"positions": "alibi"}), ("roberta", 2, 16, 2)),
    "albert": (("albert", 4, 32, 2, {"embedding_width": 16}), ("bert", 3, 16, 2)),
    "gpt2": (("gpt2", 4, 32, 2), ("gpt2", 2, 16, 2)),
}


def both(case: str, scale: float) -> tuple[LoadedModel, LoadedModel]:
    found = []
    for seed, (family, layers, width, heads, *more) in enumerate(CASES[case]):
        found.append(opened(family, layers, width, heads, scale, seed, **(more[0] if more else {})))
    return found[0], found[1]


@pytest.mark.parametrize(
    "case, scale", [*((case, 0.3) for case in CASES), ("bert, narrower, other heads", 0.02), ("gpt2", 0.02)]
)
def test_every_term_is_its_formula(case: str, scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values and gradients, on rows of any length, in one piece and in many."""
    teacher, student = both(case, scale)
    speaks = student.family.generates
    lessons = DistillSection(match=MATCHES, weight=0.7)
    objective: Any = matched(NextToken() if speaks else MaskedWords(), teacher, student, lessons)
    batch = batch_of(student.config.vocabulary, speaks)
    weights = [*student.network.parameters(), *objective.beside.parameters()]
    right = {name: 0.7 * naive(objective, student.network, batch, name) for name in MATCHES}
    slopes = {name: torch.autograd.grad(right[name], weights, materialize_grads=True) for name in MATCHES}
    for cells in (1 << 23, 200):  # a few rows at once, or a few queries of one
        monkeypatch.setattr(hidden_states, "CELLS", cells)
        found = objective.sums(student.network, batch)
        assert tuple(found) == objective.terms and len(objective.counts(batch)) == len(found)
        for name in MATCHES:
            assert right[name] > 1e-6 and (found[name] - right[name]).abs() < 1e-9 * right[name], name
            ours = torch.autograd.grad(found[name], weights, materialize_grads=True, retain_graph=True)
            largest = max(slope.abs().max() for slope in slopes[name])
            for one, other in zip(ours, slopes[name], strict=True):
                assert (one - other).abs().max() <= 1e-9 * largest, name
    assert not any(p.grad is not None for p in teacher.network.parameters())


@pytest.mark.parametrize("speaks", [False, True])
def test_soft_words(speaks: bool) -> None:
    """The divergence at the places where a word is asked for, and the right words beside it."""
    family = "gpt2" if speaks else "bert"
    teacher, student = opened(family, 2, 32, 2), opened(family, 1, 16, 2, seed=1)
    base: Any = NextToken() if speaks else MaskedWords()
    objective = matched(
        base, teacher, student, DistillSection(match=("cosine",), pretrain=True, temperature=3.0, hard=0.25)
    )
    batch = batch_of(student.config.vocabulary, speaks)
    if not speaks:  # places that only fill a batch up
        more = {"places": torch.zeros(4, dtype=torch.int64), "words": torch.full((4,), -100)}
        batch = replace(batch, targets={n: torch.cat([batch.targets[n], more[n]]) for n in more})
    found = objective.sums(student.network, batch)
    places = batch.targets.get("places", torch.arange(len(batch.tokens)))
    network: Any = student.network
    their: Any = teacher.network
    ours = network.words(network(batch.tokens, batch.rows)[places])
    theirs = their.words(their(batch.tokens, batch.rows)[places]).detach()
    kept = batch.targets["words"] != -100
    one, other = (theirs[kept] / 3).softmax(-1), (ours[kept] / 3).softmax(-1)
    soft = (one * (one / other).log()).sum() * 9 * 0.75
    assert abs(found["soft"] - soft) < 1e-9 * soft
    hard = -0.25 * ours[kept].log_softmax(-1).gather(1, batch.targets["words"][kept][:, None]).sum()
    assert abs(found["words"] - hard) < 1e-9 * hard
    counts = objective.counts(batch)
    assert counts["words"] == counts["soft"] == int(kept.sum()) and counts["cosine"] == len(batch.tokens)
    student.network.eval()
    alone = objective.sums(student.network, batch)
    assert set(alone) == {"words"} and abs(4 * hard - alone["words"]) < 1e-9 * hard, "held-out losses are plain"


def test_a_student_that_is_the_teacher_has_nothing_to_learn() -> None:
    teacher = opened("bert", 3, 32, 2)
    student = replace(teacher, network=copy.deepcopy(teacher.network).train())
    objective = matched(
        MaskedWords(), teacher, student, DistillSection(match=MATCHES, pretrain=True, temperature=2.0, hard=0.5)
    )
    found = objective.sums(student.network, batch_of(student.config.vocabulary))
    assert not list(objective.beside.parameters())
    for name in (*MATCHES, "soft"):
        assert abs(float(found[name].detach())) < 1e-9, name
    gradient = torch.autograd.grad(found["attention"] + found["relations"], list(student.network.parameters())[:1])
    assert gradient[0].abs().max() < 1e-9


def test_accumulated_is_whole() -> None:
    teacher, student = both("bert, narrower, other heads", 0.3)
    small = [batch_of(student.config.vocabulary, lengths=LENGTHS, seed=seed) for seed in range(4)]
    found = []
    for batches in ([joined(small)], [joined(small[:2]), joined(small[2:])], small):
        ours = replace(student, network=copy.deepcopy(student.network))
        objective = matched(
            MaskedWords(), teacher, ours, DistillSection(match=MATCHES, pretrain=True, temperature=2.0, hard=0.5)
        )
        counts = total(map(objective.counts, batches))
        scaler = torch.amp.GradScaler("cpu", enabled=False)
        weights = [*ours.network.parameters(), *objective.beside.parameters()]
        passes = Passes(ours.network, objective.sums, len(counts), torch.device("cpu"), "fp32", scaler, weights=weights)
        passes.losses = passes.losses.double()
        passes.step(batches, torch.tensor(list(counts.values()), dtype=torch.float64), lambda number: number)
        assert all(weight.grad is not None for weight in objective.beside.parameters())
        found.append([passes.losses, *(weight.grad for weight in weights if weight.grad is not None)])
    largest = max(part.abs().max() for part in found[0][1:])
    for other in found[1:]:
        for one, part in zip(found[0], other, strict=True):
            assert (one - part).abs().max() < 1e-9 * largest


@pytest.mark.parametrize("lengths, more", [(LENGTHS, [0, 7]), ([7, 7, 7], [7])])
def test_rows_that_only_fill_a_batch_up_cost_nothing(lengths: list[int], more: list[int]) -> None:
    """As batches of few shapes have them: their share is 0. Rows that are equally long are laid out otherwise."""
    teacher, student = both("bert, narrower, other heads", 0.3)
    objective: Any = matched(Texts("label", 3), teacher, student, DistillSection(match=MATCHES))
    plain = batch_of(student.config.vocabulary, lengths=lengths)
    rows = len(lengths)
    targets = {"owners": torch.arange(rows), "shares": torch.ones(rows), "target": torch.zeros(rows).long()}
    alone = replace(plain, targets={**targets, "importance": torch.ones(rows)})
    filled = replace(
        alone,
        tokens=torch.cat([alone.tokens, torch.zeros(7, dtype=torch.int64)]),
        rows=Rows.of([*lengths, *more]),
        targets={
            "owners": torch.cat([targets["owners"], torch.full((len(more),), rows)]),
            "shares": torch.cat([targets["shares"], torch.zeros(len(more))]),
            "target": torch.cat([targets["target"], torch.tensor([-100])]),
            "importance": torch.cat([torch.ones(rows), torch.zeros(1)]),
        },
    )
    assert objective.counts(alone) == objective.counts(filled)
    one, other = (objective.sums(student.network, batch) for batch in (alone, filled))
    for name in one:
        assert abs(one[name] - other[name]) < 1e-9 * abs(one[name]), name


def test_maps() -> None:
    assert layer_pairs("even", 3, 12) == ((0, 0), (1, 4), (2, 8), (3, 12))
    assert layer_pairs("even", 4, 6) == ((0, 0), (1, 2), (2, 3), (3, 5), (4, 6))
    assert layer_pairs("even", 3, 1) == ((0, 0), (1, 1), (2, 1), (3, 1))
    assert layer_pairs("last", 3, 12) == ((3, 12),)
    assert layer_pairs("0:0,1:2,3:6", 3, 6) == ((0, 0), (1, 2), (3, 6))
    assert (relation_heads(384, 768, 12), relation_heads(256, 768, 12), relation_heads(312, 768, 12)) == (12, 8, 12)
    for text, said in (
        ("1-2", "map must be even, last, or pairs of layers such as 1:2,2:4, not '1-2'"),
        ("4:6", "map 4:6: the student has 3 layers and the teacher 6"),
        ("1:0", "embeddings (0) answer to embeddings"),
        ("0:0", "name a layer, too"),
    ):
        with pytest.raises(UserError, match="map") as error:
            layer_pairs(text, 3, 6)
        assert said in str(error.value)


def test_what_cannot_be_compared_is_said_in_one_line(tmp_path: Path) -> None:
    teacher, student = opened("bert", 2, 32, 2), opened("bert", 1, 16, 2)
    lessons = DistillSection(match=("states",))
    other = replace(student, tokenizer=learn(["quite other words"] * 9, "wordpiece", 60))
    with pytest.raises(UserError, match="vocabularies differ: '.*' is no token of the teacher's"):
        matched(MaskedWords(), teacher, other, lessons)
    assert matched(MaskedWords(), teacher, other, DistillSection()) == MaskedWords(), "nothing is asked for"
    lstm = weft.new("lstm", tokenizer(), size="1x64").opened
    with pytest.raises(UserError, match="the student is of family lstm, which has no layers to compare"):
        matched(MaskedWords(), teacher, lstm, lessons)
    looks_back = replace(opened("gpt2", 1, 32, 2, vocabulary=300), tokenizer=tokenizer())
    with pytest.raises(UserError, match="the student is causal and the teacher bidirectional"):
        matched(NextToken(), teacher, looks_back, DistillSection(match=("relations",)))


def test_a_student_of_fewer_tokens_is_read_in_the_teachers() -> None:
    """Ids differ, tokens do not: the teacher reads its own ids, and its words are those that the student knows."""
    teacher = opened("bert", 2, 32, 2)
    words = teacher.tokenizer
    assert words is not None and common_tokens(teacher, teacher) is None
    kept = [number for number in range(words.vocabulary) if number < 5 or number % 3]
    student = replace(opened("bert", 2, 32, 2), tokenizer=_only(words, kept))
    tokens = common_tokens(teacher, student)
    assert tokens is not None and tokens[: len(kept)].tolist() == kept
    objective = matched(
        MaskedWords(), teacher, student, DistillSection(match=("cosine",), pretrain=True, temperature=2.0, hard=0.5)
    )
    batch = batch_of(len(kept))
    seen = objective.teacher.read(batch, False, ())
    network: Any = teacher.network
    right = network(torch.tensor(kept)[batch.tokens], batch.rows)
    assert seen.hidden.equal(right)
    assert objective.teacher.words(right)[:, : len(kept)].equal(network.words(right)[:, kept])


def _only(words: Tokenizer, kept: list[int]) -> Tokenizer:
    """A vocabulary of some of the tokens, as far as these tests read it."""

    class Fewer(Tokenizer):
        @property
        def tokens(self) -> dict[str, int]:
            return {str(words.token(number)): place for place, number in enumerate(kept)}

    return Fewer(words.library, words.roles, words.settings)


# ------------------------------------------------------------------------------------------------------- in a run


def narrow() -> tuple[LoadedModel, MatchedStates]:
    """A student half as wide as its teacher, in float32 and with dropout, that learns by all terms."""
    size = {"layers": 2, "width": 32, "heads": 2, "inner": 64, "context": 32}
    teacher = weft.new("bert", tokenizer(), settings=size, heads={"words": None}).opened
    student = weft.new("bert", tokenizer(), settings={**size, "width": 16}, heads={"words": None}, seed=1).opened
    return student, matched(
        MaskedWords(), teacher, student, DistillSection(match=MATCHES, pretrain=True, temperature=2.0, hard=0.5)
    )


def run(folder: Path, steps: int) -> tuple[State, dict[str, Any], Setup]:
    """Such a run, from its last checkpoint on where there is one."""
    words = tokenizer()
    student, objective = narrow()
    text = folder.parent / "text.txt"
    text.write_text(stories(20))
    corpus = tokenized(TextFiles((str(text),), "text", None, "line", "stop"), words, False, lambda n: None)
    source = PackedRows(Framed(corpus, Frame((2,), (3,))), 24, 0, True, 0)
    masking = Masking.of(words, 0.15, False, 0)
    plan = FinetuneTraining(
        batch=8, learning_rate=3e-3, log_every=1, ema=0.9, keep=3, warmup=0.0, steps=steps, save_every=4
    )
    checkpoints = Checkpoints(folder / "checkpoints", 3)
    feed = Feed(source, masking.apply, 0, 8)
    setup = Setup(
        network=student.network,
        objective=objective,
        feed=feed,
        plan=plan,
        decode=words.decode,
    )
    found = checkpoints.load()
    state, stored = (State(pass_tokens=100), None) if found is None else found[:2]
    log = RunLog(folder / "metrics.jsonl", state.metrics, None, state.step, lambda line: None)
    with listening() as stop:
        Trainer(setup, Begun(checkpoints, state, stored), log, stop, lambda scores: None).train()
    log.close()
    tensors = checkpoints.load()
    assert tensors is not None
    return state, tensors[1], setup


def test_what_leads_to_the_teachers_width_is_learned_kept_and_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "whole").mkdir()
    _, whole, setup = run(tmp_path / "whole", 8)
    assert set(whole["beside"]) == {f"{n}.{w}" for n in ("embeddings", "states", "cosine") for w in ("weight", "bias")}
    assert not any("beside" in name for name in whole["model"])
    assert not any("beside" in name for name in setup.network.state_dict())
    fresh = narrow()[1].beside.state_dict()
    for name, tensor in whole["beside"].items():
        assert (tensor - fresh[name]).abs().max() > 1e-3, name
        assert whole["optimizer"][f"beside.{name}:exp_avg"].abs().max() > 0
    # Gone on with from a checkpoint in its middle, it ends the same.
    shutil.copytree(tmp_path / "whole", tmp_path / "parts")
    shutil.rmtree(tmp_path / "parts" / "checkpoints" / "step-8")
    state, parts, _ = run(tmp_path / "parts", 8)
    assert state.step == 8
    for name in whole:
        assert set(whole[name]) == set(parts[name])
        assert all(tensor.equal(parts[name][key]) for key, tensor in whole[name].items()), name

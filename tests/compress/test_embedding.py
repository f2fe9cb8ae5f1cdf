"""Vectors, taught: a student's texts lie to each other as the teacher's do, whatever the two widths are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import weft
from tests.compress.lessons import ODD, learned, loss, model, vocabulary, whole
from tests.tasks.small import LINES
from weft.checkpoint.folder import LoadedModel
from weft.errors import UserError
from weft.metrics.numeric import SimilarityMetrics, _correlations
from weft.nn.rows import Ragged
from weft.objectives.losses import TextVectors, pooled
from weft.tasks.base import Example
from weft.tasks.embed import Directions, Embedder, EmbedTask, embed, own_tokens
from weft.tasks.evaluate import evaluate_examples
from weft.tasks.forward import framing_for
from weft.text.windows import pieces

TEXTS = [*dict.fromkeys(LINES)][:16]
LONG = [ODD, " ".join(TEXTS[:9]), "Ada", " ".join(TEXTS[4:8])]


def rows(texts: list[str]) -> list[Example]:
    return [Example((text,), None, f"row {number}") for number, text in enumerate(texts)]


def lesson(teacher: LoadedModel) -> EmbedTask:
    return EmbedTask.from_model(teacher, "embed")


def wide(heads: int = 2) -> LoadedModel:
    made = weft.new("bert", vocabulary("wordpiece"), size=f"1x{64 * heads}", settings={"context": 64}, heads={}, seed=3)
    with torch.no_grad():
        for parameter in made.network.parameters():
            if parameter.dim() > 1:
                parameter.mul_(5)
    return made.opened


@pytest.mark.parametrize("pooling", ["mean", "first", "max"])
def test_the_student_learns_on_the_vectors_that_embed_gives(pooling: Any) -> None:
    """Of all windows of a text, each token once: what is trained is what is asked for later."""
    student = model("bpe", {}, pooling=pooling)
    taught = lesson(student)
    framing = framing_for(student)
    table = taught.dataset(rows(LONG), student, framing, taught.teacher_outputs(student, framing, rows(LONG)))
    assert table.rows_count > len(LONG) == table.count
    wanted = torch.tensor([vector.values for vector in embed(student, LONG)])
    for fixed in (False, True):
        batch = whole(table, fixed)
        with torch.inference_mode():
            hidden = student.network(batch.tokens, batch.rows, batch.segments)
            found = pooled(hidden, batch, len(batch.targets["teacher_vectors"]), pooling)
        assert torch.allclose(found[: len(LONG)], wanted, atol=1e-5) and torch.isfinite(found).all()
        assert float(loss(taught.objective(), student.network.eval(), batch).detach()) == pytest.approx(0, abs=1e-5)
        assert taught.objective().counts(batch) == {"teacher": len(LONG)}


@pytest.mark.parametrize("pooling", ["mean", "first", "max"])
@pytest.mark.parametrize("normalize", [False, True])
def test_the_gradient_is_that_of_the_written_out_loss(pooling: Any, normalize: bool) -> None:
    teacher, student = wide(), model("bpe", {}, scale=3.0)
    taught = EmbedTask(pooling, normalize)
    examples, framing = rows(LONG), framing_for(student)
    said = taught.teacher_outputs(teacher, framing_for(teacher), examples)
    taught = taught.fit_teacher(examples, said)
    assert taught.directions is not None
    batch = whole(taught.dataset(examples, student, framing, said))
    student.network.eval()
    loss(taught.objective(), student.network, batch).backward()
    found = {name: p.grad.clone() for name, p in student.network.named_parameters() if p.grad is not None}
    student.network.zero_grad()
    total = torch.zeros(())
    vectors = np.stack([each["output"] for each in said])
    far = ((vectors - vectors.mean(0)) ** 2).sum(1).mean()
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    near = ((units - units.mean(0)) ** 2).sum(1).mean()
    for number, example in enumerate(examples):
        vector = _by_hand(Embedder(student, pooling=pooling), example.texts[0], pooling)
        wanted = torch.tensor(said[number]["output"] @ taught.directions.basis[:, :64]).float()
        total = total + 2 * (1 - vector @ wanted / vector.norm() / wanted.norm()) / near
        total = total + (0.0 if normalize else (vector - wanted).square().sum() / far)
    (total / len(examples)).backward()
    for name, parameter in student.network.named_parameters():
        if parameter.grad is not None:
            assert torch.allclose(found[name], parameter.grad, atol=1e-5 * float(parameter.grad.abs().max()) + 1e-7), (
                name
            )
    assert len(found) > 10


def _by_hand(embedder: Embedder, text: str, pooling: str) -> torch.Tensor:
    """What `weft embed` works out, window by window, so that gradients can be had of it."""
    ids = embedder.tokenizer.ids([text], specials=False)[0]
    states, firsts = [], []
    for piece in pieces(embedder.framing, ids):
        ragged = Ragged.of([piece.tokens])
        hidden = embedder.model.network(ragged.tokens, ragged.rows)
        states.append(hidden[torch.from_numpy(own_tokens(piece))])
        firsts.append(hidden[0])
    if pooling == "first":
        return torch.stack(firsts).mean(0)
    return torch.cat(states).amax(0) if pooling == "max" else torch.cat(states).mean(0)


def test_turned_vectors_keep_as_much_of_the_products_as_their_width_can() -> None:
    chance = np.random.default_rng(0)
    flat = chance.normal(size=(50, 5)) @ chance.normal(size=(5, 32))  # in truth five directions
    said = [{"output": row.astype(np.float32)} for row in flat]
    found = Directions.of(said)
    for width in (5, 8, 31):
        turned = found.fitted(flat, width)
        assert turned.shape == (50, width) and np.allclose(turned @ turned.T, flat @ flat.T, rtol=1e-3, atol=1e-3)
    assert (
        np.array_equal(found.fitted(flat, 40)[:, :32], flat.astype(np.float32))
        and not found.fitted(flat, 40)[:, 32:].any()
    )
    lost = np.linalg.norm(flat @ flat.T - (few := found.fitted(flat, 3)) @ few.T) ** 2
    best = (np.linalg.eigvalsh(flat @ flat.T)[:-3] ** 2).sum()  # no three numbers could do better
    assert lost == pytest.approx(best, rel=1e-3)
    assert found.shares[:5].sum() == pytest.approx(1)


def test_a_teacher_that_says_nothing_is_named() -> None:
    with pytest.raises(UserError, match="vectors of all texts are zero"):
        Directions.of([{"output": np.zeros(4, dtype=np.float32)}] * 3)


def test_teachers_side_by_side_have_the_mean_of_their_cosines() -> None:
    one, two = wide(), model("bpe", {})
    taught, examples = lesson(one), rows(TEXTS[:6])
    both = [taught.teacher_outputs(each, framing_for(each), examples) for each in (one, two)]
    mean = [taught.average(pair) for pair in zip(*both, strict=True)]

    def cosines(said: Any) -> Any:
        vectors = np.stack([each["output"] for each in said]).astype(np.float64)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors @ vectors.T

    assert np.allclose(cosines(mean), (cosines(both[0]) + cosines(both[1])) / 2, atol=1e-5)
    assert len(mean[0]["output"]) == 128 + 64


@pytest.mark.parametrize(
    ("kind", "normalize"), [pytest.param("wordpiece", False, marks=pytest.mark.slow), ("bpe", True)]
)
def test_a_student_learns_where_texts_lie(kind: str, normalize: bool) -> None:
    """Half as wide, and with other tokens: judged as a run judges it, by texts it has learned by heart."""
    teacher = wide()
    teacher = replace(teacher, card=replace(teacher.card, normalize=normalize))
    taught, examples = lesson(teacher), rows(TEXTS)
    said = taught.teacher_outputs(teacher, framing_for(teacher), examples)
    taught = taught.fit_teacher(examples, said)
    student = model(kind, {}, length=48, scale=3.0)
    framing = framing_for(student)
    judges = [taught.with_teacher_answer(*each) for each in zip(examples, said, strict=True)]
    before = evaluate_examples(taught, student, framing, judges, tune=True).scores
    table = taught.dataset(examples, student, framing, said)
    assert "fits into the student's 64" in table.notes[0]
    losses = learned(student, taught.objective(), table, steps=80, learning_rate=5e-3)
    after = evaluate_examples(taught, student, framing, judges, tune=True).scores
    assert losses[-1] < 0.1 * losses[0]
    assert after["spearman"].value > max(0.9, before["spearman"].value + 0.1) and after["pearson"].value > 0.9
    assert after["spearman"].low <= after["spearman"].value <= after["spearman"].high
    card = taught.to_card(student.card)
    assert (card.pooling, card.normalize) == ("mean", normalize)


@pytest.mark.parametrize(("family", "width"), [("lstm", 128), ("cnn", 300), ("vectors", 64)])
def test_students_without_attention(family: str, width: int) -> None:
    """A network that reads both ways has vectors twice as wide as its layers, and one that convolves its own number."""
    settings = {"lstm": {"layers": 1, "bidirectional": True}}.get(family, {})
    student = weft.new(family, vocabulary("word"), settings={"width": 64, **settings}, heads={}).opened
    taught, framing = EmbedTask(), framing_for(student)
    said = taught.teacher_outputs(student, framing, rows(LONG))
    assert said[0]["output"].shape == (width,)
    batch = whole(taught.dataset(rows(LONG), student, framing, said))
    assert float(loss(taught.objective(), student.network.eval(), batch).detach()) == pytest.approx(0, abs=1e-5)


def test_a_student_that_only_looks_back_has_no_first_token() -> None:
    student = weft.new("gpt2", vocabulary("bpe"), size="1x64", settings={"context": 48}).opened
    taught = EmbedTask("first")
    said = [{"output": np.ones(4, dtype=np.float32)}]
    with pytest.raises(UserError, match="use mean pooling"):
        taught.dataset(rows(["a b"]), student, framing_for(student), said)


# ------------------------------------------------------------------------------------------------- how it is judged


def test_likeness_is_that_of_all_pairs() -> None:
    chance = np.random.default_rng(1)
    gold = chance.normal(size=(40, 8))
    ours = gold @ chance.normal(size=(8, 5)) + chance.normal(size=(40, 5))
    metric = SimilarityMetrics()
    for one, other in zip(ours, gold, strict=True):
        metric.add(one, other)
    found = metric.result()
    pairs = [(i, j) for i in range(40) for j in range(i)]

    def cosine(x: Any, y: Any) -> float:
        return float(x @ y / np.linalg.norm(x) / np.linalg.norm(y))

    a, b = (np.array([cosine(side[i], side[j]) for i, j in pairs]) for side in (ours, gold))
    ranks = [each.argsort().argsort() for each in (a, b)]
    assert found["pearson"].value == pytest.approx(np.corrcoef(a, b)[0, 1])
    assert found["spearman"].value == pytest.approx(np.corrcoef(*ranks)[0, 1])
    same = 0
    for i in range(40):
        near = [
            sorted((j for j in range(40) if j != i), key=lambda j, s=s, i=i: -cosine(s[i], s[j]))[:4]
            for s in (ours, gold)
        ]
        same += len({*near[0]} & {*near[1]})
    assert found["neighbors"].value == pytest.approx(same / 160)
    for score in found.values():
        assert score.low < score.value < score.high and score.high - score.low < 0.5


def test_a_resampled_text_counts_in_all_its_pairs() -> None:
    chance = np.random.default_rng(3)
    one, other = (each + each.T for each in chance.normal(size=(2, 6, 6)))
    often = np.array([0, 1, 3, 1, 2, 0])
    drawn = [(i, j) for i in np.repeat(np.arange(6), often) for j in np.repeat(np.arange(6), often) if i != j]
    wanted = np.corrcoef([one[pair] for pair in drawn], [other[pair] for pair in drawn])[0, 1]
    assert _correlations(one, other, np.array([np.ones(6), often]))[1] == pytest.approx(wanted)


def test_likeness_of_the_same_and_of_nothing() -> None:
    chance = np.random.default_rng(2)
    same, none, many = SimilarityMetrics(), SimilarityMetrics(), SimilarityMetrics(max_texts=20)
    for number, vector in enumerate(chance.normal(size=(30, 6))):
        same.add(3 * vector, vector)
        none.add(np.ones(4), vector)
        many.add(vector if number < 20 else -vector, vector)
    assert all(score.value == pytest.approx(1) for score in same.result().values())
    assert none.result()["pearson"].value == none.result()["spearman"].value == 0
    assert many.result()["pearson"].value == pytest.approx(1)  # those after the first 20 are not compared
    with pytest.raises(UserError, match="at least 3 texts"):
        SimilarityMetrics().result()


def test_vectors_that_are_not_taught_do_not_count() -> None:
    student = model("wordpiece", {})
    taught = EmbedTask()
    said = [{"output": np.eye(4, dtype=np.float32)[0] * (number != 1)} for number in range(3)]
    batch = whole(taught.dataset(rows(TEXTS[:3]), student, framing_for(student), said))
    assert TextVectors().counts(batch) == {"teacher": 2}
    assert (batch.targets["direction_weight"] > 0).tolist() == [True, False, True]

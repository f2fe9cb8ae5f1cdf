"""Permutation language models: which tokens are asked for and what each sees, memory, and whole runs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import weft
from tests.training.small import batch_of, drawn, network_for, stories
from tests.training.test_carried import carried_contents, quietly
from tests.training.test_resume import same
from weft.data.masking import SPAN, Permutation
from weft.data.rows import Feed, Frame, Framed, Streams, every_example
from weft.data.shards import Corpus
from weft.errors import UserError
from weft.nn.recurrent import Carried
from weft.objectives.losses import PermutedWords, StreamStates
from weft.runs.driver import resume
from weft.runs.pretrain import pretrain
from weft.tasks.perplexity import perplexity
from weft.training.log import read_metrics
from weft.training.loop import evaluate
from weft.training.signals import Stop
from weft.training.step import Setup

PLAN = Permutation(np.array([2, 3]), 3, 0.25, 7)


def framed(size: int, row_after: tuple[int, ...] = (2, 3)) -> Framed:
    tokens = np.random.default_rng(0).integers(5, 50, size).astype(np.uint32)
    return Framed(Corpus([tokens], np.array([0, size]), None, "hash"), Frame(row_after=row_after))


def test_the_share_of_each_row_is_exact_and_in_spans() -> None:
    rows = drawn([40, 3, 1, 200, 64])
    batch = PLAN.apply(rows)
    asked = batch.asked
    assert asked is not None and asked.rows.lengths().tolist() == [10, 1, 1, 50, 16]
    places = asked.tokens.numpy()
    assert (np.diff(places) > 0).all() and (batch.targets["words"].numpy() == rows.tokens[places]).all()
    ranks = batch.targets["ranks"].numpy()
    assert set(np.flatnonzero(ranks >= 0)) == set(places) and len(set(ranks[places])) == len(places)
    # Runs of neighbors, and not single tokens: of 50 places drawn one by one about 37 would be alone.
    inside = places[(places >= 44) & (places < 244)]
    runs = np.split(inside, np.flatnonzero(np.diff(inside) > 1) + 1)
    assert len(runs) < 30 and max(map(len, runs)) >= SPAN - 1
    # Spans of one token are as frequent as published: 1 / (1 + 1/2 + 1/3 + 1/4 + 1/5) of all.
    identity = np.arange(30_000, dtype=np.uint64)
    spans = PLAN._spans(identity, np.array([30_000]))
    counts = np.bincount(np.bincount(spans)[:-1], minlength=SPAN + 1)[1:] / (spans.max())
    assert counts == pytest.approx(np.array([1, 1 / 2, 1 / 3, 1 / 4, 1 / 5]) / (137 / 60), abs=0.02)


def test_each_epoch_has_an_order_of_its_own_and_held_out_text_a_fixed_one() -> None:
    source = Streams(framed(300), 32, True, 2, 0)
    feed = Feed(source, PLAN.apply, 0, 2)
    one, again, later = feed.passes(0, 999)[0], feed.passes(0, 999)[0], feed.passes(source.count, 999)[0]
    assert torch.equal(one.targets["ranks"], again.targets["ranks"])
    assert later.asked is not None and one.asked is not None and not torch.equal(later.asked.tokens, one.asked.tokens)
    held = Streams(framed(300), 32, False, 3, 0)
    twice = [[batch.asked.tokens.tolist() for batch in every_example(held, PLAN.apply, 200)] for _ in range(2)]
    assert twice[0] == twice[1]
    rows = [row for batch in every_example(held, PLAN.apply, 200) for row in batch.rows.lengths().tolist()]
    assert sum(rows) == 300 + 2 * len(rows), "every token once, and a frame around each row"


def test_a_token_sees_those_before_it_in_the_order_and_never_itself() -> None:
    """By changing one token at a time, of all pairs of a place that is asked for and a token."""
    network: Any = network_for("permutation", weight_scale=0.3).double().eval()
    rows = drawn([9, 14])
    batch = PLAN.apply(rows)
    assert batch.asked is not None
    ranks, numbers = batch.targets["ranks"], batch.rows.numbers(23)

    def hidden(tokens: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return network(tokens, batch.rows, batch.segments, asked=batch.asked, ranks=ranks)

    before = hidden(batch.tokens)
    for place in range(23):
        tokens = batch.tokens.clone()
        tokens[place] = 4
        changed = (hidden(tokens) - before).abs().amax(1) > 1e-12
        sees = (ranks[batch.asked.tokens] > ranks[place]) & (numbers[batch.asked.tokens] == numbers[place])
        assert torch.equal(changed, sees), place


def test_a_token_that_sees_nothing_is_alike_in_any_batch() -> None:
    """It is the first of all, alone in its row; how a batch is filled up must not matter."""
    network: Any = network_for("permutation", weight_scale=0.3).double().eval()
    batches = [batch_of("permutation", lengths) for lengths in ([1], [1, 30], [1, 2, 5, 30])]
    with torch.inference_mode():
        states = [network(b.tokens, b.rows, asked=b.asked, ranks=b.targets["ranks"])[0] for b in batches]
    assert all((state - states[0]).abs().max() < 1e-12 for state in states)


def test_memory_is_what_the_row_before_it_left() -> None:
    network: Any = network_for("permutation", weight_scale=0.3, memory=12).double().eval()
    objective = PermutedWords(StreamStates(2).lay_out(network))
    feed = Feed(Streams(framed(200, ()), 10, True, 2, 0), PLAN.apply, 0, 2)
    assert objective.states is not None
    with torch.no_grad():
        batches = [feed.passes(step, 999)[0] for step in range(3)]
        carried = Carried(network.beginning(2))
        for batch in batches:
            read: dict[str, Any] = {"asked": batch.asked, "ranks": batch.targets["ranks"]}
            expected = network(batch.tokens, batch.rows, batch.segments, **read, carried=carried)
            alone = network(batch.tokens, batch.rows, batch.segments, **read)
            loss = objective.sums(network, batch)["words"]
            objective.settle()
            words = torch.nn.functional.cross_entropy
            labels = batch.targets["words"]
            assert abs(loss - words(network.words(expected), labels, reduction="sum")) < 1e-9
        assert (expected - alone).abs().max() > 1e-3, "it makes no difference what was carried"
    first, *_, filled = objective.states.before
    assert filled.tolist() == [12, 12] and first.shape == (2, 12, 32)
    tokens = torch.cat([batch.tokens.view(2, 10) for batch in batches], 1)[:, -12:]
    assert torch.equal(first, network.tokens(tokens)), (
        "the memory of the lowest layer is the vectors of the last tokens"
    )


def test_held_out_text_has_a_memory_of_its_own() -> None:
    network: Any = network_for("permutation", memory=16)
    objective = PermutedWords(StreamStates(4).lay_out(network))
    assert objective.states is not None
    objective.states.before[0].fill_(0.7)
    held, feed = Streams(framed(300), 12, False, 2, 0), Feed(Streams(framed(300), 12, True, 4, 0), PLAN.apply, 0, 4)
    setup = Setup(network=network, objective=objective, feed=feed, held_out=held)
    losses = [evaluate(setup, budget, None, Stop())[0]["words"] for budget in (1 << 20, 30)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5) and (objective.states.before[0] == 0.7).all()


def test_it_learns_one_batch_by_heart() -> None:
    network: Any = network_for("permutation")
    batch = batch_of("permutation", [12, 20, 7])
    optimizer, losses = torch.optim.AdamW(network.parameters(), 5e-3), list[float]()
    for _ in range(60):
        loss = PermutedWords().sums(network, batch)["words"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]
    assert network.unseen.grad.abs().max() > 0 and network.layers[0].attention.segments.grad is None


# ------------------------------------------------------------------------------------------------------- whole runs


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(stories(60))


def settings(out: str, **more: Any) -> dict[str, Any]:
    training = {"batch": 6, "pass_tokens": 100, "ema": 0.9, "log_every": 5, "evaluate_every": 7, "save_every": 4}
    return {
        "out": out,
        "seed": 3,
        "model": {"family": "xlnet", "size": "1x64", "memory": 24},
        "text": {"files": ["text.txt"]},
        "tokenizer": {"size": 300},
        "objective": {"length": 16, **more.pop("objective", {})},
        "training": {"steps": 14, "keep": 20, "threads": 1, **training, **more},
    }


def test_a_run_that_goes_on_is_the_unbroken_run(tmp_path: Path) -> None:
    pretrain(None, settings("whole"), log=quietly)
    recipe = (tmp_path / "whole/run/recipe.toml").read_text()
    assert 'name = "permutation"' in recipe and 'rows = "carried"' in recipe
    whole = carried_contents(tmp_path / "whole")
    assert whole["carried"]["1"].tolist() == [24] * 6 and whole["carried"]["0"].abs().max() > 0
    shutil.copytree("whole", "parts")
    for path in (tmp_path / "parts/run/checkpoints").glob("step-*"):
        if int(path.name[5:]) > 8:
            shutil.rmtree(path)
    resume(tmp_path / "parts", log=quietly)
    parts = carried_contents(tmp_path / "parts")
    for name in whole:
        assert same(whole[name], parts[name]), name


def test_from_text_to_words_and_labels(tmp_path: Path) -> None:
    """The held-out loss falls; the model then generates, suggests, has a perplexity, and learns a task."""
    model = pretrain(None, settings("r", steps=40, evaluate_every=20, ema=None), log=quietly)
    judged = [line["validation_loss"] for line in read_metrics(tmp_path / "r/run/metrics.jsonl")
              if "validation_loss" in line]  # fmt: skip
    assert judged[-1] < judged[0] < 5.7 and model.task == "complete"
    [text] = model(["The weaver"], max_tokens=5)
    assert len(text.tokens) == 5
    assert len(weft.suggest(model, "The weaver sang").words) > 0
    scored = perplexity(model.opened, ["The weaver sang a song."], stream=True)
    assert scored.carried and scored.begin == "</s>" and scored.per_token.value < 300
    rows = [{"text": f"The {word} sang.", "label": word} for word in ("weaver", "miller") for _ in range(12)]
    labels = weft.finetune(rows, task="classify", base="r", out="c", training={"epochs": 1}, log=quietly)
    assert labels(["The miller sang."])[0].label in ("weaver", "miller")
    tokens = model.tokenizer
    assert tokens is not None and tokens.encode("a", "b").segments[-3:] == [1, 1, 2]


def test_other_rows_and_what_does_not_fit() -> None:
    plain = pretrain(None, settings("s", objective={"rows": "stream"}, steps=2, ema=None), log=quietly)
    assert plain.config.memory == 24
    with pytest.raises(UserError, match="objective mlm does not fit xlnet, which learns by permutation"):
        pretrain(None, settings("m", objective={"name": "mlm"}), log=quietly)
    wrong = settings("g")
    wrong["model"] = {"family": "gpt2", "size": "1x64"}
    wrong["objective"]["name"] = "permutation"
    with pytest.raises(UserError, match="objective permutation does not fit gpt2"):
        pretrain(None, wrong, log=quietly)
    with pytest.raises(UserError, match="no room for a text"):
        pretrain(None, settings("l", objective={"length": 2}), log=quietly)

"""Batches of a task: filled up to few shapes they mean what they meant before, and part of them means that part."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.tasks.small import model_for, pairs, prices, questions, sentences, several
from weft.data.examples import Examples, batch_of
from weft.tasks.answer import AnswerTask
from weft.tasks.base import Example, Task
from weft.tasks.classify import MultilabelTask, TextTask, ValueTask
from weft.tasks.forward import framing_for
from weft.tasks.tag import TagTask, joined
from weft.text.tokenizers.tokenizer import Tokenizer

LONG = (1, 9, 2, 1, 14, 1, 5)  # how often a text is said over: some take one window, some many


def made(kind: str) -> tuple[Task, list[Example], str, int, tuple[str, ...] | None]:
    """A task, rows of it of very different lengths, and what its model needs."""
    if kind == "labels":
        labels = ("animal", "plant", "stone")
        rows = [Example((row["text"],), tuple(row["labels"]), "") for row in several(len(LONG))]
        return MultilabelTask("multilabel", labels=labels), _longer(rows), "multilabel", 3, labels
    if kind == "value":
        task = ValueTask("regress", center=4e5, spread=2e5)
        rows = [Example((row["text"],), row["value"], "") for row in prices(len(LONG))]
        return task, _longer(rows), "regress", 1, None
    if kind in ("label", "words"):
        task = TextTask("pair", True, ("greater", "not"), balanced=True, words=0.5 * (kind == "words"))
        rows = [Example((row["sentence1"], row["sentence2"]), row["label"], "") for row in pairs(len(LONG))]
        return task, _longer(rows), "pair", 2, ("greater", "not")
    if kind == "tags":
        labels = ("O", "B-LOC", "B-PER", "I-PER")
        rows = []
        for words, often in zip(sentences(len(LONG)), LONG, strict=True):
            rows.append(joined([word for word, _ in words] * often, [tag for _, tag in words] * often))
        return TagTask(labels), rows, "tag", 4, labels
    rows = []
    for row, often in zip(questions(len(LONG), none=True), LONG, strict=True):
        context = "so it is now . " * often + row["context"]
        target = ((context.find(row["answer"]), row["answer"]),) if row["answer"] else ()
        rows.append(Example((row["question"], context), target, ""))
    return AnswerTask(), rows, "answer", 2, None


def _longer(rows: list[Example]) -> list[Example]:
    return [
        replace(row, texts=(" ".join([row.texts[0]] * often), *row.texts[1:]))
        for row, often in zip(rows, LONG, strict=True)
    ]


def table_and_network(kind: str, wordpiece: Tokenizer, bpe: Tokenizer) -> tuple[Task, Examples, Any]:
    task, rows, name, outputs, labels = made(kind)
    family, tokenizer = ("gpt2", bpe) if kind == "words" else ("bert", wordpiece)
    model = model_for(name, outputs, tokenizer, labels, family)
    network: Any = model.network.double()
    if kind == "words":
        from weft.checkpoint.families import FAMILIES

        torch.manual_seed(0)
        network = FAMILIES["gpt2"].network(model.config, {"words": model.config.vocabulary, "classify": 2})
        network.initialize()
        network = network.double().eval()
    return task, task.dataset(rows, model.opened, framing_for(model.opened)), network


def told(task: Task, network: Any, batch: Any) -> tuple[dict[str, int], dict[str, float], list[Tensor]]:
    """Counts, sums and gradients of a batch."""
    network.zero_grad()
    sums = task.objective().sums(network, batch)
    sum(sums.values()).backward()  # type: ignore[union-attr]
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in network.parameters()]
    return task.objective().counts(batch), {name: value.item() for name, value in sums.items()}, gradients


def near(one: list[Tensor], two: list[Tensor]) -> bool:
    size = max(gradient.abs().max().item() for gradient in one)
    assert size > 1e-3, "a gradient of nothing proves nothing"
    return all((a - b).abs().max().item() <= 1e-9 * max(1.0, size) for a, b in zip(one, two, strict=True))


def drawn(table: Examples, numbers: list[int], epoch: int = 0) -> Any:
    return batch_of(table.draw(np.full(len(numbers), epoch), np.array(numbers)))


KINDS = ["label", "labels", "value", "words", "tags", "ends"]


@pytest.mark.parametrize("kind", KINDS)
def test_filling_up_changes_nothing(kind: str, wordpiece: Tokenizer, bpe: Tokenizer) -> None:
    """More rows and tokens that say nothing: the same counts, sums and gradients, in few shapes."""
    task, table, network = table_and_network(kind, wordpiece, bpe)
    assert kind in ("tags", "ends") or np.diff(table.rows).max() > 3, "some examples have several windows"
    fixed = replace(table, fixed=True)
    everything = list(range(table.count))
    shapes = set()
    for numbers in (everything, everything[:3], [4, 1], [0], everything[::-1]):
        plain, filled = drawn(table, numbers), drawn(fixed, numbers)
        shapes.add((len(filled.tokens), filled.rows.count))
        assert len(filled.tokens) % 64 == 0 and filled.rows.count % 8 == 0
        assert len(filled.tokens) > len(plain.tokens) and filled.rows.longest == table.longest
        counts, sums, gradients = told(task, network, plain)
        more_counts, more_sums, more_gradients = told(task, network, filled)
        assert counts == more_counts and all(count > 0 for count in counts.values())
        for name in sums:
            assert more_sums[name] == pytest.approx(sums[name], rel=1e-9, abs=1e-9), name
        assert near(gradients, more_gradients)
    assert len(shapes) < 5, "the same rows in another order have the same shape"


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_is_the_sum_of_its_examples(kind: str, wordpiece: Tokenizer, bpe: Tokenizer) -> None:
    task, table, network = table_and_network(kind, wordpiece, bpe)
    some = list(range(min(table.count, 6)))
    counts, sums, gradients = told(task, network, drawn(table, some))
    alone = [told(task, network, drawn(table, [number])) for number in some]
    for name in sums:
        assert sum(found[0][name] for found in alone) == counts[name]
        assert sum(found[1][name] for found in alone) == pytest.approx(sums[name], rel=1e-9)
    assert near(gradients, [sum(some) for some in zip(*(found[2] for found in alone), strict=True)])  # type: ignore[misc]


def test_of_a_book_some_windows_are_read_in_each_epoch(wordpiece: Tokenizer, bpe: Tokenizer) -> None:
    """Neighbors, others in each epoch, whose shares add up to 1; short examples are left whole."""
    _, table, _ = table_and_network("labels", wordpiece, bpe)
    counts = np.diff(table.rows)
    assert counts.max() > 4
    some = replace(table, most_rows=2, seed=5)
    seen: set[tuple[int, ...]] = set()
    for epoch in range(12):
        numbers = np.arange(table.count)
        found = some.draw(np.full(table.count, epoch), numbers)
        assert isinstance(found.batch, partial)
        _, rows, owners = found.batch.args
        for number in range(table.count):
            own = rows[owners == number]
            assert len(own) == min(2, counts[number]) and (np.diff(own) == 1).all()
            assert table.rows[number] <= own[0] and own[-1] < table.rows[number + 1]
            if number == int(counts.argmax()):
                seen.add(tuple(own.tolist()))
        batch = batch_of(found)
        added = torch.zeros(table.count).index_add(0, batch.targets["owners"], batch.targets["shares"])
        assert torch.allclose(added, torch.ones(table.count))
        assert len(batch.tokens) <= some.lengths(numbers).sum()
    assert len(seen) > 2

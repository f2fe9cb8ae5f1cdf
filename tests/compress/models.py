"""Small models of every task that is compared, and rows for each; their weights are drawn, not learned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

import weft
from tests.tasks.small import KINDS, kinds, pairs, prices, questions, sentences, several, vocabulary, write_rows
from tests.tasks.written import worded
from weft.checkpoint.card import Window
from weft.tasks.model import Model
from weft.tasks.value_head import last_linear
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.tokenizers.training import learn

TAGS = ("O", "B-LOC", "B-PER", "I-PER")


@dataclass(frozen=True)
class Case:
    """One task: its model, its rows, and the column that says what is right."""

    task: str
    outputs: int
    labels: tuple[str, ...] | None
    rows: Callable[[int], list[dict[str, Any]]]
    right: str | None
    family: str = "bert"
    head: str = "classify"


def tagged(count: int) -> list[dict[str, Any]]:
    return [{"words": [w for w, _ in some], "tags": [t for _, t in some]} for some in sentences(count)]


def translated(count: int) -> list[dict[str, Any]]:
    return [{"source": one, "target": two} for one, two in worded(count)]


def texts(count: int) -> list[dict[str, Any]]:
    return [{"text": row["text"]} for row in kinds(count)]


CASES = (
    Case("classify", 3, tuple(sorted(KINDS)), kinds, "label"),
    Case("multilabel", 3, tuple(KINDS), several, "labels"),
    Case("regress", 1, None, prices, "value"),
    Case("pair", 2, ("greater", "not"), pairs, "label"),
    Case("tag", 4, TAGS, tagged, "tags", head="tag"),
    Case("answer", 2, None, questions, "answer", head="answer"),
    Case("translate", 0, None, translated, "target", family="transformer", head="words"),
    Case("embed", 0, None, texts, None, head=""),
    Case("complete", 0, None, texts, None, family="gpt2", head="words"),
    Case("fill", 0, None, texts, None, head="words"),
)
BY_TASK = {case.task: case for case in CASES}


def tokenizer_for(case: Case) -> Tokenizer:
    if case.family == "transformer":
        return learn([text for pair in worded(40) for text in pair], "word", 100)
    return vocabulary("bpe" if case.family == "gpt2" else "wordpiece")


def drawn(case: Case, tokenizer: Tokenizer, seed: int, width: int = 64) -> Model:
    """A model whose weights are random and large, so that no two texts get the same scores."""
    heads: dict[str, int | None] = {case.head: case.outputs or None} if case.head else {}
    made = weft.new(case.family, tokenizer, size=f"1x{width}", settings={"context": 48}, heads=heads, seed=seed)
    with torch.no_grad():
        for parameter in made.network.parameters():
            if parameter.dim() > 1:
                parameter.mul_(5)
    window = None if case.family in ("transformer", "gpt2") else Window(length=24, stride=10)
    card = replace(made.card, task=case.task, labels=case.labels, window=window)
    model = Model(replace(made.opened, card=card), case.task)
    if case.head == "classify":
        center(model, case.rows(24))
    return model


def center(model: Model, rows: list[dict[str, Any]]) -> None:
    """Let every label have its turn: the mean of its scores over these rows becomes that of the others."""
    said = list[torch.Tensor]()
    hook = output_of(model).register_forward_hook(lambda _, given, scores: said.append(scores))
    for row in rows:
        model((row["sentence1"], row["sentence2"]) if model.task == "pair" else row["text"])
    hook.remove()
    with torch.no_grad():
        output_of(model).bias.sub_(torch.cat(said).mean(0))


def output_of(model: Model) -> torch.nn.Linear:
    """The layer of the head that says the scores."""
    return last_linear(model.network.heads["classify"])  # type: ignore[union-attr, index]


def knowing(case: Case, tokenizer: Tokenizer, rows: list[dict[str, Any]], seed: int = 1) -> Model:
    """A model that knows its rows: its head is solved for their labels, which is quicker than to train it."""
    model, seen = drawn(case, tokenizer, seed), list[torch.Tensor]()
    output = output_of(model)
    hook = output.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    for row in rows:
        model(row["text"])
    hook.remove()
    assert case.labels is not None
    wanted = torch.tensor([[5.0 * (row["label"] == label) for label in case.labels] for row in rows])
    features = torch.cat([torch.cat(seen), torch.ones(len(rows), 1)], dim=1)
    solved = torch.linalg.lstsq(features.double(), wanted.double(), driver="gelsd").solution.float()
    with torch.no_grad():
        output.weight.copy_(solved[:-1].T)
        output.bias.copy_(solved[-1])
    return model


def written(case: Case, folder: Path, count: int = 24, labeled: bool = True) -> Path:
    """The rows of a task in a file."""
    rows = case.rows(count)
    if not labeled:
        rows = [{name: value for name, value in row.items() if name != case.right} for row in rows]
    return write_rows(folder / f"{case.task}-{labeled}.jsonl", rows)

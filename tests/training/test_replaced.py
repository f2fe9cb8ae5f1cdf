"""Replaced-token detection: its losses and gradients by formula, what two networks share, and whole runs."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file
from torch import Tensor

import weft
from tests.training.small import drawn, stories
from tests.training.test_accumulation import joined
from weft.checkpoint.families import FAMILIES
from weft.data.masking import NOTHING, Masking
from weft.models.deberta import Deberta
from weft.nn.rows import Batch
from weft.objectives.replaced import ReplacedTokens, Sharing
from weft.training.log import read_metrics
from weft.training.step import total


def made(sharing: Sharing, **sizes: Any) -> tuple[Deberta, ReplacedTokens]:
    usual = {"vocabulary": 50, "context": 64, "width": 32, "layers": 2, "heads": 2, "inner": 64, "dropout": 0.0}
    torch.manual_seed(0)
    network = Deberta(FAMILIES["deberta"].config(**{**usual, "attention_dropout": 0.0, **sizes}), {"replaced": 1})
    network.initialize()
    objective = ReplacedTokens.of(network.double(), sharing, 50.0, 3)
    if objective.beside.difference is not None:
        with torch.no_grad():
            objective.beside.difference.normal_(0.0, 0.02)
    objective.settle()
    return network, objective


def masked(lengths: list[int], filled: bool = False) -> Batch:
    return Masking(4, np.arange(5, 50), None, 0.3, 0, shown=0.0).apply(drawn(lengths), filled=filled)


def losses(objective: ReplacedTokens, network: Any, batch: Batch) -> dict[str, Tensor]:
    torch.manual_seed(5)
    return objective.sums(network, batch)


def test_every_masked_place_shows_the_mask() -> None:
    batch = masked([40, 20])
    assert (batch.tokens[batch.targets["places"]] == 4).all() and (batch.tokens == 4).sum() == 18


def test_losses_by_formula() -> None:
    network, objective = made("gdes")
    batch = masked([40, 20])
    found = losses(objective, network, batch)
    generator, places, words = objective.beside.network, batch.targets["places"], batch.targets["words"]
    scores = generator.words(generator(batch.tokens, batch.rows)[places])
    torch.manual_seed(5)
    guesses = objective.drawn(scores)
    assert torch.allclose(found["generator"], -scores.log_softmax(-1)[range(len(words)), words].sum())
    tokens, labels = batch.tokens.clone(), torch.zeros(60, dtype=torch.float64)
    for place, guess, word in zip(places.tolist(), guesses.tolist(), words.tolist(), strict=True):
        tokens[place], labels[place] = guess, float(guess != word)
    assert 0 < labels.sum() <= 18 and objective.counts(batch) == {"generator": 18, "discriminator": 60}
    logits = network.logits("replaced", network(tokens, batch.rows), batch.rows)[:, 0]
    bce = -(labels * logits.sigmoid().log() + (1 - labels) * (1 - logits.sigmoid()).log()).sum()
    assert torch.allclose(found["discriminator"], 50 * bce)
    network.eval()
    held_out = objective.for_evaluation(network, None)
    with torch.no_grad():
        first, second = held_out.sums(network, batch), objective.for_evaluation(network, None).sums(network, batch)
    assert all(torch.equal(first[name], second[name]) for name in first), "the same words in every evaluation"
    assert held_out.beside.network.training, "an evaluation leaves it as it was"
    assert 0.1 < float(first["discriminator"] / bce.detach()) < 10, "held-out losses are not weighted"


def test_the_compiler_sees_one_whole_graph() -> None:
    network, objective = made("gdes")
    batch = masked([20, 20], filled=True)
    plain, compiled = losses(objective, network, batch), torch.compile(objective.sums, fullgraph=True, backend="eager")
    torch.manual_seed(5)
    found = compiled(network, batch)
    assert all(torch.allclose(found[name], plain[name]) for name in plain)


def test_an_evaluation_drops_out_nothing() -> None:
    network, objective = made("gdes", dropout=0.5)
    network.eval()
    batch = masked([40, 20])
    first, second = (objective.for_evaluation(network, None).sums(network, batch)["generator"] for _ in range(2))
    assert torch.equal(first, second)


def test_words_are_drawn_by_their_probability() -> None:
    _, objective = made("gdes")
    chances = torch.tensor([0.5, 0.3, 0.15, 0.05])
    words = replace(objective, draws=torch.Generator().manual_seed(1)).drawn(chances.log().expand(20_000, 4))
    assert torch.allclose(words.bincount(minlength=4) / 20_000, chances, atol=0.02)


def test_a_word_that_was_right_is_not_replaced() -> None:
    _, objective = made("gdes")
    batch = masked([40, 20], filled=True)
    words = batch.targets["words"]
    assert (words == NOTHING).any() and len(words) > 18, "some places only fill up"
    tokens, replaced = objective.replace(batch, words.clamp(min=0))
    assert not replaced.any() and torch.equal(tokens, torch.from_numpy(drawn([40, 20]).tokens))
    tokens, replaced = objective.replace(batch, (words + 1) % 50)
    assert replaced.sum() == 18 and (tokens != torch.from_numpy(drawn([40, 20]).tokens)).sum() == 18


@pytest.mark.parametrize("sharing", ["gdes", "es", "none"])
def test_whose_loss_moves_which_table(sharing: Sharing) -> None:
    network, objective = made(sharing)
    generator, batch = objective.beside.network, masked([40, 20])
    losses(objective, network, batch)["discriminator"].backward()
    reached = {name for name, weight in generator.named_parameters() if weight.grad is not None}
    assert reached == ({"tokens.weight"} if sharing == "es" else set()), "only a table that both have is moved by both"
    # The same tokens through a network whose own table is the sum.
    plain = deepcopy(network)
    plain.zero_grad()
    plain.tokens.weight.requires_grad_(True)
    torch.manual_seed(5)
    tokens, labels = objective.replace(batch, objective.drawn(generator.words(generator(batch.tokens, batch.rows)[
        batch.targets["places"]]).detach()))  # fmt: skip
    logits = plain.logits("replaced", plain(tokens, batch.rows), batch.rows)[:, 0]
    (50 * F.binary_cross_entropy_with_logits(logits, labels.double(), reduction="sum")).backward()
    own = {"gdes": objective.beside.difference, "es": generator.tokens.weight, "none": network.tokens.weight}[sharing]
    assert torch.allclose(own.grad, plain.tokens.weight.grad, rtol=1e-9, atol=1e-12) and own.grad.abs().max() > 0
    for name, weight in network.named_parameters():
        if name != "tokens.weight":
            assert torch.allclose(weight.grad, plain.get_parameter(name).grad, rtol=1e-9, atol=1e-12), name
    assert (network.tokens.weight.grad is None) == (sharing != "none")
    generator.zero_grad()
    losses(objective, network, batch)["generator"].backward()
    assert generator.tokens.weight.grad.abs().max() > 0


@pytest.mark.parametrize("sharing", ["gdes", "es", "none"])
def test_accumulated_is_whole(sharing: Sharing, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same words drawn, passes of one row each give the gradients of both rows at once, of both networks."""
    monkeypatch.setattr(ReplacedTokens, "drawn", lambda self, logits: logits.argmax(-1))
    rows = [masked([40]), masked([7])]
    gradients = []
    for batches in ([joined(rows)], rows):
        network, objective = made(sharing)
        counts = total(map(objective.counts, batches))
        for batch in batches:
            sum(loss / counts[name] for name, loss in objective.sums(network, batch).items()).backward()
        both = [*network.named_parameters(), *objective.beside.named_parameters()]
        gradients.append([weight.grad for _, weight in both if weight.grad is not None])
    assert len(gradients[0]) == len(gradients[1]) > 50
    largest = max(gradient.abs().max() for gradient in gradients[0])
    assert all((a - b).abs().max() < 1e-9 * largest for a, b in zip(*gradients, strict=True))


def test_the_saved_table_is_the_sum() -> None:
    network, objective = made("gdes")
    with torch.no_grad():
        objective.beside.network.tokens.weight += 1.0
    objective.settle()
    both = objective.beside.network.tokens.weight + objective.beside.difference
    assert torch.equal(network.tokens.weight, both)
    fresh = ReplacedTokens.of(deepcopy(network), "gdes", 50.0, 0)
    assert fresh.beside.difference.abs().max() == 0, "and it begins at the network's own"
    assert torch.equal(fresh.beside.network.tokens.weight, network.tokens.weight)
    assert fresh.beside.network.config.layers == 1 and fresh.beside.network.config.width == network.config.width


def settings(tmp_path: Path, **objective: Any) -> dict[str, Any]:
    (tmp_path / "text.txt").write_text(stories(60))
    return {
        "model": {"family": "deberta", "size": "2x64"}, "text": {"files": [str(tmp_path / "text.txt")]},
        "tokenizer": {"size": 300}, "objective": {"length": 32, **objective},
        "training": {"steps": 30, "batch": 8, "threads": 1, "evaluate_every": 10, "log_every": 10},
    }  # fmt: skip


def test_a_run_and_what_it_is_good_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    weft.pretrain(None, {**settings(tmp_path), "out": str(tmp_path / "run")}, log=lambda text: None)
    lines = read_metrics(tmp_path / "run/run/metrics.jsonl")
    held_out = [
        (line["validation_generator"], line["validation_discriminator"]) for line in lines if "validation_loss" in line
    ]
    assert held_out[-1][0] < held_out[0][0] and len(held_out) == 3
    assert "pass_tokens = 2048" in (tmp_path / "run/run/recipe.toml").read_text(), "two networks need more memory"
    checkpoint = max((tmp_path / "run/run/checkpoints").glob("step-*"))
    beside, model = (load_file(checkpoint / f"{name}.safetensors") for name in ("beside", "model"))
    assert torch.equal(model["tokens.weight"], beside["network.tokens.weight"] + beside["difference"])
    assert beside["difference"].abs().max() > 0
    config = json.loads((tmp_path / "run/config.json").read_text())
    assert config["model_type"] == "deberta-v2"
    encoder = transformers.AutoModel.from_pretrained(tmp_path / "run")  # others read the encoder
    assert torch.equal(encoder.embeddings.word_embeddings.weight, load_file(tmp_path / "run/model.safetensors")[
        "deberta.embeddings.word_embeddings.weight"])  # fmt: skip
    (tmp_path / "rows.csv").write_text("text,label\n" + "a cat sat,yes\nthe dog ran,no\n" * 10)
    tuned = weft.finetune(
        tmp_path / "rows.csv",
        task="classify",
        base=tmp_path / "run",
        out=tmp_path / "tuned",
        training={"steps": 2, "threads": 1},
        log=lambda text: None,
    )
    assert tuned(["a cat sat"]) and json.loads((tmp_path / "tuned/config.json").read_text())["architectures"] == [
        "DebertaV2ForSequenceClassification"
    ]

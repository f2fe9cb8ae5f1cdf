"""From text to a T5 that fills gaps: the vocabulary, the run, what it leaves behind, and what it can do then."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from tests.training.small import batch_of, stories
from tests.training.test_resume import contents, same
from weft.config import read_toml
from weft.errors import UserError
from weft.nn.attention import slots_of
from weft.nn.rows import Batch, Ragged, Rows
from weft.runs.driver import resume
from weft.runs.pretrain import pretrain
from weft.runs.recipes import Recipe
from weft.training.log import read_metrics
from weft.training.loop import _slots


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(stories(60))
    return tmp_path


def go(out: str, log: Any = lambda line: None, **more: Any) -> weft.Model:
    settings: dict[str, Any] = {
        "out": out,
        "model": {"family": "t5", "size": "1x64"},
        "text": {"files": ["text.txt"]},
        "tokenizer": {"size": 300},
        "objective": {"length": 32},
        "training": {"steps": 6, "batch": 4, "evaluate_every": 3, "save_every": 1, "log_every": 1, "keep": 9},
    }
    for section, values in more.items():
        settings[section] = {**settings[section], **values} if section != "model" else values
    return pretrain(None, settings, log=log)


def test_a_run_from_text(here: Path) -> None:
    """The vocabulary has T5's first and last ids; all that was chosen is in the recipe; both sides are counted."""
    from transformers import AutoTokenizer, T5ForConditionalGeneration

    said: list[str] = []
    model = go("r", said.append)
    tokenizer = model.tokenizer
    assert tokenizer is not None and model.task == model.card.task == "fill"
    assert [tokenizer.token(number) for number in range(3)] == ["<pad>", "</s>", "<unk>"]
    last = tokenizer.vocabulary - 1
    assert tokenizer.kind == "unigram" and last == 299
    assert [tokenizer.id(f"<extra_id_{number}>") for number in (0, 1, 99)] == [last, last - 1, last - 99]
    assert tokenizer.encode("the <extra_id_0> sang <extra_id_1>").ids[-2:] == [last - 1, 1]
    assert model.config.begin == 0 and model.config.context == 32
    aim = read_toml(Recipe, here / "r/run/recipe.toml").objective
    assert (aim.name, aim.rows, aim.length, aim.mask, aim.span) == ("spans", "stream", 32, 0.15, 3.0)
    # 34 tokens of text: 5 are taken out in 2 spans, so that 32 are read and 8 are written.
    lines = [line for line in read_metrics(here / "r/run/metrics.jsonl") if "learning_rate" in line]
    assert [line["tokens"] for line in lines] == [4 * (32 + 8) * step for step in range(1, 7)]
    assert all(line["padding"] == 0 for line in lines)
    judged = [line for line in read_metrics(here / "r/run/metrics.jsonl") if "validation_loss" in line]
    assert [line["step"] for line in judged] == [3, 6] and "held out" in "".join(said)
    peer = T5ForConditionalGeneration.from_pretrained(here / "r").eval()
    ids = torch.tensor([AutoTokenizer.from_pretrained(here / "r")("The weaver <extra_id_0>.").input_ids])
    assert ids[0].tolist() == tokenizer.encode("The weaver <extra_id_0>.").ids
    network: Any = model.network
    with torch.inference_mode():
        scores, _ = network.start(Ragged.of([[0]]), Ragged.of(ids.tolist()))
        expected = peer(input_ids=ids, decoder_input_ids=torch.tensor([[0]])).logits[0]
    assert (scores - expected).abs().max() < 1e-4
    published = json.loads((here / "r/config.json").read_text())
    assert (published["decoder_start_token_id"], published["pad_token_id"], published["eos_token_id"]) == (0, 0, 1)


def test_gone_on_with_it_ends_the_same(here: Path) -> None:
    go("whole")
    for step in (2, 3):
        shutil.copytree(here / "whole", here / str(step))
        for path in (here / str(step) / "run/checkpoints").glob("step-*"):
            if int(path.name[5:]) > step:
                shutil.rmtree(path)
        resume(here / str(step), log=lambda _: None)
        whole, parts = contents(here / "whole", ema=False), contents(here / str(step), ema=False)
        for name in whole:
            assert same(whole[name], parts[name]), (step, name)


def test_from_the_weights_of_another(here: Path) -> None:
    first = go("first")
    said: list[str] = []
    second = go("second", said.append, model={"base": "first"}, tokenizer={"size": None}, training={"steps": 3})
    assert second.card.base == "first" and second.config == first.config
    losses = [
        line["validation_loss"]
        for line in read_metrics(here / "second/run/metrics.jsonl")
        if "learning_rate" not in line
    ]
    before = [
        line["validation_loss"]
        for line in read_metrics(here / "first/run/metrics.jsonl")
        if "learning_rate" not in line
    ]
    assert losses[0] == pytest.approx(min(before), rel=1e-5), "the same gaps of the same held-out text"


def test_one_line_for_each_mistake(here: Path) -> None:
    from weft.text.tokenizers.training import learn

    learn(["a b c d"] * 9, "unigram", 12).save(here / "plain")
    for settings, said in (
        ({"model": {"family": "transformer"}}, "transformer learns from pairs: weft finetune --task translate"),
        ({"objective": {"name": "mlm"}}, "objective mlm does not fit t5, which learns by spans"),
        ({"model": {"family": "bert"}, "objective": {"name": "spans"}}, "objective spans does not fit bert"),
        ({"objective": {"span": 0.5}}, "span must be between 1 and 1000 tokens, not 0.5"),
        ({"objective": {"length": 2}}, "rows of 2 tokens have no room for a text with a gap"),
        ({"tokenizer": {"folder": "plain"}}, "this vocabulary has no <extra_id_0>, so it has no gaps"),
        ({"tokenizer": {"size": 105}}, "a vocabulary of 5 is too small"),
    ):
        with pytest.raises(UserError, match=said):
            go("bad", **settings)  # type: ignore[arg-type]
        assert not (here / "bad" / "model.safetensors").exists()


def test_fewer_sentinels_than_gaps_are_said(here: Path) -> None:
    from weft.text.tokenizers.training import learn

    text = stories(60).splitlines()
    extra = [f"<extra_id_{number}>" for number in reversed(range(2))]
    learn(text, "unigram", 250, extra=extra).save(here / "two")
    said: list[str] = []
    go("r", said.append, tokenizer={"folder": "two"}, objective={"length": 128}, training={"steps": 1})
    assert "rows of 128 tokens would have 7 spans; the vocabulary has 2 sentinels" in "\n".join(said)


def test_both_sides_of_a_batch_are_counted() -> None:
    """What is read too, and what filling up costs on either side."""
    batch = batch_of("spans", [9, 30, 14, 6])
    assert batch.source is not None
    assert batch.size == len(batch.tokens) + len(batch.source.tokens) > sum([9, 30, 14, 6])
    read, written = Rows.of([3, 2]), Rows.of([5, 5])
    both = Batch(torch.zeros(10, dtype=torch.int64), written, source=Ragged(torch.zeros(5, dtype=torch.int64), read))
    assert _slots(both) == slots_of(written, 10) + slots_of(read, 5) and slots_of(read, 5) in (5, 6)
    assert _slots(Batch(both.tokens, written)) == 10

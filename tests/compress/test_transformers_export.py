"""Exports to transformers: opened by transformers itself, with the same scores; what it has no words for is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import weft
from tests.backends.engines import drawn
from weft.cli.main import run
from weft.exporters import export as exporting
from weft.exporters.export import export
from weft.nn.rows import Ragged
from weft.tasks.model import Model

TEXT = [5, 9, 7, 31, 12, 8]
WRITTEN = [4, 6, 11]
CASES: list[tuple[str, str | None, str]] = [
    ("bert", "classify", "BertForSequenceClassification"),
    ("roberta", "tag", "RobertaForTokenClassification"),
    ("xlm-roberta", None, "XLMRobertaModel"),
    ("albert", "words", "AlbertForMaskedLM"),
    ("distilbert", "answer", "DistilBertForQuestionAnswering"),
    ("openai-gpt", "words", "OpenAIGPTLMHeadModel"),
    ("gpt2", "words", "GPT2LMHeadModel"),
    ("marian", "words", "MarianMTModel"),
    ("t5", "words", "T5ForConditionalGeneration"),
]


def model_of(family: str, head: str | None) -> Model:
    outputs = {None: {}, "words": {"words": None}}.get(head, {head: 2})
    model = drawn(family, outputs)  # type: ignore[arg-type]
    task = {None: "embed", "words": model.opened.family.task}.get(head, head)
    return Model(model.opened, str(task))


@pytest.mark.parametrize(("family", "head", "architecture"), CASES, ids=[case[2] for case in CASES])
def test_transformers_says_the_same(family: str, head: str | None, architecture: str, tmp_path: Path) -> None:
    ours = model_of(family, head)
    assert export(ours, "transformers", out=tmp_path / "x").max_difference == 0.0
    assert json.loads((tmp_path / "x" / "config.json").read_text())["architectures"] == [architecture]
    peer: Any = getattr(transformers, architecture).from_pretrained(tmp_path / "x").eval()
    reads = ours.opened.family.reads
    begun = [ours.config.begin, *WRITTEN] if reads else TEXT
    more = {"decoder_input_ids": torch.tensor([begun])} if reads else {}
    with torch.inference_mode():
        found = peer(input_ids=torch.tensor([TEXT]), **more)
        batch = Ragged.of([begun])
        hidden = ours.network(batch.tokens, batch.rows, **({"source": Ragged.of([TEXT])} if reads else {}))
        mine = hidden if head is None else ours.network.logits(head, hidden, batch.rows) if not reads else None  # type: ignore[operator]
        mine = ours.network.words(hidden) if reads else mine  # type: ignore[operator]
    theirs = found.last_hidden_state[0] if head is None else None
    if head == "answer":
        theirs = torch.stack([found.start_logits[0], found.end_logits[0]], -1)
    theirs = (found.logits if head == "classify" else found.logits[0]) if theirs is None else theirs
    torch.testing.assert_close(theirs, mine, atol=1e-5, rtol=1e-5)


def test_labels_and_kind_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model_of("bert", "classify").save(tmp_path / "plain")
    card = json.loads((tmp_path / "plain" / "weft.json").read_text())
    (tmp_path / "plain" / "weft.json").write_text(
        json.dumps({**card, "task": "multilabel", "labels": ["dull", "good"]})
    )
    values = json.loads((tmp_path / "plain" / "config.json").read_text())
    for key in ("num_labels", "id2label", "label2id"):
        values.pop(key, None)
    (tmp_path / "plain" / "config.json").write_text(json.dumps(values))
    out = tmp_path / "x"
    assert run(["export", str(tmp_path / "plain"), "--to", "transformers", "--out", str(out)]) == 0
    assert "for transformers; 24 inputs: the same answers" in capsys.readouterr().out
    written = json.loads((out / "config.json").read_text())
    assert written["problem_type"] == "multi_label_classification" and written["id2label"] == {"0": "dull", "1": "good"}
    pipe: Any = transformers.pipeline("text-classification", model=str(out), tokenizer=str(out))
    said = weft.load(out)("the cat")
    assert {
        each["label"]: pytest.approx(each["score"], abs=1e-5) for each in pipe("the cat", top_k=None)
    } == said.scores


def test_what_transformers_has_no_words_for(tmp_path: Path) -> None:
    for model, told in (
        (drawn("transformer"), "transformers has no transformer models; it has bert"),
        (drawn("bert", {"tag": 2}, positions="rotary"), "no bert model with positions=rotary"),
        (drawn("bert", {"tag": 2}, positions="rotary", norm="rms"), "no bert model with these blocks"),
        (drawn("transformer-xl", {"tag": 2}, context=1 << 24), "no transformer-xl model with blank=False"),
        (drawn("bert", {"tag": 2, "answer": 2}), "with these heads together: tag, answer"),
    ):
        with pytest.raises(weft.UserError, match=told) as found:
            export(
                Model(model.opened, "tag" if "tag" in model.opened.heads else "translate"),
                "transformers",
                out=tmp_path / "x",
            )
        assert "\n" not in str(found.value) and not (tmp_path / "x").exists()


def test_damaged_folders_are_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A weight, or the config, that is another when the folder is read back."""
    model, whole = model_of("bert", "tag"), exporting.write_files

    def harmed(inside: Path, opened: Any) -> None:
        whole(inside, opened)
        if harm == "weights":
            path = inside / "model.safetensors"
            path.write_bytes(path.read_bytes()[:-4] + b"\0\0\0\0")
        else:
            path = inside / "config.json"
            path.write_text(path.read_text().replace('"layer_norm_eps": 1e-12', '"layer_norm_eps": 1e-5'))

    monkeypatch.setattr(exporting, "write_files", harmed)
    for harm, told in (("weights", "holds other weights"), ("config", "another config: norm_epsilon")):  # noqa: B007
        with pytest.raises(weft.UserError, match=f"{told}.*nothing was written"):
            export(model, "transformers", out=tmp_path / "x")
        assert not list(tmp_path.iterdir())

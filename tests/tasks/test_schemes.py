"""Tags in other schemes than BIO: IOB1 as CoNLL-2003 was published, strays, BIOES; read as one scheme, and said so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from tests.tasks.small import TINY, model_for, write_conll
from tests.text.test_tags import as_iob1
from weft.cli.main import run
from weft.data.tables import Table
from weft.distillation.dataset import read_rows
from weft.tasks.base import Normalization
from weft.tasks.tag import TagTask, joined
from weft.text.records import read_records
from weft.text.tags import TagNormalizer, scheme_of
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.training.signals import Control

Sentence = list[tuple[str, str]]
LABELS = ("O", "B-LOC", "B-PER", "I-LOC", "I-PER")


def in_iob1(found: list[Sentence]) -> list[Sentence]:
    """The same sentences with IOB1 tags."""
    return [list(zip([word for word, _ in words], as_iob1([tag for _, tag in words]), strict=True)) for words in found]


@pytest.fixture(scope="module")
def wikiann(data: Path) -> list[Sentence]:
    records = read_records(data / "wikiann_en" / "dev.xz", format="conll")
    return [list(zip(record.values["words"], record.values["tags"], strict=True)) for record in records]


def test_all_of_wikiann(wikiann: list[Sentence]) -> None:
    normalizer, changed = TagNormalizer("bio"), 0
    for words, first in zip(wikiann, in_iob1(wikiann), strict=True):
        tags = tuple(tag for _, tag in words)
        changed += first != words
        assert normalizer.normalized([tag for _, tag in first]) == tags
    assert changed > len(wikiann) / 2 and normalizer.note() == "IOB1 tags read as BIO"


def test_wikiann_as_iob1_gives_the_same_model(wikiann: list[Sentence], tmp_path: Path) -> None:
    def trained(form: str, found: list[Sentence]) -> tuple[weft.Model, Any, Any, list[str]]:
        train, dev = (
            write_conll(tmp_path / f"{form}.{part}.conll", found[first:last])
            for part, first, last in (("train", 0, 160), ("dev", 160, 220))
        )
        lines: list[str] = []
        model = weft.finetune(
            train,
            dev=dev,
            task="tag",
            model=dict(TINY),
            tokenizer={"size": 300},
            training={"steps": 12, "batch": 16, "learning_rate": 3e-3},
            log=lines.append,
        )
        evaluation = model.evaluate(dev, log=lines.append)
        texts = [[word for word, _ in words] for words in found[220:240]]
        return model, evaluation, model(texts), [line for line in lines if "tags read as" in line]

    model, evaluation, answers, notes = trained("bio", wikiann[:240])
    again, same, equal, others = trained("iob1", in_iob1(wikiann[:240]))
    assert not notes
    assert others == [f"weft: note: iob1.{part}.conll: IOB1 tags read as BIO" for part in ("train", "dev", "dev")], (
        "training rows, those to judge by, and those of evaluate"
    )
    assert model.card.labels == again.card.labels and scheme_of(model.card.labels or ()) == "bio"
    assert [(m.name, m.value) for m in model.card.metrics] == [(m.name, m.value) for m in again.card.metrics]
    assert evaluation.scores == same.scores and evaluation.by_label == same.by_label
    assert evaluation.worst == [{**row, "where": row["where"].replace("iob1.dev", "bio.dev")} for row in same.worst], (
        "row by row"
    )
    assert answers == equal
    assert all(map(torch.equal, model.network.state_dict().values(), again.network.state_dict().values()))
    assert any(tag[0] == "B" for row in same.worst for tag in row["target"].split("/")[1:])


@pytest.fixture
def tagger(wordpiece: Tokenizer, tmp_path: Path) -> Path:
    model = model_for("tag", len(LABELS), wordpiece, LABELS)
    model.save(tmp_path / "tagger")
    return tmp_path / "tagger"


STRAY: list[Sentence] = [
    [("Ada", "B-PER"), ("Smith", "I-PER"), ("goes", "O")],
    [("now", "O"), ("Rome", "I-LOC"), ("Oslo", "B-LOC")],
    [("Bo", "I-PER"), ("Lima", "I-LOC")],
]


def test_strays_are_repaired_and_counted_on_the_command_line(
    tagger: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = write_conll(tmp_path / "bad.conll", STRAY)
    mended = [[(word, "B" + tag[1:] if word != "Smith" and tag != "O" else tag) for word, tag in s] for s in STRAY]
    good = write_conll(tmp_path / "good.conll", mended)
    found = []
    for path in (bad, good):
        assert run(["evaluate", str(tagger), "--data", str(path), "--json"]) == 0
        printed = capsys.readouterr()
        found.append(json.loads(printed.out)["scores"])
        assert ("weft: note: bad.conll: 3 stray I- tags read as B-\n" in printed.err) == (path == bad)
    assert found[0] == found[1]
    assert run(["compare", str(tagger), str(tagger), "--data", str(bad), "--no-costs"]) == 0
    assert "weft: note: bad.conll: 3 stray I- tags read as B-\n" in capsys.readouterr().err


def test_rows_of_a_distillation(tmp_path: Path) -> None:
    lines: list[str] = []
    for labels, expected, note in (
        (LABELS, ("B-PER", "B-LOC"), "3 stray I- tags read as B-"),
        (("O", "I-LOC", "I-PER"), ("I-PER", "I-LOC"), None),  # a teacher for whom I- is all of an entity
        (("O", "B-PER", "I-PER", "E-PER", "S-PER", "S-LOC"), ("S-PER", "S-LOC"), "BIO tags read as BIOES"),
    ):
        files = Table((str(write_conll(tmp_path / "rows.conll", STRAY)),), {}, on_bad_row="skip")
        lines.clear()
        rows = read_rows(TagTask(labels), files, Control(lines.append))
        assert rows[-1].target == expected
        assert [line for line in lines if "tags" in line] == ([f"weft: note: rows.conll: {note}"] if note else [])


def test_tags_of_no_scheme_stay() -> None:
    rows = [joined(["Ada", "goes"], ["NOUN", tag], "pos.conll line 1") for tag in ("O", "VERB")]
    assert TagTask().normalization(rows) == Normalization() == TagTask(("NOUN", "VERB", "O")).normalization()
    assert [TagTask().normalization(rows)(row) for row in rows] == rows

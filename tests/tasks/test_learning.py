"""Each task learns a handful of rows by heart, answers rightly, and leaves a folder that transformers opens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import weft
from tests.tasks.small import (
    PRICES,
    kinds,
    pairs,
    prices,
    questions,
    quiet,
    sentences,
    several,
    spanned,
    tuned,
    write_conll,
    write_rows,
)
from weft.runs.finetune import finetune
from weft.tasks.model import Model
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.training.run import Run


def folder_holds(model: Model, out: Path, text: str, pair: str | None = None) -> Any:
    """What transformers says of a text by the saved folder; labels and answers survive another save."""
    import transformers

    kind = {"tag": "TokenClassification", "answer": "QuestionAnswering"}.get(model.task, "SequenceClassification")
    peer = getattr(transformers, f"AutoModelFor{kind}").from_pretrained(out).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    labels = json.loads((out / "weft.json").read_text()).get("labels")
    if labels is not None:
        assert peer.config.id2label == dict(enumerate(labels)) and peer.config.label2id[labels[-1]] == len(labels) - 1
    again = weft.load(out)
    given: Any = text if pair is None else (text, pair)
    again.save(out.parent / "again")
    second = weft.load(out.parent / "again")
    assert again.task == second.task == model.task
    assert again.card.labels == second.card.labels == (None if labels is None else tuple(labels))
    assert again.card.thresholds == second.card.thresholds and again.card.window == second.card.window
    assert model(given) == again(given) == second(given)
    with torch.inference_mode():
        said = peer(**tokenizer(text, pair, return_tensors="pt"))
    ids = tokenizer(text, pair)["input_ids"]
    assert again.tokenizer is not None and ids == again.tokenizer.encode(text, pair).ids
    return peer.config, said


def near(one: Any, two: Any) -> bool:
    return np.allclose(np.asarray(one, dtype=np.float64), np.asarray(two, dtype=np.float64), rtol=1e-4, atol=1e-5)


def test_classify(here: Path) -> None:
    rows = kinds(40)
    chosen = ("stone", "plant", "animal")
    work = {"task": {"labels": chosen, "class_weights": "balanced"}}
    model = tuned(write_rows(here / "r.jsonl", rows), "classify", here / "out", settings=work)
    answers: Any = model([row["text"] for row in rows])
    assert [answer.label for answer in answers] == [row["label"] for row in rows]
    assert tuple(answers[0].scores) == chosen == model.card.labels and answers[0].score == max(
        answers[0].scores.values()
    )
    config, said = folder_holds(model, here / "out", rows[0]["text"])
    assert near(said.logits[0].softmax(-1), list(answers[0].scores.values()))
    assert config.problem_type == "single_label_classification"
    assert weft.load(here / "out").evaluate(here / "r.jsonl").scores["accuracy"].value == 1.0


def test_multilabel(here: Path) -> None:
    rows = several(48)
    model = tuned(write_rows(here / "r.jsonl", rows), "multilabel", here / "out")
    answers: Any = model([row["text"] for row in rows])
    assert [set(answer.labels) for answer in answers] == [set(row["labels"]) for row in rows]
    assert () in [answer.labels for answer in answers]
    config, said = folder_holds(model, here / "out", rows[1]["text"])
    assert near(said.logits[0].sigmoid(), list(answers[1].scores.values()))
    assert config.problem_type == "multi_label_classification"
    # Thresholds are tuned, saved by label, and decide after loading.
    card = json.loads((here / "out/weft.json").read_text())
    assert set(card["thresholds"]) == set(model.card.labels or ()) and set(card["thresholds"].values()) != {0.5}
    alone: Any = model(rows[1]["text"])
    card["thresholds"]["animal"] = alone.scores["animal"]  # at the threshold a label is set, as in its tuning
    (here / "out/weft.json").write_text(json.dumps(card))
    assert "animal" in weft.load(here / "out")(rows[1]["text"]).labels  # type: ignore[attr-defined]
    card["thresholds"]["animal"] = 0.999999
    (here / "out/weft.json").write_text(json.dumps(card))
    said_now: Any = weft.load(here / "out")([row["text"] for row in rows])
    assert not any("animal" in answer.labels for answer in said_now)


def test_regress(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Values far from 0 are learned in units of their spread; the folder says them as they are."""
    rows = prices(36)
    model = tuned(write_rows(here / "r.jsonl", rows), "regress", here / "out", every=25)
    assert not capsys.readouterr().err, "whoever listens to a run gets its lines, and nobody else"
    for row in rows[:6]:
        assert model(row["text"]).value == pytest.approx(row["value"], rel=0.15)  # type: ignore[attr-defined]
    config, said = folder_holds(model, here / "out", rows[0]["text"])
    assert said.logits.item() == pytest.approx(model(rows[0]["text"]).value, rel=1e-4)  # type: ignore[attr-defined]
    assert config.num_labels == 1 and config.problem_type == "regression" and max(PRICES.values()) > 1e5
    assert model.evaluate(here / "r.jsonl").scores["r2"].value > 0.95
    # What goes on from it begins where it ended: its head speaks people's units, and learns in units of the spread.
    finetune(here / "r.jsonl", task="regress", base=here / "out", out=here / "on", log=quiet, training={"steps": 2})
    losses = [line["validation_loss"] for line in Run(here / "on").lines() if "validation_loss" in line]
    assert losses and losses[0] < 0.2


def test_values_of_a_head_without_a_bias(here: Path, bpe: Tokenizer) -> None:
    """GPT-2's head cannot add a middle; what it says is far from zero all the same, here and in transformers."""
    bpe.save(here / "tok")
    rows = [
        {"text": f"{word} {n % 3}", "value": 1900.0 + 5 * place} for n in range(12) for place, word in enumerate("abc")
    ]
    sizes = {"family": "gpt2", "size": "1x64", "context": 32, "weight_scale": 0.1, "heads": 4}
    model = finetune(
        write_rows(here / "r.jsonl", rows),
        task="regress",
        out=here / "out",
        model=sizes,
        tokenizer={"folder": str(here / "tok")},
        training={"steps": 60, "learning_rate": 3e-3, "batch": 16},
        log=quiet,
    )
    assert model.evaluate(here / "r.jsonl").scores["r2"].value > 0.9
    _, said = folder_holds(model, here / "out", "b 1")
    import transformers

    pipeline = transformers.AutoTokenizer.from_pretrained(here / "out")
    peer = transformers.AutoModelForSequenceClassification.from_pretrained(here / "out").eval()
    texts = ["b 1", "a 0 a 0 a 0", "c"]
    with torch.inference_mode():
        together = peer(**pipeline(texts, padding=True, return_tensors="pt")).logits[:, 0]
    assert near(together, [answer.value for answer in model(texts)])  # type: ignore[attr-defined]
    assert said.logits.item() == pytest.approx(model("b 1").value, rel=1e-4)  # type: ignore[attr-defined]


@pytest.mark.parametrize("values", [False, True])
def test_pair(values: bool, here: Path) -> None:
    rows = pairs(45, values)
    model = tuned(write_rows(here / "r.jsonl", rows), "pair", here / "out")
    answers: Any = model([(row["sentence1"], row["sentence2"]) for row in rows])
    config, said = folder_holds(model, here / "out", rows[0]["sentence1"], rows[0]["sentence2"])
    if values:
        assert np.abs([answer.value - row["score"] for answer, row in zip(answers, rows, strict=True)]).max() < 0.5
        assert near(said.logits[0], [answers[0].value]) and config.problem_type == "regression"
        assert model.card.labels is None
    else:
        assert [answer.label for answer in answers] == [row["label"] for row in rows]
        assert near(said.logits[0].softmax(-1), list(answers[0].scores.values()))
        assert model.card.labels == ("greater", "not")


def spans_of(model: Model, text: Any) -> list[tuple[str, str]]:
    answer: Any = model([text])[0]
    assert all(span.text == answer_text(text)[span.start : span.end] for span in answer.spans)
    return [(span.text, span.label) for span in answer.spans]


def answer_text(text: Any) -> str:
    return text if isinstance(text, str) else " ".join(text)


def together(rows: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """Texts with spans put together to longer ones."""
    found = []
    for begin in range(0, len(rows), count):
        text, spans = "", []
        for row in rows[begin : begin + count]:
            for span in row["spans"]:
                spans.append({**span, "start": span["start"] + len(text), "end": span["end"] + len(text)})
            text += row["text"] + " "
        found.append({"text": text, "spans": spans})
    return found


@pytest.mark.parametrize("kind", [pytest.param("bio", marks=pytest.mark.slow), "iob", "spans"])
def test_tag(kind: str, here: Path) -> None:
    found = sentences(24)
    if kind == "spans":
        rows = [*spanned(8), *together(spanned(240, 1), 24)]
        data = write_rows(here / "r.jsonl", rows)
    else:
        data = write_conll(here / "r.conll", found, first=kind == "iob")
    model = tuned(data, "tag", here / "out", steps=80 if kind == "spans" else 40)
    assert model.card.labels == ("O", "B-LOC", "B-PER", "I-PER")
    assert model.evaluate(data).scores["f1"].value == 1.0
    text = "Ada Smith goes to Oslo now"
    wanted = [("Ada Smith", "PER"), ("Oslo", "LOC")]
    assert spans_of(model, text) == spans_of(model, text.split()) == wanted
    _, said = folder_holds(model, here / "out", text)
    chances = said.logits[0, 1:-1].softmax(-1).max(-1).values
    answer: Any = model(text)
    assert model.tokenizer is not None
    firsts = [n for n, token in enumerate(model.tokenizer.encode(text, specials=False).tokens) if token[:2] != "##"]
    assert near(chances[firsts], [word.score for word in answer.words])
    if kind == "spans":
        # Far longer than a window: each entity is found once, those on the borders of windows too.
        for row in rows[-4:]:
            answer = model(row["text"])
            assert answer.n_windows >= 3 and not answer.truncated
            expected_spans = [(span["start"], span["end"], span["label"]) for span in row["spans"]]
            assert [(span.start, span.end, span.label) for span in answer.spans] == expected_spans


@pytest.mark.parametrize("none", [False, True])
def test_answer(none: bool, here: Path) -> None:
    """Each context says where two people live; with `none` some say nothing of it."""
    rows = questions(60, none)
    data = write_rows(here / "r.jsonl", rows)
    model = tuned(data, "answer", here / "out", steps=60)
    replies: Any = model([(row["question"], row["context"]) for row in rows])
    right = [reply.text == row["answer"] for reply, row in zip(replies, rows, strict=True)]
    assert np.mean(right) > 0.9
    assert model.evaluate(data).scores["exact"].value == pytest.approx(np.mean(right))
    for reply, row in zip(replies, rows, strict=True):
        assert reply.text == row["context"][reply.start : reply.end]
        assert 0 <= reply.score <= 1 and 0 <= reply.no_answer <= 1
        assert [choice.text for choice in reply.best] == [row["context"][c.start : c.end] for c in reply.best]
    assert (set(model.card.thresholds) == {"no answer"}) == none
    assert none == any(not reply.text for reply in replies)
    _, said = folder_holds(model, here / "out", rows[1]["question"], rows[1]["context"])
    best = replies[1].best[0]
    assert model.tokenizer is not None
    encoded = model.tokenizer.encode(rows[1]["question"], rows[1]["context"])
    inside = [n for n, side in enumerate(encoded.sequences) if side == 1]
    both = [max(inside, key=lambda n: scores[0, n].item()) for scores in (said.start_logits, said.end_logits)]
    assert (encoded.offsets[both[0]][0], encoded.offsets[both[1]][1]) == (best.start, best.end)
    # In a long text the answer is found by the windows that hold it.
    before = "nothing lives there . " * 30
    question, context = rows[1]["question"], before + rows[1]["context"]
    reply: Any = model((question, context))
    assert reply.n_windows > 3 and reply.text == context[reply.start : reply.end]

"""Multiple choice: learned with the head `choose` by every family that has it, evaluated, distilled, and published."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import weft
from tests.tasks.small import quiet, tuned, write_rows
from weft.checkpoint.families import FAMILIES
from weft.cli.main import run as cli
from weft.data.examples import batch_of
from weft.errors import UserError
from weft.metrics.choices import ChoiceMetrics, SelectionMetrics
from weft.objectives.losses import Choices, SoftTargets
from weft.tasks.base import Example, Prediction
from weft.tasks.choose import ChoiceTask, choose, evaluate_choices, read_questions
from weft.tasks.forward import framing_for
from weft.text.tokenizers.tokenizer import Tokenizer

EATS = {"dog": "bone", "cat": "mouse", "horse": "hay", "bird": "seed", "cow": "grass"}


def meals(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """What an animal eats, among 2 to 4 options."""
    chance, rows = random.Random(seed), []
    for number in range(count):
        animal = list(EATS)[number % len(EATS)]
        foods = chance.sample([food for name, food in EATS.items() if name != animal], chance.randint(1, 3))
        foods.insert(chance.randrange(len(foods) + 1), EATS[animal])
        row = {"prompt": f"the {animal} eats", "options": [f"some {food}" for food in foods]}
        rows.append({**row, "answer": foods.index(EATS[animal])})
    return rows


def run(*words: Any) -> int:
    return cli([str(word) for word in words])


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a BERT that knows the meals, and its rows beside it."""
    place = tmp_path_factory.mktemp("choice")
    tuned(write_rows(place / "meals.jsonl", meals(48)), "choose", place / "out", steps=80)
    return place


def test_learned_by_heart_and_published(learned: Path) -> None:
    import transformers

    rows, model = meals(48), weft.load(learned / "out")
    evaluation = model.evaluate(learned / "meals.jsonl")
    scores = {name: score.value for name, score in evaluation.scores.items()}
    assert scores["accuracy"] > 0.9 > 0.7 > scores["majority"] >= scores["chance"]
    assert scores["chance"] == pytest.approx(np.mean([1 / len(row["options"]) for row in rows]))
    answers: Any = model(rows)
    assert [answer.text for answer in answers] == [
        row["options"][a.number] for a, row in zip(answers, rows, strict=True)
    ]
    alone = model((rows[0]["prompt"], rows[0]["options"]))
    assert alone == model(rows[0]["prompt"], choices=rows[0]["options"]) == model(rows[0])
    assert alone.number == answers[0].number
    peer = transformers.AutoModelForMultipleChoice.from_pretrained(learned / "out").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(learned / "out")
    assert type(peer).__name__ == "BertForMultipleChoice"
    for row, answer in zip(rows[:8], answers, strict=False):
        given = tokenizer([row["prompt"]] * len(row["options"]), row["options"], return_tensors="pt", padding=True)
        with torch.inference_mode():
            logits = peer(**{name: value[None] for name, value in given.items()}).logits[0]
        ours = [option.score for option in sorted(answer.options, key=lambda option: option.number)]
        assert np.allclose(logits.numpy(), ours, atol=1e-5)
        assert sum(option.probability for option in answer.options) == pytest.approx(1)
    peer.save_pretrained(learned / "theirs")
    tokenizer.save_pretrained(learned / "theirs")
    theirs = weft.load(learned / "theirs")
    assert theirs.task == "choose" and theirs((rows[0]["prompt"], rows[0]["options"])).text == answers[0].text


@pytest.mark.parametrize("family", [name for name, family in FAMILIES.items() if "choose" in family.names.heads])
def test_every_family_with_the_head_learns_it(here: Path, family: str) -> None:
    """It learns that one kind of option is right, however many there are; the folder answers the same."""
    rows = meals(24)
    for row in rows:
        row["options"] = [f"{'good' if n == row['answer'] else 'bad'} {text}" for n, text in enumerate(row["options"])]
    write_rows(here / "meals.jsonl", rows)
    sizes = {"family": family, "size": "1x64", "context": 32, "dropout": 0.0}
    plan = {"steps": 30, "batch": 24, "learning_rate": 3e-3, "evaluate_every": 30}
    options: Any = {"model": sizes, "tokenizer": {"size": 320}, "training": plan, "log": quiet}
    model = weft.finetune(here / "meals.jsonl", task="choose", dev=rows, out=here / "out", **options)
    assert weft.load(here / "out")(rows) == model(rows)
    assert model.evaluate(here / "meals.jsonl").scores["accuracy"].value > 0.9


def test_the_loss_is_a_softmax_over_the_options_of_a_row(wordpiece: Tokenizer) -> None:
    """Ragged options, some of several windows; any of several right ones; each by itself; soft targets."""
    model = weft.new("bert", wordpiece, size="1x64", settings={"context": 24}, heads={"choose": 1}, seed=1)
    model.network.double()
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.mul_(3)
    long = " ".join(["the cat is there again"] * 8)
    texts = [
        (long, "", "the oak", "a fern", "slate"),
        ("the cow", "is", "now", "there"),
        ("Ada", "", "x", "y", "z", "w"),
    ]
    examples = [Example(each, right, "") for each, right in zip(texts, [(1,), (0,), (0, 2)], strict=True)]
    framing = framing_for(model.opened)
    for several in (False, True):
        task = ChoiceTask(several)
        predictions = task.predict(model.opened, framing, list(texts))
        assert [len(each.output) for each in predictions] == [3, 2, 4] and predictions[0].n_windows > 1
        source = task.dataset(examples, model.opened, framing).for_training(2, 0, False)
        assert source.most_rows is None, "all options are read in every step"
        numbers = np.arange(3)
        batch = batch_of(source.draw(np.zeros(3, dtype=np.int64), numbers))
        sums, counts = task.objective().sums(model.network, batch), task.objective().counts(batch)
        by_hand = 0.0
        for prediction, example in zip(predictions, examples, strict=True):
            logits = torch.tensor(prediction.output)
            gold = torch.tensor([float(n in example.target) for n in range(len(logits))])
            if several:
                by_hand += float(F.binary_cross_entropy_with_logits(logits, gold.double(), reduction="sum"))
            else:
                by_hand -= float((logits.softmax(-1) * gold).sum().log())
        assert counts == {"choice": 9 if several else 3}
        assert float(sums["choice"].detach()) == pytest.approx(by_hand, rel=1e-5)
        filled = batch_of(replace(source, fixed=True).draw(np.zeros(3, dtype=np.int64), numbers))  # rows of padding
        assert float(task.objective().sums(model.network, filled)["choice"].detach()) == pytest.approx(
            by_hand, rel=1e-5
        )
        teacher = [{"output": np.linspace(-1, 1, len(each.output))} for each in predictions]
        soft = replace(task, soft=SoftTargets(2.0, 0.25))
        unlabeled = [replace(examples[0], target=None), *examples[1:]]
        batch = batch_of(
            soft.dataset(unlabeled, model.opened, framing, teacher).draw(np.zeros(3, dtype=np.int64), numbers)
        )
        found = soft.objective().sums(model.network, batch)
        assert soft.objective().counts(batch) == dict.fromkeys(("teacher", "labels"), 9 if several else 3)
        wanted = np.zeros(2)
        for row, (prediction, example) in enumerate(zip(predictions, examples, strict=True)):
            ours, theirs = (torch.tensor(each) / 2.0 for each in (prediction.output, teacher[row]["output"]))
            gold = torch.tensor([float(n in example.target) for n in range(len(ours))]).double()
            if several:
                p = theirs.sigmoid()
                apart = p * (p.log() - ours.sigmoid().log()) + (1 - p) * ((1 - p).log() - (1 - ours.sigmoid()).log())
                hard = F.binary_cross_entropy_with_logits(2 * ours, gold, reduction="none").sum()
            else:
                apart = theirs.softmax(-1) * (theirs.log_softmax(-1) - ours.log_softmax(-1))
                hard = -((2 * ours).softmax(-1) * gold).sum().log()
            wanted += [4 * float(apart.sum()) * (0.75 if row else 1.0), float(hard) * (0.25 if row else 0.0)]
        assert [float(found["teacher"]), float(found["labels"])] == pytest.approx(wanted.tolist(), rel=1e-4)


def test_no_gradient_reaches_an_option_that_is_not_there() -> None:
    """K is that of the longest row: what pads the others changes nothing."""

    class Head(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scores = torch.nn.Parameter(torch.tensor([1.0, -1.0, 0.5, 2.0, -0.5], dtype=torch.float64))

        def forward(self, tokens: Any, rows: Any, segments: Any) -> torch.Tensor:
            return self.scores[:, None]

        def logits(self, head: str, hidden: torch.Tensor, rows: Any) -> torch.Tensor:
            return hidden

    from weft.nn.rows import Batch, Rows

    right = torch.tensor([[0, 1, -100], [1, 0, 0]])
    targets = {"right": right, "labeled": torch.ones(2), "owners": torch.tensor([0, 0, 1, 1, 1])}
    targets |= {"options": torch.tensor([0, 1, 0, 1, 2]), "option_shares": torch.ones(5, dtype=torch.float64)}
    batch, head = Batch(torch.arange(5), Rows.of([1] * 5, torch.device("cpu")), None, targets), Head()
    Choices().sums(head, batch)["choice"].backward()
    expected = torch.cat([torch.tensor([1.0, -1.0]).softmax(-1), torch.tensor([0.5, 2.0, -0.5]).softmax(-1)]).double()
    expected[[1, 2]] -= 1
    assert head.scores.grad is not None and torch.allclose(head.scores.grad, expected, atol=1e-6)


@pytest.mark.parametrize("long", ["windows", "truncate"])
def test_long_contexts_leave_the_option_whole(wordpiece: Tokenizer, long: str) -> None:
    from weft.checkpoint.card import Window

    model = weft.new("bert", wordpiece, size="1x64", settings={"context": 24}, heads={"choose": 1}, seed=1)
    window = Window(length=24, stride=8, long=long)  # type: ignore[arg-type]
    opened = replace(model.opened, card=replace(model.card, window=window))
    task, framing = ChoiceTask(False), framing_for(opened)
    context, option = " ".join(["the cat is there"] * 10), "a cow goes to Rome again now"
    windows = task.encode([(context, "", option, "oak")], wordpiece, framing)
    ids = wordpiece.ids([option], specials=False)[0]
    counts = windows.places[0]
    for piece in windows.pieces[0][: counts[0]]:
        assert len(piece.tokens) <= 24 and piece.tokens[-1 - len(ids) : -1] == ids
    (prediction,) = task.predict(opened, framing, [(context, "", option, "oak")])
    assert prediction.truncated is (long == "truncate") and (prediction.n_windows == 1) is (long == "truncate")
    assert counts == [1, 1] if long == "truncate" else min(counts) > 1
    (short,) = task.predict(opened, framing, [("the cat", "", option, "oak")])
    assert not short.truncated
    rows = [Example((text, "", option, "oak"), (0,), "f line 1") for text in (context, "the cat")]
    about = task.dataset(rows, opened, framing).about
    assert about.endswith("1 of the rows truncated" if long == "truncate" else "none is truncated")


def test_several_right_answers_are_judged_by_themselves(here: Path) -> None:
    """MultiRC: F1 over all answers, exact by question; the threshold is that of the card."""
    rows = []
    for number, row in enumerate(meals(24)):
        answers = [{"text": text, "idx": n, "label": int(n == row["answer"])} for n, text in enumerate(row["options"])]
        answers += [{"text": "some air", "idx": 9, "label": 1}] * (number % 2)
        question = {"question": "what ?", "answers": answers, "idx": number}
        rows.append({"idx": number, "passage": {"text": row["prompt"], "questions": [question]}})
    model = tuned(write_rows(here / "multi.jsonl", rows), "choose", here / "out", steps=80)
    scores = {name: score.value for name, score in model.evaluate(here / "multi.jsonl").scores.items()}
    assert list(scores) == ["f1a", "exact", "accuracy", "majority"] and scores["f1a"] > 0.85
    assert set(model.card.thresholds) == {"option"}
    task: Any = weft.load(here / "out").task_object
    assert task.several and task.threshold == model.card.thresholds["option"]
    answer: Any = model((rows[1]["passage"]["text"], "what ?", ["some mouse", "some hay", "some air"]))
    assert answer.texts == tuple(
        o.text for o in sorted(answer.options, key=lambda o: o.number) if o.number in answer.chosen
    )
    assert len(answer.columns()["number"]) == len(answer.texts)
    example = Example(("p", "q", "a", "b"), (1,), "w")
    again = task.to_record(example)
    assert again["options"] == [{"text": "a", "label": 0}, {"text": "b", "label": 1}]


def test_a_row_for_each_answer_is_judged_by_question(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """MultiRC as Hugging Face has it is the same dataset; its test files have -1 for a label."""
    nested, flat = list[dict[str, Any]](), list[dict[str, Any]]()
    for number, row in enumerate(meals(20)):
        context = f"{row['prompt']} {number}"
        answers = [{"text": text, "label": int(n == row["answer"])} for n, text in enumerate(row["options"])]
        nested.append({"passage": {"text": context, "questions": [{"question": "what ?", "answers": answers}]}})
        flat += [
            {"paragraph": context, "question": "what ?", "answer": a["text"], "label": a["label"]} for a in answers
        ]
    write_rows(here / "flat.jsonl", flat)
    write_rows(here / "test.jsonl", [row | {"label": -1} for row in flat])
    model = tuned(write_rows(here / "nested.jsonl", nested), "choose", here / "out", steps=8)
    one, two = (model.evaluate(here / name) for name in ("nested.jsonl", "flat.jsonl"))
    assert one.scores == two.scores and one.examples == two.examples == 20
    assert run("evaluate", "out", "--data", "test.jsonl") == 2
    error = capsys.readouterr().err.strip()
    assert f"{len(flat)} of {len(flat)} rows have no label" in error and "\n" not in error
    assert run("predict", "out", "--data", "test.jsonl", "--out", "p.jsonl") == 0
    assert len(Path("p.jsonl").read_text().splitlines()) == len(flat), "a prediction for each row"
    report = weft.compare([model, model], "nested.jsonl")
    assert report.models[0].scores["f1a"].value == one.scores["f1a"].value, "labels inside of the options count"


def test_a_first_row_that_is_bad_or_blank_is_skipped_like_any_other(here: Path) -> None:
    rows: list[dict[str, Any]] = [{"prompt": "", "options": "", "answer": ""}, *meals(12)]
    assert tuned(write_rows(here / "blank.jsonl", rows), "choose", here / "blank", steps=1)
    rows[0] = {"prompt": "P", "options": ["a"], "answer": 0}
    bad = write_rows(here / "bad.jsonl", rows)
    with pytest.raises(UserError, match=r"bad.jsonl line 1: one option only, 'a'"):
        tuned(bad, "choose", here / "bad", steps=1)
    model = tuned(bad, "choose", here / "bad", steps=1, settings={"data": {"on_bad_row": "skip"}})
    assert model.evaluate(bad, on_bad_row="skip").examples == 12


def test_metrics_are_as_published() -> None:
    metrics = ChoiceMetrics()
    options = ["the Ada", "Bo Smith", "Cleo"]
    for chosen, right in ((0, (0,)), (1, (0, 2)), (2, (2,)), (1, (0,))):
        metrics.add(chosen, right, options, cloze=True)
    metrics.add(0, (1,), ["a", "b"])
    values = {name: score.value for name, score in metrics.result().items()}
    assert values["accuracy"] == 0.4 and values["majority"] == 0.6
    assert values["chance"] == pytest.approx((1 / 3 + 2 / 3 + 1 / 3 + 1 / 3 + 1 / 2) / 5)
    assert values["exact"] == 0.5 and values["f1"] == 0.5
    partly = SelectionMetrics()
    for chosen, right, count in (((0, 1, 2), (0,), 3), ((), (1,), 2), ((2,), (2,), 3), ((), (), 2)):
        partly.add(chosen, right, count)
    values = {name: score.value for name, score in partly.result().items()}
    assert values["f1a"] == pytest.approx(2 * 2 / (4 + 3)) and values["exact"] == 0.5
    assert values["accuracy"] == pytest.approx(7 / 10) and values["majority"] == pytest.approx(7 / 10)


def test_cloze_with_candidates(here: Path) -> None:
    """ReCoRD: the candidates of a passage fill the gap of a query; F1 and exact match as well."""
    rows = []
    for number in range(24):
        one, two = ("Ada", "Bo") if number % 2 else ("Bo", "Ada")
        text = f"{one} sings . {two} goes to Rome ."
        entities = [
            {"start": text.index(name), "end": text.index(name) + len(name) - 1} for name in ("Ada", "Bo", "Rome")
        ]
        answers = [{"start": text.index(one), "end": text.index(one) + len(one) - 1, "text": one}]
        qas = [{"query": "@placeholder sings again", "answers": answers, "idx": 0}]
        rows.append({"source": "x", "passage": {"text": text, "entities": entities}, "qas": qas, "idx": number})
    model = tuned(write_rows(here / "record.jsonl", rows), "choose", here / "out", steps=60)
    scores = {name: score.value for name, score in model.evaluate(here / "record.jsonl").scores.items()}
    assert scores["exact"] == scores["accuracy"] > 0.6 and scores["f1"] >= scores["exact"]


def test_augmentation_leaves_a_gap_open() -> None:
    example = Example(("A B", "@placeholder won _ .", "Ada", "Bob"), (0,), "f line 1")
    spans = ChoiceTask(False).word_spans(example)
    words = [[text[slice(*span)] for span in own] for text, own in zip(example.texts, spans, strict=True)]
    assert words == [["A", "B"], ["won", "."], ["Ada"], ["Bob"]]


def test_a_language_model_chooses_by_probability(here: Path, bpe: Tokenizer) -> None:
    """One task, two ways: the head where there is one, else the probability of each option after its prompt."""
    model = weft.new("gpt2", bpe, size="1x64", settings={"context": 64, "weight_scale": 0.3}, seed=5)
    task: Any = replace(model.opened)
    scorer = ChoiceTask(False)
    rows = [("the cat.", "because", "it is now", "oak"), ("the cow", "", "flint", "fern", "slate")]
    found = scorer.predict(task, framing_for(task), rows)
    first = choose(task, [("the cat because", ["it is now", "oak"])])[0]
    assert found[0].output == pytest.approx(
        [o.logprob for o in sorted(first.options, key=lambda o: o.number)], rel=1e-5
    )
    cloze = scorer.predict(task, framing_for(task), [("a cat", "the @placeholder is", "cow", "oak")])[0]
    by_hand = choose(task, [("a cat\nthe", ["cow is", "oak is"])])[0]
    assert cloze.output == pytest.approx([o.logprob for o in sorted(by_hand.options, key=lambda o: o.number)], rel=1e-5)
    (answer,) = scorer.answers(task, [("the @placeholder is", "", "cow", "oak")])
    assert answer.text in ("cow", "oak") and {option.text for option in answer.options} == {"cow", "oak"}
    model.save(here / "gpt")
    write_rows(here / "meals.jsonl", meals(6))
    questions = read_questions(
        [str(write_rows(here / "long.jsonl", [*meals(70), {**meals(1)[0], "prompt": "x " * 99}]))]
    )
    with pytest.raises(UserError, match=r"long.jsonl line 71: prompt and choice"):
        evaluate_choices(scorer, task, questions)
    scores = weft.load(here / "gpt", task="choose").evaluate(here / "meals.jsonl").scores
    assert {"accuracy", "chance", "majority"} == set(scores)


def test_command_line(learned: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(learned)
    assert run("choose", "out", "the dog eats", "--choice", "some bone", "--choice", "some hay") == 0
    out = capsys.readouterr().out
    header, best = (line.split() for line in out.splitlines()[:2])
    assert header == ["choice", "probability", "score", "chosen"] and best[:2] + best[-1:] == ["some", "bone", "yes"]
    assert run("choose", "out", "--data", "meals.jsonl") == 0
    out = capsys.readouterr().out
    assert "majority" in out and "normalize" not in out, "a head has nothing to normalize"
    assert run("predict", "out", "--data", "meals.jsonl", "--out", "p.csv", "--overwrite") == 0
    assert Path("p.csv").read_text().splitlines()[0] == "prompt,options,answer,prediction,number,probability"
    capsys.readouterr()
    Path("one.jsonl").write_text(json.dumps({"prompt": "P", "options": ["a"], "answer": 0}) + "\n")
    for words, fault in (
        (("choose", "out", "the dog", "--choice", "a"), "one option only, 'a': there is nothing to choose from"),
        (("choose", "out", "P", "--choice", "a", "--choice", "b", "--slide"), "slide is for a language model"),
        (("evaluate", "out", "--data", "one.jsonl"), "one.jsonl line 1: one option only, 'a'"),
        (("finetune", "--task", "choose", "--data", "one.jsonl", "--model", "bert", "--out", "x"), "one option only"),
        (
            ("finetune", "--task", "choose", "--data", "meals.jsonl", "--model", "cnn", "--out", "x"),
            "no head for choose",
        ),
        (("predict", "out", "the dog"), "no options: give --choice to weft choose"),
    ):
        assert run(*words) == 2
        error = capsys.readouterr().err
        assert fault in error and "Traceback" not in error


def test_models_answer_together_and_are_compared(learned: Path) -> None:
    model = weft.load(learned / "out")
    rows = meals(6, seed=4)
    assert [a.number for a in model(rows, others=[model])] == [a.number for a in model(rows)]
    task: Any = model.task_object
    example = Example(("c", "", "a", "b"), (0,), "w")
    one, two = (Prediction(np.array(logits), 1, 1, False) for logits in ([0.0, 1.0], [1.0, 0.0]))
    assert task.compare(one, two, example, task)[0][0] == {"same": (0.0, 1.0)}
    assert task.loss(two, example) is None and task.loss(one, example) == pytest.approx(float(np.log1p(np.e)))
    assert task.with_teacher_answer(example, {"output": np.array([0.0, 2.0])}).target == (1,)
    record = task.to_record(example)
    from weft.text.records import Record

    assert task.read(Record(record, "w"), {}) == example
    with pytest.raises(UserError, match="a context and a list of options are expected"):
        model([("a", 3)])


def test_taught_by_a_teacher(learned: Path, here: Path) -> None:
    student = weft.distill(
        learned / "out",
        data=learned / "meals.jsonl",
        student="1x64",
        training={"steps": 4, "batch": 8},
        out=here / "s",
        log=quiet,
    )
    assert student.task == "choose" and student.evaluate(learned / "meals.jsonl").examples == 48

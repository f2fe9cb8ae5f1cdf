"""Models side by side: known answers give known figures, whatever the task; and what is broken is named."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import weft
from tests.compress.models import BY_TASK, CASES, Case, drawn, knowing, output_of, tokenizer_for, written
from tests.tasks.small import KINDS, kinds, vocabulary, write_rows
from weft.checkpoint.card import Metric
from weft.checkpoint.folder import LoadedModel
from weft.cli.main import run
from weft.comparison.compare import NOT_FINITE, compare, compared, participants_of
from weft.errors import UserError
from weft.tasks.base import Example, Prediction
from weft.tasks.classify import TextTask
from weft.tasks.fill import hidden_of
from weft.tasks.model import Model
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.windows import Framing

QUICK: dict[str, Any] = {"costs": False}
LABELS = ("no", "yes")


@pytest.fixture(scope="module")
def words() -> dict[str, Tokenizer]:
    return {family: tokenizer_for(case) for family, case in {case.family: case for case in CASES}.items()}


@dataclass(frozen=True)
class Scripted(TextTask):
    """Answers that were written down beforehand."""

    script: tuple[str, ...] = ()

    def predict(self, model: LoadedModel, windows: Framing, inputs: Sequence[Any]) -> list[Prediction]:
        answers = [self.script[int(texts[0])] for texts in inputs]
        return [Prediction(np.array([0.0, 2.0 if each == "yes" else -2.0]), 1, 1, False) for each in answers]


def script(party: Any, answers: Sequence[str]) -> None:
    party.own = party.task = Scripted("classify", "label", labels=LABELS, script=tuple(answers))


def scripted(model: Model, gold: Sequence[str], *answers: Sequence[str]) -> Any:
    """What a comparison finds of models that give these answers."""
    parties = participants_of([model] * len(answers), [f"m{number}" for number in range(len(answers))])
    for party, said in zip(parties, answers, strict=True):
        script(party, said)
    examples = [Example((str(number),), right, f"row {number}") for number, right in enumerate(gold)]
    return compared(parties, examples, **QUICK)


@pytest.fixture(scope="module")
def anyone(words: dict[str, Tokenizer]) -> Model:
    return drawn(BY_TASK["classify"], words["bert"], 1)


def test_known_answers_give_known_figures_and_a_paired_interval(anyone: Model) -> None:
    chance = np.random.default_rng(0)
    gold = chance.choice(LABELS, 600)
    flip = {"no": "yes", "yes": "no"}
    first = [flip[each] if chance.random() < 0.10 else each for each in gold]
    second = [flip[each] if chance.random() < 0.04 else each for each in first]  # near the first, right or not
    found = scripted(anyone, gold.tolist(), first, second)
    a, b = np.array(first) == gold, np.array(second) == gold
    one, two = found.models
    assert one.scores["accuracy"].value == pytest.approx(a.mean())
    assert two.difference["accuracy"].value == pytest.approx(b.mean() - a.mean())
    assert two.retained.value == pytest.approx(b.mean() / a.mean())
    assert two.agreement["same"].value == pytest.approx(np.mean(np.array(first) == np.array(second)))
    assert two.costs is None and found.examples == found.labeled == 600 and not found.refused

    # The plain way: draw rows with replacement, for both models the same ones.
    rows = chance.integers(0, 600, (4000, 600))
    shifts, shares = b[rows].mean(1) - a[rows].mean(1), b[rows].mean(1) / a[rows].mean(1)
    for score, drawn_ones in ((two.difference["accuracy"], shifts), (two.retained, shares)):
        low, high = np.percentile(drawn_ones, [2.5, 97.5])
        assert abs(score.low - low) < 0.2 * (high - low) and abs(score.high - high) < 0.2 * (high - low)
    apart = b[rows].mean(1) - a[chance.permuted(rows)].mean(1)  # each model on rows of its own: far less sure
    assert np.ptp(np.percentile(apart, [2.5, 97.5])) > 1.5 * (
        two.difference["accuracy"].high - two.difference["accuracy"].low
    )


def test_where_they_disagree_most_comes_first_and_each_text_once(anyone: Model) -> None:
    gold = ["yes", "no"] * 15
    wrong = list(gold)
    wrong[4], wrong[7] = "no", "yes"
    found = scripted(anyone, gold, gold, wrong).models[1]
    assert [row["text"] for row in found.disagreements] == ["4", "7"]
    assert found.disagreements[0] == {
        "target": "yes",
        "m0": "yes 0.8808",
        "m1": "no 0.8808",
        "where": "row 4",
        "text": "4",
    }


def test_a_drop_beyond_what_is_allowed_is_refused(anyone: Model) -> None:
    gold = ["yes", "no"] * 50
    worse = ["no", *gold[1:3], "yes", *gold[4:]]
    parties = participants_of([anyone] * 2, ["a", "b"])
    for party, said in zip(parties, (gold, worse), strict=True):
        script(party, said)
    examples = [Example((str(number),), right, "") for number, right in enumerate(gold)]
    assert not compared(parties_like(parties), examples, max_drop=2.0, **QUICK).refused
    refused = compared(parties_like(parties), examples, max_drop=1.9, **QUICK).refused
    assert refused == ["b is refused: it loses 2.00 points of accuracy, and 1.9 are allowed"]
    blind = [replace(each, target=None) for each in examples]
    with pytest.raises(UserError, match="the data has no labels.*leave out --max-drop"):
        compared(parties_like(parties), blind, max_drop=1.0, **QUICK)


def parties_like(parties: Sequence[Any]) -> list[Any]:
    """The same models, of which nothing has been counted yet."""
    fresh = participants_of([party.model for party in parties], [party.name for party in parties])
    for party, other in zip(fresh, parties, strict=True):
        party.own, party.task = other.own, other.task
    return fresh


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.task)
def test_every_task_agrees_with_itself_and_not_with_others(
    case: Case, words: dict[str, Tokenizer], tmp_path: Path
) -> None:
    one, two = (drawn(case, words[case.family], seed) for seed in (1, 2))
    data = written(case, tmp_path)
    found = compare([one, one, two], data, **QUICK)
    itself, other = found.models[1:]
    assert found.agreement_metric is not None and itself.agreement[found.agreement_metric].value == pytest.approx(
        100 if found.agreement_metric == "bleu" else 1
    )
    assert (
        other.agreement[found.agreement_metric].value < itself.agreement[found.agreement_metric].value
        and not itself.disagreements
    )
    assert other.disagreements and set(other.disagreements[0]) >= {"model 1", "model 3", "where", "text"}
    if case.right or case.head == "words":
        assert found.metric in itself.scores and itself.difference[found.metric].value == 0 == (
            itself.difference[found.metric].high
        )
        nothing = found.models[0].scores[found.metric].value == 0  # of which no share can be kept
        assert itself.retained is not None and (nothing or itself.retained.value == itself.retained.low == 1)
        evaluated = one.evaluate(data).scores if case.right else {}
        assert {name: found.models[0].scores[name] for name in evaluated} == evaluated
    else:
        assert found.metric is None and not found.labeled
    assert json.loads(json.dumps(found.values()))["models"][2]["name"] == "model 3"
    if case.right:
        blind = compare([one, two], written(case, tmp_path, labeled=False), **QUICK)
        assert blind.metric is None and not blind.models[1].scores
        assert blind.models[1].agreement == other.agreement


@pytest.mark.parametrize(
    ("task", "names", "ends"), [("multilabel", tuple(KINDS), (1e-9, 1 - 1e-9)), ("answer", ("no answer",), (1e6, -1e6))]
)
def test_each_model_answers_by_its_own_thresholds(
    task: str, names: tuple[str, ...], ends: tuple[float, float], words: dict[str, Tokenizer], tmp_path: Path
) -> None:
    model = drawn(BY_TASK[task], words["bert"], 1)
    every, none = (
        Model(replace(model.opened, card=replace(model.card, thresholds=dict.fromkeys(names, end))), task)
        for end in ends
    )
    found = compare([every, none, every], written(BY_TASK[task], tmp_path), **QUICK)
    assert [each.agreement["same"].value for each in found.models[1:]] == [0, 1]
    row = found.models[1].disagreements[0]
    assert row["model 2"].startswith(("(none)", "(no answer)")) and not row["model 1"].startswith(
        ("(none)", "(no answer)")
    )


def turned(model: Model) -> Model:
    """The same model with its labels the other way round."""
    labels = model.card.labels
    assert labels is not None
    other = drawn(BY_TASK["classify"], model.opened.tokenizer, 1)  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in output_of(other).parameters():
            parameter.copy_(parameter.flip(0))
    return Model(replace(other.opened, card=replace(other.card, labels=labels[::-1])), other.task)


def test_labels_are_matched_by_name(anyone: Model, tmp_path: Path) -> None:
    data = write_rows(tmp_path / "rows.jsonl", kinds(40))
    found = compare([anyone, turned(anyone)], data, **QUICK).models[1]
    assert found.agreement["same"].value == 1 and found.difference["mcc"].value == 0 and found.damaged is None
    # What is merely called otherwise is another model.
    renamed = Model(replace(anyone.opened, card=replace(anyone.card, labels=anyone.card.labels[::-1])), anyone.task)  # type: ignore[index]
    assert compare([anyone, renamed], data, **QUICK).models[1].agreement["same"].value < 1


def with_labels(model: Model, *labels: str) -> Model:
    return Model(replace(model.opened, card=replace(model.card, labels=labels)), model.task)


def test_models_that_do_not_belong_together_are_named(
    anyone: Model, words: dict[str, Tokenizer], tmp_path: Path
) -> None:
    data = write_rows(tmp_path / "rows.jsonl", kinds(30))
    tagger = drawn(BY_TASK["tag"], words["bert"], 1)
    with pytest.raises(UserError, match="model 2 is made for tag, model 1 for classify: they cannot be compared"):
        compare([anyone, tagger], data, **QUICK)
    with pytest.raises(
        UserError, match="model 2 has the labels a, b, c, model 1 has animal, plant, stone: no label in common"
    ):
        compare([anyone, with_labels(anyone, "a", "b", "c")], data, **QUICK)
    found = compare([anyone, with_labels(anyone, "animal", "plant", "rock")], data, **QUICK)
    assert found.refused == [
        "model 2 is damaged: its labels are not those of model 1: it lacks stone, it alone has rock"
    ]
    with pytest.raises(UserError, match=r"rows.jsonl: no column 'nowhere', which --column says is label"):
        compare([anyone], data, columns={"label": "nowhere"}, **QUICK)
    (tmp_path / "empty.csv").write_text("text,label\n")
    with pytest.raises(UserError, match=r"empty.csv: there are no rows"):
        compare([anyone], tmp_path / "empty.csv", **QUICK)
    with pytest.raises(UserError, match="models for rank are not compared by rows"):
        compare([Model(tagger.opened, "rank")], data, **QUICK)


@pytest.mark.parametrize("task", ["classify", "regress", "tag", "answer", "translate", "embed", "complete", "fill"])
def test_answers_that_are_no_numbers_are_damage(task: str, words: dict[str, Tokenizer], tmp_path: Path) -> None:
    case = BY_TASK[task]
    sound, broken = (drawn(case, words[case.family], 1) for _ in range(2))
    with torch.no_grad():
        for parameter in broken.network.parameters():
            parameter.fill_(torch.nan)
    found = compare([sound, broken], written(case, tmp_path), seconds=0.05, texts=4, memory=False)
    assert f"model 2 is damaged: {NOT_FINITE}" in found.refused
    assert not found.models[1].scores and found.models[1].costs is None and found.models[0].costs is not None
    assert any(row[0] == "model 2" and "damaged" in row for row in found.tables()[0][2])


@pytest.fixture(scope="module")
def learned(words: dict[str, Tokenizer], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model that knows its rows by heart, and the rows."""
    folder = tmp_path_factory.mktemp("learned")
    knowing(BY_TASK["classify"], words["bert"], kinds(60)).save(folder / "good")
    return folder / "good", write_rows(folder / "rows.jsonl", kinds(60))


def test_a_shuffled_head_and_one_answer_for_all_are_damage(
    learned: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, data = learned
    broken = weft.load(good)
    output = output_of(broken)
    with torch.no_grad():
        output.weight.copy_(output.weight.roll(1, 0))
        output.bias.copy_(output.bias.roll(1, 0))
    broken.save(tmp_path / "shuffled")
    with torch.no_grad():
        output.bias[1] += 1000
    broken.save(tmp_path / "constant")
    rest = ["--data", str(data), "--no-costs", "--out", str(tmp_path / "found.json")]
    assert run(["compare", str(good), str(good), *rest]) == 0
    capsys.readouterr()
    assert run(["compare", str(good), str(tmp_path / "shuffled"), *rest]) == 2
    said = capsys.readouterr()
    assert said.err == "weft compare: shuffled is damaged: its mcc of -0.500 is no better than chance, 0.000\n"
    assert "accuracy" in said.out and "Where shuffled and good disagree most" in said.out
    told = json.loads((tmp_path / "found.json").read_text())
    assert told["models"][1]["damaged"] and told["models"][1]["retained"]["value"] == 0
    assert run(["compare", "--json", str(good), str(good), "--data", str(data), "--no-costs"]) == 0  # a flag
    assert not json.loads(capsys.readouterr().out)["models"][1]["damaged"]
    assert run(["compare", str(good), str(tmp_path / "constant"), *rest]) == 2
    assert "constant is damaged: it gives all 60 texts the same answer" in capsys.readouterr().err
    # With nobody beside it, too: it says the wrong thing more often than chance would.
    assert run(["compare", str(tmp_path / "shuffled"), *rest]) == 2
    assert "shuffled is damaged: its mcc of -0.500 is worse than chance, 0.000" in capsys.readouterr().err
    with pytest.raises(UserError, match="the model itself is damaged: its mcc of -0.500 .*; nothing was written"):
        weft.export(tmp_path / "shuffled", "onnx", data=data, out=tmp_path / "onnx")
    with pytest.raises(UserError, match="the model itself is damaged: its mcc of -0.500"):
        weft.quantize(tmp_path / "shuffled", data, out=tmp_path / "onnx", kinds=["onnx-fp32"], seconds=0.1, texts=4)
    assert not (tmp_path / "onnx").exists()


def test_a_model_that_no_longer_reaches_what_its_card_says_is_damaged(learned: tuple[Path, Path]) -> None:
    good, data = learned
    model = weft.load(good)
    found = weft.compare([model], data, costs=False)
    said = Metric(data=found.hash, name="accuracy", value=1.0, low=0.94, high=1.0)
    model.opened = replace(model.opened, card=replace(model.card, metrics=(said,)))
    assert weft.compare([model], data, costs=False).refused == []
    with torch.no_grad():  # a third of what it knows is gone: still far better than chance
        output_of(model).bias[0] -= 1000
    refused = weft.compare([model], data, costs=False).refused
    assert refused == ["model 1 is damaged: its accuracy of 0.667 is not the 1.000 that its card has for the same rows"]
    model.opened = replace(model.opened, card=replace(model.card, metrics=(replace(said, data="other rows"),)))
    assert weft.compare([model], data, costs=False).refused == []  # of other rows it says nothing


def test_few_rows_prove_nothing(anyone: Model) -> None:
    gold = ["yes", "no"] * 5
    found = scripted(anyone, gold, gold, ["no", "yes", "no", *gold[3:]])
    mcc = found.models[1].scores["mcc"]
    assert mcc.low <= 0 < mcc.value and found.models[0].scores["mcc"].low > 0 and not found.refused
    assert scripted(anyone, gold * 9, gold * 9, ["no", "yes"] * 45).refused


class Links(HTMLParser):
    """What a page opens, and where it points."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.points: list[str] = []

    def handle_starttag(self, tag: str, given: list[tuple[str, str | None]]) -> None:
        self.open += [tag] * (tag not in ("meta", "link", "br", "img"))
        self.points += [value or "" for name, value in given if name in ("href", "src")]

    def handle_startendtag(self, tag: str, given: list[tuple[str, str | None]]) -> None:
        self.points += [value or "" for name, value in given if name in ("href", "src")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_stands_alone(learned: tuple[Path, Path], anyone: Model, tmp_path: Path) -> None:
    good, data = learned
    found = compare([good, anyone], data, seconds=0.05, texts=8, memory=False)
    found.write(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    page = Links()
    page.feed(text)
    assert not page.open and not page.points
    script = text.partition('<script type="module">')[2].partition("</script>")[0]  # the only one, by its hash
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert text.count("<script") == 1 and f"script-src 'sha256-{digest}'" in text
    for words_there in ("Quality by latency", "Size on disk", "Texts in bulk", "Where model 2 and good disagree most"):
        assert words_there in text
    costs = found.models[0].costs
    assert costs is not None and costs.bytes == (good / "model.safetensors").stat().st_size
    assert costs.parameters == sum(p.numel() for p in weft.load(good).network.parameters())


def test_vectors_of_other_widths_are_compared_by_what_they_are_near_to(
    words: dict[str, Tokenizer], tmp_path: Path
) -> None:
    case = BY_TASK["embed"]
    wide, narrow = drawn(case, words["bert"], 1, 128), drawn(case, words["bert"], 1)
    found = compare([wide, wide, narrow], written(case, tmp_path), **QUICK).models
    assert found[1].agreement["similarities"].value == pytest.approx(1) and "cosine" in found[1].agreement
    assert set(found[2].agreement) == {"similarities"} and found[2].agreement["similarities"].value < 0.999


def test_language_models_of_other_vocabularies_are_compared_by_bytes(
    words: dict[str, Tokenizer], tmp_path: Path
) -> None:
    case = BY_TASK["complete"]
    one, other = drawn(case, words["gpt2"], 1), drawn(case, vocabulary("character"), 1)
    data = written(case, tmp_path)
    found = compare([one, other], data, **QUICK)
    assert not found.models[1].agreement and found.models[1].retained is not None
    bits = [each.scores["bits_per_byte"].value for each in found.models]
    assert found.models[1].retained.value == pytest.approx(bits[0] / bits[1])
    from weft.tasks.perplexity import perplexity

    texts = [json.loads(line)["text"] for line in data.read_text().splitlines()]
    assert bits[0] == pytest.approx(perplexity(one.opened, texts).bits_per_byte.value)


def test_what_is_hidden_hangs_on_the_text_alone_and_no_window_sees_it(
    words: dict[str, Tokenizer], tmp_path: Path
) -> None:
    case = BY_TASK["fill"]
    model, text = drawn(case, words["bert"], 1), " ".join(["the cat is there"] * 20)  # longer than a window
    gaps = hidden_of(text, 80)
    assert 1 <= len(gaps) < 40 and gaps.tolist() == hidden_of(text, 80).tolist() and len(hidden_of("a", 1)) == 1
    seen = list[torch.Tensor]()
    model.network.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    data = write_rows(tmp_path / "long.jsonl", [{"text": text}])
    found = compare([model], data, **QUICK)
    tokenizer, (ids,) = words["bert"], words["bert"].ids([text], specials=False)
    shown = [[t for t in row if t not in tokenizer.ids([""])[0]] for row in torch.cat(seen)[None].tolist()][0]
    mask = tokenizer.id_of("mask")
    assert mask in shown and found.models[0].scores["filled"].value <= 1
    covered = [n for n in range(len(ids)) if n in set(gaps.tolist())]
    assert shown.count(mask) >= len(covered)  # windows overlap: what is hidden from one is hidden from all
    assert sum(token == mask for token in shown[:20]) == sum(gap < 20 for gap in gaps)


def test_labels_known_of_some_rows_alone(anyone: Model, tmp_path: Path) -> None:
    rows = kinds(40)
    half = [row if number % 2 else {"text": row["text"], "label": None} for number, row in enumerate(rows)]
    found = compare([anyone, anyone], write_rows(tmp_path / "half.jsonl", half), **QUICK)
    right = compare([anyone], write_rows(tmp_path / "right.jsonl", rows[1::2]), **QUICK)
    assert (found.examples, found.labeled) == (40, 20)
    assert found.models[0].scores["accuracy"].value == right.models[0].scores["accuracy"].value
    assert len(KINDS) == 3

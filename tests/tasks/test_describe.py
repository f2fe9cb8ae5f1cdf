"""Texts from vectors as a task: rows of every kind, learned by heart, judged by all their texts, gone on with."""

from __future__ import annotations

import json
import random
import runpy
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

import weft
from tests.tasks.small import quiet, write_rows
from tests.tasks.written import PLAN, learned
from tests.training.test_resume import contents, same
from weft.data.columns import numbers_of
from weft.data.examples import Sequences, TextSide, VectorSide, batch_of
from weft.errors import UserError
from weft.tasks.complete import describe
from weft.training.step import Stepper

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
WORDS = {"red": (1.0, 0.0), "blue": (-1.0, 0.0), "hut": (0.0, 30.0), "barn": (0.0, -30.0)}
SIZES: dict[str, Any] = {"family": "vec2seq", "width": 32, "dropout": 0.0, "context": 16}
PLANS = {"steps": 60, "batch": 12, "learning_rate": 2e-2, "evaluate_every": 60, "warmup": 0.1, "ema": 0.8}


def rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """A thing of a color; its vector says both, and has one number that never changes."""
    chance, found = random.Random(seed), []
    for number in range(count):
        color, thing = ("red", "blue")[number % 2], ("hut", "barn")[number // 2 % 2]
        sums = [a + b + chance.gauss(0, 0.1) for a, b in zip(WORDS[color], WORDS[thing], strict=True)]
        found.append({"vector": [*sums, 5.0], "text": f"a {color} {thing}" + " there" * (thing == "hut")})
    return found


def vectors_in(some: list[dict[str, Any]]) -> list[list[float]]:
    return [row["vector"] for row in some]


def taught(folder: Path, out: Path | None = None, some: list[dict[str, Any]] | None = None, **more: Any) -> Any:
    data = write_rows(folder / "rows.jsonl", some or rows(48))
    settings: dict[str, Any] = {"tokenizer": {"kind": "word"}, "training": PLANS, "model": SIZES, "task": "describe"}
    files = {"files": [str(data)], **more.pop("data", {})}
    return weft.finetune(files, out=out, **{"log": quiet, **settings, **more})


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    taught(folder, folder / "run")
    return folder / "run"


# ------------------------------------------------------------------------------------------------------------ learning


def test_vectors_are_described(made: Path, here: Path) -> None:
    model: Any = weft.load(made)
    assert model.task == "describe" and model.config.features == 3
    scores = {metric.name: metric.value for metric in model.card.metrics}
    assert scores["exact"] == 1 and scores["chrf"] == 100 and scores["bleu"] == 100
    new = rows(12, seed=5)
    for given in (vectors_in(new), numpy.array(vectors_in(new))):
        for options in ({}, {"beam_size": 1}, {"beam_size": 4, "n": 2}):
            answers = model(given, **options)
            assert [answer.text for answer in answers] == [row["text"] for row in new]
            assert all(answer.finish_reason == "end" for answer in answers)
    alone = model(new[0]["vector"], beam_size=4, n=2)
    assert alone.text == new[0]["text"] and len(alone.best) == 2 and alone.best[0].score > alone.best[1].score
    assert alone.score == pytest.approx(model(vectors_in(new), beam_size=4, n=2)[0].score, abs=1e-5)
    found = model.evaluate(write_rows(here / "test.jsonl", new))
    assert found.scores["exact"].value == 1 and found.examples == 12 and not found.worst and not found.by_length


def test_it_knows_where_the_vectors_lie(made: Path) -> None:
    network: Any = weft.load(made).network
    assert abs(network.center[2] - 5) < 1e-5 and network.spread[2] == 1 and 25 < network.spread[1] < 35
    assert "spread" in dict(network.named_buffers()), "kept in the folder, not learned"


def test_texts_are_drawn_and_streamed(made: Path) -> None:
    model: Any = weft.load(made)
    vector = rows(1)[0]["vector"]
    pieces = model.stream(vector)
    assert "".join(pieces) == "a red hut there" == pieces.answer.text
    some = {model(vector, temperature=3.0, seed=seed, max_tokens=6).text for seed in range(8)}
    assert len(some) > 3 and model(vector, temperature=3.0, seed=1).text == model(vector, temperature=3.0, seed=1).text
    assert weft.load(made, task="complete")(vector).text == "a red hut there"
    together = model([vector], others=[model], beam_size=2)
    assert together[0].text == "a red hut there"


def test_going_on_ends_as_the_whole_run(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = {
        "steps": 9,
        "batch": 6,
        "learning_rate": 1e-3,
        "evaluate_every": 4,
        "save_every": 2,
        "log_every": 3,
        "keep": 1,
    }
    given: dict[str, Any] = {"training": {**plan, "ema": 0.9, "threads": 1, "pass_tokens": 20}, "some": rows(20)}
    given["model"] = {**SIZES, "dropout": 0.1}
    taught(here, here / "whole", **given)
    real, calls = Stepper.update, []

    def killed(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(Stepper, "update", killed)
    with pytest.raises(KeyboardInterrupt):
        taught(here, here / "parts", **given)
    monkeypatch.undo()
    weft.resume(here / "parts", log=quiet)
    whole, parts = contents(here / "whole"), contents(here / "parts")
    assert whole["state"]["finished"]
    for name in whole:
        assert same(whole[name], parts[name]), name


def test_a_base_keeps_what_it_knows_of_vectors(made: Path, here: Path) -> None:
    far = [{**row, "vector": [number * 10 for number in row["vector"]]} for row in rows(12)]
    data = write_rows(here / "far.jsonl", far)
    short: dict[str, Any] = {"task": {"name": "describe", "metric": "loss"}, "training": {"steps": 1}, "log": quiet}
    again: Any = weft.finetune(data, base=made, **short)
    assert torch.equal(again.network.center, weft.load(made).network.center)  # type: ignore[arg-type]
    wide = write_rows(here / "wide.jsonl", [{**row, "vector": [*row["vector"], 1.0]} for row in far])
    with pytest.raises(UserError, match="^the rows have vectors of 4 numbers, the model takes 3$"):
        weft.finetune(wide, base=made, **short)


# ------------------------------------------------------------------------------------------------------------- rows


def test_texts_of_one_vector_stay_together_and_are_all_right(made: Path, here: Path) -> None:
    """Several texts for each of 12 vectors: none of them is on both sides, and any of them is a right answer."""
    some = [
        {"vector": row["vector"], "text": text} for row in rows(12) for text in ("no such thing", row["text"], "or so")
    ]
    said: list[str] = []
    run = here / "run"
    taught(here, run, some, data={"holdout": 0.2}, training={**PLANS, "steps": 1}, log=said.append)
    held = {int(place.split()[-1]) for place in json.loads((run / "run/split.json").read_text())["held_out"]}
    assert len(held) in (6, 9) and all({3 * n + 1, 3 * n + 2, 3 * n + 3} <= held for n in {(h - 1) // 3 for h in held})
    assert any("2 of which are generated" in line or "3 of which are generated" in line for line in said)
    found = weft.load(made).evaluate(write_rows(here / "several.jsonl", some))
    assert found.examples == 12 and found.scores["exact"].value == 1 and "nrefs:3" in str(found.signature)
    wrong = weft.load(made).evaluate(write_rows(here / "wrong.jsonl", [{**some[0], "text": "a red hat there"}]))
    assert wrong.scores["exact"].value == 0 and wrong.worst[0]["prediction"] == "a red hut there"


def test_vectors_in_every_format(made: Path, here: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    new = rows(8, seed=2)
    (here / "a.csv").write_text(
        "features,caption\n" + "".join(f'"{json.dumps(row["vector"])}",{row["text"]}\n' for row in new)
    )
    (here / "b.tsv").write_text(
        "vector\ttext\n" + "".join(f"{' '.join(map(str, row['vector']))}\t{row['text']}\n" for row in new)
    )
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(new), here / "c.parquet")
    model = weft.load(made)
    for name in ("a.csv", "b.tsv", "c.parquet"):
        assert model.evaluate(here / name).scores["exact"].value == 1, name
    columns = {"vector": "text", "text": "vector"}
    swapped = write_rows(here / "d.jsonl", [{"vector": row["text"], "text": row["vector"]} for row in new])
    assert model.evaluate(swapped, columns=columns).scores["exact"].value == 1


BAD: list[tuple[Any, str]] = [
    ({"vector": [1.0, 2.0], "text": "a"}, "a vector of 2 numbers, where 3 are expected"),
    ({"vector": [1.0, "x", 2.0], "text": "a"}, "column 'vector': 'x', number 2 of 3, is no number"),
    ({"vector": [1.0, None, 2.0], "text": "a"}, "column 'vector': 'None', number 2 of 3, is no number"),
    ({"vector": [1.0, 2.0, 1e39], "text": "a"}, "column 'vector': '1e.39', number 3 of 3, is no number"),
    ({"vector": [True, 2.0, 3.0], "text": "a"}, "column 'vector': 'True', number 1 of 3, is no number"),
    ({"vector": [], "text": "a"}, "column 'vector': there are no numbers"),
    ({"vector": 5, "text": "a"}, "column 'vector': '5' is no list of numbers"),
    ({"vector": [1.0, 2.0, 3.0]}, "no column 'text'; it has vector"),
]


@pytest.mark.parametrize("bad, match", BAD)
def test_bad_rows_are_named_or_skipped(made: Path, here: Path, bad: Any, match: str) -> None:
    some = [*rows(8), bad, *rows(4)]
    with pytest.raises(UserError, match=rf"rows.jsonl line 9: {match}"):
        taught(here, some=some)
    data = write_rows(here / "rows.jsonl", some)
    with pytest.raises(UserError, match=rf"rows.jsonl line 9: {match}"):
        weft.load(made).evaluate(data)
    assert weft.load(made).evaluate(data, on_bad_row="skip").skipped == 1
    if bad is BAD[0][0]:
        said: list[str] = []
        more = {"data": {"on_bad_row": "skip"}, "training": {"steps": 1}, "log": said.append}
        taught(here, here / "run", some, **more)
        assert any("skipped 1 bad row; the first: " in line and match in line for line in said)


def test_what_does_not_fit_is_refused_before_anything_is_read(made: Path, here: Path) -> None:
    for more, match in (
        ({"model": {"family": "seq2seq"}}, r"describe needs a model that writes from vectors \(vec2seq\), not seq2seq"),
        ({"task": "translate"}, "translate needs a model that reads one text and writes another .*, not vec2seq"),
        ({"task": "classify"}, "vec2seq has no head for classify; it learns describe"),
        (
            {"task": {"name": "describe", "prefix": "x"}},
            "prefix does not apply to describe",
        ),
        ({"tokenizer": {"separate": True}}, "one vocabulary|no source and target"),
        ({"model": {**SIZES, "features": 7}}, "the rows have vectors of 3 numbers, the model takes 7"),
    ):
        with pytest.raises(UserError, match=match):
            taught(here, **more)
    model: Any = weft.load(made)
    for given, match in (
        ([1.0, 2.0], "vector 1 of 1: a vector of 2 numbers, where 3 are expected"),
        ([[1.0, 2.0, 3.0], [1.0, "x", 2.0]], "vector 2 of 2: 'x', number 2 of 3, is no number"),
        ("some words", "vector 1 of 1: 'some', number 1 of 2, is no number"),
        ("[1, 2", "is no list of numbers"),
    ):
        with pytest.raises(UserError, match=match):
            model(given)
    with pytest.raises(UserError, match="translate needs a model that reads one text and writes another, not vec2seq"):
        weft.load(made, task="translate")
    with pytest.raises(UserError, match="only models that generate from a text have a source"):
        model.evaluate(source="a.txt", target="b.txt")
    pairs = learned(here, training={**PLAN, "steps": 1})
    with pytest.raises(UserError, match="this transformer model does not write from vectors"):
        describe(pairs.opened, [[1.0]])
    pairs.save(here / "pairs")
    with pytest.raises(UserError, match="describe needs a model that writes from vectors, not transformer"):
        weft.load(here / "pairs", task="describe")


def test_numbers_as_people_write_them() -> None:
    for text in ("[1, -2.5, 3e2]", "1 -2.5 3e2", " 1,-2.5, 300 ", "1;-2.5;300", "1\t-2.5\t300"):
        assert numbers_of(text, "x") == [1.0, -2.5, 300.0]
    for given in ((1, -2.5, 300.0), numpy.array([1, -2.5, 300]), torch.tensor([1, -2.5, 300])):
        assert numbers_of(given, "x") == [1.0, -2.5, 300.0]
    with pytest.raises(UserError, match="x: a row, not a vector; rows of a file are read by --data"):
        numbers_of('{"vector": [1.0]}', "x")


# ----------------------------------------------------------------------------------------------------------- batches


def test_batches_of_few_shapes_say_the_same() -> None:
    """What a captured pass is given: rows more, each with a vector, and nothing else changed."""
    texts = [[4, 5, 1], [6, 1], [7, 8, 9, 1]]
    plain = Sequences(VectorSide(numpy.arange(9, dtype=numpy.float32).reshape(3, 3)), TextSide.of(texts), 2, 32)
    numbers = numpy.array([2, 0])
    one, two = (batch_of(each.draw(numbers * 0, numbers)) for each in (plain, plain.for_training(1, 0, True)))
    assert one.source is not None and two.source is not None and plain.count == 3 and plain.mean == 4
    assert one.source.tokens.tolist() == [[6, 7, 8], [0, 1, 2]] and one.tokens.tolist() == [2, 7, 8, 9, 2, 4, 5]
    assert one.source.rows.longest == two.source.rows.longest == 1
    assert len(two.source.tokens) == two.rows.count == two.source.rows.count and two.rows.count % 8 == 0
    assert two.source.tokens[:2].equal(one.source.tokens) and two.source.tokens.dtype == torch.float32
    assert two.tokens[: len(one.tokens)].equal(one.tokens) and len(two.tokens) % 64 == 0
    assert two.pinned is not None and one.to("cpu").source is not None


@pytest.mark.slow
def test_captions_of_unseen_pictures(here: Path) -> None:
    """The example of the documentation: 99 of 100 captions of pictures that were never seen so are right."""
    example = runpy.run_path(str(EXAMPLES / "captions.py"))
    data = write_rows(here / "captions.jsonl", example["rows"](6000))
    model = weft.finetune(data, recipe="captions", out=here / "run", log=quiet)
    test = write_rows(here / "unseen.jsonl", example["rows"](1000, unseen=True, seed=1))
    assert model.evaluate(test).scores["exact"].value >= 0.99

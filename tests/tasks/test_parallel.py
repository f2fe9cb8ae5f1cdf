"""Pairs of texts as people have them: which columns, two files line for line, and what is left out or looks wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import weft
from tests.tasks.small import quiet
from tests.tasks.written import SIZES, worded, write_sides, write_table
from weft.data.columns import paired_columns
from weft.data.examples import Sequences, TextSide, batch_of, few
from weft.data.masking import NOTHING
from weft.data.tables import Table
from weft.errors import UserError
from weft.objectives.losses import Writing
from weft.tasks.base import Example
from weft.tasks.seq2seq import SequenceTask, profile_of, swapped
from weft.text.rows import Skipped

FEW: dict[str, Any] = {"steps": 1, "batch": 4}


def trained(data: Any, log: Any = quiet, **more: Any) -> weft.Model:
    given = {
        "task": {"name": "translate", "metric": "loss"},
        "model": SIZES,
        "tokenizer": {"kind": "word"},
        "training": FEW,
    }
    return weft.finetune(data, log=log, **{**given, **more})


# ------------------------------------------------------------------------------------------------------------ columns


@pytest.mark.parametrize(
    ("there", "found"),
    [
        (["id", "target", "source"], ("source", "target")),
        (["Src", "Tgt"], ("Src", "Tgt")),
        (["en", "de"], ("en", "de")),
        (["id", "en_GB", "de-DE"], ("en_GB", "de-DE")),  # numbers of rows, not Indonesian
        (["line", "en_GB", "de-DE"], ("en_GB", "de-DE")),
        (["German", "English", "page"], ("German", "English")),
        (["title", "article", "summary"], ("article", "summary")),
        (["input", "output"], ("input", "output")),
        (["en", "de", "fr"], None),
        (["a text", "another"], None),
        (["question", "answer"], None),
    ],
)
def test_the_names_that_people_give(there: list[str], found: tuple[str, str] | None) -> None:
    assert paired_columns(there) == found


def test_a_table_without_a_header(here: Path) -> None:
    data = write_table(here / "t.tsv", worded(8), header="")
    model = trained({"files": [str(data)], "names": ["target", "source"]})
    assert model.tokenizer is not None and model.card.profiles["source"] == profile_of(pair[1] for pair in worded(8))
    with pytest.raises(UserError, match="no column 'source'; it has text, other; name it with --column source="):
        trained(write_table(here / "u.tsv", worded(8), header="text\tother"))


# ------------------------------------------------------------------------------------------------- line for line


def test_two_files_are_a_table(here: Path) -> None:
    pairs = worded(9)
    source, target = write_sides(here, pairs)
    found = list(Table.parallel((str(source),), (str(target),)).records())
    assert [(row.values["source"], row.values["target"]) for row in found] == pairs
    assert found[3].where == f"{source} line 4"


@pytest.mark.parametrize(
    ("source", "target", "line", "long"), [(5, 8, 6, "t.de"), (8, 5, 6, "t.en"), (0, 1, 1, "t.de")]
)
def test_files_of_different_length(source: int, target: int, line: int, long: str, here: Path) -> None:
    one, two = write_sides(here, worded(8))
    one.write_text("a b\n" * source)
    two.write_text("a b\n" * target)
    match = rf"t.en has {source} lines? and .*t.de {target}: line {line} of {long} has no other in t\...$"
    with pytest.raises(UserError, match=match):
        list(Table.parallel((str(one),), (str(two),)).records())
    with pytest.raises(UserError, match="--source has nothing beside it: give --target FILE too"):
        Table.parallel((str(one),), ())


def test_empty_lines_are_left_out_and_counted(here: Path) -> None:
    pairs = worded(10)
    pairs[2], pairs[5], pairs[7] = ("", "leer"), ("empty", " "), ("", "")
    source, target = write_sides(here, pairs)
    skipped = Skipped()
    found = list(Table.parallel((str(source),), (str(target),)).records(skipped))
    assert len(found) == 7 and skipped.count == 3
    assert skipped.first == [f"{source} line 3 is empty", f"{target} line 6 is empty", f"{source} line 8 is empty"]
    data = write_table(here / "t.tsv", pairs)
    lines: list[str] = []
    trained(data, lines.append)
    assert any(f"left out 3 empty rows; the first: {data} line 4" in line for line in lines)


def test_what_the_recipe_says_of_two_files(here: Path) -> None:
    source, target = write_sides(here, worded(12))
    dev = write_sides(here, worded(4, seed=5), "dev")
    sides = {"source": source.name, "target": target.name, "dev_source": dev[0].name, "dev_target": dev[1].name}
    model = trained(sides)
    assert model.task == "translate" and [metric.name for metric in model.card.metrics] == ["loss"]
    with pytest.raises(UserError, match="t.en: is both training and held-out data"):
        trained({**sides, "dev_source": source.name})
    with pytest.raises(UserError, match="give a table or two parallel files, not both: .*x.tsv and .*t.en"):
        trained({**sides, "files": [str(write_table(here / "x.tsv", worded(4)))]})
    with pytest.raises(UserError, match="classify does not generate a text from another"):
        trained(sides, task="classify", model={"family": "bert", "size": "1x64"})


# ------------------------------------------------------------------------------------------------------- left out


def test_pairs_that_can_hardly_belong_together() -> None:
    rows = [Example((one,), two, f"line {n}") for n, (one, two) in enumerate(worded(5))]
    rows += [Example(("a b",), "c " * 40, "long"), Example(("same",), " same", "copy"), Example(("x",), "y" * 30, "ok")]
    told: list[str] = []
    kept = SequenceTask("translate", ratio=9, copies=False).select(rows, told.append)
    assert [row.where for row in kept] == ["line 0", "line 1", "line 2", "line 3", "line 4", "ok"]
    assert told == [
        "left out 1 pair with one side more than 9 times as long as the other (data.ratio); the first: long",
        "left out 1 pair with the same text on both sides (data.copies); the first: copy",
    ]
    assert SequenceTask("translate").select(rows, told.append) == rows and len(told) == 2


def test_a_pair_of_ten_thousand_words(here: Path) -> None:
    pairs = [*worded(8), ("one two " * 5000, "zwei eins " * 5000)]
    lines: list[str] = []
    model = trained(write_table(here / "t.tsv", pairs), lines.append, dev=write_table(here / "d.tsv", pairs))
    said = "1 pair longer than the model's context of 48 tokens: left out (the longest: 10,000 words, "
    assert any("data: 8 training rows" in line for line in lines), "the one that is left out is not counted"
    assert sum(said in line for line in lines) == 2 and any(f"of the held-out rows: {said}" in line for line in lines)
    assert model.card.window is not None and model.card.window.length == 7, "the longest that it has read"
    with pytest.raises(UserError, match="all 4 pairs are longer than the model's context of 48 tokens"):
        trained(write_table(here / "u.tsv", pairs[-1:] * 5))
    assert (here / "t.tsv").exists()


# -------------------------------------------------------------------------------------------------------- swapped


def test_sides_that_are_swapped() -> None:
    pairs = worded(30)
    english, german = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    profiles = {"source": profile_of(english), "target": profile_of(german)}
    assert all(len(grams) == 60 for grams in profiles.values())
    assert swapped(german, english, profiles) and not swapped(english, german, profiles)
    assert not swapped(german, german, profiles), "one side alone is not swapped"
    assert not swapped(["ein"], [], profiles), "too little to tell"
    assert not swapped(german, english, {"source": profiles["source"], "target": profiles["source"]})
    assert not swapped(german, english, {})


def test_swapped_rows_to_judge_by_are_noted(here: Path) -> None:
    data = write_table(here / "t.tsv", worded(30))
    lines: list[str] = []
    trained(data, lines.append, dev=write_table(here / "d.tsv", worded(30), header="target\tsource"))
    assert (
        "weft: note: d.tsv: source and target look as if they were swapped, by their letters; is it the right way "
        "round?" in lines
    )
    lines.clear()
    base = trained(data, lines.append, dev=write_table(here / "e.tsv", worded(30, seed=2)))
    assert not any("swapped" in line for line in lines)
    base.save(here / "base")
    turned = write_table(here / "f.tsv", worded(30), header="target\tsource")
    trained(turned, lines.append, model={"base": str(here / "base")}, tokenizer={})
    assert sum("the rows, beside those of the base: source and target look" in line for line in lines) == 1


# -------------------------------------------------------------------------------------------------------- batches


def made_table(count: int = 40) -> Sequences:
    chance = np.random.default_rng(0)
    sides = [[chance.integers(3, 40, chance.integers(1, 30)).tolist() for _ in range(count)] for _ in range(2)]
    return Sequences(TextSide.of(sides[0]), TextSide.of(sides[1]), begin=2)


def drawn(table: Sequences, numbers: list[int]) -> Any:
    return batch_of(table.draw(np.zeros(len(numbers), dtype=np.int64), np.array(numbers)))


def test_what_is_written_is_shifted_by_one() -> None:
    table = Sequences(TextSide.of([[5, 6, 1], [7, 1]]), TextSide.of([[8, 1], [9, 10, 1]]), begin=2)
    batch = drawn(table, [1, 0])
    assert batch.tokens.tolist() == [2, 9, 10, 2, 8] and batch.targets["words"].tolist() == [9, 10, 1, 8, 1]
    assert batch.source.tokens.tolist() == [7, 1, 5, 6, 1] and batch.source.rows.starts.tolist() == [0, 2, 5]
    assert batch.rows.starts.tolist() == [0, 3, 5] and (batch.rows.longest, batch.source.rows.longest) == (3, 3)
    assert table.lengths(np.array([0, 1])).tolist() == [5, 5] and table.mean == 5


def test_filling_up_changes_nothing_and_makes_few_shapes() -> None:
    table = made_table()
    fixed = replace(table, fixed=True)
    torch.manual_seed(0)
    network: Any = weft.new("transformer", size="1x64", settings={"vocabulary": 40, "begin": 2, "context": 64}).network
    network.double()
    shapes = set()
    for seed in range(12):
        numbers = np.random.default_rng(seed).permutation(40)[:24].tolist()
        plain, filled = drawn(table, numbers), drawn(fixed, numbers)
        assert filled.rows.count == filled.source.rows.count and filled.rows.count % 8 == 0
        for rows in (filled.rows, filled.source.rows):
            assert int(rows.lengths().min()) >= 1 and int(rows.lengths().max()) <= rows.longest
        assert (filled.targets["words"][len(plain.tokens) :] == NOTHING).all()
        shapes.add((len(filled.tokens), len(filled.source.tokens), filled.rows.longest, filled.source.rows.longest))
        one, two = (Writing().sums(network, batch)["words"].item() for batch in (plain, filled))
        assert Writing().counts(plain) == Writing().counts(filled) and one == pytest.approx(two, rel=1e-12)
    assert len(shapes) <= 6
    bound = drawn(replace(fixed, context=29), list(range(40)))
    assert bound.rows.longest == 29 == bound.source.rows.longest, "no longer than the model can read"
    assert [few(n) for n in (1, 8, 9, 12, 13, 17, 25, 33, 49)] == [8, 8, 12, 12, 16, 24, 32, 48, 64]


def test_a_batch_costs_what_its_pairs_cost() -> None:
    table = made_table(9)
    network: Any = weft.new("transformer", size="1x64", settings={"vocabulary": 40, "begin": 2, "context": 64}).network
    network.double()
    whole = Writing().sums(network, drawn(table, list(range(9))))["words"].item()
    single = [Writing().sums(network, drawn(table, [number]))["words"].item() for number in range(9)]
    assert whole == pytest.approx(sum(single), rel=1e-12)
    smoothed = Writing(0.1).sums(network.train(), drawn(table, [0]))["words"].item()
    network.eval()
    assert smoothed != single[0] and Writing(0.1).sums(network, drawn(table, [0]))["words"].item() == single[0]

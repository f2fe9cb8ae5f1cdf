"""Pages of runs and evaluations: what they show, what they keep apart, and that a telephone cuts nothing."""

from __future__ import annotations

import html
import json
import math
import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import weft
from tests.tasks.small import kinds, model_for, prices, spanned, write_rows
from weft.metrics.bootstrap import Score
from weft.picture import entries, line_chart, page, table
from weft.runs.pages import ladder_page, write_curves
from weft.tasks.evaluate import Evaluation
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.training.log import draw_gradients

SVG = "{http://www.w3.org/2000/svg}"
LONG = " so it went on and on" * 40 + " <script>alert(1)</script> & the end"
LADDER = Path(__file__).parents[2] / "benchmarks" / "results" / "ladder_shakespeare.json"


def words_of(path: Path) -> str:
    """All text of a page; that it is well-formed comes with it."""
    return "".join(ElementTree.fromstring(path.read_text()).itertext())


def captions(path: Path) -> list[str]:
    return [node.text or "" for node in ElementTree.fromstring(path.read_text()).iter("figcaption")]


@pytest.fixture(scope="module")
def classified(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run, whose held-out rows are long."""
    place = tmp_path_factory.mktemp("reports")
    rows = kinds(40)
    train = write_rows(place / "train.jsonl", rows)
    dev = write_rows(place / "dev.jsonl", [{**row, "text": row["text"] + LONG} for row in rows[:12]])
    weft.finetune(
        train,
        task="classify",
        dev=dev,
        model={"family": "cnn", "width": 8},
        training={"steps": 4, "evaluate_every": 2, "log_every": 1},
        out=place / "run",
        log=lambda line: None,
    )
    return place / "run"


def test_the_page_of_a_run_shows_what_it_reached(classified: Path) -> None:
    path = classified / "run" / "report.html"
    found = Evaluation.read(classified / "run" / "evaluation.json")
    assert captions(path)[0] == "Held-out scores by step"
    text = words_of(path)
    for name, score in found.scores.items():
        assert name in text and f"{score.low:.4f}" in text and f"{score.high:.4f}" in text
    root = ElementTree.fromstring(path.read_text())
    cells = [node.text for node in root.iter(f"{SVG}text") if node.get("class") == "cell"]
    assert list(map(int, map(str, cells))) == [n for line in found.confusion for n in line]
    assert sum(map(sum, found.confusion)) == 12
    assert "By label" in text and "support" in text
    assert "Linear baselines" in text and "Model minus best baseline" in text
    assert found.worst and all(row["text"] in text for row in found.worst), "whole texts"
    assert LONG in found.worst[0]["text"] and "<script>" not in path.read_text()
    # What is kept is the best model, whose scores the card has too.
    card = {metric.name: metric.value for metric in weft.load(classified).card.metrics}
    assert card == {name: score.value for name, score in found.scores.items()}


def test_an_evaluation_is_read_as_it_was_saved(classified: Path, tmp_path: Path) -> None:
    found = Evaluation.read(classified / "run" / "evaluation.json")
    found.save(tmp_path / "again.json")
    assert Evaluation.read(tmp_path / "again.json") == found
    odd = replace(found, scores={"f1": Score(math.nan, 0.0, math.inf)}, worst=[{"text": "\ud800" + "x" * 10**6}])
    odd.save(tmp_path / "odd.json")  # neither a number that is none nor a text without end stops a run
    again = Evaluation.read(tmp_path / "odd.json")
    assert math.isnan(again.scores["f1"].value) and "900,001 more characters" in again.worst[0]["text"]
    again.write(tmp_path / "odd.html")
    (tmp_path / "again.json").write_text("{}")
    with pytest.raises(weft.UserError, match="again.json: missing task, data"):
        Evaluation.read(tmp_path / "again.json")


def test_values_are_scattered(tmp_path: Path, wordpiece: Tokenizer) -> None:
    rows = prices(20)
    found = model_for("regress", 1, wordpiece).evaluate(write_rows(tmp_path / "r.jsonl", rows))
    assert [true for true, _ in found.points] == [row["value"] for row in rows] and "points" not in found.values()
    found.write(tmp_path / "page.html")
    root = ElementTree.fromstring((tmp_path / "page.html").read_text())
    groups = [node for node in root.iter(f"{SVG}g") if node.get("class") == "scatter"]
    assert {len(list(group)) for group in groups} == {1, 20}, "the legend and the rows"


def test_tags_by_type_and_whole_sentences(tmp_path: Path, wordpiece: Tokenizer) -> None:
    rows = spanned(12)
    rows[0] = {**rows[0], "text": rows[0]["text"] + " so it is now ." * 12}
    model = model_for("tag", 4, wordpiece, ("O", "B-LOC", "B-PER", "I-PER"))
    found = model.evaluate(write_rows(tmp_path / "r.jsonl", rows))
    found.write(tmp_path / "page.html")
    text = words_of(tmp_path / "page.html")
    assert "By type" in text and "LOC" in text
    assert all(row["text"] in text and row["prediction"] in text for row in found.worst)


def written() -> Evaluation:
    """What an evaluation of translations looks like."""
    worst = [
        {
            "near": "0.100",
            "target": "das ist" + LONG,
            "prediction": "dies",
            "where": "t.csv line 2",
            "text": "this" + LONG,
        }
    ]
    reached = {"bleu": Score(12.5, 10.0, 15.0)}
    lengths = [{"words": "1 to 9", "sentences": 4, "bleu": 12.5}]
    return Evaluation(
        "translate", "t.csv", "0", reached, [], (), [], worst, 4, 9, 4, 0, "4 examples", by_length=lengths
    )


def test_the_worst_sentences_are_whole(tmp_path: Path) -> None:
    written().write(tmp_path / "page.html")
    text = words_of(tmp_path / "page.html")
    assert "das ist" + LONG in text and "this" + LONG in text and "similarity" in text


def test_many_labels_become_a_list(tmp_path: Path) -> None:
    labels = tuple(f"label {n}" for n in range(60))
    confusion = [[5 if row == column else 0 for column in range(60)] for row in range(60)]
    confusion[3][7] = 9
    found = Evaluation(
        "classify", "t", "0", {"accuracy": Score(0.5, 0.4, 0.6)}, [], labels, confusion, [], 9, 9, 9, 0, ""
    )
    found.write(tmp_path / "page.html")
    cells = [node.text for node in ElementTree.fromstring((tmp_path / "page.html").read_text()).iter("td")]
    assert cells[-3:] == ["label 3", "label 7", "9"]


# ----------------------------------------------------------------------------------------------- what is kept apart


def record(folder: Path, recipe: str, tokenizer: str, scores: dict[str, float] | None = None) -> Path:
    """A run folder with nothing but its record."""
    (folder / "run").mkdir(parents=True)
    (folder / "tokenizer.json").write_text(tokenizer)
    (folder / "run" / "recipe.toml").write_text(recipe)
    lines = [
        {"step": step, "loss": 3.0 / step, "learning_rate": 1e-3, "norm": 1.0, "tokens": 9 * step} for step in (1, 2)
    ]
    judged = {f"validation_{name}": value for name, value in (scores or {}).items()}
    lines.append({"step": 2, "validation_loss": 2.0, "validation_words": 2.0, **judged, "tokens": 18})  # type: ignore[dict-item]
    (folder / "run" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


NEXT, MLM = '[objective]\nname = "next"\n', '[objective]\nname = "mlm"\n'
CLASSIFY = '[task]\nname = "classify"\nmetric = "accuracy"\nlabels = ["a", "b"]\n'


def test_losses_that_cannot_be_compared_share_no_axis(tmp_path: Path) -> None:
    runs = {
        "one": record(tmp_path / "one", NEXT, "words"),
        "same": record(tmp_path / "same", NEXT, "words"),
        "other words": record(tmp_path / "other", NEXT, "letters"),
        "other objective": record(tmp_path / "masked", MLM, "words"),
        "task": record(tmp_path / "task", CLASSIFY, "words", {"accuracy": 0.5, "mcc": 0.25}),
        "same task": record(tmp_path / "again", CLASSIFY, "letters", {"accuracy": 0.75, "mcc": 0.5}),
        "other labels": record(tmp_path / "more", CLASSIFY.replace('"b"', '"b", "c"'), "words", {"accuracy": 0.5}),
    }
    write_curves(list(runs.values()), tmp_path / "curves.html")
    root = ElementTree.fromstring((tmp_path / "curves.html").read_text())
    charts = [node for node in root.iter("figure") if node.findtext("figcaption") == "Loss by step"]
    sharing = [
        len({line.attrib["style"] for line in chart.iter(f"{SVG}path") if line.get("class") == "line"})
        for chart in charts
    ]
    assert sharing == [2, 1, 1, 2, 1]
    assert "cannot be compared" in words_of(tmp_path / "curves.html")
    assert "Loss as a share of the first loss" in words_of(tmp_path / "curves.html")
    # Losses and scores neither: an axis holds one kind of number.
    scores = [node for node in root.iter("figure") if node.findtext("figcaption") == "Held-out scores by step"]
    assert len(scores) == 2 and all(node.text != "loss" for chart in scores for node in chart.iter(f"{SVG}text"))
    assert "accuracy" in "".join(scores[0].itertext()) and "validation_words" not in "".join(root.itertext())
    write_curves([runs["one"], runs["same"]], tmp_path / "curves.html")
    assert captions(tmp_path / "curves.html").count("Loss by step") == 1
    assert "cannot be compared" not in words_of(tmp_path / "curves.html")
    assert "share of the first loss" not in words_of(tmp_path / "curves.html")


# ------------------------------------------------------------------------------------------------------ a telephone

# Measures every frame and writes what runs out of it, and lies in nothing that scrolls, into the document.
MEASURE = """
addEventListener("load", () => {
  const cut = [];
  for (const frame of document.querySelectorAll("iframe")) {
    const inside = frame.contentDocument, wide = inside.documentElement.clientWidth;
    if (inside.documentElement.scrollWidth > wide) cut.push(frame.title + ": the page scrolls sideways");
    for (const node of inside.querySelectorAll("body *")) {
      const box = node.getBoundingClientRect();
      if (!box.width || (box.right <= wide + 1 && box.left >= -1)) continue;
      if (node.closest(".scroll, svg")) continue;
      cut.push(frame.title + ": " + node.outerHTML.slice(0, 90));
    }
    for (const drawing of inside.querySelectorAll("svg")) {
      const frame_box = drawing.getBoundingClientRect();
      for (const word of drawing.querySelectorAll("text")) {
        const box = word.getBoundingClientRect();
        if (box.width && (box.left < frame_box.left - 2 || box.right > frame_box.right + 2)) {
          cut.push(frame.title + ": the chart cuts " + word.textContent.slice(0, 60));
        }
      }
    }
  }
  document.body.textContent = "MEASURED " + JSON.stringify(cut);
});
"""


def measured(pages: dict[str, str], tmp_path: Path) -> list[str]:
    """What each page, in a window of 390 pixels, would cut."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no chromium to look at pages with")
    frames = [
        f'<iframe title="{name}" width="390" height="800" style="border: 0" srcdoc="{html.escape(text)}"></iframe>'
        for name, text in pages.items()
    ]
    whole = f"<!DOCTYPE html><meta charset='utf-8'><body>{''.join(frames)}<script>{MEASURE}</script></body>"
    (tmp_path / "frames.html").write_text(whole)
    quiet = ["--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update"]
    quiet += [
        "--headless",
        "--no-sandbox",
        "--disable-quic",
        "--disable-sync",
        f"--user-data-dir={tmp_path / 'profile'}",
    ]
    command = [browser, *quiet, "--virtual-time-budget=5000", "--dump-dom", f"file://{tmp_path / 'frames.html'}"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120)
    (text,) = re.findall(r"MEASURED (\[.*?\])</body>", found.stdout, re.DOTALL)
    cut: list[str] = json.loads(html.unescape(text))
    return cut


def gradients(tmp_path: Path) -> str:
    lines = [{"step": step, "layers": [[1.0 / (far + 1) for far in range(20)]] * 2} for step in (1, 50, 100)]
    (tmp_path / "gradients.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    draw_gradients(tmp_path / "gradients.jsonl", tmp_path / "gradients.html", "a run")
    return (tmp_path / "gradients.html").read_text()


def test_a_telephone_cuts_nothing(classified: Path, tmp_path: Path, wordpiece: Tokenizer) -> None:
    model_for("regress", 1, wordpiece).evaluate(write_rows(tmp_path / "r.jsonl", prices(9))).write(tmp_path / "v.html")
    labels = tuple(f"a rather long name of a label, number {n}" for n in range(12))
    confusion = [[10**4 if row == column else n for n, column in enumerate(range(12))] for row in range(12)]
    many = Evaluation("classify", "t", "0", {"f1": Score(0.5, 0.4, 0.6)}, [], labels, confusion, [], 9, 9, 9, 0, "")
    many.write(tmp_path / "many.html")
    written().write(tmp_path / "written.html")
    runs = [record(tmp_path / name, NEXT, name) for name in ("a-run-with-a-long-name", "b")]
    write_curves(runs, tmp_path / "curves.html")
    cut = measured(
        {
            "run": (classified / "run" / "report.html").read_text(),
            "values": (tmp_path / "v.html").read_text(),
            "many labels": (tmp_path / "many.html").read_text(),
            "translations": (tmp_path / "written.html").read_text(),
            "curves": (tmp_path / "curves.html").read_text(),
            "ladder": ladder_page(json.loads(LADDER.read_text())),
            "gradients": gradients(tmp_path),
        },
        tmp_path,
    )
    assert cut == []


def test_the_browser_sees_what_is_cut(tmp_path: Path) -> None:
    """The measure itself: a page that is too wide is found."""
    wide = '<div style="width: 500px">too wide</div>'
    cut = measured(
        {"good": page("t", [table(["a"], [["b" * 300]])]), "bad": page("t", []).replace("</h1>", "</h1>" + wide)},
        tmp_path,
    )
    assert cut and all(line.startswith("bad") for line in cut)


@pytest.mark.parametrize("make", [lambda: line_chart("t", [], "x", "y"), lambda: entries({"text": LONG})])
def test_the_pages_have_a_narrow_form(make: Callable[[], str]) -> None:
    """Without a browser: the style of a page names what a narrow window changes, and texts wrap."""
    text = page("t", [make()])
    assert "@media (max-width: 40rem)" in text and "white-space: pre-wrap" in text
    ElementTree.fromstring(text)

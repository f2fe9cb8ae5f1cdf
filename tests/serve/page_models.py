"""Small models for every tab of the page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import weft
from examples import sales
from tests.serve.running import ROOT, save_models
from tests.tasks.small import model_for, quiet, vocabulary
from weft.tasks.model import Model
from weft.text.tokenizers.training import learn

TABS = ("write", "fill", "classify", "tag", "ask", "choose", "translate", "search", "forecast", "look")
SERVED = ("gpt", "tales", "reviews", "names", "qa", "bert", "dates", "sales")
MARGIN = -2.0  # of "no answer": a model with random weights has an answer to some questions only


def save_page_models(folder: Path) -> Path:
    """A folder for each of `SERVED`."""
    save_models(folder, ("gpt", "reviews", "names", "bert", "dates"))
    lines = (ROOT / "examples" / "weaver.txt").read_text().splitlines()
    weft.new("gpt2", learn(lines, "bpe", 400), size="1x64", settings={"context": 256}, seed=2).save(folder / "tales")
    plain = model_for("answer", 2, vocabulary(), length=40)
    card = replace(plain.card, thresholds={"no answer": MARGIN})
    Model(replace(plain.opened, card=card), "answer").save(folder / "qa")
    sales.main(str(folder / "sales.csv"), days=100)
    weft.finetune(
        folder / "sales.csv",
        task={"name": "forecast", "horizon": 7},
        model={"family": "gru", "size": "1x8"},
        training={"steps": 2, "batch": 8, "evaluate_every": 2},
        out=folder / "sales",
        log=quiet,
    )
    return folder

"""The ladder on tiny Shakespeare by characters and on War and Peace by sub-words: who foresees best, with equal time.

    WEFT_DATA=DATA python benchmarks/ladder.py                                       # both texts, 3 minutes a model
    WEFT_DATA=DATA python benchmarks/ladder.py --texts shakespeare --minutes 2 --device cuda --parallel 4
    WEFT_DATA=DATA python benchmarks/ladder.py --texts war_and_peace --models lstm,transformer --out FOLDER

The texts are looked for as DATA/tinyshakespeare/input.txt.xz and DATA/books/warandpeace.txt.xz. It prints the table and
says which of these hold: n-gram orders fall to 5; LSTM < RNN; Transformer < LSTM; Transformer < the best n-gram. Rungs
that are trained side by side share the device, so each learns less in its minutes than it would alone.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path
from typing import Any

from common import RESULTS, machine, parse, write

from weft.cli.inputs import table
from weft.config import settings_of
from weft.runs.ladder import ladder
from weft.runs.pages import LADDER_HEADER, failures, finished, ladder_rows, value_of, verdict
from weft.runs.rungs import RUNGS

TEXTS = {
    "shakespeare": ("tinyshakespeare/input.txt.xz", "characters"),
    "war_and_peace": ("books/warandpeace.txt.xz", "4000"),
}


def orders(found: dict[str, Any]) -> dict[str, bool | None]:
    """The orders that are expected, and whether they hold; None where a rung is missing."""
    bits = {rung["name"]: value_of(rung) for rung in finished(found)}

    def below(*names: str) -> bool | None:
        some = [bits.get(name) for name in names]
        if any(value is None for value in some):
            return None
        return all(a > b for a, b in zip(some, some[1:], strict=False))  # type: ignore[operator]

    grams = [name for name in ("ngram-2", "ngram-3", "ngram-4", "ngram-5") if name in bits]
    best = min(grams, key=bits.__getitem__, default="ngram-5")
    return {
        "n-gram orders fall to 5": below("unigram", "ngram-2", "ngram-3", "ngram-4", "ngram-5"),
        "LSTM < RNN": below("rnn", "lstm"),
        "Transformer < LSTM": below("lstm", "transformer"),
        "Transformer < two-layer LSTM": below("lstm-2", "transformer"),
        f"Transformer < best n-gram ({best})": below(best, "transformer"),
    }


def climb(name: str, given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """One text: the ladder, its table, and which orders hold."""
    file, vocabulary = TEXTS[name]
    budget: dict[str, Any] = {"models": given.models.split(","), "vocabulary": vocabulary, "parallel": given.parallel}
    budget |= {"tokens": given.tokens} if given.tokens else {"minutes": given.minutes}
    budget |= {"size": given.size} if given.size else {}
    settings: dict[str, Any] = {"out": str(folder), "text": {"files": [file]}, "ladder": budget}
    settings |= {"device": given.device} if given.device else {}
    settings |= {"rungs": settings_of(given.set)} if given.set else {}
    found = ladder(None, settings)
    print(f"\n{name}: {file}, {found['text']['vocabulary']['tokens']:,} tokens in the vocabulary")
    print(table(list(LADDER_HEADER), ladder_rows(found)))
    for failure in failures(found):
        print(failure)
    print(verdict(found))
    holds = orders(found)
    for what, held in holds.items():
        print(f"{'?' if held is None else 'yes' if held else 'NO'}: {what}")
    found["machine"] = machine()
    found["parallel"], found["orders"] = given.parallel, holds
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", default=",".join(TEXTS), help="which of them, with commas")
    parser.add_argument("--minutes", type=float, default=3.0, help="of training, for each model")
    parser.add_argument("--tokens", type=int, help="or: tokens that each model reads")
    parser.add_argument("--models", default=",".join(RUNGS), help="some of the rungs, with commas")
    parser.add_argument("--size", choices=("tiny", "small", "large"), help="small on a CPU, large on a GPU")
    parser.add_argument("--device", help="cpu or cuda")
    parser.add_argument("--parallel", type=int, default=1, help="models that are trained at once")
    parser.add_argument("--set", action="append", default=[], help="RUNG.SECTION.KEY=VALUE, as for weft ladder")
    parser.add_argument("--out", type=Path, help="where the ladders are made and kept; a folder for each text")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parse(parser, texts="shakespeare", models="ngram-2,transformer", tokens=400, size="tiny")
    for name in given.texts.split(","):
        with tempfile.TemporaryDirectory() as scratch:
            found = climb(name, given, (given.out or Path(scratch)) / name)
            write(given.results / f"ladder_{name}.json", found)
            page = (given.out or Path(scratch)) / name / "index.html"
            shutil.copy(page, given.results / f"ladder_{name}.html")


if __name__ == "__main__":
    main()

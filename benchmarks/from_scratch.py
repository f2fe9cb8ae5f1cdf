"""Text classifiers trained from nothing beside TF-IDF + logistic regression, on small tables.

Weft's defaults, several seeds, against scikit-learn's TF-IDF + logistic regression, whose n-grams (words; words and
pairs of words) and penalty (C = 1, 10) are chosen on the same held-out tenth that Weft keeps its best model by.

    WEFT_DATA=DATA python benchmarks/from_scratch.py --seeds 3
    python benchmarks/from_scratch.py --smoke
"""

from __future__ import annotations

import argparse
import csv
import json
import lzma
import os
import random
import statistics
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

from common import RESULTS, machine, parse, write

import weft

Row = tuple[str, str]


def sst2(data: Path) -> tuple[list[Row], list[Row]]:
    """Whole sentences of the Stanford Sentiment Treebank; GLUE lists their phrases too, which are left out here."""
    train, test = (_tsv(data / "glue/sst2" / name) for name in ("train.tsv", "dev.tsv"))
    return _whole(train), test


def _tsv(path: Path) -> list[Row]:
    found = path if path.exists() else path.with_name(path.name + ".xz")
    text = found.read_bytes()
    text = lzma.decompress(text) if found.suffix == ".xz" else text
    lines = [line.split("\t") for line in text.decode().splitlines()[1:]]
    return [(text.strip(), label.strip()) for text, label in lines]


def _whole(rows: list[Row]) -> list[Row]:
    """The rows that are no part of a longer one."""
    kept, known = list[Row](), dict[str, list[str]]()
    for text, label in sorted(set(rows), key=lambda row: (-len(row[0].split()), row)):
        words = text.split()
        if len(words) < 5:
            break
        beginning = " ".join(words[:4])
        if any(f" {text} " in f" {longer} " for longer in known.get(beginning, ())):
            continue
        kept.append((text, label))
        for place in range(len(words) - 3):
            known.setdefault(" ".join(words[place : place + 4]), []).append(text)
    return kept


def subjectivity(data: Path) -> tuple[list[Row], list[Row]]:
    """Sentences of reviews and of plots (Pang and Lee, 2004)."""
    rows = list[Row]()
    with zipfile.ZipFile(data / "nltk/subjectivity.zip") as archive:
        for name, label in (("plot.tok.gt9.5000", "objective"), ("quote.tok.gt9.5000", "subjective")):
            lines = archive.read(f"subjectivity/{name}").decode("latin-1").splitlines()
            rows += [(line.strip(), label) for line in lines if line.strip()]
    random.Random(0).shuffle(rows)
    return rows[1000:], rows[:1000]


def trec(data: Path) -> tuple[list[Row], list[Row]]:
    """Questions and what they ask for, six classes (Li and Roth, 2002)."""

    def read(name: str) -> list[Row]:
        with zipfile.ZipFile(data / "nltk/qc.zip") as archive:
            lines = archive.read(f"qc/{name}").decode("latin-1").splitlines()
        return [(text, fine.split(":")[0]) for fine, text in (line.split(" ", 1) for line in lines if line.strip())]

    return read("train.txt"), read("test.txt")


def sms(data: Path) -> tuple[list[Row], list[Row]]:
    """Short messages, ham or spam (Almeida et al., 2011)."""
    lines = lzma.decompress((data / "sms_spam/sms.tsv.xz").read_bytes()).decode().splitlines()
    rows = [(text, label) for label, text in (line.split("\t", 1) for line in lines if "\t" in line) if text.strip()]
    rows = [row for row in rows if row[1] in ("ham", "spam")]
    random.Random(0).shuffle(rows)
    return rows[1000:], rows[:1000]


def imdb(data: Path) -> tuple[list[Row], list[Row]]:
    """Reviews of films (Maas et al., 2011): 1,000 of each half."""

    def read(name: str) -> list[Row]:
        text = lzma.decompress((data / f"imdb/{name}.tsv.xz").read_bytes()).decode()
        rows = list(csv.DictReader(text.split("\n"), delimiter="\t", quoting=csv.QUOTE_NONE))
        found = [(row["text"], row["label"]) for row in rows]
        random.Random(0).shuffle(found)
        return found[:1000]

    return read("train"), read("test")


SETS = {"sst2": sst2, "subjectivity": subjectivity, "trec": trec, "sms": sms, "imdb": imdb}


def baseline(train: list[Row], dev: list[Row], test: list[Row]) -> dict[str, Any]:
    """TF-IDF + logistic regression as chosen on the held-out rows."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    best: dict[str, Any] = {"dev": -1.0}
    for grams in (1, 2):
        for penalty in (1.0, 10.0):
            steps = make_pipeline(
                TfidfVectorizer(ngram_range=(1, grams), sublinear_tf=True),
                LogisticRegression(C=penalty, max_iter=1000),
            )
            steps.fit([text for text, _ in train], [label for _, label in train])
            score = steps.score([text for text, _ in dev], [label for _, label in dev])
            if score > best["dev"]:
                reached = steps.score([text for text, _ in test], [label for _, label in test])
                best = {"dev": score, "accuracy": reached, "n_grams": grams, "c": penalty}
    return best


def write_rows(path: Path, rows: list[Row]) -> str:
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    return str(path)


def trained(family: str, files: tuple[str, str, str], seed: int, settings: dict[str, Any], steps: int | None) -> float:
    """The test accuracy of a model with Weft's defaults."""
    train, dev, test = files
    with tempfile.TemporaryDirectory() as folder:
        model = weft.finetune(
            train,
            None,
            {**settings, "model": {"family": family, **settings.get("model", {})}},
            task="classify",
            dev=dev,
            seed=seed,
            out=Path(folder) / "run",
            log=lambda line: None,
            **({"training": {"steps": steps}} if steps else {}),
        )
        return model.evaluate(test).scores["accuracy"].value


def measured(
    name: str,
    split: tuple[list[Row], list[Row]],
    families: list[str],
    seeds: int,
    settings: dict[str, Any],
    steps: int | None,
) -> list[dict[str, Any]]:
    """The baseline and every family on one set of rows."""
    rows, test = split
    rows = list(rows)
    random.Random(1).shuffle(rows)
    dev, train = rows[: len(rows) // 10], rows[len(rows) // 10 :]
    linear = baseline(train, dev, test)
    head = {"data": name, "train": len(train), "test": len(test)}
    lines: list[dict[str, Any]] = [{**head, "model": "tf-idf + lr", **linear}]
    print(f"{name:<13} {len(train):>6,} rows  tf-idf + lr  {linear['accuracy']:.4f}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        parts = (("train.csv", train), ("dev.csv", dev), ("test.csv", test))
        files = tuple(write_rows(Path(folder) / part, some) for part, some in parts)
        for family in families:
            begin = time.perf_counter()
            found = [trained(family, files, seed, settings, steps) for seed in range(seeds)]  # type: ignore[arg-type]
            seconds = (time.perf_counter() - begin) / seeds
            lines.append(
                {**head, "model": family, "accuracy": statistics.mean(found), "seeds": found, "seconds": seconds}
            )
            every = ", ".join(f"{value:.4f}" for value in found)
            print(f"{'':<21}  {family:<11}  {lines[-1]['accuracy']:.4f}  ({every}; {seconds:.0f} s)", flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", default=",".join(SETS), help=f"some of {', '.join(SETS)}")
    parser.add_argument("--rows", type=int, help="training rows of each set, at most")
    parser.add_argument("--models", default="cnn", help="families to train")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--settings", type=json.loads, default={}, help="JSON: sections of a recipe, to try others")
    parser.add_argument("--steps", type=int, help="of a model; default: as Weft chooses")
    parser.add_argument("--out", type=Path, default=RESULTS / "from_scratch.json")
    given = parse(parser, sets="sst2,trec", seeds=1, steps=3)
    if "WEFT_DATA" not in os.environ:
        parser.error("set WEFT_DATA to the folder that holds glue, nltk, sms_spam and imdb")
    for name in given.sets.split(","):
        if name not in SETS:
            parser.error(f"{name} is not one of {', '.join(SETS)}")
        train, test = SETS[name](Path(os.environ["WEFT_DATA"]))
        if given.rows:
            train = random.Random(2).sample(train, min(given.rows, len(train)))
        lines = measured(name, (train, test), given.models.split(","), given.seeds, given.settings, given.steps)
        keep(given.out, lines)


def keep(path: Path, lines: list[dict[str, Any]]) -> None:
    """Write the lines of one set beside those of the others, after each: a run takes long."""
    before = json.loads(path.read_text())["lines"] if path.exists() else []
    others = [line for line in before if line["data"] != lines[0]["data"]]
    write(path, {"machine": machine(), "lines": [*others, *lines]})


if __name__ == "__main__":
    main()

"""Understanding tasks from end to end on real data: ways to classify IMDb, no answer, chunks, parts of speech, search.

    python benchmarks/understanding.py WORK --data DIR --weights DIR --out FILE.json
    python benchmarks/understanding.py --all --processes 6 --data DIR --weights DIR --out FOLDER
    python benchmarks/understanding.py --table FOLDER

DIR holds imdb, words, squadshifts, xquad and nltk as `benchmarks/carry.py` gathers them; weights: all-MiniLM-L6-v2.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import random
import subprocess
import sys
import tempfile
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from common import device_name, parse, write

import weft
from weft.metrics.numeric import RankingMetrics
from weft.tasks.embed import Index, pair_scores, places

GPU = torch.cuda.is_available()


def scored(model: weft.Model, data: str, **options: Any) -> dict[str, Any]:
    """All that an evaluation says that fits into a table."""
    begin = time.perf_counter()
    found = (model.to("cuda") if GPU else model).evaluate(data, **options)
    return {
        "scores": {name: [score.value, score.low, score.high] for name, score in found.scores.items()},
        "examples": found.examples,
        "n_windows": found.n_windows,
        "n_truncated": found.n_truncated,
        "seconds of judging": round(time.perf_counter() - begin, 1),
    }


# ------------------------------------------------------------------------------------------------------------- IMDb

SCRATCH = {"family": "bert", "size": "4x256", "context": 512}
WORDS = {"kind": "wordpiece", "size": 16000}
TINY = {"family": "bert", "size": "1x64", "context": 512}


def imdb(way: str, data: Path, weights: Path, scratch: Path, limit: int | None) -> dict[str, Any]:
    """One of the textbooks' ways to classify reviews."""
    train, test = str(data / "imdb/train.tsv.xz"), str(data / "imdb/test.tsv.xz")
    settings: dict[str, Any] = {
        "data": {"files": [train], "holdout": 0.05, "columns": {"text": "text", "label": "label"}},
        "task": {"name": "classify"},
        "out": str(scratch / "run"),
        "training": {"epochs": 2.0, "learning_rate": 3e-5} | ({"steps": limit, "epochs": None} if limit else {}),
    }
    fresh = {"model": TINY, "tokenizer": {**WORDS, "size": 300}} if limit else {"model": SCRATCH, "tokenizer": WORDS}
    if way == "scratch":
        settings |= fresh
        settings["training"] |= {"learning_rate": 3e-4, **({} if limit else {"epochs": 5.0})}
    elif way.startswith("glove"):
        text = lzma.decompress((data / "words/glove.6B.50d.top30k.txt.xz").read_bytes()).decode()
        lines = [line for line in text.split("\n") if len(line.split(" ")) == 51]  # the file has a note at its top
        (scratch / "glove.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        settings["model"] = {"base": str(scratch / "glove.txt")}
        settings["task"] |= {"freeze": "encoder"} if way == "glove frozen" else {}
        learning_rate = 1e-2 if way == "glove frozen" else 3e-3
        settings["training"] |= {"learning_rate": learning_rate, **({} if limit else {"epochs": 10.0})}
    elif way == "own mlm":
        weft.pretrain(
            settings={
                **fresh,
                "text": {"files": [str(data / "imdb/unsup.txt.xz")], "holdout": 0.01},
                "objective": {"name": "mlm", "rows": "stream", "length": 512, "whole_words": True},
                "training": {
                    "steps": limit or 8000,
                    "batch": 64,
                    "learning_rate": 1e-3,
                    "compile": GPU,
                    "evaluate_every": 4000,
                },
                "out": str(scratch / "mlm"),
            }
        )
        settings["model"] = {"base": str(scratch / "mlm")}
        settings["training"] |= {"learning_rate": 1e-4, **({} if limit else {"epochs": 4.0})}
    else:
        settings["model"] = {"base": str(weights)}
        settings["task"] |= {"long": "truncate"} if way == "minilm cut" else {}
    begin = time.perf_counter()
    model = weft.finetune(settings=settings)
    seconds = time.perf_counter() - begin
    dev = {metric.name: metric.value for metric in model.card.metrics}
    return {"held out": dev, "seconds": round(seconds, 1), **scored(model, test)}


# --------------------------------------------------------------------------------------------------------- no answer


def questions(data: Path, names: list[str]) -> list[dict[str, Any]]:
    """Question, context and answers of SQuAD files."""
    from weft.text.records import read_records

    return [record.values for name in names for record in read_records(str(data / name))]


def with_none(rows: list[dict[str, Any]], share: float, seed: int) -> list[dict[str, Any]]:
    """The rows, and as many more as the share says whose question is put to another paragraph that lacks its answer."""
    draw = random.Random(seed)
    contexts = sorted({row["context"] for row in rows})
    found = [{key: row[key] for key in ("question", "context", "answers")} for row in rows]
    for row in draw.sample(rows, round(share * len(rows))):
        for other in draw.sample(contexts, 20):  # an answer such as 'a' stands in every text: that question is left out
            if other != row["context"] and not any(each["text"].lower() in other.lower() for each in row["answers"]):
                found.append({"question": row["question"], "context": other, "answers": []})
                break
    return found


def write_rows(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n", encoding="utf-8")
    return str(path)


TRAIN = ["squadshifts/new_wiki_v1.0.json.xz", "squadshifts/reddit_v1.0.json.xz"]


def no_answer(way: str, data: Path, weights: Path, scratch: Path, limit: int | None) -> dict[str, Any]:
    """Questions of which half have no answer: a model that learned that there may be none, and one that did not."""
    rows = questions(data, TRAIN)
    rows = rows[:200] if limit else rows
    test = write_rows(scratch / "test.jsonl", with_none(questions(data, ["xquad/xquad.en.json.xz"]), 1.0, 1))
    train = write_rows(scratch / "train.jsonl", with_none(rows, 0.5 if way == "with no answer" else 0.0, 0))
    settings = {
        "data": {"files": [train], "columns": {"answer": "answers"}},
        "task": {"name": "answer", "length": 384, "stride": 128},
        "model": {"base": str(weights)},
        "out": str(scratch / "run"),
        "training": {"epochs": 2.0, "learning_rate": 3e-5} | ({"steps": limit, "epochs": None} if limit else {}),
    }
    model = weft.finetune(settings=settings)
    return {"threshold": model.card.thresholds, "temperature": model.card.temperature, **scored(model, test)}


# ---------------------------------------------------------------------------------------------------- chunks and tags


def tags(way: str, data: Path, weights: Path, scratch: Path, limit: int | None) -> dict[str, Any]:
    """Chunks of CoNLL-2000, or the parts of speech of Brown, every tenth sentence held back as a test."""
    if way == "chunks":
        with zipfile.ZipFile(data / "nltk/conll2000.zip") as archive:
            for name in ("train", "test"):
                (scratch / f"{name}.conll").write_bytes(archive.read(f"conll2000/{name}.txt"))
    else:
        parts: dict[str, list[str]] = {"train": [], "test": []}
        number = 0
        with zipfile.ZipFile(data / "nltk/brown.zip") as archive:
            files = sorted(n for n in archive.namelist() if len(Path(n).name) == 4 and Path(n).name[0] == "c")
            for name in files:
                for line in archive.read(name).decode("latin-1").splitlines():
                    words = [token.rpartition("/")[::2] for token in line.split()]
                    # A tag may end in -tl (title), -hl (headline) or -nc (cited): where it stands, not what it is.
                    rows = [f"{word}\t{tag.split('-')[0] or tag}" for word, tag in words if word and tag]
                    if rows:
                        parts["test" if number % 10 == 9 else "train"].append("\n".join(rows))
                        number += 1
        for name, sentences in parts.items():
            (scratch / f"{name}.conll").write_text("\n\n".join(sentences) + "\n", encoding="utf-8")
    settings = {
        "data": {"files": [str(scratch / "train.conll")], "holdout": 0.05},
        "task": {"name": "tag", "length": 256},
        "model": {"base": str(weights)},
        "out": str(scratch / "run"),
        "training": {"epochs": 3.0 if way == "chunks" else 2.0, "learning_rate": 5e-5}
        | ({"steps": limit, "epochs": None} if limit else {}),
    }
    model = weft.finetune(settings=settings)
    return {"labels": len(model.card.labels or ()), **scored(model, str(scratch / "test.conll"))}


# ------------------------------------------------------------------------------------------------------------- search


def search(way: str, data: Path, weights: Path, scratch: Path, limit: int | None) -> dict[str, Any]:
    """Each question to its paragraph among all of squadshifts wiki, by vectors and after re-ranking by a pair model.

    The pair model learns from the reddit questions alone: the right paragraph, and the three nearest wrong ones.
    """
    embedder = weft.load(weights, task="embed", device="cuda" if GPU else None)
    reddit = questions(data, ["squadshifts/reddit_v1.0.json.xz"])
    reddit = reddit[:60] if limit else reddit
    texts = sorted({row["context"] for row in reddit})
    index = Index(embedder.opened, texts)
    rows = []
    for row, found in zip(reddit, index.ask([row["question"] for row in reddit], top=8), strict=True):
        wrong = [hit.text for hit in found.hits if hit.text != row["context"]][:3]
        rows.append({"text": row["question"], "pair": row["context"], "label": "right"})
        rows += [{"text": row["question"], "pair": text, "label": "wrong"} for text in wrong]
    settings = {
        "data": {"files": [write_rows(scratch / "pairs.jsonl", rows)]},
        "task": {"name": "pair", "labels": ["wrong", "right"], "metric": "f1"},
        "model": {"base": str(weights)},
        "out": str(scratch / "run"),
        "training": {"epochs": 2.0, "learning_rate": 5e-5} | ({"steps": limit, "epochs": None} if limit else {}),
    }
    pair = weft.finetune(settings=settings)
    pair.to("cuda" if GPU else "cpu")
    wiki = questions(data, ["squadshifts/new_wiki_v1.0.json.xz"])
    pool = sorted({row["context"] for row in wiki})
    numbers = {text: number for number, text in enumerate(pool)}
    asked = random.Random(0).sample(wiki, 20 if limit else 2000)
    first, second = RankingMetrics(), RankingMetrics()
    pairs = [(row["question"], numbers[row["context"]]) for row in asked]
    for place, reranked in places(Index(embedder.opened, pool), pairs, rerank=pair_scores(pair), candidates=20):
        first.add(place)
        second.add(reranked)
    results = {"embedding": first.result(), "re-ranked": second.result()}
    return {
        "texts": len(pool),
        "questions": len(asked),
        "scores": {
            f"{stage} {name}": [score.value, score.low, score.high]
            for stage, scores in results.items()
            for name, score in scores.items()
        },
    }


WORKS = {
    "imdb own mlm": imdb,
    "search": search,
    "imdb minilm windows": imdb,
    "imdb minilm cut": imdb,
    "imdb scratch": imdb,
    "imdb glove frozen": imdb,
    "imdb glove tuned": imdb,
    "answers with no answer": no_answer,
    "answers without": no_answer,
    "tags parts of speech": tags,
    "tags chunks": tags,
}


def run(name: str, given: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        way = name.partition(" ")[2]
        found = WORKS[name](way, given.data, given.weights, Path(scratch), given.limit)
    return {"work": name, **found, "device": device_name(), "torch": torch.__version__}


def file_of(folder: Path, name: str) -> Path:
    return folder / f"understanding_{name.replace(' ', '_')}.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", nargs="?", choices=[*WORKS])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--works", help="with --all: only these, with commas between them")
    parser.add_argument("--processes", type=int, default=6)
    parser.add_argument("--limit", type=int, help="only so many steps, to try the script")
    parser.add_argument("--table", type=Path)
    given = parse(parser, limit=1)
    if given.smoke:  # each in this process, one after the other
        for name in ("imdb own mlm", "imdb glove frozen", "answers with no answer", "tags parts of speech", "search"):
            write(file_of(given.out, name), run(name, given))
        given.table = given.out
    if given.table:
        for name in WORKS:
            if file_of(given.table, name).exists():
                scores = json.loads(file_of(given.table, name).read_text())["scores"]
                told = ", ".join(f"{key} {v:.4f} ({low:.4f} to {high:.4f})" for key, (v, low, high) in scores.items())
                print(f"{name}: {told}")
        return
    if not given.all:
        found = run(given.work, given)
        print(json.dumps(found, indent=1))
        write(given.out, found)
        return
    given.out.mkdir(parents=True, exist_ok=True)

    def one(name: str) -> None:
        command = [sys.executable, __file__, name, "--data", str(given.data), "--weights", str(given.weights)]
        command += ["--out", str(file_of(given.out, name))] + (["--limit", str(given.limit)] if given.limit else [])
        begin = time.perf_counter()
        done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "2"}, capture_output=True, text=True)
        words = "" if not done.returncode else f" failed ({done.returncode}): {done.stderr[-1500:]}"
        print(f"{name}: {time.perf_counter() - begin:.0f} s{words}", flush=True)

    with ThreadPoolExecutor(given.processes) as pool:
        list(pool.map(one, given.works.split(",") if given.works else WORKS))


if __name__ == "__main__":
    main()

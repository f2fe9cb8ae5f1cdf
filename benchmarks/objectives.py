"""Pre-training objectives at a small scale: held-out loss before and after, and what they are worth for a task.

    WEFT_DATA=DIR python benchmarks/objectives.py [--cases rtd,permutation] [--work trec]          # 40 minutes on a CPU
    WEFT_DATA=DIR python benchmarks/objectives.py --text reviews --size 4x256 --vocabulary 8000 --length 128 \\
        --batch 128 --rows 500 --work subjectivity          # on a GPU

Each network is pre-trained on text without labels (Tatoeba's English sentences, or IMDb's reviews; for translation LM,
Tatoeba's sentence pairs). Then it is fine-tuned on few labeled rows, and beside it the same network with the weights
that the pre-training began with: the same vocabulary, rows, steps and batch, at the better of the same learning rates,
over the same seeds. The rows are sentences of CoNLL-2000 with their chunks (F1), or texts with one label (accuracy).
"""

from __future__ import annotations

import argparse
import itertools
import json
import lzma
import os
import random
import statistics
import tempfile
import time
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from common import RESULTS, machine, parse, write
from finetune import READ, file_for
from finetune_peer import WORKS
from frozen_features import first_rows
from small_rows import read

import weft
from weft.checkpoint.families import FAMILIES
from weft.training.log import read_metrics


@dataclass(frozen=True)
class Case:
    """One objective and the family that is pre-trained by it."""

    family: str
    objective: str
    pairs: bool = False  # of sentences in two languages, in place of text
    more: dict[str, Any] = field(default_factory=dict)  # of the recipe


CASES = {
    "mlm": Case("bert", "mlm"),
    "mask decoder": Case("deberta", "mlm"),
    "rtd": Case("deberta", "rtd"),
    "permutation": Case("xlnet", "permutation"),
    "translation": Case("xlm", "tlm", pairs=True),
    "two-way": Case("elmo", "two-way"),
}


def reviews(data: Path, scratch: Path, megabytes: float) -> list[str]:
    """The first reviews without labels, one a line."""
    with lzma.open(data / "imdb/unsup.txt.xz", "rt", encoding="utf-8") as file:
        text = file.read(int(megabytes * 1e6))
    path = scratch / "reviews.txt"
    path.write_text(text[: text.rindex("\n") + 1], encoding="utf-8")
    return [str(path)]


def tatoeba(data: Path) -> list[list[str]]:
    """English and German sentences, in an order that does not go by their length."""
    with zipfile.ZipFile(data / "tatoeba/deu-eng.zip") as archive:
        lines = archive.read("deu.txt").decode("utf-8").splitlines()
    pairs = [line.split("\t")[:2] for line in lines if line.count("\t")]
    random.Random(0).shuffle(pairs)
    return pairs


def written(path: Path, lines: Iterable[str], megabytes: float) -> Path:
    """The first lines, as many as there is room for."""
    text = "".join(f"{line}\n" for line in lines)[: int(megabytes * 1e6)]
    path.write_text(text[: text.rindex("\n") + 1], encoding="utf-8")
    return path


def sentences(data: Path, scratch: Path, megabytes: float) -> list[str]:
    """English sentences, one a line."""
    unique = dict.fromkeys(english for english, _ in tatoeba(data))
    return [str(written(scratch / "sentences.txt", unique, megabytes))]


def sentence_pairs(data: Path, scratch: Path, megabytes: float) -> list[str]:
    """English and German sentences beside each other."""
    return [f"en-de={written(scratch / 'pairs.tsv', map(chr(9).join, tatoeba(data)), megabytes)}"]


def pretrained(case: Case, arguments: argparse.Namespace, scratch: Path) -> tuple[dict[str, Any], Path, Path]:
    """Held-out losses before and after, and the folders of both models."""
    read_text = sentence_pairs if case.pairs else {"reviews": reviews, "sentences": sentences}[arguments.text]
    files = read_text(arguments.data, scratch, arguments.megabytes)
    model = {"family": case.family, "size": arguments.size}
    settings: dict[str, Any] = {
        "model": model,
        "text": {"pairs" if case.pairs else "files": files},
        "tokenizer": {"size": arguments.vocabulary},
        "objective": {"name": case.objective, "length": arguments.length},
        "device": arguments.device,
        **case.more,
    }
    training = {"batch": arguments.batch, "warmup": 0.1}
    begin, end, quiet = scratch / f"{case.family}-begin", scratch / f"{case.family}-end", lambda text: None
    # One step that moves nothing: the weights and the loss that the training begins with.
    idle = {**training, "steps": 1, "learning_rate": 1e-12, "ema": None}
    weft.pretrain(None, {**settings, "training": idle, "out": str(begin)}, log=quiet)
    settings["tokenizer"] = {"folder": str(begin)}
    training |= {"steps": arguments.steps, "evaluate_every": max(1, arguments.steps // 4)}
    seconds = time.monotonic()
    weft.pretrain(None, {**settings, "training": training, "out": str(end)}, log=quiet)
    seconds = time.monotonic() - seconds
    before, after = (losses(folder) for folder in (begin, end))
    config = json.loads((end / "run" / "run.json").read_text())
    line: dict[str, Any] = {"held-out loss before": before, "after": after, "parameters": config["parameters"]}
    return {**line, "steps": arguments.steps, "seconds": round(seconds, 1)}, begin, end


def losses(folder: Path) -> dict[str, float]:
    """The last held-out losses of a run: of each kind of prediction, and their sum."""
    line = [line for line in read_metrics(folder / "run" / "metrics.jsonl") if "validation_loss" in line][-1]
    kinds = {name.removeprefix("validation_"): value for name, value in line.items() if name.startswith("validation_")}
    return {name: round(value, 4) for name, value in kinds.items()}


def scores(base: Path, rows: Rows, arguments: argparse.Namespace) -> dict[str, Any]:
    """The metric on the test rows, mean and spread over seeds at the better learning rate."""
    values: dict[float, list[float]] = {}
    for rate, seed in itertools.product(arguments.rates, range(arguments.seeds)):
        with tempfile.TemporaryDirectory() as out:
            settings = {
                "data": {"files": [str(rows.train)], "dev": [str(rows.test)], **rows.reading},
                "task": {"name": rows.task, "baseline": False},
                "model": {"base": str(base)},
                "training": {"learning_rate": rate, "epochs": arguments.epochs, "batch": 16, "evaluate_every": 1 << 20},
                "out": str(Path(out) / "run"),
                "seed": seed,
                "device": arguments.device,
            }
            weft.finetune(settings=settings, log=lambda text: None)
            lines = read_metrics(Path(out) / "run/run/metrics.jsonl")
        key = f"validation_{rows.metric}"
        values.setdefault(rate, []).append([line[key] for line in lines if key in line][-1])
    rate = max(values, key=lambda rate: statistics.mean(values[rate]))
    spread = statistics.stdev(values[rate]) if arguments.seeds > 1 else 0.0
    return {rows.metric: round(statistics.mean(values[rate]), 4), "spread": round(spread, 4), "learning rate": rate}


@dataclass(frozen=True)
class Rows:
    """Few labeled rows to learn from, and the test rows."""

    train: Path
    test: Path
    task: str = "classify"
    metric: str = "accuracy"
    reading: dict[str, Any] = field(default_factory=dict)


def labeled(arguments: argparse.Namespace, scratch: Path) -> Rows:
    name = arguments.work
    if name == "chunks":
        work, reading = WORKS["conll2000"], READ["conll2000"]
        train, test = (file_for(arguments.data, "conll2000", file, scratch) for file in (work.train[0], work.judged))
        train = first_rows(train, arguments.rows)
        test = first_rows(test, 1000, train)
        return Rows(Path(train), Path(test), "tag", "f1", reading)
    paths = scratch / f"{name}-train.jsonl", scratch / f"{name}-test.jsonl"
    learned, judged = read(name, arguments.data)
    for path, rows in zip(paths, (learned[: arguments.rows], judged), strict=True):
        path.write_text("".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows))
    return Rows(*paths)


def measured(case: Case, arguments: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        line, begin, end = pretrained(case, arguments, scratch)
        rows = labeled(arguments, scratch)
        tuned = {name: scores(base, rows, arguments) for name, base in (("pre-trained", end), ("scratch", begin))}
    gain = tuned["pre-trained"][rows.metric] - tuned["scratch"][rows.metric]
    task = f"{arguments.work}, {arguments.rows} rows"
    return {"family": case.family, "objective": case.objective, **line, "task": task, **tuned, "gain": round(gain, 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES), help=f"some of {', '.join(CASES)}")
    parser.add_argument("--data", type=Path, default=os.environ.get("WEFT_DATA"))
    parser.add_argument("--text", choices=("reviews", "sentences"), default="sentences", help="to pre-train on")
    parser.add_argument("--work", choices=("chunks", "trec", "subjectivity"), default="chunks", help="to fine-tune on")
    parser.add_argument("--size", default="2x128")
    parser.add_argument("--vocabulary", type=int, default=2000)
    parser.add_argument("--megabytes", type=float, default=12.0)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=300, help="to fine-tune on")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--rates", type=float, nargs="+", default=[5e-4, 1e-3])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--result", type=Path, default=RESULTS / "objectives.json")
    tiny: dict[str, Any] = {"size": "1x64", "vocabulary": 300, "length": 32, "batch": 4, "steps": 2, "rows": 12}
    tiny |= {"cases": "rtd", "epochs": 1, "rates": [1e-3], "seeds": 1, "device": "cpu"}
    arguments = parse(parser, **tiny)
    if arguments.data is None:
        raise SystemExit("where is the data? give --data DIR or set WEFT_DATA")
    results = {"machine": machine(), "cases": {}}
    for name in arguments.cases.split(","):
        case = CASES[name]
        if case.family not in FAMILIES:
            print(f"{name}: there is no family {case.family}")
            continue
        results["cases"][name] = line = measured(case, arguments)
        print(f"{name}: {json.dumps(line)}", flush=True)
        write(arguments.result, results)


if __name__ == "__main__":
    main()

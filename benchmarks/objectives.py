r"""Pre-training objectives at a small scale: held-out loss before and after, and what they are worth for a task.

    WEFT_DATA=DIR python benchmarks/objectives.py [--cases rtd,permutation] [--steps 800] [--device cuda]
    WEFT_DATA=DIR python benchmarks/objectives.py --size 2x128 --vocabulary 4000 --length 64 --batch 32 --steps 1500 \
        --rows 300 --epochs 12 --rates 0.0002 0.001          # on a CPU, an hour

Each network is pre-trained on text without labels (IMDb's reviews, or Tatoeba's English sentences; for translation LM,
Tatoeba's sentence pairs). Then it is fine-tuned on few labeled rows, and beside it the same network with the weights
that the pre-training began with: the same vocabulary, rows, steps and batch, at the better of the same learning rates,
over the same seeds. The rows are of subjectivity after reviews, and of TREC's questions after sentences.
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


def accuracies(base: Path, rows: tuple[Path, Path], arguments: argparse.Namespace) -> dict[str, Any]:
    """Accuracy on the test rows, mean and spread over seeds at the better learning rate."""
    found: dict[float, list[float]] = {}
    for rate, seed in itertools.product(arguments.rates, range(arguments.seeds)):
        with tempfile.TemporaryDirectory() as out:
            training = {"learning_rate": rate, "epochs": arguments.epochs, "batch": 32, "evaluate_every": 1 << 20}
            weft.finetune(
                rows[0],
                task="classify",
                base=base,
                dev=rows[1],
                out=Path(out) / "run",
                seed=seed,
                training=training,
                device=arguments.device,
                log=lambda text: None,
            )
            lines = read_metrics(Path(out) / "run/run/metrics.jsonl")
        accuracy = [line["validation_accuracy"] for line in lines if "validation_accuracy" in line][-1]
        found.setdefault(rate, []).append(accuracy)
    rate = max(found, key=lambda rate: statistics.mean(found[rate]))
    spread = statistics.stdev(found[rate]) if arguments.seeds > 1 else 0.0
    return {"accuracy": round(statistics.mean(found[rate]), 4), "spread": round(spread, 4), "learning rate": rate}


def labeled(name: str, arguments: argparse.Namespace, scratch: Path) -> tuple[Path, Path]:
    """Few rows to learn from, and the test rows."""
    train, test = read(name, arguments.data)
    paths = scratch / f"{name}-train.jsonl", scratch / f"{name}-test.jsonl"
    for path, rows in zip(paths, (train[: arguments.rows], test), strict=True):
        path.write_text("".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows))
    return paths


def measured(case: Case, arguments: argparse.Namespace) -> dict[str, Any]:
    name = "trec" if case.pairs or arguments.text == "sentences" else "subjectivity"
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        line, begin, end = pretrained(case, arguments, scratch)
        rows = labeled(name, arguments, scratch)
        tuned = {name: accuracies(base, rows, arguments) for name, base in (("pre-trained", end), ("scratch", begin))}
    gain = tuned["pre-trained"]["accuracy"] - tuned["scratch"]["accuracy"]
    task = f"{name}, {arguments.rows} rows"
    return {"family": case.family, "objective": case.objective, **line, "task": task, **tuned, "gain": round(gain, 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES), help=f"some of {', '.join(CASES)}")
    parser.add_argument("--data", type=Path, default=os.environ.get("WEFT_DATA"))
    parser.add_argument("--text", choices=("reviews", "sentences"), default="reviews", help="to pre-train on")
    parser.add_argument("--size", default="4x256")
    parser.add_argument("--vocabulary", type=int, default=8000)
    parser.add_argument("--megabytes", type=float, default=12.0)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--rows", type=int, default=500)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-4, 5e-4])
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

"""Fine-tuning on little data with default settings, beside linear baselines on the same rows.

    python benchmarks/small_data.py --data DIR --weights DIR --out FILE.json
    python benchmarks/small_data.py --data DIR --write-pack PACK.json.xz      # for a machine that does not have DIR
    python benchmarks/small_data.py --pack PACK.json.xz --weights DIR --out FILE.json --processes 8
    python benchmarks/small_data.py --table FILE.json
    python benchmarks/small_data.py --smoke

For every data set, size and seed, rows are drawn, and `weft.finetune` gets them as a CSV file with no settings but the
base. Beside it on the same rows: TF-IDF + logistic regression, and logistic regression on the frozen sentence
embeddings of the base (both scikit-learn, default settings). Accuracy is that of fixed test rows that no model saw;
the interval of a difference is over the seeds (Student's t).
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from common import parse
from small_rows import SETS, Row, pack, read, unpack

SIZES = (100, 300, 1000, 3000)
T95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 9: 2.262}  # Student's t at 97.5 %, by degrees of freedom
SMOKE = '{"training": {"steps": 2}}'
FACTS = ("weft", "tfidf", "embeddings")


def drawn(rows: list[Row], size: int, seed: int) -> list[Row]:
    """Rows drawn by chance, the same for every model."""
    return random.Random(seed).sample(rows, min(size, len(rows)))


def baselines(train: list[Row], test: list[Row], weights: str, device: str) -> dict[str, float]:
    """The accuracy of both linear baselines."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    import weft

    texts, labels = zip(*train, strict=True)
    test_texts, test_labels = zip(*test, strict=True)
    by_words = make_pipeline(TfidfVectorizer(), LogisticRegression(max_iter=1000)).fit(texts, labels)
    model = weft.load(weights, task="embed", device=device)
    vectors = [[answer.values for answer in model(list(some))] for some in (texts, test_texts)]
    by_vectors = LogisticRegression(max_iter=1000).fit(vectors[0], labels)
    return {
        "tfidf": float(by_words.score(test_texts, test_labels)),
        "embeddings": float(by_vectors.score(vectors[1], test_labels)),
    }


def finetuned(train: list[Row], test: list[Row], weights: str, device: str, seed: int, settings: Any) -> dict[str, Any]:
    """The accuracy of `weft.finetune` with its defaults, and the seconds of the whole call."""
    import weft

    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "rows.csv"
        with file.open("w", newline="", encoding="utf-8") as out:
            csv.writer(out).writerows([("text", "label"), *train])
        begin = time.perf_counter()
        model = weft.finetune(
            str(file), None, settings, task="classify", base=weights, seed=seed, device=device, log=lambda _: None,
            out=str(Path(scratch) / "run"),
        )  # fmt: skip
        seconds = time.perf_counter() - begin
        model.to(device)
        answers: list[Any] = model([text for text, _ in test])
        right = sum(answer.label == label for answer, (_, label) in zip(answers, test, strict=True))
        metrics = [json.loads(line) for line in (Path(scratch) / "run/run/metrics.jsonl").read_text().splitlines()]
    return {"weft": right / len(test), "seconds": seconds, "steps": metrics[-1]["step"]}


def one(name: str, size: int, seed: int, pools: Any, arguments: argparse.Namespace) -> dict[str, Any]:
    import torch

    torch.set_num_threads(arguments.threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    pool, test = pools
    train = drawn(pool, size, seed)
    found = finetuned(train, test, arguments.weights, device, seed, json.loads(arguments.settings))
    known = {"set": name, "size": size, "seed": seed}
    return {**known, **found, **({} if arguments.alone else baselines(train, test, arguments.weights, device))}


def all_of(work: list[tuple[str, int, int]], pools: Any, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The results of all runs as they come, in this process or in several."""
    if arguments.processes < 2:
        yield from (one(*job, pools[job[0]], arguments) for job in work)
        return
    with ProcessPoolExecutor(arguments.processes, mp_context=get_context("spawn")) as pool:
        for future in as_completed([pool.submit(one, *job, pools[job[0]], arguments) for job in work]):
            yield future.result()


def table(results: list[dict[str, Any]]) -> str:
    """Means over the seeds, and the difference to the better baseline with its interval."""
    head = f"{'data':<14}{'rows':>6}{'Weft':>8}{'TF-IDF':>8}{'embed.':>8}{'difference':>12}   95 %"
    lines = [head]
    for name in dict.fromkeys(result["set"] for result in results):
        for size in sorted({result["size"] for result in results if result["set"] == name}):
            some = [result for result in results if (result["set"], result["size"]) == (name, size)]
            means = {fact: statistics.mean(result[fact] for result in some) for fact in FACTS}
            best = max(("tfidf", "embeddings"), key=means.__getitem__)
            gaps = [result["weft"] - result[best] for result in some]
            gap = statistics.mean(gaps)
            half = T95[len(gaps) - 1] * statistics.stdev(gaps) / len(gaps) ** 0.5 if len(gaps) - 1 in T95 else 0.0
            cells = "".join(f"{means[fact]:>8.3f}" for fact in FACTS)
            lines.append(f"{name:<14}{size:>6}{cells}{gap:>+12.3f}   {gap - half:+.3f} to {gap + half:+.3f}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the folder of the data sets")
    parser.add_argument("--pack", type=Path, help="what small_rows.py wrote, in place of --data")
    parser.add_argument("--weights", help="the folder of all-MiniLM-L6-v2")
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--settings", default="{}", help="settings of weft.finetune as JSON; default: none")
    parser.add_argument("--alone", action="store_true", help="without the baselines")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path, help="print the table of these results")
    parser.add_argument("--write-pack", type=Path, help="write the rows of --data here, and stop")
    arguments = parse(parser, sets="sst2,imdb", sizes="20", seeds=1, threads=1, settings=SMOKE)
    if arguments.table:
        print(table(json.loads(arguments.table.read_text())))
        return
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if arguments.write_pack:
        pack(arguments.write_pack, arguments.data)
        return
    names = arguments.sets.split(",")
    packed = unpack(arguments.pack) if arguments.pack else {name: read(name, arguments.data) for name in names}
    work = [  # seed by seed, the longest first: what is broken off has all cells with fewer seeds
        (name, size, seed)
        for seed in range(arguments.seeds)
        for size in sorted(map(int, arguments.sizes.split(",")), reverse=True)
        for name in sorted(names, key=lambda name: name != "imdb")
    ]
    results: list[dict[str, Any]] = []
    for result in all_of(work, packed, arguments):
        print(json.dumps(result), flush=True)
        results.append(result)
        results.sort(key=lambda result: (names.index(result["set"]), result["size"], result["seed"]))
        if arguments.out:
            arguments.out.write_text(json.dumps(results, indent=1) + "\n")
    if not arguments.alone:
        print(table(results))


if __name__ == "__main__":
    main()

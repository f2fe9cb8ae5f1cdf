"""Fine-tuning from all-MiniLM-L6-v2: what Weft reaches, beside transformers with the same weights, epochs and rate.

    python benchmarks/finetune.py WORK SEED --data DIR --weights DIR --out FILE.json
    python benchmarks/finetune.py --all --seeds 5 --processes 8 --data DIR --weights DIR --out FILE.json
    python benchmarks/finetune.py --table OURS.json [THEIRS.json]

The works and their settings are those of `finetune_peer.py`, which also gathers the peer's figures. Nothing is chosen
on the data that is judged by: the model after the last step is what is scored. Seconds are those of the whole call
(rows read, tokenized, trained, judged, saved) and compare only where one run has the machine to itself.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch
from common import RESULTS, parse, write
from finetune_peer import WORKS, place, read_text

import weft
from weft.metrics.bootstrap import summarized

# How our reader is told what is in files that the peer's script reads by itself.
READ: dict[str, dict[str, Any]] = {
    "cola": {"names": ["source", "label", "star", "text"]},
    "mrpc": {"columns": {"label": "Quality"}},
    "imdb": {"columns": {"text": "text", "label": "label"}},
    "wikiann_en": {"format": "conll"},
    "wnut17": {"format": "conll"},
    "conll2000": {"format": "conll"},
}
TASKS = {"mrpc": "pair", "rte": "pair", "stsb": "pair", "squad": "answer"}


def task_of(name: str) -> str:
    return TASKS.get(name) or ("tag" if WORKS[name].kind == "tag" else "classify")


def file_for(data: Path, name: str, file: str, scratch: Path) -> str:
    """A file as our reader takes it: as it lies there, or without the prefix that its words carry."""
    work = WORKS[name]
    if work.prefix or ":" in file:
        out = scratch / (Path(file.partition(":")[2] or file).name + ".conll")
        lines = read_text(data, file).splitlines()
        out.write_text("\n".join(line.removeprefix(work.prefix) for line in lines) + "\n", encoding="utf-8")
        return str(out)
    found = place(data, file)
    assert found is not None, file
    return str(found)


def run(name: str, seed: int, data: Path, weights: Path, **more: Any) -> dict[str, Any]:
    """Train one model and judge it."""
    work = WORKS[name]
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        train = [file_for(data, name, file, scratch) for file in work.train]
        judged = file_for(data, name, work.judged, scratch)
        window = {"length": 384, "stride": 128} if name == "squad" else {"length": work.length, "long": "truncate"}
        settings = {
            "data": {"files": train, "dev": [judged], **READ.get(name, {})},
            "task": {"name": task_of(name), "baseline": False, **window, **more.pop("task", {})},
            "model": {"base": str(weights)},
            "seed": seed,
            "out": f"{folder}/run",
            # One evaluation, at the end: nothing is chosen by it. The head learns at the rate of the rest.
            "training": {
                **{"epochs": work.epochs, "learning_rate": work.learning_rate, "batch": 32, "head_rate": 1.0},
                **{"evaluate_every": 1 << 30, **more},
            },
        }
        begin = time.perf_counter()
        model = weft.finetune(settings=settings)
        seconds = time.perf_counter() - begin
        lines = [json.loads(line) for line in (scratch / "run/run/metrics.jsonl").read_text().splitlines()]
        training = [line for line in lines if "seconds" in line][-1]
        options = READ.get(name, {})
        if torch.cuda.is_available():
            model.to("cuda")
        found = model.evaluate(judged, **options)
    return {
        "work": name,
        "seed": seed,
        "measure": work.measure,
        "score": found.scores[work.measure].value,
        "scores": {key: score.value for key, score in found.scores.items()},
        "seconds": round(seconds, 2),
        "seconds of training": training["seconds"],
        "steps": training["step"],
        "memory": training["memory"],
    }


def run_all(given: argparse.Namespace) -> None:
    """Every work with every seed, some at a time; the file is written anew after each."""
    works = given.works.split(",") if given.works else [name for name in WORKS if there(given.data, name)]
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in works}
    environment = (
        {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"} if given.processes > 1 else None
    )

    def one(name: str, seed: int) -> dict[str, Any] | None:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "one.json"
            command = [sys.executable, __file__, name, str(seed), "--data", str(given.data)]
            command += ["--weights", str(given.weights), "--out", str(out)]
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            if done.returncode or not out.exists():
                print(f"{name} {seed}: failed ({done.returncode}): {done.stderr[-2000:]}", flush=True)
                return None
            return json.loads(out.read_text())

    with ThreadPoolExecutor(given.processes) as pool:
        jobs = {pool.submit(one, name, seed): name for name in works for seed in range(given.seeds)}
        for job in as_completed(jobs):
            result = job.result()
            if result is None:
                continue
            found[jobs[job]].append(result)
            print(json.dumps(result), flush=True)
            whole = {name: summary(runs) for name, runs in found.items() if runs}
            write(given.out, {"machine": machine(), "processes": given.processes, **whole})


def there(data: Path, name: str) -> bool:
    return all(place(data, file) for file in (*WORKS[name].train, WORKS[name].judged))


def machine() -> dict[str, str]:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{torch.get_num_threads()} CPU threads"
    return {"device": device, "torch": torch.__version__, "weft": weft.__version__}


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    runs = sorted(runs, key=lambda each: each["seed"])
    scores = [each["score"] for each in runs]
    return {
        "measure": runs[0]["measure"],
        "mean": statistics.mean(scores),
        "seeds": scores,
        "means": {key: statistics.mean(each["scores"][key] for each in runs) for key in runs[0]["scores"]},
        "seconds": [each["seconds"] for each in runs],
        "seconds of training": [each["seconds of training"] for each in runs],
        "steps": runs[0]["steps"],
    }


def table(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Both side by side; a difference counts where it is larger than the 95 % interval of the difference of means."""
    print("| work | score | Weft, mean of seeds | transformers | difference | 95 % of it |\n|---|---|---|---|---|---|")
    for name, work in ours.items():
        if name in ("machine", "processes") or name not in theirs:
            continue
        mine, peer = work["seeds"], theirs[name]["seeds"]
        (mean, _, low, high), (peer_mean, _, other_low, other_high) = summarized(mine), summarized(peer)
        width = ((high - low) ** 2 + (other_high - other_low) ** 2) ** 0.5 / 2
        gap = mean - peer_mean
        verdict = "" if gap >= -width else " (below)"
        print(f"| {name} | {work['measure']} | {mean:.4f} | {peer_mean:.4f} | {gap:+.4f}{verdict} | +- {width:.4f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", nargs="?", choices=[*WORKS])
    parser.add_argument("seed", nargs="?", type=int, default=0)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--works")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--table", nargs="+", type=Path)
    given = parse(parser)
    if given.smoke:  # one of each kind, in this process, and the table of them beside themselves
        works = ("sst2", "stsb", "wikiann_en")
        runs = [run(name, 0, given.data, given.weights, steps=1, epochs=None) for name in works]
        whole = {each["work"]: summary([each, {**each, "seed": 1}]) for each in runs}
        write(given.out, {"machine": machine(), **whole})
        given.table = [given.out, given.out]
    if given.table:
        theirs = given.table[1] if len(given.table) > 1 else RESULTS / "finetune_peer.json"
        table(json.loads(given.table[0].read_text()), json.loads(theirs.read_text()))
    elif given.all:
        run_all(given)
    else:
        found = run(given.work, given.seed, given.data, given.weights)
        print(json.dumps(found))
        write(given.out, found)


if __name__ == "__main__":
    main()

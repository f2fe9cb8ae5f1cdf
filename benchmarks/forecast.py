"""Forecasts of 10,000 noisy sine series: next step, ten steps by three strategies, and the coverage of intervals.

    python benchmarks/forecast.py [--seeds 5] [--parallel 5] [--device cuda]

The set is that of Geron's Hands-On Machine Learning (chapter 15): two sines of random frequency and phase and uniform
noise, 7,000 series to train on, 2,000 to choose the model by and to calibrate intervals on, 1,000 to test on. Every
model is trained by `weft.finetune` with the same steps, batch and schedule. The figures beside ours are those of the
lecture's own run; closed-form linear and naive are measured here. The noise floor is the variance of the noise.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import RESULTS, machine, parse, write

import weft

LECTURE = {"linear": 0.0040, "one recurrent neuron": 0.0110, "deep RNN": 0.0032, "deep RNN, dense output": 0.0028}
NOISE = 0.1**2 / 12  # the variance of 0.1 * (uniform - 0.5)
WINDOW, HORIZON = 50, 10
NEXT: dict[str, tuple[dict[str, Any], str]] = {  # model, and strategy
    "linear": ({"family": "linear"}, "vector"),
    "one recurrent neuron": ({"family": "rnn", "width": 1, "layers": 1}, "vector"),
    "deep RNN, dense output": ({"family": "rnn", "width": 20, "layers": 2}, "vector"),
    "RNN": ({"family": "rnn"}, "seq2seq"),
    "LSTM": ({"family": "lstm"}, "seq2seq"),
    "GRU": ({"family": "gru"}, "seq2seq"),
    "WaveNet": ({"family": "wavenet"}, "seq2seq"),
    "Transformer": ({"family": "transformer"}, "seq2seq"),
}
TEN = {name: ({"family": "gru"}, strategy) for name, strategy in
       (("step by step", "step"), ("vector output", "vector"), ("sequence to sequence", "seq2seq"))}  # fmt: skip


def sines(count: int, steps: int, seed: int = 42) -> list[dict[str, list[float]]]:
    """Rows of one series each."""
    chance = np.random.RandomState(seed)
    frequency, other, offset, other_offset = chance.rand(4, count, 1)
    time_ = np.linspace(0, 1, steps)
    series = 0.5 * np.sin((time_ - offset) * (frequency * 10 + 10))
    series += 0.2 * np.sin((time_ - other_offset) * (other * 20 + 20))
    series += 0.1 * (chance.rand(count, steps) - 0.5)
    return [{"values": row} for row in series.round(6).tolist()]


def one(name: str, ahead: int, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """Train one model and evaluate it on the test series."""
    model, strategy = (NEXT if ahead == 1 else TEN)[name]
    rows = sines(args.series, WINDOW + ahead)
    train, valid = round(0.7 * len(rows)), round(0.9 * len(rows))
    # The step strategy learns what the next-step model with one output learns.
    # The network alone, without the share of a baseline that a run would add where that helps.
    task = {"name": "forecast", "horizon": ahead, "window": WINDOW, "strategy": strategy, "blend": False}
    rate = 1e-3 if model["family"] == "transformer" else 5e-3
    training = {"steps": args.steps, "batch": 128, "learning_rate": rate, "evaluate_every": max(1, args.steps // 6)}
    begin = time.perf_counter()
    trained = weft.finetune(
        rows[:train], dev=rows[train:valid], task=task, model=model, training=training, seed=seed, device=args.device,
        log=lambda text: None, progress=False,
    )  # fmt: skip
    seconds = time.perf_counter() - begin
    evaluation = trained.to(args.device).evaluate(rows[valid:], progress=False)
    scores = {key: evaluation.scores[key].value for key in ("mse", "mae", "mase", "coverage")}
    baselines = {row["forecast"]: row["mse"] for row in evaluation.by_forecast if row["forecast"] != "model"}
    parameters = sum(weight.numel() for weight in trained.network.parameters())
    return {"name": name, "ahead": ahead, "seed": seed, **scores, "baselines": baselines, "parameters": parameters,
            "seconds": round(seconds, 1)}  # fmt: skip


def summed(results: list[dict[str, Any]], ahead: int) -> list[dict[str, Any]]:
    """Mean and spread over the seeds, by model."""
    lines = []
    for name in NEXT if ahead == 1 else TEN:
        some = [each for each in results if each["name"] == name and each["ahead"] == ahead]
        if not some:
            continue
        mse = [each["mse"] for each in some]
        line = {"model": name, "mse": statistics.mean(mse), "spread": statistics.stdev(mse) if len(mse) > 1 else 0.0}
        line |= {"seeds": mse, "mae": statistics.mean(each["mae"] for each in some)}
        line |= {"coverage": statistics.mean(each["coverage"] for each in some), "parameters": some[0]["parameters"]}
        line |= {"seconds": statistics.mean(each["seconds"] for each in some)}
        lines.append(line | ({"lecture": LECTURE[name]} if ahead == 1 and name in LECTURE else {}))
    return lines


def in_parallel(args: argparse.Namespace) -> list[dict[str, Any]]:
    """A process for each seed, so many at once: small models leave most of a GPU idle."""
    waiting, running, results = list(range(args.seeds)), list[subprocess.Popen[str]](), list[dict[str, Any]]()
    while waiting or running:
        while waiting and len(running) < args.parallel:
            command = [sys.executable, __file__, "--only", str(waiting.pop(0)), "--steps", str(args.steps)]
            command += ["--series", str(args.series), "--device", args.device]
            running.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        output, _ = running[0].communicate()
        if running.pop(0).returncode:
            raise SystemExit("a seed failed: see above")
        results += [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--series", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--parallel", type=int, default=5, help="seeds at once, each in its process; 0: in this one")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--models", default="", help="some of the models, such as GRU,linear; default: all")
    parser.add_argument("--only", type=int, help="one seed, its results as lines of JSON")
    parser.add_argument("--result", type=Path, default=RESULTS / "forecast.json")
    args = parse(parser, seeds=1, series=60, steps=4, parallel=0, device="cpu")
    torch.set_num_threads(1)
    chosen = [name for name in args.models.split(",") if name]
    runs = [(name, ahead) for ahead, table in ((1, NEXT), (HORIZON, TEN)) for name in table]
    runs = [run for run in runs if not chosen or run[0] in chosen]
    if args.only is not None:
        for name, ahead in runs:
            print(json.dumps(one(name, ahead, args.only, args)), flush=True)
        return
    if args.parallel and not chosen:
        results = in_parallel(args)
    else:
        results = [one(name, ahead, seed, args) for seed in range(args.seeds) for name, ahead in runs]
    tables = {ahead: summed(results, ahead) for ahead in (1, HORIZON)}
    for ahead, lines in tables.items():
        title = "next step" if ahead == 1 else f"{ahead} steps ahead"
        print(f"\n{title}: test MSE, mean and spread of {args.seeds} seeds")
        for line in lines:
            lecture = f"  lecture {line['lecture']:.4f}" if "lecture" in line else ""
            print(
                f"{line['model']:24} {line['mse']:.5f} +- {line['spread']:.5f}  coverage {line['coverage']:.3f}  "
                f"{line['parameters']:,} parameters  {line['seconds']:.0f} s{lecture}"
            )
        simple = next((each["baselines"] for each in results if each["ahead"] == ahead), {})
        print("  ".join(f"{name} {value:.5f}" for name, value in simple.items()))
    print("lecture: " + "  ".join(f"{name} {value:.4f}" for name, value in LECTURE.items()))
    print(f"noise floor {NOISE:.5f}; {machine()}")
    write(args.result, {"machine": machine(), "steps": args.steps, "series": args.series, "noise": NOISE,
                        "lecture": LECTURE, "next step": tables[1], "ten steps": tables[HORIZON],
                        "baselines": {each["ahead"]: each["baselines"] for each in results}})  # fmt: skip


if __name__ == "__main__":
    main()

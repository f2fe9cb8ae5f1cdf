"""A large corpus: how long it takes to tokenize, and the most memory that tokenizing and training on it ever hold.

    WEFT_DATA=DATA python benchmarks/corpus_memory.py          # 1 GB: IMDb's unlabeled reviews, again and again

The whole process is measured, torch and all, so what the loader holds is less than this.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


def measure(data: Path, folder: Path, size: int, vocabulary: int = 8000) -> dict[str, Any]:
    """Learn a vocabulary from part of the text, tokenize all of it, and train a few steps on pairs of sentences."""
    with lzma.open(data / "imdb" / "unsup.txt.xz") as file:
        reviews = file.read()
    (folder / "part.txt").write_bytes(reviews[:4_000_000].rpartition(b"\n")[0])
    with open(folder / "big.txt", "wb") as big:
        while big.tell() < size:
            big.write(reviews[:size])
    del reviews
    weft = [sys.executable, "-m", "weft"]
    learn = ["tokenizer", "learn", "--size", str(vocabulary), "--text", str(folder / "part.txt")]
    subprocess.run([*weft, *learn, "--out", str(folder / "tok")], check=True)
    command = ["pretrain", "--model", "bert", "--size", "1x64", "--objective", "mlm+nsp", "--length", "128"]
    command += ["--text", str(folder / "big.txt"), "--tokenizer", str(folder / "tok"), "--out", str(folder / "run")]
    command += ["--batch", "16", "--steps", "50", "--set", "text.holdout=0.0005"]
    environment = {**os.environ, "WEFT_CACHE": str(folder / "cache"), "TOKENIZERS_PARALLELISM": "true"}
    begin = time.perf_counter()
    subprocess.run([*weft, *command], check=True, env=environment)
    lines = (folder / "run" / "run" / "metrics.jsonl").read_text().splitlines()
    return {
        "bytes": (folder / "big.txt").stat().st_size,
        "seconds": round(time.perf_counter() - begin, 1),
        "peak memory GB": round(max(json.loads(line).get("memory", 0) for line in lines) / 1e9, 2),
        "tokens": json.loads((folder / "run" / "run" / "run.json").read_text())["text"]["tokens"],
        "python": platform.python_version(),
        "processors": os.cpu_count(),
    }


def main() -> None:
    from common import RESULTS, parse, write  # here, since a test imports `measure` alone

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=1_000_000_000)
    parser.add_argument("--out", type=Path, default=RESULTS / "corpus_memory.json")
    parser.add_argument("--vocabulary", type=int, default=8000)
    given = parse(parser, size=100_000, vocabulary=200)
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(os.environ["WEFT_DATA"]), Path(folder), given.size, given.vocabulary)
    print(json.dumps(found, indent=2))
    write(given.out, found)


if __name__ == "__main__":
    main()

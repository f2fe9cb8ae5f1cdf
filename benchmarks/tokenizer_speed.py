"""How fast Weft's tokenizer is against the `tokenizers` library that it wraps, on the same lines in one run.

    WEFT_DATA=... python benchmarks/tokenizer_speed.py [--lines 20000] [--rounds 3]

Prints interleaved medians and their ratios and writes benchmarks/results/tokenizer_speed.json. Without WEFT_DATA the
lines and the vocabulary are generated.
"""

from __future__ import annotations

import argparse
import itertools
import json
import lzma
import os
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import tokenizers
from common import RESULTS, parse, write

from weft.text.tokenizers.published import load_tokenizer
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.tokenizers.training import learn


def real_or_made(number: int) -> tuple[list[str], Tokenizer, str]:
    """Lines to encode, a tokenizer for them, and what they are."""
    root = os.environ.get("WEFT_DATA")
    if root:
        with lzma.open(Path(root) / "imdb" / "unsup.txt.xz", "rt", encoding="utf-8") as file:
            lines = [line.rstrip("\n") for line in itertools.islice(file, number)]
        vocabulary = Path(root) / "vocabularies" / "bert-base-uncased-vocab.txt"
        return lines, load_tokenizer(vocabulary), "IMDB reviews, bert-base-uncased"
    dice = random.Random(0)
    words = ["".join(dice.choices("etaoinshrdlu", k=dice.randrange(2, 10))) for _ in range(5000)]
    lines = [" ".join(dice.choices(words, k=200)) for _ in range(number)]
    return lines, learn(lines[:2000], "wordpiece", 8000), "generated text, learned WordPiece"


def interleaved(calls: dict[str, Callable[[list[str]], object]], chunks: list[list[str]]) -> dict[str, list[float]]:
    """Seconds of each call on each chunk, one after the other in an order that turns, so that all share the weather."""
    names = list(calls)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number, chunk in enumerate(chunks):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            start = time.perf_counter()
            calls[name](chunk)
            seconds[name].append(time.perf_counter() - start)
    return seconds


def load_time(tokenizer: Tokenizer, added: int) -> float:
    """Seconds to load the tokenizer from tokenizer.json with so many added tokens."""
    data = json.loads(tokenizer.library.to_str())
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": True, "special": False}
    first = tokenizer.vocabulary
    data["added_tokens"] += [{"id": first + n, "content": f"<added {n}>", **flags} for n in range(added)]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")
        start = time.perf_counter()
        load_tokenizer(folder)
        return time.perf_counter() - start


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--lines", type=int, default=20_000)
    options.add_argument("--chunk", type=int, default=500)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--added", type=int, default=20_000, help="tokens added to a tokenizer.json that is loaded")
    options.add_argument("--out", type=Path, default=RESULTS / "tokenizer_speed.json")
    asked = parse(options, lines=80, chunk=40, rounds=1, added=100)
    lines, tokenizer, what = real_or_made(asked.lines)
    library = tokenizer.library
    chunks = [lines[start : start + asked.chunk] for start in range(0, len(lines), asked.chunk)]
    seconds = interleaved(
        {
            "library encode_batch": lambda chunk: [one.ids for one in library.encode_batch(chunk)],
            "weft encode_batch": lambda chunk: [one.ids for one in tokenizer.encode_batch(chunk)],
            "library encode_batch_fast": lambda chunk: [one.ids for one in library.encode_batch_fast(chunk)],
            "weft ids": lambda chunk: tokenizer.ids(chunk),
        },
        chunks * asked.rounds,
    )
    tokens = sum(len(ids) for chunk in chunks for ids in tokenizer.ids(chunk))
    ratios = {
        ours: statistics.median(theirs / mine for mine, theirs in zip(seconds[ours], seconds[peer], strict=True))
        for ours, peer in (
            ("weft encode_batch", "library encode_batch"),
            ("weft ids", "library encode_batch_fast"),
        )
    }
    added = {str(number): load_time(tokenizer, number) for number in (0, asked.added)}
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    print(f"{len(lines)} lines, {tokens} tokens ({what}), {asked.rounds} rounds over chunks of {asked.chunk} lines")
    for name, median in medians.items():
        print(f"{name:28}{median * 1000:8.1f} ms a chunk (median)")
    for name, ratio in ratios.items():
        print(f"{name}: {ratio:.3f} of the library's speed (median of the ratios on the same chunk)")
    print(f"load with {asked.added:,} added tokens: {added[str(asked.added)]:.3f} s (without: {added['0']:.3f} s)")
    write(
        asked.out,
        {
            "what": what,
            "lines": len(lines),
            "tokens": tokens,
            "chunk": asked.chunk,
            "rounds": asked.rounds,
            "median seconds a chunk": medians,
            "speed against the library": ratios,
            "load seconds by added tokens": added,
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "tokenizers": tokenizers.__version__,
        },
    )


if __name__ == "__main__":
    main()

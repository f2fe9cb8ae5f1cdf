"""The cross-entropy of words by chunks beside all logits at once: time and peak memory, forward and backward.

    python benchmarks/word_loss.py              # two CPU threads, float32
    python benchmarks/word_loss.py --gpu        # GPT-2's and BERT's sizes in bf16, eager and compiled

Both sides have the same hidden states, table and labels; they take turns and medians are compared.
"""

from __future__ import annotations

import argparse
import json
import resource
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from common import RESULTS, machine, medians, parse, write
from torch import Tensor

from weft.nn.word_loss import CHUNKS, cross_entropy, word_loss

CPU_SIZES = [(1024, 768, 50_257), (4096, 384, 30_522), (8192, 128, 8_000)]  # predictions, width, words
GPU_SIZES = [(32_768, 768, 50_257), (32_768, 1024, 50_257), (4_915, 768, 30_522)]
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def whole(hidden: Tensor, table: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(F.linear(hidden, table), labels)


def chunked(hidden: Tensor, table: Tensor, labels: Tensor) -> Tensor:
    return word_loss(hidden, table, None, labels)


def one_size(rows: int, width: int, words: int, device: str, repeats: int) -> dict[str, Any]:
    """Seconds and bytes of each way at one size."""
    torch.manual_seed(0)
    kind = torch.bfloat16 if device == "cuda" else torch.float32
    hidden = torch.randn(rows, width, device=device, dtype=kind, requires_grad=True)
    table = (0.02 * torch.randn(words, width, device=device)).requires_grad_()
    labels = torch.randint(words, (rows,), device=device)
    ways: dict[str, Loss] = {"whole": whole, "chunked": chunked}
    if device == "cuda":
        ways |= {f"{name}, compiled": torch.compile(way) for name, way in list(ways.items())}

    def run(way: Loss) -> None:
        hidden.grad = table.grad = None
        with torch.autocast("cuda", torch.bfloat16) if device == "cuda" else nullcontext():
            loss = way(hidden, table, labels)
        (loss / rows).backward()

    peaks = {}
    for name, way in ways.items():
        if device == "cuda":
            run(way)
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            run(way)
            peaks[name] = torch.cuda.max_memory_allocated() - before
    settle = torch.cuda.synchronize if device == "cuda" else lambda: None
    seconds = medians({name: partial(run, way) for name, way in ways.items()}, repeats, settle=settle)
    return {
        "predictions": rows,
        "width": width,
        "words": words,
        "logits_bytes": 4 * rows * words,
        "chunk_bytes": min(CHUNKS[device], 4 * rows * words),
        "seconds": seconds,
        "peak_bytes": peaks,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    given = parse(parser, repeats=1)
    device = "cuda" if given.gpu and torch.cuda.is_available() else "cpu"
    torch.set_num_threads(given.threads)
    sizes = [(64, 16, 300)] if given.smoke else GPU_SIZES if device == "cuda" else CPU_SIZES
    found = {"machine": machine(), "sizes": [one_size(*size, device, given.repeats) for size in sizes]}
    if device == "cpu":
        found["process_peak_bytes"] = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps(found, indent=2))
    if not given.smoke or given.out is not None:
        write(given.out or RESULTS / f"word_loss_{device}.json", found)


if __name__ == "__main__":
    main()

"""Transformer-XL beside the Transformer on both texts of the ladder, and what its memory saves in evaluation.

    WEFT_DATA=DATA python benchmarks/transformer_xl.py --texts shakespeare          # about 5 minutes on a GPU
    WEFT_DATA=DATA python benchmarks/transformer_xl.py --texts war_and_peace
    WEFT_DATA=DATA python benchmarks/transformer_xl.py --texts shakespeare --out FOLDER    # keeps the models
    WEFT_DATA=DATA python benchmarks/transformer_xl.py --size small --tokens 4000000 --windows 1024    # on a CPU

Two rungs of the ladder read the same number of tokens and have the same number of parameters. It prints bits per byte
of both with the interval of the difference (bootstrap over the same blocks of text), bits per byte by the length of the
memory, and the speed of evaluation. With a memory of M tokens, every token is predicted from at least M tokens. Two
sliding windows do the same: windows of M + 1 tokens with stride 1, and windows of M + L tokens with stride L, where L
is the length of a segment.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import RESULTS, machine, parse, write
from ladder import TEXTS

from weft.budget import BUDGET
from weft.checkpoint.folder import LoadedModel
from weft.cli.inputs import table
from weft.metrics.bootstrap import Bootstrap, interval
from weft.runs.ladder import LadderFolder, ladder
from weft.tasks.model import load
from weft.tasks.perplexity import beginning, perplexity, slid, sliding_window, surprises

BLOCK = 64  # neighboring tokens that count as one example of the interval
RUNGS = ("transformer", "transformer-xl")


def opened_on(folder: Path, device: str) -> LoadedModel:
    model = load(folder)
    model.to(torch.device(device))
    return model.opened


def nats_of(opened: LoadedModel, text: str, **window: int) -> np.ndarray:
    """How little a model expected each token of a text, as `weft perplexity` reads it."""
    assert opened.tokenizer is not None
    ids = opened.tokenizer.ids([text], specials=False)
    readings = slid(ids, beginning(opened.tokenizer), *sliding_window(opened, **window), 0)
    return np.concatenate([surprise.nats.numpy() for surprise in surprises(opened, readings, 4 * BUDGET)])


def difference(one: np.ndarray, two: np.ndarray, size: int) -> dict[str, float]:
    """Bits per byte of the second less those of the first, with a 95 % interval by blocks of the same text."""
    sums = Bootstrap(2)
    for begin in range(0, len(one), BLOCK):
        part = slice(begin, begin + BLOCK)
        sums.add(1, [0, 0], [0, 1], [float((two - one)[part].sum()), len(one[part])])
    totals = sums.totals()
    each = interval(totals.sums[0] / totals.sums[1] * len(one) / size / math.log(2), totals.examples)
    return {"value": each.value, "low": each.low, "high": each.high}


def by_memory(opened: LoadedModel, text: str) -> dict[int, dict[str, float]]:
    """Bits per byte with memories from none to eight times that of training."""
    trained, rows = opened.config.memory_size, {}
    for memory in (0, trained // 2, trained, 2 * trained, 4 * trained, 8 * trained):
        score = perplexity(opened, [text], stream=True, memory=memory).bits_per_byte
        rows[memory] = {"value": score.value, "low": score.low, "high": score.high}
    return rows


def in_one_pass(opened: LoadedModel, length: int) -> LoadedModel:
    """The same weights in a network that reads a window at once, as a Transformer without memory does."""
    config = replace(opened.config, segment=length, memory=opened.config.memory_size)
    network = opened.family.network(config, opened.heads).to(opened.device).eval()
    network.load_state_dict(opened.network.state_dict())
    return replace(opened, config=config, network=network)


def timed(run: Any, device: str) -> tuple[float, Any]:
    run()  # the first time is slower
    if device == "cuda":
        torch.cuda.synchronize()
    begin = time.perf_counter()
    result = run()
    return time.perf_counter() - begin, result


def speeds(opened: LoadedModel, text: str, memory: int, tokens: int, device: str) -> dict[str, Any]:
    """Tokens per second of evaluation, all of the text with memory and some of it in windows, and their loss there."""
    assert opened.tokenizer is not None
    segment, total = opened.config.segment, len(nats_of(opened, text))
    cut = text[: len(text) * min(tokens, total) // total]
    options: dict[str, Any] = {"stream": True, "memory": memory}
    seconds, whole = timed(lambda: perplexity(opened, [text], **options), device)
    near = perplexity(opened, [cut], **options)
    rows = {"memory": {"tokens_per_second": whole.n_tokens / seconds, "bits_per_byte": near.bits_per_byte.value}}
    for name, length, stride in (("stride 1", memory + 1, 1), ("stride of a segment", memory + segment, segment)):
        windows = in_one_pass(opened, length)
        seconds, score = timed(lambda w=windows, n=length, s=stride: perplexity(w, [cut], length=n, stride=s), device)
        rows[name] = {"tokens_per_second": score.n_tokens / seconds, "bits_per_byte": score.bits_per_byte.value}
    for row in rows.values():
        row["ratio"] = rows["memory"]["tokens_per_second"] / row["tokens_per_second"]
    return {"memory": memory, "segment": segment, "tokens": near.n_tokens, "rows": rows}


def compare(name: str, given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """One text: both rungs, their difference, the memory, and the speed."""
    file, vocabulary = TEXTS[name]
    budget = {"models": list(RUNGS), "vocabulary": vocabulary, "tokens": given.tokens, "parallel": given.parallel}
    budget |= {"size": given.size} if given.size else {}
    results = ladder(None, {"out": str(folder), "text": {"files": [file]}, "ladder": budget, "device": given.device})
    failed = [rung["failed"] for rung in results["rungs"] if "failed" in rung]
    if failed:
        raise SystemExit(f"{name}: {failed[0]}")
    text = LadderFolder(folder).held_out.read_text(encoding="utf-8")
    models = {rung: opened_on(folder / rung, given.device) for rung in RUNGS}
    nats = {rung: nats_of(opened, text) for rung, opened in models.items()}
    size, model = len(text.encode()), models["transformer-xl"]
    rungs = {rung["name"]: rung for rung in results["rungs"]}
    print(f"\n{name}: {len(nats['transformer']):,} held-out tokens, {size:,} bytes")
    cells = [
        [rung, f"{nats[rung].sum() / size / math.log(2):.4f}", f"{each['parameters']:,}", f"{each['seconds']:.0f}"]
        for rung, each in rungs.items()
    ]
    print(table(["model", "bits/byte", "parameters", "seconds"], cells))
    less = difference(nats["transformer"], nats["transformer-xl"], size)
    print(f"transformer-xl minus transformer: {less['value']:+.4f} ({less['low']:+.4f} to {less['high']:+.4f})")
    memories = by_memory(model, text)
    for memory, score in memories.items():
        print(f"memory of {memory} tokens: {score['value']:.4f} bits per byte")
    evaluation = [speeds(model, text, memory, given.windows, given.device) for memory in given.memory]
    for each in evaluation:
        for kind, row in each["rows"].items():
            print(
                f"context of {each['memory']}, {kind}: {row['tokens_per_second']:,.0f} tokens/s, "
                f"{row['bits_per_byte']:.4f} bits per byte; memory is {row['ratio']:.1f} times as fast"
            )
    keys = ("bits_per_byte", "parameters", "tokens", "seconds", "tokens_per_second", "useful_context")
    return {
        "machine": machine(),
        "tokens": given.tokens,
        "rungs": {rung: {key: each[key] for key in keys} for rung, each in rungs.items()},
        "difference": less,
        "at_or_below": less["low"] <= 0.0,
        "by_memory": memories,
        "evaluation": evaluation,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", default=",".join(TEXTS), help="which of them, with commas")
    parser.add_argument("--tokens", type=int, default=30_000_000, help="that each model reads in training")
    parser.add_argument("--size", choices=("tiny", "small", "large"), help="small on a CPU, large on a GPU")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--parallel", type=int, default=2, help="models that are trained at once")
    parser.add_argument("--memory", type=int, nargs="+", default=[128, 512], help="tokens of memory, for the speed")
    parser.add_argument("--windows", type=int, default=4096, help="tokens that are read in windows, for the speed")
    parser.add_argument("--out", type=Path, help="where the ladders are made and kept; a folder for each text")
    parser.add_argument("--results", type=Path, default=RESULTS)
    tiny: dict[str, Any] = {"texts": "shakespeare", "tokens": 400, "size": "tiny", "parallel": 0}
    given = parse(parser, **tiny, memory=[16], windows=64, device="cpu")
    for name in given.texts.split(","):
        with tempfile.TemporaryDirectory() as scratch:
            found = compare(name, given, (given.out or Path(scratch)) / name)
            write(given.results / f"transformer_xl_{name}.json", found)


if __name__ == "__main__":
    main()

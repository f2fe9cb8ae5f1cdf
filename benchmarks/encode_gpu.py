"""Encoding on one GPU, ours beside transformers and sentence-transformers in one run, on the same weights.

    python benchmarks/encode_gpu.py                  # needs an NVIDIA GPU

BERT-base at 1 x 128 and 32 x 128 tokens: our pass as `weft.load` runs it (fp16 copy, captured), transformers in bf16
with scaled dot product attention, eager and compiled with CUDA graphs. Then 4,096 texts of mixed length through
`model.embed` and through sentence-transformers' encode, tokenizing included.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import RESULTS, about, medians, parse, peer, settle, write

import weft
from weft.backends.passes import outputs, running
from weft.nn.rows import Batch, Ragged

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
TINY = {"layers": 2, "width": 32, "heads": 2, "inner": 64}


def hidden(network: Any, batch: Batch) -> torch.Tensor:
    return network(batch.tokens, batch.rows, batch.segments)


def passes(settings: dict[str, int], repeats: int, batches: tuple[tuple[int, int], ...]) -> list[dict[str, Any]]:
    """One pass at a time, over tokens that are on the device already."""
    transformers = peer("transformers")
    model = weft.new("bert", settings=settings, heads={}).to(DEVICE)
    sides: dict[str, Any] = {}
    if transformers is not None:
        with tempfile.TemporaryDirectory() as folder:
            model.save(Path(folder) / "model")
            kind = torch.bfloat16 if GPU else torch.float32
            theirs = transformers.BertModel.from_pretrained(Path(folder) / "model", dtype=kind).to(DEVICE).eval()
        sides["transformers"] = theirs
        if GPU:
            sides["transformers, compiled"] = torch.compile(theirs, mode="reduce-overhead")
    found = []
    for rows, length in batches:
        ids = np.random.default_rng(0).integers(5, 90, (rows, length)).tolist()
        ragged = Ragged.of(ids, DEVICE)
        batch = Batch(ragged.tokens, ragged.rows)
        square = torch.tensor(ids, device=DEVICE)
        mask = torch.ones_like(square)
        with torch.inference_mode():
            exact = hidden(model.network, batch)
            for _ in range(3):
                ours = outputs(model.opened, batch, hidden, None)
            apart = float((ours - exact).abs().max() / exact.abs().max())

            def our_pass(batch: Batch = batch) -> Any:
                return outputs(model.opened, batch, hidden, None)

            runs: dict[str, Callable[[], Any]] = {"ours": our_pass}
            runs["ours, not captured"] = lambda batch=batch: hidden(running(model.opened), batch)
            for name, side in sides.items():
                runs[name] = lambda side=side, square=square, mask=mask: side(input_ids=square, attention_mask=mask)
            times = medians(runs, repeats, warm=8, settle=settle)
        row = {
            "work": f"BERT encode, {rows} x {length}",
            "milliseconds": {name: round(1e3 * seconds, 3) for name, seconds in times.items()},
            "largest difference from fp32, as a share": round(apart, 5),
        }
        print(json.dumps(row), flush=True)
        found.append(row)
    return found


def texts_of(count: int, longest: int) -> list[str]:
    """Texts of words with lengths like those of reviews and paragraphs."""
    chance = random.Random(0)
    words = ["film", "the", "story", "of", "a", "good", "actor", "and", "its", "music", "was", "slow", "but", "clever"]
    return [
        " ".join(chance.choices(words, k=min(longest, max(4, round(chance.lognormvariate(4.0, 0.8))))))
        for _ in range(count)
    ]


def embeddings(folder: Path, repeats: int, count: int) -> dict[str, Any]:
    """Mixed lengths, tokenizing included."""
    model: Any = weft.load(folder, task="embed").to(DEVICE)
    texts = texts_of(count, 180)
    runs: dict[str, Callable[[], Any]] = {"ours": lambda: model.embed(texts)}
    sentence_transformers = peer("sentence_transformers")
    if sentence_transformers is not None:
        theirs = sentence_transformers.SentenceTransformer(str(folder), device=DEVICE.type)
        theirs.max_seq_length = 256

        def encode(batch: int = 32) -> Any:
            return theirs.encode(texts, batch_size=batch, show_progress_bar=False)

        runs["sentence-transformers"] = encode
        runs["sentence-transformers, batches of 256"] = lambda: encode(256)
    times = medians(runs, repeats, warm=2, settle=settle)
    row: dict[str, Any] = {
        "work": f"{count} texts of mixed length",
        "model": f"{model.config.layers} x {model.config.width}",
        "seconds": {name: round(seconds, 3) for name, seconds in times.items()},
        "texts per second": {name: round(count / seconds) for name, seconds in times.items()},
    }
    if sentence_transformers is not None:
        ours = torch.nn.functional.normalize(torch.tensor([each.values for each in model.embed(texts[:64])]))
        same = torch.from_numpy(theirs.encode(texts[:64], normalize_embeddings=True))
        row["least cosine with sentence-transformers"] = round(float((ours * same).sum(1).min()), 6)
        row["ratio"] = {name: round(seconds / times["ours"], 2) for name, seconds in times.items() if name != "ours"}
    print(json.dumps(row), flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--weights", type=Path, help="a folder of sentence-transformers, such as all-MiniLM-L6-v2")
    parser.add_argument("--out", type=Path, default=RESULTS / "encode_gpu.json")
    given = parse(parser, repeats=1)
    if not GPU and not given.smoke:
        parser.error("there is no GPU here; --smoke only tries the script out")
    batches = ((1, 16), (2, 16)) if given.smoke else ((1, 128), (32, 128))
    found: dict[str, Any] = {
        **about("transformers"),
        "works": passes({**TINY, "vocabulary": 99} if given.smoke else {}, given.repeats, batches),
    }
    if given.weights is not None:
        found["works"].append(embeddings(given.weights, max(1, given.repeats // 6), 20 if given.smoke else 4096))
    write(given.out, found)


if __name__ == "__main__":
    main()

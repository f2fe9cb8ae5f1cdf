"""Batch = single: 1,500 texts as one list and one by one, by every engine in every precision.

    WEFT_DATA=DIR python benchmarks/batch_single.py                 # fine-tunes all-MiniLM-L6-v2 on SST-2 for a minute
    WEFT_DATA=DIR python benchmarks/batch_single.py --model FOLDER  # a classifier that is there
    WEFT_DATA=DIR python benchmarks/batch_single.py --device cuda   # torch on a GPU

DIR holds glue/sst2, imdb and multi30k. The texts are sentences of SST-2 and whole reviews of IMDb, mixed. For each
engine and precision: the largest difference of a probability between both ways, the labels that differ, and how many of
them although the two best labels were further apart than twice the bound. A small translator, trained for a few steps,
writes captions greedily, together and one by one.
"""

from __future__ import annotations

import argparse
import gzip
import json
import lzma
import os
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import RESULTS, machine, minilm, parse, write

import weft
from weft.exporters.export import BOUNDS, write_ct2
from weft.quantization.quantize import KINDS, write_candidate

REVIEWS = 128  # of the texts; the others are single sentences
Row = tuple[str, str | None]  # a text and its label, where it has one


def table(path: Path) -> list[list[str]]:
    with lzma.open(path, "rt", encoding="utf-8") as file:
        return [line.rstrip("\n").split("\t") for line in file][1:]


def mixed(data: Path, count: int, seed: int = 0) -> list[Row]:
    """Labeled sentences, further sentences, and reviews of many windows, shuffled."""
    judged: list[Row] = [(text.strip(), label) for text, label in table(data / "glue/sst2/dev.tsv.xz")]
    more: list[Row] = [(row[0].strip(), None) for row in table(data / "glue/sst2/train.tsv.xz")[-count:]]
    reviews: list[Row] = [
        (row[-1], None) for row in table(data / "imdb/test.tsv.xz")[: max(1, count * REVIEWS // 1500)]
    ]
    found = [*reviews, *judged, *more][:count]
    random.Random(seed).shuffle(found)
    return found


def classifier(data: Path, weights: Path, rows: int, out: Path) -> Path:
    """A classifier of a minute's training."""
    few = out.with_suffix(".tsv")
    lines = [f"{text}\t{label}" for text, label in table(data / "glue/sst2/train.tsv.xz")[:rows]]
    few.write_text("\n".join(["sentence\tlabel", *lines, ""]), encoding="utf-8")
    weft.finetune(few, task="classify", base=str(weights), training={"epochs": 1.0}, out=out)
    return out


def compared(model: Any, rows: list[Row]) -> dict[str, Any]:
    """Both ways for every text."""
    texts = [text for text, _ in rows]
    begin = time.perf_counter()
    together: list[Any] = model(texts)
    middle = time.perf_counter()
    alone: list[Any] = [model(text) for text in texts]
    end = time.perf_counter()
    bound = BOUNDS[model.card.precision or "fp32"]
    pairs = list(zip(together, alone, strict=True))
    apart = [max(abs(one.scores[label] - two.scores[label]) for label in one.scores) for one, two in pairs]
    other = [one for one, two in pairs if one.label != two.label]
    gaps = [np.diff(sorted(answer.scores.values())[-2:])[0] for answer in other]
    right = [answer.label == label for answer, (_, label) in zip(together, rows, strict=True) if label is not None]
    return {
        "largest difference": float(max(apart)),
        "bound": bound,
        "labels that differ": len(other),
        "of them not tied": int(sum(gap > 2 * bound for gap in gaps)),
        "ok": bool(max(apart) <= bound and all(gap <= 2 * bound for gap in gaps)),
        "accuracy on SST-2 dev": float(np.mean(right)),
        "seconds as a list": round(middle - begin, 1),
        "seconds one by one": round(end - middle, 1),
    }


def classifiers(folder: Path, rows: list[Row], scratch: Path, device: str) -> dict[str, Any]:
    """Every engine and precision of one classifier; the engines of exports run on the CPU only."""
    model = weft.load(folder, device=device)
    found = {}
    for kind in ("torch-fp32", *(KINDS if device == "cpu" else ["bf16"])):
        written = model
        if kind != "torch-fp32":
            (scratch / kind).mkdir()
            write_candidate(kind, scratch / kind, model, [text for text, _ in rows[:128]])
            written = weft.load(scratch / kind, device=device)
        found[{"bf16": "torch-bf16"}.get(kind, kind)] = compared(written, rows)
        print(json.dumps({kind: found[{"bf16": "torch-bf16"}.get(kind, kind)]}), flush=True)
    return found


def captions(path: Path, count: int) -> list[str]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [line.strip() for line in file][:count]


def writers(data: Path, options: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """A translator, greedily: whether it writes the same for a caption in a batch and alone, in fp32."""
    folder = data / "multi30k"
    for side in ("en", "de"):
        lines = captions(folder / f"train.{side}.gz", options.pairs)
        (scratch / f"train.{side}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    model = weft.finetune(
        task="translate",
        data={"source": [str(scratch / "train.en")], "target": [str(scratch / "train.de")]},
        model={"family": "transformer", "size": options.writer},
        tokenizer={"size": options.vocabulary},
        training={"steps": options.steps},
        out=scratch / "translator",
    ).to(options.device)
    engines = {"torch-fp32": model}
    if options.device == "cpu":
        (scratch / "engine").mkdir()
        write_ct2(scratch / "engine", model.opened, "translate")
        engines["ctranslate2-fp32"] = weft.load(scratch / "engine")
    texts = captions(folder / "test_2016_flickr.en.gz", options.captions)
    found = {}
    for name, each in engines.items():
        together: list[Any] = each(texts, beam_size=1)
        alone: list[Any] = [each(text, beam_size=1) for text in texts]
        other = sum(one.text != two.text for one, two in zip(together, alone, strict=True))
        found[name] = {"captions": len(texts), "texts that differ": other, "ok": other == 0}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=None, help="folder of a classifier for SST-2")
    parser.add_argument("--weights", type=Path, default=minilm(), help="what is fine-tuned where there is none")
    parser.add_argument("--rows", type=int, default=3000, help="of SST-2 to fine-tune on")
    parser.add_argument("--texts", type=int, default=1500)
    parser.add_argument("--captions", type=int, default=500, help="to translate")
    parser.add_argument("--pairs", type=int, default=5000, help="of captions to train on")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--writer", default="2x128", help="layers x width of the translator")
    parser.add_argument("--vocabulary", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu", help="cuda: torch alone, on a GPU")
    parser.add_argument("--out", type=Path, default=RESULTS / "batch_single.json")
    tiny = {"rows": 40, "texts": 12, "captions": 4, "pairs": 40, "steps": 2, "writer": "1x64", "vocabulary": 300}
    options = parse(parser, **tiny)
    if options.model is None and options.weights is None:
        parser.error("all-MiniLM-L6-v2 is not installed: give --model or --weights")
    data = Path(os.environ["WEFT_DATA"])
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        rows = mixed(data, options.texts)
        model = options.model or classifier(data, options.weights, options.rows, scratch / "classifier")
        found = {
            "machine": machine(),
            "texts": len(rows),
            "classifier": classifiers(model, rows, scratch, options.device),
            "translator, greedy": writers(data, options, scratch),
        }
    names = ["largest difference", "bound", "labels that differ", "ok", "accuracy on SST-2 dev"]
    print("", "engine", *names, "", sep=" | ")
    for name, row in found["classifier"].items():
        print(
            "", name, f"{row[names[0]]:.1e}", *(row[key] for key in names[1:4]), f"{row[names[4]]:.4f}", "", sep=" | "
        )
    for name, row in found["translator, greedy"].items():
        print(f"{name}: {row['texts that differ']} of {row['captions']} captions differ")
    write(options.out, found)


if __name__ == "__main__":
    main()

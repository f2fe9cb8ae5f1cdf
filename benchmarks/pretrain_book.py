"""What `weft pretrain` reaches on a book, beside the bare training step of `train_gpu.py` at the same sizes.

    python benchmarks/pretrain_book.py --text BOOK.txt          # needs an NVIDIA GPU with bf16

It does what `weft pretrain --model bert-base --text BOOK.txt --length 512 --batch 64 --compile` does, for some steps.
Tokens a second are the median over the lines of the run's record after the first quarter of the steps, in which it
compiles; those of the bare step are measured afterwards in the same process, with the vocabulary of the run. The fill
says how much of `--length` the rows hold: 1 where documents are packed into full rows.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from common import RESULTS, machine, parse, write
from train_gpu import GPU, TINY, Sizes, steady_bert

import weft
from weft.training.run import Run


def pretrained(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Speed and fill of a run on the text."""
    model = {"family": "bert", "size": f"{TINY.layers}x{TINY.width}", "heads": TINY.heads}
    made = weft.pretrain(
        model=model if given.smoke else {"family": "bert-base"},
        text={"files": [str(given.text)]},
        tokenizer={"size": given.vocabulary},
        objective={"length": given.length},
        training={
            "steps": given.steps,
            "batch": given.batch,
            "compile": GPU,
            "log_every": given.log_every,
            "evaluate_every": given.steps,
        },
        out=str(folder / "run"),
    )
    lines = [line for line in Run(folder / "run").lines() if "tokens_per_second" in line]
    steady = [line for line in lines if line["step"] > given.steps / 4]
    last = lines[-1]
    return {
        "tokens per second": round(statistics.median(line["tokens_per_second"] for line in steady)),
        "fill of the rows": round(last["tokens"] / (last["step"] * given.batch * given.length), 3),
        "vocabulary": made.config.vocabulary,
        "peak memory GiB": round(last["memory"] / 2**30, 1),
        "compiled graphs": sorted({line.get("graphs") for line in steady}, key=str),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, help="a text file, such as a book")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=64, help="rows of a step")
    parser.add_argument("--length", type=int, default=512, help="tokens of a row")
    parser.add_argument("--vocabulary", type=int, default=8000)
    parser.add_argument("--log-every", type=int, default=10, help="steps between two lines of the record")
    parser.add_argument("--repeats", type=int, default=15, help="turns of some bare steps that are timed")
    parser.add_argument("--out", type=Path, default=RESULTS / "pretrain_book.json")
    given = parse(parser, steps=4, batch=2, length=32, vocabulary=200, log_every=1, repeats=2)
    if given.smoke:
        given.text = Path(os.environ["WEFT_DATA"]) / "books" / "warandpeace.txt.xz"
    elif not GPU:
        parser.error("there is no GPU here; --smoke only tries the script out")
    elif given.text is None:
        parser.error("give --text, a file to learn from")
    with tempfile.TemporaryDirectory() as folder:
        run = pretrained(given, Path(folder))
    gc.collect()  # the run's own graphs and weights
    torch.cuda.empty_cache()
    torch._dynamo.reset()
    torch.set_float32_matmul_precision("high")
    sizes = replace(TINY if given.smoke else Sizes(), vocabulary=run["vocabulary"])
    bare = steady_bert(sizes, given.batch, given.length, given.repeats)
    found = {
        "work": f"BERT {sizes.layers} x {sizes.width} MLM, {given.batch} x {given.length}",
        "machine": machine(),
        "weft pretrain": run,
        "bare step, tokens per second": round(bare),
        "ratio": round(run["tokens per second"] / bare, 3),
    }
    print(json.dumps(found, indent=2))
    write(given.out, found)


if __name__ == "__main__":
    main()

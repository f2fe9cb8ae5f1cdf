"""A small taste of what is there: a vocabulary from a text, models with fresh weights, folders, words and vectors.

`make demo` runs it; everything it makes is in the folder `demo`, which it empties first.
"""

from __future__ import annotations

import shlex
import shutil
import sys
import time
from pathlib import Path

from weft.cli.main import run

HERE = Path(__file__).parent
OUT = Path("demo")
STEPS = [
    ("Learn two vocabularies from a text, the same every time", [
        f"weft tokenizer learn --kind wordpiece --size 600 --text {HERE}/weaver.txt --out {OUT}/words",
        f"weft tokenizer learn --kind bpe --size 600 --text {HERE}/weaver.txt --out {OUT}/pieces",
        f'weft tokenizer show {OUT}/words "The weavers hurried."',
    ]),
    ("Make a small BERT and two small GPT-2s, one with a block swapped; fresh weights, so they know nothing yet", [
        f"weft new --model bert --size 2x128 --tokenizer {OUT}/words --out {OUT}/bert",
        f"weft new --model gpt2 --size 2x128 --tokenizer {OUT}/pieces --out {OUT}/gpt",
        f"weft new --model gpt2 --size 2x128 --set model.positions=rotary --tokenizer {OUT}/pieces --out {OUT}/rotary",
        f"weft info {OUT}/bert",
    ]),
    ("Words out of them: what an untrained model says is noise, and the same noise every time", [
        f'weft generate {OUT}/gpt "The weaver said" --tokens 12',
        f'weft generate {OUT}/rotary "The weaver said" --tokens 12 --top-p 0.9 --seed 1',
        f'weft fill {OUT}/bert "the [MASK] of the loom" --top 3',
        f"weft embed {OUT}/bert 'The loom was old.' --out {OUT}/vectors.npy",
    ]),
    ("What there is", ["weft models"]),
]  # fmt: skip


def main() -> int:
    begin = time.perf_counter()
    shutil.rmtree(OUT, ignore_errors=True)
    for title, commands in STEPS:
        print(f"\n== {title}")
        for command in commands:
            print(f"\n$ {command}", flush=True)
            status = run(shlex.split(command)[1:])
            if status:
                return status
    print(
        f"\nDone in {time.perf_counter() - begin:.0f} s. The folders {OUT}/bert and {OUT}/gpt open in transformers too."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Decoding on this CPU beside transformers and CTranslate2, with one set of random weights.

    python benchmarks/decode_cpu.py --out benchmarks/results/decode_cpu.json
    python benchmarks/decode_cpu.py --only 8 --out benchmarks/results/decode_cpu.json    # the others keep their figures

GPT-2 (124M) continues prompts of 64 tokens by 64 tokens, greedily, one prompt at a time and eight together; a 3 x 256
Marian writes 24 tokens by a beam of 5 from one source of 14. Nothing may end early, so all do the same work. This is
`weft bench --mode generate` with given tokens: the contestants take turns, medians are compared, and one counts only
where its tokens agree with plain torch's (see docs/bench.md). CTranslate2 itself is called as its own users call it.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from common import machine, parse, write

import weft
from weft.bench.texts import Profile
from weft.bench.writing import writing_report
from weft.generation.text import Prompt
from weft.tasks.model import Model

READ, SOURCE, WRITTEN = 64, 14, 24  # tokens of a prompt and of a source; that the Marian writes
PEERS = ("transformers", "ctranslate2")
NAMES = {  # in the results; those of peers stay
    "torch": "weft fp32",
    "onednn-bf16": "weft bf16",
    "ctranslate2": "weft ctranslate2",
    "ctranslate2-int8": "weft int8",
}
PAIRS = {  # ours, beside peers of the same precision
    "weft fp32": ("transformers", "ctranslate2 fp32"),
    "weft bf16": ("transformers",),
    "weft ctranslate2": ("transformers", "ctranslate2 fp32"),
    "weft int8": ("transformers", "ctranslate2 int8"),
}


def measured(model: Model, profile: Profile, new: int, seconds: float, peers: tuple[str, ...]) -> dict[str, Any]:
    """Tokens a second of all that passed the gate, with quartiles, and how ours stand to the peers."""
    options: dict[str, Any] = {"seconds": seconds, "memory": False, "keep": False, "log": print}
    report = writing_report(model, [profile], new, against=peers, **options)
    speeds = {NAMES.get(each.name, each.name): each.speeds[profile.name] for each in report.contestants if each.speeds}
    result: dict[str, Any] = {
        name: {
            "tokens/s": round(speed.tokens, 1),
            "milliseconds": round(1e3 * speed.seconds, 1),
            "quartiles": [round(1e3 * speed.low, 1), round(1e3 * speed.high, 1)],
        }
        for name, speed in speeds.items()
    }
    assert report.choice is not None
    result["chosen"] = NAMES[report.choice.backend]
    result["refused"] = {each.name: each.refused for each in report.contestants if each.refused is not None}
    result["times as fast"] = {
        f"{mine} / {other}": round(speeds[other].seconds / speeds[mine].seconds, 2)
        for mine, others in PAIRS.items()
        for other in others
        if mine in speeds and other in speeds
    }
    print(json.dumps({name: one["tokens/s"] for name, one in result.items() if name in speeds}), flush=True)
    print(json.dumps({"chosen": result["chosen"], **result["times as fast"]}), flush=True)
    return result


def tokens_of(count: int, length: int, vocabulary: int) -> list[list[int]]:
    chance = torch.Generator().manual_seed(0)
    return torch.randint(10, vocabulary, (count, length), generator=chance).tolist()


def stored(family: str, size: str, task: str, folder: Path, **settings: Any) -> Model:
    """A model of drawn weights, as a folder has it: exports are kept by the hash of that."""
    Model(weft.new(family, size=size, settings=settings).opened, task).save(folder)
    return weft.load(folder, task, backend="torch")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=12.0, help="of each contestant and work, after two rounds")
    parser.add_argument("--gpt", default="12x768", help="layers x width")
    parser.add_argument("--marian", default="3x256", help="layers x width")
    parser.add_argument("--only", nargs="+", default=["1", "8", "beam"], help="1, 8, beam")
    parser.add_argument("--out", type=Path, default=None)
    asked = parse(parser, threads=1, seconds=0.01, gpt="1x64", marian="1x64")
    torch.set_num_threads(asked.threads)
    peers = () if asked.smoke else PEERS
    settings = {"vocabulary": 500} if asked.smoke else {}
    results: dict[str, Any] = json.loads(asked.out.read_text()) if asked.out and asked.out.exists() else {}
    results |= {"machine": machine(), "threads": asked.threads}

    def keep(model: Model, profile: Profile, new: int) -> None:
        results[profile.name] = measured(model, profile, new, asked.seconds, peers)
        if asked.out is not None:
            write(asked.out, results)

    with tempfile.TemporaryDirectory() as folder:
        batches = [int(batch) for batch in asked.only if batch != "beam"]
        gpt = stored("gpt2", asked.gpt, "complete", Path(folder) / "gpt", **settings) if batches else None
        for batch in batches:
            assert gpt is not None
            prompts = tuple(Prompt(each) for each in tokens_of(batch, READ, gpt.config.vocabulary))
            name = f"GPT-2 {asked.gpt}, greedy, batch {batch}"
            keep(gpt, Profile(name, batch, prompts, batch * 64), 64)
        if "beam" in asked.only:
            sizes = {"vocabulary": 500 if asked.smoke else 8000, "context": 128}
            marian = stored("marian", asked.marian, "translate", Path(folder) / "marian", **sizes)
            (source,) = tokens_of(1, SOURCE, marian.config.vocabulary)
            name = f"Marian {asked.marian}, beam 5, batch 1"
            keep(marian, Profile(name, 1, (Prompt([marian.config.begin], None, source),), WRITTEN), WRITTEN)
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()

"""Training steps on one GPU, ours beside compiled transformers in one run: tokens a second, share of peak, memory.

    python benchmarks/train_gpu.py                  # needs an NVIDIA GPU with bf16

Both sides train the same sizes with dropout on, in bf16 under autocast, with fused AdamW; ours also clips the gradient.
They take turns and medians are compared. `--parts bert,mixed,gpt2` chooses among the three.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
from collections.abc import Callable
from itertools import count, cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import transformers
from ragged import mixed_lengths

from weft.checkpoint.families import FAMILIES
from weft.data.masking import Masking, shift
from weft.data.rows import Drawn
from weft.objectives.language import MaskedWords, NextToken
from weft.timing import medians
from weft.training.loop import seed_of, update
from weft.training.optim import make_optimizer
from weft.training.passes import Passes
from weft.training.plan import Training

PEAK = 989e12  # bf16 products and sums a second of an H100 or H200, as its maker states them
DEVICE = torch.device("cuda")


def drawn(lengths: list[int], vocabulary: int, seed: int) -> Drawn:
    total_tokens = sum(lengths)
    generator = np.random.default_rng(seed)
    identity = np.arange(total_tokens, dtype=np.uint64)
    tokens = generator.integers(1000, vocabulary, total_tokens)
    return Drawn(tokens, np.r_[0, np.cumsum(lengths)], identity, np.zeros(total_tokens, dtype=bool))


def operations(matrices: float, batch: int, length: int) -> float:
    """Products and sums of a padded step, counted alike for both: every token, and scores over the whole square."""
    return 6 * matrices * batch * length + 12 * 12 * 768 * length * length * batch


def ours(family: str, batches: list[Any], objective: Any, **sizes: Any) -> Callable[[], None]:
    """A step of our trainer, over the given batches in turn."""
    torch.manual_seed(0)
    config = FAMILIES[family].config(**sizes)
    heads = {"words": config.vocabulary}
    network = FAMILIES[family].network(config, heads)
    network.initialise()
    network.to(DEVICE).train()
    plan = Training(rate=1e-4)
    optimizer = make_optimizer(network, plan, 1e-4)
    scaler = torch.amp.GradScaler("cuda", enabled=False)
    setup = SimpleNamespace(network=network, plan=plan)
    even = len({(*batch.tokens.shape, *batch.rows.starts.shape) for batch in batches}) == 1
    passes = Passes(network, torch.compile(objective.sums, fullgraph=True), 1, DEVICE, "bf16", scaler, capture=even)
    counted = [torch.tensor([float(objective.counts(batch)["words"])]) for batch in batches]
    turn = cycle([(batch.pinned(), counts.pin_memory()) for batch, counts in zip(batches, counted, strict=True)])
    number = count()

    def step() -> None:
        batch, counts = next(turn)
        passes.step([batch], counts, seed_of(0, next(number)))
        update(setup, optimizer, scaler)

    return step


def theirs(model: Any, inputs: dict[str, Any], compile: bool = True) -> Callable[[], None]:
    """A step of transformers, with the settings that serve it best."""
    model = model.to(DEVICE).train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    run = torch.compile(model) if compile else model

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = run(**inputs).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def compare(
    name: str, tokens: float, flops: float, makers: dict[str, Callable[[], Any]], repeats: int
) -> dict[str, Any]:
    """Both sides of one work: first each alone for its memory, then in turns for its time."""
    steps, memory = {}, {}
    for side, make in makers.items():
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        steps[side] = make()
        for _ in range(8):  # compiles, and lets the compiler see every shape
            steps[side]()
        torch.cuda.synchronize()
        memory[side] = (torch.cuda.max_memory_allocated() - before) / 2**30
    compiled_before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    times = medians(steps, repeats, warm=2, settle=torch.cuda.synchronize)
    found = {
        "work": name,
        "milliseconds": {side: round(1e3 * seconds, 2) for side, seconds in times.items()},
        "tokens per second": {side: round(tokens / seconds) for side, seconds in times.items()},
        "share of peak": {side: round(flops / seconds / PEAK, 3) for side, seconds in times.items()},
        "peak memory GiB": {side: round(found, 1) for side, found in memory.items()},
        "recompilations while timed": torch._dynamo.utils.counters["stats"]["unique_graphs"] - compiled_before,
        "ratio": round(times["transformers compiled"] / times["ours"], 3),
    }
    print(json.dumps(found), flush=True)
    torch._dynamo.reset()
    return found


def bert(repeats: int) -> dict[str, Any]:
    rows, length, vocabulary = 64, 512, 30522
    masking = Masking(103, np.arange(1000, 30000), None, 0.15, 0)
    batches = [masking.apply(drawn([length] * rows, 30000, seed), length) for seed in range(2)]
    ids = torch.randint(1000, 30000, (rows, length), device=DEVICE)
    labels = torch.where(torch.rand(rows, length, device=DEVICE) < 0.15, ids, -100)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}
    config = transformers.BertConfig(attn_implementation="sdpa")
    flops = operations(85e6 + 768 * vocabulary + 768 * 768, rows, length)
    return compare(
        "BERT-base MLM, 64 x 512, full rows",
        rows * length,
        flops,
        {
            "ours": lambda: ours("bert", batches, MaskedWords(), pooler=False),
            "transformers compiled": lambda: theirs(transformers.BertForMaskedLM(config), inputs),
        },
        repeats,
    )


def mixed(repeats: int) -> dict[str, Any]:
    lengths = [mixed_lengths(256, seed) for seed in range(4)]
    tokens = statistics.mean(sum(some) for some in lengths)
    masking = Masking(103, np.arange(1000, 30000), None, 0.15, 0)
    batches = [masking.apply(drawn(some, 30000, seed), 512) for seed, some in enumerate(lengths)]
    ids = torch.randint(1000, 30000, (256, 512), device=DEVICE)
    real = (torch.arange(512) < torch.tensor(lengths[0])[:, None]).long().to(DEVICE)
    labels = torch.where((torch.rand(256, 512, device=DEVICE) < 0.15) & (real > 0), ids, -100)
    inputs = {"input_ids": ids, "attention_mask": real, "labels": labels}
    config = transformers.BertConfig(attn_implementation="sdpa")
    flops = 6 * 85e6 * tokens + 12 * 12 * 768 * statistics.mean(sum(n * n for n in some) for some in lengths)
    return compare(
        f"BERT-base MLM, 256 texts of mixed length, fill {tokens / (256 * 512):.0%}, four batches in turn; real tokens",
        tokens,
        flops,
        {
            "ours": lambda: ours("bert", batches, MaskedWords(), pooler=False),
            "transformers compiled": lambda: theirs(transformers.BertForMaskedLM(config), inputs),
        },
        repeats,
    )


def gpt2(repeats: int) -> dict[str, Any]:
    rows, length, vocabulary = 32, 1024, 50304
    batches = [shift(drawn([length + 1] * rows, 50257, seed), length) for seed in range(2)]
    ids = torch.randint(0, 50257, (rows, length), device=DEVICE)
    config = transformers.GPT2Config(attn_implementation="sdpa", vocab_size=vocabulary, use_cache=False)
    return compare(
        "GPT-2 124M, 32 x 1024",
        rows * length,
        operations(85e6 + 768 * vocabulary, rows, length),
        {
            "ours": lambda: ours("gpt2", batches, NextToken(), vocabulary=vocabulary),
            "transformers compiled": lambda: theirs(
                transformers.GPT2LMHeadModel(config), {"input_ids": ids, "labels": ids}
            ),
        },
        repeats,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--parts", default="bert,mixed,gpt2")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "train_gpu.json")
    given = parser.parse_args()
    transformers.logging.set_verbosity_error()
    torch.set_float32_matmul_precision("high")
    works = {"bert": bert, "mixed": mixed, "gpt2": gpt2}
    found = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "works": [works[name](given.repeats) for name in given.parts.split(",")],
    }
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()

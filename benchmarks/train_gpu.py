"""Training steps on one GPU, ours beside compiled transformers in one run: tokens a second, share of peak, memory.

    python benchmarks/train_gpu.py                  # needs an NVIDIA GPU with bf16

Both sides train the same sizes in bf16 under autocast, with fused AdamW and the dropout of the published models, where
nothing else is said; ours also clips the gradient. They take turns of some steps, and medians are compared. `--parts`
chooses among the works. What `weft pretrain` reaches on a book, beside the first of them, is printed by
`pretrain_book.py`.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import RESULTS, about, medians, parse, peer, settle, write
from ragged import mixed_lengths

from weft.checkpoint.families import FAMILIES
from weft.data.masking import Masking, shift
from weft.data.rows import DocumentRows, Feed, Frame, Framed, PackedRows
from weft.data.shards import Corpus
from weft.objectives.losses import MaskedWords, NextToken
from weft.training.plan import Training
from weft.training.step import Setup, Stepper, group_of

PEAK = 989e12  # bf16 products and sums a second of an H100 or H200, as its maker states them
GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")


@dataclass(frozen=True)
class Sizes:
    """What is trained; the defaults are those of BERT-base and GPT-2 124M."""

    layers: int = 12
    width: int = 768
    heads: int = 12
    bert: tuple[int, int] = (64, 512)  # rows, tokens of a row
    mixed: int = 256  # texts
    gpt2: tuple[int, int] = (32, 1024)
    vocabulary: int = 30522  # of BERT
    compile: bool = True

    @property
    def ours(self) -> dict[str, int]:
        return {"layers": self.layers, "width": self.width, "heads": self.heads, "inner": 4 * self.width}

    @property
    def matrices(self) -> int:
        """Weights of all layers that a token is multiplied with."""
        return 12 * self.layers * self.width**2

    def operations(self, outputs: int, batch: int, length: int) -> float:
        """Products and sums of a padded step, the same for both: every token, and scores over the whole square."""
        weights = self.matrices + self.width * outputs
        return 6 * weights * batch * length + 12 * self.layers * self.width * length**2 * batch


TURN = 4 if GPU else 1  # steps that are timed together, one after the other as in training
MEDIUM = {"layers": 24, "width": 1024, "heads": 16}  # of GPT-2
TINY = Sizes(layers=1, width=64, heads=2, bert=(2, 32), mixed=4, gpt2=(2, 32), compile=GPU)


def documents(lengths: list[int], vocabulary: int) -> Framed:
    """Texts of these lengths, of random tokens."""
    tokens = np.random.default_rng(0).integers(5, vocabulary, sum(lengths)).astype(np.uint32)
    return Framed(Corpus([tokens], np.r_[0, np.cumsum(lengths)], None, "random"), Frame())


def ours(family: str, feed: Feed, objective: Any, sizes: Sizes, steps: int, **more: Any) -> Callable[[], Any]:
    """A step of our trainer, over the batches of its first steps in turn."""
    torch.manual_seed(0)
    config = FAMILIES[family].config(**sizes.ours, **more)
    network = FAMILIES[family].network(config, {"words": config.vocabulary})
    network.initialize()
    setup = Setup(
        network=network,
        objective=objective,
        feed=feed,
        plan=Training(learning_rate=1e-4, compile=sizes.compile, precision="bf16"),
        device=DEVICE,
    )
    stepper = Stepper(setup)
    turn, number = cycle([group_of(setup, step, 1 << 20) for step in range(steps)]), count()

    def step() -> Any:
        group = next(turn)
        return stepper.step(*group, next(number))

    return step


def theirs(make: Callable[[], Any], inputs: dict[str, Any], compile: bool = True) -> Callable[[], None]:
    """A step of transformers, with the settings that serve it best."""
    model = make().to(DEVICE).train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    run = torch.compile(model) if compile else model

    def step() -> None:
        with torch.autocast(DEVICE.type, torch.bfloat16):
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
        if GPU:
            torch.cuda.reset_peak_memory_stats()
        steps[side] = make()
        for _ in range(8 if GPU else 1):  # compiles, and lets the compiler see every shape
            steps[side]()
        settle()
        memory[side] = (torch.cuda.max_memory_allocated() - before) / 2**30
    compiled_before = torch._dynamo.utils.counters["stats"]["unique_graphs"]

    def several(step: Callable[[], Any]) -> None:
        for _ in range(TURN):
            step()

    turns = {side: partial(several, step) for side, step in steps.items()}
    times = medians(turns, repeats, warm=1 if GPU else 0, settle=settle)
    times = {side: seconds / TURN for side, seconds in times.items()}
    found = {
        "work": name,
        "milliseconds": {side: round(1e3 * seconds, 2) for side, seconds in times.items()},
        "tokens per second": {side: round(tokens / seconds) for side, seconds in times.items()},
        "share of peak": {side: round(flops / seconds / PEAK, 3) for side, seconds in times.items()},
        "peak memory GiB": {side: round(found, 1) for side, found in memory.items()},
        "recompilations while timed": torch._dynamo.utils.counters["stats"]["unique_graphs"] - compiled_before,
    }
    if "transformers compiled" in times:
        found["ratio"] = round(times["transformers compiled"] / times["ours"], 3)
    print(json.dumps(found), flush=True)
    torch._dynamo.reset()
    return found


def peer_config(kind: str, sizes: Sizes, **more: Any) -> Any:
    """The same sizes, as transformers names them; None where it is not installed."""
    transformers = peer("transformers")
    if transformers is None:
        return None
    transformers.logging.set_verbosity_error()
    if kind == "gpt2":
        same = {"n_layer": sizes.layers, "n_embd": sizes.width, "n_head": sizes.heads, "use_cache": False}
        return transformers.GPT2Config(attn_implementation="sdpa", **same, **more)
    same = {"num_hidden_layers": sizes.layers, "hidden_size": sizes.width, "num_attention_heads": sizes.heads}
    return transformers.BertConfig(attn_implementation="sdpa", intermediate_size=4 * sizes.width, **same, **more)


def masked(real: torch.Tensor) -> dict[str, torch.Tensor]:
    """Random inputs and labels of a masked language model, where rows have tokens."""
    ids = torch.randint(5, 30000, real.shape, device=DEVICE)
    labels = torch.where((torch.rand(real.shape, device=DEVICE) < 0.15) & (real > 0), ids, -100)
    return {"input_ids": ids, "attention_mask": real, "labels": labels}


def masking(sizes: Sizes) -> Masking:
    return Masking(4, np.arange(5, sizes.vocabulary), None, 0.15, 0)


def bert_on(sizes: Sizes, feed: Feed, steps: int) -> Callable[[], Any]:
    return ours("bert", feed, MaskedWords(), sizes, steps, vocabulary=sizes.vocabulary, pooler=False)


def our_bert(sizes: Sizes, rows: int, length: int) -> Callable[[], Any]:
    """A step of BERT on full rows: what `weft pretrain --compile` does, without reading a text."""
    source = PackedRows(documents([4 * rows * length], sizes.vocabulary), length, 0, False, 0)
    return bert_on(sizes, Feed(source, masking(sizes).apply, 0, rows), 2)


def steady_bert(sizes: Sizes, rows: int, length: int, repeats: int) -> float:
    """Tokens a second of such steps, alone on the device."""
    step = our_bert(sizes, rows, length)

    def several() -> None:
        for _ in range(TURN):
            step()

    seconds = medians({"ours": several}, repeats, warm=3 if GPU else 1, settle=settle)["ours"]
    return TURN * rows * length / seconds


def bert(sizes: Sizes, repeats: int) -> dict[str, Any]:
    rows, length = sizes.bert
    makers = {"ours": partial(our_bert, sizes, rows, length)}
    if config := peer_config("bert", sizes):
        inputs = masked(torch.ones(rows, length, dtype=torch.long, device=DEVICE))
        make = partial(peer("transformers").BertForMaskedLM, config)
        makers["transformers compiled"] = partial(theirs, make, inputs, sizes.compile)
    flops = sizes.operations(sizes.vocabulary + sizes.width, rows, length)
    return compare(f"BERT-base MLM, {rows} x {length}, full rows", rows * length, flops, makers, repeats)


def mixed(sizes: Sizes, repeats: int) -> dict[str, Any]:
    count = sizes.mixed
    lengths = [mixed_lengths(count, seed) for seed in range(4)]
    tokens = statistics.mean(sum(some) for some in lengths)
    source = DocumentRows(documents([length for some in lengths for length in some], sizes.vocabulary), 512, 0)
    feed = Feed(source, lambda drawn: masking(sizes).apply(drawn, 512), 0, count)
    makers = {"ours": partial(bert_on, sizes, feed, 4)}
    if config := peer_config("bert", sizes):
        real = (torch.arange(512) < torch.tensor(lengths[0])[:, None]).long().to(DEVICE)
        make = partial(peer("transformers").BertForMaskedLM, config)
        makers["transformers compiled"] = partial(theirs, make, masked(real), sizes.compile)
    squares = statistics.mean(sum(n * n for n in some) for some in lengths)
    fill = f"{tokens / (count * 512):.0%}"
    return compare(
        f"BERT-base MLM, {count} texts of mixed length, fill {fill}, four batches in turn; real tokens",
        tokens,
        6 * sizes.matrices * tokens + 12 * sizes.layers * sizes.width * squares,
        makers,
        repeats,
    )


def gpt2(sizes: Sizes, repeats: int, dropout: bool = True, against: bool = True) -> dict[str, Any]:
    rows, length = sizes.gpt2
    vocabulary = 50304
    source = PackedRows(documents([4 * rows * length], 50257), length, 1, False, 0)
    more: dict[str, Any] = {} if dropout else {"dropout": 0.0, "attention_dropout": 0.0, "embedding_dropout": 0.0}
    more |= {"vocabulary": vocabulary}
    makers = {"ours": lambda: ours("gpt2", Feed(source, shift, 0, rows), NextToken(), sizes, 2, **more)}
    theirs_more = {} if dropout else {"resid_pdrop": 0.0, "attn_pdrop": 0.0, "embd_pdrop": 0.0}
    if against and (config := peer_config("gpt2", sizes, vocab_size=vocabulary, **theirs_more)):
        ids = torch.randint(0, 50257, (rows, length), device=DEVICE)
        make = partial(peer("transformers").GPT2LMHeadModel, config)
        makers["transformers compiled"] = partial(theirs, make, {"input_ids": ids, "labels": ids}, sizes.compile)
    flops = sizes.operations(vocabulary, rows, length)
    name = "gpt2-medium" if sizes.layers == MEDIUM["layers"] else "GPT-2 124M"
    without = "" if dropout else ", without dropout"
    return compare(f"{name}, {rows} x {length}{without}", rows * length, flops, makers, repeats)


def gpt2_medium(sizes: Sizes, repeats: int, dropout: bool = True) -> dict[str, Any]:
    """Ours alone: what is asked is the share of the GPU's peak."""
    return gpt2(sizes if sizes == TINY else replace(sizes, **MEDIUM), repeats, dropout, against=False)


WORKS = {
    **{"bert": bert, "mixed": mixed, "gpt2": gpt2, "gpt2-medium": gpt2_medium},
    "gpt2-without-dropout": partial(gpt2, dropout=False),
    "gpt2-medium-without-dropout": partial(gpt2_medium, dropout=False),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=6, help=f"turns of {TURN} steps")
    parser.add_argument("--parts", default=",".join(WORKS))
    parser.add_argument("--out", type=Path, default=RESULTS / "train_gpu.json")
    given = parse(parser, repeats=1)
    if not GPU and not given.smoke:
        parser.error("there is no GPU here; --smoke only tries the script out")
    torch.set_float32_matmul_precision("high")
    found = {
        **about("transformers"),
        "works": [WORKS[name](TINY if given.smoke else Sizes(), given.repeats) for name in given.parts.split(",")],
    }
    write(given.out, found)


if __name__ == "__main__":
    main()

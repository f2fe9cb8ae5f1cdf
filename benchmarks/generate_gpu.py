"""Writing on one GPU, ours beside transformers' generate in one run, on the same weights and prompts.

    python benchmarks/generate_gpu.py                  # needs an NVIDIA GPU with bf16
    python benchmarks/generate_gpu.py --parts gpt2,t5,marian

GPT-2 124M, greedy, in bf16 at batch 1 and 32: tokens a second, and how far from the time that reading all weights and
the cache takes. T5-small and a translation Transformer (Marian's, 3 x 256): 1,000 sources as
long as captions, by beam search of 4; random weights end no text by themselves, so both sides write as many tokens.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import RESULTS, about, medians, parse, peer, settle, write

import weft
from weft.generation.generate import generate
from weft.generation.sampling import Sampling
from weft.generation.search import Beam

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
KIND = torch.bfloat16 if GPU else torch.float32
BANDWIDTH = 4.2e12  # bytes a second that a copy reaches on an H200


def prompts_of(count: int, length: int, vocabulary: int) -> list[list[int]]:
    return np.random.default_rng(0).integers(5, vocabulary, (count, length)).tolist()


def gpt2(sizes: dict[str, Any], repeats: int) -> list[dict[str, Any]]:
    """Greedy writing at batch 1 and 32."""
    transformers = peer("transformers")
    network: Any = weft.new("gpt2", settings=sizes["settings"]).network.to(DEVICE, KIND).eval()
    theirs: Any = None
    if transformers is not None:
        c = network.config
        names = {"n_layer": c.layers, "n_embd": c.width, "n_head": c.heads, "vocab_size": c.vocabulary}
        theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(**names)).to(DEVICE, KIND).eval()
    weights = sum(parameter.numel() for parameter in network.parameters()) * 2
    found, count = [], sizes["tokens"]
    options = {"max_new_tokens": count, "min_new_tokens": count, "do_sample": False, "pad_token_id": 0}

    def ours(prompts: list[list[int]]) -> Any:
        context = network.config.context
        return generate(network, prompts, choice=Sampling(), context=context, max_tokens=count, device=DEVICE)

    def default(prompts: list[list[int]], **more: Any) -> Any:
        ids = torch.tensor(prompts, device=DEVICE)
        return theirs.generate(ids, attention_mask=torch.ones_like(ids), **options, **more)

    for batch in sizes["batches"]:
        prompts = prompts_of(batch, sizes["prompt"], 5000 if GPU else 90)
        runs: dict[str, Callable[[], Any]] = {"ours": partial(ours, prompts)}
        if theirs is not None:
            runs["transformers"] = partial(default, prompts)
            if GPU and batch == 1:
                runs["transformers static, compiled"] = partial(default, prompts, cache_implementation="static")
        times = medians(runs, repeats, warm=2, settle=settle)
        each = 2 * network.config.layers * network.config.width * 2 * (sizes["prompt"] + count / 2)
        least = (weights + batch * each) / BANDWIDTH
        row = {
            "work": f"GPT-2 124M, greedy, batch {batch}, {sizes['prompt']} + {count} tokens",
            "tokens per second": {name: round(batch * count / seconds) for name, seconds in times.items()},
            "milliseconds a step": {name: round(1e3 * seconds / count, 3) for name, seconds in times.items()},
            "times the bandwidth limit": round(times["ours"] / count / least, 2),
        }
        if theirs is not None:
            row["ratio"] = {name: round(times[name] / times["ours"], 2) for name in times if name != "ours"}
        print(json.dumps(row), flush=True)
        found.append(row)
    return found


def sources_of(count: int, vocabulary: int) -> list[list[int]]:
    """As many tokens as the test set's words make, of random ids."""
    lengths = np.random.default_rng(1).integers(8, 28, count)
    return [np.random.default_rng(n).integers(5, vocabulary, size).tolist() for n, size in enumerate(lengths)]


def beams(family: str, sizes: dict[str, Any], repeats: int) -> dict[str, Any]:
    """Beam search of 4 over 1,000 sources: the whole of it, in the batches that serve each side best."""
    transformers = peer("transformers")
    config = {"t5": "t5-small", "marian": None}[family]
    model: Any = weft.new(family, size=config if GPU else None, settings=sizes[family])
    network: Any = model.network.to(DEVICE, KIND).eval()
    c = network.config
    sources = sources_of(sizes["sources"], 5000 if GPU else 90)
    limits = [len(source) + 4 for source in sources]  # about as long as a translation is
    begin = c.begin

    def ours() -> Any:
        return generate(
            network,
            [[begin]] * len(sources),
            sources=sources,
            choice=Beam(width=4),
            context=c.context,
            max_tokens=limits,
            ends=(1,),
            device=DEVICE,
        )

    runs: dict[str, Callable[[], Any]] = {"ours": ours}
    if transformers is not None:
        theirs = their_seq2seq(transformers, family, c).to(DEVICE, KIND).eval()
        order = sorted(range(len(sources)), key=lambda n: len(sources[n]))
        batches = [order[first : first + 128] for first in range(0, len(order), 128)]

        def all_batches() -> None:
            for batch in batches:
                longest = max(len(sources[n]) for n in batch)
                ids = torch.tensor([sources[n] + [0] * (longest - len(sources[n])) for n in batch], device=DEVICE)
                limit = max(limits[n] for n in batch)
                theirs.generate(
                    ids, attention_mask=(ids > 0).long(), num_beams=4, max_new_tokens=limit, min_new_tokens=limit - 1
                )

        runs["transformers, batches of 128 by length"] = all_batches
    times = medians(runs, repeats, warm=1, settle=settle)
    row = {
        "work": f"{family}, beam 4, {len(sources)} sources",
        "seconds": {name: round(seconds, 3) for name, seconds in times.items()},
        "sentences per second": {name: round(len(sources) / seconds, 1) for name, seconds in times.items()},
    }
    row["ratio"] = {name: round(seconds / times["ours"], 2) for name, seconds in times.items() if name != "ours"}
    print(json.dumps(row), flush=True)
    return row


def their_seq2seq(transformers: Any, family: str, c: Any) -> Any:
    """The same sizes, as transformers names them."""
    if family == "t5":
        names = {"vocab_size": c.vocabulary, "d_model": c.width, "num_layers": c.layers, "num_heads": c.heads}
        names |= {"d_ff": c.inner, "d_kv": c.head_width, "decoder_start_token_id": 0, "pad_token_id": 0}
        return transformers.T5ForConditionalGeneration(transformers.T5Config(**names))
    names = {"vocab_size": c.vocabulary, "d_model": c.width, "encoder_layers": c.layers, "decoder_layers": c.layers}
    names |= {"encoder_attention_heads": c.heads, "decoder_attention_heads": c.heads, "pad_token_id": 0}
    names |= {"encoder_ffn_dim": c.inner or 4 * c.width, "decoder_ffn_dim": c.inner or 4 * c.width}
    names |= {
        "decoder_start_token_id": 0,
        "max_position_embeddings": 512,
        "eos_token_id": 1,
        "forced_eos_token_id": None,
    }
    return transformers.MarianMTModel(transformers.MarianConfig(**names))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--parts", default="gpt2,t5,marian")
    parser.add_argument("--out", type=Path, default=RESULTS / "generate_gpu.json")
    given = parse(parser, repeats=1)
    if not GPU and not given.smoke:
        parser.error("there is no GPU here; --smoke only tries the script out")
    tiny = {"layers": 1, "width": 32, "heads": 2, "vocabulary": 99}
    sizes: dict[str, Any] = {"settings": {}, "batches": (1, 32), "prompt": 64, "tokens": 128}
    sizes |= {"t5": {}, "marian": {"vocabulary": 8000, "width": 256, "layers": 3, "heads": 4, "begin": 0}}
    sizes |= {"sources": 1000}
    if given.smoke:
        sizes |= {"settings": tiny, "batches": (1, 2), "prompt": 4, "tokens": 5, "sources": 6}
        sizes |= {"t5": {**tiny, "head_width": 16, "inner": 64}, "marian": {**tiny, "begin": 0}}
    torch.manual_seed(0)
    found: dict[str, Any] = {
        **about("transformers"),
        "works": [],
    }
    for part in given.parts.split(","):
        found["works"] += (
            gpt2(sizes, given.repeats) if part == "gpt2" else [beams(part, sizes, max(1, given.repeats // 2))]
        )
    write(given.out, found)


if __name__ == "__main__":
    main()

"""Decoding on this CPU beside transformers and CTranslate2, with one set of random weights.

    python benchmarks/decode_cpu.py --out benchmarks/results/decode_cpu.json

GPT-2 (124M) continues prompts of 64 tokens by 64 tokens, greedily, one prompt at a time and eight together; a 3 x 256
Marian writes 24 tokens by a beam of 5 from one source of 14. Nothing may end early, so all do the same work. The
contestants take turns, and medians are compared. Ours in int8 is a folder that `weft export` or `weft quantize` wrote
for CTranslate2; CTranslate2 itself is called as its own users call it.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from common import machine, medians, parse, peer, write

import weft
from weft.backends.opening import opened as open_exported
from weft.checkpoint.folder import LoadedModel
from weft.exporters.export import write_ct2
from weft.generation.generate import generate
from weft.generation.sampling import Sampling
from weft.generation.search import Beam

READ, SOURCE, WRITTEN, WIDTH = 64, 14, 24, 5  # tokens of a prompt and a source; that the Marian writes; its beam
Run = Callable[[], list[list[int]]]


def exported(opened: LoadedModel, task: str) -> dict[str, Any]:
    """The networks that CTranslate2 runs, by precision, where it is installed."""
    if peer("ctranslate2") is None:
        return {}
    networks = {}
    for precision in ("fp32", "int8"):
        with tempfile.TemporaryDirectory() as folder:
            inside = Path(folder) / "x"
            inside.mkdir()
            write_ct2(inside, opened, task, precision)
            networks[precision] = open_exported(inside).network
    return networks


def theirs(opened: LoadedModel, kind: str) -> Any:
    """The same weights in transformers, where it is installed."""
    transformers = peer("transformers")
    if transformers is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        weft.Model(opened, opened.family.task).save(Path(folder) / "model")
        model = getattr(transformers, kind).from_pretrained(Path(folder) / "model").eval()
    model.generation_config.eos_token_id = None  # nothing ends early
    return model


def seen(runs: Mapping[str, Run], tokens: int, repeats: int) -> dict[str, Any]:
    """Tokens a second of each contestant, and how many of its answers are ours."""
    answers = {name: run() for name, run in runs.items()}
    seconds = medians(runs, repeats, warm=0)
    ours = answers["weft fp32"]
    same = {name: sum(one == own for one, own in zip(each, ours, strict=True)) for name, each in answers.items()}
    result = {
        name: {
            "tokens/s": round(tokens / seconds[name], 1),
            "milliseconds": round(1000 * seconds[name], 1),
            "as weft fp32": f"{same[name]} of {len(ours)}",
        }
        for name in runs
    }
    ratios = {
        f"{mine} / {other}": round(seconds[other] / seconds[mine], 2)
        for mine, others in (("weft fp32", ("transformers", "ctranslate2 fp32")), ("weft int8", ("ctranslate2 int8",)))
        for other in others
        if mine in runs and other in runs
    }
    print(json.dumps({"tokens/s": {name: result[name]["tokens/s"] for name in runs}, **ratios}), flush=True)
    return {**result, "times as fast": ratios}


def continuing(opened: LoadedModel, batch: int, new: int, repeats: int) -> dict[str, Any]:
    """Greedy decoding of a GPT-2."""
    chance = torch.Generator().manual_seed(0)
    prompts = torch.randint(10, opened.config.vocabulary, (batch, READ), generator=chance)
    texts, peers, engines = prompts.tolist(), theirs(opened, "GPT2LMHeadModel"), exported(opened, "complete")

    def ours(network: Any) -> Run:
        options: dict[str, Any] = {"choice": Sampling(), "context": opened.config.context, "max_tokens": new}
        return lambda: [each[0].tokens for each in generate(network, texts, **options)]

    def direct(network: Any) -> Run:
        words = [[network.target_words[token] for token in text] for text in texts]
        lengths = {"max_length": new, "min_length": new}
        return lambda: [
            each.sequences_ids[0]
            for each in network.engine.generate_batch(words, include_prompt_in_result=False, **lengths)
        ]

    def transformers() -> list[list[int]]:
        real = torch.ones_like(prompts)
        written = peers.generate(prompts, attention_mask=real, max_new_tokens=new, do_sample=False, pad_token_id=0)
        return [row[READ:] for row in written.tolist()]

    runs = {"weft fp32": ours(opened.network)}
    if peers is not None:
        runs["transformers"] = torch.inference_mode()(transformers)
    for precision, network in engines.items():
        runs[f"ctranslate2 {precision}"] = direct(network)
    if "int8" in engines:
        runs["weft int8"] = ours(engines["int8"])
    return seen(runs, batch * new, repeats)


def translating(opened: LoadedModel, repeats: int) -> dict[str, Any]:
    """A Marian with a beam, one source at a time."""
    config, chance = opened.config, torch.Generator().manual_seed(0)
    sources = torch.randint(10, config.vocabulary, (8, SOURCE), generator=chance)
    peers, engines = theirs(opened, "MarianMTModel"), exported(opened, "translate")

    def ours(network: Any, ends: tuple[int, ...] = ()) -> Run:
        options: dict[str, Any] = {"choice": Beam(width=WIDTH), "max_tokens": WRITTEN, "context": config.context}
        options["ends"] = ends
        return lambda: [
            generate(network, [[config.begin]], sources=[source], **options)[0][0].tokens for source in sources.tolist()
        ]

    def transformers() -> list[list[int]]:
        options = {"num_beams": WIDTH, "early_stopping": "never", "length_penalty": 1.0, "max_new_tokens": WRITTEN}
        options |= {
            "do_sample": False,
            "forced_eos_token_id": None,
            "bad_words_ids": None,
            "pad_token_id": config.begin,
        }
        options["decoder_start_token_id"] = config.begin
        written = []
        for source in sources:
            real = torch.ones_like(source[None])
            written += peers.generate(source[None], attention_mask=real, **options)[:, 1:].tolist()
        return written

    runs = {"weft fp32": ours(opened.network)}
    if peers is not None:
        runs["transformers"] = torch.inference_mode()(transformers)
    for precision, network in engines.items():
        runs[f"weft with ctranslate2 {precision}"] = ours(network)
    return seen(runs, len(sources) * WRITTEN, repeats)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--gpt", default="12x768", help="layers x width")
    parser.add_argument("--marian", default="3x256", help="layers x width")
    parser.add_argument("--only", nargs="+", default=["1", "8", "beam"], help="1, 8, beam")
    parser.add_argument("--out", type=Path, default=None)
    asked = parse(parser, threads=1, repeats=1, gpt="1x64", marian="1x64")
    torch.set_num_threads(asked.threads)
    settings = {"vocabulary": 500} if asked.smoke else {}
    found: dict[str, Any] = {"machine": machine(), "threads": asked.threads}
    gpt = weft.new("gpt2", size=asked.gpt, settings=settings).opened
    for batch in (int(batch) for batch in asked.only if batch != "beam"):
        found[f"GPT-2 {asked.gpt}, greedy, batch {batch}"] = continuing(gpt, batch, 64, asked.repeats)
    if "beam" in asked.only:
        marian = weft.new("marian", size=asked.marian, settings={"vocabulary": 8000, "context": 128}).opened
        found[f"Marian {asked.marian}, beam {WIDTH}, batch 1"] = translating(marian, asked.repeats)
    if asked.out is not None:
        write(asked.out, found)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()

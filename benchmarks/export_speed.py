"""The same weights by our own network, by ONNX Runtime and by CTranslate2, on this CPU.

    python benchmarks/export_speed.py                       # both tables
    python benchmarks/export_speed.py --out benchmarks/results/export_speed.json

A 6 x 384 encoder answers one text at a time, of 16, 64 and 256 tokens; a 3 x 256 Transformer writes 24 tokens by a beam
of 5, one text at a time and 32 together. The contestants take turns, and medians are compared. The weights are drawn,
not learned, so that every answer is as long as the others.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from common import machine, medians, parse, write

import weft
from weft.backends.ctranslate2 import library
from weft.backends.onnx import runtime
from weft.backends.opening import opened as open_exported
from weft.checkpoint.folder import LoadedModel
from weft.exporters.export import write_ct2
from weft.exporters.onnx_export import write_onnx
from weft.generation.generate import generate
from weft.generation.search import Beam
from weft.nn.rows import Ragged

LENGTHS = (16, 64, 256)  # tokens of a text
WRITTEN, WIDTH, READ = 24, 5, 14  # tokens written, the beam, tokens read: as a caption has them


def carried(write: Callable[..., None], opened: LoadedModel, task: str, precision: str) -> Any:
    """The stand-in for a network; its engine has read the files when they are gone."""
    with tempfile.TemporaryDirectory() as folder:
        inside = Path(folder) / "x"
        inside.mkdir()
        write(inside, opened, task, precision)
        return open_exported(inside).network


def engines(opened: LoadedModel, task: str, names: tuple[str, ...]) -> dict[str, Any]:
    """Our own network, and the same weights in each engine that is installed, in fp32 and int8."""
    networks = {"torch": opened.network}
    for name in names:
        package, write = {"onnx": (runtime, write_onnx), "ctranslate2": (library, write_ct2)}[name]
        try:
            package()
        except weft.UserError:  # not installed
            continue
        networks |= {f"{name}-{kind}": carried(write, opened, task, kind) for kind in ("fp32", "int8")}
    return networks


def encoders(size: str, repeats: int) -> dict[str, Any]:
    """Milliseconds for one text and its label."""
    opened = weft.new("bert", size=size, heads={"classify": 2}).opened
    networks = engines(opened, "classify", ("onnx", "ctranslate2"))
    found = {}
    for length in LENGTHS:
        batch = Ragged.of([torch.randint(1000, 30000, (length,), generator=torch.Generator().manual_seed(0)).tolist()])

        def answer(network: Any, batch: Ragged = batch) -> Callable[[], Any]:
            def run() -> Any:
                with torch.inference_mode():
                    return network.logits("classify", network(batch.tokens, batch.rows), batch.rows)

            return run

        times = medians({name: answer(network) for name, network in networks.items()}, repeats, warm=3)
        found[str(length)] = table(times)
    return found


def writers(size: str, repeats: int) -> dict[str, Any]:
    """Milliseconds for a beam over one text, and over 32 together."""
    sizes = {"vocabulary": 8000, "context": 128}
    opened = weft.new("transformer", size=size, settings=sizes).opened
    networks = engines(opened, "translate", ("ctranslate2",))
    found = {}
    for count in (1, 32):
        chance = torch.Generator().manual_seed(0)
        sources = [torch.randint(10, 8000, (READ,), generator=chance).tolist() for _ in range(count)]

        def write(network: Any, sources: list[list[int]] = sources) -> Callable[[], Any]:
            begins = [[opened.config.begin]] * len(sources)
            return lambda: generate(
                network, begins, sources=sources, choice=Beam(width=WIDTH), max_tokens=WRITTEN, ends=(1,), context=128
            )

        said = {name: [each[0].tokens for each in write(network)()] for name, network in networks.items()}
        times = medians({name: write(network) for name, network in networks.items()}, repeats, warm=1)
        found[str(count)] = table(times)
        if "ctranslate2-fp32" in said:
            same = sum(a == b for a, b in zip(said["torch"], said["ctranslate2-fp32"], strict=True))
            found[str(count)]["the same as torch in fp32"] = same / count
    return found


def table(times: dict[str, float]) -> dict[str, Any]:
    return {
        "milliseconds": {name: round(1000 * seconds, 3) for name, seconds in times.items()},
        "times as fast as torch": {name: round(times["torch"] / seconds, 2) for name, seconds in times.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--encoder", default="6x384", help="layers x width")
    parser.add_argument("--writer", default="3x256", help="layers x width")
    options = parse(parser, threads=1, repeats=1, encoder="1x64", writer="1x64")
    torch.set_num_threads(options.threads)
    found = {
        "machine": machine(),
        f"encoder {options.encoder}, one text, by its tokens": encoders(options.encoder, options.repeats),
        f"transformer {options.writer}, beam {WIDTH}, {WRITTEN} tokens, by texts together": writers(
            options.writer, options.repeats
        ),
    }
    print(json.dumps(found, indent=2))
    if options.out is not None:
        write(options.out, found)


if __name__ == "__main__":
    main()

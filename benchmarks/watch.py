"""What watching costs: BERT-base with random weights, unwatched, with one layer watched, and with all of them.

The ways take turns, and the medians of each are compared. `plain` is an unwatched network; `without taps` is the same
with the code that asks for a watcher taken out, so the two show what unwatched networks pay. The others run inside
`weft.watch`. The peer is transformers' eager attention, the only one there that hands out weights, beside its sdpa.

    python benchmarks/watch.py --device cuda --dtype bfloat16
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import common
import torch

import weft
from weft.checkpoint.families import find_size
from weft.nn.attention import MultiHead
from weft.nn.rows import Ragged
from weft.timing import turns


def network_of(size: str, device: str, dtype: torch.dtype) -> Any:
    """BERT of a size, with random weights."""
    family, config = find_size("bert", None if size == "base" else size)
    torch.manual_seed(0)
    network = family.network(config, {})
    network.initialize()
    return network.to(device, dtype).eval()


def untouched(network: Any) -> bool:
    """Whether no hook and no watcher is in the network."""
    modules = list(network.modules())
    hooks = any(module._forward_hooks or module._forward_pre_hooks for module in modules)
    return not hooks and all(module.watcher is None for module in modules if isinstance(module, MultiHead))


def runs_of(network: Any, batch: Ragged) -> dict[str, Callable[[int], Any]]:
    """The ways that are compared."""
    layers = len(network.layers)

    @torch.inference_mode()
    def plain(number: int = 0) -> None:
        network(batch.tokens, batch.rows)

    def watched(number: int, **options: Any) -> None:
        with weft.watch(network, **options):
            plain()

    def without_taps(number: int) -> None:
        """The code before there was anything to watch: the output map alone."""
        taps = MultiHead.finish
        MultiHead.finish = lambda self, mixed, *rest, **seen: self.output(mixed.flatten(1))
        try:
            plain()
        finally:
            MultiHead.finish = taps

    return {
        "plain": plain,
        "after a watch": plain,
        "without taps": without_taps,
        "one layer": lambda number: watched(number, layers=layers // 2),
        "one head": lambda number: watched(number, layers=layers // 2, heads=[0]),
        "all layers": watched,
    }


def peer_runs(size: tuple[int, int, int, int], batch: torch.Tensor, dtype: torch.dtype) -> dict[str, Any]:
    """transformers' BERT of the same size: fused, and with attention handed out."""
    transformers = common.peer("transformers")
    if transformers is None:
        return {}
    layers, width, heads, inner = size
    sizes = {
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": heads,
        "intermediate_size": inner,
    }

    def run(implementation: str, attentions: bool) -> Callable[[int], Any]:
        config = transformers.BertConfig(**sizes, attn_implementation=implementation)
        model = transformers.BertModel(config, add_pooling_layer=False).to(batch.device, dtype).eval()

        @torch.inference_mode()
        def forward(number: int) -> None:
            model(batch, output_attentions=attentions)

        return forward

    return {"transformers sdpa": run("sdpa", False), "transformers eager, all layers": run("eager", True)}


def measure(arguments: argparse.Namespace, network: Any, rows: list[int]) -> dict[str, Any]:
    """Milliseconds of a forward pass, and how much more than `plain` each way takes."""
    tokens = [[(7 * place + 13 * row) % 997 + 5 for place in range(length)] for row, length in enumerate(rows)]
    batch = Ragged.of(tokens, arguments.device)
    c = network.config
    even = torch.tensor(tokens, device=arguments.device) if len(set(rows)) == 1 else None
    ways = runs_of(network, batch)
    if even is not None and not arguments.smoke:
        ways |= peer_runs((c.layers, c.width, c.heads, c.inner), even, network.tokens.weight.dtype)
    settle = torch.cuda.synchronize if arguments.device != "cpu" else (lambda: None)
    assert untouched(network)
    times = turns(ways, arguments.rounds, warm=2, settle=settle)
    assert untouched(network)
    medians = {name: 1000 * statistics.median(own) for name, own in times.items()}
    # In each round all ways ran under the same load: the median of their quotients is steadier than that of medians.
    pairs = {name: [one / two for one, two in zip(own, times["plain"], strict=True)] for name, own in times.items()}
    cost = {name: round(100 * (statistics.median(own) - 1), 2) for name, own in pairs.items() if name != "plain"}
    return {
        "rows": rows if len(set(rows)) > 1 else f"{len(rows)} x {rows[0]}",
        "ms": {name: round(value, 3) for name, value in medians.items()},
        "cost_percent": cost,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="base", help="of BERT: base, or layers x width")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--result", type=Path, default=common.RESULTS / "watch.json")
    arguments = common.parse(parser, size="2x64", rounds=3, length=16, rows=2)
    network = network_of(arguments.size, arguments.device, getattr(torch, arguments.dtype))
    length, count = arguments.length, arguments.rows
    ragged = [max(1, length * (number + 1) // count) for number in range(count)]
    results: dict[str, Any] = {
        "machine": common.machine(),
        "model": f"bert {arguments.size}, random weights, {arguments.dtype} on {arguments.device}",
        "rounds": arguments.rounds,
        "batches": [measure(arguments, network, rows) for rows in ([length], [length] * count, ragged)],
    }
    for batch in results["batches"]:
        print(batch["rows"], *(f"\n  {name}: {value:.2f} ms" for name, value in batch["ms"].items()))
        print("  cost", batch["cost_percent"])
    worst = max(batch["cost_percent"]["one layer"] for batch in results["batches"])
    print(f"watching one layer costs at most {worst:.1f} % of a forward: {'under' if worst < 15 else 'NOT under'} 15 %")
    common.write(arguments.result, results)


if __name__ == "__main__":
    main()

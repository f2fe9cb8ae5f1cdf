"""Mixed-length texts through one encoder: ours on ragged rows beside transformers on a padded square.

    python benchmarks/ragged.py            # 64 texts through 6 x 384, on two CPU threads
    python benchmarks/ragged.py --gpu      # 256 texts through BERT-base in bf16, a training step, transformers compiled

Both sides hold the same weights; they take turns and medians are compared, because machines are noisy.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

from weft.checkpoint.folder import open_folder
from weft.nn.rows import Ragged
from weft.timing import medians


def mixed_lengths(count: int, seed: int = 0) -> list[int]:
    """Lengths roughly like reviews and paragraphs: log-normal, between 8 and 512 tokens."""
    torch.manual_seed(seed)
    return torch.distributions.LogNormal(4.6, 0.7).sample((count,)).clamp(8, 512).int().tolist()


def pair(config: Any) -> tuple[Any, Any]:
    """The peer and ours, with equal weights, through a saved folder."""
    peer = transformers.BertModel(config, add_pooling_layer=False).eval()
    with tempfile.TemporaryDirectory() as folder:
        peer.save_pretrained(folder)
        ours = open_folder(Path(folder)).network
    return peer, ours


def on_cpu(repeats: int) -> dict[str, Any]:
    torch.set_num_threads(2)
    lengths = mixed_lengths(64)
    texts = [torch.randint(1000, 30000, (length,)).tolist() for length in lengths]
    peer, ours = pair(
        transformers.BertConfig(
            hidden_size=384,
            num_hidden_layers=6,
            num_attention_heads=12,
            intermediate_size=1536,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )
    ragged = Ragged.of(texts)
    longest = max(lengths)
    ids = torch.tensor([text + [0] * (longest - len(text)) for text in texts])
    real = (torch.arange(longest) < torch.tensor(lengths)[:, None]).long()

    def fresh() -> Any:
        # A new batch each time: laying out the rows is part of the work.
        return Ragged.of(texts).rows

    def our_forward() -> Any:
        with torch.inference_mode():
            return ours(ragged.tokens, fresh())

    def their_forward() -> Any:
        with torch.inference_mode():
            return peer(input_ids=ids, attention_mask=real).last_hidden_state

    def our_step() -> None:
        ours(ragged.tokens, fresh()).square().mean().backward()
        ours.zero_grad()

    def their_step() -> None:
        hidden = peer(input_ids=ids, attention_mask=real).last_hidden_state
        (hidden * real[..., None]).square().mean().backward()
        peer.zero_grad()

    difference = (our_forward() - their_forward()[real.bool()]).abs().max().item()
    assert difference < 1e-4, difference
    forward = medians({"ours": our_forward, "transformers": their_forward}, repeats)
    both = medians({"ours": our_step, "transformers": their_step}, repeats)
    return {
        "work": "64 mixed texts, 6 x 384, fp32, 2 threads",
        "fill": sum(lengths) / (longest * len(lengths)),
        "largest difference": difference,
        "forward": {**forward, "ratio": forward["transformers"] / forward["ours"]},
        "forward + backward": {**both, "ratio": both["transformers"] / both["ours"]},
    }


def on_gpu(repeats: int) -> dict[str, Any]:
    torch.set_float32_matmul_precision("high")
    device = "cuda"
    lengths = mixed_lengths(256)
    total, longest = sum(lengths), 512
    texts = [torch.randint(1000, 30000, (length,)).tolist() for length in lengths]
    config = transformers.BertConfig(attn_implementation="sdpa")
    peer = transformers.BertForMaskedLM(config)
    with tempfile.TemporaryDirectory() as folder:
        peer.save_pretrained(folder)
        ours = open_folder(Path(folder)).network
    peer, ours = peer.to(device).train(), ours.to(device).train()
    batch = Ragged.of(texts).to(device)
    ids = torch.tensor([text + [0] * (longest - len(text)) for text in texts], device=device)
    real = (torch.arange(longest) < torch.tensor(lengths)[:, None]).long().to(device)
    labels = torch.where((torch.rand(256, longest, device=device) < 0.15) & (real > 0), ids, -100)
    places = torch.randperm(total, device=device)[: int(0.15 * total)]
    compiled_peer = torch.compile(peer)

    def our_loss(tokens: Any, rows: Any) -> Any:
        hidden = ours(tokens, rows)
        return torch.nn.functional.cross_entropy(ours.words(hidden[places]), tokens[places])

    compiled_ours = torch.compile(our_loss)

    def step(loss: Callable[[], Any], network: Any) -> Callable[[], None]:
        optimizer = torch.optim.AdamW(network.parameters(), 1e-4, fused=True)

        def run() -> None:
            with torch.autocast("cuda", torch.bfloat16):
                found = loss()
            found.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        return run

    runs = {
        "ours": step(lambda: our_loss(batch.tokens, batch.rows), ours),
        "ours compiled": step(lambda: compiled_ours(batch.tokens, batch.rows), ours),
        "transformers": step(lambda: peer(input_ids=ids, attention_mask=real, labels=labels).loss, peer),
        "transformers compiled": step(
            lambda: compiled_peer(input_ids=ids, attention_mask=real, labels=labels).loss, peer
        ),
    }
    times = medians(runs, repeats, warm=4, settle=torch.cuda.synchronize)
    return {
        "work": "256 mixed texts up to 512, BERT-base MLM, bf16, forward + backward + AdamW, dropout on",
        "device": torch.cuda.get_device_name(),
        "fill": total / (longest * len(lengths)),
        "milliseconds": {name: 1e3 * seconds for name, seconds in times.items()},
        "real tokens per second": {name: round(total / seconds) for name, seconds in times.items()},
        "ratio": times["transformers compiled"] / min(times["ours"], times["ours compiled"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    transformers.logging.set_verbosity_error()
    found = on_gpu(given.repeats) if given.gpu else on_cpu(given.repeats)
    found |= {"torch": torch.__version__, "transformers": transformers.__version__, "python": platform.python_version()}
    print(json.dumps(found, indent=2))
    out = given.out or Path(__file__).parent / "results" / ("ragged_gpu.json" if given.gpu else "ragged_cpu.json")
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()

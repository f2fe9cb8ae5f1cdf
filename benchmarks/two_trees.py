"""Two source trees, the same commands: equal weights, equal answers, and the start-up time of the command line.

    git worktree add /somewhere/before COMMIT
    python benchmarks/two_trees.py --before /somewhere/before/src          # against the tree of this script

For a change that must not change behavior. One thread each; the start-up times are medians of interleaved runs, in
seconds of CPU. Exits with status 1 where a file or an answer differs.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from common import machine, parse

HERE = Path(__file__).resolve().parent.parent
FILES = ("reviews.csv", "more-reviews.csv", "names.conll", "weaver.txt")
TEXT = "--text weaver.txt --length 32"
COMMANDS = {  # name of the folder: what makes it
    "gpt": f"pretrain --model gpt2 --size 2x64 {TEXT} --vocabulary 300 --batch 8 --steps 20",
    "bert": f"pretrain --model bert --size 2x64 {TEXT} --vocabulary 300 --batch 8 --steps 20",
    "t5": f"pretrain --model t5 --size 1x64 {TEXT} --vocabulary 300 --batch 4 --steps 10",
    "lstm": f"pretrain --model lstm --size 1x64 {TEXT} --batch 4 --steps 20",
    "ngram": "pretrain --model ngram --text weaver.txt",
    "vectors": "vectors learn --text weaver.txt --width 16 --epochs 2",
    "labels": "finetune --task classify --data reviews.csv --base bert --steps 20",
    "scratch": "finetune --task classify --data reviews.csv --steps 20",
    "tags": "finetune --task tag --data names.conll --base bert --steps 10",
    "student": "distill labels --text weaver.txt --student 1x64 --steps 10",
    "tag-student": "distill tags --text weaver.txt --student 1x64 --steps 6",
    "gpt-student": "distill gpt --text weaver.txt --student gpt2:1x64 --steps 6",
    "pruned": "prune labels --layers 1",
    "onnx": "export labels --to onnx",
}
ANSWERS = (
    "predict labels --data more-reviews.csv --jsonl",
    "predict scratch --data more-reviews.csv --jsonl",
    "predict student --data more-reviews.csv --jsonl",
    "fill bert 'the [MASK] loom'",
    "embed bert 'the loom'",
    "generate gpt 'The weaver'",
    "perplexity gpt --text weaver.txt | head -4",
)


def call(source: Path, folder: Path, command: str) -> bytes:
    """What one command of a source tree prints."""
    environment = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "WEFT_CACHE": str(folder / "cache")}
    shell = f"{sys.executable} -m weft {command}"
    ended = subprocess.run(shell, shell=True, cwd=folder, env=environment, capture_output=True, check=False)
    if ended.returncode:
        sys.exit(f"{source}: weft {command}: {ended.stderr.decode()[-600:]}")
    return ended.stdout


def hashes(source: Path, folder: Path, names: list[str]) -> dict[str, str]:
    """The hash of the weights of every folder, and of every answer."""
    folder.mkdir()
    for name in FILES:
        shutil.copy(HERE / "examples" / name, folder)
    values = {}
    for name in names:
        call(source, folder, f"{COMMANDS[name]} --out {name}")
        weights = sorted(folder.glob(f"{name}/*.safetensors")) + sorted(folder.glob(f"{name}/*.onnx"))
        values[name] = hashlib.sha256(b"".join(path.read_bytes() for path in weights)).hexdigest()[:16]
    for command in ANSWERS:
        if command.split()[1] in names:
            values[command] = hashlib.sha256(call(source, folder, command)).hexdigest()[:16]
    return values


def startup(sources: dict[str, Path], repeats: int) -> None:
    """Seconds of CPU of `weft --help`, the trees taking turns."""
    seconds: dict[str, list[float]] = {name: [] for name in sources}
    for _ in range(repeats):
        for name, source in sources.items():
            before = os.times()
            call(source, Path.cwd(), "--help")
            after = os.times()
            seconds[name].append(
                after.children_user + after.children_system - before.children_user - before.children_system
            )
    print("weft --help: " + ", ".join(f"{name} {statistics.median(each):.3f} s" for name, each in seconds.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required="--smoke" not in sys.argv, help="src of the other tree")
    parser.add_argument("--after", type=Path, default=HERE / "src")
    parser.add_argument("--only", nargs="*", default=list(COMMANDS), choices=list(COMMANDS))
    parser.add_argument("--repeats", type=int, default=15)
    arguments = parse(parser, before=HERE / "src", only=["ngram"], repeats=1)
    sources = {"before": arguments.before.resolve(), "after": arguments.after.resolve()}
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        values = {name: hashes(source, Path(folder) / name, arguments.only) for name, source in sources.items()}
    for name, before in values["before"].items():
        same = "equal" if values["after"][name] == before else "DIFFERENT"
        print(f"{same:10}{before}  {values['after'][name]}  {name}")
    startup(sources, arguments.repeats)
    sys.exit(int(values["before"] != values["after"]))


if __name__ == "__main__":
    main()

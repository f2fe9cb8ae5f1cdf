"""Kill verbs with SIGKILL at random moments, repeat or resume them, and look at what is there in the end.

    python -m tests.kills FOLDER KILLS SEED [VERB ...]

Each verb runs once unbroken and once with KILLS kills; then results must be identical and no file may be left beside
the output, in $TMPDIR or in the cache. torch is imported once and each attempt is a fork, so that it begins within
milliseconds and is killed at work. Prints a table and, last, all of it as JSON.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tests.compress.taught import kinds_of, write_texts
from tests.tasks.small import kinds, tuned, write_rows
from tests.training.broken import begin, ended
from tests.training.small import stories
from weft.cli.main import run
from weft.training.log import TIMES

PLAN = "--batch 8 --set training.save_every=3 --set training.evaluate_every=6 --set training.threads=1"
GPT = "--model gpt2 --size 1x64 --text ../../text.txt --vocabulary 300 --length 32 --steps 30"
BERT = "--model bert --size 1x64 --task classify --data ../../rows.jsonl --dev ../../dev.jsonl"
FAST = "--kinds onnx-int8 --seconds 0.2 --max-drop 100 --prefer small"
VERBS = {
    "pretrain": f"pretrain {GPT} {PLAN} --out out",
    "pretrain ngram": "pretrain --model ngram --set model.order=3 --text ../../text.txt --vocabulary 300 --out out",
    "finetune": f"finetune {BERT} --set tokenizer.size=300 --steps 30 {PLAN} --out out",
    "distill": f"distill ../../model --text ../../texts.txt --student 1x64 --steps 24 {PLAN} --out out",
    "ladder": "ladder --text ../../text.txt --tokens 8192 --size tiny --models unigram,mlp,lstm --parallel 0 --out out",
    "ladder, rungs apart": "ladder --text ../../text.txt --tokens 8192 --size tiny --models unigram,mlp --out out",
    "vectors": "vectors learn --text ../../text.txt --width 16 --min-count 1 --epochs 4 --out out",
    "tokenizer": "tokenizer learn --text ../../text.txt --kind bpe --size 400 --out out",
    "quantize": f"quantize ../../model --data ../../dev.jsonl {FAST} --out out",
    "export": "export ../../model --to onnx --out out",
    "prune": "prune ../../model --layers 1 --data ../../dev.jsonl --no-costs --out out",
    "predict": "predict ../../model --data ../../rows.jsonl --out out.jsonl",
    "evaluate": "evaluate ../../model --data ../../dev.jsonl --out out.html",
}
OUT = ("out", "out.jsonl", "out.html")
MEASURES = {"report.html", "run.json", "lock", "distill.json", "distill.html", "rung.json", "ladder.json", "index.html"}
MEASURES |= {
    "baseline.json",
    "quantize.json",
    "quantize.html",
    "prune.json",
    "prune.html",
    "compare.html",
    "heard.json",
}
OURS = ("made", "recipe", "metrics", "seconds", "sha256", "weft")  # keys of JSON files that hold dates, times or paths


def materials(folder: Path) -> None:
    """What the verbs read."""
    folder.mkdir(parents=True)
    (folder / "text.txt").write_text(stories(120))
    write_rows(folder / "rows.jsonl", kinds(400))
    write_rows(folder / "dev.jsonl", kinds(60, 1))
    write_texts(folder / "texts.txt", kinds_of(300, 5))
    os.environ["WEFT_CACHE"] = str(folder / "cache")
    finish(begin(partial(tuned, folder / "rows.jsonl", "classify", folder / "model", steps=80)))


def work(here: Path, arguments: Sequence[str]) -> None:
    """One call of the command line in a folder, with a cache and temporary files of its own."""
    os.chdir(here)
    os.environ["WEFT_CACHE"], tempfile.tempdir = f"{here}-cache", f"{here}-tmp"
    os.environ["TMPDIR"] = f"{here}-tmp"
    Path(f"{here}-tmp").mkdir(exist_ok=True)
    log = os.open(f"{here}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for number in (1, 2):
        os.dup2(log, number)
    status = run(list(arguments))
    sys.stdout.flush()
    os._exit(status)


def finish(number: int) -> float:
    """How long a process took to its end."""
    begun = time.perf_counter()
    while not ended(number):
        time.sleep(0.002)
    return time.perf_counter() - begun


def clean(here: Path) -> None:
    for path in (here, Path(f"{here}-cache"), Path(f"{here}-tmp")):
        shutil.rmtree(path, ignore_errors=True)
    here.mkdir(parents=True)


def killed(here: Path, arguments: list[str], kills: int, whole: float, chance: random.Random) -> int:
    """Kill a verb so many times, each time it is repeated or resumed, and let it come to its end; how often in all."""
    clean(here)
    done, scale = 0, whole
    while True:
        resumed = (here / "out/run/recipe.toml").exists() and arguments[0] != "ladder"
        number = begin(partial(work, here, ["resume", "out"] if resumed else arguments))
        if done == kills:
            break
        moment = time.perf_counter() + chance.random() * scale
        while not ended(number):
            if time.perf_counter() > moment:
                os.kill(number, signal.SIGKILL)
                os.waitpid(number, 0)
                break
            time.sleep(0.0005)
        done += 1
        if moment > time.perf_counter() or (
            not (here / "out/run").exists() and any((here / name).exists() for name in OUT)
        ):
            clean(here)  # it was done before its moment came
            done, scale = 0, 0.7 * scale
    finish(number)
    return done


def names_in(here: Path) -> set[str]:
    """All that there is of a verb: beside its output, in its cache and among its temporary files."""
    places = {"": here, "cache": Path(f"{here}-cache"), "tmp": Path(f"{here}-tmp")}
    return {f"{name}/{path.relative_to(place)}" for name, place in places.items() for path in place.rglob("*")}


def contents(here: Path) -> dict[str, Any]:
    """What must be identical, by file: bytes, or values without times and paths."""
    found: dict[str, Any] = {}
    for path in sorted(path for path in here.rglob("*") if path.is_file() and path.name not in MEASURES):
        name = str(path.relative_to(here))
        if path.suffix in (".json", ".jsonl", ".toml"):
            text = path.read_text().replace(str(here), "HERE")
            if path.suffix == ".toml":
                found[name] = text
                continue
            lines = [json.loads(line) for line in (text.splitlines() if path.suffix == ".jsonl" else [text])]
            without = (*TIMES, *OURS)
            found[name] = [
                {key: value for key, value in line.items() if key not in without} if isinstance(line, dict) else line
                for line in lines
            ]
        else:
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def main() -> None:
    folder, kills, seed = Path(sys.argv[1]).absolute(), int(sys.argv[2]), int(sys.argv[3])
    materials(folder)
    rows = []
    for verb in sys.argv[4:] or VERBS:
        arguments, chance = VERBS[verb].split(), random.Random(f"{seed} {verb}")
        whole, broken = (folder / name / verb.replace(" ", "-") for name in ("whole", "killed"))
        clean(whole)
        seconds = finish(begin(partial(work, whole, arguments)))
        count = killed(broken, arguments, kills, seconds, chance)
        expected, there = contents(whole), contents(broken)
        differ = sorted(name for name in {*expected, *there} if expected.get(name) != there.get(name))
        left = sorted(names_in(broken) - names_in(whole))
        missing = sorted(names_in(whole) - names_in(broken))
        rows.append(
            {"verb": verb, "kills": count, "seconds": round(seconds, 2), "files": len(expected), "differ": differ}
            | {"leftovers": left, "missing": missing}
        )
        print(
            f"{verb:16} {count:3} kills in {seconds:6.2f} s   {len(expected):3} files, "
            f"{'identical' if not differ else f'DIFFERENT: {differ}'}   leftovers: {left or 'none'}"
            + (f"   MISSING: {missing}" if missing else ""),
            flush=True,
        )
    print(json.dumps(rows))


if __name__ == "__main__":
    main()

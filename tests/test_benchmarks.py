"""Every script in benchmarks/ still runs: `--smoke` takes it through its own code at tiny sizes."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parent.parent / "benchmarks"
SHARED = {"common", "serve_load", "serve_peer", "small_rows", "smoke_data"}  # imported by the scripts, or run by them
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in SHARED)


def kept() -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in (FOLDER / "results").rglob("*") if path.is_file()}


@pytest.fixture
def as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A script may change what a process has once: its path, modules, environment, threads and cores."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    for name in ("WEFT_DATA", "WEFT_CACHE", "OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    monkeypatch.delenv("WEFT_DATA")
    modules, threads, precision = set(sys.modules), torch.get_num_threads(), torch.get_float32_matmul_precision()
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    yield
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(precision)
    if cores is not None:
        os.sched_setaffinity(0, cores)
    for name in set(sys.modules) - modules:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").parent == FOLDER:
            del sys.modules[name]


@pytest.mark.parametrize("script", SCRIPTS)
def test_smoke(script: str, as_before: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = kept()
    monkeypatch.setattr(sys, "argv", [str(FOLDER / f"{script}.py"), "--smoke"])
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as ended:
        assert not ended.code, ended.code
    assert kept() == before, "a smoke run writes nothing under benchmarks/results"
    assert not list(tmp_path.iterdir()), "a smoke run leaves nothing in the folder it was started in"


def test_shared_modules_are_no_scripts() -> None:
    for name in SHARED:
        assert "__main__" not in (FOLDER / f"{name}.py").read_text()

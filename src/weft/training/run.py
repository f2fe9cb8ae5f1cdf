"""A run folder: the model folder of its best model, and `run/` with the recipe, the record and the checkpoints."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from weft.checkpoint.card import Card, Metric
from weft.checkpoint.folder import TARGET, LoadedModel
from weft.checkpoint.save import write_files
from weft.checksums import CHANGED, Damaged, digest, digests, read_manifest, write_manifest
from weft.config import read_record
from weft.errors import UserError
from weft.files import MEGABYTE, check_new_run, held, read_text, sync_folder, write_json
from weft.scratch import sweep
from weft.training.log import read_metrics, writing
from weft.training.state import Checkpoints
from weft.version import VERSION, system_name


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """`run.json`: what a run was made with."""

    date: str | None = None
    seed: int | None = None
    device: str | None = None
    parameters: int = 0
    words: int | None = None
    text: dict[str, Any] | None = None
    held_out: dict[str, Any] | None = None
    data: dict[str, Any] | None = None
    tokenizer: str | None = None
    rows: dict[str, int] | None = None
    stages: tuple[str, ...] | None = None
    teacher: str | None = None
    teacher_forwards: int = 0
    versions: dict[str, str] | None = None
    machine: dict[str, Any] | None = None
    git: str | None = None
    command: tuple[str, ...] = ()


def tokenizer_hash(opened: LoadedModel) -> str:
    """What stands for the vocabularies of a model, and how they cut texts."""
    both = [each and each.pipeline for each in (opened.tokenizer, opened.target_tokenizer)]
    return hashlib.sha256(json.dumps(both).encode()).hexdigest()


class Run:
    """The names of what is in a run folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.inside = folder / "run"
        self.recipe = self.inside / "recipe.toml"
        self.about = self.inside / "run.json"
        self.metrics = self.inside / "metrics.jsonl"
        self.weights = self.inside / "weights.json"  # hashes of the best model
        self.board = self.inside / "tensorboard"
        self.report = self.inside / "report.html"
        self.evaluation = self.inside / "evaluation.json"  # of the best model of a task, on the held-out rows
        self.gradients = self.inside / "gradients.jsonl"
        self.gradients_page = self.inside / "gradients.html"

    def checkpoints(self, keep: int = 1) -> Checkpoints:
        return Checkpoints(self.inside / "checkpoints", keep)

    def check_new(self) -> None:
        """Refuse a folder that holds something: a run is never overwritten."""
        check_new_run(self.folder)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Nobody else writes here meanwhile."""
        path = self.inside / "lock"
        with held(path) as ours:
            if not ours:
                raise UserError(f"{self.folder}: another run (process {path.read_text().strip()}) is writing there")
            yield

    def discard(self) -> None:
        """Remove a run that failed before it had learned anything."""
        for folder in (self.inside, self.folder / TARGET):
            shutil.rmtree(folder, ignore_errors=True)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (self.folder / name).unlink(missing_ok=True)
        if self.folder.is_dir() and not any(self.folder.iterdir()):
            self.folder.rmdir()

    def save_model(self, opened: LoadedModel, metrics: tuple[Metric, ...]) -> None:
        """Put a model in place of the best before it; each file is whole, the weights in one file."""
        card: Card = replace(opened.card, weft=VERSION, metrics=metrics)
        with writing(self.folder):
            with tempfile.TemporaryDirectory(prefix=".model.", dir=self.inside) as scratch:
                write_files(Path(scratch), replace(opened, card=card), shard=1 << 62)
                saved = {"saved": digests(Path(scratch), [path.name for path in Path(scratch).glob("*.safetensors")])}
                before = self._saved_weights().get("saved", {})
                write_manifest(self.weights, {**saved, "before": before})  # a kill may come between files
                for path in sorted(path for path in Path(scratch).rglob("*") if path.is_file()):
                    with open(path, "rb") as file:
                        os.fsync(file.fileno())
                    target = self.folder / path.relative_to(scratch)
                    target.parent.mkdir(exist_ok=True)
                    os.replace(path, target)
            sync_folder(self.folder)
            write_manifest(self.weights, saved)

    def check_model(self) -> None:
        """Refuse to go on beside a damaged model: if no later step is better it stays the result."""
        record = self._saved_weights()
        before = record.get("before")  # only while files are put in place
        for name, saved in record.get("saved", {}).items():
            path = self.folder / name
            if before is not None and name not in before and not path.exists():
                continue
            if digest(path) not in (saved, (before or {}).get(name)):
                raise Damaged(f"{path}: {CHANGED}; put it back, or remove {self.folder} and train again")

    def _saved_weights(self) -> dict[str, dict[str, str]]:
        """The hashes of the best model's weights, by file."""
        return read_manifest(self.weights)[0] if self.weights.exists() else {}

    def tidy(self) -> None:
        """Remove what a killed process left half written."""
        for folder in (self.folder, *(path for path in self.folder.glob("*") if path.is_dir())):
            sweep(folder)
        for path in self.inside.glob(".*"):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        self.checkpoints().tidy()

    def describe(self, values: Mapping[str, Any]) -> None:
        """`run.json`: what the run was made with."""
        versions = {"weft": VERSION, "python": platform.python_version(), "torch": torch.__version__}
        machine = {"system": system_name(), "processors": os.cpu_count(), "threads": torch.get_num_threads()}
        write_json(
            self.about,
            {**values, "versions": versions, "machine": machine, "git": revision(Path()), "command": sys.argv[1:]},
        )

    def info(self) -> RunInfo:
        """What `describe` wrote."""
        return read_record(RunInfo, self.about)

    def lines(self) -> list[dict[str, Any]]:
        return read_metrics(self.metrics)


SHORT = MEGABYTE // 16  # bytes that .git, HEAD, commondir and a file of one reference may have
PACKED = 64 * MEGABYTE  # bytes that packed-refs may have: about a million references


# git itself is not run: the configuration of a repository names programs that git starts (core.fsmonitor, filters,
# hooks), and a folder that somebody else has made must not run code.
def revision(folder: Path) -> str | None:
    """The commit that is checked out in a folder or one above it; None where there is no repository or no commit."""
    try:
        folder = folder.resolve()
        root = next((path for path in (folder, *folder.parents) if (path / ".git").exists()), None)
        if root is None:
            return None
        named = root / ".git"  # a folder, or a file that names it in a submodule or a second worktree
        git = named if named.is_dir() else root / read_text(named, SHORT).removeprefix("gitdir:").strip()
        return _commit(git)
    except (UserError, OSError, RuntimeError, ValueError):
        return None


def _commit(git: Path) -> str | None:
    head = read_text(git / "HEAD", SHORT).strip()
    if not head.startswith("ref:"):
        return _hash(head)
    name = head.removeprefix("ref:").strip()
    if not re.fullmatch(r"refs/[^\0-\x20\x7f~^:?*\\\[]+", name) or ".." in name:
        return None
    shared = git / read_text(git / "commondir", SHORT).strip() if (git / "commondir").exists() else git
    for folder in (git, shared):
        if (folder / name).is_file():
            return _hash(read_text(folder / name, SHORT).strip())
    lines = read_text(shared / "packed-refs", PACKED).splitlines() if (shared / "packed-refs").exists() else []
    return next((_hash(line.split(" ")[0]) for line in lines if line.endswith(f" {name}")), None)


def _hash(text: str) -> str | None:
    """A commit's name in SHA-1 or SHA-256, or None for anything else."""
    return text if re.fullmatch(r"[0-9a-f]{40}([0-9a-f]{24})?", text) else None

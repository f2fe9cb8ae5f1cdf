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
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from weft import files
from weft.checkpoint.card import Card, Metric
from weft.checkpoint.folder import TARGET, LoadedModel, write_files
from weft.checkpoint.tensors import digest_of_tensors, save_tensors
from weft.config import build, read_record, values_of
from weft.errors import UserError
from weft.training.log import read_metrics, writing
from weft.version import VERSION, system_name

STATE = "state.json"  # of a checkpoint: where the run stands, and the hash of every file beside it


@dataclass
class State:
    """All that a run knows beside its tensors."""

    step: int = 0  # updates done
    steps: int | None = None  # that fit into the minutes of the plan, once its speed is known
    pass_tokens: int = 0  # halved where memory ran out
    tokens: int = 0  # read so far
    slots: int = 0  # places that they took, padding of the attention included
    first_loss: float | None = None
    best: float | None = None  # the lowest loss on held-out text; of a task, its score below zero
    best_loss: float | None = None  # held out, of the best: of equal scores the lower loss is kept
    best_step: int | None = None
    evaluated: int = -1  # the last step after which there was an evaluation
    worse: int = 0  # evaluations since the best
    finished: bool = False
    scale: float = 65536.0  # of the loss, in fp16
    steady: int = 0  # fp16 steps since the scale last changed
    metrics: int = 0  # bytes of metrics.jsonl that belong to the steps done
    seconds: float = 0.0  # of training
    evaluating: float = 0.0  # seconds of evaluations
    evaluated_rows: int | None = None  # that are generated in each evaluation, once that is known
    evaluated_from: int = 0  # the first step whose evaluation generates them
    recipe: str | None = None  # the hash of recipe.toml


@dataclass(frozen=True)
class Begun:
    """Where a run stands when a process takes it up."""

    checkpoints: Checkpoints
    state: State
    stored: Mapping[str, dict[str, Tensor]] | None


class Unreadable(UserError):
    """No checkpoint of a run can be read: to go on would end here again."""


class Checkpoints:
    """The folder `checkpoints` of a run: `step-N` each with its tensors and, with their hashes, its state."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder, self.keep = folder, keep

    def steps(self) -> list[int]:
        """Of which steps there are checkpoints, in order."""
        if not self.folder.is_dir():
            return []
        matches = [re.fullmatch(r"step-(\d+)", path.name) for path in self.folder.iterdir()]
        return sorted(int(match[1]) for match in matches if match)

    def path(self, step: int) -> Path:
        return self.folder / f"step-{step}"

    def newest(self) -> Path | None:
        steps = self.steps()
        return self.path(steps[-1]) if steps else None

    def last_good(self) -> str:
        """Where the newest checkpoint stands, for an error message."""
        newest = self.newest()
        return f"the last good checkpoint is {newest}" if newest else "there is no checkpoint before it"

    def save(self, state: State, tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Write a checkpoint whole or not at all, then let go of the oldest."""
        path = self.path(state.step)
        if path.exists():  # saved before it was evaluated, by a signal
            files.write_manifest(path / STATE, values_of(state), files.read_manifest(path / STATE)[1])
            return
        try:
            with files.whole_folder(path) as inside:
                files.write_manifest(inside / STATE, values_of(state), _save_files(inside, tensors))
        except (OSError, UserError) as error:
            words = r"no space left on device|file too large|disk quota exceeded|permission denied"
            cause = re.search(words, files.reason(error))  # without the names of folders that are gone by now
            why = cause[0] if cause else files.reason(error)
            raise UserError(f"{path}: cannot be written: {why}; {self.last_good()}") from None
        self._let_go()

    def _let_go(self) -> None:
        """Remove all but the newest."""
        for step in self.steps()[: -self.keep]:
            # Under another name first: what is half removed must not look like a checkpoint.
            gone = self.folder / f".gone-{step}"
            os.replace(self.path(step), gone)
            shutil.rmtree(gone, ignore_errors=True)

    def tidy(self) -> None:
        """Remove what a killed process left half written or half removed."""
        if self.folder.is_dir():
            for path in self.folder.glob(".*"):
                shutil.rmtree(path, ignore_errors=True)
            files.sync_folder(self.folder)

    def load(self) -> tuple[State, dict[str, dict[str, Tensor]], list[str]] | None:
        """The newest sound checkpoint, and what is wrong with newer ones; None where there is none at all."""
        faults: dict[int, str] = {}
        for step in reversed(self.steps()):
            try:
                values, hashes = files.read_checked(self.path(step) / STATE)
                tensors = {Path(name).stem: load_file(self.path(step) / name) for name in hashes}
                state = build(State, values, str(self.path(step) / STATE))
            except (OSError, SafetensorError, UserError) as error:
                named = isinstance(error, UserError)
                faults[step] = str(error) if named else f"{self.path(step)}: {files.reason(error)}"
                continue
            if not faults:  # a process may have been killed before it let go of the oldest
                self._let_go()
            for other in faults:  # its name is free for the one that takes its place
                os.replace(self.path(other), self.folder / f".bad-{other}")
            notes = [f"{fault}; going on from an earlier checkpoint, step {step}" for fault in faults.values()]
            return state, tensors, notes
        if faults:
            what = f"put sound ones back, or remove {self.folder} to train again from step 0"
            raise Unreadable(f"no checkpoint can be read: {'; '.join(faults.values())}; {what}")
        return None


def _save_files(folder: Path, tensors: Mapping[str, Mapping[str, Tensor]]) -> dict[str, str]:
    """Write a file for each group of tensors; returns their hashes, which are worked out meanwhile."""
    jobs = dict[str, tuple[Future[None], Future[str]]]()
    with ThreadPoolExecutor(4) as pool:
        for name, group in sorted(tensors.items(), key=lambda pair: -sum(each.nbytes for each in pair[1].values())):
            file, here = f"{name}.safetensors", {key: each.detach().cpu().contiguous() for key, each in group.items()}
            jobs[file] = pool.submit(_save_file, folder / file, here), pool.submit(digest_of_tensors, here)
    for written, _ in jobs.values():
        written.result()
    return {file: digest.result() for file, (_, digest) in sorted(jobs.items())}


def _save_file(path: Path, tensors: Mapping[str, Tensor]) -> None:
    save_tensors(path, tensors)
    files.sync_file(path)


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
        files.check_new_run(self.folder)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Nobody else writes here meanwhile."""
        path = self.inside / "lock"
        with files.held(path) as ours:
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
                names = [path.name for path in Path(scratch).glob("*.safetensors")]
                saved = {"saved": files.digests(Path(scratch), names)}
                before = self._saved_weights().get("saved", {})
                files.write_manifest(self.weights, {**saved, "before": before})  # a kill may come between files
                for path in sorted(path for path in Path(scratch).rglob("*") if path.is_file()):
                    files.sync_file(path)
                    target = self.folder / path.relative_to(scratch)
                    target.parent.mkdir(exist_ok=True)
                    os.replace(path, target)
            files.sync_folder(self.folder)
            files.write_manifest(self.weights, saved)

    def check_model(self) -> None:
        """Refuse to go on beside a damaged model: if no later step is better it stays the result."""
        record = self._saved_weights()
        before = record.get("before")  # only while files are put in place
        for name, saved in record.get("saved", {}).items():
            path = self.folder / name
            if before is not None and name not in before and not path.exists():
                continue
            if files.digest(path) not in (saved, (before or {}).get(name)):
                raise files.Damaged(f"{path}: {files.CHANGED}; put it back, or remove {self.folder} and train again")

    def _saved_weights(self) -> dict[str, dict[str, str]]:
        """The hashes of the best model's weights, by file."""
        return files.read_manifest(self.weights)[0] if self.weights.exists() else {}

    def tidy(self) -> None:
        """Remove what a killed process left half written."""
        for folder in (self.folder, *(path for path in self.folder.glob("*") if path.is_dir())):
            files.sweep(folder)
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
        made = {"versions": versions, "machine": machine, "git": revision(Path()), "command": sys.argv[1:]}
        files.write_json(self.about, {**values, **made})

    def info(self) -> RunInfo:
        """What `describe` wrote."""
        return read_record(RunInfo, self.about)

    def lines(self) -> list[dict[str, Any]]:
        return read_metrics(self.metrics)


SHORT = files.MEGABYTE // 16  # bytes that .git, HEAD, commondir and a file of one reference may have
PACKED = 64 * files.MEGABYTE  # bytes that packed-refs may have: about a million references


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
        git = named if named.is_dir() else root / files.read_text(named, SHORT).removeprefix("gitdir:").strip()
        text = files.read_text(git / "HEAD", SHORT).strip()
        if text.startswith("ref:"):
            name = text.removeprefix("ref:").strip()
            if not re.fullmatch(r"refs/[^\0-\x20\x7f~^:?*\\\[]+", name) or ".." in name:
                return None
            shared = git / files.read_text(git / "commondir", SHORT).strip() if (git / "commondir").exists() else git
            paths = [path / name for path in (git, shared) if (path / name).is_file()]
            packed = shared / "packed-refs"
            lines = files.read_text(packed, PACKED).splitlines() if not paths and packed.exists() else []
            listed = next((line.split(" ")[0] for line in lines if line.endswith(f" {name}")), "")
            text = files.read_text(paths[0], SHORT).strip() if paths else listed
    except (UserError, OSError, RuntimeError, ValueError):
        return None
    return text if re.fullmatch(r"[0-9a-f]{40}([0-9a-f]{24})?", text) else None  # SHA-1 or SHA-256

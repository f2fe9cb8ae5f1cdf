"""Where a run stands, and its checkpoints: whole or absent, checked when they are read, safetensors and JSON only.

There is no generator to store: order, masks and dropout all follow from the seed and the number of the step.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from weft.checkpoint.tensors import save_tensors
from weft.checksums import digests, read_checked, read_manifest, write_manifest
from weft.config import build, values_of
from weft.errors import UserError
from weft.files import reason, sync_folder, whole_folder

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
        self.folder = folder
        self.keep = keep

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
            write_manifest(path / STATE, values_of(state), read_manifest(path / STATE)[1])
            return
        try:
            with whole_folder(path) as inside:
                for name, some in tensors.items():
                    here = {key: tensor.detach().cpu().contiguous() for key, tensor in some.items()}
                    save_tensors(inside / f"{name}.safetensors", here)
                hashes = digests(inside, [f"{name}.safetensors" for name in tensors])
                write_manifest(inside / STATE, values_of(state), hashes)
        except (OSError, SafetensorError, UserError) as error:
            raise UserError(f"{path}: cannot be written: {_cause(error)}; {self.last_good()}") from None
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
            sync_folder(self.folder)

    def load(self) -> tuple[State, dict[str, dict[str, Tensor]], list[str]] | None:
        """The newest sound checkpoint, and what is wrong with newer ones; None where there is none at all."""
        faults: dict[int, str] = {}
        for step in reversed(self.steps()):
            try:
                values, hashes = read_checked(self.path(step) / STATE)
                tensors = {Path(name).stem: load_file(self.path(step) / name) for name in hashes}
                state = build(State, values, str(self.path(step) / STATE))
            except (OSError, SafetensorError, UserError) as error:
                faults[step] = str(error) if isinstance(error, UserError) else f"{self.path(step)}: {reason(error)}"
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


def _cause(error: Exception) -> str:
    """The system's words alone: 'no space left on device'."""
    words = reason(error)
    match = re.search(r"(no space left on device|file too large|disk quota exceeded|permission denied)", words)
    return match[1] if match else words

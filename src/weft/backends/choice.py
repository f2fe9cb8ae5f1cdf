"""The backend of a model on this machine: the choice of `weft bench`, stored in the cache.

A choice holds for one CPU, number of threads, versions and weights: it is stored under all of them, so whatever changes
leads to another name, where nothing is stored. It is JSON with a checksum; a damaged one is ignored with a note.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from weft.backends.threads import core_count, thread_count
from weft.config import build
from weft.data.shards import BENCH
from weft.errors import UserError, shown
from weft.files import Damaged, cache_folder, digest_of_values, read_json, read_manifest, write_json, write_manifest
from weft.version import VERSION

ROOM = BENCH  # of the cache
PACKAGES = ("torch", "onnxruntime", "ctranslate2")  # that run models
WEIGHTS = (".safetensors", ".onnx", ".bin", ".h5")
SMALL = ("config.json", "weft.json", "tokenizer.json")  # files besides the weights that answers depend on
TORCH = "torch"
ANY = "*"  # in place of a head: a backend with all heads
WRITING = "write"  # in place of a head: text generation
VECTORS = "embed"  # in place of a task: all tasks that give vectors of texts


@dataclass(frozen=True)
class Backend:
    """One way to run a model, and how far its numbers may be from torch's."""

    name: str
    about: str
    tolerance: float  # largest difference of a number, as a share of the largest logit or number of a vector
    angle: float  # largest 1 - cosine between vectors
    precision: str  # of the export; "": it needs none
    # Largest change of the mean log-probability per token of torch's own answers; 0: it generates no text.
    nats: float = 0.0
    engine: str = "onnx"  # of the export


# In the order of the table. The first is the default, which the others can replace.
BACKENDS: dict[str, Backend] = {
    each.name: each
    for each in (
        Backend(TORCH, "PyTorch as it is", 0.0, 0.0, ""),
        Backend("onednn", "PyTorch with packed weights", 1e-4, 1e-6, ""),
        Backend("onednn-bf16", "the same in bfloat16", 0.03, 1e-3, "", 0.02),
        Backend("onnx", "ONNX Runtime", 1e-4, 1e-6, "fp32"),
        Backend("onnx-int8", "ONNX Runtime, 8-bit weights and inputs", 0.2, 0.02, "int8"),
        Backend("ctranslate2", "CTranslate2", 0.0, 0.0, "fp32", 1e-3, "ctranslate2"),
        Backend("ctranslate2-int8", "CTranslate2, 8-bit weights and inputs", 0.0, 0.0, "int8", 0.05, "ctranslate2"),
    )
}


@dataclass(frozen=True)
class BackendChoice:
    """The backend to use for a model, and what was measured for it."""

    backend: str
    faster: float  # times plain torch, the geometric mean of all profiles
    profiles: tuple[str, ...] = ()
    date: str = ""
    measured: dict[str, Any] = field(default_factory=dict, compare=False)  # texts a second by profile and backend

    def line(self) -> str:
        """The line that is printed where the choice is used."""
        profiles = ", ".join(self.profiles)
        measured = f"{self.faster:.2f} x torch in weft bench ({profiles}, {self.date})"
        return f"backend {self.backend}: {measured}; --backend torch for the plain path"


def cpu_name() -> str:
    """The name of the processor, with family, model and stepping if the system tells them."""
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").partition("\n\n")[0]
        lines = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        facts = {name.strip(): value.strip() for name, value in lines.items()}
        names = ("model name", "cpu family", "model", "stepping", "CPU implementer", "CPU part")
        if known := [facts[name] for name in names if name in facts]:
            return " ".join(known)
    return f"{platform.machine()} {sys.platform}"


def version_of(package: str) -> str | None:
    """The version of a package, without importing it; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def folder_of(folder: Path, remember: bool = True) -> str:
    """The SHA-256 of the weights of a model folder, with its config, card and tokenizer.

    The hash of a large file is cached with its size and time, so that loading a model does not read it twice.
    """
    whole = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.name in SMALL:
            whole.update(path.name.encode() + path.read_bytes())
        elif path.suffix in WEIGHTS and path.is_file():
            whole.update(path.name.encode() + _remembered(path, remember).encode())
    return whole.hexdigest()


def _remembered(path: Path, remember: bool) -> str:
    """The hash of a file: the cached one if size and modification time are the same."""
    path = path.resolve()
    state = path.stat()
    stamp = [str(path), state.st_size, state.st_mtime_ns, state.st_ino]
    name = cache_folder() / ROOM / f"{hashlib.sha256(str(path).encode()).hexdigest()[:32]}.hash.json"
    with suppress(UserError):
        kept = read_json(name) if name.exists() else {}
        if kept.get("file") == stamp and isinstance(kept.get("sha256"), str):
            return str(kept["sha256"])
    with open(path, "rb") as file:
        sha = hashlib.file_digest(file, "sha256").hexdigest()
    if remember:
        with suppress(UserError, OSError):
            name.parent.mkdir(parents=True, exist_ok=True)
            write_json(name, {"file": stamp, "sha256": sha})
    return sha


def key_of(folder: Path, task: str) -> dict[str, Any]:
    """The key of a choice: everything that it depends on."""
    versions = {name: version_of(name) for name in PACKAGES}
    key = {"cpu": cpu_name(), "threads": thread_count(), "weft": VERSION, "task": task}
    return {**key, **versions, "model": folder_of(folder)}


def path_of(key: Mapping[str, Any]) -> Path:
    """The file of the choice for a key."""
    return cache_folder() / ROOM / f"{digest_of_values(key)[:40]}.choice.json"


def store(key: Mapping[str, Any], choice: BackendChoice) -> Path:
    """Store a choice; another process sees either the old one or the new one."""
    path = path_of(key)
    # With lists for tuples, as JSON reads it back, so that keys can be compared.
    write_manifest(path, json.loads(json.dumps({"key": key, "choice": asdict(choice)})))
    return path


def stored(folder: Path, task: str) -> BackendChoice | None:
    """The choice that was made for this model on this machine, if any; a damaged one is ignored with a note.

    A process with fewer threads than the machine has cores, such as one of several workers of a server, takes the
    choice for all cores where there is none for so few.
    """
    if not any((cache_folder() / ROOM).glob("*.choice.json")):
        return None  # nothing was measured on this machine, so hashing the weights can be skipped
    try:
        keys = [key_of(folder, task)]
    except OSError:
        return None
    if keys[0]["threads"] < (cores := core_count()):
        keys.append({**keys[0], "threads": cores})
    key = next((key for key in keys if path_of(key).exists()), None)
    if key is None:
        return None
    path = path_of(key)
    try:
        values, _ = read_manifest(path)
        if values.get("key") != json.loads(json.dumps(key)):
            return None
        given = values.get("choice")
        if not isinstance(given, dict) or not isinstance(given.get("backend"), str):
            raise Damaged(f"{path}: names no backend")
        return build(BackendChoice, given, f"{path}: choice")
    except UserError as error:
        warnings.warn(f"{shown(str(error), 300)}; plain torch is used (weft bench measures again)", stacklevel=2)
        return None


def export_of(key_model: str, task: str, precision: str, engine: str = "onnx") -> Path:
    """The folder of the export of a model for another engine, by the hash of the model."""
    name = digest_of_values({"model": key_model, "task": task, "precision": precision, "weft": VERSION})
    return cache_folder() / ROOM / f"{name[:40]}.{engine}"

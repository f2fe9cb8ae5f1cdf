"""Tensors on disk: one safetensors file, or shards and their index. Nothing else is ever opened as weights."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from weft.budget import by_budget
from weft.errors import UserError, listed, shown
from weft.files import check_readable, read_json, unwritable, write_json
from weft.nn.heads import Mix

TENSORS = 1 << 16  # in one file; the largest models have some thousand
HEADER = 1 << 24  # bytes of the list of tensors in a file
ALIGNED = 64  # bytes, as torch aligns its own tensors
SHARD = 5_000_000_000  # bytes of tensors in one file
# Weights, and the masks and counters that old files keep beside them; each by its name in a file.
DTYPES = {
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float64: "F64",
    torch.int64: "I64",
    torch.int16: "I16",
    torch.bool: "BOOL",
    torch.uint8: "U8",
}


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder by their stored names, from one file or from shards."""
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.exists():
        return read_file(single)
    if not index.exists():
        if any(folder.glob("pytorch_model*.bin")):
            raise UserError(
                f"{folder}: holds only pytorch_model.bin, a pickle that could run code and is never opened; convert it "
                "once with transformers: AutoModel.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER)"
            )
        raise UserError(f"{folder}: has no model.safetensors")
    table = read_json(index).get("weight_map")
    if not isinstance(table, dict) or not table:
        raise UserError(f"{index}: weight_map must say which file holds each tensor")
    tensors: dict[str, Tensor] = {}
    # A shard is a plain file beside its index: never a path that leads elsewhere.
    shard = re.compile(r"[\w.-]{1,200}\.safetensors")
    wrong = [name for name in table.values() if not isinstance(name, str) or not shard.fullmatch(name)]
    if wrong:
        raise UserError(f"{index}: {shown(str(wrong[0]))!r} is not the name of a shard")
    for name in dict.fromkeys(table.values()):
        if not (folder / name).exists():
            raise UserError(f"{folder}: shard {name} is missing")
        for tensor_name, tensor in read_file(folder / name).items():
            if table.get(tensor_name) != name:
                raise UserError(f"{folder / name}: tensor {shown(tensor_name)} is not what the index says is there")
            tensors[tensor_name] = tensor
    lost = [shown(str(name)) for name in table if name not in tensors]
    if lost:
        raise UserError(f"{index}: not in the shards: {listed(lost)}")
    return tensors


def layer_weights(folder: Path) -> dict[str, float]:
    """The learned mix of layers of a saved model; nothing where it has none, or no head that has learned it."""
    path = folder / "model.safetensors"
    if not path.is_file():
        return {}
    try:
        with safe_open(path, framework="pt") as file:
            names = set(file.keys())
            learned = any(name.startswith("heads.") and not name.startswith("heads.words.") for name in names)
            if not learned or not {"mix.shares", "mix.scale"} <= names:
                return {}
            mix = Mix(file.get_tensor("mix.shares").numel())
            mix.load_state_dict({name: file.get_tensor(f"mix.{name}") for name in ("shares", "scale")})
    except (SafetensorError, OSError, ValueError, RuntimeError, TypeError) as error:
        raise UserError(f"{path}: not a sound safetensors file: {shown(str(error), 160)}") from None
    return mix.weights()


def read_file(path: Path) -> dict[str, Tensor]:
    """All tensors of one file, none of them of a kind that no weight has.

    They are mapped, not copied: processes that open one file share its pages, and what one writes to them stays its
    own. A file that is replaced by another stays as it was for whoever has it open; Windows lets nobody replace it, so
    that there the tensors are copied.
    """
    check_readable(path)
    with open(path, "rb") as header:  # before the library reads a list of tensors that is longer than any model's
        size = int.from_bytes(header.read(8), "little")
        if HEADER < size <= os.fstat(header.fileno()).st_size:
            raise UserError(f"{path}: its list of tensors has {size:,} bytes; at most {HEADER:,} are read")
    try:
        with safe_open(path, framework="pt") as file:
            names = file.keys()
            if len(names) > TENSORS:
                raise UserError(f"{path}: holds {len(names):,} tensors; at most {TENSORS:,} are read")
            tensors = {name: file.get_tensor(name) for name in names}
            # A product of matrices may round otherwise where they are not aligned, and then equal weights give other
            # answers; Windows replaces no file that is mapped.
            copied = [
                name for name, tensor in tensors.items() if tensor.data_ptr() % ALIGNED or sys.platform == "win32"
            ]
            tensors |= {name: tensors[name].clone() for name in copied}
    except (SafetensorError, OSError, ValueError, RuntimeError, TypeError) as error:
        raise UserError(f"{path}: not a sound safetensors file: {shown(str(error), 160)}") from None
    strange = [shown(name) for name, tensor in tensors.items() if tensor.dtype not in DTYPES]
    if strange:
        raise UserError(f"{path}: tensors of a kind that no weight has: {listed(strange)}")
    return tensors


def header_of(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """The list of tensors of a file in the order of their bytes: the largest kinds first, then by name.

    Spaces align what comes behind it, so that it can be used where it is mapped. The library aligns to 8 bytes, and
    writes metadata in an order that differs from run to run; here equal models give equal files.
    """
    first, header = 0, dict[str, object]({"__metadata__": dict(metadata)} if metadata else {})
    for name, tensor in ordered(tensors):
        last = first + tensor.nbytes
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [first, last]}
        first = last
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    return text + b" " * (-(8 + len(text)) % ALIGNED)


def ordered(tensors: Mapping[str, Tensor]) -> list[tuple[str, Tensor]]:
    """The tensors as they stand in a file, so that each begins at a multiple of the size of its numbers."""
    return sorted(tensors.items(), key=lambda pair: (-pair[1].element_size(), pair[0]))


def _parts_of(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> Iterator[bytes | memoryview]:
    """The bytes of a safetensors file."""
    assert sys.byteorder == "little", "safetensors holds numbers with their lowest byte first"
    header = header_of(tensors, metadata)
    yield len(header).to_bytes(8, "little") + header
    for _, tensor in ordered(tensors):
        yield tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """One safetensors file."""
    with open(path, "wb") as file:
        for part in _parts_of(tensors, metadata or {}):
            file.write(part)


def digest_of_tensors(tensors: Mapping[str, Tensor]) -> str:
    """The SHA-256 of the file that `save_tensors` makes of them."""
    digest = hashlib.sha256()
    for part in _parts_of(tensors, {}):
        digest.update(part)
    return digest.hexdigest()


def write_tensors(folder: Path, tensors: Mapping[str, Tensor], shard: int) -> None:
    """One `model.safetensors`, or shards and their index where one file would be larger than `shard` bytes."""
    groups = list(by_budget(tensors, lambda name: tensors[name].nbytes, shard)) or [[]]
    table: dict[str, str] = {}
    for number, group in enumerate(groups, 1):
        name = f"model-{number:05d}-of-{len(groups):05d}.safetensors" if len(groups) > 1 else "model.safetensors"
        try:
            save_tensors(folder / name, {tensor: tensors[tensor] for tensor in group}, {"format": "pt"})
        except OSError as error:
            raise unwritable(folder / name, error) from None
        table |= dict.fromkeys(group, name)
    if len(groups) > 1:
        total = sum(tensor.nbytes for tensor in tensors.values())
        write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": table})

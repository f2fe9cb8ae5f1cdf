"""Written files have the permissions that the user's umask says, and a file without permission says so."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import weft
from tests.private.rights import without_override
from tests.private.verbs import COMMANDS, MAY_REFUSE, arguments_of, write_inputs
from tests.tasks.small import model_for, vocabulary
from weft.checkpoint.tensors import read_file, save_tensors
from weft.cli.main import run
from weft.distillation.dataset import read_shard
from weft.errors import UserError
from weft.files import read_bytes, whole_folder, write_text
from weft.text.tokenizers.published import load_tokenizer
from weft.training.run import Checkpoints, State

UMASKS = (0o022, 0o027, 0o077)


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def odd_modes(folder: Path, mask: int) -> list[str]:
    """Files and folders whose permissions are not those of any new one."""
    modes = {path: stat.S_IMODE(path.lstat().st_mode) for path in sorted(folder.rglob("*")) if not path.is_symlink()}
    return [
        f"{mode:o} {path.relative_to(folder)}"
        for path, mode in modes.items()
        if mode != (0o777 if path.is_dir() else 0o666) & ~mask
    ]


@pytest.mark.parametrize("mask", UMASKS)
def test_written_files_follow_the_umask(mask: int, tmp_path: Path) -> None:
    with umask(mask):
        model = model_for("classify", 2, vocabulary(), ("a", "b"))
        model.save(tmp_path / "model")
        Checkpoints(tmp_path / "checkpoints", 1).save(State(step=1), {"model": model.network.state_dict()})
        with whole_folder(tmp_path / "folder") as inside:
            write_text(inside / "deep" / "text.txt", "a")
        save_tensors(tmp_path / "shard.safetensors", {"a": torch.zeros(2)})
        weft.export(model, "ctranslate2", out=tmp_path / "ct2")
    assert {path.name for path in tmp_path.rglob("*.safetensors")} >= {"model.safetensors", "shard.safetensors"}
    assert odd_modes(tmp_path, mask) == []


def test_an_existing_file_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "shard.safetensors"
    path.touch(0o640)
    path.chmod(0o640)
    save_tensors(path, {"a": torch.zeros(2)})
    assert stat.S_IMODE(path.stat().st_mode) == 0o640 and list(read_file(path)) == ["a"]


@pytest.mark.slow
@pytest.mark.parametrize("mask", UMASKS)
def test_what_every_verb_writes_follows_the_umask(
    mask: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_inputs(tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    with umask(mask):
        for command in COMMANDS:
            if command == ("cache", "clear"):
                break
            status = run(arguments_of(command, tmp_path / "out"))
            assert status == 0 or (command[0] in MAY_REFUSE and status == 2), (command, capsys.readouterr().err)
    assert any((tmp_path / "cache").rglob("*.npy")) and any((tmp_path / "cache").rglob("*.safetensors"))
    assert odd_modes(tmp_path / "out", mask) == odd_modes(tmp_path / "cache", mask) == []


# ------------------------------------------------------------------------------------------------------- permissions


def refused(path: Path, read: Callable[[], object]) -> None:
    """Without permission to open a file, one line says so, and which file."""
    path.chmod(0)
    with without_override(), pytest.raises(UserError) as error:
        read()
    assert f"{path.name}: cannot be read: permission denied" in str(error.value)


def test_readers_of_single_files(tmp_path: Path) -> None:
    save_tensors(tmp_path / "a.safetensors", {"a": torch.zeros(2)})
    for read in (read_file, read_shard, lambda path: read_bytes(path, 100)):
        refused(tmp_path / "a.safetensors", lambda read=read: read(tmp_path / "a.safetensors"))  # type: ignore[misc]


@pytest.mark.parametrize("engine", ["torch", "onnx", "ctranslate2"])
def test_every_file_of_a_model_folder(engine: str, tmp_path: Path) -> None:
    model, folder = model_for("classify", 2, vocabulary(), ("a", "b")), tmp_path / "model"
    if engine == "torch":
        model.save(folder)
    else:
        pytest.importorskip("onnx" if engine == "onnx" else engine)
        weft.export(model, engine, out=folder)
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix not in (".md", ".html")]
    read = {path for path in files if path.name not in ("modules.json", "vocab.txt")}
    assert len(read) > 3
    for path in read:
        mode = path.stat().st_mode
        path.chmod(0)
        with without_override(), pytest.raises(UserError, match="permission denied"):
            weft.load(folder)
        path.chmod(stat.S_IMODE(mode))
    weft.load(folder)


def test_a_folder_without_permission(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model_for("classify", 2, vocabulary(), ("a", "b")).save(tmp_path / "model")
    (tmp_path / "model").chmod(0)
    with without_override():
        assert run(["predict", str(tmp_path / "model"), "a"]) == 2
    assert "permission denied" in capsys.readouterr().err
    (tmp_path / "model").chmod(0o700)


@pytest.mark.parametrize("name", ["rows.csv", "rows.jsonl", "rows.csv.gz", "rows.parquet", "rows.xlsx", "rows.arrow"])
def test_rows_of_data(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model_for("classify", 2, vocabulary(), ("a", "b")).save(tmp_path / "model")
    (tmp_path / name).write_bytes(b"text,label\na,b\n")
    (tmp_path / name).chmod(0)
    with without_override():
        assert run(["evaluate", str(tmp_path / "model"), "--data", str(tmp_path / name)]) == 2
    assert f"{name}: cannot be read: permission denied" in capsys.readouterr().err


def test_a_tokenizer(tmp_path: Path) -> None:
    vocabulary().save(tmp_path)
    refused(tmp_path / "tokenizer.json", lambda: load_tokenizer(tmp_path))

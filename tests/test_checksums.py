"""Every bit of what is read again later is checked."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.damage import flipped
from weft.files import Damaged, digests, is_sound, read_checked, read_manifest, write_manifest

VALUES = {"step": 12, "rate": 1e-05, "name": "über", "none": None, "list": [1, 2.5, True]}


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    (tmp_path / "a.bin").write_bytes(bytes(range(40)))
    (tmp_path / "b.bin").write_bytes(b"")
    write_manifest(tmp_path / "m.json", VALUES, digests(tmp_path, ["a.bin", "b.bin"]))
    return tmp_path / "m.json"


def test_what_was_written_is_read(manifest: Path) -> None:
    assert read_checked(manifest)[0] == read_manifest(manifest)[0] == VALUES and is_sound(manifest)
    assert list(read_checked(manifest)[1]) == ["a.bin", "b.bin"]


@pytest.mark.parametrize("name", ["a.bin", "m.json"])
def test_every_bit_counts(name: str, manifest: Path) -> None:
    """Also one that changes no value, such as 1E-05 for 1e-05."""
    path = manifest.with_name(name)
    for data in flipped(path.read_bytes()):
        path.write_bytes(data)
        with pytest.raises(Damaged) as caught:
            read_checked(manifest)
        assert str(caught.value) == f"{path}: damaged: its bytes are not those that were saved"


def test_what_is_missing_or_no_file(manifest: Path) -> None:
    beside = manifest.with_name("b.bin")
    beside.unlink()
    with pytest.raises(Damaged, match="b.bin: missing"):
        read_checked(manifest)
    os.mkfifo(beside)
    with pytest.raises(Damaged, match="b.bin: damaged: it is not a plain file"):
        read_checked(manifest)
    with pytest.warns(UserWarning, match="made again"):
        assert not is_sound(manifest)
    manifest.write_text('{"step": 12}')
    with pytest.raises(Damaged, match="m.json: has no checksums"):
        read_manifest(manifest)
    assert not is_sound(manifest.with_name("nowhere.json"))


def test_a_manifest_of_lists_in_lists_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    write_manifest(path, {"tokens": 3})
    nested = "[" * 400 + "]" * 400
    path.write_text(path.read_text().replace("3", "[" + ",".join([nested] * 4000) + "]", 1))
    begin = time.process_time()
    with pytest.raises(Damaged):
        read_manifest(path)
    assert time.process_time() - begin < 10

"""Values of any type and size under every key of a model folder: the folder is opened, or refused in one line."""

from __future__ import annotations

import json
import random
import struct
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import weft
from weft.backends.opening import described
from weft.checkpoint import formats, tensors
from weft.checkpoint.families import FAMILIES
from weft.checkpoint.tensors import read_tensors
from weft.errors import UserError, did_you_mean, one_of

VALUES: tuple[Any, ...] = (None, [], {}, [[]], "", -1, 10**30, 1e308, True, "x" * 10**6, {"a": {"b": []}})
CARD = ("task", "labels", "columns", "window", "thresholds", "temperature", "metrics", "backend", "precision", "made")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("families")
    for name in ("bert", "deberta", "gpt2", "t5", "lstm"):
        settings = {"vocabulary": 40} | ({"context": 16} if name in ("bert", "deberta", "gpt2") else {})
        weft.new(name, size="1x64", settings=settings).save(root / name)
    return {path.name: path for path in root.iterdir()}


def opened_or_refused(folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            weft.load(folder)
        except UserError as error:
            assert len(str(error)) < 2000, "an error that repeats all of a value"


@pytest.mark.parametrize("file", ["config.json", "weft.json", "generation_config.json"])
@pytest.mark.parametrize("name", ["bert", "deberta", "gpt2", "t5", "lstm"])
def test_any_value_under_any_key(name: str, file: str, folders: dict[str, Path]) -> None:
    path = folders[name] / file
    before = path.read_text() if path.exists() else None
    values = json.loads(before or "{}")
    keys = {*values, *{"config.json": formats.ALWAYS, "weft.json": CARD}.get(file, formats.DECODING)}
    keys |= {*FAMILIES[name].table.keys, "architectures", "id2label", "label2id"} if file == "config.json" else set()
    cases = [(key, value) for key in sorted(keys) for value in VALUES]
    try:
        for key, value in random.Random(f"{name} {file}").sample(cases, 16):
            path.write_text(json.dumps({**values, key: value}))
            opened_or_refused(folders[name])
    finally:
        path.write_text(before) if before is not None else path.unlink()


def message(read: Any, *given: Any) -> str:
    with pytest.raises(UserError) as caught:
        read(*given)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 2000
    return str(caught.value)


@pytest.mark.parametrize("name", [["a"], {"a": 1}, None, 1, True, "", "../a.safetensors", "x" * 10**6])
def test_an_index_whose_shards_have_no_names(name: Any, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    assert "is not the name of a shard" in message(read_tensors, tmp_path)


@pytest.mark.parametrize("named", [[[]], [{}], [None], [1], {}, "BertModel", [], ["x" * 10**6]])
def test_an_exported_folder_with_other_architectures(named: Any, folders: dict[str, Path], tmp_path: Path) -> None:
    values = json.loads((folders["bert"] / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**values, "architectures": named}))
    assert "architectures must name one of" in message(described, tmp_path)


def test_a_file_of_too_many_tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "TENSORS", 100)
    save_file({f"t{number}": torch.zeros(1) for number in range(101)}, tmp_path / "model.safetensors")
    assert "holds 101 tensors; at most 100 are read" in message(read_tensors, tmp_path)


def test_a_list_of_tensors_that_is_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "HEADER", 1000)
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", 2000) + b"{" + b" " * 3000)
    assert "its list of tensors has 2,000 bytes; at most 1,000 are read" in message(read_tensors, tmp_path)


def test_a_word_of_a_million_letters_is_not_repeated() -> None:
    assert len(message(one_of, "x" * 10**6, ["bert"], "family")) < 200
    assert did_you_mean("x" * 10**6, ["bert"]) == "" and "bert" in did_you_mean("brt", ["bert"])

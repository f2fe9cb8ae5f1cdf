"""An export is what it was when it was checked: any change of a file is refused, unless the user says otherwise."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.backends.engines import drawn
from tests.engines import need_engine
from tests.tasks.small import kinds, model_for, vocabulary, write_rows
from weft.checkpoint.card import read_card, record_hashes
from weft.cli.main import run
from weft.tasks.model import Model

need_engine("onnx")
need_engine("ctranslate2")
TEXT = "the cat is now"


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One model in every way that it can be written."""
    root, model = tmp_path_factory.mktemp("exports"), model_for("classify", 3, vocabulary(), ("a", "b", "c"))
    for to in ("onnx", "ctranslate2", "transformers"):
        weft.export(model, to, out=root / to)
    weft.export(drawn("transformer"), "ctranslate2", out=root / "writes")
    return {path.name: path for path in root.iterdir()}


def answer(model: Model) -> Any:
    return model(TEXT, max_tokens=4) if model.task in ("translate", "complete") else model(TEXT)


@pytest.mark.parametrize("name", ["onnx", "ctranslate2", "transformers", "writes"])
def test_a_flipped_byte_of_any_file_is_refused(name: str, exports: dict[str, Path], tmp_path: Path) -> None:
    folder, chance = tmp_path / "x", random.Random(0)
    shutil.copytree(exports[name], folder)
    before = answer(weft.load(folder))
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {path.relative_to(folder).as_posix() for path in files} == set(read_card(folder).files)  # type: ignore[union-attr]
    for path in files:
        data = path.read_bytes()
        places = [
            0,
            len(data) - 1,
            *(chance.randrange(len(data)) for _ in range(60 if path.name == "weft.json" else 6)),
        ]
        for place in places:
            changed = bytearray(data)
            changed[place] ^= 1 << chance.randrange(8)
            path.write_bytes(bytes(changed))
            try:
                found = weft.load(folder)
            except weft.UserError as error:
                assert str(error).count("\n") <= 2
            else:  # a space in the card may become another one
                assert path.name == "weft.json" and json.loads(data) == json.loads(bytes(changed))
                assert answer(found) == before
        path.write_bytes(data)
    assert answer(weft.load(folder)) == before


@pytest.mark.parametrize("name", ["onnx", "ctranslate2", "transformers"])
def test_files_of_the_user_are_no_change(name: str, exports: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "x"
    shutil.copytree(exports[name], folder)
    for path in ("notes.txt", "scores.json", "README.md", ".DS_Store", ".cache/huggingface/config.json"):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text("{}")
    for inside in folder.glob("*/"):
        (inside / ".DS_Store").write_text("")
    assert answer(weft.load(folder)) == answer(weft.load(exports[name]))
    (folder / "pytorch_model.bin").write_text("")
    with pytest.raises(weft.UserError, match=r"pytorch_model\.bin was added; export it again"):
        weft.load(folder)


def test_each_fault_is_named_and_trust_goes_on(
    exports: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "x"
    shutil.copytree(exports["onnx"], folder)
    card = json.loads((folder / "weft.json").read_text())
    (folder / "weft.json").write_text(json.dumps({**card, "labels": ["a", "b", "c"], "temperature": 3.0}))
    (folder / "tokenizer_config.json").unlink()
    (folder / "special_tokens_map.json").write_text("{}")
    told = (
        "not as it was exported: tokenizer_config.json is missing, weft.json has changed, "
        "special_tokens_map.json was added"
    )
    with pytest.raises(weft.UserError, match=told):
        weft.load(folder)
    with pytest.warns(UserWarning, match=told):
        assert weft.load(folder, trust=True).card.temperature == 3.0
    assert run(["predict", str(folder), TEXT]) == 2
    told_by_verb = capsys.readouterr().err
    assert told_by_verb.count("\n") == 1 and "--trust" in told_by_verb
    assert run(["predict", str(folder), TEXT, "--trust"]) == 0
    shown = capsys.readouterr()
    assert shown.out.strip() and "not as it was exported" in shown.err


def test_notes_beside_a_model_and_folders_without_a_record(exports: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "x"
    shutil.copytree(exports["ctranslate2"], folder)
    (folder / "README.md").write_text("mine")
    (folder / "run").mkdir()
    (folder / "run" / "quantize.json").write_text("{}")
    before = answer(weft.load(folder))
    card = json.loads((folder / "weft.json").read_text())
    del card["files"]
    (folder / "weft.json").write_text(json.dumps({**card, "temperature": 2.0}))
    assert answer(weft.load(folder)).label == before.label
    record_hashes(folder)
    weft.load(folder)


def test_a_copy_of_a_model_has_no_record_of_another_folder(exports: dict[str, Path], tmp_path: Path) -> None:
    weft.load(exports["transformers"]).save(tmp_path / "copy")
    assert "files" not in json.loads((tmp_path / "copy" / "weft.json").read_text())
    assert weft.load(tmp_path / "copy").task == "classify"


def test_a_quantized_folder_is_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = model_for("classify", 3, vocabulary(), ("a", "b", "c"))
    rows = write_rows(tmp_path / "rows.jsonl", [{"text": row["text"]} for row in kinds(8)])
    found = weft.quantize(
        model, rows, out=tmp_path / "x", max_drop=100, prefer="small", kinds=["onnx-int8"], seconds=0.2
    )
    assert found.chosen == "onnx-int8"
    assert set(read_card(tmp_path / "x").files) >= {"model.onnx", "config.json", "weft.json"}  # type: ignore[union-attr]
    assert run(["info", str(tmp_path / "x")]) == 0
    assert "sha256" not in capsys.readouterr().out
    with open(tmp_path / "x" / "model.onnx", "r+b") as file:
        file.seek(5000)
        file.write(b"\xff")
    with pytest.raises(weft.UserError, match="model.onnx has changed"):
        weft.load(tmp_path / "x")

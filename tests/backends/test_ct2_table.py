"""A CTranslate2 folder is exactly what its config says: no variable, type, flag or setting can change in silence."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from tests.backends.ct2_binary import Binary
from tests.backends.engines import carried, drawn
from tests.engines import need_engine
from weft.backends import ctranslate2
from weft.backends.ct2_files import EngineFiles, Variable, check_files, check_variables, expected_of

need_engine("ctranslate2")
# Every family, block and precision that the engine's files differ by.
MODELS: list[tuple[str, str, dict[str, Any]]] = [
    ("bert", "fp32", {"width": 96}),
    ("bert", "int8", {"norm_place": "before", "norm": "rms", "activation": "gated-silu"}),
    ("roberta", "fp16", {"positions": "rotary", "activation": "tanh"}),
    ("xlm-roberta", "fp32", {"positions": "none"}),
    ("distilbert", "fp32", {"positions": "sinusoidal", "activation": "gelu-tanh"}),
    ("gpt2", "fp32", {}),
    ("gpt2", "int8", {"positions": "alibi", "tied": False}),
    ("openai-gpt", "fp16", {"positions": "rotary"}),
    ("transformer", "fp32", {"width": 96, "decoder_layers": 1, "decoder_heads": 3, "decoder_inner": 40}),
    ("transformer", "int8", {"positions": "rotary", "tied": "none", "norm_place": "before", "scaled": False}),
    ("transformer", "fp16", {"tied": "decoder"}),
    ("marian", "int8", {}),
    ("t5", "fp32", {"width": 96}),
    ("t5", "int8", {"activation": "gated-gelu-tanh", "tied": False, "scaled": False, "head_width": 32}),
]


def exported(family: str, precision: str, blocks: dict[str, Any], folder: Path, monkeypatch: Any) -> EngineFiles:
    """A folder of this model, and what its loader checked it against."""
    seen: list[EngineFiles] = []

    def checked(inside: Path, files: EngineFiles) -> None:
        seen.append(files)
        check_files(inside, files)

    monkeypatch.setattr(ctranslate2, "check_files", checked)
    heads = None if family in ("gpt2", "openai-gpt", "transformer", "marian", "t5") else {"classify": 2}
    carried(drawn(family, heads, **blocks), folder, precision)
    return seen[0]


def stored(binary: Binary) -> dict[str, Variable]:
    """The variables as the loader sees them."""
    return {
        name: Variable(array.shape, array.dtype.name, None if array.ndim else float(array))
        for name, array in binary.variables.items()
    }


def changes(whole: Binary) -> Iterator[tuple[str, Binary]]:
    """The file with one thing done to one variable, for every variable."""
    for name, array in whole.variables.items():
        others: dict[str, Any] = {"drop": None, "double": np.stack([array, array])}
        others |= {kind: array.astype(kind) for kind in ("float32", "float16", "int8", "int32") if kind != array.dtype}
        if array.ndim == 0:
            others |= {f"{step:+}": (array + step).astype(array.dtype) for step in (1, -1, 2)}
            if array.dtype.kind == "f":
                others["nearly"] = np.nextafter(array, np.inf, dtype=array.dtype)
        else:
            others |= {"row": array[:-1], "empty": array[:0], "flat": array.reshape(1, 1, -1)}
        if array.ndim == 2 and array.shape[0] != array.shape[1]:
            others |= {"turned": np.ascontiguousarray(array.T)}
        for what, changed in others.items():
            binary = whole.copy()
            if changed is None:
                del binary.variables[name]
            else:
                binary.variables[name] = changed
            if what != "double" or array.ndim < 2:
                yield f"{name}: {what}", binary
        for other in (f"{name}_", name.replace("layer_0", "layer_7"), name.replace("coder", "coders")):
            if other != name:
                binary = whole.copy()
                binary.variables[other] = binary.variables.pop(name)
                yield f"{name}: called {other}", binary
                binary = whole.copy()
                binary.variables[other] = array
                yield f"{name}: and {other}", binary
    for name in whole.aliases:
        for harm in ("drop", "nowhere"):
            binary = whole.copy()
            binary.aliases.pop(name)
            if harm == "nowhere":
                binary.aliases[name] = "encoder/nowhere"
            yield f"alias {name}: {harm}", binary


@pytest.mark.parametrize(("family", "precision", "blocks"), MODELS, ids=str)
def test_no_change_of_a_file_is_accepted(
    family: str, precision: str, blocks: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = exported(family, precision, blocks, tmp_path / "x", monkeypatch)
    inside = tmp_path / "x" / "ctranslate2"
    whole, accepted, count = Binary.read(inside / "model.bin"), [], 0
    expected = expected_of(files.config, files.spec, files.precision)
    for what, binary in changes(whole):
        count += 1
        try:
            check_variables(inside / "model.bin", stored(binary), binary.aliases, expected)
        except weft.UserError as error:
            assert "\n" not in str(error)
        else:
            accepted.append(what)
    assert not accepted and count > 300
    settings = json.loads((inside / "config.json").read_text())
    for name, value in settings.items():
        other = not value if isinstance(value, bool) else value * 2 if isinstance(value, float) else "zzz"
        for changed in ({**settings, name: other}, {key: settings[key] for key in settings if key != name}):
            (inside / "config.json").write_text(json.dumps(changed))
            with pytest.raises(weft.UserError, match=name):
                check_files(inside, files)
    (inside / "config.json").write_text(json.dumps(settings))
    check_files(inside, files)


def test_tables_that_a_config_ties_are_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for family in ("gpt2", "transformer", "t5"):
        files = exported(family, "fp32", {}, tmp_path / family, monkeypatch)
        path = tmp_path / family / "ctranslate2" / "model.bin"
        whole = Binary.read(path)
        for name in (
            "decoder/projection/weight",
            "encoder/embeddings_0/weight",
            "encoder/position_encodings/encodings",
        ):
            if name in whole.aliases:
                binary = whole.copy()
                binary.variables[name] = binary.variables[binary.aliases.pop(name)] * 2
                binary.write(path)
                with pytest.raises(weft.UserError, match=f"{name}.* are one table by this config.json"):
                    check_files(path.parent, files)


@pytest.mark.parametrize("family", ["bert", "transformer"])
def test_a_changed_folder_does_not_load(family: str, tmp_path: Path) -> None:
    """Those of the changes above that once gave other answers without a word."""
    carried(drawn(family, {"classify": 2} if family == "bert" else None), tmp_path / "x")
    path = tmp_path / "x" / "ctranslate2" / "model.bin"
    whole = Binary.read(path)
    layer = "encoder/layer_0"
    for name in (f"{layer}/ffn/linear_0/bias", f"{layer}/self_attention/layer_norm/beta", "encoder/scale_embeddings"):
        binary = whole.copy()
        del binary.variables[name]
        binary.write(path)
        with pytest.raises(weft.UserError, match=f"model.bin: missing: {name}"):
            weft.load(tmp_path / "x")
    for name in ("encoder/pre_norm", "encoder/activation", "encoder/embeddings_merge", "encoder/scale_embeddings"):
        binary = whole.copy()
        binary.variables[name] = 1 - whole.variables[name]
        binary.write(path)
        with pytest.raises(weft.UserError, match=f"model.bin: not what a model of this config.json has: {name}"):
            weft.load(tmp_path / "x")
    for name in (f"{layer}/ffn/linear_0/weight", f"{layer}/ffn/linear_0/bias"):
        binary = whole.copy()
        binary.variables[name] = whole.variables[name].astype(np.float16)
        binary.write(path)
        with pytest.raises(weft.UserError, match=rf"{name} \(float16"):
            weft.load(tmp_path / "x")
    whole.write(path)
    settings = json.loads((path.parent / "config.json").read_text())
    (path.parent / "config.json").write_text(json.dumps({**settings, "layer_norm_epsilon": 0.01}))
    with pytest.raises(weft.UserError, match="layer_norm_epsilon is 0.01; this model needs 1e-"):
        weft.load(tmp_path / "x")


def test_a_scale_of_its_own_beside_a_shared_matrix_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = exported("gpt2", "int8", {}, tmp_path / "x", monkeypatch)
    path = tmp_path / "x" / "ctranslate2" / "model.bin"
    binary = Binary.read(path)
    binary.variables["decoder/projection/weight_scale"] = binary.variables["decoder/embeddings/weight_scale"] * 2
    binary.write(path)
    with pytest.raises(weft.UserError, match="stored, and also aliases of others: decoder/projection/weight_scale"):
        check_files(path.parent, files)


def test_what_the_engine_would_read_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another revision of the layout, tokens in another order, and files that the engine finds by their names."""
    files = exported("gpt2", "fp32", {}, tmp_path / "x", monkeypatch)
    inside = tmp_path / "x" / "ctranslate2"
    whole = Binary.read(inside / "model.bin")
    for revision in (0, 7, 9):
        Binary(whole.spec, revision, whole.variables, whole.aliases).write(inside / "model.bin")
        with pytest.raises(weft.UserError, match="of another revision"):
            check_files(inside, files)
    whole.write(inside / "model.bin")
    words = json.loads((inside / "vocabulary.json").read_text())
    (inside / "vocabulary.json").write_text(json.dumps([words[1], words[0], *words[2:]]))
    with pytest.raises(weft.UserError, match=r"vocabulary.json: token 0 is .* in the tokenizer"):
        check_files(inside, files)
    (inside / "vocabulary.json").write_text(json.dumps(words))
    (inside / "vmap.txt").write_text("a b\n")
    with pytest.raises(weft.UserError, match="files that no exported model has: vmap.txt"):
        check_files(inside, files)


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_weights_that_are_not_numbers_are_refused(precision: str, tmp_path: Path) -> None:
    carried(drawn("bert", {"classify": 2}), tmp_path / "x", precision)
    path = tmp_path / "x" / "ctranslate2" / "model.bin"
    whole = Binary.read(path)
    for name, array in whole.variables.items():
        if array.dtype.kind != "f" or not array.ndim or "layer_1" in name:
            continue
        for wrong in (np.nan, np.inf, *([0.0, -1.0] if name.endswith("_scale") else [])):
            binary = whole.copy()
            binary.variables[name] = array.copy()
            binary.variables[name].flat[array.size // 2] = wrong
            binary.write(path)
            with pytest.raises(weft.UserError, match=f"not numbers .* {name}"):
                weft.load(tmp_path / "x")


def test_a_precision_that_the_engine_does_not_have(tmp_path: Path) -> None:
    carried(drawn("bert", {"classify": 2}), tmp_path / "x", "int8")
    card = json.loads((tmp_path / "x" / "weft.json").read_text())
    for precision, message in (("fp32", "not what a model"), ("int4", "stored as fp32, fp16, int8, not as int4")):
        (tmp_path / "x" / "weft.json").write_text(json.dumps({**card, "precision": precision}))
        with pytest.raises(weft.UserError, match=message):
            weft.load(tmp_path / "x")

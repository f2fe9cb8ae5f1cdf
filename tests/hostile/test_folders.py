"""Hostile and broken folders: one clear line each, exit status 2, no traceback, nothing half-written."""

from __future__ import annotations

import json
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import weft
from tests.backends.engines import tokenizer_for
from tests.children import ForkedChild
from weft.cli.main import run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    weft.new("bert", size="1x64", settings={"vocabulary": 50, "context": 16}).save(tmp_path / "m")
    return tmp_path / "m"


def header_of(path: Path) -> tuple[dict[str, Any], bytes]:
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def write(path: Path, header: dict[str, Any], body: bytes) -> None:
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def truncated(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def cut_in_the_header(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:20])


def flipped_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[20] ^= 0x40  # in the header: a name or a number of it
    path.write_bytes(data)


def huge_header(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(struct.pack("<Q", 100 * 2**20 + 1) + data[8:])


def endless_header(path: Path) -> None:
    path.write_bytes(struct.pack("<Q", 2**63) + path.read_bytes()[8:])


def negative_offsets(path: Path) -> None:
    header, body = header_of(path)
    next(v for k, v in header.items() if k != "__metadata__")["data_offsets"] = [-8, 8]
    write(path, header, body)


def overlapping_offsets(path: Path) -> None:
    header, body = header_of(path)
    names = [name for name in header if name != "__metadata__"]
    header[names[1]]["data_offsets"] = header[names[0]]["data_offsets"]
    write(path, header, body)


def offsets_beyond_the_end(path: Path) -> None:
    header, body = header_of(path)
    name = [name for name in header if name != "__metadata__"][-1]
    header[name]["data_offsets"][1] += 10**12
    write(path, header, body)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def not_a_number(path: Path) -> None:
    tensors = load_file(path)
    next(iter(tensors.values())).view(-1)[3] = float("nan")
    save_file(tensors, path)


def strange_names(path: Path) -> None:
    tensors = load_file(path)
    save_file({**tensors, "../../etc/passwd": torch.zeros(1), "a/b\n\x1b[31m": torch.zeros(1)}, path)


def strange_kind(path: Path) -> None:
    tensors = load_file(path)
    name = next(iter(tensors))
    save_file({**tensors, name: tensors[name].to(torch.int32)}, path)


def json_instead(path: Path) -> None:
    path.write_text("{}")


WEIGHTS: list[tuple[Callable[[Path], None], str]] = [
    (truncated, "not a sound safetensors file"),
    (cut_in_the_header, "not a sound safetensors file"),
    (flipped_bit, ""),
    (huge_header, "not a sound safetensors file"),
    (endless_header, "not a sound safetensors file"),
    (negative_offsets, "not a sound safetensors file"),
    (overlapping_offsets, "not a sound safetensors file"),
    (offsets_beyond_the_end, "not a sound safetensors file"),
    (empty, "not a sound safetensors file"),
    (not_a_number, "weights that are not numbers (NaN or infinite)"),
    (strange_names, "extra: ../../etc/passwd, a/b\\n\\x1b[31m"),
    (strange_kind, "tensors of a kind that no weight has"),
    (json_instead, "not a sound safetensors file"),
]


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one error that a call of the command line prints."""
    assert run(arguments) == 2
    said = capsys.readouterr()
    assert said.out == "" and "Traceback" not in said.err
    lines = [line for line in said.err.splitlines() if not line.startswith("  ")]  # faults are listed below their line
    assert len(lines) == 1, said.err
    return said.err


@pytest.mark.parametrize("harm, message", WEIGHTS, ids=lambda value: getattr(value, "__name__", ""))
def test_weights(harm: Callable[[Path], None], message: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    harm(folder / "model.safetensors")
    assert message in refused(capsys, "info", str(folder))


CONFIGS: list[tuple[dict[str, Any], str]] = [
    ({"model_type": "llama"}, "model_type 'llama' is not one of bert"),
    ({"model_type": "brt"}, "did you mean 'bert'?"),
    ({"model_type": None}, "model_type must name the kind of model"),
    ({"model_type": ["bert"]}, "model_type must name the kind of model"),
    ({"auto_map": {"AutoModel": "evil.Model"}}, "auto_map names code"),
    ({"custom_pipelines": {"x": {"impl": "evil.P"}}}, "custom_pipelines names code"),
    ({"hidden_size": "768"}, 'hidden_size (width) must be a whole number, not "768"'),
    ({"layer_norm_eps": 10**400}, "layer_norm_eps (norm_epsilon) must be a number"),
    ({"hidden_size": -64}, "hidden_size (width) must be between 1 and"),
    ({"num_hidden_layers": 10**9}, "num_hidden_layers (layers) must be between 1 and 2048"),
    ({"vocab_size": 10**15}, "vocab_size (vocabulary) must be between"),
    ({"num_attention_heads": 7}, "cannot be cut into 7 equal heads"),
    ({"num_attention_heads": 0}, "num_attention_heads (heads) must be between"),
    ({"hidden_act": "swiglu"}, "hidden_act is 'swiglu'; supported are gelu"),
    ({"hidden_act": {"a": 1}}, "hidden_act is"),
    ({"layer_norm_eps": "tiny"}, "layer_norm_eps (norm_epsilon) must be a number"),
    (
        {"position_embedding_type": "relative_key"},
        "position_embedding_type is relative_key; only absolute is supported",
    ),
    ({"is_decoder": True}, "is_decoder is True; only False is supported"),
    ({"quantization_config": {"bits": 4}}, "quantization_config is"),
    ({"architectures": ["BertForEvil"]}, "architecture 'BertForEvil' is not supported"),
    ({"architectures": "BertModel"}, "architectures must be a list of names"),
]


@pytest.mark.parametrize("values, message", CONFIGS, ids=lambda value: json.dumps(value)[:40] if value else "")
def test_configs(values: dict[str, Any], message: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **values}))
    assert message in refused(capsys, "info", str(folder))


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[1]", "where an object is expected"),
        ('{"model_type": NaN}', "NaN is not a JSON number"),
        ('{"model_type": "bert", "model_type": "gpt2"}', "key 'model_type' stands there twice"),
        ('{"layer_norm_eps": 1e999}', "1e999 is not a JSON number"),
        ("[" * 100_000, "nested too deeply"),
        ('{"vocab_size": ' + "9" * 5000 + "}", "config.json"),
        ("\xff\xfe", "config.json"),
        ("\x00\x01binary", "not JSON"),
    ],
)
def test_config_files(text: str, message: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "config.json").write_text(text, encoding="latin-1")
    assert message in refused(capsys, "info", str(folder))


def test_unknown_keys_are_one_note(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "sparkle": 1, "evil\n\x1b": 2}))
    assert run(["info", str(folder)]) == 0
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "no rule knows them: sparkle, evil\\n\\x1b" in said


def test_our_own_files_are_closed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    swapped = {"vocabulary": 50, "context": 16, "positions": "rotary"}
    weft.new("gpt2", size="1x64", settings=swapped).save(tmp_path / "m")
    for name, key, message in (
        ("config.json", "sparkle", "unknown key 'sparkle'"),
        ("weft.json", "tusk", "unknown key 'tusk'; did you mean 'task'?"),
    ):
        path = tmp_path / "m" / name
        before = path.read_text()
        path.write_text(json.dumps({**json.loads(before), key: 1}))
        assert message in refused(capsys, "info", str(tmp_path / "m"))
        path.write_text(before)
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    config["sizes"]["layers"] = 2
    (tmp_path / "m" / "config.json").write_text(json.dumps(config))
    assert "missing: layers.1.attention" in refused(capsys, "info", str(tmp_path / "m"))


class Evil:
    def __reduce__(self) -> Any:
        return (os.mkdir, ("harmed",))


def test_a_pickle_is_never_opened(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Evil()))
    (folder / "model.safetensors").unlink()
    assert "save_pretrained(NEW_FOLDER)" in refused(capsys, "info", str(folder))
    assert not Path("harmed").exists()
    (folder / "model.safetensors").write_bytes((folder / "pytorch_model.bin").read_bytes())
    assert "not a sound safetensors file" in refused(capsys, "info", str(folder))
    assert not Path("harmed").exists()


@pytest.mark.parametrize(
    "table, message",
    [
        ({"tokens.weight": "../../elsewhere.safetensors"}, "is not the name of a shard"),
        ({"tokens.weight": "/etc/passwd"}, "is not the name of a shard"),
        ({"tokens.weight": 3}, "is not the name of a shard"),
        ({"tokens.weight": "gone.safetensors"}, "shard gone.safetensors is missing"),
        ({"tokens.weight": "shard.safetensors"}, "is not what the index says is there"),
        ({"tokens.weight": "x" * 300 + ".safetensors"}, "is not the name of a shard"),
        ({}, "weight_map must say"),
        ([], "weight_map must say"),
    ],
)
def test_shards(table: Any, message: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "model.safetensors").rename(folder / "shard.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": table}))
    assert message in refused(capsys, "info", str(folder))


def test_places_that_are_no_folder(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    assert "it has no config.json" in refused(capsys, "info", str(tmp_path / "empty"))
    assert "is a file; give the model folder that it is in" in refused(capsys, "info", str(tmp_path / "file"))
    assert "neither a folder nor in the local Hugging Face cache" in refused(capsys, "info", "no-such-model")
    (folder / "model.safetensors").unlink()
    assert "has no model.safetensors" in refused(capsys, "info", str(folder))


def test_a_tokenizer_larger_than_the_model(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from weft.text.tokenizers.training import learn

    learn(["the quick brown fox jumps over a lazy dog 0123456789"] * 3, "wordpiece", 200).save(folder)
    assert "tokens, the model only 50" in refused(capsys, "info", str(folder))


def test_nothing_is_left_of_a_save_that_fails(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full after 64 KB, as the system tells it."""
    code = (
        "import resource, signal, sys, weft; m = weft.load(sys.argv[1])\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))\n"
        "try: m.save('copy')\n"
        "except weft.UserError as error: print(error, flush=True)"
    )
    monkeypatch.chdir(tmp_path)
    said = ForkedChild(code, str(folder)).ended()
    assert "model.safetensors: cannot be written" in said and len(said.splitlines()) == 1, said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m"]


def test_pipes_and_whole_numbers(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file({name: tensor.long() for name, tensor in tensors.items()}, folder / "model.safetensors")
    assert "weights that are whole numbers" in refused(capsys, "info", str(folder))
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")
    assert "is not a plain file" in refused(capsys, "info", str(folder))


@pytest.mark.parametrize("task", [" ", "fly", "\x1b[2J"])
def test_a_card_with_no_task_of_ours(task: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    card = json.loads((folder / "weft.json").read_text())
    (folder / "weft.json").write_text(json.dumps({**card, "task": task}))
    assert "is not one of classify, multilabel, regress" in refused(capsys, "info", str(folder))


@pytest.mark.parametrize("family", ["bert", "gpt2", "vec2seq", "transformer", "lstm"])
def test_a_folder_without_a_tokenizer_reads_and_writes_nothing(family: str, tmp_path: Path) -> None:
    settings = {"features": 4} if family == "vec2seq" else {}
    weft.new(family, tokenizer_for(family), size="1x64", settings=settings).save(tmp_path / "model")
    for path in (tmp_path / "model").rglob("tokenizer*"):
        path.unlink()
    with pytest.raises(weft.UserError, match="no tokenizer"):
        weft.load(tmp_path / "model")([[0.1] * 4] if family == "vec2seq" else ["some words"])

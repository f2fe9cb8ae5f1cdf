"""Every finding that was once a fault, as a case: what is written, how it is used, and whether it must be refused."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.hostile.mutators import ct2_bytes, ct2_variables, protobuf_bytes
from tests.hostile.samples import call, use_cache, use_curves, use_model, use_run, use_tokenizer
from weft.checkpoint.card import record_hashes


@dataclass(frozen=True)
class Finding:
    """One finding; `run` gets the folder of samples and a folder of its own that is not there yet."""

    name: str
    run: Callable[[Path, Path], Any]
    refused: bool = True  # else it may be answered, if only soundly


def copied(bed: Path, path: Path, sample: str) -> Path:
    shutil.copytree(bed / sample, path)
    return path


def with_json(sample: str, file: str, change: Callable[[Any], Any], use: Callable[[Path], Any]) -> Any:
    """A case whose JSON file is changed by a function; what the function returns, if anything, takes its place."""

    def run(bed: Path, path: Path) -> Any:
        target = next(copied(bed, path, sample).glob(file))
        values = json.loads(target.read_text())
        changed = change(values)
        target.write_text(json.dumps(values if changed is None else changed))
        return use(path)

    return run


def with_bytes(sample: str, file: str, change: Callable[[bytes], bytes], use: Callable[[Path], Any]) -> Any:
    """A case whose file is changed as bytes."""

    def run(bed: Path, path: Path) -> Any:
        target = next(copied(bed, path, sample).glob(file))
        target.write_bytes(change(target.read_bytes()))
        return use(path)

    return run


# ------------------------------------------------------------------------------------------------------------- weights


def scaled(bed: Path, path: Path) -> Any:
    from safetensors.torch import load_file, save_file

    copied(bed, path, "task-classify")
    tensors = load_file(path / "model.safetensors")
    save_file({name: tensor * 1e30 for name, tensor in tensors.items()}, path / "model.safetensors")
    return use_model(path)


def many_tensors(bed: Path, path: Path) -> Any:
    copied(bed, path, "task-classify")
    each = '"t%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
    header = ("{" + ",".join(each % number for number in range(600_000)) + "}").encode()
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    return use_model(path)


def index_of_lists(index: Any) -> None:
    index["weight_map"] = {name: [shard] for name, shard in index["weight_map"].items()}


def nested_architectures(config: Any) -> None:
    config["architectures"] = [[]]


def endless_json(bed: Path, path: Path) -> Any:
    copied(bed, path, "task-classify")
    (path / "config.json").write_bytes(b"{" + b'"a":{},' * (180 << 17) + b'"b":{}}')
    return use_model(path)


# ------------------------------------------------------------------------------------------------------------- engines


def ct2(change: Callable[[list[Any]], list[Any]]) -> Callable[[Path, Path], Any]:
    """The variables of a CTranslate2 model changed, and the hashes beside it."""

    def changed(data: bytes) -> bytes:
        head, variables, tail = ct2_variables(data)
        return ct2_bytes(head, change(variables), tail)

    def use(path: Path) -> Any:
        record_hashes(path)
        return use_model(path)

    return with_bytes("ctranslate2-fp32-gpt2", "ctranslate2/model.bin", changed, use)


def flip_exponent(variables: list[Any]) -> list[Any]:
    """One bit of one weight: its exponent is full, so it is infinite or no number."""
    place = next(number for number, each in enumerate(variables) if each[2] == 0 and len(each[3]) > 400)
    name, dims, kind, body = variables[place]
    (value,) = struct.unpack("<I", body[:4])
    variables[place] = (name, dims, kind, struct.pack("<I", value | 0x7F800000) + body[4:])
    return variables


def without(part: bytes) -> Callable[[list[Any]], list[Any]]:
    def drop(variables: list[Any]) -> list[Any]:
        gone = next(each for each in variables if part in each[0])
        return [each for each in variables if each is not gone]

    return drop


def onnx_change(sample: str, change: Callable[[Any, Any], None]) -> Callable[[Path, Path], Any]:
    """A graph changed through the library of its format; the recorded hash follows, as an attacker would have it."""

    def run(bed: Path, path: Path) -> Any:
        import onnx

        copied(bed, path, sample)
        model = onnx.load(path / "model.onnx")
        change(model.graph, onnx)
        (path / "model.onnx").write_bytes(model.SerializeToString())
        record_hashes(path)
        return use_model(path)

    return run


def onnx_nan(graph: Any, onnx: Any) -> None:
    import numpy as np

    for place, each in enumerate(graph.initializer):
        values = onnx.numpy_helper.to_array(each)
        if values.dtype == np.float32 and values.ndim == 2:
            values = values.copy()
            values[0, 0] = np.nan
            graph.initializer[place].CopyFrom(onnx.numpy_helper.from_array(values, each.name))
            return


def onnx_scalar(graph: Any, onnx: Any) -> None:
    """The output becomes one number for all rows."""
    name = graph.output[0].name
    last = next(node for node in graph.node if name in node.output)
    last.output[list(last.output).index(name)] = "before"
    graph.node.append(onnx.helper.make_node("ReduceMean", ["before"], [name], keepdims=0))
    while graph.output[0].type.tensor_type.shape.dim:
        graph.output[0].type.tensor_type.shape.dim.pop()


def onnx_giant(operator: str) -> Callable[[Any, Any], None]:
    def change(graph: Any, onnx: Any) -> None:
        name = graph.output[0].name
        last = next(node for node in graph.node if name in node.output)
        last.output[list(last.output).index(name)] = "before"
        size = onnx.helper.make_tensor("giant_shape", onnx.TensorProto.INT64, [1], [3 << 30])
        graph.initializer.append(size)
        if operator == "Expand":
            one = onnx.helper.make_tensor("giant_one", onnx.TensorProto.FLOAT, [1], [0.0])
            graph.initializer.append(one)
        given = ["giant_one", "giant_shape"] if operator == "Expand" else ["giant_shape"]
        graph.node.append(onnx.helper.make_node(operator, given, ["giant"]))
        graph.node.append(onnx.helper.make_node("ReduceMax", ["giant"], ["giant_sum"], keepdims=0))
        graph.node.append(onnx.helper.make_node("Add", ["before", "giant_sum"], [name]))

    return change


# ---------------------------------------------------------------------------------------------------------- tokenizers


def surrogate(settings: Any) -> None:
    settings["unk_token"] = "\ud800"


def strip(values: Any) -> None:
    values["decoder"] = {"type": "Strip", "content": "a", "start": 10**9, "stop": 0}


def long_piece(values: Any) -> None:
    values["model"]["vocab"].append(["a" * 150_000, -1.0])


def long_words(values: Any) -> None:
    values["model"]["max_input_chars_per_word"] = 10**12


def long_template(values: Any) -> None:
    piece = {"Sequence": {"id": "A", "type_id": 0}}
    single = [piece, *({"SpecialToken": {"id": "[SEP]", "type_id": 0}} for _ in range(1_000_000))]
    special = {"[SEP]": {"id": "[SEP]", "ids": [3], "tokens": ["[SEP]"]}}
    template = {"type": "TemplateProcessing", "single": single, "pair": single, "special_tokens": special}
    values["post_processor"] = template


def replacing(values: Any) -> None:
    step = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 100}
    values["normalizer"] = {"type": "Sequence", "normalizers": [step] * 6}


def tokenizer(kind: str, change: Callable[[Any], Any], file: str = "tokenizer.json") -> Callable[[Path, Path], Any]:
    return with_json(f"tokenizer-{kind}", file, change, use_tokenizer)


def pieces(kind: str, size: int) -> Callable[[Path, Path], Any]:
    """A SentencePiece model with one more piece, which is long."""
    piece = protobuf_bytes([(1, 2, b"a" * size), (2, 5, struct.pack("<f", -1.0)), (3, 0, 1)])
    longer = protobuf_bytes([(1, 2, piece)])
    return with_bytes(f"sentencepiece-{kind}", "spiece.model", lambda data: data + longer, use_tokenizer)


# ---------------------------------------------------------------------------------------------------------------- data


def predicted(bed: Path, *more: str | Path) -> Any:
    return call("predict", bed / "task-classify", *more)


def wide_header(bed: Path, path: Path) -> Any:
    path.mkdir()
    names = ",".join(f"column number {number}" for number in range(30_000))
    (path / "a.csv").write_text(names + "\n" + (",".join(["x"] * 30_000) + "\n") * 3)
    return predicted(bed, "--data", path / "a.csv", "--out", "out.csv")


def pipe_in_a_folder(bed: Path, path: Path) -> Any:
    path.mkdir()
    os.mkfifo(path / "a.csv")
    return predicted(bed, "--data", path, "--out", "out.csv")


def links_to_itself(bed: Path, path: Path) -> Any:
    path.mkdir()
    for name in "abcdefgh":
        (path / name).symlink_to(path)
    (path / "t.csv").write_text("text\nsome words\n")
    return predicted(bed, "--data", f"{path}/**/*.csv", "--out", "out.csv")


def parquet_bomb(bed: Path, path: Path) -> Any:
    import pyarrow
    import pyarrow.parquet

    path.mkdir()
    one = pyarrow.DictionaryArray.from_arrays(
        pyarrow.array([0] * 4_000_000, pyarrow.int32()), pyarrow.array(["x" * 1000])
    )
    table = pyarrow.table({"text": one})
    pyarrow.parquet.write_table(table, path / "a.parquet", compression="zstd", store_schema=False)
    from weft.data.tables import Table

    return sum(1 for _ in Table(path / "a.parquet").records())


def long_line(bed: Path, path: Path) -> Any:
    path.mkdir()
    with open(path / "line.txt", "wb") as file:
        for _ in range(42):
            file.write(b"some words " * 95_325)
    with open(path / "line.txt") as given:
        os.dup2(given.fileno(), 0)
        import sys

        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
        return predicted(bed)


def zip_of_zeros(bed: Path, path: Path) -> Any:
    path.mkdir()
    (path / "a.zip").symlink_to("/dev/zero")
    return predicted(bed, "--data", path / "a.zip", "--out", "out.csv")


def objects(bed: Path, path: Path) -> Any:
    path.mkdir()
    (path / "a.json").write_bytes(b"[" + b"{}," * (60 << 20) + b"{}]")
    return predicted(bed, "--data", path / "a.json", "--out", "out.csv")


# ---------------------------------------------------------------------------------------------------------------- runs


def flip_weight(data: bytes) -> bytes:
    return data[:-100] + bytes([data[-100] ^ 0x40]) + data[-99:]


def checkpoint(name: str) -> Callable[[Path, Path], Any]:
    return with_bytes("run", f"run/checkpoints/*/{name}.safetensors", flip_weight, use_run)


def spoil_lines(data: bytes) -> bytes:
    return data.replace(b'"loss": ', b'"loss": "x", "was": ').replace(b'"tokens": ', b'"tokens": [], "were": ')


def spoil_run(values: Any) -> Any:
    return {key: [] if isinstance(value, dict) else {} for key, value in values.items()}


def spoil_cache(values: Any) -> Any:
    return {key: [1.5, None] for key in values}


def lost_weights(bed: Path, path: Path) -> Any:
    small = ("--size", "1x64", "--set", "model.context=16", "--batch", "2", "--steps", "1", "--text", bed / "run.txt")
    return call("pretrain", "--model", "gpt2", *small, "--lr", "2147483648", "--out", "out")


# --------------------------------------------------------------------------------------------------------------- flags


def near_escape(bed: Path, path: Path) -> Any:
    path.mkdir()
    (path / "v.txt").write_text("2 2\nlooms\x1b[31m 1 2\nri\u202evers 2 1\n")
    return call("vectors", "near", path / "v.txt", "looms")


def escape_in_a_name(bed: Path, path: Path) -> Any:
    path.mkdir()
    (path / "a\x1b[2J\x9b.txt").write_text("some words here\n" * 50)
    call("tokenizer", "learn", "--size", "60", "--text", path, "--out", "tok")
    small = ("--size", "1x64", "--set", "model.context=16", "--batch", "2", "--steps", "1", "--tokenizer", "tok")
    return call("pretrain", "--model", "bert", *small, "--text", path, "--out", "out")


def flag(arguments: str) -> Callable[[Path, Path], Any]:
    return lambda bed, path: call(*arguments.format(bed=bed).split())


CASES = [
    Finding("one bit of a CTranslate2 weight", ct2(flip_exponent)),
    Finding("a CTranslate2 bias is missing", ct2(without(b"bias"))),
    Finding("pre_norm is missing", ct2(without(b"pre_norm"))),
    Finding("activation is missing", ct2(without(b"activation"))),
    Finding("NaN in an ONNX initializer", onnx_change("onnx-fp32", onnx_nan)),
    Finding("an ONNX output that is one number", onnx_change("onnx-fp32", onnx_scalar)),
    Finding("ONNX ConstantOfShape of 12 GB", onnx_change("onnx-fp32", onnx_giant("ConstantOfShape"))),
    Finding("ONNX Expand to 12 GB", onnx_change("onnx-fp32", onnx_giant("Expand"))),
    Finding("weights scaled by 1e30", scaled),
    Finding("600,000 tensors", many_tensors),
    Finding("weight_map of lists", with_json("sharded", "*.index.json", index_of_lists, use_model)),
    Finding("architectures [[]]", with_json("task-classify", "config.json", nested_architectures, use_model)),
    Finding("a config of 160 MB", endless_json),
    Finding("half a surrogate pair", tokenizer("wordpiece", surrogate, "tokenizer_config.json"), False),
    Finding("decoder Strip of 10^9", tokenizer("unigram", strip), False),
    Finding("a Unigram piece of 150,000 letters", tokenizer("unigram", long_piece)),
    Finding("words of 10^12 letters", tokenizer("wordpiece", long_words), False),
    Finding("a template of a million", tokenizer("wordpiece", long_template)),
    Finding("a -> a x 100, six times", tokenizer("wordpiece", replacing)),
    Finding("a SentencePiece piece of 500,000", pieces("unigram", 500_000)),
    Finding("a SentencePiece piece of 1,000,000", pieces("bpe", 1_000_000)),
    Finding("a csv header of 30,000 columns", wide_header),
    Finding("a pipe in a data folder", pipe_in_a_folder, False),
    Finding("** over links to itself", links_to_itself, False),
    Finding("a parquet bomb", parquet_bomb),
    Finding("a line of 42 MB", long_line, False),
    Finding("a zip that is /dev/zero", zip_of_zeros),
    Finding("180 MB of {}", objects),
    Finding("a bit of a checkpoint", checkpoint("model")),
    Finding("a bit of an optimizer", checkpoint("optimizer")),
    Finding("wrong types in metrics.jsonl", with_bytes("run", "run/metrics.jsonl", spoil_lines, use_curves), False),
    Finding("wrong types in run.json", with_json("run", "run/run.json", spoil_run, use_curves), False),
    Finding("wrong types in a cache", with_json("cache", "shards/*/corpus.json", spoil_cache, use_cache), False),
    Finding("pretrain --lr 2147483648", lost_weights),
    Finding("--length-penalty 1e23", flag("generate {bed}/task-complete cat --beam-size 2 --length-penalty 1e23")),
    Finding("--length-penalty -1e23", flag("translate {bed}/task-translate one --beam-size 2 --length-penalty -1e23")),
    Finding("--min-count 1e23", flag("tokenizer learn --text {bed}/run.txt --out o --min-count " + "9" * 24)),
    Finding("--width 1e400", flag(f"vectors learn --text {{bed}}/run.txt --out out --width 1{'0' * 400}")),
    Finding("a long text to show", flag(f"tokenizer show {{bed}}/tokenizer-bpe {'ab' * 20_000}"), False),
    Finding("an escape sequence among suggestions", near_escape),
    Finding("an escape sequence in a file name", escape_in_a_name, False),
]  # fmt: skip
FINDINGS: dict[str, Finding] = {each.name: each for each in CASES}

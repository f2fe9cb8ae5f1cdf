"""The standing attack, shortened: sound samples are accepted, findings stay refused, and no new case is a fault."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hostile.flags import CALLS, commands
from tests.hostile.mutators import MUTATORS, generator

ROOT = Path(__file__).parent.parent.parent
SHORT = 15  # seconds of cases at most, beside those that the samples take ...
CASES = 400  # ... and the same cases on every machine that is quick enough


@pytest.mark.parametrize("name", MUTATORS)
def test_a_case_is_a_function_of_seed_and_number(name: str) -> None:
    data = SOUND[name]()
    cases = [MUTATORS[name](data, generator(1, name, number)) for number in range(40)]
    assert cases == [MUTATORS[name](data, generator(1, name, number)) for number in range(40)]
    assert sum(case != data for case in cases) > 30
    assert cases != [MUTATORS[name](data, generator(2, name, number)) for number in range(40)]


def text() -> bytes:
    return b"text,label\nsome words,1\nmore words,2.5\n"


def message() -> bytes:
    from tests.hostile.mutators import protobuf_bytes

    return protobuf_bytes([(1, 2, protobuf_bytes([(1, 2, b"piece"), (2, 5, b"abcd"), (3, 0, 7)]))] * 3)


def model() -> bytes:
    from tests.hostile.mutators import ct2_bytes

    return ct2_bytes(b"\x06\0\0\0\x02\0a\0\x01\0\0\0", [(b"a/weight\0", (2, 2), 0, bytes(16))] * 3, b"\0\0\0\0")


def tensors() -> bytes:
    import torch
    from safetensors.torch import save

    return save({"a": torch.zeros(3), "b": torch.ones(2, 2)})


def packed() -> bytes:
    import gzip

    return gzip.compress(text(), mtime=0)


def archive() -> bytes:
    from tests.hostile.mutators import zip_bytes

    return zip_bytes([("a.csv", text()), ("b.csv", text())])


SOUND = {
    **dict.fromkeys(("bytes", "numbers", "lines"), text),
    "json": lambda: b'{"a": [1, 2, {"b": "c"}], "d": 0.5}',
    "safetensors": tensors,
    "protobuf": message,
    "ct2": model,
    "gzip": packed,
    "zip": archive,
    "workbook": archive,
}


def test_every_verb_is_attacked() -> None:
    assert {name for name, _ in commands()} == set(CALLS)


def attack(seconds: float, seed: int, folder: Path, limit: float, *more: str) -> str:
    """`make fuzz`, in a process that has begun nothing else; its table."""
    for library in ("onnx", "onnxruntime", "ctranslate2", "sentencepiece", "pyarrow", "openpyxl", "fugashi", "ipadic"):
        pytest.importorskip(library)
    command = [sys.executable, "-m", "tests.hostile", "--seconds", str(seconds), "--seed", str(seed), *more]
    ended = subprocess.run(
        [*command, "--failures", str(folder)], cwd=ROOT, capture_output=True, text=True, timeout=limit
    )
    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr[-3000:]
    return ended.stdout


def test_a_short_attack(tmp_path: Path) -> None:
    assert " 0 failures" in attack(SHORT, 1, tmp_path, 300, "--cases", str(CASES))


@pytest.mark.slow
def test_half_an_hour(tmp_path: Path) -> None:
    seconds = float(os.environ.get("FUZZ_SECONDS", 1800))
    assert " 0 failures" in attack(seconds, int(os.environ.get("SEED", 2)), tmp_path, seconds + 600)

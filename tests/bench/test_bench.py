"""`weft bench`: what it prints and writes, what it stores, and its errors in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import weft
from tests.engines import need_engine
from tests.tasks.small import model_for, vocabulary
from weft.backends import onednn
from weft.bench import encode
from weft.bench.encode import Contestant, Speed, chosen_of, encode_report
from weft.bench.texts import Profile, profiles_of
from weft.cli.main import run
from weft.tasks.forward import tokenizer_of
from weft.tasks.model import Model

LABELS = ("a", "b", "c")
QUICK = ["--lengths", "8,mixed", "--batch", "1,2", "--seconds", "0.02", "--no-memory"]
pytestmark = pytest.mark.skipif(not onednn.supported(torch.float32), reason="this torch has no oneDNN")


@pytest.fixture(autouse=True)
def own_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(encode, "TURN", 0.001)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench") / "model"
    model_for("classify", 3, vocabulary(), LABELS).save(folder)
    return folder


def test_texts_have_the_lengths_asked_for(folder: Path) -> None:
    model = weft.load(folder, backend="torch")
    one, many, mixed = profiles_of(model, ["8", "mixed"], [1, 3])
    assert [one.batch, many.batch, mixed.batch] == [1, 3, len(mixed.inputs)]
    assert len(many.inputs) == 3 and len(set(mixed.inputs)) > 30
    for profile, length in ((one, 8), (many, 8)):
        sizes = [len(ids) for ids in tokenizer_of(model.opened).ids(list(profile.inputs))]
        assert all(abs(size - length) <= 1 for size in sizes) and sum(sizes) == profile.tokens
    assert [len(call) for call in Profile("x", 2, ("a", "b", "c"), 3).calls()] == [2, 1]


def test_the_verb_measures_stores_and_writes(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, plot = tmp_path / "speed.json", tmp_path / "speed.svg"
    call = ["bench", str(folder), *QUICK, "--backends", "onednn", "--json", str(out), "--plot", str(plot)]
    assert run(call) == 0
    printed = capsys.readouterr().out
    assert "1 x 8" in printed and "mixed" in printed and "chosen: " in printed and "stored in " in printed
    assert max(len(line) for line in printed.splitlines() if " to " in line) <= 80
    values = json.loads(out.read_text())
    assert list(values["profiles"]) == ["1 x 8", "2 x 8", "mixed"] and not values["refused"]
    for profile in values["profiles"].values():
        for speed in profile["speeds"].values():
            assert 0 < speed["low"] <= speed["seconds"] <= speed["high"]
            assert speed["tokens"] == pytest.approx(profile["tokens"] * speed["texts"] / profile["texts"])
    assert plot.read_text().startswith("<svg") and "onednn" in plot.read_text()
    backend = values["choice"]["backend"]
    predictor = weft.load(folder).opened.predictor
    assert (predictor is None) == (backend == "torch") and (predictor is None or predictor.name == backend)


def test_own_texts_and_peers(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    need_engine("onnx")
    (tmp_path / "rows.csv").write_text("text\n" + "".join(f"oak and flint {n} again\n" for n in range(40)))
    call = ["bench", str(folder), "--data", str(tmp_path / "rows.csv"), "--batch", "8", "--seconds", "0.02"]
    assert run([*call, "--backends", "onnx", "--no-memory", "--no-keep", "--against", "onnxruntime"]) == 0
    printed = capsys.readouterr().out
    assert "one by one" in printed and "8 at a time" in printed
    assert "onnxruntime fp32" in printed and "onnxruntime int8" in printed and "stored in" not in printed
    assert not list((tmp_path / "cache").rglob("*.choice.json"))


def test_a_wrong_backend_is_not_timed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = onednn.PackedAttention.__init__

    def unscaled(self: onednn.PackedAttention, *inputs: object) -> None:
        whole(self, *inputs)  # type: ignore[arg-type]
        self.output.bias = self.output.bias + torch.arange(64.0) / 64  # type: ignore[operator]

    model = weft.load(folder, backend="torch")
    profiles = profiles_of(model, ["8"], [1])
    options = {"backends": ["onednn"], "seconds": 0.02, "memory": False, "keep": False}
    sound = encode_report(model, profiles, **options)  # type: ignore[arg-type]
    assert [each.refused for each in sound.contestants] == [None, None]
    monkeypatch.setattr(onednn.PackedAttention, "__init__", unscaled)
    report = encode_report(model, profiles, **options)  # type: ignore[arg-type]
    wrong = report.contestants[1]
    assert wrong.name == "onednn" and wrong.refused is not None and not wrong.speeds
    assert report.choice is not None and report.choice.backend == "torch"


def test_the_choice_is_the_largest_gain_over_all_profiles() -> None:
    def contestant(name: str, *seconds: float) -> Contestant:
        speeds = {str(n): Speed(each, each, each, 1 / each, 1 / each) for n, each in enumerate(seconds)}
        return Contestant(name, print, speeds=speeds)

    torchs = contestant("torch", 1.0, 1.0)
    best = chosen_of([torchs, contestant("onnx", 0.1, 2.0), contestant("onednn", 0.4, 0.4)], ["0", "1"])
    assert best.backend == "onednn" and best.faster == pytest.approx(2.5)
    assert chosen_of([torchs, contestant("onednn", 0.99, 0.98)], ["0", "1"]).backend == "torch"


def test_other_modes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = vocabulary()
    for family, mode, more in (
        ("bert", "train", ["--lengths", "8"]),
        ("gpt2", "train", ["--lengths", "8"]),
        ("gpt2", "generate", ["--max-tokens", "3"]),
    ):
        place = tmp_path / f"{family}-{mode}"
        Model(weft.new(family, tokenizer, size="1x64", settings={"context": 32}).opened, "embed").save(place)
        out = tmp_path / f"{mode}.json"
        call = ["bench", str(place), "--mode", mode, *more, "--batch", "1,2", "--seconds", "0.02", "--device", "cpu"]
        assert run([*call, "--json", str(out)]) == 0
        values = json.loads(out.read_text())
        assert values["mode"] == mode and [each["tokens"] > 0 for each in values["speeds"]] == [True, True]
        assert mode in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--lengths", "many"], "--lengths: 'many' is not a number of tokens, or mixed"),
        (["--lengths", "1000"], "are more than the model's window"),
        (["--batch", "0"], "--batch: '0' is not a number between 1 and 65536"),
        (["--backends", "tensorrt"], "backend 'tensorrt' is not one of torch, onednn"),
        (["--against", "spacy"], "--against 'spacy' is not one of transformers"),
        (["--mode", "sing"], "--mode 'sing' is not one of encode, generate, train"),
        (["--mode", "generate"], "generates no text"),
        (["--mode", "train", "--data", "x.csv"], "--mode train takes no data, backends or peers"),
        (["--device", "cuda"], "--mode encode measures the backends of a CPU"),
        (["--plot", "x.gif"], "x.gif: a plot is written as .svg or .png"),
        (["--json", "x.txt"], "x.txt: figures are written as .json"),
        (["--seconds", "0"], "--seconds must be above 0"),
        (["--data", "nowhere.csv"], "nowhere.csv"),
    ],
)
def test_errors_in_one_line(folder: Path, arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", str(folder), *arguments]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert error in lines[-1] and len([line for line in lines if line.startswith("weft bench:")]) == 1


def test_not_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", str(tmp_path)]) == 2
    assert "is not a model folder" in capsys.readouterr().err

"""`weft bench`: what it prints and writes, what it stores, and its errors in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from tests.engines import need_engine
from tests.tasks.small import model_for, vocabulary
from weft.backends import onednn
from weft.bench import encode, training
from weft.bench.encode import Contestant, EncodeReport, Speed, chosen_of, encode_report
from weft.bench.report import table_of
from weft.bench.texts import Profile, profiles_of
from weft.bench.training import training_report, transformers_step
from weft.cli.inputs import table
from weft.cli.main import run
from weft.files import peak_memory
from weft.tasks.forward import tokenizer_of
from weft.tasks.model import Model
from weft.training.step import Setup, group_of

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
    rows = [line for line in printed.splitlines() if line.startswith("  onednn ")]
    assert len(rows) == 3 and max(map(len, rows)) <= 80
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


def test_a_cache_that_cannot_be_written_costs_no_figures(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    need_engine("onnx")
    (tmp_path / "file").touch()
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "file"))
    assert run(["bench", str(folder), *QUICK, "--backends", "onednn,onnx"]) == 0
    printed, notes = capsys.readouterr()
    assert "chosen: " in printed and "stored in" not in printed and "  onednn " in printed
    (refused,) = [line for line in printed.splitlines() if line.startswith("onnx is refused: ")]
    assert "cannot be written" in refused and "note: the choice is not stored: " in notes.splitlines()[-1]


def test_own_texts_and_peers(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    need_engine("onnx")
    (tmp_path / "rows.csv").write_text("text\n" + "".join(f"oak and flint {n} again\n" for n in range(40)))
    call = ["bench", str(folder), "--data", str(tmp_path / "rows.csv"), "--batch", "8", "--seconds", "0.02"]
    assert run([*call, "--backends", "onnx", "--no-memory", "--no-keep", "--against", "onnxruntime"]) == 0
    printed = capsys.readouterr().out
    assert "one by one" in printed and "8 at a time" in printed
    assert "* onnxruntime fp32" in printed and "* onnxruntime int8" in printed and "stored in" not in printed
    assert "\n* another library, without Weft\n" in printed and "MB" not in printed.splitlines()[1]
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


def saved(family: str, folder: Path) -> Path:
    """A small language model with fresh weights."""
    opened = weft.new(family, vocabulary(), size="1x64", settings={"context": 32}).opened
    Model(opened, opened.family.task).save(folder)
    return folder


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_training_steps(family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out, plot = saved(family, tmp_path / family), tmp_path / "train.json", tmp_path / "train.svg"
    call = ["bench", str(folder), "--mode", "train", "--lengths", "8", "--batch", "1,2", "--seconds", "0.01"]
    assert run([*call, "--device", "cpu", "--no-memory", "--json", str(out), "--plot", str(plot)]) == 0
    values, printed = json.loads(out.read_text()), capsys.readouterr().out
    assert values["mode"] == "train" and list(values["profiles"]) == ["train 1 x 8, fp32", "train 2 x 8, fp32"]
    for batch, profile in zip((1, 2), values["profiles"].values(), strict=True):
        speed = profile["speeds"]["weft"]
        assert profile["tokens"] == 8 * batch and speed["tokens"] == pytest.approx(8 * speed["texts"])
        assert speed["peak_share"] is None and f"train {batch} x 8" in printed
    assert "chosen" not in printed and plot.read_text().startswith("<svg")


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_training_steps_are_those_of_pretrain(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU it plays full rows back from a graph: of one shape, which is captured before anything is timed."""
    made, stepper = list[Setup](), training.Stepper

    def kept(setup: Setup) -> Any:
        made.append(setup)
        return stepper(setup)

    monkeypatch.setattr(training, "Stepper", kept)
    model = weft.load(saved(family, tmp_path / family), backend="torch")
    step, _ = training.training_step(model, 2, 8, "fp32")
    step()
    assert [setup.capture for setup in made] == [True] and made[0].feed.source.even
    batches = [batch for number in range(2) for batch in group_of(made[0], number, 1 << 20)[0][:1]]
    assert len({tuple(target.shape for target in batch.targets.values()) for batch in batches}) == 1


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_training_steps_beside_transformers(family: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    model, lines = weft.load(saved(family, tmp_path / family), backend="torch"), list[str]()
    report = training_report(model, [2], [8], against=["transformers"], seconds=0.01, memory=False, log=lines.append)
    assert [(each.name, each.refused, list(each.speeds)) for each in report.contestants] == [
        ("weft", None, ["train 2 x 8, fp32"]),
        ("transformers", None, ["train 2 x 8, fp32"]),
    ]
    assert lines == ["timing train 2 x 8, fp32 (1 of 1): weft, transformers"]
    assert report.choice is None and report.path is None
    header, rows = table_of(report)
    assert header[-1] == "x weft", "no memory was measured"
    assert {row[0] for row in rows[1:]} == {"  weft", "* transformers"}


def test_a_step_of_transformers_learns(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    made = []

    class Kept(transformers.AutoModelForMaskedLM):  # type: ignore[misc]
        @classmethod
        def from_config(cls, config: object) -> object:
            made.append(super().from_config(config))
            return made[-1]

    model = weft.load(saved("bert", tmp_path / "bert"), backend="torch")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transformers, "AutoModelForMaskedLM", Kept)
        step = transformers_step(model, 2, 8, "fp32")
    (network,) = made
    before = {name: weight.clone() for name, weight in network.named_parameters()}
    assert network.config.hidden_size == model.config.width and network.config.num_hidden_layers == 1
    step()
    changed = [name for name, weight in network.named_parameters() if not torch.equal(weight, before[name])]
    assert len(changed) > len(before) / 2
    with pytest.raises(weft.UserError, match="fp32 or bf16, not fp16"):
        transformers_step(model, 2, 8, "fp16")


def test_the_memory_of_a_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if peak_memory() is None:
        pytest.skip("this system does not tell the memory of a process")
    folder, out = saved("bert", tmp_path / "bert"), tmp_path / "train.json"
    call = ["bench", str(folder), "--mode", "train", "--lengths", "8", "--batch", "1", "--seconds", "0.01"]
    assert run([*call, "--device", "cpu", "--json", str(out)]) == 0
    assert json.loads(out.read_text())["memory"]["weft"] > 10_000_000


def test_the_table_fits_80_columns() -> None:
    names = ["torch", "sentence-transformers", "transformers pipeline", "onnxruntime int8"]
    profile = Profile("your texts, 32 at a time", 32, ("x",) * 32, 4096)
    speed = Speed(0.6483, 0.6481, 0.6503, 16_503.0, 264_054.0)
    contestants = [Contestant(name, print, speeds={profile.name: speed}, memory=1_314_000_000) for name in names]
    report = EncodeReport("model", {}, (profile,), tuple(contestants), None, None)
    lines = table(*table_of(report)).splitlines()
    assert max(map(len, lines)) <= 80 and len(lines) == 2 + len(names)
    assert len({line.rindex("1314") for line in lines[2:]}) == 1  # numbers stand below each other


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--lengths", "many"], "--lengths: 'many' is not a number of tokens, or mixed"),
        (["--lengths", "1000"], "are more than the model's window"),
        (["--batch", ""], "--batch: nothing is listed"),
        (["--lengths", ","], "--lengths: nothing is listed"),
        (["--batch", "0"], "--batch: '0' is not a number between 1 and 65536"),
        (["--backends", "tensorrt"], "backend 'tensorrt' is not one of torch, onednn"),
        (["--against", "spacy"], "--against 'spacy' is not one of transformers"),
        (["--mode", "sing"], "--mode 'sing' is not one of encode, generate, train"),
        (["--mode", "generate"], "generates no text"),
        (["--mode", "train", "--data", "x.csv"], "--mode train takes no data and no backends"),
        (["--mode", "train", "--backends", "onednn"], "--mode train takes no data and no backends"),
        (["--mode", "train", "--against", "onnxruntime"], "--against 'onnxruntime' is not one of transformers"),
        (["--mode", "train", "--lengths", "mixed"], "--lengths: 'mixed' is not a number between 1 and 65536"),
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

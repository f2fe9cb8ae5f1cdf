"""Families of other packages, through entry points: `examples/plugin` is installed and goes the whole way."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import weft
from weft.checkpoint.families import FAMILIES, family_named, find_size
from weft.checkpoint.locate import check_name
from weft.cli.main import run
from weft.errors import UserError

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples" / "plugin"
REVIEWS = ROOT / "examples" / "reviews.csv"
Fake = Callable[..., None]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the example package was installed into."""
    pytest.importorskip("setuptools")
    folder = tmp_path_factory.mktemp("plugin")
    shutil.copytree(EXAMPLE, folder / "source")  # the build leaves folders behind
    target = folder / "site"
    options = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(target), str(folder / "source")]
    subprocess.run(command, check=True, capture_output=True)
    return target


@pytest.fixture
def site(installed: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(installed))
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "weft_example"]:
        del sys.modules[name]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Makes a distribution with one module and its entry points."""

    def make(name: str, entries: str, code: str = "") -> None:
        folder = tmp_path / name
        inside = folder / f"{name}-1.0.dist-info"
        inside.mkdir(parents=True)
        (inside / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (inside / "entry_points.txt").write_text(f"[weft.families]\n{entries}\n")
        (folder / f"{name}_module.py").write_text(code)
        monkeypatch.syspath_prepend(str(folder))

    return make


def test_a_family_is_created_trained_judged_distilled_compared_and_exported(site: None, tmp_path: Path) -> None:
    assert "weft_example" not in sys.modules and "gated-cnn" not in FAMILIES
    check_name("gated-cnn")
    find_size("bert-tiny")
    assert "weft_example" not in sys.modules, "a plug-in is imported when its name is asked for"
    weft.new("gated-cnn", size="1x16", settings={"vocabulary": 50}, heads={"classify": 2}).save(tmp_path / "new")
    assert weft.load(tmp_path / "new").config.width == 16
    teacher, student = tmp_path / "teacher", tmp_path / "student"
    sizes = {"family": "gated-cnn", "size": "2x32"}
    weft.finetune(str(REVIEWS), task="classify", model=sizes, out=teacher, training={"epochs": 2.0})
    weft.distill(teacher, data=str(REVIEWS), student="gated-cnn:1x16", out=student, training={"epochs": 1.0})
    model = weft.load(teacher)
    assert model.opened.family.name == "gated-cnn" and '"weft-gated-cnn"' in (teacher / "config.json").read_text()
    assert {answer.label for answer in model(["good", "bad"])} <= {"negative", "positive"}
    assert 0 <= model.evaluate(str(REVIEWS)).scores["accuracy"].value <= 1
    comparison = weft.compare([teacher, student], str(REVIEWS), costs=False)
    assert [each.name for each in comparison.models] == ["teacher", "student"]
    weft.export(student, "onnx", out=tmp_path / "onnx", data=str(REVIEWS))  # by torch: it brings no graph
    texts = ["good", "a bad film, all in all", "", "so good that I saw it again"]
    answers = zip(weft.load(student)(texts), weft.load(tmp_path / "onnx")(texts), strict=True)
    assert all(one.score == pytest.approx(two.score, abs=1e-5) for one, two in answers)


def test_no_plugin_takes_a_built_in_name(fake: Fake) -> None:
    fake("taker", "bert = taker_module:FAMILY", "raise AssertionError('imported')")
    assert find_size("bert")[0] is FAMILIES["bert"]


@pytest.mark.parametrize(
    "code, message",
    [
        ("import nothing_of_this_name", "cannot be imported: ModuleNotFoundError: No module named"),
        ("FAMILY = 3", "is not a weft Family named 'torn'"),
        (
            "from weft.checkpoint.families import FAMILIES\nFAMILY = FAMILIES['bert']",
            "is not a weft Family named 'torn'",
        ),
    ],
)
def test_a_broken_plugin_is_named_in_one_line(code: str, message: str, fake: Fake) -> None:
    sys.modules.pop("tearer_module", None)
    fake("tearer", "torn = tearer_module:FAMILY", code)
    with pytest.raises(UserError, match=message) as caught:
        weft.new("torn")
    line = str(caught.value)
    assert "plug-in 'torn' of tearer (tearer_module:FAMILY)" in line and "\n" not in line


def test_two_packages_claim_a_name(fake: Fake) -> None:
    fake("first", "same = first_module:FAMILY")
    fake("second", "same = second_module:FAMILY")
    with pytest.raises(UserError, match="'same' is claimed by several packages: .*first.*second|.*second.*first"):
        family_named("same")


def test_a_folder_of_a_family_that_is_not_installed(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "weft-gated-cnn"}')
    with pytest.raises(UserError, match="model_type 'weft-gated-cnn' is not one of"):
        weft.load(tmp_path)


def test_a_task_is_learned_judged_distilled_compared_and_exported(site: None, tmp_path: Path) -> None:
    assert "weft_example" not in sys.modules
    teacher, student = tmp_path / "teacher", tmp_path / "student"
    sizes = {"family": "gated-cnn", "size": "1x16"}
    weft.finetune(str(REVIEWS), task="grade", model=sizes, out=teacher, training={"epochs": 1.0})
    weft.distill(teacher, data=str(REVIEWS), student="gated-cnn:1x8", out=student, training={"epochs": 1.0})
    model = weft.load(teacher)
    assert model.task == "grade" and type(model(["good"])[0]).__name__ == "Label"
    assert 0 <= model.evaluate(str(REVIEWS)).scores["accuracy"].value <= 1
    assert weft.load(student).task == "grade"
    assert len(weft.compare([teacher, student], str(REVIEWS), costs=False).models) == 2
    weft.export(teacher, "onnx", out=tmp_path / "onnx", data=str(REVIEWS))
    assert weft.load(tmp_path / "onnx")(["good"])[0].label == model(["good"])[0].label


def test_the_page_shows_the_package() -> None:
    page = (ROOT / "docs" / "extending.md").read_text()
    for path in (EXAMPLE / "pyproject.toml", *sorted((EXAMPLE / "weft_example").glob("*.py"))):
        text = path.read_text()
        assert text in page and len(text.splitlines()) < 80, path


def test_plugins_are_listed_without_being_imported(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    fake("listed", "my-family = listed_module:FAMILY", "raise RuntimeError('imported')")
    assert run(["models"]) == 0
    assert "my-family: plug-in of listed (listed_module:FAMILY)" in capsys.readouterr().out
    assert run(["models", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[-1] == {
        "family": "my-family",
        "plug_in": "listed (listed_module:FAMILY)",
    }
    assert "listed_module" not in sys.modules

"""Numbers of flags that no model can work with are one line each, and long texts are shown in one pass."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import weft
from tests.tasks.small import vocabulary
from weft.cli.main import run
from weft.generation.search import Beam


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "gpt"
    weft.new("gpt2", vocabulary("bpe"), size="1x64", settings={"context": 16}).save(folder)
    return folder


@pytest.mark.parametrize("value", ["1e23", "-1e23", "nan", "inf"])
def test_length_penalties(value: str, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["generate", str(model), "cat", "--max-tokens", "3", "--beam-size", "2", "--length-penalty", value]) == 2
    assert "length_penalty must be between -30 and 30" in capsys.readouterr().err
    for sound in (-30.0, 30.0):
        assert all(map(bool, (Beam(length_penalty=sound), float(1 << 20) ** sound)))


@pytest.mark.parametrize("value", ["100000000000000000000000", "0", "-1"])
def test_min_counts(value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("some words\n" * 20)
    learn = ["tokenizer", "learn", "--text", str(tmp_path / "a.txt"), "--out", str(tmp_path / "out")]
    assert run([*learn, "--min-count", value]) == 2
    assert f"min_count must be between 1 and {1 << 40}, not {value}" in capsys.readouterr().err


def test_the_tokens_of_a_long_text(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    times = []
    for size in (2_000, 16_000):
        begin = time.process_time()
        assert run(["tokenizer", "show", str(model), "ab" * size]) == 0
        times.append(time.process_time() - begin)
    assert times[1] < 24 * times[0] + 0.5, "eight times the text must not take sixty-four times as long"
    capsys.readouterr()


@pytest.mark.parametrize("options, message", [
    ({"seconds": float("inf")}, "seconds must be above 0 and at most 86400, not inf"),
    ({"seconds": float("nan")}, "seconds must be above 0"),
    ({"texts": 0}, "texts must be at least 1, not 0"),
])  # fmt: skip
def test_measures_of_time(options: dict[str, float], message: str, model: Path) -> None:
    from weft.comparison.cost import measure

    with pytest.raises(weft.UserError, match=message):
        measure([weft.load(model)], ["cat"], **options)  # type: ignore[arg-type]


def test_widths_of_vectors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("some words\n" * 20)
    huge = "1" + "0" * 400
    assert (
        run(["vectors", "learn", "--text", str(tmp_path / "a.txt"), "--out", str(tmp_path / "o"), "--width", huge]) == 2
    )
    assert "width must be between 1 and 65536, not 1000" in capsys.readouterr().err

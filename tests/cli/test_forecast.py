"""`weft forecast` and the other verbs on a model that forecasts; what is wrong with a file is one line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.tasks.test_forecast import quiet, weekly
from weft.cli.main import run


def write_csv(path: Path, rows: list[dict[str, Any]]) -> str:
    lines = [",".join(rows[0]), *(",".join(str(cell) for cell in row.values()) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("forecast-cli") / "fc"
    weft.finetune(
        weekly(), task={"name": "forecast", "horizon": 7, "window": 14}, out=out, training={"steps": 20},
        model={"family": "gru", "width": 8, "layers": 1}, **quiet(),
    )  # fmt: skip
    return out


def test_forecast_to_a_table_a_file_and_a_page(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_csv(tmp_path / "new.csv", weekly(seed=2))
    assert run(["forecast", str(made), "--data", "new.csv", "--plot", "f.html", "--back", "7"]) == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines()[0].split() == ["series", "time", "column", "forecast", "low", "high"]
    assert (
        len(shown.out.splitlines()) == 15 and "long (series by store)" in shown.err and "f.html: 2 charts" in shown.err
    )
    page = (tmp_path / "f.html").read_text()
    assert page.count("<figure") == 2 and "90 % interval" in page and "true" in page and "http-equiv" in page
    dated = [{"date": f"2024-{1 + n // 28:02}-{1 + n % 28:02}", "sales": n % 7} for n in range(28)]
    write_csv(tmp_path / "dated.csv", dated)
    assert run(["forecast", str(made), "--data", "dated.csv", "--plot", "dated.html"]) == 0
    assert re.search(r'class="x"[^>]*>2024-01-1\d<', (tmp_path / "dated.html").read_text())  # dates along the axis
    capsys.readouterr()
    assert run(["forecast", str(made), "--data", "new.csv", "--jsonl"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(rows) == 14 and rows[0]["series"] == "s0" and rows[0]["low"] < rows[0]["high"]
    for verb, out in (("forecast", "a.csv"), ("predict", "b.csv")):
        assert run([verb, str(made), "--data", "new.csv", "--out", out]) == 0
    assert (tmp_path / "a.csv").read_text() == (tmp_path / "b.csv").read_text()
    assert (tmp_path / "a.csv").read_text().startswith("series,time,column,forecast,low,high\ns0,160,sales,")
    assert run(["forecast", str(made), "--data", "new.csv", "--out", "a.csv"]) == 2
    assert "already there" in capsys.readouterr().err


def test_evaluate_and_info(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_csv(tmp_path / "test.csv", weekly(seed=2))
    page = str(tmp_path / "e.html")
    assert run(["evaluate", str(made), "--data", path, "--origins", "4", "--out", page]) == 0
    shown = capsys.readouterr().out
    for word in ("skill", "mse", "mae", "mase", "coverage", "seasonal naive", "least squares", "By steps ahead"):
        assert word in shown
    assert "seasonal naive" in Path(page).read_text()
    assert run(["info", str(made)]) == 0
    shown = capsys.readouterr().out
    assert "forecasts       sales" in shown and "intervals       90 %" in shown and "margins" not in shown


BAD = {
    "gap": (
        "day,sales\n" + "".join(f"{n},{n % 7}\n" for n in range(40) if n != 30),
        "line 32.*column 'day'.*1 missing",
    ),
    "empty": (
        "day,sales\n" + "".join(f"{n},{n % 7 if n != 30 else ''}\n" for n in range(40)),
        "line 32: column 'sales' is",
    ),
    "word": (
        "day,sales\n" + "".join(f"{n},{n % 7 if n != 30 else 'x'}\n" for n in range(40)),
        "line 32: column 'sales' hold",
    ),
    "short": ("day,sales\n1,2\n2,3\n3,4\n", "the series has 3 steps, and the model reads a window of 14"),
    "two times": ("day,step,sales\n" + "".join(f"{n},{n},{n % 7}\n" for n in range(40)), "2 time columns, day, step"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_series_are_one_line(made: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text, match = BAD[name]
    (tmp_path / "bad.csv").write_text(text)
    for verb in (["forecast", str(made)], ["finetune", "--task", "forecast", "--out", str(tmp_path / "run")]):
        if verb[0] == "finetune":
            match = match.replace("the model reads a window of 14", "a window of")
        assert run([*verb, "--data", str(tmp_path / "bad.csv")]) == 2
        lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("weft ")]
        assert len(lines) == 1
        assert re.search(match, lines[0]), lines[0]
    assert not (tmp_path / "run").exists()


def test_flags_that_cannot_be(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_csv(tmp_path / "new.csv", weekly())
    cases = {
        ("forecast", str(made)): "no data: give --data FILE",
        ("forecast", str(made), "--data", path, "--plot", "x.svg"): "written as .html",
        ("forecast", str(made), "--data", path, "--back", "-1"): "--back must be 0 or more",
        ("forecast", str(made), "--data", path, "--column", "value=price"): "no column 'price'",
        (
            "finetune",
            "--task",
            "forecast",
            "--data",
            path,
            "--horizon",
            "0",
            "--out",
            "r",
        ): "horizon must be at least 1 step",
        ("export", str(made), "--to", "ctranslate2", "--out", str(tmp_path / "o")): "a forecaster reads numbers",
        ("prune", str(made), "--layers", "1", "--out", str(tmp_path / "o")): "no stack of layers to prune",
        ("evaluate", str(made), "--data", path, "--origins", "0"): "origins must be at least 1",
    }
    for arguments, match in cases.items():
        assert run(list(arguments)) == 2, arguments
        assert match in capsys.readouterr().err, arguments

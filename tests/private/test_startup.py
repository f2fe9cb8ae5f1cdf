"""Telemetry is off before any library is loaded, whoever loads it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engines import need_engine
from weft.startup import SWITCHES
from weft.training import step

# Without these names ONNX Runtime takes the machine for one that runs tests, and sends nothing anyway.
CI = ("CI", "GITHUB_ACTIONS", "GITLAB_CI", "CIRCLECI", "TF_BUILD", "JENKINS_URL", "ORT_RUNNING_UNIT_TESTS")


def left_in_home(code: str, home: Path, **more: str) -> tuple[list[str], str]:
    """Which files a program of a user leaves in an empty home, and what it says on standard error."""
    home.mkdir()
    environment = {name: value for name, value in os.environ.items() if name not in (*CI, *SWITCHES, "XDG_CACHE_HOME")}
    environment |= {"HOME": str(home), "TMPDIR": str(home), "PYTHONDONTWRITEBYTECODE": "1", **more}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return [path.name for path in home.rglob("*")], done.stderr


def test_the_switches_are_set_by_import_weft_whatever_they_were(tmp_path: Path) -> None:
    code = f"import os, weft; print([os.environ[name] for name in {list(SWITCHES)}])"
    environment = {**os.environ, **dict.fromkeys(SWITCHES, "0")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(list(SWITCHES.values()))


@pytest.mark.skipif(sys.platform != "linux", reason="a variable of libgomp")
@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, "4000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "None")],
)
def test_waiting_threads_leave_their_core_unless_the_user_says_otherwise(given: dict[str, str], expected: str) -> None:
    code = "import os, weft; print(os.environ.get('GOMP_SPINCOUNT'))"
    names = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    environment = {name: value for name, value in os.environ.items() if name not in names} | given
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == expected


@pytest.mark.parametrize(
    "code",
    [
        "import weft, onnxruntime",
        "import os, weft; del os.environ['ORT_DISABLE_TELEMETRY']\nimport weft.backends.onnx as r; r.runtime()",
    ],
)
def test_onnx_runtime_leaves_nothing_behind(code: str, tmp_path: Path) -> None:
    need_engine("onnx")
    assert left_in_home(code, tmp_path / "home", ORT_DISABLE_TELEMETRY="0") == ([], "")


def test_a_program_that_imports_it_first_is_told(tmp_path: Path) -> None:
    need_engine("onnx")
    code = "import onnxruntime; from weft.backends.onnx import runtime; runtime()"
    _, notes = left_in_home(code, tmp_path / "off", ORT_DISABLE_TELEMETRY="1")
    assert not notes
    _, notes = left_in_home(code, tmp_path / "on")
    assert "onnxruntime was imported before weft" in notes and "ORT_DISABLE_TELEMETRY=1" in notes


def test_compiled_code_is_kept_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own choice is a folder that others can make before: /tmp/torchinductor_USER."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/tmp/torchinductor_user")  # as torch sets it when it is loaded
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path))
    monkeypatch.setattr(step, "COMPILER_CACHE", None)
    step.keep_compiled_code_private()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "compiled")
    monkeypatch.setattr(step, "COMPILER_CACHE", "/chosen")
    step.keep_compiled_code_private()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "/chosen"

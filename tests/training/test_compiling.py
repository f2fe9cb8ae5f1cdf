"""Compiling in the middle of a run: when it pays, what is logged and kept, and that nothing else changes."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.training.small import stories
from weft.errors import UserError
from weft.runs.driver import resume
from weft.runs.pretrain import pretrain
from weft.training import compiling
from weft.training.compiling import CompileChoice, CompileTimes, code_key
from weft.training.log import read_metrics
from weft.training.run import State


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "compiled" / "times.json"


@pytest.fixture
def anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run may be compiled on a CPU too, and its speed is known after four steps."""
    plain = CompileChoice.__init__

    def made(choice: CompileChoice, *given: Any) -> None:
        plain(choice, *given)
        choice.open = choice.stepper.setup.plan.compile is None and choice.stepper.setup.may_compile

    monkeypatch.setattr(CompileChoice, "__init__", made)
    monkeypatch.setattr(compiling, "STEPS", 4)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))


def go(tmp_path: Path, out: str, **training: Any) -> tuple[list[float], list[str]]:
    """The losses of a run, and what it logs."""
    (tmp_path / "text.txt").write_text(stories(60))
    heard: list[str] = []
    still = dict.fromkeys(("dropout", "attention_dropout", "embedding_dropout"), 0.0)
    plan = {"steps": 16, "batch": 8, "evaluate_every": 8, "log_every": 2, "precision": "fp32", **training}
    settings = {
        "out": str(tmp_path / out),
        "model": {"family": "gpt2", "size": "1x64", **still},
        "text": {"files": [str(tmp_path / "text.txt")]},
        "tokenizer": {"size": 300},
        "objective": {"length": 32},
        "training": plan,
    }
    pretrain(None, settings, log=heard.append)
    lines = read_metrics(tmp_path / out / "run/metrics.jsonl")
    logged = [line for line in heard if str(tmp_path) not in line]  # whose name has these words too
    return [line["loss"] for line in lines if "loss" in line], logged


def test_a_run_is_compiled_in_its_middle_and_learns_the_same(
    tmp_path: Path, cache: Path, anywhere: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, heard = go(tmp_path, "plain", compile=False)
    assert not any("compil" in line for line in heard) and not cache.exists()
    monkeypatch.setattr(compiling, "SAVED", 1e9)
    losses, heard = go(tmp_path, "run")
    said = [line for line in heard if "compil" in line]
    assert (
        len(said) == 2
        and said[0].startswith("compiling, which should take about 18 s and save ")
        and "compiled in" in said[1]
    )
    assert losses == pytest.approx(plain, rel=1e-4)
    lines = [line for line in read_metrics(tmp_path / "run/run/metrics.jsonl") if "loss" in line]
    assert ["graphs" in line for line in lines] == [False] * 3 + [True] * 5
    assert "compile =" not in (tmp_path / "run/run/recipe.toml").read_text(), "nobody has chosen"
    (both,) = json.loads(cache.read_text()).values()
    assert len(both) == 1 and both[0] > 0


def test_one_that_is_resumed_goes_on_in_the_same_order(
    tmp_path: Path, anywhere: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, "SAVED", 1e9)
    losses, _ = go(tmp_path, "run", keep=5)
    for step in (16,):
        for path in (tmp_path / f"run/run/checkpoints/step-{step}").iterdir():
            path.unlink()
        (tmp_path / f"run/run/checkpoints/step-{step}").rmdir()
    resume(tmp_path / "run", log=lambda line: None)
    lines = read_metrics(tmp_path / "run/run/metrics.jsonl")
    assert [line["loss"] for line in lines if "loss" in line] == pytest.approx(losses, rel=1e-4)


def test_a_short_run_is_not_compiled_and_says_why(tmp_path: Path, anywhere: None) -> None:
    losses, heard = go(tmp_path, "run")
    (said,) = [line for line in heard if "compil" in line]
    assert said.startswith("not compiled: that would take about 18 s and save 0 of the ")
    assert said.endswith("--compile compiles anyway")


def test_by_default_nothing_is_compiled_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "SAVED", 1e9)
    monkeypatch.setattr(compiling, "STEPS", 1)
    monkeypatch.setattr(torch, "compile", lambda *given, **options: pytest.fail("compiled"))
    assert not any("compil" in line for line in go(tmp_path, "run")[1])


def test_where_compiling_fails_the_run_goes_on_without(
    tmp_path: Path, cache: Path, anywhere: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(graph: Any, inputs: Any) -> Any:
        raise RuntimeError("no C compiler\nand more of it")

    plain, _ = go(tmp_path, "plain", compile=False)
    monkeypatch.setattr(compiling, "SAVED", 1e9)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=fails))
    torch._dynamo.reset()
    losses, heard = go(tmp_path, "run")
    assert losses == plain and not cache.exists()
    assert any("cannot be compiled, and goes on without" in line and "no C compiler" in line for line in heard)
    torch._dynamo.reset()
    with pytest.raises(UserError, match="cannot be compiled: .*no C compiler and more of it.*; leave out --compile"):
        go(tmp_path, "asked", compile=True)


def test_a_first_step_that_lacks_memory_was_not_compiled_yet() -> None:
    """The same step comes again in smaller passes, and may fail to compile then."""
    results: list[Any] = [torch.OutOfMemoryError(), RuntimeError("no C compiler"), torch.tensor(1.0)]
    compiled: list[bool] = []

    def step(*given: Any) -> torch.Tensor:
        result = results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    plan, network = SimpleNamespace(compile=None), SimpleNamespace(COMPILES=True)
    setup = SimpleNamespace(plan=plan, may_compile=True, device=torch.device("cuda"), network=network)
    stepper: Any = SimpleNamespace(setup=setup, compile=compiled.append, step=step)
    choice = CompileChoice(stepper, SimpleNamespace(line=lambda text: None))  # type: ignore[arg-type]
    choice.waiting = True
    with pytest.raises(torch.OutOfMemoryError):
        choice.step([], torch.ones(1), 0)
    assert choice.step([], torch.ones(1), 0) == 1.0 and compiled == [False] and not choice.waiting


def test_the_second_time_the_code_is_in_the_cache(cache: Path) -> None:
    times = CompileTimes()
    assert times.expected("one", 12) == (15 + 3 * 12, False)
    times.note("one", 40.0)
    assert times.expected("one", 12) == (10.0, True) and times.expected("two", 12)[1] is False
    times.note("one", 4.0)
    times.note("one", 6.0)
    assert json.loads(cache.read_text()) == {"one": [40.0, 6.0]} and times.expected("one", 12) == (6.0, True)
    cache.write_text('{"one": "nonsense", "two": 3}')
    assert times.expected("one", 12)[1] is False


@pytest.mark.parametrize(
    "line, steps, minutes, compiled",
    [
        ((40, 8.0), 10_000, None, True),  # 0.2 s a step, 1992 s left, of which a quarter is saved
        ((40, 8.0), 300, None, False),  # 52 s left
        ((40, 8.0), None, 10.0, True),
        ((40, 8.0), None, 1.0, False),
        ((15, 6.0), 10_000, None, True),  # few steps, but long ones
        ((15, 2.0), 10_000, None, None),  # not known yet
    ],
)
def test_the_time_left_decides(
    line: tuple[int, float],
    steps: int | None,
    minutes: float | None,
    compiled: bool | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    setup = SimpleNamespace(
        plan=SimpleNamespace(compile=None), may_compile=True, device=torch.device("cuda"), network=SimpleNamespace()
    )
    setup.network = SimpleNamespace(COMPILES=True, config=SimpleNamespace(layers=12))
    asked: list[bool] = []
    stepper: Any = SimpleNamespace(setup=setup, compile=asked.append)
    log: Any = SimpleNamespace(line=lambda text: None)
    monkeypatch.setattr(compiling, "code_key", lambda setup: "key")
    choice = CompileChoice(stepper, log)
    choice.decide(State(step=10, seconds=5.0), steps, minutes)
    assert not asked and choice.open
    choice.decide(State(step=10 + line[0], seconds=5.0 + line[1]), steps, minutes)
    assert asked == [True] * bool(compiled) and choice.open == (compiled is None)
    assert not CompileChoice(SimpleNamespace(setup=SimpleNamespace(**{**vars(setup), "may_compile": False})), log).open  # type: ignore[arg-type]


def test_the_key_tells_sizes_and_precision_apart() -> None:
    from tests.training.small import OBJECTIVES, network_for
    from tests.training.test_cuda import even_feed
    from weft.training.plan import Training
    from weft.training.step import Setup

    def key(layers: int, precision: str = "fp32") -> str:
        plan = Training(precision=precision)  # type: ignore[arg-type]
        network: Any = network_for("next", layers=layers)
        return code_key(Setup(network=network, objective=OBJECTIVES["next"], feed=even_feed(4, 16), plan=plan))

    assert len({key(1), key(2), key(1, "bf16")}) == 3 and key(1) == key(1)

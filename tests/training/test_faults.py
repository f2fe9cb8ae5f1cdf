"""Faults: signals in every phase, memory and disk that run out, losses that are no numbers, two runs in one folder."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import weft
from tests.children import ForkedChild
from tests.training.small import stories
from tests.training.test_resume import contents, same
from weft.errors import UserError
from weft.objectives.losses import NextToken
from weft.runs.driver import resume
from weft.runs.pretrain import pretrain
from weft.training.log import read_metrics
from weft.training.run import Run


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))


def settings(tmp_path: Path, out: str, **training: Any) -> dict[str, Any]:
    text = tmp_path / "text.txt"
    if not text.exists():
        text.write_text(stories(60))
    plan = {"steps": 12, "batch": 8, "evaluate_every": 4, "log_every": 2, **training}
    return {
        "out": str(tmp_path / out),
        "model": {"family": "gpt2", "size": "1x64"},
        "text": {"files": [str(text)]},
        "tokenizer": {"size": 300},
        "objective": {"length": 32},
        "training": plan,
    }


def quietly(line: str) -> None:
    pass


# ---------------------------------------------------------------- signals


def wait_for(ready: Callable[[], bool], process: ForkedChild, seconds: float = 180) -> None:
    limit = time.monotonic() + seconds
    while not ready():
        assert process.returncode is None, process.ended()
        assert time.monotonic() < limit
        time.sleep(0.005)


def started(values: dict[str, Any], patch: str = "") -> ForkedChild:
    """`weft.pretrain` in a process of its own, with a patch that makes one phase slow enough to be hit."""
    code = (
        "import json, sys, time\n"
        f"{patch}\n"
        "from weft.runs.pretrain import pretrain\nfrom weft.training.signals import Interrupted\n"
        "try:\n    pretrain(None, json.loads(sys.argv[1]))\n"
        "except Interrupted as interrupted:\n"
        "    print(f'weft: {interrupted}', file=sys.stderr); sys.exit(128 + interrupted.number)\n"
    )
    return ForkedChild(code, json.dumps(values))


SLOW_EVALUATION = """
import weft.training.loop as judging
plain = judging.every_example
def slow(*given):
    for batch in plain(*given):
        open('evaluating', 'w').close()
        time.sleep(0.3)
        yield batch
judging.every_example = slow
"""
SLOW_TOKENIZING = """
import weft.data.shards as shards
shards.SHARD, shards.TOGETHER = 300, 500
plain = shards._encode
def slow(*given):
    time.sleep(0.1)
    return plain(*given)
shards._encode = slow
"""
MARKED_COMPILATION = """
import torch
plain = torch.compile
def marked(function, **given):
    ready = plain(function, **given)
    def run(*inputs):
        open('compiling', 'w').close()
        return ready(*inputs)
    return run
torch.compile = marked
"""
PHASES = {
    "training": ("", lambda folder: (folder / "run/run/metrics.jsonl").exists()
                 and (folder / "run/run/metrics.jsonl").stat().st_size > 0, {"steps": 3000}),
    "evaluation": (SLOW_EVALUATION, lambda folder: (folder / "evaluating").exists(), {"pass_tokens": 64}),
    "tokenizing": (SLOW_TOKENIZING, lambda folder: any((folder / "cache").glob("shards/*.partial/tokens-*.npy")), {}),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="the compiler needs g++ on the CPU")
def test_a_signal_while_compiling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first step, compilation and all, is done; then it is saved."""
    monkeypatch.chdir(tmp_path)
    process = started(settings(tmp_path, "run", compile=True, steps=3000), MARKED_COMPILATION)
    wait_for(lambda: (tmp_path / "compiling").exists(), process)
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    said = process.ended()
    assert process.returncode == 143 and "stopped after step 1 of 3,000" in said, said
    assert (tmp_path / "run/run/checkpoints/step-1").exists()


@pytest.mark.parametrize(
    ("number", "phase"),
    [
        *((signal.SIGTERM, phase) for phase in PHASES),
        (signal.SIGINT, "training"),
        (signal.SIGHUP, "training"),
        (signal.SIGHUP, "tokenizing"),
    ],
)
def test_a_signal_saves(number: int, phase: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    patch, ready, plan = PHASES[phase]
    values = settings(tmp_path, "run", **plan)
    process = started(values, patch)
    wait_for(lambda: ready(tmp_path), process)
    time.sleep(0.1)
    process.send_signal(number)
    said = process.ended()
    assert process.returncode == 128 + number, said
    assert "Traceback" not in said and "weft resume" in said
    newest = Run(tmp_path / "run").checkpoints().newest()
    assert (newest is None) == (phase == "tokenizing")
    if phase != "tokenizing":
        assert weft.load(tmp_path / "run").tokenizer is not None  # what it has become so far can be used
    if phase == "training":
        assert f"step {int(newest.name[5:]):,} of 3,000" in said  # type: ignore[union-attr]
        return
    if phase == "evaluation":
        assert json.loads((newest / "state.json").read_text())["evaluated"] < int(newest.name[5:])  # type: ignore[operator, union-attr]
    if phase == "tokenizing":
        assert list((tmp_path / "cache" / "shards").glob("*.partial/tokens-*.npy"))
    resume(tmp_path / "run", log=quietly)
    pretrain(None, {**values, "out": str(tmp_path / "whole")}, log=quietly)
    whole, parts = (contents(tmp_path / name, ema=False) for name in ("whole", "run"))
    assert all(same(whole[name], parts[name]) for name in whole)


NOHUP = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)"
CLOSED_TERMINAL = """
import json, os, pty, sys, time
from pathlib import Path
from weft.cli.main import run
number, terminal = pty.fork()
if not number:
    os._exit(run(json.loads(sys.argv[1])))
os.set_blocking(terminal, False)
record = Path('run/run/metrics.jsonl')
while not (record.exists() and record.stat().st_size):
    time.sleep(0.005)
    try:
        os.read(terminal, 1 << 16)
    except BlockingIOError:
        pass
os.close(terminal)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]))
"""


def test_nohup_stays_deaf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    process = started(settings(tmp_path, "run", steps=100_000), NOHUP)
    record = tmp_path / "run/run/metrics.jsonl"
    wait_for(lambda: record.exists() and record.stat().st_size > 0, process)
    process.send_signal(signal.SIGHUP)
    size = record.stat().st_size
    wait_for(lambda: record.stat().st_size > size + 500, process)
    process.send_signal(signal.SIGTERM)
    said = process.ended()
    assert process.returncode == 143, said


def test_a_closed_terminal_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is written to it fails from then on."""
    monkeypatch.chdir(tmp_path)
    values = settings(tmp_path, "run", steps=100_000)
    arguments = ["pretrain", "--out", values["out"], "--model", "gpt2", "--size", "1x64", "--vocabulary", "300"]
    arguments += ["--text", *values["text"]["files"], "--length", "32", "--steps", "100000", "--batch", "8"]
    arguments += ["--set", "training.log_every=2"]
    process = ForkedChild(CLOSED_TERMINAL, json.dumps(arguments))
    said = process.ended()
    assert process.returncode == 129, said
    assert Run(tmp_path / "run").checkpoints().load() is not None


def test_a_second_interrupt_leaves_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    slow_step = "from weft.training.step import Stepper\nplain = Stepper.update\n"
    slow_step += "def slow(*given):\n    open('stepping', 'w').close()\n    time.sleep(60)\n    return plain(*given)\n"
    process = started(settings(tmp_path, "run", save_every=1), slow_step + "Stepper.update = slow\n")
    wait_for(lambda: (tmp_path / "stepping").exists(), process)
    process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    process.ended(55)  # before the step is done
    assert process.returncode == 130
    resume(tmp_path / "run", log=quietly)  # nothing was harmed
    assert json.loads((tmp_path / "run/run/checkpoints/step-12/state.json").read_text())["finished"]


# ---------------------------------------------------------------- what runs out


class Small(NextToken):
    """An objective on a machine whose memory holds only so many tokens."""

    room = 100
    tried: list[int] = []

    def sums(self, network: Any, batch: Any) -> Any:
        self.tried.append(len(batch.tokens))
        if len(batch.tokens) > self.room and network.training:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return super().sums(network, batch)


def test_memory_runs_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step is done again in smaller passes, and with the same result as if they had been small from the start."""
    dropless = {"embedding_dropout": 0.0, "dropout": 0.0, "attention_dropout": 0.0}
    large, small = (settings(tmp_path, name, pass_tokens=tokens) for name, tokens in (("a", 256), ("b", 64)))
    for values in (large, small):
        values["model"] |= dropless
    monkeypatch.setattr("weft.runs.pretrain.NextToken", Small)
    heard: list[str] = []
    pretrain(None, large, log=heard.append)
    assert max(Small.tried) == 256
    said = "\n".join(heard)
    assert said.count("memory ran out") == 2 and "passes of 64 tokens" in said
    pretrain(None, small, log=quietly)
    losses = [[line["loss"] for line in read_metrics(tmp_path / name / "run/metrics.jsonl") if "loss" in line]
              for name in ("a", "b")]  # fmt: skip
    assert losses[0] == losses[1]
    state = json.loads((tmp_path / "a/run/checkpoints/step-12/state.json").read_text())
    assert state["pass_tokens"] == 64  # and it is remembered when the run goes on


@pytest.mark.parametrize("rows", ["stream", "apart"])
def test_memory_for_not_even_a_row(rows: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.runs.pretrain.NextToken", Small)
    monkeypatch.setattr(Small, "room", 8)
    values = settings(tmp_path, "run")
    values["objective"]["rows"] = rows
    with pytest.raises(UserError, match="too small for a single row"):
        pretrain(None, values, log=quietly)
    assert not (tmp_path / "run").exists()


def test_a_full_disk(tmp_path: Path) -> None:
    """Files may grow no further than the first checkpoint: the next one fails, and the first is still good."""
    values = settings(tmp_path, "run", steps=10, save_every=2, evaluate_every=100, keep=20)
    limit = (
        "import resource, signal, weft.training.run as state\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "plain = state.save_tensors\n"
        "def full(path, tensors):\n"
        "    if 'step-6' in str(path): resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, -1))\n"
        "    plain(path, tensors)\n"
        "state.save_tensors = full\n"
    )
    process = started(values, limit)
    said = process.ended()
    assert "file too large" in said and "the last good checkpoint is" in said and "step-4" in said.splitlines()[-1]
    assert not list((tmp_path / "run/run/checkpoints").glob(".*"))
    resume(tmp_path / "run", log=quietly)
    assert json.loads((tmp_path / "run/run/checkpoints/step-10/state.json").read_text())["finished"]


@pytest.mark.parametrize("keep", [1, 2])
def test_a_damaged_checkpoint_gives_way_to_an_earlier_one(keep: int, tmp_path: Path) -> None:
    pretrain(None, settings(tmp_path, "run", keep=keep + 1), log=quietly)
    pretrain(None, settings(tmp_path, "whole"), log=quietly)
    newest = tmp_path / "run/run/checkpoints/step-12"
    (newest / "model.safetensors").write_bytes(b"not what it was")
    said: list[str] = []
    resume(tmp_path / "run", log=said.append)
    assert any("step-12" in line and "earlier" in line for line in said)
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("run", "whole")]
    assert weights[0] == weights[1]
    load_file(newest / "model.safetensors")  # a sound one has taken its place
    said.clear()
    resume(tmp_path / "run", log=said.append)
    assert any("finished already" in line for line in said)


def test_a_full_disk_behind_the_record(tmp_path: Path) -> None:
    """No file may grow past the record of step 6: the clear line is the last, and the run can be gone on with."""
    values = settings(tmp_path, "run", steps=10, log_every=1, evaluate_every=4)
    limit = (
        "import resource, signal, weft.training.log as log\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "plain = log.RunLog.record\n"
        "def full(self, values):\n"
        "    if values['step'] == 6: resource.setrlimit(resource.RLIMIT_FSIZE, (self.file.tell() + 10, -1))\n"
        "    plain(self, values)\n"
        "log.RunLog.record = full\n"
    )
    said = started(values, limit).ended()
    assert "metrics.jsonl: cannot be written: file too large" in said.splitlines()[-1] and "weft resume" in said
    resume(tmp_path / "run", log=quietly)
    lines = read_metrics(tmp_path / "run/run/metrics.jsonl")
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 11))


def test_nobody_reads_along_any_more(tmp_path: Path) -> None:
    """`weft pretrain ... 2>&1 | head` must not end the run."""
    process = started(settings(tmp_path, "run"))
    process.reader.close()
    process.process.join(180)
    assert process.returncode == 0
    assert (tmp_path / "run/run/checkpoints/step-12").exists()


# ---------------------------------------------------------------- losses that are no numbers


class Bad(NextToken):
    """An objective whose sixth training step gives no number, or one that is far too large."""

    value = float("nan")
    step = 0

    def sums(self, network: Any, batch: Any) -> Any:
        found = super().sums(network, batch)
        if network.training:
            type(self).step += 1
            if type(self).step == 6:
                return {"words": self.spoiled(found["words"], network)}
        return found

    def spoiled(self, loss: torch.Tensor, network: Any) -> torch.Tensor:
        return loss * self.value


@pytest.mark.parametrize("value, word", [(float("nan"), "nan"), (1000.0, r"\d{4}")])
def test_no_number(value: float, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.runs.pretrain.NextToken", Bad)
    monkeypatch.setattr(Bad, "value", value)
    monkeypatch.setattr(Bad, "step", 0)
    with pytest.raises(UserError, match=f"the loss of step 6 is .*{word}") as caught:
        pretrain(None, settings(tmp_path, "run", log_every=5), log=quietly)
    said = str(caught.value)
    assert "the last good checkpoint is" in said and "step-4" in said and "training.explode" in said
    assert "weft resume" not in said  # it would end here again
    text = (tmp_path / "text.txt").read_text()
    read = said.split("the step read: ")[1]
    words = [word for word in read.split() if word.isalpha()]
    assert len(words) > 10 and sum(word in text for word in words) > 0.8 * len(words)
    assert [path.name for path in (tmp_path / "run/run/checkpoints").iterdir()] == ["step-4"]


class Steep(Bad):
    """Its sixth step has a loss that is a number, and a gradient that is none: the root of nothing."""

    def spoiled(self, loss: torch.Tensor, network: Any) -> torch.Tensor:
        return loss + (network.tokens.weight.sum() * 0).abs().sqrt()


def test_a_gradient_that_is_no_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.runs.pretrain.NextToken", Steep)
    monkeypatch.setattr(Steep, "step", 0)
    with pytest.raises(UserError, match="the loss of step 6 is .* the gradient norm (nan|inf)"):
        pretrain(None, settings(tmp_path, "run", save_every=2), log=quietly)
    found = list((tmp_path / "run/run/checkpoints").glob("step-*/model.safetensors"))
    assert found and all(tensor.isfinite().all() for path in found for tensor in load_file(path).values())


def test_what_has_been_kept_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that ends before its first checkpoint, but after its first evaluation, leaves a whole model."""
    monkeypatch.setattr("weft.runs.pretrain.NextToken", Bad)
    monkeypatch.setattr(Bad, "step", 0)
    with pytest.raises(UserError, match="there is no checkpoint"):
        pretrain(None, settings(tmp_path, "run", save_every=100), log=quietly)
    assert weft.load(tmp_path / "run").tokenizer is not None and (tmp_path / "run/run/metrics.jsonl").exists()


# ---------------------------------------------------------------- two runs in one folder


def test_two_runs_in_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    values = settings(tmp_path, "run", steps=100_000)
    process = started(values)
    try:
        wait_for(lambda: (tmp_path / "run/run/metrics.jsonl").exists(), process)
        with pytest.raises(UserError, match="already holds a run"):
            pretrain(None, values, log=quietly)
        with pytest.raises(UserError, match=f"another run .process {process.pid}. is writing there"):
            resume(tmp_path / "run", log=quietly)
    finally:
        process.send_signal(signal.SIGKILL)
        process.ended()


def test_another_text_is_refused(tmp_path: Path) -> None:
    pretrain(None, settings(tmp_path, "run"), log=quietly)
    with open(tmp_path / "text.txt", "a") as file:
        file.write("Something else.\n")
    with pytest.raises(UserError, match="the text has changed since the run began"):
        resume(tmp_path / "run", log=quietly)

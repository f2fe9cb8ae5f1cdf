"""Runs cases in children forked from a process that has every library loaded, two at a time, and sorts the outcomes.

A case is a function of (seed, target, number). Number 0 is the sound sample itself, whose answer the others are held
against. Each case has a folder of its own, a time limit and a memory limit.
"""

from __future__ import annotations

import json
import math
import os
import re
import resource
import shlex
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass
from hashlib import sha256
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from tests.hostile.cases import FINDINGS
from tests.hostile.flags import commands, hostile_call, sound_call, sweep
from tests.hostile.mutators import MUTATORS, generator
from tests.hostile.samples import Refused, Sample, call, samples
from weft.checkpoint.card import record_hashes
from weft.errors import UserError

SECONDS = 20.0  # of a case, less those that it waits for a processor
MEMORY = 2 << 30  # bytes that a case may hold at most
ADDRESSES = 12 << 30  # bytes that it may ask for, so that the machine stays whole whatever happens
FILE = 1 << 30  # bytes of a file that it may write
SOUND = ("same", "changed", "refused")
FAULTS = ("silent", "traceback", "crash", "hang", "memory", "nan", "escape", "unsound")
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")  # but for tab and newline


class NotFinite(Exception):
    """An answer with NaN or an infinite number in it."""


@dataclass(frozen=True)
class Target:
    """One attacked file of a sample, one verb of the command line, or the list of findings."""

    name: str
    reader: str
    run: Callable[[Path, Path, int, int], Any]  # bed, folder of the case, seed, number -> what can be compared
    checked: bool = False
    only: int | None = None  # how many cases there are; None: any number


@dataclass
class Report:
    """What came of a run."""

    counts: dict[str, Counter[str]] = field(default_factory=dict)
    failures: list[tuple[str, str]] = field(default_factory=list)  # outcome, how to do it again
    cases: int = 0
    seconds: float = 0.0


# ------------------------------------------------------------------------------------------------------------- targets


def mutator_of(path: Path, number: int) -> str:
    """The mutator for a file, by its name."""
    usual = {".json": "json", ".safetensors": "safetensors", ".onnx": "protobuf", ".spm": "protobuf", ".zip": "zip"}
    usual |= {".model": "protobuf", ".bin": "ct2", ".gz": "gzip", ".xlsx": "workbook", ".parquet": "bytes"}
    usual |= {".arrow": "bytes", ".npy": "bytes", ".binary": "bytes", ".jsonl": "json-lines"}
    name = usual.get(path.suffix, "lines")
    if name == "json-lines":
        return "lines" if number % 2 else "json-line"
    if name == "lines":
        return ("lines", "numbers", "bytes", "lines")[number % 4]
    return name


def attack(path: Path, seed: int, name: str, number: int, pipes: bool) -> None:
    """Change a file on the disk as the case says, or put something else in its place, `pipes` among them."""
    rng = generator(seed, name, number)
    if rng.random() < 0.03:
        kind = rng.choice(("missing", "empty", "folder", "pipe" if pipes else "missing", "zero", "loop"))
        Path("attack.txt").write_text(f"{path.name}: {kind}\n")
        replace_file(path, kind)
        return
    kind = mutator_of(path, number)
    Path("attack.txt").write_text(f"{path.name}: mutated ({kind})\n")
    data = path.read_bytes()
    if kind == "json-line":
        lines = data.split(b"\n")
        place = rng.randrange(max(1, len(lines) - 1))
        lines[place] = MUTATORS["json"](lines[place], rng)
        changed = b"\n".join(lines)
    else:
        changed = MUTATORS[kind](data, rng)
    path.write_bytes(changed)


def replace_file(path: Path, by: str) -> None:
    """Something else where a file should be."""
    path.unlink()
    if by == "empty":
        path.touch()
    elif by == "folder":
        path.mkdir()
    elif by == "pipe":
        os.mkfifo(path)
    elif by == "zero":
        path.symlink_to("/dev/zero")
    elif by == "loop":
        path.symlink_to(path.name)


def file_target(sample: Sample, file: str) -> Target:
    name = f"{sample.name}/{file}"

    def use(bed: Path, folder: Path, seed: int, number: int) -> Any:
        path = folder / "case"
        shutil.copytree(bed / sample.name, path)
        if number:
            # A pipe that the user names is waited for, as by every program; one among the files of a folder is not.
            attack(path / file, seed, name, number, sample.reader not in ("table", "text", "vectors", "arpa", "recipe"))
        if sample.checked and number % 2:  # an attacker knows how to write hashes: what stands behind them holds too
            with suppress(UserError, OSError):
                record_hashes(path)
        return sample.use(path)

    reader = file if sample.reader in ("model", "run") else f"{sample.reader} {file}"
    if sample.reader in ("table", "text", "vectors", "arpa", "recipe", "cache"):
        reader = f"{sample.reader} {Path(file).suffix.strip('.') or file}"
    if re.match(r"(onnx|ctranslate2)-", sample.reader):
        reader = f"{sample.reader} {file if Path(file).suffix in ('.onnx', '.bin') else '*.json'}"
    reader = re.sub(r"model-0.*", "model.safetensors", re.sub(r"checkpoints/step-\d+/", "checkpoint ", reader))
    checked = sample.checked and file != "weft.json"  # the card holds the hashes, so nothing vouches for itself
    return Target(name, reader.replace("run/", "run "), use, checked)


def flags_target(verb: str, command: Any) -> Target:
    def use(bed: Path, folder: Path, seed: int, number: int) -> Any:
        rng = generator(seed, f"flags/{verb}", number)
        arguments = hostile_call(verb, command, bed, rng) if number else sound_call(verb, bed)
        (folder / "arguments.txt").write_text(shlex.join(arguments), errors="surrogateescape")
        with open(os.devnull) as nothing:
            os.dup2(nothing.fileno(), 0)
        return call(*arguments)

    return Target(f"flags/{verb}", "flags", use)


def sweep_target(verb: str, command: Any) -> Target:
    values = sweep(verb, command)

    def use(bed: Path, folder: Path, seed: int, number: int) -> Any:
        name, value = values[number]
        arguments = [*sound_call(verb, bed), name, value]
        (folder / "arguments.txt").write_text(shlex.join(arguments))
        return call(*arguments)

    return Target(f"sweep/{verb}", "flags", use, only=len(values))


def findings_target() -> Target:
    def use(bed: Path, folder: Path, seed: int, number: int) -> Any:
        finding = list(FINDINGS.values())[number]
        (folder / "attack.txt").write_text(f"{finding.name}\n")
        answer = finding.run(bed, folder / "case")
        assert not finding.refused, f"{finding.name}: accepted"
        return answer

    return Target("findings", "findings", use, only=len(FINDINGS))


def targets(bed: Path, wanted: Sequence[Sample]) -> list[Target]:
    """Every file of every sample, every verb, and the findings."""
    made: list[Target] = []
    for sample in wanted:
        root = bed / sample.name
        for path in sorted(root.glob(sample.files)):
            if path.is_file() and path.name not in ("lock", "report.html") and path.suffix != ".lock":
                made.append(file_target(sample, str(path.relative_to(root))))
    made += [make(verb, command) for verb, command in commands() for make in (flags_target, sweep_target)]
    return [findings_target(), *made]


def schedule(all_targets: Sequence[Target]) -> Iterator[tuple[Target, int]]:
    """The cases in turn, more for a reader of many targets; the sound sample of a target comes first."""
    readers: dict[str, list[Target]] = {}
    for target in all_targets:
        readers.setdefault(target.reader, []).append(target)
    turns = [cycle(group) for group in readers.values()]
    shares = [1 + len(group) // 8 for group in readers.values()]
    done = Counter[str]()
    while any(target.only is None or done[target.name] < target.only for target in all_targets):
        for turn, share in zip(turns, shares, strict=True):
            for target in islice(turn, share):
                number = done[target.name]
                if target.only is None or number < target.only:
                    more = 2 if number == 0 and target.only is None else 1
                    yield from ((target, number + place) for place in range(more))
                    done[target.name] += more


# --------------------------------------------------------------------------------------------------------------- child


def check_finite(value: Any) -> Any:
    """The value as plain JSON with short numbers; NaN and infinities raise."""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise NotFinite(repr(value))
        return float(f"{value:.4g}")
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: check_finite(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {str(key): check_finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [check_finite(inner) for inner in value]
    if hasattr(value, "tolist"):
        return check_finite(value.tolist())
    if isinstance(value, str) and re.search(r"(?<![\w.])-?(nan|NaN|inf|Infinity)(?![\w.])", value):
        for line in value.splitlines():
            with suppress(ValueError):
                check_finite(json.loads(line))
    return value if isinstance(value, str | int | bool | None) else str(value)


def outcome_of(target: Target, bed: Path, folder: Path, seed: int, number: int, sound: str | None) -> dict[str, Any]:
    """Run one case in this process."""
    answer = ""
    try:
        answer = sha256(json.dumps(check_finite(target.run(bed, folder, seed, number))).encode()).hexdigest()
        silent = target.checked and number % 2 == 0
        kind = "same" if sound in (None, answer) else "silent" if silent else "changed"
        detail = "answers otherwise than the sound sample" if kind == "silent" else ""
    except (UserError, Refused) as error:
        kind, detail = "refused", str(error)
    except NotFinite as error:
        kind, detail = "nan", f"answer {error}"
    except MemoryError:
        kind, detail = "memory", traceback.format_exc()[-2500:]
    except (Exception, SystemExit):
        kind, detail = "traceback", traceback.format_exc()[-2500:]
    except BaseException:  # a panic in Rust
        kind, detail = "crash", traceback.format_exc()[-2500:]
    if target.only is None and number == 0 and kind not in ("same",):
        kind, detail = "unsound", f"the sound sample: {kind} {detail}"
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    printed = (folder / "stderr.txt").read_text("utf-8", "replace")[:100_000] + (detail if kind == "refused" else "")
    raw = CONTROL.search(printed.replace("\r", ""))
    if kind in SOUND and raw:
        kind, detail = "escape", f"printed raw: {printed[max(0, raw.start() - 80) : raw.end() + 20]!r}"
    return {"kind": kind, "detail": detail, "answer": answer}


def child(target: Target, bed: Path, folder: Path, seed: int, number: int, sound: str | None, out: int) -> None:
    """The life of a forked process; it never returns."""
    os.setsid()
    for name, value in (("WEFT_CACHE", "cache"), ("TMPDIR", "tmp"), ("HOME", "home")):
        (folder / value).mkdir()
        os.environ[name] = str(folder / value)
    import tempfile

    tempfile.tempdir = None
    (folder / "bed").symlink_to(bed)
    os.chdir(folder)
    for number_of, name in ((1, "stdout.txt"), (2, "stderr.txt")):
        file = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, number_of)
        os.close(file)
    sys.stdout = open(1, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE, FILE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        said = outcome_of(target, bed, folder, seed, number, sound)
        os.write(out, json.dumps(said).encode()[:60_000])
    finally:
        os._exit(0)


# -------------------------------------------------------------------------------------------------------------- parent


@dataclass
class Running:
    """A case under way."""

    target: Target
    number: int
    pid: int
    pipe: int
    folder: Path
    begin: float
    killed: str | None = None


def start(target: Target, number: int, bed: Path, scratch: Path, seed: int, sound: str | None) -> Running:
    folder = scratch / f"{re.sub(r'[^A-Za-z0-9.]+', '-', target.name)}-{number}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        child(target, bed, folder, seed, number, sound, writer)
    os.close(writer)
    return Running(target, number, pid, reader, folder, time.monotonic())


def watch(running: Running) -> None:
    """Kill a case, and what it has started, when it is past its time or its memory."""
    if running.killed:
        return
    seconds = time.monotonic() - running.begin
    if seconds > SECONDS and seconds - _waited(running.pid) > SECONDS:
        running.killed = "hang"
    elif _peak(running.pid) > MEMORY:
        running.killed = "memory"
    if running.killed:
        with suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        with suppress(ProcessLookupError):
            os.kill(running.pid, signal.SIGKILL)


def _waited(pid: int) -> float:
    """Seconds that a process and those it started were ready but had no processor: the machine is busy with others."""
    waited = 0.0
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError, ValueError):
            session = int((folder / "stat").read_text().rpartition(")")[2].split()[3])
            if session == pid:
                waited += int((folder / "schedstat").read_text().split()[1]) / 1e9
    return waited


def _peak(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024
    except (OSError, IndexError, ValueError):
        return 0


def ended(running: Running, status: int) -> dict[str, Any]:
    """What came of a case whose process has ended."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(running.pid, signal.SIGKILL)  # what it may have left running
    data = b""
    while part := os.read(running.pipe, 1 << 16):
        data += part
    os.close(running.pipe)
    if running.killed:
        limit = f"{SECONDS:.0f} s" if running.killed == "hang" else f"{MEMORY >> 20} MiB"
        return {"kind": running.killed, "detail": f"past {limit}", "answer": ""}
    if os.WIFSIGNALED(status):
        return {"kind": "crash", "detail": signal.Signals(os.WTERMSIG(status)).name, "answer": ""}
    try:
        return dict(json.loads(data))
    except ValueError:
        return {"kind": "crash", "detail": f"ended without an answer, status {status}", "answer": ""}


def run_cases(
    all_targets: Sequence[Target],
    bed: Path,
    scratch: Path,
    *,
    seed: int,
    seconds: float = math.inf,
    failures: Path | None = None,
    processes: int = 2,
    on_failure: Callable[[str], None] = print,
    order: Iterator[tuple[Target, int]] | None = None,
) -> Report:
    """Cases in turn until the time is over; every failing input is kept, with a line that does it again."""
    report, sound, running = Report(), dict[str, str](), list[Running]()
    cases = schedule(all_targets) if order is None else order
    begin = time.monotonic()
    waiting: list[tuple[Target, int]] = []
    while True:
        while len(running) < processes and time.monotonic() - begin < seconds:
            following = _next_ready(waiting, cases, running)
            if following is None:
                break
            target, number = following
            running.append(start(target, number, bed, scratch, seed, sound.get(target.name)))
        if not running:
            break
        for each in list(running):
            pid, status = os.waitpid(each.pid, os.WNOHANG)
            if not pid:
                watch(each)
                continue
            running.remove(each)
            found = ended(each, status)
            report.cases += 1
            report.counts.setdefault(each.target.reader, Counter())[found["kind"]] += 1
            if each.number == 0 and found["kind"] == "same" and each.target.only is None:
                sound[each.target.name] = found["answer"]
            if found["kind"] in FAULTS:
                _keep(each, found, seed, failures, report, on_failure)
            shutil.rmtree(each.folder, ignore_errors=True)
        time.sleep(0.002)
    report.seconds = time.monotonic() - begin
    return report


def _next_ready(
    waiting: list[tuple[Target, int]], cases: Iterator[tuple[Target, int]], running: Sequence[Running]
) -> tuple[Target, int] | None:
    """The next case whose sound sample has been answered."""
    for place, (target, _) in enumerate(waiting):
        if not any(each.target is target for each in running):
            return waiting.pop(place)
    while (following := next(cases, None)) is not None:
        if following[1] and any(each.target is following[0] and each.number == 0 for each in running):
            waiting.append(following)
            continue
        return following
    return None


def _keep(
    each: Running,
    found: dict[str, Any],
    seed: int,
    failures: Path | None,
    report: Report,
    on_failure: Callable[[str], None],
) -> None:
    """Keep the input of a failing case and say how to do it again."""
    again = f"python -m tests.hostile --seed {seed} --replay {shlex.quote(each.target.name)}:{each.number}"
    detail = found["detail"].strip()
    if failures is not None:
        place = failures / f"{found['kind']}-{each.folder.name}"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        if (each.folder / "case").is_dir():
            with suppress(OSError, shutil.Error):
                shutil.copytree(each.folder / "case", place / "case", symlinks=True, ignore=_only_plain)
        for name in ("arguments.txt", "attack.txt", "stderr.txt"):
            if (each.folder / name).is_file():
                shutil.copy(each.folder / name, place / name)
        (place / "replay.txt").write_text(f"{again}\n\n{detail}\n", errors="backslashreplace")
    report.failures.append((found["kind"], again))
    on_failure(
        f"{found['kind']}: {each.target.name} case {each.number}: {(detail.splitlines() or [''])[-1]}\n  {again}"
    )


def _only_plain(folder: str, names: list[str]) -> set[str]:
    return {name for name in names if not (Path(folder, name).is_file() or Path(folder, name).is_dir())}


# ----------------------------------------------------------------------------------------------------------------- bed


def make_bed(bed: Path, wanted: Sequence[Sample]) -> None:
    """Make the samples, in a child, so that this process stays as it was loaded."""
    pid = os.fork()
    if pid == 0:
        try:
            quiet = os.open(bed.parent / "bed.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(quiet, 2)
            os.environ["WEFT_CACHE"] = str(bed / "cache-of-samples")
            for sample in wanted:
                sample.make(bed / sample.name)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert status == 0, (bed.parent / "bed.log").read_text()[-3000:]


def load_libraries() -> None:
    """What a child needs, loaded once; none of it may have begun to work, since threads do not survive a fork."""
    import importlib

    import torch

    torch.set_num_threads(1)
    names = "weft.tasks.model weft.runs.finetune weft.runs.pretrain weft.runs.ladder weft.runs.driver "
    names += "weft.exporters.export weft.quantization.quantize weft.pruning.prune weft.distillation.distill "
    names += "weft.tasks.seq2seq weft.tasks.word_vectors torch._dynamo onnxruntime onnx "
    for name in f"{names} ctranslate2 pyarrow.parquet pyarrow.feather openpyxl sentencepiece sklearn sacrebleu".split():
        with suppress(ImportError):
            importlib.import_module(name)


def quick_samples() -> list[Sample]:
    return [sample for sample in samples() if sample.quick]

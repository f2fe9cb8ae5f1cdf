"""`weft bench`: how fast a model is on this machine, by each backend and beside other libraries."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

from weft.cli import inputs
from weft.cli.options import READING, TABLE, Flags, Folder, Given, Placing, flag
from weft.config import comma_list
from weft.errors import UserError, escaped, one_of, refuse
from weft.progress import to_stderr

MODES = ("encode", "generate", "train")


def bench(
    folder: Folder,
    rows: Annotated[Given, Flags(TABLE, only=("files", *READING))],
    runtime: Placing,
    mode: Annotated[str, flag("What is measured.", "[encode|generate|train]")] = "encode",
    lengths: Annotated[
        str | None, flag("Tokens of a text, or mixed (256 texts). Default: 16,128,mixed; train: 128.", "A,B,...")
    ] = None,
    batch: Annotated[str | None, flag("Texts at a time. Default: 1,32; generate: 1,8; train: 8.", "A,B,...")] = None,
    backends: Annotated[str | None, flag("Backends to try. Default: all that can run the model.", "A,B,...")] = None,
    against: Annotated[
        str | None,
        flag("Libraries beside it, of transformers, sentence-transformers, onnxruntime, ctranslate2.", "A,B,..."),
    ] = None,
    task: Annotated[str | None, flag("The task of a folder that has several: embed.", "TASK")] = None,
    max_tokens: Annotated[int, flag("--mode generate: tokens for each prompt.")] = 64,
    seconds: Annotated[float, flag("Time limit for each backend and length.", "SECONDS")] = 10.0,
    memory: Annotated[bool, flag("Measure memory, with each backend in a process of its own.")] = True,
    keep: Annotated[bool, flag("Store the choice, which weft predict, answer, embed and rank then use.")] = True,
    plot: Annotated[Path | None, flag("Draw the figures into this .svg or .png file.", "FILE")] = None,
    out: Annotated[Path | None, flag("Also write all figures to this .json file.", "FILE", "--json")] = None,
) -> None:
    """Measure a model on this machine, and choose the backend that answers fastest.

    Every backend whose answers agree with plain torch is timed in turns, on texts of given lengths or on your own. The
    fastest is stored in the cache for this CPU, number of threads, versions and weights; weft predict, answer, embed,
    rank and weft.load then use it. --backend torch gives the plain path.

    Example: weft bench runs/reviews
    Example: weft bench runs/reviews --data reviews.csv --against transformers,onnxruntime
    Example: weft bench runs/gpt --mode generate --batch 1,8 --json speed.json
    """
    one_of(mode, MODES, "--mode")
    data = rows.pop("files", None)
    refuse(
        (not 0 < seconds <= 3600, f"--seconds must be above 0 and at most 3600, not {seconds:g}"),
        (not 1 <= max_tokens <= 1 << 16, f"--max-tokens must be between 1 and {1 << 16}, not {max_tokens}"),
        (
            bool(data) and lengths is not None,
            "give --data or --lengths, not both: your texts have lengths of their own",
        ),
        (mode != "encode" and bool(data or against or backends), f"--mode {mode} takes no data, backends or peers"),
        (out is not None and out.suffix != ".json", f"{out}: figures are written as .json"),
    )
    sizes = [
        _number(each, "--batch") for each in comma_list(batch or {"encode": "1,32", "generate": "1,8"}.get(mode, "8"))
    ]
    inputs.check_rows(rows, data)
    inputs.check_models(folder, **runtime)
    report = import_module("weft.bench.report")
    report.check_plot(plot)
    device = runtime.get("device") or ("cpu" if mode == "encode" else inputs.best_device())
    if mode == "encode" and device != "cpu":
        raise UserError("--mode encode measures the backends of a CPU: give --device cpu")
    model = inputs.load_model(folder, task, **{**runtime, "device": device})
    if mode == "encode":
        table = inputs.table_of(data, rows, on_bad_row="skip", split="test") if data else None
        options = {"backends": backends, "against": against}
        given: dict[str, Any] = {name: comma_list(value) for name, value in options.items() if value is not None}
        _encode(model, table, lengths, sizes, plot, out, seconds=seconds, memory=memory, keep=keep, **given)
        return
    work, encode = import_module("weft.bench.work"), import_module("weft.bench.encode")
    if mode == "generate":
        speeds = work.generate_speeds(model, sizes, max_tokens, seconds)
    else:
        numbers = [_number(each, "--lengths") for each in comma_list(lengths or "128")]
        speeds = work.train_speeds(model, sizes, numbers, work.precision_of(model), seconds)
    machine = {**encode.machine_of(), "device": str(model.opened.device)}
    print(_about(machine))
    print(inputs.table(report.WORK_HEADER, report.work_rows(speeds)))
    _write(report.work_values(mode, folder, machine, speeds), report.work_bars(mode, speeds), folder, plot, out)


def _encode(
    model: Any, table: Any, lengths: str | None, sizes: list[int], plot: Path | None, out: Path | None, **options: Any
) -> None:
    encode, report = import_module("weft.bench.encode"), import_module("weft.bench.report")
    texts = import_module("weft.bench.texts")
    encode.check_model(model)
    if table is not None:
        profiles = texts.own_profiles(model, table, max(sizes))
    else:
        asked = texts.usual_lengths(model) if lengths is None else comma_list(lengths)
        profiles = texts.profiles_of(model, asked, sizes)
    result = encode.encode_report(model, profiles, log=to_stderr, **options)
    print(_about(result.machine))
    print(inputs.table(report.HEADER, report.encode_rows(result)))
    for line in report.refused_lines(result):
        print(escaped(line))
    choice = result.choice
    gain = "nothing is faster" if choice.backend == "torch" else f"{choice.faster:.2f} x torch over all lengths"
    print(f"chosen: {choice.backend} ({gain})")
    if result.path is not None:
        print(escaped(f"stored in {result.path}; weft predict, answer, embed, rank and weft.load use it"))
    _write(report.encode_values(result), report.bars_of(result), result.model, plot, out)


def _about(machine: dict[str, Any]) -> str:
    """The machine, in one line."""
    threads, versions = (
        machine["threads"],
        [f"{name} {machine[name]}" for name in ("torch", "onnxruntime") if machine[name]],
    )
    where = f", {machine['device']}" if machine.get("device", "cpu") != "cpu" else ""
    return escaped(f"{machine['cpu']}, {threads} thread{'s' * (threads != 1)}{where}, {', '.join(versions)}")


def _write(values: dict[str, Any], bars: Any, title: str, plot: Path | None, out: Path | None) -> None:
    report = import_module("weft.bench.report")
    if out is not None:
        report.write_values(out, values)
        print(escaped(f"figures: {out}"))
    if plot is not None:
        report.write_plot(plot, title, bars)
        print(escaped(f"plot: {plot}"))


def _number(text: str, flag_name: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1 << 16:
        raise UserError(f"{flag_name}: {text!r} is not a number between 1 and {1 << 16}")
    return int(text)

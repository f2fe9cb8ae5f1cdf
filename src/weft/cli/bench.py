"""`weft bench`: how fast a model is on this machine, by each backend and beside other libraries."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any

from weft.cli import inputs
from weft.cli.options import READING, TABLE, Flags, Folder, Given, Placing, flag
from weft.errors import UserError, escaped
from weft.progress import to_stderr


def bench(
    folder: Folder,
    rows: Annotated[Given, Flags(TABLE, only=("files", *READING))],
    runtime: Placing,
    options: Annotated[Given, Flags("weft.bench.options:BenchOptions")],
    task: Annotated[str | None, flag("Task of a folder that has several, such as embed.", "TASK")] = None,
) -> None:
    """Measure the backends of a model on this machine, and store the fastest.

    Backends whose answers agree with plain PyTorch are timed in turns, on texts of given lengths or on your own. The
    fastest is stored in the cache for this CPU, number of threads, versions and weights; weft predict, answer, embed,
    rank, generate, translate, serve and weft.load then use it. --backend torch runs plain PyTorch.

    Example: weft bench runs/reviews
    Example: weft bench runs/reviews --data reviews.csv --against transformers,onnxruntime
    Example: weft bench runs/gpt --mode generate --batch 1,8 --json speed.json
    Example: weft bench runs/bert --mode train --against transformers
    """
    wanted = import_module("weft.bench.options").BenchOptions(**options)
    data = rows.pop("files", None)
    wanted.check(bool(data))
    inputs.check_rows(rows, data)
    inputs.check_models(folder, **runtime)
    import_module("weft.bench.report").check_plot(wanted.plot)
    model, mode = _opened(folder, task, runtime, wanted.mode, bool(data))
    more: dict[str, Any] = {"seconds": wanted.seconds, "memory": wanted.memory, "log": to_stderr}
    more |= {} if wanted.against is None else {"against": wanted.against}
    if mode == "train":
        _show(_train(model, wanted, **more), wanted)
        return
    more |= {"backends": wanted.backends, "keep": wanted.keep}
    if mode == "generate":
        _show(_generate(model, wanted, **more), wanted)
        return
    table = inputs.table_of(data, rows, on_bad_row="skip", split="test") if data else None
    _show(_encode(model, table, wanted, **more), wanted)


def _opened(folder: str, task: str | None, runtime: Given, mode: str | None, has_data: bool) -> tuple[Any, str]:
    """The model, and what is measured of it; backends that encode are those of a CPU."""
    model = inputs.load_model(folder, task, **{**runtime, "device": "cpu"})
    writes = import_module("weft.backends.predictors").generates(model.opened, model.task_object)
    mode = mode or ("generate" if writes and not has_data else "encode")
    device = runtime.get("device")
    if mode == "encode" and device not in (None, "cpu"):
        raise UserError("--mode encode measures the backends of a CPU: give --device cpu")
    return model if mode == "encode" else model.to(device or inputs.best_device()), mode


def _encode(model: Any, table: Any, wanted: Any, **more: Any) -> Any:
    encode, texts = import_module("weft.bench.encode"), import_module("weft.bench.texts")
    encode.check_model(model)
    batches = wanted.batches("encode")
    if table is not None:
        profiles = texts.own_profiles(model, table, max(batches))
    else:
        profiles = texts.profiles_of(model, wanted.lengths or texts.usual_lengths(model), batches)
    return encode.encode_report(model, profiles, **more)


def _generate(model: Any, wanted: Any, **more: Any) -> Any:
    writing = import_module("weft.bench.writing")
    writing.check_writer(model)
    max_tokens = wanted.max_tokens or min(64, writing.room_of(model))
    profiles = writing.writing_profiles(model, wanted.batches("generate"), max_tokens)
    return writing.writing_report(model, profiles, max_tokens, **more)


def _train(model: Any, wanted: Any, **more: Any) -> Any:
    training, number = import_module("weft.bench.training"), import_module("weft.bench.options").number
    lengths = [number(each, "--lengths") for each in wanted.lengths or ["128"]]
    return training.training_report(model, wanted.batches("train"), lengths, **more)


def _show(result: Any, wanted: Any) -> None:
    """The table, the choice that was made, and the files asked for."""
    report, choice = import_module("weft.bench.report"), result.choice
    print(_about(result.machine))
    print(inputs.table(*report.table_of(result)))
    if any(not each.ours and each.refused is None for each in result.contestants):
        print(f"{report.LIBRARY}another library, without Weft")
    for each in result.contestants:
        if each.refused is not None:
            print(escaped(f"{each.name} is refused: {each.refused}"))
    if choice is not None:
        gain = "nothing is faster" if choice.backend == "torch" else f"{choice.faster:.2f} x torch over all lengths"
        print(f"chosen: {choice.backend} ({gain})")
    if result.path is not None:
        verbs = "generate, translate" if result.mode == "generate" else "predict, answer, embed, rank"
        print(escaped(f"stored in {result.path}; weft {verbs} and weft.load use it"))
    if wanted.out is not None:
        report.write_values(wanted.out, report.values_of(result))
        print(escaped(f"figures: {wanted.out}"))
    if wanted.plot is not None:
        report.write_plot(wanted.plot, result.model, report.bars_of(result))
        print(escaped(f"plot: {wanted.plot}"))


def _about(machine: dict[str, Any]) -> str:
    """The machine, in one line."""
    threads = machine["threads"]
    versions = [f"{name} {machine[name]}" for name in ("torch", "onnxruntime", "ctranslate2") if machine.get(name)]
    where = f", {machine['device']}" if machine.get("device", "cpu") != "cpu" else ""
    return escaped(f"{machine['cpu']}, {threads} thread{'s' * (threads != 1)}{where}, {', '.join(versions)}")

"""`weft evaluate`, `compare`, `perplexity`, `prune`, `quantize`, `export`: models measured, smaller, or exported."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import weft
from weft.cli import inputs, late
from weft.cli.inputs import table
from weft.cli.options import (
    READING,
    TABLE,
    Flags,
    Folder,
    Given,
    Json,
    LabeledRows,
    MoreFiles,
    Opening,
    OutFolder,
    Placing,
    Runtime,
    argument,
    flag,
)
from weft.config import comma_list
from weft.errors import UserError, escaped
from weft.progress import live as progress
from weft.progress import to_stderr

Seconds = Annotated[float, flag("Time limit of each speed measurement.", "SECONDS")]
KINDS = "onnx-fp32, onnx-fp16, onnx-int8, onnx-int8-static, onnx-int4, ctranslate2-fp32, ctranslate2-int8, bf16"
TimedTexts = Annotated[int, flag("Texts to time at most; all are evaluated.")]


def _rows(rows: Given, *more: Any, needed: bool = False) -> Given:
    """The options of a table as functions take them, with its files as `data`, all of them there."""
    data, sides = rows.pop("files", None), (rows.get("source"), rows.get("target"))
    if needed and not (data or any(sides)):
        raise UserError("no data: give --data FILE, or --source and --target for models that generate text")
    inputs.check_rows(rows, data, *more, *sides)
    return {"data": data, **rows}


def _print_report(report: Any, as_json: bool, *lines: str, measured: Any = None) -> None:
    """A report as JSON, or these lines and its tables."""
    if as_json:
        print(json.dumps(report.values(), indent=2, ensure_ascii=False))
        return
    for line in lines:
        print(line)
    for title, header, cells in report.tables():
        print(f"\n{title}\n{table(header, cells)}")
        if title.startswith("Costs") and measured is not None:
            print(measured)


def evaluate(
    folder: Folder,
    rows: LabeledRows,
    runtime: Runtime,
    beam_size: Annotated[int | None, flag("Beam size of a model that generates text. Default: 5.")] = None,
    origins: Annotated[
        int | None, flag("Back-test forecasts from the last N origins of each series. Default: all of them.")
    ] = None,
    out: Annotated[Path | None, flag("Write an HTML page with all tables.")] = None,
    as_json: Json = False,
) -> None:
    """Evaluate a model on labeled data: scores with intervals, a table by label, and the worst mistakes.

    Example: weft evaluate runs/reviews --data test.csv
    Example: weft evaluate runs/en-de --source test.en --target test.de
    Example: weft evaluate runs/fc --data test.csv --origins 12
    """
    rows = _rows(rows, needed=True)
    rows |= {} if origins is None else {"origins": origins}
    report = inputs.load_model(folder, **runtime).evaluate(beam_size=beam_size, **rows, progress=progress)
    if out is not None:
        report.write(out)
    signature = [f"BLEU: {report.signature}"] if report.signature else []
    _print_report(report, as_json, escaped(f"{report.data}: {report.reading}"), *signature)


def compare(
    folders: Annotated[list[str], argument("MODEL...", "Model folders; all are compared with the first.")],
    rows: LabeledRows,
    runtime: Placing,
    task: Annotated[str | None, flag("The task of models that have several: embed.", "TASK")] = None,
    max_drop: Annotated[float | None, flag("Refuse a model whose score is lower by more than this.", "POINTS")] = None,
    out: Annotated[Path | None, flag("Write an HTML page with tables and charts, or all figures as .json.")] = None,
    as_json: Json = False,
    texts: TimedTexts = 256,
    seconds: Seconds = 20.0,
    costs: Annotated[bool, flag("Also measure size, speed and memory.")] = True,
    memory: Annotated[bool, flag("Measure memory, with each model in a process of its own.")] = True,
) -> None:
    """Compare models on the same data: scores with paired intervals, agreement, size, speed, memory.

    The exit status is 2, with a line for the first fault, when a model is damaged (answers that are not finite, other
    labels, one answer for everything, or no better than chance) or loses more than --max-drop.

    Example: weft compare runs/reviews runs/reviews-small --data test.csv --out compare.html
    Example: weft compare runs/translator runs/translator-small --source test.en --target test.de
    """
    rows = _rows(rows, needed=True)
    inputs.check_device(runtime.get("device"))
    inputs.check_models(*folders, **runtime)
    report = weft.compare(
        folders, task=task, max_drop=max_drop, costs=costs, memory=memory, texts=texts, seconds=seconds,
        **rows, **{"device": inputs.best_device(), **runtime}, progress=progress,
    )  # fmt: skip
    if out is not None:
        report.write(out)
    unlabeled = [] if report.labeled else ["The data has no labels: models are only compared with the first."]
    _print_report(report, as_json, escaped(f"{report.data}: {report.reading}"), *unlabeled, measured=report.measured)
    if report.refused:
        more = f" ({len(report.refused) - 1} more)" if len(report.refused) > 1 else ""
        raise UserError(report.refused[0] + more)


def perplexity(
    folder: Folder,
    text: Annotated[Given, Flags("weft.runs.recipes:TextSection", only=("files", "column"))],
    runtime: Runtime,
    more: MoreFiles = None,
    length: Annotated[int | None, flag("Tokens per window. Default: the model's context.")] = None,
    stride: Annotated[int | None, flag("Tokens from one window to the next. Default: half the length.")] = None,
    memory: Annotated[
        int | None,
        flag(
            "Memory of a transformer-xl or xlnet: tokens before each segment that it sees, also more than in training. "
            "Default: as in training.",
            "TOKENS",
        ),
    ] = None,
    detokenize: Annotated[str | None, flag("Undo the tokenization of a published corpus.", "[wikitext|ptb]")] = None,
    documents: Annotated[
        str | None, flag("What one document is. Default: as in training.", "[auto|line|block|file]")
    ] = None,
    rows: Annotated[str | None, flag("Read on, or each alone. Default: as in training.", "[stream|documents]")] = None,
    count_ends: Annotated[bool, flag("Count the end of each document as a token, as training does.")] = True,
    jsonl: Annotated[bool, flag("Print one JSON object.", None, "--jsonl")] = False,
) -> None:
    """Measure the perplexity of a language model on text: per token, per word, and in bits per byte.

    The text is read like the training text, with the ends of documents as tokens, so that this is the perplexity that
    weft pretrain prints for --dev. A window slides over the text; each token is predicted once, after at least length
    - stride tokens. Words and bytes are those of the text as given, before --detokenize.

    Example: weft perplexity runs/gpt --text corpus/weaver.txt --stride 16
    """
    if "files" not in text:
        raise UserError("no text: give --text FILE")
    files = late.records.find_files([*text.pop("files"), *(more or [])])
    model = inputs.load_model(folder, "complete", **runtime)
    trained = model.opened.card.text
    read_as = documents or (trained.documents if trained is not None else "file")
    stream = rows == "stream" or (rows is None and trained is not None and trained.rows in ("stream", "carried"))
    with progress("reading", "tokens") as tick:
        result = late.perplexity.perplexity(
            model.opened,
            late.perplexity.read_documents(files, documents=read_as, **text),
            length=length, stride=stride, memory=memory, detokenize=detokenize, stream=stream, count_ends=count_ends,
            on_progress=tick,
        )  # fmt: skip
    if jsonl:
        inputs.print_json(_finite({**asdict(result), "documents": read_as, "count_ends": count_ends}))
        return
    chosen = "as given" if documents is not None else "as in training" if trained is not None else "by default"
    _print_perplexity(result, detokenize, f"{read_as} ({chosen})")


def _print_perplexity(result: Any, detokenize: str | None, documents: str) -> None:
    scores = {
        "perplexity per token": result.per_token,
        "perplexity per word": result.per_word,
        "bits per byte": result.bits_per_byte,
        "bits per byte read": None if detokenize is None else result.bits_per_read_byte,
    }
    inputs.print_scores({name: score for name, score in scores.items() if score is not None})
    windows = f"{result.n_windows:,} windows of {result.length} tokens, {result.stride} apart"
    if result.carried:
        state = "state" if result.memory is None else f"memory of {result.memory} tokens"
        windows = f"{result.n_windows:,} stream{'s' * (result.n_windows > 1)} with a carried {state}"
    ends = f"the {result.n_ends:,} ends of documents among them" if result.n_ends else "ends of documents not counted"
    print(
        f"{result.n_tokens:,} tokens ({ends}), {result.n_words:,} words, {result.n_bytes:,} bytes, "
        f"{result.n_documents:,} document{'s' * (result.n_documents > 1)}; {windows}"
    )
    print(f"documents: {documents}, {'each read after those before it' if result.stream else 'each read on its own'}")
    if result.impossible:
        print(f"{result.impossible:,} of the tokens had probability 0, so that the perplexity is infinite")
    if detokenize is not None:
        print(f"read as {result.n_read_bytes:,} bytes after --detokenize {detokenize}")
    if result.begin is None:
        print(f"{result.left_out:,} first tokens left out: this vocabulary has no token that begins a text")
    else:
        print(f"the first token of a document was predicted after {result.begin}")


def _finite(value: Any) -> Any:
    """JSON has no infinity: a number that is too large for one is null."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def prune(
    folder: Folder,
    rows: LabeledRows,
    runtime: Placing,
    options: Annotated[Given, Flags("weft.pruning.options:PruneOptions")],
    out: Annotated[Path | None, flag("Model folder to write, new or empty.", "FOLDER")] = None,
    as_json: Json = False,
) -> None:
    """Remove layers, heads or tokens from a model, and measure the loss.

    With fewer layers or tokens transformers still opens the folder; with fewer heads only Weft does. weft finetune or
    weft distill recover part of the loss.

    Example: weft prune runs/reviews --layers 6 --heads 0.3 --data dev.csv --max-drop 1 --out runs/reviews-pruned
    Example: weft prune runs/reviews --vocabulary 8000 --text unlabeled.txt --out runs/reviews-8k
    """
    late.options.PruneOptions(**options).check(rows=bool({"files", "source", "target"} & set(rows)))
    inputs.check_written(folder, out, runtime)
    rows = _rows(rows, options.get("text"))
    device = {"device": inputs.best_device(), **runtime}
    report = weft.prune(folder, out=out, **options, **rows, **device, progress=progress)
    _print_report(report, as_json, *report.lines())


def quantize(
    folder: Folder,
    out: OutFolder,
    rows: Annotated[Given, Flags(TABLE, only=("files", "source", "target", *READING))],
    runtime: Opening,
    max_drop: Annotated[float, flag("Largest loss of score: 0.5 is from 0.920 to 0.915.", "POINTS")] = 0.5,
    prefer: Annotated[str, flag("Which of the candidates that pass to write.", "[fast|small]")] = "fast",
    kinds: Annotated[str | None, flag(f"Candidates, of {KINDS}.", "A,B,...")] = None,
    texts: TimedTexts = 256,
    seconds: Seconds = 20.0,
) -> None:
    """Make a model smaller and faster, if it stays as good.

    Each candidate is evaluated on your data and timed beside the model. It is refused when it loses more than
    --max-drop points and the paired 95 % interval of the loss lies above --max-drop too; a loss within noise passes,
    with a warning. The fastest of those that pass (with --prefer small, the smallest) is written. When none passes,
    nothing is written and the exit status is 2. The folder has a report in run/quantize.html.

    Example: weft quantize runs/reviews --data dev.csv --max-drop 0.5 --out runs/reviews-int8
    """
    inputs.check_written(folder, out, runtime)
    rows = _rows(rows)

    def show(report: late.quantize.Quantized) -> None:
        title, header, cells = report.comparison.tables()[0]
        read = escaped(f"{report.comparison.data}: {report.comparison.reading}")
        print(f"{report.summary()}\n\n{read}\n\n{title}\n{table(header, cells)}\n\nThe gate\n{table(*report.rows())}")

    try:
        report = weft.quantize(
            folder, out=out, max_drop=max_drop, prefer=prefer, kinds=None if kinds is None else comma_list(kinds),
            texts=texts, seconds=seconds, **rows, **runtime, progress=progress,
        )  # fmt: skip
    except late.quantize.Refused as refused:
        show(refused.result)
        raise
    show(report)
    for line in report.warnings():
        to_stderr(f"weft: warning: {line}")
    print(f"\n{out}: {report.chosen}")


def export(
    folder: Folder,
    out: OutFolder,
    rows: Annotated[Given, Flags(TABLE, only=("files", "columns"))],
    runtime: Opening,
    to: Annotated[str, flag("The engine.", "[onnx|ctranslate2|transformers]")] = "onnx",
    task: Annotated[str | None, flag("The task of a folder that has several: embed, fill.", "TASK")] = None,
) -> None:
    """Write a model for ONNX Runtime, CTranslate2 or transformers, if its answers stay the same.

    Answers are compared on --data, or on made-up texts. ONNX is for encoders, CTranslate2 for encoders and for models
    that generate. weft.load and weft predict open the folder like any other, on the CPU.

    Example: weft export runs/reviews --to onnx --data dev.csv --out runs/reviews-onnx
    Example: weft export runs/translator --to ctranslate2 --out runs/translator-ct2
    """
    inputs.check_written(folder, out, runtime)
    rows = _rows(rows)
    report = weft.export(folder, to, out=out, task=task, **rows, **runtime)
    print(
        f"{report.folder}: {report.bytes / 1e6:.1f} MB for {report.to}; {report.texts:,} inputs: the same answers, "
        f"largest difference {report.max_difference:.1e} of the largest score"
    )

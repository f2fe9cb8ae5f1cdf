"""`weft finetune`, `weft answer`, `weft evaluate`: understanding tasks from rows to answers."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from weft.cli.checks import BAD_ROWS, check_choices, check_device, check_reading, check_run
from weft.cli.models import Online, Trust
from weft.cli.show import leaving_at_once, progress, sections_of, table
from weft.cli.words import Device, Folder, Jsonl, opened
from weft.errors import UserError, escaped

Columns = Annotated[
    list[str] | None,
    typer.Option("--column", help="text=NAME, label=NAME, source=NAME ...: what a file calls a column; repeatable."),
]
Names = Annotated[str | None, typer.Option(help="Of a file without a header line: the names of its columns, a,b,c.")]
Format = Annotated[
    str | None, typer.Option(help="csv, tsv, json, jsonl, parquet, arrow, xlsx, conll, squad; else by name or content.")
]
Delimiter = Annotated[str | None, typer.Option(help="Between the columns of a table; else found by its lines.")]
Encoding = Annotated[str | None, typer.Option(help="utf-8, cp1252, utf-16 ...; else by the bytes of the file.")]
OnBadRow = Annotated[str | None, typer.Option(help="stop, or skip and count.")]


def finetune(
    recipe: Annotated[str | None, typer.Argument(help="A recipe: a TOML file, or one of the package.")] = None,
    task: Annotated[str | None, typer.Option(help="classify, pair, tag, answer, translate or another.")] = None,
    data: Annotated[list[str] | None, typer.Option(help="Rows to learn from; may be repeated.")] = None,
    dev: Annotated[
        list[str] | None, typer.Option(help="Rows to judge by; else a tenth of the others, noted in run/split.json.")
    ] = None,
    source: Annotated[list[str] | None, typer.Option(help="Texts to write from, one on each line ...")] = None,
    target: Annotated[list[str] | None, typer.Option(help="... and what to write, line for line.")] = None,
    dev_source: Annotated[list[str] | None, typer.Option(help="Such texts to judge by ...")] = None,
    dev_target: Annotated[list[str] | None, typer.Option(help="... and what is right there, line for line.")] = None,
    vocabularies: Annotated[
        str | None, typer.Option(help="One vocabulary for both sides, joint, or one for each, apart; joint.")
    ] = None,
    prefix: Annotated[str | None, typer.Option(help='Before each text: "translate English to German: " (T5).')] = None,
    base: Annotated[
        str | None, typer.Option(help="The model to begin with: a folder, or a text file of word vectors.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="From scratch: a family or a published size (weft models); by the task.")
    ] = None,
    size: Annotated[str | None, typer.Option(help="LAYERSxWIDTH such as 4x256.")] = None,
    vectors: Annotated[str | None, typer.Option(help="Word vectors to begin --model from: a folder or file.")] = None,
    out: Annotated[str | None, typer.Option(help="The run folder to write; new or empty.")] = None,
    column: Columns = None,
    names: Names = None,
    format: Format = None,
    delimiter: Delimiter = None,
    encoding: Encoding = None,
    on_bad_row: OnBadRow = None,
    labels: Annotated[
        str | None, typer.Option(help="The labels in their order: a,b,c; else those of the rows.")
    ] = None,
    class_weights: Annotated[str | None, typer.Option(help="balanced: rows of rare labels count more.")] = None,
    baseline: Annotated[
        bool | None, typer.Option(help="Train a linear model (TF-IDF, frozen embeddings) beside and compare; on.")
    ] = None,
    metric: Annotated[str | None, typer.Option(help="The score that decides which model is kept.")] = None,
    freeze: Annotated[str | None, typer.Option(help="encoder, tokens, or all-but-2: what is left as it is.")] = None,
    mix: Annotated[bool | None, typer.Option(help="Let the head read a learned mix of all layers.")] = None,
    words: Annotated[float | None, typer.Option(help="How much next words count beside the task (GPT): 0.5.")] = None,
    length: Annotated[int | None, typer.Option(help="Tokens of a window; as the model's context.")] = None,
    stride: Annotated[int | None, typer.Option(help="Tokens from one window to the next.")] = None,
    long: Annotated[str | None, typer.Option(help="windows (longer texts are read whole), or cut.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Times through the rows; 3, more of few rows.")] = None,
    steps: Annotated[int | None, typer.Option(help="Updates of the weights.")] = None,
    batch: Annotated[int | None, typer.Option(help="Rows in a step; 8 to 32 by their number.")] = None,
    learning_rate: Annotated[
        float | None,
        typer.Option(
            "--rate", "--lr", "--learning-rate", help="The highest rate; 5e-5 from a base, else by the width."
        ),
    ] = None,
    layer_decay: Annotated[
        float | None, typer.Option(help="The rate of each layer as a share of the one above, such as 0.9.")
    ] = None,
    precision: Annotated[str | None, typer.Option(help="fp32, bf16 or fp16; bf16 on a GPU that has it.")] = None,
    patience: Annotated[int | None, typer.Option(help="Stop after so many evaluations without a better one.")] = None,
    seed: Annotated[
        int | None, typer.Option(help="Decides new heads, order and dropout; 0. Held-out rows: data.split.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="Train with so many seeds; mean and spread are printed.")] = None,
    device: Device = None,
    tensorboard: Annotated[bool | None, typer.Option(help="Write TensorBoard events too.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="SECTION.KEY=VALUE of the recipe, such as training.ema=0.99.")
    ] = None,
    online: Online = False,
) -> None:
    """Fine-tune a model on rows of your data.

    The run folder is the model's folder, with labels, windows, thresholds and scores in it. Ctrl-C saves; weft resume
    goes on.

    Example: weft finetune --task classify --data reviews.csv --base all-MiniLM-L6-v2 --out runs/reviews

    Example: weft finetune --task classify --data reviews.csv --model lstm --vectors runs/w2v --out runs/lstm-reviews

    Example: weft finetune --task translate --source train.en --target train.de --model transformer --out runs/en-de
    """
    from weft.config import merged, settings_of
    from weft.runs.recipes import check_has_model, task_recipe
    from weft.tasks.registry import supervised_names

    task = "summarize" if task == "summarize" else task
    check_choices(
        ("--task", task, supervised_names(task or "")),
        ("--class-weights", class_weights, ("none", "balanced")),
        ("--long", long, ("windows", "cut")),
        ("--on-bad-row", on_bad_row, BAD_ROWS),
        ("--vocabularies", vocabularies, ("joint", "apart")),
    )
    if model is not None and base is not None:
        raise UserError("--model begins from scratch and --base from weights: give one of them")
    flags: dict[str, dict[str, Any]] = {
        "": {"out": out, "device": device, "seed": seed, "tensorboard": tensorboard},
        "model": {"family": model, "size": size, "base": base, "vectors": vectors},
        "data": {
            "files": data,
            "dev": dev,
            "source": source,
            "target": target,
            "dev_source": dev_source,
            "dev_target": dev_target,
            "columns": columns_of(column) or None,
            "names": listed_in(names),
            "format": format,
            "delimiter": delimiter,
            "encoding": encoding,
            "on_bad_row": on_bad_row,
        },
        "task": {
            "name": task,
            "labels": listed_in(labels),
            "class_weights": class_weights,
            "baseline": baseline,
            "metric": metric,
            "freeze": freeze,
            "mix": mix,
            "words": words,
            "length": length,
            "stride": stride,
            "long": long,
            "prefix": prefix,
        },
        "tokenizer": {"apart": None if vocabularies is None else vocabularies == "apart"},
        "training": {
            "epochs": epochs,
            "steps": steps,
            "batch": batch,
            "learning_rate": learning_rate,
            "layer_decay": layer_decay,
            "precision": precision,
            "patience": patience,
        },
    }
    said = merged(settings_of(settings or []), sections_of(flags))
    plan = task_recipe(recipe, said)
    check_run(plan.out, plan.model, online, several=seeds is not None)
    check_has_model(plan.model, plan.task.name)
    d = plan.data
    check_reading(d.format, d.columns, d.files, d.dev, d.source, d.target, d.dev_source, d.dev_target)
    check_device(plan.device)
    with leaving_at_once():
        from weft.runs.finetune import finetune as train
        from weft.runs.seeds import with_seeds

    if seeds is not None:
        summary = with_seeds(recipe, said, seeds, online=online, progress=progress)
        print(table(["held-out score", "mean", "spread", "95 % from", "to", "seed by seed"], summary.rows()))
        return
    trained = train(None, plan, online=online, progress=progress)
    rows = [[m.name, f"{m.value:.4f}", _number(m.low), _number(m.high)] for m in trained.card.metrics]
    if rows:
        print(table(["held-out score", "value", "95 % from", "to"], rows))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def listed_in(text: str | None) -> list[str] | None:
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


def columns_of(given: list[str] | None) -> dict[str, str]:
    """What --column says: the task's name of a column and the file's."""
    found = {}
    for text in given or []:
        ours, equals, theirs = text.partition("=")
        if not equals or not ours.strip() or not theirs.strip():
            raise UserError(f"--column {text}: write it as text=NAME")
        found[ours.strip()] = theirs.strip()
    return found


def _line(text: str) -> str:
    return " ".join(text.split())


def answer(
    folder: Folder,
    questions: Annotated[list[str] | None, typer.Argument(help="One or several questions.")] = None,
    context: Annotated[
        Path | None, typer.Option(help="A file with the text to look in, of any length; - reads standard input.")
    ] = None,
    best: Annotated[int, typer.Option(help="How many possible answers to show.")] = 3,
    jsonl: Jsonl = False,
    device: Device = None,
    online: Online = False,
    trust: Trust = False,
) -> None:
    """Answer questions from a text, or say that it holds no answer.

    Example: weft answer runs/qa --context contract.txt "When does it end?"
    """
    from weft.files import MEGABYTE, read_text

    if not questions or not all(question.strip() for question in questions):
        raise UserError("what is the question? give one or several after the model")
    if context is None:
        raise UserError("in which text? give --context FILE, or - for standard input")
    if not 1 <= best <= 20:
        raise UserError(f"--best must be between 1 and 20, not {best}")
    text = sys.stdin.read() if str(context) == "-" else read_text(context, 256 * MEGABYTE)
    if not text.strip():
        raise UserError(f"{context}: holds no text")
    model = opened(folder, "answer", device, online, trust)
    answers: list[Any] = model([(question, text) for question in questions], best=best)
    for question, found in zip(questions, answers, strict=True):
        if jsonl:
            print(json.dumps({"question": question, **asdict(found)}, ensure_ascii=False))
            continue
        said = _line(found.text) or "(no answer)"
        print(escaped(f"{said}  {found.score:.4f}" + (f"  at {found.start}-{found.end}" if found.text else "")))
        for choice in found.best:
            print(escaped(f"  {choice.score:.4f}  {choice.start}-{choice.end}  {_line(choice.text)}"))
        windows = f"{found.n_windows:,} window{'s' * (found.n_windows > 1)}"
        cut = "the text was cut" if found.truncated else "nothing was cut"
        print(f"[{found.n_tokens:,} tokens in {windows}; {cut}]", file=sys.stderr)


def evaluate(
    folder: Folder,
    data: Annotated[list[str] | None, typer.Option(help="Rows to judge by; may be repeated.")] = None,
    source: Annotated[list[str] | None, typer.Option(help="Of a model that writes: texts to write from ...")] = None,
    target: Annotated[list[str] | None, typer.Option(help="... and what is right, line for line.")] = None,
    beam: Annotated[int | None, typer.Option(help="Of a model that writes: the width of its search; 5.")] = None,
    column: Columns = None,
    names: Names = None,
    format: Format = None,
    delimiter: Delimiter = None,
    encoding: Encoding = None,
    on_bad_row: Annotated[str, typer.Option(help="stop, or skip and count.")] = "stop",
    out: Annotated[Path | None, typer.Option(help="Write a page with all tables here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    device: Device = None,
    online: Online = False,
    trust: Trust = False,
) -> None:
    """Judge a model on rows of data: scores with intervals, a table by label, and the worst mistakes.

    Example: weft evaluate runs/reviews --data test.csv

    Example: weft evaluate runs/en-de --source test.en --target test.de
    """
    if not (data or source or target):
        raise UserError("what to judge by? give --data FILE; to a model that writes also --source and --target")
    check_choices(("--on-bad-row", on_bad_row, BAD_ROWS))
    check_reading(format, columns_of(column), data, source, target)
    model = opened(folder, None, device, online, trust)
    found = model.evaluate(
        data,
        source=source or (),
        target=target or (),
        beam_size=beam,
        columns=columns_of(column) or None,
        format=format,
        delimiter=delimiter,
        encoding=encoding,
        names=listed_in(names) or (),
        on_bad_row=on_bad_row,
        progress=progress,
    )
    if out is not None:
        found.write(out)
    if as_json:
        print(json.dumps(found.values(), indent=2, ensure_ascii=False))
        return
    print(escaped(f"{found.data}: {found.reading}"))
    if found.signature:
        print(f"BLEU: {found.signature}")
    for title, header, rows in found.tables():
        print(f"\n{title}\n{table(header, rows)}")

"""`weft distill`: a small student that says what a large teacher says."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from weft.cli.checks import BAD_ROWS, check_choices, check_device, check_models, check_reading, check_run
from weft.cli.models import Online
from weft.cli.show import leaving_at_once, progress, sections_of, table
from weft.cli.tasks import Columns, Delimiter, Encoding, Format, Names, OnBadRow, columns_of, listed_in
from weft.cli.words import Device

MATCHES = ("states", "attention", "relations", "cosine")


def distill(
    given: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RECIPE] [TEACHER]...",
            help="A recipe: a TOML file, or one of the package (weft recipes). A model folder; of several, the mean.",
        ),
    ] = None,
    text: Annotated[
        list[str] | None, typer.Option(help="Unlabeled texts, one on each line (or a column text); repeatable.")
    ] = None,
    data: Annotated[
        list[str] | None, typer.Option(help="Rows to learn from, with or without the column of labels; repeatable.")
    ] = None,
    dev: Annotated[
        list[str] | None, typer.Option(help="Rows to judge by; else a share of the others, noted in run/split.json.")
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="What to learn of the teacher, where it can do more than one thing: embed.")
    ] = None,
    student: Annotated[
        str | None,
        typer.Option(help="3x256 (of the teacher's family), distilbert, lstm:1x256, or the folder of a small model."),
    ] = None,
    out: Annotated[str | None, typer.Option(help="The run folder to write; new or empty.")] = None,
    start: Annotated[
        str | None, typer.Option(help="layers (of the teacher, evenly spaced; so where it is as wide) or scratch.")
    ] = None,
    vocabulary: Annotated[
        int | None, typer.Option(help="How many tokens: those of the teacher's that the text uses most; or learned.")
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="learned (from the text), or a tokenizer folder; else the teacher's.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(help="By which scores are divided before they become chances; 2.")
    ] = None,
    hard: Annotated[
        float | None, typer.Option(help="How much right labels count beside the teacher, where a row has one; 0.5.")
    ] = None,
    match: Annotated[
        list[str] | None,
        typer.Option(help="states, attention, relations or cosine: be like the teacher inside, too; repeatable."),
    ] = None,
    map: Annotated[
        str | None, typer.Option(help="Which layer answers to which of the teacher's: even, last, or 1:2,2:4.")
    ] = None,
    weight: Annotated[float | None, typer.Option(help="How much each --match counts beside the scores; 1.")] = None,
    pretrain: Annotated[
        bool | None, typer.Option("--pretrain", help="Task-free: words of the text, as DistilBERT was made.")
    ] = None,
    best: Annotated[int | None, typer.Option(help="Of a teacher that writes: so many of its best texts; 1.")] = None,
    beam: Annotated[int | None, typer.Option(help="How many it weighs while it writes; 5.")] = None,
    closest: Annotated[
        bool | None, typer.Option("--closest", help="Of its best texts the one that is closest to the right one.")
    ] = None,
    augment: Annotated[
        int | None, typer.Option(help="Times that each text comes again with some of its words replaced; 0.")
    ] = None,
    augment_by: Annotated[
        str | None, typer.Option(help="A model that fills gaps, for --augment; else words of the text itself.")
    ] = None,
    stages: Annotated[
        str | None, typer.Option(help="pretrain,distill,finetune: what comes before and after the teacher; distill.")
    ] = None,
    curve: Annotated[
        int | None, typer.Option(help="How much text is enough: 4 trains on an eighth, a quarter and a half, too; 0.")
    ] = None,
    column: Columns = None,
    names: Names = None,
    format: Format = None,
    delimiter: Delimiter = None,
    encoding: Encoding = None,
    on_bad_row: OnBadRow = None,
    source: Annotated[list[str] | None, typer.Option(help="Texts to write from, one on each line ...")] = None,
    target: Annotated[list[str] | None, typer.Option(help="... and what is right there, where it is known.")] = None,
    dev_source: Annotated[list[str] | None, typer.Option(help="Such texts to judge by ...")] = None,
    dev_target: Annotated[list[str] | None, typer.Option(help="... and what is right there, line for line.")] = None,
    metric: Annotated[str | None, typer.Option(help="The score that decides which student is kept.")] = None,
    length: Annotated[int | None, typer.Option(help="Tokens of a window; as the teacher's.")] = None,
    stride: Annotated[int | None, typer.Option(help="Tokens from one window to the next.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Times through the texts; more where they are few.")] = None,
    steps: Annotated[int | None, typer.Option(help="Updates of the weights.")] = None,
    batch: Annotated[int | None, typer.Option(help="Texts in a step; 32.")] = None,
    learning_rate: Annotated[
        float | None,
        typer.Option("--rate", "--lr", "--learning-rate", help="The highest learning rate; by the student's width."),
    ] = None,
    precision: Annotated[str | None, typer.Option(help="fp32, bf16 or fp16; bf16 on a GPU that has it.")] = None,
    patience: Annotated[int | None, typer.Option(help="Stop after so many evaluations without a better one.")] = None,
    seed: Annotated[int | None, typer.Option(help="Decides fresh weights, order and dropout; 0.")] = None,
    device: Device = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="SECTION.KEY=VALUE of the recipe, such as training.ema=0.99.")
    ] = None,
    online: Online = False,
) -> None:
    """Teach a small model what a large one says of your unlabeled text.

    The teacher reads every text once; what it says is kept in the cache. The run folder is the student's folder, with
    a report of what it has kept. Ctrl-C saves; weft resume goes on.

    Example: weft distill runs/reviews --text unlabeled.txt --student 3x256 --out runs/reviews-small

    Example: weft distill runs/qa --data unlabeled-questions.jsonl --student 6x256 --out runs/qa-small

    Example: weft distill TEACHER --pretrain --text corpus.txt --student distilbert --out runs/small-base

    Example: weft distill distill-reviews runs/reviews --text unlabeled.txt --data reviews.csv --out runs/small
    """
    from weft.config import merged, settings_of
    from weft.distillation.recipe import recipe_of
    from weft.runs.recipes import shipped

    teachers = list(given or [])
    first = teachers[0] if teachers else ""
    # A teacher is a folder, here or in the cache: what is neither a file nor one of ours is no recipe.
    recipe = teachers.pop(0) if first.endswith(".toml") or Path(first).is_file() or first in shipped() else None
    check_choices(
        ("--start", start, ("layers", "scratch")),
        ("--on-bad-row", on_bad_row, BAD_ROWS),
        *(("--match", each, MATCHES) for each in match or ()),
    )
    flags: dict[str, dict[str, Any]] = {
        "": {"out": out, "device": device, "seed": seed},
        "teacher": {"folders": teachers or None, "task": task},
        "student": {"model": student, "start": start, "vocabulary": vocabulary, "tokenizer": tokenizer},
        "data": {
            "text": text,
            "files": data,
            "dev": dev,
            "columns": columns_of(column) or None,
            "names": listed_in(names),
            "format": format,
            "delimiter": delimiter,
            "encoding": encoding,
            "on_bad_row": on_bad_row,
            "source": source,
            "target": target,
            "dev_source": dev_source,
            "dev_target": dev_target,
            "augment": augment,
            "augment_by": augment_by,
        },
        "distill": {
            "pretrain": pretrain,
            "temperature": temperature,
            "hard": hard,
            "match": match,
            "map": map,
            "weight": weight,
            "n": best,
            "beam_size": beam,
            "closest": closest,
            "curve": curve,
            "metric": metric,
            "length": length,
            "stride": stride,
        },
        "stages": {"names": listed_in(stages)},
        "training": {
            "epochs": epochs,
            "steps": steps,
            "batch": batch,
            "learning_rate": learning_rate,
            "precision": precision,
            "patience": patience,
        },
    }
    said = merged(settings_of(settings or []), sections_of(flags))
    plan = recipe_of(recipe, said)
    check_run(plan.out, {})
    assert plan.out is not None
    d = plan.data
    check_reading(d.format, d.columns, d.text, d.files, d.dev, d.source, d.target, d.dev_source, d.dev_target)
    check_models(plan.teacher.folders, online)
    check_device(plan.device)
    with leaving_at_once():
        from weft.distillation.distill import distill as teach
        from weft.distillation.report import read_table

    found = teach(recipe=plan, online=online, progress=progress)
    rows = [[m.name, f"{m.value:.4f}", _number(m.low), _number(m.high)] for m in found.card.metrics]
    if rows:
        print(table(["held-out score", "value", "95 % from", "to"], rows))
    told = read_table(Path(plan.out))
    if told is not None:
        words, header, rows = told
        print(f"\n{words}\n\n{table(header, rows)}")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"

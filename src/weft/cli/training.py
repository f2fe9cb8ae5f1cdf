"""`weft pretrain`, `weft resume`, `weft curves`, `weft recipes`, `weft cache`: training and what it leaves behind."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from weft.cli.checks import check_data, check_device, check_run
from weft.cli.ladder import ladder as climb
from weft.cli.show import DOCUMENTS, amount, leaving_at_once, progress, sections_of, table
from weft.errors import UserError

cache = typer.Typer(help="See and clear what training keeps to be quicker the next time.", no_args_is_help=True)


def pretrain(
    given: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RECIPE] [FILE]...",
            help="A recipe: a TOML file, or one of the package (weft recipes). After --text, further files.",
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(help="From scratch: a family or a published size (weft models).")] = None,
    size: Annotated[str | None, typer.Option(help="LAYERSxWIDTH such as 4x256.")] = None,
    base: Annotated[str | None, typer.Option(help="From weights: a model folder to go on from.")] = None,
    vectors: Annotated[str | None, typer.Option(help="Word vectors to begin --model from: a folder or file.")] = None,
    text: Annotated[
        list[str] | None, typer.Option(help="Files, folders or globs to learn from; may be repeated.")
    ] = None,
    dev: Annotated[
        list[str] | None, typer.Option(help="Held-out text to judge by; else the last 5 % of the text.")
    ] = None,
    out: Annotated[str | None, typer.Option(help="The run folder to write; new or empty.")] = None,
    objective: Annotated[
        str | None, typer.Option(help="next, mlm, mlm+nsp, mlm+sop or spans; as the family learns.")
    ] = None,
    tokenizer: Annotated[str | None, typer.Option(help="A tokenizer folder; else one is learned.")] = None,
    kind: Annotated[
        str | None, typer.Option(help="Kind of vocabulary that is learned, such as bpe or whitespace; by family.")
    ] = None,
    vocabulary: Annotated[int | None, typer.Option(help="Size of the vocabulary that is learned; 8000.")] = None,
    column: Annotated[str | None, typer.Option(help="The text column of csv, tsv, jsonl and parquet files.")] = None,
    documents: Annotated[str | None, typer.Option(help=DOCUMENTS)] = None,
    length: Annotated[int | None, typer.Option(help="Tokens of a row; as the model's context.")] = None,
    rows: Annotated[
        str | None,
        typer.Option(
            help="stream: full rows across documents; apart: full, not across; documents; "
            "carried: each row goes on where one of the step before ended (rnn, lstm, gru)."
        ),
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Updates of the weights.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Times through the text; 3, and at least 1000 steps.")] = None,
    minutes: Annotated[
        float | None, typer.Option(help="As many steps as fit into so much time of training, at most.")
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Rows in a step; as many as have about 8192 tokens.")] = None,
    learning_rate: Annotated[
        float | None,
        typer.Option("--rate", "--lr", "--learning-rate", help="The highest learning rate; by the model's width."),
    ] = None,
    precision: Annotated[str | None, typer.Option(help="fp32, bf16 or fp16; bf16 on a GPU that has it.")] = None,
    compile: Annotated[bool | None, typer.Option(help="Compile the network first; pays on a GPU.")] = None,
    ema: Annotated[float | None, typer.Option(help="Keep a running mean of the weights, such as 0.999.")] = None,
    patience: Annotated[int | None, typer.Option(help="Stop after so many evaluations without a better one.")] = None,
    watch_gradients: Annotated[
        bool | None,
        typer.Option("--watch-gradients", help="Note how far back gradients reach: rnn, lstm, gru."),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:1; the first GPU when there is one.")] = None,
    seed: Annotated[int | None, typer.Option(help="Decides weights, order, masks and dropout; 0.")] = None,
    tensorboard: Annotated[bool | None, typer.Option(help="Write TensorBoard events too.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="SECTION.KEY=VALUE of the recipe, such as model.layers=6.")
    ] = None,
) -> None:
    """Train a language model on your text, from scratch or from the weights of another.

    The run folder holds the best model, the recipe, the record and checkpoints. Ctrl-C saves; weft resume goes on.

    Example: weft pretrain --model gpt2 --size 4x128 --text corpus.txt --length 128 --out runs/gpt

    Example: weft pretrain --model ngram --set model.order=5 --text corpus.txt --out runs/5gram

    Example: weft pretrain --model lstm --text corpus.txt --minutes 10 --watch-gradients --out runs/lstm

    Example: weft pretrain --model t5 --size 4x128 --objective spans --text corpus.txt --length 128 --out runs/t5
    """
    from weft.config import merged, settings_of
    from weft.runs.recipes import Recipe, check_has_model, read_recipe, shipped

    names = list(given or [])
    a_recipe = bool(names) and (text is None or names[0].endswith(".toml") or names[0] in shipped())
    recipe = names.pop(0) if a_recipe else None
    if names and text is None:
        raise UserError(f"{names[0]}: one recipe is enough; text is named by --text")
    if names and dev is not None:
        raise UserError(f"{names[0]}: is it text or held out? name it by --text or --dev, or put a glob in quotes")
    text = None if text is None else [*text, *names]  # a shell has made several files of a glob
    if model is not None and base is not None:
        raise UserError("--model begins from scratch and --base from weights: give one of them")
    flags: dict[str, dict[str, Any]] = {
        "": {"out": out, "device": device, "seed": seed, "tensorboard": tensorboard},
        "model": {"family": model, "size": size, "base": base, "vectors": vectors},
        "text": {"files": text, "dev": dev, "column": column, "documents": documents},
        "tokenizer": {"folder": tokenizer, "kind": kind, "size": vocabulary},
        "objective": {"name": objective, "length": length, "rows": rows},
        "training": {
            "steps": steps,
            "epochs": epochs,
            "minutes": minutes,
            "batch": batch,
            "learning_rate": learning_rate,
            "precision": precision,
            "compile": compile,
            "ema": ema,
            "patience": patience,
            "watch_gradients": watch_gradients,
        },
    }
    plan = read_recipe(recipe, merged(settings_of(settings or []), sections_of(flags)), Recipe)
    check_run(plan.out, plan.model)
    check_has_model(plan.model)
    if not plan.text.files:
        raise UserError("no text: give --text FILE")
    check_data(plan.text.files, plan.text.dev)
    check_device(plan.device)
    with leaving_at_once():
        from weft.runs.pretrain import pretrain as train

    train(plan, progress=progress)


def resume(run: Annotated[str, typer.Argument(help="A run folder, or a ladder, that was broken off.")]) -> None:
    """Go on with a run from its last checkpoint, as if it had never stopped.

    Example: weft resume runs/gpt
    """
    if not (Path(run) / "run" / "recipe.toml").is_file():
        raise UserError(f"{run!r} is not a run folder: it has no run/recipe.toml")
    with leaving_at_once():
        from weft.runs.ladder import is_ladder
        from weft.runs.resume import resume as go_on

    if is_ladder(Path(run)):
        climb(out=run)
        return
    go_on(run, progress=progress)


def curves(
    runs: Annotated[list[Path], typer.Argument(help="Run folders.")],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("curves.html"),
) -> None:
    """Draw the loss curves of several runs on one page.

    Example: weft curves runs/* --out curves.html
    """
    from weft.runs.curves import write_curves

    kept = [run for run in runs if (run / "run" / "metrics.jsonl").is_file()]
    for other in runs:  # runs/* may hold models that were never trained
        if kept and other not in kept:
            print(f"weft: note: {other} is left out: it has no run/metrics.jsonl", file=sys.stderr)
    write_curves(kept or runs, out)
    print(f"{out}: {len(kept)} run{'s' * (len(kept) != 1)}")


def recipes(
    name: Annotated[str | None, typer.Argument(help="One of them: its text is printed.")] = None,
) -> None:
    """List the recipes that come with Weft, or print one.

    Example: weft recipes shakespeare-gpt > mine.toml
    """
    from weft.runs.recipes import find_recipe, shipped

    if name is not None:
        print(find_recipe(name)[0], end="")
        return
    print(
        table(["recipe", "what it does"], [[key, text.splitlines()[0].lstrip("# ")] for key, text in shipped().items()])
    )


@cache.command("list")
def list_cache() -> None:
    """Say what is kept, how large it is and when it was last of use.

    Example: weft cache list
    """
    from weft.data.cache import cached
    from weft.files import cache_folder

    rows = [
        [name[:12], amount(size, "B"), datetime.fromtimestamp(when).strftime("%Y-%m-%d %H:%M"), files]
        for name, size, when, files in cached()
    ]
    heard = sum(row[-1].startswith("teacher ") for row in rows)
    told = f" and what {heard} teacher{'s have' if heard > 1 else ' has'} said" if heard else ""
    print(f"{cache_folder()}: {len(rows) - heard} tokenized texts{told}")
    if rows:
        print(table(["name", "size", "last used", "from"], rows))


@cache.command("clear")
def clear_cache() -> None:
    """Remove all that is kept; it is made again when it is needed.

    Example: weft cache clear
    """
    from weft.data.cache import clear_cache as clear

    print(f"freed {amount(clear(), 'B')}")

"""`weft models`, `info`, `new`, `curves`, `recipes`, `cache`: what there is, what a folder holds, and a fresh model."""

from __future__ import annotations

import json
import sys
import textwrap
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from weft.cli.inputs import find_model
from weft.cli.options import Json, Opening, OutFolder, group
from weft.cli.show import amount, leaving_at_once, table
from weft.errors import UserError, did_you_mean, shown

VERBS = {"complete": "generate"}  # the verb of a task, where it has another name
KINDS = ("fp32", "bf16", "int8")


def models(as_json: Json = False) -> None:
    """List every family with its sizes, weight and cost.

    The published sizes with their size as fp32, bf16 and int8, and what they can do. Operations are counted per token
    of a forward pass over a text that fills the context.

    Example: weft models
    """
    from weft.checkpoint.families import FAMILIES, measure, usual_heads
    from weft.runs.architecture import tasks_for

    rows = []
    for family in FAMILIES.values():
        for name, config in family.sizes.items():
            cost = measure(family, config, usual_heads(family, config))
            rows.append(
                {
                    "family": family.name,
                    "size": name,
                    "layers": config.layers or None,
                    "width": config.width or None,
                    "heads": config.heads or None,
                    "context": config.context,
                    "parameters": cost.parameters,
                    **{kind: cost.bytes(kind) for kind in KINDS},
                    "flops_per_token": cost.flops,
                    "can": _can(family),
                    "finetune": list(tasks_for(family)),
                    "heads_published": list(family.names.heads),
                    "paper": family.paper,
                }
            )
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    header = [*("family", "size", "layers", "width", "heads", "context"), "parameters", *KINDS, "FLOPs/token", "can"]
    lines = [
        [
            *("" if row[name] is None else str(row[name]) for name in header[:6]),
            amount(row["parameters"]),
            *(amount(row[kind], "B") for kind in KINDS),
            amount(row["flops_per_token"]),
            ", ".join(row["can"]),
        ]
        for row in rows
    ]
    print(table(header, lines))
    for family in FAMILIES.values():
        print(f"{family.name}: {family.paper}; heads {', '.join(family.names.heads)}; {family.tokenizer} vocabulary")
    print("\nweft finetune")
    for family in FAMILIES.values():
        if tasks_for(family):
            print(f"{family.name}: {', '.join(tasks_for(family))}")


def _can(family: Any) -> list[str]:
    """The verbs that a family's models know as they are published."""
    own = VERBS.get(family.task, family.task)
    written = ("describe" if family.numbers else "translate", "generate")
    return list(dict.fromkeys([own, *(written if family.reads else ("embed",))]))


def info(
    model: Annotated[
        str, Argument(metavar="MODEL", help="A model folder, a name in the local cache, or a published size.")
    ],
    runtime: Opening,
    as_json: Json = False,
) -> None:
    """Show what a model folder holds.

    Family, sizes, weight, cost, tokenizer, heads and card; also of a published size, such as bert-base.

    Example: weft info runs/gpt
    """
    from weft.checkpoint.locate import SIZE_NAMES

    if not any(model in sizes for sizes in SIZE_NAMES.values()):
        find_model(model, runtime.get("online", False))
    values = _about(model, runtime)
    if as_json:
        print(json.dumps(values, indent=2, ensure_ascii=False))
        return
    card = values["card"]
    values |= {kind: amount(values[kind], "B") for kind in KINDS}
    values |= {"parameters": f"{values['parameters']:,}", "flops_per_token": amount(values["flops_per_token"])}
    values["card"] = {name: value for name, value in card.items() if name not in _SHOWN}
    for name, value in (values | _learned(card)).items():
        if isinstance(value, dict):
            value = ", ".join(f"{key} {_plain(inner)}" for key, inner in value.items())
        if value not in (None, ""):
            text = shown(str(value), 1 << 20)  # text of a folder may hold what confuses a terminal
            lines = textwrap.wrap(text, 100, break_long_words=False, break_on_hyphens=False) or [""]
            print(f"{name.replace('_', ' '):<15} {lines[0]}", *(f"{'':<15} {line}" for line in lines[1:]), sep="\n")


def _about(model: str, runtime: dict[str, Any]) -> dict[str, Any]:
    """What is in a folder, or in one of a published size."""
    from weft.checkpoint.card import card_values
    from weft.checkpoint.families import SIZES, measure, usual_heads
    from weft.config import values_of

    if model in SIZES and not Path(model).exists():
        family, config = SIZES[model]
        heads, kind, card, task = usual_heads(family, config), None, {}, family.task
        tokenizer = target_tokenizer = loaded = None
    else:
        from weft.tasks.model import load

        loaded = load(model, **runtime)
        family, config, heads = loaded.opened.family, loaded.config, dict(loaded.opened.heads)
        floats = (tensor for tensor in loaded.network.state_dict().values() if tensor.is_floating_point())
        kind = loaded.card.precision if loaded.opened.exported else str(next(floats).dtype).removeprefix("torch.")
        tokenizer, target_tokenizer = loaded.tokenizer, loaded.target_tokenizer
        card, task = card_values(loaded.card), loaded.task
    cost = measure(family, config, heads)
    return {
        "model": model,
        "family": family.name,
        "paper": family.paper,
        "task": task,
        "format": "published" if family.architecture(config, heads) else f"weft-{family.name}",
        "heads": heads,
        "parameters": cost.parameters,
        "stored as": kind,
        **{kind: cost.bytes(kind) for kind in KINDS},
        "flops_per_token": cost.flops,
        **({"bytes of tables": _tables(loaded.network)} if loaded is not None and family.counts else {}),
        "sizes": values_of(config),
        "tokenizer": _vocabulary(tokenizer),
        **({} if target_tokenizer is None else {"target tokenizer": _vocabulary(target_tokenizer)}),
        "card": card,
    }


def _tables(network: Any) -> int:
    """What is stored where nothing is learned by steps."""
    return sum(buffer.nbytes for buffer in network.buffers())


def _vocabulary(tokenizer: Any) -> dict[str, Any] | None:
    from weft.config import values_of

    if tokenizer is None:
        return None
    return {"kind": tokenizer.kind, "vocabulary": tokenizer.vocabulary, "roles": values_of(tokenizer.roles)}


# Shown in lines of their own, or of no use to people.
_SHOWN = ("task", "labels", "window", "thresholds", "temperature", "metrics", "columns", "profiles", "files")


def _learned(card: dict[str, Any]) -> dict[str, str]:
    """What fine-tuning has put into a card, for people."""
    lines = {}
    if card.get("labels"):
        lines["labels"] = f"{len(card['labels'])}: {', '.join(card['labels'])}"
    if card.get("columns"):
        lines["columns"] = ", ".join(f"{ours} = {theirs}" for ours, theirs in card["columns"].items())
    if window := card.get("window"):
        by = f"read in windows, each {window['stride']} after the one before"
        longer = "truncated" if window["long"] == "truncate" else by
        lines["window"] = f"{window['length']} tokens; a longer text is {longer}"
    if card.get("thresholds"):
        lines["thresholds"] = ", ".join(f"{name} {value:.4f}" for name, value in card["thresholds"].items())
    if card.get("temperature") is not None:
        lines["temperature"] = f"{card['temperature']:.4g}"
    if card.get("metrics"):
        lines["scores"] = ", ".join(_score(metric) for metric in card["metrics"])
    return lines


def _score(metric: dict[str, Any]) -> str:
    low, high = metric.get("low"), metric.get("high")
    between = "" if low is None or high is None else f" ({low:.4f} to {high:.4f})"
    return f"{metric['name']} {metric['value']:.4f}{between}"


def _plain(value: Any) -> str:
    """A value inside a section: a section of its own in brackets."""
    if isinstance(value, dict):
        return "(" + ", ".join(f"{key} {_plain(inner)}" for key, inner in value.items()) + ")"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def new(
    model: Annotated[
        str, Option(metavar="NAME", help="A family (bert, gpt2, t5 ...) or a published size (bert-tiny ...).")
    ],
    out: OutFolder,
    tokenizer: Annotated[
        Path | None, Option(metavar="FOLDER", help="Tokenizer folder; its size becomes the vocabulary.")
    ] = None,
    target_tokenizer: Annotated[
        Path | None, Option(metavar="FOLDER", help="Tokenizer folder of the target, where it is another one.")
    ] = None,
    size: Annotated[str | None, Option(metavar="SIZE", help="LAYERSxWIDTH, such as 3x256.")] = None,
    settings: Annotated[
        list[str] | None, Option("--set", metavar="KEY=VALUE", help="model.KEY=VALUE; repeatable.")
    ] = None,
    seed: Annotated[int, Option(help="Seed of the weights.")] = 0,
) -> None:
    """Write a model folder with random weights.

    The start of a training run; --set chooses its blocks.

    Example: weft new --model gpt2 --size 2x128 --set model.positions=rotary --tokenizer tok/ --out runs/fresh
    """
    from weft.checkpoint.locate import check_name
    from weft.config import settings_of
    from weft.files import check_new_folder

    check_name(model, size)
    sections = settings_of(settings or [])
    for name in sections:
        if name != "model" or not isinstance(sections[name], dict):
            hint = "" if name == "model" else did_you_mean(name, ["model"])
            raise UserError(f"--set {shown(name)}: only keys of the section model can be set, as model.KEY{hint}")
    check_new_folder(out)
    with leaving_at_once():
        from weft.tasks.model import new as fresh

    made = fresh(
        model, tokenizer, target_tokenizer=target_tokenizer, size=size, settings=sections.get("model", {}), seed=seed
    )
    made.save(out)
    family = made.opened.family
    published = family.architecture(made.config, made.opened.heads)
    own = f"weft-{family.name}: {'a block was swapped' if family.architectures else 'no other library has it'}"
    kind = "published format" if published else own
    count = sum(parameter.numel() for parameter in made.network.parameters())
    print(f"{out}: {family.name}, {count:,} parameters, fresh weights from seed {seed} ({kind})")


def curves(
    runs: Annotated[list[Path], Argument(metavar="FOLDER...", help="Run folders.")],
    out: Annotated[Path, Option(help="HTML page to write.")] = Path("curves.html"),
) -> None:
    """Draw the loss curves of several runs on one page.

    Example: weft curves runs/* --out curves.html
    """
    from weft.runs.pages import write_curves

    kept = [run for run in runs if (run / "run" / "metrics.jsonl").is_file()]
    for other in runs:  # runs/* may hold models that were never trained
        if kept and other not in kept:
            print(f"weft: note: {other} is left out: it has no run/metrics.jsonl", file=sys.stderr)
    write_curves(kept or runs, out)
    print(f"{out}: {len(kept)} run{'s' * (len(kept) != 1)}")


def recipes(name: Annotated[str | None, Argument(metavar="[RECIPE]", help="Print this recipe.")] = None) -> None:
    """List the recipes of the package, or print one.

    Example: weft recipes shakespeare-gpt > mine.toml
    """
    from weft.runs.recipes import find_recipe, shipped

    if name is not None:
        print(find_recipe(name)[0], end="")
        return
    rows = [[key, text.splitlines()[0].lstrip("# ")] for key, text in shipped().items()]
    print(table(["recipe", "what it does"], rows))


def list_cache() -> None:
    """List what is cached, with sizes and the times of last use.

    Example: weft cache list
    """
    from weft.data.shards import cached
    from weft.files import cache_folder

    rows = [
        [name[:12], amount(size, "B"), datetime.fromtimestamp(when).strftime("%Y-%m-%d %H:%M"), files]
        for name, size, when, files in cached()
    ]
    teachers = sum(row[-1].startswith("teacher ") for row in rows)
    outputs = f" and the outputs of {teachers} teacher{'s' * (teachers > 1)}" if teachers else ""
    print(f"{cache_folder()}: {len(rows) - teachers} tokenized texts{outputs}")
    if rows:
        print(table(["name", "size", "last used", "from"], rows))


def clear_cache() -> None:
    """Remove everything that is cached; it is made again when it is needed.

    Example: weft cache clear
    """
    from weft.data.shards import clear_cache as clear

    print(f"freed {amount(clear(), 'B')}")


cache = group("List or clear what training keeps to be faster the next time.", list=list_cache, clear=clear_cache)

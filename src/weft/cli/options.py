"""Options of the verbs and their help: those of a signature, and those that the fields of a dataclass declare."""

from __future__ import annotations

import dataclasses
import inspect
import types
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from functools import cached_property, update_wrapper
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup
from typer.models import ArgumentInfo, OptionInfo

from weft.config import Option, comma_list, merged, option, settings_of
from weft.errors import UserError, one_of

# The order of the panels; what has none comes under "Options".
PANELS = (
    *("Arguments", "Task", "Model", "Data", "Tokenizer", "Vectors", "Distillation", "Generation", "Training"),
    *("Options", "Run"),
)


def _sections(records: list[tuple[str, tuple[str, str]]], formatter: Any) -> None:
    for panel in sorted({name for name, _ in records}, key=PANELS.index):
        with formatter.section(panel):
            formatter.write_dl([record for name, record in records if name == panel])


class VerbHelp(TyperCommand):
    """A verb whose options are listed by panel."""

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """The docstring; an example is never broken, so that it can be copied."""
        self.help = (self.help or "").replace("\n\nExample:", "\n\n\b\nExample:")
        super().format_help_text(ctx, formatter)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        parameters: list[Any] = self.get_params(ctx)
        return ["[OPTIONS]", *(param.metavar for param in parameters if param.param_type_name == "argument")]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        records = []
        parameters: list[Any] = self.get_params(ctx)
        for param in parameters:
            record = param.get_help_record(ctx)
            if record is not None and param.param_type_name == "argument":
                records.append(("Arguments", (param.metavar, param.help)))
            elif record is not None:
                records.append((param.rich_help_panel or "Options", record))
        _sections(records, formatter)


class GroupHelp(TyperGroup):
    """A group of verbs, listed by panel."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {}
        names = [name for name, command in self.commands.items() if not command.hidden]
        for name in names:
            command: Any = self.commands[name]
            panel = command.rich_help_panel if isinstance(command.rich_help_panel, str) else "Commands"
            panels.setdefault(panel, []).append((name, command.get_short_help_str(300)))
        for panel, rows in panels.items():
            with formatter.section(panel):
                formatter.write_dl(rows)


Given = dict[str, Any]  # the options that were given, by the keys of their dataclass
METAVARS = {int: "N", float: "X", str: "TEXT", Path: "FILE"}


@dataclasses.dataclass(frozen=True)
class Flag:
    """An option of the command line that a field declares."""

    section: str
    key: str
    option: Option
    hint: Any
    default: Any
    panel: str | None

    @property
    def name(self) -> str:
        """What the parameter is called: --learning-rate is learning_rate."""
        return self.option.flags[0].split("/")[0].lstrip("-").replace("-", "_")

    @cached_property
    def kind(self) -> Any:
        """The type of one value, without None; the first of several."""
        return _types(self.hint)[0]

    @cached_property
    def choices(self) -> tuple[str, ...]:
        inner = get_args(self.kind)[0] if get_origin(self.kind) is tuple else self.kind
        return get_args(inner) if get_origin(inner) is Literal else ()

    @property
    def value_name(self) -> str:
        """What stands for the value in --help."""
        if self.choices:
            return f"[{'|'.join(self.choices)}]"
        if self.option.parse is comma_list:
            return "A,B,..."
        by_kind = {tuple: "FILE", dict: "KEY=NAME", int: "N", float: "X"}
        return by_kind.get(get_origin(self.kind) or self.kind, self.name.upper().replace("_", "-"))

    @property
    def parameter(self) -> inspect.Parameter:
        """As the parameter of a function, for typer."""
        repeated = get_origin(self.kind) in (tuple, dict) and self.option.parse is None
        plain = self.kind if self.kind in (bool, int, float) and self.option.parse is None else str
        shows = (
            isinstance(self.default, int | float | str) and not isinstance(self.default, bool) and self.default != ""
        )
        info = typer.Option(
            *self.option.flags,
            help=self.option.help + (f" [default: {self.default}]" if shows else ""),
            metavar=None if plain is bool else self.option.metavar or self.value_name,
            rich_help_panel=self.option.panel or self.panel,
        )
        annotation: Any = Annotated[list[str] | None if repeated else plain | None, info]
        return inspect.Parameter(self.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)

    def value(self, given: Any) -> Any:
        """What was given, as the field has it."""
        if self.option.parse is not None:
            return self.option.parse(given)
        if get_origin(self.kind) is dict:
            return _columns(given)
        for choice in given if isinstance(given, list) else [given]:
            if self.choices:
                one_of(choice, self.choices, self.option.flags[0])
        return given


def _types(hint: Any) -> list[Any]:
    union = get_origin(hint) in (Union, types.UnionType)
    return [kind for kind in get_args(hint) if kind is not type(None)] if union else [hint]


def _columns(given: list[str]) -> dict[str, str]:
    """--column text=NAME ...: the task's name of a column and the file's."""
    columns = {}
    for text in given:
        ours, equals, theirs = text.partition("=")
        if not equals or not ours.strip() or not theirs.strip():
            raise UserError(f"--column {text}: write it as text=NAME")
        columns[ours.strip()] = theirs.strip()
    return columns


def flags_of(kind: Any, section: str = "") -> Iterator[Flag]:
    """The options that the fields of a dataclass declare, and those of its sections."""
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        hint, metadata = hints[field.name], field.metadata
        if "option" in metadata:
            yield Flag(section, field.name, metadata["option"], hint, field.default, kind.panel)
        for key, declared in metadata.get("keys", {}).items():
            yield Flag(field.name, key, declared, str, None, None)
        if not section and dataclasses.is_dataclass(hint):
            for flag in flags_of(hint, field.name):
                if flag.key not in metadata.get("without", ()):
                    yield flag


@dataclasses.dataclass(frozen=True)
class Flags:
    """Marks a parameter that takes the options of a dataclass, which is imported when its verb is asked for."""

    kind: str  # module:Class
    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    example: str = ""  # of --set; empty: the verb has no --set

    @cached_property
    def flags(self) -> list[Flag]:
        module, _, name = self.kind.partition(":")
        flags = flags_of(vars(import_module(module))[name])
        return [flag for flag in flags if (not self.only or flag.key in self.only) and flag.key not in self.without]

    def parameters(self) -> list[inspect.Parameter]:
        parameters = [flag.parameter for flag in self.flags]
        if self.example:
            text = f"SECTION.KEY=VALUE of the recipe, such as {self.example}; repeatable."
            info = typer.Option("--set", help=text, metavar="KEY=VALUE", rich_help_panel="Run")
            kind: Any = Annotated[list[str] | None, info]
            parameters.append(
                inspect.Parameter("settings", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
            )
        return parameters

    def take(self, values: dict[str, Any]) -> Given:
        """The options that were given, taken out of the values of a call."""
        given: Given = {}
        for flag in self.flags:
            value = values.pop(flag.name)
            if value is not None:
                (given.setdefault(flag.section, {}) if flag.section else given)[flag.key] = flag.value(value)
        return merged(settings_of(values.pop("settings") or []), given) if self.example else given


class Verb:
    """A verb for typer: the function, with a signature in which every marked parameter stands for its options."""

    def __init__(self, function: Callable[..., Any]) -> None:
        update_wrapper(self, function)
        self.function, self.__annotations__ = function, {}

    @cached_property
    def hints(self) -> Mapping[str, Any]:
        return get_type_hints(self.function, include_extras=True)

    def marked(self) -> Iterator[tuple[str, Flags]]:
        for name, hint in self.hints.items():
            for mark in hint.__metadata__ if get_origin(hint) is Annotated else ():
                if isinstance(mark, Flags):
                    yield name, mark

    @property
    def __signature__(self) -> inspect.Signature:
        marked, parameters = dict(self.marked()), list[inspect.Parameter]()
        for name, parameter in inspect.signature(self.function).parameters.items():
            if name in marked:
                parameters += marked[name].parameters()
            else:
                annotation = _with_metavar(self.hints[name])
                parameters.append(parameter.replace(annotation=annotation, kind=inspect.Parameter.KEYWORD_ONLY))
        return inspect.Signature(parameters)

    def __call__(self, **values: Any) -> Any:
        bundles = {name: flags.take(values) for name, flags in self.marked()}
        return self.function(**values, **bundles)


def group(help: str, **functions: Callable[..., Any]) -> typer.Typer:
    """A group of verbs under one name."""
    app = typer.Typer(cls=GroupHelp, help=help, no_args_is_help=True)
    for name, function in functions.items():
        app.command(name, cls=VerbHelp)(Verb(function))
    return app


def _with_metavar(hint: Any) -> Any:
    """The annotation of a parameter with a name for its value that people know."""
    if get_origin(hint) is not Annotated:
        return hint
    kind, info = get_args(hint)
    plain = _types(kind)[0]
    plain = get_args(plain)[0] if get_origin(plain) is list else plain
    if isinstance(info, OptionInfo | ArgumentInfo) and info.metavar is None and plain in METAVARS:
        info = copy(info)
        info.metavar = METAVARS[plain]
    return Annotated[kind, info]


# ------------------------------------------------------------------------------------------- options of several verbs


@dataclasses.dataclass(frozen=True)
class RuntimeOptions:
    """Where a model runs, and which folders are opened."""

    panel: ClassVar = "Run"
    device: str | None = option(
        None, "--device", help="cpu, cuda, cuda:1 or mps. Default: the first GPU, if any.", metavar="DEVICE"
    )
    online: bool = option(False, "--online", help="Allow a download when the model is not on this machine.")
    trust: bool = option(False, "--trust", help="Open an exported model whose files have changed since its export.")


TABLE = "weft.runs.recipes:TableSection"
GENERATION = "weft.generation.options:GenerationOptions"
READING = ("columns", "names", "format", "delimiter", "encoding")
Runtime = Annotated[Given, Flags("weft.cli.options:RuntimeOptions")]
Opening = Annotated[Given, Flags("weft.cli.options:RuntimeOptions", without=("device",))]
Online = Annotated[Given, Flags("weft.cli.options:RuntimeOptions", only=("online",))]
TableOptions = Annotated[Given, Flags(TABLE, only=("files", *READING))]
LabeledRows = Annotated[Given, Flags(TABLE, only=("files", "source", "target", *READING, "on_bad_row"))]
Folder = Annotated[str, typer.Argument(metavar="MODEL", help="A model folder, or a name in the local cache.")]
Texts = Annotated[
    list[str] | None, typer.Argument(metavar="[TEXT]...", help="Texts. Default: one per line of standard input.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Jsonl = Annotated[bool, typer.Option("--jsonl", help="Print one JSON object per line.")]
OutFolder = Annotated[Path, typer.Option(metavar="FOLDER", help="Folder to write, new or empty.")]
Recipe = Annotated[
    str | None, typer.Argument(metavar="[RECIPE]", help="A TOML file, or a recipe of the package (see: weft recipes).")
]

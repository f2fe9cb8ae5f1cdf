"""Options of the verbs and their help: those of a signature, and those that the fields of a dataclass declare."""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from functools import cached_property, update_wrapper
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup
from typer.models import ArgumentInfo, OptionInfo

from weft.config import Option, comma_list, merged, option, settings_of
from weft.errors import UserError, one_of

T = TypeVar("T")
# The order of the panels; what has none comes under "Options".
PANELS = (
    *("Arguments", "Task", "Model", "Data", "Tokenizer", "Vectors", "Distillation", "Generation", "Training"),
    *("Server", "Limits", "Options", "Run"),
)


def _write_panels(panels: Mapping[str, list[tuple[str, str]]], formatter: Any) -> None:
    for panel, records in panels.items():
        if records:
            with formatter.section(panel):
                formatter.write_dl(records)


class VerbHelp(TyperCommand):
    """A verb whose options are listed by panel."""

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """The docstring without its examples, which end the help."""
        whole, self.help = self.help, (self.help or "").partition("\n\nExample: ")[0]
        super().format_help_text(ctx, formatter)
        self.help = whole

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """The examples; their lines are never broken, so that they can be copied."""
        with formatter.section("Examples"):
            for example in re.findall("^Example: (.*)", self.help or "", re.MULTILINE):
                formatter.write(f"  {example}\n")

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        parameters: list[Any] = self.get_params(ctx)
        return ["[OPTIONS]", *(param.metavar for param in parameters if param.param_type_name == "argument")]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {panel: [] for panel in PANELS}
        parameters: list[Any] = self.get_params(ctx)
        for param in parameters:
            record = param.get_help_record(ctx)
            if record is not None and param.param_type_name == "argument":
                panels["Arguments"].append((param.metavar, param.help))
            elif record is not None:
                panels[param.rich_help_panel or "Options"].append(record)
        _write_panels(panels, formatter)


class GroupHelp(TyperGroup):
    """A group of verbs, listed by panel."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {}
        commands: dict[str, Any] = {name: verb for name, verb in self.commands.items() if not verb.hidden}
        for name, command in commands.items():
            panel = command.rich_help_panel if isinstance(command.rich_help_panel, str) else "Commands"
            panels.setdefault(panel, []).append((name, command.get_short_help_str(300)))
        _write_panels(panels, formatter)


Given = dict[str, Any]  # the options that were given, by the keys of their dataclass
METAVARS = {int: "N", float: "X", str: "TEXT", Path: "FILE"}


def flag(help: str, metavar: str | None = None, *names: str, panel: str | None = None) -> Any:
    """An option of a verb; a metavar such as [fast|small] lists all values that it takes."""
    return typer.Option(*names, help=help, metavar=metavar, rich_help_panel=panel)


def argument(metavar: str, help: str) -> Any:
    """An argument of a verb."""
    return typer.Argument(metavar=metavar, help=help)


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
        return _keyword(self.name, annotation)

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


def _keyword(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


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
            parameters += [_keyword("settings", kind)]
        return parameters

    def take(self, values: dict[str, Any]) -> Given:
        """The options that were given, taken out of the values of a call."""
        given: Given = {}
        for flag in self.flags:
            value = values.pop(flag.name)
            if value is not None:
                (given.setdefault(flag.section, {}) if flag.section else given)[flag.key] = flag.value(value)
        return merged(settings_of(values.pop("settings") or []), given) if self.example else given


def _marks(hint: Any, kind: type[T]) -> list[T]:
    return [mark for mark in hint.__metadata__ if isinstance(mark, kind)] if get_origin(hint) is Annotated else []


class Verb:
    """A verb for typer: the function, with a signature in which every marked parameter stands for its options."""

    def __init__(self, function: Callable[..., Any]) -> None:
        update_wrapper(self, function)
        self.function, self.__annotations__ = function, {}

    @cached_property
    def hints(self) -> Mapping[str, Any]:
        return get_type_hints(self.function, include_extras=True)

    def marked(self) -> Iterator[tuple[str, Flags]]:
        return ((name, mark) for name, hint in self.hints.items() for mark in _marks(hint, Flags))

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
        for name, value in values.items():
            metavar = next((mark.metavar or "" for mark in _marks(self.hints[name], OptionInfo)), "")
            if value is not None and re.fullmatch(r"\[[\w-]+(\|[\w-]+)+\]", metavar):
                one_of(value, metavar[1:-1].split("|"), f"--{name.replace('_', '-')}")
        return self.function(**values, **bundles)


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
    precision: str = option(
        "auto",
        "--precision",
        help="On a GPU: auto, fp32, bf16 or fp16. auto: bf16 where a model generates, else fp16.",
        metavar="KIND",
    )
    backend: str | None = option(
        None, "--backend", metavar="NAME",
        help="torch, onednn, onednn-bf16, onnx, onnx-int8, ctranslate2 or ctranslate2-int8. Default: what weft bench "
        "has chosen, else torch.",
    )  # fmt: skip
    online: bool = option(False, "--online", help="Allow a download when the model is not on this machine.")
    trust: bool = option(False, "--trust", help="Open an exported model whose files have changed since its export.")
    language: str | None = option(
        None, "--language", help="Language of the texts, for a model with language embeddings (XLM).", metavar="NAME"
    )


TABLE = "weft.runs.recipes:TableSection"
GENERATION = "weft.generation.options:GenerationOptions"
READING = ("columns", "names", "format", "delimiter", "encoding")
Runtime = Annotated[Given, Flags("weft.cli.options:RuntimeOptions")]
Placing = Annotated[Given, Flags("weft.cli.options:RuntimeOptions", without=("language", "backend"))]
Opening = Annotated[Given, Flags("weft.cli.options:RuntimeOptions", without=("device", "backend", "language"))]
Online = Annotated[Given, Flags("weft.cli.options:RuntimeOptions", only=("online",))]
TableOptions = Annotated[Given, Flags(TABLE, only=("files", *READING))]
LabeledRows = Annotated[Given, Flags(TABLE, only=("files", "source", "target", *READING, "on_bad_row"))]
Folder = Annotated[str, argument("MODEL", "A model folder, or a name in the local cache.")]
Texts = Annotated[list[str] | None, argument("[TEXT]...", "Texts. Default: one per line of standard input.")]
MoreFiles = Annotated[list[str] | None, argument("[FILE]...", "After --text: further files.")]
Json = Annotated[bool, flag("Print JSON instead of tables.", None, "--json")]
Jsonl = Annotated[bool, flag("Print one JSON object per line.", None, "--jsonl")]
OutFolder = Annotated[Path, flag("Folder to write, new or empty.", "FOLDER")]

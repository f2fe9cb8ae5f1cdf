"""`--help`: verbs and options in panels, as plain text; examples on lines of their own."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

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

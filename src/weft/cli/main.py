"""`weft`: the verbs, and what happens when something goes wrong. Nothing imports torch before a verb needs it."""

from __future__ import annotations

import io
import os
import re
import sys
import warnings
from collections.abc import Sequence
from copy import copy
from typing import Annotated, Any

import typer

from weft.cli import (
    arpa,
    compare,
    look,
    models,
    predict,
    search,
    sequences,
    shrink,
    suggest,
    tokenizer,
    training,
    vectors,
    words,
    zero,
)
from weft.cli.guard import debugging, out_of_memory
from weft.cli.guard import describe as describe_fault
from weft.cli.help import GroupHelp, VerbHelp
from weft.cli.options import Verb
from weft.errors import UserError, hint
from weft.files import reason
from weft.progress import on_terminal, to_stderr
from weft.terminal import escaped_streams, open_streams
from weft.training.signals import Interrupted
from weft.version import VERSION

# typer carries its own copy of click, or uses the installed one, by version: this finds either.
ClickError: Any = typer.BadParameter.__mro__[2]

# The verbs by panel, in the order of `weft --help`.
VERBS: dict[str, dict[str, Any]] = {
    "Train": {
        "pretrain": training.pretrain,
        "finetune": training.finetune,
        "ladder": training.ladder,
        "resume": training.resume,
        "new": models.new,
        "recipes": look.recipes,
    },
    "Use": {
        "predict": predict.predict,
        "answer": words.answer,
        "generate": words.generate,
        "translate": sequences.translate,
        "summarize": sequences.translate,
        "rewrite": sequences.translate,
        "describe": sequences.describe,
        "fill": words.fill,
        "embed": words.embed,
        "rank": search.rank,
        "central": search.central,
        "next": search.follows,
        "choose": zero.choose,
        "suggest": suggest.suggest,
    },
    "Shrink": {
        "distill": training.distill,
        "quantize": shrink.quantize,
        "prune": shrink.prune,
        "export": shrink.export,
    },
    "Look": {
        "evaluate": compare.evaluate,
        "compare": compare.compare,
        "perplexity": zero.perplexity,
        "curves": look.curves,
        "models": models.models,
        "info": models.info,
    },
    "Data": {"tokenizer": tokenizer.app, "vectors": vectors.app, "arpa": arpa.app, "cache": look.cache},
}
HELP = {
    verb: sequences.as_translate(verb, what)
    for verb, what in (("summarize", "Summarize texts"), ("rewrite", "Rewrite texts"))
}

app = typer.Typer(
    cls=GroupHelp,
    name="weft",
    help="Turn your own text into small, fast, private language models, and look inside them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for panel, verbs in VERBS.items():
    for name, verb in verbs.items():
        if isinstance(verb, typer.Typer):
            app.add_typer(verb, name=name, rich_help_panel=panel)
        else:
            context = {"ignore_unknown_options": name == "describe"}  # "-0.5 1.2 3" is a vector
            app.command(name, cls=VerbHelp, help=HELP.get(name), rich_help_panel=panel, context_settings=context)(
                Verb(verb)
            )


@app.callback(invoke_without_command=True)
def weft(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)] = False,
) -> None:
    if version:
        print(f"weft {VERSION}")
        raise typer.Exit


@escaped_streams()
@on_terminal()
def run(arguments: Sequence[str]) -> int:
    """One call of the command line; exit status: 0 done, 1 our bug, 2 a mistake of the user, 128 + N signal N."""
    warnings.showwarning = _note  # type: ignore[assignment]
    try:
        status = _asked(app, _verbs(arguments))(args=list(arguments), prog_name="weft", standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
        status = status if isinstance(status, int) else 0
    except UserError as error:
        return _refuse(arguments, str(error))
    except ClickError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error.format_message())
            return 0
        return _refuse(arguments, _usage(error))
    except (KeyboardInterrupt, typer.Abort):
        status = 130
    except RuntimeError as error:
        if not isinstance(
            error.__cause__, KeyboardInterrupt
        ):  # Python 3.11 wraps one that strikes a class in the making
            return _fault(arguments, error)
        status = 130
    except Interrupted as interrupted:
        to_stderr(f"weft: {interrupted}")
        return 128 + interrupted.number
    except (OSError, SystemExit) as error:
        cause = error.__context__ if isinstance(error, SystemExit) else error
        if not isinstance(cause, OSError):
            raise
        if not isinstance(cause, BrokenPipeError):  # a full disk behind standard output, a name that no system takes
            return _refuse(arguments, f"{cause.filename or 'standard output'}: {reason(cause)}")
        status = 0  # `weft ... | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except BaseException as error:  # a panic in a native library is no Exception
        return _fault(arguments, error)
    if status == 130:
        print("weft: interrupted", file=sys.stderr)
    return status


def _fault(arguments: Sequence[str], error: BaseException) -> int:
    """Report a fault of ours in one line."""
    if debugging() or isinstance(error, GeneratorExit):
        raise error
    return _refuse(arguments, describe_fault(error, arguments), 2 if out_of_memory(error) else 1)


def _verbs(arguments: Sequence[str]) -> list[str]:
    return [argument for argument in arguments if not argument.startswith("-")]


def _asked(group: typer.Typer, verbs: Sequence[str]) -> typer.Typer:
    """The same verbs, but only the one that is asked for with its options: those of all take a third of the time."""
    light = copy(group)
    light.registered_commands = [copy(command) for command in group.registered_commands]
    for command in light.registered_commands:
        assert command.callback is not None
        command.name = command.name or command.callback.__name__
        if command.name not in verbs[:1]:
            command.help, command.callback = command.help or command.callback.__doc__, _nothing
    light.registered_groups = [copy(part) for part in group.registered_groups]
    for part in light.registered_groups:
        if part.typer_instance is not None:
            part.typer_instance = _asked(part.typer_instance, verbs[1:] if part.name in verbs[:1] else ())
    return light


def _nothing() -> None:
    """What a verb does that is only listed."""


def _refuse(arguments: Sequence[str], message: str, status: int = 2) -> int:
    verbs = _verbs(arguments)
    name = " ".join(verbs[: 2 if verbs and verbs[0] in VERBS["Data"] else 1])
    print(f"weft {name}: {message}" if name else f"weft: {message}", file=sys.stderr)
    return status


def _usage(error: Any) -> str:
    """What is wrong with a call, with a hint at the option or verb that was meant."""
    message = error.format_message().replace("\n", " ") or "see --help"
    command: Any = getattr(getattr(error, "ctx", None), "command", None)
    if type(error).__name__ == "NoSuchOption":
        options = [name for each in command.params if not each.hidden for name in (*each.opts, *each.secondary_opts)]
        return f"No such option: {error.option_name}{hint(error.option_name, options)}"
    if unknown := re.match(r"No such command '(.*?)'\.", message):
        verbs = [name for name, verb in command.commands.items() if not verb.hidden]
        return f"No such command {unknown[1]!r}{hint(unknown[1], verbs) or '.'}"
    extra = re.search(r"unexpected extra arguments?(?:\(s\))? \((\S+)\)", message)
    if extra and os.path.isfile(extra[1]) and any("--data" in each.opts for each in command.params):
        return f"{message}; did you mean '--data {extra[1]}'?"
    return message


def _note(message: Warning | str, category: type[Warning], *_: Any) -> None:
    if category is UserWarning:
        print(f"weft: note: {message}", file=sys.stderr)


def main() -> int:
    """What the command `weft` does."""
    open_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that is not UTF-8 still shows what it can
            stream.reconfigure(errors="backslashreplace")
    # Bytes that the locale could not read are UTF-8 on every system of today.
    return run([os.fsencode(argument).decode("utf-8", "surrogateescape") for argument in sys.argv[1:]])

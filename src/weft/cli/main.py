"""`weft`: the verbs, and what happens when something goes wrong. Nothing imports torch before a verb needs it."""

from __future__ import annotations

import gc
import io
import os
import platform
import re
import sys
import tempfile
import traceback
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any

import typer
from typer import Option

from weft.cli import bench, compare, forecast, look, look_views, models, predict, serve, training, words
from weft.cli.options import GroupHelp, Verb, VerbHelp
from weft.errors import UserError, did_you_mean, hint, shown
from weft.files import reason
from weft.loading import collector_paused
from weft.progress import escaped_streams, on_terminal, open_streams, to_stderr
from weft.training.signals import Interrupted
from weft.version import VERSION, system_name

# Names of local variables that hold the path of what is being read.
NAMES = ("path", "file", "source", "data", "recipe", "where", "folder", "model", "run", "vectors", "name")
MEMORY = re.compile(r"not enough memory|can't allocate memory|out of memory|bad alloc|cannot allocate", re.IGNORECASE)


def out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, by Python's word or by that of a native library."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    return bool(kinds & {"MemoryError", "OutOfMemoryError", "ArrowMemoryError"}) or (
        isinstance(error, RuntimeError) and MEMORY.search(str(error)) is not None
    )


def describe(error: BaseException, arguments: Sequence[str]) -> str:
    """One line about a fault; its traceback is written to a file that the line names."""
    path = file_in(error.__traceback__)
    reading = f" while reading {shown(str(path), 200)}" if path is not None else ""
    if out_of_memory(error):
        return f"out of memory{reading}; try a smaller input or batch, or a machine with more memory"
    text = shown(" ".join(str(error).split()), 120)
    report = write_report(error, arguments)
    where = f"the traceback is in {report}" if report else "WEFT_DEBUG=1 shows the traceback"
    what = f"internal error{reading}: {type(error).__name__}{f': {text}' if text else ''}"
    return f"{what}; this is a fault of Weft, not yours: please report it, {where}"


def file_in(calls: TracebackType | None) -> Path | None:
    """The file, else the folder, that the innermost of our calls had at hand, by its local variables."""
    ours, folder = os.path.dirname(os.path.dirname(__file__)) + os.sep, None
    frames = [frame for frame, _ in traceback.walk_tb(calls) if frame.f_code.co_filename.startswith(ours)]
    for name, value in ((name, value) for frame in reversed(frames) for name, value in frame.f_locals.items()):
        given: Any = value if isinstance(value, str | Path) else getattr(value, "path", None)
        named = isinstance(given, str) and given and name in NAMES and len(given) < 4096
        with suppress(OSError, ValueError):
            path = Path(given) if named or isinstance(given, Path) else None
            if path is not None and path.is_file():
                return path
            if folder is None and path is not None and path.is_dir():
                folder = path
    return folder


def write_report(error: BaseException, arguments: Sequence[str]) -> str | None:
    """The traceback, versions and the call in a new file of the temporary folder, readable by its owner alone."""
    lines = [f"weft {VERSION}, Python {platform.python_version()}, {system_name()}"]
    for name in ("torch", "tokenizers", "onnxruntime", "ctranslate2", "pyarrow"):
        if name in sys.modules:
            lines.append(f"{name} {vars(sys.modules[name]).get('__version__', '?')}")
    lines += [f"call: weft {' '.join(map(repr, arguments))}", "", *traceback.format_exception(error)]
    try:
        number, name = tempfile.mkstemp(prefix="weft-error-", suffix=".txt")
        with open(number, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write("\n".join(lines))
    except OSError:
        return None
    return name


# typer carries its own copy of click, or uses the installed one, by version: this finds either.
ClickError: Any = typer.BadParameter.__mro__[2]

# The verbs by panel or group, in the order of `weft --help`.
VERBS: dict[str, tuple[Any, ...]] = {
    "Train": (training.pretrain, training.finetune, training.ladder, training.resume, models.new, models.recipes),
    "Use": (
        *(predict.predict, words.answer, words.generate),
        *(predict.translate, predict.summarize, predict.rewrite, predict.describe, forecast.forecast),
        *(words.fill, words.embed, words.rank, words.central, words.next_, words.choose, words.suggest),
        serve.serve,
        serve.top,
    ),
    "Shrink": (training.distill, compare.quantize, compare.prune, compare.export),
    "Look": (
        compare.evaluate,
        compare.compare,
        bench.bench,
        compare.perplexity,
        models.curves,
        models.models,
        models.info,
    ),
    "look": (
        *(look.attention, look.attribution, look.walk, look.lens),
        *(look_views.positions, look_views.map_, look_views.words, look_views.probe, look_views.gradients),
        *(look_views.generation, look_views.next_, look_views.tokens),
    ),
    "tokenizer": (models.learn_tokenizer, models.show_tokens),
    "vectors": (
        *(models.learn_vectors, models.near, models.analogy, models.odd, models.cosine),
        *(models.evaluate, models.convert, models.map_vectors),
    ),
    "arpa": (models.write, models.read),
    "cache": (models.list_cache, models.clear_cache),
}
GROUPS = {
    "look": "Look inside a model: weft look MODEL TEXT shows its attention; the views below show more.",
    "tokenizer": "Learn a vocabulary from text, and show what it does to a text.",
    "vectors": "Learn word vectors, query and evaluate them, and map one language to another.",
    "arpa": "Write and read n-gram models as ARPA files, as KenLM and SRILM do.",
    "cache": "List or clear cached tokenized texts and teacher outputs.",
}


def show_version(
    version: Annotated[bool, Option("--version", help="Print the version and exit.", is_eager=True)] = False,
) -> None:
    if version:
        print(f"weft {VERSION}")
        raise typer.Exit


def build(asked: Sequence[str] | None = None) -> typer.Typer:
    """The command line; where `asked` names a verb, only that one has its options: those of all take a while."""
    options: dict[str, Any] = {"cls": GroupHelp, "no_args_is_help": True, "rich_markup_mode": None}
    about = "Turn your own text into small, fast, private language models, and look inside them."
    app = typer.Typer(name="weft", help=about, add_completion=False, pretty_exceptions_enable=False, **options)
    app.callback(invoke_without_command=True)(show_version)
    for name, verbs in VERBS.items():
        if name not in GROUPS:
            add_verbs(app, verbs, asked, name)
            continue
        group = typer.Typer(help=GROUPS[name], **options)
        add_verbs(group, verbs, asked if asked is None else asked[1:] if name in asked[:1] else ())
        app.add_typer(group, name=name, rich_help_panel="Look" if name == "look" else "Data")
    return app


def add_verbs(group: typer.Typer, verbs: Sequence[Any], asked: Sequence[str] | None, panel: str | None = None) -> None:
    for verb in verbs:
        name = verb.__name__.partition("_")[0]  # list_cache and next_ are the verbs list and next
        context = {"ignore_unknown_options": name == "describe"}  # "-0.5 1.2 3" is a vector
        function = Verb(verb) if asked is None or name in asked[:1] else lambda: None
        options: Any = {"cls": VerbHelp, "rich_help_panel": panel, "context_settings": context}
        group.command(name, help=verb.__doc__, **options)(function)


app = build()


@escaped_streams()
@on_terminal()
def run(arguments: Sequence[str]) -> int:
    """One call of the command line; exit status: 0 done, 1 our bug, 2 a mistake of the user, 128 + N signal N."""
    warnings.showwarning = _note  # type: ignore[assignment]
    try:
        arguments = with_view(arguments)
        with collector_paused():
            command = typer.main.get_command(build(_verbs(arguments)))
        status = command(args=list(arguments), prog_name="weft", standalone_mode=False)
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
    except RuntimeError as error:  # Python 3.11 wraps an interrupt that strikes a class in the making
        if not isinstance(error.__cause__, KeyboardInterrupt):
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
            place = cause.filename or (cause.errno and "standard output")  # neither: a library that cannot be loaded
            return _refuse(arguments, f"{place}: {reason(cause)}" if place else shown(str(cause), 300))
        status = 0  # `weft ... | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except BaseException as error:  # a panic in a native library is no Exception
        return _fault(arguments, error)
    if status == 130:
        print("weft: interrupted", file=sys.stderr)
    return status


def with_view(arguments: Sequence[str]) -> list[str]:
    """`weft look MODEL TEXT` is `weft look attention MODEL TEXT`: a first word that is no view is a model folder."""
    views = {verb.__name__.partition("_")[0] for verb in VERBS["look"]}
    if arguments[:1] != ["look"] or len(arguments) < 2 or arguments[1] in (*views, "--help"):
        return list(arguments)
    near = did_you_mean(arguments[1], views)
    if near and "/" not in arguments[1] and not Path(arguments[1]).exists():
        raise UserError(f"{shown(arguments[1])!r} is neither a view nor a model folder{near}")
    return ["look", "attention", *arguments[1:]]


def _fault(arguments: Sequence[str], error: BaseException) -> int:
    """Report a fault of ours in one line, or of an installation."""
    if os.environ.get("WEFT_DEBUG", "") not in ("", "0") or isinstance(error, GeneratorExit):  # the tests set it too
        raise error
    if isinstance(error, ImportError) and (error.name or "").partition(".")[0] != "weft":
        cause = shown(" ".join(str(error).split()), 300)
        return _refuse(arguments, f"a library cannot be imported: {cause}; install it again, or what it needs")
    return _refuse(arguments, describe(error, arguments), 2 if out_of_memory(error) else 1)


def _verbs(arguments: Sequence[str]) -> list[str]:
    return [argument for argument in arguments if not argument.startswith("-")]


def _refuse(arguments: Sequence[str], message: str, status: int = 2) -> int:
    verbs = _verbs(arguments)
    name = " ".join(verbs[: 2 if verbs and verbs[0] in GROUPS else 1])
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
    status = run([os.fsencode(argument).decode("utf-8", "surrogateescape") for argument in sys.argv[1:]])
    gc.freeze()  # nothing to collect: Python would go through all of torch again before it ends (0.2 s)
    return status

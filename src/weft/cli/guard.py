"""The outer guard: a fault of ours becomes one line that names the file being read, with the traceback in a file."""

from __future__ import annotations

import os
import platform
import re
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from weft.errors import shown
from weft.version import VERSION, system_name

# Names of local variables that hold the path of what is being read.
NAMES = ("path", "file", "source", "data", "recipe", "where", "folder", "model", "run", "vectors", "name")
MEMORY = re.compile(r"not enough memory|can't allocate memory|out of memory|bad alloc|cannot allocate", re.IGNORECASE)


def debugging() -> bool:
    """Whether faults are to be shown as they are: WEFT_DEBUG=1, which the tests set too."""
    return os.environ.get("WEFT_DEBUG", "") not in ("", "0")


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
    what = f"internal error{reading}: {type(error).__name__}{f': {text}' if text else ''}"
    report = write_report(error, arguments)
    where = f"the traceback is in {report}" if report else "WEFT_DEBUG=1 shows the traceback"
    return f"{what}; this is a fault of Weft, not yours: please report it, {where}"


def file_in(calls: TracebackType | None) -> Path | None:
    """The file, else the folder, that the innermost of our calls had at hand."""
    folder = None
    for value in _values(calls):
        with suppress(OSError, ValueError):
            path = Path(value)
            if path.is_file():
                return path
            if folder is None and path.is_dir():
                folder = path
    return folder


def _values(calls: TracebackType | None) -> Iterator[str | Path]:
    """Paths among the local variables of our own calls, from the innermost outwards."""
    ours = os.path.dirname(os.path.dirname(__file__)) + os.sep
    frames = [frame for frame, _ in traceback.walk_tb(calls) if frame.f_code.co_filename.startswith(ours)]
    for frame in reversed(frames):
        for name, value in frame.f_locals.items():
            given = getattr(value, "path", None) if not isinstance(value, str | Path) else value
            if isinstance(given, Path) or (isinstance(given, str) and given and name in NAMES and len(given) < 4096):
                yield given


def write_report(error: BaseException, arguments: Sequence[str]) -> str | None:
    """The traceback, versions and the call in a new file of the temporary folder, readable by its owner alone."""
    lines = [f"weft {VERSION}, Python {platform.python_version()}, {system_name()}"]
    for name in ("torch", "tokenizers", "onnxruntime", "ctranslate2", "pyarrow"):
        if name in sys.modules:
            lines.append(f"{name} {getattr(sys.modules[name], '__version__', '?')}")
    lines += [f"call: weft {' '.join(map(repr, arguments))}", "", *traceback.format_exception(error)]
    try:
        number, name = tempfile.mkstemp(prefix="weft-error-", suffix=".txt")
        with open(number, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write("\n".join(lines))
    except OSError:
        return None
    return name

"""The one place where ONNX Runtime is imported: its telemetry starts with the import and must be off before it."""

from __future__ import annotations

import os
import warnings
from importlib.util import find_spec
from typing import Any

from weft.errors import UserError
from weft.startup import SWITCHES, TOO_LATE


def installed() -> bool:
    """Whether there is an ONNX Runtime to import."""
    return find_spec("onnxruntime") is not None


def runtime() -> Any:
    """The package that runs ONNX graphs, with its telemetry off."""
    os.environ.update(SWITCHES)  # again: a program may have changed its environment since `import weft`
    try:
        import onnxruntime
    except ImportError:
        raise UserError("an ONNX model needs the package onnxruntime: pip install 'weft[fast-cpu]'") from None
    onnxruntime.disable_telemetry_events()
    onnxruntime.set_default_logger_severity(4)  # fatal: what it raises it would also print, in color
    if TOO_LATE:
        warnings.warn(
            "onnxruntime was imported before weft and may send telemetry; "
            "import weft first or set ORT_DISABLE_TELEMETRY=1",
            stacklevel=2,
        )
    return onnxruntime

"""Turn your own text into small, fast, private language models, and look inside them."""

from weft.startup import SWITCHES as _SWITCHES  # noqa: F401, I001  (first: see there)

from typing import TYPE_CHECKING, Any

from weft.errors import UserError
from weft.loading import collector_paused
from weft.version import VERSION as __version__

if TYPE_CHECKING:
    from weft.client import Client
    from weft.comparison.compare import compare
    from weft.distillation.distill import distill
    from weft.explain.watch import watch
    from weft.exporters.export import export
    from weft.pruning.prune import prune
    from weft.quantization.quantize import quantize
    from weft.runs.driver import resume
    from weft.runs.finetune import finetune
    from weft.runs.ladder import ladder
    from weft.runs.pretrain import pretrain
    from weft.tasks.chosen import load
    from weft.tasks.model import Model, new
    from weft.tasks.suggest import suggest
    from weft.text.tokenizers.tokenizer import Tokenizer

__all__ = [
    "Client",
    "Model",
    "Tokenizer",
    "UserError",
    "__version__",
    "compare",
    "distill",
    "export",
    "finetune",
    "ladder",
    "load",
    "load_tokenizer",
    "new",
    "pretrain",
    "prune",
    "quantize",
    "resume",
    "suggest",
    "watch",
]

# `import weft` must not wait for torch: what needs it is fetched when it is first asked for.
_LAZY = {
    "Client": "weft.client",
    "Model": "weft.tasks.model",
    "load": "weft.tasks.chosen",
    "new": "weft.tasks.model",
    "pretrain": "weft.runs.pretrain",
    "finetune": "weft.runs.finetune",
    "resume": "weft.runs.driver",
    "distill": "weft.distillation.distill",
    "quantize": "weft.quantization.quantize",
    "prune": "weft.pruning.prune",
    "export": "weft.exporters.export",
    "compare": "weft.comparison.compare",
    "ladder": "weft.runs.ladder",
    "suggest": "weft.tasks.suggest",
    "watch": "weft.explain.watch",
    "Tokenizer": "weft.text.tokenizers.tokenizer",
    "load_tokenizer": "weft.text.tokenizers.published",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'weft' has no attribute {name!r}")
    from importlib import import_module

    with collector_paused():
        return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""What a walk is made from: a text as a network reads it, and what the modules of the network read and gave."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from weft.errors import UserError
from weft.explain.token_names import token_names
from weft.explain.walk_steps import Array
from weft.generation.generate import generate
from weft.generation.sampling import Sampling
from weft.generation.search import Completion
from weft.nn.rows import Rows
from weft.tasks.complete import sources_of, writer_of
from weft.tasks.forward import evaluating, framing_for, tokenizer_of
from weft.tasks.model import Model
from weft.text.windows import pieces, segments_of

MOST_TOKENS = 64


def plain(x: Tensor) -> Array:
    """An array on the CPU, in float32 at least."""
    x = x.detach().cpu()
    return (x.float() if x.dtype in (torch.float16, torch.bfloat16) else x).numpy()


class ModuleCalls:
    """What the modules of a network read and gave, call by call: ALBERT calls its one layer again and again."""

    def __init__(self) -> None:
        self.calls: dict[nn.Module, list[tuple[tuple[Any, ...], Any]]] = {}

    def add(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        self.calls.setdefault(module, []).append((inputs, output))

    def output(self, module: nn.Module, call: int = 0) -> Array:
        return plain(self.calls[module][call][1])

    def inputs(self, module: nn.Module, call: int = 0) -> tuple[Any, ...]:
        return self.calls[module][call][0]

    def input(self, module: nn.Module, call: int = 0) -> Array:
        return plain(self.inputs(module, call)[0])


@contextmanager
def recorded(network: nn.Module) -> Iterator[ModuleCalls]:
    """Record every module of a network while it evaluates, without changing what it computes."""
    calls = ModuleCalls()
    hooks = [module.register_forward_hook(calls.add) for module in network.modules()]
    try:
        with evaluating(network), torch.inference_mode():
            yield calls
    finally:
        for hook in hooks:
            hook.remove()


@dataclass(frozen=True)
class TokenInput:
    """A text as a network reads it."""

    ids: list[int]
    names: list[str]  # the tokens as people read them
    tokens: Tensor
    rows: Rows
    segments: Tensor | None = None
    last: int = -1  # the last token of the text itself, before special tokens

    @staticmethod
    def of(model: Model, ids: Sequence[int], names: Sequence[str], **more: Any) -> TokenInput:
        if not ids:
            raise UserError("the text has no tokens")
        if len(ids) > MOST_TOKENS:
            raise UserError(f"a walk shows texts of up to {MOST_TOKENS} tokens; this one has {len(ids)}")
        device = model.opened.device
        return TokenInput(list(ids), list(names), torch.tensor(ids, device=device), Rows.of([len(ids)], device), **more)


def names_of(model: Model, ids: Sequence[int], written: bool = False) -> list[str]:
    """Tokens as people read them; `written`: of what an encoder-decoder generates."""
    return token_names(writer_of(model.opened) if written else tokenizer_of(model.opened), ids)


def read_text(model: Model, text: str) -> TokenInput:
    """A text as the network reads it: of an encoder-decoder, its encoder."""
    opened = model.opened
    tokenizer = tokenizer_of(opened)
    if opened.family.reads:
        (ids,) = sources_of(opened, [(opened.card.prefix or "") + text])
        return TokenInput.of(model, ids, names_of(model, ids))
    framing = framing_for(opened)
    windows = pieces(framing, tokenizer.ids([text], specials=False)[0], None)
    if len(windows) > 1:
        raise UserError(f"the text is longer than the model's window of {framing.length} tokens")
    window, segments = windows[0], None
    ids = list(window.tokens)
    marks = framing.marks(False)
    if marks:
        table = segments_of(np.array([window.border]), np.array([len(ids)]), marks)
        segments = torch.from_numpy(table).to(opened.device)
    last = max(0, window.lead + window.cut.end - window.cut.start - 1)
    return TokenInput.of(model, ids, names_of(model, ids), segments=segments, last=last)


def generated(model: Model, prompt: Sequence[int], source: Sequence[int] | None, most: int) -> Completion:
    """What the network generates greedily, with the log-probabilities of tokens and, where it has it, its attention."""
    opened = model.opened
    network: Any = opened.network
    end = writer_of(opened).id_of("end")
    options: dict[str, Any] = {"choice": Sampling(), "context": opened.config.context, "max_tokens": most}
    if source is not None:
        options["sources"] = [source]
    ends = () if end is None else (end,)
    with evaluating(network):
        completions = generate(network, [prompt], ends=ends, device=opened.device, alternatives=5, **options)
    return completions[0][0]

"""`weft.watch`: what happens inside a network, as tensors, while it runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

from weft.errors import UserError
from weft.explain.attention import AttentionPanel, Stack, arrays, kept_weights, packed_stack
from weft.explain.seen import Seen, SeenText, StackArrays, watching
from weft.explain.token_names import token_names
from weft.explain.view import TextTable, View
from weft.models.base import Network
from weft.tasks.complete import writer_of
from weft.tasks.forward import tokenizer_of
from weft.tasks.model import Model


class WatchedLayers(Seen):
    """What `weft.watch` has seen; shows its attention in a notebook."""

    def view(self, number: int = 0, window: int | None = None) -> View:
        """The attention of a text as a page; a table of sizes, where there is none."""
        text = self.text(number, window)
        stacks = [
            Stack(name or "self", text.tokens, text.tokens, layers=layers, numbers=numbers_of(stack))
            for name, stack in text.stacks.items()
            if name != "query" and (layers := arrays(stack))
        ]
        for stack in stacks:
            stack.rows = text.source_tokens if stack.name == "encoder" else stack.rows
            stack.columns = stack.columns if stack.name in ("self", "decoder") else text.source_tokens
        title = f"Text {number} of {len(self)}" if len(self) > 1 else "Watched layers"
        if not stacks:
            return View(title, (TextTable(header=("stack", "layer", "hidden", "gates"), rows=sizes_shown(text)),))
        kept, first = kept_weights(stacks), stacks[0]
        content = {"stacks": [packed_stack(stack, kept) for stack in stacks], "layer": 0, "head": 0}
        heads = self.recorder.heads
        note = "" if heads is None else f"Heads that were kept, in this order: {', '.join(map(str, heads))}."
        panel = AttentionPanel(component="attention", content=content, note=note, stack=first, layer=0, head=0)
        return View(title, (panel,))

    def _repr_html_(self) -> str | None:
        texts = self.windows
        return self.view(0, 0)._repr_html_() if texts else None


def numbers_of(stack: StackArrays) -> list[int] | None:
    """The numbers of the layers that have attention; None: all of them."""
    numbers = [layer for layer in stack.layers if stack.has("attention", layer)]
    return None if numbers == list(range(stack.count)) else numbers


def sizes_shown(text: SeenText) -> list[list[str]]:
    """What was recorded of each layer, in words."""
    rows = []
    for name, stack in text.stacks.items():
        for layer in stack.layers:
            size = " x ".join(map(str, stack.hidden[layer].shape)) if stack.has("hidden", layer) else ""
            gates = ", ".join(stack.gates[layer]) if stack.has("gates", layer) else ""
            rows.append([name or "layers", str(layer), size, gates])
    return rows


@contextmanager
def watch(
    model: Model | nn.Module,
    layers: int | Sequence[int] | Mapping[str, int | Sequence[int]] | None = None,
    heads: int | Sequence[int] | None = None,
    *,
    gradients: bool = False,
    patch: Mapping[Any, Any] | None = None,
    ablate: Sequence[Any] = (),
) -> Iterator[WatchedLayers]:
    """Record what the layers of a model compute, and change it, while the block lasts.

    `layers`: numbers of layers, negative from the end; all of them unless given. All other layers keep their fused
    kernels. Of an encoder-decoder the numbers are those of each stack, or `{"encoder": 0, "cross": [0, 5]}` names
    them. `heads`: keep only these heads. `gradients`: also keep the gradients that `backward()` computes.

    `patch` replaces outputs: `{(layer, head): x}` of a head, `{layer: x}` of a layer, where x is an array, or a
    function that takes and returns a tensor (tokens of all texts, width). `ablate`: heads `(layer, head)`, or layers
    with all their heads, whose output becomes 0. Of an encoder-decoder the stack comes first: `("cross", layer, head)`.

    The block's value has `attention`, `queries`, `keys`, `values`, `head_outputs`, `attention_outputs`, `hidden`,
    `gates` and `memory` by layer, `embeddings`, `tokens`, and `gradients` with the same names. They are PyTorch
    tensors on the CPU, in float32, or float64 where the network is. Of an encoder-decoder they are those of
    `seen.encoder`, `seen.decoder` and `seen.cross`. Of several texts, `seen[n]` picks one, and
    `seen.text(n, window=k)` a window of a long text. Tokens that a model generates are joined to their prompt.
    `seen.lens(layer)` gives the logits of words that a layer would predict.

        with weft.watch(model, layers=[0, 5]) as seen:
            model("The animal didn't cross the street because it was too tired")
        seen.attention[5]
    """
    network: Any = model.network if isinstance(model, Model) else model
    if isinstance(model, Model) and model.opened.exported:
        raise UserError(f"a model exported for {model.card.backend} cannot be watched: load the folder it came from")
    if not isinstance(network, Network):
        raise UserError(f"weft.watch takes a model or a network of Weft, not a {type(model).__name__}")

    def names(ids: Sequence[int], written: bool) -> list[str]:
        if not isinstance(model, Model) or model.tokenizer is None and model.target_tokenizer is None:
            return [str(number) for number in ids]
        return token_names(writer_of(model.opened) if written else tokenizer_of(model.opened), ids)

    options: dict[str, Any] = {"gradients": gradients, "patch": patch, "ablate": ablate}
    with watching(network, layers, heads, names=names, kind=WatchedLayers, **options) as seen:
        yield seen

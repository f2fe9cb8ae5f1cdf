"""The attention of a model for a text, as a page: heads, layers, tokens, sentence A and B, encoder, decoder and cross.

H: heads; T: tokens that attend; S: tokens that are attended to. Of a long text only the largest weights of each token
go into the page.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from weft.checkpoint.folder import LoadedModel
from weft.errors import UserError, shown
from weft.explain.attention_weights import window_attention
from weft.explain.rollout import gradient_rollout, rollout
from weft.explain.scoring import Scorer
from weft.explain.seen import StackArrays, watching
from weft.explain.token_names import token_names
from weft.explain.view import Interactive, View
from weft.nn.attention import MultiHead
from weft.nn.rows import Ragged
from weft.picture import component, packed
from weft.tasks.classify import TextTask
from weft.tasks.complete import complete, sources_of, writer_of
from weft.tasks.forward import batches, evaluating, framing_for, tokenizer_of
from weft.tasks.model import Model
from weft.text.windows import Framing, TextWindow

PAGE = 5_000_000  # characters of packed weights in a page, so that it opens at once
DENSE = 4_000_000  # up to which all weights are in it
FEWEST = 12  # weights of each token that even a page of many heads has
SMALL = 48  # pixels of a head's small picture at most
ROLLED = 2048  # tokens up to which rollout is computed
WEIGHED = 40_000_000  # weights up to which their gradients are computed
WRITTEN = 256  # tokens at most of an encoder-decoder's own output
LABELS = {
    "self": "Self",
    "encoder": "Encoder",
    "decoder": "Decoder",
    "cross": "Cross",
    "gradient": "Gradient-weighted",
}

Weights = NDArray[np.float32]  # H T S


@dataclass
class Stack:
    """The attention of one stack of layers."""

    name: str
    rows: list[str]  # tokens that attend
    columns: list[str]  # tokens that are attended to
    border: int | None = None  # of a pair: where the second text begins
    layers: list[Weights] = field(default_factory=list)
    rolled: Weights | None = None  # 1 T T: through all layers; None: by `rollout`, where tokens attend to themselves
    numbers: Sequence[int] | None = None  # of the layers; None: from 0 on

    @property
    def heads(self) -> int:
        return sum(len(layer) for layer in self.layers)


# ------------------------------------------------------------------------------------------------------- reading


def window_of(windows: list[TextWindow], number: int) -> TextWindow:
    """One window of a text, counted from 1."""
    if not 1 <= number <= len(windows):
        raise UserError(f"window {number}: this text has {len(windows)} window{'s' * (len(windows) > 1)}")
    return windows[number - 1]


def border_of(window: TextWindow, framing: Framing, pair: bool) -> int | None:
    """Where the second text of a pair begins."""
    if not pair or framing.pair is None:
        return None
    first = window.lead == len(framing.pair[0])
    return window.lead + window.cut.end - window.cut.start + len(framing.pair[1]) if first else window.lead


def gradient_stack(model: Model, given: Any, piece: TextWindow, plain: Stack) -> tuple[list[Stack], list[str]]:
    """Attention times the gradient of the model's answer, its positive part; nothing where there is no one logit."""
    opened, length = model.opened, len(piece.tokens)
    if plain.heads * length**2 > WEIGHED:
        return [], []
    try:
        (checked,) = model.task_object.check_inputs([given])
        target = model.task_object.logit_target(opened, framing_for(opened), checked, None)
        number = [list(window.tokens) for window in target.windows].index(list(piece.tokens))
        scorer = Scorer(opened, target)
        read = window_attention(scorer, scorer.embeddings())[number]
    except (UserError, ValueError):  # a task without a logit, or other windows than those of the text
        return [], []
    layers = [
        np.maximum(weights * slopes, 0).astype(np.float32)
        for weights, slopes in zip(read.weights, read.gradients, strict=True)
    ]
    rolled = gradient_rollout(read.weights, read.gradients) - np.eye(length)
    largest = max(float(layer.max()) for layer in layers)
    if not 0 < largest < np.inf:
        return [], []
    layers = [layer / np.float32(largest) for layer in layers]  # float16 holds no small numbers
    whole = (rolled / max(float(rolled.max()), 1e-300)).astype(np.float32)[None]
    note = f"Gradient-weighted attention is that for the logit of {target.name}, relative to its largest value."
    return [Stack("gradient", plain.rows, plain.columns, plain.border, layers, whole)], [note]


def one_stack(model: Model, texts: Sequence[str], window: int) -> tuple[list[Stack], list[str]]:
    """The attention of an encoder or decoder for a text or a pair, and notes on what is shown."""
    opened, framing = model.opened, framing_for(model.opened)
    tokenizer, task = tokenizer_of(opened), TextTask("classify", either=True)
    given: Any = texts[0] if len(texts) == 1 else tuple(texts)
    windows = task.encode(task.check_inputs([given]), tokenizer, framing).pieces[0]
    piece = window_of(windows, window)
    notes = []
    if len(windows) > 1:
        notes.append(f"The text has {len(windows)} windows; this is window {window} (--window N shows another).")
    names = token_names(tokenizer, piece.tokens)
    stack = Stack("self", names, names, border_of(piece, framing, len(texts) > 1))
    with evaluating(model.network):
        with torch.inference_mode(), watching(model.network) as seen:
            _, batch = next(batches([piece], opened.device, framing.marks(len(texts) > 1)))
            model.network(batch.tokens, batch.rows, batch.segments)
        stack.layers = arrays(seen.stack())
        weighted, more = gradient_stack(model, given, piece, stack)
    return [stack, *weighted], notes + more


@torch.inference_mode()
def two_stacks(model: Model, text: str, target: str | None) -> tuple[list[Stack], list[str]]:
    """The attention of an encoder-decoder: what the encoder reads, and what the decoder reads of both."""
    opened = model.opened
    writer = writer_of(opened)
    notes = []
    if target is None:
        with evaluating(model.network):
            target = complete(opened, [text], max_tokens=WRITTEN)[0].text
        notes.append(f"The decoder reads the model's own output: {shown(target, 200)!r} (--target TEXT shows another).")
    (source,) = sources_of(opened, [(opened.card.prefix or "") + text])
    ids = [opened.config.begin, *writer.ids([target], specials=False)[0]]
    context = opened.config.context
    for name, tokens in (("text", source), ("target", ids)):
        if len(tokens) > context:
            raise UserError(f"the {name} has {len(tokens)} tokens, more than the model's context of {context}")
    names, targets = token_names(tokenizer_of(opened), source), token_names(writer, ids)
    stacks = [Stack("encoder", names, names), Stack("decoder", targets, targets), Stack("cross", targets, names)]
    with evaluating(model.network), watching(model.network) as seen:
        written = Ragged.of([ids], opened.device)
        model.network(written.tokens, written.rows, source=Ragged.of([source], opened.device))
    watched = seen.only().stacks
    for stack in stacks:
        stack.layers = arrays(watched[stack.name]) if stack.name in watched else []
    stacks = [stack for stack in stacks if stack.layers]
    if not stacks:
        raise UserError(f"{opened.family.name}: this model was made without attention to what it reads")
    return stacks, notes


def arrays(stack: StackArrays) -> list[Weights]:
    """The attention of each watched layer; nothing where there is none."""
    return [stack.attention[layer].float().numpy() for layer in stack.layers if stack.has("attention", layer)]


# ------------------------------------------------------------------------------------------------------- packing


def small(weights: Weights) -> NDArray[np.uint8]:
    """H s s: each head as a small picture, the largest weight of each square, by its square root."""
    heads, rows, columns = weights.shape
    down, across = min(SMALL, rows), min(SMALL, columns)
    starts = [np.arange(size) * count // size for size, count in ((down, rows), (across, columns))]
    largest = np.maximum.reduceat(np.maximum.reduceat(weights, starts[0], axis=1), starts[1], axis=2)
    most = largest.max((1, 2), keepdims=True)
    return np.round(255 * np.sqrt(largest / np.maximum(most, 1e-12))).astype(np.uint8)


def packed_layer(weights: Weights, kept: int | None) -> dict[str, Any]:
    """One layer as JSON: all weights, or the `kept` largest of each token with their places; values are float16."""
    layer: dict[str, Any] = {"heads": len(weights), "thumbnails": packed(small(weights))}
    if kept is None or kept >= weights.shape[-1]:
        return {**layer, "values": packed(weights.astype(np.float16))}
    index = np.argpartition(weights, -kept, axis=-1)[..., -kept:]
    values = np.take_along_axis(weights, index, -1)
    share = float(values.sum() / weights.sum())
    return {
        **layer,
        "kept": kept,
        "share": share,
        "index": packed(index.astype(np.uint16)),
        "values": packed(values.astype(np.float16)),
        "note": f"The page holds the {kept} largest weights of each token: {share:.1%} of this layer's attention.",
    }


def kept_weights(stacks: Sequence[Stack]) -> int | None:
    """How many weights of each token fit into a page; None: all of them."""
    rows = sum((stack.heads + 1) * len(stack.rows) for stack in stacks)
    whole = sum((stack.heads + 1) * len(stack.rows) * len(stack.columns) for stack in stacks)
    return None if whole * 2 * 4 / 3 <= DENSE else max(FEWEST, int(PAGE * 0.75 / 4 / rows))


def packed_stack(stack: Stack, kept: int | None) -> dict[str, Any]:
    """One stack as JSON; rollout follows its layers where tokens attend to themselves."""
    same = stack.name != "cross"
    layers = [
        {"name": str(number), "label": f"Layer {number}", **packed_layer(weights, kept)}
        for number, weights in zip(stack.numbers or range(len(stack.layers)), stack.layers, strict=True)
    ]
    rolled = stack.rolled
    if rolled is None and stack.numbers is None and same and len(layers) > 1 and len(stack.rows) <= ROLLED:
        rolled = rollout([layer.mean(0, keepdims=True) for layer in stack.layers])[None].astype(np.float32)
    if rolled is not None:
        layers.append({"name": "rollout", "label": "Rollout through all layers", **packed_layer(rolled, kept)})
    border = len(stack.rows) if stack.border is None else stack.border
    sides = [int(number >= border) for number in range(len(stack.rows))]
    return {
        "name": stack.name,
        "label": LABELS[stack.name],
        "rows": stack.rows,
        "columns": stack.columns,
        "row_sides": sides,
        "column_sides": sides if same else [0] * len(stack.columns),
        "same": same,
        "pair": stack.border is not None,
        "layers": layers,
    }


# ---------------------------------------------------------------------------------------------------------- view


@dataclass(frozen=True, kw_only=True)
class AttentionPanel(Interactive):
    """The interactive page, and one head as a heat map for .png and .svg."""

    stack: Stack
    layer: int
    head: int

    is_plot: ClassVar[bool] = True

    def body(self) -> str:
        """The weights stand in elements of their own, which the browser need not parse before a layer is shown."""
        texts, stacks = list[str](), list[Any]()
        for number, stack in enumerate(self.content["stacks"]):
            layers = [dict(layer) for layer in stack["layers"]]
            for place, layer in enumerate(layers):
                for name in ("values", "index"):
                    if name in layer:
                        mark = f'type="application/json" data-weights="{number}/{place}/{name}"'
                        texts.append(f"<script {mark}>{layer.pop(name)['data']}</script>")
            stacks.append({**stack, "layers": layers})
        return component(self.component, {**self.content, "stacks": stacks}) + "".join(texts)

    def data(self) -> Any:
        """The weights as numbers: heads x rows x columns, or the places and values of the largest of each row."""
        stacks = []
        for stack in self.content["stacks"]:
            layers = [
                {
                    **{name: value for name, value in layer.items() if name not in ("thumbnails", "values", "index")},
                    **{name: unpacked(layer[name]) for name in ("index", "values") if name in layer},
                }
                for layer in stack["layers"]
            ]
            stacks.append({**stack, "layers": layers})
        return {**self.content, "stacks": stacks}

    def draw(self, axes: Any) -> None:
        stack = self.stack
        image = axes.imshow(stack.layers[self.layer][self.head], cmap="Blues", vmin=0, aspect="auto")
        if max(len(stack.rows), len(stack.columns)) <= 80:
            axes.set_xticks(range(len(stack.columns)), stack.columns, rotation=90)
            axes.set_yticks(range(len(stack.rows)), stack.rows)
        axes.set(title=f"Layer {self.layer}, head {self.head}", xlabel="attended to", ylabel="attends")
        axes.figure.colorbar(image)


def unpacked(packed_array: dict[str, Any]) -> Any:
    """What `packed` wrote, as lists; weights have five digits after the point."""
    kind = np.dtype(packed_array["type"]).newbyteorder("<")
    array = np.frombuffer(b64decode(packed_array["data"]), kind).reshape(packed_array["shape"])
    return array.tolist() if kind.kind != "f" else array.astype(np.float64).round(5).tolist()


def check_attention(opened: LoadedModel) -> None:
    """Refuse a model that has no attention from token to token, with what there is to see instead."""
    name, family = opened.family.name, opened.family
    if opened.exported:
        raise UserError(
            f"a model exported for {opened.card.backend} hands out no attention: give the folder it came from"
        )
    if family.series or family.numbers:
        raise UserError(f"{name}: this model reads numbers, not text; 'weft info MODEL' shows what it is made of")
    if family.counts:
        raise UserError(
            f"{name}: a model of counts has no attention; 'weft look next MODEL --text TEXT' shows its next words"
        )
    if not family.reads and not any(isinstance(module, MultiHead) for module in opened.network.modules()):
        instead = "'weft look attribution MODEL TEXT' shows which words mattered"
        raise UserError(f"{name}: this model has no attention; {instead}")


def described(opened: LoadedModel, stacks: Sequence[Stack], texts: Sequence[str | None]) -> str:
    """The text, and how large the model is."""
    quoted = " / ".join(f"“{shown(text, 160)}”" for text in texts if text is not None)
    sizes = {(len(stack.layers), len(stack.layers[0])) for stack in stacks}
    layers, heads = max(sizes)
    plural = "s" * (layers > 1), "s" * (heads > 1)
    return f"{quoted} · {opened.family.name}, {layers} layer{plural[0]}, {heads} head{plural[1]} each"


def attention_view(
    model: Model,
    text: str,
    text_b: str | None = None,
    *,
    target: str | None = None,
    layer: int = 0,
    head: int = 0,
    window: int = 1,
) -> View:
    """The attention of a model for a text, or for the two texts of a pair, as a page.

    `target`: what the decoder of an encoder-decoder reads; the model's own output unless given. `window`: of a text
    that is longer than the model's context, counted from 1.
    """
    opened = model.opened
    check_attention(opened)
    if opened.family.reads:
        if text_b is not None:
            raise UserError("an encoder-decoder reads one text; what its decoder reads is --target TEXT")
        stacks, notes = two_stacks(model, text, target)
    else:
        if target is not None:
            raise UserError(f"--target is for encoder-decoders, and {opened.family.name} is none")
        stacks, notes = one_stack(model, [text] if text_b is None else [text, text_b], window)
    first = stacks[0]
    if not 0 <= layer < len(first.layers):
        raise UserError(f"--layer {layer}: this model has layers 0 to {len(first.layers) - 1}")
    if not 0 <= head < len(first.layers[layer]):
        raise UserError(f"--head {head}: this layer has heads 0 to {len(first.layers[layer]) - 1}")
    kept = kept_weights(stacks)
    content = {"stacks": [packed_stack(stack, kept) for stack in stacks], "layer": layer, "head": head}
    panel = AttentionPanel(
        component="attention", content=content, note=" ".join(notes), stack=first, layer=layer, head=head
    )
    name = model.folder.name if model.folder else opened.family.name
    return View(f"Attention of {name}", (panel,), described(opened, stacks, [text, text_b]))

"""What was recorded of a watched network, by text, stack and layer, as tensors.

H: heads; T: tokens of a text; S: tokens that it attends to; D: width of a head; W: width of a layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor

from weft.errors import UserError, listed
from weft.explain.recording import Edit, LayerRecord, Pass, PassRecord, Place, WatchRecorder, WeightPiece, taps_of
from weft.nn.layers import Layer
from weft.nn.two_streams import SegmentedLayer

Value = TypeVar("Value", covariant=True)
Link = tuple[PassRecord, int]  # a pass or a decoding step, and a row of it
Layers = int | Sequence[int] | Mapping[str, int | Sequence[int]] | None
PIECES = {"head_outputs": "mixed", "attention_outputs": "outputs"}  # names of lists in a `LayerRecord`
TURNED = ("queries", "keys", "values", "head_outputs")  # T H D as recorded, H T D as handed out


class ByLayer(Mapping[int, Value]):
    """Something of each watched layer: `attention[5]`, or `attention[-1]` for the highest layer of the network."""

    def __init__(self, name: str, layers: Sequence[int], count: int, read: Callable[[int], Value]) -> None:
        self.name, self.layers, self.count, self.read = name, layers, count, read

    def __getitem__(self, layer: int) -> Value:
        number = layer + self.count if layer < 0 else layer
        if number not in self.layers:
            names = ", ".join(map(str, self.layers))
            raise UserError(f"{self.name}[{layer}]: layer {layer} was not watched; watched: {names or 'none'}")
        return self.read(number)

    def __iter__(self) -> Iterator[int]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)

    def __contains__(self, layer: object) -> bool:
        return isinstance(layer, int) and (layer + self.count if layer < 0 else layer) in self.layers

    def __repr__(self) -> str:
        return f"<{self.name} of layers {', '.join(map(str, self.layers))}>"


class Quantities:
    """What can be asked of a stack, of a text that has one stack, and of a watch that has seen one text.

    Tensors are on the CPU, in float32, or in float64 where the network is.
    """

    def stack(self) -> StackArrays:
        """The arrays of the only stack of the only text."""
        raise NotImplementedError

    @property
    def attention(self) -> ByLayer[Tensor]:
        """Attention weights by layer, H T S: after the softmax and before dropout."""
        return self.stack().by_layer("attention")

    @property
    def queries(self) -> ByLayer[Tensor]:
        """Queries by layer, H T D."""
        return self.stack().by_layer("queries")

    @property
    def keys(self) -> ByLayer[Tensor]:
        """Keys by layer, H S D."""
        return self.stack().by_layer("keys")

    @property
    def values(self) -> ByLayer[Tensor]:
        """Values by layer, H S D."""
        return self.stack().by_layer("values")

    @property
    def head_outputs(self) -> ByLayer[Tensor]:
        """Values mixed by the attention of each head, by layer, H T D: what the output map reads."""
        return self.stack().by_layer("head_outputs")

    @property
    def attention_outputs(self) -> ByLayer[Tensor]:
        """Attention after the output map, by layer, T W."""
        return self.stack().by_layer("attention_outputs")

    @property
    def hidden(self) -> ByLayer[Tensor]:
        """Outputs of layers, T W, before the final norm of the network."""
        return self.stack().by_layer("hidden")

    @property
    def embeddings(self) -> Tensor:
        """Input of the first layer, T W: token embeddings with positions."""
        return self.stack().read("embeddings", 0)

    @property
    def gates(self) -> ByLayer[dict[str, Tensor]]:
        """Gates of recurrent cells by layer and name, T W each, after the sigmoid or tanh.

        LSTM: input, forget, cell, output. GRU: reset, update, new.
        """
        return self.stack().gates_by_layer()

    @property
    def memory(self) -> ByLayer[Tensor]:
        """Memory cells of LSTM layers, T W."""
        return self.stack().by_layer("memory")


class StackArrays(Quantities):
    """One stack of layers in one text."""

    def __init__(self, name: str, links: Sequence[Link], layers: Sequence[int], count: int, text: SeenText) -> None:
        self.name, self.links, self.layers, self.count, self.text = name, links, layers, count, text

    def __repr__(self) -> str:
        return f"<stack {self.name or 'of layers'}: watched {', '.join(map(str, self.layers))} of {self.count} layers>"

    def stack(self) -> StackArrays:
        return self

    @property
    def gradients(self) -> StackArrays:
        """The same of gradients: those of the tensor that `backward()` was called on."""
        return self.text.gradients.stacks[self.name]

    def by_layer(self, name: str) -> ByLayer[Tensor]:
        return ByLayer(name, self.layers, self.count, lambda layer: self.read(name, layer))

    def gates_by_layer(self) -> ByLayer[dict[str, Tensor]]:
        return ByLayer("gates", self.layers, self.count, self.read_gates)

    def read_gates(self, layer: int) -> dict[str, Tensor]:
        names = list(self._records(layer)[0][0].gates)
        if not names:
            raise UserError(f"gates[{layer}]: this layer has no gates")
        return {name: self._joined([(r.gates[name], length, row) for r, length, row in self._records(layer)])
                for name in names}  # fmt: skip

    def has(self, name: str, layer: int) -> bool:
        """Whether something of a layer was recorded."""
        return any(vars(record)[PIECES.get(name, name)] for record, _, _ in self._records(layer))

    def read(self, name: str, layer: int, raw: bool = False) -> Tensor:
        """One quantity of one layer, of the whole text; `raw`: where and as it was recorded."""
        records = self._records(layer)
        lists = [(vars(record)[PIECES.get(name, name)], length, row) for record, length, row in records]
        if not any(pieces for pieces, _, _ in lists):
            raise UserError(f"{name}[{layer}]: nothing was recorded: this layer has none, or was not run")
        if name == "attention":
            return self._selected(self._matrix(lists))
        if self.name == "cross" and name in ("keys", "values"):
            pieces, _, row = lists[0]
            whole = pieces[0].of(row, self.text.is_gradient)[: self.text.source_length]  # S H D
        else:
            whole = self._joined(lists, on_device=True)
        if raw:
            return whole
        return self._selected(whole.transpose(0, 1)) if name in TURNED else plain(whole)

    def _records(self, layer: int) -> list[tuple[LayerRecord, int | None, int]]:
        """The records of a layer, with how many tokens the text has in each, and which row it is."""
        read = self.name == "encoder"
        found = []
        for record, row in self.links[:1] if read else self.links:
            rows = record.source_rows if read else record.rows
            length = None if rows is None or self.name == "query" else int(rows.lengths()[row])
            found.append((record.at((self.name, layer)), length, row))
        return found

    def _selected(self, whole: Tensor) -> Tensor:
        """Of the heads that are kept; where there are gradients, the recorder has kept all of them."""
        heads = self.text.recorder.heads
        return plain(whole if heads is None or not self.text.recorder.gradients else whole[list(heads)])

    def _joined(self, lists: Sequence[tuple[list[Any], int | None, int]], on_device: bool = False) -> Tensor:
        """The pieces of all records one after the other: T ..."""
        parts = []
        for pieces, length, row in lists:
            if pieces:  # cells that go place by place also go beyond the end of a short row
                parts.append(torch.cat([piece.of(row, self.text.is_gradient) for piece in pieces])[:length])
        whole = torch.cat(parts)
        return whole if on_device else plain(whole)

    def _matrix(self, lists: Sequence[tuple[list[WeightPiece], int | None, int]]) -> Tensor:
        """H T S: the weights of segments and decoding steps below each other, each from its first column on."""
        blocks: list[tuple[Tensor, int]] = []
        known = 0  # tokens that were keys before
        for pieces, length, row in lists:
            parts = [piece.of(row, self.text.is_gradient) for piece in pieces]
            if self.name == "cross":
                blocks.append((torch.cat(parts, 1)[:, :length, : self.text.source_length], 0))
                continue
            for piece, part in zip(pieces, parts, strict=True):
                if piece.memory is None:  # keys from the start of the row, up to the longest row
                    part = part[..., : known + part.shape[1]]
                first = 0 if piece.memory is None else known - piece.memory
                known = part.shape[-1] + first
                blocks.append((part[..., max(0, -first) :], max(0, first)))
        width = max(part.shape[-1] + first for part, first in blocks)
        return torch.cat(
            [torch.nn.functional.pad(part, (first, width - first - part.shape[-1])) for part, first in blocks], 1
        )


class SeenText(Quantities):
    """One text, or one window of a long text, as the network has read or generated it."""

    def __init__(self, seen: Seen, run: Pass, links: Sequence[Link], gradients: bool = False) -> None:
        self.seen, self.run, self.links, self.is_gradient = seen, run, links, gradients
        self.recorder = seen.recorder
        self.stacks = {
            name: StackArrays(name, links, layers, seen.depths[name], self) for name, layers in seen.layers.items()
        }

    def __repr__(self) -> str:
        return f"<a text of {len(self.ids)} tokens>"

    @property
    def ids(self) -> list[int]:
        """Ids of the tokens that the network read, those that it generated and read again included."""
        return [token for record, row in self.links for token in ids_of(record.tokens, record.rows, row)]

    @property
    def source_ids(self) -> list[int]:
        """Ids of the tokens that the encoder read."""
        record, row = self.links[0]
        return ids_of(record.source, record.source_rows, row)

    @property
    def source_length(self) -> int | None:
        record, row = self.links[0]
        return None if record.source_rows is None else int(record.source_rows.lengths()[row])

    @property
    def tokens(self) -> list[str]:
        """The tokens as text: as many as the rows of `attention`."""
        return self.seen.names(self.ids, written=True)

    @property
    def source_tokens(self) -> list[str]:
        """The tokens that the encoder read: as many as the columns of `cross.attention`."""
        return self.seen.names(self.source_ids, written=False)

    @property
    def gradients(self) -> SeenText:
        """The same of gradients: those of the tensor that `backward()` was called on."""
        if not self.recorder.gradients:
            raise UserError("gradients were not recorded: weft.watch(model, gradients=True)")
        return SeenText(self.seen, self.run, self.links, gradients=True)

    @torch.no_grad()
    def lens(self, layer: int | str) -> Tensor:
        """Logits of words, T vocabulary, that the word head gives for the output of a layer (Nostalgebraist, 2020).

        Those of the highest layer are the logits of the model. `"embeddings"`: of the input of the first layer.
        """
        if self.is_gradient:
            raise UserError("a lens reads outputs of layers, not gradients")
        names = [name for name in ("query", "decoder", "") if name in self.stacks and has_hidden(self.stacks[name])]
        if not names:
            raise UserError("no layer of a stack that predicts words was watched")
        stack = self.stacks[names[0]]
        if layer == "embeddings":
            hidden = stack.read("embeddings", 0, raw=True)
            width = stack.read("hidden", stack.layers[-1], raw=True).shape[-1]
            if hidden.shape[-1] != width:
                wide = f"embeddings are {hidden.shape[-1]} wide"
                raise UserError(f"lens('embeddings'): {wide}, and the word head reads a width of {width}")
        elif isinstance(layer, int):
            hidden = ByLayer("lens", stack.layers, stack.count, lambda n: stack.read("hidden", n, raw=True))[layer]
        else:
            raise UserError(f"lens({layer!r}): give the number of a layer, or 'embeddings'")
        return plain(self.seen.network.lens(hidden))

    @property
    def encoder(self) -> StackArrays:
        """The encoder of an encoder-decoder."""
        return self._named("encoder")

    @property
    def decoder(self) -> StackArrays:
        """The decoder of an encoder-decoder, without its attention to the encoder."""
        return self._named("decoder")

    @property
    def cross(self) -> StackArrays:
        """The attention of a decoder to its encoder."""
        return self._named("cross")

    @property
    def query(self) -> StackArrays:
        """The query stream of XLNet."""
        return self._named("query")

    def stack(self) -> StackArrays:
        if "" not in self.stacks:
            names = listed([f".{name}" for name in self.stacks], 4)
            raise UserError(f"this network has several stacks of layers: say which one: {names}")
        return self.stacks[""]

    def _named(self, name: str) -> StackArrays:
        if name not in self.stacks:
            names = listed([f".{name}" if name else "the only one" for name in self.stacks], 4)
            raise UserError(f"no layer of a stack {name!r} was watched; watched: {names}")
        return self.stacks[name]


class Seen(Quantities):
    """What a watch has seen: `seen.attention[5]` of the only text, `seen[2].attention[5]` of the third of several.

    A text that was read in windows has one matrix for each: `seen.text(2, window=1)`.
    """

    def __init__(
        self,
        network: Any,
        recorder: WatchRecorder,
        layers: Mapping[str, Sequence[int]],
        names: Callable[[Sequence[int], bool], list[str]] | None = None,
    ) -> None:
        self.network, self.recorder, self.layers = network, recorder, layers
        self.depths = {name: count for name, (count, _) in sizes_of(network).items()}
        self._names = names

    def __repr__(self) -> str:
        texts = len(self)
        return f"<watched: {texts} text{'s' * (texts != 1)}, {', '.join(map(repr, self.layers_shown()))}>"

    def layers_shown(self) -> list[str]:
        """The watched layers of each stack, in words."""
        return [f"{name} layers {', '.join(map(str, own))}".strip() for name, own in self.layers.items()]

    def names(self, ids: Sequence[int], written: bool) -> list[str]:
        """Tokens as text; numbers, where the network has no tokenizer."""
        return [str(number) for number in ids] if self._names is None else self._names(ids, written)

    @property
    def windows(self) -> list[list[SeenText]]:
        """Every text in the order of the calls, and its windows."""
        texts: list[dict[int, SeenText]] = []
        first = 0  # text of the present call
        for run in self.recorder.passes:
            labels = run.windows or [(row, 0) for row in range(run.count)]
            known = [number for number, _ in labels if first + number < len(texts)]
            if not run.windows or any(window in texts[first + number] for number, window in labels if number in known):
                first = len(texts)
            for row, (number, window) in enumerate(labels):
                texts += [{} for _ in range(first + number + 1 - len(texts))]
                texts[first + number][window] = SeenText(self, run, run.links(row))
        return [[text[number] for number in sorted(text)] for text in texts if text]

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, number: int) -> SeenText:
        return self.text(number)

    def __iter__(self) -> Iterator[SeenText]:
        for number, several in enumerate(self.windows):
            yield several[0] if len(several) == 1 else self.text(number)

    def text(self, number: int = 0, window: int | None = None) -> SeenText:
        """One text, counted from 0 in the order of the calls; of one that was read in several windows, one of them."""
        texts = self.windows
        if not texts:
            raise UserError("nothing was seen yet: call the model inside the with block")
        if not -len(texts) <= number < len(texts):
            raise UserError(f"text {number}: {len(texts)} were seen, counted from 0")
        several = texts[number]
        if window is None and len(several) > 1:
            raise UserError(f"text {number} was read in {len(several)} windows: text({number}, window=0) is the first")
        if not -len(several) <= (window or 0) < len(several):
            raise UserError(f"window {window}: text {number} has {len(several)}, counted from 0")
        return several[window or 0]

    def only(self) -> SeenText:
        """The only text."""
        count = len(self)
        if count > 1:
            raise UserError(f"{count} texts were seen: pick one, as seen[0]")
        return self.text()

    def stack(self) -> StackArrays:
        return self.only().stack()

    def lens(self, layer: int | str) -> Tensor:
        """Logits of words that a layer would predict, T vocabulary."""
        return self.only().lens(layer)

    @property
    def tokens(self) -> list[str]:
        """The tokens of the text."""
        return self.only().tokens

    @property
    def ids(self) -> list[int]:
        """Ids of the tokens of the text."""
        return self.only().ids

    @property
    def source_tokens(self) -> list[str]:
        """The tokens that the encoder read."""
        return self.only().source_tokens

    @property
    def encoder(self) -> StackArrays:
        """The encoder of an encoder-decoder."""
        return self.only().encoder

    @property
    def decoder(self) -> StackArrays:
        """The decoder of an encoder-decoder, without its attention to the encoder."""
        return self.only().decoder

    @property
    def cross(self) -> StackArrays:
        """The attention of a decoder to its encoder."""
        return self.only().cross

    @property
    def query(self) -> StackArrays:
        """The query stream of XLNet."""
        return self.only().query

    @property
    def gradients(self) -> SeenText:
        """The same of gradients: `seen.gradients.attention[5]` after `backward()`."""
        return self.only().gradients

    def attention_tensors(self) -> list[Tensor]:
        """The attention of all layers in the latest pass, as parts of the graph of gradients."""
        layers = self.recorder.now.layers.values()
        weights = [piece.weights for layer in layers for piece in layer.attention]
        return [part for own in weights for part in ((own,) if isinstance(own, Tensor) else own.parts)]

    def clear(self) -> None:
        """Forget everything that was seen, which frees its memory."""
        self.recorder.passes.clear()


# ------------------------------------------------------------------------------------------------------ selecting


def has_hidden(stack: StackArrays) -> bool:
    return any(stack.has("hidden", layer) for layer in stack.layers)


def plain(tensor: Tensor) -> Tensor:
    """On the CPU, and in float32 at least."""
    tensor = tensor.cpu()
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


def ids_of(tokens: Tensor | None, rows: Any, row: int) -> list[int]:
    """The tokens of one row; none of a network that reads numbers."""
    if tokens is None or rows is None or tokens.dim() != 1:
        return []
    begin, end = rows.starts[row : row + 2].tolist()
    return [int(token) for token in tokens[begin:end].tolist()]


def sizes_of(network: Any) -> dict[str, tuple[int, int]]:
    """Layers of each stack that can be watched, and heads of a layer; 0: without attention."""
    sizes: dict[str, tuple[int, int]] = {}
    for name, modules in network.stacks().items():
        layers = [module for module in modules if isinstance(module, Layer | SegmentedLayer)]
        sizes[name] = len(modules), max((layer.attention.heads for layer in layers), default=0)
        crossing = [layer.cross.heads for layer in layers if isinstance(layer, Layer) and layer.reads]
        if crossing:
            sizes["cross"] = len(modules), max(crossing)
        if any(isinstance(layer, SegmentedLayer) for layer in layers):
            sizes["query"] = sizes[name]
    if network.looking is not None:
        sizes["cross"] = network.looking_layers, 1
    return sizes


def number_in(number: int, count: int, what: str) -> int:
    """A number that may count from the end."""
    if isinstance(number, bool) or not isinstance(number, int) or not -count <= number < count:
        raise UserError(f"{what} {number!r} is not between {-count} and {count - 1}")
    return number % count


def layers_of(layers: Layers, sizes: Mapping[str, tuple[int, int]]) -> dict[str, list[int]]:
    """The layers asked for of each stack."""
    if layers is None:
        return {name: list(range(count)) for name, (count, _) in sizes.items()}
    if isinstance(layers, Mapping):
        for name in layers:
            if name not in sizes:
                raise UserError(f"layers: no stack {name!r}; this network has {listed(list(sizes), 4)}")
        wanted = {name: [own] if isinstance(own, int) else list(own) for name, own in layers.items()}
        return {name: [number_in(n, sizes[name][0], f"{name} layer") for n in own] for name, own in wanted.items()}
    numbers = [layers] if isinstance(layers, int) else list(layers)
    deepest = max(count for count, _ in sizes.values())
    for number in numbers:
        number_in(number, deepest, "layer")
    chosen = {name: [n % count for n in numbers if -count <= n < count] for name, (count, _) in sizes.items()}
    return {name: sorted(set(own)) for name, own in chosen.items() if own}


def place_of(key: Any, sizes: Mapping[str, tuple[int, int]], what: str) -> tuple[Place, int | None]:
    """The stack, the layer, and the head where there is one, of a key of `patch` or `ablate`."""
    parts = key if isinstance(key, tuple) else (key,)
    named = bool(parts) and isinstance(parts[0], str)
    stack = parts[0] if named else ""
    numbers = parts[1:] if named else parts
    if stack not in sizes:
        first = next(iter(sizes))
        example = f"({first!r}, 0, 1)" if first else "(0, 1)"
        raise UserError(f"{what} {key!r}: give (layer, head) or layer, after the name of the stack: {example}")
    if not 1 <= len(numbers) <= 2:
        raise UserError(f"{what} {key!r}: give (layer, head), or a layer")
    count, heads = sizes[stack]
    layer = number_in(numbers[0], count, f"{what}: layer")
    if len(numbers) == 1:
        return (stack, layer), None
    if not heads:
        raise UserError(f"{what} {key!r}: this network has no heads of attention there")
    return (stack, layer), number_in(numbers[1], heads, f"{what}: head")


def edits_of(
    patch: Mapping[Any, Edit], ablate: Sequence[Any], sizes: Mapping[str, tuple[int, int]]
) -> dict[Place, list[tuple[int | None, Edit]]]:
    """What replaces the outputs of heads (or, without a head, of layers), by place."""
    edits: dict[Place, list[tuple[int | None, Edit]]] = {}
    for key, edit in patch.items():
        place, head = place_of(key, sizes, "patch")
        if head is None and place[0] == "cross":
            raise UserError(f"patch {key!r}: cross attention is a part of a decoder layer: give a head")
        edits.setdefault(place, []).append((head, edit))
    for key in ablate:
        place, head = place_of(key, sizes, "ablate")
        if not sizes[place[0]][1]:
            raise UserError(f"ablate {key!r}: this network has no heads of attention there")
        heads = range(sizes[place[0]][1]) if head is None else (head,)
        edits.setdefault(place, []).extend((number, 0.0) for number in heads)
    return edits


@contextmanager
def watching(
    network: Any,
    layers: Layers = None,
    heads: int | Sequence[int] | None = None,
    *,
    gradients: bool = False,
    patch: Mapping[Any, Edit] | None = None,
    ablate: Sequence[Any] = (),
    names: Callable[[Sequence[int], bool], list[str]] | None = None,
    kind: type[Seen] = Seen,
) -> Iterator[Any]:
    """Watch a network for as long as the block lasts; see `weft.watch`."""
    sizes = sizes_of(network)
    if not sizes:
        raise UserError(f"{type(network).__name__} has no layers that could be watched")
    chosen = layers_of(layers, sizes)
    most = max(count for _, count in sizes.values())
    numbers = None if heads is None else [heads] if isinstance(heads, int) else list(heads)
    if numbers is not None and not most:
        raise UserError("heads: this network has no attention")
    kept = None if numbers is None else [number_in(head, most, "head") for head in numbers]
    recorder = WatchRecorder(chosen, edits_of(patch or {}, ablate, sizes), gradients, kept)
    taps = taps_of(network)
    taps.change(add=recorder)
    try:
        yield kind(network, recorder, chosen, names)
    finally:
        taps.change(remove=recorder)

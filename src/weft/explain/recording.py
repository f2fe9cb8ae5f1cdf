"""What happens inside a network while it is watched: the taps in its modules, and the recordings they fill.

N: tokens of all rows; B: rows; H: heads; D: width of a head; T: tokens of one row; S: what they look at; W: width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from weft.errors import UserError
from weft.nn.attention import MultiHead, Sighting, SquareWeights
from weft.nn.layers import Layer
from weft.nn.projected import TwoWayLstm
from weft.nn.recurrent import CellSighting, Recurrent
from weft.nn.rows import DecoderState, Rows
from weft.nn.two_streams import SegmentedLayer

Place = tuple[str, int]  # stack and layer
Edit = Any  # an array, or a function of a tensor
METHODS = ("forward", "next_states", "start", "step", "encode", "decode")


@dataclass(frozen=True)
class TokenPiece:
    """A tensor with the tokens of several rows, and how one row is taken out of it."""

    tensor: Tensor
    rows: Rows
    skip: int = 0  # tokens at the beginning of each row that are left out

    def of(self, row: int, gradient: bool = False) -> Tensor:
        begin, end = self.rows.starts[row : row + 2].tolist()
        return value_of(self.tensor, gradient)[begin + self.skip : end]


@dataclass(frozen=True)
class SourcePiece(TokenPiece):
    """Keys or values that were laid out for decoding: sources H S D."""

    def of(self, row: int, gradient: bool = False) -> Tensor:
        return value_of(self.tensor, gradient)[row].transpose(0, 1)


@dataclass(frozen=True)
class WeightPiece:
    """Attention weights of a pass, or of a decoding step (N H 1 S)."""

    weights: SquareWeights | Tensor
    rows: Rows
    memory: int | None = None  # as that of a `Sighting`

    def of(self, row: int, gradient: bool = False) -> Tensor:
        """H T S, with filling behind a row's last key."""
        begin, end = self.rows.starts[row : row + 2].tolist()
        if isinstance(self.weights, Tensor):
            return value_of(self.weights, gradient)[begin:end, :, 0].transpose(0, 1)
        part, inside = self.weights.place(row)
        if part < 0:
            return self.weights.parts[0].new_zeros(self.weights.parts[0].shape[1], 0, 0)
        keys = int(self.weights.key_rows.lengths()[row])
        return value_of(self.weights.parts[part], gradient)[inside, :, : end - begin, :keys]


def value_of(tensor: Tensor, gradient: bool) -> Tensor:
    if not gradient:
        return tensor.detach()
    if tensor.grad is None:
        raise UserError("no gradient was recorded: call the network with gradients on, and backward() inside the with")
    return tensor.grad


@dataclass
class LayerRecord:
    """What one layer of one stack did in a pass or a step, in pieces."""

    attention: list[WeightPiece] = field(default_factory=list)
    queries: list[TokenPiece] = field(default_factory=list)
    keys: list[TokenPiece] = field(default_factory=list)
    values: list[TokenPiece] = field(default_factory=list)
    mixed: list[TokenPiece] = field(default_factory=list)
    outputs: list[TokenPiece] = field(default_factory=list)
    hidden: list[TokenPiece] = field(default_factory=list)
    embeddings: list[TokenPiece] = field(default_factory=list)
    memory: list[TokenPiece] = field(default_factory=list)
    gates: dict[str, list[TokenPiece]] = field(default_factory=dict)


@dataclass
class PassRecord:
    """One pass over a batch, or one decoding step."""

    tokens: Tensor | None = None  # N
    rows: Rows | None = None
    source: Tensor | None = None  # M
    source_rows: Rows | None = None
    layers: dict[Place, LayerRecord] = field(default_factory=dict)

    def at(self, place: Place) -> LayerRecord:
        return self.layers.setdefault(place, LayerRecord())


Path = list[tuple[PassRecord, int]]  # a row of a pass, and its rows in the decoding steps after it


@dataclass
class Pass:
    """One pass over a batch, and the decoding steps that went on from it."""

    main: PassRecord
    paths: list[Path] = field(default_factory=list)  # of the rows that are being decoded
    ended: list[Path] = field(default_factory=list)  # of those that are not any more

    @property
    def windows(self) -> Sequence[tuple[int, int]]:
        """Of each row its text and where in it the row begins, where texts were read in windows."""
        rows = self.main.rows
        return () if rows is None else rows.windows

    @property
    def count(self) -> int:
        """Rows."""
        rows = self.main.rows or self.main.source_rows
        return 0 if rows is None else rows.count

    def begin(self) -> None:
        """Decoding begins from here."""
        self.paths = [[(self.main, row)] for row in range(self.count)]

    def step(self, record: PassRecord) -> None:
        """One more token of every row."""
        assert record.rows is not None
        if len(self.paths) == record.rows.count:  # else somebody began to watch in the middle
            self.paths = [[*path, (record, row)] for row, path in enumerate(self.paths)]

    def pick(self, rows: Sequence[int]) -> None:
        """The decoder goes on with these rows; a row may be asked for more than once."""
        self.ended += [path for row, path in enumerate(self.paths) if row not in rows]
        self.paths = [self.paths[row] for row in rows]

    def links(self, row: int) -> Path:
        """The records that a row is made of: the pass, and the steps of decoding; of several hypotheses the longest."""
        own = [path for path in (*self.paths, *self.ended) if path[0][1] == row]
        return max(own, key=len, default=[(self.main, row)])


class WatchRecorder:
    """What one `watch` asked for, and what it has seen."""

    def __init__(
        self,
        places: Mapping[str, Sequence[int]],
        edits: Mapping[Place, list[tuple[int | None, Edit]]],
        gradients: bool,
        heads: Sequence[int] | None = None,
    ) -> None:
        self.places = {(stack, layer) for stack, layers in places.items() for layer in layers}
        self.edits = edits  # of a layer's output (None), or of a head
        self.gradients = gradients
        self.heads = heads  # that are kept; None: all
        self.passes: list[Pass] = []
        self.now = PassRecord()

    def enter(self, name: str, args: Sequence[Any], options: Mapping[str, Any]) -> None:
        """The network is called: a new pass, or a step of the latest one."""
        cache = options.get("cache")
        if name == "step" or (name == "forward" and cache is not None and cache.layers[0].filled):
            tokens = args[0].detach()
            self.now = PassRecord(tokens, Rows.single(len(tokens), tokens.device))
            if self.passes:
                self.passes[-1].step(self.now)
            return
        source = args[0] if name == "encode" else options.get("source")
        if name == "start":
            tokens, rows = args[0].tokens, args[0].rows
            source = args[1] if len(args) > 1 else source
        elif name == "encode":
            tokens = rows = None
        else:
            tokens, rows = args[0], args[1]
        if name == "decode" and self.passes and self.passes[-1].main.rows is None:  # `encode` was called before
            self.now.tokens, self.now.rows = tokens, rows
            return
        read = (None, None) if source is None else (source.tokens, source.rows)
        self.now = PassRecord(tokens, rows, *read)
        self.passes.append(Pass(self.now))
        self.passes[-1].begin()

    def kept(self, tensor: Tensor) -> Tensor:
        if not self.gradients:
            return tensor.detach()
        if tensor.requires_grad:
            tensor.retain_grad()
        return tensor

    def of_heads(self, tensor: Tensor) -> Tensor:
        """Something of all heads (its dimension 1): of those that are kept, but for tensors that get gradients."""
        if self.heads is None or self.gradients:
            return self.kept(tensor)
        return tensor.detach()[:, list(self.heads)]

    def attended(self, place: Place, seen: Sighting) -> None:
        if place not in self.places:
            return
        record, rows = self.now.at(place), seen.rows
        record.queries.append(TokenPiece(self.of_heads(seen.query), rows))
        record.mixed.append(TokenPiece(self.of_heads(seen.mixed), rows))
        record.outputs.append(TokenPiece(self.kept(seen.output), rows))
        if seen.squares is None:
            assert seen.step is not None
            record.attention.append(WeightPiece(self.of_heads(seen.step), rows, seen.memory))
        else:
            parts = [self.of_heads(part) for part in seen.squares.parts]
            record.attention.append(WeightPiece(replace(seen.squares, parts=parts), rows, seen.memory))
        if place[0] == "cross" and seen.squares is None:  # laid out for all steps, so once is enough
            if not record.keys:
                record.keys.append(SourcePiece(self.of_heads(seen.key), rows))
                record.values.append(SourcePiece(self.of_heads(seen.value), rows))
            return
        key_rows = rows if seen.squares is None else seen.squares.key_rows
        skip = 0 if seen.squares is None else seen.memory or 0
        record.keys.append(TokenPiece(self.of_heads(seen.key), key_rows, skip))
        record.values.append(TokenPiece(self.of_heads(seen.value), key_rows, skip))

    def read(self, stack: str, x: Tensor, rows: Rows) -> None:
        if any(stack == watched for watched, _ in self.places):
            self.now.at((stack, 0)).embeddings.append(TokenPiece(self.kept(x), rows))

    def made(self, place: Place, hidden: Tensor, rows: Rows) -> None:
        if place in self.places:
            self.now.at(place).hidden.append(TokenPiece(self.kept(hidden), rows))

    def looked(self, place: Place, shares: Tensor) -> None:
        """How a recurrent decoder looked at its source: B T S, or B 1 S place by place."""
        if place not in self.places:
            return
        count, longest, _ = shares.shape
        weights = self.kept(shares).flatten(0, 1)[:, None, None]  # BT 1 1 S
        self.now.at(place).attention.append(WeightPiece(weights, Rows.of([longest] * count, shares.device)))

    def stepped(self, place: Place, seen: CellSighting) -> None:
        if place[1] == 0 and seen.inputs is not None:
            self.read(place[0], seen.inputs, seen.rows)
        if place not in self.places:
            return
        record = self.now.at(place)
        record.hidden.append(TokenPiece(self.kept(seen.hidden), seen.rows))
        if seen.memory is not None:
            record.memory.append(TokenPiece(seen.memory, seen.rows))
        for name, gate in seen.gates.items():
            record.gates.setdefault(name, []).append(TokenPiece(gate, seen.rows))


def edited(value: Tensor, edit: Edit, what: str) -> Tensor:
    """A tensor replaced by an array of its shape, or one that can be broadcast to it, or by what a function gives."""
    new = edit(value) if callable(edit) else torch.as_tensor(edit, dtype=value.dtype, device=value.device)
    if not isinstance(new, Tensor):
        new = torch.as_tensor(new, dtype=value.dtype, device=value.device)
    try:
        return new.to(value.dtype).expand(value.shape)
    except RuntimeError:
        shapes = f"{tuple(new.shape)}, where the output has {tuple(value.shape)}"
        raise UserError(f"{what}: the replacement has shape {shapes}") from None


class Taps:
    """The places of one network where recorders listen; there as long as anybody watches."""

    def __init__(self, network: Any) -> None:
        self.network = network
        self.recorders: list[WatchRecorder] = []
        self.undo: list[Callable[[], None]] = []
        self.calls: dict[tuple[int, str], int] = {}  # of modules that stand in several places of a stack
        self.inside: list[str] = []  # names of the methods of the network that are running
        self.stacks: dict[str, list[Any]] = network.stacks()

    def change(self, add: WatchRecorder | None = None, remove: WatchRecorder | None = None) -> None:
        """Listen for other recorders: take everything out, and put in what those that are left need."""
        for undo in reversed(self.undo):
            undo()
        self.undo, self.calls, self.inside = [], {}, []
        self.recorders = [one for one in self.recorders if one is not remove] + ([] if add is None else [add])
        if not self.recorders:
            _TAPS.pop(self.network, None)  # which would otherwise keep the network alive
            return
        for name in METHODS:
            self._wrap(name)
        for stack, modules in self.stacks.items():
            for module in dict.fromkeys(modules):
                self._listen(stack, module, [n for n, other in enumerate(modules) if other is module])
        if self.network.looking is not None:
            hook = self.network.looking.register_forward_hook(self._looked)
            self.undo.append(hook.remove)

    def _wrap(self, name: str) -> None:
        network = self.network
        if not callable(getattr(type(network), name, None)):
            return
        own, inner = vars(network).get(name), getattr(network, name)

        def call(*args: Any, **options: Any) -> Any:
            if not self.inside:
                self.calls = {}
                for recorder in self.recorders:
                    recorder.enter(name, args, options)
            self.inside.append(name)
            try:
                result = inner(*args, **options)
            finally:
                self.inside.pop()
            if name == "start" and not self.inside:
                self._follow(result[1])
            return result

        def undo() -> None:
            vars(network).pop(name, None)
            if own is not None:
                vars(network)[name] = own

        vars(network)[name] = call
        self.undo.append(undo)

    def _follow(self, state: DecoderState) -> None:
        """Learn which rows a decoder goes on with."""
        inner, recorders = state.pick, list(self.recorders)
        runs = [recorder.passes[-1] for recorder in recorders if recorder.passes]

        def pick(rows: Tensor) -> None:
            inner(rows)
            for run in runs:
                run.pick(rows.tolist())

        vars(state)["pick"] = pick

    def wanted(self, stack: str, layers: Sequence[int]) -> bool:
        return any((stack, layer) in recorder.places for recorder in self.recorders for layer in layers)

    def edits_at(self, place: Place, heads: bool) -> list[tuple[int | None, Edit]]:
        pairs = [pair for recorder in self.recorders for pair in recorder.edits.get(place, ())]
        return [(head, edit) for head, edit in pairs if (head is not None) == heads]

    def _turn(self, module: nn.Module, purpose: str, layers: Sequence[int]) -> int:
        """The layer that a call of this module is, where it stands in several places (ALBERT)."""
        if len(layers) == 1:
            return layers[0]
        key = (id(module), purpose)
        number = self.calls.get(key, 0)
        self.calls[key] = number + 1
        return layers[number % len(layers)]

    def _listen(self, stack: str, module: Any, layers: list[int]) -> None:
        if isinstance(module, Recurrent | TwoWayLstm):
            self._listen_to_cells(stack, module, layers)
            return
        if isinstance(module, Layer | SegmentedLayer):
            self._listen_to_heads(stack, module.attention, layers)
            if isinstance(module, Layer) and module.reads:
                self._listen_to_heads("cross", module.cross, layers)
        streams = (stack, "query") if isinstance(module, SegmentedLayer) else (stack,)
        changed = any(self.edits_at((name, layer), heads=False) for name in streams for layer in layers)
        if any(self.wanted(name, layers) for name in streams) or changed:
            self.undo.append(module.register_forward_hook(self._made(stack, layers)).remove)
        if 0 in layers:
            self.undo.append(module.register_forward_pre_hook(self._read(stack, layers)).remove)

    def _listen_to_heads(self, stack: str, attention: MultiHead, layers: list[int]) -> None:
        before = attention.watcher, attention.editor

        def watcher(seen: Sighting) -> None:
            place = (seen.stream or stack, self._turn(attention, "watch", layers))
            if before[0] is not None:
                before[0](seen)
            for recorder in self.recorders:
                recorder.attended(place, seen)

        def editor(mixed: Tensor) -> Tensor:
            place = (stack, self._turn(attention, "edit", layers))
            mixed = mixed if before[1] is None else before[1](mixed)
            for head, edit in self.edits_at(place, heads=True):
                new = edited(mixed[:, head], edit, f"layer {place[1]} head {head}")
                at = torch.arange(mixed.shape[1], device=mixed.device).eq(head or 0)
                mixed = torch.where(at[:, None], new[:, None], mixed)
            return mixed

        def undo() -> None:
            attention.watcher, attention.editor = before

        if self.wanted(stack, layers) or self.wanted("query", layers):
            attention.watcher = watcher
        if any(self.edits_at((stack, layer), heads=True) for layer in layers):
            attention.editor = editor
        self.undo.append(undo)

    def _listen_to_cells(self, stack: str, module: Recurrent | TwoWayLstm, layers: list[int]) -> None:
        before = module.watcher, module.editor
        first = layers[0]  # a module of one layer stands for itself; one of several counts its own

        def watcher(seen: CellSighting) -> None:
            if stack == "decoder" and self.inside[-1:] == ["encode"]:  # a vector that is read before the first word
                return
            for recorder in self.recorders:
                recorder.stepped((stack, first + seen.layer), seen)

        def editor(layer: int, hidden: Tensor) -> Tensor:
            for _, edit in self.edits_at((stack, first + layer), heads=False):
                hidden = edited(hidden, edit, f"layer {first + layer}")
            return hidden

        def undo() -> None:
            module.watcher, module.editor = before

        if self.wanted(stack, layers):
            module.watcher = watcher
        if any(self.edits_at((stack, layer), heads=False) for layer in layers):
            module.editor = editor
        self.undo.append(undo)

    def _made(self, stack: str, layers: list[int]) -> Callable[..., Any]:
        """What is called with the output of a layer."""

        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
            layer = self._turn(module, "made", layers)
            whole = output[0] if isinstance(output, tuple) else output
            if whole.dim() == 3:  # both streams of XLNet
                streams = zip((stack, "query"), whole.unbind(1), strict=True)
                return torch.stack([self._output((name, layer), x, args[1]) for name, x in streams], 1)
            query = isinstance(module, SegmentedLayer) and len(args) > 4
            rows = args[2].asked if query else args[1]
            made = self._output(("query" if query else stack, layer), whole, rows)
            return (made, *output[1:]) if isinstance(output, tuple) else made

        return hook

    def _output(self, place: Place, hidden: Tensor, rows: Rows) -> Tensor:
        for _, edit in self.edits_at(place, heads=False):
            hidden = edited(hidden, edit, f"layer {place[1]}")
        for recorder in self.recorders:
            recorder.made(place, hidden, rows)
        return hidden

    def _read(self, stack: str, layers: list[int]) -> Callable[..., None]:
        """What is called with the input of the first layer."""

        def hook(module: nn.Module, args: tuple[Any, ...]) -> None:
            query = isinstance(module, SegmentedLayer) and len(args) > 4
            if not query and self._turn(module, "read", layers) == 0:
                x = args[0] if args[0].dim() == 2 else args[0][:, 0]  # both streams of XLNet
                for recorder in self.recorders:
                    recorder.read(stack, x, args[1])

        return hook

    def _looked(self, module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        layer = self._turn(module, "look", range(self.network.looking_layers))
        for recorder in self.recorders:
            recorder.looked(("cross", layer), output)


_TAPS: WeakKeyDictionary[nn.Module, Taps] = WeakKeyDictionary()


def taps_of(network: nn.Module) -> Taps:
    """The taps of a network, which all that watch it share."""
    if network not in _TAPS:
        _TAPS[network] = Taps(network)
    return _TAPS[network]

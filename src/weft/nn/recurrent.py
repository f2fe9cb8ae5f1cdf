"""Recurrence over ragged rows: Elman (1990), LSTM (Hochreiter and Schmidhuber, 1997), GRU (Cho et al., 2014).

Whole texts go through torch's fused kernels in a rectangle whose shape does not hang on the lengths inside, so that a
pass can be captured; single steps go by the equations.

N: tokens; B: rows; T: places; W: width; G: gates; of decoders that look at a source, S: its places, M: its width.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.nn.rows import Rows, RowState, filled, gathered, spread

Cell = Literal["rnn", "lstm", "gru"]
Bend = Literal["tanh", "relu"]  # what a plain cell does to its sum
Reading = Literal["forwards", "backwards", "both"]
Parts = tuple[Tensor, ...]  # what one layer carries from place to place, B W each: hidden, and the memory of an LSTM
State = tuple[Parts, ...]  # of every layer; of both directions where there are two, the forward one first

MODES = {"rnn": "RNN_TANH", "lstm": "LSTM", "gru": "GRU"}  # torch's names; tanh and ReLU have the same weights
PARTS = {"rnn": 1, "lstm": 2, "gru": 1}
# An LSTM that holds its memory gets one column of weights more than its module has, so they cannot lie as cuDNN would
# have them; copying them is nothing beside the recurrence.
warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")
SHUT = 1e4  # closes a gate whatever else is added to it, and is still a number in half precision


def cell_step(
    cell: Cell, given: Tensor, parts: Parts, weight: Tensor, bias: Tensor, activation: Bend = "tanh"
) -> Parts:
    """One place of one layer, by the equations: what is given (B GW: the input, projected) meets what is carried."""
    hidden = parts[0]
    back = F.linear(hidden, weight, bias)  # B GW
    if cell == "rnn":
        return ((given + back).tanh() if activation == "tanh" else (given + back).relu(),)
    if cell == "lstm":
        enter, keep, new, show = (given + back).chunk(4, -1)
        memory = keep.sigmoid() * parts[1] + enter.sigmoid() * new.tanh()
        return show.sigmoid() * memory.tanh(), memory
    width = hidden.shape[-1]
    reset, keep = (given[:, : 2 * width] + back[:, : 2 * width]).sigmoid().chunk(2, -1)
    # As cuDNN has it: the reset gate comes after the product with the hidden state, not before it as in the paper.
    new = (given[:, 2 * width :] + reset * back[:, 2 * width :]).tanh()
    return (new + keep * (hidden - new),)


GATES = {"rnn": (), "lstm": ("input", "forget", "cell", "output"), "gru": ("reset", "update", "new")}


def cell_gates(cell: Cell, given: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor) -> Parts:
    """The gates of one place by name as in `GATES`, after their non-linearity: B W each."""
    back = F.linear(hidden, weight, bias)
    if cell == "rnn":
        return ()
    if cell == "lstm":
        enter, keep, new, show = (given + back).chunk(4, -1)
        return enter.sigmoid(), keep.sigmoid(), new.tanh(), show.sigmoid()
    width = hidden.shape[-1]
    reset, keep = (given[:, : 2 * width] + back[:, : 2 * width]).sigmoid().chunk(2, -1)
    return reset, keep, (given[:, 2 * width :] + reset * back[:, 2 * width :]).tanh()


@dataclass(frozen=True)
class CellSighting:
    """What a watcher is handed for one layer: of a whole pass (N W), or of one place of all rows (B W)."""

    layer: int
    rows: Rows
    hidden: Tensor  # of all directions, one beside the other
    gates: dict[str, Tensor]  # as `hidden`
    memory: Tensor | None  # of an LSTM
    inputs: Tensor | None  # what the layer read, before its maps


def locked_dropout(x: Tensor, rows: Rows, dropout: float, training: bool) -> Tensor:
    """Dropout that strikes the same numbers at every place of a row (Gal and Ghahramani, 2016): N W -> N W"""
    if not training or not dropout:
        return x
    mask = F.dropout(x.new_ones(rows.count, x.shape[-1]), dropout)
    return x * mask.index_select(0, rows.numbers(x.shape[0]))


def picked(state: State, rows: Tensor) -> State:
    """The states of these rows, in this order."""
    return tuple(tuple(part.index_select(0, rows) for part in parts) for parts in state)


def flat(state: State) -> list[Tensor]:
    """The tensors of a state, layer by layer."""
    return [part for parts in state for part in parts]


def unflat(like: State, tensors: Sequence[Tensor]) -> State:
    """Tensors in the order of `flat`, by layer."""
    rest = iter(tensors)
    return tuple(tuple(next(rest) for _ in parts) for parts in like)


def empty(like: State, rows: int) -> State:
    """Zeros for so many rows."""
    return tuple(tuple(part.new_zeros(rows, *part.shape[1:]) for part in parts) for parts in like)


class Carried(RowState):
    """What rows take with them from one call to the next: from row to row in training, from word to word."""

    def __init__(self, state: State | None = None) -> None:
        self.state = state  # None: nothing was read yet

    def pick(self, rows: Tensor) -> None:
        assert self.state is not None
        self.state = picked(self.state, rows)

    def parts(self) -> list[Tensor]:
        assert self.state is not None
        return flat(self.state)

    def put(self, parts: Sequence[Tensor]) -> None:
        assert self.state is not None
        self.state = unflat(self.state, parts)

    def laid_out(self, rows: int, source_room: int) -> Carried:
        assert self.state is not None
        return Carried(empty(self.state, rows))


class Recurrent(nn.Module):
    """A stack of recurrent layers that reads forwards, backwards or both ways, with dropout between the layers."""

    def __init__(
        self,
        cell: Cell,
        inputs: int,
        width: int,
        layers: int = 1,
        reading: Reading = "forwards",
        dropout: float = 0.0,
        activation: Bend = "tanh",
        weight_drop: float = 0.0,  # of recurrent weights, at every place alike (Merity et al., 2018)
    ) -> None:
        super().__init__()
        self.cell: Cell = cell
        self.activation: Bend = activation
        self.weight_drop, self.width, self.dropout = weight_drop, width, dropout
        self.directions = {"forwards": (False,), "backwards": (True,), "both": (False, True)}[reading]
        self.outputs = width * len(self.directions)
        # One after the other: of each layer the forward direction, then the backward one. Not nn.LSTM and its like,
        # which the compiler refuses: what they would add is not used.
        self.layers = nn.ModuleList(
            nn.RNNBase(MODES[cell], self.outputs if layer else inputs, width)
            for layer in range(layers)
            for _ in self.directions
        )
        self.watcher: Callable[[CellSighting], None] | None = None  # set for as long as somebody watches
        self.editor: Callable[[int, Tensor], Tensor] | None = None  # replaces what a layer gives: N W -> N W

    def beginning(self, count: int, like: Tensor) -> State:
        """The state of rows that have read nothing, in the precision of `like`."""
        parts = (like.new_zeros(count, self.width),) * PARTS[self.cell]
        return (parts,) * len(self.layers)

    def forward(
        self, x: Tensor, rows: Rows, state: State | None = None, last: bool = True
    ) -> tuple[Tensor, State | None]:
        """N inputs -> N outputs, and the state after each row's last token (first, backwards) where it is asked for."""
        state = self.beginning(rows.count, x) if state is None else state
        sides: list[Tensor] = []
        after: list[Parts] = []
        cells: list[list[Tensor]] = []  # of each direction, where somebody watches
        read = x
        for number, (module, before) in enumerate(zip(self.layers, state, strict=True)):
            side = number % len(self.directions)
            if number and not side:  # the layer above reads what all directions below have made
                x = self._given(number // len(self.directions) - 1, rows, sides, cells, read)
                x = read = F.dropout(x, self.dropout, self.training)
                sides, cells = [], []
            weights = self.weights_of(module)
            made, parts = self._through(weights, x, rows, self.directions[side], before, last)
            sides.append(made)
            after.append(parts)
            if self.watcher is not None:
                cells.append(self._cells(weights, x, rows, self.directions[side], before))
        top = len(self.layers) // len(self.directions) - 1
        return self._given(top, rows, sides, cells, read), tuple(after) if last else None

    def _given(
        self, layer: int, rows: Rows, sides: list[Tensor], cells: list[list[Tensor]], inputs: Tensor | None
    ) -> Tensor:
        """What a layer gives, all directions beside each other, and whoever watches or edits it."""
        hidden = torch.cat(sides, -1)
        if self.editor is not None:
            hidden = self.editor(layer, hidden)
        if self.watcher is not None:
            parts = [torch.cat(pair, -1) for pair in zip(*cells, strict=True)]
            memory = parts.pop() if self.cell == "lstm" else None
            gates = dict(zip(GATES[self.cell], parts, strict=True))
            self.watcher(CellSighting(layer, rows, hidden, gates, memory, inputs))
        return hidden

    @torch.no_grad()
    def _cells(self, weights: list[Tensor], x: Tensor, rows: Rows, backwards: bool, parts: Parts) -> list[Tensor]:
        """The gates of one direction, and an LSTM's memory, by the equations: N W each."""
        first, back, bias, back_bias = weights
        kept: list[Parts] = []
        for given in F.linear(spread(x, rows, backwards).to(first.dtype), first, bias):
            gates = cell_gates(self.cell, given, parts[0], back, back_bias)
            parts = cell_step(self.cell, given, parts, back, back_bias, self.activation)
            kept.append((*gates, *parts[1:]))
        return [gathered(torch.stack(part), rows, x.shape[0], backwards) for part in zip(*kept, strict=True)]

    def weights_of(self, module: nn.Module) -> list[Tensor]:
        """Of the input and of what is carried, and their biases: GW inputs, GW W, GW, GW."""
        first, back, *biases = module._flat_weights  # type: ignore[misc]
        if self.weight_drop and self.training:
            back = F.dropout(back, self.weight_drop)
        return [first, back, *biases]

    def _through(
        self, weights: list[Tensor], x: Tensor, rows: Rows, backwards: bool, before: Parts, last: bool
    ) -> tuple[Tensor, Parts]:
        """One layer in one direction."""
        total = x.shape[0]
        even = total == rows.longest * rows.count  # then every column is full, and the kernel's own state is the last
        # In the precision of the weights: in half precision the kernels of a GPU cast both themselves.
        square = spread(x, rows, backwards).to(weights[0].dtype)
        start = tuple(part.to(square.dtype)[None] for part in before)  # 1 B W
        with torch.autocast("cpu", enabled=False):  # the kernels of the CPU take one precision for all
            if self.cell == "lstm" and last and not even:
                weights, square = self._held(weights, square, rows)
            output, *ends = self.kernel(square, start, weights)
        side = gathered(output, rows, total, backwards)
        if not last:
            return side, ()
        lengths = rows.lengths().long()
        where = (lengths - 1).clamp(min=0) * rows.count + torch.arange(rows.count, device=lengths.device)
        hidden = output.flatten(0, 1).index_select(0, where)
        hidden = torch.where((lengths > 0)[:, None], hidden, before[0].to(hidden.dtype))  # an empty row stays as it was
        return side, (hidden, ends[1][0]) if self.cell == "lstm" else (hidden,)

    def kernel(
        self, square: Tensor, start: Parts, weights: list[Tensor], layers: int = 1, dropout: float = 0.0
    ) -> tuple[Tensor, ...]:
        """torch's kernel, forwards: T B inputs and L B W of each part -> T B W, and the parts after the last place."""
        rest = (True, layers, dropout, self.training, False, False)  # with biases, forwards, places first
        if self.cell == "lstm":
            return torch._VF.lstm(square, start, weights, *rest)
        kernels = {"rnn": torch._VF.rnn_tanh if self.activation == "tanh" else torch._VF.rnn_relu, "gru": torch._VF.gru}
        return kernels[self.cell](square, start[0], weights, *rest)

    def _held(self, weights: list[Tensor], square: Tensor, rows: Rows) -> tuple[list[Tensor], Tensor]:
        """Weights and input of an LSTM whose memory stays from each row's end on: the kernel gives only the last."""
        # One more input, 1 on filling, opens the forget gate and shuts the input gate; eight for alignment.
        weight, *others = weights
        gates = [weight.new_full((self.width,), value) for value in (-SHUT, SHUT, 0.0, 0.0)]
        weight = torch.cat([weight, F.pad(torch.cat(gates)[:, None], (0, 7))], 1)
        ended = (~filled(rows)).t()[..., None].to(square.dtype)  # T B 1
        return [weight, *others], torch.cat([square, F.pad(ended, (0, 7))], -1)

    def by_equations(self, x: Tensor, rows: Rows, state: State | None = None) -> tuple[Tensor, list[Parts]]:
        """One layer, one way, without dropout: N inputs -> N outputs, and the parts (B W) around each place."""
        assert len(self.layers) == 1 and x.shape[0] == rows.longest * rows.count, "one layer, and rows of one length"
        steps = self.steps()
        carried = [self.beginning(rows.count, x) if state is None else state]
        for given in steps.given(spread(x, rows)):
            carried.append(steps.step(given, carried[-1])[1])
        output = torch.stack([state[0][0] for state in carried[1:]])
        return gathered(output, rows, x.shape[0]), [state[0] for state in carried]

    def steps(self, fed: int = 0) -> Steps:
        """The same weights, place by place; the last `fed` columns of the input come only when their place does."""
        return Steps(self, fed)

    @torch.no_grad()
    def initialize(self) -> None:
        """Recurrent matrices start as rotations (Saxe et al., 2014), forget biases at 1 (Jozefowicz et al., 2015)."""
        for module in self.layers:
            weight, back, bias, back_bias = module._flat_weights  # type: ignore[misc]
            nn.init.xavier_uniform_(weight)
            for gate in back.split(self.width):
                nn.init.orthogonal_(gate)
            bias.zero_()
            back_bias.zero_()
            if self.cell == "lstm":
                bias[self.width : 2 * self.width] = 1.0


def stacked(
    layers: Sequence[Recurrent], x: Tensor, rows: Rows, state: State | None, dropout: float
) -> tuple[Tensor, State]:
    """Stacks of one layer each, for rows of one length, in one call: a GPU then works at several layers at once."""
    first = layers[0]
    state = tuple(parts for layer in layers for parts in layer.beginning(rows.count, x)) if state is None else state
    weights = [weight for layer in layers for weight in layer.weights_of(layer.layers[0])]
    square = spread(x, rows).to(weights[0].dtype)
    start = tuple(torch.stack(part).to(square.dtype) for part in zip(*state, strict=True))  # L B W
    output, *ends = first.kernel(square, start, weights, len(layers), dropout)
    return gathered(output, rows, x.shape[0]), tuple(zip(*(end.unbind() for end in ends), strict=True))


class Steps:
    """A stack that reads one way, place by place: for decoding, and where a place reads what came of the one before."""

    def __init__(self, network: Recurrent, fed: int) -> None:
        assert len(network.directions) == 1, "who reads both ways knows the whole text, not one place of it"
        self.network = network
        self.weights: list[list[Tensor]] = [module._flat_weights for module in network.layers]  # type: ignore[misc]
        first = self.weights[0][0]
        # Cut apart once for all places: each cut's gradient is as large as the whole.
        self.given_weight, self.fed_weight = first[:, : first.shape[1] - fed], first[:, first.shape[1] - fed :]
        self.inputs: list[Tensor] = []  # of the next places, B inputs each, where somebody watches

    def given(self, x: Tensor) -> Tensor:
        """What the first layer makes of an input before it meets what is fed and what is carried: ... -> ... GW"""
        if self.network.watcher is not None:
            self.inputs = list(x) if x.dim() > 2 else [x]
        return F.linear(x, self.given_weight, self.weights[0][2])

    def step(self, given: Tensor, state: State, fed: Tensor | None = None) -> tuple[Tensor, State]:
        """One place of all rows: B GW -> B W, and the new state."""
        dropout, training = self.network.dropout, self.network.training
        after: list[Parts] = []
        output = given
        for number, ((weight, back, bias, back_bias), parts) in enumerate(zip(self.weights, state, strict=True)):
            if number:
                given = F.linear(F.dropout(output, dropout, training), weight, bias)
            elif fed is not None:
                given = given + F.linear(fed, self.fed_weight)
            after.append(cell_step(self.network.cell, given, parts, back, back_bias, self.network.activation))
            output = after[-1][0]
            if self.network.editor is not None or self.network.watcher is not None:
                gates = cell_gates(self.network.cell, given, parts[0], back, back_bias)
                read = self.inputs.pop(0) if self.inputs and not number else None
                rows = Rows.single(len(output), output.device)
                output = self.network._given(number, rows, [output], [[*gates, *after[-1][1:]]], read)
        return output, tuple(after)


class Bridge(nn.Module):
    """The last states of an encoder that reads both ways, joined into the first ones of a decoder."""

    def __init__(self, width: int, layers: int, parts: int) -> None:
        super().__init__()
        self.join = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(layers * parts))

    def forward(self, state: State) -> State:
        joined: list[Parts] = []
        maps = iter(self.join)
        for forth, back in zip(state[::2], state[1::2], strict=True):
            both = [next(maps)(torch.cat(pair, -1)) for pair in zip(forth, back, strict=True)]
            joined.append((both[0].tanh(), *both[1:]))  # an LSTM's memory has no bounds
        return tuple(joined)


Comparing = Literal["additive", "dot", "general"]


def shares(scores: Tensor, may: Tensor) -> Tensor:
    """Scores ... S -> how much is looked at each place: it adds up to 1 over those that may be, and is 0 elsewhere."""
    # With -inf in place of the least number the shares of a row with nothing to look at would be NaN.
    return scores.masked_fill(~may, torch.finfo(scores.dtype).min).softmax(-1) * may


class Looking(nn.Module):
    """How a state is compared with what was read: additive (Bahdanau et al., 2015), dot, general (Luong et al.)."""

    def __init__(self, kind: Comparing, width: int, inputs: int) -> None:
        super().__init__()
        self.key = None if kind == "dot" else nn.Linear(inputs, width, bias=kind == "additive")
        self.query = nn.Linear(width, width, bias=False) if kind == "additive" else None
        self.score = nn.Linear(width, 1, bias=False) if kind == "additive" else None

    def keys(self, values: Tensor) -> Tensor:
        """What states are compared with, worked out once for all of them: B S inputs -> B S width"""
        return values if self.key is None else self.key(values)

    def forward(self, states: Tensor, keys: Tensor, may: Tensor) -> Tensor:
        """States B T width, keys B S width, may B S -> shares B T S"""
        if self.query is None or self.score is None:
            scores = states @ keys.transpose(1, 2)
        else:
            scores = self.score((self.query(states)[:, :, None] + keys[:, None]).tanh()).squeeze(-1)  # B T S
        return shares(scores, may[:, None])


@dataclass
class SourceMemory:
    """What the decoder knows of what was read."""

    state: State  # what it begins with
    may: Tensor  # B S bool: places that hold a token
    values: Tensor | None  # B S M: what is looked at
    keys: Tensor | None  # B S W: what states are compared with


@dataclass(frozen=True)
class DecoderPlace:
    """What one place leaves to the next."""

    state: State
    output: Tensor  # B W: what the word head reads
    shares: Tensor | None = None  # B S: how much each place of the source was looked at for it

    def where(self, more: Tensor, before: DecoderPlace) -> DecoderPlace:
        """Rows that have ended (B: not `more`) stay as they were."""
        more = more[:, None]
        state = tuple(
            tuple(torch.where(more, new, old) for new, old in zip(*parts, strict=True))
            for parts in zip(self.state, before.state, strict=True)
        )
        shares = self.shares
        if shares is not None and before.shares is not None:
            shares = torch.where(more, shares, before.shares)
        return DecoderPlace(state, torch.where(more, self.output, before.output), shares)


class RecurrentDecoderState(RowState):
    """The state between two steps of writing."""

    def __init__(self, memory: SourceMemory, place: DecoderPlace, wanted: bool) -> None:
        self.memory, self.place, self.wanted = memory, place, wanted
        self.sources = torch.arange(len(memory.may), device=memory.may.device)  # B: which source each row reads

    @property
    def attention(self) -> Tensor | None:
        return self.place.shares.float() if self.wanted and self.place.shares is not None else None

    def pick(self, rows: Tensor) -> None:
        shares = None if self.place.shares is None else self.place.shares.index_select(0, rows)
        self.place = DecoderPlace(picked(self.place.state, rows), self.place.output.index_select(0, rows), shares)
        sources = self.sources.index_select(0, rows)
        if not torch.equal(sources, self.sources):  # what was read is large: rows that only change places leave it
            m = self.memory
            values, keys = (None if x is None else x.index_select(0, rows) for x in (m.values, m.keys))
            self.memory = SourceMemory((), m.may.index_select(0, rows), values, keys)
            self.sources = sources

    def parts(self) -> list[Tensor]:
        return [*flat(self.place.state), self.place.output]

    def put(self, parts: Sequence[Tensor]) -> None:
        self.place = DecoderPlace(unflat(self.place.state, parts[:-1]), parts[-1])

    def join(self, state: RecurrentDecoderState) -> None:
        super().join(state)
        m, other = self.memory, state.memory
        longest = max(m.may.shape[1], other.may.shape[1])

        def together(one: Tensor | None, two: Tensor | None) -> Tensor | None:
            if one is None or two is None:
                return None
            pads = ((0, 0) * (x.dim() - 2) + (0, longest - x.shape[1]) for x in (one, two))
            return torch.cat([F.pad(x, pad) for x, pad in zip((one, two), pads, strict=True)])

        may = together(m.may, other.may)
        assert may is not None
        self.memory = SourceMemory((), may, together(m.values, other.values), together(m.keys, other.keys))
        self.sources = torch.arange(len(may), device=may.device)

    def read(self) -> list[Tensor]:
        return [x for x in (self.memory.may, self.memory.values, self.memory.keys) if x is not None]

    def laid_out(self, rows: int, source_room: int) -> RecurrentDecoderState:
        m, place = self.memory, self.place
        may, values, keys = (
            None if x is None else x.new_zeros(rows, source_room, *x.shape[2:]) for x in (m.may, m.values, m.keys)
        )
        assert may is not None
        output = place.output.new_zeros(rows, *place.output.shape[1:])
        memory = SourceMemory((), may, values, keys)
        return RecurrentDecoderState(memory, DecoderPlace(empty(place.state, rows), output), False)

"""Walks through recurrent networks: one step of each cell, and back-propagation through time.

T: places; W: width; G: gates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from weft.data.masking import NOTHING
from weft.errors import UserError
from weft.explain.walk_record import plain, read_text
from weft.explain.walk_steps import Array, Walk, WalkTable
from weft.explain.walks_basic import words_in
from weft.models.recurrent import RecurrentConfig, RecurrentNetwork
from weft.nn.recurrent import GATES, Cell, Parts, Recurrent, cell_gates, cell_step
from weft.nn.rows import Rows
from weft.tasks.model import Model

WIDTH = 4  # of cells with random weights
TERMS = 24  # numbers of a gradient that are shown
CELLS: tuple[Cell, ...] = ("rnn", "lstm", "gru")
ROLES = {
    "input": "how much of the new content enters the memory",
    "forget": "how much of the memory is kept",
    "cell": "the new content",
    "output": "how much of the memory is shown",
    "reset": "how much of the old state the new content reads",
    "update": "how much of the old state is kept",
}


def fresh(cell: Cell, words: Sequence[str], width: int = WIDTH) -> RecurrentNetwork:
    """A tiny network over the words of a text, with random weights."""
    vocabulary = max(2, len(set(words)))
    config = RecurrentConfig(
        vocabulary=vocabulary, width=width, layers=1, cell=cell, dropout=0.0, tied=False, weight_scale=1.0
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = RecurrentNetwork(config, {"words": vocabulary})
        network.initialize()
    return network.eval()


def numbered(words: Sequence[str]) -> Tensor:
    """The words as numbers in the order in which they first occur."""
    vocabulary = list(dict.fromkeys(words))
    return torch.tensor([vocabulary.index(word) for word in words])


# ---------------------------------------------------------------------------------------------------------- one step


def recurrent_walk(models: Sequence[Model], text: str) -> Walk:
    """One step of an RNN beside one of an LSTM and one of a GRU; models of these families, else random weights."""
    given: dict[str, tuple[Any, Tensor, list[str]]] = {}
    for model in models:
        if not isinstance(model.network, RecurrentNetwork):
            raise UserError(f"{model.opened.family.name} is not recurrent: give folders of rnn, lstm and gru models")
        if model.config.cell in given:
            raise UserError(f"two {model.config.cell} models: give one of each kind")
        read = read_text(model, text)
        given[model.config.cell] = (model.network, read.tokens, read.names)
    words = words_in(text)
    walk = Walk("One recurrent step: RNN, LSTM and GRU")
    known = ", ".join(cell.upper() for cell in CELLS if cell in given)
    random = ", ".join(cell.upper() for cell in CELLS if cell not in given)
    walk.intro = "Each cell reads the last token of the text after all tokens before it. "
    walk.intro += f"Weights of the model folders: {known}. " if known else ""
    walk.intro += f"Random weights: {random}." if random else ""
    for cell in CELLS:
        walk.part, walk.scope = cell.upper(), f"{cell}."
        network, ids, names = given.get(cell) or (fresh(cell, words), numbered(words), words)
        CellWalk(walk, network, ids, names).steps()
    walk.part, walk.scope = "Side by side", ""
    walk.step("Side by side", "What the three cells carry and what they learn.", tables=[COMPARED])
    return walk


COMPARED = WalkTable(
    "",
    ("", "RNN", "LSTM", "GRU"),
    (
        ("carries", "h", "h and the memory c", "h"),
        ("gates", "none", "input, forget, output", "reset, update"),
        ("matrices U and W", "1 each", "4 each", "3 each"),
        ("new state", "tanh(U x + W h)", "output · tanh(c)", "update · h + (1 − update) · n"),
    ),
)


class CellWalk:
    """The last place of a text through the first layer of a recurrent network, gate by gate."""

    def __init__(self, walk: Walk, network: Any, ids: Tensor, names: list[str]) -> None:
        self.walk, self.network, self.word = walk, network, names[-1]
        self.layer: Recurrent = network.layers[0]
        if len(self.layer.directions) != 1:
            raise UserError("this network reads both ways: it has no single step that could be shown")
        self.cell, self.width = self.layer.cell, self.layer.width
        with torch.inference_mode():
            self.x = network.tokens(ids)
            _, carried = self.layer.by_equations(self.x, Rows.of([len(ids)], ids.device))
        self.before, self.after = carried[-2], carried[-1]

    def steps(self) -> None:
        """All steps, from the input to the logits."""
        walk, upper = self.walk, self.cell.upper()
        first, back, bias, back_bias = self.layer.weights_of(self.layer.layers[0])
        with torch.inference_mode():
            given = F.linear(self.x[-1:], first, bias)
            carried = F.linear(self.before[0], back, back_bias)
            gates = cell_gates(self.cell, given, self.before[0], back, back_bias)
        self.gates = {name: plain(gate) for name, gate in zip(GATES[self.cell], gates, strict=True)}
        self.ux = self.product("Ux", "U x_t", "x", "x_t", self.x[-1:], "u", "U", first, bias, given)
        text = f"The vector of the last token, '{self.word}', is multiplied with the matrix U."
        walk.step(f"{upper}: the input", text, "U x_t + b", self.ux)
        self.h = ""
        self.wh = self.product("Wh", "W h_{t-1}", "h", "h_{t-1}", self.before[0], "w", "W", back, back_bias, carried)
        self.h = walk.scope + "h"
        text = "The state after the tokens before it is multiplied with the matrix W."
        walk.step(f"{upper}: the previous state", text, "W h_{t-1} + b", self.wh)
        {"rnn": self.rnn, "lstm": self.lstm, "gru": self.gru}[self.cell]()
        self.output()

    def product(
        self, id: str, name: str, left: str, left_name: str, vector: Tensor, right: str, right_name: str,
        weight: Tensor, bias: Tensor, values: Tensor,
    ) -> str:  # fmt: skip
        """A row vector times a matrix, plus a bias."""
        walk, rows = self.walk, [self.word]
        vector_id = walk.add(left, left_name, plain(vector), rows)
        matrix = walk.weights(right, right_name, plain(weight).T)
        shift = walk.add(f"{right}_bias", "b", plain(bias)[None], ["bias"])
        return walk.add(id, name, plain(values), kind="product", left=vector_id, right=matrix, bias=shift)

    def half(self, name: str, part: int, side: str) -> str:
        """The columns of one gate in one of the products."""
        values = self.walk.values(side)[:, part * self.width : (part + 1) * self.width]
        letter = side.removeprefix(self.walk.scope)
        made: dict[str, Any] = {"kind": "columns", "left": side, "offset": part * self.width}
        return self.walk.add(f"{name}_{letter}", f"{'U x' if letter == 'Ux' else 'W h'}, {name}", values, **made)

    def gate(self, name: str, part: int) -> str:
        """One gate: its columns of both products, added, and a sigmoid or tanh."""
        walk = self.walk
        left, right = (self.half(name, part, side) for side in (self.ux, self.wh))
        total = walk.values(left) + walk.values(right)
        summed = walk.add(f"{name}_sum", "sum", total, kind="add", left=left, right=right)
        function, scale = ("tanh", "diverging") if name == "cell" else ("sigmoid", "sequential")
        made: dict[str, Any] = {"kind": "map", "left": summed, "function": function, "scale": scale}
        gate = walk.add(name, "content" if name == "cell" else name, self.gates[name], **made)
        title = "the new content" if name == "cell" else f"the {name} gate"
        text = f"{ROLES[name].capitalize()}: its columns of both products, added, through {function}."
        symbol = "tanh" if name == "cell" else "σ"
        formula = f"{symbol}(U x_t + W h_{{t-1}} + b)"
        walk.step(f"{self.cell.upper()}: {title}", text, formula, [*walk.shown(summed), "→", gate])
        return gate

    def times(self, id: str, name: str, left: str, right: str, values: Array | None = None) -> str:
        product = self.walk.values(left) * self.walk.values(right) if values is None else values
        return self.walk.add(id, name, product, kind="multiply", left=left, right=right)

    def rnn(self) -> None:
        walk, bend = self.walk, self.layer.activation
        total = walk.values(self.ux) + walk.values(self.wh)
        summed = walk.add("sum", "sum", total, kind="add", left=self.ux, right=self.wh)
        new = walk.add("new", "h_t", plain(self.after[0]), kind="map", left=summed, function=bend)
        text = f"The sum of both products goes through {bend}."
        walk.step("RNN: the new state", text, f"h_t = {bend}(U x_t + W h_{{t-1}} + b)", [*walk.shown(summed), "→", new])

    def lstm(self) -> None:
        walk = self.walk
        gates = {name: self.gate(name, part) for part, name in enumerate(GATES["lstm"])}
        memory = walk.add("c", "c_{t-1}", plain(self.before[1]), [self.word])
        kept = self.times("kept", "forget · c_{t-1}", gates["forget"], memory)
        entered = self.times("entered", "input · content", gates["input"], gates["cell"])
        text = "A part of the old memory is kept."
        walk.step("LSTM: what is kept", text, "forget · c_{t-1}", kept)
        walk.step("LSTM: what enters", "A part of the new content enters.", "input · content", entered)
        new = walk.add("memory", "c_t", plain(self.after[1]), kind="add", left=kept, right=entered)
        text = "The memory is a sum, so its gradient reaches far back without shrinking at each place."
        walk.step("LSTM: the memory", text, "c_t = forget · c_{t-1} + input · content", new)
        values = np.tanh(plain(self.after[1]))
        bent = walk.add("bent", "tanh(c_t)", values, kind="map", left=new, function="tanh")
        hidden = self.times("new", "h_t", gates["output"], bent, plain(self.after[0]))
        text = "The output gate shows a part of the memory."
        walk.step("LSTM: the new state", text, "h_t = output · tanh(c_t)", [new, "→", *walk.shown(hidden)])

    def gru(self) -> None:
        walk = self.walk
        reset, update = (self.gate(name, part) for part, name in enumerate(("reset", "update")))
        left, right = (self.half("new", 2, side) for side in (self.ux, self.wh))
        seen = self.times("reset_h", "reset · W h", reset, right)
        total = walk.values(left) + walk.values(seen)
        summed = walk.add("content_sum", "sum", total, kind="add", left=left, right=seen)
        content = walk.add("content", "n", self.gates["new"], kind="map", left=summed, function="tanh")
        text = "The reset gate decides how much of the old state the new content reads."
        walk.step("GRU: what is read of the old state", text, "reset · W h_{t-1}", seen)
        formula = "n = tanh(U x_t + reset · W h_{t-1})"
        walk.step(
            "GRU: the new content", "The candidate for the new state.", formula, [*walk.shown(summed), "→", content]
        )
        made: dict[str, Any] = {"kind": "gate", "left": update, "right": self.h, "more": content}
        new = walk.add("new", "h_t", plain(self.after[0]), **made)
        text = "The update gate weighs the old state against the new content, number by number."
        walk.step("GRU: the new state", text, "h_t = update · h_{t-1} + (1 − update) · n", new)

    def output(self) -> None:
        """The product with V; only of a network of one layer whose word head reads its states directly."""
        walk, network = self.walk, self.network
        if "words" not in network.heads or len(network.layers) > 1 or network.heads["words"].narrow is not None:
            return
        head = network.heads["words"].words
        table = plain((network.tokens if head.decoder is None else head.decoder).weight)
        with torch.inference_mode():
            logits = plain(network.words(self.after[0]))
        kept = min(TERMS, len(table))
        matrix = walk.add("v", "V", table[:kept].T, shape=(table.shape[1], table.shape[0]))
        bias = None
        if head.bias is not None:
            bias = walk.add("v_bias", "b", plain(head.bias)[None, :kept], ["bias"])
        made: dict[str, Any] = {"kind": "product", "left": walk.scope + "new", "right": matrix, "bias": bias}
        id = walk.add("o", "o_t", logits[:, :kept], shape=(1, len(table)), **made)
        text = "The state is multiplied with the matrix V: the logits of the next word."
        walk.step(f"{self.cell.upper()}: the output", text, "o_t = V h_t + b", id)


# -------------------------------------------------------------------------------------- back-propagation through time


def bptt_walk(model: Model | None, text: str, t_min: int | None = None, t_max: int | None = None) -> Walk:
    """Back-propagation through time: the gradient of each output as a sum over the places that it goes back to."""
    network, ids, names = bptt_network(model, text)
    if len(ids) < 3:
        raise UserError("back-propagation through time needs a text of at least three tokens")
    count = len(ids) - 1  # the last token is only a target
    first, last = count // 3 if t_min is None else t_min, count - 1 if t_max is None else t_max
    if not 0 <= first <= last < count:
        raise UserError(f"t_min and t_max must be 0 <= t_min <= t_max <= {count - 1}, not {first} and {last}")
    terms, states = gradient_terms(network, ids, first, last)
    losses, whole, flow = autograd_of(network, ids, first, last)
    walk = Walk("Back-propagation through time")
    made = "an RNN with random weights" if model is None else f"the first layer of {model.folder or 'the model'}"
    walk.intro = f"{count} places of {made}; the loss counts the outputs from t = {first} to t = {last}."
    labels = [f"{t} {name}" for t, name in enumerate(names[:-1])]
    used = [first <= t <= last for t in range(count)]
    chain = {
        "inputs": list(names[:-1]),
        "states": [f"h_{t}" for t in range(count)],
        "outputs": [f"J({t})" if use else "ignored" for t, use in enumerate(used)],
        "used": used,
    }
    shown = walk.add("states", "h_t", states, labels)
    text = "The same cell with the same weights stands at every place: a network with one layer for each token."
    walk.step("Unroll", text, "h_t = f(U x_t + W h_{t-1})", [shown], chain=chain)
    rows = [(label, names[t + 1], f"{losses[t]:.4f}" if used[t] else "ignored") for t, label in enumerate(labels)]
    table = WalkTable("", ("place", "next word", "J(t)"), rows, [(t, 2) for t in range(count) if used[t]])
    gradient = walk.add("flow", "∂J/∂o_t", flow[:, :TERMS], labels, digits=4, shape=(count, flow.shape[1]))
    text = (
        "Outputs before t_min and after t_max are ignored: their rows of the gradient are 0, so none flows from them."
    )
    walk.step("The outputs that count", text, "J = Σ J(t) for t_min ≤ t ≤ t_max", [gradient], tables=[table])
    term_steps(walk, network, ids, terms, labels, last)
    difference = float(np.abs(terms.sum((0, 1)) - whole).max())
    total = walk.add("gradient", "∂J/∂W", whole)
    text = "All terms of all outputs together are the gradient that a step of training uses. "
    text += f"The largest difference between their sum and autograd's gradient is {difference:.1e}."
    walk.step("The gradient", text, "∂J/∂W = Σ_t Σ_k term(t, k)", [total])
    return walk


def term_steps(walk: Walk, network: Any, ids: Tensor, terms: Array, labels: list[str], t: int) -> None:
    """The sizes of all terms, and those of one output with their sum."""
    count = len(labels)
    norms = np.linalg.norm(terms.reshape(count, count, -1), axis=-1)  # by output t and place k
    places = [f"k={k}" for k in range(count)]
    size = walk.add("norms", "‖term(t, k)‖", norms, labels, places, scale="sequential", digits=4)
    text = "W is used at every place k up to t, and each use is one term of the gradient of J(t). "
    text += "Outputs that are ignored have no terms, and none comes from a place after t."
    walk.step("The terms", text, "∂J(t)/∂W = Σ_{k ≤ t} ∂J(t)/∂h_k · ∂h_k/∂W", [size])
    parts = terms[t, : t + 1].reshape(t + 1, -1)
    columns = [f"w{n}" for n in range(min(TERMS, parts.shape[1]))]
    stored = parts[:, : len(columns)]
    right = walk.add("terms", f"terms of ∂J({t})/∂W", stored, places[: t + 1], columns, shape=parts.shape, digits=4)
    left = walk.add("ones", "1", np.ones((1, t + 1)), ["sum"], places[: t + 1], digits=0, scale="sequential")
    alone = single_gradient(network, ids, t).reshape(1, -1)[:, : len(columns)]
    made: dict[str, Any] = {"kind": "product", "left": left, "right": right, "digits": 4, "shape": (1, parts.shape[1])}
    total = walk.add("sum", f"∂J({t})/∂W by autograd", alone, ["autograd"], columns, **made)
    text = f"The {t + 1} terms of J({t}): a row for each place k. Their sum equals the gradient that autograd computes."
    walk.step(f"The sum for t = {t}", text, f"∂J({t})/∂W = Σ_k term({t}, k)", total)


def bptt_network(model: Model | None, text: str) -> tuple[Any, Tensor, list[str]]:
    if model is None:
        words = words_in(text)
        return fresh("rnn", words).double(), numbered(words), words
    network: Any = model.network
    if not isinstance(network, RecurrentNetwork) or network.config.bidirectional or "words" not in network.heads:
        raise UserError(f"{model.opened.family.name}: the walk bptt shows recurrent language models (rnn, lstm, gru)")
    read = read_text(model, text)
    return network, read.tokens, read.names


def losses_of(network: Any, ids: Tensor, hidden: Tensor) -> Tensor:
    return F.cross_entropy(network.words(hidden), ids[1:], reduction="none")


def gradient_terms(network: Any, ids: Tensor, first: int, last: int) -> tuple[Array, Array]:
    """T T GW W: by output t and place k the part of dJ(t)/dW that comes from the use of W at place k; and the states.

    Every place gets a copy of W, so that autograd keeps the uses apart.
    """
    layer: Recurrent = network.layers[0]
    weight, back, bias, back_bias = (w.detach() for w in layer.weights_of(layer.layers[0]))
    count = len(ids) - 1
    terms = np.zeros((count, count, *back.shape))
    with torch.enable_grad():
        copies = [back.clone().requires_grad_() for _ in range(count)]
        given = F.linear(network.tokens(ids[:-1]), weight, bias)
        states: list[Parts] = [layer.beginning(1, given)[0]]
        for k in range(count):
            states.append(cell_step(layer.cell, given[k : k + 1], states[-1], copies[k], back_bias, layer.activation))
        bottom = hidden = torch.cat([parts[0] for parts in states[1:]])
        for upper in network.layers[1:]:
            hidden, _ = upper.by_equations(hidden, Rows.of([count], ids.device))
        losses = losses_of(network, ids, hidden)
        for t in range(first, last + 1):
            parts = torch.autograd.grad(losses[t], copies[: t + 1], retain_graph=True)
            terms[t, : t + 1] = np.stack([plain(part) for part in parts])
    return terms, plain(bottom)


def autograd_of(network: Any, ids: Tensor, first: int, last: int) -> tuple[Array, Array, Array]:
    """The losses, dJ/dW and dJ/do by autograd, where labels outside of `first` to `last` are ignored as in training."""
    labels = ids[1:].clone()
    labels[:first] = NOTHING
    labels[last + 1 :] = NOTHING
    back = network.layers[0].weights_of(network.layers[0].layers[0])[1]
    with torch.enable_grad():
        hidden, _ = network.unrolled(ids[:-1], Rows.of([len(ids) - 1], ids.device))
        logits = network.words(hidden)
        loss = F.cross_entropy(logits, labels, ignore_index=NOTHING, reduction="sum")
        whole, flow = torch.autograd.grad(loss, (back, logits))
        losses = F.cross_entropy(logits, ids[1:], reduction="none")
    return plain(losses), plain(whole), plain(flow)


def single_gradient(network: Any, ids: Tensor, t: int) -> Array:
    """dJ(t)/dW by autograd, from a pass of its own."""
    back = network.layers[0].weights_of(network.layers[0].layers[0])[1]
    with torch.enable_grad():
        hidden, _ = network.unrolled(ids[:-1], Rows.of([len(ids) - 1], ids.device))
        return plain(torch.autograd.grad(losses_of(network, ids, hidden)[t], back)[0])

"""Walks through recurrent networks: one step of each cell, and back-propagation through time.

T: places; W: width; G: gates.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from weft.errors import UserError
from weft.explain.walk import plain, tokens_of
from weft.explain.walk_steps import Array, Walk, WalkTable
from weft.models.recurrent import RecurrentConfig, RecurrentNetwork
from weft.nn.recurrent import Cell, Recurrent
from weft.nn.rows import Rows
from weft.tasks.model import Model

GATES: dict[str, tuple[str, ...]] = {
    "rnn": ("",),
    "lstm": ("input", "forget", "cell", "output"),
    "gru": ("reset", "update", "new"),
}
WIDTH = 4  # of fresh cells


def fresh(cell: Cell, words: Sequence[str], width: int = WIDTH) -> RecurrentNetwork:
    """A tiny network over the words of a text, with fresh weights."""
    config = RecurrentConfig(
        vocabulary=max(2, len(set(words))), width=width, layers=1, cell=cell, dropout=0.0, weight_scale=1.0
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = RecurrentNetwork(config, {"words": config.vocabulary})
        network.initialize()
    return network.eval()


def recurrent_walk(models: Sequence[Model], text: str) -> Walk:
    """One step of an RNN beside one of an LSTM and one of a GRU; models of these families, else fresh ones."""
    given: dict[str, tuple[Any, Tensor, list[str]]] = {}
    for model in models:
        if not isinstance(model.network, RecurrentNetwork):
            raise UserError(f"{model.opened.family.name} is no recurrent network; give a folder of an rnn, lstm or gru")
        ids, _, _, names = tokens_of(model, text)
        given[model.config.cell] = (model.network, ids, names)
    words = re.findall(r"\w+|[^\w\s]", text)
    if not words:
        raise UserError("the text has no words")
    vocabulary = list(dict.fromkeys(words))
    walk = Walk(
        "One recurrent step: RNN, LSTM, GRU", "Each reads the last token of the text after all those before it."
    )
    cells: tuple[Cell, ...] = ("rnn", "lstm", "gru")
    for cell in cells:
        numbers = torch.tensor([vocabulary.index(word) for word in words])
        network, ids, names = given.get(cell) or (fresh(cell, words), numbers, words)
        made = "from its model folder" if cell in given else "with fresh weights"
        cell_steps(walk, cell, network, ids, names, made)
    return walk


def cell_steps(walk: Walk, cell: Cell, network: Any, ids: Tensor, names: list[str], made: str) -> None:
    """The last place of a text through the first layer of a network, gate by gate."""
    layer: Recurrent = network.layers[0]
    if len(layer.directions) != 1:
        raise UserError("a network that reads both ways has no step that could be shown alone")
    with torch.inference_mode():
        x = network.tokens(ids)
        hidden, carried = layer.by_equations(x, Rows.of([len(ids)], ids.device))
    before, after = carried[-2], carried[-1]
    weight, back, bias, back_bias = (plain(w) for w in layer.weights_of(layer.layers[0]))
    word, width, upper = names[-1], layer.width, cell.upper()
    last, key = plain(x)[-1:], lambda name: f"{cell}_{name}"
    walk.add(key("x"), "x_t", last, [word])
    walk.add(key("h"), "h_{t-1}", plain(before[0]), [word])
    walk.weights(key("u"), "U", weight.T)
    walk.weights(key("w"), "W", back.T)
    walk.add(key("bu"), "b", bias[None], ["b"])
    walk.add(key("bw"), "b_h", back_bias[None], ["b"])
    walk.add(
        key("ux"),
        "U x_t",
        last @ weight.T + bias,
        [word],
        kind="product",
        left=key("x"),
        right=key("u"),
        bias=key("bu"),
    )
    walk.step(
        f"{upper}: the input",
        f"{upper} {made}. The vector of '{word}' meets the matrix U.",
        "U x_t + b",
        [key("x"), "×", key("u"), "=", key("ux")],
    )
    walk.add(
        key("wh"),
        "W h_{t-1}",
        plain(before[0]) @ back.T + back_bias,
        [word],
        kind="product",
        left=key("h"),
        right=key("w"),
        bias=key("bw"),
    )
    walk.step(
        f"{upper}: the state before",
        "What was read so far meets the matrix W.",
        "W h_{t−1} + b",
        [key("h"), "×", key("w"), "=", key("wh")],
    )
    {"rnn": _rnn, "lstm": _lstm, "gru": _gru}[cell](walk, key, word, width, before, after, layer.activation)
    _words(walk, key, upper, network, word, after[0])


def _sum(walk: Walk, key: Any, word: str, width: int, part: int, name: str) -> str:
    """The columns of one gate in both products, and their sum."""
    ux, wh = (walk.matrices[key(side)].values[:, part * width : (part + 1) * width] for side in ("ux", "wh"))
    walk.add(key(f"{name}_u"), f"U x ({name})", ux, [word], kind="columns", left=key("ux"), offset=part * width)
    walk.add(key(f"{name}_w"), f"W h ({name})", wh, [word], kind="columns", left=key("wh"), offset=part * width)
    return walk.add(
        key(f"{name}_sum"), f"sum ({name})", ux + wh, [word], kind="add", left=key(f"{name}_u"), right=key(f"{name}_w")
    )


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _rnn(walk: Walk, key: Any, word: str, width: int, before: Any, after: Any, bend: str) -> None:
    total = walk.matrices[key("ux")].values + walk.matrices[key("wh")].values
    walk.add(key("sum"), "sum", total, [word], kind="add", left=key("ux"), right=key("wh"))
    walk.add(key("new"), "h_t", plain(after[0]), [word], kind="map", left=key("sum"), function=bend)
    walk.step(
        "RNN: the new state",
        f"Their sum, bent by {bend}.",
        f"h_t = {bend}(U x_t + W h_{{t−1}})",
        [key("ux"), "+", key("wh"), "=", key("sum"), "→", key("new")],
    )


def _lstm(walk: Walk, key: Any, word: str, width: int, before: Any, after: Any, bend: str) -> None:
    for part, name in enumerate(GATES["lstm"]):
        total = _sum(walk, key, word, width, part, name)
        values = walk.matrices[total].values
        function = "tanh" if name == "cell" else "sigmoid"
        gate = np.tanh(values) if name == "cell" else _sigmoid(values)
        walk.add(
            key(name),
            name,
            gate,
            [word],
            kind="map",
            left=total,
            function=function,
            scale="diverging" if name == "cell" else "sequential",
        )
    text = {
        "input": "How much of the new content enters",
        "forget": "How much of the memory stays",
        "cell": "The new content",
        "output": "How much of the memory is shown",
    }
    for name in GATES["lstm"]:
        walk.step(
            f"LSTM: {'content' if name == 'cell' else name + ' gate'}",
            f"{text[name]}: its columns of both products, added and bent.",
            f"{'tanh' if name == 'cell' else 'σ'}(U x_t + W h_{{t−1}})",
            [key(f"{name}_u"), "+", key(f"{name}_w"), "=", key(f"{name}_sum"), "→", key(name)],
        )
    memory, content = (
        walk.matrices[key("forget")].values * plain(before[1]),
        walk.matrices[key("input")].values * walk.matrices[key("cell")].values,
    )
    walk.add(key("c"), "c_{t-1}", plain(before[1]), [word])
    walk.add(key("kept"), "forget · c", memory, [word], kind="multiply", left=key("forget"), right=key("c"))
    walk.add(key("entered"), "input · content", content, [word], kind="multiply", left=key("input"), right=key("cell"))
    walk.add(key("memory"), "c_t", plain(after[1]), [word], kind="add", left=key("kept"), right=key("entered"))
    walk.step(
        "LSTM: the memory",
        "Part of the old memory stays and part of the new content enters: a sum, through which gradients flow unharmed.",
        "c_t = forget · c_{t−1} + input · content",
        [key("kept"), "+", key("entered"), "=", key("memory")],
    )
    walk.add(
        key("bent"), "tanh(c_t)", np.tanh(plain(after[1])), [word], kind="map", left=key("memory"), function="tanh"
    )
    walk.add(key("new"), "h_t", plain(after[0]), [word], kind="multiply", left=key("output"), right=key("bent"))
    walk.step(
        "LSTM: the new state",
        "The output gate shows a part of the memory.",
        "h_t = output · tanh(c_t)",
        [key("output"), "×", key("bent"), "=", key("new")],
    )


def _gru(walk: Walk, key: Any, word: str, width: int, before: Any, after: Any, bend: str) -> None:
    for part, name in enumerate(("reset", "update")):
        total = _sum(walk, key, word, width, part, name)
        walk.add(
            key(name),
            name,
            _sigmoid(walk.matrices[total].values),
            [word],
            kind="map",
            left=total,
            function="sigmoid",
            scale="sequential",
        )
        text = (
            "How much of the old state the new content sees" if name == "reset" else "How much of the old state stays"
        )
        walk.step(
            f"GRU: {name} gate",
            f"{text}.",
            "σ(U x_t + W h_{t−1})",
            [key(f"{name}_u"), "+", key(f"{name}_w"), "=", key(f"{name}_sum"), "→", key(name)],
        )
    ux, wh = (walk.matrices[key(side)].values[:, 2 * width :] for side in ("ux", "wh"))
    walk.add(key("cand_u"), "U x (new)", ux, [word], kind="columns", left=key("ux"), offset=2 * width)
    walk.add(key("cand_w"), "W h (new)", wh, [word], kind="columns", left=key("wh"), offset=2 * width)
    masked = walk.matrices[key("reset")].values * wh
    walk.add(key("reset_h"), "reset · W h", masked, [word], kind="multiply", left=key("reset"), right=key("cand_w"))
    walk.add(key("cand_sum"), "sum", ux + masked, [word], kind="add", left=key("cand_u"), right=key("reset_h"))
    walk.add(key("cand"), "content", np.tanh(ux + masked), [word], kind="map", left=key("cand_sum"), function="tanh")
    walk.step(
        "GRU: the new content",
        "The reset gate decides how much of the old state it sees.",
        "n = tanh(U x_t + reset · W h_{t−1})",
        [key("cand_u"), "+", key("reset_h"), "=", key("cand_sum"), "→", key("cand")],
    )
    walk.add(
        key("new"), "h_t", plain(after[0]), [word], kind="gate", left=key("update"), right=key("h"), more=key("cand")
    )
    walk.step(
        "GRU: the new state",
        "The update gate chooses between the old state and the new content, number by number.",
        "h_t = update · h_{t−1} + (1 − update) · n",
        [key("update"), key("h"), key("cand"), "→", key("new")],
    )


def _words(walk: Walk, key: Any, upper: str, network: Any, word: str, hidden: Tensor) -> None:
    """The product with V, the table of words; only where the network has one layer and a word head of its width."""
    if "words" not in network.heads or len(network.layers) > 1 or network.heads["words"].narrow is not None:
        return
    head = network.heads["words"].words
    table = plain((network.tokens if head.decoder is None else head.decoder).weight)
    if table.shape[0] > 64:
        return
    with torch.inference_mode():
        logits = plain(network.words(hidden))
    walk.weights(key("v"), "V", table.T)
    walk.add(key("bv"), "b", plain(head.bias)[None], ["b"])
    walk.add(key("o"), "V h_t", logits, [word], kind="product", left=key("new"), right=key("v"), bias=key("bv"))
    walk.step(
        f"{upper}: the output",
        "The state meets the matrix V: logits of the next word.",
        "o_t = V h_t",
        [key("new"), "×", key("v"), "=", key("o")],
    )


def bptt_walk(model: Model | None, text: str, t_min: int | None = None, t_max: int | None = None) -> Walk:
    """Back-propagation through time: the gradient of each output as a sum over the places that it goes back to."""
    network, ids, names = _network(model, text)
    if len(ids) < 3:
        raise UserError("back-propagation through time needs a text of at least three tokens")
    count = len(ids) - 1  # the last token is only a target
    first, last = count // 3 if t_min is None else t_min, count - 1 if t_max is None else t_max
    if not 0 <= first <= last < count:
        raise UserError(f"t_min and t_max must be 0 <= t_min <= t_max <= {count - 1}, not {first} and {last}")
    terms, losses, whole, states = gradient_terms(network, ids, first, last)
    walk = Walk(
        "Back-propagation through time",
        f"{names[0]} … {names[-1]}: {count} places; the loss counts the outputs from t = {first} to {last}.",
    )
    labels = [f"{t} {name}" for t, name in enumerate(names[:-1])]
    walk.add("states", "h_t", states, labels)
    walk.step(
        "Unroll",
        "The same cell with the same weights at every place: a deep network with one layer for each token.",
        "h_t = f(U x_t + W h_{t−1})",
        ["states"],
    )
    rows = [
        (label, names[t + 1], f"{losses[t]:.4f}" if first <= t <= last else "ignored") for t, label in enumerate(labels)
    ]
    walk.step(
        "The outputs that count",
        "Outputs before t_min and after t_max are ignored: no gradient flows from them. The states before t_min still get a gradient, through the states after them.",
        "J = Σ_{t_min ≤ t ≤ t_max} J(t)",
        tables=[WalkTable("", ("place", "should say", "J(t)"), rows, [(t, 2) for t in range(first, last + 1)])],
    )
    norms = np.linalg.norm(terms.reshape(count, count, -1), axis=-1)  # by output t and place k
    walk.add(
        "norms", "‖term k of ∂J(t)/∂W‖", norms, labels, [f"k={k}" for k in range(count)], scale="sequential", digits=4
    )
    walk.step(
        "The terms",
        "W is used at every place k up to t, and each use is one term of the gradient of J(t). A row for each output; ignored outputs have only zeros, and no term comes from after t.",
        "∂J(t)/∂W = Σ_{k ≤ t} ∂J(t)/∂h_k · ∂⁺h_k/∂W",
        ["norms"],
    )
    for t in (last,):
        parts = terms[t, : t + 1]
        shown = parts.reshape(t + 1, -1)[:, :24]
        walk.add(
            "terms",
            f"terms of ∂J({t})/∂W",
            shown,
            [f"k={k}" for k in range(t + 1)],
            [f"w{n}" for n in range(shown.shape[1])],
            shape=(t + 1, int(np.prod(parts.shape[1:]))),
            digits=4,
        )
        walk.add("ones", "1", np.ones((1, t + 1)), ["sum"], [f"k={k}" for k in range(t + 1)], digits=0)
        alone = single_gradient(network, ids, t).reshape(1, -1)[:, : shown.shape[1]]
        walk.add(
            "sum",
            f"∂J({t})/∂W by autograd",
            alone,
            ["autograd"],
            [f"w{n}" for n in range(shown.shape[1])],
            digits=4,
            kind="product",
            left="ones",
            right="terms",
        )
        walk.step(
            f"The sum for t = {t}",
            f"The {t + 1} terms of J({t}), and their sum: equal to what autograd computes.",
            "Σ_k term_k",
            ["terms", "→", "sum"],
        )
    total = np.abs(terms.sum((0, 1)) - whole).max()
    walk.add("gradient", "∂J/∂W", whole)
    walk.step(
        "The gradient",
        f"All terms of all outputs together are the gradient that one step of training uses. The largest difference from autograd's is {total:.1e}.",
        "∂J/∂W = Σ_t Σ_k",
        ["gradient"],
    )
    return walk


def _network(model: Model | None, text: str) -> tuple[Any, Tensor, list[str]]:
    if model is None:
        words = re.findall(r"\w+|[^\w\s]", text)
        vocabulary = list(dict.fromkeys(words))
        return fresh("rnn", words).double(), torch.tensor([vocabulary.index(word) for word in words]), words
    network: Any = model.network
    if not network.UNROLLS or network.config.bidirectional or "words" not in network.heads:
        raise UserError(
            f"{model.opened.family.name}: back-propagation through time is shown for recurrent language models"
        )
    ids, _, _, names = tokens_of(model, text)
    return network, ids, names


def _losses(network: Any, ids: Tensor, hidden: Tensor) -> Tensor:
    return nn.functional.cross_entropy(network.words(hidden), ids[1:], reduction="none")


def gradient_terms(network: Any, ids: Tensor, first: int, last: int) -> tuple[Array, Array, Array, Array]:
    """T T GW W: by output t and place k the part of dJ(t)/dW that comes from the use of W at place k.

    Also the losses, the gradient of their sum from `first` to `last` by autograd, and the hidden states. The state
    that place k reads is h_{k-1}: with what reaches the sum of place k as delta, the term is delta times h_{k-1}.
    """
    back = network.layers[0].weights_of(network.layers[0].layers[0])[1]
    rows = Rows.of([len(ids) - 1], ids.device)
    with torch.enable_grad():
        hidden, carried = network.unrolled(ids[:-1], rows)
        losses = _losses(network, ids, hidden)
        whole = torch.autograd.grad(losses[first : last + 1].sum(), back, retain_graph=True)[0]
        count = len(losses)
        states = [place[0] for place in carried[0]]  # h_{-1}, h_0 ...; those of the first layer
        terms = np.zeros((count, count, *back.shape))
        for t in range(first, last + 1):
            above = torch.autograd.grad(losses[t], states[1 : t + 2], retain_graph=True, allow_unused=True)
            for k in range(t + 1):
                if above[k] is not None:
                    terms[t, k] = plain(_one_use(network, ids, carried[0], k, above[k], back))
    return terms, plain(losses), plain(whole), plain(torch.cat(states[1:]))


def _one_use(network: Any, ids: Tensor, carried: Any, k: int, above: Tensor, back: Tensor) -> Tensor:
    """The gradient of one step alone, with what it reads held fixed: what reaches its output times its use of W."""
    layer: Recurrent = network.layers[0]
    steps = layer.steps()
    before = tuple(part.detach() for part in carried[k])
    output, _ = steps.step(steps.given(network.tokens(ids[k : k + 1])), (before,))
    return torch.autograd.grad(output, back, above, retain_graph=False)[0]


def single_gradient(network: Any, ids: Tensor, t: int) -> Array:
    """dJ(t)/dW by autograd, from a pass of its own."""
    back = network.layers[0].weights_of(network.layers[0].layers[0])[1]
    with torch.enable_grad():
        hidden, _ = network.unrolled(ids[:-1], Rows.of([len(ids) - 1], ids.device))
        return plain(torch.autograd.grad(_losses(network, ids, hidden)[t], back)[0])

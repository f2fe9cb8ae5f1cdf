"""The steps of one Transformer layer in a walk, from what its modules read and gave.

T: tokens; D: width of a head.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import nn

from weft.explain.seen import StackArrays
from weft.explain.walk_record import ModuleCalls, plain
from weft.explain.walk_steps import Array, Walk, WalkStep
from weft.nn.attention import Attention, CrossAttention
from weft.nn.layers import FeedForward, Layer, activate

PROJECTIONS = {
    "Q": ("Queries", "what each token looks for"),
    "K": ("Keys", "what each token is compared by"),
    "V": ("Values", "what each token passes on to those that attend to it"),
}


class LayerWalk:
    """Adds the steps of layers to a walk; each method takes and returns ids of matrices."""

    def __init__(self, walk: Walk, calls: ModuleCalls) -> None:
        self.walk, self.calls = walk, calls

    # ------------------------------------------------------------------------------------------------- building blocks

    def linear(
        self,
        id: str,
        name: str,
        module: nn.Linear,
        left: str,
        weight: str,
        call: int = 0,
        columns: slice = slice(None),
        rows: slice = slice(None),
    ) -> str:
        """What a linear map gave, or some of its rows and columns, with its weights."""
        walk = self.walk
        matrix = walk.weights(f"{id}_weights", weight, plain(module.weight).T[:, columns])
        bias = None
        if module.bias is not None:
            bias = walk.add(f"{id}_bias", weight.replace("W", "b"), plain(module.bias)[None, columns], ["bias"])
        values = self.calls.output(module, call)[rows, columns]
        return walk.add(id, name, values, kind="product", left=left, right=matrix, bias=bias)

    def norm(self, id: str, title: str, module: Any, left: str, call: int = 0, rows: slice = slice(None)) -> str:
        """A layer norm or RMS norm; its details have each token's mean and variance, the gain and the bias."""
        walk, rms = self.walk, isinstance(module, nn.RMSNorm)
        values = np.asarray(walk.values(left), dtype=np.float64)
        names = walk.matrices[left].rows
        mean, epsilon = values.mean(-1), float(module.eps)
        if rms:
            statistics, columns = (values**2).mean(-1)[:, None], ["mean square"]
        else:
            statistics, columns = np.stack([mean, values.var(-1)], -1), ["mean", "variance"]
        opened = [walk.add(f"{id}_statistics", " and ".join(columns), statistics, names, columns, digits=4)]
        opened.append(walk.add(f"{id}_gain", "gain", plain(module.weight)[None], ["gain"]))
        bias = None
        if not rms and module.bias is not None:
            bias = walk.add(f"{id}_bias", "bias", plain(module.bias)[None], ["bias"])
            opened.append(bias)
        made: dict[str, Any] = {"kind": "norm", "left": left, "gain": opened[1], "bias": bias, "epsilon": epsilon}
        output = self.calls.output(module, call)[rows]
        normed = walk.add(id, "norm(x)", output, rms=True if rms else None, **made)
        text = (
            "Each token's numbers are divided by their root mean square and multiplied by a learned gain."
            if rms
            else "Each token's numbers are shifted to mean 0, scaled to variance 1, then changed by gain and bias."
        )
        detail = WalkStep(
            "Open the norm: mean square and gain" if rms else "Open the norm: mean, variance, gain and bias",
            f"{' and '.join(columns).capitalize()} are over the {values.shape[1]} numbers of one token. "
            f"{'The gain is' if rms else 'Gain and bias are'} learned, one number for each column; ε = {epsilon:g}.",
            "x / √(mean(x^2) + ε) · gain" if rms else "(x − mean) / √(variance + ε) · gain + bias",
            opened,
        )
        walk.step(title, text, "norm(x)", [left, "→", normed], details=[detail])
        return normed

    def add(self, id: str, name: str, values: Array, left: str, right: str, title: str, text: str, formula: str) -> str:
        """A residual connection: a matrix plus what a part of the layer made of it."""
        added = self.walk.add(id, name, values, kind="add", left=left, right=right)
        self.walk.step(title, text, formula, added)
        return added

    # ---------------------------------------------------------------------------------------------------------- layer

    def layer(
        self, layer: Layer, call: int, head: int, x: str, seen: StackArrays, number: int, source: str | None = None
    ) -> str:
        """All steps of one layer; `seen` is what its attention did, `source` what a decoder reads of its encoder."""
        walk, calls = self.walk, self.calls
        part = walk.part
        walk.part = f"{part} attention" if part else "Attention"
        attended = x
        if layer.norm_before:
            attended = self.norm("attention_norm", "Norm before attention", layer.attention_norm, x, call)
        attended = self.attention(layer, call, head, attended, seen, number)
        after: nn.Module = layer.cross_norm if layer.reads else layer.feedforward_norm
        added = calls.input(after if layer.norm_before else layer.attention_norm, call)
        text = "The output of attention is added to what the layer has read: a residual connection."
        x = self.add("added", "x + attention", added, x, attended, "Add", text, "x + attention(x)")
        if not layer.norm_before:
            x = self.norm("attention_norm", "Norm after attention", layer.attention_norm, x, call)
        if source is not None:
            walk.part = f"{part} cross-attention"
            x = self.cross(layer, call, head, x, source, seen.text.cross, number)
        walk.part = f"{part} feed-forward" if part else "Feed-forward"
        bent = x
        if layer.norm_before:
            bent = self.norm(
                "feedforward_norm", "Norm before the feed-forward network", layer.feedforward_norm, x, call
            )
        down = self.feedforward(layer.feedforward, call, bent)
        output = calls.output(layer, call) if layer.norm_before else calls.input(layer.feedforward_norm, call)
        text = "The second residual connection."
        x = self.add("layer_sum", "x + feed-forward", output, x, down, "Add", text, "x + FFN(x)")
        if layer.norm_before:
            return x
        return self.norm("feedforward_norm", "Norm after the feed-forward network", layer.feedforward_norm, x, call)

    def attention(self, layer: Layer, call: int, head: int, x: str, seen: StackArrays, number: int) -> str:
        """Self-attention of one head, and the output of all heads together."""
        walk, attention = self.walk, layer.attention
        assert isinstance(attention, Attention)
        size, heads = attention.head_width, attention.heads
        firsts = [(n * heads + head) * size for n in range(3)]  # queries of all heads, then keys, then values
        query, key, value = (
            self.projected(letter, attention.qkv, call, x, slice(first, first + size), head)
            for letter, first in zip("QKV", firsts, strict=True)
        )
        inputs = self.calls.inputs(layer, call)
        bias, turns = (inputs[n] if len(inputs) > n else None for n in (2, 3))
        if turns is not None:
            query = walk.add("Q_turned", "Q turned", plain(seen.queries[number][head]), walk.matrices[query].rows)
            key = walk.add("K_turned", "K turned", plain(seen.keys[number][head]), walk.matrices[key].rows)
            text = "Rotary positions turn queries and keys by angles that grow with the place of the token."
            walk.step("Rotary positions", text, "", [query, key])
        logits = self.logits(attention, query, key)
        if bias is not None:
            count = len(walk.matrices[query].rows)
            table = plain(bias.expand(*bias.shape[:-2], count, count).reshape(-1, count, count)[head])
            given = walk.add("position_bias", "Position bias", table, *([walk.matrices[query].rows] * 2))
            values = walk.values(logits) + table
            logits = walk.add("biased", "logits + bias", values, kind="add", left=logits, right=given)
            text = (
                "Relative positions: a number for each distance between query and key, which differs from head to head."
            )
            walk.step("Position bias", text, "", logits)
        if attention.causal:
            logits = self.masked(logits)
        weights = plain(seen.attention[number][head])
        return self.mixed(attention, call, head, weights, logits, value, "A = softmax(Q K^⊤ / √d_k)")

    def cross(self, layer: Layer, call: int, head: int, x: str, source: str, seen: StackArrays, number: int) -> str:
        """Attention of a decoder layer to the encoder's output, with its residual connection and norm."""
        walk, attention, scope = self.walk, layer.cross, self.walk.scope
        assert isinstance(attention, CrossAttention)
        size, heads = attention.head_width, attention.heads
        before = x
        walk.scope = f"{scope}cross."
        if layer.norm_before:
            x = self.norm("norm", "Norm before cross-attention", layer.cross_norm, x, call)
        at = slice(head * size, (head + 1) * size)
        query = self.projected("Q", attention.query, call, x, at, head)
        key = self.projected("K", attention.key_value, call, source, at, head)
        at = slice((heads + head) * size, (heads + head + 1) * size)
        value = self.projected("V", attention.key_value, call, source, at, head)
        logits = self.logits(attention, query, key)
        weights = plain(seen.attention[number][head])
        mixed = self.mixed(attention, call, head, weights, logits, value, "A = softmax(Q K^⊤ / √d_k)")
        added = self.calls.input(layer.feedforward_norm if layer.norm_before else layer.cross_norm, call)
        text = "What was read of the source is added."
        x = self.add("added", "x + cross-attention", added, before, mixed, "Add", text, "x + cross(x, source)")
        if not layer.norm_before:
            x = self.norm("norm", "Norm after cross-attention", layer.cross_norm, x, call)
        walk.scope = scope
        return x

    # ------------------------------------------------------------------------------------------------ parts of a head

    def projected(self, letter: str, module: nn.Linear, call: int, x: str, columns: slice, head: int) -> str:
        """Queries, keys or values of one head."""
        name, text = PROJECTIONS[letter]
        id = self.linear(letter, letter, module, x, f"W^{letter}", call, columns)
        bias = "" if module.bias is None else f" + b^{letter}"
        self.walk.step(f"{name}: W^{letter}", f"{name} of head {head}: {text}.", f"{letter} = x W^{letter}{bias}", id)
        return id

    def logits(self, attention: Attention | CrossAttention, query: str, key: str) -> str:
        """The products of queries and keys, divided."""
        walk, size = self.walk, attention.head_width
        scores = walk.values(query) @ walk.values(key).T
        id = walk.add("scores", "Q K^⊤", scores, kind="product", left=query, right=key, transpose=True)
        text = "Each query times each key: how well they match. A row for each query, a column for each key."
        walk.step("Logits", text, "Q K^⊤", id)
        factor = 1 / math.sqrt(size) if attention.scale is None else float(attention.scale)
        made: dict[str, Any] = {"kind": "scale", "left": id, "factor": factor, "divisor": 1 / factor}
        divided = walk.add("divided", "Q K^⊤ / √d_k", scores * factor, **made)
        text = (
            f"Divided by the root of the width, √{size} = {1 / factor:.4g}, to keep the softmax from saturating."
            if attention.scale is None
            else "T5 does not divide: its initial weights are smaller instead. The divisor is 1."
        )
        walk.step("Divide by √d_k", text, "Q K^⊤ / √d_k", divided)
        return divided

    def masked(self, logits: str) -> str:
        """The causal mask."""
        walk, (count, _) = self.walk, self.walk.values(logits).shape
        table = np.where(np.tril(np.ones((count, count), bool)), 0.0, -np.inf)
        mask = walk.add("mask", "mask", table, *([walk.matrices[logits].rows] * 2), digits=0)
        made: dict[str, Any] = {"kind": "add", "left": logits, "right": mask}
        masked = walk.add("masked", "masked logits", walk.values(logits) + table, **made)
        text = "A token must not attend to the tokens after it: their logits become minus infinity."
        walk.step("Mask", text, "Q K^⊤ / √d_k + mask", masked)
        return masked

    def mixed(self, attention: Any, call: int, head: int, weights: Array, logits: str, value: str, formula: str) -> str:
        """Softmax, the weighted sum of values, the other heads, and the output map."""
        walk, size = self.walk, attention.head_width
        made: dict[str, Any] = {"kind": "softmax", "left": logits, "scale": "sequential"}
        shares = walk.add("weights", "A", weights, **made)
        text = "Each row becomes weights that sum to 1: how much a token attends to each token."
        walk.step("Softmax", text, formula, shares)
        joined = self.calls.input(attention.output, call)
        own = joined[:, head * size : (head + 1) * size]
        z = walk.add("Z", f"Z_{head}", own, kind="product", left=shares, right=value)
        walk.step("Weighted sum", "Each token gets the sum of all values, weighted by its attention.", "Z = A V", z)
        columns = [f"{h}.{n}" for h in range(attention.heads) for n in range(size)]
        made = {"kind": "concat", "left": z, "right": z, "offset": head * size}
        heads = walk.add("heads", "Z", joined, columns=columns, **made)
        text = f"All {attention.heads} heads do the same with their own weights, and their results are concatenated. "
        text += f"Column {head}.0 is the first of head {head}."
        walk.step("Concatenate heads", text, f"Z = [Z_0, …, Z_{attention.heads - 1}]", heads)
        output = self.linear("attended", "Z W^O", attention.output, heads, "W^O", call)
        walk.step("Output map: W^O", "A linear map combines the heads.", "Z W^O", output)
        return output

    # ---------------------------------------------------------------------------------------------------- feed-forward

    def feedforward(self, part: FeedForward, call: int, x: str) -> str:
        """The two maps around the activation, gated or not."""
        walk = self.walk
        up = self.linear("up", "x W_1", part.up, x, "W_1", call)
        text = f"Each token by itself goes through a layer of {part.up.out_features} numbers."
        walk.step("Feed-forward: W_1", text, "x W_1" + (" + b_1" if part.up.bias is not None else ""), up)
        values, name = self.calls.input(part.down, call), part.activation
        if part.gated:
            inner, whole = values.shape[1], walk.values(up)
            gate = walk.add("gate", "gate", whole[:, :inner], kind="columns", left=up, offset=0)
            content = walk.add("content", "content", whole[:, inner:], kind="columns", left=up, offset=inner)
            opened = plain(activate(torch.from_numpy(whole[:, :inner].copy()), name))
            opened_gate = walk.add("opened", f"{name}(gate)", opened, kind="map", left=gate, function=name)
            bent = walk.add("bent", f"{name}(gate) · content", values, kind="multiply", left=opened_gate, right=content)
            text = f"One half of the columns goes through {name} and multiplies the other half."
            walk.step("Gated activation", text, f"{name}(gate) · content", [gate, "→", *walk.shown(bent)])
        else:
            bent = walk.add("bent", f"{name}(x W_1)", values, kind="map", left=up, function=name)
            walk.step("Activation", f"{name} is applied to each number by itself.", f"{name}(x W_1)", bent)
        down = self.linear("down", "feed-forward", part.down, bent, "W_2", call)
        walk.step("Feed-forward: W_2", "Back to the width of the model.", f"{name}(x W_1) W_2", down)
        return down

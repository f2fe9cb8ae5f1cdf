"""The end of a walk: from hidden states to words or labels, and to the token that is drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from weft.explain.walk_layer import LayerWalk
from weft.explain.walk_record import ModuleCalls, TokenInput, names_of, plain
from weft.explain.walk_steps import Array, Walk, WalkTable
from weft.generation.sampling import RandomDraws, Sampling, choose
from weft.models.transformer import T5
from weft.nn.heads import DeepLabelHead, LabelHead, MaskedWordHead
from weft.tasks.forward import softmax
from weft.tasks.model import Model


class OutputWalk:
    """Adds the steps of a head to a walk; `last` is the matrix that the head reads."""

    def __init__(self, model: Model, walk: Walk, calls: ModuleCalls, given: TokenInput, last: str) -> None:
        self.model, self.walk, self.calls, self.given, self.last = model, walk, calls, given, last
        self.network: Any = model.network
        self.steps = LayerWalk(walk, calls)

    # ---------------------------------------------------------------------------------------------------------- labels

    def labels(self, name: str, logits: Array) -> None:
        """The labels of a text or of its tokens."""
        walk, head = self.walk, self.network.heads[name]
        if not isinstance(head, LabelHead | DeepLabelHead):
            walk.step("Hidden states", "The head of this task reads these.", "", [self.last])
            return
        by_token = name in self.network.BY_TOKEN
        x = self.last if by_token else self.summary(name, head)
        if isinstance(head, DeepLabelHead):
            x = self.bent("dense", head.dense, x, head.activation, self.calls.input(head.output))
        count = logits.shape[-1]
        labels = list(self.model.card.labels or ())
        labels = (
            labels if len(labels) == count else ["start", "end"] if name == "answer" else [str(n) for n in range(count)]
        )
        weights = walk.weights("label_weights", "W", plain(head.output.weight).T, labels)
        bias = None
        if head.output.bias is not None:
            bias = walk.add("label_bias", "b", plain(head.output.bias)[None], ["bias"], labels)
        id = walk.add("logits", "logits", np.atleast_2d(logits), kind="product", left=x, right=weights, bias=bias)
        each = "each token" if by_token else "the text"
        walk.step("Logits", f"A column of weights for each output: logits of {each}.", "x W + b", id)
        if self.model.task == "multilabel":
            chances = 1 / (1 + np.exp(-np.atleast_2d(logits)))
            id = walk.add("probabilities", "p", chances, kind="map", function="sigmoid", left=id, scale="sequential")
            walk.step("Sigmoid", "Each label by itself: a probability between 0 and 1.", "p = sigmoid(logits)", id)
        elif count > 1 and name != "answer":
            chances = softmax(np.atleast_2d(logits))
            id = walk.add("probabilities", "p", chances, kind="softmax", left=id, scale="sequential")
            walk.step("Softmax", "Logits become probabilities that sum to 1.", "p = softmax(logits)", id)

    def summary(self, name: str, head: LabelHead | DeepLabelHead) -> str:
        """The vector that stands for the whole text."""
        walk, network = self.walk, self.network
        pooled = name in network.POOLED
        reader = network.pooler.dense if pooled else head.dense if isinstance(head, DeepLabelHead) else head.output
        vector = self.calls.input(reader)
        hidden = walk.values(self.last)
        own = [n for n in range(len(hidden)) if np.array_equal(hidden[n], vector[0])]
        made: dict[str, Any] = {"kind": "row", "left": self.last, "indices": own[:1]} if own else {}
        text = "The head reads the vector of one token for the whole text." if own else "One vector for the text."
        x = walk.add("summary", "x", vector, [self.given.names[own[0]] if own else "text"], **made)
        walk.step("One vector for the text", text, "", [self.last, "→", x])
        if pooled:
            x = self.bent("pooler", network.pooler.dense, x, "tanh", self.calls.output(network.pooler))
        return x

    def bent(self, id: str, linear: Any, x: str, activation: str, values: Array, rows: slice = slice(None)) -> str:
        """A linear map and an activation."""
        product = self.steps.linear(id, "x W", linear, x, f"W^{{{id}}}", rows=rows)
        bent = self.walk.add(f"{id}_bent", f"{activation}(x W)", values, kind="map", left=product, function=activation)
        text = f"One more layer: a linear map and {activation}."
        shown = [*self.walk.shown(product), "→", bent]
        self.walk.step(id.capitalize(), text, f"{activation}(x W^{{{id}}} + b^{{{id}}})", shown)
        return bent

    # ----------------------------------------------------------------------------------------------------------- words

    def words(self, logits: Array, sampling: Sampling, top_k: int, seed: int) -> None:
        """The product with the table of tokens, softmax, the k best and the token drawn."""
        walk, network, given = self.walk, self.network, self.given
        place = self.place()
        name = given.names[place]
        made: dict[str, Any] = {"kind": "row", "left": self.last, "indices": [place]}
        x = walk.add("place", "x", walk.values(self.last)[place : place + 1], [name], **made)
        causal = self.model.opened.family.one_way or self.model.opened.family.reads
        text = "The last token predicts the token after it." if causal else f"The model predicts the word at '{name}'."
        walk.step("The place that predicts", text, "", x)
        head: Any = network.heads["words"]
        if isinstance(head, MaskedWordHead):
            at = slice(place, place + 1)
            x = self.bent("transform", head.dense, x, head.activation, self.calls.input(head.norm)[at], at)
            x = self.steps.norm("transformed", "Norm of the word head", head.norm, x, rows=at)
        if isinstance(network, T5) and network.config.scaled:
            factor = network.config.width**-0.5
            made = {"kind": "scale", "left": x, "factor": factor, "divisor": 1 / factor}
            x = walk.add("narrowed", "x / √W", walk.values(x) * factor, **made)
            walk.step("Scale", "T5 divides by the square root of the width before its tied table.", "x / √W", x)
        self.scores(head, logits[place].astype(np.float64), x, sampling, top_k, seed)

    def place(self) -> int:
        """The token whose vector predicts: the masked one, else the last one."""
        tokenizer, ids = self.model.tokenizer, self.given.ids
        masked = None if tokenizer is None else tokenizer.id_of("mask")
        if masked in ids:
            return ids.index(masked)
        return len(ids) - 1 if self.model.opened.family.generates else self.given.last

    def scores(self, head: Any, row: Array, x: str, sampling: Sampling, top_k: int, seed: int) -> None:
        """The logits of the best words, their probabilities, and the choice."""
        walk, network = self.walk, self.network
        table = plain((network.tokens if head.decoder is None else head.decoder).weight)
        own = None if head.decoder is None else head.decoder.bias
        bias = head.bias if own is None else own
        best = np.argsort(-row, kind="stable")[: min(top_k, len(row))]
        words = names_of(self.model, best.tolist(), written=True)
        tied = head.decoder is None
        letter = "E^⊤" if tied else "W^V"
        right = walk.add("word_table", letter, table[best].T, columns=words, shape=(table.shape[1], table.shape[0]))
        shift = None
        if bias is not None:
            shift = walk.add("word_bias", "b", plain(bias)[None, best], ["bias"], words, shape=(1, len(row)))
        made: dict[str, Any] = {"kind": "product", "left": x, "right": right, "bias": shift}
        id = walk.add("logits", "logits", row[None, best], shape=(1, len(row)), **made)
        how = "by the embedding table again: input and output share it" if tied else "by a table of its own"
        text = f"The vector meets that of every word, {how}. The page shows the {len(best)} best of {len(row):,}."
        walk.step(
            "Product with the tied embeddings" if tied else "Product with the word table", text, f"x {letter}", id
        )
        whole = softmax(row[None])
        # Not made from the logits on the page alone: the sum goes over all words.
        chances = walk.add(
            "probabilities", "p", whole[:, best], [self.walk.matrices[x].rows[0]], words,
            shape=(1, len(row)), scale="sequential", digits=4,
        )  # fmt: skip
        rest = max(0.0, 1 - float(whole[0, best].sum()))
        text = f"The sum goes over all {len(row):,} words. Those that are not shown have {rest:.4f} together."
        walk.step("Softmax", text, "p = softmax(logits)", [id, "→", chances])
        self.drawn(row, best, words, id, whole[0], sampling, seed)

    def drawn(
        self, row: Array, best: Array, words: list[str], logits: str, chances: Array, sampling: Sampling, seed: int
    ) -> None:
        """The k best words at a temperature, and the token that generation chooses."""
        walk, count = self.walk, len(best)
        heat = 1.0 if sampling.temperature is None else sampling.temperature
        if heat > 0:
            made: dict[str, Any] = {"kind": "scale", "left": logits, "factor": 1 / heat, "divisor": heat}
            heated = walk.add("heated", f"logits / {heat:g}", row[None, best] / heat, **made)
            made = {"kind": "softmax", "left": heated, "scale": "sequential", "digits": 4}
            kept = walk.add("kept", f"p of the top {count}", softmax((row[None, best] - row.max()) / heat), **made)
            text = (
                "Only the likeliest words stay. A temperature below 1 sharpens their shares, one above 1 flattens them."
            )
            shown = [logits, "→", heated, "→", kept]
            walk.step(f"Top {count} at temperature {heat:g}", text, "softmax(logits / temperature)", shown)
        draws = RandomDraws([seed]).draw([0])
        token = int(choose(torch.from_numpy(row)[None], sampling, draws)[0])
        (chosen,) = names_of(self.model, [token], written=True)
        how = (
            "greedy decoding takes the likeliest word"
            if sampling.greedy
            else f"seed {seed} drew the number {float(draws[0]):.4f}, which falls into the share of this word"
        )
        rows = [(word, f"{chances[n]:.4f}", "drawn" if n == token else "") for word, n in zip(words, best, strict=True)]
        mark = [(n, 0) for n, number in enumerate(best) if number == token]
        table = WalkTable("", ("token", "probability", ""), rows, mark)
        walk.step("The token", f"The token is '{chosen}': {how}.", "", tables=[table])

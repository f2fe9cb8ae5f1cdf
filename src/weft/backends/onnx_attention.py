"""Attention of rows without padding as one operator of ONNX Runtime, in place of the dozen that the exporter writes.

It is faster where it is given no mask, so it serves rows of one length alone. A file never holds it: what is checked
are the operators that are written out, which hold more memory. B: rows; T: places; H: heads; D: width of a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

OPERATOR, DOMAIN = "MultiHeadAttention", "com.microsoft"
MASK = "attention_mask"


class _Fused:
    """The graph of a model, with the producer and the readers of each result."""

    def __init__(self, onnx: Any, graph: Any) -> None:
        self.onnx, self.graph = onnx, graph
        self.made = {name: node for node in graph.node for name in node.output}
        self.readers: dict[str, list[Any]] = {}
        for node in graph.node:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)
        self.stored = {tensor.name: tensor for tensor in graph.initializer}
        self.gone: set[str] = set()  # first outputs of operators that are replaced
        self.put: dict[str, list[Any]] = {}  # what comes before the operator with this output

    def maker(self, name: str, kind: str, perm: Sequence[int] = ()) -> Any:
        """The operator of this kind that makes a result; None where it is another, or has another order of axes."""
        node = self.made.get(name)
        if node is None or node.op_type != kind or node.domain:
            return None
        return node if not perm or [list(each.ints) for each in node.attribute] == [list(perm)] else None

    def reader(self, node: Any, kind: str, perm: Sequence[int] = ()) -> Any:
        """The operator of this kind that alone reads a result."""
        readers = self.readers.get(node.output[0], [])
        return self.maker(readers[0].output[0], kind, perm) if len(readers) == 1 else None

    def value(self, name: str) -> list[Any]:
        """The numbers of a small stored tensor; none where it is not stored."""
        tensor = self.stored.get(name)
        if tensor is None or sum(tensor.dims) > 8:
            return []
        return self.onnx.numpy_helper.to_array(tensor).ravel().tolist()

    def is_padding(self, name: str) -> bool:
        """Whether this is the mask of padding that is added to scores, which is 0 without padding."""
        spread = self.maker(name, "Unsqueeze")
        far = None if spread is None else self.maker(spread.input[0], "Mul")
        gone = None if far is None else self.maker(far.input[0], "Sub")
        if gone is None or self.value(gone.input[0]) != [1.0]:
            return False
        mask = self.maker(gone.input[1], "Cast")
        return mask is not None and mask.input[0] == MASK

    def replace(self, softmax: Any) -> bool:
        """Put one operator in place of those around a softmax, where they are attention of all places over all."""
        masked = self.maker(softmax.input[0], "Add")
        if masked is None or not self.is_padding(masked.input[1]):
            return False
        scores = self.maker(masked.input[0], "MatMul")
        mixed = self.reader(softmax, "MatMul")
        if scores is None or mixed is None or mixed.input[0] != softmax.output[0]:
            return False
        swapped = [(scores.input[0], (0, 2, 1, 3)), (scores.input[1], (0, 2, 3, 1)), (mixed.input[1], (0, 2, 1, 3))]
        turned = [self.maker(name, "Transpose", perm) for name, perm in swapped]
        back = self.reader(mixed, "Transpose", (0, 2, 1, 3))
        flat = None if back is None else self.reader(back, "Reshape")
        if flat is None or None in turned:
            return False
        shaped = [self.maker(node.input[0], "Reshape") for node in turned]
        if None in shaped or len({node.input[1] for node in shaped}) > 1:
            return False
        split, places = self.maker(shaped[0].input[0], "Split"), self.maker(shaped[0].input[1], "Concat")
        sizes = [] if places is None else self.value(places.input[1])
        if (
            split is None
            or [node.input[0] for node in shaped] != list(split.output)
            or len(sizes) != 2
            or min(sizes) < 1
        ):
            return False
        between = [split, *shaped, *turned, scores, masked, softmax, mixed, back]
        if any(len(self.readers[name]) > 1 for node in between for name in node.output):
            return False
        self.gone |= {node.output[0] for node in between}
        self.put[flat.output[0]] = self._written(split.input[0], back.output[0], places.input[0], *sizes)
        return True

    def _written(self, joined: str, output: str, rows: str, heads: int, width: int) -> list[Any]:
        """N 3HD -> B T HD: the operator, and what it reads; `rows`: B T."""
        make, whole = self.onnx.helper.make_node, f"{OPERATOR} {3 * heads * width}"
        if whole not in self.stored:
            tensor = self.onnx.numpy_helper.from_array(np.array([3 * heads * width], np.int64), whole)
            self.graph.initializer.append(tensor)
            self.stored[whole] = tensor
        names = [f"{output} {name}" for name in ("sizes", "joined", "query", "key", "value")]
        settings = {"num_heads": heads, "scale": 1.0}  # the weights of the query carry its scale
        return [
            make("Concat", [rows, whole], names[:1], axis=0),
            make("Reshape", [joined, names[0]], names[1:2]),
            make("Split", names[1:2], names[2:], axis=-1, num_outputs=3),
            make(OPERATOR, names[2:], [output], domain=DOMAIN, **settings),
        ]


def without_padding(onnx: Any, model: Any) -> bytes | None:
    """The file of a graph for rows of one length; None where there is no attention to put together. Changes `model`."""
    fused = _Fused(onnx, model.graph)
    if not [node for node in model.graph.node if node.op_type == "Softmax" and fused.replace(node)]:
        return None
    nodes = []
    for node in model.graph.node:
        if node.output[0] not in fused.gone:
            nodes += [*fused.put.get(node.output[0], []), node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    whole: bytes = model.SerializeToString()
    return whole

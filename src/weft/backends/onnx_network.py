"""A graph of ONNX Runtime with the interface of a network. N: tokens of all rows; B: rows; n: places asked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from weft.backends.engine import Engine
from weft.backends.onnx import WORDS, WRITTEN, OnnxGraph, run
from weft.checkpoint.families import outline
from weft.checkpoint.folder import LoadedModel
from weft.errors import UserError
from weft.nn.rows import Rows, check_context


class OnnxNetwork(OnnxGraph, Engine):
    """Takes the place of a network whose graph ONNX Runtime runs, on the CPU."""

    def __init__(self, folder: Path, model: LoadedModel) -> None:
        Engine.__init__(self, model.config)
        self.heads = dict(model.heads)
        wide = outline(model.family, model.config, model.heads).features
        self.open(folder, model.config, model.heads, wide, model.family.name not in WRITTEN)

    @property
    def on_arrays(self) -> OnnxGraph:
        """Itself: it computes on arrays, and callers that need tensors convert them."""
        return self

    @property
    def features(self) -> int:
        """Width of the states that a graph without a head gives."""
        return self.wide

    def forward(
        self, tokens: Tensor, rows: Rows, segments: Tensor | None = None, states: list[Tensor] | None = None
    ) -> Tensor:
        """The output of the graph: hidden states of tokens, or the logits of its head for each token or row."""
        if states is not None:
            raise UserError("an exported model has its last layer only: use layers=last, or the original model")
        check_context(rows.longest, self.config.context)
        output = self.computed(tokens.numpy(), rows.starts.tolist(), None if segments is None else segments.numpy())
        return torch.from_numpy(output)

    def words(self, hidden: Tensor) -> Tensor:
        """Logits of all words for these hidden states: n width -> n vocabulary"""
        assert self.word_graph is not None
        parts = list(torch.split(hidden, 1)) if self.one_by_one else [hidden]
        path, size = self.folder / WORDS, self.config.vocabulary
        logits = [
            run(self.word_graph, {"hidden_states": part.contiguous().numpy()}, path, (len(part), size))[0]
            for part in parts
        ]
        return torch.from_numpy(logits[0] if len(logits) == 1 else np.concatenate(logits))

    def logits(self, head: str, hidden: Tensor, rows: Rows) -> Tensor:
        """The output of a head: `hidden` is it already, except for the words."""
        return self.words(hidden) if head == "words" else hidden

"""ONNX Runtime in place of a forecasting network.

Its graph gives the forecast after the last step of a window, and windows have one length. B: windows; W: steps of a
window; F: numbers of a step; O: outputs of the head.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from weft.backends.engine import Engine
from weft.backends.groups import TOKENS
from weft.backends.onnx import GRAPH, WINDOWS, run, started
from weft.backends.onnx_network import OnnxNetwork
from weft.checkpoint.folder import LoadedModel, fill
from weft.checkpoint.tensors import read_file
from weft.errors import UserError, listed, refuse, shown
from weft.models.base import Network
from weft.nn.rows import Rows

TABLES = "tables.safetensors"  # the coefficients of least squares, which is a baseline and no part of the graph


class OnnxForecaster(Engine):
    """The stand-in for a forecasting network whose graph ONNX Runtime runs, on the CPU."""

    least_squares: Tensor

    def __init__(self, folder: Path, model: LoadedModel) -> None:
        super().__init__(model.config)
        c, path = model.config, folder / GRAPH
        self.heads, self.path, self.outputs = dict(model.heads), path, c.outputs
        self.graph, _ = started(path, c)
        ends = [[(each.name, each.shape[1:]) for each in side]
                for side in (self.graph.get_inputs(), self.graph.get_outputs())]  # fmt: skip
        expected = [[(WINDOWS, [c.context * c.features])], [("logits", [c.outputs])]]
        names = listed([f"{name} {sizes}" for side in ends for name, sizes in side])
        refuse((ends != expected, f"{path}: has {shown(names)} where windows and logits of the config are expected"))
        self.register_buffer("least_squares", torch.zeros(c.horizon * c.targets, c.context * c.features + 1))
        try:
            fill(self, read_file(folder / TABLES))
        except UserError as error:
            raise UserError(f"{folder / TABLES}: {error}") from None

    def forecasts(self, tokens: Tensor, rows: Rows) -> Tensor:
        """B O: the outputs of the head for windows, which lie below each other (BW F)."""
        windows = tokens.float().reshape(rows.count, -1).numpy()  # B WF
        together = max(1, TOKENS // self.config.context)
        parts = []
        for first in range(0, len(windows), together):
            batch = windows[first : first + together]
            parts.append(torch.from_numpy(run(self.graph, {WINDOWS: batch}, self.path, (len(batch), self.outputs))[0]))
        return torch.cat(parts)


def network_of(folder: Path, model: LoadedModel) -> Network:
    """The stand-in for the network of a folder that ONNX Runtime runs."""
    return OnnxForecaster(folder, model) if model.family.series else OnnxNetwork(folder, model)

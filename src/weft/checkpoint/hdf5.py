"""ELMo as its authors publish it: sizes in options.json, weights in an HDF5 file, of which numbers alone are read.

C: cell of an LSTM; P: its projection.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.checkpoint.locate import elmo_files
from weft.errors import UserError, one_of, shown
from weft.files import MEGABYTE, read_json
from weft.models.elmo import ElmoConfig
from weft.spelling import FIRST_WORD

Shape = tuple[int, ...]
CELL = "RNN_{}/RNN/MultiRNNCell/Cell{}"  # direction, layer
KINDS = {int: "a whole number", float: "a number", str: "a text", list: "a list", bool: "true or false"}


def published_sizes(folder: Path) -> tuple[dict[str, Any], str] | None:
    """The options of a published ELMo as a config of ours, and their file for messages; None: the folder has none."""
    files = elmo_files(folder)
    if files is None:
        return None
    where = str(files[0])
    options = read_json(files[0], MEGABYTE)

    def part(name: str, inside: Mapping[str, Any] = options) -> Mapping[str, Any]:
        if not isinstance(inside.get(name), dict):
            raise UserError(f"{where}: has no {name}, which ELMo's options have")
        return inside[name]

    def value(name: str, inside: Mapping[str, Any], *kinds: type[Any]) -> Any:
        given = inside.get(name)
        if type(given) not in kinds:
            raise UserError(f"{where}: {name} must be {KINDS[kinds[0]]}, not {shown(json.dumps(given))}")
        return given

    lstm, cnn = part("lstm"), part("char_cnn")
    filters = value("filters", cnn, list)
    if not all(isinstance(pair, list) and [type(size) for size in pair] == [int, int] for pair in filters):
        raise UserError(f"{where}: filters must be pairs of whole numbers, a width and how many there are of it")
    if value("n_characters", cnn, int) not in (FIRST_WORD - 1, FIRST_WORD):
        raise UserError(f"{where}: n_characters must be {FIRST_WORD}, not {cnn['n_characters']}")
    sizes = {
        "width": value("projection_dim", lstm, int),
        "inner": value("dim", lstm, int),
        "layers": value("n_layers", lstm, int),
        "embedding_width": value("dim", part("embedding", cnn), int),
        "kernels": [pair[0] for pair in filters],
        "filters": [pair[1] for pair in filters],
        "word_length": value("max_characters_per_word", cnn, int),
        "activation": one_of(value("activation", cnn, str), ("relu", "tanh"), f"{where}: activation"),
        "highways": value("n_highway", cnn, int) if "n_highway" in cnn else 0,
        "clip": value("cell_clip", lstm, float, int, type(None)),
        "projection_clip": value("proj_clip", lstm, float, int, type(None)),
        "skip": value("use_skip_connections", lstm, bool) if "use_skip_connections" in lstm else False,
    }
    return {"model_type": "weft-elmo", "architectures": ["Weft-elmo"], "heads": {}, "sizes": sizes}, where


def published_weights(folder: Path, config: ElmoConfig) -> dict[str, Tensor]:
    """The weights of a published ELMo under our names, and what it has no weights for."""
    files = elmo_files(folder)
    assert files is not None
    try:
        import h5py
    except ImportError:
        raise UserError(f"{files[1]}: HDF5 weights need h5py: pip install 'weft[elmo]'") from None
    tensors = {
        "mix.shares": torch.zeros(config.layers + 1),
        "mix.scale": torch.ones(1),
        "spelling": torch.zeros(0, config.word_length, dtype=torch.int16),
    }
    try:
        with h5py.File(files[1], "r") as file:
            weights = _Weights(file, str(files[1]))
            for name, array in _converted(weights, config):
                tensors[name] = torch.from_numpy(np.ascontiguousarray(array))
            weights.refuse_more(config)
    except (OSError, KeyError, ValueError, RuntimeError, TypeError, OverflowError) as error:
        raise UserError(f"{files[1]}: not a sound HDF5 file: {shown(str(error), 160)}") from None
    return tensors


class _Weights:
    """The datasets of a file that are plain numbers in one piece, read by name in the shape that they must have."""

    def __init__(self, file: Any, where: str) -> None:
        self.file, self.where = file, where

    def node(self, name: str) -> Any:
        """A group or a dataset of this file itself; None where there is none of this name."""
        import h5py

        place, node = "", self.file
        for step in name.split("/"):
            place = f"{place}/{step}"
            link = node.get(step, getlink=True) if isinstance(node, h5py.Group) else None
            if link is None:
                return None
            if not isinstance(link, h5py.HardLink):
                raise UserError(f"{self.where}: {place} leads elsewhere, which is not followed")
            node = node[step]
        return node

    def refuse_more(self, c: ElmoConfig) -> None:
        """Refuse a file with more layers, filters or highways than the options have: it is another model's."""
        cells = [CELL.format(direction, c.layers) for direction in range(2)]
        for name in (f"CNN/W_cnn_{len(c.kernels)}", f"CNN_high_{c.highways}", *cells):
            if self.node(name) is not None:
                raise UserError(f"{self.where}: has {name}, which is more than the options ask for")

    def __call__(self, name: str, *shape: int) -> NDArray[np.float32]:
        import h5py

        node = self.node(name)
        if node is None:
            raise UserError(f"{self.where}: has no {name}")
        if not isinstance(node, h5py.Dataset) or node.dtype.kind != "f":
            raise UserError(f"{self.where}: {name} holds no floating-point numbers")
        if node.shape != shape:
            raise UserError(f"{self.where}: {name} has the shape {node.shape}, where the options ask for {shape}")
        # In one piece inside the file, as published: neither compressed nor in another file, so no larger than it is.
        if node.chunks is not None or node.is_virtual or node.external or node.id.get_storage_size() != node.nbytes:
            raise UserError(f"{self.where}: {name} is not stored in one piece")
        return node[...].astype(np.float32)


def _converted(read: _Weights, c: ElmoConfig) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Each tensor under our name; TensorFlow's matrices are transposed."""
    characters = read("char_embed", FIRST_WORD - 1, c.embedding_width)
    yield "tokens.weight", np.pad(characters, ((1, 0), (0, 0)))  # ours has the filling of batches first
    for number, (kernel, filters) in enumerate(zip(c.kernels, c.maps, strict=True)):
        convolution = read(f"CNN/W_cnn_{number}", 1, kernel, c.embedding_width, filters)
        yield f"words_from.convolutions.{number}.weight", convolution[0].transpose(2, 1, 0)
        yield f"words_from.convolutions.{number}.bias", read(f"CNN/b_cnn_{number}", filters)
    total = sum(c.maps)
    for number in range(c.highways):
        for gate in ("carry", "transform"):
            name = f"words_from.highways.{number}.{gate}"
            yield f"{name}.weight", read(f"CNN_high_{number}/W_{gate}", total, total).T
            yield f"{name}.bias", read(f"CNN_high_{number}/b_{gate}", total)
    yield "words_from.projection.weight", read("CNN_proj/W_proj", total, c.width).T
    yield "words_from.projection.bias", read("CNN_proj/b_proj", c.width)
    for layer in range(c.layers):
        sides = []
        for direction in range(2):
            cell = f"{CELL.format(direction, layer)}/LSTMCell"
            weight = _gates(read(f"{cell}/W_0", 2 * c.width, 4 * c.inner).T)  # 4C 2P
            bias = _gates(read(f"{cell}/B", 4 * c.inner))
            bias[c.inner : 2 * c.inner] += 1.0  # TensorFlow adds it in every step
            projection = read(f"{cell}/W_P_0", c.inner, c.width).T
            sides.append((weight[:, : c.width], weight[:, c.width :], bias, projection))
        for name, pair in zip(("weight", "recurrent", "bias", "projection"), zip(*sides, strict=True), strict=True):
            yield f"layers.{layer}.{name}", np.stack(pair)


def _gates(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """TensorFlow's order of gates (input, new content, forget, output) as torch's (input, forget, new, output)."""
    taken, new, kept, output = np.split(rows, 4)
    return np.concatenate([taken, kept, new, output])

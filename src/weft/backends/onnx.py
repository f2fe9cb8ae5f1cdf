"""ONNX Runtime behind the face of a network: ragged rows go in, scores or states come out.

N: tokens of all rows together; B: rows; b, t: rows and places of one rectangle.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.backends.engine import Engine, equal_lengths, similar_lengths
from weft.backends.onnx_graph import WRITTEN, check_graph
from weft.backends.runtime import runtime
from weft.checkpoint.families import outline
from weft.checkpoint.folder import LoadedModel
from weft.errors import UserError, listed, shown
from weft.files import read_bytes
from weft.nn.rows import Rows, check_context

GRAPH, WORDS = "model.onnx", "words.onnx"  # the graph; of a model that fills gaps, its word head too
LARGEST = (1 << 31) - 1  # bytes that such a file can have


class OnnxNetwork(Engine):
    """The stand-in for a network whose graph ONNX Runtime runs, on the CPU."""

    def __init__(self, folder: Path, model: LoadedModel) -> None:
        super().__init__(model.config)
        self.heads, self.folder = dict(model.heads), folder
        # Of what each token is given out as, where no head reads it.
        self.wide = outline(model.family, model.config, model.heads).features
        # Whether it takes the range of its integers over a whole batch, so that each row must go through alone.
        traced = model.family.name not in WRITTEN
        self.graph, self.one_by_one = started(folder / GRAPH, model.config, traced)
        self.inputs = [each.name for each in self.graph.get_inputs()]
        self.masked = not traced  # a traced graph reads rows of equal length
        self.outputs = [each.name for each in self.graph.get_outputs()]
        self.by_token = self.outputs != ["logits"] or "tag" in self.heads
        self.word_graph = started(folder / WORDS, model.config, traced)[0] if "words" in self.heads else None
        self._check(folder)

    @property
    def features(self) -> int:
        """Width of the states that a graph without a head gives."""
        return self.wide

    def _check(self, folder: Path) -> None:
        """Refuse a graph that is not what the folder says."""
        two = self.config.segments > 1
        wanted = ["input_ids", *(["attention_mask"] if self.masked else []), *(["token_type_ids"] if two else [])]
        if sorted(self.inputs) != sorted(wanted) or any(len(each.shape) != 2 for each in self.graph.get_inputs()):
            raise UserError(f"{folder / GRAPH}: reads {shown(listed(self.inputs))} where {listed(wanted)} are expected")
        head = next((name for name in ("classify", "tag", "answer") if name in self.heads), None)
        expected = ["start_logits", "end_logits"] if head == "answer" else ["logits" if head else "last_hidden_state"]
        if self.outputs != expected:
            raise UserError(
                f"{folder / GRAPH}: gives {shown(listed(self.outputs))} where {listed(expected)} is expected"
            )
        named = next((self.heads[name] for name in ("classify", "tag") if name in self.heads), None)
        self.widths: tuple[int, ...] = () if head == "answer" else (named or self.wide,)
        ranks = {len(each.shape) for each in self.graph.get_outputs()}
        if ranks != {1 + self.by_token + len(self.widths)}:
            raise UserError(f"{folder / GRAPH}: gives outputs of {shown(str(ranks))} dimensions")
        wide = self.graph.get_outputs()[0].shape[-1]
        if named is not None and wide != named:
            raise UserError(f"{folder / GRAPH}: gives {shown(str(wide))} scores for a head of {named} outputs")
        if self.word_graph is not None:
            ends = [*self.word_graph.get_inputs(), *self.word_graph.get_outputs()]
            names = [each.name for each in ends]
            if names != ["hidden_states", "logits"]:
                raise UserError(
                    f"{folder / WORDS}: has {shown(listed(names))} where hidden_states, logits are expected"
                )

    def forward(
        self, tokens: Tensor, rows: Rows, segments: Tensor | None = None, states: list[Tensor] | None = None
    ) -> Tensor:
        """What the graph gives: states of each token, or the scores of its head, of each token or each row."""
        if states is not None:
            raise UserError("an exported model gives its last layer only; take layers=last, or the model it came from")
        check_context(rows.longest, self.config.context)
        starts = rows.starts.tolist()
        lengths = [end - start for start, end in zip(starts, starts[1:], strict=False)]
        flat = tokens.numpy()
        marks = None if segments is None else segments.numpy()
        output: NDArray[Any] | None = None
        grouped = similar_lengths if self.masked else equal_lengths
        groups = [[row] for row in range(len(lengths))] if self.one_by_one else grouped(lengths)
        for group in groups:
            part = self._run_group(flat, marks, starts, lengths, group)
            if output is None:
                count = tokens.shape[0] if self.by_token else rows.count
                output = np.zeros((count, *part.shape[1 + self.by_token :]), dtype=part.dtype)
            if not self.by_token:
                output[group] = part
                continue
            for place, number in enumerate(group):
                output[starts[number] : starts[number + 1]] = part[place, : lengths[number]]
        assert output is not None, "there are no rows"
        return torch.from_numpy(output)

    def _run_group(
        self,
        tokens: NDArray[Any],
        segments: NDArray[Any] | None,
        starts: Sequence[int],
        lengths: Sequence[int],
        group: Sequence[int],
    ) -> NDArray[Any]:
        """What the graph says of some rows, filled up to one length: b t ..., or b ..."""
        longest = max(1, *(lengths[number] for number in group))
        fed = {name: np.zeros((len(group), longest), dtype=np.int64) for name in self.inputs}
        for place, number in enumerate(group):
            own = slice(starts[number], starts[number + 1])
            fed["input_ids"][place, : lengths[number]] = tokens[own]
            if self.masked:
                fed["attention_mask"][place, : lengths[number]] = 1
            if segments is not None and "token_type_ids" in fed:
                fed["token_type_ids"][place, : lengths[number]] = segments[own]
        shape = (len(group), longest, *self.widths) if self.by_token else (len(group), *self.widths)
        outputs = run(self.graph, fed, self.folder / GRAPH, shape)
        return outputs[0] if len(outputs) == 1 else np.stack(outputs, -1)

    def words(self, hidden: Tensor) -> Tensor:
        """Scores of all words at the places asked for: n width -> n vocabulary"""
        assert self.word_graph is not None
        parts = list(torch.split(hidden, 1)) if self.one_by_one else [hidden]
        path, size = self.folder / WORDS, self.config.vocabulary
        logits = [
            run(self.word_graph, {"hidden_states": part.contiguous().numpy()}, path, (len(part), size))[0]
            for part in parts
        ]
        return torch.from_numpy(logits[0] if len(logits) == 1 else np.concatenate(logits))

    def logits(self, head: str, hidden: Tensor, rows: Rows) -> Tensor:
        """The output of a head: the graph holds it already, except for the words."""
        return self.words(hidden) if head == "words" else hidden


def run(graph: Any, fed: dict[str, Any], path: Path, shape: tuple[int, ...]) -> list[NDArray[Any]]:
    """What a graph makes of its inputs: arrays of this shape, or it is none of ours."""
    try:
        outputs = graph.run(None, fed)
    except Exception as error:  # the runtime has an exception of its own for each kind of fault
        raise UserError(f"{path}: the ONNX graph failed: {shown(str(error), 200)}") from None
    for output in outputs:
        if not isinstance(output, np.ndarray) or output.shape != shape or output.dtype != np.float32:
            what = f"{output.dtype} {output.shape}" if isinstance(output, np.ndarray) else type(output).__name__
            raise UserError(f"{path}: the ONNX graph gave {shown(what)} where float32 {shape} is expected")
    return outputs


def started(path: Path, config: Any, traced: bool = False) -> tuple[Any, bool]:
    """A graph in the runtime, ready to run, and what `check_graph` says of it; refused where it is not sound."""
    engine = runtime()
    if not path.exists():
        raise UserError(f"{path.parent}: has no {path.name}")
    data = read_bytes(path, LARGEST)
    by_batch = check_graph(data, path, config, traced)
    options = engine.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # fatal: its errors are raised too, and would be printed in color
    # Between two calls its threads leave the processors to those of torch and of the tokenizer.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    try:
        # The bytes that were checked, and not the path: the runtime takes no name that is not UTF-8.
        return engine.InferenceSession(data, options, providers=["CPUExecutionProvider"]), by_batch
    except Exception as error:  # the runtime has an exception of its own for each kind of fault
        raise UserError(f"{path}: not a sound ONNX graph: {shown(str(error), 200)}") from None

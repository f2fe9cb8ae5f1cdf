"""Attention that is put together for rows of one length: the same answers, and only where nothing is left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.compress.test_onnx import model_of
from tests.engines import need_engine
from weft.backends import onnx as engine
from weft.backends.onnx import GRAPH, session_of
from weft.backends.onnx_attention import MASK, OPERATOR, without_padding
from weft.checkpoint.folder import LoadedModel
from weft.exporters.onnx_export import write_onnx

need_engine("onnx")


def parsed(opened: LoadedModel, task: str, folder: Path, precision: Any = "fp32") -> Any:
    write_onnx(folder, opened, task, precision)
    return engine.library().load(str(folder / GRAPH))


@pytest.mark.parametrize("task", ["embed", "classify", "tag"])
@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "albert"])
def test_the_answers_are_those_of_the_operators_written_out(family: str, task: str, tmp_path: Path) -> None:
    opened = model_of(family, task)
    whole = (parsed(opened, task, tmp_path), (tmp_path / GRAPH).read_bytes())
    even = without_padding(engine.library(), whole[0])
    assert even is not None
    kinds = [node.op_type for node in engine.library().load_model_from_string(even).graph.node]
    assert kinds.count(OPERATOR) == opened.config.layers - (task == "classify")  # its last layer asks for one place
    ids = np.random.default_rng(0).integers(5, 40, (3, 7))
    fed = {"input_ids": ids, MASK: np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    outputs = []
    for data in (whole[1], even):
        session = session_of(data, tmp_path / GRAPH, 1)
        outputs.append(session.run(None, {each.name: fed[each.name] for each in session.get_inputs()})[0])
    assert np.abs(outputs[0] - outputs[1]).max() <= 1e-4 * np.abs(outputs[0]).max()


@pytest.mark.parametrize(
    ("family", "settings"),
    [("gpt2", {}), ("bert", {"positions": "alibi"}), ("lstm", {})],
    ids=["gpt2", "alibi", "lstm"],
)
def test_where_more_is_added_to_scores_all_stays_as_it_is(family: str, settings: Any, tmp_path: Path) -> None:
    assert (
        without_padding(engine.library(), parsed(model_of(family, "classify", **settings), "classify", tmp_path))
        is None
    )


def test_attention_that_is_read_elsewhere_stays_as_it_is(tmp_path: Path) -> None:
    """Whatever a file says, an operator is replaced only where nothing else needs what it makes."""
    onnx = engine.library()
    model = parsed(model_of("bert", "tag"), "tag", tmp_path)
    count = sum(node.op_type == "Softmax" for node in model.graph.node)
    softmax = next(node for node in model.graph.node if node.op_type == "Softmax")
    model.graph.node.append(onnx.helper.make_node("Abs", [softmax.output[0]], ["seen"]))
    even = without_padding(onnx, model)
    kinds = [] if even is None else [node.op_type for node in onnx.load_model_from_string(even).graph.node]
    assert kinds.count(OPERATOR) == count - 1 and kinds.count("Softmax") == 1

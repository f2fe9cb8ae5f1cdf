"""No NaN ever leaves: a model whose output is not a number says so in one line, whatever it is asked and runs it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import weft
from tests.backends.ct2_binary import Binary
from tests.backends.engines import drawn
from tests.engines import need_engine
from tests.tasks.small import model_for, vocabulary
from weft.cli.main import run
from weft.errors import NotFinite, UserError
from weft.generation.generate import generate
from weft.generation.sampling import Sampling
from weft.generation.search import Beam
from weft.nn.rows import Ragged
from weft.tasks.model import Model
from weft.tasks.perplexity import perplexity

TOLD = "the model's output is not a number; its weights are damaged or of no use"


def overflowing(model: Model, folder: Path) -> Model:
    """The model with weights that are numbers, and so large that nothing that is made of them is one."""
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.mul_(1e30)
    model.save(folder)
    return weft.load(folder, task=model.task)


CASES: list[tuple[str, Callable[[], Model], Any]] = [
    ("classify", lambda: model_for("classify", 3, vocabulary(), ("a", "b", "c")), "the cat"),
    ("multilabel", lambda: model_for("multilabel", 3, vocabulary(), ("a", "b", "c")), "the cat"),
    ("regress", lambda: model_for("regress", 1, vocabulary()), "the cat"),
    ("pair", lambda: model_for("pair", 2, vocabulary(), ("a", "b")), ("the cat", "oak")),
    ("tag", lambda: model_for("tag", 3, vocabulary(), ("O", "B-X", "I-X")), "the cat"),
    ("answer", lambda: model_for("answer", 2, vocabulary()), ("the cat", "oak and flint")),
    ("embed", lambda: Model(drawn("bert", {"classify": 2}).opened, "embed"), "the cat"),
    ("fill", lambda: drawn("bert"), "the [MASK] cat"),
    ("next", lambda: Model(drawn("bert", {"next": 2}).opened, "next"), ("the cat", "oak")),
    ("complete", lambda: drawn("gpt2"), "the cat"),
    ("translate", lambda: drawn("transformer"), "the cat"),
]


@pytest.mark.parametrize(("name", "make", "text"), CASES, ids=[name for name, _, _ in CASES])
def test_no_answer_of_any_task_is_made_of_nan(name: str, make: Callable[[], Model], text: Any, tmp_path: Path) -> None:
    model = overflowing(make(), tmp_path / "x")
    with pytest.raises(NotFinite) as found:
        model(text)
    assert str(found.value) == f"{tmp_path / 'x'}: {TOLD}"


def test_nothing_is_written_or_scored_by_a_model_of_nan(tmp_path: Path) -> None:
    model = overflowing(drawn("gpt2"), tmp_path / "x")
    ways: list[Callable[[], Any]] = [
        lambda: model("the cat", beam_size=3),
        lambda: model("the cat", temperature=1.0),
        lambda: model("the cat", temperature=1.0, top_k=3, n=2),
        lambda: list(model.stream("the cat", max_tokens=3)),
        lambda: weft.load(tmp_path / "x", task="choose")("the", choices=["cat", "mat"]),
        lambda: perplexity(model.opened, [["the cat sat"]]),
        lambda: weft.suggest(model, "the"),
    ]
    for way in ways:
        with pytest.raises(UserError, match=f"x: {TOLD}"):
            way()


@pytest.mark.parametrize(
    ("verb", "more"),
    [
        ("predict", []),
        ("embed", []),
        ("evaluate", ["--data"]),
        ("predict", ["--jsonl"]),
        ("rank", ["--query", "--texts"]),
    ],
)
def test_verbs_end_with_two_and_one_line(
    verb: str, more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overflowing(model_for("classify", 3, vocabulary(), ("a", "b", "c")), tmp_path / "x")
    (tmp_path / "rows.jsonl").write_text(json.dumps({"text": "the cat", "label": "a"}) + "\n")
    (tmp_path / "texts.txt").write_text("the cat\noak\n")
    files = {"--data": str(tmp_path / "rows.jsonl"), "--texts": str(tmp_path / "texts.txt"), "--query": "the cat"}
    given = [part for flag in more for part in ([flag, files[flag]] if flag in files else [flag])]
    texts = [] if more and more[0] in files else ["the cat"]
    assert run([verb, str(tmp_path / "x"), *texts, *given]) == 2
    shown = capsys.readouterr()
    assert "nan" not in shown.out.lower() and shown.err.count("\n") == 1 and f"x: {TOLD}" in shown.err


def test_comparing_names_the_one_that_is_damaged(tmp_path: Path) -> None:
    sound = model_for("classify", 3, vocabulary(), ("a", "b", "c"))
    sound.save(tmp_path / "sound")
    overflowing(sound, tmp_path / "x")
    rows = [{"text": text, "label": "a"} for text in ("the cat", "oak", "flint")]
    found = weft.compare([tmp_path / "sound", tmp_path / "x"], rows, costs=False)
    assert [each.damaged for each in found.models] == [None, "its outputs are not numbers (NaN or infinite)"]


class TokenDecoder:
    """Says the scores that it is given, whatever it has read."""

    SEARCHES, attention = False, None

    def __init__(self, scores: list[float]) -> None:
        self.scores = torch.tensor([scores])

    def start(self, prompt: Ragged, source: Any = None, room: int = 0, attention: bool = False) -> tuple[Any, Any]:
        return self.scores.expand(prompt.rows.count, -1), self

    def step(self, tokens: Any, state: Any) -> Any:
        return self.scores.expand(len(tokens), -1)

    def pick(self, rows: Any) -> None: ...


@pytest.mark.parametrize("choice", [Sampling(), Sampling(temperature=1.0), Beam(width=2)], ids=str)
def test_what_is_ruled_out_is_no_fault(choice: Any) -> None:
    """Minus infinity is a token that cannot come; where none can, the answer ends."""
    inf, nan = float("inf"), float("nan")
    for scores in ([0.0, -inf, 1.0, -inf], [-inf, -inf, 3.0, 2.0], [-inf] * 4):
        generate(TokenDecoder(scores), [[1]], choice=choice, context=8, max_tokens=2)  # type: ignore[arg-type]
    for scores in ([0.0, nan, 1.0, 2.0], [nan] * 4, [0.0, inf, 1.0, 2.0]):
        with pytest.raises(NotFinite):
            generate(TokenDecoder(scores), [[1]], choice=choice, context=8, max_tokens=2)  # type: ignore[arg-type]


# --------------------------------------------------------------------------------------------------- other engines


@pytest.mark.parametrize("family", ["bert", "gpt2", "transformer"])
def test_ctranslate2(family: str, tmp_path: Path) -> None:
    need_engine("ctranslate2")
    from weft.exporters.export import write_ct2

    model = model_for("classify", 2, vocabulary(), ("a", "b")) if family == "bert" else drawn(family)
    (tmp_path / "x").mkdir()
    write_ct2(tmp_path / "x", model.opened, model.task)
    path = tmp_path / "x" / "ctranslate2" / "model.bin"
    binary = Binary.read(path)
    for name, array in binary.variables.items():
        if array.ndim:
            binary.variables[name] = (array * np.float32(1e30)).astype(array.dtype)
    binary.write(path)
    theirs = weft.load(tmp_path / "x")
    ways: list[Callable[[], Any]] = [lambda: theirs("the cat")]
    if family != "bert":
        ways += [lambda: theirs("the cat", beam_size=2), lambda: list(theirs.stream("the cat", max_tokens=3))]
    for way in ways:
        with pytest.raises(NotFinite, match=f"x(/ctranslate2)?: {TOLD}"):
            way()


@pytest.mark.parametrize("task", ["classify", "tag", "answer", "embed", "fill"])
def test_onnx(task: str, tmp_path: Path) -> None:
    need_engine("onnx")
    import onnx

    from weft.backends.onnx import GRAPH
    from weft.exporters.onnx_export import write_onnx

    labels = {"classify": ("a", "b"), "tag": ("O", "B-X")}.get(task)
    model = drawn("bert") if task in ("fill", "embed") else model_for(task, 2, vocabulary(), labels)
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.add_(0.1)  # biases, too: the runtime's norm makes 0 of what is too large
    (tmp_path / "x").mkdir()
    write_onnx(tmp_path / "x", model.opened, task)
    graph = onnx.load(str(tmp_path / "x" / GRAPH))
    for tensor in graph.graph.initializer:
        if tensor.name.startswith("weight_"):
            array = onnx.numpy_helper.to_array(tensor) * np.float32(1e37)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    (tmp_path / "x" / GRAPH).write_bytes(graph.SerializeToString())
    text = {"answer": ("the cat", "oak and flint"), "fill": "the [MASK] cat"}.get(task, "the cat")
    with pytest.raises(NotFinite, match=f"x: {TOLD}"):
        weft.load(tmp_path / "x")(text)

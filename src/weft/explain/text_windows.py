"""What each window of a long text says by itself, where the answer of a model is the mean over its windows."""

from __future__ import annotations

from typing import Any

from weft.errors import UserError, shown
from weft.explain.view import Interactive, View
from weft.tasks.forward import framing_for, head_outputs, tokenizer_of
from weft.tasks.model import Model
from weft.tasks.targets import read_texts


def has_window_scores(model: Model) -> bool:
    """Whether its answer to a text is the mean over windows."""
    task = model.task_object
    return task.averages and not (task.by_token or task.reads_tables or task.pair)


def windows_view(model: Model, text: str) -> View:
    """The windows of a text with their scores, for models that give a label, labels or a value."""
    opened, task = model.opened, model.task_object
    if not has_window_scores(model):
        raise UserError(f"a model for {model.task} gives no scores of single windows")
    tokenizer, framing = tokenizer_of(opened), framing_for(opened)
    checked = task.check_inputs([text])
    encoded = task.encode(checked, tokenizer, framing)
    outputs = head_outputs(opened, encoded, task.head, task.by_token)[0]
    (read,) = read_texts(tokenizer, [text])
    windows = list[dict[str, Any]]()
    for window, output in zip(encoded.pieces[0], outputs, strict=True):
        alone = encoded._replace(pieces=[[window]])
        answer = task.answer(task.decode([[output]], alone)[0], checked[0])
        spans = read.offsets[window.cut.start : window.cut.end] or ((0, len(text)),)
        windows.append({
            "start": spans[0][0], "end": spans[-1][1], "n_tokens": len(window.tokens),
            **{name: vars(answer).get(name) for name in ("label", "scores", "value")},
        })  # fmt: skip
    answer = task.answers(opened, [text])[0]
    content = {"text": text, "label": vars(answer).get("label"), "windows": windows}
    note = "The answer is the mean over the windows, by the tokens that are their own."
    return View(
        "Windows", (Interactive(component="text-windows", content=content, note=note),), f"“{shown(text, 300)}”"
    )

"""What decides: which of equal models is kept, when there is no answer, and how sure an answer or a score is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.tasks.small import model_for
from weft.metrics.classification import ClassificationMetrics
from weft.tasks.answer import AnswerTask, Candidates
from weft.tasks.base import Example, Prediction
from weft.tasks.forward import framing_for
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.training.loop import record_evaluation
from weft.training.run import State
from weft.training.step import HeldOutMetrics


class Nobody:
    """A log that nobody reads."""

    def record(self, values: Any) -> None: ...

    def line(self, text: str) -> None: ...


def test_of_equal_scores_the_lower_loss_is_kept() -> None:
    state, kept = State(), list[float]()
    for loss, score in ((0.9, 0.5), (0.7, 0.5), (0.8, 0.5), (0.95, 0.6), (0.1, 0.4)):
        metrics = HeldOutMetrics({"accuracy": score}, "accuracy")
        record_evaluation(state, {"task": loss}, metrics, Nobody(), lambda found: kept.append(found["loss"]))  # type: ignore[arg-type]
    assert kept == [0.9, 0.7, 0.95] and state.worse == 1


def test_one_window_that_sees_an_answer_outweighs_the_others(
    wordpiece: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The score of no answer is the lowest of all windows, wherever that window stands."""
    opened = model_for("answer", 2, wordpiece, length=24, stride=8).opened
    lows = []

    def head_outputs(opened: Any, windows: Any, head: Any, by_token: bool) -> list[list[Any]]:
        [pieces] = windows.pieces
        lows[:] = [float(5 - number if number < 3 else 9) for number in range(len(pieces))]
        logits = [np.full((len(piece.tokens), 2), -9.0) for piece in pieces]
        for scores, low in zip(logits, lows, strict=True):
            scores[0] = low / 2
        return [logits]

    monkeypatch.setattr("weft.tasks.base.head_outputs", head_outputs)
    context = "Ada lives in Rome . " * 12
    found = AnswerTask().predict(opened, framing_for(opened), [("where lives Ada ?", context)])[0]
    assert len(lows) > 4 and found.output.nothing == pytest.approx(3.0) == min(lows) and found.n_windows == len(lows)


def test_the_threshold_decides_and_the_temperature_tells_how_surely() -> None:
    held = Candidates(((4.0, 0, 3), (2.0, 4, 7)), 3.0)  # the margin of no answer is -1
    said = Prediction(held, 9, 1, False)
    assert AnswerTask(threshold=-2.0).span(held) is None and AnswerTask(threshold=0.0).span(held) == (0, 3)
    assert AnswerTask().span(Candidates(held.spans, 99.0)) == (0, 3), "without a threshold there always is one"
    scores = [AnswerTask(0.0, heat).answer(said, ("which?", "abc def")).score for heat in (0.5, 1.0, 4.0)]  # type: ignore[attr-defined]
    powers = np.exp(np.array([4.0, 2.0, 3.0]))
    assert scores[0] > scores[1] > scores[2] > 1 / 3 and scores[1] == pytest.approx(powers[0] / powers.sum())


def test_whoever_is_too_sure_is_cooled_down() -> None:
    """Answers that are wrong half of the time have a chance of about a half once they are calibrated."""
    outcomes, examples = [], []
    for number in range(40):
        outcomes.append(Prediction(Candidates(((8.0, 0, 3), (0.0, 4, 7)), -9.0), 9, 1, False))
        right = (0, "abc") if number % 2 else (4, "def")
        examples.append(Example(("which?", "abc def"), (right,), "x"))
    tuned = AnswerTask().tune(outcomes, examples)
    assert tuned.threshold is None and tuned.temperature > 8
    assert (
        tuned.answer(outcomes[0], ("which?", "abc def")).score
        < 0.65
        < AnswerTask().answer(outcomes[0], ("which?", "abc def")).score
    )  # type: ignore[attr-defined]


@pytest.mark.parametrize("count", [1, 15, 1000])
def test_all_right_is_not_certainty(count: int) -> None:
    for said, edge in ((0, 1.0), (1, 0.0)):
        scores = ClassificationMetrics("ab")
        scores.add([said] * count, [0] * count)
        found = scores.result()["accuracy"]
        assert found.value == edge and found.high - found.low == pytest.approx(1.96**2 / (count + 1.96**2))
        assert found.low <= edge <= found.high

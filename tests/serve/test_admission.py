"""Which jobs may wait: a simulated model of one speed, with clients that ask again or a storm of requests."""

from __future__ import annotations

from collections import deque

import pytest

from weft.serve.admission import FEW, STORM, Admission
from weft.serve.pool import PoolOptions

SIZE = 1000  # characters of a job
LIMITS = PoolOptions()


class SlowModel:
    """Answers one job after the other, each of which takes some seconds."""

    def __init__(self, seconds: float) -> None:
        self.admission, self.seconds = Admission(LIMITS), seconds
        self.line: deque[float] = deque()  # when each came
        self.now, self.free = 100.0, 100.0
        self.refused = 0
        self.waits: list[float] = []

    def ask(self, beside: bool = False) -> float | None:
        wait = self.admission.wait_before(SIZE, beside, self.now)
        if wait is None:
            self.free = self.free if self.line else self.now
            self.admission.enter(SIZE, 0 if beside else SIZE)
            self.line.append(self.now)
        else:
            self.refused += 1
        return wait

    def answer(self) -> None:
        """The next job is answered."""
        self.now = self.free = self.free + self.seconds
        self.admission.answered(SIZE, self.now)
        self.admission.leave(SIZE, SIZE)
        self.waits.append(self.now - self.line.popleft())


@pytest.mark.parametrize("seconds", [0.01, 0.5])
def test_a_program_with_dozens_of_threads_is_never_refused(seconds: float) -> None:
    """Each of them asks again when it has its answer, however slow the model is."""
    model = SlowModel(seconds)
    for _ in range(LIMITS.queue_jobs // 2):
        assert model.ask() is None
    for _ in range(500):
        model.answer()
        assert model.ask() is None


def test_in_a_storm_the_queue_is_kept_short() -> None:
    """Ten times as many requests as can be answered; then as many as can be."""
    model = SlowModel(0.05)
    for _ in range(200):
        for _ in range(10):
            model.ask()
        model.answer()
    assert len(model.line) <= FEW and max(model.waits[100:]) <= 0.05 * (FEW + 1)
    assert model.admission.speed == pytest.approx(SIZE / 0.05, rel=0.3)
    while model.line:
        model.answer()
    model.now += STORM
    most = LIMITS.queue_jobs // 2
    assert [model.ask() for _ in range(most)] == [None] * most, "the storm is over"
    assert model.ask() is not None


def test_text_that_is_written_leaves_room_for_other_jobs_of_its_model() -> None:
    model = SlowModel(2.0)
    model.admission.speed, model.admission.refused = 1.0, model.now
    for _ in range(LIMITS.queue_jobs - FEW):
        assert model.ask(beside=True) is None
    assert [model.ask() for _ in range(FEW)] == [None] * FEW
    assert model.ask() is not None


def test_nothing_but_answers_makes_a_model_slow() -> None:
    """A pause, or a model that refuses jobs at once, says nothing of its speed; nobody is sent away for long."""
    model = SlowModel(0.1)
    for _ in range(40):
        model.ask()
    for _ in range(40):
        model.answer()
    speed = model.admission.speed
    assert speed == pytest.approx(SIZE / 0.1, rel=0.3)

    model.ask()
    model.ask()
    model.answer()
    model.admission.leave(SIZE, SIZE)  # the client of the other one has gone
    model.line.clear()
    model.now += 3600
    for _ in range(2):
        model.ask()
    model.answer()
    assert model.admission.speed == speed, "an hour without any request"

    for _ in range(100):  # the model refuses its jobs, for they are wrong
        model.ask()
        model.now += 0.01
        model.admission.answered(SIZE, model.now)
        model.admission.leave(SIZE, SIZE)
    assert model.admission.speed > speed / 2

    model.admission.speed = 1e-9
    waits = [wait for _ in range(LIMITS.queue_jobs + 1) if (wait := model.ask()) is not None]
    assert waits and max(waits) <= LIMITS.deadline / 2

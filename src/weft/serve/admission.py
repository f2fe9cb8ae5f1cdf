"""Which jobs may enter the queue of a model: by their number, their length, and the time that they would wait.

The first half of the queue is open to all, so that a program with dozens of threads is not refused, however slow the
model is. For a while after a refusal fewer jobs may wait for a slow model: under overload a long queue does not raise
the number of answers, and only makes all of them late.
"""

from __future__ import annotations

from typing import Protocol

FEW = 16  # jobs that may wait even in a storm, however slow they are
STORM = 1.0  # seconds since the last refusal, for which the queue is kept short
SPAN = 0.25  # seconds over which the speed is measured at least
NEW = 0.2  # weight of the newest span in the measured speed


class QueueLimits(Protocol):
    """What may wait for a model."""

    @property
    def queue_jobs(self) -> int: ...
    @property
    def queue_characters(self) -> int: ...
    @property
    def queue_seconds(self) -> float: ...
    @property
    def deadline(self) -> float: ...


class Admission:
    """How much waits for a model or is worked on, and how fast the model is."""

    def __init__(self, limits: QueueLimits) -> None:
        self.limits = limits
        self.jobs = self.size = 0  # all that wait or run, and their characters
        self.in_line = self.delay = 0  # those for which a new job would wait; text that is written delays nobody
        self.speed = 0.0  # of the characters of such jobs a second, of the whole model; 0: not known
        self.measured = (0.0, 0)  # since when, and characters that were answered since
        self.refused = float("-inf")  # when a job was refused last

    def wait_before(self, size: int, beside: bool, now: float) -> float | None:
        """Seconds after which a job for which there is no room may come again; None: there is room.

        `beside`: its text is written beside that of others.
        """
        limits = self.limits
        # No job waits for longer than its deadline.
        wait = min(self.delay / self.speed, limits.deadline) if self.speed else 0.0
        full = self.jobs >= limits.queue_jobs or self.size + size > limits.queue_characters
        few = FEW if now - self.refused < STORM else max(FEW, limits.queue_jobs // 2)
        slow = not beside and self.in_line >= few and wait > limits.queue_seconds
        if not (slow or (full and self.jobs)):
            return None
        self.refused = now
        return wait / 2 or 1.0

    def enter(self, size: int, delay: int) -> None:
        """A job waits; `delay`: characters for which later ones wait."""
        self.jobs, self.size = self.jobs + 1, self.size + size
        self.in_line, self.delay = self.in_line + bool(delay), self.delay + delay

    def leave(self, size: int, delay: int) -> None:
        """A job is over."""
        self.jobs, self.size = self.jobs - 1, self.size - size
        self.in_line, self.delay = self.in_line - bool(delay), self.delay - delay
        if not self.delay:
            self.pause()

    def pause(self) -> None:
        """The model has nothing to do, or no worker: this time says nothing of its speed."""
        self.measured = (0.0, 0)

    def answered(self, delay: int, now: float) -> None:
        """A job that has not left yet was answered, or refused by the model, for which others have waited as well.

        The speed is that over spans in which the model was never idle.
        """
        begin, held = self.measured
        held += delay
        if begin and now - begin >= SPAN:
            speed = held / (now - begin)
            self.speed = speed if not self.speed else (1 - NEW) * self.speed + NEW * speed
            begin, held = now, 0
        self.measured = (begin, held) if begin else (now, 0)

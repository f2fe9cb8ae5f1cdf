"""Jobs that generate text, one after the other in a thread of their own.

The worker asks a writer for four things, whatever it does inside: `add` a job (message of kind generate, or a task that
writes and is to be streamed; called by the thread that reads, so it returns at once), `cancel` one by its number,
`waiting_tokens`, and `finish`, which returns once nothing is left. It answers through `write`, which any thread may
call, and reports tokens and steps to `count`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from weft.serve import messages
from weft.serve.faults import fault_of
from weft.serve.frames import Message
from weft.serve.plans import Fault, plain_answer

Write = Callable[[Sequence[Message]], None]


class OneByOne:
    """Writes with `stream` and `complete`."""

    def __init__(self, model: Any, write: Write, count: Callable[[int, int], None]) -> None:
        self.model, self.write, self.count = model, write, count
        self.jobs: deque[tuple[Message, float]] = deque()
        self.cancelled: set[int] = set()
        self.changed = threading.Condition()
        self.working = self.stopping = False
        self.waiting_tokens = 0
        threading.Thread(target=self._run, name="writer", daemon=True).start()

    def add(self, job: Message, arrived: float) -> None:
        with self.changed:
            self.jobs.append((job, arrived))
            self.changed.notify_all()

    def cancel(self, number: int) -> None:
        with self.changed:
            self.cancelled.add(number)
            self.jobs = deque(each for each in self.jobs if each[0]["id"] != number)

    def finish(self) -> None:
        """Return once all jobs are answered."""
        with self.changed:
            self.changed.wait_for(lambda: not self.jobs and not self.working)

    def _run(self) -> None:
        while True:
            with self.changed:
                self.working = False
                self.changed.notify_all()
                self.changed.wait_for(lambda: bool(self.jobs))
                (job, arrived), self.working = self.jobs.popleft(), True
            try:
                self._answer(job, arrived)
            except Exception as error:  # whatever a job meets, the next one is answered
                fault = fault_of(error, self.model)
                self.write([messages.error(job["id"], fault.status, str(fault), fault.field)])
            self.cancelled.discard(job["id"])

    def _answer(self, job: Message, arrived: float) -> None:
        prompts = messages.inputs_of(job)
        for number, prompt in enumerate(prompts):
            if not isinstance(prompt, str):
                raise Fault(422, "a prompt in tokens is not read here", f"prompt[{number}]")
        options, begun = dict(job["options"]), time.perf_counter()
        streams = bool(job.get("stream")) and options.get("n", 1) == 1 and not options.get("beam_size")
        whole = [self._streamed(job, place, text, options) for place, text in enumerate(prompts)] if streams else None
        if job["id"] in self.cancelled:
            return
        answers: Any = whole if whole is not None else self._written(job, prompts, options)
        seconds = time.perf_counter() - begun
        written = sum(len(each.tokens) for answer in answers for each in (vars(answer).get("best") or [answer])
                      if "tokens" in vars(each))  # fmt: skip
        self.count(written, written)
        timings = {"queue": begun - arrived, "tokenize": 0.0, "model": seconds, "post": 0.0}
        read = sum(answer.n_tokens for answer in answers)
        done = messages.done(job["id"], list(map(plain_answer, answers)), prompt_tokens=read,
                             completion_tokens=written, timings=timings, batch_tokens=read + written)  # fmt: skip
        self.write([done])

    def _written(self, job: Message, prompts: Sequence[str], options: Mapping[str, Any]) -> list[Any]:
        from weft.tasks.complete import complete

        if job["kind"] == "task":
            return self.model.task.answers(self.model.loaded, prompts, **options)
        return complete(self.model.loaded, prompts, **options)

    def _streamed(self, job: Message, place: int, prompt: str, options: Mapping[str, Any]) -> Any:
        from weft.tasks.complete import stream

        pieces = stream(self.model.loaded, prompt, **options)
        for text in pieces:
            if job["id"] in self.cancelled:
                return None
            self.write([messages.piece(job["id"], text, prompt=place)])
        return pieces.answer

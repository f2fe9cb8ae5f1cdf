"""Text for all clients at once: the prompts of all jobs go through one `Continuous`, a step at a time.

One thread tokenizes long prompts, one takes steps, and one sends the results. If the server reads slowly, unsent pieces
of a text are merged, and no step waits for them. The worker calls `add`, `cancel`, `waiting_tokens` and `finish`.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch

from weft.files import memory_here
from weft.generation.continuous import BEAM_ROWS, PLACES, ROWS, Continuous
from weft.generation.pending import PendingText
from weft.nn.row_cache import room_for
from weft.serve import messages
from weft.serve.faults import fault_of
from weft.serve.frames import BadFrame, Message
from weft.serve.plans import plain_answer
from weft.serve.writing_jobs import WritingJob, job_of
from weft.tasks.complete import generator_of

Write = Callable[[Sequence[Message]], None]
Work = Callable[[], list[Message]]
TEXTS = 24  # of one job that are under way at a time
SHARE = 0.2  # of the memory of the machine, or of its GPU, that the cache of texts under way may take


class Outbox:
    """Messages on their way, in order; a piece of a text that waits takes in the next one of the same text."""

    def __init__(self, write: Write, model: Any) -> None:
        self.write, self.model = write, model
        self.waiting: deque[tuple[int, Message | Work]] = deque()  # with the numbers of their jobs
        self.pieces: dict[tuple[int, int, int], Message] = {}  # those that wait
        self.changed = threading.Condition()
        self.sending = False
        threading.Thread(target=self._run, name="sender", daemon=True).start()

    def put(self, number: int, message: Message | Work) -> None:
        """A message of a job, or what makes some."""
        with self.changed:
            self.waiting.append((number, message))
            self.changed.notify_all()

    def put_pieces(self, pieces: Sequence[Message]) -> None:
        """Pieces of texts."""
        with self.changed:
            for piece in pieces:
                key = piece["id"], piece["prompt"], piece["choice"]
                before = self.pieces.get(key)
                if before is None:
                    self.pieces[key] = piece
                    self.waiting.append((piece["id"], piece))
                    continue
                for name in ("text", "tokens", "logprobs"):
                    if piece[name] is not None:
                        before[name] = piece[name] if before[name] is None else before[name] + piece[name]
            self.changed.notify_all()

    def drop(self, number: int) -> None:
        """Send nothing more of a job."""
        with self.changed:
            self.waiting = deque(each for each in self.waiting if each[0] != number)
            self.pieces = {key: piece for key, piece in self.pieces.items() if key[0] != number}

    def empty(self) -> None:
        """Return once all is sent."""
        with self.changed:
            self.changed.wait_for(lambda: not self.waiting and not self.sending)

    def _run(self) -> None:
        while True:
            with self.changed:
                self.sending = False
                self.changed.notify_all()
                self.changed.wait_for(lambda: bool(self.waiting))
                some, self.waiting, self.sending = self.waiting, deque(), True
                self.pieces.clear()
            made = list[Message]()
            for number, message in some:
                try:
                    made += [message] if isinstance(message, dict) else message()
                except Exception as error:
                    made.append(failure(number, error, self.model))
            self._send(made)

    def _send(self, made: list[Message]) -> None:
        try:
            self.write(made)
        except BadFrame:  # a number that is none, or an answer that is too long
            for message in made:
                try:
                    self.write([message])
                except BadFrame as error:
                    self.write([failure(message["id"], RuntimeError(str(error)), self.model)])


def failure(number: int, error: Exception, model: Any) -> Message:
    """Why a job has no answer."""
    fault = fault_of(error, model)
    return messages.error(number, fault.status, str(fault), fault.field)


def places_in_memory(config: Any, device: torch.device) -> int:
    """Tokens of all texts together that a cache may come to hold; at least one text may be as long as the context."""
    memory = torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else memory_here()
    layers, width = config.decoder_layers or config.layers, config.width
    each = 2 * 4 * max(1, layers) * max(1, width)  # keys and values in float32
    return max(min(PLACES, int(SHARE * memory) // each), 2 * room_for(min(config.context, PLACES)))


class ContinuousWriter:
    """Generates for the jobs of a worker."""

    def __init__(
        self, model: Any, write: Write, count: Callable[[int, int], None], rows: int = ROWS, places: int | None = None
    ) -> None:
        """`rows` and `places`: of `Continuous`; by default as many places as a part of the memory has room for."""
        self.model, self.count = model, count
        self.generator = generator_of(model.loaded)
        device = torch.device(self.generator.device)
        self.sizes = rows, places_in_memory(model.loaded.config, device) if places is None else places
        self.continuous = self._fresh()
        self.outbox = Outbox(write, model)
        self.untokenized: queue.SimpleQueue[tuple[Message, float]] = queue.SimpleQueue()
        self.arrived: queue.SimpleQueue[WritingJob | Message | int] = queue.SimpleQueue()  # a number: it is cancelled
        self.jobs: dict[int, WritingJob] = {}  # that are under way
        self.owners: dict[PendingText, tuple[WritingJob, int]] = {}
        self.open: set[int] = set()  # jobs that are neither answered nor cancelled
        self.changed = threading.Condition()
        self.waiting_tokens = 0
        for target, name in ((self._tokenize, "writer-tokenizer"), (self._steps, "writer")):
            threading.Thread(target=target, name=name, daemon=True).start()

    def _fresh(self) -> Continuous:
        rows, places = self.sizes
        return Continuous(self.generator.decoder, device=self.generator.device, rows=rows, places=places)

    def add(self, job: Message, arrived: float) -> None:
        """Take a job in; a long one is tokenized by another thread, so that a short one does not wait for it."""
        with self.changed:
            self.open.add(job["id"])
        if messages.is_short(job):
            self._prepare(job, arrived)
        else:
            self.untokenized.put((job, arrived))

    def cancel(self, number: int) -> None:
        """Give up a job: nothing more is said of it, and its rows are free before the next step."""
        if self._close(number):
            self.outbox.drop(number)
            self.arrived.put(number)

    def finish(self) -> None:
        """Return once all jobs are answered."""
        with self.changed:
            self.changed.wait_for(lambda: not self.open)
        self.outbox.empty()

    def _close(self, number: int) -> bool:
        """Whether a job was open until now."""
        with self.changed:
            was = number in self.open
            self.open.discard(number)
            self.changed.notify_all()
            return was

    def _tokenize(self) -> None:
        while True:
            self._prepare(*self.untokenized.get())

    def _prepare(self, message: Message, arrived: float) -> None:
        if message["id"] not in self.open:
            return
        try:
            job = job_of(message, self.model, self.generator, arrived)
            if job is not None:
                job.prepare()
            self.arrived.put(message if job is None else job)
        except Exception as error:
            self._answer(message["id"], failure(message["id"], error, self.model))

    # ------------------------------------------------------------------------------------------ the thread that steps

    def _steps(self) -> None:
        while True:
            self._receive()
            read, generated = self.continuous.read, self.continuous.generated
            try:
                with self.model.alone:
                    changed = self.continuous.step()
            except Exception as error:  # a bug of ours: the state of the rows is unknown
                for job in list(self.jobs.values()):
                    self._fail(job, error)
                self.continuous = self._fresh()
                continue
            jobs = {self.owners[text][0] for text in changed if text in self.owners}
            for text in changed:
                self._went_on(text)
            for job in jobs:
                self._admit(job)
            self.waiting_tokens = sum(len(text.request.prompts[0]) for text in self.continuous.waiting)
            tokens = self.continuous.read - read + self.continuous.generated - generated
            if tokens:
                self.count(tokens, 1)

    def _receive(self) -> None:
        """Take in all jobs that have come; wait for one where there is nothing to do."""
        while True:
            try:
                item = self.arrived.get(block=not self.continuous.busy)
            except queue.Empty:
                return
            if isinstance(item, int):
                if item in self.jobs:
                    self._leave(self.jobs[item])
            elif isinstance(item, dict):
                self._answer_whole(item)
            elif item.number in self.open:
                self._enter(item)

    def _enter(self, job: WritingJob) -> None:
        self.jobs[job.number] = job
        if not job.prompts:  # only empty texts
            self._finish(job)
        self._admit(job)

    def _admit(self, job: WritingJob) -> None:
        """Let in texts of a job; the parts of a long one come later, so that texts of other jobs come in between."""
        most = self._at_once(job)
        while job.number in self.jobs and len(job.texts) < len(job.asked) and len(job.texts) - job.over < most:
            place = len(job.texts)
            try:
                with self.model.alone:  # a network that is watched takes no rows
                    text = self.continuous.admit(**job.asked[place])
            except Exception as error:
                self._fail(job, job.fault_in(place, error))
                return
            job.texts.append(text)
            self.owners[text] = job, place
            if text.over:  # nothing was to be generated
                self._went_on(text)

    def _at_once(self, job: WritingJob) -> int:
        """Texts of a job that are under way at a time: they leave half of the rows, or of the beams, to other jobs."""
        width, n = job.options.beam_size, job.options.n
        return max(1, min(TEXTS, 2 * BEAM_ROWS // width if width else self.sizes[0] // 2 // n))

    def _went_on(self, text: PendingText) -> None:
        """A text has grown, or is over."""
        if text not in self.owners:
            return
        job, place = self.owners[text]
        if text.error is not None:
            self._fail(job, job.fault_in(place, text.error))
            return
        if job.streams:
            self._stream(job, place)
        if text.completions is not None:
            del self.owners[text]
            job.left, job.over = job.left - 1, job.over + 1
            if not job.left:
                self._finish(job)

    def _stream(self, job: WritingJob, place: int) -> None:
        try:
            pieces = job.pieces(place)
        except Exception as error:
            self._fail(job, error)
            return
        if pieces and job.number in self.open:
            self.outbox.put_pieces(pieces)

    def _finish(self, job: WritingJob) -> None:
        job.ended = time.perf_counter()
        self.jobs.pop(job.number, None)
        batch = max(1, self.continuous.generating)
        self._answer(job.number, lambda: [job.done(batch)])

    def _answer(self, number: int, message: Message | Work) -> None:
        """Send the last message of a job, if anybody still waits for it."""
        with self.changed:
            if number not in self.open:
                return
        self.outbox.put(number, message)
        self._close(number)

    def _fail(self, job: WritingJob, error: Exception) -> None:
        self._leave(job)
        self._answer(job.number, failure(job.number, error, self.model))

    def _leave(self, job: WritingJob) -> None:
        """Free the rows of a job."""
        self.jobs.pop(job.number, None)
        for text in job.texts:
            self.continuous.cancel(text)
            self.owners.pop(text, None)

    def _answer_whole(self, message: Message) -> None:
        """A job of a task that has its own way to generate: all at once, while the others wait."""
        number, begin = message["id"], time.perf_counter()
        if number not in self.open:
            return
        try:
            answers = self.model.task.answers(self.model.loaded, messages.inputs_of(message), **message["options"])
        except Exception as error:
            self._answer(number, failure(number, error, self.model))
            return
        read = sum(answer.n_tokens for answer in answers)
        timings = {"queue": 0.0, "tokenize": 0.0, "model": time.perf_counter() - begin, "post": 0.0}
        for place, answer in enumerate(answers):
            self.outbox.put_pieces([messages.piece(number, str(answer.decision), prompt=place)])
        done = messages.done(number, list(map(plain_answer, answers)), prompt_tokens=read, timings=timings,
                             batch_tokens=read)  # fmt: skip
        self._answer(number, done)

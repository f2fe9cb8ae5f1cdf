"""A worker: the process that holds one model and answers the jobs of the server, until its connection ends.

Its threads: one reads frames and tokenizes short jobs, one tokenizes long jobs, one runs the model, one builds answers
from many windows, and a writer generates text. The process may be killed at any moment: it holds nothing but the model
and jobs that the server also knows.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from weft.config import build
from weft.errors import UserError
from weft.serve import messages
from weft.serve.events import log
from weft.serve.faults import fault_of, leave
from weft.serve.frames import BadFrame, FrameChannel, Message
from weft.serve.plans import Fault, check_tokens
from weft.serve.scheduler import ModelPass, Scheduler, Work

if TYPE_CHECKING:
    from weft.serve.opened import OpenedModel

FEW = 64  # windows up to which the model's thread builds the answer of a job itself
SWITCH = 0.001  # seconds after which a Python thread lets another one run
SHAPES = 64  # shapes of products for which torch and oneDNN keep code, a megabyte each; by default they keep 1,024
STATS = 1.0  # seconds between two reports
SHORTAGES = 3  # jobs that ran out of memory, after which the worker is replaced
CALM = 100  # answered jobs after which these failures are forgotten


def writer_of(model: OpenedModel, worker: Worker) -> Any:
    """What generates text, in a thread of its own."""
    from weft.serve.writing import ContinuousWriter

    return ContinuousWriter(model, worker.write, worker.count)


class Worker:
    """Answers the jobs of one connection with one model."""

    def __init__(self, model: OpenedModel, channel: FrameChannel) -> None:
        self.model, self.channel = model, channel
        self.scheduler = Scheduler()
        self.works: dict[int, Work] = {}
        self.long: queue.SimpleQueue[tuple[Work, Message] | None] = queue.SimpleQueue()
        self.finished: queue.SimpleQueue[Work | None] = queue.SimpleQueue()  # with outputs of many windows, no answers
        self.tokens = self.steps = 0
        self.busy = threading.Event()
        self.writer: Any = None
        self.writing: set[int] = set()
        self.counting = threading.Lock()
        self.shortages = self.answered = 0  # jobs that ran out of memory, and jobs answered since the last of them

    def serve(self) -> None:
        """Answer jobs until the server sends `stop` or closes the connection."""
        model = threading.Thread(target=self._passes, name="model", daemon=True)
        tokenizer = threading.Thread(target=self._tokenize, name="tokenizer", daemon=True)
        answers = threading.Thread(target=self._finish, name="answers", daemon=True)
        for thread in (model, tokenizer, answers, threading.Thread(target=self._report, name="stats", daemon=True)):
            thread.start()
        for message in self.channel.messages():
            if messages.checked(message, messages.TO_WORKER)["type"] == "stop":
                break
            self._take(message)
        else:
            return  # the server has gone: nobody waits for the jobs that are left
        self.long.put(None)
        tokenizer.join()
        self.scheduler.stop()
        model.join()
        self.finished.put(None)
        answers.join()
        if self.writer is not None:
            self.writer.finish()

    def write(self, replies: Sequence[Message]) -> None:
        """Send messages; leave after several jobs without memory, since a library may not recover from that."""
        self.channel.write(replies)
        for message in replies:
            if message["type"] == "done":
                self.answered += 1
                if self.answered == CALM:
                    self.shortages = 0
            elif message["type"] == "error" and message["status"] == 503:
                self.shortages, self.answered = self.shortages + 1, 0
        if self.shortages >= SHORTAGES:
            log("memory", error=f"{SHORTAGES} jobs")
            leave(3)

    def count(self, tokens: int, steps: int) -> None:
        """Add to the tokens and steps that went through the model."""
        with self.counting:
            self.tokens += tokens
            self.steps += steps
        self.busy.set()

    # ----------------------------------------------------------------------------------------------- the reading thread

    def _take(self, message: Message) -> None:
        number = message["id"]
        if message["type"] == "cancel":
            work = self.works.pop(number, None)
            if work is not None:
                work.cancelled = True
            if self.writer is not None:
                self.writer.cancel(number)
        elif message["kind"] == "generate" or self._is_written(message):
            self._generate(message)
        else:
            work = self.works[number] = Work(number)
            if messages.is_short(message):
                self._prepare(work, message)
            else:
                self.long.put((work, message))

    def _is_written(self, message: Message) -> bool:
        """Whether the writer answers a job of a task, so that a long text does not keep other jobs waiting."""
        if message["kind"] != "task":
            return False
        return bool(message.get("stream") and self.model.task.writes) or message["task"] in self.model.rewrites

    def _generate(self, message: Message) -> None:
        try:
            if not self.model.can_write:
                raise Fault(422, f"a model for {self.model.task.name} generates no text", "model")
            if self.writer is None:
                self.writer = writer_of(self.model, self)
            self.writer.add(message, time.perf_counter())
        except Exception as error:
            self._fail(message["id"], error)

    def _tokenize(self) -> None:
        while (item := self.long.get()) is not None:
            self._prepare(*item)

    def _prepare(self, work: Work, message: Message) -> None:
        """Check and tokenize a job, and queue it for the model."""
        if work.cancelled:
            return
        begin = time.perf_counter()
        try:
            name = message["view"] if message["kind"] == "look" else message.get("task", "embed")
            plan = self.model.plan(message["kind"], name, message["options"])
            most = message["limits"].get("tokens")
            prepared = plan.prepare(message["inputs"], most)
            check_tokens(prepared.tokens, most)
        except Exception as error:
            self._fail(work.number, error)
            return
        work.begin(plan, prepared)
        work.tokenizing = time.perf_counter() - begin
        if prepared.units:
            self.scheduler.add(work)
        else:
            self._deliver([work])

    # ------------------------------------------------------------------------------------------------- the model thread

    def _passes(self) -> None:
        while (model_pass := self.scheduler.take()) is not None:
            begin = time.perf_counter()
            failed = self._attempt(model_pass)
            seconds = time.perf_counter() - begin
            tokens = model_pass.tokens
            self.scheduler.ran(model_pass, seconds)
            works = {work.number: work for work, _ in model_pass.parts}
            for number, work in works.items():
                work.model += seconds
                work.batch_tokens = tokens
                if number in failed:
                    work.cancelled = True
                    self._fail(number, failed[number])
            over = [work for work in works.values() if not work.left and not work.cancelled]
            self._deliver([work for work in over if len(work.outputs) <= FEW])
            for work in over:
                if len(work.outputs) > FEW:
                    self.finished.put(work)
            self.count(tokens, 1)

    def _finish(self) -> None:
        while (work := self.finished.get()) is not None:
            self._deliver([work])

    def _attempt(self, model_pass: ModelPass) -> dict[int, Exception]:
        """Run a pass; if it fails, run its jobs one by one, so that only the faulty one fails. Errors by job number."""
        try:
            self._pass(model_pass)
            return {}
        except Exception as error:
            parts = model_pass.by_work()
            if len(parts) == 1:
                return {model_pass.parts[0][0].number: error}
        failed = dict[int, Exception]()
        for part in parts:
            try:
                self._pass(part)
            except Exception as error:
                failed[part.parts[0][0].number] = error
        return failed

    def _pass(self, model_pass: ModelPass) -> None:
        outputs = model_pass.plan.run(model_pass.units)
        for (work, place), output in zip(model_pass.parts, outputs, strict=True):
            work.outputs[place] = output
            work.left -= 1

    def _deliver(self, works: Sequence[Work]) -> None:
        """Build the answers of jobs from their outputs, and send them together."""
        replies = list[Message]()
        for work in works:
            begin = time.perf_counter()
            assert work.plan is not None and work.prepared is not None
            try:
                answers = work.plan.finish(work.prepared, work.outputs)
            except Exception as error:
                self._fail(work.number, error)
                continue
            if self.works.pop(work.number, None) is None:
                continue  # cancelled in the meantime
            timings = work.timings(time.perf_counter() - begin)
            tokens = work.prepared.tokens
            done = messages.done(work.number, answers, prompt_tokens=tokens, timings=timings,
                                 batch_tokens=work.batch_tokens)  # fmt: skip
            replies.append(done)
        if replies:
            self._send(replies)

    def _send(self, replies: Sequence[Message]) -> None:
        try:
            self.write(replies)
        except BadFrame:  # one reply has NaN or is too long: the others are sent
            for reply in replies:
                try:
                    self.write([reply])
                except BadFrame as error:
                    self._fail(reply["id"], RuntimeError(str(error)))

    def _fail(self, number: int, error: Exception) -> None:
        self.works.pop(number, None)
        fault = fault_of(error, self.model)
        self.write([messages.error(number, fault.status, str(fault), fault.field)])

    # ---------------------------------------------------------------------------------------------------------- reports

    def _report(self) -> None:
        """Send statistics about once a second, unless nothing has happened."""
        from weft.serve.opened import memory

        while True:
            self.busy.wait()
            time.sleep(STATS)
            self.busy.clear()
            waiting = self.scheduler.waiting_tokens + (0 if self.writer is None else self.writer.waiting_tokens)
            self.write([messages.stats(memory(), self.tokens, self.steps, waiting)])


def ready_process(threads: int) -> None:
    """Set up signals, threads and caches, which must be done before libraries are imported.

    Signals are ignored: the server handles them and sends `stop` to its workers.
    """
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if name in vars(signal):
            signal.signal(vars(signal)[name], signal.SIG_IGN)
    for variable in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(variable, str(SHAPES))
    if threads:
        for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS"):
            os.environ[variable] = str(threads)
    sys.setswitchinterval(SWITCH)


def died(thread: threading.ExceptHookArgs) -> None:
    """End the process when a thread dies of a bug: a worker without that thread would answer nobody."""
    if thread.exc_value is not None:
        fault_of(thread.exc_value)
    leave(3)


def main(descriptor: str, given: str) -> None:
    """Run a worker process; `descriptor`: of its end of the connection; `given`: the `Opening` as JSON."""
    values = json.loads(given)
    threading.excepthook = died
    ready_process(int(values.get("threads", 0)))
    channel = FrameChannel(socket.socket(fileno=int(descriptor)))
    from weft.loading import collector_paused

    try:
        with collector_paused():
            from weft.serve.opened import OpenedModel, Opening

            model = OpenedModel(build(Opening, values, "worker"))
            info = model.info()
            model.warm_up()
        channel.write([messages.ready(info)])
    except Exception as error:
        internal = not isinstance(error, UserError)
        if internal:
            fault_of(error)
        channel.write([messages.failed("internal error (see the log)" if internal else str(error))])
        leave(2)
    try:
        Worker(model, channel).serve()
    except BadFrame as error:
        log("frame", error=str(error))
        leave(2)
    except Exception as error:
        fault_of(error)
        leave(3)
    leave(0)

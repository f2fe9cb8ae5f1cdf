"""The workers of a server, as the event loop sees them: models by name, jobs in, answers out.

    pool = Pool([ServedModel(name="reviews", folder=Path("runs/reviews"))], PoolOptions())
    await pool.start()                                  # every model is open, or UserError with one line
    pool.models                                         # {"reviews": info}, see below
    done = await pool.submit("reviews", messages.task_job("classify", ["a gripping film"], {}, tokens=4096))
    done["answers"], done["usage"], done["timings"], done["batch_tokens"], done["version"]
    async for message in pool.stream("gpt", messages.generate_job(["Once"], {"max_tokens": 9}, stream=True)):
        ...                                             # messages of type "piece", at last the one of type "done"
    await pool.reload("reviews")                        # open the folder anew; if that fails, UserError and no change
    await pool.drain(30.0)                              # no new jobs, finish what is there, end the workers
    pool.state()                                        # for metrics, see below

Jobs are made by `weft.serve.messages`: `task_job`, `embed_job`, `generate_job`, `look_job`; their `tokens` is the most
that one request may have. `submit` and `stream` take `deadline=` (seconds from now; default: that of the options). The
awaiting task may be cancelled, and a stream closed, at any moment: the job is then dropped wherever it is.

What is raised, each with `status` and `message` (`str(error)`), and `field` (None, or such as "input[3]"):
    Rejected    400, 413, 422, 500, 503: the worker's own answer to this job
    Overloaded  429, with `retry_after` (seconds, a float): the queue of the model is full
    Crashed     503: the worker died with the job, or the model cannot be opened any more
    Stopping    503: the pool drains
    Expired     504: the deadline has passed
    UnknownModel 404: no model of this name

`models[name]` (a new dict after a reload): task, tasks (names of routes: classify, tag, answer, choose, translate,
summarize, rewrite, describe, fill, suggest, rank, embed, next, forecast, complete), views (of `look`), family, labels,
parameters, layers, context, vocabulary, window, width (of vectors), version, backend, device, memory, can_stream,
has_tokenizer, pair (it reads two texts), mask (what marks a gap), values and features (columns of a forecast).

`state()`: by model {"ready", "waiting", "waiting_characters", "running", "restarts", "crashed", "overloaded",
"expired", "cancelled", "done", "failed", "workers": [{"pid", "state", "memory", "tokens", "steps", "waiting_tokens",
"running"}]}; waiting: jobs that are with no worker yet; the last eight counts grow as long as the pool lives.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import socket
import subprocess
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.child import start_child
from weft.errors import UserError, shown
from weft.serve import messages
from weft.serve.admission import Admission
from weft.serve.events import log
from weft.serve.frames import BadFrame, FrameProtocol, Message, packed

CODE = "from weft.serve.worker import main; main(*sys.argv[1:])"
CHARGE = 16_384  # characters of a job that count at most, where it is decided what a worker is given
IN_FLIGHT = 128  # jobs, and ...
IN_FLIGHT_CHARACTERS = 262_144  # ... characters that a worker is given at once: the rest survives its crash
BACKOFF, LONGEST_BACKOFF = 0.1, 30.0  # seconds before a worker that crashed is started again, doubled each time
STEADY = 10.0  # seconds after which a worker counts as one that works
TRIES = 3  # starts that fail, after which jobs of a model without any worker are refused


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """A model folder and the name under which it is served."""

    name: str
    folder: Path
    task: str | None = None
    backend: str | None = None
    device: str | None = None
    workers: int = 1
    threads: int = 0  # of each worker; 0: as the machine has, shared by the workers of the model
    trust: bool = False


@dataclass(frozen=True, kw_only=True)
class PoolOptions:
    """Limits of the queues, by model."""

    queue_jobs: int = 64  # that wait or run; more are refused
    queue_characters: int = 8_000_000
    queue_seconds: float = 0.3  # for which a job of a long queue may wait, by what was measured so far
    deadline: float = 60.0  # seconds
    start_seconds: float = 600.0  # that opening a model may take


class JobError(Exception):
    """Why a job has no answer."""

    status = 500

    def __init__(self, message: str, status: int | None = None, field: str | None = None) -> None:
        super().__init__(message)
        self.message, self.field = message, field
        self.status = self.status if status is None else status


class Rejected(JobError):
    """The worker refuses this job."""


class Overloaded(JobError):
    """The queue is full."""

    status = 429

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Crashed(JobError):
    """The worker died."""

    status = 503


class Stopping(JobError):
    """The server ends."""

    status = 503


class Expired(JobError):
    """The deadline has passed."""

    status = 504


class UnknownModel(JobError):
    """No model has this name."""

    status = 404


@dataclass(eq=False)
class Ticket:
    """A job on its way: where it is, and who waits for it."""

    number: int
    data: bytes  # its frame
    size: int  # characters
    beside: bool  # its text is written beside that of others: it does not make them wait
    future: asyncio.Future[Message]
    pieces: asyncio.Queue[Message] | None = None  # of a job that is streamed
    worker: WorkerProcess | None = None
    sent: float = 0.0
    timer: asyncio.TimerHandle | None = None

    @property
    def charge(self) -> int:
        return min(self.size, CHARGE)

    @property
    def delay(self) -> int:
        """Characters for which later jobs wait."""
        return 0 if self.beside else self.charge


class WorkerProcess:
    """One process that holds a model, from the side of the server."""

    def __init__(self, room: ModelRoom) -> None:
        self.room = room
        self.state = "starting"  # then ready, perhaps stopping, and ended
        self.running: dict[int, Ticket] = {}
        self.charged = 0
        self.stats: Message = {"memory": 0, "tokens": 0, "steps": 0, "waiting_tokens": 0}
        self.info: dict[str, Any] = {}
        self.begun = time.monotonic()
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()
        self.protocol = FrameProtocol(self._received, self._closed)
        self.process: subprocess.Popen[bytes] | None = None
        self.reaping: asyncio.Future[None] | None = None

    async def start(self) -> None:
        """Start the process, and return once it has opened the model; else UserError, and the process has ended."""
        ours, theirs = socket.socketpair()
        with theirs:
            values = json.dumps(self.room.opening())
            self.process = start_child(
                f"import sys; {CODE}", str(theirs.fileno()), values, pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        ours.setblocking(False)
        await asyncio.get_running_loop().create_connection(lambda: self.protocol, sock=ours)
        try:
            await asyncio.wait_for(asyncio.shield(self.ready), self.room.options.start_seconds)
        except TimeoutError:
            self.kill()
            seconds = self.room.options.start_seconds
            raise UserError(f"{self.room.served.folder}: was not open after {seconds:.0f} seconds") from None
        except BaseException:
            self.kill()
            raise

    @property
    def has_room(self) -> bool:
        few = len(self.running) < IN_FLIGHT and self.charged < IN_FLIGHT_CHARACTERS
        return self.state == "ready" and few

    def send(self, ticket: Ticket) -> None:
        ticket.worker, ticket.sent = self, time.monotonic()
        self.running[ticket.number] = ticket
        self.charged += ticket.charge
        self.protocol.send(ticket.data)

    def release(self, ticket: Ticket) -> None:
        """The job is with this worker no more."""
        if self.running.pop(ticket.number, None) is not None:
            self.charged -= ticket.charge

    def stop(self) -> None:
        """Let it finish what it has, and end."""
        if self.state in ("starting", "ready"):
            self.state = "stopping"
            self.protocol.write(messages.stop())

    def kill(self) -> None:
        self.state = "stopping" if self.state != "ended" else "ended"
        if self.process is not None:
            self.process.kill()

    def _received(self, message: Message) -> None:
        kind = messages.checked(message, messages.TO_SERVER)["type"]
        if kind == "ready":
            self.state, self.info, self.begun = "ready", message["info"], time.monotonic()
            self.stats = {**self.stats, "memory": self.info.get("memory", 0)}  # until something happens
            if not self.ready.done():
                self.ready.set_result(None)
            self.room.dispatch()
        elif kind == "failed":
            if not self.ready.done():
                self.ready.set_exception(UserError(message["message"]))
        elif kind == "stats":
            self.stats = message
        elif (ticket := self.running.get(message["id"])) is not None:
            self.room.answered(self, ticket, message)

    def _closed(self, error: Exception | None) -> None:
        """The connection ended: with the process, or since it sent what is no frame."""
        was, self.state = self.state, "ended"
        if self.process is not None:
            if isinstance(error, BadFrame):
                self.process.kill()
            self.reaping = asyncio.get_running_loop().run_in_executor(None, self._reap)
        if not self.ready.done():
            self.ready.set_exception(UserError(f"{self.room.served.folder}: the worker died while it opened the model"))
        self.ready.exception()  # it may be that nobody asks any more
        if not self.ended.done():
            self.ended.set_result(None)
        self.room.lost(self, was)

    def _reap(self) -> None:
        assert self.process is not None
        try:
            self.process.wait(5.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def state_values(self) -> dict[str, Any]:
        pid = None if self.process is None else self.process.pid
        names = ("memory", "tokens", "steps", "waiting_tokens")
        return {"pid": pid, "state": self.state, "running": len(self.running), **{n: self.stats[n] for n in names}}


COUNTS = ("restarts", "crashed", "overloaded", "expired", "cancelled", "done", "failed")


class ModelRoom:
    """A model: its queue, and the workers that hold it."""

    def __init__(self, served: ServedModel, options: PoolOptions) -> None:
        self.served, self.options = served, options
        self.queue: deque[Ticket] = deque()
        self.workers: list[WorkerProcess] = []
        self.leaving: set[WorkerProcess] = set()  # those that finish what they have
        self.info: dict[str, Any] = {}
        self.counts = dict.fromkeys(COUNTS, 0)
        self.admission = Admission(options)
        self.failures = 0  # starts, one after the other, that led to nothing
        self.crashes = 0  # one soon after the other
        self.closing = False
        self.restarting: set[asyncio.Task[None]] = set()

    def opening(self) -> dict[str, Any]:
        """The values of an `Opening`, which tell a worker how to open the folder."""
        served = self.served
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        threads = served.threads or (max(1, cores // served.workers) if served.workers > 1 else 0)
        values: dict[str, Any] = {"name": served.name, "folder": os.path.abspath(served.folder), "threads": threads}
        values |= {name: vars(served)[name] for name in ("task", "backend", "device")}
        return {name: value for name, value in values.items() if value is not None} | {"trust": served.trust}

    @property
    def running(self) -> int:
        return sum(len(worker.running) for worker in (*self.workers, *self.leaving))

    # ------------------------------------------------------------------------------------------------------ its workers

    async def open(self) -> None:
        """Start all workers; the first one alone, so that a folder that cannot be opened is read once."""
        self._take_over(await self._started(self.served.workers))

    def _take_over(self, started: list[WorkerProcess]) -> None:
        """These workers have the model from now on; one may have died while the others opened it."""
        self.workers, self.info = [worker for worker in started if worker.state != "ended"], started[0].info
        for _ in range(len(started) - len(self.workers)):
            self._replace()

    async def _started(self, count: int) -> list[WorkerProcess]:
        workers = [WorkerProcess(self)]
        try:
            await workers[0].start()
            rest = [WorkerProcess(self) for _ in range(count - 1)]
            workers += rest
            await asyncio.gather(*(worker.start() for worker in rest))
        except BaseException:
            for worker in workers:
                worker.kill()
            raise
        return workers

    async def reload(self) -> None:
        """New workers take over once they have opened the folder; the old ones finish their jobs."""
        started = await self._started(self.served.workers)
        old, self.failures, self.admission.speed = self.workers, 0, 0.0  # another model may have another speed
        self._take_over(started)
        for worker in old:
            if worker.state != "ended":
                self.leaving.add(worker)
                worker.stop()
        self.dispatch()

    def lost(self, worker: WorkerProcess, was: str) -> None:
        """A worker has ended: its jobs have no answer, and another takes its place."""
        tickets = list(worker.running.values())
        for ticket in tickets:
            self.counts["crashed"] += 1
            self.settle(ticket, error=Crashed("the worker died with this request; it has been started again"))
        self.admission.pause()
        self.leaving.discard(worker)
        if worker not in self.workers:
            return
        self.workers.remove(worker)
        if not self.closing:
            log("crash", model=self.served.name, requests=len(tickets))
            steady = was == "ready" and time.monotonic() - worker.begun > STEADY
            self.crashes = 0 if steady else self.crashes + 1
            self._replace()

    def _replace(self) -> None:
        task = asyncio.get_running_loop().create_task(self._restart())
        self.restarting.add(task)
        task.add_done_callback(self.restarting.discard)

    async def _restart(self) -> None:
        """Start a worker in place of one that has died; again and again where it does not open."""
        while not self.closing and len(self.workers) < self.served.workers:
            tries = self.failures + max(0, self.crashes - 1)  # after a first crash at once
            if tries:
                await asyncio.sleep(min(LONGEST_BACKOFF, BACKOFF * 2 ** min(tries, 16)))
            worker = WorkerProcess(self)
            self.counts["restarts"] += 1
            try:
                await worker.start()
            except UserError as error:
                self.failures += 1
                log("crash", model=self.served.name, error=str(error))
                if not self.able():
                    self.refuse_all()
                continue
            self.failures = 0
            if len(self.workers) < self.served.workers:
                self.workers.append(worker)
                self.info = worker.info
                self.dispatch()
            else:  # the folder has been opened anew in the meantime
                self.leaving.add(worker)
                worker.stop()

    def able(self) -> bool:
        """Whether there is hope that a job will be answered."""
        return bool(self.workers) or self.failures < TRIES

    def refuse_all(self) -> None:
        while self.queue:
            self.counts["crashed"] += 1
            self.settle(self.queue[0], error=Crashed("the model cannot be opened at the moment"))

    async def close(self, seconds: float) -> None:
        """Finish what is there for so long, and end the workers."""
        self.closing = True
        end = time.monotonic() + seconds
        while (self.queue or self.running) and time.monotonic() < end and (self.workers or self.leaving):
            await asyncio.sleep(0.01)
        while self.queue:
            self.settle(self.queue[0], error=Stopping("the server ends"))
        for task in list(self.restarting):
            task.cancel()
        workers = [*self.workers, *self.leaving]
        for worker in workers:
            for ticket in list(worker.running.values()):
                self.settle(ticket, error=Stopping("the server ends"))
            worker.stop()
        left = max(1.0, min(5.0, end - time.monotonic()))
        ending = [worker.ended for worker in workers if worker.state != "ended"]
        if ending:
            await asyncio.wait(ending, timeout=left)
        for worker in workers:
            if worker.state != "ended":
                worker.kill()
                await worker.ended
            if worker.reaping is not None:
                await worker.reaping

    # --------------------------------------------------------------------------------------------------------- its jobs

    def add(self, ticket: Ticket, deadline: float) -> None:
        """Put a job in line; it is refused at once where the line is too long."""
        if self.closing:
            raise Stopping("the server ends")
        if not self.able():
            raise Crashed("the model cannot be opened at the moment")
        wait = self.admission.wait_before(ticket.size, ticket.beside, time.monotonic())
        if wait is not None:
            self.counts["overloaded"] += 1
            raise Overloaded("too many requests wait for this model", wait)
        self.admission.enter(ticket.size, ticket.delay)
        self.queue.append(ticket)
        ticket.timer = asyncio.get_running_loop().call_later(deadline, self._expire, ticket)
        self.dispatch()

    def dispatch(self) -> None:
        """Give jobs to the workers that have room, the least busy one first."""
        while self.queue:
            able = [worker for worker in self.workers if worker.has_room]
            if not able:
                return
            ticket = self.queue.popleft()
            min(able, key=lambda worker: worker.charged).send(ticket)

    def answered(self, worker: WorkerProcess, ticket: Ticket, message: Message) -> None:
        """A worker says something of a job."""
        if message["type"] == "piece":
            if ticket.pieces is not None:
                ticket.pieces.put_nowait(message)
            return
        if not ticket.beside:
            self.admission.answered(ticket.delay, time.monotonic())
        if message["type"] == "done":
            self.counts["done"] += 1
            message["version"] = worker.info.get("version")
            self.settle(ticket, message)
        else:
            self.counts["failed"] += 1
            self.settle(ticket, error=Rejected(message["message"], message["status"], message["field"]))

    def settle(self, ticket: Ticket, message: Message | None = None, error: JobError | None = None) -> None:
        """End a job: set its result or error, and free its place in the queue."""
        if ticket.timer is not None:
            ticket.timer.cancel()
            ticket.timer = None
        if ticket.worker is None:
            with suppress(ValueError):
                self.queue.remove(ticket)
        else:
            ticket.worker.release(ticket)
        if ticket.size:  # it was not over before
            self.admission.leave(ticket.size, ticket.delay)
        ticket.size = 0
        if not ticket.future.done():
            if error is not None:
                ticket.future.set_exception(error)
            elif message is not None:
                ticket.future.set_result(message)
            else:
                ticket.future.cancel()
        if ticket.pieces is not None:
            ticket.pieces.put_nowait({"type": "end"})
        self.dispatch()

    def _expire(self, ticket: Ticket) -> None:
        self.counts["expired"] += 1
        self.drop(ticket, Expired("the deadline of the request has passed"))

    def drop(self, ticket: Ticket, error: JobError | None = None) -> None:
        """Take a job out wherever it is."""
        if ticket.worker is not None and ticket.number in ticket.worker.running:
            ticket.worker.protocol.write(messages.cancel(ticket.number))
        if error is None:
            self.counts["cancelled"] += 1
        self.settle(ticket, error=error)

    def state(self) -> dict[str, Any]:
        workers = [worker.state_values() for worker in (*self.workers, *self.leaving)]
        waiting = {"waiting": len(self.queue), "waiting_characters": sum(ticket.size for ticket in self.queue)}
        ready = any(worker.state == "ready" for worker in self.workers)
        return {"ready": ready, **waiting, "running": self.running, **self.counts, "workers": workers}


class Pool:
    """All models of a server, each with its queue and its workers."""

    def __init__(self, models: Sequence[ServedModel], options: PoolOptions | None = None) -> None:
        names = [served.name for served in models]
        if twice := [name for place, name in enumerate(names) if name in names[:place]]:
            raise UserError(f"two models have the name {shown(twice[0])!r}: give one as NAME=FOLDER")
        self.options = options or PoolOptions()
        self.rooms = {served.name: ModelRoom(served, self.options) for served in models}
        self.next = 0

    @property
    def models(self) -> dict[str, dict[str, Any]]:
        """What is known of each model."""
        return {name: room.info for name, room in self.rooms.items()}

    async def start(self) -> None:
        """Open all models, one after the other."""
        try:
            for room in self.rooms.values():
                await room.open()
        except BaseException:
            await self.drain(0.0)
            raise

    async def submit(self, name: str, job: Message, *, deadline: float | None = None) -> Message:
        """The answer to a job: its message of type done."""
        ticket = self._ticket(name, job, deadline, streamed=False)
        try:
            return await ticket.future
        except asyncio.CancelledError:
            self.rooms[name].drop(ticket)
            raise

    async def stream(self, name: str, job: Message, *, deadline: float | None = None) -> AsyncIterator[Message]:
        """The pieces of an answer as they are written, and at last its message of type done."""
        ticket = self._ticket(name, job, deadline, streamed=True)
        assert ticket.pieces is not None
        try:
            while (message := await ticket.pieces.get())["type"] != "end":
                yield message
            yield await ticket.future
        finally:
            if not ticket.future.done():
                self.rooms[name].drop(ticket)
            elif not ticket.future.cancelled():
                ticket.future.exception()  # it may be that nobody asks any more

    def _ticket(self, name: str, job: Message, deadline: float | None, streamed: bool) -> Ticket:
        if name not in self.rooms:
            raise UnknownModel(f"no model {shown(name)!r}")
        self.next += 1
        try:
            size = sum(map(messages.characters, (messages.inputs_of(job), job["options"])))
            data = packed({**job, "id": self.next})
        except BadFrame as error:
            raise Rejected(str(error), 422, "input") from None
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        pieces: asyncio.Queue[Message] | None = asyncio.Queue() if streamed else None
        ticket = Ticket(self.next, data, size, job["kind"] == "generate", future, pieces)
        seconds = self.options.deadline if deadline is None else deadline
        if not (math.isfinite(seconds) and seconds > 0):
            raise Expired("the deadline of the request has passed")
        self.rooms[name].add(ticket, seconds)
        return ticket

    async def reload(self, name: str) -> None:
        """Open the folder of a model anew, without a pause; if that fails, UserError, and the old one stays."""
        if name not in self.rooms:
            raise UnknownModel(f"no model {shown(name)!r}")
        await self.rooms[name].reload()

    async def drain(self, seconds: float) -> None:
        """Take no more jobs, finish those that are there for so long, and end the workers."""
        await asyncio.gather(*(room.close(seconds) for room in self.rooms.values()))

    def state(self) -> dict[str, dict[str, Any]]:
        """How it goes, by model."""
        return {name: room.state() for name, room in self.rooms.items()}

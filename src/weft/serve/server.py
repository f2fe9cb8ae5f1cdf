"""The process of `weft serve`: socket, uvicorn, signals, and a graceful shutdown."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import select
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn

from weft.errors import UserError, shown
from weft.files import reason
from weft.progress import to_stderr
from weft.serve.app import ServedApp
from weft.serve.calls import Call, LogWriter
from weft.serve.connections import ConnectionLimits, LimitedConnection
from weft.serve.front import Front
from weft.serve.guard import Guard
from weft.serve.limits import ServeOptions
from weft.serve.metrics import ServerMetrics
from weft.serve.pool import Pool, PoolOptions, ServedModel
from weft.serve.refusals import Refusal
from weft.serve.traces import Tracer, collector_of

GRACE = 0.3  # seconds after the signal to end in which requests that are on their way are accepted ...
FIRST = 2.0  # ... and the first one of a connection, whose client may have to wait for a processor
KEEP_ALIVE = 65  # seconds for which an idle connection is kept: more than most proxies keep it
BACKLOG = 1024
SPARE_FILES = 256  # file descriptors besides the connections: workers, libraries, refused connections
NAME = re.compile(r"[A-Za-z0-9][\w.:@+-]{0,127}", re.ASCII)
ROUTES = {"complete": "/v1/completions", "embed": "/v1/embeddings"}  # the usual routes of tasks with several


def listening_socket(options: ServeOptions) -> socket.socket:
    """A listening socket at the address of the options; UserError if that address cannot be used."""
    host, where = options.host.strip("[]"), f"{options.host}:{options.port}"
    try:
        kind, _, _, _, address = socket.getaddrinfo(
            host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError):
        raise UserError(f"--host {shown(options.host)!r} is no address of this machine") from None
    listener = socket.socket(kind, socket.SOCK_STREAM)
    try:
        if sys.platform != "win32":  # on Windows this option would let two servers share a port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise UserError(
            f"cannot listen on {where}: {reason(error)}; try another --port (0: a free one) or --host"
        ) from None
    return listener


def address_of(listener: socket.socket) -> str:
    """The address to open in a browser."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class DrainingServer(uvicorn.Server):
    """A server that ends gracefully: /ready turns off, then it stops listening, then it waits for the replies."""

    def __init__(self, config: uvicorn.Config, options: ServeOptions, on_reload: Callable[[], None]) -> None:
        super().__init__(config)
        self.options, self.on_reload = options, on_reload
        self.draining = False
        self.lost = 0  # requests that were cut off at the end

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Replaces uvicorn's: the event loop handles signals, and none is raised again at the end."""
        loop = asyncio.get_running_loop()
        handlers: dict[int, Callable[[int], None]] = {signal.SIGINT: self.end, signal.SIGTERM: self.end}
        if sys.platform != "win32":
            handlers[signal.SIGHUP] = lambda number: self.on_reload()
        for number, handler in handlers.items():
            try:
                loop.add_signal_handler(number, handler, number)
            except NotImplementedError:  # on Windows
                signal.signal(number, lambda n, frame: loop.call_soon_threadsafe(handlers[n], n))
        yield

    def end(self, number: int) -> None:
        """SIGTERM or Ctrl-C: stop when all requests are answered; a second Ctrl-C exits at once."""
        if self.draining and number == signal.SIGINT:
            with suppress(OSError):
                os.write(2, b"weft: interrupted\n")
            os._exit(128 + number)
        if not self.draining:
            again = "; Ctrl-C again leaves at once" if number == signal.SIGINT else ""
            to_stderr(f"weft: finishing {len(self.server_state.tasks)} requests{again}")
        self.draining = self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Wait for every reply, up to --drain seconds."""
        self.draining = True
        loop = asyncio.get_running_loop()
        end = loop.time() + self.options.drain
        # In this time load balancers see that /ready is off, replies close their connections, and requests that were on
        # their way arrive.
        await asyncio.sleep(min(GRACE, self.options.drain))
        await self._stop_listening(sockets or ())
        shut = loop.time()
        while (self.server_state.tasks or self.server_state.connections) and loop.time() < end:
            self._close_idle(loop.time() - shut)
            await asyncio.sleep(0.02)
        tasks = list(self.server_state.tasks)
        self.lost = len(tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=2)
        await self.lifespan.shutdown()

    async def _stop_listening(self, listeners: Sequence[socket.socket]) -> None:
        """Accept the connections that wait in the backlog, and no more."""
        copies = [listener.dup() for listener in listeners]  # closing the last one resets the connections that wait
        for server in self.servers:
            server.close()
        for listener in listeners:
            listener.close()
        waiting = list[socket.socket]()
        for listener in copies:
            with listener, suppress(OSError):
                while True:  # until accept would block
                    waiting.append(listener.accept()[0])
        for connection in waiting:
            connection.setblocking(False)
            with suppress(OSError):  # it may have gone
                await asyncio.get_running_loop().connect_accepted_socket(self._protocol, connection)

    def _protocol(self) -> asyncio.Protocol:
        made: Any = self.config.http_protocol_class
        connection: asyncio.Protocol = made(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return connection

    def _close_idle(self, seconds: float) -> None:
        """Close idle connections, so many seconds after the server stopped listening; others end with their reply."""
        connections: list[Any] = list(self.server_state.connections)
        for connection in connections:
            patience = FIRST if connection.cycle is None else GRACE
            is_idle = connection.is_idle and seconds > patience and not has_data(connection.transport)
            if is_idle or connection.is_busy:
                connection.shutdown()


def has_data(transport: asyncio.Transport) -> bool:
    """Whether bytes have arrived that were not read yet."""
    if sys.platform == "win32" or transport.is_closing():
        return False
    poll = select.poll()
    poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
    return bool(poll.poll(0))


def server_for(
    app: Any, options: ServeOptions, on_reload: Callable[[], None], refused: Callable[[Refusal, str], None]
) -> DrainingServer:
    """uvicorn with Weft's limits, log and shutdown."""
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # its warnings repeat the access log
    limits = ConnectionLimits(options.max_connections, options.timeout, refused)
    config = uvicorn.Config(
        app,
        http=partial(LimitedConnection, limits=limits),  # type: ignore[arg-type]
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        backlog=BACKLOG,
    )
    return DrainingServer(config, options, on_reload)


def names_of(models: Sequence[str]) -> dict[str, str]:
    """The folders of the models by name; a model is given as NAME=FOLDER, or as a folder, which then names it."""
    folders: dict[str, str] = {}
    for model in models:
        name, equals, folder = model.partition("=")
        if not equals or Path(model).is_dir():
            folder, name = model, Path(model.rstrip("/")).name
        if name in ("", ".", ".."):
            name = Path(folder).resolve().name
        if not NAME.fullmatch(name):
            raise UserError(f"{shown(name)!r} cannot be the name of a model: give one as NAME={shown(folder)}")
        if name in folders:
            raise UserError(f"two models have the name {name!r}: give one as NAME={shown(folder)}")
        folders[name] = folder
    return folders


class Serving:
    """A server with its workers, from start to exit."""

    def __init__(self, models: Sequence[ServedModel], options: ServeOptions) -> None:
        self.options, self.key = options, options.key()
        limits = PoolOptions(queue_jobs=options.max_queue, queue_seconds=options.max_wait, deadline=options.deadline)
        self.pool = Pool(models, limits)
        self.log = LogWriter()
        collector = collector_of(options.traces)
        self.tracer = Tracer(collector) if collector else None
        self.front = Front(options, self.pool, lambda: self.server.draining)
        self.metrics = ServerMetrics(
            self.states,
            lambda: len(self.server.server_state.connections),
            lambda: len(self.server.server_state.tasks),
        )
        guard = Guard(
            ServedApp(self.front, self.metrics).app, options, self.key, self.done, lambda: self.server.draining
        )
        self.server = server_for(guard, options, self.reload, self.refused)
        self.opening: asyncio.Task[None]
        self.reloading: asyncio.Task[None] | None = None
        self.again = False  # SIGHUP came while folders were being opened

    def done(self, call: Call) -> None:
        """Count and log a request that has ended."""
        self.metrics.count(call)
        if self.options.access_log:
            self.log.add(call.line())
        if self.tracer is not None:
            self.tracer.add(call)

    def refused(self, refusal: Refusal, client: str) -> None:
        """Count and log a connection that was refused before its request was read."""
        self.done(Call("", "", "", client, status=refusal.status, reason=refusal.reason))

    def states(self) -> dict[str, dict[str, float]]:
        """The state of the models for the metrics."""
        return {
            name: {
                "queue": state["waiting"],
                "running": state["running"],
                "workers": sum(worker["state"] == "ready" for worker in state["workers"]),
                "memory": sum(worker["memory"] for worker in state["workers"]),
                "restarts": state["restarts"],
            }
            for name, state in self.pool.state().items()
        }

    async def run(self) -> int:
        """Serve until a signal ends it; returns the exit status."""
        listener = listening_socket(self.options)
        serving = asyncio.create_task(self.server.serve([listener]))
        try:
            self.opening = asyncio.create_task(self.pool.start())
            await asyncio.wait((self.opening, serving), return_when=asyncio.FIRST_COMPLETED)
            if self.opening.done():
                self.opening.result()  # a model that cannot be opened
                self.announce(listener)
            else:
                self.opening.cancel()
            await serving
        except UserError:
            self.server.options = replace(self.options, drain=0.0)
            self.server.should_exit = True
            await serving
            raise
        finally:
            await self.pool.drain(1.0)
            self.log.close()
            if self.tracer is not None:
                self.tracer.close()
        lost = self.server.lost
        if lost:
            to_stderr(f"weft: {lost} requests were not finished within {self.options.drain:g} seconds")
        return 1 if lost else 0

    def announce(self, listener: socket.socket) -> None:
        """Print a line for each model, and the address."""
        for name, info in self.pool.models.items():
            print(f"{name}: {about(info)}")
            if info["unmeasured"]:
                to_stderr(
                    f"weft: hint: 'weft bench {self.pool.rooms[name].served.folder}' finds a faster backend, if any"
                )
        lock = " (with an API key)" if self.key else ""
        print(f"open {address_of(listener)}{lock}", flush=True)

    def reload(self) -> None:
        """SIGHUP: load all folders again, while the old models answer."""
        self.again = True
        if self.reloading is None or self.reloading.done():
            self.reloading = asyncio.create_task(self._reload())

    async def _reload(self) -> None:
        await asyncio.wait((self.opening,))  # the first time
        while self.again:
            self.again = False
            for name in self.pool.models:
                try:
                    await self.pool.reload(name)
                except UserError as error:
                    to_stderr(f"weft: note: {name} stays as it is: {error}")
                else:
                    to_stderr(f"weft: {name} was opened anew: {about(self.pool.models[name])}")


def about(info: Mapping[str, Any]) -> str:
    """A model in one line: its task, backend, size and routes."""
    count = info.get("parameters")
    size = f"{count:,} parameters" if count else f"vocabulary of {info['vocabulary']:,}"
    routes = [ROUTES.get(task, f"/v1/{task}") for task in info["tasks"]]
    return f"{info['task']}, {info['family']} on {info['backend']}, {size}; {' '.join(routes)}"


def allow_files(count: int) -> None:
    """Raise the limit of open files to this number, as far as the system allows it."""
    if sys.platform != "win32":
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            with suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def run(models: Sequence[ServedModel], options: ServeOptions) -> int:
    """Serve the models until a signal ends it; returns the exit status."""
    allow_files(options.max_connections + SPARE_FILES)
    try:
        import uvloop
    except ImportError:
        factory = None
    else:
        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(Serving(models, options).run())

"""Small models with random weights, saved once for all tests of the engine, and a worker in this process."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import weft
from tests.tasks.small import model_for, vocabulary
from weft.serve import messages
from weft.serve.frames import FrameChannel, Message
from weft.serve.opened import OpenedModel, Opening
from weft.serve.worker import Worker
from weft.tasks.model import Model

LABELS = ("a", "b", "c")
HEADS: dict[str, tuple[int, tuple[str, ...] | None]] = {
    "classify": (3, LABELS),
    "multilabel": (3, LABELS),
    "pair": (3, LABELS),
    "regress": (1, None),
    "tag": (3, ("O", "B-X", "I-X")),
    "answer": (2, None),
}
OTHERS: dict[str, tuple[str, Any]] = {
    "embed": ("bert", {}),
    "fill": ("bert", {"words": None}),
    "complete": ("gpt2", None),
    "choose": ("bert", {"choose": 1}),
    "translate": ("transformer", None),
}


@cache
def root() -> Path:
    return Path(mkdtemp(prefix="weft-serve-"))


@cache
def folder_of(task: str) -> Path:
    """A model folder for a task."""
    if task in HEADS:
        model = model_for(task, HEADS[task][0], vocabulary(), HEADS[task][1])
    else:
        family, heads = OTHERS[task]
        words = vocabulary("bpe" if family == "gpt2" else "wordpiece" if family == "bert" else "unigram")
        made = weft.new(family, words, size="1x64", settings={"context": 48}, heads=heads, seed=1)
        model = Model(replace(made.opened, card=replace(made.card, task=task)), task)
    model.save(root() / task)
    return root() / task


class InProcess:
    """A worker in threads of this process, and the server's end of its connection."""

    def __init__(self, folder: Path, **more: Any) -> None:
        self.model = OpenedModel(Opening(name="m", folder=str(folder), **more))
        ours, theirs = socket.socketpair()
        self.channel = FrameChannel(ours)
        self.worker = Worker(self.model, FrameChannel(theirs))
        self.thread = threading.Thread(target=self.worker.serve, daemon=True)
        self.thread.start()
        self.received = self.channel.messages()
        self.number = 0

    def send(self, job: Message) -> int:
        self.number += 1
        self.channel.write([{**job, "id": self.number}])
        return self.number

    def next(self) -> Message:
        """The next message that is no report."""
        while True:
            message = messages.checked(next(self.received), messages.TO_SERVER)
            if message["type"] != "stats":
                return message

    def ask(self, job: Message) -> Message:
        number = self.send(job)
        message = self.next()
        assert message["id"] == number
        return message

    def task(self, task: str, inputs: list[Any], **options: Any) -> Message:
        return self.ask(messages.task_job(task, inputs, options))

    def close(self) -> None:
        self.channel.write([messages.stop()])
        self.thread.join(30)
        assert not self.thread.is_alive()
        self.channel.connection.close()


@contextmanager
def worker_of(task: str, **more: Any) -> Iterator[InProcess]:
    worker = InProcess(folder_of(task), **more)
    try:
        yield worker
    finally:
        worker.close()


def run(work: Coroutine[Any, Any, Any], seconds: float = 120.0) -> Any:
    """A coroutine in an event loop of its own, which does not hang."""

    async def bounded() -> Any:
        return await asyncio.wait_for(work, seconds)

    return asyncio.run(bounded())

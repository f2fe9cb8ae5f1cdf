"""The pool with real worker processes: answers, streams, crashes, bounded queues, reloading, and the end."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.serve.engine_models import folder_of, run
from weft.errors import UserError
from weft.serve import messages
from weft.serve.pool import (
    Crashed,
    Expired,
    Overloaded,
    Pool,
    PoolOptions,
    Rejected,
    ServedModel,
    Stopping,
    UnknownModel,
    WorkerProcess,
)

LONG = " ".join(["the cat is there and nothing is now"] * 40)


def served(task: str, **more: Any) -> ServedModel:
    return ServedModel(name=task, folder=folder_of(task), threads=1, **more)


def classify(*texts: str, **more: Any) -> messages.Message:
    return messages.task_job("classify", list(texts), {}, **more)


def pids(pool: Pool, name: str = "classify") -> list[int]:
    return [worker["pid"] for worker in pool.state()[name]["workers"]]


def test_jobs_are_answered_and_refused() -> None:
    async def work() -> None:
        pool = Pool([served("classify"), served("complete")])
        await pool.start()
        done = await pool.submit("classify", classify("the cat is today", "an oak"))
        expected: list[Any] = weft.load(folder_of("classify"))(["the cat is today", "an oak"])
        assert [each["label"] for each in done["answers"]] == [each.label for each in expected]
        assert [each["score"] for each in done["answers"]] == pytest.approx([each.score for each in expected], abs=1e-5)
        assert done["version"] == pool.models["classify"]["version"]
        assert done["usage"]["prompt_tokens"] == sum(each.n_tokens for each in expected)
        assert set(done["timings"]) == {"queue", "tokenize", "model", "post"}

        job = messages.generate_job(["the cat"], {"max_tokens": 6}, stream=True)
        *pieces, last = [message async for message in pool.stream("complete", job)]
        assert "".join(piece["text"] for piece in pieces) == last["answers"][0]["text"]
        assert last["usage"]["completion_tokens"] == 6

        for job, status, field in (
            (classify(LONG, tokens=10), 413, "input"),
            (messages.task_job("tag", ["a"]), 422, "model"),
            (messages.task_job("classify", ["a", 3]), 422, "input[1]"),
            (messages.task_job("classify", ["a"], {"top": 1}), 422, "top"),
            (messages.task_job("classify", [float("nan")]), 422, "input"),
        ):
            with pytest.raises(Rejected) as refused:
                await pool.submit("classify", job)
            assert (refused.value.status, refused.value.field) == (status, field)
            assert str(folder_of("classify")) not in refused.value.message
        with pytest.raises(UnknownModel):
            await pool.submit("nobody", classify("a"))
        assert pool.state()["classify"]["failed"] == 4
        workers = pids(pool) + pids(pool, "complete")
        await pool.drain(5)
        assert not any(os.path.exists(f"/proc/{pid}") for pid in workers)
        with pytest.raises(Stopping):
            await pool.submit("classify", classify("a"))

    run(work())


def test_a_word_that_is_also_the_name_of_the_folder_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(folder_of("classify"), tmp_path / "top")
    monkeypatch.chdir(tmp_path)

    async def work() -> None:
        pool = Pool([ServedModel(name="m", folder=Path("top"), threads=1)])
        await pool.start()
        with pytest.raises(Rejected, match="top is no option of classify"):
            await pool.submit("m", messages.task_job("classify", ["a"], {"top": 1}))
        await pool.drain(5)

    run(work())


def test_a_killed_worker_is_replaced() -> None:
    async def work() -> None:
        pool = Pool([served("classify")], PoolOptions(queue_jobs=1000, queue_seconds=1e9))
        await pool.start()
        (pid,) = pids(pool)
        jobs = [asyncio.create_task(pool.submit("classify", classify(*[LONG] * 2))) for _ in range(200)]
        await asyncio.sleep(0.05)
        state = pool.state()["classify"]
        assert state["running"] and state["waiting"], "some jobs are with the worker, and some are not"
        os.kill(pid, signal.SIGKILL)
        results = await asyncio.gather(*jobs, return_exceptions=True)
        crashed = [each for each in results if isinstance(each, Crashed)]
        answered = [each for each in results if isinstance(each, dict)]
        assert crashed and answered and len(crashed) + len(answered) == 200
        assert len(crashed) <= state["running"] + 8 and crashed[0].status == 503
        state = pool.state()["classify"]
        assert state["restarts"] == 1 and state["crashed"] == len(crashed) and pids(pool) != [pid]
        assert (await pool.submit("classify", classify("the cat")))["answers"]
        await pool.drain(5)

    run(work())


def test_a_worker_that_dies_while_others_open_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = WorkerProcess.start, list[WorkerProcess]()

    async def slow(self: WorkerProcess) -> None:
        await start(self)
        started.append(self)
        if len(started) == 2:  # the first one dies, and the second one takes its time
            assert started[0].process is not None
            started[0].process.kill()
            await started[0].ended

    async def work() -> None:
        monkeypatch.setattr(WorkerProcess, "start", slow)
        pool = Pool([served("classify", workers=2)])
        await pool.start()
        while len(started) < 3:
            await asyncio.sleep(0.02)
        await asyncio.sleep(0)
        assert [worker["state"] for worker in pool.state()["classify"]["workers"]] == ["ready", "ready"]
        assert pool.state()["classify"]["restarts"] == 1
        await pool.drain(5)

    run(work())


def test_text_that_is_written_makes_nobody_wait() -> None:
    """As many texts as the queue has room for are written side by side, however long each of them takes."""

    async def work() -> None:
        pool = Pool([served("complete")], PoolOptions(queue_jobs=40, queue_seconds=1e-9))
        await pool.start()
        room = pool.rooms["complete"]
        room.admission.speed = 1e-9  # characters a second, as if all before had been slow
        job = messages.generate_job(["the cat"], {"max_tokens": 20})
        jobs = [asyncio.create_task(pool.submit("complete", job)) for _ in range(40)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded) as refused:
            await pool.submit("complete", job)
        assert refused.value.retry_after >= 1
        assert all(done["answers"] for done in await asyncio.gather(*jobs))
        assert room.admission.delay == room.admission.size == 0
        await pool.drain(5)

    run(work())


def test_a_long_queue_is_refused_at_once_and_what_is_dropped_leaves_it() -> None:
    async def work() -> None:
        pool = Pool([served("classify")], PoolOptions(queue_jobs=6))
        await pool.start()
        heavy = classify(*[LONG] * 60)
        first = [asyncio.create_task(pool.submit("classify", heavy)) for _ in range(6)]
        await asyncio.sleep(0)
        begin = time.perf_counter()
        with pytest.raises(Overloaded) as refused:
            await pool.submit("classify", classify("short"))
        assert time.perf_counter() - begin < 0.1 and refused.value.retry_after > 0
        for task in first[:-1]:
            task.cancel()
        await asyncio.sleep(0.01)
        assert (await pool.submit("classify", classify("short")))["answers"], "there is room again"
        await asyncio.gather(*first, return_exceptions=True)
        with pytest.raises(Expired):
            await pool.submit("classify", heavy, deadline=0.01)
        state = pool.state()["classify"]
        assert (state["overloaded"], state["cancelled"], state["expired"]) == (1, 5, 1)
        assert state["running"] == state["waiting"] == 0 and pool.rooms["classify"].admission.size == 0
        begin = time.perf_counter()
        await pool.submit("classify", classify("short"))
        assert time.perf_counter() - begin < 2, "what was dropped is not worked on"
        await pool.drain(5)

    run(work())


def test_a_folder_is_opened_anew_without_a_pause(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(folder_of("classify"), folder)

    async def work() -> None:
        pool = Pool([ServedModel(name="m", folder=folder, threads=1)])
        await pool.start()
        version, (pid,), stop = pool.models["m"]["version"], pids(pool, "m"), asyncio.Event()
        versions = list[str]()

        async def client() -> None:
            while not stop.is_set():
                versions.append((await pool.submit("m", classify("the cat is today")))["version"])

        clients = [asyncio.create_task(client()) for _ in range(3)]
        kept = (folder / "config.json").read_bytes()
        (folder / "config.json").write_text("{}")
        with pytest.raises(UserError):
            await pool.reload("m")
        assert pids(pool, "m") == [pid] and pool.models["m"]["version"] == version
        (folder / "config.json").write_bytes(kept + b"\n")
        await pool.reload("m")
        await asyncio.sleep(0.2)
        stop.set()
        await asyncio.gather(*clients)
        assert list(dict.fromkeys(versions)) == [version, pool.models["m"]["version"]]
        assert pool.state()["m"]["crashed"] == pool.state()["m"]["failed"] == 0
        await asyncio.sleep(0.5)
        assert len(pids(pool, "m")) == 1 and not os.path.exists(f"/proc/{pid}")
        await pool.drain(5)

    run(work())


def test_a_folder_that_cannot_be_opened(tmp_path: Path) -> None:
    async def work() -> None:
        with pytest.raises(UserError, match=r"config\.json"):
            await Pool([served("classify"), ServedModel(name="m", folder=tmp_path)]).start()

    run(work())
    with pytest.raises(UserError, match="two models"):
        Pool([served("classify"), served("classify")])

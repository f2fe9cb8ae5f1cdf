"""The queue of a worker: who is in which pass, whatever else waits; and plans that several threads ask for."""

from __future__ import annotations

import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.serve.engine_models import folder_of, worker_of
from tests.serve.running import Served
from weft.client import answer_of
from weft.serve import messages
from weft.serve import opened as opened_module
from weft.serve.opened import OpenedModel, Opening
from weft.serve.plans import Plan, Prepared, Unit
from weft.serve.scheduler import LEAST, MOST, Scheduler, Work
from weft.serve.worker import FEW


class Line:
    """A scheduler whose passes take no time, and jobs in it."""

    def __init__(self) -> None:
        self.scheduler, self.number = Scheduler(), 0

    def add(self, plan: Plan, *sizes: int) -> Work:
        self.number += 1
        work = Work(self.number)
        work.begin(plan, Prepared([Unit(size, None) for size in sizes], sum(sizes)))
        self.scheduler.add(work)
        return work

    def take(self) -> list[Work]:
        """The jobs in the next pass, each once for each of its units there."""
        some = self.scheduler.take()
        assert some is not None
        return [work for work, _ in some.parts]


@pytest.mark.parametrize("before", [0, 1, 50, 100])
def test_a_job_with_other_options_is_not_kept_waiting(before: int) -> None:
    """Others come as fast as they are answered; whoever was there before goes first, and nobody who came later."""
    line, usual, other = Line(), Plan(), Plan()
    earlier = [line.add(usual, 120) for _ in range(before)]
    lone = line.add(other, 120)
    for _ in range(100 - before):
        line.add(usual, 120)
    for _ in range(200):
        works = line.take()
        if lone in works:
            break
        for work in works:
            if work in earlier:
                earlier.remove(work)
            line.add(usual, 120)
    assert lone in works and not earlier


@pytest.mark.parametrize("together", [True, False])
def test_a_long_document_lets_a_short_text_by(together: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of a long one are in every pass, a short one in the next; a pass has its budget of tokens."""
    monkeypatch.setattr(Plan, "together", together)
    line, plan = Line(), Plan()
    long = line.add(plan, *[128] * 400)
    budget = line.scheduler.budget(plan)
    assert LEAST <= budget <= MOST
    for _ in range(5):
        works = line.take()
        assert 128 * len(works) <= budget
    short = line.add(plan, 9)
    passes = [line.take() for _ in range(2)]
    assert any(short in works for works in passes)
    assert any(long in works for works in passes)
    tokens = sum(128 if work is long else 9 for works in passes for work in works)
    assert line.scheduler.waiting_tokens == 128 * len(long.waiting) and tokens <= 2 * budget


def test_jobs_that_fit_into_a_pass_are_first_come_first_served() -> None:
    """The one that has waited longest is in every pass, however long its texts are and whoever came later."""
    line, plan, dice = Line(), Plan(), random.Random(1)
    left: list[Work] = []
    for number in range(300):
        if number < 200:
            left.append(line.add(plan, *[dice.randrange(5, 120) for _ in range(4)]))
        if number >= 60:  # by then many wait
            works = line.take() if left else []
            assert not works or left[0] in works
            left = [work for work in left if work.waiting]
    assert not left


@pytest.mark.parametrize("windows", [10, 60])
def test_a_long_document_ends_no_later_than_if_all_shared_the_model(windows: int) -> None:
    """Ten short texts wait at any time, and none longer than for the other nine; the document has its share."""
    line, plan = Line(), Plan()
    shorts = [line.add(plan, 200) for _ in range(10)]
    long, tokens = line.add(plan, *[200] * windows), 0
    while long.waiting:
        assert tokens <= 11 * 200 * windows + MOST, "it was starved"
        for work in line.take():
            tokens += 200
            if work is not long:
                shorts.remove(work)
                shorts.append(line.add(plan, 200))
    assert tokens > 2 * 200 * windows, "the short ones waited for it"


def test_what_is_cancelled_is_in_no_pass() -> None:
    line, plan = Line(), Plan()
    gone, kept = line.add(plan, *[50] * 9), line.add(plan, 50)
    gone.cancelled = True
    assert line.take() == [kept] and not line.scheduler.heap and line.scheduler.waiting_tokens == 0
    line.scheduler.stop()
    assert line.scheduler.take() is None


def test_an_answer_of_many_windows_is_that_of_the_model_also_at_the_end() -> None:
    """It is made beside the passes of others, and waited for where the worker ends."""
    texts = [" ".join(["the cat is there and nothing is now"] * 700), "an oak"]
    with worker_of("tag") as worker:
        number = worker.send(messages.task_job("tag", texts))
        worker.channel.write([messages.stop()])
        done = worker.next()
    assert (done["type"], done["id"]) == ("done", number) and done["answers"][0]["n_windows"] > FEW
    expected: Any = weft.load(folder_of("tag"))(texts)
    for answer, own in zip(done["answers"], expected, strict=True):
        ours: Any = answer_of(answer)
        assert (ours.n_windows, len(ours.spans)) == (own.n_windows, len(own.spans))
        for one, other in zip(ours.spans, own.spans, strict=True):
            assert (one.start, one.end, one.label) == (other.start, other.end, other.label)


@pytest.mark.parametrize(
    ("model", "task", "most", "above", "options"),
    [
        ("pair", "rank", ["cat " * 90, ["a"] * 9], ["cat " * 90, ["a"] * 15], {}),
        ("choose", "choose", ["cat " * 90, ["a"] * 9], ["cat " * 90, ["a"] * 15], {}),
        ("complete", "choose", ["a cat " * 5, ["a", "b"]], ["a cat " * 5, ["a"] * 200], {}),
        ("fill", "fill", "cat [MASK] " * 19, "cat [MASK] " * 40, {}),
        ("fill", "fill", "cat [MASK] " * 5, "cat [MASK] " * 5, {"top": 300}),
    ],
)
def test_what_is_read_again_and_again_counts_each_time(
    model: str, task: str, most: Any, above: Any, options: dict[str, Any]
) -> None:
    """A context beside each option, a query beside each text, a long text around each of its gaps."""
    with worker_of(model) as worker:
        within = worker.ask(messages.task_job(task, [most], tokens=1200))
        assert within["type"] == "done", within
        refused = worker.ask(messages.task_job(task, [above], options, tokens=1200))
        assert (refused["status"], refused["field"]) == (413, "input") and "1,200" in refused["message"], refused


def test_a_worker_keeps_nothing_of_the_sizes_of_passes(models: Path) -> None:
    """oneDNN keeps code for each number of tokens that it has multiplied, as much as it may."""
    with Served(str(models / "reviews"), "--max-texts", "1") as served, ThreadPoolExecutor(2) as pool:
        (pid,) = served.workers()

        def held(sizes: range) -> int:
            bodies = [{"model": "reviews", "input": "the cat " * size} for size in sizes]
            assert {reply.status for reply in pool.map(lambda body: served.post("/v1/classify", body), bodies)} == {200}
            return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

        before = held(range(1, 120))
        assert held(range(120, 400)) - before < 100 << 20


def test_plans_are_asked_for_by_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opened_module, "PLANS", 2)
    model = OpenedModel(Opening(name="m", folder=str(folder_of("embed"))))
    failures = list[Any]()

    def ask() -> None:
        try:
            for number in range(400):
                plan: Any = model.plan("task", "rank", {"top": 1 + number % 5})
                assert plan.top == 1 + number % 5
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and len(model.plans) <= 2


def test_a_long_document_that_is_due_lets_short_texts_by() -> None:
    """Beside jobs that fill all passes its turn comes late; short texts do not wait then until it has ended."""
    line, plan = Line(), Plan()
    others = [line.add(plan, *[200] * 20) for _ in range(3)]
    long, short, tokens, waited = line.add(plan, *[200] * 400), line.add(plan, 5), 0, [0]
    while long.waiting:
        assert tokens <= 6 * 200 * 400, "it was starved"
        works = line.take()
        tokens += 200 * (len(works) - works.count(short))
        waited[-1] += 200 * (len(works) - works.count(short))
        for work in [work for work in others if not work.waiting]:
            others.remove(work)
            others.append(line.add(plan, *[200] * 20))
        if short in works:
            short = line.add(plan, 5)
            waited.append(0)
    assert max(waited) <= 3 * 200 * 20 + 4 * line.scheduler.budget(plan), "for the others, not for the document"

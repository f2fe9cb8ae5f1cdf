"""Answers over HTTP are those of `weft.load` and `weft predict`: every task and backend, in any company."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.engines import need_engine
from tests.once import once
from tests.serve.running import Served, save_models
from tests.tasks.small import model_for, vocabulary
from weft.bench.encode import prepare_export
from weft.cli.main import run
from weft.exporters.export import BOUNDS, made_up_inputs
from weft.quantization.quantize import write_candidate
from weft.tasks.embed import rank

need_engine("onnx")
EXACT = 1e-5  # another number of threads, and other texts beside it, change the last bits of a number
LONG = " ".join(["the weaver sang at the loom because it was late and nobody came"] * 40)
TEXTS = ["The weaver sang.", "", "北京的织工 😀 naïve", LONG, "the loom"]
PAIRS = [("the loom", "it was late"), ("", "b"), (LONG, "a weaver")]
QUESTIONS = [("Who sang?", "The weaver sang at the loom."), ("Who?", LONG)]
LABELS = ("a", "b", "c")


@dataclass
class Question:
    """A call of a model, by a client and by the model itself."""

    model: str
    method: str
    given: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)
    bound: float = EXACT

    def over_http(self, client: weft.Client) -> Any:
        if self.method == "call":
            return client.model(self.model)(*self.given, **self.options)
        return getattr(client, self.method)(self.model, *self.given, **self.options)

    def alone(self, folder: Path, **loading: Any) -> Any:
        if loading:
            return weft.load(folder / self.model, **loading)(*self.given, **self.options)
        return LOCAL[self.method](folder / self.model, *self.given, **self.options)


def of_task(task: str | None) -> Callable[..., Any]:
    return lambda folder, given, **options: weft.load(folder, task=task)(given, **options)


LOCAL: dict[str, Callable[..., Any]] = {
    "call": of_task(None),
    **{name: of_task(name) for name in ("next", "choose", "fill", "summarize", "rewrite", "translate")},
    "embed": lambda folder, texts, **options: weft.load(folder).embed(texts, **options),
    "suggest": lambda folder, text, **options: weft.suggest(weft.load(folder), text, **options),
    "rank": lambda folder, query, texts, **options: rank(weft.load(folder).opened, query, texts, **options)[0],
    "forecast": lambda folder, rows: weft.load(folder).forecast(rows),
}
SHARED = [
    Question("reviews", "call", (TEXTS,)),
    Question("reviews", "embed", (TEXTS,)),
    Question("names", "call", (TEXTS,)),
    Question("qa", "call", (QUESTIONS,), {"top": 2}),
    Question("bert", "fill", (["the [MASK] of the loom", f"{LONG} [MASK] {LONG}"],), {"top": 3}),
    Question("bert", "embed", (TEXTS,)),
    Question("bert", "rank", ("an old loom", TEXTS), {"top": 3}),
    Question("bert", "next", ([*PAIRS[:2], ("the loom", LONG[:200])],)),
    Question("gpt", "call", (["The weaver", "北京 😀"],), {"max_tokens": 12}),
    Question("gpt", "call", ("The loom",), {"max_tokens": 6, "temperature": 0.8, "seed": 3, "n": 3, "logprobs": 2}),
    Question("gpt", "suggest", ("The weaver sang at the lo",), {"top": 5}),
    Question("gpt", "choose", ([("The weaver", ["sang.", "loom the."]), ("A", "Who?", ["b", "cd"])],)),
    Question("dates", "call", (["the weaver", "", LONG],), {"beam_size": 2, "n": 2, "max_tokens": 4}),
    Question("dates", "call", ("a loom",), {"alignments": True, "max_tokens": 4}),
]


def same(one: Any, other: Any, bound: float, where: str) -> None:
    """Equal classes, labels, texts and places, and numbers within a bound."""
    assert type(one) is type(other), where
    if is_dataclass(one):
        for each in fields(one):
            same(vars(one)[each.name], vars(other)[each.name], bound, f"{where}.{each.name}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), where
        for number, (a, b) in enumerate(zip(one, other, strict=True)):
            same(a, b, bound, f"{where}[{number}]")
    elif isinstance(one, dict):
        assert list(one) == list(other), where
        for name in one:
            same(one[name], other[name], bound, f"{where}[{name!r}]")
    elif isinstance(one, float):
        assert one == pytest.approx(other, abs=bound, rel=bound), where
    else:
        assert one == other, where


def check(question: Question, client: weft.Client, expected: Any) -> None:
    where = f"{question.model} {question.method}"
    same(question.over_http(client), expected, question.bound, where)


def test_answers_do_not_depend_on_the_company(server: Served, models: Path) -> None:
    """Sixteen clients ask everything at once, each in an order of its own, long documents among it."""
    expected = [question.alone(models) for question in SHARED]
    client = weft.Client(server.url)

    def ask(number: int) -> None:
        order = random.Random(number).sample(range(len(SHARED)), len(SHARED))
        for each in order:
            check(SHARED[each], client, expected[each])

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(ask, range(16)))


def test_views_and_texts_of_others_do_not_meet(server: Served) -> None:
    """A view watches the modules through which other texts go: it shows none of them, and none of them fails."""
    looks = [{"model": "gpt", "view": view, "input": "The weaver sang"} for view in ("attention", "walk", "lens")]
    alone = [server.post("/v1/look", body).json()["panels"] for body in looks]
    prompts = [" ".join(["The loom was old"] * count) for count in (1, 3, 9, 20)]
    options = {"model": "gpt", "max_tokens": 12, "temperature": 0}
    texts = [server.post("/v1/completions", {"prompt": prompt, **options}).json()["choices"] for prompt in prompts]

    def write(number: int) -> None:
        for _ in range(8):
            for prompt, expected in zip(prompts, texts, strict=True):
                reply = server.post("/v1/completions", {"prompt": prompt, **options})
                assert reply.status == 200 and reply.json()["choices"] == expected, reply.body

    def look(number: int) -> None:
        for place in [*range(3)] * 4:
            reply = server.post("/v1/look", looks[place])
            assert reply.status == 200 and reply.json()["panels"] == alone[place], reply.body[:300]

    with ThreadPoolExecutor(8) as pool:
        for each in [pool.submit(kind, number) for number in range(4) for kind in (write, look)]:
            each.result()


BODIES: dict[str, dict[str, Any]] = {
    "classify": {"model": "reviews", "input": LONG},
    "tag": {"model": "names", "input": "Ada"},
    "answer": {"model": "qa", "input": {"question": "Who?", "context": LONG}},
    "fill": {"model": "bert", "input": "a [MASK]"},
    "rank": {"model": "bert", "input": {"query": "a", "texts": ["b"]}},
    "next": {"model": "bert", "input": {"text": "a", "pair": "b"}},
    "complete": {"model": "gpt", "input": "a", "max_tokens": 2},
    "suggest": {"model": "gpt", "input": "a"},
    "choose": {"model": "gpt", "input": {"context": "a", "options": ["b", "c"]}},
    "translate": {"model": "dates", "input": "a", "max_tokens": 2},
}


@pytest.mark.parametrize("task", BODIES)
def test_every_answer_says_what_was_read(server: Served, task: str) -> None:
    reply = server.post(f"/v1/{task}", BODIES[task])
    values = reply.json()
    assert values["model"] == BODIES[task]["model"] and len(values["version"]) == 12
    (answer,) = values["answers"]
    assert answer["n_tokens"] > 0 and answer["n_windows"] >= 1 and answer["truncated"] is False
    assert task not in ("classify", "answer") or answer["n_windows"] > 1  # these were asked about a long text
    assert values["usage"]["prompt_tokens"] > 0
    for stage in ("queue", "tokenize", "model", "post", "total"):
        assert f"{stage};dur=" in reply.headers["server-timing"]


def test_other_routes_say_it_too(server: Served) -> None:
    completion = server.post("/v1/completions", {"model": "gpt", "prompt": "a", "max_tokens": 2}).json()
    vectors = server.post("/v1/embeddings", {"model": "bert", "input": LONG}).json()
    ranked = server.post("/v1/rerank", {"model": "bert", "query": "a", "documents": [LONG]}).json()
    view = server.post("/v1/look", {"model": "bert", "view": "tokens", "input": "the loom"}).json()
    parts = {"completions": completion["choices"][0], "embeddings": vectors["data"][0], "rerank": ranked, "look": view}
    for name, part in parts.items():
        assert part["n_tokens"] > 0 and part["n_windows"] >= 1 and part["truncated"] is False, name
    assert vectors["data"][0]["n_windows"] > 1
    assert all(len(each["version"]) == 12 for each in (completion, vectors, ranked, view))


def test_a_short_text_does_not_wait_for_a_long_one(server: Served) -> None:
    client = weft.Client(server.url)

    def seconds(text: str, tokens: int) -> float:
        begin = time.perf_counter()
        client.translate("dates", text, max_tokens=tokens)
        return time.perf_counter() - begin

    with ThreadPoolExecutor(1) as pool:
        long = pool.submit(seconds, " ".join([LONG] * 12), 24)
        time.sleep(0.1)
        short = seconds("a loom", 2)
        assert short < long.result() / 2  # far less, where no part of the long one has to be waited for


# --------------------------------------------------------------------------------------------- other tasks and backends

HEADS: dict[str, tuple[int, tuple[str, ...] | None]] = {
    "classify": (3, LABELS),
    "multilabel": (3, LABELS),
    "regress": (1, None),
    "pair": (3, LABELS),
    "spans": (3, LABELS),
    "tag": (3, ("O", "B-X", "I-X")),
    "answer": (2, None),
}
EXPORTED = {"light": ("multilabel", "fp32"), "light-value": ("regress", "fp32"), "light-pair": ("pair", "fp32"),
            "light-int8": ("classify", "int8"), "tags-int8": ("tag", "int8")}  # fmt: skip
ROWS = [{"day": day, "sales": float(day % 7)} for day in range(20)]
CHOICES = [("The weaver", "Who?", ["sang", "loom"]), ("A loom", ["b", "the cat", "oak"])]
MARKED = ["the [[loom]] sang", f"{LONG} a [[weaver]]"]
INPUTS: dict[str, Any] = {**dict.fromkeys(HEADS, TEXTS), "pair": PAIRS, "spans": MARKED, "answer": QUESTIONS}
OTHERS = [
    *(Question(name, "call", (INPUTS[task],), {}, BOUNDS[kind]) for name, (task, kind) in EXPORTED.items()),
    Question("light-pair", "call", (PAIRS[0],)),
    Question("spans", "call", (MARKED,)),
    Question("chooser", "call", (CHOICES,)),
    Question("writer", "summarize", (["the weaver", LONG],), {"max_tokens": 4}),
    Question("writer", "rewrite", ("the weaver",), {"max_tokens": 4, "beam_size": 2, "n": 2}),
    Question("sales", "forecast", (ROWS,)),
]


def small(task: str) -> weft.Model:
    outputs, labels = HEADS[task]
    return model_for(task, outputs, vocabulary(), labels)


def save_others(folder: Path) -> None:
    """Models of tasks that the shared server does not have, and exported ones."""
    small("spans").save(folder / "spans")
    chooser = weft.new("bert", vocabulary(), size="1x64", settings={"context": 48}, heads={"choose": 1}, seed=1)
    opened = replace(chooser.opened, card=replace(chooser.card, task="choose"))
    weft.Model(opened, "choose").save(folder / "chooser")
    save_models(folder, ("writer", "sales"))
    for name, (task, kind) in EXPORTED.items():
        model = small(task)
        (folder / name).mkdir()
        write_candidate(f"onnx-{kind}", folder / name, model, made_up_inputs(model, 8))


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return once(tmp_path_factory, "served-others", save_others)


def check_all(served: Served, folder: Path, questions: Sequence[Question], **options: Any) -> None:
    """Ask everything three times at once."""
    client = weft.Client(served.url)
    expected = [question.alone(folder, **options) for question in questions]
    pairs = list(zip(questions, expected, strict=True)) * 3
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda pair: check(pair[0], client, pair[1]), pairs))


def test_every_task_and_exported_folder(others: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also against `weft predict --jsonl`, which prints what the server answers."""
    names = sorted({question.model for question in OTHERS})
    with Served(*(str(others / name) for name in names)) as served:
        assert {each["id"] for each in weft.Client(served.url).models() if each["backend"] == "onnx"} == set(EXPORTED)
        check_all(served, others, OTHERS)
        texts = [TEXTS[0], TEXTS[4]]
        answers = served.post("/v1/classify", {"model": "light", "input": texts}).json()["answers"]
    assert run(["predict", str(others / "light"), *texts, "--jsonl"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for line, answer in zip(lines, answers, strict=True):
        assert {"labels", "scores", "n_tokens", "n_windows", "truncated"} <= set(line) & set(answer)
        for key in set(line) & set(answer) - {"text"}:
            same(line[key], answer[key], EXACT, key)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["torch", "onnx", "onnx-int8"])
def test_every_backend(backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The models are folders of PyTorch weights, which the server opens in the backend that it was told."""
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    for task in HEADS:
        small(task).save(tmp_path / task)
        if backend != "torch":
            prepare_export(weft.load(tmp_path / task, backend="torch"), backend)
    bound = BOUNDS["int8" if backend == "onnx-int8" else "fp32"]
    questions = [Question(task, "call", (INPUTS[task],), {}, bound) for task in HEADS]
    with Served(*(str(tmp_path / task) for task in HEADS), "--backend", backend) as served:
        assert {each["backend"] for each in weft.Client(served.url).models()} == {backend}
        check_all(served, tmp_path, questions, backend=backend)

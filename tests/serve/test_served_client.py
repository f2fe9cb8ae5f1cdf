"""`weft.Client` and `weft top` on a real server: answers of `weft.load`, and figures that agree with the requests."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.serve.running import MODELS, Served
from weft.cli.main import run
from weft.client import ServerError
from weft.tasks.answers import Ranked

CALLS: dict[str, list[tuple[Any, dict[str, Any]]]] = {
    "reviews": [("The weaver sang.", {}), (["the loom", "the weaver sang because it was late " * 20], {})],
    "names": [("Ada went home.", {})],
    "qa": [(("Who sang?", "The weaver sang at the loom."), {}), ([("Who?", "Ada.")], {"top": 2})],
    "bert": [("the [MASK] of the loom", {"top": 2})],
    "gpt": [
        ("The weaver", {"max_tokens": 5}),
        (["The weaver", "A loom"], {"max_tokens": 5, "temperature": 0.8, "seed": 3, "n": 2, "logprobs": 2}),
    ],
    "dates": [(["the weaver", "a loom"], {"beam_size": 2, "n": 2, "max_tokens": 4, "alignments": True})],
}


@pytest.fixture(scope="module")
def client(server: Served) -> weft.Client:
    return weft.Client(server.url)


@pytest.mark.parametrize("name", MODELS)
def test_answers_are_those_of_a_loaded_model(client: weft.Client, models: Path, name: str) -> None:
    alone, served = weft.load(models / name), client.model(name)
    for given, options in CALLS[name]:
        near(served(given, **options), alone(given, **options))


def near(one: Any, two: Any) -> None:
    """Equal answers; the number of threads may change the last bits of a number."""
    assert type(one) is type(two)
    if isinstance(one, list):
        assert len(one) == len(two)
        for a, b in zip(one, two, strict=True):
            near(a, b)
        return
    plain = [json.dumps(vars(each), default=lambda part: vars(part), sort_keys=True) for each in (one, two)]
    numbers = [[float(n) for n in re.findall(r"-?\d+\.\d+(?:e-?\d+)?", text)] for text in plain]
    assert numbers[0] == pytest.approx(numbers[1], abs=1e-5)
    assert len({re.sub(r"-?\d+\.\d+(?:e-?\d+)?", "N", text) for text in plain}) == 1


def test_streams_suggestions_vectors_and_choices(client: weft.Client, models: Path) -> None:
    gpt = weft.load(models / "gpt")
    ours, theirs = (m.stream("The weaver", max_tokens=6, temperature=0.7, seed=5) for m in (client.model("gpt"), gpt))
    assert "".join(ours) == "".join(theirs)  # where a client is slow, several pieces come as one
    near(ours.answer, theirs.answer)
    near(client.suggest("gpt", "The weaver ", top=3), weft.suggest(gpt, "The weaver ", top=3))
    near(client.embed("bert", ["the loom", "a weaver"]), weft.load(models / "bert").embed(["the loom", "a weaver"]))
    choice = ("The weaver", ["sang.", "loom the."])
    near(client.choose("gpt", choice), weft.load(models / "gpt", task="choose")(choice))
    ranked = client.rank("bert", "an old loom", ["a weaver", "an old loom"])
    assert isinstance(ranked, Ranked) and ranked.hits[0].number == 1


def test_mistakes_are_the_lines_of_the_server(client: weft.Client) -> None:
    with pytest.raises(ServerError, match=r"^input\[1\]") as caught:
        client.classify("reviews", ["a", 3])
    assert caught.value.status == 422 and caught.value.field == "input[1]"
    with pytest.raises(ServerError, match="unknown field 'tpo'"):
        client.classify("reviews", "a", tpo=1)
    with pytest.raises(ServerError, match="there is no model 'review'; did you mean 'reviews'"):
        client.classify("review", "a")
    stream = client.stream("gpt", "a", temperature=-1)
    with pytest.raises(ServerError, match="temperature"):
        list(stream)


def test_a_stream_that_is_left_ends_on_the_server(client: weft.Client, server: Served) -> None:
    stream = client.stream("gpt", "The weaver", max_tokens=200)
    assert next(iter(stream))
    stream.close()
    assert client.classify("reviews", "a").n_tokens  # over a new connection


def test_top_counts_what_was_asked(client: weft.Client, server: Served, capsys: pytest.CaptureFixture[str]) -> None:
    def figures() -> dict[str, Any]:
        assert run(["top", server.url, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    def of(values: dict[str, Any]) -> dict[str, Any]:
        return next((each for each in values["routes"] if each["route"] == "/v1/classify"), {"requests": 0})

    before = of(figures())["requests"]
    for _ in range(5):
        client.classify("reviews", "The weaver sang.")
    values = figures()
    assert of(values)["requests"] - before == 5
    assert 0 < of(values)["p50 seconds"] <= of(values)["p99 seconds"]
    model = next(each for each in values["models"] if each["model"] == "reviews")
    assert model["task"] == "classify" and model["workers"] == 1 and model["memory bytes"] > 1 << 20
    assert model["tokens read a second"] > 0 and model["tokens of a batch"] > 0
    assert run(["top", server.url, "--once"]) == 0
    text = capsys.readouterr().out
    assert "/v1/classify" in text and "reviews" in text and "requests/s" in text


def test_top_says_what_is_wrong(capsys: pytest.CaptureFixture[str], server: Served) -> None:
    assert run(["top", "http://127.0.0.1:9", "--once"]) == 2
    assert "nothing listens there; start a server with weft serve" in capsys.readouterr().err
    assert run(["top", "ftp://nowhere"]) == 2
    assert "is not the address of a server" in capsys.readouterr().err
    assert run(["top", f"{server.url}/v1", "--once"]) == 2
    assert "there is no such route" in capsys.readouterr().err


def test_the_live_table_ends_with_ctrl_c(server: Served) -> None:
    """In a terminal of its own."""
    code = (
        "import os, pty, signal, sys, time\n"
        "pid, terminal = pty.fork()\n"
        "if pid == 0:\n"
        f"    os.execv(sys.executable, [sys.executable, '-m', 'weft', 'top', '{server.url}', '--interval', '0.2'])\n"
        "seen, sent = b'', False\n"
        "while True:\n"
        "    try:\n"
        "        seen += os.read(terminal, 4096)\n"
        "    except OSError:\n"
        "        break\n"
        "    if b'requests/s' in seen and not sent:\n"
        "        sent = True\n"
        "        os.write(terminal, b'\\x03')\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), b'requests/s' in seen)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "0 True\n", (done.stdout, done.stderr)

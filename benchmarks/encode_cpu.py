"""Encoders on a CPU: the backends of `weft bench` beside other libraries, on the same weights and texts.

    python benchmarks/encode_cpu.py                                 # both encoders
    python benchmarks/encode_cpu.py --models minilm --parts mixed        # some; all others keep their figures
    python benchmarks/encode_cpu.py --parts lengths --works "1 x 16,1 x 128"     # some of a part

All contestants take turns in one process on two threads. `before` is plain torch; `chosen` is the backend that
`weft bench` would choose for this length and batch; a contestant counts only where its vectors agree with plain torch's
(see docs/bench.md). Then mixed lengths with a classification head, beside transformers' text-classification pipeline.
Two parts are not among the usual ones: `openvino` runs the exported graphs by OpenVINO beside the backends of Weft, and
`compile` a pass through the network by torch.compile, which needs a C++ compiler, beside torch and oneDNN.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import RESULTS, machine, minilm, parse, peer, write

import weft
from weft.backends import onednn
from weft.backends.choice import BACKENDS, cpu_name, version_of
from weft.backends.groups import grouped
from weft.backends.onnx import GRAPH
from weft.bench.encode import EncodeReport, encode_report, prepare_export, race
from weft.bench.square import rectangle
from weft.bench.texts import Profile, profiles_of
from weft.checkpoint.folder import LoadedModel
from weft.errors import UserError
from weft.exporters.onnx_export import write_onnx
from weft.nn.rows import Ragged
from weft.tasks.chosen import answering_by
from weft.tasks.forward import tokenizer_of
from weft.tasks.model import Model
from weft.text.tokenizers.training import learn

PEERS = ("transformers", "sentence-transformers", "onnxruntime", "ctranslate2")
FIXED = ((16, 1), (128, 1), (128, 32))  # tokens, texts at a time


def random_encoder(size: str, tokenizer: Any, **settings: Any) -> LoadedModel:
    """An encoder with drawn weights."""
    return weft.new("bert", tokenizer, size=size, settings={"context": 512, **settings}).opened


def saved(opened: LoadedModel, task: str, folder: Path) -> Model:
    """A model folder, and the model read from it again."""
    Model(opened, task).save(folder)
    return weft.load(folder, task, backend="torch")


def encoders(names: list[str], smoke: bool, folder: Path) -> dict[str, Model]:
    """The models that are asked for: real weights of all-MiniLM-L6-v2, and drawn ones of the size of BERT-base."""
    real = None if smoke else minilm()
    if real is not None:
        small = weft.load(real, backend="torch")
    else:
        words = learn(["the quick brown fox jumps over the lazy dog by the bank of a river"] * 3, "wordpiece", 120)
        small = saved(random_encoder("1x64" if smoke else "6x384", words), "embed", folder / "minilm")
    models: dict[str, Model] = {}
    for name in names:
        if name == "minilm":
            models[name] = small
            continue
        opened = random_encoder("1x64" if smoke else "12x768", small.tokenizer, heads=2 if smoke else 12)
        models[name] = saved(opened, "embed", folder / name)
    return models


def classifier(model: Model, folder: Path) -> Model:
    """The same encoder with a drawn head for two labels; its bias makes it sure of all, since near a tie none agree."""
    opened = weft.new("bert", model.tokenizer, settings=_sizes(model.config), heads={"classify": 2}).opened
    stored = model.network.state_dict()
    missing = opened.network.load_state_dict(
        {name: stored[name] for name in stored if "heads." not in name}, strict=False
    )
    assert not missing.unexpected_keys
    head: Any = opened.network.heads["classify"]
    with torch.no_grad():
        head.output.bias.copy_(torch.tensor([-1.0, 1.0]))
    return saved(replace(opened, card=replace(opened.card, labels=("no", "yes"))), "classify", folder)


def _sizes(config: Any) -> dict[str, Any]:
    names = ("vocabulary", "layers", "width", "heads", "inner", "context", "activation", "norm_epsilon", "segments")
    return {name: vars(config)[name] for name in names}


def figures(report: EncodeReport) -> list[dict[str, Any]]:
    """A row for each profile: milliseconds of all, and how the chosen backend stands to the fastest peer."""
    rows = []
    for profile in report.profiles:
        ours, theirs = report.fastest(profile.name, True), report.fastest(profile.name, False)
        speeds = {each.name: each.speeds[profile.name] for each in report.contestants if profile.name in each.speeds}
        assert ours is not None
        mine = speeds[ours.name].seconds
        row: dict[str, Any] = {
            **{"work": profile.name, "tokens": profile.tokens, "before": "torch", "chosen": ours.name},
            "milliseconds": {name: round(1e3 * speed.seconds, 3) for name, speed in speeds.items()},
            "quartiles": {
                name: [round(1e3 * speed.low, 3), round(1e3 * speed.high, 3)] for name, speed in speeds.items()
            },
            "tokens per second": {name: round(speed.tokens) for name, speed in speeds.items()},
            "chosen over before": round(speeds["torch"].seconds / mine, 2),
        }
        if theirs is not None:
            row |= {"fastest peer": theirs.name, "chosen over it": round(speeds[theirs.name].seconds / mine, 3)}
        for name in ("transformers", "transformers pipeline", "sentence-transformers"):
            if name in speeds:
                row[f"chosen over {name}"] = round(speeds[name].seconds / mine, 2)
        rows.append(row)
        print(json.dumps(row), flush=True)
    return rows


def openvino_calls(library: Any, model: Model, folder: Path) -> tuple[dict[str, Callable[..., Any]], dict[str, str]]:
    """By name what embeds texts by OpenVINO's CPU plugin, in rectangles of similar length; and what it cannot run."""
    calls: dict[str, Callable[..., Any]] = {}
    refused: dict[str, str] = {}
    for name, precision, inside in (("fp32", "fp32", "f32"), ("bf16", "fp32", "bf16"), ("int8", "int8", "f32")):
        (folder / name).mkdir(parents=True, exist_ok=True)
        write_onnx(folder / name, model.opened, model.task, precision)  # type: ignore[arg-type]
        settings = {"INFERENCE_PRECISION_HINT": inside, "INFERENCE_NUM_THREADS": torch.get_num_threads()}
        settings |= {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1}
        try:
            graph = library.Core().compile_model(str(folder / name / GRAPH), "CPU", settings)
            request, inputs = graph.create_infer_request(), [each.get_any_name() for each in graph.inputs]

            def embed(texts: Sequence[str], request: Any = request, inputs: Any = inputs) -> list[Any]:
                vectors: list[Any] = [None] * len(texts)
                for group in grouped([len(ids) for ids in tokenizer_of(model.opened).ids(list(texts))], padding=True):
                    ids, mask = rectangle(model, [texts[number] for number in group], model.config.context)
                    fed = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
                    hidden = request.infer({name: fed[name] for name in inputs})[0]
                    pooled = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
                    for number, vector in zip(group, pooled, strict=True):
                        vectors[number] = vector / np.linalg.norm(vector)
                return vectors

            embed(["a text"])
            calls[f"openvino {name}"] = embed
        except RuntimeError as error:
            refused[f"openvino {name}"] = " ".join(str(error).split())[-160:]
    return calls, refused


def beside_openvino(model: Model, profiles: Sequence[Profile], given: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of a call by OpenVINO and by our backends, and how far its vectors turn from those of torch."""
    library = peer("openvino")
    calls, refused = ({}, {}) if library is None else openvino_calls(library, model, given.out / "openvino")
    for name in ("onednn-bf16", "onnx", "onnx-int8"):
        try:
            if BACKENDS[name].precision:
                prepare_export(model, name)
            fast = answering_by(model, name)
            fast(["a text"])
            calls[name] = fast
        except UserError as error:  # no such package, or no such instructions
            refused[name] = str(error)
    texts = [text for profile in profiles for text in profile.inputs[:16]]
    exact = [np.array(each.values) for each in model(texts)]
    turned = {}
    for name, call in calls.items():
        vectors = [np.array(getattr(each, "values", each)) for each in call(texts)]
        cosines = [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in zip(exact, vectors, strict=True)]
        turned[name] = float(f"{max(0.0, 1 - min(cosines)):.2g}")
    times = {profile.name: race(calls, profile, given.seconds) if calls else {} for profile in profiles}
    rows = {work: {name: round(1e3 * speed.seconds, 3) for name, speed in one.items()} for work, one in times.items()}
    print(json.dumps(rows), refused, flush=True)
    version = version_of("openvino")
    return {"openvino": version, "milliseconds": rows, "1 - cosine, at most": turned, "refused": refused}


def beside_compiled(model: Model, profiles: Sequence[Profile], given: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of a pass through the network, compiled for exactly these lengths and not."""
    rows: dict[str, dict[str, float]] = {}
    for profile in profiles:
        torch._dynamo.reset()
        ids = tokenizer_of(model.opened).ids(list(profile.inputs)[: profile.batch])
        ragged = Ragged.of([each[: min(map(len, ids))] for each in ids])
        networks: dict[str, Any] = {"torch": model.network, "onednn": onednn.network_of(model.opened, "onednn")}
        networks["compiled"] = torch.compile(model.network, dynamic=False)

        def call(texts: Sequence[str], network: Any, ragged: Ragged = ragged) -> Any:
            return network(ragged.tokens, ragged.rows)

        calls = {name: partial(call, network=network) for name, network in networks.items()}
        with torch.inference_mode():
            begin = time.perf_counter()
            calls["compiled"]([])
            compiling = time.perf_counter() - begin
            speeds = race(calls, profile, given.seconds)
        rows[profile.name] = {name: round(1e3 * speed.seconds, 3) for name, speed in speeds.items()}
        rows[profile.name]["seconds to compile"] = round(compiling, 1)
        print(json.dumps({profile.name: rows[profile.name]}), flush=True)
    return {"milliseconds": rows}


def measure(part: str, model: Model, given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """One part of the works: texts of one length, of mixed lengths, or of mixed lengths through a head for labels."""
    options: dict[str, Any] = {"seconds": given.seconds, "memory": False, "keep": False, "log": print}
    peers, most = PEERS, model.config.context
    fixed = [(str(min(length, most)), min(batch, 2) if given.smoke else batch) for length, batch in FIXED]
    if part in ("openvino", "compile"):
        profiles = [profile for length, batch in fixed for profile in profiles_of(model, [length], [batch])]
        if part == "compile":
            return beside_compiled(model, profiles, given)
        return beside_openvino(model, [*profiles, *profiles_of(model, ["mixed"], [1], given.mixed)], given)
    if part == "lengths":
        profiles = [profile for length, batch in fixed for profile in profiles_of(model, [length], [batch])]
    else:
        if part == "labels":
            model, peers = classifier(model, folder), PEERS[:1]
            options["backends"] = ["onednn", "onednn-bf16", "onnx-int8"]
        profiles = profiles_of(model, ["mixed"], [1], given.mixed)
    profiles = [profile for profile in profiles if not given.works or profile.name in given.works.split(",")]
    report = encode_report(model, profiles, against=() if given.smoke else peers, **options)
    refused = {each.name: each.refused for each in report.contestants if each.refused is not None}
    overall = report.choice
    assert overall is not None
    print(f"{part}: over all of these {overall.backend}, {overall.faster:.2f} x torch; refused: {refused}", flush=True)
    chosen = {"backend": overall.backend, "over torch": round(overall.faster, 2)}
    return {"works": figures(report), "chosen over all of these": chosen, "refused": refused}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="minilm,bert-base")
    parser.add_argument("--parts", default="lengths,mixed,labels")
    parser.add_argument("--works", default="", help="of a part, by name; all others keep their figures")
    parser.add_argument("--mixed", type=int, default=256, help="texts of mixed lengths")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each contestant and work, after two rounds")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("encode_cpu"), help="folder for models")
    parser.add_argument("--result", type=Path, default=RESULTS / "encode_cpu.json")
    given = parse(parser, mixed=6, seconds=0.01)
    torch.set_num_threads(given.threads)
    results = json.loads(given.result.read_text()) if given.result.exists() else {}
    for name, model in encoders(given.models.split(","), given.smoke, given.out).items():
        for part in given.parts.split(","):
            measured = measure(part, model, given, given.out / f"{name}-classifier")
            if given.works:  # the choice over all works is that of the run that measured all
                before = results.get(name, {}).get(part, {"works": []})
                new = {row["work"]: row for row in measured["works"]}
                kept = [new.pop(row["work"], row) for row in before["works"]]
                measured = {**measured, **before, "works": [*kept, *new.values()]}
            results[name] = {**results.get(name, {}), "texts of mixed lengths": given.mixed, part: measured}
            versions = {package: version_of(package) for package in PEERS}
            results["machine"] = {"cpu": cpu_name(), "threads": given.threads, "about": machine(), **versions}
            write(given.result, results)


if __name__ == "__main__":
    main()

"""Small models beside their teachers: what distillation, quantization and the other ways keep, and what they save.

    python benchmarks/distill.py --run JOB... --data DIR --weights DIR --out FOLDER   some jobs, one after the other
    python benchmarks/distill.py --all --processes 5 --data DIR --weights DIR --out FOLDER [--only reviews,words]
    python benchmarks/distill.py --here TEACHER STUDENT --data DIR --out FILE.json   speed and the gate on this machine
    python benchmarks/distill.py --table FOLDER [FILE.json]

DIR holds imdb, wikiann_en, squadshifts, xquad, multi30k and glue as `benchmarks/carry.py` gathers them; weights:
all-MiniLM-L6-v2. Each job leaves FOLDER/JOB.json and, where it trains a model, the run folder FOLDER/JOB. Jobs wait for
those that they build on. Which step is kept is decided on held-out rows, never on the test data.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import lzma
import math
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from common import machine, parse, write
from finetune import file_for
from translate import ARCHITECTURES, TINY, files

import weft

GPU = torch.cuda.is_available()


def parameters(model: weft.Model) -> int:
    return sum(parameter.numel() for parameter in model.network.parameters())


def scored(model: weft.Model, *data: Any, **options: Any) -> dict[str, Any]:
    """Scores with intervals."""
    model = model.to("cuda") if GPU else model
    found = model.evaluate(*data, **options)
    scores = {name: [score.value, score.low, score.high] for name, score in found.scores.items()}
    return {"scores": scores, "examples": found.examples, "parameters": parameters(model)}


@dataclass(frozen=True)
class Place:
    """Where a job finds what it needs, and whether it is only tried out."""

    data: Path
    weights: Path
    out: Path
    tiny: bool = False

    def file(self, name: str) -> str:
        return str(self.data / name)

    def plan(self, **settings: Any) -> dict[str, Any]:
        """The section [training]."""
        return {**settings, **({"steps": 1, "epochs": None, "batch": 8, "compile": False} if self.tiny else {})}

    def size(self, name: str) -> str:
        """Layers x width of a model, after the name of its family where there is one."""
        return re.sub(r"\d+x\d+$", "1x64", name) if self.tiny else name

    def tokens(self, count: int) -> int:
        """How large a vocabulary is."""
        return 200 if self.tiny else count

    def student(self, settings: dict[str, Any]) -> dict[str, Any]:
        """The section [student]."""
        sizes = {"vocabulary": self.tokens(settings["vocabulary"])} if "vocabulary" in settings else {}
        return {**settings, "model": self.size(settings["model"]), **sizes}

    def architecture(self, **sizes: Any) -> dict[str, Any]:
        """The section [model] of a Transformer that translates."""
        return {**ARCHITECTURES["transformer"], **sizes, **(TINY if self.tiny else {})}


# ------------------------------------------------------------------------------------------------- reviews (IMDb)

SMALL = {"model": "3x256", "vocabulary": 10_000, "settings": {"context": 512}}
REVIEWS = {"columns": {"text": "text", "label": "label"}}


def reviews_teacher(place: Place, out: str) -> dict[str, Any]:
    model = weft.finetune(
        settings={
            "data": {"files": [place.file("imdb/train.tsv.xz")], "holdout": 0.05, **REVIEWS},
            "task": {"name": "classify"},
            "model": {"base": str(place.weights)},
            "training": place.plan(epochs=2.0, learning_rate=3e-5, evaluate_every=1 << 30),
            "out": out,
        }
    )
    return scored(model, place.file("imdb/test.tsv.xz"))


def reviews_vocabulary(place: Place, out: str) -> dict[str, Any]:
    """The teacher's tokens that reviews use most; every student reads by them, so that only the learning differs."""
    from weft.pruning.prune import chosen, counted
    from weft.text.records import read_texts
    from weft.text.tokenizers.pruning import pruned_tokenizer

    tokenizer = weft.load(place.weights).tokenizer
    assert tokenizer is not None
    texts = (document.text for document in read_texts([place.file("imdb/unsup.txt.xz")]))
    kept = chosen([tokenizer], counted(tokenizer, texts), place.tokens(SMALL["vocabulary"]))
    pruned, kept = pruned_tokenizer(tokenizer, kept)
    pruned.save(out)
    return {"tokens": len(kept), "of": tokenizer.vocabulary}


def small(place: Place) -> dict[str, Any]:
    own = str(place.out / "reviews-vocabulary")
    return {"model": place.size("3x256"), "tokenizer": own, "settings": SMALL["settings"]}


def reviews_words(place: Place, out: str) -> dict[str, Any]:
    """The student's first schooling: masked words of the unlabeled reviews."""
    model = weft.pretrain(
        settings={
            "model": {"family": "bert", "size": place.size("3x256"), "context": 512},
            "tokenizer": {"folder": str(place.out / "reviews-vocabulary")},
            "text": {"files": [place.file("imdb/unsup.txt.xz")], "holdout": 0.01},
            "objective": {"name": "mlm", "rows": "stream", "length": 256},
            "training": place.plan(steps=12_000, batch=128, learning_rate=1e-3, compile=GPU, evaluate_every=6000),
            "out": out,
        }
    )
    return {"loss": {metric.name: metric.value for metric in model.card.metrics}}


def reviews_labels(place: Place, out: str, base: str | None = None) -> dict[str, Any]:
    """The same student on the labels alone, from nothing or after its first schooling."""
    fresh = {"family": "bert", "size": place.size("3x256"), "context": 512}
    tokenizer = {} if base else {"tokenizer": {"folder": str(place.out / "reviews-vocabulary")}}
    model = weft.finetune(
        settings={
            "data": {"files": [place.file("imdb/train.tsv.xz")], "holdout": 0.05, **REVIEWS},
            "task": {"name": "classify"},
            "model": {"base": str(place.out / base)} if base else fresh,
            "training": place.plan(epochs=4.0 if base else 6.0, learning_rate=1e-4 if base else 3e-4),
            "out": out,
            **tokenizer,
        }
    )
    return scored(model, place.file("imdb/test.tsv.xz"))


def reviews_distilled(place: Place, out: str, student: dict[str, Any], **training: Any) -> dict[str, Any]:
    """A student that listens to the teacher on all reviews, labeled or not."""
    model = weft.distill(
        settings={
            "teacher": {"folders": [str(place.out / "reviews-teacher")]},
            "student": place.student(student),
            "data": {
                "text": [place.file("imdb/unsup.txt.xz")],
                "files": [place.file("imdb/train.tsv.xz")],
                "holdout": 0.05,
                **REVIEWS,
            },
            "distill": {"hard": 0.3},
            "training": place.plan(**training),
            "out": out,
        }
    )
    return {**scored(model, place.file("imdb/test.tsv.xz")), **told(out)}


def told(out: str) -> dict[str, Any]:
    """What the run wrote down of itself."""
    about = json.loads((Path(out) / "run" / "run.json").read_text())
    lines = [json.loads(line) for line in (Path(out) / "run" / "metrics.jsonl").read_text().splitlines()]
    return {
        "texts": about.get("rows"),
        "teacher forwards": about.get("teacher_forwards"),
        "seconds of training": max((line.get("seconds", 0.0) for line in lines), default=None),
    }


# ------------------------------------------------------------- DistilBERT's own setting, at a small scale (words)


def words_teacher(place: Place, out: str) -> dict[str, Any]:
    model = weft.pretrain(
        settings={
            "model": {"family": "bert", "size": place.size("6x384"), "context": 256},
            "tokenizer": {"kind": "wordpiece", "size": place.tokens(16_000)},
            "text": {"files": [place.file("imdb/unsup.txt.xz")], "holdout": 0.01},
            "objective": {"name": "mlm", "rows": "stream", "length": 256},
            "training": place.plan(steps=5_000, batch=128, learning_rate=7e-4, compile=GPU, evaluate_every=2500),
            "out": out,
        }
    )
    return {"loss": {metric.name: metric.value for metric in model.card.metrics}, "parameters": parameters(model)}


def words_student(place: Place, out: str) -> dict[str, Any]:
    """Half of the layers, from every second one, by soft words, masked words and the direction of hidden states."""
    model = weft.distill(
        settings={
            "teacher": {"folders": [str(place.out / "words-teacher")]},
            "student": {"model": place.size("3x384"), "start": "layers"},
            "data": {"text": [place.file("imdb/unsup.txt.xz")]},
            "distill": {"pretrain": True},
            "training": place.plan(steps=2_500, batch=128, learning_rate=5e-4, evaluate_every=1250),
            "out": out,
        }
    )
    return {"loss": {metric.name: metric.value for metric in model.card.metrics}, "parameters": parameters(model)}


def words_tuned(place: Place, out: str, base: str) -> dict[str, Any]:
    """A base fine-tuned on SST-2, scored on its published dev rows."""
    model = weft.finetune(
        settings={
            "data": {"files": [place.file("glue/sst2/train.tsv.xz")], "holdout": 0.02},
            "task": {"name": "classify", "length": 128},
            "model": {"base": str(place.out / base)},
            "training": place.plan(epochs=3.0, learning_rate=5e-5),
            "out": out,
        }
    )
    return scored(model, place.file("glue/sst2/dev.tsv.xz"))


# ------------------------------------------------------------------------------- entities, questions, translation

HALF = {"model": "4x384", "start": "layers", "vocabulary": 10_000}  # of the 22.6 million parameters, 11.1
FIVE = {"model": "5x384", "start": "layers", "vocabulary": 5_600}  # as many, spent otherwise


def conll(place: Place, split: str) -> str:
    """A file of wikiann_en without the prefix that its words carry."""
    scratch = place.out / "wikiann_en"
    scratch.mkdir(parents=True, exist_ok=True)
    return file_for(place.data, "wikiann_en", f"wikiann_en/{split}.xz", scratch)


def entities_teacher(place: Place, out: str) -> dict[str, Any]:
    model = weft.finetune(
        settings={
            "data": {"files": [conll(place, "train")], "dev": [conll(place, "dev")], "format": "conll"},
            "task": {"name": "tag"},
            "model": {"base": str(place.weights)},
            "training": place.plan(epochs=4.0, learning_rate=1e-4),
            "out": out,
        }
    )
    return scored(model, conll(place, "test"), format="conll")


def entities_student(place: Place, out: str) -> dict[str, Any]:
    model = weft.distill(
        settings={
            "teacher": {"folders": [str(place.out / "entities-teacher")]},
            "student": place.student(HALF),
            "data": {"files": [conll(place, "train")], "dev": [conll(place, "dev")], "format": "conll"},
            "training": place.plan(epochs=8.0, learning_rate=2e-4),
            "out": out,
        }
    )
    return {**scored(model, conll(place, "test"), format="conll"), **told(out)}


def sentences_teacher(place: Place, out: str) -> dict[str, Any]:
    """SST-2, scored on its published dev rows."""
    model = weft.finetune(
        settings={
            "data": {"files": [place.file("glue/sst2/train.tsv.xz")], "holdout": 0.02},
            "task": {"name": "classify"},
            "model": {"base": str(place.weights)},
            "training": place.plan(epochs=2.0, learning_rate=5e-5),
            "out": out,
        }
    )
    return scored(model, place.file("glue/sst2/dev.tsv.xz"))


def sentences_student(place: Place, out: str, student: dict[str, Any]) -> dict[str, Any]:
    """A student of another family."""
    model = weft.distill(
        settings={
            "teacher": {"folders": [str(place.out / "sentences-teacher")]},
            "student": place.student(student),
            "data": {"files": [place.file("glue/sst2/train.tsv.xz")], "holdout": 0.02},
            "training": place.plan(epochs=6.0, batch=128),
            "out": out,
        }
    )
    return {**scored(model, place.file("glue/sst2/dev.tsv.xz")), **told(out)}


ANSWERED = ("squadshifts/new_wiki_v1.0.json.xz", "squadshifts/reddit_v1.0.json.xz")
UNANSWERED = "squadshifts/amazon_reviews_v1.0.json.xz"


def questions_teacher(place: Place, out: str) -> dict[str, Any]:
    model = weft.finetune(
        settings={
            "data": {"files": [place.file(name) for name in ANSWERED]},
            "task": {"name": "answer"},
            "model": {"base": str(place.weights)},
            "training": place.plan(epochs=3.0, learning_rate=1e-4),
            "out": out,
        }
    )
    return scored(model, place.file("xquad/xquad.en.json.xz"))


def questions_student(place: Place, out: str, student: dict[str, Any], **training: Any) -> dict[str, Any]:
    """The rows of the teacher, and questions about other texts without their answers."""
    from weft.text.records import read_records

    unanswered = Path(f"{out}.jsonl")
    with unanswered.open("w", encoding="utf-8") as file:
        for record in read_records(place.file(UNANSWERED)):
            row = {key: record.values[key] for key in ("question", "context")}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    model = weft.distill(
        settings={
            "teacher": {"folders": [str(place.out / "questions-teacher")]},
            "student": place.student(student),
            "data": {"files": [*(place.file(name) for name in ANSWERED), str(unanswered)]},
            "training": place.plan(**training),
            "out": out,
        }
    )
    return {**scored(model, place.file("xquad/xquad.en.json.xz")), **told(out)}


def written(place: Place) -> dict[str, list[str]]:
    source, target = files(place.data, "train")
    dev_source, dev_target = files(place.data, "val")
    return {"source": [source], "target": [target], "dev_source": [dev_source], "dev_target": [dev_target]}


def translated(model: weft.Model, place: Place) -> dict[str, Any]:
    source, target = files(place.data, "test_2016_flickr")
    return scored(model, source=source, target=target)


def translation_teacher(place: Place, out: str) -> dict[str, Any]:
    model = weft.finetune(
        settings={
            "data": written(place),
            "task": {"name": "translate", "metric": "bleu"},
            "model": place.architecture(),
            "training": place.plan(epochs=50.0, learning_rate=1e-3),
            "out": out,
        }
    )
    return translated(model, place)


def translation_student(place: Place, out: str) -> dict[str, Any]:
    """Less than half of the teacher, on what the teacher writes."""
    settings = {"dropout": 0.1, "embedding_dropout": 0.1, "context": 256}
    model = weft.distill(
        settings={
            "teacher": {"folders": [str(place.out / "translation-teacher")]},
            "student": {"model": place.size("2x192"), "settings": settings},
            "data": written(place),
            "distill": {"hard": 0.0, "metric": "bleu"},
            "training": place.plan(epochs=60.0, learning_rate=1.5e-3),
            "out": out,
        }
    )
    return {**translated(model, place), **told(out)}


def translation_alone(place: Place, out: str) -> dict[str, Any]:
    """The same student on the people's translations."""
    model = weft.finetune(
        settings={
            "data": written(place),
            "task": {"name": "translate", "metric": "bleu"},
            "model": place.architecture(width=192, heads=3, layers=2, inner=768),
            "tokenizer": {"folder": str(place.out / "translation-teacher")},
            "training": place.plan(epochs=60.0, learning_rate=1.5e-3),
            "out": out,
        }
    )
    return translated(model, place)


# ----------------------------------------------------------------------------------------------- on this machine


def some_rows(place: Place, scratch: Path, count: int, seed: int = 0) -> str:
    """A sample of the test reviews, for which two cores need minutes rather than hours."""
    with lzma.open(place.file("imdb/test.tsv.xz"), "rt", encoding="utf-8") as file:
        header, *rows = [line for line in file.read().split("\n") if line]
    random.Random(seed).shuffle(rows)
    path = scratch / f"reviews-{seed}.tsv"
    path.write_text("\n".join([header, *rows[:count]]) + "\n", encoding="utf-8")
    return str(path)


def here(teacher: Path, student: Path, place: Place, rows: int) -> dict[str, Any]:
    """Speed of a teacher and its student, what the gate makes of the student, and what becomes of a damaged one."""
    from weft.quantization.quantize import Refused

    torch.set_num_threads(1 if place.tiny else 2)
    found: dict[str, Any] = {"machine": machine()}
    brief = {"texts": 4, "seconds": 0.1} if place.tiny else {}  # of what is timed
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        dev, test = some_rows(place, scratch, rows, 1), some_rows(place, scratch, rows, 2)
        try:
            gate = weft.quantize(student, dev, out=scratch / "chosen", max_drop=0.5, **brief)
        except Refused as refused:
            gate = refused.result
        print(*("  ".join(row) for row in gate.rows()[1]), sep="\n", file=sys.stderr, flush=True)
        found["gate"] = without_texts(gate.values())
        models = [teacher, student, *([scratch / "chosen"] if gate.chosen else [])]
        beside = weft.compare(models, test, memory=not place.tiny, **brief)
        found["compared"] = without_texts(beside.values())
        for _, header, lines in beside.tables()[:1]:
            print(*("  ".join(row) for row in [header, *lines]), sep="\n", file=sys.stderr, flush=True)
        found["half the layers"] = half_the_layers(teacher, place, test, scratch, **brief)
        found["damage"] = damage(student, dev, scratch, **brief)
        found["reading"] = reading(teacher, place, scratch)
    return found


def without_texts(values: Any) -> Any:
    """The figures alone: what people wrote stays where it is."""
    if isinstance(values, dict):
        return {name: without_texts(value) for name, value in values.items() if name != "disagreements"}
    return [without_texts(value) for value in values] if isinstance(values, list) else values


def half_the_layers(teacher: Path, place: Place, test: str, scratch: Path, **brief: Any) -> dict[str, float]:
    """How much faster 3 layers of 384 are than 6: speed is decided by the sizes, so fresh weights do."""
    from weft.comparison.cost import measure

    with open(test, encoding="utf-8") as file:
        texts = [line.rsplit("\t", 1)[1].strip()[:500] for line in itertools.islice(file, 1, 101)]
    tokenizer = weft.load(teacher).tokenizer
    folders = [scratch / "six", scratch / "three"]
    for folder, size in zip(folders, ("6x384", "3x384"), strict=True):
        model = weft.new("bert", tokenizer, size=place.size(size), settings={"context": 256}, heads={"classify": 2})
        model.opened = replace(model.opened, card=replace(model.card, task="classify"))
        model.save(folder)
    models = [weft.load(folder) for folder in folders]
    six, three = measure(models, texts, folders, memory=False, **brief)[1]
    return {"one text": six.p50 / three.p50, "many": three.per_second / six.per_second}


def damage(student: Path, dev: str, scratch: Path, **brief: Any) -> dict[str, str]:
    """A model whose head says the opposite, at every door: comparing, exporting, quantizing."""
    from weft.exporters import export as exporting
    from weft.quantization import quantize as quantizing

    def turned(model: weft.Model) -> weft.Model:
        model = copy.deepcopy(model)
        network: Any = model.network
        network.heads["classify"].output.weight.data.neg_()
        return model

    turned(weft.load(student)).save(scratch / "damaged")
    said = {"compare": "; ".join(weft.compare([student, scratch / "damaged"], dev, costs=False).refused)}
    way, write = exporting.WAYS["onnx"], quantizing.write_candidate
    try:
        exporting.WAYS["onnx"] = lambda inside, opened, task: way(inside, turned(weft.Model(opened, task)).opened, task)
        quantizing.write_candidate = lambda kind, inside, model, texts: write(kind, inside, turned(model), texts)
        for name, attempt in (
            ("export", lambda: weft.export(student, "onnx", out=scratch / "bad-export", data=dev)),
            ("quantize", lambda: weft.quantize(student, dev, out=scratch / "bad-int8", kinds=["onnx-int8"], **brief)),
        ):
            try:
                attempt()
                said[name] = "was let through"
            except weft.UserError as error:
                said[name] = re.sub(r"on '.*?'; ", "on one of the reviews; ", str(error))
    finally:
        exporting.WAYS["onnx"], quantizing.write_candidate = way, write
    return said


def reading(teacher: Path, place: Place, scratch: Path) -> dict[str, int]:
    """Texts that a teacher reads for one epoch, for three, and for another student of the same texts."""
    with lzma.open(place.file("imdb/unsup.txt.xz"), "rt", encoding="utf-8") as file:
        lines = itertools.islice(file, 12 if place.tiny else 200)
        (scratch / "texts.txt").write_text("".join(line[:400].strip() + "\n" for line in lines))
    forwards = {}
    before = os.environ.get("WEFT_CACHE")
    for name, student, epochs in (("one epoch", "1x64", 1), ("three epochs", "1x64", 3), ("again", "1x128", 2)):
        if name != "again":  # each of the first two begins with nothing in the cache
            os.environ["WEFT_CACHE"] = str(scratch / f"cache {name}")
        out = scratch / name.replace(" ", "-")
        weft.distill(teacher, text=scratch / "texts.txt", student=student, out=out, training={"epochs": float(epochs)})
        forwards[name] = json.loads((out / "run" / "run.json").read_text())["teacher_forwards"]
    os.environ.pop("WEFT_CACHE") if before is None else os.environ.update(WEFT_CACHE=before)
    return forwards


# ----------------------------------------------------------------------------------------------------- the table

PAIRS = (  # teacher, student, score
    ("reviews-teacher", "reviews-labels", "accuracy"),
    ("reviews-teacher", "reviews-distilled", "accuracy"),
    ("reviews-teacher", "reviews-labels-after-words", "accuracy"),
    ("reviews-teacher", "reviews-distilled-after-words", "accuracy"),
    ("reviews-teacher", "reviews-own-tokens", "accuracy"),
    ("sentences-teacher", "sentences-lstm", "accuracy"),
    ("words-teacher-tuned", "words-student-tuned", "accuracy"),
    ("entities-teacher", "entities-student", "f1"),
    ("questions-teacher", "questions-student", "f1"),
    ("questions-teacher", "questions-student-five-layers", "f1"),
    ("translation-teacher", "translation-alone", "bleu"),
    ("translation-teacher", "translation-student", "bleu"),
)


def table(folder: Path, measured: Path | None) -> None:
    print("| student | score | teacher | student | kept | parameters |\n|---|---|---|---|---|---|")
    for teacher, student, name in PAIRS:
        paths = [folder / f"{each}.json" for each in (teacher, student)]
        if not all(path.exists() for path in paths):
            continue
        first, second = (json.loads(path.read_text()) for path in paths)
        (value, *_), (own, low, high) = first["scores"][name], second["scores"][name]
        share = second["parameters"] / first["parameters"]
        kept = 100 * own / value if value else math.nan
        print(
            f"| {student} | {name} | {value:.4g} | {own:.4g} ({low:.4g} to {high:.4g}) | {kept:.1f} % | "
            f"{second['parameters'] / 1e6:.1f} of {first['parameters'] / 1e6:.1f} M ({100 * share:.0f} %) |"
        )
    if measured is None:
        return
    found = json.loads(measured.read_text())
    print(f"\n{found['machine']}\n\n| model | accuracy | p50 ms | p95 ms | texts/s | MB |\n|---|---|---|---|---|---|")
    models = found["compared"]["models"]
    first = models[0]["costs"]
    for each in models:
        costs, score = each["costs"], each["scores"]["accuracy"]["value"]
        faster = f"{first['p50'] / costs['p50']:.2f} x", f"{costs['per_second'] / first['per_second']:.2f} x"
        print(
            f"| {each['name']} | {score:.4f} | {costs['p50']:.1f} ({faster[0]}) | {costs['p95']:.1f} | "
            f"{costs['per_second']:.1f} ({faster[1]}) | {costs['bytes'] / 1e6:.1f} |"
        )
    print("\n| candidate | faster than the student in fp32 | the gate |\n|---|---|---|")
    for each in found["gate"]["candidates"]:
        chosen = "chosen" if each["kind"] == found["gate"]["chosen"] else "passes"
        faster = "-" if each["faster"] is None else f"{each['faster']:.2f} x"
        print(f"| {each['kind']} | {faster} | {each['refused'] or chosen} |")
    print(f"\nthree layers for six: {json.dumps(found['half the layers'])}")
    print(f"\ndamaged: {json.dumps(found['damage'])}\ntexts that the teacher read: {json.dumps(found['reading'])}")


# --------------------------------------------------------------------------------------------------------- the jobs


@dataclass(frozen=True)
class Job:
    run: Callable[[Place, str], dict[str, Any]]
    needs: tuple[str, ...] = ()


LISTENED = {"batch": 64, "evaluate_every": 1200}
JOBS: dict[str, Job] = {
    "reviews-teacher": Job(reviews_teacher),
    "reviews-vocabulary": Job(reviews_vocabulary),
    "reviews-words": Job(reviews_words, ("reviews-vocabulary",)),
    "reviews-labels": Job(reviews_labels, ("reviews-vocabulary",)),
    "reviews-labels-after-words": Job(lambda p, out: reviews_labels(p, out, "reviews-words"), ("reviews-words",)),
    "reviews-distilled": Job(
        lambda p, out: reviews_distilled(p, out, small(p), epochs=8.0, learning_rate=5e-4, **LISTENED),
        ("reviews-teacher", "reviews-vocabulary"),
    ),
    "reviews-distilled-after-words": Job(
        lambda p, out: reviews_distilled(
            p, out, {"model": str(p.out / "reviews-words")}, epochs=6.0, learning_rate=2e-4, **LISTENED
        ),
        ("reviews-teacher", "reviews-words"),
    ),
    "reviews-own-tokens": Job(
        lambda p, out: reviews_distilled(
            p,
            out,
            {"model": "3x256", "tokenizer": "learned", "vocabulary": 8000, "settings": SMALL["settings"]},
            epochs=4.0,
            learning_rate=5e-4,
            **LISTENED,
        ),
        ("reviews-teacher",),
    ),
    "words-teacher": Job(words_teacher),
    "words-student": Job(words_student, ("words-teacher",)),
    "words-teacher-tuned": Job(lambda p, out: words_tuned(p, out, "words-teacher"), ("words-teacher",)),
    "words-student-tuned": Job(lambda p, out: words_tuned(p, out, "words-student"), ("words-student",)),
    "entities-teacher": Job(entities_teacher),
    "entities-student": Job(entities_student, ("entities-teacher",)),
    "questions-teacher": Job(questions_teacher),
    "questions-student": Job(
        lambda p, out: questions_student(p, out, HALF, epochs=12.0, learning_rate=3e-4, batch=64),
        ("questions-teacher",),
    ),
    "questions-student-five-layers": Job(
        lambda p, out: questions_student(p, out, FIVE, epochs=10.0, learning_rate=2e-4), ("questions-teacher",)
    ),
    "sentences-teacher": Job(sentences_teacher),
    "sentences-lstm": Job(
        lambda p, out: sentences_student(p, out, {"model": "lstm:1x256", "vocabulary": 10_000}), ("sentences-teacher",)
    ),
    "translation-teacher": Job(translation_teacher),
    "translation-student": Job(translation_student, ("translation-teacher",)),
    "translation-alone": Job(translation_alone, ("translation-teacher",)),
}


def run(name: str, place: Place) -> dict[str, Any]:
    begin = time.perf_counter()
    found = JOBS[name].run(place, str(place.out / name))
    found = {"job": name, "machine": machine(), "seconds in all": round(time.perf_counter() - begin, 1), **found}
    write(place.out / f"{name}.json", found)
    print(json.dumps(found), file=sys.stderr, flush=True)
    return found


def run_all(names: list[str], place: Place, processes: int) -> None:
    """Each job in a process of its own, as soon as those that it builds on are done; one that fails stops no other."""

    def alone(name: str) -> None:
        command = [sys.executable, __file__, "--run", name, "--data", place.data, "--weights", place.weights]
        with (place.out / f"{name}.log").open("w") as log:
            subprocess.run([*map(str, command), "--out", str(place.out)], stdout=log, stderr=log)

    waiting, running = list(names), {}
    with ThreadPoolExecutor(processes) as pool:
        while waiting or running:
            for name in list(waiting):
                needs = [need for need in JOBS[name].needs if need in names]
                if any(need in waiting or need in running.values() for need in needs):
                    continue
                waiting.remove(name)
                missing = [need for need in JOBS[name].needs if not (place.out / f"{need}.json").exists()]
                if missing:
                    print(f"{name}: left out, since {', '.join(missing)} failed", file=sys.stderr, flush=True)
                    continue
                running[pool.submit(alone, name)] = name
            done, _ = wait(running, return_when=FIRST_COMPLETED) if running else (set(), None)
            for future in done:
                name = running.pop(future)
                good = (place.out / f"{name}.json").exists()
                print(f"{name}: {'done' if good else 'FAILED'}", file=sys.stderr, flush=True)


def smoke(place: Place, rows: int) -> None:
    """A job of each kind, one after the other in this process, then the speed, the gate and the table."""
    kinds = ("reviews", "entities", "questions", "translation")
    for name in ("reviews-vocabulary", *(f"{kind}-teacher" for kind in kinds), "reviews-distilled", "words-teacher"):
        run(name, place)
    for name in ("words-student", *(f"{kind}-student" for kind in kinds[1:])):
        run(name, place)
    measured = place.out / "here" / "here.json"
    write(measured, here(place.out / "reviews-teacher", place.out / "reviews-distilled", place, rows))
    table(place.out, measured)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", nargs="+", choices=JOBS, default=[], metavar="JOB", help=", ".join(JOBS))
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--only", default="", help="with --all: jobs whose names begin so, a,b,c")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("WEFT_DATA", ".")))
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/distill"))
    parser.add_argument("--here", nargs=2, type=Path, metavar=("TEACHER", "STUDENT"), help="two folders of reviews")
    parser.add_argument("--rows", type=int, default=400, help="with --here: reviews to judge by")
    parser.add_argument("--table", nargs="+", type=Path, metavar="FOLDER [FILE.json]")
    asked = parse(parser, rows=16)
    if asked.smoke:
        return smoke(Place(asked.data, asked.weights, asked.out, tiny=True), asked.rows)
    if asked.table:
        return table(asked.table[0], asked.table[1] if len(asked.table) > 1 else None)
    if asked.here:
        place = Place(asked.data.absolute(), Path(), asked.out.parent)
        write(asked.out, here(*asked.here, place, asked.rows))
        return None
    asked.out.mkdir(parents=True, exist_ok=True)
    place = Place(asked.data.absolute(), (asked.weights or Path()).absolute(), asked.out.absolute())
    if asked.all:
        names = [name for name in JOBS if name.startswith(tuple(asked.only.split(",")))]
        run_all(names, place, asked.processes)
    for name in asked.run:
        run(name, place)
    return None


if __name__ == "__main__":
    main()

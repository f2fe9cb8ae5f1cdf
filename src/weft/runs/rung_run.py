"""One rung of a ladder: an ordinary pre-training run on the ladder's text, and what it is worth on held-out text."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from weft.checkpoint.folder import LoadedModel
from weft.checksums import Damaged, is_sound, read_checked, read_manifest, write_manifest
from weft.config import build, merged, read_toml
from weft.errors import UserError
from weft.files import read_text
from weft.metrics.bootstrap import Score
from weft.progress import Log, Progress
from weft.runs.driver import device_for
from weft.runs.ladder_recipe import LadderRecipe
from weft.runs.pretrain import pretrain
from weft.runs.recipes import Recipe
from weft.runs.resume import resume
from weft.runs.rungs import recipe_of, rung_of
from weft.tasks.complete import complete
from weft.tasks.model import Model, load, new
from weft.tasks.perplexity import by_context, perplexity
from weft.training.run import Run

SAMPLE = 300  # tokens of a sample by characters; a third of that where tokens are longer


@dataclass(frozen=True, kw_only=True)
class LadderText:
    """`text.json`: the text that all rungs learn from and are judged by, with the hashes of its files."""

    files: tuple[str, ...]
    vocabulary: dict[str, Any]
    train_bytes: int
    train_tokens: int
    held_out_bytes: int
    held_out_tokens: int
    unknown: int
    prompt: str
    xz_bits_per_byte: float | None = None
    threads: int | None = None


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a rung failed."""

    reason: str


class LadderFolder:
    """The names of what is in the folder of a ladder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = Run(folder)
        inside = self.run.inside
        self.train, self.held_out = inside / "text" / "train.txt", inside / "text" / "held-out.txt"
        self.vocabulary = inside / "vocabulary"
        self.about = inside / "text.json"  # facts about the text, the last file before the first rung
        self.results = folder / "ladder.json"
        self.page = folder / "index.html"

    def text(self, whole: bool = False) -> LadderText:
        """The facts about the text; `whole`: after a check of its files too."""
        try:
            values = (read_checked if whole else read_manifest)(self.about)[0]
        except Damaged as error:
            raise UserError(f"{error}; put it back, or remove {self.folder} and climb again") from None
        return build(LadderText, values, str(self.about))

    def rung(self, name: str) -> Path:
        return self.folder / name

    def result(self, name: str) -> Path:
        return self.rung(name) / "run" / "rung.json"

    def failure(self, name: str) -> Path:
        return self.run.inside / "failed" / f"{name}.json"

    def log(self, name: str) -> Path:
        return self.run.inside / "log" / f"{name}.txt"


def climb(place: LadderFolder, name: str, log: Log, progress: Progress) -> dict[str, Any]:
    """Train one rung, or go on with it, and judge it; the result is kept in its folder."""
    if is_sound(place.result(name)):
        return read_manifest(place.result(name))[0]
    text = place.text(whole=True)
    ladder = read_toml(LadderRecipe, place.run.recipe)
    folder = place.rung(name)
    if not rung_of(name, ladder.rungs).learns:
        model = _as_made(place, ladder, name)
    elif Run(folder).recipe.is_file():
        model = resume(folder, log=log, progress=progress)
    else:
        model = pretrain(_recipe(place, ladder, name), log=log, progress=progress)
    device = device_for(ladder.device, None)
    model.to(device)
    result = {"name": name, **_trained(folder, text), **_judged(place, ladder, name, model.opened)}
    result["device"] = device.type
    write_manifest(place.result(name), result)
    return result


def _as_made(place: LadderFolder, ladder: LadderRecipe, name: str) -> Model:
    """A model that has learned nothing."""
    folder = place.rung(name)
    if not (folder / "config.json").is_file():
        family = dict(recipe_of(name, "", ladder.rungs)["model"])
        new(family.pop("family"), place.vocabulary, settings=family, seed=ladder.seed).save(folder)
    return load(folder)


def _recipe(place: LadderFolder, ladder: LadderRecipe, name: str) -> Recipe:
    budget, text = ladder.ladder, place.text()
    characters = text.vocabulary.get("kind") == "character"
    values = recipe_of(name, budget.size or "small", ladder.rungs, characters)
    shared: dict[str, Any] = {
        "out": str(place.rung(name)),
        "seed": ladder.seed,
        "text": {"files": [str(place.train)], "dev": [str(place.held_out)], "documents": "file"},
        "tokenizer": {"folder": str(place.vocabulary)},
    }
    shared |= {} if ladder.device is None else {"device": ladder.device}
    if "training" in values:
        plan, limits = values["training"], dict[str, Any]()
        if {"steps", "epochs", "minutes"} & set(ladder.rungs.get(name, {}).get("training", {})):
            pass  # a rung with a budget of its own
        elif budget.tokens is not None:
            rows = values.get("objective", {}).get("length", 64) * plan["batch"]
            limits["steps"] = max(1, round(budget.tokens / rows))
            plan = values["training"] = {key: value for key, value in plan.items() if key != "epochs"}
            limits["warmup"] = min(plan.get("warmup", 0), limits["steps"] // 4)
        else:
            limits["minutes"] = budget.minutes or 3.0
        if text.threads:
            limits["threads"] = text.threads
        shared["training"] = limits
    return build(Recipe, merged(values, shared), name)


def _trained(folder: Path, text: LadderText) -> dict[str, Any]:
    """What a rung's own record tells: time, tokens, and the held-out loss on the way."""
    run = Run(folder)
    if not run.recipe.is_file():
        nothing = {"steps": 0, "tokens": 0, "epochs": 0.0, "seconds": 0.0, "getting_ready": 0.0}
        return {**nothing, "tokens_per_second": None, "curve": []}
    lines = run.lines()
    timed = [line for line in lines if "seconds" in line]
    last = timed[-1] if timed else {}
    tokens = int(last.get("tokens", text.train_tokens))
    seconds = float(last.get("seconds", 0.0))
    ready = 0.0
    if len(timed) > 2 and "tokens" in timed[1]:  # the first line also tells of compiling and capturing
        pace = (timed[-1]["seconds"] - timed[0]["seconds"]) / max(1, timed[-1]["tokens"] - timed[0]["tokens"])
        ready = max(0.0, timed[0]["seconds"] - pace * timed[0]["tokens"])
    bits = text.held_out_tokens / text.held_out_bytes / math.log(2)  # of a byte for each nat of a token
    at = {line["step"]: max(0.0, line["seconds"] - ready) for line in timed}
    curve, before = list[dict[str, float]](), 0.0
    for line in lines:
        before = at.get(line["step"], before)
        if "validation_loss" in line and math.isfinite(line["validation_loss"]):
            curve.append(
                {
                    "seconds": round(_seconds_at(timed, line.get("tokens", tokens), before, ready), 3),
                    "tokens": line.get("tokens", tokens),
                    "bits_per_byte": line["validation_loss"] * bits,
                }
            )
    return {
        "steps": int(last.get("step", 0)) if "tokens" in last else 0,
        "tokens": tokens,
        "epochs": tokens / text.train_tokens,
        "seconds": round(max(0.0, seconds - ready), 3),
        "getting_ready": round(ready, 3),
        "tokens_per_second": round(tokens / max(1e-9, seconds - ready)),
        "curve": curve,
    }


def _seconds_at(timed: list[dict[str, Any]], tokens: int, usual: float, ready: float) -> float:
    """When so many tokens had been read, between two lines of the record."""
    before = {"tokens": 0, "seconds": ready}
    for line in timed:
        if "tokens" not in line:
            return usual
        if line["tokens"] >= tokens:
            share = (tokens - before["tokens"]) / max(1, line["tokens"] - before["tokens"])
            return float(max(0.0, before["seconds"] + share * (line["seconds"] - before["seconds"]) - ready))
        before = line
    return usual


def _judged(place: LadderFolder, ladder: LadderRecipe, name: str, opened: LoadedModel) -> dict[str, Any]:
    """What a rung is worth on the held-out text, what it takes, and what it writes."""
    text = read_text(place.held_out)
    assert opened.tokenizer is not None
    perplexities = perplexity(opened, [text], seed=ladder.seed)
    bits = perplexities.n_tokens / perplexities.n_bytes / math.log(2)
    ids = opened.tokenizer.ids([text], specials=False)[0]
    try:
        context = by_context(opened, ids)
    except UserError:  # too little text for that; the rest can still be measured
        context = None
    prompt = place.text().prompt
    count = SAMPLE if opened.tokenizer.kind == "character" else SAMPLE // 3
    options: dict[str, Any] = {"temperature": 1.0, "seed": ladder.seed, "slide": True}
    complete(opened, [prompt], max_tokens=2, **options)  # the first call is slower than those after it
    begin = time.perf_counter()
    written = complete(opened, [prompt], max_tokens=count, min_tokens=count, **options)[0]
    seconds = time.perf_counter() - begin
    weights = sum(parameter.numel() for parameter in opened.network.parameters())
    return {
        "bits_per_byte": _score(perplexities.bits_per_byte),
        "perplexity_per_token": _score(perplexities.per_token),
        "held_out": {"tokens": perplexities.n_tokens, "bytes": perplexities.n_bytes, "windows": perplexities.n_windows},
        "parameters": weights or sum(opened.config.entries),
        "counted": not weights,
        "bytes_on_disk": sum(path.stat().st_size for path in place.rung(name).glob("*.safetensors")),
        "family": opened.family.name,
        "reach": opened.config.reach,
        "context": opened.config.context if opened.config.context < 1 << 20 else None,
        "by_context": None
        if context is None
        else [
            {"context": size, "bits_per_byte": _finite(nats * bits), "error": _finite(error * bits)}
            for size, nats, error in zip(context.contexts, context.nats, context.errors, strict=True)
        ],
        "useful_context": None if context is None else context.useful,
        "sample": {"prompt": prompt, "text": written.text},
        "generation_tokens_per_second": round(len(written.tokens) / max(1e-9, seconds), 1),
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _score(score: Score) -> dict[str, float | None]:
    return {key: _finite(value) for key, value in asdict(score).items()}

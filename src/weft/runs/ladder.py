"""`weft.ladder`: every language model of the line on one text with one budget, side by side."""

from __future__ import annotations

import lzma
import math
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch

from weft.checkpoint.folder import LoadedModel
from weft.child import COMMAND_LINE, start_child
from weft.config import build, merged, read_record, read_toml, values_of, write_toml
from weft.data.shards import TextFiles
from weft.errors import UserError, listed, shown
from weft.files import (
    Damaged,
    digests,
    held,
    is_sound,
    read_checked,
    read_manifest,
    read_text,
    write_json,
    write_manifest,
    write_text,
)
from weft.metrics.bootstrap import Score
from weft.progress import Log, ProgressChoice, progress_of, to_logger
from weft.runs.driver import device_for, resume
from weft.runs.ladder_page import page_of, value_of
from weft.runs.ladder_recipe import LadderRecipe, recipe_of, rung_of
from weft.runs.pretrain import pretrain
from weft.runs.recipes import Recipe, recipe_values
from weft.tasks.complete import complete
from weft.tasks.model import load, new
from weft.tasks.perplexity import by_context, perplexity
from weft.text.tokenizers.training import learn
from weft.training.run import Run
from weft.training.signals import Control, Interrupted, Stop, listening

LEAST = 2000  # characters of text, with fewer of which no models can be compared
CHARACTERS = 2 << 20  # bytes of text up to which tokens are characters by default
HELD_OUT = 1 << 18  # bytes at most: every model reads them a dozen times
ALPHABET = 5000  # characters at most; the rest of a text that has more is unknown
PACKED = 64 << 20  # bytes of text up to which it is also packed by xz, for comparison
ORPHANED = 20.0  # seconds that the rungs of a killed ladder may take to end


def ladder(
    recipe: str | None = None,
    settings: Mapping[str, Any] | None = None,
    *,
    log: Log = to_logger,
    progress: ProgressChoice = None,
    **more: Any,
) -> dict[str, Any]:
    """Train every model of the ladder on one text with equal budgets, or continue a ladder; returns its results.

    `weft.ladder(out="ladder", text={"files": ["corpus.txt"]}, ladder={"minutes": 3})`; the same with `out` alone goes
    on. Each rung is a run folder of its own inside `out`; the page is `out/index.html`.
    """
    given = merged(settings or {}, more)
    if recipe is not None:
        given = merged(recipe_values(recipe, LadderRecipe)[0], given)
    out = given.get("out")
    if not isinstance(out, str | os.PathLike):
        raise UserError("no folder for the ladder: give --out FOLDER")
    place = LadderFolder(Path(out))
    if place.run.recipe.is_file():
        asked = _gone_on(place, given)
    else:
        place.run.check_new()
        usual = {"text": {"documents": "file"}}  # a text is one run of words, its empty lines included
        asked = build(LadderRecipe, merged(usual, {**given, "out": str(out)}), recipe or "--set")
        if not asked.text.files:
            raise UserError("no text: give --text FILE")
        device, budget = device_for(asked.device, None), asked.ladder  # every open choice is made and kept
        if budget.tokens is None:
            budget = replace(budget, minutes=budget.minutes or 3.0)
        budget = replace(budget, size=budget.size or ("large" if device.type == "cuda" else "small"))
        files = tuple(str(path.absolute()) for path in TextFiles(asked.text.files).paths())
        asked = replace(asked, ladder=budget, device=str(device), text=replace(asked.text, files=files, dev=()))
    with listening() as stop, place.run.held():
        control = Control(log, progress_of(progress), stop)
        write_toml(asked, place.run.recipe)
        try:
            _prepare(place, asked, control)
        except UserError:
            if not place.about.exists():
                place.run.discard()
            raise
        return _climb(place, asked, control)


def is_ladder(folder: Path) -> bool:
    """Whether a folder holds a ladder rather than a run."""
    path = LadderFolder(folder).run.recipe
    with suppress(OSError, UnicodeDecodeError):
        return path.is_file() and "\n[ladder]" in f"\n{path.read_text(encoding='utf-8')}"
    return False


def _gone_on(place: LadderFolder, given: Mapping[str, Any]) -> LadderRecipe:
    """The recipe of a ladder that is there already; what its models were promised must not change."""
    if not is_ladder(place.folder):
        raise UserError(f"{place.folder}: holds a run, not a ladder; choose another --out")
    before = read_toml(LadderRecipe, place.run.recipe)
    new = dict(given) | {"out": before.out}
    text = dict(new.get("text", {}))
    if "files" in text:  # the run may be gone on with from any folder
        text["files"] = [str(path.absolute()) for path in TextFiles(tuple(text["files"])).paths()]
        new["text"] = text
    rungs = new.get("rungs", {})
    begun = [name for name in rungs if place.rung(name).exists() and rungs[name] != before.rungs.get(name, {})]
    if begun:
        raise UserError(f"{place.folder}: {begun[0]} has begun already; remove {place.rung(begun[0])} to begin it anew")
    after = build(LadderRecipe, merged(values_of(before), new), "--set")
    names = dict.fromkeys((*before.ladder.models, *after.ladder.models))
    after = replace(after, ladder=replace(after.ladder, models=tuple(names)))
    same = replace(
        after,
        rungs=before.rungs,
        ladder=replace(after.ladder, models=before.ladder.models, parallel=before.ladder.parallel),
    )
    if same != before:
        old, now = (_flat(values_of(each)) for each in (before, same))
        key = next(key for key in {**old, **now} if old.get(key) != now.get(key))
        raise UserError(
            f"{place.folder}: already holds a ladder with {key} {old.get(key, 'unset')}, not {now.get(key, 'unset')}; "
            f"go on with it (weft ladder --out {place.folder}) or choose another --out"
        )
    return after


def _flat(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    flat = dict[str, Any]()
    for key, value in values.items():
        flat |= _flat(value, f"{before}{key}.") if isinstance(value, Mapping) else {f"{before}{key}": value}
    return flat


def _prepare(place: LadderFolder, recipe: LadderRecipe, control: Control) -> None:
    """The text in two parts and one vocabulary: what all rungs share; made once."""
    if place.about.exists():
        place.text(whole=True)
        return
    t = recipe.text
    documents = list(TextFiles(t.files, t.column, t.delimiter, t.documents, t.on_bad_row, t.encoding).read())
    train, held_out = split(documents, t.holdout)
    if len(train) + len(held_out) < LEAST or not held_out.strip():
        raise UserError(
            f"{listed(map(os.path.basename, t.files), 2)}: {len(train) + len(held_out):,} characters are too few to "
            f"compare models by; {LEAST:,} are the least"
        )
    write_text(place.train, train)
    write_text(place.held_out, held_out)
    control.stop.check("stopped while reading the text")
    size = len(train.encode()) + len(held_out.encode())
    asked = recipe.ladder.vocabulary or ("characters" if size <= CHARACTERS else str(subwords(size)))
    with control.progress("learning the vocabulary", "texts") as advance:
        if asked == "characters":  # of the whole text: which letters there are is no knowledge of what follows what
            tokenizer = learn([train, held_out], "character", ALPHABET)
        else:
            tokenizer = learn(train.splitlines(keepends=True), "bpe", int(asked), progress=advance)
    tokenizer.save(place.vocabulary)
    ids = tokenizer.ids([train, held_out], specials=False)
    about: dict[str, Any] = {
        "files": [os.path.basename(name) for name in t.files],
        "vocabulary": {"kind": tokenizer.kind, "tokens": tokenizer.vocabulary},
        "train_bytes": len(train.encode()),
        "train_tokens": len(ids[0]),
        "held_out_bytes": len(held_out.encode()),
        "held_out_tokens": len(ids[1]),
        "unknown": sum(token == tokenizer.id_of("unknown") for token in ids[1]),
        "prompt": recipe.ladder.prompt or beginning_of(held_out),
        "xz_bits_per_byte": packed(train, held_out) if size <= PACKED else None,
    }
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    if recipe.ladder.parallel > 1:
        about["threads"] = max(1, min(torch.get_num_threads(), cores // recipe.ladder.parallel))
    made = [place.train, place.held_out, *(path for path in place.vocabulary.rglob("*") if path.is_file())]
    inside = place.about.parent
    write_manifest(place.about, about, digests(inside, [path.relative_to(inside).as_posix() for path in made]))
    control.log(
        f"{place.folder}: {size:,} bytes, the last {about['held_out_bytes']:,} held out; {tokenizer.kind} vocabulary "
        f"of {tokenizer.vocabulary:,} tokens; {about['train_tokens']:,} tokens to learn from"
    )


def split(documents: Sequence[str], share: float, most: int = HELD_OUT) -> tuple[str, str]:
    """A text and its last share, at most so many bytes, where that begins with a document or at least with a line."""
    parts = [(text if text.endswith("\n") else f"{text}\n").encode() for text in documents]
    whole = b"".join(parts)
    wanted = min(len(whole) * (share or 0.05), most)
    cut = len(whole) - round(wanted)
    borders = list(accumulate(map(len, parts[:-1]))) if len(parts) > 20 else []
    nearest = min(borders, key=lambda border: abs(border - cut), default=0)
    marks = (whole.find(mark, cut, cut + round(0.5 * wanted)) for mark in (b"\n", b" "))
    if borders and abs(nearest - cut) < 0.5 * wanted:
        cut = nearest
    elif (mark := next((place for place in marks if place >= 0), None)) is not None:
        cut = mark + 1
    else:
        while cut < len(whole) and whole[cut] & 0xC0 == 0x80:  # a byte inside a character
            cut += 1
    return whole[:cut].decode(), whole[cut:].decode()


def subwords(size: int) -> int:
    """A vocabulary for a text of so many bytes: one token for each thousand of them, between 1,000 and 16,000."""
    return max(1000, min(16_000, 1000 * round(size / 1e6)))


def beginning_of(text: str, most: int = 60) -> str:
    """The first words of a text, of one line."""
    line = next(line.strip() for line in text.splitlines() if line.strip())
    if len(line) <= most:
        return line
    return line[:most].rpartition(" ")[0] or line[:most]


def packed(train: str, held_out: str) -> float:
    """Bits that xz adds for each byte of the held-out text when it has seen the rest: what a packer knows of it."""
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 128 << 20}]
    sizes = [
        len(lzma.compress(text.encode(), lzma.FORMAT_RAW, filters=filters)) for text in (train, f"{train}{held_out}")
    ]
    return 8 * (sizes[1] - sizes[0]) / len(held_out.encode())


def _climb(place: LadderFolder, recipe: LadderRecipe, control: Control) -> dict[str, Any]:
    """Every rung that is not finished, several at once where asked for; the page grows with each."""
    names = list(recipe.ladder.models)
    waiting = [name for name in names if not is_sound(place.result(name))]
    if len(waiting) < len(names):
        control.log(f"{place.folder}: {len(names) - len(waiting)} of {len(names)} rungs are there already")
    for name in waiting:  # what failed before, or has been damaged since, is tried again
        place.failure(name).unlink(missing_ok=True)
        place.result(name).unlink(missing_ok=True)
    going = dict[str, subprocess.Popen[bytes]]()
    try:
        _wait_for_orphans(place, waiting, control.stop)
        while waiting or going:
            control.stop.check()
            if not recipe.ladder.parallel:
                name = waiting.pop(0)
                control.log(f"{place.folder}: {name}, {len(names) - len(waiting)} of {len(names)}")
                here(place, name, control)
                _log_rung(place, recipe, name, 0, control.log)
                continue
            while waiting and len(going) < recipe.ladder.parallel:
                name = waiting.pop(0)
                control.log(f"{place.folder}: {name}, {names.index(name) + 1} of {len(names)}")
                going[name] = _started(place, name, recipe.ladder.parallel > 1)
            time.sleep(0.1)
            for name in [name for name, process in going.items() if process.poll() is not None]:
                _log_rung(place, recipe, name, going.pop(name).returncode, control.log)
    except (Interrupted, KeyboardInterrupt) as interrupted:
        for process in going.values():
            process.send_signal(signal.SIGTERM)  # each saves what it has
        for process in going.values():
            process.wait()
        number = interrupted.number if isinstance(interrupted, Interrupted) else signal.SIGINT
        write(place, recipe)
        raise Interrupted(number, f"stopped, all saved; resume with: weft ladder --out {place.folder}") from None
    results = write(place, recipe)
    failed = [rung["name"] for rung in results["rungs"] if "failed" in rung]
    again = f"; {listed(failed, 20)} failed: weft ladder --out {place.folder} tries again" if failed else ""
    control.log(f"{place.folder}: {len(names) - len(failed)} of {len(names)} rungs; the page is {place.page}{again}")
    return results


def _wait_for_orphans(place: LadderFolder, names: Sequence[str], stop: Stop) -> None:
    """The process of a rung saves it and ends soon after the ladder that started it has been killed."""
    end = time.monotonic() + ORPHANED
    for lock in (place.rung(name) / "run" / "lock" for name in names):
        while lock.exists() and time.monotonic() < end:
            with held(lock) as free:
                if free:
                    break
            stop.check()
            time.sleep(0.1)


def here(place: LadderFolder, name: str, control: Control) -> None:
    """One rung in this process; that it fails is written down and loses nothing else."""
    try:
        climb(place, name, control)
    except (Interrupted, KeyboardInterrupt):
        raise
    except Exception as error:
        reason = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {shown(str(error), 200)}"
        if not isinstance(error, UserError):
            control.log(traceback.format_exc())
        write_json(place.failure(name), {"reason": reason})


def _started(place: LadderFolder, name: str, several: bool) -> subprocess.Popen[bytes]:
    """A rung in a process of its own: if that is killed, the others are not."""
    command = (COMMAND_LINE, "ladder", "--out", str(place.folder), "--only", name)
    # In a session of its own, so that Ctrl-C reaches it through this process alone, and once.
    if not several:
        return start_child(*command, stdin=subprocess.DEVNULL, start_new_session=True)
    place.log(name).parent.mkdir(parents=True, exist_ok=True)
    with open(place.log(name), "ab") as to_logger:
        return start_child(
            *command, stdin=subprocess.DEVNULL, stdout=to_logger, stderr=to_logger, start_new_session=True
        )


def _log_rung(place: LadderFolder, recipe: LadderRecipe, name: str, status: int, log: Log) -> None:
    """What became of a rung, in one line, on the page and in ladder.json."""
    if place.result(name).is_file():
        place.failure(name).unlink(missing_ok=True)  # by a process that a killed ladder had left
        result = read_manifest(place.result(name))[0]
        log(f"{name}: {value_of(result):.4f} bits per byte after {result['seconds']:.0f} s of training")
    elif not place.failure(name).is_file():
        why = f"signal {-status}" if status < 0 else f"exit status {status}"
        why += " (out of memory, or somebody ended it)" if status == -9 else ""
        write_json(place.failure(name), {"reason": f"its process was ended by {why}"})
    if place.failure(name).is_file() and not place.result(name).is_file():
        log(f"weft: note: {name} failed: {read_record(Failure, place.failure(name)).reason}")
    write(place, recipe)


def write(place: LadderFolder, recipe: LadderRecipe) -> dict[str, Any]:
    """ladder.json and the page, of all that is known by now."""
    rungs = list[dict[str, Any]]()
    for name in recipe.ladder.models:
        rung = rung_of(name, recipe.rungs)
        about = {"name": name, "title": rung.title, "about": rung.about, "sees": rung.sees}
        if place.result(name).is_file():
            rungs.append({**about, **read_manifest(place.result(name))[0]})
        elif place.failure(name).is_file():
            rungs.append({**about, "failed": read_record(Failure, place.failure(name)).reason})
        else:
            rungs.append({**about, "waiting": True})
    budget = values_of(recipe.ladder)
    results = {
        "text": read_manifest(place.about)[0],
        "budget": {key: budget[key] for key in ("minutes", "tokens", "size") if key in budget},
        "device": recipe.device,
        "seed": recipe.seed,
        "rungs": rungs,
    }
    write_json(place.results, results)
    write_text(place.page, page_of(results))
    return results


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


def climb(place: LadderFolder, name: str, control: Control) -> dict[str, Any]:
    """Train one rung, or go on with it, and judge it; the result is kept in its folder."""
    if is_sound(place.result(name)):
        return read_manifest(place.result(name))[0]
    text = place.text(whole=True)
    ladder = read_toml(LadderRecipe, place.run.recipe)
    folder = place.rung(name)
    if not rung_of(name, ladder.rungs).learns:
        if not (folder / "config.json").is_file():
            family = dict(recipe_of(name, "", ladder.rungs)["model"])
            new(family.pop("family"), place.vocabulary, settings=family, seed=ladder.seed).save(folder)
        model = load(folder)
    elif Run(folder).recipe.is_file():
        model = resume(folder, log=control.log, progress=control.progress)
    else:
        model = pretrain(_recipe(place, ladder, name), log=control.log, progress=control.progress)
    device = device_for(ladder.device, None)
    model.to(device)
    result = {"name": name, **_trained(folder, text), **_judged(place, ladder, name, model.opened)}
    result["device"] = device.type
    write_manifest(place.result(name), result)
    return result


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

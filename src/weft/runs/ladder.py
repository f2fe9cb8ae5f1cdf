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
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch

from weft import files
from weft.checkpoint.folder import LoadedModel
from weft.child import COMMAND_LINE, start_child
from weft.config import build, merged, read_record, read_toml, values_of, write_toml
from weft.data.shards import TextFiles
from weft.errors import UserError, listed, refuse, shown
from weft.progress import Log, ProgressChoice, progress_of, to_logger
from weft.runs.driver import device_for, resume
from weft.runs.pages import ladder_page, value_of
from weft.runs.pretrain import pretrain
from weft.runs.recipes import LadderRecipe, Recipe, recipe_values
from weft.runs.rungs import recipe_of, rung_of
from weft.tasks.complete import complete
from weft.tasks.model import load, new
from weft.tasks.perplexity import by_context, perplexity
from weft.text.tokenizers.training import learn
from weft.training.run import Run
from weft.training.signals import Control, Interrupted, listening

LEAST = 2000  # characters of text that models can be compared on
CHARACTERS = 2 << 20  # bytes of text up to which tokens are characters by default
HELD_OUT = 1 << 18  # bytes at most: every model reads them a dozen times
ALPHABET = 5000  # characters at most; the rest of a text that has more is unknown
PACKED = 64 << 20  # bytes of text up to which it is also compressed by xz, for comparison
ORPHANED = 20.0  # seconds that the rungs of a killed ladder may take to end
SAMPLE = 300  # tokens of a sample by characters; a third of that where tokens are longer


def ladder(
    recipe: str | None = None,
    settings: Mapping[str, Any] | None = None,
    *,
    log: Log = to_logger,
    progress: ProgressChoice = None,
    **more: Any,
) -> dict[str, Any]:
    """Train every model of the ladder on one text with equal budgets, or continue a ladder; returns its results.

    `weft.ladder(out="ladder", text={"files": ["corpus.txt"]}, ladder={"minutes": 3})`; with `out` alone an existing
    ladder is continued. Each rung is a run folder inside `out`; the page is `out/index.html`.
    """
    given = merged(settings or {}, more)
    if recipe is not None:
        given = merged(recipe_values(recipe, LadderRecipe)[0], given)
    out = given.get("out")
    if not isinstance(out, str | os.PathLike):
        raise UserError("no folder for the ladder: give --out FOLDER")
    place = LadderFolder(Path(out))
    if place.recipe.is_file():
        asked = _continued(place, given)
    else:
        place.check_new()
        usual = {"text": {"documents": "file"}}  # empty lines do not separate documents
        asked = build(LadderRecipe, merged(usual, {**given, "out": str(out)}), recipe or "--set")
        refuse((not asked.text.files, "no text: give --text FILE"))
        device, budget = device_for(asked.device, None), asked.ladder  # every open choice is made and kept
        minutes = budget.minutes or 3.0 if budget.tokens is None else None
        size = budget.size or ("large" if device.type == "cuda" else "small")
        paths = TextFiles(asked.text.files).paths()
        text = replace(asked.text, files=tuple(str(path.absolute()) for path in paths), dev=())
        asked = replace(asked, ladder=replace(budget, minutes=minutes, size=size), device=str(device), text=text)
    with listening() as stop, place.held():
        control = Control(log, progress_of(progress), stop)
        write_toml(asked, place.recipe)
        try:
            _prepare(place, asked, control)
        except UserError:
            if not place.facts.exists():
                place.discard()
            raise
        return _climb(place, asked, control)


def is_ladder(folder: Path) -> bool:
    """Whether a folder holds a ladder rather than a run."""
    path = LadderFolder(folder).recipe
    with suppress(OSError, UnicodeDecodeError):
        return path.is_file() and "\n[ladder]" in f"\n{path.read_text(encoding='utf-8')}"
    return False


def _continued(place: LadderFolder, given: Mapping[str, Any]) -> LadderRecipe:
    """The recipe of an existing ladder; its text and its budget must not change."""
    refuse((not is_ladder(place.folder), f"{place.folder}: holds a run, not a ladder; choose another --out"))
    before = read_toml(LadderRecipe, place.recipe)
    new = dict(given) | {"out": before.out}
    if "files" in new.get("text", {}):
        paths = TextFiles(tuple(new["text"]["files"])).paths()
        new["text"] = {**new["text"], "files": [str(path.absolute()) for path in paths]}
    for name, values in new.get("rungs", {}).items():
        if (folder := place.folder / name).exists() and values != before.rungs.get(name, {}):
            raise UserError(f"{place.folder}: {name} has begun already; remove {folder} to train it again")
    after = build(LadderRecipe, merged(values_of(before), new), "--set")
    names = dict.fromkeys((*before.ladder.models, *after.ladder.models))
    after = replace(after, ladder=replace(after.ladder, models=tuple(names)))
    budget = replace(after.ladder, models=before.ladder.models, parallel=before.ladder.parallel)
    same = replace(after, rungs=before.rungs, ladder=budget)
    if same != before:
        old, now = (_flat(values_of(each)) for each in (before, same))
        key = next(key for key in {**old, **now} if old.get(key) != now.get(key))
        raise UserError(
            f"{place.folder}: already holds a ladder with {key} {old.get(key, 'unset')}, not {now.get(key, 'unset')}; "
            f"continue it (weft ladder --out {place.folder}) or choose another --out"
        )
    return after


def _flat(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    flat = dict[str, Any]()
    for key, value in values.items():
        flat |= _flat(value, f"{before}{key}.") if isinstance(value, Mapping) else {f"{before}{key}": value}
    return flat


def _prepare(place: LadderFolder, recipe: LadderRecipe, control: Control) -> None:
    """The text in two parts and one vocabulary: what all rungs share; made once."""
    if place.facts.exists():
        place.text()
        return
    t = recipe.text
    documents = list(TextFiles(t.files, t.column, t.delimiter, t.documents, t.on_bad_row, t.encoding).read())
    train, held_out = split(documents, t.holdout)
    if len(train) + len(held_out) < LEAST or not held_out.strip():
        names, count = listed(map(os.path.basename, t.files), 2), len(train) + len(held_out)
        raise UserError(f"{names}: {count:,} characters are too few to compare models; give at least {LEAST:,}")
    files.write_text(place.train, train)
    files.write_text(place.held_out, held_out)
    control.stop.check("stopped while reading the text")
    size = len(train.encode()) + len(held_out.encode())
    asked = recipe.ladder.vocabulary or ("characters" if size <= CHARACTERS else str(subwords(size)))
    with control.progress("learning the vocabulary", "texts") as advance:
        if asked == "characters":  # of the whole text, so that no model meets an unknown one
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
        "xz_bits_per_byte": None,
    }
    if size <= PACKED:  # bits that xz adds for each held-out byte once it has compressed the rest
        filters = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 128 << 20}]
        texts = (train.encode(), (train + held_out).encode())
        first, second = (len(lzma.compress(text, lzma.FORMAT_RAW, filters=filters)) for text in texts)
        about["xz_bits_per_byte"] = 8 * (second - first) / len(held_out.encode())
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    if recipe.ladder.parallel > 1:
        about["threads"] = max(1, min(torch.get_num_threads(), cores // recipe.ladder.parallel))
    made = [place.train, place.held_out, *(path for path in place.vocabulary.rglob("*") if path.is_file())]
    inside = place.facts.parent
    hashes = files.digests(inside, [path.relative_to(inside).as_posix() for path in made])
    files.write_manifest(place.facts, about, hashes)
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
    return line if len(line) <= most else line[:most].rpartition(" ")[0] or line[:most]


def _climb(place: LadderFolder, recipe: LadderRecipe, control: Control) -> dict[str, Any]:
    """Every rung that is not finished, several at once where asked for; the page grows with each."""
    names, parallel = recipe.ladder.models, recipe.ladder.parallel
    waiting = [name for name in names if not files.is_sound(place.result(name))]
    if len(waiting) < len(names):
        control.log(f"{place.folder}: {len(names) - len(waiting)} of {len(names)} rungs are there already")
    for name in waiting:  # what failed before, or has been damaged since, is tried again
        place.failure(name).unlink(missing_ok=True)
        place.result(name).unlink(missing_ok=True)
    going = dict[str, subprocess.Popen[bytes]]()
    try:
        end = time.monotonic() + ORPHANED  # rungs of a killed ladder save and end soon after it
        for lock in (place.folder / name / "run" / "lock" for name in waiting):
            while lock.exists() and time.monotonic() < end:
                with files.held(lock) as free:
                    if free:
                        break
                control.stop.check()
                time.sleep(0.1)
        while waiting or going:
            control.stop.check()
            if waiting and len(going) < max(1, parallel):
                name = waiting.pop(0)
                control.log(f"{place.folder}: {name}, {names.index(name) + 1} of {len(names)}")
                if parallel:
                    going[name] = _started(place, name, parallel > 1)
                else:
                    climb(place, name, control)
                    _log_rung(place, recipe, name, 0, control.log)
                continue
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


def climb(place: LadderFolder, name: str, control: Control) -> None:
    """Train and evaluate one rung, or continue it; if it fails, the reason is written down."""
    try:
        if files.is_sound(place.result(name)):
            return
        text, ladder, folder = place.text(), read_toml(LadderRecipe, place.recipe), place.folder / name
        if not rung_of(name, ladder.rungs).learns:
            if not (folder / "config.json").is_file():
                family = dict(recipe_of(name, "", ladder.rungs)["model"])
                new(family.pop("family"), place.vocabulary, settings=family, seed=ladder.seed).save(folder)
            model = load(folder)
        elif Run(folder).recipe.is_file():
            model = resume(folder, log=control.log, progress=control.progress)
        else:
            model = pretrain(_recipe(place, ladder, name), log=control.log, progress=control.progress)
        model.to(device := device_for(ladder.device, None))
        result = {"name": name, **_trained(folder, text), **_judged(place, ladder, name, model.opened)}
        files.write_manifest(place.result(name), {**result, "device": device.type})
    except (Interrupted, KeyboardInterrupt):
        raise
    except Exception as error:
        reason = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {shown(str(error), 200)}"
        if not isinstance(error, UserError):
            control.log(traceback.format_exc())
        files.write_json(place.failure(name), {"reason": reason})


def _started(place: LadderFolder, name: str, several: bool) -> subprocess.Popen[bytes]:
    """A rung in a process of its own: if that is killed, the others are not."""
    command = (COMMAND_LINE, "ladder", "--out", str(place.folder), "--only", name)
    path = place.inside / "log" / f"{name}.txt"
    if several:
        path.parent.mkdir(parents=True, exist_ok=True)
    # In a session of its own, so that Ctrl-C reaches it through this process alone, and once.
    with open(path, "ab") if several else nullcontext() as out:
        return start_child(*command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)


def _log_rung(place: LadderFolder, recipe: LadderRecipe, name: str, status: int, log: Log) -> None:
    """What became of a rung, in one line, on the page and in ladder.json."""
    if place.result(name).is_file():
        place.failure(name).unlink(missing_ok=True)  # by a process that a killed ladder had left
    elif not place.failure(name).is_file():
        why = f"signal {-status}" if status < 0 else f"exit status {status}"
        why += " (out of memory, or killed)" if status == -9 else ""
        files.write_json(place.failure(name), {"reason": f"its process was ended by {why}"})
    rung = next(rung for rung in write(place, recipe)["rungs"] if rung["name"] == name)
    if "failed" in rung:
        log(f"weft: note: {name} failed: {rung['failed']}")
    else:
        log(f"{name}: {value_of(rung):.4f} bits per byte after {rung['seconds']:.0f} s of training")


def write(place: LadderFolder, recipe: LadderRecipe) -> dict[str, Any]:
    """ladder.json and the page, of all that is known by now."""
    rungs = list[dict[str, Any]]()
    for name in recipe.ladder.models:
        rung = rung_of(name, recipe.rungs)
        about = {"name": name, "title": rung.title, "about": rung.about, "sees": rung.sees}
        state: dict[str, Any] = {"waiting": True}
        if place.result(name).is_file():
            state = files.read_manifest(place.result(name))[0]
        elif place.failure(name).is_file():
            state = {"failed": read_record(Failure, place.failure(name)).reason}
        rungs.append({**about, **state})
    budget = values_of(recipe.ladder)
    results = {
        "text": files.read_manifest(place.facts)[0],
        "budget": {key: budget[key] for key in ("minutes", "tokens", "size") if key in budget},
        "device": recipe.device,
        "seed": recipe.seed,
        "rungs": rungs,
    }
    files.write_json(place.results, results)
    files.write_text(place.page, ladder_page(results))
    return results


@dataclass(frozen=True, kw_only=True)
class LadderText:
    """`text.json`: the training and held-out text of all rungs, with the hashes of its files."""

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


class LadderFolder(Run):
    """The names of what is in the folder of a ladder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.train, self.held_out = (self.inside / "text" / f"{name}.txt" for name in ("train", "held-out"))
        self.vocabulary = self.inside / "vocabulary"
        self.facts = self.inside / "text.json"  # about the text; the last file before the first rung
        self.results, self.page = folder / "ladder.json", folder / "index.html"

    def text(self) -> LadderText:
        """The facts about the text, after a check of its files."""
        try:
            return build(LadderText, files.read_checked(self.facts)[0], str(self.facts))
        except files.Damaged as error:
            raise UserError(f"{error}; put it back, or remove {self.folder} and climb again") from None

    def result(self, name: str) -> Path:
        return self.folder / name / "run" / "rung.json"

    def failure(self, name: str) -> Path:
        return self.inside / "failed" / f"{name}.json"


def _recipe(place: LadderFolder, ladder: LadderRecipe, name: str) -> Recipe:
    """The recipe of a rung, with the text, the vocabulary and the budget that all rungs share."""
    budget, text = ladder.ladder, place.text()
    values = recipe_of(name, budget.size or "small", ladder.rungs, text.vocabulary.get("kind") == "character")
    shared: dict[str, Any] = {
        "out": str(place.folder / name),
        "seed": ladder.seed,
        "device": ladder.device,
        "text": {"files": [str(place.train)], "dev": [str(place.held_out)], "documents": "file"},
        "tokenizer": {"folder": str(place.vocabulary)},
    }
    if "training" in values:
        plan, limits = values["training"], dict[str, Any]({"threads": text.threads} if text.threads else {})
        own = {"steps", "epochs", "minutes"} & set(ladder.rungs.get(name, {}).get("training", {}))  # of this rung alone
        if budget.tokens is not None and not own:
            rows = values.get("objective", {}).get("length", 64) * plan["batch"]
            steps = max(1, round(budget.tokens / rows))
            values["training"] = {key: value for key, value in plan.items() if key != "epochs"}
            limits |= {"steps": steps, "warmup": min(plan.get("warmup", 0), steps // 4)}
        elif not own:
            limits["minutes"] = budget.minutes or 3.0
        shared["training"] = limits
    return build(Recipe, merged(values, shared), name)


def _trained(folder: Path, text: LadderText) -> dict[str, Any]:
    """Time, tokens and the held-out loss over time, from the record of a rung."""
    run = Run(folder)
    if not run.recipe.is_file():
        nothing = {"steps": 0, "tokens": 0, "epochs": 0.0, "seconds": 0.0, "getting_ready": 0.0}
        return {**nothing, "tokens_per_second": None, "curve": []}
    lines = run.lines()
    timed = [line for line in lines if "seconds" in line]
    last = timed[-1] if timed else {}
    tokens, ready, curve = int(last.get("tokens", text.train_tokens)), 0.0, list[dict[str, float]]()
    if len(timed) > 2 and "tokens" in timed[1]:  # the time to the first line includes compiling and capturing
        pace = (timed[-1]["seconds"] - timed[0]["seconds"]) / max(1, timed[-1]["tokens"] - timed[0]["tokens"])
        ready = max(0.0, timed[0]["seconds"] - pace * timed[0]["tokens"])
    seconds = float(last.get("seconds", 0.0)) - ready
    bits = text.held_out_tokens / text.held_out_bytes / math.log(2)  # of a byte for each nat of a token
    known = np.array([(0, ready), *((line["tokens"], line["seconds"]) for line in timed if "tokens" in line)])
    for line in lines:
        if "validation_loss" in line and math.isfinite(line["validation_loss"]):
            read = line.get("tokens", tokens)
            at = float(np.interp(read, known[:, 0], known[:, 1])) - ready
            loss = line["validation_loss"] * bits
            curve.append({"seconds": round(max(0.0, at), 3), "tokens": read, "bits_per_byte": loss})
    return {
        "steps": int(last.get("step", 0)) if "tokens" in last else 0,
        "tokens": tokens,
        "epochs": tokens / text.train_tokens,
        "seconds": round(max(0.0, seconds), 3),
        "getting_ready": round(ready, 3),
        "tokens_per_second": round(tokens / max(1e-9, seconds)),
        "curve": curve,
    }


def _judged(place: LadderFolder, ladder: LadderRecipe, name: str, opened: LoadedModel) -> dict[str, Any]:
    """Scores of a rung on the held-out text, its size, and a sample."""
    text = files.read_text(place.held_out)
    assert opened.tokenizer is not None
    perplexities = perplexity(opened, [text], seed=ladder.seed)
    bits = perplexities.n_tokens / perplexities.n_bytes / math.log(2)
    by_size, useful = None, None
    with suppress(UserError):  # too little text for that; the rest can still be measured
        context = by_context(opened, opened.tokenizer.ids([text], specials=False)[0])
        useful = context.useful
        rows = zip(context.contexts, context.nats, context.errors, strict=True)
        by_size = [{"context": n, "bits_per_byte": _finite(x * bits), "error": _finite(e * bits)} for n, x, e in rows]
    prompt = place.text().prompt
    count = SAMPLE if opened.tokenizer.kind == "character" else SAMPLE // 3
    options: dict[str, Any] = {"temperature": 1.0, "seed": ladder.seed, "slide": True}
    complete(opened, [prompt], max_tokens=2, **options)  # the first call is slower than those after it
    begin = time.perf_counter()
    written = complete(opened, [prompt], max_tokens=count, min_tokens=count, **options)[0]
    seconds = time.perf_counter() - begin
    weights = sum(parameter.numel() for parameter in opened.network.parameters())
    scores = {"bits_per_byte": perplexities.bits_per_byte, "perplexity_per_token": perplexities.per_token}
    return {
        **{key: {each: _finite(x) for each, x in asdict(score).items()} for key, score in scores.items()},
        "held_out": {"tokens": perplexities.n_tokens, "bytes": perplexities.n_bytes, "windows": perplexities.n_windows},
        "parameters": weights or sum(opened.config.entries),
        "counted": not weights,
        "bytes_on_disk": sum(path.stat().st_size for path in (place.folder / name).glob("*.safetensors")),
        "family": opened.family.name,
        "reach": opened.config.reach,
        "context": opened.config.context if opened.config.context < 1 << 20 else None,
        "by_context": by_size,
        "useful_context": useful,
        "sample": {"prompt": prompt, "text": written.text},
        "generation_tokens_per_second": round(len(written.tokens) / max(1e-9, seconds), 1),
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None

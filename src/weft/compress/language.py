"""Language models as teachers: a student foresees each next word as its teacher does.

Where both have one vocabulary, it learns the teacher's chances of words (Hinton et al., 2015), place by place. Where they
have not, it learns from texts that the teacher has written on from the first words of each of those given.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from weft.checkpoint.card import Made, Metric
from weft.checkpoint.families import Family
from weft.checkpoint.folder import Opened
from weft.compress.forecasts import Asked, Foreseen, Forecasts, Prepared, forecasts
from weft.compress.inside import matched
from weft.compress.recipe import DistillRecipe
from weft.compress.student import begun_student, find_student
from weft.compress.teaching import Listened
from weft.config import write_toml
from weft.data.batching import Feed
from weft.data.masking import shift
from weft.data.rows import Framed, Packed, Source
from weft.data.shards import Corpus, Text, tokenised
from weft.errors import UserError, listed
from weft.files import read_json, write_json
from weft.objectives.distill_words import TaughtWords
from weft.objectives.language import NextToken, Objective
from weft.tasks.driving import Altered, begin, drive
from weft.tasks.material import next_frame
from weft.tasks.model import Model, load
from weft.tasks.perplexity import perplexity
from weft.tasks.planning import decided
from weft.tasks.recipes import Tuning
from weft.tasks.saying import Progress, Say
from weft.tasks.scoring import tokenizer_of
from weft.text.records import Skipped
from weft.text.resampling import Score
from weft.text.tokenizer import Tokenizer
from weft.training.run import Run
from weft.training.setup import Setup
from weft.training.signals import Stop

STEPS = 1000  # that a student takes at least where nothing is said, if not more than 30 times through the text
JUDGED = 1 << 21  # characters of held-out text, at most, that bits are counted of


@dataclass(frozen=True)
class Papers:
    """The texts of a run: those to learn from, and those that it is judged by."""

    text: Text
    learned: int  # so many of its documents, the first ones
    held: list[str]  # what is judged by, as far as bits are counted of it
    dev: Text | None
    hashes: dict[str, str]

    def documents(self) -> Iterator[str]:
        """The documents to learn from."""
        return islice(self.text.read(Skipped()), self.learned)


def papers_of(recipe: DistillRecipe, say: Say) -> Papers:
    """The documents of a recipe; without others to judge by, the last of them are held out."""
    data, skipped = recipe.data, Skipped()
    if data.source or data.target:
        raise UserError("a language model writes on from a text: give --text FILE, not --source and --target")
    if data.augment:
        raise UserError("texts of a language model are learned as they stand: leave out --augment")
    text = Text((*data.text, *data.files), data.columns.get("text", "text"), data.delimiter, "line", data.on_bad_row)
    count = sum(1 for _ in text.read(skipped))
    if skipped.count:
        say(f"weft: note: {skipped}")
    where = listed([path.name for path in text.paths()], 2)
    if not count:
        raise UserError(f"{where}: there is no text in it: nothing to learn from")
    hashes = {"text": text.hash()}
    if data.dev:
        dev = replace(text, files=tuple(data.dev))
        held = _some(dev.read(Skipped()))
        if not held:
            raise UserError(f"{listed([path.name for path in dev.paths()], 2)}: there is no text to judge by")
        return Papers(text, count, held, dev, {**hashes, "dev": dev.hash()})
    if count < 2:
        raise UserError(f"{where}: a single text leaves none to judge by: give --dev FILE")
    learned = count - max(1, round(data.holdout * count))
    return Papers(text, learned, _some(islice(text.read(Skipped()), learned, None)), None, hashes)


def _some(documents: Iterator[str]) -> list[str]:
    found, size = list[str](), 0
    for document in documents:
        found.append(document)
        size += len(document)
        if size > JUDGED:
            break
    return found


def speaking(family: Family) -> None:
    """Refuse a student that says no next words."""
    if not family.speaks or family.reads:
        raise UserError(f"{family.name} does not write on from a text: a student such as gpt2:2x128 or lstm:1x256 does")


@dataclass(frozen=True)
class Material:
    """What a student reads, and what it is judged by."""

    source: Source
    held_out: Source
    prepare: Any
    objective: Objective
    forwards: int  # places, or texts, that a teacher read anew
    way: str


def distill_language(
    run: Run,
    recipe: DistillRecipe,
    teachers: Sequence[Listened],
    device: torch.device,
    stop: Stop,
    say: Say,
    progress: Progress,
) -> Model:
    """Teach a student to foresee words as its teachers do."""
    opened_teachers = [each.opened for each in teachers]
    for each in teachers[1:]:
        if tokenizer_of(each.opened).pipeline != tokenizer_of(opened_teachers[0]).pipeline:
            raise UserError(f"{each.folder}: has another vocabulary than the first teacher: their mean has no meaning")
    found = find_student(recipe, opened_teachers[0], lambda text: None)
    if not isinstance(found, Path):
        speaking(found[0])
    papers = papers_of(recipe, say)
    beginning = begun_student(
        run, recipe, opened_teachers, {"words": None}, "words", papers.documents, stop, say, progress
    )
    opened = beginning.opened
    speaking(opened.family)
    same = tokenizer_of(opened).pipeline == tokenizer_of(opened_teachers[0]).pipeline
    gathered = by_words if same else by_texts
    material = gathered(run, recipe, papers, teachers, opened, stop, say, progress)
    plan = _planned(recipe.training, material.source, opened, device, beginning.fresh)
    length = int(material.source.mean)
    recipe = replace(
        recipe, training=plan, device=str(device), distill=replace(recipe.distill, metric="loss", length=length)
    )
    hashes = {**papers.hashes, "teacher": [each.digest for each in teachers]}
    _note(run, recipe, opened, hashes, material.forwards, device)
    started = begin(run, plan.keep, plan.pass_tokens or 0, say)
    steps = plan.steps or 1
    card = replace(
        opened.card,
        task=opened.family.task,
        base=Path(recipe.student.model).name,
        teacher=", ".join(each.folder.name for each in teachers),
        recipe=hashlib.sha256(run.recipe.read_bytes()).hexdigest(),
        made=Made(seed=recipe.seed, date=datetime.now(UTC).date().isoformat()),
    )
    opened = replace(opened, card=card)
    say(
        f"{run.folder}: {material.way}\n"
        f"plan: {steps:,} step{'s' * (steps != 1)} of {plan.batch} rows of {length} tokens, "
        f"{steps * (plan.batch or 1) / material.source.count:.1f} times through the text, rate {plan.rate:.1e}, "
        f"on {device.type} in {plan.precision}"
    )
    data = papers.hashes.get("dev", papers.hashes["text"])

    def keep_best(found: dict[str, float]) -> None:
        run.save_model(opened, tuple(Metric(data=data, name=name, value=value) for name, value in found.items()))

    setup = Setup(
        network=opened.network,
        objective=matched(material.objective, opened_teachers[0], opened, recipe.distill),
        feed=Feed(material.source, material.prepare, recipe.seed, plan.batch or 1),
        held_out=material.held_out,
        plan=plan,
        rate=plan.rate or 0.0,
        steps=steps,
        evaluate_every=plan.evaluate_every or steps,
        save_every=plan.save_every or steps,
        device=device,
        precision=plan.precision,
        seed=recipe.seed,
        words_of=tokenizer_of(opened).decode,
    )
    drive(run, setup, started, recipe.tensorboard, keep_best, stop, say)
    return _reported(run, papers, opened_teachers, data, device, say)


def _planned(plan: Tuning, source: Any, opened: Opened, device: torch.device, fresh: bool) -> Tuning:
    batch = max(1, min(round(8192 / source.mean), source.count // 8))
    epochs = max(3.0, min(30.0, STEPS * batch / source.count))
    rate = opened.family.rate * (768 / opened.config.width) ** 0.5
    found = decided(plan, source, device, batch, epochs, rate if fresh else rate / 5)
    every = plan.evaluate_every or max(1, (found.steps or 1) // 10)
    return replace(found, evaluate_every=every, save_every=plan.save_every or every)


# ------------------------------------------------------------------------------------------------- two ways to be taught


def by_words(
    run: Run,
    recipe: DistillRecipe,
    papers: Papers,
    teachers: Sequence[Listened],
    student: Opened,
    stop: Stop,
    say: Say,
    progress: Progress,
) -> Material:
    """One vocabulary: the teacher's chances of the next word at every place of the text."""
    tokenizer, asked = tokenizer_of(student), recipe.distill
    corpus, held = _corpora(papers, tokenizer, stop, progress)
    frame = next_frame(tokenizer, True)
    framed = Framed(corpus, frame)
    wanted = Asked(
        [each.opened for each in teachers],
        [each.digest for each in teachers],
        framed,
        student.heads["words"],
        asked.temperature,
    )
    with progress("the teacher foresees the text", "tokens") as told:

        def heard(more: int) -> None:
            stop.check("stopped while the teacher reads; what it has said is kept")
            told(more)

        known = forecasts(wanted, heard, lambda: say("weft: note: another process asks this teacher; waiting for it"))
    _tell(known, framed, say)
    length = _length(recipe, student)
    return Material(
        Foreseen(Packed(framed, length, 1, False, recipe.seed)),
        Packed(Framed(held, frame), length, 1, False, None),
        Prepared(known),
        TaughtWords(asked.temperature, asked.hard),
        known.forwards,
        f"the teacher's chances of the next word at {framed.size:,} places, its own words counting {asked.hard:g}",
    )


def _tell(known: Forecasts, framed: Framed, say: Say) -> None:
    size = sum(shard.nbytes for shard in known.shards)
    cached = ", all from the cache" if not known.forwards else ""
    say(f"teacher: {framed.size:,} places, {known.forwards:,} read anew{cached}; {size / 1e6:,.0f} MB are kept of them")


def _length(recipe: DistillRecipe, student: Opened) -> int:
    context = student.config.context
    length = recipe.distill.length or min(student.family.row or context, context)
    if length > context:
        raise UserError(f"rows of {length} tokens are longer than the student's context of {context}")
    return length


def _corpora(papers: Papers, tokenizer: Tokenizer, stop: Stop, progress: Progress) -> tuple[Corpus, Corpus]:
    """The tokens to learn from, and those to judge by."""
    with progress("tokenising the text", "characters") as read:

        def heard(more: int) -> None:
            stop.check("stopped while tokenising; what is done is kept")
            read(more)

        whole = tokenised(papers.text, tokenizer, False, heard)
        if papers.dev is not None:
            return whole, tokenised(papers.dev, tokenizer, False, heard)
    cut = int(whole.documents[papers.learned] - whole.begin)
    return whole.part(0, cut), whole.part(cut, whole.size)


# ----------------------------------------------------------------------------------------------------------- the end


def _note(
    run: Run, recipe: DistillRecipe, opened: Opened, hashes: dict[str, Any], forwards: int, device: torch.device
) -> None:
    """What the run was made with, on the first day; later, that it still is the same."""
    if run.about.exists():
        about = read_json(run.about)
        if about.get("data") != hashes:
            raise Altered(f"{run.folder}: the text, or the teacher, is not what the run began with")
        if forwards:  # the cache was cleared meanwhile
            write_json(run.about, {**about, "teacher_forwards": about.get("teacher_forwards", 0) + forwards})
        return
    write_toml(recipe, run.recipe)
    run.describe(
        {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "seed": recipe.seed,
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
            "parameters": sum(parameter.numel() for parameter in opened.network.parameters()),
            "data": hashes,
            "teacher_forwards": forwards,
        }
    )


def _reported(
    run: Run, papers: Papers, teachers: Sequence[Opened], data: str, device: torch.device, say: Say
) -> Model:
    """What the student has kept: bits for each byte of held-out text, beside its teacher's."""
    model = load(run.folder, device=device)
    ours = perplexity(model.opened, papers.held).bits_per_byte
    theirs = min((perplexity(each, papers.held).bits_per_byte for each in teachers), key=lambda score: score.value)
    share = theirs.value / ours.value
    found = {"bits_per_byte": {"teacher": _shown(theirs), "student": _shown(ours)}, "kept": share}
    write_json(run.inside / "kept.json", found)
    others = tuple(each for each in model.card.metrics if each.name != "bits_per_byte")
    metric = Metric(data=data, name="bits_per_byte", value=ours.value, low=ours.low, high=ours.high)
    run.save_model(model.opened, (*others, metric))
    say(
        f"{run.folder}: {ours.value:.4f} bits per byte of held-out text ({ours.low:.4f} to {ours.high:.4f}), "
        f"the teacher {theirs.value:.4f}: {100 * share:.1f} % kept"
    )
    return load(run.folder)


def _shown(score: Score) -> dict[str, float]:
    return {"value": score.value, "low": score.low, "high": score.high}

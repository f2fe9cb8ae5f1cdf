"""Models as CTranslate2 folders, and whether what writes there writes the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any, Literal

from safetensors import SafetensorError

from weft.backends.ct2_files import ENGINE
from weft.backends.ctranslate2 import HEADS, PATIENCE, kept_names
from weft.checkpoint.folder import LoadedModel
from weft.checkpoint.save import write_files
from weft.checkpoint.tensors import save_tensors
from weft.data.columns import paired_columns
from weft.data.tables import Table
from weft.errors import UserError, shown
from weft.exporters.ct2_specs import spec_of
from weft.files import unwritable
from weft.tasks.complete import begun, complete, read
from weft.tasks.forward import tokenizer_of
from weft.tasks.model import Model
from weft.text.rows import SUFFIXES
from weft.text.sources import telling_suffix
from weft.version import VERSION

Precision = Literal["fp32", "fp16", "int8"]
KINDS: dict[str, str | None] = {"fp32": None, "fp16": "float16", "int8": "int8_float32"}  # in the engine's words
PATIENT = 1000.0  # a search that goes on to the end, as ours would: so that only what a model says is compared
COMPARED = 64  # texts of a file that are written from, by both
MAX_TOKENS = 24  # tokens of an answer by which two models are compared
ALIKE = 0.9  # share of the answers that must be the same, word for word
NEAR = {"fp32": 1e-3, "fp16": 1e-2, "int8": 0.3}  # how far the log-probability of a token may be off


def write_ct2(inside: Path, opened: LoadedModel, task: str, precision: str = "fp32") -> None:
    """The files of a CTranslate2 folder, for this task, one by one."""
    if precision not in KINDS:
        raise UserError(f"CTranslate2 is written in {', '.join(KINDS)}, not in {shown(precision)}")
    if task == "fill" and opened.family.sentinels:
        task = "complete"  # gaps are filled step by step, which is ours to do
    spec = spec_of(opened)
    spec.validate()
    spec.optimize(KINDS[precision])
    card = replace(opened.card, task=task, backend="ctranslate2", precision=precision, weft=VERSION)  # type: ignore[arg-type]
    write_files(inside, replace(opened, card=card), weights=False)
    try:
        (inside / ENGINE).mkdir()
        spec.save(str(inside / ENGINE))
        if not opened.family.speaks:
            state = opened.network.state_dict()
            kept = {
                name: state[name].detach().cpu().contiguous()
                for name in kept_names(list(state), opened.config, opened.heads)
            }
            if kept:
                save_tensors(inside / HEADS, kept, {"format": "pt"})
    except (OSError, SafetensorError) as error:
        raise unwritable(inside, error) from None


def check_written(ours: Model, theirs: Model, texts: Sequence[str], precision: str = "fp32") -> float:
    """How far the log-probabilities of our own answers are off there, by token; refused where that is too far.

    In full precision the answers themselves must be the same too, greedy and by a beam.
    """
    prompts = short_prompts(ours.opened, texts)
    wide = min(4, ours.config.vocabulary)
    greedy: list[Any] = complete(ours.opened, prompts, max_tokens=MAX_TOKENS)
    sources = read(ours.opened, prompts) if ours.opened.family.reads else None
    begins = [[ours.config.begin]] * len(prompts) if sources is not None else begun(ours.opened, prompts)
    said = [list(answer.tokens) for answer in greedy]
    rows = [row for row, tokens in enumerate(said) if tokens]
    scored = theirs.network.scored(  # type: ignore[operator]
        [begins[row] for row in rows],
        None if sources is None else [sources[row] for row in rows],
        [said[row] for row in rows],
    )
    apart = [abs(own - greedy[row].logprob) / len(said[row]) for row, own in zip(rows, scored, strict=True)]
    worst = max(range(len(rows)), key=lambda place: apart[place], default=None)
    if worst is not None and not apart[worst] <= NEAR[precision]:
        raise UserError(
            f"the exported model does not say the same: the log-probability of a token differs by {apart[worst]:.3g} "
            f"(at most {NEAR[precision]:g} is let pass), on {shown(prompts[rows[worst]], 50)!r}; nothing was written"
        )
    if precision != "fp32":
        return max(apart, default=0.0)
    theirs.network.patience = PATIENT  # type: ignore[assignment]
    for beam, first in ((None, greedy), (wide, complete(ours.opened, prompts, max_tokens=MAX_TOKENS, beam_size=wide))):
        second = complete(theirs.opened, prompts, max_tokens=MAX_TOKENS, beam_size=beam)
        other = [row for row, pair in enumerate(zip(first, second, strict=True)) if pair[0].text != pair[1].text]
        if len(other) > (1 - ALIKE) * len(prompts):
            row = other[0]
            raise UserError(
                f"the exported model does not say the same: {len(other)} of {len(prompts)} answers differ, such as "
                f"{shown(second[row].text, 40)!r} in place of {shown(first[row].text, 40)!r}; nothing was written"
            )
    theirs.network.patience = PATIENCE  # type: ignore[assignment]
    return max(apart, default=0.0)


def short_prompts(opened: LoadedModel, texts: Sequence[str]) -> list[str]:
    """The texts, cut so that an answer still fits into the context."""
    tokenizer = tokenizer_of(opened)
    room = max(1, min(opened.config.context - 4 - (0 if opened.family.reads else MAX_TOKENS), 200))
    found = [tokenizer.decode(ids[:room]) for ids in tokenizer.ids(list(texts), specials=False)]
    return [text for text in found if text.strip()]


def read_from(data: Any, columns: Mapping[str, str]) -> list[str]:
    """The first texts of what a model that writes is given: lines of a plain file, or the sources of a table."""
    found: list[str] = []
    whole = Table(data, columns)
    tables = [whole]
    if not whole.in_memory:  # .en and .de tell no format: lines
        tables = [
            replace(whole, data=name, format=SUFFIXES.get(telling_suffix(PurePath(name)), "txt")) for name in whole.data
        ]
    for table in tables:
        for record in table.records():
            names = paired_columns(list(record.values)) or ("text",)
            name = columns.get("source") or columns.get("text") or names[0]
            if name not in record.values:
                raise UserError(f"{record.where}: has no column {shown(name)!r}; say which it is: --column source=NAME")
            found.append(str(record.values[name]))
            if len(found) == COMPARED:
                return found
    if not any(text.strip() for text in found):
        raise UserError(f"{whole.name}: there are no texts")
    return found

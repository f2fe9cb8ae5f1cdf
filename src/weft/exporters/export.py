"""`weft.export`: a model for another engine, written only if it gives the same answers there."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from itertools import islice
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from numpy.typing import NDArray

from weft.backends.ctranslate2 import PATIENCE
from weft.checkpoint.card import record_hashes
from weft.checkpoint.families import FAMILIES
from weft.checkpoint.folder import LoadedModel, write_files
from weft.checkpoint.formats import is_published
from weft.comparison.compare import compare
from weft.errors import UserError, listed, one_of, shown
from weft.exporters.ct2_export import read_from, write_ct2
from weft.exporters.onnx_export import write_onnx
from weft.files import whole_folder
from weft.tasks.complete import complete, prompts_of
from weft.tasks.evaluate import Paths, RowOptions, table_of
from weft.tasks.evaluate import rows_of as table_rows
from weft.tasks.forward import tokenizer_of
from weft.tasks.model import Model, load
from weft.text.rows import Skipped
from weft.version import VERSION

TOLERANCE = 1e-4  # of the largest logit: far above what another order of sums makes, far below what a fault makes
SAMPLES = 24  # texts that are made up where none are given
# How far the probabilities of a text may differ, in a batch and alone, by the precision of the weights.
BOUNDS = {"fp32": 1e-5, "fp16": 2e-2, "bf16": 2e-2, "int8": 5e-3, "int4": 5e-3}
MIXED = 200  # inputs on which that is tested
PROMPTS = 64  # of a model that generates
MAX_CHARACTERS = 4000  # of one such text: enough for several windows
MAX_TOKENS = 24  # that a model generates for each of them
TIED = 1e-3  # how far two log-probabilities may differ where another token is generated
SAME = 0.9  # share of the generated texts that must be the same, word for word
NEAR = {"fp32": 1e-3, "fp16": 1e-2, "int8": 0.3}  # how far the log-probability of a token may be off
EXHAUSTIVE = 1000.0  # patience of a search that goes on to the end, as ours does: so that only the models are compared


def check_agreement(source: Model, exported: Model, inputs: Sequence[Any], tolerance: float = TOLERANCE) -> float:
    """The largest difference of the logits, as a share of the largest; refused beyond the tolerance."""
    share, place = difference(logits_of(source, inputs), logits_of(exported, inputs), relative=True)
    if not share <= tolerance:
        raise UserError(
            f"the exported model differs from its source: logits by {share:.3g} of the largest (limit {tolerance:g}), "
            f"on {_shown(inputs[place])}; nothing was written"
        )
    for value, one, two in zip(inputs, source(list(inputs)), exported(list(inputs)), strict=True):
        if one.decision != two.decision:
            raise UserError(
                f"the exported model differs from its source: {shown(str(two.decision), 40)} in place of "
                f"{shown(str(one.decision), 40)} on {_shown(value)}; nothing was written"
            )
    return share


def logits_of(model: Model, inputs: Sequence[Any]) -> list[NDArray[Any]]:
    """The output of a network for each input, before it becomes an answer; empty where it generates text."""
    training = model.network.training
    model.network.eval()
    try:
        return model.task_object.logits_of(model.opened, inputs)
    finally:
        model.network.train(training)


def check_generation(source: Model, exported: Model, texts: Sequence[str], precision: str = "fp32") -> float:
    """How far log-probabilities of the source's tokens are off; in fp32 the generated texts must be the same too."""
    prompts = short_prompts(source.opened, texts)
    width = min(4, source.config.vocabulary)
    greedy: list[Any] = complete(source.opened, prompts, max_tokens=MAX_TOKENS)
    rows = [row for row, answer in enumerate(greedy) if answer.tokens]
    tokens = [list(greedy[row].tokens) for row in rows]
    logprobs = _logprobs(exported.opened, [prompts[row] for row in rows], tokens)
    apart = [abs(own - greedy[row].logprob) / len(greedy[row].tokens) for row, own in zip(rows, logprobs, strict=True)]
    worst = max(range(len(rows)), key=lambda place: apart[place], default=None)
    if worst is not None and not apart[worst] <= NEAR[precision]:
        raise UserError(
            f"the exported model differs from its source: the log-probability of a token by {apart[worst]:.3g} "
            f"(limit {NEAR[precision]:g}), on {_shown(prompts[rows[worst]])}; nothing was written"
        )
    if precision != "fp32":
        return max(apart, default=0.0)
    exported.network.patience = EXHAUSTIVE  # type: ignore[assignment]
    for beam, first in (
        (None, greedy),
        (width, complete(source.opened, prompts, max_tokens=MAX_TOKENS, beam_size=width)),
    ):
        second = complete(exported.opened, prompts, max_tokens=MAX_TOKENS, beam_size=beam)
        other = [row for row, pair in enumerate(zip(first, second, strict=True)) if pair[0].text != pair[1].text]
        if len(other) > (1 - SAME) * len(prompts):
            row = other[0]
            raise UserError(
                f"the exported model differs from its source: {len(other)} of {len(prompts)} texts, such as "
                f"{shown(second[row].text, 40)!r} in place of {shown(first[row].text, 40)!r}; nothing was written"
            )
    exported.network.patience = PATIENCE  # type: ignore[assignment]
    return max(apart, default=0.0)


def _logprobs(opened: LoadedModel, prompts: Sequence[str], tokens: Sequence[list[int]]) -> list[float]:
    """The log-probability of tokens after each prompt, by an engine that generates."""
    if not prompts:
        return []
    asked = prompts_of(opened, prompts)
    sources = [prompt.source for prompt in asked] if opened.family.reads else None
    return opened.network.scored([prompt.tokens for prompt in asked], sources, tokens)  # type: ignore[operator]


def short_prompts(opened: LoadedModel, texts: Sequence[str]) -> list[str]:
    """The texts, truncated so that generated tokens still fit into the context."""
    tokenizer = tokenizer_of(opened)
    room = max(1, min(opened.config.context - 4 - (0 if opened.family.reads else MAX_TOKENS), 200))
    prompts = [tokenizer.decode(ids[:room]) for ids in tokenizer.ids(list(texts), specials=False)]
    return [text for text in prompts if text.strip()]


def check_batch_single(model: Model, inputs: Sequence[Any]) -> float:
    """The largest difference between a text in a batch and alone; refused beyond the bound."""
    task = model.task_object
    if task.writes:
        # Smaller numbers may well change a token by rounding; and torch itself is not in question.
        if model.opened.exported and model.card.precision == "fp32":
            _check_generated(model, short_prompts(model.opened, mixed(model, inputs, PROMPTS)))
        return 0.0
    inputs = mixed(model, inputs, MIXED)
    apart, place = largest_difference(model, inputs)
    bound = BOUNDS[model.card.precision or "fp32"]
    if not apart <= bound:
        raise UserError(
            f"its answers depend on the batch: {'values' if task.unbounded else 'probabilities'} of a text alone and "
            f"among {len(inputs)} differ by {apart:.3g} (limit {bound:g}), on {_shown(inputs[place])}; "
            "nothing was written"
        )
    return apart


def largest_difference(model: Model, inputs: Sequence[Any]) -> tuple[float, int]:
    """How far the probabilities of an input in a batch are from those of the input alone, and of which input."""
    task, opened = model.task_object, model.opened
    alone = [task.numbers_of(opened, [each])[0] for each in inputs]
    return difference(task.numbers_of(opened, inputs), alone, relative=task.unbounded)


def difference(one: Sequence[NDArray[Any]], other: Sequence[NDArray[Any]], relative: bool) -> tuple[float, int]:
    """The largest difference of two lists of arrays, and where; `relative`: as a share of the largest number."""
    unit = max((float(np.abs(each).max()) for each in one if each.size), default=0.0) if relative else 1.0
    unit = unit or 1.0
    worst, place = 0.0, 0
    for number, (first, second) in enumerate(zip(one, other, strict=True)):
        apart = float(np.abs(first - second).max()) / unit if first.size else 0.0
        if not apart <= worst:  # also where it is NaN
            worst, place = apart, number
            if math.isnan(worst):
                break
    return worst, place


def _check_generated(model: Model, prompts: Sequence[str]) -> None:
    """Refuse a model that generates another text for a prompt in a batch, unless two tokens were equally likely."""
    together: list[Any] = complete(model.opened, prompts, max_tokens=MAX_TOKENS)
    for prompt, first in zip(prompts, together, strict=True):
        second: Any = complete(model.opened, [prompt], max_tokens=MAX_TOKENS)[0]
        if first.tokens != second.tokens and not _tied(model, prompt, list(first.tokens), list(second.tokens)):
            raise UserError(
                f"its answers depend on the batch: {shown(first.text, 40)!r} among {len(prompts)} prompts, "
                f"{shown(second.text, 40)!r} alone, on {_shown(prompt)}; nothing was written"
            )


def _tied(model: Model, prompt: str, one: list[int], other: list[int]) -> bool:
    """Whether two texts part where the model finds both tokens equally likely."""
    same = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
    if same is None:
        return False
    first, second = _logprobs(model.opened, [prompt] * 2, [one[: same + 1], other[: same + 1]])
    return abs(first - second) <= TIED


def made_up_inputs(model: Model, count: int = SAMPLES, seed: int = 0) -> list[Any]:
    """Inputs of all lengths made of the tokenizer's own words, for a check without data."""
    tokenizer, chance = tokenizer_of(model.opened), random.Random(seed)
    special = {tokenizer.id_of(role) for role in ("padding", "unknown", "start", "end", "mask", "separator")}
    numbers = [number for number in sorted(tokenizer.tokens.values()) if number not in special]
    longest = min(model.config.context + 8, 600)
    window = model.card.window
    longest = min(longest, window.length + 8) if window is not None else longest

    def text(length: int) -> str:
        return tokenizer.decode([chance.choice(numbers) for _ in range(length)]).strip() or "a"

    lengths = [1, 2, longest, *(1 + int(longest ** chance.random()) for _ in range(count - 3))]
    return [model.task_object.made_up_input(text, length, tokenizer) for length in lengths]


def mixed(model: Model, inputs: Sequence[Any], total: int) -> list[Any]:
    """Short and long inputs: up to three quarters from those given, evenly by length; the rest is made up."""

    def size(value: Any) -> int:
        return len(value) if isinstance(value, str) else sum(map(len, value))

    order = sorted(inputs, key=size)
    count = min(total * 3 // 4, len(order))
    given = [_truncated(order[number * (len(order) - 1) // max(1, count - 1)]) for number in range(count)]
    return [*given, *made_up_inputs(model, total - count)]


def _truncated(value: Any) -> Any:
    """An input whose texts are not longer than the test needs; a list of words keeps its first."""
    if isinstance(value, str):
        return value[:MAX_CHARACTERS]
    if isinstance(value, tuple):
        return tuple(text[:MAX_CHARACTERS] for text in value)
    return value[: MAX_CHARACTERS // 5]


def _shown(value: Any) -> str:
    return repr(shown(value if isinstance(value, str) else " | ".join(value), 50))


def write_transformers(inside: Path, opened: LoadedModel, task: str) -> None:
    """The files of a folder that transformers opens, one by one."""
    if opened.family.architecture(opened.config, opened.heads) is None:
        raise UserError(_why(opened))
    card = replace(opened.card, task=task, weft=VERSION)
    write_files(inside, replace(opened, card=card))


def _why(opened: LoadedModel) -> str:
    """What of a model the published format has no words for."""
    family, config = opened.family, opened.config
    if not family.architectures:
        known = [each.name for each in FAMILIES.values() if each.architectures]
        return f"transformers has no {family.name} models; it has {listed(known, 20)}"
    if is_published(family.table, config, family.standard):
        return f"transformers has no {family.name} model with these heads together: {listed(opened.heads)}"
    if config.layer_heads is not None:
        return "transformers has one number of heads for all layers, and this model has several"
    for spec in fields(config):
        usual, value = family.standard.get(spec.name, spec.default), vars(config)[spec.name]
        with suppress(UserError):  # what is usual may not go with the other sizes
            if value != usual and is_published(family.table, replace(config, **{spec.name: usual}), family.standard):
                return f"transformers has no {family.name} model with {spec.name}={value}"
    return f"transformers has no {family.name} model with these blocks"


def check_same(ours: Model, theirs: Model, inputs: Sequence[Any], tolerance: float) -> float:
    """That a folder, read back, holds the same config and the same numbers, reads the same tokens and says the same."""
    one, two = ours.opened, theirs.opened
    first, second = one.network.state_dict(), two.network.state_dict()
    other = [name for name in {**first, **second} if name not in first or name not in second]
    other = other or [name for name, tensor in first.items() if not torch.equal(tensor.cpu(), second[name])]
    if other:
        raise UserError(f"the folder, read back, holds other weights: {listed(other)}; nothing was written")
    unequal = [spec.name for spec in fields(one.config) if not _alike(one.config, two.config, spec.name)]
    if unequal:
        raise UserError(f"the folder, read back, has another config: {listed(unequal)}; nothing was written")
    for mine, other_one in ((one.tokenizer, two.tokenizer), (one.target_tokenizer, two.target_tokenizer)):
        texts = [each if isinstance(each, str) else " ".join(map(str, each)) for each in inputs]
        if mine is not None and (other_one is None or mine.ids(texts) != other_one.ids(texts)):
            raise UserError("the folder, read back, tokenizes texts differently; nothing was written")
    return 0.0 if one.family.generates else check_agreement(ours, theirs, inputs, tolerance)


def _alike(one: Any, two: Any, name: str) -> bool:
    """Whether two configs mean the same by a field; None stands for what is usual, and dropouts for training alone."""
    values = [vars(each)[name] for each in (one, two)]
    usual = {"head_width": one.width // one.heads, "inner": 4 * one.width}.get(name)
    return values[0] == values[1] or {*values} == {None, usual} or name.endswith(("dropout", "weight_scale", "mix"))


@dataclass(frozen=True)
class Exported:
    """What was written, and how near it is to what it was made of."""

    folder: Path
    to: str
    bytes: int
    apart: float  # share of the largest score; of a model that writes, what the log-probability of a token is off by
    texts: int  # on which that was seen


CHECKED = 512  # texts of a file that an export is checked on
# Each writes the files of a folder, which is then loaded and checked.
WAYS: dict[str, Callable[[Path, LoadedModel, str], None]] = {
    "onnx": write_onnx,
    "ctranslate2": write_ct2,
    "transformers": write_transformers,
}


def export(
    model: Model | str | os.PathLike[str],
    to: str = "onnx",
    *,
    out: str | os.PathLike[str],
    data: str | os.PathLike[str] | Sequence[str] | None = None,
    columns: Mapping[str, str] | None = None,
    task: str | None = None,
    tolerance: float = TOLERANCE,
    online: bool = False,
    trust: bool = False,
) -> Exported:
    """Write a model for another engine; `weft.load` opens it like any other folder.

    Before the folder appears, both answer the texts of `data` (made-up ones where there is none): where scores differ
    by more than `tolerance` of the largest, or one answer differs, nothing is written. Nor is it where the answer to a
    text depends on the others of its batch.
    """
    one_of(to, WAYS, "to")
    model = model if isinstance(model, Model) else load(model, task=task, online=online, trust=trust)
    refuse_exported(model)
    inputs = texts_of(model, data, columns=columns)
    if data is not None:
        check_sound(model, data, columns)
    with whole_folder(Path(out)) as inside:
        WAYS[to](inside, model.opened, model.task)
        exported = load(inside)
        if to == "transformers":
            apart = check_same(model, exported, inputs, tolerance)
        elif model.opened.family.generates and to == "ctranslate2":
            apart = check_generation(model, exported, inputs)
        else:
            apart = check_agreement(model, exported, inputs, tolerance)
        if exported.opened.exported:
            check_batch_single(exported, inputs)
        record_hashes(inside)
        needed = (path for path in inside.rglob("*") if path.is_file() and "run" not in path.parts)
        size = sum(path.stat().st_size for path in needed)
    return Exported(Path(out), to, size, apart, len(inputs))


def check_sound(model: Model, data: Paths, columns: Mapping[str, str] | None) -> None:
    """Refuse a model that is damaged, by the user's rows: its export would be, too."""
    if not model.task_object.supervised or model.task_object.writes:
        return
    try:
        standing = compare([model], data, columns=columns, costs=False, task=model.task).models[0]
    except UserError:  # rows with other labels show nothing
        return
    if standing.damaged:
        raise UserError(f"the model itself is damaged: {standing.damaged}; nothing was written")


def refuse_exported(model: Model) -> None:
    """A model that another engine runs has no weights to make another one of."""
    if model.opened.exported:
        raise UserError(f"this is a model for {model.card.backend} already; give the model it was made from")


def texts_of(model: Model, data: Any, **options: Unpack[RowOptions]) -> list[Any]:
    """The inputs on which two models are compared: the first of a file, else made-up ones."""
    if data is None:
        return made_up_inputs(model)
    task = model.task_object
    if task.writes or (model.opened.family.generates and not task.supervised):
        return read_from(data, options.get("columns") or {})
    table = table_of(data, options)
    rows = table_rows(model, table, Skipped())
    inputs = list(islice((row.input for row in rows if row.problem is None), CHECKED))
    if not inputs:
        raise UserError(f"{table.name}: there are no rows")
    return inputs

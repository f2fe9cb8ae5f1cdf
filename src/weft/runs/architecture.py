"""The model that a run begins with: family, size and vocabulary, word vectors to start from, and heads of a task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from weft.checkpoint.card import Card
from weft.checkpoint.external import open_vectors
from weft.checkpoint.families import FAMILIES, Family, check_config, family_named, find_size
from weft.checkpoint.folder import TARGET, LoadedModel, open_folder
from weft.checkpoint.locate import find_folder
from weft.config import changed
from weft.data.masking import sentinel
from weft.errors import UserError, listed, shown
from weft.files import MEGABYTE, read_json
from weft.progress import Log
from weft.runs.recipes import FROM_SCRATCH, TaskRecipe, TokenizerSection, check_has_model
from weft.tasks.base import Example, Task
from weft.tasks.model import new
from weft.tasks.registry import SUPERVISED, task_class
from weft.text.tokenizers.published import load_tokenizer
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.tokenizers.training import MAX_VOCABULARY, learn, learn_like
from weft.text.vector_files import is_file_of_vectors
from weft.training.run import Run
from weft.training.signals import Control

USUAL = 8000  # tokens of a vocabulary
CHOICES = ("family", "size", "base", "vectors")  # keys of [model] that are not sizes
FEW, MANY = 100_000, 500_000  # pairs of texts, up to which a small model, or a middling one, is large enough
LABELLED_DROPOUT = 0.5  # of a recurrent network that labels texts
DROPOUT = 0.3  # of such a model: few pairs are soon known by heart


def chosen_family(model: Mapping[str, Any], tokenizer: TokenizerSection, sizes: Mapping[str, Any]) -> Family:
    """The family to train, with every choice of the model checked."""
    chosen = {key: model[key] for key in CHOICES if key in model}
    wrong = [key for key, value in chosen.items() if not isinstance(value, str)]
    if wrong:
        raise UserError(f"[model]: {wrong[0]} must be a text, not {chosen[wrong[0]]!r}")
    if "base" in chosen:
        if len(model) > 1:
            others = listed([key for key in model if key != "base"])
            raise UserError(f"--base brings its own model: {others} cannot be chosen with it")
        if tokenizer != TokenizerSection():
            raise UserError("--base brings its own tokenizer: none can be chosen with it")
        if Path(chosen["base"]).is_file():
            if not is_file_of_vectors(Path(chosen["base"])):
                raise UserError(f"{chosen['base']}: is neither a model folder nor a text file of word vectors")
            return FAMILIES["vectors"]
        path = find_folder(chosen["base"]) / "config.json"
        if not path.is_file():
            raise UserError(f"{chosen['base']!r} is not a model folder: it has no config.json")
        kind = read_json(path, 16 * MEGABYTE).get("model_type", "")
        family = family_named(str(kind).removeprefix("weft-"))
        if family is None:
            raise UserError(f"{chosen['base']}: model_type {kind!r} is not one of {', '.join(FAMILIES)}")
        return family
    check_has_model(model)
    family, config = find_size(chosen["family"], chosen.get("size"), sizes.get("heads"))
    check_config(family, changed(config, sizes, "[model]"))
    if "vectors" in chosen:
        if not fits_vectors(family):
            able = listed([each.name for each in FAMILIES.values() if fits_vectors(each)])
            raise UserError(f"--vectors: the table of {family.name} is not filled with word vectors; that of {able} is")
        if tokenizer.folder is None and tokenizer.kind not in (None, "word"):
            raise UserError(f"--vectors: word vectors need a word vocabulary, not tokenizer.kind {tokenizer.kind}")
    return family


def family_for(task: str, model: Mapping[str, Any], log: Log) -> dict[str, Any]:
    """The choices of a task's model, with the family that serves the task best from nothing where none is chosen."""
    check_has_model(model, task)
    if "base" in model or "family" in model:
        return dict(model)
    log(f"model: {FROM_SCRATCH[task]}, from scratch (--model or --base decides)")
    return {"family": FROM_SCRATCH[task], **model}


def sizes_of(model: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in model.items() if key not in CHOICES}


def size_of(config: Any) -> str:
    """A model's size in short: layers x width, or what it has of these."""
    sizes = [str(size) for size in (config.layers, config.width) if size]
    return " x ".join(sizes) if len(sizes) == 2 else f"width {sizes[0]}" if sizes else "counts"


def sized(model: Mapping[str, Any], family: Family, pairs: int, log: Log) -> dict[str, Any]:
    """The choices of an encoder-decoder from nothing, with a size by the number of pairs where none is asked for."""
    settings = dict(model)
    fields = family.config.__dataclass_fields__
    chosen = {"size", "width", "layers"} & set(settings) or settings.get("family") != family.name
    if chosen or "base" in settings or not {"layers", "heads", "inner"} <= set(fields) or pairs >= MANY:
        return settings
    settings["size"] = "3x256" if pairs < FEW else "4x384"
    dropouts = {name: DROPOUT for name in ("dropout", "embedding_dropout") if name in fields and name not in settings}
    log(
        f"size: {settings['size']}{f' with a dropout of {DROPOUT}' if dropouts else ''}, "
        f"for {pairs:,} pairs (--size decides)"
    )
    return settings | dropouts


def both_ways(model: Mapping[str, Any], family: Family, log: Log) -> dict[str, Any]:
    """The choices of a recurrent network that labels texts from nothing: small, and reading both ways by default."""
    settings = dict(model)
    if not isinstance(family.standard.get("cell"), str) or "base" in settings:
        return settings
    if not ({"size", "width", "layers"} & set(settings)) and settings.get("family") == family.name:
        settings |= {"layers": 1, "width": 256}
        log("size: 1x256 (--size decides)")
    # Of a long text the last states know its ends; the largest of each number know where something stood out.
    return {"bidirectional": True, "pooling": "max", "dropout": LABELLED_DROPOUT, **settings}


def vocabulary_for(
    folder: Path,
    given: TokenizerSection,
    family: Family,
    speaks: bool,
    texts: Iterable[str],
    control: Control,
    like: Tokenizer | None = None,
) -> Tokenizer:
    """The folder's own vocabulary, the one asked for, or one learned from the texts, cut into words as `like` does."""
    if (folder / "tokenizer_config.json").exists():  # the last of its files to be written
        return load_tokenizer(folder)
    if given.folder is None:
        tokenizer = _learned(given, family, speaks, texts, control, like)
    else:
        tokenizer = load_tokenizer(Path(given.folder))
    folder.mkdir(exist_ok=True)
    tokenizer.save(folder)
    return tokenizer


def _learned(
    given: TokenizerSection,
    family: Family,
    speaks: bool,
    texts: Iterable[str],
    control: Control,
    like: Tokenizer | None,
) -> Tokenizer:
    """A vocabulary learned from the texts, of the family's usual kind and size unless given."""
    kind = given.kind or (family.tokenizer if like is None else "word")
    if given.kind is None and kind == "unigram" and find_spec("sentencepiece") is None:
        kind = "bpe"
        control.note("learning a bpe vocabulary; unigram, the usual one, needs: pip install 'weft[data]'")
    # A model that counts learns nothing for each word, so it may know all of them.
    every = family.counts and given.size is None and kind in ("word", "whitespace", "character")
    usual = family.vocabulary if kind == family.tokenizer and like is None else {}
    size = given.size or (MAX_VOCABULARY if every else usual.get("size", USUAL))
    min_count = given.min_count
    if min_count is None:
        min_count = 1 if every else usual.get("min_count")
    with control.count(f"learning a {kind} vocabulary", "documents", "stopped while learning the vocabulary") as step:

        def counted() -> Iterator[str]:
            for text in texts:
                step(1)
                yield text

        if like is not None:
            tokenizer = learn_like(counted(), like, size, min_count)
        else:
            tokenizer = learn(
                counted(),
                kind,
                size,
                lowercase=usual.get("lowercase") if given.lowercase is None else given.lowercase,
                min_count=min_count,
                specials=None if speaks else family.specials,
                around=None if speaks else family.around,
                extra=[sentinel(number) for number in reversed(range(family.sentinels))],
            )
    less = f" ({size} were asked for; the text has no more)" if given.size and tokenizer.vocabulary < size else ""
    control.log(f"vocabulary: {tokenizer.kind}, {tokenizer.vocabulary:,} tokens{less}")
    return tokenizer


def vocabularies_for(
    run: Run, recipe: TaskRecipe, family: Family, rows: Sequence[Example], start: Start | None, control: Control
) -> tuple[Tokenizer, ...]:
    """One vocabulary for all texts, or one for what is read and another for what is written."""

    def learned(texts: Iterator[str], inside: str = "") -> Tokenizer:
        alone, like = family.generates and not family.reads, None if start is None else start.tokenizer
        return vocabulary_for(run.folder / inside, recipe.tokenizer, family, alone, texts, control, like)

    ahead = recipe.task.prefix or ""
    read = (ahead + text for row in rows for text in row.texts)
    if not family.reads:
        return (learned(read),)
    written = (row.target for row in rows)
    if recipe.tokenizer.apart:
        return learned(read), learned(written, TARGET)
    return (learned(chain(read, written)),)


@dataclass(frozen=True)
class Start:
    """Word vectors to begin from, and how text is cut into their words."""

    path: Path
    matrix: Tensor  # n d
    tokenizer: Tokenizer


def fits_vectors(family: Family) -> bool:
    """Whether the table of a family may be as wide as any vectors, and its tokens may be words."""
    free = not family.config.has("heads") and family.config.has("width")
    return free and family.specials is None and not family.reads and not family.counts


def find_vectors(name: str) -> Path:
    """A folder or a file of word vectors, as its first lines or its config tell."""
    path = Path(name).expanduser()
    if not path.is_dir() and not is_file_of_vectors(path):
        what = "is not a file of word vectors" if path.exists() else "there is no such folder or file of word vectors"
        raise UserError(f"{path}: {what}")
    return path


def begun_from(model: Mapping[str, Any], family: Family, on_bad_row: str = "stop") -> tuple[dict[str, Any], Start]:
    """The choices of a model with the width that its vectors have, and these."""
    path = find_vectors(model["vectors"])
    opened = open_folder(path) if path.is_dir() else open_vectors(path, {}, on_bad_row=on_bad_row)
    if opened.family.name != "vectors":
        raise UserError(f"{path}: is a model folder of {opened.family.name}, not of word vectors")
    if opened.tokenizer is None or opened.tokenizer.kind not in ("word", "whitespace"):
        raise UserError(f"{path}: has no vocabulary of words")
    start = Start(path, opened.network.get_parameter("tokens.weight").detach().float(), opened.tokenizer)
    field, width = "embedding_width" if family.config.has("embedding_width") else "width", start.matrix.shape[1]
    if model.get(field) not in (None, width):
        raise UserError(
            f"{path}: its vectors have {width} numbers, but model.{field} is set to {model[field]}; leave it out"
        )
    return {**model, field: width}, start


@torch.no_grad()
def fill_table(network: nn.Module, tokenizer: Tokenizer, start: Start, seed: int, log: Log) -> None:
    """Put the vectors of the words that have one into the table of tokens; the others are drawn to vary as much."""
    specials = {name: role for role, name in vars(tokenizer.roles).items() if name is not None}
    places = start.tokenizer.tokens
    words = sorted(tokenizer.tokens.items(), key=lambda item: item[1])
    pairs = [(number, places[word]) for word, number in words if word in places and word not in specials]
    missing = [shown(word, 30) for word, _ in words if word not in places and word not in specials]
    if not pairs:
        raise UserError(f"{start.path}: has none of the {len(missing):,} words of the data: {listed(missing, 5)}")
    ours, theirs = (torch.tensor(numbers) for numbers in zip(*pairs, strict=True))
    vectors = start.matrix[theirs]
    table = network.get_parameter("tokens.weight")
    chance = torch.Generator().manual_seed(seed)
    spread = float(vectors.double().std(correction=0))
    filled = torch.randn(table.shape, generator=chance) * spread
    filled[ours] = vectors
    unknown, there = tokenizer.id_of("unknown"), start.tokenizer.id_of("unknown")
    if unknown is not None and there is not None:  # a file without one has been given the mean
        filled[unknown] = start.matrix[there]
    table.copy_(filled)
    for name, buffer in network.named_buffers():
        if name == "fixed":  # a second table, which stays as it begins
            buffer.copy_(filled)
    absent = f"; missing {len(missing):,}: {listed(missing, 5)}" if missing else ""
    log(f"vectors: {len(pairs):,} of {len(pairs) + len(missing):,} words found{absent}")


def tasks_for(family: Family) -> tuple[str, ...]:
    """The built-in tasks that a family can be fine-tuned for."""
    return tuple(name for name in SUPERVISED if task_class(name).fits(family))


def check_model(recipe: TaskRecipe) -> None:
    """All that can be wrong with the choice of a model, checked before any data is read."""
    family = chosen_family(recipe.model, recipe.tokenizer, sizes_of(recipe.model))
    if "vectors" in recipe.model:
        find_vectors(recipe.model["vectors"])
    work = recipe.task
    task = task_class(work.name)
    if not task.fits(family):
        if task.needs:
            able = listed([each.name for each in FAMILIES.values() if task.fits(each)])
            raise UserError(f"{work.name} needs a model that {task.needs} ({able}), not {family.name}")
        able = f"; it learns {listed(tasks_for(family), 20)}" if tasks_for(family) else " and learns from text alone"
        raise UserError(f"{family.name} has no head for {work.name}{able}")
    if recipe.tokenizer.apart and not family.config.has("source_vocabulary"):
        raise UserError(f"{family.name} has one vocabulary for what it reads and what it writes")
    if work.words and not family.generates:
        raise UserError(f"next words are learned by models that speak, not by {family.name}")


@dataclass(frozen=True)
class Beginning:
    """A model to train, and whether the head of its task is new, or all of it."""

    opened: LoadedModel
    fresh: bool
    scratch: bool = False
    note: str | None = None  # what of the base does not stay


def begun_model(recipe: TaskRecipe, task: Task, tokenizer: Any, target_tokenizer: Any = None) -> Beginning:
    """The model with the heads of the task; a base that has learned the same labels keeps its head."""
    wanted: dict[str, int | None] = dict(task.objective().heads)
    base = recipe.model.get("base")
    if base is None:
        made = new(
            str(recipe.model["family"]),
            tokenizer,
            size=recipe.model.get("size"),
            settings={**sizes_of(recipe.model), **({"mix": True} if recipe.task.mix else {})},
            heads=wanted,
            seed=recipe.seed,
            where="[model]",
            target_tokenizer=target_tokenizer,
        )
        return Beginning(made.opened, True, True)
    heads = {head: count or 0 for head, count in wanted.items()}
    if Path(base).is_file():
        return Beginning(open_vectors(Path(base), heads, recipe.seed, on_bad_row=recipe.data.on_bad_row), True)
    same = (recipe.task.name, task.labels)
    return from_folder(find_folder(base), wanted, task.head, same, recipe.seed, recipe.task.mix)


def from_folder(
    folder: Path,
    wanted: Mapping[str, int | None],
    head: str,
    same: tuple[str, tuple[str, ...]],
    seed: int,
    mix: bool = False,
) -> Beginning:
    """A model folder with the heads that are wanted; those that have learned the `same` task and labels stay."""
    there = open_folder(folder)
    heads = {head: there.config.vocabulary if count is None else count for head, count in wanted.items()}
    keeps = (there.card.task, there.card.labels or ()) == same
    keep = [head for head in heads if there.heads.get(head) == heads[head] and (keeps or head == "words")]
    if mix and not there.config.mix:
        keep = [head for head in keep if head == "words"]  # the others have learned to read the last layer
    new_heads = {head: count for head, count in heads.items() if head not in keep}
    opened = open_folder(folder, new_heads, keep, seed, mix) if new_heads else there
    opened.network.float()
    replaced = head in new_heads and head in there.heads and there.card.task is not None
    return Beginning(opened, head in new_heads, note=_replaced(there.card, *same) if replaced else None)


def _replaced(card: Card, task: str, labels: tuple[str, ...]) -> str | None:
    """The note where the head of a base has learned another task, or other labels."""
    before, after = (shown(listed(names, 8), 120) for names in (card.labels or (), labels))
    if before and after and card.labels != labels:
        return f"labels {before} are replaced by {after}"
    return f"the head for {card.task} is replaced by one for {task}" if card.task != task else None

"""The model that a run begins with: family, size and vocabulary, word vectors to start from, and heads of a task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from weft.checkpoint.external import open_vectors
from weft.checkpoint.families import FAMILIES, Family, check_config, family_named, find_size
from weft.checkpoint.folder import LoadedModel, open_folder
from weft.checkpoint.locate import find_folder
from weft.config import changed
from weft.data.masking import sentinel
from weft.errors import UserError, listed, refuse, shown
from weft.files import MEGABYTE, read_json
from weft.progress import Log
from weft.runs.dataset import counted
from weft.runs.recipes import FROM_SCRATCH, Recipe, TaskRecipe, TokenizerSection, check_has_model
from weft.tasks.model import new
from weft.tasks.registry import SUPERVISED, task_class
from weft.text.tokenizers.published import load_tokenizer
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.tokenizers.training import MAX_VOCABULARY, learn, learn_like
from weft.text.vector_files import is_file_of_vectors
from weft.training.run import Run
from weft.training.signals import Control

R = TypeVar("R", Recipe, TaskRecipe)
Heads = Mapping[str, int | None]
Learn = Callable[[Tokenizer | None], tuple[Tokenizer, ...]]  # makes the vocabularies of a run
USUAL = 8000  # tokens of a vocabulary
CHOICES = ("family", "size", "base", "vectors")  # keys of [model] that are not sizes
FEW, MANY = 100_000, 500_000  # pairs of texts, up to which a small model, or a middling one, is large enough
LABELLED_DROPOUT = 0.5  # of a recurrent network that labels texts
DROPOUT = 0.3  # of such a model: few pairs are soon known by heart


def chosen_family(model: Mapping[str, Any], tokenizer: TokenizerSection) -> Family:
    """The family to train, with every choice of the model checked."""
    chosen = {key: model[key] for key in CHOICES if key in model}
    for key, value in chosen.items():
        refuse((not isinstance(value, str), f"[model]: {key} must be a text, not {value!r}"))
    if "base" in chosen:
        base, others = chosen["base"], listed([key for key in model if key != "base"])
        refuse(
            (len(model) > 1, f"--base brings its own model: {others} cannot be chosen with it"),
            (tokenizer != TokenizerSection(), "--base brings its own tokenizer: none can be chosen with it"),
        )
        if Path(base).is_file():
            vectors = is_file_of_vectors(Path(base))
            refuse((not vectors, f"{base}: is neither a model folder nor a text file of word vectors"))
            return FAMILIES["vectors"]
        path = find_folder(base) / "config.json"
        refuse((not path.is_file(), f"{base!r} is not a model folder: it has no config.json"))
        kind = read_json(path, 16 * MEGABYTE).get("model_type", "")
        if (family := family_named(str(kind).removeprefix("weft-"))) is None:
            raise UserError(f"{base}: model_type {kind!r} is not one of {', '.join(FAMILIES)}")
        return family
    check_has_model(model)
    sizes = sizes_of(model)
    family, config = find_size(chosen["family"], chosen.get("size"), sizes.get("heads"))
    check_config(family, changed(config, sizes, "[model]"))
    if "vectors" in chosen:
        able = listed([each.name for each in FAMILIES.values() if fits_vectors(each)])
        words = tokenizer.folder is not None or tokenizer.kind in (None, "word")
        refuse(
            (not fits_vectors(family), f"--vectors: {family.name} does not take word vectors; {able} do"),
            (not words, f"--vectors: word vectors need a word vocabulary, not tokenizer.kind {tokenizer.kind}"),
        )
    return family


def family_for(task: str, model: Mapping[str, Any], log: Log) -> dict[str, Any]:
    """The choices of a task's model, with the family that serves the task best from nothing where none is chosen."""
    check_has_model(model, task)
    if "base" in model or "family" in model:
        return dict(model)
    log(f"model: {FROM_SCRATCH[task]}, from scratch (--model or --base overrides)")
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
    dropout = f" with a dropout of {DROPOUT}" if dropouts else ""
    log(f"size: {settings['size']}{dropout}, for {pairs:,} pairs (--size overrides)")
    return settings | dropouts


def both_ways(model: Mapping[str, Any], family: Family, log: Log) -> dict[str, Any]:
    """The choices of a recurrent network that labels texts from nothing: small, and reading both ways by default."""
    settings = dict(model)
    if not isinstance(family.standard.get("cell"), str) or "base" in settings:
        return settings
    if not ({"size", "width", "layers"} & set(settings)) and settings.get("family") == family.name:
        settings |= {"layers": 1, "width": 256}
        log("size: 1x256 (--size overrides)")
    # Of a long text the last states know its ends; the largest of each number know where something stood out.
    return {"bidirectional": True, "pooling": "max", "dropout": LABELLED_DROPOUT, **settings}


def vocabulary_for(
    path: Path, given: TokenizerSection, family: Family, texts: Iterable[str], like: Tokenizer | None, control: Control
) -> Tokenizer:
    """The folder's own vocabulary, the one asked for, or one learned from the texts, cut into words as `like` does."""
    if (path / "tokenizer_config.json").exists():  # the last of its files to be written
        return load_tokenizer(path)
    if given.folder is not None:
        tokenizer = load_tokenizer(Path(given.folder))
    else:
        kind = given.kind or (family.tokenizer if like is None else "word")
        if given.kind is None and kind == "unigram" and find_spec("sentencepiece") is None:
            kind = "bpe"
            control.note("learning a bpe vocabulary; unigram, the usual one, needs: pip install 'weft[data]'")
        # A model that counts learns nothing for each word, so it may know all of them.
        every = family.counts and given.size is None and kind in ("word", "whitespace", "character")
        usual = family.vocabulary if kind == family.tokenizer and like is None else {}
        size = given.size or (MAX_VOCABULARY if every else usual.get("size", USUAL))
        least = 1 if every else usual.get("min_count")
        least = least if given.min_count is None else given.min_count
        message = "stopped while learning the vocabulary"
        with control.count(f"learning a {kind} vocabulary", "documents", message) as step:
            if like is not None:
                tokenizer = learn_like(counted(texts, step), like, size, least)
            else:
                lowercase = usual.get("lowercase") if given.lowercase is None else given.lowercase
                extra = [sentinel(number) for number in reversed(range(family.sentinels))]
                options: dict[str, Any] = {"lowercase": lowercase, "min_count": least, "extra": extra}
                if family.reads or not family.generates:
                    options |= {"specials": family.specials, "around": family.around}
                tokenizer = learn(counted(texts, step), kind, size, **options)
        fewer = f" (of {size} requested; the text has no more)" if given.size and tokenizer.vocabulary < size else ""
        control.log(f"vocabulary: {tokenizer.kind}, {tokenizer.vocabulary:,} tokens{fewer}")
    path.mkdir(exist_ok=True)
    tokenizer.save(path)
    return tokenizer


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


def from_scratch(
    run: Run, recipe: R, heads: Heads, settings: dict[str, Any], vocabularies: Learn, control: Control, on_bad_row: str
) -> tuple[R, LoadedModel]:
    """A new model with these vocabularies, word vectors in its table; and the recipe with their width."""
    given, vectors, path = dict[str, Any](recipe.model), None, Path()
    if "vectors" in given and run.checkpoints().newest() is None:  # of a resumed run the weights are in the checkpoint
        path = find_vectors(given["vectors"])
        vectors = open_folder(path) if path.is_dir() else open_vectors(path, {}, on_bad_row=on_bad_row)
        words = vectors.tokenizer is not None and vectors.tokenizer.kind in ("word", "whitespace")
        key = "embedding_width" if find_size(given["family"])[0].config.has("embedding_width") else "width"
        width, asked, family = vectors.config.width, given.get(key), vectors.family.name
        refuse(
            (family != "vectors", f"{path}: is a model folder of {family}, not of word vectors"),
            (not words, f"{path}: has no vocabulary of words"),
            (asked not in (None, width), f"{path}: its vectors have width {width}, not {asked}; leave out model.{key}"),
        )
        given[key] = width
    tokenizers = vocabularies(None if vectors is None else vectors.tokenizer)
    target = tokenizers[1] if len(tokenizers) > 1 else None
    options: dict[str, Any] = {"size": given.get("size"), "settings": {**sizes_of(given), **settings}, "heads": heads}
    options |= {"seed": recipe.seed, "where": "[model]", "target_tokenizer": target}
    model = new(str(given["family"]), tokenizers[0], **options).opened
    if vectors is not None:
        fill_table(model.network, tokenizers[0], vectors, path, recipe.seed, control.log)
    return replace(recipe, model=given), model


@torch.no_grad()
def fill_table(network: nn.Module, tokenizer: Tokenizer, vectors: LoadedModel, path: Path, seed: int, log: Log) -> None:
    """Put the vectors of the words that have one into the table of tokens; the others are drawn to vary as much."""
    assert vectors.tokenizer is not None
    places, matrix = vectors.tokenizer.tokens, vectors.network.get_parameter("tokens.weight").detach().float()
    specials = {name for name in vars(tokenizer.roles).values() if name is not None}
    words = [item for item in sorted(tokenizer.tokens.items(), key=lambda item: item[1]) if item[0] not in specials]
    pairs = [(number, places[word]) for word, number in words if word in places]
    missing = [shown(word, 30) for word, _ in words if word not in places]
    if not pairs:
        raise UserError(f"{path}: has none of the {len(missing):,} words of the data: {listed(missing, 5)}")
    ours, theirs = (torch.tensor(numbers) for numbers in zip(*pairs, strict=True))
    table = network.get_parameter("tokens.weight")
    spread = float(matrix[theirs].double().std(correction=0))
    filled = torch.randn(table.shape, generator=torch.Generator().manual_seed(seed)) * spread
    filled[ours] = matrix[theirs]
    unknown, there = tokenizer.id_of("unknown"), vectors.tokenizer.id_of("unknown")
    if unknown is not None and there is not None:  # a file without one has been given the mean
        filled[unknown] = matrix[there]
    table.copy_(filled)
    for name, buffer in network.named_buffers():
        if name == "fixed":  # a second table, which is not trained
            buffer.copy_(filled)
    absent = f"; missing {len(missing):,}: {listed(missing, 5)}" if missing else ""
    log(f"vectors: {len(pairs):,} of {len(words):,} words have one{absent}")


def tasks_for(family: Family) -> tuple[str, ...]:
    """The built-in tasks that a family can be fine-tuned for."""
    return tuple(name for name in SUPERVISED if task_class(name).fits(family))


@dataclass(frozen=True)
class Beginning:
    """A model to train, and whether the head of its task is new, or all of it."""

    opened: LoadedModel
    fresh: bool
    scratch: bool = False
    note: str | None = None  # what of the base does not stay


def from_folder(
    folder: Path, wanted: Heads, head: str, same: tuple[str, tuple[str, ...]] | None, seed: int, mix: bool = False
) -> Beginning:
    """A model folder with the wanted heads; those that have learned the `same` task and labels stay (None: all)."""
    there = open_folder(folder)
    card, labels = there.card, there.card.labels or ()
    heads = {head: there.config.vocabulary if count is None else count for head, count in wanted.items()}
    keeps = same is None or (card.task, labels) == same
    keep = [head for head in heads if there.heads.get(head) == heads[head] and (keeps or head == "words")]
    if mix and not there.config.mix:
        keep = [head for head in keep if head == "words"]  # the others have learned to read the last layer
    new_heads = {head: count for head, count in heads.items() if head not in keep}
    opened = open_folder(folder, new_heads, keep, seed, mix) if new_heads else there
    opened.network.float()
    note = None
    if same is not None and head in new_heads and head in there.heads and card.task is not None:
        if labels and same[1] and labels != same[1]:
            before, after = (shown(listed(names, 8), 120) for names in (labels, same[1]))
            note = f"labels {before} are replaced by {after}"
        elif card.task != same[0]:
            note = f"the head for {card.task} is replaced by one for {same[0]}"
    return Beginning(opened, head in new_heads, note=note)

"""Which family a run trains, of what size, with which vocabulary: the choices that every kind of run has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

from weft.checkpoint.families import FAMILIES, Family, check_config, family_named, find_size
from weft.checkpoint.folder import TARGET
from weft.checkpoint.locate import find_folder
from weft.checkpoint.vectors import is_vectors
from weft.config import changed
from weft.data.masking import sentinel
from weft.errors import UserError, listed
from weft.files import MEGABYTE, read_json
from weft.progress import Log, Progress
from weft.runs.recipes import FROM_SCRATCH, TaskRecipe, check_has_model
from weft.runs.sections import TokenizerSection
from weft.runs.word_vectors_start import Start, check_vectors
from weft.tasks.base import Example
from weft.text.tokenizers.published import load_tokenizer
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.tokenizers.training import MAX_VOCABULARY, learn, learn_like
from weft.training.run import Run
from weft.training.signals import Stop

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
            if not is_vectors(Path(chosen["base"])):
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
        check_vectors(family, chosen["vectors"], tokenizer.folder is None and tokenizer.kind or "word")
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
    run: Run,
    given: TokenizerSection,
    family: Family,
    speaks: bool,
    texts: Iterable[str],
    stop: Stop,
    log: Log,
    progress: Progress,
    inside: str = "",
    like: Tokenizer | None = None,
) -> Tokenizer:
    """The run's own vocabulary, the one asked for, or one learned from the texts; `inside` a folder of the run's.

    `like`: a tokenizer of words, by whose rules the texts are cut into words.
    """
    folder = run.folder / inside
    if (folder / "tokenizer_config.json").exists():  # the last of its files to be written
        return load_tokenizer(folder)
    if given.folder is not None:
        tokenizer = load_tokenizer(Path(given.folder))
    else:
        tokenizer = _learned(given, family, speaks, texts, stop, log, progress, like)
    folder.mkdir(exist_ok=True)
    tokenizer.save(folder)
    return tokenizer


def _learned(
    given: TokenizerSection,
    family: Family,
    speaks: bool,
    texts: Iterable[str],
    stop: Stop,
    log: Log,
    progress: Progress,
    like: Tokenizer | None,
) -> Tokenizer:
    """A vocabulary learned from the texts, of the family's usual kind and size unless given."""
    kind = given.kind or (family.tokenizer if like is None else "word")
    if given.kind is None and kind == "unigram" and find_spec("sentencepiece") is None:
        kind = "bpe"
        log("weft: note: learning a bpe vocabulary; unigram, the usual one, needs: pip install 'weft[data]'")
    # A model that counts learns nothing for each word, so it may know all of them.
    every = family.counts and given.size is None and kind in ("word", "whitespace", "character")
    usual = family.vocabulary if kind == family.tokenizer and like is None else {}
    size = given.size or (MAX_VOCABULARY if every else usual.get("size", USUAL))
    min_count = given.minimum_count
    if min_count is None:
        min_count = 1 if every else usual.get("minimum_count")
    with progress(f"learning a {kind} vocabulary", "documents") as advance:
        step = stop.watched(advance, "stopped while learning the vocabulary")

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
                minimum_count=min_count,
                specials=None if speaks else family.specials,
                around=None if speaks else family.around,
                extra=[sentinel(number) for number in reversed(range(family.sentinels))],
            )
    less = f" ({size} were asked for; the text has no more)" if given.size and tokenizer.vocabulary < size else ""
    log(f"vocabulary: {tokenizer.kind}, {tokenizer.vocabulary:,} tokens{less}")
    return tokenizer


def vocabularies_for(
    run: Run,
    recipe: TaskRecipe,
    family: Family,
    rows: Sequence[Example],
    start: Start | None,
    stop: Stop,
    log: Log,
    progress: Progress,
) -> tuple[Tokenizer, ...]:
    """One vocabulary for all texts, or one for what is read and another for what is written."""

    def learned(texts: Iterator[str], inside: str = "") -> Tokenizer:
        alone, like = family.speaks and not family.reads, None if start is None else start.tokenizer
        return vocabulary_for(run, recipe.tokenizer, family, alone, texts, stop, log, progress, inside, like)

    ahead = recipe.task.prefix or ""
    read = (ahead + text for row in rows for text in row.texts)
    if not family.reads:
        return (learned(read),)
    written = (row.target for row in rows)
    if recipe.tokenizer.apart:
        return learned(read), learned(written, TARGET)
    return (learned(chain(read, written)),)

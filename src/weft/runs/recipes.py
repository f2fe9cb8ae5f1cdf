"""Recipes: everything that decides a training run, in one TOML file; and those that come with the package."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from weft.config import Option, build, comma_list, keys, option, section, toml_values
from weft.errors import UserError, did_you_mean, listed, one_of, refuse, shown
from weft.files import read_text
from weft.progress import Log
from weft.runs.rungs import RUNGS, rung_of
from weft.tasks.registry import SUPERVISED, WRITES, supervised_names
from weft.training.plan import Schedule, Training
from weft.vectors.plan import Learning

Documents = Literal["auto", "line", "block", "file"]
OnBadRow = Literal["stop", "skip"]


@dataclass(frozen=True, kw_only=True)
class RunRecipe:
    """What the recipes of all verbs have in common."""

    panel: ClassVar = "Run"
    out: str | None = option(None, "--out", help="Folder of the run, new or empty.", metavar="FOLDER")
    seed: int = option(0, "--seed", help="Seed of the weights, the order of the data, masks and dropout.")
    device: str | None = option(None, "--device", help="cpu, cuda, cuda:1 or mps. Default: the first GPU, if any.")

    def __post_init__(self) -> None:
        refuse((not 0 <= self.seed < 1 << 62, f"seed must be between 0 and {(1 << 62) - 1}, not {self.seed}"))


@dataclass(frozen=True, kw_only=True)
class TrainingRecipe(RunRecipe):
    """A run of the training loop."""

    tensorboard: bool = option(False, "--tensorboard/--no-tensorboard", help="Also write TensorBoard events.")


def model_section() -> Any:
    """`[model]`: where a model begins, and keys of its config."""
    return keys(
        family=Option(("--model",), "Start from scratch: a family or published size (weft models).", "Model", "NAME"),
        size=Option(("--size",), "LAYERSxWIDTH, such as 4x256.", "Model", "SIZE"),
        base=Option(("--base",), "Start from weights: a model folder, or a file of word vectors.", "Model", "MODEL"),
        vectors=Option(("--vectors",), "Word vectors to start --model from: a folder or a file.", "Model", "FILE"),
    )


@dataclass(frozen=True, kw_only=True)
class TextSection:
    """`[text]`: what is read."""

    panel: ClassVar = "Data"
    files: tuple[str, ...] = option((), "--text", help="Text files, folders or globs, also in $WEFT_DATA; repeatable.")
    dev: tuple[str, ...] = option((), "--dev", help="Held-out text to evaluate on. Default: the last 5 % of the text.")
    holdout: float = 0.05  # share of the text that is held out without --dev
    column: str = option("text", "--column", help="Text column of csv, tsv, jsonl and parquet files.")
    delimiter: str | None = option(None, "--delimiter", help="Column separator. Default: detected.")
    encoding: str | None = option(None, "--encoding", help="utf-8, cp1252 ... Default: detected for each file.")
    documents: Documents = option("auto", "--documents", help="What one document of a text file is. auto: detected.")
    on_bad_row: OnBadRow = option("stop", "--on-bad-row", help="Stop at a bad row, or skip and count it.")

    def __post_init__(self) -> None:
        refuse((not 0 <= self.holdout <= 0.5, f"holdout must be between 0 and 0.5, not {self.holdout}"))


LANGUAGE = re.compile(r"([A-Za-z0-9_]{1,16}(?:-[A-Za-z0-9_]{1,16})?)=(.+)", re.DOTALL)


def named_language(name: str) -> tuple[str | None, str]:
    """'en=books.txt' as a language (of 'en-de=pairs.tsv': two) and a path; a file that has this very name has none."""
    match = LANGUAGE.fullmatch(name)
    return (None, name) if match is None or os.path.exists(name) else (match[1], match[2])


@dataclass(frozen=True, kw_only=True)
class PretrainText(TextSection):
    """`[text]` of pre-training: text of no language in particular, or of several, and sentence pairs."""

    files: tuple[str, ...] = option(
        (),
        "--text",
        help="Text files, folders or globs, also in $WEFT_DATA; en=FILE for several languages; repeatable.",
    )
    pairs: tuple[str, ...] = option((), "--pairs", help="Translated sentences, as en-de=FILE.tsv; repeatable.")
    dev_pairs: tuple[str, ...] = option((), "--dev-pairs", help="Held-out sentence pairs. Default: the last 5 %.")
    alpha: float = option(0.7, "--alpha", help="Languages are read by their share of the text to this power.")

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse((not 0 <= self.alpha <= 1, f"alpha must be between 0 and 1, not {self.alpha}"))


@dataclass(frozen=True, kw_only=True)
class TokenizerSection:
    """`[tokenizer]`: a folder, or what is learned from the text."""

    panel: ClassVar = "Tokenizer"
    folder: str | None = option(None, "--tokenizer", help="Tokenizer folder. Default: learn one.", metavar="FOLDER")
    kind: str | None = option(
        None, "--kind", help="wordpiece, bpe, unigram, word, whitespace, character or word-bytes. Default: by family."
    )
    size: int | None = option(None, "--vocabulary", help="Tokens to learn. Default: 8000; for n-grams, every word.")
    separate: bool = option(False, "--separate-vocabularies/--joint-vocabulary", help="Of source and target.")
    lowercase: bool | None = None
    min_count: int | None = None


@dataclass(frozen=True, kw_only=True)
class TableSection:
    """`[data]`: rows of tables, or parallel files of source and target texts, and how they are read."""

    panel: ClassVar = "Data"
    files: tuple[str, ...] = option((), "--data", help="Table of examples: csv, tsv, jsonl, parquet ...; repeatable.")
    dev: tuple[str, ...] = option((), "--dev", help="Examples to evaluate on. Default: a tenth of --data.")
    source: tuple[str, ...] = option((), "--source", help="Source texts, one per line, for models that generate.")
    target: tuple[str, ...] = option((), "--target", help="Target texts, line by line with --source.")
    dev_source: tuple[str, ...] = option((), "--dev-source", help="Source texts to evaluate on.")
    dev_target: tuple[str, ...] = option((), "--dev-target", help="Target texts, line by line with --dev-source.")
    holdout: float = 0.1
    split: int = 0  # which rows are held out: the same for every seed of the run
    columns: dict[str, str] = option({}, "--column", help="Columns in the file, such as text=review; repeatable.")
    names: tuple[str, ...] = option((), "--names", help="Column names, where a file has no header.", parse=comma_list)
    format: str | None = option(
        None, "--format", help="csv, tsv, json, jsonl, parquet, arrow, xlsx, conll or squad. Default: detected."
    )
    delimiter: str | None = option(None, "--delimiter", help="Column separator. Default: detected.")
    encoding: str | None = option(None, "--encoding", help="utf-8, cp1252, utf-16 ... Default: detected for each file.")
    on_bad_row: OnBadRow = option("stop", "--on-bad-row", help="Stop at a bad row, or skip and count it.")

    def __post_init__(self) -> None:
        refuse((not 0 < self.holdout <= 0.5, f"holdout must be above 0 and at most 0.5, not {self.holdout}"))


T = TypeVar("T")
ObjectiveName = Literal["next", "mlm", "mlm+nsp", "mlm+sop", "tlm", "mlm+tlm", "spans", "rtd", "permutation", "two-way"]


@dataclass(frozen=True, kw_only=True)
class ObjectiveSection:
    """`[objective]`: what is learned, and how documents become rows."""

    panel: ClassVar = "Training"
    name: ObjectiveName | None = option(
        None,
        "--objective",
        help="Default: next for decoders, spans for T5, rtd for DeBERTa, permutation for XLNet, two-way for ELMo, "
        "tlm for --pairs, else mlm.",
    )
    length: int | None = option(None, "--length", help="Tokens per row. Default: the model's context.")
    short: int | None = None  # tokens of a row in the first steps (BERT: 128 before 512)
    short_share: float = 0.9  # share of the steps that are so
    rows: Literal["stream", "apart", "documents", "carried"] | None = option(
        None,
        "--rows",
        help="stream: full rows across documents. apart: the same, but attention stays within a document. documents: a "
        "row per document. carried: each row continues the state, or the memory, of the row before (rnn, lstm, gru, "
        "transformer-xl, xlnet).",
    )
    mask: float = 0.15  # share of the tokens that are hidden, or predicted in an order drawn by chance
    span: float = 3.0  # tokens that are hidden together, on average; for spans
    whole_words: bool = False
    t_min: int = 0  # of next: only the outputs of places t_min to t_max of each row count in the loss, from 0 ...
    t_max: int | None = None  # ... and both included; None: to its end
    # How the two networks of rtd share token vectors: gdes adds a difference to the generator's and trains it alone (He
    # et al., 2023), es has one table for both (Clark et al., 2020), none has two.
    sharing: Literal["gdes", "es", "none"] = "gdes"
    weight: float = 50.0  # of the discriminator's loss beside the generator's, for rtd
    paired: float = 0.5  # share of the tokens that are of sentence pairs, for mlm+tlm

    def __post_init__(self) -> None:
        length, short = self.length, self.short is None or 2 <= self.short < (self.length or 1 << 24)
        refuse(
            (not 0 < self.paired < 1, f"paired must be above 0 and below 1, not {self.paired}"),
            (not 0 < self.mask < 1, f"mask must be above 0 and below 1, not {self.mask}"),
            (not 0 < self.weight <= 1e6, f"weight must be above 0 and at most 1000000, not {self.weight}"),
            (not 1 <= self.span <= 1000, f"span must be between 1 and 1000 tokens, not {self.span}"),
            (length is not None and not 2 <= length < 1 << 24, f"length must be at least 2, not {length}"),
            (not short, f"short must be at least 2 and below the length of a row, not {self.short}"),
            (not 0 < self.short_share < 1, f"short_share must be above 0 and below 1, not {self.short_share}"),
            (self.t_min < 0, f"t_min must be at least 0, not {self.t_min}"),
            (self.t_max is not None and self.t_max < self.t_min, f"t_max must be at least t_min, not {self.t_max}"),
        )


@dataclass(frozen=True, kw_only=True)
class Recipe(TrainingRecipe):
    """One pre-training run."""

    verb: ClassVar = "pretrain"
    model: dict[str, Any] = model_section()
    text: PretrainText = PretrainText()
    tokenizer: TokenizerSection = section(TokenizerSection(), without=("separate",))
    objective: ObjectiveSection = ObjectiveSection()
    training: Training = Training()


# The family that a task trains from scratch by default; other tasks need pretrained weights.
FROM_SCRATCH = {
    **dict.fromkeys(("classify", "multilabel", "regress"), "cnn"),
    "tag": "lstm",
    **dict.fromkeys(("translate", "summarize", "rewrite"), "transformer"),
    "describe": "vec2seq",
    "forecast": "forecaster",
}
# Encoders of a forecaster: with --task forecast, --model names one of them.
ENCODERS = ("linear", "rnn", "lstm", "gru", "wavenet", "transformer")
# How a forecaster is trained by default: squared errors are too small for half precision.
FROM_SERIES = {"schedule": "cosine", "precision": "fp32", "weight_decay": 0.0, "patience": 8}
FROM_VECTORS = {"size": 30_000, "min_count": 1}  # a word that occurs once has a vector all the same
# How an encoder-decoder is trained from scratch by default: as Vaswani et al. did, on less data.
FROM_NOTHING = {"schedule": "cosine", "warmup": 0.1, "beta2": 0.98, "epsilon": 1e-9, "ema": 0.999, "explode": 10.0}


@dataclass(frozen=True, kw_only=True)
class DataSection(TableSection):
    """`[data]`: the rows of a task."""

    ratio: float | None = None  # a side may be so many times as long as the other; 0: any; 9 to translate
    copies: Literal["keep", "drop"] | None = None  # pairs of equal texts; dropped to translate

    def __post_init__(self) -> None:
        super().__post_init__()
        fits = not self.ratio or 1 <= self.ratio < 1e6
        refuse((not fits, f"ratio must be at least 1, or 0 for any, not {self.ratio}"))


@dataclass(frozen=True, kw_only=True)
class TaskSection:
    """`[task]`: what is learned."""

    panel: ClassVar = "Task"
    name: str = option(
        MISSING,
        "--task",
        help=f"What to learn: {', '.join(SUPERVISED)}.",
        parse=lambda name: one_of(name, supervised_names(name), "--task"),
    )
    labels: tuple[str, ...] = option((), "--labels", help="Default: those of the data, sorted.", parse=comma_list)
    class_weights: Literal["none", "balanced"] = option("none", "--class-weights", help="balanced: weight rare labels.")
    metric: str | None = option(None, "--metric", help="Metric that selects the best model.")
    words: float = option(0.0, "--words", help="Weight of an additional next-token loss (GPT), such as 0.5.")
    freeze: str | None = option(None, "--freeze", help="What not to train: encoder, tokens or all-but-K layers.")
    mix: bool = option(False, "--mix/--no-mix", help="Feed the head a learned mix of all layers.")
    layers: str | None = option(
        None, "--layers", help="Layers the head reads: last4-concat, second-to-last ... Default: the last."
    )
    length: int | None = option(None, "--length", help="Tokens per window. Default: the context; for answers, 384.")
    stride: int | None = option(None, "--stride", help="Tokens from one window to the next.")
    long: Literal["windows", "truncate"] = option("windows", "--long", help="Texts longer than a window.")
    prefix: str | None = option(None, "--prefix", help='Text before each source: "translate English to German: " (T5).')
    language: str | None = option(None, "--language", help="Of the texts, for a base with language embeddings (XLM).")
    baseline: bool = option(True, "--baseline/--no-baseline", help="Also train a linear baseline. Default: yes.")
    horizon: int | None = option(None, "--horizon", help="Steps to forecast. Default: a season, else 10.")
    window: int | None = option(None, "--window", help="Steps to forecast from. Default: by horizon and season.")
    strategy: Literal["seq2seq", "vector", "step"] | None = option(
        None,
        "--strategy",
        help="seq2seq: every step of a window learns the whole horizon (default). vector: the last one does. step: it "
        "learns one step, and forecasts are fed back.",
    )
    season: int | None = option(None, "--season", help="Steps after which series repeat. Default: estimated.")
    interval: float | None = option(None, "--interval", help="Share of values that intervals hold. Default: 0.9.")
    scaling: Literal["window", "training"] | None = None  # whose mean and deviation scale a window; None: by the data
    blend: bool | None = None  # add a baseline's forecasts, in the share that held-out windows ask for; default: yes
    smoothing: float = 0.1  # label smoothing of generated tokens
    scheduled_sampling: float = 0.0  # share of inputs, at the end, that a recurrent decoder generated itself
    max_evaluated: int = 500  # held-out examples generated for each evaluation during training

    def __post_init__(self) -> None:
        if self.name not in (known := supervised_names(self.name)):
            near = did_you_mean(self.name, known)
            raise UserError(f"name must be one of {', '.join(known)}, not {self.name!r}{near}")
        freezes = self.freeze is None or re.fullmatch(r"encoder|tokens|all-but-[1-9][0-9]{0,3}", self.freeze)
        length, stride, sampling = self.length, self.stride, self.scheduled_sampling
        if self.layers == "weighted":  # in other words
            object.__setattr__(self, "mix", True)
            object.__setattr__(self, "layers", None)
        both = f"the head reads a learned mix of all layers or {self.layers}, not both: leave out --mix or --layers"
        refuse(
            (self.mix and self.layers is not None, both),
            (not 0 <= self.smoothing < 1, f"smoothing must be at least 0 and below 1, not {self.smoothing}"),
            (not 0 <= sampling < 1, f"scheduled_sampling must be at least 0 and below 1, not {sampling}"),
            (self.max_evaluated < 1, f"max_evaluated must be at least 1, not {self.max_evaluated}"),
            (not 0 <= self.words <= 10, f"words must be between 0 and 10, not {self.words}"),
            (length is not None and not 4 <= length < 1 << 24, f"length must be at least 4, not {length}"),
            (stride is not None and not 1 <= stride < 1 << 24, f"stride must be at least 1, not {stride}"),
            (self.horizon is not None and self.horizon < 1, f"horizon must be at least 1 step, not {self.horizon}"),
            (self.window is not None and self.window < 4, f"window must be at least 4 steps, not {self.window}"),
            (self.season is not None and self.season < 1, f"season must be at least 1 step, not {self.season}"),
            (not 0 < (self.interval or 0.9) < 1, f"interval must be above 0 and below 1, not {self.interval}"),
            (not freezes, f"freeze must be encoder, tokens or all-but-K such as all-but-2, not {self.freeze!r}"),
        )


@dataclass(frozen=True, kw_only=True)
class FinetuneTraining(Training):
    """`[training]` of a fine-tuning run: as the papers on BERT have it."""

    epochs: float | None = option(None, "--epochs", help="Passes over the examples. Default: 3, more if they are few.")
    minutes: float | None = None
    batch: int | None = option(None, "--batch", help="Examples per step. Default: 8 to 32, by their number.")
    learning_rate: float | None = option(None, "--learning-rate", "--lr", help="Default: 5e-5 for a base, or by width.")
    layer_decay: float = option(1.0, "--layer-decay", help="Learning rate of each layer relative to the one above.")
    watch_gradients: bool = False
    schedule: Schedule = "linear"
    warmup: float = 0.06
    floor: float = 0.0
    weight_decay: float = 0.01
    beta2: float = 0.999
    keep: int = 1
    explode: float = 1e6  # one row that is hard, or mislabeled, may well cost many times the first loss
    head_rate: float | None = None  # learning rate of a new head as a multiple of the others'; 5 of few rows

    def __post_init__(self) -> None:
        super().__post_init__()
        rate = 1.0 if self.head_rate is None else self.head_rate
        refuse(
            (not 0 < rate <= 1000, f"head_rate must be above 0 and at most 1000, not {rate}"),
            (self.minutes is not None, "minutes are for pre-training; give steps or epochs"),
        )


@dataclass(frozen=True, kw_only=True)
class TaskRecipe(TrainingRecipe):
    """One fine-tuning run."""

    verb: ClassVar = "finetune"
    task: TaskSection
    model: dict[str, Any] = model_section()
    data: DataSection = DataSection()
    tokenizer: TokenizerSection = TokenizerSection()  # of a model from scratch
    training: FinetuneTraining = FinetuneTraining()


def shipped() -> dict[str, str]:
    """The recipes of the package: name and text."""
    paths = sorted(resources.files("weft.recipes").iterdir(), key=lambda path: path.name)
    recipes = [path for path in paths if path.name.endswith(".toml")]
    return {path.name.removesuffix(".toml"): path.read_text(encoding="utf-8") for path in recipes}


def find_recipe(name: str) -> tuple[str, str]:
    """The text of a recipe and what messages call it: a file, or one that comes with the package."""
    path = Path(name)
    if path.is_file():
        if path.suffix in (".csv", ".tsv", ".json", ".jsonl", ".parquet", ".arrow", ".xlsx", ".conll", ".txt"):
            raise UserError(f"{shown(name)}: is not a recipe; rows are named by --data, text by --text")
        return read_text(path), path.name
    known = shipped()
    plain = path.name.removesuffix(".toml")
    if plain in known and len(path.parts) <= 2 and path.parts[0] in ("recipes", path.name):
        return known[plain], f"{plain}.toml"
    if name in SUPERVISED:
        raise UserError(f"{name} is a task, not a recipe: give --task {name}")
    names = f"({listed(known, 20)}){did_you_mean(plain, known)}"
    raise UserError(f"{shown(name)}: neither a file nor a recipe of the package {names}")


# The verb of a recipe by a section that only its recipes have; one that has none of them is for pretrain.
SECTIONS = {"task": "finetune", "vectors": "vectors learn", "ladder": "ladder", "rungs": "ladder"}
SECTIONS |= dict.fromkeys(("teacher", "student", "distill", "stages"), "distill")


def check_has_model(model: Mapping[str, Any], task: str | None = None) -> None:
    """Refuse a run without a model or a base, where its task has no default."""
    if {"base", "family"} & set(model) or task in FROM_SCRATCH:
        return
    if task is None:
        raise UserError("which model? give --model FAMILY (see: weft models), or --base FOLDER to start from weights")
    raise UserError(f"{task} needs a pretrained model: give --base FOLDER (or --model FAMILY to start from scratch)")


def family_for(task: str, model: Mapping[str, Any], log: Log) -> dict[str, Any]:
    """The choices of a task's model, with the family that serves the task best from nothing where none is chosen."""
    check_has_model(model, task)
    if "base" in model or "family" in model:
        return dict(model)
    log(f"model: {FROM_SCRATCH[task]}, from scratch (--model or --base overrides)")
    return {"family": FROM_SCRATCH[task], **model}


def overlaid(values: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Plain values with settings in place of some, key by key at any depth; steps replace epochs and minutes."""
    lengths = {"steps", "epochs", "minutes"}
    result = {key: value for key, value in values.items() if not (key in lengths and lengths & set(settings))}
    for key, value in settings.items():
        both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = overlaid(result[key], value) if both else value
    return result


def recipe_values(name: str, kind: type[Any]) -> tuple[dict[str, Any], str]:
    """The plain values of a recipe of this kind, and what messages call it."""
    text, where = find_recipe(name)
    values = toml_values(text, where)
    section = next((name for name in SECTIONS if name in values), "")
    verb = SECTIONS.get(section, "pretrain")
    if verb != kind.verb:
        has = f"a [{section}]" if section else f"no [{next(key for key in SECTIONS if SECTIONS[key] == kind.verb)}]"
        raise UserError(f"{where}: has {has} and is for weft {verb}, not for weft {kind.verb}")
    build(kind, values, where)  # so that a slip in the file is not blamed on a flag
    return values, where


def read_recipe(name: str | None, settings: Mapping[str, Any], kind: type[T]) -> T:
    """A recipe with these settings in place of its own; without a name, the settings alone."""
    values, where = dict[str, Any](), "settings"  # flags, --set or arguments in Python
    if name is not None:
        if not isinstance(name, str | os.PathLike):
            given = f"a recipe is a file or a name of `weft recipes`, not a {type(name).__name__}"
            raise UserError(f"{given}; training text is given as text={{'files': ['corpus.txt']}}")
        values, where = recipe_values(name, kind)
    elif kind is TaskRecipe and "name" not in settings.get("task", {}):
        raise UserError(f"which task? give --task {', '.join(SUPERVISED[:-1])} or {SUPERVISED[-1]}")
    values = overlaid(values, settings)
    task, model = values.get("task"), values.get("model")
    from_base = isinstance(model, dict) and "base" in model
    if isinstance(task, dict) and task.get("name") == "forecast":
        values = overlaid({"training": FROM_SERIES}, values)
        if isinstance(model, dict) and model.get("family") in ENCODERS:
            values["model"] = {**model, "family": "forecaster", "encoder": model["family"]}
    if isinstance(task, dict) and task.get("name") in WRITES and not from_base:
        values = overlaid({"training": FROM_NOTHING}, values)
    if isinstance(model, dict) and "vectors" in model:
        values = overlaid({"tokenizer": FROM_VECTORS}, values)
    return build(kind, values, "settings" if settings else where)


@dataclass(frozen=True, kw_only=True)
class VectorsTextSection(TextSection):
    """`[text]` of word vectors: nothing is held out."""

    holdout: float = 0.0

    def __post_init__(self) -> None:
        refuse((bool(self.dev or self.holdout), "word vectors are evaluated on other data: no text is held out"))


@dataclass(frozen=True, kw_only=True)
class VectorsRecipe(RunRecipe):
    """One run that learns word vectors."""

    verb: ClassVar = "vectors learn"
    vectors: Learning = Learning()
    text: VectorsTextSection = section(VectorsTextSection(), without=("dev",))


LadderSize = Literal["tiny", "small", "large"]


def large_number(text: str) -> int:
    """20M -> 20,000,000."""
    letters = {"k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9}
    plain = text.strip().lower().replace(",", "").replace("_", "")
    by = letters.get(plain[-1:], 1)
    try:
        return round(float(plain[:-1] if by > 1 else plain) * by)
    except (ValueError, OverflowError):
        raise UserError(f"--tokens {text}: must be a number, such as 20M") from None


@dataclass(frozen=True, kw_only=True)
class Budget:
    """`[ladder]`: which models, and how much each of them may learn from the text."""

    panel: ClassVar = "Training"
    minutes: float | None = option(None, "--minutes", help="Training time of each model. Default: 3, unless --tokens.")
    tokens: int | None = option(None, "--tokens", help="Tokens that each model reads, such as 20M.", parse=large_number)
    models: tuple[str, ...] = option(tuple(RUNGS), "--models", help="Rungs: mlp,lstm. Default: all.", parse=comma_list)
    vocabulary: str | None = option(None, "--vocabulary", help="characters or a number of subwords. Default: by size.")
    size: LadderSize | None = option(None, "--size", help="Size of the models. Default: small, on a GPU large.")
    prompt: str | None = option(None, "--prompt", help="Prompt of the samples. Default: from the held-out text.")
    parallel: int = option(1, "--parallel", help="Models trained at once, each in its own process. 0: in this process.")

    def __post_init__(self) -> None:
        size, minutes, tokens = self.vocabulary or "characters", self.minutes, self.tokens
        known = size == "characters" or (size.isdecimal() and 258 <= int(size) <= 200_000)
        twice = [name for place, name in enumerate(self.models) if name in self.models[:place]]
        refuse(
            (minutes is not None and tokens is not None, "minutes and tokens cannot both be given"),
            (minutes is not None and not 0 < minutes < 1e5, f"minutes must be above 0, not {minutes}"),
            (tokens is not None and not 1 <= tokens < 1 << 50, f"tokens must be at least 1, not {tokens}"),
            (not 0 <= self.parallel <= 64, f"parallel must be between 0 and 64, not {self.parallel}"),
            (not self.models, f"no models: the rungs are {', '.join(RUNGS)}"),
            (bool(twice), f"model {twice[:1]} is given more than once"),
            (not known, f"vocabulary must be characters or a number between 258 and 200000, not {size!r}"),
        )


@dataclass(frozen=True, kw_only=True)
class LadderRecipe(RunRecipe):
    """One ladder: a text, a budget, and what rungs have of their own."""

    verb: ClassVar = "ladder"
    out: str | None = option(None, "--out", help="Folder of the ladder, new or to continue.", metavar="FOLDER")
    ladder: Budget = Budget()
    text: TextSection = section(TextSection(), without=("dev", "documents"))
    rungs: dict[str, Any] = field(default_factory=dict)  # by name: keys of the recipe of that rung

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, values in self.rungs.items():
            if not isinstance(values, dict) or not all(isinstance(section, dict) for section in values.values()):
                raise UserError(f"rungs.{name} must be sections of a recipe, such as rungs.{name}.model.width")
            if wrong := set(values) - {"model", "objective", "training"}:
                raise UserError(f"rungs.{name}: {min(wrong)} is not one of model, objective, training")
        for name in (*self.ladder.models, *self.rungs):
            rung_of(name, self.rungs)

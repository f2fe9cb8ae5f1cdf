"""Recipes: everything that decides a training run, in one TOML file; and those that come with the package."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from weft.config import Option, build, comma_list, keys, merged, option, section
from weft.errors import UserError, did_you_mean, listed, one_of, shown
from weft.files import read_text
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
    device: str | None = option(
        None, "--device", help="cpu, cuda, cuda:1 or mps. Default: the first GPU, if any.", metavar="DEVICE"
    )

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 1 << 62:
            raise UserError(f"seed must be between 0 and {(1 << 62) - 1}, not {self.seed}")


@dataclass(frozen=True, kw_only=True)
class TrainingRecipe(RunRecipe):
    """A run of the training loop."""

    tensorboard: bool = option(False, "--tensorboard/--no-tensorboard", help="Also write TensorBoard events.")


def model_section() -> Any:
    """`[model]`: where a model begins, and keys of its config."""
    return keys(
        family=Option(
            ("--model",), "Start from scratch: a family or a published size (see: weft models).", "Model", "NAME"
        ),
        size=Option(("--size",), "LAYERSxWIDTH, such as 4x256.", "Model", "SIZE"),
        base=Option(("--base",), "Start from weights: a model folder, or a file of word vectors.", "Model", "MODEL"),
        vectors=Option(("--vectors",), "Word vectors to start --model from: a folder or a file.", "Model", "FILE"),
    )


@dataclass(frozen=True, kw_only=True)
class TextSection:
    """`[text]`: what is read."""

    panel: ClassVar = "Data"
    files: tuple[str, ...] = option(
        (), "--text", help="Text files, folders or globs, also looked for under $WEFT_DATA; repeatable.", metavar="FILE"
    )
    dev: tuple[str, ...] = option(
        (), "--dev", help="Held-out text to evaluate on. Default: the last 5 % of the text.", metavar="FILE"
    )
    holdout: float = 0.05  # share of the text that is held out without --dev
    column: str = option("text", "--column", help="Text column of csv, tsv, jsonl and parquet files.", metavar="NAME")
    delimiter: str | None = option(
        None, "--delimiter", help="Column separator of csv and tsv files. Default: detected.", metavar="CHARACTER"
    )
    encoding: str | None = option(
        None, "--encoding", help="utf-8, cp1252 ... Default: detected for each file.", metavar="NAME"
    )
    documents: Documents = option(
        "auto", "--documents", help="What one document of a text file is. auto: by the look of the file."
    )
    on_bad_row: OnBadRow = option("stop", "--on-bad-row", help="Stop at a bad row, or skip and count it.")

    def __post_init__(self) -> None:
        if not 0 <= self.holdout <= 0.5:
            raise UserError(f"holdout must be between 0 and 0.5, not {self.holdout}")


@dataclass(frozen=True, kw_only=True)
class TokenizerSection:
    """`[tokenizer]`: a folder, or what is learned from the text."""

    panel: ClassVar = "Tokenizer"
    folder: str | None = option(
        None, "--tokenizer", help="Tokenizer folder. Default: learn one from the text.", metavar="FOLDER"
    )
    kind: str | None = option(
        None,
        "--kind",
        help="Tokenizer to learn: wordpiece, bpe, unigram, word, whitespace or character. Default: by family.",
        metavar="KIND",
    )
    size: int | None = option(
        None, "--vocabulary", help="Tokens to learn. Default: 8000; for models that count, every word."
    )
    apart: bool = option(
        False,
        "--separate-vocabularies/--joint-vocabulary",
        help="One vocabulary for source and one for target, or one for both (default).",
    )
    lowercase: bool | None = None
    min_count: int | None = None


@dataclass(frozen=True, kw_only=True)
class TableSection:
    """`[data]`: rows of tables, or parallel files of source and target texts, and how they are read."""

    panel: ClassVar = "Data"
    files: tuple[str, ...] = option(
        (), "--data", help="Table of examples: csv, tsv, jsonl, parquet ...; repeatable.", metavar="FILE"
    )
    dev: tuple[str, ...] = option(
        (),
        "--dev",
        help="Examples to evaluate on. Default: a share of --data, listed in run/split.json.",
        metavar="FILE",
    )
    source: tuple[str, ...] = option(
        (), "--source", help="Source texts, one per line, for models that write.", metavar="FILE"
    )
    target: tuple[str, ...] = option((), "--target", help="Target texts, line by line with --source.", metavar="FILE")
    dev_source: tuple[str, ...] = option((), "--dev-source", help="Source texts to evaluate on.", metavar="FILE")
    dev_target: tuple[str, ...] = option(
        (), "--dev-target", help="Target texts, line by line with --dev-source.", metavar="FILE"
    )
    holdout: float = 0.1
    split: int = 0  # which rows are held out: the same for every seed of the run
    columns: dict[str, str] = option(
        {},
        "--column",
        help="What the file calls a column, such as text=review or label=stars; repeatable.",
        metavar="KEY=NAME",
    )
    names: tuple[str, ...] = option(
        (), "--names", help="Column names of a file without a header line.", metavar="A,B,...", parse=comma_list
    )
    format: str | None = option(
        None,
        "--format",
        help="csv, tsv, json, jsonl, parquet, arrow, xlsx, conll or squad. Default: by name or content.",
        metavar="FORMAT",
    )
    delimiter: str | None = option(
        None, "--delimiter", help="Column separator. Default: detected.", metavar="CHARACTER"
    )
    encoding: str | None = option(
        None, "--encoding", help="utf-8, cp1252, utf-16 ... Default: detected for each file.", metavar="NAME"
    )
    on_bad_row: OnBadRow = option("stop", "--on-bad-row", help="Stop at a bad row, or skip and count it.")

    def __post_init__(self) -> None:
        if not 0 < self.holdout <= 0.5:
            raise UserError(f"holdout must be above 0 and at most 0.5, not {self.holdout}")


T = TypeVar("T")
ObjectiveName = Literal["next", "mlm", "mlm+nsp", "mlm+sop", "spans"]


@dataclass(frozen=True, kw_only=True)
class ObjectiveSection:
    """`[objective]`: what is learned, and how documents become rows."""

    panel: ClassVar = "Training"
    name: ObjectiveName | None = option(
        None, "--objective", help="Training objective. Default: next for decoders, spans for T5, mlm for encoders."
    )
    length: int | None = option(None, "--length", help="Tokens per row. Default: the model's context.")
    short: int | None = None  # tokens of a row in the first steps (BERT: 128 before 512)
    short_share: float = 0.9  # share of the steps that are so
    rows: Literal["stream", "apart", "documents", "carried"] | None = option(
        None,
        "--rows",
        help="stream: full rows across documents. apart: full rows within documents. documents: one row each. "
        "carried: rows continue the state of the step before (rnn, lstm, gru).",
    )
    mask: float = 0.15  # share of the tokens that are hidden
    span: float = 3.0  # tokens that are hidden together, on average; for spans
    whole_words: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.mask < 1:
            raise UserError(f"mask must be above 0 and below 1, not {self.mask}")
        if not 1 <= self.span <= 1000:
            raise UserError(f"span must be between 1 and 1000 tokens, not {self.span}")
        if self.length is not None and not 2 <= self.length < 1 << 24:
            raise UserError(f"length must be at least 2, not {self.length}")
        if self.short is not None and not 2 <= self.short < (self.length or 1 << 24):
            raise UserError(f"short must be at least 2 and below the length of a row, not {self.short}")
        if not 0 < self.short_share < 1:
            raise UserError(f"short_share must be above 0 and below 1, not {self.short_share}")


@dataclass(frozen=True, kw_only=True)
class Recipe(TrainingRecipe):
    """One pre-training run."""

    verb: ClassVar = "pretrain"
    model: dict[str, Any] = model_section()
    text: TextSection = TextSection()
    tokenizer: TokenizerSection = section(TokenizerSection(), without=("apart",))
    objective: ObjectiveSection = ObjectiveSection()
    training: Training = Training()


# The family that serves a task best from nothing; what is not here needs weights to begin with.
FROM_SCRATCH = {
    **dict.fromkeys(("classify", "multilabel", "regress"), "cnn"),
    "tag": "lstm",
    **dict.fromkeys(("translate", "summarize", "rewrite"), "transformer"),
    "describe": "vec2seq",
}
# How an encoder-decoder is trained from nothing, by default: as Vaswani et al. did, on less data.
# The vocabulary of a model that begins from word vectors: a word that was seen but once has a vector all the same.
FROM_VECTORS = {"size": 30_000, "min_count": 1}
FROM_NOTHING = {"schedule": "cosine", "warmup": 0.1, "beta2": 0.98, "epsilon": 1e-9, "ema": 0.999, "explode": 10.0}


@dataclass(frozen=True, kw_only=True)
class DataSection(TableSection):
    """`[data]`: the rows of a task."""

    ratio: float | None = None  # a side may be so many times as long as the other; 0: any; 9 to translate
    copies: Literal["keep", "drop"] | None = None  # pairs of equal texts; dropped to translate

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ratio is not None and not (self.ratio == 0 or 1 <= self.ratio < 1e6):
            raise UserError(f"ratio must be at least 1, or 0 for any, not {self.ratio}")


@dataclass(frozen=True, kw_only=True)
class TaskSection:
    """`[task]`: what is learned."""

    panel: ClassVar = "Task"
    name: str = option(
        MISSING,
        "--task",
        help=f"What to learn: {', '.join(SUPERVISED)}.",
        metavar="TASK",
        parse=lambda name: one_of(name, supervised_names(name), "--task"),
    )
    labels: tuple[str, ...] = option(
        (), "--labels", help="Labels in order. Default: those of the data.", metavar="A,B,...", parse=comma_list
    )
    class_weights: Literal["none", "balanced"] = option(
        "none", "--class-weights", help="balanced: weight examples of rare labels more."
    )
    metric: str | None = option(None, "--metric", help="Metric that selects the best model.", metavar="NAME")
    words: float = option(
        0.0, "--words", help="Weight of the next-token loss beside the task's (GPT), such as 0.5.", metavar="WEIGHT"
    )
    freeze: str | None = option(
        None, "--freeze", help="Do not train the encoder, the tokens, or all-but-K layers.", metavar="PART"
    )
    mix: bool = option(False, "--mix/--no-mix", help="Feed the head a learned mix of all layers.")
    length: int | None = option(
        None, "--length", help="Tokens per window. Default: the model's context, 384 for answers."
    )
    stride: int | None = option(None, "--stride", help="Tokens from one window to the next.")
    long: Literal["windows", "cut"] = option(
        "windows", "--long", help="Long texts: read them in windows, or truncate them."
    )
    prefix: str | None = option(
        None, "--prefix", help='Text before each source: "translate English to German: " (T5).', metavar="TEXT"
    )
    baseline: bool = option(
        True, "--baseline/--no-baseline", help="Also train a linear model and compare. Default: yes."
    )
    smoothing: float = 0.1  # of what is written, the share that is asked of all words alike
    own: float = 0.0  # how often, at the end, a recurrent writer goes on from its own words, not from the right ones
    judged: int = 500  # pairs at most that are written out to judge a model in training

    def __post_init__(self) -> None:
        if self.name not in (known := supervised_names(self.name)):
            near = did_you_mean(self.name, known)
            raise UserError(f"name must be one of {', '.join(known)}, not {self.name!r}{near}")
        for name, share in (("smoothing", self.smoothing), ("own", self.own)):
            if not 0 <= share < 1:
                raise UserError(f"{name} must be at least 0 and below 1, not {share}")
        if self.judged < 1:
            raise UserError(f"judged must be at least 1, not {self.judged}")
        if not 0 <= self.words <= 10:
            raise UserError(f"words must be between 0 and 10, not {self.words}")
        for name, value, least in (("length", self.length, 4), ("stride", self.stride, 1)):
            if value is not None and not least <= value < 1 << 24:
                raise UserError(f"{name} must be at least {least}, not {value}")
        if self.freeze is not None and not re.fullmatch(r"encoder|tokens|all-but-[1-9][0-9]{0,3}", self.freeze):
            raise UserError(f"freeze must be encoder, tokens or all-but-K such as all-but-2, not {self.freeze!r}")


@dataclass(frozen=True, kw_only=True)
class FinetuneTraining(Training):
    """`[training]` of a fine-tuning run: as the papers on BERT have it."""

    epochs: float | None = option(
        None, "--epochs", help="Passes over the examples. Default: 3, more for small datasets.", metavar="N"
    )
    minutes: float | None = None
    batch: int | None = option(None, "--batch", help="Examples per step. Default: 8 to 32, by their number.")
    learning_rate: float | None = option(
        None,
        "--learning-rate",
        "--lr",
        help="Peak learning rate. Default: 5e-5 from a base, else by the width of the model.",
        metavar="RATE",
    )
    layer_decay: float = option(
        1.0,
        "--layer-decay",
        help="Learning rate of each layer relative to the one above, such as 0.9.",
        metavar="FACTOR",
    )
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
        if self.head_rate is not None and not 0 < self.head_rate <= 1000:
            raise UserError(f"head_rate must be above 0 and at most 1000, not {self.head_rate}")
        if self.minutes is not None:
            raise UserError("minutes are for pre-training; give steps or epochs")


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
    folder = resources.files("weft.recipes")
    return {
        path.name.removesuffix(".toml"): path.read_text(encoding="utf-8")
        for path in sorted(folder.iterdir(), key=lambda path: path.name)
        if path.name.endswith(".toml")
    }


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
    raise UserError(
        f"{shown(name)}: neither a file nor a recipe of the package ({listed(known, 20)}){did_you_mean(plain, known)}"
    )


# Sections by which the recipe of a verb is known; one that has none of them is for pretrain.
SECTIONS = {
    "finetune": ("task",),
    "distill": ("teacher", "student", "distill", "stages"),
    "vectors learn": ("vectors",),
    "ladder": ("ladder", "rungs"),
}


def _room_for(settings: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a recipe without those that settings replace under another name: epochs by steps."""
    lengths = {"steps", "epochs", "minutes"}
    kept = {key: value for key, value in values.items() if not (key in lengths and lengths & set(settings))}
    for key, value in settings.items():
        if isinstance(value, Mapping) and isinstance(kept.get(key), Mapping):
            kept[key] = _room_for(value, kept[key])
    return kept


def check_has_model(model: Mapping[str, Any], task: str | None = None) -> None:
    """Refuse a run that says neither which model it trains nor from which it begins, where its task has none."""
    if {"base", "family"} & set(model) or task in FROM_SCRATCH:
        return
    if task is None:
        raise UserError("which model? give --model FAMILY (see: weft models), or --base FOLDER to go on from weights")
    raise UserError(
        f"{task} needs a model that has read much text before: give --base FOLDER, such as a BERT's "
        "(or --model FAMILY to begin from scratch all the same)"
    )


def task_recipe(name: str | None, settings: Mapping[str, Any]) -> TaskRecipe:
    """The recipe of a fine-tuning run; its task must be given by either."""
    if name is None and "name" not in settings.get("task", {}):
        raise UserError(f"which task? give --task {', '.join(SUPERVISED[:-1])} or {SUPERVISED[-1]}")
    return read_recipe(name, settings, TaskRecipe)


def overlaid(values: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Plain values with settings in place of some; sections are changed key by key, at any depth."""
    return merged(_room_for(settings, values), settings)


def recipe_values(name: str, kind: type[Any]) -> tuple[dict[str, Any], str]:
    """The plain values of a recipe of this kind, and what messages call it."""
    text, where = find_recipe(name)
    try:
        values = tomllib.loads(text)
    except ValueError as error:
        raise UserError(f"{where}: not TOML: {shown(str(error), 120)}") from None
    except RecursionError:
        raise UserError(f"{where}: nested too deeply") from None
    verb, section = next(
        ((verb, name) for verb, names in SECTIONS.items() for name in names if name in values), ("pretrain", "")
    )
    if verb != kind.verb:
        has = f"a [{section}]" if section else f"no [{SECTIONS[kind.verb][0]}]"
        raise UserError(f"{where}: has {has} and is for weft {verb}, not for weft {kind.verb}")
    build(kind, values, where)  # so that a slip in the file is not blamed on a flag
    return values, where


def read_recipe(name: str | None, settings: Mapping[str, Any], kind: type[T]) -> T:
    """A recipe with these settings in place of its own; without a name, the settings alone."""
    values: dict[str, Any] = {}
    where = "--set"
    if name is not None:
        if not isinstance(name, str | os.PathLike):
            kind_given = type(name).__name__
            raise UserError(
                f"a recipe is a file or a name of `weft recipes`, not a {kind_given}; text to learn from is given as "
                "text={'files': ['corpus.txt']}"
            )
        values, where = recipe_values(name, kind)
    values = overlaid(values, settings)
    task, model = values.get("task"), values.get("model")
    if isinstance(task, dict) and task.get("name") in WRITES and not (isinstance(model, dict) and "base" in model):
        given = values.get("training", {})
        values["training"] = {**FROM_NOTHING, **given} if isinstance(given, dict) else given
    if isinstance(model, dict) and "vectors" in model:
        given = values.get("tokenizer", {})
        values["tokenizer"] = {**FROM_VECTORS, **given} if isinstance(given, dict) else given
    return build(kind, values, "--set" if settings else where)


@dataclass(frozen=True, kw_only=True)
class VectorsRecipe(RunRecipe):
    """One run that learns word vectors."""

    verb: ClassVar = "vectors learn"
    vectors: Learning
    text: TextSection = section(TextSection(holdout=0.0), without=("dev",))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.text.dev or self.text.holdout:
            raise UserError("word vectors are judged by other data than text: none is held out")


def vectors_recipe(name: str | None, settings: Mapping[str, Any]) -> VectorsRecipe:
    """A recipe with these settings in place of its own."""
    usual: dict[str, Any] = {"vectors": {}, "text": {"holdout": 0.0}}
    return read_recipe(name, overlaid(usual, settings), VectorsRecipe)

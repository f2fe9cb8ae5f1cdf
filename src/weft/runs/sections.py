"""Sections that the recipes of several verbs have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from weft.config import Option, comma_list, keys, option
from weft.errors import UserError

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
    minimum_count: int | None = None


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

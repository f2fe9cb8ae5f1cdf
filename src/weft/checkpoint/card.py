"""`weft.json`: what a model folder says beyond its sizes and weights. A closed schema: unknown keys are errors."""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from weft.checksums import digest, digest_of_values
from weft.config import build, values_of
from weft.errors import UserError, listed, shown
from weft.files import MEGABYTE, read_json, write_json, write_text

FORMAT = 2
# Format 1 spelled some names otherwise.
RENAMED_KEYS = {"normalise": "normalize"}
RENAMED_TASKS = {"summarise": "summarize"}
POOLINGS = {"mean": "mean_tokens", "first": "cls_token", "max": "max_tokens"}  # ours -> sentence-transformers'


@dataclass(frozen=True, kw_only=True)
class Window:
    """How a long text is cut: windows of `length` tokens, each `stride` tokens after the one before."""

    length: int
    stride: int
    long: Literal["windows", "truncate"] = "windows"  # how a longer text is read: in windows, or truncated

    def __post_init__(self) -> None:
        if not 1 <= self.stride <= self.length:
            raise UserError(f"a stride of {self.stride} does not fit a window of {self.length}")


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One score and the data it was measured on."""

    data: str  # hash
    name: str
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True)
class TextLayout:
    """How the text of pre-training was read: a text that the model is judged by is read alike."""

    documents: Literal["auto", "line", "block", "file"]  # of a text file
    rows: Literal["stream", "apart", "documents", "carried"]  # stream, carried: each goes on from the one before


@dataclass(frozen=True, kw_only=True)
class Made:
    """When and from which seed."""

    seed: int | None = None
    date: str | None = None


@dataclass(frozen=True, kw_only=True)
class Card:
    """The contents of `weft.json`."""

    format: int = FORMAT
    weft: str = ""  # the version that wrote it
    task: str | None = None
    labels: tuple[str, ...] | None = None  # in the order of the head's outputs
    columns: dict[str, str] = field(default_factory=dict)
    window: Window | None = None
    text: TextLayout | None = None
    pooling: Literal["mean", "first", "max"] | None = None
    normalize: bool | None = None
    thresholds: dict[str, float] = field(default_factory=dict)  # tuned on held-out data: by label, or "no answer"
    temperature: float | None = None  # by which scores are divided before they become chances
    profiles: dict[str, tuple[str, ...]] = field(default_factory=dict)  # frequent letters of source and target
    metrics: tuple[Metric, ...] = ()
    prefix: str | None = None  # put before each source, as T5 names its task: "translate English to German: "
    base: str | None = None
    teacher: str | None = None  # whom it was distilled from, by the name of its folder
    recipe: str | None = None  # hash
    backend: Literal["torch", "onnx", "ctranslate2"] | None = None  # what runs it, where that is not torch
    precision: Literal["fp32", "fp16", "bf16", "int8", "int4"] | None = None  # of the weights of an exported model
    made: Made | None = None
    files: dict[str, str] = field(default_factory=dict)  # sha256 of every file of an export, by its path

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise UserError(f"format is {self.format}; this version of Weft reads {FORMAT}")
        if self.temperature is not None and not 0 < self.temperature < 1e6:
            raise UserError(f"temperature must be above 0, not {self.temperature}")
        for name, value in self.thresholds.items():
            if not abs(value) < 1e9:
                raise UserError(f"thresholds: {value} is none for {shown(name)!r}")
        if self.labels is not None and len(set(self.labels)) < len(self.labels):
            raise UserError("labels: one of them stands there twice")


def read_card(folder: Path) -> Card | None:
    path = folder / "weft.json"
    return build(Card, current_values(read_json(path, 16 * MEGABYTE)), str(path)) if path.exists() else None


def current_values(values: dict[str, Any]) -> dict[str, Any]:
    """The values of a card as this format has them; one of format 1 is read too."""
    if values.get("format", 1) != 1:
        return values
    named = {RENAMED_KEYS.get(name, name): value for name, value in values.items()}
    if isinstance(task := named.get("task"), str):
        named["task"] = RENAMED_TASKS.get(task, task)
    if isinstance(window := named.get("window"), dict) and window.get("long") == "cut":
        named["window"] = {**window, "long": "truncate"}
    return {**named, "format": FORMAT}


def card_values(card: Card) -> dict[str, Any]:
    """As written: what is empty is left out."""
    return {name: value for name, value in values_of(card).items() if value not in ({}, [])}


def labels_of(published: dict[str, Any], where: str) -> tuple[str, ...] | None:
    """The labels of a published config, in order; None when it has none."""
    table = published.get("id2label")
    if table is None:
        return None
    if not isinstance(table, dict) or not all(isinstance(label, str) for label in table.values()):
        raise UserError(f"{where}: id2label must map numbers to names")
    wanted = [str(number) for number in range(len(table))]
    if sorted(table) != sorted(wanted):
        raise UserError(f"{where}: id2label must number its labels from 0 without gaps")
    labels = tuple(table[number] for number in wanted)
    back = published.get("label2id")
    if back is not None and isinstance(back, dict) and len(set(labels)) == len(labels):
        wrong = [label for number, label in enumerate(labels) if back.get(label) != number]
        if wrong:
            raise UserError(f"{where}: id2label and label2id do not agree on {wrong[0]!r}")
    return labels


def sentence_settings(folder: Path) -> dict[str, Any]:
    """Pooling, normalization and window of a sentence-transformers folder; nothing when it is none."""
    path = folder / "modules.json"
    if not path.exists():
        return {}
    modules = read_json(path, MEGABYTE, kind=list)
    settings: dict[str, Any] = {"normalize": False}
    for module in modules:
        name = module.get("type") if isinstance(module, dict) else None
        kind = name.rpartition(".")[2] if isinstance(name, str) else ""
        if kind == "Pooling":
            settings["pooling"] = _pooling(folder / "1_Pooling" / "config.json")
        elif kind == "Normalize":
            settings["normalize"] = True
        elif kind != "Transformer":
            raise UserError(
                f"{path}: a module {shown(str(name))!r} is not supported; without this file the encoder alone is read"
            )
    prompts = folder / "config_sentence_transformers.json"
    if prompts.exists() and read_json(prompts, MEGABYTE).get("default_prompt_name"):
        raise UserError(f"{prompts}: a default prompt is not supported; put it before the texts and remove the key")
    limits = folder / "sentence_bert_config.json"
    reading = read_json(limits, MEGABYTE) if limits.exists() else {}
    if reading.get("do_lower_case"):
        raise UserError(f"{limits}: do_lower_case is not supported; lower the texts and remove the key")
    tokenizer = folder / "tokenizer_config.json"
    length = reading.get("max_seq_length") or (
        read_json(tokenizer).get("model_max_length") if tokenizer.exists() else 0
    )
    if isinstance(length, int) and 4 < length < 1 << 24:
        settings["window"] = Window(length=length, stride=3 * length // 4)
    return settings


def _pooling(path: Path) -> str:
    modes = read_json(path, MEGABYTE)
    chosen = [name for name, on in modes.items() if name.startswith("pooling_mode_") and on is True]
    mode = modes.get("pooling_mode", chosen[0] if len(chosen) == 1 else None)
    for name, published in POOLINGS.items():
        if mode in (published.partition("_")[0], f"pooling_mode_{published}"):
            return name
    raise UserError(f"{path}: only pooling by mean, by maximum and by the first token is supported")


def write_sentence_settings(folder: Path, card: Card, width: int) -> None:
    """What sentence-transformers needs to give the same vectors from a saved folder."""
    kinds = ["Transformer", "Pooling", *(["Normalize"] if card.normalize else [])]
    modules = [
        {"idx": n, "name": str(n), "path": f"{n}_{kind}" if n else "", "type": f"sentence_transformers.models.{kind}"}
        for n, kind in enumerate(kinds)
    ]
    write_text(folder / "modules.json", json.dumps(modules, indent=2) + "\n")
    modes = {published: card.pooling == name for name, published in POOLINGS.items()} | {"mean_sqrt_len_tokens": False}
    pooling = {"word_embedding_dimension": width, **{f"pooling_mode_{name}": on for name, on in modes.items()}}
    write_json(folder / "1_Pooling" / "config.json", pooling)
    if card.window is not None:
        write_json(folder / "sentence_bert_config.json", {"max_seq_length": card.window.length, "do_lower_case": False})


# ------------------------------------------------------------------------------- the hashes of an export
# What was checked when it was written is what is loaded.

CARD = "weft.json"
# Endings of files that a model folder is read from; notes and pictures beside them are nobody's business.
READ = (".json", ".safetensors", ".onnx", ".bin", ".txt", ".model", ".spm", ".vocab")
# Of these endings people have files of their own: only one that a folder is read from, too, is refused when it is new.
COMMON, NAMES = (".json", ".txt"), {
    *(CARD, "config.json", "generation_config.json", "modules.json", "sentence_bert_config.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json"),
    *("target_vocab.json", "encoder.json", "vocab.txt", "merges.txt", "config_sentence_transformers.json"),
    *("model.safetensors.index.json", "chat_template.json"),
}  # fmt: skip


def record_hashes(folder: Path) -> None:
    """Write the hash of every file of a finished export into its card."""
    values = read_json(folder / CARD, 16 * MEGABYTE)
    write_json(folder / CARD, {**values, "files": _hashes(folder)})


def check_hashes(folder: Path, card: Card | None, trust: bool = False) -> None:
    """Refuse an export whose files are not those that were written; with `trust`, warn and go on.

    Folders without a record of their files, such as those of other programs, are not checked.
    """
    if card is None or not card.files:
        return
    hashes = _hashes(folder)
    names = dict.fromkeys([*card.files, *hashes])
    faults = [_fault(name, hashes.get(name), card.files.get(name)) for name in names]
    wrong = [fault for fault in faults if fault is not None]
    if not wrong:
        return
    message = f"{folder}: not as it was exported: {listed(wrong)}"
    if not trust:
        raise UserError(
            f"{message}; export it again, or use it as it is with --trust (trust=True) or without 'files' in {CARD}"
        )
    warnings.warn(message, stacklevel=2)


def _fault(name: str, hash: str | None, recorded: str | None) -> str | None:
    """What is wrong with one file."""
    if hash is None:
        return f"{shown(name)} is missing"
    if recorded is None:
        path = PurePosixPath(name)
        return None if path.suffix in COMMON and path.name not in NAMES else f"{shown(name)} was added"
    return None if hash == recorded else f"{shown(name)} has changed"


def _hashes(folder: Path) -> dict[str, str]:
    """The hash of each file by its path in the folder; of the card, of all that it holds besides the hashes."""
    paths = [(path.relative_to(folder), path) for path in sorted(folder.rglob("*")) if path.suffix in READ]
    return {
        name.as_posix(): _card_hash(read_json(path, 16 * MEGABYTE)) if name.as_posix() == CARD else digest(path)
        for name, path in paths
        if name.parts[0] != "run" and not any(part.startswith(".") for part in name.parts) and path.is_file()
    }


def _card_hash(values: dict[str, Any]) -> str:
    """Of what the card says, however it is laid out."""
    return digest_of_values({key: value for key, value in values.items() if key != "files"})

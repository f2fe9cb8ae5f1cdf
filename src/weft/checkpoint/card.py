"""`weft.json`: what a model folder says beyond its sizes and weights. A closed schema: unknown keys are errors."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from weft.config import build, values_of
from weft.errors import UserError, listed, refuse, shown
from weft.files import MEGABYTE, digest, digest_of_values, read_json, write_json, write_text
from weft.models.limits import LIMITS

FORMAT = 2
CARD = "weft.json"
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
    """How the text of pre-training was read: a text that it is evaluated on is read alike."""

    documents: Literal["auto", "line", "block", "file"]  # of a text file
    rows: Literal["stream", "apart", "documents", "carried"]  # stream, carried: each goes on from the one before


SimpleForecast = Literal["", "naive", "seasonal naive", "least squares"]  # simple forecasts


@dataclass(frozen=True, kw_only=True)
class ForecastSettings:
    """What a model forecasts, and the scale of its numbers and intervals."""

    values: tuple[str, ...]  # columns that are forecast ...
    features: tuple[str, ...] = ()  # ... and those that are read besides
    apart: bool = False  # each column of a wide table is a series of its own
    season: int = 1  # steps
    every: str = ""  # the time of a step, such as day
    interval: float = 0.9  # share of the true values that intervals should hold
    center: tuple[float, ...] = ()  # of each number of a step in training; none: windows have their own scale
    spread: tuple[float, ...] = ()
    share: float = 1.0  # of the network in a forecast; the rest is this baseline
    baseline: SimpleForecast = ""
    margins: tuple[tuple[float, ...], ...] = ()  # half of an interval by step ahead and column, in spreads

    def __post_init__(self) -> None:
        numbers = (*self.center, *self.spread, *(margin for step in self.margins for margin in step))
        refuse(
            (not self.values, "values: no column is forecast"),
            (self.season < 1, f"season must be at least 1, not {self.season}"),
            (not 0 <= self.share <= 1, f"share must be between 0 and 1, not {self.share}"),
            (not 0 < self.interval < 1, f"interval must be above 0 and below 1, not {self.interval}"),
            (len(self.center) != len(self.spread), "center and spread: not as many of one as of the other"),
            (any(spread <= 0 for spread in self.spread), "spread: must be above 0"),
            (not all(abs(number) < 1e300 for number in numbers), "center, spread and margins must be finite numbers"),
        )


@dataclass(frozen=True, kw_only=True)
class Made:
    """When and from which seed."""

    seed: int | None = None
    date: str | None = None


@dataclass(frozen=True, kw_only=True)
class GraphSettings:
    """What of a model decides how its exported graph is run: enough to answer without the code of its network."""

    family: str
    one_way: bool  # its hidden states know only what stands before them
    context: int  # tokens
    segments: int
    width: int
    heads: int  # of an attention layer; 0: none
    vocabulary: int
    outputs: dict[str, int]  # of each head
    row: int | None = None  # tokens of a row, where the context has no practical limit

    def __post_init__(self) -> None:
        for name in ("context", "segments", "width", "heads", "vocabulary"):
            size, least = vars(self)[name], int(name not in ("segments", "heads"))
            if not least <= size <= LIMITS[name]:
                raise UserError(f"graph: {name} must be between {least} and {LIMITS[name]}, not {size}")
        sizes = (*self.outputs.values(), self.row or 1)
        refuse((not all(0 < size <= 1 << 20 for size in sizes), "graph: outputs and row must be above 0"))


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
    temperature: float | None = None  # that logits are divided by before the softmax
    profiles: dict[str, tuple[str, ...]] = field(default_factory=dict)  # frequent letters of source and target
    metrics: tuple[Metric, ...] = ()
    forecast: ForecastSettings | None = None
    prefix: str | None = None  # put before each source, as T5 names its task: "translate English to German: "
    base: str | None = None
    teacher: str | None = None  # whom it was distilled from, by the name of its folder
    recipe: str | None = None  # hash
    backend: Literal["torch", "onnx", "ctranslate2"] | None = None  # what runs it, where that is not torch
    precision: Literal["fp32", "fp16", "bf16", "int8", "int4"] | None = None  # of the weights of an exported model
    graph: GraphSettings | None = None  # of an ONNX model
    made: Made | None = None
    files: dict[str, str] = field(default_factory=dict)  # sha256 of every file of an export, by its path

    def __post_init__(self) -> None:
        heat, labels = self.temperature, self.labels or ()
        far = next((name for name, value in self.thresholds.items() if not abs(value) < 1e9), None)
        refuse(
            (self.format != FORMAT, f"format is {self.format}; this version of Weft reads {FORMAT}"),
            (heat is not None and not 0 < heat < 1e6, f"temperature must be above 0, not {heat}"),
            (far is not None, f"thresholds: {self.thresholds.get(far or '')} is none for {shown(far or '')!r}"),
            (len(set(labels)) < len(labels), "labels: one of them stands there twice"),
        )


def read_card(folder: Path) -> Card | None:
    """The card of a folder, also one of format 1, which spelled some names otherwise; None where it has none."""
    path = folder / CARD
    if not path.exists():
        return None
    values = read_json(path, 16 * MEGABYTE)
    if values.get("format", 1) == 1:
        values = {"normalize" if name == "normalise" else name: value for name, value in values.items()}
        values |= {"format": FORMAT} | ({"task": "summarize"} if values.get("task") == "summarise" else {})
        if isinstance(window := values.get("window"), dict) and window.get("long") == "cut":
            values["window"] = {**window, "long": "truncate"}
    return build(Card, values, str(path))


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
    if isinstance(back, dict) and len(set(labels)) == len(labels):
        for number, label in enumerate(labels):
            if back.get(label) != number:
                raise UserError(f"{where}: id2label and label2id do not agree on {label!r}")
    return labels


def check_labels(
    folder: Path, published: tuple[str, ...] | None, own: tuple[str, ...] | None, heads: Mapping[str, int]
) -> None:
    """Refuse labels of config.json (`published`) or weft.json that are not as many as outputs, or differ."""
    outputs = heads.get("classify", heads.get("tag"))
    for name, names in (("config.json", published), (CARD, own)):
        if names is not None and outputs is not None and len(names) != outputs:
            raise UserError(f"{folder / name}: {len(names)} labels for a head of {outputs} outputs")
    if own is not None and published is not None and own != published:
        differing = next((a, b) for a, b in zip(own, published, strict=True) if a != b)
        both = f"{differing[0]!r} against {differing[1]!r}"
        raise UserError(f"{folder}: the labels of weft.json and config.json differ: {both}")


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
            where = folder / "1_Pooling" / "config.json"
            modes = read_json(where, MEGABYTE)
            chosen = [name for name, on in modes.items() if name.startswith("pooling_mode_") and on is True]
            mode = modes.get("pooling_mode", chosen[0] if len(chosen) == 1 else None)
            pooling = [ours for ours, name in POOLINGS.items() if mode in (name.split("_")[0], f"pooling_mode_{name}")]
            if not pooling:
                raise UserError(f"{where}: only pooling by mean, by maximum and by the first token is supported")
            settings["pooling"] = pooling[0]
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
    longest = read_json(tokenizer).get("model_max_length") if tokenizer.exists() else 0
    length = reading.get("max_seq_length") or longest
    if isinstance(length, int) and 4 < length < 1 << 24:
        settings["window"] = Window(length=length, stride=3 * length // 4)
    return settings


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
    """Refuse an export whose files are not those that were written; with `trust`, warn and go on."""
    if card is None or not card.files:  # such as a folder of another program
        return
    hashes = _hashes(folder)
    wrong = [f"{shown(name)} is missing" for name in card.files if name not in hashes]
    wrong += [f"{shown(name)} has changed" for name, hash in hashes.items() if card.files.get(name, hash) != hash]
    added = [PurePosixPath(name) for name in hashes if name not in card.files]
    wrong += [f"{shown(str(path))} was added" for path in added if path.suffix not in COMMON or path.name in NAMES]
    if not wrong:
        return
    message = f"{folder}: not as it was exported: {listed(wrong)}"
    if not trust:
        raise UserError(
            f"{message}; export it again, or use it as it is with --trust (trust=True) or without 'files' in {CARD}"
        )
    warnings.warn(message, stacklevel=2)


def _hashes(folder: Path) -> dict[str, str]:
    """The hash of each file by its path in the folder; of the card, of all that it holds besides the hashes."""
    hashes = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        hidden = name.parts[0] == "run" or any(part.startswith(".") for part in name.parts)
        if path.suffix in READ and not hidden and path.is_file():
            hashes[name.as_posix()] = digest(path)
    if CARD in hashes:
        values = read_json(folder / CARD, 16 * MEGABYTE)
        hashes[CARD] = digest_of_values({key: value for key, value in values.items() if key != "files"})
    return hashes

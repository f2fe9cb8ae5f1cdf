"""`weft.json`: what a model folder says beyond its sizes and weights. A closed schema: unknown keys are errors."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from weft.config import build, values_of
from weft.errors import UserError
from weft.files import MEGABYTE, read_json

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Window:
    """How a long text is cut: windows of `length` tokens, each `stride` tokens after the one before."""

    length: int
    stride: int

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
    pooling: Literal["mean", "first"] | None = None
    normalise: bool | None = None
    thresholds: dict[str, float] = field(default_factory=dict)
    metrics: tuple[Metric, ...] = ()
    base: str | None = None
    recipe: str | None = None  # hash
    backend: str | None = None
    made: Made | None = None

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise UserError(f"format is {self.format}; this version of Weft reads {FORMAT}")
        if self.labels is not None and len(set(self.labels)) < len(self.labels):
            raise UserError("labels: one of them stands there twice")


def read_card(folder: Path) -> Card | None:
    path = folder / "weft.json"
    return build(Card, read_json(path, 16 * MEGABYTE), str(path)) if path.exists() else None


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
    """Pooling, normalisation and window of a sentence-transformers folder; nothing when it is none."""
    if not (folder / "modules.json").exists():
        return {}
    from weft.files import read_text

    found: dict[str, Any] = {}
    pooling = folder / "1_Pooling" / "config.json"
    if pooling.exists():
        modes = read_json(pooling, MEGABYTE)
        chosen = [name for name, on in modes.items() if name.startswith("pooling_mode") and on is True]
        names = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "first"}
        name = modes.get("pooling_mode", chosen[0] if len(chosen) == 1 else None)
        names |= {"mean": "mean", "cls": "first"}
        if name not in names:
            raise UserError(f"{pooling}: only mean and first-token pooling are supported")
        found["pooling"] = names[name]
    found["normalise"] = "Normalize" in read_text(folder / "modules.json", MEGABYTE)
    limits = folder / "sentence_bert_config.json"
    if limits.exists():
        length = read_json(limits, MEGABYTE).get("max_seq_length")
        if isinstance(length, int) and length > 4:
            found["window"] = Window(length=length, stride=3 * length // 4)
    return found

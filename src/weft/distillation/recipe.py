"""The recipe of a distillation: everything that decides such a run, in one TOML file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from weft.errors import UserError
from weft.runs.recipes import Tuning, read_recipe
from weft.training.plan import Training

Match = Literal["states", "attention", "relations", "cosine"]


@dataclass(frozen=True, kw_only=True)
class TeacherSection:
    """`[teacher]`: who is listened to; the mean of several."""

    folders: tuple[str, ...] = ()
    task: str | None = None  # what they are asked for, where they can do more: embed


@dataclass(frozen=True, kw_only=True)
class StudentSection:
    """`[student]`: who learns."""

    model: str = ""  # 3x256 (of the teacher's family), distilbert, lstm:2x256, or the folder of a small model
    start: Literal["layers", "scratch"] | None = None  # layers: of the teacher, evenly spaced; so where they fit
    vocabulary: int | None = None  # tokens; of the teacher's, those that the text uses most; or as many are learned
    tokenizer: str | None = None  # a folder, or "learned": from the text; without it, the teacher's
    settings: dict[str, Any] = field(default_factory=dict)  # keys of its config


@dataclass(frozen=True, kw_only=True)
class DistillData:
    """`[data]`: what is learned from and judged by. Rows may have labels or not."""

    text: tuple[str, ...] = ()  # unlabeled texts: one on each line, or a column `text`
    documents: Literal["auto", "line", "block", "file"] = "auto"  # of a text file; of pretrain
    files: tuple[str, ...] = ()  # rows, with or without the column of labels
    dev: tuple[str, ...] = ()  # rows with labels to judge by; without them, a share of those that have labels
    holdout: float = 0.05
    split: int = 0
    columns: dict[str, str] = field(default_factory=dict)
    format: str | None = None
    delimiter: str | None = None
    names: tuple[str, ...] = ()
    encoding: str | None = None
    on_bad_row: Literal["stop", "skip"] = "stop"
    source: tuple[str, ...] = ()  # of a teacher that writes: texts to read, one on each line ...
    target: tuple[str, ...] = ()  # ... and what was written from them, where that is known
    dev_source: tuple[str, ...] = ()
    dev_target: tuple[str, ...] = ()
    augment: int = 0  # times that each text comes again with some of its words replaced
    share: float = 1.0  # of what is there to learn from, as much is learned from
    augment_by: str | None = None  # the folder of a model that fills gaps; without it, words of the text itself

    def __post_init__(self) -> None:
        if not 0 < self.holdout <= 0.5:
            raise UserError(f"holdout must be above 0 and at most 0.5, not {self.holdout}")
        if not 0 < self.share <= 1:
            raise UserError(f"share must be above 0 and at most 1, not {self.share}")
        if not 0 <= self.augment <= 100:
            raise UserError(f"augment must be between 0 and 100, not {self.augment}")


@dataclass(frozen=True, kw_only=True)
class DistillSettings:
    """`[distill]`: what the student is asked for."""

    pretrain: bool = False  # task-free: words of a text as the teacher says them (DistilBERT)
    temperature: float = 2.0  # by which the scores of both are divided before they become chances
    hard: float = 0.5  # how much the right labels count beside the teacher, where a row has one: between 0 and 1
    match: tuple[Match, ...] = ()  # what else is to be like the teacher's, inside
    weight: float = 1.0  # how much each of these counts beside the scores
    map: str = "even"  # which layer of the student answers to which of the teacher's: even, last, or 1:2,2:4,3:6
    mask: float = 0.15  # share of the tokens that are hidden; of pretrain
    best: int = 1  # what a teacher that writes is asked for: its best texts, each counting by its chance
    beam: int = 5
    closest: bool = False  # of these the one that is closest to what was written, where that is known
    curve: int = 0  # points of the learning curve: 4 also trains on an eighth, a quarter and a half of the texts
    metric: str | None = None  # the score that decides which student is kept
    length: int | None = None  # tokens of a window
    stride: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.temperature <= 100:
            raise UserError(f"temperature must be above 0 and at most 100, not {self.temperature}")
        if not 0 <= self.hard <= 1:
            raise UserError(f"hard must be between 0 and 1, not {self.hard}")
        if not 0 <= self.curve <= 10:
            raise UserError(f"curve must be between 0 and 10, not {self.curve}")
        if not 0 <= self.weight <= 1e6:
            raise UserError(f"weight must not be below 0, not {self.weight}")
        if not 0 < self.mask < 1:
            raise UserError(f"mask must be above 0 and below 1, not {self.mask}")
        if not 1 <= self.best <= self.beam <= 64:
            raise UserError(f"best must be between 1 and beam, and beam at most 64: not {self.best} and {self.beam}")


Stage = Literal["pretrain", "distill", "finetune"]
ORDER: tuple[Stage, ...] = ("pretrain", "distill", "finetune")


@dataclass(frozen=True, kw_only=True)
class StageSettings:
    """`[stages]`: what comes before and after the teacher."""

    names: tuple[Stage, ...] = ("distill",)
    pretrain: Training = Training()  # words of the text, as the student's family learns them
    finetune: Tuning = Tuning()  # right answers alone; at a low rate unless said

    def __post_init__(self) -> None:
        places = [ORDER.index(name) for name in self.names]
        if "distill" not in self.names or places != sorted(set(places)):
            raise UserError(
                f"stages are some of {', '.join(ORDER)} in this order, with distill, not {', '.join(self.names)}"
            )


@dataclass(frozen=True, kw_only=True)
class DistillRecipe:
    """One distillation."""

    verb: ClassVar = "distill"
    teacher: TeacherSection = TeacherSection()
    student: StudentSection = StudentSection()
    out: str | None = None
    seed: int = 0
    device: str | None = None
    tensorboard: bool = False
    data: DistillData = DistillData()
    distill: DistillSettings = DistillSettings()
    training: Tuning = Tuning()
    stages: StageSettings = StageSettings()

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 1 << 62:
            raise UserError(f"seed must be between 0 and {(1 << 62) - 1}, not {self.seed}")


def recipe_of(name: str | None, settings: Mapping[str, Any]) -> DistillRecipe:
    """A recipe with these settings in place of its own; whom it teaches by whom must be said by either."""
    found = read_recipe(name, settings, DistillRecipe)
    if not found.teacher.folders:
        raise UserError("a distillation needs a teacher: give its folder")
    if not found.student.model:
        raise UserError("which student? give --student SIZE such as 3x256, a published size, lstm:1x256 or a folder")
    return found

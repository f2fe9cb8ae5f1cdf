"""The recipe of a distillation: everything that decides such a run, in one TOML file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from weft.config import comma_list, option, section
from weft.errors import UserError, refuse
from weft.runs.recipes import Documents, FinetuneTraining, TableSection, TrainingRecipe, read_recipe
from weft.training.plan import Training

Match = Literal["states", "attention", "relations", "cosine"]


@dataclass(frozen=True, kw_only=True)
class TeacherSection:
    """`[teacher]`: one or several, whose outputs are averaged."""

    panel: ClassVar = "Model"
    folders: tuple[str, ...] = ()
    task: str | None = option(None, "--task", help="Task to learn, where a teacher has several: embed.", metavar="TASK")


@dataclass(frozen=True, kw_only=True)
class StudentSection:
    """`[student]`: its size, vocabulary and initial weights."""

    panel: ClassVar = "Model"
    model: str = option("", "--student", help="3x256, lstm:1x256, a published size or a folder.", metavar="MODEL")
    start: Literal["layers", "scratch"] | None = option(None, "--start", help="Teacher layers, or random weights.")
    vocabulary: int | None = option(None, "--vocabulary", help="Keep the N most used tokens, or learn N.")
    tokenizer: str | None = option(None, "--tokenizer", help="learned, a folder, or the teacher's.", metavar="FOLDER")
    settings: dict[str, Any] = field(default_factory=dict)  # keys of its config


@dataclass(frozen=True, kw_only=True)
class DistillDataSection(TableSection):
    """`[data]`: what is learned from and evaluated on. Rows may have labels or not."""

    text: tuple[str, ...] = option((), "--text", help="Unlabeled texts, one per line; repeatable.", metavar="FILE")
    documents: Documents = "auto"  # of a text file; of pretrain
    holdout: float = 0.05
    augment: int = option(0, "--augment", help="Copies of each text with some of its words replaced.")
    share: float = 1.0  # of what is there to learn from, as much is learned from
    augment_by: str | None = option(None, "--augment-by", help="Masked language model for --augment.", metavar="MODEL")

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse(
            (not 0 < self.share <= 1, f"share must be above 0 and at most 1, not {self.share}"),
            (not 0 <= self.augment <= 100, f"augment must be between 0 and 100, not {self.augment}"),
        )


@dataclass(frozen=True, kw_only=True)
class DistillSection:
    """`[distill]`: what the student is asked for."""

    panel: ClassVar = "Distillation"
    pretrain: bool = option(False, "--pretrain", help="Learn the teacher's language model from --text, no task.")
    temperature: float = option(2.0, "--temperature", help="Divides the logits of both in the softmax.", metavar="T")
    hard: float = option(0.5, "--hard", help="Weight of the labels; the teacher has the rest.", metavar="WEIGHT")
    match: tuple[Match, ...] = option((), "--match", help="Also match hidden states or attention; repeatable.")
    weight: float = option(1.0, "--weight", help="Weight of each --match in the loss.", metavar="WEIGHT")
    map: str = option("even", "--map", help="Layers to match: even, last, or 1:2,2:4.", metavar="MAP")
    mask: float = 0.15  # share of the tokens that are hidden; of pretrain
    n: int = option(1, "--n", help="Texts per example that a teacher generates.")
    beam_size: int = option(5, "--beam-size", help="Beam size of a teacher that generates.")
    closest: bool = option(False, "--closest", help="Of the teacher's texts, use the one closest to the target.")
    curve: int = option(0, "--curve", help="Points of the learning curve; 3 also trains on 1/4 and 1/2 of the texts.")
    metric: str | None = option(None, "--metric", help="Metric that selects the best student.", metavar="NAME")
    length: int | None = option(None, "--length", help="Tokens per window. Default: the teacher's.")
    stride: int | None = option(None, "--stride", help="Tokens from one window to the next.")

    def __post_init__(self) -> None:
        n, beam = self.n, self.beam_size
        refuse(
            (not 0 < self.temperature <= 100, f"temperature must be above 0 and at most 100, not {self.temperature}"),
            (not 0 <= self.hard <= 1, f"hard must be between 0 and 1, not {self.hard}"),
            (not 0 <= self.curve <= 10, f"curve must be between 0 and 10, not {self.curve}"),
            (not 0 <= self.weight <= 1e6, f"weight must not be below 0, not {self.weight}"),
            (not 0 < self.mask < 1, f"mask must be above 0 and below 1, not {self.mask}"),
            (not 1 <= n <= beam <= 64, f"n and beam_size must hold 1 <= n <= beam_size <= 64, not {n} and {beam}"),
        )


Stage = Literal["pretrain", "distill", "finetune"]
ORDER: tuple[Stage, ...] = ("pretrain", "distill", "finetune")


@dataclass(frozen=True, kw_only=True)
class StagesSection:
    """`[stages]`: what comes before and after the teacher."""

    panel: ClassVar = "Distillation"
    names: tuple[Stage, ...] = option(
        ("distill",), "--stages", help="Some of pretrain,distill,finetune, in order.", metavar="NAMES", parse=comma_list
    )
    pretrain: Training = Training()  # words of the text, as the student's family learns them
    finetune: FinetuneTraining = FinetuneTraining()  # targets alone; at a low learning rate by default

    def __post_init__(self) -> None:
        if "distill" not in self.names or self.names != tuple(name for name in ORDER if name in self.names):
            wrong = ", ".join(self.names)
            raise UserError(f"stages are some of {', '.join(ORDER)} in this order, with distill, not {wrong}")


@dataclass(frozen=True, kw_only=True)
class DistillRecipe(TrainingRecipe):
    """One distillation."""

    verb: ClassVar = "distill"
    teacher: TeacherSection = TeacherSection()
    student: StudentSection = StudentSection()
    data: DistillDataSection = DistillDataSection()
    distill: DistillSection = DistillSection()
    training: FinetuneTraining = section(FinetuneTraining(), without=("layer_decay",))
    stages: StagesSection = StagesSection()


def recipe_of(name: str | None, settings: Mapping[str, Any]) -> DistillRecipe:
    """A recipe with these settings in place of its own; it must name a teacher and a student."""
    recipe = read_recipe(name, settings, DistillRecipe)
    sizes = "3x256, a published size, lstm:1x256 or a folder"
    refuse(
        (not recipe.teacher.folders, "a distillation needs a teacher: give its folder"),
        (not recipe.student.model, f"which student? give --student SIZE such as {sizes}"),
    )
    return recipe

"""The recipe of a ladder: language models trained on one text with equal budgets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from weft.config import comma_list, option, section
from weft.errors import UserError, one_of
from weft.runs.rungs import RUNGS, SIZES, rung_of
from weft.runs.sections import RunRecipe, TextSection


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
    minutes: float | None = option(
        None, "--minutes", help="Training time of each model. Default: 3, unless --tokens is given.", metavar="N"
    )
    tokens: int | None = option(
        None, "--tokens", help="Tokens that each model reads, such as 20M.", metavar="N", parse=large_number
    )
    models: tuple[str, ...] = option(
        tuple(RUNGS),
        "--models",
        help="Some of the rungs, such as ngram-2,lstm,transformer. Default: all.",
        metavar="A,B,...",
        parse=comma_list,
    )
    vocabulary: str | None = option(
        None,
        "--vocabulary",
        help="characters, or the size of a subword vocabulary. Default: by the size of the text.",
        metavar="N",
    )
    size: Literal["tiny", "small", "large"] | None = option(
        None, "--size", help="Size of the models. Default: small on a CPU, large on a GPU."
    )
    prompt: str | None = option(
        None, "--prompt", help="Prompt of the samples. Default: the beginning of the held-out text.", metavar="TEXT"
    )
    parallel: int = option(1, "--parallel", help="Models trained at once, each in its own process. 0: in this process.")

    def __post_init__(self) -> None:
        if self.minutes is not None and self.tokens is not None:
            raise UserError("minutes and tokens cannot both be given")
        if self.minutes is not None and not 0 < self.minutes < 1e5:
            raise UserError(f"minutes must be above 0, not {self.minutes:g}")
        if self.tokens is not None and not 1 <= self.tokens < 1 << 50:
            raise UserError(f"tokens must be at least 1, not {self.tokens}")
        if not 0 <= self.parallel <= 64:
            raise UserError(f"parallel must be between 0 and 64, not {self.parallel}")
        if not self.models:
            raise UserError(f"no models: the rungs are {', '.join(RUNGS)}")
        if self.size is not None:
            one_of(self.size, SIZES, "size")
        twice = [name for place, name in enumerate(self.models) if name in self.models[:place]]
        if twice:
            raise UserError(f"model {twice[0]!r} is there twice")
        size = self.vocabulary
        if size is not None and size != "characters" and not (size.isdecimal() and 258 <= int(size) <= 200_000):
            raise UserError(f"vocabulary must be characters or a number between 258 and 200000, not {size!r}")


@dataclass(frozen=True, kw_only=True)
class LadderRecipe(RunRecipe):
    """One ladder: a text, a budget, and what rungs have of their own."""

    verb: ClassVar = "ladder"
    ladder: Budget = Budget()
    text: TextSection = section(TextSection(), without=("dev", "documents"))
    rungs: dict[str, Any] = field(default_factory=dict)  # by name: keys of the recipe of that rung

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, values in self.rungs.items():
            if not isinstance(values, dict) or not all(isinstance(section, dict) for section in values.values()):
                raise UserError(f"rungs.{name} must be sections of a recipe, such as rungs.{name}.model.width")
            wrong = set(values) - {"model", "objective", "training"}
            if wrong:
                raise UserError(f"rungs.{name}: {min(wrong)} is none of model, objective, training")
        for name in self.ladder.models:
            rung_of(name, self.rungs)
        for name in self.rungs:
            rung_of(name, self.rungs)

"""The recipe of a ladder: language models trained on one text with equal budgets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from weft.config import comma_list, merged, option, section
from weft.errors import UserError, did_you_mean, listed, one_of, shown
from weft.runs.recipes import RunRecipe, TextSection

PASSES = 50  # over the text at most, on a GPU: a fast one would go over a small text until it knew it by heart
SIZES = ("tiny", "small", "large")  # for a test, for a few cores, for a GPU
DROPOUTS = ("dropout", "embedding_dropout", "attention_dropout")


@dataclass(frozen=True, kw_only=True)
class Rung:
    """One model of the ladder: what a page says of it, and the recipe of each size beside what all rungs share."""

    title: str
    about: str  # what it is, for somebody who does not know it
    sees: str  # what it can see of the text before the word that it predicts
    model: Mapping[str, Any]
    sizes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    learns: bool = True  # else it stays as it is made
    characters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # what differs there, by size


def _size(model: Mapping[str, Any], length: int, learning_rate: float, **training: Any) -> dict[str, Any]:
    return {"model": model, "objective": {"length": length}, "training": {"learning_rate": learning_rate, **training}}


def _large(model: Mapping[str, Any], length: int, learning_rate: float, **training: Any) -> dict[str, Any]:
    return _size(model, length, learning_rate, batch=64, epochs=PASSES, **training)


def _counting(order: int) -> Rung:
    return Rung(
        title=f"{order}-gram",
        about=f"counts which token followed each run of {order - 1} token{'s' * (order > 2)} in the text, "
        "and falls back on shorter runs where that one was rare (modified Kneser-Ney)",
        sees=f"the last {order - 1} token{'s' * (order > 2)}",
        model={"family": "ngram", "order": order},
    )


def _recurrent(family: str, layers: int, title: str, about: str, rates: tuple[float, float]) -> Rung:
    return Rung(
        title=title,
        about=about,
        sees="everything before, as far as its state has kept it",
        model={"family": family, "layers": layers},
        sizes={
            "tiny": _size({"width": 16, "dropout": 0.0}, 16, 1e-2),
            "small": _size({"width": 256, "dropout": 0.0}, 64, rates[0], batch=16),
            "large": _large({"width": 512, "dropout": 0.3 if layers == 1 else 0.4}, 128, rates[1], weight_decay=0.01),
        },
    )


RUNGS: dict[str, Rung] = {
    "uniform": Rung(
        title="uniform",
        about="gives every token of the vocabulary the same chance: it has learned nothing, and all others are "
        "measured against it",
        sees="nothing",
        model={"family": "ngram", "order": 1},
        learns=False,
    ),
    "unigram": Rung(
        title="unigram",
        about="knows how often each token comes in the text",
        sees="nothing",
        model={"family": "ngram", "order": 1},
    ),
    **{f"ngram-{order}": _counting(order) for order in (2, 3, 4, 5)},
    "mlp": Rung(
        title="MLP",
        about="a neural network that puts vectors of the last few tokens side by side and reads the next one from "
        "them (Bengio et al., 2003)",
        sees="the last few tokens, a fixed number of them",
        model={"family": "mlp"},
        sizes={
            "tiny": _size({"window": 4, "width": 8, "inner": 16}, 16, 1e-2),
            "small": _size({"window": 10, "width": 32, "inner": 512, "dropout": 0.0}, 64, 4e-3, batch=16),
            # A tied table begins small: vectors of rare tokens, which are hardly ever moved, then say little.
            "large": _large({"window": 8, "width": 256, "inner": 1024, "dropout": 0.4, "tied": True}, 128, 1e-3),
        },
        characters={"large": {"model": {"window": 16, "width": 96, "inner": 2048, "dropout": 0.2, "tied": False}}},
    ),
    "rnn": _recurrent(
        "rnn",
        1,
        "RNN",
        "a network with one state that each token changes (Elman, 1990); what is far back fades from it",
        (2e-3, 5e-4),
    ),
    "gru": _recurrent(
        "gru",
        1,
        "GRU",
        "a recurrent network whose gates decide what its state keeps and what it forgets (Cho et al., 2014)",
        (4e-3, 2e-3),
    ),
    "lstm": _recurrent(
        "lstm",
        1,
        "LSTM",
        "a recurrent network with a memory beside its state, and gates that guard it (Hochreiter and Schmidhuber, "
        "1997)",
        (4e-3, 2e-3),
    ),
    "lstm-2": _recurrent(
        "lstm", 2, "two-layer LSTM", "two LSTMs, the second of which reads the states of the first", (4e-3, 2e-3)
    ),
    "transformer": Rung(
        title="Transformer",
        about="a network that looks back at every token of its context at once and weighs how much each of them "
        "matters (Vaswani et al., 2017; GPT-2's layers, with rotary positions)",
        sees="all tokens of its context",
        model={"family": "gpt2"},
        sizes={
            "tiny": _size({"size": "1x64", "heads": 2}, 16, 1e-2),
            "small": _size(
                {"size": "4x128", "heads": 4, "positions": "rotary", **dict.fromkeys(DROPOUTS, 0.0)}, 128, 4e-3, batch=8
            ),
            "large": _large(
                {"size": "6x384", "positions": "rotary", **dict.fromkeys(DROPOUTS, 0.3)}, 256, 1e-3, compile=True
            ),
        },
        characters={"large": {"model": dict.fromkeys(DROPOUTS, 0.2)}},
    ),
}
# What every network of the ladder is trained with, unless its own size says otherwise.
TRAINING = {"batch": 8, "warmup": 50, "floor": 0.0, "beta2": 0.99, "explode": 10.0}


def rung_of(name: str, given: Mapping[str, Mapping[str, Any]]) -> Rung:
    """A rung by its name: one of the table, or one of the user's own that names its family."""
    if name in RUNGS:
        return RUNGS[name]
    if not re.fullmatch(r"\w[\w-]*", name) or name == "run":  # it names a folder beside the ladder's own
        raise UserError(f"rung {shown(name)!r}: a name is letters, digits and hyphens, and not run")
    family = given.get(name, {}).get("model", {}).get("family")
    if not isinstance(family, str):
        raise UserError(
            f"rung {name!r} is not one of {listed(RUNGS, 20)}{did_you_mean(name, RUNGS)}; one of your own needs "
            f"--set {name}.model.family=FAMILY"
        )
    return Rung(title=name, about=f"a model of the family {family}", sees="what its family sees", model={})


def recipe_of(name: str, size: str, given: Mapping[str, Mapping[str, Any]], characters: bool = False) -> dict[str, Any]:
    """What is asked of `weft.pretrain` for a rung: model, rows and training; the text and the budget come beside it."""
    rung = rung_of(name, given)
    values: dict[str, Any] = {"model": dict(rung.model)}
    if rung.model.get("family") != "ngram":
        values = merged({**values, "training": TRAINING}, rung.sizes.get(size, {}))
        values = merged(values, rung.characters.get(size, {}) if characters else {})
    return merged(values, given.get(name, {}))


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

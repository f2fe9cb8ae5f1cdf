"""The recipe of a ladder: language models trained on one text with equal budgets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from weft.config import comma_list, merged, option, section
from weft.errors import UserError, did_you_mean, listed, refuse, shown
from weft.runs.recipes import RunRecipe, TextSection

PASSES = 50  # over the text at most, on a GPU: more would overfit a small text
DROPOUTS = ("dropout", "embedding_dropout", "attention_dropout")
LARGE = {"batch": 64, "epochs": PASSES}


@dataclass(frozen=True)
class Rung:
    """One model of the ladder: how the page describes it, and its recipe by size."""

    title: str
    about: str
    sees: str  # of the text before the token that it predicts
    model: Mapping[str, Any]
    sizes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    characters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # what differs for characters, by size
    learns: bool = True


def _size(model: Mapping[str, Any], length: int, learning_rate: float, **training: Any) -> dict[str, Any]:
    return {"model": model, "objective": {"length": length}, "training": {"learning_rate": learning_rate, **training}}


def _recurrent(title: str, about: str, family: str, layers: int = 1, rates: tuple[float, float] = (4e-3, 2e-3)) -> Rung:
    sizes = {
        "tiny": _size({"width": 16, "dropout": 0.0}, 16, 1e-2),
        "small": _size({"width": 256, "dropout": 0.0}, 64, rates[0], batch=16),
        "large": _size(
            {"width": 512, "dropout": 0.3 if layers == 1 else 0.4}, 128, rates[1], weight_decay=0.01, **LARGE
        ),
    }
    return Rung(
        title, about, "all tokens before, as far as its state keeps them", {"family": family, "layers": layers}, sizes
    )


RUNGS: dict[str, Rung] = {
    "uniform": Rung(
        "uniform",
        "gives every token of the vocabulary the same probability: the reference for all other models",
        "nothing",
        {"family": "ngram", "order": 1},
        learns=False,
    ),
    "unigram": Rung("unigram", "counts how often each token occurs", "nothing", {"family": "ngram", "order": 1}),
    **{
        f"ngram-{order}": Rung(
            f"{order}-gram",
            f"counts which token follows each sequence of {order - 1} token{'s' * (order > 2)}, and backs off to "
            "shorter sequences where that one is rare (modified Kneser-Ney)",
            f"the last {order - 1} token{'s' * (order > 2)}",
            {"family": "ngram", "order": order},
        )
        for order in (2, 3, 4, 5)
    },
    "mlp": Rung(
        "MLP",
        "a feed-forward network over the concatenated vectors of the last few tokens (Bengio et al., 2003)",
        "the last few tokens, a fixed number of them",
        {"family": "mlp"},
        {
            "tiny": _size({"window": 4, "width": 8, "inner": 16}, 16, 1e-2),
            "small": _size({"window": 10, "width": 32, "inner": 512, "dropout": 0.0}, 64, 4e-3, batch=16),
            # A tied table starts small, so vectors of rare tokens, which are hardly ever updated, have little effect.
            "large": _size(
                {"window": 8, "width": 256, "inner": 1024, "dropout": 0.4, "tied": True}, 128, 1e-3, **LARGE
            ),
        },
        {"large": {"model": {"window": 16, "width": 96, "inner": 2048, "dropout": 0.2, "tied": False}}},
    ),
    "rnn": _recurrent(
        "RNN", "a network with one state that each token updates (Elman, 1990)", "rnn", rates=(2e-3, 5e-4)
    ),
    "gru": _recurrent(
        "GRU", "a recurrent network with gates that decide what its state keeps (Cho et al., 2014)", "gru"
    ),
    "lstm": _recurrent(
        "LSTM",
        "a recurrent network with a gated memory cell beside its state (Hochreiter and Schmidhuber, 1997)",
        "lstm",
    ),
    "lstm-2": _recurrent("two-layer LSTM", "two LSTMs, the second of which reads the states of the first", "lstm", 2),
    "transformer": Rung(
        "Transformer",
        "a network that attends to all tokens of its context (Vaswani et al., 2017; GPT-2 with rotary positions)",
        "all tokens of its context",
        {"family": "gpt2"},
        {
            "tiny": _size({"size": "1x64", "heads": 2}, 16, 1e-2),
            "small": _size(
                {"size": "4x128", "heads": 4, "positions": "rotary", **dict.fromkeys(DROPOUTS, 0.0)}, 128, 4e-3, batch=8
            ),
            "large": _size(
                {"size": "6x384", "positions": "rotary", **dict.fromkeys(DROPOUTS, 0.3)},
                256,
                1e-3,
                compile=True,
                **LARGE,
            ),
        },
        {"large": {"model": dict.fromkeys(DROPOUTS, 0.2)}},
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
    return Rung(name, f"a model of the family {family}", "what its family sees", {})


def recipe_of(name: str, size: str, given: Mapping[str, Mapping[str, Any]], characters: bool = False) -> dict[str, Any]:
    """The sections model, objective and training of a rung's recipe."""
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
        size, minutes, tokens = self.vocabulary or "characters", self.minutes, self.tokens
        is_number = size.isdecimal() and 258 <= int(size) <= 200_000
        twice = [name for place, name in enumerate(self.models) if name in self.models[:place]]
        refuse(
            (minutes is not None and tokens is not None, "minutes and tokens cannot both be given"),
            (minutes is not None and not 0 < minutes < 1e5, f"minutes must be above 0, not {minutes}"),
            (tokens is not None and not 1 <= tokens < 1 << 50, f"tokens must be at least 1, not {tokens}"),
            (not 0 <= self.parallel <= 64, f"parallel must be between 0 and 64, not {self.parallel}"),
            (not self.models, f"no models: the rungs are {', '.join(RUNGS)}"),
            (bool(twice), f"model {twice[:1]} is given more than once"),
            (
                size != "characters" and not is_number,
                f"vocabulary must be characters or a number between 258 and 200000, not {size!r}",
            ),
        )


@dataclass(frozen=True, kw_only=True)
class LadderRecipe(RunRecipe):
    """One ladder: a text, a budget, and what rungs have of their own."""

    verb: ClassVar = "ladder"
    out: str | None = option(
        None, "--out", help="Folder of the ladder. An existing one is continued.", metavar="FOLDER"
    )
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

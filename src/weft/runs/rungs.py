"""The rungs of the ladder: each model with its sizes, as the page describes it and as it is trained."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from weft.config import merged
from weft.errors import UserError, did_you_mean, listed, shown

LARGE = {"batch": 64, "epochs": 50}  # more epochs would overfit a small text
UNIGRAM = {"family": "ngram", "order": 1}
ROTARY, DROPOUTS = {"positions": "rotary"}, ("dropout", "embedding_dropout", "attention_dropout")


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
    model, dropout = {"family": family, "layers": layers}, 0.3 if layers == 1 else 0.4
    sizes = {
        "tiny": _size({"width": 16, "dropout": 0.0}, 16, 1e-2),
        "small": _size({"width": 256, "dropout": 0.0}, 64, rates[0], batch=16),
        "large": _size({"width": 512, "dropout": dropout}, 128, rates[1], weight_decay=0.01, **LARGE),
    }
    return Rung(title, about, "all tokens before, as far as its state keeps them", model, sizes)


RUNGS: dict[str, Rung] = {
    "uniform": Rung("uniform", "gives all tokens the same probability", "nothing", UNIGRAM, learns=False),
    "unigram": Rung("unigram", "counts how often each token occurs", "nothing", UNIGRAM),
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
    "rnn": _recurrent("RNN", "a network whose state each token updates (Elman, 1990)", "rnn", rates=(2e-3, 5e-4)),
    "gru": _recurrent("GRU", "an RNN with gates that decide what its state keeps (Cho et al., 2014)", "gru"),
    "lstm": _recurrent("LSTM", "an RNN with a gated memory cell (Hochreiter and Schmidhuber, 1997)", "lstm"),
    "lstm-2": _recurrent("two-layer LSTM", "two LSTMs, the second of which reads the states of the first", "lstm", 2),
    "transformer": Rung(
        "Transformer",
        "a network that attends to all tokens of its context (Vaswani et al., 2017; GPT-2 with rotary positions)",
        "all tokens of its context",
        {"family": "gpt2"},
        {
            "tiny": _size({"size": "1x64", "heads": 2}, 16, 1e-2),
            "small": _size({"size": "4x128", "heads": 4, **ROTARY, **dict.fromkeys(DROPOUTS, 0.0)}, 128, 4e-3),
            "large": _size(
                {"size": "6x384", **ROTARY, **dict.fromkeys(DROPOUTS, 0.3)}, 256, 1e-3, compile=True, **LARGE
            ),
        },
        {"large": {"model": dict.fromkeys(DROPOUTS, 0.2)}},
    ),
    "transformer-xl": Rung(
        "Transformer-XL",
        "a Transformer that also attends to what it remembers of the rows before (Dai et al., 2019)",
        "all tokens of its row, and as many before it as its memory holds",
        # With norms before each part, large token vectors would outweigh what the layers add to them.
        {"family": "transformer-xl", "norm_place": "before", "activation": "gelu-tanh", "scaled": False},
        {
            "tiny": _size({"size": "1x64", "heads": 2}, 16, 1e-2),
            # The map of distances is one more: narrower feed-forward networks have as many parameters together.
            "small": _size({"size": "4x128", "heads": 4, "inner": 448, "dropout": 0.0}, 128, 3e-3),
            "large": _size(
                {"size": "6x384", "inner": 1344, "dropout": 0.3, "attention_dropout": 0.1}, 256, 1e-3, **LARGE
            ),
        },
        {"small": {"training": {"learning_rate": 4e-3}}, "large": {"model": {"dropout": 0.2}}},
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
        own = f"a new one needs --set {name}.model.family=FAMILY"
        raise UserError(f"rung {name!r} is not one of {listed(RUNGS, 20)}{did_you_mean(name, RUNGS)}; {own}")
    return Rung(name, f"a model of the family {family}", "what its family sees", {})


def recipe_of(name: str, size: str, given: Mapping[str, Mapping[str, Any]], characters: bool = False) -> dict[str, Any]:
    """The sections model, objective and training of a rung's recipe."""
    rung = rung_of(name, given)
    values: dict[str, Any] = {"model": dict(rung.model)}
    if rung.model.get("family") != "ngram":
        values = merged({**values, "training": TRAINING}, rung.sizes.get(size, {}))
        values = merged(values, rung.characters.get(size, {}) if characters else {})
    return merged(values, given.get(name, {}))

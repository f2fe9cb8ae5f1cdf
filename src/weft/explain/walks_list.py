"""The walks by name, with what each takes; none of their modules is imported before it is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.errors import UserError, one_of

if TYPE_CHECKING:
    from weft.explain.view import View
    from weft.explain.walk_steps import Walk
    from weft.tasks.model import Model


@dataclass(frozen=True)
class NamedWalk:
    """One walk: its function, and how many models and texts it takes."""

    about: str
    function: str  # module:function
    models: tuple[int, int] = (0, 0)  # at least and at most
    texts: tuple[int, int] = (0, 0)
    usual: str | None = None  # text without which it does not go
    options: tuple[str, ...] = ()

    def arguments(self, models: Sequence[Any], texts: Sequence[str]) -> list[Any]:
        """What the function is called with: each model and text where there can be one, else lists of them."""
        given: list[Any] = []
        if self.models[1]:
            given.append(list(models) if self.models[1] > 1 else models[0] if models else None)
        if self.texts[1]:
            text = texts[0] if texts else self.usual
            given.append(list(texts) if self.texts[1] > 1 else text)
        return given


WALKS: Mapping[str, NamedWalk] = {
    "softmax": NamedWalk("two worked examples of attention weights, as in the textbook", "walks_basic:softmax_walk"),
    "one-hot": NamedWalk(
        "an embedding as the row that a one-hot vector picks", "walks_basic:one_hot_walk", (0, 1), (0, 1),
        "the robot must obey the orders",
    ),
    "seq2seq": NamedWalk(
        "an encoder-decoder that writes token by token", "walks_training:seq2seq_walk", (0, 1), (0, 1)
    ),
    "grids": NamedWalk("target and trained output of a six-word vocabulary", "walks_training:grids_walk"),
    "rnn": NamedWalk(
        "one step of an RNN, an LSTM and a GRU", "walks_recurrent:recurrent_walk", (0, 3), (0, 1),
        "the cat sat on the mat",
    ),
    "bptt": NamedWalk(
        "back-propagation through time, term by term", "walks_recurrent:bptt_walk", (0, 1), (0, 1),
        "the cat sat on the mat and slept", ("t_min", "t_max"),
    ),
    "it": NamedWalk("where 'it' looks in two sentences that differ in a word", "walks_models:it_walk", (1, 1), (0, 2)),
    "mlm": NamedWalk("masked words: 80, 10, 10", "walks_models:mlm_walk", (0, 1), (0, 1), options=("seed",)),
    "nsp": NamedWalk("next sentence prediction, for two texts", "walks_models:nsp_walk", (0, 1), (0, 2)),
    "teacher-forcing": NamedWalk(
        "teacher forcing against generation", "walks_training:teacher_walk", (0, 1), (0, 1), options=("target",)
    ),
    "ngram": NamedWalk("counts of a text file, and how sparse they are", "walks_basic:ngram_walk", texts=(1, 1)),
}  # fmt: skip


def find_walk(name: str) -> NamedWalk:
    """A walk by its name."""
    return WALKS[one_of(name, tuple(WALKS), "walk")]


def model_count(named: NamedWalk, words: Sequence[str]) -> int:
    """How many of the arguments, from the first on, are models: those that a walk must have, and other folders."""
    least, most = named.models
    count = 0
    while count < min(most, len(words)) and (count < least or is_path(words[count])):
        count += 1
    return count


def is_path(word: str) -> bool:
    """Whether an argument is a folder, or looks like the path of one or a published name, and not like a text."""
    named = "/" in word and not any(character.isspace() for character in word)
    return named or (bool(word) and Path(word).is_dir())


def make_walk(name: str, models: Sequence[Model] = (), texts: Sequence[str] = (), **options: Any) -> Walk:
    """A walk with these models and texts; options that are None count as not given."""
    named = find_walk(name)
    given = {key: value for key, value in options.items() if value is not None}
    for what, values, (least, most) in (("model", models, named.models), ("text", texts, named.texts)):
        if not least <= len(values) <= most:
            count = str(least) if least == most else f"{least} to {most}"
            raise UserError(f"walk '{name}' takes {count} {what}{'s' * (most != 1)}, not {len(values)}")
    for key in given:
        if key not in named.options:
            owners = ", ".join(other for other, walk in WALKS.items() if key in walk.options)
            raise UserError(f"--{key.replace('_', '-')} is for walk {owners}, not for {name}")
    module, _, function = named.function.partition(":")
    make = vars(import_module(f"weft.explain.{module}"))[function]
    walk: Walk = make(*named.arguments(models, texts), **given)
    return walk


def walk_view(name: str, models: Sequence[Model] = (), texts: Sequence[str] = (), **options: Any) -> View:
    """A walk as a page; names are the keys of `WALKS`."""
    return make_walk(name, models, texts, **options).view()

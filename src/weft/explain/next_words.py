"""What several language models expect next, side by side: the same words, each model's probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from weft.checkpoint.locate import find_folder, has_model
from weft.errors import UserError, refuse, shown
from weft.explain.view import Panel, View
from weft.picture import LIGHT, component
from weft.progress import ProgressChoice, progress_of
from weft.tasks.model import Model, load
from weft.tasks.suggest import suggest

TOP, MOST = 10, 50  # words that are shown
LOOKED = 200  # words of each model among which those of the others are looked for
END = "(end of text)"


@dataclass(frozen=True, kw_only=True)
class WordBars(Panel):
    """Words down, models across, and bars of probabilities."""

    words: Sequence[str]
    models: Sequence[str]
    values: Sequence[Sequence[float | None]]  # words models; None: not among the likeliest words of that model

    is_plot: ClassVar[bool] = True

    def body(self) -> str:
        return component("word-bars", self.data())

    def draw(self, axes: Any) -> None:
        high = 0.8 / max(1, len(self.models))
        for number, name in enumerate(self.models):
            places = [row + (number - (len(self.models) - 1) / 2) * high for row in range(len(self.words))]
            values = [row[number] or 0.0 for row in self.values]
            axes.barh(places, values, height=high, label=name, color=LIGHT[number % len(LIGHT)])
        axes.set_yticks(range(len(self.words)), self.words)
        axes.invert_yaxis()
        axes.set(xlabel="probability", title=self.heading)
        axes.legend()


def ladder_folders(names: Sequence[str]) -> list[Path]:
    """The model folders that are named; a folder of models, such as a ladder, stands for all of them."""
    folders = list[Path]()
    for name in names:
        place = Path(name).expanduser()
        if place.is_dir() and not has_model(place):
            inner = [path for path in sorted(place.iterdir()) if path.is_dir() and has_model(path)]
            refuse((not inner, f"{name!r} is not a model folder, and holds none"))
            folders += sorted(inner, key=_height)
        else:
            folder = find_folder(name)
            refuse((not has_model(folder), f"{name!r} is not a model folder: it has no config.json"))
            folders.append(folder)
    return folders


LINE = ("uniform", "unigram", "ngram", "mlp", "rnn", "gru", "lstm", "lstm-2", "transformer", "gpt", "transformer-xl")


def _height(path: Path) -> tuple[int, str]:
    """The place of a model on the ladder, by its name."""
    name = path.name.lower()
    best = max((place for place, each in enumerate(LINE) if name == each), default=-1)
    if best < 0:
        best = max((place for place, each in enumerate(LINE) if name.startswith(each)), default=len(LINE))
    return best, name


def next_words_view(
    models: Sequence[Model | str | Path], text: str, *, top: int = TOP, progress: ProgressChoice = None
) -> View:
    """The likeliest next words of a text by several models: rows are words, ordered by their mean probability.

    `models`: models or folders; a folder that holds model folders, such as that of `weft ladder`, stands for all.
    """
    refuse(
        (not models, "give at least one model"),
        (not 1 <= top <= MOST, f"top must be between 1 and {MOST}, not {top}"),
    )
    names, columns, notes = list[str](), list[dict[str, float]](), list[str]()
    given: list[Model | Path] = []
    for each in models:
        given += [each] if isinstance(each, Model) else ladder_folders([str(each)])
    with progress_of(progress)(f"next words by {len(given)} models", "models") as count:
        for each in given:
            model = each if isinstance(each, Model) else load(each)
            name = model.folder.name if model.folder else model.opened.family.name
            try:
                answer = suggest(model, text, top=LOOKED, complete_word=False)
            except UserError as error:
                if len(given) == 1:
                    raise
                notes.append(f"{name} is left out: {error}.")
                continue
            names.append(name if name not in names else f"{name} ({len(names) + 1})")
            columns.append({word.text or END: word.probability for word in answer.words})
            count(1)
    if not columns:
        raise UserError(" ".join(notes))
    words = list(dict.fromkeys(word for column in columns for word in list(column)[:top]))
    words.sort(key=lambda word: -sum(column.get(word, 0.0) for column in columns))
    words = words[:top] if len(columns) == 1 else words[: 2 * top]
    values = [[column.get(word) for column in columns] for word in words]
    panel = WordBars(words=words, models=names, values=values, note=" ".join(
        [f"–: not among the {LOOKED} likeliest words of that model.", *notes]
    ))  # fmt: skip
    return View("Next word", (panel,), f"“{shown(text, 400)}” …")

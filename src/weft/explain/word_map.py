"""A map of words: word vectors, or the token embeddings of any model, in the plane, with lines of analogies."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from weft.checkpoint.locate import find_folder
from weft.errors import UserError, listed, one_of, refuse, shown
from weft.explain.plots import PointLayout, PointPlot
from weft.explain.projection import METHODS, TITLES, projected
from weft.explain.view import Panel, TextTable, View
from weft.tasks.model import load
from weft.tasks.word_vectors import read_words
from weft.text.records import read_texts
from weft.text.tokenizers.spelling import Spelling
from weft.vectors.space import WordSpace, unit

TOP, MOST = 300, 5000  # words of a map by default, and at most
NEAREST = 5  # words that are named beside a point
TOGETHER = 256  # words whose neighbors are looked for at once
PLAIN = re.compile(r"[^\W\d_]{2,}")
Path_ = str | os.PathLike[str]


@dataclass(frozen=True)
class Question:
    """An analogy: first - second + third, and the word that comes out."""

    first: str
    second: str
    third: str
    answer: str
    score: float


def open_space(source: Path_, online: bool = False) -> WordSpace:
    """Word vectors of a folder or a file; of any other model folder its token embeddings."""
    place = Path(source)
    if place.is_file() or place.suffix in (".txt", ".bin", ".vec", ".gz") and not place.is_dir():
        return WordSpace(*read_words(source), name=os.fspath(source))
    model = load(find_folder(os.fspath(source), online))
    if model.opened.family.name == "vectors":
        return WordSpace(*read_words(source), name=os.fspath(source))
    table = {name: parameter for name, parameter in model.network.named_parameters() if name == "tokens.weight"}
    if model.opened.exported or model.tokenizer is None or not table:
        raise UserError(f"{source}: a {model.opened.family.name} model has no table of token embeddings to map")
    matrix = table["tokens.weight"].detach().float().cpu().numpy()
    texts = Spelling.of(model.tokenizer).texts[: len(matrix)]
    places: dict[str, int] = {}
    for spaced in (True, False):  # a token that begins a word comes before one inside words
        for number, text in enumerate(texts):
            if text.strip() and text[:1].isspace() is spaced and "\ufffd" not in text:
                places.setdefault(text.strip(), number)
    ordered = sorted(places.items(), key=lambda item: item[1])
    words, numbers = [word for word, _ in ordered], [number for _, number in ordered]
    return WordSpace(words, matrix[numbers], name=os.fspath(source))


def read_word_list(path: Path_) -> list[tuple[str, str]]:
    """Words, one per line, each with the name of its group where a tab and a name follow."""
    pairs: dict[str, str] = {}
    for document in read_texts([os.fspath(path)], format="txt", documents="line"):
        word, _, group = document.text.partition("\t")
        pairs.setdefault(word.strip(), group.strip())
    if not pairs:
        raise UserError(f"{path}: holds no words")
    return list(pairs.items())


def solve(space: WordSpace, analogy: str | Sequence[str]) -> Question:
    """king man woman: king - man + woman; a fourth word is taken as the answer."""
    words = analogy.split() if isinstance(analogy, str) else list(analogy)
    if len(words) not in (3, 4):
        raise UserError(f"an analogy has three words, as in 'king man woman', or four, not {len(words)}")
    first, second, third = words[:3]
    best = space.analogy(first, second, third, 1)
    answer, score = (best[0].word, best[0].score) if best else (third, 0.0)
    if len(words) == 4:
        answer = space.words[space.place(words[3])]
        wanted = unit(sum_of(space, first, second, third))
        score = float(np.clip(wanted @ space.unit[space.place(answer)], -1, 1))
    return Question(first, second, third, answer, score)


def sum_of(space: WordSpace, first: str, second: str, third: str) -> Any:
    a, b, c = (space.unit[space.place(word)] for word in (first, second, third))
    return a - b + c


def word_map_view(
    source: Path_ | WordSpace,
    words: Sequence[str] | Sequence[tuple[str, str]] | None = None,
    *,
    methods: Sequence[str] = ("pca",),
    analogies: Sequence[str | Sequence[str]] = (),
    top: int = TOP,
    seed: int = 0,
    online: bool = False,
) -> View:
    """Words in the plane by their vectors; default: the `top` most frequent words.

    `words`: words, or pairs of a word and its group. `analogies`: "king man woman", drawn as two arrows.
    """
    refuse(
        (not 2 <= top <= MOST, f"top must be between 2 and {MOST:,}, not {top}"),
        (not 0 <= seed < 2**32, f"seed must be between 0 and {2**32 - 1:,}, not {seed}"),
        (words is not None and len(words) > MOST, f"a map holds {MOST:,} words at most, not {len(words or ())}"),
    )
    space = source if isinstance(source, WordSpace) else open_space(source, online)
    questions = [solve(space, analogy) for analogy in analogies]
    chosen, groups, missing = _chosen(space, words, top, bool(questions))
    for question in questions:
        for word in (question.first, question.second, question.third, question.answer):
            chosen.setdefault(space.place(word), "")
    if len(chosen) < 2:
        raise UserError(f"a map needs at least two words of {space.name}; missing: {listed(missing, 5)}")
    numbers = list(chosen)
    vectors = space.unit[numbers].astype(np.float64)
    layouts = [
        PointLayout(TITLES[one_of(method, METHODS, "method")], *projected(vectors, method, seed))
        for method in dict.fromkeys(methods)
    ]  # fmt: skip
    order = list(dict.fromkeys([*groups, *chosen.values()]))
    points = [
        {"label": space.words[number], "group": order.index(chosen[number]), "note": note}
        for number, note in zip(numbers, _neighbors(space, numbers), strict=True)
    ]
    places = {number: place for place, number in enumerate(numbers)}

    def at(word: str) -> int:
        return places[space.place(word)]

    arrows = [(q.second, q.first) for q in questions] + [(q.third, q.answer) for q in questions]
    names = [name or "other words" for name in order] if len(order) > 1 else []
    plot = PointPlot(
        points=points,
        layouts=layouts,
        groups=names,
        lines=[(at(begin), at(end), f"{begin} → {end}") for begin, end in arrows],
        note=f"Not among the vectors: {listed(missing, 20)}." if missing else "",
    )
    panels: list[Panel] = [plot]
    if questions:
        rows = [[f"{q.first} − {q.second} + {q.third}", q.answer, f"{q.score:.3f}"] for q in questions]
        panels.append(TextTable(heading="Analogies", header=["analogy", "nearest word", "cosine"], rows=rows))
    intro = f"{len(points)} of {len(space):,} words, {space.matrix.shape[1]} dimensions, scaled to length 1."
    return View(f"Map of {Path(space.name).name}", tuple(panels), intro)


def _chosen(
    space: WordSpace, words: Sequence[Any] | None, top: int, small: bool
) -> tuple[dict[int, str], list[str], list[str]]:
    """Places of the words of a map with their groups, the groups in order, and words that have no vector."""
    if words is None:
        if small:  # analogies alone: their words, not the frequent ones
            return {}, [], []
        plain = (place for place, word in enumerate(space.words) if PLAIN.fullmatch(word))
        numbers = [place for place, _ in zip(plain, range(top), strict=False)]
        return dict.fromkeys(numbers or range(min(top, len(space))), ""), [], []
    pairs = [(word, "") if isinstance(word, str) else tuple(word) for word in words]
    chosen, missing = dict[int, str](), list[str]()
    for word, group in pairs:
        place = space.find(word)
        if place is None:
            missing.append(shown(word, 30))
        else:
            chosen.setdefault(place, group)
    return chosen, list(dict.fromkeys(group for _, group in pairs)), missing


def _neighbors(space: WordSpace, numbers: Sequence[int]) -> list[str]:
    """For each word the nearest of all words, in the space itself rather than in the plane."""
    notes = []
    for begin in range(0, len(numbers), TOGETHER):
        some = list(numbers[begin : begin + TOGETHER])
        scores = space.unit[some] @ space.unit.T
        scores[np.arange(len(some)), some] = -np.inf
        count = min(NEAREST, len(space) - 1)
        best = np.argsort(-scores, axis=1, kind="stable")[:, :count]
        for row, near in zip(scores, best, strict=True):
            notes.append("nearest: " + ", ".join(f"{space.words[n]} {row[n]:.2f}" for n in near.tolist()))
    return notes

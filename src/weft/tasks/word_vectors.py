"""Word vectors from a folder or a file, to be asked, evaluated, written in another format, or mapped onto others."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from weft.checkpoint.folder import open_folder
from weft.checkpoint.locate import find_folder
from weft.checkpoint.tensors import read_file as read_tensor_file
from weft.checkpoint.tensors import save_tensors
from weft.config import build, values_of
from weft.errors import UserError, listed, one_of, shown
from weft.files import MEGABYTE, read_json, whole_folder, write_json
from weft.progress import Log, to_logger
from weft.text.records import read_records
from weft.text.vector_files import FORMATS, is_file_of_vectors, read_file, read_vectors, write_file
from weft.vectors.space import Map, Mapped, PreparedVectors, WordScores, WordSpace, evaluate, read_questions, split

Path_ = str | os.PathLike[str]


def read_words(path: Path_) -> tuple[list[str], Any]:
    """The words and vectors (n d float32) of a model folder of word vectors, or of a file in any of their formats."""
    place = Path(path)
    if place.is_file() or not place.is_dir() and place.suffix in (".txt", ".bin", ".vec", ".gz", ".xz", ".zip"):
        if place.is_file() and not is_file_of_vectors(place):
            read_vectors(place)  # which says what is wrong, or on which line
        vectors = read_file(place)
        return vectors.words, vectors.matrix
    model = open_folder(find_folder(os.fspath(path)))
    if model.family.name != "vectors" or model.tokenizer is None:
        raise UserError(f"{path}: is a {model.family.name}, which has no one vector for a word; weft embed reads texts")
    places = model.tokenizer.tokens
    words = sorted(places, key=lambda word: places[word])
    return words, model.network.get_parameter("tokens.weight").detach().float().numpy()


def open_words(path: Path_) -> WordSpace:
    """Word vectors to ask: `open_words("runs/w2v").near("king")`."""
    return WordSpace(*read_words(path), name=os.fspath(path))


def evaluate_words(space: WordSpace, files: Sequence[Path_], multiply: bool = False) -> list[WordScores]:
    """What each file of word pairs, or of analogies, says of the vectors."""
    return [one for file in files for one in evaluate(space, read_questions(_data_file(file)), multiply)]


def _data_file(file: Path_) -> Path:
    """A file here, or where $WEFT_DATA says that data lies."""
    elsewhere = Path(os.environ.get("WEFT_DATA") or ".") / file
    return elsewhere if not Path(file).exists() and elsewhere.exists() else Path(file)


def convert(source: Path_, target: Path_, format: str | None = None, log: Log = to_logger) -> tuple[int, int]:
    """Write vectors in another format (`.bin`: word2vec's binary, else its text); how many words, how wide."""
    path = Path(target)
    if path.exists() and path.is_dir():
        raise UserError(f"{path}: is a folder; name a file")
    chosen = one_of(format or ("binary" if path.suffix == ".bin" else "text"), FORMATS, "format")
    words, matrix = read_words(source)
    # A file of this kind cannot hold a word with a space in it: nobody could tell where it ends.
    lost = [shown(word, 30) for word in words if word.split() != [word]]
    if lost:
        log(f"weft: note: {len(lost):,} words with a space in them are left out: {listed(lost, 5)}")
        keep = [place for place, word in enumerate(words) if word.split() == [word]]
        words, matrix = [words[place] for place in keep], matrix[keep]
    write_file(path, words, matrix, chosen)
    return matrix.shape


@dataclass(frozen=True, kw_only=True)
class MapCard:
    """`map.json`: which vectors a map leads from and to."""

    source: str
    target: str
    normalize: bool = True
    pairs: int = 0
    held_out: int = 0
    scores: dict[str, float] | None = None


@dataclass(frozen=True)
class MapReport:
    """What came of a map: pairs it was learned from, words left out, and the precision of both ways to search."""

    learned: int
    held_out: int
    left_out: int
    missing: tuple[str, ...]
    scores: dict[str, Mapped]


def read_pairs(files: Sequence[Path_]) -> list[tuple[str, str]]:
    """Words and their translations: the first two columns of tables without a header."""
    pairs: dict[tuple[str, str], None] = {}
    for file in files:
        for record in read_records([_data_file(file)], columns=("source", "target"), header=False):
            source, target = (str(record.values[name] or "").strip() for name in ("source", "target"))
            pairs |= {(source, target): None} if source and target else {}
    if not pairs:
        raise UserError(f"{listed([os.fspath(file) for file in files], 2)}: holds no pairs of words")
    return list(pairs)


def learn_map(
    source: Path_,
    target: Path_,
    pairs: Sequence[tuple[str, str]],
    out: Path_ | None = None,
    *,
    normalize: bool = True,
    center: bool = True,
    holdout: float = 0.1,
    seed: int = 0,
) -> tuple[Map, MapReport]:
    """The rotation from one set of vectors into another, evaluated on pairs that were held out."""
    if not 0 <= holdout < 1:
        raise UserError(f"holdout must be at least 0 and below 1, not {holdout}")
    spaces = open_words(source), open_words(target)
    there = [pair for pair in pairs if pair[0] in spaces[0] and pair[1] in spaces[1]]
    words = ((word, space) for pair in pairs for word, space in zip(pair, spaces, strict=True))
    missing = tuple(dict.fromkeys(word for word, space in words if word not in space))
    some, held_out = split(there, holdout, seed)
    if len(some) < 2 and missing:
        raise UserError(f"{len(some)} of {len(pairs)} pairs can be learned from; missing: {listed(missing)}")
    learned = Map.learn(*spaces, some, normalize, center)
    scores = {way: learned.evaluate(held_out, way) for way in ("cosine", "csls")} if held_out else {}
    report = MapReport(len(some), len(held_out), len(pairs) - len(there), missing, scores)
    if out is not None:
        card = MapCard(
            source=str(Path(source).absolute()),
            target=str(Path(target).absolute()),
            normalize=normalize,
            pairs=len(some),
            held_out=len(held_out),
            scores={f"{way}@{at}": vars(one)[f"at_{at}"].value for way, one in scores.items() for at in (1, 5)},
        )
        with whole_folder(Path(out)) as inside:
            arrays = {"matrix": learned.matrix, "source": learned.before.mean, "target": learned.after.mean}
            tensors = {name: torch.from_numpy(array).contiguous() for name, array in arrays.items()}
            save_tensors(inside / "map.safetensors", tensors)
            write_json(inside / "map.json", values_of(card))
    return learned, report


def open_map(folder: Path_, source: WordSpace | None = None) -> Map:
    """A map that was kept, with the vectors that it leads from and to."""
    path = Path(folder)
    if not (path / "map.json").is_file():
        raise UserError(f"{str(folder)!r} is not a map: it has no map.json; weft vectors map makes one")
    card = build(MapCard, read_json(path / "map.json", MEGABYTE), str(path / "map.json"))
    tensors = {name: tensor.float().numpy() for name, tensor in read_tensor_file(path / "map.safetensors").items()}
    source, target = source or open_words(card.source), open_words(card.target)
    widths = source.matrix.shape[1], target.matrix.shape[1]
    wanted = {"matrix": widths, "source": widths[:1], "target": widths[1:]}
    for name, shape in wanted.items():
        if name not in tensors or tensors[name].shape != shape or not np.isfinite(tensors[name]).all():
            has = tensors[name].shape if name in tensors else "nothing"
            raise UserError(f"{path}: {name} is {has}, and the vectors need {shape}")
    means = (PreparedVectors(card.normalize, tensors[name]) for name in ("source", "target"))
    return Map(source, target, tensors["matrix"], *means)

"""Pictures as vectors, and what is to be seen on them: made data on which a model learns to write from numbers.

python examples/captions.py 6000 > captions.jsonl

A picture has some shapes of one color and size in one place. Its vector is what a camera might make of that: numbers
that each hang on all of it, with noise. Every eighth combination is left out of the rows;
`--unseen` prints rows of those alone.
"""

from __future__ import annotations

import json
import random
import sys

COUNTS = ("one", "two", "three", "four", "five")
SIZES = ("small", "large")
COLOURS = ("red", "green", "blue", "yellow", "black", "white")
SHAPES = ("circle", "square", "star", "triangle", "cross")
PLACES = ("on the left", "on the right", "in the middle", "at the top", "at the bottom")
KINDS = (COUNTS, SIZES, COLOURS, SHAPES, PLACES)
FEATURES, NOISE = 32, 0.1

Picture = tuple[str, ...]


def caption(picture: Picture) -> str:
    """What is to be seen."""
    count, size, color, shape, place = picture
    several = {"cross": "crosses"}.get(shape, f"{shape}s")
    return f"{count} {size} {color} {shape if count == 'one' else several} {place}"


def camera() -> dict[str, list[float]]:
    """What each word adds to the numbers of a picture: the same in every run."""
    chance = random.Random(7)
    return {word: [chance.gauss(0, 1) for _ in range(FEATURES)] for kind in KINDS for word in kind}


def pictures(unseen: bool) -> list[Picture]:
    """All there are but every eighth; or those alone."""
    found: list[Picture] = [()]
    for kind in KINDS:
        found = [(*picture, word) for picture in found for word in kind]
    random.Random(1).shuffle(found)
    return [picture for number, picture in enumerate(found) if (number % 8 == 0) == unseen]


def rows(count: int, unseen: bool = False, seed: int = 0) -> list[dict[str, object]]:
    """So many pictures, each as a vector and as words."""
    chance, adds, known = random.Random(seed), camera(), pictures(unseen)
    found: list[dict[str, object]] = []
    for _ in range(count):
        picture = chance.choice(known)
        sums = [sum(numbers) for numbers in zip(*(adds[word] for word in picture), strict=True)]
        vector = [round(number + chance.gauss(0, NOISE), 4) for number in sums]
        found.append({"vector": vector, "text": caption(picture)})
    return found


if __name__ == "__main__":
    numbers = [int(argument) for argument in sys.argv[1:] if argument.isdecimal()]
    for row in rows(numbers[0] if numbers else 6000, "--unseen" in sys.argv, seed="--unseen" in sys.argv):
        print(json.dumps(row))

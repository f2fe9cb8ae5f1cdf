"""`[vectors]` of a recipe: how word vectors are learned from text."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from weft.config import option
from weft.errors import UserError, shown

# Defaults: word2vec's are those of the first program and of gensim; GloVe's are its own.
USUAL = {"word2vec": {"window": 5, "epochs": 5}, "glove": {"window": 10, "epochs": 25}}
RATES = {"skip-gram": 0.1, "cbow": 0.1, "glove": 0.05}

# GloVe's ceiling from so many words on. Its own program has 100 for billions, and 10 in its small example; texts of 1
# and of 14 million words scored more on WordSim-353 and MEN with 3 than with 10 after the same epochs (15 and 5).
CEILINGS = ((10**8, 100.0), (5 * 10**7, 10.0), (0, 3.0))
STEPS = 500  # in an epoch of word2vec, at least
LIMITS: dict[str, tuple[float, float]] = {"width": (1, 1 << 16), "window": (1, 100), "negatives": (1, 1000)}
LIMITS |= {"sample": (0, 1), "min_count": (1, 1 << 40), "vocabulary": (1, 1 << 26), "epochs": (1, 10_000)}
LIMITS |= {"learning_rate": (1e-9, 100), "ceiling": (1e-9, 1e12), "power": (0, 10), "threads": (1, 1024)}
LIMITS |= dict.fromkeys(("batch", "block"), (1, 1 << 26))


@dataclass(frozen=True, kw_only=True)
class Learning:
    """All that decides how vectors are learned, beside the text and the seed."""

    panel: ClassVar = "Vectors"
    kind: Literal["word2vec", "glove"] = option("word2vec", "--kind", help="Algorithm.")
    mode: Literal["skip-gram", "cbow"] | None = option(None, "--mode", help="Which word2vec model. Default: skip-gram.")
    width: int = option(100, "--width", help="Numbers per vector.")
    window: int | None = option(
        None, "--window", help="Words on either side that count as context. Default: 5 (word2vec), 10 (glove)."
    )
    negatives: int = option(5, "--negatives", help="Negative samples for each pair of words (word2vec).")
    sample: float = option(
        1e-3, "--sample", help="Subsample words above this share of the text. 0: keep all.", metavar="SHARE"
    )
    min_count: int = option(5, "--min-count", help="Words below this count become the unknown word.")
    vocabulary: int | None = option(None, "--vocabulary", help="Keep only the N most frequent words.")
    lowercase: bool = option(True, "--lowercase/--no-lowercase", help="Lowercase the text first. Default: yes.")
    epochs: int | None = option(
        None, "--epochs", help="Passes over the text or the counts. Default: 5 (word2vec), 25 (glove)."
    )
    learning_rate: float | None = option(
        None, "--learning-rate", "--lr", help="Initial learning rate. Default: 0.1 (glove: 0.05).", metavar="RATE"
    )
    ceiling: float | None = None  # of GloVe: counts from here on weigh alike; by the size of the text
    power: float = 0.75  # of GloVe: how the weight of a count grows up to there
    batch: int | None = None  # words, or counts, of a step; by the device
    block: int | None = None  # words that are read, thinned out and shuffled together
    threads: int | None = None  # of the CPU

    def __post_init__(self) -> None:
        for name, (low, high) in LIMITS.items():
            value = vars(self)[name]
            if value is not None and not low <= value <= high:
                raise UserError(f"{name} must be between {low:g} and {high:g}, not {shown(str(value))}")
        if self.kind == "glove" and self.mode is not None:
            raise UserError(f"mode {self.mode} is one of word2vec's; GloVe has none")

    @property
    def way(self) -> str:
        """skip-gram, cbow or glove."""
        return "glove" if self.kind == "glove" else self.mode or "skip-gram"

    def resolved(self, cuda: bool, threads: int, words: int) -> Learning:
        """With every open choice made, so that the recipe in the run folder says it all; `words` of the text."""
        usual = USUAL[self.kind]
        # Words of a batch do not learn from each other: few of them are slow, and many have few steps in a short text.
        # CBOW does so little with each that a step's own cost would show.
        batch = min(max(words // STEPS, 256), 1 << 14 if cuda else 1 << 12 if self.way == "cbow" else 1 << 11)
        return replace(
            self,
            mode=None if self.kind == "glove" else self.mode or "skip-gram",
            window=self.window or usual["window"],
            epochs=self.epochs or usual["epochs"],
            learning_rate=self.learning_rate or RATES[self.way],
            batch=self.batch or (1 << 18 if self.kind == "glove" else batch),
            ceiling=self.ceiling or next(ceiling for low, ceiling in CEILINGS if words >= low),
            block=self.block or (1 << 22 if cuda else 1 << 17),
            threads=self.threads or threads,
        )

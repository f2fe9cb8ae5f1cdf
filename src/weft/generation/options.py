"""How text is generated, as users say it. It imports no torch: the command line takes its options from here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

from weft.config import option
from weft.errors import UserError, did_you_mean

SAMPLING = ("temperature", "top_k", "top_p", "min_p", "typical")
BEAM = ("length_penalty", "coverage", "groups", "diversity")


@dataclass(frozen=True, kw_only=True)
class GenerationOptions:
    """How to generate: greedy, by sampling or by beam search, and what a completion may hold."""

    panel: ClassVar = "Generation"
    max_tokens: int | None = option(None, "--max-tokens", help="New tokens at most.")
    min_tokens: int = option(0, "--min-tokens", help="New tokens before a text may end.")
    temperature: float | None = option(
        None,
        "--temperature",
        help="Sampling temperature. 0 is greedy. Default: 1 when another sampling option is given.",
        metavar="T",
    )
    top_k: int | None = option(None, "--top-k", help="Sample from the k likeliest tokens.", metavar="K")
    top_p: float | None = option(
        None, "--top-p", help="Sample from the likeliest tokens whose probabilities sum to P.", metavar="P"
    )
    min_p: float | None = option(
        None, "--min-p", help="Sample from tokens at least P times as likely as the best one.", metavar="P"
    )
    typical: float | None = option(
        None, "--typical", help="Sample from the most typical tokens whose probabilities sum to P.", metavar="P"
    )
    beam_size: int | None = option(None, "--beam-size", help="Beam search with N hypotheses.")
    n: int = option(1, "--n", help="Texts per input: the best of a beam, or samples.")
    length_penalty: float | None = option(
        None,
        "--length-penalty",
        help="Beam search divides log-probabilities by length to this power. Default: 1. Higher favors long texts.",
        metavar="X",
    )
    coverage: float | None = option(
        None, "--coverage", help="Weight of attending to the whole source in a beam. Default: 0.", metavar="WEIGHT"
    )
    groups: int | None = option(None, "--groups", help="Groups of a beam that --diversity keeps apart. Default: 1.")
    diversity: float | None = option(
        None,
        "--diversity",
        help="Penalty of a group for each earlier group that takes the same token. Default: 0.",
        metavar="X",
    )
    repetition_penalty: float = option(
        1.0,
        "--repetition-penalty",
        help="Above 1: tokens that are already in the text become less likely.",
        metavar="X",
    )
    no_repeat: int = option(0, "--no-repeat", help="No sequence of N tokens occurs twice. 0: no limit.")
    ban: tuple[str, ...] = option((), "--ban", help="A word that may not occur; repeatable.", metavar="WORD")
    allow: tuple[str, ...] = option((), "--allow", help="The only words that may occur; repeatable.", metavar="WORD")
    choices: tuple[str, ...] = option((), "--choice", help="The only possible texts; repeatable.", metavar="TEXT")
    force: str = option("", "--force", help="Every text begins with this.", metavar="TEXT")
    complete_word: bool = option(
        False,
        "--complete-word/--no-complete-word",
        help="Take the last word of the prompt (or of --force) as half-typed and complete it. Default: no.",
    )
    stop: tuple[str, ...] = option((), "--stop", help="End before this string; repeatable.", metavar="TEXT")
    seed: int | Sequence[int] = option(0, "--seed", help="Input n samples with seed + n.")
    slide: bool = option(False, "--slide", help="Read the last part of a text that is longer than the context.")
    logprobs: int | None = option(
        None, "--logprobs", help="With --jsonl: log-probabilities of the tokens, and N alternatives to each."
    )
    alignments: bool = option(False, "--alignments", help="Show which source token each word came from.")

    def __post_init__(self) -> None:
        words: str | Sequence[str]
        for name, what, words in (
            ("ban", "banned word", self.ban),
            ("allow", "allowed word", self.allow),
            ("choices", "choice", self.choices),
            ("stop", "stop string", self.stop),
        ):
            words = (words,) if isinstance(words, str) else tuple(words)
            if any(not isinstance(word, str) or not word for word in words):
                raise UserError(f"a {what} cannot be empty")
            object.__setattr__(self, name, words)
        if self.complete_word and (self.allow or self.choices):
            raise UserError("complete_word does not go with a list of allowed words or choices")

    def given(self, names: Sequence[str]) -> dict[str, Any]:
        """Those of these options that have a value."""
        values = asdict(self)
        return {name: values[name] for name in names if values[name] is not None}

    def seeds(self, count: int) -> list[int]:
        """The seed of each of so many prompts."""
        seeds = list(self.seed) if isinstance(self.seed, Sequence) else [self.seed + row for row in range(count)]
        if len(seeds) != count:
            raise UserError(f"{len(seeds)} seeds for {count} prompts")
        return seeds


def options_of(options: Mapping[str, Any], only: Sequence[str] = ()) -> GenerationOptions:
    """Generation options from keywords; `only` some of them may be given."""
    known = only or [field.name for field in fields(GenerationOptions)]
    for name in options:
        if name not in known:
            raise UserError(f"no generation option {name!r}{did_you_mean(name, known)}")
    return GenerationOptions(**options)

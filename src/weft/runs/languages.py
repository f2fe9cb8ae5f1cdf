"""The languages of a pre-training run: `--text en=FILE` and `--pairs en-de=FILE`, read, split and mixed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from weft.checkpoint.families import Family
from weft.checkpoint.folder import LoadedModel
from weft.data.languages import (
    InLanguage,
    Mixture,
    PairFiles,
    PairFrame,
    TranslationPairs,
    borders_of,
    language_shares,
    sampled_texts,
    split_pairs,
)
from weft.data.rows import ExampleSource
from weft.data.shards import Corpus, TextFiles
from weft.errors import UserError, listed, refuse, shown
from weft.runs.recipes import Recipe, named_language
from weft.text.rows import Skipped
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.windows import frame, pair_frame
from weft.training.signals import Control

LayOut = Callable[[int, bool], ExampleSource]  # rows of so many tokens, to learn from or held out
PAIR = re.compile(r"([A-Za-z0-9_]+)-([A-Za-z0-9_]+)")
Corpora = dict[str, Corpus]


@dataclass(frozen=True)
class TextByLanguage:
    """The text of a run by language, and its sentence pairs by their two languages, such as en-de."""

    texts: Mapping[str, TextFiles]
    pairs: Mapping[str, PairFiles]
    dev_texts: Mapping[str, TextFiles]
    dev_pairs: Mapping[str, PairFiles]

    @property
    def names(self) -> tuple[str, ...]:
        """The languages, in the order in which they are named."""
        sides = (side for pair in self.pairs.values() for side in pair.languages)
        return tuple(dict.fromkeys([*self.texts, *sides]))

    def ids(self, languages: Sequence[str], where: str) -> dict[str, int]:
        """The id of each language of the run in a model with these languages."""
        unknown = [name for name in self.names if name not in languages]
        has = f"it has {listed(languages, 20)}" if languages else "it has none"
        refuse((bool(unknown), f"{where}: {listed(unknown)} is not a language of the model; {has}"))
        return {name: languages.index(name) for name in self.names}

    def sampled(self, alpha: float, skipped: Skipped) -> Any:
        """What a vocabulary is learned from."""
        texts = {**self.texts, **self.pairs}
        return sampled_texts({name: partial(files.read, skipped) for name, files in texts.items()}, alpha)

    def corpora(self, tokenize: Callable[[TextFiles, str], Corpus], holdout: float) -> tuple[Corpora, Corpora]:
        """The tokens to learn from and those held out, of each language and each pair of languages."""
        train, held = Corpora(), Corpora()
        for name, files in {**self.texts, **self.pairs}.items():
            corpus, dev = tokenize(files, name), {**self.dev_texts, **self.dev_pairs}.get(name)
            train[name] = corpus
            if dev is not None:
                held[name] = tokenize(dev, f"held-out {name}")
            elif holdout and not (self.dev_pairs if name in self.pairs else self.dev_texts):
                most, rest = split_pairs(corpus, holdout) if name in self.pairs else corpus.split(holdout)
                if most.size >= 2 and rest.size >= 2:
                    train[name], held[name] = most, rest
        return train, held

    def shares(self, sizes: Mapping[str, float], alpha: float, paired: float) -> dict[str, float]:
        """How many of the tokens that are read are of each language and each pair of languages."""
        groups = [{name: sizes[name] for name in group if name in sizes} for group in (self.texts, self.pairs)]
        weights = (1.0, 0.0) if not groups[1] else (1.0 - paired, paired) if groups[0] else (0.0, 1.0)
        both = zip(groups, weights, strict=True)
        return {name: weight * each for group, weight in both for name, each in language_shares(group, alpha).items()}


def languages_in(recipe: Recipe) -> TextByLanguage | None:
    """The languages that a recipe names; None where its text has no language."""
    text = recipe.text
    named = [named_language(name) for name in (*text.files, *text.dev)]
    missing = [path for language, path in named if language is None]
    if not text.pairs and len(missing) == len(named):
        refuse((bool(text.dev_pairs), "--dev-pairs needs --pairs"))
        return None
    if missing:
        raise UserError(f"{missing[0]}: which language is it? give every text as LANGUAGE=FILE, such as en=FILE")
    odd = [name for name, _ in map(named_language, (*text.files, *text.dev)) if name is not None and "-" in name]
    refuse((bool(odd), f"--text {''.join(odd[:1])}=FILE: the name of a language is letters, digits and underscores"))
    alone = [path for language, path in map(named_language, (*text.pairs, *text.dev_pairs)) if language is None]
    refuse((bool(alone), f"--pairs {''.join(alone[:1])}: which languages are they? give en-de=FILE"))
    how = dict[str, Any](
        column=text.column, delimiter=text.delimiter, on_bad_row=text.on_bad_row, encoding=text.encoding
    )
    texts, dev_texts = (
        {key: TextFiles(files, documents=text.documents, **how) for key, files in _grouped(names)}
        for names in (text.files, text.dev)
    )
    pairs, dev_pairs = (
        {key: PairFiles(files, languages=_sides(key), **how) for key, files in _grouped(names)}
        for names in (text.pairs, text.dev_pairs)
    )
    for kind, dev, train in (("--dev", dev_texts, texts), ("--dev-pairs", dev_pairs, pairs)):
        extra = [name for name in dev if name not in train]
        refuse((bool(extra), f"{kind}: {listed(extra)} has no text to learn from; it has {listed(train, 20)}"))
    return TextByLanguage(texts, pairs, dev_texts, dev_pairs)


def _grouped(names: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
    """The files of each language."""
    files: dict[str, tuple[str, ...]] = {}
    for language, path in map(named_language, names):
        files[language or ""] = (*files.get(language or "", ()), path)
    return list(files.items())


def _sides(name: str) -> tuple[str, str]:
    match = PAIR.fullmatch(name)
    if match is None or match[1] == match[2]:
        raise UserError(f"--pairs {shown(name)}=FILE: name the two languages of its columns, such as en-de=FILE")
    return match[1], match[2]


def translation_frame(tokenizer: Tokenizer, resets: bool) -> PairFrame:
    """What stands around two translations: each as if it were alone, or, where positions go on, as around a pair."""
    if resets:
        left, right = frame(tokenizer)
        return PairFrame(left, [*right, *left], right, len(right))
    around = pair_frame(tokenizer)
    if around is None:
        raise UserError("the tokenizer has no separator token for pairs of texts; learn one of kind wordpiece")
    return PairFrame(*around, len(around[1]))


def by_language(
    recipe: Recipe,
    languages: TextByLanguage,
    tokenizer: Tokenizer,
    model: LoadedModel,
    tokens: Callable[[TextFiles, str], Corpus],
    rows: Callable[[Corpus, int, bool], ExampleSource],
    control: Control,
) -> tuple[Corpus, Corpus | None, LayOut]:
    """The tokens of all texts and pairs, those held out, and how they become rows, mixed by their shares."""
    aim, config, network = recipe.objective, model.config, model.network
    ids = languages.ids(config.languages, "--text") if config.has("languages") else {}
    ids = ids if network.languages is not None else {}
    train, held_out = languages.corpora(tokens, recipe.text.holdout)
    shares = languages.shares({name: corpus.size for name, corpus in train.items()}, recipe.text.alpha, aim.paired)
    total = sum(corpus.size for corpus in train.values())
    of_all = (f"{name} {shares[name]:.0%} (text: {corpus.size / total:.0%})" for name, corpus in train.items())
    control.log(f"tokens read: {', '.join(of_all)}")

    def paired(name: str, corpus: Corpus, length: int) -> TranslationPairs:
        sides = languages.pairs[name].languages
        marks = (ids[sides[0]], ids[sides[1]]) if ids else (0, 1) if config.segments > 1 else None
        pairs = TranslationPairs(corpus, translation_frame(tokenizer, network.RESETS), length, marks, network.RESETS)
        if pairs.count and pairs.truncated:
            control.note(f"{name}: {pairs.truncated:,} of {pairs.count:,} pairs are truncated to {length} tokens")
        return pairs

    def lay_out(length: int, held: bool) -> ExampleSource:
        parts = dict[str, ExampleSource]()
        for name, corpus in (held_out if held else train).items():
            if name in languages.pairs:
                parts[name] = paired(name, corpus, length)
            else:
                source = rows(corpus, length, held)
                parts[name] = InLanguage(source, ids[name]) if ids else source
        return Mixture(parts, None if held else shares, recipe.seed)

    return borders_of(list(train.values())), borders_of(list(held_out.values())) if held_out else None, lay_out


def whole_paths(names: Sequence[str]) -> list[str]:
    """The files that some names stand for, each with its language where it has one."""
    whole = list[str]()
    for language, name in map(named_language, names):
        paths = [str(path.absolute()) for path in TextFiles((name,)).paths()]
        whole += paths if language is None else [f"{language}={path}" for path in paths]
    return list(dict.fromkeys(whole))


def objective_of(recipe: Recipe, family: Family) -> str:
    """What is learned: what is asked for, else by the data and the family."""
    paired = "mlm+tlm" if recipe.text.files else "tlm"
    usual = family.objectives[0] if family.objectives else ""
    return recipe.objective.name or (paired if recipe.text.pairs else usual)


def check_languages(recipe: Recipe, family: Family, name: str) -> None:
    """Refuse objectives that do not fit the texts and sentence pairs of a recipe."""
    text, rows, paired = recipe.text, recipe.objective.rows or family.rows, name in ("tlm", "mlm+tlm")
    several = languages_in(recipe) is not None
    refuse(
        (paired and not text.pairs, f"objective {name} learns from sentence pairs: give --pairs en-de=FILE"),
        (bool(text.pairs) and not paired, f"--pairs is for objectives tlm and mlm+tlm, not {name}"),
        (name == "mlm+tlm" and not text.files, "objective mlm+tlm needs --text too; for pairs alone, --objective tlm"),
        (name == "tlm" and bool(text.files), "objective tlm reads no --text; for both, --objective mlm+tlm"),
        (several and family.counts, "an n-gram model is counted from one text, without languages"),
        (several and rows == "carried", "rows carried continue one text; give --rows stream for several languages"),
    )
